//! What a pass looks at: nodes with what is free, jobs that wait, runs with their latest end.

use crate::cluster::timeline::UNLIMITED_SECS;
use crate::plan::Nomination;
use gmodel::array_spec::RangeSet;
use gmodel::config::ClusterConfig;
use gmodel::constraint::Constraint;
use gmodel::mig::MigBoard;
use gmodel::node::GpuEntry;
use gmodel::partition_list::names;
use gmodel::rare::{Rare, StaticDefault};
use gmodel::run::NodeShare;
use gmodel::{JobId, JobSpec, NodeId, Policy, Reason, RunClass, RunId, Seq, Timestamp};
use gpolicy::usage::UsageBook;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// An immutable picture of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub seq: Seq,
    pub now: Timestamp,
    pub config: Arc<ClusterConfig>,
    /// Accounts, QOS and reservations in force: from files and from the database.
    pub policy: Arc<Policy>,
    /// In the order of their ids.
    pub nodes: Vec<SchedNode>,
    /// In no particular order; jobs that are held or not yet eligible are included and get a reason. One that waits in
    /// several partitions has an entry for each.
    pub pending: Vec<PendingJob>,
    /// Live runs in the order of their ids.
    pub running: Vec<RunningRun>,
    /// What runs that are over have used.
    pub usage: Arc<UsageBook>,
}

impl Snapshot {
    /// Where a node stands among the nodes.
    pub fn place_of(&self, node: NodeId) -> Option<usize> {
        place_of_node(&self.nodes, node, |node| node.id)
    }
}

/// Where a node stands in a list in the order of the nodes' ids. They mostly follow each other.
pub(crate) fn place_of_node<T>(
    list: &[T],
    node: NodeId,
    id_of: impl Fn(&T) -> NodeId,
) -> Option<usize> {
    let near = node.0.checked_sub(id_of(list.first()?).0)? as usize;
    match list.get(near) {
        Some(one) if id_of(one) == node => Some(near),
        _ => list.binary_search_by_key(&node, id_of).ok(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedNode {
    pub id: NodeId,
    pub name: String,
    /// Why it takes no new work; `None` when it does.
    pub unavailable: Option<String>,
    pub features: Vec<String>,
    /// Nodes with the same word here are joined by NVLink; empty: with none.
    pub nvlink_domain: String,
    pub cpus: u32,
    pub mem_bytes: u64,
    /// Shared: a pass copies its nodes many times, and these never change in it.
    pub gpus: Arc<Vec<GpuEntry>>,
    pub free_cpus: u32,
    pub free_mem_bytes: u64,
    /// By slot, thousandths; 0 for a GPU that is missing or sick.
    pub free_gpu_milli: Vec<u32>,
    /// Runs with a share here: an exclusive job needs 0.
    pub runs: u32,
    /// An exclusive run holds all of it.
    pub exclusive: bool,
    pub mig: NodeMig,
}

/// What the planner of MIG cuts has to know of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMig {
    /// What its GPUs can be cut into.
    pub boards: Arc<Vec<MigBoard>>,
    /// When a GPU was last ordered to be cut, and into what.
    pub cuts: BTreeMap<String, CutRecord>,
    /// GPUs with an order that the node has not answered, whatever it is.
    pub ordered: BTreeSet<String>,
    /// Those of them that are being cut, and into what; none: they will be whole.
    pub being_cut: BTreeMap<String, Vec<String>>,
}

/// The newest cut of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CutRecord {
    pub at: Timestamp,
    /// In the order of the order; none: whole.
    pub profiles: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingJob {
    /// For an array the id of its first task, which may also be waiting with a record of its own.
    pub id: JobId,
    pub spec: Arc<JobSpec>,
    pub submitted: Timestamp,
    pub eligible: Timestamp,
    pub nice: i32,
    pub limit_secs: Option<u32>,
    /// The reason it has: a plan names only reasons that are new.
    pub reason: Reason,
    pub particulars: Rare<Particulars>,
}

/// What few waiting jobs have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Particulars {
    /// Owner of the first hold: `user:...` or otherwise an administrator's or the system's.
    pub held_by: Option<Box<str>>,
    /// Nodes that failed this job before: avoided while others fit.
    pub avoid: Vec<NodeId>,
    /// Those of them that failed to launch it not long ago: it does not go there now.
    pub barred: Vec<BarredNode>,
    /// Its node failed: it is not tried again before, and keeps its age.
    pub try_after: Option<Timestamp>,
    /// For an array: positions still to start. `None`: a job, or a task with a record of its own.
    pub positions: Option<RangeSet>,
    /// How many more tasks of its array may run at once; `None` is no cap.
    pub room: Option<u32>,
    /// Of a task with a record of its own, in an array with a cap: that array.
    pub array: Option<JobId>,
    /// The cap of its array and how many of it run, for people.
    pub cap: Option<ArrayCap>,
    /// What its dependency says; `None`: met, or there is none.
    pub dependency: Option<Reason>,
    /// When its last run was preempted: it comes back, and is not preempted again at once.
    pub preempted: Option<Timestamp>,
    /// Nodes are held for it until it starts there.
    pub nomination: Option<Nomination>,
    /// Where its limit is one that it is believed to need: the limit it has. So long its reservation must last, and no other's begin.
    pub window_secs: Option<u32>,
}

/// A node that a job stays away from for a while.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BarredNode {
    pub node: NodeId,
    pub until: Timestamp,
    /// What failed there.
    pub text: String,
}

/// How many tasks of an array may run at once, and how many do: more than that where it was lowered.
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
        };
        &NONE
    }
}

impl PendingJob {
    /// For how long it takes its place, in seconds: one at least, for a reservation of nothing would hold nothing.
    pub fn held_secs(&self) -> u32 {
        self.limit_secs.unwrap_or(UNLIMITED_SECS).max(1)
    }

    /// Neither held, nor too early, nor waiting for another job.
    pub fn is_eligible(&self, now: Timestamp) -> bool {
        self.particulars.held_by.is_none()
            && self.earliest() <= now
            && self.particulars.dependency.is_none()
    }

    /// Before which it is not tried.
    pub fn earliest(&self) -> Timestamp {
        self.particulars
            .try_after
            .map_or(self.eligible, |at| at.max(self.eligible))
    }

    /// The array that it, or each of its tasks, is of, where that has a cap.
    pub fn capped_array(&self) -> Option<JobId> {
        let array = if self.particulars.positions.is_some() {
            Some(self.id)
        } else {
            self.particulars.array
        };
        array.filter(|_| self.particulars.room.is_some())
    }

    /// For how long reservations must let it run that starts, seconds.
    pub fn window_secs(&self) -> u32 {
        self.particulars.window_secs.unwrap_or(self.held_secs())
    }

    /// What must be left at least of the window of its own reservation where it starts, seconds: it ends with the window.
    pub fn least_secs(&self) -> u32 {
        least_secs(&self.spec, Some(self.window_secs()))
    }

    /// Whether a run that starts then ends by the deadline, where there is one.
    pub(crate) fn ends_in_time(&self, start: Timestamp) -> bool {
        let secs = i64::from(self.spec.time_min_secs.unwrap_or(self.held_secs()));
        self.spec
            .deadline
            .is_none_or(|deadline| start.plus_secs(secs) <= deadline)
    }

    /// Whether an id is its own or, of an array, that of a task of it.
    pub(crate) fn is_or_has(&self, id: JobId) -> bool {
        match &self.particulars.positions {
            None => self.id == id,
            Some(positions) => {
                id.0.checked_sub(self.id.0)
                    .is_some_and(|at| u32::try_from(at).is_ok_and(|at| positions.contains(at)))
            }
        }
    }

    /// All ids that may be its own, with some between that are not.
    pub(crate) fn ids(&self) -> RangeInclusive<JobId> {
        let last = self
            .particulars
            .positions
            .as_ref()
            .and_then(RangeSet::last)
            .unwrap_or(0);
        self.id..=JobId(self.id.0 + u64::from(last))
    }

    /// Whether it is, or has a task, among some.
    pub(crate) fn is_among(&self, some: &BTreeSet<JobId>) -> bool {
        some.range(self.ids()).any(|id| self.is_or_has(*id))
    }

    /// One of several partitions, or of the alternatives of a constraint, is meant, and the others have entries of their own.
    pub fn is_choice(&self) -> bool {
        !self.spec.partitions.is_empty() || self.spec.alternative.is_some()
    }

    /// Its partition, where it waits in several.
    pub fn partition_of_several(&self) -> Option<String> {
        (!self.spec.partitions.is_empty()).then(|| self.spec.partition.clone())
    }

    /// It has several entries.
    pub fn has_choices(&self) -> bool {
        self.spec.waits_in_several()
            || self
                .spec
                .request
                .constraint
                .as_deref()
                .is_some_and(Constraint::has_brackets)
    }

    /// One entry for each of its partitions and each alternative of its constraint; itself where there is one only.
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

/// A job starts in its reservation as long as so much of the window is left, where it names no least time of its own: it ends with the
/// window.
const LEAST_LEFT_SECS: u32 = 60;

/// What must be left at least of a window of its reservation for a job to start in it, seconds.
pub fn least_secs(spec: &JobSpec, limit_secs: Option<u32>) -> u32 {
    spec.time_min_secs
        .unwrap_or(LEAST_LEFT_SECS)
        .min(limit_secs.unwrap_or(u32::MAX))
        .max(1)
}

/// A live run: what it still holds, until when, and its account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningRun {
    pub run: RunId,
    pub spec: Arc<JobSpec>,
    /// Shares of nodes that have not reported clean.
    pub shares: Vec<NodeShare>,
    pub placed: Timestamp,
    /// First process of the user; `None`: getting ready.
    pub started: Option<Timestamp>,
    /// Start plus limit; `None` for unlimited.
    pub ends_by: Option<Timestamp>,
    /// `None` where there are no quotas.
    pub class: Option<RunClass>,
    /// When its last checkpoint was safe.
    pub marked: Option<Timestamp>,
    /// It is being ended, for whatever reason, and its resources are expected back by then.
    pub leaves_by: Option<Timestamp>,
    /// The job that it was preempted for.
    pub leaves_for: Option<JobId>,
    /// Which was to start on what others leave idle when this was decided.
    pub leaves_for_borrower: bool,
    /// May be started again after a preemption.
    pub may_requeue: bool,
    /// When an earlier run of the job was preempted.
    pub preempted: Option<Timestamp>,
    /// It is over and its use is in the book, though a node has not reported clean.
    pub charged: bool,
    /// It stands still for another job, and its shares hold no CPUs.
    pub frozen: Option<Frozen>,
}

/// What a run that stands still needs to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frozen {
    /// The job that was to have its CPUs.
    pub for_job: JobId,
    /// In the order of its shares.
    pub cpus: Vec<u32>,
}

impl RunningRun {
    /// A run of long ago that nothing special is known of.
    pub fn new(
        run: RunId,
        spec: Arc<JobSpec>,
        shares: Vec<NodeShare>,
        ends_by: Option<Timestamp>,
    ) -> Self {
        Self {
            run,
            spec,
            shares,
            placed: Timestamp::default(),
            started: Some(Timestamp::default()),
            ends_by,
            class: None,
            marked: None,
            leaves_by: None,
            leaves_for: None,
            leaves_for_borrower: false,
            may_requeue: true,
            preempted: None,
            charged: false,
            frozen: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_where_ids_are_missing_too() {
        let place = |ids: &[u32], id: u32| place_of_node(ids, NodeId(id), |id| NodeId(*id));
        for ids in [&[3, 4, 5, 6][..], &[3, 5, 6, 9], &[1], &[]] {
            for id in 0..12 {
                assert_eq!(
                    place(ids, id),
                    ids.iter().position(|one| *one == id),
                    "{id} in {ids:?}"
                );
            }
        }
    }
}
