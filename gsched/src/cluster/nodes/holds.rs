//! What planned starts hold of nodes.

use super::Cluster;
use crate::cluster::node_class::NodeClassId;
use crate::cluster::node_state::{Hold, NodeState};
use crate::cluster::picked::PickedNodes;
use crate::cluster::timeline::Need;
use gpolicy::window::Window;
use std::ops::Range;

/// What is held, each with the nodes that follow each other and hold the same.
pub(crate) type Holds = Vec<(Hold, Range<usize>)>;

impl Cluster {
    /// Holds what a job needs of the picked nodes for a time to come; `None` when it is not there. Nodes of one state
    /// that serve the same part have one state again.
    pub(crate) fn hold<'n>(
        &mut self,
        picked: &PickedNodes,
        need: impl Fn(usize, NodeClassId) -> Option<&'n Need>,
        during: Window,
    ) -> Option<Holds> {
        let Window { from, to } = during;
        debug_assert!(self.undo.is_none(), "a trial plans no starts");
        let mut holds: Holds = Vec::with_capacity(picked.len());
        let mut part = None;
        for (nodes, of) in picked {
            if part.replace(*of) != Some(*of) {
                self.held.begin();
            }
            let mut at = nodes.start;
            while at < nodes.end {
                let stretch = at..self.end_of_stretch(at).min(nodes.end);
                at = stretch.end;
                let state = self.current.ids[stretch.start];
                let (made, hold) = match self.held.get(state) {
                    Some(known) => known,
                    None => {
                        let need = need(*of, self.nodes[stretch.start].node_class)?;
                        let take = |state: &mut NodeState| state.hold(need, from, to);
                        let made = self.states.add_changed(state, stretch.len(), take)?;
                        self.held.set(state, made);
                        made
                    }
                };
                self.states.change(state, made, stretch.len());
                self.place_state(stretch.clone(), made);
                match holds.last_mut() {
                    Some((same, last)) if last.end == stretch.start && *same == hold => {
                        last.end = stretch.end
                    }
                    _ => holds.push((hold, stretch)),
                }
            }
        }
        Some(holds)
    }
}
