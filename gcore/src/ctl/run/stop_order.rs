//! The order to a run to stop, with the time that its job has for a checkpoint. Never decides which run stops.

use crate::ctl::state::{State, Stop};
use crate::ctl::tx::Tx;
use gmodel::checkpoint::CheckpointSpec;
use gmodel::run::StopCause;
use gmodel::{JobSpec, RunId};

/// An order to stop, with the checkpoint time of the job where the reason allows it.
pub(crate) fn order(tx: &Tx, run: RunId, why: StopCause, by: &str) -> Stop {
    let asked = matches!(
        why,
        StopCause::Preempted | StopCause::Requeued | StopCause::Drained
    );
    let started = tx.run(run).is_some_and(|run| run.go.is_some());
    let job = tx.job(run.job).filter(|_| asked && started);
    let checkpoint = job.and_then(|job| checkpoint_of(tx.state, &job.spec));
    Stop {
        checkpoint_secs: checkpoint.map_or(0, |checkpoint| checkpoint.grace_secs),
        ..Stop::new(why, tx.state.config.kill_grace_secs, tx.now, by)
    }
}

/// How a job is asked for a checkpoint: its own specification, or the site's default.
pub fn checkpoint_of<'a>(state: &'a State, spec: &'a JobSpec) -> Option<&'a CheckpointSpec> {
    spec.checkpoint
        .as_ref()
        .or(state.config.scheduler.preempt.default_checkpoint.as_ref())
}
