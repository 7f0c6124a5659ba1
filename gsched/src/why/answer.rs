//! The answer to `gq --why`, as data.

use crate::forecast::job_starts::Forecast;
use crate::ledger::holder::Holder;
use crate::why::change::Change;
use gmodel::{JobId, Reason, ReasonCode, Timestamp};
use serde::{Deserialize, Serialize};

/// The whole answer to `gq --why`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    pub job: JobId,
    /// Of its partitions the one that this is about, where it waits in several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The others, as it names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<OtherPartition>,
    /// Of a job that takes one kind of GPUs or another (`l4:8|h100:4`) the kind that this is about: where the least stands in its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternative: Option<String>,
    /// The others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Alternative>,
    /// It would start in the next pass; then there are no blockers.
    pub starts_now: bool,
    /// Jobs of its partition with a turn before its own.
    pub ahead: u32,
    /// All that stands in its way; each must go before it starts.
    pub blockers: Vec<Blocker>,
    /// Why its account's guarantee would not carry it, with the numbers: it waits for what others leave idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrows: Option<String>,
    /// When it would start as it is.
    pub forecast: Option<Forecast>,
    /// Changes of the request that would start it now, the smallest first; where there are none, the one that would
    /// start it soonest.
    pub changes: Vec<Change>,
}

/// What stands in a job's way in another of its partitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherPartition {
    pub partition: String,
    /// Of several kinds of GPUs the one that is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternative: Option<String>,
    /// Jobs there with a turn before its own.
    pub ahead: u32,
    pub blockers: Vec<Blocker>,
}

/// What stands in the way of a job that would take such GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    /// `h100:4`.
    pub gpus: String,
    pub blockers: Vec<Blocker>,
}

/// One thing in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocker {
    pub code: ReasonCode,
    /// For people, with the numbers.
    pub text: String,
    /// Of what is short on the node that comes nearest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<NearestNode>,
    /// When it goes away by itself, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// From when on runs may be ended for it that are in its way, if they must run for so long first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_preempt_from: Option<Timestamp>,
    /// From when on GPUs are cut by MIG, or made whole, to make room for it: that takes seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_from: Option<Timestamp>,
    /// Of a limit: the holder that ends first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
}

/// The node that comes nearest to what a job needs of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NearestNode {
    pub node: String,
    /// Nodes that have room for a part now, and how many parts there are.
    pub nodes_free: u32,
    pub nodes_needed: u32,
    /// Of the kinds that would do, whole ones.
    pub gpus_free: u32,
    pub gpus_needed: u32,
    pub cpus_free: u32,
    pub cpus_needed: u32,
    pub mem_free_bytes: u64,
    pub mem_needed_bytes: u64,
    /// When more becomes free there, by the time limits of what runs.
    pub next_change: Option<Timestamp>,
}

impl Blocker {
    pub(super) fn of(reason: Reason) -> Self {
        Self {
            code: reason.code,
            text: reason.text.to_string(),
            nearest: None,
            until: None,
            may_preempt_from: None,
            cut_from: None,
            holder: None,
        }
    }
}

impl NearestNode {
    pub(super) fn text(&self, of_slices: bool) -> String {
        let mut short = Vec::new();
        if self.gpus_free < self.gpus_needed {
            short.push(format!(
                "{} of {} {}",
                self.gpus_free,
                self.gpus_needed,
                if of_slices { "slices" } else { "GPUs" }
            ));
        }
        if self.cpus_free < self.cpus_needed {
            short.push(format!("{} of {} CPUs", self.cpus_free, self.cpus_needed));
        }
        if self.mem_free_bytes < self.mem_needed_bytes {
            let size = gmodel::size::rough_size;
            short.push(format!(
                "{} of {} of memory",
                size(self.mem_free_bytes),
                size(self.mem_needed_bytes)
            ));
        }
        let mut text = match short.is_empty() {
            true => format!(
                "{} of {} such nodes have room",
                self.nodes_free, self.nodes_needed
            ),
            false => format!(
                "{} comes nearest and has {} free",
                self.node,
                short.join(" and ")
            ),
        };
        if let Some(at) = self.next_change {
            text.push_str(&format!(", more becomes free there at {at}"));
        }
        text
    }
}
