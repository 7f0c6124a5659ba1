//! Runs that wait for their image: what their nodes tell of the pull, for listings, and the time that it gives a run to get ready.
//!
//! Decides nothing about the pull: its node ends one that takes too long. A node that tells of it again and again is at work.

use crate::ctl::event::Event;
use crate::ctl::state::{Member, NodePull, State};
use crate::ctl::tx::Tx;
use gmodel::image_pull::PullReport;
use gmodel::{NodeId, RunId, Timestamp};

/// Takes what a node tells. Of runs that are ready there, stop, or are not there, nothing counts.
pub(crate) fn take(tx: &mut Tx, node: NodeId, reports: Vec<PullReport>) {
    for PullReport { run: id, progress } in reports {
        let waits = tx.run(id).is_some_and(|run| {
            let is_late = |member: &Member| !member.is_ready() && member.end().is_none();
            run.stop.is_none() && run.outcome.is_none() && run.member(node).is_some_and(is_late)
        });
        if waits {
            tx.emit(Event::RunPullSeen {
                run: id,
                node,
                progress,
                at: tx.now,
            });
        }
    }
}

/// The node that is least far with the image of a run, if the run waits for it.
pub fn slowest_pull(state: &State, run: RunId) -> Option<(NodeId, NodePull)> {
    let known = state.memo.pulls.get(&run)?;
    let rank = |pull: &NodePull| (pull.progress.unpacks, pull.progress.percent());
    known
        .iter()
        .min_by_key(|(_, pull)| rank(pull))
        .map(|(node, pull)| (*node, *pull))
}

/// When a node last told of the image of a run that its nodes make ready.
pub(crate) fn last_heard(state: &State, run: RunId) -> Option<Timestamp> {
    let known = state.memo.pulls.get(&run)?;
    let placed = state.run(run)?.placed;
    let last = known.values().map(|pull| pull.at).max();
    last.filter(|_| state.index.preparing.contains(&(placed, run)))
}
