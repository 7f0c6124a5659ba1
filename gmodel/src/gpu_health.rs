//! The words of GPU health: what the driver shows of a GPU, the catalogue of signs with the action that each calls for, and the
//! status that a node reports. Decides nothing: `gcore::node::gpu_health` does.

mod built_in;
pub mod catalogue;
pub mod reading;
pub mod status;
#[cfg(test)]
mod tests;

pub use catalogue::{
    Action, CATALOGUE_VERSION, Catalogue, CatalogueError, CatalogueOverrides, Evidence, Severity,
    SignCounter, SignKind, SignOverride, SignState,
};
pub use reading::{
    EventSource, FabricHealth, GpuEvent, GpuEventKind, GpuHealth, GpuReading, ReadFailure,
    ReadFailureKind, RecoveryAdvice, compare_siblings, slow_reason,
};
pub use status::{GpuHealthStatus, RepairStage};
