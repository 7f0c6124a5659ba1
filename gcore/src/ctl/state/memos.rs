//! What the running controller remembers and no row has: a new one begins without.

use crate::chunk_map::ChunkMap;
use crate::ctl::state::idle::IdleSeen;
use crate::ctl::state::recent_specs::RecentSpecs;
use crate::ctl::state::tally::SubmissionTimes;
use gmodel::image_pull::PullProgress;
use gmodel::{JobId, NodeId, Request, RunId, Seq, Timestamp};
use gsched::SchedNode;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// How far the image of a run is on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePull {
    pub progress: PullProgress,
    /// When the node said so.
    pub at: Timestamp,
}

/// Memos of the running controller.
#[derive(Clone, Debug, Default)]
pub struct StateMemos {
    /// Windows that begin or end by then were seen.
    pub time_reached: Timestamp,
    /// When idle GPUs are looked at next, if checks are configured.
    pub next_check_look: Timestamp,
    /// Idleness as nodes report it.
    pub idle_seen: ChunkMap<RunId, IdleSeen>,
    /// Runs that wait for their image, as their nodes tell.
    pub pulls: BTreeMap<RunId, BTreeMap<NodeId, NodePull>>,
    /// Requests known to fit a partition, and on how many nodes. Cleared when nodes change.
    pub feasible: Arc<BTreeMap<(String, Request), u32>>,
    /// The nodes of each partition for submissions, made on demand. Cleared with `feasible`.
    pub(crate) members: OnceLock<Arc<BTreeMap<String, Vec<SchedNode>>>>,
    /// Pending jobs whose request changed since the last plan was entered: an older plan does not start them.
    pub respecified: BTreeMap<JobId, Seq>,
    /// Submissions of the last minute, where limited.
    pub minutes: SubmissionTimes,
    /// Recent requests, which later ones may share.
    pub late_specs: RecentSpecs,
}
