//! Why there is no answer about GPUs, and why the driver refused a change.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why there is no answer about GPUs.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NvmlError {
    #[error("no NVML here: {path} cannot be loaded ({reason}); it comes with the NVIDIA driver")]
    LibraryMissing { path: String, reason: String },
    #[error("{path} is too old: {reason}")]
    LibraryTooOld { path: String, reason: String },
    #[error("NVML does not start: {0}")]
    Init(String),
    #[error("{doing} did not return within {waited_secs:.1} s{}", at_gpu(*index))]
    Timeout {
        doing: &'static str,
        waited_secs: f64,
        index: Option<u32>,
    },
    #[error("the driver does not answer: {doing}{} has not returned for {}", at_gpu(*index), roughly(*for_secs))]
    Stuck {
        doing: &'static str,
        for_secs: f64,
        index: Option<u32>,
    },
    #[error("NVML is closed while a GPU is reset")]
    Closed,
    #[error("{doing}: {reason}")]
    Failed { doing: &'static str, reason: String },
    #[error("{doing} of {uuid}: {refusal}")]
    Refused {
        doing: &'static str,
        uuid: String,
        refusal: Refusal,
    },
    #[error("the thread for NVML cannot run: {0}")]
    Thread(String),
}

/// A duration in words that change seldom, so that a comparison of two texts shows news and not each second.
fn roughly(secs: f64) -> &'static str {
    match secs as u64 {
        0..60 => "some seconds",
        60..600 => "over a minute",
        600..3600 => "over ten minutes",
        _ => "over an hour",
    }
}

impl NvmlError {
    /// True where nothing suggests that there are NVIDIA GPUs: the caller may go on as a CPU node.
    pub fn means_cpu_node(&self) -> bool {
        matches!(self, NvmlError::LibraryMissing { .. })
    }
}

fn at_gpu(index: Option<u32>) -> String {
    index
        .map(|index| format!(", at the GPU with index {index}"))
        .unwrap_or_default()
}

/// Why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// A process, an instance or another program holds it.
    InUse,
    /// Other instances are where it would go.
    NoRoom,
    /// Not with this board, driver, mode or profile.
    NotSupported,
    NoPermission,
    /// The GPU or the instance is not there.
    NotThere,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::InUse => "it is in use; nothing was changed",
            Refusal::NoRoom => "other instances are where it would go; destroy one of them first",
            Refusal::NotSupported => "this board, driver or mode does not offer it",
            Refusal::NoPermission => "the driver does not permit it; root is needed",
            Refusal::NotThere => "it is not there",
        })
    }
}
