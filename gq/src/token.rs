//! `gq token`: one's own tokens, with which other machines ask the controller over the network.

use gcli::Outcome;
use gcli::user_token::{self, NewToken, TokenListing, TokenOwner, TokenRevocation};
use gwire::client::Client;

/// What to do with one's tokens.
#[derive(clap::Subcommand)]
pub(crate) enum TokenAct {
    /// Make a token and print it, once
    New(NewToken),
    /// List your tokens, with what stands against their caps
    List(TokenListing),
    /// Take a token back: nothing is done with it any more
    Revoke(TokenRevocation),
}

pub(crate) fn run(client: &mut Client, act: TokenAct) -> Outcome {
    match act {
        TokenAct::New(token) => user_token::make(client, "gq", None, token),
        TokenAct::List(listing) => user_token::list(client, TokenOwner::Myself, &listing),
        TokenAct::Revoke(revocation) => user_token::revoke(client, &revocation),
    }
}
