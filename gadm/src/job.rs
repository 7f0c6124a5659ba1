//! `gadm job`: change, hold, release and requeue jobs, owners their own; suspend and resume them.

use gcli::answer::list;
use gcli::local_time;
use gcli::{Failure, Outcome};
use gmodel::duration::{TimeLimit, squeue_time};
use gmodel::job_key::{ChangeRight, JobKey, KEYS, KeyForm};
use gmodel::suggest::did_you_mean;
use gmodel::{Instant, Timestamp};
use gwire::api::{ChangeReply, EachResult, JobRow, TargetsRequest, UpdateRequest};
use gwire::client::{Client, escape};
use serde_json::Value;
use std::collections::BTreeMap;

/// What to do to jobs.
#[derive(clap::Subcommand)]
pub enum JobAct {
    #[command(about = update_help())]
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
        /// A hold that the owner may release, too: scontrol uhold
        #[arg(long)]
        for_owner: bool,
    },
    /// Lift your hold; an operator's lifts the controller's, too
    Release {
        #[command(flatten)]
        jobs: Jobs,
    },
    /// Suspend running jobs: they keep their GPUs, CPUs and memory, and their time limit is not used up (operators)
    Suspend {
        #[command(flatten)]
        jobs: Jobs,
    },
    /// Let suspended jobs go on (operators)
    Resume {
        #[command(flatten)]
        jobs: Jobs,
    },
    /// Put jobs back into the queue: running ones are ended for it, those that are over run again (as long as the controller
    /// has them in memory: min_job_age)
    Requeue {
        #[command(flatten)]
        jobs: Jobs,
        /// Hold them there
        #[arg(long)]
        hold: bool,
    },
    /// `requeue --hold`, as scontrol has it
    #[command(name = "requeuehold")]
    RequeueHold {
        #[command(flatten)]
        jobs: Jobs,
    },
}

/// Which jobs.
#[derive(clap::Args)]
pub struct Jobs {
    /// Jobs: 17, 98 (an array), 98_5, 98_[1-3]
    #[arg(required = true, value_name = "JOB")]
    jobs: Vec<String>,
}

impl Jobs {
    pub fn of(jobs: Vec<String>) -> Self {
        Self { jobs }
    }
}

pub fn run(client: &mut Client, act: JobAct) -> Outcome {
    match act {
        JobAct::Update { words, time } => update(client, &words, time.as_deref()),
        JobAct::Hold {
            jobs,
            reason,
            for_owner,
        } => {
            let request = TargetsRequest {
                jobs: jobs.jobs,
                reason,
                for_owner,
                ..TargetsRequest::default()
            };
            report(&client.post_repeatable("/v1/jobs/hold", &request)?)
        }
        JobAct::Release { jobs } => {
            let request = TargetsRequest {
                jobs: jobs.jobs,
                ..TargetsRequest::default()
            };
            report(&client.post_repeatable("/v1/jobs/release", &request)?)
        }
        JobAct::Suspend { jobs } => {
            let request = TargetsRequest {
                jobs: jobs.jobs,
                ..TargetsRequest::default()
            };
            report(&client.post_repeatable("/v1/jobs/suspend", &request)?)
        }
        JobAct::Resume { jobs } => {
            let request = TargetsRequest {
                jobs: jobs.jobs,
                ..TargetsRequest::default()
            };
            report(&client.post_repeatable("/v1/jobs/resume", &request)?)
        }
        JobAct::Requeue { jobs, hold } => requeue(client, jobs, hold),
        JobAct::RequeueHold { jobs } => requeue(client, jobs, true),
    }
}

fn requeue(client: &mut Client, jobs: Jobs, hold: bool) -> Outcome {
    let request = TargetsRequest {
        jobs: jobs.jobs,
        hold,
        ..TargetsRequest::default()
    };
    // Asked twice it would end the attempt that the first one made room for.
    report(&client.post("/v1/jobs/requeue", &request)?)
}

fn report(answer: &EachResult) -> Outcome {
    let mut failed = false;
    for result in answer.results.iter().filter(|result| !result.ok) {
        failed = true;
        gcli::failure::say_of("gadm", result)?;
    }
    Ok(u8::from(failed))
}

/// Jobs, and what to change of each.
struct JobChanges {
    jobs: Vec<String>,
    change: BTreeMap<String, Value>,
    /// Seconds by which the time limit changes.
    limit_by: Option<i64>,
}

fn read_changes(words: &[String], time: Option<&str>) -> Result<JobChanges, Failure> {
    let (changes, jobs): (Vec<&String>, Vec<&String>) =
        words.iter().partition(|word| word.contains('='));
    let mut change = BTreeMap::new();
    let mut limit_by = None;
    let mut jobs: Vec<String> = jobs.into_iter().cloned().collect();
    for word in changes {
        let (key, value) = word.split_once('=').expect("chosen for its sign");
        // scontrol's users write the job as a key too.
        if key.eq_ignore_ascii_case("jobid") {
            jobs.push(value.to_owned());
            continue;
        }
        if let Some(step) = limit_step(key, value)? {
            limit_by = Some(step);
            continue;
        }
        let (key, value) = read_change(key, value)?;
        change.insert(key.to_owned(), value);
    }
    if let Some(time) = time {
        change.insert("time_limit_secs".to_owned(), time_limit("--time", time)?);
    }
    if jobs.is_empty() {
        return Err(Failure::usage(
            "which job? gadm job update 17 TimeLimit=4:00:00",
        ));
    }
    if change.is_empty() && limit_by.is_none() {
        return Err(Failure::usage(format_args!(
            "what is to be changed? gadm job update {} TimeLimit=4:00:00",
            jobs[0]
        )));
    }
    Ok(JobChanges {
        jobs,
        change,
        limit_by,
    })
}

fn update(client: &mut Client, words: &[String], time: Option<&str>) -> Outcome {
    let JobChanges {
        jobs,
        change,
        limit_by,
    } = read_changes(words, time)?;
    let mut worst = 0;
    for job in &jobs {
        let mut change = change.clone();
        if let Some(step) = limit_by {
            change.insert(
                "time_limit_secs".to_owned(),
                stepped_limit(client, job, step)?,
            );
        }
        let request = UpdateRequest {
            job: job.clone(),
            change,
        };
        match client
            .post_repeatable::<_, ChangeReply>("/v1/jobs/update", &request)
            .map_err(Failure::from)
        {
            Ok(done) => crate::controller::say_notes(&done),
            Err(failure) if failure.exit == gcli::failure::FAILED && jobs.len() > 1 => {
                gcli::failure::say_failure("gadm", &failure)?;
                worst = failure.exit;
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(worst)
}

/// Seconds more or less of `TimeLimit+=30` and `TimeLimit=-1:00:00`, as scontrol takes them; `-1` alone is UNLIMITED.
fn limit_step(key: &str, value: &str) -> Result<Option<i64>, Failure> {
    let (name, sign, text) = match (
        key.strip_suffix('+'),
        key.strip_suffix('-'),
        value.strip_prefix('+'),
        value.strip_prefix('-'),
    ) {
        (Some(name), ..) => (name, 1, value),
        (_, Some(name), ..) => (name, -1, value),
        (.., Some(text), _) => (key, 1, text),
        (.., Some(text)) if value != "-1" => (key, -1, text),
        _ => return Ok(None),
    };
    if !["timelimit", "time"].contains(&name.to_ascii_lowercase().as_str()) {
        return Ok(None);
    }
    let secs = TimeLimit::parse(text)
        .map_err(|error| Failure::usage(format_args!("{key}: {error}")))?
        .secs();
    let secs = secs.and_then(|secs| i64::try_from(secs).ok());
    let secs = secs.ok_or_else(|| {
        Failure::usage(format_args!(
            "{key}={value}: UNLIMITED is no step. Write TimeLimit=UNLIMITED"
        ))
    })?;
    Ok(Some(sign * secs))
}

/// The limit of a job so much longer or shorter.
fn stepped_limit(client: &mut Client, job: &str, step: i64) -> Result<Value, Failure> {
    let found: Vec<JobRow> = list(client, &format!("/v1/jobs/{}", escape(job)))?;
    let limit = found
        .first()
        .and_then(|job| job.time_limit_secs)
        .filter(|secs| *secs != u32::MAX);
    let Some(secs) = limit else {
        return Err(Failure::new(format_args!(
            "job {job} has no time limit that could change by so much. Write the new one: TimeLimit=4:00:00"
        )));
    };
    match i64::from(secs) + step {
        new if new > 0 => Ok(new.into()),
        _ => Err(Failure::new(format_args!(
            "job {job} has a time limit of {}: that much less leaves nothing",
            squeue_time(secs.into())
        ))),
    }
}

/// A change as the API takes it.
fn read_change(word: &str, text: &str) -> Result<(&'static str, Value), Failure> {
    let Some(known) = JobKey::of_word(word) else {
        let words = KEYS.iter().flat_map(|key| key.words);
        let words: Vec<String> = words.map(|word| word.to_ascii_lowercase()).collect();
        let hint = did_you_mean(&word.to_ascii_lowercase(), words.iter().map(String::as_str));
        return Err(Failure::usage(format_args!(
            "{word}= of a job cannot be changed.{hint} gadm job update --help lists what can"
        )));
    };
    let wrong = |what: &str| Failure::usage(format_args!("{word}={text}: {what}"));
    let at = |read: fn(&str, Timestamp) -> Result<Timestamp, String>| {
        let at = read(text, local_time::now())
            .map_err(|why| Failure::usage(format_args!("{word}: {why}")))?;
        serde_json::to_value(Instant(at)).map_err(Failure::new)
    };
    let value = match known.form {
        KeyForm::OptionalText
        | KeyForm::OptionalCount
        | KeyForm::OptionalEnd
        | KeyForm::OptionalSeconds
            if is_none(text) =>
        {
            Value::Null
        }
        // What is asked for is taken away with an empty value, as scontrol has it.
        KeyForm::RequestPart if text == "(null)" || text.eq_ignore_ascii_case("none") => {
            Value::Null
        }
        KeyForm::Text | KeyForm::OptionalText | KeyForm::RequestPart => text.into(),
        KeyForm::Limit | KeyForm::OptionalSeconds => time_limit(word, text)?,
        KeyForm::Count | KeyForm::OptionalCount => {
            let count = text.parse::<u32>().map(Value::from);
            count.map_err(|_| wrong("it is not a whole number, not negative"))?
        }
        KeyForm::Number => {
            let number = text.parse::<i32>().map(Value::from);
            number.map_err(|_| wrong("it is not a whole number"))?
        }
        KeyForm::Flag => match text.to_ascii_lowercase().as_str() {
            "1" | "yes" | "true" => true.into(),
            "0" | "no" | "false" => false.into(),
            _ => return Err(wrong("it is neither yes nor no")),
        },
        KeyForm::Begin => at(local_time::read)?,
        KeyForm::OptionalEnd => at(local_time::read_end)?,
    };
    Ok((known.key, value))
}

/// The keys that can change, for `--help`.
fn update_help() -> String {
    let words = |of: &dyn Fn(&JobKey) -> bool| {
        let keys = KEYS.iter().filter(|key| of(key));
        let words = keys.map(|key| match (key.key, key.right) {
            ("time_limit_secs", _) => "TimeLimit= (also +=, -=)".to_owned(),
            ("priority", _) => "Priority= (operators; none computes it again; 0 holds)".to_owned(),
            (_, ChangeRight::Operator) => format!("{}= (operators)", key.words[0]),
            _ => format!("{}=", key.words[0]),
        });
        words.collect::<Vec<_>>().join(", ")
    };
    format!(
        "Change a job: {}; of a waiting job also {}",
        words(&|key| key.form != KeyForm::RequestPart),
        words(&|key| key.form == KeyForm::RequestPart)
    )
}

/// How scontrol's users take something away: `Dependency=`, `Priority=-1`.
fn is_none(value: &str) -> bool {
    value.is_empty() || value == "-1" || value.eq_ignore_ascii_case("none") || value == "(null)"
}

/// Seconds, or null for UNLIMITED.
fn time_limit(key: &str, text: &str) -> Result<Value, Failure> {
    let limit =
        TimeLimit::parse(text).map_err(|error| Failure::usage(format_args!("{key}: {error}")))?;
    Ok(limit.secs().map_or(Value::Null, Value::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_may_change_by_so_much() {
        assert_eq!(limit_step("TimeLimit", "+30").unwrap(), Some(1800));
        assert_eq!(limit_step("TimeLimit+", "1:00:00").unwrap(), Some(3600));
        assert_eq!(limit_step("timelimit-", "10").unwrap(), Some(-600));
        assert_eq!(limit_step("TimeLimit", "-10").unwrap(), Some(-600));
        assert_eq!(
            limit_step("TimeLimit", "-1").unwrap(),
            None,
            "that is UNLIMITED"
        );
        assert_eq!(
            (
                limit_step("TimeLimit", "30").unwrap(),
                limit_step("Nice", "-10").unwrap()
            ),
            (None, None)
        );
        assert!(
            limit_step("TimeLimit", "+UNLIMITED")
                .unwrap_err()
                .text
                .contains("is no step")
        );
    }

    #[test]
    fn keys_of_scontrol_become_those_of_the_api() {
        assert_eq!(
            read_change("TimeLimit", "2:00:00").unwrap(),
            ("time_limit_secs", Value::from(7200))
        );
        assert_eq!(
            read_change("timelimit", "UNLIMITED").unwrap(),
            ("time_limit_secs", Value::Null)
        );
        assert_eq!(
            read_change("IdleExempt", "yes").unwrap(),
            ("idle_exempt", Value::from(true))
        );
        assert_eq!(
            read_change("Requeue", "0").unwrap(),
            ("requeue", Value::from(false))
        );
        assert_eq!(
            read_change("StartTime", "2027-01-09T06:00").unwrap().0,
            "begin"
        );
        assert_eq!(
            read_change("EligibleTime", "2027-01-09T06:00").unwrap().0,
            "begin"
        );
        let refused = read_change("TimeLimt", "1").unwrap_err();
        assert!(
            refused.exit == 2 && refused.text.contains(r#"Did you mean "timelimit"?"#),
            "{}",
            refused.text
        );
        assert!(
            read_change("TimeLimit", "junk")
                .unwrap_err()
                .text
                .starts_with("TimeLimit: time limit \"junk\"")
        );
        assert!(read_change("nice", "x").is_err());
        assert!(
            read_change("Deadline", "8")
                .unwrap_err()
                .text
                .starts_with("Deadline: time \"8\"")
        );
        assert_eq!(
            read_change("Dependency", "afterok:17").unwrap(),
            ("dependency", Value::from("afterok:17"))
        );
        assert_eq!(
            read_change("Priority", "-1").unwrap(),
            ("priority", Value::Null)
        );
        assert_eq!(
            read_change("Licenses", "none").unwrap(),
            ("licences", Value::Null)
        );
        assert_eq!(
            read_change("TimeMin", "10").unwrap(),
            ("time_min_secs", Value::from(600))
        );
        assert_eq!(
            read_change("NumNodes", "2-4").unwrap(),
            ("nodes", Value::from("2-4"))
        );
        assert_eq!(
            read_change("TresPerNode", "gres:gpu:h100:2").unwrap(),
            ("gpus_per_node", Value::from("gres:gpu:h100:2"))
        );
        assert_eq!(
            read_change("ReqNodeList", "(null)").unwrap(),
            ("nodelist", Value::Null)
        );
        assert_eq!(
            read_change("Partition", "a,b").unwrap(),
            ("partition", Value::from("a,b"))
        );
    }
}
