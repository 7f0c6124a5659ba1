//! Amounts of GPUs by type, in thousandths of a GPU: guarantees, limits, reservations, expectations.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The key of [`GpuAmounts`] that stands for GPUs of all types together.
pub const ALL_GPUS: &str = "gpu";

/// Thousandths of GPUs by type, lower case; `"gpu"` counts all types together. A type that is not named
/// is bounded only by `"gpu"`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuAmounts(pub BTreeMap<String, u64>);

impl GpuAmounts {
    /// So many whole GPUs of all types together.
    pub fn all(gpus: u64) -> Self {
        Self(BTreeMap::from([(
            ALL_GPUS.to_owned(),
            gpus.saturating_mul(1000),
        )]))
    }
    /// Thousandths of a type, if it is named.
    pub fn of(&self, gpu_type: &str) -> Option<u64> {
        self.0.get(gpu_type).copied()
    }
    pub fn total(&self) -> Option<u64> {
        self.of(ALL_GPUS)
    }
    /// Of a type, or of all types together: what is said of these, else the sum of the types.
    pub fn amount(&self, gpu_type: &str) -> u64 {
        match self.of(gpu_type) {
            Some(milli) => milli,
            None if gpu_type == ALL_GPUS => self.0.values().sum(),
            None => 0,
        }
    }
    /// The first type of which these are more than a limit: with both, thousandths.
    pub fn beyond<'a>(&self, limit: &'a GpuAmounts) -> Option<(&'a str, u64, u64)> {
        let mut limits = limit
            .0
            .iter()
            .map(|(gpu_type, most)| (gpu_type.as_str(), self.amount(gpu_type), *most));
        limits.find(|(_, milli, most)| milli > most)
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// As people read it: `32`, `h100:16,gpu:32`; of no type `0`.
    pub fn text(&self) -> String {
        match (self.0.len(), self.total()) {
            (0, _) => "0".to_owned(),
            (1, Some(all)) => milli_text(all),
            _ => {
                let parts = self.0.iter();
                let parts = parts.map(|(kind, milli)| format!("{kind}:{}", milli_text(*milli)));
                parts.collect::<Vec<_>>().join(",")
            }
        }
    }
}

/// Thousandths as people write them: `16`, `0.5`.
pub fn milli_text(milli: u64) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
