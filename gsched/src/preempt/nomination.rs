//! Nodes on which room is being made for jobs: each is to start on its own, and those of others are none of its business.
//!
//! Without that the first in order takes what was left for the next, who makes others go once more. Kept in a job's reason from
//! the pass that chose who goes until it starts. Holds nothing: reservations do.

use crate::cluster::nodes::Holds;
use crate::job::job_class::ShapeId;
use crate::pass::{Engine, Pass};
use crate::place::search::{Ask, Picked, Search, each};
use crate::snapshot::PendingJob;
use fixedbitset::FixedBitSet;
use gmodel::{JobId, NodeId, Reason, ReasonCode, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A run is over so long after it was to be, at most: what it does before its limit counts.
const LATE_SECS: i64 = 60;

/// By job, and whether it is an array.
pub(crate) type Freed = BTreeMap<(JobId, bool), Arc<Vec<NodeId>>>;

impl Pass<'_> {
    /// Those for whom others went before this pass.
    pub(crate) fn know_freed(&mut self) {
        let waits = |job: &&PendingJob| {
            job.reason.code == ReasonCode::Preempting && job.is_eligible(self.snapshot.now)
        };
        let jobs = self.snapshot.pending.iter().filter(waits);
        self.freed = jobs
            .filter_map(|job| Some((key(job), job.reason.nodes.clone()?)))
            .collect();
    }

    /// Others go, and a job is to start here.
    pub(crate) fn free_for(&mut self, job: &PendingJob, picked: &Picked) {
        let nodes = each(picked)
            .map(|(at, _)| self.engine.cluster.nodes[at].id)
            .collect();
        self.freed.insert(key(job), Arc::new(nodes));
    }

    /// What is idle already where others go for a job is its own from shortly before it starts: runs take a while to begin, and one that
    /// is to be over just then would still be there. `None`: nothing is freed for it.
    pub(crate) fn hold_idle_part(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        way: usize,
        picked: &Picked,
        at: Timestamp,
    ) -> Option<Holds> {
        let (now, from) = (self.now, self.now.max(at.plus_secs(-LATE_SECS)));
        let freed = self.freed.get(&key(job)).filter(|_| now < at)?.clone();
        let Engine {
            shapes, cluster, ..
        } = &mut *self.engine;
        let of = &shapes.list[shape as usize];
        let mut holds = Vec::new();
        for (node, part) in each(picked) {
            let track = &cluster.nodes[node];
            let need = of
                .need(way, part, track.make)
                .filter(|need| freed.contains(&track.id) && need.milli == 0);
            let Some(need) = need.filter(|need| cluster.fits(node, need, from, at)) else {
                continue;
            };
            holds.extend(
                cluster
                    .touch(node)
                    .hold(need, from, at)
                    .map(|hold| (hold, node..node + 1)),
            );
        }
        Some(holds)
    }

    /// Why a job waits for which others go, with where it is to start.
    pub(crate) fn freed_reason(&self, job: &PendingJob, reason: Reason) -> Reason {
        Reason {
            nodes: self.freed.get(&key(job)).cloned(),
            ..reason
        }
    }

    /// It started.
    pub(crate) fn takes_freed(&mut self, job: &PendingJob) {
        self.freed.remove(&key(job));
    }

    /// One that may not have what was freed for another: what it is refused says nothing of others.
    pub(crate) fn is_bound(&self, job: &PendingJob) -> bool {
        !self.freed.is_empty()
            && (job.reason.code == ReasonCode::Preempting || self.freed.contains_key(&key(job)))
    }

    /// Whether as many of an array as its cap has room for are to start already where others go for them: tasks with records of their own
    /// wait beside the rest.
    pub(crate) fn cap_is_promised(&self, job: &PendingJob) -> bool {
        let Some(array) = job.capped_array().filter(|_| !self.freed.is_empty()) else {
            return false;
        };
        let own = key(job);
        let beside = self
            .snapshot
            .pending
            .iter()
            .filter(|other| other.capped_array() == Some(array) && other.spec.choice() == 0);
        let promised = beside
            .map(key)
            .filter(|other| *other != own && self.freed.contains_key(other))
            .count();
        self.array_room(job) as usize <= promised
    }

    /// Whether others go for it elsewhere: it is not to start in this one of its partitions.
    pub(crate) fn is_freed_elsewhere(&self, job: &PendingJob, shape: ShapeId) -> bool {
        let up = &self.shape(shape).candidates.up;
        let is_here = |node: &NodeId| {
            self.engine
                .cluster
                .place(*node)
                .is_some_and(|at| up.contains(at))
        };
        job.is_choice()
            && self
                .freed
                .get(&key(job))
                .is_some_and(|nodes| !nodes.iter().all(is_here))
    }

    /// Where a job for which others go looks for nodes: first on those that are freed for it, then on those that are for nobody. `None`:
    /// anywhere.
    pub(crate) fn bounds(&self, job: &PendingJob) -> Option<Vec<FixedBitSet>> {
        if !self.is_bound(job) {
            return None;
        }
        let own = self.freed.get(&key(job));
        let cluster = &self.engine.cluster;
        let places = |nodes: &[NodeId]| {
            let mut set = FixedBitSet::with_capacity(cluster.nodes.len());
            nodes
                .iter()
                .filter_map(|node| cluster.place(*node))
                .for_each(|at| set.insert(at));
            set
        };
        let others = self
            .freed
            .iter()
            .filter(|(whose, _)| **whose != key(job))
            .flat_map(|(_, nodes)| nodes.iter().copied());
        let mut open = places(&others.collect::<Vec<NodeId>>());
        open.toggle_range(..);
        Some(
            own.map(|own| places(own))
                .into_iter()
                .chain([open])
                .collect(),
        )
    }

    /// The earliest start within the bounds of a job: on the nodes that are freed for it, where it has such. Elsewhere there may be room
    /// before that is kept idle, and what is left for it there would be anybody's.
    pub(crate) fn earliest_within(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        bounds: &[FixedBitSet],
        look: impl Fn(&mut Search, &Ask) -> Option<(Timestamp, Picked)>,
    ) -> Option<(Timestamp, Picked)> {
        bounds.iter().find_map(|only| {
            self.search(job, shape, |search, ask| {
                look(
                    search,
                    &Ask {
                        only: Some(only),
                        ..*ask
                    },
                )
            })
        })
    }
}

fn key(job: &PendingJob) -> (JobId, bool) {
    (job.id, job.positions.is_some())
}
