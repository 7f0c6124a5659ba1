//! `sacctmgr show transactions`: who changed which account, user, QOS or reservation, in sacctmgr's columns.

use crate::ruled_table::Column;
use gcli::Failure;
use gcli::local_time::{self, TimeFormat};
use gmodel::{Instant, Timestamp};
use gwire::api::PolicyEventRow;
use gwire::client::{Client, path_with_query};
use serde::{Deserialize, Serialize};

pub(super) const USUAL: &str = "Time,Action,Actor,Where,Info";

pub(super) const COLUMNS: &[Column<PolicyEventRow>] = &[
    Column::right("time", "Time", 19, |row| row.at.map_or_else(String::new, |at| TimeFormat::from_env().print(at.0))),
    Column::right("timestamp", "Time", 19, |row| row.at.map_or_else(String::new, |at| TimeFormat::from_env().print(at.0))),
    Column::right("action", "Action", 20, |row| action(&row.action)),
    Column::right("actor", "Actor", 10, |row| row.by.clone()),
    Column::right("where", "Where", 20, of),
    Column::right("info", "Info", 20, |row| row.info.clone()),
];

/// `Set Account`.
fn action(words: &str) -> String {
    let capital = |word: &str| match word {
        "qos" => "QOS".to_owned(),
        word => word.chars().take(1).flat_map(char::to_uppercase).chain(word.chars().skip(1)).collect(),
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

/// Which of them: those of the last month where no time is said.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    pub actors: Vec<String>,
    pub start: Option<String>,
    pub end: Option<String>,
}

pub(super) fn rows(client: &mut Client, chosen: &Chosen) -> Result<Vec<PolicyEventRow>, Failure> {
    #[derive(Serialize)]
    struct Query {
        from: Instant,
        to: Instant,
    }
    #[derive(Deserialize)]
    struct Answer {
        changes: Vec<PolicyEventRow>,
    }
    let now = local_time::now();
    let read = |what: &str, text: &Option<String>, usual: Timestamp| match text {
        Some(text) => local_time::read_past(text, now).map_err(|why| Failure::usage(format_args!("{what}={text}: {why}"))),
        None => Ok(usual),
    };
    let to = read("end", &chosen.end, now.plus_secs(1))?;
    let from = read("start", &chosen.start, to.plus_secs(-30 * 86_400))?;
    let query = path_with_query("/v1/policy-events", &Query { from: Instant(from), to: Instant(to) });
    let mut changes = client.get::<Answer>(&query)?.changes;
    changes.retain(|row| chosen.actors.is_empty() || chosen.actors.contains(&row.by));
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
        assert_eq!(told(row("set user", "ada", Some("vision"))), "Set User acct='vision',user='ada'");
        assert_eq!(told(row("remove qos", "low", None)), "Remove QOS name='low'");
        assert_eq!(told(row("import policy", "", None)), "Import Policy ");
    }
}
