//! The snapshot kept from pass to pass: an update costs what changed, not the length of the queue.
//!
//! Asks the state which records changed. What derives from other records too (dependencies, array caps, runs
//! that are getting ready) is derived anew each time. Holds no record, so changes during a pass copy nothing
//! for it. Equal to `snapshot` except for the order of `pending`.

use crate::chunk_map::MapCursor;
use crate::ctl::node::pause::paused;
use crate::ctl::plan::snapshot::{
    compute_nodes, pending_array, pending_job, running_run, sched_node, set_free, snapshot,
};
use crate::ctl::state::{EntryId, Job, Node, Run, State};
use gmodel::gpu_order::GpuOrder;
use gmodel::node::{GpuEntry, HoldMark, Inventory, Link, Role};
use gmodel::{JobId, JobState, NodeId, RunId, Timestamp};
use gsched::snapshot::CutRecord;
use gsched::{Changes, PendingJob, SchedNode, Snapshot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// With more changed runs than this, one merge takes all.
const FEW_RUNS: usize = 32;

/// An entry, and which of its partitions.
type EntryKey = (EntryId, u32);

/// The planner's snapshot between passes.
#[derive(Debug, Default)]
pub struct Mirror {
    jobs: MapCursor<JobId>,
    runs: MapCursor<RunId>,
    nodes: MapCursor<NodeId>,
    snapshot: Option<Snapshot>,
    /// Inputs of the node entries, in the order of the nodes.
    bases: Vec<NodeBasis>,
    /// Index into `pending`.
    places: BTreeMap<EntryKey, usize>,
    /// Entries of each job or array that waits in several partitions.
    several: BTreeMap<EntryId, u32>,
    arrays: BTreeSet<JobId>,
    /// Jobs with entries that depend on other records too.
    fickle: BTreeSet<JobId>,
    /// Runs that are getting ready: their latest end moves with the clock.
    preparing: BTreeSet<RunId>,
    /// Paused nodes: the pause ends with the clock.
    paused: BTreeSet<NodeId>,
    /// Changes since `forget_changes`.
    changes: Changes,
}

impl Mirror {
    /// The snapshot of a state, later than the state of the last call.
    pub fn update(&mut self, state: &State, now: Timestamp) -> &Snapshot {
        let same_config = self
            .snapshot
            .as_ref()
            .is_some_and(|before| Arc::ptr_eq(&before.config, &state.config));
        match self.snapshot.take() {
            Some(before) if same_config => self.bring_up(before, state, now),
            _ => self.begin(state, now),
        }
        self.snapshot.as_ref().expect("set by both ways")
    }

    /// The snapshot of the last update, and the changes since `forget_changes`.
    pub fn picture(&self) -> Option<(&Snapshot, &Changes)> {
        Some((self.snapshot.as_ref()?, &self.changes))
    }

    /// A pass has read the changes.
    pub fn forget_changes(&mut self) {
        self.changes = Changes::default();
    }

    fn begin(&mut self, state: &State, now: Timestamp) {
        self.changes.everything = true;
        let fresh = snapshot(state, now);
        self.bases = compute_nodes(state)
            .map(|node| NodeBasis::of(node, paused(node, now)))
            .collect();
        // All of it is in the snapshot.
        state.jobs.each_change(&mut self.jobs, |_, _| {});
        state.runs.each_change(&mut self.runs, |_, _| {});
        state.nodes.each_change(&mut self.nodes, |_, _| {});
        self.places = fresh
            .pending
            .iter()
            .enumerate()
            .map(|(at, job)| (key(job), at))
            .collect();
        self.several.clear();
        for job in fresh.pending.iter().filter(|job| job.is_choice()) {
            *self.several.entry(entry_id(job)).or_default() += 1;
        }
        self.arrays = state
            .arrays
            .values()
            .filter(|array| !array.pending.is_empty())
            .map(|array| array.id)
            .collect();
        self.fickle = state
            .jobs
            .values()
            .filter(|job| is_fickle(job))
            .map(|job| job.id)
            .collect();
        self.preparing = state
            .runs
            .values()
            .filter(|run| is_preparing(run))
            .map(|run| run.id)
            .collect();
        self.paused = compute_nodes(state)
            .filter(|node| paused(node, now).is_some())
            .map(|node| node.id)
            .collect();
        self.snapshot = Some(fresh);
    }

    fn bring_up(&mut self, mut picture: Snapshot, state: &State, now: Timestamp) {
        picture.seq = state.seq;
        picture.now = now;
        picture.policy = state.policy.clone();
        picture.usage = state.usage.clone();
        let mut runs: BTreeSet<RunId> = std::mem::take(&mut self.preparing);
        self.pending(&mut picture, state, &mut runs, now);
        state.runs.each_change(&mut self.runs, |id, _| {
            runs.insert(id);
        });
        self.running(&mut picture, state, &runs, now);
        self.nodes_of(&mut picture, state, now);
        self.changes.runs.append(&mut runs);
        self.snapshot = Some(picture);
    }

    fn pending(
        &mut self,
        picture: &mut Snapshot,
        state: &State,
        runs: &mut BTreeSet<RunId>,
        now: Timestamp,
    ) {
        let mut changed: BTreeSet<JobId> = self.fickle.clone();
        let fickle = &mut self.fickle;
        state.jobs.each_change(&mut self.jobs, |id, is| {
            changed.insert(id);
            // A run's entry derives from its job, too.
            runs.extend(state.runs.range(id.0, id.0 + 1).map(|(run, _)| run));
            match is.is_some_and(is_fickle) {
                true => fickle.insert(id),
                false => fickle.remove(&id),
            };
        });
        for id in changed {
            let job = state.job(id).filter(|job| job.state == JobState::Pending);
            self.put(
                picture,
                EntryId::Job(id),
                job.and_then(|job| pending_job(state, job, now)),
            );
        }
        // Arrays are few, and depend on their tasks.
        let over = |id: &&JobId| {
            state
                .array(**id)
                .is_none_or(|array| array.pending.is_empty())
        };
        for id in self.arrays.iter().filter(over).copied().collect::<Vec<_>>() {
            self.put(picture, EntryId::Array(id), None);
            self.arrays.remove(&id);
        }
        for array in state
            .arrays
            .values()
            .filter(|array| !array.pending.is_empty())
        {
            self.put(
                picture,
                EntryId::Array(array.id),
                Some(pending_array(state, array)),
            );
            self.arrays.insert(array.id);
        }
    }

    /// Sets or removes the entries of a job or array: one for each of its partitions.
    fn put(&mut self, picture: &mut Snapshot, id: EntryId, entry: Option<PendingJob>) {
        let before = self.several.get(&id).copied().unwrap_or(1);
        if before == 1 && entry.as_ref().is_none_or(|entry| !entry.has_choices()) {
            return self.put_one(picture, (id, 0), entry);
        }
        let mut entries: Vec<Option<PendingJob>> = entry
            .into_iter()
            .flat_map(PendingJob::in_each_partition)
            .map(Some)
            .collect();
        match entries.len() {
            0 | 1 => drop(self.several.remove(&id)),
            many => drop(self.several.insert(id, many as u32)),
        }
        entries.resize(entries.len().max(before as usize), None);
        for (choice, entry) in (0..).zip(entries) {
            self.put_one(picture, (id, choice), entry);
        }
    }

    /// Sets or removes one entry; the last entry takes the place of a removed one.
    fn put_one(&mut self, picture: &mut Snapshot, key: EntryKey, entry: Option<PendingJob>) {
        let changed = &mut self.changes.pending;
        match (self.places.get(&key).copied(), entry) {
            (Some(at), Some(entry)) if picture.pending[at] == entry => {}
            (Some(at), Some(entry)) => {
                picture.pending[at] = entry;
                changed.insert(at);
            }
            (None, Some(entry)) => {
                changed.insert(picture.pending.len());
                self.places.insert(key, picture.pending.len());
                picture.pending.push(entry);
            }
            (Some(at), None) => {
                self.places.remove(&key);
                picture.pending.swap_remove(at);
                changed.extend([at, picture.pending.len()]);
                if let Some(moved) = picture.pending.get(at) {
                    self.places.insert(self::key(moved), at);
                }
            }
            (None, None) => {}
        }
    }

    /// Running entries stay in the order of their ids.
    fn running(
        &mut self,
        picture: &mut Snapshot,
        state: &State,
        changed: &BTreeSet<RunId>,
        now: Timestamp,
    ) {
        self.preparing.extend(
            changed
                .iter()
                .filter(|id| state.run(**id).is_some_and(is_preparing)),
        );
        let entry = |id: &RunId| state.run(*id).and_then(|run| running_run(state, run, now));
        if changed.len() <= FEW_RUNS {
            for id in changed {
                match (
                    picture.running.binary_search_by_key(id, |run| run.run),
                    entry(id),
                ) {
                    (Ok(at), Some(run)) => picture.running[at] = run,
                    (Ok(at), None) => drop(picture.running.remove(at)),
                    (Err(at), Some(run)) => picture.running.insert(at, run),
                    (Err(_), None) => {}
                }
            }
            return;
        }
        let mut kept = std::mem::take(&mut picture.running);
        kept.retain(|run| !changed.contains(&run.run));
        kept.extend(changed.iter().filter_map(entry));
        // Two sorted runs: sorting costs little more than a merge.
        kept.sort_by_key(|run| run.run);
        picture.running = kept;
    }

    /// Derives all node entries anew.
    fn all_nodes(&mut self, picture: &mut Snapshot, state: &State, now: Timestamp) {
        self.changes.everything = true;
        self.bases = compute_nodes(state)
            .map(|node| NodeBasis::of(node, paused(node, now)))
            .collect();
        picture.nodes = compute_nodes(state)
            .map(|node| sched_node(state, node, now))
            .collect();
        self.paused = compute_nodes(state)
            .filter(|node| paused(node, now).is_some())
            .map(|node| node.id)
            .collect();
    }

    /// A run that takes or frees a share changes the node's record too: its generation at least.
    fn nodes_of(&mut self, picture: &mut Snapshot, state: &State, now: Timestamp) {
        let mut changed: BTreeMap<usize, &Node> = BTreeMap::new();
        let mut ids = Vec::new();
        let mut others = false;
        state.nodes.each_change(&mut self.nodes, |id, is| {
            let at = picture.place_of(id);
            let is = is.filter(|node| node.role == Role::Compute);
            others |= at.is_some() != is.is_some();
            changed.extend(at.zip(is));
            ids.push(id);
        });
        for id in std::mem::take(&mut self.paused) {
            let at = picture.place_of(id);
            changed.extend(at.zip(state.node(id).filter(|node| node.role == Role::Compute)));
            ids.push(id);
        }
        if others {
            return self.all_nodes(picture, state, now);
        }
        for (at, node) in changed {
            let entry = &mut picture.nodes[at];
            let pause = paused(node, now);
            if pause.is_some() {
                self.paused.insert(node.id);
            }
            if self.bases[at].is_of(node, &pause) {
                set_free(entry, state.free_on(node));
                if !self.changes.nodes.contains(&node.id) {
                    self.changes.only_free.insert(node.id);
                }
                continue;
            }
            self.changes.only_free.remove(&node.id);
            self.bases[at] = NodeBasis::of(node, pause);
            let fresh = sched_node(state, node, now);
            // The list of GPUs is shared while it is unchanged: a comparison looks at the address first.
            let gpus = if *fresh.gpus == *entry.gpus {
                entry.gpus.clone()
            } else {
                fresh.gpus.clone()
            };
            *entry = SchedNode { gpus, ..fresh };
        }
        self.changes.nodes.append(&mut ids.into_iter().collect());
    }
}

/// Inputs of a node's entry besides its free resources. (Its name never changes.)
#[derive(Debug)]
struct NodeBasis {
    inventory: Arc<Inventory>,
    gpus: Arc<Vec<GpuEntry>>,
    link: Link,
    drains: Vec<HoldMark>,
    gpu_orders: Vec<GpuOrder>,
    cuts: BTreeMap<String, CutRecord>,
    paused: Option<(Timestamp, String)>,
}

impl NodeBasis {
    fn of(node: &Node, paused: Option<(Timestamp, String)>) -> Self {
        Self {
            inventory: node.inventory.clone(),
            gpus: node.gpus.clone(),
            link: node.link,
            drains: node.drains.clone(),
            gpu_orders: node.gpu_work.orders.clone(),
            cuts: node.gpu_work.cuts.clone(),
            paused,
        }
    }
    /// Whether a node differs in nothing but its runs.
    fn is_of(&self, node: &Node, paused: &Option<(Timestamp, String)>) -> bool {
        Arc::ptr_eq(&self.inventory, &node.inventory)
            && Arc::ptr_eq(&self.gpus, &node.gpus)
            && self.link == node.link
            && self.drains == node.drains
            && self.gpu_orders == node.gpu_work.orders
            && self.cuts == node.gpu_work.cuts
            && self.paused == *paused
    }
}

fn key(job: &PendingJob) -> EntryKey {
    (entry_id(job), job.spec.choice())
}

fn entry_id(job: &PendingJob) -> EntryId {
    match job.particulars.positions {
        Some(_) => EntryId::Array(job.id),
        None => EntryId::Job(job.id),
    }
}

/// The entry depends on other records or on the clock: an array cap, a dependency, barred nodes, other components.
fn is_fickle(job: &Job) -> bool {
    let barred = job
        .past
        .node_failures
        .iter()
        .any(|failure| failure.launches > 0);
    job.state == JobState::Pending
        && (job.waits.is_some() || job.task.is_some() || barred || job.spec.part.is_some())
}

fn is_preparing(run: &Run) -> bool {
    run.started.is_none() && run.go.is_none()
}
