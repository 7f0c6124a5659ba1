//! The idle policy: which one is in force for a job, its words on a run, and the calls of the site's program
//! that are due.
//!
//! `run/idle.rs` decides.

use crate::ctl::owner::IDLE_POLICY;
use crate::ctl::state::{IdleWarning, Job, Run, State};
use gmodel::RunId;
use gmodel::duration::squeue_time;
use gmodel::idle::{IdleAction, IdleLevels, IdlePolicy, IdleSpell, ended_spells, keep_spells};

/// Shortest spell that is kept if the run goes on, seconds.
pub(crate) const MIN_SPELL_SECS: u32 = 60;

/// A call of the site's program that is due now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleOrder {
    pub run: RunId,
    /// Number of the warning; the answer names it.
    pub number: u64,
    pub idle_secs: u32,
    /// The action that follows, and after how many more idle seconds.
    pub next: Option<(IdleAction, u32)>,
}

/// The calls that should be under way. A call by an earlier controller without an answer is repeated.
pub fn idle_orders(state: &State) -> Vec<IdleOrder> {
    let order = |id: &RunId| {
        let run = state.run(*id).filter(|run| run.outcome.is_none())?;
        let warned = run
            .idle
            .as_ref()?
            .warned
            .as_ref()
            .filter(|warned| !warned.told)?;
        let policy = state
            .job(id.job)
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
    state.index.idle_untold.iter().filter_map(order).collect()
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

/// It runs, and is neither suspended nor stopping: its idleness counts.
pub(crate) fn is_watched(run: &Run) -> bool {
    run.go.is_some() && run.stop.is_none() && run.outcome.is_none() && run.suspension.is_none()
}

pub(crate) fn warning(state: &State, run: RunId) -> Option<&IdleWarning> {
    state.run(run)?.idle.as_ref()?.warned.as_ref()
}

/// Idle spells of a run up to now, the present one included.
pub fn idle_spells(state: &State, run: &Run) -> Vec<IdleSpell> {
    let mut spells = run
        .idle
        .as_ref()
        .map_or(Vec::new(), |idle| idle.spells.clone());
    if let Some(seen) = state.memo.idle_seen.get(run.id) {
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

/// How idle a run is and what follows, for listings; `None` if there is nothing to say.
pub fn idle_words(state: &State, job: &Job) -> Option<String> {
    let run = state.run(job.live_run()?).filter(|run| is_watched(run))?;
    let seen = state.memo.idle_seen.get(run.id)?;
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

/// Violations of the idle policy's promises.
pub(crate) fn check(state: &State, found: &mut Vec<String>) {
    for run in state
        .runs
        .values()
        .filter(|run| run.stop.as_ref().is_some_and(|stop| stop.by == IDLE_POLICY))
    {
        if warning(state, run.id).is_none_or(|warned| !warned.real) {
            found.push(format!(
                "run {} was ended for being idle without a warning",
                run.id
            ));
        }
    }
    for id in state
        .memo
        .idle_seen
        .keys()
        .filter(|id| state.run(*id).is_none_or(|run| run.outcome.is_some()))
    {
        found.push(format!("run {id} is over and still watched for being idle"));
    }
    for id in &state.index.idle_untold {
        if !state.run(*id).is_some_and(Run::is_idle_untold) {
            found.push(format!(
                "run {id} waits for the idle program and should not"
            ));
        }
    }
}
