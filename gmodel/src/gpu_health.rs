//! The health of GPUs: what is seen of one, which signs of trouble there are, and what each calls for. Pure: readings come in
//! with their times, signs go out. Never acts; the controller's one breaker and the node decide what is done.

pub mod reading;

pub use reading::{
    FabricHealth, GpuEventKind, Reading, RecoveryAdvice, Silence, SilenceKind, slow_reason,
};
