//! Sums of use by the hour, by the day and by 32 days: a report over a long time reads them instead of runs.
//!
//! Owns the tables `usage_keys`, `usage_sums` and `run_hours`. A run is added in the transaction that writes its end. What
//! it used falls into a time by a closed form, so that the parts of a run add up to the whole exactly, however it is cut.

use gmodel::{RunId, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};
use std::array::from_fn;
use std::sync::LazyLock;

pub const HOUR_MILLIS: i64 = 3_600_000;
/// Lengths of the spans there are sums of, hours; each a multiple of the one before.
pub const SPANS_HOURS: [i64; 3] = [1, 24, 768];

/// What is summed, by the columns' names.
pub const AMOUNTS: [&str; 9] = [
    // Milliseconds of runs; the GPUs of a key times it are GPU-milliseconds.
    "millis",
    "cpu_millis",
    "cpu_used_micros",
    "mem_mib_secs",
    "mem_peak_mib_secs",
    // Of GPUs, where they were sampled.
    "idle_ms",
    "busy_percent_ms",
    "busy_told_ms",
    "energy_mj",
];

/// Amounts in the order of [`AMOUNTS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageAmounts(pub [i64; AMOUNTS.len()]);

impl UsageAmounts {
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(more);
        }
    }
    fn negative(&self) -> Self {
        Self(self.0.map(|amount| -amount))
    }
}

/// What reports are grouped by, as in the columns of `runs`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SumKey {
    pub account: String,
    pub user: String,
    pub partition: String,
    /// Empty where there were no quotas.
    pub class: String,
    /// Thousandths of GPUs by type, JSON.
    pub gpus: String,
    /// JSON.
    pub tags: String,
}

const KEY_COLUMNS: &str = "account, user, partition, class, gpus, tags";

/// A run that began, with what it held and used from start to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpentRun {
    pub id: RunId,
    pub key: SumKey,
    pub start: Timestamp,
    pub end: Timestamp,
    pub cpus: i64,
    pub whole: UsageAmounts,
}

impl SpentRun {
    /// Columns of `runs r` that [`Self::of`] reads.
    pub const COLUMNS: &str = "r.job, r.attempt, r.account, r.user, r.partition, coalesce(r.class, ''), r.gpus, r.tags, r.start_ms,
        r.end_ms, r.cpus, r.mem_bytes, r.cpu_micros, r.peak_bytes * r.nodes, coalesce(r.gpu_idle_ms, 0),
        coalesce(r.gpu_busy_percent_ms, 0), coalesce(r.gpu_busy_told_ms, 0), coalesce(r.gpu_energy_mj, 0), r.suspended_ms,
        r.suspended_since_ms, r.unheld_ms";

    /// A run that still runs counts up to `now`; the time in which it was suspended is not charged.
    pub fn of(row: &Row<'_>, now: Timestamp) -> rusqlite::Result<Self> {
        let start = Timestamp(row.get(8)?);
        let end = Timestamp(row.get::<_, Option<i64>>(9)?.unwrap_or(now.0)).max(start);
        let millis =
            (end.0 - start.0 - stood_still_ms(row, 18, end)? - row.get::<_, i64>(20)?).max(0);
        let mib_secs = |bytes: i64| clamp(i128::from(bytes >> 20) * i128::from(millis) / 1000);
        let (cpus, mem_bytes, cpu_used, peak): (i64, i64, i64, i64) =
            (row.get(10)?, row.get(11)?, row.get(12)?, row.get(13)?);
        let [idle, busy, told, energy] = [row.get(14)?, row.get(15)?, row.get(16)?, row.get(17)?];
        let whole = [
            millis,
            cpus.saturating_mul(millis),
            cpu_used,
            mib_secs(mem_bytes),
            mib_secs(peak),
            idle,
            busy,
            told,
            energy,
        ];
        Ok(Self {
            id: RunId::new(gmodel::JobId(row.get(0)?), row.get(1)?),
            key: key_of(row, 2)?,
            start,
            end,
            cpus,
            whole: UsageAmounts(whole),
        })
    }

    /// What of it falls between two instants, the first before the second.
    pub fn part(&self, from: Timestamp, to: Timestamp) -> UsageAmounts {
        let length = i128::from(self.end.0 - self.start.0);
        if length == 0 {
            return UsageAmounts::default();
        }
        let until = |at: Timestamp| i128::from(at.clamp(self.start, self.end).0 - self.start.0);
        let (from, to) = (until(from), until(to));
        let share = |whole: i64| {
            let whole = i128::from(whole);
            clamp(whole * to / length - whole * from / length)
        };
        UsageAmounts(self.whole.0.map(share))
    }

    /// Whether it is counted among the jobs of a time.
    pub fn overlaps(&self, from: Timestamp, to: Timestamp) -> bool {
        self.start < to && self.end >= from
    }
}

/// How long a run stood still until an instant, by its columns `suspended_ms` and the one after it.
pub fn stood_still_ms(row: &Row<'_>, first: usize, until: Timestamp) -> rusqlite::Result<i64> {
    let before: i64 = row.get(first)?;
    let since: Option<i64> = row.get(first + 1)?;
    Ok(before + since.map_or(0, |since| (until.0 - since).max(0)))
}

fn clamp(amount: i128) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

pub fn key_of(row: &Row<'_>, first: usize) -> rusqlite::Result<SumKey> {
    Ok(SumKey {
        account: row.get(first)?,
        user: row.get(first + 1)?,
        partition: row.get(first + 2)?,
        class: row.get(first + 3)?,
        gpus: row.get(first + 4)?,
        tags: row.get(first + 5)?,
    })
}

/// The run as its row has it and as the sums may have it, before its row is written again.
pub fn counted(db: &Connection, id: RunId) -> rusqlite::Result<Option<SpentRun>> {
    spent(db, id, "AND r.summed = 1")
}

/// Brings the sums up to date with a run's row, after it was written. `before` is what [`counted`] gave.
pub fn recount(db: &Connection, id: RunId, before: Option<SpentRun>) -> rusqlite::Result<()> {
    let after = spent(db, id, "")?;
    if before == after {
        return Ok(());
    }
    if let Some(before) = before {
        count(db, &before, -1)?;
    }
    if let Some(after) = after {
        count(db, &after, 1)?;
        db.prepare_cached("UPDATE runs SET summed = 1 WHERE job = ?1 AND attempt = ?2")?
            .execute((id.job.0, id.attempt))?;
    }
    Ok(())
}

fn spent(db: &Connection, id: RunId, condition: &str) -> rusqlite::Result<Option<SpentRun>> {
    let sql = format!(
        "SELECT {} FROM runs r WHERE r.job = ?1 AND r.attempt = ?2 AND r.start_ms IS NOT NULL AND r.end_ms IS NOT NULL {condition}",
        SpentRun::COLUMNS
    );
    db.prepare_cached(&sql)?
        .query_row((id.job.0, id.attempt), |row| {
            SpentRun::of(row, Timestamp(0))
        })
        .optional()
}

/// Adds a run to the sums, or takes it out again (`sign` is -1).
fn count(db: &Connection, run: &SpentRun, sign: i64) -> rusqlite::Result<()> {
    let key = key_number(db, &run.key)?;
    for span in SPANS_HOURS {
        let length = span * HOUR_MILLIS;
        let first = run.start.0.div_euclid(length);
        for block in first..=run.end.0.div_euclid(length) {
            let part = run.part(Timestamp(block * length), Timestamp((block + 1) * length));
            let part = if sign < 0 { part.negative() } else { part };
            let begun = if block == first { sign } else { 0 };
            let values = [span, block, key, begun].into_iter().chain(part.0);
            db.prepare_cached(&UPSERT)?
                .execute(params_from_iter(values))?;
        }
    }
    let hours = run.start.0.div_euclid(HOUR_MILLIS)..=run.end.0.div_euclid(HOUR_MILLIS);
    let sql = match sign {
        1 => "INSERT OR IGNORE INTO run_hours (hour, job, attempt) VALUES (?1,?2,?3)",
        _ => "DELETE FROM run_hours WHERE hour = ?1 AND job = ?2 AND attempt = ?3",
    };
    for hour in hours {
        db.prepare_cached(sql)?
            .execute(params![hour, run.id.job.0, run.id.attempt])?;
    }
    Ok(())
}

static UPSERT: LazyLock<String> = LazyLock::new(|| {
    let places: [String; AMOUNTS.len() + 4] = from_fn(|n| format!("?{}", n + 1));
    let sums = AMOUNTS
        .map(|name| format!("{name} = {name} + excluded.{name}"))
        .join(", ");
    format!(
        "INSERT INTO usage_sums (span, block, key, begun, {}) VALUES ({})
         ON CONFLICT (span, block, key) DO UPDATE SET begun = begun + excluded.begun, {sums}",
        AMOUNTS.join(", "),
        places.join(",")
    )
});

pub fn key_number(db: &Connection, key: &SumKey) -> rusqlite::Result<i64> {
    let words = [
        &key.account,
        &key.user,
        &key.partition,
        &key.class,
        &key.gpus,
        &key.tags,
    ];
    let found = db
        .prepare_cached(
            "SELECT id FROM usage_keys WHERE account = ?1 AND user = ?2 AND partition = ?3 AND class = ?4 AND gpus = ?5 AND tags = ?6",
        )?
        .query_row(words, |row| row.get(0))
        .optional()?;
    if let Some(id) = found {
        return Ok(id);
    }
    let sql = format!("INSERT INTO usage_keys ({KEY_COLUMNS}) VALUES (?1,?2,?3,?4,?5,?6)");
    db.prepare_cached(&sql)?.execute(words)?;
    Ok(db.last_insert_rowid())
}

/// Adds some of the runs that ended before there were sums, in one transaction; how many. None are left when it is 0.
pub fn count_older(db: &Connection, most: u32) -> rusqlite::Result<usize> {
    let transaction = db.unchecked_transaction()?;
    // Those that never began have nothing to add.
    let never = "UPDATE runs SET summed = 1 WHERE (job, attempt) IN (SELECT job, attempt FROM runs INDEXED BY runs_unsummed
        WHERE summed = 0 AND end_ms IS NOT NULL AND start_ms IS NULL LIMIT ?1)";
    let never = transaction.prepare_cached(never)?.execute([most])?;
    let sql = format!(
        "SELECT {} FROM runs r INDEXED BY runs_unsummed WHERE r.summed = 0 AND r.end_ms IS NOT NULL AND r.start_ms IS NOT NULL LIMIT ?1",
        SpentRun::COLUMNS
    );
    let runs: Vec<SpentRun> = transaction
        .prepare_cached(&sql)?
        .query_map([most], |row| SpentRun::of(row, Timestamp(0)))?
        .collect::<rusqlite::Result<_>>()?;
    for run in &runs {
        recount(&transaction, run.id, None)?;
    }
    transaction.commit()?;
    Ok(runs.len() + never)
}

/// Sums of whole hours by key: runs that began, and amounts. `first` up to but not including `end`.
pub fn of_hours(
    db: &Connection,
    first: i64,
    end: i64,
    mut found: impl FnMut(SumKey, i64, UsageAmounts),
) -> rusqlite::Result<()> {
    for (span, from, to) in spans(first, end) {
        let sums = AMOUNTS.map(|name| format!("sum({name})")).join(", ");
        let columns = KEY_COLUMNS
            .split(", ")
            .map(|name| format!("k.{name}"))
            .collect::<Vec<_>>()
            .join(", ");
        let sql = format!(
            "SELECT {columns}, s.* FROM (SELECT key, sum(begun), {sums} FROM usage_sums
                 WHERE span = ?1 AND block >= ?2 AND block < ?3 GROUP BY key) s JOIN usage_keys k ON k.id = s.key"
        );
        let mut statement = db.prepare_cached(&sql)?;
        let mut rows = statement.query([span, from, to].map(Value::from))?;
        while let Some(row) = rows.next()? {
            let mut amounts = UsageAmounts::default();
            for (at, amount) in amounts.0.iter_mut().enumerate() {
                *amount = row.get(8 + at)?;
            }
            found(key_of(row, 0)?, row.get(7)?, amounts);
        }
    }
    Ok(())
}

/// Whole hours as ranges of blocks, as few and as long ones as there are: `(span, first block, end)`.
fn spans(first: i64, end: i64) -> Vec<(i64, i64, i64)> {
    fn split(level: usize, first: i64, end: i64, found: &mut Vec<(i64, i64, i64)>) {
        if first >= end {
            return;
        }
        let span = SPANS_HOURS[level];
        let longer = SPANS_HOURS.get(level + 1).copied();
        let inner = longer.map(|longer| {
            (
                -(-first).div_euclid(longer) * longer,
                end.div_euclid(longer) * longer,
            )
        });
        match inner.filter(|(from, to)| from < to) {
            None => found.push((span, first / span, end / span)),
            Some((from, to)) => {
                split_edge(span, first, from, found);
                split(level + 1, from, to, found);
                split_edge(span, to, end, found);
            }
        }
    }
    fn split_edge(span: i64, first: i64, end: i64, found: &mut Vec<(i64, i64, i64)>) {
        if first < end {
            found.push((span, first / span, end / span));
        }
    }
    let mut found = Vec::new();
    split(0, first, end, &mut found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_of_a_run_add_up_to_it(
            start in 0i64..10_000_000, length in 0i64..20_000_000, used in 0i64..1_000_000_000, cuts in proptest::collection::vec(0i64..40_000_000, 0..9),
        ) {
            let whole = UsageAmounts([length, used, used / 3, 7, 0, 1, 2, 3, used]);
            let key = SumKey { account: String::new(), user: String::new(), partition: String::new(), class: String::new(), gpus: "{}".into(), tags: "[]".into() };
            let run = SpentRun { id: RunId::new(gmodel::JobId(1), 1), key, start: Timestamp(start), end: Timestamp(start + length), cpus: 1, whole };
            let mut cuts = cuts;
            cuts.extend([0, 40_000_000]);
            cuts.sort_unstable();
            let mut sum = UsageAmounts::default();
            for pair in cuts.windows(2) {
                sum.add(&run.part(Timestamp(pair[0]), Timestamp(pair[1])));
            }
            prop_assert_eq!(sum, if length == 0 { UsageAmounts::default() } else { whole });
        }

        #[test]
        fn spans_cover_each_hour_once(first in 0i64..5000, count in 0i64..5000) {
            let mut hours: Vec<i64> = spans(first, first + count)
                .into_iter()
                .flat_map(|(span, from, to)| from * span..to * span)
                .collect();
            hours.sort_unstable();
            prop_assert_eq!(hours, (first..first + count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_year_is_a_few_ranges_of_long_spans() {
        let spans = spans(490_563, 490_563 + 8760);
        assert!(spans.len() <= 5, "{spans:?}");
        let blocks: i64 = spans.iter().map(|(_, from, to)| to - from).sum();
        assert!(blocks < 24 * 2 + 32 * 2 + 12, "{blocks} blocks");
    }
}
