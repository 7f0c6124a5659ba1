//! What came of a trace: each job's fate and times, the passes, and a hash over every start.

use crate::ledger::Ledger;

/// What became of everything.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// In the order of the jobs given.
    pub jobs: Vec<JobOutcome>,
    pub ledger: Ledger,
    pub passes: u64,
    /// Nanoseconds of each pass, snapshot and plan, by the program's clock.
    pub pass_nanos: Vec<u64>,
    /// First and last moment, milliseconds of the trace.
    pub begin_ms: i64,
    pub end_ms: i64,
    /// FNV-1a over every start: run, time, nodes and GPUs.
    pub hash: u64,
}

/// One job's way. Times are milliseconds of the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobOutcome {
    pub fate: Fate,
    pub submit_ms: i64,
    /// First start.
    pub start_ms: i64,
    /// Start of the last run.
    pub last_start_ms: i64,
    pub end_ms: i64,
    /// The time limit of its last run.
    pub limit_ms: Option<i64>,
    /// Places in the hardware of the nodes of the last run, in the order of their names.
    pub nodes: Vec<u32>,
    pub preemptions: u32,
    /// The runs that a preemption ended, in order.
    pub preempted: Vec<PreemptedRun>,
    /// Thousandths of GPUs times milliseconds that preemptions threw away.
    pub lost: u128,
    /// Thousandths of GPUs held, and CPUs.
    pub gpu_milli: u64,
    pub cpus: u64,
}

/// A run that a preemption ended; fields as in [`JobOutcome`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreemptedRun {
    pub start_ms: i64,
    pub end_ms: i64,
    pub nodes: Vec<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// The source does not say how long it ran.
    #[default]
    Skipped,
    /// With the words of the controller.
    Refused(String),
    /// Waited to the end, with its last reason.
    NeverStarted(String),
    Finished,
    /// Ended at its limit.
    TimedOut,
    /// Preempted and not to be started again.
    Cancelled,
}

impl Fate {
    pub fn ran(&self) -> bool {
        matches!(self, Self::Finished | Self::TimedOut)
    }
}
