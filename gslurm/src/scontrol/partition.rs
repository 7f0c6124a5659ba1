//! `scontrol create|update|delete PartitionName=`: scontrol's words as those of `gadm partition`.
//!
//! Owns what of them says how it is here anyway, and what to use instead of the rest. Source: scontrol(1).

use super::{first_value, split, value_of};
use gadm::policy::partition::{self, PartitionAct};
use gadm::policy::{NameAndWords, Removal};
use gcli::slurm_words::Cause;
use gcli::{Failure, Outcome};
use gmodel::RefusalKind;
use gwire::client::Client;

/// scontrol's names of a partition's name.
pub(super) const NAMES: [&str; 3] = ["partitionname", "partition", "part"];

/// Words that say how every partition is here, with what they may say.
const SO_ALREADY: [(&str, &[&str]); 15] = [
    ("allocnodes", &["", "all"]),
    ("default", &["no"]),
    ("disablerootjobs", &["no"]),
    ("exclusive", &["no"]),
    ("exclusiveuser", &["no"]),
    ("gracetime", &["0"]),
    ("hidden", &["no"]),
    ("lln", &["no"]),
    ("maxcpuspernode", &["unlimited"]),
    ("maxmempercpu", &["unlimited", "0"]),
    ("maxmempernode", &["unlimited", "0"]),
    ("minnodes", &["0", "1"]),
    ("oversubscribe", &["no"]),
    ("reqresv", &["no"]),
    ("rootonly", &["no"]),
];

/// Lists, which are named by their beginnings, too.
const LISTS: [&str; 6] = [
    "allowaccounts",
    "allowgroups",
    "allowqos",
    "allowusers",
    "denyaccounts",
    "denyqos",
];

/// What to do instead of the others, by the beginning of the word.
const INSTEAD: [(&str, &str); 12] = [
    (
        "allocnodes",
        "submit_from_jobs of its file says whether jobs may submit",
    ),
    (
        "default",
        "the file of a partition says which is the default",
    ),
    (
        "defmempernode",
        "DefMemPerCPU= or mem_per_gpu= say what jobs get that ask for none",
    ),
    ("exclusive", "a job takes whole nodes by --exclusive"),
    ("gracetime", "jobs say how long they need by --checkpoint"),
    (
        "hidden",
        "all partitions are shown; AllowAccounts=, AllowGroups= and AllowUsers= keep jobs out",
    ),
    (
        "maxmem",
        "per_user.gpus= and the like bound what jobs may hold",
    ),
    (
        "maxcpus",
        "per_user.cpus= and the like bound what jobs may hold",
    ),
    ("minnodes", "min_gpus of a QOS keeps small jobs out"),
    (
        "oversubscribe",
        "gpu_sharing of its file says whether GPUs are shared",
    ),
    (
        "qos",
        "group., per_user. and per_account. keys bound its jobs: group.gpus=16",
    ),
    (
        "tresbillingweights",
        "prices are by GPU type, in [[price]] of gpuctld.toml",
    ),
];

/// `create partition PartitionName=debug Nodes=node[1-2] MaxTime=30`.
pub(super) fn create(client: &mut Client, name: &str, words: &[String]) -> Outcome {
    if name.eq_ignore_ascii_case("default") {
        return Err(Failure::usage("PartitionName cannot be \"DEFAULT\"."));
    }
    partition::create(client, name, &changes(words)?)
}

/// `update PartitionName=debug State=DOWN`.
pub(super) fn update(client: &mut Client, name: &str, words: &[String]) -> Outcome {
    let changed = changes(words)?;
    if changed.is_empty() {
        // What was said is so; without a word there is nothing to do.
        return match words.len() > 1 {
            true => Ok(0),
            false => Err(Failure::usage("No changes specified")),
        };
    }
    let act = PartitionAct::Set(NameAndWords::of(name.to_owned(), changed));
    partition::run(client, act)
}

/// `delete PartitionName=debug`.
pub(super) fn delete(client: &mut Client, names: &str) -> Outcome {
    let names = split(&[names.to_owned()]);
    partition::run(client, PartitionAct::Del(Removal::of(names)))
}

/// The partition that a command names, unless it is about something else.
pub(super) fn named(words: &[String]) -> Option<&str> {
    first_value(words, &NAMES)
}

fn changes(words: &[String]) -> Result<Vec<String>, Failure> {
    let of_it = words
        .iter()
        .filter(|word| value_of(word, &NAMES).is_none() && !is_its_word(word));
    let read: Result<Vec<Vec<String>>, Failure> = of_it.map(|word| change(word)).collect();
    Ok(read?.concat())
}

/// The entity: `create partition PartitionName=debug`.
fn is_its_word(word: &str) -> bool {
    NAMES.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// A word of scontrol as words of gadm; none for what is so anyway.
fn change(word: &str) -> Result<Vec<String>, Failure> {
    let Some((key, value)) = word.split_once('=') else {
        return Err(Failure::usage(format_args!("{word:?} is no KEY=VALUE")));
    };
    let sign = key.len() - key.trim_end_matches(['+', '-']).len();
    let (bare, sign) = key.split_at(key.len() - sign);
    let (lower, typed) = (value.to_ascii_lowercase(), bare.to_ascii_lowercase());
    // A beginning of six letters is enough, as for scontrol.
    let mut lists = LISTS.iter().filter(|_| typed.len() > 5);
    let bare: &str = lists
        .find(|list| list.starts_with(&typed))
        .unwrap_or(&&*typed);
    let none = ["all", "unlimited", "infinite", "-1", "n/a"].contains(&lower.as_str());
    let one = |key: &str, value: &str| Ok(vec![format!("{key}{sign}={value}")]);
    match bare {
        "priority" => Ok(vec![
            format!("priority_tier={value}"),
            format!("priority_factor={value}"),
        ]),
        "shared" => change(&format!("OverSubscribe={value}")),
        "defmempercpu" if none || lower == "0" => one("mem_per_cpu", "none"),
        "defmempercpu" => one("mem_per_cpu", value),
        "defmempergpu" => one("mem_per_gpu", value),
        "defaulttime" if none => one("default_time", "none"),
        "defaulttime" => one("default_time", value),
        "overtimelimit" if lower == "0" => one("over_time", "none"),
        "overtimelimit" => one("over_time", value),
        "maxnodes" if none => one("max_nodes", "none"),
        list if LISTS.contains(&list) && none => one(bare, ""),
        "qos" if lower.is_empty() || none => Ok(Vec::new()),
        _ if SO_ALREADY
            .iter()
            .any(|(known, values)| *known == bare && values.contains(&lower.as_str())) =>
        {
            Ok(Vec::new())
        }
        _ => match INSTEAD.iter().find(|(known, _)| bare.starts_with(known)) {
            Some((_, advice)) => Err(Failure::usage(format_args!("{word}: {advice}")).because(
                Cause::Refused {
                    about: RefusalKind::NotSupported,
                    subject: String::new(),
                },
            )),
            None => one(bare, value),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_scontrol_are_words_of_gadm_or_say_what_is_so_or_are_refused_with_advice() {
        let read = |text: &str| {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            changes(&words).map_or_else(|failure| failure.text, |words| words.join(" "))
        };
        assert_eq!(
            read("partition PartitionName=debug Nodes=n[1-2] Priority=2 State=DOWN"),
            "nodes=n[1-2] priority_tier=2 priority_factor=2 state=DOWN"
        );
        assert_eq!(
            read("part=debug Default=NO Hidden=no OverSubscribe=NO QoS="),
            ""
        );
        assert_eq!(
            read(
                "AllowAccount=ALL AllowGroups=staff,ops allowgr=ALL DenyQos=low MaxNodes=UNLIMITED DefMemPerCPU=512 DefaultTime=10"
            ),
            "allowaccounts= allowgroups=staff,ops allowgroups= denyqos=low max_nodes=none mem_per_cpu=512 default_time=10"
        );
        assert!(read("OverSubscribe=FORCE:4").contains("gpu_sharing"));
        assert!(read("Default=YES").contains("file"));
        assert!(read("State").contains("no KEY=VALUE"));
    }
}
