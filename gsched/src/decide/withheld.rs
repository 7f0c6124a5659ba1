//! Why free nodes are not given to a job class: a window, GPUs reserved by number, or planned starts hold them.

use crate::backfill::deferred::{is_any_wanted_before, reserve_next};
use crate::cluster::node_state::Hold;
use crate::cluster::nodes::end_after;
use crate::job::job_class::JobClassId;
use crate::job::reason::KeptFor;
use crate::pass::Pass;
use crate::place::free_now::{has_room_at, is_free_now, is_short_by};
use fixedbitset::FixedBitSet;

/// Why free nodes are not given to a job class: what holds them.
pub(crate) fn kept_for_others(pass: &mut Pass, job_class: JobClassId) -> Option<KeptFor> {
    if let Some(kept) = pass.job_class(job_class).pass.kept {
        return kept;
    }
    let mut kept = None;
    // A class that is full needs no second look.
    if pass.job_class(job_class).pass.full != Some(true)
        && is_free_now(pass.memory, pass.world.cluster, job_class)
    {
        kept = kept_for_window(pass, job_class)
            .or_else(|| kept_by_number(pass, job_class))
            .or_else(|| kept_for_jobs(pass, job_class, 0));
        // The first planned start in its way is enough, as long as what is free now stays free.
        let mut is_free = true;
        let end = end_after(pass.now, pass.job_class(job_class).pass.refused_secs);
        while is_free && kept.is_none() && is_any_wanted_before(pass, end) {
            let before = pass.backfill.reserved.len();
            reserve_next(pass);
            let at_once = pass.backfill.reserved[before..]
                .iter()
                .any(|reserved| reserved.at <= pass.now);
            is_free = !at_once || is_free_now(pass.memory, pass.world.cluster, job_class);
            kept = kept_for_jobs(pass, job_class, before).filter(|_| is_free);
        }
    }
    pass.of_pass(job_class).kept = Some(kept);
    kept
}

/// The window that keeps nodes on which a job class would have room.
fn kept_for_window(pass: &Pass, job_class: JobClassId) -> Option<KeptFor> {
    let (job_class, windows) = (pass.job_class(job_class), &pass.memory.windows);
    windows.list.first()?;
    let end = end_after(pass.now, job_class.pass.refused_secs);
    let least = job_class.alternatives.first()?.smallest().least_gpus();
    let mut free = pass
        .world
        .cluster
        .with_gpus(least, &job_class.candidates.up);
    let has_room = |at: usize| has_room_at(pass.world.cluster, job_class, at, pass.now);
    let (at, window) = free.find_map(|at| {
        windows
            .blocking(at, job_class.claim, pass.now, end)
            .filter(|_| has_room(at))
    })?;
    Some(KeptFor::Reservation {
        at,
        window,
        by_number: false,
    })
}

/// The reservation of so many GPUs that will hold some of a node on which a job class would have room.
fn kept_by_number(pass: &Pass, job_class: JobClassId) -> Option<KeptFor> {
    let job_class = pass.job_class(job_class);
    let end = end_after(pass.now, job_class.pass.refused_secs);
    let blocks = |(at, hold): &&(usize, Hold)| {
        let is_before =
            pass.now < hold.from && hold.from < end && job_class.candidates.up.contains(*at);
        is_before
            && has_room_at(pass.world.cluster, job_class, *at, pass.now)
            && is_short_by(pass.world.cluster, job_class, *at, hold)
    };
    let mut others = pass
        .world
        .reservations
        .iter()
        .filter(|counted| job_class.claim.own() != Some(counted.reservation));
    let (counted, (_, hold)) =
        others.find_map(|counted| Some((counted, counted.holds.iter().find(blocks)?)))?;
    let at = counted.reservation;
    let window = pass.memory.windows.of(at, hold.from).next()?;
    Some(KeptFor::Reservation {
        at,
        window,
        by_number: true,
    })
}

/// The first job, among those from a place on that have a reservation, for which such nodes are kept.
fn kept_for_jobs(pass: &Pass, job_class: JobClassId, from: usize) -> Option<KeptFor> {
    let (job_class, cluster) = (pass.job_class(job_class), &pass.world.cluster);
    let end = end_after(pass.now, job_class.pass.refused_secs);
    let least = job_class.alternatives.first()?.smallest().least_gpus();
    let mut others = pass.backfill.reserved[from..]
        .iter()
        .filter(|reserved| reserved.at < end)
        .peekable();
    others.peek()?;
    let mut free = FixedBitSet::with_capacity(cluster.nodes.len());
    cluster
        .by_free
        .iter()
        .skip(least)
        .for_each(|nodes| free.union_with(nodes));
    free.intersect_with(&job_class.candidates.up);
    let first = others.find(|reserved| reserved.is_on(&free))?;
    Some(KeptFor::Job(first.job))
}
