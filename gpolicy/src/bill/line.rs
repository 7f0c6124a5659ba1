//! A line of a bill and its amount.

use gmodel::Timestamp;
use gmodel::policy::price::Ending;
use serde::{Deserialize, Serialize};

const MILLIS_PER_HOUR: i128 = 3_600_000;

/// All that runs of one account, user, partition, QOS and set of tags held of one resource at one price.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct BillLine {
    pub account: String,
    pub user: String,
    pub partition: String,
    pub qos: String,
    pub tags: Vec<String>,
    /// `h100`, `h100/1g.10gb`, `h100/share`, `cpu`, `memory`; empty in a correction.
    pub resource: String,
    /// The date of the list that has its price; `None`: no price was in force.
    pub list: Option<Timestamp>,
    /// Millionths of the currency for an hour of one.
    pub rate_micro: u64,
    /// The rate is for a MIG slice, not for the GPU that it is a part of.
    pub per_slice: bool,
    pub ending: Ending,
    /// Hundredths of the rate that are charged.
    pub percent: u8,
    /// Runs that still go on, counted up to now.
    pub open: bool,
    /// Of a correction: why.
    pub reason: String,
    /// Thousandths of GPUs (CPUs, GiB) times milliseconds.
    pub milli_ms: i64,
    /// What the rate is times: as `milli_ms`, or thousandths of slices.
    pub rated_milli_ms: i64,
    pub amount_micro: i64,
}

impl BillLine {
    /// With what was held and its amount.
    pub(super) fn with(self, milli_ms: i128, piece_ms: i128) -> Self {
        let rated = if self.per_slice { piece_ms } else { milli_ms };
        Self {
            milli_ms: narrow(milli_ms),
            rated_milli_ms: narrow(rated),
            amount_micro: amount_micro(rated, self.rate_micro, self.percent),
            ..self
        }
    }

    pub fn is_correction(&self) -> bool {
        !self.reason.is_empty()
    }
}

/// Thousandths times milliseconds at a rate an hour and so many hundredths of it: millionths of the currency, halves away from zero.
pub fn amount_micro(milli_ms: i128, rate_micro: u64, percent: u8) -> i64 {
    let whole = milli_ms.saturating_mul(i128::from(rate_micro) * i128::from(percent));
    let unit = 1000 * MILLIS_PER_HOUR * 100;
    let half = if whole < 0 { -unit / 2 } else { unit / 2 };
    narrow(whole.saturating_add(half) / unit)
}

fn narrow(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}
