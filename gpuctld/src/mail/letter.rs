//! What a letter says of a job: its subject and text, in plain words. Pure: facts come in, text goes out.

use gmodel::duration::squeue_time;
use gmodel::mail::MailEvent;
use gmodel::{ExitCode, JobState, Timestamp};
use gwire::api::RunRow;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Characters of a text by a user in a subject.
const MAX_NAME_CHARS: usize = 80;

/// Addresses, and what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    pub to: Vec<String>,
    pub subject: String,
    pub body: String,
}

/// What happened to a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Occasion {
    Began {
        attempt: u32,
    },
    Ended {
        state: JobState,
        /// It goes back to the queue.
        requeued: bool,
        text: String,
    },
    /// While it waited.
    Cancelled {
        by: String,
        text: String,
        never_met: bool,
    },
    /// A job that was over waits again.
    Requeued {
        by: String,
    },
    LimitNear(MailEvent),
    /// All tasks of an array are over: how many in each state.
    ArrayEnded(BTreeMap<String, u64>),
}

impl Occasion {
    /// Whether a user with this choice gets a letter.
    pub fn is_wanted(&self, wanted: &std::collections::BTreeSet<MailEvent>) -> bool {
        let any = |events: &[MailEvent]| events.iter().any(|event| wanted.contains(event));
        match self {
            Self::Began { .. } => any(&[MailEvent::Begin]),
            Self::Ended { requeued: true, .. } | Self::Requeued { .. } => {
                any(&[MailEvent::Requeue])
            }
            Self::Ended { state, .. } => {
                any(&[MailEvent::End])
                    || (!is_well(*state) && any(&[MailEvent::Fail]))
                    || (*state == JobState::Timeout && any(&[MailEvent::TimeLimit]))
            }
            Self::Cancelled { never_met, .. } => {
                any(&[MailEvent::End]) || (*never_met && any(&[MailEvent::InvalidDepend]))
            }
            Self::LimitNear(event) => wanted.contains(event),
            Self::ArrayEnded(states) => {
                let failed = states
                    .keys()
                    .any(|state| !["COMPLETED", "CANCELLED"].contains(&&**state));
                any(&[MailEvent::End]) || (failed && any(&[MailEvent::Fail]))
            }
        }
    }

    /// Ends a sentence that begins with the job.
    fn words(&self) -> String {
        match self {
            Self::Began { attempt: 0 | 1 } => "has begun".to_owned(),
            Self::Began { attempt } => format!("has begun again (start {attempt})"),
            Self::Ended {
                state,
                requeued: true,
                ..
            } => format!("ended ({}) and waits in the queue again", state.long()),
            Self::Ended { state, .. } => format!("has ended: {}", state.long()),
            Self::Cancelled {
                never_met: true, ..
            } => "was cancelled: its dependency can never be met".to_owned(),
            Self::Cancelled { by, .. } if by.is_empty() => "was cancelled".to_owned(),
            Self::Cancelled { by, .. } => format!("was cancelled by {by}"),
            Self::Requeued { by } => format!("was put back into the queue by {by}"),
            Self::LimitNear(event) => format!(
                "has used {} % of its time limit",
                event.percent().unwrap_or(100)
            ),
            Self::ArrayEnded(states) => {
                let parts: Vec<String> = states
                    .iter()
                    .map(|(state, tasks)| format!("{tasks} {state}"))
                    .collect();
                format!("has ended: {}", parts.join(", "))
            }
        }
    }
}

fn is_well(state: JobState) -> bool {
    matches!(state, JobState::Completed | JobState::Cancelled)
}

/// One line of text, bounded: what a user wrote makes no header of its own.
fn plain(text: &str) -> String {
    let one_line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    one_line.take(MAX_NAME_CHARS).collect()
}

/// `shown_id`: 17, 98_5 of a task, 98 of an array. `row`: accounting of the job's last run; `None` where it never ran.
pub fn letter(
    cluster: &str,
    shown_id: &str,
    name: &str,
    occasion: &Occasion,
    row: Option<&RunRow>,
    show_time: impl Fn(Timestamp) -> String,
) -> (String, String) {
    let name = plain(name);
    let words = occasion.words();
    let has_ended = matches!(occasion, Occasion::Ended { .. });
    let exit = row
        .filter(|_| has_ended)
        .map(|row| exit_words(row.exit_code))
        .unwrap_or_default();
    let subject = format!("[{cluster}] job {shown_id} {name} {words}{exit}");
    let mut body = format!("Job {shown_id} ({name}) on cluster {cluster} {words}{exit}.\n");
    let reason = match occasion {
        Occasion::Ended { text, .. } | Occasion::Cancelled { text, .. } => text.as_str(),
        _ => "",
    };
    if !reason.is_empty() {
        let _ = writeln!(body, "Reason: {}", plain(reason));
    }
    body.push('\n');
    if let Some(row) = row {
        facts(&mut body, row, has_ended, &show_time);
    }
    let _ = writeln!(body, "What happened:  gq --log {shown_id}");
    if !matches!(
        occasion,
        Occasion::ArrayEnded(_) | Occasion::Cancelled { .. }
    ) {
        let _ = writeln!(body, "Its output:     gq --output {shown_id}");
    }
    if matches!(occasion, Occasion::Ended { .. } | Occasion::ArrayEnded(_)) {
        let _ = writeln!(body, "What it used:   gacct efficiency -j {shown_id}");
    }
    (subject, body)
}

/// Nothing of a job that ended with 0.
pub(super) fn exit_words(exit: ExitCode) -> String {
    match (exit.signal, exit.code) {
        (0, 0) => String::new(),
        (0, code) => format!(", exit code {code}"),
        (signal, _) => format!(", signal {signal}"),
    }
}

fn facts(
    body: &mut String,
    row: &RunRow,
    has_ended: bool,
    show_time: &impl Fn(Timestamp) -> String,
) {
    let mut line = |what: &str, text: String| {
        if !text.is_empty() {
            let _ = writeln!(body, "  {what:<10} {text}");
        }
    };
    line("account", row.account.clone());
    line("partition", row.partition.clone());
    line("nodes", row.nodelist.clone());
    line("GPUs", row.gpus.clone());
    let time = |at: Option<gmodel::Instant>| at.map(|at| show_time(at.0)).unwrap_or_default();
    line("submitted", time(row.submit_time));
    line("started", time(row.start_time));
    if !has_ended {
        // Its record may be of later by now.
        body.push('\n');
        return;
    }
    line("ended", time(row.end_time));
    let ran = squeue_time(row.elapsed_secs.max(0).cast_unsigned());
    let limit = row.time_limit_secs.map(|secs| squeue_time(secs.into()));
    line(
        "ran",
        limit.map_or(ran.clone(), |limit| format!("{ran} of {limit}")),
    );
    let percent = |part: Option<f64>| part.map(|part| format!("{part:.0} %")).unwrap_or_default();
    line("CPUs busy", percent(row.cpu_percent));
    line("memory", percent(row.mem_percent));
    line(
        "GPUs busy",
        percent(row.gpu_use.as_ref().and_then(|used| used.busy_percent)),
    );
    body.push('\n');
}
