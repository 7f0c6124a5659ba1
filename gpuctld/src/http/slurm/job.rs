//! Jobs of the queue and of accounting.

use super::error::SlurmError;
use super::listing::{RowShape, shaped};
use super::question::Query;
use super::request::{Answer, RestRequest};
use axum::http::Method;
use gmodel::JobState;
use gslurm_json::datum::RecordWriter;
use gslurm_json::job::{Groups, JOB, JobCell};
use gslurm_json::run::{RUN, RunCell};
use gwire::api::{JobQuery, JobRow, RunQuery};
use gwire::client::{escape, path_with_query};
use serde_json::json;

/// What chooses jobs of accounting in Slurm and has no counterpart.
const NOT_CHOSEN_BY: [&str; 11] = [
    "association",
    "constraints",
    "cpus_max",
    "cpus_min",
    "exit_code",
    "groups",
    "nodes_max",
    "nodes_min",
    "reason",
    "timelimit_max",
    "timelimit_min",
];

struct JobShape {
    groups: Groups,
    writer: RecordWriter<JobCell>,
}

impl RowShape for JobShape {
    fn put(&mut self, row: &[u8], out: &mut Vec<u8>) -> serde_json::Result<()> {
        let cell = self.groups.cell(serde_json::from_slice::<JobRow>(row)?);
        self.writer.write(out, &cell);
        Ok(())
    }
}

/// `GET jobs/`.
pub(super) async fn list(asked: &RestRequest, query: &mut Query) -> Result<Answer, SlurmError> {
    query.settle_whole()?;
    let all = JobQuery {
        state: "all".to_owned(),
        ..JobQuery::default()
    };
    listed(asked, &path_with_query("/v1/jobs", &all), query).await
}

/// `GET job/{job_id}`; of an array all tasks that have rows of their own.
pub(super) async fn one(
    asked: &RestRequest,
    id: &str,
    query: &mut Query,
) -> Result<Answer, SlurmError> {
    query.settle_whole()?;
    listed(asked, &format!("/v1/jobs/{}", escape(id)), query).await
}

async fn listed(asked: &RestRequest, path: &str, query: &Query) -> Result<Answer, SlurmError> {
    let rows = asked.v1.open(Method::GET, path, Vec::new()).await?;
    let shape = JobShape {
        groups: Groups::new(&asked.cluster),
        writer: RecordWriter::of(JOB),
    };
    let tail = asked.tail(&["last_backfill", "last_update"], query);
    Ok(Answer::Listing(shaped(rows, "jobs", &tail, shape)))
}

struct StateShape;

/// What `jobs/state` tells of a job.
#[derive(serde::Deserialize)]
struct StateRow {
    shown_id: String,
    state: JobState,
}

impl RowShape for StateShape {
    fn put(&mut self, row: &[u8], out: &mut Vec<u8>) -> serde_json::Result<()> {
        let row: StateRow = serde_json::from_slice(row)?;
        let state = json!({"job_id": row.shown_id, "state": [row.state.long()]});
        serde_json::to_writer(out, &state)
    }
}

/// `GET jobs/state/`.
pub(super) async fn states(asked: &RestRequest, query: &mut Query) -> Result<Answer, SlurmError> {
    let all = JobQuery {
        job: query.take("job_id"),
        state: "all".to_owned(),
        columns: "shown_id,state".to_owned(),
        ..JobQuery::default()
    };
    let path = path_with_query("/v1/jobs", &all);
    let rows = asked.v1.open(Method::GET, &path, Vec::new()).await?;
    let tail = asked.tail(&[], query);
    Ok(Answer::Listing(shaped(rows, "jobs", &tail, StateShape)))
}

struct RunShape {
    groups: Groups,
    writer: RecordWriter<RunCell>,
}

impl RowShape for RunShape {
    fn put(&mut self, row: &[u8], out: &mut Vec<u8>) -> serde_json::Result<()> {
        let cell = self.groups.run(serde_json::from_slice(row)?);
        self.writer.write(out, &cell);
        Ok(())
    }
}

/// `GET jobs/` and `job/{job_id}` of accounting.
pub(super) async fn runs(
    asked: &RestRequest,
    id: Option<&str>,
    query: &mut Query,
) -> Result<Answer, SlurmError> {
    query.refuse(&NOT_CHOSEN_BY)?;
    let chosen = run_query(asked, id, query)?;
    let path = path_with_query("/v1/runs", &chosen);
    let rows = asked.v1.open(Method::GET, &path, Vec::new()).await?;
    let shape = RunShape {
        groups: Groups::new(&asked.cluster),
        writer: RecordWriter::of(RUN),
    };
    let tail = asked.tail(&[], query);
    Ok(Answer::Listing(shaped(rows, "jobs", &tail, shape)))
}

fn run_query(
    asked: &RestRequest,
    id: Option<&str>,
    query: &mut Query,
) -> Result<RunQuery, SlurmError> {
    query.take_cluster(&asked.cluster)?;
    let steps = query.take("step");
    // Slurm's word for a run that was followed by another.
    let attempts = query.take_flag("show_duplicates")?;
    Ok(RunQuery {
        job: id.map_or(steps, str::to_owned),
        user: query.take("users"),
        account: query.take("account"),
        partition: query.take("partition"),
        qos: query.take("qos"),
        name: query.take("job_name"),
        state: query.take("state"),
        nodelist: query.take("node"),
        from: query.take_time("start_time")?,
        to: query.take_time("end_time")?,
        attempts,
        steps: !query.take_flag("skip_steps")?,
        detail: true,
        ..RunQuery::default()
    })
}
