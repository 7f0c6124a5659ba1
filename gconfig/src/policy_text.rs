//! Accounts, QOS and reservations as TOML, in the form that `policy.d` and `gadm policy import` read.
//!
//! Owns the layout: what is a default is left out, names are sorted, so that two exports compare line by line.

use crate::record::USER_TABLES;
use gmodel::Timestamp;
use gmodel::gpu_amounts::milli_text;
use gmodel::policy::{ALL_GPUS, AccountUser, GpuAmounts, Policy, Reservation, ReservedPart};
use gmodel::record::{Key, Kind, Record, Table, Value};
use std::fmt::Write;

/// The whole policy as one file. Reading it gives the same policy.
pub fn policy_text(policy: &Policy) -> String {
    let mut text = String::new();
    for (name, account) in &policy.accounts {
        write_record(&mut text, &format!("account.{}", bare(name)), account);
    }
    for (name, qos) in &policy.qos {
        write_record(&mut text, &format!("qos.{}", bare(name)), qos);
    }
    for (name, reservation) in &policy.reservations {
        let mut one: Reservation = reservation.clone();
        // Of nodes that were chosen their names stand here.
        if !matches!(one.what, ReservedPart::NodeCount(_)) {
            one.features.clear();
        }
        write_record(&mut text, &format!("reservation.{}", bare(name)), &one);
    }
    text
}

fn write_record<R: Record>(text: &mut String, path: &str, record: &R) {
    write_table(
        text,
        &format!("[{path}]"),
        &record.table(),
        &R::default().table(),
    );
}

/// A table with those of its keys that differ from the default's, and with all where there is no default; then the tables below it.
fn write_table(text: &mut String, head: &str, table: &Table, default: &Table) {
    let usual = |key: &Key| default.iter().find(|(known, _)| *known == key);
    let is_said = |(key, value): &&(&'static Key, Value)| {
        let is_usual = usual(key).is_some_and(|(_, usual)| usual == value);
        key.is_in_files() && *value != Value::Unset && (key.is_needed || !is_usual)
    };
    if !text.is_empty() {
        text.push('\n');
    }
    let _ = writeln!(text, "{head}");
    for (key, value) in table.iter().filter(is_said) {
        if let Some(value) = value_text(key.kind, value) {
            let _ = writeln!(text, "{} = {value}", key.name);
        }
    }
    let path = head.trim_matches(['[', ']']);
    for (key, value) in table.iter().filter(is_said) {
        let below = format!("{path}.{}", key.name);
        match value {
            Value::Table(table) => match usual(key) {
                Some((_, Value::Table(usual))) => {
                    write_table(text, &format!("[{below}]"), table, usual);
                }
                _ => write_table(text, &format!("[{below}]"), table, &Table::new()),
            },
            Value::Tables(tables) => {
                for table in tables {
                    write_table(text, &format!("[[{below}]]"), table, &Table::new());
                }
            }
            Value::Users(users) => {
                let plain = AccountUser::default().table();
                for (name, user) in users.iter().filter(|(_, user)| **user != plain) {
                    let head = format!("[{path}.{USER_TABLES}.{}]", bare(name));
                    write_table(text, &head, user, &plain);
                }
            }
            _ => {}
        }
    }
}

/// A value behind `key =`; `None`: it is in tables of its own.
fn value_text(kind: Kind, value: &Value) -> Option<String> {
    Some(match (kind, value) {
        (Kind::Decimal { .. }, Value::Number(milli)) => milli_text(*milli),
        (Kind::Duration { .. } | Kind::TimeLimit, Value::Number(secs)) => time_text(*secs),
        (_, Value::Number(number)) => number.to_string(),
        (_, Value::Text(text)) => quoted(text),
        (_, Value::Names(names)) => list_text(names),
        (_, Value::Gpus(gpus)) => amounts_text(gpus),
        (_, Value::Flag(flag)) => flag.to_string(),
        (_, Value::Moment(at)) => moment_text(*at),
        (_, Value::Users(users)) => {
            let plain = AccountUser::default().table();
            let plain = users.iter().filter(|(_, user)| **user == plain);
            let names: Vec<String> = plain.map(|(name, _)| name.clone()).collect();
            return Some(list_text(&names)).filter(|_| !names.is_empty());
        }
        (_, Value::Unset | Value::Table(_) | Value::Tables(_)) => return None,
    })
}

fn list_text(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    format!("[{}]", quoted.join(", "))
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A name of letters, digits, `_` and `-` stands bare.
fn bare(name: &str) -> String {
    let is_bare = !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    if is_bare {
        name.to_owned()
    } else {
        format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

fn amounts_text(amounts: &GpuAmounts) -> String {
    match (amounts.0.len(), amounts.of(ALL_GPUS)) {
        (1, Some(all)) => milli_text(all),
        (0, _) => "{}".into(),
        _ => {
            let parts: Vec<_> = amounts
                .0
                .iter()
                .map(|(name, milli)| format!("{} = {}", bare(name), milli_text(*milli)))
                .collect();
            format!("{{ {} }}", parts.join(", "))
        }
    }
}

/// Seconds in a form that is read back to the second.
fn time_text(secs: u64) -> String {
    quoted(&format!(
        "{}:{:02}:{:02}",
        secs / 3600,
        secs / 60 % 60,
        secs % 60
    ))
}

/// RFC 3339 to the millisecond: an edit through a file moves nothing.
fn moment_text(at: Timestamp) -> String {
    let whole = at.to_string();
    match at.0.rem_euclid(1000) {
        0 => whole,
        millis => format!("{}.{millis:03}Z", whole.trim_end_matches('Z')),
    }
}
