//! The job that a step is of, and what its environment says of the step.

use crate::environment::{self, describes_job};
use crate::step::{gpus_per_task_of_job, own_job};
use crate::step_args::StepArgs;
use crate::step_turn::TasksOfJob;
use gcli::Failure;
use gmodel::JobId;
use std::collections::BTreeMap;

/// A component of the job around, by its number.
fn component(number: u32) -> Result<JobId, Failure> {
    let variable = |name: &str| environment::own(&format!("SLURM_{name}"));
    let id = variable(&format!("JOB_ID_HET_GROUP_{number}")).and_then(|id| id.parse().ok());
    id.ok_or_else(|| {
        Failure::usage(match variable("HET_SIZE") {
            Some(size) => format!(
                "--het-group {number}: this job has {size} components, numbered from 0"
            ),
            None => format!(
                "--het-group {number}: grun does not run in a job of unlike parts. Ask for one by gsub A-OPTIONS : B-OPTIONS SCRIPT"
            ),
        })
    })
}

/// The job that the step is of.
pub(crate) struct TargetJob {
    pub id: String,
    /// Whether grun runs inside it, so that the environment describes it.
    pub is_around: bool,
    /// Another component of the job around: its nodes reach this one as those of the job do.
    pub is_beside: bool,
    /// Of an allocation of grun's own: what describes it.
    pub variables: BTreeMap<String, String>,
}

impl TargetJob {
    /// The component of the job around with this number, or the job that is given, or the one around.
    pub fn of(args: &StepArgs) -> Result<Self, Failure> {
        let number = args.het_group.as_ref().and_then(|named| named.0.first());
        let component = number.map(|number| component(*number)).transpose()?;
        let id = component.or(args.jobid);
        let id = id.map_or_else(own_job, |job| Ok(job.to_string()))?;
        let is_around = own_job().is_ok_and(|around| around == id);
        Ok(Self {
            is_around,
            is_beside: component.is_some() && !is_around,
            variables: BTreeMap::new(),
            id,
        })
    }

    /// One that the environment says nothing of.
    pub fn elsewhere(id: String) -> Self {
        Self {
            id,
            is_around: false,
            is_beside: false,
            variables: BTreeMap::new(),
        }
    }

    /// Whether grun runs on a node of it, or of another of its components: the shell of salloc describes its job, and may stand anywhere.
    pub fn is_here(&self) -> bool {
        (self.is_around || self.is_beside) && environment::own("SLURMD_NODENAME").is_some()
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
