//! A new token: for oneself, or by an operator for another user. Never by means of a token, and never from a compute node.

use crate::ctl::command::{Actor, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::job::partition::partition_or_refusal;
use crate::ctl::state::State;
use crate::ctl::tx::{Tx, operator_only};
use gmodel::node::Role;
use gmodel::{Scope, Timestamp, TokenId, UserToken};

/// Most live tokens of one user.
const MAX_LIVE_OF_USER: usize = 64;
/// Most tokens, ended ones too.
const MAX_TOKENS: usize = 10_000;
/// Most jobs that a token may have in the queue: its use is summed over them at each submission.
const MAX_JOBS: u32 = 10_000;
/// Most GPU-hours of a cap.
const MAX_GPU_HOURS: u64 = 100_000_000;
/// Most accounts, and most partitions.
const MAX_NAMES: usize = 64;
const MAX_NOTE_CHARS: usize = 200;
/// Ended tokens are listed for so long.
const KEPT_ENDED_SECS: i64 = 30 * 86_400;
/// The uid that a kernel gives to users that it cannot map (`nobody`).
const NOBODY: u32 = 65_534;

pub(crate) fn make(tx: &mut Tx, actor: &Actor, token: UserToken) -> Result<Reply, Refusal> {
    let token = UserToken {
        made: tx.now,
        made_by: made_by(tx.state, actor),
        revoked: None,
        used_on: None,
        gpu_used: 0,
        ..token
    };
    check_maker(tx.state, actor, &token)?;
    check_scopes(tx.state, actor, &token)?;
    check_lists(tx.state, &token)?;
    check_numbers(&token, tx.state.config.max_token_days, tx.now)?;
    let stale = forgettable(tx.state, tx.now);
    check_room(tx.state, &token, stale.len(), tx.now)?;
    if !stale.is_empty() {
        tx.emit(Event::TokensForgotten { tokens: stale });
    }
    tx.emit(Event::TokenMade {
        token: Box::new(token),
    });
    Ok(Reply::Done)
}

fn made_by(state: &State, actor: &Actor) -> String {
    let node = actor.via.and_then(|id| state.node(id));
    node.map_or(actor.user.clone(), |node| {
        format!("{} on {}", actor.user, node.name)
    })
}

fn check_maker(state: &State, actor: &Actor, token: &UserToken) -> Result<(), Refusal> {
    if actor.token.is_some() {
        return Err(Refusal::denied(
            "a token makes no tokens. Log in to the controller's host or a login node: gq token new",
        ));
    }
    let via = actor.via.and_then(|id| state.node(id));
    if let Some(node) = via.filter(|node| node.role == Role::Compute) {
        return Err(Refusal::denied(format!(
            "{} is a compute node, where jobs run, and no tokens are made there. Use a login node",
            node.name
        )));
    }
    let own = token.user.name == actor.user && token.user.uid == actor.uid;
    if !own {
        operator_only(actor, "a token for another user")?;
    }
    if matches!(token.user.uid, 0 | NOBODY) {
        return Err(Refusal::denied(format!(
            "{} (uid {}) gets no token: nothing that comes over the network acts as that user. Make one for an operator",
            token.user.name, token.user.uid
        )));
    }
    Ok(())
}

fn check_scopes(state: &State, actor: &Actor, token: &UserToken) -> Result<(), Refusal> {
    if token.scopes.is_empty() {
        return Err(Refusal::invalid(
            "a token without a scope is good for nothing. Try --scope read,submit",
        ));
    }
    if token.scopes.contains(&Scope::Report) && !token.partitions.is_empty() {
        return Err(Refusal::invalid(
            "the scope report has sums of users and accounts, which no list of partitions limits. Leave one of the two out, or limit it to \
             accounts",
        ));
    }
    if !token.scopes.contains(&Scope::Operate) {
        return Ok(());
    }
    operator_only(actor, "a token with the scope operate")?;
    if !state.config.operators.contains(&token.user.name) {
        return Err(Refusal::denied(format!(
            "the scope operate is for operators, and {} is none. Leave it out, or add {} to `operators` in gpuctld.toml",
            token.user.name, token.user.name
        )));
    }
    match token.confines() {
        None => Ok(()),
        Some(lists) => Err(Refusal::invalid(format!(
            "the scope operate is for the whole cluster and cannot be limited to {lists}. Leave one of the two out"
        ))),
    }
}

fn check_lists(state: &State, token: &UserToken) -> Result<(), Refusal> {
    if token.accounts.len().max(token.partitions.len()) > MAX_NAMES {
        return Err(Refusal::limit(format!(
            "a token is limited to {MAX_NAMES} accounts and {MAX_NAMES} partitions at most"
        )));
    }
    for name in &token.partitions {
        partition_or_refusal(&state.config, name)?;
    }
    let known = &state.policy.accounts;
    let unknown =
        |name: &&String| !known.contains_key(*name) && **name != state.config.default_account;
    match token.accounts.iter().find(unknown) {
        Some(name)
            if !known.is_empty() || name.chars().any(char::is_control) || name.len() > 64 =>
        {
            let names = known.keys().map(String::as_str);
            let hint = gmodel::suggest::did_you_mean(name, names);
            Err(Refusal::invalid(format!(
                "there is no account {name:?}.{hint}"
            )))
        }
        _ => Ok(()),
    }
}

fn check_numbers(token: &UserToken, max_days: u32, now: Timestamp) -> Result<(), Refusal> {
    if token.expires <= now {
        return Err(Refusal::invalid("this token would have expired already"));
    }
    if token.expires > now.plus_secs(i64::from(max_days) * 86_400) {
        return Err(Refusal::limit(format!(
            "a token lasts {max_days} days at most here (max_token_days in gpuctld.toml). Try --expires {max_days}d"
        )));
    }
    if !(1..=MAX_JOBS).contains(&token.jobs) {
        return Err(Refusal::invalid(format!(
            "{} jobs: a token has 1 to {MAX_JOBS} jobs in the queue",
            token.jobs
        )));
    }
    if token
        .gpu_secs
        .is_some_and(|secs| secs > MAX_GPU_HOURS * 3600)
    {
        return Err(Refusal::invalid(format!(
            "a token is capped at {MAX_GPU_HOURS} GPU-hours at most. Without --gpu-hours it has no such cap"
        )));
    }
    if token.note.chars().count() > MAX_NOTE_CHARS || token.note.chars().any(char::is_control) {
        return Err(Refusal::invalid(format!(
            "a note is one line of {MAX_NOTE_CHARS} characters at most"
        )));
    }
    Ok(())
}

/// Ended for so long that nobody asks, and without a job that counts on them.
fn forgettable(state: &State, now: Timestamp) -> Vec<TokenId> {
    let long_ended = |token: &&UserToken| token.ended().plus_secs(KEPT_ENDED_SECS) < now;
    let tokens = state.tokens.users.values().map(|token| &**token);
    tokens
        .filter(long_ended)
        .filter(|token| !state.index.of_token.contains_key(&token.id))
        .map(|token| token.id)
        .collect()
}

fn check_room(
    state: &State,
    token: &UserToken,
    stale: usize,
    now: Timestamp,
) -> Result<(), Refusal> {
    let tokens = &state.tokens.users;
    if tokens.contains_key(&token.id) {
        return Err(Refusal::conflict(format!(
            "there is a token {} already",
            token.id
        )));
    }
    let user = &token.user;
    let live = tokens
        .values()
        .filter(|one| one.user.name == user.name && one.is_live(now));
    if live.count() >= MAX_LIVE_OF_USER {
        return Err(Refusal::limit(format!(
            "{} has {MAX_LIVE_OF_USER} tokens, as many as one user may. Revoke one: gq token list, gq token revoke ID",
            user.name
        )));
    }
    if tokens.len() - stale >= MAX_TOKENS {
        let days = KEPT_ENDED_SECS / 86_400;
        return Err(Refusal::limit(format!(
            "{MAX_TOKENS} tokens are known, which is the most. Ended ones are forgotten after {days} days"
        )));
    }
    Ok(())
}
