//! A controller's own trace as a file: its lines, their chain, and where it is not whole. Never reads a file itself.

use gcore::ctl::{Input, Rows};
use gmodel::Timestamp;
use gmodel::trace_chain::{ChainBreak, TraceChain};
use gsched::Plan;
use serde::Deserialize;
use std::collections::BTreeSet;

/// One line: what happened when.
#[derive(Clone, Debug)]
pub struct TraceLine {
    /// Counted from 1.
    pub number: usize,
    pub now: Timestamp,
    pub what: TraceEntry,
}

#[derive(Clone, Debug)]
pub enum TraceEntry {
    Input(Box<Input>),
    /// A life of the controller begins with what it found in the database.
    Loaded(Box<Rows>),
}

/// The inputs of a controller in order.
#[derive(Clone, Debug, Default)]
pub struct RecordedTrace {
    pub lines: Vec<TraceLine>,
    /// The last line is cut off, as a crash leaves it.
    pub cut_off: bool,
    /// Where lines are missing, were changed or stand elsewhere: the line, and what is wrong with it.
    pub breaks: Vec<(usize, String)>,
    /// Lines of releases that did not number them.
    pub unnumbered: usize,
    /// Releases that wrote it, where they said so.
    pub versions: BTreeSet<String>,
}

impl RecordedTrace {
    /// Reads the lines of a trace.
    ///
    /// # Errors
    /// The first line that is no input, unless it is the last.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut recorded = Self::default();
        let count = text.lines().count();
        let (mut chain, mut broken): (_, Option<(usize, String)>) = (None, None);
        for (at, text_of_line) in text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty())
        {
            match read_line(at + 1, text_of_line) {
                // The next life of the controller ended the line that a crash had cut off, and begins behind it.
                Ok((_, line)) if broken.is_some() && !line.begins() => break,
                Ok((head, line)) => {
                    let is_after_crash = broken.take().is_some();
                    recorded.follow(&mut chain, &head, &line, text_of_line, is_after_crash);
                    recorded.lines.push(line);
                }
                Err(_) if at + 1 == count && !text.ends_with('\n') => recorded.cut_off = true,
                Err(error) if broken.is_none() => broken = Some((at + 1, error)),
                Err(_) => break,
            }
        }
        if let Some((number, error)) = broken {
            return Err(format!("line {number}: {error}"));
        }
        match recorded.lines.first() {
            None => Err("the file holds no inputs; gpuctld writes them with trace = true".into()),
            Some(_) => Ok(recorded),
        }
    }

    /// Notes where a line does not follow the one before.
    fn follow(
        &mut self,
        chain: &mut Option<TraceChain>,
        head: &LineHead,
        line: &TraceLine,
        text: &str,
        is_after_crash: bool,
    ) {
        self.versions.extend(head.version.clone());
        let before = chain.take();
        let mut next = before.filter(|_| !line.begins()).unwrap_or_default();
        let mut wrong = |why: String| self.breaks.push((line.number, why));
        match next.follow(text) {
            None => {
                self.unnumbered += 1;
                if before.is_some() && !line.begins() {
                    wrong("has no number: it was not written so".into());
                }
            }
            Some(held) => {
                match held {
                    Ok(()) => {}
                    Err(ChainBreak::Missing(1)) => wrong("one line is missing before it".into()),
                    Err(ChainBreak::Missing(count)) => {
                        wrong(format!("{count} lines are missing before it"))
                    }
                    Err(ChainBreak::Moved) => wrong(
                        "stands behind a later one: lines were moved, or are there twice".into(),
                    ),
                    Err(ChainBreak::Changed) => wrong("was changed since it was written".into()),
                }
                let follows = |before: TraceChain| head.after == Some(before.text());
                if line.begins() && !is_after_crash && before.is_some_and(|before| !follows(before))
                {
                    wrong("the controller's life before it ended otherwise: lines are missing between them".into());
                }
                *chain = Some(next);
            }
        }
    }

    /// What is to be said of the file itself.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.cut_off {
            notes.push("the last line is cut off and left out".into());
        }
        if self.unnumbered > 0 {
            notes.push(format!("{} lines are of a release that did not number them: what is missing among them is not noticed", self.unnumbered));
        }
        let here = env!("CARGO_PKG_VERSION");
        for version in self.versions.iter().filter(|version| *version != here) {
            notes.push(format!(
                "written by gpuctld {version}, and this is {here}: decisions may be others for that"
            ));
        }
        notes
    }
}

impl TraceLine {
    /// A life of the controller begins.
    pub(crate) fn begins(&self) -> bool {
        matches!(self.what, TraceEntry::Loaded(_))
    }
}

/// What every line has. Usage is in numbers that a `serde_json::Value` would round: all is read from the text itself.
#[derive(Deserialize)]
struct LineHead {
    now: Option<i64>,
    #[serde(default)]
    input: String,
    /// Of the first line of a life: the release that wrote it, and the end of the life before.
    version: Option<String>,
    after: Option<String>,
}

#[derive(Deserialize)]
struct LoadedRows {
    rows: Box<Rows>,
}

fn read_line(number: usize, line: &str) -> Result<(LineHead, TraceLine), String> {
    let head: LineHead = serde_json::from_str(line).map_err(|error| format!("no JSON: {error}"))?;
    let now = head.now.ok_or("no \"now\"; this is no trace of gpuctld")?;
    let unknown = |error: serde_json::Error| format!("no input that this release knows: {error}");
    let what = match &*head.input {
        "loaded" => TraceEntry::Loaded(
            serde_json::from_str::<LoadedRows>(line)
                .map_err(unknown)?
                .rows,
        ),
        _ => TraceEntry::Input(serde_json::from_str(line).map_err(unknown)?),
    };
    Ok((
        head,
        TraceLine {
            number,
            now: Timestamp(now),
            what,
        },
    ))
}

pub(crate) fn plan_of(line: &TraceLine) -> Option<&Plan> {
    match &line.what {
        TraceEntry::Input(input) => match &**input {
            Input::Plan { plan } => Some(plan),
            _ => None,
        },
        TraceEntry::Loaded(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_trace_is_refused_with_its_line() {
        let wrong = |text: &str| RecordedTrace::parse(text).unwrap_err();
        assert_eq!(
            wrong(""),
            "the file holds no inputs; gpuctld writes them with trace = true"
        );
        assert!(
            wrong("{\"now\":1,\"input\":\"started\"}\nrubbish\n").starts_with("line 2: no JSON")
        );
        assert!(wrong("{\"input\":\"started\"}\n").contains("no \"now\""));
        assert!(
            wrong("{\"now\":1,\"input\":\"dance\"}\n").contains("no input that this release knows")
        );
        let cut =
            RecordedTrace::parse("{\"now\":1,\"input\":\"started\"}\n{\"now\":1,\"inp").unwrap();
        assert!(cut.cut_off && cut.lines.len() == 1);
    }
}
