//! What happens to each GPU, read from the difference between two inventories of its node: it appeared, is
//! sick, is noted, is well, is gone. A GPU that moves takes its history along. Missing GPUs: `gpu/missing.rs`.

use crate::ctl::event::{Event, GpuNoteKind};
use crate::ctl::gpu;
use crate::ctl::state::{Node, State};
use crate::ctl::tx::Tx;
use gmodel::NodeId;
use gmodel::gpu_health::RepairStage;
use gmodel::gpu_order::MAX_TEXT_BYTES;
use gmodel::node::{GpuInfo, Inventory};
use std::collections::BTreeMap;

/// A line of the history.
struct HistoryNote {
    uuid: String,
    kind: GpuNoteKind,
    text: String,
    automatic: bool,
}

/// Records what is new in this inventory, before it is applied. Returns the UUIDs of GPUs that newly wait for
/// a repair step.
pub(crate) fn compare(tx: &mut Tx, id: NodeId, inventory: &Inventory) -> Vec<String> {
    let Some(node) = tx.node(id) else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    let mut came = Vec::new();
    let mut silent = None;
    let mut wanting = Vec::new();
    for info in inventory.gpus.iter().filter(|info| info.slice.is_none()) {
        let known = node.gpus.iter().find(|gpu| gpu.info.uuid == info.uuid);
        match known.filter(|gpu| gpu.present) {
            Some(gpu) => {
                let before = notes.len();
                differences(&gpu.info, info, &mut notes);
                let fell_sick = notes[before..]
                    .iter_mut()
                    .filter(|note| note.kind == GpuNoteKind::Sick && gpu.info.fault.is_empty());
                fell_sick.for_each(|note| {
                    note.text += &gpu::mig::holder(tx.state, node, &info.uuid)
                        .map_or_else(String::new, |run| format!("; run {run} was on it"))
                });
            }
            None => {
                let silent = silent.get_or_insert_with(|| gpu::missing::silent_nodes(tx.state));
                let from = gpu::missing::was_in(tx.state, silent, id, &info.uuid);
                notes.push(appeared(tx.state, info, from));
                differences(
                    &GpuInfo {
                        fault: String::new(),
                        ..info.clone()
                    },
                    info,
                    &mut notes,
                );
                came.extend(from.map(|from| (info.uuid.clone(), from)));
            }
        }
        if !info.wants.is_empty() && known.is_none_or(|gpu| gpu.info.wants != info.wants) {
            wanting.push(info.uuid.clone());
        }
    }
    let went = gone(tx.state, node, inventory, &mut notes);
    emit_notes(tx, id, notes);
    for (uuid, from) in came {
        gpu::missing::left(tx, uuid, from, id);
    }
    for (uuid, to) in went {
        gpu::missing::left(tx, uuid, id, to);
    }
    wanting
}

/// Notes the GPUs that the node no longer has. Returns those that another node has now, with that node.
fn gone(
    state: &State,
    node: &Node,
    inventory: &Inventory,
    notes: &mut Vec<HistoryNote>,
) -> Vec<(String, NodeId)> {
    let here: BTreeMap<&str, ()> = inventory
        .gpus
        .iter()
        .map(|info| (info.uuid.as_str(), ()))
        .collect();
    let mut went = Vec::new();
    for gpu in node.gpus.iter().filter(|gpu| {
        gpu.present && gpu.info.slice.is_none() && !here.contains_key(gpu.info.uuid.as_str())
    }) {
        if let Some(to) = gpu::missing::is_in(state, node.id, &gpu.info.uuid) {
            went.push((gpu.info.uuid.clone(), to));
            continue;
        }
        let text = if gpu.info.fault.is_empty() {
            String::new()
        } else {
            format!("it was out of service: {}", gpu.info.fault)
        };
        notes.push(HistoryNote {
            uuid: gpu.info.uuid.clone(),
            kind: GpuNoteKind::Gone,
            text,
            automatic: false,
        });
    }
    went
}

fn emit_notes(tx: &mut Tx, id: NodeId, notes: Vec<HistoryNote>) {
    for HistoryNote {
        uuid,
        kind,
        mut text,
        automatic,
    } in notes
    {
        if text.len() > MAX_TEXT_BYTES {
            text = text.chars().take(MAX_TEXT_BYTES / 4).collect();
        }
        tx.emit(Event::GpuNoted {
            node: id,
            uuid,
            kind,
            text,
            automatic,
            at: tx.now,
        });
    }
}

fn appeared(state: &State, info: &GpuInfo, from: Option<NodeId>) -> HistoryNote {
    let from = from.filter(|from| gpu::missing::was_sick(state, *from, &info.uuid));
    let name = from
        .and_then(|from| state.node(from))
        .map(|node| node.name.as_str());
    let (kind, text) = match name {
        Some(from) => (
            GpuNoteKind::Moved,
            format!(
                "{}, index {}; it left {from} out of service",
                info.gpu_type, info.index
            ),
        ),
        None => (
            GpuNoteKind::Appeared,
            format!("{}, index {}", info.gpu_type, info.index),
        ),
    };
    HistoryNote {
        uuid: info.uuid.clone(),
        kind,
        text,
        automatic: false,
    }
}

fn differences(old: &GpuInfo, new: &GpuInfo, notes: &mut Vec<HistoryNote>) {
    let mut note = |kind: GpuNoteKind, text: &str, automatic: bool| {
        notes.push(HistoryNote {
            uuid: new.uuid.clone(),
            kind,
            text: text.to_owned(),
            automatic,
        });
    };
    let stage = |info: &GpuInfo| {
        info.standing
            .as_ref()
            .map_or(RepairStage::InService, |standing| standing.stage)
    };
    let held = new.standing.as_ref().is_some_and(|standing| standing.held);
    for text in new.notes.iter().filter(|text| !old.notes.contains(text)) {
        note(GpuNoteKind::Noted, text, false);
    }
    if stage(old) != stage(new) {
        match stage(new) {
            RepairStage::Resetting => note(GpuNoteKind::Reset, &new.fault, false),
            RepairStage::Booting => note(GpuNoteKind::Boot, &new.fault, false),
            RepairStage::BurningIn => note(GpuNoteKind::BurnIn, &new.fault, false),
            RepairStage::Marked => note(GpuNoteKind::ToBeReplaced, &new.fault, false),
            RepairStage::InService | RepairStage::Out => {}
        }
    }
    match (old.fault.is_empty(), new.fault.is_empty()) {
        (false, true) => note(GpuNoteKind::Well, &format!("it was: {}", old.fault), false),
        // The node took it out of service by itself: the breaker counts it.
        (_, false) if old.fault != new.fault && stage(new) != RepairStage::Marked => {
            note(
                GpuNoteKind::Sick,
                &new.fault,
                stage(old) == RepairStage::InService && stage(new) == RepairStage::Out && !held,
            );
        }
        _ => {}
    }
    if old.divided != new.divided {
        note(
            GpuNoteKind::Cut,
            if new.divided {
                "cut into slices"
            } else {
                "whole again"
            },
            false,
        );
    }
}
