//! `sreport cluster Utilization`: what became of the CPUs and GPUs that the nodes had.
//!
//! Owns the columns. How much Slurm had planned for waiting jobs, or was in maintenance, is not kept: these columns are blank. Source:
//! sreport(1), and what sreport 22.05.8 printed.

use super::source::{Source, Span, Utilization};
use super::tres::{RULE, TresChoice, Unit};
use crate::ruled_table::{self, Column, TableArgs};
use gcli::failure::note;
use gcli::local_time::TimeFormat;
use gcli::table::stdout;
use gcli::{ClusterChoice, Failure, Outcome};
use gmodel::{Instant, Timestamp};
use std::io::Write;

const ELSEWHERE: &str =
    "Cluster, TresName, Allocated, Down, PlannedDown, Idle, Planned and Reported are";

/// A line of the report.
struct UtilizationLine {
    cluster: String,
    tres: String,
    allocated: String,
    down: String,
    idle: String,
    reported: String,
}

const COLUMNS: &[Column<UtilizationLine>] = &[
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
pub(crate) struct UtilizationRequest {
    span: Span,
    format: Option<String>,
}

/// The words behind the report's name, if it is this one.
pub(crate) fn words(words: &[String]) -> Option<&[String]> {
    let [about, report, rest @ ..] = words else {
        return None;
    };
    let begins =
        |whole: &str, word: &str| !word.is_empty() && whole.starts_with(&word.to_ascii_lowercase());
    (begins("cluster", about)
        && begins("utilization", report)
        && !begins("userutilizationbyaccount", report))
    .then_some(rest)
}

impl UtilizationRequest {
    /// # Errors
    /// A word that chooses nothing, or times that cannot be read.
    pub(crate) fn of(words: &[String], now: Timestamp) -> Result<Self, Failure> {
        let mut format = None;
        let span = Span::read(words, now, "start=, end= and format=", |key, value| {
            match key {
                "format" => format = Some(value.to_owned()),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Self { span, format })
    }
}

/// # Errors
/// What stood in the way.
pub(crate) fn print(
    asked: &UtilizationRequest,
    choice: &ClusterChoice,
    unit: Unit,
    tres: &TresChoice,
    table: TableArgs,
) -> Outcome {
    let usual = match tres.is_named {
        true => "Cluster,TresName,Allocated,Down,PlannedDown,Idle,Planned,Reported",
        false => "Cluster,Allocated,Down,PlannedDown,Idle,Planned,Reported",
    };
    let columns =
        ruled_table::choose(asked.format.as_deref().unwrap_or(usual), COLUMNS, ELSEWHERE)?;
    let mut source = Source::open(choice)?;
    let Utilization { known_from, rows } = source.utilization(asked.span)?;
    let Span { start, end } = asked.span;
    let known = (end.0 - known_from.0.clamp(start, end).0) as f64 / (end.0 - start.0) as f64;
    let lines: Vec<UtilizationLine> = tres
        .list
        .iter()
        .filter_map(|tres| rows.iter().find(|row| row.tres == tres.name()))
        .map(|row| {
            let text = |hours: f64| unit.text(hours, row.hours);
            // Of the time that was asked for.
            let reported = unit.text(row.hours, if known > 0.0 { row.hours / known } else { 0.0 });
            UtilizationLine {
                cluster: source.cluster.clone(),
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
        let counted = if tres.is_named { "TRES" } else { "CPU" };
        let reported = unit.title(counted);
        writeln!(
            out,
            "{RULE}\nCluster Utilization {}\nUsage reported in {reported}\n{RULE}",
            asked.span
        )?;
    }
    ruled_table::print(&mut out, &columns, &lines, table)?;
    out.flush()?;
    say_unknown(known_from, asked.span)
}

/// Says where figures begin later than the report.
fn say_unknown(known_from: Instant, Span { start, end }: Span) -> Outcome {
    let since = TimeFormat::from_env().print(known_from.0);
    if known_from.0 >= end {
        note(
            "gadm",
            format_args!("of this time nothing is known: what nodes had is known from {since} on"),
        )?;
    } else if known_from.0 > start {
        note(
            "gadm",
            format_args!("what nodes had is known from {since} on: the time before is not counted"),
        )?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reports_name_may_be_begun() {
        let is =
            |text: &str| words(&text.split(' ').map(str::to_owned).collect::<Vec<_>>()).is_some();
        assert!(
            is("cluster Utilization")
                && is("clus util")
                && !is("cluster u")
                && !is("cluster userutil")
                && !is("reservation utilization")
        );
    }
}
