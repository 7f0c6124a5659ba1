//! `gacct --live`, which a link named `sstat` is: what steps that run use by now, as their nodes say. Source: sstat(1).

use super::{AccountingArgs, JobsAndSteps, Listing, query};
use crate::run_column;
use crate::run_line::RunLine;
use crate::step_listing::covers;
use gcli::answer::{list, print_json};
use gcli::table::stdout;
use gcli::{Failure, Outcome};
use gmodel::Timestamp;
use gwire::api::{JobQuery, RunQuery, StepRow};
use gwire::client::path_with_query;
use std::io::Write;

const USUAL: &str = "JobID,NTasks,MaxRSS,AveCPU,TotalCPU,NodeList";

/// A line for each step under way; with `first_only` of each job the lowest number alone, and its script if nothing else runs.
pub(super) fn print(args: &AccountingArgs, first_only: bool, now: Timestamp) -> Outcome {
    let mut out = stdout()?;
    let text = if args.format.is_empty() {
        USUAL.to_owned()
    } else {
        args.format.join(",")
    };
    let columns = run_column::read(&text).map_err(Failure::new)?;
    let named = JobsAndSteps::of(&args.jobs.join(","));
    let path = steps_path(query(args, now)?, &named);
    let mut client = gcli::connect("gacct")?;
    args.cluster.check(&mut client)?;
    if args.json {
        return print_json(&mut client, &path);
    }
    let steps: Vec<StepRow> = list(&mut client, &path)?;
    let listing = Listing::new(args, columns);
    let mut lines = listing.header();
    let meant: Vec<&StepRow> = steps
        .iter()
        .filter(|step| is_meant(step, &named, first_only, &steps))
        .collect();
    let (known, unknown): (Vec<&StepRow>, Vec<&StepRow>) =
        meant.iter().partition(|step| step.cpu_time_secs.is_some());
    known
        .iter()
        .for_each(|step| listing.add(&RunLine::default().of_step(step), &mut lines));
    out.write_all(lines.as_bytes())?;
    out.flush()?;
    if !unknown.is_empty() {
        let ids: Vec<&str> = unknown.iter().map(|step| step.shown_id.as_str()).collect();
        let text = format!(
            "nothing is known of {}: a node did not answer, or measures nothing before the end",
            ids.join(", ")
        );
        gcli::failure::note("gacct", text)?;
    }
    match meant.is_empty() && !args.jobs.is_empty() {
        true => Err(Failure::new(format_args!(
            "couldn't get steps for job {}: none of it runs now",
            args.jobs.join(",")
        ))),
        false => Ok(u8::from(known.is_empty() && !unknown.is_empty())),
    }
}

/// The steps under way of the jobs that accounting would list.
fn steps_path(runs: RunQuery, named: &JobsAndSteps) -> String {
    let query = JobQuery {
        job: named.all(),
        user: runs.user,
        account: runs.account,
        partition: runs.partition,
        qos: runs.qos,
        name: runs.name,
        nodelist: runs.nodelist,
        ..JobQuery::default()
    };
    let path = path_with_query("/v1/steps", &query);
    let mark = if path.contains('?') { '&' } else { '?' };
    format!("{path}{mark}live=true")
}

fn is_meant(step: &StepRow, named: &JobsAndSteps, first_only: bool, all: &[StepRow]) -> bool {
    let job = step.shown_id.rsplit_once('.').map_or("", |(job, _)| job);
    let of_job = named
        .jobs
        .iter()
        .any(|word| covers(word, job) || *word == step.job.to_string());
    let of_all = named.jobs.is_empty() && named.steps.is_empty() || of_job;
    let is_first = || {
        all.iter()
            .filter(|other| other.job == step.job)
            .all(|other| number(step) <= number(other))
    };
    named.steps.contains(&step.shown_id) || of_all && (!first_only || is_first())
}

/// The script comes last.
fn number(step: &StepRow) -> u32 {
    step.shown_id
        .rsplit_once('.')
        .and_then(|(_, number)| number.parse().ok())
        .unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sstat_shows_the_first_step_of_a_job_unless_one_is_named() {
        let step = |id: &str| StepRow {
            job: id.split(['.', '_']).next().unwrap().parse().unwrap(),
            shown_id: id.into(),
            ..StepRow::default()
        };
        let all = ["17.batch", "17.2", "17.10", "18.batch", "98_4.batch"].map(step);
        let shown = |list: &str, first_only| {
            let named = JobsAndSteps::of(list);
            let meant = all
                .iter()
                .filter(|step| is_meant(step, &named, first_only, &all));
            meant
                .map(|step| step.shown_id.as_str())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(shown("", true), "17.2 18.batch 98_4.batch");
        assert_eq!(shown("17", false), "17.batch 17.2 17.10");
        assert_eq!(shown("17.batch,18", true), "17.batch 18.batch");
        assert_eq!(shown("98", true), "98_4.batch");
        assert_eq!(shown("17.3,99", true), "");
    }
}
