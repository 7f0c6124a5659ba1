//! Which shares may be on one GPU: any without a cap, under MPS equal shares of one user, since an MPS server
//! serves one user at a time with one limit for all. gpud sets it up.

use crate::cluster::nodes::Cluster;
use crate::job::demand::Demand;
use crate::job::describe::describe;
use crate::job::job_class::JobClass;
use crate::job::share_request::asks_for_share;
use crate::snapshot::{SchedNode, Snapshot};
use gmodel::config::Partition;

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
pub(crate) fn others_room(shape: &JobClass, snapshot: &Snapshot, cluster: &Cluster) -> String {
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
