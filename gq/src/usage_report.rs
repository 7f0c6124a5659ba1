//! `gacct report`: GPU-hours, CPU-hours, cost and jobs by account, user, partition, GPU type, tag or class.

use gcli::local_time;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Failure, Outcome};
use gmodel::suggest::did_you_mean;
use gmodel::{Instant, Timestamp};
use gwire::api::ReportRow;
use gwire::client::{Client, path_with_query};
use serde::Serialize;
use std::io::Write;

const GROUPS: [(&str, &str); 6] = [
    ("account", "ACCOUNT"),
    ("user", "USER"),
    ("partition", "PARTITION"),
    ("gpu-type", "GPU_TYPE"),
    ("tag", "TAG"),
    ("class", "CLASS"),
];

/// Options of `gacct report`.
#[derive(clap::Args)]
pub(crate) struct ReportArgs {
    /// Groups: account, user, partition, gpu-type, tag, class (guaranteed or borrowed)
    #[arg(long, value_name = "LIST", default_value = "account")]
    pub by: String,
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

#[derive(Serialize)]
struct ReportQuery {
    by: String,
    from: Instant,
    /// Left out, the controller's own now holds: the running second counts too.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Instant>,
}

pub(crate) fn run(client: &mut Client, args: &ReportArgs, now: Timestamp) -> Outcome {
    let groups = groups(&args.by)?;
    let query = query(args, &groups, now)?;
    let path = path_with_query("/v1/report", &query);
    let mut out = stdout()?;
    if args.json {
        crate::queue::copy_json(client, &path, &mut out)?;
        out.flush()?;
        return Ok(0);
    }
    let mut rows = client.rows(&path)?;
    let mut list: Vec<ReportRow> = Vec::new();
    while let Some(text) = rows.next_row()? {
        list.push(serde_json::from_slice(text).map_err(Failure::new)?);
    }
    let titles = groups.iter().map(|(_, title)| *title);
    let mut numbers = vec!["JOBS", "GPU_HOURS", "CPU_HOURS"];
    // A site without prices has no column of them.
    let priced = list.iter().any(|row| row.cost.is_some());
    if priced {
        numbers.push("COST");
    }
    if args.parsable2 {
        if !args.noheader {
            let titles: Vec<_> = titles.chain(numbers).collect();
            writeln!(out, "{}", titles.join("|"))?;
        }
        for row in &list {
            writeln!(out, "{}", cells(row, groups.len(), priced).join("|"))?;
        }
        out.flush()?;
        return Ok(0);
    }
    let columns = titles.map(Column::text).chain(numbers.into_iter().map(Column::number)).collect();
    let mut table = TableWriter::new(out, columns, Screen::of_stdout(), !args.noheader);
    for row in &list {
        table.row(cells(row, groups.len(), priced).into_iter().map(Into::into).collect())?;
    }
    // A job with two tags is in two groups, so groups of tags have no sum.
    if list.len() > 1 && !groups.iter().any(|(name, _)| *name == "tag") {
        let sum = ReportRow {
            group: vec!["TOTAL".to_owned()],
            jobs: list.iter().map(|row| row.jobs).sum(),
            gpu_hours: list.iter().map(|row| row.gpu_hours).sum(),
            cpu_hours: list.iter().map(|row| row.cpu_hours).sum(),
            cost: priced.then(|| list.iter().filter_map(|row| row.cost).sum()),
        };
        table.row(cells(&sum, groups.len(), priced).into_iter().map(Into::into).collect())?;
    }
    table.finish()?;
    Ok(0)
}

fn cells(row: &ReportRow, groups: usize, priced: bool) -> Vec<String> {
    let mut cells = row.group.clone();
    cells.resize(groups, String::new());
    cells.extend([row.jobs.to_string(), format!("{:.1}", row.gpu_hours), format!("{:.1}", row.cpu_hours)]);
    if priced {
        cells.push(format!("{:.2}", row.cost.unwrap_or(0.0)));
    }
    cells
}

fn groups(by: &str) -> Result<Vec<(&'static str, &'static str)>, Failure> {
    let group = |word: &str| {
        let found = GROUPS.into_iter().find(|(name, _)| *name == word);
        let names = || GROUPS.map(|(name, _)| name);
        found.ok_or_else(|| {
            let hint = did_you_mean(word, names());
            Failure::usage(format_args!("--by: there is no group {word:?}.{hint} Groups are {}", names().join(", ")))
        })
    };
    by.split(',').map(str::trim).filter(|word| !word.is_empty()).map(group).collect()
}

fn query(args: &ReportArgs, groups: &[(&str, &str)], now: Timestamp) -> Result<ReportQuery, Failure> {
    let read = |option: &str, text: &str| {
        local_time::read_past(text, now).map_err(|why| Failure::usage(format_args!("--{option}: {why}")))
    };
    let from = match &args.from {
        Some(text) => read("from", text)?,
        None => local_time::month_start(now),
    };
    let to = args.to.as_deref().map(|text| read("to", text)).transpose()?;
    let end = to.unwrap_or(now);
    if from >= end {
        return Err(Failure::usage(format_args!("--from ({from}) is not before --to ({end}): there is nothing between them")));
    }
    let by: Vec<&str> = groups.iter().map(|(name, _)| *name).collect();
    Ok(ReportQuery { by: by.join(","), from: Instant(from), to: to.map(Instant) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_checked_with_a_guess() {
        assert_eq!(groups("account,gpu-type").unwrap().len(), 2);
        let refused = groups("acount").unwrap_err();
        assert!(refused.exit == 2 && refused.text.contains(r#"Did you mean "account"?"#), "{}", refused.text);
    }
}
