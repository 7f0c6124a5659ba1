//! The input of a pass: nodes with what is free, pending jobs, live runs, policy and usage.

use gmodel::config::ClusterConfig;
use gmodel::{NodeId, Policy, Seq, Timestamp};
use gpolicy::fair_tree::UsageInput;
use gpolicy::run_lengths::RunLengths;
use gpolicy::usage::UsageBook;
use std::sync::Arc;

pub use gpolicy::pending_job::{ArrayCap, BarredNode, Particulars, PendingJob};
pub use gpolicy::running_run::{RunningRun, Suspension};
pub use gpolicy::sched_node::{CutRecord, NodeMig, SchedNode, place_of_node};

/// An immutable picture of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub seq: Seq,
    pub now: Timestamp,
    pub config: Arc<ClusterConfig>,
    /// Accounts, QOS and reservations in force: from files and from the database.
    pub policy: Arc<Policy>,
    /// In the order of their ids.
    pub nodes: Vec<SchedNode>,
    /// In no particular order, with held jobs and jobs not yet eligible. A job that is pending in several partitions has an
    /// entry for each.
    pub pending: Vec<PendingJob>,
    /// Live runs in the order of their ids.
    pub running: Vec<RunningRun>,
    /// The usage of ended runs.
    pub usage: Arc<UsageBook>,
}

impl Snapshot {
    /// The place of a node in `nodes`.
    pub fn place_of(&self, node: NodeId) -> Option<usize> {
        place_of_node(&self.nodes, node, |node| node.id)
    }

    /// What usage and fair share are computed from.
    pub fn usage_input(&self) -> UsageInput<'_> {
        UsageInput {
            now: self.now,
            config: &self.config,
            policy: &self.policy,
            nodes: &self.nodes,
            running: &self.running,
            book: &self.usage,
        }
    }

    /// The snapshot with each run and pending job as long as earlier runs predict. Reservations still go by a job's own limit.
    pub fn believed(mut self, lengths: &RunLengths) -> Self {
        lengths.expect_ends(self.now, &mut self.running);
        lengths.expect_limits(!self.policy.reservations.is_empty(), &mut self.pending);
        self
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::world::{NOW, world};
    use gpolicy::run_lengths::{RunLengths, RunOwner};

    #[test]
    fn the_believed_picture_is_never_longer_than_the_limits() {
        let picture = world(
            "node n1 h100:8\nrun 1 a ann 4 on=n1 ago=200 limit=1000\njob 2 a ann 8 limit=1000\njob 3 b bob 1 limit=50",
        );
        let mut lengths = RunLengths::default();
        let owner = RunOwner {
            account: "a",
            user: "ann",
            partition: "p",
        };
        for secs in [300, 300, 300, 5000] {
            lengths.note(owner, Some(1000), secs);
        }
        let believed = picture.clone().believed(&lengths);
        assert_eq!(
            believed.running[0].ends_by,
            Some(NOW.plus_secs(275)),
            "the mean of 300, 300, 300 and 1000, 200 gone"
        );
        assert_eq!(
            believed
                .pending
                .iter()
                .map(|job| job.limit_secs)
                .collect::<Vec<_>>(),
            [Some(475), Some(23)]
        );
        let known_nothing = picture.clone().believed(&RunLengths::default());
        assert_eq!(known_nothing.running, picture.running);
    }
}
