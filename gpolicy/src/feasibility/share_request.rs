//! Requests for a part of a GPU, and what a partition says to them.

use gmodel::config::{GpuSharing, Partition};
use gmodel::gpu_request::GpuAmount;
use gmodel::{JobSpec, Reason, ReasonCode, Request};

/// Whether a request may be served by a part of a GPU.
pub fn asks_for_share(request: &Request) -> bool {
    let alternatives = request.gpus.iter().flat_map(|ask| &ask.alternatives);
    alternatives
        .into_iter()
        .any(|one| matches!(one.amount, GpuAmount::Share { .. }))
}

/// Whether MPS has to hold a job to what it is given.
pub fn is_capped(amount: &GpuAmount, partition: &Partition) -> bool {
    partition.gpu_sharing == GpuSharing::Mps && matches!(amount, GpuAmount::Share { .. })
}

/// The user of a share, where one is asked for.
pub fn tenant(spec: &JobSpec) -> Option<u32> {
    asks_for_share(&spec.request).then_some(spec.user.uid)
}

/// Why no job asking so runs in the partition: it was submitted when shares were given, or moved here.
pub fn refused(spec: &JobSpec, partition: &Partition) -> Option<Reason> {
    let off = partition.gpu_sharing == GpuSharing::Off && asks_for_share(&spec.request);
    off.then(|| {
        let text = format!(
            "asks for part of a GPU; partition {:?} gives GPUs whole (gpu_sharing = \"off\")",
            partition.name
        );
        Reason::new(ReasonCode::PartitionConfig, text)
    })
}
