//! A pending job as policy and scheduler see it: its request, when it may start, what keeps it from starting.
//!
//! Knows no other job, no node and no limit in force.

use gmodel::array_spec::RangeSet;
use gmodel::constraint::Constraint;
use gmodel::partition_list::names;
use gmodel::rare::{Rare, StaticDefault};
use gmodel::{JobId, JobSpec, NodeId, Reason, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Run time that plans assume for a job without a time limit.
pub const UNLIMITED_SECS: u32 = 366 * 86_400;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingJob {
    /// Of an array: the id of its first task, which may be pending with a record of its own.
    pub id: JobId,
    pub spec: Arc<JobSpec>,
    pub submitted: Timestamp,
    pub eligible: Timestamp,
    pub nice: i32,
    pub limit_secs: Option<u32>,
    /// Its present pending reason: a plan names only reasons that are new.
    pub reason: Reason,
    pub particulars: Rare<Particulars>,
}

/// Facts that few pending jobs have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Particulars {
    /// Owner of the first hold: `user:...` or otherwise an administrator's or the system's.
    pub held_by: Option<Box<str>>,
    /// Nodes where the job failed before: avoided while others fit.
    pub avoid: Vec<NodeId>,
    /// Nodes where the job failed to launch recently: it does not start there now.
    pub barred: Vec<BarredNode>,
    /// Its node failed: the job is not tried before this, and keeps its age.
    pub try_after: Option<Timestamp>,
    /// For an array: positions still to start. `None`: a job, or a task with a record of its own.
    pub positions: Option<RangeSet>,
    /// How many more tasks of its array may run at once; `None` is no cap.
    pub room: Option<u32>,
    /// The array with a cap of a task with a record of its own.
    pub array: Option<JobId>,
    /// The array's cap and its running tasks, for messages.
    pub cap: Option<ArrayCap>,
    /// Its open dependency; `None`: met, or none.
    pub dependency: Option<Reason>,
    /// When its last run was preempted: the next one is not preempted again at once.
    pub preempted: Option<Timestamp>,
    /// Nodes are held for the job until it starts there.
    pub nomination: Option<Nomination>,
    /// Its own limit, where `limit_secs` is the expected one: reservations' windows go by this.
    pub window_secs: Option<u32>,
    /// The other components, where this is the first of a job of unlike parts: all start together.
    pub others: Vec<PendingJob>,
}

/// A node that the job avoids for a while.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BarredNode {
    pub node: NodeId,
    pub until: Timestamp,
    /// What failed on the node.
    pub text: String,
}

/// How many tasks of an array may run at once, and how many do: more than the cap where it was lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayCap {
    pub most: u32,
    pub running: u32,
}

impl StaticDefault for Particulars {
    fn static_default() -> &'static Self {
        static NONE: Particulars = Particulars {
            held_by: None,
            avoid: Vec::new(),
            barred: Vec::new(),
            try_after: None,
            positions: None,
            room: None,
            array: None,
            cap: None,
            dependency: None,
            preempted: None,
            nomination: None,
            window_secs: None,
            others: Vec::new(),
        };
        &NONE
    }
}

impl PendingJob {
    /// How long the job holds its resources, seconds; at least one, since a planned start of nothing would hold nothing.
    pub fn held_secs(&self) -> u32 {
        self.limit_secs.unwrap_or(UNLIMITED_SECS).max(1)
    }

    /// Not held, due to begin, and without an open dependency.
    pub fn is_eligible(&self, now: Timestamp) -> bool {
        self.particulars.held_by.is_none()
            && self.earliest() <= now
            && self.particulars.dependency.is_none()
    }

    /// The job is not tried before this.
    pub fn earliest(&self) -> Timestamp {
        self.particulars
            .try_after
            .map_or(self.eligible, |at| at.max(self.eligible))
    }

    /// The array with a cap that the job, or each of its tasks, belongs to.
    pub fn capped_array(&self) -> Option<JobId> {
        let array = if self.particulars.positions.is_some() {
            Some(self.id)
        } else {
            self.particulars.array
        };
        array.filter(|_| self.particulars.room.is_some())
    }

    /// How long reservations must let the job run, seconds.
    pub fn window_secs(&self) -> u32 {
        self.particulars.window_secs.unwrap_or(self.held_secs())
    }

    /// The least that must be left of the window of its own reservation at its start, seconds: it ends with the window.
    pub fn least_secs(&self) -> u32 {
        least_secs(&self.spec, Some(self.window_secs()))
    }

    /// Whether a run that starts then ends by the job's deadline.
    pub fn ends_in_time(&self, start: Timestamp) -> bool {
        let secs = i64::from(self.spec.time_min_secs.unwrap_or(self.held_secs()));
        self.spec
            .deadline
            .is_none_or(|deadline| start.plus_secs(secs) <= deadline)
    }

    /// Whether an id is the job's or, of an array, one of its tasks'.
    pub fn is_or_has(&self, id: JobId) -> bool {
        match &self.particulars.positions {
            None => self.id == id,
            Some(positions) => {
                id.0.checked_sub(self.id.0)
                    .is_some_and(|at| u32::try_from(at).is_ok_and(|at| positions.contains(at)))
            }
        }
    }

    /// All ids that may be the job's, with some between that are not.
    pub fn ids(&self) -> RangeInclusive<JobId> {
        let last = self
            .particulars
            .positions
            .as_ref()
            .and_then(RangeSet::last)
            .unwrap_or(0);
        self.id..=JobId(self.id.0 + u64::from(last))
    }

    /// Whether the job, or a task of it, is in a set.
    pub fn is_among(&self, some: &BTreeSet<JobId>) -> bool {
        some.range(self.ids()).any(|id| self.is_or_has(*id))
    }

    /// The entry stands for one of several partitions or alternatives of a constraint; the others have their own.
    pub fn is_choice(&self) -> bool {
        !self.spec.partitions.is_empty() || self.spec.alternative.is_some()
    }

    /// Its partition, where the job is pending in several.
    pub fn partition_of_several(&self) -> Option<String> {
        (!self.spec.partitions.is_empty()).then(|| self.spec.partition.clone())
    }

    /// The job has several entries.
    pub fn has_choices(&self) -> bool {
        self.spec.waits_in_several()
            || self
                .spec
                .request
                .constraint
                .as_deref()
                .is_some_and(Constraint::has_brackets)
    }

    /// An entry for each partition and each alternative of the constraint; the job itself where there is one only.
    pub fn in_each_partition(self) -> impl Iterator<Item = Self> {
        let mut others: Vec<Self> = Vec::new();
        if self.has_choices() {
            let alternatives = self
                .spec
                .request
                .constraint
                .as_deref()
                .filter(|text| Constraint::has_brackets(text));
            let alternatives = alternatives
                .and_then(|text| Constraint::alternatives(text).ok())
                .unwrap_or_default();
            for name in names(&self.spec.partition) {
                let mut spec = (*self.spec).clone();
                spec.settle_in(name);
                for (at, one) in (0..).zip(&alternatives) {
                    spec.alternative = Some((at, alternatives.len() as u32));
                    spec.request.constraint = Some(one.to_string());
                    others.push(Self {
                        spec: Arc::new(spec.clone()),
                        ..self.clone()
                    });
                }
                if alternatives.is_empty() {
                    others.push(Self {
                        spec: Arc::new(spec),
                        ..self.clone()
                    });
                }
            }
        }
        let alone = others.is_empty().then_some(self);
        alone.into_iter().chain(others)
    }
}

/// The default least time left of a reservation's window for a job to start in it. The job ends with the window.
const LEAST_LEFT_SECS: u32 = 60;

/// The least that must be left of a reservation's window for a job to start in it, seconds.
pub fn least_secs(spec: &JobSpec, limit_secs: Option<u32>) -> u32 {
    spec.time_min_secs
        .unwrap_or(LEAST_LEFT_SECS)
        .min(limit_secs.unwrap_or(u32::MAX))
        .max(1)
}

/// A preemption under way for a job. Its nodes are held for the job until it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nomination {
    /// Where the job is to start; empty where the proof named no nodes (a suspension).
    #[serde(default, skip_serializing_if = "no_nodes")]
    pub nodes: Arc<Vec<NodeId>>,
}

fn no_nodes(nodes: &Arc<Vec<NodeId>>) -> bool {
    nodes.is_empty()
}
