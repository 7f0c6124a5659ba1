//! GPUs that are missing, found in another node, or forgotten by an operator; and the index of where each was
//! last. A sick GPU takes its quarantine along; no history is lost.

use crate::ctl::command::{Actor, Refusal, RefusalCode, Reply};
use crate::ctl::event::{Event, GpuNoteKind};
use crate::ctl::gpu;
use crate::ctl::owner::SYSTEM;
use crate::ctl::state::{Node, State, is_out_of_service};
use crate::ctl::tx::{Tx, operator_only};
use gmodel::NodeId;
use gmodel::gpu_order::GpuAction;
use gmodel::node::{GpuEntry, Link};
use std::collections::BTreeMap;

/// The earlier node of a GPU that appears in node `id`: it is missing there, or that node is silent and may
/// not know.
pub(crate) fn was_in(state: &State, silent: &[NodeId], id: NodeId, uuid: &str) -> Option<NodeId> {
    let in_silent = || {
        silent
            .iter()
            .copied()
            .find(|from| *from != id && state.gpu(*from, uuid).is_some_and(|gpu| gpu.present))
    };
    state
        .index
        .gone
        .get(uuid)
        .copied()
        .filter(|from| *from != id)
        .or_else(in_silent)
}

/// Silent nodes: their inventory may be out of date.
pub(crate) fn silent_nodes(state: &State) -> Vec<NodeId> {
    state
        .nodes
        .values()
        .filter(|node| matches!(node.link, Link::Silent | Link::Down))
        .map(|node| node.id)
        .collect()
}

/// The node that has a GPU which left node `id`.
pub(crate) fn is_in(state: &State, id: NodeId, uuid: &str) -> Option<NodeId> {
    let others = state
        .nodes
        .values()
        .filter(|node| node.id != id && node.link == Link::Up);
    others
        .filter(|node| {
            node.gpus
                .iter()
                .any(|gpu| gpu.present && gpu.info.uuid == uuid)
        })
        .map(|node| node.id)
        .next()
}

/// It was out of service in its earlier node.
pub(crate) fn was_sick(state: &State, from: NodeId, uuid: &str) -> bool {
    state.gpu(from, uuid).is_some_and(is_out_of_service)
}

/// The GPU is in `to` now and is not missing in `from`. A quarantine moves with it until an operator returns
/// the GPU.
pub(crate) fn left(tx: &mut Tx, uuid: String, from: NodeId, to: NodeId) {
    let name = |id: NodeId| {
        tx.node(id)
            .map_or_else(String::new, |node| node.name.clone())
    };
    let (old, new) = (name(from), name(to));
    if let Some(gpu) = tx
        .state
        .gpu(from, &uuid)
        .filter(|gpu| is_out_of_service(gpu))
    {
        let reason = format!("out of service when it left {old}: {}", gpu.info.fault);
        tx.emit(Event::GpuOrdered {
            node: to,
            uuid: uuid.clone(),
            what: GpuAction::Quarantine { reason },
            by: SYSTEM.into(),
            at: tx.now,
        });
    }
    let text = format!("it is in {new} now");
    tx.emit(Event::GpuNoted {
        node: from,
        uuid,
        kind: GpuNoteKind::Left,
        text,
        automatic: false,
        at: tx.now,
    });
}

/// An operator's statement that a missing GPU is gone for good.
pub(crate) fn forget(tx: &mut Tx, actor: &Actor, uuid: &str) -> Result<Reply, Refusal> {
    operator_only(actor, "forgetting a GPU")?;
    let having: Vec<(&Node, &GpuEntry)> = tx
        .state
        .nodes
        .values()
        .filter_map(|node| Some((node, node.gpus.iter().find(|gpu| gpu.info.uuid == uuid)?)))
        .collect();
    if let Some((node, gpu)) = having.iter().find(|(_, gpu)| gpu.present) {
        let text = format!(
            "GPU {uuid} is in {} (gpu{}): only one that is missing is forgotten. `gadm gpu quarantine {}:{} --reason ...` takes it out of service",
            node.name, gpu.info.index, node.name, gpu.info.index
        );
        return Err(Refusal::new(RefusalCode::Conflict, text));
    }
    let missed: Vec<(&Node, &GpuEntry)> = having
        .into_iter()
        .filter(|(_, gpu)| gpu.is_expected())
        .collect();
    if missed.is_empty() {
        let text =
            format!("no node misses a GPU {uuid}; `gnodes --health` shows those that are missing");
        return Err(Refusal::new(RefusalCode::NotFound, text));
    }
    let held = missed
        .iter()
        .find_map(|(node, _)| Some((node, gpu::mig::holder(tx.state, node, uuid)?)));
    if let Some((node, run)) = held {
        let text = format!(
            "GPU {uuid} of {} is held by job {} still: forget it when that has ended (gdel {} ends it)",
            node.name, run.job, run.job
        );
        return Err(Refusal::new(RefusalCode::Conflict, text));
    }
    for node in missed
        .into_iter()
        .map(|(node, _)| node.id)
        .collect::<Vec<_>>()
    {
        let text = format!("gone for good, says {}", actor.user);
        tx.emit(Event::GpuNoted {
            node,
            uuid: uuid.to_owned(),
            kind: GpuNoteKind::Forgotten,
            text,
            automatic: false,
            at: tx.now,
        });
    }
    Ok(Reply::Done)
}

/// The missing and sick GPUs that no node has, computed from the rows at boot.
pub(crate) fn gone(state: &State) -> BTreeMap<String, NodeId> {
    let absent = state.nodes.values().flat_map(|node| {
        let absent = node
            .gpus
            .iter()
            .filter(|gpu| !gpu.present && (gpu.is_expected() || is_out_of_service(gpu)));
        absent.map(|gpu| (gpu.info.uuid.clone(), node.id))
    });
    let mut gone: BTreeMap<String, NodeId> = absent.collect();
    if !gone.is_empty() {
        for gpu in state
            .nodes
            .values()
            .flat_map(|node| node.gpus.iter())
            .filter(|gpu| gpu.present)
        {
            gone.remove(&gpu.info.uuid);
        }
    }
    gone
}
