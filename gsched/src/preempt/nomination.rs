//! Nominations: the nodes that preemption frees for a job are its own until it starts.
//!
//! Without them the first job in order would take what was freed for the next, which then preempts again.

use crate::cluster::picked::{PickedNodes, each};
use crate::job::job_class::JobClassId;
use crate::pass::Pass;
use crate::place::nominated_nodes::key;
use crate::plan::{Nomination, Preempt};
use crate::snapshot::PendingJob;
use gmodel::{JobId, NodeId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Runs preempted for a job, unless it starts in another of its partitions. Of an array they are preempted for the next task.
pub(crate) fn add_preempts(
    pass: &mut Pass,
    job: &PendingJob,
    victims: impl IntoIterator<Item = Preempt>,
) {
    let for_job = next_of(pass, job);
    let victims = victims.into_iter().map(|one| Preempt { for_job, ..one });
    match job.is_choice() {
        true => pass.choices.preempts.extend(victims),
        false => pass.plan.preempts.extend(victims),
    }
}

fn next_of(pass: &Pass, job: &PendingJob) -> JobId {
    let Some(positions) = &job.particulars.positions else {
        return job.id;
    };
    let ids = job.ids();
    let started: BTreeSet<JobId> = pass
        .plan
        .starts
        .iter()
        .map(|start| start.job)
        .filter(|id| ids.contains(id))
        .collect();
    let tasks = positions
        .iter()
        .map(|position| JobId(job.id.0 + u64::from(position)));
    tasks
        .into_iter()
        .find(|task| !started.contains(task))
        .unwrap_or(job.id)
}

/// Loads the nominations of earlier passes.
pub(crate) fn know_freed(pass: &mut Pass) {
    let now = pass.snapshot.now;
    let jobs = pass.snapshot.pending.iter();
    let jobs = jobs.flat_map(|job| std::iter::once(job).chain(&job.particulars.others));
    let with_nodes = jobs.filter_map(|job| {
        let nodes = &job.particulars.nomination.as_ref()?.nodes;
        (job.is_eligible(now) && !nodes.is_empty()).then(|| (key(job), nodes.clone()))
    });
    pass.preemption.freed = with_nodes.collect();
}

/// Nominates the nodes of victims for a job.
pub(crate) fn free_for(pass: &mut Pass, job: &PendingJob, picked: &PickedNodes) {
    let nodes = each(picked)
        .map(|(at, _)| pass.world.cluster.nodes[at].id)
        .collect();
    pass.preemption.freed.insert(key(job), Arc::new(nodes));
}

/// The entry at hand waits for its victims: its nomination goes into the plan with its reason.
pub(crate) fn nominate(pass: &mut Pass, job: &PendingJob) {
    pass.turn.nomination = Some(Nomination {
        nodes: nominated_nodes(pass, job),
    });
}

/// The nodes of a job's victims; none where they are not known.
pub(crate) fn nominated_nodes(pass: &Pass, job: &PendingJob) -> Arc<Vec<NodeId>> {
    let nodes = pass.preemption.freed.get(&key(job));
    nodes.cloned().unwrap_or_default()
}

/// Drops the nomination of a job that started.
pub(crate) fn takes_freed(pass: &mut Pass, job: &PendingJob) {
    pass.preemption.freed.remove(&key(job));
}

/// Whether nominations of other entries of an array use up all the room of its cap: tasks with records of their own wait beside
/// the rest.
pub(crate) fn cap_is_promised(pass: &Pass, job: &PendingJob) -> bool {
    let Some(array) = job
        .capped_array()
        .filter(|_| !pass.preemption.freed.is_empty())
    else {
        return false;
    };
    let own = key(job);
    let beside = pass
        .snapshot
        .pending
        .iter()
        .filter(|other| other.capped_array() == Some(array) && other.spec.choice() == 0);
    let promised = beside
        .map(key)
        .filter(|other| *other != own && pass.preemption.freed.contains_key(other))
        .count();
    pass.array_room(job) as usize <= promised
}

/// Whether it has victims in another of its partitions: it does not start in this one.
pub(crate) fn is_freed_elsewhere(pass: &Pass, job: &PendingJob, job_class: JobClassId) -> bool {
    let up = &pass.job_class(job_class).candidates.up;
    let is_here = |node: &NodeId| {
        pass.world
            .cluster
            .place(*node)
            .is_some_and(|at| up.contains(at))
    };
    job.is_choice()
        && pass
            .preemption
            .freed
            .get(&key(job))
            .is_some_and(|nodes| !nodes.iter().all(is_here))
}
