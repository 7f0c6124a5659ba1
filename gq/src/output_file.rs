//! `gq --follow`: a job's output file as it grows, until the job is over.
//!
//! Reads the file on this machine with the rights of the caller; the controller only says where it is
//! and whether the job has ended.

use crate::job_lookup::jobs_named;
use gcli::table::stdout;
use gcli::{Failure, Outcome};
use gmodel::reason::ReasonCode;
use gmodel::{JobState, byte_text};
use gwire::api::JobRow;
use gwire::client::Client;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pause between looks at the file.
const LOOK: Duration = Duration::from_millis(250);
/// Pause between questions to the controller.
const ASK: Duration = Duration::from_secs(1);
/// A running job's file that is missing for so long is spoken of.
const MISSING: Duration = Duration::from_secs(5);

/// Prints the output of a job until it ends. The exit code is 0 whatever the job's was.
pub(crate) fn follow(client: &mut Client, name: &str) -> Outcome {
    let mut job = the_job(client, name)?;
    let path = output_path(&job)?;
    let mut out = stdout()?;
    let mut tail = Tail::new(path);
    let mut asked = Instant::now();
    let mut waiting_since = Instant::now();
    let mut said = None;
    loop {
        // The state is older than the look: what a finished job wrote is all there to be read.
        let over = job.state.is_final();
        let state = job.state;
        let read = tail.copy(&mut out)?;
        out.flush()?;
        if over {
            if !tail.found {
                return Err(never_written(&job, &tail.path));
            }
            return Ok(0);
        }
        if state == JobState::Pending {
            waiting_since = Instant::now();
            if said != Some(state) {
                let reason = Some(&job.reason)
                    .filter(|reason| **reason != ReasonCode::None)
                    .map(|reason| format!(" ({reason})"))
                    .unwrap_or_default();
                writeln!(
                    std::io::stderr(),
                    "gq: job {} waits{reason}; its output follows when it starts",
                    job.shown_id
                )?;
                said = Some(state);
            }
        } else if !tail.found && waiting_since.elapsed() > MISSING && said != Some(state) {
            let path = tail.path.display();
            writeln!(
                std::io::stderr(),
                "gq: job {} runs on {}, and {path} is not there yet. Is it on a file system this machine sees?",
                job.shown_id,
                job.nodelist
            )?;
            said = Some(state);
        }
        if !read {
            std::thread::sleep(LOOK);
        }
        if asked.elapsed() >= ASK {
            job = the_job(client, name)?;
            asked = Instant::now();
        }
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

fn output_path(job: &JobRow) -> Result<PathBuf, Failure> {
    let bytes = |text: &str| OsString::from_vec(byte_text::to_bytes(text).into_owned());
    let path = Path::new(&bytes(&job.work_dir)).join(bytes(&job.stdout));
    if job.stdout.is_empty() || path == Path::new("/dev/null") {
        return Err(Failure::new(format_args!(
            "job {} writes to no file, so there is nothing to follow",
            job.shown_id
        )));
    }
    Ok(path)
}

fn never_written(job: &JobRow, path: &Path) -> Failure {
    let end = if job.end_text.is_empty() {
        String::new()
    } else {
        format!(": {}", job.end_text)
    };
    Failure::new(format_args!(
        "job {} is over ({}{end}), and there is no {} here",
        job.shown_id,
        job.state,
        path.display()
    ))
}

/// A growing file: where it is and what has been read.
struct Tail {
    path: PathBuf,
    file: Option<File>,
    position: u64,
    found: bool,
}

impl Tail {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            file: None,
            position: 0,
            found: false,
        }
    }

    /// Copies what is new; true if there was something.
    fn copy(&mut self, out: &mut impl Write) -> Result<bool, Failure> {
        self.open_again()?;
        let Some(file) = &mut self.file else {
            return Ok(false);
        };
        let cannot = |error: std::io::Error| {
            Failure::new(format_args!("cannot read {}: {error}", self.path.display()))
        };
        // A new attempt of the job begins the file anew.
        if file.metadata().map_err(cannot)?.len() < self.position {
            self.position = file.seek(SeekFrom::Start(0)).map_err(cannot)?;
        }
        let mut buffer = vec![0; 64 << 10];
        let mut copied = false;
        loop {
            let count = match file.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                other => other.map_err(cannot)?,
            };
            if count == 0 {
                return Ok(copied);
            }
            self.position += count as u64;
            copied = true;
            out.write_all(&buffer[..count])?;
        }
    }

    /// Opens the file where it is not open, or where another file has its name now.
    fn open_again(&mut self) -> Result<(), Failure> {
        let named = match std::fs::metadata(&self.path) {
            Ok(named) if named.is_file() => named,
            Ok(_) => {
                return Err(Failure::new(format_args!(
                    "{} is no file, so there is nothing to follow",
                    self.path.display()
                )));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                return Err(Failure::new(format_args!(
                    "cannot read {}: {error}",
                    self.path.display()
                )));
            }
        };
        let same = self
            .file
            .as_ref()
            .and_then(|file| file.metadata().ok())
            .is_some_and(|open| (open.dev(), open.ino()) == (named.dev(), named.ino()));
        if !same {
            let file = File::open(&self.path).map_err(|error| {
                Failure::new(format_args!("cannot read {}: {error}", self.path.display()))
            })?;
            (self.file, self.position, self.found) = (Some(file), 0, true);
        }
        Ok(())
    }
}
