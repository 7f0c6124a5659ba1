//! `POST /v1/jobs/{id}/steps`: tasks of a step inside a running job, for `grun`; `GET /v1/steps`: what is under way.
//!
//! The core counts the step and lays out its ranks; each node of it is told over its own connection. What the tasks
//! write goes from the nodes straight to grun, never through here. Which steps there were is in the history.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::control::{confine, odd};
use crate::http::job::filter::{JobFilter, job_query};
use crate::http::job::name::{job_name, targets};
use crate::http::job::row::View;
use crate::http::peer::ForwarderAddress;
use crate::http::permission::{Caller, Visibility};
use crate::http::query::QueryPairs;
use crate::http::step::live_use;
use crate::store::reader::StoredStep;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, Path, State as Shared};
use gcore::ctl::{Command, Reply, Run, StepAsk, StepNode, Target};
use gmodel::hostlist::Hostlist;
use gmodel::run::{RunUse, Usage};
use gmodel::step_share::StepHold;
use gmodel::supervise::StepOrder;
use gmodel::{ExitCode, Instant, JobId, JobState, Timestamp, hostlist};
use gwire::api::{
    ChangeReply, MAX_ARGUMENT_BYTES, MAX_ENVIRONMENT_BYTES, SCHEMA, StepEndRequest, StepHolder,
    StepNodeRow, StepReply, StepRequest, StepRow, StepWaits,
};
use serde::Serialize;
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// Longest secret of a step, bytes.
const MAX_KEY_BYTES: usize = 256;
/// Longest name of a GPU type that a step may ask for, bytes.
const MAX_TYPE_BYTES: usize = 64;

pub(crate) async fn start(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(id): Path<String>,
    from: Option<Extension<ForwarderAddress>>,
    body: Result<Json<StepRequest>, JsonRejection>,
) -> Result<Json<StepReply>, ApiError> {
    let Json(request) = body?;
    check(&request)?;
    let from = from.map(|Extension(ForwarderAddress(address))| address);
    check_address(&site, &request.connect, from)?;
    let [target @ (Target::Job(_) | Target::Task { .. })] = &targets(&[job_name(&id)?])?[..] else {
        return Err(ApiError::invalid(format!(
            "{id} names several tasks; a step runs in one job"
        )));
    };
    confine(&site, &caller, std::slice::from_ref(target)).await?;
    let command = Command::StartStep {
        target: target.clone(),
        ask: step_ask(&request)?,
    };
    let (run, step, layout) = match site.core.command(caller.actor.clone(), command).await? {
        Reply::Step { run, step, layout } => (run, step, layout),
        Reply::StepWaits { text, holders } => return Ok(Json(waits(text, holders))),
        other => return Err(odd(&other)),
    };
    for (position, node) in layout.iter().enumerate() {
        let order = order(&request, step, &layout, position);
        if let Err(why) = site.app.links.start_step(node.node, run, order).await {
            // What it was given is free again. Tasks that did start end with their grun.
            let end = Command::EndStep {
                target: target.clone(),
                step,
                exit: ExitCode::exited(1),
                used: None,
            };
            let _ = site.core.command(caller.actor, end).await;
            let text = format!(
                "{} did not take its part of step {step} of job {id}: {why}",
                node.name
            );
            return Err(ApiError::unavailable(text));
        }
    }
    let nodes = layout
        .into_iter()
        .map(|node| StepNodeRow {
            name: node.name,
            ranks: node.ranks,
        })
        .collect();
    Ok(Json(StepReply {
        schema: SCHEMA,
        step,
        nodes,
        waits: None,
    }))
}

fn step_ask(request: &StepRequest) -> Result<StepAsk, ApiError> {
    let program = request.argv[0].rsplit('/').next().unwrap_or_default();
    let name = if request.name.is_empty() {
        program
    } else {
        &request.name
    }
    .to_owned();
    Ok(StepAsk {
        name,
        nodes: request.nodes,
        ntasks: request.ntasks,
        ntasks_per_node: request.ntasks_per_node,
        nodelist: hosts("--nodelist", &request.nodelist)?,
        exclude: hosts("--exclude", &request.exclude)?,
        relative: request.relative,
        cyclic: request.cyclic,
        overcommit: request.overcommit,
        share: request.share.clone(),
        connect: request.connect.clone(),
    })
}

fn waits(reason: String, holders: Vec<StepHold>) -> StepReply {
    let holders = holders
        .into_iter()
        .map(|hold| StepHolder {
            step: hold.step,
            connect: hold.connect,
        })
        .collect();
    StepReply {
        schema: SCHEMA,
        waits: Some(StepWaits { reason, holders }),
        ..StepReply::default()
    }
}

/// A step is over, as its grun says.
pub(crate) async fn end(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path((id, step)): Path<(String, u32)>,
    body: Result<Json<StepEndRequest>, JsonRejection>,
) -> Result<Json<ChangeReply>, ApiError> {
    let Json(request) = body?;
    let [target @ (Target::Job(_) | Target::Task { .. })] = &targets(&[job_name(&id)?])?[..] else {
        return Err(ApiError::invalid(format!(
            "{id} names several tasks; a step is of one job"
        )));
    };
    confine(&site, &caller, std::slice::from_ref(target)).await?;
    site.core
        .command(
            caller.actor,
            Command::EndStep {
                target: target.clone(),
                step,
                exit: request.exit_code,
                used: request.used,
            },
        )
        .await?;
    Ok(Json(ChangeReply {
        schema: SCHEMA,
        notes: Vec::new(),
    }))
}

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
        let batch = self.row("batch", "batch", first, began, self.ended, now);
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
        let mut rows = vec![StepRow {
            state: self.state,
            exit_code: self.exit,
            ntasks: 1,
            cpu_time_secs: self.used.map(|(all, _)| (all - of_gruns).max(0.0)),
            peak_memory_bytes: self.used.map(|(_, peak)| peak),
            ..batch
        }];
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

fn hosts(option: &str, text: &str) -> Result<Option<Hostlist>, ApiError> {
    let some = (!text.is_empty())
        .then(|| Hostlist::parse(text))
        .transpose();
    some.map_err(|error| ApiError::invalid(format!("{option}: {error}")))
}

fn check(request: &StepRequest) -> Result<(), ApiError> {
    if request.argv.first().is_none_or(String::is_empty) {
        return Err(ApiError::invalid("there is no command to run"));
    }
    let bytes = |texts: &[String]| texts.iter().map(|text| text.len() + 1).sum::<usize>();
    for (what, is, most) in [
        ("arguments", bytes(&request.argv), MAX_ARGUMENT_BYTES),
        (
            "environment",
            bytes(&request.environment),
            MAX_ENVIRONMENT_BYTES,
        ),
    ] {
        if is > most {
            return Err(ApiError::limit(format!(
                "the {what} of the step have {is} bytes; {most} are the most"
            )));
        }
    }
    if request
        .argv
        .iter()
        .chain(&request.environment)
        .any(|text| text.contains('\0'))
    {
        return Err(ApiError::invalid(
            "an argument or variable has a NUL byte in it",
        ));
    }
    if request.connect.parse::<SocketAddr>().is_err() {
        return Err(ApiError::invalid(format!(
            "connect = {:?} is not ADDRESS:PORT, numeric",
            request.connect
        )));
    }
    if request.key.is_empty() || request.key.len() > MAX_KEY_BYTES {
        return Err(ApiError::invalid(format!(
            "key has to have 1 to {MAX_KEY_BYTES} bytes"
        )));
    }
    let type_bytes = request
        .share
        .iter()
        .filter_map(|share| share.gpus.as_ref()?.gpu_type.as_ref())
        .map(String::len)
        .max();
    if type_bytes > Some(MAX_TYPE_BYTES) {
        return Err(ApiError::invalid(format!(
            "the GPU type of the step has more than {MAX_TYPE_BYTES} bytes"
        )));
    }
    Ok(())
}

fn check_address(site: &ApiContext, connect: &str, from: Option<IpAddr>) -> Result<(), ApiError> {
    check_target(connect, from, |address| site.app.links.has_address(address))
}

/// Checks where nodes send a step's output: to the machine of grun, as the controller sees it, or to nodes. So no user points nodes at
/// other machines.
fn check_target(
    connect: &str,
    from: Option<IpAddr>,
    is_node: impl Fn(IpAddr) -> bool,
) -> Result<(), ApiError> {
    let Ok(asked) = connect.parse::<SocketAddr>() else {
        return Ok(());
    };
    let (asked, seen) = (
        asked.ip().to_canonical(),
        from.map(|from| from.to_canonical()),
    );
    // Without a machine in between grun is on the controller's own: an address of it can be bound.
    let is_own = || from.is_none() && UdpSocket::bind((asked, 0)).is_ok();
    if asked.is_loopback()
        || seen == Some(asked)
        || !asked.is_unspecified() && is_own()
        || is_node(asked)
    {
        return Ok(());
    }
    let here = seen.map_or(String::new(), |seen| format!(" ({seen})"));
    Err(ApiError::denied(format!(
        "connect = {connect:?}: a step's output goes to the machine that grun is on{here} or to a node of the cluster, and this is neither"
    )))
}

fn order(request: &StepRequest, step: u32, layout: &[StepNode], position: usize) -> StepOrder {
    let tasks = |node: &StepNode| node.ranks.len() as u32;
    let own = layout[position].own.as_ref();
    let narrows_gpus = request
        .share
        .as_ref()
        .is_some_and(|share| share.gpus.is_some());
    StepOrder {
        step,
        argv: request.argv.clone(),
        environment: request.environment.clone(),
        work_dir: request.work_dir.clone(),
        ranks: layout[position].ranks.clone(),
        ntasks: layout.iter().map(tasks).sum(),
        nodes: layout.iter().map(|node| node.name.clone()).collect(),
        node_index: position as u32,
        node_tasks: layout.iter().map(tasks).collect(),
        connect: request.connect.clone(),
        key: request.key.clone(),
        cpus_per_task: request
            .share
            .as_ref()
            .map_or(0, |share| share.cpus_per_task),
        cpus: own.map_or(Vec::new(), |own| own.cpus.clone()),
        gpus: own.filter(|_| narrows_gpus).map(|own| own.gpus.clone()),
        mem_bytes: own.map_or(0, |own| own.mem_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::reader::StoredEnd;

    #[test]
    fn a_steps_output_goes_to_gruns_machine_or_to_a_node_only() {
        let (login, node) = ("10.0.0.5", "10.0.0.9");
        let allowed = |connect: &str, from: Option<&str>| {
            let from = from.map(|from| from.parse().unwrap());
            let is_node = |address: IpAddr| address == node.parse::<IpAddr>().unwrap();
            check_target(connect, from, is_node).is_ok()
        };
        assert!(allowed("10.0.0.5:4000", Some(login)));
        assert!(
            allowed("[::ffff:10.0.0.5]:4000", Some(login)),
            "the same address, written for IPv6"
        );
        assert!(allowed("10.0.0.9:4000", Some(login)), "a node");
        assert!(allowed("127.0.0.1:4000", Some(login)));
        assert!(
            allowed("no address", Some(login)),
            "gstepd refuses what is no address"
        );
        assert!(!allowed("10.0.0.6:4000", Some(login)), "another machine");
        assert!(!allowed("0.0.0.0:4000", Some(login)));
        assert!(
            !allowed("0.0.0.0:4000", None),
            "unspecified, though it can be bound"
        );
        assert!(
            !allowed("192.0.2.1:4000", None),
            "not an address of the controller's machine"
        );
        let text = check_target("10.0.0.6:4000", login.parse().ok(), |_| false)
            .unwrap_err()
            .text;
        assert!(
            text.contains("the machine that grun is on (10.0.0.5)"),
            "{text}"
        );
    }

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
