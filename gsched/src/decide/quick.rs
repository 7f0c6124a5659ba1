//! The next start after something became free, without a pass over the whole queue.
//!
//! A full pass leaves behind its planned starts. When runs end, the queue groups that the freed nodes can serve are
//! looked at again; no planned start is delayed, and the full pass that follows has the last word.

use crate::backfill::deferred::reserve_wanted;
use crate::backfill::planned::PlannedStart;
use crate::changes::Changes;
use crate::decide::start::start_now;
use crate::decide::turns::{FollowUp, GroupPlace, GroupTurns, Turn, Turns};
use crate::decide::walk::walk;
use crate::engine::{Engine, QuickPassState};
use crate::job::job_class::JobClassId;
use crate::job::queue::{Queue, QueueGroup};
use crate::job::reason;
use crate::pass::{Pass, WaitCause};
use crate::place::limits_in_force::{empty_usage, usage};
use crate::plan::{Plan, WorkBudget};
use crate::snapshot::Snapshot;
use gmodel::policy::Backfill;
use gmodel::{JobId, Reason};
use gpolicy::running_run::end_of;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// What can start now that could not in the pass before, by what became free since. `None`: that takes a full pass
/// (nodes that come and go, another policy, suspended runs, victims that leave, or no backfill).
pub(crate) fn quick_pass(
    engine: &mut Engine,
    snapshot: &Snapshot,
    changes: &Changes,
    budget: WorkBudget,
) -> Option<Plan> {
    engine.memory.standings.note(changes.known_runs());
    let mut left = engine.left.take()?;
    let (config, policy) = engine.seen.clone()?;
    let same = Arc::ptr_eq(&config, &snapshot.config) && Arc::ptr_eq(&policy, &snapshot.policy);
    // What comes free of a GPU that waits for a MIG cut is not given away.
    let stands_still = engine.cluster.suspended > 0 || !left.held_back.is_empty();
    // What a run leaves belongs to its reservation of GPUs, or to a job that waits for headroom.
    let set_apart = !left.counted.is_empty() || left.is_set_aside;
    // Only a full pass knows what nominations hold.
    let leave = || snapshot.running.iter().any(|run| run.victim_of.is_some());
    let promised = left.makes_room || (policy.has_quotas() && leave());
    if changes.everything
        || !same
        || stands_still
        || set_apart
        || promised
        || snapshot.config.scheduler.backfill == Backfill::Off
    {
        return None;
    }
    engine.left = Some(left);
    make_deferred_starts(engine, snapshot);
    left = engine.left.take()?;
    let mut keeps = left.ledger.is_some();
    let freed = take_leave(engine, snapshot, changes, &mut left)?;
    // A new one knows nothing of starts that are no runs yet.
    keeps &= left.ledger.is_some() || left.started.is_empty();
    engine.cluster.look_again(changes.nodes.iter().copied());
    engine.memory.job_classes.begin_pass(snapshot.pending.len());
    engine.sync_queue(snapshot, Some(changes));
    let ledger = left.ledger.take().unwrap_or_else(|| usage(snapshot));
    // Node states stay those of the full pass; starts are counted from its time on.
    let now = engine.cluster.now;
    let Engine {
        cluster,
        memory,
        queue,
        ..
    } = engine;
    let mut pass = Pass::new(cluster, memory, snapshot, budget, ledger);
    pass.now = now;
    (pass.backfill.reserved, pass.world.array_starts) = (left.reserved, left.in_arrays);
    // Tasks with a run in the snapshot count for the cap as it is now.
    pass.world
        .array_starts
        .values_mut()
        .for_each(|tasks| tasks.retain(|task| left.started.contains(task)));
    refill(&mut pass, &freed, &mut left.started, queue);
    (left.reserved, left.in_arrays) = (pass.backfill.reserved, pass.world.array_starts);
    left.ledger = keeps.then_some(pass.world.usage);
    let plan = pass.plan;
    engine.left = Some(left);
    Some(plan)
}

/// Makes the planned starts that the last pass deferred, before anything else becomes free: quick passes must see them.
/// A quick pass does it itself where the caller had no time after the full pass.
pub(crate) fn make_deferred_starts(engine: &mut Engine, snapshot: &Snapshot) {
    let Some(mut left) = engine.left.take_if(|left| !left.wants.is_empty()) else {
        return;
    };
    let now = engine.cluster.now;
    let Engine {
        cluster, memory, ..
    } = engine;
    let budget = WorkBudget::default();
    let mut pass = Pass::new(cluster, memory, snapshot, budget, empty_usage(snapshot));
    pass.now = now;
    (
        pass.backfill.reserved,
        pass.backfill.wants,
        pass.backfill.reserve_left,
    ) = (left.reserved, left.wants, left.reserve_left);
    pass.world.reservations = left.counted;
    reserve_wanted(&mut pass);
    (left.reserved, left.wants, left.reserve_left) = (
        pass.backfill.reserved,
        VecDeque::new(),
        pass.backfill.reserve_left,
    );
    left.counted = pass.world.reservations;
    engine.left = Some(left);
}

/// Takes runs that are over off their nodes; which nodes.
fn take_leave(
    engine: &mut Engine,
    snapshot: &Snapshot,
    changes: &Changes,
    left: &mut QuickPassState,
) -> Option<BTreeSet<usize>> {
    let now = engine.cluster.now;
    let (mut freed, mut over) = (BTreeSet::new(), Vec::new());
    for id in &changes.runs {
        let run = snapshot
            .running
            .binary_search_by_key(id, |run| run.run)
            .ok()
            .map(|at| &snapshot.running[at]);
        let known = engine.cluster.knows(*id);
        match (run, known) {
            // Its end may be another than was planned with: the full pass sees to that.
            (Some(run), true) => engine.cluster.expect_again(*id, end_of(run)),
            (Some(run), false) if left.started.remove(&id.job) => {
                engine.cluster.meet(run, snapshot);
                left.ledger.iter_mut().for_each(|ledger| ledger.meet(run));
            }
            (Some(_), false) => return None,
            (None, true) => {
                let (places, shares) = engine.cluster.part_with(*id, now);
                freed.extend(places);
                over.push((*id, shares));
            }
            (None, false) => {}
        }
    }
    // Those that came may inherit what these stood on.
    left.ledger.take_if(|ledger| {
        !over
            .iter()
            .all(|(id, shares)| ledger.end(*id, shares, snapshot))
    });
    for id in &changes.nodes {
        let at = engine.cluster.place(*id)?;
        // What is free must be what is known to be free: anything else has other causes.
        if !engine.cluster.agrees(at, &snapshot.nodes[at]) {
            return None;
        }
    }
    Some(freed)
}

/// Gives what was freed to pending jobs, in order; where there are quotas, to guaranteed ones first.
fn refill(pass: &mut Pass, freed: &BTreeSet<usize>, started: &mut BTreeSet<JobId>, queue: &Queue) {
    let rounds: &[bool] = if pass.world.usage.has_quotas() {
        &[true, false]
    } else {
        &[false]
    };
    for guaranteed in rounds {
        pass.turn.guaranteed_only = *guaranteed;
        let serves: Vec<bool> = (0..pass.memory.job_classes.list.len())
            .map(|job_class| is_served(pass, job_class as JobClassId, freed))
            .collect();
        let groups = GroupTurns::new(queue, &mut pass.memory.standings, pass.snapshot, |group| {
            serves[group.job_class as usize]
        });
        walk(pass, &mut Turns::Groups(groups), |pass, turn| {
            take_turn_again(pass, turn, started)
        });
    }
    pass.turn.guaranteed_only = false;
}

/// Whether any of some nodes has room now for a part of a job class. Jobs of reservations wait for the full pass, and those with
/// licences, which may be promised to others.
fn is_served(pass: &Pass, job_class: JobClassId, nodes: &BTreeSet<usize>) -> bool {
    let of = pass.job_class(job_class);
    let serves = |at: &usize| {
        let track = &pass.world.cluster.nodes[*at];
        let fits = |alternative: usize| {
            let need = of.alternatives[alternative]
                .smallest()
                .need(track.node_class);
            need.is_some_and(|need| {
                pass.world
                    .cluster
                    .state(*at)
                    .fits(need, pass.now, pass.now.plus_millis(1))
            })
        };
        of.candidates.up.contains(*at) && (0..of.alternatives.len()).any(fits)
    };
    of.claim.own().is_none() && of.spec.licences.is_empty() && nodes.iter().any(serves)
}

/// The turn of a quick pass: skips what the job's class refuses, and starts the job if it can.
fn take_turn_again(pass: &mut Pass, turn: &Turn, started: &mut BTreeSet<JobId>) -> FollowUp {
    let Some(GroupPlace { group, at, .. }) = turn.place else {
        return FollowUp::Next;
    };
    let refused = pass.job_class(group.job_class).pass.refused_secs;
    let skip_to = match refused {
        Some(refused) if !group.alone && group.secs[at] >= refused => {
            group.shorter_from(at, refused)
        }
        _ => match start_again(pass, group, at, started) {
            // The others of the queue group want the same limit raised.
            Err(WaitCause::Limit(_) | WaitCause::Borrows) if !pass.limits.minds_time => {
                group.turns.len()
            }
            _ => return FollowUp::Next,
        },
    };
    FollowUp::Skip {
        places: at..skip_to,
        reason: Reason::default(),
    }
}

/// Starts a job, or as many tasks as have room. One that has a reservation is tried without it, and keeps it where it
/// does not start.
fn start_again(
    pass: &mut Pass,
    group: &QueueGroup,
    at: usize,
    started: &mut BTreeSet<JobId>,
) -> Result<(), WaitCause> {
    let job = &pass.snapshot.pending[group.at[at] as usize];
    let partition = &pass.snapshot.config.partitions[group.partition];
    if !job.particulars.others.is_empty() {
        // The full pass that follows sees to gangs.
        return Ok(());
    }
    if group.alone && reason::standing(job, partition, pass.snapshot).is_some() {
        return Ok(());
    }
    let mine = |one: &PlannedStart| {
        one.job == job.id && one.choice == job.spec.choice() && job.particulars.positions.is_none()
    };
    let place = pass.backfill.reserved.iter().position(mine);
    let own = place.map(|place| pass.backfill.reserved.remove(place));
    if own.is_some() {
        pass.world.begin_trial();
    }
    for (hold, nodes) in own.iter().flat_map(|own| &own.holds) {
        nodes
            .clone()
            .for_each(|at| pass.world.cluster.touch(at).release(hold));
    }
    let mut room = pass.array_room(job);
    let ids: Vec<JobId> = match &job.particulars.positions {
        None => vec![job.id],
        Some(positions) => positions
            .iter()
            .map(|position| JobId(job.id.0 + u64::from(position)))
            .collect(),
    };
    for id in ids {
        if room == 0 || pass.is_spent() || started.contains(&id) {
            continue;
        }
        if let Err(wait) = start_now(pass, job, id, group.job_class) {
            pass.world.roll_back();
            pass.backfill.reserved.extend(own);
            return Err(wait);
        }
        started.insert(id);
        room -= 1;
    }
    pass.world.commit_trial();
    Ok(())
}
