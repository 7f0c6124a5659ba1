//! `gadm reservation`: nodes and GPUs set apart for some, for a time; maintenance windows.

use super::key_value::{self, Form, Key};
use super::listing::gpus_text;
use super::{Listing, Name, NameAndWords, Removal, edit, print_json, print_record, records, remove, rows};
use gcli::local_time::TimeFormat;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Failure, Outcome};
use gmodel::duration::squeue_time;
use gmodel::policy::reserved_for;
use gmodel::suggest::did_you_mean;
use gmodel::time::parse_rfc3339;
use gwire::api::ReservationRow;
use gwire::client::{Client, escape};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const KEYS: [Key; 22] = [
    ("start", "start", Form::Moment),
    ("starttime", "start", Form::Moment),
    ("duration", "duration_secs", Form::Secs),
    ("end", "end", Form::Moment),
    ("endtime", "end", Form::Moment),
    ("repeat", "repeat", Form::Text),
    ("nodes", "nodes", Form::Name),
    ("node_count", "node_count", Form::Count),
    ("nodecnt", "node_count", Form::Count),
    ("gpus", "gpus", Form::Gpus),
    ("tres", "gpus", Form::Gpus),
    ("users", "users", Form::Names),
    ("user", "users", Form::Names),
    ("accounts", "accounts", Form::Names),
    ("account", "accounts", Form::Names),
    ("partition", "partition", Form::Name),
    ("partitionname", "partition", Form::Name),
    ("features", "features", Form::Name),
    ("maintenance", "maintenance", Form::Flag),
    ("flex", "flex", Form::Flag),
    ("ignore_running", "ignore_running", Form::Flag),
    ("flags", "flags", Form::Names),
];

/// scontrol's flags, and what they set.
const FLAGS: [(&str, &str, &str); 8] = [
    ("MAINT", "maintenance", ""),
    ("FLEX", "flex", ""),
    ("IGNORE_JOBS", "ignore_running", ""),
    ("HOURLY", "repeat", "hourly"),
    ("DAILY", "repeat", "daily"),
    ("WEEKDAY", "repeat", "weekday"),
    ("WEEKEND", "repeat", "weekend"),
    ("WEEKLY", "repeat", "weekly"),
];

/// Flags of Slurm that no reservation here can have, each with what to do instead.
const NO_FLAGS: [(&str, &str); 7] = [
    ("PURGE_COMP", "it stays until its end. gadm reservation del NAME ends it, a nearer end= makes it shorter"),
    ("MAGNETIC", "only jobs that ask for it are in it: gsub --reservation NAME, or #SBATCH --reservation in a script"),
    ("OVERLAP", "what is reserved for some is not reserved again for others; MAINT may lie over others"),
    ("REPLACE", "nodes are not exchanged; gpus=h100:8 reserves GPUs wherever they are, anew as nodes come and go"),
    ("REPLACE_DOWN", "nodes are not exchanged; gpus=h100:8 reserves GPUs wherever they are, anew as nodes come and go"),
    ("TIME_FLOAT", "a start is a moment; gadm reservation set NAME start=now+1hour moves it"),
    ("SPEC_NODES", "nodes=node[1-2] names them"),
];

/// What to do to reservations.
#[derive(clap::Subcommand)]
pub(crate) enum ReservationAct {
    /// Reserve: gadm reservation add course start=2027-01-11T09:00 duration=2:00:00 gpus=h100:8 accounts=vision
    #[command(visible_alias = "create")]
    Add(NameAndWords),
    /// Change a reservation
    #[command(visible_alias = "update")]
    Set(NameAndWords),
    /// Remove reservations
    #[command(visible_alias = "delete")]
    Del(Removal),
    /// List reservations with the window that holds or comes next
    List(Listing),
    /// One reservation
    Show(Name),
}

pub(crate) fn run(client: &mut Client, act: ReservationAct) -> Outcome {
    match act {
        ReservationAct::Add(args) => {
            let change = read(&args.words, None)?;
            edit(client, &format!("/v1/reservations/{}", escape(&args.name)), true, change)
        }
        ReservationAct::Set(args) => {
            super::must_change(&args.words, "gadm reservation set course duration=3:00:00")?;
            let path = format!("/v1/reservations/{}", escape(&args.name));
            let (_, values) = records(client, &path, "reservations")?;
            let change = read(&args.words, rows::<ReservationRow>(values)?.first())?;
            edit(client, &path, false, change)
        }
        ReservationAct::Del(removal) => remove(client, "reservations", "reservation", &removal),
        ReservationAct::List(listing) => list(client, listing.json),
        ReservationAct::Show(name) => {
            let (answer, rows) = records(client, &format!("/v1/reservations/{}", escape(&name.name)), "reservations")?;
            if name.json { print_json(&answer) } else { rows.first().map_or(Ok(0), print_record) }
        }
    }
}

/// Changes; `end` and flags in the API's terms.
fn read(words: &[String], old: Option<&ReservationRow>) -> Result<BTreeMap<String, Value>, Failure> {
    let mut change = key_value::read(words, &KEYS, "reservations")?;
    for key in ["+flags", "-flags"] {
        if change.contains_key(key) {
            return Err(Failure::usage("flags are set as a whole: flags=MAINT,DAILY, or maintenance=yes repeat=daily"));
        }
    }
    if let Some(flags) = change.remove("flags") {
        for flag in flags.as_array().into_iter().flatten().filter_map(Value::as_str) {
            let Some((_, key, value)) = FLAGS.iter().find(|(name, ..)| name.eq_ignore_ascii_case(flag)) else {
                let bare = flag.split_once('=').map_or(flag, |(flag, _)| flag);
                if let Some((_, advice)) = NO_FLAGS.iter().find(|(name, _)| name.eq_ignore_ascii_case(bare)) {
                    return Err(Failure::usage(format_args!("flags={flag}: {advice}")));
                }
                let guess = did_you_mean(flag, FLAGS.map(|(name, ..)| name));
                let all = FLAGS.map(|(name, ..)| name).join(", ");
                return Err(Failure::usage(format_args!("flags={flag}: there is no such flag.{guess} Flags: {all}")));
            };
            change.insert((*key).to_owned(), if value.is_empty() { json!(true) } else { json!(value) });
        }
    }
    if let Some(end) = change.remove("end") {
        let at = |value: &Value| value.as_str().and_then(parse_rfc3339);
        let start = change.get("start").and_then(at).or_else(|| Some(old?.start?.0));
        let (Some(start), Some(end)) = (start, at(&end)) else {
            return Err(Failure::usage("end= needs start= too"));
        };
        if change.contains_key("duration_secs") || end <= start {
            return Err(Failure::usage("end= comes after start=, and beside it there is no duration="));
        }
        change.insert("duration_secs".to_owned(), json!(end.since_secs(start)));
    }
    // What is reserved is said in one way: a new way puts the old one aside.
    let ways = ["nodes", "node_count", "gpus"];
    if ways.iter().any(|way| change.get(*way).is_some_and(|value| !value.is_null())) {
        for way in ways {
            change.entry(way.to_owned()).or_insert(Value::Null);
        }
        // Features are of nodes by their number, and of those that were chosen so.
        if old.is_some_and(|old| old.features.is_some()) && change["node_count"].is_null() {
            change.entry("features".to_owned()).or_insert(Value::Null);
        }
    }
    Ok(change)
}

fn list(client: &mut Client, json: bool) -> Outcome {
    let (answer, values) = records(client, "/v1/reservations", "reservations")?;
    if json {
        return print_json(&answer);
    }
    let columns = vec![
        Column::whole("RESV_NAME"),
        Column::whole("STATE"),
        Column::whole("START_TIME"),
        Column::whole("END_TIME"),
        Column::number("DURATION"),
        Column::whole("REPEAT"),
        Column::text("WHAT"),
        Column::text("FOR"),
    ];
    let times = TimeFormat::from_env();
    let mut table = TableWriter::new(stdout()?, columns, Screen::of_stdout(), true);
    for row in rows::<ReservationRow>(values)? {
        let print = |at: Option<gmodel::Instant>| at.map_or_else(|| "-".to_owned(), |at| times.print(at.0));
        let whom = whom(&row);
        table.row(vec![
            row.name.clone().into(),
            row.state.clone().into(),
            print(row.window_start.or(row.start)).into(),
            print(row.window_end).into(),
            squeue_time(u64::from(row.duration_secs)).into(),
            row.repeat.clone().into(),
            what(&row).into(),
            whom.into(),
        ])?;
    }
    table.finish()?;
    Ok(0)
}

fn what(row: &ReservationRow) -> String {
    let partition = row.partition.as_ref().map(|partition| format!(" of {partition}")).unwrap_or_default();
    match (&row.nodes, row.node_count, &row.gpus) {
        (Some(nodes), ..) => format!("{nodes}{partition}"),
        (_, Some(count), _) => format!("{count} nodes{partition}{}", row.features.as_ref().map(|features| format!(" with {features}")).unwrap_or_default()),
        (.., gpus) => format!("{} GPUs{partition}", gpus_text(gpus.as_ref())),
    }
}

fn whom(row: &ReservationRow) -> String {
    let names = reserved_for(&row.users, &row.accounts).replace(", ", ",");
    match (row.maintenance, names.is_empty()) {
        (true, true) => "maintenance".to_owned(),
        (true, false) => format!("maintenance, {names}"),
        (false, true) => "nobody".to_owned(),
        (false, false) => names,
    }
}
