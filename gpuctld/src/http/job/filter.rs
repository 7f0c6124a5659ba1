//! Which jobs a listing or a cancellation means: ids, users, partitions, states, nodes.
//!
//! Evaluated on the state row by row without allocation; by id without looking at other jobs.

use crate::http::error::ApiError;
use crate::http::existence::exists;
use crate::http::job::name::{JobName, component, job_names};
use crate::http::job::row::{Row, TaskGroup, View, positions};
use crate::http::permission::Visibility;
use crate::http::query::{QueryPairs, job_state, words};
use gcore::ctl::{Array, State};
use gmodel::hostlist::Hostlist;
use gmodel::partition_list::names;
use gmodel::{JobId, JobPart, JobState};
use gwire::api::JobQuery;
use std::collections::BTreeSet;

/// Keys of [`JobQuery`] in a URL.
const KEYS: [&str; 13] = [
    "job",
    "user",
    "not_user",
    "partition",
    "account",
    "qos",
    "name",
    "reservation",
    "state",
    "nodelist",
    "expand",
    "columns",
    "bare",
];

/// Reads the query string of a listing.
///
/// # Errors
/// An unknown key, with "did you mean".
pub(crate) fn job_query(pairs: QueryPairs) -> Result<JobQuery, ApiError> {
    let pairs = pairs.only(&KEYS)?;
    let text = |key| pairs.text(key).to_owned();
    Ok(JobQuery {
        job: text("job"),
        user: text("user"),
        not_user: text("not_user"),
        partition: text("partition"),
        account: text("account"),
        qos: text("qos"),
        name: text("name"),
        reservation: text("reservation"),
        state: text("state"),
        nodelist: text("nodelist"),
        expand: pairs.flag("expand")?,
        columns: text("columns"),
        bare: pairs.flag("bare")?,
    })
}

/// A checked [`JobQuery`].
pub(crate) struct JobFilter {
    /// `None` is all.
    ids: Option<Vec<JobName>>,
    users: Vec<String>,
    /// No jobs of these.
    not_users: Vec<String>,
    /// Those of `users` that are numbers.
    uids: Vec<u32>,
    partitions: Vec<String>,
    accounts: Vec<String>,
    qos: Vec<String>,
    names: Vec<String>,
    reservations: Vec<String>,
    states: StateSet,
    nodes: Option<Hostlist>,
}

/// A set of job states as bits; the default is what is not over.
#[derive(Clone, Copy)]
struct StateSet(u16);

impl StateSet {
    fn parse(text: &str) -> Result<Self, ApiError> {
        let list = words(text);
        if list.is_empty() {
            return Ok(Self::of(
                JobState::ALL.into_iter().filter(|state| !state.is_final()),
            ));
        }
        if list.iter().any(|word| word.eq_ignore_ascii_case("all")) {
            return Ok(Self(u16::MAX));
        }
        let states = list
            .iter()
            .map(|word| job_state(word))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self::of(states))
    }
    fn of(states: impl IntoIterator<Item = JobState>) -> Self {
        Self(
            states
                .into_iter()
                .fold(0, |bits, state| bits | 1 << state as u16),
        )
    }
    fn has(self, state: JobState) -> bool {
        self.0 & 1 << state as u16 != 0
    }
}

impl JobFilter {
    /// # Errors
    /// Naming the value that cannot be read.
    pub(crate) fn new(query: &JobQuery) -> Result<Self, ApiError> {
        let ids = words_of_ids(&query.job);
        let nodes = match query.nodelist.as_str() {
            "" => None,
            text => {
                Some(Hostlist::parse(text).map_err(|error| ApiError::invalid(error.to_string()))?)
            }
        };
        Ok(Self {
            ids: if ids.is_empty() {
                None
            } else {
                Some(job_names(&ids)?)
            },
            uids: words(&query.user)
                .iter()
                .filter_map(|word| word.parse().ok())
                .collect(),
            users: words(&query.user),
            not_users: words(&query.not_user),
            partitions: words(&query.partition),
            accounts: words(&query.account),
            qos: words(&query.qos),
            names: words(&query.name),
            reservations: words(&query.reservation),
            states: StateSet::parse(&query.state)?,
            nodes,
        })
    }

    /// # Errors
    /// It narrows to a node that is not there.
    pub(crate) fn nodes_exist(&self, state: &State) -> Result<(), ApiError> {
        let mut names = self.nodes.iter().flat_map(|nodes| nodes.iter());
        names.try_for_each(|name| exists("node", name, state.index.node_names.keys()))
    }

    /// Narrows to these jobs and tasks.
    pub(crate) fn with_ids(mut self, ids: Vec<JobName>) -> Self {
        self.ids = Some(ids);
        self
    }

    /// Whether nothing but the states narrows it.
    pub(crate) fn is_everything(&self) -> bool {
        let lists = [
            &self.users,
            &self.not_users,
            &self.partitions,
            &self.accounts,
            &self.qos,
            &self.names,
            &self.reservations,
        ];
        self.ids.is_none() && self.nodes.is_none() && lists.iter().all(|list| list.is_empty())
    }

    /// Calls back with every row meant that the reader may see, in order of ids where ids are given, else jobs
    /// before arrays.
    pub(crate) fn each<'a>(
        &self,
        view: View<'a>,
        sight: &Visibility,
        mut found: impl FnMut(Row<'a>),
    ) {
        let mut take = |row: Row<'a>| {
            if self.means(&row, view) && sight.sees(row.spec()) {
                found(row);
            }
        };
        match &self.ids {
            None => all_rows(view.state, &mut take),
            Some(ids) => rows_of(view.state, ids, &mut take),
        }
    }

    fn means(&self, row: &Row, view: View) -> bool {
        let spec = row.spec();
        let among =
            |list: &[String], value: &str| list.is_empty() || list.iter().any(|word| word == value);
        self.states.has(row.state())
            && (among(&self.users, &spec.user.name) || self.uids.contains(&spec.user.uid))
            && !self.not_users.contains(&spec.user.name)
            && (self.partitions.is_empty()
                || names(&spec.partition).any(|name| among(&self.partitions, name)))
            && among(&self.accounts, &spec.account)
            && among(&self.qos, &spec.qos)
            && among(&self.names, &spec.name)
            && among(&self.reservations, row.reservation().unwrap_or_default())
            && self
                .nodes
                .as_ref()
                .is_none_or(|nodes| on_nodes(row, view, nodes))
    }
}

/// Commas part ids, but not inside of brackets: `17,98_[1-3,7]`.
pub(crate) fn words_of_ids(text: &str) -> Vec<String> {
    let mut depth = 0_i32;
    let parts = text.split(|c| {
        depth += match c {
            '[' => 1,
            ']' => -1,
            _ => 0,
        };
        c == ',' && depth <= 0
    });
    parts
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

fn on_nodes(row: &Row, view: View, nodes: &Hostlist) -> bool {
    row.run(view).is_some_and(|run| {
        let mut held = run
            .allocation
            .iter()
            .filter_map(|share| view.state.nodes.get(share.node));
        held.any(|node| nodes.contains(&node.name))
    })
}

fn all_rows<'a>(state: &'a State, take: &mut impl FnMut(Row<'a>)) {
    state.jobs.values().for_each(|job| take(Row::Job(job)));
    state
        .arrays
        .values()
        .for_each(|array| rows_of_array(array, take));
}

fn rows_of_array<'a>(array: &'a Array, take: &mut impl FnMut(Row<'a>)) {
    for alike in TaskGroup::all(array) {
        if !positions(array, alike).is_empty() {
            take(Row::Tasks { array, alike });
        }
    }
}

/// Rows by id, each once. Tasks that are named have rows of their own.
fn rows_of<'a>(state: &'a State, ids: &[JobName], take: &mut impl FnMut(Row<'a>)) {
    let mut seen = BTreeSet::new();
    let mut once = |row: Row<'a>| {
        if seen.insert(row.key()) {
            take(row);
        }
    };
    for id in ids {
        match id {
            JobName::Job(id) => rows_of_job(state, *id, &mut once),
            JobName::Part { leader, offset } => {
                component(state, *leader, *offset).map(|job| once(Row::Job(job)));
            }
            JobName::Tasks { array: id, indices } => {
                let Some(array) = state.arrays.get(*id) else {
                    continue;
                };
                for position in indices
                    .iter()
                    .filter_map(|index| array.tasks.position(index))
                {
                    rows_of_task(state, array, position, &mut once);
                }
            }
        }
    }
}

fn rows_of_job<'a>(state: &'a State, id: JobId, take: &mut impl FnMut(Row<'a>)) {
    if let Some(array) = state.arrays.get(id) {
        let end = id.0 + u64::from(array.len());
        state
            .jobs
            .range(id.0, end)
            .for_each(|(_, job)| take(Row::Job(job)));
        rows_of_array(array, take);
    } else if let Some(job) = state.jobs.get(id) {
        take(Row::Job(job));
        // The leader's id means all components.
        let leads = job.spec.part.filter(|part| part.is_leader());
        let others = leads.into_iter().flat_map(JobPart::others);
        others
            .filter_map(|id| state.jobs.get(id))
            .for_each(|job| take(Row::Job(job)));
    } else if let Some((array, position)) = state.array_of(id) {
        rows_of_task(state, array, position, take);
    }
}

fn rows_of_task<'a>(
    state: &'a State,
    array: &'a Array,
    position: u32,
    take: &mut impl FnMut(Row<'a>),
) {
    if let Some(job) = state.jobs.get(array.task_id(position)) {
        take(Row::Job(job));
        return;
    }
    for alike in TaskGroup::all(array) {
        if positions(array, alike).contains(position) {
            take(Row::Task {
                array,
                position,
                alike,
            });
        }
    }
}

/// At most this many tasks of arrays have a row each in one answer.
pub(crate) const MAX_EXPANDED: u64 = 200_000;

/// One row for each of the tasks that a row stands for.
///
/// # Errors
/// When the answer would have more than [`MAX_EXPANDED`] of them.
pub(crate) fn expanded<'a>(rows: Vec<Row<'a>>) -> Result<Vec<Row<'a>>, ApiError> {
    let tasks = |row: &Row| match row {
        Row::Tasks { array, alike } => positions(array, *alike).len(),
        _ => 1,
    };
    let count: u64 = rows.iter().map(tasks).sum();
    if count > MAX_EXPANDED {
        let text = format!(
            "one row for each task would be {count} rows; {MAX_EXPANDED} is the most. Name an array or a user"
        );
        return Err(ApiError::limit(text));
    }
    let mut each = Vec::with_capacity(count as usize);
    for row in rows {
        match row {
            Row::Tasks { array, alike } => {
                let set = positions(array, alike);
                each.extend(set.iter().map(|position| Row::Task {
                    array,
                    position,
                    alike,
                }));
            }
            row => each.push(row),
        }
    }
    Ok(each)
}
