//! Changes of accounts, users, QOS and reservations with author and time, from the events of a year. Changes of files are not among
//! them.

use super::stored::ReadResult;
use gcore::ctl::{Event, PolicyChange};
use gmodel::{Instant, Timestamp};
use gwire::api::PolicyEventRow;
use rusqlite::Connection;
use serde::Serialize;

/// Changes of one answer: the newest ones.
const MOST: u32 = 10_000;

/// Those of a time, the oldest first.
pub fn changes(db: &Connection, from: Timestamp, to: Timestamp) -> ReadResult<Vec<PolicyEventRow>> {
    let mut statement = db.prepare_cached(
        "SELECT at, doc FROM events WHERE kind = 'policy_changed' AND at >= ?1 AND at < ?2 ORDER BY seq DESC LIMIT ?3",
    )?;
    let mut found = Vec::new();
    let mut rows = statement.query((from.0, to.0, MOST))?;
    while let Some(row) = rows.next()? {
        let at = Timestamp(row.get(0)?);
        if let Event::PolicyChanged { change, by, .. } =
            super::stored::read(&super::stored::bytes(row, 1)?)?
        {
            let (action, name, account, info) = told(&change);
            found.push(PolicyEventRow {
                at: Some(Instant(at)),
                by,
                action: action.to_owned(),
                name,
                account,
                info,
            });
        }
    }
    found.reverse();
    Ok(found)
}

/// The kind of change, the name of the record, its account, and its new text.
fn told(change: &PolicyChange) -> (&'static str, String, Option<String>, String) {
    match change {
        PolicyChange::Account { account } => {
            ("set account", account.name.clone(), None, text(account))
        }
        PolicyChange::AccountRemoved { name } => {
            ("remove account", name.clone(), None, String::new())
        }
        PolicyChange::User {
            account,
            user,
            entry,
        } => ("set user", user.clone(), Some(account.clone()), text(entry)),
        PolicyChange::UserRemoved { account, user } => (
            "remove user",
            user.clone(),
            Some(account.clone()),
            String::new(),
        ),
        PolicyChange::Qos { qos } => ("set qos", qos.name.clone(), None, text(qos)),
        PolicyChange::QosRemoved { name } => ("remove qos", name.clone(), None, String::new()),
        PolicyChange::Reservation { reservation } => (
            "set reservation",
            reservation.name.clone(),
            None,
            text(reservation),
        ),
        PolicyChange::ReservationRemoved { name, .. } => {
            ("remove reservation", name.clone(), None, String::new())
        }
        PolicyChange::Partition { made } => (
            "set partition",
            made.partition.name.clone(),
            None,
            text(&made.partition),
        ),
        PolicyChange::PartitionRemoved { name } => {
            ("remove partition", name.clone(), None, String::new())
        }
        PolicyChange::All { policy } => {
            let counts = (
                policy.accounts.len(),
                policy.qos.len(),
                policy.reservations.len(),
            );
            (
                "import policy",
                String::new(),
                None,
                format!(
                    "{} accounts, {} QOS, {} reservations",
                    counts.0, counts.1, counts.2
                ),
            )
        }
    }
}

/// The record as it is since, without its name.
fn text(record: &impl Serialize) -> String {
    let mut value = serde_json::to_value(record).unwrap_or_default();
    value.as_object_mut().map(|fields| fields.remove("name"));
    value.to_string()
}
