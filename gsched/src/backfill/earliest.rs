//! The earliest start of a job beside all planned starts.

use crate::backfill::planned::EarliestStart;
use crate::cluster::network::any_switches_from;
use crate::cluster::nodes::end_after;
use crate::cluster::picked::PickedNodes;
use crate::job::job_class::{JobClass, JobClassId, WindowFinding};
use crate::pass::Pass;
use crate::place::allowed::secs_from;
use crate::place::gpu_reservation::{
    earliest_clear, hold_counted_again, lift_counted, may_reach_counted, reserved_first,
};
use crate::place::nominated_nodes::{earliest_within, nominated_bounds};
use crate::place::search::{Ask, Search};
use crate::place::start_search::StartRange;
use crate::snapshot::PendingJob;
use fixedbitset::FixedBitSet;
use gmodel::Timestamp;
use gpolicy::pending_job::UNLIMITED_SECS;

/// Rounds of nodes, licences and GPUs of a reservation that together decide one start.
const MOST_ROUNDS: usize = 16;

/// The earliest start of a job beside all planned starts before it.
pub(crate) fn earliest_start(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
) -> Option<EarliestStart> {
    let lifted = lift_counted(pass, job_class);
    let found = earliest_from(pass, job, job_class, pass.now);
    hold_counted_again(pass, lifted);
    found
}

/// The same, not before a time.
pub(crate) fn earliest_from(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    mut from: Timestamp,
) -> Option<EarliestStart> {
    let bounds = nominated_bounds(pass, job);
    for _ in 0..MOST_ROUNDS {
        let best = earliest_by_nodes(pass, job, job_class, bounds.as_deref(), from)?;
        let at = best.at;
        let end = |at: Timestamp| end_after(at, Some(secs_from(pass, job, job_class, at)));
        let mut free = reserved_first(pass, job_class, best.alternative, at, end)?;
        for (name, count) in &job.spec.licences {
            free = free.max(pass.world.licences.get(name)?.first(*count, at, end)?);
        }
        if free == at {
            return Some(best);
        }
        from = free;
    }
    None
}

/// The earliest start of any alternative at a time or later, as far as nodes decide.
fn earliest_by_nodes(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    bounds: Option<&[FixedBitSet]>,
    earliest: Timestamp,
) -> Option<EarliestStart> {
    let secs = job.held_secs();
    let horizon = pass.snapshot.now.plus_secs(3 * i64::from(UNLIMITED_SECS));
    let mut best: Option<EarliestStart> = None;
    for alternative in 0..pass.job_class(job_class).alternatives.len() {
        let until = best.as_ref().map_or(horizon, |best| best.at);
        let from = earliest.max(not_before(pass, job, job_class, alternative, secs));
        if from >= until {
            continue;
        }
        let range = StartRange { from, until, secs };
        let look = |search: &mut Search, ask: &Ask, range: StartRange| {
            earliest_by_switches(search, ask, job, alternative, range)
        };
        let found = match bounds {
            Some(bounds) => earliest_within(pass, job, job_class, bounds, |search, ask| {
                look(search, ask, range)
            }),
            None if may_reach_counted(pass, job, job_class) => {
                earliest_clear(pass, job, job_class, alternative, range, look)
            }
            None => pass.search(job, job_class, |search, ask| look(search, ask, range)),
        };
        let Some((at, picked)) = found else { continue };
        // A later `earliest`, as bounds, is for this job only and says nothing about others of its class.
        if earliest == pass.now && bounds.is_none() {
            remember_not_before(pass, job, job_class, alternative, secs, at);
        }
        best = Some(EarliestStart {
            at,
            alternative,
            picked,
        });
    }
    best
}

/// The earliest start below as few leaf switches as the job asks for, or below any after the longest wait for these.
fn earliest_by_switches(
    search: &mut Search,
    ask: &Ask,
    job: &PendingJob,
    alternative: usize,
    range: StartRange,
) -> Option<(Timestamp, PickedNodes)> {
    let few = search.earliest(ask, alternative, range);
    let Some(over) = any_switches_from(job).filter(|_| ask.most_leaves.is_some()) else {
        return few;
    };
    let range = StartRange {
        from: range.from.max(over),
        until: few.as_ref().map_or(range.until, |(at, _)| *at),
        ..range
    };
    if range.from >= range.until {
        return few;
    }
    let on_any = Ask {
        most_leaves: None,
        ..*ask
    };
    search.earliest(&on_any, alternative, range).or(few)
}

/// Before which time the job class has no room: within a pass room only shrinks.
pub(crate) fn not_before(
    pass: &Pass,
    job: &PendingJob,
    job_class: JobClassId,
    alternative: usize,
    secs: u32,
) -> Timestamp {
    let of = pass.job_class(job_class);
    if !is_plain(job, of) {
        return pass.now;
    }
    let known = match job.particulars.window_secs {
        Some(window_secs) => of.pass.not_before_window(alternative, secs, window_secs),
        None => of.pass.not_before(alternative, secs),
    };
    known.unwrap_or(pass.now)
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
    if !is_plain(job, &job_classes[job_class as usize]) {
        return;
    }
    if let Some(window_secs) = job.particulars.window_secs {
        let findings = &mut job_classes[job_class as usize].pass;
        return findings.note_not_before_window(WindowFinding {
            alternative,
            secs,
            window_secs,
            at,
        });
    }
    pass.memory
        .job_classes
        .of_pass(job_class)
        .note_not_before(alternative, secs, at);
}

/// Whether the job class and the limit alone decide when a job can start.
fn is_plain(job: &PendingJob, job_class: &JobClass) -> bool {
    job_class.claim.own().is_none()
        && job.spec.licences.is_empty()
        && job.spec.request.switches.is_none()
}
