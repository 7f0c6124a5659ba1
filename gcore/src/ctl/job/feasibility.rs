//! Whether the nodes of a partition could run a request if they were all idle; what never could run is
//! refused.

use crate::ctl::command::Refusal;
use crate::ctl::job::partition_nodes::{allowed_nodes, member_nodes, members};
use crate::ctl::state::State;
use gmodel::config::Partition;
use gmodel::constraint::Constraint;
use gmodel::{JobSpec, RefusalKind, Request};
use gpolicy::feasibility::impossible::impossible;
use gsched::SchedNode;
use std::sync::Arc;

/// Node counts that are tried for a request without one.
pub(crate) const MORE_NODES: usize = 64;

/// The request before a number of nodes was chosen for it.
pub(crate) fn as_asked(request: &Request) -> Request {
    let (nodes_min, nodes_max) = if request.nodes_any {
        (1, 1)
    } else {
        (request.nodes_min, request.nodes_max)
    };
    Request {
        nodes_min,
        nodes_max,
        ..request.clone()
    }
}

/// Chooses the fewest nodes with room for the tasks of a request without `--nodes`, dealt evenly: `--ntasks
/// 64` where a node has 16 CPUs.
pub(crate) fn widen(
    state: &State,
    partition: &Partition,
    request: &mut Request,
) -> Result<(), Refusal> {
    if !request.nodes_any {
        return Ok(());
    }
    *request = as_asked(request);
    let asked = (partition.name.clone(), request.clone());
    if let Some(nodes) = state.memo.feasible.get(&asked) {
        (request.nodes_min, request.nodes_max) = (*nodes, *nodes);
        return Ok(());
    }
    if members(state, partition).all(|node| node.link == gmodel::node::Link::Never) {
        return Ok(());
    }
    // Other faults are reported by the checks that follow.
    let Ok(nodes) = allowed_nodes(request, partition, member_nodes(state, partition)) else {
        return Ok(());
    };
    let tasks = request.tasks_with_cpus(request.ntasks, 1);
    let cpus = tasks.saturating_mul(request.cpus_per_task.unwrap_or(1));
    let largest = nodes.iter().map(|node| node.cpus).max().unwrap_or(0).max(1);
    let most = (nodes.len() as u32).min(request.ntasks);
    let possible = |ntasks: u32, count: u32| {
        let wider = Request {
            ntasks,
            nodes_min: count,
            nodes_max: count,
            ..request.clone()
        };
        impossible(&wider, partition, &nodes).is_none()
    };
    // With unlike nodes it may take a few more than the largest suggest.
    let least = cpus.div_ceil(largest).max(1);
    match (least..=most)
        .take(MORE_NODES)
        .find(|count| possible(request.ntasks, *count))
    {
        Some(count) => (request.nodes_min, request.nodes_max) = (count, count),
        // The number of tasks is the obstacle, not the size of one.
        None if request.ntasks > 1 && most > 1 && possible(1, 1) => {
            return Err(Refusal::invalid(format!(
                "--ntasks {}: the {} nodes of partition {:?} have no room for so many tasks, dealt evenly. Ask for fewer.",
                request.ntasks,
                nodes.len(),
                partition.name
            ))
            .about(RefusalKind::NodeConfiguration));
        }
        None => {}
    }
    Ok(())
}

/// Refuses a request that no set of the partition's nodes could ever run.
pub(crate) fn check_nodes(
    state: &State,
    partition: &Partition,
    spec: &JobSpec,
    notes: &mut Vec<String>,
) -> Result<(), Refusal> {
    let request = &spec.request;
    // A node's resources are known from its first hello.
    if members(state, partition).all(|node| node.link == gmodel::node::Link::Never) {
        notes.push(format!(
            "no node of partition {:?} has reported yet: the job waits",
            partition.name
        ));
        return Ok(());
    }
    notes.extend(
        request
            .exclude
            .as_ref()
            .and_then(|list| stranger(state, list)),
    );
    crate::ctl::reservation::nodes::check(state, partition, spec, || {
        member_nodes(state, partition)
    })?;
    let memo = &state.memo.feasible;
    if memo.contains_key(&(spec.partition.clone(), as_asked(request)))
        || fits_members(state, partition, request)
    {
        return Ok(());
    }
    let Some(text) = request
        .constraint
        .as_deref()
        .filter(|text| Constraint::has_brackets(text))
    else {
        return could_run(state, partition, request);
    };
    // One of several alternatives is enough.
    let mut first = None;
    for one in Constraint::alternatives(text)
        .map_err(|error| Refusal::invalid(error.to_string()).about(RefusalKind::Feature))?
    {
        let request = Request {
            constraint: Some(one.to_string()),
            ..request.clone()
        };
        match could_run(state, partition, &request) {
            Ok(()) => return Ok(()),
            Err(refusal) => first = first.or(Some(refusal)),
        }
    }
    let why = first.map_or(String::new(), |refusal| refusal.text);
    Err(Refusal::invalid(format!(
        "--constraint {text}: no part of the brackets would do for all of its nodes. {why}"
    ))
    .about(RefusalKind::NodeConfiguration))
}

/// Whether the allowed nodes could run the request if they were idle.
pub(crate) fn could_run(
    state: &State,
    partition: &Partition,
    request: &Request,
) -> Result<(), Refusal> {
    let allowed = allowed_nodes(request, partition, member_nodes(state, partition))?;
    let asked = request
        .nodes_min
        .max(request.nodelist.as_ref().map_or(0, |l| l.len() as u32));
    if asked as usize > allowed.len() {
        let by_tasks = request
            .ntasks_per_node
            .filter(|each| request.ntasks > 1 && request.ntasks.div_ceil(*each) == asked);
        let why = by_tasks.map(|each| {
            format!(
                ", as many as --ntasks {} at --ntasks-per-node {each} take",
                request.ntasks
            )
        });
        return Err(Refusal::invalid(format!(
            "--nodes {asked}{}: partition {:?} has {} such nodes.",
            why.unwrap_or_default(),
            partition.name,
            allowed.len()
        ))
        .about(RefusalKind::NodeConfiguration));
    }
    if let Some(text) = impossible(request, partition, &allowed) {
        return Err(Refusal::invalid(text).about(RefusalKind::NodeConfiguration));
    }
    enough_below_switches(state, partition, request, &allowed)
}

/// Refuses a job that would wait for ever for so few switches.
pub(crate) fn enough_below_switches(
    state: &State,
    partition: &Partition,
    request: &Request,
    allowed: &[SchedNode],
) -> Result<(), Refusal> {
    let (Some(switches), topology) = (request.switches, &state.config.scheduler.topology) else {
        return Ok(());
    };
    let nodes: Vec<&SchedNode> = allowed.iter().collect();
    let Some(few) = gsched::cluster::network::too_few_below(topology, request, partition, &nodes)
    else {
        return Ok(());
    };
    let asked = switches.most;
    let which = if asked == 1 {
        "any leaf switch".to_owned()
    } else {
        format!("any {asked} leaf switches together")
    };
    let advice = few.switches.map_or("Say".to_owned(), |enough| {
        format!("Try --switches {enough}, or say")
    });
    Err(Refusal::invalid(format!(
        "--switches {asked}: below {which} partition {:?} has {} such nodes at most, and {} are needed. {advice} how long to wait for it: \
         --switches {asked}@30:00.",
        partition.name, few.most, few.needed
    ))
    .about(RefusalKind::NodeConfiguration))
}

/// Whether the remembered nodes have room for a request that names no nodes. A refusal is derived from the
/// nodes as they are: a memo refuses nothing.
pub(crate) fn fits_members(state: &State, partition: &Partition, request: &Request) -> bool {
    let names_some = request.nodelist.is_some()
        || request.exclude.is_some()
        || request.constraint.is_some()
        || request.switches.is_some();
    let all = || {
        Arc::new(
            state
                .config
                .partitions
                .iter()
                .map(|one| (one.name.clone(), member_nodes(state, one)))
                .collect(),
        )
    };
    let known = (!names_some)
        .then(|| state.memo.members.get_or_init(all).get(&partition.name))
        .flatten();
    known.is_some_and(|nodes| {
        request.nodes_min as usize <= nodes.len() && impossible(request, partition, nodes).is_none()
    })
}

/// A note on an excluded name that no node has: the node may be gone, or the name a typing error.
pub(crate) fn stranger(state: &State, exclude: &gmodel::hostlist::Hostlist) -> Option<String> {
    let name = exclude
        .iter()
        .find(|name| state.nodes.values().all(|node| node.name != *name))?;
    let hint =
        gmodel::suggest::did_you_mean(name, state.nodes.values().map(|node| node.name.as_str()));
    Some(format!("--exclude: there is no node {name:?}.{hint}"))
}
