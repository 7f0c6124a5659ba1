//! Runs are charged to their accounts and users when they are over: here and nowhere else.
//!
//! What a run that goes on has used so far is added where the book is read (`gsched::usage`), so nothing is written while it runs.

use super::state::{Outcome, State};
use gmodel::{GpuSlot, NodeId, RunId};
use gsched::usage::Rate;
use std::sync::Arc;

/// Charges a run that is over. One that never started costs nothing.
pub(super) fn charge(state: &mut State, id: RunId, outcome: &Outcome) {
    let Some(started) = outcome.started else { return };
    let Some((account, user, rate)) = rate_of(state, id) else { return };
    let stood_still = state.runs.get(id).map_or(0, |run| run.suspended_by(outcome.ended));
    let started = started.plus_millis(i64::try_from(stood_still).unwrap_or(0)).min(outcome.ended);
    let half_life_secs = state.config.scheduler.fair_share.half_life_secs;
    let book = Arc::make_mut(&mut state.usage);
    book.charge(&account, &user, &rate, started, outcome.ended, half_life_secs);
}

fn rate_of(state: &State, id: RunId) -> Option<(String, String, Rate)> {
    let run = state.runs.get(id)?;
    let spec = &state.jobs.get(id.job)?.spec;
    let config = &state.config.scheduler.fair_share;
    let factor = state.policy.qos.get(&spec.qos).map_or(1000, |qos| qos.usage_factor_milli);
    let gpu_type = |node: NodeId, slot: GpuSlot| {
        let gpu = state.nodes.get(node)?.gpus.get(usize::from(slot.0))?;
        Some(gpu.info.gpu_type.as_str())
    };
    let rate = Rate::of(&run.allocation, gpu_type, config, factor);
    Some((spec.account.clone(), spec.user.name.clone(), rate))
}
