//! A full pass: along queue groups where their order cannot depend on what a job is given, along all entries otherwise.

use crate::backfill::deferred::reserve_wanted;
use crate::changes::Changes;
use crate::decide::finish::finish;
use crate::decide::turns::{EntryTurns, FollowUp, GroupTurns, OpenGroups, SkippedJobs, Turns};
use crate::decide::walk::{take_turn, walk};
use crate::engine::{Engine, QuickPassState};
use crate::job::queue::Queue;
use crate::ledger::Ledger;
use crate::pass::{Pass, Slices};
use crate::place::gpu_reservation::hold_counted;
use crate::place::limits_in_force::usage;
use crate::plan::{Plan, WorkBudget};
use crate::preempt::nomination::know_freed;
use crate::preempt::resume::{resume_first, resume_rest};
use crate::preempt::victims::VictimCandidates;
use crate::preempt::what_if;
use crate::snapshot::{PendingJob, Snapshot};
use gmodel::config::MigCuts;
use std::ops::Range;

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
    engine.sync_queue(snapshot, changes);
    let (mut plan, left) = match has_fixed_order(snapshot) && engine.cluster.suspended == 0 {
        true => pass_over_groups(engine, snapshot, more, slices),
        false => pass_over_entries(
            engine,
            snapshot,
            more,
            |pass| pass.work.slices = slices,
            |_, _, _| true,
        ),
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

/// A pass that decides nothing: `look` sees each entry, and the place of its partition, before its turn, and ends the pass
/// with `false`.
pub(crate) fn pass_to_look(
    engine: &mut Engine,
    snapshot: &Snapshot,
    budget: WorkBudget,
    prepare: impl FnOnce(&mut Pass),
    look: impl FnMut(&mut Pass, &PendingJob, Option<usize>) -> bool,
) -> (Plan, QuickPassState) {
    engine.left = None;
    engine.sync(snapshot, None);
    engine.cluster.usual.queue_is_known = false;
    pass_over_entries(engine, snapshot, budget, prepare, look)
}

/// A pass that looks at every entry.
pub(crate) fn pass_over_entries(
    engine: &mut Engine,
    snapshot: &Snapshot,
    budget: WorkBudget,
    prepare: impl FnOnce(&mut Pass),
    mut look: impl FnMut(&mut Pass, &PendingJob, Option<usize>) -> bool,
) -> (Plan, QuickPassState) {
    let ledger = Ledger::new(snapshot);
    let usage_before = what_if::may_preempt(snapshot).then(|| ledger.clone());
    let Engine {
        cluster, memory, ..
    } = engine;
    let mut pass = Pass::new(cluster, memory, snapshot, budget, ledger);
    hold_counted(&mut pass);
    pass.preemption.usage_before = usage_before.as_ref();
    pass.preemption.candidates = usage_before
        .as_ref()
        .map(|usage| VictimCandidates::new(snapshot, usage));
    prepare(&mut pass);
    know_freed(&mut pass);
    resume_first(&mut pass);
    let mut turns = Turns::Entries(EntryTurns::new(&pass));
    walk(&mut pass, &mut turns, |pass, turn| {
        let job = &pass.snapshot.pending[turn.at];
        match turn.is_second || look(pass, job, turn.partition) {
            true => take_turn(pass, turn),
            false => FollowUp::End,
        }
    });
    reserve_wanted(&mut pass);
    if !pass.is_spent() {
        resume_rest(&mut pass);
    }
    pass.plan.classes = pass.world.usage.classes();
    finish(pass, budget)
}

/// A pass along the queue groups.
fn pass_over_groups(
    engine: &mut Engine,
    snapshot: &Snapshot,
    budget: WorkBudget,
    slices: Option<Slices>,
) -> (Plan, QuickPassState) {
    let open = engine.memory.silent.then(|| OpenGroups::new(engine));
    let Engine {
        cluster,
        memory,
        queue,
        ..
    } = engine;
    if open.as_ref().is_some_and(OpenGroups::is_over) {
        memory.probed = 0;
        let plan = Plan {
            made_from: snapshot.seq,
            ..Plan::default()
        };
        return (plan, QuickPassState::default());
    }
    let mut pass = Pass::new(cluster, memory, snapshot, budget, usage(snapshot));
    hold_counted(&mut pass);
    pass.work.slices = slices;
    let groups = GroupTurns::new(queue, &mut pass.memory.standings, snapshot, |_| true);
    let mut turns = Turns::Groups(groups.while_open(open));
    walk(&mut pass, &mut turns, take_turn);
    let skipped = turns.skipped();
    tell_skipped(&mut pass, queue, skipped);
    finish(pass, budget)
}

/// Gives a reason to all jobs that had no turn and have another.
fn tell_skipped(pass: &mut Pass, queue: &mut Queue, mut skipped: Vec<SkippedJobs>) {
    if pass.memory.silent {
        return;
    }
    skipped.sort_by_key(|one| (one.group, one.places.start));
    let mut told = Vec::new();
    for alike in skipped.chunk_by(|one, next| one.group == next.group && one.reason == next.reason)
    {
        let places: Vec<Range<usize>> = alike.iter().map(|one| one.places.clone()).collect();
        let (group, reason) = (alike[0].group, &alike[0].reason);
        queue.tell(group, &places, reason, pass.snapshot, &mut told);
    }
    told.sort_by_key(|(at, _)| pass.snapshot.pending[*at].id);
    for (at, reason) in told {
        pass.tell(&pass.snapshot.pending[at], Some(reason));
    }
    for (at, reason) in queue.untold() {
        pass.tell(&pass.snapshot.pending[at], Some(reason.clone()));
    }
}

/// Whether a pass may go along queue groups: no quotas, no preemption, no MIG cuts, so a job's class
/// does not depend on the jobs before it.
fn has_fixed_order(snapshot: &Snapshot) -> bool {
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
