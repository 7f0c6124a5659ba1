//! `GET /v1/steps`: the steps under way. Ended steps are in the history.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::filter::{JobFilter, job_query};
use crate::http::job::row::View;
use crate::http::permission::{Caller, Visibility};
use crate::http::query::QueryPairs;
use crate::http::step::live_use;
use crate::store::reader::StoredStep;
use axum::Json;
use axum::extract::State as Shared;
use gcore::ctl::Run;
use gmodel::run::{RunUse, Usage};
use gmodel::{ExitCode, Instant, JobId, JobState, Timestamp, hostlist};
use gwire::api::{SCHEMA, StepRow};
use serde::Serialize;

/// The step of the script.
pub(crate) const BATCH: &str = "batch";

#[derive(Serialize)]
pub(crate) struct StepList {
    schema: u32,
    steps: Vec<StepRow>,
}

/// The steps under way, by job; filters are those of the queue. With `live` their nodes are asked what they use by now.
pub(crate) async fn list(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    mut pairs: QueryPairs,
) -> Result<Json<StepList>, ApiError> {
    let live = pairs.take_flag("live")?;
    let filter = running_filter(pairs)?;
    let state = site.core.view().await;
    let now = crate::core_thread::now();
    let view = View::new(&state, now);
    let mut jobs = Vec::new();
    filter.each(view, &Visibility::of(&caller, &state), |row| {
        if let Some(run) = row.run(view).filter(|run| run.go.is_some()) {
            jobs.push((row, run));
        }
    });
    jobs.sort_by_key(|(row, _)| row.id());
    let ids = jobs.iter().map(|(row, _)| JobId(row.id())).collect();
    let stored = site.core.reader().steps(ids).await?;
    let nodes = |run: &Run| {
        let nodes = run.allocation.iter().map(|share| share.node);
        (run.id, nodes.collect())
    };
    let asked: Vec<_> = jobs
        .iter()
        .filter(|_| live)
        .map(|(_, run)| nodes(run))
        .collect();
    let uses = live_use::of_runs(&site, &asked).await?;
    let mut all = Vec::new();
    for ((row, run), stored) in jobs.iter().zip(&stored) {
        let (spec, live) = (row.spec(), uses.get(&run.id));
        let of = StepSource {
            job: row.id(),
            shown_id: &row.shown_id(),
            user: &spec.user.name,
            account: &spec.account,
            partition: &spec.partition,
            qos: &spec.qos,
            attempt: run.id.attempt,
            state: row.state(),
            exit: row.exit(),
            nodelist: &row.nodelist(view),
            started: row.started(),
            ended: row.ended(),
            used: live.map(|used| (cpu_secs(&used.all), used.all.peak_memory_bytes)),
            live,
            has_script: spec.has_script(),
        };
        all.extend(
            of.rows(stored, now)
                .into_iter()
                .filter(|step| step.end_time.is_none()),
        );
    }
    Ok(Json(StepList {
        schema: SCHEMA,
        steps: all,
    }))
}

/// As the query says; without a state, of running and suspended jobs.
fn running_filter(pairs: QueryPairs) -> Result<JobFilter, ApiError> {
    let mut query = job_query(pairs)?;
    if query.state.is_empty() {
        let running = [JobState::Running, JobState::Suspended];
        query.state = running.map(JobState::long).join(",");
    }
    JobFilter::new(&query)
}

/// The run that steps are of.
pub(crate) struct StepSource<'a> {
    pub(crate) job: u64,
    pub(crate) shown_id: &'a str,
    pub(crate) user: &'a str,
    pub(crate) account: &'a str,
    pub(crate) partition: &'a str,
    pub(crate) qos: &'a str,
    pub(crate) attempt: u32,
    pub(crate) state: JobState,
    pub(crate) exit: ExitCode,
    pub(crate) nodelist: &'a str,
    pub(crate) started: Option<Timestamp>,
    pub(crate) ended: Option<Timestamp>,
    /// Seconds of CPU time and peak of memory, where they are known.
    pub(crate) used: Option<(f64, u64)>,
    /// Of steps under way.
    pub(crate) live: Option<&'a RunUse>,
    pub(crate) has_script: bool,
}

impl StepSource<'_> {
    /// The batch script, then the steps of gruns; nothing of a run that never began. A step without a reported end
    /// has ended with the run, and its use is counted with the script: the rows add up to the run.
    pub(crate) fn rows(&self, stored: &[StoredStep], now: Timestamp) -> Vec<StepRow> {
        let Some(began) = self.started else {
            return Vec::new();
        };
        let nodes = hostlist::expand(self.nodelist, hostlist::MAX_HOSTS).unwrap_or_default();
        let first = &nodes[..nodes.len().min(1)];
        let of_run: Vec<&StoredStep> = stored
            .iter()
            .filter(|step| step.attempt == self.attempt)
            .collect();
        let used = |step: &StoredStep| match step.ended {
            Some(end) => end.used,
            None => self.live.and_then(|live| live.of_step(step.number)),
        };
        let of_gruns: f64 = of_run
            .iter()
            .filter_map(|step| used(step))
            .map(|used| cpu_secs(&used))
            .sum();
        let batch = || StepRow {
            state: self.state,
            exit_code: self.exit,
            ntasks: 1,
            cpu_time_secs: self.used.map(|(all, _)| (all - of_gruns).max(0.0)),
            peak_memory_bytes: self.used.map(|(_, peak)| peak),
            ..self.row(BATCH, BATCH, first, began, self.ended, now)
        };
        let mut rows: Vec<StepRow> = self.has_script.then(batch).into_iter().collect();
        for step in of_run {
            let on = step_nodes(step, &nodes);
            let used = used(step);
            let (ended, state, exit_code) = self.end_of(step, used.as_ref());
            let id = step.number.to_string();
            let row = self.row(&id, &step.name, &on, step.started, ended, now);
            rows.push(StepRow {
                state,
                exit_code,
                ntasks: step.tasks,
                cpu_time_secs: used.map(|used| cpu_secs(&used)),
                peak_memory_bytes: used.map(|used| used.peak_memory_bytes),
                own: step.own,
                time_limit_secs: step.limit_secs,
                ..row
            });
        }
        rows
    }

    fn row(
        &self,
        id: &str,
        name: &str,
        on: &[String],
        started: Timestamp,
        ended: Option<Timestamp>,
        now: Timestamp,
    ) -> StepRow {
        StepRow {
            job: self.job,
            shown_id: format!("{}.{id}", self.shown_id),
            name: name.to_owned(),
            user: self.user.to_owned(),
            account: self.account.to_owned(),
            partition: self.partition.to_owned(),
            qos: self.qos.to_owned(),
            nodes: on.len() as u32,
            nodelist: hostlist::compress(on),
            start_time: Some(Instant(started)),
            end_time: ended.map(Instant),
            elapsed_secs: ended.unwrap_or(now).since_secs(started).max(0),
            ..StepRow::default()
        }
    }

    fn end_of(
        &self,
        step: &StoredStep,
        used: Option<&Usage>,
    ) -> (Option<Timestamp>, JobState, ExitCode) {
        match (step.ended, self.ended) {
            (Some(end), _) if used.is_some_and(|used| used.oom_kills > 0) => {
                (Some(end.at), JobState::OutOfMemory, end.exit)
            }
            (Some(end), _) if end.exit.is_success() => {
                (Some(end.at), JobState::Completed, end.exit)
            }
            (Some(end), _) => (Some(end.at), JobState::Failed, end.exit),
            (None, Some(at)) => (Some(at), JobState::Cancelled, ExitCode::SUCCESS),
            (None, None) => (None, self.state, ExitCode::SUCCESS),
        }
    }
}

/// The nodes of a step among those of its run.
fn step_nodes(step: &StoredStep, nodes: &[String]) -> Vec<String> {
    let places: Vec<usize> = match (step.nodes, step.places.is_empty()) {
        (0, _) => return nodes.to_vec(),
        (first, true) => (0..first as usize).collect(),
        (_, false) => step.places.iter().map(|place| *place as usize).collect(),
    };
    let names = places.into_iter().map(|place| nodes.get(place).cloned());
    names.flatten().collect()
}

fn cpu_secs(used: &Usage) -> f64 {
    (used.cpu_user_micros as f64 + used.cpu_system_micros as f64) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::reader::StoredEnd;

    #[test]
    fn what_steps_used_is_taken_off_the_script_and_never_more_than_there_was() {
        let at = Timestamp::from_secs;
        let of = StepSource {
            job: 7,
            shown_id: "7",
            user: "alice",
            account: "phys",
            partition: "main",
            qos: "",
            attempt: 1,
            state: JobState::Completed,
            exit: ExitCode::SUCCESS,
            nodelist: "n1",
            started: Some(at(0)),
            ended: Some(at(90)),
            used: Some((10.0, 4096)),
            live: None,
            has_script: true,
        };
        let step = |number, secs: u64, oom_kills| StoredStep {
            attempt: 1,
            number,
            name: "x".into(),
            tasks: 1,
            nodes: 1,
            places: Vec::new(),
            started: at(1),
            ended: Some(StoredEnd {
                at: at(2),
                exit: ExitCode::SUCCESS,
                used: Some(Usage {
                    cpu_user_micros: secs * 1_000_000,
                    oom_kills,
                    peak_memory_bytes: 512,
                    ..Usage::default()
                }),
            }),
            limit_secs: None,
            own: None,
        };
        let unmeasured = StoredStep {
            ended: None,
            ..step(2, 0, 0)
        };
        let row = |step: &StepRow| (step.cpu_time_secs, step.peak_memory_bytes, step.state);
        let rows = of.rows(&[step(0, 3, 0), step(1, 4, 1), unmeasured.clone()], at(90));
        let want = [
            (Some(3.0), Some(4096), JobState::Completed),
            (Some(3.0), Some(512), JobState::Completed),
            (Some(4.0), Some(512), JobState::OutOfMemory),
            (None, None, JobState::Cancelled),
        ];
        assert_eq!(rows.iter().map(row).collect::<Vec<_>>(), want);
        assert_eq!(
            of.rows(&[step(0, 30, 0)], at(90))[0].cpu_time_secs,
            Some(0.0),
            "a grun that lies"
        );
        let running = StepSource {
            state: JobState::Running,
            ended: None,
            used: None,
            ..of
        };
        let under_way = [step(0, 3, 0), unmeasured];
        assert_eq!(running.rows(&under_way, at(90))[0].cpu_time_secs, None);
        let now = Usage {
            cpu_system_micros: 2_000_000,
            peak_memory_bytes: 99,
            ..Usage::default()
        };
        let live = RunUse {
            all: Usage::default(),
            steps: vec![(2, now)],
        };
        let rows = StepSource {
            used: Some((6.0, 4096)),
            live: Some(&live),
            ..running
        }
        .rows(&under_way, at(90));
        let seen: Vec<_> = rows
            .iter()
            .map(|step| (step.cpu_time_secs, step.peak_memory_bytes))
            .collect();
        assert_eq!(
            seen,
            [
                (Some(1.0), Some(4096)),
                (Some(3.0), Some(512)),
                (Some(2.0), Some(99))
            ],
            "those that are over are the script's no more"
        );
    }
}
