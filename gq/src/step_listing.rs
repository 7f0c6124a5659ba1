//! `gq -s`: the steps of running jobs, their batch scripts and what gruns started in them. Source: `squeue -s`.

use crate::job_column::JobColumn;
use crate::job_format::{ListingForm, fill};
use crate::queue_row::QueueRow;
use gcli::Outcome;
use gcli::answer::{list, print_json};
use gcli::local_time::TimeFormat;
use gcli::table::{Column, Screen, TableWriter, Tint, stdout};
use gwire::api::{JobQuery, JobRowKey, StepRow};
use gwire::client::{Client, path_with_query};
use std::io::Write;

const USUAL: [JobColumn; 6] = [
    JobColumn::ShownId,
    JobColumn::Text(JobRowKey::name),
    JobColumn::Text(JobRowKey::partition),
    JobColumn::Text(JobRowKey::user),
    JobColumn::Elapsed,
    JobColumn::Text(JobRowKey::nodelist),
];

/// `named`: `17.0,98_5.batch`, or jobs; empty is all.
pub(crate) fn print(
    client: &mut Client,
    mut query: JobQuery,
    named: &str,
    form: &ListingForm,
    header: bool,
) -> Outcome {
    let words: Vec<&str> = named
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .collect();
    if !words.is_empty() {
        query.job = words
            .iter()
            .map(|word| word.split('.').next().unwrap_or(word))
            .collect::<Vec<_>>()
            .join(",");
    }
    query = JobQuery {
        columns: String::new(),
        bare: false,
        expand: false,
        ..query
    };
    let path = path_with_query("/v1/steps", &query);
    let mut out = stdout()?;
    if let ListingForm::Json = form {
        return print_json(client, &path);
    }
    let steps: Vec<StepRow> = list(client, &path)?;
    let named = steps.iter().filter(|step| is_named(step, &words));
    let rows: Vec<QueueRow> = named.map(row).collect();
    let times = TimeFormat::from_env();
    match form {
        ListingForm::Format(pieces) => {
            let mut line = String::new();
            if header {
                fill(pieces, &mut line, |column| title(column).into());
            }
            rows.iter()
                .for_each(|row| fill(pieces, &mut line, |column| column.value(row, &times)));
            out.write_all(line.as_bytes())?;
            out.flush()?;
        }
        _ => {
            let layout = USUAL.map(|column| match column {
                JobColumn::ShownId | JobColumn::Elapsed => Column::number(title(column)),
                _ => Column::text(title(column)),
            });
            let mut table = TableWriter::new(out, layout.into(), Screen::of_stdout(), header);
            for row in &rows {
                let cell = |column: &JobColumn| (column.value(row, &times), Tint::Plain);
                table.row_of(USUAL.iter().map(cell))?;
            }
            table.finish()?;
        }
    }
    Ok(0)
}

/// Without words every step is.
fn is_named(step: &StepRow, words: &[&str]) -> bool {
    let job = step.shown_id.rsplit_once('.').map_or("", |(job, _)| job);
    let is_named_by = |word: &&str| match word.contains('.') {
        true => *word == step.shown_id,
        false => covers(word, job),
    };
    words.is_empty() || words.iter().any(is_named_by)
}

/// Whether a job is the one named, or a task of it.
pub(crate) fn covers(word: &str, job: &str) -> bool {
    job == word || job.split_once('_').is_some_and(|(array, _)| array == word)
}

fn title(column: JobColumn) -> &'static str {
    if column == JobColumn::ShownId {
        "STEPID"
    } else {
        column.title()
    }
}

fn row(step: &StepRow) -> QueueRow<'_> {
    QueueRow {
        id: step.job,
        shown_id: step.shown_id.as_str().into(),
        name: step.name.as_str().into(),
        user: step.user.as_str().into(),
        account: step.account.as_str().into(),
        partition: step.partition.as_str().into(),
        qos: step.qos.as_str().into(),
        state: step.state,
        nodes: step.nodes,
        nodelist: step.nodelist.as_str().into(),
        ntasks: step.ntasks,
        elapsed_secs: step.elapsed_secs,
        start_time: step.start_time,
        ..QueueRow::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_covers_its_tasks_and_no_other_job() {
        assert!(covers("98", "98_5") && covers("98_5", "98_5") && covers("17", "17"));
        assert!(!covers("9", "98_5") && !covers("98_4", "98_5"));
    }
}
