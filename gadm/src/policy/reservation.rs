//! `gadm reservation`: nodes and GPUs set apart for some, for a time; maintenance windows.

use super::key_value::{self, Form, Word, words_of};
use super::{
    Listing, Name, NameAndWords, Removal, edit, print_json, print_record, records, remove_saying,
    rows,
};
use gcli::local_time::TimeFormat;
use gcli::slurm_words::Cause;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Failure, Outcome};
use gmodel::RefusalKind;
use gmodel::duration::{TimeLimit, squeue_time};
use gmodel::hostlist::compress;
use gmodel::policy::{Repeat, Reservation, ReservedPart, reserved_for};
use gmodel::suggest::did_you_mean;
use gmodel::time::parse_rfc3339;
use gwire::api::ReservationRow;
use gwire::client::{Client, escape};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Words of scontrol that say nothing here, each with what does.
const NO_KEYS: [(&str, &str); 8] = [
    (
        "corecnt",
        "whole nodes or GPUs are reserved: node_count=2, gpus=h100:8",
    ),
    (
        "licenses",
        "licences are not reserved; a partition or QOS of their own keeps others from them",
    ),
    (
        "groups",
        "groups of the system are not known here: users= and accounts= say whom it is for",
    ),
    (
        "group",
        "groups of the system are not known here: users= and accounts= say whom it is for",
    ),
    (
        "maxstartdelay",
        "who does not name it may be in it for as long as their limit is, with flags=MAGNETIC",
    ),
    (
        "burstbuffer",
        "there are no burst buffers; nodes and GPUs are reserved",
    ),
    ("watts", "power is not reserved; nodes and GPUs are"),
    (
        "trespernode",
        "whole nodes or GPUs are reserved: node_count=2, gpus=h100:8",
    ),
];

/// scontrol's flags, and what they set; without a word `true`.
const FLAGS: [(&str, &str, &str); 16] = [
    ("MAINT", "maintenance", ""),
    ("FLEX", "flex", ""),
    ("IGNORE_JOBS", "ignore_running", ""),
    ("MAGNETIC", "magnetic", ""),
    ("OVERLAP", "overlap", ""),
    ("STATIC_ALLOC", "static_nodes", ""),
    ("REPLACE", "replace", ""),
    ("REPLACE_DOWN", "replace_down", ""),
    ("NO_HOLD_JOBS_AFTER", "release_jobs", ""),
    ("NO_HOLD_JOBS_AFTER_END", "release_jobs", ""),
    ("PURGE_COMP", "purge_idle_secs", ""),
    ("HOURLY", "repeat", "hourly"),
    ("DAILY", "repeat", "daily"),
    ("WEEKDAY", "repeat", "weekday"),
    ("WEEKEND", "repeat", "weekend"),
    ("WEEKLY", "repeat", "weekly"),
];

/// For how long a reservation is idle before `PURGE_COMP` alone takes it away.
const PURGE_SECS: u64 = 300;

/// Flags of Slurm that no reservation here can have, each with what to do instead.
const NO_FLAGS: [(&str, &str); 4] = [
    (
        "TIME_FLOAT",
        "a start is a moment; gadm reservation set NAME start=now+1hour moves it",
    ),
    ("ANY_NODES", "FLEX lets its jobs use other nodes, too"),
    (
        "LICENSE_ONLY",
        "licences are not reserved; a partition or QOS of their own keeps others from them",
    ),
    ("FIRST_CORES", "whole nodes or GPUs are reserved, not cores"),
];

/// Reservations to remove.
#[derive(clap::Args)]
pub struct ReservationRemoval {
    #[command(flatten)]
    removal: Removal,
    /// Though jobs run in it: they run on, and others may have the rest of its nodes
    #[arg(long)]
    force: bool,
    /// Only where no job names it
    #[arg(skip)]
    unused: bool,
}

impl ReservationRemoval {
    /// Without a question, and refused for a reservation that jobs are in or name.
    pub fn of(names: Vec<String>) -> Self {
        Self {
            removal: Removal::of(names),
            force: false,
            unused: true,
        }
    }
}

/// What to do to reservations.
#[derive(clap::Subcommand)]
pub enum ReservationAct {
    /// Reserve: gadm reservation add course start=2027-01-11T09:00 duration=2:00:00 gpus=h100:8 accounts=vision
    #[command(visible_alias = "create")]
    Add(NameAndWords),
    /// Change a reservation
    #[command(visible_alias = "update")]
    Set(NameAndWords),
    /// Remove reservations
    #[command(visible_alias = "delete")]
    Del(ReservationRemoval),
    /// List reservations with the window that holds or comes next
    List(Listing),
    /// One reservation
    Show(Name),
}

pub fn run(client: &mut Client, act: ReservationAct) -> Outcome {
    match act {
        ReservationAct::Add(args) => {
            gcli::cluster_choice::read_times_there(client)?;
            let change = read(&args.words, None)?;
            edit(
                client,
                &format!("/v1/reservations/{}", escape(&args.name)),
                true,
                change,
            )
        }
        ReservationAct::Set(args) => {
            super::must_change(&args.words, "gadm reservation set course duration=3:00:00")?;
            gcli::cluster_choice::read_times_there(client)?;
            let path = format!("/v1/reservations/{}", escape(&args.name));
            let (_, values) = records(client, &path, "reservations")?;
            let change = read(&args.words, rows::<ReservationRow>(values)?.first())?;
            edit(client, &path, false, change)
        }
        ReservationAct::Del(args) => {
            let how = [("force", args.force), ("unused", args.unused)]
                .into_iter()
                .filter(|(_, said)| *said)
                .map(|(how, _)| (how.to_owned(), json!(true)))
                .collect();
            remove_saying(client, "reservations", "reservation", &args.removal, how)
        }
        ReservationAct::List(listing) => list(client, listing.json),
        ReservationAct::Show(name) => {
            let (answer, rows) = records(
                client,
                &format!("/v1/reservations/{}", escape(&name.name)),
                "reservations",
            )?;
            if name.json {
                print_json(&answer)
            } else {
                rows.first().map_or(Ok(0), print_record)
            }
        }
    }
}

/// The name that scontrol gives a reservation without one: `ada_1`, with the first free number.
///
/// # Errors
/// It has neither users nor accounts, or the controller does not answer.
pub fn new_name(client: &mut Client, owner: &str) -> Result<String, Failure> {
    if owner.is_empty() {
        return Err(Failure::usage(
            "whom is it for? Users=ada or Accounts=vision; ReservationName=course names it",
        ));
    }
    let (_, values) = records(client, "/v1/reservations", "reservations")?;
    let taken: Vec<String> = rows::<ReservationRow>(values)?
        .into_iter()
        .map(|row| row.reservation.name)
        .collect();
    (1..=u32::MAX)
        .map(|number| format!("{owner}_{number}"))
        .find(|name| !taken.contains(name))
        .ok_or_else(|| Failure::new("all names are taken"))
}

/// Changes; `end`, flags, `skip` and what a duration grows by in the API's terms.
fn read(
    words: &[String],
    old: Option<&ReservationRow>,
) -> Result<BTreeMap<String, Value>, Failure> {
    let mut plain = Vec::new();
    let mut change = BTreeMap::new();
    for word in words {
        let key = word
            .split_once('=')
            .map_or(word.as_str(), |(key, _)| key)
            .to_ascii_lowercase();
        match key.as_str() {
            "skip" => drop(change.insert("skip_until".to_owned(), skipped(word, old)?)),
            "duration+" | "duration-" => {
                drop(change.insert("duration_secs".to_owned(), longer(word, old)?))
            }
            _ => plain.push(word.clone()),
        }
        let bare = key.trim_end_matches(['+', '-']).replace('_', "");
        if let Some((_, advice)) = NO_KEYS.iter().find(|(name, _)| *name == bare) {
            return Err(Failure::usage(format_args!("{word}: {advice}")));
        }
    }
    let more = [
        ("end", "end", Form::Moment),
        ("endtime", "end", Form::Moment),
        ("flags", "flags", Form::Names),
    ]
    .map(|(spelling, api, form)| Word::new(spelling, api, form));
    let keys: Vec<Word> = words_of::<Reservation>().into_iter().chain(more).collect();
    change.extend(key_value::read(&plain, &keys, "reservations")?);
    let flags: Vec<(Value, bool)> = ["-flags", "flags", "+flags"]
        .iter()
        .filter_map(|key| Some((change.remove(*key)?, *key != "-flags")))
        .collect();
    for (names, is_set) in flags {
        for flag in names
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            set_flag(&mut change, flag, is_set, old)?;
        }
    }
    if let Some(end) = change.remove("end") {
        let secs = secs_until(&end, &change, old)?;
        change.insert("duration_secs".to_owned(), json!(secs));
    }
    if let Some(old) = old.filter(|old| old.reservation.skip_until.is_some()) {
        mind_skipped(&mut change, old)?;
    }
    say_one_way(&mut change, old);
    Ok(change)
}

/// How long it lasts with this end: of what comes again that is the end of the window that is shown, or of the first one.
fn secs_until(
    end: &Value,
    change: &BTreeMap<String, Value>,
    old: Option<&ReservationRow>,
) -> Result<i64, Failure> {
    let at = |value: &Value| value.as_str().and_then(parse_rfc3339);
    let shown =
        || Some(old?.window_start?.0).filter(|start| at(end).is_some_and(|end| end > *start));
    let start = change
        .get("start")
        .and_then(at)
        .or_else(shown)
        .or_else(|| Some(old?.reservation.start));
    let (Some(start), Some(end)) = (start, at(end)) else {
        return Err(Failure::usage("end= needs start= too"));
    };
    if change.contains_key("duration_secs") || end <= start {
        return Err(Failure::usage(
            "end= comes after start=, and beside it there is no duration=",
        ));
    }
    Ok(end.since_secs(start))
}

/// What was skipped is so no more where it begins anew, and what came again and comes once now begins where it is.
fn mind_skipped(change: &mut BTreeMap<String, Value>, old: &ReservationRow) -> Result<(), Failure> {
    if change.get("repeat") == Some(&json!("once")) && !change.contains_key("start") {
        change.insert(
            "start".to_owned(),
            serde_json::to_value(begin(old)).map_err(Failure::new)?,
        );
    }
    if change.contains_key("start") {
        change.entry("skip_until".to_owned()).or_insert(Value::Null);
    }
    Ok(())
}

/// What is reserved is said in one way: a new way puts the old one aside.
fn say_one_way(change: &mut BTreeMap<String, Value>, old: Option<&ReservationRow>) {
    let ways = ["nodes", "node_count", "gpus"];
    if !ways.iter().any(|way| is_said(change, way)) {
        // A partition alone means all of it.
        if old.is_none() && is_said(change, "partition") {
            change.insert("nodes".to_owned(), json!("ALL"));
        }
        return;
    }
    for way in ways {
        change.entry(way.to_owned()).or_insert(Value::Null);
    }
    // Features are of nodes by their number, and of those that were chosen so.
    if old.is_some_and(|old| !old.reservation.features.is_empty()) && !is_said(change, "node_count")
    {
        change.entry("features".to_owned()).or_insert(Value::Null);
    }
}

/// `skip`: the present window, or the next one, does not come.
fn skipped(word: &str, old: Option<&ReservationRow>) -> Result<Value, Failure> {
    let end = old
        .filter(|old| old.reservation.repeat != Repeat::Once)
        .and_then(|old| old.window_end);
    match (end, word.contains('=')) {
        (Some(end), false) => serde_json::to_value(end).map_err(Failure::new),
        (_, true) => Err(Failure::usage(
            "skip has no value: gadm reservation set NAME skip",
        )),
        (None, _) => Err(Failure::usage(
            "skip leaves out a window of what comes again, and this comes once: gadm reservation del NAME removes it",
        )),
    }
}

/// `duration+=30`, `duration-=1:00:00`.
fn longer(word: &str, old: Option<&ReservationRow>) -> Result<Value, Failure> {
    let wrong = |why: &str| Failure::usage(format_args!("{word}: {why}"));
    let old = old
        .ok_or_else(|| wrong("a new reservation has a duration= or an end="))?
        .reservation
        .duration_secs;
    let (key, value) = word.split_once('=').unwrap_or((word, ""));
    let by = limited_secs(value).map_err(|why| wrong(&why))?;
    let new = if key.ends_with('+') {
        Some(u64::from(old).saturating_add(by))
    } else {
        u64::from(old).checked_sub(by).filter(|secs| *secs > 0)
    };
    new.map(|secs| json!(secs))
        .ok_or_else(|| wrong(&format!("it lasts {} only", squeue_time(u64::from(old)))))
}

fn set_flag(
    change: &mut BTreeMap<String, Value>,
    flag: &str,
    is_set: bool,
    old: Option<&ReservationRow>,
) -> Result<(), Failure> {
    let (bare, time) = flag
        .split_once('=')
        .map_or((flag, None), |(bare, time)| (bare, Some(time)));
    let wrong = |why: &str| {
        refused(
            RefusalKind::NotSupported,
            format_args!("flags={flag}: {why}"),
        )
    };
    match bare.to_ascii_uppercase().as_str() {
        // How it is anyway, where it is so.
        "SPEC_NODES" | "PART_NODES" if is_set && will_name_nodes(change, old) => return Ok(()),
        "SPEC_NODES" => return Err(wrong("nodes=node[1-2] names them")),
        "PART_NODES" => {
            return Err(wrong(
                "nodes=ALL partition=NAME are all nodes of a partition, also those that come later",
            ));
        }
        "REPLACE" | "REPLACE_DOWN" if is_set && !will_count_nodes(change, old) => {
            return Err(refused(
                RefusalKind::NodeName,
                format_args!(
                    "flags={flag}: nodes that are chosen by node_count=2 are replaced, those that are named are not"
                ),
            ));
        }
        _ => {}
    }
    let (name, key, value) = find_flag(bare).map_err(|why| wrong(&why))?;
    let value = match (*name, time, is_set) {
        ("PURGE_COMP", _, false) => Value::Null,
        ("PURGE_COMP", None, true) => json!(PURGE_SECS),
        ("PURGE_COMP", Some(time), true) => json!(limited_secs(time).map_err(|why| wrong(&why))?),
        (_, Some(_), _) => return Err(wrong("only PURGE_COMP takes a time")),
        (_, None, is_set) if value.is_empty() => json!(is_set),
        (_, None, true) if comes_otherwise(change, old, value) => {
            return Err(wrong(
                "it comes again in one way: flags-=HOURLY or the like takes the other away",
            ));
        }
        (_, None, true) => json!(value),
        // It comes again in another way, which stays.
        (_, None, false) if old.is_none_or(|old| old.reservation.repeat.word() != *value) => {
            return Ok(());
        }
        (_, None, false) => json!("once"),
    };
    change.insert((*key).to_owned(), value);
    Ok(())
}

/// What Slurm's commands say first when no controller was asked.
fn refused(about: RefusalKind, text: impl std::fmt::Display) -> Failure {
    Failure::usage(text).because(Cause::Refused {
        about,
        subject: String::new(),
    })
}

/// Whether it comes again in another way than this, by the words before or as it was.
fn comes_otherwise(
    change: &BTreeMap<String, Value>,
    old: Option<&ReservationRow>,
    repeat: &str,
) -> bool {
    let before = || old.map_or("once", |old| old.reservation.repeat.word());
    let word = change
        .get("repeat")
        .map_or_else(before, |value| value.as_str().unwrap_or("once"));
    ![repeat, "once"].contains(&word)
}

/// A flag's own name, the key that it sets, and the word to which.
fn find_flag(word: &str) -> Result<&'static (&'static str, &'static str, &'static str), String> {
    let mut refused = NO_FLAGS.iter();
    if let Some((_, advice)) = refused.find(|(name, _)| name.eq_ignore_ascii_case(word)) {
        return Err((*advice).to_owned());
    }
    let mut flags = FLAGS.iter();
    let found = flags.find(|(name, ..)| name.eq_ignore_ascii_case(word));
    found.ok_or_else(|| {
        let names = FLAGS.map(|(name, ..)| name);
        let guess = did_you_mean(word, names);
        format!("there is no such flag.{guess} Flags: {}", names.join(", "))
    })
}

/// Whether its nodes have names, after the change.
fn will_name_nodes(change: &BTreeMap<String, Value>, old: Option<&ReservationRow>) -> bool {
    let before =
        || old.is_some_and(|old| names_nodes(&old.reservation) && !old.reservation.is_chosen);
    change
        .get("nodes")
        .map_or_else(before, |value| !value.is_null())
}

/// Whether its nodes are chosen by their number, after the change.
fn will_count_nodes(change: &BTreeMap<String, Value>, old: Option<&ReservationRow>) -> bool {
    let before = || {
        old.is_some_and(|old| old.reservation.is_chosen)
            && !is_said(change, "nodes")
            && !is_said(change, "gpus")
    };
    change
        .get("node_count")
        .map_or_else(before, |value| !value.is_null())
}

fn is_said(change: &BTreeMap<String, Value>, key: &str) -> bool {
    change.get(key).is_some_and(|value| !value.is_null())
}

/// Seconds of a time that cannot be unlimited.
fn limited_secs(text: &str) -> Result<u64, String> {
    let limit = TimeLimit::parse(text).map_err(|error| error.to_string())?;
    limit
        .secs()
        .ok_or_else(|| "it cannot be unlimited".to_owned())
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
        let one = &row.reservation;
        let print =
            |at: Option<gmodel::Instant>| at.map_or_else(|| "-".to_owned(), |at| times.print(at.0));
        table.row(vec![
            one.name.clone().into(),
            row.state.clone().into(),
            print(Some(begin(&row))).into(),
            print(row.window_end).into(),
            squeue_time(u64::from(one.duration_secs)).into(),
            one.repeat.word().into(),
            reserved_part(one).into(),
            reserved_users(one).into(),
        ])?;
    }
    table.finish()?;
    Ok(0)
}

/// Of the window that holds or comes next, else of the first.
fn begin(row: &ReservationRow) -> gmodel::Instant {
    let first = gmodel::Instant(row.reservation.start);
    row.window_start.unwrap_or(first)
}

fn names_nodes(one: &Reservation) -> bool {
    matches!(one.what, ReservedPart::AllNodes | ReservedPart::Nodes(_))
}

fn reserved_part(one: &Reservation) -> String {
    let partition = one
        .partition
        .as_ref()
        .map(|partition| format!(" of {partition}"))
        .unwrap_or_default();
    match &one.what {
        ReservedPart::AllNodes => format!("ALL{partition}"),
        ReservedPart::Nodes(hosts) => format!("{}{partition}", compress(hosts.iter())),
        ReservedPart::NodeCount(count) if one.features.is_empty() => {
            format!("{count} nodes{partition}")
        }
        ReservedPart::NodeCount(count) => {
            format!("{count} nodes{partition} with {}", one.features)
        }
        ReservedPart::Gpus(gpus) => format!("{} GPUs{partition}", gpus.text()),
    }
}

/// Its users and accounts, or that it is maintenance.
fn reserved_users(row: &Reservation) -> String {
    let names = reserved_for(&row.users, &row.accounts).replace(", ", ",");
    match (row.maintenance, names.is_empty()) {
        (true, true) => "maintenance".to_owned(),
        (true, false) => format!("maintenance, {names}"),
        (false, true) => "nobody".to_owned(),
        (false, false) => names,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::Instant;

    /// Two nodes that were chosen, weekly from nine to eleven on the 11th of January.
    fn weekly() -> ReservationRow {
        ReservationRow {
            reservation: Reservation {
                name: "course".into(),
                start: parse_rfc3339("2027-01-11T09:00:00Z").unwrap(),
                duration_secs: 7200,
                repeat: Repeat::Weekly,
                what: ReservedPart::Nodes("node[1-2]".parse().unwrap()),
                is_chosen: true,
                ..Reservation::default()
            },
            window_end: parse_rfc3339("2027-01-18T11:00:00Z").map(Instant),
            ..ReservationRow::default()
        }
    }

    fn change(words: &str, old: Option<&ReservationRow>) -> String {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        match read(&words, old) {
            Ok(change) => serde_json::to_string(&change).unwrap(),
            Err(failure) => failure.text,
        }
    }

    #[test]
    fn flags_of_scontrol_are_set_and_taken_away() {
        let old = weekly();
        assert_eq!(
            change("flags=magnetic,OVERLAP,STATIC_ALLOC", None),
            r#"{"magnetic":true,"overlap":true,"static_nodes":true}"#
        );
        assert_eq!(
            change("flags=PURGE_COMP,NO_HOLD_JOBS_AFTER", None),
            r#"{"purge_idle_secs":300,"release_jobs":true}"#
        );
        assert_eq!(
            change("flags+=PURGE_COMP=90", Some(&old)),
            r#"{"purge_idle_secs":5400}"#
        );
        assert_eq!(
            change("flags-=PURGE_COMP,FLEX,WEEKLY", Some(&old)),
            r#"{"flex":false,"purge_idle_secs":null,"repeat":"once"}"#
        );
        assert_eq!(change("flags-=DAILY", Some(&old)), "{}", "it is weekly");
        assert_eq!(
            change("node_count=2 flags=REPLACE_DOWN", None),
            r#"{"gpus":null,"node_count":2,"nodes":null,"replace_down":true}"#
        );
        assert_eq!(
            change("flags-=WEEKLY flags+=HOURLY", Some(&old)),
            r#"{"repeat":"hourly"}"#
        );
        assert_eq!(
            change("nodes=n1 flags=SPEC_NODES", None),
            r#"{"gpus":null,"node_count":null,"nodes":"n1"}"#
        );
        assert_eq!(
            change("partition=main", None),
            r#"{"nodes":"ALL","partition":"main"}"#
        );
        assert_eq!(
            change("partition=main", Some(&old)),
            r#"{"partition":"main"}"#
        );
    }

    #[test]
    fn a_flag_that_cannot_be_had_is_refused_with_what_can() {
        let old = weekly();
        let starts = |words: &str, text: &str| {
            assert!(
                change(words, Some(&old)).starts_with(text),
                "{}",
                change(words, Some(&old))
            )
        };
        starts(
            "flags=HOURLY",
            "flags=HOURLY: it comes again in one way: flags-=HOURLY or the like takes the other away",
        );
        starts("flags=TIME_FLOAT", "flags=TIME_FLOAT: a start is a moment");
        starts(
            "flags=SPEC_NODES",
            "flags=SPEC_NODES: nodes=node[1-2] names them",
        );
        starts(
            "nodes=n1 flags=REPLACE_DOWN",
            "flags=REPLACE_DOWN: nodes that are chosen",
        );
        starts("flags=FLEX=3", "flags=FLEX=3: only PURGE_COMP takes a time");
        starts("flags=PURGE_COMP=soon", "flags=PURGE_COMP=soon: ");
        starts(
            "flags=MAGNETISM",
            r#"flags=MAGNETISM: there is no such flag. Did you mean "MAGNETIC"?"#,
        );
        starts(
            "Licenses=matlab",
            "Licenses=matlab: licences are not reserved",
        );
        starts(
            "Groups+=bio",
            "Groups+=bio: groups of the system are not known here",
        );
        starts("CoreCnt=4", "CoreCnt=4: whole nodes or GPUs are reserved");
    }

    #[test]
    fn times_of_what_comes_again_are_those_that_are_shown() {
        let mut old = weekly();
        old.window_start = parse_rfc3339("2027-01-18T09:00:00Z").map(Instant);
        old.reservation.skip_until = parse_rfc3339("2027-01-11T11:00:00Z");
        assert_eq!(
            change("flags-=WEEKLY", Some(&old)),
            r#"{"repeat":"once","skip_until":null,"start":"2027-01-18T09:00:00Z"}"#
        );
        assert_eq!(change("flags-=DAILY", Some(&old)), "{}");
        let end: Value =
            serde_json::from_str(&change("end=2027-01-18T12:00:00", Some(&old))).unwrap();
        let zone = local_offset_secs("2027-01-18T12:00:00");
        assert_eq!(end["duration_secs"].as_i64(), Some(3 * 3600 - zone));
    }

    /// What the clock here is ahead of UTC's then.
    fn local_offset_secs(text: &str) -> i64 {
        let here = gcli::local_time::read(text, gcli::local_time::now()).unwrap();
        parse_rfc3339(&format!("{text}Z")).unwrap().since_secs(here)
    }

    #[test]
    fn durations_grow_and_windows_are_skipped() {
        let old = weekly();
        assert_eq!(
            change("Duration+=30", Some(&old)),
            r#"{"duration_secs":9000}"#
        );
        assert_eq!(
            change("duration-=1:30:00", Some(&old)),
            r#"{"duration_secs":1800}"#
        );
        assert_eq!(
            change("duration-=120", Some(&old)),
            "duration-=120: it lasts 2:00:00 only"
        );
        assert_eq!(
            change("duration+=30", None),
            "duration+=30: a new reservation has a duration= or an end="
        );
        assert_eq!(
            change("duration+=long", Some(&old)).split(':').next(),
            Some("duration+=long")
        );
        assert_eq!(
            change("skip", Some(&old)),
            r#"{"skip_until":"2027-01-18T11:00:00Z"}"#
        );
        let mut once = old.clone();
        once.reservation.repeat = Repeat::Once;
        assert!(change("skip", Some(&once)).contains("this comes once"));
        assert!(change("skip=1", Some(&old)).contains("skip has no value"));
    }
}
