//! When enough will be idle beside what is kept: headroom of QOS and partitions, what lenders do not lend. For plans that foretell starts.
//!
//! What is idle is what nobody holds: so what is kept bounds what all hold together, at the moment of a start. Who waits for that first
//! in its partition sets aside what it needs until it starts. Whole nodes that are kept are for `limited.rs`, which knows nodes.

use super::ahead::{Ahead, Track};
use super::{Ledger, Take, Who};
use crate::limits::{ALL, Holding};
use crate::quota::Standing;
use crate::snapshot::{PendingJob, RunningRun, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::policy::GpuAmounts;
use gmodel::run::NodeShare;
use gmodel::{JobSpec, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

/// Ends of runs after which it is seen whether lenders leave enough.
const MOST_ENDS: usize = 256;

/// What is kept, and what all hold of it over time.
#[derive(Debug, Default)]
pub(super) struct IdleAhead {
    keepers: Vec<Keeper>,
    /// Starts that are planned on borrowed GPUs, where lenders keep some.
    borrowers: BTreeSet<(Timestamp, usize)>,
    /// By partition, for how long which start that is planned has set something aside.
    asides: BTreeMap<usize, BTreeMap<usize, Vec<Span>>>,
}

type Span = (Timestamp, Timestamp);

#[derive(Debug)]
struct Keeper {
    of: Of,
    /// By type: thousandths that all together may hold.
    most: Vec<(usize, u64)>,
    held: Track,
    /// Set aside for those who wait.
    aside: Track,
    /// Starts that are planned of those from whom it keeps something.
    begins: BTreeSet<(Timestamp, usize)>,
}

#[derive(Debug)]
enum Of {
    Qos(String),
    /// With its nodes.
    Partition(usize, FixedBitSet),
    /// All accounts that lend less than they have.
    Lenders,
}

/// What of a booking counts here.
#[derive(Debug, Default)]
pub(super) struct GpuReservation {
    /// By keeper, what of its GPUs are held.
    on: Vec<Holding>,
    /// By keeper, whether that is kept from it.
    kept_from: Vec<bool>,
    borrows: bool,
    /// When it is the first of its partition that waits for idle GPUs.
    aside: Vec<Span>,
}

/// What is left of a time without another.
fn but((from, to): Span, (begin, end): Span) -> impl Iterator<Item = Span> {
    [(from, to.min(begin)), (from.max(end), to)]
        .into_iter()
        .filter(|(from, to)| from < to)
}

impl Keeper {
    fn is_kept(&self, wanted: &Holding, at: Timestamp, own: Option<&Holding>) -> bool {
        self.most.iter().any(|(gpu_type, most)| {
            let of = |track: &Track| track.at(at).map_or(0, |meter| meter.gpus_of(*gpu_type));
            let others = (of(&self.held) + of(&self.aside))
                .saturating_sub(own.map_or(0, |own| own.of(*gpu_type)));
            wanted.of(*gpu_type) > 0 && others + wanted.of(*gpu_type) > *most
        })
    }

    /// The first time from one on at which so much may be taken; `lasts`: and all the while until its end.
    fn first(
        &self,
        wanted: &Holding,
        from: Timestamp,
        lasts: bool,
        looked: &mut u64,
    ) -> Option<Timestamp> {
        let later = |track: &Track| {
            track
                .steps
                .range((Excluded(from), Unbounded))
                .map(|(at, _)| *at)
                .collect::<Vec<_>>()
        };
        let times: BTreeSet<Timestamp> = later(&self.held)
            .into_iter()
            .chain(later(&self.aside))
            .chain([from])
            .collect();
        let millis = wanted
            .until
            .map_or(i64::MAX, |until| until.since_millis(wanted.since));
        let mut since: Option<Timestamp> = None;
        for at in times {
            if since.is_some_and(|since| !lasts || at.since_millis(since) >= millis) {
                break;
            }
            *looked += 1;
            since = (!self.is_kept(wanted, at, None)).then(|| since.unwrap_or(at));
        }
        since
    }
}

impl Ledger {
    pub(super) fn idle_ahead(&self, snapshot: &Snapshot) -> IdleAhead {
        let most = |headroom: &GpuAmounts, usable: &dyn Fn(usize) -> u64| {
            let amounts = headroom
                .0
                .iter()
                .map(|(name, milli)| (self.types.number(name), *milli));
            amounts
                .map(|(gpu_type, kept)| (gpu_type, usable(gpu_type).saturating_sub(kept)))
                .collect()
        };
        let new = |of: Of, most| Keeper {
            of,
            most,
            held: Track::default(),
            aside: Track::default(),
            begins: BTreeSet::new(),
        };
        let mut keepers = Vec::new();
        for (name, headroom) in self
            .policy
            .qos
            .iter()
            .filter_map(|(name, one)| Some((name, one.headroom.as_ref()?)))
        {
            keepers.push(new(
                Of::Qos(name.clone()),
                most(headroom, &|gpu_type| self.idle.usable_of(gpu_type)),
            ));
        }
        for (at, nodes) in crate::headroom::kept_idle_on(snapshot) {
            let Some(headroom) = &self.config.partitions[at].headroom else {
                continue;
            };
            keepers.push(new(
                Of::Partition(at, nodes),
                most(headroom, &|gpu_type| self.idle.usable_in(at, gpu_type)),
            ));
        }
        if self.guarantees.is_some()
            && self
                .policy
                .accounts
                .values()
                .any(|account| account.lend_limit.is_some())
        {
            keepers.push(new(Of::Lenders, Vec::new()));
        }
        IdleAhead {
            keepers,
            ..IdleAhead::default()
        }
    }

    /// What a run holds of what is kept.
    pub(super) fn counted_of_run(
        &self,
        idle: &IdleAhead,
        run: &RunningRun,
        held: &Holding,
        snapshot: &Snapshot,
    ) -> GpuReservation {
        let on = |keeper: &Keeper| {
            let nodes = if let Of::Partition(_, nodes) = &keeper.of {
                Some(nodes)
            } else {
                None
            };
            let is_there = |share: &&NodeShare| {
                nodes.is_none_or(|nodes| {
                    snapshot
                        .place_of(share.node)
                        .is_some_and(|at| nodes.contains(at))
                })
            };
            let mut on = Holding::new(0, 0, held.since, held.until);
            let shares: Vec<NodeShare> = run.shares.iter().filter(is_there).cloned().collect();
            crate::headroom::each_type(&shares, snapshot, &self.types, |gpu_type, milli| {
                on.add_gpus(gpu_type, milli)
            });
            on
        };
        GpuReservation {
            on: idle.keepers.iter().map(on).collect(),
            kept_from: vec![false; idle.keepers.len()],
            borrows: false,
            aside: Vec::new(),
        }
    }

    /// The same of a start that is planned, which waits for idle GPUs then. `on_kept`: what it takes there, by partition that keeps some.
    pub(super) fn counted_of_start(
        &self,
        ahead: &mut Ahead,
        job: &PendingJob,
        who: Who,
        held: &Holding,
        on_kept: &[Take],
        waits: Vec<Span>,
    ) -> GpuReservation {
        if ahead.idle.keepers.is_empty() {
            return GpuReservation::default();
        }
        let mut on_kept = on_kept.iter();
        let taken = |keeper: &Keeper| match keeper.of {
            Of::Qos(_) | Of::Lenders => held.clone(),
            Of::Partition(..) => {
                let mut there = on_kept
                    .next()
                    .map_or_else(Holding::default, |take| self.holding_of(job, take));
                (there.since, there.until) = (held.since, held.until);
                there
            }
        };
        let on = ahead.idle.keepers.iter().map(taken).collect();
        let is_owed = self.is_guaranteed_at(ahead, &job.spec, who, held, held.since);
        let kept_from = ahead
            .idle
            .keepers
            .iter()
            .map(|keeper| self.is_kept_from(keeper, &job.spec, is_owed))
            .collect();
        let others = who
            .partition
            .and_then(|partition| ahead.idle.asides.get(&partition))
            .into_iter()
            .flat_map(BTreeMap::values)
            .flatten();
        let aside = others.fold(waits, |left, other| {
            left.into_iter().flat_map(|one| but(one, *other)).collect()
        });
        let has_lenders = ahead
            .idle
            .keepers
            .iter()
            .any(|keeper| matches!(keeper.of, Of::Lenders));
        GpuReservation {
            on,
            kept_from,
            borrows: has_lenders && !is_owed && !self.is_outside_quota(&job.spec),
            aside,
        }
    }

    fn is_kept_from(&self, keeper: &Keeper, spec: &JobSpec, is_owed: bool) -> bool {
        match &keeper.of {
            Of::Qos(name) => spec.qos != *name,
            Of::Partition(..) => !is_owed && !self.is_urgent(spec),
            Of::Lenders => false,
        }
    }

    /// Whether a job would stand on its account's guarantee at a time.
    pub(crate) fn is_guaranteed_at(
        &self,
        ahead: &mut Ahead,
        spec: &JobSpec,
        who: Who,
        wanted: &Holding,
        at: Timestamp,
    ) -> bool {
        let account = who
            .account
            .filter(|_| self.guarantees.is_some() && !self.is_outside_quota(spec));
        account.is_some_and(|account| self.is_owed_at(ahead, account, wanted, at, &|_| false))
    }

    pub(super) fn count_idle(&self, ahead: &mut Ahead, number: usize, add: bool) {
        let (now, types) = (ahead.now, self.types.len());
        let Ahead { idle, booked, .. } = ahead;
        let (booked, who) = (&booked[number], booked[number].who);
        let GpuReservation {
            on,
            kept_from,
            borrows,
            aside,
        } = &booked.counted;
        let begin = (booked.held.since, number);
        let enter = |all: &mut BTreeSet<(Timestamp, usize)>| {
            if add {
                all.insert(begin)
            } else {
                all.remove(&begin)
            }
        };
        for ((keeper, held), kept_from) in idle.keepers.iter_mut().zip(on).zip(kept_from) {
            let count = |track: &mut Track, from: Timestamp, until: Option<Timestamp>| {
                track.change(from, until, |meter| {
                    if add {
                        meter.add(held, now, types)
                    } else {
                        meter.remove(held, now)
                    }
                });
            };
            count(&mut keeper.held, held.since.max(now), held.until);
            // Of jobs in partitions that only share some nodes with it nothing is kept until their nodes are known.
            let is_there = who
                .partition
                .is_none_or(|own| self.is_all_within(&keeper.of, own));
            for (from, to) in aside.iter().filter(|_| is_there) {
                count(&mut keeper.aside, *from, Some(*to));
            }
            if *kept_from {
                enter(&mut keeper.begins);
            }
        }
        if *borrows {
            enter(&mut idle.borrowers);
        }
        if let Some(partition) = who.partition.filter(|_| !aside.is_empty()) {
            let asides = idle.asides.entry(partition).or_default();
            if add {
                asides.insert(number, aside.clone())
            } else {
                asides.remove(&number)
            };
        }
    }

    fn is_all_within(&self, of: &Of, own: usize) -> bool {
        match of {
            Of::Qos(_) | Of::Lenders => true,
            Of::Partition(keeper, _) => *keeper == own || self.idle.is_within(own, *keeper),
        }
    }

    /// The first time from one on at which so much is idle beside what is kept, as far as can be said before nodes are known.
    pub(crate) fn idle_opens(
        &self,
        ahead: &mut Ahead,
        job: &PendingJob,
        who: Who,
        take: &Take,
        from: Timestamp,
    ) -> Option<Timestamp> {
        let wanted = self.holding_of(job, take);
        if ahead.idle.keepers.is_empty() || wanted.gpus == 0 {
            return Some(from);
        }
        let mut at = from;
        for place in 0..ahead.idle.keepers.len() {
            let of = &ahead.idle.keepers[place].of;
            if let Of::Lenders = of {
                at = self.lent_opens(ahead, &job.spec, who, &wanted, at)?;
                continue;
            }
            let may_be_owed = matches!(of, Of::Partition(..)) && self.guarantees.is_some();
            if who
                .partition
                .is_some_and(|own| !self.is_all_within(of, own))
                || !self.is_kept_from(&ahead.idle.keepers[place], &job.spec, false)
            {
                continue;
            }
            if may_be_owed && self.is_guaranteed_at(ahead, &job.spec, who, &wanted, at) {
                continue;
            }
            let Ahead {
                idle,
                looked,
                is_fixed,
                ..
            } = &mut *ahead;
            let open = idle.keepers[place].first(&wanted, at, *is_fixed, looked);
            let account = who
                .account
                .filter(|_| may_be_owed && !self.is_outside_quota(&job.spec));
            let owed =
                account.and_then(|account| self.guarantee_opens(ahead, account, &wanted, at));
            at = open.into_iter().chain(owed).min()?;
        }
        Some(at)
    }

    /// The first times within one at which more or less is held of what is kept.
    pub(crate) fn idle_changes(
        &self,
        ahead: &Ahead,
        from: Timestamp,
        until: Timestamp,
        most: usize,
    ) -> Vec<Timestamp> {
        let steps = ahead.idle.keepers.iter().flat_map(|keeper| {
            keeper
                .held
                .steps
                .range((Excluded(from), Excluded(until)))
                .take(most)
        });
        let times: BTreeSet<Timestamp> = steps.map(|(at, _)| *at).collect();
        times.into_iter().take(most).collect()
    }

    /// Those who have something set aside within a time.
    pub(crate) fn set_aside_within(
        &self,
        ahead: &Ahead,
        (from, until): Span,
    ) -> impl Iterator<Item = usize> {
        let all = ahead.idle.asides.values().flatten();
        all.filter(move |(_, spans)| spans.iter().any(|span| span.0 < until && from < span.1))
            .map(|(number, _)| *number)
    }

    /// When one has it, divided where a time begins and ends.
    pub(crate) fn set_aside_by(
        &self,
        ahead: &Ahead,
        number: usize,
        (from, until): Span,
    ) -> Vec<Span> {
        let within = |span: &Span| (span.0.max(from), span.1.min(until));
        let all = ahead.booked[number].counted.aside.iter();
        all.flat_map(|span| {
            but(*span, (from, until))
                .chain([within(span)].into_iter().filter(|(from, to)| from < to))
        })
        .collect()
    }

    pub(crate) fn set_aside_anew(&self, ahead: &mut Ahead, number: usize, spans: &[Span]) {
        self.count_idle(ahead, number, false);
        ahead.booked[number].counted.aside = spans.to_vec();
        self.count_idle(ahead, number, true);
    }

    /// Whether so much may be taken of what is idle on the nodes of a partition at a time, beside what it keeps.
    pub(crate) fn leaves_idle(
        &self,
        ahead: &Ahead,
        partition: usize,
        job: &PendingJob,
        taken: &Take,
        at: Timestamp,
    ) -> bool {
        let is_it =
            |keeper: &&Keeper| matches!(keeper.of, Of::Partition(one, _) if one == partition);
        let keeper = ahead.idle.keepers.iter().find(is_it);
        keeper.is_none_or(|keeper| !keeper.is_kept(&self.holding_of(job, taken), at, None))
    }

    /// The first of the ends of those who run after which lenders leave a borrower enough.
    fn lent_opens(
        &self,
        ahead: &mut Ahead,
        spec: &JobSpec,
        who: Who,
        wanted: &Holding,
        from: Timestamp,
    ) -> Option<Timestamp> {
        if self.is_outside_quota(spec) || self.is_lent_at(ahead, who, wanted, from, None) {
            return Some(from);
        }
        let ends = ahead
            .booked
            .iter()
            .filter(|one| !one.gone)
            .filter_map(|one| one.held.until)
            .filter(|end| *end > from);
        let ends: BTreeSet<Timestamp> = ends.collect();
        ends.into_iter()
            .take(MOST_ENDS)
            .find(|end| self.is_lent_at(ahead, who, wanted, *end, None))
    }

    /// Whether a job may borrow so much at a time, or need not borrow. `own`: where it is booked itself.
    fn is_lent_at(
        &self,
        ahead: &mut Ahead,
        who: Who,
        wanted: &Holding,
        at: Timestamp,
        own: Option<usize>,
    ) -> bool {
        let runs = |(number, one): &(usize, &super::ahead::Booked)| {
            !one.gone
                && own != Some(*number)
                && one.in_quota
                && one.held.since <= at
                && one.held.until.is_none_or(|until| at < until)
        };
        let budget_of =
            |number, budget: &_| self.budget_at(ahead, number, budget, at, &|one| own == Some(one));
        let Some(mut guarantees) =
            crate::quota::Guarantees::new(&self.policy, &self.tree, &self.types, at, &budget_of)
        else {
            return true;
        };
        let standing: Vec<Standing> = ahead
            .booked
            .iter()
            .enumerate()
            .filter(runs)
            .filter_map(|(_, one)| {
                Some(Standing {
                    account: one.who.account?,
                    held: &one.held,
                    class: one.class,
                    leaving: false,
                })
            })
            .collect();
        guarantees.walk(&self.tree, &standing, |_| Vec::new());
        let looked = standing.len() as u64;
        ahead.looked += looked;
        let account = who.account.unwrap_or_default();
        if who.account.is_some() && guarantees.fits(&self.tree, account, &wanted.placed_at(at)) {
            return true;
        }
        let Some(keeper) = ahead
            .idle
            .keepers
            .iter()
            .find(|keeper| matches!(keeper.of, Of::Lenders))
        else {
            return true;
        };
        let is_lent = |(gpu_type, milli): (usize, u64)| {
            let of = |track: &Track| track.at(at).map_or(0, |meter| meter.gpus_of(gpu_type));
            let own = own.map_or(0, |own| ahead.booked[own].held.of(gpu_type));
            let idle = self
                .idle
                .usable_of(gpu_type)
                .saturating_sub((of(&keeper.held) + of(&keeper.aside)).saturating_sub(own));
            let kept = guarantees.kept_back(&self.tree, account, gpu_type);
            kept == 0 || idle >= kept + milli
        };
        std::iter::once((ALL, wanted.gpus))
            .chain(wanted.by_type())
            .all(is_lent)
    }

    /// Who was to start later, and would take of what is kept then, now that somebody starts before.
    pub(super) fn overtaken_beside_kept(
        &self,
        ahead: &mut Ahead,
        by: usize,
        (from, until): Span,
        gone: &mut BTreeSet<usize>,
    ) {
        let later = (Excluded((from, usize::MAX)), Excluded((until, 0)));
        let Ahead {
            idle,
            booked,
            looked,
            ..
        } = &mut *ahead;
        for (place, keeper) in idle.keepers.iter().enumerate() {
            if booked[by]
                .counted
                .on
                .get(place)
                .is_none_or(|on| on.gpus == 0)
            {
                continue;
            }
            for (at, number) in keeper.begins.range(later) {
                *looked += 1;
                let own = &booked[*number].counted.on[place];
                // What is set aside is for those behind it, or it waits for them no more.
                let of = |gpu_type: usize| {
                    keeper
                        .held
                        .at(*at)
                        .map_or(0, |meter| meter.gpus_of(gpu_type))
                };
                if keeper
                    .most
                    .iter()
                    .any(|(gpu_type, most)| own.of(*gpu_type) > 0 && of(*gpu_type) > *most)
                {
                    gone.insert(*number);
                }
            }
        }
        let borrowers: Vec<(Timestamp, usize)> =
            ahead.idle.borrowers.range(later).copied().collect();
        for (at, number) in borrowers {
            let (who, held) = (ahead.booked[number].who, ahead.booked[number].held.clone());
            if !ahead.booked[number].gone && !self.is_lent_at(ahead, who, &held, at, Some(number)) {
                gone.insert(number);
            }
        }
    }

    /// Starts that are planned from a time on of those from whom the same is kept as from one.
    pub(super) fn rivals_for_idle<'a>(
        &self,
        ahead: &'a Ahead,
        number: usize,
    ) -> impl Iterator<Item = &'a BTreeSet<(Timestamp, usize)>> {
        let GpuReservation {
            kept_from, borrows, ..
        } = &ahead.booked[number].counted;
        let keepers = ahead
            .idle
            .keepers
            .iter()
            .zip(kept_from)
            .filter(|(_, kept_from)| **kept_from)
            .map(|(keeper, _)| &keeper.begins);
        keepers.chain(borrows.then_some(&ahead.idle.borrowers))
    }
}
