//! What the events of single GPUs change. Infallible, without clock or chance.

use crate::ctl::apply::index::watch;
use crate::ctl::apply::memos::forget_what_fits;
use crate::ctl::apply::records::{node_mut, raise_generation};
use crate::ctl::event::{Event, GpuNoteKind};
use crate::ctl::owner::CHECKS;
use crate::ctl::state::{Node, State, is_out_of_service};
use gmodel::gpu_check::{CheckReport, GpuChecks};
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use gmodel::node::GpuEntry;
use gmodel::run::NodeShare;
use gmodel::{NodeId, Timestamp};
use gsched::snapshot::CutRecord;
use std::sync::Arc;

pub(crate) fn apply(state: &mut State, event: &Event) {
    match event {
        Event::GpuOrdered {
            node,
            uuid,
            what,
            by,
            at,
        } => {
            count(state, event);
            ordered(state, *node, uuid, what);
            note_cut(node_mut(state, *node), uuid, what, *at);
            check_ordered(node_mut(state, *node), uuid, what, by);
            raise_generation(state, *node);
            watch(state, *node);
        }
        Event::GpuOrderEnded { node, done, .. } => {
            order_ended(state, *node, done);
            raise_generation(state, *node);
            watch(state, *node);
        }
        Event::GpuNoted {
            node, uuid, kind, ..
        } => {
            count(state, event);
            noted(state, *node, uuid, *kind);
            match kind {
                GpuNoteKind::Stopped => check_stopped(node_mut(state, *node), uuid),
                // The GPU's orders were dropped with it.
                GpuNoteKind::Left | GpuNoteKind::Forgotten => {
                    raise_generation(state, *node);
                    forget_what_fits(state);
                }
                _ => {}
            }
        }
        Event::GpuChecked {
            node,
            uuid,
            number,
            gave_way_to,
            report,
            at,
        } => {
            checked(
                node_mut(state, *node),
                uuid,
                *number,
                gave_way_to.is_some(),
                report,
                *at,
            );
            // The next GPU in turn need not wait.
            state.memo.next_check_look = *at;
            raise_generation(state, *node);
            watch(state, *node);
        }
        Event::GpuJudged {
            node,
            uuid,
            check,
            odd,
            ..
        } => {
            change(node_mut(state, *node), uuid, |checks| {
                checks.judge(check, odd)
            });
        }
        other => unreachable!("{other:?} is not of a GPU"),
    }
}

/// The result of a check, or none if the check gave way to a run.
fn checked(
    node: &mut Node,
    uuid: &str,
    number: u64,
    gave_way: bool,
    report: &CheckReport,
    at: Timestamp,
) {
    node.gpu_work.orders.retain(|order| order.number != number);
    if !gave_way {
        change(node, uuid, |checks| checks.take(report, at));
    }
}

/// An operator's return, and a quarantine by the checks, are marked in the GPU's check record.
fn check_ordered(node: &mut Node, uuid: &str, what: &GpuAction, by: &str) {
    match what {
        GpuAction::Return => change(node, uuid, GpuChecks::forgive),
        GpuAction::Quarantine { .. } if by == CHECKS => {
            change(node, uuid, |checks| checks.ordered_out = true)
        }
        _ => {}
    }
}

/// The history has said once that the GPU's removal waits for the breaker.
fn check_stopped(node: &mut Node, uuid: &str) {
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

fn change(node: &mut Node, uuid: &str, change: impl FnOnce(&mut GpuChecks)) {
    if let Some(gpu) = Arc::make_mut(&mut node.gpus)
        .iter_mut()
        .find(|gpu| gpu.info.uuid == uuid)
    {
        change(Arc::make_mut(gpu.checks.get_or_insert_default()));
    }
}

/// The share's GPUs are idle from now.
pub(crate) fn note_freed(state: &mut State, id: NodeId, share: &NodeShare, at: Timestamp) {
    let Some(idle_after_secs) = state
        .config
        .diagnostics
        .as_ref()
        .map(|terms| terms.idle_after_secs)
    else {
        return;
    };
    if let Some(node) = state.nodes.get_mut(id) {
        node.gpu_work
            .freed
            .extend(share.gpus.slots().map(|slot| (slot, at)));
    }
    state.memo.next_check_look = state
        .memo
        .next_check_look
        .min(at.plus_secs(i64::from(idle_after_secs)));
}

/// The order's number is that of its event. It replaces an older order for the same GPU.
fn ordered(state: &mut State, node: NodeId, uuid: &str, what: &GpuAction) {
    let number = state.seq.0;
    if let Some(node) = state.nodes.get_mut(node) {
        node.gpu_work.orders.retain(|order| order.uuid != uuid);
        let order = GpuOrder {
            number,
            uuid: uuid.to_owned(),
            what: what.clone(),
        };
        // A check keeps the earlier refusal.
        if !matches!(order.what, GpuAction::Check(_)) {
            refuse(node, uuid, String::new());
        }
        node.gpu_work.orders.push(order);
    }
}

fn order_ended(state: &mut State, node: NodeId, done: &GpuOrderDone) {
    if let Some(node) = state.nodes.get_mut(node) {
        node.gpu_work
            .orders
            .retain(|order| order.number != done.number);
        refuse(node, &done.uuid, done.error.clone());
    }
}

fn refuse(node: &mut Node, uuid: &str, why: String) {
    if let Some(gpu) = Arc::make_mut(&mut node.gpus)
        .iter_mut()
        .find(|gpu| gpu.info.uuid == uuid)
    {
        gpu.refused = why;
    }
}

/// Updates the index of GPUs that no node has.
fn noted(state: &mut State, node: NodeId, uuid: &str, kind: GpuNoteKind) {
    match kind {
        GpuNoteKind::Gone => drop(state.index.gone.insert(uuid.to_owned(), node)),
        GpuNoteKind::Appeared | GpuNoteKind::Moved => drop(state.index.gone.remove(uuid)),
        // A silent node it left does not count it as present any more.
        GpuNoteKind::Left => {
            forget_entry(state, node, uuid, |gpu| {
                (gpu.present, gpu.info.standing) = (false, None)
            });
        }
        GpuNoteKind::Forgotten => {
            forget_entry(state, node, uuid, |_| {});
            // A sick GPU that is put in again stays sick.
            if !state.gpu(node, uuid).is_some_and(is_out_of_service) {
                state.index.gone.remove(uuid);
            }
        }
        _ => {}
    }
}

fn forget_entry(state: &mut State, node: NodeId, uuid: &str, change: impl FnOnce(&mut GpuEntry)) {
    let Some(node) = state.nodes.get_mut(node) else {
        return;
    };
    node.gpu_work.orders.retain(|order| order.uuid != uuid);
    if let Some(gpu) = Arc::make_mut(&mut node.gpus)
        .iter_mut()
        .find(|gpu| gpu.info.uuid == uuid)
    {
        gpu.forgotten = true;
        change(gpu);
    }
}

/// Counts a GPU that went out of service automatically, for the breaker.
fn count(state: &mut State, event: &Event) {
    if let Some(line) = event.of_gpu().filter(|line| line.automatic) {
        state.automatic.gpus.insert((line.at, line.node, line.uuid));
    }
}

/// Records a GPU's newest MIG cut, and drops the records of GPUs that the node no longer has.
fn note_cut(node: &mut Node, uuid: &str, what: &GpuAction, at: Timestamp) {
    if let GpuAction::Cut { profiles } = what {
        let gpus = &node.gpus;
        node.gpu_work
            .cuts
            .retain(|uuid, _| gpus.iter().any(|gpu| gpu.info.uuid == *uuid));
        node.gpu_work.cuts.insert(
            uuid.to_owned(),
            CutRecord {
                at,
                profiles: profiles.clone(),
            },
        );
    }
}

/// Drops orders to cut or check GPUs that an adopted run holds.
pub(crate) fn drop_orders_on(node: &mut Node, share: &NodeShare) {
    let held: Vec<String> = share
        .gpus
        .slots()
        .filter_map(|slot| node.board_at(slot).map(str::to_owned))
        .collect();
    let concerns = |order: &GpuOrder| match &order.what {
        GpuAction::Cut { .. } => held.contains(&order.uuid),
        GpuAction::Check(program) => held.contains(&order.uuid) || held.contains(&program.peer),
        _ => false,
    };
    node.gpu_work.orders.retain(|order| !concerns(order));
}
