//! A live run as policy and scheduler see it: its account, its shares of nodes, its expected end.

use crate::pending_job::UNLIMITED_SECS;
use gmodel::run::NodeShare;
use gmodel::{JobId, JobSpec, RunClass, RunId, Timestamp};
use std::sync::Arc;

/// A live run: its shares, its ends, its account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningRun {
    pub run: RunId,
    pub spec: Arc<JobSpec>,
    /// Shares of nodes that have not reported clean.
    pub shares: Vec<NodeShare>,
    pub placed: Timestamp,
    /// When the user's first process started; `None`: it gets ready.
    pub started: Option<Timestamp>,
    /// Start plus limit; `None` for unlimited.
    pub ends_by: Option<Timestamp>,
    /// `None` where there are no quotas.
    pub class: Option<RunClass>,
    /// When its last checkpoint was safe.
    pub marked: Option<Timestamp>,
    /// The run is being ended, and its resources are expected back by then.
    pub stops_by: Option<Timestamp>,
    /// The job that it was preempted for.
    pub victim_of: Option<JobId>,
    /// That job was to start on borrowed GPUs when this was decided.
    pub leaves_for_borrower: bool,
    /// It may be requeued after a preemption.
    pub may_requeue: bool,
    /// When an earlier run of the job was preempted.
    pub preempted: Option<Timestamp>,
    /// The run has ended and its usage is in the book, though a node has not reported clean.
    pub charged: bool,
    /// The run is suspended for another job, and its shares hold no CPUs.
    pub suspended: Option<Suspension>,
}

/// What a suspended run needs to resume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// The job that the run was suspended for.
    pub for_job: JobId,
    /// In the order of its shares.
    pub cpus: Vec<u32>,
}

impl RunningRun {
    /// A run of long ago without special facts.
    pub fn new(
        run: RunId,
        spec: Arc<JobSpec>,
        shares: Vec<NodeShare>,
        ends_by: Option<Timestamp>,
    ) -> Self {
        Self {
            run,
            spec,
            shares,
            placed: Timestamp::default(),
            started: Some(Timestamp::default()),
            ends_by,
            class: None,
            marked: None,
            stops_by: None,
            victim_of: None,
            leaves_for_borrower: false,
            may_requeue: true,
            preempted: None,
            charged: false,
            suspended: None,
        }
    }
}

/// When the resources of a run are expected back.
pub fn end_of(run: &RunningRun) -> Timestamp {
    let from = run.started.unwrap_or(run.placed);
    let end = run
        .ends_by
        .unwrap_or_else(|| from.plus_secs(i64::from(UNLIMITED_SECS)));
    run.stops_by.map_or(end, |leaves| leaves.min(end))
}
