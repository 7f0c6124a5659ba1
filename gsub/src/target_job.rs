//! The job that a step is of, and what its environment says of the step.

use crate::environment::{self, describes_job};
use crate::step::{gpus_per_task_of_job, own_job};
use crate::step_turn::TasksOfJob;
use gcli::Failure;
use std::collections::BTreeMap;

/// The job that the step is of.
pub(crate) struct TargetJob {
    pub id: String,
    /// Whether grun runs inside it, so that the environment describes it.
    pub is_around: bool,
    /// Of an allocation of grun's own: what describes it.
    pub variables: BTreeMap<String, String>,
}

impl TargetJob {
    pub fn of(given: Option<gmodel::JobId>) -> Result<Self, Failure> {
        let id = given.map_or_else(own_job, |job| Ok(job.to_string()))?;
        Ok(Self {
            is_around: own_job().is_ok_and(|around| around == id),
            variables: BTreeMap::new(),
            id,
        })
    }

    /// Whether grun runs on a node of it: the shell of salloc describes its job, and may stand anywhere.
    pub fn is_here(&self) -> bool {
        self.is_around && environment::own("SLURMD_NODENAME").is_some()
    }

    /// A variable of the environment, unless it describes another job.
    pub fn variable(&self, name: &str) -> Option<String> {
        let own = || environment::own(name).filter(|_| self.is_around || !describes_job(name));
        self.variables.get(name).cloned().or_else(own)
    }

    pub fn tasks(&self) -> TasksOfJob {
        TasksOfJob {
            cpus: self
                .variable("SLURM_CPUS_PER_TASK")
                .and_then(|text| text.parse().ok())
                .unwrap_or(1),
            gpus: gpus_per_task_of_job(|name| self.variable(name)),
        }
    }
}
