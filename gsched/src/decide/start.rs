//! Starting a job or a task now, beside all planned starts before it.

use crate::backfill::choices::{hold_but_one, hold_own};
use crate::backfill::deferred::{is_any_wanted_before, lift_own, reserve_next, reserve_wanted};
use crate::backfill::planned::PlannedStart;
use crate::cluster::node_states::NodeStateId;
use crate::cluster::nodes::end_after;
use crate::cluster::picked::{PickedNodes, count, each};
use crate::job::job_class::JobClassId;
use crate::job::reason::array_limit;
use crate::ledger::refusal::{LimitKind, LimitRefusal};
use crate::pass::{FoundNodes, NodesOrLimit, Pass, WaitCause};
use crate::place::allowed::{
    NodeOffer, allowed_alternatives, check_limits_on, licences_now, secs_now, take_of,
};
use crate::place::find::find_nodes;
use crate::place::free_now::is_full;
use crate::place::gpu_reservation::{is_counted, reserved_alternatives, take_reserved};
use crate::place::nominated_nodes::is_bound;
use crate::place::rails;
use crate::plan::Start;
use crate::preempt::nomination::takes_freed;
use crate::preempt::what_if::keep_victims_of;
use crate::snapshot::PendingJob;
use fixedbitset::FixedBitSet;
use gmodel::array_spec::RangeSet;
use gmodel::policy::Placement;
use gmodel::run::{Allocation, NodeShare};
use gmodel::{JobId, RunClass};
use gpolicy::window::Window;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Starts a job or task now, if it can.
pub(crate) fn start_now(
    pass: &mut Pass,
    job: &PendingJob,
    id: JobId,
    job_class: JobClassId,
) -> Result<(), WaitCause> {
    let secs = secs_now(pass, job, job_class);
    let alternatives = allowed_alternatives(pass, job, job_class, secs)?;
    let alternatives = reserved_alternatives_of(
        pass,
        job,
        job_class,
        alternatives,
        job.spec.time_min_secs.unwrap_or(secs),
    )?;
    start_by(pass, job, id, job_class, &alternatives)
}

/// By one of some ways.
pub(crate) fn start_by(
    pass: &mut Pass,
    job: &PendingJob,
    id: JobId,
    job_class: JobClassId,
    alternatives: &[usize],
) -> Result<(), WaitCause> {
    if !job.is_choice() {
        return start_beside(pass, job, id, job_class, alternatives);
    }
    if is_full(pass.memory, pass.world.cluster, job_class) {
        licences_now(pass, job, secs_now(pass, job, job_class))?;
        pass.of_pass(job_class).refused_secs = Some(0);
        return Err(WaitCause::Nodes);
    }
    let own = lift_own(pass, job);
    // What those of its job class were refused they were refused beside what it has reserved.
    let known = (!own.is_empty()).then(|| std::mem::take(pass.of_pass(job_class)));
    let told = start_beside(pass, job, id, job_class, alternatives);
    known
        .into_iter()
        .for_each(|known| *pass.of_pass(job_class) = known);
    match &told {
        Ok(()) => hold_but_one(pass, job, own),
        Err(_) => hold_own(pass, job, own),
    }
    told
}

/// Beside all that is reserved.
fn start_beside(
    pass: &mut Pass,
    job: &PendingJob,
    id: JobId,
    job_class: JobClassId,
    alternatives: &[usize],
) -> Result<(), WaitCause> {
    let secs = secs_now(pass, job, job_class);
    licences_now(pass, job, secs)?;
    if pass
        .job_class(job_class)
        .pass
        .refused_secs
        .is_none_or(|refused| secs < refused)
    {
        if is_full(pass.memory, pass.world.cluster, job_class) {
            pass.of_pass(job_class).refused_secs = Some(0);
            return Err(WaitCause::Nodes);
        }
        if start_alternative(pass, job, id, job_class, alternatives, secs)? {
            return Ok(());
        }
        if alternatives.len() == pass.job_class(job_class).alternatives.len()
            && !is_bound(pass, job)
        {
            pass.of_pass(job_class).refused_secs = Some(secs);
        }
    }
    // Rooms of an earlier moment say too little of a time that is cut to what they have.
    let is_full_pass = pass.now == pass.snapshot.now;
    match job
        .spec
        .time_min_secs
        .filter(|least| is_full_pass && *least < secs)
    {
        Some(least) if start_shorter(pass, job, id, job_class, alternatives, least..=secs) => {
            Ok(())
        }
        _ => Err(WaitCause::Nodes),
    }
}

/// Starts it by the first way that has room and that no limit stands against.
fn start_alternative(
    pass: &mut Pass,
    job: &PendingJob,
    id: JobId,
    job_class: JobClassId,
    alternatives: &[usize],
    secs: u32,
) -> Result<bool, WaitCause> {
    let mut limit = None;
    for alternative in alternatives.iter().copied() {
        match find_beside(pass, job, job_class, alternative, secs) {
            Ok(Some(found))
                if pass.turn.guaranteed_only && found.class == Some(RunClass::Borrowed) =>
            {
                return Err(WaitCause::Borrows);
            }
            Ok(Some(found)) => {
                let shorter = (secs < job.held_secs()).then_some(secs);
                commit_start(pass, job, id, job_class, alternative, &found, shorter);
                return Ok(true);
            }
            Ok(None) => {}
            Err(no) => limit = limit.or(Some(no)),
        }
    }
    limit.map_or(Ok(false), |no| Err(WaitCause::Limit(no)))
}

/// With a limit cut down to what there is room for.
fn start_shorter(
    pass: &mut Pass,
    job: &PendingJob,
    id: JobId,
    job_class: JobClassId,
    alternatives: &[usize],
    secs: RangeInclusive<u32>,
) -> bool {
    let (least, most) = secs.into_inner();
    if pass
        .job_class(job_class)
        .pass
        .refused_min_secs
        .is_some_and(|refused| least >= refused)
    {
        return false;
    }
    reserve_wanted(pass);
    for alternative in alternatives.iter().copied() {
        let longest = pass.search(job, job_class, |search, ask| {
            search.longest(ask, alternative, search.snapshot.now, least, most)
        });
        let Some((secs, picked)) = longest else {
            continue;
        };
        let take = take_of(pass, job_class, alternative, &picked, secs);
        if let Ok(class) = check_limits_on(
            pass,
            job,
            job_class,
            &NodeOffer {
                alternative,
                secs,
                picked: &picked,
                take: &take,
            },
        ) {
            let found = FoundNodes {
                picked,
                take,
                class,
            };
            commit_start(pass, job, id, job_class, alternative, &found, Some(secs));
            return true;
        }
    }
    pass.of_pass(job_class).refused_min_secs = Some(least);
    false
}

/// Nodes for a way, now, beside all that is to be reserved for those before. Reservations only take room: they are
/// worked out one by one, and no more of them than it takes to refuse, or to know that the others begin when it is over.
fn find_beside(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    alternative: usize,
    secs: u32,
) -> NodesOrLimit {
    let mut found = find_nodes(pass, job, job_class, alternative, secs)?;
    let end = end_after(pass.snapshot.now, Some(secs));
    while let (Some(FoundNodes { picked, .. }), true) = (&found, is_any_wanted_before(pass, end)) {
        let mut nodes = FixedBitSet::with_capacity(pass.snapshot.nodes.len());
        picked
            .iter()
            .for_each(|(picked, _)| nodes.insert_range(picked.clone()));
        let in_the_way = |one: &PlannedStart| one.at < end && one.is_on(&nodes);
        // Twice as many each time before it is asked whether more of them matter: to make one more is no harm.
        let (mut looked, mut more) = (pass.backfill.reserved.len(), 1);
        while !pass.backfill.reserved[looked..].iter().any(in_the_way)
            && is_any_wanted_before(pass, end)
        {
            looked = pass.backfill.reserved.len();
            for _ in 0..more {
                let before = pass.backfill.reserved.len();
                reserve_next(pass);
                if pass.backfill.reserved[before..].iter().any(in_the_way) {
                    break;
                }
            }
            more *= 2;
        }
        found = find_nodes(pass, job, job_class, alternative, secs)?;
    }
    Ok(found)
}

/// Takes what was found, in the world and in the plan.
fn commit_start(
    pass: &mut Pass,
    job: &PendingJob,
    id: JobId,
    job_class: JobClassId,
    alternative: usize,
    found: &FoundNodes,
    shorter: Option<u32>,
) {
    let window = Window {
        from: pass.now,
        to: end_after(pass.snapshot.now, shorter.or(job.limit_secs)),
    };
    let mut allocation = take_nodes(pass, job_class, alternative, &found.picked, window);
    // Ranks follow the network, and names within: neighbours in rank are neighbours there.
    allocation.sort_by_key(|(at, _)| pass.memory.network.rank(*at));
    take_reserved(pass, job_class, &allocation, window);
    let allocation: Allocation = allocation.into_iter().map(|(_, share)| share).collect();
    for (name, count) in &job.spec.licences {
        if let Some(free) = pass.world.licences.get_mut(name) {
            free.take(window.from, window.to, *count);
        }
    }
    if !pass.limits.unlimited {
        let on = Some((&allocation[..], pass.snapshot));
        let held = pass.world.usage.take(job, &found.take, found.class, on);
        pass.world.usage.expect(id, held);
    }
    if let Some(array) = job.capped_array() {
        pass.world.array_starts.entry(array).or_default().insert(id);
    }
    let partition = job.partition_of_several();
    if job.is_choice() || pass.turn.guaranteed_only {
        pass.choices.settled.insert(id);
    }
    pass.plan.starts.push(Start {
        job: id,
        allocation,
        partition,
        class: found.class,
        limit_secs: shorter,
    });
    pass.work.starts_left = pass.work.starts_left.saturating_sub(1);
    takes_freed(pass, job);
    keep_victims_of(pass, id);
}

/// Takes the picked nodes for a time: each with its place and what is held of it.
fn take_nodes(
    pass: &mut Pass,
    job_class: JobClassId,
    alternative: usize,
    picked: &PickedNodes,
    window: Window,
) -> Vec<(usize, NodeShare)> {
    let of = &pass.memory.job_classes.list[job_class as usize];
    let mut on_rails = rails::aligned(
        &pass.memory.network,
        &pass.world.cluster,
        pass.snapshot,
        picked,
        &of.alternatives[alternative],
        window,
    );
    let mut allocation: Vec<(usize, NodeShare)> = Vec::with_capacity(count(picked));
    // Nodes that were alike give the same and are alike again.
    let mut alike: BTreeMap<(NodeStateId, usize, Vec<u16>), (NodeStateId, NodeShare)> =
        BTreeMap::new();
    for (at, part) in each(picked) {
        let cluster = &mut *pass.world.cluster;
        let (before, node) = (cluster.state_id(at), cluster.nodes[at].id);
        let liked = on_rails.remove(&at).unwrap_or_default();
        let key = (before, part, liked);
        let share = if let Some((room, share)) = alike.get(&key) {
            cluster.set_state(at, *room);
            NodeShare {
                node,
                ..share.clone()
            }
        } else {
            let part = PartOfNode {
                alternative,
                part,
                liked: &key.2,
            };
            let share = take_node(pass, job_class, at, &part, window);
            let room = pass.world.cluster.state_id(at);
            alike.insert(key, (room, share.clone()));
            share
        };
        pass.world.cluster.file(at);
        allocation.push((at, share));
    }
    allocation
}

/// What a node gives to a job: the part of an alternative, and the GPUs to take first.
struct PartOfNode<'a> {
    alternative: usize,
    part: usize,
    liked: &'a [u16],
}

fn take_node(
    pass: &mut Pass,
    job_class: JobClassId,
    at: usize,
    part: &PartOfNode,
    window: Window,
) -> NodeShare {
    let (memory, cluster) = (&mut *pass.memory, &mut *pass.world.cluster);
    let of = &memory.job_classes.list[job_class as usize];
    let node = &cluster.nodes[at];
    let need = *of
        .need(part.alternative, part.part, node.node_class)
        .expect("picked nodes serve their part");
    let tasks = of.alternatives[part.alternative].parts[part.part]
        .demand
        .tasks;
    let node_class = &cluster.node_classes.list[node.node_class as usize];
    let slot = if need.milli > 0 && of.placement == Placement::Pack {
        let fitting = cluster
            .state(at)
            .slots_for(node_class, &need, window.from, window.to);
        memory
            .scores
            .slot(cluster, at, &need, &fitting, pass.snapshot)
    } else {
        None
    };
    let liked = slot.as_ref().map_or(part.liked, std::slice::from_ref);
    let mut room = cluster.state(at).clone();
    let share = room
        .start(node_class, node.id, &need, liked, tasks, window)
        .expect("picked nodes have room");
    *cluster.touch(at) = room;
    share
}

/// Starts a job that is no array now, if it can: also where victims leave for it in another of its partitions.
pub(crate) fn start_alone(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
) -> Result<(), WaitCause> {
    let Some(owed) = pass.world.usage.lift_nominated(job) else {
        return start_now(pass, job, job.id, job_class);
    };
    pass.limits.refused.clear();
    let told = start_now(pass, job, job.id, job_class);
    if told.is_err() {
        pass.world.usage.restore_nominated(owed);
    }
    told
}

/// Alternatives for which its reservation by number has GPUs left, with what it was promised of it in another of its partitions.
fn reserved_alternatives_of(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    alternatives: Vec<usize>,
    secs: u32,
) -> Result<Vec<usize>, WaitCause> {
    if !job.is_choice() || !is_counted(pass, job_class) {
        return reserved_alternatives(pass, job_class, alternatives, secs);
    }
    let own = lift_own(pass, job);
    let alternatives = reserved_alternatives(pass, job_class, alternatives, secs);
    hold_own(pass, job, own);
    alternatives
}

/// Starts as many tasks of an array as can start now: why the next waits, with how many of those that its cap lets start, and how many
/// have had their turn.
pub(crate) fn start_tasks(
    pass: &mut Pass,
    job: &PendingJob,
    positions: &RangeSet,
    job_class: JobClassId,
) -> Option<(WaitCause, u32)> {
    let elsewhere = pass.choices.settled_of(job);
    let mut room = pass.array_room(job);
    let mut done = elsewhere.len() as u32;
    let open = positions
        .iter()
        .filter(|position| !elsewhere.contains(&JobId(job.id.0 + u64::from(*position))));
    for position in open {
        if pass.work.starts_left == 0 {
            break;
        }
        if room == 0 {
            let (kind, reason) = (LimitKind::Fixed, array_limit(job));
            return Some((WaitCause::Limit(LimitRefusal { kind, reason }), 0));
        }
        let id = JobId(job.id.0 + u64::from(position));
        if let Err(wait) = start_now(pass, job, id, job_class) {
            let tasks = (positions.len() as u32).saturating_sub(done).min(room);
            return Some((wait, tasks));
        }
        room -= 1;
        done += 1;
    }
    None
}
