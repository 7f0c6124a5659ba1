//! The runs that a bill is about, and the bill as it is stored when its month is closed.
//!
//! Runs that ended within the month come from an index, those that went on over its end from the lists of hours. What of a run an
//! earlier month was closed with is taken off, whatever became of the run since: so the bills of a run add up to it.

use super::stored::ReadResult;
use crate::store::error::ReadFailure;
use crate::store::usage_sums::{HOUR_MILLIS, stood_still_ms};
use gmodel::billing::Correction;
use gmodel::policy::price::{CPU, Ending, MEMORY};
use gmodel::{JobId, Month, RunId, Timestamp};
use gpolicy::bill::{BillBook, BillLine, BilledKind, BilledTime, HeldResource, Tariff};
use rusqlite::{Connection, Params, Row};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

/// Runs of one export at most: which they are is kept in memory.
const MAX_EXPORTED: usize = 2_000_000;
pub const CSV_HEAD: &str =
    "job,attempt,account,user,partition,qos,tags,ending,open,start_ms,end_ms,billed_ms,held\n";

/// A bill as it is stored for ever.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredBill {
    pub month: Month,
    pub from: Timestamp,
    pub to: Timestamp,
    pub tariff: Tariff,
    pub lines: Vec<BillLine>,
    pub corrections: Vec<Correction>,
    /// Runs that went on over the end, as they are on this bill.
    pub carried: Vec<CarriedRun>,
}

/// A run that went on over the end of a closed month.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedRun {
    pub job: u64,
    pub attempt: u32,
    pub ending: Ending,
    pub start: Timestamp,
    pub end: Timestamp,
    pub millis: i64,
    /// Billed up to the end of the month, by this bill and those before it.
    pub billed: i64,
}

/// Which bill is asked for.
#[derive(Clone, Debug)]
pub struct BillQuestion {
    pub from: Timestamp,
    pub to: Timestamp,
    pub now: Timestamp,
    /// Of the last month that was closed before: its end and its runs.
    pub before: Option<(Timestamp, Vec<CarriedRun>)>,
    /// Of the month itself, where it is closed.
    pub own: Option<Vec<CarriedRun>>,
}

/// A run on a bill.
#[derive(Clone, Copy, Debug)]
pub struct BilledRun {
    id: RunId,
    time: BilledTime,
    ending: Ending,
    open: bool,
    /// As of the end of the month.
    billed: i64,
}

const COLUMNS: &str = "r.job, r.attempt, r.account, r.user, r.partition, r.qos, r.tags, r.state, r.start_ms, r.end_ms, r.cpus,
    r.mem_bytes, r.gpus, r.gpu_parts, r.suspended_ms, r.suspended_since_ms, r.unheld_ms";

/// The lines of a bill, and the runs that go on over its end.
pub fn lines(
    db: &Connection,
    question: &BillQuestion,
    tariff: &Tariff,
) -> ReadResult<(Vec<BillLine>, Vec<CarriedRun>)> {
    let mut book = BillBook::new(tariff);
    let mut kinds = HashMap::<Vec<u8>, usize>::new();
    let (mut key, mut carried) = (Vec::new(), Vec::new());
    let with = Priced::by(tariff);
    question.each_run(db, |run, row| {
        with.key(row, &run, &mut key)?;
        let kind = match kinds.get(&key) {
            Some(kind) => *kind,
            None => {
                let kind = book.kind(with.kind(row, &run)?);
                kinds.insert(key.clone(), kind);
                kind
            }
        };
        book.add(kind, &run.time);
        if run.time.end >= question.to || run.open {
            carried.push(run.carried());
        }
        Ok(())
    })?;
    carried.extend(not_begun(db, question.to)?);
    Ok((book.lines(), carried))
}

/// Runs whose node has not said yet when they began: it may turn out to be before the end of the month.
fn not_begun(db: &Connection, to: Timestamp) -> ReadResult<Vec<CarriedRun>> {
    let sql = "SELECT job, attempt FROM runs WHERE live = 1 AND end_ms IS NULL AND start_ms IS NULL AND placed_ms < ?1";
    let mut statement = db.prepare_cached(sql)?;
    let runs = statement.query_map([to.0], |row| {
        Ok(CarriedRun {
            job: row.get(0)?,
            attempt: row.get(1)?,
            ending: Ending::Own,
            start: to,
            end: to,
            millis: 0,
            billed: 0,
        })
    })?;
    Ok(runs.collect::<rusqlite::Result<_>>()?)
}

/// The same runs: those of which `seen` says yes to user and account.
pub fn runs(
    db: &Connection,
    question: &BillQuestion,
    seen: impl Fn(&str, &str) -> bool,
) -> ReadResult<Vec<BilledRun>> {
    let mut found = Vec::new();
    question.each_run(db, |run, row| {
        let text = |column| {
            row.get_ref(column)
                .map(|cell| cell.as_str().unwrap_or_default())
        };
        if !seen(text(3)?, text(2)?) {
            return Ok(());
        }
        if found.len() == MAX_EXPORTED {
            return Err(ReadFailure::Question(format!(
                "there are more than {MAX_EXPORTED} runs. Ask for one account at a time"
            )));
        }
        found.push(run);
        Ok(())
    })?;
    Ok(found)
}

/// Lines of CSV of some of them.
pub fn csv(db: &Connection, runs: &[BilledRun]) -> ReadResult<String> {
    let mut text = String::with_capacity(runs.len() * 200);
    for run in runs {
        let id = (run.id.job.0, run.id.attempt);
        each(
            db,
            "runs r WHERE r.job = ?1 AND r.attempt = ?2",
            id,
            |row| push_line(&mut text, run, row),
        )?;
    }
    Ok(text)
}

fn push_line(text: &mut String, run: &BilledRun, row: &Row<'_>) -> ReadResult<()> {
    let kind = Priced::ALL.kind(row, run)?;
    let cells = [
        kind.account.as_str(),
        &kind.user,
        &kind.partition,
        &kind.qos,
        row.get_ref(6)?.as_str().unwrap_or_default(),
    ];
    let _ = write!(text, "{},{}", run.id.job.0, run.id.attempt);
    cells.iter().for_each(|cell| push_cell(text, cell));
    let BilledTime { start, end, millis } = run.time;
    let (ending, open) = (kind.ending.word(), u8::from(kind.open));
    let _ = write!(text, ",{ending},{open},{},{},{millis}", start.0, end.0);
    let held: Vec<_> = kind
        .held
        .iter()
        .map(|h| (&h.kind, &h.part, h.milli, h.pieces))
        .collect();
    push_cell(text, &serde_json::to_string(&held).unwrap_or_default());
    text.push('\n');
    Ok(())
}

/// A comma and a cell. What a program for tables would take for a formula is data here: numbers and names stay as they are.
fn push_cell(text: &mut String, cell: &str) {
    text.push(',');
    if cell.contains([',', '"', '\n', '\r']) {
        text.push('"');
        text.push_str(&cell.replace('"', "\"\""));
        text.push('"');
    } else {
        text.push_str(cell);
    }
}

impl BilledRun {
    fn carried(&self) -> CarriedRun {
        CarriedRun {
            job: self.id.job.0,
            attempt: self.id.attempt,
            ending: self.ending,
            start: self.time.start,
            end: self.time.end,
            millis: self.time.millis,
            billed: self.billed,
        }
    }
}

impl BillQuestion {
    fn each_run(
        &self,
        db: &Connection,
        mut found: impl FnMut(BilledRun, &Row<'_>) -> ReadResult<()>,
    ) -> ReadResult<()> {
        self.check_kept(db)?;
        let own: BTreeMap<(u64, u32), CarriedRun> = by_id(self.own.as_deref());
        let before: BTreeMap<(u64, u32), CarriedRun> =
            by_id(self.before.as_ref().map(|(_, runs)| runs.as_slice()));
        let mut seen = BTreeSet::new();
        let is_closed = self.own.is_some();
        let mut take = |row: &Row<'_>| {
            let id = (row.get::<_, u64>(0)?, row.get::<_, u32>(1)?);
            if own.contains_key(&id) || is_closed && row.get::<_, Option<i64>>(9)?.is_none() {
                return Ok(());
            }
            let prior = before.get(&id);
            if prior.is_some() {
                seen.insert(id);
            }
            found(self.run(row, prior)?, row)
        };
        let ended = "runs r WHERE r.end_ms >= ?1 AND r.end_ms < ?2 AND r.start_ms IS NOT NULL";
        each(db, ended, [self.from.0, self.to.0], &mut take)?;
        if !is_closed {
            self.each_beyond(db, &mut take)?;
        }
        let one = "runs r WHERE r.job = ?1 AND r.attempt = ?2";
        // A closed month billed more than they came to, as was heard since.
        let late = before.keys().filter(|id| !own.contains_key(id));
        for id in late.filter(|id| !seen.contains(*id)) {
            let condition = format!("{one} AND r.end_ms < ?3 AND r.start_ms IS NOT NULL");
            each(db, &condition, (id.0, id.1, self.from.0), |row| {
                found(self.run(row, before.get(id))?, row)
            })?;
        }
        for (id, run) in own
            .iter()
            .filter(|(_, run)| run.billed != 0 || run.millis != 0)
        {
            each(db, one, (id.0, id.1), |row| found(run.as_billed(), row))?;
        }
        Ok(())
    }

    /// Runs that end behind the month, or not yet.
    fn each_beyond(
        &self,
        db: &Connection,
        mut take: impl FnMut(&Row<'_>) -> ReadResult<()>,
    ) -> ReadResult<()> {
        let over = "run_hours h CROSS JOIN runs r ON r.job = h.job AND r.attempt = h.attempt
            WHERE h.hour = ?1 AND r.start_ms < ?2 AND r.end_ms >= ?2 AND r.summed = 1";
        let hour = self.to.0.div_euclid(HOUR_MILLIS);
        each(db, over, [hour, self.to.0], &mut take)?;
        let older = "runs r WHERE r.summed = 0 AND r.end_ms >= ?1 AND r.start_ms < ?1";
        each(db, older, [self.to.0], &mut take)?;
        let open = "runs r WHERE r.live = 1 AND r.end_ms IS NULL AND r.start_ms < ?1";
        each(db, open, [self.to.0.min(self.now.0)], &mut take)
    }

    fn check_kept(&self, db: &Connection) -> ReadResult<()> {
        let pruned: i64 =
            db.query_row("SELECT pruned_before_ms FROM meta", [], |row| row.get(0))?;
        if self.from.0 >= pruned {
            return Ok(());
        }
        Err(ReadFailure::Question(format!(
            "runs that ended before {} are no longer kept (keep_jobs_days), and this month has such. A closed month keeps its lines: \
             close months before that",
            Timestamp(pruned)
        )))
    }

    /// A run as it is on this bill; `prior`: what an earlier one has of it.
    fn run(&self, row: &Row<'_>, prior: Option<&CarriedRun>) -> ReadResult<BilledRun> {
        let start = Timestamp(row.get(8)?);
        let ended: Option<i64> = row.get(9)?;
        let end = Timestamp(ended.unwrap_or(self.now.0)).max(start);
        let unheld: i64 = row.get(16)?;
        let whole = (end.0 - start.0 - stood_still_ms(row, 14, end)? - unheld).max(0);
        let since = self.before.as_ref().map_or(start, |(at, _)| *at);
        let time = match prior {
            None => BilledTime {
                start,
                end,
                millis: whole,
            },
            Some(prior) => BilledTime {
                start: start.max(since),
                end: end.max(since),
                millis: whole - prior.billed,
            },
        };
        let state = row.get_ref(7)?.as_str().unwrap_or_default();
        let ending = match ended {
            Some(_) => Ending::of_state(state),
            None => Ending::Own,
        };
        Ok(BilledRun {
            id: RunId::new(JobId(row.get(0)?), row.get(1)?),
            time,
            ending,
            open: ended.is_none() && self.now < self.to,
            billed: prior.map_or(0, |prior| prior.billed) + time.part(Timestamp(i64::MIN), self.to),
        })
    }
}

impl CarriedRun {
    fn as_billed(&self) -> BilledRun {
        BilledRun {
            id: RunId::new(JobId(self.job), self.attempt),
            time: BilledTime {
                start: self.start,
                end: self.end,
                millis: self.millis,
            },
            ending: self.ending,
            open: false,
            billed: self.billed,
        }
    }
}

fn by_id(runs: Option<&[CarriedRun]>) -> BTreeMap<(u64, u32), CarriedRun> {
    let runs = runs.into_iter().flatten();
    runs.map(|run| ((run.job, run.attempt), *run)).collect()
}

fn each(
    db: &Connection,
    from: &str,
    values: impl Params,
    mut found: impl FnMut(&Row<'_>) -> ReadResult<()>,
) -> ReadResult<()> {
    let mut statement = db.prepare_cached(&format!("SELECT {COLUMNS} FROM {from}"))?;
    let mut rows = statement.query(values)?;
    while let Some(row) = rows.next()? {
        found(row)?;
    }
    Ok(())
}

/// What beside GPUs has prices: other kinds need not be told apart.
struct Priced {
    cpu: bool,
    memory: bool,
}

impl Priced {
    const ALL: Self = Self {
        cpu: true,
        memory: true,
    };

    fn by(tariff: &Tariff) -> Self {
        let has = |kind| tariff.book().prices.contains_key(kind);
        Self {
            cpu: has(CPU),
            memory: has(MEMORY),
        }
    }

    /// Equal for runs of one kind.
    fn key(&self, row: &Row<'_>, run: &BilledRun, key: &mut Vec<u8>) -> ReadResult<()> {
        key.clear();
        for column in [2, 3, 4, 5, 6, 12, 13] {
            let text = row.get_ref(column)?.as_str_or_null().unwrap_or_default();
            key.extend_from_slice(text.unwrap_or_default().as_bytes());
            key.push(0);
        }
        key.extend([run.ending as u8, u8::from(run.open)]);
        for (column, is_priced) in [(10, self.cpu), (11, self.memory)] {
            if is_priced {
                key.extend(row.get::<_, i64>(column)?.to_le_bytes());
            }
        }
        Ok(())
    }

    fn kind(&self, row: &Row<'_>, run: &BilledRun) -> ReadResult<BilledKind> {
        let text = |column: usize| row.get::<_, String>(column);
        let mut held = held_gpus(&text(12)?, row.get::<_, Option<String>>(13)?.as_deref());
        let mut count = |kind: &str, milli: u64| {
            held.push(HeldResource {
                kind: kind.to_owned(),
                part: String::new(),
                milli,
                pieces: milli / 1000,
            })
        };
        if self.cpu {
            count(CPU, row.get::<_, u64>(10)?.saturating_mul(1000));
        }
        if self.memory {
            let bytes = u128::from(row.get::<_, u64>(11)?);
            count(
                MEMORY,
                u64::try_from((bytes * 1000) >> 30).unwrap_or(u64::MAX),
            );
        }
        Ok(BilledKind {
            account: text(2)?,
            user: text(3)?,
            partition: text(4)?,
            qos: text(5)?,
            tags: serde_json::from_str(&text(6)?).unwrap_or_default(),
            ending: run.ending,
            open: run.open,
            held,
        })
    }
}

/// `gpus` has thousandths by type, `parts` what of them is not whole.
fn held_gpus(gpus: &str, parts: Option<&str>) -> Vec<HeldResource> {
    let resource = |kind: String, part: String, milli: u64, pieces: u64| HeldResource {
        kind,
        part,
        milli,
        pieces,
    };
    if let Some(parts) = parts {
        let parts: Vec<(String, String, u64, u64)> =
            serde_json::from_str(parts).unwrap_or_default();
        let parts = parts.into_iter();
        return parts
            .map(|(kind, part, milli, pieces)| resource(kind, part, milli, pieces))
            .collect();
    }
    let gpus: BTreeMap<String, u64> = serde_json::from_str(gpus).unwrap_or_default();
    let gpus = gpus.into_iter();
    gpus.map(|(kind, milli)| resource(kind, String::new(), milli, milli / 1000))
        .collect()
}
