//! Starts that are foretold within limits: of who waits for a limit of somebody's, for a guarantee, for the next period of a cap, or until
//! more is idle than is kept.
//!
//! A pass keeps no room for those: who comes behind them and is within the limit starts. So here, too: who is planned to start before
//! one of them, and takes what was to be his, moves him on. Nothing of it is done in a pass that decides.

use crate::backfill::waiting::Earliest;
use crate::cluster::nodes::end_after;
use crate::cluster::timeline::UNLIMITED_SECS;
use crate::forecast::in_turn::{in_a_row, tasks_of};
use crate::job::job_class::ShapeId;
use crate::ledger::ahead::Ahead;
use crate::ledger::{Take, Who};
use crate::limits::Holding;
use crate::pass::{Pass, Want};
use crate::place::search::{Ask, Picked, each};
use crate::snapshot::PendingJob;
use fixedbitset::FixedBitSet;
use gmodel::run::NodeShare;
use gmodel::{JobId, Reason, ReasonCode, RunClass, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::Excluded;

/// Times that are tried for one start until limits and nodes have room together.
const MOST_TIMES: usize = 16;
/// The same where something is kept idle on some nodes.
const MOST_TIMES_BESIDE_KEPT: usize = 128;
/// Starts and ends between which it is seen whether a job waits for idle GPUs alone.
const MOST_EDGES: usize = 64;
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
    /// Starts, now or planned, that take whole nodes that were idle, of which some are kept.
    breaks: BTreeSet<usize>,
    breaking: BTreeSet<(Timestamp, usize)>,
    /// When the job at hand waits only for more to be idle.
    waits: Vec<(Timestamp, Timestamp)>,
    /// Runs that go for some when they have run long enough, and of how many jobs it was looked for them.
    pub leave_later: BTreeSet<RunId>,
    pub looked_later: usize,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    want: Want,
    place: usize,
}

/// What a start takes of which nodes.
pub(crate) struct TakenThere {
    /// By partition that keeps GPUs idle: what it takes on the nodes of that.
    on_kept: Vec<Take>,
    all: Take,
    breaks: bool,
}

impl Foretold {
    fn note_breaks(&mut self, at: Timestamp, number: usize, breaks: bool) {
        if breaks {
            self.breaks.insert(number);
            self.breaking.insert((at, number));
        }
    }
}

impl Pass<'_> {
    /// From now on limits have a say in the starts that are foretold.
    pub(crate) fn foretell(&mut self) {
        self.foretells = true;
        if !self.unlimited || !self.kept_nodes.is_empty() {
            self.foretold = Some(Box::new(Foretold {
                ahead: self.ledger.ahead(self.snapshot),
                ..Foretold::default()
            }));
        }
    }

    /// A limit says no to a job, or to so many tasks of an array: they are planned for when it has room.
    pub(crate) fn put_off(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        reason: &Reason,
        tasks: u32,
    ) {
        if matches!(
            reason.code,
            ReasonCode::None | ReasonCode::Reservation | ReasonCode::Licenses
        ) {
            return;
        }
        let Some(foretold) = &mut self.foretold else {
            return;
        };
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

    /// Who waits for something else may wait for a limit besides.
    pub(crate) fn note_limits(&mut self, job: &PendingJob, shape: ShapeId) {
        let is_limited = !self.limit_blockers(job, shape).is_empty();
        if let Some(foretold) = self.foretold.as_mut().filter(|_| is_limited) {
            foretold.put_off.insert(job.id);
        }
    }

    /// The earliest start of a job that limits allow, beside what is reserved already.
    pub(crate) fn earliest_allowed(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
    ) -> Option<Earliest> {
        if self.foretold.is_none() {
            return self.earliest(job, shape);
        }
        let who = self.ledger.whose(&job.spec);
        let takes: Vec<Take> = self
            .shape(shape)
            .ways
            .iter()
            .map(|way| way.take.clone())
            .collect();
        let keeps_there = !self.kept_nodes.is_empty() || !self.kept_idle_on.is_empty();
        // From when on limits allow it, and only too little may be idle.
        let allowed = takes
            .iter()
            .filter_map(|take| self.opens(job, who, take, self.now, false))
            .min();
        let mut from = self.now;
        for round in 0..if keeps_there {
            MOST_TIMES_BESIDE_KEPT
        } else {
            MOST_TIMES
        } {
            from = takes
                .iter()
                .filter_map(|take| self.opens(job, who, take, from, true))
                .min()?;
            if round == 0 {
                self.note_waits(job, (who, &takes), allowed, from);
            }
            let found = self.earliest_from(job, shape, from)?;
            let take = self.take_at(
                shape,
                found.way,
                &found.picked,
                self.secs_from(job, shape, found.at),
                found.at,
            );
            let open = self.opens(job, who, &take, found.at, true)?;
            if open > found.at {
                from = open;
                continue;
            }
            match self.beside_kept(job, shape, found) {
                Ok(found) => return Some(found),
                Err(later) => {
                    from = later?;
                    self.note_waits(job, (who, &takes), allowed, from);
                }
            }
        }
        None
    }

    /// A job waits from one time on until another: as long as limits allow it, only for more to be idle.
    fn note_waits(
        &mut self,
        job: &PendingJob,
        (who, takes): (Who, &[Take]),
        from: Option<Timestamp>,
        until: Timestamp,
    ) {
        let Some(foretold) = &self.foretold else {
            return;
        };
        let Some(from) = from.filter(|from| *from < until) else {
            return self
                .foretold
                .iter_mut()
                .for_each(|foretold| foretold.waits.clear());
        };
        let mut edges = self
            .ledger
            .idle_changes(&foretold.ahead, from, until, MOST_EDGES);
        edges.insert(0, from);
        edges.push(until);
        let mut waits = Vec::new();
        for edge in edges.windows(2) {
            if takes
                .iter()
                .any(|take| self.opens(job, who, take, edge[0], false) == Some(edge[0]))
            {
                waits.push((edge[0], edge[1]));
            }
        }
        self.foretold
            .iter_mut()
            .for_each(|foretold| foretold.waits = std::mem::take(&mut waits));
    }

    /// While one runs a limit may be in the way of others that waited only for more to be idle: then they set nothing aside.
    fn wait_less(&mut self, by: usize) {
        let Some(foretold) = &self.foretold else {
            return;
        };
        let span = self.ledger.span_of(&foretold.ahead, by);
        let others: Vec<usize> = self
            .ledger
            .set_aside_within(&foretold.ahead, span)
            .filter(|number| *number != by)
            .take(MOST_BEHIND)
            .collect();
        for number in others {
            let Some(foretold) = &self.foretold else {
                return;
            };
            let waiting = foretold.planned.get(&number).and_then(|planned| {
                Some((self.snapshot.job_near(&planned.want)?, planned.want.shape))
            });
            let Some((job, shape)) = waiting else {
                continue;
            };
            let is_moving = foretold.is_moving || foretold.ahead.is_fixed;
            let mut waits = self.ledger.set_aside_by(&foretold.ahead, number, span);
            let all = waits.len();
            let takes: Vec<Take> = self
                .shape(shape)
                .ways
                .iter()
                .map(|way| way.take.clone())
                .collect();
            let who = self.ledger.whose(&job.spec);
            waits.retain(|(from, _)| {
                takes
                    .iter()
                    .any(|take| self.opens(job, who, take, *from, false) == Some(*from))
            });
            if waits.len() < all {
                self.foretold.iter_mut().for_each(|foretold| {
                    self.ledger
                        .set_aside_anew(&mut foretold.ahead, number, &waits)
                });
                if !is_moving {
                    // Those behind it may start then.
                    self.move_anew(number);
                }
            }
        }
    }

    /// The first time from one on at which limits allow a job to take so much, and, where that is asked, enough is idle.
    fn opens(
        &mut self,
        job: &PendingJob,
        who: Who,
        take: &Take,
        from: Timestamp,
        minds_idle: bool,
    ) -> Option<Timestamp> {
        let ahead = &mut self.foretold.as_mut()?.ahead;
        let mut open = Some(from);
        for _ in 0..MOST_TIMES {
            let Some(at) = open else { break };
            open = self.ledger.opens(ahead, job, who, take, at);
            let Some(allowed) = open.filter(|_| minds_idle) else {
                break;
            };
            open = self.ledger.idle_opens(ahead, job, who, take, allowed);
            if open == Some(at) {
                break;
            }
        }
        self.probes_left = self.probes_left.saturating_sub(ahead.take_looked());
        open
    }

    /// A start beside what partitions keep idle on their nodes: this one, or at the same time on other nodes. Else from when on there may
    /// be one.
    fn beside_kept(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        found: Earliest,
    ) -> Result<Earliest, Option<Timestamp>> {
        let keeps_there = !self.kept_nodes.is_empty() || !self.kept_idle_on.is_empty();
        if !keeps_there
            || self.is_spared(job, shape, &found)
            || self.leaves_kept(job, shape, (found.way, found.at), &found.picked)
        {
            return Ok(found);
        }
        let (way, at) = (found.way, found.at);
        let secs = self.secs_from(job, shape, at);
        // On nodes that are in use, or of no partition that keeps anything there.
        let mut beside = self.nodes_not_whole(shape, at);
        let mut outside = beside.clone();
        self.kept_idle_on
            .iter()
            .for_each(|(_, kept)| outside.difference_with(kept));
        let open = self.bounds(job).map(|bounds| {
            let mut open = FixedBitSet::with_capacity(beside.len());
            bounds.iter().for_each(|nodes| open.union_with(nodes));
            open
        });
        open.iter().for_each(|open| {
            [&mut beside, &mut outside]
                .into_iter()
                .for_each(|nodes| nodes.intersect_with(open))
        });
        let end = end_after(at, Some(secs));
        for only in [&beside, &outside] {
            let picked = self.search(job, shape, |search, ask| {
                search.pick(
                    &Ask {
                        only: Some(only),
                        ..*ask
                    },
                    way,
                    at,
                    end,
                )
            });
            if let Some(picked) =
                picked.filter(|picked| self.leaves_kept(job, shape, (way, at), picked))
            {
                return Ok(Earliest {
                    picked,
                    early: None,
                    ..found
                });
            }
        }
        let is_kept =
            |pass: &Self, picked: &Picked| !pass.leaves_kept(job, shape, (way, at), picked);
        if let Some(picked) = self.pick_beside_kept(
            job,
            shape,
            (way, at, end),
            (&found.picked, open.as_ref()),
            &is_kept,
        ) {
            return Ok(Earliest {
                picked,
                early: None,
                ..found
            });
        }
        let soon = at.plus_millis(1);
        let horizon = self.snapshot.now.plus_secs(3 * i64::from(UNLIMITED_SECS));
        let there = self.search(job, shape, |search, ask| {
            search.earliest(
                &Ask {
                    only: Some(&outside),
                    ..*ask
                },
                way,
                (soon, job.held_secs()),
                horizon,
            )
        });
        Err(there
            .map(|(at, _)| at)
            .into_iter()
            .chain(self.more_is_idle(at))
            .min())
    }

    /// When a node that is kept becomes idle after a time, or anything changes where GPUs are kept.
    fn more_is_idle(&self, after: Timestamp) -> Option<Timestamp> {
        let cluster = &self.engine.cluster;
        let becomes_idle = |at: usize| {
            let make = &cluster.makes.list[cluster.nodes[at].make as usize];
            let steps = cluster.room(at).profile.steps();
            let is_idle = |step: &crate::cluster::timeline::Step| {
                step.free.cpus == make.all.cpus && step.free.gpus == make.all.gpus
            };
            steps
                .windows(2)
                .find(|pair| pair[1].at > after && is_idle(&pair[1]) && !is_idle(&pair[0]))
                .map(|pair| pair[1].at)
        };
        let whole = self
            .kept_nodes
            .iter()
            .flat_map(|kept| kept.nodes.ones())
            .filter_map(becomes_idle);
        let any = self
            .kept_idle_on
            .iter()
            .flat_map(|(_, nodes)| nodes.ones())
            .filter_map(|at| cluster.room(at).next_change(after));
        whole.chain(any).min()
    }

    /// What partitions keep is there for it.
    fn is_spared(&mut self, job: &PendingJob, shape: ShapeId, found: &Earliest) -> bool {
        if self.ledger.is_urgent(&job.spec) {
            return true;
        }
        let who = self.ledger.whose(&job.spec);
        let take = self.take_at(
            shape,
            found.way,
            &found.picked,
            self.secs_from(job, shape, found.at),
            found.at,
        );
        let held = self.ledger.holding_at(job, &take, found.at);
        let ahead = self.foretold.as_mut().map(|foretold| &mut foretold.ahead);
        ahead.is_some_and(|ahead| {
            self.ledger
                .is_guaranteed_at(ahead, &job.spec, who, &held, found.at)
        })
    }

    /// Whether what partitions keep on their nodes stays idle beside a start on some.
    fn leaves_kept(
        &self,
        job: &PendingJob,
        shape: ShapeId,
        (way, at): (usize, Timestamp),
        picked: &Picked,
    ) -> bool {
        let Some(foretold) = &self.foretold else {
            return true;
        };
        let Some(there) =
            self.taken_there(shape, way, picked, (at, self.secs_from(job, shape, at)))
        else {
            return true;
        };
        let leaves = |((keeper, _), taken): (&(usize, FixedBitSet), &Take)| {
            taken.gpus.is_empty()
                || self
                    .ledger
                    .leaves_idle(&foretold.ahead, *keeper, job, taken, at)
        };
        self.kept_idle_on.iter().zip(&there.on_kept).all(leaves)
            && self.kept_nodes.iter().all(|kept| {
                let taken = each(picked)
                    .filter(|(node, _)| kept.nodes.contains(*node) && self.is_idle_at(*node, at))
                    .count();
                taken == 0 || self.idle_nodes(&kept.nodes, at) >= kept.most + taken
            })
    }

    fn idle_nodes(&self, nodes: &FixedBitSet, at: Timestamp) -> usize {
        nodes
            .ones()
            .filter(|node| self.is_idle_at(*node, at))
            .count()
    }

    /// What a start takes of some nodes, as they are before it; where starts are foretold within limits.
    pub(crate) fn taken_there(
        &self,
        shape: ShapeId,
        way: usize,
        picked: &Picked,
        (at, secs): (Timestamp, u32),
    ) -> Option<TakenThere> {
        self.foretold.as_ref()?;
        let take_on = |nodes: &FixedBitSet| {
            let there: Picked = each(picked)
                .filter(|(node, _)| nodes.contains(*node))
                .map(|(node, part)| (node..node + 1, part))
                .collect();
            self.take_at(shape, way, &there, secs, at)
        };
        let breaks = |nodes: &FixedBitSet| {
            each(picked).any(|(node, _)| nodes.contains(node) && self.is_idle_at(node, at))
        };
        Some(TakenThere {
            on_kept: self
                .kept_idle_on
                .iter()
                .map(|(_, nodes)| take_on(nodes))
                .collect(),
            all: self.take_at(shape, way, picked, secs, at),
            breaks: self.kept_nodes.iter().any(|kept| breaks(&kept.nodes)),
        })
    }

    /// Counts a start, or a task's; `there`: where starts are foretold.
    pub(crate) fn count_start(
        &mut self,
        job: &PendingJob,
        id: JobId,
        (take, class): (&Take, Option<RunClass>),
        allocation: &[NodeShare],
        there: Option<TakenThere>,
        limit_secs: Option<u32>,
    ) {
        let held = match self.unlimited {
            true => Holding::new(0, 0, self.now, None),
            false => self
                .ledger
                .take(job, take, class, Some((allocation, self.snapshot))),
        };
        if let Some(there) = there {
            self.foretell_start(job, &held, &there, class, limit_secs);
        }
        if !self.unlimited {
            self.ledger.expect(id, held);
        }
    }

    /// A job was started now, with this limit.
    fn foretell_start(
        &mut self,
        job: &PendingJob,
        held: &Holding,
        there: &TakenThere,
        class: Option<RunClass>,
        limit_secs: Option<u32>,
    ) {
        if self.foretold.is_none() {
            return;
        }
        let who = self.ledger.whose(&job.spec);
        let held = held
            .clone()
            .until(limit_secs.map(|secs| held.since.plus_secs(i64::from(secs.max(1)))));
        let Some(foretold) = &mut self.foretold else {
            return;
        };
        let number = self.ledger.book_start(
            &mut foretold.ahead,
            job,
            who,
            held,
            class,
            &there.on_kept,
            Vec::new(),
        );
        foretold.note_breaks(self.now, number, there.breaks);
        foretold.fresh.push_back(number);
        self.wait_less(number);
        self.move_on();
    }

    /// A job was given the reservation at a place, in which it takes so much.
    pub(crate) fn foretell_later(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        place: usize,
        there: &TakenThere,
    ) {
        let at = self.reserved[place].at;
        let (is_array, choice) = (job.positions.is_some(), job.spec.choice());
        let want = Want {
            at: self.at_hand as u32,
            job: job.id,
            is_array,
            choice,
            shape,
            tasks: 1,
            may_begin: None,
        };
        let who = self.ledger.whose(&job.spec);
        let held = self.ledger.holding_at(job, &there.all, at);
        let Some(foretold) = &mut self.foretold else {
            return;
        };
        let waits = std::mem::take(&mut foretold.waits);
        let number = self.ledger.book_start(
            &mut foretold.ahead,
            job,
            who,
            held,
            None,
            &there.on_kept,
            waits,
        );
        foretold.planned.insert(number, Planned { want, place });
        foretold.numbers.insert(place, number);
        foretold.note_breaks(at, number, there.breaks);
        foretold.fresh.push_back(number);
        self.wait_less(number);
        self.move_on();
    }

    /// A reservation is taken back.
    pub(crate) fn foretell_no_more(&mut self, place: usize) {
        let Some(foretold) = &mut self.foretold else {
            return;
        };
        let Some(number) = foretold.numbers.remove(&place) else {
            return;
        };
        self.ledger.unbook(&mut foretold.ahead, number);
        foretold.breaking.remove(&(self.reserved[place].at, number));
        let planned = foretold.planned.remove(&number);
        foretold
            .lifted
            .extend(planned.map(|planned| (place, (number, planned))));
    }

    /// It holds again.
    pub(crate) fn foretell_again(&mut self, place: usize) {
        let Some(foretold) = &mut self.foretold else {
            return;
        };
        let Some((number, planned)) = foretold.lifted.remove(&place) else {
            return;
        };
        self.ledger.book_again(&mut foretold.ahead, number);
        if foretold.breaks.contains(&number) {
            foretold.breaking.insert((self.reserved[place].at, number));
        }
        foretold.planned.insert(number, planned);
        foretold.numbers.insert(place, number);
    }

    /// Those who cannot start as planned, now that somebody does before, are planned anew: the last of them first.
    fn move_on(&mut self) {
        if self
            .foretold
            .as_ref()
            .is_none_or(|foretold| foretold.is_moving)
        {
            return;
        }
        self.foretold
            .iter_mut()
            .for_each(|foretold| foretold.is_moving = true);
        while let Some(by) = self
            .foretold
            .as_mut()
            .and_then(|foretold| foretold.fresh.pop_front())
        {
            for number in self.overtaken(by).into_iter().rev() {
                if self.overtaken(by).contains(&number) {
                    self.plan_anew(number);
                }
            }
        }
        self.foretold
            .iter_mut()
            .for_each(|foretold| foretold.is_moving = false);
    }

    fn move_anew(&mut self, number: usize) {
        self.foretold
            .iter_mut()
            .for_each(|foretold| foretold.is_moving = true);
        self.plan_anew(number);
        self.foretold
            .iter_mut()
            .for_each(|foretold| foretold.is_moving = false);
    }

    fn overtaken(&mut self, by: usize) -> BTreeSet<usize> {
        let Some(foretold) = self
            .foretold
            .as_mut()
            .filter(|foretold| !foretold.ahead.is_fixed)
        else {
            return BTreeSet::new();
        };
        let mut overtaken = self.ledger.overtaken(&mut foretold.ahead, by);
        self.probes_left = self
            .probes_left
            .saturating_sub(foretold.ahead.take_looked());
        self.overtaken_on_nodes(by, &mut overtaken);
        overtaken
    }

    /// Those who were to take whole nodes that were idle, and leave too few of them now.
    fn overtaken_on_nodes(&mut self, by: usize, overtaken: &mut BTreeSet<usize>) {
        let Some(foretold) = self
            .foretold
            .as_ref()
            .filter(|foretold| !foretold.breaking.is_empty())
        else {
            return;
        };
        let (from, until) = self.ledger.span_of(&foretold.ahead, by);
        if until <= from {
            return;
        }
        let later: Vec<(Timestamp, usize)> = foretold
            .breaking
            .range((Excluded((from, usize::MAX)), Excluded((until, 0))))
            .take(MOST_BEHIND)
            .copied()
            .collect();
        for (at, number) in later {
            let nodes: usize = self
                .kept_nodes
                .iter()
                .map(|kept| kept.nodes.count_ones(..))
                .sum();
            self.probes_left = self.probes_left.saturating_sub(nodes as u64);
            if self
                .kept_nodes
                .iter()
                .any(|kept| self.idle_nodes(&kept.nodes, at) < kept.most)
            {
                overtaken.insert(number);
            }
        }
    }

    /// With those that wait for the same and start no sooner: who comes first of them may be another now.
    fn plan_anew(&mut self, number: usize) {
        let Some(foretold) = &self.foretold else {
            return;
        };
        if !foretold.planned.contains_key(&number) {
            return;
        }
        let rivals = self
            .ledger
            .rivals(&foretold.ahead, number, MOST_BEHIND)
            .into_iter();
        let planned = rivals
            .chain([(Timestamp::default(), number)])
            .filter_map(|(_, number)| foretold.planned.get(&number).copied());
        let mut anew: Vec<Planned> = planned.collect();
        anew.retain(|one| self.place_of_counted(one.want.shape).is_none());
        anew.sort_by_key(|one| (one.want.at, one.place));
        anew.dedup_by_key(|one| one.place);
        let jobs: Vec<(Planned, &PendingJob)> = anew
            .into_iter()
            .filter_map(|one| {
                Some((
                    one,
                    self.snapshot
                        .job_near(&one.want)
                        .filter(|job| !job.is_choice())?,
                ))
            })
            .collect();
        let mut rows: Vec<PendingJob> = Vec::with_capacity(jobs.len());
        for (planned, job) in jobs.iter().rev() {
            let was = self.lift_reserved(job, planned.place);
            rows.push(in_a_row(job, tasks_of(job, &was)));
        }
        if let Some(foretold) = &mut self.foretold {
            foretold.moved += jobs.len();
            foretold.ahead.is_fixed = foretold.moved >= MOST_MOVED;
        }
        for ((planned, _), job) in jobs.iter().zip(rows.iter().rev()) {
            if self.is_spent() {
                return;
            }
            let Some(found) = self.earliest_allowed(job, planned.want.shape) else {
                continue;
            };
            let at_hand = std::mem::replace(&mut self.at_hand, planned.want.at as usize);
            self.reserve_at(job, planned.want.shape, found);
            self.at_hand = at_hand;
        }
    }

    /// Whether any of some jobs waits for a limit: who comes behind it may have a say in when it starts.
    pub(crate) fn is_put_off(&self, jobs: &BTreeSet<JobId>) -> bool {
        self.foretold
            .as_ref()
            .is_some_and(|foretold| !foretold.put_off.is_disjoint(jobs))
    }
}
