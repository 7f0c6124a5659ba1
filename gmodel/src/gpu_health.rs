//! The health of GPUs: readings, the signs that they raise, and the action that each sign calls for. Pure: readings come in
//! with their times, signs go out. Never acts; the controller's breaker and the node decide.

mod built_in;
pub mod catalogue;
pub mod reading;
pub mod repair;
pub mod status;
#[cfg(test)]
mod tests;
pub mod watch;

pub use catalogue::{
    Action, CATALOGUE_VERSION, Catalogue, CatalogueError, CatalogueOverrides, Evidence, Severity,
    SignCounter, SignKind, SignOverride, SignState,
};
pub use reading::{
    FabricHealth, GpuEventKind, GpuReading, ReadFailure, ReadFailureKind, RecoveryAdvice,
    compare_siblings, slow_reason,
};
pub use repair::{
    Repair, RepairAttempt, RepairContext, RepairOutcome, RepairPolicy, RepairStage, RepairStep,
};
pub use status::GpuHealthStatus;
pub use watch::{EventSource, GpuWatch, Sign, SignChange, Verdict, verdict};
