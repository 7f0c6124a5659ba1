//! Bodies of `/v1/bill`: what accounts owe for a month.

use gmodel::policy::price::Ending;
use gmodel::{Instant, Month};
use serde::{Deserialize, Serialize};

/// `GET /v1/bill`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bill {
    pub schema: u32,
    pub cluster: String,
    pub month: Month,
    pub from: Option<Instant>,
    pub to: Option<Instant>,
    pub currency: String,
    /// It does not change any more.
    pub closed: Option<Instant>,
    /// Runs that go on are counted up to here.
    pub until: Option<Instant>,
    /// What its lines are grouped by.
    pub by: Vec<String>,
    pub rows: Vec<BillRow>,
    /// The sum of the rows, millionths of the currency.
    pub total_micro: i64,
}

/// Lines of a bill that have the same groups, resource and rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct BillRow {
    pub group: Vec<String>,
    /// `h100`, `h100/1g.10gb`, `h100/share`, `cpu`, `memory`; empty in a correction.
    pub resource: String,
    /// The date of the list with its price; none where no price was in force.
    pub list: Option<Instant>,
    /// Millionths of the currency for an hour.
    pub rate_micro: u64,
    pub per_slice: bool,
    pub ending: Ending,
    /// Hundredths of the rate that are charged.
    pub percent: u8,
    /// Runs that still go on.
    pub open: bool,
    /// Of a correction.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Thousandths of GPUs (CPUs, GiB) times milliseconds.
    pub milli_ms: i64,
    /// What the rate is times.
    pub rated_milli_ms: i64,
    pub amount_micro: i64,
}

/// `POST /v1/bill/close`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillClose {
    pub month: Month,
}

/// `POST /v1/bill/correct`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillCorrection {
    pub account: String,
    pub amount_micro: i64,
    pub reason: String,
}
