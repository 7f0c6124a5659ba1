//! The page of one job, of an array, or of a job of unlike parts.

use super::page::{Visitor, show_time};
use crate::http::inside::{Inside, InsideError};
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::Response;
use gcli::local_time::TimeFormat;
use gcli::why_text;
use gmodel::JobState;
use gweb::{JobPage, Place, WaitExplanation, job_page, tasks_page};
use gwire::api::{JobRow, RunRow, WhyRow};
use gwire::client::path_with_query;
use std::collections::BTreeMap;

/// Rows of one array that are shown.
const MOST_TASKS: usize = 200;
/// Runs of one job that are shown.
const MOST_RUNS: usize = 20;

pub(super) async fn show(visitor: Visitor, Path(id): Path<String>) -> Response {
    match made(&visitor, &id).await {
        Ok(page) => page,
        Err(error) => visitor.refused(&error),
    }
}

/// The address of a job below `/v1/jobs/`: its name may have brackets.
pub(super) fn v1_path(id: &str, what: &str) -> String {
    format!("/v1/jobs/{}{what}", gweb::percent_encoded(id))
}

async fn made(visitor: &Visitor, id: &str) -> Result<Response, InsideError> {
    let inside = visitor.inside();
    let mut jobs: Vec<JobRow> = inside.list(&v1_path(id, ""), "jobs").await?;
    let title = format!("Job {id}");
    if jobs.len() != 1 {
        let content = tasks_page(id, &jobs, MOST_TASKS);
        return Ok(visitor.ok(&title, Place::Elsewhere, &content));
    }
    let job = jobs.remove(0);
    let told = match job.state {
        JobState::Pending => Some(why(inside, &job).await),
        _ => None,
    };
    let runs = runs(inside, &job).await;
    let page = JobPage {
        why: told.as_ref().map(|told| match told {
            Ok(text) => WaitExplanation::Text(text),
            Err(error) => WaitExplanation::Refused(&error.said.error),
        }),
        runs: &runs,
        may_change: visitor.may_change(&job.user),
        form_word: &visitor.session.form_word,
        show_time: &show_time,
        job: &job,
    };
    let content = job_page(&page);
    Ok(visitor.page(StatusCode::OK, &title, Place::Elsewhere, &content))
}

/// As `gq --why` prints it.
async fn why(inside: &Inside, job: &JobRow) -> Result<String, InsideError> {
    let rows: Vec<WhyRow> = inside.list(&v1_path(&job.shown_id, "/why"), "jobs").await?;
    let times = TimeFormat::Standard;
    let texts = rows.iter().map(|row| why_text::text(row, &times));
    Ok(texts.collect())
}

/// The newest first; none where accounting does not answer, or is not for this visitor's token.
async fn runs(inside: &Inside, job: &JobRow) -> Vec<RunRow> {
    let query = [
        ("job", job.shown_id.clone()),
        ("attempts", "true".to_owned()),
    ];
    let path = path_with_query("/v1/runs", &BTreeMap::from(query));
    let mut runs: Vec<RunRow> = inside.list(&path, "runs").await.unwrap_or_default();
    runs.retain(|run| run.start_time.is_some());
    runs.reverse();
    runs.truncate(MOST_RUNS);
    runs
}
