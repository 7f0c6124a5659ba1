//! Planned starts that are worked out only when another job's start depends on them.

use crate::backfill::choices::{lift_reserved, places_of, reserve_choice, waits_elsewhere};
use crate::backfill::earliest::{not_before, remember_not_before};
use crate::backfill::planned::{DeferredStart, PlannedStart};
use crate::backfill::reserve::plan_start;
use crate::job::job_class::JobClassId;
use crate::pass::Pass;
use crate::place::gpu_reservation::place_of_counted;
use crate::place::start_search::StartRange;
use crate::snapshot::PendingJob;
use gmodel::Timestamp;

/// Whether a job that waits in a partition now is among the first.
pub(crate) fn may_reserve(pass: &Pass, partition: usize) -> bool {
    pass.backfill.wanted[partition] < pass.backfill.reserve_left[partition]
}

/// Makes all deferred planned starts, in order. Returns the start of the first task of the last.
pub(crate) fn reserve_wanted(pass: &mut Pass) -> Option<Timestamp> {
    let start = begin_last(pass);
    while !pass.backfill.wants.is_empty() {
        reserve_next(pass);
    }
    start
}

/// Makes the deferred planned starts up to the first task of the last, and returns when that starts.
pub(crate) fn begin_last(pass: &mut Pass) -> Option<Timestamp> {
    while pass.backfill.wants.len() > 1 {
        reserve_next(pass);
    }
    let before = pass.backfill.reserved.len();
    reserve_next(pass);
    pass.backfill
        .reserved
        .get(before)
        .map(|reserved| reserved.at)
}

/// Makes the next deferred planned start: of an array that of one task.
pub(crate) fn reserve_next(pass: &mut Pass) {
    let Some(want) = pass.backfill.wants.pop_front() else {
        return;
    };
    // All of a long queue may be among the first.
    pass.hand_over();
    let partition = pass.job_class(want.job_class).partition;
    let job = want
        .job_in(pass.snapshot)
        .filter(|job| !pass.is_settled(job));
    if let Some(job) =
        job.filter(|job| !job.is_choice() && pass.backfill.reserve_left[partition] > 0)
    {
        pass.backfill.reserve_left[partition] -= 1;
        let goes_on = plan_start(pass, job, want.job_class).is_some() && !pass.is_spent();
        if goes_on && want.tasks > 1 && pass.backfill.reserve_left[partition] > 0 {
            pass.backfill.wants.push_front(DeferredStart {
                tasks: want.tasks - 1,
                ..want
            });
            return;
        }
    }
    // Quick passes do not count.
    pass.backfill.wanted[partition] = pass.backfill.wanted[partition].saturating_sub(1);
    if let Some(job) = job.filter(|job| job.is_choice()) {
        reserve_choice(pass, job, want.job_class, partition, want.tasks);
    }
}

/// Makes the deferred planned starts that may take from a job wherever their nodes are: up to the last that needs one of its
/// licences. All for a job of a GPU reservation: while its GPUs are lifted, other planned starts would take them.
pub(crate) fn reserve_rivals(pass: &mut Pass, job: &PendingJob, job_class: JobClassId) {
    if place_of_counted(pass, job_class).is_some() {
        reserve_wanted(pass);
    }
    let licences = &job.spec.licences;
    if licences.is_empty() {
        return;
    }
    let is_rival = |want: &DeferredStart| {
        let other = want.job_in(pass.snapshot);
        other.is_some_and(|other| {
            other
                .spec
                .licences
                .keys()
                .any(|name| licences.contains_key(name))
        })
    };
    let Some(last) = pass.backfill.wants.iter().rposition(is_rival) else {
        return;
    };
    let behind = pass.backfill.wants.len() - 1 - last;
    while pass.backfill.wants.len() > behind {
        reserve_next(pass);
    }
}

/// Whether any deferred planned start might begin before a time. A job that ends by then cannot conflict with the
/// deferred ones.
pub(crate) fn is_any_wanted_before(pass: &mut Pass, end: Timestamp) -> bool {
    // From the last: mostly that one has the answer.
    (0..pass.backfill.wants.len()).rev().any(|place| {
        let want = pass.backfill.wants[place];
        // A start that was possible a moment ago mostly still is, and one planned start more does no harm.
        let may =
            want.may_begin.is_some_and(|known| known <= end) || may_begin_before(pass, want, end);
        pass.backfill.wants[place].may_begin = if may {
            Some(want.may_begin.map_or(end, |known| known.min(end)))
        } else {
            want.may_begin
        };
        may
    })
}

fn may_begin_before(pass: &mut Pass, want: DeferredStart, end: Timestamp) -> bool {
    let Some(job) = want.job_in(pass.snapshot) else {
        return false;
    };
    let of = pass.job_class(want.job_class);
    let alternatives = of.alternatives.len();
    if job.is_choice() || of.claim.own().is_some() || !of.named.is_empty() {
        // Its own reservation and named nodes are not looked into here.
        return true;
    }
    let secs = job.held_secs();
    (0..alternatives).any(|alternative| {
        let from = not_before(pass, job, want.job_class, alternative, secs);
        let range = StartRange {
            from,
            until: end,
            secs,
        };
        let may = from < end
            && pass.search(job, want.job_class, |search, ask| {
                search.may_begin(ask, alternative, range)
            });
        if !may && from < end {
            remember_not_before(pass, job, want.job_class, alternative, secs, end);
        }
        may
    })
}

/// Takes the planned starts of a job in other partitions back while it is looked at: they do not delay it. Returns each with
/// its place.
pub(crate) fn lift_own(pass: &mut Pass, job: &PendingJob) -> Vec<(usize, PlannedStart)> {
    if !job.is_choice() {
        return Vec::new();
    }
    if waits_elsewhere(pass, job) {
        // Deferred planned starts must see what it holds, not what is free while it is lifted.
        reserve_wanted(pass);
    }
    let places: Vec<usize> = places_of(pass, job).collect();
    // Holds of one node are given back in the opposite order.
    let mut own: Vec<_> = places
        .into_iter()
        .rev()
        .map(|place| (place, lift_reserved(pass, job, place)))
        .collect();
    own.reverse();
    own
}
