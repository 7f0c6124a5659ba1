//! Holding and releasing. A job may have several holds, each with its owner and reason.

use crate::ctl::command::{Actor, Refusal, Reply, Target};
use crate::ctl::event::Event;
use crate::ctl::job::targets::{
    TargetRecord, each, few_are_split, find, is_one_task, own_tasks, shown, split,
};
use crate::ctl::owner::{SYSTEM, TOKEN};
use crate::ctl::state::{Array, State, put_in};
use crate::ctl::token::cap;
use crate::ctl::tx::Tx;
use gmodel::array_spec::RangeSet;
use gmodel::node::HoldMark;
use gmodel::{JobId, JobState, RefusalKind};

/// The user that holds.
#[derive(Clone, Copy)]
pub(crate) struct Holder<'a> {
    pub actor: &'a Actor,
    /// The job's owner holds, as with `scontrol uhold`; else the actor.
    pub for_owner: bool,
}

impl Holder<'_> {
    /// The owner in the mark.
    fn mark_owner(self, job_owner: &str) -> String {
        if self.for_owner {
            format!("user:{job_owner}")
        } else {
            mark_owner(self.actor, job_owner)
        }
    }
}

pub(crate) fn hold(
    tx: &mut Tx,
    holder: Holder,
    targets: &[Target],
    reason: &str,
) -> Result<Reply, Refusal> {
    few_are_split(
        tx.state,
        targets,
        "held",
        |target, found| matches!(found, TargetRecord::Untouched { array, .. } if !goes_apart(tx.state, target, *array)),
    )?;
    Ok(each(tx, targets, |tx, target| {
        let found = find(tx.state, holder.actor, target)?;
        let reason = reason.chars().take(1000).collect();
        match found {
            TargetRecord::Array(array) => {
                hold_array(tx, holder, array, reason);
                Ok(())
            }
            TargetRecord::Untouched { array, positions } if goes_apart(tx.state, target, array) => {
                let mark = HoldMark {
                    owner: holder.mark_owner(&owner_name(tx, array)),
                    reason,
                    since: tx.now,
                };
                hold_tasks(tx, array, &positions, mark);
                Ok(())
            }
            TargetRecord::Untouched { array, positions } => {
                for position in positions.iter() {
                    let id = split(tx, array, position);
                    hold_job(tx, holder, id, reason.clone());
                }
                Ok(())
            }
            TargetRecord::Job(id) if hold_job(tx, holder, id, reason) => Ok(()),
            TargetRecord::Job(_) | TargetRecord::Over => {
                let text = format!(
                    "job {} is not pending: only pending jobs can be held.",
                    shown(target)
                );
                Err(Refusal::conflict(text).about(RefusalKind::JobRuns))
            }
        }
    }))
}

/// Holds an array: itself, its tasks with holds of their own, and its tasks with records.
fn hold_array(tx: &mut Tx, holder: Holder, array: JobId, reason: String) {
    let held = &tx.array(array).map_or(Vec::new(), |a| a.holds.clone());
    if let Some(mark) = new_mark(tx, holder, held, owner_name(tx, array), reason) {
        tx.emit(Event::ArrayHeld { array, mark });
    }
    // Tasks of it that were released again.
    let apart = tx.array(array).map_or(RangeSet::new(), Array::all_apart);
    let mark = HoldMark {
        owner: holder.mark_owner(&owner_name(tx, array)),
        reason: "its array is held".into(),
        since: tx.now,
    };
    hold_tasks(tx, array, &apart, mark);
    for id in own_tasks(tx.state, array) {
        hold_job(tx, holder, id, "its array is held".into());
    }
}

fn owner_name(tx: &Tx, array: JobId) -> String {
    tx.array(array)
        .map_or(String::new(), |array| array.spec.user.name.clone())
}

/// Whether tasks are held without records of their own.
fn goes_apart(state: &State, target: &Target, array: JobId) -> bool {
    !is_one_task(target) && state.array(array).is_some_and(Array::has_room_apart)
}

/// Holds tasks without records that have no hold of the mark's owner yet.
pub(crate) fn hold_tasks(tx: &mut Tx, id: JobId, positions: &RangeSet, mark: HoldMark) {
    let Some(array) = tx.array(id) else {
        return;
    };
    let mut new = RangeSet::new();
    for one in array.by_holds(positions) {
        if one.holds.iter().all(|held| held.owner != mark.owner) {
            put_in(&mut new, &one.positions);
        }
    }
    if !new.is_empty() {
        tx.emit(Event::TasksHeld {
            array: id,
            positions: new,
            mark,
        });
    }
}

fn hold_job(tx: &mut Tx, holder: Holder, id: JobId, reason: String) -> bool {
    let Some(job) = tx.job(id) else {
        return false;
    };
    if job.state != JobState::Pending {
        return false;
    }
    let held = job.holds.clone();
    let owner = job.spec.user.name.clone();
    if let Some(mark) = new_mark(tx, holder, &held, owner, reason) {
        tx.emit(Event::JobHeld { job: id, mark });
    }
    true
}

/// The mark, unless a hold of the same owner is there already.
fn new_mark(
    tx: &Tx,
    holder: Holder,
    held: &[HoldMark],
    owner: String,
    reason: String,
) -> Option<HoldMark> {
    let mine = holder.mark_owner(&owner);
    let known = held.iter().any(|mark| mark.owner == mine);
    (!known).then_some(HoldMark {
        owner: mine,
        reason,
        since: tx.now,
    })
}

/// An operator's hold is an administrator's on own jobs too, as in Slurm; `gsub --hold` and `uhold` make a
/// user's hold.
pub(crate) fn mark_owner(actor: &Actor, job_owner: &str) -> String {
    if actor.user == job_owner && !actor.operator {
        format!("user:{}", actor.user)
    } else {
        format!("admin:{}", actor.user)
    }
}

pub(crate) fn release(tx: &mut Tx, actor: &Actor, targets: &[Target]) -> Result<Reply, Refusal> {
    few_are_split(tx.state, targets, "released", |target, found| match found {
        TargetRecord::Untouched { array, positions } => {
            is_held(tx.state, *array, positions) && !goes_apart(tx.state, target, *array)
        }
        _ => false,
    })?;
    Ok(each(tx, targets, |tx, target| {
        match find(tx.state, actor, target)? {
            TargetRecord::Array(array) => release_array(tx, actor, array, target),
            TargetRecord::Untouched { array, positions }
                if !is_held(tx.state, array, &positions) =>
            {
                Ok(())
            }
            TargetRecord::Untouched { array, positions } if goes_apart(tx.state, target, array) => {
                release_tasks(tx, actor, array, &positions, target)
            }
            TargetRecord::Untouched { array, positions } => {
                let owner = owner_name(tx, array);
                for one in tx
                    .array(array)
                    .map_or(Vec::new(), |array| array.by_holds(&positions))
                {
                    to_lift(actor, &one.holds, &owner, target)?;
                }
                positions.iter().try_for_each(|position| {
                    let id = split(tx, array, position);
                    release_job(tx, actor, id, target)
                })
            }
            TargetRecord::Job(id) => release_job(tx, actor, id, target),
            TargetRecord::Over => Err(over(target)),
        }
    }))
}

/// Releases an array: itself, its tasks with holds of their own, and its pending tasks with records.
fn release_array(tx: &mut Tx, actor: &Actor, array: JobId, target: &Target) -> Result<(), Refusal> {
    let tasks = own_tasks(tx.state, array);
    let is_over = |id: &JobId| tx.job(*id).is_none_or(|job| job.state.is_final());
    let (held, owner) = match tx.array(array) {
        Some(array) if array.pending.is_empty() && tasks.iter().all(is_over) => {
            return Err(over(target));
        }
        Some(array) => (array.holds.clone(), array.spec.user.name.clone()),
        None => return Ok(()),
    };
    for owner in to_lift(actor, &held, &owner, target)? {
        tx.emit(Event::ArrayReleased {
            array,
            owner: Some(owner),
            at: tx.now,
        });
    }
    let apart = tx.array(array).map_or(RangeSet::new(), Array::all_apart);
    let mut refused = release_tasks(tx, actor, array, &apart, target);
    for id in tasks {
        let pending = tx.job(id).is_some_and(|job| job.state == JobState::Pending);
        if pending {
            refused = refused.and(release_job(tx, actor, id, target));
        }
    }
    refused
}

/// Whether any of some untouched tasks is held.
fn is_held(state: &State, array: JobId, positions: &RangeSet) -> bool {
    state.array(array).is_some_and(|array| {
        array
            .by_holds(positions)
            .iter()
            .any(|one| !one.holds.is_empty())
    })
}

/// Lifts the holds of tasks without records that the actor may lift; refused if another's hold remains.
fn release_tasks(
    tx: &mut Tx,
    actor: &Actor,
    id: JobId,
    positions: &RangeSet,
    target: &Target,
) -> Result<(), Refusal> {
    let Some(array) = tx.array(id) else {
        return Ok(());
    };
    let (sets, owner) = (array.by_holds(positions), array.spec.user.name.clone());
    let mut refused = Ok(());
    for one in sets {
        match to_lift(actor, &one.holds, &owner, target) {
            Ok(owners) => owners.into_iter().for_each(|owner| {
                tx.emit(Event::TasksReleased {
                    array: id,
                    positions: one.positions.clone(),
                    owner: Some(owner),
                    at: tx.now,
                });
            }),
            Err(refusal) => refused = refused.and(Err(refusal)),
        }
    }
    refused
}

/// A job that is over has no hold to lift.
fn over(target: &Target) -> Refusal {
    Refusal::conflict(format!(
        "job {} is over: there is nothing to release.",
        shown(target)
    ))
    .about(RefusalKind::JobOver)
}

fn release_job(tx: &mut Tx, actor: &Actor, id: JobId, target: &Target) -> Result<(), Refusal> {
    let Some(job) = tx.job(id) else {
        return Ok(());
    };
    if job.state.is_final() {
        return Err(over(target));
    }
    let capped = job.holds.iter().any(|mark| mark.owner == TOKEN);
    if capped {
        cap::check_release(tx.state, job, tx.now)?;
    }
    let (mut held, owner) = (job.holds.clone(), job.spec.user.name.clone());
    held.retain(|mark| mark.owner != TOKEN);
    let lifted = to_lift(actor, &held, &owner, target)?;
    let of_cap = capped.then(|| TOKEN.to_owned());
    for owner in lifted.into_iter().chain(of_cap) {
        tx.emit(Event::JobReleased {
            job: id,
            owner: Some(owner),
            at: tx.now,
        });
    }
    Ok(())
}

/// The owners of the marks that a release lifts: the actor, in either role; for an operator also the
/// controller; for an operator without a mark there, all.
fn to_lift(
    actor: &Actor,
    held: &[HoldMark],
    job_owner: &str,
    target: &Target,
) -> Result<Vec<String>, Refusal> {
    let (mine, as_owner) = (mark_owner(actor, job_owner), format!("user:{}", actor.user));
    let is_own =
        |mark: &HoldMark| mark.owner == mine || (actor.user == job_owner && mark.owner == as_owner);
    let lifted = |mark: &&HoldMark| is_own(mark) || actor.operator && mark.owner == SYSTEM;
    if held.is_empty() || held.iter().any(is_own) {
        return Ok(held
            .iter()
            .filter(lifted)
            .map(|mark| mark.owner.clone())
            .collect());
    }
    if actor.operator {
        return Ok(held.iter().map(|mark| mark.owner.clone()).collect());
    }
    let by: Vec<_> = held.iter().map(who_and_why).collect();
    Err(Refusal::denied(format!(
        "job {} is held by {}; only they or an operator can release it.",
        shown(target),
        by.join(", ")
    )))
}

/// `carol (because)`.
fn who_and_why(mark: &HoldMark) -> String {
    let who = mark
        .owner
        .split_once(':')
        .map_or(mark.owner.as_str(), |(_, name)| name);
    if mark.reason.is_empty() {
        who.to_owned()
    } else {
        format!("{who} ({})", mark.reason)
    }
}
