//! The commands that look and cancel: `gq`, `gdel`, `gnodes`, `gacct`.
//!
//! Each formats what the REST API answers; none of them decides anything about jobs or nodes.

pub mod accounting;
mod bill;
pub mod cancel;
mod difference_listing;
pub mod efficiency;
mod event_listing;
mod health_listing;
mod job_column;
pub mod job_filter;
mod job_format;
pub mod job_lookup;
pub mod job_record;
mod node_column;
mod node_filter;
pub mod node_record;
pub mod nodes;
mod one_job;
mod output_file;
mod partition_listing;
pub mod partition_record;
mod priority_listing;
pub mod queue;
mod queue_listing;
mod queue_row;
pub mod reservation_record;
mod run_column;
mod run_format;
mod run_line;
mod start_listing;
mod step_listing;
mod token;
mod usage_report;
mod web;
