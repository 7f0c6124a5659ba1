//! What is past its time goes, a few rows in each transaction, so that the core thread waits for milliseconds: scripts and environments
//! `keep_scripts_days` after their last use; jobs, runs and what is said of them `keep_jobs_days` after their end; what is said of nodes, GPUs
//! and policy after a year, or as long as jobs are kept.
//!
//! Sums of use stay: reports of whole hours are the same before and after. Freed pages are used again; the file does not shrink.

use super::open::open_second_writer;
use super::usage_sums::{self, HOUR_MILLIS, SpentRun};
use gmodel::Timestamp;
use rusqlite::{Connection, params};
use std::path::Path;
use std::time::Duration;

/// Rows removed in one transaction of single rows, jobs in one of whole jobs, and requests looked at in one.
const ROWS: u32 = 200;
const JOBS: u32 = 50;
const SPECS: i64 = 500;
/// Jobs removed in one round: what a clock that is wrong for a moment could cost.
const JOBS_OF_ROUND: usize = 50_000;
/// The core thread's turn.
const PAUSE: Duration = Duration::from_millis(20);
/// The history of policy changes is kept this long at least.
const AUDIT_DAYS: i64 = 365;
const MILLIS_PER_DAY: i64 = 24 * 3600 * 1000;

/// Days for which ended jobs and their scripts stay in the database.
#[derive(Clone, Copy, Debug)]
pub struct RetentionDays {
    pub scripts: i64,
    pub jobs: i64,
}

/// Removes what is past its time; how many jobs and arrays.
///
/// # Errors
/// The database's. What was removed stays removed.
pub fn prune(path: &Path, now: Timestamp, keep: RetentionDays) -> rusqlite::Result<usize> {
    let mut db = open_second_writer(path)?;
    let before = |days: i64| now.0 - days.saturating_mul(MILLIS_PER_DAY);
    prune_blobs(&db, now.0.div_euclid(MILLIS_PER_DAY) - keep.scripts)?;
    let mut removed = 0;
    while removed < JOBS_OF_ROUND {
        let some = prune_jobs(&mut db, before(keep.jobs))?;
        if some == 0 {
            break;
        }
        removed += some;
        std::thread::sleep(PAUSE);
    }
    if removed > 0 {
        prune_specs(&db)?;
    }
    prune_history(&db, before(keep.jobs.max(AUDIT_DAYS)))?;
    Ok(removed)
}

fn prune_blobs(db: &Connection, before_day: i64) -> rusqlite::Result<()> {
    // A job that waits longer than that still needs its script.
    const BLOBS: &str = "DELETE FROM blobs WHERE rowid IN (
        SELECT rowid FROM blobs WHERE last_use < ?1 AND sha NOT IN (
            SELECT script FROM specs WHERE script IS NOT NULL AND id IN (
                SELECT spec FROM jobs WHERE live = 1 UNION SELECT spec FROM arrays WHERE live = 1)
            UNION SELECT script FROM jobs WHERE live = 1 AND script IS NOT NULL
            UNION SELECT script FROM arrays WHERE live = 1 AND script IS NOT NULL
            UNION SELECT environment FROM specs WHERE environment IS NOT NULL AND id IN (
                SELECT spec FROM jobs WHERE live = 1 UNION SELECT spec FROM arrays WHERE live = 1)
            UNION SELECT bill FROM bill_months)
        LIMIT ?2)";
    in_steps(db, BLOBS, before_day)
}

/// The history of nodes, GPUs and policy, and of jobs that have no row. That of other jobs goes with them.
fn prune_history(db: &Connection, before: i64) -> rusqlite::Result<()> {
    const EVENTS: &str = "DELETE FROM events WHERE seq IN (SELECT seq FROM events e WHERE at < ?1 AND (job IS NULL
        OR NOT EXISTS (SELECT 1 FROM jobs WHERE id = e.job) AND NOT EXISTS (SELECT 1 FROM arrays WHERE id = e.job)) ORDER BY seq LIMIT ?2)";
    // Only while the oldest one is too old: `at` has no index and needs none.
    let oldest = db.query_row("SELECT at FROM events ORDER BY seq LIMIT 1", [], |row| {
        row.get::<_, i64>(0)
    });
    if oldest.is_ok_and(|at| at < before) {
        in_steps(db, EVENTS, before)?;
    }
    Ok(())
}

fn in_steps(db: &Connection, sql: &str, before: i64) -> rusqlite::Result<()> {
    while db.prepare_cached(sql)?.execute((before, ROWS))? == ROWS as usize {
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Removes some jobs and arrays with all that is theirs, in one transaction; how many.
fn prune_jobs(db: &mut Connection, before: i64) -> rusqlite::Result<usize> {
    // The task of an array that is not over stays, and so does a job with a run that is live or not in the sums.
    const JOBS_OF: &str = "SELECT id FROM jobs j WHERE end_ms < ?1 AND live = 0
        AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.job = j.id AND (r.live = 1 OR r.end_ms >= ?1 OR r.summed = 0 AND r.start_ms IS NOT NULL))
        AND (array_id IS NULL OR NOT EXISTS (SELECT 1 FROM arrays a WHERE a.id = j.array_id AND a.live = 1))
        ORDER BY end_ms LIMIT ?2";
    const ARRAYS_OF: &str = "SELECT id FROM arrays a WHERE end_ms < ?1 AND live = 0 AND coalesce(cancelled_ms, 0) < ?1
        AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id >= a.id AND j.id < a.id + a.tasks AND j.array_id = a.id)
        ORDER BY end_ms LIMIT ?2";
    // Its turn is taken before it reads, so that nothing changes in between.
    let turn = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let ids = |sql: &str| -> rusqlite::Result<Vec<i64>> {
        turn.prepare_cached(sql)?
            .query_map((before, JOBS), |row| row.get(0))?
            .collect()
    };
    let (jobs, arrays) = (ids(JOBS_OF)?, ids(ARRAYS_OF)?);
    for job in &jobs {
        prune_runs(&turn, *job)?;
        turn.prepare_cached("DELETE FROM events WHERE job = ?1")?
            .execute([job])?;
        turn.prepare_cached("DELETE FROM jobs WHERE id = ?1")?
            .execute([job])?;
    }
    for array in &arrays {
        turn.prepare_cached("DELETE FROM events WHERE job = ?1")?
            .execute([array])?;
        turn.prepare_cached("DELETE FROM arrays WHERE id = ?1")?
            .execute([array])?;
    }
    let removed = jobs.len() + arrays.len();
    if removed > 0 {
        turn.prepare_cached("UPDATE meta SET pruned_before_ms = max(pruned_before_ms, ?1)")?
            .execute([before])?;
        turn.commit()?;
    }
    Ok(removed)
}

/// Removes the runs of a job. What reports need of them that sums of use do not say is noted.
fn prune_runs(db: &Connection, job: i64) -> rusqlite::Result<()> {
    let sql = format!(
        "SELECT {} FROM runs r WHERE r.job = ?1 AND r.start_ms IS NOT NULL AND r.end_ms IS NOT NULL",
        SpentRun::COLUMNS
    );
    let runs: Vec<SpentRun> = db
        .prepare_cached(&sql)?
        .query_map([job], |row| SpentRun::of(row, Timestamp(0)))?
        .collect::<rusqlite::Result<_>>()?;
    for run in &runs {
        let key = usage_sums::key_number(db, &run.key)?;
        let first = run.start.0.div_euclid(HOUR_MILLIS);
        for hour in first..=run.end.0.div_euclid(HOUR_MILLIS) {
            let id = (hour, run.id.job.0, run.id.attempt);
            db.prepare_cached(
                "DELETE FROM run_hours WHERE hour = ?1 AND job = ?2 AND attempt = ?3",
            )?
            .execute(id)?;
            if hour > first {
                const CARRY: &str =
                    "INSERT INTO pruned_hours (hour, key, carried) VALUES (?1, ?2, 1)
                    ON CONFLICT (hour, key) DO UPDATE SET carried = carried + 1";
                db.prepare_cached(CARRY)?.execute((hour, key))?;
            }
        }
        if runs.len() > 1 {
            const REPEAT: &str = "INSERT OR REPLACE INTO pruned_repeats (job, attempt, key, start_ms, end_ms) VALUES (?1, ?2, ?3, ?4, ?5)";
            db.prepare_cached(REPEAT)?.execute(params![
                job,
                run.id.attempt,
                key,
                run.start.0,
                run.end.0
            ])?;
        }
    }
    db.prepare_cached("DELETE FROM runs WHERE job = ?1")?
        .execute([job])?;
    Ok(())
}

/// Removes requests that no job or array has. A controller that has one of them in memory writes it again when a job has it.
fn prune_specs(db: &Connection) -> rusqlite::Result<()> {
    let last: i64 = db.query_row("SELECT coalesce(max(id), 0) FROM specs", [], |row| {
        row.get(0)
    })?;
    let mut first: i64 = db.query_row("SELECT coalesce(min(id), 0) FROM specs", [], |row| {
        row.get(0)
    })?;
    while first <= last {
        let sql = "DELETE FROM specs WHERE id >= ?1 AND id < ?2 AND NOT EXISTS (SELECT 1 FROM jobs WHERE spec = specs.id)
            AND NOT EXISTS (SELECT 1 FROM arrays WHERE spec = specs.id)";
        db.prepare_cached(sql)?.execute((first, first + SPECS))?;
        first += SPECS;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
