//! `gadm account`, `user`, `quota`, `qos`, `partition`, `reservation`, `licence`, `policy`: the site's policy.
//!
//! Owns reading `key=value` words and printing records. What an edit means, and whether it may be made, is the controller's.

pub mod account;
pub(crate) mod document;
mod key_value;
mod listing;
pub mod partition;
pub mod qos;
pub(crate) mod quota;
pub mod reservation;
pub mod user;

use gcli::{Failure, Outcome};
use gwire::api::{ChangeReply, PolicyEdit};
use gwire::client::{Client, escape};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal, Write};

/// A record by name with changes to it.
#[derive(clap::Args)]
pub struct NameAndWords {
    /// Its name
    name: String,
    /// What to set: KEY=VALUE, for lists also KEY+=VALUE and KEY-=VALUE; VALUE none takes a bound away
    #[arg(value_name = "KEY=VALUE")]
    words: Vec<String>,
}

impl NameAndWords {
    pub fn of(name: String, words: Vec<String>) -> Self {
        Self { name, words }
    }
}

/// A record by name.
#[derive(clap::Args)]
pub struct Name {
    /// Its name
    name: String,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

/// Records to remove.
#[derive(clap::Args)]
pub struct Removal {
    /// Their names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

impl Removal {
    /// Without a question.
    pub fn of(names: Vec<String>) -> Self {
        Self { names, yes: true }
    }
}

/// How to list.
#[derive(clap::Args)]
pub struct Listing {
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

fn edit(client: &mut Client, path: &str, create: bool, change: BTreeMap<String, Value>) -> Outcome {
    let done: ChangeReply = match create {
        // Sent twice the second would find the first one's record.
        true => client.post(path, &PolicyEdit { create, change })?,
        false => client.post_repeatable(path, &PolicyEdit { create, change })?,
    };
    crate::controller::say_notes(&done);
    Ok(0)
}

fn remove(client: &mut Client, kind: &str, what: &str, removal: &Removal) -> Outcome {
    remove_saying(client, kind, what, removal, BTreeMap::new())
}

fn remove_saying(
    client: &mut Client,
    kind: &str,
    what: &str,
    removal: &Removal,
    how: BTreeMap<String, Value>,
) -> Outcome {
    for name in &removal.names {
        // A missing record is an error before the question.
        let _: Value = client.get(&format!("/v1/{kind}/{}", escape(name)))?;
    }
    let names = removal.names.join(", ");
    confirm(
        removal.yes,
        &format!("remove {what} {names} with all that is set for it?"),
    )?;
    for name in &removal.names {
        let done: ChangeReply = client.post(
            &format!("/v1/{kind}/{}/remove", escape(name)),
            &PolicyEdit {
                create: false,
                change: how.clone(),
            },
        )?;
        crate::controller::say_notes(&done);
    }
    Ok(0)
}

/// Asks on the terminal; without one, `--yes` must be there.
fn confirm(yes: bool, question: &str) -> Result<(), Failure> {
    confirm_saying(yes, question, "--yes")
}

/// The same where another option is to say yes.
pub fn confirm_saying(yes: bool, question: &str, option: &str) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format_args!(
            "{question} Say {option}; there is no terminal to ask on"
        )));
    }
    write!(std::io::stderr(), "gadm: {question} [y/N] ")?;
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new("nothing was done")),
    }
}

fn records(client: &mut Client, path: &str, list: &str) -> Result<(Value, Vec<Value>), Failure> {
    let answer: Value = client.get(path)?;
    let rows = answer[list].as_array().cloned().unwrap_or_default();
    Ok((answer, rows))
}

fn rows<R: serde::de::DeserializeOwned>(values: Vec<Value>) -> Result<Vec<R>, Failure> {
    let read = |value| {
        serde_json::from_value(value)
            .map_err(|error| Failure::new(format_args!("the record cannot be read: {error}")))
    };
    values.into_iter().map(read).collect()
}

fn print_json(answer: &Value) -> Outcome {
    let mut out = gcli::table::stdout()?;
    writeln!(out, "{answer}")?;
    out.flush()?;
    Ok(0)
}

/// A record, a line for each key that says something.
fn print_record(value: &Value) -> Outcome {
    let mut out = gcli::table::stdout()?;
    out.write_all(listing::record_text(value).as_bytes())?;
    out.flush()?;
    Ok(0)
}

fn must_change(words: &[String], example: &str) -> Result<(), Failure> {
    if words.is_empty() {
        return Err(Failure::usage(format_args!(
            "what is to be changed? {example}"
        )));
    }
    Ok(())
}
