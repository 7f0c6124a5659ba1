//! When limits will have room, by what runs and what is planned. For plans that foretell starts.
//!
//! A limit is asked at the moment of a start, as a pass asks it: those who start later have no say in it. So who is planned to start
//! before somebody, and runs on, may take what was to be his: `overtaken` says whose start no longer holds. Never looks at nodes.

use super::idle_ahead::{GpuReservation, IdleAhead};
use super::{Ledger, LimitId, MOST_PERIODS, Take, Who};
use crate::limits::{Bound, Holding, Meter, job_exceeds};
use crate::quota::{BudgetUse, Guarantees, Standing};
use crate::snapshot::{PendingJob, Snapshot};
use crate::usage::UsageBook;
use gmodel::policy::{Budget, BudgetKind};
use gmodel::{JobSpec, RunClass, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

/// Ends of runs after which it is seen whether a guarantee has room.
const MOST_ENDS: usize = 256;
/// Times that are tried until no limit of several is in the way.
const MOST_TIMES: usize = 64;

/// What runs and what is planned, by the limits that it counts for.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    pub(super) now: Timestamp,
    usage: Arc<UsageBook>,
    pub(super) booked: Vec<Booked>,
    tracks: BTreeMap<LimitId, Track>,
    /// By account, and the place of each cap among its budgets.
    caps: BTreeMap<(u32, usize), Cap>,
    /// What guarantees are for, by the highest account above it; and of that those who do not borrow, by their starts.
    trees: BTreeMap<u32, Vec<usize>>,
    owed: BTreeMap<u32, BTreeSet<(Timestamp, usize)>>,
    /// What is kept idle beside all.
    pub(super) idle: IdleAhead,
    /// Nobody takes any more what was to be another's who starts later.
    pub is_fixed: bool,
    /// Steps that were looked at.
    pub(super) looked: u64,
}

/// A run, or a start that is planned.
#[derive(Debug)]
pub(super) struct Booked {
    pub who: Who,
    pub held: Holding,
    pub class: Option<RunClass>,
    pub in_quota: bool,
    pub counted: GpuReservation,
    /// It was taken back.
    pub gone: bool,
}

/// What those hold together whom one limit speaks of; each step holds until the next.
#[derive(Debug, Default)]
pub(super) struct Track {
    pub steps: BTreeMap<Timestamp, Meter>,
    begins: BTreeSet<(Timestamp, usize)>,
}

/// What is used of a cap in the present period and those that come.
#[derive(Debug, Default)]
struct Cap {
    periods: Vec<Spent>,
    begins: BTreeSet<(Timestamp, usize)>,
}

/// Thousandths of a GPU times milliseconds.
#[derive(Debug)]
struct Spent {
    start: Timestamp,
    end: Timestamp,
    used: u128,
}

impl Track {
    fn cut(&mut self, at: Timestamp) {
        if !self.steps.contains_key(&at) {
            let before = self
                .steps
                .range(..at)
                .next_back()
                .map(|(_, meter)| meter.clone());
            self.steps.insert(at, before.unwrap_or_default());
        }
    }

    pub fn change(
        &mut self,
        from: Timestamp,
        until: Option<Timestamp>,
        change: impl Fn(&mut Meter),
    ) {
        if until.is_some_and(|until| until <= from) {
            return;
        }
        self.cut(from);
        until.into_iter().for_each(|until| self.cut(until));
        match until {
            Some(until) => self
                .steps
                .range_mut(from..until)
                .for_each(|(_, meter)| change(meter)),
            None => self
                .steps
                .range_mut(from..)
                .for_each(|(_, meter)| change(meter)),
        }
    }

    pub fn at(&self, time: Timestamp) -> Option<&Meter> {
        self.steps
            .range(..=time)
            .next_back()
            .map(|(_, meter)| meter)
    }

    /// The first time from `from` on at which the bound has room; `lasts`: for all of the time that is wanted.
    fn first(
        &self,
        bound: &Bound,
        wanted: &Holding,
        (now, from): (Timestamp, Timestamp),
        lasts: bool,
        looked: &mut u64,
    ) -> Option<Timestamp> {
        let none = Meter::default();
        let first = (from, self.at(from).unwrap_or(&none));
        let later = self
            .steps
            .range((Excluded(from), Unbounded))
            .map(|(at, meter)| (*at, meter));
        let has_room = |at: Timestamp, meter: &Meter| match bound.minds_time() {
            true => bound
                .over(
                    &meter.after(at.since_millis(now)),
                    &wanted.placed_at(at),
                    at,
                )
                .is_none(),
            false => bound.over(meter, wanted, at).is_none(),
        };
        let millis = wanted
            .until
            .map_or(i64::MAX, |until| until.since_millis(wanted.since));
        let mut since: Option<Timestamp> = None;
        for (at, meter) in std::iter::once(first).chain(later) {
            if since.is_some_and(|since| !lasts || at.since_millis(since) >= millis) {
                break;
            }
            *looked += 1;
            since = has_room(at, meter).then(|| since.unwrap_or(at));
        }
        since
    }
}

impl Cap {
    /// The period that holds a time, if that is near enough.
    fn period(&mut self, budget: &Budget, usage: &UsageBook, at: Timestamp) -> Option<&mut Spent> {
        while let Some(last) = self
            .periods
            .last()
            .filter(|last| last.end <= at && self.periods.len() < MOST_PERIODS)
        {
            let (start, end) = usage.period_bounds(budget.period, last.end);
            self.periods.push(Spent {
                start,
                end,
                used: 0,
            });
        }
        self.periods.iter_mut().find(|one| at < one.end)
    }

    fn change(
        &mut self,
        budget: &Budget,
        gpu_type: usize,
        held: &Holding,
        (now, usage): (Timestamp, &UsageBook),
        add: bool,
    ) {
        let (mut at, milli) = (held.since.max(now), u128::from(held.of(gpu_type)));
        while milli > 0 && held.until.is_none_or(|until| at < until) {
            let Some(period) = self.period(budget, usage, at) else {
                return;
            };
            let uses = milli * u128::from(held.millis_within(at, period.end));
            period.used = if add {
                period.used + uses
            } else {
                period.used.saturating_sub(uses)
            };
            at = period.end;
        }
    }

    /// The first time from `from` on at which what a job may use of each period is left of it.
    fn first(
        &mut self,
        budget: &Budget,
        (gpu_type, most): (usize, u128),
        wanted: &Holding,
        usage: &UsageBook,
        from: Timestamp,
    ) -> Option<Timestamp> {
        let milli = u128::from(wanted.of(gpu_type));
        if milli == 0 {
            return Some(from);
        }
        self.period(budget, usage, from)?;
        let (mut at, mut look_at) = (from, from);
        while let Some(period) = self.period(budget, usage, look_at) {
            let held = wanted.placed_at(at);
            let left = most.saturating_sub(period.used);
            let needs = milli * u128::from(held.millis_within(at.max(period.start), period.end));
            if needs > left {
                // What is left is enough for the rest of the period from then on.
                at = period
                    .end
                    .plus_millis(-i64::try_from(left / milli).unwrap_or(i64::MAX))
                    .max(at);
                look_at = at;
            } else if held.until.is_none_or(|until| period.end < until) {
                look_at = period.end;
            } else {
                return Some(at);
            }
        }
        // It reaches beyond all periods that are looked into.
        Some(at).filter(|at| *at == from)
    }
}

impl Ahead {
    /// Steps that were looked at since it was asked last.
    pub fn take_looked(&mut self) -> u64 {
        std::mem::take(&mut self.looked)
    }
}

impl Ledger {
    /// With what runs, each to its end.
    pub(crate) fn ahead(&self, snapshot: &Snapshot) -> Ahead {
        let idle = self.idle_ahead(snapshot);
        let mut ahead = Ahead {
            now: self.now,
            usage: snapshot.usage.clone(),
            idle,
            ..Ahead::default()
        };
        for (account, page) in self.accounts.iter().enumerate() {
            for (place, (_, cap)) in page
                .budgets
                .iter()
                .enumerate()
                .filter(|(_, (budget, _))| budget.kind == BudgetKind::Cap)
            {
                let present = Spent {
                    start: cap.start,
                    end: cap.end,
                    used: cap.used,
                };
                ahead.caps.insert(
                    (account as u32, place),
                    Cap {
                        periods: vec![present],
                        ..Cap::default()
                    },
                );
            }
        }
        for (run, entry) in snapshot.running.iter().zip(&self.runs) {
            // A run without a limit is no promise of an end.
            let ends = (run.ends_by.is_some() || run.leaves_by.is_some())
                .then(|| crate::cluster::nodes::end_of(run).max(self.now.plus_secs(1)));
            let held = entry.held.clone().until(ends);
            let counted = self.counted_of_run(&ahead.idle, run, &held, snapshot);
            self.book(
                &mut ahead,
                &run.spec,
                self.who(&run.spec),
                held,
                entry.class,
                counted,
            );
        }
        ahead
    }

    /// For whom a job is counted from now on.
    pub(crate) fn whose(&mut self, spec: &JobSpec) -> Who {
        self.who_or_new(spec)
    }

    /// What a job holds that starts at a time.
    pub(crate) fn holding_at(&self, job: &PendingJob, take: &Take, at: Timestamp) -> Holding {
        self.holding_of(job, take).placed_at(at)
    }

    /// Counts a start, now or planned; its number. `on_kept`: what it takes on the nodes of each partition that keeps GPUs idle. `waits`: when
    /// it only waits for enough to be idle.
    #[expect(
        clippy::too_many_arguments,
        reason = "each says one thing of the start"
    )]
    pub(crate) fn book_start(
        &self,
        ahead: &mut Ahead,
        job: &PendingJob,
        who: Who,
        held: Holding,
        class: Option<RunClass>,
        on_kept: &[Take],
        waits: Vec<(Timestamp, Timestamp)>,
    ) -> usize {
        let counted = self.counted_of_start(ahead, job, who, &held, on_kept, waits);
        self.book(ahead, &job.spec, who, held, class, counted)
    }

    fn book(
        &self,
        ahead: &mut Ahead,
        spec: &JobSpec,
        who: Who,
        held: Holding,
        class: Option<RunClass>,
        counted: GpuReservation,
    ) -> usize {
        let number = ahead.booked.len();
        let in_quota = self.guarantees.is_some() && !self.is_outside_quota(spec) && held.gpus > 0;
        if let Some(top) = self.top_of(who).filter(|_| in_quota) {
            ahead.trees.entry(top).or_default().push(number);
            if self.may_not_borrow(spec, who).is_some() {
                ahead
                    .owed
                    .entry(top)
                    .or_default()
                    .insert((held.since, number));
            }
        }
        ahead.booked.push(Booked {
            who,
            held,
            class,
            in_quota,
            counted,
            gone: false,
        });
        self.count_ahead(ahead, number, true);
        number
    }

    /// Takes a start back that was planned.
    pub(crate) fn unbook(&self, ahead: &mut Ahead, number: usize) {
        self.count_ahead(ahead, number, false);
        ahead.booked[number].gone = true;
    }

    /// It stands after all.
    pub(crate) fn book_again(&self, ahead: &mut Ahead, number: usize) {
        ahead.booked[number].gone = false;
        self.count_ahead(ahead, number, true);
    }

    fn count_ahead(&self, ahead: &mut Ahead, number: usize, add: bool) {
        let Ahead {
            now,
            usage,
            booked,
            tracks,
            caps,
            ..
        } = &mut *ahead;
        let (now, types) = (*now, self.types.len());
        let Booked { who, held, .. } = &booked[number];
        let begin = (held.since, number);
        self.each_limit(*who, &mut |_, limit, _| {
            let track = tracks.entry(limit).or_default();
            track.change(held.since.max(now), held.until, |meter| {
                if add {
                    meter.add(held, now, types)
                } else {
                    meter.remove(held, now)
                }
            });
            if add {
                track.begins.insert(begin)
            } else {
                track.begins.remove(&begin)
            };
            true
        });
        for (account, place, (budget, cap)) in self.caps_on(*who) {
            let Some(ahead) = caps.get_mut(&(account, place)) else {
                continue;
            };
            ahead.change(budget, cap.gpu_type, held, (now, usage), add);
            if add {
                ahead.begins.insert(begin)
            } else {
                ahead.begins.remove(&begin)
            };
        }
        self.count_idle(ahead, number, add);
    }

    /// The highest account above somebody.
    fn top_of(&self, who: Who) -> Option<u32> {
        who.account
            .and_then(|account| self.tree.line(account).last())
    }

    fn caps_on(&self, who: Who) -> impl Iterator<Item = (u32, usize, &(Budget, BudgetUse))> {
        let pages = who
            .account
            .into_iter()
            .flat_map(|account| self.tree.line(account))
            .map(|number| (number, &self.accounts[number as usize]));
        pages.flat_map(|(number, page)| {
            let caps = page
                .budgets
                .iter()
                .enumerate()
                .filter(|(_, (budget, _))| budget.kind == BudgetKind::Cap);
            caps.map(move |(place, cap)| (number, place, cap))
        })
    }

    /// The first time from `from` on at which no limit, cap or guarantee stands against a job that takes so much; `None`: not by what
    /// is planned, or never.
    pub(crate) fn opens(
        &self,
        ahead: &mut Ahead,
        job: &PendingJob,
        who: Who,
        take: &Take,
        from: Timestamp,
    ) -> Option<Timestamp> {
        let wanted = self.holding_of(job, take);
        let qos = self
            .policy
            .qos
            .get(&job.spec.qos)
            .filter(|_| who.qos.is_some());
        if qos.is_some_and(|qos| {
            job_exceeds(
                &qos.per_job,
                &job.spec.qos,
                &wanted,
                job.limit_secs,
                &self.types,
            )
            .is_some()
        }) {
            return None;
        }
        let in_quota =
            self.guarantees.is_some() && !self.is_outside_quota(&job.spec) && wanted.gpus > 0;
        let is_owed = in_quota && self.may_not_borrow(&job.spec, who).is_some();
        let mut at = from;
        for _ in 0..MOST_TIMES {
            let before = at;
            at = self.limits_open(ahead, who, &wanted, at)?;
            for (account, place, (budget, cap)) in self.caps_on(who) {
                let Ahead {
                    caps,
                    usage,
                    looked,
                    ..
                } = &mut *ahead;
                *looked += 1;
                at = caps.get_mut(&(account, place))?.first(
                    budget,
                    (cap.gpu_type, cap.most),
                    &wanted,
                    usage,
                    at,
                )?;
            }
            if is_owed {
                at = self.guarantee_opens(ahead, who.account?, &wanted, at)?;
            }
            if at == before {
                return Some(at);
            }
        }
        None
    }

    fn limits_open(
        &self,
        ahead: &mut Ahead,
        who: Who,
        wanted: &Holding,
        from: Timestamp,
    ) -> Option<Timestamp> {
        let Ahead {
            now,
            tracks,
            looked,
            is_fixed,
            ..
        } = ahead;
        let mut open = Some(from);
        self.each_limit(who, &mut |bound, limit, _| {
            let alone = bound.over(&Meter::default(), wanted, *now).is_none();
            open = open
                .filter(|_| alone)
                .and_then(|at| match tracks.get(&limit) {
                    Some(track) => track.first(bound, wanted, (*now, at), *is_fixed, looked),
                    None => Some(at),
                });
            open.is_some()
        });
        open
    }

    /// The first of the ends of those who stand on the same guarantees after which these have room.
    pub(super) fn guarantee_opens(
        &self,
        ahead: &mut Ahead,
        account: u32,
        wanted: &Holding,
        from: Timestamp,
    ) -> Option<Timestamp> {
        if self.is_owed_at(ahead, account, wanted, from, &|_| false) {
            return Some(from);
        }
        let unused = |number: u32, budget: &Budget| {
            let known = self.budget_at(ahead, number, budget, from, &|_| false);
            BudgetUse::new(known.gpu_type, known.most, 0, (known.start, known.end))
        };
        let empty = Guarantees::new(&self.policy, &self.tree, &self.types, from, &unused)?;
        if !empty.fits(&self.tree, account, &wanted.placed_at(from)) {
            return None;
        }
        let others = self
            .beside(ahead, account)
            .map(|number| &ahead.booked[number])
            .filter(|one| !one.gone);
        let budgets = self
            .tree
            .line(account)
            .flat_map(|number| &self.accounts[number as usize].budgets);
        let periods = budgets.filter(|(budget, _)| budget.kind == BudgetKind::Guaranteed);
        let periods = periods.map(|(budget, _)| ahead.usage.period_bounds(budget.period, from).1);
        let ends: BTreeSet<Timestamp> = others
            .filter_map(|one| one.held.until)
            .chain(periods)
            .filter(|end| *end > from)
            .collect();
        ends.into_iter()
            .take(MOST_ENDS)
            .find(|end| self.is_owed_at(ahead, account, wanted, *end, &|_| false))
    }

    /// All that is booked below the highest account above one: it may stand on the same guarantees.
    fn beside<'a>(&self, ahead: &'a Ahead, account: u32) -> impl Iterator<Item = usize> + use<'a> {
        let top = self.tree.line(account).last();
        top.and_then(|top| ahead.trees.get(&top))
            .into_iter()
            .flatten()
            .copied()
    }

    /// Whether a guarantee has room at a time, with each of those who run then in its class; some are left out.
    pub(super) fn is_owed_at(
        &self,
        ahead: &mut Ahead,
        account: u32,
        wanted: &Holding,
        at: Timestamp,
        out: &dyn Fn(usize) -> bool,
    ) -> bool {
        let budget_of =
            |number: u32, budget: &Budget| self.budget_at(ahead, number, budget, at, out);
        let Some(mut guarantees) =
            Guarantees::new(&self.policy, &self.tree, &self.types, at, &budget_of)
        else {
            return true;
        };
        let numbers = self.beside(ahead, account).filter(|number| !out(*number));
        let all: Vec<&Booked> = numbers.map(|number| &ahead.booked[number]).collect();
        let mut standing: Vec<Standing> = Vec::new();
        for one in all.iter().filter(|one| {
            !one.gone && one.held.since <= at && one.held.until.is_none_or(|until| at < until)
        }) {
            let Some(account) = one.who.account else {
                continue;
            };
            standing.push(Standing {
                account,
                held: &one.held,
                class: one.class,
                leaving: false,
            });
        }
        let looked = all.len() as u64;
        guarantees.walk(&self.tree, &standing, |_| Vec::new());
        ahead.looked += looked;
        guarantees.fits(&self.tree, account, &wanted.placed_at(at))
    }

    /// What is used of a guaranteed budget in the period of a time, up to then.
    pub(super) fn budget_at(
        &self,
        ahead: &Ahead,
        account: u32,
        budget: &Budget,
        at: Timestamp,
        out: &dyn Fn(usize) -> bool,
    ) -> BudgetUse {
        let known = self.accounts[account as usize]
            .budgets
            .iter()
            .find(|(one, _)| one == budget);
        let (gpu_type, most) = known.map_or((0, 0), |(_, known)| (known.gpu_type, known.most));
        let (start, end) = ahead.usage.period_bounds(budget.period, at);
        let so_far = known
            .filter(|(_, known)| known.start == start)
            .map_or(0, |(_, known)| known.used);
        let all = self.beside(ahead, account).filter(|number| !out(*number));
        let below = all
            .map(|number| &ahead.booked[number])
            .filter(|one| !one.gone);
        let below = below.filter(|one| {
            one.who
                .account
                .is_some_and(|below| self.tree.is_within(below, account))
        });
        let uses = |one: &Booked| {
            u128::from(one.held.of(gpu_type))
                * u128::from(
                    one.held
                        .millis_within(one.held.since.max(ahead.now).max(start), at),
                )
        };
        BudgetUse::new(
            gpu_type,
            most,
            so_far + below.map(uses).sum::<u128>(),
            (start, end),
        )
    }

    /// Who is planned to start from a time on, and waits for a limit of somebody, too; the first so many.
    pub(crate) fn rivals(
        &self,
        ahead: &Ahead,
        number: usize,
        most: usize,
    ) -> BTreeSet<(Timestamp, usize)> {
        let Booked { who, held, .. } = &ahead.booked[number];
        let mut all = BTreeSet::new();
        let mut add = |begins: Option<&BTreeSet<(Timestamp, usize)>>| {
            all.extend(
                begins
                    .into_iter()
                    .flat_map(|begins| begins.range((held.since, 0)..))
                    .take(most)
                    .copied(),
            );
        };
        self.each_limit(*who, &mut |_, limit, _| {
            add(ahead.tracks.get(&limit).map(|track| &track.begins));
            true
        });
        for (account, place, _) in self.caps_on(*who) {
            add(ahead.caps.get(&(account, place)).map(|cap| &cap.begins));
        }
        add(self.top_of(*who).and_then(|top| ahead.owed.get(&top)));
        self.rivals_for_idle(ahead, number)
            .for_each(|begins| add(Some(begins)));
        all.into_iter().take(most).collect()
    }

    /// Who was to start later and cannot then, now that somebody is planned who starts before.
    pub(crate) fn overtaken(&self, ahead: &mut Ahead, by: usize) -> BTreeSet<usize> {
        let Booked { who, held, .. } = &ahead.booked[by];
        let (who, from, until) = (
            *who,
            held.since.max(ahead.now),
            held.until.unwrap_or(Timestamp(i64::MAX)),
        );
        let mut gone = BTreeSet::new();
        if until <= from {
            return gone;
        }
        let later = (Excluded((from, usize::MAX)), Excluded((until, 0)));
        let Ahead {
            now,
            booked,
            tracks,
            caps,
            looked,
            owed,
            ..
        } = &mut *ahead;
        let now = *now;
        self.each_limit(who, &mut |bound, limit, _| {
            let Some(track) = tracks.get(&limit) else {
                return true;
            };
            for &(at, number) in track.begins.range(later) {
                *looked += 1;
                let own = &booked[number].held;
                let Some(mut meter) = track.at(at).cloned() else {
                    continue;
                };
                meter.remove(own, now);
                if bound
                    .over(&meter.after(at.since_millis(now)), own, at)
                    .is_some()
                {
                    gone.insert(number);
                }
            }
            true
        });
        for (account, place, (_, cap)) in self.caps_on(who) {
            let Some(Cap { periods, begins }) = caps.get(&(account, place)) else {
                continue;
            };
            for period in periods
                .iter()
                .filter(|period| period.used > cap.most && from < period.end)
            {
                let later = begins
                    .range((Excluded((from, usize::MAX)), Excluded((period.end, 0))))
                    .map(|(_, number)| *number);
                gone.extend(later.filter(|number| {
                    let held = &booked[*number].held;
                    held.of(cap.gpu_type) > 0 && held.until.is_none_or(|until| period.start < until)
                }));
            }
        }
        let owed = self
            .top_of(who)
            .and_then(|top| owed.get(&top))
            .into_iter()
            .flat_map(|owed| owed.range(later));
        let owed: Vec<usize> = owed
            .map(|(_, number)| *number)
            .filter(|number| !booked[*number].gone)
            .collect();
        for number in owed {
            let (held, account) = (
                ahead.booked[number].held.clone(),
                ahead.booked[number].who.account,
            );
            let at = held.since;
            if account.is_some_and(|account| {
                !self.is_owed_at(ahead, account, &held, at, &|one| one == number)
            }) {
                gone.insert(number);
            }
        }
        self.overtaken_beside_kept(ahead, by, (from, until), &mut gone);
        gone
    }

    /// From when to when a booking holds something.
    pub(crate) fn span_of(&self, ahead: &Ahead, number: usize) -> (Timestamp, Timestamp) {
        let held = &ahead.booked[number].held;
        (
            held.since.max(ahead.now),
            held.until.unwrap_or(Timestamp(i64::MAX)),
        )
    }
}
