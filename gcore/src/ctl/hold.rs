//! Holding and releasing. Several holds stand side by side, each with its owner and reason.

use super::command::{Actor, Refusal, Reply, Target};
use super::event::Event;
use super::handle::Tx;
use super::targets::{Found, each, few_are_split, find, own_tasks, shown, split};
use gmodel::node::Mark;
use gmodel::{JobId, JobState};

/// Whose hold it is to be.
#[derive(Clone, Copy)]
pub(super) struct Holder<'a> {
    pub actor: &'a Actor,
    /// The job's owner's, as `scontrol uhold` has it; else the actor's.
    pub for_owner: bool,
}

impl Holder<'_> {
    /// How it is marked.
    fn mark_owner(self, job_owner: &str) -> String {
        if self.for_owner { format!("user:{job_owner}") } else { mark_owner(self.actor, job_owner) }
    }
}

pub(super) fn hold(tx: &mut Tx, holder: Holder, targets: &[Target], reason: &str) -> Result<Reply, Refusal> {
    few_are_split(tx.state, targets, "held", |found| matches!(found, Found::Untouched { .. }))?;
    Ok(each(tx, targets, |tx, target| {
        let found = find(tx.state, holder.actor, target)?;
        let reason = reason.chars().take(1000).collect();
        match found {
            Found::Array(array) => {
                let held = &tx.state.arrays.get(array).map_or(Vec::new(), |a| a.holds.clone());
                if let Some(mark) = new_mark(tx, holder, held, owner_name(tx, found), reason) {
                    tx.emit(Event::ArrayHeld { array, mark });
                }
                for id in own_tasks(tx.state, array) {
                    hold_job(tx, holder, id, "its array is held".into());
                }
                Ok(())
            }
            Found::Untouched { array, position } => {
                let id = split(tx, array, position);
                hold_job(tx, holder, id, reason);
                Ok(())
            }
            Found::Job(id) if hold_job(tx, holder, id, reason) => Ok(()),
            Found::Job(_) | Found::Over => Err(Refusal::conflict(format!(
                "job {} is not pending: only pending jobs can be held.",
                shown(target)
            ))),
        }
    }))
}

fn owner_name(tx: &Tx, found: Found) -> String {
    let spec = match found {
        Found::Job(id) => tx.state.jobs.get(id).map(|job| &job.spec),
        Found::Array(id) => tx.state.arrays.get(id).map(|array| &array.spec),
        _ => None,
    };
    spec.map_or(String::new(), |spec| spec.user.name.clone())
}

fn hold_job(tx: &mut Tx, holder: Holder, id: JobId, reason: String) -> bool {
    let Some(job) = tx.state.jobs.get(id) else { return false };
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

/// The holder's mark, unless one of theirs is there already.
fn new_mark(
    tx: &Tx,
    holder: Holder,
    held: &[Mark],
    owner: String,
    reason: String,
) -> Option<Mark> {
    let mine = holder.mark_owner(&owner);
    let known = held.iter().any(|mark| mark.owner == mine);
    (!known).then_some(Mark { owner: mine, reason, since: tx.now })
}

/// An operator's hold is an administrator's on their own jobs too, as in Slurm; `gsub --hold` and `uhold` make a user's of it.
pub(super) fn mark_owner(actor: &Actor, job_owner: &str) -> String {
    if actor.user == job_owner && !actor.operator {
        format!("user:{}", actor.user)
    } else {
        format!("admin:{}", actor.user)
    }
}

pub(super) fn release(tx: &mut Tx, actor: &Actor, targets: &[Target]) -> Result<Reply, Refusal> {
    let is_held = |array: JobId| tx.state.arrays.get(array).is_some_and(|array| !array.holds.is_empty());
    few_are_split(tx.state, targets, "released", |found| matches!(found, Found::Untouched { array, .. } if is_held(array)))?;
    Ok(each(tx, targets, |tx, target| match find(tx.state, actor, target)? {
        Found::Array(array) => {
            let tasks = own_tasks(tx.state, array);
            let is_over = |id: &JobId| tx.state.jobs.get(*id).is_none_or(|job| job.state.is_final());
            let (held, owner) = match tx.state.arrays.get(array) {
                Some(array) if array.pending.is_empty() && tasks.iter().all(is_over) => return Err(over(target)),
                Some(array) => (array.holds.clone(), array.spec.user.name.clone()),
                None => return Ok(()),
            };
            for owner in to_lift(actor, &held, &owner, target)? {
                tx.emit(Event::ArrayReleased { array, owner: Some(owner), at: tx.now });
            }
            let mut refused = Ok(());
            for id in tasks {
                let pending =
                    tx.state.jobs.get(id).is_some_and(|job| job.state == JobState::Pending);
                if pending {
                    refused = refused.and(release_job(tx, actor, id, target));
                }
            }
            refused
        }
        Found::Untouched { array, position } => {
            let held = tx.state.arrays.get(array).is_some_and(|array| !array.holds.is_empty());
            if !held {
                return Ok(());
            }
            let owner = owner_name(tx, Found::Array(array));
            let marks = tx.state.arrays.get(array).map_or(Vec::new(), |a| a.holds.clone());
            to_lift(actor, &marks, &owner, target)?;
            let id = split(tx, array, position);
            release_job(tx, actor, id, target)
        }
        Found::Job(id) => release_job(tx, actor, id, target),
        Found::Over => Err(over(target)),
    }))
}

/// What is over has no hold to lift.
fn over(target: Target) -> Refusal {
    Refusal::conflict(format!("job {} is over: there is nothing to release.", shown(target)))
}

fn release_job(tx: &mut Tx, actor: &Actor, id: JobId, target: Target) -> Result<(), Refusal> {
    let Some(job) = tx.state.jobs.get(id) else { return Ok(()) };
    if job.state.is_final() {
        return Err(over(target));
    }
    let (held, owner) = (job.holds.clone(), job.spec.user.name.clone());
    for owner in to_lift(actor, &held, &owner, target)? {
        tx.emit(Event::JobReleased { job: id, owner: Some(owner), at: tx.now });
    }
    Ok(())
}

/// Whose marks a release lifts: the actor's own, in either role; for an operator who set none, all there are.
fn to_lift(
    actor: &Actor,
    held: &[Mark],
    job_owner: &str,
    target: Target,
) -> Result<Vec<String>, Refusal> {
    let (mine, as_owner) = (mark_owner(actor, job_owner), format!("user:{}", actor.user));
    let is_own = |mark: &&Mark| mark.owner == mine || (actor.user == job_owner && mark.owner == as_owner);
    let own: Vec<String> = held.iter().filter(is_own).map(|mark| mark.owner.clone()).collect();
    if held.is_empty() || !own.is_empty() {
        return Ok(own);
    }
    if actor.operator {
        return Ok(held.iter().map(|mark| mark.owner.clone()).collect());
    }
    let by: Vec<_> = held.iter().map(who_and_why).collect();
    Err(Refusal::new(
        super::command::RefusalCode::Denied,
        format!("job {} is held by {}; only they or an operator can release it.", shown(target), by.join(", ")),
    ))
}

/// `carol (because)`.
fn who_and_why(mark: &Mark) -> String {
    let who = mark.owner.split_once(':').map_or(mark.owner.as_str(), |(_, name)| name);
    if mark.reason.is_empty() { who.to_owned() } else { format!("{who} ({})", mark.reason) }
}
