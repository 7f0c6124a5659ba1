//! What a refusal is about, apart from its sentence: the sentences that programs for Slurm look for depend on it.
//!
//! Owns the kinds and their names on the wire. Which sentence belongs to a kind is the commands' affair.

use serde::{Deserialize, Serialize};

/// The subject matter of a refusal, as far as Slurm has an error of its own for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// No job of this id is in the queue.
    Job,
    /// The job is over.
    JobOver,
    /// The job runs, and the change is for pending jobs.
    JobRuns,
    /// The job waits, and the request is for running jobs.
    JobPending,
    /// No such partition.
    Partition,
    /// No partition is named and none is the default.
    NoPartition,
    /// Jobs or reservations name the partition.
    PartitionInUse,
    /// The partition takes no submissions.
    PartitionClosed,
    /// The partition is not open to this user or account.
    PartitionAccess,
    /// No node, or too few nodes, could ever run the request.
    NodeConfiguration,
    /// More or fewer nodes than a job may have.
    NodeCount,
    /// More than any cluster has.
    TooManyNodes,
    TaskCount,
    /// A node that is named is not there, or not in the partition.
    NodeName,
    Feature,
    TimeLimit,
    /// The least time limit that a job will do with.
    TimeMin,
    Account,
    Qos,
    /// A limit of an account, QOS or user. The subject is its name in Slurm's spelling.
    PolicyLimit,
    /// The queue holds as many jobs as it may.
    QueueFull,
    Licence,
    Reservation,
    ReservationAccess,
    /// Jobs run in the reservation, or wait for it.
    ReservationBusy,
    /// Another reservation has its nodes at that time.
    ReservationOverlap,
    /// A reservation of this name exists.
    ReservationExists,
    /// Jobs run on the nodes that are asked for.
    NodesBusy,
    /// The node is in a state from which it cannot be put into this one.
    NodeState,
    /// A time that is past, or none.
    Time,
    /// What is asked for together does not go together, or is not done here.
    NotSupported,
    Dependency,
    Array,
    Gpus,
    /// The user may not do this.
    Access,
    /// None of these; also a kind that a newer controller knows.
    #[default]
    #[serde(other)]
    Other,
}

impl RefusalKind {
    /// Not worth a word on the wire.
    pub fn is_other(&self) -> bool {
        *self == Self::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_travel_by_name_and_unknown_ones_are_read() {
        assert_eq!(
            serde_json::to_string(&RefusalKind::PolicyLimit).unwrap(),
            r#""policy_limit""#
        );
        assert_eq!(
            serde_json::from_str::<RefusalKind>(r#""of_a_newer_release""#).unwrap(),
            RefusalKind::Other
        );
    }
}
