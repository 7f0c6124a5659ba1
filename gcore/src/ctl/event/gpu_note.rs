//! What happened to a GPU, as its node's inventory shows.

use serde::{Deserialize, Serialize};

/// What happened to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuNoteKind {
    Appeared,
    /// From another node, where it was out of service.
    Moved,
    /// In the history of the node it left; the node that has it now decides its state.
    Left,
    Gone,
    /// An operator removed it from the missing GPUs.
    Forgotten,
    /// Out of service, or for another reason than before.
    Sick,
    Noted,
    Well,
    Reset,
    Boot,
    BurnIn,
    ToBeReplaced,
    /// Its next repair step waits for the pool's breaker.
    Stopped,
    Cut,
    #[serde(other)]
    Unknown,
}

impl GpuNoteKind {
    /// The word in history and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Appeared => "appeared",
            Self::Moved => "moved",
            Self::Left => "left",
            Self::Gone => "gone",
            Self::Forgotten => "forgotten",
            Self::Sick => "sick",
            Self::Noted => "noted",
            Self::Well => "well",
            Self::Reset => "reset",
            Self::Boot => "boot",
            Self::BurnIn => "burn_in",
            Self::ToBeReplaced => "to_be_replaced",
            Self::Stopped => "stopped",
            Self::Cut => "cut",
            Self::Unknown => "unknown",
        }
    }
}
