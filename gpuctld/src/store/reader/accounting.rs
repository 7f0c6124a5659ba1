//! The accounting listing: a [`RunQuery`] becomes one statement over jobs and runs, as sacct(1) filters them.
//!
//! Finished jobs are found by the index over ends (or user and end), live ones by the index over live rows: the
//! number of jobs that ever were does not matter.

use super::{Answer, ReadFailure, cancelled_tasks, read};
use crate::store::gpu_use;
use crate::store::usage_sums::stood_still_ms;
use gmodel::array_spec::ArraySpec;
use gmodel::hostlist::Hostlist;
use gmodel::{Instant, JobId, JobState, Timestamp};
use gwire::api::{GpuUseRow, RunQuery, RunRow};
use rusqlite::types::Value;
use serde::Deserialize;
use rusqlite::{Connection, Row, params_from_iter};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Rows in one answer at most.
const MAX_ROWS: u32 = 1_000_000;
/// Jobs or names in one filter at most.
const MAX_LISTED: usize = 1000;

const COLUMNS: &str = "j.id, r.attempt, j.array_id, j.array_index, j.name, j.user, j.account, j.partition, j.qos,
    j.state, j.exit, j.end_text, j.submit_ms, j.start_ms, j.end_ms, j.limit_secs, r.nodes, r.nodelist, r.cpus,
    r.mem_bytes, r.gpus, r.cpu_micros, r.peak_bytes, s.work_dir, s.comment, s.tags,
    r.state, r.exit, r.end_text, r.start_ms, r.end_ms, j.attempt, r.class, r.lost_gpu_secs,
    CASE WHEN j.state = 'CANCELLED' THEN j.doc END, coalesce(r.suspended_ms, 0), r.suspended_since_ms";
const GPU_USE_AT: usize = 37;

/// What of a cancelled job's document a row shows.
#[derive(Deserialize)]
struct Cancelled {
    #[serde(default)]
    cancelled_by: Option<String>,
}

/// What a row is read from.
static SELECTED: LazyLock<String> = LazyLock::new(|| format!("{COLUMNS}, {}", *gpu_use::SELECTED));

pub fn runs(db: &Connection, query: &RunQuery, now: Timestamp) -> Answer<Vec<RunRow>> {
    let filter = Filter::of(query)?;
    let limit = query.limit.unwrap_or(MAX_ROWS).min(MAX_ROWS);
    let mut on_nodes = OnNodes::of(&query.nodelist)?;
    // Host lists are read here, not by SQLite: rows come until there are enough.
    let sql_limit = if query.nodelist.is_empty() { i64::from(limit) } else { -1 };
    let sql = if query.attempts { attempts_sql(&filter, sql_limit) } else { jobs_sql(&filter, sql_limit) };
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(&filter.values))?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()?
        && all.len() < limit as usize
    {
        if on_nodes.has(row)? {
            all.push(run_row(row, query.attempts, now)?);
        }
    }
    all.reverse(); // the newest were asked for, the oldest come first
    let cancelled = cancelled_tasks::lines(db, query, limit)?;
    if !cancelled.is_empty() {
        all.extend(cancelled);
        all.sort_by_key(|row| (row.id, row.attempt));
        all.drain(..all.len().saturating_sub(limit as usize));
    }
    Ok(all)
}

/// The last attempts of some jobs, those that there are.
pub fn last_runs(db: &Connection, ids: &[JobId], now: Timestamp) -> Answer<Vec<RunRow>> {
    let sql = format!(
        "SELECT {} FROM jobs j CROSS JOIN specs s ON s.id = j.spec
         LEFT JOIN runs r ON r.job = j.id AND r.attempt = j.attempt WHERE j.id = ?1",
        *SELECTED
    );
    let mut statement = db.prepare_cached(&sql)?;
    let mut all = Vec::new();
    for id in ids {
        let mut rows = statement.query([id.0])?;
        if let Some(row) = rows.next()? {
            all.push(run_row(row, false, now)?);
        }
    }
    Ok(all)
}

/// The ids first, from the indexes alone; only then the rows behind the newest of them. The `+` keeps SQLite from walking
/// all jobs backwards, which are in that order already.
fn jobs_sql(filter: &Filter, limit: i64) -> String {
    let ids = filter.union("SELECT j.id AS id FROM jobs j");
    format!(
        "SELECT {} FROM (SELECT id FROM ({ids}) ORDER BY +id DESC LIMIT {limit}) k CROSS JOIN jobs j ON j.id = k.id
         CROSS JOIN specs s ON s.id = j.spec LEFT JOIN runs r ON r.job = j.id AND r.attempt = j.attempt
         ORDER BY 1 DESC",
        *SELECTED
    )
}

fn attempts_sql(filter: &Filter, limit: i64) -> String {
    let ids = filter.union("SELECT j.id AS id, r.attempt AS attempt FROM jobs j LEFT JOIN runs r ON r.job = j.id");
    format!(
        "SELECT {} FROM (SELECT id, attempt FROM ({ids}) ORDER BY +id DESC, +attempt DESC LIMIT {limit}) k
         CROSS JOIN jobs j ON j.id = k.id CROSS JOIN specs s ON s.id = j.spec
         LEFT JOIN runs r ON r.job = k.id AND r.attempt = k.attempt ORDER BY 1 DESC, 2 DESC",
        *SELECTED
    )
}

/// Whether a run was on one of the nodes asked for.
struct OnNodes {
    asked: Option<Hostlist>,
    /// Runs are on the same few sets of nodes again and again.
    known: BTreeMap<String, bool>,
}

impl OnNodes {
    fn of(text: &str) -> Answer<Self> {
        let asked = (!text.is_empty()).then(|| Hostlist::parse(text)).transpose();
        let asked = asked.map_err(|error| ReadFailure::Question(error.to_string()))?;
        Ok(Self { asked, known: BTreeMap::new() })
    }

    fn has(&mut self, row: &Row<'_>) -> Answer<bool> {
        let Some(asked) = &self.asked else { return Ok(true) };
        let nodelist = row.get::<_, Option<String>>(17)?.unwrap_or_default();
        let has = |list: &str| Hostlist::parse(list).is_ok_and(|nodes| nodes.iter().any(|node| asked.contains(node)));
        Ok(*self.known.entry(nodelist).or_insert_with_key(|list| has(list)))
    }
}

/// Conditions with numbered parameters, the same for both halves.
struct Filter {
    /// Two halves, each with an index of its own; SQLite would not use them in one condition.
    halves: Vec<String>,
    conditions: String,
    values: Vec<Value>,
}

impl Filter {
    fn of(query: &RunQuery) -> Answer<Self> {
        let mut filter = Self {
            halves: Vec::new(),
            conditions: String::new(),
            values: Vec::new(),
        };
        let by_id = !query.job.is_empty();
        if by_id {
            filter.jobs(&query.job)?;
        }
        let states = states(&query.state)?;
        filter.any("j.user", &query.user)?;
        filter.any("j.account", &query.account)?;
        filter.any("j.partition", &query.partition)?;
        filter.any("j.qos", &query.qos)?;
        filter.any("j.name", &query.name)?;
        let state = if query.attempts { "coalesce(r.state, j.state)" } else { "j.state" };
        filter.any(state, &states.join(","))?;
        // A job has an end exactly when it is over.
        let mut over = "j.end_ms IS NOT NULL".to_owned();
        if let Some(from) = query.from {
            let at = filter.value(from.0.0.into());
            filter.conditions.push_str(&format!(" AND (j.end_ms >= ?{at} OR j.end_ms IS NULL)"));
            over = format!("j.end_ms >= ?{at}");
        }
        if let Some(to) = query.to {
            let at = filter.value(to.0.0.into());
            filter.conditions.push_str(&format!(" AND coalesce(j.start_ms, j.submit_ms) <= ?{at}"));
        }
        let waiting_too = states.contains(&super::super::write::PENDING);
        let live = if waiting_too { "j.live = 1" } else { "j.live = 1 AND j.attempt > 0" };
        // By id the primary key serves both.
        filter.halves = if by_id { vec!["1".into()] } else { vec![live.into(), over] };
        Ok(filter)
    }

    /// `select` over both halves.
    fn union(&self, select: &str) -> String {
        let half = |half: &String| format!("{select} WHERE {half} {}", self.conditions);
        self.halves.iter().map(half).collect::<Vec<_>>().join(" UNION ALL ")
    }

    fn value(&mut self, value: Value) -> usize {
        self.values.push(value);
        self.values.len()
    }

    fn any(&mut self, column: &str, list: &str) -> Answer<()> {
        let words: Vec<&str> = list.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        if words.is_empty() {
            return Ok(());
        }
        bounded(words.len())?;
        let places: Vec<String> =
            words.iter().map(|word| format!("?{}", self.value(Value::from((*word).to_owned())))).collect();
        self.conditions.push_str(&format!(" AND {column} IN ({})", places.join(",")));
        Ok(())
    }

    /// `17`, `98_5`, `98_[1-3]`, `98` (all its tasks).
    fn jobs(&mut self, text: &str) -> Answer<()> {
        let mut places = Vec::new();
        for (id, tasks) in named_jobs(text)? {
            let id = self.value(Value::from(id.cast_signed()));
            let Some(tasks) = tasks else {
                // A range of ids with two ends, also where there is no such array.
                places.push(format!(
                    "(j.id BETWEEN ?{id} AND ?{id} + coalesce((SELECT tasks FROM arrays WHERE id = ?{id}), 1) - 1
                      AND (j.id = ?{id} OR j.array_id = ?{id}))"
                ));
                continue;
            };
            for range in tasks.ranges() {
                let (first, last, step) = (range.start, range.end, range.step);
                places.push(format!(
                    "(j.array_id = ?{id} AND j.id >= ?{id} AND j.id < ?{id} + (SELECT tasks FROM arrays WHERE id = ?{id})
                      AND j.array_index BETWEEN {first} AND {last} AND (j.array_index - {first}) % {step} = 0)"
                ));
            }
            bounded(places.len())?;
        }
        if !places.is_empty() {
            self.conditions.push_str(&format!(" AND ({})", places.join(" OR ")));
        }
        Ok(())
    }
}

/// `17`, `98_5`, `98_[1-3]`: ids that fit the database, with the indices asked for.
pub fn named_jobs(text: &str) -> Answer<Vec<(u64, Option<ArraySpec>)>> {
    let wrong = |word: &str| ReadFailure::Question(format!("{word:?} is not a job: write 17, 98_5, 98_[1-3] or 98"));
    let words = split_outside_brackets(text);
    bounded(words.len())?;
    let read = |word: &str| -> Option<(u64, Option<ArraySpec>)> {
        let (id, tasks) = word.split_once('_').map_or((word, None), |(id, tasks)| (id, Some(tasks)));
        let id: i64 = id.parse().ok().filter(|id| *id >= 0)?;
        let tasks = tasks.map(|tasks| tasks.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(tasks));
        Some((id.cast_unsigned(), tasks.map(ArraySpec::parse).transpose().ok()?))
    };
    words.into_iter().map(|word| read(word).ok_or_else(|| wrong(word))).collect()
}

fn bounded(count: usize) -> Answer<()> {
    if count <= MAX_LISTED {
        return Ok(());
    }
    Err(ReadFailure::Question(format!("{count} values in one filter; {MAX_LISTED} are allowed")))
}

pub fn states(text: &str) -> Answer<Vec<&'static str>> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(|word| {
            JobState::parse(word).map(JobState::long).ok_or_else(|| {
                let all: Vec<&str> = JobState::ALL.iter().map(|state| state.long()).collect();
                ReadFailure::Question(format!("{word:?} is not a job state. States: {}", all.join(" ")))
            })
        })
        .collect()
}

fn split_outside_brackets(text: &str) -> Vec<&str> {
    let mut depth = 0;
    text.split(move |c| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|word| !word.is_empty())
    .collect()
}

fn run_row(row: &Row<'_>, attempts: bool, now: Timestamp) -> Answer<RunRow> {
    let id: u64 = row.get(0)?;
    let attempt: Option<u32> = row.get(1)?;
    // A listing of attempts shows each as it ended; of jobs, the job.
    let (state, exit, end_text, start, end) =
        if attempts && attempt.is_some() { (26, 27, 28, 29, 30) } else { (9, 10, 11, 13, 14) };
    let array_id: Option<u64> = row.get(2)?;
    let array_index: Option<u32> = row.get(3)?;
    let start_ms: Option<i64> = row.get(start)?;
    let end_ms: Option<i64> = row.get(end)?;
    let gpus: BTreeMap<String, u64> = match row.get::<_, Option<String>>(20)? {
        Some(text) => serde_json::from_str(&text)?,
        None => BTreeMap::new(),
    };
    let instant = |ms: Option<i64>| ms.map(|ms| Instant(Timestamp(ms)));
    let until = Timestamp(end_ms.unwrap_or(now.0));
    let stood_still_ms = stood_still_ms(row, 35, until)?;
    let elapsed = start_ms.map_or(0, |from| until.plus_millis(-stood_still_ms).since_secs(Timestamp(from)).max(0));
    let (cpus, nodes) = (row.get::<_, Option<u32>>(18)?.unwrap_or(0), row.get::<_, Option<u32>>(16)?.unwrap_or(0));
    let mem_bytes = row.get::<_, Option<u64>>(19)?.unwrap_or(0);
    let cpu_time_secs = row.get::<_, Option<i64>>(21)?.unwrap_or(0) as f64 / 1e6;
    let peak_memory_bytes = row.get::<_, Option<u64>>(22)?.unwrap_or(0);
    let cancelled: Option<Cancelled> = row.get::<_, Option<Vec<u8>>>(34)?.map(|doc| read(&doc)).transpose()?;
    let percent = |used: f64, held: f64| (used > 0.0 && held > 0.0).then(|| used / held * 100.0);
    Ok(RunRow {
        id,
        shown_id: match (array_id, array_index) {
            (Some(array), Some(index)) => format!("{array}_{index}"),
            _ => id.to_string(),
        },
        attempt: attempt.map_or_else(|| row.get(31), Ok)?,
        array_id,
        array_index,
        array_tasks: None,
        name: row.get(4)?,
        user: row.get(5)?,
        account: row.get(6)?,
        partition: row.get(7)?,
        qos: row.get(8)?,
        state: JobState::parse(row.get_ref(state)?.as_str().unwrap_or("")).unwrap_or(JobState::Unknown),
        exit_code: row.get_ref(exit)?.as_str().unwrap_or("").parse().unwrap_or_default(),
        end_text: row.get(end_text)?,
        submit_time: instant(row.get(12)?),
        start_time: instant(start_ms),
        end_time: instant(end_ms),
        elapsed_secs: elapsed,
        suspended_secs: stood_still_ms / 1000,
        time_limit_secs: row.get(15)?,
        nodes,
        nodelist: row.get::<_, Option<String>>(17)?.unwrap_or_default(),
        cpus,
        mem_bytes,
        gpu_count: gpus.values().sum::<u64>() as f64 / 1000.0,
        gpus: gpus_text(&gpus),
        cpu_time_secs,
        peak_memory_bytes,
        cpu_percent: percent(cpu_time_secs, elapsed as f64 * f64::from(cpus)),
        // The peak is that of the node with the most.
        mem_percent: percent(peak_memory_bytes as f64 * f64::from(nodes), mem_bytes as f64),
        work_dir: row.get(23)?,
        comment: row.get(24)?,
        tags: serde_json::from_str(row.get_ref(25)?.as_str().unwrap_or("[]"))?,
        class: row.get(32)?,
        lost_gpu_secs: row.get::<_, Option<u64>>(33)?.unwrap_or(0),
        gpu_use: gpu_use::read(row, GPU_USE_AT)?.as_ref().map(GpuUseRow::from),
        cancelled_by: cancelled.and_then(|cancelled| cancelled.cancelled_by),
        steps: Vec::new(),
        detail: None,
    })
}

/// `a100:2,h100:0.5`.
fn gpus_text(gpus: &BTreeMap<String, u64>) -> String {
    let parts: Vec<String> = gpus
        .iter()
        .map(|(gpu_type, milli)| match milli % 1000 {
            0 => format!("{gpu_type}:{}", milli / 1000),
            _ => format!("{gpu_type}:{}", *milli as f64 / 1000.0),
        })
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_lists_are_split_between_jobs_only() {
        assert_eq!(split_outside_brackets("17, 98_[1,3-5],98_7,"), ["17", "98_[1,3-5]", "98_7"]);
    }
}
