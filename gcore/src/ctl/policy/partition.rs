//! Partitions that operators make and change at run time: what stands against it.
//!
//! What a file says of a partition stays as it is written; the rest of it may be set, and partitions of no file may be made.

use crate::ctl::command::Refusal;
use crate::ctl::state::State;
use gmodel::RefusalKind;
use gmodel::partition::MadePartition;
use gmodel::partition_list::names;
use std::collections::BTreeSet;

/// The keys that are set are no file's.
///
/// # Errors
/// A file says them.
pub(crate) fn is_free_to_set(state: &State, made: &MadePartition) -> Result<(), Refusal> {
    let MadePartition {
        partition, keys, ..
    } = made;
    let name = &partition.name;
    let written = state.config.written_keys.get(name);
    let mut set = keys.iter().flatten();
    if let Some(key) = set.find(|key| written.is_some_and(|keys| keys.contains(*key))) {
        return Err(Refusal::conflict(format!(
            "{key} of partition {name} is written in the controller's configuration: change it there, and run `gadm reload`."
        ))
        .about(RefusalKind::NotSupported));
    }
    let is_written = state.config.file_partition(name).is_some();
    if is_written != keys.is_some() {
        let text = format!("partition {name} changed meanwhile. Try again.");
        return Err(Refusal::conflict(text));
    }
    Ok(())
}

/// Whether jobs and reservations can do without a partition that was made.
///
/// # Errors
/// There is none, a file has it, or jobs or reservations name it.
pub(crate) fn is_unused(state: &State, name: &str) -> Result<(), Refusal> {
    let made = state.own_policy.partitions.get(name);
    let Some(made) = made else {
        let text = format!("no partition {name:?} was made at run time.");
        return Err(Refusal::not_found(text).about(RefusalKind::Partition));
    };
    if made.keys.is_some() || state.config.file_partition(name).is_some() {
        return Ok(());
    }
    let in_use = |text: String| Err(Refusal::conflict(text).about(RefusalKind::PartitionInUse));
    let jobs = state
        .index
        .tally
        .count(|[_, _, _, list]| names(list).any(|one| one == name));
    if jobs > 0 {
        return in_use(format!(
            "partition {name} has {jobs} jobs that are not over. Cancel them, wait for them, or give those that wait another."
        ));
    }
    let of_it: BTreeSet<&str> = state
        .own_policy
        .reservations
        .values()
        .filter(|one| one.partition.as_deref() == Some(name))
        .map(|one| one.name.as_str())
        .collect();
    match of_it.is_empty() {
        true => Ok(()),
        false => in_use(format!(
            "partition {name} is named by reservations: {}. Remove or change them first.",
            of_it.into_iter().collect::<Vec<_>>().join(", ")
        )),
    }
}

/// What was made of partitions and counts no more, since a file says it, or has the partition no more.
pub(crate) fn hidden(state: &State) -> Vec<String> {
    let files = &state.config;
    let told = |made: &MadePartition| {
        let name = &made.partition.name;
        let is_written = files.file_partition(name).is_some();
        let written = files.written_keys.get(name);
        let said: Vec<&str> = made
            .keys
            .iter()
            .flatten()
            .filter(|key| written.is_some_and(|keys| keys.contains(*key)))
            .map(String::as_str)
            .collect();
        match (&made.keys, is_written) {
            (None, true) => Some(format!(
                "partition {name} was made at run time and is in a file now, which counts."
            )),
            (Some(_), false) => Some(format!(
                "partition {name} is in no file any more: what was set of it counts no more."
            )),
            (Some(_), true) if !said.is_empty() => Some(format!(
                "partition {name}: {} was set at run time and is in its file now, which counts.",
                said.join(", ")
            )),
            _ => None,
        }
    };
    state
        .own_policy
        .partitions
        .values()
        .filter_map(told)
        .collect()
}
