//! Node reports: hello, phases, inventory, silence; and what follows for the node's runs.

use crate::ctl::command::NodeReport;
use crate::ctl::event::Event;
use crate::ctl::node::inventory::take_inventory;
use crate::ctl::owner::SYSTEM;
use crate::ctl::run::gang::stop;
use crate::ctl::run::report::{take, take_mark};
use crate::ctl::state::Member;
use crate::ctl::tx::Tx;
use crate::ctl::{gpu, node};
use gmodel::node::{Inventory, Link};
use gmodel::run::{EndCause, RunEnd, RunPhase, RunReport, StopCause};
use gmodel::{Fence, NodeId, NodeLife, RunId};
use std::collections::BTreeMap;

pub(crate) fn handle(tx: &mut Tx, id: NodeId, report: NodeReport) {
    if !tx.state.nodes.contains(id) {
        return;
    }
    match node::bounds::bounded(tx.state, id, report, tx.now) {
        NodeReport::Hello {
            life,
            fence,
            inventory,
            runs,
        } => {
            let runs = by_our_clock(tx, runs);
            look_at_fence(tx, id, fence);
            node::identity::settled(tx, id);
            hello(tx, id, life, inventory, runs);
            take_back_unheard(tx, id, fence);
        }
        NodeReport::Adopt {
            life,
            inventory,
            runs,
            orders,
        } => {
            let runs = by_our_clock(tx, runs);
            crate::ctl::node::adoption::handle(tx, id, &life, inventory, runs, orders);
        }
        NodeReport::Runs { runs } => {
            for report in by_our_clock(tx, runs) {
                take_mark(tx, id, report.run, report.mark);
                take(tx, id, report.run, report.phase);
            }
            // A boot may have waited for these runs.
            if tx.state.index.watched.contains(&id) {
                gpu::repair::look(tx, id);
            }
        }
        NodeReport::Idle { runs } => crate::ctl::run::idle::take(tx, id, runs),
        NodeReport::Pulls { runs } => crate::ctl::run::image_pull::take(tx, id, runs),
        NodeReport::Inventory { inventory } => take_inventory(tx, id, inventory),
        NodeReport::Obeyed { fence } => {
            if fence.incarnation == tx.state.incarnation {
                tx.emit(Event::NodeObeyed {
                    node: id,
                    generation: fence.generation,
                });
            }
        }
        NodeReport::GpuOrders { done } => {
            gpu::order::ended(tx, id, done);
            gpu::repair::look(tx, id);
        }
        NodeReport::Certificate { epoch } => node::join::raise(tx, id, epoch),
        NodeReport::Claimed { owner, text } => node::identity::claimed(tx, id, &owner, &text),
        NodeReport::Gone => disconnected(tx, id),
    }
}

/// The connection is gone: the node is silent from now.
fn disconnected(tx: &mut Tx, id: NodeId) {
    if tx.node(id).is_some_and(|node| node.link == Link::Up) {
        tx.emit(Event::NodeLinkChanged {
            node: id,
            link: Link::Silent,
            at: tx.now,
        });
    }
}

/// Ages are taken from nodes, not instants: clocks may be set at any time.
fn by_our_clock(tx: &Tx, runs: Vec<RunReport>) -> Vec<RunReport> {
    runs.into_iter()
        .map(|report| report.heard_at(tx.now))
        .collect()
}

fn hello(tx: &mut Tx, id: NodeId, life: NodeLife, inventory: Inventory, runs: Vec<RunReport>) {
    tx.emit(Event::NodeHello {
        node: id,
        life: life.clone(),
        at: tx.now,
    });
    take_inventory(tx, id, inventory);
    for report in &runs {
        take_mark(tx, id, report.run, report.mark.clone());
    }
    let mut reported: BTreeMap<RunId, RunPhase> = runs
        .into_iter()
        .map(|report| (report.run, report.phase))
        .collect();
    for run in tx.state.runs_on(id) {
        let Some(member) = tx.state.member(run, id) else {
            continue;
        };
        let phase = match reported.remove(&run) {
            Some(phase) => Some(phase),
            None => lost(member, &life),
        };
        if let Some(phase) = phase {
            take(tx, id, run, phase);
        }
    }
}

/// Owner of the drain of a node that obeyed an order which this controller never gave.
const FENCE_OWNER: &str = "system:fence";

/// A fence above all that were given. In an adoption window an older state was restored once more: the
/// incarnation rises above the node's, or it would never obey again. At any other time the node is drained
/// until its fence is one that was given; its reports change nothing.
fn look_at_fence(tx: &mut Tx, id: NodeId, fence: Fence) {
    let known = tx.state.newest_fence();
    let Some(node) = tx.node(id) else {
        return;
    };
    if fence <= known {
        return node::identity::lift(tx, id, FENCE_OWNER);
    }
    let window = tx
        .state
        .adoption
        .as_ref()
        .filter(|window| fence.incarnation < window.max_incarnation);
    if window.is_some() && tx.state.adopts_from(node, tx.now) {
        let (incarnation, next_job) = (fence.incarnation + 1, tx.state.next_job);
        tx.emit(Event::Restored {
            incarnation,
            next_job,
            opens: None,
            at: tx.now,
        });
    } else {
        let text = format!(
            "it obeyed order {}/{} and this controller has given none above {}/{}: an older database was put back beside gpuctld restore, \
             or the machine lies. Its runs go on; it gets no work. If the database is an older one: stop gpuctld and run gpuctld restore \
             --from with the database that is in place. If not: empty the machine's spool and join it again",
            fence.incarnation, fence.generation, known.incarnation, known.generation
        );
        node::identity::mark(tx, id, FENCE_OWNER, &text);
    }
}

/// Runs placed before a restore that their node does not name: the node may have ended and forgotten them
/// since the backup, so they must not be sent again. They are requeued, with a new attempt.
fn take_back_unheard(tx: &mut Tx, id: NodeId, fence: Fence) {
    if fence.incarnation >= tx.state.incarnation || fence == Fence::default() {
        return;
    }
    for run in tx.state.runs_on(id) {
        let member = tx.state.member(run, id);
        if member.is_some_and(|member| member.phase.is_none()) {
            stop(tx, run, StopCause::Requeued, SYSTEM);
        }
    }
}

/// The end of a run that its node's hello does not name.
fn lost(member: &Member, life: &NodeLife) -> Option<RunPhase> {
    let (cause, text) = if member.life.boot != life.boot {
        (EndCause::NodeRebooted, "the node was rebooted")
    } else if member.life.spool != life.spool {
        (EndCause::SpoolLost, "the node lost its spool directory")
    } else {
        match &member.phase {
            // Not accepted yet: it will be sent.
            None => return None,
            Some(RunPhase::Clean(_)) => return None,
            Some(_) => (EndCause::SpoolLost, "the node no longer knows the run"),
        }
    };
    let end = RunEnd {
        cause,
        text: text.into(),
        ..RunEnd::default()
    };
    Some(RunPhase::Clean(end.into()))
}
