//! Reservations of so many GPUs wherever they are: which ones they hold, for whom is not in them.
//!
//! GPUs are set apart on the nodes with the most free in the window, anew in each pass; what runs of the reservation
//! hold already counts as theirs.

use crate::pass::Engine;
use crate::plan::Start;
use crate::room::Hold;
use crate::snapshot::Snapshot;
use crate::timeline::Need;
use crate::window::{Window, asked};
use gmodel::Timestamp;
use gmodel::policy::{ALL_GPUS, ReservedPart};
use gmodel::run::NodeShare;

/// Windows of a recurring reservation that are kept at once.
const WINDOWS_AHEAD: usize = 32;

/// Sets the GPUs of a reservation apart in its windows to come.
pub(crate) fn hold(engine: &mut Engine, snapshot: &Snapshot, reservation: usize) -> Vec<(usize, Hold)> {
    hold_beside(engine, snapshot, reservation, &[])
}

/// As `hold`, with what jobs of the reservation were given in this pass counted as theirs.
pub(crate) fn hold_beside(
    engine: &mut Engine,
    snapshot: &Snapshot,
    reservation: usize,
    starts: &[Start],
) -> Vec<(usize, Hold)> {
    let one = engine.windows.list[reservation].reservation.clone();
    let ReservedPart::Gpus(amounts) = &one.what else { return Vec::new() };
    let windows: Vec<Window> = engine.windows.of(reservation, snapshot.now).take(WINDOWS_AHEAD).collect();
    let mut held = Vec::new();
    for (kind, milli) in &amounts.0 {
        let used = used(engine, snapshot, &one.name, kind, starts);
        for (from, to) in &windows {
            let from = (*from).max(snapshot.now);
            let open = from <= snapshot.now;
            let mut left = milli.saturating_sub(if open { used } else { 0 }).div_ceil(1000);
            for at in emptiest(engine, snapshot, one.partition.as_deref(), (from, *to)) {
                if left == 0 {
                    break;
                }
                left -= take(engine, at, kind, left, (from, *to), &mut held);
            }
        }
    }
    held
}

fn emptiest(engine: &Engine, snapshot: &Snapshot, partition: Option<&str>, (from, to): Window) -> Vec<usize> {
    let partition = partition.and_then(|name| snapshot.config.partition(name));
    let of_partition = |at: &usize| {
        let node = &snapshot.nodes[*at];
        engine.cluster.nodes[*at].up && partition.is_none_or(|partition| partition.holds(&node.name, &node.features))
    };
    let mut nodes: Vec<usize> = (0..snapshot.nodes.len()).filter(of_partition).collect();
    let free = |at: &usize| engine.cluster.room(*at).profile.least(from, to).all_gpus();
    nodes.sort_by_key(|at| (std::cmp::Reverse(free(at)), *at));
    nodes
}

/// Holds up to `most` GPUs of a kind on a node.
fn take(
    engine: &mut Engine,
    at: usize,
    kind: &str,
    most: u64,
    (from, to): (Timestamp, Timestamp),
    held: &mut Vec<(usize, Hold)>,
) -> u64 {
    let make = &engine.cluster.makes.list[engine.cluster.nodes[at].make as usize];
    let of_kind = make.groups.iter().enumerate().filter(|(_, group)| kind == ALL_GPUS || group.gpu_type == kind);
    let groups = of_kind.fold(0, |bits, (group, _)| bits | 1 << group);
    let free = engine.cluster.room(at).profile.least(from, to).gpus_in(groups);
    let gpus = u64::from(free).min(most).min(u64::from(u8::MAX));
    if gpus == 0 {
        return 0;
    }
    let need = Need { cpus: 0, mem_bytes: 0, gpus: gpus as u8, groups, milli: 0, tenant: None, one_group: false, exclusive: false };
    match engine.cluster.touch(at).hold(&need, from, to) {
        Some(hold) => {
            held.push((at, hold));
            gpus
        }
        None => 0,
    }
}

/// Thousandths of GPUs of a kind that jobs of the reservation hold.
fn used(engine: &Engine, snapshot: &Snapshot, name: &str, kind: &str, starts: &[Start]) -> u64 {
    let of_kind = |share: &NodeShare| {
        let Some(at) = engine.cluster.place(share.node) else { return 0 };
        let gpus = &snapshot.nodes[at].gpus;
        let wanted = |slot: usize| {
            kind == ALL_GPUS || gpus.get(slot).is_some_and(|gpu| gpu.info.gpu_type.eq_ignore_ascii_case(kind))
        };
        let grants = share.gpus.0.iter().filter(|grant| wanted(usize::from(grant.slot.0)));
        grants.map(|grant| u64::from(grant.part.milli())).sum::<u64>()
    };
    let running = snapshot.running.iter().filter(|run| asked(&run.spec) == Some(name));
    let running: u64 = running.flat_map(|run| &run.shares).map(of_kind).sum();
    let starting = starts.iter().filter(|start| {
        let job = snapshot.pending.iter().filter(|job| job.id <= start.job).max_by_key(|job| job.id);
        job.is_some_and(|job| asked(&job.spec) == Some(name))
    });
    running + starting.flat_map(|start| &start.allocation).map(of_kind).sum::<u64>()
}
