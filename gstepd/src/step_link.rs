//! The way between a step and its client: a connection that gstepd opens to grun inside the job, or a stream over gpud.

use std::io;
use std::os::fd::BorrowedFd;

use gmodel::supervise::{StepInput, StepOrder, StepOutput};
use nix::poll::PollFlags;

use crate::attached_link::AttachedLink;
use crate::dialled_link::DialledLink;
use crate::life::BootMillis;

pub enum StepLink {
    Dialled(DialledLink),
    Attached(AttachedLink),
}

impl StepLink {
    /// As the order has it; the client of a stream has until then to come.
    pub fn open(order: &StepOrder, until: BootMillis) -> anyhow::Result<StepLink> {
        if order.connect.is_empty() {
            return Ok(Self::Attached(AttachedLink::new(
                until,
                order.detached_secs,
            )));
        }
        let mut link = DialledLink::open(&order.connect, &order.certificate)?;
        link.send(&StepOutput::Hello {
            step: order.step,
            node_index: order.node_index,
            key: order.key.clone(),
        });
        Ok(Self::Dialled(link))
    }

    pub fn poll_fd(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match self {
            Self::Dialled(link) => Some((link.fd(), link.wants())),
            Self::Attached(link) => Some((link.fd()?, link.wants())),
        }
    }

    pub fn deadline(&self) -> Option<BootMillis> {
        match self {
            Self::Dialled(_) => None,
            Self::Attached(link) => link.deadline(),
        }
    }

    pub fn is_connected(&self) -> bool {
        match self {
            Self::Dialled(link) => link.is_connected(),
            Self::Attached(link) => link.is_connected(),
        }
    }

    pub fn has_room(&self) -> bool {
        match self {
            Self::Dialled(link) => link.has_room(),
            Self::Attached(link) => link.has_room(),
        }
    }

    pub fn is_flushed(&self) -> bool {
        match self {
            Self::Dialled(link) => link.is_flushed(),
            Self::Attached(link) => link.is_flushed(),
        }
    }

    pub fn send(&mut self, output: &StepOutput) {
        match self {
            Self::Dialled(link) => link.send(output),
            Self::Attached(link) => link.send(output),
        }
    }

    /// Moves the bytes that can be moved. An error is the end of the link.
    pub fn service(&mut self, now: BootMillis) -> io::Result<Vec<StepInput>> {
        match self {
            Self::Dialled(link) => link.service(),
            Self::Attached(link) => link.service(now),
        }
    }

    /// Everything was sent: the other side reads to the end of the stream.
    pub fn finish(self) {
        match self {
            Self::Dialled(link) => link.finish(),
            Self::Attached(link) => drop(link),
        }
    }

    pub fn attached(&mut self) -> Option<&mut AttachedLink> {
        match self {
            Self::Attached(link) => Some(link),
            Self::Dialled(_) => None,
        }
    }
}
