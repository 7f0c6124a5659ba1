//! NodeName lines as what nodes should have (`[expect.NAME]`) and as a gpud.toml for each kind of node.

use crate::advice;
use crate::cluster::decide_word;
use crate::conf::{NodeLine, features};
use crate::conf_text::ConfWord;
use crate::draft::{DraftFile, DraftTable, bare, quoted, quoted_list};
use crate::gres::{gres_items, is_profile};
use crate::partition::amounts;
use crate::report::Fate;
use crate::site_draft::{ImportedFile, SiteDraft, Verdict};
use gmodel::gpu_type::gpu_type_of;
use gmodel::hostlist::compress;
use gmodel::policy::{ALL_GPUS, GpuAmounts};
use std::collections::BTreeMap;

/// Keys that are read together.
const SHAPE: [&str; 10] = [
    "boards",
    "corespersocket",
    "cpus",
    "feature",
    "features",
    "gres",
    "realmemory",
    "sockets",
    "socketsperboard",
    "threadspercore",
];

/// Lines with the same hardware and features share a table.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct NodeShape {
    cpus: Option<u64>,
    mem_mib: Option<u64>,
    gpus: BTreeMap<String, u64>,
    features: Vec<String>,
}

/// The nodes of a shape, and the line that says so first.
struct ShapedNodes {
    nodes: Vec<String>,
    why: String,
}

pub(crate) fn decide(draft: &mut SiteDraft) {
    let lines = std::mem::take(&mut draft.conf.nodes);
    let mut shapes: BTreeMap<NodeShape, ShapedNodes> = BTreeMap::new();
    for line in &lines {
        let head = head(line);
        for word in line
            .keys
            .values()
            .filter(|word| !SHAPE.iter().any(|key| word.is(key)))
        {
            let verdict = match word.is("state") || word.is("reason") {
                true => state(word),
                false => decide_word(draft, word, &[], advice::NODE_KEYS),
            };
            draft.file(word, verdict);
        }
        let Some(shape) = shape(draft, line) else {
            continue;
        };
        let why = draft.why(&head);
        let names = line.hosts.iter().map(str::to_owned);
        let known = shapes.entry(shape).or_insert_with(|| ShapedNodes {
            nodes: Vec::new(),
            why,
        });
        known.nodes.extend(names);
        draft.file(
            &head,
            Verdict::Becomes("[expect] of gpuctld.toml, and a file in gpud/".into()),
        );
    }
    draft.conf.nodes = lines;
    let mut names = BTreeMap::new();
    for (shape, known) in shapes {
        let name = free_name(&mut names, &known.nodes[0]);
        write_expected(draft, &name, &shape, &known);
        write_node_file(draft, &name, &shape, &known);
    }
}

fn head(line: &NodeLine) -> ConfWord {
    ConfWord {
        key: "NodeName".into(),
        value: compress(line.hosts.iter()),
        place: line.place.clone(),
    }
}

fn state(word: &ConfWord) -> Verdict {
    let lower = word.value.to_ascii_lowercase();
    let (fate, text) = match lower.split('+').next().unwrap_or_default() {
        "unknown" | "idle" => (Fate::Understood, "a node takes work once it has joined"),
        "cloud" | "future" | "power_down" | "power_up" => (
            Fate::Counterpart,
            "a node is there once it has joined, and is not booted from here",
        ),
        _ => (
            Fate::Counterpart,
            "gadm node drain NODE --reason ..., once it has joined",
        ),
    };
    Verdict::Told(fate, text.into())
}

/// What a line says of its nodes' hardware; nothing where a word of it is wrong.
fn shape(draft: &mut SiteDraft, line: &NodeLine) -> Option<NodeShape> {
    let number = |draft: &mut SiteDraft, key: &str| match line.keys.get(key) {
        None => Ok(None),
        Some(word) => word.value.parse::<u64>().map(Some).map_err(|_| {
            let message = format!("{} is no number", word.shown());
            draft
                .conf
                .text
                .wrong(&word.place, message, "a whole number");
        }),
    };
    let cpus = number(draft, "cpus").ok()?;
    let mem_mib = number(draft, "realmemory")
        .ok()?
        .filter(|mib| *mib > 1 && *mib < 1 << 30);
    let mut product = 1;
    let mut has_any = false;
    for key in [
        "boards",
        "sockets",
        "socketsperboard",
        "corespersocket",
        "threadspercore",
    ] {
        if let Some(count) = number(draft, key).ok()? {
            product *= count.clamp(1, 65_536);
            has_any |= key != "threadspercore";
            product = product.min(1 << 32);
        }
    }
    let cpus = cpus
        .or(has_any.then_some(product))
        .filter(|cpus| (1..=65_536).contains(cpus));
    let mut features: Vec<String> = features(&line.keys).map(str::to_owned).collect();
    features.sort();
    features.dedup();
    Some(NodeShape {
        cpus,
        mem_mib,
        gpus: gpus(draft, line)?,
        features,
    })
}

/// Whole GPUs by type. Slices are no GPUs of their own.
fn gpus(draft: &mut SiteDraft, line: &NodeLine) -> Option<BTreeMap<String, u64>> {
    let mut gpus = BTreeMap::new();
    let Some(word) = line.keys.get("gres") else {
        return Some(gpus);
    };
    let Some(items) = gres_items(&word.value) else {
        let message = format!("{} is no list of resources", word.shown());
        draft.conf.text.wrong(&word.place, message, "as gpu:h100:8");
        return None;
    };
    for item in items {
        let verdict = match item.name.as_str() {
            "gpu" if is_profile(&item.kind) => counterpart(
                "[mig.NAME] in gpuctld.toml says how GPUs are cut, or mig = \"planned\" of a partition",
            ),
            "gpu" => {
                let first = line.hosts.iter().next().unwrap_or_default();
                let kind = match item.kind.is_empty() {
                    true => draft.gres.only(first).unwrap_or(ALL_GPUS).to_owned(),
                    false => gpu_type_of(&item.kind),
                };
                let count = gpus.entry(kind).or_insert(0_u64);
                *count = count.saturating_add(item.count).min(1000);
                continue;
            }
            "mps" | "shard" => Verdict::Told(
                Fate::Understood,
                "gpu_sharing of a partition: jobs ask for a part, as --gpus 0.5".into(),
            ),
            _ => counterpart(
                "features in gpud.toml mark nodes; licences count things of the whole cluster",
            ),
        };
        let one = ConfWord {
            value: item.name,
            ..word.clone()
        };
        draft.file(&one, verdict);
    }
    Some(gpus)
}

fn counterpart(text: &str) -> Verdict {
    Verdict::Told(Fate::Counterpart, text.to_owned())
}

/// The letters that names of nodes begin with, once for each shape.
fn free_name(names: &mut BTreeMap<String, u32>, node: &str) -> String {
    let letters: String = node
        .chars()
        .take_while(|sign| !sign.is_ascii_digit())
        .filter(|sign| sign.is_ascii_alphanumeric() || *sign == '-')
        .take(40)
        .collect();
    let letters = match letters.trim_end_matches('-') {
        "" => "node",
        some => some,
    };
    let count = names.entry(letters.to_owned()).or_insert(0);
    *count += 1;
    match count {
        1 => letters.to_owned(),
        more => format!("{letters}-{more}"),
    }
}

fn write_expected(draft: &mut SiteDraft, name: &str, shape: &NodeShape, known: &ShapedNodes) {
    let has_any = shape.cpus.is_some() || shape.mem_mib.is_some() || !shape.gpus.is_empty();
    if !has_any {
        return;
    }
    let table = draft.main.table(&format!("expect.{}", bare(name)));
    table.set("nodes", quoted(&compress(known.nodes.iter())), &known.why);
    if !shape.gpus.is_empty() {
        let milli = shape
            .gpus
            .iter()
            .map(|(kind, count)| (kind.clone(), count * 1000));
        table.set("gpus", amounts(&GpuAmounts(milli.collect())), "Gres");
    }
    if let Some(cpus) = shape.cpus {
        table.set("cpus", cpus.to_string(), "CPUs");
    }
    if let Some(mib) = shape.mem_mib {
        table.set("memory", quoted(&format!("{mib}M")), "RealMemory");
    }
}

fn write_node_file(draft: &mut SiteDraft, name: &str, shape: &NodeShape, known: &ShapedNodes) {
    let mut own = DraftTable::default();
    if !draft.every_node.has("controller") {
        own.set(
            "controller",
            quoted("HOST:7117"),
            "the controller's machine",
        );
    }
    own.merge(&draft.every_node);
    if !shape.features.is_empty() {
        own.set(
            "features",
            quoted_list(shape.features.iter().map(String::as_str)),
            "Features",
        );
    }
    let file = DraftFile::of(own);
    let nodes = compress(known.nodes.iter());
    draft.node_files.push(ImportedFile {
        path: format!("gpud/{name}.toml"),
        text: file.text(&format!(
            "/etc/gpupool/gpud.toml of {nodes}. What the machine has is found: gpud.toml(5)."
        )),
    });
}
