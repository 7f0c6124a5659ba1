//! `gacct report` and `gacct efficiency --by user`: what was held and what was made of it, in groups.

use gcli::local_time;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Failure, Outcome};
use gmodel::suggest::did_you_mean;
use gmodel::{Instant, Timestamp};
use gwire::api::ReportRow;
use gwire::client::{Client, path_with_query};
use serde::Serialize;
use std::io::Write;

const GROUPS: [(&str, &str); 8] = [
    ("account", "ACCOUNT"),
    ("user", "USER"),
    ("partition", "PARTITION"),
    ("gpu-type", "GPU_TYPE"),
    ("tag", "TAG"),
    ("class", "CLASS"),
    ("gpus", "GPUS"),
    ("cpus", "CPUS"),
];

/// Options of `gacct report`. Jobs are counted that began to run in the time.
#[derive(clap::Args)]
pub(crate) struct ReportArgs {
    /// Groups: account, user, partition, gpu-type, tag, class (guaranteed or borrowed), gpus and cpus (what a run held, all of it)
    #[arg(long, value_name = "LIST", default_value = "account")]
    pub by: String,
    #[command(flatten)]
    pub period: PeriodArgs,
}

/// From when to when, and how it is printed.
#[derive(clap::Args)]
pub(crate) struct PeriodArgs {
    /// From this time; without it from the first of the month
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// Up to this time; without it up to now
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// No header line
    #[arg(short, long)]
    pub noheader: bool,
    /// Columns parted by | instead of blanks
    #[arg(short = 'P', long)]
    pub parsable2: bool,
    /// One line of JSON
    #[arg(long)]
    pub json: bool,
}

/// A column of numbers; left out where no row has one.
#[derive(Clone, Copy)]
struct Number {
    title: &'static str,
    text: fn(&ReportRow) -> Option<String>,
    /// Always there.
    usual: bool,
}

const fn always(title: &'static str, text: fn(&ReportRow) -> Option<String>) -> Number {
    Number {
        title,
        text,
        usual: true,
    }
}
const fn if_any(title: &'static str, text: fn(&ReportRow) -> Option<String>) -> Number {
    Number {
        title,
        text,
        usual: false,
    }
}

/// Held, and where it is known, used.
const USAGE: &[Number] = &[
    always("JOBS", |row| Some(row.jobs.to_string())),
    always("GPU_HOURS", |row| hours(row.gpu_hours)),
    if_any("GPU_BUSY", |row| watched(row, row.gpu_busy_hours)),
    if_any("GPU_IDLE", |row| watched(row, row.gpu_idle_hours)),
    if_any("GPU_EFF", |row| percent(row.gpu_percent)),
    if_any("KWH", |row| {
        (row.energy_kwh > 0.0).then(|| format!("{:.1}", row.energy_kwh))
    }),
    always("CPU_HOURS", |row| hours(row.cpu_hours)),
    if_any("COST", |row| row.cost.map(|cost| format!("{cost:.2}"))),
];

const EFFICIENCY: &[Number] = &[
    always("JOBS", |row| Some(row.jobs.to_string())),
    always("GPU_HOURS", |row| hours(row.gpu_hours)),
    always("GPU_BUSY", |row| watched(row, row.gpu_busy_hours)),
    always("GPU_IDLE", |row| watched(row, row.gpu_idle_hours)),
    always("GPU_EFF", |row| percent(row.gpu_percent)),
    always("CPU_EFF", |row| percent(row.cpu_percent)),
    always("MEM_EFF", |row| percent(row.mem_percent)),
    always("KWH", |row| {
        (row.energy_kwh > 0.0).then(|| format!("{:.1}", row.energy_kwh))
    }),
];

fn hours(hours: f64) -> Option<String> {
    Some(format!("{hours:.1}"))
}

/// Blank where no GPU reported its use.
fn watched(row: &ReportRow, hours: f64) -> Option<String> {
    (row.gpu_told_hours > 0.0).then(|| format!("{hours:.1}"))
}

/// `37.5%`.
pub(crate) fn percent(percent: Option<f64>) -> Option<String> {
    percent.map(|percent| format!("{percent:.1}%"))
}

#[derive(Serialize)]
struct ReportQuery {
    by: String,
    from: Instant,
    /// Left out, the controller's own now holds: the running second counts too.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Instant>,
}

pub(crate) fn run(client: &mut Client, args: &ReportArgs, now: Timestamp) -> Outcome {
    print(client, &args.by, &args.period, now, USAGE)
}

/// What was made of what was held, by groups.
pub(crate) fn efficiency(
    client: &mut Client,
    by: &str,
    period: &PeriodArgs,
    now: Timestamp,
) -> Outcome {
    print(client, by, period, now, EFFICIENCY)
}

fn print(
    client: &mut Client,
    by: &str,
    args: &PeriodArgs,
    now: Timestamp,
    numbers: &[Number],
) -> Outcome {
    let groups = groups(by)?;
    let (from, to) = args.bounds(now)?;
    let by: Vec<&str> = groups.iter().map(|(name, _)| *name).collect();
    let query = ReportQuery {
        by: by.join(","),
        from: Instant(from),
        to: to.map(Instant),
    };
    let path = path_with_query("/v1/report", &query);
    let mut out = stdout()?;
    if args.json {
        return gcli::answer::print_json(client, &path);
    }
    let mut rows = client.rows(&path)?;
    let mut list: Vec<ReportRow> = Vec::new();
    while let Some(text) = rows.next_row()? {
        list.push(serde_json::from_slice(text).map_err(Failure::new)?);
    }
    let numbers: Vec<Number> = numbers
        .iter()
        .filter(|one| one.usual || list.iter().any(|row| (one.text)(row).is_some()))
        .copied()
        .collect();
    let titles = groups.iter().map(|(_, title)| *title);
    if args.parsable2 {
        if !args.noheader {
            let titles: Vec<_> = titles.chain(numbers.iter().map(|one| one.title)).collect();
            writeln!(out, "{}", titles.join("|"))?;
        }
        for row in &list {
            writeln!(out, "{}", cells(row, groups.len(), &numbers).join("|"))?;
        }
        out.flush()?;
        return Ok(0);
    }
    let columns = titles
        .map(Column::text)
        .chain(numbers.iter().map(|one| Column::number(one.title)))
        .collect();
    let mut table = TableWriter::new(out, columns, Screen::of_stdout(), !args.noheader);
    // A job with two tags is in two groups, so groups of tags have no sum.
    let has_sum = list.len() > 1 && !groups.iter().any(|(name, _)| *name == "tag");
    for row in list.iter().chain(has_sum.then(|| total(&list)).as_ref()) {
        let cells = cells(row, groups.len(), &numbers);
        table.row(cells.into_iter().map(Into::into).collect())?;
    }
    table.finish()?;
    Ok(0)
}

fn total(rows: &[ReportRow]) -> ReportRow {
    let mut sum = ReportRow {
        group: vec!["TOTAL".to_owned()],
        ..ReportRow::default()
    };
    rows.iter().for_each(|row| sum.add(row));
    sum
}

fn cells(row: &ReportRow, groups: usize, numbers: &[Number]) -> Vec<String> {
    let mut cells = row.group.clone();
    cells.resize(groups, String::new());
    cells.extend(
        numbers
            .iter()
            .map(|one| (one.text)(row).unwrap_or_default()),
    );
    cells
}

fn groups(by: &str) -> Result<Vec<(&'static str, &'static str)>, Failure> {
    let group = |word: &str| {
        let found = GROUPS.into_iter().find(|(name, _)| *name == word);
        let names = || GROUPS.map(|(name, _)| name);
        found.ok_or_else(|| {
            let hint = did_you_mean(word, names());
            Failure::usage(format_args!(
                "--by: there is no group {word:?}.{hint} Groups are {}",
                names().join(", ")
            ))
        })
    };
    by.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(group)
        .collect()
}

impl PeriodArgs {
    /// The first instant, and the end where one is given.
    ///
    /// # Errors
    /// A time that cannot be read, or nothing between the two.
    pub(crate) fn bounds(&self, now: Timestamp) -> Result<(Timestamp, Option<Timestamp>), Failure> {
        let read = |option: &str, text: &Option<String>| {
            let at = local_time::past_option(option, text.as_deref(), now)?;
            Ok::<_, Failure>(at.map(|at| at.0))
        };
        let from = read("from", &self.from)?.unwrap_or_else(|| local_time::month_start(now));
        let to = read("to", &self.to)?;
        let end = to.unwrap_or(now);
        if from >= end {
            return Err(Failure::usage(format_args!(
                "--from ({from}) is not before --to ({end}): there is nothing between them"
            )));
        }
        Ok((from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_checked_with_a_guess() {
        assert_eq!(groups("account,gpu-type").unwrap().len(), 2);
        let refused = groups("acount").unwrap_err();
        assert!(
            refused.exit == 2 && refused.text.contains(r#"Did you mean "account"?"#),
            "{}",
            refused.text
        );
    }
}
