//! What differs between two snapshots.

use gmodel::{NodeId, RunId};
use std::collections::BTreeSet;

/// What differs between two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Runs that came, went, or are otherwise than before.
    pub runs: BTreeSet<RunId>,
    /// Nodes that are otherwise than before, with what is free on them.
    pub nodes: BTreeSet<NodeId>,
    /// Those of them that are so only in what is free there.
    pub only_free: BTreeSet<NodeId>,
    /// Places among the pending that changed their entry or lost it.
    pub pending: BTreeSet<usize>,
    /// It is not known which places.
    pub all_pending: bool,
    /// Nodes came or went, or the configuration is another.
    pub everything: bool,
}

impl Changes {
    /// The runs that differ; `None`: any may.
    pub fn known_runs(&self) -> Option<&BTreeSet<RunId>> {
        (!self.everything).then_some(&self.runs)
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
            && self.nodes.is_empty()
            && self.pending.is_empty()
            && !self.all_pending
            && !self.everything
    }
}
