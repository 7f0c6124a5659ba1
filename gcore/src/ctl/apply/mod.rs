//! The only place where the controller's state changes. Infallible, no clock, no chance.
//!
//! An event that names an unknown record is a fault of `handle`, not bad input: it stops the process.

mod bill;
mod gpus;
mod idle;
pub(crate) mod index;
mod jobs;
pub(crate) mod memos;
mod nodes;
mod policy;
mod records;
mod requeue;
mod runs;
mod stops;
mod suspension;
mod tokens;
mod usage;

pub(crate) use jobs::{changed_spec, holder, spread};
pub(crate) use nodes::index_pause;
pub(crate) use policy::edit as edit_policy;
pub(crate) use usage::used_by;

use crate::ctl::apply::memos::forget_what_fits;
use crate::ctl::apply::records::{
    array_mut, job_mut, member_mut, raise_generation, raise_generations, run_mut,
};
use crate::ctl::event::Event;
use crate::ctl::reservation::window::{Reservations, asked, drawing};
use crate::ctl::state::{AdoptionWindow, EntryId, NodePull, Run, State};
use gmodel::{JobId, JobState, ReasonCode, RunId};
use std::sync::Arc;

/// Makes an event true.
pub fn apply(state: &mut State, event: &Event) {
    if event.is_stored() {
        state.seq.0 += 1;
    }
    match event {
        Event::JobSubmitted {
            id,
            spec,
            limit_secs,
            at,
            client_key,
        } => {
            jobs::submitted(state, *id, spec, *limit_secs, *at, client_key.as_deref());
        }
        Event::TaskSplit { array, position } => jobs::split(state, *array, *position),
        Event::JobHeld { job, mark } => jobs::held(job_mut(state, *job), mark),
        Event::JobReleased { job, owner, at } => jobs::released(state, *job, owner.as_deref(), *at),
        Event::ArrayHeld { array, mark } => jobs::array_held(array_mut(state, *array), mark),
        Event::ArrayReleased { array, owner, at } => {
            jobs::array_released(state, *array, owner.as_deref(), *at)
        }
        Event::TasksHeld {
            array,
            positions,
            mark,
        } => jobs::tasks_held(array_mut(state, *array), positions, mark),
        Event::TasksReleased {
            array,
            positions,
            owner,
            at,
        } => jobs::tasks_released(state, *array, positions, owner.as_deref(), *at),
        Event::JobUpdated { job, change, .. } => jobs::updated(state, *job, change),
        Event::ArrayUpdated { array, change, .. } => jobs::array_updated(state, *array, change),
        Event::JobCancelled {
            job,
            by,
            text,
            reason,
            at,
        } => {
            let end = match reason {
                ReasonCode::DeadLine => JobState::Deadline,
                _ => JobState::Cancelled,
            };
            jobs::cancelled(state, *job, end, by, text, *at);
            job_mut(state, *job).reason = (*reason).into();
        }
        Event::TasksCancelled {
            array,
            positions,
            by,
            reason,
            at,
        } => jobs::tasks_cancelled(state, *array, positions, by, *reason, *at),
        Event::WaitsChanged { entry, waits, at } => {
            jobs::waits_changed(state, *entry, waits.clone(), *at)
        }
        Event::JobRequeued { .. } | Event::TasksRequeued { .. } => requeue::apply(state, event),
        Event::ReasonsGiven { jobs, arrays } => {
            for (id, reason) in jobs {
                job_mut(state, *id).reason = reason.clone();
            }
            for (id, reason) in arrays {
                array_mut(state, *id).reason = reason.clone();
            }
        }
        Event::NominationChanged {
            entry,
            reason,
            nomination,
        } => {
            let (known_reason, known) = match entry {
                EntryId::Job(id) => {
                    let job = job_mut(state, *id);
                    (&mut job.reason, &mut job.nomination)
                }
                EntryId::Array(id) => {
                    let array = array_mut(state, *id);
                    (&mut array.reason, &mut array.nomination)
                }
            };
            (*known_reason, *known) = (reason.clone(), nomination.clone());
        }
        Event::JobsForgotten { jobs, arrays } => jobs::forgotten(state, jobs, arrays),
        Event::RunPlaced {
            run,
            allocation,
            lives,
            partition,
            limit_secs,
            class,
            priority,
            imex_channel,
            at,
        } => {
            if let Some(name) = partition {
                jobs::respecify(state, run.job, |spec| spec.settle_in(name));
            }
            runs::placed(state, *run, allocation, lives, *limit_secs, *at);
            let placed = run_mut(state, *run);
            (placed.class, placed.imex_channel) = (*class, *imex_channel);
            let drawn_into = drawing(state, run.job, allocation, *at);
            let job = job_mut(state, run.job);
            (job.past.priority, job.past.drawn_into) = (*priority, drawn_into);
        }
        Event::RunClassed { run, class } => run_mut(state, *run).class = *class,
        Event::RunMarked {
            run,
            node,
            mark,
            at,
        } => {
            let mark = gmodel::checkpoint::CheckpointMark {
                at: *at,
                ..mark.clone()
            };
            runs::marked(run_mut(state, *run), *node, &mark);
            job_mut(state, run.job).past.last_mark = Some(Box::new(mark));
        }
        Event::RunAdopted {
            run,
            spec,
            share,
            life,
            batch,
            limit_secs,
            imex_channel,
            at,
        } => {
            runs::adopted(state, *run, spec, *limit_secs, *at);
            runs::found_on(state, *run, share, life, *batch);
            let held = run_mut(state, *run);
            held.imex_channel = held.imex_channel.or(*imex_channel);
            held.adopted = true;
            state.policy_since.1 = state.policy_since.1.max(*at);
            raise_generations(state, *run);
        }
        Event::RunGo { run, at } => {
            runs::let_go(state, *run, *at);
            raise_generations(state, *run);
        }
        Event::RunStopping { run, stop } => {
            stops::stopping(state, *run, stop);
            raise_generations(state, *run);
        }
        Event::RunUnneeded {
            run,
            for_job,
            called_back,
            ..
        } => {
            stops::unneeded(state, *run, *for_job, *called_back);
            if *called_back {
                raise_generations(state, *run);
            }
        }
        Event::RunSuspended { run, suspension } => {
            suspension::suspended(state, *run, suspension);
            raise_generations(state, *run);
        }
        Event::RunResumed { run, at, .. } => {
            suspension::resumed(state, *run, *at);
            raise_generations(state, *run);
        }
        Event::RunSignalled { run, signal } => {
            run_mut(state, *run).signals.push(*signal);
            raise_generations(state, *run);
        }
        // The state keeps only what steps hold exclusively; the rest is history.
        Event::StepStarted {
            run, step, hold, ..
        } => {
            let run = run_mut(state, *run);
            run.steps = step + 1;
            run.step_holds.extend(hold.clone());
        }
        Event::StepEnded { run, step, .. } => run_mut(state, *run)
            .step_holds
            .retain(|hold| hold.step != *step),
        Event::RunReported {
            run,
            node,
            phase,
            at,
        } => runs::reported(state, *run, *node, phase, *at),
        Event::RunForfeited { run, node, .. } => {
            member_mut(state, *run, *node).forfeited = true;
            raise_generation(state, *node);
        }
        Event::RunEnded {
            run,
            outcome,
            settled,
            at,
        } => runs::ended(state, *run, outcome, *settled, *at),
        Event::RequeueDropped { run, stop } => {
            stops::stopping(state, *run, stop);
            let outcome = run_mut(state, *run)
                .outcome
                .as_mut()
                .expect("a run that is to be requeued has ended");
            (outcome.state, outcome.requeue, outcome.hold) = (JobState::Cancelled, None, None);
            raise_generations(state, *run);
        }
        Event::RunPullSeen {
            run,
            node,
            progress,
            at,
        } => runs::pull_seen(
            state,
            *run,
            *node,
            NodePull {
                progress: *progress,
                at: *at,
            },
        ),
        Event::RunIdleSeen { .. }
        | Event::RunIdled { .. }
        | Event::RunIdleOver { .. }
        | Event::RunIdleWarned { .. }
        | Event::RunIdleNoted { .. }
        | Event::RunIdleTold { .. } => idle::apply(state, event),
        Event::RunSettled { run, at } => runs::settled(state, *run, *at),
        Event::RunClosed { run } => runs::closed(state, *run),
        Event::NodeJoined { .. }
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
        | Event::NodeFenceAsked { .. }
        | Event::NodeFenceFailed { .. }
        | Event::NodeFenced { .. }
        | Event::NodeRemoved { .. } => nodes::apply(state, event),
        Event::GpuOrdered { .. }
        | Event::GpuOrderEnded { .. }
        | Event::GpuNoted { .. }
        | Event::GpuChecked { .. }
        | Event::GpuJudged { .. } => gpus::apply(state, event),
        Event::GpuChecksLooked { next } => state.memo.next_check_look = *next,
        Event::TokenMinted { token } => {
            state.tokens.joins.insert(token.hash.clone(), token.clone());
        }
        Event::TokenSpent { hash, .. } => {
            state.tokens.joins.remove(hash);
        }
        Event::TokenMade { .. }
        | Event::TokenRevoked { .. }
        | Event::TokensUsed { .. }
        | Event::TokensForgotten { .. } => tokens::apply(state, event),
        Event::BillClosed { .. } | Event::BillCorrected { .. } | Event::PricesUsed { .. } => {
            bill::apply(state, event)
        }
        Event::PolicyChanged { change, at, .. } => {
            let before = state.policy.reservations.clone();
            policy::changed(state, change);
            state.policy_since = (state.seq, state.after_all_placed(*at));
            tell_of_windows(state, &before);
        }
        Event::Configured { config, at } => {
            let before = state.policy.reservations.clone();
            state.config = config.clone();
            if *state.usage.zone() != config.time_zone {
                Arc::make_mut(&mut state.usage).set_zone(config.time_zone.clone());
            }
            state.policy_since = (state.seq, state.after_all_placed(*at));
            forget_what_fits(state);
            policy::merge(state);
            tell_of_windows(state, &before);
        }
        Event::Restored {
            incarnation,
            next_job,
            opens,
            ..
        } => {
            let forgotten = opens.is_none() && *incarnation != state.incarnation;
            state.incarnation = *incarnation;
            state.next_job = (*next_job).max(state.next_job);
            if let Some(window) = opens {
                state.adoption = Some(AdoptionWindow {
                    number: state.seq.0,
                    ..window.clone()
                });
            } else if forgotten && let Some(window) = &mut state.adoption {
                // A restore that is not on record may have given the same ids.
                window.first_job = u64::MAX;
            }
        }
        Event::ControllerStarted { at } => {
            state.started = *at;
            nodes::unheard(state, *at);
        }
        Event::TimeReached { until } => {
            let after = (until.plus_millis(1), JobId(0));
            state.index.not_yet = state.index.not_yet.split_off(&after);
            state.index.due = state.index.due.split_off(&after);
            state.memo.time_reached = state.memo.time_reached.max(*until);
            let hour_ago = until.plus_secs(-3600);
            state.automatic.drains.retain(|(at, _)| *at > hour_ago);
            state.automatic.gpus.retain(|(at, ..)| *at > hour_ago);
        }
    }
}

/// Runs in a changed reservation may end at another time: the planner and their nodes must hear of it.
fn tell_of_windows(state: &mut State, before: &Reservations) {
    if *before == state.policy.reservations {
        return;
    }
    let differs = |name: &str| before.get(name) != state.policy.reservations.get(name);
    let is_in = |run: &&Run| {
        state
            .job(run.id.job)
            .and_then(|job| asked(&job.spec))
            .is_some_and(differs)
    };
    let runs: Vec<RunId> = state
        .runs
        .values()
        .filter(|run| run.outcome.is_none())
        .filter(is_in)
        .map(|run| run.id)
        .collect();
    for run in runs {
        // The record is as before; its end, which the planner and the nodes know, is not.
        run_mut(state, run);
        raise_generations(state, run);
    }
}
