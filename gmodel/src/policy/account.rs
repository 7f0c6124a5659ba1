//! Accounts: their tree, guarantees, budgets, users. Source of the words: sacctmgr(1); guarantees as in Kueue's quotas.

use super::limits::Limits;
use crate::gpu_amounts::GpuAmounts;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The account above all others. It has no record; its children have no parent.
pub const ROOT_ACCOUNT: &str = "root";

/// A group that jobs are charged to. Accounts form a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Account {
    pub name: String,
    /// `None`: directly below the root.
    pub parent: Option<String>,
    pub description: String,
    /// Shares among its siblings for fair share; 0 gets only what its siblings leave.
    pub shares: u32,
    /// GPUs that the account gets back when it asks. `None` in the whole tree: no quotas.
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
    /// Users that may edit this account, its jobs, and the accounts below it.
    pub coordinators: BTreeSet<String>,
    /// Empty, and neither `closed` nor `users_only`: open to all users. Otherwise only to these and to coordinators.
    pub users: BTreeMap<String, AccountUser>,
    /// `users` is the list also when it is empty, as after the removal of its last user.
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
    /// Open to all users, unless it is closed.
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
