//! Idle GPUs as nodes report them, and the warnings of a run.

use gmodel::idle::{IdleLevels, IdleSpell};
use gmodel::{NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A run's idle spells and warning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunIdle {
    /// Its longest spells that are over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spells: Vec<IdleSpell>,
    /// The warning of the present spell, sent or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warned: Option<IdleWarning>,
}

/// The samples of a run's nodes: a memo of the running controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdleSeen {
    pub(crate) by_node: BTreeMap<NodeId, NodeIdleness>,
    /// Over all its nodes, as of the last sample.
    pub levels: IdleLevels,
    pub watched_secs: u32,
}

/// The one warning of a spell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleWarning {
    pub at: Timestamp,
    /// Idle seconds at the warning, without the grace time.
    pub idle_secs: u32,
    /// Watched seconds of the run before the spell began.
    pub from_secs: u32,
    /// False: not sent, under a policy that only reports.
    pub real: bool,
    /// Number of the event: the program's answer names it.
    pub number: u64,
    /// The site's program was called, or there is none.
    pub told: bool,
    /// A policy that acts would have ended the run.
    pub noted: bool,
}

/// The last sample of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeIdleness {
    pub at: Timestamp,
    pub watched_secs: u32,
    pub idle_secs: Vec<u32>,
}
