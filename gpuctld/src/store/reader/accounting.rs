//! The accounting listing: a [`RunQuery`] becomes one statement over jobs and runs, as sacct(1) filters them.
//!
//! Finished jobs are found by the index over ends (or user and end), live ones by the index over live rows: the
//! number of jobs that ever were does not matter.

use super::cancelled_tasks;
use super::run_fields::{self, RunFields, RunKey, part_sql};
use super::stored::ReadResult;
use crate::store::error::ReadFailure;
use gmodel::array_spec::ArraySpec;
use gmodel::hostlist::Hostlist;
use gmodel::job_part::MOST_PARTS;
use gmodel::{JobId, JobPart, JobState, Timestamp};
use gwire::api::{RunQuery, RunRow};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use std::collections::BTreeMap;

/// Rows in one answer at most.
const MAX_ROWS: u32 = 1_000_000;
/// Jobs or names in one filter at most.
const MAX_LISTED: usize = 1000;

/// What a listing has, without what stands in the rows themselves.
#[derive(Debug, Default)]
pub struct FoundRuns {
    /// The newest there are room for, the oldest first.
    pub runs: Vec<RunKey>,
    /// Tasks that were cancelled before they had rows of their own: a line for those of each array.
    pub cancelled: Vec<RunRow>,
}

/// Which rows a question means. Those of jobs that wait are left out if others know them better.
pub fn found(db: &Connection, query: &RunQuery, without_waiting: bool) -> ReadResult<FoundRuns> {
    let limit = query.limit.unwrap_or(MAX_ROWS).min(MAX_ROWS);
    let cancelled = cancelled_tasks::lines(db, query, limit)?;
    let mut runs = keys(db, query, without_waiting, limit)?;
    runs.reverse(); // the newest were asked for, the oldest come first
    Ok(FoundRuns { runs, cancelled })
}

/// All rows that a question means.
pub fn runs(db: &Connection, query: &RunQuery, now: Timestamp) -> ReadResult<Vec<RunRow>> {
    let FoundRuns { runs, cancelled } = found(db, query, false)?;
    let rows = run_fields::rows(db, &runs, &RunFields::of(None, query.attempts), now)?;
    let mut all: Vec<RunRow> = rows.into_iter().flatten().collect();
    if !cancelled.is_empty() {
        all.extend(cancelled);
        all.sort_by_key(|row| (row.id, row.attempt));
        all.drain(
            ..all
                .len()
                .saturating_sub(query.limit.unwrap_or(MAX_ROWS) as usize),
        );
    }
    Ok(all)
}

/// The last attempts of some jobs, those that there are.
pub fn last_runs(db: &Connection, ids: &[JobId], now: Timestamp) -> ReadResult<Vec<RunRow>> {
    let keys: Vec<RunKey> = ids
        .iter()
        .map(|id| RunKey {
            id: id.0,
            attempt: None,
        })
        .collect();
    Ok(
        run_fields::rows(db, &keys, &RunFields::of(None, false), now)?
            .into_iter()
            .flatten()
            .collect(),
    )
}

/// The newest so many, the newest first, from the indexes alone where they have what is asked. The `+` keeps SQLite from
/// walking all jobs backwards, which are in that order already.
fn keys(
    db: &Connection,
    query: &RunQuery,
    without_waiting: bool,
    limit: u32,
) -> ReadResult<Vec<RunKey>> {
    let filter = RunFilter::of(query, without_waiting)?;
    let mut on_nodes = NodeCondition::of(&query.nodelist)?;
    let ids = match query.attempts {
        false => format!(
            "SELECT id, NULL AS attempt FROM ({}) ORDER BY +id DESC",
            filter.union("j.id AS id", "")
        ),
        true => {
            let all = filter.union(
                "j.id AS id, r.attempt AS attempt",
                "LEFT JOIN runs r ON r.job = j.id",
            );
            format!("SELECT id, attempt FROM ({all}) ORDER BY +id DESC, +attempt DESC")
        }
    };
    let sql = match (&on_nodes.asked, query.attempts) {
        (None, _) => format!("{ids} LIMIT {limit}"),
        // Host lists are read here, not by SQLite: rows come until there are enough.
        (Some(_), false) => format!(
            "SELECT k.id, k.attempt, r.nodelist FROM ({ids}) k CROSS JOIN jobs j ON j.id = k.id
             LEFT JOIN runs r ON r.job = k.id AND r.attempt = j.attempt ORDER BY 1 DESC"
        ),
        (Some(_), true) => format!(
            "SELECT k.id, k.attempt, r.nodelist FROM ({ids}) k
             LEFT JOIN runs r ON r.job = k.id AND r.attempt = k.attempt ORDER BY 1 DESC, 2 DESC"
        ),
    };
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(&filter.values))?;
    let mut keys = Vec::new();
    while keys.len() < limit as usize
        && let Some(row) = rows.next()?
    {
        if on_nodes.asked.is_none() || on_nodes.has(row.get_ref(2)?.as_str().unwrap_or_default()) {
            keys.push(RunKey {
                id: row.get(0)?,
                attempt: row.get(1)?,
            });
        }
    }
    Ok(keys)
}

/// Whether a run was on one of the nodes asked for.
struct NodeCondition {
    asked: Option<Hostlist>,
    /// Runs are on the same few sets of nodes again and again.
    known: BTreeMap<String, bool>,
}

impl NodeCondition {
    fn of(text: &str) -> ReadResult<Self> {
        let asked = (!text.is_empty())
            .then(|| Hostlist::parse(text))
            .transpose();
        let asked = asked.map_err(|error| ReadFailure::Question(error.to_string()))?;
        Ok(Self {
            asked,
            known: BTreeMap::new(),
        })
    }

    /// True of a host list with one of them.
    fn has(&mut self, nodelist: &str) -> bool {
        let Some(asked) = &self.asked else {
            return true;
        };
        if let Some(known) = self.known.get(nodelist) {
            return *known;
        }
        let has = Hostlist::parse(nodelist)
            .is_ok_and(|nodes| nodes.iter().any(|node| asked.contains(node)));
        self.known.insert(nodelist.to_owned(), has);
        has
    }
}

/// Conditions with numbered parameters, the same for both halves.
struct RunFilter {
    /// Two halves, each with an index of its own; SQLite would not use them in one condition.
    halves: Vec<String>,
    conditions: String,
    values: Vec<Value>,
}

impl RunFilter {
    fn of(query: &RunQuery, without_waiting: bool) -> ReadResult<Self> {
        let mut filter = Self {
            halves: Vec::new(),
            conditions: String::new(),
            values: Vec::new(),
        };
        if !query.job.is_empty() {
            filter.jobs(&query.job)?;
        }
        let states = states(&query.state)?;
        filter.users(&query.user)?;
        filter.any("j.account", &query.account)?;
        filter.partitions(&query.partition)?;
        filter.any("j.qos", &query.qos)?;
        filter.any("j.name", &query.name)?;
        let state = match query.attempts {
            true => "coalesce(r.state, j.state)",
            false => "j.state",
        };
        let between = query
            .from
            .zip(query.to)
            .filter(|_| !states.is_empty() && !query.attempts);
        match between {
            Some((from, to)) => filter.in_states_between(&states, from.0, to.0),
            None => filter.any(state, &states.join(","))?,
        }
        // A job has an end exactly when it is over.
        let mut over = "j.end_ms IS NOT NULL".to_owned();
        if let Some(from) = query.from {
            let at = filter.value(from.0.0.into());
            filter
                .conditions
                .push_str(&format!(" AND (j.end_ms >= ?{at} OR j.end_ms IS NULL)"));
            over = format!("j.end_ms >= ?{at}");
        }
        if let Some(to) = query.to.filter(|_| between.is_none()) {
            let at = filter.value(to.0.0.into());
            filter
                .conditions
                .push_str(&format!(" AND coalesce(j.start_ms, j.submit_ms) <= ?{at}"));
        }
        let live = match states.contains(&JobState::Pending.long()) {
            true => "j.live = 1",
            false => "j.live = 1 AND j.attempt > 0",
        };
        let begun = match (without_waiting, query.attempts) {
            (false, _) => String::new(),
            (true, false) => " AND j.state <> 'PENDING'".to_owned(),
            (true, true) => {
                format!(" AND ({state} <> 'PENDING' OR coalesce(r.attempt, j.attempt) > 0)")
            }
        };
        // By id the primary key serves both. What is over never waits.
        filter.halves = match query.job.is_empty() {
            true => vec![format!("{live}{begun}"), over],
            false => vec![format!("1{begun}")],
        };
        Ok(filter)
    }

    /// `columns` of both halves, with what is joined.
    fn union(&self, columns: &str, joined: &str) -> String {
        let half = |half: &String| {
            format!(
                "SELECT {columns} FROM jobs j {joined} WHERE {half} {}",
                self.conditions
            )
        };
        self.halves
            .iter()
            .map(half)
            .collect::<Vec<_>>()
            .join(" UNION ALL ")
    }

    /// As `-s` with `-S` and `-E` of sacct: what waited or ran at some time between, and what ended so between.
    fn in_states_between(&mut self, states: &[&str], from: Timestamp, to: Timestamp) {
        let (from, to) = (self.value(from.0.into()), self.value(to.0.into()));
        let (running, pending) = (JobState::Running.long(), JobState::Pending.long());
        let was = |state: &&str| match JobState::parse(state).filter(|state| state.is_final()) {
            Some(_) => format!("j.state = '{state}' AND j.end_ms BETWEEN ?{from} AND ?{to}"),
            None if *state == running => {
                format!("j.start_ms <= ?{to} AND coalesce(j.end_ms, ?{to}) >= ?{from}")
            }
            None if *state == pending => {
                format!("j.submit_ms <= ?{to} AND coalesce(j.start_ms, j.end_ms, ?{to}) >= ?{from}")
            }
            None => format!("j.state = '{state}'"),
        };
        let any: Vec<String> = states.iter().map(was).collect();
        self.conditions
            .push_str(&format!(" AND ({})", any.join(" OR ")));
    }

    fn value(&mut self, value: Value) -> usize {
        self.values.push(value);
        self.values.len()
    }

    fn any(&mut self, column: &str, list: &str) -> ReadResult<()> {
        let words: Vec<&str> = list
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .collect();
        if words.is_empty() {
            return Ok(());
        }
        bounded(words.len())?;
        let places: Vec<String> = words
            .iter()
            .map(|word| format!("?{}", self.value(Value::from((*word).to_owned()))))
            .collect();
        self.conditions
            .push_str(&format!(" AND {column} IN ({})", places.join(",")));
        Ok(())
    }

    /// By name, or by number, which stays a job's own when its name is gone.
    fn users(&mut self, list: &str) -> ReadResult<()> {
        let conditions = self.conditions.len();
        self.any("j.user", list)?;
        let uids: Vec<String> = list
            .split(',')
            .filter_map(|word| word.trim().parse::<u32>().ok())
            .map(|uid| uid.to_string())
            .collect();
        if uids.is_empty() {
            return Ok(());
        }
        let named = self.conditions.split_off(conditions);
        let named = named.trim_start_matches(" AND ");
        self.conditions.push_str(&format!(
            " AND ({named} OR j.spec IN (SELECT id FROM specs WHERE json_extract(CAST(doc AS TEXT), '$.user.uid') IN ({})))",
            uids.join(",")
        ));
        Ok(())
    }

    /// A job that was never placed is in each of the partitions that it may start in.
    fn partitions(&mut self, list: &str) -> ReadResult<()> {
        let before = self.values.len();
        let conditions = self.conditions.len();
        self.any("j.partition", list)?;
        if self.values.len() == before {
            return Ok(());
        }
        let among: Vec<String> = (before + 1..=self.values.len())
            .map(|at| format!("instr(',' || j.partition || ',', ',' || ?{at} || ',')"))
            .collect();
        let alone = self.conditions.split_off(conditions);
        let alone = alone.trim_start_matches(" AND ");
        self.conditions.push_str(&format!(
            " AND ({alone} OR instr(j.partition, ',') AND ({}))",
            among.join(" OR ")
        ));
        Ok(())
    }

    /// `17`, `98_5`, `98_[1-3]`, `98` (all its tasks).
    fn jobs(&mut self, text: &str) -> ReadResult<()> {
        let mut places = Vec::new();
        for (id, tasks) in named_jobs(text)? {
            let id = self.value(Value::from(id.cast_signed()));
            let Some(tasks) = tasks else {
                // A range of ids with two ends, also where there is no such array.
                places.push(format!(
                    "(j.id BETWEEN ?{id} AND ?{id} + coalesce((SELECT tasks FROM arrays WHERE id = ?{id}), 1) - 1
                      AND (j.id = ?{id} OR j.array_id = ?{id}))"
                ));
                // The leader's id means all components of a job of unlike parts.
                let leader = part_sql("p", "leader");
                places.push(format!(
                    "(j.id BETWEEN ?{id} + 1 AND ?{id} + {MOST_PARTS} AND EXISTS \
                      (SELECT 1 FROM specs p WHERE p.id = j.spec AND {leader} = ?{id}))"
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
            self.conditions
                .push_str(&format!(" AND ({})", places.join(" OR ")));
        }
        Ok(())
    }
}

/// `17`, `98_5`, `98_[1-3]`: ids that fit the database, with the indices asked for.
pub fn named_jobs(text: &str) -> ReadResult<Vec<(u64, Option<ArraySpec>)>> {
    let wrong = |word: &str| {
        ReadFailure::Question(format!(
            "{word:?} is not a job: write 17, 98_5, 98_[1-3] or 98"
        ))
    };
    let words = split_outside_brackets(text);
    bounded(words.len())?;
    let read = |word: &str| -> Option<(u64, Option<ArraySpec>)> {
        let (id, tasks) = word
            .split_once('_')
            .map_or((word, None), |(id, tasks)| (id, Some(tasks)));
        let id: i64 = match JobPart::parse(id) {
            Some((leader, offset)) => i64::try_from(leader.0.checked_add(offset.into())?).ok()?,
            None => id.parse().ok().filter(|id| *id >= 0)?,
        };
        let tasks = tasks.map(|tasks| {
            tasks
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
                .unwrap_or(tasks)
        });
        Some((
            id.cast_unsigned(),
            tasks.map(ArraySpec::parse).transpose().ok()?,
        ))
    };
    words
        .into_iter()
        .map(|word| read(word).ok_or_else(|| wrong(word)))
        .collect()
}

fn bounded(count: usize) -> ReadResult<()> {
    if count <= MAX_LISTED {
        return Ok(());
    }
    Err(ReadFailure::Question(format!(
        "{count} values in one filter; {MAX_LISTED} are allowed"
    )))
}

pub fn states(text: &str) -> ReadResult<Vec<&'static str>> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(|word| {
            JobState::parse(word).map(JobState::long).ok_or_else(|| {
                let all: Vec<&str> = JobState::ALL.iter().map(|state| state.long()).collect();
                ReadFailure::Question(format!(
                    "{word:?} is not a job state. States: {}",
                    all.join(" ")
                ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_lists_are_split_between_jobs_only() {
        assert_eq!(
            split_outside_brackets("17, 98_[1,3-5],98_7,"),
            ["17", "98_[1,3-5]", "98_7"]
        );
    }
}
