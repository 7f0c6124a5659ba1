//! Accounts, users, QOS and reservations: who may edit them, and what stands after an edit.
//!
//! What the configuration's files say wins over what `gadm` made; the state in force is both together.

use super::command::{Actor, Refusal, Reply};
use super::event::{Event, PolicyChange};
use super::handle::{Tx, operator_only};
use super::state::State;
use gmodel::Policy;
use std::sync::Arc;

pub(super) fn change(tx: &mut Tx, actor: &Actor, change: PolicyChange) -> Result<Reply, Refusal> {
    operator_only(actor, "editing accounts, QOS and reservations")?;
    tx.emit(Event::PolicyChanged { change, by: actor.user.clone(), at: tx.now });
    Ok(Reply::Done)
}

/// Carries out an edit.
pub(super) fn apply(state: &mut State, change: &PolicyChange) {
    let own = &mut state.own_policy;
    match change.clone() {
        PolicyChange::Account { account } => {
            own.accounts.insert(account.name.clone(), *account);
        }
        PolicyChange::AccountRemoved { name } => {
            own.accounts.remove(&name);
        }
        PolicyChange::User { account, user, entry } => {
            if let Some(account) = own.accounts.get_mut(&account) {
                account.users.insert(user, entry);
            }
        }
        PolicyChange::UserRemoved { account, user } => {
            if let Some(account) = own.accounts.get_mut(&account) {
                account.users.remove(&user);
            }
        }
        PolicyChange::Qos { qos } => {
            own.qos.insert(qos.name.clone(), *qos);
        }
        PolicyChange::QosRemoved { name } => {
            own.qos.remove(&name);
        }
        PolicyChange::Reservation { reservation } => {
            own.reservations.insert(reservation.name.clone(), *reservation);
        }
        PolicyChange::ReservationRemoved { name } => {
            own.reservations.remove(&name);
        }
        PolicyChange::All { policy } => *own = *policy,
    }
    state.merge_policy();
}

/// What is in force: the files' records over the database's of the same name.
pub(super) fn merged(own: &Policy, files: &Policy) -> Arc<Policy> {
    let mut all = own.clone();
    all.accounts.extend(files.accounts.clone());
    all.qos.extend(files.qos.clone());
    all.reservations.extend(files.reservations.clone());
    Arc::new(all)
}
