//! `gadm job`: change, hold, release and requeue jobs, owners their own; suspend and resume them.

use gcli::local_time;
use gcli::{Failure, Outcome};
use gmodel::Instant;
use gmodel::duration::TimeLimit;
use gmodel::suggest::did_you_mean;
use gwire::api::{Done, EachResult, TargetsRequest, UpdateRequest};
use gwire::client::Client;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;

/// What to do to jobs.
#[derive(clap::Subcommand)]
pub(crate) enum JobAct {
    /// Change a job: TimeLimit=, Nice=, JobName=, Comment=, Partition=, Account=, QOS=, StartTime=, Requeue=,
    /// ArrayTaskThrottle=, Dependency=, Licenses=, ReservationName=, Priority= (operators; none computes it again),
    /// Borrow=, Deadline=, TimeMin=, Checkpoint=
    Update {
        /// Jobs, then changes: 17 TimeLimit=4:00:00
        #[arg(required = true, value_name = "JOB|KEY=VALUE")]
        words: Vec<String>,
        /// Time limit, as TimeLimit=
        #[arg(long, short, value_name = "TIME")]
        time: Option<String>,
    },
    /// Keep jobs from starting
    Hold {
        #[command(flatten)]
        jobs: Jobs,
        /// Why
        #[arg(long, short, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// Lift your hold
    Release {
        #[command(flatten)]
        jobs: Jobs,
    },
    /// Freeze running jobs: they keep their GPUs, CPUs and memory, and their time limit stands still (operators)
    Suspend {
        #[command(flatten)]
        jobs: Jobs,
    },
    /// Let suspended jobs go on (operators)
    Resume {
        #[command(flatten)]
        jobs: Jobs,
    },
    /// End running jobs and put them back into the queue
    Requeue {
        #[command(flatten)]
        jobs: Jobs,
        /// Hold them there
        #[arg(long)]
        hold: bool,
    },
}

/// Which jobs.
#[derive(clap::Args)]
pub(crate) struct Jobs {
    /// Jobs: 17, 98 (an array), 98_5, 98_[1-3]
    #[arg(required = true, value_name = "JOB")]
    jobs: Vec<String>,
}

pub(crate) fn run(client: &mut Client, act: JobAct) -> Outcome {
    match act {
        JobAct::Update { words, time } => update(client, &words, time.as_deref()),
        JobAct::Hold { jobs, reason } => {
            let request = TargetsRequest { jobs: jobs.jobs, reason, hold: false };
            report(&client.post_repeatable("/v1/jobs/hold", &request)?)
        }
        JobAct::Release { jobs } => {
            let request = TargetsRequest { jobs: jobs.jobs, ..TargetsRequest::default() };
            report(&client.post_repeatable("/v1/jobs/release", &request)?)
        }
        JobAct::Suspend { jobs } => {
            let request = TargetsRequest { jobs: jobs.jobs, ..TargetsRequest::default() };
            report(&client.post_repeatable("/v1/jobs/suspend", &request)?)
        }
        JobAct::Resume { jobs } => {
            let request = TargetsRequest { jobs: jobs.jobs, ..TargetsRequest::default() };
            report(&client.post_repeatable("/v1/jobs/resume", &request)?)
        }
        JobAct::Requeue { jobs, hold } => {
            let request = TargetsRequest { jobs: jobs.jobs, hold, ..TargetsRequest::default() };
            // Asked twice it would end the attempt that the first one made room for.
            report(&client.post("/v1/jobs/requeue", &request)?)
        }
    }
}

fn report(answer: &EachResult) -> Outcome {
    let mut failed = false;
    for result in answer.results.iter().filter(|result| !result.ok) {
        failed = true;
        let text = gcli::printable::printable(&result.error);
        match text.contains(&result.job) {
            true => writeln!(std::io::stderr(), "gadm: {text}")?,
            false => writeln!(std::io::stderr(), "gadm: job {}: {text}", result.job)?,
        }
    }
    Ok(u8::from(failed))
}

fn update(client: &mut Client, words: &[String], time: Option<&str>) -> Outcome {
    let (changes, jobs): (Vec<&String>, Vec<&String>) = words.iter().partition(|word| word.contains('='));
    let mut change = BTreeMap::new();
    let mut jobs: Vec<String> = jobs.into_iter().cloned().collect();
    for word in changes {
        let (key, value) = word.split_once('=').expect("chosen for its sign");
        // scontrol's users write the job as a key too.
        if key.eq_ignore_ascii_case("jobid") {
            jobs.push(value.to_owned());
            continue;
        }
        let (key, value) = read_change(key, value)?;
        change.insert(key.to_owned(), value);
    }
    if let Some(time) = time {
        change.insert("time_limit_secs".to_owned(), time_limit("--time", time)?);
    }
    if jobs.is_empty() {
        return Err(Failure::usage("which job? gadm job update 17 TimeLimit=4:00:00"));
    }
    if change.is_empty() {
        return Err(Failure::usage(format_args!("what is to be changed? gadm job update {} TimeLimit=4:00:00", jobs[0])));
    }
    let mut worst = 0;
    for job in &jobs {
        let request = UpdateRequest { job: job.clone(), change: change.clone() };
        match client.post_repeatable::<_, Done>("/v1/jobs/update", &request).map_err(Failure::from) {
            Ok(done) => crate::controller::say_notes(&done),
            Err(failure) if failure.exit == gcli::failure::FAILED && jobs.len() > 1 => {
                writeln!(std::io::stderr(), "gadm: {}", failure.text)?;
                worst = failure.exit;
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(worst)
}

/// scontrol's keys, and ours.
const KEYS: [(&str, &str); 23] = [
    ("timelimit", "time_limit_secs"),
    ("time", "time_limit_secs"),
    ("nice", "nice"),
    ("jobname", "name"),
    ("name", "name"),
    ("comment", "comment"),
    ("partition", "partition"),
    ("account", "account"),
    ("qos", "qos"),
    ("starttime", "begin"),
    ("begin", "begin"),
    ("requeue", "requeue"),
    ("arraytaskthrottle", "max_running"),
    ("dependency", "dependency"),
    ("licenses", "licences"),
    ("licences", "licences"),
    ("reservationname", "reservation"),
    ("reservation", "reservation"),
    ("priority", "priority"),
    ("borrow", "borrow"),
    ("deadline", "deadline"),
    ("timemin", "time_min_secs"),
    ("checkpoint", "checkpoint"),
];

/// A change as the API takes it.
fn read_change(key: &str, value: &str) -> Result<(&'static str, Value), Failure> {
    let lower = key.to_ascii_lowercase();
    let Some((_, api)) = KEYS.iter().find(|(known, _)| *known == lower) else {
        let hint = did_you_mean(&lower, KEYS.map(|(known, _)| known));
        return Err(Failure::usage(format_args!("{key}= of a job cannot be changed.{hint} gadm job update --help lists what can")));
    };
    let number = |what: &str| Failure::usage(format_args!("{key}={value}: {what}"));
    let value = match *api {
        "time_limit_secs" => time_limit(key, value)?,
        "dependency" | "licences" | "reservation" | "priority" | "deadline" | "time_min_secs" | "checkpoint" if is_none(value) => Value::Null,
        "time_min_secs" => time_limit(key, value)?,
        "priority" => value.parse::<u32>().map(Value::from).map_err(|_| number("it is not a whole number, not negative"))?,
        "nice" => value.parse::<i32>().map(Value::from).map_err(|_| number("it is not a whole number"))?,
        "max_running" => value.parse::<u32>().map(Value::from).map_err(|_| number("it is not a whole number, not negative"))?,
        "requeue" | "borrow" => match value.to_ascii_lowercase().as_str() {
            "1" | "yes" | "true" => true.into(),
            "0" | "no" | "false" => false.into(),
            _ => return Err(number("it is neither yes nor no")),
        },
        "begin" | "deadline" => {
            let at = local_time::read(value, local_time::now()).map_err(|why| Failure::usage(format_args!("{key}: {why}")))?;
            serde_json::to_value(Instant(at)).map_err(Failure::new)?
        }
        _ => value.into(),
    };
    Ok((api, value))
}

/// How scontrol's users take something away: `Dependency=`, `Priority=-1`.
fn is_none(value: &str) -> bool {
    value.is_empty() || value == "-1" || value.eq_ignore_ascii_case("none") || value == "(null)"
}

/// Seconds, or null for UNLIMITED.
fn time_limit(key: &str, text: &str) -> Result<Value, Failure> {
    let limit = TimeLimit::parse(text).map_err(|error| Failure::usage(format_args!("{key}: {error}")))?;
    Ok(limit.secs().map_or(Value::Null, Value::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_scontrol_become_those_of_the_api() {
        assert_eq!(read_change("TimeLimit", "2:00:00").unwrap(), ("time_limit_secs", Value::from(7200)));
        assert_eq!(read_change("timelimit", "UNLIMITED").unwrap(), ("time_limit_secs", Value::Null));
        assert_eq!(read_change("Requeue", "0").unwrap(), ("requeue", Value::from(false)));
        assert_eq!(read_change("StartTime", "2027-01-09T06:00").unwrap().0, "begin");
        let refused = read_change("TimeLimt", "1").unwrap_err();
        assert!(refused.exit == 2 && refused.text.contains(r#"Did you mean "timelimit"?"#), "{}", refused.text);
        assert!(read_change("TimeLimit", "junk").unwrap_err().text.starts_with("TimeLimit: time limit \"junk\""));
        assert!(read_change("nice", "x").is_err());
        assert_eq!(read_change("Dependency", "afterok:17").unwrap(), ("dependency", Value::from("afterok:17")));
        assert_eq!(read_change("Priority", "-1").unwrap(), ("priority", Value::Null));
        assert_eq!(read_change("Licenses", "none").unwrap(), ("licences", Value::Null));
        assert_eq!(read_change("TimeMin", "10").unwrap(), ("time_min_secs", Value::from(600)));
    }
}
