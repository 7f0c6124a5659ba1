//! The controller's state machine: `handle` decides, `apply` changes, `desired` tells the nodes.
//!
//! ```text
//! PENDING --RunPlaced--> RUNNING --RunEnded--> (COMPLETING) --RunSettled--> COMPLETED | FAILED | ...
//!    ^                                |
//!    +----------- requeue ------------+
//! ```

mod admission;
mod adopt;
mod apart;
mod apply;
mod breaker;
mod cancel;
mod check;
pub mod command;
mod deadline;
mod dependency;
mod desired;
pub mod event;
mod gpu_check;
mod gpu_gone;
mod gpu_history;
mod gpu_order;
mod gpu_outlier;
mod gpu_repair;
mod gpu_share;
mod handle;
mod hold;
mod identity;
mod idle;
mod imex;
mod join;
mod late_specs;
mod limits;
mod lost_node;
mod maintenance;
mod mig;
mod mirror;
mod node_admin;
mod node_health;
mod node_report;
pub mod node_words;
pub mod outcome;
pub mod past;
mod placement;
mod policy;
mod policy_check;
mod preempt;
mod request_size;
mod requeue;
mod reservation;
mod reservation_upkeep;
mod reserved_nodes;
mod rows;
mod run_end;
mod several_partitions;
mod snapshot;
pub mod state;
mod step;
mod step_share;
mod stop;
mod submit;
mod suspend;
mod targets;
mod update;
mod usage;
mod waiting;
mod wake;

pub use admission::NORMAL_QOS;
pub use adopt::MAX_ADOPTED;
pub use apart::Apart;
pub use apply::apply;
pub use breaker::open_breakers;
pub use check::{Violation, check};
pub use command::{
    Actor, CancelSignal, Command, Input, NodeReport, Refusal, RefusalCode, Reply, StepAsk,
    StepNode, Target, TargetResult,
};
pub use dependency::{Dependent, PastJob, Wait, Waits};
pub use desired::desired;
pub use gpu_history::GpuHistoryLine;
pub use handle::{RESTORE_GAP, handle};
pub use identity::{SILENT_LIFE, TWO_MACHINES, has_open_runs};
pub use idle::{
    BY as IDLE_POLICY, IdleOrder, idle_orders, idle_spells, idle_words,
    policy_of as idle_policy_of, words as idle_part_words,
};
pub use imex::imex_channel;
pub use late_specs::LateSpecs;
pub use limits::{Minutes, Tally};
pub use lost_node::{FenceOrder, fence_orders, fence_words};
pub use mirror::Mirror;
pub use node_health::paused as node_paused;
pub use policy::imported as imported_policy;
pub use policy_check::{policy_faults, unknown_accounts};
pub use preempt::checkpoint_of;
pub use reservation::{reservation_of, reservations_over};
pub use snapshot::{nvlink_domain, sched_node, snapshot, snapshot_of};
pub use submit::{DEFAULT_LIMIT_SECS, complete};
pub use wake::{KEPT_FINISHED, next_deadline};

pub use event::{Event, JobChange, PolicyChange, Touched};
pub use rows::Rows;
pub use state::{Array, Job, Node, Run, State};

/// Who acts, holds a job or drains a node where nobody asked for it.
const SYSTEM: &str = "system";

#[cfg(test)]
mod tests;
