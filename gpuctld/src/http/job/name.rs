//! Jobs as people name them: `17`, `98_5`, `98_[1-3,7]`; and finding what a name means in the state.
//!
//! Owns the grammar and its bounds. Arrays and their tasks may be named by either id.

use crate::http::error::ApiError;
use crate::http::job::row::{Row, TaskGroup, positions};
use gcore::ctl::{State, Target};
use gmodel::array_spec::{ArraySpec, MAX_TASKS};
use gmodel::job_part::MOST_PARTS;
use gmodel::{JobId, JobPart, RefusalKind};

/// Names in one request.
const MAX_NAMES: usize = 100_000;
/// Targets of one command.
const MAX_TARGETS: u64 = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobName {
    /// A job; all of it when it is an array, as `98_*` has it too.
    Job(JobId),
    /// A component of a job of unlike parts; the leader's id alone is the whole.
    Part { leader: JobId, offset: u32 },
    /// Tasks by index.
    Tasks { array: JobId, indices: ArraySpec },
}

/// # Errors
/// When it is none of the forms.
pub(crate) fn job_name(text: &str) -> Result<JobName, ApiError> {
    let wrong = || {
        let shown: String = text.chars().take(40).collect();
        ApiError::invalid(format!(
            "{shown:?} names no job. Write 17, 17+1, 98_5 or 98_[1-3]"
        ))
        .about(RefusalKind::Job, shown)
    };
    if let Some((leader, offset)) = JobPart::parse(text) {
        return match (offset as usize) < MOST_PARTS {
            true => Ok(JobName::Part { leader, offset }),
            false => Err(wrong()),
        };
    }
    let Some((array, tasks)) = text.split_once('_') else {
        return text.parse().map(JobName::Job).map_err(|_| wrong());
    };
    let array: JobId = array.parse().map_err(|_| wrong())?;
    if tasks == "*" {
        return Ok(JobName::Job(array));
    }
    let inner = match tasks.strip_prefix('[') {
        Some(bracketed) => bracketed.strip_suffix(']').ok_or_else(wrong)?,
        None if tasks.bytes().all(|b| b.is_ascii_digit()) => tasks,
        None => return Err(wrong()),
    };
    let indices = ArraySpec::parse(inner).map_err(|_| wrong())?;
    Ok(JobName::Tasks { array, indices })
}

/// # Errors
/// On the first text that is no name, and when there are too many.
pub(crate) fn job_names(texts: &[String]) -> Result<Vec<JobName>, ApiError> {
    if texts.len() > MAX_NAMES {
        return Err(ApiError::limit(format!(
            "{} jobs are named; {MAX_NAMES} is the most of one request",
            texts.len()
        )));
    }
    texts.iter().map(|text| job_name(text)).collect()
}

/// What a command acts on.
///
/// # Errors
/// When they are too many.
pub(crate) fn targets(names: &[JobName]) -> Result<Vec<Target>, ApiError> {
    let count: u64 = names
        .iter()
        .map(|name| {
            if let JobName::Tasks { indices, .. } = name {
                u64::from(indices.len())
            } else {
                1
            }
        })
        .sum();
    if count > MAX_TARGETS {
        let text = format!(
            "{count} jobs and tasks are named; {MAX_TARGETS} is the most of one request. Name the whole array"
        );
        return Err(ApiError::limit(text));
    }
    let target = |name: &JobName| match name {
        JobName::Job(id) => Target::Job(*id),
        JobName::Part { leader, offset } => Target::Part {
            leader: *leader,
            offset: *offset,
        },
        JobName::Tasks { array, indices } => match indices.bounds() {
            (index, last) if index == last => Target::Task {
                array: *array,
                index,
            },
            _ => Target::Tasks {
                array: *array,
                indices: indices.clone().with_limit(None),
            },
        },
    };
    Ok(names.iter().map(target).collect())
}

/// Each task of a set by itself.
pub(crate) fn each_task(target: &Target) -> Vec<Target> {
    match target {
        Target::Tasks { array, indices } => indices
            .iter()
            .map(|index| Target::Task {
                array: *array,
                index,
            })
            .collect(),
        one => vec![one.clone()],
    }
}

pub(crate) fn target_text(target: &Target) -> String {
    match target {
        Target::Job(id) => id.to_string(),
        Target::Part { leader, offset } => format!("{leader}+{offset}"),
        Target::Task { array, index } => format!("{array}_{index}"),
        Target::Tasks { array, indices } => format!("{array}_[{indices}]"),
    }
}

/// A component of a job of unlike parts.
pub(crate) fn component(state: &State, leader: JobId, offset: u32) -> Option<&gcore::ctl::Job> {
    let job = state
        .jobs
        .get(JobId(leader.0.saturating_add(u64::from(offset))))?;
    let part = job.spec.part?;
    (part.leader == leader).then_some(job)
}

/// The one job or task that a name in a path means, in memory.
pub(crate) fn one_row<'a>(state: &'a State, name: &JobName) -> Option<Row<'a>> {
    match name {
        JobName::Job(id) => {
            if let Some(array) = state.arrays.get(*id) {
                return first_row_of_array(state, array);
            }
            if let Some(job) = state.jobs.get(*id) {
                return Some(Row::Job(job));
            }
            let (array, position) = state.array_of(*id)?;
            row_of_task(state, array, position)
        }
        JobName::Part { leader, offset } => component(state, *leader, *offset).map(Row::Job),
        JobName::Tasks { array, indices } => {
            let array = state.arrays.get(*array)?;
            row_of_task(state, array, array.tasks.position(indices.bounds().0)?)
        }
    }
}

/// An array's own row: its waiting tasks, else a task that lives, else the first.
fn first_row_of_array<'a>(state: &'a State, array: &'a gcore::ctl::Array) -> Option<Row<'a>> {
    let waiting = TaskGroup::all(array)
        .filter(|alike| !matches!(alike, TaskGroup::Cancelled | TaskGroup::Late))
        .find(|alike| !positions(array, *alike).is_empty());
    if let Some(alike) = waiting {
        return Some(Row::Tasks { array, alike });
    }
    let end = array.id.0 + u64::from(array.len().min(MAX_TASKS));
    let mut jobs = state.jobs.range(array.id.0, end).map(|(_, job)| job);
    let first = jobs.next();
    let live = first
        .into_iter()
        .chain(jobs)
        .find(|job| !job.state.is_final());
    live.or(first).map(Row::Job).or_else(|| {
        let over = [TaskGroup::Cancelled, TaskGroup::Late];
        let alike = over
            .into_iter()
            .find(|alike| !positions(array, *alike).is_empty())?;
        Some(Row::Tasks { array, alike })
    })
}

fn row_of_task<'a>(
    state: &'a State,
    array: &'a gcore::ctl::Array,
    position: u32,
) -> Option<Row<'a>> {
    if let Some(job) = state.jobs.get(array.task_id(position)) {
        return Some(Row::Job(job));
    }
    TaskGroup::all(array)
        .find(|alike| positions(array, *alike).contains(position))
        .map(|alike| Row::Task {
            array,
            position,
            alike,
        })
}
