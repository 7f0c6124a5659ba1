//! Accounting over the API: runs, reports, utilization, traces. Answers come from the database's readers.

pub(crate) mod idle;
pub(crate) mod report;
pub(crate) mod run_column;
pub(crate) mod run_list;
pub(crate) mod run_row;
pub(crate) mod runs;
pub(crate) mod trace;
pub(crate) mod utilization;
