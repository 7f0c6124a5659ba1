//! Tasks that were cancelled before they had a record of their own: one line of accounting for those of an array.
//!
//! Owns how these lines are found and filtered. They lie in their array's row, not in `jobs`.

use super::accounting::{named_jobs, states};
use super::run_fields::requested;
use super::stored::{ReadResult, bytes, read, stored_array};
use crate::store::documents::ArrayDocument;
use gcore::ctl::{Array, RecentSpecs};
use gmodel::array_spec::RangeSet;
use gmodel::partition_list::names;
use gmodel::{ExitCode, Instant, JobId, JobState, Timestamp};
use gwire::api::{RunQuery, RunRow};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};
use std::collections::BTreeMap;

/// The newest `limit` lines that a query asks for, by id.
pub fn lines(db: &Connection, query: &RunQuery, limit: u32) -> ReadResult<Vec<RunRow>> {
    let wanted = states(&query.state)?;
    // They never were on a node.
    let ends = [JobState::Cancelled, JobState::Deadline]
        .map(|end| wanted.is_empty() || wanted.contains(&end.long()));
    if !query.nodelist.is_empty() || ends == [false, false] {
        return Ok(Vec::new());
    }
    let mut rows = if query.job.is_empty() {
        all(db, query, limit)?
    } else {
        named(db, query)?
    };
    rows.retain(|row| ends[usize::from(row.state == JobState::Deadline)]);
    rows.sort_by_key(|row| row.id);
    Ok(rows)
}

/// By id: `98`, `98_[7-9]`, or the number of one of the tasks.
fn named(db: &Connection, query: &RunQuery) -> ReadResult<Vec<RunRow>> {
    let mut asked: BTreeMap<JobId, (Array, Timestamp, RangeSet)> = BTreeMap::new();
    for (id, tasks) in named_jobs(&query.job)? {
        let Some((array, at)) = array_around(db, JobId(id))? else {
            continue;
        };
        let position = u32::try_from(id - array.id.0).unwrap_or(u32::MAX);
        let is_asked = |at: u32| match &tasks {
            Some(tasks) => {
                position == 0
                    && array
                        .tasks
                        .nth(at)
                        .is_some_and(|index| tasks.contains(index))
            }
            None => position == 0 || position == at,
        };
        let positions: RangeSet = array.cancelled.iter().filter(|at| is_asked(*at)).collect();
        let (_, _, known) = asked
            .entry(array.id)
            .or_insert_with(|| (array, at, RangeSet::new()));
        positions
            .runs()
            .for_each(|(first, last)| known.insert_range(first, last));
    }
    Ok(asked
        .values()
        .flat_map(|(array, at, positions)| by_end(query, array, *at, positions))
        .collect())
}

/// The array that an id is in, if any of its tasks were cancelled untouched.
fn array_around(db: &Connection, id: JobId) -> ReadResult<Option<(Array, Timestamp)>> {
    let found: Option<(u64, Option<i64>)> = db
        .prepare_cached(
            "SELECT id, cancelled_ms FROM arrays WHERE id <= ?1 ORDER BY id DESC LIMIT 1",
        )?
        .query_row([id.0], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((array, Some(at))) = found else {
        return Ok(None);
    };
    let array =
        stored_array(db, JobId(array))?.filter(|array| id.0 < array.id.0 + u64::from(array.len()));
    Ok(array.map(|array| (array, Timestamp(at))))
}

fn all(db: &Connection, query: &RunQuery, limit: u32) -> ReadResult<Vec<RunRow>> {
    let mut conditions = "a.cancelled_ms IS NOT NULL".to_owned();
    let mut values = Vec::new();
    if let Some(from) = query.from {
        values.push(Value::from(from.0.0));
        conditions.push_str(" AND a.cancelled_ms >= ?1");
    }
    let sql = format!(
        "SELECT a.doc, s.doc, a.cancelled_ms FROM arrays a CROSS JOIN specs s ON s.id = a.spec
         WHERE {conditions} ORDER BY a.id DESC"
    );
    let mut statement = db.prepare_cached(&sql)?;
    let mut found = statement.query(params_from_iter(&values))?;
    let mut rows = Vec::new();
    let mut late = RecentSpecs::default();
    while let Some(row) = found.next()?
        && rows.len() < limit as usize
    {
        let document: ArrayDocument = read(&bytes(row, 0)?)?;
        let array = document.with_spec(read(&bytes(row, 1)?)?, &mut late);
        rows.extend(by_end(
            query,
            &array,
            Timestamp(row.get(2)?),
            &array.cancelled,
        ));
    }
    Ok(rows)
}

/// One line for those that were cancelled, one for those that their deadline ended.
fn by_end(
    query: &RunQuery,
    array: &Array,
    at: Timestamp,
    positions: &RangeSet,
) -> impl Iterator<Item = RunRow> + use<> {
    let (late, cancelled): (Vec<u32>, Vec<u32>) = positions
        .iter()
        .partition(|at| array.dropped.late.contains(*at));
    let ends = [(JobState::Cancelled, cancelled), (JobState::Deadline, late)];
    ends.map(|(state, positions)| {
        let positions = positions.into_iter().collect();
        line(query, array, at, &positions, state)
    })
    .into_iter()
    .flatten()
}

/// None when the other filters leave it out.
fn line(
    query: &RunQuery,
    array: &Array,
    at: Timestamp,
    positions: &RangeSet,
    state: JobState,
) -> Option<RunRow> {
    let first = positions.first()?;
    let spec = &*array.spec;
    let listed =
        |list: &str, word: &str| list.is_empty() || list.split(',').any(|one| one.trim() == word);
    let asked = (listed(&query.user, &spec.user.name)
        || listed(&query.user, &spec.user.uid.to_string()))
        && listed(&query.account, &spec.account)
        && names(&spec.partition).any(|name| listed(&query.partition, name))
        && listed(&query.qos, &spec.qos)
        && listed(&query.name, &spec.name)
        && query.from.is_none_or(|from| at >= from.0)
        && query.to.is_none_or(|to| array.submitted <= to.0);
    let index = array.tasks.nth(first).filter(|_| positions.len() == 1);
    let tasks = array.tasks.text_of(positions);
    asked.then(|| RunRow {
        id: array.task_id(first).0,
        shown_id: match index {
            Some(index) => format!("{}_{index}", array.id),
            None => format!("{}_[{tasks}]", array.id),
        },
        array_id: Some(array.id.0),
        array_index: index,
        array_tasks: index.is_none().then_some(tasks),
        state,
        exit_code: ExitCode::SUCCESS,
        submit_time: Some(Instant(array.submitted)),
        end_time: Some(Instant(at)),
        time_limit_secs: array.limit_secs,
        cancelled_by: array
            .dropped
            .cancelled_by
            .clone()
            .filter(|_| state == JobState::Cancelled),
        ..requested(spec)
    })
}
