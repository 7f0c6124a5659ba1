//! Those who wait in a pass: their reservations, the reasons they are given, and what is kept for whom.
//!
//! A reservation is on concrete nodes for the whole limit; those after it see only what is left beside it.

use crate::backfill::promised::{Again, Early, Found};
use crate::cluster::network::{Network, any_switches_from};
use crate::cluster::node_state::Hold;
use crate::cluster::nodes::end_after;
use crate::cluster::timeline::UNLIMITED_SECS;
use crate::decide::quick::Waiting;
use crate::job::job_class::{Shape, ShapeId};
use crate::job::reason;
use crate::limits::secs_text;
use crate::pass::{Engine, Pass, Reserved, Wait, Want};
use crate::place::search::{Ask, Picked, Search, in_order};
use crate::snapshot::PendingJob;
use fixedbitset::FixedBitSet;
use gmodel::policy::Backfill;
use gmodel::{Reason, ReasonCode, Timestamp};
use std::ops::Range;

/// Tasks of one array that get reservations where all jobs do.
pub(crate) const MOST_RESERVED_TASKS: u32 = 128;

impl Engine {
    /// Whether fewer nodes than a shape needs have room for it at this moment: then it starts for no time at all.
    pub(crate) fn is_full(&mut self, shape: ShapeId) -> bool {
        let of = &self.shapes.list[shape as usize];
        if let Some(full) = of.pass.full {
            return full;
        }
        let full = of.claim.own().is_none() && !self.is_free_now(shape);
        // What is free only shrinks within a pass.
        if full {
            self.shapes.of_pass(shape).full = Some(true);
        }
        full
    }

    /// Whether enough nodes have room for a shape at this moment, for however short a time.
    fn is_free_now(&mut self, shape: ShapeId) -> bool {
        let (of, cluster, looked) = (
            &self.shapes.list[shape as usize],
            &self.cluster,
            &mut self.looked,
        );
        (0..of.ways.len()).any(|way| looked.is_free(of, way, cluster).is_ok())
    }

    /// Whether a node has room for a part of a shape at a moment.
    fn has_room_at(&self, of: &Shape, at: usize, from: Timestamp) -> bool {
        of.needs_on(self.cluster.nodes[at].make)
            .any(|need| self.cluster.fits(at, need, from, from.plus_millis(1)))
    }

    /// Whether GPUs for a part of a shape are short on a node when something is held there, and would not be without.
    fn is_short_by(&self, of: &Shape, at: usize, hold: &Hold) -> bool {
        let free = self.cluster.room(at).profile.free_at(hold.from);
        of.needs_on(self.cluster.nodes[at].make).any(|need| {
            let (wants, has) = (u32::from(need.whole()), free.gpus_in(need.groups));
            has < wants && wants <= has + hold.amount.gpus_in(need.groups)
        })
    }

    /// All nodes that have room for a shape by themselves from one time on and before another, of those that the search for an
    /// earliest start looked at just now; if they are too few for it.
    fn early(&self, shape: ShapeId, from: Timestamp, at: Timestamp) -> Option<Early> {
        let of = &self.shapes.list[shape as usize];
        let mut early = Early {
            from,
            nodes: FixedBitSet::with_capacity(self.cluster.nodes.len()),
        };
        let mut left = of.ways[0].nodes as usize;
        for (nodes, start) in self.looked.starts(&self.cluster)? {
            if start >= at {
                continue;
            }
            let up = of.candidates.up_in(nodes.clone());
            left = left.checked_sub(up).filter(|left| *left > 0)?;
            match up == nodes.len() {
                true => early.nodes.insert_range(nodes),
                false => early
                    .nodes
                    .extend(nodes.filter(|at| of.candidates.up.contains(*at))),
            }
        }
        Some(early)
    }

    /// As `is_full`, before anything is taken in a pass: who found it full in the pass before looks at what was freed since.
    pub(crate) fn is_full_at_first(&mut self, shape: ShapeId) -> bool {
        self.cluster.count_rooms();
        let Self {
            shapes,
            cluster,
            looked,
            ..
        } = self;
        let of = &mut shapes.list[shape as usize];
        if let Some(full) = of.pass.full {
            return full;
        }
        if of.claim.own().is_some() {
            return false;
        }
        let known = of.few.take().filter(|(of, _)| of + 1 >= cluster.synced);
        let more = known.map(|(_, have)| {
            let freed = |(way, have): (usize, usize)| {
                have + looked.serving(of, way, &cluster.freed, cluster)
            };
            have.into_iter()
                .enumerate()
                .map(freed)
                .collect::<Vec<usize>>()
        });
        let still_few = more.filter(|have| {
            have.iter()
                .zip(&of.ways)
                .all(|(have, way)| *have < way.nodes as usize)
        });
        let few = match still_few {
            Some(few) => Some(few),
            None => (0..of.ways.len())
                .map(|way| looked.is_free(of, way, cluster).err())
                .collect(),
        };
        let full = few.is_some();
        of.few = few.map(|few| (cluster.synced, few));
        if full {
            shapes.of_pass(shape).full = Some(true);
        }
        full
    }
}

/// The earliest start of a job: when, which way, and on which nodes.
pub(crate) struct Earliest {
    pub at: Timestamp,
    pub way: usize,
    pub picked: Picked,
    pub early: Option<Early>,
}

impl Pass<'_> {
    /// A job that waits for resources gets a start if it is among the first, and a reason.
    pub(crate) fn wait(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        wait: Wait,
        tasks: u32,
    ) -> Reason {
        let mut preempting = None;
        let (code, text) = match wait {
            Wait::Limit(reason) => {
                // There may be room, and only too little would stay idle: others may leave more.
                let is_idle_kept = reason.code == ReasonCode::Headroom && tasks > 0;
                preempting = if is_idle_kept {
                    self.preempt_for(job, shape)
                } else {
                    None
                };
                if preempting.is_none() {
                    if is_idle_kept {
                        self.set_aside_for(job, shape);
                    }
                    self.put_off(job, shape, &reason, tasks.min(MOST_RESERVED_TASKS));
                    return reason;
                }
                (reason.code, None)
            }
            Wait::Short(reason) => (reason.code, Some(reason.text)),
            Wait::Room => (ReasonCode::Resources, None),
        };
        if code == ReasonCode::Resources {
            self.room_wanted.push(Waiting {
                at: self.at_hand as u32,
                job: job.id,
            });
        }
        let partition = self.shape(shape).partition;
        let first = !std::mem::replace(&mut self.waiting[partition], true);
        let says = !self.is_silent;
        let kept = if code != ReasonCode::Resources || !says {
            None
        } else {
            self.kept(shape)
        };
        let free = (first && says)
            .then(|| reason::what_is_free(self.shape(shape), self.snapshot, &self.engine.cluster));
        if code == ReasonCode::Resources {
            preempting = self.preempt_for(job, shape);
            preempting = preempting.or_else(|| {
                if first {
                    self.consolidate_for(job, shape)
                } else {
                    None
                }
            });
            if preempting.is_none() {
                self.expect_later(job, shape);
            }
        }
        if let Some(reason) = preempting.take_if(|_| self.is_freed_elsewhere(job, shape)) {
            return reason;
        }
        if preempting.is_some() {
            // What is made free for it is its own, however many wait before it.
            self.reserve_wanted();
            self.reserve_left[partition] = self.reserve_left[partition].max(1);
        }
        let mut start = None;
        if self.may_reserve(partition) && tasks > 0 {
            self.wanted[partition] += 1;
            let (is_array, choice) = (job.positions.is_some(), job.spec.choice());
            let tasks = tasks.min(MOST_RESERVED_TASKS);
            // To put it off is no loss to others as long as it only takes room: not where it may take over from another of its own, nor
            // where it takes of what is reserved by number, which then is set apart elsewhere.
            let takes_over = (job.is_choice() && self.waits_elsewhere(job))
                || self.place_of_counted(shape).is_some();
            self.choices
                .kept_for
                .extend(job.is_choice().then_some((job.id, is_array)));
            self.wants.push_back(Want {
                at: self.at_hand as u32,
                job: job.id,
                is_array,
                choice,
                shape,
                tasks,
                may_begin: None,
            });
            if self.at_once || takes_over || preempting.is_some() {
                start = self.reserve_wanted();
            } else if first && says {
                start = self.begin_last();
            }
        }
        if code == ReasonCode::Resources && preempting.is_none() {
            self.hold_back_for(job, partition, tasks, start);
        }
        if let Some(reason) = preempting.or(kept) {
            return reason;
        }
        if let Some(text) = text {
            return Reason::new(code, text);
        }
        if !says {
            return Reason::default();
        }
        let behind = &self.shape(shape).behind;
        let Some(free) = free else {
            return behind.clone();
        };
        let needs = behind
            .text
            .strip_suffix(reason::BEHIND)
            .unwrap_or(&behind.text);
        // A run without a limit is no promise of an end.
        let some_day = self
            .snapshot
            .now
            .plus_secs(i64::from(UNLIMITED_SECS) - 86_400);
        let expected = start
            .filter(|at| *at < some_day)
            .map_or(String::new(), |at| format!("; room is expected by {at}"));
        Reason::new(code, format!("{needs}; {free}{expected}"))
    }

    /// The first of a partition that waits until more is idle keeps what it needs from all behind it, who could take less: not
    /// who would wait still when all of them are gone, until somebody brings a node back or asks for less.
    fn set_aside_for(&mut self, job: &PendingJob, shape: ShapeId) {
        let partition = self.shape(shape).partition;
        if self.set_aside.contains(partition) || !self.fits_when_idle(job, shape) {
            return;
        }
        // As much as it would take where it has room now: all of a node, of one that shares with nobody.
        let (now, secs) = (self.now, job.held_secs());
        let picked = self.search(job, shape, |search, ask| {
            search.pick(ask, 0, now, end_after(now, Some(secs)))
        });
        let there = picked.map(|picked| self.take_of(shape, 0, &picked, secs));
        if let Some(take) =
            there.or_else(|| self.shape(shape).ways.first().map(|way| way.take.clone()))
        {
            self.ledger.set_aside(job, &take);
            self.set_aside.insert(partition);
        }
    }

    /// Whether a job that waits in a partition now is among the first.
    pub(crate) fn may_reserve(&self, partition: usize) -> bool {
        self.wanted[partition] < self.reserve_left[partition]
    }

    /// Makes all reservations that were put off, in order. The start of the last one's first task.
    pub(crate) fn reserve_wanted(&mut self) -> Option<Timestamp> {
        let start = self.begin_last();
        while !self.wants.is_empty() {
            self.reserve_next();
        }
        start
    }

    /// Up to the first task of the last: when that is to start.
    fn begin_last(&mut self) -> Option<Timestamp> {
        while self.wants.len() > 1 {
            self.reserve_next();
        }
        let before = self.reserved.len();
        self.reserve_next();
        self.reserved.get(before).map(|reserved| reserved.at)
    }

    /// Makes the next of those that were put off: of an array that of one task.
    pub(crate) fn reserve_next(&mut self) {
        let Some(want) = self.wants.pop_front() else {
            return;
        };
        // All of a long queue may be among the first.
        self.hand_over();
        let partition = self.shape(want.shape).partition;
        let job = self
            .snapshot
            .job_near(&want)
            .filter(|job| !self.is_settled(job));
        if let Some(job) = job.filter(|job| !job.is_choice() && self.reserve_left[partition] > 0) {
            self.reserve_left[partition] -= 1;
            let goes_on = self.reserve(job, want.shape).is_some() && !self.is_spent();
            if goes_on && want.tasks > 1 && self.reserve_left[partition] > 0 {
                self.wants.push_front(Want {
                    tasks: want.tasks - 1,
                    ..want
                });
                return;
            }
        }
        // In quick passes nobody counts.
        self.wanted[partition] = self.wanted[partition].saturating_sub(1);
        if let Some(job) = job.filter(|job| job.is_choice()) {
            self.reserve_choice(job, want.shape, partition, want.tasks);
        }
    }

    /// Makes the reservations that were put off which a job may be short of wherever their nodes are: up to the last that takes of its
    /// licences. All, before one of a reservation of GPUs by number: while these are lifted for it, the others would be promised them.
    pub(crate) fn reserve_rivals(&mut self, job: &PendingJob, shape: ShapeId) {
        if self.place_of_counted(shape).is_some() {
            self.reserve_wanted();
        }
        let licences = &job.spec.licences;
        if licences.is_empty() {
            return;
        }
        let is_rival = |want: &Want| {
            let other = self.snapshot.job_near(want);
            other.is_some_and(|other| {
                other
                    .spec
                    .licences
                    .keys()
                    .any(|name| licences.contains_key(name))
            })
        };
        let Some(last) = self.wants.iter().rposition(is_rival) else {
            return;
        };
        let behind = self.wants.len() - 1 - last;
        while self.wants.len() > behind {
            self.reserve_next();
        }
    }

    /// Whether any of those who are to have a reservation might get one that begins before a time. Whom they stand before
    /// and is over by then need not know of the others: theirs come out the same after it.
    pub(crate) fn is_any_wanted_before(&mut self, end: Timestamp) -> bool {
        // The last is there the longest: mostly it was the one the time before, or cannot since.
        (0..self.wants.len()).rev().any(|place| {
            let want = self.wants[place];
            // Who might a moment ago mostly still may, and one more reservation is no harm.
            let may = want.may_begin.is_some_and(|known| known <= end)
                || self.may_begin_before(want, end);
            self.wants[place].may_begin = if may {
                Some(want.may_begin.map_or(end, |known| known.min(end)))
            } else {
                want.may_begin
            };
            may
        })
    }

    fn may_begin_before(&mut self, want: Want, end: Timestamp) -> bool {
        let Some(job) = self.snapshot.job_near(&want) else {
            return false;
        };
        let of = self.shape(want.shape);
        let ways = of.ways.len();
        if job.is_choice() || of.claim.own().is_some() || !of.named.is_empty() {
            // What it lifts or names is not looked into here.
            return true;
        }
        let secs = job.held_secs();
        (0..ways).any(|way| {
            let from = self.not_before(job, want.shape, way, secs);
            let may = from < end
                && self.search(job, want.shape, |search, ask| {
                    search.may_begin(ask, way, (from, secs), end)
                });
            if !may && from < end {
                self.remember_not_before(job, want.shape, way, secs, end);
            }
            may
        })
    }

    /// As [`Engine::is_full`].
    pub(crate) fn is_full(&mut self, shape: ShapeId) -> bool {
        self.engine.is_full(shape)
    }

    /// Whether somebody before it waits whom nobody may pass.
    pub(crate) fn must_not_pass(&self, partition: usize) -> bool {
        self.waiting[partition] && self.snapshot.config.scheduler.backfill == Backfill::Off
    }

    /// Where a shape would have room now but for what is kept for others: for whom.
    pub(crate) fn kept(&mut self, shape: ShapeId) -> Option<Reason> {
        if let Some(kept) = &self.shape(shape).pass.kept {
            return (kept.code != ReasonCode::None).then(|| kept.clone());
        }
        let mut kept = None;
        // Who found it full in this pass need not look again.
        if self.shape(shape).pass.full != Some(true) && self.engine.is_free_now(shape) {
            kept = self
                .kept_for_window(shape)
                .or_else(|| self.kept_by_number(shape))
                .or_else(|| self.kept_for_jobs(shape, 0));
            // Nobody after the first in its way need be known, as long as what is free now stays free.
            let mut is_free = true;
            let end = end_after(self.now, self.shape(shape).pass.refused_secs);
            while is_free && kept.is_none() && self.is_any_wanted_before(end) {
                let before = self.reserved.len();
                self.reserve_next();
                let at_once = self.reserved[before..]
                    .iter()
                    .any(|reserved| reserved.at <= self.now);
                is_free = !at_once || self.engine.is_free_now(shape);
                kept = self.kept_for_jobs(shape, before).filter(|_| is_free);
            }
        }
        self.of_pass(shape).kept = Some(kept.clone().unwrap_or_default());
        kept
    }

    /// The window that keeps nodes on which a shape would have room.
    fn kept_for_window(&self, shape: ShapeId) -> Option<Reason> {
        let (shape, windows) = (self.shape(shape), &self.engine.windows);
        windows.list.first()?;
        let end = end_after(self.now, shape.pass.refused_secs);
        let least = shape.least_gpus(0, shape.ways.first()?.last());
        let mut free = self.engine.cluster.with_gpus(least, &shape.candidates.up);
        let has_room = |at: usize| self.engine.has_room_at(shape, at, self.now);
        let (at, (from, to)) = free.find_map(|at| {
            windows
                .blocking(at, shape.claim, self.now, end)
                .filter(|_| has_room(at))
        })?;
        let reservation = &windows.list[at].reservation;
        let what = if reservation.maintenance {
            "maintenance"
        } else {
            "reservation"
        };
        let text = format!(
            "nodes it needs are kept for {what} {:?} from {from} to {to}",
            reservation.name
        );
        Some(Reason::new(ReasonCode::ReqNodeNotAvail, text))
    }

    /// The reservation of so many GPUs that will hold some of a node on which a shape would have room.
    fn kept_by_number(&self, shape: ShapeId) -> Option<Reason> {
        let shape = self.shape(shape);
        let end = end_after(self.now, shape.pass.refused_secs);
        let blocks = |(at, hold): &&(usize, Hold)| {
            let is_before =
                self.now < hold.from && hold.from < end && shape.candidates.up.contains(*at);
            is_before
                && self.engine.has_room_at(shape, *at, self.now)
                && self.engine.is_short_by(shape, *at, hold)
        };
        let mut others = self
            .counted
            .iter()
            .filter(|counted| shape.claim.own() != Some(counted.reservation));
        let (counted, (_, hold)) =
            others.find_map(|counted| Some((counted, counted.holds.iter().find(blocks)?)))?;
        let windows = &self.engine.windows;
        let (from, to) = windows.of(counted.reservation, hold.from).next()?;
        let name = &windows.list[counted.reservation].reservation.name;
        Some(Reason::new(
            ReasonCode::ReqNodeNotAvail,
            format!("GPUs it needs are kept for reservation {name:?} from {from} to {to}"),
        ))
    }

    /// The first job, among those from a place on that have a reservation, for which such nodes are kept.
    fn kept_for_jobs(&self, shape: ShapeId, from: usize) -> Option<Reason> {
        let (shape, cluster) = (self.shape(shape), &self.engine.cluster);
        let end = end_after(self.now, shape.pass.refused_secs);
        let least = shape.least_gpus(0, shape.ways.first()?.last());
        let mut others = self.reserved[from..]
            .iter()
            .filter(|reserved| reserved.at < end)
            .peekable();
        others.peek()?;
        let mut free = FixedBitSet::with_capacity(cluster.nodes.len());
        cluster
            .by_free
            .iter()
            .skip(least)
            .for_each(|nodes| free.union_with(nodes));
        free.intersect_with(&shape.candidates.up);
        let first = others.find(|reserved| reserved.is_on(&free))?;
        Some(Reason::new(
            ReasonCode::Priority,
            format!("what it needs is kept for job {}", first.job),
        ))
    }

    pub(crate) fn not_admitted(&self, job: &PendingJob, shape: ShapeId) -> Option<Reason> {
        let reserved = &self.engine.windows.list[self.shape(shape).claim.own()?];
        let name = &reserved.reservation.name;
        let wait = |text: String| Some(Reason::new(ReasonCode::Reservation, text));
        if !reserved.admits(job, &self.snapshot.policy) {
            let (user, account) = (&job.spec.user.name, &job.spec.account);
            return wait(format!(
                "reservation {name:?} is not for user {user:?} in account {account:?}"
            ));
        }
        let secs = job.least_secs();
        let one = &reserved.reservation;
        if !one.flex && secs > one.duration_secs {
            return wait(format!(
                "asks for {}, and reservation {name:?} lasts {}",
                secs_text(secs),
                secs_text(one.duration_secs)
            ));
        }
        match crate::window::next(one, self.snapshot.now) {
            None => wait(format!("reservation {name:?} is over")),
            Some((from, _)) if from > self.snapshot.now && !one.flex => {
                wait(format!("reservation {name:?} begins at {from}"))
            }
            Some((_, to)) if !one.flex && self.snapshot.now.plus_secs(i64::from(secs)) > to => {
                wait(format!(
                    "needs {secs} s, and reservation {name:?} ends at {to}"
                ))
            }
            Some(_) => None,
        }
    }

    /// Whether a job that its own reservation does not admit now fits into a window of it that comes.
    pub(crate) fn is_admitted_later(&self, job: &PendingJob, shape: ShapeId) -> bool {
        let Some(own) = self.shape(shape).claim.own() else {
            return false;
        };
        let reserved = &self.engine.windows.list[own];
        job.least_secs() <= reserved.reservation.duration_secs
            && reserved.admits(job, &self.snapshot.policy)
    }

    /// Compares reservations with those of the pass before, and notes them for the next: not where GPUs are kept by their
    /// number, which stands otherwise in each pass.
    pub(crate) fn keep_promises(&mut self) {
        self.keeps_promises = self.snapshot.policy.reservations.is_empty();
    }

    /// Gives a job the earliest start that delays none before it.
    pub(crate) fn reserve(&mut self, job: &PendingJob, shape: ShapeId) -> Option<Timestamp> {
        let lifted = self.lift_counted(shape);
        let earliest = self
            .promised_before(job, shape, job.held_secs())
            .or_else(|| self.earliest_allowed(job, shape));
        let start = earliest.and_then(|earliest| self.reserve_at(job, shape, earliest));
        self.hold_again(lifted);
        start
    }

    pub(crate) fn reserve_at(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        earliest: Earliest,
    ) -> Option<Timestamp> {
        let Earliest {
            at,
            way,
            picked,
            early,
        } = earliest;
        let secs = self.secs_from(job, shape, at);
        let to = end_after(at, Some(secs));
        let there = self.taken_there(shape, way, &picked, (at, secs));
        let engine = &mut *self.engine;
        let of = &engine.shapes.list[shape as usize];
        let may_be_as_before = self.keeps_promises && of.ways.len() == 1;
        let before = if may_be_as_before {
            engine.promised.taken_before((job.id, shape, secs), at)
        } else {
            Vec::new()
        };
        let (mut holds, taken) = engine.cluster.hold(
            &picked,
            |part, make| of.need(way, part, make),
            (at, to),
            &before,
        )?;
        if self.keeps_promises {
            engine
                .promised
                .make((job.id, shape, secs), at, together(&picked), early, taken);
        }
        for (name, count) in &job.spec.licences {
            if let Some(free) = self.licences.get_mut(name) {
                free.take(at, to, *count);
            }
        }
        self.use_cap(job, (at, to), true);
        let counted = self.place_of_counted(shape);
        self.promise_reserved(counted, &holds, true);
        if counted.is_none() {
            holds.extend(
                self.hold_idle_part(job, shape, way, &picked, at)
                    .into_iter()
                    .flatten(),
            );
        }
        self.reserved.push(Reserved {
            job: job.id,
            is_array: job.positions.is_some(),
            choice: job.spec.choice(),
            at,
            to,
            holds,
            counted,
        });
        if let Some(there) = there {
            self.foretell_later(job, shape, self.reserved.len() - 1, &there);
        }
        Some(at)
    }

    /// What a search would find for a job, where that follows from what the pass before reserved for it.
    fn promised_before(&mut self, job: &PendingJob, shape: ShapeId, secs: u32) -> Option<Earliest> {
        let from = self.now.max(self.not_before(job, shape, 0, secs));
        let now = self.now;
        let Engine {
            promised,
            shapes,
            cluster,
            network,
            looked,
            ..
        } = &mut *self.engine;
        let of = &shapes.list[shape as usize];
        if !(self.keeps_promises
            && is_any_alike(of, network)
            && job.avoid.is_empty()
            && plain(job, of))
        {
            return None;
        }
        let in_order = of.preferred.is_none() && in_order(of, cluster);
        let ask = Again {
            who: (job.id, shape, secs),
            now,
            from,
            count: of.ways[0].nodes as usize,
            in_order,
            may: &of.candidates.up,
        };
        let need = |at: usize| of.need(0, 0, cluster.nodes[at].make);
        looked.firsts.begin();
        let first = |at: usize, until: Timestamp| {
            let need = need(at)?;
            looked.firsts.get_or(cluster.room_id(at), || {
                cluster.room(at).first(need, from, secs, until)
            })
        };
        let fits = |at: usize, time: Timestamp| {
            need(at)
                .is_some_and(|need| cluster.fits(at, need, time, time.plus_secs(i64::from(secs))))
        };
        let (at, nodes, early) =
            match promised.again(&ask, |at| cluster.end_of_stretch(at), first, fits) {
                Found::Nothing => return None,
                Found::Time(at) => {
                    self.remember_not_before(job, shape, 0, secs, at);
                    return None;
                }
                Found::All(at, nodes, early) => (at, nodes, early),
            };
        self.remember_not_before(job, shape, 0, secs, at);
        let picked = nodes.into_iter().map(|nodes| (nodes, 0)).collect();
        Some(Earliest {
            at,
            way: 0,
            picked,
            early,
        })
    }

    /// The earliest start of a job, beside what is reserved already: when, which way, on which nodes.
    pub fn earliest(&mut self, job: &PendingJob, shape: ShapeId) -> Option<Earliest> {
        self.earliest_from(job, shape, self.now)
    }

    /// The same from a time on.
    pub(crate) fn earliest_from(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        from: Timestamp,
    ) -> Option<Earliest> {
        let lifted = self.lift_counted(shape);
        let found = self.earliest_beside(job, shape, from);
        self.hold_again(lifted);
        found
    }

    fn earliest_beside(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        from: Timestamp,
    ) -> Option<Earliest> {
        let secs = job.held_secs();
        let horizon = self.snapshot.now.plus_secs(3 * i64::from(UNLIMITED_SECS));
        // What somebody may not have before says nothing of others.
        let mut for_all = from <= self.now;
        let mut from = from.max(self.now);
        let ways = self.shape(shape).ways.len();
        let bounds = self.bounds(job);
        let notes_early =
            self.keeps_promises && is_any_alike(self.shape(shape), &self.engine.network);
        for _ in 0..16 {
            let open = self.cap_opens(job, from, secs)?;
            for_all &= open <= from;
            from = open;
            let mut best: Option<Earliest> = None;
            for way in 0..ways {
                let until = best.as_ref().map_or(horizon, |best| best.at);
                let from = from.max(self.not_before(job, shape, way, secs));
                if from >= until {
                    continue;
                }
                let look = |search: &mut Search, ask: &Ask, from: Timestamp| {
                    let few = search.earliest(ask, way, (from, secs), until);
                    let Some(over) = any_switches_from(job).filter(|_| ask.most_leaves.is_some())
                    else {
                        return few;
                    };
                    let until = few.as_ref().map_or(until, |(at, _)| *at);
                    let (on_any, from) = (
                        Ask {
                            most_leaves: None,
                            ..*ask
                        },
                        from.max(over),
                    );
                    let any = if from < until {
                        search.earliest(&on_any, way, (from, secs), until)
                    } else {
                        None
                    };
                    any.or(few)
                };
                let found = match &bounds {
                    Some(bounds) => self
                        .earliest_within(job, shape, bounds, |search, ask| look(search, ask, from)),
                    None if self.may_reach_counted(job, shape) => {
                        self.earliest_clear(job, shape, way, (from, until), look)
                    }
                    None => self.search(job, shape, |search, ask| look(search, ask, from)),
                };
                if let Some((at, picked)) = found {
                    if for_all && bounds.is_none() {
                        self.remember_not_before(job, shape, way, secs, at);
                    }
                    let early = notes_early
                        .then(|| self.engine.early(shape, from, at))
                        .flatten();
                    best = Some(Earliest {
                        at,
                        way,
                        picked,
                        early,
                    });
                }
            }
            let best = best?;
            let at = best.at;
            let end = |at: Timestamp| end_after(at, Some(self.secs_from(job, shape, at)));
            let mut free = self.reserved_first(shape, best.way, at, end)?;
            for (name, count) in &job.spec.licences {
                free = free.max(self.licences.get(name)?.first(*count, at, end)?);
            }
            free = free.max(self.cap_opens(job, at, secs)?);
            if free == at {
                return Some(best);
            }
            for_all = false;
            from = free;
        }
        None
    }

    /// What jobs of the shape before it found out: within a pass room only shrinks.
    pub(crate) fn not_before(
        &self,
        job: &PendingJob,
        shape: ShapeId,
        way: usize,
        secs: u32,
    ) -> Timestamp {
        let of = self.shape(shape);
        if !plain(job, of) {
            return self.now;
        }
        if let Some(window) = job.particulars.window_secs {
            return of
                .pass
                .not_before_window(way, (secs, window))
                .unwrap_or(self.now);
        }
        let others = if job.is_choice() {
            None
        } else {
            self.refusals
                .not_before(&self.engine.shapes.list, shape, secs)
        };
        of.pass
            .not_before(way, secs)
            .max(others)
            .unwrap_or(self.now)
    }

    pub(crate) fn remember_not_before(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        way: usize,
        secs: u32,
        at: Timestamp,
    ) {
        let shapes = &mut self.engine.shapes.list;
        if !plain(job, &shapes[shape as usize]) {
            return;
        }
        if let Some(window) = job.particulars.window_secs {
            return shapes[shape as usize]
                .pass
                .note_not_before_window(way, (secs, window), at);
        }
        if !job.is_choice()
            && self
                .refusals
                .not_before(shapes, shape, secs)
                .is_none_or(|known| known < at)
        {
            let nodes = shapes[shape as usize]
                .ways
                .first()
                .map_or(0, |way| way.nodes);
            self.refusals.refuse_before(shape, nodes, secs, at);
        }
        self.engine
            .shapes
            .of_pass(shape)
            .note_not_before(way, secs, at);
    }
}

/// Nodes in their order, those together that follow each other, whatever they serve.
fn together(picked: &Picked) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::with_capacity(picked.len());
    for (nodes, _) in picked {
        match all.last_mut() {
            Some(last) if last.end == nodes.start => last.end = nodes.end,
            _ => all.push(nodes.clone()),
        }
    }
    all
}

/// All its nodes give the same, and may be any that have room.
fn is_any_alike(shape: &Shape, network: &Network) -> bool {
    let [way] = &shape.ways[..] else { return false };
    let is_near = network.leaves.is_empty() && network.domains.is_empty();
    shape.named.is_empty() && (way.nodes == 1 || (way.parts.len() == 1 && is_near))
}

/// Nothing about the job but its shape and limit decides when it can start.
fn plain(job: &PendingJob, shape: &Shape) -> bool {
    shape.claim.own().is_none()
        && job.spec.licences.is_empty()
        && job.spec.request.switches.is_none()
}
