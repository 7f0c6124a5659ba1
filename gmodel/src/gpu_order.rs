//! What the controller wants done to a GPU besides running jobs on it: taken out, taken back, mended, cut, checked. Orders are numbered,
//! stand until the node says how they ended, and are obeyed once however often they come.

use crate::gpu_check::{CheckProgram, CheckReport};
use serde::{Deserialize, Serialize};

/// Longest reason or error.
pub const MAX_TEXT_BYTES: usize = 1000;
/// Open orders of one node.
pub const MAX_OPEN: usize = 256;

/// One order. A GPU has at most one open: a newer one takes its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuOrder {
    /// Of the event that gave it: later orders have higher numbers.
    pub number: u64,
    pub uuid: String,
    #[serde(flatten)]
    pub what: GpuAction,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum GpuAction {
    /// Out of service until it is returned.
    Quarantine { reason: String },
    /// Back into service, if it looks well.
    Return,
    /// The step of the repair ladder that the node waits for may be taken: the pool's breaker allows it.
    Repair,
    /// An empty GPU is cut into these MIG profiles, in the order of their placements; none: whole again.
    Cut { profiles: Vec<String> },
    /// A program is run on it that finds out whether it works as it should; it gives way to a job at once.
    Check(CheckProgram),
    /// From a newer controller: answered with an error.
    #[serde(other)]
    Unknown,
}

/// How an order ended. Said again whenever the order comes again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuOrderDone {
    pub number: u64,
    pub uuid: String,
    /// Why it could not be carried out; empty when it was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Of a check: what came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Box<CheckReport>>,
}

impl GpuOrderDone {
    /// The answer to an order; `error` is empty when it was carried out.
    pub fn new(order: &GpuOrder, error: impl Into<String>) -> Self {
        Self {
            number: order.number,
            uuid: order.uuid.clone(),
            error: error.into(),
            check: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_of_a_newer_controller_is_read_as_unknown() {
        let order: GpuOrder =
            serde_json::from_str(r#"{"number":7,"uuid":"GPU-1","what":"polish","cloth":"silk"}"#)
                .unwrap();
        assert_eq!((order.number, order.what), (7, GpuAction::Unknown));
        let cut = GpuOrder {
            number: 8,
            uuid: "GPU-1".into(),
            what: GpuAction::Cut {
                profiles: vec!["3g.40gb".into()],
            },
        };
        let text = serde_json::to_string(&cut).unwrap();
        assert_eq!(serde_json::from_str::<GpuOrder>(&text).unwrap(), cut);
        let program = CheckProgram {
            program: "/usr/libexec/check".into(),
            timeout_secs: 300,
            ..CheckProgram::default()
        };
        let check = GpuOrder {
            what: GpuAction::Check(program),
            ..cut
        };
        let text = serde_json::to_string(&check).unwrap();
        assert_eq!(serde_json::from_str::<GpuOrder>(&text).unwrap(), check);
    }
}
