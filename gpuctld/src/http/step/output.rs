//! `GET /v1/jobs/{id}/output`: a client's stream of a job's output file, which the job's first node reads as the job's user.

use crate::http::app::{ApiContext, StreamSource};
use crate::http::error::ApiError;
use crate::http::job::name::{JobName, job_name};
use crate::http::job::show::{found, in_full};
use crate::http::permission::{Caller, must_own};
use crate::http::step::stream::{AskedStream, ClientEnd, relay, upgraded};
use axum::body::Body;
use axum::extract::{Extension, Path, Query, Request, State as Shared};
use axum::http::Response;
use gmodel::output_stream::OutputOrder;
use gmodel::{JobId, JobState, RunId, hostlist};
use gwire::api::{JobRow, OutputQuery};
use gwire::min_rate::RateSwitch;
use gwire::permits::PermitPool;

pub(crate) async fn open(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(id): Path<String>,
    Query(query): Query<OutputQuery>,
    Extension(switch): Extension<RateSwitch>,
    Extension(permits): Extension<PermitPool<u32>>,
    mut request: Request,
) -> Result<Response<Body>, ApiError> {
    let client = upgraded(&mut request)?;
    let name = job_name(&id)?;
    let (spec, _) = found(&site, &name, &id).await?;
    must_own(&caller, &spec, &id, "output")?;
    if spec.allocation {
        return Err(ApiError::invalid(format!(
            "job {id} is an allocation without a script: its steps write to the clients that start them"
        )));
    }
    let job = one_job(&site, &caller, &name, &id).await?;
    caller.may_act_on(JobId(job.id))?;
    let node_name = first_node(&job)?;
    let order = output_order(&job, &node_name, query)?;
    let state = site.core.view().await;
    let node = state.node_by_name(&node_name).map(|node| node.id);
    drop(state);
    let node = node.ok_or_else(|| {
        ApiError::not_found(format!(
            "job {id} ran on {node_name}, which is no node any more; its output went to {}",
            order.path
        ))
    })?;
    let asked = AskedStream {
        run: RunId::new(JobId(job.id), job.attempts),
        node,
        words: format!("{node_name}: the output of job {id} ({})", order.path),
        source: StreamSource::Output {
            user: spec.user.clone(),
            order,
        },
    };
    let end = ClientEnd {
        client,
        switch,
        permits,
    };
    relay(&site, &caller, asked, end).await
}

async fn one_job(
    site: &ApiContext,
    caller: &Caller,
    name: &JobName,
    shown: &str,
) -> Result<JobRow, ApiError> {
    let mut jobs = in_full(site, caller, name).await?;
    match jobs.pop() {
        Some(job) if jobs.is_empty() => Ok(job),
        None => Err(ApiError::not_found(format!("there is no job {shown}"))),
        Some(_) => Err(ApiError::invalid(format!(
            "{shown} names several tasks, and each has a file of its own. Name one: {shown}_1"
        ))),
    }
}

/// Where its script runs or ran last.
fn first_node(job: &JobRow) -> Result<String, ApiError> {
    let nodes = hostlist::expand(&job.nodelist, hostlist::MAX_HOSTS).unwrap_or_default();
    nodes.into_iter().next().ok_or_else(|| {
        let text = match job.state {
            JobState::Pending => format!("job {} has not started", job.shown_id),
            _ => format!("job {} never ran, so it has no output", job.shown_id),
        };
        ApiError::conflict(text)
    })
}

fn output_order(job: &JobRow, node: &str, query: OutputQuery) -> Result<OutputOrder, ApiError> {
    let path = match query.stderr {
        true => &job.stderr,
        false => &job.stdout,
    };
    // In the row of a job that is over the node's name is still open.
    let path = path.replace("%N", node.split('.').next().unwrap_or(node));
    if path == "/dev/null" {
        return Err(ApiError::invalid(format!(
            "job {} writes to no file",
            job.shown_id
        )));
    }
    let file = match query.file.as_str() {
        "" => None,
        text => Some(
            text.parse()
                .map_err(|e| ApiError::invalid(format!("file = {text:?}: {e}")))?,
        ),
    };
    Ok(OutputOrder {
        path,
        file,
        position: query.position,
        tail_lines: query.tail,
        follow: query.follow,
    })
}
