//! Bodies of the API that are about policy: accounts, users, QOS, reservations, licences, priorities, shares, quotas.
//!
//! Records have the keys of their tables in gmodel, by [`crate::record_json`]: those of the TOML in gpuctld.toml(5), times with their unit. GPUs are numbers by type, in which `gpu` is all types together:
//! `{"h100": 16, "gpu": 32}`. An edit is a set of keys to change; `null` takes a key's bound away.

use gmodel::Instant;
use gmodel::policy::{Account, Qos, Reservation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// GPUs by type; `gpu` is all types together.
pub type Gpus = BTreeMap<String, f64>;

/// A change of one record. `+KEY` and `-KEY` add to and take from a list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyEdit {
    /// The record is new: one that exists is refused. Otherwise one that does not exist is.
    pub create: bool,
    pub change: BTreeMap<String, serde_json::Value>,
}

/// An account: its record, and what it holds now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AccountRow {
    /// Its budgets have the keys of [`BudgetUse`], too.
    #[serde(flatten, with = "crate::record_json")]
    pub account: Account,
    /// GPUs held by it and those below it, within its guarantee and beyond.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub guaranteed_held: Gpus,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub borrowed_held: Gpus,
    /// What runs of QOS that are outside of quotas hold: limits count it, guarantees do not.
    #[serde(skip_serializing_if = "Gpus::is_empty")]
    pub outside_held: Gpus,
    /// Where it is written, `FILE:LINE`; absent for what `gadm` made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// What is used of a budget; an older controller says nothing of it. Not read back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetUse {
    /// In the present period, with what runs now so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_gpu_hours: Option<f64>,
    /// What runs now may still use in it by their time limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promised_gpu_hours: Option<f64>,
    /// When the next period begins, with nothing used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resets: Option<Instant>,
}

/// A quality of service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QosRow {
    #[serde(flatten, with = "crate::record_json")]
    pub qos: Qos,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// A reservation. One of `nodes`, `node_count` and `gpus` says what is reserved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReservationRow {
    #[serde(flatten, with = "crate::record_json")]
    pub reservation: Reservation,
    /// `ACTIVE`, `INACTIVE`, or `OVER`.
    pub state: String,
    /// The window that holds now, or the next one.
    pub window_start: Option<Instant>,
    pub window_end: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// A licence of the cluster, and how many of it running jobs hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LicenceRow {
    pub name: String,
    pub total: u32,
    pub used: u32,
    pub free: u32,
}

/// A policy as TOML.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyText {
    pub schema: u32,
    /// Name of the file it is from, for messages.
    pub name: String,
    pub toml: String,
    /// Of an import: say what would change, and change nothing.
    pub dry_run: bool,
}

/// A change of an account, user, QOS or reservation by a command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyEventRow {
    pub at: Option<Instant>,
    /// The author of the change.
    pub by: String,
    /// `set account`, `remove user`, `import policy`.
    pub action: String,
    /// Of the record; empty where all were replaced.
    pub name: String,
    /// Of a user's record: the account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The record since, as JSON, for people.
    pub info: String,
}
