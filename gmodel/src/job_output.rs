//! Where the output of batch scripts goes: to the files that jobs name, or to their nodes' spools and from there to the controller. How a
//! spool's files are named, which is the same at the controller. Pure: reads and writes no file.

use crate::ids::RunId;
use crate::size::exact_size;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Directory of these files, in a node's spool and in the controller's state.
pub const OUTPUTS_DIR: &str = "outputs";
/// Bounds of `output_max`.
pub const MAX_BYTES: RangeInclusive<u64> = 64 << 10..=1 << 30;

/// The site's rule for outputs; a part of each launch order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobOutput {
    pub place: OutputPlace,
    /// The most that is kept of a run's stdout, and of its stderr, in a spool.
    pub max_bytes: u64,
}

impl Default for JobOutput {
    fn default() -> Self {
        Self {
            place: OutputPlace::File,
            max_bytes: 64 << 20,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputPlace {
    /// The file that the job names; the spool where its directory is not on the node.
    #[default]
    File,
    Spool,
}

impl OutputPlace {
    pub const WORDS: [(&'static str, Self); 2] = [("file", Self::File), ("spool", Self::Spool)];
}

/// One file of a spool, written `17-1.out` or `17-1.err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpooledFile {
    pub run: RunId,
    pub stderr: bool,
}

impl fmt::Display for SpooledFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = if self.stderr { "err" } else { "out" };
        write!(f, "{}.{ending}", self.run)
    }
}

/// No `RUN.out` or `RUN.err`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an output in a spool is named RUN.out or RUN.err")]
pub struct BadSpooledFile;

impl FromStr for SpooledFile {
    type Err = BadSpooledFile;
    fn from_str(text: &str) -> Result<Self, BadSpooledFile> {
        let (run, ending) = text.split_once('.').ok_or(BadSpooledFile)?;
        let run = run.parse().map_err(|_| BadSpooledFile)?;
        let stderr = match ending {
            "out" => false,
            "err" => true,
            _ => return Err(BadSpooledFile),
        };
        let file = Self { run, stderr };
        // `+17` is a number, too.
        (file.to_string() == text)
            .then_some(file)
            .ok_or(BadSpooledFile)
    }
}

/// The last line of an output that met its bound.
pub fn bound_line(max_bytes: u64) -> String {
    format!(
        "\n[gpupool: the output ends here: {} is kept of it (output_max)]\n",
        exact_size(max_bytes)
    )
}

/// The last line of an output that met a full disk.
pub fn full_line() -> String {
    "\n[gpupool: the output ends here: the node's spool is full]\n".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_spool_reads_back_and_other_names_are_none() {
        for text in ["17-1.out", "17-2.err"] {
            let file: SpooledFile = text.parse().unwrap();
            assert_eq!(file.to_string(), text);
        }
        for text in [
            "",
            "17-1",
            "17-1.log",
            "17-0.out",
            "+17-1.out",
            "../17-1.out",
            "17-1.out.part",
        ] {
            assert_eq!(text.parse::<SpooledFile>(), Err(BadSpooledFile), "{text}");
        }
    }
}
