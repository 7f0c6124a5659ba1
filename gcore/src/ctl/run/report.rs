//! Reports of runs: phases and checkpoint marks. A phase never goes back.

use crate::ctl::event::Event;
use crate::ctl::run::gang::{advance, advance_after};
use crate::ctl::tx::Tx;
use gmodel::checkpoint::{CheckpointMark, MAX_NOTE_BYTES};
use gmodel::run::RunPhase;
use gmodel::{NodeId, RunId};

/// Takes a checkpoint mark that is newer than the known one of the run on its node. Its time is the node's,
/// bounded by the run's start, earlier marks and now. So work that was safe while the controller was away is
/// not lost.
pub(crate) fn take_mark(tx: &mut Tx, node: NodeId, run: RunId, mark: Option<CheckpointMark>) {
    let (Some(mut mark), Some(record)) = (mark, tx.run(run)) else {
        return;
    };
    let Some(member) = record.member(node) else {
        return;
    };
    // Members written by an earlier release have no number.
    let alone = record
        .mark
        .as_ref()
        .filter(|_| record.members.len() == 1)
        .map_or(0, |known| known.number);
    if member.marked.max(alone) < mark.number && record.outcome.is_none() {
        if mark.note.len() > MAX_NOTE_BYTES {
            mark.note = mark.note.chars().take(MAX_NOTE_BYTES / 4).collect();
        }
        let started = record.started.or(record.go).unwrap_or(record.placed);
        let earliest = record
            .mark
            .as_ref()
            .map_or(started, |known| known.at.max(started))
            .min(tx.now);
        let at = mark.at.clamp(earliest, tx.now);
        tx.emit(Event::RunMarked {
            run,
            node,
            mark,
            at,
        });
    }
}

/// Takes a phase that is new.
pub(crate) fn take(tx: &mut Tx, node: NodeId, run: RunId, phase: RunPhase) {
    let Some(member) = tx.run(run).and_then(|r| r.member(node)) else {
        return;
    };
    if member
        .phase
        .as_ref()
        .is_some_and(|known| known.rank() >= phase.rank())
    {
        return;
    }
    // The first reported end counts; a later report may only add that the run is clean.
    let phase = match (phase, member.end()) {
        (RunPhase::Clean(_), Some(end)) => RunPhase::Clean(end.clone()),
        (phase, _) => phase,
    };
    // A short run is first reported when it is over.
    let started = match &phase {
        RunPhase::Running { .. } => true,
        phase => phase.end().is_some_and(|end| end.started.is_some()) && member.end().is_none(),
    };
    tx.emit(Event::RunReported {
        run,
        node,
        phase,
        at: tx.now,
    });
    if started && tx.node(node).is_some_and(|node| !node.strikes.is_empty()) {
        tx.emit(Event::NodeStrikesCleared { node });
    }
    advance_after(tx, run, node);
}

/// Writes off every run on a lost node.
pub(crate) fn forfeit_runs(tx: &mut Tx, id: NodeId, text: &str) {
    for run in tx.state.runs_on(id) {
        let member = tx.state.member(run, id);
        if member.is_some_and(|member| !member.is_settled()) {
            let text = text.to_owned();
            tx.emit(Event::RunForfeited {
                run,
                node: id,
                text,
                at: tx.now,
            });
            advance(tx, run);
        }
    }
}
