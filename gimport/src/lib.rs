//! What a site of Slurm has, as gpupool's own: text in, TOML and a report out.
//!
//! Reads slurm.conf, gres.conf, what sacctmgr dumps and what sacct lists. Reads no file itself, asks no controller and changes
//! nothing. Source of the words: slurm.conf(5), gres.conf(5), sacctmgr(1), sacct(1).

mod advice;
pub mod association;
mod cluster;
mod conf;
pub mod conf_text;
mod draft;
pub mod flat_file;
mod gres;
mod node;
mod partition;
mod qos_table;
pub mod report;
pub mod sacct;
pub mod site;
mod site_draft;
mod tres;
