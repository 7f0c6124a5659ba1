//! The inventory that a node reports: its GPUs keep their slots, and what differs from before is noted.

use crate::ctl::event::Event;
use crate::ctl::gpu;
use crate::ctl::tx::Tx;
use gmodel::NodeId;
use gmodel::node::Inventory;

/// Most GPUs that a node may report in its life: slots are never given up.
pub const MAX_GPU_SLOTS: usize = 4096;

pub(crate) fn take_inventory(tx: &mut Tx, id: NodeId, mut inventory: Inventory) {
    let Some(node) = tx.node(id) else {
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
    let mut rest = Inventory {
        gpus: Vec::new(),
        ..inventory.clone()
    };
    if rest.features == node.features_reported() {
        rest.features.clone_from(&node.inventory.features);
    }
    if !same_gpus || *node.inventory != rest {
        let wanting = gpu::history::compare(tx, id, &inventory);
        tx.emit(Event::NodeInventory {
            node: id,
            inventory,
            at: tx.now,
        });
        gpu::repair::look(tx, id);
        gpu::repair::say_stopped(tx, id, &wanting);
    }
}
