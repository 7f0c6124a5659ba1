//! Identities. Each is a newtype, decimal on the wire, never reused.
//!
//! A job keeps its id through every requeue; a *run* is one attempt of a job.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A job, or one task of a job array (task at position `p` of array `A` is job `A + p`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct JobId(pub u64);

/// A node of the cluster, numbered by the controller when it first joins.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// One attempt of a job. Attempts count from 1. Written `17-1`, which is safe in file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId {
    pub job: JobId,
    pub attempt: u32,
}

/// Position of an accepted event in the controller's history; counts from 1.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Seq(pub u64);

/// What a node must have made durable before it obeys: orders with a lower pair are refused.
///
/// The incarnation changes when a backup of the controller is restored, the generation with
/// every change of what the node should be running.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Fence {
    pub incarnation: u64,
    pub generation: u64,
}

/// Names one life of a node: a run accepted under another pair is lost, never started again.
///
/// `boot` is the kernel's boot id, `spool` the id of the spool directory (stateless nodes lose it).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeLife {
    pub boot: String,
    pub spool: String,
}

/// Names a token without proving anything. Written as eight hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub u32);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// A text that is no id of a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no id of a token, which has eight hexadecimal digits, as 1f00a2b3")]
pub struct BadTokenId(pub String);

impl FromStr for TokenId {
    type Err = BadTokenId;
    fn from_str(text: &str) -> Result<Self, BadTokenId> {
        let digits = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        digits
            .then(|| u32::from_str_radix(text, 16).ok().map(Self))
            .flatten()
            .ok_or_else(|| BadTokenId(text.chars().take(40).collect()))
    }
}

impl Serialize for TokenId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TokenId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl RunId {
    /// # Panics
    /// When `attempt` is 0: attempts count from 1.
    pub fn new(job: JobId, attempt: u32) -> Self {
        assert!(attempt > 0, "attempts count from 1");
        Self { job, attempt }
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.job, self.attempt)
    }
}

/// A text that names no job or run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a {1}")]
pub struct BadId(pub String, pub &'static str);

/// The database counts with a sign.
const MAX_JOB_ID: u64 = i64::MAX as u64;

impl FromStr for JobId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        match text.parse::<u64>() {
            Ok(id) if (1..=MAX_JOB_ID).contains(&id) => Ok(Self(id)),
            _ => Err(BadId(text.chars().take(64).collect(), "job id")),
        }
    }
}

impl FromStr for RunId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId(text.chars().take(64).collect(), "run (JOB-ATTEMPT)");
        let (job, attempt) = text.split_once('-').ok_or_else(bad)?;
        let job = job.parse().map_err(|_| bad())?;
        match attempt.parse::<u32>() {
            Ok(attempt) if attempt > 0 => Ok(Self { job, attempt }),
            _ => Err(bad()),
        }
    }
}

impl Serialize for RunId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ids_read_back_as_written() {
        let run = RunId::new(JobId(17), 2);
        assert_eq!(run.to_string(), "17-2");
        assert_eq!("17-2".parse::<RunId>().unwrap(), run);
        for bad in [
            "",
            "17",
            "17-0",
            "-1",
            "0-1",
            "17-x",
            "99999999999999999999-1",
            "9223372036854775808-1",
        ] {
            assert!(bad.parse::<RunId>().is_err(), "{bad:?} was accepted");
        }
    }
}
