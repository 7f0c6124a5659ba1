//! `gq --start`: when waiting jobs are expected to start, and where; of an array the next task. Under the
//! table: limits that keep jobs without a start, each with its holder that ends first. Source: `squeue --start`.

use gcli::answer::print_json;
use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Failure, Outcome};
use gmodel::Instant;
use gwire::api::{IntervalRecord, JobQuery, StartRow};
use gwire::client::{Client, path_with_query};
use serde::Deserialize;

#[derive(Deserialize)]
struct StartList {
    jobs: Vec<StartRow>,
    #[serde(default)]
    records: Vec<IntervalRecord>,
}

pub(crate) fn print(client: &mut Client, query: &JobQuery, header: bool, json: bool) -> Outcome {
    let path = path_with_query("/v1/starts", query);
    if json {
        return print_json(client, &path);
    }
    let StartList { jobs, records } = client.get(&path)?;
    print_table(&jobs, header)?;
    if !header {
        return Ok(0);
    }
    // Talk, not data.
    for text in explanations(jobs) {
        eprintln!("{}", printable(&text));
    }
    for text in records.iter().filter_map(IntervalRecord::text) {
        eprintln!("{}", printable(&text));
    }
    Ok(0)
}

fn print_table(jobs: &[StartRow], header: bool) -> Result<(), Failure> {
    let columns = vec![
        Column::number("JOBID"),
        Column::text("PARTITION"),
        Column::text("NAME"),
        Column::text("USER"),
        Column::whole("ST"),
        Column::whole("EARLIEST"),
        Column::whole("START_TIME"),
        Column::whole("LATEST"),
        Column::number("NODES"),
        Column::text("SCHEDNODES"),
        Column::number("AHEAD"),
        Column::text("(REASON)"),
    ];
    let times = TimeFormat::from_env();
    let at =
        |instant: Option<Instant>| instant.map_or_else(|| "N/A".to_owned(), |at| times.print(at.0));
    let mut table = TableWriter::new(stdout()?, columns, Screen::of_stdout(), header);
    for job in jobs {
        table.row(vec![
            job.shown_id.as_str().into(),
            job.partition.as_str().into(),
            job.name.as_str().into(),
            job.user.as_str().into(),
            "PD".into(),
            at(job.earliest).into(),
            at(job.expected.or(job.at_limits)).into(),
            at(job.latest).into(),
            job.nodes.to_string().into(),
            if job.nodelist.is_empty() {
                "(null)".into()
            } else {
                job.nodelist.as_str().into()
            },
            job.ahead.to_string().into(),
            format!("({})", job.reason).into(),
        ])?;
    }
    table.finish()?;
    Ok(())
}

/// Why jobs have no start, each text once: `17 and 2 more: ...`.
fn explanations(jobs: Vec<StartRow>) -> Vec<String> {
    // The text, the first job that it is of, and how many others.
    let mut explanations: Vec<(String, String, usize)> = Vec::new();
    for job in jobs {
        if let Some(text) = job.explanation {
            let same = explanations.iter_mut().find(|(known, ..)| *known == text);
            match same {
                Some((_, _, others)) => *others += 1,
                None => explanations.push((text, job.shown_id, 0)),
            }
        }
    }
    let line = |(text, job, others): &(String, String, usize)| match others {
        0 => format!("{job}: {text}"),
        others => format!("{job} and {others} more: {text}"),
    };
    explanations.iter().map(line).collect()
}
