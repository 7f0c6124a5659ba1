//! The end of a pass: preemptions and reasons of jobs with several entries, the plan, and what quick passes need of it.

use crate::engine::QuickPassState;
use crate::job::choices::Choices;
use crate::pass::Pass;
use crate::plan::{Plan, WorkBudget};
use crate::snapshot::PendingJob;
use gmodel::JobId;
use std::collections::BTreeSet;

/// What a full pass decided, and what it leaves for quick ones.
pub(crate) fn finish(mut pass: Pass, budget: WorkBudget) -> (Plan, QuickPassState) {
    preempt_for_choices(&mut pass);
    tell_choices(&mut pass);
    pass.plan.cut_short = pass.is_spent();
    pass.plan.again = !pass.world.reservations.is_empty() && !pass.plan.starts.is_empty();
    pass.memory.probed = budget.node_probes - pass.work.probes_left;
    let started: BTreeSet<JobId> = pass.plan.starts.iter().map(|start| start.job).collect();
    let keeps = !pass.limits.unlimited && !pass.limits.minds_time;
    let is_set_aside = pass.world.usage.idle.is_set_aside();
    let waits =
        |job: &PendingJob| job.particulars.nomination.is_some() && !started.contains(&job.id);
    let makes_room = pass.may_make_room()
        && (!pass.plan.preempts.is_empty() || pass.snapshot.pending.iter().any(waits));
    let left = QuickPassState {
        ledger: keeps.then_some(pass.world.usage),
        waiting: pass.room_wanted,
        held_back: pass.mig.held_back,
        reserved: pass.backfill.reserved,
        wants: pass.backfill.wants,
        reserve_left: pass.backfill.reserve_left,
        counted: pass.world.reservations,
        is_set_aside,
        makes_room,
        started,
        in_arrays: pass.world.array_starts,
    };
    let Some(slices) = pass.work.slices else {
        return (pass.plan, left);
    };
    let rest = pass.plan.beyond(slices.handed);
    (
        Plan {
            cut_short: pass.plan.cut_short,
            again: pass.plan.again,
            classes: pass.plan.classes,
            resumes: pass.plan.resumes,
            ..rest
        },
        left,
    )
}

/// Drops preemptions for jobs that started.
fn preempt_for_choices(pass: &mut Pass) {
    let Choices {
        settled, preempts, ..
    } = &mut pass.choices;
    pass.plan.preempts.extend(
        preempts
            .drain(..)
            .filter(|one| !settled.contains(&one.for_job)),
    );
}

/// One reason for each job: of the partition that is nearest to start it.
fn tell_choices(pass: &mut Pass) {
    for ((id, is_array), mut said) in std::mem::take(&mut pass.choices.said) {
        let (tasks, last) = said.tasks.unwrap_or((1, id));
        if pass.choices.settled.range(id..=last).count() as u64 == tasks {
            continue;
        }
        if said.entries < said.all {
            // An entry without a new reason keeps the known one.
            let before = said.before.clone();
            said.hear(before, u32::MAX);
        }
        if let Some((_, wait)) = said.best.filter(|(_, wait)| *wait != said.before) {
            pass.plan
                .give_reason(id, is_array, wait.reason, wait.nomination);
        }
    }
}
