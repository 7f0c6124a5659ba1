//! `gadm`: administration, and what owners may do to their own jobs.

use std::process::ExitCode;

mod admin;
mod controller;
mod export_trace;
mod gpu;
mod idle;
mod job;
mod node;
mod pages;
mod policy;
mod ruled_table;
mod sacctmgr;
mod sandbox;
mod scontrol;
mod sdiag;
mod share;
mod slurm_names;
mod sreport;
mod sshare;
mod token;
mod topology;
mod topology_conf;
mod topology_yaml;

fn main() -> ExitCode {
    gcli::failure::run("gadm", || admin::main(std::env::args_os()))
}
