//! Which rows of the database each event changes.

use crate::ctl::event::Event;
use crate::ctl::state::EntryId;
use gmodel::{JobId, NodeId, RunId};

/// The rows an event changes: the store rewrites exactly these from the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TouchedRows {
    pub job: Option<JobId>,
    pub array: Option<JobId>,
    pub run: Option<RunId>,
    pub node: Option<NodeId>,
    pub tokens: bool,
    /// Accounts, QOS and reservations.
    pub policy: bool,
    /// If the job is a task, its array's counters changed too.
    pub array_of_job: bool,
}

impl Event {
    /// Which rows the event changes.
    pub fn touched(&self) -> TouchedRows {
        let none = TouchedRows::default();
        let job = |job: JobId| TouchedRows {
            job: Some(job),
            ..none
        };
        let of_array = |array: JobId| TouchedRows {
            array: Some(array),
            ..none
        };
        let of_run = |run: RunId| TouchedRows {
            job: Some(run.job),
            run: Some(run),
            array_of_job: true,
            ..none
        };
        let node = |node: NodeId| TouchedRows {
            node: Some(node),
            ..none
        };
        match self {
            Self::JobSubmitted { id, spec, .. } if spec.array.is_some() => of_array(*id),
            Self::JobSubmitted { id, .. } => job(*id),
            Self::TaskSplit { array, position } => TouchedRows {
                job: Some(JobId(array.0 + u64::from(*position))),
                array: Some(*array),
                ..none
            },
            Self::JobHeld { job: id, .. }
            | Self::JobReleased { job: id, .. }
            | Self::JobUpdated { job: id, .. } => job(*id),
            Self::JobCancelled { job: id, .. } => TouchedRows {
                job: Some(*id),
                array_of_job: true,
                ..none
            },
            Self::JobRequeued { job: id, run, .. } => TouchedRows {
                job: Some(*id),
                run: *run,
                array_of_job: true,
                ..none
            },
            Self::WaitsChanged {
                entry: EntryId::Job(id),
                ..
            }
            | Self::NominationChanged {
                entry: EntryId::Job(id),
                ..
            } => job(*id),
            Self::WaitsChanged {
                entry: EntryId::Array(id),
                ..
            }
            | Self::NominationChanged {
                entry: EntryId::Array(id),
                ..
            } => of_array(*id),
            Self::ArrayHeld { array, .. }
            | Self::ArrayReleased { array, .. }
            | Self::TasksHeld { array, .. }
            | Self::TasksReleased { array, .. }
            | Self::ArrayUpdated { array, .. }
            | Self::TasksCancelled { array, .. }
            | Self::TasksRequeued { array, .. } => of_array(*array),
            Self::RunPlaced { run, .. }
            | Self::RunAdopted { run, .. }
            | Self::RunEnded { run, .. }
            | Self::RequeueDropped { run, .. }
            | Self::RunSettled { run, .. } => of_run(*run),
            Self::RunSuspended { run, .. } | Self::RunResumed { run, .. } => TouchedRows {
                job: Some(run.job),
                run: Some(*run),
                ..none
            },
            Self::RunGo { run, .. }
            | Self::RunStopping { run, .. }
            | Self::RunUnneeded { run, .. }
            | Self::RunSignalled { run, .. }
            | Self::RunIdleOver { run, .. }
            | Self::RunIdleWarned { run, .. }
            | Self::RunIdleNoted { run, .. }
            | Self::RunIdleTold { run, .. }
            | Self::StepStarted { run, .. }
            | Self::StepEnded { run, .. }
            | Self::RunClassed { run, .. }
            | Self::RunForfeited { run, .. }
            | Self::RunClosed { run } => TouchedRows {
                run: Some(*run),
                ..none
            },
            Self::RunReported { run, .. } | Self::RunMarked { run, .. } => TouchedRows {
                job: Some(run.job),
                run: Some(*run),
                ..none
            },
            Self::NodeJoined { node: id, .. }
            | Self::NodeAdminChanged { node: id, .. }
            | Self::NodeEpochRaised { node: id, .. }
            | Self::NodeRenewed { node: id, .. }
            | Self::NodeHello { node: id, .. }
            | Self::NodeInventory { node: id, .. }
            | Self::NodeFeaturesSet { node: id, .. }
            | Self::NodeLinkChanged { node: id, .. }
            | Self::NodeDrained { node: id, .. }
            | Self::NodeDrainDue { node: id, .. }
            | Self::NodeResumed { node: id, .. }
            | Self::NodeStruck { node: id, .. }
            | Self::NodeStrikesCleared { node: id }
            | Self::GpuOrdered { node: id, .. }
            | Self::GpuOrderEnded { node: id, .. }
            | Self::GpuNoted { node: id, .. }
            | Self::GpuChecked { node: id, .. }
            | Self::GpuJudged { node: id, .. }
            | Self::NodeFenceAsked { node: id, .. }
            | Self::NodeFenceFailed { node: id, .. }
            | Self::NodeFenced { node: id, .. }
            | Self::NodeRemoved { node: id, .. } => node(*id),
            Self::TokenMinted { .. } | Self::TokenSpent { .. } => TouchedRows {
                tokens: true,
                ..none
            },
            Self::PolicyChanged { .. } => TouchedRows {
                policy: true,
                ..none
            },
            Self::ReasonsGiven { .. }
            | Self::JobsForgotten { .. }
            | Self::RunIdleSeen { .. }
            | Self::RunPullSeen { .. }
            | Self::RunIdled { .. }
            | Self::NodeObeyed { .. }
            | Self::Configured { .. }
            | Self::Restored { .. }
            | Self::ControllerStarted { .. }
            | Self::TimeReached { .. }
            | Self::GpuChecksLooked { .. }
            // Bills, and tokens of users, are written as they differ from those of the last commit, as the use of accounts is.
            | Self::TokenMade { .. }
            | Self::TokenRevoked { .. }
            | Self::TokensUsed { .. }
            | Self::BillClosed { .. }
            | Self::BillCorrected { .. }
            | Self::PricesUsed { .. }
            | Self::TokensForgotten { .. } => none,
        }
    }
}
