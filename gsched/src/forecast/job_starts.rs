//! When pending jobs would start if all runs ran to their limits and no job came.
//!
//! A conservative pass over the whole queue: each job in order gets the earliest start that delays none before it. The
//! real start is mostly sooner, as runs end before their limits.

use crate::backfill::planned::tasks_of;
use crate::cluster::nodes::end_of;
use crate::decide::full_pass::walk;
use crate::engine::Engine;
use crate::forecast::array_starts::{ArrayStarts, Row};
use crate::forecast::limited::is_put_off;
use crate::plan::WorkBudget;
use crate::snapshot::{PendingJob, Snapshot};
use gmodel::{JobId, JobSpec, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// When and where a job is expected to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    pub job: JobId,
    /// `None`: not by what is known now (a limit, a hold, nodes that are down).
    pub start: Option<Timestamp>,
    pub nodes: Vec<NodeId>,
    /// Where that is, of a job that waits in several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Waiting jobs of its partition whose turn is before its own.
    pub ahead: u32,
    /// Of an array, whose next task the rest is about: when each of its tasks starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<ArrayStarts>,
}

/// The expected starts of these jobs (an array by its own id: its next task), in the order of the queue.
pub fn forecast(snapshot: &Snapshot, jobs: &BTreeSet<JobId>) -> Vec<Forecast> {
    Engine::default().forecast(
        snapshot,
        jobs,
        WorkBudget {
            node_probes: u64::MAX,
            starts: usize::MAX,
        },
    )
}

/// As [`forecast`], with a bound.
pub(crate) fn forecast_jobs(
    engine: &mut Engine,
    snapshot: &Snapshot,
    jobs: &BTreeSet<JobId>,
    budget: WorkBudget,
) -> Vec<Forecast> {
    let mut found: Vec<Forecast> = Vec::new();
    let mut places: BTreeMap<(JobId, bool), usize> = BTreeMap::new();
    // Of those that wait in several partitions.
    let mut partitions: BTreeMap<(JobId, u32), String> = BTreeMap::new();
    let mut left = snapshot
        .pending
        .iter()
        .filter(|job| jobs.contains(&job.id))
        .count();
    let mut ahead: BTreeMap<Option<usize>, u32> = BTreeMap::new();
    let (plan, left) = walk(
        engine,
        snapshot,
        budget,
        Some(u32::MAX),
        &mut |pass, job, partition| {
            if left == 0 {
                return is_put_off(pass, jobs);
            }
            let before = ahead.entry(partition).or_default();
            if jobs.contains(&job.id) {
                left -= 1;
                let tasks = job.positions.as_ref().map(|_| ArrayStarts::default());
                partitions.extend(
                    job.partition_of_several()
                        .map(|name| ((job.id, job.spec.choice()), name)),
                );
                match places.get(&(job.id, tasks.is_some())) {
                    Some(place) => found[*place].ahead = found[*place].ahead.min(*before),
                    None => {
                        places.insert((job.id, tasks.is_some()), found.len());
                        found.push(Forecast {
                            job: job.id,
                            start: None,
                            nodes: Vec::new(),
                            partition: None,
                            ahead: *before,
                            tasks,
                        });
                    }
                }
            }
            *before += 1;
            true
        },
    );
    for one in left.reserved.iter().filter(|one| !one.holds.is_empty()) {
        let Some(told) = places
            .get(&(one.job, one.is_array))
            .map(|place| &mut found[*place])
        else {
            continue;
        };
        if told.start.is_none_or(|start| one.at < start) {
            told.start = Some(one.at);
            told.partition = partitions.get(&(one.job, one.choice)).cloned();
            let mut nodes: Vec<usize> = one.nodes().collect();
            nodes.sort_unstable();
            told.nodes = nodes.into_iter().map(|at| snapshot.nodes[at].id).collect();
        }
    }
    for start in &plan.starts {
        // Tasks of an array start under their own ids.
        let array = snapshot
            .pending
            .iter()
            .filter(|job| job.id <= start.job)
            .map(|job| job.id)
            .max();
        let told = |one: &&mut Forecast| one.job == start.job || array == Some(one.job);
        if let Some(one) = found
            .iter_mut()
            .find(told)
            .filter(|one| one.start != Some(snapshot.now))
        {
            one.start = Some(snapshot.now);
            one.partition.clone_from(&start.partition);
            one.nodes = start.allocation.iter().map(|share| share.node).collect();
        }
    }
    let of_arrays = found.iter_mut().filter(|told| told.tasks.is_some());
    for told in of_arrays {
        let Some(array) = snapshot
            .pending
            .iter()
            .find(|job| job.id == told.job && job.positions.is_some())
        else {
            continue;
        };
        let reserved = left
            .reserved
            .iter()
            .filter(|one| one.is_array && one.job == array.id && !one.holds.is_empty());
        let at_once = plan.starts.iter().filter(|start| is_task(array, start.job));
        let planned = reserved.map(|one| Row {
            from: one.at,
            tasks: tasks_of(array, one),
        });
        let planned = planned
            .chain(at_once.map(|_| Row {
                from: snapshot.now,
                tasks: 1,
            }))
            .collect();
        let starts = starts_of_tasks(snapshot, array, planned);
        told.start = told.start.or(array
            .positions
            .as_ref()
            .and_then(|waiting| starts.of(waiting.first()?)));
        told.tasks = Some(starts);
    }
    found
        .iter_mut()
        .for_each(|told| told.mind_deadline(snapshot));
    found
}

impl Forecast {
    /// A job that would end after its deadline is dropped before it starts.
    fn mind_deadline(&mut self, snapshot: &Snapshot) {
        let entry = snapshot
            .pending
            .iter()
            .find(|job| job.id == self.job && job.positions.is_some() == self.tasks.is_some());
        let latest = entry.and_then(|job| {
            let secs = job.spec.time_min_secs.unwrap_or(job.held_secs());
            Some(job.spec.deadline?.plus_secs(-i64::from(secs)))
        });
        if self
            .start
            .zip(latest)
            .is_some_and(|(start, latest)| start > latest)
        {
            let (job, ahead, tasks) = (
                self.job,
                self.ahead,
                self.tasks.as_ref().map(|_| ArrayStarts::default()),
            );
            *self = Self {
                job,
                start: None,
                nodes: Vec::new(),
                partition: None,
                ahead,
                tasks,
            };
        }
    }
}

/// Whether a waiting array means a task.
fn is_task(array: &PendingJob, task: JobId) -> bool {
    let position = task
        .0
        .checked_sub(array.id.0)
        .and_then(|position| u32::try_from(position).ok());
    position.is_some_and(|position| {
        array
            .positions
            .as_ref()
            .is_some_and(|waiting| waiting.contains(position))
    })
}

fn starts_of_tasks(snapshot: &Snapshot, array: &PendingJob, planned: Vec<Row>) -> ArrayStarts {
    let waiting = array.positions.clone().unwrap_or_default();
    let last = JobId(array.id.0 + u64::from(waiting.last().unwrap_or(0)));
    let alike = |spec: &JobSpec| spec.name == array.spec.name && spec.user == array.spec.user;
    let from = snapshot
        .running
        .partition_point(|run| run.run.job < array.id);
    let own = snapshot.running[from..]
        .iter()
        .take_while(|run| run.run.job <= last)
        .filter(|run| !run.charged && alike(&run.spec));
    let ends: Vec<Timestamp> = own.map(|run| end_of(run).max(snapshot.now)).collect();
    // Nothing is known of those that are held, or wait for another job, a time or a limit of others.
    let length_secs = array.limit_secs.filter(|_| !planned.is_empty());
    ArrayStarts::new(snapshot.now, waiting, planned, &ends, length_secs)
}
