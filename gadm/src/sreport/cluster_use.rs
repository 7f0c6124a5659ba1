//! `sreport cluster Utilization`: what became of the CPUs and GPUs that the nodes had.
//!
//! Owns the columns. How much Slurm had planned for waiting jobs, or was in maintenance, is not kept: these columns are blank. Source:
//! sreport(1), and what sreport 22.05.8 printed.

use crate::ruled_table::{self, Column, TableArgs};
use crate::sreport::{RULE, Tres};
use gcli::local_time::{self, TimeFormat};
use gcli::table::stdout;
use gcli::{ClusterChoice, Failure, Outcome};
use gmodel::{Instant, Timestamp};
use gwire::api::{ClusterInfo, UtilizationRow};
use gwire::client::path_with_query;
use serde::{Deserialize, Serialize};
use std::io::Write;

const ELSEWHERE: &str = "Cluster, TresName, Allocated, Down, PlannedDown, Idle, Planned and Reported are";

/// A line of the report.
struct Line {
    cluster: String,
    tres: String,
    allocated: String,
    down: String,
    idle: String,
    reported: String,
}

const COLUMNS: &[Column<Line>] = &[
    Column::right("cluster", "Cluster", 9, |line| line.cluster.clone()),
    Column::right("tresname", "TRES Name", 14, |line| line.tres.clone()),
    Column::right("allocated", "Allocated", 8, |line| line.allocated.clone()),
    Column::right("down", "Down", 8, |line| line.down.clone()),
    Column::blank("planneddown", "PLND Down", 8),
    Column::right("idle", "Idle", 8, |line| line.idle.clone()),
    Column::blank("planned", "Planned", 8),
    Column::right("reported", "Reported", 8, |line| line.reported.clone()),
];

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    start: Timestamp,
    end: Timestamp,
    format: Option<String>,
}

/// The words behind the report's name, if it is this one.
pub(crate) fn words(words: &[String]) -> Option<&[String]> {
    let [about, report, rest @ ..] = words else { return None };
    let begins = |whole: &str, word: &str| !word.is_empty() && whole.starts_with(&word.to_ascii_lowercase());
    (begins("cluster", about) && begins("utilization", report) && !begins("userutilizationbyaccount", report)).then_some(rest)
}

impl Asked {
    /// # Errors
    /// A word that chooses nothing, or times that cannot be read.
    pub(crate) fn of(words: &[String], now: Timestamp) -> Result<Self, Failure> {
        let midnight = local_time::midnight(now);
        let mut asked = Self { start: local_time::midnight(midnight.plus_secs(-1)), end: midnight, format: None };
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let time = |what: &str| local_time::read_past(value, now).map_err(|why| Failure::usage(format_args!("{what}={value}: {why}")));
            match key.to_ascii_lowercase().as_str() {
                "start" => asked.start = time("start")?,
                "end" => asked.end = time("end")?.min(now),
                "format" => asked.format = Some(value.to_owned()),
                "where" | "all_clusters" => {}
                _ => return Err(Failure::usage(format_args!("{word:?} chooses nothing here. Known are start=, end= and format="))),
            }
        }
        match asked.start < asked.end {
            true => Ok(asked),
            false => Err(Failure::usage(format_args!("start ({}) is not before end ({}): there is nothing between them", asked.start, asked.end))),
        }
    }
}

/// Without a unit in percent.
///
/// # Errors
/// What stood in the way.
pub(crate) fn print(asked: &Asked, choice: &ClusterChoice, unit: Option<(&str, f64)>, (is_named, tres): (bool, &[Tres]), table: TableArgs) -> Outcome {
    let usual = match is_named {
        true => "Cluster,TresName,Allocated,Down,PlannedDown,Idle,Planned,Reported",
        false => "Cluster,Allocated,Down,PlannedDown,Idle,Planned,Reported",
    };
    let columns = ruled_table::choose(asked.format.as_deref().unwrap_or(usual), COLUMNS, ELSEWHERE)?;
    let mut client = gcli::connect("sreport")?;
    choice.check(&mut client)?;
    let cluster = client.get::<ClusterInfo>("/v1/cluster")?.name;
    #[derive(Serialize)]
    struct Query {
        from: Instant,
        to: Instant,
    }
    #[derive(Deserialize)]
    struct Answer {
        known_from: Instant,
        rows: Vec<UtilizationRow>,
    }
    let Answer { known_from, rows } = client.get(&path_with_query("/v1/utilization", &Query { from: Instant(asked.start), to: Instant(asked.end) }))?;
    let span = |from: Timestamp| (asked.end.0 - from.0) as f64;
    let known = span(known_from.0.max(asked.start)) / span(asked.start);
    let lines: Vec<Line> = tres
        .iter()
        .filter_map(|tres| rows.iter().find(|row| row.tres == tres.name()))
        .map(|row| {
            let text = |hours: f64| match unit {
                Some((_, per_hour)) => format!("{:.0}", hours * per_hour),
                None if row.hours > 0.0 => format!("{:.2}%", hours / row.hours * 100.0),
                None => "0.00%".to_owned(),
            };
            let reported = if unit.is_none() { format!("{:.2}%", known * 100.0) } else { text(row.hours) };
            Line {
                cluster: cluster.clone(),
                tres: row.tres.clone(),
                allocated: text(row.allocated_hours),
                down: text(row.down_hours),
                idle: text(row.idle_hours),
                reported,
            }
        })
        .collect();
    let mut out = stdout()?;
    if !table.no_header {
        let times = TimeFormat::from_env();
        let counted = if is_named { "TRES" } else { "CPU" };
        let reported = unit.map_or("Percentage of Total".to_owned(), |(unit, _)| format!("{counted} {unit}"));
        writeln!(out, "{RULE}\nCluster Utilization {} - {}\nUsage reported in {reported}\n{RULE}", times.print(asked.start), times.print(asked.end.plus_secs(-1)))?;
    }
    ruled_table::print(&mut out, &columns, &lines, table)?;
    out.flush()?;
    if known_from.0 > asked.start {
        let since = TimeFormat::from_env().print(known_from.0);
        writeln!(std::io::stderr(), "gadm: what nodes had is known from {since} on: the time before is not counted")?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reports_name_may_be_begun() {
        let is = |text: &str| words(&text.split(' ').map(str::to_owned).collect::<Vec<_>>()).is_some();
        assert!(is("cluster Utilization") && is("clus util") && !is("cluster u") && !is("cluster userutil") && !is("reservation utilization"));
    }
}
