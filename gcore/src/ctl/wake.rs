//! Time passing: silent nodes, runs that do not get ready, finished jobs to forget.

use super::cancel::stop;
use super::deadline::drop_late;
use super::dependency::{Dependent, look_again};
use super::event::Event;
use super::{gpu_check, gpu_repair};
use super::handle::Tx;
use super::lost_node::{give_up, next_call, try_again};
use super::maintenance;
use super::preempt::{empty_nodes, next_emptying};
use super::reservation::{self, next_edge};
use super::state::{Node, State};
use gmodel::config::LostNode;
use gmodel::node::Link;
use gmodel::run::StopWhy;
use gmodel::{JobId, NodeId, RunId, Timestamp};

pub(super) fn handle(tx: &mut Tx) {
    let now = tx.now;
    let silent: Vec<NodeId> = tx
        .state
        .watched_nodes()
        .filter(|node| silence_ends(tx.state, node).is_some_and(|at| at <= now))
        .map(|node| node.id)
        .collect();
    for id in silent {
        tx.emit(Event::NodeLinkChanged { node: id, link: Link::Down, at: now });
        if tx.state.config.lost_node == LostNode::Requeue {
            let secs = tx.state.config.node_timeout_secs;
            give_up(tx, id, &format!("the node was silent for {secs} s"));
        }
    }
    try_again(tx);
    let late: Vec<RunId> = tx
        .state
        .preparing
        .iter()
        .take_while(|(placed, _)| prepare_ends(tx.state, *placed) <= now)
        .map(|(_, run)| *run)
        .collect();
    for run in late {
        stop(tx, run, StopWhy::PrepareTimeout, "system");
    }
    empty_nodes(tx);
    gpu_repair::wake(tx);
    gpu_check::wake(tx);
    let due: Vec<JobId> = tx.state.due.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect();
    for id in &due {
        look_again(tx, Dependent::Job(*id), None);
        look_again(tx, Dependent::Array(*id), None);
        drop_late(tx, *id);
    }
    let first_look = maintenance::clear(tx);
    let edge = next_edge(tx.state).is_some_and(|at| at <= now);
    if edge {
        reservation::pass(tx);
    }
    forget_finished(tx);
    if edge
        || first_look
        || !due.is_empty()
        || tx.state.not_yet.first().is_some_and(|(at, _)| *at <= now)
        || tx.state.automatic_drains.first().is_some_and(|(at, _)| at.plus_secs(3600) <= now)
        || tx.state.automatic_gpus.first().is_some_and(|(at, ..)| at.plus_secs(3600) <= now)
    {
        tx.emit(Event::TimeReached { until: now });
    }
}

fn forget_finished(tx: &mut Tx) {
    let before = tx.now.plus_secs(-i64::from(tx.state.config.min_job_age_secs));
    if tx.state.started > before {
        // Clients that lost their answer with the old process ask again: their keys must be known.
        return;
    }
    let jobs: Vec<JobId> = tx
        .state
        .finished
        .iter()
        .take_while(|(ended, _)| *ended <= before)
        .map(|(_, id)| *id)
        // A run on a lost node still refers to its job.
        .filter(|id| tx.state.jobs.get(*id).is_some_and(|job| job.live.is_none()))
        .collect();
    if jobs.is_empty() && tx.state.arrays.is_empty() {
        return;
    }
    let arrays: Vec<JobId> = tx
        .state
        .arrays
        .values()
        .filter(|array| array.is_over() && array.ended.is_some_and(|ended| ended <= before))
        .map(|array| array.id)
        .collect();
    if !jobs.is_empty() || !arrays.is_empty() {
        tx.emit(Event::JobsForgotten { jobs, arrays });
    }
}

/// When a silent node counts as failed. Silence counts from the controller's own start too.
fn silence_ends(state: &State, node: &Node) -> Option<Timestamp> {
    let since = node.link_since.max(state.started);
    (node.link == Link::Silent)
        .then(|| since.plus_secs(i64::from(state.config.node_timeout_secs)))
}

/// When a run must be ready. A controller that was away could not hear that it is: its own start counts.
fn prepare_ends(state: &State, placed: Timestamp) -> Timestamp {
    placed.max(state.started).plus_secs(i64::from(state.config.prepare_timeout_secs))
}

/// The next time at which `Input::Wake` would do something; derived, never set.
pub fn next_deadline(state: &State) -> Option<Timestamp> {
    let config = &state.config;
    let silence = state.watched_nodes().filter_map(|node| silence_ends(state, node)).min();
    let fence = state.watched_nodes().filter_map(|node| next_call(state, node)).min();
    let prepare = state.preparing.first().map(|(placed, _)| prepare_ends(state, *placed));
    let age = i64::from(config.min_job_age_secs);
    let forget = state.finished.first().map(|(ended, _)| ended.plus_secs(age));
    let eligible = state.not_yet.first().map(|(at, _)| *at);
    let due = state.due.first().map(|(at, _)| *at);
    let arrays = state
        .arrays
        .values()
        .filter(|array| array.is_over())
        .filter_map(|array| array.ended)
        .min()
        .map(|ended| ended.plus_secs(age));
    let settled = state.started.plus_secs(age);
    let (forget, arrays) = (forget.map(|at| at.max(settled)), arrays.map(|at| at.max(settled)));
    let work = [next_emptying(state), next_edge(state), gpu_repair::next_look(state), gpu_check::next_look(state), maintenance::next_clearing(state)];
    [silence, fence, prepare, forget, eligible, due, arrays].into_iter().chain(work).flatten().min()
}
