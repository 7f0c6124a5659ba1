//! Preempt mode and protected time of a run: whether preemption may end it, and from when on.

use crate::snapshot::{RunningRun, Snapshot};
use gmodel::Timestamp;
use gmodel::policy::PreemptMode;

/// Whether preemption suspends a run: only its CPUs become free then.
pub(crate) fn is_suspended_by_preemption(snapshot: &Snapshot, run: &RunningRun) -> bool {
    mode_of(snapshot, run) == PreemptMode::Suspend
}

pub(crate) fn mode_of(snapshot: &Snapshot, run: &RunningRun) -> PreemptMode {
    let own = snapshot
        .policy
        .qos
        .get(&run.spec.qos)
        .and_then(|qos| qos.preempt_mode);
    let of_partition = || {
        snapshot
            .config
            .partition(&run.spec.partition)
            .map_or(PreemptMode::default(), |one| one.preempt_mode)
    };
    own.unwrap_or_else(of_partition)
}

/// The preempt mode of a run at a time; `None`: off, or in its protected time.
pub(crate) fn preemptible(
    snapshot: &Snapshot,
    run: &RunningRun,
    at: Timestamp,
) -> Option<PreemptMode> {
    let mode = mode_of(snapshot, run);
    let ran_secs = at.since_secs(run.started.unwrap_or(snapshot.now));
    (mode != PreemptMode::Off && ran_secs >= protected_secs(snapshot, run)).then_some(mode)
}

/// When the protected time of the next run ends that a pending job could preempt.
pub fn next_unprotected(snapshot: &Snapshot) -> Option<Timestamp> {
    let has_eligible = snapshot
        .pending
        .iter()
        .any(|job| job.is_eligible(snapshot.now));
    let until = |run: &RunningRun| {
        run.started
            .unwrap_or(snapshot.now)
            .plus_secs(protected_secs(snapshot, run))
    };
    let runs = snapshot
        .running
        .iter()
        .filter(|run| has_eligible && until(run) > snapshot.now && run.stops_by.is_none());
    runs.filter(|run| mode_of(snapshot, run) != PreemptMode::Off)
        .map(until)
        .min()
}

/// The protected time of a run, seconds.
pub(crate) fn protected_secs(snapshot: &Snapshot, run: &RunningRun) -> i64 {
    let qos = snapshot.policy.qos.get(&run.spec.qos);
    let came_back_secs = if run.preempted.is_some() {
        snapshot.config.scheduler.preempt.min_run_secs
    } else {
        0
    };
    i64::from(qos.map_or(0, |qos| qos.min_run_secs).max(came_back_secs))
}
