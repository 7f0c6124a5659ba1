//! `[partition.NAME]` tables, of the main file and of `partitions.d`: queues over sets of nodes.
//!
//! Owns what must hold between their keys, and that names and the default are unique over all files. Source of words: slurm.conf(5).

use crate::error::{Errors, Source};
use crate::name::{NAMES, is_name};
use crate::policy::{Records, default_among_allowed};
use crate::record::names;
use crate::section::Section;
use gmodel::config::{GpuSharing, NodeSelection, Partition};
use gmodel::record::Record;
use std::collections::BTreeMap;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Partitions in the order in which they were read.
#[derive(Default)]
pub struct Partitions {
    list: Vec<Partition>,
    /// Where each name was first written: `path:line`.
    places: BTreeMap<String, String>,
    default: Option<String>,
}

/// Partitions as the files have them.
pub struct ReadPartitions {
    pub list: Vec<Partition>,
    /// Where each is written: `path:line`.
    pub places: BTreeMap<String, String>,
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
        let keys = names(&Partition::keys());
        let section = Section::open(source, table, &keys, &format!("[partition.{name}]"), errors);
        records.current = None;
        let mut partition: Partition = records.read_record(&section, source, errors);
        name.clone_into(&mut partition.name);
        check(&section, &partition, errors);
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
    pub fn finish(self) -> ReadPartitions {
        let only = || Partition {
            name: "main".into(),
            is_default: true,
            ..Partition::default()
        };
        ReadPartitions {
            list: match self.list.is_empty() {
                true => vec![only()],
                false => self.list,
            },
            places: self.places,
        }
    }
}

/// A file of `partitions.d` holds `[partition.NAME]` tables and nothing else.
pub fn refuse_other_keys(source: &Source, file: &DeTable<'_>, errors: &mut Errors) {
    for key in file.keys().filter(|key| key.get_ref() != "partition") {
        let word: &str = key.get_ref();
        let hint = if names(&Partition::keys()).contains(&word) {
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

/// Reports what does not go together in a partition's table.
fn check(section: &Section, partition: &Partition, errors: &mut Errors) {
    for (key, message, hint) in sense(partition) {
        errors.add(section.source, section.span(key), message, hint);
    }
    if section.has("features") && section.has("nodes") {
        let message = "nodes and features are both there";
        errors.add(
            section.source,
            section.span("features"),
            message,
            "keep one of them",
        );
    }
    if let Some(policy) = &partition.idle {
        crate::idle::check(section, policy, errors);
    }
}

/// What of a partition does not go together: the key, what is wrong with it, and what would do.
pub fn sense(partition: &Partition) -> Vec<(&'static str, String, &'static str)> {
    let mut found = Vec::new();
    let mut wrong = |key, message: String, hint| found.push((key, message, hint));
    if let (Some(max), Some(usual)) = (partition.max_time_secs, partition.default_time_secs)
        && usual > max
    {
        let message = format!("default_time is {usual} s, more than max_time with {max} s");
        wrong("default_time", message, "make it max_time or less");
    }
    if partition.gpu_sharing == GpuSharing::Mps && partition.private_tmp {
        let message = "gpu_sharing = \"mps\" does not go with private_tmp: a job and its MPS server meet in the node's /dev/shm";
        let hint = "share in a partition without private_tmp";
        wrong("gpu_sharing", message.to_owned(), hint);
    }
    if partition.gpu_scrub && partition.gpu_sharing == GpuSharing::Uncapped {
        let message = "gpu_scrub does not go with gpu_sharing = \"uncapped\": others are on a GPU when a part of it ends";
        let hint = "scrub in a partition that shares by \"mps\" or not at all";
        wrong("gpu_scrub", message.to_owned(), hint);
    }
    // What jobs get that ask for none: nothing would be enough for no job.
    for (key, bytes) in [
        ("mem_per_cpu", partition.mem_per_cpu_bytes),
        ("mem_per_gpu", partition.mem_per_gpu_bytes),
    ] {
        if bytes == Some(0) {
            let message = format!("{key} is 0: jobs would get no memory");
            let hint = "leave it out: jobs get their part of the node's";
            wrong(key, message, hint);
        }
    }
    if partition.nodes == NodeSelection::Features(Vec::new()) {
        let message = "features is empty: that is true of every node".to_owned();
        wrong("features", message, "name some, or write nodes = \"ALL\"");
    }
    found
}
