//! The invariants of the controller's state, stated once: for tests, the simulator and `gadm check`.

use crate::ctl::state::State;
use crate::violation::Violation;
use gmodel::{JobId, JobState, NodeId};
use std::collections::BTreeMap;

/// Everything wrong with a state; empty when all is well.
pub fn check(state: &State) -> Vec<Violation> {
    let mut found = Vec::new();
    nodes_are_not_overcommitted(state, &mut found);
    jobs_and_runs_agree(state, &mut found);
    arrays_add_up(state, &mut found);
    ids_are_below_the_counter(state, &mut found);
    watched_are_those_with_deadlines(state, &mut found);
    crate::ctl::job::dependency::settle::check(state, &mut found);
    crate::ctl::run::preempt::check(state, &mut found);
    crate::ctl::run::suspend::check(state, &mut found);
    crate::ctl::run::parts::check(state, &mut found);
    crate::ctl::job::limits::check(state, &mut found);
    crate::ctl::token::cap::check(state, &mut found);
    crate::ctl::node::fencing::check(state, &mut found);
    crate::ctl::gpu::mig::check(state, &mut found);
    crate::ctl::gpu::share::check(state, &mut found);
    crate::ctl::gpu::check::check(state, &mut found);
    crate::ctl::run::idle_policy::check(state, &mut found);
    crate::ctl::gpu::imex::check(state, &mut found);
    crate::ctl::run::step_share::check(state, &mut found);
    crate::ctl::node::adoption::check(state, &mut found);
    found.into_iter().map(Violation).collect()
}

fn nodes_are_not_overcommitted(state: &State, found: &mut Vec<String>) {
    let mut gpus: BTreeMap<(NodeId, u16), u32> = BTreeMap::new();
    let mut cpus: BTreeMap<NodeId, u64> = BTreeMap::new();
    for run in state.runs.values() {
        if run.allocation.len() != run.members.len() {
            found.push(format!("run {} has shares without members", run.id));
        }
        for (share, member) in run.allocation.iter().zip(&run.members) {
            let Some(node) = state.node(share.node) else {
                if !member.is_clean() {
                    found.push(format!(
                        "run {} holds part of unknown node {}",
                        run.id, share.node
                    ));
                }
                continue;
            };
            if !node.runs.contains(&run.id) {
                found.push(format!("node {} does not list run {}", node.name, run.id));
            }
            if member.is_clean() {
                continue;
            }
            if !run.lends_cpus() {
                *cpus.entry(share.node).or_default() += u64::from(share.cpus);
            }
            for grant in &share.gpus.0 {
                *gpus.entry((share.node, grant.slot.0)).or_default() += grant.part.of_slot_milli();
            }
        }
    }
    for ((node, slot), milli) in gpus {
        if milli > 1000 {
            found.push(format!(
                "GPU {slot} of node {node} is given out {milli} thousandths"
            ));
        }
    }
    for (id, given) in cpus {
        let has = state
            .node(id)
            .map_or(0, |node| u64::from(node.inventory.cpus));
        if given > has {
            found.push(format!("node {id} has {has} CPUs and gave out {given}"));
        }
    }
    for node in state.nodes.values() {
        for run in node.runs.iter().filter(|run| !state.runs.contains(**run)) {
            found.push(format!(
                "node {} lists run {run}, which does not exist",
                node.name
            ));
        }
    }
}

fn jobs_and_runs_agree(state: &State, found: &mut Vec<String>) {
    for job in state.jobs.values() {
        let live = job.live_run().and_then(|run| state.run(run));
        let active = matches!(
            job.state,
            JobState::Running | JobState::Completing | JobState::Suspended
        );
        if active && live.is_none() {
            found.push(format!("job {} is {} without a run", job.id, job.state));
        }
        if !active && job.live.is_some() {
            found.push(format!("job {} is {} with a live run", job.id, job.state));
        }
        if job.state.is_final() && job.past.ended.is_none() {
            found.push(format!("job {} is over without an end", job.id));
        }
    }
    for run in state.runs.values() {
        if run.outcome.is_none() {
            let owner = state.job(run.id.job).and_then(|job| job.live_run());
            if owner != Some(run.id) {
                found.push(format!(
                    "run {} has no outcome and is not its job's",
                    run.id
                ));
            }
        }
    }
}

fn arrays_add_up(state: &State, found: &mut Vec<String>) {
    for array in state.arrays.values() {
        let (mut pending, mut live) = (0, 0);
        for (id, job) in state
            .jobs
            .range(array.id.0, array.id.0 + u64::from(array.len()))
        {
            if job.task.is_none_or(|task| task.array != array.id) {
                found.push(format!("job {id} has an id of array {}", array.id));
            }
            let position = (id.0 - array.id.0) as u32;
            if array.pending.contains(position) || array.cancelled.contains(position) {
                found.push(format!("task {id} is counted twice"));
            }
            match job.state {
                JobState::Pending => pending += 1,
                state if !state.is_final() => live += 1,
                _ => {}
            }
        }
        if !array
            .dropped
            .late
            .iter()
            .all(|at| array.cancelled.contains(at))
        {
            found.push(format!(
                "array {} has late tasks that are not over",
                array.id
            ));
        }
        let mut together = array.pending.clone();
        for one in &array.apart {
            let before = together.len();
            crate::ctl::state::take_out(&mut together, &one.positions);
            if one.positions.is_empty()
                || before - together.len() != one.positions.len()
                || one.holds == array.holds
            {
                found.push(format!(
                    "tasks {} of array {} are held apart from it, and should not be",
                    one.positions, array.id
                ));
            }
        }
        if (pending, live) != (array.own_pending, array.own_live) {
            found.push(format!(
                "array {} counts {} pending and {} live tasks, there are {pending} and {live}",
                array.id, array.own_pending, array.own_live
            ));
        }
    }
}

fn watched_are_those_with_deadlines(state: &State, found: &mut Vec<String>) {
    let due = |node: &&crate::ctl::state::Node| node.has_deadline();
    if !state
        .nodes
        .values()
        .filter(due)
        .map(|node| node.id)
        .eq(state.index.watched.iter().copied())
    {
        found.push(format!(
            "nodes {:?} are watched, which are not those with a deadline",
            state.index.watched
        ));
    }
}

fn ids_are_below_the_counter(state: &State, found: &mut Vec<String>) {
    let job = state.jobs.keys().last().unwrap_or(JobId(0));
    let array = state
        .arrays
        .values()
        .last()
        .map_or(0, |a| a.id.0 + u64::from(a.len()) - 1);
    let highest = job.0.max(array);
    if highest >= state.next_job {
        found.push(format!(
            "job {highest} exists and the next id is {}",
            state.next_job
        ));
    }
}
