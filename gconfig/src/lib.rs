//! The administrator's TOML: text in, configuration out, or every mistake with file, line, column and a caret.
//!
//! Owns the keys, defaults and bounds of `gpuctld.toml`, `topology.toml`, `partitions.d` and `policy.d`, for the controller and
//! for gsim alike. Reads no file, and never decides what a setting does. Words are slurm.conf(5)'s where it has one.

pub mod cluster;
mod diagnostics;
pub mod error;
mod expect;
pub mod idle;
mod mig;
pub mod name;
pub mod partition;
pub mod policy;
pub mod policy_check;
pub mod policy_text;
mod price;
mod record;
pub mod scheduling;
pub mod section;
mod time_zone;
pub mod topology;
