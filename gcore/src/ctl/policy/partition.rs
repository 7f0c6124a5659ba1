//! Partitions that operators make and change at run time: what stands against it.
//!
//! A key of a file's partition that is set counts until the next reload, and while the file says of it what it said then. Partitions of no file may be made.

use crate::ctl::command::Refusal;
use crate::ctl::event::{Event, PolicyChange};
use crate::ctl::node;
use crate::ctl::state::State;
use crate::ctl::tx::Tx;
use gmodel::RefusalKind;
use gmodel::partition::MadePartition;
use gmodel::partition_list::names;
use std::collections::BTreeSet;

/// Its file has the partition as it had it when the change was made ready.
///
/// # Errors
/// It has not, and the change would hide what the file says now.
pub(crate) fn is_of_its_file(state: &State, made: &MadePartition) -> Result<(), Refusal> {
    let name = &made.partition.name;
    match state.config.file_partition(name) == made.file.as_deref() {
        true => Ok(()),
        false => Err(Refusal::conflict(format!(
            "partition {name} changed meanwhile. Try again."
        ))),
    }
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
    if made.file.is_some() || state.config.file_partition(name).is_some() {
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

/// Partitions of files are as their files have them again.
pub(crate) fn follow_files(tx: &mut Tx) {
    let made = tx.state.own_policy.partitions.iter();
    let set = made.filter(|(_, made)| made.file.is_some());
    let names: Vec<String> = set.map(|(name, _)| name.clone()).collect();
    for name in names {
        tx.emit(Event::PolicyChanged {
            change: PolicyChange::PartitionRemoved { name },
            by: "reload".to_owned(),
            at: tx.now,
        });
    }
}

/// What a reload takes back, a sentence for each partition and node: `partition main: max_time was set by ada, and is as its file has it again`.
pub fn set_until_reload(state: &State) -> Vec<String> {
    let told = |made: &MadePartition| {
        let name = &made.partition.name;
        let keys = made.set_keys(state.config.file_partition(name)?, true);
        let keys: Vec<&str> = keys.iter().map(|key| key.name).collect();
        (!keys.is_empty()).then(|| {
            format!(
                "partition {name}: what {} set counts no more, its file does: {}",
                made.by,
                keys.join(", ")
            )
        })
    };
    let made = state.own_policy.partitions.values();
    let of_nodes = node::features::set_until_reload(state);
    made.filter_map(told).chain(of_nodes).collect()
}

/// What was made of partitions and counts no more, since a file says it, or has the partition no more.
pub(crate) fn hidden(state: &State) -> Vec<String> {
    let told = |made: &MadePartition| {
        let name = &made.partition.name;
        match (&made.file, state.config.file_partition(name)) {
            (None, Some(_)) => Some(format!(
                "partition {name} was made at run time and is in a file now, which counts."
            )),
            (Some(_), None) => Some(format!(
                "partition {name} is in no file any more: what was set of it counts no more."
            )),
            (Some(_), Some(file)) => {
                let keys = made.set_keys(file, false);
                let keys: Vec<&str> = keys.iter().map(|key| key.name).collect();
                (!keys.is_empty()).then(|| {
                    format!(
                        "partition {name}: {} was set at run time, and its file was changed there, which counts.",
                        keys.join(", ")
                    )
                })
            }
            (None, None) => None,
        }
    };
    let made = state.own_policy.partitions.values();
    made.filter_map(told).collect()
}
