//! Bringing the nodes up to a snapshot: what the last pass took is undone, and what changed since is worked out anew.

use super::{Cluster, HeldShare, KnownRun, NodeTrack, SeenNode, are_same, end_of};
use crate::changes::Changes;
use crate::cluster::node_state::NodeState;
use crate::cluster::node_states::{NodeStateId, NodeStates};
use crate::job::usual::UsualJobs;
use crate::snapshot::{RunningRun, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::RunId;

impl Cluster {
    /// Undoes what the last pass took, and brings in what changed since; `changes` where that is known.
    pub fn sync(&mut self, snapshot: &Snapshot, changes: Option<&Changes>) {
        self.now = snapshot.now;
        self.synced += 1;
        self.current.ids.clone_from(&self.base.ids);
        std::mem::take(&mut self.filed)
            .into_iter()
            .for_each(|at| self.file(at));
        self.states.begin();
        let mut dirty = FixedBitSet::with_capacity(snapshot.nodes.len());
        let changes = changes
            .filter(|changes| !changes.everything && self.nodes.len() == snapshot.nodes.len());
        match changes {
            Some(changes) => self.sync_changes(snapshot, changes, &mut dirty),
            None => self.sync_all(snapshot, &mut dirty),
        }
        let due = self.states.due(self.now);
        if !due.is_empty() {
            dirty.extend((0..self.nodes.len()).filter(|at| due.contains(&self.base.ids[*at])));
        }
        self.work_out(snapshot, &dirty);
    }

    fn sync_changes(&mut self, snapshot: &Snapshot, changes: &Changes, dirty: &mut FixedBitSet) {
        let stale = std::mem::take(&mut self.stale);
        let mut some: FixedBitSet = stale.iter().copied().collect();
        let only_free = changes
            .only_free
            .iter()
            .filter_map(|node| self.place(*node))
            .filter(|at| !some.contains(*at));
        let only_free: FixedBitSet = only_free.collect();
        some.extend(changes.nodes.iter().filter_map(|node| self.place(*node)));
        self.compare_nodes(snapshot, some.ones(), dirty, |at| only_free.contains(at));
        dirty.extend(stale);
        for run in &changes.runs {
            self.sync_run(*run, snapshot, dirty);
        }
    }

    fn sync_all(&mut self, snapshot: &Snapshot, dirty: &mut FixedBitSet) {
        let stale = std::mem::take(&mut self.stale);
        let are_same = self.nodes.len() == snapshot.nodes.len()
            && self
                .nodes
                .iter()
                .zip(&snapshot.nodes)
                .all(|(track, node)| track.id == node.id);
        if are_same {
            dirty.extend(stale);
        } else {
            self.make_again(snapshot);
            dirty.insert_range(..);
        }
        self.compare_nodes(snapshot, 0..snapshot.nodes.len(), dirty, |_| false);
        self.sync_runs(snapshot, dirty);
    }

    /// The cluster has other nodes: nothing is known of any.
    fn make_again(&mut self, snapshot: &Snapshot) {
        self.states = NodeStates::default();
        self.states.begin();
        self.nodes = snapshot
            .nodes
            .iter()
            .map(|node| NodeTrack::new(node, &mut self.node_classes))
            .collect();
        self.base.ids = self
            .nodes
            .iter()
            .map(|track| self.states.keep(NodeState::default(), track.node_class))
            .collect();
        self.current.ids.clone_from(&self.base.ids);
        self.base.breaks = FixedBitSet::with_capacity(self.nodes.len());
        self.runs.clear();
        (self.leaving, self.suspended) = (0, 0);
        self.usual = UsualJobs::default();
        self.by_free.clear();
        self.by_free_cpus.clear();
        self.generation += 1;
    }

    /// Works out the states of nodes that changed.
    fn work_out(&mut self, snapshot: &Snapshot, dirty: &FixedBitSet) {
        self.freed.clear();
        let mut before = None;
        for at in dirty.ones() {
            // The nodes of a run mostly follow each other.
            let base = self.base_like(before, at, snapshot);
            let had = self.states.get(self.base.ids[at]);
            if !had.has_now_all_of(self.states.get(base)) {
                match self.freed.last_mut() {
                    Some(last) if last.end == at => last.end += 1,
                    _ => self.freed.push(at..at + 1),
                }
            }
            self.states
                .leave(std::mem::replace(&mut self.base.ids[at], base));
            self.current.ids[at] = base;
            self.file(at);
            before = Some(at);
        }
        self.filed.clear();
        for at in dirty.ones().flat_map(|at| [at, at + 1]) {
            self.base.note_break(at);
        }
        self.current.breaks.clone_from(&self.base.breaks);
    }

    /// The state of a node before the pass: that of the one worked out before it, where both are alike.
    fn base_like(&mut self, before: Option<usize>, at: usize, snapshot: &Snapshot) -> NodeStateId {
        if let Some(before) = before.filter(|before| self.is_alike(*before, at, snapshot)) {
            return self.states.keep_again(self.base.ids[before]);
        }
        let track = &self.nodes[at];
        let runs = track.held.iter().map(|held| (held.end, &held.share));
        let node_class = &self.node_classes.list[track.node_class as usize];
        let state = NodeState::new(node_class, &snapshot.nodes[at], self.now, runs);
        self.states.keep(state, track.node_class)
    }

    /// Whether two nodes have the same free, now and later.
    fn is_alike(&self, one: usize, other: usize, snapshot: &Snapshot) -> bool {
        let (a, b) = (&self.nodes[one], &self.nodes[other]);
        let (x, y) = (&snapshot.nodes[one], &snapshot.nodes[other]);
        let mut pairs = a.held.iter().zip(&b.held);
        a.node_class == b.node_class
            && a.held.len() == b.held.len()
            && (x.free_cpus, x.free_mem_bytes) == (y.free_cpus, y.free_mem_bytes)
            && are_same(&x.free_gpu_milli, &y.free_gpu_milli)
            && pairs.all(|(a, b)| {
                let (x, y) = (&a.share, &b.share);
                a.end == b.end
                    && (x.cpus, x.mem_bytes) == (y.cpus, y.mem_bytes)
                    && are_same(&x.gpus.0, &y.gpus.0)
            })
    }

    /// Looks which of some nodes are others than before in themselves.
    fn compare_nodes(
        &mut self,
        snapshot: &Snapshot,
        some: impl Iterator<Item = usize>,
        dirty: &mut FixedBitSet,
        only_free: impl Fn(usize) -> bool,
    ) {
        for at in some {
            let node = &snapshot.nodes[at];
            let track = &mut self.nodes[at];
            if only_free(at) {
                if !track.seen.is_as_free(node) {
                    track.seen.take_free(node);
                    dirty.insert(at);
                }
                continue;
            }
            if track.seen.is_as_free(node)
                && track.seen.has_same_gpus(node)
                && track.seen.is_as_told(node)
            {
                continue;
            }
            let node_class = self.node_classes.of(node);
            if track.node_class != node_class
                || !track.seen.is_as_told(node)
                || !track.seen.has_same_faults(node)
            {
                self.generation += 1;
                track.seen = SeenNode::of(node);
            }
            (track.node_class, track.up) = (node_class, node.unavailable.is_none());
            track.seen.take_free(node);
            dirty.insert(at);
        }
    }

    fn sync_run(&mut self, id: RunId, snapshot: &Snapshot, dirty: &mut FixedBitSet) {
        let run = snapshot
            .running
            .binary_search_by_key(&id, |run| run.run)
            .ok()
            .map(|at| &snapshot.running[at]);
        match (self.runs.binary_search_by_key(&id, |known| known.run), run) {
            (Ok(at), Some(run)) if self.runs[at].is(run) => {}
            (Ok(at), Some(run)) => {
                let old = self.runs.remove(at);
                self.forget(&old, dirty);
                let known = self.learn(run, snapshot, dirty);
                self.runs.insert(at, known);
            }
            (Ok(at), None) => {
                let old = self.runs.remove(at);
                self.forget(&old, dirty);
            }
            (Err(at), Some(run)) => {
                let known = self.learn(run, snapshot, dirty);
                self.runs.insert(at, known);
            }
            (Err(_), None) => {}
        }
    }

    /// Both lists are in the order of the runs.
    fn sync_runs(&mut self, snapshot: &Snapshot, dirty: &mut FixedBitSet) {
        let mut live: Vec<&RunningRun> = snapshot.running.iter().collect();
        if !live.is_sorted_by_key(|run| run.run) {
            live.sort_by_key(|run| run.run);
        }
        let same = self.runs.len() == live.len()
            && self
                .runs
                .iter()
                .zip(&live)
                .all(|(known, run)| known.is(run));
        if same {
            return;
        }
        let mut before = std::mem::take(&mut self.runs).into_iter().peekable();
        let mut runs = Vec::with_capacity(live.len());
        for run in live {
            while let Some(gone) = before.next_if(|known| known.run < run.run) {
                self.forget(&gone, dirty);
            }
            match before.next_if(|known| known.run == run.run) {
                Some(known) if known.is(run) => runs.push(known),
                known => {
                    if let Some(known) = known {
                        self.forget(&known, dirty);
                    }
                    runs.push(self.learn(run, snapshot, dirty));
                }
            }
        }
        before.for_each(|gone| self.forget(&gone, dirty));
        self.runs = runs;
    }

    fn forget(&mut self, known: &KnownRun, dirty: &mut FixedBitSet) {
        self.leaving -= usize::from(known.leaves);
        self.suspended -= usize::from(known.suspended);
        self.usual.run_goes(known.sort);
        for node in &known.nodes {
            if let Some(at) = self.place(*node) {
                self.nodes[at].held.retain(|held| held.run != known.run);
                dirty.insert(at);
            }
        }
    }

    pub(super) fn learn(
        &mut self,
        run: &RunningRun,
        snapshot: &Snapshot,
        dirty: &mut FixedBitSet,
    ) -> KnownRun {
        let end = end_of(run);
        for share in &run.shares {
            if let Some(at) = self.place(share.node) {
                self.nodes[at].held.push(HeldShare {
                    run: run.run,
                    end,
                    share: share.clone(),
                });
                dirty.insert(at);
            }
        }
        let (leaves, suspended) = (run.stops_by.is_some(), run.suspended.is_some());
        self.leaving += usize::from(leaves);
        self.suspended += usize::from(suspended);
        let nodes = run.shares.iter().map(|share| share.node).collect();
        let sort = self
            .usual
            .run_comes(&run.spec, snapshot, &self.node_classes);
        KnownRun {
            run: run.run,
            end,
            nodes,
            leaves,
            suspended,
            sort,
        }
    }
}
