//! Idle runs: warned, then ended, as their QOS or partition says (`gmodel::idle`).
//!
//! Decides only when a node reports a sample just taken, and counts only seconds between samples. So there is
//! no deadline, and neither a silent node, nor a clock that jumps, nor a controller that was away makes a run
//! idle. Never calls the site's program: gpuctld does, for each [`IdleOrder`] in the state.

use crate::ctl::event::Event;
use crate::ctl::owner::IDLE_POLICY;
use crate::ctl::run::gang::advance;
use crate::ctl::run::idle_policy::{MIN_SPELL_SECS, is_watched, policy_of, warning, words};
use crate::ctl::run::stop_order::order;
use crate::ctl::state::{IdleWarning, Run, Stop};
use crate::ctl::tx::Tx;
use gmodel::idle::{IdleAction, IdleLevels, IdlePolicy, IdleReport, ended_spells};
use gmodel::node::{HoldMark, Link};
use gmodel::run::StopCause;
use gmodel::{NodeId, RunId, Timestamp};

/// How long a node's sample counts while other nodes of the run report theirs, seconds.
const FRESH_SECS: i64 = 120;

/// Most of a program's output that is kept, bytes.
const MAX_WORDS_BYTES: usize = 1000;

/// Takes a node's samples, and does what is due.
pub(crate) fn take(tx: &mut Tx, node: NodeId, reports: Vec<IdleReport>) {
    for IdleReport {
        run: id,
        watched_secs,
        mut idle_secs,
    } in reports
    {
        let Some(run) = tx.run(id).filter(|run| is_watched(run)) else {
            continue;
        };
        let Some(share) = run.allocation.iter().find(|share| share.node == node) else {
            continue;
        };
        if idle_secs.is_empty()
            && run.allocation.len() == 1
            && !tx.state.memo.idle_seen.contains(id)
        {
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
    let before = tx
        .state
        .memo
        .idle_seen
        .get(id)
        .expect("set by what was seen");
    let mut spells = ended_spells(before.levels, before.watched_secs, levels);
    spells.retain(|spell| spell.secs >= MIN_SPELL_SECS);
    let policy = tx.job(id.job).and_then(|job| policy_of(tx.state, job));
    let secs = levels.secs(policy.map_or(0, |policy| policy.gpus_percent));
    // A spell that is shorter than the warned one, or began later, is another: a run may have worked while a
    // controller was away.
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

/// Idleness over all nodes of the run, with the newest sample of one of them, and the time watched. `None` if
/// a node has not reported lately: then nothing is done.
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
    let is_up = |id| tx.node(id).is_some_and(|node| node.link == Link::Up);
    for share in run
        .allocation
        .iter()
        .filter(|share| share.node != node && !share.gpus.is_empty())
    {
        let seen = tx
            .state
            .memo
            .idle_seen
            .get(run.id)?
            .by_node
            .get(&share.node)?;
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

/// Warns or ends a run if it is due.
fn act(tx: &mut Tx, id: RunId) {
    let (Some(job), Some(idle)) = (tx.job(id.job), tx.state.memo.idle_seen.get(id)) else {
        return;
    };
    let Some(policy) = policy_of(tx.state, job).copied() else {
        return;
    };
    let idle_secs = policy.counted_secs(idle.levels, idle.watched_secs);
    // A warning under a reporting policy was not sent.
    let warned =
        warning(tx.state, id).filter(|warned| warned.real || policy.action == IdleAction::Report);
    let Some(warned) = warned else {
        if idle_secs >= policy.warn_after_secs {
            warn(tx, id, &policy, idle_secs);
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
    end(tx, id, &policy);
}

/// Warns a run for the spell that it is in.
fn warn(tx: &mut Tx, id: RunId, policy: &IdlePolicy, idle_secs: u32) {
    let Some(idle) = tx.state.memo.idle_seen.get(id) else {
        return;
    };
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

/// Ends a run for being idle; its job is requeued or cancelled, as the policy says.
fn end(tx: &mut Tx, id: RunId, policy: &IdlePolicy) {
    let (Some(job), Some(idle)) = (tx.job(id.job), tx.state.memo.idle_seen.get(id)) else {
        return;
    };
    let partition = tx.state.config.partition(&job.spec.partition);
    let may_requeue = job.may_requeue(partition.is_none_or(|partition| partition.requeue));
    // As with preemption: a job that cannot be requeued is cancelled.
    let why = if policy.action == IdleAction::Requeue && may_requeue {
        StopCause::Requeued
    } else {
        StopCause::Cancelled
    };
    let text = words(policy.gpus_percent, idle.levels.secs(policy.gpus_percent));
    // Held, or it would hold idle GPUs again and again. Its owner releases it.
    if why == StopCause::Requeued && job.past.idle_requeues >= policy.max_requeues {
        let before = match job.past.idle_requeues {
            0 => String::new(),
            1 => ", as in the run before".to_owned(),
            many => format!(", as in the {many} runs before"),
        };
        let owner = format!("user:{}", job.spec.user.name);
        let mark = HoldMark {
            owner,
            reason: format!("{IDLE_POLICY}: {text}{before}"),
            since: tx.now,
        };
        tx.emit(Event::JobHeld { job: id.job, mark });
    }
    let stop = Stop {
        text,
        ..order(tx, id, why, IDLE_POLICY)
    };
    tx.emit(Event::RunStopping { run: id, stop });
    advance(tx, id);
}

/// The result of a call of the site's program. An answer to an older warning is ignored.
pub(crate) fn told(tx: &mut Tx, id: RunId, number: u64, failure: Option<String>) {
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
