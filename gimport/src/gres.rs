//! gres.conf: GPUs find themselves by NVML here, so that of its lines only the types are taken, for what nodes should have.

use crate::conf::{ConfKeys, items};
use crate::conf_text::{ConfLine, ConfWord, ReadText};
use crate::report::Fate;
use crate::site_draft::{NamedText, SiteDraft, Verdict};
use gmodel::gpu_type::gpu_type_of;
use gmodel::hostlist::Hostlist;
use std::collections::BTreeMap;

/// The types of nodes' GPUs by the name of the node; the empty name is all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GresTypes(BTreeMap<String, Vec<String>>);

impl GresTypes {
    /// The one type of a node's GPUs; none where there are several, or none is known.
    pub(crate) fn only(&self, node: &str) -> Option<&str> {
        let types = self.0.get(node).or_else(|| self.0.get(""))?;
        match &types[..] {
            [only] => Some(only),
            _ => None,
        }
    }
}

pub(crate) fn decide(draft: &mut SiteDraft, file: &NamedText, read: &ReadText) {
    let lines = draft.conf.text.add_file(&file.path, &file.text, read);
    for line in lines {
        one(draft, line);
    }
}

fn one(draft: &mut SiteDraft, line: ConfLine) {
    let head = line[0].clone();
    let keys: ConfKeys = line
        .into_iter()
        .map(|word| (word.key.to_ascii_lowercase(), word))
        .collect();
    if let Some(strange) = keys
        .values()
        .find(|word| !KEYS.iter().any(|key| word.is(key)))
    {
        let near = gmodel::suggest::did_you_mean(&strange.key, KEYS);
        let text = format!("not a key of gres.conf's that this release knows.{near}");
        return draft.file(&strange.clone(), Verdict::Told(Fate::Unknown, text));
    }
    let shown = ConfWord {
        key: head.key.clone(),
        value: head.value.clone(),
        place: head.place.clone(),
    };
    let verdict = match keys
        .get("name")
        .map(|word| word.value.to_ascii_lowercase())
        .as_deref()
    {
        Some("gpu") => gpu(draft, &keys),
        Some("mps" | "shard") => {
            let text = "gpu_sharing of a partition: jobs ask for a part, as --gpus 0.5";
            Verdict::Told(Fate::Understood, text.into())
        }
        Some(_) => Verdict::Told(
            Fate::Counterpart,
            "features in gpud.toml mark nodes; licences count things of the whole cluster".into(),
        ),
        None => Verdict::Told(
            Fate::Understood,
            "nodes find their GPUs, links and cores by NVML".into(),
        ),
    };
    draft.file(&shown, verdict);
}

const KEYS: [&str; 11] = [
    "autodetect",
    "count",
    "cores",
    "cpus",
    "file",
    "flags",
    "links",
    "multiplefiles",
    "name",
    "nodename",
    "type",
];

fn gpu(draft: &mut SiteDraft, keys: &ConfKeys) -> Verdict {
    let is_cut = keys.contains_key("multiplefiles");
    let kind = keys.get("type").map(|word| word.value.as_str());
    let Some(kind) = kind.filter(|kind| !is_cut && !is_profile(kind)) else {
        let text = match is_cut || kind.is_some() {
            true => {
                "MIG: [mig.NAME] in gpuctld.toml says how GPUs are cut, or mig = \"planned\" of a partition"
            }
            false => "nodes find their GPUs by NVML",
        };
        let fate = if is_cut || kind.is_some() {
            Fate::Counterpart
        } else {
            Fate::Understood
        };
        return Verdict::Told(fate, text.into());
    };
    let kind = gpu_type_of(kind);
    let names: Vec<String> = match keys.get("nodename") {
        None => vec![String::new()],
        Some(word) => match Hostlist::parse(&word.value) {
            Ok(hosts) => hosts.iter().map(str::to_owned).collect(),
            Err(error) => return Verdict::Wrong(error.to_string(), "as \"node[01-16]\"".into()),
        },
    };
    for name in names {
        let types = draft.gres.0.entry(name).or_default();
        if !types.contains(&kind) {
            types.push(kind.clone());
        }
    }
    Verdict::Told(
        Fate::Understood,
        format!("type {kind}; nodes find the GPUs by NVML"),
    )
}

/// `gpu:h100:8(S:0-1),mps:400` as kind, type and count.
pub(crate) struct GresItem {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) count: u64,
}

/// The items of Gres= of a node; none where one has another form.
pub(crate) fn gres_items(text: &str) -> Option<Vec<GresItem>> {
    items(text).map(gres_item).collect()
}

fn gres_item(text: &str) -> Option<GresItem> {
    let text = text.split('(').next().unwrap_or_default();
    let mut words = text.split(':').filter(|word| *word != "no_consume");
    let name = words.next()?.to_ascii_lowercase();
    let (mut kind, mut count) = (String::new(), 1);
    for word in words {
        match number(word) {
            Some(number) => count = number,
            None if kind.is_empty() && !word.is_empty() => word.clone_into(&mut kind),
            None => return None,
        }
    }
    Some(GresItem { name, kind, count })
}

/// `8`, `4K`.
fn number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['k', 'K', 'm', 'M']);
    let factor = match &text[digits.len()..] {
        "" => 1,
        "k" | "K" => 1024,
        "m" | "M" => 1 << 20,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// `1g.10gb`, `a100_3g.20gb`: a slice of a GPU.
pub(crate) fn is_profile(kind: &str) -> bool {
    let Some((slices, memory)) = kind.rsplit_once('.') else {
        return false;
    };
    let ends_in_slices = slices
        .strip_suffix('g')
        .is_some_and(|rest| rest.ends_with(|sign: char| sign.is_ascii_digit()));
    ends_in_slices && memory.to_ascii_lowercase().contains("gb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_has_a_name_a_type_and_a_count() {
        let read = |text: &str| {
            let items = gres_items(text)?;
            Some(
                items
                    .iter()
                    .map(|one| format!("{}/{}/{}", one.name, one.kind, one.count))
                    .collect::<Vec<_>>()
                    .join(" "),
            )
        };
        assert_eq!(
            read("gpu:h100:8(S:0-1),mps:400").unwrap(),
            "gpu/h100/8 mps//400"
        );
        assert_eq!(
            read("gpu:2,lustre:no_consume:4k,craynetwork").unwrap(),
            "gpu//2 lustre//4096 craynetwork//1"
        );
        assert_eq!(read("gpu:a:b:3"), None);
        assert!(
            is_profile("1g.10gb")
                && is_profile("a100_3g.20gb")
                && !is_profile("h100")
                && !is_profile("v1.0")
        );
    }
}
