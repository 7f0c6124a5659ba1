//! An allocation from its client's side: asked for, waited for, attended while it is used, ended. Source: srun(1), salloc(1).
//!
//! A thread of its own tells the controller that the client is there, for as long as the process lives. What runs in the
//! allocation is the caller's.

pub(crate) mod ask;
pub(crate) mod words;

use crate::signal_wait::signal_within;
use gcli::local_time::{self, TimeFormat};
use gcli::{Failure, Outcome};
use gmodel::{ExitCode, JobId, JobState, ReasonCode};
use gwire::api::{
    AllocationEndRequest, AllocationStanding, AttendReply, AttendRequest, ChangeReply, SubmitReply,
    SubmitRequest,
};
use gwire::client::{Client, ClientError};
use nix::sys::signal::SigSet;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// How long a question of the client may wait for news, seconds.
const ATTEND_SECS: u32 = 10;
/// A controller that is away for less than this ends no allocation by that.
const ATTEND_PATIENCE: Duration = Duration::from_secs(7 * 86_400);
/// Time that the controller has to take note of the end.
const END_PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks for a signal.
const LOOK: Duration = Duration::from_millis(50);
/// A job that waits for less is not said to wait.
const UNSAID_WAIT: Duration = Duration::from_secs(1);
/// `--immediate` without a number.
const IMMEDIATE_SECS: u64 = 1;
/// Between two forecasts of the start.
const FORECAST_EVERY: Duration = Duration::from_secs(30);

/// `--immediate`, as a clap option.
pub(crate) fn immediate() -> clap::Arg {
    clap::Arg::new("immediate")
        .long("immediate")
        .short('I')
        .value_name("SECONDS")
        .num_args(0..=1)
        .require_equals(true)
}

/// Takes `--immediate[=secs]` and `-I[secs]` out of a command's own options.
///
/// # Errors
/// What is no number of seconds.
pub(crate) fn take_immediate(own: Vec<String>) -> Result<(Option<Duration>, Vec<String>), Failure> {
    let (given, rest): (Vec<String>, Vec<String>) = own
        .into_iter()
        .partition(|word| word.starts_with("--immediate") || word.starts_with("-I"));
    let Some(last) = given.last() else {
        return Ok((None, rest));
    };
    let secs = match last
        .trim_start_matches("--immediate")
        .trim_start_matches("-I")
    {
        "" => IMMEDIATE_SECS,
        text => text
            .trim_start_matches('=')
            .parse()
            .map_err(|_| Failure::usage(format_args!("{last}: seconds are a whole number")))?,
    };
    Ok((Some(Duration::from_secs(secs)), rest))
}

/// Code of the refusal of a job that is no allocation.
const NO_ALLOCATION: &str = "conflict";

/// How the client speaks, and how long it waits.
pub(crate) struct WaitRules {
    /// As messages begin.
    pub name: &'static str,
    pub quiet: bool,
    /// Gives up then.
    pub immediate: Option<Duration>,
    /// salloc says that it has asked, and that it was granted.
    pub as_salloc: bool,
}

/// An allocation that was granted.
pub(crate) struct Allocation {
    pub id: JobId,
    /// What describes the job, as its tasks see it.
    pub variables: BTreeMap<String, String>,
    /// Its partition wants a shell on the first node.
    pub interactive_step: bool,
    pub news: Receiver<News>,
    name: &'static str,
}

/// What comes up while an allocation waits or is used.
pub(crate) enum News {
    Standing(Box<AttendReply>),
    /// The controller knows of no such allocation.
    Refused(String),
    /// The command of salloc has ended.
    Ended(u8),
}

impl Allocation {
    /// Submits the job and waits until its nodes take steps. `signals` are blocked; one of them cancels the job.
    ///
    /// # Errors
    /// The controller's refusal; the job's end; the signal, as an exit code.
    pub(crate) fn obtain(
        client: &mut Client,
        request: &SubmitRequest,
        rules: &WaitRules,
        signals: &SigSet,
    ) -> Result<(Self, Sender<News>), Failure> {
        let submitted: SubmitReply = client.post_repeatable("/v1/jobs", request)?;
        for note in submitted.notes.iter().filter(|_| !rules.quiet) {
            eprintln!("{}: {note}", rules.name);
        }
        let (sender, news) = mpsc::channel();
        let mut wait = PendingAllocation {
            id: submitted.id,
            rules,
            line: StatusLine::new(rules),
            began: Instant::now(),
        };
        attend(submitted.id, rules.name, wait.line.is_live, sender.clone());
        match wait.until_granted(&news, signals) {
            Ok(told) => Ok((
                Self {
                    id: submitted.id,
                    variables: variables(&told.environment),
                    interactive_step: told.interactive_step,
                    news,
                    name: rules.name,
                },
                sender,
            )),
            Err(failure) => {
                wait.line.clear();
                let _ = end(client, submitted.id, ExitCode::exited(1));
                Err(failure)
            }
        }
    }

    /// The allocation of a job that runs already, whose client comes back; `None` where the job has a script, or another client.
    ///
    /// # Errors
    /// The controller's refusal.
    pub(crate) fn resume(
        client: &mut Client,
        id: JobId,
        name: &'static str,
    ) -> Result<Option<Self>, Failure> {
        let path = format!("/v1/jobs/{id}/attend");
        let told = client.post_repeatable::<_, AttendReply>(&path, &AttendRequest::default());
        match told {
            Ok(told) if told.others == 0 => {}
            Ok(_) => return Ok(None),
            Err(ClientError::Refused { code, .. }) if code == NO_ALLOCATION => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let (sender, news) = mpsc::channel();
        attend(id, name, false, sender);
        Ok(Some(Self {
            id,
            variables: BTreeMap::new(),
            interactive_step: false,
            news,
            name,
        }))
    }

    /// Ends it with this exit code. What stands against it is said: the controller ends it then, when it misses the client.
    pub(crate) fn end(self, code: u8) {
        let ended = gcli::connect(self.name).and_then(|client| {
            Ok(end(
                &mut client.wait_for(END_PATIENCE),
                self.id,
                exit_code(code),
            )?)
        });
        if let Err(failure) = ended {
            eprintln!(
                "{}: error: job {} is not ended: {}. The controller ends it when it has missed this command for a while",
                self.name, self.id, failure.text
            );
        }
    }

    /// What a step in it came to, with why it is over where that ended the step.
    pub(crate) fn explained(&self, outcome: Outcome) -> Outcome {
        match (outcome, self.revoked()) {
            (Ok(code), Some(why)) => {
                eprintln!("{}: error: job {}: {why}", self.name, self.id);
                Ok(code)
            }
            (Err(failure), why) => Err(match why.or_else(|| self.ask_why_over()) {
                Some(why) => Failure::new(format_args!("job {}: {why}", self.id)),
                None => failure,
            }),
            (outcome, None) => outcome,
        }
    }

    /// As the controller has it now: a step may be refused before the news comes.
    fn ask_why_over(&self) -> Option<String> {
        let path = format!("/v1/jobs/{}/attend", self.id);
        let mut client = gcli::connect(self.name).ok()?.wait_for(END_PATIENCE);
        let told = client.post_repeatable::<_, AttendReply>(&path, &AttendRequest::default());
        revoked(&told.ok()?)
    }

    /// Why it is over or ends, as far as is known by now.
    pub(crate) fn revoked(&self) -> Option<String> {
        self.news
            .try_iter()
            .filter_map(|news| match news {
                News::Standing(told) => revoked(&told),
                News::Refused(text) => Some(text),
                News::Ended(_) => None,
            })
            .last()
    }
}

/// Why an allocation that had been granted is none any more.
pub(crate) fn revoked(told: &AttendReply) -> Option<String> {
    if told.standing.granted {
        return None;
    }
    let state = told.standing.state;
    Some(match told.end_text.is_empty() {
        true => state.to_string(),
        false => format!("{state}: {}", told.end_text),
    })
}

/// As a shell has it, back to what the job ended with.
fn exit_code(code: u8) -> ExitCode {
    match code.checked_sub(128) {
        Some(signal @ 1..=gmodel::signal::MAX_SIGNAL) => ExitCode::killed(signal),
        _ => ExitCode::exited(code),
    }
}

fn end(client: &mut Client, id: JobId, exit_code: ExitCode) -> Result<(), ClientError> {
    let path = format!("/v1/jobs/{id}/end");
    client.post_repeatable::<_, ChangeReply>(&path, &AllocationEndRequest { exit_code })?;
    Ok(())
}

/// Tells the controller that we are there, and the caller what is new, until the job is over.
fn attend(id: JobId, name: &'static str, forecasts: bool, sender: Sender<News>) {
    std::thread::spawn(move || {
        let mut client = match gcli::connect(name) {
            Ok(client) => client.wait_for(ATTEND_PATIENCE),
            Err(failure) => return drop(sender.send(News::Refused(failure.text))),
        };
        let path = format!("/v1/jobs/{id}/attend");
        let mut known: Option<AllocationStanding> = None;
        let mut foretold: Option<Instant> = None;
        loop {
            let is_pending = known.is_some_and(|known| known.state == JobState::Pending);
            let is_due = foretold.is_none_or(|at| at.elapsed() >= FORECAST_EVERY);
            let forecast = forecasts && is_pending && is_due;
            let request = AttendRequest {
                known: known.filter(|_| !forecast),
                wait_secs: ATTEND_SECS,
                forecast,
            };
            if forecast {
                foretold = Some(Instant::now());
            }
            let news = match client.post_repeatable::<_, AttendReply>(&path, &request) {
                Ok(told) => {
                    known = Some(told.standing);
                    News::Standing(Box::new(told))
                }
                Err(error) => News::Refused(error.to_string()),
            };
            let is_last = match &news {
                News::Standing(told) => told.standing.state.is_final(),
                _ => true,
            };
            if sender.send(news).is_err() || is_last {
                return;
            }
        }
    });
}

/// The time between the submission and the grant.
struct PendingAllocation<'r> {
    id: JobId,
    rules: &'r WaitRules,
    line: StatusLine,
    began: Instant,
}

impl PendingAllocation<'_> {
    fn until_granted(
        &mut self,
        news: &Receiver<News>,
        signals: &SigSet,
    ) -> Result<Box<AttendReply>, Failure> {
        let id = self.id;
        let mut waits: Option<Box<AttendReply>> = None;
        loop {
            match news.recv_timeout(LOOK) {
                Ok(News::Standing(told)) if told.standing.granted => {
                    self.granted();
                    return Ok(told);
                }
                Ok(News::Standing(told)) if told.standing.state.is_final() => {
                    let why = revoked(&told).unwrap_or_default();
                    return Err(Failure::new(format_args!(
                        "job {id} is over before it started: {why}"
                    )));
                }
                Ok(News::Standing(told)) => waits = Some(told),
                Ok(News::Refused(text)) => return Err(Failure::new(text)),
                Ok(News::Ended(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new(format_args!("job {id} is lost from sight")));
                }
            }
            let waited = self.began.elapsed();
            if self.rules.immediate.is_some_and(|most| waited >= most) {
                return Err(Failure::new(
                    "Unable to allocate resources: Requested nodes are busy",
                ));
            }
            if let Some(told) = &waits {
                let is_reason = told.standing.reason != ReasonCode::None;
                if told.standing.state == JobState::Pending && (is_reason || waited >= UNSAID_WAIT)
                {
                    self.line.show(id, told);
                }
            }
            if let Some(signal) = signal_within(signals, Duration::ZERO) {
                return Err(self.interrupted(signal));
            }
        }
    }

    fn interrupted(&mut self, signal: u8) -> Failure {
        let (id, name) = (self.id, self.rules.name);
        self.line.clear();
        if !self.rules.quiet {
            eprintln!("{name}: Job allocation {id} has been revoked");
            if !self.rules.as_salloc {
                eprintln!("{name}: Force Terminated job {id}");
            }
        }
        Failure::silent(128 + signal)
    }

    fn granted(&mut self) {
        let (id, name) = (self.id, self.rules.name);
        self.line.clear();
        if self.line.was_said && !self.line.is_live {
            eprintln!("{name}: job {id} has been allocated resources");
        }
        if self.rules.as_salloc && !self.rules.quiet {
            eprintln!("{name}: Granted job allocation {id}");
        }
    }
}

/// `NAME=value` by name.
fn variables(environment: &[String]) -> BTreeMap<String, String> {
    environment
        .iter()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// What is said of a job that waits: one line that is kept up to date on a terminal, else srun's lines.
struct StatusLine {
    name: &'static str,
    quiet: bool,
    as_salloc: bool,
    is_live: bool,
    was_said: bool,
    shown: String,
    start: Option<gmodel::Instant>,
}

impl StatusLine {
    fn new(rules: &WaitRules) -> Self {
        let slurms = gcli::slurm_name::is_one(Some(rules.name));
        Self {
            name: rules.name,
            quiet: rules.quiet,
            as_salloc: rules.as_salloc,
            is_live: !rules.quiet && !slurms && std::io::stderr().is_terminal(),
            was_said: false,
            shown: String::new(),
            start: None,
        }
    }

    fn show(&mut self, id: JobId, told: &AttendReply) {
        if self.quiet {
            return;
        }
        let name = self.name;
        if !self.is_live {
            if !std::mem::replace(&mut self.was_said, true) {
                if self.as_salloc {
                    eprintln!("{name}: Pending job allocation {id}");
                }
                eprintln!("{name}: job {id} queued and waiting for resources");
            }
            return;
        }
        self.start = told.expected_start.or(self.start);
        let start = self.start.map_or(String::new(), |at| {
            format!(", expected start {}", clock(at.0))
        });
        let text = format!("{name}: job {id} queued: {}{start}", told.standing.reason);
        if text != self.shown {
            eprint!("\r\x1b[K{text}");
            self.shown = text;
        }
    }

    /// Leaves no line behind.
    fn clear(&mut self) {
        if !std::mem::take(&mut self.shown).is_empty() {
            eprint!("\r\x1b[K");
        }
    }
}

/// `14:05` today, else with its date.
fn clock(at: gmodel::Timestamp) -> String {
    let format = TimeFormat::from_env();
    let (text, today) = (format.print(at), format.print(local_time::now()));
    match (text.split_once('T'), today.split_once('T')) {
        (Some((day, time)), Some((today, _))) if day == today && time.len() >= 5 => {
            time[..5].to_owned()
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_by_a_signal_is_the_jobs_too() {
        assert_eq!(
            [0, 3, 143, 255].map(exit_code),
            [
                ExitCode::SUCCESS,
                ExitCode::exited(3),
                ExitCode::killed(15),
                ExitCode::exited(255)
            ]
        );
    }

    #[test]
    fn an_allocation_is_revoked_with_its_reason() {
        let told = |granted, state, text: &str| {
            revoked(&AttendReply {
                standing: AllocationStanding {
                    state,
                    granted,
                    ..AllocationStanding::default()
                },
                end_text: text.to_owned(),
                ..AttendReply::default()
            })
        };
        assert_eq!(told(true, JobState::Running, ""), None);
        assert_eq!(
            told(false, JobState::Timeout, "").as_deref(),
            Some("TIMEOUT")
        );
        assert_eq!(
            told(false, JobState::Cancelled, "its client is gone").as_deref(),
            Some("CANCELLED: its client is gone")
        );
    }
}
