//! What the runs of a job have left in its record: boxed, because a hundred thousand waiting jobs have none of it.
//!
//! Reads as fields of the job (`job.started`); the box is made when one is first written. Never decides anything.

use super::state::NodeFailure;
use gmodel::checkpoint::Mark;
use gmodel::{ExitCode, Timestamp};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::ops::{Deref, DerefMut};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// Of the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    #[serde(default)]
    pub exit: ExitCode,
    /// How it ended, in words, and who cancelled it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub end_text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled_by: Option<String>,
    /// Nodes its runs took down or failed to start on, newest last; three hold the job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_failures: Vec<NodeFailure>,
    /// When its last run that was preempted ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempted: Option<Timestamp>,
    /// Newest checkpoint mark of all its runs, by the controller's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_mark: Option<Box<Mark>>,
    /// What it was worth when its last run was placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
}

static NONE: Past = Past {
    started: None,
    ended: None,
    exit: ExitCode { code: 0, signal: 0 },
    end_text: String::new(),
    cancelled_by: None,
    node_failures: Vec::new(),
    preempted: None,
    last_mark: None,
    priority: None,
};

/// A job's past, or that it has none.
#[derive(Clone, Default)]
pub struct MaybePast(Option<Box<Past>>);

impl From<Past> for MaybePast {
    fn from(past: Past) -> Self {
        Self((past != NONE).then(|| Box::new(past)))
    }
}

impl Deref for MaybePast {
    type Target = Past;
    fn deref(&self) -> &Past {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for MaybePast {
    fn deref_mut(&mut self) -> &mut Past {
        self.0.get_or_insert_default()
    }
}

impl PartialEq for MaybePast {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for MaybePast {}

impl fmt::Debug for MaybePast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl Serialize for MaybePast {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for MaybePast {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Past::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_written_has_no_box_and_reads_as_default() {
        let mut past = MaybePast::default();
        assert_eq!((past.started, past.node_failures.len()), (None, 0));
        assert!(past.0.is_none());
        past.ended = None;
        assert_eq!(past, MaybePast::default(), "a box of nothing is nothing");
        past.ended = Some(Timestamp::from_secs(7));
        assert_ne!(past, MaybePast::default());
    }

    #[test]
    fn documents_without_a_past_read_without_a_box() {
        let read: MaybePast = serde_json::from_str(r#"{"exit":{"code":0,"signal":0}}"#).unwrap();
        assert!(read.0.is_none());
        let some = MaybePast::from(Past { priority: Some(3), ..Past::default() });
        let read: MaybePast = serde_json::from_value(serde_json::to_value(&some).unwrap()).unwrap();
        assert_eq!((read.priority, read), (Some(3), some));
    }
}
