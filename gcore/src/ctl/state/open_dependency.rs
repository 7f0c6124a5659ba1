//! Open conditions of a dependency, kept with the record of the job or array.

use gmodel::array_spec::{ArraySpec, RangeSet};
use gmodel::dependency::{Dependency, DependencyKind, DependencyTerm};
use gmodel::{JobId, JobState, Timestamp};
use serde::{Deserialize, Serialize};

/// The open conditions of a dependency; never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenDependency {
    /// One of them is enough.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any: bool,
    pub on: Vec<OpenTerm>,
}

/// One open condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTerm {
    /// The condition as submitted, alone: `afterok:17`.
    pub condition: Dependency,
    /// The job, task or array that decides.
    pub of: JobId,
    /// `of` is an array, and all its tasks count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// It is met at this time: the other job has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// It can never be met: how the other job ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub never: Option<String>,
    /// For an array that waits task by task: positions with a partner that ended well, and with one that did
    /// not.
    #[serde(default, skip_serializing_if = "RangeSet::is_empty")]
    pub met: RangeSet,
    #[serde(default, skip_serializing_if = "RangeSet::is_empty")]
    pub failed: RangeSet,
}

/// An entry of the queue that depends: a job (or a task with a record), or the tasks of an array without
/// records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryId {
    Job(JobId),
    Array(JobId),
}

/// A forgotten job or array, as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgottenJob {
    pub id: JobId,
    /// Of an array: COMPLETED if all its tasks are, else the state of one that is not.
    pub state: JobState,
    /// When it (or its last task) began; if it never did, when it was over.
    pub began: Timestamp,
    /// Of an array: its tasks, and the positions that ended well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<ArraySpec>,
    #[serde(default, skip_serializing_if = "RangeSet::is_empty")]
    pub well: RangeSet,
}

impl EntryId {
    pub fn id(self) -> JobId {
        match self {
            Self::Job(id) | Self::Array(id) => id,
        }
    }
}

impl OpenTerm {
    pub(crate) fn new(condition: DependencyTerm, of: JobId, whole: bool) -> Self {
        let condition = Dependency {
            any: false,
            conditions: vec![condition],
        };
        Self {
            condition,
            of,
            whole,
            until: None,
            never: None,
            met: RangeSet::new(),
            failed: RangeSet::new(),
        }
    }
    pub(crate) fn condition(&self) -> DependencyTerm {
        self.condition
            .conditions
            .first()
            .cloned()
            .unwrap_or(DependencyTerm::Singleton)
    }
    /// `None` for a singleton.
    pub(crate) fn kind(&self) -> Option<DependencyKind> {
        match self.condition() {
            DependencyTerm::Singleton => None,
            DependencyTerm::On { kind, .. } => Some(kind),
        }
    }
    /// Each task of an array meets it by itself.
    pub(crate) fn is_by_task(&self) -> bool {
        self.whole && self.kind() == Some(DependencyKind::AfterCorr)
    }
}
