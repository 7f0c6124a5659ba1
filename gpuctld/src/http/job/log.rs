//! `GET /v1/jobs/{id}/log`: what the controller and the nodes did for a job, a sentence for each fact.
//!
//! Owns the sentences; never the facts: these are the stored events. Instants in a sentence are RFC 3339 UTC, which
//! the commands print in local time.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::name::job_name;
use crate::http::job::show::found;
use crate::http::permission::{Caller, must_own};
use crate::store::reader::HistoryLine;
use axum::extract::{Path, State as Shared};
use gcore::ctl::event::{Event, JobChange};
use gcore::ctl::state::{Outcome, Stop};
use gcore::ctl::{OpenDependency, State, idle_part_words as idle_words};
use gmodel::array_spec::RangeSet;
use gmodel::duration::squeue_time;
use gmodel::hostlist::{self, Hostlist};
use gmodel::idle::{IdleAction, IdleSpell};
use gmodel::node::{HoldMark, Link};
use gmodel::run::{Allocation, EndCause, NumberedSignal, RunEnd, RunPhase, StopCause};
use gmodel::signal::signal_name;
use gmodel::{JobSpec, NodeId, ReasonCode, RunClass, RunId};
use gwire::api::{LogEvent, LogText, SCHEMA};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the nodes' lines may take together, bytes, and how long they are asked for.
const MAX_LOG_BYTES: usize = 4 << 20;
const LOG_PATIENCE: Duration = Duration::from_secs(30);

/// The newest runs of a job; their nodes are asked.
const LOGGED_RUNS: u32 = 20;

/// What the controller and the nodes did for a job. Nodes that do not answer are said, not waited for.
pub(crate) async fn log(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(id): Path<String>,
) -> Result<axum::Json<LogText>, ApiError> {
    let (spec, run) = found(&site, &job_name(&id)?, &id).await?;
    must_own(&caller, &spec, &id, "log")?;
    let history = site.core.reader().history(run.job).await?;
    let state = site.core.view().await;
    let node_name = |id: NodeId| {
        state
            .nodes
            .get(id)
            .map_or_else(|| format!("node {id}"), |node| node.name.clone())
    };
    let events = events(&history.lines, &spec, &node_name);
    let mut lines = Vec::new();
    if history.is_cut {
        lines.push(format!(
            "controller: the newest {} events are shown; the older ones are in its database",
            events.len()
        ));
    }
    let runs = match run.attempts {
        0 => Vec::new(), // a task without a record has its array's id, which is another task's
        _ => {
            site.core
                .reader()
                .nodes_of_runs(run.job, LOGGED_RUNS)
                .await?
        }
    };
    let mut logs = NodeLogs {
        lines,
        bytes: 0,
        since: Instant::now(),
        is_cut: false,
        silent: BTreeMap::new(),
    };
    let several = runs.len() > 1;
    for (attempt, nodelist) in runs {
        let id = RunId::new(run.job, attempt);
        logs.read_run(&site, &state, id, &nodelist, several).await;
        if logs.is_cut {
            break;
        }
    }
    Ok(axum::Json(LogText {
        schema: SCHEMA,
        events,
        lines: logs.lines,
    }))
}

/// The nodes' lines so far, within bounds.
struct NodeLogs {
    lines: Vec<String>,
    bytes: usize,
    since: Instant,
    /// The bounds are reached: no further node is asked.
    is_cut: bool,
    /// Nodes that did not answer once, and why: they are not waited for again.
    silent: BTreeMap<String, String>,
}

impl NodeLogs {
    async fn read_run(
        &mut self,
        site: &ApiContext,
        state: &State,
        run: RunId,
        nodelist: &str,
        several: bool,
    ) {
        let nodes = Hostlist::parse(nodelist).unwrap_or_default();
        for node in nodes.iter().filter_map(|name| state.node_by_name(name)) {
            let (name, bytes) = (&node.name, self.bytes);
            if bytes > MAX_LOG_BYTES || self.since.elapsed() > LOG_PATIENCE {
                let secs = self.since.elapsed().as_secs();
                self.lines.push(format!("{name}: not asked, and neither are those after it: the log has {bytes} bytes and took {secs} s"));
                self.is_cut = true;
                return;
            }
            let of_run = match several {
                true => format!("{name} run {}", run.attempt),
                false => name.clone(),
            };
            let text = match (node.link, self.silent.get(name)) {
                (_, Some(why)) => Err(why.clone()),
                (Link::Up, None) => site.app.links.read_log(node.id, run).await,
                _ => Err("the node is not connected".to_owned()),
            };
            match text {
                Ok(text) => {
                    self.bytes += text.len();
                    let lines = text.lines().map(|line| format!("{of_run}: {line}"));
                    self.lines.extend(lines);
                }
                Err(why) => {
                    self.lines.push(format!("{of_run}: no log: {why}"));
                    if why.contains("did not answer") {
                        self.silent.insert(name.clone(), why);
                    }
                }
            }
        }
    }
}

type NodeName<'a> = &'a dyn Fn(NodeId) -> String;

fn events(history: &[HistoryLine], spec: &JobSpec, node_name: NodeName) -> Vec<LogEvent> {
    let spec = Arc::new(spec.clone());
    let read: Vec<(&HistoryLine, Value, Option<Event>)> = history
        .iter()
        .map(|line| {
            let mut doc: Value = serde_json::from_str(&line.doc).unwrap_or_default();
            let event = stored_event(&doc, &spec);
            // Only the client that repeats a request needs its key.
            doc.as_object_mut().map(|doc| doc.remove("client_key"));
            (line, doc, event)
        })
        .collect();
    let moved = read
        .iter()
        .any(|(_, _, event)| event.as_ref().is_some_and(changes_partition));
    let teller = LogWriter {
        node_name,
        spec: &spec,
        moved,
    };
    read.into_iter()
        .map(|(line, event, known)| LogEvent {
            at: gmodel::Instant(line.at),
            // What another release wrote is told by its name.
            text: known
                .and_then(|event| teller.event_sentence(&event))
                .unwrap_or_else(|| line.kind.replace('_', " ")),
            event,
        })
        .collect()
}

fn changes_partition(event: &Event) -> bool {
    matches!(event, Event::JobUpdated { change, .. } | Event::ArrayUpdated { change, .. } if change.partition.is_some())
}

/// The event as it was; the history keeps no request, so the job's own is put in its place.
fn stored_event(doc: &Value, spec: &Arc<JobSpec>) -> Option<Event> {
    if doc["event"] != "job_submitted" {
        return serde_json::from_value(doc.clone()).ok();
    }
    let field = |key: &str| doc.get(key).cloned().unwrap_or_default();
    Some(Event::JobSubmitted {
        id: serde_json::from_value(field("id")).ok()?,
        spec: spec.clone(),
        limit_secs: serde_json::from_value(field("limit_secs")).ok()?,
        at: serde_json::from_value(field("at")).ok()?,
        client_key: None,
    })
}

/// Puts events of one job into words.
struct LogWriter<'a> {
    node_name: NodeName<'a>,
    /// The job's request as it is now.
    spec: &'a Arc<JobSpec>,
    /// It went to another partition since it was submitted: to which it was first is not known any more.
    moved: bool,
}

impl LogWriter<'_> {
    /// None for what never befalls a job. Every event is named here: a new one must get its sentence.
    fn event_sentence(&self, event: &Event) -> Option<String> {
        let node = |id: &NodeId| (self.node_name)(*id);
        Some(match event {
            Event::JobSubmitted { spec, .. } => self.submitted(spec),
            Event::TaskSplit { array, position } => {
                format!(
                    "task {} of array {array} has a record of its own",
                    self.tasks(&std::iter::once(*position).collect())
                )
            }
            Event::JobHeld { mark, .. } | Event::ArrayHeld { mark, .. } => held(mark),
            Event::TasksHeld {
                positions, mark, ..
            } => format!("tasks {}: {}", self.tasks(positions), held(mark)),
            Event::TasksReleased {
                positions, owner, ..
            } => match owner {
                Some(owner) => {
                    format!("tasks {}: hold of {owner} taken off", self.tasks(positions))
                }
                None => format!("tasks {} released", self.tasks(positions)),
            },
            Event::JobReleased { owner, .. } | Event::ArrayReleased { owner, .. } => match owner {
                Some(owner) => format!("hold of {owner} taken off"),
                None => "released".to_owned(),
            },
            Event::JobUpdated { change, by, .. } | Event::ArrayUpdated { change, by, .. } => {
                let by = if by.is_empty() {
                    String::new()
                } else {
                    format!(" by {by}")
                };
                format!("{}{by}", change_sentence(change))
            }
            Event::JobCancelled { by, text, .. } => with(format!("cancelled by {by}"), text),
            Event::JobRequeued { by, .. } => {
                format!("put back into the queue by {by}: it had been over")
            }
            Event::TasksRequeued { positions, by, .. } => format!(
                "tasks {} put back into the queue by {by}",
                self.tasks(positions)
            ),
            Event::WaitsChanged { waits, .. } => waiting(waits.as_deref()),
            Event::TasksCancelled {
                positions,
                by,
                reason,
                ..
            } => {
                let tasks = self.tasks(positions);
                match reason {
                    ReasonCode::DeadLine => {
                        format!(
                            "tasks {tasks} dropped: they can not end by their deadline any more"
                        )
                    }
                    _ => format!("tasks {tasks} cancelled by {by}"),
                }
            }
            Event::RunPlaced {
                run,
                allocation,
                partition,
                class,
                imex_channel,
                ..
            } => {
                let there = partition
                    .as_ref()
                    .map_or(String::new(), |name| format!(", in partition {name}"));
                let borrowed = match class {
                    Some(RunClass::Borrowed) => {
                        ", on borrowed GPUs: it goes when their owners want them back"
                    }
                    _ => "",
                };
                let channel = imex_channel
                    .map(|channel| format!(", with IMEX channel {channel}"))
                    .unwrap_or_default();
                format!(
                    "{}{there}{borrowed}{channel}",
                    self.placed(*run, allocation)
                )
            }
            Event::RunAdopted { share, .. } => {
                format!(
                    "{} brought it along after a restore: it runs on",
                    node(&share.node)
                )
            }
            Event::RunClassed { class: None, .. } => "there are no quotas any more".to_owned(),
            Event::RunClassed {
                class: Some(RunClass::Guaranteed),
                ..
            } => "runs within its account's guarantee now".to_owned(),
            Event::RunClassed { .. } => {
                "runs on borrowed GPUs now: its account's guarantee does not cover it any more"
                    .to_owned()
            }
            Event::RunMarked { node: id, mark, .. } => with(
                format!("checkpoint {} is safe on {}", mark.number, node(id)),
                &mark.note,
            ),
            Event::RunGo { .. } => "ready on all nodes: told to start".to_owned(),
            Event::RunStopping { stop, .. } => self.stopping(stop),
            Event::RunUnneeded {
                for_job,
                called_back: true,
                ..
            } => {
                format!(
                    "may stay: job {for_job} started elsewhere, and no node of it had confirmed that order"
                )
            }
            Event::RunUnneeded { for_job, .. } => format!(
                "job {for_job} started elsewhere; its signal is out, so it goes all the same"
            ),
            Event::RunSuspended { suspension, .. } => {
                with(format!("suspended by {}", suspension.by), &suspension.text)
            }
            Event::RunResumed { by, .. } => format!("goes on: resumed by {by}"),
            Event::RunSignalled { signal, .. } => signalled(*signal),
            Event::RunReported {
                node: id, phase, ..
            } => reported(&node(id), phase),
            Event::RunIdleOver { spells, .. } => idle_over(spells),
            Event::RunIdleWarned {
                idle_secs,
                percent,
                act_after_secs,
                action,
                real,
                ..
            } => {
                let did_nothing = idle_words(*percent, *idle_secs);
                let after = squeue_time(u64::from(*act_after_secs));
                match (real, action) {
                    (false, _) => {
                        format!("{did_nothing}: would be warned, but the policy only reports")
                    }
                    (_, IdleAction::Requeue) => format!(
                        "{did_nothing}: warned; goes back to the queue when that is {after}"
                    ),
                    (_, IdleAction::Cancel) => {
                        format!("{did_nothing}: warned; is cancelled when that is {after}")
                    }
                    _ => format!("{did_nothing}: warned"),
                }
            }
            Event::RunIdleNoted { idle_secs, .. } => {
                let after = squeue_time(u64::from(*idle_secs));
                format!(
                    "idle for {after}: would be ended, under an idle policy that ends something"
                )
            }
            Event::RunIdleTold { failure: None, .. } => {
                "idle_program was told that it is idle".to_owned()
            }
            Event::RunIdleTold {
                failure: Some(why), ..
            } => format!("its owner may not know that it is idle: {why}"),
            Event::StepStarted {
                step, name, tasks, ..
            } => format!("step {step}: {name}, {}", count(*tasks, "task")),
            Event::StepEnded {
                step, exit, used, ..
            } => {
                let of_memory = if used.is_some_and(|used| used.oom_kills > 0) {
                    ", out of memory"
                } else {
                    ""
                };
                format!("step {step}: ended, exit {exit}{of_memory}")
            }
            Event::RunForfeited { node: id, text, .. } => {
                with(format!("{} was given up for this run", node(id)), text)
            }
            Event::RunEnded { outcome, .. } => ended(outcome),
            Event::RequeueDropped { stop, .. } => {
                format!("does not go back to the queue: {}", self.stopping(stop))
            }
            Event::RunSettled { .. } => "over on all its nodes".to_owned(),
            Event::RunClosed { .. } => "holds nothing any more".to_owned(),
            Event::ReasonsGiven { .. }
            | Event::NominationChanged { .. }
            | Event::RunIdleSeen { .. }
            | Event::RunPullSeen { .. }
            | Event::RunIdled { .. }
            | Event::JobsForgotten { .. }
            | Event::NodeJoined { .. }
            | Event::NodeAdminChanged { .. }
            | Event::NodeEpochRaised { .. }
            | Event::NodeRenewed { .. }
            | Event::NodeHello { .. }
            | Event::NodeInventory { .. }
            | Event::NodeFeaturesSet { .. }
            | Event::NodeLinkChanged { .. }
            | Event::NodeObeyed { .. }
            | Event::NodeDrained { .. }
            | Event::NodeDrainDue { .. }
            | Event::NodeResumed { .. }
            | Event::NodeStruck { .. }
            | Event::NodeStrikesCleared { .. }
            | Event::NodeRemoved { .. }
            | Event::NodeFenceAsked { .. }
            | Event::NodeFenceFailed { .. }
            | Event::NodeFenced { .. }
            | Event::GpuOrdered { .. }
            | Event::GpuOrderEnded { .. }
            | Event::GpuNoted { .. }
            | Event::GpuChecked { .. }
            | Event::GpuJudged { .. }
            | Event::GpuChecksLooked { .. }
            | Event::TokenMinted { .. }
            | Event::TokenMade { .. }
            | Event::TokenRevoked { .. }
            | Event::TokensUsed { .. }
            | Event::TokensForgotten { .. }
            | Event::TokenSpent { .. }
            | Event::BillClosed { .. }
            | Event::BillCorrected { .. }
            | Event::PricesUsed { .. }
            | Event::PolicyChanged { .. }
            | Event::Configured { .. }
            | Event::Restored { .. }
            | Event::ControllerStarted { .. }
            | Event::TimeReached { .. } => return None,
        })
    }

    fn submitted(&self, spec: &JobSpec) -> String {
        let all = if spec.partitions.is_empty() {
            &spec.partition
        } else {
            &spec.partitions
        };
        let several = if all.contains(',') { "s" } else { "" };
        let partition = if self.moved {
            String::new()
        } else {
            format!(" to partition{several} {all}")
        };
        let tasks = spec
            .array
            .as_ref()
            .map(|array| format!(" as an array of {}", count(array.len(), "task")));
        format!(
            "submitted by {}{partition}{}",
            spec.user.name,
            tasks.unwrap_or_default()
        )
    }

    /// Positions in the array as the indices that people know.
    fn tasks(&self, positions: &RangeSet) -> String {
        self.spec
            .array
            .as_ref()
            .map_or_else(|| positions.to_string(), |array| array.text_of(positions))
    }

    fn placed(&self, run: RunId, allocation: &Allocation) -> String {
        let names: Vec<String> = allocation
            .iter()
            .map(|share| (self.node_name)(share.node))
            .collect();
        let milli: u64 = allocation.iter().map(|share| share.gpus.milli()).sum();
        let cpus: u32 = allocation.iter().map(|share| share.cpus).sum();
        let mem_bytes: u64 = allocation.iter().map(|share| share.mem_bytes).sum();
        let mut parts = Vec::new();
        if milli > 0 {
            let plural = if milli == 1000 { "" } else { "s" };
            parts.push(format!("{} GPU{plural}", milli as f64 / 1000.0));
        }
        parts.push(count(cpus, "CPU"));
        if mem_bytes > 0 {
            parts.push(gmodel::size::exact_size(mem_bytes));
        }
        format!(
            "placed on {} ({}), attempt {}",
            hostlist::compress(names),
            parts.join(", "),
            run.attempt
        )
    }

    fn stopping(&self, stop: &Stop) -> String {
        match stop.why {
            StopCause::Cancelled => with(format!("cancelled by {}", stop.by), &stop.text),
            StopCause::Requeued => with(
                format!("taken back to the queue by {}", stop.by),
                &stop.text,
            ),
            StopCause::Preempted if stop.text.is_empty() => {
                "stopped to make room for another job".to_owned()
            }
            StopCause::Preempted => format!(
                "told to make room {}; {} GPU-seconds since its last mark",
                stop.text, stop.lost_gpu_secs
            ),
            StopCause::Drained => "stopped: its node is drained and has to be empty".to_owned(),
            StopCause::Member => "stopped on the other nodes".to_owned(),
            StopCause::Ended => format!("allocation ended by {}", stop.by),
            StopCause::PrepareTimeout if stop.late.is_empty() => {
                "stopped: not ready in time".to_owned()
            }
            StopCause::PrepareTimeout => {
                let late = stop.late.iter().map(|id| (self.node_name)(*id));
                format!(
                    "stopped: {} did not get ready in time",
                    hostlist::compress(late)
                )
            }
            StopCause::Fenced => "stopped where it was: its node had been given up".to_owned(),
            StopCause::GpuFailed | StopCause::FenceBroken => "stopped by its node".to_owned(),
            StopCause::Unknown => format!("stopped by {}", stop.by),
        }
    }
}

fn waiting(waits: Option<&OpenDependency>) -> String {
    let Some(waits) = waits else {
        return "its dependency is met".to_owned();
    };
    let open = waits
        .on
        .iter()
        .filter(|wait| wait.never.is_none())
        .map(|wait| wait.condition.to_string());
    let never = waits.on.iter().filter_map(|wait| {
        Some(format!(
            "{} can never be met: {}",
            wait.condition,
            wait.never.as_ref()?
        ))
    });
    let open: Vec<String> = open.collect();
    let open = (!open.is_empty())
        .then(|| format!("waits for {}", open.join(if waits.any { "?" } else { "," })));
    open.into_iter().chain(never).collect::<Vec<_>>().join("; ")
}

fn held(mark: &HoldMark) -> String {
    with(format!("held by {}", mark.owner), &mark.reason)
}

fn change_sentence(change: &JobChange) -> String {
    let parts = change.words().into_iter();
    let parts: Vec<String> = parts
        .map(|(what, value)| format!("{what} changed to {value}"))
        .collect();
    parts.join(", ")
}

fn idle_over(spells: &[IdleSpell]) -> String {
    match spells
        .iter()
        .max_by_key(|spell| (spell.percent, spell.secs))
    {
        Some(longest) => format!(
            "{}, and does not stand idle any more",
            idle_words(longest.percent, longest.secs)
        ),
        None => "does not stand idle any more".to_owned(),
    }
}

fn signalled(signal: NumberedSignal) -> String {
    let name = signal_name(signal.signal)
        .map_or_else(|| signal.signal.to_string(), |name| format!("SIG{name}"));
    let whom = match signal {
        NumberedSignal {
            batch_only: true, ..
        } => " to the batch script only",
        NumberedSignal { full: true, .. } => " to the batch script and all that it started",
        _ => "",
    };
    format!("signal {name}{whom}")
}

fn reported(node: &str, phase: &RunPhase) -> String {
    match phase {
        RunPhase::Accepted => format!("{node}: accepted"),
        RunPhase::Ready => format!("{node}: ready"),
        RunPhase::Running { .. } => format!("running on {node}"),
        RunPhase::Ended(end) => with(format!("ended on {node}: {}", end_words(end)), &end.text),
        // The only word of the end where that was not reported by itself.
        RunPhase::Clean(end) => format!("{node}: cleaned up ({})", end_words(end)),
    }
}

fn end_words(end: &RunEnd) -> String {
    let cause = match end.cause {
        EndCause::Exited => return format!("exit {}", end.exit),
        EndCause::LaunchUser | EndCause::LaunchNode => return "could not be started".to_owned(),
        EndCause::PrologFailed => return "the prolog failed".to_owned(),
        EndCause::SupervisorLost => return "its supervisor was lost".to_owned(),
        EndCause::NodeRebooted => return "the node was rebooted".to_owned(),
        EndCause::SpoolLost => return "the node knows nothing of it any more".to_owned(),
        EndCause::TimeLimit => "time limit",
        EndCause::OutOfMemory => "out of memory",
        EndCause::Stopped => "stopped",
        EndCause::FenceBroken => "its device fence was changed",
        EndCause::GpuFailed => "a GPU of it failed",
        EndCause::Unknown => "a cause that this release does not know",
    };
    format!("{cause}, exit {}", end.exit)
}

fn ended(outcome: &Outcome) -> String {
    let text = match outcome.requeue {
        None => with(
            format!("{}, exit {}", outcome.state, outcome.exit),
            &outcome.text,
        ),
        Some(at) => {
            let at = outcome.try_after.map_or(at, |again| again.max(at));
            let later = if at > outcome.ended {
                format!(", not before {at}")
            } else {
                String::new()
            };
            let why = if outcome.text.is_empty() {
                outcome.state.to_string()
            } else {
                outcome.text.clone()
            };
            format!("requeued{later}: {why}")
        }
    };
    let hold = outcome
        .hold
        .as_ref()
        .map(|hold| format!("; {}", held(hold)));
    text + &hold.unwrap_or_default()
}

fn with(head: String, text: &str) -> String {
    if text.is_empty() {
        head
    } else {
        format!("{head}: {text}")
    }
}

/// `1 task`, `4 tasks`.
fn count(number: u32, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
