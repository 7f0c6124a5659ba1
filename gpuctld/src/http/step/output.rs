//! `GET /v1/jobs/{id}/output`: a client's stream of a job's output: what is kept here of its runs, and the file that the job's first node reads.

use crate::http::app::{ApiContext, StreamSource};
use crate::http::error::ApiError;
use crate::http::job::name::{JobName, job_name};
use crate::http::job::show::{found, in_full};
use crate::http::permission::{Caller, must_own};
use crate::http::step::kept_output::{KeptPart, missing_parts, send_parts};
use crate::http::step::stream::{AskedStream, ClientEnd, copy_both, node_end, switching, upgraded};
use axum::body::Body;
use axum::extract::{Extension, Path, Query, Request, State as Shared};
use axum::http::Response;
use gmodel::job::{OpenMode, UserRef};
use gmodel::job_output::SpooledFile;
use gmodel::output_stream::{OutputFrame, OutputOrder};
use gmodel::{JobId, JobState, RunId, hostlist};
use gwire::api::{JobRow, OutputQuery};
use gwire::min_rate::RateSwitch;
use gwire::permits::PermitPool;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use std::io;
use std::path::PathBuf;
use tokio::io::AsyncWriteExt;

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
    if !spec.has_script() {
        return Err(ApiError::invalid(format!(
            "job {id} is an allocation without a script: its steps write to the clients that start them"
        )));
    }
    let job = one_job(&site, &caller, &name, &id).await?;
    caller.may_act_on(JobId(job.id))?;
    let order = output_order(&job, query)?;
    let end = ClientEnd {
        client,
        switch,
        permits,
    };
    let permit = end.permit(&caller)?;
    let output = Output {
        job: &job,
        user: &spec.user,
        only_last: spec.launch.open_mode == Some(OpenMode::Truncate),
    };
    let (parts, ending) = output.sources(&site, order).await?;
    end.switch.turn_off();
    tokio::spawn(async move {
        let _permit = permit;
        // A client that is gone asks again, or does not.
        if let Ok(client) = end.client.await {
            let mut client = TokioIo::new(client);
            let _ = send(&mut client, parts, ending).await;
        }
    });
    Ok(switching())
}

/// What follows the outputs that are kept here.
enum Ending {
    Node(OnUpgrade),
    Last(OutputFrame),
}

type KeptFiles = Vec<(PathBuf, KeptPart)>;

async fn send(client: &mut TokioIo<Upgraded>, parts: KeptFiles, ending: Ending) -> io::Result<()> {
    send_parts(client, parts).await?;
    match ending {
        Ending::Last(frame) => {
            client.write_all(&frame.bytes()).await?;
            client.shutdown().await
        }
        Ending::Node(node) => {
            copy_both(client, node.await.map_err(io::Error::other)?).await;
            Ok(())
        }
    }
}

/// The output of one job.
struct Output<'a> {
    job: &'a JobRow,
    user: &'a UserRef,
    /// Each run begins its file anew.
    only_last: bool,
}

impl Output<'_> {
    /// What is kept of it, and its node where the newest run's output is not.
    async fn sources(
        &self,
        site: &ApiContext,
        order: OutputOrder,
    ) -> Result<(KeptFiles, Ending), ApiError> {
        let last = self.job.attempts;
        let parts = self.kept_parts(site, &order).await?;
        let is_whole = |parts: &KeptFiles| parts.iter().any(|(_, part)| part.attempt == last);
        if is_whole(&parts) || self.job.state == JobState::Pending && !parts.is_empty() {
            return Ok((parts, Ending::Last(OutputFrame::End)));
        }
        let follow = order.follow;
        match self.of_node(site, order.clone()).await {
            Ok(node) => Ok((parts, Ending::Node(node))),
            Err(error) => {
                // It may have come from the node meanwhile.
                let parts = self.kept_parts(site, &order).await?;
                if is_whole(&parts) {
                    Ok((parts, Ending::Last(OutputFrame::End)))
                } else if parts.is_empty() || follow {
                    Err(error)
                } else {
                    Ok((parts, Ending::Last(OutputFrame::Refused(error.text))))
                }
            }
        }
    }

    async fn kept_parts(
        &self,
        site: &ApiContext,
        order: &OutputOrder,
    ) -> Result<KeptFiles, ApiError> {
        let (id, stderr) = (JobId(self.job.id), order.stderr);
        let kept = site.app.kept.clone();
        let found = tokio::task::spawn_blocking(move || kept.attempts(id, stderr)).await;
        let mut attempts = found.unwrap_or_default();
        if self.only_last {
            attempts.retain(|attempt| *attempt == self.job.attempts);
        }
        let parts = missing_parts(&attempts, self.job.attempts, order);
        let with_path = |part: KeptPart| {
            let run = RunId::new(id, part.attempt);
            (site.app.kept.path(SpooledFile { run, stderr }), part)
        };
        Ok(parts.into_iter().map(with_path).collect())
    }

    /// A reader on the node of the newest run.
    async fn of_node(
        &self,
        site: &ApiContext,
        mut order: OutputOrder,
    ) -> Result<OnUpgrade, ApiError> {
        let job = self.job;
        let name = first_node(job)?;
        // In the row of a job that is over the node's name is still open.
        let short = name.split('.').next().unwrap_or(&name);
        order.path = order.path.replace("%N", short);
        let id = &job.shown_id;
        let state = site.core.view().await;
        let node = state.node_by_name(&name).map(|node| node.id);
        drop(state);
        let node = node.ok_or_else(|| {
            ApiError::not_found(format!(
                "job {id} ran on {name}, which is no node any more; its output went to {}",
                order.path
            ))
        })?;
        let asked = AskedStream {
            run: RunId::new(JobId(job.id), job.attempts),
            node,
            words: format!("{name}: the output of job {id} ({})", order.path),
            source: StreamSource::Output {
                user: self.user.clone(),
                order,
            },
        };
        node_end(site, asked).await
    }
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

fn output_order(job: &JobRow, query: OutputQuery) -> Result<OutputOrder, ApiError> {
    let path = match query.stderr {
        true => &job.stderr,
        false => &job.stdout,
    };
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
        path: path.clone(),
        stderr: query.stderr && job.stderr != job.stdout,
        file,
        position: query.position,
        tail_lines: query.tail,
        follow: query.follow,
        ..OutputOrder::default()
    })
}
