//! A run moves on: go when all are ready, stop when one member fails, an outcome when all have ended.

use crate::ctl::event::Event;
use crate::ctl::node;
use crate::ctl::owner::SYSTEM;
use crate::ctl::run::idle_policy::idle_spells;
use crate::ctl::run::stop_order::order;
use crate::ctl::state::{DOWNED_MILLIS, Job, MAX_DOWNED, Member, Outcome, Run, Stop};
use crate::ctl::tx::Tx;
use gmodel::config::Partition;
use gmodel::node::HoldMark;
use gmodel::policy::PreemptMode;
use gmodel::run::{Allocation, EndCause, NodeShare, RunEnd, StopCause, Usage};
use gmodel::{ExitCode, JobState, NodeId, RunId, Timestamp};
use std::sync::Arc;

/// Longest wait before a job that failed to start is tried again, seconds.
const MAX_BACK_OFF_SECS: i64 = 300;

/// Emits what follows from the reports of a run so far. Safe to call at any time.
pub(crate) fn advance(tx: &mut Tx, id: RunId) {
    move_on(tx, id, None);
}

/// As [`advance`], when one node's report is all that is new: large runs have many nodes.
pub(crate) fn advance_after(tx: &mut Tx, id: RunId, node: NodeId) {
    move_on(tx, id, Some(node));
}

fn move_on(tx: &mut Tx, id: RunId, news: Option<NodeId>) {
    let Some(run) = tx.state.runs.get(id) else {
        return;
    };
    if run.outcome.is_none() {
        if all(run, Member::is_ended) {
            end(tx, id);
        } else if should_stop_rest(run, || no_kill(tx, id), news) {
            stop(tx, id, StopCause::Member, SYSTEM);
            return;
        } else if run.go.is_none() && run.stop.is_none() && all(run, Member::is_ready) {
            tx.emit(Event::RunGo {
                run: id,
                at: tx.now,
            });
            return;
        } else {
            return;
        }
    }
    settle(tx, id);
}

/// Whether all members have come so far. They report mostly in order, so a late one is found at an end of the
/// list.
fn all(run: &Run, has_come: impl Fn(&Member) -> bool) -> bool {
    run.members.last().is_none_or(&has_come) && run.all(has_come)
}

fn no_kill(tx: &Tx, id: RunId) -> bool {
    tx.state
        .jobs
        .get(id.job)
        .is_some_and(|job| job.spec.no_kill)
}

/// The batch node's end ends the run; so does another member's failure, without `--no-kill`.
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
    let Some(run) = tx.state.runs.get(id) else {
        return;
    };
    let (settled, clean) = (all(run, Member::is_settled), all(run, Member::is_clean));
    let completing = tx
        .state
        .jobs
        .get(id.job)
        .is_some_and(|job| job.live_run() == Some(id) && job.state == JobState::Completing);
    if settled && completing {
        tx.emit(Event::RunSettled {
            run: id,
            at: tx.now,
        });
    }
    if clean {
        tx.emit(Event::RunClosed { run: id });
    }
}

fn end(tx: &mut Tx, id: RunId) {
    let run = tx.state.runs.get(id).expect("advance found it");
    let job = tx
        .state
        .jobs
        .get(id.job)
        .expect("a run without outcome has its job");
    let partition = tx
        .state
        .config
        .partition(&job.spec.partition)
        .cloned()
        .unwrap_or_default();
    let name = |id: NodeId| {
        tx.state
            .nodes
            .get(id)
            .map_or(id.to_string(), |node| node.name.clone())
    };
    let idle_spells = idle_spells(tx.state, run);
    let outcome = Outcome {
        idle_spells,
        ..decide(run, job, &partition, &name, tx.now)
    };
    let settled = run.is_settled();
    let strikes = node::strikes::strikes_of(run, job, tx.now);
    tx.emit(Event::RunEnded {
        run: id,
        outcome,
        settled,
        at: tx.now,
    });
    for (node, strike) in strikes {
        node::strikes::strike(tx, node, strike);
    }
}

/// From a node's id to its name.
type NodeName<'a> = &'a dyn Fn(NodeId) -> String;

/// How a run ended, and what becomes of its job.
fn decide(run: &Run, job: &Job, partition: &Partition, name: NodeName, now: Timestamp) -> Outcome {
    let mut usage = Usage::default();
    for end in run.members.iter().filter_map(Member::end) {
        usage.add(&end.usage);
    }
    let verdict = verdict(run, name);
    let may_requeue = job.may_requeue(partition.requeue);
    let failures = job.past.failed_runs + u32::from(run.failed_nodes().next().is_some());
    let again = now.plus_secs((1i64 << failures.min(16)).min(MAX_BACK_OFF_SECS));
    // Its age counts on.
    let in_line = job.eligible.min(now);
    let (requeue, try_after) = match verdict.kind {
        EndKind::AskedBack => (Some(now), None),
        EndKind::GaveWay if may_requeue => (Some(in_line), None),
        EndKind::NeverStarted => (Some(in_line), Some(again)),
        EndKind::NodeFailure if may_requeue => (Some(in_line), Some(again)),
        EndKind::Final | EndKind::GaveWay | EndKind::NodeFailure => (None, None),
    };
    let state = match verdict.state {
        JobState::Cancelled if requeue.is_some() => JobState::Requeued,
        state => state,
    };
    let Times {
        started,
        ended,
        held_millis,
    } = times(run, now);
    let hold = try_after.and_then(|_| takes_nodes_down(job, run, started, ended, name, now));
    let gave_way = matches!(verdict.kind, EndKind::AskedBack | EndKind::GaveWay)
        || verdict.state == JobState::Preempted;
    let lost_gpu_secs = if gave_way {
        lost_gpu_secs(run, started, ended)
    } else {
        0
    };
    let text = with_loss(verdict.text, lost_gpu_secs);
    Outcome {
        state,
        exit: verdict.exit,
        text,
        started,
        ended,
        unheld_millis: unheld_millis(
            &run.allocation,
            started.map_or(0, |started| ended.since_millis(started)),
            &held_millis,
        ),
        held_millis,
        gpu_events: gpu_events(run, name),
        usage,
        requeue,
        try_after,
        hold,
        lost_gpu_secs,
        idle_spells: Vec::new(),
    }
}

/// When a run began and ended by the controller's clock, and how long it held each of its nodes.
struct Times {
    started: Option<Timestamp>,
    ended: Timestamp,
    held_millis: Vec<i64>,
}

/// Slack for a node's duration beyond the time between placement and report, milliseconds: the controller's
/// clock may have been set back.
const MAX_STEP_MILLIS: i64 = 86_400_000;
/// Nodes of one run start within this of each other, milliseconds.
const START_SKEW_MILLIS: i64 = 5_000;

/// A report may come hours after the fact, and clocks may be set at any time. So the end comes from the
/// report's age, within the controller's clock; the length is as nodes measured it; and the start is the end
/// less that length.
fn times(run: &Run, now: Timestamp) -> Times {
    let latest = now.max(run.placed);
    let longest_possible = latest
        .since_millis(run.placed)
        .saturating_add(MAX_STEP_MILLIS);
    let ends = || run.members.iter().map(Member::end);
    let told = ends()
        .flatten()
        .filter_map(|end| end.started)
        .min()
        .map(|at| at.clamp(run.placed, latest));
    let all_told = ends().all(|end| end.is_some_and(|end| end.ended.is_some()));
    let last = ends()
        .flatten()
        .filter_map(|end| end.ended)
        .max()
        .filter(|_| all_told);
    let ended = last.unwrap_or(latest).clamp(run.placed, latest);
    let Some(known) = run.started.or(told) else {
        return Times {
            started: None,
            ended,
            held_millis: Vec::new(),
        };
    };
    let lasted = |end: &Arc<RunEnd>| {
        end.lasted_millis()
            .map(|millis| millis.min(longest_possible))
    };
    let lengths: Vec<Option<i64>> = ends().map(|end| end.and_then(lasted)).collect();
    let longest = lengths.iter().flatten().copied().max().unwrap_or(0);
    let between = ended.since_millis(known).max(0);
    let skew = if lengths.len() > 1 {
        START_SKEW_MILLIS
    } else {
        0
    };
    let is_measured =
        lengths.iter().all(Option::is_some) && !(longest..=longest + skew).contains(&between);
    let span = if is_measured {
        longest
    } else {
        between.max(longest)
    };
    let started = ended.plus_millis(-span);
    let held = |(end, length): (Option<&Arc<RunEnd>>, &Option<i64>)| {
        let until = |at: Timestamp| at.since_millis(started).clamp(0, span);
        length.unwrap_or_else(|| end.and_then(|end| end.ended).map_or(span, until))
    };
    let held_millis: Vec<i64> = ends().zip(&lengths).map(held).collect();
    let all_alike = held_millis.iter().all(|held| *held == span);
    Times {
        started: Some(started),
        ended,
        held_millis: if all_alike { Vec::new() } else { held_millis },
    }
}

/// The time for which its nodes were not held, on average over its GPUs, or its CPUs if it has none.
fn unheld_millis(allocation: &Allocation, span: i64, held_millis: &[i64]) -> i64 {
    let has_gpus = allocation.iter().any(|share| share.gpus.milli() > 0);
    let weight = |share: &NodeShare| {
        if has_gpus {
            i128::from(share.gpus.milli())
        } else {
            i128::from(share.cpus)
        }
    };
    let all: i128 = allocation.iter().map(weight).sum();
    let of = |(share, held): (&NodeShare, &i64)| weight(share) * i128::from((span - held).max(0));
    let unheld: i128 = allocation.iter().zip(held_millis).map(of).sum();
    i64::try_from(unheld / all.max(1)).unwrap_or(0)
}

/// Most GPU events that a run keeps.
const MAX_GPU_EVENTS: usize = 32;

fn gpu_events(run: &Run, name: NodeName) -> Vec<String> {
    let of_member = |member: &Member| {
        let events = member.end().map_or(&[][..], |end| &end.gpu_events);
        let words = |event: &String| format!("{}: {}", name(member.node), event);
        events.iter().map(words).collect::<Vec<_>>()
    };
    run.members
        .iter()
        .flat_map(of_member)
        .take(MAX_GPU_EVENTS)
        .collect()
}

struct Verdict {
    state: JobState,
    exit: ExitCode,
    text: String,
    kind: EndKind,
}

enum EndKind {
    Final,
    /// Stopped on request.
    AskedBack,
    /// Preempted, or its node was drained: requeued if allowed.
    GaveWay,
    /// No user process was started; it costs nothing and is always requeued.
    NeverStarted,
    /// It ran and lost its node.
    NodeFailure,
}

fn verdict(run: &Run, name: NodeName) -> Verdict {
    let batch = run.members.first().and_then(Member::end);
    let why = run.stop.as_ref().map(|stop| stop.why);
    // A node had the order before it was taken back: that ended the run, and later orders followed from it.
    let heard = run
        .called_back
        .as_deref()
        .filter(|_| matches!(why, None | Some(StopCause::Member)));
    let order = heard.or(run.stop.as_ref());
    let worst = worst(run, name);
    // A batch process that ended by itself counts, whatever was ordered meanwhile. Its success counts whatever
    // happened on other nodes; its failure too, unless theirs explains it (a limit met while they were being
    // stopped does not).
    let explains = |w: &Verdict| w.state != JobState::Timeout;
    if let Some(end) = batch
        && end.cause == EndCause::Exited
        && (why != Some(StopCause::Member)
            || end.exit.is_success()
            || !worst.as_ref().is_some_and(explains))
    {
        return by_exit(end);
    }
    let exit = batch.map(|end| end.exit).unwrap_or_default();
    let why = order.map(|stop| stop.why);
    // A requested end counts, even if a node was lost before it could obey.
    let asked = matches!(
        why,
        Some(
            StopCause::Cancelled | StopCause::Requeued | StopCause::Preempted | StopCause::Drained
        )
    );
    if let Some(verdict) = worst.filter(|worst| !(asked && worst.state == JobState::NodeFail)) {
        return verdict;
    }
    Verdict {
        exit,
        ..ordered_end(run, order)
    }
}

/// The end of a run that obeyed an order.
fn ordered_end(run: &Run, order: Option<&Stop>) -> Verdict {
    let by = order.map_or("", |stop| stop.by.as_str());
    let (state, text, kind) = match order.map(|stop| stop.why) {
        Some(StopCause::Requeued) => (
            JobState::Cancelled,
            with_ground(format!("requeued by {by}"), run),
            EndKind::AskedBack,
        ),
        Some(StopCause::Preempted) => {
            let text = order.map_or(String::new(), |stop| format!("preempted {}", stop.text));
            let cancel = order.is_some_and(|stop| stop.mode == Some(PreemptMode::Cancel));
            (
                JobState::Preempted,
                text,
                if cancel {
                    EndKind::Final
                } else {
                    EndKind::GaveWay
                },
            )
        }
        Some(StopCause::Drained) => {
            let text = match by.strip_prefix("maintenance ") {
                Some(name) => format!("its node was to be empty for maintenance {name}"),
                None => format!("its node was drained by {by} and had to be empty"),
            };
            (JobState::Cancelled, text, EndKind::GaveWay)
        }
        Some(StopCause::PrepareTimeout) => {
            let late = run.stop.as_ref().map_or(0, |stop| stop.late.len());
            let text = format!(
                "{late} of {} nodes did not get ready in time",
                run.members.len()
            );
            (JobState::NodeFail, text, EndKind::NeverStarted)
        }
        _ => (
            JobState::Cancelled,
            with_ground(String::new(), run),
            EndKind::Final,
        ),
    };
    Verdict {
        state,
        exit: ExitCode::default(),
        text,
        kind,
    }
}

fn with_loss(text: String, lost_gpu_secs: u64) -> String {
    match lost_gpu_secs {
        0 => text,
        1 => format!("{text}; 1 GPU-second since its last mark is lost"),
        lost => format!("{text}; {lost} GPU-seconds since its last mark are lost"),
    }
}

/// With the reason of the stop order, if it has one.
fn with_ground(text: String, run: &Run) -> String {
    match run.stop.as_ref().map_or("", |stop| &stop.text) {
        "" => text,
        ground if text.is_empty() => ground.to_owned(),
        ground => format!("{text}: {ground}"),
    }
}

fn by_exit(end: &RunEnd) -> Verdict {
    let state = if end.exit.is_success() {
        JobState::Completed
    } else {
        JobState::Failed
    };
    Verdict {
        state,
        exit: end.exit,
        text: end.text.clone(),
        kind: EndKind::Final,
    }
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
            return Some(Verdict {
                state: JobState::NodeFail,
                exit: end.exit,
                text: end.text.clone(),
                kind: EndKind::NeverStarted,
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
            return Some(Verdict {
                state,
                exit,
                text: end.text.clone(),
                kind: EndKind::Final,
            });
        }
    }
    // Another node's tasks failed and the batch was stopped for it.
    let failed = run.members.iter().skip(1).filter_map(Member::end);
    let failed = failed
        .into_iter()
        .find(|end| end.cause == EndCause::Exited && !end.exit.is_success());
    failed.map(|end| by_exit(end))
}

fn node_failure(run: &Run, text: String) -> Verdict {
    // Before the go no user process ran: as if never placed. After it, one may have.
    let kind = if run.go.is_none() {
        EndKind::NeverStarted
    } else {
        EndKind::NodeFailure
    };
    Verdict {
        state: JobState::NodeFail,
        exit: ExitCode::default(),
        text,
        kind,
    }
}

/// The hold of a job under which several nodes went down.
fn takes_nodes_down(
    job: &Job,
    run: &Run,
    started: Option<Timestamp>,
    ended: Timestamp,
    name: NodeName,
    now: Timestamp,
) -> Option<HoldMark> {
    let soon = started.is_some_and(|started| ended.since_millis(started) < DOWNED_MILLIS);
    let here: Vec<(NodeId, &str)> = run
        .failed_nodes()
        .filter(|(node, _)| soon && run.lost_node(*node))
        .collect();
    if here.is_empty() || job.past.downed_runs + 1 < MAX_DOWNED {
        return None;
    }
    let before = job
        .past
        .node_failures
        .iter()
        .filter(|one| one.downed && here.iter().all(|(node, _)| *node != one.node));
    let before = before.map(|failure| (failure.node, &*failure.text));
    let known: Vec<String> = before
        .chain(here.iter().copied())
        .map(|(node, text)| format!("{} ({text})", name(node)))
        .collect();
    let minutes = DOWNED_MILLIS / 60_000;
    let text = format!(
        "a node went down within {minutes} minutes of the start of each of its last {MAX_DOWNED} runs: {}",
        known.join("; ")
    );
    Some(system_hold(now, text))
}

fn system_hold(now: Timestamp, reason: String) -> HoldMark {
    HoldMark {
        owner: SYSTEM.into(),
        reason,
        since: now,
    }
}

/// Orders a run to stop, unless it is over or has an order. A cancel replaces other orders.
pub(crate) fn stop(tx: &mut Tx, run: RunId, why: StopCause, by: &str) {
    let Some(record) = tx.state.runs.get(run) else {
        return;
    };
    let stands = |stop: &Stop| why != StopCause::Cancelled || stop.why == StopCause::Cancelled;
    if record.outcome.is_some() || record.stop.as_ref().is_some_and(stands) {
        return;
    }
    let late = match why {
        StopCause::PrepareTimeout => record.late_members(),
        _ => Vec::new(),
    };
    // A victim still frees its resources for the preempting job.
    let for_job = record.stop.as_ref().and_then(|stop| stop.for_job);
    let stop = Stop {
        late,
        for_job,
        ..order(tx, run, why, by)
    };
    tx.emit(Event::RunStopping { run, stop });
    advance(tx, run);
}

/// GPU-seconds of work between the last mark (or the start) and the end.
pub(crate) fn lost_gpu_secs(run: &Run, started: Option<Timestamp>, ended: Timestamp) -> u64 {
    let marked = run.mark.as_ref().map(|mark| mark.at);
    let Some(since) = marked.or(started) else {
        return 0;
    };
    let milli: u64 = run.allocation.iter().map(|share| share.gpus.milli()).sum();
    let millis = u64::try_from(ended.since_millis(since)).unwrap_or(0);
    milli.saturating_mul(millis) / 1_000_000
}
