//! The nodes of a pass, kept from pass to pass: each with its node class, its node state, and its runs.
//!
//! `sync` compares with a new snapshot (all of it, or what is said to have changed) and works out anew only nodes that
//! did; what a pass takes is undone at the next from a copy. Nodes stand in bit sets by how many whole GPUs are free, so
//! a search passes over full ones.

use crate::cluster::node_class::{NodeClassId, NodeClasses};
use crate::cluster::node_state::{Hold, NodeState};
use crate::cluster::node_states::{ByNodeState, NodeStateId, NodeStates};
use crate::cluster::timeline::Need;
use crate::job::usual::{Sort, UsualJobs};
use crate::snapshot::{RunningRun, SchedNode, Snapshot, place_of_node};
use fixedbitset::FixedBitSet;
use gmodel::mig::MigBoard;
use gmodel::node::GpuEntry;
use gmodel::run::NodeShare;
use gmodel::{NodeId, RunId, Timestamp};
use gpolicy::pending_job::UNLIMITED_SECS;
use gpolicy::running_run::end_of;
use std::ops::Range;
use std::sync::Arc;

mod holds;
mod sync;
pub(crate) use holds::Holds;

/// All nodes of a cluster, in the order of the snapshot.
#[derive(Debug, Default)]
pub struct Cluster {
    pub now: Timestamp,
    pub node_classes: NodeClasses,
    pub nodes: Vec<NodeTrack>,
    states: NodeStates,
    /// What the planned start under way makes of node states, and holds of them.
    held: ByNodeState<(NodeStateId, Hold)>,
    /// What the trial under way changed; `None`: there is none.
    undo: Option<ClusterUndo>,
    /// Before this pass, and in it.
    base: StateOfNodes,
    current: StateOfNodes,
    /// By the number of whole GPUs that are free: the nodes with so many and a free CPU, without which nothing starts.
    pub by_free: Vec<FixedBitSet>,
    /// How many nodes have so many CPUs free, by that number.
    by_free_cpus: Vec<u32>,
    /// Nodes that this pass put into another set of these.
    filed: Vec<usize>,
    runs: Vec<KnownRun>,
    /// Nodes with other runs than when their state was worked out.
    stale: Vec<usize>,
    /// How many runs are being ended, and how many are suspended.
    pub leaving: usize,
    pub suspended: usize,
    pub(crate) usual: UsualJobs,
    /// Grows when nodes are added, removed, or change in what they have.
    pub generation: u64,
    /// Nodes on which the last `sync` found something free that was not.
    pub freed: Vec<Range<usize>>,
    /// How often `sync` was called.
    pub synced: u64,
}

/// The state of each node.
#[derive(Debug, Default)]
struct StateOfNodes {
    ids: Vec<NodeStateId>,
    /// Nodes with another state than the node before them.
    breaks: FixedBitSet,
}

/// What a trial changed of nodes: their states before, in the order of the changes, and which were filed.
#[derive(Debug, Default)]
struct ClusterUndo {
    states: Vec<(usize, NodeStateId)>,
    filed: Vec<usize>,
}

/// One node.
#[derive(Debug)]
pub struct NodeTrack {
    pub id: NodeId,
    pub node_class: NodeClassId,
    /// Takes new work.
    pub up: bool,
    bucket: Option<usize>,
    free_cpus: Option<u32>,
    held: Vec<HeldShare>,
    /// As the snapshot had it, to see what changes.
    seen: SeenNode,
}

#[derive(Debug)]
struct HeldShare {
    run: RunId,
    end: Timestamp,
    share: NodeShare,
}

#[derive(Debug, PartialEq, Eq)]
struct SeenNode {
    name: String,
    nvlink_domain: String,
    features: Vec<String>,
    free_cpus: u32,
    free_mem_bytes: u64,
    free_gpu_milli: Vec<u32>,
    gpus: Arc<Vec<GpuEntry>>,
    unavailable: Option<String>,
    boards: Arc<Vec<MigBoard>>,
}

#[derive(Debug)]
struct KnownRun {
    run: RunId,
    end: Timestamp,
    nodes: Vec<NodeId>,
    leaves: bool,
    suspended: bool,
    sort: Sort,
}

/// When a run that starts at a time with this limit ends at the latest.
pub fn end_after(from: Timestamp, limit_secs: Option<u32>) -> Timestamp {
    from.plus_secs(i64::from(limit_secs.unwrap_or(UNLIMITED_SECS).max(1)))
}

impl Cluster {
    /// Counts how many nodes have each node state, which is kept up from then on in the pass: for `states_in_use`.
    pub(crate) fn count_rooms(&mut self) {
        if !self.states.are_counted() {
            let mut states = std::mem::take(&mut self.states);
            states.count(
                self.stretches()
                    .map(|nodes| (self.current.ids[nodes.start], nodes.len())),
            );
            self.states = states;
        }
    }

    pub(crate) fn knows(&self, run: RunId) -> bool {
        self.runs
            .binary_search_by_key(&run, |known| known.run)
            .is_ok()
    }

    /// A run ends at another time than was planned with. Its nodes are worked out anew at the next `sync`.
    pub(crate) fn expect_again(&mut self, run: RunId, end: Timestamp) {
        let Ok(at) = self.runs.binary_search_by_key(&run, |known| known.run) else {
            return;
        };
        if self.runs[at].end == end {
            return;
        }
        self.runs[at].end = end;
        for node in self.runs[at].nodes.clone() {
            if let Some(at) = self.place(node) {
                self.nodes[at]
                    .held
                    .iter_mut()
                    .filter(|held| held.run == run)
                    .for_each(|held| held.end = end);
                self.stale.push(at);
            }
        }
    }

    /// A run that a pass started is there now: its node state is taken already.
    pub(crate) fn meet(&mut self, run: &RunningRun, snapshot: &Snapshot) {
        let mut dirty = FixedBitSet::with_capacity(self.nodes.len());
        let known = self.learn(run, snapshot, &mut dirty);
        self.stale.extend(dirty.ones());
        let at = self.runs.partition_point(|one| one.run < run.run);
        self.runs.insert(at, known);
    }

    /// A run is over: what it held is free. Its nodes, and what it held of them.
    pub(crate) fn part_with(&mut self, run: RunId, now: Timestamp) -> (Vec<usize>, Vec<NodeShare>) {
        let Ok(at) = self.runs.binary_search_by_key(&run, |known| known.run) else {
            return Default::default();
        };
        let known = self.runs.remove(at);
        self.leaving -= usize::from(known.leaves);
        self.suspended -= usize::from(known.suspended);
        self.usual.run_goes(known.sort);
        let places: Vec<usize> = known
            .nodes
            .iter()
            .filter_map(|node| self.place(*node))
            .collect();
        let mut shares = Vec::with_capacity(places.len());
        for at in &places {
            let mut state = self.state(*at).clone();
            let track = &mut self.nodes[*at];
            let node_class = &self.node_classes.list[track.node_class as usize];
            for held in track.held.iter().filter(|held| held.run == run) {
                state.leave(node_class, &held.share, now, held.end);
            }
            shares.extend(
                track
                    .held
                    .extract_if(.., |held| held.run == run)
                    .map(|held| held.share),
            );
            *self.touch(*at) = state;
            self.file(*at);
            self.stale.push(*at);
        }
        (places, shares)
    }

    /// Sorts the runs anew after node classes or partitions changed. The queue enters its jobs again.
    pub(crate) fn sort_again(&mut self, snapshot: &Snapshot) {
        self.usual = UsualJobs::default();
        for run in &snapshot.running {
            let Ok(at) = self.runs.binary_search_by_key(&run.run, |known| known.run) else {
                continue;
            };
            self.runs[at].sort = self
                .usual
                .run_comes(&run.spec, snapshot, &self.node_classes);
        }
    }

    /// Nodes that a snapshot has otherwise are looked at again by the next `sync`.
    pub(crate) fn look_again(&mut self, nodes: impl Iterator<Item = NodeId>) {
        let places: Vec<usize> = nodes.filter_map(|node| self.place(node)).collect();
        self.stale.extend(places);
    }

    /// Whether a node has as much free beside its known runs as a snapshot says.
    pub(crate) fn agrees(&self, at: usize, node: &SchedNode) -> bool {
        let track = &self.nodes[at];
        let cpus: u64 = track
            .held
            .iter()
            .map(|held| u64::from(held.share.cpus))
            .sum();
        let grants = track.held.iter().flat_map(|held| &held.share.gpus.0);
        let milli: u64 = grants
            .map(|grant| u64::from(grant.part.of_slot_milli()))
            .sum();
        let node_class = &self.node_classes.list[track.node_class as usize];
        let usable = node.gpus.iter().filter(|gpu| gpu.usable()).count() as u64 * 1000;
        let free: u64 = node
            .free_gpu_milli
            .iter()
            .map(|milli| u64::from(*milli))
            .sum();
        track.up == node.unavailable.is_none()
            && node_class.cpus == node.cpus
            && u64::from(node_class.all.all_gpus()) * 1000 == usable
            && cpus + u64::from(node.free_cpus) == u64::from(node.cpus)
            && milli + free == usable
    }

    /// The place of a node: nodes are in the order of their ids.
    pub fn place(&self, node: NodeId) -> Option<usize> {
        place_of_node(&self.nodes, node, |track| track.id)
    }

    /// The state of a node in this pass.
    pub fn state(&self, at: usize) -> &NodeState {
        self.states.get(self.current.ids[at])
    }

    /// All states that nodes have in this pass, with how many nodes have each.
    pub(crate) fn states_in_use(&self) -> impl Iterator<Item = (NodeStateId, usize)> {
        self.states.in_use()
    }

    /// Those of them in which so many CPUs may be free now.
    pub(crate) fn states_with_cpus(
        &self,
        least: u32,
    ) -> impl Iterator<Item = (NodeStateId, usize)> {
        self.states.with_cpus(least)
    }

    /// A node state by its number, and the class of the nodes that have it.
    pub(crate) fn state_and_class(&self, state: NodeStateId) -> (&NodeState, NodeClassId) {
        (self.states.get(state), self.states.node_class(state))
    }

    /// Its number: nodes with the same are of one class and have the same free, now and later.
    #[inline]
    pub fn state_id(&self, at: usize) -> NodeStateId {
        self.current.ids[at]
    }

    /// All nodes, those together that follow each other and have one node state in this pass.
    pub(crate) fn stretches(&self) -> Stretches<'_> {
        let words = self.current.breaks.as_slice();
        let mut all = Stretches {
            words,
            word: 0,
            bits: words.first().copied().unwrap_or(0),
            from: 0,
            nodes: self.nodes.len(),
        };
        all.from = all.next_break();
        all
    }

    /// Those of some nodes.
    pub(crate) fn stretches_in(
        &self,
        nodes: Range<usize>,
    ) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut from = nodes.start;
        std::iter::from_fn(move || {
            let here = from..self.end_of_stretch(from).min(nodes.end);
            from = here.end;
            (!here.is_empty()).then_some(here)
        })
    }

    /// Where the nodes that have the same node state as one, and follow each other from it on, come to an end.
    pub(crate) fn end_of_stretch(&self, at: usize) -> usize {
        next_in(&self.current.breaks, at + 1).unwrap_or(self.nodes.len())
    }

    /// Gives a node another node state in this pass: one that a node of its class has or had in it. Call `file` when what is
    /// free now is otherwise.
    pub(crate) fn set_state(&mut self, at: usize, state: NodeStateId) {
        self.states.change(self.current.ids[at], state, 1);
        self.place_state(at..at + 1, state);
    }

    /// Puts it down for nodes that follow each other and had one.
    fn place_state(&mut self, nodes: Range<usize>, state: NodeStateId) {
        if let Some(undo) = &mut self.undo {
            let before = nodes.clone().map(|at| (at, self.current.ids[at]));
            undo.states.extend(before);
        }
        self.current.ids[nodes.clone()].fill(state);
        self.current.note_break(nodes.start);
        self.current.note_break(nodes.end);
    }

    /// A node state of its own for a node, to take something of it in this pass. Call `file` when done.
    pub fn touch(&mut self, at: usize) -> &mut NodeState {
        let made = self.states.add_like(self.current.ids[at]);
        self.set_state(at, made);
        self.states.get_mut(made)
    }

    /// Notes from here on what becomes of node states, to roll it back.
    pub(crate) fn begin_trial(&mut self) {
        debug_assert!(self.undo.is_none(), "a trial is within no other");
        self.undo = Some(ClusterUndo::default());
    }

    /// What a trial changed stays.
    pub(crate) fn commit_trial(&mut self) {
        self.undo = None;
    }

    /// Undoes what a trial changed.
    pub(crate) fn roll_back(&mut self) {
        let ClusterUndo { states, filed } = self.undo.take().unwrap_or_default();
        for (at, state) in states.into_iter().rev() {
            self.set_state(at, state);
        }
        filed.into_iter().for_each(|at| self.file(at));
    }

    /// When the last of the runs that hold something of a slot ends; `None` for what no run is known to hold.
    pub(crate) fn end_on(&self, at: usize, slot: usize) -> Option<Timestamp> {
        let held = self.nodes[at].held.iter().filter(|held| {
            held.share
                .gpus
                .slots()
                .any(|one| usize::from(one.0) == slot)
        });
        held.map(|held| held.end).max()
    }

    /// Whether any node has GPUs.
    pub(crate) fn has_gpus(&self) -> bool {
        self.node_classes
            .list
            .iter()
            .any(|node_class| !node_class.groups.is_empty())
    }

    /// Puts a node into the sets for what is free on it now.
    pub fn file(&mut self, at: usize) {
        if let Some(undo) = &mut self.undo {
            undo.filed.push(at);
        }
        let nodes = self.nodes.len();
        let state = self.states.get(self.current.ids[at]);
        let cpus = state.profile.free_at(self.now).cpus;
        let bucket = (cpus > 0).then(|| state.free_gpus());
        let track = &mut self.nodes[at];
        if bucket == track.bucket && Some(cpus) == track.free_cpus {
            return;
        }
        self.filed.push(at);
        if let Some(before) = track.free_cpus.replace(cpus) {
            self.by_free_cpus[before as usize] -= 1;
        }
        if self.by_free_cpus.len() <= cpus as usize {
            self.by_free_cpus.resize(cpus as usize + 1, 0);
        }
        self.by_free_cpus[cpus as usize] += 1;
        if bucket == track.bucket {
            return;
        }
        if let Some(before) = track.bucket {
            self.by_free[before].set(at, false);
        }
        if let Some(bucket) = bucket {
            while self.by_free.len() <= bucket {
                self.by_free.push(FixedBitSet::with_capacity(nodes));
            }
            self.by_free[bucket].insert(at);
        }
        track.bucket = bucket;
    }

    /// Nodes on which a CPU is free now, but for what reservations that begin at once hold: those together that have one node state and
    /// follow each other.
    pub(crate) fn open_stretches(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        // Without GPUs all nodes are in one set.
        let some = self.by_free.first().filter(|_| self.by_free.len() == 1);
        let mut until = 0;
        let in_set = std::iter::from_fn(move || {
            let at = next_in(some?, until)?;
            until = self.end_of_stretch(at);
            Some(at..until)
        });
        let any = some.is_none().then(|| {
            self.stretches()
                .filter(|nodes| self.nodes[nodes.start].bucket.is_some())
        });
        in_set.chain(any.into_iter().flatten())
    }

    /// How many nodes have at least so many CPUs free now, but for what reservations that begin at once hold.
    pub(crate) fn with_cpus(&self, least: u32) -> usize {
        self.by_free_cpus
            .iter()
            .skip(least as usize)
            .map(|nodes| *nodes as usize)
            .sum()
    }

    /// Nodes of a set with at least so many whole GPUs free, the fullest first.
    pub fn with_gpus<'a>(
        &'a self,
        least: usize,
        of: &'a FixedBitSet,
    ) -> impl Iterator<Item = usize> + 'a {
        self.by_free
            .iter()
            .skip(least)
            .flat_map(|bucket| bucket.intersection(of))
    }

    pub fn fits(&self, at: usize, need: &Need, from: Timestamp, to: Timestamp) -> bool {
        self.state(at).fits(need, from, to)
    }

    /// Runs with a share on a node, and when they end.
    pub fn held_on(&self, at: usize) -> impl Iterator<Item = (RunId, Timestamp, &NodeShare)> + '_ {
        self.nodes[at]
            .held
            .iter()
            .map(|held| (held.run, held.end, &held.share))
    }
}

/// Goes from one break to the next.
pub(crate) struct Stretches<'a> {
    words: &'a [usize],
    /// Where it is among these, and the breaks there that are still to come.
    word: usize,
    bits: usize,
    /// Where the next stretch begins.
    from: usize,
    nodes: usize,
}

impl Stretches<'_> {
    #[inline]
    fn next_break(&mut self) -> usize {
        while self.bits == 0 {
            self.word += 1;
            let Some(bits) = self.words.get(self.word) else {
                return self.nodes;
            };
            self.bits = *bits;
        }
        let at = self.word * usize::BITS as usize + self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        at
    }
}

impl Iterator for Stretches<'_> {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        let from = self.from;
        if from >= self.nodes {
            return None;
        }
        self.from = self.next_break();
        Some(from..self.from)
    }
}

/// As `==`, which asks the C library about nothing, too: most nodes of some clusters have no GPU.
#[inline]
fn are_same<T: PartialEq>(a: &[T], b: &[T]) -> bool {
    a.len() == b.len() && (a.is_empty() || a == b)
}

/// The first of a set from one on.
#[inline]
fn next_in(set: &FixedBitSet, from: usize) -> Option<usize> {
    let (words, bits) = (set.as_slice(), usize::BITS as usize);
    let mut place = from / bits;
    let mut word = words.get(place)? & (usize::MAX << (from % bits));
    while word == 0 {
        place += 1;
        word = *words.get(place)?;
    }
    Some(place * bits + word.trailing_zeros() as usize)
}

impl StateOfNodes {
    /// Notes whether the state of a node is another than that of the node before it.
    #[inline]
    fn note_break(&mut self, at: usize) {
        if at < self.ids.len() {
            let differs = at == 0 || self.ids[at - 1] != self.ids[at];
            self.breaks.set(at, differs);
        }
    }
}

impl KnownRun {
    fn is(&self, run: &RunningRun) -> bool {
        self.run == run.run
            && self.end == end_of(run)
            && (self.leaves, self.suspended) == (run.stops_by.is_some(), run.suspended.is_some())
            && self.nodes.len() == run.shares.len()
            && self
                .nodes
                .iter()
                .zip(&run.shares)
                .all(|(node, share)| *node == share.node)
    }
}

impl NodeTrack {
    /// Its node state is still to be worked out.
    fn new(node: &SchedNode, node_classes: &mut NodeClasses) -> Self {
        Self {
            id: node.id,
            node_class: node_classes.of(node),
            up: node.unavailable.is_none(),
            bucket: None,
            free_cpus: None,
            held: Vec::new(),
            seen: SeenNode::of(node),
        }
    }
}

impl SeenNode {
    fn of(node: &SchedNode) -> Self {
        Self {
            name: node.name.clone(),
            features: node.features.clone(),
            nvlink_domain: node.nvlink_domain.clone(),
            free_cpus: node.free_cpus,
            free_mem_bytes: node.free_mem_bytes,
            free_gpu_milli: node.free_gpu_milli.clone(),
            gpus: node.gpus.clone(),
            unavailable: node.unavailable.clone(),
            boards: node.mig.boards.clone(),
        }
    }

    /// In all that a request is held against or told of a node, but for its GPUs.
    fn is_as_told(&self, node: &SchedNode) -> bool {
        self.name == node.name
            && self.unavailable == node.unavailable
            && self.features == node.features
            && self.nvlink_domain == node.nvlink_domain
            && self.boards == node.mig.boards
    }

    fn has_same_gpus(&self, node: &SchedNode) -> bool {
        Arc::ptr_eq(&self.gpus, &node.gpus) || self.gpus == node.gpus
    }

    /// What is wrong with GPUs that are not given out: reasons name it.
    fn has_same_faults(&self, node: &SchedNode) -> bool {
        let fault = |gpu: &GpuEntry| {
            (!gpu.usable()).then(|| {
                (
                    gpu.is_expected(),
                    gpolicy::feasibility::describe::fault(gpu),
                )
            })
        };
        Arc::ptr_eq(&self.gpus, &node.gpus)
            || self.gpus.iter().map(fault).eq(node.gpus.iter().map(fault))
    }

    fn is_as_free(&self, node: &SchedNode) -> bool {
        (self.free_cpus, self.free_mem_bytes) == (node.free_cpus, node.free_mem_bytes)
            && are_same(&self.free_gpu_milli, &node.free_gpu_milli)
    }

    fn take_free(&mut self, node: &SchedNode) {
        (self.free_cpus, self.free_mem_bytes) = (node.free_cpus, node.free_mem_bytes);
        self.free_gpu_milli.clone_from(&node.free_gpu_milli);
        self.gpus = node.gpus.clone();
    }
}
