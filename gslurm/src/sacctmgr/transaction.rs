//! `sacctmgr show transactions`: changes of accounts, users, QOS and reservations with their actors, in sacctmgr's columns.

use super::event_span::EventSpan;
use crate::ruled_table::Column;
use gcli::Failure;
use gcli::answer::list;
use gcli::local_time::TimeFormat;
use gwire::api::PolicyEventRow;
use gwire::client::Client;

pub(super) const USUAL: &str = "Time,Action,Actor,Where,Info";

pub(super) const COLUMNS: &[Column<PolicyEventRow>] = &[
    Column::right("time", "Time", 19, |row| {
        row.at
            .map_or_else(String::new, |at| TimeFormat::from_env().print(at.0))
    }),
    Column::right("timestamp", "Time", 19, |row| {
        row.at
            .map_or_else(String::new, |at| TimeFormat::from_env().print(at.0))
    }),
    Column::right("action", "Action", 20, |row| action(&row.action)),
    Column::right("actor", "Actor", 10, |row| row.by.clone()),
    Column::right("where", "Where", 20, of),
    Column::right("info", "Info", 20, |row| row.info.clone()),
];

/// `Set Account`.
fn action(words: &str) -> String {
    let capital = |word: &str| match word {
        "qos" => "QOS".to_owned(),
        word => word
            .chars()
            .take(1)
            .flat_map(char::to_uppercase)
            .chain(word.chars().skip(1))
            .collect(),
    };
    words.split(' ').map(capital).collect::<Vec<_>>().join(" ")
}

/// `acct='vision',user='ada'`.
fn of(row: &PolicyEventRow) -> String {
    match (&row.account, row.name.as_str()) {
        (_, "") => String::new(),
        (Some(account), user) => format!("acct='{account}',user='{user}'"),
        (None, name) => format!("name='{name}'"),
    }
}

/// Those of some actors; of all where none is named.
pub(super) fn rows(
    client: &mut Client,
    actors: &[String],
    span: &EventSpan,
) -> Result<Vec<PolicyEventRow>, Failure> {
    let mut changes = list::<PolicyEventRow>(client, &span.on("/v1/policy-events")?)?;
    changes.retain(|row| actors.is_empty() || actors.contains(&row.by));
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_in_sacctmgrs_columns() {
        let row = |action: &str, name: &str, account: Option<&str>| PolicyEventRow {
            action: action.into(),
            name: name.into(),
            account: account.map(str::to_owned),
            ..PolicyEventRow::default()
        };
        let told = |row: PolicyEventRow| format!("{} {}", action(&row.action), of(&row));
        assert_eq!(
            told(row("set user", "ada", Some("vision"))),
            "Set User acct='vision',user='ada'"
        );
        assert_eq!(
            told(row("remove qos", "low", None)),
            "Remove QOS name='low'"
        );
        assert_eq!(told(row("import policy", "", None)), "Import Policy ");
    }
}
