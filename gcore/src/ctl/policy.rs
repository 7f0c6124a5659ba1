//! Accounts, users, QOS and reservations: who may edit them, and what stands after an edit.
//!
//! What the configuration's files say wins over what `gadm` made; the state in force is both together. Whether the whole
//! makes sense is `policy_check`'s.

use super::command::{Actor, Refusal, Reply};
use super::event::{Event, PolicyChange};
use super::handle::{Tx, operator_only};
use super::policy_check::new_faults;
use super::reservation;
use super::reservation_upkeep;
use super::state::State;
use gmodel::config::ClusterConfig;
use gmodel::policy::{Account, AccountUser, Reservation};
use gmodel::{Policy, TimeZone, Timestamp};
use std::sync::Arc;

pub(super) fn change(tx: &mut Tx, actor: &Actor, change: PolicyChange) -> Result<Reply, Refusal> {
    let state = &*tx.state;
    let change = match change {
        PolicyChange::All { policy } => PolicyChange::All {
            policy: Box::new(imported(state, tx.now, actor, *policy)?),
        },
        change => {
            may_be_made(state, actor, &change)?;
            let change = match change {
                PolicyChange::Reservation { reservation } => {
                    let one = reservation::made(
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
            edit(&mut after, &change);
            goes_together(state, &after)?;
            change
        }
    };
    make(tx, change, actor.user.clone());
    Ok(Reply::Done)
}

/// A whole policy as it would stand in place of what was made: with the nodes that its reservations get, and without those that are over.
///
/// # Errors
/// The actor may not, files say it, somebody needs what it takes away, a reservation cannot be made beside the others and the jobs, or
/// something else does not go together.
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
    policy.reservations = reservation::all_made(state, now, &actor.user, policy.reservations)?;
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

/// The change becomes a fact, with what follows from it.
pub(super) fn make(tx: &mut Tx, change: PolicyChange, by: String) {
    let releasing = reservation_upkeep::releasing(tx.state);
    tx.emit(Event::PolicyChanged {
        change,
        by: by.clone(),
        at: tx.now,
    });
    reservation_upkeep::release(tx, &releasing, &by);
    super::preempt::declassify(tx);
    reservation::note_deleted(tx);
}

/// Operators edit all of it. Coordinators edit users and what each of them may use, and the accounts below theirs.
/// Everybody may choose among their accounts the one that is their default.
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

/// The user makes the account their default, and nothing else.
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

/// Nothing differs but the users, what each of them may use, and the words.
fn only_users(known: &Account, account: &Account) -> bool {
    let Account {
        users,
        per_user,
        description,
        ..
    } = account.clone();
    Account {
        users,
        per_user,
        description,
        ..known.clone()
    } == *account
}

/// What a file says is changed in that file.
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
        PolicyChange::All { policy } => {
            policy.accounts.keys().try_for_each(account)?;
            policy.qos.keys().try_for_each(qos)?;
            policy.reservations.keys().try_for_each(reservation)
        }
    }
}

/// What is taken away must be there, and nobody may need it.
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
            match state.tally.count(|[_, _, qos, _]| qos == name) {
                0 => Ok(()),
                jobs => conflict(format!(
                    "QOS {name} has {jobs} jobs that are not over. Change theirs first."
                )),
            }
        }
        PolicyChange::ReservationRemoved { name, .. } if !own.reservations.contains_key(name) => {
            unknown("reservation", name)
        }
        PolicyChange::ReservationRemoved { name, force: false } => {
            reservation::is_left(state, name)
        }
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
    let jobs = state.tally.count(|[account, ..]| account == name);
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

/// Carries out an edit.
pub(super) fn apply(state: &mut State, change: &PolicyChange) {
    edit(&mut state.own_policy, change);
    state.merge_policy();
}

fn edit(own: &mut Policy, change: &PolicyChange) {
    match change.clone() {
        PolicyChange::Account { account } => {
            for (user, _) in account.users.iter().filter(|(_, entry)| entry.is_default) {
                no_other_default(own, &account.name, user);
            }
            own.accounts.insert(account.name.clone(), *account);
        }
        PolicyChange::AccountRemoved { name } => {
            own.accounts.remove(&name);
        }
        PolicyChange::User {
            account,
            user,
            entry,
        } => {
            if entry.is_default {
                no_other_default(own, &account, &user);
            }
            if let Some(account) = own.accounts.get_mut(&account) {
                account.users.insert(user, entry);
            }
        }
        PolicyChange::UserRemoved { account, user } => {
            if let Some(account) = own.accounts.get_mut(&account) {
                account.users.remove(&user);
                // What was for some is not for all once the last of them is gone.
                account.users_only |= account.users.is_empty();
            }
        }
        PolicyChange::Qos { qos } => {
            own.qos.insert(qos.name.clone(), *qos);
        }
        PolicyChange::QosRemoved { name } => {
            own.qos.remove(&name);
        }
        PolicyChange::Reservation { reservation } => {
            own.reservations
                .insert(reservation.name.clone(), *reservation);
        }
        PolicyChange::ReservationRemoved { name, .. } => {
            own.reservations.remove(&name);
        }
        PolicyChange::All { policy } => *own = *policy,
    }
}

/// One account is a user's default; a newer choice takes the place of an older one.
fn no_other_default(own: &mut Policy, account: &str, user: &str) {
    for (_, other) in own.accounts.iter_mut().filter(|(name, _)| *name != account) {
        if let Some(entry) = other.users.get_mut(user) {
            entry.is_default = false;
        }
    }
}

/// What is in force: the files' records over the database's of the same name.
pub(super) fn merged(own: &Policy, config: &ClusterConfig) -> Arc<Policy> {
    let files = &config.policy;
    let mut all = own.clone();
    all.accounts.extend(files.accounts.clone());
    all.qos.extend(files.qos.clone());
    all.reservations.extend(files.reservations.clone());
    for one in all.reservations.values_mut() {
        zoned(one, config);
    }
    Arc::new(all)
}

/// Recurring windows follow a clock of the site.
pub(super) fn zoned(one: &mut Reservation, config: &ClusterConfig) {
    one.zone = (*config.time_zone != TimeZone::default()).then(|| config.time_zone.clone());
}
