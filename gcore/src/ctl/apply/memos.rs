//! Memos of the controller that runs: no decision rests on them, and no store keeps them.

use crate::ctl::job::limits::{LimitScope, held};
use crate::ctl::state::State;
use gmodel::{JobId, JobSpec, Request, Seq, Timestamp};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Nodes or partitions changed.
pub(crate) fn forget_what_fits(state: &mut State) {
    state.memo.feasible = Arc::default();
    state.memo.members = OnceLock::new();
}

/// Most requests that are remembered as feasible.
const MAX_FEASIBLE: usize = 1024;

/// Remembers that a request fits a partition on so many nodes.
pub(crate) fn note_fit(state: &mut State, partition: &str, asked: &Request, nodes: u32) {
    let shape = (partition.to_owned(), asked.clone());
    if state.memo.feasible.contains_key(&shape) {
        return;
    }
    if state.memo.feasible.len() >= MAX_FEASIBLE {
        state.memo.feasible = Arc::default();
    }
    Arc::make_mut(&mut state.memo.feasible).insert(shape, nodes);
}

/// The request with the parts that earlier requests have in memory already.
pub(crate) fn share_spec(state: &mut State, spec: JobSpec) -> Arc<JobSpec> {
    state.memo.late_specs.share(spec)
}

/// A plan made before now does not start the job.
pub(crate) fn note_respecified(state: &mut State, job: JobId) {
    state.memo.respecified.insert(job, state.seq);
}

/// Drops the marks that a plan made from `made_from` has seen.
pub(crate) fn forget_respecified(state: &mut State, made_from: Seq) {
    state.memo.respecified.retain(|_, at| *at > made_from);
}

/// Remembers an accepted submission where submissions a minute are limited.
pub(crate) fn note_submission(state: &mut State, spec: &JobSpec, now: Timestamp) {
    let mut limited: BTreeMap<String, u32> = BTreeMap::new();
    for partition in state.config.partitions_of(&spec.partition) {
        let subject = |held: &LimitScope| {
            held.scope
                .subject(held.account, &spec.user.name, &spec.qos, &partition.name)
        };
        let held = held(state, spec, partition);
        limited.extend(
            held.iter()
                .filter_map(|held| Some((subject(held), held.limits.submits_per_minute?))),
        );
    }
    for (subject, most) in limited {
        state.memo.minutes.note(subject, most, now);
    }
}
