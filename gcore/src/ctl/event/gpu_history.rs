//! What an event says of one GPU: a line of its history.

use crate::ctl::event::Event;
use crate::ctl::owner::{CHECKS, SYSTEM};
use gmodel::gpu_order::GpuAction;
use gmodel::{NodeId, Timestamp};

/// A line of a GPU's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuHistoryLine {
    pub uuid: String,
    pub node: NodeId,
    /// `sick`, `ordered`: as [`GpuNoteKind`] is written, and the results of orders.
    pub kind: &'static str,
    pub text: String,
    pub at: Timestamp,
    /// The breaker counts it.
    pub automatic: bool,
}

impl Event {
    /// The line that the event adds to a GPU's history.
    pub fn of_gpu(&self) -> Option<GpuHistoryLine> {
        let (uuid, node, kind, text, at) = match self {
            Self::GpuNoted {
                node,
                uuid,
                kind,
                text,
                at,
                ..
            } => (uuid, node, kind.word(), text.clone(), at),
            // Its end has a line of its own.
            Self::GpuOrdered {
                what: GpuAction::Check(_),
                ..
            } => return None,
            Self::GpuOrdered {
                node,
                uuid,
                what,
                by,
                at,
            } => (uuid, node, "ordered", order_words(what, by), at),
            Self::GpuJudged {
                node,
                uuid,
                check,
                odd,
                at,
            } => (uuid, node, "odd", format!("check {check}: {odd}"), at),
            Self::GpuOrderEnded { node, done, at } if !done.error.is_empty() => {
                (&done.uuid, node, "refused", done.error.clone(), at)
            }
            _ => return None,
        };
        let automatic = match self {
            Self::GpuNoted { automatic, .. } => *automatic,
            Self::GpuOrdered {
                what: GpuAction::Repair,
                by,
                ..
            } => by == SYSTEM,
            Self::GpuOrdered {
                what: GpuAction::Quarantine { .. },
                by,
                ..
            } => by == CHECKS,
            _ => false,
        };
        Some(GpuHistoryLine {
            uuid: uuid.clone(),
            node: *node,
            kind,
            text,
            at: *at,
            automatic,
        })
    }
}

pub(crate) fn order_words(what: &GpuAction, by: &str) -> String {
    match what {
        GpuAction::Quarantine { reason } => format!("quarantined by {by}: {reason}"),
        GpuAction::Return => format!("returned by {by}"),
        GpuAction::Repair => "the breaker allows the next step of its repair".to_owned(),
        GpuAction::Cut { profiles } if profiles.is_empty() => format!("to be made whole, by {by}"),
        GpuAction::Cut { profiles } => format!("to be cut into {}, by {by}", profiles.join(",")),
        GpuAction::Check(_) | GpuAction::Unknown => format!("ordered by {by}"),
    }
}
