//! `gadm token`: one-time secrets with which machines join the pool, and the tokens of users.

use gcli::local_time::TimeFormat;
use gcli::table::stdout;
use gcli::user_token::{self, NewToken, TokenListing, TokenOwner, TokenRevocation};
use gcli::{Failure, Outcome};
use gmodel::duration::TimeLimit;
use gmodel::node::Role;
use gwire::api::{TokenReply, TokenRequest};
use gwire::client::Client;
use std::io::Write;

/// What a token is for.
#[derive(clap::Subcommand)]
pub(crate) enum TokenAct {
    /// For a machine: it joins with `gpud join`
    Node {
        /// What the machine does: compute, or login for one that runs no jobs
        #[arg(long, value_name = "ROLE", default_value = "compute", value_parser = role)]
        role: Role,
        /// Only for a machine of this name
        #[arg(long, value_name = "NODE")]
        name: Option<String>,
        /// For login nodes: operators may administer from there, not only on the controller's host
        #[arg(long)]
        admin: bool,
        /// How long it is good, in the forms of a time limit; the controller's default otherwise
        #[arg(long, value_name = "TIME", value_parser = ttl_secs)]
        ttl: Option<u32>,
        /// One line of JSON
        #[arg(long)]
        json: bool,
    },
    /// For requests of a user over the network; gq token new makes one for its own user
    User {
        /// The user's name
        #[arg(value_name = "USER")]
        user: String,
        #[command(flatten)]
        token: NewToken,
    },
    /// List the tokens of all users
    List(TokenListing),
    /// Take a user's token back
    Revoke(TokenRevocation),
}

fn role(text: &str) -> Result<Role, String> {
    match text {
        "compute" => Ok(Role::Compute),
        "login" => Ok(Role::Login),
        _ => Err("roles are compute and login".to_owned()),
    }
}

fn ttl_secs(text: &str) -> Result<u32, String> {
    let limit = TimeLimit::parse(text).map_err(|error| error.to_string())?;
    let secs = limit.secs().and_then(|secs| u32::try_from(secs).ok());
    secs.ok_or_else(|| {
        "a token expires: 60 is an hour, 1-0 a day, and a week is the most".to_owned()
    })
}

pub(crate) fn run(client: &mut Client, act: TokenAct) -> Outcome {
    match act {
        TokenAct::Node {
            role,
            name,
            admin,
            ttl,
            json,
        } => {
            let asked = TokenRequest {
                role,
                name,
                ttl_secs: ttl,
                admin,
            };
            invite(client, &asked, json)
        }
        TokenAct::User { user, token } => user_token::make(client, "gadm", Some(user), token),
        TokenAct::List(listing) => user_token::list(client, TokenOwner::Everyone, &listing),
        TokenAct::Revoke(revocation) => user_token::revoke(client, &revocation),
    }
}

fn invite(client: &mut Client, asked: &TokenRequest, json: bool) -> Outcome {
    if asked.admin && asked.role != Role::Login {
        return Err(Failure::usage(
            "--admin is for login nodes: add --role login",
        ));
    }
    // Asked twice it would be two tokens.
    let reply: TokenReply = client.post("/v1/tokens", asked)?;
    let mut out = stdout()?;
    if json {
        serde_json::to_writer(&mut out, &reply).map_err(Failure::new)?;
        writeln!(out)?;
        out.flush()?;
        return Ok(0);
    }
    writeln!(out, "{}", reply.token)?;
    out.flush()?;
    let until = TimeFormat::from_env().print(reply.expires.0);
    writeln!(
        std::io::stderr(),
        "gadm: good once, until {until}: gpud join --controller {} --token TOKEN",
        reply.controller
    )?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_an_end() {
        assert_eq!(ttl_secs("60"), Ok(3600));
        assert!(ttl_secs("UNLIMITED").is_err() && role("gpu").is_err());
    }
}
