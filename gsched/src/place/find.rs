//! Nodes for one alternative of a job, now: the preferred ones, else those that limits and headroom allow.

use crate::cluster::nodes::end_after;
use crate::cluster::picked::{PickedNodes, count, each};
use crate::job::job_class::JobClassId;
use crate::ledger::refusal::{LimitKind, LimitRefusal};
use crate::pass::{FoundNodes, NodesOrLimit, Pass};
use crate::place::allowed::{NodeOffer, check_limits_on, take_of};
use crate::place::nominated_nodes::nominated_bounds;
use crate::place::search::Ask;
use crate::snapshot::PendingJob;
use fixedbitset::FixedBitSet;
use gmodel::RunClass;
use std::collections::BTreeSet;

/// Node sizes that are tried for a job that takes nodes whole, of each kind.
const MOST_SIZES: usize = 8;

/// Whether a job may take some nodes: its class, or the limit that refuses it.
pub(crate) type Check<'a> = &'a dyn Fn(&Pass, &NodeOffer) -> Result<Option<RunClass>, LimitRefusal>;

/// A search for nodes now, for one alternative of a job.
struct NodeSearch<'a> {
    job: &'a PendingJob,
    job_class: JobClassId,
    alternative: usize,
    secs: u32,
    /// The only nodes to take.
    bounds: Option<&'a FixedBitSet>,
    check: Check<'a>,
}

/// Nodes outside of partitions with headroom.
fn nodes_outside(pass: &Pass, job_class: JobClassId) -> FixedBitSet {
    let mut nodes = pass.job_class(job_class).candidates.up.clone();
    pass.headroom
        .kept_idle_on
        .iter()
        .for_each(|(_, kept)| nodes.difference_with(kept));
    nodes
}

/// For a job that takes nodes whole: nodes below each of the largest sizes, by GPUs and by CPUs.
pub(crate) fn smaller_nodes(
    pass: &Pass,
    job_class: JobClassId,
    alternative: usize,
) -> Vec<FixedBitSet> {
    let of = pass.job_class(job_class);
    if !of.alternatives[alternative]
        .parts
        .iter()
        .any(|part| part.demand.exclusive)
    {
        return Vec::new();
    }
    let cluster = &pass.world.cluster;
    let node_class = |at: usize| &cluster.node_classes.list[cluster.nodes[at].node_class as usize];
    let sizes: [&dyn Fn(usize) -> usize; 2] = [&|at| node_class(at).gpus, &|at| {
        node_class(at).cpus as usize
    }];
    let up = &of.candidates.up;
    let smaller = sizes.iter().flat_map(|size| {
        let all: BTreeSet<usize> = up.ones().map(size).collect();
        let below = all.into_iter().rev().skip(1).take(MOST_SIZES);
        below.map(|most| {
            up.ones()
                .filter(|at| size(*at) <= most)
                .collect::<FixedBitSet>()
        })
    });
    smaller.collect()
}

/// Nodes for an alternative, now: the preferred ones; another type, or smaller nodes, where a limit refuses these.
pub(crate) fn find_nodes(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    alternative: usize,
    secs: u32,
) -> NodesOrLimit {
    let check = |pass: &Pass, offer: &NodeOffer| check_limits_on(pass, job, job_class, offer);
    find_nodes_by(pass, job, job_class, alternative, secs, &check)
}

/// As `find_nodes`, with a check other than all limits.
pub(crate) fn find_nodes_by(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    alternative: usize,
    secs: u32,
    check: Check,
) -> NodesOrLimit {
    let search = NodeSearch {
        job,
        job_class,
        alternative,
        secs,
        bounds: None,
        check,
    };
    let Some(bounds) = nominated_bounds(pass, job) else {
        return search.find(pass);
    };
    let mut found = Ok(None);
    for nodes in &bounds {
        let bounds = Some(nodes);
        found = NodeSearch { bounds, ..search }.find(pass);
        if matches!(found, Ok(Some(_))) {
            break;
        }
    }
    found
}

impl NodeSearch<'_> {
    fn find(&self, pass: &mut Pass) -> NodesOrLimit {
        let Some(liked) = self.pick(pass, self.bounds) else {
            return Ok(None);
        };
        let no = match self.check(pass, &liked) {
            Ok(found) => return Ok(Some(found)),
            Err(no) => no,
        };
        for only in self.other_choices(pass) {
            if let Some(picked) = self.pick(pass, Some(&only))
                && let Ok(found) = self.check(pass, &picked)
            {
                return Ok(Some(found));
            }
        }
        let is_headroom = matches!(no.kind, LimitKind::Headroom(_));
        if is_headroom && let Some(found) = self.find_beside_headroom(pass, &liked) {
            return Ok(Some(found));
        }
        Err(no)
    }

    fn pick(&self, pass: &mut Pass, only: Option<&FixedBitSet>) -> Option<PickedNodes> {
        let (now, end) = (pass.now, end_after(pass.snapshot.now, Some(self.secs)));
        pass.search(self.job, self.job_class, |search, ask| {
            search.pick(&Ask { only, ..*ask }, self.alternative, now, end)
        })
    }

    fn check(&self, pass: &Pass, picked: &PickedNodes) -> Result<FoundNodes, LimitRefusal> {
        let (alternative, secs) = (self.alternative, self.secs);
        let take = take_of(pass, self.job_class, alternative, picked, secs);
        let offer = NodeOffer {
            alternative,
            secs,
            picked,
            take: &take,
        };
        let class = (self.check)(pass, &offer)?;
        Ok(FoundNodes {
            picked: picked.clone(),
            take,
            class,
        })
    }

    /// Nodes to try where a limit refuses the preferred ones: of one GPU type, without headroom, smaller.
    fn other_choices(&self, pass: &Pass) -> Vec<FixedBitSet> {
        let job_class = self.job_class;
        let of_types = gpu_types_for(pass, job_class)
            .into_iter()
            .map(|kind| nodes_of_type(pass, job_class, &kind));
        let outside =
            (!pass.headroom.kept_idle_on.is_empty()).then(|| nodes_outside(pass, job_class));
        let mut choices: Vec<FixedBitSet> = of_types
            .chain(outside)
            .chain(smaller_nodes(pass, job_class, self.alternative))
            .collect();
        if let Some(bounds) = self.bounds {
            choices
                .iter_mut()
                .for_each(|only| only.intersect_with(bounds));
        }
        choices
    }

    /// For a gang that would take too many nodes with headroom: as many of these as the headroom allows, and others.
    fn find_beside_headroom(&self, pass: &mut Pass, liked: &PickedNodes) -> Option<FoundNodes> {
        if count(liked) < 2 {
            return None;
        }
        let mut others = nodes_outside(pass, self.job_class);
        let kept: Vec<usize> = each(liked)
            .map(|(at, _)| at)
            .filter(|at| !others.contains(*at))
            .collect();
        if let Some(bounds) = self.bounds {
            others.intersect_with(bounds);
        }
        let (mut fewest, mut most) = (0, kept.len());
        while fewest < most {
            let some = (fewest + most) / 2;
            let mut only = others.clone();
            only.extend(kept[..some].iter().copied());
            let picked = self.pick(pass, Some(&only));
            match picked.map(|picked| self.check(pass, &picked)) {
                None => fewest = some + 1,
                Some(Err(_)) => most = some,
                Some(Ok(found)) => return Some(found),
            }
        }
        None
    }
}

/// Types of GPUs on the nodes that may run a job class.
pub(crate) fn gpu_types_for(pass: &Pass, job_class: JobClassId) -> BTreeSet<String> {
    let cluster = &pass.world.cluster;
    let node_classes: BTreeSet<u32> = pass
        .job_class(job_class)
        .candidates
        .up
        .ones()
        .map(|at| cluster.nodes[at].node_class)
        .collect();
    let groups = node_classes
        .iter()
        .flat_map(|node_class| &cluster.node_classes.list[*node_class as usize].groups);
    groups.map(|group| group.gpu_type.clone()).collect()
}

/// Nodes that have no GPUs but of one type.
pub(crate) fn nodes_of_type(pass: &Pass, job_class: JobClassId, kind: &str) -> FixedBitSet {
    let cluster = &pass.world.cluster;
    let mut nodes = pass.job_class(job_class).candidates.up.clone();
    let of_type = |node_class: &u32| {
        cluster.node_classes.list[*node_class as usize]
            .groups
            .iter()
            .all(|group| group.gpu_type == kind)
    };
    let others: Vec<usize> = nodes
        .ones()
        .filter(|at| !of_type(&cluster.nodes[*at].node_class))
        .collect();
    others.into_iter().for_each(|at| nodes.set(at, false));
    nodes
}
