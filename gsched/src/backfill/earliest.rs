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

/// The earliest start of a job, beside what is reserved already: when, which way, on which nodes.
pub(crate) fn earliest_start(
    pass: &mut Pass,
    job: &PendingJob,
    shape: JobClassId,
) -> Option<EarliestStart> {
    let lifted = lift_counted(pass, shape);
    let found = earliest_beside(pass, job, shape);
    hold_counted_again(pass, lifted);
    found
}

fn earliest_beside(pass: &mut Pass, job: &PendingJob, shape: JobClassId) -> Option<EarliestStart> {
    let secs = job.held_secs();
    let horizon = pass.snapshot.now.plus_secs(3 * i64::from(UNLIMITED_SECS));
    // A time that only this job must wait for says nothing about others.
    let mut for_all = true;
    let mut from = pass.now;
    let ways = pass.shape(shape).ways.len();
    let bounds = nominated_bounds(pass, job);
    for _ in 0..16 {
        let mut best: Option<EarliestStart> = None;
        for way in 0..ways {
            let until = best.as_ref().map_or(horizon, |best| best.at);
            let from = from.max(not_before(pass, job, shape, way, secs));
            if from >= until {
                continue;
            }
            let look = |search: &mut Search, ask: &Ask, from: Timestamp| {
                let few = search.earliest(ask, way, (from, secs), until);
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
                    search.earliest(&on_any, way, (from, secs), until)
                } else {
                    None
                };
                any.or(few)
            };
            let found = match &bounds {
                Some(bounds) => earliest_within(pass, job, shape, bounds, |search, ask| {
                    look(search, ask, from)
                }),
                None if may_reach_counted(pass, job, shape) => {
                    earliest_clear(pass, job, shape, way, (from, until), look)
                }
                None => pass.search(job, shape, |search, ask| look(search, ask, from)),
            };
            if let Some((at, picked)) = found {
                if for_all && bounds.is_none() {
                    remember_not_before(pass, job, shape, way, secs, at);
                }
                best = Some(EarliestStart { at, way, picked });
            }
        }
        let best = best?;
        let at = best.at;
        let end = |at: Timestamp| end_after(at, Some(secs_from(pass, job, shape, at)));
        let mut free = reserved_first(pass, shape, best.way, at, end)?;
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

/// What jobs of the shape before it found out: within a pass room only shrinks.
pub(crate) fn not_before(
    pass: &Pass,
    job: &PendingJob,
    shape: JobClassId,
    way: usize,
    secs: u32,
) -> Timestamp {
    let of = pass.shape(shape);
    if !plain(job, of) {
        return pass.now;
    }
    if let Some(window) = job.particulars.window_secs {
        return of
            .pass
            .not_before_window(way, (secs, window))
            .unwrap_or(pass.now);
    }
    of.pass.not_before(way, secs).unwrap_or(pass.now)
}

pub(crate) fn remember_not_before(
    pass: &mut Pass,
    job: &PendingJob,
    shape: JobClassId,
    way: usize,
    secs: u32,
    at: Timestamp,
) {
    let shapes = &mut pass.memory.shapes.list;
    if !plain(job, &shapes[shape as usize]) {
        return;
    }
    if let Some(window) = job.particulars.window_secs {
        return shapes[shape as usize]
            .pass
            .note_not_before_window(way, (secs, window), at);
    }
    pass.memory
        .shapes
        .of_pass(shape)
        .note_not_before(way, secs, at);
}

/// Nothing about the job but its shape and limit decides when it can start.
fn plain(job: &PendingJob, shape: &JobClass) -> bool {
    shape.claim.own().is_none()
        && job.spec.licences.is_empty()
        && job.spec.request.switches.is_none()
}
