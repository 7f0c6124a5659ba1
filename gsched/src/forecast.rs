//! When waiting jobs would start if everything ran to its limit and nobody else came.
//!
//! A conservative pass over the whole queue: each job in order gets the earliest start that delays none before it. The
//! real start is mostly sooner, as runs end before their limits.

use crate::pass::Engine;
use crate::plan::WorkBudget;
use crate::snapshot::Snapshot;
use gmodel::{JobId, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// When and where a job is expected to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    pub job: JobId,
    /// `None`: not by what is known now (a limit, a hold, nodes that are down).
    pub start: Option<Timestamp>,
    pub nodes: Vec<NodeId>,
    /// Where that is, of a job that waits in several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Waiting jobs of its partition whose turn is before its own.
    pub ahead: u32,
}

/// The expected starts of these jobs (an array by its own id: its next task), in the order of the queue.
pub fn forecast(snapshot: &Snapshot, jobs: &BTreeSet<JobId>) -> Vec<Forecast> {
    Engine::default().forecast(snapshot, jobs, WorkBudget { node_probes: u64::MAX, starts: usize::MAX })
}

impl Engine {
    /// As [`forecast`], with a bound.
    pub fn forecast(&mut self, snapshot: &Snapshot, jobs: &BTreeSet<JobId>, budget: WorkBudget) -> Vec<Forecast> {
        let mut found: Vec<Forecast> = Vec::new();
        let mut left = snapshot.pending.iter().filter(|job| jobs.contains(&job.id)).count();
        let mut ahead: BTreeMap<Option<usize>, u32> = BTreeMap::new();
        let (plan, left) = self.walk(snapshot, budget, Some(u32::MAX), &mut |_, job, partition| {
            if left == 0 {
                return false;
            }
            let before = ahead.entry(partition).or_default();
            if jobs.contains(&job.id) {
                left -= 1;
                let known = found.iter_mut().find(|told| job.is_choice() && told.job == job.id);
                match known {
                    Some(told) => told.ahead = told.ahead.min(*before),
                    None => found.push(Forecast { job: job.id, start: None, nodes: Vec::new(), partition: None, ahead: *before }),
                }
            }
            *before += 1;
            true
        });
        for one in left.reserved.iter().filter(|one| !one.holds.is_empty()) {
            let is_first = |told: &&mut Forecast| told.job == one.job && told.start.is_none_or(|start| one.at < start);
            if let Some(told) = found.iter_mut().find(is_first) {
                told.start = Some(one.at);
                told.partition = partition_of(snapshot, one.job, one.choice);
                let mut nodes: Vec<usize> = one.nodes().collect();
                nodes.sort_unstable();
                told.nodes = nodes.into_iter().map(|at| snapshot.nodes[at].id).collect();
            }
        }
        for start in &plan.starts {
            // Tasks of an array start under their own ids.
            let array = snapshot.pending.iter().filter(|job| job.id <= start.job).map(|job| job.id).max();
            let told = |one: &&mut Forecast| one.job == start.job || array == Some(one.job);
            if let Some(one) = found.iter_mut().find(told).filter(|one| one.start != Some(snapshot.now)) {
                one.start = Some(snapshot.now);
                one.partition.clone_from(&start.partition);
                one.nodes = start.allocation.iter().map(|share| share.node).collect();
            }
        }
        found
    }
}

/// The name of one of the partitions of a job that waits in several.
fn partition_of(snapshot: &Snapshot, job: JobId, choice: u32) -> Option<String> {
    let entry = snapshot.pending.iter().find(|one| one.id == job && one.is_choice() && one.spec.choice() == choice)?;
    Some(entry.spec.partition.clone())
}
