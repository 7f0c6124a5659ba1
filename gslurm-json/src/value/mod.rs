//! What columns, records and JSON under Slurm's names print alike of a row.

pub mod job;
pub mod node;
pub mod partition;
pub mod reservation;
