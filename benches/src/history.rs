//! Two million finished jobs in the database: whether the controller starts and answers as it does without them.
//!
//! They are made from one that ran, by SQL, spread evenly over the two years before it; their logs are left out, and they are in no
//! sum of use.

use crate::floor::median;
use crate::pool::Pool;
use crate::{Bench, Row, millis};
use anyhow::Context;
use rusqlite::Connection;
use std::path::Path;
use std::time::{Duration, Instant};

const JOBS: i64 = 2_000_000;
/// Jobs that really run before.
const OWN: usize = 200;
/// Milliseconds between the ends of two of them.
const APART_MS: i64 = 2 * 365 * 86_400_000 / JOBS;
const PATIENCE: Duration = Duration::from_secs(900);

/// What is asked: its name in the table, the program, its arguments.
const ASKED: [(&str, &str, &[&str]); 4] = [
    ("gq", "gq", &[]),
    ("gq JOB of one that is over", "gq", &["7"]),
    (
        "gacct of the last hour",
        "gacct",
        &["-a", "-S", "now-1hour"],
    ),
    ("gacct of one job", "gacct", &["-j", "7"]),
];

pub fn history(bench: &mut Bench) -> anyhow::Result<()> {
    let pool = bench.pool(1, "h100:8")?;
    let job = pool.job(0, 10);
    pool.submit(8, OWN, |_| job.clone())?;
    pool.drain(PATIENCE)?;
    let mut before = vec![restart(&pool, |_| Ok(()))?];
    for (_, program, args) in ASKED {
        before.push(time_of(&pool, program, args)?);
    }
    let after = restart(&pool, fill)?;
    let mut none = before.iter();
    let mut row = |what: &'static str, time: Duration| {
        let none = millis(*none.next().expect("measured above"));
        bench.row_once(|_| {
            Ok(Row {
                what,
                slurm: "",
                ours: format!("{}; without them {none}", millis(time)),
            })
        })
    };
    println!("two million jobs over, two years of them:");
    row("start to serving, after SIGKILL", after)?;
    for (what, program, args) in ASKED {
        row(what, time_of(&pool, program, args)?)?;
    }
    Ok(())
}

fn time_of(pool: &Pool, program: &str, args: &[&str]) -> anyhow::Result<Duration> {
    pool.run(program, args)?;
    median(9, || pool.run(program, args).map(drop))
}

/// Kills the controller, does something to its database, and starts it.
fn restart(
    pool: &Pool,
    change: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<Duration> {
    let dir = pool.dir.to_str().context("directory is not UTF-8")?;
    pool.run("gadm", &["sandbox", "kill", "gpuctld", "--dir", dir])?;
    change(&database(pool))?;
    let start = Instant::now();
    pool.run("gadm", &["sandbox", "start", "gpuctld", "--dir", dir])?;
    Ok(start.elapsed())
}

fn database(pool: &Pool) -> std::path::PathBuf {
    pool.dir.join("gpuctld/state/gpupool.db")
}

fn fill(path: &Path) -> anyhow::Result<()> {
    let db = Connection::open(path).with_context(|| path.display().to_string())?;
    db.pragma_update(None, "synchronous", "OFF")?;
    let first: i64 = db.query_row("SELECT next_job FROM meta", [], |row| row.get(0))?;
    copies(&db, "jobs", "id", first)?;
    copies(&db, "runs", "job", first)?;
    db.execute("UPDATE meta SET next_job = ?1", [first + JOBS])?;
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(())
}

/// Rows like that of job 7, under other numbers and earlier.
fn copies(db: &Connection, table: &str, id: &str, first: i64) -> anyhow::Result<()> {
    let columns: Vec<String> = {
        let mut columns = db.prepare("SELECT name FROM pragma_table_info(?1)")?;
        let names = columns.query_map([table], |row| row.get(0))?;
        names.collect::<rusqlite::Result<_>>()?
    };
    let values = columns.iter().map(|name| match name.as_str() {
        name if name == id => format!("{first} + n"),
        name if name.ends_with("_ms") && !name.starts_with("gpu_") => {
            format!("{name} - ({JOBS} - n) * {APART_MS}")
        }
        // As of jobs that left memory, and that the sums of use have.
        "live" => "0".to_owned(),
        "summed" => "1".to_owned(),
        name => name.to_owned(),
    });
    let values: Vec<String> = values.collect();
    let sql = format!(
        "WITH RECURSIVE many(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM many WHERE n + 1 < {JOBS})
         INSERT INTO {table} ({}) SELECT {} FROM many, {table} WHERE {id} = 7",
        columns.join(", "),
        values.join(", ")
    );
    db.execute(&sql, [])?;
    Ok(())
}
