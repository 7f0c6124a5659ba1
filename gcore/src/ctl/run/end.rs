//! The outcome of a run whose nodes have all ended: state, times, charge, and whether its job goes back to the queue.

use crate::ctl::bill;
use crate::ctl::event::Event;
use crate::ctl::node;
use crate::ctl::owner::SYSTEM;
use crate::ctl::run::idle_policy::idle_spells;
use crate::ctl::run::parts;
use crate::ctl::run::run_times::{RunTimes, times, unheld_millis};
use crate::ctl::run::verdict::{EndKind, NodeName, Verdict, verdict};
use crate::ctl::state::{DOWNED_MILLIS, Job, MAX_DOWNED, Member, Outcome, Run};
use crate::ctl::token::cap;
use crate::ctl::tx::Tx;
use gmodel::config::Partition;
use gmodel::node::HoldMark;
use gmodel::run::Usage;
use gmodel::{JobState, NodeId, RunId, Timestamp};

/// Longest wait before a job that failed to start is tried again, seconds.
const MAX_BACK_OFF_SECS: i64 = 300;

/// Ends runs whose nodes have all ended: one, or all components of a job of unlike parts.
pub(crate) fn end(tx: &mut Tx, runs: &[RunId]) {
    let mut outcomes: Vec<(RunId, Outcome)> =
        runs.iter().map(|run| (*run, outcome(tx, *run))).collect();
    parts::agree(tx.state, &mut outcomes);
    for (run, outcome) in outcomes {
        end_by(tx, run, outcome);
    }
}

fn outcome(tx: &Tx, id: RunId) -> Outcome {
    let run = tx.run(id).expect("advance found it");
    let job = tx.job(id.job).expect("a run without outcome has its job");
    let partition = tx
        .state
        .config
        .partition(&job.spec.partition)
        .cloned()
        .unwrap_or_default();
    let name = |id: NodeId| tx.node(id).map_or(id.to_string(), |node| node.name.clone());
    let idle_spells = idle_spells(tx.state, run);
    Outcome {
        idle_spells,
        ..decide(run, job, &partition, &name, tx.now)
    }
}

fn end_by(tx: &mut Tx, id: RunId, outcome: Outcome) {
    let run = tx.run(id).expect("advance found it");
    let job = tx.job(id.job).expect("a run without outcome has its job");
    let settled = run.is_settled();
    let capped = cap::hold_on_return(tx.state, run, &outcome, tx.now);
    let outcome = Outcome {
        hold: capped.or(outcome.hold.clone()),
        ..outcome
    };
    let strikes = node::strikes::strikes_of(run, job, tx.now);
    if let Some(started) = outcome.started {
        bill::note_used(tx, id, started, outcome.ended);
    }
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
        // Its client has an allocation from the go on, and would not know of another start.
        _ if job.spec.allocation && run.go.is_some() => (None, None),
        EndKind::AskedBack => (Some(now), None),
        EndKind::Preempted if may_requeue => (Some(in_line), None),
        EndKind::NeverStarted => (Some(in_line), Some(again)),
        EndKind::NodeFailure if may_requeue => (Some(in_line), Some(again)),
        EndKind::Final | EndKind::Preempted | EndKind::NodeFailure => (None, None),
    };
    let RunTimes {
        started,
        ended,
        held_millis,
    } = times(run, now);
    let state = match verdict.state {
        JobState::Cancelled if requeue.is_some() => JobState::Requeued,
        JobState::Timeout if cut_at_deadline(run, job, now) => JobState::Deadline,
        state => state,
    };
    let hold = try_after.and_then(|_| takes_nodes_down(job, run, started, ended, name, now));
    let lost_gpu_secs = if gave_way(&verdict) {
        lost_gpu_secs(run, started, ended)
    } else {
        0
    };
    let text = match state {
        JobState::Deadline => deadline_words(job),
        _ => with_loss(verdict.text, lost_gpu_secs),
    };
    let ran_millis = started.map_or(0, |started| ended.since_millis(started));
    Outcome {
        state,
        exit: verdict.exit,
        text,
        started,
        ended,
        unheld_millis: unheld_millis(&run.allocation, ran_millis, &held_millis),
        held_millis,
        gpu_events: gpu_events(run, name),
        image: image(run),
        usage,
        requeue,
        try_after,
        hold,
        lost_gpu_secs,
        idle_spells: Vec::new(),
    }
}

fn gave_way(verdict: &Verdict) -> bool {
    matches!(verdict.kind, EndKind::AskedBack | EndKind::Preempted)
        || verdict.state == JobState::Preempted
}

/// Whether the limit that a run met was the time to its deadline: the run was given less than its job asked for.
fn cut_at_deadline(run: &Run, job: &Job, now: Timestamp) -> bool {
    let is_cut = run
        .limit_secs
        .is_some_and(|limit| job.limit_secs.is_none_or(|asked| limit < asked));
    // A limit is whole seconds, and a run starts a moment after it was given one.
    is_cut
        && job
            .spec
            .deadline
            .is_some_and(|deadline| now.plus_secs(1) >= deadline)
}

fn deadline_words(job: &Job) -> String {
    let deadline = job.spec.deadline.unwrap_or_default();
    format!("its deadline {deadline} ended it")
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

/// Of the first node that has one: a tag that moved meanwhile may mean another image on the next.
fn image(run: &Run) -> String {
    let known = run.members.iter().filter_map(|member| {
        let image = &member.end()?.image;
        (!image.is_empty()).then(|| image.clone())
    });
    known.into_iter().next().unwrap_or_default()
}

fn with_loss(text: String, lost_gpu_secs: u64) -> String {
    match lost_gpu_secs {
        0 => text,
        1 => format!("{text}; 1 GPU-second since its last mark is lost"),
        lost => format!("{text}; {lost} GPU-seconds since its last mark are lost"),
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
