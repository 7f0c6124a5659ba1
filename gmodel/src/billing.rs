//! What the controller keeps of bills: closed months, corrections, and the prices that were used.

use crate::policy::PriceBook;
use crate::policy::price::{CHARGING, Price};
use crate::{BlobId, Month, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most corrections of one month.
pub const MAX_CORRECTIONS: usize = 1_000;
/// Bound of a correction, millionths of the currency.
pub const MAX_CORRECTION_MICRO: i64 = 1_000_000_000_000_000;
pub const MAX_REASON_CHARS: usize = 200;

/// Bills as far as they are part of the controller's state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Billing {
    pub closed: BTreeMap<Month, ClosedMonth>,
    /// Of months that are not closed, in the order in which they were made.
    pub corrections: Vec<Correction>,
    /// Lists of prices by kind and date, and charging rules by date: those that a run was charged by. They count as they are here.
    pub used: UsedPrices,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsedPrices {
    pub lists: BTreeMap<String, BTreeMap<Timestamp, Vec<Price>>>,
    pub charging: BTreeMap<Timestamp, crate::policy::price::Charging>,
}

/// A bill that does not change any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedMonth {
    /// The stored bill: lines, prices, and the runs that went on.
    pub bill: BlobId,
    pub lines: u32,
    /// Millionths of the currency.
    pub total_micro: i64,
    pub at: Timestamp,
    pub by: String,
}

/// A signed line by an administrator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Correction {
    /// The month on whose bill it is.
    pub month: Month,
    pub account: String,
    pub amount_micro: i64,
    pub reason: String,
    pub by: String,
    pub at: Timestamp,
}

impl Billing {
    /// The month that corrections made now go to.
    pub fn open_month(&self, present: Month) -> Month {
        let last = self.closed.last_key_value();
        last.map_or(present, |(month, _)| month.next())
    }

    /// The site's prices, with those that were used as they were.
    pub fn prices(&self, files: &PriceBook) -> PriceBook {
        let mut book = files.clone();
        for (kind, lists) in &self.used.lists {
            let prices = book.prices.entry(kind.clone()).or_default();
            prices.retain(|price| !lists.contains_key(&price.from));
            prices.extend(lists.values().flatten().cloned());
            prices.sort_by_key(|price| price.from);
        }
        let used = &self.used.charging;
        book.charging
            .retain(|rules| !used.contains_key(&rules.from));
        book.charging.extend(used.values().cloned());
        book.charging.sort_by_key(|rules| rules.from);
        book
    }
}

impl UsedPrices {
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty() && self.charging.is_empty()
    }

    /// What is new of others.
    pub fn lacks(&self, other: Self) -> Self {
        let mut new = other;
        for (kind, lists) in &mut new.lists {
            let known = self.lists.get(kind);
            lists.retain(|from, _| known.is_none_or(|known| !known.contains_key(from)));
        }
        new.lists.retain(|_, lists| !lists.is_empty());
        new.charging
            .retain(|from, _| !self.charging.contains_key(from));
        new
    }

    pub fn add(&mut self, other: &Self) {
        for (kind, lists) in &other.lists {
            let known = self.lists.entry(kind.clone()).or_default();
            known.extend(lists.iter().map(|(from, list)| (*from, list.clone())));
        }
        let charging = other.charging.iter();
        self.charging
            .extend(charging.map(|(from, rules)| (*from, rules.clone())));
    }

    /// The latest date of used prices of a kind.
    pub fn latest(&self, kind: &str) -> Option<Timestamp> {
        if kind == CHARGING {
            return self.charging.keys().next_back().copied();
        }
        self.lists.get(kind)?.keys().next_back().copied()
    }
}
