//! The prices of a time, cut into pieces in each of which every price stays the same.

use super::line::BillLine;
use super::{BilledKind, HeldResource, SHARE};
use gmodel::policy::PriceBook;
use gmodel::policy::price::{Price, WeekHours, list_at};
use gmodel::{TimeZone, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

const DAY_MILLIS: i64 = 86_400_000;
const MINUTE_MILLIS: i64 = 60_000;

/// When a price with hours of the week counts: from an instant to another.
pub type PriceWindow = (Timestamp, Timestamp);

/// The prices between two instants.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tariff {
    book: PriceBook,
    /// First and last instant, and what lies between.
    cuts: Vec<Timestamp>,
    /// By hours as written: when they are, in order.
    windows: BTreeMap<String, Vec<PriceWindow>>,
}

impl Tariff {
    /// The prices of `from` up to but not including `to`, which is later; hours are those of the zone's clock.
    pub fn new(book: PriceBook, zone: &TimeZone, from: Timestamp, to: Timestamp) -> Self {
        let prices = || book.prices.values().flatten();
        let hours: BTreeSet<(String, (u8, u16, u16))> = prices()
            .filter_map(|price| price.when.hours)
            .map(|hours| (hours.to_string(), (hours.days, hours.from, hours.to)))
            .collect();
        let windows: BTreeMap<String, Vec<PriceWindow>> = hours
            .into_iter()
            .map(|(text, (days, first, last))| {
                let hours = WeekHours {
                    days,
                    from: first,
                    to: last,
                };
                (text, windows(&hours, zone, from, to))
            })
            .collect();
        let dates = prices().map(|price| price.from);
        let rules = book.charging.iter().map(|rules| rules.from);
        let edges = windows.values().flatten().flat_map(|(a, b)| [*a, *b]);
        let within = |at: &Timestamp| from < *at && *at < to;
        let mut cuts: BTreeSet<Timestamp> =
            dates.chain(rules).chain(edges).filter(within).collect();
        cuts.extend([from, to.max(from.plus_millis(1))]);
        Self {
            cuts: cuts.into_iter().collect(),
            windows,
            book,
        }
    }

    pub fn book(&self) -> &PriceBook {
        &self.book
    }

    pub fn windows(&self) -> &BTreeMap<String, Vec<PriceWindow>> {
        &self.windows
    }

    pub(super) fn cuts(&self) -> &[Timestamp] {
        &self.cuts
    }

    /// The price of a resource in a partition and a QOS from an instant on, until the next cut.
    fn price(&self, kind: &BilledKind, held: &HeldResource, at: Timestamp) -> Option<&Price> {
        let list = list_at(self.book.prices.get(&held.kind)?, at)?;
        list.iter().find(|price| self.holds(price, kind, held, at))
    }

    fn holds(&self, price: &Price, kind: &BilledKind, held: &HeldResource, at: Timestamp) -> bool {
        let when = &price.when;
        let is = |asked: &Option<String>, is: &str| asked.as_ref().is_none_or(|asked| asked == is);
        is(&when.mig, &held.part)
            && (!when.share || held.part == SHARE)
            && is(&when.partition, &kind.partition)
            && is(&when.qos, &kind.qos)
            && when.hours.is_none_or(|hours| {
                let windows = self.windows.get(&hours.to_string());
                windows.is_some_and(|windows| {
                    let after = windows.partition_point(|(from, _)| *from <= at);
                    after
                        .checked_sub(1)
                        .is_some_and(|last| at < windows[last].1)
                })
            })
    }

    /// The line of a resource in a piece, without amounts. CPUs and memory without a price have none.
    pub(super) fn line(
        &self,
        kind: &BilledKind,
        held: &HeldResource,
        piece: usize,
    ) -> Option<BillLine> {
        let at = self.cuts[piece];
        let price = self.price(kind, held, at);
        if price.is_none() && !held.is_gpu() {
            return None;
        }
        Some(BillLine {
            account: kind.account.clone(),
            user: kind.user.clone(),
            partition: kind.partition.clone(),
            qos: kind.qos.clone(),
            tags: kind.tags.clone(),
            resource: held.name(),
            list: price.map(|price| price.from),
            rate_micro: price.map_or(0, |price| price.micro_per_hour),
            per_slice: price.is_some_and(|price| price.per_slice),
            ending: kind.ending,
            percent: self.book.percent_at(kind.ending, at),
            open: kind.open,
            ..BillLine::default()
        })
    }
}

/// The windows of hours between two instants. A window begins and ends when a clock of the place first shows its times; one that
/// the clock skips has no length.
fn windows(hours: &WeekHours, zone: &TimeZone, from: Timestamp, to: Timestamp) -> Vec<PriceWindow> {
    let day_of = |at: Timestamp| zone.local_millis(at).div_euclid(DAY_MILLIS);
    let mut found = Vec::new();
    for day in day_of(from) - 1..=day_of(to) + 1 {
        // 1970-01-01 was a Thursday.
        if !hours.is_on((day + 3).rem_euclid(7) as u8) {
            continue;
        }
        let at = |minute: u16| zone.at_local(day * DAY_MILLIS + i64::from(minute) * MINUTE_MILLIS);
        let (begin, end) = (at(hours.from).max(from), at(hours.to).min(to));
        if begin < end {
            found.push((begin, end));
        }
    }
    found
}
