//! Where most is free now, in words.

use crate::cluster::node_class::NodeClass;
use crate::cluster::nodes::Cluster;
use crate::cluster::timeline::{Amount, Kinds};
use crate::job::job_class::JobClass;
use crate::snapshot::Snapshot;
use fixedbitset::FixedBitSet;
use gmodel::GpuPart;
use gmodel::gpu_request::{GpuAlternative, GpuAmount, GpuKind};
use gpolicy::limits::count;
use std::collections::BTreeMap;
use std::ops::Range;

/// Where most is free now, in words.
pub fn what_is_free(job_class: &JobClass, snapshot: &Snapshot, cluster: &Cluster) -> String {
    let candidates = &*job_class.in_question();
    let request = &job_class.spec.request;
    let makes = &cluster.makes.list;
    // Where not any GPU will do, only those that would are counted.
    let is_named = |one: &GpuAlternative| {
        one.kind != GpuKind::Any || matches!(one.amount, GpuAmount::Mig { .. })
    };
    let names_kind = request.gpu_mem_mib.is_some()
        || request
            .gpus
            .iter()
            .flat_map(|ask| &ask.alternatives)
            .any(is_named);
    let any_will_do = !names_kind
        && makes
            .iter()
            .all(|make| make.groups.iter().all(|group| group.part == GpuPart::Whole));
    let kinds_on = |at: usize| match job_class.need(0, 0, cluster.nodes[at].make) {
        Some(need) if need.whole() > 0 => need.groups,
        None if names_kind => 0,
        _ => {
            makes[cluster.nodes[at].make as usize].kinds_where(|group| group.part == GpuPart::Whole)
        }
    };
    // Of nodes with one room the last.
    let most_of = |mut nodes: FixedBitSet| {
        nodes.intersect_with(candidates);
        let last = |stretch: Range<usize>| stretch.rev().find(|at| nodes.contains(*at));
        let of = |at: usize| {
            let free = cluster.room(at).profile.free_at(cluster.now);
            // Where none is free, a node that has the kind says more than one that has not.
            let has_kind = !names_kind || job_class.need(0, 0, cluster.nodes[at].make).is_some();
            (
                free.gpus_in(kinds_on(at)),
                has_kind,
                free.cpus,
                free.mem_bytes,
                at,
            )
        };
        cluster
            .stretches()
            .filter(|stretch| nodes.contains_any_in_range(stretch.clone()))
            .filter_map(last)
            .map(of)
            .max()
    };
    // Among those with the most GPUs; all are looked at only where none has a CPU left.
    let most = if !any_will_do {
        None
    } else {
        cluster
            .by_free
            .iter()
            .rev()
            .find_map(|nodes| most_of(nodes.clone()))
    };
    match most.or_else(|| most_of(candidates.clone())) {
        Some((_, _, cpus, mem, at)) => {
            let name = &snapshot.nodes[at].name;
            let (cpus, mem) = (count(cpus.into(), "CPU"), gmodel::size::rough_size(mem));
            let named = names_kind.then(|| kinds_on(at));
            let gpus = gpus_text(
                cluster.room(at).profile.free_at(cluster.now),
                &makes[cluster.nodes[at].make as usize],
                named,
            );
            let others = crate::job::sharing::others_room(job_class, snapshot, cluster);
            format!("most is free on {name}: {gpus}, {cpus} and {mem} of memory{others}")
        }
        None => "no node is available".into(),
    }
}

/// GPUs of some kinds, or of all, as people count them: `1 GPU, 3 slices 1g.10gb`.
pub(crate) fn gpus_text(free: &Amount, make: &NodeClass, named: Option<Kinds>) -> String {
    let mut gpus = None;
    let mut slices: BTreeMap<&str, u64> = BTreeMap::new();
    for (at, group) in make
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
