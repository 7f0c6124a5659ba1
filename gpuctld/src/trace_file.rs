//! The optional trace: every input of the core with its time, a JSON line each, for replay by `gsim`. Each life of the
//! controller begins with a line of what it found in the database (`"input":"loaded"`), so a trace may begin at any time.
//!
//! Scripts and environments are not in inputs, so they are not in traces. A trace that cannot be written ends
//! with one line in the log; it never stops the controller.

use gcore::ctl::{Input, Rows, State};
use gmodel::Timestamp;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const TRACE: &str = "trace";

pub struct TraceFile {
    file: Option<BufWriter<File>>,
}

#[derive(Serialize)]
struct Line<'a> {
    now: Timestamp,
    #[serde(flatten)]
    input: &'a Input,
}

/// The first line of a life.
#[derive(Serialize)]
struct Loaded {
    now: Timestamp,
    input: &'static str,
    rows: Rows,
}

impl TraceFile {
    /// Appends to `state_dir/trace`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(state_dir: &Path) -> std::io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(state_dir.join(TRACE))?;
        Ok(Self { file: Some(BufWriter::new(file)) })
    }

    pub fn write(&mut self, now: Timestamp, input: &Input) {
        self.attempt(|file| {
            serde_json::to_writer(&mut *file, &Line { now, input })?;
            file.write_all(b"\n")
        });
    }

    /// Begins with what was loaded.
    pub fn begin(&mut self, now: Timestamp, state: &State) {
        self.attempt(|file| {
            serde_json::to_writer(&mut *file, &Loaded { now, input: "loaded", rows: state.rows() })?;
            file.write_all(b"\n")
        });
    }

    pub fn flush(&mut self) {
        self.attempt(BufWriter::flush);
    }

    fn attempt(&mut self, write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) {
        let Some(file) = &mut self.file else { return };
        if let Err(e) = write(file) {
            tracing::error!("the trace ends here: {e}");
            self.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcore::ctl::{Actor, Command};
    use gmodel::JobSpec;

    #[test]
    fn a_trace_reads_back_as_the_inputs_that_were_written() {
        let spec = JobSpec { name: "train".into(), ..JobSpec::default() };
        let actor = Actor { user: "alice".into(), uid: 1000, ..Actor::default() };
        let command = Command::Submit { spec: Box::new(spec), client_key: Some("k".into()) };
        let inputs = [Input::Started, Input::Command { actor, command }, Input::Plan { plan: gsched::Plan::default() }];
        let dir = tempfile::tempdir().unwrap();
        let mut trace = TraceFile::open(dir.path()).unwrap();
        for input in &inputs {
            trace.write(Timestamp(17), input);
        }
        trace.flush();
        let text = std::fs::read_to_string(dir.path().join(TRACE)).unwrap();
        let read: Vec<Input> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, inputs);
        assert!(text.lines().all(|line| line.starts_with(r#"{"now":17,"#)), "{text}");
    }
}
