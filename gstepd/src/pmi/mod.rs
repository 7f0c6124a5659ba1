//! What the ranks of a step on this node are served with, so that they find each other: PMI, spoken by the supervisor itself on a socket
//! pair for each rank, or PMIx, spoken by a process of the step's. Never waits for a rank.

mod pmi_ranks;
mod pmix_message;
mod pmix_rank;
mod pmix_ranks;
mod pmix_server;
mod pmix_state;
mod server;
mod wire;
mod words;

use std::os::fd::{BorrowedFd, OwnedFd};

use gmodel::launch_order::LaunchOrder;
use gmodel::parallel::MpiType;
use gmodel::supervise::StepOrder;
use nix::poll::PollFlags;

use crate::step_account::StepAccount;
use crate::step_link::StepLink;
use crate::step_task::Job;
use pmi_ranks::PmiRanks;
use pmix_ranks::PmixRanks;

pub use pmix_rank::{become_program, wait_for_server};
pub use pmix_server::serve;

/// All ranks of one step on this node.
pub enum RankServer {
    Pmi(Box<PmiRanks>),
    Pmix(Box<PmixRanks>),
}

/// A task's end of its socket.
pub struct RankEnd {
    pub fd: OwnedFd,
    /// `NAME=value` of what the task is told.
    pub variables: Vec<String>,
    /// It is told more by the socket, before it becomes its program.
    pub waits: bool,
}

impl RankServer {
    /// None where the step has no such ranks.
    pub fn open(order: &StepOrder, job: &Job<'_>, account: &StepAccount) -> Option<Self> {
        match order.parallel.mpi? {
            MpiType::None => None,
            // sshd and the end of a forwarded port are no ranks.
            _ if order.helper.is_some() => None,
            MpiType::Pmi2 => Some(Self::Pmi(Box::new(PmiRanks::open(order, job.order)))),
            MpiType::Pmix => Some(Self::Pmix(Box::new(PmixRanks::open(order, job, account)))),
        }
    }

    /// Makes the socket of a rank that is about to start.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn connect(&mut self, local: usize) -> std::io::Result<RankEnd> {
        match self {
            Self::Pmi(ranks) => ranks.connect(local),
            Self::Pmix(ranks) => ranks.connect(local),
        }
    }

    pub fn poll_fds(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        match self {
            Self::Pmi(ranks) => ranks.poll_fds().collect(),
            Self::Pmix(ranks) => ranks.poll_fd().into_iter().collect(),
        }
    }

    /// Reads what the ranks ask, and answers.
    pub fn service(&mut self) {
        match self {
            Self::Pmi(ranks) => ranks.service(),
            Self::Pmix(ranks) => ranks.service(),
        }
    }

    /// A task has ended, and all that it said was read.
    pub fn ended(&mut self, local: usize) {
        match self {
            Self::Pmi(ranks) => ranks.ended(local),
            Self::Pmix(ranks) => ranks.ended(local),
        }
    }

    /// What other nodes have at a fence. The client's word is the user's, so anything may come.
    pub fn exchanged(&mut self, piece: &[u8], is_last: bool) {
        match self {
            Self::Pmi(ranks) => ranks.exchanged(piece, is_last),
            Self::Pmix(ranks) => ranks.exchanged(piece, is_last),
        }
    }

    /// What another node asks or answers apart from fences.
    pub fn directed(&mut self, node: u32, bytes: &[u8]) {
        if let Self::Pmix(ranks) = self {
            ranks.directed(node, bytes);
        }
    }

    /// It has judged how each task ended that has.
    pub fn is_settled(&self) -> bool {
        match self {
            Self::Pmi(_) => true,
            Self::Pmix(ranks) => ranks.is_settled(),
        }
    }

    /// True when something was sent.
    pub fn tell(&mut self, link: &mut StepLink) -> bool {
        match self {
            Self::Pmi(ranks) => ranks.tell(link),
            Self::Pmix(ranks) => ranks.tell(link),
        }
    }
}

/// Job and number that MPI knows the step by on all its nodes.
fn known_as(order: &StepOrder, job: &LaunchOrder) -> (u64, u32) {
    let own = (job.run.map_or(0, |run| run.job.0), order.step);
    order.parallel.known_as.unwrap_or(own)
}
