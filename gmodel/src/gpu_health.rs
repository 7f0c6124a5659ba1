//! The health of GPUs: what is seen of one, which signs of trouble there are, and what each calls for. Pure: readings come in
//! with their times, signs go out. Never acts; the controller's one breaker and the node decide what is done.

mod built_in;
pub mod catalogue;
pub mod reading;
pub mod repair;
pub mod standing;
#[cfg(test)]
mod tests;
pub mod watch;

pub use catalogue::{
    Action, CATALOGUE_VERSION, Catalogue, CatalogueError, CatalogueOverrides, Counted, Evidence,
    Severity, SignKind, SignOverride, StateSeen,
};
pub use reading::{
    FabricHealth, GpuEventKind, Reading, RecoveryAdvice, Silence, SilenceKind, compare_siblings,
    slow_reason,
};
pub use repair::{Attempt, Ended, Repair, RepairPolicy, Stage, Step, Surroundings};
pub use standing::GpuStanding;
pub use watch::{Change, EventSource, GpuWatch, Sign, Verdict, verdict};
