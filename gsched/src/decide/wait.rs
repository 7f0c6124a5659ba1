//! What a pass decides for an entry that cannot start: preemption, a planned start, headroom set aside, a reason.

use crate::backfill::choices::waits_elsewhere;
use crate::backfill::deferred::{begin_last, may_reserve, reserve_wanted};
use crate::backfill::planned::{DeferredStart, MOST_RESERVED_TASKS, NodeWait};
use crate::cluster::nodes::end_after;
use crate::decide::withheld::kept_for_others;
use crate::job::job_class::JobClassId;
use crate::job::most_free::what_is_free;
use crate::job::reason::first_of_partition;
use crate::ledger::refusal::{LimitKind, LimitRefusal};
use crate::mig::hold::hold_back_for;
use crate::pass::{Pass, WaitCause};
use crate::place::allowed::take_of;
use crate::place::gpu_reservation::place_of_counted;
use crate::preempt::consolidate::consolidate_for;
use crate::preempt::nomination::is_freed_elsewhere;
use crate::preempt::what_if::{expect_later, fits_when_idle, preempt_for};
use crate::snapshot::PendingJob;
use gmodel::{Reason, Timestamp};

/// A job that waits for resources gets a start if it is among the first, and a reason.
pub(crate) fn keep_waiting(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    wait: WaitCause,
    tasks: u32,
) -> Reason {
    let is_short_of_nodes = matches!(wait, WaitCause::Nodes);
    let mut preempting = None;
    let short = match wait {
        WaitCause::Borrows => {
            pass.turn.borrows = true;
            return Reason::default();
        }
        WaitCause::Limit(LimitRefusal { kind, reason }) => {
            preempting = preempt_for_headroom(pass, job, job_class, kind, tasks);
            if preempting.is_none() {
                return reason;
            }
            None
        }
        WaitCause::Short(reason) => Some(reason),
        WaitCause::Nodes => None,
    };
    let partition = pass.job_class(job_class).partition;
    let first = !std::mem::replace(&mut pass.backfill.waiting[partition], true);
    let says = !pass.memory.silent;
    let kept = (is_short_of_nodes && says)
        .then(|| kept_for_others(pass, job_class))
        .flatten();
    let free = (first && says).then(|| {
        let of = pass.job_class(job_class);
        what_is_free(of, pass.snapshot, &pass.world.cluster)
    });
    if is_short_of_nodes {
        preempting = make_room(pass, job, job_class, first);
    }
    if let Some(reason) = preempting.take_if(|_| is_freed_elsewhere(pass, job, job_class)) {
        return reason;
    }
    let is_preempting = preempting.is_some();
    let start = reserve_start(pass, job, job_class, tasks, is_preempting, first && says);
    if is_short_of_nodes && !is_preempting {
        hold_back_for(pass, job, partition, tasks, start);
    }
    let kept = kept.map(|kept| kept.reason(&pass.memory.windows));
    if let Some(reason) = preempting.or(kept).or(short) {
        return reason;
    }
    let behind = &pass.job_class(job_class).behind;
    match free {
        Some(free) => first_of_partition(behind, &free, start, pass.snapshot.now),
        None if says => behind.clone(),
        None => Reason::default(),
    }
}

/// Victims for a job that has room, where too little would stay idle with it: what they leave makes up for that.
fn preempt_for_headroom(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    kind: LimitKind,
    tasks: u32,
) -> Option<Reason> {
    if tasks == 0 || !matches!(kind, LimitKind::Headroom(_)) {
        return None;
    }
    let preempting = preempt_for(pass, job, job_class);
    if preempting.is_none() {
        set_aside_for(pass, job, job_class);
    }
    preempting
}

/// Makes room for a job that is short of nodes: by preemption, or for the first of its partition by moving runs together. The reason it
/// waits with meanwhile.
fn make_room(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    is_first: bool,
) -> Option<Reason> {
    pass.room_wanted.push(NodeWait {
        at: pass.turn.at as u32,
        job: job.id,
    });
    let mut preempting = preempt_for(pass, job, job_class);
    if preempting.is_none() && is_first {
        preempting = consolidate_for(pass, job, job_class);
    }
    if preempting.is_none() {
        expect_later(pass, job, job_class);
    }
    preempting
}

/// The planned start of a job, if it gets one and that is worked out by now; `is_told`: its reason tells the start.
fn reserve_start(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    tasks: u32,
    is_preempting: bool,
    is_told: bool,
) -> Option<Timestamp> {
    let partition = pass.job_class(job_class).partition;
    if is_preempting {
        // What is made free for it is its own, however many wait before it.
        reserve_wanted(pass);
        pass.backfill.reserve_left[partition] = pass.backfill.reserve_left[partition].max(1);
    }
    if tasks == 0 || !may_reserve(pass, partition) {
        return None;
    }
    if plan_start(pass, job, job_class, tasks, is_preempting) {
        reserve_wanted(pass)
    } else if is_told {
        begin_last(pass)
    } else {
        None
    }
}

/// Notes that a job wants a planned start; whether that is worked out now.
fn plan_start(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    tasks: u32,
    is_preempting: bool,
) -> bool {
    let partition = pass.job_class(job_class).partition;
    pass.backfill.wanted[partition] += 1;
    let (is_array, choice) = (job.particulars.positions.is_some(), job.spec.choice());
    // To defer it is no loss to other jobs as long as it only takes room: not where the job may take over from another of its own
    // entries, nor where it takes of GPUs reserved by number, which then are set apart elsewhere.
    let takes_over = (job.is_choice() && waits_elsewhere(pass, job))
        || place_of_counted(pass, job_class).is_some();
    pass.choices
        .kept_for
        .extend(job.is_choice().then_some((job.id, is_array)));
    pass.backfill.wants.push_back(DeferredStart {
        at: pass.turn.at as u32,
        job: job.id,
        is_array,
        choice,
        job_class,
        tasks: tasks.min(MOST_RESERVED_TASKS),
        may_begin: None,
    });
    pass.may_make_room() || takes_over || is_preempting
}

/// The first job of a partition that waits for headroom keeps what it needs from the jobs behind it, unless it would wait
/// even on an empty cluster.
fn set_aside_for(pass: &mut Pass, job: &PendingJob, job_class: JobClassId) {
    let partition = pass.job_class(job_class).partition;
    if pass.backfill.set_aside.contains(partition) || !fits_when_idle(pass, job, job_class) {
        return;
    }
    // As much as it would take where it has room now: a whole node, where it is exclusive.
    let (now, secs) = (pass.now, job.held_secs());
    let picked = pass.search(job, job_class, |search, ask| {
        search.pick(ask, 0, now, end_after(now, Some(secs)))
    });
    let there = picked.map(|picked| take_of(pass, job_class, 0, &picked, secs));
    if let Some(take) = there.or_else(|| {
        pass.job_class(job_class)
            .alternatives
            .first()
            .map(|alternative| alternative.take.clone())
    }) {
        pass.world.usage.set_aside(job, &take);
        pass.backfill.set_aside.insert(partition);
    }
}
