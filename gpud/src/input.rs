//! What tasks and threads tell the daemon's loop: one channel, bounded.

use crate::run::supervisor::Supervisor;
use gmodel::gpu_order::GpuOrderDone;
use gmodel::idle::IdleReport;
use gmodel::image_pull::PullReport;
use gmodel::run::RunEnd;
use gmodel::supervise::SupervisorReport;
use gmodel::{Fence, RunId};
use gwire::node_protocol::{ToController, ToNode};
use std::collections::BTreeSet;
use tokio::sync::mpsc;

/// Happenings that wait for the loop; senders wait beyond it.
pub const QUEUE: usize = 256;

/// What tasks and threads tell the loop.
#[derive(Debug)]
pub enum DaemonInput {
    LinkUp {
        connection: u64,
        sender: mpsc::Sender<ToController>,
    },
    LinkDown {
        connection: u64,
    },
    Frame {
        connection: u64,
        frame: ToNode,
    },
    Step {
        run: RunId,
        connection: u64,
        words: SupervisorReport,
    },
    StepGone {
        run: RunId,
        connection: u64,
    },
    /// The fence is durable; `failed` are the runs without a stored order.
    Recorded {
        fence: Fence,
        failed: BTreeSet<RunId>,
        written: bool,
    },
    /// A supervisor answers, or the run's end is on record.
    Supervisor {
        run: RunId,
        outcome: Result<Supervisor, Box<RunEnd>>,
    },
    Cleaned {
        run: RunId,
        done: bool,
    },
    Forgotten {
        run: RunId,
        done: bool,
    },
    FencesBroken {
        runs: Vec<RunId>,
    },
    /// A GPU of each is sick, as its spool says.
    GpusFailed {
        runs: Vec<RunId>,
    },
    /// The use of the run's GPUs is on record: its end can be told.
    Measured {
        run: RunId,
        end: Box<RunEnd>,
    },
    /// Orders for GPUs that were carried out, or could not be: on disk, to be told.
    GpuOrdersDone {
        done: Vec<GpuOrderDone>,
    },
    /// How idle the GPUs of runs are.
    GpusIdle {
        runs: Vec<IdleReport>,
    },
    /// How far the image of a run is.
    Pulls {
        report: PullReport,
    },
    /// It was slow, and answers.
    SupervisorActs {
        run: RunId,
    },
    /// GPUs or the room in the spool may have changed; comes every ten seconds.
    InventoryChanged,
}
