//! What holds between records of the files: names that exist, a tree without circles, guarantees that fit into each other.
//!
//! Each mistake is shown at the place that mentions the other. What `gadm` made may refer to the files, never the other way
//! round, so a file can be checked without the database.

use crate::error::Errors;
use crate::policy::{RecordKind, Records};
use gmodel::config::{ClusterConfig, Partition};
use gmodel::gpu_amounts::milli_text;
use gmodel::policy::{ALL_GPUS, Policy};
use gmodel::suggest::closest;
use std::collections::{BTreeMap, BTreeSet};

/// Checks all that was read. Names of `base` exist too: an import may refer to what is there. The default account need not be written.
pub fn check(
    records: &Records,
    partitions: &[Partition],
    base: &Policy,
    default_account: &str,
    errors: &mut Errors,
) {
    mentions(records, partitions, base, default_account, |_| true, errors);
    tree(records, base, errors);
}

/// The same for one file of several: names of a kind that it has none of may be in others.
pub fn check_one(records: &Records, partitions: &[Partition], errors: &mut Errors) {
    let has_some = |kind: RecordKind| match kind {
        RecordKind::Account => !records.policy.accounts.is_empty(),
        RecordKind::Qos => !records.policy.qos.is_empty(),
        RecordKind::Partition => !partitions.is_empty(),
        RecordKind::Reservation => !records.policy.reservations.is_empty(),
    };
    mentions(
        records,
        partitions,
        &Policy::default(),
        &ClusterConfig::default().default_account,
        has_some,
        errors,
    );
    tree(records, &Policy::default(), errors);
}

/// What a file says stands as long as it does: no reservation of it goes by itself.
pub fn lasting(records: &Records, errors: &mut Errors) {
    for (source, span, key) in &records.passing {
        errors.add(
            source,
            span.clone(),
            format!("{key} is of no use in a file, whose reservations do not go"),
            "make it with gadm reservation add",
        );
    }
}

fn tree(records: &Records, base: &Policy, errors: &mut Errors) {
    let mut all = base.clone();
    all.accounts.extend(records.policy.accounts.clone());
    circles(records, &all, errors);
    guarantees(records, &all, errors);
    limits_above(records, &all, errors);
    for (account, user, first) in second_defaults(&records.policy) {
        let Some((source, span)) = records.account_spans.get(&(account.clone(), "parent")) else {
            continue;
        };
        let text = format!("user {user:?} has a second default account, {account:?}");
        errors.add(
            source,
            span.clone(),
            text,
            format!("the first is {first:?}; one can be the default"),
        );
    }
}

fn mentions(
    records: &Records,
    partitions: &[Partition],
    base: &Policy,
    default_account: &str,
    is_here: impl Fn(RecordKind) -> bool,
    errors: &mut Errors,
) {
    for mention in records
        .mentions
        .iter()
        .filter(|mention| is_here(mention.kind))
    {
        let Some(names) = known_names(mention.kind, records, partitions, base) else {
            continue;
        };
        let is_reserved = mention.kind == RecordKind::Account
            && mention
                .by
                .as_ref()
                .is_some_and(|(by, _)| *by == RecordKind::Reservation);
        if names.contains(&&*mention.name) || is_reserved && mention.name == default_account {
            continue;
        }
        let (word, name) = (mention.kind.word(), &mention.name);
        // A record cannot mention itself.
        let is_other = |known: &&str| {
            mention
                .by
                .as_ref()
                .is_none_or(|(kind, own)| *kind != mention.kind || own != known)
        };
        let hint = match closest(name, names.iter().copied().filter(is_other)) {
            Some(near) => format!("did you mean {near:?}?"),
            None if mention.kind == RecordKind::Partition => {
                format!("partitions are {}", names.join(", "))
            }
            None => format!("add [{word}.{name}]; what only gadm made cannot be named in files"),
        };
        errors.add(
            mention.source,
            mention.span.clone(),
            format!("there is no {word} {name:?} in the files"),
            hint,
        );
    }
}

/// Names of a kind that may be mentioned; none of a kind that is never mentioned.
fn known_names<'a>(
    kind: RecordKind,
    records: &'a Records,
    partitions: &'a [Partition],
    base: &'a Policy,
) -> Option<Vec<&'a str>> {
    let (accounts, qos) = (&records.policy.accounts, &records.policy.qos);
    Some(match kind {
        RecordKind::Account => {
            let names = accounts.keys().chain(base.accounts.keys());
            names.map(|name| &**name).collect()
        }
        RecordKind::Qos => {
            let names = qos.keys().chain(base.qos.keys());
            names.map(|name| &**name).collect()
        }
        RecordKind::Partition => partitions.iter().map(|one| &*one.name).collect(),
        RecordKind::Reservation => return None,
    })
}

fn circles(records: &Records, all: &Policy, errors: &mut Errors) {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for name in records.policy.accounts.keys() {
        let line = all.lineage(name);
        let top = line.last().and_then(|top| top.parent.as_deref());
        // The lineage stops where it would come back: then its last parent is one of the line.
        let comes_back = top.is_some_and(|top| line.iter().any(|account| account.name == top));
        if comes_back && !line.iter().any(|account| seen.contains(&*account.name)) {
            seen.extend(line.iter().map(|account| &*account.name));
            if let Some((source, span)) = records.account_spans.get(&(name.clone(), "parent")) {
                errors.add(
                    source,
                    span.clone(),
                    format!("account {name:?} is below itself"),
                    "break the circle of parents",
                );
            }
        }
    }
}

/// What accounts below another are guaranteed must fit into what that is guaranteed itself.
fn guarantees(records: &Records, all: &Policy, errors: &mut Errors) {
    for one in all.overdrawn() {
        let (parent, sum) = (one.account, milli_text(one.sum));
        let list: Vec<String> = one
            .parts
            .iter()
            .map(|(name, milli)| format!("{name} {}", milli_text(*milli)))
            .collect();
        let text = format!(
            "the accounts below {parent:?} are guaranteed {sum} {} together ({}) and it has {}",
            gpu_word(one.gpu_type),
            list.join(", "),
            milli_text(one.milli)
        );
        let mut places = std::iter::once(parent).chain(one.parts.iter().map(|(name, _)| *name));
        let place =
            places.find_map(|name| records.account_spans.get(&(name.to_owned(), "guaranteed")));
        if let Some((source, span)) = place {
            errors.add(
                source,
                span.clone(),
                text,
                format!("guarantee {parent:?} {sum} or more, or those below it less"),
            );
        }
    }
}

/// A guarantee beyond the limit of an account above could never be held.
fn limits_above(records: &Records, all: &Policy, errors: &mut Errors) {
    for one in all.beyond_limits_above() {
        let Some((source, span)) = records
            .account_spans
            .get(&(one.account.to_owned(), "guaranteed"))
        else {
            continue;
        };
        let (milli, most, word) = (
            milli_text(one.milli),
            milli_text(one.most),
            gpu_word(one.gpu_type),
        );
        let text = format!(
            "account {:?} is guaranteed {milli} {word}, and {:?} above it may hold {most}",
            one.account, one.above
        );
        errors.add(
            source,
            span.clone(),
            text,
            format!(
                "guarantee it {most} or less, or raise the limit of {:?}",
                one.above
            ),
        );
    }
}

fn gpu_word(gpu_type: &str) -> String {
    if gpu_type == ALL_GPUS {
        "GPUs".into()
    } else {
        gpu_type.to_owned()
    }
}

/// Users with two default accounts: the second account, the user, the first.
fn second_defaults(policy: &Policy) -> Vec<(String, String, String)> {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    let mut second = Vec::new();
    for account in policy.accounts.values() {
        for (user, _) in account.users.iter().filter(|(_, entry)| entry.is_default) {
            if let Some(other) = first.insert(user, &account.name) {
                second.push((account.name.clone(), user.clone(), other.to_owned()));
            }
        }
    }
    second
}
