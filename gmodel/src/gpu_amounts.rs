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
}
