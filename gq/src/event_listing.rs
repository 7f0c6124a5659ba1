//! `gq events`: what happened, a line for each event, once or as it comes. A connection that is lost is made again from the last event.
//! Source: `kubectl get events -w`.

use gcli::local_time::{self, TimeFormat};
use gcli::printable::printable;
use gcli::table::stdout;
use gcli::{Failure, Outcome};
use gmodel::Timestamp;
use gwire::api::{EventKind, EventQuery, EventRow, MAX_EVENTS};
use gwire::client::{Client, ClientError, path_with_query};
use std::io::{BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

/// A line of an answer.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Without `--since` and `--after`.
const USUAL_SECS: i64 = 3_600;
/// How long a controller that is gone is waited for while events are followed.
const PATIENCE: Duration = Duration::from_secs(300);
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Which events are wanted, and in which form.
#[derive(clap::Args)]
pub(crate) struct EventListing {
    /// Go on with what happens from now on
    #[arg(short, long, short_alias = 'w', alias = "watch")]
    follow: bool,
    /// After this event, by its id; 0: from the oldest
    #[arg(long, value_name = "ID", conflicts_with = "since")]
    after: Option<String>,
    /// From this time, as now-2hours or 09:00; without it the last hour
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// These kinds only, or families of them: job_ended,node
    #[arg(short, long, value_name = "KINDS", alias = "kinds")]
    kind: Vec<String>,
    /// Events of this job only: 17, 98 (an array with its tasks), 98_5
    #[arg(short, long, value_name = "JOB")]
    job: Option<String>,
    /// Events of jobs of these accounts only
    #[arg(short = 'A', long, value_name = "ACCOUNTS")]
    account: Vec<String>,
    /// A line of JSON for each event, as the controller writes it
    #[arg(long)]
    json: bool,
}

impl EventListing {
    fn query(&self) -> Result<EventQuery, Failure> {
        let now = local_time::now();
        let since = local_time::past_option("since", self.since.as_deref(), now)?;
        let usual = gmodel::Instant(now.plus_secs(-USUAL_SECS));
        // Who follows wants what comes, unless a place is named.
        let says_where = self.after.is_some() || since.is_some() || self.follow;
        Ok(EventQuery {
            after: self.after.clone(),
            since: since.or((!says_where).then_some(usual)),
            kinds: self.kind.join(","),
            account: self.account.join(","),
            job: self.job.clone().unwrap_or_default(),
            follow: self.follow,
            limit: (!self.follow).then_some(MAX_EVENTS),
        })
    }
}

pub(crate) fn print(client: &mut Client, listing: &EventListing) -> Outcome {
    let mut query = listing.query()?;
    let mut out = stdout()?;
    let times = TimeFormat::from_env();
    let mut heard = Instant::now();
    loop {
        let mut is_full = false;
        let answer = client.open(&path_with_query("/v1/events", &query));
        let lines = answer.map(BufReader::new).map_err(EventError::from);
        let read = lines.and_then(|mut lines| {
            while let Some((line, row)) = next(&mut lines)? {
                heard = Instant::now();
                (query.after, query.since) = (Some(row.id.clone()), None);
                if row.kind == EventKind::Cursor.name() {
                    is_full = row.more;
                } else if listing.json {
                    out.write_all(line.as_bytes())?;
                } else {
                    writeln!(out, "{}", line_of(&row, &times))?;
                }
                // What comes alone is seen at once.
                if lines.buffer().is_empty() {
                    out.flush()?;
                }
            }
            Ok(())
        });
        out.flush()?;
        match read {
            Ok(()) if listing.follow => std::thread::sleep(RETRY_PAUSE),
            Ok(()) if is_full => {}
            Ok(()) => return Ok(0),
            Err(EventError::Lost(_)) if listing.follow && heard.elapsed() < PATIENCE => {
                std::thread::sleep(RETRY_PAUSE);
            }
            Err(EventError::Lost(text)) => return Err(Failure::new(printable(&text))),
            Err(EventError::Failed(failure)) => return Err(failure),
        }
    }
}

enum EventError {
    /// The connection: another one may do better.
    Lost(String),
    Failed(Failure),
}

impl From<ClientError> for EventError {
    fn from(error: ClientError) -> Self {
        match error.is_unreachable() {
            true => Self::Lost(error.to_string()),
            false => Self::Failed(error.into()),
        }
    }
}

impl From<std::io::Error> for EventError {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// The next line, with its event; None at the end of the answer.
fn next(lines: &mut impl BufRead) -> Result<Option<(String, EventRow)>, EventError> {
    let mut line = String::new();
    let lost = |text: String| EventError::Lost(text);
    let read = lines.take(MAX_LINE_BYTES).read_line(&mut line);
    let count = read.map_err(|error| lost(format!("the connection was lost: {error}")))?;
    if count == 0 {
        return Ok(None);
    }
    let row = serde_json::from_str(&line)
        .map_err(|error| lost(format!("an event cannot be read: {error}")))?;
    Ok(Some((line, row)))
}

/// `2026-11-20T09:05:27  job_ended      job 17 train (ada)   COMPLETED`.
fn line_of(row: &EventRow, times: &TimeFormat) -> String {
    let at: Timestamp = row.time.0;
    let line = format!(
        "{}  {:<16} {:<32} {}",
        times.print(at),
        row.kind,
        row.subject(),
        row.message()
    );
    printable(line.trim_end()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::{ExitCode, JobState};
    use gwire::api::{EventJob, EventRun};

    #[test]
    fn an_event_is_a_line_that_moves_no_cursor() {
        let mut row = EventRow {
            kind: "job_ended".to_owned(),
            job: EventJob {
                shown_id: "98_5".to_owned(),
                name: "train\x1b[2J".to_owned(),
                user: "ada".to_owned(),
                ..EventJob::default()
            },
            run: EventRun {
                state: Some(JobState::Failed),
                exit_code: Some(ExitCode::exited(7)),
                ..EventRun::default()
            },
            text: "no space".to_owned(),
            ..EventRow::default()
        };
        let line = line_of(&row, &TimeFormat::Standard);
        assert!(
            line.ends_with(
                "job_ended        job 98_5 train?[2J (ada)         FAILED 7:0: no space"
            ),
            "{line}"
        );
        row = EventRow {
            kind: "job_started".to_owned(),
            run: EventRun {
                nodelist: "n[1-2]".to_owned(),
                gpus: Some(1.5),
                ..EventRun::default()
            },
            ..EventRow::default()
        };
        assert_eq!(row.message(), "on n[1-2], 1.5 GPUs");
        row = EventRow {
            gpu: "GPU-1".to_owned(),
            node: "n1".to_owned(),
            ..EventRow::default()
        };
        assert_eq!(row.subject(), "GPU-1 of n1");
    }
}
