//! Making a planned start: nodes and licences are held for the whole limit of the job.

use crate::backfill::earliest::{
    earliest_start, is_any_alike, not_before, plain, remember_not_before,
};
use crate::backfill::planned::{EarliestStart, PlannedStart};
use crate::backfill::promised::{Again, Found};
use crate::cluster::nodes::end_after;
use crate::cluster::picked::PickedNodes;
use crate::engine::Memory;
use crate::job::job_class::JobClassId;
use crate::pass::Pass;
use crate::place::allowed::secs_from;
use crate::place::gpu_reservation::{
    hold_counted_again, lift_counted, place_of_counted, promise_reserved,
};
use crate::place::nominated_nodes::hold_idle_part;
use crate::place::search::in_order;
use crate::snapshot::PendingJob;
use gmodel::Timestamp;
use std::ops::Range;

/// Compares reservations with those of the pass before, and notes them for the next: not where GPUs are kept by their
/// number, which stands otherwise in each pass.
pub(crate) fn keep_promises(pass: &mut Pass) {
    pass.backfill.keeps_promises = pass.snapshot.policy.reservations.is_empty();
}

/// Gives a job the earliest start that delays none before it.
pub(crate) fn plan_start(
    pass: &mut Pass,
    job: &PendingJob,
    shape: JobClassId,
) -> Option<Timestamp> {
    let lifted = lift_counted(pass, shape);
    let earliest = promised_before(pass, job, shape, job.held_secs())
        .or_else(|| earliest_start(pass, job, shape));
    let start = earliest.and_then(|earliest| plan_start_at(pass, job, shape, earliest));
    hold_counted_again(pass, lifted);
    start
}

pub(crate) fn plan_start_at(
    pass: &mut Pass,
    job: &PendingJob,
    shape: JobClassId,
    earliest: EarliestStart,
) -> Option<Timestamp> {
    let EarliestStart {
        at,
        way,
        picked,
        early,
    } = earliest;
    let secs = secs_from(pass, job, shape, at);
    let to = end_after(at, Some(secs));
    let memory = &mut *pass.memory;
    let of = &memory.shapes.list[shape as usize];
    let may_be_as_before = pass.backfill.keeps_promises && of.ways.len() == 1;
    let before = if may_be_as_before {
        memory.promised.taken_before((job.id, shape, secs), at)
    } else {
        Vec::new()
    };
    let (mut holds, taken) = pass.world.cluster.hold(
        &picked,
        |part, make| of.need(way, part, make),
        (at, to),
        &before,
    )?;
    if pass.backfill.keeps_promises {
        memory
            .promised
            .make((job.id, shape, secs), at, together(&picked), early, taken);
    }
    for (name, count) in &job.spec.licences {
        if let Some(free) = pass.world.licences.get_mut(name) {
            free.take(at, to, *count);
        }
    }
    let counted = place_of_counted(pass, shape);
    promise_reserved(pass, counted, &holds, true);
    if counted.is_none() {
        holds.extend(
            hold_idle_part(pass, job, shape, way, &picked, at)
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

/// What a search would find for a job, where that follows from what the pass before reserved for it.
fn promised_before(
    pass: &mut Pass,
    job: &PendingJob,
    shape: JobClassId,
    secs: u32,
) -> Option<EarliestStart> {
    let from = pass.now.max(not_before(pass, job, shape, 0, secs));
    let now = pass.now;
    let cluster = &*pass.world.cluster;
    let Memory {
        promised,
        shapes,
        network,
        looked,
        ..
    } = &mut *pass.memory;
    let of = &shapes.list[shape as usize];
    if !(pass.backfill.keeps_promises
        && is_any_alike(of, network)
        && job.particulars.avoid.is_empty()
        && plain(job, of))
    {
        return None;
    }
    let in_order = of.preferred.is_none() && in_order(of, cluster);
    let ask = Again {
        who: (job.id, shape, secs),
        now,
        from,
        count: of.ways[0].nodes as usize,
        in_order,
        may: &of.candidates.up,
    };
    let need = |at: usize| of.need(0, 0, cluster.nodes[at].make);
    looked.firsts.begin();
    let first = |at: usize, until: Timestamp| {
        let need = need(at)?;
        looked.firsts.get_or(cluster.room_id(at), || {
            cluster.room(at).first(need, from, secs, until)
        })
    };
    let fits = |at: usize, time: Timestamp| {
        need(at).is_some_and(|need| cluster.fits(at, need, time, time.plus_secs(i64::from(secs))))
    };
    let (at, nodes, early) =
        match promised.again(&ask, |at| cluster.end_of_stretch(at), first, fits) {
            Found::Nothing => return None,
            Found::Time(at) => {
                remember_not_before(pass, job, shape, 0, secs, at);
                return None;
            }
            Found::All(at, nodes, early) => (at, nodes, early),
        };
    remember_not_before(pass, job, shape, 0, secs, at);
    let picked = nodes.into_iter().map(|nodes| (nodes, 0)).collect();
    Some(EarliestStart {
        at,
        way: 0,
        picked,
        early,
    })
}

/// Nodes in their order, those together that follow each other, whatever they serve.
pub(crate) fn together(picked: &PickedNodes) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::with_capacity(picked.len());
    for (nodes, _) in picked {
        match all.last_mut() {
            Some(last) if last.end == nodes.start => last.end = nodes.end,
            _ => all.push(nodes.clone()),
        }
    }
    all
}
