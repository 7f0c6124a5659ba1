//! After a restore: the runs that only the node remembers, and the orders that it kept of them.
//!
//! Whether a run is adopted is the core's word.

use super::end::LinkEnd;
use crate::pki::NodeIdentity;
use gcore::ctl::MAX_ADOPTED;
use gcore::ctl::state::State;
use gmodel::launch_order::LaunchOrder;
use gmodel::run::RunReport;
use gmodel::{Fence, NodeId, RunId};
use gwire::frame::{self, FrameReader};
use gwire::node_protocol::{ToController, ToNode};
use std::collections::BTreeSet;
use tokio::io::{AsyncRead, AsyncWrite};

/// Log lines about runs of one node that are not adopted.
const MAX_LOGGED: usize = 100;

/// Runs that a node from before a restore holds and the state does not know, while the node may bring them along.
pub(super) fn unknown_runs(
    state: &State,
    node: NodeId,
    fence: Fence,
    runs: &[RunReport],
) -> Vec<RunId> {
    let ours = state.newest_fence();
    let from_before =
        fence != Fence::default() && (fence.incarnation < ours.incarnation || fence > ours);
    let may_bring = state
        .nodes
        .get(node)
        .is_some_and(|node| state.adopts_from(node, crate::core_thread::now()));
    let unknown = runs
        .iter()
        .map(|report| report.run)
        .filter(|run| !state.runs.contains(*run));
    if from_before && may_bring {
        unknown.take(MAX_ADOPTED).collect()
    } else {
        Vec::new()
    }
}

/// Logs which runs of the node are not adopted: they are stopped.
pub(super) fn log_refused(
    state: &State,
    identity: &NodeIdentity,
    brought: &[RunId],
    with_seal: &BTreeSet<RunId>,
) {
    for run in brought
        .iter()
        .filter(|run| !state.runs.contains(**run))
        .take(MAX_LOGGED)
    {
        let why = match with_seal.contains(run) {
            true => "its order is older than the backup, or its job is over or another's by now",
            false => {
                "its order bears no seal of this controller for this node: it was made by an earlier release, or the machine lies"
            }
        };
        tracing::warn!(node = identity.name, %run, "not adopted, so the node is told to stop it: {why}");
    }
}

/// Asks for the orders of runs; what the node reports meanwhile is returned beside them.
pub(super) async fn ask_orders<R, W>(
    frames: &mut FrameReader<R>,
    sink: &mut W,
    runs: Vec<RunId>,
) -> Result<(Vec<LaunchOrder>, Vec<RunReport>), LinkEnd>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let asked = runs.len();
    frame::write(sink, &ToNode::TellOrders { runs }).await?;
    let (mut orders_of_node, mut reports) = (Vec::new(), Vec::new());
    loop {
        match frames.next().await?.ok_or(LinkEnd::Closed)? {
            ToController::Orders { orders, done } => {
                orders_of_node.extend(orders);
                if done || orders_of_node.len() > asked {
                    orders_of_node.truncate(asked);
                    return Ok((orders_of_node, reports));
                }
            }
            ToController::Runs { runs } if reports.len() < MAX_ADOPTED => reports.extend(runs),
            _ => {}
        }
    }
}
