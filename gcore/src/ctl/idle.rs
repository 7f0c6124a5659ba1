//! Runs whose GPUs stand idle: warned, then ended, as their QOS or partition says (`gmodel::idle`).
//!
//! Decides only when a node tells of a sample it has just taken, and counts only seconds between samples. So there is no deadline
//! here, and neither a silent node, nor a clock that jumps, nor a controller that was away makes a run idle. Never calls the
//! site's program: gpuctld does, for each [`IdleOrder`] it finds in the state.

use super::event::Event;
use super::handle::Tx;
use super::preempt::order;
use super::run_end::advance;
use super::state::{Job, Run, State, Stop};
use gmodel::duration::squeue_time;
use gmodel::idle::{
    IdleAction, IdleLevels, IdlePolicy, IdleReport, IdleSpell, ended_spells, keep_spells,
};
use gmodel::node::{HoldMark, Link};
use gmodel::run::StopCause;
use gmodel::{NodeId, RunId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a node told counts so long while the other nodes of the run tell theirs, seconds.
const FRESH_SECS: i64 = 120;
/// A spell that ends while the run goes on is written down from this length on, seconds.
const MIN_SPELL_SECS: u32 = 60;
/// Who ends a run, as its record says.
pub const BY: &str = "idle policy";
/// Most of a program's words that are kept, bytes.
const MAX_WORDS_BYTES: usize = 1000;

/// What is known of a run's idleness.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunIdle {
    /// Its longest spells that are over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spells: Vec<IdleSpell>,
    /// It was warned, or would have been, and has been idle since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warned: Option<IdleWarning>,
}

/// What the nodes of a run tell of it: a memo of the controller that runs. Whoever comes after it hears anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdleSeen {
    by_node: BTreeMap<NodeId, Seen>,
    /// Of all its nodes together, as of the last sample told.
    pub levels: IdleLevels,
    pub watched_secs: u32,
}

/// A run is warned once in each spell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleWarning {
    pub at: Timestamp,
    /// For so long it had been idle, seconds, those of the grace not counted.
    pub idle_secs: u32,
    /// Seconds of the run, as far as it was watched, before that began.
    pub from_secs: u32,
    /// False: it would have been warned, under a policy that only reports.
    pub real: bool,
    /// Number of the event: the program's answer names it.
    pub number: u64,
    /// The site's program was called, or there is none.
    pub told: bool,
    /// It would have been ended, under a policy that ends nothing.
    pub noted: bool,
}

/// What one node told.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    at: Timestamp,
    watched_secs: u32,
    idle_secs: Vec<u32>,
}

/// A call of the site's program that is due now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleOrder {
    pub run: RunId,
    /// Of this warning; the answer names it.
    pub number: u64,
    pub idle_secs: u32,
    /// What follows, and after how many more idle seconds.
    pub next: Option<(IdleAction, u32)>,
}

/// The calls that should be under way. One that an earlier controller began and did not hear the end of is made again.
pub fn idle_orders(state: &State) -> Vec<IdleOrder> {
    let order = |id: &RunId| {
        let run = state.runs.get(*id).filter(|run| run.outcome.is_none())?;
        let warned = run
            .idle
            .as_ref()?
            .warned
            .as_ref()
            .filter(|warned| !warned.told)?;
        let policy = state
            .jobs
            .get(id.job)
            .and_then(|job| policy_of(state, job))
            .filter(|policy| policy.action.ends());
        let next = policy.map(|policy| {
            (
                policy.action,
                policy
                    .ends_at_secs(warned.idle_secs)
                    .saturating_sub(warned.idle_secs),
            )
        });
        Some(IdleOrder {
            run: *id,
            number: warned.number,
            idle_secs: warned.idle_secs,
            next,
        })
    };
    state.idle_untold.iter().filter_map(order).collect()
}

/// The policy for a job, if one is in force for it.
pub fn policy_of<'a>(state: &'a State, job: &Job) -> Option<&'a IdlePolicy> {
    let partition = || {
        state
            .config
            .partition(&job.spec.partition)
            .and_then(|partition| partition.idle.as_ref())
    };
    let policy = state
        .policy
        .qos
        .get(&job.spec.qos)
        .and_then(|qos| qos.idle.as_ref())
        .or_else(partition);
    policy.filter(|policy| policy.action != IdleAction::Off && !job.spec.idle_exempt)
}

/// Takes what a node tells of the runs it samples, and does what is due.
pub(super) fn take(tx: &mut Tx, node: NodeId, reports: Vec<IdleReport>) {
    for IdleReport {
        run: id,
        watched_secs,
        mut idle_secs,
    } in reports
    {
        let Some(run) = tx.state.runs.get(id).filter(|run| is_watched(run)) else {
            continue;
        };
        let Some(share) = run.allocation.iter().find(|share| share.node == node) else {
            continue;
        };
        if idle_secs.is_empty() && run.allocation.len() == 1 && !tx.state.idle_seen.contains(id) {
            continue;
        }
        idle_secs.truncate(share.gpus.0.len());
        let together = together(tx, run, node, watched_secs, &idle_secs);
        tx.emit(Event::RunIdleSeen {
            run: id,
            node,
            idle_secs,
            watched_secs,
            at: tx.now,
        });
        if let Some((levels, watched_secs)) = together {
            judge(tx, id, levels, watched_secs);
        }
    }
}

/// What follows from the idleness of a run as a whole.
fn judge(tx: &mut Tx, id: RunId, levels: IdleLevels, watched_secs: u32) {
    let before = tx.state.idle_seen.get(id).expect("set by what was seen");
    let mut spells = ended_spells(before.levels, before.watched_secs, levels);
    spells.retain(|spell| spell.secs >= MIN_SPELL_SECS);
    let policy = tx
        .state
        .jobs
        .get(id.job)
        .and_then(|job| policy_of(tx.state, job));
    let secs = levels.secs(policy.map_or(0, |policy| policy.gpus_percent));
    // Another spell than the one of the warning is shorter, or began later: while a controller was away a run may have worked.
    let is_over = |warned: &IdleWarning| {
        secs < warned.idle_secs
            || watched_secs.saturating_sub(secs)
                > warned.from_secs.saturating_add(FRESH_SECS as u32)
    };
    let ends_warning = warning(tx.state, id).is_some_and(is_over);
    tx.emit(Event::RunIdled {
        run: id,
        levels,
        watched_secs,
    });
    if !spells.is_empty() || ends_warning {
        tx.emit(Event::RunIdleOver {
            run: id,
            spells,
            ends_warning,
            at: tx.now,
        });
    }
    act(tx, id);
}

/// Nothing stands in the way of judging it: it runs, and has not been told to stop or to stand still.
fn is_watched(run: &Run) -> bool {
    run.go.is_some() && run.stop.is_none() && run.outcome.is_none() && run.suspension.is_none()
}

/// All nodes of the run together, with the newest word of one of them: how idle, and for how long watched. `None` while one has
/// told nothing of late: then nothing is known of the run, and nothing is done.
fn together(
    tx: &Tx,
    run: &Run,
    node: NodeId,
    watched_secs: u32,
    idle_secs: &[u32],
) -> Option<(IdleLevels, u32)> {
    let gpus = run.allocation.iter().map(|share| share.gpus.0.len()).sum();
    let (mut watched_secs, mut idle_secs) = (watched_secs, idle_secs.to_vec());
    let is_fresh = |at: Timestamp| (0..=FRESH_SECS * 1000).contains(&tx.now.since_millis(at));
    let is_up = |id| {
        tx.state
            .nodes
            .get(id)
            .is_some_and(|node| node.link == Link::Up)
    };
    for share in run
        .allocation
        .iter()
        .filter(|share| share.node != node && !share.gpus.is_empty())
    {
        let seen = tx.state.idle_seen.get(run.id)?.by_node.get(&share.node)?;
        if !is_fresh(seen.at) || !is_up(share.node) {
            return None;
        }
        watched_secs = watched_secs.min(seen.watched_secs);
        idle_secs.extend(&seen.idle_secs);
    }
    Some((
        IdleLevels::of(gpus, idle_secs).at_most(watched_secs),
        watched_secs,
    ))
}

/// Warns or ends a run, if it is time.
fn act(tx: &mut Tx, id: RunId) {
    let (Some(job), Some(idle)) = (tx.state.jobs.get(id.job), tx.state.idle_seen.get(id)) else {
        return;
    };
    let Some(policy) = policy_of(tx.state, job).copied() else {
        return;
    };
    let idle_secs = policy.counted_secs(idle.levels, idle.watched_secs);
    // A warning under a policy that only reported warned nobody.
    let warned =
        warning(tx.state, id).filter(|warned| warned.real || policy.action == IdleAction::Report);
    let Some(warned) = warned else {
        if idle_secs >= policy.warn_after_secs {
            let (real, percent) = (policy.action != IdleAction::Report, policy.gpus_percent);
            let act_after_secs = policy.ends_at_secs(idle_secs);
            let from_secs = idle.watched_secs.saturating_sub(idle.levels.secs(percent));
            let at = tx.now;
            tx.emit(Event::RunIdleWarned {
                run: id,
                idle_secs,
                from_secs,
                percent,
                act_after_secs,
                action: policy.action,
                real,
                at,
            });
        }
        return;
    };
    if idle_secs < policy.ends_at_secs(warned.idle_secs) {
        return;
    }
    if !policy.action.ends() {
        if !warned.noted {
            tx.emit(Event::RunIdleNoted {
                run: id,
                idle_secs,
                at: tx.now,
            });
        }
        return;
    }
    let partition = tx.state.config.partition(&job.spec.partition);
    let may_requeue = job.may_requeue(partition.is_none_or(|partition| partition.requeue));
    // As with preemption: what cannot go back to the queue is ended.
    let why = if policy.action == IdleAction::Requeue && may_requeue {
        StopCause::Requeued
    } else {
        StopCause::Cancelled
    };
    let text = words(policy.gpus_percent, idle.levels.secs(policy.gpus_percent));
    // Without end it would hold GPUs for nothing again and again. Its owner knows what to do about it, and releases it then.
    if why == StopCause::Requeued && job.idle_requeues >= policy.max_requeues {
        let before = match job.idle_requeues {
            0 => String::new(),
            1 => ", as in the run before".to_owned(),
            many => format!(", as in the {many} runs before"),
        };
        let owner = format!("user:{}", job.spec.user.name);
        let mark = HoldMark {
            owner,
            reason: format!("{BY}: {text}{before}"),
            since: tx.now,
        };
        tx.emit(Event::JobHeld { job: id.job, mark });
    }
    let stop = Stop {
        text,
        ..order(tx, id, why, BY)
    };
    tx.emit(Event::RunStopping { run: id, stop });
    advance(tx, id);
}

/// What the call of the site's program came to. An answer to another warning than the newest is nothing.
pub(super) fn told(tx: &mut Tx, id: RunId, number: u64, failure: Option<String>) {
    if warning(tx.state, id).is_none_or(|warned| warned.number != number || warned.told) {
        return;
    }
    let failure = failure.map(|mut text| {
        let end = (0..=text.len().min(MAX_WORDS_BYTES))
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text
    });
    tx.emit(Event::RunIdleTold {
        run: id,
        failure,
        at: tx.now,
    });
}

fn warning(state: &State, run: RunId) -> Option<&IdleWarning> {
    state.runs.get(run)?.idle.as_ref()?.warned.as_ref()
}

/// Spells of a run up to now, the present one included.
pub fn idle_spells(state: &State, run: &Run) -> Vec<IdleSpell> {
    let mut spells = run
        .idle
        .as_ref()
        .map_or(Vec::new(), |idle| idle.spells.clone());
    if let Some(seen) = state.idle_seen.get(run.id) {
        keep_spells(
            &mut spells,
            &ended_spells(seen.levels, seen.watched_secs, IdleLevels::default()),
        );
    }
    spells
}

/// For people: `its GPUs did nothing for 35:00`.
pub fn words(percent: u32, idle_secs: u32) -> String {
    let part = if percent == 100 {
        "its GPUs".to_owned()
    } else {
        format!("at least {percent} % of its GPUs")
    };
    format!(
        "{part} did nothing for {}",
        squeue_time(u64::from(idle_secs))
    )
}

/// For people: how idle a run is and what will become of it; `None` where there is nothing to say.
pub fn idle_words(state: &State, job: &Job) -> Option<String> {
    let run = state
        .runs
        .get(job.live_run()?)
        .filter(|run| is_watched(run))?;
    let seen = state.idle_seen.get(run.id)?;
    let warned = warning(state, run.id);
    let policy = policy_of(state, job);
    let percent = policy.map_or(100, |policy| policy.gpus_percent);
    let secs = seen.levels.secs(percent);
    if secs == 0 || (secs < MIN_SPELL_SECS && warned.is_none()) {
        return None;
    }
    let now = words(percent, secs);
    let Some(policy) = policy else {
        return Some(now);
    };
    let in_grace_secs = secs - policy.counted_secs(seen.levels, seen.watched_secs);
    let after = |secs: u32| squeue_time(u64::from(secs.saturating_add(in_grace_secs)));
    let what = if policy.action == IdleAction::Requeue {
        "goes back to the queue"
    } else {
        "is cancelled"
    };
    Some(match warned {
        Some(warned) if warned.real && policy.action.ends() => {
            format!(
                "{now}; warned; it {what} when that is {}",
                after(policy.ends_at_secs(warned.idle_secs))
            )
        }
        Some(warned) if warned.real => format!("{now}; warned"),
        Some(warned) if warned.noted => {
            format!("{now}; it would have been ended, but the policy only reports")
        }
        Some(_) => format!("{now}; it would have been warned, but the policy only reports"),
        None => now,
    })
}

pub(super) fn apply(state: &mut State, event: &Event) {
    let seq = state.seq.0;
    let has_program = state.config.idle_program;
    let (Event::RunIdleSeen { run: id, .. }
    | Event::RunIdled { run: id, .. }
    | Event::RunIdleOver { run: id, .. }
    | Event::RunIdleWarned { run: id, .. }
    | Event::RunIdleNoted { run: id, .. }
    | Event::RunIdleTold { run: id, .. }) = event
    else {
        return;
    };
    if let Event::RunIdleSeen {
        node,
        idle_secs,
        watched_secs,
        at,
        ..
    } = event
    {
        let seen = Seen {
            at: *at,
            watched_secs: *watched_secs,
            idle_secs: idle_secs.clone(),
        };
        let mut known = state.idle_seen.get(*id).cloned().unwrap_or_default();
        known.by_node.insert(*node, seen);
        state.idle_seen.insert(*id, known);
        return;
    }
    if let Event::RunIdled {
        levels,
        watched_secs,
        ..
    } = event
    {
        let seen = state.idle_seen.get_mut(*id).expect("it was seen");
        (seen.levels, seen.watched_secs) = (*levels, *watched_secs);
        return;
    }
    let run = state.runs.get_mut(*id).expect("an idle run is there");
    let idle = run.idle.get_or_insert_default();
    match event {
        Event::RunIdleOver {
            spells,
            ends_warning,
            ..
        } => {
            keep_spells(&mut idle.spells, spells);
            idle.warned.take_if(|_| *ends_warning);
        }
        Event::RunIdleWarned {
            idle_secs,
            from_secs,
            real,
            at,
            ..
        } => {
            let told = !(*real && has_program);
            let (at, idle_secs, from_secs, real) = (*at, *idle_secs, *from_secs, *real);
            idle.warned = Some(IdleWarning {
                at,
                idle_secs,
                from_secs,
                real,
                number: seq,
                told,
                noted: false,
            });
        }
        Event::RunIdleNoted { .. } => idle
            .warned
            .iter_mut()
            .for_each(|warned| warned.noted = true),
        _ => idle.warned.iter_mut().for_each(|warned| warned.told = true),
    }
    let is_untold = is_untold(run);
    index(state, *id, is_untold);
}

/// After a run was loaded, or what was told of it changed.
pub(super) fn index(state: &mut State, id: RunId, is_untold: bool) {
    match is_untold {
        true => state.idle_untold.insert(id),
        false => state.idle_untold.remove(&id),
    };
}

/// Its owner is still to be told by the site's program.
pub(super) fn is_untold(run: &Run) -> bool {
    run.outcome.is_none()
        && run
            .idle
            .as_ref()
            .and_then(|idle| idle.warned.as_ref())
            .is_some_and(|warned| !warned.told)
}

/// What must never be.
pub(super) fn check(state: &State, found: &mut Vec<String>) {
    for run in state
        .runs
        .values()
        .filter(|run| run.stop.as_ref().is_some_and(|stop| stop.by == BY))
    {
        if warning(state, run.id).is_none_or(|warned| !warned.real) {
            found.push(format!(
                "run {} was ended for being idle without a warning",
                run.id
            ));
        }
    }
    for id in state
        .idle_seen
        .keys()
        .filter(|id| state.runs.get(*id).is_none_or(|run| run.outcome.is_some()))
    {
        found.push(format!("run {id} is over and still watched for being idle"));
    }
    for id in &state.idle_untold {
        if !state.runs.get(*id).is_some_and(is_untold) {
            found.push(format!(
                "run {id} waits for the idle program and should not"
            ));
        }
    }
}
