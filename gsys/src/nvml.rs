//! NVIDIA GPUs through NVML: which there are, how they are, how much they are used, how they are cut and joined, and what
//! befalls them. Every call runs on a thread of its own under a deadline, because a call into NVML may never return; a GPU that
//! holds a call is left out until it lets go. Decides nothing about a GPU. Source: NVIDIA's NVML API reference.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

mod change;
mod fields;
mod health;
mod kernel_log;
mod library;
mod mig;
mod recut;
mod topology;
mod usage;
mod worker;

pub use change::{Change, ComputeMode, Refusal};
pub use gmodel::gpu_health::{EventSource, GpuEventKind, GpuReading, ReadFailure, ReadFailureKind};
pub use health::GpuHealth;
pub use kernel_log::{KernelLog, KernelXid, kernel_xid};
pub use library::Nvml;
pub use mig::{CapMinors, MigDevice, MigInstance, MigLayout, MigProfile};
pub use recut::{RecutError, WantedCut, WantedPart, next_step};
pub use topology::{NvlinkPeer, PcieDistance, islands};
pub use usage::{GpuProcess, GpuUse, InstanceUse, ProcessKind};
pub use worker::{
    LetGo, MAX_ABANDONED_THREADS, MAX_WAITING_EVENTS, NvmlWorker, Progress, WorkerState,
};

/// The name under which the driver installs NVML.
pub const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";

/// A vendor's GPUs. NVML is the first; ROCm SMI and Level Zero can follow. Lives on one thread; calls may hang.
pub trait GpuSource {
    /// All GPUs, and in their places those that did not answer.
    fn discover(&mut self, progress: &Progress) -> Result<Inventory, NvmlError>;
    /// The condition of each GPU at this moment.
    fn read_health(&mut self, progress: &Progress) -> Result<Vec<GpuHealth>, NvmlError>;
    /// How much each GPU is used, and by whom; where some are named, of these alone, as far as they are there.
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
    /// Who may have a context; none where the board does not tell.
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadableGpu {
    pub index: u32,
    pub kind: ReadFailureKind,
    pub fault: String,
}

/// Something that befell a GPU, `count` times since events were last fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuEvent {
    pub uuid: String,
    pub kind: GpuEventKind,
    pub count: u64,
    /// An Xid may come from the event set and from the kernel log: two events then.
    pub source: EventSource,
}

/// Why there is no answer about GPUs.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NvmlError {
    #[error("no NVML here: {path} cannot be loaded ({reason}); it comes with the NVIDIA driver")]
    LibraryMissing { path: String, reason: String },
    #[error("{path} is too old: {reason}")]
    LibraryTooOld { path: String, reason: String },
    #[error("NVML does not start: {0}")]
    Init(String),
    #[error("{doing} did not return within {waited_secs:.1} s{}", at_gpu(*index))]
    Timeout {
        doing: &'static str,
        waited_secs: f64,
        index: Option<u32>,
    },
    #[error("the driver does not answer: {doing}{} has not returned for {}", at_gpu(*index), roughly(*for_secs))]
    Stuck {
        doing: &'static str,
        for_secs: f64,
        index: Option<u32>,
    },
    #[error("NVML is closed while a GPU is reset")]
    LetGo,
    #[error("{doing}: {reason}")]
    Failed { doing: &'static str, reason: String },
    #[error("{doing} of {uuid}: {refusal}")]
    Refused {
        doing: &'static str,
        uuid: String,
        refusal: Refusal,
    },
    #[error("the thread for NVML cannot run: {0}")]
    Thread(String),
}

/// How long, in words that stand for a while: who compares them hears of news, not of every second.
fn roughly(secs: f64) -> &'static str {
    match secs as u64 {
        0..60 => "some seconds",
        60..600 => "over a minute",
        600..3600 => "over ten minutes",
        _ => "over an hour",
    }
}

impl NvmlError {
    /// True where nothing suggests that there are NVIDIA GPUs: the caller may go on as a CPU node.
    pub fn means_cpu_node(&self) -> bool {
        matches!(self, NvmlError::LibraryMissing { .. })
    }
}

/// The device node of a GPU: `/dev/nvidia<minor>`, or in the sandbox's directory.
pub fn device_node(dev_dir: &Path, gpu: &GpuFacts) -> PathBuf {
    dev_dir.join(format!("nvidia{}", gpu.minor))
}

/// The short type that requests use: `h100` for `NVIDIA H100 80GB HBM3`. Names of another form become one word: `rtx_a6000`.
pub fn gpu_type_of(name: &str) -> String {
    let mut words: Vec<&str> = name
        .split([' ', '-', '/', '_'])
        .filter(|word| !word.is_empty())
        .collect();
    while words.len() > 1
        && ["nvidia", "tesla", "geforce", "quadro"]
            .iter()
            .any(|brand| words[0].eq_ignore_ascii_case(brand))
    {
        words.remove(0);
    }
    let short = words
        .first()
        .filter(|word| is_model_word(word))
        .map(|word| word.to_lowercase());
    short.unwrap_or_else(|| {
        let letters = |word: &&str| {
            word.chars()
                .filter(char::is_ascii_alphanumeric)
                .collect::<String>()
                .to_lowercase()
        };
        let kept: Vec<String> = words
            .iter()
            .map(letters)
            .filter(|word| !word.is_empty())
            .collect();
        if kept.is_empty() {
            "gpu".to_owned()
        } else {
            kept.join("_")
        }
    })
}

/// `L4`, `A100`, `GH200`, `L40S`: one or two letters, digits, perhaps a letter.
fn is_model_word(word: &str) -> bool {
    let rest = word.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    let tail = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
    (1..=2).contains(&(word.len() - rest.len()))
        && rest.len() > tail.len()
        && tail.len() <= 1
        && tail.chars().all(|last| last.is_ascii_alphabetic())
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

fn at_gpu(index: Option<u32>) -> String {
    index
        .map(|index| format!(", at the GPU with index {index}"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_types_are_what_people_write_in_requests() {
        let names = [
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA A100-SXM4-40GB", "a100"),
            ("NVIDIA GH200 480GB", "gh200"),
            ("Tesla V100-SXM2-32GB", "v100"),
            ("NVIDIA L40S", "l40s"),
            ("NVIDIA B200", "b200"),
            ("NVIDIA L4", "l4"),
            ("NVIDIA RTX A6000", "rtx_a6000"),
            ("NVIDIA GeForce RTX 4090", "rtx_4090"),
            ("NVIDIA TITAN Xp (rev. 2)", "titan_xp_rev_2"),
            ("NVIDIA", "nvidia"),
            ("", "gpu"),
        ];
        for (name, short) in names {
            assert_eq!(gpu_type_of(name), short, "{name}");
        }
    }

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
