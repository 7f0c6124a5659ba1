//! Repair steps of sick GPUs that wait for the controller: each is allowed as soon as the breaker allows it,
//! and a node that is to boot is drained until it has. The node chooses the step. A GPU that is certainly sick
//! goes out of service without asking, and the breaker counts it.

use crate::ctl::event::{Event, GpuNoteKind};
use crate::ctl::node;
use crate::ctl::node::breaker::Loss;
use crate::ctl::owner::{REPAIR, SYSTEM};
use crate::ctl::state::{Node, State};
use crate::ctl::tx::Tx;
use gmodel::gpu_health::RepairStage;
use gmodel::gpu_order::{GpuAction, MAX_OPEN};
use gmodel::node::{GpuEntry, HoldMark, Link};
use gmodel::{NodeId, Timestamp};

fn is_drained_for_boot(node: &Node) -> bool {
    node.drains.iter().any(|mark| mark.owner == REPAIR)
}

/// Allows the steps that wait on this node, as far as possible, and lifts the drain after its boot.
pub(crate) fn look(tx: &mut Tx, id: NodeId) {
    let Some(node) = tx.node(id) else {
        return;
    };
    if node.has_step_waiting() {
        allow(tx, id);
    }
    let Some(node) = tx.node(id) else {
        return;
    };
    let booting = |gpu: &GpuEntry| {
        gpu.info
            .standing
            .as_ref()
            .is_some_and(|standing| standing.stage == RepairStage::Booting)
    };
    if is_drained_for_boot(node)
        && node.gpu_work.orders.is_empty()
        && !node.gpus.iter().any(|gpu| gpu.present && booting(gpu))
    {
        tx.emit(Event::NodeResumed {
            node: id,
            owner: Some(REPAIR.into()),
            by: SYSTEM.into(),
            at: tx.now,
        });
    }
}

fn allow(tx: &mut Tx, id: NodeId) {
    let Some(node) = tx.node(id) else {
        return;
    };
    let waiting: Vec<(String, bool)> = node
        .gpus
        .iter()
        .filter(|gpu| node.awaits_step(gpu))
        .map(|gpu| (gpu.info.uuid.clone(), gpu.info.wants == "boot"))
        .collect();
    for (uuid, boot) in waiting {
        let Some(node) = tx.node(id) else {
            return;
        };
        // Runs on the node delay the boot.
        let busy = boot && (!node.runs.is_empty() || node.link != Link::Up);
        let loss = if boot { Loss::Node } else { Loss::Gpu(&uuid) };
        if busy
            || node.gpu_work.orders.len() >= MAX_OPEN
            || !node::breaker::allows(tx.state, id, loss, tx.now)
        {
            continue;
        }
        if boot {
            let mark = HoldMark {
                owner: REPAIR.into(),
                reason: format!("boots, to mend GPU {uuid}"),
                since: tx.now,
            };
            tx.emit(Event::NodeDrained {
                node: id,
                mark,
                automatic: true,
            });
        }
        tx.emit(Event::GpuOrdered {
            node: id,
            uuid,
            what: GpuAction::Repair,
            by: SYSTEM.into(),
            at: tx.now,
        });
    }
}

/// Records each step that waits for the breaker, once.
pub(crate) fn say_stopped(tx: &mut Tx, id: NodeId, fresh: &[String]) {
    let Some(node) = tx.node(id) else {
        return;
    };
    let stopped: Vec<(String, String)> = node
        .gpus
        .iter()
        .filter(|gpu| {
            node.awaits_step(gpu) && fresh.contains(&gpu.info.uuid) && gpu.info.wants != "boot"
        })
        .map(|gpu| {
            (
                gpu.info.uuid.clone(),
                format!("the pool's breaker does not allow now: {}", gpu.info.wants),
            )
        })
        .collect();
    for (uuid, text) in stopped {
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

/// An hour after a loss the breaker may allow more.
pub(crate) fn wake(tx: &mut Tx) {
    if next_look(tx.state).is_some_and(|at| at <= tx.now) {
        let waiting: Vec<NodeId> = tx
            .state
            .watched_nodes()
            .filter(|node| node.has_step_waiting())
            .map(|node| node.id)
            .collect();
        for id in waiting {
            look(tx, id);
        }
    }
}

/// When `wake` may allow more.
pub(crate) fn next_look(state: &State) -> Option<Timestamp> {
    let waiting = state.watched_nodes().any(Node::has_step_waiting);
    if waiting {
        node::breaker::next_relief(state)
    } else {
        None
    }
}
