//! Starts and ends of jobs by partition since this controller started: how long jobs waited, how their runs ended, how long victims
//! took to leave.
//!
//! Filled by the core thread from events that are on disk; read by `/metrics`. A restart begins at zero, as counters do.

use crate::histogram::Histogram;
use gcore::ctl::{Event, State};
use gmodel::run::StopCause;
use gmodel::{JobState, RunClass, RunId, Timestamp};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Without quotas all is guaranteed.
const GUARANTEED: &str = "guaranteed";
const BORROWED: &str = "borrowed";

#[derive(Debug, Default)]
pub struct JobFlow(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    partitions: BTreeMap<String, PartitionFlow>,
    /// Runs that were ordered to make room, with their partition and the time of the order.
    leaving: BTreeMap<RunId, (String, Timestamp)>,
}

#[derive(Debug, Default)]
pub struct PartitionFlow {
    /// Seconds from when a job could start to its first start, by class.
    pub waits: BTreeMap<&'static str, Histogram>,
    /// Runs by the state they ended in.
    pub ends: BTreeMap<&'static str, u64>,
    /// Seconds from the order to make room until the run held nothing.
    pub reclaims: Histogram,
}

impl JobFlow {
    /// Takes in a batch of events, with the state after them.
    pub fn record(&self, state: &State, events: &[Event], now: Timestamp) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            counts.record(state, event, now);
        }
    }

    /// Gives a partition its counts, zero at first: an increase is only seen of what was there before.
    pub fn begin(&self, partition: &str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let flow = counts.of(partition);
        for class in [GUARANTEED, BORROWED] {
            flow.waits.entry(class).or_default();
        }
        let ends = JobState::ALL.into_iter().filter(|state| state.is_final());
        for state in ends {
            flow.ends.entry(state.long()).or_default();
        }
    }

    /// Calls `each` with every partition that has counts.
    pub fn read(&self, mut each: impl FnMut(&str, &PartitionFlow)) {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (partition, flow) in &counts.partitions {
            each(partition, flow);
        }
    }
}

impl Counts {
    fn record(&mut self, state: &State, event: &Event, now: Timestamp) {
        match event {
            Event::RunPlaced { run, class, at, .. } if run.attempt == 1 => {
                let Some(job) = state.jobs.get(run.job) else {
                    return;
                };
                let class = match class {
                    Some(RunClass::Borrowed) => BORROWED,
                    _ => GUARANTEED,
                };
                let secs = secs_between(job.submitted.max(job.eligible), *at);
                let flow = self.of(&job.spec.partition);
                flow.waits.entry(class).or_default().record(secs);
            }
            Event::RunEnded { run, outcome, .. } => {
                if let Some(job) = state.jobs.get(run.job) {
                    let ends = &mut self.of(&job.spec.partition).ends;
                    *ends.entry(outcome.state.long()).or_default() += 1;
                }
            }
            Event::RunStopping { run, stop } if stop.why == StopCause::Preempted => {
                if let Some(job) = state.jobs.get(run.job) {
                    self.leaving
                        .insert(*run, (job.spec.partition.clone(), stop.at));
                }
            }
            Event::RunUnneeded {
                run,
                called_back: true,
                ..
            } => {
                self.leaving.remove(run);
            }
            Event::RunClosed { run } => {
                if let Some((partition, since)) = self.leaving.remove(run) {
                    let secs = secs_between(since, now);
                    self.of(&partition).reclaims.record(secs);
                }
            }
            _ => {}
        }
    }

    fn of(&mut self, partition: &str) -> &mut PartitionFlow {
        self.partitions.entry(partition.to_owned()).or_default()
    }
}

fn secs_between(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.since_millis(from) / 1000).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcore::ctl::Job;
    use gmodel::{JobId, JobSpec};
    use serde_json::json;

    fn state() -> State {
        let mut spec = JobSpec::default();
        spec.partition = "main".into();
        let job: Job = serde_json::from_value(json!({
            "id": 7, "spec": spec, "state": "RUNNING", "submitted": 1_000, "eligible": 5_000, "nice": 0,
        }))
        .unwrap();
        let mut state = State::default();
        state.jobs.insert(JobId(7), job);
        state
    }

    fn stopping(why: StopCause) -> Event {
        serde_json::from_value(json!({
            "event": "run_stopping", "run": RunId::new(JobId(7), 1),
            "stop": {"why": why, "grace_secs": 30, "at": 10_000, "by": "scheduler"},
        }))
        .unwrap()
    }

    fn reclaims(events: &[Event]) -> (u64, u64) {
        let flow = JobFlow::default();
        flow.record(&state(), events, Timestamp(52_000));
        let mut seen = (0, 0);
        flow.read(|partition, flow| {
            assert_eq!(partition, "main");
            let values = flow.reclaims.values();
            seen = (values.count, values.sum);
        });
        seen
    }

    #[test]
    fn a_victim_counts_from_its_order_until_it_holds_nothing() {
        let run = RunId::new(JobId(7), 1);
        let closed = Event::RunClosed { run };
        let preempted = stopping(StopCause::Preempted);
        assert_eq!(reclaims(&[preempted.clone(), closed.clone()]), (1, 42));
        assert_eq!(
            reclaims(&[stopping(StopCause::Cancelled), closed.clone()]),
            (0, 0)
        );
        let taken_back = Event::RunUnneeded {
            run,
            for_job: JobId(8),
            called_back: true,
            at: Timestamp(11_000),
        };
        assert_eq!(reclaims(&[preempted, taken_back, closed]), (0, 0));
    }

    #[test]
    fn a_first_start_counts_from_when_the_job_could_start_and_a_second_does_not() {
        let placed = |attempt| Event::RunPlaced {
            run: RunId::new(JobId(7), attempt),
            allocation: Vec::new(),
            lives: Vec::new(),
            partition: None,
            limit_secs: None,
            class: Some(RunClass::Borrowed),
            priority: None,
            imex_channel: None,
            at: Timestamp(9_000),
        };
        let flow = JobFlow::default();
        flow.record(&state(), &[placed(1), placed(2)], Timestamp(9_000));
        flow.read(|_, flow| {
            let waits = flow.waits["borrowed"].values();
            assert_eq!((waits.count, waits.sum), (1, 4));
        });
    }
}
