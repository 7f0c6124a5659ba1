//! `POST /v1/jobs/cancel`: by id, by filter, or ids narrowed by a filter; ten thousand in one command. Steps by their names.
//!
//! The filter is evaluated on the view, what it means is sent to the core as targets: one commit for all.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::control::{confine, each, own_id};
use crate::http::job::filter::{JobFilter, words_of_ids};
use crate::http::job::name::{each_task, job_names, targets};
use crate::http::job::row::{Row, View, positions};
use crate::http::permission::{Caller, Visibility};
use crate::http::step;
use axum::Json;
use axum::extract::State as Shared;
use axum::extract::rejection::JsonRejection;
use gcore::ctl::{CancelSignal, Command, State, Target};
use gmodel::signal::MAX_SIGNAL;
use gwire::api::{CancelRequest, EachResult, JobQuery, SCHEMA};

pub(crate) async fn cancel(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: Result<Json<CancelRequest>, JsonRejection>,
) -> Result<Json<EachResult>, ApiError> {
    let Json(request) = body?;
    let signal = signal(&request)?;
    let words = request.jobs.iter().flat_map(|text| words_of_ids(text));
    let (steps, names): (Vec<String>, Vec<String>) =
        words.partition(|word| step::signal::names_step(word));
    step::signal::check(&request, &steps)?;
    let of_steps = step::signal::each(&site, &caller, &steps, request.signal).await;
    let targets = match &request.filter {
        None if names.is_empty() && !steps.is_empty() => Vec::new(),
        None if names.is_empty() => {
            return Err(ApiError::invalid(
                "no job is named and no filter is given. Name jobs, or --user, --name, --partition, --state",
            ));
        }
        None => targets(&job_names(&names)?)?,
        Some(filter) => {
            let filter = filter_of(filter, &names)?;
            let state = site.core.view().await;
            matching(&caller, &state, &filter)?
        }
    };
    if targets.is_empty() {
        return Ok(Json(EachResult {
            schema: SCHEMA,
            results: of_steps,
        }));
    }
    confine(&site, &caller, &targets).await?;
    let Json(mut of_all) = each(&site, caller, Command::Cancel { targets, signal }).await?;
    of_all.results.splice(..0, of_steps);
    Ok(Json(of_all))
}

fn signal(request: &CancelRequest) -> Result<Option<CancelSignal>, ApiError> {
    match request.signal {
        None if request.batch_only => Err(ApiError::invalid("batch_only goes with a signal")),
        _ if request.batch_only && request.full => {
            Err(ApiError::invalid("batch_only and full: one of the two"))
        }
        None => Ok(None),
        Some(signal) if (1..=MAX_SIGNAL).contains(&signal) => Ok(Some(CancelSignal {
            signal,
            batch_only: request.batch_only,
            full: request.full,
        })),
        Some(signal) => Err(ApiError::invalid(format!(
            "signal {signal} is none; 1 to {MAX_SIGNAL} are"
        ))),
    }
}

fn filter_of(query: &JobQuery, names: &[String]) -> Result<JobFilter, ApiError> {
    let filter = JobFilter::new(query)?;
    if !names.is_empty() {
        return Ok(filter.with_ids(job_names(names)?));
    }
    if filter.is_everything() && query.state.is_empty() {
        return Err(ApiError::invalid(
            "the filter is empty and would mean every job. Name a user, partition, account, name or state",
        ));
    }
    Ok(filter)
}

/// What a filter means that the caller may cancel; others' jobs are left out, as scancel does.
fn matching(caller: &Caller, state: &State, filter: &JobFilter) -> Result<Vec<Target>, ApiError> {
    let view = View::new(state, crate::core_thread::now());
    let sight = Visibility::of(caller, state);
    let (mut found, mut others) = (Vec::new(), 0_u64);
    filter.each(view, &sight, |row| {
        if row.state().is_final() {
            return;
        }
        if caller.actor.operator || row.spec().user.is(&caller.actor.user, caller.actor.uid) {
            add_targets(&row, &mut found);
        } else {
            others += 1;
        }
    });
    if found.is_empty() && others > 0 {
        let text = format!(
            "the filter means {others} jobs of others and none of yours ({}). Ask an operator",
            caller.actor.user
        );
        return Err(ApiError::denied(text));
    }
    if let Some(jobs) = caller.confined_to() {
        found = found.iter().flat_map(each_task).collect();
        found.retain(|target| own_id(state, target).is_some_and(|id| jobs.contains(&id)));
    }
    Ok(found)
}

/// Waiting tasks of an array are named as such: the array's id would mean the running ones too.
fn add_targets(row: &Row, found: &mut Vec<Target>) {
    match row {
        // The first task of an array has the array's id.
        Row::Job(job) => found.push(match job.task {
            Some(task) => Target::Task {
                array: task.array,
                index: task.index,
            },
            None => Target::Job(job.id),
        }),
        Row::Tasks { array, .. }
            if array.own_pending == 0 && array.own_live == 0 && array.apart.is_empty() =>
        {
            found.push(Target::Job(array.id));
        }
        Row::Tasks { array, alike } => {
            let indices = array.tasks.at(&positions(array, *alike));
            found.extend(indices.map(|indices| Target::Tasks {
                array: array.id,
                indices,
            }));
        }
        Row::Task {
            array, position, ..
        } => {
            let index = array.tasks.nth(*position);
            found.extend(index.map(|index| Target::Task {
                array: array.id,
                index,
            }));
        }
    }
}
