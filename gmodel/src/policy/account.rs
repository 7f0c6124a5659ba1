//! Accounts: their tree, guarantees, budgets, users. Source of the words: sacctmgr(1); guarantees as in Kueue's quotas.

use super::limits::Limits;
use crate::gpu_amounts::GpuAmounts;
use crate::record::{Access, Key, Kind, NameOf};
use crate::{record, words};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The account above all others. It has no record; its children have no parent.
pub const ROOT_ACCOUNT: &str = "root";

const MOST_SHARES: u32 = 1_000_000;

record! {
    /// A group that jobs are charged to. Accounts form a tree.
    pub struct Account {
        /// What jobs and commands call it.
        name: String = String::new(), Key::new(Kind::Text).by(Access::Fixed);
        /// `None`: directly below the root.
        parent: Option<String> = None, Key::new(Kind::Name(NameOf::Account));
        /// For people.
        description: String = String::new(), Key::new(Kind::Text).by(Access::Coordinators);
        /// Shares among its siblings for fair share; 0 gets only what its siblings leave.
        shares: u32 = 1, Key::count(0, MOST_SHARES).spelled(&[("fairshare", "")]);
        /// GPUs that the account gets back when it asks. `None` in the whole tree: no quotas.
        guaranteed: Option<GpuAmounts> = None, Key::new(Kind::Gpus);
        /// GPUs the account and those below it may hold at once, guaranteed or borrowed.
        limit: Option<GpuAmounts> = None, Key::new(Kind::Gpus).spelled(&[("grptres", "")]);
        /// Of its idle guaranteed GPUs, at most so many are lent to others at once.
        lend_limit: Option<GpuAmounts> = None, Key::new(Kind::Gpus).spelled(&[("lend", "")]);
        /// GPU-hours in calendar periods.
        budgets: Vec<Budget> = Vec::new(), Key::new(Kind::Tables(Budget::KEYS)).in_toml("budget");
        /// Of the account and those below it together.
        group: Limits = Limits::default(), Key::new(Kind::Table(Limits::KEYS)).spelled(&[
            ("grpjobs", "running_jobs"),
            ("grpsubmitjobs", "submitted_jobs"),
            ("grpsubmit", "submitted_jobs"),
            ("grpcpus", "cpus"),
            ("grpnodes", "nodes"),
        ]);
        /// Of each user of the account.
        per_user: Limits = Limits::default(), Key::new(Kind::Table(Limits::KEYS)).by(Access::Coordinators).spelled(&[
            ("maxjobs", "running_jobs"),
            ("maxsubmitjobs", "submitted_jobs"),
            ("maxsubmit", "submitted_jobs"),
            ("maxgpus", "gpus"),
            ("maxcpus", "cpus"),
            ("maxnodes", "nodes"),
        ]);
        /// Empty allows all.
        allow_qos: Vec<String> = Vec::new(), Key::new(Kind::Names(NameOf::Qos)).spelled(&[("qos", ""), ("qoslevel", "")]);
        /// The QOS of jobs that name none.
        default_qos: Option<String> = None, Key::new(Kind::Name(NameOf::Qos));
        /// Users that may edit this account, its jobs, and the accounts below it.
        coordinators: BTreeSet<String> = BTreeSet::new(), Key::new(Kind::Names(NameOf::User));
        /// Empty, and neither `closed` nor `users_only`: open to all users. Otherwise only to these and to coordinators.
        users: BTreeMap<String, AccountUser> = BTreeMap::new(), Key::new(Kind::Users(AccountUser::KEYS)).by(Access::Fixed);
        /// `users` is the list also when it is empty, as after the removal of its last user.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        users_only: bool = false, Key::new(Kind::Flag);
        /// Takes no new jobs. Accounts that were charged are closed, never deleted.
        closed: bool = false, Key::new(Kind::Flag);
    }
}

impl Account {
    /// Open to all users, unless it is closed.
    pub fn is_open(&self) -> bool {
        self.users.is_empty() && !self.users_only
    }
}

record! {
    /// A user in an account.
    pub struct AccountUser {
        /// Shares among the users of the account for fair share.
        shares: u32 = 1, Key::count(0, MOST_SHARES).spelled(&[("fairshare", "")]);
        /// The account used when the user names none.
        is_default: bool = false, Key::new(Kind::Flag).named("default");
    }
    flat {
        /// Of the user's jobs in the account.
        limits: Limits, &[
            ("maxjobs", "running_jobs"),
            ("maxsubmitjobs", "submitted_jobs"),
            ("maxsubmit", "submitted_jobs"),
            ("maxgpus", "gpus"),
            ("grptres", "gpus"),
            ("maxcpus", "cpus"),
            ("maxnodes", "nodes"),
        ];
    }
}

record! {
    /// GPU-hours of an account in a period.
    pub struct Budget {
        /// What is beyond it: a borrowed run, or none.
        kind: BudgetKind = BudgetKind::Cap, Key::new(Kind::Word(BudgetKind::WORDS)).needed();
        /// Of GPUs, times their price.
        gpu_hours: u64 = 0, Key::count(0, u32::MAX).needed();
        /// Begins anew with each.
        period: Period = Period::Month, Key::new(Kind::Word(Period::WORDS)).needed();
        /// `None`: all types together.
        #[serde(skip_serializing_if = "Option::is_none")]
        gpu_type: Option<String> = None, Key::new(Kind::GpuType).sparse();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetKind {
    /// Runs beyond it are borrowed, even within the guaranteed GPUs.
    Guaranteed,
    /// Nothing starts beyond it.
    Cap,
}

words!(BudgetKind {
    Guaranteed = "guaranteed",
    Cap = "cap",
});

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

words!(Period {
    Day = "day",
    Week = "week",
    Month = "month",
    Quarter = "quarter",
    Year = "year",
});

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

impl Account {
    /// The first type of which it is guaranteed more than it may hold: with both, thousandths.
    pub fn guaranteed_beyond_limit(&self) -> Option<(&str, u64, u64)> {
        self.guaranteed.as_ref()?.beyond(self.limit.as_ref()?)
    }
}

/// Each account below its parent, with its depth. An account without a listed parent is at the top.
pub fn tree(accounts: &[Account]) -> Vec<(usize, &Account)> {
    fn below<'a>(
        parent: Option<&str>,
        depth: usize,
        all: &'a [Account],
        tree: &mut Vec<(usize, &'a Account)>,
    ) {
        for account in all {
            let shown = account
                .parent
                .as_deref()
                .filter(|parent| all.iter().any(|other| other.name == *parent));
            if shown == parent && depth <= all.len() {
                tree.push((depth, account));
                below(Some(&account.name), depth + 1, all, tree);
            }
        }
    }
    let mut tree = Vec::new();
    below(None, 0, accounts, &mut tree);
    tree
}
