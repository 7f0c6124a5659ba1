//! `[partition.NAME]` tables, of the main file and of `partitions.d`: queues over sets of nodes.
//!
//! Owns their keys, and that names and the default are unique over all files. Source of words: slurm.conf(5).

use crate::error::{Errors, Source};
use crate::limits::limits;
use crate::name::{NAMES, is_name};
use crate::policy::{PREEMPT_MODES, RecordKind, Records, default_among_allowed};
use crate::scheduling::PLACEMENTS;
use crate::section::Section;
use gmodel::config::{
    GpuSharing, MigCuts, NodeSelection, Partition, PartitionState, SubmitFromJobs,
};
use gmodel::hostlist::Hostlist;
use gmodel::job::VisibleDevices;
use std::collections::BTreeMap;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const KEYS: [&str; 35] = [
    "nodes",
    "features",
    "default",
    "state",
    "max_time",
    "default_time",
    "over_time",
    "max_nodes",
    "priority_tier",
    "allow_accounts",
    "allow_users",
    "cpus_per_gpu",
    "mem_per_cpu",
    "mem_per_gpu",
    "private_tmp",
    "prolog",
    "epilog",
    "requeue",
    "submit_from_jobs",
    "priority_factor",
    "preempt_mode",
    "placement",
    "group",
    "per_user",
    "per_account",
    "headroom",
    "allow_qos",
    "default_qos",
    "mig",
    "slices_for_memory",
    "gpu_sharing",
    "gpu_scrub",
    "visible_devices",
    "diagnostics",
    "idle",
];

const CUTS: [(&str, MigCuts); 2] = [("fixed", MigCuts::Fixed), ("planned", MigCuts::Planned)];

const SHARING: [(&str, GpuSharing); 3] = [
    ("off", GpuSharing::Off),
    ("mps", GpuSharing::Mps),
    ("uncapped", GpuSharing::Uncapped),
];

const SUBMIT_FROM_JOBS: [(&str, SubmitFromJobs); 1] =
    [("same-partition", SubmitFromJobs::SamePartition)];

const STATES: [(&str, PartitionState); 4] = [
    ("UP", PartitionState::Up),
    ("DOWN", PartitionState::Down),
    ("DRAIN", PartitionState::Drain),
    ("INACTIVE", PartitionState::Inactive),
];

/// Partitions in the order in which they were read.
#[derive(Default)]
pub struct Partitions {
    list: Vec<Partition>,
    /// Where each name was first written: `path:line`.
    places: BTreeMap<String, String>,
    default: Option<String>,
}

impl Partitions {
    pub fn read<'s>(
        &mut self,
        source: &'s Source,
        file: &DeTable<'_>,
        records: &mut Records<'s>,
        errors: &mut Errors,
    ) {
        let Some(value) = file.get("partition") else {
            return;
        };
        let Some(tables) = value.get_ref().as_table() else {
            errors.add(
                source,
                value.span(),
                "partition is not a table",
                "write [partition.NAME]",
            );
            return;
        };
        let mut in_order: Vec<_> = tables.iter().collect();
        in_order.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in in_order {
            self.read_one(source, name, value, records, errors);
        }
    }

    fn read_one<'s>(
        &mut self,
        source: &'s Source,
        key: &Spanned<std::borrow::Cow<str>>,
        value: &Spanned<DeValue>,
        records: &mut Records<'s>,
        errors: &mut Errors,
    ) {
        let name: &str = key.get_ref();
        if !is_name(name) {
            errors.add(
                source,
                key.span(),
                format!("partition {name:?} has no valid name"),
                NAMES,
            );
        }
        let place = source.place(key.span().start);
        if let Some(first) = self.places.get(name) {
            let message = format!("partition {name:?} is there twice");
            errors.add(source, key.span(), message, format!("first in {first}"));
        } else {
            self.places.insert(name.to_owned(), place);
        }
        let Some(table) = value.get_ref().as_table() else {
            errors.add(
                source,
                value.span(),
                format!("partition {name:?} is not a table"),
                "write [partition.NAME]",
            );
            return;
        };
        let section = Section::open(source, table, &KEYS, &format!("[partition.{name}]"), errors);
        let mut partition = read_partition(name, &section, errors);
        records.current = None;
        partition.allow_qos =
            records.mentioned(source, &section, "allow_qos", RecordKind::Qos, errors);
        partition.default_qos =
            records.mentioned_one(source, &section, "default_qos", RecordKind::Qos, errors);
        default_among_allowed(
            &section,
            &partition.allow_qos,
            partition.default_qos.as_deref(),
            errors,
        );
        if partition.is_default {
            match &self.default {
                Some(first) if first != name => {
                    let message = format!("partition {name:?} is a second default");
                    let hint = format!("partition {first:?} is the default; only one can be");
                    errors.add(source, section.span("default"), message, hint);
                }
                _ => self.default = Some(name.to_owned()),
            }
        }
        self.list.push(partition);
    }

    /// Without any partition there is one, `main`, of all nodes.
    pub fn finish(self) -> Vec<Partition> {
        if self.list.is_empty() {
            return vec![Partition {
                name: "main".into(),
                is_default: true,
                ..Partition::default()
            }];
        }
        self.list
    }
}

/// A file of `partitions.d` holds `[partition.NAME]` tables and nothing else.
pub fn refuse_other_keys(source: &Source, file: &DeTable<'_>, errors: &mut Errors) {
    for key in file.keys().filter(|key| key.get_ref() != "partition") {
        let word: &str = key.get_ref();
        let hint = if KEYS.contains(&word) {
            "put it under a line [partition.NAME]"
        } else {
            "files of partitions.d hold only [partition.NAME] tables; the rest is for gpuctld.toml"
        };
        errors.add(
            source,
            key.span(),
            format!("{word:?} stands outside of a partition"),
            hint,
        );
    }
}

fn read_partition(name: &str, section: &Section, errors: &mut Errors) -> Partition {
    let default = Partition::default();
    let holder = format!("partition.{name}");
    let max_time_secs = section.limit("max_time", errors).flatten();
    let default_time_secs = section.limit("default_time", errors).flatten();
    if let (Some(max), Some(usual)) = (max_time_secs, default_time_secs)
        && usual > max
    {
        let message = format!("default_time is {usual} s, more than max_time with {max} s");
        errors.add(
            section.source,
            section.span("default_time"),
            message,
            "make it max_time or less",
        );
    }
    let sharing = section
        .word("gpu_sharing", &SHARING, errors)
        .unwrap_or_default();
    let private_tmp = section
        .boolean("private_tmp", errors)
        .unwrap_or(default.private_tmp);
    if sharing == GpuSharing::Mps && private_tmp {
        let message = "gpu_sharing = \"mps\" does not go with private_tmp: a job and its MPS server meet in the node's /dev/shm";
        errors.add(
            section.source,
            section.span("gpu_sharing"),
            message,
            "share in a partition without private_tmp",
        );
    }
    let gpu_scrub = section
        .boolean("gpu_scrub", errors)
        .unwrap_or(default.gpu_scrub);
    if gpu_scrub && sharing == GpuSharing::Uncapped {
        let message = "gpu_scrub does not go with gpu_sharing = \"uncapped\": others are on a GPU when a part of it ends";
        errors.add(
            section.source,
            section.span("gpu_scrub"),
            message,
            "scrub in a partition that shares by \"mps\" or not at all",
        );
    }
    let path = |key, errors: &mut Errors| {
        let path = section.path(key, true, errors).unwrap_or_default();
        path.to_string_lossy().into_owned()
    };
    Partition {
        name: name.to_owned(),
        nodes: nodes(section, errors),
        is_default: section.boolean("default", errors).unwrap_or(false),
        state: section.word("state", &STATES, errors).unwrap_or_default(),
        max_time_secs,
        default_time_secs,
        max_nodes: section.number("max_nodes", 1..=1_000_000, errors),
        priority_tier: section
            .number("priority_tier", 0..=65_533, errors)
            .unwrap_or(default.priority_tier),
        allow_accounts: section.texts("allow_accounts", errors).unwrap_or_default(),
        allow_users: section
            .user_names("allow_users", errors)
            .into_iter()
            .collect(),
        cpus_per_gpu: section.number("cpus_per_gpu", 1..=65_536, errors),
        mem_per_cpu_bytes: some_memory(section, "mem_per_cpu", errors),
        mem_per_gpu_bytes: some_memory(section, "mem_per_gpu", errors),
        private_tmp,
        prolog: path("prolog", errors),
        epilog: path("epilog", errors),
        gpu_scrub,
        visible_devices: section.word("visible_devices", &VisibleDevices::WORDS, errors),
        requeue: section
            .boolean("requeue", errors)
            .unwrap_or(default.requeue),
        submit_from_jobs: section
            .boolean_or_word(
                "submit_from_jobs",
                SubmitFromJobs::Yes,
                SubmitFromJobs::No,
                &SUBMIT_FROM_JOBS,
                errors,
            )
            .unwrap_or_default(),
        over_time_secs: over_time(section, errors),
        priority_factor: section
            .number("priority_factor", 0..=65_533, errors)
            .unwrap_or(default.priority_factor),
        preempt_mode: section
            .word("preempt_mode", &PREEMPT_MODES, errors)
            .unwrap_or(default.preempt_mode),
        placement: section.word("placement", &PLACEMENTS, errors),
        group: limits(section, &holder, "group", errors),
        per_user: limits(section, &holder, "per_user", errors),
        per_account: limits(section, &holder, "per_account", errors),
        headroom: section.amounts("headroom", errors),
        mig: section.word("mig", &CUTS, errors).unwrap_or_default(),
        slices_for_memory: section
            .boolean("slices_for_memory", errors)
            .unwrap_or(default.slices_for_memory),
        gpu_sharing: sharing,
        diagnostics: section
            .boolean("diagnostics", errors)
            .unwrap_or(default.diagnostics),
        idle: crate::idle::idle(section, &holder, errors),
        ..default
    }
}

/// What jobs get that ask for none: nothing would be enough for no job.
fn some_memory(section: &Section, key: &str, errors: &mut Errors) -> Option<u64> {
    let bytes = section.size(key, errors)?;
    if bytes == 0 {
        errors.add(
            section.source,
            section.span(key),
            format!("{key} is 0: jobs would get no memory"),
            "leave it out: jobs get their part of the node's",
        );
    }
    Some(bytes)
}

fn nodes(section: &Section, errors: &mut Errors) -> NodeSelection {
    if section.has("features") {
        if section.has("nodes") {
            let hint = "keep one of them";
            errors.add(
                section.source,
                section.span("features"),
                "nodes and features are both there",
                hint,
            );
        }
        let features = section.texts("features", errors);
        if features.as_ref().is_some_and(Vec::is_empty) {
            errors.add(
                section.source,
                section.span("features"),
                "features is empty: that is true of every node",
                "name some, or write nodes = \"ALL\"",
            );
        }
        return NodeSelection::Features(features.unwrap_or_default());
    }
    let Some(parts) = section.texts("nodes", errors) else {
        return NodeSelection::All;
    };
    let text = parts.join(",");
    if text.eq_ignore_ascii_case("ALL") {
        return NodeSelection::All;
    }
    match Hostlist::parse(&text) {
        Ok(names) => NodeSelection::Names(names),
        Err(error) => {
            errors.add(
                section.source,
                section.span("nodes"),
                format!("nodes: {error}"),
                "as \"node[01-16]\" or \"ALL\"",
            );
            NodeSelection::All
        }
    }
}

/// `0` is none here, where a time limit of 0 is no limit.
fn over_time(section: &Section, errors: &mut Errors) -> u32 {
    match section.limit("over_time", errors) {
        None => 0,
        Some(Some(secs)) => secs,
        Some(None) => {
            let written = &section.source.text[section.span("over_time")];
            if written.trim_matches(['"', '\'']) != "0" {
                let hint = "write a time, or set max_time = \"UNLIMITED\"";
                errors.add(
                    section.source,
                    section.span("over_time"),
                    "over_time cannot be unlimited",
                    hint,
                );
            }
            0
        }
    }
}
