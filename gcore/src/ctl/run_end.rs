//! A run moves on: go when all are ready, stop when one member fails, an outcome when all have ended.

use super::SYSTEM;
use super::cancel::stop;
use super::event::Event;
use super::handle::Tx;
use super::node_health;
use super::preempt::lost_gpu_secs;
use super::state::{Job, Member, Outcome, Run};
use gmodel::config::Partition;
use gmodel::node::Mark;
use gmodel::policy::PreemptMode;
use gmodel::run::{EndCause, RunEnd, StopWhy, Usage};
use gmodel::{ExitCode, JobState, NodeId, RunId, Timestamp};
use std::collections::BTreeSet;

/// Runs of one job that may fail with their nodes until it is held.
pub const MAX_NODE_FAILURES: usize = 3;
/// Longest wait before a job that failed to start is tried again, seconds.
const MAX_BACK_OFF_SECS: i64 = 300;

/// Emits what follows from the reports of a run so far. Safe to call at any time.
pub(super) fn advance(tx: &mut Tx, id: RunId) {
    move_on(tx, id, None);
}

/// As [`advance`], when all that is new is what one node said: large runs have many nodes that say much.
pub(super) fn advance_after(tx: &mut Tx, id: RunId, node: NodeId) {
    move_on(tx, id, Some(node));
}

fn move_on(tx: &mut Tx, id: RunId, news: Option<NodeId>) {
    let Some(run) = tx.state.runs.get(id) else { return };
    if run.outcome.is_none() {
        if all(run, Member::is_ended) {
            end(tx, id);
        } else if should_stop_rest(run, || no_kill(tx, id), news) {
            stop(tx, id, StopWhy::Member, SYSTEM);
            return;
        } else if run.go.is_none() && run.stop.is_none() && all(run, Member::is_ready) {
            tx.emit(Event::RunGo { run: id, at: tx.now });
            return;
        } else {
            return;
        }
    }
    settle(tx, id);
}

/// Whether all members have come so far. They report mostly in order: who has not is found at an end of the list.
fn all(run: &Run, has_come: impl Fn(&Member) -> bool) -> bool {
    run.members.last().is_none_or(&has_come) && run.all(has_come)
}

fn no_kill(tx: &Tx, id: RunId) -> bool {
    tx.state.jobs.get(id.job).is_some_and(|job| job.spec.no_kill)
}

/// The batch node's end is the run's; another member's failure is too, unless `--no-kill`.
fn should_stop_rest(run: &Run, no_kill: impl Fn() -> bool, news: Option<NodeId>) -> bool {
    let ends_all = |at: usize| {
        let member = &run.members[at];
        match member.end() {
            _ if member.forfeited => at == 0 || !no_kill(),
            Some(_) if at == 0 => true,
            Some(end) => (end.cause != EndCause::Exited || !end.exit.is_success()) && !no_kill(),
            None => false,
        }
    };
    run.stop.is_none()
        && match news {
            Some(node) => run.place_of(node).is_some_and(ends_all),
            None => (0..run.members.len()).any(ends_all),
        }
}

fn settle(tx: &mut Tx, id: RunId) {
    let Some(run) = tx.state.runs.get(id) else { return };
    let (settled, clean) = (all(run, Member::is_settled), all(run, Member::is_clean));
    let completing = tx
        .state
        .jobs
        .get(id.job)
        .is_some_and(|job| job.live_run() == Some(id) && job.state == JobState::Completing);
    if settled && completing {
        tx.emit(Event::RunSettled { run: id, at: tx.now });
    }
    if clean {
        tx.emit(Event::RunClosed { run: id });
    }
}

fn end(tx: &mut Tx, id: RunId) {
    let run = tx.state.runs.get(id).expect("advance found it");
    let job = tx.state.jobs.get(id.job).expect("a run without outcome has its job");
    let partition = tx.state.config.partition(&job.spec.partition).cloned().unwrap_or_default();
    let name = |id: NodeId| tx.state.nodes.get(id).map_or(id.to_string(), |node| node.name.clone());
    let idle_spells = super::idle::idle_spells(tx.state, run);
    let outcome = Outcome { idle_spells, ..decide(run, job, &partition, &name, tx.now) };
    let settled = run.is_settled();
    let strikes = node_health::strikes_of(run, job, tx.now);
    tx.emit(Event::RunEnded { run: id, outcome, settled, at: tx.now });
    for (node, strike, at_once) in strikes {
        node_health::strike(tx, node, strike, at_once);
    }
}

/// From a node's number to the name that people know.
type NodeName<'a> = &'a dyn Fn(NodeId) -> String;

/// How a run ended, and what becomes of its job.
fn decide(
    run: &Run,
    job: &Job,
    partition: &Partition,
    name: NodeName,
    now: Timestamp,
) -> Outcome {
    let mut usage = Usage::default();
    for end in run.members.iter().filter_map(Member::end) {
        usage.add(&end.usage);
    }
    let verdict = verdict(run, name);
    let may_requeue = job.may_requeue(partition.requeue);
    let failures = failed_runs(job) + usize::from(run.failed_nodes().next().is_some());
    let back_off = |n: usize| now.plus_secs((1i64 << n.min(16)).min(MAX_BACK_OFF_SECS));
    let (requeue, hold) = match verdict.kind {
        Kind::Final => (None, None),
        Kind::AskedBack => (Some(now), None),
        // It keeps its place in line.
        Kind::GaveWay if may_requeue => (Some(job.eligible.min(now)), None),
        Kind::GaveWay => (None, None),
        Kind::NeverStarted { hold } => {
            let hold = hold.then(|| system_hold(now, verdict.text.clone()));
            (Some(back_off(failures)), hold.or_else(|| too_many(job, run, failures, name, now)))
        }
        Kind::NodeFailure if may_requeue => {
            (Some(back_off(failures)), too_many(job, run, failures, name, now))
        }
        Kind::NodeFailure => (None, None),
    };
    let state = match verdict.state {
        JobState::Cancelled if requeue.is_some() => JobState::Requeued,
        state => state,
    };
    let (started, ended) = times(run, now);
    let gave_way = matches!(verdict.kind, Kind::AskedBack | Kind::GaveWay) || verdict.state == JobState::Preempted;
    let lost_gpu_secs = if gave_way { lost_gpu_secs(run, started, ended) } else { 0 };
    let text = match lost_gpu_secs {
        0 => verdict.text,
        1 => format!("{}; 1 GPU-second since its last mark is lost", verdict.text),
        lost => format!("{}; {lost} GPU-seconds since its last mark are lost", verdict.text),
    };
    Outcome {
        state,
        exit: verdict.exit,
        text,
        started,
        ended,
        usage,
        requeue,
        hold,
        lost_gpu_secs,
        idle_spells: Vec::new(),
    }
}

/// When the run really began and ended: a report may come hours after the fact, so the nodes' words
/// count, within what our own clock allows.
fn times(run: &Run, now: Timestamp) -> (Option<Timestamp>, Timestamp) {
    let latest = now.max(run.placed);
    let ends = || run.members.iter().filter_map(Member::end);
    let told = ends().filter_map(|end| end.started).min();
    let started = run.started.or(told.map(|at| at.clamp(run.placed, latest)));
    let all_told = ends().count() == run.members.len() && ends().all(|end| end.ended.is_some());
    let last = ends().filter_map(|end| end.ended).max().filter(|_| all_told);
    let earliest = started.unwrap_or(run.placed);
    (started, last.unwrap_or(latest).clamp(earliest.min(latest), latest))
}

struct Verdict {
    state: JobState,
    exit: ExitCode,
    text: String,
    kind: Kind,
}

enum Kind {
    Final,
    /// Somebody asked for it.
    AskedBack,
    /// Preempted, or its node was drained: back to the queue if it may.
    GaveWay,
    /// No process of the user was started; it is not charged and always goes back.
    NeverStarted { hold: bool },
    /// It ran and lost its node.
    NodeFailure,
}

fn verdict(run: &Run, name: NodeName) -> Verdict {
    let batch = run.members.first().and_then(Member::end);
    let why = run.stop.as_ref().map(|stop| stop.why);
    // A node had heard of it before it was taken back: that is why it ended, and what else was ordered came of it.
    let heard = run.called_back.as_deref().filter(|_| matches!(why, None | Some(StopWhy::Member)));
    let order = heard.or(run.stop.as_ref());
    let worst = worst(run, name);
    // A batch process that ended by itself counts, whatever was ordered meanwhile. Its success counts
    // whatever befell the other nodes; its failure, unless theirs explains it: a limit that they met
    // while they were being ended does not.
    let explains = |w: &Verdict| w.state != JobState::Timeout;
    if let Some(end) = batch
        && end.cause == EndCause::Exited
        && (why != Some(StopWhy::Member)
            || end.exit.is_success()
            || !worst.as_ref().is_some_and(explains))
    {
        return by_exit(end);
    }
    let exit = batch.map(|end| end.exit).unwrap_or_default();
    let (by, why) = (order.map_or("", |stop| stop.by.as_str()), order.map(|stop| stop.why));
    // Who asked for the end gets it, even if a node was lost before it could obey.
    let asked = matches!(why, Some(StopWhy::Cancelled | StopWhy::Requeued | StopWhy::Preempted | StopWhy::Drained));
    if let Some(verdict) = worst.filter(|worst| !(asked && worst.state == JobState::NodeFail)) {
        return verdict;
    }
    let (state, text, kind) = match why {
        Some(StopWhy::Requeued) => {
            (JobState::Cancelled, with_ground(format!("requeued by {by}"), run), Kind::AskedBack)
        }
        Some(StopWhy::Preempted) => {
            let text = order.map_or(String::new(), |stop| format!("preempted {}", stop.text));
            let cancel = order.is_some_and(|stop| stop.mode == Some(PreemptMode::Cancel));
            (JobState::Preempted, text, if cancel { Kind::Final } else { Kind::GaveWay })
        }
        Some(StopWhy::Drained) => {
            let text = match by.strip_prefix("maintenance ") {
                Some(name) => format!("its node was to be empty for maintenance {name}"),
                None => format!("its node was drained by {by} and had to be empty"),
            };
            (JobState::Cancelled, text, Kind::GaveWay)
        }
        Some(StopWhy::PrepareTimeout) => {
            let late = run.stop.as_ref().map_or(0, |stop| stop.late.len());
            let text = format!("{late} of {} nodes did not get ready in time", run.members.len());
            (JobState::NodeFail, text, Kind::NeverStarted { hold: false })
        }
        _ => (JobState::Cancelled, with_ground(String::new(), run), Kind::Final),
    };
    Verdict { state, exit, text, kind }
}

/// With the ground on which it was told to stop, where one was said.
fn with_ground(text: String, run: &Run) -> String {
    match run.stop.as_ref().map_or("", |stop| &stop.text) {
        "" => text,
        ground if text.is_empty() => ground.to_owned(),
        ground => format!("{text}: {ground}"),
    }
}

fn by_exit(end: &RunEnd) -> Verdict {
    let state =
        if end.exit.is_success() { JobState::Completed } else { JobState::Failed };
    Verdict { state, exit: end.exit, text: end.text.clone(), kind: Kind::Final }
}

/// The gravest end among the members, if one is more than a plain exit or an obeyed stop.
fn worst(run: &Run, name: NodeName) -> Option<Verdict> {
    if let Some(member) = run.members.iter().find(|member| member.forfeited) {
        let text = format!("{} was lost", name(member.node));
        return Some(node_failure(run, text));
    }
    let ends = || run.members.iter().filter_map(Member::end);
    if let Some(end) = ends().find(|end| end.cause.is_node_failure()) {
        let never = matches!(end.cause, EndCause::LaunchNode | EndCause::PrologFailed);
        if never && run.started.is_none() {
            let hold = end.cause == EndCause::PrologFailed;
            return Some(Verdict {
                state: JobState::NodeFail,
                exit: end.exit,
                text: end.text.clone(),
                kind: Kind::NeverStarted { hold },
            });
        }
        return Some(node_failure(run, end.text.clone()));
    }
    let special = [
        (EndCause::LaunchUser, JobState::Failed),
        (EndCause::FenceBroken, JobState::Failed),
        (EndCause::OutOfMemory, JobState::OutOfMemory),
        (EndCause::TimeLimit, JobState::Timeout),
    ];
    for (cause, state) in special {
        if let Some(end) = ends().find(|end| end.cause == cause) {
            let mut exit = end.exit;
            if cause == EndCause::LaunchUser && exit.is_success() {
                exit = ExitCode::exited(1);
            }
            return Some(Verdict { state, exit, text: end.text.clone(), kind: Kind::Final });
        }
    }
    // Another node's tasks failed and the batch was stopped for it.
    let failed = run.members.iter().skip(1).filter_map(Member::end);
    let failed = failed.into_iter().find(|end| {
        end.cause == EndCause::Exited && !end.exit.is_success()
    });
    failed.map(|end| by_exit(end))
}

fn node_failure(run: &Run, text: String) -> Verdict {
    // Before the go nothing of the user ran: it is as if it had never been placed. After it, it may have.
    let kind = if run.go.is_none() {
        Kind::NeverStarted { hold: false }
    } else {
        Kind::NodeFailure
    };
    Verdict { state: JobState::NodeFail, exit: ExitCode::default(), text, kind }
}

/// Runs of the job that failed by a node's fault. A run that lost several nodes counts once.
fn failed_runs(job: &Job) -> usize {
    job.node_failures.iter().map(|failure| failure.attempt).collect::<BTreeSet<_>>().len()
}

fn too_many(
    job: &Job,
    run: &Run,
    failures: usize,
    name: NodeName,
    now: Timestamp,
) -> Option<Mark> {
    if failures < MAX_NODE_FAILURES {
        return None;
    }
    let before = job.node_failures.iter().map(|failure| (failure.node, &*failure.text));
    let known: Vec<String> = before
        .chain(run.failed_nodes())
        .map(|(node, text)| format!("{} ({text})", name(node)))
        .collect();
    let text = format!("{failures} of its runs failed with their nodes: {}", known.join("; "));
    Some(system_hold(now, text))
}

fn system_hold(now: Timestamp, reason: String) -> Mark {
    Mark { owner: SYSTEM.into(), reason, since: now }
}
