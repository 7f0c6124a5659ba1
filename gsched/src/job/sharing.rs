//! Which shares may be on one GPU: any without a cap, under MPS equal shares of one user, since an MPS server
//! serves one user at a time with one limit for all. gpud sets it up.

use crate::cluster::nodes::Cluster;
use crate::job::job_class::JobClass;
use crate::snapshot::Snapshot;
use gpolicy::feasibility::share_request::asks_for_share;

/// Why room on shared GPUs is none for a job; empty where that is not so.
pub(crate) fn others_room(job_class: &JobClass, snapshot: &Snapshot, cluster: &Cluster) -> String {
    if !asks_for_share(&job_class.spec.request) {
        return String::new();
    }
    let nodes = job_class.candidates.up.ones().filter_map(|at| {
        let track = &cluster.nodes[at];
        let need = job_class
            .need(0, 0, track.node_class)
            .filter(|need| need.milli > 0)?;
        let count = cluster.state(at).shared_otherwise(need, cluster.now);
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
