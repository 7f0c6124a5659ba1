//! Victims: which runs may be ended for a pending job, in which order, and the fewest of them that make room.
//!
//! Guaranteed demand reclaims from borrowers, a QOS from those it preempts, and among borrowers an account below its fair
//! part from one above. Every set is proved by the caller's `fits`. Ends nothing itself.

use crate::ledger::Ledger;
use crate::plan::Preempt;
use crate::preempt::exchange::{self, Heirs, Leaver};
use crate::preempt::holders::{Holder, NodeNeed, NodeSet, cheapest_nodes};
use crate::preempt::leaving::promised_guarantee;
use crate::preempt::victim_nodes::{fewest, less_loss, near_fewest, one_node, several_nodes};
use crate::queue_order::{gpus_counted, guaranteed_as};
use crate::snapshot::{PendingJob, RunningRun, Snapshot};
use gmodel::policy::PreemptMode;
use gmodel::{JobId, RunClass, RunId, Timestamp};
use gpolicy::account_tree::ROOT;
use gpolicy::limits::{ALL, milli_text};
use gpolicy::priority::gpus_asked;
use gpolicy::quota::Guarantees;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The runs to end so that a job starts, or `None` when no runs that may be ended make room for it. `fits` says whether
/// the job could start with these runs gone; runs that leave already count as gone.
pub fn victims(
    snapshot: &Snapshot,
    ledger: &Ledger,
    job: &PendingJob,
    fits: &mut dyn FnMut(&BTreeSet<RunId>) -> bool,
) -> Option<Vec<Preempt>> {
    VictimCandidates::new(snapshot, ledger).victims(job, fits)
}

/// Runs that some job may preempt, looked up once for all jobs of a pass, when the first job asks.
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

    /// As [`victims`]. Runs that it names are not named again for other jobs.
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

/// As [`victims`], of the runs that may be ended at a time, but for some.
pub(crate) fn victims_at(
    snapshot: &Snapshot,
    ledger: &Ledger,
    job: &PendingJob,
    (at, others): (Timestamp, &BTreeSet<RunId>),
    fits: &mut dyn FnMut(&BTreeSet<RunId>) -> bool,
) -> Option<Vec<Preempt>> {
    VictimPool::new(snapshot, ledger, at)
        .without(others)
        .victims(job, fits)
}

/// When runs, but for some, may first be ended for a job for which none may be now, as they have not run long enough yet; `fits` as in
/// [`victims`].
pub(crate) fn may_from(
    snapshot: &Snapshot,
    ledger: &Ledger,
    job: &PendingJob,
    others: &BTreeSet<RunId>,
    fits: &mut dyn FnMut(&BTreeSet<RunId>) -> bool,
) -> Option<Timestamp> {
    let protected_until = |run: &RunningRun| {
        let protected =
            run.leaves_by.is_none() && !run.charged && mode_of(snapshot, run) != PreemptMode::Off;
        protected.then(|| {
            run.started
                .unwrap_or(snapshot.now)
                .plus_secs(least_secs(snapshot, run))
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
    // The runs that may be ended only grow with time.
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
    /// Places in `runs` of those of a kind: what may be ended for a job is told kind by kind.
    kinds: BTreeMap<RunKind<'a>, Vec<usize>>,
    /// Places in `runs`, by node.
    on_node: Vec<Vec<usize>>,
    /// Thousandths of GPUs that are borrowed, by the account with the guarantee that they exceed.
    borrowed: BTreeMap<u32, u64>,
    heirs: Heirs,
    claims: GuaranteeClaims,
    /// Thousandths of the cluster's GPUs by shares, over all levels: by account, where there are quotas.
    fair_parts: Vec<u64>,
}

/// Runs that give way on the same grounds, but for what is said of each alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RunKind<'a> {
    class: Option<RunClass>,
    account: u32,
    qos: &'a str,
}

/// Runs to end, by their places among the eligible runs, and the runs that take over their guarantee.
struct ChosenVictims {
    set: Vec<usize>,
    exchanged: Option<exchange::Exchanged>,
}

/// What is on its way from one account to another: room is made for jobs that do not hold it yet, by runs that still do.
struct GuaranteeClaims {
    /// The ledger's, with the jobs that room is being made for.
    guarantees: Option<Guarantees>,
    /// Thousandths of GPUs, by account with those below it.
    coming: Vec<u64>,
    going: Vec<u64>,
}

impl GuaranteeClaims {
    fn new(snapshot: &Snapshot, ledger: &Ledger) -> Self {
        let none = vec![0; ledger.tree().len()];
        let mut claims = Self {
            guarantees: ledger.guarantees().cloned(),
            coming: none.clone(),
            going: none,
        };
        let leaving = || {
            snapshot
                .running
                .iter()
                .filter(|run| run.leaves_by.is_some())
        };
        for run in leaving() {
            let gpus = ledger.standing_of(run.run).map_or(0, |(_, gpus)| gpus);
            claims.goes(ledger, &run.spec.account, gpus);
        }
        let waiting: BTreeSet<JobId> = leaving().filter_map(|run| run.leaves_for).collect();
        if !waiting.is_empty() {
            let owed = promised_guarantee(snapshot);
            let jobs = snapshot
                .pending
                .iter()
                .filter(|job| job.is_among(&waiting) && job.spec.choice() == 0);
            jobs.for_each(|job| claims.comes(ledger, job, snapshot.now, job.is_among(&owed)));
        }
        claims
    }

    /// `owed`: it may stand on its account's guarantee.
    fn comes(&mut self, ledger: &Ledger, job: &PendingJob, now: Timestamp, owed: bool) {
        let tree = ledger.tree();
        let Some(account) = tree.number(&job.spec.account) else {
            return;
        };
        let gpus = gpus_counted(&job.spec.request, ledger).1;
        tree.line(account)
            .for_each(|above| self.coming[above as usize] += gpus);
        let Some(guarantees) = self.guarantees.as_mut().filter(|_| owed) else {
            return;
        };
        if let Some(held) = guaranteed_as(job, account, guarantees, ledger, now) {
            guarantees.add(tree, account, &held);
        }
    }

    fn goes(&mut self, ledger: &Ledger, account: &str, gpus: u64) {
        let account = ledger.tree().number(account).unwrap_or(ROOT);
        ledger
            .tree()
            .line(account)
            .for_each(|above| self.going[above as usize] += gpus);
    }
}

struct Candidate<'a> {
    run: &'a RunningRun,
    account: u32,
    class: Option<RunClass>,
    mode: PreemptMode,
    /// Thousandths.
    gpus: u64,
    /// GPU-seconds since the last mark.
    lost: u64,
    /// Of these, what protects it: at most so much of every run.
    protected: u64,
    /// Already to be ended for another job of this pass.
    taken: bool,
    /// Its place among all by what is lost, then size, then start: the order of victims where nothing else decides.
    rank: usize,
}

impl<'a> Candidate<'a> {
    fn kind(&self) -> RunKind<'a> {
        RunKind {
            class: self.class,
            account: self.account,
            qos: &self.run.spec.qos,
        }
    }
}

/// On which ground a run gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ground {
    Reclaim,
    /// Reclaim of a run outside of quotas: it has no guarantee, and goes before borrowed runs.
    Outside,
    Qos,
    FairShare,
}

/// A run that may be ended for one job.
struct Eligible {
    at: usize,
    ground: Ground,
    /// Thousandths of GPUs that its account has borrowed: the account furthest above its guarantee goes first.
    excess: u64,
}

impl<'a> VictimPool<'a> {
    /// With the runs that may be ended at a time.
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
            .filter(|run| run.leaves_by.is_none() && !run.charged)
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
            let run = candidate(snapshot, run, account, class, mode, gpus);
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
            .filter(|run| run.leaves_by.is_some() || run.charged);
        known.pass_on(
            leaving
                .filter(|run| ledger.class_of(run.run) == Some(RunClass::Guaranteed))
                .collect(),
        );
        known
    }

    /// Every job has many to choose from: those of a kind stand in the order in which they go.
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

    /// Some are to go for others already.
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

    /// What is decided for one job holds for those after it.
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

    /// Borrowed runs take over the guarantee of guaranteed runs that leave without an exchange, so they are no borrowed
    /// victims any more.
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
        // They stand in the order of their ids, as the snapshot's do.
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

    /// The runs of those that may be ended which make room, with the fewest of them.
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
            // Its QOS would take back what the exchange took.
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

    /// As [`VictimPool::choose`], where guaranteed runs hold what is needed and borrowed runs of their account are elsewhere.
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
        let runs_of = |orders: &[usize]| {
            orders
                .iter()
                .map(|order| eligible[*order].at)
                .collect::<Vec<_>>()
        };
        // Each guarantee loses at most what it borrows.
        let allowed = |orders: &[usize]| {
            let mut lost: BTreeMap<u32, u64> = BTreeMap::new();
            for run in runs_of(orders).into_iter().map(|at| &self.runs[at]) {
                *lost.entry(lender_of(self.ledger, run.account)).or_default() += run.gpus;
            }
            lost.iter()
                .all(|(lender, gpus)| *gpus <= passes_on.get(lender).copied().unwrap_or(0))
        };
        let after = |set: &[usize]| {
            let leaver = |run: &Candidate<'a>| Leaver {
                run: run.run,
                account: run.account,
                class: run.class,
            };
            let leavers: Vec<Leaver> = set.iter().map(|at| leaver(&self.runs[*at])).collect();
            let exchanged = self.heirs.after(before, self.ledger, &leavers)?;
            // What the job is owed is still there for it.
            let account = self.ledger.tree().number(&job.spec.account)?;
            guaranteed_as(
                job,
                account,
                &exchanged.guarantees,
                self.ledger,
                self.snapshot.now,
            )?;
            Some(exchanged)
        };
        let mut place = vec![usize::MAX; self.runs.len()];
        eligible
            .iter()
            .enumerate()
            .for_each(|(order, one)| place[one.at] = order);
        let needs = NodeNeed::all(job, self.snapshot);
        let sets = cheapest_nodes(self.snapshot, job, &needs, &|node| {
            self.on_node[node]
                .iter()
                .filter_map(|at| self.holder(*at, place[*at], eligible))
                .collect()
        });
        let nodes = needs.first()?.nodes;
        let mut makes_room = |orders: &[usize]| {
            let set = runs_of(orders);
            after(&set).is_some() && proof(&set)
        };
        let found = exchange::search(sets, nodes, &allowed, &mut makes_room)?;
        let set = fewest(runs_of(&found), proof);
        let exchanged = after(&set)?;
        Some(ChosenVictims {
            set,
            exchanged: Some(exchanged),
        })
    }

    fn holder(&self, at: usize, order: usize, eligible: &[Eligible]) -> Option<Holder<'a>> {
        let run = &self.runs[at];
        let holder = |one: &Eligible| Holder {
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
        // What one takes another must not give back: QOS that name each other, also in a circle, preempt none of it.
        let policy = &self.snapshot.policy;
        let pairs: Vec<&str> = policy.qos.get(&job.spec.qos).map_or(Vec::new(), |qos| {
            qos.preempt
                .iter()
                .map(|other| &**other)
                .filter(|other| !policy.qos_reaches(other, &job.spec.qos))
                .collect()
        });
        let needs_gpus = gpus_asked(&job.spec.request).1 > 0;
        let mut swap = FairSwap::new(self, job, class);
        let mut all: Vec<Eligible> = Vec::new();
        for (kind, runs) in &self.kinds {
            let is_borrowed = kind.class == Some(RunClass::Borrowed);
            let is_outside = class.is_some() && kind.class.is_none();
            // Nor does one ground take what the other gives back.
            let gives_back = self.preempts(kind.qos, &job.spec.qos);
            let in_pair = pairs.contains(&kind.qos);
            // One that holds no GPU is of no use to the guarantee, but a pair of QOS may want its CPUs.
            let grounds = |holds_gpus: bool, swap: &mut FairSwap| match class {
                Some(RunClass::Guaranteed) if is_borrowed && needs_gpus => Some(Ground::Reclaim),
                Some(RunClass::Guaranteed)
                    if is_outside && needs_gpus && holds_gpus && !gives_back =>
                {
                    Some(Ground::Outside)
                }
                Some(RunClass::Borrowed) if in_pair && (is_borrowed || is_outside) => {
                    Some(Ground::Qos)
                }
                Some(RunClass::Borrowed)
                    if is_borrowed && !gives_back && swap.is_for(kind.account) =>
                {
                    Some(Ground::FairShare)
                }
                Some(RunClass::Guaranteed) | None if in_pair => Some(Ground::Qos),
                _ => None,
            };
            let by_gpus = [grounds(false, &mut swap), grounds(true, &mut swap)];
            if by_gpus == [None, None] {
                continue;
            }
            let borrowed = self
                .borrowed
                .get(&lender_of(self.ledger, kind.account))
                .copied()
                .filter(|_| is_borrowed)
                .unwrap_or(0);
            for at in runs {
                let run = &self.runs[*at];
                // A frozen run keeps its GPUs and memory, and cannot be frozen once more.
                let stays =
                    run.mode == PreemptMode::Suspend && (needs_gpus || run.run.frozen.is_some());
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
        all.retain(|one| one.ground != Ground::FairShare || swap.gives(&self.runs[one.at]));
        all
    }

    /// As what the job would start: with the guarantee that is left, and not claimed by others.
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

    /// Room on as many nodes as the job needs, with the fewest runs, and of such sets the one the policy likes best.
    fn on_few_nodes(
        &self,
        job: &PendingJob,
        eligible: &[Eligible],
        proof: &mut dyn FnMut(&[usize]) -> bool,
    ) -> Vec<usize> {
        let mut place = vec![usize::MAX; self.runs.len()];
        for (order, one) in eligible.iter().enumerate() {
            place[one.at] = order;
        }
        let needs = NodeNeed::all(job, self.snapshot);
        let sets: Vec<NodeSet> = cheapest_nodes(self.snapshot, job, &needs, &|node| {
            self.on_node[node]
                .iter()
                .filter_map(|at| self.holder(*at, place[*at], eligible))
                .collect()
        });
        let nodes = needs.first().map_or(1, |need| need.nodes);
        let runs_of = |orders: &[usize]| {
            orders
                .iter()
                .map(|order| eligible[*order].at)
                .collect::<Vec<_>>()
        };
        let mut by_order = |orders: &[usize]| proof(&runs_of(orders));
        let run = |order: &usize| &self.runs[eligible[*order].at];
        let (of_nodes, took_more) = match nodes {
            1 => (one_node(&sets, &mut by_order), false),
            _ => several_nodes(&sets, nodes, &mut by_order)
                .map_or((None, false), |(set, took_more)| (Some(set), took_more)),
        };
        // Where nodes alone do not decide, as for what must stay idle, runs elsewhere may serve as well.
        let seem_free = sets.iter().filter(|set| set.orders.is_empty()).count() >= nodes;
        let is_wide = |set: &[usize]| {
            set.len() > 1 && set.iter().any(|order| run(order).run.shares.len() > 1)
        };
        let of_nodes = of_nodes.map(|set| {
            if seem_free || is_wide(&set) {
                fewest(set, &mut by_order)
            } else {
                set
            }
        });
        let is_near = of_nodes
            .as_ref()
            .is_some_and(|set| set.len() <= 2 || !(seem_free || took_more));
        let anywhere = (!is_near).then(|| {
            near_fewest(
                &sets,
                nodes,
                eligible.len(),
                &|order| run(&order).gpus,
                &mut by_order,
            )
        });
        let mut found = match (of_nodes, anywhere) {
            (Some(of_nodes), Some(anywhere)) if anywhere.len() + 1 < of_nodes.len() => anywhere,
            (Some(of_nodes), _) => of_nodes,
            (None, anywhere) => anywhere.unwrap_or_default(),
        };
        if nodes == 1 {
            return runs_of(&found);
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
        runs_of(&found)
    }

    fn preempt(&self, job: &PendingJob, eligible: &Eligible) -> Preempt {
        let victim = &self.runs[eligible.at];
        let mode = match victim.mode {
            // It would not come back to the queue.
            PreemptMode::Requeue if !victim.run.may_requeue => PreemptMode::Cancel,
            mode => mode,
        };
        let (whose, from) = (&job.spec.account, &victim.run.spec.account);
        let borrowed = milli_text(eligible.excess);
        let why = match eligible.ground {
            Ground::Reclaim | Ground::Outside => {
                let lender = self
                    .ledger
                    .tree()
                    .number(whose)
                    .map_or(ROOT, |account| lender_of(self.ledger, account));
                let guarantees = self.ledger.guarantees();
                let most = guarantees
                    .and_then(|one| one.guaranteed(lender))
                    .unwrap_or(0);
                let used = guarantees.map_or(0, |one| one.used(lender, ALL));
                let stands = match eligible.ground {
                    Ground::Outside => {
                        format!("QOS {} runs outside of quotas", victim.run.spec.qos)
                    }
                    _ => format!("account {from} borrows {borrowed}"),
                };
                format!(
                    "account {} takes back GPUs of its guarantee for job {} (uses {} of {}); {stands}",
                    self.ledger.tree().name(lender),
                    job.id,
                    milli_text(used),
                    milli_text(most)
                )
            }
            Ground::Qos => format!(
                "QOS {} of job {} may preempt QOS {}",
                job.spec.qos, job.id, victim.run.spec.qos
            ),
            Ground::FairShare => format!(
                "account {whose} is below its fair part of the GPUs, for job {}; account {from} is above its own and borrows {borrowed}",
                job.id
            ),
        };
        // What stands still loses nothing.
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

/// Whether a run that gives way is frozen where it is: only its CPUs are others' then.
pub(crate) fn stands_still(snapshot: &Snapshot, run: &RunningRun) -> bool {
    mode_of(snapshot, run) == PreemptMode::Suspend
}

fn mode_of(snapshot: &Snapshot, run: &RunningRun) -> PreemptMode {
    let own = snapshot
        .policy
        .qos
        .get(&run.spec.qos)
        .and_then(|qos| qos.preempt_mode);
    let of_partition = || {
        snapshot
            .config
            .partition(&run.spec.partition)
            .map_or(PreemptMode::default(), |one| one.preempt_mode)
    };
    own.unwrap_or_else(of_partition)
}

/// How a run may be ended at a time, if it may: not where it is switched off, nor before it ran long enough.
fn preemptible(snapshot: &Snapshot, run: &RunningRun, at: Timestamp) -> Option<PreemptMode> {
    let mode = mode_of(snapshot, run);
    let ran_secs = at.since_secs(run.started.unwrap_or(snapshot.now));
    (mode != PreemptMode::Off && ran_secs >= least_secs(snapshot, run)).then_some(mode)
}

/// When the protected time of the next run ends that a pending job could preempt.
pub fn next_unprotected(snapshot: &Snapshot) -> Option<Timestamp> {
    let somebody_waits = snapshot
        .pending
        .iter()
        .any(|job| job.is_eligible(snapshot.now));
    let until = |run: &RunningRun| {
        run.started
            .unwrap_or(snapshot.now)
            .plus_secs(least_secs(snapshot, run))
    };
    let runs = snapshot
        .running
        .iter()
        .filter(|run| somebody_waits && until(run) > snapshot.now && run.leaves_by.is_none());
    runs.filter(|run| mode_of(snapshot, run) != PreemptMode::Off)
        .map(until)
        .min()
}

/// For how long a run is left alone.
fn least_secs(snapshot: &Snapshot, run: &RunningRun) -> i64 {
    let qos = snapshot.policy.qos.get(&run.spec.qos);
    let came_back_secs = if run.preempted.is_some() {
        snapshot.config.scheduler.preempt.min_run_secs
    } else {
        0
    };
    i64::from(qos.map_or(0, |qos| qos.min_run_secs).max(came_back_secs))
}

fn candidate<'a>(
    snapshot: &Snapshot,
    run: &'a RunningRun,
    account: u32,
    class: Option<RunClass>,
    mode: PreemptMode,
    gpus: u64,
) -> Candidate<'a> {
    let since = run
        .started
        .map(|started| run.marked.unwrap_or(started).max(started));
    let unsaved_secs = snapshot.now.since_secs(since.unwrap_or(snapshot.now)) as u64;
    let most_secs = u64::from(snapshot.config.scheduler.preempt.max_protected_loss_secs);
    let gpu_secs = |secs: u64| gpus.saturating_mul(secs) / 1000;
    Candidate {
        run,
        account,
        class,
        mode,
        gpus,
        lost: gpu_secs(unsaved_secs),
        protected: gpu_secs(unsaved_secs.min(most_secs)),
        taken: false,
        rank: 0,
    }
}

/// The account with the guarantee that a run exceeds: the nearest above, or its own where there is none.
pub(crate) fn lender_of(ledger: &Ledger, account: u32) -> u32 {
    let granting = ledger
        .guarantees()
        .and_then(|one| one.granting(ledger.tree(), account));
    granting.unwrap_or(account)
}

/// Between two borrowers: an account that stays within its fair part takes from one that stays above its own, so that
/// the same swap the other way round is not one.
struct FairSwap<'a> {
    ledger: &'a Ledger,
    claims: &'a GuaranteeClaims,
    fair_parts: &'a [u64],
    taker: Option<u32>,
    wants: u64,
    /// By the account of a run: the side that gives, if the other may take.
    giver: BTreeMap<u32, Option<u32>>,
    /// What each account that gives has left to give, by the account below the common one.
    left: BTreeMap<u32, u64>,
}

impl<'a> FairSwap<'a> {
    fn new(candidates: &'a VictimPool<'a>, job: &PendingJob, class: Option<RunClass>) -> Self {
        let ledger = candidates.ledger;
        let taker = ledger
            .tree()
            .number(&job.spec.account)
            .filter(|_| class == Some(RunClass::Borrowed));
        Self {
            ledger,
            claims: &candidates.claims,
            taker,
            wants: gpus_counted(&job.spec.request, ledger).1,
            fair_parts: &candidates.fair_parts,
            giver: BTreeMap::new(),
            left: BTreeMap::new(),
        }
    }

    /// Whether an account's runs may be taken.
    fn is_for(&mut self, account: u32) -> bool {
        if !self.giver.contains_key(&account) {
            let held = |taker: u32| self.ledger.held_by(taker) + self.claims.coming[taker as usize];
            let may_take = |taker: u32| {
                self.wants > 0 && held(taker) + self.wants <= self.fair_parts[taker as usize]
            };
            let giver = self
                .sides(account)
                .filter(|(taker, _)| may_take(*taker))
                .map(|(_, giver)| giver);
            self.giver.insert(account, giver);
        }
        self.giver[&account].is_some()
    }

    /// Whether its account can give the run and stays above its fair part; then it is given.
    fn gives(&mut self, run: &Candidate) -> bool {
        let Some(giver) = self.giver.get(&run.account).copied().flatten() else {
            return false;
        };
        let left = self.left.entry(giver).or_insert_with(|| {
            let stays = self
                .ledger
                .held_by(giver)
                .saturating_sub(self.claims.going[giver as usize]);
            stays.saturating_sub(self.fair_parts[giver as usize])
        });
        let gives = *left >= run.gpus;
        if gives {
            *left -= run.gpus;
        }
        gives
    }

    /// The two accounts just below the one that both belong to.
    fn sides(&self, giver: u32) -> Option<(u32, u32)> {
        let tree = self.ledger.tree();
        let taker = self.taker?;
        let below = |account: u32, other: u32| {
            tree.line(account)
                .take_while(|one| !tree.is_within(other, *one))
                .last()
        };
        Some((below(taker, giver)?, below(giver, taker)?))
    }
}

/// What each account's part of the GPUs that may be used is by shares, in thousandths.
fn fair_parts(snapshot: &Snapshot, ledger: &Ledger) -> Vec<u64> {
    let gpus = snapshot
        .nodes
        .iter()
        .flat_map(|node| node.gpus.iter())
        .filter(|gpu| gpu.usable());
    let cluster = gpus.map(|gpu| u64::from(gpu.info.part().milli())).sum();
    let tree = ledger.tree();
    let accounts = 0..tree.len() as u32;
    let shares: Vec<u64> = accounts
        .clone()
        .map(|account| ledger.shares_of(account))
        .collect();
    let mut of_children = vec![0; tree.len()];
    accounts
        .clone()
        .filter(|account| *account != ROOT)
        .for_each(|account| of_children[tree.parent(account) as usize] += shares[account as usize]);
    let part = |whole: u64, one: u32| match of_children[tree.parent(one) as usize] {
        0 => 0,
        all => (u128::from(whole) * u128::from(shares[one as usize]) / u128::from(all)) as u64,
    };
    let fair_part = |account: u32| {
        let line: Vec<u32> = tree.line(account).collect();
        line.into_iter().rev().fold(cluster, part)
    };
    accounts.map(fair_part).collect()
}

#[cfg(test)]
mod tests;
