//! Starts that are foretold within limits: of who waits for a limit of somebody's, for a guarantee, for the next period of a cap, or until
//! more is idle than is kept.
//!
//! A pass keeps no room for those: who comes behind them and is within the limit starts. So here, too: who is planned to start before
//! one of them, and takes what was to be his, moves him on. Nothing of it is done in a pass that decides.

use crate::backfill::choices::{lift_reserved, reserve_choice};
use crate::backfill::earliest::{earliest_start, earliest_start_from};
use crate::backfill::planned::{DeferredStart, EarliestStart, in_a_row, tasks_of};
use crate::backfill::reserve::{plan_start, plan_start_at};
use crate::cluster::nodes::end_after;
use crate::cluster::picked::{PickedNodes, each};
use crate::cluster::timeline::UNLIMITED_SECS;
use crate::forecast::foretold::{LimitForecast, PlannedJob, StartUsage};
use crate::job::job_class::JobClassId;
use crate::ledger::{Take, Who};
use crate::limits::Holding;
use crate::pass::Pass;
use crate::place::allowed::{is_node_idle_at, limits_against, secs_from, take_at};
use crate::place::find::{nodes_not_whole, pick_beside_kept};
use crate::place::gpu_reservation::place_of_counted;
use crate::place::nominated_nodes::nominated_bounds;
use crate::place::search::Ask;
use crate::snapshot::PendingJob;
use fixedbitset::FixedBitSet;
use gmodel::run::NodeShare;
use gmodel::{JobId, Reason, ReasonCode, RunClass, Timestamp};
use std::collections::BTreeSet;
use std::ops::Bound::Excluded;

/// Times that are tried for one start until limits and nodes have room together.
const MOST_TIMES: usize = 16;

/// The same where something is kept idle on some nodes.
const MOST_TIMES_BESIDE_KEPT: usize = 128;

/// Starts and ends between which it is seen whether a job waits for idle GPUs alone.
const MOST_EDGES: usize = 64;

/// Those that are moved on together.
const MOST_BEHIND: usize = 32;

/// Those that are moved on in one plan. Then nobody is planned any more where he would move others on.
const MOST_MOVED: usize = 512;

/// From now on limits have a say in the starts that are foretold.
pub(crate) fn foretell(pass: &mut Pass) {
    pass.forecast.is_on = true;
    if !pass.limits.unlimited || !pass.headroom.kept_nodes.is_empty() {
        pass.forecast.limits = Some(Box::new(LimitForecast {
            ahead: pass.world.usage.ahead(pass.snapshot),
            ..LimitForecast::default()
        }));
    }
}

/// A limit says no to a job, or to so many tasks of an array: they are planned for when it has room.
pub(crate) fn put_off(
    pass: &mut Pass,
    job: &PendingJob,
    shape: JobClassId,
    reason: &Reason,
    tasks: u32,
) {
    if matches!(
        reason.code,
        ReasonCode::None | ReasonCode::Reservation | ReasonCode::Licenses
    ) {
        return;
    }
    let Some(foretold) = &mut pass.forecast.limits else {
        return;
    };
    foretold.put_off.insert(job.id);
    let partition = pass.shape(shape).partition;
    if job.is_choice() {
        return reserve_choice(pass, job, shape, partition, tasks);
    }
    for _ in 0..tasks {
        if pass.is_spent() || plan_start(pass, job, shape).is_none() {
            return;
        }
    }
}

/// Who waits for something else may wait for a limit besides.
pub(crate) fn note_limits(pass: &mut Pass, job: &PendingJob, shape: JobClassId) {
    let is_limited = !limits_against(pass, job, shape).is_empty();
    if let Some(foretold) = pass.forecast.limits.as_mut().filter(|_| is_limited) {
        foretold.put_off.insert(job.id);
    }
}

/// The earliest start of a job that limits allow, beside what is reserved already.
pub(crate) fn earliest_allowed(
    pass: &mut Pass,
    job: &PendingJob,
    shape: JobClassId,
) -> Option<EarliestStart> {
    if pass.forecast.limits.is_none() {
        return earliest_start(pass, job, shape);
    }
    let who = pass.world.usage.whose(&job.spec);
    let takes: Vec<Take> = pass
        .shape(shape)
        .ways
        .iter()
        .map(|way| way.take.clone())
        .collect();
    let keeps_there =
        !pass.headroom.kept_nodes.is_empty() || !pass.headroom.kept_idle_on.is_empty();
    // From when on limits allow it, and only too little may be idle.
    let allowed = takes
        .iter()
        .filter_map(|take| limit_opens(pass, job, who, take, pass.now, false))
        .min();
    let mut from = pass.now;
    for round in 0..if keeps_there {
        MOST_TIMES_BESIDE_KEPT
    } else {
        MOST_TIMES
    } {
        from = takes
            .iter()
            .filter_map(|take| limit_opens(pass, job, who, take, from, true))
            .min()?;
        if round == 0 {
            note_waits(pass, job, (who, &takes), allowed, from);
        }
        let found = earliest_start_from(pass, job, shape, from)?;
        let take = take_at(
            pass,
            shape,
            found.way,
            &found.picked,
            secs_from(pass, job, shape, found.at),
            found.at,
        );
        let open = limit_opens(pass, job, who, &take, found.at, true)?;
        if open > found.at {
            from = open;
            continue;
        }
        match beside_kept(pass, job, shape, found) {
            Ok(found) => return Some(found),
            Err(later) => {
                from = later?;
                note_waits(pass, job, (who, &takes), allowed, from);
            }
        }
    }
    None
}

/// A job waits from one time on until another: as long as limits allow it, only for more to be idle.
fn note_waits(
    pass: &mut Pass,
    job: &PendingJob,
    (who, takes): (Who, &[Take]),
    from: Option<Timestamp>,
    until: Timestamp,
) {
    let Some(foretold) = &pass.forecast.limits else {
        return;
    };
    let Some(from) = from.filter(|from| *from < until) else {
        return pass
            .forecast
            .limits
            .iter_mut()
            .for_each(|foretold| foretold.waits.clear());
    };
    let mut edges = pass
        .world
        .usage
        .idle_changes(&foretold.ahead, from, until, MOST_EDGES);
    edges.insert(0, from);
    edges.push(until);
    let mut waits = Vec::new();
    for edge in edges.windows(2) {
        if takes
            .iter()
            .any(|take| limit_opens(pass, job, who, take, edge[0], false) == Some(edge[0]))
        {
            waits.push((edge[0], edge[1]));
        }
    }
    pass.forecast
        .limits
        .iter_mut()
        .for_each(|foretold| foretold.waits = std::mem::take(&mut waits));
}

/// While one runs a limit may be in the way of others that waited only for more to be idle: then they set nothing aside.
fn wait_less(pass: &mut Pass, by: usize) {
    let Some(foretold) = &pass.forecast.limits else {
        return;
    };
    let span = pass.world.usage.span_of(&foretold.ahead, by);
    let others: Vec<usize> = pass
        .world
        .usage
        .set_aside_within(&foretold.ahead, span)
        .filter(|number| *number != by)
        .take(MOST_BEHIND)
        .collect();
    for number in others {
        let Some(foretold) = &pass.forecast.limits else {
            return;
        };
        let waiting = foretold
            .planned
            .get(&number)
            .and_then(|planned| Some((planned.want.job_in(pass.snapshot)?, planned.want.shape)));
        let Some((job, shape)) = waiting else {
            continue;
        };
        let is_moving = foretold.is_moving || foretold.ahead.is_fixed;
        let mut waits = pass.world.usage.set_aside_by(&foretold.ahead, number, span);
        let all = waits.len();
        let takes: Vec<Take> = pass
            .shape(shape)
            .ways
            .iter()
            .map(|way| way.take.clone())
            .collect();
        let who = pass.world.usage.whose(&job.spec);
        waits.retain(|(from, _)| {
            takes
                .iter()
                .any(|take| limit_opens(pass, job, who, take, *from, false) == Some(*from))
        });
        if waits.len() < all {
            pass.forecast.limits.iter_mut().for_each(|foretold| {
                pass.world
                    .usage
                    .set_aside_anew(&mut foretold.ahead, number, &waits)
            });
            if !is_moving {
                // Those behind it may start then.
                move_anew(pass, number);
            }
        }
    }
}

/// The first time from one on at which limits allow a job to take so much, and, where that is asked, enough is idle.
fn limit_opens(
    pass: &mut Pass,
    job: &PendingJob,
    who: Who,
    take: &Take,
    from: Timestamp,
    minds_idle: bool,
) -> Option<Timestamp> {
    let ahead = &mut pass.forecast.limits.as_mut()?.ahead;
    let mut open = Some(from);
    for _ in 0..MOST_TIMES {
        let Some(at) = open else { break };
        open = pass.world.usage.opens(ahead, job, who, take, at);
        let Some(allowed) = open.filter(|_| minds_idle) else {
            break;
        };
        open = pass.world.usage.idle_opens(ahead, job, who, take, allowed);
        if open == Some(at) {
            break;
        }
    }
    pass.work.probes_left = pass.work.probes_left.saturating_sub(ahead.take_looked());
    open
}

/// A start beside what partitions keep idle on their nodes: this one, or at the same time on other nodes. Else from when on there may
/// be one.
fn beside_kept(
    pass: &mut Pass,
    job: &PendingJob,
    shape: JobClassId,
    found: EarliestStart,
) -> Result<EarliestStart, Option<Timestamp>> {
    let keeps_there =
        !pass.headroom.kept_nodes.is_empty() || !pass.headroom.kept_idle_on.is_empty();
    if !keeps_there
        || is_spared(pass, job, shape, &found)
        || leaves_kept(pass, job, shape, (found.way, found.at), &found.picked)
    {
        return Ok(found);
    }
    let (way, at) = (found.way, found.at);
    let secs = secs_from(pass, job, shape, at);
    // On nodes that are in use, or of no partition that keeps anything there.
    let mut beside = nodes_not_whole(pass, shape, at);
    let mut outside = beside.clone();
    pass.headroom
        .kept_idle_on
        .iter()
        .for_each(|(_, kept)| outside.difference_with(kept));
    let open = nominated_bounds(pass, job).map(|bounds| {
        let mut open = FixedBitSet::with_capacity(beside.len());
        bounds.iter().for_each(|nodes| open.union_with(nodes));
        open
    });
    open.iter().for_each(|open| {
        [&mut beside, &mut outside]
            .into_iter()
            .for_each(|nodes| nodes.intersect_with(open))
    });
    let end = end_after(at, Some(secs));
    for only in [&beside, &outside] {
        let picked = pass.search(job, shape, |search, ask| {
            search.pick(
                &Ask {
                    only: Some(only),
                    ..*ask
                },
                way,
                at,
                end,
            )
        });
        if let Some(picked) =
            picked.filter(|picked| leaves_kept(pass, job, shape, (way, at), picked))
        {
            return Ok(EarliestStart {
                picked,
                early: None,
                ..found
            });
        }
    }
    let is_kept =
        |pass: &Pass, picked: &PickedNodes| !leaves_kept(pass, job, shape, (way, at), picked);
    if let Some(picked) = pick_beside_kept(
        pass,
        job,
        shape,
        (way, at, end),
        (&found.picked, open.as_ref()),
        &is_kept,
    ) {
        return Ok(EarliestStart {
            picked,
            early: None,
            ..found
        });
    }
    let soon = at.plus_millis(1);
    let horizon = pass.snapshot.now.plus_secs(3 * i64::from(UNLIMITED_SECS));
    let there = pass.search(job, shape, |search, ask| {
        search.earliest(
            &Ask {
                only: Some(&outside),
                ..*ask
            },
            way,
            (soon, job.held_secs()),
            horizon,
        )
    });
    Err(there
        .map(|(at, _)| at)
        .into_iter()
        .chain(more_is_idle(pass, at))
        .min())
}

/// When a node that is kept becomes idle after a time, or anything changes where GPUs are kept.
fn more_is_idle(pass: &Pass, after: Timestamp) -> Option<Timestamp> {
    let cluster = &pass.world.cluster;
    let becomes_idle = |at: usize| {
        let make = &cluster.makes.list[cluster.nodes[at].make as usize];
        let steps = cluster.room(at).profile.steps();
        let is_idle = |step: &crate::cluster::timeline::Step| {
            step.free.cpus == make.all.cpus && step.free.gpus == make.all.gpus
        };
        steps
            .windows(2)
            .find(|pair| pair[1].at > after && is_idle(&pair[1]) && !is_idle(&pair[0]))
            .map(|pair| pair[1].at)
    };
    let whole = pass
        .headroom
        .kept_nodes
        .iter()
        .flat_map(|kept| kept.nodes.ones())
        .filter_map(becomes_idle);
    let any = pass
        .headroom
        .kept_idle_on
        .iter()
        .flat_map(|(_, nodes)| nodes.ones())
        .filter_map(|at| cluster.room(at).next_change(after));
    whole.chain(any).min()
}

/// What partitions keep is there for it.
fn is_spared(pass: &mut Pass, job: &PendingJob, shape: JobClassId, found: &EarliestStart) -> bool {
    if pass.world.usage.is_urgent(&job.spec) {
        return true;
    }
    let who = pass.world.usage.whose(&job.spec);
    let take = take_at(
        pass,
        shape,
        found.way,
        &found.picked,
        secs_from(pass, job, shape, found.at),
        found.at,
    );
    let held = pass.world.usage.holding_at(job, &take, found.at);
    let ahead = pass
        .forecast
        .limits
        .as_mut()
        .map(|foretold| &mut foretold.ahead);
    ahead.is_some_and(|ahead| {
        pass.world
            .usage
            .is_guaranteed_at(ahead, &job.spec, who, &held, found.at)
    })
}

/// Whether what partitions keep on their nodes stays idle beside a start on some.
fn leaves_kept(
    pass: &Pass,
    job: &PendingJob,
    shape: JobClassId,
    (way, at): (usize, Timestamp),
    picked: &PickedNodes,
) -> bool {
    let Some(foretold) = &pass.forecast.limits else {
        return true;
    };
    let Some(there) = taken_there(
        pass,
        shape,
        way,
        picked,
        (at, secs_from(pass, job, shape, at)),
    ) else {
        return true;
    };
    let leaves = |((keeper, _), taken): (&(usize, FixedBitSet), &Take)| {
        taken.gpus.is_empty()
            || pass
                .world
                .usage
                .leaves_idle(&foretold.ahead, *keeper, job, taken, at)
    };
    pass.headroom
        .kept_idle_on
        .iter()
        .zip(&there.on_kept)
        .all(leaves)
        && pass.headroom.kept_nodes.iter().all(|kept| {
            let taken = each(picked)
                .filter(|(node, _)| kept.nodes.contains(*node) && is_node_idle_at(pass, *node, at))
                .count();
            taken == 0 || idle_nodes(pass, &kept.nodes, at) >= kept.most + taken
        })
}

fn idle_nodes(pass: &Pass, nodes: &FixedBitSet, at: Timestamp) -> usize {
    nodes
        .ones()
        .filter(|node| is_node_idle_at(pass, *node, at))
        .count()
}

/// What a start takes of some nodes, as they are before it; where starts are foretold within limits.
pub(crate) fn taken_there(
    pass: &Pass,
    shape: JobClassId,
    way: usize,
    picked: &PickedNodes,
    (at, secs): (Timestamp, u32),
) -> Option<StartUsage> {
    pass.forecast.limits.as_ref()?;
    let take_on = |nodes: &FixedBitSet| {
        let there: PickedNodes = each(picked)
            .filter(|(node, _)| nodes.contains(*node))
            .map(|(node, part)| (node..node + 1, part))
            .collect();
        take_at(pass, shape, way, &there, secs, at)
    };
    let breaks = |nodes: &FixedBitSet| {
        each(picked).any(|(node, _)| nodes.contains(node) && is_node_idle_at(pass, node, at))
    };
    Some(StartUsage {
        on_kept: pass
            .headroom
            .kept_idle_on
            .iter()
            .map(|(_, nodes)| take_on(nodes))
            .collect(),
        all: take_at(pass, shape, way, picked, secs, at),
        breaks: pass
            .headroom
            .kept_nodes
            .iter()
            .any(|kept| breaks(&kept.nodes)),
    })
}

/// Counts a start, or a task's; `there`: where starts are foretold.
pub(crate) fn count_start(
    pass: &mut Pass,
    job: &PendingJob,
    id: JobId,
    (take, class): (&Take, Option<RunClass>),
    allocation: &[NodeShare],
    there: Option<StartUsage>,
    limit_secs: Option<u32>,
) {
    let held = match pass.limits.unlimited {
        true => Holding::new(0, 0, pass.now, None),
        false => pass
            .world
            .usage
            .take(job, take, class, Some((allocation, pass.snapshot))),
    };
    if let Some(there) = there {
        foretell_start(pass, job, &held, &there, class, limit_secs);
    }
    if !pass.limits.unlimited {
        pass.world.usage.expect(id, held);
    }
}

/// A job was started now, with this limit.
fn foretell_start(
    pass: &mut Pass,
    job: &PendingJob,
    held: &Holding,
    there: &StartUsage,
    class: Option<RunClass>,
    limit_secs: Option<u32>,
) {
    if pass.forecast.limits.is_none() {
        return;
    }
    let who = pass.world.usage.whose(&job.spec);
    let held = held
        .clone()
        .until(limit_secs.map(|secs| held.since.plus_secs(i64::from(secs.max(1)))));
    let Some(foretold) = &mut pass.forecast.limits else {
        return;
    };
    let number = pass.world.usage.book_start(
        &mut foretold.ahead,
        job,
        who,
        held,
        class,
        &there.on_kept,
        Vec::new(),
    );
    foretold.note_breaks(pass.now, number, there.breaks);
    foretold.fresh.push_back(number);
    wait_less(pass, number);
    move_on(pass);
}

/// A job was given the reservation at a place, in which it takes so much.
pub(crate) fn foretell_later(
    pass: &mut Pass,
    job: &PendingJob,
    shape: JobClassId,
    place: usize,
    there: &StartUsage,
) {
    let at = pass.backfill.reserved[place].at;
    let (is_array, choice) = (job.positions.is_some(), job.spec.choice());
    let want = DeferredStart {
        at: pass.turn.at as u32,
        job: job.id,
        is_array,
        choice,
        shape,
        tasks: 1,
        may_begin: None,
    };
    let who = pass.world.usage.whose(&job.spec);
    let held = pass.world.usage.holding_at(job, &there.all, at);
    let Some(foretold) = &mut pass.forecast.limits else {
        return;
    };
    let waits = std::mem::take(&mut foretold.waits);
    let number = pass.world.usage.book_start(
        &mut foretold.ahead,
        job,
        who,
        held,
        None,
        &there.on_kept,
        waits,
    );
    foretold.planned.insert(number, PlannedJob { want, place });
    foretold.numbers.insert(place, number);
    foretold.note_breaks(at, number, there.breaks);
    foretold.fresh.push_back(number);
    wait_less(pass, number);
    move_on(pass);
}

/// A reservation is taken back.
pub(crate) fn foretell_no_more(pass: &mut Pass, place: usize) {
    let Some(foretold) = &mut pass.forecast.limits else {
        return;
    };
    let Some(number) = foretold.numbers.remove(&place) else {
        return;
    };
    pass.world.usage.unbook(&mut foretold.ahead, number);
    foretold
        .breaking
        .remove(&(pass.backfill.reserved[place].at, number));
    let planned = foretold.planned.remove(&number);
    foretold
        .lifted
        .extend(planned.map(|planned| (place, (number, planned))));
}

/// It holds again.
pub(crate) fn foretell_again(pass: &mut Pass, place: usize) {
    let Some(foretold) = &mut pass.forecast.limits else {
        return;
    };
    let Some((number, planned)) = foretold.lifted.remove(&place) else {
        return;
    };
    pass.world.usage.book_again(&mut foretold.ahead, number);
    if foretold.breaks.contains(&number) {
        foretold
            .breaking
            .insert((pass.backfill.reserved[place].at, number));
    }
    foretold.planned.insert(number, planned);
    foretold.numbers.insert(place, number);
}

/// Those who cannot start as planned, now that somebody does before, are planned anew: the last of them first.
fn move_on(pass: &mut Pass) {
    if pass
        .forecast
        .limits
        .as_ref()
        .is_none_or(|foretold| foretold.is_moving)
    {
        return;
    }
    pass.forecast
        .limits
        .iter_mut()
        .for_each(|foretold| foretold.is_moving = true);
    while let Some(by) = pass
        .forecast
        .limits
        .as_mut()
        .and_then(|foretold| foretold.fresh.pop_front())
    {
        for number in overtaken(pass, by).into_iter().rev() {
            if overtaken(pass, by).contains(&number) {
                plan_anew(pass, number);
            }
        }
    }
    pass.forecast
        .limits
        .iter_mut()
        .for_each(|foretold| foretold.is_moving = false);
}

fn move_anew(pass: &mut Pass, number: usize) {
    pass.forecast
        .limits
        .iter_mut()
        .for_each(|foretold| foretold.is_moving = true);
    plan_anew(pass, number);
    pass.forecast
        .limits
        .iter_mut()
        .for_each(|foretold| foretold.is_moving = false);
}

pub(crate) fn overtaken(pass: &mut Pass, by: usize) -> BTreeSet<usize> {
    let Some(foretold) = pass
        .forecast
        .limits
        .as_mut()
        .filter(|foretold| !foretold.ahead.is_fixed)
    else {
        return BTreeSet::new();
    };
    let mut overtaken = pass.world.usage.overtaken(&mut foretold.ahead, by);
    pass.work.probes_left = pass
        .work
        .probes_left
        .saturating_sub(foretold.ahead.take_looked());
    overtaken_on_nodes(pass, by, &mut overtaken);
    overtaken
}

/// Those who were to take whole nodes that were idle, and leave too few of them now.
fn overtaken_on_nodes(pass: &mut Pass, by: usize, overtaken: &mut BTreeSet<usize>) {
    let Some(foretold) = pass
        .forecast
        .limits
        .as_ref()
        .filter(|foretold| !foretold.breaking.is_empty())
    else {
        return;
    };
    let (from, until) = pass.world.usage.span_of(&foretold.ahead, by);
    if until <= from {
        return;
    }
    let later: Vec<(Timestamp, usize)> = foretold
        .breaking
        .range((Excluded((from, usize::MAX)), Excluded((until, 0))))
        .take(MOST_BEHIND)
        .copied()
        .collect();
    for (at, number) in later {
        let nodes: usize = pass
            .headroom
            .kept_nodes
            .iter()
            .map(|kept| kept.nodes.count_ones(..))
            .sum();
        pass.work.probes_left = pass.work.probes_left.saturating_sub(nodes as u64);
        if pass
            .headroom
            .kept_nodes
            .iter()
            .any(|kept| idle_nodes(pass, &kept.nodes, at) < kept.most)
        {
            overtaken.insert(number);
        }
    }
}

/// With those that wait for the same and start no sooner: who comes first of them may be another now.
fn plan_anew(pass: &mut Pass, number: usize) {
    let Some(foretold) = &pass.forecast.limits else {
        return;
    };
    if !foretold.planned.contains_key(&number) {
        return;
    }
    let rivals = pass
        .world
        .usage
        .rivals(&foretold.ahead, number, MOST_BEHIND)
        .into_iter();
    let planned = rivals
        .chain([(Timestamp::default(), number)])
        .filter_map(|(_, number)| foretold.planned.get(&number).copied());
    let mut anew: Vec<PlannedJob> = planned.collect();
    anew.retain(|one| place_of_counted(pass, one.want.shape).is_none());
    anew.sort_by_key(|one| (one.want.at, one.place));
    anew.dedup_by_key(|one| one.place);
    let jobs: Vec<(PlannedJob, &PendingJob)> = anew
        .into_iter()
        .filter_map(|one| {
            Some((
                one,
                one.want
                    .job_in(pass.snapshot)
                    .filter(|job| !job.is_choice())?,
            ))
        })
        .collect();
    let mut rows: Vec<PendingJob> = Vec::with_capacity(jobs.len());
    for (planned, job) in jobs.iter().rev() {
        let was = lift_reserved(pass, job, planned.place);
        rows.push(in_a_row(job, tasks_of(job, &was)));
    }
    if let Some(foretold) = &mut pass.forecast.limits {
        foretold.moved += jobs.len();
        foretold.ahead.is_fixed = foretold.moved >= MOST_MOVED;
    }
    for ((planned, _), job) in jobs.iter().zip(rows.iter().rev()) {
        if pass.is_spent() {
            return;
        }
        let Some(found) = earliest_allowed(pass, job, planned.want.shape) else {
            continue;
        };
        let at_hand = std::mem::replace(&mut pass.turn.at, planned.want.at as usize);
        plan_start_at(pass, job, planned.want.shape, found);
        pass.turn.at = at_hand;
    }
}

/// Whether any of some jobs waits for a limit: who comes behind it may have a say in when it starts.
pub(crate) fn is_put_off(pass: &Pass, jobs: &BTreeSet<JobId>) -> bool {
    pass.forecast
        .limits
        .as_ref()
        .is_some_and(|foretold| !foretold.put_off.is_disjoint(jobs))
}
