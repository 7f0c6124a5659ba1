//! The victims for a pending job: the fewest runs that preemption may end and that make room, in the policy's order.
//!
//! Guaranteed demand reclaims from borrowers, a QOS from those it preempts, and among borrowers an account below its fair
//! part from one above. Every set is proved by the caller's `fits`. Ends nothing itself.

use crate::ledger::Ledger;
use crate::plan::Preempt;
use crate::preempt::candidate::{Candidate, RunKind};
use crate::preempt::exchange::{self, EndingRun, ExchangedGuarantees, Heirs};
use crate::preempt::fair_swap::{FairSwap, fair_parts};
use crate::preempt::ground::Ground;
use crate::preempt::guarantee_claims::{GuaranteeClaims, lender_of};
use crate::preempt::holders::{NodeNeed, NodeSet, NodeVictim, cheapest_nodes};
use crate::preempt::protection::{mode_of, preemptible, protected_secs};
use crate::preempt::victim_nodes::{fewest, less_loss, near_fewest, one_node, several_nodes};
use crate::queue_order::guaranteed_as;
use crate::snapshot::{PendingJob, RunningRun, Snapshot};
use gmodel::policy::PreemptMode;
use gmodel::{RunClass, RunId, Timestamp};
use gpolicy::account_tree::ROOT;
use gpolicy::priority::gpus_asked;
use gpolicy::quota::Guarantees;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The fewest runs to end so that a job starts; `None`: no runs that may be ended suffice. `fits` says whether the job could
/// start without these runs and without the runs that are ending already.
pub fn victims(
    snapshot: &Snapshot,
    ledger: &Ledger,
    job: &PendingJob,
    fits: &mut dyn FnMut(&BTreeSet<RunId>) -> bool,
) -> Option<Vec<Preempt>> {
    VictimCandidates::new(snapshot, ledger).victims(job, fits)
}

/// Runs that preemption may end, looked up once for all jobs of a pass.
pub struct VictimCandidates<'a> {
    snapshot: &'a Snapshot,
    ledger: &'a Ledger,
    known: Option<VictimPool<'a>>,
}

impl<'a> VictimCandidates<'a> {
    pub fn new(snapshot: &'a Snapshot, ledger: &'a Ledger) -> Self {
        Self {
            snapshot,
            ledger,
            known: None,
        }
    }

    /// As [`victims`]. Each run is a victim of one job at most.
    pub fn victims(
        &mut self,
        job: &PendingJob,
        fits: &mut dyn FnMut(&BTreeSet<RunId>) -> bool,
    ) -> Option<Vec<Preempt>> {
        let (snapshot, ledger) = (self.snapshot, self.ledger);
        self.known
            .get_or_insert_with(|| VictimPool::new(snapshot, ledger, snapshot.now))
            .victims(job, fits)
    }
}

/// As [`victims`], of the runs that may be ended at a time, without `others`.
pub(crate) fn victims_at(
    snapshot: &Snapshot,
    ledger: &Ledger,
    job: &PendingJob,
    at: Timestamp,
    others: &BTreeSet<RunId>,
    fits: &mut dyn FnMut(&BTreeSet<RunId>) -> bool,
) -> Option<Vec<Preempt>> {
    VictimPool::new(snapshot, ledger, at)
        .without(others)
        .victims(job, fits)
}

/// The first time at which runs other than `others` may be ended for a job, where their protected time forbids it now. `fits`
/// as in [`victims`].
pub(crate) fn may_from(
    snapshot: &Snapshot,
    ledger: &Ledger,
    job: &PendingJob,
    others: &BTreeSet<RunId>,
    fits: &mut dyn FnMut(&BTreeSet<RunId>) -> bool,
) -> Option<Timestamp> {
    let protected_until = |run: &RunningRun| {
        let protected =
            run.stops_by.is_none() && !run.charged && mode_of(snapshot, run) != PreemptMode::Off;
        protected.then(|| {
            run.started
                .unwrap_or(snapshot.now)
                .plus_secs(protected_secs(snapshot, run))
        })
    };
    let times: BTreeSet<Timestamp> = snapshot
        .running
        .iter()
        .filter_map(protected_until)
        .filter(|at| *at > snapshot.now)
        .collect();
    let times: Vec<Timestamp> = times.into_iter().collect();
    let mut are_enough = |at: Timestamp| {
        let known = VictimPool::new(snapshot, ledger, at).without(others);
        let eligible = known.eligible(job);
        !eligible.is_empty()
            && fits(
                &eligible
                    .iter()
                    .map(|one| known.runs[one.at].run.run)
                    .collect(),
            )
    };
    let last = *times.last()?;
    if are_enough(snapshot.now) || !are_enough(last) {
        return None;
    }
    // With time more runs may be ended, never fewer.
    let (mut low, mut high) = (0, times.len() - 1);
    while low < high {
        let middle = low + (high - low) / 2;
        match are_enough(times[middle]) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    Some(times[low])
}

struct VictimPool<'a> {
    snapshot: &'a Snapshot,
    ledger: &'a Ledger,
    runs: Vec<Candidate<'a>>,
    /// Places in `runs` by kind: grounds are equal within a kind.
    kinds: BTreeMap<RunKind<'a>, Vec<usize>>,
    /// Places in `runs`, by node.
    on_node: Vec<Vec<usize>>,
    /// Thousandths of borrowed GPUs, by the account with the exceeded guarantee.
    borrowed: BTreeMap<u32, u64>,
    heirs: Heirs,
    claims: GuaranteeClaims,
    /// Each account's fair part of the cluster's GPUs, thousandths; empty without quotas.
    fair_parts: Vec<u64>,
}

/// Victims by their places among the runs, and what their heirs inherit.
struct ChosenVictims {
    set: Vec<usize>,
    exchanged: Option<ExchangedGuarantees>,
}

/// A job for which runs may be ended.
struct Preemptor<'a> {
    qos: &'a str,
    class: Option<RunClass>,
    /// The QOS that its own may preempt.
    victim_qos: Vec<&'a str>,
    needs_gpus: bool,
}

/// A run that may be ended for one job.
struct Eligible {
    at: usize,
    ground: Ground,
    /// Thousandths of GPUs that its account borrows: the account that borrows most loses runs first.
    excess: u64,
}

impl<'a> VictimPool<'a> {
    /// The pool of runs that may be ended at a time.
    fn new(snapshot: &'a Snapshot, ledger: &'a Ledger, at: Timestamp) -> Self {
        let mut known = Self {
            snapshot,
            ledger,
            runs: Vec::new(),
            kinds: BTreeMap::new(),
            on_node: vec![Vec::new(); snapshot.nodes.len()],
            borrowed: BTreeMap::new(),
            heirs: Heirs::new(snapshot, ledger),
            claims: GuaranteeClaims::new(snapshot, ledger),
            fair_parts: if ledger.has_quotas() {
                fair_parts(snapshot, ledger)
            } else {
                Vec::new()
            },
        };
        for run in snapshot
            .running
            .iter()
            .filter(|run| run.stops_by.is_none() && !run.charged)
        {
            let Some((class, gpus)) = ledger.standing_of(run.run) else {
                continue;
            };
            let account = ledger.tree().number(&run.spec.account).unwrap_or(ROOT);
            if class == Some(RunClass::Borrowed) {
                *known
                    .borrowed
                    .entry(lender_of(ledger, account))
                    .or_default() += gpus;
            }
            let Some(mode) = preemptible(snapshot, run, at) else {
                continue;
            };
            for share in &run.shares {
                if let Some(node) = snapshot.place_of(share.node) {
                    known.on_node[node].push(known.runs.len());
                }
            }
            let run = Candidate::new(snapshot, run, account, class, mode, gpus);
            known
                .kinds
                .entry(run.kind())
                .or_default()
                .push(known.runs.len());
            known.runs.push(run);
        }
        known.rank();
        let leaving = snapshot
            .running
            .iter()
            .filter(|run| run.stops_by.is_some() || run.charged);
        known.pass_on(
            leaving
                .filter(|run| ledger.class_of(run.run) == Some(RunClass::Guaranteed))
                .collect(),
        );
        known
    }

    /// Ranks all runs once, and sorts each kind: every job chooses from them.
    fn rank(&mut self) {
        let mut places: Vec<usize> = (0..self.runs.len()).collect();
        places.sort_unstable_by_key(|at| {
            let run = &self.runs[*at];
            (
                run.protected,
                run.gpus,
                Reverse(run.run.placed),
                run.run.run,
            )
        });
        for (rank, at) in places.into_iter().enumerate() {
            self.runs[at].rank = rank;
        }
        for places in self.kinds.values_mut() {
            places.sort_unstable_by_key(|at| self.runs[*at].rank);
        }
    }

    /// Excludes victims of other jobs.
    fn without(mut self, others: &BTreeSet<RunId>) -> Self {
        self.runs
            .iter_mut()
            .filter(|run| others.contains(&run.run.run))
            .for_each(|run| run.taken = true);
        self
    }

    fn victims(
        &mut self,
        job: &PendingJob,
        fits: &mut dyn FnMut(&BTreeSet<RunId>) -> bool,
    ) -> Option<Vec<Preempt>> {
        let mut eligible = self.eligible(job);
        let mut proof =
            |set: &[usize]| fits(&set.iter().map(|at| self.runs[*at].run.run).collect());
        let set = self.choose(job, &eligible, &mut proof);
        let chosen = match set {
            Some(set) => ChosenVictims {
                set,
                exchanged: None,
            },
            None => {
                eligible.extend(self.exchangeable(job));
                self.by_exchange(job, &eligible, &mut proof)?
            }
        };
        let grounds: BTreeMap<usize, &Eligible> =
            eligible.iter().map(|one| (one.at, one)).collect();
        let mut preempts: Vec<Preempt> = chosen
            .set
            .iter()
            .map(|at| self.preempt(job, grounds[at]))
            .collect();
        if let Some(exchanged) = &chosen.exchanged {
            let inherits = |at: &usize| self.runs[*at].class == Some(RunClass::Guaranteed);
            let heirs = exchanged
                .heirs
                .iter()
                .map(|heir| format!("job {}", heir.job))
                .collect::<Vec<_>>()
                .join(", ");
            for (preempt, _) in preempts
                .iter_mut()
                .zip(&chosen.set)
                .filter(|(_, at)| inherits(at))
            {
                preempt.why +=
                    &format!("; {heirs} of that account takes its place on the guarantee");
                preempt.heirs.clone_from(&exchanged.heirs);
            }
        }
        self.book(job, chosen);
        Some(preempts)
    }

    /// Enters a decision for one job, so that later jobs count on it.
    fn book(&mut self, job: &PendingJob, chosen: ChosenVictims) {
        for at in &chosen.set {
            self.runs[*at].taken = true;
            self.heirs.remove(self.runs[*at].run.run);
            self.claims.goes(
                self.ledger,
                &self.runs[*at].run.spec.account,
                self.runs[*at].gpus,
            );
        }
        for run in chosen
            .set
            .iter()
            .map(|at| &self.runs[*at])
            .filter(|run| run.class == Some(RunClass::Borrowed))
        {
            *self
                .borrowed
                .entry(lender_of(self.ledger, run.account))
                .or_default() -= run.gpus;
        }
        let exchanged = chosen.exchanged.is_some();
        if let Some(exchanged) = chosen.exchanged {
            self.claims.guarantees = Some(exchanged.guarantees);
            for heir in exchanged.heirs {
                self.heirs.remove(heir);
                self.stands_on_guarantee(heir);
            }
        }
        self.claims.comes(self.ledger, job, self.snapshot.now, true);
        if !exchanged {
            let guaranteed = |run: &&Candidate| {
                run.class == Some(RunClass::Guaranteed) && run.mode != PreemptMode::Suspend
            };
            let going = chosen
                .set
                .iter()
                .map(|at| &self.runs[*at])
                .filter(guaranteed)
                .map(|run| run.run);
            self.pass_on(going.collect());
        }
    }

    /// Borrowed runs inherit the guarantee of guaranteed victims, and stop being borrowed.
    fn pass_on(&mut self, leavers: Vec<&'a RunningRun>) {
        let Some(guarantees) = self.claims.guarantees.as_mut() else {
            return;
        };
        let (ledger, tree) = (self.ledger, self.ledger.tree());
        let mut lenders: BTreeSet<u32> = BTreeSet::new();
        for run in leavers {
            let account = tree.number(&run.spec.account).unwrap_or(ROOT);
            guarantees.remove(tree, account, &ledger.holding_of_run(run));
            lenders.insert(lender_of(ledger, account));
        }
        if !lenders.is_empty() {
            let heirs = self.heirs.inherit(guarantees, ledger, &lenders);
            heirs
                .into_iter()
                .for_each(|heir| self.stands_on_guarantee(heir));
        }
    }

    fn stands_on_guarantee(&mut self, heir: RunId) {
        // `runs` is in the order of ids, as the snapshot is.
        if let Ok(at) = self.runs.binary_search_by_key(&heir, |run| run.run.run) {
            let mut kind = self.runs[at].kind();
            self.kinds.entry(kind).or_default().retain(|one| *one != at);
            self.runs[at].class = Some(RunClass::Guaranteed);
            kind.class = Some(RunClass::Guaranteed);
            self.kinds.entry(kind).or_default().push(at);
        }
        let account = self
            .snapshot
            .running
            .binary_search_by_key(&heir, |run| run.run)
            .ok();
        let account = account.and_then(|at| {
            self.ledger
                .tree()
                .number(&self.snapshot.running[at].spec.account)
        });
        let gpus = self.ledger.standing_of(heir).map_or(0, |(_, gpus)| gpus);
        *self
            .borrowed
            .entry(lender_of(self.ledger, account.unwrap_or(ROOT)))
            .or_default() -= gpus;
    }

    /// The fewest eligible runs that make room.
    fn choose(
        &self,
        job: &PendingJob,
        eligible: &[Eligible],
        proof: &mut dyn FnMut(&[usize]) -> bool,
    ) -> Option<Vec<usize>> {
        let all: Vec<usize> = eligible.iter().map(|one| one.at).collect();
        if all.is_empty() || !proof(&all) {
            return None;
        }
        Some(self.on_few_nodes(job, eligible, proof))
    }

    /// Guaranteed runs of accounts that borrow elsewhere, least loss first: the last resort of guaranteed demand.
    fn exchangeable(&self, job: &PendingJob) -> Vec<Eligible> {
        if self.class_of(job) != Some(RunClass::Guaranteed) || gpus_asked(&job.spec.request).1 == 0
        {
            return Vec::new();
        }
        let passes_on = self.heirs.by_lender();
        let mut all: Vec<Eligible> = Vec::new();
        for (kind, runs) in self
            .kinds
            .iter()
            .filter(|(kind, _)| kind.class == Some(RunClass::Guaranteed))
        {
            let lender = lender_of(self.ledger, kind.account);
            let heirs = passes_on.get(&lender).copied().unwrap_or(0);
            // The run's QOS would take back what the exchange took.
            if heirs == 0 || self.preempts(kind.qos, &job.spec.qos) {
                continue;
            }
            let may_go = |run: &Candidate| {
                let is_there = !run.taken && run.mode != PreemptMode::Suspend;
                is_there && (1..=heirs).contains(&run.gpus) && exchange::may_borrow(run.run)
            };
            let excess = self.borrowed.get(&lender).copied().unwrap_or(0);
            let of_kind = runs.iter().filter(|at| may_go(&self.runs[**at]));
            all.extend(of_kind.map(|at| Eligible {
                at: *at,
                ground: Ground::Reclaim,
                excess,
            }));
        }
        all.sort_by_key(|one| (Reverse(one.excess), self.runs[one.at].rank));
        all
    }

    /// As [`VictimPool::choose`], with guaranteed victims: borrowed runs of their account elsewhere inherit the guarantee.
    fn by_exchange(
        &self,
        job: &PendingJob,
        eligible: &[Eligible],
        proof: &mut dyn FnMut(&[usize]) -> bool,
    ) -> Option<ChosenVictims> {
        let before = self.claims.guarantees.as_ref()?;
        let inherits = |at: usize| self.runs[at].class == Some(RunClass::Guaranteed);
        let all: Vec<usize> = eligible.iter().map(|one| one.at).collect();
        if !all.iter().any(|at| inherits(*at)) || !proof(&all) {
            return None;
        }
        let passes_on = self.heirs.by_lender();
        // Each guarantee loses at most what it borrows.
        let allowed = |orders: &[usize]| {
            let mut lost: BTreeMap<u32, u64> = BTreeMap::new();
            for run in places(eligible, orders)
                .into_iter()
                .map(|at| &self.runs[at])
            {
                *lost.entry(lender_of(self.ledger, run.account)).or_default() += run.gpus;
            }
            lost.iter()
                .all(|(lender, gpus)| *gpus <= passes_on.get(lender).copied().unwrap_or(0))
        };
        let needs = NodeNeed::all(job, self.snapshot);
        let sets = self.node_sets(job, &needs, eligible);
        let nodes = needs.first()?.nodes;
        let mut makes_room = |orders: &[usize]| {
            let set = places(eligible, orders);
            self.exchange(job, before, &set).is_some() && proof(&set)
        };
        let found = exchange::search(sets, nodes, &allowed, &mut makes_room)?;
        let set = fewest(places(eligible, &found), proof);
        let exchanged = self.exchange(job, before, &set)?;
        Some(ChosenVictims {
            set,
            exchanged: Some(exchanged),
        })
    }

    /// The guarantees after the end of some runs; `None`: they would have no room for the job.
    fn exchange(
        &self,
        job: &PendingJob,
        before: &Guarantees,
        set: &[usize],
    ) -> Option<ExchangedGuarantees> {
        let ending = |run: &Candidate<'a>| EndingRun {
            run: run.run,
            account: run.account,
            class: run.class,
        };
        let ending: Vec<EndingRun> = set.iter().map(|at| ending(&self.runs[*at])).collect();
        let exchanged = self.heirs.after(before, self.ledger, &ending)?;
        let account = self.ledger.tree().number(&job.spec.account)?;
        let (after, now) = (&exchanged.guarantees, self.snapshot.now);
        guaranteed_as(job, account, after, self.ledger, now)?;
        Some(exchanged)
    }

    /// The cheapest victims on each node, by their order among the eligible runs.
    fn node_sets(
        &self,
        job: &PendingJob,
        needs: &[NodeNeed],
        eligible: &[Eligible],
    ) -> Vec<NodeSet> {
        let mut order = vec![usize::MAX; self.runs.len()];
        for (at, one) in eligible.iter().enumerate() {
            order[one.at] = at;
        }
        cheapest_nodes(self.snapshot, job, needs, &|node| {
            let runs = self.on_node[node].iter();
            runs.filter_map(|at| self.holder(*at, order[*at], eligible))
                .collect()
        })
    }

    fn holder(&self, at: usize, order: usize, eligible: &[Eligible]) -> Option<NodeVictim<'a>> {
        let run = &self.runs[at];
        let holder = |one: &Eligible| NodeVictim {
            order,
            excess: one.excess,
            protected: run.protected,
            run: run.run,
            freezes: run.mode == PreemptMode::Suspend,
        };
        eligible.get(order).map(holder)
    }

    /// The runs that may be ended for a job, in the order of the policy.
    fn eligible(&self, job: &PendingJob) -> Vec<Eligible> {
        let class = self.class_of(job);
        // QOS that preempt each other, also in a circle, would take the same GPUs back: they preempt no run of the circle.
        let policy = &self.snapshot.policy;
        let victim_qos = policy.qos.get(&job.spec.qos).map_or(Vec::new(), |qos| {
            qos.preempt
                .iter()
                .map(|other| &**other)
                .filter(|other| !policy.qos_reaches(other, &job.spec.qos))
                .collect()
        });
        let preemptor = Preemptor {
            qos: &job.spec.qos,
            class,
            victim_qos,
            needs_gpus: gpus_asked(&job.spec.request).1 > 0,
        };
        let mut swap = FairSwap::new(self.ledger, &self.claims, &self.fair_parts, job, class);
        let mut all: Vec<Eligible> = Vec::new();
        for (kind, runs) in &self.kinds {
            let mut ground = |holds_gpus| self.ground(&preemptor, kind, holds_gpus, &mut swap);
            let by_gpus = [ground(false), ground(true)];
            if by_gpus == [None, None] {
                continue;
            }
            let is_borrowed = kind.class == Some(RunClass::Borrowed);
            let borrowed = self
                .borrowed
                .get(&lender_of(self.ledger, kind.account))
                .copied()
                .filter(|_| is_borrowed)
                .unwrap_or(0);
            for at in runs {
                let run = &self.runs[*at];
                // A suspended run keeps its GPUs and memory, and cannot be suspended once more.
                let stays = run.mode == PreemptMode::Suspend
                    && (preemptor.needs_gpus || run.run.suspended.is_some());
                let Some(ground) =
                    by_gpus[usize::from(run.gpus > 0)].filter(|_| !run.taken && !stays)
                else {
                    continue;
                };
                all.push(Eligible {
                    at: *at,
                    ground,
                    excess: if ground == Ground::Outside {
                        u64::MAX
                    } else {
                        borrowed
                    },
                });
            }
        }
        all.sort_by_key(|one| (Reverse(one.excess), self.runs[one.at].rank));
        all.retain(|one| {
            one.ground != Ground::FairShare
                || swap.gives(self.runs[one.at].account, self.runs[one.at].gpus)
        });
        all
    }

    /// The ground on which a job may end runs of a kind.
    fn ground(
        &self,
        preemptor: &Preemptor,
        kind: &RunKind,
        holds_gpus: bool,
        swap: &mut FairSwap,
    ) -> Option<Ground> {
        let is_borrowed = kind.class == Some(RunClass::Borrowed);
        let is_outside = preemptor.class.is_some() && kind.class.is_none();
        // One ground must not take what another gives back.
        let gives_back = self.preempts(kind.qos, preemptor.qos);
        let in_pair = preemptor.victim_qos.contains(&kind.qos);
        // A run without GPUs does not help the guarantee; between QOS its CPUs may.
        let reclaims = preemptor.class == Some(RunClass::Guaranteed) && preemptor.needs_gpus;
        match preemptor.class {
            _ if reclaims && is_borrowed => Some(Ground::Reclaim),
            _ if reclaims && is_outside && holds_gpus && !gives_back => Some(Ground::Outside),
            Some(RunClass::Borrowed) if in_pair && (is_borrowed || is_outside) => Some(Ground::Qos),
            Some(RunClass::Borrowed) if is_borrowed && !gives_back && swap.is_for(kind.account) => {
                Some(Ground::FairShare)
            }
            Some(RunClass::Guaranteed) | None if in_pair => Some(Ground::Qos),
            _ => None,
        }
    }

    /// The class in which the job would start with the guarantee that is free and unclaimed.
    fn class_of(&self, job: &PendingJob) -> Option<RunClass> {
        let guarantees = self.claims.guarantees.as_ref()?;
        if self.ledger.is_outside_quota(&job.spec) {
            return None;
        }
        let account = self.ledger.tree().number(&job.spec.account);
        let held = account.and_then(|account| {
            guaranteed_as(job, account, guarantees, self.ledger, self.snapshot.now)
        });
        Some(if held.is_some() {
            RunClass::Guaranteed
        } else {
            RunClass::Borrowed
        })
    }

    fn preempts(&self, one: &str, other: &str) -> bool {
        self.snapshot
            .policy
            .qos
            .get(one)
            .is_some_and(|qos| qos.preempt.contains(other))
    }

    /// The fewest victims on as many nodes as the job needs; among such sets the one that the policy prefers.
    fn on_few_nodes(
        &self,
        job: &PendingJob,
        eligible: &[Eligible],
        proof: &mut dyn FnMut(&[usize]) -> bool,
    ) -> Vec<usize> {
        let needs = NodeNeed::all(job, self.snapshot);
        let sets = self.node_sets(job, &needs, eligible);
        let nodes = needs.first().map_or(1, |need| need.nodes);
        let mut by_order = |orders: &[usize]| proof(&places(eligible, orders));
        let run = |order: &usize| &self.runs[eligible[*order].at];
        let mut found = self.first_found(&sets, nodes, eligible, &mut by_order);
        if nodes == 1 {
            return places(eligible, &found);
        }
        let cost = |orders: &[usize]| {
            let excess = orders
                .iter()
                .map(|order| eligible[*order].excess)
                .min()
                .unwrap_or(u64::MAX);
            (
                Reverse(excess),
                orders.iter().map(|order| run(order).protected).sum::<u64>(),
            )
        };
        if self.runs.iter().any(|one| one.run.shares.len() > 1) {
            // Gangs free several nodes at once: largest first may need fewer, or lose less.
            let mut by_size: Vec<usize> = (0..eligible.len()).collect();
            by_size.sort_by_key(|order| Reverse(run(order).gpus));
            let other = fewest(by_size, &mut by_order);
            if other.len() + 1 < found.len()
                || (other.len() <= found.len() && cost(&other).1 < cost(&found).1)
            {
                found = other;
            }
        }
        let found =
            less_loss(&sets, nodes, &found, found.len(), &cost, &mut by_order).unwrap_or(found);
        places(eligible, &found)
    }

    /// Few victims on the cheapest nodes, or anywhere where that takes fewer; each by its order among the eligible runs.
    fn first_found(
        &self,
        sets: &[NodeSet],
        nodes: usize,
        eligible: &[Eligible],
        by_order: &mut dyn FnMut(&[usize]) -> bool,
    ) -> Vec<usize> {
        let run = |order: &usize| &self.runs[eligible[*order].at];
        let (of_nodes, took_more) = match nodes {
            1 => (one_node(sets, by_order), false),
            _ => several_nodes(sets, nodes, by_order)
                .map_or((None, false), |(set, took_more)| (Some(set), took_more)),
        };
        // Where nodes alone do not decide, as with headroom, runs elsewhere may serve as well.
        let seem_free = sets.iter().filter(|set| set.orders.is_empty()).count() >= nodes;
        let is_wide = |set: &[usize]| {
            set.len() > 1 && set.iter().any(|order| run(order).run.shares.len() > 1)
        };
        let of_nodes = of_nodes.map(|set| {
            if seem_free || is_wide(&set) {
                fewest(set, by_order)
            } else {
                set
            }
        });
        let is_near = of_nodes
            .as_ref()
            .is_some_and(|set| set.len() <= 2 || !(seem_free || took_more));
        let anywhere = (!is_near).then(|| {
            near_fewest(
                sets,
                nodes,
                eligible.len(),
                &|order| run(&order).gpus,
                by_order,
            )
        });
        match (of_nodes, anywhere) {
            (Some(of_nodes), Some(anywhere)) if anywhere.len() + 1 < of_nodes.len() => anywhere,
            (Some(of_nodes), _) => of_nodes,
            (None, anywhere) => anywhere.unwrap_or_default(),
        }
    }

    fn preempt(&self, job: &PendingJob, eligible: &Eligible) -> Preempt {
        let victim = &self.runs[eligible.at];
        let mode = match victim.mode {
            // The run's job would not return to the queue.
            PreemptMode::Requeue if !victim.run.may_requeue => PreemptMode::Cancel,
            mode => mode,
        };
        let why = eligible
            .ground
            .text(self.ledger, job, victim.run, eligible.excess);
        // A suspended run loses nothing.
        let lost = if mode == PreemptMode::Suspend {
            0
        } else {
            victim.lost
        };
        let for_borrower = self.class_of(job) == Some(RunClass::Borrowed);
        Preempt {
            run: victim.run.run,
            for_job: job.id,
            mode,
            lost_gpu_secs: lost,
            why,
            heirs: Vec::new(),
            for_borrower,
        }
    }
}

/// The places of eligible runs by their order.
fn places(eligible: &[Eligible], orders: &[usize]) -> Vec<usize> {
    orders.iter().map(|order| eligible[*order].at).collect()
}

#[cfg(test)]
mod tests;
