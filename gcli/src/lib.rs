//! How the commands behave: configuration, tables, times, errors, exit codes, man pages and completions.
//!
//! Everything that `gsub`, `gq`, `gdel`, `gnodes`, `gacct` and `gadm` do alike is here once; nothing here
//! knows what a job is.

pub mod answer;
pub mod client_config;
pub mod cluster_choice;
pub mod column_format;
pub mod command_line;
pub mod failure;
#[cfg(feature = "fake-controller")]
pub mod fake_controller;
pub mod local_time;
pub mod pages;
pub mod printable;
pub mod reason_page;
pub mod slurm_help;
pub mod slurm_name;
pub mod slurm_words;
pub mod ssh_keys;
pub mod table;
pub mod user_token;
pub mod why_text;

pub use client_config::{connect, connect_inside};
pub use cluster_choice::ClusterChoice;
pub use failure::{Failure, Outcome};
