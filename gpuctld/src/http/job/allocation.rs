//! `POST /v1/jobs/{id}/attend` and `/end`: the client of an allocation waits for it, stays with it and ends it.
//!
//! That a client is there is noted in memory only (`attendance.rs`); the end is the core's.

use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::forecast::why::expected_start;
use crate::http::job::control::confine;
use crate::http::job::row::{Row, View};
use crate::http::permission::{Caller, must_own};
use crate::launch_orders::order_without_texts;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State as Shared};
use gcore::ctl::state::Run;
use gcore::ctl::{AllocationEnd, Command, Job, State, Target};
use gmodel::job_environment::{job_words, part_words};
use gmodel::partition_list::names;
use gmodel::{JobId, JobState, RefusalKind};
use gwire::api::{
    AllocationEndRequest, AllocationStanding, AttendReply, AttendRequest, ChangeReply, SCHEMA,
};
use std::time::{Duration, Instant};

/// Longest that a question may wait.
const MAX_WAIT_SECS: u32 = 10;
/// Between two looks of one waiter.
const WAIT_PAUSE: Duration = Duration::from_millis(10);

pub(crate) async fn attend(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(id): Path<String>,
    body: Result<Json<AttendRequest>, JsonRejection>,
) -> Result<Json<AttendReply>, ApiError> {
    let Json(request) = body?;
    let id = allocation_id(&id)?;
    confine(&site, &caller, &[Target::Job(id)]).await?;
    may_attend(&caller, find(&*site.core.view().await, id)?)?;
    let others = site.app.attendance().present(id);
    let _open = site.app.attendance().attend(id);
    let wait = Duration::from_secs(request.wait_secs.min(MAX_WAIT_SECS).into());
    let until = Instant::now() + wait;
    let mut answer = loop {
        let seen = site.core.version();
        let state = site.core.view().await;
        let answer = standing(&state, find(&state, id)?);
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || request.known != Some(answer.standing) {
            break answer;
        }
        site.core.wait_changed(seen, left).await;
        tokio::time::sleep(WAIT_PAUSE).await;
    };
    answer.others = others;
    if request.forecast && answer.standing.state == JobState::Pending {
        answer.expected_start = expected_start(&site, id).await?;
    }
    Ok(Json(answer))
}

pub(crate) async fn end(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(id): Path<String>,
    body: Result<Json<AllocationEndRequest>, JsonRejection>,
) -> Result<Json<ChangeReply>, ApiError> {
    let Json(request) = body?;
    let target = Target::Job(allocation_id(&id)?);
    confine(&site, &caller, std::slice::from_ref(&target)).await?;
    let end = AllocationEnd::Done(request.exit_code);
    site.core
        .command(caller.actor, Command::EndAllocation { target, end })
        .await?;
    Ok(Json(ChangeReply {
        schema: SCHEMA,
        notes: Vec::new(),
    }))
}

fn allocation_id(text: &str) -> Result<JobId, ApiError> {
    text.parse().map_err(|_| {
        let shown: String = text.chars().take(40).collect();
        ApiError::invalid(format!(
            "{shown:?} names no allocation. Write its number: 17"
        ))
    })
}

fn find(state: &State, id: JobId) -> Result<&Job, ApiError> {
    state.jobs.get(id).ok_or_else(|| {
        ApiError::not_found(format!(
            "there is no job {id} in the queue any more: gacct -j {id}"
        ))
        .about(RefusalKind::Job, id.to_string())
    })
}

fn may_attend(caller: &Caller, job: &Job) -> Result<(), ApiError> {
    must_own(caller, &job.spec, &job.shown_id(), "client")?;
    match job.spec.allocation {
        true => Ok(()),
        false => Err(ApiError::conflict(format!(
            "job {} has a script and needs no client",
            job.shown_id()
        ))),
    }
}

fn standing(state: &State, job: &Job) -> AttendReply {
    let view = View::new(state, now());
    let row = Row::Job(job);
    let run = job.live_run().and_then(|run| state.runs.get(run));
    let takes_steps = |run: &&Run| run.go.is_some() && run.stop.is_none() && run.outcome.is_none();
    let granted = run.filter(takes_steps);
    let stop = run.and_then(|run| run.stop.as_ref());
    AttendReply {
        schema: SCHEMA,
        standing: AllocationStanding {
            state: row.state(),
            reason: row.reason_code(view),
            granted: granted.is_some(),
        },
        reason_text: row.reason_text(view).into_owned(),
        expected_start: None,
        nodelist: granted.map_or(String::new(), |_| row.nodelist(view)),
        environment: granted.map_or(Vec::new(), |run| environment(state, job, run)),
        interactive_step: granted.is_some_and(|_| has_interactive_step(state, job)),
        others: 0,
        end_text: match stop {
            Some(stop) if !job.state.is_final() => stop.text.clone(),
            _ => job.past.end_text.to_string(),
        },
    }
}

/// Of several partitions that it asked for, where one says so.
fn has_interactive_step(state: &State, job: &Job) -> bool {
    let mut partitions = names(&job.spec.partition).filter_map(|name| state.config.partition(name));
    partitions.any(|partition| partition.interactive_step)
}

/// As its nodes will have it, but for what differs between them.
fn environment(state: &State, job: &Job, run: &Run) -> Vec<String> {
    let Some(first) = run.allocation.first() else {
        return Vec::new();
    };
    let order = order_without_texts(state, first.node, run, &job.spec);
    let mut words = job_words(&order);
    words.push(("JOB_UID", job.spec.user.uid.to_string()));
    words.push(("JOB_GID", job.spec.user.gid.to_string()));
    let started = run.started.or(run.go).unwrap_or(run.placed).secs();
    words.push(("JOB_START_TIME", started.to_string()));
    if let Some(limit) = run.limit_secs {
        words.push(("JOB_END_TIME", (started + i64::from(limit)).to_string()));
    }
    words
        .into_iter()
        .map(|(word, value)| (word.to_owned(), value))
        .chain(part_words(&order))
        .flat_map(|(word, value)| {
            [
                format!("SLURM_{word}={value}"),
                format!("GSUB_{word}={value}"),
            ]
        })
        .collect()
}
