//! What time brings: silent nodes, runs that do not get ready, finished jobs to forget.

use crate::ctl::event::Event;
use crate::ctl::job::cancel::drop_late;
use crate::ctl::job::dependency::settle::look_again;
use crate::ctl::node::drain::{empty_nodes, next_emptying};
use crate::ctl::node::fencing::{give_up, next_call, try_again};
use crate::ctl::owner::SYSTEM;
use crate::ctl::reservation::window::next_edge;
use crate::ctl::run::gang::stop;
use crate::ctl::run::image_pull::last_heard;
use crate::ctl::state::{EntryId, Node, State};
use crate::ctl::tx::Tx;
use crate::ctl::{gpu, node, reservation};
use gmodel::config::LostNodePolicy;
use gmodel::node::Link;
use gmodel::run::StopCause;
use gmodel::{JobId, NodeId, RunId, Timestamp};

pub(crate) fn handle(tx: &mut Tx) {
    let now = tx.now;
    lose_silent_nodes(tx);
    try_again(tx);
    let late: Vec<RunId> = tx
        .state
        .index
        .preparing
        .iter()
        .take_while(|(placed, _)| prepare_ends(tx.state, *placed) <= now)
        .map(|(_, run)| *run)
        .filter(|run| pull_ends(tx.state, *run).is_none_or(|at| at <= now))
        .collect();
    for run in late {
        stop(tx, run, StopCause::PrepareTimeout, SYSTEM);
    }
    empty_nodes(tx);
    gpu::repair::wake(tx);
    gpu::check::wake(tx);
    let due: Vec<JobId> = tx
        .state
        .index
        .due
        .iter()
        .take_while(|(at, _)| *at <= now)
        .map(|(_, id)| *id)
        .collect();
    for id in &due {
        look_again(tx, EntryId::Job(*id), None);
        look_again(tx, EntryId::Array(*id), None);
        drop_late(tx, *id);
    }
    let first_look = node::maintenance::clear(tx);
    let edge = next_edge(tx.state).is_some_and(|at| at <= now);
    if edge {
        reservation::upkeep::pass(tx);
    }
    forget_finished(tx);
    let look = reservation::upkeep::next_look(tx.state).is_some_and(|at| at <= now);
    if edge || look || first_look || !due.is_empty() || is_time_due(tx.state, now) {
        reservation::upkeep::look(tx);
        tx.emit(Event::TimeReached { until: now });
    }
}

/// Marks nodes down that were silent for too long.
fn lose_silent_nodes(tx: &mut Tx) {
    let now = tx.now;
    let silent: Vec<NodeId> = tx
        .state
        .watched_nodes()
        .filter(|node| silence_ends(tx.state, node).is_some_and(|at| at <= now))
        .map(|node| node.id)
        .collect();
    for id in silent {
        tx.emit(Event::NodeLinkChanged {
            node: id,
            link: Link::Down,
            at: now,
        });
        if tx.state.config.lost_node == LostNodePolicy::Requeue {
            let secs = tx.state.config.node_timeout_secs;
            give_up(tx, id, &format!("the node was silent for {secs} s"));
        }
    }
}

/// Whether a job may start, or the breaker may allow more, by the clock alone.
fn is_time_due(state: &State, now: Timestamp) -> bool {
    let hour_over = |at: Timestamp| at.plus_secs(3600) <= now;
    state
        .index
        .not_yet
        .first()
        .is_some_and(|(at, _)| *at <= now)
        || state
            .automatic
            .drains
            .first()
            .is_some_and(|(at, _)| hour_over(*at))
        || state
            .automatic
            .gpus
            .first()
            .is_some_and(|(at, ..)| hour_over(*at))
}

/// Most finished jobs, and arrays, that stay in memory for all of `min_job_age_secs`; beyond it the oldest
/// leave at `CROWDED_AGE_SECS`.
pub const KEPT_FINISHED: usize = 10_000;
const CROWDED_AGE_SECS: u32 = 60;

fn age_secs(state: &State, is_crowded: bool) -> i64 {
    let age = state.config.min_job_age_secs;
    i64::from(if is_crowded {
        age.min(CROWDED_AGE_SECS)
    } else {
        age
    })
}

/// How long a finished job stays, with so many older ones.
fn job_age_secs(state: &State, older: usize) -> i64 {
    age_secs(state, older + KEPT_FINISHED < state.index.finished.len())
}

fn array_age_secs(state: &State) -> i64 {
    age_secs(state, state.arrays.len() > KEPT_FINISHED)
}

/// After a restart clients repeat submissions without answers: their keys must be known, so nothing is
/// forgotten until then.
fn settled(state: &State) -> Timestamp {
    state.started.plus_secs(age_secs(state, true))
}

fn forget_finished(tx: &mut Tx) {
    let (state, now) = (&*tx.state, tx.now);
    if settled(state) > now {
        return;
    }
    let is_old = |(older, (ended, _)): &(usize, &(Timestamp, JobId))| {
        ended.plus_secs(job_age_secs(state, *older)) <= now
    };
    let jobs: Vec<JobId> = state
        .index
        .finished
        .iter()
        .enumerate()
        .take_while(is_old)
        .map(|(_, (_, id))| *id)
        .collect();
    let before = now.plus_secs(-array_age_secs(state));
    let arrays: Vec<JobId> = state
        .arrays
        .values()
        .filter(|array| array.is_over() && array.ended.is_some_and(|ended| ended <= before))
        .map(|array| array.id)
        .collect();
    if !jobs.is_empty() || !arrays.is_empty() {
        tx.emit(Event::JobsForgotten { jobs, arrays });
    }
}

/// When a silent node counts as lost. Silence counts from the controller's start at the earliest.
fn silence_ends(state: &State, node: &Node) -> Option<Timestamp> {
    let since = node.link_since.max(state.started);
    (node.link == Link::Silent).then(|| since.plus_secs(i64::from(state.config.node_timeout_secs)))
}

/// When a run must be ready, counted from the controller's start at the earliest.
fn prepare_ends(state: &State, placed: Timestamp) -> Timestamp {
    placed
        .max(state.started)
        .plus_secs(i64::from(state.config.prepare_timeout_secs))
}

/// As [`prepare_ends`], of a run whose image is pulled: counted from the newest report of a node's pull.
fn pull_ends(state: &State, run: RunId) -> Option<Timestamp> {
    last_heard(state, run).map(|heard| prepare_ends(state, heard))
}

/// The next time at which `Input::Wake` would do something; derived, never set.
pub fn next_deadline(state: &State) -> Option<Timestamp> {
    let silence = state
        .watched_nodes()
        .filter_map(|node| silence_ends(state, node))
        .min();
    let fence = state
        .watched_nodes()
        .filter_map(|node| next_call(state, node))
        .min();
    let prepare = state
        .index
        .preparing
        .iter()
        .find(|(_, run)| !state.memo.pulls.contains_key(run))
        .map(|(placed, _)| prepare_ends(state, *placed));
    let pulled = state
        .memo
        .pulls
        .keys()
        .filter_map(|run| pull_ends(state, *run))
        .min();
    let forget = state
        .index
        .finished
        .first()
        .map(|(ended, _)| ended.plus_secs(job_age_secs(state, 0)));
    let eligible = state.index.not_yet.first().map(|(at, _)| *at);
    let due = state.index.due.first().map(|(at, _)| *at);
    let arrays = state
        .arrays
        .values()
        .filter(|array| array.is_over())
        .filter_map(|array| array.ended)
        .min()
        .map(|ended| ended.plus_secs(array_age_secs(state)));
    let (forget, arrays) = (
        forget.map(|at| at.max(settled(state))),
        arrays.map(|at| at.max(settled(state))),
    );
    let work = [
        next_emptying(state),
        next_edge(state),
        gpu::repair::next_look(state),
        gpu::check::next_look(state),
        node::maintenance::next_clearing(state),
        reservation::upkeep::next_look(state),
    ];
    [
        silence, fence, prepare, pulled, forget, eligible, due, arrays,
    ]
    .into_iter()
    .chain(work)
    .flatten()
    .min()
}
