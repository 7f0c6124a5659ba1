//! What discovery tells of a node's GPUs: each board, its MIG cut, its links. Plain data; asks no driver.

use std::path::{Path, PathBuf};

use nvml_wrapper::enum_wrappers::device::ComputeMode as DriverMode;
use serde::{Deserialize, Serialize};

use gmodel::gpu_health::ReadFailureKind;

/// What a node has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    pub driver_version: String,
    /// Major times 1000 plus minor times 10.
    pub cuda_version: Option<u32>,
    /// In the order of the driver's indices.
    pub gpus: Vec<GpuFacts>,
    /// GPUs that do not answer and never did, so that nothing but their index is known.
    pub unreadable: Vec<UnreadableGpu>,
}

/// What a GPU is. Nothing here changes while the driver is loaded but `index`, `minor`, `mig`, `compute_mode`, the links and `fault`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuFacts {
    /// The identity.
    pub uuid: String,
    /// The driver's index: moves when another GPU disappears.
    pub index: u32,
    /// The N of `/dev/nvidiaN`.
    pub minor: u32,
    /// As the driver names it: `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// The short type that requests use: `h100`.
    pub gpu_type: String,
    /// As the driver reports it.
    pub memory_bytes: u64,
    /// The size on the label, for comparing with `--gpu-mem`.
    pub nominal_memory_mib: u64,
    /// `00000000:1B:00.0`.
    pub pci_bus_id: String,
    /// On the board's label; none where the board does not tell.
    pub serial: Option<String>,
    /// The host memory node nearest to it.
    pub numa_node: Option<u32>,
    /// Ranges of the host's processors nearest to it; empty: not told.
    pub near_cpus: Vec<(u32, u32)>,
    /// Major and minor.
    pub compute_capability: (u32, u32),
    pub pcie_gen_max: Option<u32>,
    pub pcie_width_max: Option<u32>,
    /// Temperatures in Celsius at which the board slows down, and at which its memory does.
    pub slowdown_c: Option<u32>,
    pub memory_max_c: Option<u32>,
    /// Links the board has, up or down.
    pub nvlink_count: u32,
    /// What it can be cut into, and how it is cut now; none where the board has no MIG.
    pub mig: Option<MigLayout>,
    pub mig_enabled: bool,
    /// The compute mode; none where the board does not tell.
    pub compute_mode: Option<ComputeMode>,
    /// UUIDs of the GPUs it reaches by NVLink, directly or through switches; sorted.
    pub nvlink_peers: Vec<String>,
    /// The same with the number of links that lead there (through switches: as many as both have up).
    pub nvlinks: Vec<NvlinkPeer>,
    /// The NVLink domain over several hosts: the fabric's cluster and clique, `UUID.CLIQUE`; empty for none.
    pub nvlink_domain: String,
    /// The way to each other GPU over PCIe, by UUID, sorted.
    pub pcie_distances: Vec<(String, PcieDistance)>,
    /// Why it cannot be used now: the facts are then from before.
    pub fault: Option<String>,
}

/// Facts of one GPU that do not change while the driver is loaded, and the GPU instances that discovery last saw.
#[derive(Clone)]
pub struct FixedFacts {
    pub uuid: String,
    pub nvlink_count: u32,
    pub pcie_gen_max: Option<u32>,
    pub pcie_width_max: Option<u32>,
    pub slowdown_c: Option<u32>,
    pub memory_max_c: Option<u32>,
    pub has_sram_status: bool,
    pub has_fabric: bool,
    pub has_gpm: bool,
    /// Where discovery last saw it.
    pub index: u32,
    /// Empty where the GPU is not cut.
    pub gpu_instances: Vec<u32>,
    pub facts: GpuFacts,
    pub mig_profiles: Vec<MigProfile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadableGpu {
    pub index: u32,
    pub kind: ReadFailureKind,
    pub fault: String,
}

/// The processes that may have a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    Default,
    /// One process: the MPS server, while the GPU is shared.
    ExclusiveProcess,
    Prohibited,
}

impl From<DriverMode> for ComputeMode {
    fn from(mode: DriverMode) -> ComputeMode {
        match mode {
            DriverMode::Default => ComputeMode::Default,
            DriverMode::ExclusiveThread | DriverMode::ExclusiveProcess => {
                ComputeMode::ExclusiveProcess
            }
            DriverMode::Prohibited => ComputeMode::Prohibited,
        }
    }
}

/// What one GPU can be cut into, and how it is cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigLayout {
    /// Whether instances can be made now.
    pub enabled: bool,
    /// The mode after the next reset, where it is another.
    pub pending: Option<bool>,
    /// Smallest first.
    pub profiles: Vec<MigProfile>,
    /// In the order of their first memory slice.
    pub instances: Vec<MigInstance>,
}

/// A kind of GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigProfile {
    /// As in requests: `1g.10gb`, `1g.10gb+me`.
    pub name: String,
    /// The driver's number: 19 for one slice, 0 for the whole GPU.
    pub id: u32,
    pub compute_slices: u32,
    pub memory_slices: u32,
    pub memory_mib: u64,
    /// First memory slices where it may be.
    pub starts: Vec<u32>,
    /// Most of this kind at once.
    pub max_count: u32,
}

/// A GPU instance. Without devices it is an unfinished cut, and no job can use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInstance {
    pub id: u32,
    pub profile_id: u32,
    /// Name of its profile.
    pub profile: String,
    pub start: u32,
    pub memory_slices: u32,
    pub compute_slices: u32,
    pub memory_mib: u64,
    /// One for each compute instance, in the order of their ids.
    pub devices: Vec<MigDevice>,
}

/// What a job is given of a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigDevice {
    /// `MIG-...`, for `CUDA_VISIBLE_DEVICES`.
    pub uuid: String,
    pub compute_instance_id: u32,
    pub compute_slices: u32,
}

impl MigLayout {
    /// The profile of this name.
    pub fn profile(&self, name: &str) -> Option<&MigProfile> {
        self.profiles.iter().find(|profile| profile.name == name)
    }
}

/// A GPU at the other end of NVLinks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NvlinkPeer {
    pub uuid: String,
    /// Links that lead there: direct ones, or through switches as many as both ends have up.
    pub links: u32,
}

/// The nearest thing that two GPUs have in common, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PcieDistance {
    /// On one board.
    Board,
    /// Under one PCIe switch.
    Switch,
    /// Under several switches, without the host.
    Switches,
    HostBridge,
    /// One socket's memory node.
    Node,
    System,
}

/// The device node of a GPU: `/dev/nvidia<minor>`, or in the sandbox's directory.
pub fn device_node(dev_dir: &Path, gpu: &GpuFacts) -> PathBuf {
    dev_dir.join(format!("nvidia{}", gpu.minor))
}

/// Sizes that GPUs are sold with, in GiB.
const LABEL_GIB: &[u64] = &[
    1, 2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96, 128, 141, 144, 180,
    186, 192, 256, 288, 384, 512,
];

/// The size on the label in MiB: drivers report a little less (81,559 of 81,920), GDDR boards with ECC a sixteenth less.
pub fn nominal_memory_mib(memory_bytes: u64) -> u64 {
    let mib = memory_bytes >> 20;
    let label = LABEL_GIB
        .iter()
        .map(|gib| gib * 1024)
        .find(|&label| label >= mib);
    label
        .filter(|label| mib * 100 >= label * 92)
        .unwrap_or_else(|| mib.div_ceil(1024) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nominal_memory_is_the_size_on_the_label() {
        // What drivers report for these boards in MiB, and the label in GiB.
        let boards = [
            (81_559, 80),
            (81_920, 80),
            (40_960, 40),
            (40_536, 40),
            (143_771, 141),
            (183_359, 180),
            (23_034, 24),
            (15_360, 16),
            (46_068, 48),
            (97_871, 96),
            (95_830, 94),
            (32_510, 32),
            (24_564, 24),
            (189_471, 186),
            (60_000, 59),
            (600_000, 586),
        ];
        for (mib, label_gib) in boards {
            assert_eq!(nominal_memory_mib(mib << 20), label_gib * 1024, "{mib} MiB");
        }
    }
}
