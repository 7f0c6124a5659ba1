//! The end of a token before its time, and when it was last of use.

use crate::ctl::command::{Actor, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::tx::Tx;
use gmodel::{Timestamp, TokenId};

/// Its jobs stay, and go on counting against its caps.
pub(crate) fn revoke(tx: &mut Tx, actor: &Actor, id: TokenId) -> Result<Reply, Refusal> {
    let token = tx.state.tokens.users.get(&id);
    let reached = |by: &Actor| {
        by.token.is_none()
            && token.is_some_and(|token| by.operator || token.user.is(&by.user, by.uid))
    };
    let Some(token) = token.filter(|_| reached(actor)) else {
        return Err(Refusal::not_found(format!(
            "you have no token {id}. `gq token list` shows yours."
        )));
    };
    if token.revoked.is_none() {
        tx.emit(Event::TokenRevoked {
            token: id,
            by: actor.user.clone(),
            at: tx.now,
        });
    }
    Ok(Reply::Done)
}

/// Notes the day in which tokens were used, once a day for each.
pub(crate) fn note_use(tx: &mut Tx, tokens: Vec<TokenId>, day: Timestamp) -> Reply {
    let older = |id: &TokenId| {
        let token = tx.state.tokens.users.get(id);
        token.is_some_and(|token| token.used_on.is_none_or(|on| on < day))
    };
    let tokens: Vec<TokenId> = tokens.into_iter().filter(older).collect();
    if !tokens.is_empty() {
        tx.emit(Event::TokensUsed { tokens, day });
    }
    Reply::Done
}
