//! `POST /v1/jobs/dry-run`: where and when a job would start, asked of the real core and scheduler on a copy.
//!
//! Nothing is kept: the copy shares the state's chunks and is thrown away.

use crate::core_thread::submit_command;
use crate::forecaster::Forecaster;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::forecast::plan::expected_starts;
use crate::http::forecast::why::{blocker_rows, change_row, interval_text, names};
use crate::http::job::alternatives;
use crate::http::job::control::odd;
use crate::http::job::home;
use crate::http::job::row::{Row, View};
use crate::http::job::submit::{asked_groups, check, may_ask};
use crate::http::permission::{Caller, with_groups};
use crate::http::policy::borrow::borrow_note;
use crate::launch_texts;
use axum::Json;
use axum::extract::State as Shared;
use axum::extract::rejection::JsonRejection;
use gcore::ctl::{Actor, Command, Input, Reply, State, handle, snapshot};
use gmodel::partition_list::names as names_of_list;
use gmodel::policy::PreemptMode;
use gmodel::run::Allocation;
use gmodel::{Instant, JobId, JobSpec, Reason, Timestamp};
use gpolicy::window::no_start_text;
use gsched::calibration::Plans;
use gsched::{Change, Engine, Explanation, Forecast, PendingJob, Plan, Snapshot, WorkBudget};
use gwire::api::{ChangeRow, DryRun, SCHEMA, StartInterval, SubmitRequest};
use std::collections::BTreeSet;
use std::sync::Arc;

pub(crate) async fn dry_run(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: Result<Json<SubmitRequest>, JsonRejection>,
) -> Result<Json<DryRun>, ApiError> {
    let Json(mut request) = body?;
    caller.may_submit(&request.spec.partition, &site.app.config().cluster)?;
    home::resolve(&caller, &mut request.spec, &mut request.others).await?;
    check(&request)?;
    may_ask(&caller, &request.spec)?;
    for other in &request.others {
        caller.may_submit(&other.partition, &site.app.config().cluster)?;
        may_ask(&caller, other)?;
    }
    let (request, mut notes) = site
        .app
        .hook
        .ask(&site.app.config(), &caller.actor, request)
        .await?;
    let specs = std::iter::once(&request.spec).chain(&request.others);
    let groups = asked_groups(&site, specs.map(|spec| &*spec.partition));
    let actor = with_groups(&site, &caller, groups).await;
    let mut answer = dry_run_of(&site, &actor, request.spec, request.others).await?;
    notes.append(&mut answer.notes);
    Ok(Json(DryRun { notes, ..answer }))
}

/// What would become of a submission now.
///
/// # Errors
/// It would be refused.
async fn dry_run_of(
    site: &ApiContext,
    actor: &Actor,
    mut spec: JobSpec,
    others: Vec<JobSpec>,
) -> Result<DryRun, ApiError> {
    launch_texts::shorten(&mut spec.launch.argv);
    let command = submit_command(spec, others, None);
    let command = site.core.knowing_the_past(command).await?;
    let state = site.core.view().await;
    let now = crate::core_thread::now();
    let _turn = site.app.forecasts().turn().await;
    let (forecaster, actor) = (site.app.forecaster().clone(), actor.clone());
    let task =
        tokio::task::spawn_blocking(move || consider(state, actor, command, &forecaster, now));
    task.await
        .map_err(|_| ApiError::unavailable("the dry run failed; this is a bug"))?
}

/// With what each kind of GPU that it names would mean for it.
fn consider(
    state: Arc<State>,
    actor: Actor,
    command: Command,
    forecaster: &Forecaster,
    now: Timestamp,
) -> Result<DryRun, ApiError> {
    let mut answer = forecast_submission(&state, actor.clone(), command.clone(), forecaster, now)?;
    if let Some(spec) = submitted(command) {
        answer.alternatives =
            alternatives::rows(&state, &actor, &spec, answer.start.is_some(), now);
        answer
            .text
            .push_str(&alternatives::in_words(&answer.alternatives));
    }
    Ok(answer)
}

fn submitted(command: Command) -> Option<Box<JobSpec>> {
    match command {
        Command::Submit { spec, .. } => Some(spec),
        Command::Knowing { asked, .. } => submitted(*asked),
        _ => None,
    }
}

fn forecast_submission(
    state: &State,
    actor: Actor,
    command: Command,
    forecaster: &Forecaster,
    now: Timestamp,
) -> Result<DryRun, ApiError> {
    let asked_for = submitted(command.clone());
    let (trial, notes) = TrialSubmission::of(state, &actor, command, now)?;
    let plan = gsched::plan(&trial.picture, WorkBudget::default());
    if let Some((allocation, partition)) = trial.start_of(&plan) {
        return Ok(would_start(&trial.copy, &allocation, partition, notes, now));
    }
    let mut engine = Engine::default();
    let budget = WorkBudget {
        starts: usize::MAX,
        ..WorkBudget::default()
    };
    let why = engine.why(&trial.picture, trial.id, budget);
    let (reason, victims) = (trial.reason(&plan), trial.victims(&plan));
    let mut text = waits_text(&trial.partition, &reason, victims);
    let forecast = why
        .as_ref()
        .and_then(|why| why.forecast.as_ref())
        .filter(|told| told.start.is_some() && !victims.are_suspended);
    let start = forecast.and_then(|told| told.start);
    let mut interval = None;
    if let Some((told, start)) = forecast.zip(start) {
        interval = trial.interval(&mut engine, forecaster, start);
        text.push_str(&trial.start_text(told, start, interval.as_ref()));
    }
    text.push_str(&why.as_ref().and_then(holder_text).unwrap_or_default());
    let changes = trial.changes(state, &actor, why.as_ref(), asked_for.as_deref());
    if victims.count == 0 {
        text.push_str(&trial.way_text(why.as_ref(), start, &changes));
    }
    Ok(DryRun {
        schema: SCHEMA,
        nodelist: String::new(),
        start: None,
        expected_start: start.map(Instant),
        expected_nodes: forecast
            .map(|told| names(&trial.copy, &told.nodes))
            .unwrap_or_default(),
        interval,
        cpus: trial.cpus,
        partition: trial.partition,
        reason: reason.code.to_string(),
        text,
        blockers: why.iter().flat_map(blocker_rows).collect(),
        changes,
        alternatives: Vec::new(),
        notes,
    })
}

/// A copy of the state in which the job is submitted.
struct TrialSubmission {
    copy: State,
    picture: Snapshot,
    id: JobId,
    /// Tasks of an array, components of a job of unlike parts.
    count: u64,
    is_array: bool,
    cpus: u32,
    partition: String,
    now: Timestamp,
}

/// Runs that the first plan would preempt for the job.
#[derive(Clone, Copy)]
struct PlannedVictims {
    count: usize,
    /// All of them are suspended, which takes seconds; their ends say nothing of this job's start.
    are_suspended: bool,
}

impl TrialSubmission {
    /// The job in a copy of the state, and what the controller notes on its submission.
    fn of(
        state: &State,
        actor: &Actor,
        command: Command,
        now: Timestamp,
    ) -> Result<(Self, Vec<String>), ApiError> {
        let mut copy = state.clone();
        let input = Input::Command {
            actor: actor.clone(),
            command,
        };
        let reply = handle(&mut copy, &mut Vec::new(), input, now)?;
        let Reply::Submitted { id, mut notes, .. } = reply else {
            return Err(odd(&reply));
        };
        notes.extend(borrow_note(&copy, id));
        Ok((Self::new(copy, id, now), notes))
    }

    fn new(copy: State, id: JobId, now: Timestamp) -> Self {
        let tasks = copy.arrays.get(id).map(|array| u64::from(array.len()));
        let job = copy.jobs.get(id);
        let parts = job.and_then(|job| job.spec.part).map(|part| part.size);
        let count = tasks.unwrap_or(parts.map_or(1, u64::from));
        let (cpus, partition) = asked(&copy, id, now);
        Self {
            picture: snapshot(&copy, now),
            copy,
            id,
            count,
            is_array: tasks.is_some(),
            cpus,
            partition,
            now,
        }
    }

    /// Where it starts: the first of an array's tasks, all components of a job of unlike parts.
    fn start_of(&self, plan: &Plan) -> Option<(Allocation, String)> {
        let mut starts = plan.starts.iter().filter(|start| self.is_task(start.job));
        let first = starts.next()?;
        let mut partition = first.partition.as_ref().unwrap_or(&self.partition).clone();
        let mut allocation = first.allocation.clone();
        for start in starts.filter(|_| !self.is_array) {
            allocation.extend(start.allocation.iter().cloned());
            let job = self.copy.jobs.get(start.job);
            if let Some(other) = job.map(|job| &job.spec.partition)
                && !names_of_list(&partition).any(|name| name == other)
            {
                partition.push_str(&format!(",{other}"));
            }
        }
        Some((allocation, partition))
    }

    fn is_task(&self, job: JobId) -> bool {
        (self.id.0..self.id.0 + self.count).contains(&job.0)
    }

    fn entry(&self) -> Option<&PendingJob> {
        self.picture.pending.iter().find(|job| job.id == self.id)
    }

    fn reason(&self, plan: &Plan) -> Reason {
        let mut reasons = plan.reasons.iter().chain(&plan.array_reasons);
        let of_plan = reasons.find(|(job, _)| *job == self.id);
        // A pass gives a held job no reason.
        let held = || self.entry().map(|job| job.reason.clone());
        of_plan
            .map(|(_, reason)| reason.clone())
            .or_else(held)
            .unwrap_or_default()
    }

    fn victims(&self, plan: &Plan) -> PlannedVictims {
        let victims = || {
            let all = plan.preempts.iter();
            all.filter(|preempt| self.is_task(preempt.for_job))
        };
        let count = victims().count();
        PlannedVictims {
            count,
            are_suspended: count > 0
                && victims().all(|preempt| preempt.mode == PreemptMode::Suspend),
        }
    }

    fn interval(
        &self,
        engine: &mut Engine,
        forecaster: &Forecaster,
        at_limits: Timestamp,
    ) -> Option<StartInterval> {
        let jobs = BTreeSet::from([self.id]);
        let expected = expected_starts(engine, &self.picture, &jobs, forecaster);
        let plans = Plans {
            expected: expected.first()?.start?,
            at_limits,
        };
        forecaster.interval(&self.partition, self.now, plans, self.now)
    }

    /// Changes of the request with which it would start sooner. `asked_for`: before the controller filled in defaults.
    fn changes(
        &self,
        state: &State,
        actor: &Actor,
        why: Option<&Explanation>,
        asked_for: Option<&JobSpec>,
    ) -> Vec<ChangeRow> {
        let now = self.now;
        let changes = why.into_iter().flat_map(|why| &why.changes);
        let holds = changes.filter(|change| {
            let again = self
                .entry()
                .zip(asked_for)
                .filter(|(entry, _)| change.starts <= now && entry.spec.request.nodes_any);
            again.is_none_or(|(entry, asked_for)| {
                starts_as_asked(state, actor, entry, asked_for, change, now)
            })
        });
        holds.map(|change| change_row(change, now)).collect()
    }

    /// What is in its way and what would help, for a sentence that goes on.
    fn way_text(
        &self,
        why: Option<&Explanation>,
        start: Option<Timestamp>,
        changes: &[ChangeRow],
    ) -> String {
        let mut text = why.map_or(String::new(), |why| room_text(why, self.now));
        let none = self.entry().filter(|_| start.is_none());
        if let Some(none) = none.and_then(|job| no_start_text(job, &self.picture.policy, self.now))
        {
            text.push_str(&format!("; {none}"));
        }
        text.push_str(&changes.first().map_or(String::new(), change_text));
        text
    }

    /// For a sentence that goes on.
    fn start_text(
        &self,
        told: &Forecast,
        start: Timestamp,
        interval: Option<&StartInterval>,
    ) -> String {
        let nodelist = names(&self.copy, &told.nodes);
        let there = told
            .partition
            .as_ref()
            .map_or(String::new(), |name| format!(" in partition {name}"));
        let interval = interval.map(interval_text).unwrap_or_default();
        format!("; would start by {start} on {nodelist}{there}{interval}")
    }
}

/// What holds the limit that the job waits for.
fn holder_text(why: &Explanation) -> Option<String> {
    let limit = why.forecast.as_ref()?.limit.as_ref()?;
    Some(format!("; {}", limit.holder?.text()))
}

fn change_text(change: &ChangeRow) -> String {
    let when = match change.start {
        _ if change.now => "at once".to_owned(),
        at => at.map(|at| format!("by {}", at.0)).unwrap_or_default(),
    };
    format!("; with {} it would start {when}", change.option)
}

/// The reason to wait, and how many other runs are preempted first.
fn waits_text(partition: &str, reason: &Reason, victims: PlannedVictims) -> String {
    let freezes = victims.are_suspended;
    let then = match victims.count {
        0 if reason.text.is_empty() => String::new(),
        0 => format!(": {}", reason.text),
        1 if freezes => ": another run is suspended for it, then it starts".to_owned(),
        runs if freezes => format!(": {runs} other runs are suspended for it, then it starts"),
        1 => ": another run is preempted for it first".to_owned(),
        runs => format!(": {runs} other runs are preempted for it first"),
    };
    format!(
        "would wait in partition {partition} ({}){then}",
        reason.code
    )
}

/// What makes room for it later: cuts of GPUs, and runs that are left alone until then.
fn room_text(why: &Explanation, now: Timestamp) -> String {
    let cut = why
        .blockers
        .iter()
        .find_map(|blocker| blocker.cut_from)
        .map_or(String::new(), |from| {
            let when = if from <= now {
                String::new()
            } else {
                format!(" from {from} on")
            };
            format!("; GPUs are cut for it{when}, and then it starts within seconds")
        });
    let protected = why.blockers.iter().find_map(|blocker| blocker.may_preempt_from).map_or(String::new(), |from| {
        format!("; from {from} on other runs may be preempted for it: their protected time ends then")
    });
    cut + &protected
}

/// Whether a job that leaves its nodes to its tasks starts at once where it is submitted with a change: it may come to other
/// nodes than the one that waits.
fn starts_as_asked(
    state: &State,
    actor: &Actor,
    entry: &PendingJob,
    asked_for: &JobSpec,
    change: &Change,
    now: Timestamp,
) -> bool {
    let entry = PendingJob {
        spec: Arc::new(asked_for.clone()),
        limit_secs: asked_for.time_limit_secs,
        ..entry.clone()
    };
    let Some(changed) = change.edit.apply(&entry) else {
        return false;
    };
    let mut spec = (*changed.spec).clone();
    spec.time_limit_secs = changed.limit_secs;
    let mut copy = state.clone();
    let command = Command::Submit {
        spec: Box::new(spec),
        client_key: None,
    };
    let told = handle(
        &mut copy,
        &mut Vec::new(),
        Input::Command {
            actor: actor.clone(),
            command,
        },
        now,
    );
    let Ok(Reply::Submitted { id, .. }) = told else {
        return false;
    };
    let first = copy
        .arrays
        .get(id)
        .map_or(1, |array| u64::from(array.len()));
    gsched::plan(&snapshot(&copy, now), WorkBudget::default())
        .starts
        .iter()
        .any(|start| (id.0..id.0 + first).contains(&start.job.0))
}

fn would_start(
    state: &State,
    allocation: &Allocation,
    partition: String,
    notes: Vec<String>,
    now: Timestamp,
) -> DryRun {
    let nodes: BTreeSet<_> = allocation.iter().map(|share| share.node).collect();
    let nodes: Vec<_> = nodes.into_iter().collect();
    let nodelist = names(state, &nodes);
    let cpus = allocation.iter().map(|share| share.cpus).sum();
    let (cpu_word, node_word) = (
        if cpus == 1 { "CPU" } else { "CPUs" },
        if nodes.len() == 1 { "node" } else { "nodes" },
    );
    let text = format!(
        "would start at once, using {cpus} {cpu_word} on {node_word} {nodelist} in partition {partition}"
    );
    DryRun {
        schema: SCHEMA,
        nodelist,
        start: Some(Instant(now)),
        expected_start: None,
        expected_nodes: String::new(),
        interval: None,
        cpus,
        partition,
        reason: String::new(),
        text,
        blockers: Vec::new(),
        changes: Vec::new(),
        alternatives: Vec::new(),
        notes,
    }
}

/// CPUs and partition, with defaults filled in.
fn asked(state: &State, id: JobId, now: Timestamp) -> (u32, String) {
    let row = crate::http::job::name::one_row(state, &crate::http::job::name::JobName::Job(id));
    row.map_or((0, String::new()), |row: Row| {
        (
            row.cpus(View::new(state, now)),
            row.spec().partition.clone(),
        )
    })
}
