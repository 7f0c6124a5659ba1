//! From a row of a trace to a job's request, in the terms of the cluster that it is run on.

use crate::hardware::Hardware;
use crate::trace::TraceJob;
use crate::trace_run::{BASE, Runtime, Settings};
use gmodel::config::ClusterConfig;
use gmodel::gpu_request::{GpuAlternative, GpuAmount, GpuKind, GpuRequest};
use gmodel::job::MemRequest;
use gmodel::{CommonSpec, JobSpec};

/// What of a cluster decides how a row is read.
#[derive(Clone, Copy, Debug)]
pub struct ClusterTraits {
    /// Its GPUs are of types; else any will do.
    names_types: bool,
    /// GPUs of the largest node.
    largest_gpus: u64,
}

impl ClusterTraits {
    pub fn of(hardware: &Hardware) -> Self {
        let largest_gpus = hardware
            .nodes
            .iter()
            .map(|node| u64::from(node.shape.gpus))
            .max()
            .unwrap_or(0);
        Self {
            names_types: hardware.names_types(),
            largest_gpus,
        }
    }
}

/// A row as the submission it was.
pub fn spec_of(
    job: &TraceJob,
    config: &ClusterConfig,
    settings: &Settings,
    cluster: ClusterTraits,
) -> JobSpec {
    let believed_ms = match settings.runtime {
        Runtime::Limit => job.limit_ms,
        Runtime::Actual => job.run_ms,
    };
    let mut spec = match &job.asked {
        Some(asked) => {
            let begin = settings.begin.unwrap_or(BASE);
            let mut spec = JobSpec::clone(asked);
            (spec.begin, spec.deadline) = (
                asked.begin.map(|at| begin.plus_millis(at.0)),
                asked.deadline.map(|at| begin.plus_millis(at.0)),
            );
            spec
        }
        None => spec_of_row(job, config, cluster),
    };
    // Without one the request stays as it was, and the controller decides.
    if let Some(ms) = believed_ms {
        spec.time_limit_secs = Some(u32::try_from((ms + 999) / 1000).unwrap_or(u32::MAX - 1));
    }
    spec
}

/// The request that follows from what a row says.
fn spec_of_row(job: &TraceJob, config: &ClusterConfig, cluster: ClusterTraits) -> JobSpec {
    let nodes = job.nodes_among(cluster.largest_gpus);
    let mut spec = JobSpec::from(CommonSpec {
        account: job.account.to_string(),
        qos: job.qos.to_string(),
        ..CommonSpec::default()
    });
    if config.partition(&job.partition).is_some() {
        spec.partition = job.partition.to_string();
    }
    spec.launch.work_dir = "/".into();
    spec.requeue = Some(true);
    let request = &mut spec.request;
    (request.nodes_min, request.nodes_max) = (nodes, nodes);
    let cpus = job.cpus().max(u64::from(nodes)) as u32;
    if cpus.is_multiple_of(nodes) {
        request.ntasks = nodes;
        request.cpus_per_task = Some(cpus / nodes);
    } else {
        request.ntasks = cpus;
    }
    // A resource that the trace does not name is not requested.
    request.mem = MemRequest::PerNode(if job.mem_mib > 0 {
        job.mem_mib << 20
    } else {
        1
    });
    let amount = if job.gpu_milli.is_multiple_of(1000) {
        GpuAmount::Whole((job.gpu_milli / 1000) as u32)
    } else {
        GpuAmount::Share {
            milli: job.gpu_milli as u32,
        }
    };
    if job.gpu_milli > 0 {
        let mut alternatives: Vec<GpuAlternative> = job
            .gpu_types
            .iter()
            .filter(|_| cluster.names_types)
            .map(|kind| GpuAlternative {
                kind: GpuKind::Type(kind.to_string()),
                amount: amount.clone(),
            })
            .collect();
        if alternatives.is_empty() {
            alternatives.push(GpuAlternative {
                kind: GpuKind::Any,
                amount,
            });
        }
        request.gpus = Some(GpuRequest { alternatives });
    }
    spec
}
