//! `gadm`: administration, and what owners may do to their own jobs.
//!
//! Each noun has its module; `admin` reads the command line. Decides nothing: the controller does.

pub mod admin;
mod bill;
pub mod controller;
mod export_trace;
mod gpu;
mod idle;
mod import;
pub mod job;
pub mod node;
mod pages;
pub mod policy;
mod sandbox;
mod share;
mod slurm_names;
mod ssh_config;
mod token;
mod topology;
mod topology_conf;
mod topology_yaml;
mod webhook;
