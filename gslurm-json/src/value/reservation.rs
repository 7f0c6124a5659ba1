//! Values that records and JSON print of a reservation alike: its window, its nodes, its flags.

use gmodel::duration::sacct_time;
use gmodel::hostlist;
use gmodel::node::Role;
use gmodel::policy::{Repeat, Reservation, ReservedPart};
use gmodel::{Instant, Timestamp};
use gwire::api::{NodeRow, ReservationRow};
use std::collections::BTreeSet;

/// Of the window that holds or comes next, else of the first.
pub fn begin(row: &ReservationRow) -> Option<Instant> {
    let first = Some(row.reservation.start).filter(|at| *at != Timestamp::default());
    row.window_start.or(first.map(Instant))
}

pub fn node_list(row: &ReservationRow, nodes: &[NodeRow]) -> String {
    let mut held: Vec<String> = held(row, nodes).into_iter().collect();
    hostlist::sort_names(&mut held);
    if held.is_empty() {
        "(null)".to_owned()
    } else {
        hostlist::compress(held)
    }
}

/// The nodes it has whole.
pub fn held(row: &ReservationRow, nodes: &[NodeRow]) -> BTreeSet<String> {
    let of_partition = |node: &&NodeRow| {
        row.reservation
            .partition
            .as_ref()
            .is_none_or(|name| node.partitions.contains(name))
    };
    match &row.reservation.what {
        ReservedPart::NodeCount(_) | ReservedPart::Gpus(_) => BTreeSet::new(),
        ReservedPart::AllNodes => nodes
            .iter()
            .filter(|node| node.role == Role::Compute)
            .filter(of_partition)
            .map(|node| node.name.clone())
            .collect(),
        ReservedPart::Nodes(list) => list.iter().map(str::to_owned).collect(),
    }
}

/// In scontrol's order.
pub fn flags(row: &Reservation) -> Vec<String> {
    let all = row.what == ReservedPart::AllNodes;
    let names_nodes = all || matches!(row.what, ReservedPart::Nodes(_));
    let repeat = row.repeat.word().to_uppercase();
    let words = [
        (row.maintenance, "MAINT"),
        (row.flex, "FLEX"),
        (row.overlap, "OVERLAP"),
        (row.ignore_running, "IGNORE_JOBS"),
        (row.repeat != Repeat::Once, repeat.as_str()),
        (names_nodes && !row.is_chosen, "SPEC_NODES"),
        (all && row.partition.is_none(), "ALL_NODES"),
        (row.static_nodes, "STATIC"),
        (row.replace, "REPLACE"),
        (row.replace_down, "REPLACE_DOWN"),
        (all && row.partition.is_some(), "PART_NODES"),
    ];
    let mut flags: Vec<String> = words
        .into_iter()
        .filter(|(is_set, _)| *is_set)
        .map(|(_, word)| word.to_owned())
        .collect();
    flags.extend(
        row.purge_idle_secs
            .map(|secs| format!("PURGE_COMP={}", sacct_time(secs.into()))),
    );
    let last = [
        (row.release_jobs, "NO_HOLD_JOBS_AFTER_END"),
        (row.magnetic, "MAGNETIC"),
    ];
    flags.extend(
        last.into_iter()
            .filter(|(is_set, _)| *is_set)
            .map(|(_, word)| word.to_owned()),
    );
    flags
}
