//! Where a job with a nomination may look for nodes: on its nominated nodes first, never on nodes of other nominations.

use crate::cluster::nodes::Holds;
use crate::cluster::picked::{PickedNodes, each};
use crate::job::job_class::JobClassId;
use crate::pass::Pass;
use crate::place::search::{Ask, Search};
use crate::snapshot::PendingJob;
use fixedbitset::FixedBitSet;
use gmodel::{JobId, NodeId, Timestamp};

/// A run is over so long after it was to be, at most: what it does before its limit counts.
const LATE_SECS: i64 = 60;

/// Holds the idle part of a job's nominated nodes from shortly before its planned start: a run that should end just then
/// might still be there. `None` without a nomination.
pub(crate) fn hold_idle_part(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    alternative: usize,
    picked: &PickedNodes,
    at: Timestamp,
) -> Option<Holds> {
    let (now, from) = (pass.now, pass.now.max(at.plus_secs(-LATE_SECS)));
    let freed = pass
        .preemption
        .freed
        .get(&key(job))
        .filter(|_| now < at)?
        .clone();
    let cluster = &mut *pass.world.cluster;
    let of = &pass.memory.job_classes.list[job_class as usize];
    let mut holds = Vec::new();
    for (node, part) in each(picked) {
        let track = &cluster.nodes[node];
        let need = of
            .need(alternative, part, track.node_class)
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

/// Whether nominations bound where a job looks for nodes: that it finds none says nothing about its class.
pub(crate) fn is_bound(pass: &Pass, job: &PendingJob) -> bool {
    !pass.preemption.freed.is_empty()
        && (job.particulars.nomination.is_some() || pass.preemption.freed.contains_key(&key(job)))
}

/// Where a nominated job looks for nodes: first on its nominated nodes, then on nodes without a nomination. `None`:
/// anywhere.
pub(crate) fn nominated_bounds(pass: &Pass, job: &PendingJob) -> Option<Vec<FixedBitSet>> {
    if !is_bound(pass, job) {
        return None;
    }
    let own = pass.preemption.freed.get(&key(job));
    let cluster = &pass.world.cluster;
    let places = |nodes: &[NodeId]| {
        let mut set = FixedBitSet::with_capacity(cluster.nodes.len());
        nodes
            .iter()
            .filter_map(|node| cluster.place(*node))
            .for_each(|at| set.insert(at));
        set
    };
    let others = pass
        .preemption
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

/// The earliest start within a job's bounds: on its nominated nodes, if it has any. Earlier room elsewhere may be headroom, and
/// the nominated nodes would be open to all jobs then.
pub(crate) fn earliest_within(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    bounds: &[FixedBitSet],
    look: impl Fn(&mut Search, &Ask) -> Option<(Timestamp, PickedNodes)>,
) -> Option<(Timestamp, PickedNodes)> {
    bounds.iter().find_map(|only| {
        pass.search(job, job_class, |search, ask| {
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

pub(crate) fn key(job: &PendingJob) -> (JobId, bool) {
    (job.id, job.particulars.positions.is_some())
}
