//! Faults of a policy as a whole: unknown names, circles in the tree of accounts, guarantees that exceed the
//! one above, sizes beyond bounds.
//!
//! An edit is refused for faults that it adds; faults that were there before (from a file) do not block it.

use crate::ctl::policy::partition;
use crate::ctl::state::State;
use gmodel::Policy;
use gmodel::config::ClusterConfig;
use gmodel::policy::{ALL_GPUS, Account, Qos, ROOT_ACCOUNT, Reservation, ReservedPart};
use gmodel::suggest::did_you_mean;
use gpolicy::reserved_nodes::MOST_MAGNETIC;
use std::collections::{BTreeMap, BTreeSet};

/// Most levels of accounts.
pub const MAX_DEPTH: usize = 32;
const MAX_ACCOUNTS: usize = 10_000;
const MAX_USERS: usize = 10_000;
const MAX_QOS: usize = 1_000;
const MAX_RESERVATIONS: usize = 1_000;
const MAX_PARTITIONS: usize = 1_000;
const MAX_BUDGETS: usize = 16;
const MAX_TEXT_BYTES: usize = 1_000;

/// Faults after an edit that are not there now.
pub(crate) fn new_faults(state: &State, after: &Policy) -> Vec<String> {
    let now = faults(after, &state.config);
    if now.is_empty() {
        return now;
    }
    let before: BTreeSet<String> = faults(&state.policy, &state.config).into_iter().collect();
    now.into_iter()
        .filter(|fault| !before.contains(fault))
        .collect()
}

/// Faults of the policy in force: files may contradict what `gadm` made.
pub fn policy_faults(state: &State) -> Vec<String> {
    let mut found = faults(&state.policy, &state.config);
    found.extend(partition::hidden(state));
    found
}

/// Partitions open to accounts that do not exist: possibly a typing error that closes the partition. No fault
/// of the files, since accounts can be made at any time.
pub fn unknown_accounts(state: &State) -> Vec<String> {
    let known = &state.policy.accounts;
    if known.is_empty() {
        return Vec::new();
    }
    let mut notes = Vec::new();
    for partition in &state.config.partitions {
        let is_known =
            |name: &&String| known.contains_key(*name) || **name == state.config.default_account;
        let unknown = partition
            .allow_accounts
            .iter()
            .filter(|name| !is_known(name));
        for name in unknown {
            let guess = did_you_mean(name, known.keys().map(String::as_str));
            let nobody = if partition.allow_accounts.iter().any(|name| is_known(&name)) {
                ""
            } else {
                ", and lets nobody else in"
            };
            notes.push(format!("partition {}: allow_accounts names {name:?}, and there is no such account{nobody}.{guess}", partition.name));
        }
    }
    notes
}

fn faults(policy: &Policy, config: &ClusterConfig) -> Vec<String> {
    let mut found = Vec::new();
    let counts = [
        ("accounts", policy.accounts.len(), MAX_ACCOUNTS),
        ("QOS", policy.qos.len(), MAX_QOS),
        ("reservations", policy.reservations.len(), MAX_RESERVATIONS),
        ("partitions", policy.partitions.len(), MAX_PARTITIONS),
    ];
    for (what, count, most) in counts {
        if count > most {
            found.push(format!(
                "there would be {count} {what}, and {most} are the most."
            ));
        }
    }
    for (name, account) in &policy.accounts {
        named("account", name, &account.name, &mut found);
        account_faults(policy, account, &mut found);
    }
    guarantees(policy, &mut found);
    limits_above(policy, &mut found);
    defaults(policy, &mut found);
    for (name, qos) in &policy.qos {
        named("QOS", name, &qos.name, &mut found);
        qos_faults(policy, qos, &mut found);
    }
    let magnetic = policy
        .reservations
        .values()
        .filter(|one| one.magnetic)
        .count();
    if magnetic > MOST_MAGNETIC {
        found.push(format!(
            "{magnetic} reservations would be MAGNETIC, and {MOST_MAGNETIC} are the most."
        ));
    }
    for (name, made) in &policy.partitions {
        named("partition", name, &made.partition.name, &mut found);
        let partition = &made.partition;
        for qos in partition.allow_qos.iter().chain(&partition.default_qos) {
            known_qos(policy, &format!("partition {name}"), qos, &mut found);
        }
    }
    for (name, reservation) in &policy.reservations {
        named("reservation", name, &reservation.name, &mut found);
        reservation_faults(policy, config, reservation, &mut found);
    }
    found
}

fn named(what: &str, key: &str, name: &str, found: &mut Vec<String>) {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    if key != name || !(1..=64).contains(&name.len()) || !name.bytes().all(good) {
        found.push(format!(
            "{name:?} is no name of a {what}: use up to 64 letters, digits, '_', '-' and '.'."
        ));
    }
}

fn parent_fault(policy: &Policy, account: &Account) -> Option<String> {
    let name = &account.name;
    let parent = account.parent.as_deref()?;
    let line = policy.lineage(name);
    let top = line.last().and_then(|top| top.parent.as_deref());
    if parent == ROOT_ACCOUNT {
        None
    } else if !policy.accounts.contains_key(parent) {
        Some(format!(
            "account {name}: its parent {parent:?} does not exist."
        ))
    } else if top.is_some_and(|top| line.iter().any(|one| one.name == top)) {
        Some(format!("account {name} would be below itself."))
    } else if line.len() > MAX_DEPTH {
        Some(format!(
            "account {name} would be {} deep, and {MAX_DEPTH} is the most.",
            line.len()
        ))
    } else {
        None
    }
}

fn account_faults(policy: &Policy, account: &Account, found: &mut Vec<String>) {
    let name = &account.name;
    if name == ROOT_ACCOUNT {
        found.push(format!(
            "{ROOT_ACCOUNT} stands above all accounts and cannot be one."
        ));
    }
    found.extend(parent_fault(policy, account));
    let lists = [
        ("users", account.users.len(), MAX_USERS),
        ("budgets", account.budgets.len(), MAX_BUDGETS),
    ];
    for (what, count, most) in lists {
        if count > most {
            found.push(format!(
                "account {name} would have {count} {what}, and {most} are the most."
            ));
        }
    }
    if account.description.len() > MAX_TEXT_BYTES {
        found.push(format!(
            "account {name}: its description is longer than {MAX_TEXT_BYTES} bytes."
        ));
    }
    for qos in account.allow_qos.iter().chain(&account.default_qos) {
        known_qos(policy, &format!("account {name}"), qos, found);
    }
    if let Some(default) = &account.default_qos
        && !account.allow_qos.is_empty()
        && !account.allow_qos.contains(default)
    {
        found.push(format!(
            "account {name}: its default QOS {default} is none of those it allows."
        ));
    }
    if let Some((kind, least, most)) = account.guaranteed_beyond_limit() {
        found.push(format!(
            "account {name} would be guaranteed {} {} and limited to {}.",
            gpus(least),
            word(kind),
            gpus(most)
        ));
    }
}

/// The guarantees of accounts below another fit into its own.
fn guarantees(policy: &Policy, found: &mut Vec<String>) {
    for one in policy.overdrawn() {
        let list: Vec<String> = one
            .parts
            .iter()
            .map(|(name, milli)| format!("{name} {}", gpus(*milli)))
            .collect();
        found.push(format!(
            "the accounts below {} would be guaranteed {} {} together ({}), and it has {}. Raise its guarantee first.",
            one.account,
            gpus(one.sum),
            word(one.gpu_type),
            list.join(", "),
            gpus(one.milli)
        ));
    }
}

/// A guarantee beyond the limit of an account above could never be held.
fn limits_above(policy: &Policy, found: &mut Vec<String>) {
    for one in policy.beyond_limits_above() {
        found.push(format!(
            "account {} would be guaranteed {} {}, and {} above it is limited to {}.",
            one.account,
            gpus(one.milli),
            word(one.gpu_type),
            one.above,
            gpus(one.most)
        ));
    }
}

fn word(gpu_type: &str) -> &str {
    if gpu_type == ALL_GPUS {
        "GPUs"
    } else {
        gpu_type
    }
}

fn gpus(milli: u64) -> String {
    gmodel::gpu_amounts::milli_text(milli)
}

fn defaults(policy: &Policy, found: &mut Vec<String>) {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    for account in policy.accounts.values() {
        for (user, _) in account.users.iter().filter(|(_, entry)| entry.is_default) {
            if let Some(other) = first.insert(user, &account.name) {
                found.push(format!(
                    "{user} would have two default accounts, {other} and {}.",
                    account.name
                ));
            }
        }
    }
}

fn known_qos(policy: &Policy, who: &str, qos: &str, found: &mut Vec<String>) {
    if !policy.qos.contains_key(qos) && qos != crate::ctl::job::admission::NORMAL_QOS {
        found.push(format!("{who}: QOS {qos:?} does not exist."));
    }
}

fn qos_faults(policy: &Policy, qos: &Qos, found: &mut Vec<String>) {
    let name = &qos.name;
    for other in &qos.preempt {
        known_qos(policy, &format!("QOS {name}"), other, found);
    }
    if qos.preempt.contains(name) {
        found.push(format!("QOS {name} cannot preempt itself."));
    }
    if let Some((kind, least, most)) = qos.per_job.asks_beyond_its_bound() {
        found.push(format!(
            "QOS {name}: a job would have to ask for {} {} and may have {}.",
            gpus(least),
            word(kind),
            gpus(most)
        ));
    }
    if qos.description.len() > MAX_TEXT_BYTES {
        found.push(format!(
            "QOS {name}: its description is longer than {MAX_TEXT_BYTES} bytes."
        ));
    }
}

fn reservation_faults(
    policy: &Policy,
    config: &ClusterConfig,
    one: &Reservation,
    found: &mut Vec<String>,
) {
    let name = &one.name;
    if one.duration_secs == 0 {
        found.push(format!("reservation {name} would last no time."));
    }
    if one
        .repeat
        .every_secs()
        .is_some_and(|secs| one.duration_secs > secs)
    {
        found.push(format!(
            "reservation {name} would last longer than until it comes again."
        ));
    }
    for (what, names) in [("users", &one.users), ("accounts", &one.accounts)] {
        if names.iter().any(|name| name.starts_with('-'))
            && !names.iter().all(|name| name.starts_with('-'))
        {
            found.push(format!("reservation {name}: {what} names who may use it, or with a minus who may not. Keep one of both."));
        }
        if names.contains("-") {
            found.push(format!(
                "reservation {name}: {what} has a minus without a name."
            ));
        }
    }
    if (one.magnetic || one.overlap) && matches!(one.what, ReservedPart::Gpus(_)) {
        found.push(format!("reservation {name}: MAGNETIC and OVERLAP are for whole nodes (nodes, node_count), not for GPUs by number."));
    }
    if let Some(partition) = one
        .partition
        .as_deref()
        .filter(|partition| config.partition(partition).is_none())
    {
        found.push(format!(
            "reservation {name}: partition {partition:?} does not exist."
        ));
    }
    if !policy.accounts.is_empty() {
        let unknown = |account: &&str| {
            !policy.accounts.contains_key(*account) && **account != config.default_account
        };
        for account in one
            .accounts
            .iter()
            .map(|name| name.strip_prefix('-').unwrap_or(name))
            .filter(unknown)
        {
            found.push(format!(
                "reservation {name}: account {account:?} does not exist."
            ));
        }
    }
}
