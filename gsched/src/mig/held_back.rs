//! GPUs that are held back for a coming MIG cut. Data only.

use crate::preempt::holders::usable_nodes;
use crate::snapshot::{PendingJob, Snapshot};
use gmodel::Timestamp;
use gmodel::mig::MigKind;
use gmodel::node::GpuInfo;
use gpolicy::feasibility::demand::NodeDemand;
use gpolicy::reserved_nodes::Windows;

/// A GPU that is held back.
#[derive(Clone, Debug)]
pub(crate) struct HeldGpu {
    /// Place of its node.
    pub at: usize,
    pub uuid: String,
    /// Slots that were free: its own, or its slices'.
    pub slots: Vec<u16>,
    /// It is idle.
    pub empty: bool,
    /// When that is so.
    pub(crate) empty_at: Timestamp,
    /// The slices that jobs wait for; none: the whole GPU.
    pub(crate) wanted: Vec<MigKind>,
}

/// Whether a job may run on a node from a time on: its node list and all reservations allow it.
pub(crate) fn may_use<'a>(
    windows: &'a Windows,
    snapshot: &'a Snapshot,
    job: &'a PendingJob,
) -> impl Fn(usize, Timestamp) -> bool + 'a {
    let usable = usable_nodes(snapshot, &job.spec);
    move |at, from| {
        let node = &snapshot.nodes[at];
        let is_named = job
            .spec
            .request
            .nodelist
            .as_ref()
            .is_none_or(|list| list.contains(&node.name));
        usable(node) && is_named && windows.admit(job, &snapshot.policy, at, from)
    }
}

/// The smallest kind of slice that serves a demand.
pub(crate) fn kind_for<'a>(
    kinds: &'a [MigKind],
    gpu: &GpuInfo,
    wanted: &NodeDemand,
) -> Option<&'a MigKind> {
    kinds.iter().find(|kind| {
        wanted
            .gpus
            .is_served_by(&gpu.gpu_type, kind.memory_mib, &kind.part())
    })
}
