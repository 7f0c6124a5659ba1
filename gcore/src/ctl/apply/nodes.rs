//! What the events of nodes change. Infallible, without clock or chance.

use crate::ctl::apply::index::watch;
use crate::ctl::apply::memos::forget_what_fits;
use crate::ctl::apply::records::{lift, node_mut};
use crate::ctl::event::Event;
use crate::ctl::node;
use crate::ctl::state::{
    CertificateRenewal, FenceFailure, Fencing, Node, SetFeatures, State, Strike,
};
use gmodel::node::{GpuEntry, Inventory, Link};
use gmodel::{GpuSlot, JobId, NodeId, Timestamp};
use std::sync::Arc;

pub(crate) fn apply(state: &mut State, event: &Event) {
    match event {
        Event::NodeJoined {
            node,
            name,
            role,
            at,
        } => {
            let joined = Node {
                id: *node,
                name: name.clone(),
                role: *role,
                joined: *at,
                link_since: *at,
                ..Node::default()
            };
            state.next_node = state.next_node.max(node.0 + 1);
            state.index.node_names.insert(name.clone(), *node);
            state.nodes.insert(*node, joined);
            forget_what_fits(state);
        }
        Event::NodeAdminChanged { node, admin, .. } => {
            node_mut(state, *node).certificate.admin = *admin
        }
        Event::NodeEpochRaised { node, epoch, .. } => {
            let generation = state.seq.0;
            let one = node_mut(state, *node);
            (one.certificate.epoch, one.certificate.renewed) = (*epoch, None);
            // Makes the node's connection check its certificate again.
            one.generation = generation;
        }
        Event::NodeRenewed { node, from, at, .. } => {
            let one = node_mut(state, *node);
            let count = one
                .certificate
                .renewed
                .as_ref()
                .map_or(0, |before| before.count)
                .saturating_add(1);
            one.certificate.renewed = Some(Box::new(CertificateRenewal {
                at: *at,
                from: from.clone(),
                count,
            }));
        }
        Event::NodeHello { node, life, at } => {
            let window = state.adoption.as_ref().map_or(0, |window| window.number);
            let one = node_mut(state, *node);
            one.adopted_in = window;
            if *one.life != *life {
                one.well_since = *at;
            }
            // A boot may undo MIG cuts.
            if one.life.boot != life.boot {
                one.gpu_work.cuts.clear();
            }
            one.life = Arc::new(life.clone());
            one.link = Link::Up;
            one.link_since = *at;
            one.fencing = None;
            watch(state, *node);
        }
        Event::NodeInventory {
            node, inventory, ..
        } => {
            take_inventory(node_mut(state, *node), inventory);
            forget_what_fits(state);
            watch(state, *node);
        }
        Event::NodeFeaturesSet { node, set, .. } => {
            features_set(node_mut(state, *node), set.as_deref());
            forget_what_fits(state);
        }
        Event::NodeLinkChanged { node, link, at } => {
            let one = node_mut(state, *node);
            one.link = *link;
            one.link_since = *at;
            watch(state, *node);
        }
        Event::NodeObeyed { node, generation } => {
            let node = node_mut(state, *node);
            node.obeyed = node.obeyed.max(*generation);
        }
        Event::NodeDrained {
            node,
            mark,
            automatic,
        } => {
            if *automatic {
                state.automatic.drains.insert((mark.since, *node));
            }
            node_mut(state, *node).drains.push(mark.clone());
        }
        Event::NodeDrainDue { node, due } => {
            node_mut(state, *node).ordered.empty_by = Some(*due);
            watch(state, *node);
        }
        Event::NodeResumed {
            node, owner, at, ..
        } => {
            let one = node_mut(state, *node);
            lift(&mut one.drains, owner.as_deref());
            if one.drains.is_empty() {
                one.ordered.empty_by = None;
                one.strikes.clear();
                one.well_since = *at;
            }
            watch(state, *node);
        }
        Event::NodeStruck { node, strike } => struck(state, *node, strike),
        Event::NodeStrikesCleared { node } => node_mut(state, *node).strikes.clear(),
        Event::NodeFenceAsked {
            node,
            lost,
            automatic,
            at,
        } => {
            if *automatic {
                state.automatic.drains.insert((*at, *node));
            }
            let number = state.seq.0;
            let fencing = node_mut(state, *node).fencing.get_or_insert_default();
            let attempts = fencing.attempts + 1;
            *fencing = Fencing {
                lost: lost.clone(),
                number,
                attempts,
                asked: *at,
                failed: None,
            };
            watch(state, *node);
        }
        Event::NodeFenceFailed {
            node,
            lost,
            text,
            retry,
            at,
        } => {
            let fencing = node_mut(state, *node).fencing.get_or_insert_default();
            fencing.lost.clone_from(lost);
            fencing.asked = *at;
            fencing.failed = Some(FenceFailure {
                text: text.clone(),
                retry: *retry,
            });
            watch(state, *node);
        }
        Event::NodeFenced { node, .. } => {
            node_mut(state, *node).fencing = None;
            watch(state, *node);
        }
        Event::NodeRemoved { node, .. } => {
            if let Some(node) = state.nodes.remove(*node) {
                state.index.node_names.remove(&node.name);
                state.index.watched.remove(&node.id);
                state.index.gone.retain(|_, from| *from != node.id);
            }
            forget_what_fits(state);
        }
        other => unreachable!("{other:?} is not of a node"),
    }
}

/// No node has reported to a controller that starts.
pub(crate) fn unheard(state: &mut State, at: Timestamp) {
    let up: Vec<NodeId> = state
        .nodes
        .values()
        .filter(|node| node.link == Link::Up)
        .map(|node| node.id)
        .collect();
    for id in up {
        let node = node_mut(state, id);
        (node.link, node.link_since) = (Link::Silent, at);
        state.index.watched.insert(id);
    }
}

/// A GPU keeps its slot by UUID; a missing GPU's slot stays, as absent.
fn take_inventory(node: &mut Node, inventory: &Inventory) {
    let gpus = Arc::make_mut(&mut node.gpus);
    for gpu in gpus.iter_mut() {
        gpu.present = false;
    }
    for info in &inventory.gpus {
        match gpus.iter_mut().find(|gpu| gpu.info.uuid == info.uuid) {
            Some(known) => {
                if known.info.wants != info.wants {
                    known.refused.clear();
                }
                known.info = info.clone();
                known.present = true;
                known.forgotten = false;
            }
            None => {
                let slot = GpuSlot(u16::try_from(gpus.len()).expect("slots are bounded"));
                gpus.push(GpuEntry {
                    slot,
                    info: info.clone(),
                    present: true,
                    forgotten: false,
                    refused: String::new(),
                    checks: None,
                });
            }
        }
    }
    let mut inventory = Inventory {
        gpus: Vec::new(),
        ..inventory.clone()
    };
    // Its file was changed: what was set counts no more.
    let set = node.ordered.features.take();
    node.ordered.features = set.filter(|set| set.reported == inventory.features);
    if let Some(set) = &node.ordered.features {
        inventory.features.clone_from(&set.active);
    }
    node.inventory = Arc::new(inventory);
}

fn features_set(node: &mut Node, set: Option<&SetFeatures>) {
    let features = match set {
        Some(set) => set.active.clone(),
        None => node.features_reported().to_vec(),
    };
    node.ordered.features = set.cloned().map(Box::new);
    Arc::make_mut(&mut node.inventory).features = features;
}

/// Adds a strike; the oldest are dropped.
pub(crate) fn struck(state: &mut State, id: NodeId, strike: &Strike) {
    let Some(node) = state.nodes.get_mut(id) else {
        return;
    };
    node.strikes.push(strike.clone());
    let over = node.strikes.len().saturating_sub(MAX_STRIKES);
    node.strikes.drain(..over);
    index_pause(state, id);
}

/// The planner runs again when the node's pause is over.
pub(crate) fn index_pause(state: &mut State, id: NodeId) {
    let until = state
        .node(id)
        .and_then(|node| node::pause::paused(node, Timestamp(i64::MIN)))
        .map(|(until, _)| until);
    state.index.not_yet.extend(until.map(|at| (at, JobId(0))));
}

/// Most strikes that a node keeps.
const MAX_STRIKES: usize = 32;
