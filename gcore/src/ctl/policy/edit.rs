//! Edits of accounts, users, QOS and reservations: which users may make them, and what they need.
//!
//! The configuration's files override what `gadm` made; the policy in force is both. `policy/faults.rs` checks
//! the whole.

use crate::ctl::apply::edit_policy;
use crate::ctl::command::{Actor, Refusal, Reply};
use crate::ctl::event::PolicyChange;
use crate::ctl::policy::commit::make;
use crate::ctl::policy::faults::new_faults;
use crate::ctl::policy::merge::merged;
use crate::ctl::policy::partition;
use crate::ctl::reservation;
use crate::ctl::state::State;
use crate::ctl::tx::{Tx, operator_only};
use gmodel::policy::{Account, AccountUser};
use gmodel::record::{Access, Key, Kind, Record};
use gmodel::{Policy, RefusalKind, Timestamp};

pub(crate) fn change(tx: &mut Tx, actor: &Actor, change: PolicyChange) -> Result<Reply, Refusal> {
    let state = &*tx.state;
    let change = match change {
        PolicyChange::All { policy } => PolicyChange::All {
            policy: Box::new(imported(state, tx.now, actor, *policy)?),
        },
        change => {
            may_be_made(state, actor, &change)?;
            let change = match change {
                PolicyChange::Reservation { reservation } => {
                    let one = reservation::selection::made(
                        state,
                        tx.now,
                        &actor.user,
                        &state.policy.reservations,
                        *reservation,
                    )?;
                    PolicyChange::Reservation {
                        reservation: Box::new(one),
                    }
                }
                other => other,
            };
            let mut after = state.own_policy.clone();
            edit_policy(&mut after, &change);
            goes_together(state, &after)?;
            change
        }
    };
    make(tx, change, actor.user.clone());
    Ok(Reply::Done)
}

/// A whole policy as an import would leave it: with the nodes that its reservations get, and without
/// reservations that are over.
///
/// # Errors
/// The actor may not; a file has the record; a job or record needs what is removed; a reservation does not fit
/// beside others and the jobs; or the whole has a fault.
pub fn imported(
    state: &State,
    now: Timestamp,
    actor: &Actor,
    mut policy: Policy,
) -> Result<Policy, Refusal> {
    may_be_made(
        state,
        actor,
        &PolicyChange::All {
            policy: Box::new(policy.clone()),
        },
    )?;
    policy.partitions.clone_from(&state.own_policy.partitions);
    policy.reservations =
        reservation::selection::all_made(state, now, &actor.user, policy.reservations)?;
    goes_together(state, &policy)?;
    Ok(policy)
}

fn may_be_made(state: &State, actor: &Actor, change: &PolicyChange) -> Result<(), Refusal> {
    may_edit(state, actor, change)?;
    is_not_in_files(state, change)?;
    is_not_in_use(state, change)
}

fn goes_together(state: &State, after: &Policy) -> Result<(), Refusal> {
    let fault = new_faults(state, &merged(after, &state.config))
        .into_iter()
        .next();
    fault.map_or(Ok(()), |fault| Err(Refusal::invalid(fault)))
}

/// Operators edit all of it. Coordinators edit users and what each may use, and the accounts below theirs. A
/// user may choose a default among own accounts.
fn may_edit(state: &State, actor: &Actor, change: &PolicyChange) -> Result<(), Refusal> {
    if actor.operator {
        return Ok(());
    }
    let policy = &state.policy;
    let coordinates = |account: &str| policy.coordinates(&actor.user, account);
    let above = |parent: &Option<String>| parent.as_deref().is_some_and(coordinates);
    let allowed = match change {
        PolicyChange::User {
            account,
            user,
            entry,
        } => {
            coordinates(account)
                || *user == actor.user && only_default(policy, account, user, entry)
        }
        PolicyChange::UserRemoved { account, .. } => coordinates(account),
        PolicyChange::Account { account } => match policy.accounts.get(&account.name) {
            None => above(&account.parent),
            Some(known) if above(&known.parent) && above(&account.parent) => true,
            Some(known) => coordinates(&known.name) && only_users(known, account),
        },
        PolicyChange::AccountRemoved { name } => policy
            .accounts
            .get(name)
            .is_some_and(|account| above(&account.parent)),
        _ => false,
    };
    if allowed {
        return Ok(());
    }
    let theirs: Vec<&str> = policy
        .accounts
        .values()
        .filter(|one| one.coordinators.contains(&actor.user))
        .map(|one| &*one.name)
        .collect();
    if theirs.is_empty() {
        return operator_only(actor, "editing accounts, QOS and reservations");
    }
    let text = format!(
        "{} coordinates {}: that is for its users and their limits, and for accounts below it. The rest is for operators.",
        actor.user,
        theirs.join(", ")
    );
    Err(Refusal::denied(text))
}

/// The edit makes the account the user's default, and nothing else.
fn only_default(policy: &Policy, account: &str, user: &str, entry: &AccountUser) -> bool {
    let known = policy
        .accounts
        .get(account)
        .and_then(|account| account.users.get(user));
    known.is_some_and(|known| {
        entry.is_default
            && AccountUser {
                is_default: true,
                ..known.clone()
            } == *entry
    })
}

/// Only users and the keys that their coordinators may set differ.
fn only_users(known: &Account, account: &Account) -> bool {
    let may_differ =
        |key: &&Key| key.access == Access::Coordinators || matches!(key.kind, Kind::Users(_));
    known.differences(account).iter().all(may_differ)
}

/// A record of a file is changed in that file.
fn is_not_in_files(state: &State, change: &PolicyChange) -> Result<(), Refusal> {
    let files = &state.config.policy;
    let written = |what: &str, name: &str, there: bool| match there {
        true => Err(Refusal::conflict(format!(
            "{what} {name} is written in the controller's configuration: change it there, and run `gadm reload`."
        ))),
        false => Ok(()),
    };
    let account = |name: &String| written("account", name, files.accounts.contains_key(name));
    let qos = |name: &String| written("QOS", name, files.qos.contains_key(name));
    let reservation =
        |name: &String| written("reservation", name, files.reservations.contains_key(name));
    match change {
        PolicyChange::Account { account: one } => account(&one.name),
        PolicyChange::AccountRemoved { name } => account(name),
        PolicyChange::User { account: name, .. }
        | PolicyChange::UserRemoved { account: name, .. } => account(name),
        PolicyChange::Qos { qos: one } => qos(&one.name),
        PolicyChange::QosRemoved { name } => qos(name),
        PolicyChange::Reservation { reservation: one } => reservation(&one.name),
        PolicyChange::ReservationRemoved { name, .. } => reservation(name),
        PolicyChange::Partition { made } => partition::is_of_its_file(state, made),
        PolicyChange::PartitionRemoved { .. } => Ok(()),
        PolicyChange::All { policy } => {
            policy.accounts.keys().try_for_each(account)?;
            policy.qos.keys().try_for_each(qos)?;
            policy.reservations.keys().try_for_each(reservation)
        }
    }
}

/// A removed record must exist, and no job or record may need it.
fn is_not_in_use(state: &State, change: &PolicyChange) -> Result<(), Refusal> {
    let conflict = |text: String| Err(Refusal::conflict(text));
    let unknown =
        |what: &str, name: &str| Err(Refusal::not_found(format!("there is no {what} {name:?}.")));
    let own = &state.own_policy;
    match change {
        PolicyChange::AccountRemoved { name } if !own.accounts.contains_key(name) => {
            unknown("account", name)
        }
        PolicyChange::AccountRemoved { name } => account_is_free(state, name),
        PolicyChange::User { account, .. } if !own.accounts.contains_key(account) => {
            unknown("account", account)
        }
        PolicyChange::UserRemoved { account, user } => {
            let known = own
                .accounts
                .get(account)
                .is_some_and(|account| account.users.contains_key(user));
            if known {
                Ok(())
            } else {
                unknown("user of that account", user)
            }
        }
        PolicyChange::QosRemoved { name } if !own.qos.contains_key(name) => unknown("QOS", name),
        PolicyChange::QosRemoved { name } => {
            match state.index.tally.count(|[_, _, qos, _]| qos == name) {
                0 => Ok(()),
                jobs => conflict(format!(
                    "QOS {name} has {jobs} jobs that are not over. Change theirs first."
                )),
            }
        }
        PolicyChange::ReservationRemoved { name, .. } if !own.reservations.contains_key(name) => {
            unknown("reservation", name).map_err(|refusal| refusal.about(RefusalKind::Reservation))
        }
        PolicyChange::ReservationRemoved { name, force: false } => {
            reservation::window::is_left(state, name)
        }
        PolicyChange::PartitionRemoved { name } => partition::is_unused(state, name),
        PolicyChange::All { policy } => {
            let gone = own
                .accounts
                .keys()
                .filter(|name| !policy.accounts.contains_key(*name));
            gone.into_iter()
                .try_for_each(|name| account_is_free(state, name))
        }
        _ => Ok(()),
    }
}

fn account_is_free(state: &State, name: &str) -> Result<(), Refusal> {
    let jobs = state.index.tally.count(|[account, ..]| account == name);
    let why = match jobs {
        0 if !state.usage.knows_account(name) => return Ok(()),
        0 => "its use is in the books".to_owned(),
        jobs => format!("it has {jobs} jobs that are not over"),
    };
    let text = format!(
        "account {name} cannot be removed: {why}. Close it instead: it takes no new jobs then."
    );
    Err(Refusal::conflict(text))
}
