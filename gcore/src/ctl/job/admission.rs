//! What a user may submit: accounts, QOS, licences, reservations, checkpoints, priorities.
//!
//! A cluster without any of these takes every name, as before. A refusal says what would be allowed.

use crate::ctl::command::{Actor, Refusal};
use crate::ctl::state::State;
use gmodel::config::Partition;
use gmodel::policy::{Account, Policy, reserved_for};
use gmodel::suggest::did_you_mean;
use gmodel::{JobSpec, RefusalKind};

/// The QOS of jobs without one, unless configured otherwise. It needs no record.
pub const NORMAL_QOS: &str = "normal";

/// Fills in account and QOS and checks everything that is allowed or not.
pub(crate) fn admit(
    state: &State,
    actor: &Actor,
    spec: &mut JobSpec,
    partition: &Partition,
    notes: &mut Vec<String>,
) -> Result<(), Refusal> {
    spec.account = account(state, &spec.user.name, &spec.account)?;
    spec.qos = qos(state, partition, &spec.account, &spec.qos)?;
    licences(state, spec)?;
    reservation(state, spec)?;
    checkpoint(state, spec)?;
    if spec.priority.is_some() && !actor.operator {
        return denied(RefusalKind::Access, "only operators may set a --priority.");
    }
    notes.extend(borrowing(state, spec));
    Ok(())
}

/// The account a job is charged to.
fn account(state: &State, user: &str, asked: &str) -> Result<String, Refusal> {
    let (policy, default) = (&state.policy, &state.config.default_account);
    if policy.accounts.is_empty() {
        return Ok(if asked.is_empty() {
            default.clone()
        } else {
            asked.to_owned()
        });
    }
    if asked.is_empty() {
        return default_account(policy, user, default);
    }
    let Some(account) = policy.accounts.get(asked) else {
        if asked == default {
            return Ok(default.clone());
        }
        let hint = did_you_mean(asked, policy.accounts.keys().map(String::as_str));
        return invalid(
            RefusalKind::Account,
            format!(
                "there is no account {asked:?}.{hint} {}",
                allowed_text(policy, user, default)
            ),
        );
    };
    if let Some(closed) = policy.lineage(asked).iter().find(|account| account.closed) {
        return denied(
            RefusalKind::Account,
            format!(
                "account {} is closed. {}",
                closed.name,
                allowed_text(policy, user, default)
            ),
        );
    }
    if !may_charge(policy, user, account) {
        return denied(
            RefusalKind::Account,
            format!(
                "{user} is not in account {asked}. {}",
                allowed_text(policy, user, default)
            ),
        );
    }
    Ok(asked.to_owned())
}

/// The user's default account, else the only account with the user in it, else the cluster's default.
fn default_account(policy: &Policy, user: &str, default: &str) -> Result<String, Refusal> {
    let open = |account: &Account| {
        !policy
            .lineage(&account.name)
            .iter()
            .any(|account| account.closed)
    };
    let of_user = || {
        policy
            .accounts
            .values()
            .filter(|account| account.users.contains_key(user) && open(account))
    };
    let own = of_user().find(|account| {
        account
            .users
            .get(user)
            .is_some_and(|entry| entry.is_default)
    });
    if let Some(account) = own.or_else(|| of_user().next().filter(|_| of_user().count() == 1)) {
        return Ok(account.name.clone());
    }
    match policy.accounts.get(default) {
        None => Ok(default.to_owned()),
        Some(account) if open(account) && may_charge(policy, user, account) => {
            Ok(default.to_owned())
        }
        Some(_) => denied(
            RefusalKind::Account,
            format!(
                "{user} has no default account: choose with -A. {}",
                allowed_text(policy, user, default)
            ),
        ),
    }
}

fn may_charge(policy: &Policy, user: &str, account: &Account) -> bool {
    account.is_open() || account.users.contains_key(user) || policy.coordinates(user, &account.name)
}

/// `alice may use: nlp, vision.`
fn allowed_text(policy: &Policy, user: &str, default: &str) -> String {
    let open = |account: &&Account| {
        may_charge(policy, user, account)
            && !policy
                .lineage(&account.name)
                .iter()
                .any(|account| account.closed)
    };
    let mut names: Vec<&str> = policy
        .accounts
        .values()
        .filter(open)
        .map(|account| &*account.name)
        .collect();
    if !policy.accounts.contains_key(default) {
        names.push(default);
    }
    let more = names.len().saturating_sub(20);
    names.truncate(20);
    match (names.is_empty(), more) {
        (true, _) => format!("{user} is in no account: ask an operator."),
        (false, 0) => format!("{user} may use: {}.", names.join(", ")),
        (false, more) => format!("{user} may use: {} and {more} more.", names.join(", ")),
    }
}

fn qos(
    state: &State,
    partition: &Partition,
    account: &str,
    asked: &str,
) -> Result<String, Refusal> {
    let policy = &state.policy;
    let line = policy.lineage(account);
    let default = || {
        let of_account = line
            .iter()
            .find_map(|account| account.default_qos.as_deref());
        of_account
            .or(partition.default_qos.as_deref())
            .unwrap_or(NORMAL_QOS)
    };
    let name = if asked.is_empty() { default() } else { asked };
    if !policy.qos.is_empty() && !policy.qos.contains_key(name) && name != NORMAL_QOS {
        let hint = did_you_mean(name, policy.qos.keys().map(String::as_str));
        let names: Vec<&str> = policy.qos.keys().map(String::as_str).collect();
        return invalid(
            RefusalKind::Qos,
            format!(
                "there is no QOS {name:?}.{hint} There are: {}.",
                names.join(", ")
            ),
        );
    }
    let of_account = line.iter().find(|account| !account.allow_qos.is_empty());
    if let Some(account) =
        of_account.filter(|account| !account.allow_qos.iter().any(|allowed| allowed == name))
    {
        let allowed = account.allow_qos.join(", ");
        return denied(
            RefusalKind::Qos,
            format!(
                "account {} may use the QOS {allowed}, not {name}. Choose with --qos.",
                account.name
            ),
        );
    }
    if !partition.is_open_to_qos(name) {
        let allowed = partition.qos_text();
        return denied(
            RefusalKind::Qos,
            format!(
                "partition {:?} takes the QOS {allowed}, not {name}. Choose with --qos.",
                partition.name
            ),
        );
    }
    Ok(name.to_owned())
}

fn licences(state: &State, spec: &JobSpec) -> Result<(), Refusal> {
    let known = &state.config.scheduler.licences;
    for (name, wanted) in &spec.licences {
        match known.get(name) {
            Some(all) if wanted <= all => {}
            Some(all) => {
                return invalid(
                    RefusalKind::Licence,
                    format!("--licenses {name}:{wanted}: this cluster has {all} in all."),
                );
            }
            None => {
                let hint = did_you_mean(name, known.keys().map(String::as_str));
                let names: Vec<&str> = known.keys().map(String::as_str).collect();
                let names = if names.is_empty() {
                    "none".into()
                } else {
                    names.join(", ")
                };
                return invalid(
                    RefusalKind::Licence,
                    format!(
                        "--licenses {name}: there is no such licence.{hint} There are: {names}."
                    ),
                );
            }
        }
    }
    Ok(())
}

fn reservation(state: &State, spec: &JobSpec) -> Result<(), Refusal> {
    let Some(name) = spec.reservation.as_deref().filter(|name| !name.is_empty()) else {
        return Ok(());
    };
    let (user, account) = (&spec.user.name, &spec.account);
    let Some(reservation) = state.policy.reservations.get(name) else {
        let names = state.policy.reservations.keys();
        let hint = did_you_mean(name, names.map(String::as_str));
        return invalid(
            RefusalKind::Reservation,
            format!("--reservation {name}: there is no such reservation.{hint}"),
        );
    };
    if !state.policy.is_reserved_for(reservation, user, account) {
        let who = reserved_for(&reservation.users, &reservation.accounts);
        let who = if who.is_empty() {
            "maintenance, not for jobs".into()
        } else {
            format!("for {who}")
        };
        return denied(
            RefusalKind::ReservationAccess,
            format!(
                "--reservation {name}: it is {who}; this job is of {user} in account {account}."
            ),
        );
    }
    match &reservation.partition {
        Some(partition) if *partition != spec.partition => invalid(
            RefusalKind::Reservation,
            format!(
                "--reservation {name} is in partition {partition:?}, this job in {:?}.",
                spec.partition
            ),
        ),
        _ => Ok(()),
    }
}

fn checkpoint(state: &State, spec: &JobSpec) -> Result<(), Refusal> {
    let most = state.config.scheduler.preempt.max_grace_secs;
    match &spec.checkpoint {
        Some(checkpoint) if checkpoint.grace_secs > most => {
            let asked = checkpoint.grace_secs;
            invalid(
                RefusalKind::Other,
                format!(
                    "--checkpoint asks for {asked} s of grace; this cluster gives {most} s at most."
                ),
            )
        }
        _ => Ok(()),
    }
}

/// Notes that GPUs are guaranteed and this job's account has none of them.
fn borrowing(state: &State, spec: &JobSpec) -> Option<String> {
    let wants = spec
        .request
        .gpus
        .as_ref()
        .is_some_and(|gpus| !gpus.is_none());
    if !wants || !state.policy.has_quotas() {
        return None;
    }
    let outside = state
        .policy
        .qos
        .get(&spec.qos)
        .is_some_and(|qos| qos.outside_quota);
    let line = state.policy.lineage(&spec.account);
    if outside
        || line
            .iter()
            .any(|account| account.guaranteed.is_some() || !account.budgets.is_empty())
    {
        return None;
    }
    let account = &spec.account;
    let usual = state
        .config
        .partitions_of(&spec.partition)
        .next()
        .is_none_or(|partition| partition.requeue);
    Some(match (spec.borrow, spec.requeue.unwrap_or(usual)) {
        (Some(false), _) => format!(
            "account {account} is guaranteed no GPUs, and --no-borrow waits for such: it starts when the account gets a guarantee, or \
             without that option on what others leave idle"
        ),
        (None, false) => format!(
            "account {account} is guaranteed no GPUs, and a job that may not be requeued does not borrow: with --borrow it runs on what \
             others leave idle, and ends for good when they want it back"
        ),
        _ => format!(
            "account {account} is guaranteed no GPUs: this job runs on what others leave idle, and gives way when they want it back"
        ),
    })
}

fn denied<T>(about: RefusalKind, text: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::denied(text).about(about))
}

fn invalid<T>(about: RefusalKind, text: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::invalid(text).about(about))
}
