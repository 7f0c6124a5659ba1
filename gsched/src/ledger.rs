//! What accounts, users and QOS hold, and the class of each run, against the limits that a pass reads.
//!
//! Built once a pass from the runs; a check costs the depth of the tree and allocates only to say no. Never looks at
//! nodes one by one: whether there is room is for the timeline. Words of sacctmgr(1).

use crate::headroom::IdleGpus;
use crate::plan::Preempt;
use crate::preempt::leaving::promised_guarantee;
use crate::queue_order::{guaranteed_as, may_start};
use crate::snapshot::{PendingJob, RunningRun, Snapshot};
use gmodel::policy::Budget;
use gmodel::run::NodeShare;
use gmodel::{JobId, JobSpec, RunClass, RunId};
use gpolicy::account_tree::AccountTree;
use gpolicy::budget::BudgetUse;
use gpolicy::limits::{GpuTypes, Holding};
use gpolicy::quota::{Guarantees, StandingRun};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub mod holder;
mod limits;
mod meters;
mod nominated_usage;
mod owner;
pub mod refusal;
mod shortage;

use limits::PolicyLimits;
use meters::Meters;
use nominated_usage::NominatedUsage;
use owner::OwnerNames;
pub use owner::UsageOwner;
pub use shortage::Shortage;

/// What a job would take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Take {
    /// Thousandths of GPUs by type; `"gpu"` or an unknown name is a type that is not known yet.
    pub gpus: BTreeMap<String, u64>,
    pub cpus: u32,
    pub nodes: u32,
}

/// What a pass counts of usage. A clone shares the limits and the names.
#[derive(Clone, Debug)]
pub struct Ledger {
    limits: Arc<PolicyLimits>,
    owners: Arc<OwnerNames>,
    meters: Meters,
    /// `None` where there are no quotas.
    guarantees: Option<Guarantees>,
    pub(crate) idle: IdleGpus,
    /// In the order of the snapshot's runs, which is that of their ids.
    runs: Vec<CountedRun>,
    /// What was counted for started jobs without a run in the snapshot yet.
    expected: BTreeMap<JobId, Holding>,
    nominated: Vec<NominatedUsage>,
    /// What nominated jobs have of guarantees, each with its account.
    claimed: BTreeMap<(JobId, bool), (u32, Holding)>,
}

#[derive(Clone, Debug)]
struct CountedRun {
    run: RunId,
    spec: Arc<JobSpec>,
    held: Holding,
    /// It is over, and its licences are free.
    charged: bool,
    before: Option<RunClass>,
    class: Option<RunClass>,
}

impl Ledger {
    /// Counts what runs.
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut owners = OwnerNames::new(&snapshot.config, &snapshot.policy);
        let limits = PolicyLimits::new(snapshot, &mut owners);
        let mut ledger = Self {
            meters: Meters::new(snapshot, &limits, &owners),
            guarantees: None,
            idle: IdleGpus::new(snapshot, &limits.types),
            runs: Vec::with_capacity(snapshot.running.len()),
            expected: BTreeMap::new(),
            nominated: Vec::new(),
            claimed: BTreeMap::new(),
            limits: Arc::new(limits),
            owners: Arc::new(owners),
        };
        ledger.enter_runs(snapshot);
        ledger
    }

    /// Counts a start; what it holds from then on. `class` is what [`Ledger::check_but`] said, `on` what it takes of which nodes.
    pub fn take(
        &mut self,
        job: &PendingJob,
        take: &Take,
        class: Option<RunClass>,
        on: Option<(&[NodeShare], &Snapshot)>,
    ) -> Holding {
        let held = self.limits.holding_of(job, take);
        let owner = self.owner_or_new(&job.spec);
        self.count(&job.spec, owner, &held, true);
        match on {
            Some((shares, snapshot)) if self.idle.is_kept_on_nodes() => {
                self.idle.take_on(shares, snapshot)
            }
            _ => self.idle.take(&held, owner.partition),
        }
        if let (Some(guarantees), Some(RunClass::Guaranteed), Some(account)) =
            (&mut self.guarantees, class, owner.account)
        {
            guarantees.add(&self.owners.tree, account, &held);
        }
        held
    }

    /// Claims a preempting job's guarantee for it, and passes on the guarantees of its victims. `false`, without a change: a
    /// job that started meanwhile uses a guarantee that was to be passed on.
    pub(crate) fn claim(&mut self, job: &PendingJob, victims: &[Preempt]) -> bool {
        let Some(mut guarantees) = self.guarantees.clone() else {
            return true;
        };
        let tree = self.tree();
        let counted = |run: &RunId| {
            let counted = self.counted(*run)?;
            Some((tree.number(&counted.spec.account)?, &counted.held))
        };
        let passed_on = victims.iter().filter(|one| !one.heirs.is_empty());
        for (account, held) in passed_on.clone().filter_map(|one| counted(&one.run)) {
            guarantees.remove(tree, account, held);
        }
        let heirs: BTreeSet<&RunId> = passed_on.flat_map(|one| &one.heirs).collect();
        for (account, held) in heirs.into_iter().filter_map(counted) {
            if !guarantees.fits(tree, account, held) {
                return false;
            }
            guarantees.add(tree, account, held);
        }
        let account = tree.number(&job.spec.account);
        if let Some(account) = account.filter(|_| !self.is_outside_quota(&job.spec))
            && let Some(held) = guaranteed_as(job, account, &guarantees, self, self.limits.now)
        {
            guarantees.add(tree, account, &held);
            let entry = (job.id, job.particulars.positions.is_some());
            self.claimed.insert(entry, (account, held));
        }
        self.guarantees = Some(guarantees);
        true
    }

    /// Remembers what was counted for a started job until its run is in the snapshot.
    pub fn expect(&mut self, job: JobId, held: Holding) {
        self.expected.insert(job, held);
    }

    /// Enters the run of a started job that was counted.
    pub fn meet(&mut self, run: &RunningRun) {
        let Some(held) = self.expected.remove(&run.run.job) else {
            return;
        };
        let at = self.runs.partition_point(|counted| counted.run < run.run);
        let mut counted = CountedRun::new(run, held);
        counted.class = run.class;
        self.runs.insert(at, counted);
    }

    /// Takes off a counted run that ended. `false`: another run may inherit its guarantee, which only a new ledger works out.
    #[must_use]
    pub fn end(&mut self, run: RunId, shares: &[NodeShare], snapshot: &Snapshot) -> bool {
        let Some(at) = self.place_of(run) else {
            return true;
        };
        let ended = self.runs.remove(at);
        let owner = self.owner_or_new(&ended.spec);
        self.count_usage(owner, &ended.held, false);
        if !ended.charged {
            self.meters.count_licences(&ended.spec, false);
        }
        match self.idle.is_kept_on_nodes() {
            true => self.idle.give_on(shares, snapshot),
            false => self.idle.give(&ended.held, owner.partition),
        }
        let (Some(guarantees), Some(RunClass::Guaranteed), Some(account)) =
            (&mut self.guarantees, ended.class, owner.account)
        else {
            return true;
        };
        let tree = &self.owners.tree;
        guarantees.remove(tree, account, &ended.held);
        let inherits = |other: &CountedRun| {
            let account = tree.number(&other.spec.account).unwrap_or_default();
            other.class == Some(RunClass::Borrowed) && guarantees.fits(tree, account, &other.held)
        };
        !self.runs.iter().any(inherits)
    }

    /// Takes back what a run holds, as if it had ended.
    pub fn give(&mut self, run: &RunningRun) {
        self.give_as(run, self.class_of(run.run));
    }

    /// The same for a run that was started in this pass, with the class it was given.
    pub fn give_as(&mut self, run: &RunningRun, class: Option<RunClass>) {
        let held = self.holding_of_run(run);
        let owner = self.owner_or_new(&run.spec);
        self.count(&run.spec, owner, &held, false);
        self.idle.give(&held, owner.partition);
        if let (Some(guarantees), Some(RunClass::Guaranteed), Some(account)) =
            (&mut self.guarantees, class, owner.account)
        {
            guarantees.remove(&self.owners.tree, account, &held);
        }
    }

    /// Runs with another class than before.
    pub fn classes(&self) -> Vec<(RunId, RunClass)> {
        let changed = self.runs.iter().filter(|run| run.class != run.before);
        changed
            .filter_map(|run| Some((run.run, run.class?)))
            .collect()
    }

    /// The class of a run as it is now; `None` where there are no quotas, and outside of them.
    pub fn class_of(&self, run: RunId) -> Option<RunClass> {
        self.counted(run)?.class
    }

    /// Class and thousandths of GPUs of a run that was there when the ledger was made.
    pub fn standing_of(&self, run: RunId) -> Option<(Option<RunClass>, u64)> {
        let counted = self.counted(run)?;
        Some((counted.class, counted.held.gpus))
    }

    /// Whether any account is guaranteed anything.
    pub fn has_quotas(&self) -> bool {
        self.guarantees.is_some()
    }

    pub fn tree(&self) -> &AccountTree {
        &self.owners.tree
    }

    pub fn guarantees(&self) -> Option<&Guarantees> {
        self.guarantees.as_ref()
    }

    pub fn types(&self) -> &GpuTypes {
        &self.limits.types
    }

    /// Whether a job's QOS has it run outside of quotas.
    pub fn is_outside_quota(&self, spec: &JobSpec) -> bool {
        self.limits.is_outside_quota(spec)
    }

    /// Thousandths of a GPU that a slice of a MIG profile counts.
    pub(crate) fn slice_milli(&self, profile: &str) -> u32 {
        self.limits.gpu_types.slice_milli(profile)
    }

    /// The types that a job of a partition may be given where it names none; nothing where no guarantee is of a type.
    pub(crate) fn types_in(&self, partition: &str) -> &[usize] {
        let partition = self.owners.partition(partition);
        partition.map_or(&[], |at| self.limits.gpu_types.of_partition(at))
    }

    /// Thousandths of GPUs that an account and those below it hold, of all types.
    pub fn held_by(&self, account: u32) -> u64 {
        self.meters.gpus_of_account(account)
    }

    /// The budgets of an account with what is used of each in its present period.
    pub fn budgets(&self, account: &str) -> &[(Budget, BudgetUse)] {
        let account = self.tree().number(account);
        account.map_or(&[], |account| self.meters.budgets(account))
    }

    /// The shares of an account. An account that the policy does not name has one.
    pub fn shares_of(&self, account: u32) -> u64 {
        let account = self.limits.policy.accounts.get(self.tree().name(account));
        account.map_or(1, |account| u64::from(account.shares))
    }

    /// What a run holds.
    pub fn holding_of_run(&self, run: &RunningRun) -> Holding {
        match self.counted(run.run) {
            Some(counted) => counted.held.clone(),
            None => self.limits.gpu_types.holding(run),
        }
    }

    /// Keeps what a job that others' headroom or lending limits refuse waits for from all behind it in this pass: jobs that ask
    /// for less would take it piece by piece.
    pub(crate) fn set_aside(&mut self, job: &PendingJob, take: &Take) {
        let held = self.limits.holding_of(job, take);
        let partition = self.owners.partition(&job.spec.partition);
        self.idle.set_aside(&held, partition);
    }

    /// Whether a job may use what is kept for urgent work.
    pub(crate) fn is_urgent(&self, spec: &JobSpec) -> bool {
        let qos = self.limits.qos_of(spec);
        qos.is_some_and(|qos| qos.headroom.is_some())
    }

    fn place_of(&self, run: RunId) -> Option<usize> {
        let place = self.runs.binary_search_by_key(&run, |counted| counted.run);
        place.ok()
    }

    fn counted(&self, run: RunId) -> Option<&CountedRun> {
        self.place_of(run).map(|at| &self.runs[at])
    }

    fn owner_or_new(&mut self, spec: &JobSpec) -> UsageOwner {
        let owner = self.owners.owner(spec);
        if owner.account.is_some() && owner.user.is_some() {
            return owner;
        }
        let owners = Arc::make_mut(&mut self.owners);
        let owner = owners.owner_or_new(spec);
        let accounts = owners.tree.len();
        self.meters.grow(accounts);
        if let Some(guarantees) = &mut self.guarantees {
            guarantees.grow(accounts);
        }
        owner
    }

    /// Adds what a job holds to all that it counts for, or takes it off.
    fn count(&mut self, spec: &JobSpec, owner: UsageOwner, held: &Holding, add: bool) {
        self.count_usage(owner, held, add);
        self.meters.count_licences(spec, add);
    }

    fn count_usage(&mut self, owner: UsageOwner, held: &Holding, add: bool) {
        let tree = &self.owners.tree;
        self.meters.count(&self.limits, tree, owner, held, add);
    }

    fn enter_runs(&mut self, snapshot: &Snapshot) {
        let mut run_owners: Vec<UsageOwner> = Vec::with_capacity(snapshot.running.len());
        for (at, run) in snapshot.running.iter().enumerate() {
            let held = self.limits.gpu_types.holding(run);
            let like_last = at > 0 && Arc::ptr_eq(&snapshot.running[at - 1].spec, &run.spec);
            let owner = match like_last {
                true => run_owners[at - 1],
                false => self.owner_or_new(&run.spec),
            };
            self.count_usage(owner, &held, true);
            // The licences of a charged run are free, though a node is not.
            if !run.charged {
                self.meters.count_licences(&run.spec, true);
                let line = owner
                    .account
                    .into_iter()
                    .flat_map(|at| self.owners.tree.line(at));
                self.meters.add_past(run, line, &held, snapshot.now);
            }
            run_owners.push(owner);
            self.runs.push(CountedRun::new(run, held));
        }
        let budget_of = |account: u32, wanted: &Budget| {
            let mut budgets = self.meters.budgets(account).iter();
            let found = budgets.find(|(budget, _)| budget == wanted);
            found
                .map(|(_, used)| used.without_promises())
                .expect("every budget has its use")
        };
        let (policy, types) = (&snapshot.policy, &self.limits.types);
        self.guarantees = Guarantees::new(policy, self.tree(), types, snapshot.now, &budget_of);
        self.class_runs(snapshot, &run_owners);
    }

    fn class_runs(&mut self, snapshot: &Snapshot, run_owners: &[UsageOwner]) {
        let Some(mut guarantees) = self.guarantees.take() else {
            return;
        };
        let inside: Vec<usize> = (0..self.runs.len())
            .filter(|at| !self.is_outside_quota(&snapshot.running[*at].spec))
            .collect();
        let standing: Vec<StandingRun> = inside
            .iter()
            .map(|&at| StandingRun {
                account: run_owners[at].account.unwrap_or_default(),
                held: &self.runs[at].held,
                class: self.runs[at].before,
                leaving: snapshot.running[at].stops_by.is_some() || snapshot.running[at].charged,
            })
            .collect();
        let classes = guarantees.walk(self.tree(), &standing, |left| self.promised(snapshot, left));
        for (at, class) in inside.into_iter().zip(classes) {
            self.runs[at].class = Some(class);
        }
        self.guarantees = Some(guarantees);
    }

    /// The guarantees that jobs with victims will use: until such a job starts, no run becomes guaranteed by them. A job that is to
    /// borrow has none while its victims end.
    fn promised(&self, snapshot: &Snapshot, left: &Guarantees) -> Vec<(u32, Holding)> {
        let preemptors: BTreeSet<JobId> = snapshot
            .running
            .iter()
            .filter_map(|run| run.victim_of)
            .collect();
        let waiting = promised_guarantee(snapshot);
        let mut left = left.clone();
        let is_owed = |job: &&PendingJob| {
            let has_room = || job.particulars.nomination.is_some() && !job.is_among(&preemptors);
            job.spec.choice() == 0
                && (has_room() || job.is_among(&waiting))
                && may_start(job, snapshot.now)
                && !self.is_outside_quota(&job.spec)
        };
        let promise = |job: &PendingJob| {
            let account = self.tree().number(&job.spec.account)?;
            let held = guaranteed_as(job, account, &left, self, snapshot.now)?;
            left.add(self.tree(), account, &held);
            Some((account, held))
        };
        snapshot
            .pending
            .iter()
            .filter(is_owed)
            .filter_map(promise)
            .collect()
    }
}

impl CountedRun {
    fn new(run: &RunningRun, held: Holding) -> Self {
        Self {
            run: run.run,
            spec: run.spec.clone(),
            held,
            charged: run.charged,
            before: run.class,
            class: None,
        }
    }
}

#[cfg(test)]
mod tests;
