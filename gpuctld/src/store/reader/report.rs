//! The usage report: GPU-hours, CPU-hours and jobs of the part of each run that lies in a period, in groups.
//!
//! Time counts from a run's start to the end of its last process. A MIG instance or share counts by its
//! thousandths of a GPU, as its run row says. Runs that never started are not charged.

use super::{Answer, ReadFailure};
use gmodel::policy::Price;
use gmodel::{JobId, Timestamp};
use gwire::api::ReportRow;
use rusqlite::{Connection, Row};
use std::collections::{BTreeMap, BTreeSet};

/// What a report can be grouped by.
pub const GROUPS: [&str; 6] = ["account", "user", "partition", "gpu-type", "tag", "class"];
const MILLI_HOURS: f64 = 3_600_000.0;

#[derive(Default)]
struct Sum {
    /// Thousandths of a GPU times milliseconds.
    gpu: u128,
    /// CPUs times milliseconds.
    cpu: u128,
    jobs: BTreeSet<JobId>,
    /// Thousandths of the currency.
    cost_milli: f64,
}

/// Prices by type, each list by date.
pub type Prices = BTreeMap<String, Vec<Price>>;

/// A run's part in the period.
struct Part {
    job: JobId,
    from: Timestamp,
    millis: u64,
    cpus: u64,
    gpus: BTreeMap<String, u64>,
    tags: Vec<String>,
}

pub fn report(
    db: &Connection,
    by: &[String],
    from: Timestamp,
    to: Timestamp,
    now: Timestamp,
    prices: &Prices,
) -> Answer<Vec<ReportRow>> {
    if let Some(unknown) = by.iter().find(|group| !GROUPS.contains(&group.as_str())) {
        return Err(ReadFailure::Question(format!(
            "--by {unknown}: a report is grouped by any of {}",
            GROUPS.join(",")
        )));
    }
    const COLUMNS: &str = "job, account, user, partition, gpus, tags, cpus, start_ms, end_ms, class";
    // Each half by its own index.
    let sql = format!(
        "SELECT {COLUMNS} FROM runs WHERE end_ms >= ?1 AND start_ms < ?2
         UNION ALL SELECT {COLUMNS} FROM runs WHERE live = 1 AND end_ms IS NULL AND start_ms < ?2"
    );
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query((from.0, to.0))?;
    let mut sums = BTreeMap::<Vec<String>, Sum>::new();
    while let Some(row) = rows.next()? {
        let part = part(row, from, to, now)?;
        let costs = costs(&part, prices);
        for (group, share_milli) in groups(row, by, &part)? {
            let sum = sums.entry(group).or_default();
            let millis = u128::from(part.millis);
            let gpus: u128 = share_milli.gpu.into();
            sum.gpu += gpus * millis;
            sum.cpu += u128::from(part.cpus) * millis * u128::from(share_milli.cpu) / 1000;
            sum.jobs.insert(part.job);
            sum.cost_milli += match share_milli.gpu_type {
                Some(gpu_type) => costs.get(gpu_type).copied().unwrap_or(0.0),
                None => costs.values().sum(),
            };
        }
    }
    let rows = sums.into_iter().map(|(group, sum)| ReportRow {
        group,
        jobs: sum.jobs.len() as u64,
        gpu_hours: sum.gpu as f64 / 1000.0 / MILLI_HOURS,
        cpu_hours: sum.cpu as f64 / MILLI_HOURS,
        cost: (!prices.is_empty()).then_some(sum.cost_milli / 1000.0),
    });
    Ok(rows.collect())
}

fn part(row: &Row<'_>, from: Timestamp, to: Timestamp, now: Timestamp) -> Answer<Part> {
    let start = Timestamp(row.get(7)?).max(from);
    let end = Timestamp(row.get::<_, Option<i64>>(8)?.unwrap_or(now.0)).min(to);
    Ok(Part {
        job: JobId(row.get(0)?),
        from: start,
        millis: end.since_millis(start).unsigned_abs(),
        cpus: row.get(6)?,
        gpus: serde_json::from_str(row.get_ref(4)?.as_str().unwrap_or("{}"))?,
        tags: serde_json::from_str(row.get_ref(5)?.as_str().unwrap_or("[]"))?,
    })
}

/// What a run's part costs by type, thousandths of the currency: cut where a price changes, nothing before the first.
fn costs<'p>(part: &'p Part, prices: &Prices) -> BTreeMap<&'p str, f64> {
    let to = part.from.plus_millis(i64::try_from(part.millis).unwrap_or(i64::MAX));
    let cost = |(gpu_type, milli): (&'p String, &u64)| {
        let list = prices.get(gpu_type)?;
        let mut sum = 0.0;
        for (at, price) in list.iter().enumerate() {
            let until = list.get(at + 1).map_or(to, |next| next.from.min(to));
            let millis = until.since_millis(price.from.max(part.from));
            sum += millis as f64 / MILLI_HOURS * (*milli as f64 / 1000.0) * price.per_gpu_hour_milli as f64;
        }
        Some((gpu_type.as_str(), sum))
    };
    part.gpus.iter().filter_map(cost).collect()
}

/// What of a run falls into one group: thousandths of GPUs (of one type, if they are parted), and thousandths of its CPUs.
#[derive(Clone, Copy)]
struct Falls<'p> {
    gpu: u64,
    cpu: u64,
    gpu_type: Option<&'p str>,
}

/// A run falls into one group, into one per GPU type (its CPUs in proportion), and into one per tag in full.
fn groups<'p>(row: &Row<'_>, by: &[String], part: &'p Part) -> Answer<Vec<(Vec<String>, Falls<'p>)>> {
    let whole = Falls { gpu: part.gpus.values().sum(), cpu: 1000, gpu_type: None };
    let mut groups = vec![(Vec::with_capacity(by.len()), whole)];
    for word in by {
        let column = match word.as_str() {
            "account" => 1,
            "user" => 2,
            "partition" => 3,
            "class" => 9,
            "gpu-type" => {
                groups = fan_out(groups, &by_type(part, whole.gpu));
                continue;
            }
            _ => {
                let tags: Vec<_> = part.tags.iter().map(|tag| (tag.as_str(), None)).collect();
                groups = fan_out(groups, if tags.is_empty() { &[("", None)] } else { &tags });
                continue;
            }
        };
        let value = row.get::<_, Option<String>>(column)?.unwrap_or_default();
        for (group, _) in &mut groups {
            group.push(value.clone());
        }
    }
    Ok(groups)
}

fn by_type(part: &Part, all: u64) -> Vec<(&str, Option<Falls<'_>>)> {
    if all == 0 {
        return vec![("", None)];
    }
    let share = |gpu_type, milli: u64| Some(Falls { gpu: milli, cpu: milli * 1000 / all, gpu_type: Some(gpu_type) });
    part.gpus.iter().map(|(gpu_type, milli)| (gpu_type.as_str(), share(gpu_type.as_str(), *milli))).collect()
}

fn fan_out<'p>(groups: Vec<(Vec<String>, Falls<'p>)>, values: &[(&str, Option<Falls<'p>>)]) -> Vec<(Vec<String>, Falls<'p>)> {
    let mut all = Vec::with_capacity(groups.len() * values.len());
    for (group, falls) in &groups {
        for (value, share) in values {
            let mut group = group.clone();
            group.push((*value).to_owned());
            all.push((group, share.unwrap_or(*falls)));
        }
    }
    all
}
