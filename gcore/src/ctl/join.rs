//! Machines joining: one-time tokens carry role and name; what a machine says of itself does not count.

use super::command::{Actor, Refusal, Reply};
use super::event::Event;
use super::handle::{Tx, operator_only};
use super::state::JoinToken;
use gmodel::NodeId;
use gmodel::hostlist::check_name;
use gmodel::node::Role;

/// Invitations that may be open at once.
const MAX_TOKENS: usize = 10_000;

pub(super) fn mint(tx: &mut Tx, actor: &Actor, token: JoinToken) -> Result<Reply, Refusal> {
    operator_only(actor, "inviting a node")?;
    if token.admin && token.role != Role::Login {
        let text = "an admin certificate is for login nodes, where people work: users' jobs run on compute nodes. \
                    Add --role login, or leave --admin away.";
        return Err(Refusal::invalid(text));
    }
    if let Some(name) = &token.name {
        check_name(name).map_err(|e| Refusal::invalid(e.to_string()))?;
    }
    let stale: Vec<_> = tx
        .state
        .tokens
        .values()
        .filter(|token| token.expires <= tx.now)
        .map(|token| token.hash.clone())
        .collect();
    if tx.state.tokens.len() - stale.len() >= MAX_TOKENS {
        let text = format!("{MAX_TOKENS} invitations are open; use or outwait some first.");
        return Err(Refusal::limit(text));
    }
    for hash in stale {
        tx.emit(Event::TokenSpent { hash, at: tx.now });
    }
    tx.emit(Event::TokenMinted { token });
    Ok(Reply::Done)
}

pub(super) fn join(tx: &mut Tx, token_hash: &str, name: &str) -> Result<Reply, Refusal> {
    let token = tx.state.tokens.get(token_hash).filter(|token| token.expires > tx.now);
    let Some(token) = token.cloned() else {
        let text = "this token is unknown, used or expired; ask for a new one with \
                    `gadm token node`.";
        return Err(Refusal::denied(text));
    };
    let name = token.name.clone().unwrap_or_else(|| name.to_owned());
    check_name(&name).map_err(|e| Refusal::invalid(e.to_string()))?;
    let node = match tx.state.node_by_name(&name) {
        // The same machine joining again (a new disk) keeps its record when the token names it.
        Some(known) if token.name.is_some() && known.role == token.role => known.id,
        Some(_) => {
            let text = format!(
                "a node named {name:?} has joined already. If it is being replaced, make the \
                 token with --name {name}; if it is another machine, give it another name."
            );
            return Err(Refusal::conflict(text));
        }
        None => NodeId(tx.state.next_node.max(1)),
    };
    tx.emit(Event::TokenSpent { hash: token.hash, at: tx.now });
    if !tx.state.nodes.contains(node) {
        tx.emit(Event::NodeJoined { node, name: name.clone(), role: token.role, at: tx.now });
    }
    // What the newest token says counts: so a machine's mark can be taken away again.
    if tx.state.nodes.get(node).is_some_and(|known| known.admin != token.admin) {
        tx.emit(Event::NodeAdminChanged { node, admin: token.admin, by: token.minted_by, at: tx.now });
    }
    Ok(Reply::Joined { node, role: token.role, name, admin: token.admin })
}
