//! Tokens of users: made, revoked, noted as used and forgotten; and the caps that come with them.

pub(crate) mod cap;
mod make;
mod revoke;

pub use cap::{TokenUse, token_use};

use crate::ctl::command::{Actor, Refusal, Reply, TokenChange};
use crate::ctl::tx::Tx;

pub(crate) fn change(tx: &mut Tx, actor: &Actor, change: TokenChange) -> Result<Reply, Refusal> {
    match change {
        TokenChange::Make(token) => make::make(tx, actor, *token),
        TokenChange::Revoke(token) => revoke::revoke(tx, actor, token),
        TokenChange::NoteUse { tokens, day } => Ok(revoke::note_use(tx, tokens, day)),
    }
}
