//! NVIDIA GPUs through NVML: discovery, health, use, MIG cuts, links and events. Each call runs on a thread of its own under a deadline,
//! because a call into NVML may never return; a GPU that holds a call is left out until the call returns. Decides nothing about a GPU.
//! Source: NVIDIA's NVML API reference.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

mod answer;
mod change;
mod error;
mod facts;
mod fields;
mod health;
mod kernel_log;
mod library;
mod mig;
mod recut;
mod topology;
mod usage;
mod worker;

pub use change::Change;
pub use error::{NvmlError, Refusal};
pub use facts::{
    ComputeMode, GpuFacts, Inventory, MigDevice, MigInstance, MigLayout, MigProfile, NvlinkPeer,
    PcieDistance, UnreadableGpu, device_node, nominal_memory_mib,
};
pub use gmodel::gpu_health::{
    EventSource, GpuEvent, GpuEventKind, GpuHealth, GpuReading, ReadFailure, ReadFailureKind,
};
pub use kernel_log::{KernelLog, KernelXid, kernel_xid};
pub use library::Nvml;
pub use mig::CapMinors;
pub use recut::{RecutError, WantedCut, WantedPart, next_step};
pub use topology::islands;
pub use usage::{GpuProcess, GpuUse, InstanceUse, ProcessKind};
pub use worker::{
    ClosedNvml, MAX_ABANDONED_THREADS, MAX_WAITING_EVENTS, NvmlWorker, Progress, WorkerState,
};

/// The name under which the driver installs NVML.
pub const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";

/// A vendor's GPUs. NVML is the first; ROCm SMI and Level Zero can follow. Lives on one thread; calls may hang.
pub trait GpuSource {
    /// All GPUs, and apart from these the GPUs that did not answer.
    fn discover(&mut self, progress: &Progress) -> Result<Inventory, NvmlError>;
    /// The condition of each GPU at this moment.
    fn read_health(&mut self, progress: &Progress) -> Result<Vec<GpuHealth>, NvmlError>;
    /// The use of each GPU, and its processes; with `only`, of the named GPUs that are present.
    fn sample_use(
        &mut self,
        progress: &Progress,
        only: Option<&BTreeSet<String>>,
    ) -> Result<Vec<GpuUse>, NvmlError>;
    /// Changes one GPU: MIG, compute mode. What was made is told by its id.
    fn change(
        &mut self,
        progress: &Progress,
        uuid: &str,
        change: &Change,
    ) -> Result<Option<u32>, NvmlError>;
    /// Hands over events of these GPUs as they come, and `None` at least every second, until `each` breaks.
    fn watch(
        &mut self,
        uuids: &BTreeSet<String>,
        each: &mut dyn FnMut(Option<GpuEvent>) -> ControlFlow<()>,
    ) -> Result<(), NvmlError>;
}
