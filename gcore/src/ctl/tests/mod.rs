//! The controller's behaviour as stories, and as properties of random ones.

mod admission;
mod allocations;
mod arrays;
mod dependencies;
mod faults;
mod gpu_checks;
pub(super) mod gpu_pool;
mod gpu_repair;
mod gpu_share;
mod health;
mod idle;
mod imex;
mod kept_planner;
mod lifecycle;
mod maintenance;
mod multi_node;
mod partitions;
mod parts;
mod policy;
mod pool;
mod preemption;
mod promises;
mod random;
mod refusals;
mod requests;
mod requeue;
mod reservation_limits;
mod reservations;
mod steps;
mod suspension;
mod tokens;
mod usage;
mod words;
mod world;

pub(super) use crate::ctl::check as check_state;
