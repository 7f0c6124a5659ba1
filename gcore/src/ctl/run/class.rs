//! Guaranteed and borrowed: the class of a run, as plans set it and as edits of the policy take it away.

use crate::ctl::event::Event;
use crate::ctl::state::{Run, State};
use crate::ctl::tx::Tx;
use gmodel::{JobSpec, RunClass, RunId};

/// Enters the new classes of a plan. Without quotas there are none.
pub(crate) fn classify(tx: &mut Tx, classes: Vec<(RunId, RunClass)>) {
    if !tx.state.policy.has_quotas() {
        return;
    }
    for (run, class) in classes {
        let differs = |run: &Run| run.outcome.is_none() && run.class != Some(class);
        if tx.run(run).is_some_and(differs) {
            tx.emit(Event::RunClassed {
                run,
                class: Some(class),
            });
        }
    }
}

/// Removes the class of all runs when no quota is left, and of runs in a QOS outside of quotas.
pub(crate) fn declassify(tx: &mut Tx) {
    let state = &*tx.state;
    let quotas = state.policy.has_quotas();
    let is_outside = |run: &Run| {
        state
            .job(run.id.job)
            .is_some_and(|job| is_outside_quota(state, &job.spec))
    };
    let classed = state
        .runs
        .values()
        .filter(|run| run.class.is_some() && run.outcome.is_none());
    for run in classed
        .filter(|run| !quotas || is_outside(run))
        .map(|run| run.id)
        .collect::<Vec<_>>()
    {
        tx.emit(Event::RunClassed { run, class: None });
    }
}

/// A QOS with runs that neither count against guarantees nor borrow.
pub(crate) fn is_outside_quota(state: &State, spec: &JobSpec) -> bool {
    state
        .policy
        .qos
        .get(&spec.qos)
        .is_some_and(|qos| qos.outside_quota)
}
