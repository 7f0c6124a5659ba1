//! Why a job would not fit even if nothing else ran.

use crate::cluster::network;
use crate::cluster::nodes::Cluster;
use crate::job::job_class::{JobClass, lack};
use crate::snapshot::{SchedNode, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::config::MigCuts;
use gmodel::{Reason, ReasonCode};
use gpolicy::feasibility::demand::Demand;
use gpolicy::feasibility::describe::{describe, fault};
use gpolicy::feasibility::impossible::{could_be_cut, unfit_of};

/// The reason of a job that no choice of so many leaf switches can serve.
fn too_few_below(job_class: &JobClass, demands: &[Demand], snapshot: &Snapshot) -> Option<Reason> {
    let partition = &snapshot.config.partitions[job_class.partition];
    let topology = &snapshot.config.scheduler.topology;
    let request = &job_class.spec.request;
    if request.switches.is_none() || topology.switches.is_empty() {
        return None;
    }
    let nodes: Vec<_> = job_class
        .candidates
        .all
        .ones()
        .map(|at| &snapshot.nodes[at])
        .collect();
    let few = network::too_few_below(topology, request, partition, &nodes)?;
    let (needs, most, asked) = (
        demands.first().map_or(String::new(), describe),
        few.most,
        request.switches?.most,
    );
    let below = if asked == 1 {
        "one leaf switch".to_owned()
    } else {
        format!("{asked} leaf switches")
    };
    let instead = few.switches.map_or(String::new(), |enough| {
        format!(", and enough below {enough}")
    });
    let such = if most == 1 { "such node" } else { "such nodes" };
    let text = format!(
        "needs {needs} below {below}; partition {:?} has {most} {such} there at most{instead}",
        partition.name
    );
    Some(Reason::new(ReasonCode::BadConstraints, text))
}

/// The reason of a job that would not fit even if nothing else ran.
pub fn never(
    job_class: &JobClass,
    demands: &[Demand],
    snapshot: &Snapshot,
    cluster: &Cluster,
) -> Option<Reason> {
    if let Some(reason) = unfit_named_node(job_class, demands, snapshot) {
        return Some(reason);
    }
    let partition = &snapshot.config.partitions[job_class.partition];
    let candidates = &job_class.candidates;
    let nodes_of = |set: &FixedBitSet| -> Vec<&SchedNode> {
        set.ones().map(|at| &snapshot.nodes[at]).collect()
    };
    let named_up = job_class.named.iter().all(|at| candidates.up.contains(*at));
    let mut alternatives = job_class.alternatives.iter();
    if named_up && alternatives.any(|one| lack(one, candidates, true, cluster).is_none()) {
        return too_few_below(job_class, demands, snapshot);
    }
    if partition.mig == MigCuts::Planned && named_up {
        let up = nodes_of(&candidates.up);
        // Not as the GPUs are cut now: it waits until they are cut for it.
        if demands.iter().any(|demand| could_be_cut(demand, &up)) {
            return None;
        }
    }
    // Nodes that are down and GPUs that are out of order are expected back.
    let all = nodes_of(&candidates.all);
    let would_fit = |demand: &Demand| {
        let fitting = |part: usize| {
            let fits = |node: &&&SchedNode| demand.nodes[part].fits_empty(node).is_ok();
            all.iter().filter(fits).count()
        };
        (0..demand.nodes.len()).all(|part| fitting(part) > part)
    };
    if demands.iter().any(would_fit) {
        return Some(not_available(job_class, &all));
    }
    let needs = demands.first().map_or(String::new(), describe);
    let name = &partition.name;
    let text = format!("needs {needs}; partition {name:?} has no such nodes");
    let code = if job_class.spec.request.constraint.is_some() && candidates.all.is_clear() {
        ReasonCode::BadConstraints
    } else {
        ReasonCode::PartitionConfig
    };
    Some(Reason::new(code, text))
}

/// Why a job cannot run on the nodes that it names.
fn unfit_named_node(
    job_class: &JobClass,
    demands: &[Demand],
    snapshot: &Snapshot,
) -> Option<Reason> {
    let partition = &snapshot.config.partitions[job_class.partition];
    let bad = |text: String| Some(Reason::new(ReasonCode::BadConstraints, text));
    if let Some(list) = &job_class.spec.request.nodelist {
        let all = &job_class.candidates.all;
        let is_known = |name: &str| all.ones().any(|at| snapshot.nodes[at].name == name);
        if let Some(missing) = list.iter().find(|name| !is_known(name)) {
            let name = &partition.name;
            return bad(format!(
                "node {missing:?} is none that partition {name:?} can give it"
            ));
        }
    }
    let named = job_class.named.iter().map(|at| &snapshot.nodes[*at]);
    let named: Vec<&SchedNode> = named.collect();
    let unfit = |demand| unfit_of(demand, &named, partition);
    let nodes: Option<Vec<&SchedNode>> = demands.iter().map(unfit).collect();
    let node = nodes?.first().copied()?;
    bad(format!(
        "needs {}; {}, which it names, has not that",
        describe(&demands[0]),
        node.name
    ))
}

/// The reason of a job for which nodes or GPUs are out of service.
fn not_available(job_class: &JobClass, nodes: &[&SchedNode]) -> Reason {
    let barred = |node: &SchedNode| {
        let one = job_class.barred.iter().find(|one| one.node == node.id)?;
        Some(format!(
            "failed to start it, tried there again at {}: {}",
            one.until, one.text
        ))
    };
    let sick = |node: &SchedNode| {
        let mut gpus = node.gpus.iter();
        gpus.find(|gpu| !gpu.usable() && gpu.is_expected())
            .map(fault)
    };
    let down = nodes.iter().filter_map(|node| {
        let unavailable = node.unavailable.clone();
        let why = unavailable
            .or_else(|| barred(node))
            .or_else(|| sick(node))?;
        Some(format!("{}: {why}", node.name))
    });
    let down: Vec<String> = down.take(4).collect();
    let text = format!("nodes it needs are not available ({})", down.join(", "));
    Reason::new(ReasonCode::ReqNodeNotAvail, text)
}
