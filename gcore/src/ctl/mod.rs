//! The controller's state machine: `handle` decides, `apply` changes, `desired` tells the nodes.
//!
//! ```text
//! PENDING --RunPlaced--> RUNNING --RunEnded--> (COMPLETING) --RunClosed--> COMPLETED | FAILED | ...
//!    ^                                |
//!    +----------- requeue ------------+
//! ```

pub mod command;
pub mod event;
pub mod state;

pub use command::{
    Actor, CancelSignal, Command, Input, NodeReport, Refusal, RefusalCode, Reply, Target,
    TargetResult,
};
pub use event::{Event, JobChange, Touched};
pub use state::{Array, Job, Node, Run, State};
