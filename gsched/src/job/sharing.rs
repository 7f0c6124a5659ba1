//! Which shares of GPUs may stand on one GPU: without a cap anybody's, under MPS equal shares of one user, since the limits of its
//! server hold for all alike and it serves one user at a time. What a node does for it is gpud's affair.

use crate::cluster::nodes::Cluster;
use crate::cluster::timeline::Need;
use crate::job::demand::Demand;
use crate::job::job_class::Shape;
use crate::job::reason::describe;
use crate::snapshot::{SchedNode, Snapshot};
use gmodel::config::{GpuSharing, Partition};
use gmodel::gpu_request::GpuAmount;
use gmodel::{GpuPart, JobSpec, Reason, ReasonCode, Request};

/// What all shares on one GPU have in common: user and thousandths where MPS holds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms(Option<(u32, u32)>);

impl Terms {
    pub fn of_need(need: &Need) -> Self {
        Self(need.tenant.map(|uid| (uid, u32::from(need.milli))))
    }
    pub fn of_part(part: &GpuPart) -> Self {
        match part {
            GpuPart::Share {
                milli,
                tenant: Some(uid),
                ..
            } => Self(Some((*uid, *milli))),
            _ => Self(None),
        }
    }
}

/// Whether a request may come to a part of a GPU.
pub fn asks_for_share(request: &Request) -> bool {
    let alternatives = request.gpus.iter().flat_map(|ask| &ask.alternatives);
    alternatives
        .into_iter()
        .any(|one| matches!(one.amount, GpuAmount::Share { .. }))
}

/// Whether MPS has to hold a job to what it is given.
pub(crate) fn is_capped(amount: &GpuAmount, partition: &Partition) -> bool {
    partition.gpu_sharing == GpuSharing::Mps && matches!(amount, GpuAmount::Share { .. })
}

/// Who a share is for, where one is asked for.
pub(crate) fn tenant(spec: &JobSpec) -> Option<u32> {
    asks_for_share(&spec.request).then_some(spec.user.uid)
}

/// Why no job asking so runs in the partition: it was submitted when shares were given, or moved here.
pub(crate) fn refused(spec: &JobSpec, partition: &Partition) -> Option<Reason> {
    let off = partition.gpu_sharing == GpuSharing::Off && asks_for_share(&spec.request);
    off.then(|| {
        let text = format!(
            "asks for part of a GPU; partition {:?} gives GPUs whole (gpu_sharing = \"off\")",
            partition.name
        );
        Reason::new(ReasonCode::PartitionConfig, text)
    })
}

/// No GPU of a partition can give such a share.
pub(crate) fn none_by_mps(
    demand: &Demand,
    partition: &Partition,
    members: &[&SchedNode],
) -> String {
    let gpus = || {
        members
            .iter()
            .flat_map(|node| node.gpus.iter())
            .filter(|gpu| gpu.info.slice.is_none())
    };
    let (all, by_mps) = (gpus().count(), gpus().filter(|gpu| gpu.info.mps).count());
    let advice = match by_mps {
        0 => "their nodes have no MPS to do it with (gnodes NODE says why). Ask for whole GPUs.",
        _ => "none of them has such a part. Ask for a larger part, another type or less --gpu-mem.",
    };
    format!(
        "{}: {by_mps} of the {all} GPUs in partition {:?} can be shared; {advice}",
        describe(demand),
        partition.name
    )
}

/// Why room on shared GPUs is none for a job; empty where that is not so.
pub(crate) fn others_room(shape: &Shape, snapshot: &Snapshot, cluster: &Cluster) -> String {
    if !asks_for_share(&shape.spec.request) {
        return String::new();
    }
    let nodes = shape.candidates.up.ones().filter_map(|at| {
        let track = &cluster.nodes[at];
        let need = shape.need(0, 0, track.make).filter(|need| need.milli > 0)?;
        let count = cluster.room(at).shared_otherwise(need, cluster.now);
        (count > 0).then_some((count, &snapshot.nodes[at].name))
    });
    let Some((count, node)) = nodes.max_by_key(|(count, _)| *count) else {
        return String::new();
    };
    let (gpus, hold) = if count == 1 {
        ("GPU", "holds")
    } else {
        ("GPUs", "hold")
    };
    format!(
        "; {count} {gpus} of {node} with room for it {hold} shares of another user, or of another size or kind"
    )
}
