//! Why a job would not fit even if nothing else ran.

use crate::cluster::network;
use crate::cluster::nodes::Cluster;
use crate::job::job_class::{self, JobClass};
use crate::snapshot::{SchedNode, Snapshot};
use gmodel::config::MigCuts;
use gmodel::{Reason, ReasonCode};
use gpolicy::feasibility::demand::Demand;
use gpolicy::feasibility::describe::{describe, fault};
use gpolicy::feasibility::impossible::{could_be_cut, unfit_of};

/// What no so many leaf switches have for it.
pub(crate) fn too_few_below(
    job_class: &JobClass,
    demands: &[Demand],
    snapshot: &Snapshot,
) -> Option<Reason> {
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
    let partition = &snapshot.config.partitions[job_class.partition].name;
    let candidates = &job_class.candidates;
    if let Some(list) = &job_class.spec.request.nodelist {
        let known = |name: &&str| {
            candidates
                .all
                .ones()
                .any(|at| snapshot.nodes[at].name == **name)
        };
        if let Some(missing) = list.iter().find(|name| !known(name)) {
            let text = format!("node {missing:?} is none that partition {partition:?} can give it");
            return Some(Reason::new(ReasonCode::BadConstraints, text));
        }
    }
    let named: Vec<_> = job_class
        .named
        .iter()
        .map(|at| &snapshot.nodes[*at])
        .collect();
    let unfit = |demand: &Demand| {
        unfit_of(
            demand,
            &named,
            &snapshot.config.partitions[job_class.partition],
        )
    };
    if demands.iter().all(|demand| unfit(demand).is_some())
        && let Some((demand, node)) = demands
            .iter()
            .find_map(|demand| Some((demand, unfit(demand)?)))
    {
        let text = format!(
            "needs {}; {}, which it names, has not that",
            describe(demand),
            node.name
        );
        return Some(Reason::new(ReasonCode::BadConstraints, text));
    }
    let named_up = job_class.named.iter().all(|at| candidates.up.contains(*at));
    if named_up
        && job_class
            .alternatives
            .iter()
            .any(|alternative| job_class::lack(alternative, candidates, true, cluster).is_none())
    {
        return too_few_below(job_class, demands, snapshot);
    }
    if snapshot.config.partitions[job_class.partition].mig == MigCuts::Planned && named_up {
        let up: Vec<_> = candidates.up.ones().map(|at| &snapshot.nodes[at]).collect();
        // Not as the GPUs are cut now: it waits until they are cut for it.
        if demands.iter().any(|demand| could_be_cut(demand, &up)) {
            return None;
        }
    }
    let needs = demands.first().map_or(String::new(), describe);
    // GPUs that are out of order count as nodes that are not available: they are expected back.
    let whole: Vec<_> = candidates
        .all
        .ones()
        .map(|at| &snapshot.nodes[at])
        .collect();
    let would = |demand: &Demand| {
        let fitting = |at: usize| {
            whole
                .iter()
                .filter(|node| demand.nodes[at].fits_empty(node).is_ok())
                .count()
        };
        (0..demand.nodes.len()).all(|at| fitting(at) > at)
    };
    if demands.iter().any(would) {
        let barred = |node: &SchedNode| {
            let one = job_class.barred.iter().find(|one| one.node == node.id)?;
            Some(format!(
                "failed to start it, tried there again at {}: {}",
                one.until, one.text
            ))
        };
        let down = whole.iter().filter_map(|node| {
            let sick = || {
                node.gpus
                    .iter()
                    .find(|gpu| !gpu.usable() && gpu.is_expected())
                    .map(fault)
            };
            node.unavailable
                .clone()
                .or_else(|| barred(node))
                .or_else(sick)
                .map(|why| format!("{}: {why}", node.name))
        });
        let down: Vec<String> = down.take(4).collect();
        let text = format!("nodes it needs are not available ({})", down.join(", "));
        return Some(Reason::new(ReasonCode::ReqNodeNotAvail, text));
    }
    let text = format!("needs {needs}; partition {partition:?} has no such nodes");
    let code = if job_class.spec.request.constraint.is_some() && candidates.all.is_clear() {
        ReasonCode::BadConstraints
    } else {
        ReasonCode::PartitionConfig
    };
    Some(Reason::new(code, text))
}
