//! Checks of GPUs in idle gaps: which GPU is checked next, what its results are held against, and when it goes out for them. A GPU
//! under check is as free as before: a job that is placed there ends the check. Never checks what is held, out of service or cut
//! by MIG, nor anything while the breaker is open; another idle GPU of its NVLink island may be held for the way between the two; what is an outlier is `gpu_outlier`'s word, and one alone takes nothing out.

use super::breaker::{self, Loss};
use super::command::{Refusal, RefusalCode};
use super::event::{Event, GpuNoteKind};
use super::gpu_outlier::{Sample, judge};
use super::handle::Tx;
use super::state::{Node, State};
use gmodel::config::Partition;
use gmodel::gpu_check::{
    BUILTIN, CheckProgram, CheckReport, CheckResult, Diagnostics, GpuCheckRecord, GpuChecks,
    clipped,
};
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use gmodel::node::{GpuEntry, Link, Role};
use gmodel::run::{Allocation, NodeShare};
use gmodel::{GpuSlot, NodeId, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Who takes GPUs out for what checks found. No user can be called so.
pub(super) const BY: &str = "the checks";
/// Who has GPUs checked.
const ASKED_BY: &str = "the idle gap";
/// The pool is looked at so seldom at least, and so often at most.
const LOOK_WITHIN_SECS: (i64, i64) = (15, 300);
/// A check that could not be run is tried again: a program that is missing everywhere makes no more rows than this.
const RETRY_SECS: u32 = 6 * 3600;

/// Looks for GPUs to check, and for those that wait to be taken out.
pub(super) fn wake(tx: &mut Tx) {
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

/// When `wake` would do something.
pub(super) fn next_look(state: &State) -> Option<Timestamp> {
    state
        .config
        .diagnostics
        .is_some()
        .then_some(state.next_check_look)
}

/// GPUs that may be checked now, one a node, those first that were longest not; and when the next may be.
fn due(
    state: &State,
    terms: &Diagnostics,
    now: Timestamp,
) -> (Vec<(Timestamp, NodeId, String)>, Option<Timestamp>) {
    let (mut ready, mut next) = (BTreeMap::new(), None::<Timestamp>);
    // What many GPUs are said to have at once is not made worse by more of it.
    if !breaker::open_breakers(state, now).is_empty()
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
            put_first(&mut ready, node, gpu, Timestamp(0));
        }
    }
    let mut ready: Vec<(Timestamp, NodeId, String)> = ready
        .into_iter()
        .map(|(node, (tried, uuid))| (tried, node, uuid.to_owned()))
        .collect();
    ready.sort_unstable();
    (ready, next)
}

/// Of a node the GPU that was longest not checked.
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
        node.gpu_orders
            .iter()
            .any(|order| is_check(order) && order.uuid == uuid)
    };
    gpus(state).any(|(node, other)| is_peer(gpu, other) && checked(node, &other.info.uuid))
}

/// Whether others of its kind have that check behind them, and none since the outlier was seen: a driver or a program that changed
/// makes the first that is checked look wrong. A sound result of another says that it is the GPU.
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

/// When a GPU that nobody holds has been idle long enough, and when it may be checked. Idleness counts from this controller's
/// own start at the earliest.
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
        // A slow way is told by another one.
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
    let freed = node.freed.get(&gpu.slot).copied().unwrap_or_default();
    freed
        .max(state.started)
        .plus_secs(i64::from(terms.idle_after_secs))
}

/// The check of one GPU, with the GPU to which the way is measured where one is idle too. Only gpupool's own program is told of two.
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
    let peer = state
        .nodes
        .get(node)
        .filter(|_| wants_way)
        .and_then(|node| {
            let gpu = node.gpus.iter().find(|gpu| gpu.info.uuid == uuid)?;
            peer_for(state, terms, node, gpu, now)
        });
    GpuAction::Check(CheckProgram {
        peer: peer.unwrap_or_default(),
        ..terms.program.clone()
    })
}

/// Another GPU of its NVLink island that is idle as long: each in turn, so that a GPU with a bad end is known by its ways to several. After
/// a slow way none whose own was slow as well.
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

/// Whether an order is to check this GPU, or the way to it.
fn concerns(order: &GpuOrder, uuid: &str) -> bool {
    matches!(&order.what, GpuAction::Check(program) if order.uuid == uuid || program.peer == uuid)
}

/// Nothing else is done to the GPUs of the node, and its partitions let them be checked.
fn takes_checks(state: &State, node: &Node) -> bool {
    let holds = |partition: &&Partition| partition.holds(&node.name, &node.inventory.features);
    let mut partitions = state.config.partitions.iter().filter(holds).peekable();
    node.is_available()
        && node.gpu_orders.is_empty()
        && partitions.peek().is_some()
        && partitions.all(|partition| partition.diagnostics)
}

fn is_checkable(gpu: &GpuEntry) -> bool {
    let info = &gpu.info;
    gpu.usable() && info.slice.is_none() && info.wants.is_empty() && info.standing.is_none()
}

fn held_slots(state: &State, node: &Node) -> BTreeSet<GpuSlot> {
    let runs = node.runs.iter().filter_map(|run| state.runs.get(*run));
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

/// Checks on nodes that can answer.
fn under_way(state: &State) -> usize {
    let up = state.nodes.values().filter(|node| node.link == Link::Up);
    up.flat_map(|node| &node.gpu_orders)
        .filter(|order| is_check(order))
        .count()
}

pub(super) fn is_check(order: &GpuOrder) -> bool {
    matches!(order.what, GpuAction::Check(_))
}

fn gpus(state: &State) -> impl Iterator<Item = (&Node, &GpuEntry)> {
    state
        .nodes
        .values()
        .flat_map(|node| node.gpus.iter().map(move |gpu| (node, gpu)))
        .filter(|(_, gpu)| gpu.present)
}

/// An operator's order to check a GPU, as the configuration has it. One that is out of service may be checked too.
pub(super) fn asked(
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
    let Some(gpu) = node
        .gpus
        .iter()
        .find(|gpu| gpu.info.uuid == uuid && gpu.present)
    else {
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
        .gpu_orders
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

/// Checks of GPUs that a run is given are over, as far as the controller goes; the node ends them before the run is ready.
pub(super) fn yield_to(tx: &mut Tx, allocation: &Allocation, run: RunId) {
    for share in allocation {
        let Some(node) = tx
            .state
            .nodes
            .get(share.node)
            .filter(|node| node.gpu_orders.iter().any(is_check))
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
    node.gpu_orders
        .iter()
        .filter(|order| boards.iter().any(|uuid| concerns(order, uuid)))
        .cloned()
        .collect()
}

/// A node's answer to an order to check.
pub(super) fn ended(tx: &mut Tx, node: NodeId, done: GpuOrderDone) {
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

/// Holds the newest result of one check against those of its kind. What they are may make others outliers too: those that were
/// checked before there was anything to compare them with.
fn compare(tx: &mut Tx, node: NodeId, uuid: &str, check: &str) {
    let config = Arc::clone(&tx.state.config);
    let Some(terms) = &config.diagnostics else {
        return;
    };
    let Some(gpu) = entry(tx.state, node, uuid) else {
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
            // Without a fleet one's own word of before counts, and that was said when it came.
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

fn entry<'a>(state: &'a State, node: NodeId, uuid: &str) -> Option<&'a GpuEntry> {
    state
        .nodes
        .get(node)?
        .gpus
        .iter()
        .find(|gpu| gpu.info.uuid == uuid)
}

fn kept<'a>(gpu: &'a GpuEntry, check: &str) -> Option<&'a GpuCheckRecord> {
    gpu.checks
        .as_ref()?
        .kept
        .iter()
        .find(|kept| kept.result.check == check)
}

/// The check for which it has to go: it was an outlier too often, others since were not, and it is in service still.
fn confirmed<'a>(state: &State, gpu: &'a GpuEntry) -> Option<&'a GpuCheckRecord> {
    let kept = gpu.checks.as_ref()?.condemned()?;
    (gpu.info.fault.is_empty() && !wants_witness(state, gpu, kept)).then_some(kept)
}

/// Orders those out for which that is confirmed, as far as the breaker allows.
fn take_out(tx: &mut Tx) {
    let confirmed = |(node, gpu): (&Node, &GpuEntry)| {
        let kept = confirmed(tx.state, gpu)?;
        let ordered = node
            .gpu_orders
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
        if breaker::allows(tx.state, id, Loss::Gpu(&uuid), tx.now) {
            let what = GpuAction::Quarantine { reason };
            tx.emit(Event::GpuOrdered {
                node: id,
                uuid,
                what,
                by: BY.into(),
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

/// What came of an order to check, or that it gave way.
pub(super) fn apply_checked(
    node: &mut Node,
    uuid: &str,
    number: u64,
    gave_way: bool,
    report: &CheckReport,
    at: Timestamp,
) {
    node.gpu_orders.retain(|order| order.number != number);
    if !gave_way {
        change(node, uuid, |checks| checks.take(report, at));
    }
}

/// What an order for a GPU is for what its checks found.
pub(super) fn apply_ordered(node: &mut Node, uuid: &str, what: &GpuAction, by: &str) {
    match what {
        GpuAction::Return => change(node, uuid, GpuChecks::forgive),
        GpuAction::Quarantine { .. } if by == BY => {
            change(node, uuid, |checks| checks.ordered_out = true)
        }
        _ => {}
    }
}

/// That its next step waits for the breaker was said.
pub(super) fn apply_stopped(node: &mut Node, uuid: &str) {
    if node.gpus.iter().any(|gpu| {
        gpu.info.uuid == uuid
            && gpu
                .checks
                .as_ref()
                .is_some_and(|checks| checks.condemned().is_some())
    }) {
        change(node, uuid, |checks| checks.held_back = true);
    }
}

pub(super) fn change(node: &mut Node, uuid: &str, change: impl FnOnce(&mut GpuChecks)) {
    if let Some(gpu) = Arc::make_mut(&mut node.gpus)
        .iter_mut()
        .find(|gpu| gpu.info.uuid == uuid)
    {
        change(Arc::make_mut(gpu.checks.get_or_insert_default()));
    }
}

/// A share is free again: its GPUs are idle from now.
pub(super) fn note_freed(state: &mut State, id: NodeId, share: &NodeShare, at: Timestamp) {
    let Some(idle_after_secs) = state
        .config
        .diagnostics
        .as_ref()
        .map(|terms| terms.idle_after_secs)
    else {
        return;
    };
    if let Some(node) = state.nodes.get_mut(id) {
        node.freed.extend(share.gpus.slots().map(|slot| (slot, at)));
    }
    state.next_check_look = state
        .next_check_look
        .min(at.plus_secs(i64::from(idle_after_secs)));
}

/// What must never be: a GPU is to be checked while a run holds it.
pub(super) fn check(state: &State, found: &mut Vec<String>) {
    for node in state
        .nodes
        .values()
        .filter(|node| node.gpu_orders.iter().any(is_check))
    {
        let held = held_slots(state, node);
        let of = |order: &&GpuOrder| {
            node.gpus
                .iter()
                .any(|gpu| held.contains(&gpu.slot) && concerns(order, gpu.info.board()))
        };
        found.extend(node.gpu_orders.iter().filter(of).map(|order| {
            format!(
                "GPU {} of node {} is to be checked and a run holds it",
                order.uuid, node.name
            )
        }));
    }
}
