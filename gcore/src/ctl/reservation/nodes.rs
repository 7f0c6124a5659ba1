//! Refuses a job that its reservation's nodes could never run.
//!
//! Looks at the nodes as if idle; the scheduler knows when the window opens. Source: sbatch of Slurm 22.05.8,
//! which refuses these jobs too, except in reservations with FLEX.

use crate::ctl::command::Refusal;
use crate::ctl::job::partition_nodes::allowed_nodes;
use crate::ctl::state::State;
use gmodel::config::Partition;
use gmodel::node::Link;
use gmodel::policy::ReservedPart;
use gmodel::{JobSpec, RefusalKind};
use gpolicy::feasibility::impossible::impossible;
use gsched::SchedNode;

/// `nodes`: the nodes of the partition.
pub(crate) fn check(
    state: &State,
    partition: &Partition,
    spec: &JobSpec,
    nodes: impl FnOnce() -> Vec<SchedNode>,
) -> Result<(), Refusal> {
    let named = spec
        .reservation
        .as_deref()
        .and_then(|name| state.policy.reservations.get(name))
        .filter(|one| !one.flex);
    let Some((name, ReservedPart::Nodes(list))) = named.map(|one| (&one.name, &one.what)) else {
        return Ok(());
    };
    let request = &spec.request;
    if let Some(other) = request
        .nodelist
        .iter()
        .flat_map(|asked| asked.iter())
        .find(|node| !list.contains(node))
    {
        return Err(Refusal::invalid(format!(
            "--nodelist: {other} is not in reservation {name:?}, which is of {list}."
        ))
        .about(RefusalKind::NodeName));
    }
    let mut here = allowed_nodes(request, partition, nodes())?;
    here.retain(|node| list.contains(&node.name));
    let asked = request.nodes_min.max(
        request
            .nodelist
            .as_ref()
            .map_or(0, |list| list.len() as u32),
    );
    if asked as usize > here.len() {
        let such = here.len();
        return Err(Refusal::invalid(format!("--nodes {asked}: reservation {name:?} ({list}) has {such} such nodes in partition {:?}.", partition.name)).about(RefusalKind::NodeConfiguration));
    }
    // A node's resources are known from its first hello.
    let is_known = |name: &str| {
        state
            .nodes
            .values()
            .any(|node| node.name == name && node.link != Link::Never)
    };
    if list.iter().all(is_known) && impossible(request, partition, &here).is_some() {
        return Err(Refusal::invalid(format!(
            "--reservation {name}: its nodes ({list}) could not run this job if they did nothing else. Ask for less, or leave out --reservation."
        ))
        .about(RefusalKind::NodeConfiguration));
    }
    Ok(())
}
