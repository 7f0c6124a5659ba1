//! Why a job waits: exactly one reason per pending job, in Slurm's spelling, with our numbers.

use crate::NodeId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The primary reason of a job that waits or did not end well, as `squeue %r` prints it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum ReasonCode {
    /// Not looked at yet, or running.
    #[default]
    None,
    Resources,
    Priority,
    Dependency,
    JobHeldUser,
    JobHeldAdmin,
    BeginTime,
    JobArrayTaskLimit,
    PartitionDown,
    PartitionInactive,
    PartitionNodeLimit,
    PartitionTimeLimit,
    PartitionConfig,
    ReqNodeNotAvail,
    BadConstraints,
    /// The job's runs took nodes down, or a prolog failed: it waits for a person.
    JobHoldMaxRequeue,
    /// A dependency that can never be met.
    DependencyNeverSatisfied,
    Reservation,
    ReservationDeleted,
    Licenses,
    /// Hard limits, in Slurm's spelling.
    AssocGrpJobsLimit,
    AssocGrpSubmitJobsLimit,
    AssocGrpGRES,
    AssocGrpCpuLimit,
    AssocGrpNodeLimit,
    AssocGrpGRESRunMinutes,
    AssocMaxJobsLimit,
    AssocMaxGRESPerUser,
    AssocMaxCpuPerUser,
    AssocMaxNodePerUser,
    AssocGrpBilling,
    QOSGrpJobsLimit,
    QOSGrpGRES,
    QOSGrpCpuLimit,
    QOSGrpNodeLimit,
    QOSGrpGRESRunMinutes,
    QOSMaxJobsPerUserLimit,
    QOSMaxGRESPerUser,
    QOSMaxCpuPerUserLimit,
    QOSMaxNodePerUserLimit,
    MaxJobsPerAccount,
    MaxGRESPerAccount,
    MaxCpuPerAccount,
    MaxNodePerAccount,
    QOSMaxGRESPerJob,
    QOSMaxCpuPerJobLimit,
    QOSMaxNodePerJobLimit,
    QOSMinGRES,
    QOSMaxWallDurationPerJobLimit,
    QOSNotAllowed,
    AccountNotAllowed,
    InvalidAccount,
    InvalidQOS,
    /// Waits for its account's guarantee and may not borrow.
    Quota,
    /// Idle GPUs that are kept for others: headroom, or a lending limit.
    Headroom,
    /// Runs are being ended to make room for it.
    Preempting,
    /// It could not end by its deadline.
    DeadLine,
    /// Its node is lost and must be powered off before it goes back to the queue.
    NodeDown,
    /// Started a moment ago and taken back; waits before it tries again.
    Cleaning,
    /// Of jobs that are over: how they ended, in Slurm's words.
    NonZeroExitCode,
    RaisedSignal,
    JobLaunchFailure,
    TimeLimit,
    OutOfMemory,
    #[serde(other)]
    Unknown,
}

/// A reason with the sentence that explains it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    pub code: ReasonCode,
    /// For people: the numbers behind the code. May be empty. Shared: a hundred thousand jobs wait for the same.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub text: Arc<str>,
    /// Where others go for it: the nodes on which it is to start when they are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Arc<Vec<NodeId>>>,
}

impl Reason {
    pub fn new(code: ReasonCode, text: impl Into<Arc<str>>) -> Self {
        Self {
            code,
            text: text.into(),
            nodes: None,
        }
    }
}

fn is_empty(text: &Arc<str>) -> bool {
    text.is_empty()
}

impl From<ReasonCode> for Reason {
    fn from(code: ReasonCode) -> Self {
        Self {
            code,
            text: Arc::default(),
            nodes: None,
        }
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
