//! Strikes against nodes that fail to start jobs, and the drains that follow.
//!
//! Three node errors from two users or jobs drain a node (from two users, for errors about a user); a failed
//! prolog does at once; the breaker bounds it. A node that may not be drained is paused instead
//! (`node/pause.rs`). Errors about one GPU count against that GPU.

use crate::ctl::event::Event;
use crate::ctl::node;
use crate::ctl::node::breaker::Loss;
use crate::ctl::node::pause::{STRIKE_SOURCES, STRIKES, is_the_nodes, words};
use crate::ctl::owner::SYSTEM;
use crate::ctl::state::{Job, Member, Run, Strike};
use crate::ctl::tx::Tx;
use gmodel::gpu_order::{GpuAction, MAX_TEXT_BYTES};
use gmodel::node::HoldMark;
use gmodel::run::{EndCause, LaunchFailureSubject};
use gmodel::{NodeId, Timestamp};
use std::collections::BTreeSet;

/// The strikes that an ended run leaves on its nodes.
pub(crate) fn strikes_of(run: &Run, job: &Job, now: Timestamp) -> Vec<(NodeId, Strike)> {
    let strike = |member: &Member| {
        let user = job.spec.user.name.clone();
        let strike = |text: &str, about, enough| Strike {
            run: run.id,
            user,
            at: now,
            text: text.to_owned(),
            about,
            enough,
        };
        match member.end() {
            Some(end) if end.cause == EndCause::PrologFailed => {
                Some(strike(&end.text, LaunchFailureSubject::Node, true))
            }
            // Temporary, and the daemon's own, or a registry's.
            Some(end)
                if end.cause == EndCause::LaunchNode
                    && matches!(
                        end.subject(),
                        LaunchFailureSubject::Shortage | LaunchFailureSubject::Registry
                    ) =>
            {
                None
            }
            Some(end) if end.cause == EndCause::LaunchNode => {
                Some(strike(&end.text, end.subject(), false))
            }
            _ if run.is_late(member.node) => Some(strike(
                "not ready in time",
                LaunchFailureSubject::Node,
                false,
            )),
            _ => None,
        }
    };
    run.members
        .iter()
        .filter_map(|member| Some((member.node, strike(member)?)))
        .collect()
}

pub(crate) fn strike(tx: &mut Tx, id: NodeId, strike: Strike) {
    let (text, about) = (strike.text.clone(), strike.about.clone());
    tx.emit(Event::NodeStruck { node: id, strike });
    if let LaunchFailureSubject::Gpu { uuid } = about {
        take_out(tx, id, &uuid);
    }
    let Some(node) = tx.node(id) else {
        return;
    };
    let drained = node.drains.iter().any(|mark| mark.owner == SYSTEM);
    if drained
        || !is_the_nodes(&node.strikes)
        || !node::breaker::allows(tx.state, id, Loss::Node, tx.now)
    {
        return;
    }
    let reason = if node.strikes.iter().any(|strike| strike.enough) {
        text
    } else {
        words(&node.strikes)
    };
    let mark = HoldMark {
        owner: SYSTEM.into(),
        reason,
        since: tx.now,
    };
    tx.emit(Event::NodeDrained {
        node: id,
        mark,
        automatic: true,
    });
}

/// Three errors about one GPU, from two jobs: it goes out of service, as far as the breaker allows.
fn take_out(tx: &mut Tx, id: NodeId, uuid: &str) {
    let Some(node) = tx.node(id) else {
        return;
    };
    let about = || {
        node.strikes
            .iter()
            .filter(|strike| matches!(&strike.about, LaunchFailureSubject::Gpu { uuid: known } if known == uuid))
    };
    let jobs: BTreeSet<_> = about().map(|strike| strike.run.job).collect();
    let board = node
        .gpus
        .iter()
        .find(|gpu| gpu.info.uuid == uuid)
        .map(|gpu| gpu.info.slice.as_ref().map_or(uuid, |slice| &slice.gpu));
    let Some(board) = board.filter(|_| about().count() >= STRIKES && jobs.len() >= STRIKE_SOURCES)
    else {
        return;
    };
    let in_service = node
        .gpus
        .iter()
        .any(|gpu| gpu.info.uuid == board && gpu.present && gpu.info.fault.is_empty());
    let ordered = node.gpu_work.orders.iter().any(|order| order.uuid == board);
    if !in_service || ordered || !node::breaker::allows(tx.state, id, Loss::Gpu(board), tx.now) {
        return;
    }
    let last = about().last().map_or("", |strike| &*strike.text);
    let mut reason = format!(
        "{} launch errors about it, the last: {last}",
        about().count()
    );
    reason.truncate(reason.floor_char_boundary(MAX_TEXT_BYTES));
    let (board, at) = (board.to_owned(), tx.now);
    tx.emit(Event::GpuOrdered {
        node: id,
        uuid: board,
        what: GpuAction::Quarantine { reason },
        by: SYSTEM.into(),
        at,
    });
}
