//! What nodes say: hello, run reports, silence; and what follows for the runs they hold.

use super::SYSTEM;
use super::command::NodeReport;
use super::event::Event;
use super::handle::Tx;
use super::run_end::{advance, advance_after};
use super::state::Member;
use super::{gpu_history, gpu_order, gpu_repair, identity, join, node_words};
use gmodel::checkpoint::{CheckpointMark, MAX_NOTE_BYTES};
use gmodel::node::{Inventory, Link};
use gmodel::run::{EndCause, RunEnd, RunPhase, RunReport, StopCause};
use gmodel::{Fence, NodeId, NodeLife, RunId};
use std::collections::BTreeMap;

/// GPUs a node may name in its life: slots are for ever.
pub const MAX_GPU_SLOTS: usize = 4096;

pub(super) fn handle(tx: &mut Tx, id: NodeId, report: NodeReport) {
    if !tx.state.nodes.contains(id) {
        return;
    }
    match node_words::bounded(tx.state, id, report, tx.now) {
        NodeReport::Hello {
            life,
            fence,
            inventory,
            runs,
        } => {
            let runs = by_our_clock(tx, runs);
            look_at_fence(tx, id, fence);
            identity::settled(tx, id);
            hello(tx, id, life, inventory, runs);
            take_back_unheard(tx, id, fence);
        }
        NodeReport::Adopt {
            life,
            inventory,
            runs,
            orders,
        } => {
            let runs = by_our_clock(tx, runs);
            super::adopt::handle(tx, id, &life, inventory, runs, orders);
        }
        NodeReport::Runs { runs } => {
            for report in by_our_clock(tx, runs) {
                take_mark(tx, id, report.run, report.mark);
                take(tx, id, report.run, report.phase);
            }
            // A node that is to boot was waited for.
            if tx.state.watched.contains(&id) {
                gpu_repair::look(tx, id);
            }
        }
        NodeReport::Idle { runs } => super::idle::take(tx, id, runs),
        NodeReport::Inventory { inventory } => take_inventory(tx, id, inventory),
        NodeReport::Obeyed { fence } => {
            if fence.incarnation == tx.state.incarnation {
                tx.emit(Event::NodeObeyed {
                    node: id,
                    generation: fence.generation,
                });
            }
        }
        NodeReport::GpuOrders { done } => {
            gpu_order::ended(tx, id, done);
            gpu_repair::look(tx, id);
        }
        NodeReport::Certificate { epoch } => join::raise(tx, id, epoch),
        NodeReport::Claimed { owner, text } => identity::claimed(tx, id, &owner, &text),
        NodeReport::Gone => {
            if tx
                .state
                .nodes
                .get(id)
                .is_some_and(|node| node.link == Link::Up)
            {
                tx.emit(Event::NodeLinkChanged {
                    node: id,
                    link: Link::Silent,
                    at: tx.now,
                });
            }
        }
    }
}

/// Ages are taken from nodes, not instants: their clocks and ours may be set at any time.
fn by_our_clock(tx: &Tx, runs: Vec<RunReport>) -> Vec<RunReport> {
    runs.into_iter()
        .map(|report| report.heard_at(tx.now))
        .collect()
}

fn hello(tx: &mut Tx, id: NodeId, life: NodeLife, inventory: Inventory, runs: Vec<RunReport>) {
    tx.emit(Event::NodeHello {
        node: id,
        life: life.clone(),
        at: tx.now,
    });
    take_inventory(tx, id, inventory);
    for report in &runs {
        take_mark(tx, id, report.run, report.mark.clone());
    }
    let mut reported: BTreeMap<RunId, RunPhase> = runs
        .into_iter()
        .map(|report| (report.run, report.phase))
        .collect();
    let held: Vec<RunId> = tx
        .state
        .nodes
        .get(id)
        .map_or(Vec::new(), |node| node.runs.iter().copied().collect());
    for run in held {
        let Some(member) = tx.state.runs.get(run).and_then(|r| r.member(id)) else {
            continue;
        };
        let phase = match reported.remove(&run) {
            Some(phase) => Some(phase),
            None => lost(member, &life),
        };
        if let Some(phase) = phase {
            take(tx, id, run, phase);
        }
    }
}

/// Whose drain it is when a node obeyed orders that this controller never gave.
const FENCE_OWNER: &str = "system:fence";

/// A node that obeyed orders this controller does not remember giving. In an adoption window an older state was brought back once
/// more: the incarnation goes above the node's, else it would never obey again. At any other time the node is not believed, and
/// gets no work until its fence is one that was given: what it says moves nothing.
fn look_at_fence(tx: &mut Tx, id: NodeId, fence: Fence) {
    let known = tx.state.newest_fence();
    let Some(node) = tx.state.nodes.get(id) else {
        return;
    };
    if fence <= known {
        return identity::lift(tx, id, FENCE_OWNER);
    }
    let window = tx
        .state
        .adoption
        .as_ref()
        .filter(|window| fence.incarnation < window.max_incarnation);
    if window.is_some() && tx.state.adopts_from(node, tx.now) {
        let (incarnation, next_job) = (fence.incarnation + 1, tx.state.next_job);
        tx.emit(Event::Restored {
            incarnation,
            next_job,
            opens: None,
            at: tx.now,
        });
    } else {
        let text = format!(
            "it obeyed order {}/{} and this controller has given none above {}/{}: an older database was put back beside gpuctld restore, \
             or the machine lies. Its runs go on; it gets no work. If the database is an older one: stop gpuctld and run gpuctld restore \
             --from with the database that is in place. If not: empty the machine's spool and join it again",
            fence.incarnation, fence.generation, known.incarnation, known.generation
        );
        identity::mark(tx, id, FENCE_OWNER, &text);
    }
}

/// Runs placed before a restore that their node does not name: it may have ended and forgotten them
/// since the backup, so they must not be sent again. They go back to the queue, with a new number.
fn take_back_unheard(tx: &mut Tx, id: NodeId, fence: Fence) {
    if fence.incarnation >= tx.state.incarnation || fence == Fence::default() {
        return;
    }
    let held: Vec<RunId> = tx
        .state
        .nodes
        .get(id)
        .map_or(Vec::new(), |node| node.runs.iter().copied().collect());
    for run in held {
        let unheard = tx
            .state
            .runs
            .get(run)
            .and_then(|r| r.member(id))
            .is_some_and(|m| m.phase.is_none());
        if unheard {
            super::cancel::stop(tx, run, StopCause::Requeued, SYSTEM);
        }
    }
}

/// What became of a run that its node's hello does not name.
fn lost(member: &Member, life: &NodeLife) -> Option<RunPhase> {
    let (cause, text) = if member.life.boot != life.boot {
        (EndCause::NodeRebooted, "the node was rebooted")
    } else if member.life.spool != life.spool {
        (EndCause::SpoolLost, "the node lost its spool directory")
    } else {
        match &member.phase {
            // Not accepted yet: it will be sent.
            None => return None,
            Some(RunPhase::Clean(_)) => return None,
            Some(_) => (EndCause::SpoolLost, "the node no longer knows the run"),
        }
    };
    let end = RunEnd {
        cause,
        text: text.into(),
        ..RunEnd::default()
    };
    Some(RunPhase::Clean(end.into()))
}

pub(super) fn take_inventory(tx: &mut Tx, id: NodeId, mut inventory: Inventory) {
    let Some(node) = tx.state.nodes.get(id) else {
        return;
    };
    let known = |uuid: &str| node.gpus.iter().any(|gpu| gpu.info.uuid == uuid);
    let mut room = MAX_GPU_SLOTS.saturating_sub(node.gpus.len());
    let mut seen = std::collections::BTreeSet::new();
    inventory.gpus.retain(|gpu| {
        let new = !known(&gpu.uuid);
        let keep = seen.insert(gpu.uuid.clone()) && (!new || room > 0);
        room -= usize::from(keep && new);
        keep
    });
    let now_there: Vec<_> = node
        .gpus
        .iter()
        .filter(|gpu| gpu.present)
        .map(|gpu| &gpu.info)
        .collect();
    let same_gpus = now_there.len() == inventory.gpus.len()
        && inventory.gpus.iter().all(|gpu| now_there.contains(&gpu));
    let rest = Inventory {
        gpus: Vec::new(),
        ..inventory.clone()
    };
    if !same_gpus || *node.inventory != rest {
        let wanting = gpu_history::compare(tx, id, &inventory);
        tx.emit(Event::NodeInventory {
            node: id,
            inventory,
            at: tx.now,
        });
        gpu_repair::look(tx, id);
        gpu_repair::say_stopped(tx, id, &wanting);
    }
}

/// Takes a checkpoint mark if it is newer than what is known of the run on its node. When it was set is the node's word: later than the
/// run's start and its marks before, and not in the future. So work that was safe while the controller was away is not lost.
fn take_mark(tx: &mut Tx, node: NodeId, run: RunId, mark: Option<CheckpointMark>) {
    let (Some(mut mark), Some(record)) = (mark, tx.state.runs.get(run)) else {
        return;
    };
    let Some(member) = record.member(node) else {
        return;
    };
    // Members that an earlier release wrote count for nothing.
    let alone = record
        .mark
        .as_ref()
        .filter(|_| record.members.len() == 1)
        .map_or(0, |known| known.number);
    if member.marked.max(alone) < mark.number && record.outcome.is_none() {
        if mark.note.len() > MAX_NOTE_BYTES {
            mark.note = mark.note.chars().take(MAX_NOTE_BYTES / 4).collect();
        }
        let started = record.started.or(record.go).unwrap_or(record.placed);
        let earliest = record
            .mark
            .as_ref()
            .map_or(started, |known| known.at.max(started))
            .min(tx.now);
        let at = mark.at.clamp(earliest, tx.now);
        tx.emit(Event::RunMarked {
            run,
            node,
            mark,
            at,
        });
    }
}

/// Takes a report if it is news; reports never go back.
pub(super) fn take(tx: &mut Tx, node: NodeId, run: RunId, phase: RunPhase) {
    let Some(member) = tx.state.runs.get(run).and_then(|r| r.member(node)) else {
        return;
    };
    if member
        .phase
        .as_ref()
        .is_some_and(|known| known.rank() >= phase.rank())
    {
        return;
    }
    // The end is what was reported first: a later report may only add that it is clean.
    let phase = match (phase, member.end()) {
        (RunPhase::Clean(_), Some(end)) => RunPhase::Clean(end.clone()),
        (phase, _) => phase,
    };
    // A short run is told of when it is over.
    let started = match &phase {
        RunPhase::Running { .. } => true,
        phase => phase.end().is_some_and(|end| end.started.is_some()) && member.end().is_none(),
    };
    tx.emit(Event::RunReported {
        run,
        node,
        phase,
        at: tx.now,
    });
    if started
        && tx
            .state
            .nodes
            .get(node)
            .is_some_and(|node| !node.strikes.is_empty())
    {
        tx.emit(Event::NodeStrikesCleared { node });
    }
    advance_after(tx, run, node);
}

/// Writes off every run on a node that is held for lost.
pub(super) fn forfeit_runs(tx: &mut Tx, id: NodeId, text: &str) {
    let held: Vec<RunId> = tx
        .state
        .nodes
        .get(id)
        .map_or(Vec::new(), |node| node.runs.iter().copied().collect());
    for run in held {
        let open = tx
            .state
            .runs
            .get(run)
            .and_then(|r| r.member(id))
            .is_some_and(|member| !member.is_settled());
        if open {
            let text = text.to_owned();
            tx.emit(Event::RunForfeited {
                run,
                node: id,
                text,
                at: tx.now,
            });
            advance(tx, run);
        }
    }
}
