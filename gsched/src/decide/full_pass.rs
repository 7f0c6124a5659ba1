//! A full pass: along queue groups where their order cannot depend on what a job is given, along all entries otherwise.

use crate::changes::Changes;
use crate::decide::consider::consider_in;
use crate::decide::finish::finish;
use crate::decide::walk::{sync_queue, walk_groups};
use crate::engine::{Engine, QuickPassState};
use crate::ledger::Ledger;
use crate::pass::{EntryLook, Pass, Slices};
use crate::place::gpu_reservation::hold_counted;
use crate::plan::{Plan, WorkBudget};
use crate::preempt::nomination::know_freed;
use crate::preempt::resume::{resume_first, resume_rest};
use crate::preempt::victims::VictimCandidates;
use crate::preempt::what_if;
use crate::queue_order::in_order;
use crate::snapshot::Snapshot;
use gmodel::RunClass;
use gmodel::config::MigCuts;
use std::collections::BTreeMap;

/// A budget grows to so many times two to the power of this before a pass is cut short for good.
const MOST_STRETCH: u32 = 16;

pub(crate) fn decide(
    engine: &mut Engine,
    snapshot: &Snapshot,
    changes: Option<&Changes>,
    budget: WorkBudget,
    slices: Option<Slices>,
) -> Plan {
    let stretched = budget.node_probes.saturating_mul(1 << engine.stretch);
    let more = WorkBudget {
        node_probes: stretched,
        ..budget
    };
    engine.left = None;
    engine.sync(snapshot, changes);
    sync_queue(engine, snapshot, changes);
    let (mut plan, left) = match in_groups(snapshot) && engine.cluster.suspended == 0 {
        true => walk_groups(engine, snapshot, more, slices),
        false => walk_all(engine, snapshot, more, None, slices, None),
    };
    plan.cuts = crate::mig::cuts::cuts(engine, snapshot, &left);
    engine.stretch = match (
        plan.cut_short && left.started.len() < budget.starts,
        engine.memory.probed > budget.node_probes / 2,
    ) {
        (true, _) => (engine.stretch + 1).min(MOST_STRETCH),
        (false, true) => engine.stretch,
        (false, false) => engine.stretch.saturating_sub(1),
    };
    engine.left = (!plan.cut_short && !engine.memory.silent).then_some(left);
    plan
}

/// One pass in which `look` sees each job before its turn and may end the pass. `reserve`: how many waiting jobs of
/// each partition get a reservation, where it is not for the policy to say.
pub(crate) fn walk(
    engine: &mut Engine,
    snapshot: &Snapshot,
    budget: WorkBudget,
    reserve: Option<u32>,
    look: EntryLook,
) -> (Plan, QuickPassState) {
    engine.left = None;
    engine.sync(snapshot, None);
    engine.cluster.usual.queue_is_known = false;
    walk_all(engine, snapshot, budget, reserve, None, Some(look))
}

/// Looks at every job.
pub(crate) fn walk_all(
    engine: &mut Engine,
    snapshot: &Snapshot,
    budget: WorkBudget,
    reserve: Option<u32>,
    slices: Option<Slices>,
    mut look: Option<EntryLook>,
) -> (Plan, QuickPassState) {
    let ledger = Ledger::new(snapshot);
    let usage_before = what_if::may_preempt(snapshot).then(|| ledger.clone());
    let mut pass = Pass::new(engine, snapshot, budget, ledger);
    hold_counted(&mut pass);
    pass.backfill.at_once = true;
    if look.is_some() && reserve.is_some() {
        pass.forecast.is_on = true;
    }
    pass.work.slices = slices;
    pass.preemption.usage_before = usage_before.as_ref();
    pass.preemption.candidates = pass
        .preemption
        .usage_before
        .map(|usage| VictimCandidates::new(snapshot, usage));
    if let Some(reserve) = reserve {
        pass.backfill.reserve_left.fill(reserve);
    }
    know_freed(&mut pass);
    resume_first(&mut pass);
    let order = in_order(snapshot, &pass.world.usage);
    let partitions = partitions(snapshot);
    // Arrays with a used-up guarantee: their other tasks come with the borrowers of their tier.
    let mut later: Vec<usize> = Vec::new();
    for one in &order {
        let borrows = one.class != Some(RunClass::Guaranteed);
        if borrows && !later.is_empty() {
            later
                .drain(..)
                .for_each(|at| consider_in(&mut pass, at, &partitions, false));
        }
        let job = &snapshot.pending[one.at];
        let place = || partitions.get(job.spec.partition.as_str()).copied();
        if pass.is_spent()
            || !look
                .as_mut()
                .is_none_or(|look| look(&mut pass, job, place()))
        {
            break;
        }
        consider_in(&mut pass, one.at, &partitions, !borrows);
        pass.hand_over();
        later.extend(pass.turn.later.take());
    }
    if !pass.is_spent() {
        later
            .drain(..)
            .for_each(|at| consider_in(&mut pass, at, &partitions, false));
        resume_rest(&mut pass);
    }
    pass.plan.classes = pass.world.usage.classes();
    finish(pass, budget)
}

/// Whether a pass may go along queue groups: no quotas, no preemption, no MIG cuts, so a job's class
/// does not depend on the jobs before it.
fn in_groups(snapshot: &Snapshot) -> bool {
    let config = &snapshot.config;
    let cuts = config
        .partitions
        .iter()
        .any(|partition| partition.mig == MigCuts::Planned);
    let suspended = snapshot.running.iter().any(|run| run.suspended.is_some());
    !snapshot.policy.has_quotas()
        && !what_if::may_preempt(snapshot)
        && !config.scheduler.consolidate
        && !cuts
        && !suspended
}

/// Places of the partitions by name.
pub(crate) fn partitions(snapshot: &Snapshot) -> BTreeMap<&str, usize> {
    snapshot
        .config
        .partitions
        .iter()
        .enumerate()
        .map(|(at, one)| (one.name.as_str(), at))
        .collect()
}
