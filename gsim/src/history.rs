//! A controller's trace as a history of jobs: what they held and how long they ran, so that another policy can be tried on
//! it. Built from the facts of a replay; what a policy makes of it is `experiment`'s affair.

use crate::hardware::{Hardware, HollowNode, NodeShape};
use crate::measures::{Measures, Setting};
use crate::trace::{Trace, TraceJob};
use crate::trace_run::{Fate, JobOutcome, Outcome};
use gcore::ctl::{Event, State};
use gmodel::gpu_request::GpuKind;
use gmodel::node::Role;
use gmodel::run::Allocation;
use gmodel::{JobId, JobSpec, JobState, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Jobs and their runs, as facts come in.
#[derive(Clone, Debug, Default)]
pub struct History {
    submissions: BTreeMap<JobId, Submission>,
    runs: BTreeMap<JobId, Ran>,
}

#[derive(Clone, Debug)]
struct Submission {
    spec: Arc<JobSpec>,
    limit_secs: Option<u32>,
    at: Timestamp,
}

/// The runs of one job (or array task).
#[derive(Clone, Debug)]
struct Ran {
    first_start: Timestamp,
    last_start: Timestamp,
    allocation: Allocation,
    ended: Option<Timestamp>,
    preemptions: u32,
    lost_gpu_secs: u64,
}

/// What a history was like, in the terms of a simulation.
#[derive(Debug)]
pub struct Told {
    pub trace: Trace,
    pub hardware: Hardware,
    /// As it really was.
    pub measures: Measures,
    /// First start of each job of the trace, milliseconds since its begin.
    pub starts_ms: Vec<i64>,
}

impl History {
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::JobSubmitted { id, spec, limit_secs, at, .. } => {
                let submission = Submission { spec: spec.clone(), limit_secs: *limit_secs, at: *at };
                self.submissions.insert(*id, submission);
            }
            Event::RunPlaced { run, allocation, at, .. } => {
                let ran = self.runs.entry(run.job).or_insert_with(|| Ran {
                    first_start: *at,
                    last_start: *at,
                    allocation: Vec::new(),
                    ended: None,
                    preemptions: 0,
                    lost_gpu_secs: 0,
                });
                ran.last_start = *at;
                ran.allocation.clone_from(allocation);
                ran.ended = None;
            }
            Event::RunEnded { run, outcome, .. } => {
                if let Some(ran) = self.runs.get_mut(&run.job) {
                    ran.last_start = outcome.started.unwrap_or(ran.last_start);
                    ran.ended = Some(outcome.ended.max(ran.last_start));
                    if outcome.state == JobState::Preempted {
                        ran.preemptions += 1;
                        ran.lost_gpu_secs += outcome.lost_gpu_secs;
                    }
                }
            }
            _ => {}
        }
    }

    /// All jobs whose last run ended, over the nodes that there were at the end.
    ///
    /// # Errors
    /// No job of the trace ended, or it knows no nodes.
    pub fn told(&self, state: &State) -> Result<Told, String> {
        let hardware = hardware(state)?;
        let ended = self.runs.iter().filter_map(|(id, ran)| Some((id, ran, ran.ended?, self.submission(*id)?)));
        let mut list: Vec<_> = ended.collect();
        list.sort_by_key(|(id, .., submission)| (submission.at, **id));
        let begin = list.first().map(|(.., submission)| submission.at);
        let begin = begin.ok_or("no job of the trace ended: there is nothing to try a policy on")?;
        let since = |at: Timestamp| at.since_millis(begin);
        let mut jobs = Vec::new();
        let mut outcome = Outcome::default();
        let mut starts_ms = Vec::new();
        for (id, ran, ended, submission) in list {
            jobs.push(trace_job(*id, ran, ended, submission, begin));
            starts_ms.push(since(ran.first_start));
            outcome.jobs.push(JobOutcome {
                fate: Fate::Finished,
                submit_ms: since(submission.at),
                start_ms: since(ran.first_start),
                last_start_ms: since(ran.last_start),
                end_ms: since(ended),
                preemptions: ran.preemptions,
                lost: u128::from(ran.lost_gpu_secs) * 1_000_000,
                ..JobOutcome::default()
            });
        }
        let trace = Trace { jobs };
        let setting = Setting { policy: "as it was".into(), cluster: hardware.describe(), notes: Vec::new() };
        let all: Vec<&TraceJob> = trace.jobs.iter().collect();
        let measures = Measures::of(setting, &[(&all[..], &outcome)]);
        Ok(Told { trace, hardware, measures, starts_ms })
    }

    /// Of a job, or of the array that a task belongs to.
    fn submission(&self, id: JobId) -> Option<&Submission> {
        let (first, submission) = self.submissions.range(..=id).next_back()?;
        let tasks = submission.spec.array.as_ref().map_or(1, |array| u64::from(array.len()));
        (id.0 - first.0 < tasks).then_some(submission)
    }
}

fn trace_job(id: JobId, ran: &Ran, ended: Timestamp, submission: &Submission, begin: Timestamp) -> TraceJob {
    let spec = &submission.spec;
    let types = spec.request.gpus.iter().flat_map(|ask| &ask.alternatives).filter_map(|one| match &one.kind {
        GpuKind::Type(name) => Some(name.as_str().into()),
        GpuKind::Any => None,
    });
    TraceJob {
        id: id.to_string().into(),
        user: spec.user.name.as_str().into(),
        account: spec.account.as_str().into(),
        partition: spec.partition.as_str().into(),
        qos: spec.qos.as_str().into(),
        submit_ms: submission.at.since_millis(begin),
        run_ms: Some(ended.since_millis(ran.last_start)),
        limit_ms: submission.limit_secs.map(|secs| i64::from(secs) * 1000),
        nodes: (ran.allocation.len() as u32).max(1),
        says_nodes: true,
        gpu_milli: ran.allocation.iter().map(|share| share.gpus.milli()).sum(),
        gpu_types: types.collect(),
        cpu_milli: ran.allocation.iter().map(|share| u64::from(share.cpus) * 1000).sum(),
        mem_mib: ran.allocation.iter().map(|share| share.mem_bytes >> 20).max().unwrap_or(0),
    }
}

fn hardware(state: &State) -> Result<Hardware, String> {
    let compute = state.nodes.values().filter(|node| node.role == Role::Compute && node.inventory.cpus > 0);
    let nodes: Vec<HollowNode> = compute
        .map(|node| {
            let first = node.gpus.iter().find(|gpu| gpu.usable()).map(|gpu| &gpu.info);
            let shape = NodeShape {
                gpus: node.gpus.iter().filter(|gpu| gpu.usable()).count() as u32,
                gpu_type: first.map_or_else(String::new, |gpu| gpu.gpu_type.clone()),
                gpu_mem_mib: first.map_or(0, |gpu| gpu.memory_mib),
                cpus: node.inventory.cpus,
                mem_bytes: node.inventory.mem_bytes,
                features: node.inventory.features.clone(),
            };
            HollowNode { name: node.name.clone(), shape }
        })
        .collect();
    if nodes.is_empty() {
        return Err("no node of the trace said what it has: there is nothing to try a policy on".into());
    }
    Ok(Hardware { nodes, partitions: state.config.partitions.clone(), notes: Vec::new() })
}

impl Told {
    /// The jobs that would have started a second or more earlier or later, the largest difference first: id, then and now in
    /// seconds since the begin. Less than that is what a real cluster takes to start a job.
    pub fn moved(&self, outcome: &Outcome) -> Vec<(Arc<str>, f64, f64)> {
        let secs = |ms: i64| ms as f64 / 1000.0;
        let pairs = self.trace.jobs.iter().zip(&self.starts_ms).zip(&outcome.jobs);
        let mut moved: Vec<_> = pairs
            .filter(|((_, then), now)| now.fate.ran() && then.abs_diff(now.start_ms) >= 1000)
            .map(|((job, then), now)| (job.id.clone(), secs(*then), secs(now.start_ms)))
            .collect();
        moved.sort_by(|a, b| (b.1 - b.2).abs().total_cmp(&(a.1 - a.2).abs()));
        moved
    }
}
