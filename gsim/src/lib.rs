//! A whole simulated cluster over the real state machines and the real scheduler, in virtual time.
//!
//! Everything that can go wrong goes wrong by a seed; then it is calm and all must come to rest (after
//! TigerBeetle's simulator and FoundationDB's). Pure: no clock, no I/O, no threads.

pub mod act;
pub mod bench;
pub mod board;
pub mod cluster;
pub mod cluster_file;
pub mod controller;
mod csv_rows;
mod daemon;
pub mod experiment;
pub mod fuzz;
mod gpu_watch;
pub mod gzip;
pub mod hardware;
pub mod health;
pub mod history;
pub mod inputs;
pub mod ledger;
pub mod machine;
pub mod measures;
pub mod node_gpus;
pub mod outcome;
pub mod pass_bench;
pub mod policy_file;
pub mod prng;
mod recorded_trace;
pub mod replay;
pub mod scenario;
pub mod sim_event;
pub mod site_file;
pub mod store;
mod test_bed;
pub mod trace;
pub mod trace_run;
pub mod trace_spec;
pub mod truth;
