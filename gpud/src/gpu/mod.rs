//! The GPUs of this node: discovery, health and repair, checks, shares, slices, and use by runs.

pub mod catalogue;
pub mod check;
pub mod check_book;
mod check_output;
pub mod check_program;
pub mod driver_files;
pub mod fence;
pub mod health;
pub mod imex;
pub mod job_files;
pub mod mig;
mod mig_cut;
mod mps_control;
pub mod order;
pub mod scrub;
pub mod share;
pub mod table;
pub mod use_book;
pub mod watch;
pub mod watch_thread;
