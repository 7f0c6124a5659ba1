//! A snapshot that is kept and brought up to date: it costs what changed since, not the length of the queue.
//!
//! Compares shared chunks of two states; what is derived from more than its own record (dependencies, caps of arrays,
//! runs that are getting ready) is derived anew each time. Equal to `snapshot` but for the order of `pending`.

use super::snapshot::{pending_array, pending_job, running_run, sched_node, set_free, snapshot};
use super::state::{Job, Node, Run, State};
use crate::chunk_map::ChunkMap;
use gmodel::node::Role;
use gmodel::{JobId, JobState, NodeId, RunId, Timestamp};
use gsched::{Changes, PendingJob, Snapshot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// More changed runs than this are merged in one go.
const FEW_RUNS: usize = 32;

/// A job (`false`) or array (`true`), and which of its partitions is meant.
type Key = (JobId, bool, u32);

/// What the planner keeps between its passes.
#[derive(Debug, Default)]
pub struct Mirror {
    jobs: ChunkMap<JobId, Job>,
    runs: ChunkMap<RunId, Run>,
    nodes: ChunkMap<NodeId, Node>,
    snapshot: Option<Snapshot>,
    /// Where entries stand in `pending`.
    places: BTreeMap<Key, usize>,
    /// How many entries those have that wait in several partitions.
    several: BTreeMap<(JobId, bool), u32>,
    arrays: BTreeSet<JobId>,
    /// Jobs whose entry depends on other records too.
    fickle: BTreeSet<JobId>,
    /// Runs that are getting ready: their latest end moves with the clock.
    preparing: BTreeSet<RunId>,
    /// Since they were last forgotten.
    changes: Changes,
}

impl Mirror {
    /// The picture of a state, which is later than that of the last call.
    pub fn update(&mut self, state: &State, now: Timestamp) -> &Snapshot {
        let same_config = self.snapshot.as_ref().is_some_and(|before| Arc::ptr_eq(&before.config, &state.config));
        match self.snapshot.take() {
            Some(before) if same_config => self.bring_up(before, state, now),
            _ => self.begin(state, now),
        }
        self.jobs = state.jobs.clone();
        self.runs = state.runs.clone();
        self.nodes = state.nodes.clone();
        self.snapshot.as_ref().expect("set by both ways")
    }

    /// The picture of the last update, and what changed since `forget_changes`.
    pub fn picture(&self) -> Option<(&Snapshot, &Changes)> {
        Some((self.snapshot.as_ref()?, &self.changes))
    }

    /// They were taken into account.
    pub fn forget_changes(&mut self) {
        self.changes = Changes::default();
    }

    fn begin(&mut self, state: &State, now: Timestamp) {
        self.changes.everything = true;
        let fresh = snapshot(state, now);
        self.places = fresh.pending.iter().enumerate().map(|(at, job)| (key(job), at)).collect();
        self.several.clear();
        for job in fresh.pending.iter().filter(|job| job.is_choice()) {
            *self.several.entry((job.id, job.positions.is_some())).or_default() += 1;
        }
        self.arrays = state.arrays.values().filter(|array| !array.pending.is_empty()).map(|array| array.id).collect();
        self.fickle = state.jobs.values().filter(|job| is_fickle(job)).map(|job| job.id).collect();
        self.preparing = state.runs.values().filter(|run| is_preparing(run)).map(|run| run.id).collect();
        self.snapshot = Some(fresh);
    }

    fn bring_up(&mut self, mut picture: Snapshot, state: &State, now: Timestamp) {
        picture.seq = state.seq;
        picture.now = now;
        picture.policy = state.policy.clone();
        picture.usage = state.usage.clone();
        let mut runs: BTreeSet<RunId> = std::mem::take(&mut self.preparing);
        self.pending(&mut picture, state, &mut runs);
        state.runs.each_change(&self.runs, |id, _, _| {
            runs.insert(id);
        });
        self.running(&mut picture, state, &runs, now);
        self.nodes_of(&mut picture, state);
        self.changes.runs.append(&mut runs);
        self.snapshot = Some(picture);
    }

    fn pending(&mut self, picture: &mut Snapshot, state: &State, runs: &mut BTreeSet<RunId>) {
        let mut changed: BTreeSet<JobId> = self.fickle.clone();
        let fickle = &mut self.fickle;
        state.jobs.each_change(&self.jobs, |id, _, is| {
            changed.insert(id);
            // What a run is, its job says in part.
            runs.extend(state.runs.range(id.0, id.0 + 1).map(|(run, _)| run));
            match is.is_some_and(is_fickle) {
                true => fickle.insert(id),
                false => fickle.remove(&id),
            };
        });
        for id in changed {
            let job = state.jobs.get(id).filter(|job| job.state == JobState::Pending);
            self.put(picture, (id, false), job.map(|job| pending_job(state, job)));
        }
        // Arrays are few, and depend on their tasks.
        let over = |id: &&JobId| state.arrays.get(**id).is_none_or(|array| array.pending.is_empty());
        for id in self.arrays.iter().filter(over).copied().collect::<Vec<_>>() {
            self.put(picture, (id, true), None);
            self.arrays.remove(&id);
        }
        for array in state.arrays.values().filter(|array| !array.pending.is_empty()) {
            self.put(picture, (array.id, true), Some(pending_array(state, array)));
            self.arrays.insert(array.id);
        }
    }

    /// Sets or removes the entries of a job or array: one for each partition that it waits in.
    fn put(&mut self, picture: &mut Snapshot, (id, is_array): (JobId, bool), entry: Option<PendingJob>) {
        let before = self.several.get(&(id, is_array)).copied().unwrap_or(1);
        if before == 1 && entry.as_ref().is_none_or(|entry| !entry.spec.waits_in_several()) {
            return self.put_one(picture, (id, is_array, 0), entry);
        }
        let mut entries: Vec<Option<PendingJob>> = entry.into_iter().flat_map(PendingJob::in_each_partition).map(Some).collect();
        match entries.len() {
            0 | 1 => drop(self.several.remove(&(id, is_array))),
            many => drop(self.several.insert((id, is_array), many as u32)),
        }
        entries.resize(entries.len().max(before as usize), None);
        for (choice, entry) in (0..).zip(entries) {
            self.put_one(picture, (id, is_array, choice), entry);
        }
    }

    /// Sets or removes one entry; the last one takes the place of one that goes.
    fn put_one(&mut self, picture: &mut Snapshot, key: Key, entry: Option<PendingJob>) {
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

    /// They stay in the order of their ids.
    fn running(&mut self, picture: &mut Snapshot, state: &State, changed: &BTreeSet<RunId>, now: Timestamp) {
        self.preparing.extend(changed.iter().filter(|id| state.runs.get(**id).is_some_and(is_preparing)));
        let entry = |id: &RunId| state.runs.get(*id).and_then(|run| running_run(state, run, now));
        if changed.len() <= FEW_RUNS {
            for id in changed {
                match (picture.running.binary_search_by_key(id, |run| run.run), entry(id)) {
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
        // Two runs of the sort: it costs little more than a merge.
        kept.sort_by_key(|run| run.run);
        picture.running = kept;
    }

    /// What a run takes or gives back on a node changes the node's record too: its generation at least.
    fn nodes_of(&mut self, picture: &mut Snapshot, state: &State) {
        let mut changed: Vec<(NodeId, bool)> = Vec::new();
        let mut others = false;
        let compute = |node: Option<&Node>| node.is_some_and(|node| node.role == Role::Compute);
        state.nodes.each_change(&self.nodes, |id, before, is| {
            others |= compute(before) != compute(is);
            changed.push((id, before.zip(is).is_some_and(|(before, is)| differs_in_runs(before, is))));
        });
        if others {
            self.changes.everything = true;
            let nodes = state.nodes.values().filter(|node| node.role == Role::Compute);
            picture.nodes = nodes.map(|node| sched_node(state, node)).collect();
            return;
        }
        self.changes.nodes.append(&mut changed.iter().map(|(id, _)| *id).collect());
        for (id, differs_in_runs) in changed {
            let (Ok(at), Some(node)) = (picture.nodes.binary_search_by_key(&id, |node| node.id), state.nodes.get(id)) else { continue };
            let entry = &mut picture.nodes[at];
            if differs_in_runs {
                set_free(entry, state.free_on(node));
                continue;
            }
            let fresh = sched_node(state, node);
            // The list of GPUs is shared as long as it says the same: who compares looks at the address first.
            let gpus = if *fresh.gpus == *entry.gpus { entry.gpus.clone() } else { fresh.gpus.clone() };
            *entry = gsched::SchedNode { gpus, ..fresh };
        }
    }
}

fn key(job: &PendingJob) -> Key {
    (job.id, job.positions.is_some(), job.spec.choice())
}

/// In nothing but what runs on it.
fn differs_in_runs(before: &Node, is: &Node) -> bool {
    Arc::ptr_eq(&before.inventory, &is.inventory)
        && Arc::ptr_eq(&before.gpus, &is.gpus)
        && before.link == is.link
        && (before.drains.is_empty() && is.drains.is_empty() || before.drains == is.drains)
        && before.gpu_orders == is.gpu_orders
        && before.cuts == is.cuts
        && before.name == is.name
}

/// Its entry says something of other records: its array's cap, or whom it waits for.
fn is_fickle(job: &Job) -> bool {
    job.state == JobState::Pending && (job.waits.is_some() || job.task.is_some())
}

fn is_preparing(run: &Run) -> bool {
    run.started.is_none() && run.go.is_none()
}
