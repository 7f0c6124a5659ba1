//! What really happened, kept beside the system: what users were told, and which processes ran.

use crate::store::Store;
use gcore::ctl::event::GpuNoteKind;
use gcore::ctl::state::Outcome;
use gcore::ctl::{Command, Event, Reply, Target};
use gmodel::gpu_order::GpuAction;
use gmodel::run::{EndCause, RunEnd};
use gmodel::{ExitCode, JobId, JobPart, JobState, NodeId, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub struct Truth {
    /// Components of jobs of unlike parts.
    parts: BTreeMap<JobId, JobPart>,
    /// By first id: each acknowledged submission that must be there.
    submitted: BTreeMap<JobId, AcknowledgedSubmission>,
    /// Acknowledged before a backup was brought back that does not know them: allowed to be gone.
    forgiven: BTreeSet<JobId>,
    /// Processes started: run and node.
    starts: BTreeMap<(RunId, NodeId), i64>,
    /// When they were gone, where the node measured it and has not lost it since.
    stops: BTreeMap<(RunId, NodeId), i64>,
    /// On how many nodes runs were placed.
    nodes: BTreeMap<RunId, usize>,
    /// How the batch process of each run ended.
    ends: BTreeMap<RunId, RunEnd>,
    cancelled: BTreeSet<JobId>,
    /// Put back into the queue when they were over: an earlier cancel counts no more, whenever its answer came.
    returned: BTreeSet<JobId>,
    /// A backup was brought back: the controller does not know what came after it.
    went_back: bool,
    pub jobs_over: u64,
    pub runs_placed: u64,
    pub suspensions: u64,
    /// Jobs, and tasks, that were over and were put back.
    pub returns: u64,
    /// Runs that were told to make room for a job that started elsewhere.
    pub unneeded: u64,
    /// The pool: nodes, and GPUs of each.
    pool: (usize, usize),
    pub breaker: BreakerTruth,
    /// Nodes that the fence program powered off, and that therefore lost their runs.
    pub fenced: u64,
}

/// What the breaker did.
#[derive(Debug, Default)]
pub struct BreakerTruth {
    /// GPUs, and whole nodes, that left service by themselves.
    losses: Vec<(Timestamp, NodeId, Option<String>)>,
    /// The most that was ever lost within an hour when it allowed one more, thousandths of nodes.
    pub most_lost: u64,
    /// Steps that it allowed, and that it did not allow at once.
    pub allowed: u64,
    pub stopped: u64,
}

#[derive(Debug)]
struct AcknowledgedSubmission {
    /// Number of ids.
    count: u64,
    /// Its client.
    request: usize,
    /// It has no script, and ends by its client, by an order or by its limit.
    is_allocation: bool,
}

impl Truth {
    pub fn of(machines: u16, gpus: u16) -> Self {
        Self {
            pool: (usize::from(machines), usize::from(gpus)),
            ..Self::default()
        }
    }

    pub fn acknowledged(
        &mut self,
        request: usize,
        command: &Command,
        reply: &Reply,
        store: &Store,
    ) -> Result<(), String> {
        let parts = match command {
            Command::SubmitParts { specs, .. } => specs.len() as u64,
            _ => 1,
        };
        let submitted = match command {
            Command::Submit { spec, .. } => Some(&**spec),
            Command::SubmitParts { specs, .. } => specs.first(),
            _ => None,
        };
        match (command, reply) {
            (_, Reply::Submitted { id, .. }) if let Some(spec) = submitted => {
                let count = spec
                    .array
                    .as_ref()
                    .map_or(parts, |array| u64::from(array.len()));
                for (first, other) in &self.submitted {
                    let overlap = first.0 < id.0 + count && id.0 < first.0 + other.count;
                    if other.request != request && overlap {
                        return Err(format!("job id {id} was given to two submissions"));
                    }
                }
                let knows = store.job(*id).is_some() || store.is_array_task(*id);
                if !knows {
                    // The controller went back to a backup between its answer and now.
                    self.forgiven.insert(*id);
                }
                let submission = AcknowledgedSubmission {
                    count,
                    request,
                    is_allocation: spec.allocation,
                };
                self.submitted.insert(*id, submission);
            }
            (Command::EndAllocation { target, .. }, Reply::Done) => {
                if let Target::Job(id) = target
                    && !self.returned.contains(id)
                {
                    self.cancelled.insert(*id);
                }
            }
            (Command::Cancel { signal: None, .. }, Reply::Each { results }) => {
                for result in results {
                    if let (Target::Job(id), None) = (&result.target, &result.refusal)
                        && !self.returned.contains(id)
                    {
                        self.cancelled.insert(*id);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub fn acknowledged_jobs(&self) -> impl Iterator<Item = JobId> + '_ {
        self.submitted
            .iter()
            .flat_map(|(first, one)| (first.0..first.0 + one.count).map(JobId))
    }

    pub fn submissions(&self) -> Vec<JobId> {
        self.submitted.keys().copied().collect()
    }

    /// A backup came back: what it does not know is forgiven, and nothing cancelled since must stay so.
    pub fn restored(&mut self) {
        self.cancelled.clear();
        self.went_back = true;
        self.forgiven.extend(self.submitted.keys());
    }

    /// Whether a backup was ever brought back.
    pub fn went_back(&self) -> bool {
        self.went_back
    }

    /// An acknowledged job that is neither a record nor part of an array.
    pub fn lost(&self, store: &Store) -> Option<JobId> {
        let owed = self
            .submitted
            .iter()
            .filter(|(first, _)| !self.forgiven.contains(first));
        owed.flat_map(|(first, one)| (first.0..first.0 + one.count).map(JobId))
            .find(|id| store.job(*id).is_none() && !store.is_array_task(*id))
    }

    /// The user's process starts on a machine.
    pub fn started(&mut self, run: RunId, node: NodeId, now: i64) -> Result<(), String> {
        match self.starts.insert((run, node), now) {
            None => Ok(()),
            Some(before) => Err(format!(
                "run {run} was started twice on node {node}, first at {before} ms"
            )),
        }
    }

    pub fn stopped(&mut self, run: RunId, node: NodeId, now: i64) {
        self.stops.insert((run, node), now);
    }

    /// A machine lost its spool: what it measured is not known any more.
    pub fn lost_measures(&mut self, node: NodeId) {
        self.stops.retain(|(_, on), _| *on != node);
    }

    pub fn ended(&mut self, run: RunId, end: &RunEnd) {
        self.ends.entry(run).or_insert_with(|| end.clone());
    }

    /// Facts the controller asserts are compared with what happened.
    pub fn observe(&mut self, events: &[Event]) -> Result<(), String> {
        for event in events {
            match event {
                Event::RunPlaced {
                    run, allocation, ..
                } => self.judge_placement(*run, allocation.len())?,
                Event::JobRequeued { job, .. } => self.comes_back(*job),
                Event::TasksRequeued {
                    array, positions, ..
                } => {
                    positions
                        .iter()
                        .for_each(|position| self.comes_back(JobId(array.0 + u64::from(position))));
                }
                Event::GpuNoted {
                    node,
                    uuid,
                    automatic: true,
                    at,
                    ..
                } => self.breaker.losses.push((*at, *node, Some(uuid.clone()))),
                Event::GpuNoted {
                    kind: GpuNoteKind::Stopped,
                    ..
                } => self.breaker.stopped += 1,
                Event::NodeDrained {
                    node,
                    mark,
                    automatic: true,
                } => self.breaker.losses.push((mark.since, *node, None)),
                Event::GpuOrdered {
                    node,
                    uuid,
                    what: GpuAction::Repair,
                    at,
                    ..
                } => self.judge_breaker(*node, uuid, *at)?,
                // Charged until it was written off.
                Event::RunForfeited { run, node, .. } => drop(self.stops.remove(&(*run, *node))),
                Event::JobSubmitted { id, spec, .. } => {
                    self.parts.extend(spec.part.map(|part| (*id, part)));
                }
                Event::RunUnneeded { .. } => self.unneeded += 1,
                Event::RunSuspended { .. } => self.suspensions += 1,
                Event::NodeFenced { by, .. } => self.fenced += u64::from(by == "fence_program"),
                Event::RunEnded { run, outcome, .. } => {
                    self.jobs_over += u64::from(outcome.requeue.is_none());
                    self.judge(*run, outcome)?;
                    self.judge_length(*run, outcome)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn judge_placement(&mut self, run: RunId, nodes: usize) -> Result<(), String> {
        self.runs_placed += 1;
        self.nodes.insert(run, nodes);
        if self.cancelled.contains(&run.job) {
            return Err(format!("{run} was placed although its job was cancelled"));
        }
        self.judge_second_start(run)
    }

    /// What leaves service by itself within an hour is a node or a tenth of the pool at most, whenever the breaker allows one more.
    fn judge_breaker(&mut self, node: NodeId, uuid: &str, at: Timestamp) -> Result<(), String> {
        self.breaker.losses.push((at, node, Some(uuid.to_owned())));
        self.breaker
            .losses
            .retain(|(lost, ..)| *lost > at.plus_secs(-3600));
        let mut by_node: BTreeMap<NodeId, (bool, BTreeSet<&str>)> = BTreeMap::new();
        for (_, node, uuid) in &self.breaker.losses {
            let lost = by_node.entry(*node).or_default();
            match uuid {
                Some(uuid) => drop(lost.1.insert(uuid)),
                None => lost.0 = true,
            }
        }
        let (machines, gpus) = self.pool;
        let part = |(whole, lost): &(bool, BTreeSet<&str>)| match whole {
            true => 1000,
            false => (lost.len().min(gpus) * 1000 / gpus) as u64,
        };
        let lost: u64 = by_node.values().map(part).sum();
        self.breaker.allowed += 1;
        self.breaker.most_lost = self.breaker.most_lost.max(lost);
        let bound = (machines as u64 * 100).max(1000);
        // A backup does not know what was lost since.
        if lost > bound && !self.went_back {
            return Err(format!(
                "the breaker allows a step of {uuid} with {lost} thousandths of nodes lost in an hour, and {bound} is the most"
            ));
        }
        Ok(())
    }

    /// The client of an allocation knows of one start only.
    fn judge_second_start(&self, run: RunId) -> Result<(), String> {
        let first = RunId::new(run.job, 1);
        let earlier = self.starts.range((first, NodeId(0))..(run, NodeId(0)));
        let is_second = self.is_allocation(run.job) && earlier.count() > 0;
        match is_second && !self.returned.contains(&run.job) && !self.went_back {
            true => Err(format!(
                "allocation {run} is placed again though it had started"
            )),
            false => Ok(()),
        }
    }

    fn is_allocation(&self, job: JobId) -> bool {
        let submission = self.submitted.get(&job);
        submission.is_some_and(|submission| submission.is_allocation)
    }

    fn comes_back(&mut self, job: JobId) {
        self.returns += 1;
        self.cancelled.remove(&job);
        self.returned.insert(job);
    }

    /// What is charged is what the processes lasted, on each node, whatever any clock showed meanwhile.
    fn judge_length(&self, run: RunId, outcome: &Outcome) -> Result<(), String> {
        let nodes = self.nodes.get(&run).copied().unwrap_or(0);
        let real = self.stops.range((run, NodeId(0))..=(run, NodeId(u32::MAX)));
        let real: Vec<i64> = real
            .filter_map(|(on, stop)| Some(stop - self.starts.get(on)?))
            .collect();
        // A backup does not know what nodes told since, and they may have forgotten it.
        if real.len() != nodes || outcome.state == JobState::NodeFail || self.went_back {
            return Ok(());
        }
        let charged = match outcome.held_millis.len() {
            0 => outcome.lasted_millis() * nodes as i64,
            _ => outcome.held_millis.iter().sum(),
        };
        match charged - real.iter().sum::<i64>() {
            0 => Ok(()),
            off => Err(format!(
                "{run} is charged {charged} ms on {nodes} nodes, {off} ms more than its processes lasted ({real:?})"
            )),
        }
    }

    /// A component of a job of unlike parts ends as the one that ended first.
    fn judge(&self, run: RunId, outcome: &Outcome) -> Result<(), String> {
        let Some(part) = self.parts.get(&run.job) else {
            return self.judge_by(run, run, outcome);
        };
        if at_its_limit(outcome) {
            // Each component's nodes keep its limit, and the first to end has no batch process, maybe.
            return Ok(());
        }
        if self.is_allocation(part.leader) {
            // Its client's word is the end of all.
            return self.judge_by(
                RunId {
                    job: part.leader,
                    ..run
                },
                run,
                outcome,
            );
        }
        let ends_as = |job| self.judge_by(run, RunId { job, ..run }, outcome);
        match part.jobs().any(|job| ends_as(job).is_ok()) {
            true => Ok(()),
            false => ends_as(run.job),
        }
    }

    fn judge_by(&self, run: RunId, by: RunId, outcome: &Outcome) -> Result<(), String> {
        let end = self.ends.get(&by);
        let cause = end.map(|end| end.cause);
        let exit = end.map_or(ExitCode::default(), |end| end.exit);
        let fits = match outcome.state {
            // Its exit code is the client's.
            JobState::Completed | JobState::Failed if self.is_allocation(run.job) => {
                return match cause {
                    Some(EndCause::Exited) => Err(format!(
                        "allocation {run} ended by a process, and it has none"
                    )),
                    _ => Ok(()),
                };
            }
            JobState::Completed => cause == Some(EndCause::Exited) && exit.is_success(),
            JobState::Failed => match cause {
                Some(EndCause::Exited) => !exit.is_success(),
                Some(EndCause::LaunchUser) => return Ok(()),
                _ => false,
            },
            JobState::Timeout | JobState::Deadline => {
                cause == Some(EndCause::TimeLimit) || run_is_wide(cause)
            }
            JobState::OutOfMemory => cause == Some(EndCause::OutOfMemory),
            _ => return Ok(()),
        };
        if !fits || (!at_its_limit(outcome) && outcome.exit != exit) {
            return Err(format!(
                "{run} is {} with {}, its batch process ended {cause:?} with {exit}",
                outcome.state, outcome.exit
            ));
        }
        Ok(())
    }
}

/// Its own limit, or what its deadline left of that.
fn at_its_limit(outcome: &Outcome) -> bool {
    matches!(outcome.state, JobState::Timeout | JobState::Deadline)
}

/// On several nodes another node's limit may have ended the run.
fn run_is_wide(cause: Option<EndCause>) -> bool {
    cause == Some(EndCause::Stopped)
}
