//! The commands that look and cancel: `gq`, `gdel`, `gnodes`, `gacct`.
//!
//! Each formats what the REST API answers; none of them decides anything about jobs or nodes.

pub mod accounting;
mod bare_row;
pub mod cancel;
mod difference_listing;
mod efficiency;
mod health_listing;
mod job_column;
mod job_filter;
mod job_record;
mod node_column;
mod node_record;
pub mod nodes;
mod output_file;
mod partition_listing;
mod partition_record;
mod priority_listing;
pub mod queue;
mod queue_row;
pub mod record_listing;
mod reservation_record;
mod run_column;
mod run_line;
mod seff;
mod slurm_json;
mod sprio;
mod start_listing;
mod step_listing;
mod usage_report;
mod why_text;
