//! `gq --output` and `gq --follow`: a job's output file, which its node reads and the controller relays. Where a connection breaks it
//! is made again from the byte that came last.

use crate::job_lookup::{job_path, jobs_named};
use gcli::printable::printable;
use gcli::table::stdout;
use gcli::{Failure, Outcome};
use gmodel::JobState;
use gmodel::output_stream::{FileIdentity, OutputFrame};
use gmodel::reason::ReasonCode;
use gwire::api::{JobRow, OutputQuery};
use gwire::client::{Client, ClientError, ControllerStream, path_with_query};
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// Pause between questions to the controller.
const ASK: Duration = Duration::from_secs(1);
/// Pause between attempts to connect.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// A running job's file that is missing for so long is spoken of.
const MISSING: Duration = Duration::from_secs(5);
/// For a connection: of a file that is followed, and of one that is only printed.
const FOLLOW_PATIENCE: Duration = Duration::from_secs(60);
const PRINT_PATIENCE: Duration = Duration::from_secs(5);
/// A lost connection is told after this.
const ANNOUNCE_AFTER: Duration = Duration::from_secs(2);

/// What of a job's output is wanted.
pub(crate) struct OutputChoice<'a> {
    pub job: &'a str,
    pub stderr: bool,
    /// Only the last lines.
    pub tail: Option<u64>,
    /// Until the job is over.
    pub follow: bool,
}

/// Prints the output of a job. The exit code is 0 whatever the job's was.
pub(crate) fn print(client: &mut Client, choice: OutputChoice<'_>) -> Outcome {
    let mut job = the_job(client, choice.job)?;
    let mut reading = Reading {
        choice,
        place: None,
        connected: Instant::now(),
        missing_since: None,
        said: None,
        out: stdout()?,
    };
    loop {
        if job.state == JobState::Pending && (reading.choice.follow || job.attempts == 0) {
            reading.wait_for_start(&job)?;
        } else {
            let follow = reading.choice.follow && !job.state.is_final();
            match reading.read(client, &mut job, follow) {
                Ok(()) if !follow && reading.place.is_none() => {
                    return Err(never_written(&job, reading.choice.stderr));
                }
                Ok(()) if !follow => return Ok(0),
                // The output is at its end, and the job's end is on its way.
                Ok(()) => std::thread::sleep(RETRY_PAUSE),
                Err(ReadError::Lost(text)) => reading.bear(&text)?,
                Err(ReadError::Failed(failure)) => return Err(failure),
            }
        }
        reading.out.flush()?;
        job = the_job(client, reading.choice.job)?;
    }
}

fn the_job(client: &mut Client, name: &str) -> Result<JobRow, Failure> {
    let mut jobs = jobs_named(client, name)?;
    match jobs.pop() {
        Some(job)
            if jobs.is_empty() && (job.array_tasks.is_none() || job.array_index.is_some()) =>
        {
            Ok(job)
        }
        _ => Err(Failure::new(format_args!(
            "{name} is an array, and each of its tasks has a file of its own. Name one: {name}_1"
        ))),
    }
}

fn never_written(job: &JobRow, stderr: bool) -> Failure {
    let end = match (job.state.is_final(), job.end_text.as_str()) {
        (false, _) => "runs".to_owned(),
        (true, "") => format!("is over ({})", job.state),
        (true, text) => format!("is over ({}: {text})", job.state),
    };
    Failure::new(format_args!(
        "job {} {}, and there is no {} on {}",
        job.shown_id,
        printable(&end),
        printable(path_of(job, stderr)),
        job.nodelist.split(',').next().unwrap_or("its node"),
    ))
}

fn path_of(job: &JobRow, stderr: bool) -> &str {
    match stderr {
        true => &job.stderr,
        false => &job.stdout,
    }
}

/// A file on its way here.
struct Reading<'a, W> {
    choice: OutputChoice<'a>,
    /// Up to where it was printed.
    place: Option<Place>,
    /// When there was a connection last.
    connected: Instant,
    missing_since: Option<Instant>,
    /// For which state something was said.
    said: Option<JobState>,
    out: W,
}

#[derive(Clone, Copy)]
struct Place {
    file: FileIdentity,
    position: u64,
}

enum ReadError {
    /// The connection: another one may do better.
    Lost(String),
    Failed(Failure),
}

impl From<Failure> for ReadError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl<W: Write> Reading<'_, W> {
    fn wait_for_start(&mut self, job: &JobRow) -> Result<(), Failure> {
        let reason = Some(&job.reason).filter(|reason| **reason != ReasonCode::None);
        let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
        if !self.choice.follow {
            return Err(Failure::new(format_args!(
                "job {} waits{reason} and has no output yet. gq --follow waits for it",
                job.shown_id
            )));
        }
        if self.said.replace(job.state) != Some(job.state) {
            let id = &job.shown_id;
            say(&format!(
                "job {id} waits{reason}; its output follows when it starts"
            ))?;
        }
        self.connected = Instant::now();
        std::thread::sleep(ASK);
        Ok(())
    }

    /// One connection: to the end of the file, or with `follow` until the job is in another state.
    fn read(
        &mut self,
        client: &mut Client,
        job: &mut JobRow,
        follow: bool,
    ) -> Result<(), ReadError> {
        let (mut socket, mut incoming) = self.connect(client, follow)?;
        socket.set_read_timeout(Some(ASK)).map_err(lost)?;
        let mut asked = Instant::now();
        let mut piece = vec![0; 64 << 10];
        loop {
            let mut from = 0;
            while let Some((frame, used)) = OutputFrame::read(&incoming[from..]).map_err(lost)? {
                from += used;
                if self.take(frame)? {
                    return Ok(());
                }
            }
            incoming.drain(..from);
            if follow {
                self.out.flush().map_err(Failure::from)?;
            }
            if follow && asked.elapsed() >= ASK {
                self.say_missing(job)?;
                let state = job.state;
                *job = the_job(client, self.choice.job)?;
                asked = Instant::now();
                if job.state != state && (job.state.is_final() || job.state == JobState::Pending) {
                    return Ok(());
                }
            }
            match socket.read(&mut piece) {
                Ok(0) => return Err(ReadError::Lost("the connection ended".to_owned())),
                Ok(count) => incoming.extend_from_slice(&piece[..count]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(lost(e)),
            }
            self.connected = Instant::now();
        }
    }

    fn connect(
        &self,
        client: &Client,
        follow: bool,
    ) -> Result<(ControllerStream, Vec<u8>), ReadError> {
        let query = OutputQuery {
            stderr: self.choice.stderr,
            file: self
                .place
                .map_or(String::new(), |place| place.file.to_string()),
            position: self.place.map_or(0, |place| place.position),
            tail: self.choice.tail,
            follow,
        };
        let path = path_with_query(&job_path(self.choice.job, "/output"), &query);
        client.open_stream(&path).map_err(|e| match e {
            ClientError::Refused { ref code, .. }
                if code != "unavailable" && !e.is_unreachable() =>
            {
                ReadError::Failed(e.into())
            }
            e => ReadError::Lost(e.to_string()),
        })
    }

    /// True for the last frame.
    fn take(&mut self, frame: OutputFrame) -> Result<bool, ReadError> {
        match frame {
            OutputFrame::File { file, position } => {
                self.place = Some(Place { file, position });
                self.missing_since = None;
            }
            OutputFrame::Data(bytes) => {
                let place = self
                    .place
                    .as_mut()
                    .ok_or_else(|| ReadError::Lost("bytes of no file".to_owned()))?;
                place.position += bytes.len() as u64;
                self.out.write_all(&bytes).map_err(Failure::from)?;
            }
            OutputFrame::Missing => {
                self.missing_since.get_or_insert_with(Instant::now);
            }
            OutputFrame::End => return Ok(true),
            OutputFrame::Refused(text) => {
                return Err(Failure::new(format_args!("{}", printable(&text))).into());
            }
            OutputFrame::Unknown => {}
        }
        Ok(false)
    }

    fn say_missing(&mut self, job: &JobRow) -> Result<(), Failure> {
        let is_missing = self
            .missing_since
            .is_some_and(|since| since.elapsed() >= MISSING);
        if is_missing && self.said.replace(job.state) != Some(job.state) {
            let path = printable(path_of(job, self.choice.stderr)).into_owned();
            let (id, nodes) = (&job.shown_id, &job.nodelist);
            say(&format!(
                "job {id} runs on {nodes}, and {path} is not there yet"
            ))?;
        }
        Ok(())
    }

    /// A connection was lost: said after a while, and after a longer one the end.
    fn bear(&mut self, text: &str) -> Result<(), Failure> {
        let patience = match self.choice.follow {
            true => FOLLOW_PATIENCE,
            false => PRINT_PATIENCE,
        };
        let silent = self.connected.elapsed();
        if silent >= patience {
            return Err(Failure::new(format_args!("{}", printable(text))));
        }
        if silent >= ANNOUNCE_AFTER
            && self.said.replace(JobState::Unknown) != Some(JobState::Unknown)
        {
            say(&format!("{}; trying again", printable(text)))?;
        }
        std::thread::sleep(RETRY_PAUSE);
        Ok(())
    }
}

fn lost(error: impl std::fmt::Display) -> ReadError {
    ReadError::Lost(error.to_string())
}

fn say(text: &str) -> Result<(), Failure> {
    writeln!(std::io::stderr(), "gq: {text}")?;
    Ok(())
}
