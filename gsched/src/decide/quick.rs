//! The next start after something became free, without a pass over the whole queue.
//!
//! A full pass leaves behind who waits for room, in order, and what it reserved. When runs end, those are looked at again
//! whom the freed nodes can serve; no reserved start is delayed, and the full pass that follows has the last word.

use crate::cluster::nodes::end_of;
use crate::decide::walk::{Turns, nobody};
use crate::job::job_class::ShapeId;
use crate::job::queue::{Line, Queue};
use crate::job::reason;
use crate::ledger::Ledger;
use crate::mig::hold::HeldBack;
use crate::pass::{Engine, Pass, Reserved, Wait, Want};
use crate::place::claims;
use crate::place::counted::Counted;
use crate::plan::{Plan, WorkBudget};
use crate::snapshot::Snapshot;
use gmodel::policy::Backfill;
use gmodel::{JobId, NodeId, RunId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// What differs between two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Runs that came, went, or are otherwise than before.
    pub runs: BTreeSet<RunId>,
    /// Nodes that are otherwise than before, with what is free on them.
    pub nodes: BTreeSet<NodeId>,
    /// Those of them that are so only in what is free there.
    pub only_free: BTreeSet<NodeId>,
    /// Places among the pending where another stands than before, or nobody any more.
    pub pending: BTreeSet<usize>,
    /// It is not known which places.
    pub all_pending: bool,
    /// Nodes came or went, or the configuration is another.
    pub everything: bool,
}

/// What a full pass leaves for quick ones.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Brought up to date by the runs that came and went, where no limit is one of time.
    pub ledger: Option<Ledger>,
    /// Who waits for room, in order, of those that were looked at.
    pub waiting: Vec<Waiting>,
    /// GPUs that wait to be cut for some of them.
    pub held_back: Vec<HeldBack>,
    pub reserved: Vec<Reserved>,
    /// Reservations that were put off, and by partition how many may be made.
    pub wants: VecDeque<Want>,
    pub reserve_left: Vec<u32>,
    /// Reservations of GPUs by their number, with what is set apart for them.
    pub counted: Vec<Counted>,
    /// Something is set aside for a job that waits until more is idle.
    pub is_set_aside: bool,
    /// Others go for somebody, or just went: what they leave, and the guarantee that they went for, is for the one they went for.
    pub makes_room: bool,
    /// Jobs that were started and have no run yet that is known here.
    pub started: BTreeSet<JobId>,
    /// Tasks among them, by the array with a cap that they are of.
    pub in_arrays: BTreeMap<JobId, BTreeSet<JobId>>,
}

/// A job that waits for room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// Where it was among the pending.
    pub at: u32,
    pub job: JobId,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
            && self.nodes.is_empty()
            && self.pending.is_empty()
            && !self.all_pending
            && !self.everything
    }
}

impl Engine {
    /// What can start now that could not in the pass before, by what became free since. `None`: that takes a full pass
    /// (nodes that come and go, another policy, runs that stand still or go for somebody's guarantee, or nobody may pass anybody).
    pub fn after(
        &mut self,
        snapshot: &Snapshot,
        changes: &Changes,
        budget: WorkBudget,
    ) -> Option<Plan> {
        self.standings.note(Some(changes));
        let mut left = self.left.take()?;
        let (config, policy) = self.seen.clone()?;
        let same = Arc::ptr_eq(&config, &snapshot.config) && Arc::ptr_eq(&policy, &snapshot.policy);
        // What comes free of a GPU that is to be cut is given to nobody.
        let stands_still = self.cluster.frozen > 0 || !left.held_back.is_empty();
        // What a run leaves is set apart for others of its reservation of GPUs, or set aside for who waits until more is idle.
        let set_apart = !left.counted.is_empty() || left.is_set_aside;
        // What is promised to those for whom others go is known in the course of a full pass only.
        let leave = || snapshot.running.iter().any(|run| run.leaves_for.is_some());
        let promised = left.makes_room || (policy.has_quotas() && leave());
        if changes.everything
            || !same
            || stands_still
            || set_apart
            || promised
            || snapshot.config.scheduler.backfill == Backfill::Off
        {
            return None;
        }
        self.left = Some(left);
        self.make_ready(snapshot);
        left = self.left.take()?;
        let mut keeps = left.ledger.is_some();
        let freed = self.take_leave(snapshot, changes, &mut left)?;
        // A new one knows nothing of starts that are no runs yet.
        keeps &= left.ledger.is_some() || left.started.is_empty();
        self.cluster.look_again(changes.nodes.iter().copied());
        self.shapes.begin_pass(snapshot.pending.len());
        self.sync_queue(snapshot, Some(changes));
        let mut queue = std::mem::take(&mut self.queue);
        let ledger = left
            .ledger
            .take()
            .unwrap_or_else(|| match claims::is_unlimited(snapshot) {
                true => Ledger::new(&nobody(snapshot)),
                false => Ledger::new(snapshot),
            });
        // Rooms stay those of the full pass, in which nobody is late; starts are counted from then on.
        let now = self.cluster.now;
        let mut pass = Pass::new(self, snapshot, budget, ledger);
        pass.now = now;
        (pass.reserved, pass.in_arrays) = (left.reserved, left.in_arrays);
        // Those whose runs have come count for the cap as it is now.
        pass.in_arrays
            .values_mut()
            .for_each(|tasks| tasks.retain(|task| left.started.contains(task)));
        pass.refill(&freed, &mut left.started, &queue);
        (left.reserved, left.in_arrays) = (pass.reserved, pass.in_arrays);
        left.ledger = keeps.then_some(pass.ledger);
        let plan = pass.plan;
        std::mem::swap(&mut self.queue, &mut queue);
        self.left = Some(left);
        Some(plan)
    }

    /// Makes the reservations that the last pass put off, which quick passes must see: before anything else becomes free.
    /// They do it themselves, only later than one who has time after the pass.
    pub fn make_ready(&mut self, snapshot: &Snapshot) {
        let Some(mut left) = self.left.take_if(|left| !left.wants.is_empty()) else {
            return;
        };
        let now = self.cluster.now;
        let mut pass = Pass::new(
            self,
            snapshot,
            WorkBudget::default(),
            Ledger::new(&nobody(snapshot)),
        );
        pass.now = now;
        (pass.reserved, pass.wants, pass.reserve_left) =
            (left.reserved, left.wants, left.reserve_left);
        pass.counted = left.counted;
        pass.keep_promises();
        pass.reserve_wanted();
        (left.reserved, left.wants, left.reserve_left) =
            (pass.reserved, VecDeque::new(), pass.reserve_left);
        left.counted = pass.counted;
        self.left = Some(left);
    }

    /// Takes runs that are over off their nodes; which nodes.
    fn take_leave(
        &mut self,
        snapshot: &Snapshot,
        changes: &Changes,
        left: &mut Left,
    ) -> Option<BTreeSet<usize>> {
        let now = self.cluster.now;
        let (mut freed, mut over) = (BTreeSet::new(), Vec::new());
        for id in &changes.runs {
            let run = snapshot
                .running
                .binary_search_by_key(id, |run| run.run)
                .ok()
                .map(|at| &snapshot.running[at]);
            let known = self.cluster.knows(*id);
            match (run, known) {
                // Its end may be another than was planned with: the full pass sees to that.
                (Some(run), true) => self.cluster.expect_again(*id, end_of(run)),
                (Some(run), false) if left.started.remove(&id.job) => {
                    self.cluster.meet(run, snapshot);
                    left.ledger.iter_mut().for_each(|ledger| ledger.meet(run));
                }
                (Some(_), false) => return None,
                (None, true) => {
                    let (places, shares) = self.cluster.part_with(*id, now);
                    freed.extend(places);
                    over.push((*id, shares));
                }
                (None, false) => {}
            }
        }
        // Those that came may inherit what these stood on.
        left.ledger.take_if(|ledger| {
            !over
                .iter()
                .all(|(id, shares)| ledger.end(*id, shares, snapshot))
        });
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

impl Pass<'_> {
    /// Gives what was freed to those who wait, in order; where there are quotas first to those who stand on a guarantee.
    fn refill(&mut self, freed: &BTreeSet<usize>, started: &mut BTreeSet<JobId>, queue: &Queue) {
        let rounds: &[bool] = if self.ledger.has_quotas() {
            &[true, false]
        } else {
            &[false]
        };
        for guaranteed in rounds {
            self.guaranteed_only = *guaranteed;
            let serves: Vec<bool> = (0..self.engine.shapes.list.len())
                .map(|shape| self.is_served(shape as ShapeId, freed))
                .collect();
            let mut turns = Turns::new(queue, &mut self.engine.standings, self.snapshot, |line| {
                serves[line.shape as usize]
            });
            while let Some((number, at)) = turns.next() {
                if self.is_spent() {
                    return;
                }
                let line = &queue.lines[number as usize];
                let refused = self
                    .shape(line.shape)
                    .pass
                    .refused_secs
                    .filter(|_| !line.alone);
                match refused {
                    Some(refused) if line.secs[at] >= refused => {
                        turns.push(number, line, line.shorter_from(at, refused))
                    }
                    _ => match self.start_again(line, at, started) {
                        // The others of the line want the same limit raised.
                        Err(Wait::Limit(_)) if !self.minds_time => {}
                        _ => turns.push(number, line, at + 1),
                    },
                }
            }
        }
        self.guaranteed_only = false;
    }

    /// Whether any of some nodes has room now for a part of a shape. Jobs of reservations wait for the full pass, and those with
    /// licences, which may be promised to others.
    fn is_served(&self, shape: ShapeId, nodes: &BTreeSet<usize>) -> bool {
        let of = self.shape(shape);
        let serves = |at: &usize| {
            let track = &self.engine.cluster.nodes[*at];
            let fits = |way: usize| {
                let need = of.need(way, of.ways[way].last(), track.make);
                need.is_some_and(|need| {
                    self.engine
                        .cluster
                        .room(*at)
                        .fits(need, self.now, self.now.plus_millis(1))
                })
            };
            of.candidates.up.contains(*at) && (0..of.ways.len()).any(fits)
        };
        of.claim.own().is_none() && of.spec.licences.is_empty() && nodes.iter().any(serves)
    }

    /// Starts a job, or as many tasks as have room. One that has a reservation is tried without it, and keeps it where it
    /// does not start.
    fn start_again(
        &mut self,
        line: &Line,
        at: usize,
        started: &mut BTreeSet<JobId>,
    ) -> Result<(), Wait> {
        let job = &self.snapshot.pending[line.at[at] as usize];
        let partition = &self.snapshot.config.partitions[line.partition];
        if line.alone && reason::standing(job, partition, self.snapshot).is_some() {
            return Ok(());
        }
        let mine = |one: &Reserved| {
            one.job == job.id && one.choice == job.spec.choice() && job.positions.is_none()
        };
        let place = self.reserved.iter().position(mine);
        let own = place.map(|place| self.reserved.remove(place));
        for (hold, nodes) in own.iter().flat_map(|own| &own.holds) {
            nodes
                .clone()
                .for_each(|at| self.engine.cluster.touch(at).release(hold));
        }
        let mut room = self.array_room(job);
        let ids: Vec<JobId> = match &job.positions {
            None => vec![job.id],
            Some(positions) => positions
                .iter()
                .map(|position| JobId(job.id.0 + u64::from(position)))
                .collect(),
        };
        for id in ids {
            if room == 0 || self.is_spent() || started.contains(&id) {
                continue;
            }
            if let Err(wait) = self.start(job, id, line.shape) {
                self.keep(own);
                return Err(wait);
            }
            started.insert(id);
            room -= 1;
        }
        Ok(())
    }

    fn keep(&mut self, own: Option<Reserved>) {
        let Some(own) = own else { return };
        for (hold, nodes) in &own.holds {
            nodes
                .clone()
                .for_each(|at| self.engine.cluster.touch(at).hold_again(hold));
        }
        self.reserved.push(own);
    }
}
