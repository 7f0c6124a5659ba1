//! The end of a node's connection, and its cause.

use crate::node_claim;
use gwire::frame::FrameError;
use gwire::node_protocol::HEARTBEAT_SECS;
use std::time::Duration;

pub(super) const HEARTBEAT: Duration = Duration::from_secs(HEARTBEAT_SECS);
/// Silence that ends a connection.
pub(super) const SILENCE: Duration = Duration::from_secs(3 * HEARTBEAT_SECS);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkEnd {
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("no word for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("a newer connection of the node took its place")]
    Replaced,
    #[error("the node closed it")]
    Closed,
    #[error("the core refused a report: {0}")]
    Core(#[from] gcore::ctl::Refusal),
}

impl LinkEnd {
    /// The machine's kernel closed it, as when its daemon ends or it is booted.
    pub(super) fn is_by_machine(&self) -> bool {
        match self {
            Self::Closed => true,
            Self::Frame(error) => node_claim::is_closed(error),
            _ => false,
        }
    }
}
