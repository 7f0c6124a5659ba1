//! What an edit of accounts, users, QOS and reservations changes.

use crate::ctl::apply::memos::forget_what_fits;
use crate::ctl::event::PolicyChange;
use crate::ctl::policy::merge::{merged, partitions};
use crate::ctl::state::State;
use gmodel::Policy;
use gmodel::config::ClusterConfig;
use std::sync::Arc;

/// Carries out an edit.
pub(crate) fn changed(state: &mut State, change: &PolicyChange) {
    edit(&mut state.own_policy, change);
    merge(state);
}

pub(crate) fn edit(own: &mut Policy, change: &PolicyChange) {
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
                // An account for named users does not open to all users when its last user is removed.
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
        PolicyChange::Partition { made } => {
            own.partitions.insert(made.partition.name.clone(), *made);
        }
        PolicyChange::PartitionRemoved { name } => {
            own.partitions.remove(&name);
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

/// Brings the policy and the partitions in force up to date, after the files or what was made changed.
pub(crate) fn merge(state: &mut State) {
    let partitions = partitions(&state.own_policy, &state.config);
    if partitions != state.config.partitions {
        state.config = Arc::new(ClusterConfig {
            file_partitions: state.config.of_files().to_vec(),
            partitions,
            ..(*state.config).clone()
        });
        forget_what_fits(state);
    }
    state.policy = merged(&state.own_policy, &state.config);
}
