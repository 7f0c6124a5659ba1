//! The usage report: what was held, what was made of it, and how many jobs, of the part of each run that lies in a period,
//! in groups. Whole hours come from sums, what is left of the period from the runs themselves; both give the same. Sums know no
//! run's CPUs: a report by these reads all runs of its period.
//!
//! Time counts from a run's start to the end of its last process. A MIG instance or share counts by its
//! thousandths of a GPU, as its run row says. Runs that never started are not charged.

use super::stored::ReadResult;
use crate::store::error::ReadFailure;
use crate::store::usage_sums::{HOUR_MILLIS, SpentRun, SumKey, UsageAmounts, key_of, of_hours};
use gmodel::policy::price::{Prices, list_at};
use gmodel::{JobId, Timestamp};
use gwire::api::ReportRow;
use rusqlite::{Connection, Params};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// What a report can be grouped by.
pub const GROUPS: [&str; 8] = [
    "account",
    "user",
    "partition",
    "gpu-type",
    "tag",
    "class",
    "gpus",
    "cpus",
];
const MILLIS_PER_HOUR: f64 = 3_600_000.0;

/// What is charged together: a key, and where CPUs are told apart, those of a run; else 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UsageKind {
    key: SumKey,
    cpus: i64,
}

/// What is charged of one kind in the period.
#[derive(Debug, Default, PartialEq, Eq)]
struct UsageTotals {
    /// Runs with a part in the period.
    runs: i64,
    amounts: UsageAmounts,
    /// By GPU type: thousandths of GPUs times milliseconds times millionths of the currency an hour.
    cost: BTreeMap<String, u128>,
}

type UsageBook = BTreeMap<UsageKind, UsageTotals>;

pub fn report(
    db: &Connection,
    by: &[String],
    from: Timestamp,
    to: Timestamp,
    now: Timestamp,
    prices: &Prices,
) -> ReadResult<Vec<ReportRow>> {
    if let Some(unknown) = by.iter().find(|group| !GROUPS.contains(&group.as_str())) {
        return Err(ReadFailure::Question(format!(
            "--by {unknown}: a report is grouped by any of {}",
            GROUPS.join(",")
        )));
    }
    let period = ReportPeriod {
        from,
        to,
        now,
        prices,
        by_cpus: by.iter().any(|group| group == "cpus"),
    };
    period.check_kept(db)?;
    let book = period.book(db)?;
    let repeated = period.repeated(db, by)?;
    grouped(&book, by, &repeated, !prices.is_empty())
}

struct ReportPeriod<'a> {
    from: Timestamp,
    to: Timestamp,
    now: Timestamp,
    prices: &'a Prices,
    by_cpus: bool,
}

impl ReportPeriod<'_> {
    fn kind(&self, run: &SpentRun) -> UsageKind {
        UsageKind {
            key: run.key.clone(),
            cpus: if self.by_cpus { run.cpus } else { 0 },
        }
    }

    /// Of runs that are gone only the sums by whole hours are there.
    fn check_kept(&self, db: &Connection) -> ReadResult<()> {
        let pruned: i64 =
            db.query_row("SELECT pruned_before_ms FROM meta", [], |row| row.get(0))?;
        let gone = |what: String, hint: &str| {
            let until = Timestamp(pruned);
            Err(ReadFailure::Question(format!(
                "{what}, and of those that ended before {until} only the sums of whole hours are kept (keep_jobs_days). {hint}"
            )))
        };
        if self.by_cpus && self.from.0 < pruned {
            return gone(
                "a report by cpus reads the runs themselves".into(),
                "Begin later, or leave cpus out",
            );
        }
        let within = |at: &Timestamp| {
            at.0.rem_euclid(HOUR_MILLIS) != 0 && at.0 - at.0.rem_euclid(HOUR_MILLIS) < pruned
        };
        match self
            .pieces()
            .iter()
            .flat_map(|(from, to)| [*from, *to])
            .find(within)
        {
            Some(at) => gone(
                format!("{at} is within an hour, which is cut by the runs themselves"),
                "Begin and end at whole hours of UTC",
            ),
            None => Ok(()),
        }
    }

    fn book(&self, db: &Connection) -> ReadResult<UsageBook> {
        if self.by_cpus {
            return self.book_of_runs(db);
        }
        let mut book = UsageBook::new();
        let pieces = self.pieces();
        for (from, to) in &pieces {
            self.add_piece(db, *from, *to, &mut book)?;
        }
        // Those that were there when it began are counted by their hour's list, the others where they began.
        let hour = self.from.0.div_euclid(HOUR_MILLIS);
        each_of_hour(db, hour, |run| {
            if run.start < self.from && run.overlaps(self.from, self.to) {
                book.entry(self.kind(&run)).or_default().runs += 1;
            }
        })?;
        if self.from.0 == hour * HOUR_MILLIS {
            carried(db, hour, |key, runs| {
                book.entry(UsageKind { key, cpus: 0 }).or_default().runs += runs
            })?;
        }
        // What has no sums: runs that still run, and those of an older release that were not added yet.
        let open = "r.live = 1 AND r.end_ms IS NULL AND r.start_ms < ?1";
        let older = "r.summed = 0 AND r.end_ms IS NOT NULL AND r.start_ms < ?1";
        for condition in [open, older] {
            each_run(db, condition, [self.to.0], self.now, |run| {
                self.add_run(&pieces, &run, &mut book)
            })?;
        }
        Ok(book)
    }

    fn book_of_runs(&self, db: &Connection) -> ReadResult<UsageBook> {
        let mut book = UsageBook::new();
        let pieces = self.pieces();
        let mut add = |run: SpentRun| self.add_run(&pieces, &run, &mut book);
        each_run(
            db,
            "r.end_ms >= ?1 AND r.start_ms < ?2",
            [self.from.0, self.to.0],
            self.now,
            &mut add,
        )?;
        each_run(
            db,
            "r.live = 1 AND r.end_ms IS NULL AND r.start_ms < ?1",
            [self.to.0],
            self.now,
            &mut add,
        )?;
        Ok(book)
    }

    /// The period cut where a price changes: each piece has one price.
    fn pieces(&self) -> Vec<(Timestamp, Timestamp)> {
        let changes = self.prices.values().flatten().map(|price| price.from);
        let cuts: BTreeSet<Timestamp> = changes
            .filter(|at| (self.from..self.to).contains(at))
            .chain([self.from, self.to])
            .collect();
        let cuts: Vec<Timestamp> = cuts.into_iter().collect();
        cuts.windows(2).map(|pair| (pair[0], pair[1])).collect()
    }

    /// A run by itself: its part of each piece.
    fn add_run(&self, pieces: &[(Timestamp, Timestamp)], run: &SpentRun, book: &mut UsageBook) {
        if !run.overlaps(self.from, self.to) {
            return;
        }
        for (from, to) in pieces {
            self.charge(book, self.kind(run), run.part(*from, *to), *from);
        }
        book.entry(self.kind(run)).or_default().runs += 1;
    }

    fn add_piece(
        &self,
        db: &Connection,
        from: Timestamp,
        to: Timestamp,
        book: &mut UsageBook,
    ) -> ReadResult<()> {
        let first = -(-from.0).div_euclid(HOUR_MILLIS); // rounded up
        let end = to.0.div_euclid(HOUR_MILLIS);
        if first > end {
            return self.add_edge(db, from, to, book); // all of it within one hour
        }
        let (whole_from, whole_to) = (Timestamp(first * HOUR_MILLIS), Timestamp(end * HOUR_MILLIS));
        of_hours(db, first, end, |key, begun, amounts| {
            let kind = UsageKind { key, cpus: 0 };
            self.charge(book, kind.clone(), amounts, from);
            book.entry(kind).or_default().runs += begun;
        })?;
        self.add_edge(db, from, whole_from, book)?;
        self.add_edge(db, whole_to, to, book)
    }

    /// A time within one hour.
    fn add_edge(
        &self,
        db: &Connection,
        from: Timestamp,
        to: Timestamp,
        book: &mut UsageBook,
    ) -> ReadResult<()> {
        if from >= to {
            return Ok(());
        }
        each_of_hour(db, from.0.div_euclid(HOUR_MILLIS), |run| {
            self.charge(book, self.kind(&run), run.part(from, to), from);
            if (from..to).contains(&run.start) {
                book.entry(self.kind(&run)).or_default().runs += 1;
            }
        })
    }

    fn charge(&self, book: &mut UsageBook, kind: UsageKind, amounts: UsageAmounts, at: Timestamp) {
        if amounts == UsageAmounts::default() {
            return;
        }
        let priced = if self.prices.is_empty() {
            BTreeMap::new()
        } else {
            gpus(&kind.key)
        };
        let spent = book.entry(kind).or_default();
        spent.amounts.add(&amounts);
        for (gpu_type, milli) in priced {
            let price = self
                .prices
                .get(&gpu_type)
                .and_then(|list| list_at(list, at)?.first());
            let Some(price) = price else { continue };
            let millis = u128::from(amounts.0[0].unsigned_abs());
            *spent.cost.entry(gpu_type).or_default() +=
                u128::from(milli) * millis * u128::from(price.micro_per_hour);
        }
    }

    /// By how many runs a group has more than jobs: those of jobs that ran several times in the period.
    fn repeated(&self, db: &Connection, by: &[String]) -> ReadResult<BTreeMap<Vec<String>, i64>> {
        let again = "SELECT job FROM runs WHERE attempt > 1 AND end_ms >= ?1 AND start_ms < ?2
            UNION SELECT job FROM runs WHERE live = 1 AND attempt > 1 AND end_ms IS NULL AND start_ms < ?2";
        let mut statement = db.prepare_cached(again)?;
        let jobs = statement
            .query_map((self.from.0, self.to.0), |row| row.get(0))?
            .collect::<rusqlite::Result<Vec<u64>>>()?;
        let mut more = BTreeMap::new();
        for job in jobs.into_iter().map(JobId) {
            let mut runs = BTreeMap::<Vec<String>, i64>::new();
            let begun =
                "r.job = ?1 AND r.start_ms IS NOT NULL AND (r.end_ms IS NOT NULL OR r.live = 1)";
            each_run(db, begun, [job.0], self.now, |run| {
                if run.overlaps(self.from, self.to) {
                    groups(&self.kind(&run), by)
                        .into_iter()
                        .for_each(|(group, _)| *runs.entry(group).or_default() += 1);
                }
            })?;
            for (group, count) in runs {
                *more.entry(group).or_default() += count - 1;
            }
        }
        self.repeated_and_gone(db, by, &mut more)?;
        Ok(more)
    }

    /// As [`Self::repeated`], of jobs that are no longer kept.
    fn repeated_and_gone(
        &self,
        db: &Connection,
        by: &[String],
        more: &mut BTreeMap<Vec<String>, i64>,
    ) -> ReadResult<()> {
        let sql = "SELECT p.job, k.account, k.user, k.partition, k.class, k.gpus, k.tags FROM pruned_repeats p JOIN usage_keys k ON k.id = p.key
            WHERE p.end_ms >= ?1 AND p.start_ms < ?2 ORDER BY p.job";
        let mut runs = BTreeMap::<(u64, Vec<String>), i64>::new();
        let mut statement = db.prepare_cached(sql)?;
        let mut rows = statement.query((self.from.0, self.to.0))?;
        while let Some(row) = rows.next()? {
            let (job, kind) = (
                row.get(0)?,
                UsageKind {
                    key: key_of(row, 1)?,
                    cpus: 0,
                },
            );
            groups(&kind, by)
                .into_iter()
                .for_each(|(group, _)| *runs.entry((job, group)).or_default() += 1);
        }
        for ((_, group), count) in runs {
            *more.entry(group).or_default() += count - 1;
        }
        Ok(())
    }
}

/// Runs that are gone and were there when an hour began.
fn carried(db: &Connection, hour: i64, mut found: impl FnMut(SumKey, i64)) -> ReadResult<()> {
    let sql = "SELECT k.account, k.user, k.partition, k.class, k.gpus, k.tags, p.carried FROM pruned_hours p JOIN usage_keys k ON k.id = p.key
        WHERE p.hour = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([hour])?;
    while let Some(row) = rows.next()? {
        found(key_of(row, 0)?, row.get(6)?);
    }
    Ok(())
}

fn each_of_hour(db: &Connection, hour: i64, found: impl FnMut(SpentRun)) -> ReadResult<()> {
    let from = "run_hours h CROSS JOIN runs r ON r.job = h.job AND r.attempt = h.attempt WHERE h.hour = ?1";
    each(db, from, [hour], Timestamp(0), found)
}

fn each_run(
    db: &Connection,
    condition: &str,
    values: impl Params,
    now: Timestamp,
    found: impl FnMut(SpentRun),
) -> ReadResult<()> {
    each(db, &format!("runs r WHERE {condition}"), values, now, found)
}

fn each(
    db: &Connection,
    from: &str,
    values: impl Params,
    now: Timestamp,
    mut found: impl FnMut(SpentRun),
) -> ReadResult<()> {
    let mut statement = db.prepare_cached(&format!("SELECT {} FROM {from}", SpentRun::COLUMNS))?;
    let mut rows = statement.query(values)?;
    while let Some(row) = rows.next()? {
        found(SpentRun::of(row, now)?);
    }
    Ok(())
}

fn grouped(
    book: &UsageBook,
    by: &[String],
    repeated: &BTreeMap<Vec<String>, i64>,
    priced: bool,
) -> ReadResult<Vec<ReportRow>> {
    let mut sums = BTreeMap::<Vec<String>, (i64, ReportRow)>::new();
    for (kind, spent) in book
        .iter()
        .filter(|(_, spent)| spent.runs > 0 || spent.amounts != UsageAmounts::default())
    {
        for (group, falls) in groups(kind, by) {
            let (runs, row) = sums.entry(group).or_default();
            *runs += spent.runs;
            row.add(&charged(spent, &falls, priced));
        }
    }
    let rows = sums.into_iter().map(|(group, (runs, row))| {
        let jobs = runs - repeated.get(&group).copied().unwrap_or(0);
        ReportRow {
            jobs: jobs.max(0).unsigned_abs(),
            group,
            ..row
        }
    });
    let mut rows: Vec<ReportRow> = rows.collect();
    // Sizes by what they are, not as words.
    let sizes: Vec<usize> = (0..by.len())
        .filter(|at| ["gpus", "cpus"].contains(&by[*at].as_str()))
        .collect();
    if !sizes.is_empty() {
        rows.sort_by(|a, b| {
            (0..by.len()).fold(Ordering::Equal, |so_far, at| {
                so_far.then_with(|| in_order(&a.group[at], &b.group[at], sizes.contains(&at)))
            })
        });
    }
    Ok(rows)
}

fn in_order(a: &str, b: &str, is_size: bool) -> Ordering {
    let size = |text: &str| text.parse::<f64>().unwrap_or(0.0);
    if is_size {
        size(a).total_cmp(&size(b))
    } else {
        a.cmp(b)
    }
}

/// What of a key falls into one group: thousandths of GPUs, and the part of everything else.
struct GroupShare {
    gpu_milli: u64,
    part: f64,
    /// Where types are parted.
    gpu_type: Option<String>,
}

fn charged(spent: &UsageTotals, falls: &GroupShare, priced: bool) -> ReportRow {
    let [
        millis,
        cpu,
        cpu_used,
        mem,
        mem_peak,
        idle,
        busy,
        told,
        energy,
    ] = spent.amounts.0.map(|amount| amount as f64);
    let hours = |millis: f64| millis / MILLIS_PER_HOUR * falls.part;
    let gib_hours = |mib_secs: f64| mib_secs / 1024.0 / 3600.0 * falls.part;
    let cost: u128 = match &falls.gpu_type {
        Some(gpu_type) => spent.cost.get(gpu_type).copied().unwrap_or(0),
        None => spent.cost.values().sum(),
    };
    ReportRow {
        gpu_hours: falls.gpu_milli as f64 / 1000.0 * millis / MILLIS_PER_HOUR,
        cpu_hours: hours(cpu),
        cost: priced.then(|| cost as f64 / MILLIS_PER_HOUR / 1e9),
        cpu_used_hours: hours(cpu_used / 1000.0),
        mem_gib_hours: gib_hours(mem),
        mem_peak_gib_hours: gib_hours(mem_peak),
        gpu_idle_hours: hours(idle),
        gpu_busy_hours: hours(busy / 100.0),
        gpu_told_hours: hours(told),
        energy_kwh: energy / MILLIS_PER_HOUR / 1000.0 * falls.part,
        ..ReportRow::default()
    }
}

fn gpus(key: &SumKey) -> BTreeMap<String, u64> {
    serde_json::from_str(&key.gpus).unwrap_or_default()
}

/// A key falls into one group, into one per GPU type (the rest in proportion), and into one per tag in full.
fn groups(kind: &UsageKind, by: &[String]) -> Vec<(Vec<String>, GroupShare)> {
    let key = &kind.key;
    let gpus = gpus(key);
    let all: u64 = gpus.values().sum();
    let mut groups = vec![(Vec::with_capacity(by.len()), None)];
    for word in by {
        let values: Vec<(String, Option<u64>)> = match word.as_str() {
            "account" => vec![(key.account.clone(), None)],
            "user" => vec![(key.user.clone(), None)],
            "partition" => vec![(key.partition.clone(), None)],
            "class" => vec![(key.class.clone(), None)],
            "gpus" => vec![((all as f64 / 1000.0).to_string(), None)],
            "cpus" => vec![(kind.cpus.to_string(), None)],
            "gpu-type" if all > 0 => gpus
                .iter()
                .map(|(gpu_type, milli)| (gpu_type.clone(), Some(*milli)))
                .collect(),
            "gpu-type" => vec![(String::new(), None)],
            _ => tags(key).into_iter().map(|tag| (tag, None)).collect(),
        };
        groups = fan_out(groups, &values);
    }
    let falls = |of_type: Option<(String, u64)>| match of_type {
        Some((gpu_type, milli)) => GroupShare {
            gpu_milli: milli,
            part: milli as f64 / all as f64,
            gpu_type: Some(gpu_type),
        },
        None => GroupShare {
            gpu_milli: all,
            part: 1.0,
            gpu_type: None,
        },
    };
    groups
        .into_iter()
        .map(|(group, of_type)| (group, falls(of_type)))
        .collect()
}

/// Each tag once; one empty word for none.
fn tags(key: &SumKey) -> BTreeSet<String> {
    let tags: BTreeSet<String> = serde_json::from_str(&key.tags).unwrap_or_default();
    if tags.is_empty() {
        BTreeSet::from([String::new()])
    } else {
        tags
    }
}

type GroupPath = (Vec<String>, Option<(String, u64)>);

fn fan_out(groups: Vec<GroupPath>, values: &[(String, Option<u64>)]) -> Vec<GroupPath> {
    let mut all = Vec::with_capacity(groups.len() * values.len());
    for (group, of_type) in &groups {
        for (value, milli) in values {
            let mut group = group.clone();
            group.push(value.clone());
            let own = milli.map(|milli| (value.clone(), milli));
            all.push((group, own.or_else(|| of_type.clone())));
        }
    }
    all
}
