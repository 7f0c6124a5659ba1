//! The nodes of a partition as a submission looks at them, and those that a request leaves of them.

use crate::ctl::command::Refusal;
use crate::ctl::plan::snapshot::sched_node;
use crate::ctl::state::{Node, State};
use gmodel::config::{NodeSelection, Partition};
use gmodel::constraint::Constraint;
use gmodel::{RefusalKind, Request, Timestamp};
use gsched::SchedNode;
use std::collections::BTreeSet;

pub(crate) fn members<'a>(
    state: &'a State,
    partition: &'a Partition,
) -> impl Iterator<Item = &'a Node> {
    let nodes = state
        .nodes
        .values()
        .filter(|node| node.role == gmodel::node::Role::Compute);
    nodes.filter(|node| partition.holds(&node.name, &node.inventory.features))
}

pub(crate) fn member_nodes(state: &State, partition: &Partition) -> Vec<SchedNode> {
    members(state, partition)
        .map(|node| sched_node(state, node, Timestamp(i64::MAX)))
        .collect()
}

/// The nodes that a request allows by name and feature.
pub(crate) fn allowed_nodes(
    request: &Request,
    partition: &Partition,
    nodes: Vec<SchedNode>,
) -> Result<Vec<SchedNode>, Refusal> {
    check_nodelist(request, partition, &nodes)?;
    let mut allowed = nodes;
    if let Some(text) = &request.constraint {
        let wanted = Constraint::alternatives(text)
            .map_err(|e| Refusal::invalid(e.to_string()).about(RefusalKind::Feature))?;
        let known: BTreeSet<&str> = allowed
            .iter()
            .flat_map(|n| n.features.iter().map(String::as_str))
            .collect();
        let missing = wanted
            .iter()
            .flat_map(Constraint::features)
            .find(|f| !known.contains(f))
            .map(str::to_owned);
        let known: Vec<String> = known.into_iter().map(str::to_owned).collect();
        // Each alternative is checked by itself for enough nodes.
        allowed.retain(|n| {
            wanted
                .iter()
                .any(|one| one.eval(&n.features.iter().map(String::as_str).collect()))
        });
        if let Some(missing) = missing.filter(|_| allowed.is_empty()) {
            return Err(Refusal::invalid(format!(
                "--constraint {text}: no node of partition {:?} has the feature {missing:?} (there \
                 are: {}).",
                partition.name,
                if known.is_empty() {
                    "none".into()
                } else {
                    known.join(", ")
                }
            ))
            .about(RefusalKind::Feature));
        }
    }
    if let Some(exclude) = &request.exclude {
        allowed.retain(|node| !exclude.contains(&node.name));
    }
    if allowed.is_empty() {
        return Err(Refusal::invalid(format!(
            "no node of partition {:?} is left after --constraint, --exclude and --nodelist.",
            partition.name
        ))
        .about(RefusalKind::NodeConfiguration));
    }
    Ok(allowed)
}

/// Each node that the request names is in the partition, and not excluded.
fn check_nodelist(
    request: &Request,
    partition: &Partition,
    nodes: &[SchedNode],
) -> Result<(), Refusal> {
    for name in request.nodelist.iter().flat_map(|list| list.iter()) {
        if !nodes.iter().any(|node| node.name == name) {
            if matches!(&partition.nodes, NodeSelection::Names(names) if names.contains(name)) {
                return Err(Refusal::invalid(format!(
                    "--nodelist: {name} belongs to partition {:?} by name, and no such machine has joined yet: an operator makes a token for it with \
                     `gadm token node --name {name}`.",
                    partition.name
                )));
            }
            let names = nodes.iter().map(|node| node.name.as_str());
            let hint = gmodel::suggest::did_you_mean(name, names);
            return Err(Refusal::invalid(format!(
                "--nodelist: {name:?} is not a node of partition {:?}.{hint}",
                partition.name
            ))
            .about(RefusalKind::NodeName));
        }
        if request
            .exclude
            .as_ref()
            .is_some_and(|exclude| exclude.contains(name))
        {
            return Err(Refusal::invalid(format!(
                "--nodelist and --exclude both name {name}. Take it out of one of them."
            ))
            .about(RefusalKind::NodeName));
        }
    }
    Ok(())
}
