//! What happens to a node, and the facts that follow from it.

use gmodel::checkpoint::CheckpointMark;
use gmodel::run::{DesiredState, RunEnd, RunPhase};
use gmodel::{Fence, NodeLife, RunId, Timestamp};
use std::collections::BTreeSet;

/// Something that happened outside. Inputs in the past tense are durable, or survive the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeInput {
    /// First input of a daemon: what its spool holds.
    Scanned {
        life: NodeLife,
        fence: Fence,
        runs: Vec<(RunId, SpooledRun)>,
    },
    /// The controller's target. `orders`: runs with a launch order at hand.
    DesiredReceived {
        desired: DesiredState,
        orders: BTreeSet<RunId>,
    },
    /// The fence is durable, and so are the orders of the runs the action named.
    Recorded { fence: Fence },
    /// The supervisor of the run is there and waits for `go`.
    Prepared { run: RunId },
    /// The supervisor started the user's process.
    Started { run: RunId, started: Timestamp },
    /// The run has a newer checkpoint mark, durable in its spool.
    Marked { run: RunId, mark: CheckpointMark },
    /// `exit.json` is durable: by the supervisor, or by the daemon for a run that has none (prepare failed, abandoned,
    /// supervisor lost, node rebooted).
    Ended { run: RunId, end: RunEnd },
    /// No process, cgroup, mount or private directory of the run is left.
    Cleaned { run: RunId },
    /// The run's files are removed.
    Forgotten { run: RunId },
}

/// A run as the spool and its supervisor have it at the daemon's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpooledRun {
    /// Its order is there; no supervisor was ever started.
    Accepted,
    /// Its supervisor answers: waiting for `go`.
    Ready,
    Running {
        started: Timestamp,
    },
    /// `exit.json` is there; `clean` when the cleaning was finished too.
    Ended {
        end: RunEnd,
        clean: bool,
    },
}

/// A fact about the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    Scanned {
        life: NodeLife,
        fence: Fence,
        runs: Vec<(RunId, SpooledRun)>,
    },
    TargetCame {
        desired: DesiredState,
        orders: BTreeSet<RunId>,
    },
    /// It came late, or from a controller that was replaced.
    OldTargetRefused {
        fence: Fence,
        newest: Fence,
    },
    /// `accepted`: new runs; `refused`: runs that cannot be started here, with the end to report.
    TargetObeyed {
        desired: DesiredState,
        accepted: Vec<RunId>,
        refused: Vec<(RunId, RunEnd)>,
    },
    PhaseReached {
        run: RunId,
        phase: RunPhase,
    },
    MarkSet {
        run: RunId,
        mark: CheckpointMark,
    },
    RunForgotten {
        run: RunId,
    },
}
