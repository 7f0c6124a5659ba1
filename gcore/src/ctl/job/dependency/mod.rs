//! Dependencies: what a pending job still waits for, kept with its record and checked again when the job that
//! decides begins or ends.
//!
//! The conditions are those of sbatch(1). An index of the state has the dependants of each job, so an end
//! costs only its dependants. A condition that was met is forgotten, as in Slurm: open ones outlive the jobs
//! that they name.

pub(crate) mod fate;
pub(crate) mod readiness;
pub(crate) mod reason;
pub(crate) mod resolve;
pub(crate) mod settle;
