//! The earliest start of a job beside all that is reserved.

use crate::backfill::planned::EarliestStart;
use crate::cluster::network::any_switches_from;
use crate::cluster::nodes::end_after;
use crate::job::job_class::{JobClass, JobClassId};
use crate::pass::Pass;
use crate::place::allowed::secs_from;
use crate::place::gpu_reservation::{
    earliest_clear, hold_counted_again, lift_counted, may_reach_counted, reserved_first,
};
use crate::place::nominated_nodes::{earliest_within, nominated_bounds};
use crate::place::search::{Ask, Search};
use crate::snapshot::PendingJob;
use gmodel::Timestamp;
use gpolicy::pending_job::UNLIMITED_SECS;
use gpolicy::window::Window;

/// The earliest start of a job, beside what is reserved already: when, which way, on which nodes.
pub(crate) fn earliest_start(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
) -> Option<EarliestStart> {
    let lifted = lift_counted(pass, job_class);
    let found = earliest_beside(pass, job, job_class);
    hold_counted_again(pass, lifted);
    found
}

fn earliest_beside(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
) -> Option<EarliestStart> {
    let secs = job.held_secs();
    let horizon = pass.snapshot.now.plus_secs(3 * i64::from(UNLIMITED_SECS));
    // A time that only this job must wait for says nothing about others.
    let mut for_all = true;
    let mut from = pass.now;
    let alternatives = pass.job_class(job_class).alternatives.len();
    let bounds = nominated_bounds(pass, job);
    for _ in 0..16 {
        let mut best: Option<EarliestStart> = None;
        for alternative in 0..alternatives {
            let until = best.as_ref().map_or(horizon, |best| best.at);
            let from = from.max(not_before(pass, job, job_class, alternative, secs));
            if from >= until {
                continue;
            }
            let look = |search: &mut Search, ask: &Ask, from: Timestamp| {
                let few = search.earliest(ask, alternative, (from, secs), until);
                let Some(over) = any_switches_from(job).filter(|_| ask.most_leaves.is_some())
                else {
                    return few;
                };
                let until = few.as_ref().map_or(until, |(at, _)| *at);
                let (on_any, from) = (
                    Ask {
                        most_leaves: None,
                        ..*ask
                    },
                    from.max(over),
                );
                let any = if from < until {
                    search.earliest(&on_any, alternative, (from, secs), until)
                } else {
                    None
                };
                any.or(few)
            };
            let found = match &bounds {
                Some(bounds) => earliest_within(pass, job, job_class, bounds, |search, ask| {
                    look(search, ask, from)
                }),
                None if may_reach_counted(pass, job, job_class) => earliest_clear(
                    pass,
                    job,
                    job_class,
                    alternative,
                    Window { from, to: until },
                    look,
                ),
                None => pass.search(job, job_class, |search, ask| look(search, ask, from)),
            };
            if let Some((at, picked)) = found {
                if for_all && bounds.is_none() {
                    remember_not_before(pass, job, job_class, alternative, secs, at);
                }
                best = Some(EarliestStart {
                    at,
                    alternative,
                    picked,
                });
            }
        }
        let best = best?;
        let at = best.at;
        let end = |at: Timestamp| end_after(at, Some(secs_from(pass, job, job_class, at)));
        let mut free = reserved_first(pass, job_class, best.alternative, at, end)?;
        for (name, count) in &job.spec.licences {
            free = free.max(pass.world.licences.get(name)?.first(*count, at, end)?);
        }
        if free == at {
            return Some(best);
        }
        for_all = false;
        from = free;
    }
    None
}

/// What jobs of the job class before it found out: within a pass room only shrinks.
pub(crate) fn not_before(
    pass: &Pass,
    job: &PendingJob,
    job_class: JobClassId,
    alternative: usize,
    secs: u32,
) -> Timestamp {
    let of = pass.job_class(job_class);
    if !plain(job, of) {
        return pass.now;
    }
    if let Some(window) = job.particulars.window_secs {
        return of
            .pass
            .not_before_window(alternative, (secs, window))
            .unwrap_or(pass.now);
    }
    of.pass.not_before(alternative, secs).unwrap_or(pass.now)
}

pub(crate) fn remember_not_before(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    alternative: usize,
    secs: u32,
    at: Timestamp,
) {
    let job_classes = &mut pass.memory.job_classes.list;
    if !plain(job, &job_classes[job_class as usize]) {
        return;
    }
    if let Some(window) = job.particulars.window_secs {
        return job_classes[job_class as usize].pass.note_not_before_window(
            alternative,
            (secs, window),
            at,
        );
    }
    pass.memory
        .job_classes
        .of_pass(job_class)
        .note_not_before(alternative, secs, at);
}

/// Nothing about the job but its job class and limit decides when it can start.
fn plain(job: &PendingJob, job_class: &JobClass) -> bool {
    job_class.claim.own().is_none()
        && job.spec.licences.is_empty()
        && job.spec.request.switches.is_none()
}
