//! Charges runs to their accounts and users when they are over: here and nowhere else.
//!
//! The usage of a live run is added where the book is read (`gpolicy::usage`), so nothing is written while it
//! runs.

use crate::ctl::apply::tokens::token_mut;
use crate::ctl::state::{Outcome, Run, State};
use gmodel::run::NodeShare;
use gmodel::{GpuSlot, JobId, NodeId, RunId};
use gpolicy::usage::Rate;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Charges a run that is over, each of its nodes for as long as it was held. A run that never started costs
/// nothing.
pub(crate) fn charge(state: &mut State, id: RunId, outcome: &Outcome) {
    let Some(started) = outcome.started else {
        return;
    };
    charge_token(state, id, outcome);
    let Some(run) = state.run(id) else {
        return;
    };
    let stood_still = i64::try_from(run.suspended_by(outcome.ended)).unwrap_or(0);
    let held = |at: usize| {
        outcome
            .held_millis
            .get(at)
            .copied()
            .unwrap_or(outcome.lasted_millis())
    };
    let mut together: BTreeMap<i64, Vec<NodeShare>> = BTreeMap::new();
    for (at, share) in run.allocation.iter().enumerate() {
        together.entry(held(at)).or_default().push(share.clone());
    }
    let half_life_secs = state.config.scheduler.fair_share.half_life_secs;
    for (held, shares) in together {
        let Some((account, user, rate)) = rate_of(state, id.job, &shares) else {
            return;
        };
        let until = started.plus_millis(held);
        let from = started.plus_millis(stood_still).min(until);
        let book = Arc::make_mut(&mut state.usage);
        book.charge(&account, &user, &rate, from, until, half_life_secs);
    }
}

/// What a run used that is over, each node as long as it was held: as accounts are charged, in thousandths of a GPU times milliseconds.
pub(crate) fn used_by(run: &Run, outcome: &Outcome) -> u64 {
    if outcome.started.is_none() {
        return 0;
    }
    let stood_still = run.suspended_by(outcome.ended);
    let shares = run.allocation.iter().enumerate();
    let each = shares.map(|(at, share)| {
        let held = outcome.held_millis.get(at).copied();
        let held = held.unwrap_or(outcome.lasted_millis());
        let held = u64::try_from(held).unwrap_or(0).saturating_sub(stood_still);
        share.gpus.milli().saturating_mul(held)
    });
    each.fold(0, u64::saturating_add)
}

fn charge_token(state: &mut State, id: RunId, outcome: &Outcome) {
    let used = state.run(id).map_or(0, |run| used_by(run, outcome));
    let token = state.job(id.job).and_then(|job| job.spec.token);
    let Some(token) = token.filter(|token| used > 0 && state.tokens.users.contains_key(token))
    else {
        return;
    };
    let token = token_mut(state, token);
    token.gpu_used = token.gpu_used.saturating_add(used);
}

fn rate_of(state: &State, id: JobId, shares: &[NodeShare]) -> Option<(String, String, Rate)> {
    let spec = &state.job(id)?.spec;
    let config = &state.config.scheduler.fair_share;
    let factor = state
        .policy
        .qos
        .get(&spec.qos)
        .map_or(1000, |qos| qos.usage_factor_milli);
    let gpu_type = |node: NodeId, slot: GpuSlot| {
        let gpu = state.node(node)?.gpus.get(usize::from(slot.0))?;
        Some(gpu.info.gpu_type.as_str())
    };
    let rate = Rate::of(shares, gpu_type, config, factor);
    Some((spec.account.clone(), spec.user.name.clone(), rate))
}
