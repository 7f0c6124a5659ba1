//! Where most is free now, in words.

use crate::cluster::node_class::NodeClass;
use crate::cluster::nodes::Cluster;
use crate::cluster::timeline::{Amount, Kinds};
use crate::job::job_class::JobClass;
use crate::job::sharing::others_room;
use crate::snapshot::Snapshot;
use fixedbitset::FixedBitSet;
use gmodel::GpuPart;
use gmodel::gpu_request::{GpuAlternative, GpuAmount, GpuKind};
use gpolicy::limits::count;
use std::collections::BTreeMap;
use std::ops::Range;

/// Where most is free now, in words.
pub fn what_is_free(job_class: &JobClass, snapshot: &Snapshot, cluster: &Cluster) -> String {
    let names_kind = names_kind(job_class);
    let Some(at) = freest_node(job_class, names_kind, cluster) else {
        return "no node is available".into();
    };
    let free = cluster.state(at).profile.free_at(cluster.now);
    let named = names_kind.then(|| kinds_on(job_class, names_kind, at, cluster));
    let node_class = &cluster.node_classes.list[cluster.nodes[at].node_class as usize];
    let gpus = gpus_text(free, node_class, named);
    let cpus = count(free.cpus.into(), "CPU");
    let mem = gmodel::size::rough_size(free.mem_bytes);
    let others = others_room(job_class, snapshot, cluster);
    let name = &snapshot.nodes[at].name;
    format!("most is free on {name}: {gpus}, {cpus} and {mem} of memory{others}")
}

/// Whether not any GPU will do.
fn names_kind(job_class: &JobClass) -> bool {
    let request = &job_class.spec.request;
    let is_named = |one: &GpuAlternative| {
        one.kind != GpuKind::Any || matches!(one.amount, GpuAmount::Mig { .. })
    };
    let mut asked = request.gpus.iter().flat_map(|ask| &ask.alternatives);
    request.gpu_mem_mib.is_some() || asked.any(is_named)
}

/// The kinds of GPUs that are counted on a node: those that serve the job, or all whole ones.
fn kinds_on(job_class: &JobClass, names_kind: bool, at: usize, cluster: &Cluster) -> Kinds {
    let node_class = cluster.nodes[at].node_class;
    match job_class.need(0, 0, node_class) {
        Some(need) if need.whole() > 0 => need.groups,
        None if names_kind => 0,
        _ => cluster.node_classes.list[node_class as usize]
            .kinds_where(|group| group.part == GpuPart::Whole),
    }
}

/// The candidate with the most free GPUs, then CPUs, then memory.
fn freest_node(job_class: &JobClass, names_kind: bool, cluster: &Cluster) -> Option<usize> {
    let candidates = &*job_class.in_question();
    let most_of = |mut nodes: FixedBitSet| {
        nodes.intersect_with(candidates);
        // Of nodes with one state the last.
        let last = |stretch: Range<usize>| stretch.rev().find(|at| nodes.contains(*at));
        let amount_on = |at: usize| {
            let free = cluster.state(at).profile.free_at(cluster.now);
            let gpus = free.gpus_in(kinds_on(job_class, names_kind, at, cluster));
            // Where no GPU is free, a node that has the kind says more than one without it.
            let has_kind =
                !names_kind || job_class.need(0, 0, cluster.nodes[at].node_class).is_some();
            (gpus, has_kind, free.cpus, free.mem_bytes, at)
        };
        let freest = cluster
            .stretches()
            .filter(|stretch| nodes.contains_any_in_range(stretch.clone()))
            .filter_map(last)
            .map(amount_on)
            .max();
        freest.map(|(.., at)| at)
    };
    let are_whole = |node_class: &NodeClass| {
        node_class
            .groups
            .iter()
            .all(|group| group.part == GpuPart::Whole)
    };
    let any_will_do = !names_kind && cluster.node_classes.list.iter().all(are_whole);
    // Among nodes with the most GPUs; among all only where none of those has a CPU left.
    let mut buckets = cluster.by_free.iter().rev().filter(|_| any_will_do);
    buckets
        .find_map(|nodes| most_of(nodes.clone()))
        .or_else(|| most_of(candidates.clone()))
}

/// GPUs of some kinds, or of all: `1 GPU, 3 slices 1g.10gb`.
pub(crate) fn gpus_text(free: &Amount, node_class: &NodeClass, named: Option<Kinds>) -> String {
    let mut gpus = None;
    let mut slices: BTreeMap<&str, u64> = BTreeMap::new();
    for (at, group) in node_class
        .groups
        .iter()
        .enumerate()
        .filter(|(at, _)| named.is_none_or(|kinds| kinds & (1 << at) != 0))
    {
        let free = u64::from(free.gpus[at]);
        match &group.part {
            GpuPart::Mig { profile, .. } => *slices.entry(profile).or_default() += free,
            GpuPart::Whole | GpuPart::Share { .. } => *gpus.get_or_insert(0) += free,
        }
    }
    let names_slices = named.is_some() && gpus.is_none();
    slices.retain(|_, free| *free > 0 || names_slices);
    let gpus = gpus
        .filter(|gpus| *gpus > 0)
        .or(slices.is_empty().then_some(0));
    let slices = slices
        .into_iter()
        .map(|(profile, free)| format!("{} {profile}", count(free, "slice")));
    gpus.map(|gpus| count(gpus, "GPU"))
        .into_iter()
        .chain(slices)
        .collect::<Vec<_>>()
        .join(", ")
}
