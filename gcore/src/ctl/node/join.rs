//! Machines joining: one-time tokens carry role and name; what a machine says of itself does not count.

use crate::ctl::command::{Actor, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::owner::SYSTEM;
use crate::ctl::state::{JoinToken, State};
use crate::ctl::tx::{Tx, operator_only};
use gmodel::NodeId;
use gmodel::hostlist::check_name;
use gmodel::node::Role;

/// Most open tokens.
const MAX_TOKENS: usize = 10_000;
/// Least time between two renewals of one node's certificate, seconds: each is a line of the history.
const RENEW_PAUSE_SECS: i64 = 60;
/// Most bytes of an address.
const MAX_ADDRESS: usize = 64;

pub(crate) fn mint(tx: &mut Tx, actor: &Actor, token: JoinToken) -> Result<Reply, Refusal> {
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
        .joins
        .values()
        .filter(|token| token.expires <= tx.now)
        .map(|token| token.hash.clone())
        .collect();
    if tx.state.tokens.joins.len() - stale.len() >= MAX_TOKENS {
        let text = format!("{MAX_TOKENS} invitations are open; use or outwait some first.");
        return Err(Refusal::limit(text));
    }
    for hash in stale {
        tx.emit(Event::TokenSpent { hash, at: tx.now });
    }
    tx.emit(Event::TokenMinted { token });
    Ok(Reply::Done)
}

pub(crate) fn join(tx: &mut Tx, token_hash: &str, name: &str) -> Result<Reply, Refusal> {
    let token = tx
        .state
        .tokens
        .joins
        .get(token_hash)
        .filter(|token| token.expires > tx.now);
    let Some(token) = token.cloned() else {
        let text = "this token is unknown, used or expired; ask for a new one with \
                    `gadm token node`.";
        return Err(Refusal::denied(text));
    };
    let name = token.name.clone().unwrap_or_else(|| name.to_owned());
    check_name(&name).map_err(|e| Refusal::invalid(e.to_string()))?;
    let node = node_of(tx.state, &token, &name)?;
    tx.emit(Event::TokenSpent {
        hash: token.hash,
        at: tx.now,
    });
    let (minted_by, at) = (token.minted_by.clone(), tx.now);
    if let Some(known) = tx.node(node) {
        // A holder of the earlier key is another machine from now on.
        let epoch = known.certificate.epoch.saturating_add(1);
        tx.emit(Event::NodeEpochRaised {
            node,
            epoch,
            by: minted_by,
            at,
        });
    } else {
        tx.emit(Event::NodeJoined {
            node,
            name: name.clone(),
            role: token.role,
            at: tx.now,
        });
    }
    // The newest token counts: so a machine's admin mark can be removed.
    let certificate = |tx: &Tx| tx.node(node).map(|node| node.certificate.clone());
    if certificate(tx).is_some_and(|known| known.admin != token.admin) {
        tx.emit(Event::NodeAdminChanged {
            node,
            admin: token.admin,
            by: token.minted_by,
            at: tx.now,
        });
    }
    Ok(Reply::Joined {
        node,
        role: token.role,
        name,
        admin: token.admin,
        epoch: certificate(tx).map_or(0, |known| known.epoch),
    })
}

/// The id of the node that joins: its earlier one, if the token names it, or a new one.
fn node_of(state: &State, token: &JoinToken, name: &str) -> Result<NodeId, Refusal> {
    match state.node_by_name(name) {
        // The same machine joining again (a new disk) keeps its record when the token names it.
        Some(known) if token.name.is_some() && known.role == token.role => Ok(known.id),
        Some(_) => {
            let text = format!(
                "a node named {name:?} has joined already. If it is being replaced, make the \
                 token with --name {name}; if it is another machine, give it another name."
            );
            Err(Refusal::conflict(text))
        }
        None => Ok(NodeId(state.next_node.max(1))),
    }
}

/// Voids all certificates of the node.
pub(crate) fn revoke(tx: &mut Tx, actor: &Actor, id: NodeId) -> Result<Reply, Refusal> {
    operator_only(actor, "revoking a node's certificate")?;
    let node = tx
        .node(id)
        .ok_or_else(|| Refusal::not_found(format!("there is no node {id}.")))?;
    let epoch = node.certificate.epoch.saturating_add(1);
    tx.emit(Event::NodeEpochRaised {
        node: id,
        epoch,
        by: actor.user.clone(),
        at: tx.now,
    });
    Ok(Reply::Done)
}

/// Records a certificate's renewal.
pub(crate) fn renew(tx: &mut Tx, id: NodeId, epoch: u32, from: &str) -> Result<Reply, Refusal> {
    let node = tx.node(id).filter(|node| node.certificate.epoch <= epoch);
    let node = node.ok_or_else(|| {
        Refusal::denied("this node was removed from the cluster, or its certificate was revoked")
    })?;
    if let Some(before) = node
        .certificate
        .renewed
        .as_ref()
        .filter(|before| tx.now < before.at.plus_secs(RENEW_PAUSE_SECS) && before.at <= tx.now)
    {
        let text = format!(
            "the certificate of {} was renewed at {} already; again in {RENEW_PAUSE_SECS} s at the earliest",
            node.name, before.at
        );
        return Err(Refusal::limit(text));
    }
    let from = from.chars().take(MAX_ADDRESS).collect();
    tx.emit(Event::NodeRenewed {
        node: id,
        epoch,
        from,
        at: tx.now,
    });
    Ok(Reply::Done)
}

/// A certificate of a later join than is known, signed by this authority: the database is an older one.
pub(crate) fn raise(tx: &mut Tx, id: NodeId, epoch: u32) {
    if tx
        .node(id)
        .is_some_and(|node| node.certificate.epoch < epoch)
    {
        tx.emit(Event::NodeEpochRaised {
            node: id,
            epoch,
            by: SYSTEM.into(),
            at: tx.now,
        });
    }
}
