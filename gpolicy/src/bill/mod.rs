//! What runs cost: the runs of a month, cut where a price may change, as lines of exact amounts.
//!
//! A run's billed time is spread evenly between its start and its end, so that the parts of a run add up to the whole however
//! it is cut. A line sums all that has the same account, user, partition, QOS, tags, resource, price and ending. Its amount is
//! rounded once, to a millionth of the currency, halves away from zero; totals are sums of lines. Pure: no clock, no I/O.

mod line;
mod tariff;

pub use line::{BillLine, amount_micro};
pub use tariff::{PriceWindow, Tariff};

use gmodel::Timestamp;
use gmodel::policy::price::{CPU, Ending, MEMORY};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a run holds of one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeldResource {
    /// A GPU type, `cpu` or `memory`.
    pub kind: String,
    /// A MIG profile, `share`, or nothing for whole ones.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// Thousandths of GPUs, CPUs or GiB.
    pub milli: u64,
    /// Pieces: MIG slices, shares, whole GPUs.
    pub pieces: u64,
}

/// The word in `part` of shares of a GPU.
pub const SHARE: &str = "share";

impl HeldResource {
    /// As lines name it: `h100`, `h100/1g.10gb`, `h100/share`, `cpu`.
    pub fn name(&self) -> String {
        match self.part.as_str() {
            "" => self.kind.clone(),
            part => format!("{}/{part}", self.kind),
        }
    }

    pub fn is_gpu(&self) -> bool {
        ![CPU, MEMORY].contains(&self.kind.as_str())
    }
}

/// What runs have in common that are billed together.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BilledKind {
    pub account: String,
    pub user: String,
    pub partition: String,
    pub qos: String,
    pub tags: Vec<String>,
    pub ending: Ending,
    /// Still running, in a month that is not over.
    pub open: bool,
    pub held: Vec<HeldResource>,
}

/// The time of a run that a bill is about: from its start, or from the end of the last closed month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BilledTime {
    pub start: Timestamp,
    pub end: Timestamp,
    /// What is billed of it, all told; spread evenly from start to end. Below zero where a closed month billed too much.
    pub millis: i64,
}

impl BilledTime {
    /// What of it falls before a time.
    fn until(&self, at: Timestamp) -> i64 {
        let length = self.end.0.saturating_sub(self.start.0);
        if length <= 0 {
            return if at > self.start { self.millis } else { 0 };
        }
        let passed = at.0.clamp(self.start.0, self.end.0) - self.start.0;
        let share = i128::from(self.millis) * i128::from(passed);
        i64::try_from(share.div_euclid(i128::from(length))).unwrap_or(i64::MAX)
    }

    /// What of it falls between two times, the first before the second.
    pub fn part(&self, from: Timestamp, to: Timestamp) -> i64 {
        self.until(to) - self.until(from)
    }
}

/// Adds up runs under a tariff.
#[derive(Debug)]
pub struct BillBook<'t> {
    tariff: &'t Tariff,
    /// With milliseconds by pieces of the tariff: most kinds are in few, and there may be as many kinds as runs.
    kinds: Vec<(BilledKind, BTreeMap<usize, i64>)>,
}

impl<'t> BillBook<'t> {
    pub fn new(tariff: &'t Tariff) -> Self {
        Self {
            tariff,
            kinds: Vec::new(),
        }
    }

    /// The number of a new kind; the caller gives equal kinds one number.
    pub fn kind(&mut self, kind: BilledKind) -> usize {
        self.kinds.push((kind, BTreeMap::new()));
        self.kinds.len() - 1
    }

    /// Adds a run of a kind: its part of each piece of the tariff's time.
    pub fn add(&mut self, kind: usize, time: &BilledTime) {
        let cuts = self.tariff.cuts();
        let sums = &mut self.kinds[kind].1;
        let first = cuts.partition_point(|cut| *cut <= time.start);
        let mut before = time.until(cuts[first.saturating_sub(1)]);
        for (at, cut) in cuts.iter().enumerate().skip(first.max(1)) {
            let until = time.until(*cut);
            if until != before {
                let sum = sums.entry(at - 1).or_default();
                *sum = sum.saturating_add(until - before);
            }
            before = until;
            if *cut >= time.end && *cut > time.start {
                break;
            }
        }
    }

    /// The lines, in order.
    pub fn lines(&self) -> Vec<BillLine> {
        let mut sums: BTreeMap<BillLine, Sums> = BTreeMap::new();
        for (kind, pieces) in &self.kinds {
            for (piece, millis) in pieces.iter().filter(|(_, millis)| **millis != 0) {
                for held in &kind.held {
                    if let Some(line) = self.tariff.line(kind, held, *piece) {
                        let sum = sums.entry(line).or_default();
                        sum.add(held, *millis);
                    }
                }
            }
        }
        let lines = sums.into_iter();
        lines
            .map(|(line, sums)| line.with(sums.milli_ms, sums.piece_ms))
            .collect()
    }
}

#[derive(Default)]
struct Sums {
    milli_ms: i128,
    piece_ms: i128,
}

impl Sums {
    fn add(&mut self, held: &HeldResource, millis: i64) {
        let times = |count: u64| i128::from(count).saturating_mul(i128::from(millis));
        self.milli_ms = self.milli_ms.saturating_add(times(held.milli));
        let pieces = held.pieces.saturating_mul(1000);
        self.piece_ms = self.piece_ms.saturating_add(times(pieces));
    }
}

#[cfg(test)]
mod tests;
