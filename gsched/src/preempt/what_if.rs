//! What would be if some runs were gone: the proof before anybody is made to give way, and for `--why`.
//!
//! Only the nodes of those runs are changed, and put back; the pass goes on as if nothing had been asked.

use crate::cluster::node_class::MakeId;
use crate::cluster::node_state::Room;
use crate::cluster::node_states::RoomId;
use crate::cluster::nodes::{end_after, end_of};
use crate::headroom::IdleGpus;
use crate::job::job_class::ShapeId;
use crate::pass::Pass;
use crate::place::claims;
use crate::place::search::{Ask, Picked};
use crate::plan::Preempt;
use crate::preempt::victims::{self, promised_guarantee, stands_still};
use crate::snapshot::{PendingJob, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::policy::{ALL_GPUS, PreemptMode};
use gmodel::run::NodeShare;
use gmodel::{GpuSet, JobId, Reason, ReasonCode, RunClass, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// A plan is entered so much later than its snapshot was made, at most: runs that it ends leave no later than is expected here.
const ENTRY_SECS: i64 = 10;
/// Jobs that wait for room of which a plan that foretells sees for whom runs may go later.
const MOST_LATER: usize = 64;

/// Runs that leave already, and for whom.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    pub runs: BTreeSet<RunId>,
    /// How many leave for each job, or task of an array.
    for_job: BTreeMap<JobId, usize>,
    /// Jobs that will stand on their account's guarantee then.
    owed: BTreeSet<JobId>,
}

impl Leaving {
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut leaving = Self {
            owed: promised_guarantee(snapshot),
            ..Self::default()
        };
        for run in snapshot
            .running
            .iter()
            .filter(|run| run.leaves_by.is_some())
        {
            leaving.runs.insert(run.run);
            if let Some(job) = run.leaves_for {
                *leaving.for_job.entry(job).or_default() += 1;
            }
        }
        leaving
    }

    /// How many leave for a job, or for any task of an array; `None`: nobody.
    pub fn for_job(&self, job: &PendingJob) -> Option<usize> {
        let count: usize = self
            .for_job
            .range(job.ids())
            .filter(|(id, _)| job.is_or_has(**id))
            .map(|(_, count)| count)
            .sum();
        (count > 0).then_some(count)
    }
}

impl Pass<'_> {
    /// A job starts: runs that were to go for it, and are not gone yet, may be told to stay. Nobody behind it counts on them.
    pub(crate) fn keep_those_who_went_for(&mut self, job: JobId) {
        if self.leaving.for_job.remove(&job).is_none() {
            return;
        }
        for run in self
            .snapshot
            .running
            .iter()
            .filter(|run| run.leaves_by.is_some() && run.leaves_for == Some(job))
        {
            self.leaving.runs.remove(&run.run);
            self.ledger.stays(run, self.snapshot);
        }
    }
}

/// What is put back after a look at what would be.
struct Before {
    rooms: Vec<(usize, RoomId)>,
    /// Where anything of it is kept.
    idle: Option<IdleGpus>,
}

/// Whether anybody may preempt anybody.
pub(crate) fn may_preempt(snapshot: &Snapshot) -> bool {
    let pairs = snapshot
        .policy
        .qos
        .values()
        .any(|qos| !qos.preempt.is_empty());
    !claims::is_unlimited(snapshot)
        && !snapshot.running.is_empty()
        && (pairs || snapshot.policy.has_quotas())
}

impl Pass<'_> {
    /// Whether a job could start now if these runs, and those that leave already, were gone.
    pub(crate) fn fits_without(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        gone: &BTreeSet<RunId>,
    ) -> bool {
        self.starts_without(job, shape, gone).is_some()
    }

    /// Whether a job could start now if nobody had anything of the nodes that take work, nor was promised anything.
    pub(crate) fn fits_when_idle(&mut self, job: &PendingJob, shape: ShapeId) -> bool {
        let secs = self.secs_now(job, shape);
        let saved = self.without_all();
        let fits = (0..self.shape(shape).ways.len())
            .any(|way| matches!(self.find(job, shape, way, secs), Ok(Some(_))));
        self.put_back(saved);
        fits
    }

    /// Where it could.
    pub(crate) fn starts_without(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        gone: &BTreeSet<RunId>,
    ) -> Option<Picked> {
        let now = self.snapshot.now;
        let secs = self.secs_now(job, shape);
        let end = end_after(now, Some(secs));
        let is_checked = !self.kept_nodes.is_empty()
            || self.ledger.keeps_idle()
            || (!self.unlimited && self.is_open(shape));
        let saved = self.without(gone);
        let ways = self.shape(shape).ways.len();
        let found = (0..ways).find_map(|way| match is_checked {
            // Beside what must stay idle, and within its limits on those nodes, too.
            true => self
                .find(job, shape, way, secs)
                .ok()
                .flatten()
                .map(|(picked, ..)| picked),
            false => self.search(job, shape, |search, ask| search.pick(ask, way, now, end)),
        });
        self.put_back(saved);
        found
    }

    /// Whether it is known only on its nodes what a job takes of limits and guarantees: GPUs of any type, in one of several ways, or all of
    /// whole nodes.
    fn is_open(&self, shape: ShapeId) -> bool {
        let ways = &self.shape(shape).ways;
        let is_whole = || {
            ways.iter()
                .any(|way| way.parts.iter().any(|part| part.demand.exclusive))
        };
        ways.len() > 1 || ways.iter().any(|way| way.take.gpus.contains_key(ALL_GPUS)) || is_whole()
    }

    /// The same, where it must stand on its account's guarantee then: on GPUs of a type, or nodes of a size, that this has room for.
    fn is_owed_without(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        gone: &BTreeSet<RunId>,
    ) -> Option<Picked> {
        let saved = self.without(gone);
        let secs = self.secs_now(job, shape);
        let ways = self.shape(shape).ways.len();
        let found = (0..ways).find_map(|way| self.find_guaranteed(job, shape, way, secs));
        self.put_back(saved);
        found
    }

    fn find_guaranteed(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        way: usize,
        secs: u32,
    ) -> Option<Picked> {
        let now = self.snapshot.now;
        let end = end_after(now, Some(secs));
        let liked = self.search(job, shape, |search, ask| search.pick(ask, way, now, end))?;
        let is_guaranteed = |pass: &Self, picked: &Picked| {
            let class = pass.check(job, &pass.take_of(shape, way, picked, secs));
            matches!(class, Ok(Some(RunClass::Guaranteed)))
        };
        if is_guaranteed(self, &liked) {
            return Some(liked);
        }
        let of_types = self
            .gpu_types(shape)
            .into_iter()
            .map(|kind| self.nodes_of_type(shape, &kind));
        let choices: Vec<FixedBitSet> = of_types.chain(self.smaller_nodes(shape, way)).collect();
        choices.into_iter().find_map(|only| {
            let picked = self.search(job, shape, |search, ask| {
                search.pick(
                    &Ask {
                        only: Some(&only),
                        ..*ask
                    },
                    way,
                    now,
                    end,
                )
            });
            picked.filter(|picked| is_guaranteed(self, picked))
        })
    }

    /// Takes runs off their nodes; what was before.
    fn without(&mut self, gone: &BTreeSet<RunId>) -> Before {
        let now = self.snapshot.now;
        let runs: BTreeSet<RunId> = gone.iter().chain(&self.leaving.runs).copied().collect();
        let running = &self.snapshot.running;
        let of_run = |run: &RunId| {
            running
                .binary_search_by_key(run, |one| one.run)
                .ok()
                .map(|at| &running[at])
        };
        let cluster = &mut self.engine.cluster;
        let shares = runs.iter().filter_map(of_run).flat_map(|run| &run.shares);
        let nodes: BTreeSet<usize> = shares
            .filter_map(|share| cluster.place(share.node))
            .collect();
        let mut saved = Vec::with_capacity(nodes.len());
        for at in nodes {
            let mut room = cluster.room(at).clone();
            let make = &cluster.makes.list[cluster.nodes[at].make as usize];
            for (id, end, share) in cluster.held_on(at).filter(|(run, ..)| runs.contains(run)) {
                match gone.contains(&id)
                    && of_run(&id).is_some_and(|run| stands_still(self.snapshot, run))
                {
                    true => room.leave(
                        make,
                        &NodeShare {
                            mem_bytes: 0,
                            gpus: GpuSet::default(),
                            ..share.clone()
                        },
                        now,
                        end,
                    ),
                    false => room.leave(make, share, now, end),
                }
            }
            saved.push((at, cluster.room_id(at)));
            *cluster.touch(at) = room;
            cluster.file(at);
        }
        let leave = gone
            .iter()
            .filter_map(of_run)
            .filter(|run| !stands_still(self.snapshot, run));
        let idle = self
            .ledger
            .keeps_idle()
            .then(|| self.ledger.idle_without(leave, self.snapshot));
        Before { rooms: saved, idle }
    }

    /// Takes everybody off.
    fn without_all(&mut self) -> Before {
        let cluster = &mut self.engine.cluster;
        let mut idle: BTreeMap<MakeId, RoomId> = BTreeMap::new();
        let mut saved = Vec::with_capacity(cluster.nodes.len());
        for at in 0..cluster.nodes.len() {
            saved.push((at, cluster.room_id(at)));
            let make = cluster.nodes[at].make;
            match idle.get(&make) {
                Some(room) => cluster.set_room(at, *room),
                None => {
                    let room = Room::idle(&cluster.makes.list[make as usize], self.now);
                    *cluster.touch(at) = room;
                    idle.insert(make, cluster.room_id(at));
                }
            }
            cluster.file(at);
        }
        Before {
            rooms: saved,
            idle: Some(self.ledger.idle_without_all()),
        }
    }

    fn put_back(&mut self, before: Before) {
        for (at, room) in before.rooms {
            self.engine.cluster.set_room(at, room);
            self.engine.cluster.file(at);
        }
        before
            .idle
            .into_iter()
            .for_each(|idle| self.ledger.put_idle_back(idle));
    }

    /// Makes others give way to a job that waits for room, where somebody owes it that.
    pub(crate) fn preempt_for(&mut self, job: &PendingJob, shape: ShapeId) -> Option<Reason> {
        if let Some(runs) = self.leaving.for_job(job) {
            if !self.ledger.is_owed(job) {
                let class = self.class_owed(job, shape);
                if job.is_among(&self.leaving.owed) {
                    self.ledger.claim(job, &[]);
                }
                self.owe(job, shape, class, &[]);
            }
            return Some(self.freed_reason(job, preempting(runs)));
        }
        if self.waits_for_the_rest(job, shape) {
            if !self.ledger.is_owed(job) {
                let class = self.class_owed(job, shape);
                self.owe(job, shape, class, &[]);
            }
            return Some(self.freed_reason(job, job.reason.clone()));
        }
        // In another of its partitions its turn has come before.
        let chosen = |job: &PendingJob| {
            self.preempts()
                .filter(|one| job.is_or_has(one.for_job))
                .count()
        };
        if job.is_choice() && chosen(job) > 0 {
            return Some(self.freed_reason(job, preempting(chosen(job))));
        }
        if self.cap_is_promised(job) {
            return None;
        }
        let frozen = self.frozen?;
        // What was started in this pass may have used up what the job is owed.
        let way = &self.shape(shape).ways.first()?.take;
        let class = self.ledger.check_but_idle(job, way).ok()?;
        if frozen.check_but_idle(job, way).ok()? != class {
            return None;
        }
        // Whether the guarantee has room may depend on where others leave.
        let by_type = self.is_open(shape) && class == Some(RunClass::Guaranteed);
        let mut candidates = self.candidates.take()?;
        let starts = |pass: &mut Self, gone: &BTreeSet<RunId>| match by_type {
            true => pass.is_owed_without(job, shape, gone),
            false => pass.starts_without(job, shape, gone),
        };
        // Those who leave already may be enough: it waits for them as for others that end.
        let is_enough = !self.leaving.runs.is_empty() && starts(self, &BTreeSet::new()).is_some();
        let victims = if is_enough {
            None
        } else {
            candidates.victims(job, &mut |gone| starts(self, gone).is_some())
        };
        self.candidates = Some(candidates);
        let victims: Vec<Preempt> = victims.filter(|victims| !victims.is_empty())?;
        let freezes = victims
            .iter()
            .all(|victim| victim.mode == PreemptMode::Suspend);
        let reason = if freezes {
            standing_still(victims.len())
        } else {
            preempting(victims.len())
        };
        let gone = victims.iter().map(|victim| victim.run).collect();
        let there = starts(self, &gone);
        if !self.ledger.claim(job, &victims) {
            return None;
        }
        there
            .into_iter()
            .for_each(|there| self.free_for(job, &there));
        victims
            .iter()
            .for_each(|victim| self.expect_back(victim, self.snapshot.now));
        self.owe(job, shape, class, &victims);
        self.preempt(job, victims);
        Some(self.freed_reason(job, reason))
    }

    /// Whether those who went for a job have left, and runs that go for others were counted on, too, which have not yet: what it has is
    /// its own until then, or those would have gone in vain.
    fn waits_for_the_rest(&mut self, job: &PendingJob, shape: ShapeId) -> bool {
        let has_some = job.reason.code == ReasonCode::Preempting
            && job.reason.nodes.is_some()
            && !self.leaving.runs.is_empty();
        has_some && self.fits_without(job, shape, &BTreeSet::new())
    }

    /// When runs may be ended for a job that waits for room, which are left alone until then; `None` where none would help, or some may
    /// be ended now.
    pub(crate) fn may_preempt_from(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
    ) -> Option<Timestamp> {
        let frozen = self
            .frozen
            .filter(|_| self.leaving.for_job(job).is_none())?;
        let way = &self.shape(shape).ways.first()?.take;
        self.ledger.check_but_idle(job, way).ok()?;
        let (snapshot, others) = (self.snapshot, self.go_for_others());
        victims::may_from(snapshot, frozen, job, &others, &mut |gone| {
            self.fits_without(job, shape, gone)
        })
    }

    /// Runs that go for those before it in this pass, now or later.
    fn go_for_others(&self) -> BTreeSet<RunId> {
        let later = self
            .foretold
            .iter()
            .flat_map(|foretold| foretold.leave_later.iter().copied());
        self.preempts().map(|one| one.run).chain(later).collect()
    }

    /// Where starts are foretold: runs that are left alone for a while yet leave for a job when that is over, if it has no room before.
    pub(crate) fn expect_later(&mut self, job: &PendingJob, shape: ShapeId) {
        let (snapshot, Some(frozen), Some(foretold)) =
            (self.snapshot, self.frozen, &mut self.foretold)
        else {
            return;
        };
        if foretold.looked_later >= MOST_LATER {
            return;
        }
        foretold.looked_later += 1;
        let Some(from) = self.may_preempt_from(job, shape) else {
            return;
        };
        if self
            .earliest(job, shape)
            .is_some_and(|found| found.at <= from)
        {
            return;
        }
        let others = self.go_for_others();
        let victims = victims::victims_at(snapshot, frozen, job, (from, &others), &mut |gone| {
            self.fits_without(job, shape, gone)
        });
        let victims = victims.unwrap_or_default();
        victims
            .iter()
            .for_each(|victim| self.expect_back(victim, from));
        self.foretold.iter_mut().for_each(|foretold| {
            foretold
                .leave_later
                .extend(victims.iter().map(|victim| victim.run))
        });
        self.forget_not_before();
    }

    /// The class in which a job is to start for which others went.
    fn class_owed(&self, job: &PendingJob, shape: ShapeId) -> Option<RunClass> {
        let way = self.shape(shape).ways.first()?;
        self.ledger.check_but_idle(job, &way.take).ok()?
    }

    /// Those behind a job leave it what it needs beyond what those leave who go for it.
    fn owe(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        class: Option<RunClass>,
        victims: &[Preempt],
    ) {
        let snapshot = self.snapshot;
        let Some(way) = self.engine.shapes.list[shape as usize].ways.first() else {
            return;
        };
        let leave = victims
            .iter()
            .filter(|victim| victim.mode != PreemptMode::Suspend);
        let leave = leave.filter_map(|victim| {
            snapshot
                .running
                .binary_search_by_key(&victim.run, |one| one.run)
                .ok()
        });
        let on = self
            .freed_reason(job, Reason::default())
            .nodes
            .unwrap_or_default();
        self.ledger.owe(
            job,
            (&way.take, class),
            &on,
            leave.map(|at| &snapshot.running[at]),
            snapshot,
        );
    }

    /// What a run holds that is to go from then on is free soon after: so the job that it goes for gets its reservation there and then, and nobody
    /// behind it takes what else it needs there meanwhile.
    fn expect_back(&mut self, victim: &Preempt, from: Timestamp) {
        let running = &self.snapshot.running;
        let run = running
            .binary_search_by_key(&victim.run, |one| one.run)
            .ok()
            .map(|at| &running[at]);
        let Some(run) = run.filter(|_| victim.mode != PreemptMode::Suspend) else {
            return;
        };
        let config = &self.snapshot.config;
        let checkpoint = run.spec.checkpoint.as_ref().or(config
            .scheduler
            .preempt
            .default_checkpoint
            .as_ref());
        let grace_secs = i64::from(checkpoint.map_or(0, |one| one.grace_secs))
            + i64::from(config.kill_grace_secs);
        let soon = from.plus_secs(grace_secs + ENTRY_SECS);
        let end = end_of(run);
        let cluster = &mut self.engine.cluster;
        for share in run.shares.iter().filter(|_| soon < end) {
            let Some(at) = cluster.place(share.node) else {
                continue;
            };
            let mut room = cluster.room(at).clone();
            room.leave_at(
                &cluster.makes.list[cluster.nodes[at].make as usize],
                share,
                soon,
                end,
            );
            *cluster.touch(at) = room;
        }
    }
}

fn standing_still(runs: usize) -> Reason {
    let text = if runs == 1 {
        "a run stands still".into()
    } else {
        format!("{runs} runs stand still")
    };
    Reason::new(
        ReasonCode::Preempting,
        format!("{text} to make room for it"),
    )
}

fn preempting(runs: usize) -> Reason {
    let text = match runs {
        1 => "a run is ended to make room for it".into(),
        runs => format!("{runs} runs are ended to make room for it"),
    };
    Reason::new(ReasonCode::Preempting, text)
}
