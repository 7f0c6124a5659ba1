//! A change of a job's request by its owner or an operator.

use gmodel::Timestamp;
use gmodel::checkpoint::CheckpointSpec;
use gmodel::dependency::Dependency;
use gmodel::request_change::RequestChange;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A change of a job's request by its owner or an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobChange {
    /// `Some(None)` is UNLIMITED.
    #[serde(skip_serializing_if = "Option::is_none", with = "double_option")]
    pub limit_secs: Option<Option<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nice: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// One, or several: `a,b`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eligible: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requeue: Option<bool>,
    /// Tasks of an array that may run at once; 0 is no cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
    /// `Some(None)`: no dependency any more.
    #[serde(skip_serializing_if = "Option::is_none", with = "double_option")]
    pub dependency: Option<Option<Dependency>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub licences: Option<BTreeMap<String, u32>>,
    /// Empty: outside of reservations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// Operators only, except 0, which holds the job. `Some(None)`: computed again.
    #[serde(skip_serializing_if = "Option::is_none", with = "double_option")]
    pub priority: Option<Option<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub borrow: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none", with = "double_option")]
    pub deadline: Option<Option<Timestamp>>,
    #[serde(skip_serializing_if = "Option::is_none", with = "double_option")]
    pub time_min_secs: Option<Option<u32>>,
    #[serde(skip_serializing_if = "Option::is_none", with = "double_option")]
    pub checkpoint: Option<Option<CheckpointSpec>>,
    /// Operators only: no idle policy touches it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_exempt: Option<bool>,
    /// Nodes, tasks, CPUs, memory, GPUs, and where.
    #[serde(skip_serializing_if = "RequestChange::is_empty")]
    pub request: RequestChange,
}

/// JSON keeps `Some(None)` apart from `None`: absent, null, value.
mod double_option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    pub fn serialize<T: Serialize, S: Serializer>(
        value: &Option<Option<T>>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().and_then(Option::as_ref).serialize(s)
    }
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Option<T>>, D::Error> {
        Option::<T>::deserialize(d).map(Some)
    }
}
