//! PartitionName lines as `[partition.NAME]` tables.

use crate::advice;
use crate::cluster::{decide_word, preempt_mode, secs, time, value_of};
use crate::conf::{PartitionLine, PartitionNodes, items};
use crate::conf_text::ConfWord;
use crate::draft::{DraftTable, bare, quoted, quoted_list};
use crate::report::Fate;
use crate::site_draft::{SiteDraft, Verdict};
use gconfig::name::is_name;
use gmodel::gpu_amounts::milli_text;
use gmodel::policy::{GpuAmounts, Limits, Qos};

/// A line that gpupool's tables have under another name, or in another form.
type PartitionKey = (
    &'static str,
    fn(&mut SiteDraft, &mut DraftTable, &ConfWord) -> Verdict,
);

const KEYS: [PartitionKey; 23] = [
    ("allowaccounts", |draft, table, word| {
        names(draft, table, word, "allow_accounts")
    }),
    ("allowgroups", |draft, table, word| {
        groups(draft, table, word)
    }),
    ("allowqos", |draft, table, word| {
        names(draft, table, word, "allow_qos")
    }),
    ("default", |draft, table, word| match yes(word) {
        true => set(draft, table, word, "default", "true".into()),
        false => told("as without it"),
    }),
    ("defaulttime", |draft, table, word| {
        limit(draft, table, word, "default_time")
    }),
    ("defcpupergpu", |draft, table, word| {
        of_every(draft, table, word, "cpus_per_gpu")
    }),
    ("defmempercpu", |draft, table, word| {
        of_every(draft, table, word, "mem_per_cpu")
    }),
    ("defmempergpu", |draft, table, word| {
        of_every(draft, table, word, "mem_per_gpu")
    }),
    ("denyaccounts", |draft, table, word| {
        names(draft, table, word, "deny_accounts")
    }),
    ("denyqos", |draft, table, word| {
        names(draft, table, word, "deny_qos")
    }),
    ("jobdefaults", job_defaults),
    ("lln", |draft, table, word| match yes(word) {
        true => set(draft, table, word, "placement", quoted("spread")),
        false => told("as without it"),
    }),
    ("maxnodes", |draft, table, word| {
        match word.value.parse::<u32>() {
            Ok(0) => counterpart("a partition that starts nothing is state = \"DRAIN\""),
            Ok(count) => set(
                draft,
                table,
                word,
                "max_nodes",
                count.min(1_000_000).to_string(),
            ),
            Err(_) if word.value.eq_ignore_ascii_case("unlimited") => told("as without it"),
            Err(_) => Verdict::Wrong(
                format!("{} is no number", word.shown()),
                "as 8 or UNLIMITED".into(),
            ),
        }
    }),
    ("maxtime", |draft, table, word| {
        limit(draft, table, word, "max_time")
    }),
    ("minnodes", |_, _, word| match word.value.as_str() {
        "0" | "1" => told("as without it"),
        _ => counterpart("min_gpus in per_job of a QOS, which the partition has as default_qos"),
    }),
    ("nodes", |_, _, _| Verdict::Reported),
    ("oversubscribe", |_, _, word| {
        match word
            .value
            .split(':')
            .next()
            .unwrap_or_default()
            .to_ascii_uppercase()
            .as_str()
        {
            "NO" => told("a CPU is of one job at a time, a GPU too"),
            "EXCLUSIVE" => counterpart(
                "whole nodes are asked for: gsub --exclusive, which a submit_hook may set",
            ),
            _ => counterpart("CPUs are not given twice; parts of a GPU are gpu_sharing"),
        }
    }),
    ("overtimelimit", |draft, table, word| {
        of_every(draft, table, word, "over_time")
    }),
    ("preemptmode", |draft, table, word| {
        match preempt_mode(&word.value) {
            Some(mode) => set(draft, table, word, "preempt_mode", quoted(mode)),
            None => counterpart("preempt_mode is off, requeue, cancel or suspend"),
        }
    }),
    ("priority", |draft, table, word| {
        tier(draft, table, word, "priority_tier")
    }),
    ("priorityjobfactor", |draft, table, word| {
        tier(draft, table, word, "priority_factor")
    }),
    ("prioritytier", |draft, table, word| {
        tier(draft, table, word, "priority_tier")
    }),
    ("state", |draft, table, word| {
        let state = word.value.to_ascii_uppercase();
        match ["UP", "DOWN", "DRAIN", "INACTIVE"].contains(&state.as_str()) {
            true => set(draft, table, word, "state", quoted(&state)),
            false => Verdict::Wrong(
                format!("{} is no state", word.shown()),
                "UP, DOWN, DRAIN or INACTIVE".into(),
            ),
        }
    }),
];

pub(crate) fn decide(draft: &mut SiteDraft) {
    let lines = std::mem::take(&mut draft.conf.partitions);
    let mut default: Option<String> = None;
    for line in &lines {
        one(draft, line, &mut default);
    }
    draft.conf.partitions = lines;
}

fn one(draft: &mut SiteDraft, line: &PartitionLine, default: &mut Option<String>) {
    let head = ConfWord {
        key: "PartitionName".into(),
        value: line.name.clone(),
        place: line.place.clone(),
    };
    if !is_name(&line.name) {
        let message = format!("{:?} is no name of a partition", line.name);
        return draft
            .conf
            .text
            .wrong(&line.place, message, "letters, digits, '_', '-' and '.'");
    }
    let nodes = line.keys.get("nodes").cloned();
    let nodes_word = nodes.unwrap_or_else(|| ConfWord {
        key: "Nodes".into(),
        value: String::new(),
        ..head.clone()
    });
    let nodes = draft.conf.nodes_of(&nodes_word);
    let Some((key, value)) = nodes_line(&nodes) else {
        let text =
            "it has no nodes and is left out; gadm partition add makes it when there are some";
        return draft.file(&head, Verdict::Told(Fate::Counterpart, text.into()));
    };
    let mut table = DraftTable::default();
    let why = draft.why(&nodes_word);
    table.set(key, value, &why);
    draft.file(
        &head,
        Verdict::Becomes(format!("[partition.{}]", bare(&line.name))),
    );
    let mut said = draft.every_partition.clone();
    for word in line
        .keys
        .values()
        .filter(|word| !word.is("tresbillingweights"))
    {
        let verdict = match KEYS.iter().find(|(key, _)| word.is(key)) {
            Some((_, decision)) => decision(draft, &mut table, word),
            None if word.is("qos") => partition_qos(draft, &line.name, word),
            None => decide_word(draft, word, &[], advice::PARTITION_KEYS),
        };
        draft.file(word, verdict);
    }
    said.merge(&table);
    reconcile(draft, &head, &mut said, default);
    let name = format!("partition.{}", bare(&line.name));
    *draft.partitions.table(&name) = said;
}

/// What does not go together as it stands.
fn reconcile(
    draft: &mut SiteDraft,
    head: &ConfWord,
    said: &mut DraftTable,
    default: &mut Option<String>,
) {
    // The last one counts in Slurm.
    if said.has("default")
        && let Some(before) = default.replace(head.value.clone())
    {
        draft
            .partitions
            .table(&format!("partition.{}", bare(&before)))
            .remove("default");
    }
    keep_within(said);
    if said.value("gpu_sharing") == Some("\"mps\"") && said.has("private_tmp") {
        said.remove("private_tmp");
        let text = "private_tmp is left out: a job and its MPS server meet in the node's /dev/shm";
        draft.file(head, Verdict::Told(Fate::Counterpart, text.into()));
    }
}

fn nodes_line(nodes: &PartitionNodes) -> Option<(&'static str, String)> {
    match nodes {
        PartitionNodes::All => Some(("nodes", quoted("ALL"))),
        PartitionNodes::Nodes(names) => Some(("nodes", quoted(names))),
        PartitionNodes::Feature(feature) => Some(("features", quoted_list([feature.as_str()]))),
        PartitionNodes::Empty => None,
    }
}

/// A default time above the most is the most, as in Slurm.
fn keep_within(table: &mut DraftTable) {
    let secs_of = |key: &str| {
        table
            .value(key)
            .and_then(|value| secs(value.trim_matches('"')))
            .flatten()
    };
    if let (Some(usual), Some(most)) = (secs_of("default_time"), secs_of("max_time"))
        && usual > most
    {
        table.set(
            "default_time",
            quoted(&time(most)),
            "max_time: DefaultTime was longer",
        );
    }
}

// ---- kinds of keys -----------------------------------------------------------------------------------------------------

fn told(text: &str) -> Verdict {
    Verdict::Told(Fate::Understood, text.to_owned())
}

fn counterpart(text: &str) -> Verdict {
    Verdict::Told(Fate::Counterpart, text.to_owned())
}

fn yes(word: &ConfWord) -> bool {
    ["yes", "1", "true"]
        .iter()
        .any(|one| word.value.eq_ignore_ascii_case(one))
}

fn set(
    draft: &SiteDraft,
    table: &mut DraftTable,
    word: &ConfWord,
    key: &str,
    value: String,
) -> Verdict {
    table.set(key, &value, &draft.why(word));
    Verdict::Becomes(format!("{key} = {value}"))
}

fn of_every(
    draft: &mut SiteDraft,
    table: &mut DraftTable,
    word: &ConfWord,
    key: &'static str,
) -> Verdict {
    match value_of(key, word) {
        Ok(Some(value)) => set(draft, table, word, key, value),
        Ok(None) => told("as without it"),
        Err(verdict) => verdict,
    }
}

fn tier(draft: &mut SiteDraft, table: &mut DraftTable, word: &ConfWord, key: &str) -> Verdict {
    match word.value.parse::<u64>() {
        Ok(count) => set(draft, table, word, key, count.min(65_533).to_string()),
        Err(_) => Verdict::Wrong(
            format!("{} is no number", word.shown()),
            "0 to 65533".into(),
        ),
    }
}

fn limit(draft: &mut SiteDraft, table: &mut DraftTable, word: &ConfWord, key: &str) -> Verdict {
    match secs(&word.value) {
        Some(Some(secs)) => set(draft, table, word, key, quoted(&time(secs))),
        Some(None) => set(draft, table, word, key, quoted("UNLIMITED")),
        None if word.value.eq_ignore_ascii_case("none") => told("as without it"),
        None => Verdict::Wrong(
            format!("{} is no time", word.shown()),
            "as 60, 2-00:00:00 or UNLIMITED".into(),
        ),
    }
}

/// Slurm's own database has these names in small letters.
fn names(draft: &mut SiteDraft, table: &mut DraftTable, word: &ConfWord, key: &str) -> Verdict {
    let all: Vec<String> = items(&word.value).map(str::to_ascii_lowercase).collect();
    if all.iter().any(|name| name == "all") {
        return told("as without it");
    }
    if key.ends_with("qos") {
        for name in &all {
            draft.know_qos(name);
        }
    }
    set(
        draft,
        table,
        word,
        key,
        quoted_list(all.iter().map(String::as_str)),
    )
}

/// As written: the name service may tell capitals apart.
fn groups(draft: &mut SiteDraft, table: &mut DraftTable, word: &ConfWord) -> Verdict {
    let all = || items(&word.value);
    if all().any(|name| name.eq_ignore_ascii_case("all")) {
        return told("as without it");
    }
    set(draft, table, word, "allow_groups", quoted_list(all()))
}

fn job_defaults(draft: &mut SiteDraft, table: &mut DraftTable, word: &ConfWord) -> Verdict {
    for item in items(&word.value) {
        let (key, value) = item.split_once('=').unwrap_or((item, ""));
        let one = ConfWord {
            key: key.to_owned(),
            value: value.to_owned(),
            place: word.place.clone(),
        };
        let verdict = match key.to_ascii_lowercase().as_str() {
            "defcpupergpu" => of_every(draft, table, &one, "cpus_per_gpu"),
            "defmempergpu" => of_every(draft, table, &one, "mem_per_gpu"),
            _ => counterpart("cpus_per_gpu and mem_per_gpu are what jobs get that say nothing"),
        };
        draft.file(&one, verdict);
    }
    Verdict::Reported
}

// ---- a partition's QOS -------------------------------------------------------------------------------------------------

/// The limits of a partition's QOS are keys of the partition here.
fn partition_qos(draft: &mut SiteDraft, partition: &str, word: &ConfWord) -> Verdict {
    let Some(qos) = draft
        .policy
        .qos
        .get(&word.value.to_ascii_lowercase())
        .cloned()
    else {
        return counterpart(
            "its limits are the partition's own: group, per_user and per_account. --qos brings them",
        );
    };
    let why = draft.why(word);
    let Qos {
        group,
        per_user,
        per_account,
        ..
    } = qos;
    for (name, limits) in [
        ("group", &group),
        ("per_user", &per_user),
        ("per_account", &per_account),
    ] {
        let table = draft
            .partitions
            .table(&format!("partition.{}.{name}", bare(partition)));
        for (key, value) in limit_lines(limits) {
            table.set(key, value, &why);
        }
    }
    Verdict::Becomes("its limits are group, per_user and per_account of the partition".into())
}

fn limit_lines(limits: &Limits) -> Vec<(&'static str, String)> {
    let counts = [
        ("running_jobs", limits.running_jobs),
        ("submitted_jobs", limits.submitted_jobs),
        ("cpus", limits.cpus),
        ("nodes", limits.nodes),
    ];
    let counts = counts
        .into_iter()
        .filter_map(|(key, count)| Some((key, count?.to_string())));
    let gpus = limits.gpus.iter().map(|gpus| ("gpus", amounts(gpus)));
    counts.chain(gpus).collect()
}

/// `{ h100 = 16, gpu = 32 }`.
pub(crate) fn amounts(gpus: &GpuAmounts) -> String {
    let part = |(kind, milli): (&String, &u64)| format!("{} = {}", bare(kind), milli_text(*milli));
    let parts: Vec<String> = gpus.0.iter().map(part).collect();
    format!("{{ {} }}", parts.join(", "))
}
