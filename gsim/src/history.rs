//! A controller's trace as a history of jobs: what they asked for, what they held and how long they ran, so that another policy can
//! be tried on it. Built from the facts of a replay; what a policy makes of it is `experiment`'s affair.

use crate::hardware::{Hardware, HollowNode, NodeShape};
use crate::measures::{Measures, Setting};
use crate::outcome::{Fate, JobOutcome, Outcome};
use crate::policy_file::PolicyFile;
use crate::trace::{Trace, TraceJob};
use gcore::ctl::{Event, NORMAL_QOS, State};
use gmodel::gpu_request::GpuKind;
use gmodel::job::LaunchContext;
use gmodel::node::{Inventory, Role};
use gmodel::policy::Account;
use gmodel::run::Allocation;
use gmodel::topology::Topology;
use gmodel::{CommonSpec, JobId, JobSpec, JobState, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Jobs and their runs, as facts come in.
#[derive(Clone, Debug, Default)]
pub struct History {
    submissions: BTreeMap<JobId, Submission>,
    runs: BTreeMap<JobId, JobRuns>,
}

#[derive(Clone, Debug)]
struct Submission {
    spec: Arc<JobSpec>,
    limit_secs: Option<u32>,
    at: Timestamp,
}

/// The runs of one job (or array task).
#[derive(Clone, Debug)]
struct JobRuns {
    first_start: Timestamp,
    last_start: Timestamp,
    allocation: Allocation,
    ended: Option<Timestamp>,
    preemptions: u32,
    lost_gpu_secs: u64,
}

/// What a history was like, in the terms of a simulation.
#[derive(Debug)]
pub struct HistoryTrace {
    pub trace: Trace,
    pub hardware: Hardware,
    /// As it really was.
    pub measures: Measures,
    /// First start of each job of the trace, milliseconds since its begin.
    pub starts_ms: Vec<i64>,
    /// Jobs that were held, or waited for others.
    pub put_off: usize,
    topology: Topology,
    licences: BTreeMap<String, u32>,
    default_account: String,
}

impl History {
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::JobSubmitted {
                id,
                spec,
                limit_secs,
                at,
                ..
            } => {
                let submission = Submission {
                    spec: spec.clone(),
                    limit_secs: *limit_secs,
                    at: *at,
                };
                self.submissions.insert(*id, submission);
            }
            Event::RunPlaced {
                run,
                allocation,
                at,
                ..
            } => {
                let ran = self.runs.entry(run.job).or_insert_with(|| JobRuns {
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

    /// All jobs with an ended last run, over the nodes that there were at the end.
    ///
    /// # Errors
    /// No job of the trace ended, or it knows no nodes.
    pub fn told(&self, state: &State) -> Result<HistoryTrace, String> {
        let hardware = hardware(state)?;
        let ended = self
            .runs
            .iter()
            .filter_map(|(id, ran)| Some((id, ran, ran.ended?, self.submission(*id)?)));
        let mut list: Vec<_> = ended.collect();
        list.sort_by_key(|(id, .., submission)| (submission.at, **id));
        let begin = list.first().map(|(.., submission)| submission.at);
        let put_off = list
            .iter()
            .filter(|(.., submission)| submission.spec.hold || submission.spec.dependency.is_some())
            .count();
        let begin =
            begin.ok_or("no job of the trace ended: there is nothing to try a policy on")?;
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
        let trace = Trace {
            jobs,
            ..Trace::default()
        };
        let setting = Setting {
            policy: "as it was".into(),
            cluster: hardware.describe(),
            notes: Vec::new(),
        };
        let all: Vec<&TraceJob> = trace.jobs.iter().collect();
        let measures = Measures::of(setting, &[(&all[..], &outcome)]);
        let config = &state.config;
        let (topology, licences) = (
            config.scheduler.topology.clone(),
            config.scheduler.licences.clone(),
        );
        Ok(HistoryTrace {
            trace,
            hardware,
            measures,
            starts_ms,
            put_off,
            topology,
            licences,
            default_account: config.default_account.clone(),
        })
    }

    /// Of a job, or of the array that a task belongs to.
    fn submission(&self, id: JobId) -> Option<&Submission> {
        let (first, submission) = self.submissions.range(..=id).next_back()?;
        let tasks = submission
            .spec
            .array
            .as_ref()
            .map_or(1, |array| u64::from(array.len()));
        (id.0 - first.0 < tasks).then_some(submission)
    }
}

fn trace_job(
    id: JobId,
    ran: &JobRuns,
    ended: Timestamp,
    submission: &Submission,
    begin: Timestamp,
) -> TraceJob {
    let spec = &submission.spec;
    let types = spec
        .request
        .gpus
        .iter()
        .flat_map(|ask| &ask.alternatives)
        .filter_map(|one| match &one.kind {
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
        cpu_milli: ran
            .allocation
            .iter()
            .map(|share| u64::from(share.cpus) * 1000)
            .sum(),
        mem_mib: ran
            .allocation
            .iter()
            .map(|share| share.mem_bytes >> 20)
            .max()
            .unwrap_or(0),
        asked: Some(asked(spec, begin).into()),
    }
}

/// The request of one job or array task: times from the begin on, without dependencies.
fn asked(spec: &JobSpec, begin: Timestamp) -> JobSpec {
    let since = |at: Timestamp| Timestamp(at.since_millis(begin));
    let common = CommonSpec {
        array: None,
        hold: false,
        dependency: None,
        begin: spec.begin.map(since),
        deadline: spec.deadline.map(since),
        ..CommonSpec::clone(&spec.common)
    };
    let launch = LaunchContext {
        work_dir: "/".into(),
        ..LaunchContext::default()
    };
    JobSpec {
        launch: launch.into(),
        ..JobSpec::from(common)
    }
}

/// Names that jobs say and a policy does not have, each with how many jobs say it.
#[derive(Default)]
struct UnknownNames {
    accounts: BTreeMap<String, usize>,
    qos: BTreeMap<String, usize>,
    reservations: BTreeMap<String, usize>,
    licences: BTreeMap<String, usize>,
}

impl UnknownNames {
    /// Takes what the policy does not have out of a job's request; its account stays.
    fn take_from(&mut self, asked: &mut JobSpec, policy: &PolicyFile, default_account: &str) {
        let count = |names: &mut BTreeMap<String, usize>, name: String| {
            *names.entry(name).or_default() += 1;
        };
        let known = &policy.accounts;
        let has_account = known.accounts.is_empty()
            || asked.account == default_account
            || known.accounts.contains_key(&asked.account);
        if !has_account {
            count(&mut self.accounts, asked.account.clone());
        }
        let has_qos =
            known.qos.is_empty() || asked.qos == NORMAL_QOS || known.qos.contains_key(&asked.qos);
        if !has_qos {
            count(&mut self.qos, std::mem::take(&mut asked.qos));
        }
        let is_unknown = |name: &mut String| !known.reservations.contains_key(name);
        if let Some(name) = asked.reservation.take_if(is_unknown) {
            count(&mut self.reservations, name);
        }
        asked.licences.retain(|name, _| {
            let is_known = policy.scheduler.licences.contains_key(name);
            if !is_known {
                count(&mut self.licences, name.clone());
            }
            is_known
        });
    }

    fn notes(&self, policy: &str) -> Vec<String> {
        let kinds = [
            (
                &self.accounts,
                "account",
                "run in one that is made for this, without guarantee and limit",
            ),
            (&self.qos, "QOS", "run in their account's usual one"),
            (&self.reservations, "reservation", "run outside of any"),
            (&self.licences, "licence", "run without it"),
        ];
        let unknown = kinds.into_iter().filter(|(names, ..)| !names.is_empty());
        let note = |(names, what, then): (&BTreeMap<String, usize>, _, _)| {
            let shown: Vec<&str> = names.keys().map(String::as_str).take(8).collect();
            let jobs: usize = names.values().sum();
            let more = match names.len() - shown.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!(
                "policy {policy} has no {what} {}{more}: {jobs} jobs that name it {then}",
                shown.join(", ")
            )
        };
        unknown.map(note).collect()
    }
}

fn hardware(state: &State) -> Result<Hardware, String> {
    let compute = state
        .nodes
        .values()
        .filter(|node| node.role == Role::Compute && node.inventory.cpus > 0);
    let nodes: Vec<HollowNode> = compute
        .map(|node| {
            let first = node
                .gpus
                .iter()
                .find(|gpu| gpu.usable())
                .map(|gpu| &gpu.info);
            let shape = NodeShape {
                gpus: node.gpus.iter().filter(|gpu| gpu.usable()).count() as u32,
                gpu_type: first.map_or_else(String::new, |gpu| gpu.gpu_type.clone()),
                gpu_mem_mib: first.map_or(0, |gpu| gpu.memory_mib),
                cpus: node.inventory.cpus,
                mem_bytes: node.inventory.mem_bytes,
                features: node.inventory.features.clone(),
            };
            let gpus = node
                .gpus
                .iter()
                .filter(|gpu| gpu.usable())
                .map(|gpu| gpu.info.clone())
                .collect();
            // No GPU is cut here: the MIG layouts stay.
            let reported = Inventory {
                gpus,
                mig: Arc::default(),
                unfit: String::new(),
                ..Inventory::clone(&node.inventory)
            };
            HollowNode {
                reported: Some(reported.into()),
                ..HollowNode::new(&node.name, shape)
            }
        })
        .collect();
    if nodes.is_empty() {
        return Err(
            "no node of the trace said what it has: there is nothing to try a policy on".into(),
        );
    }
    Ok(Hardware {
        nodes,
        partitions: state.config.partitions.clone(),
        notes: Vec::new(),
    })
}

impl HistoryTrace {
    /// Fits a policy and the jobs to each other. What the cluster has, the policy has too where it does not say otherwise; what jobs
    /// name and it does not have is made or left out. In words, with how many jobs that is.
    pub fn fit(&mut self, policy: &mut PolicyFile) -> Vec<String> {
        if policy.scheduler.topology == Topology::default() {
            policy.scheduler.topology = self.topology.clone();
        }
        if policy.scheduler.licences.is_empty() {
            policy.scheduler.licences = self.licences.clone();
        }
        let mut unknown = UnknownNames::default();
        for job in &mut self.trace.jobs {
            if let Some(asked) = &mut job.asked {
                unknown.take_from(Arc::make_mut(asked), policy, &self.default_account);
            }
        }
        for name in unknown.accounts.keys() {
            let account = Account {
                name: name.clone(),
                ..Account::default()
            };
            policy.accounts.accounts.insert(name.clone(), account);
        }
        let mut notes = unknown.notes(&policy.name);
        if self.put_off > 0 {
            notes.push(format!(
                "{} jobs that were held or had a dependency start without it here",
                self.put_off
            ));
        }
        notes
    }

    /// The jobs that would have started a second or more earlier or later, the largest difference first: id, then and now in
    /// seconds since the begin. Less than that is what a real cluster takes to start a job.
    pub fn moved(&self, outcome: &Outcome) -> Vec<(Arc<str>, f64, f64)> {
        let secs = |ms: i64| ms as f64 / 1000.0;
        let pairs = self
            .trace
            .jobs
            .iter()
            .zip(&self.starts_ms)
            .zip(&outcome.jobs);
        let mut moved: Vec<_> = pairs
            .filter(|((_, then), now)| now.fate.ran() && then.abs_diff(now.start_ms) >= 1000)
            .map(|((job, then), now)| (job.id.clone(), secs(*then), secs(now.start_ms)))
            .collect();
        moved.sort_by(|a, b| (b.1 - b.2).abs().total_cmp(&(a.1 - a.2).abs()));
        moved
    }
}
