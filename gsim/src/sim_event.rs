//! What can happen in the simulated cluster, and the queue's order: by time, then by when an event was put in.

use crate::machine::{Order, Work};
use gcore::ctl::{NodeReport, Reply};
use gmodel::gpu_health::RepairStage;
use gmodel::run::{DesiredState, RunEnd};
use gmodel::{NodeId, RunId};
use gsched::Plan;

/// What a frame carries.
#[derive(Clone, Debug)]
pub enum Frame {
    Report(Box<NodeReport>),
    Orders {
        desired: DesiredState,
        orders: Vec<Order>,
    },
}

/// Something that will happen.
#[derive(Debug)]
pub enum SimEvent {
    Act(usize),
    ControllerStarts {
        restore: bool,
    },
    Tick,
    PlanMade {
        epoch: u64,
    },
    PlanEnters {
        epoch: u64,
        plan: Plan,
    },
    Asked {
        request: usize,
    },
    Answered {
        request: usize,
        answer: Result<Reply, ()>,
    },
    Dial {
        machine: usize,
        epoch: u64,
    },
    /// `stray`: a copy, or a frame of an older connection, that arrives all the same.
    FrameToController {
        connection: u64,
        epoch: u64,
        frame: Frame,
        stray: bool,
    },
    FrameToNode {
        connection: u64,
        epoch: u64,
        frame: Frame,
        stray: bool,
    },
    ControllerSeesEnd {
        connection: u64,
        epoch: u64,
    },
    NodeSeesEnd {
        connection: u64,
    },
    WorkDone {
        machine: usize,
        epoch: u64,
        work: Work,
    },
    RunEnds {
        machine: usize,
        boot: u32,
        run: RunId,
        timer: u64,
        end: RunEnd,
    },
    DaemonMissesSupervisor {
        machine: usize,
        epoch: u64,
        run: RunId,
    },
    PowerOn {
        machine: usize,
    },
    DaemonStarts {
        machine: usize,
    },
    GpuReturns {
        machine: usize,
    },
    /// The daemon looks at its GPUs; `number` of the look that was asked for last.
    GpuLook {
        machine: usize,
        epoch: u64,
        number: u64,
    },
    /// The site's program on a GPU is over.
    GpuProgramEnds {
        machine: usize,
        epoch: u64,
        gpu: usize,
        stage: RepairStage,
        failure: Option<String>,
    },
    /// A call of the site's fence program has come to its end; the controller that made it may be gone.
    FenceEnds {
        node: NodeId,
        number: u64,
        epoch: u64,
    },
    /// The operators' work once it is calm.
    Caretaker,
}

pub(crate) struct QueueEntry {
    pub(crate) at: i64,
    pub(crate) number: u64,
    pub(crate) what: SimEvent,
}

impl PartialEq for QueueEntry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for QueueEntry {}

impl PartialOrd for QueueEntry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueueEntry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
