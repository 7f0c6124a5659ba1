//! The controller's state machine: `handle` decides, `apply` changes, `desired` tells the nodes.
//!
//! ```text
//! PENDING --RunPlaced--> RUNNING --RunEnded--> (COMPLETING) --RunSettled--> COMPLETED | FAILED | ...
//!    ^                                |
//!    +----------- requeue ------------+
//! ```

mod apply;
mod bill;
mod check;
pub mod command;
mod desired;
pub mod event;
mod gpu;
mod handle;
mod job;
mod node;
mod owner;
mod plan;
mod policy;
mod reservation;
mod rows;
mod run;
pub mod state;
mod token;
mod tx;
mod wake;

pub use apply::apply;
pub use check::check;
pub use command::{
    Actor, AllocationEnd, BillChange, CancelSignal, Command, Input, NodeReport, ProgramAsk,
    Refusal, RefusalCode, Reply, StartedStep, StepAsk, StepNode, StepPart, Target, TargetResult,
    TokenChange,
};
pub use desired::desired;
pub use event::{Event, GpuHistoryLine, JobChange, PolicyChange, TouchedRows};
pub use gpu::imex::imex_channel;
pub use handle::handle;
pub use job::admission::NORMAL_QOS;
pub use job::completion::DEFAULT_LIMIT_SECS;
pub use job::submit::{complete, complete_parts};
pub use node::adoption::{MAX_ADOPTED, RESTORE_GAP};
pub use node::bounds::{MAX_NODE_CPUS, MAX_NODE_GPUS, MAX_NODE_MEM_BYTES, bounded_use};
pub use node::breaker::open_breakers;
pub use node::fencing::{FenceOrder, fence_orders, fence_words};
pub use node::identity::{SILENT_LIFE, TWO_MACHINES, has_open_runs};
pub use node::pause::paused as node_paused;
pub use owner::IDLE_POLICY;
pub use plan::mirror::Mirror;
pub use plan::snapshot::{nvlink_domain, sched_node, snapshot, snapshot_of};
pub use policy::edit::imported as imported_policy;
pub use policy::faults::{policy_faults, unknown_accounts};
pub use policy::partition::set_until_reload;
pub use reservation::window::{reservation_of, reservations_over};
pub use rows::Rows;
pub use run::idle_policy::{
    IdleOrder, idle_orders, idle_spells, idle_words, policy_of as idle_policy_of,
    words as idle_part_words,
};
pub use run::image_pull::slowest_pull;
pub use run::stop_order::checkpoint_of;
pub use state::{
    Array, EntryId, ForgottenJob, HeldTasks, Job, Node, OpenDependency, OpenTerm, RecentSpecs, Run,
    State, SubmissionTimes, Tally,
};
pub use token::{TokenUse, token_use};
pub use wake::{KEPT_FINISHED, next_deadline};

#[cfg(test)]
mod tests;
