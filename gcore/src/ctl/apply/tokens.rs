//! What the events of users' tokens change. What their jobs used is charged where accounts are charged.

use crate::ctl::event::Event;
use crate::ctl::state::State;
use gmodel::user_token::Revocation;
use gmodel::{TokenId, UserToken};
use std::sync::Arc;

pub(crate) fn apply(state: &mut State, event: &Event) {
    match event {
        Event::TokenMade { token } => {
            Arc::make_mut(&mut state.tokens.users).insert(token.id, Arc::new((**token).clone()));
        }
        Event::TokenRevoked { token, by, at } => {
            token_mut(state, *token).revoked = Some(Revocation {
                at: *at,
                by: by.clone(),
            });
        }
        Event::TokensUsed { tokens, day } => {
            for id in tokens {
                token_mut(state, *id).used_on = Some(*day);
            }
        }
        Event::TokensForgotten { tokens } => {
            let known = Arc::make_mut(&mut state.tokens.users);
            tokens.iter().for_each(|id| drop(known.remove(id)));
        }
        _ => {}
    }
}

/// The record of a token that an event names.
pub(crate) fn token_mut(state: &mut State, id: TokenId) -> &mut UserToken {
    let known = Arc::make_mut(&mut state.tokens.users);
    Arc::make_mut(known.get_mut(&id).expect("an event names a known token"))
}
