//! What `gq` prints of single jobs: their records, why they wait, what was done for them, their scripts.

use crate::job_lookup::{job_path, jobs_named};
use crate::job_record;
use gcli::Outcome;
use gcli::answer::print_json;
use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gcli::table::stdout;
use gcli::why_text;
use gmodel::JobState;
use gwire::api::{LogText, WhyRow};
use gwire::client::Client;
use serde::Deserialize;
use std::io::Write;

/// The records of these jobs.
pub(crate) fn records(client: &mut Client, names: &[String], json: bool) -> Outcome {
    let mut out = stdout()?;
    if let ([only], true) = (names, json) {
        return print_json(client, &job_path(only, ""));
    }
    if json {
        let mut jobs = Vec::new();
        for name in names {
            let mut rows = client.rows(&job_path(name, ""))?;
            while let Some(text) = rows.next_row()? {
                jobs.push(String::from_utf8_lossy(text).into_owned());
            }
        }
        writeln!(
            out,
            "{{\"schema\":{},\"jobs\":[{}]}}",
            gwire::api::SCHEMA,
            jobs.join(",")
        )?;
        out.flush()?;
        return Ok(0);
    }
    let times = TimeFormat::from_env();
    let mut worst = 0;
    for name in names {
        match jobs_named(client, name) {
            Ok(jobs) => {
                for job in &jobs {
                    out.write_all(job_record::text(job, &times).as_bytes())?;
                }
            }
            // The others are shown all the same.
            Err(failure) if failure.exit == gcli::failure::FAILED && names.len() > 1 => {
                out.flush()?;
                gcli::failure::say_failure("gq", &failure)?;
                worst = failure.exit;
            }
            Err(failure) => return Err(failure),
        }
    }
    out.flush()?;
    Ok(worst)
}

#[derive(Deserialize)]
struct WhyAnswer {
    jobs: Vec<WhyRow>,
    /// That are meant, too.
    #[serde(default)]
    more: u64,
}

/// `gq --why`.
pub(crate) fn why(client: &mut Client, job: &str, json: bool) -> Outcome {
    let mut out = stdout()?;
    if json {
        return print_json(client, &job_path(job, "/why"));
    }
    // A job that has left the queue says how it ended.
    let (told, more) = match client.get::<WhyAnswer>(&job_path(job, "/why")) {
        Ok(answer) => (answer.jobs, answer.more),
        Err(error) if error.code() == "not_found" => (
            vec![WhyRow {
                shown_id: job.to_owned(),
                state: JobState::Unknown,
                ..WhyRow::default()
            }],
            0,
        ),
        Err(error) => return Err(error.into()),
    };
    let times = TimeFormat::from_env();
    for row in &told {
        // What a job that runs or is over has to say is in its record.
        if row.state == JobState::Pending {
            out.write_all(why_text::text(row, &times).as_bytes())?;
        } else if row.shown_id.contains('[') {
            out.write_all(why_text::ended(row, &times).as_bytes())?;
        } else {
            for job in &jobs_named(client, &row.shown_id)? {
                out.write_all(job_record::ended(job, &times).as_bytes())?;
            }
        }
    }
    if more > 0 {
        let array = printable(job.split('_').next().unwrap_or_default());
        writeln!(
            out,
            "and {more} more of job {array}: ask for one of them by its number, as in gq --why {array}_7"
        )?;
    }
    out.flush()?;
    Ok(0)
}

/// `gq --log`.
pub(crate) fn log(client: &mut Client, job: &str, json: bool) -> Outcome {
    if json {
        return print_json(client, &job_path(job, "/log"));
    }
    let mut out = stdout()?;
    let log: LogText = client.get(&job_path(job, "/log"))?;
    let times = TimeFormat::from_env();
    for event in &log.events {
        let text = times.in_text(&event.text);
        writeln!(out, "{} {}", times.print(event.at.0), printable(&text))?;
    }
    for line in &log.lines {
        writeln!(out, "{}", printable(&times.in_text(line)))?;
    }
    out.flush()?;
    Ok(0)
}

/// `gq --script`.
pub(crate) fn script(client: &mut Client, job: &str) -> Outcome {
    let text = client.get_text(&job_path(job, "/script"))?;
    stdout()?.write_all(text.as_bytes())?;
    Ok(0)
}
