//! GPUs of a node that are alike: type, memory, NVLink island, part.

use gmodel::GpuPart;
use gmodel::node::GpuEntry;

/// GPUs of a node that are as good as each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuGroup {
    pub gpu_type: String,
    pub memory_mib: u64,
    /// NVLink island within the node.
    pub island: Option<u32>,
    /// What a holder has of a GPU: all of it, or a MIG slice.
    pub part: GpuPart,
    /// Shares of it can be held to their part.
    pub mps: bool,
}

impl GpuGroup {
    pub fn of(gpu: &GpuEntry) -> Self {
        Self {
            gpu_type: gpu.info.gpu_type.to_ascii_lowercase(),
            memory_mib: gpu.info.memory_mib,
            island: gpu.info.nvlink_island,
            part: gpu.info.part(),
            mps: gpu.info.mps,
        }
    }
}
