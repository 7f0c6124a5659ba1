//! Starts that are foretold within limits: of who waits for a limit of somebody's, for a guarantee or for the next period of a cap.
//!
//! A pass keeps no room for those: who comes behind them and is within the limit starts. So here, too: who is planned to start before
//! one of them, and takes what was to be his, moves him on. Nothing of it is done in a pass that decides.

use crate::ledger::Take;
use crate::ledger::ahead::Ahead;
use crate::limits::Holding;
use crate::pass::{Pass, Want};
use crate::shape::ShapeId;
use crate::snapshot::PendingJob;
use crate::waiting::Earliest;
use gmodel::{JobId, Reason, ReasonCode, RunClass, Timestamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Times that are tried for one start until limits and nodes have room together.
const MOST_TIMES: usize = 16;
/// Those that are moved on together.
const MOST_BEHIND: usize = 32;
/// Those that are moved on in one plan. Then nobody is planned any more where he would move others on.
const MOST_MOVED: usize = 512;

/// What a plan that foretells knows of limits.
#[derive(Debug, Default)]
pub(crate) struct Foretold {
    ahead: Ahead,
    /// Starts that are planned, by their number in it.
    planned: BTreeMap<usize, Planned>,
    /// And by their place among the reservations.
    numbers: BTreeMap<usize, usize>,
    /// Those that were taken back for a while, by their place.
    lifted: BTreeMap<usize, (usize, Planned)>,
    /// Of whom it is to be seen whether they overtake others.
    fresh: VecDeque<usize>,
    /// How many were moved on.
    moved: usize,
    /// Some are being moved on.
    is_moving: bool,
    /// Who waits for a limit.
    put_off: BTreeSet<JobId>,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    want: Want,
    place: usize,
}

impl Pass<'_> {
    /// From now on limits have a say in the starts that are foretold.
    pub(crate) fn foretell(&mut self) {
        self.foretells = true;
        if !self.unlimited {
            self.foretold = Some(Box::new(Foretold { ahead: self.ledger.ahead(self.snapshot), ..Foretold::default() }));
        }
    }

    /// A limit says no to a job, or to so many tasks of an array: they are planned for when it has room.
    pub(crate) fn put_off(&mut self, job: &PendingJob, shape: ShapeId, reason: &Reason, tasks: u32) {
        // What is kept idle is no limit of the job's.
        if matches!(reason.code, ReasonCode::None | ReasonCode::Headroom | ReasonCode::Reservation | ReasonCode::Licenses) {
            return;
        }
        let Some(foretold) = &mut self.foretold else { return };
        foretold.put_off.insert(job.id);
        let partition = self.shape(shape).partition;
        if job.is_choice() {
            return self.reserve_choice(job, shape, partition, tasks);
        }
        for _ in 0..tasks {
            if self.is_spent() || self.reserve(job, shape).is_none() {
                return;
            }
        }
    }

    /// The earliest start of a job that limits allow, beside what is reserved already.
    pub(crate) fn earliest_allowed(&mut self, job: &PendingJob, shape: ShapeId) -> Option<Earliest> {
        if self.foretold.is_none() {
            return self.earliest(job, shape);
        }
        let who = self.ledger.whose(&job.spec);
        let mut from = self.now;
        for _ in 0..MOST_TIMES {
            let ways = 0..self.shape(shape).ways.len();
            let opens = |pass: &mut Self, take: &Take, from| {
                let ahead = &mut pass.foretold.as_mut()?.ahead;
                let open = pass.ledger.opens(ahead, job, who, take, from);
                pass.probes_left = pass.probes_left.saturating_sub(ahead.take_looked());
                open
            };
            let takes: Vec<Take> = ways.map(|way| self.shape(shape).ways[way].take.clone()).collect();
            from = takes.iter().filter_map(|take| opens(self, take, from)).min()?;
            let found = self.earliest_from(job, shape, from)?;
            let take = self.take_at(shape, found.way, &found.picked, self.secs_from(job, shape, found.at), found.at);
            let open = opens(self, &take, found.at)?;
            if open == found.at {
                return Some(found);
            }
            from = open;
        }
        None
    }

    /// A job was started now, with this limit.
    pub(crate) fn foretell_start(&mut self, job: &PendingJob, held: &Holding, class: Option<RunClass>, limit_secs: Option<u32>) {
        if self.foretold.is_none() {
            return;
        }
        let who = self.ledger.whose(&job.spec);
        let held = held.clone().until(limit_secs.map(|secs| held.since.plus_secs(i64::from(secs.max(1)))));
        let Some(foretold) = &mut self.foretold else { return };
        let number = self.ledger.book(&mut foretold.ahead, &job.spec, who, held, class);
        foretold.fresh.push_back(number);
        self.move_on();
    }

    /// A job was given the reservation at a place, in which it takes so much.
    pub(crate) fn foretell_later(&mut self, job: &PendingJob, shape: ShapeId, place: usize, take: &Take) {
        let at = self.reserved[place].at;
        let (is_array, choice) = (job.positions.is_some(), job.spec.choice());
        let want = Want { at: self.at_hand as u32, job: job.id, is_array, choice, shape, tasks: 1, may_begin: None };
        let who = self.ledger.whose(&job.spec);
        let held = self.ledger.holding_at(job, take, at);
        let Some(foretold) = &mut self.foretold else { return };
        let number = self.ledger.book(&mut foretold.ahead, &job.spec, who, held, None);
        foretold.planned.insert(number, Planned { want, place });
        foretold.numbers.insert(place, number);
        foretold.fresh.push_back(number);
        self.move_on();
    }

    /// A reservation is taken back.
    pub(crate) fn foretell_no_more(&mut self, place: usize) {
        let Some(foretold) = &mut self.foretold else { return };
        let Some(number) = foretold.numbers.remove(&place) else { return };
        self.ledger.unbook(&mut foretold.ahead, number);
        let planned = foretold.planned.remove(&number);
        foretold.lifted.extend(planned.map(|planned| (place, (number, planned))));
    }

    /// It holds again.
    pub(crate) fn foretell_again(&mut self, place: usize) {
        let Some(foretold) = &mut self.foretold else { return };
        let Some((number, planned)) = foretold.lifted.remove(&place) else { return };
        self.ledger.book_again(&mut foretold.ahead, number);
        foretold.planned.insert(number, planned);
        foretold.numbers.insert(place, number);
    }

    /// Those who cannot start as planned, now that somebody does before, are planned anew: the last of them first.
    fn move_on(&mut self) {
        if self.foretold.as_ref().is_none_or(|foretold| foretold.is_moving) {
            return;
        }
        self.foretold.iter_mut().for_each(|foretold| foretold.is_moving = true);
        while let Some(by) = self.foretold.as_mut().and_then(|foretold| foretold.fresh.pop_front()) {
            for number in self.overtaken(by).into_iter().rev() {
                if self.overtaken(by).contains(&number) {
                    self.plan_anew(number);
                }
            }
        }
        self.foretold.iter_mut().for_each(|foretold| foretold.is_moving = false);
    }

    fn overtaken(&mut self, by: usize) -> BTreeSet<usize> {
        let Some(foretold) = self.foretold.as_mut().filter(|foretold| !foretold.ahead.is_fixed) else { return BTreeSet::new() };
        let overtaken = self.ledger.overtaken(&mut foretold.ahead, by);
        self.probes_left = self.probes_left.saturating_sub(foretold.ahead.take_looked());
        overtaken
    }

    /// With those that wait for the same and start no sooner: who comes first of them may be another now.
    fn plan_anew(&mut self, number: usize) {
        let Some(foretold) = &self.foretold else { return };
        if !foretold.planned.contains_key(&number) {
            return;
        }
        let rivals = self.ledger.rivals(&foretold.ahead, number, MOST_BEHIND).into_iter();
        let planned = rivals.chain([(Timestamp::default(), number)]).filter_map(|(_, number)| foretold.planned.get(&number).copied());
        let mut anew: Vec<Planned> = planned.collect();
        anew.retain(|one| self.place_of_counted(one.want.shape).is_none());
        anew.sort_by_key(|one| (one.want.at, one.place));
        anew.dedup_by_key(|one| one.place);
        let jobs: Vec<(Planned, &PendingJob)> =
            anew.into_iter().filter_map(|one| Some((one, self.snapshot.job_near(&one.want).filter(|job| !job.is_choice())?))).collect();
        for (planned, job) in jobs.iter().rev() {
            self.lift_reserved(job, planned.place);
        }
        if let Some(foretold) = &mut self.foretold {
            foretold.moved += jobs.len();
            foretold.ahead.is_fixed = foretold.moved >= MOST_MOVED;
        }
        for (planned, job) in jobs {
            if self.is_spent() {
                return;
            }
            let Some(found) = self.earliest_allowed(job, planned.want.shape) else { continue };
            let at_hand = std::mem::replace(&mut self.at_hand, planned.want.at as usize);
            self.reserve_at(job, planned.want.shape, found);
            self.at_hand = at_hand;
        }
    }

    /// Whether any of some jobs waits for a limit: who comes behind it may have a say in when it starts.
    pub(crate) fn is_put_off(&self, jobs: &BTreeSet<JobId>) -> bool {
        self.foretold.as_ref().is_some_and(|foretold| !foretold.put_off.is_disjoint(jobs))
    }
}
