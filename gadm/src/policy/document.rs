//! `gadm policy` and `gadm licence`: the whole policy as TOML, and what is counted.

use super::{Listing, confirm, print_json, records, rows};
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Failure, Outcome};
use gwire::api::{ChangeReply, LicenceRow, PolicyText};
use gwire::client::Client;
use std::io::{Read, Write};

/// What to do with the policy as a text.
#[derive(clap::Subcommand)]
pub enum PolicyAct {
    /// Print accounts, QOS and reservations that gadm made as TOML
    Export {
        /// Also what is written in files
        #[arg(long)]
        all: bool,
    },
    /// Put accounts, QOS and reservations of a file in place of those that gadm made
    ///
    /// All of it or nothing. Reservations that are new or changed are made as gadm reservation add makes them: none where jobs
    /// would run into it or others have its nodes, and a node_count becomes nodes. One that stays as it was keeps its nodes; one
    /// that is over already is left out.
    Import {
        /// TOML as export prints it; - is stdin
        file: String,
        /// Say what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Do not ask before records are removed
        #[arg(long, short)]
        yes: bool,
    },
}

/// What to do with licences.
#[derive(clap::Subcommand)]
pub enum LicenceAct {
    /// List licences, how many there are and how many jobs hold
    List(Listing),
}

pub fn run(client: &mut Client, act: PolicyAct) -> Outcome {
    match act {
        PolicyAct::Export { all } => {
            let text: PolicyText = client.get(if all {
                "/v1/policy?all=true"
            } else {
                "/v1/policy"
            })?;
            let mut out = stdout()?;
            out.write_all(text.toml.as_bytes())?;
            out.flush()?;
            Ok(0)
        }
        PolicyAct::Import { file, dry_run, yes } => import(client, &file, dry_run, yes),
    }
}

fn import(client: &mut Client, file: &str, dry_run: bool, yes: bool) -> Outcome {
    let mut toml = String::new();
    let read = match file {
        "-" => std::io::stdin().read_to_string(&mut toml).map(|_| ()),
        path => std::fs::read_to_string(path).map(|text| toml = text),
    };
    read.map_err(|error| Failure::new(format_args!("cannot read {file}: {error}")))?;
    let name = if file == "-" { "stdin" } else { file }.to_owned();
    let request = |dry_run| PolicyText {
        schema: gwire::api::SCHEMA,
        name: name.clone(),
        toml: toml.clone(),
        dry_run,
    };
    let planned: ChangeReply = client.post_repeatable("/v1/policy", &request(true))?;
    if dry_run {
        let mut out = stdout()?;
        for note in &planned.notes {
            writeln!(out, "{}", gcli::printable::printable(note))?;
        }
        out.flush()?;
        return Ok(0);
    }
    let removed: Vec<&str> = planned
        .notes
        .iter()
        .filter_map(|note| note.strip_suffix(" is removed"))
        .collect();
    if !removed.is_empty() {
        confirm(
            yes,
            &format!("the file lacks {}: remove it?", removed.join(", ")),
        )?;
    }
    let done: ChangeReply = client.post_repeatable("/v1/policy", &request(false))?;
    crate::controller::say_notes(&done);
    Ok(0)
}

pub fn licences(client: &mut Client, act: LicenceAct) -> Outcome {
    let LicenceAct::List(listing) = act;
    let (answer, values) = records(client, "/v1/licences", "licences")?;
    if listing.json {
        return print_json(&answer);
    }
    let columns = vec![
        Column::whole("LICENCE"),
        Column::number("TOTAL"),
        Column::number("USED"),
        Column::number("FREE"),
    ];
    let mut table = TableWriter::new(stdout()?, columns, Screen::of_stdout(), true);
    for row in rows::<LicenceRow>(values)? {
        table.row(vec![
            row.name.into(),
            row.total.to_string().into(),
            row.used.to_string().into(),
            row.free.to_string().into(),
        ])?;
    }
    table.finish()?;
    Ok(0)
}
