//! The site's scheduling policy: accounts, QOS, limits, quotas, reservations, weights, prices.
//!
//! Plain data with defaults that leave everything off: a cluster without any of it runs jobs by age.
//! Where each comes from (TOML, or `gadm` and the database) is the daemon's affair. Words of slurm.conf(5), sacctmgr(1).

use crate::checkpoint::CheckpointSpec;
use crate::config::Partition;
use crate::hostlist::Hostlist;
use crate::idle::IdlePolicy;
use crate::time::Timestamp;
use crate::time_zone::TimeZone;
pub use crate::topology::{NodeGroup, Rails, Switch, Topology};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The key of [`GpuAmounts`] that stands for GPUs of all types together.
pub const ALL_GPUS: &str = "gpu";
/// The account above all others. It has no record; its children have no parent.
pub const ROOT_ACCOUNT: &str = "root";

/// What accounts, users, QOS and reservations are there: edited at run time or read from files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    pub accounts: BTreeMap<String, Account>,
    pub qos: BTreeMap<String, Qos>,
    pub reservations: BTreeMap<String, Reservation>,
}

/// Thousandths of GPUs by type, lower case; `"gpu"` counts all types together. A type that is not named
/// is bounded only by `"gpu"`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuAmounts(pub BTreeMap<String, u64>);

/// A group that jobs are charged to. Accounts form a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Account {
    pub name: String,
    /// `None`: directly below the root.
    pub parent: Option<String>,
    pub description: String,
    /// Part among its siblings for fair share; 0 gets what nobody else wants.
    pub shares: u32,
    /// GPUs that are given back to the account when it wants them. `None` in none of the tree: no quotas.
    pub guaranteed: Option<GpuAmounts>,
    /// GPUs the account and those below it may hold at once, guaranteed or borrowed.
    pub limit: Option<GpuAmounts>,
    /// Of its idle guaranteed GPUs, at most so many are lent to others at once.
    pub lend_limit: Option<GpuAmounts>,
    pub budgets: Vec<Budget>,
    /// Of the account and those below it together.
    pub group: Limits,
    /// Of each user of the account.
    pub per_user: Limits,
    /// Empty allows all.
    pub allow_qos: Vec<String>,
    pub default_qos: Option<String>,
    /// Users who may edit this account and its jobs, and those below it.
    pub coordinators: BTreeSet<String>,
    /// Empty, and neither `closed` nor `users_only`: everybody may use it. Otherwise only these and coordinators.
    pub users: BTreeMap<String, AccountUser>,
    /// `users` says who may use it also when it names nobody, as after its last user was removed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub users_only: bool,
    /// Takes no new jobs. Accounts that were charged are closed, never deleted.
    pub closed: bool,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            name: String::new(),
            parent: None,
            description: String::new(),
            shares: 1,
            guaranteed: None,
            limit: None,
            lend_limit: None,
            budgets: Vec::new(),
            group: Limits::default(),
            per_user: Limits::default(),
            allow_qos: Vec::new(),
            default_qos: None,
            coordinators: BTreeSet::new(),
            users: BTreeMap::new(),
            users_only: false,
            closed: false,
        }
    }
}

impl Account {
    /// Everybody may use it, as far as it is not closed.
    pub fn is_open(&self) -> bool {
        self.users.is_empty() && !self.users_only
    }
}

/// A user in an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AccountUser {
    pub shares: u32,
    pub limits: Limits,
    /// The account used when the user names none.
    pub is_default: bool,
}

impl Default for AccountUser {
    fn default() -> Self {
        Self {
            shares: 1,
            limits: Limits::default(),
            is_default: false,
        }
    }
}

/// GPU-hours of an account in a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    pub kind: BudgetKind,
    pub gpu_hours: u64,
    pub period: Period,
    /// `None`: all types together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetKind {
    /// Runs beyond it are borrowed, even within the guaranteed GPUs.
    Guaranteed,
    /// Nothing starts beyond it.
    Cap,
}

/// Calendar periods by the site's clock (`time_zone`, else UTC); weeks begin on Monday.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    Day,
    Week,
    Month,
    Quarter,
    Year,
}

/// Bounds on what somebody may have or ask at once; `None` is no bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Jobs (array tasks count each) that run at once: MaxJobs, GrpJobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_jobs: Option<u32>,
    /// Jobs in the queue and running together: MaxSubmitJobs, GrpSubmitJobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submitted_jobs: Option<u32>,
    /// GPUs held at once: MaxTRESPerUser, GrpTRES.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuAmounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// GPU-hours that the time limits of the running jobs add up to: GrpTRESRunMins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_gpu_hours: Option<u64>,
    /// Tasks of one array: checked when it is submitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array_tasks: Option<u32>,
    /// Submissions (an array is one) in any 60 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submits_per_minute: Option<u32>,
}

/// Bounds on one job; `None` is no bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobLimits {
    /// MaxWall, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_secs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// MaxTRES.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuAmounts>,
    /// MinTRES.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_gpus: Option<GpuAmounts>,
}

/// A quality of service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Qos {
    pub name: String,
    pub description: String,
    pub priority: u32,
    /// Usage is charged times this, in thousandths.
    pub usage_factor_milli: u32,
    /// QOS whose runs jobs of this one may preempt.
    pub preempt: BTreeSet<String>,
    /// How its own runs are preempted; `None`: as the partition says.
    pub preempt_mode: Option<PreemptMode>,
    /// A run is not preempted before it ran so long.
    pub min_run_secs: u32,
    /// Of all jobs of the QOS together.
    pub group: Limits,
    pub per_user: Limits,
    pub per_account: Limits,
    pub per_job: JobLimits,
    /// GPUs of this cluster that only jobs of this QOS may take when they are idle.
    pub headroom: Option<GpuAmounts>,
    /// Jobs of it neither count against guarantees nor borrow: they run outside of quotas, and give way to guaranteed demand
    /// before borrowed runs do, unless its preemption mode is off.
    pub outside_quota: bool,
    /// What is done about its runs whose GPUs stand idle; `None`: as the partition says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdlePolicy>,
}

impl Default for Qos {
    fn default() -> Self {
        Self {
            name: String::new(),
            description: String::new(),
            priority: 0,
            usage_factor_milli: 1000,
            preempt: BTreeSet::new(),
            preempt_mode: None,
            min_run_secs: 0,
            group: Limits::default(),
            per_user: Limits::default(),
            per_account: Limits::default(),
            per_job: JobLimits::default(),
            headroom: None,
            outside_quota: false,
            idle: None,
        }
    }
}

/// What happens to a run whose resources somebody else is owed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PreemptMode {
    Off,
    /// Checkpointed, ended, back to the queue.
    #[default]
    Requeue,
    /// Checkpointed, ended.
    Cancel,
    /// Frozen where it is; only where its GPUs are not what is needed.
    Suspend,
}

/// Resources set apart for some, for a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reservation {
    pub name: String,
    pub start: Timestamp,
    /// Seconds of each window.
    pub duration_secs: u32,
    pub repeat: Repeat,
    pub what: ReservedPart,
    /// Who may use it, those below an account too; `-bob` may not. Names with a minus alone: all but these. With users and accounts
    /// a job must be of one of each. All empty: nobody (maintenance).
    pub users: BTreeSet<String>,
    pub accounts: BTreeSet<String>,
    pub partition: Option<String>,
    /// Features of the nodes that a count of nodes chooses among, as `--constraint` has them; empty: all.
    pub features: String,
    /// MAINT: shown as such; its nodes are not counted as available.
    pub maintenance: bool,
    /// FLEX: its jobs may begin before it and end after it.
    pub flex: bool,
    /// IGNORE_JOBS: it may be made over jobs that run into it.
    pub ignore_running: bool,
    /// MAGNETIC: jobs that it is for may use its nodes without naming it.
    pub magnetic: bool,
    /// OVERLAP: it may be made over others, and has their nodes in its windows.
    pub overlap: bool,
    /// PURGE_COMP: a window ends once no job of it ran or waited for so long, seconds.
    pub purge_idle_secs: Option<u32>,
    /// STATIC_ALLOC: nodes that were chosen by their number are not replaced when they go down.
    pub static_nodes: bool,
    /// NO_HOLD_JOBS_AFTER: jobs that wait for it when it goes wait on without it.
    pub release_jobs: bool,
    /// Windows that end by then do not come.
    pub skip_until: Option<Timestamp>,
    /// Its nodes were chosen by their number, and one that goes down is replaced.
    pub is_chosen: bool,
    /// With `purge_idle_secs`: since when its present window is idle.
    pub idle_since: Option<Timestamp>,
    pub created_by: String,
    /// What recurring windows are counted in, where that is not UTC: the configuration's, put in by whoever merges both.
    #[serde(skip)]
    pub zone: Option<Arc<TimeZone>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeat {
    #[default]
    Once,
    Hourly,
    Daily,
    /// Monday to Friday.
    Weekday,
    /// Saturday and Sunday.
    Weekend,
    Weekly,
}

impl Repeat {
    /// Seconds from one to the next by the clock, the least; `None`: it comes once.
    pub const fn every_secs(self) -> Option<u32> {
        match self {
            Self::Once => None,
            Self::Hourly => Some(3_600),
            Self::Daily | Self::Weekday | Self::Weekend => Some(86_400),
            Self::Weekly => Some(7 * 86_400),
        }
    }
}

impl Reservation {
    /// Its nodes are used by whoever it is for, by name or not.
    pub fn draws(&self) -> bool {
        self.magnetic && !matches!(self.what, ReservedPart::Gpus(_))
    }
}

/// Whom a reservation is for: `ada, vision`, `all but bob`, `ada, bob in lab`; nothing where it is for nobody.
pub fn reserved_for(users: &BTreeSet<String>, accounts: &BTreeSet<String>) -> String {
    let listed = |names: &BTreeSet<String>| {
        let barred: Vec<&str> = names
            .iter()
            .filter_map(|name| name.strip_prefix('-'))
            .collect();
        match barred.is_empty() {
            true => names
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", "),
            false => format!("all but {}", barred.join(", ")),
        }
    };
    match (users.is_empty(), accounts.is_empty()) {
        (_, true) => listed(users),
        (true, false) => listed(accounts),
        (false, false) => format!("{} in {}", listed(users), listed(accounts)),
    }
}

/// What a reservation sets apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReservedPart {
    AllNodes,
    /// These, whole.
    Nodes(Hostlist),
    /// So many whole nodes of the partition (or of all), chosen when it is made and written as `Nodes`.
    NodeCount(u32),
    /// So many GPUs, thousandths by type, wherever they are.
    Gpus(GpuAmounts),
}

impl Default for ReservedPart {
    fn default() -> Self {
        Self::NodeCount(0)
    }
}

/// How the scheduler works: order, backfill, placement, preemption. `[scheduler]` and its neighbours in TOML.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SchedulerConfig {
    pub order: JobOrder,
    pub backfill: Backfill,
    pub placement: Placement,
    pub priority: PriorityWeights,
    pub fair_share: FairShare,
    pub preempt: PreemptConfig,
    /// Licences of the cluster by name, and how many there are.
    pub licences: BTreeMap<String, u32>,
    /// By GPU type, each list by date.
    pub prices: BTreeMap<String, Vec<Price>>,
    pub topology: Topology,
    /// Jobs may be started again to open room for larger ones.
    pub consolidate: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOrder {
    /// Tier, guaranteed before borrowed, multifactor priority, submission, id.
    #[default]
    Multifactor,
    /// Submission, id.
    Fifo,
    /// Shortest time limit first, then submission, id.
    Sjf,
}

/// How many of the first waiting jobs get a start that later ones may not delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backfill {
    /// Nobody passes a job that waits for resources in the same partition.
    Off,
    /// The first so many; 1 is EASY.
    First(u32),
    /// All: conservative.
    All,
}

impl Default for Backfill {
    /// One: reservations for many are conservative backfill, which waits 2 to 3 times as long where limits say little (docs/bench.md).
    fn default() -> Self {
        Self::EASY
    }
}

impl Backfill {
    pub const EASY: Self = Self::First(1);
}

/// Which of the nodes that fit is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// What leaves the most for the jobs there usually are: whole nodes and islands stay open.
    #[default]
    Pack,
    /// The emptiest node first.
    Spread,
    /// The node with the fewest free GPUs that has enough; for more than one node whole empty ones and the
    /// rest on the one with the most free.
    BestFit,
    /// In the order of the nodes.
    FirstFit,
}

/// `[priority]`: each factor is 0 to 1, times its weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PriorityWeights {
    pub age: u32,
    pub fair_share: u32,
    pub qos: u32,
    pub partition: u32,
    pub size: u32,
    pub site: u32,
    /// Age counts fully after so long.
    pub max_age_secs: u32,
    /// Small jobs get the size factor instead of large ones.
    pub favor_small: bool,
}

impl Default for PriorityWeights {
    fn default() -> Self {
        Self {
            // As heavy as the next: else a wide job, whose turn never comes by usage, would wait without end.
            age: 10_000,
            fair_share: 10_000,
            qos: 10_000,
            partition: 1_000,
            size: 0,
            site: 1_000,
            max_age_secs: 7 * 86_400,
            favor_small: false,
        }
    }
}

/// `[fair_share]`: how usage is charged and forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FairShare {
    pub half_life_secs: u32,
    /// Thousandths by GPU type; one that is not named weighs 1000.
    pub gpu_weights_milli: BTreeMap<String, u32>,
    /// What a CPU and a GiB of memory are charged, in thousandths of a GPU of weight 1000.
    pub cpu_weight_milli: u32,
    pub mem_gib_weight_milli: u32,
}

impl Default for FairShare {
    fn default() -> Self {
        Self {
            half_life_secs: 7 * 86_400,
            gpu_weights_milli: BTreeMap::new(),
            cpu_weight_milli: 10,
            mem_gib_weight_milli: 1,
        }
    }
}

/// `[preempt]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PreemptConfig {
    /// Work since the last mark protects a run up to this: never marking gains nothing.
    pub max_protected_loss_secs: u32,
    /// A run that was preempted is not preempted again before it ran so long.
    pub min_run_secs: u32,
    /// Jobs that do not say `--checkpoint`.
    pub default_checkpoint: Option<CheckpointSpec>,
    /// `--checkpoint` may ask for so much grace at most.
    pub max_grace_secs: u32,
}

impl Default for PreemptConfig {
    fn default() -> Self {
        Self {
            max_protected_loss_secs: 3_600,
            min_run_secs: 300,
            default_checkpoint: None,
            max_grace_secs: 1_800,
        }
    }
}

impl SchedulerConfig {
    /// What a GPU of a type costs at a time.
    pub fn price_at(&self, gpu_type: &str, at: Timestamp) -> Option<&Price> {
        self.prices
            .get(gpu_type)?
            .iter()
            .rev()
            .find(|price| price.from <= at)
    }
}

/// Price of a GPU-hour from a day on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    pub from: Timestamp,
    /// Thousandths of the site's currency.
    pub per_gpu_hour_milli: u64,
}

impl GpuAmounts {
    /// So many whole GPUs of all types together.
    pub fn all(gpus: u64) -> Self {
        Self(BTreeMap::from([(
            ALL_GPUS.to_owned(),
            gpus.saturating_mul(1000),
        )]))
    }
    /// Thousandths of a type, if it is named.
    pub fn of(&self, gpu_type: &str) -> Option<u64> {
        self.0.get(gpu_type).copied()
    }
    pub fn total(&self) -> Option<u64> {
        self.of(ALL_GPUS)
    }
    /// Of a type, or of all types together: what is said of these, else the sum of the types.
    pub fn amount(&self, gpu_type: &str) -> u64 {
        match self.of(gpu_type) {
            Some(milli) => milli,
            None if gpu_type == ALL_GPUS => self.0.values().sum(),
            None => 0,
        }
    }
    /// The first type of which these are more than a limit: with both, thousandths.
    pub fn beyond<'a>(&self, limit: &'a GpuAmounts) -> Option<(&'a str, u64, u64)> {
        let mut limits = limit
            .0
            .iter()
            .map(|(gpu_type, most)| (gpu_type.as_str(), self.amount(gpu_type), *most));
        limits.find(|(_, milli, most)| milli > most)
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What an account is guaranteed of a type, and what an account above it may hold at most. Thousandths of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuaranteeOverLimit<'a> {
    pub account: &'a str,
    pub above: &'a str,
    pub gpu_type: &'a str,
    pub milli: u64,
    pub most: u64,
}

/// What an account is guaranteed of a type, and those below it more. Thousandths of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuaranteeOverdraft<'a> {
    pub account: &'a str,
    pub gpu_type: &'a str,
    pub milli: u64,
    /// By account.
    pub parts: Vec<(&'a str, u64)>,
    pub sum: u64,
}

impl JobLimits {
    /// The first type of which a job must ask more than it may: with both, thousandths.
    pub fn asks_beyond_its_bound(&self) -> Option<(&str, u64, u64)> {
        self.min_gpus.as_ref()?.beyond(self.gpus.as_ref()?)
    }
}

impl Account {
    /// The first type of which it is guaranteed more than it may hold: with both, thousandths.
    pub fn guaranteed_beyond_limit(&self) -> Option<(&str, u64, u64)> {
        self.guaranteed.as_ref()?.beyond(self.limit.as_ref()?)
    }
}

impl Policy {
    /// An account and those above it, itself first. Ends at the root, or where the chain would come back.
    pub fn lineage<'a>(&'a self, name: &str) -> Vec<&'a Account> {
        let mut line: Vec<&Account> = Vec::new();
        let mut next = self.accounts.get(name);
        while let Some(account) = next {
            if line.iter().any(|seen| seen.name == account.name) {
                break;
            }
            line.push(account);
            next = account
                .parent
                .as_deref()
                .and_then(|parent| self.accounts.get(parent));
        }
        line
    }
    /// Whether an account is one of those named, or below one.
    pub fn is_among(&self, account: &str, named: impl Fn(&str) -> bool) -> bool {
        named(account) || self.lineage(account).iter().any(|above| named(&above.name))
    }

    /// Whether a partition takes jobs that are charged to an account: it, or one above it, is among those that it names; or it names none.
    pub fn may_charge_in(&self, partition: &Partition, account: &str) -> bool {
        let allowed = &partition.allow_accounts;
        allowed.is_empty() || self.is_among(account, |name| allowed.iter().any(|one| one == name))
    }

    /// Whether a reservation is for jobs of a user in an account: with lists of both it must be for the one and for the other.
    pub fn is_reserved_for(&self, reservation: &Reservation, user: &str, account: &str) -> bool {
        let Reservation {
            users, accounts, ..
        } = reservation;
        let barred = |names: &BTreeSet<String>, name: &str| {
            names.iter().any(|one| one.strip_prefix('-') == Some(name))
        };
        // A list of nobody, or of names with a minus alone, is for all others.
        let all = |names: &BTreeSet<String>| names.iter().all(|name| name.starts_with('-'));
        let of_users = !barred(users, user) && (all(users) || users.contains(user));
        let of_accounts = || {
            !self.is_among(account, |name| barred(accounts, name))
                && (all(accounts) || self.is_among(account, |name| accounts.contains(name)))
        };
        !(users.is_empty() && accounts.is_empty()) && of_users && of_accounts()
    }
    /// Accounts that are guaranteed less than those below them together, each with the first such type.
    pub fn overdrawn(&self) -> Vec<GuaranteeOverdraft<'_>> {
        // Each stands on the nearest guarantee above it.
        let mut below: BTreeMap<&str, Vec<(&str, &GpuAmounts)>> = BTreeMap::new();
        for account in self.accounts.values() {
            let Some(guaranteed) = &account.guaranteed else {
                continue;
            };
            let above = self
                .lineage(&account.name)
                .into_iter()
                .skip(1)
                .find(|above| above.guaranteed.is_some());
            if let Some(above) = above {
                below
                    .entry(&above.name)
                    .or_default()
                    .push((&account.name, guaranteed));
            }
        }
        let mut found = Vec::new();
        for (account, below) in below {
            let own = self
                .accounts
                .get(account)
                .and_then(|account| account.guaranteed.as_ref());
            for (gpu_type, milli) in own.into_iter().flat_map(|own| &own.0) {
                let parts = below
                    .iter()
                    .map(|(name, all)| (*name, all.amount(gpu_type)));
                let parts: Vec<(&str, u64)> = parts.filter(|(_, part)| *part > 0).collect();
                let sum = parts.iter().map(|(_, part)| part).sum();
                if sum > *milli {
                    found.push(GuaranteeOverdraft {
                        account,
                        gpu_type,
                        milli: *milli,
                        parts,
                        sum,
                    });
                    break;
                }
            }
        }
        found
    }
    /// Whether a QOS may end runs of another, or of one that may, and so on.
    pub fn qos_reaches(&self, one: &str, other: &str) -> bool {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut next = vec![one];
        while let Some(name) = next.pop() {
            let Some(qos) = self.qos.get(name) else {
                continue;
            };
            if qos.preempt.contains(other) {
                return true;
            }
            next.extend(
                qos.preempt
                    .iter()
                    .map(|name| &**name)
                    .filter(|name| seen.insert(name)),
            );
        }
        false
    }
    /// Guarantees that an account above does not let be held.
    pub fn beyond_limits_above(&self) -> Vec<GuaranteeOverLimit<'_>> {
        let mut found = Vec::new();
        for (account, one) in &self.accounts {
            let Some(guaranteed) = &one.guaranteed else {
                continue;
            };
            let beyond = self.lineage(account).into_iter().skip(1).find_map(|above| {
                let (gpu_type, milli, most) = guaranteed.beyond(above.limit.as_ref()?)?;
                Some(GuaranteeOverLimit {
                    account,
                    above: &above.name,
                    gpu_type,
                    milli,
                    most,
                })
            });
            found.extend(beyond);
        }
        found
    }
    /// Whether any account has a guarantee: only then are runs guaranteed or borrowed.
    pub fn has_quotas(&self) -> bool {
        self.accounts.values().any(|account| {
            account.guaranteed.is_some()
                || account
                    .budgets
                    .iter()
                    .any(|budget| budget.kind == BudgetKind::Guaranteed)
        })
    }
    /// Whether a user may coordinate an account, there or above it.
    pub fn coordinates(&self, user: &str, account: &str) -> bool {
        self.lineage(account)
            .iter()
            .any(|account| account.coordinators.contains(user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str, parent: Option<&str>, guaranteed: &[(&str, u64)]) -> (String, Account) {
        let amounts = GpuAmounts(
            guaranteed
                .iter()
                .map(|(kind, milli)| ((*kind).to_owned(), *milli))
                .collect(),
        );
        let guaranteed = (!guaranteed.is_empty()).then_some(amounts);
        (
            name.to_owned(),
            Account {
                name: name.into(),
                parent: parent.map(Into::into),
                guaranteed,
                ..Account::default()
            },
        )
    }

    #[test]
    fn what_is_guaranteed_below_counts_at_the_nearest_guarantee_above() {
        let of = |deep: u64| Policy {
            accounts: BTreeMap::from([
                account("top", None, &[("h100", 8000)]),
                account("middle", Some("top"), &[]),
                account("deep", Some("middle"), &[("h100", deep)]),
                account("deeper", Some("deep"), &[("h100", 4000)]),
                account("side", Some("top"), &[("h100", 2000), ("a100", 9000)]),
            ]),
            ..Policy::default()
        };
        assert_eq!(of(6000).overdrawn(), []);
        let parts = vec![("deep", 7000), ("side", 2000)];
        assert_eq!(
            of(7000).overdrawn(),
            [GuaranteeOverdraft {
                account: "top",
                gpu_type: "h100",
                milli: 8000,
                parts,
                sum: 9000
            }]
        );
        assert_eq!(of(3000).overdrawn()[0].account, "deep");
    }

    #[test]
    fn a_guarantee_by_types_is_held_against_a_limit_of_all() {
        let (_, mut one) = account("a", None, &[("h100", 5000), ("a100", 4000)]);
        one.limit = Some(GpuAmounts::all(9));
        assert_eq!(one.guaranteed_beyond_limit(), None);
        one.limit = Some(GpuAmounts::all(8));
        assert_eq!(one.guaranteed_beyond_limit(), Some((ALL_GPUS, 9000, 8000)));
    }
}
