//! Which nodes have new orders: the core thread marks them, each node's connection waits for its own mark.
//!
//! Marks coalesce: a slow connection finds one, however often its node changed, and sends the newest orders.

use gmodel::NodeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

#[derive(Clone, Debug, Default)]
pub struct NodeChanges {
    waiting: Arc<Mutex<BTreeMap<NodeId, Arc<Notify>>>>,
}

impl NodeChanges {
    /// The mark for a new connection of a node; the previous connection's mark is no longer set.
    pub fn subscribe(&self, node: NodeId) -> Arc<Notify> {
        let mark = Arc::new(Notify::new());
        self.lock().insert(node, mark.clone());
        mark
    }

    /// Ends a subscription, unless a newer connection of the node has taken its place.
    pub fn unsubscribe(&self, node: NodeId, mark: &Arc<Notify>) {
        let mut waiting = self.lock();
        if waiting
            .get(&node)
            .is_some_and(|newest| Arc::ptr_eq(newest, mark))
        {
            waiting.remove(&node);
        }
    }

    pub fn notify(&self, nodes: &[NodeId]) {
        if nodes.is_empty() {
            return;
        }
        let waiting = self.lock();
        for mark in nodes.iter().filter_map(|node| waiting.get(node)) {
            mark.notify_one();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, Arc<Notify>>> {
        self.waiting.lock().expect("no panic while held")
    }
}
