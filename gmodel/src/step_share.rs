//! What a step of a job has for itself while it runs: CPUs, memory and GPUs of its job that no other step with such a
//! share has meanwhile. Steps without one share all of the job. Source: `--exact`, `--gpus`, `--mem` in srun(1).

use crate::gpu_request::{GpuAmount, GpuKind, GpuRequest};
use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepShareRequest {
    /// 0: its tasks share the job's CPUs.
    pub cpus_per_task: u32,
    /// On each node; 0 where the memory is shared.
    pub mem_bytes: u64,
    /// For each CPU of the step, beside `mem_bytes`.
    pub mem_per_cpu_bytes: u64,
    /// For each GPU of the step, beside the others.
    pub mem_per_gpu_bytes: u64,
    /// `None`: its tasks see all GPUs of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<StepGpus>,
    /// What it gets it shares with other steps: it waits for none, and none for it. Source: `--overlap` in srun(1).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub overlap: bool,
}

/// GPUs of a step: whole ones, MIG slices or shares, as its job holds them. None at all is an answer, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepGpus {
    pub per: GpuCountUnit,
    pub count: u32,
    /// Only those of this type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
}

/// What a number of GPUs counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuCountUnit {
    Step,
    Node,
    Task,
}

/// What a step got, and holds until it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepHold {
    pub step: u32,
    /// `ADDRESS:PORT` of its grun: when nothing listens there any more, grun was killed and the step is over.
    pub connect: String,
    pub nodes: Vec<StepHoldOnNode>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepHoldOnNode {
    /// Place of the node in its job's allocation.
    pub place: u32,
    /// Positions among the CPUs that the job has there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<u32>,
    pub mem_bytes: u64,
    /// Positions among its GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<u32>,
}

impl StepGpus {
    /// A number of GPUs, with their type where one is said. A step takes what its job holds, so there is nothing to choose
    /// among, and nothing to divide.
    ///
    /// # Errors
    /// Alternatives, profiles and shares, as a sentence.
    pub fn of(per: GpuCountUnit, ask: &GpuRequest) -> Result<Self, &'static str> {
        let [one] = &ask.alternatives[..] else {
            return match ask.alternatives.is_empty() {
                true => Ok(Self {
                    per,
                    count: 0,
                    gpu_type: None,
                }),
                false => Err(
                    "a step takes GPUs that its job holds: name one number, and one type at most",
                ),
            };
        };
        let GpuAmount::Whole(count) = one.amount else {
            return Err(
                "a step takes slices and shares as its job holds them: give their number alone",
            );
        };
        let gpu_type = match &one.kind {
            GpuKind::Any => None,
            GpuKind::Type(name) => Some(name.clone()),
        };
        Ok(Self {
            per,
            count,
            gpu_type,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_a_number_of_gpus_of_one_type() {
        let read = |text: &str| {
            StepGpus::of(GpuCountUnit::Node, &GpuRequest::parse(text).unwrap())
                .map(|gpus| (gpus.count, gpus.gpu_type))
        };
        assert_eq!(read("2"), Ok((2, None)));
        assert_eq!(read("0"), Ok((0, None)));
        assert_eq!(read("h100"), Ok((1, Some("h100".into()))));
        assert!(read("h100:1|a100:1").unwrap_err().contains("one number"));
        assert!(read("0.5").unwrap_err().contains("slices and shares"));
        assert!(read("1g.10gb:2").is_err());
    }
}
