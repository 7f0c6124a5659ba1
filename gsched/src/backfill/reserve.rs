//! Making a planned start: nodes and licences are held for the whole limit of the job.

use crate::backfill::earliest::earliest_start;
use crate::backfill::planned::{EarliestStart, PlannedStart};
use crate::cluster::nodes::end_after;
use crate::job::job_class::JobClassId;
use crate::pass::Pass;
use crate::place::allowed::secs_from;
use crate::place::gpu_reservation::{
    hold_counted_again, lift_counted, place_of_counted, promise_reserved,
};
use crate::place::nominated_nodes::hold_idle_part;
use crate::snapshot::PendingJob;
use gmodel::Timestamp;
use gpolicy::window::Window;

/// Gives a job the earliest start that delays none before it.
pub(crate) fn plan_start(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
) -> Option<Timestamp> {
    let lifted = lift_counted(pass, job_class);
    let earliest = earliest_start(pass, job, job_class);
    let start = earliest.and_then(|earliest| plan_start_at(pass, job, job_class, earliest));
    hold_counted_again(pass, lifted);
    start
}

pub(crate) fn plan_start_at(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    earliest: EarliestStart,
) -> Option<Timestamp> {
    let EarliestStart {
        at,
        alternative,
        picked,
    } = earliest;
    let secs = secs_from(pass, job, job_class, at);
    let to = end_after(at, Some(secs));
    let of = &pass.memory.job_classes.list[job_class as usize];
    let need = |part, node_class| of.need(alternative, part, node_class);
    let mut holds = pass
        .world
        .cluster
        .hold(&picked, need, Window { from: at, to })?;
    for (name, count) in &job.spec.licences {
        if let Some(free) = pass.world.licences.get_mut(name) {
            free.take(at, to, *count);
        }
    }
    let counted = place_of_counted(pass, job_class);
    promise_reserved(pass, counted, &holds, true);
    if counted.is_none() {
        holds.extend(
            hold_idle_part(pass, job, job_class, alternative, &picked, at)
                .into_iter()
                .flatten(),
        );
    }
    pass.backfill.reserved.push(PlannedStart {
        job: job.id,
        is_array: job.particulars.positions.is_some(),
        choice: job.spec.choice(),
        at,
        to,
        holds,
        counted,
    });
    Some(at)
}
