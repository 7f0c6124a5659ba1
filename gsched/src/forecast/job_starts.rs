//! When waiting jobs would start if all runs went to their limits and no job came.
//!
//! A conservative pass over the whole queue: each job in order gets the earliest start that delays none before it. The
//! real start is mostly sooner, as runs end before their limits. A job that a limit refuses at its turn has no start: the forecast
//! names the limit and its holder that ends first.

use crate::backfill::planned::PlannedStart;
use crate::decide::full_pass::pass_to_look;
use crate::engine::Engine;
use crate::ledger::holder::Holder;
use crate::ledger::refusal::{LimitKind, LimitRefusal};
use crate::pass::Pass;
use crate::place::allowed::first_refusing_limit;
use crate::plan::{Start, WorkBudget};
use crate::snapshot::{PendingJob, Snapshot};
use gmodel::{JobId, NodeId, Reason, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// When and where a job is expected to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    pub job: JobId,
    /// Of an array, by its own id: the forecast is of its next task.
    #[serde(default)]
    pub is_array: bool,
    /// `None`: not by what is known now (a limit, a hold, nodes that are down).
    pub start: Option<Timestamp>,
    /// The limit that refuses it, where it has no start for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<RefusingLimit>,
    pub nodes: Vec<NodeId>,
    /// Where that is, of a job that waits in several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Pending jobs of its partition with a turn before its own.
    pub ahead: u32,
}

/// A limit that refuses a job, and the holder of it that ends first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusingLimit {
    pub reason: Reason,
    pub holder: Option<Holder>,
}

impl RefusingLimit {
    /// For people.
    pub fn text(&self) -> String {
        let holder = self.holder.map(|holder| format!("; {}", holder.text()));
        format!("{}{}", self.reason.text, holder.unwrap_or_default())
    }
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
    let mut list = ForecastList::default();
    let mut limits = HolderLookup::default();
    let mut left = snapshot
        .pending
        .iter()
        .filter(|job| jobs.contains(&job.id))
        .count();
    let mut ahead: BTreeMap<Option<usize>, u32> = BTreeMap::new();
    let (plan, usual) = pass_to_look(
        engine,
        snapshot,
        budget,
        |pass| pass.plan_every_start(),
        |pass, job, partition| {
            if left == 0 {
                return false;
            }
            let before = ahead.entry(partition).or_default();
            if jobs.contains(&job.id) {
                left -= 1;
                let forecast = list.entry(job, *before);
                if let Some(partition) = partition.filter(|_| forecast.limit.is_none()) {
                    forecast.limit = limits.refusing(pass, job, partition);
                }
            }
            *before += 1;
            true
        },
    );
    for planned in usual.reserved.iter().filter(|one| !one.holds.is_empty()) {
        list.take_planned(planned, snapshot);
    }
    for start in &plan.starts {
        list.take_start(start, snapshot);
    }
    for forecast in &mut list.forecasts {
        if forecast.start.is_some() {
            forecast.limit = None;
        }
        forecast.mind_deadline(snapshot);
    }
    list.forecasts
}

/// The forecasts of the jobs in question, in the order of the queue: one for each job.
#[derive(Default)]
struct ForecastList {
    forecasts: Vec<Forecast>,
    /// Of each job, and whether it is an array: where its forecast stands.
    places: BTreeMap<(JobId, bool), usize>,
    /// The partition of each choice of a job with several.
    partitions: BTreeMap<(JobId, u32), String>,
}

impl ForecastList {
    /// The forecast of the job of this entry, with `ahead` entries before it in the partition.
    fn entry(&mut self, job: &PendingJob, ahead: u32) -> &mut Forecast {
        self.partitions.extend(
            job.partition_of_several()
                .map(|name| ((job.id, job.spec.choice()), name)),
        );
        let entry = (job.id, job.particulars.positions.is_some());
        let place = *self.places.entry(entry).or_insert(self.forecasts.len());
        if place == self.forecasts.len() {
            self.forecasts.push(Forecast::none(job, ahead));
        }
        let forecast = &mut self.forecasts[place];
        forecast.ahead = forecast.ahead.min(ahead);
        forecast
    }

    /// Of several planned starts of a job the earliest counts.
    fn take_planned(&mut self, planned: &PlannedStart, snapshot: &Snapshot) {
        let Some(place) = self.places.get(&(planned.job, planned.is_array)) else {
            return;
        };
        let forecast = &mut self.forecasts[*place];
        if forecast.start.is_some_and(|start| planned.at >= start) {
            return;
        }
        forecast.start = Some(planned.at);
        forecast.partition = self.partitions.get(&(planned.job, planned.choice)).cloned();
        let mut nodes: Vec<usize> = planned.nodes().collect();
        nodes.sort_unstable();
        forecast.nodes = nodes.into_iter().map(|at| snapshot.nodes[at].id).collect();
    }

    /// A start in this pass; tasks of an array start under their own ids.
    fn take_start(&mut self, start: &Start, snapshot: &Snapshot) {
        let array = snapshot
            .pending
            .iter()
            .filter(|job| job.id <= start.job)
            .map(|job| job.id)
            .max();
        let forecast = self
            .forecasts
            .iter_mut()
            .find(|one| one.job == start.job || array == Some(one.job))
            .filter(|one| one.start != Some(snapshot.now));
        if let Some(forecast) = forecast {
            forecast.start = Some(snapshot.now);
            forecast.partition.clone_from(&start.partition);
            forecast.nodes = start.allocation.iter().map(|share| share.node).collect();
        }
    }
}

/// The holders of limits that a forecast has looked for.
#[derive(Default)]
struct HolderLookup {
    holders: BTreeMap<LimitKind, Option<Holder>>,
}

impl HolderLookup {
    /// The limit that refuses a job at its turn, if one does.
    fn refusing(
        &mut self,
        pass: &mut Pass,
        job: &PendingJob,
        partition: usize,
    ) -> Option<RefusingLimit> {
        let LimitRefusal { kind, reason } = first_refusing_limit(pass, job, partition)?;
        let first_to_end = || kind.first_to_end(&pass.world.usage, pass.snapshot);
        let holder = *self.holders.entry(kind).or_insert_with(first_to_end);
        Some(RefusingLimit { reason, holder })
    }
}

impl Forecast {
    /// Of a job without a start as yet.
    fn none(job: &PendingJob, ahead: u32) -> Self {
        Self {
            job: job.id,
            is_array: job.particulars.positions.is_some(),
            start: None,
            limit: None,
            nodes: Vec::new(),
            partition: None,
            ahead,
        }
    }

    /// A job that would end after its deadline is dropped before it starts.
    fn mind_deadline(&mut self, snapshot: &Snapshot) {
        let entry = snapshot
            .pending
            .iter()
            .find(|job| job.id == self.job && job.particulars.positions.is_some() == self.is_array);
        let latest = entry.and_then(|job| {
            let secs = job.spec.time_min_secs.unwrap_or(job.held_secs());
            Some((job, job.spec.deadline?.plus_secs(-i64::from(secs))))
        });
        if let Some((job, latest)) = latest
            && self.start.is_some_and(|start| start > latest)
        {
            *self = Self::none(job, self.ahead);
        }
    }
}
