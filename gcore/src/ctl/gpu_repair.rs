//! Steps of the repair of sick GPUs for which nodes wait: each is allowed as soon as the pool's breaker allows it, and a node that
//! is to boot takes no work until it has. What step is next is the node's word. What is certainly sick goes out of service
//! without asking, and counts.

use super::SYSTEM;
use super::breaker::{self, Loss};
use super::event::{Event, GpuNoteKind};
use super::gpu_check;
use super::handle::Tx;
use super::state::{Node, State};
use gmodel::gpu_health::RepairStage;
use gmodel::gpu_order::{GpuAction, MAX_OPEN};
use gmodel::node::{GpuEntry, HoldMark, Link};
use gmodel::{NodeId, Timestamp};

/// Owner of the drain of a node that boots.
const OWNER: &str = "repair";

impl Node {
    /// A GPU of it waits for the controller's word, and has not got it.
    pub(super) fn has_step_waiting(&self) -> bool {
        self.gpus.iter().any(|gpu| waits(self, gpu))
    }

    fn drained_for_boot(&self) -> bool {
        self.drains.iter().any(|mark| mark.owner == OWNER)
    }
}

fn waits(node: &Node, gpu: &GpuEntry) -> bool {
    gpu.present
        && !gpu.info.wants.is_empty()
        && gpu.refused.is_empty()
        && node
            .gpu_orders
            .iter()
            .all(|order| order.uuid != gpu.info.uuid || gpu_check::is_check(order))
}

/// Allows what can be allowed of what waits on this node, and takes it back into the pool when its boot is over.
pub(super) fn look(tx: &mut Tx, id: NodeId) {
    let Some(node) = tx.state.nodes.get(id) else {
        return;
    };
    if node.has_step_waiting() {
        allow(tx, id);
    }
    let Some(node) = tx.state.nodes.get(id) else {
        return;
    };
    let booting = |gpu: &GpuEntry| {
        gpu.info
            .standing
            .as_ref()
            .is_some_and(|standing| standing.stage == RepairStage::Booting)
    };
    if node.drained_for_boot()
        && node.gpu_orders.is_empty()
        && !node.gpus.iter().any(|gpu| gpu.present && booting(gpu))
    {
        tx.emit(Event::NodeResumed {
            node: id,
            owner: Some(OWNER.into()),
            by: SYSTEM.into(),
            at: tx.now,
        });
    }
}

fn allow(tx: &mut Tx, id: NodeId) {
    let Some(node) = tx.state.nodes.get(id) else {
        return;
    };
    let waiting: Vec<(String, bool)> = node
        .gpus
        .iter()
        .filter(|gpu| waits(node, gpu))
        .map(|gpu| (gpu.info.uuid.clone(), gpu.info.wants == "boot"))
        .collect();
    for (uuid, boot) in waiting {
        let Some(node) = tx.state.nodes.get(id) else {
            return;
        };
        // What runs there, or was placed a moment ago, is not booted away.
        let busy = boot && (!node.runs.is_empty() || node.link != Link::Up);
        let loss = if boot { Loss::Node } else { Loss::Gpu(&uuid) };
        if busy || node.gpu_orders.len() >= MAX_OPEN || !breaker::allows(tx.state, id, loss, tx.now)
        {
            continue;
        }
        if boot {
            let mark = HoldMark {
                owner: OWNER.into(),
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

/// Says loudly what waits for the breaker: once for each step.
pub(super) fn say_stopped(tx: &mut Tx, id: NodeId, fresh: &[String]) {
    let Some(node) = tx.state.nodes.get(id) else {
        return;
    };
    let stopped: Vec<(String, String)> = node
        .gpus
        .iter()
        .filter(|gpu| {
            waits(node, gpu) && fresh.contains(&gpu.info.uuid) && gpu.info.wants != "boot"
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

/// Time passed: an hour after something went, more may.
pub(super) fn wake(tx: &mut Tx) {
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

/// When `wake` would allow more.
pub(super) fn next_look(state: &State) -> Option<Timestamp> {
    let waiting = state.watched_nodes().any(Node::has_step_waiting);
    if waiting {
        breaker::next_relief(state)
    } else {
        None
    }
}
