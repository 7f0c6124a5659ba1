//! Features that an operator sets of a node at run time, in place of those that its gpud reports.
//!
//! They count until the node reports others than it did then, which means that its file was changed, or until a reload. A
//! restart of the controller keeps them.

use crate::ctl::command::{Actor, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::node::bounds::{MAX_FEATURES, MAX_WORD_BYTES};
use crate::ctl::node::drain::known_node;
use crate::ctl::reservation;
use crate::ctl::state::{Node, SetFeatures, State};
use crate::ctl::tx::{Tx, operator_only};
use gmodel::constraint::is_feature;
use gmodel::{NodeId, RefusalKind};

/// `available`: what the node may have; without `active` it has all of that. Neither takes back what was set.
pub(crate) fn set(
    tx: &mut Tx,
    actor: &Actor,
    id: NodeId,
    available: Option<Vec<String>>,
    active: Option<Vec<String>>,
) -> Result<Reply, Refusal> {
    operator_only(actor, "setting features of nodes")?;
    let node = known_node(tx, id)?;
    if available.is_none() && active.is_none() {
        if node.ordered.features.is_some() {
            emit(tx, id, None, &actor.user);
        }
        return Ok(Reply::Done);
    }
    let available = available.unwrap_or_else(|| node.features_available().to_vec());
    let had = &node.inventory.features;
    if let (None, Some(gone)) = (&active, had.iter().find(|one| !available.contains(one))) {
        let text = format!(
            "{}: {gone} is active and would be available no more. Say which are active, too: ActiveFeatures={}",
            node.name,
            available.join(",")
        );
        return Err(Refusal::invalid(text).about(RefusalKind::Feature));
    }
    let active = active.unwrap_or_else(|| available.clone());
    check(&available)?;
    check(&active)?;
    if let Some(odd) = active.iter().find(|one| !available.contains(one)) {
        let list = match available.is_empty() {
            true => "none".to_owned(),
            false => available.join(","),
        };
        let text = format!(
            "{}: {odd} is to be active and is none of the available features: {list}. Name it there, too.",
            node.name
        );
        return Err(Refusal::invalid(text).about(RefusalKind::Feature));
    }
    let reported = node.features_reported().to_vec();
    let set = SetFeatures {
        reported,
        available,
        active,
        by: actor.user.clone(),
    };
    emit(tx, id, Some(set), &actor.user);
    Ok(Reply::Done)
}

fn check(list: &[String]) -> Result<(), Refusal> {
    let invalid = |text: String| Err(Refusal::invalid(text).about(RefusalKind::Feature));
    if list.len() > MAX_FEATURES {
        return invalid(format!(
            "{} features, and {MAX_FEATURES} are the most of a node.",
            list.len()
        ));
    }
    match list
        .iter()
        .find(|one| !is_feature(one) || one.len() > MAX_WORD_BYTES)
    {
        Some(odd) => invalid(format!(
            "{odd:?} is no name of a feature: letters, digits and _-.=:+/ make one, {MAX_WORD_BYTES} at most."
        )),
        None => Ok(()),
    }
}

fn emit(tx: &mut Tx, node: NodeId, set: Option<SetFeatures>, by: &str) {
    tx.emit(Event::NodeFeaturesSet {
        node,
        set: set.map(Box::new),
        by: by.to_owned(),
        at: tx.now,
    });
    reservation::upkeep::look(tx);
}

/// On a reload each node has what its gpud reports.
pub(crate) fn follow_files(tx: &mut Tx) {
    let set = tx.state.nodes.values();
    let set = set.filter(|node| node.ordered.features.is_some());
    let ids: Vec<NodeId> = set.map(|node| node.id).collect();
    for id in ids {
        emit(tx, id, None, "reload");
    }
}

/// What a reload takes back, a sentence for each node.
pub(crate) fn set_until_reload(state: &State) -> impl Iterator<Item = String> {
    let told = |node: &Node| {
        let set = node.ordered.features.as_ref()?;
        Some(format!(
            "node {}: what {} set of its features counts no more, its gpud.toml does",
            node.name, set.by
        ))
    };
    state.nodes.values().filter_map(told)
}
