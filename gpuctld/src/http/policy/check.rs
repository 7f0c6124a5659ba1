//! Names that an edit mentions, looked up before the core is asked: what is not there gets a guess.
//!
//! Whether the whole makes sense, and whether the caller may edit it, is the core's word.

use crate::http::error::ApiError;
use crate::http::existence::exists;
use gcore::ctl::{NORMAL_QOS, State};
use gmodel::config::{NodeSelection, Partition};
use gmodel::gpu_amounts::milli_text;
use gmodel::policy::{ALL_GPUS, Account, GpuAmounts, Qos, Reservation, ReservedPart};
use gmodel::record::{Kind, Record, Table, Value};
use gmodel::suggest::did_you_mean;
use nix::unistd::User;
use std::collections::BTreeSet;

pub(crate) fn account(state: &State, account: &Account) -> Result<(), ApiError> {
    // Of itself the core says that it cannot be below itself; a guess names what is there.
    if let Some(parent) = account
        .parent
        .as_ref()
        .filter(|parent| **parent != account.name)
    {
        exists(
            "account",
            parent,
            state
                .policy
                .accounts
                .keys()
                .filter(|name| **name != account.name),
        )?;
    }
    account
        .allow_qos
        .iter()
        .chain(&account.default_qos)
        .try_for_each(|qos| exists("qos", qos, state.policy.qos.keys()))
}

/// # Errors
/// When other accounts hang on it.
pub(crate) fn nothing_is_below(state: &State, name: &str) -> Result<(), ApiError> {
    let below = state
        .policy
        .accounts
        .values()
        .filter(|account| account.parent.as_deref() == Some(name));
    let below: Vec<&str> = below.map(|account| &*account.name).collect();
    if below.is_empty() {
        return Ok(());
    }
    let text = format!(
        "account {name} has accounts below it ({}). Remove these first, or give them another parent",
        below.join(", ")
    );
    Err(ApiError::conflict(text))
}

pub(crate) fn qos(state: &State, qos: &Qos) -> Result<(), ApiError> {
    // Of itself the core says that it cannot be preempted; a guess names what is there.
    qos.preempt
        .iter()
        .filter(|other| **other != qos.name)
        .try_for_each(|other| exists("qos", other, state.policy.qos.keys()))
}

pub(crate) fn partition(state: &State, partition: &Partition) -> Result<(), ApiError> {
    let qos = partition.allow_qos.iter().chain(&partition.deny_qos);
    qos.chain(&partition.default_qos)
        .filter(|qos| *qos != NORMAL_QOS)
        .try_for_each(|qos| exists("qos", qos, state.policy.qos.keys()))?;
    match &partition.nodes {
        NodeSelection::Names(hosts) => hosts
            .iter()
            .try_for_each(|host| exists("node", host, state.index.node_names.keys())),
        _ => Ok(()),
    }
}

pub(crate) fn reservation(state: &State, reservation: &Reservation) -> Result<(), ApiError> {
    if let Some(partition) = &reservation.partition {
        exists(
            "partition",
            partition,
            state
                .config
                .partitions
                .iter()
                .map(|partition| &partition.name),
        )?;
    }
    match &reservation.what {
        ReservedPart::Nodes(hosts) => hosts
            .iter()
            .try_for_each(|host| exists("node", host, state.index.node_names.keys())),
        _ => Ok(()),
    }
}

/// A note of users that neither this host nor any account knows, nor any job is of: they may be known elsewhere, or it is a slip.
pub(crate) async fn unknown_users(state: &State, mut names: Vec<String>) -> Option<String> {
    let has_jobs = |name: &str| state.jobs.values().any(|job| job.spec.user.name == name);
    names.retain(|name| {
        !state
            .policy
            .accounts
            .values()
            .any(|account| account.users.contains_key(name))
            && !has_jobs(name)
    });
    // Where the name service does not answer nothing can be said.
    let is_unknown = |name: &String| matches!(User::from_name(name), Ok(None));
    let asked = tokio::task::spawn_blocking(move || {
        names
            .into_iter()
            .filter(is_unknown)
            .collect::<Vec<String>>()
    })
    .await;
    let unknown = asked.ok().filter(|names| !names.is_empty())?;
    let (what, names) = (
        if unknown.len() == 1 { "user" } else { "users" },
        unknown.join(", "),
    );
    Some(format!(
        "{what} {names}: this host does not know such a name, and no account has it"
    ))
}

/// The types of GPU that the amounts and budgets of a record are of.
fn gpu_types(table: &Table) -> BTreeSet<String> {
    let mut types = BTreeSet::new();
    for (key, value) in table {
        match value {
            Value::Gpus(gpus) => types.extend(gpus.0.keys().cloned()),
            Value::Text(text) if key.kind == Kind::GpuType => drop(types.insert(text.clone())),
            Value::Table(table) => types.extend(gpu_types(table)),
            Value::Tables(tables) => types.extend(tables.iter().flat_map(gpu_types)),
            Value::Users(users) => types.extend(users.values().flat_map(gpu_types)),
            _ => {}
        }
    }
    types
}

/// A note for each type of GPU that an edit brought in and no node has: such nodes may be to come, or it is a slip.
pub(crate) fn unheard_of<T: Record>(state: &State, old: Option<&T>, new: &T) -> Vec<String> {
    let there: BTreeSet<&str> = state
        .nodes
        .values()
        .flat_map(|node| node.gpus.iter())
        .map(|gpu| &*gpu.info.gpu_type)
        .collect();
    let before = old.map(|old| gpu_types(&old.table())).unwrap_or_default();
    let is_new = |kind: &String| {
        kind != "gpu"
            && !before.contains(kind)
            && !there.iter().any(|known| known.eq_ignore_ascii_case(kind))
    };
    let note = |kind: String| {
        let known: Vec<&str> = there.iter().copied().collect();
        let guess = did_you_mean(&kind, known.iter().copied());
        format!(
            "no node has GPUs of type {kind:?} (there are {}); it counts when one comes.{guess}",
            known.join(", ")
        )
    };
    // Of a pool without GPUs nothing can be said yet.
    if there.is_empty() {
        Vec::new()
    } else {
        let types = gpu_types(&new.table()).into_iter();
        types.filter(is_new).map(note).collect()
    }
}

/// A note where an edit of an account guarantees more, with what others are guaranteed, than the nodes have.
pub(crate) fn beyond_the_pool(
    state: &State,
    old: Option<&Account>,
    new: &Account,
) -> Option<String> {
    if new.guaranteed.is_none()
        || old.is_some_and(|old| old.guaranteed == new.guaranteed && old.parent == new.parent)
    {
        return None;
    }
    let mut policy = (*state.policy).clone();
    policy.accounts.insert(new.name.clone(), new.clone());
    // What is below another guarantee is a part of it.
    let is_top = |account: &&Account| {
        policy.lineage(&account.name)[1..]
            .iter()
            .all(|above| above.guaranteed.is_none())
    };
    let tops: Vec<&GpuAmounts> = policy
        .accounts
        .values()
        .filter(is_top)
        .filter_map(|account| account.guaranteed.as_ref())
        .collect();
    let gpus = || {
        state
            .nodes
            .values()
            .flat_map(|node| node.gpus.iter())
            .filter(|gpu| gpu.usable())
            .map(|gpu| &gpu.info)
    };
    let too_many = |kind: &str, sum: u64| {
        let there: u64 = gpus()
            .filter(|gpu| kind == ALL_GPUS || gpu.gpu_type.eq_ignore_ascii_case(kind))
            .map(|gpu| u64::from(gpu.part().milli()))
            .sum();
        // Of a pool without GPUs nothing can be said yet.
        let what = if kind == ALL_GPUS { "GPUs" } else { kind };
        (0 < there && there < sum).then(|| {
            let (sum, there) = (milli_text(sum), milli_text(there));
            format!("accounts are guaranteed {sum} {what} together, and the nodes have {there}: not all can have theirs at once.")
        })
    };
    let named = new
        .guaranteed
        .iter()
        .flat_map(|amounts| amounts.0.keys().map(String::as_str));
    let mut kinds: Vec<&str> = named.filter(|kind| *kind != ALL_GPUS).collect();
    kinds.push(ALL_GPUS);
    kinds
        .into_iter()
        .find_map(|kind| too_many(kind, tops.iter().map(|one| one.amount(kind)).sum()))
}

/// The account of jobs that name none needs no record, and can be given nothing without one.
pub(crate) fn account_exists(state: &State, name: &str) -> Result<(), ApiError> {
    if name == state.config.default_account && !state.policy.accounts.contains_key(name) {
        return Err(ApiError::not_found(format!(
            "there is no account {name:?}. Jobs of users without an account have it without a record; gadm account add {name} makes one."
        )));
    }
    exists("account", name, state.policy.accounts.keys())
}
