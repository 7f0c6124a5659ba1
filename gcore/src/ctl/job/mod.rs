//! Verbs on jobs: submit, hold, release, update, requeue, cancel. Each refuses before its first event.
//!
//! What becomes of a job's run is in `run`; what an event changes is in `apply`.

pub(crate) mod admission;
pub(crate) mod cancel;
pub(crate) mod completion;
pub(crate) mod deadline;
pub(crate) mod dependency;
pub(crate) mod feasibility;
pub(crate) mod hold;
pub(crate) mod limits;
pub(crate) mod partition;
pub(crate) mod partition_list;
pub(crate) mod partition_nodes;
pub(crate) mod parts;
pub(crate) mod parts_fit;
pub(crate) mod pending_reason;
pub(crate) mod request_bounds;
pub(crate) mod request_size;
pub(crate) mod requeue;
pub(crate) mod submit;
pub(crate) mod targets;
pub(crate) mod update;
