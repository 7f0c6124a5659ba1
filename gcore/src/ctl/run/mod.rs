//! Runs: placement, the end of allocations, suspension, preemption, idle policy, steps, the gang of a run's nodes, and its end.

pub(crate) mod allocation;
pub(crate) mod class;
pub(crate) mod end;
pub(crate) mod gang;
pub(crate) mod idle;
pub(crate) mod idle_policy;
pub(crate) mod image_pull;
pub(crate) mod parts;
pub(crate) mod placement;
pub(crate) mod preempt;
pub(crate) mod report;
pub(crate) mod run_times;
pub(crate) mod step;
pub(crate) mod step_layout;
pub(crate) mod step_programs;
pub(crate) mod step_share;
pub(crate) mod stop_order;
pub(crate) mod suspend;
pub(crate) mod time_limit;
pub(crate) mod verdict;
