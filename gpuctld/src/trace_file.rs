//! The optional trace: every input of the core with its time, a JSON line each, for replay by `gsim`. Each life of the
//! controller begins with a line of what it found in the database (`"input":"loaded"`), so a trace may begin at any time.
//!
//! Lines are numbered and chained (`gmodel::trace_chain`), each life by itself; the first names the end of the life before,
//! so that nothing is missing unnoticed. A line that a crash cut off is ended at the next start.
//!
//! Scripts and environments are not in inputs, so they are not in traces. A trace that cannot be written ends
//! with one line in the log; it never stops the controller.

use gcore::ctl::{Input, Rows, State};
use gmodel::Timestamp;
use gmodel::trace_chain::TraceChain;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const TRACE: &str = "trace";
/// Enough for the sum at the end of a line.
const END_BYTES: u64 = 64;

pub struct TraceFile {
    file: Option<BufWriter<File>>,
    chain: TraceChain,
    /// What the file ended with when it was opened.
    after: Option<String>,
}

#[derive(Serialize)]
struct InputLine<'a> {
    now: Timestamp,
    #[serde(flatten)]
    input: &'a Input,
}

/// The first line of a life.
#[derive(Serialize)]
struct LoadedLine {
    now: Timestamp,
    input: &'static str,
    /// Of the writer.
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    rows: Rows,
}

impl TraceFile {
    /// Appends to `state_dir/trace`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(state_dir: &Path) -> std::io::Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(state_dir.join(TRACE))?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(END_BYTES)))?;
        let mut end = Vec::new();
        file.read_to_end(&mut end)?;
        if end.last().is_some_and(|byte| *byte != b'\n') {
            file.write_all(b"\n")?;
        }
        let after = TraceChain::last_of(&String::from_utf8_lossy(&end));
        Ok(Self {
            file: Some(BufWriter::new(file)),
            chain: TraceChain::default(),
            after,
        })
    }

    pub fn write(&mut self, now: Timestamp, input: &Input) {
        self.line(&InputLine { now, input });
    }

    /// Begins with what was loaded.
    pub fn begin(&mut self, now: Timestamp, state: &State) {
        self.chain = TraceChain::default();
        let after = self.after.take();
        self.line(&LoadedLine {
            now,
            input: "loaded",
            version: env!("CARGO_PKG_VERSION"),
            after,
            rows: state.rows(),
        });
    }

    pub fn flush(&mut self) {
        self.attempt(BufWriter::flush);
    }

    fn line(&mut self, line: &impl Serialize) {
        let mut chain = self.chain;
        self.attempt(|file| {
            let sealed = chain.seal(&serde_json::to_string(line)?);
            file.write_all(sealed.as_bytes())?;
            file.write_all(b"\n")
        });
        self.chain = chain;
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
        let spec = JobSpec {
            name: "train".into(),
            ..JobSpec::default()
        };
        let actor = Actor {
            user: "alice".into(),
            uid: 1000,
            ..Actor::default()
        };
        let command = Command::Submit {
            spec: Box::new(spec),
            client_key: Some("k".into()),
        };
        let inputs = [
            Input::Started,
            Input::Command { actor, command },
            Input::Plan {
                plan: gsched::Plan::default(),
            },
        ];
        let dir = tempfile::tempdir().unwrap();
        let mut trace = TraceFile::open(dir.path()).unwrap();
        for input in &inputs {
            trace.write(Timestamp(17), input);
        }
        trace.flush();
        let text = std::fs::read_to_string(dir.path().join(TRACE)).unwrap();
        let read: Vec<Input> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(read, inputs);
        assert!(
            text.lines().all(|line| line.starts_with(r#"{"now":17,"#)),
            "{text}"
        );
    }

    #[test]
    fn lives_are_chained_and_a_line_that_was_cut_off_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(TRACE);
        let life = || {
            let mut trace = TraceFile::open(dir.path()).unwrap();
            trace.begin(Timestamp(1), &State::default());
            trace.write(Timestamp(2), &Input::Started);
            trace.flush();
        };
        life();
        let first = std::fs::read_to_string(&path).unwrap();
        let end = TraceChain::last_of(&first).unwrap();
        life();
        let both = std::fs::read_to_string(&path).unwrap();
        assert!(both.contains(&format!("\"after\":\"{end}\"")), "{both}");
        std::fs::write(&path, &both[..both.len() - 9]).unwrap();
        life();
        let lines: Vec<String> = std::fs::read_to_string(&path)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect();
        assert_eq!(lines.len(), 6);
        assert!(
            lines[4].starts_with(&format!(
                "{{\"now\":1,\"input\":\"loaded\",\"version\":\"{}\",\"rows\"",
                env!("CARGO_PKG_VERSION")
            )),
            "{}",
            lines[4]
        );
        let mut chain = TraceChain::default();
        assert_eq!(
            (chain.follow(&lines[4]), chain.follow(&lines[5])),
            (Some(Ok(())), Some(Ok(())))
        );
    }
}
