//! The next start after something became free, without a pass over the whole queue.
//!
//! A full pass leaves behind who waits for room, in order, and what it reserved. When runs end, those are looked at again
//! whom the freed nodes can serve; no reserved start is delayed, and the full pass that follows has the last word.

use crate::cluster::end_of;
use crate::ledger::Ledger;
use crate::pass::{Engine, Pass, Reserved};
use crate::plan::{Plan, WorkBudget};
use crate::reason;
use crate::shape::ShapeId;
use crate::snapshot::{PendingJob, Snapshot};
use crate::timeline::UNLIMITED_SECS;
use gmodel::policy::Backfill;
use gmodel::{JobId, NodeId, RunId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What differs between two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Runs that came, went, or are otherwise than before.
    pub runs: BTreeSet<RunId>,
    /// Nodes that are otherwise than before, with what is free on them.
    pub nodes: BTreeSet<NodeId>,
    /// Nodes came or went, or the configuration is another.
    pub everything: bool,
}

/// What a full pass leaves for quick ones.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Who waits for room, in order.
    pub waiting: Vec<Waiting>,
    pub reserved: Vec<Reserved>,
    /// Jobs that were started and have no run yet that is known here.
    pub started: BTreeSet<JobId>,
}

/// A job that waits for room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// Where it was among the pending.
    pub at: u32,
    pub job: JobId,
    pub shape: ShapeId,
    pub secs: u32,
    pub array: bool,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.nodes.is_empty() && !self.everything
    }
}

impl Engine {
    /// What can start now that could not in the pass before, by what became free since. `None`: that takes a full pass
    /// (limits, licences, reservations and the order of the queue are its affair, and nodes that come and go).
    pub fn after(&mut self, snapshot: &Snapshot, changes: &Changes, budget: WorkBudget) -> Option<Plan> {
        let mut left = self.left.take()?;
        let (config, policy) = self.seen.clone()?;
        let same = Arc::ptr_eq(&config, &snapshot.config) && Arc::ptr_eq(&policy, &snapshot.policy);
        if changes.everything || !same || !is_plain(self, snapshot) {
            return None;
        }
        let freed = self.take_leave(snapshot, changes, &mut left)?;
        // Rooms stay those of the full pass, in which nobody is late; starts are counted from then on.
        let empty = Snapshot { now: self.cluster.now, seq: snapshot.seq, config, policy, ..Snapshot::default() };
        let mut pass = Pass::new(self, &empty, budget, Ledger::new(&empty));
        pass.snapshot = snapshot;
        let plan = pass.refill(freed, &mut left);
        self.left = Some(left);
        Some(plan)
    }

    /// Takes runs that are over off their nodes; which nodes.
    fn take_leave(&mut self, snapshot: &Snapshot, changes: &Changes, left: &mut Left) -> Option<BTreeSet<usize>> {
        let now = self.cluster.now;
        let mut freed = BTreeSet::new();
        for id in &changes.runs {
            let run = snapshot.running.binary_search_by_key(id, |run| run.run).ok().map(|at| &snapshot.running[at]);
            let known = self.cluster.knows(*id);
            match (run, known) {
                // Its end may be another than was planned with: the full pass sees to that.
                (Some(run), true) => self.cluster.expect_again(*id, end_of(run)),
                (Some(run), false) if left.started.remove(&id.job) => self.cluster.meet(run),
                (Some(_), false) => return None,
                (None, true) => freed.extend(self.cluster.part_with(*id, now)),
                (None, false) => {}
            }
        }
        for id in &changes.nodes {
            let at = self.cluster.place(*id)?;
            // What is free must be what is known to be free: anything else has other causes.
            if !self.cluster.agrees(at, &snapshot.nodes[at]) {
                return None;
            }
        }
        Some(freed)
    }
}

/// Nothing but room decides.
fn is_plain(engine: &Engine, snapshot: &Snapshot) -> bool {
    let scheduler = &snapshot.config.scheduler;
    crate::claims::is_unlimited(snapshot)
        && scheduler.licences.is_empty()
        && scheduler.backfill != Backfill::Off
        && engine.windows.list.is_empty()
}

impl Pass<'_> {
    /// Gives what was freed to those who wait, in order.
    fn refill(&mut self, freed: BTreeSet<usize>, left: &mut Left) -> Plan {
        let shapes = self.engine.shapes.list.len();
        // By shape, the shortest limit that found no room in this pass, and whether no freed node has room for it.
        let mut refused: Vec<u32> = vec![u32::MAX; shapes];
        let mut hopeless: Vec<Option<bool>> = vec![None; shapes];
        self.engine.shapes.list.iter_mut().for_each(|shape| shape.pass = Default::default());
        let mut started: BTreeSet<(JobId, bool)> = BTreeSet::new();
        for waiting in &left.waiting {
            let shape = waiting.shape as usize;
            if waiting.secs >= refused[shape] || hopeless[shape] == Some(true) {
                continue;
            }
            if hopeless[shape].is_none() {
                let serves = freed.iter().any(|at| self.may_serve(waiting.shape, *at));
                hopeless[shape] = Some(!serves);
                if !serves {
                    continue;
                }
            }
            let Some(job) = find(self.snapshot, waiting) else { continue };
            let before = self.plan.starts.len();
            let all = self.start_again(job, waiting, &mut left.reserved);
            left.started.extend(self.plan.starts[before..].iter().map(|start| start.job));
            if !all {
                refused[shape] = waiting.secs;
            } else if !waiting.array {
                started.insert((waiting.job, waiting.array));
            }
            if self.is_spent() {
                break;
            }
        }
        left.waiting.retain(|waiting| !started.contains(&(waiting.job, waiting.array)));
        std::mem::take(&mut self.plan)
    }

    /// Whether a node has room now for a part of a shape.
    fn may_serve(&self, shape: ShapeId, at: usize) -> bool {
        let of = self.shape(shape);
        let track = &self.engine.cluster.nodes[at];
        let now = self.engine.cluster.now;
        let fits = |way: usize| of.need(way, of.ways[way].last(), track.make).is_some_and(|need| track.room.fits(need, now, now.plus_millis(1)));
        of.candidates.up.contains(at) && (0..of.ways.len()).any(fits)
    }

    /// Starts a job, or as many tasks as have room; whether all did. One that has a reservation is tried without it, and
    /// keeps it where it does not start.
    fn start_again(&mut self, job: &PendingJob, waiting: &Waiting, reserved: &mut Vec<Reserved>) -> bool {
        let place = reserved.iter().position(|one| one.job == waiting.job && !waiting.array);
        let own = place.map(|place| reserved.remove(place));
        for (at, hold) in own.iter().flat_map(|own| own.nodes.iter().zip(&own.holds)) {
            self.engine.cluster.touch(*at).release(hold);
        }
        let partition = &self.snapshot.config.partitions[self.shape(waiting.shape).partition];
        let may = reason::standing(job, partition, self.snapshot).is_none();
        let all = may
            && match &job.positions {
                None => self.start_plain(job, job.id, waiting.shape),
                Some(positions) => {
                    let room = job.room.map_or(usize::MAX, |room| room as usize);
                    let mut tasks = positions.iter().take(room).map(|position| JobId(job.id.0 + u64::from(position)));
                    tasks.all(|id| !self.is_spent() && self.start_plain(job, id, waiting.shape))
                }
            };
        if all {
            return true;
        }
        if let Some(own) = own {
            for (at, hold) in own.nodes.iter().zip(&own.holds) {
                self.engine.cluster.touch(*at).hold_again(hold);
            }
            reserved.push(own);
        }
        false
    }
}

fn find<'a>(snapshot: &'a Snapshot, waiting: &Waiting) -> Option<&'a PendingJob> {
    let is = |job: &&PendingJob| job.id == waiting.job && job.positions.is_some() == waiting.array;
    // It moves when others leave the list.
    let job = snapshot.pending.get(waiting.at as usize).filter(is).or_else(|| snapshot.pending.iter().find(is))?;
    (job.limit_secs.unwrap_or(UNLIMITED_SECS) == waiting.secs).then_some(job)
}
