//! A run that preemption may end, with what its end would cost.

use crate::snapshot::{RunningRun, Snapshot};
use gmodel::RunClass;
use gmodel::policy::PreemptMode;

/// Runs that may be ended on the same grounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunKind<'a> {
    pub class: Option<RunClass>,
    pub account: u32,
    pub qos: &'a str,
}

/// A run that may be ended now.
pub(crate) struct Candidate<'a> {
    pub run: &'a RunningRun,
    pub account: u32,
    pub class: Option<RunClass>,
    pub mode: PreemptMode,
    /// Thousandths of GPUs.
    pub gpus: u64,
    /// GPU-seconds since the last checkpoint mark.
    pub lost: u64,
    /// The part of `lost` that protects the run, up to the configured bound.
    pub protected: u64,
    /// A victim of another job in this pass.
    pub taken: bool,
    /// Its place by protected loss, size and start: the last criterion in the order of victims.
    pub rank: usize,
}

impl<'a> Candidate<'a> {
    pub fn new(
        snapshot: &Snapshot,
        run: &'a RunningRun,
        account: u32,
        class: Option<RunClass>,
        mode: PreemptMode,
        gpus: u64,
    ) -> Self {
        let since = run
            .started
            .map(|started| run.marked.unwrap_or(started).max(started));
        let unsaved_secs = snapshot.now.since_secs(since.unwrap_or(snapshot.now)) as u64;
        let most_secs = u64::from(snapshot.config.scheduler.preempt.max_protected_loss_secs);
        let gpu_secs = |secs: u64| gpus.saturating_mul(secs) / 1000;
        Self {
            run,
            account,
            class,
            mode,
            gpus,
            lost: gpu_secs(unsaved_secs),
            protected: gpu_secs(unsaved_secs.min(most_secs)),
            taken: false,
            rank: 0,
        }
    }

    pub fn kind(&self) -> RunKind<'a> {
        RunKind {
            class: self.class,
            account: self.account,
            qos: &self.run.spec.qos,
        }
    }
}
