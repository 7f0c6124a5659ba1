//! Prices by GPU type, CPU and memory; what a run costs that ended by no will of its user. `[[price]]` and `[[charging]]` in TOML.
//!
//! Of one kind (a GPU type, CPUs, memory) all prices with the same `from` are a list. The list in force is the one with the latest
//! `from` that has come, alone; in it the first price counts whose conditions all hold.

use crate::time::Timestamp;
use crate::words;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// What is priced beside GPU types.
pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
/// Name of the charging rules where prices are noted as used.
pub const CHARGING: &str = "charging";

/// Prices by kind: by `from`, those of one list as the file has them.
pub type Prices = BTreeMap<String, Vec<Price>>;

/// What an hour of a GPU, a CPU or a GiB costs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Price {
    pub from: Timestamp,
    /// Millionths of the currency.
    pub micro_per_hour: u64,
    /// Of a MIG slice as a whole, not of its part of the GPU.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub per_slice: bool,
    #[serde(skip_serializing_if = "PriceCondition::is_none")]
    pub when: PriceCondition,
}

/// All of it must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PriceCondition {
    /// Slices of this MIG profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<String>,
    /// Shares of a GPU.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub share: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hours: Option<WeekHours>,
}

impl PriceCondition {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Hours of the week by the site's clock: on each of some days the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeekHours {
    /// Bit 0 is Monday.
    pub days: u8,
    /// Minutes since midnight; the end is 1440 at most.
    pub from: u16,
    pub to: u16,
}

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const MINUTES_OF_DAY: u16 = 1440;

impl WeekHours {
    /// Reads `mon-fri 08:00-18:00`, `sat,sun 00:00-24:00`.
    pub fn parse(text: &str) -> Option<Self> {
        let (days, hours) = text.trim().split_once(' ')?;
        let day = |name: &str| {
            DAYS.iter()
                .position(|day| day.eq_ignore_ascii_case(name.trim()))
        };
        let mut bits = 0;
        for part in days.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (day(first)?, day(last)?);
            (first <= last).then_some(())?;
            (first..=last).for_each(|day| bits |= 1 << day);
        }
        let minute = |text: &str| {
            let (hour, minute) = text.trim().split_once(':')?;
            let two = |text: &str| {
                (text.len() == 2 && text.bytes().all(|c| c.is_ascii_digit()))
                    .then(|| text.parse::<u16>().ok())?
            };
            let (hour, minute) = (two(hour)?, two(minute)?);
            let minutes = hour * 60 + minute;
            (minute < 60 && minutes <= MINUTES_OF_DAY).then_some(minutes)
        };
        let (from, to) = hours.trim().split_once('-')?;
        let (from, to) = (minute(from)?, minute(to)?);
        (from < to).then_some(Self {
            days: bits,
            from,
            to,
        })
    }

    /// Whether they are on a day, counted from Monday.
    pub const fn is_on(&self, weekday: u8) -> bool {
        self.days >> weekday & 1 == 1
    }
}

impl Serialize for WeekHours {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WeekHours {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("no hours of the week"))
    }
}

impl fmt::Display for WeekHours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = DAYS.iter().enumerate();
        let days: Vec<&str> = days
            .filter(|(day, _)| self.is_on(*day as u8))
            .map(|(_, name)| *name)
            .collect();
        let clock = |minutes: u16| format!("{:02}:{:02}", minutes / 60, minutes % 60);
        write!(
            f,
            "{} {}-{}",
            days.join(","),
            clock(self.from),
            clock(self.to)
        )
    }
}

/// Whether a run ended by no will of its user: some are charged less for it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It goes on, or ended in any other way.
    #[default]
    Own,
    NodeFault,
    Preempted,
    Requeued,
}

words!(Ending {
    Own = "own",
    NodeFault = "node-fault",
    Preempted = "preempted",
    Requeued = "requeued",
});

impl Ending {
    /// By the state that a run ended in, as accounting has it.
    pub fn of_state(state: &str) -> Self {
        match state {
            "NODE_FAIL" => Self::NodeFault,
            "PREEMPTED" => Self::Preempted,
            "REQUEUED" => Self::Requeued,
            _ => Self::Own,
        }
    }
}

/// `[[charging]]`: what part of its price a run costs by its end, hundredths; from a date on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Charging {
    pub from: Timestamp,
    pub node_fault: u8,
    pub preempted: u8,
    pub requeued: u8,
}

impl Default for Charging {
    fn default() -> Self {
        Self {
            from: Timestamp(0),
            node_fault: 0,
            preempted: 100,
            requeued: 100,
        }
    }
}

impl Charging {
    pub const fn percent(&self, ending: Ending) -> u8 {
        match ending {
            Ending::Own => 100,
            Ending::NodeFault => self.node_fault,
            Ending::Preempted => self.preempted,
            Ending::Requeued => self.requeued,
        }
    }
}

/// What a site says of money: `[[price]]`, `[[charging]]`, `currency`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PriceBook {
    /// For people: `EUR`.
    pub currency: String,
    pub prices: Prices,
    /// In the order of their dates.
    pub charging: Vec<Charging>,
}

impl PriceBook {
    /// The first price without a condition in the list that is in force: what reports and forecasts count with.
    pub fn price_at(&self, kind: &str, at: Timestamp) -> Option<&Price> {
        let list = list_at(self.prices.get(kind)?, at)?;
        list.iter().find(|price| price.when.is_none())
    }

    /// Whether one number says what a GPU of a type costs at a time.
    pub fn is_plain(&self) -> bool {
        self.prices
            .values()
            .flatten()
            .all(|price| price.when.is_none())
    }

    /// What a run costs by its end at a time, hundredths.
    pub fn percent_at(&self, ending: Ending, at: Timestamp) -> u8 {
        let rules = self.charging.iter().rev().find(|rules| rules.from <= at);
        rules.map_or(Charging::default().percent(ending), |rules| {
            rules.percent(ending)
        })
    }
}

/// The list that is in force at a time, of a kind's prices.
pub fn list_at(prices: &[Price], at: Timestamp) -> Option<&[Price]> {
    let end = prices.partition_point(|price| price.from <= at);
    let from = prices[..end].last()?.from;
    let begin = prices.partition_point(|price| price.from < from);
    Some(&prices[begin..end])
}

/// Millionths as `-12.50`, with at least so many digits behind the point and no more than say something.
pub fn money_text(micro: i64, digits: usize) -> String {
    let sign = if micro < 0 { "-" } else { "" };
    let (whole, part) = (
        micro.unsigned_abs() / 1_000_000,
        format!("{:06}", micro.unsigned_abs() % 1_000_000),
    );
    let kept = part.trim_end_matches('0').len().max(digits).min(6);
    match kept {
        0 => format!("{sign}{whole}"),
        _ => format!("{sign}{whole}.{}", &part[..kept]),
    }
}

/// Reads what [`money_text`] writes: a number with six digits behind the point at most.
pub fn money_micro(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > 6 {
        return None;
    }
    let part: i64 = format!("{part:0<6}").parse().ok()?;
    let whole: i64 = whole.parse().ok()?;
    Some(sign * whole.checked_mul(1_000_000)?.checked_add(part)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_read_as_they_are_written() {
        let hours = WeekHours::parse("mon-fri 08:00-18:30").unwrap();
        assert_eq!((hours.days, hours.from, hours.to), (0b1_1111, 480, 1110));
        for text in [
            "mon,tue,wed,thu,fri 08:00-18:30",
            "sat,sun 00:00-24:00",
            "wed 09:00-09:01",
        ] {
            assert_eq!(WeekHours::parse(text).unwrap().to_string(), text);
        }
        for bad in [
            "",
            "mon",
            "fri-mon 08:00-18:00",
            "mon 18:00-08:00",
            "mon 8:00-9:00",
            "mon 08:60-09:00",
            "mon 00:00-24:01",
            "day 00:00-24:00",
            "mon 00:00-00:00",
        ] {
            assert_eq!(WeekHours::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_latest_list_that_has_come_is_in_force_alone() {
        let price = |from, micro_per_hour| Price {
            from: Timestamp(from),
            micro_per_hour,
            ..Price::default()
        };
        let prices = [price(10, 1), price(10, 2), price(20, 3)];
        let micros = |at| {
            list_at(&prices, Timestamp(at)).map(|list| {
                list.iter()
                    .map(|price| price.micro_per_hour)
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(micros(9), None);
        assert_eq!(micros(10), Some(vec![1, 2]));
        assert_eq!(micros(20), Some(vec![3]));
    }
}
