//! What accounts, users and QOS hold, and what a job may still take: hard limits, licences, caps, lending, headroom, and its class.
//!
//! Built once a pass from the runs; a check costs the depth of the tree and allocates only to say no. Never looks at
//! nodes one by one: whether there is room is for the timeline. Words of sacctmgr(1).

use self::shortage::period_text;
use crate::cluster::gpu_types::{GpuTypesOfNodes, gpu_types};
use crate::headroom::{self, IdleGpus};
use crate::plan::Preempt;
use crate::preempt::leaving::promised_guarantee;
use crate::queue_order::{guaranteed_as, may_start};
use crate::snapshot::{PendingJob, RunningRun, Snapshot};
use gmodel::config::ClusterConfig;
use gmodel::policy::{Budget, BudgetKind, Period};
use gmodel::run::NodeShare;
use gmodel::{JobId, JobSpec, Policy, Reason, ReasonCode, RunClass, RunId, Timestamp};
use gpolicy::account_tree::AccountTree;
use gpolicy::budget::BudgetUse;
use gpolicy::limits::{
    ALL, Bound, GPU_HOUR, GpuTypes, Holding, Meter, Scope, hours_text, job_exceeds,
};
use gpolicy::names::Names;
use gpolicy::quota::{Guarantees, StandingRun};
use gpolicy::usage::UsageBook;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub mod holder;
mod kept_idle;
mod nominated_usage;
mod page;
mod shortage;

use holder::{LimitKind, LimitRefusal};
use nominated_usage::NominatedUsage;
use page::{AccountPage, Page, stricter};
pub use shortage::Shortage;

/// Periods of a cap that are looked into, the present one first.
const MOST_PERIODS: usize = 24;

/// What a job would take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Take {
    /// Thousandths of GPUs by type; `"gpu"` or an unknown name is a type that is not known yet.
    pub gpus: BTreeMap<String, u64>,
    pub cpus: u32,
    pub nodes: u32,
}

/// What accounts, users and QOS hold, against their limits.
#[derive(Clone, Debug)]
pub struct Ledger {
    now: Timestamp,
    config: Arc<ClusterConfig>,
    policy: Arc<Policy>,
    types: GpuTypes,
    tree: AccountTree,
    users: Names,
    qos_names: Names,
    partition_names: Names,
    accounts: Vec<AccountPage>,
    /// Of users with limits of their own in an account.
    user_bounds: BTreeMap<(u32, u32), Bound>,
    qos: Vec<Page>,
    partitions: Vec<Page>,
    /// What users, and accounts in QOS and partitions, hold: only where a limit bounds it.
    pairs: BTreeMap<(Pair, u32, u32), Meter>,
    /// `None` where there are no quotas.
    guarantees: Option<Guarantees>,
    licences: BTreeMap<String, Licence>,
    idle: IdleGpus,
    /// Headroom or a lending limit keeps some of it.
    keeps_idle: bool,
    gpu_types: GpuTypesOfNodes,
    /// In the order of the snapshot's runs, which is that of their ids.
    runs: Vec<Entry>,
    /// What was counted for started jobs without a run in the snapshot yet.
    expected: BTreeMap<JobId, Holding>,
    /// To jobs for which others go; and what of guarantees is theirs, each with its account.
    nominated: Vec<NominatedUsage>,
    claimed: BTreeMap<(JobId, bool), (u32, Holding)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pair {
    UserInAccount,
    UserInQos,
    AccountInQos,
    UserInPartition,
    AccountInPartition,
}

#[derive(Clone, Debug, Default)]
struct Licence {
    all: u32,
    used: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    run: RunId,
    spec: Arc<JobSpec>,
    held: Holding,
    /// It is over, and its licences are free.
    charged: bool,
    before: Option<RunClass>,
    class: Option<RunClass>,
}

/// The accounts, user, QOS and partition that a job counts for. An unknown one holds nothing.
#[derive(Clone, Copy, Debug)]
pub struct UsageOwner {
    pub account: Option<u32>,
    user: Option<u32>,
    qos: Option<usize>,
    partition: Option<usize>,
}

impl Ledger {
    /// Counts what runs.
    pub fn new(snapshot: &Snapshot) -> Self {
        let (config, policy) = (snapshot.config.clone(), snapshot.policy.clone());
        let types = gpu_types(snapshot);
        let mut ledger = Self {
            now: snapshot.now,
            tree: AccountTree::new(&policy),
            users: Names::default(),
            qos_names: policy.qos.keys().map(String::as_str).collect(),
            partition_names: config
                .partitions
                .iter()
                .map(|one| one.name.as_str())
                .collect(),
            accounts: Vec::new(),
            user_bounds: BTreeMap::new(),
            qos: policy
                .qos
                .values()
                .map(|qos| Page::new([&qos.group, &qos.per_user, &qos.per_account], &types))
                .collect(),
            partitions: config
                .partitions
                .iter()
                .map(|one| Page::new([&one.group, &one.per_user, &one.per_account], &types))
                .collect(),
            pairs: BTreeMap::new(),
            guarantees: None,
            licences: config
                .scheduler
                .licences
                .iter()
                .map(|(name, all)| (name.clone(), Licence { all: *all, used: 0 }))
                .collect(),
            idle: IdleGpus::new(snapshot, &types),
            keeps_idle: headroom::keeps_idle(&config, &policy),
            gpu_types: GpuTypesOfNodes::new(snapshot, &types),
            runs: Vec::with_capacity(snapshot.running.len()),
            expected: BTreeMap::new(),
            nominated: Vec::new(),
            claimed: BTreeMap::new(),
            types,
            config,
            policy,
        };
        ledger.open_accounts(snapshot);
        ledger.enter_runs(snapshot);
        ledger
    }

    /// Whether a job may take so much now, and in which class it would run (`None` where there are no quotas). Limits of
    /// some kinds are left out.
    ///
    /// # Errors
    /// The first of the other limits that stands against it, with its value and the use.
    pub(crate) fn check_but(
        &self,
        job: &PendingJob,
        take: &Take,
        is_left_out: impl Fn(LimitKind) -> bool,
    ) -> Result<Option<RunClass>, LimitRefusal> {
        let mut first = None;
        let class = self.examine(job, take, &mut |reason, kind| {
            first = (!is_left_out(kind)).then_some(LimitRefusal { kind, reason });
            first.is_none()
        });
        first.map_or(Ok(class), Err)
    }

    /// The class in which a job would run that takes so much, whatever stands against it.
    pub(crate) fn class_with(&self, job: &PendingJob, take: &Take) -> Option<RunClass> {
        self.class_for(&job.spec, self.who(&job.spec), &self.holding_of(job, take))
    }

    /// Counts a start; what it holds from then on. `class` is what [`Ledger::check_but`] said, `on` what it takes of which nodes.
    pub fn take(
        &mut self,
        job: &PendingJob,
        take: &Take,
        class: Option<RunClass>,
        on: Option<(&[NodeShare], &Snapshot)>,
    ) -> Holding {
        let held = self.holding_of(job, take);
        let who = self.who_or_new(&job.spec);
        self.count(&job.spec, who, &held, true);
        match on {
            Some((shares, snapshot)) if self.partitions_keep_idle() => {
                self.idle.take_on(shares, snapshot, &self.types)
            }
            _ => self.idle.take(&held, who.partition),
        }
        if let (Some(guarantees), Some(RunClass::Guaranteed), Some(account)) =
            (&mut self.guarantees, class, who.account)
        {
            guarantees.add(&self.tree, account, &held);
        }
        held
    }

    /// Claims a preempting job's guarantee for it, and passes on the guarantees of its victims. `false`, without a change: a
    /// job that started meanwhile uses a guarantee that was to be passed on.
    pub(crate) fn claim(&mut self, job: &PendingJob, victims: &[Preempt]) -> bool {
        let Some(mut guarantees) = self.guarantees.clone() else {
            return true;
        };
        let entry = |run: &RunId| {
            let entry = &self.runs[self
                .runs
                .binary_search_by_key(run, |entry| entry.run)
                .ok()?];
            Some((self.tree.number(&entry.spec.account)?, &entry.held))
        };
        let passed_on = victims.iter().filter(|one| !one.heirs.is_empty());
        for (account, held) in passed_on.clone().filter_map(|one| entry(&one.run)) {
            guarantees.remove(&self.tree, account, held);
        }
        let heirs: BTreeSet<&RunId> = passed_on.flat_map(|one| &one.heirs).collect();
        for (account, held) in heirs.into_iter().filter_map(entry) {
            if !guarantees.fits(&self.tree, account, held) {
                return false;
            }
            guarantees.add(&self.tree, account, held);
        }
        let account = self
            .tree
            .number(&job.spec.account)
            .filter(|_| !self.is_outside_quota(&job.spec));
        if let Some(account) = account
            && let Some(held) = guaranteed_as(job, account, &guarantees, self, self.now)
        {
            guarantees.add(&self.tree, account, &held);
            self.claimed.insert(
                (job.id, job.particulars.positions.is_some()),
                (account, held),
            );
        }
        self.guarantees = Some(guarantees);
        true
    }

    /// The run of a job that was counted is still to come.
    pub fn expect(&mut self, job: JobId, held: Holding) {
        self.expected.insert(job, held);
    }

    /// It came.
    pub fn meet(&mut self, run: &RunningRun) {
        let Some(held) = self.expected.remove(&run.run.job) else {
            return;
        };
        let at = self.runs.partition_point(|entry| entry.run < run.run);
        self.runs.insert(
            at,
            Entry {
                class: run.class,
                ..Entry::new(run, held)
            },
        );
    }

    /// A run that was counted holds its shares no more. `false`: another may stand on the guarantee now that it stood on, which a new
    /// ledger says; so with budgets.
    #[must_use]
    pub fn end(&mut self, run: RunId, shares: &[NodeShare], snapshot: &Snapshot) -> bool {
        let Ok(at) = self.runs.binary_search_by_key(&run, |entry| entry.run) else {
            return true;
        };
        let entry = self.runs.remove(at);
        let who = self.who_or_new(&entry.spec);
        if entry.charged {
            // They were free before.
            for (name, count) in &entry.spec.licences {
                self.licences
                    .get_mut(name)
                    .into_iter()
                    .for_each(|licence| licence.used += u64::from(*count));
            }
        }
        self.count(&entry.spec, who, &entry.held, false);
        match self.partitions_keep_idle() {
            true => self.idle.give_on(shares, snapshot, &self.types),
            false => self.idle.give(&entry.held, who.partition),
        }
        let (Some(guarantees), Some(RunClass::Guaranteed), Some(account)) =
            (&mut self.guarantees, entry.class, who.account)
        else {
            return true;
        };
        guarantees.remove(&self.tree, account, &entry.held);
        let inherits = |other: &Entry| {
            let account = self.tree.number(&other.spec.account).unwrap_or_default();
            other.class == Some(RunClass::Borrowed)
                && self
                    .guarantees
                    .as_ref()
                    .is_some_and(|one| one.fits(&self.tree, account, &other.held))
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
        let who = self.who_or_new(&run.spec);
        self.count(&run.spec, who, &held, false);
        self.idle.give(&held, who.partition);
        if let (Some(guarantees), Some(RunClass::Guaranteed), Some(account)) =
            (&mut self.guarantees, class, who.account)
        {
            guarantees.remove(&self.tree, account, &held);
        }
    }

    /// Runs with another class than before.
    pub fn classes(&self) -> Vec<(RunId, RunClass)> {
        let changed = self.runs.iter().filter(|entry| entry.class != entry.before);
        changed
            .filter_map(|entry| Some((entry.run, entry.class?)))
            .collect()
    }

    /// The class of a run as it is now; `None` where there are no quotas, and outside of them.
    pub fn class_of(&self, run: RunId) -> Option<RunClass> {
        let at = self
            .runs
            .binary_search_by_key(&run, |entry| entry.run)
            .ok()?;
        self.runs[at].class
    }

    /// Class and thousandths of GPUs of a run that was there when the ledger was made.
    pub fn standing_of(&self, run: RunId) -> Option<(Option<RunClass>, u64)> {
        let at = self
            .runs
            .binary_search_by_key(&run, |entry| entry.run)
            .ok()?;
        Some((self.runs[at].class, self.runs[at].held.gpus))
    }

    /// Whether any account is guaranteed anything.
    pub fn has_quotas(&self) -> bool {
        self.guarantees.is_some()
    }

    pub fn tree(&self) -> &AccountTree {
        &self.tree
    }

    pub fn guarantees(&self) -> Option<&Guarantees> {
        self.guarantees.as_ref()
    }

    pub fn types(&self) -> &GpuTypes {
        &self.types
    }

    /// Thousandths of a GPU that a slice of a MIG profile counts.
    pub(crate) fn slice_milli(&self, profile: &str) -> u32 {
        self.gpu_types.slice_milli(profile)
    }

    /// The types that a job of a partition may be given where it names none; nothing where no guarantee is of a type.
    pub(crate) fn types_in(&self, partition: &str) -> &[usize] {
        self.partition_names
            .number(partition)
            .map_or(&[], |at| self.gpu_types.of_partition(at as usize))
    }

    /// Thousandths of GPUs that an account and those below it hold, of all types.
    pub fn held_by(&self, account: u32) -> u64 {
        self.accounts
            .get(account as usize)
            .map_or(0, |page| page.held.gpus_of(ALL))
    }

    /// The budgets of an account with what is used of each in its present period.
    pub fn budgets(&self, account: &str) -> &[(Budget, BudgetUse)] {
        let page = self
            .tree
            .number(account)
            .and_then(|number| self.accounts.get(number as usize));
        page.map_or(&[], |page| &page.budgets)
    }

    /// One that only usage or jobs know has one.
    pub fn shares_of(&self, account: u32) -> u64 {
        self.policy
            .accounts
            .get(self.tree.name(account))
            .map_or(1, |account| u64::from(account.shares))
    }

    /// What a run holds.
    pub fn holding_of_run(&self, run: &RunningRun) -> Holding {
        if let Ok(at) = self.runs.binary_search_by_key(&run.run, |entry| entry.run) {
            return self.runs[at].held.clone();
        }
        self.gpu_types.holding(run)
    }

    fn holding_of(&self, job: &PendingJob, take: &Take) -> Holding {
        let until = job
            .limit_secs
            .map(|secs| self.now.plus_secs(i64::from(secs)));
        let mut held = Holding::new(u64::from(take.cpus), u64::from(take.nodes), self.now, until);
        for (name, milli) in &take.gpus {
            held.add_gpus(self.types.number(name), *milli);
        }
        held
    }
}

/// A limit: its scope, its account, QOS or partition, and the user or account there.
type LimitId = (Scope, u32, Option<u32>);

/// Says whether to go on looking.
type LimitVisitor<'a> = &'a mut dyn FnMut(Reason, LimitKind) -> bool;

impl Ledger {
    fn examine(&self, job: &PendingJob, take: &Take, found: LimitVisitor) -> Option<RunClass> {
        let held = self.holding_of(job, take);
        let who = self.who(&job.spec);
        let class = self.class_for(&job.spec, who, &held);
        let _ = self.limits_hold(job, who, &held, found)
            && self.caps_hold(who, &held, found)
            && self.licences_hold(&job.spec, found)
            && self.class_is_allowed(&job.spec, who, class, &held, found)
            && self.idle_is_not_kept(job, who, class, &held, found);
        class
    }

    fn limits_hold(
        &self,
        job: &PendingJob,
        who: UsageOwner,
        held: &Holding,
        found: LimitVisitor,
    ) -> bool {
        let spec = &*job.spec;
        if who.qos.is_some()
            && let Some(qos) = self.policy.qos.get(&spec.qos)
            && let Some(reason) =
                job_exceeds(&qos.per_job, &spec.qos, held, job.limit_secs, &self.types)
            && !found(reason, LimitKind::Fixed)
        {
            return false;
        }
        self.each_limit(who, &mut |bound, limit, meter| {
            let (scope, at, _) = limit;
            let of_account = matches!(scope, Scope::Account | Scope::UserInAccount);
            let account = if of_account {
                self.tree.name(at)
            } else {
                &*spec.account
            };
            let subject = || scope.subject(account, &spec.user.name, &spec.qos, &spec.partition);
            let reason = bound.exceeded(scope, &subject, meter, held, self.now, &self.types);
            let never = || bound.over(&Meter::default(), held, self.now).is_some();
            reason.is_none_or(|reason| {
                let kind = if never() {
                    LimitKind::Fixed
                } else {
                    LimitKind::Bound(limit)
                };
                found(reason, kind)
            })
        })
    }

    /// Each limit that counts a job, with what its holders hold; `look` says whether to go on.
    fn each_limit(
        &self,
        who: UsageOwner,
        look: &mut dyn FnMut(&Bound, LimitId, Option<&Meter>) -> bool,
    ) -> bool {
        for number in who
            .account
            .iter()
            .flat_map(|account| self.tree.line(*account))
        {
            let page = &self.accounts[number as usize];
            if !page
                .group
                .as_ref()
                .is_none_or(|bound| look(bound, (Scope::Account, number, None), Some(&page.held)))
            {
                return false;
            }
            let meter = || {
                who.user
                    .and_then(|user| self.pairs.get(&(Pair::UserInAccount, number, user)))
            };
            let of_user = self.user_bound(page, number, who.user);
            if !of_user
                .is_none_or(|bound| look(bound, (Scope::UserInAccount, number, who.user), meter()))
            {
                return false;
            }
        }
        let pages = [
            (who.qos.map(|at| (at, &self.qos[at])), QOS_SCOPES),
            (
                who.partition.map(|at| (at, &self.partitions[at])),
                PARTITION_SCOPES,
            ),
        ];
        for (page, scopes) in pages {
            let Some((at, page)) = page else { continue };
            let at = at as u32;
            let pair = |pair: Pair, other: Option<u32>| self.pairs.get(&(pair, at, other?));
            let Scopes {
                group,
                user,
                account,
            } = scopes;
            if !page
                .group
                .as_ref()
                .is_none_or(|bound| look(bound, (*group, at, None), Some(&page.held)))
                || !page
                    .per_user
                    .as_ref()
                    .is_none_or(|bound| look(bound, (user.0, at, who.user), pair(user.1, who.user)))
                || !page.per_account.as_ref().is_none_or(|bound| {
                    look(
                        bound,
                        (account.0, at, who.account),
                        pair(account.1, who.account),
                    )
                })
            {
                return false;
            }
        }
        true
    }

    /// The user's own limits in an account, else those of each user of it.
    fn user_bound<'a>(
        &'a self,
        page: &'a AccountPage,
        account: u32,
        user: Option<u32>,
    ) -> Option<&'a Bound> {
        let own = user
            .filter(|_| page.has_user_bounds)
            .and_then(|user| self.user_bounds.get(&(account, user)));
        own.or(page.per_user.as_ref())
    }

    fn caps_hold(&self, who: UsageOwner, held: &Holding, found: LimitVisitor) -> bool {
        for number in who
            .account
            .iter()
            .flat_map(|account| self.tree.line(*account))
        {
            let budgets = self.accounts[number as usize].budgets.iter();
            for (budget, cap) in budgets.filter(|(budget, _)| budget.kind == BudgetKind::Cap) {
                let Some(beyond) = cap.beyond(held, self.now) else {
                    continue;
                };
                let (promised, ahead) = (hours_text(beyond.promised), hours_text(beyond.ahead));
                let spent = match beyond.from {
                    None => format!(
                        "{} are used, running jobs may use {promised} more by their time limits, and this job {ahead}; the next period begins {}",
                        hours_text(cap.used),
                        cap.end,
                    ),
                    Some(begin) => format!(
                        "of the period that begins {begin}, running jobs may use {promised} by their time limits, and this job {ahead}"
                    ),
                };
                let text = format!(
                    "account {} may use {} GPU-hours{} {}: {spent}",
                    self.tree.name(number),
                    budget.gpu_hours,
                    budget
                        .gpu_type
                        .as_ref()
                        .map_or(String::new(), |name| format!(" of {name}")),
                    period_text(budget.period),
                );
                if !found(
                    Reason::new(ReasonCode::AssocGrpBilling, text),
                    LimitKind::Fixed,
                ) {
                    return false;
                }
            }
        }
        true
    }

    fn licences_hold(&self, spec: &JobSpec, found: LimitVisitor) -> bool {
        spec.licences.iter().all(|(name, wants)| {
            let text = match self.licences.get(name) {
                Some(licence) if licence.used + u64::from(*wants) <= u64::from(licence.all) => {
                    return true;
                }
                Some(licence) => {
                    format!(
                        "licence {name}: there are {}, {} are in use, this job needs {wants}",
                        licence.all, licence.used
                    )
                }
                None => format!("licence {name} is not in the configuration"),
            };
            found(Reason::new(ReasonCode::Licenses, text), LimitKind::Licence)
        })
    }

    /// In which class a job would run.
    fn class_for(&self, spec: &JobSpec, who: UsageOwner, held: &Holding) -> Option<RunClass> {
        let guarantees = self.guarantees.as_ref()?;
        if self.is_outside_quota(spec) {
            return None;
        }
        let fits = match who.account {
            Some(account) => guarantees.fits(&self.tree, account, held),
            None => held.gpus == 0,
        };
        Some(if fits {
            RunClass::Guaranteed
        } else {
            RunClass::Borrowed
        })
    }

    fn class_is_allowed(
        &self,
        spec: &JobSpec,
        who: UsageOwner,
        class: Option<RunClass>,
        held: &Holding,
        found: LimitVisitor,
    ) -> bool {
        let Some(because) = self
            .may_not_borrow(spec, who)
            .filter(|_| class == Some(RunClass::Borrowed))
        else {
            return true;
        };
        let shortage = self.shortage(spec, who, held);
        let top = who
            .account
            .and_then(|account| self.tree.line(account).last())
            .filter(|_| !shortage.for_good);
        let kind = top.map_or(LimitKind::Fixed, LimitKind::Guarantee);
        let text = format!("{} ({because})", shortage.text);
        found(Reason::new(ReasonCode::Quota, text), kind)
    }

    /// Borrowing is for jobs that can be sent back, or that say they may be ended.
    fn may_not_borrow(&self, spec: &JobSpec, who: UsageOwner) -> Option<&'static str> {
        let partition = who.partition.map(|at| &self.config.partitions[at]);
        let may_requeue = spec
            .requeue
            .unwrap_or(partition.is_none_or(|partition| partition.requeue));
        match spec.borrow {
            Some(true) => None,
            Some(false) => Some("--no-borrow"),
            None if may_requeue => None,
            None => Some("a job that may not be requeued does not borrow unless it says --borrow"),
        }
    }

    /// Whether a job's QOS has it run outside of quotas.
    pub fn is_outside_quota(&self, spec: &JobSpec) -> bool {
        self.policy
            .qos
            .get(&spec.qos)
            .is_some_and(|qos| qos.outside_quota)
    }
}

struct Scopes {
    group: Scope,
    user: (Scope, Pair),
    account: (Scope, Pair),
}

const QOS_SCOPES: &Scopes = &Scopes {
    group: Scope::Qos,
    user: (Scope::UserInQos, Pair::UserInQos),
    account: (Scope::AccountInQos, Pair::AccountInQos),
};
const PARTITION_SCOPES: &Scopes = &Scopes {
    group: Scope::Partition,
    user: (Scope::UserInPartition, Pair::UserInPartition),
    account: (Scope::AccountInPartition, Pair::AccountInPartition),
};

impl Ledger {
    fn who(&self, spec: &JobSpec) -> UsageOwner {
        UsageOwner {
            account: self.tree.number(&spec.account),
            user: self.users.number(&spec.user.name),
            qos: self.qos_names.number(&spec.qos).map(|at| at as usize),
            partition: self
                .partition_names
                .number(&spec.partition)
                .map(|at| at as usize),
        }
    }

    fn who_or_new(&mut self, spec: &JobSpec) -> UsageOwner {
        let who = self.who(spec);
        let account = who
            .account
            .unwrap_or_else(|| self.account_or_new(&spec.account));
        let user = who
            .user
            .unwrap_or_else(|| self.users.number_or_new(&spec.user.name));
        UsageOwner {
            account: Some(account),
            user: Some(user),
            ..who
        }
    }

    fn account_or_new(&mut self, name: &str) -> u32 {
        let number = self.tree.number_or_new(name);
        self.accounts
            .resize_with(self.tree.len(), AccountPage::default);
        if let Some(guarantees) = &mut self.guarantees {
            guarantees.grow(self.tree.len());
        }
        number
    }

    /// Adds what a run holds to all that it counts for, or takes it off.
    fn count(&mut self, spec: &JobSpec, who: UsageOwner, held: &Holding, add: bool) {
        let (now, types) = (self.now, self.types.len());
        let change = |meter: &mut Meter| {
            if add {
                meter.add(held, now, types)
            } else {
                meter.remove(held, now)
            }
        };
        let (Some(account), Some(user)) = (who.account, who.user) else {
            return;
        };
        for number in self.tree.line(account) {
            let page = &mut self.accounts[number as usize];
            change(&mut page.held);
            for (_, budget) in &mut page.budgets {
                budget.count(held, now, add);
            }
            if page.per_user.is_some() || page.has_user_bounds {
                change(
                    self.pairs
                        .entry((Pair::UserInAccount, number, user))
                        .or_default(),
                );
            }
        }
        let pages = [
            (who.qos.map(|at| (at, &mut self.qos[at])), QOS_SCOPES),
            (
                who.partition.map(|at| (at, &mut self.partitions[at])),
                PARTITION_SCOPES,
            ),
        ];
        for (page, scopes) in pages {
            let Some((at, page)) = page else { continue };
            change(&mut page.held);
            if page.per_user.is_some() {
                change(
                    self.pairs
                        .entry((scopes.user.1, at as u32, user))
                        .or_default(),
                );
            }
            if page.per_account.is_some() {
                change(
                    self.pairs
                        .entry((scopes.account.1, at as u32, account))
                        .or_default(),
                );
            }
        }
        for (name, count) in &spec.licences {
            if let Some(licence) = self.licences.get_mut(name) {
                let count = u64::from(*count);
                licence.used = if add {
                    licence.used + count
                } else {
                    licence.used.saturating_sub(count)
                };
            }
        }
    }

    fn open_accounts(&mut self, snapshot: &Snapshot) {
        let policy = self.policy.clone();
        self.accounts
            .resize_with(self.tree.len(), AccountPage::default);
        // The present of each kind, and the ends of those that follow.
        let mut periods: BTreeMap<Period, ((Timestamp, Timestamp), Vec<Timestamp>)> =
            BTreeMap::new();
        for account in policy.accounts.values() {
            let Some(number) = self.tree.number(&account.name) else {
                continue;
            };
            let with_limits = account
                .users
                .iter()
                .filter(|(_, user)| user.limits != Default::default());
            for (name, user) in with_limits {
                let limits = stricter(&user.limits, &account.per_user);
                if let Some(bound) = Bound::new(&limits, &self.types) {
                    let user = self.users.number_or_new(name);
                    self.user_bounds.insert((number, user), bound);
                    self.accounts[number as usize].has_user_bounds = true;
                }
            }
            let budgets = account.budgets.iter().map(|budget| {
                let used = self.used_in_period(&snapshot.usage, number, budget);
                let gpu_type = budget
                    .gpu_type
                    .as_ref()
                    .map_or(ALL, |name| self.types.number(name));
                let most = u128::from(budget.gpu_hours) * GPU_HOUR;
                let bounds = |at: Timestamp| snapshot.usage.period_bounds(budget.period, at);
                let following = |present: &(Timestamp, Timestamp)| {
                    std::iter::successors(Some(present.1), |end| Some(bounds(*end).1)).skip(1)
                };
                let (present, ends) = periods.entry(budget.period).or_insert_with(|| {
                    let present = bounds(self.now);
                    (
                        present,
                        following(&present).take(MOST_PERIODS - 1).collect(),
                    )
                });
                let spent = BudgetUse::new(gpu_type, most, used, present.0, present.1);
                (
                    budget.clone(),
                    if budget.kind == BudgetKind::Cap {
                        spent.followed_by(ends)
                    } else {
                        spent
                    },
                )
            });
            let budgets = budgets.collect();
            let page = &mut self.accounts[number as usize];
            page.budgets = budgets;
            page.group = Bound::with_gpus(&account.group, account.limit.as_ref(), &self.types);
            page.per_user = Bound::new(&account.per_user, &self.types);
        }
    }

    /// What was charged to an account and those below it.
    fn used_in_period(&self, book: &UsageBook, number: u32, budget: &Budget) -> u128 {
        let gpu_type = budget
            .gpu_type
            .as_ref()
            .map(|name| name.to_ascii_lowercase());
        let below = (1..self.tree.len() as u32).filter(|one| self.tree.is_within(*one, number));
        below
            .map(|one| {
                book.in_period(
                    self.tree.name(one),
                    budget.period,
                    self.now,
                    gpu_type.as_deref(),
                )
            })
            .sum()
    }

    fn enter_runs(&mut self, snapshot: &Snapshot) {
        let mut whose: Vec<UsageOwner> = Vec::with_capacity(snapshot.running.len());
        for (at, run) in snapshot.running.iter().enumerate() {
            let held = self.gpu_types.holding(run);
            let like_last = at > 0 && Arc::ptr_eq(&snapshot.running[at - 1].spec, &run.spec);
            let who = if like_last {
                whose[at - 1]
            } else {
                self.who_or_new(&run.spec)
            };
            self.count(&run.spec, who, &held, true);
            if run.charged {
                // Over: its licences are free, though a node is not.
                self.free_licences(&run.spec);
            } else {
                self.use_so_far(run, who, &held);
            }
            whose.push(who);
            self.runs.push(Entry::new(run, held));
        }
        let budget_of = |account: u32, wanted: &Budget| {
            let budgets = &self.accounts[account as usize].budgets;
            let found = budgets.iter().find(|(budget, _)| budget == wanted);
            found
                .map(|(_, used)| used.without_promises())
                .expect("every budget has its page")
        };
        self.guarantees =
            Guarantees::new(&self.policy, &self.tree, &self.types, self.now, &budget_of);
        self.class_runs(snapshot, &whose);
    }

    fn class_runs(&mut self, snapshot: &Snapshot, whose: &[UsageOwner]) {
        let Some(mut guarantees) = self.guarantees.take() else {
            return;
        };
        let inside: Vec<usize> = (0..self.runs.len())
            .filter(|at| !self.is_outside_quota(&snapshot.running[*at].spec))
            .collect();
        let standing: Vec<StandingRun> = inside
            .iter()
            .map(|&at| StandingRun {
                account: whose[at].account.unwrap_or_default(),
                held: &self.runs[at].held,
                class: self.runs[at].before,
                leaving: snapshot.running[at].stops_by.is_some() || snapshot.running[at].charged,
            })
            .collect();
        let classes = guarantees.walk(&self.tree, &standing, |left| self.promised(snapshot, left));
        for (at, class) in inside.into_iter().zip(classes) {
            self.runs[at].class = Some(class);
        }
        self.guarantees = Some(guarantees);
    }

    /// What jobs will stand on for which others are ended: until they start, no run is moved onto it. While others go for a job that
    /// was to borrow, it has no part in this.
    fn promised(&self, snapshot: &Snapshot, left: &Guarantees) -> Vec<(u32, Holding)> {
        let going_for: BTreeSet<JobId> = snapshot
            .running
            .iter()
            .filter_map(|run| run.victim_of)
            .collect();
        let waiting = promised_guarantee(snapshot);
        let mut left = left.clone();
        let is_owed = |job: &&PendingJob| {
            let has_room = || job.particulars.nomination.is_some() && !job.is_among(&going_for);
            job.spec.choice() == 0
                && (has_room() || job.is_among(&waiting))
                && may_start(job, snapshot.now)
                && !self.is_outside_quota(&job.spec)
        };
        let promise = |job: &PendingJob| {
            let account = self.tree.number(&job.spec.account)?;
            let held = guaranteed_as(job, account, &left, self, self.now)?;
            left.add(&self.tree, account, &held);
            Some((account, held))
        };
        snapshot
            .pending
            .iter()
            .filter(is_owed)
            .filter_map(promise)
            .collect()
    }

    fn free_licences(&mut self, spec: &JobSpec) {
        for (name, count) in &spec.licences {
            if let Some(licence) = self.licences.get_mut(name) {
                licence.used -= u64::from(*count);
            }
        }
    }

    /// What a run used before now counts in its account's budgets, charged or not.
    fn use_so_far(&mut self, run: &RunningRun, who: UsageOwner, held: &Holding) {
        let (Some(started), Some(account)) = (run.started, who.account) else {
            return;
        };
        for number in self.tree.line(account) {
            for (_, budget) in &mut self.accounts[number as usize].budgets {
                let millis = self.now.since_millis(started.max(budget.start)) as u128;
                budget.used += u128::from(held.of(budget.gpu_type)) * millis;
            }
        }
    }
}

impl Entry {
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
