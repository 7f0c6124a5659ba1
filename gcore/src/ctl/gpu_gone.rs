//! GPUs that are not where they were: gone, found in another node, or forgotten by an operator's word. Owns who is missed where.
//! A sick GPU takes its quarantine along; no history is ever lost.

use super::SYSTEM;
use super::command::{Actor, Refusal, RefusalCode, Reply};
use super::event::{Event, GpuNoteKind};
use super::handle::{Tx, operator_only};
use super::mig;
use super::state::{Node, State};
use gmodel::NodeId;
use gmodel::gpu_health::RepairStage;
use gmodel::gpu_order::GpuAction;
use gmodel::node::{GpuEntry, Link};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a GPU that appears in node `id` was before: it is missed there, or that node is silent and has not said that it left.
pub(super) fn was_in(state: &State, silent: &[NodeId], id: NodeId, uuid: &str) -> Option<NodeId> {
    let in_silent = || {
        silent
            .iter()
            .copied()
            .find(|from| *from != id && entry(state, *from, uuid).is_some_and(|gpu| gpu.present))
    };
    state
        .gone
        .get(uuid)
        .copied()
        .filter(|from| *from != id)
        .or_else(in_silent)
}

/// Nodes whose inventory may be of yesterday.
pub(super) fn silent_nodes(state: &State) -> Vec<NodeId> {
    state
        .nodes
        .values()
        .filter(|node| matches!(node.link, Link::Silent | Link::Down))
        .map(|node| node.id)
        .collect()
}

/// Where a GPU is that leaves node `id`.
pub(super) fn is_in(state: &State, id: NodeId, uuid: &str) -> Option<NodeId> {
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

/// It was out of service where it came from.
pub(super) fn was_sick(state: &State, from: NodeId, uuid: &str) -> bool {
    entry(state, from, uuid).is_some_and(is_sick)
}

/// It is in `to` now, and nobody misses it in `from`. One that was out of service there is so here, until somebody returns it.
pub(super) fn left(tx: &mut Tx, uuid: String, from: NodeId, to: NodeId) {
    let name = |id: NodeId| {
        tx.state
            .nodes
            .get(id)
            .map_or_else(String::new, |node| node.name.clone())
    };
    let (old, new) = (name(from), name(to));
    if let Some(gpu) = entry(tx.state, from, &uuid).filter(|gpu| is_sick(gpu)) {
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

/// An operator's word that a GPU is gone for good: nobody misses it any more.
pub(super) fn forget(tx: &mut Tx, actor: &Actor, uuid: &str) -> Result<Reply, Refusal> {
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
        .find_map(|(node, _)| Some((node, mig::holder(tx.state, node, uuid)?)));
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

/// What follows of a note for the GPUs that are nowhere.
pub(super) fn apply(state: &mut State, node: NodeId, uuid: &str, kind: GpuNoteKind) {
    match kind {
        GpuNoteKind::Gone => drop(state.gone.insert(uuid.to_owned(), node)),
        GpuNoteKind::Appeared | GpuNoteKind::Moved => drop(state.gone.remove(uuid)),
        // What it left behind is that node's no more, should it be silent and not know yet.
        GpuNoteKind::Left => {
            forget_entry(state, node, uuid, |gpu| {
                (gpu.present, gpu.info.standing) = (false, None)
            });
        }
        GpuNoteKind::Forgotten => {
            forget_entry(state, node, uuid, |_| {});
            // Whoever puts a sick one in again does not make it well.
            if !was_sick(state, node, uuid) {
                state.gone.remove(uuid);
            }
        }
        _ => {}
    }
}

fn forget_entry(state: &mut State, node: NodeId, uuid: &str, change: impl FnOnce(&mut GpuEntry)) {
    let Some(node) = state.nodes.get_mut(node) else {
        return;
    };
    node.gpu_orders.retain(|order| order.uuid != uuid);
    if let Some(gpu) = Arc::make_mut(&mut node.gpus)
        .iter_mut()
        .find(|gpu| gpu.info.uuid == uuid)
    {
        gpu.forgotten = true;
        change(gpu);
    }
}

/// The GPUs that are nowhere now and missed, or sick, as rows tell: for a start.
pub(super) fn gone(state: &State) -> BTreeMap<String, NodeId> {
    let absent = state.nodes.values().flat_map(|node| {
        let absent = node
            .gpus
            .iter()
            .filter(|gpu| !gpu.present && (gpu.is_expected() || is_sick(gpu)));
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

fn entry<'a>(state: &'a State, node: NodeId, uuid: &str) -> Option<&'a GpuEntry> {
    state
        .nodes
        .get(node)?
        .gpus
        .iter()
        .find(|gpu| gpu.info.uuid == uuid)
}

fn is_sick(gpu: &GpuEntry) -> bool {
    gpu.info
        .standing
        .as_ref()
        .is_some_and(|standing| standing.stage != RepairStage::InService || standing.held)
}
