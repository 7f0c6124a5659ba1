//! Checks of idle GPUs: which GPU is checked next, how its results compare, and when it goes out of service.
//!
//! A GPU under check is as free as before: a job that is placed there ends the check. GPUs that are held, out
//! of service or being cut are never checked, and none while the breaker is open. Another idle GPU of the
//! NVLink island may be checked with it, for the link between the two. `gpu/outlier.rs` judges results; one
//! outlier alone takes nothing out.

use crate::ctl::command::{Refusal, RefusalCode};
use crate::ctl::event::{Event, GpuNoteKind};
use crate::ctl::gpu::outlier::{Sample, judge};
use crate::ctl::node;
use crate::ctl::node::breaker::Loss;
use crate::ctl::owner::CHECKS;
use crate::ctl::state::{Node, State};
use crate::ctl::tx::Tx;
use gmodel::config::Partition;
use gmodel::gpu_check::{
    BUILTIN, CheckProgram, CheckReport, CheckResult, Diagnostics, GpuCheckRecord, clipped,
};
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use gmodel::node::{GpuEntry, Link, Role};
use gmodel::run::{Allocation, NodeShare};
use gmodel::{GpuSlot, NodeId, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// User name in a check's order. No user can have it.
const ASKED_BY: &str = "the idle gap";
/// Seconds between two looks at the pool: at least, and at most.
const LOOK_WITHIN_SECS: (i64, i64) = (15, 300);
/// Seconds before a check that could not be run is tried again: bounds the rows that a missing program makes.
const RETRY_SECS: u32 = 6 * 3600;

/// Orders checks that are due, and takes out GPUs that failed.
pub(crate) fn wake(tx: &mut Tx) {
    if next_look(tx.state).is_none_or(|at| at > tx.now) {
        return;
    }
    let config = Arc::clone(&tx.state.config);
    let Some(terms) = &config.diagnostics else {
        return;
    };
    take_out(tx);
    let (ready, next) = due(tx.state, terms, tx.now);
    let room = most_at_once(tx.state, terms).saturating_sub(under_way(tx.state));
    for (_, node, uuid) in ready.into_iter().take(room) {
        let what = program_for(tx.state, terms, node, &uuid, tx.now);
        tx.emit(Event::GpuOrdered {
            node,
            uuid,
            what,
            by: ASKED_BY.into(),
            at: tx.now,
        });
    }
    let (soonest, latest) = LOOK_WITHIN_SECS;
    let next = next
        .unwrap_or(Timestamp(i64::MAX))
        .clamp(tx.now.plus_secs(soonest), tx.now.plus_secs(latest));
    tx.emit(Event::GpuChecksLooked { next });
}

/// When `wake` has something to do next.
pub(crate) fn next_look(state: &State) -> Option<Timestamp> {
    state
        .config
        .diagnostics
        .is_some()
        .then_some(state.memo.next_check_look)
}

/// GPUs that may be checked now, one a node, longest unchecked first; and when the next may be.
fn due(
    state: &State,
    terms: &Diagnostics,
    now: Timestamp,
) -> (Vec<(Timestamp, NodeId, String)>, Option<Timestamp>) {
    let (mut ready, mut next) = (BTreeMap::new(), None::<Timestamp>);
    // Many GPUs with one outlier: more checks would only add to it.
    if !node::breaker::open_breakers(state, now).is_empty()
        || gpus(state).any(|(_, gpu)| confirmed(state, gpu).is_some())
    {
        return (Vec::new(), None);
    }
    let mut idle = Vec::new();
    for node in state
        .nodes
        .values()
        .filter(|node| takes_checks(state, node))
    {
        let held = held_slots(state, node);
        for gpu in node
            .gpus
            .iter()
            .filter(|gpu| is_checkable(gpu) && !held.contains(&gpu.slot))
        {
            let (idle_at, due_at) = due_at(state, terms, node, gpu, now);
            if idle_at <= now {
                idle.push((node, gpu));
            }
            match due_at <= now {
                true => put_first(&mut ready, node, gpu, tried(gpu)),
                false => next = Some(next.map_or(due_at, |next| next.min(due_at))),
            }
        }
    }
    put_witnesses_first(state, &idle, &mut ready);
    let mut ready: Vec<(Timestamp, NodeId, String)> = ready
        .into_iter()
        .map(|(node, (tried, uuid))| (tried, node, uuid.to_owned()))
        .collect();
    ready.sort_unstable();
    (ready, next)
}

/// Another idle GPU of the kind goes first where an outlier needs a comparison.
fn put_witnesses_first<'a>(
    state: &'a State,
    idle: &[(&'a Node, &'a GpuEntry)],
    ready: &mut BTreeMap<NodeId, (Timestamp, &'a str)>,
) {
    for (_, suspect) in gpus(state) {
        let unseen = |kept: &&GpuCheckRecord| {
            kept.strikes > 0
                && !kept.odd.is_empty()
                && suspect.info.fault.is_empty()
                && wants_witness(state, suspect, kept)
        };
        let Some(kept) = suspect
            .checks
            .iter()
            .flat_map(|checks| &checks.kept)
            .find(unseen)
        else {
            continue;
        };
        let may_be =
            |(_, gpu): &&(&Node, &GpuEntry)| is_peer(suspect, gpu) && tried(gpu) <= kept.odd_since;
        if let Some((node, gpu)) = idle
            .iter()
            .find(may_be)
            .filter(|_| !is_peer_checked(state, suspect))
        {
            put_first(ready, node, gpu, Timestamp(0));
        }
    }
}

/// The GPU of a node that was not checked for the longest time.
fn put_first<'a>(
    ready: &mut BTreeMap<NodeId, (Timestamp, &'a str)>,
    node: &Node,
    gpu: &'a GpuEntry,
    tried: Timestamp,
) {
    let one = (tried, gpu.info.uuid.as_str());
    let best = ready.entry(node.id).or_insert(one);
    if tried < best.0 {
        *best = one;
    }
}

fn tried(gpu: &GpuEntry) -> Timestamp {
    gpu.checks
        .as_ref()
        .map_or(Timestamp(0), |checks| checks.tried)
}

fn is_peer(gpu: &GpuEntry, other: &GpuEntry) -> bool {
    let (a, b) = (&gpu.info, &other.info);
    a.uuid != b.uuid
        && b.fault.is_empty()
        && a.gpu_type == b.gpu_type
        && a.memory_mib == b.memory_mib
}

fn is_peer_checked(state: &State, gpu: &GpuEntry) -> bool {
    let checked = |node: &Node, uuid: &str| {
        node.gpu_work
            .orders
            .iter()
            .any(|order| is_check(order) && order.uuid == uuid)
    };
    gpus(state).any(|(node, other)| is_peer(gpu, other) && checked(node, &other.info.uuid))
}

/// Whether other GPUs of the kind passed the same check since, without an outlier: after a new driver or
/// program the first GPU checked looks wrong. A sound result of another GPU blames this one.
fn wants_witness(state: &State, gpu: &GpuEntry, odd: &GpuCheckRecord) -> bool {
    let peers = gpus(state)
        .filter(|(_, other)| is_peer(gpu, other))
        .filter_map(|(_, other)| kept(other, &odd.result.check));
    let alike: Vec<&GpuCheckRecord> = peers
        .filter(|peer| is_alike(&peer.result, &odd.result))
        .collect();
    !alike.is_empty()
        && !alike
            .iter()
            .any(|peer| peer.at > odd.odd_since && peer.odd.is_empty())
}

fn is_alike(a: &CheckResult, b: &CheckResult) -> bool {
    (&a.version, &a.class, &a.unit) == (&b.version, &b.class, &b.unit)
}

/// When a free GPU has been idle long enough, and when it may be checked. Idleness counts from this
/// controller's start at the earliest.
fn due_at(
    state: &State,
    terms: &Diagnostics,
    node: &Node,
    gpu: &GpuEntry,
    now: Timestamp,
) -> (Timestamp, Timestamp) {
    let idle = idle_at(state, terms, node, gpu);
    let again = match gpu.checks.as_deref() {
        None => Timestamp(0),
        Some(checks) if !checks.told => checks
            .tried
            .plus_secs(i64::from(RETRY_SECS.min(terms.every_secs))),
        // A slow link is confirmed by another link of the GPU.
        Some(checks)
            if checks.is_suspect()
                && (!checks.only_ways_are_suspect()
                    || peer_for(state, terms, node, gpu, now).is_some()) =>
        {
            checks.tried
        }
        Some(checks) => checks.tried.plus_secs(i64::from(terms.every_secs)),
    };
    (idle, idle.max(again))
}

fn idle_at(state: &State, terms: &Diagnostics, node: &Node, gpu: &GpuEntry) -> Timestamp {
    let freed = node
        .gpu_work
        .freed
        .get(&gpu.slot)
        .copied()
        .unwrap_or_default();
    freed
        .max(state.started)
        .plus_secs(i64::from(terms.idle_after_secs))
}

/// The check of one GPU, with a second GPU for the link if one is idle. Only gpupool's own program takes two.
fn program_for(
    state: &State,
    terms: &Diagnostics,
    node: NodeId,
    uuid: &str,
    now: Timestamp,
) -> GpuAction {
    let own = &terms.program;
    let wants_way = own.program == BUILTIN
        && (own.checks.is_empty() || own.checks.iter().any(|check| check == "copy"));
    let peer = state.node(node).filter(|_| wants_way).and_then(|node| {
        let gpu = node.gpus.iter().find(|gpu| gpu.info.uuid == uuid)?;
        peer_for(state, terms, node, gpu, now)
    });
    GpuAction::Check(CheckProgram {
        peer: peer.unwrap_or_default(),
        ..terms.program.clone()
    })
}

/// Another GPU of the NVLink island that is idle as long: each in turn, so that several links show a bad end.
/// After a slow link, no GPU with a slow link of its own.
fn peer_for(
    state: &State,
    terms: &Diagnostics,
    node: &Node,
    gpu: &GpuEntry,
    now: Timestamp,
) -> Option<String> {
    gpu.info.nvlink_island?;
    let held = held_slots(state, node);
    let last = gpu.checks.as_ref().and_then(|checks| checks.last_way());
    let after_slow = last.is_some_and(|way| !way.odd.is_empty());
    let slow = |other: &GpuEntry| {
        other
            .checks
            .as_ref()
            .and_then(|checks| checks.last_way())
            .is_some_and(|way| !way.odd.is_empty())
    };
    let may = |other: &&GpuEntry| {
        other.slot != gpu.slot
            && other.info.nvlink_island == gpu.info.nvlink_island
            && is_checkable(other)
            && !held.contains(&other.slot)
            && idle_at(state, terms, node, other) <= now
            && !(after_slow && slow(other))
    };
    let from = last
        .and_then(|way| {
            node.gpus
                .iter()
                .find(|other| other.info.uuid == way.result.peer)
        })
        .map_or(gpu.slot, |other| other.slot);
    let after = |other: &&GpuEntry| (other.slot <= from, other.slot);
    node.gpus
        .iter()
        .filter(may)
        .min_by_key(after)
        .map(|other| other.info.uuid.clone())
}

/// Whether an order checks this GPU, or the link to it.
fn concerns(order: &GpuOrder, uuid: &str) -> bool {
    matches!(&order.what, GpuAction::Check(program) if order.uuid == uuid || program.peer == uuid)
}

/// No other GPU order is open on the node, and its partitions allow checks.
fn takes_checks(state: &State, node: &Node) -> bool {
    let holds = |partition: &&Partition| partition.holds(&node.name, &node.inventory.features);
    let mut partitions = state.config.partitions.iter().filter(holds).peekable();
    node.is_available()
        && node.gpu_work.orders.is_empty()
        && partitions.peek().is_some()
        && partitions.all(|partition| partition.diagnostics)
}

fn is_checkable(gpu: &GpuEntry) -> bool {
    let info = &gpu.info;
    gpu.usable() && info.slice.is_none() && info.wants.is_empty() && info.standing.is_none()
}

fn held_slots(state: &State, node: &Node) -> BTreeSet<GpuSlot> {
    let runs = node.runs.iter().filter_map(|run| state.run(*run));
    let shares = runs.flat_map(|run| run.allocation.iter().zip(&run.members));
    let here = shares.filter(|(share, member)| share.node == node.id && !member.is_clean());
    here.flat_map(|(share, _)| share.gpus.slots()).collect()
}

fn most_at_once(state: &State, terms: &Diagnostics) -> usize {
    let nodes = || {
        state
            .nodes
            .values()
            .filter(|node| node.role == Role::Compute)
            .count()
    };
    terms
        .at_once
        .map_or_else(|| (nodes() / 10).max(1), |most| most as usize)
}

/// Open checks on nodes that are up.
fn under_way(state: &State) -> usize {
    let up = state.nodes.values().filter(|node| node.link == Link::Up);
    up.flat_map(|node| &node.gpu_work.orders)
        .filter(|order| is_check(order))
        .count()
}

pub(crate) fn is_check(order: &GpuOrder) -> bool {
    matches!(order.what, GpuAction::Check(_))
}

fn gpus(state: &State) -> impl Iterator<Item = (&Node, &GpuEntry)> {
    state
        .nodes
        .values()
        .flat_map(|node| node.gpus.iter().map(move |gpu| (node, gpu)))
        .filter(|(_, gpu)| gpu.present)
}

/// An operator's order to check a GPU, with the configured program. A GPU out of service may be checked too.
pub(crate) fn asked(
    state: &State,
    node: &Node,
    uuid: &str,
    now: Timestamp,
) -> Result<GpuAction, Refusal> {
    let name = &node.name;
    let refuse = |code, text: String| Err(Refusal::new(code, text));
    let Some(terms) = &state.config.diagnostics else {
        return refuse(
            RefusalCode::Unavailable,
            "gpuctld.toml has no [diagnostics]: nothing is known that would check a GPU".into(),
        );
    };
    let Some(gpu) = state.gpu(node.id, uuid).filter(|gpu| gpu.present) else {
        return refuse(
            RefusalCode::NotFound,
            format!("{name} has no GPU {uuid} now"),
        );
    };
    if gpu.info.divided {
        return refuse(
            RefusalCode::Conflict,
            format!(
                "GPU {uuid} of {name} is cut by MIG; checks are of whole GPUs. `gadm gpu cut {name} {uuid} whole` makes it one"
            ),
        );
    }
    if node.link != Link::Up {
        return refuse(RefusalCode::Unavailable, format!("{name} is not connected"));
    }
    if let Some(order) = node
        .gpu_work
        .orders
        .iter()
        .find(|order| order.uuid == uuid || is_check(order))
    {
        let which = if order.uuid == uuid {
            "an order for it"
        } else {
            "a check of another of its GPUs"
        };
        return refuse(
            RefusalCode::Conflict,
            format!("GPU {uuid} of {name}: {which} is under way; wait for it"),
        );
    }
    if held_slots(state, node).contains(&gpu.slot) {
        return refuse(
            RefusalCode::Conflict,
            format!(
                "a job holds GPU {uuid} of {name}, and a check gives way to jobs. Drain the node, or wait"
            ),
        );
    }
    Ok(program_for(state, terms, node.id, uuid, now))
}

/// Ends checks on GPUs that a run gets; the node ends them before the run is ready.
pub(crate) fn yield_to(tx: &mut Tx, allocation: &Allocation, run: RunId) {
    for share in allocation {
        let Some(node) = tx
            .node(share.node)
            .filter(|node| node.gpu_work.orders.iter().any(is_check))
        else {
            continue;
        };
        for order in checks_on(node, share) {
            let (uuid, number) = (order.uuid, order.number);
            tx.emit(Event::GpuChecked {
                node: share.node,
                uuid,
                number,
                gave_way_to: Some(run),
                report: Box::default(),
                at: tx.now,
            });
        }
    }
}

fn checks_on(node: &Node, share: &NodeShare) -> Vec<GpuOrder> {
    let boards: BTreeSet<&str> = share
        .gpus
        .slots()
        .filter_map(|slot| node.gpus.get(usize::from(slot.0)))
        .map(|gpu| gpu.info.board())
        .collect();
    node.gpu_work
        .orders
        .iter()
        .filter(|order| boards.iter().any(|uuid| concerns(order, uuid)))
        .cloned()
        .collect()
}

/// A node's answer to an order to check.
pub(crate) fn ended(tx: &mut Tx, node: NodeId, done: GpuOrderDone) {
    let report = match (done.check, done.error.is_empty()) {
        (Some(report), true) => *report,
        (_, true) => CheckReport::stopped("its node says nothing of what came of it"),
        (_, false) => CheckReport::stopped(done.error),
    };
    let report = Box::new(report.sound());
    let checks: Vec<String> = report
        .results
        .iter()
        .map(|result| result.check.clone())
        .collect();
    tx.emit(Event::GpuChecked {
        node,
        uuid: done.uuid.clone(),
        number: done.number,
        gave_way_to: None,
        report,
        at: tx.now,
    });
    for check in checks {
        compare(tx, node, &done.uuid, &check);
    }
    take_out(tx);
}

/// Compares the newest result of one check with those of its kind. It may make an outlier of an earlier
/// result, too.
fn compare(tx: &mut Tx, node: NodeId, uuid: &str, check: &str) {
    let config = Arc::clone(&tx.state.config);
    let Some(terms) = &config.diagnostics else {
        return;
    };
    let Some(gpu) = tx.state.gpu(node, uuid) else {
        return;
    };
    let Some(own) = kept(gpu, check) else { return };
    let all = gpus(tx.state).filter(|(_, other)| other.info.uuid == uuid || is_peer(gpu, other));
    let all = all.filter_map(|(node, gpu)| Some((node.id, gpu, kept(gpu, check)?)));
    let group: Vec<(NodeId, &GpuEntry, &GpuCheckRecord)> = all
        .filter(|(_, _, other)| is_alike(&own.result, &other.result))
        .collect();
    let samples: Vec<Sample<'_>> = group
        .iter()
        .map(|(_, _, kept)| Sample {
            result: &kept.result,
            before: &kept.before,
        })
        .collect();
    let verdicts = judge(&samples, &gpu.info.gpu_type, terms);
    let news = group
        .iter()
        .zip(verdicts)
        .filter_map(|((node, gpu, kept), odd)| {
            // Without a fleet the GPU's own earlier result counts, and that was reported when it came.
            let odd = odd.filter(|_| {
                kept.odd.is_empty()
                    && (gpu.info.uuid == uuid || samples.len() >= terms.min_fleet as usize)
            })?;
            let odd = if kept.result.peer.is_empty() {
                odd
            } else {
                format!("to {}: {odd}", kept.result.peer)
            };
            Some((*node, gpu.info.uuid.clone(), odd))
        });
    for (node, uuid, odd) in news.collect::<Vec<_>>() {
        tx.emit(Event::GpuJudged {
            node,
            uuid,
            check: check.to_owned(),
            odd: clipped(&odd),
            at: tx.now,
        });
    }
}

fn kept<'a>(gpu: &'a GpuEntry, check: &str) -> Option<&'a GpuCheckRecord> {
    gpu.checks
        .as_ref()?
        .kept
        .iter()
        .find(|kept| kept.result.check == check)
}

/// The check that takes the GPU out: an outlier too often, other GPUs sound since, and still in service.
fn confirmed<'a>(state: &State, gpu: &'a GpuEntry) -> Option<&'a GpuCheckRecord> {
    let kept = gpu.checks.as_ref()?.condemned()?;
    (gpu.info.fault.is_empty() && !wants_witness(state, gpu, kept)).then_some(kept)
}

/// Orders confirmed outliers out of service, as far as the breaker allows.
fn take_out(tx: &mut Tx) {
    let confirmed = |(node, gpu): (&Node, &GpuEntry)| {
        let kept = confirmed(tx.state, gpu)?;
        let ordered = node
            .gpu_work
            .orders
            .iter()
            .any(|order| order.uuid == gpu.info.uuid && !is_check(order));
        let reason = clipped(&format!(
            "check {}, the second time: {}",
            kept.result.check, kept.odd
        ));
        let said = gpu.checks.as_ref().is_some_and(|checks| checks.held_back);
        (!ordered && node.link == Link::Up).then(|| (node.id, gpu.info.uuid.clone(), reason, said))
    };
    let all: Vec<(NodeId, String, String, bool)> = gpus(tx.state).filter_map(confirmed).collect();
    for (id, uuid, reason, said) in all {
        if node::breaker::allows(tx.state, id, Loss::Gpu(&uuid), tx.now) {
            let what = GpuAction::Quarantine { reason };
            tx.emit(Event::GpuOrdered {
                node: id,
                uuid,
                what,
                by: CHECKS.into(),
                at: tx.now,
            });
        } else if !said {
            let text = clipped(&format!(
                "the pool's breaker does not allow now: quarantine for {reason}"
            ));
            tx.emit(Event::GpuNoted {
                node: id,
                uuid,
                kind: GpuNoteKind::Stopped,
                text,
                automatic: false,
                at: tx.now,
            });
        }
    }
}

/// Violation: a GPU is to be checked while a run holds it.
pub(crate) fn check(state: &State, found: &mut Vec<String>) {
    for node in state
        .nodes
        .values()
        .filter(|node| node.gpu_work.orders.iter().any(is_check))
    {
        let held = held_slots(state, node);
        let of = |order: &&GpuOrder| {
            node.gpus
                .iter()
                .any(|gpu| held.contains(&gpu.slot) && concerns(order, gpu.info.board()))
        };
        found.extend(node.gpu_work.orders.iter().filter(of).map(|order| {
            format!(
                "GPU {} of node {} is to be checked and a run holds it",
                order.uuid, node.name
            )
        }));
    }
}
