//! Requests that no node of a partition can ever serve, answered at submission with the nearest request that would work.

use crate::feasibility::demand::{Demand, Lack, NodeDemand};
use crate::feasibility::describe::{describe, of_size};
use crate::sched_node::SchedNode;
use gmodel::Request;
use gmodel::config::{MigCuts, Partition};
use gmodel::gpu_request::GpuAmount;
use gmodel::job::GpuScope;
use std::collections::{BTreeMap, BTreeSet};

/// Why a request can never run in a partition with its present nodes, and what would run; `None` when it can.
/// Nodes that are down count: they may return.
pub fn impossible(request: &Request, partition: &Partition, nodes: &[SchedNode]) -> Option<String> {
    let members: Vec<_> = nodes
        .iter()
        .filter(|n| partition.holds(&n.name, &n.features))
        .collect();
    if let Some(text) = wider_than_domains(request, partition, &members) {
        return Some(text);
    }
    let demands = Demand::all(request, partition);
    let lacks: Vec<Lack> = demands
        .iter()
        .filter_map(|d| lack_of(d, &members))
        .collect();
    if lacks.len() < demands.len() {
        return unfit_named_node(request, partition, &demands, &members);
    }
    if partition.mig == MigCuts::Planned
        && demands.iter().any(|demand| could_be_cut(demand, &members))
    {
        return None;
    }
    let demand = demands.first()?;
    let lack = lacks.into_iter().min()?;
    Some(lack_text(lack, request, demand, partition, &members))
}

/// With enough nodes for some demand: why each demand fails on a node that the request names; `None` if one does not.
fn unfit_named_node(
    request: &Request,
    partition: &Partition,
    demands: &[Demand],
    members: &[&SchedNode],
) -> Option<String> {
    let named: Vec<&SchedNode> = members
        .iter()
        .copied()
        .filter(|node| {
            request
                .nodelist
                .as_ref()
                .is_some_and(|list| list.contains(&node.name))
        })
        .collect();
    let unfit = |demand: &Demand| unfit_of(demand, &named, partition);
    let is_possible =
        |demand: &&Demand| lack_of(demand, members).is_none() && unfit(demand).is_none();
    match demands.iter().find(is_possible) {
        Some(_) => None,
        None => demands
            .iter()
            .find_map(|demand| Some(no_use_for(demand, unfit(demand)?))),
    }
}

fn lack_text(
    lack: Lack,
    request: &Request,
    demand: &Demand,
    partition: &Partition,
    members: &[&SchedNode],
) -> String {
    let wanted = &demand.nodes[0];
    let name = &partition.name;
    match lack {
        Lack::Nodes => {
            let fitting = members
                .iter()
                .filter(|node| wanted.fits_empty(node).is_ok())
                .count();
            format!(
                "{}: partition {name:?} has {fitting} such nodes. Ask for fewer --nodes.",
                describe(demand)
            )
        }
        Lack::Gpus => too_many_gpus(request, demand, wanted, partition, members),
        Lack::Cpus => {
            let most = members.iter().map(|node| node.cpus).max().unwrap_or(0);
            let asked = wanted.cpus;
            format!(
                "{asked} CPUs on one node: the largest node in partition {name:?} has {most}. Ask for fewer, or for more --nodes."
            )
        }
        Lack::Memory => {
            let most = gmodel::size::rough_size(
                members.iter().map(|node| node.mem_bytes).max().unwrap_or(0),
            );
            format!(
                "more memory on one node than any has: the largest in partition {name:?} has {most}."
            )
        }
    }
}

/// The first of the nodes that a request names that could serve no part of a demand if nothing else ran there.
pub fn unfit_of<'a>(
    demand: &Demand,
    named: &[&'a SchedNode],
    partition: &Partition,
) -> Option<&'a SchedNode> {
    let is_cut = partition.mig == MigCuts::Planned;
    let serves = |node: &SchedNode| {
        demand
            .nodes
            .iter()
            .any(|part| part.fits_empty(node).is_ok() || (is_cut && part.fits_cut(node)))
    };
    named.iter().copied().find(|node| !serves(node))
}

fn no_use_for(demand: &Demand, node: &SchedNode) -> String {
    let mut gpus: BTreeMap<String, u32> = BTreeMap::new();
    node.gpus
        .iter()
        .filter(|gpu| !gpu.info.divided)
        .for_each(|gpu| *gpus.entry(gpu.info.kind()).or_default() += 1);
    let gpus: Vec<String> = gpus
        .into_iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    let gpus = if gpus.is_empty() {
        "no GPUs".to_owned()
    } else {
        gpus.join(" and ")
    };
    let mem = gmodel::size::rough_size(node.mem_bytes);
    format!(
        "{}: {}, which --nodelist names, has {gpus}, {} CPUs and {mem} of memory. Take it out of the list, or ask for what it has.",
        describe(demand),
        node.name,
        node.cpus
    )
}

/// No node has so many of such GPUs, slices or parts.
fn too_many_gpus(
    request: &Request,
    demand: &Demand,
    wanted: &NodeDemand,
    partition: &Partition,
    members: &[&SchedNode],
) -> String {
    let name = &partition.name;
    let most = members
        .iter()
        .map(|node| wanted.most_gpus(node))
        .max()
        .unwrap_or(0);
    let count = wanted.gpus.count();
    if let GpuAmount::Mig { profile, .. } = &wanted.gpus.amount
        && !wanted.is_linked()
    {
        return no_slices(wanted, profile, count, most, partition, members);
    }
    if wanted.gpus.capped && most == 0 && !members.is_empty() {
        return none_by_mps(demand, partition, members);
    }
    let kind = wanted
        .gpus
        .gpu_type
        .as_deref()
        .unwrap_or(if count == 1 { "GPU" } else { "GPUs" });
    let size = of_size(&wanted.gpus);
    let ask = format!("{count} {kind}{size} on one node");
    if wanted.is_linked() {
        let has = match most {
            0 => "reports no NVLink between such GPUs".into(),
            most => format!("links {most} of them at most"),
        };
        return format!(
            "{ask} that NVLink joins: partition {name:?} {has}. Ask for fewer, or leave out --nvlink."
        );
    }
    if most == 0 {
        return format!(
            "{ask}: partition {name:?} has none such (it has {}).",
            types_there(members, !size.is_empty())
        );
    }
    let advice = on_more_nodes(request, wanted, most as u32)
        .filter(|(wider, _)| has_room(wider, partition, members))
        .map_or_else(|| "Ask for fewer.".to_owned(), |(_, advice)| advice);
    let each = count / wanted.tasks.max(1);
    let ask = match request.gpu_scope {
        GpuScope::Task if each as usize > most => format!("{each} {kind} for one task"),
        _ => ask,
    };
    format!("{ask}: the largest node in partition {name:?} has {most}. {advice}")
}

/// No GPU of a partition can give such a share.
fn none_by_mps(demand: &Demand, partition: &Partition, members: &[&SchedNode]) -> String {
    let gpus = || {
        members
            .iter()
            .flat_map(|node| node.gpus.iter())
            .filter(|gpu| gpu.info.slice.is_none())
    };
    let (all, by_mps) = (gpus().count(), gpus().filter(|gpu| gpu.info.mps).count());
    let advice = match by_mps {
        0 => "their nodes have no MPS to do it with (gnodes NODE says why). Ask for whole GPUs.",
        _ => "none of them has such a part. Ask for a larger part, another type or less --gpu-mem.",
    };
    format!(
        "{}: {by_mps} of the {all} GPUs in partition {:?} can be shared; {advice}",
        describe(demand),
        partition.name
    )
}

/// The types of GPUs that nodes have, with the largest memory of each where that is what was asked for.
fn types_there(members: &[&SchedNode], with_size: bool) -> String {
    let mut most_mib: BTreeMap<&str, u64> = BTreeMap::new();
    for gpu in members.iter().flat_map(|node| node.gpus.iter()) {
        let most = most_mib.entry(&gpu.info.gpu_type).or_default();
        *most = gpu.info.memory_mib.max(*most);
    }
    let types = most_mib.into_iter().map(|(kind, mib)| match with_size {
        true => format!("{kind} with {}", gmodel::size::rough_size(mib << 20)),
        false => kind.to_owned(),
    });
    let types: Vec<String> = types.collect();
    if types.is_empty() {
        "no GPUs".into()
    } else {
        types.join(", ")
    }
}

/// Whether nodes that do nothing else could run it.
fn has_room(request: &Request, partition: &Partition, members: &[&SchedNode]) -> bool {
    request.nodes_min as usize <= members.len()
        && Demand::all(request, partition)
            .iter()
            .any(|demand| lack_of(demand, members).is_none())
}

/// The same GPUs on more nodes, of which none has more than `most`, and the options that say so.
fn on_more_nodes(request: &Request, wanted: &NodeDemand, most: u32) -> Option<(Request, String)> {
    let factor = wanted.gpus.count().div_ceil(most);
    let nodes = request.nodes_min.checked_mul(factor)?;
    let wider = Request {
        nodes_min: nodes,
        nodes_max: nodes,
        nodes_any: false,
        ..request.clone()
    };
    if request.gpu_scope == GpuScope::Task {
        return Some((wider, format!("Try --nodes {nodes}.")));
    }
    let each = wanted.gpus.count().div_ceil(factor);
    let of_type = wanted
        .gpus
        .gpu_type
        .as_ref()
        .map_or(String::new(), |kind| format!("{kind}:"));
    let gpus = format!("{of_type}{each}");
    let gpus_asked = gmodel::gpu_request::GpuRequest::parse(&gpus).ok();
    Some((
        Request {
            gpus: gpus_asked,
            gpu_scope: GpuScope::Node,
            ..wider
        },
        format!("Try --nodes {nodes} --gpus-per-node {gpus}."),
    ))
}

/// With `--nvlink` the nodes of a job are of one NVLink domain, where there are domains.
fn wider_than_domains(
    request: &Request,
    partition: &Partition,
    members: &[&SchedNode],
) -> Option<String> {
    let nodes = request.nodes_min.max(
        request
            .nodelist
            .as_ref()
            .map_or(0, |list| list.len() as u32),
    ) as usize;
    let asks = request.nvlink && nodes > 1 && request.has_gpus();
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    members
        .iter()
        .filter(|node| !node.nvlink_domain.is_empty())
        .for_each(|node| *sizes.entry(&node.nvlink_domain).or_default() += 1);
    let most = sizes
        .into_values()
        .max()
        .filter(|most| asks && *most < nodes)?;
    let name = &partition.name;
    Some(format!(
        "--nvlink on {nodes} nodes: the largest NVLink domain in partition {name:?} has {most}. Ask for fewer, or leave out --nvlink."
    ))
}

/// Whether each node of a demand could be another that is cut for it.
pub fn could_be_cut(demand: &Demand, nodes: &[&SchedNode]) -> bool {
    demand.nodes.iter().enumerate().all(|(at, wanted)| {
        nodes
            .iter()
            .filter(|node| wanted.fits_cut(node))
            .nth(at)
            .is_some()
    })
}

/// So many slices of a profile are on no node, and none would be cut so.
fn no_slices(
    wanted: &NodeDemand,
    profile: &str,
    count: u32,
    most: usize,
    partition: &Partition,
    members: &[&SchedNode],
) -> String {
    let name = &partition.name;
    let ask = format!("{count} {profile} on one node");
    if most > 0 {
        return format!(
            "{ask}: the node of partition {name:?} with the most of them has {most}. Ask for fewer, or for more --nodes."
        );
    }
    let gpus = members
        .iter()
        .flat_map(|node| node.gpus.iter().map(|gpu| &gpu.info));
    let slices: BTreeSet<String> = gpus
        .filter(|gpu| gpu.slice.is_some())
        .map(|gpu| gpu.kind())
        .collect();
    let kinds = members
        .iter()
        .flat_map(|node| node.mig.boards.iter())
        .filter(|board| wanted.gpus.is_of_type(&board.gpu_type));
    let could: BTreeSet<String> = kinds
        .map(|board| format!("{}: {}", board.gpu_type, board.profiles()))
        .collect();
    let list = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join("; ");
    let there = match slices.is_empty() {
        true => "no GPU of it is cut by MIG now".to_owned(),
        false => format!("its slices are {}", list(slices)),
    };
    let rest = match (partition.mig, could.is_empty()) {
        (_, true) => String::new(),
        (MigCuts::Planned, false) => format!(" Its GPUs can be cut into {}.", list(could)),
        (MigCuts::Fixed, false) => {
            format!(" Administrators could cut its GPUs into {}.", list(could))
        }
    };
    format!("{ask}: partition {name:?} has none such ({there}).{rest}")
}

fn lack_of(demand: &Demand, members: &[&SchedNode]) -> Option<Lack> {
    if members.is_empty() {
        return None;
    }
    // Neighbours that ask for the same are counted once: the last of them needs the most nodes.
    let mut before = 0;
    demand
        .nodes
        .chunk_by(|one, next| one == next)
        .find_map(|alike| {
            let wanted = &alike[0];
            before += alike.len();
            let fitting = members
                .iter()
                .filter(|node| wanted.fits_empty(node).is_ok())
                .take(before)
                .count();
            if fitting > 0 {
                return (fitting < before).then_some(Lack::Nodes);
            }
            // What the nearest node lacks.
            members
                .iter()
                .filter_map(|node| wanted.fits_empty(node).err())
                .max()
        })
}
