//! `gdel`: cancel jobs, or send them a signal. Source: scancel(1).
//!
//! Says which jobs are meant; the controller decides what may be done to each and answers for each.

use crate::job_filter::{self, JobFilter};
use clap::{CommandFactory, FromArgMatches, Parser};
use gcli::answer::list;
use gcli::failure::note;
use gcli::pages::ManPage;
use gcli::slurm_words::Cause;
use gcli::table::stdout;
use gcli::{ClusterChoice, Failure, Outcome, command_line, slurm_name};
use gmodel::signal::{parse_signal, signal_word};
use gmodel::{JobState, RefusalKind};
use gwire::api::{CancelRequest, EachResult, JobQuery, JobRow, OneResult};
use gwire::client::{Client, path_with_query};
use std::ffi::OsString;
use std::io::{BufRead, Write};

/// As `-s` and the API have it.
const SIGKILL: u8 = 9;

const EXAMPLES: &str = "\
Examples:
  gdel 17 98_5          two jobs
  gdel 98_[1-3]         three tasks of an array
  gdel 17.0             the first step of a job; the job goes on
  gdel --me -t PD       all that you have waiting
  gdel -s USR1 17       send a signal to what a job's script has started
  gdel -b -s USR1 17    send it to the script's own shell only, as for a trap
  gdel -f -s USR1 17    send it to both";

/// Options of scancel that gdel does not have.
const ADVICE: &command_line::Advice = &[
    (
        &["-c", "--ctld"],
        "the controller sends all signals; leave it out",
    ),
    (
        &["-H", "--hurry"],
        "nothing is staged out: jobs end at once",
    ),
    (&["--cron"], "there are no cron jobs here"),
];

#[derive(Parser)]
#[command(name = "gdel", version, about = "Cancel jobs, or send them a signal", after_help = EXAMPLES)]
struct CancelArgs {
    /// Jobs: 17, 98 (an array), 98_5, 98_[1-3]; steps of running jobs: 17.0
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,
    #[command(flatten)]
    filter: JobFilter,
    #[command(flatten)]
    cluster: ClusterChoice,
    /// Send running jobs this signal instead. Their script's shell is spared unless it is alone, or the signal is KILL
    #[arg(short, long, value_name = "SIGNAL", value_parser = |text: &str| parse_signal(text).map_err(|error| error.to_string()))]
    signal: Option<u8>,
    /// The signal is for the script's shell only
    #[arg(short, long)]
    batch: bool,
    /// The signal is for the script's shell too, and all that it started. Without a signal the whole job is ended anyway
    #[arg(short, long, conflicts_with = "batch")]
    full: bool,
    /// Ask before each job
    #[arg(short, long)]
    interactive: bool,
    /// Say nothing of jobs that are not in the queue, and do not fail for them
    #[arg(short = 'Q', long, conflicts_with = "verbose")]
    quiet: bool,
    /// Say what is done
    #[arg(short, long)]
    verbose: bool,
    /// Print the outcome for each job as one line of JSON
    #[arg(long)]
    json: bool,
}

/// The command line as clap knows it.
fn command() -> clap::Command {
    command_line::talking(CancelArgs::command())
}

/// The man page.
pub fn page() -> ManPage {
    ManPage {
        command: command(),
        section: "1",
        exit_status: "1 also when one of several jobs was refused; the others are cancelled.",
        see_also: "gsub(1), gq(1), gpupool(7)",
    }
}

/// `gdel` itself.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Outcome {
    let words: Vec<OsString> = words.into_iter().collect();
    let as_scancel = slurm_name::is_one(words.first());
    let matches = command_line::parse_advising(command(), words, ADVICE)?;
    let mut args = CancelArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    let is_terminated = args.signal.is_none();
    if args.batch && is_terminated {
        // What scancel sends where nothing else is said.
        args.signal = Some(as_scancel.then_some(SIGKILL).ok_or_else(|| {
            Failure::usage(
                "-b sends the script's shell a signal, and none is named: gdel -b -s KILL 17",
            )
        })?);
    }
    args.check_jobs()?;
    let mut client = gcli::connect("gdel")?;
    args.cluster.check(&mut client)?;
    let mut request = args.request()?;
    if args.interactive {
        request.jobs = confirmed(&mut client, &request, as_scancel)?;
        request.filter = None;
        if request.jobs.is_empty() {
            return Ok(0);
        }
    }
    let over = match as_scancel && args.verbose && args.signal.is_none_or(|one| one == SIGKILL) {
        true => over(&mut client, &request.jobs)?,
        false => Vec::new(),
    };
    let answer: EachResult = if args.signal.is_some() {
        // A signal sent twice arrives twice.
        client.post("/v1/jobs/cancel", &request)?
    } else {
        client.post_repeatable("/v1/jobs/cancel", &request)?
    };
    let users = request
        .filter
        .as_ref()
        .map_or("", |filter| filter.user.as_str());
    if answer.results.is_empty()
        && let Some(user) = job_filter::unknown_user(users)
    {
        return Err(Failure::new(format_args!(
            "no job of {user:?} is here, and there is no user of that name on this machine"
        )));
    }
    if answer.results.is_empty() && args.verbose && as_scancel {
        let names = args.filter.named().join(" ");
        note(
            "scancel",
            format_args!("error: No active jobs match ALL job filters, including: {names}"),
        )?;
    }
    report(&answer, &args, as_scancel.then_some(is_terminated), &over)
}

/// Those of the jobs that are over: `scancel -v` says so, though all is well with it.
fn over(client: &mut Client, jobs: &[String]) -> Result<Vec<String>, Failure> {
    #[derive(serde::Deserialize)]
    struct JobEnd {
        shown_id: String,
        state: JobState,
    }
    let names = jobs.iter().flat_map(|words| words.split(','));
    let names: Vec<&str> = names.filter(|name| !name.contains('.')).collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let query = JobQuery {
        job: names.join(","),
        state: "all".to_owned(),
        ..JobQuery::default()
    };
    let rows: Vec<JobEnd> = list(client, &path_with_query("/v1/jobs", &query))?;
    let over = rows.into_iter().filter(|row| row.state.is_final());
    Ok(over.map(|row| row.shown_id).collect())
}

impl CancelArgs {
    /// Refuses a command line that names no job.
    fn check_jobs(&self) -> Result<(), Failure> {
        if self.jobs.is_empty() && self.filter.is_empty() {
            let failure = Failure::usage(
                "which jobs? Name them (gdel 17 98_5), or choose them with -u, --me, -n, -p, -t, -A, -q, -R or -w",
            );
            return Err(failure.because(Cause::Said(
                "scancel: error: No job identification provided".to_owned(),
            )));
        }
        if let Some(flag) = self.filter.blank() {
            return Err(Failure::usage(format_args!(
                "--{flag} is empty: that names no job, and is not taken for all of them"
            )));
        }
        Ok(())
    }

    /// A signal goes to jobs that run, where no state is named.
    fn request(&self) -> Result<CancelRequest, Failure> {
        let mut filter = None;
        if !self.filter.is_empty() {
            let mut query = self.filter.query()?;
            if self.signal.is_some() && query.state.is_empty() {
                "RUNNING,SUSPENDED".clone_into(&mut query.state);
            }
            filter = Some(query);
        }
        Ok(CancelRequest {
            jobs: self.jobs.clone(),
            signal: self.signal,
            batch_only: self.batch,
            full: self.full,
            filter,
        })
    }
}

/// What `scancel -v` says of each job before it is done: `Terminating batch job 17`.
fn terminating(args: &CancelArgs, job: &str, is_terminated: bool) -> String {
    let what = if args.batch {
        "batch "
    } else if args.full {
        "full "
    } else {
        ""
    };
    let named = named(job);
    match args.signal.filter(|_| !is_terminated) {
        None => format!("Terminating {what}{named}"),
        Some(signal) => format!("Signal {signal} to {what}{named}"),
    }
}

/// `job 17`, `step 17.0`
fn named(job: &str) -> String {
    match job.contains('.') {
        true => format!("step {job}"),
        false => format!("job {job}"),
    }
}

/// `as_scancel`: called so, and whether no signal was named. `over`: those that had ended before.
fn report(
    answer: &EachResult,
    args: &CancelArgs,
    as_scancel: Option<bool>,
    over: &[String],
) -> Outcome {
    // Programs cancel what may be over already, and scancel is content with that, however KILL was asked for.
    let forgives = as_scancel.is_some() && args.signal.is_none_or(|signal| signal == SIGKILL);
    let is_gone =
        |result: &OneResult| result.code == "not_found" || result.about == RefusalKind::JobOver;
    if args.json {
        let mut out = stdout()?;
        serde_json::to_writer(&mut out, answer).map_err(Failure::new)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    let mut failed = false;
    for result in &answer.results {
        if let Some(is_terminated) = as_scancel.filter(|_| args.verbose) {
            note("scancel", terminating(args, &result.job, is_terminated))?;
        }
        if result.ok {
            if over.contains(&result.job) {
                let told = OneResult {
                    error: format!("job {} is over", result.job),
                    about: RefusalKind::JobOver,
                    ..result.clone()
                };
                gcli::failure::say_of("gdel", &told)?;
            }
            if args.verbose && as_scancel.is_none() {
                match args.signal {
                    Some(signal) => note(
                        "gdel",
                        format_args!("sent {} to {}", signal_word(signal), named(&result.job)),
                    )?,
                    None => note("gdel", format_args!("cancelled {}", named(&result.job)))?,
                }
            }
        } else if !(args.quiet && result.code == "not_found") {
            let forgiven = forgives && is_gone(result);
            failed |= !forgiven;
            if args.verbose || !forgiven {
                gcli::failure::say_of("gdel", result)?;
            }
        }
    }
    if args.verbose && answer.results.is_empty() && as_scancel.is_none() {
        note("gdel", "no job matches")?;
    }
    Ok(u8::from(failed))
}

/// Asks for each job and step that is meant; the names of those that were agreed to.
fn confirmed(
    client: &mut Client,
    request: &CancelRequest,
    as_scancel: bool,
) -> Result<Vec<String>, Failure> {
    let words = request.jobs.iter().flat_map(|words| words.split(','));
    let (steps, jobs): (Vec<&str>, Vec<&str>) = words.partition(|word| word.contains('.'));
    let [job_word, step_word] = match as_scancel {
        true => ["job_id=", "step_id="],
        false => ["job ", "step "],
    };
    let of_step = |step: &&str| ((*step).to_owned(), format!("{step_word}{step}"));
    let mut asked: Vec<(String, String)> = steps.iter().map(of_step).collect();
    if !jobs.is_empty() || request.filter.is_some() {
        let named = jobs_of(client, jobs.join(","), request)?.into_iter();
        asked.extend(named.map(|(name, words)| (name, format!("{job_word}{words}"))));
    }
    let (mut agreed, mut answers) = (Vec::new(), std::io::stdin().lock().lines());
    for (name, words) in asked {
        write!(std::io::stderr(), "Cancel {words} [y/n]? ")?;
        let answer = answers
            .next()
            .transpose()
            .map_err(Failure::new)?
            .unwrap_or_default();
        if matches!(answer.trim(), "y" | "Y" | "yes") {
            agreed.push(name);
        }
    }
    Ok(agreed)
}

/// The jobs that are meant, each with its number, name and partition for a question.
fn jobs_of(
    client: &mut Client,
    job: String,
    request: &CancelRequest,
) -> Result<Vec<(String, String)>, Failure> {
    let query = JobQuery {
        job,
        columns: "id,shown_id,name,partition".to_owned(),
        ..request.filter.clone().unwrap_or_default()
    };
    let mut rows = client.rows(&path_with_query("/v1/jobs", &query))?;
    let (mut jobs, show) = (Vec::new(), gcli::printable::printable);
    while let Some(text) = rows.next_row()? {
        let job: JobRow = serde_json::from_slice(text).map_err(Failure::new)?;
        let (name, partition) = (show(&job.name), show(&job.partition));
        let words = format!("{} name={name} partition={partition}", job.shown_id);
        jobs.push((job.shown_id, words));
    }
    match jobs.is_empty() {
        true => Err(Failure::new("no job matches")),
        false => Ok(jobs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }
}
