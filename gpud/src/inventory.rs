//! What this machine has: processors and memory by the kernel's word (or declared), GPUs by NVML's.
//!
//! Says what is there and what answers; how GPUs are over time is `gpu_watch` and `gpu_health`. Decides nothing.

use crate::config::{Config, Isolation};
use crate::gpu_health::Shown;
use gmodel::Timestamp;
use gmodel::gpu_link::{GpuLink, GpuLinks};
use gmodel::node::{GpuInfo, Inventory};
use gsys::device_fence::{DeviceNumber, GpuNode};
use gsys::device_node::char_device;
use gsys::nvml::{GpuFacts, NvmlError, NvmlWorker, PcieDistance, device_node, islands};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

const NVML_PATIENCE: Duration = Duration::from_secs(5);

/// The GPUs as last read, for everyone who prepares a run or reports.
#[derive(Debug, Default)]
pub struct GpuTable {
    current: Mutex<Arc<Gpus>>,
    /// Held for reading while a run with GPUs is made ready, for writing while a GPU is cut.
    pub cutting: RwLock<()>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpus {
    pub driver: String,
    pub facts: Vec<GpuFacts>,
    /// Device files by UUID, of those GPUs that have one, and those that any run with a GPU needs.
    pub nodes: BTreeMap<String, GpuNode>,
    pub control: Vec<DeviceNumber>,
    /// What is to be told of the health of some, besides their faults.
    pub health: BTreeMap<String, Shown>,
    /// Why slices of sound GPUs are not given out, by UUID.
    pub slice_faults: BTreeMap<String, String>,
    /// Why nothing is known of GPUs that may be there; empty when all is well.
    pub trouble: String,
}

impl GpuTable {
    pub fn current(&self) -> Arc<Gpus> {
        Arc::clone(&self.current.lock().expect("no holder panics"))
    }

    /// True when it is news.
    pub fn replace(&self, gpus: Gpus) -> bool {
        let mut current = self.current.lock().expect("no holder panics");
        let news = **current != gpus;
        if news {
            *current = Arc::new(gpus);
        }
        news
    }
}

/// Reads the GPUs of this machine, for `gpu_watch`.
pub struct Reader {
    pub worker: NvmlWorker,
    fenced: bool,
    /// The configuration names a library, or the kernel has the driver: without NVML this is no CPU node, it is one in trouble.
    has_driver: bool,
    dev_dir: PathBuf,
}

impl Reader {
    pub fn new(worker: NvmlWorker, config: &Config) -> Self {
        let has_driver =
            config.nvml_lib.is_some() || Path::new("/proc/driver/nvidia/version").exists();
        Self {
            worker,
            fenced: config.isolation == Isolation::Fence,
            has_driver,
            dev_dir: config.dev_dir.clone(),
        }
    }

    /// A reading that fails leaves the GPUs known before, each with the reason as its fault.
    pub fn read(&self, before: &Gpus) -> Gpus {
        match self.worker.discover(NVML_PATIENCE) {
            Ok(found) => {
                let mut facts = found.gpus;
                let node = |gpu: &GpuFacts| Some((gpu.uuid.clone(), gpu_node(&self.dev_dir, gpu)?));
                let nodes: BTreeMap<String, GpuNode> = facts.iter().filter_map(node).collect();
                for gpu in facts
                    .iter_mut()
                    .filter(|gpu| self.fenced && !nodes.contains_key(&gpu.uuid))
                {
                    // A run could be fenced in, and not be given its GPU.
                    let path = device_node(&self.dev_dir, gpu);
                    gpu.fault.get_or_insert_with(|| {
                        format!("its device file {} is missing", path.display())
                    });
                }
                let control = control_nodes(&self.dev_dir);
                let dumb = found
                    .unreadable
                    .iter()
                    .map(|gpu| format!("GPU {}: {}", gpu.index, gpu.fault));
                let trouble = dumb.collect::<Vec<_>>().join("; ");
                Gpus {
                    driver: found.driver_version,
                    facts,
                    nodes,
                    control,
                    trouble,
                    ..Gpus::default()
                }
            }
            // They are looked at anew when it is open again.
            Err(NvmlError::LetGo) => before.clone(),
            Err(e) if e.means_cpu_node() && before.facts.is_empty() && !self.has_driver => {
                tracing::debug!("a CPU node: {e}");
                Gpus::default()
            }
            Err(e) => {
                let mut gpus = before.clone();
                gpus.facts
                    .iter_mut()
                    .for_each(|gpu| gpu.fault = Some(e.to_string()));
                gpus.trouble = match before.facts.is_empty() {
                    true => format!("{e}. Without GPUs on purpose: gpus = \"none\" in gpud.toml"),
                    false => e.to_string(),
                };
                gpus
            }
        }
    }
}

/// The numbers of a GPU's device file.
fn gpu_device(dev_dir: &Path, gpu: &GpuFacts) -> Option<DeviceNumber> {
    char_device(&device_node(dev_dir, gpu)).ok().flatten()
}

/// Device files that any run with a GPU needs, as far as they are there: a simulated driver is not in /proc/devices.
fn control_nodes(dev_dir: &Path) -> Vec<DeviceNumber> {
    let names = [
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia-modeset",
    ];
    names
        .iter()
        .filter_map(|name| char_device(&dev_dir.join(name)).ok().flatten())
        .collect()
}

/// What the fence has to know of a GPU: its device file and the DRI nodes of the same card.
fn gpu_node(dev_dir: &Path, gpu: &GpuFacts) -> Option<GpuNode> {
    let device = gpu_device(dev_dir, gpu)?;
    // NVML writes the domain with eight digits, sysfs and udev with four, in small letters.
    let pci = gpu.pci_bus_id.to_lowercase();
    let pci = pci.get(4..).filter(|_| pci.len() == 16).unwrap_or(&pci);
    let by_path = dev_dir.join("dri/by-path");
    let node = |ending: &str| {
        let link = std::fs::canonicalize(by_path.join(format!("pci-{pci}-{ending}"))).ok()?;
        char_device(&link).ok().flatten()
    };
    Some(GpuNode {
        device,
        render: ["card", "render"]
            .iter()
            .filter_map(|ending| node(ending))
            .collect(),
    })
}

/// The whole report. `unfit` are the standing reasons not to take work.
pub fn inventory(config: &Config, gpus: &Gpus, unfit: String, now: Timestamp) -> Inventory {
    let islands: Vec<Vec<String>> = islands(&gpus.facts)
        .into_iter()
        .filter(|island| island.len() > 1)
        .collect();
    let info = |gpu: &GpuFacts| GpuInfo {
        uuid: gpu.uuid.clone(),
        gpu_type: gpu.gpu_type.clone(),
        index: gpu.index,
        minor: gpu.minor,
        memory_mib: gpu.nominal_memory_mib,
        numa: gpu.numa_node,
        nvlink_island: islands
            .iter()
            .position(|island| island.contains(&gpu.uuid))
            .map(|at| at as u32),
        links: links(gpu, &gpus.facts),
        divided: gpu.mig_enabled,
        fault: gpu.fault.clone().unwrap_or_default(),
        ..GpuInfo::default()
    };
    let info = |gpu: &GpuFacts| {
        let Shown {
            notes,
            wants,
            standing,
        } = gpus.health.get(&gpu.uuid).cloned().unwrap_or_default();
        GpuInfo {
            notes,
            wants: wants.to_owned(),
            standing,
            ..info(gpu)
        }
    };
    let with_slices = |gpu: &GpuFacts| {
        let whole = info(gpu);
        let mut slices = crate::mig::slices(gpu, &whole);
        for slice in slices.iter_mut().filter(|slice| slice.fault.is_empty()) {
            slice.fault = gpus
                .slice_faults
                .get(&slice.uuid)
                .cloned()
                .unwrap_or_default();
        }
        std::iter::once(whole).chain(slices)
    };
    Inventory {
        cpus: config
            .cpus
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32)),
        mem_bytes: config.mem_bytes.unwrap_or_else(memory_bytes),
        gpus: gpus.facts.iter().flat_map(with_slices).collect(),
        nvlink_domain: nvlink_domain(&gpus.facts),
        mig: crate::mig::boards(&gpus.facts).into(),
        features: features(config, gpus),
        // Said by `gpu_share`.
        no_mps: String::new(),
        // By the daemon.
        hung: Vec::new(),
        // By the watch.
        notes: Vec::new(),
        declared: config.cpus.is_some() || config.mem_bytes.is_some(),
        isolation: config.isolation.name().into(),
        unfit,
        os: operating_system(),
        driver: gpus.driver.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        boot_secs: boot_secs(now),
    }
}

/// The domain that all GPUs of the node are in; none where they disagree.
fn nvlink_domain(gpus: &[GpuFacts]) -> String {
    let first = gpus
        .first()
        .map(|gpu| gpu.nvlink_domain.clone())
        .unwrap_or_default();
    if gpus.iter().all(|gpu| gpu.nvlink_domain == first) {
        first
    } else {
        String::new()
    }
}

/// The best way from a GPU to each other: NVLink where there is one, else as they hang on PCIe.
fn links(gpu: &GpuFacts, all: &[GpuFacts]) -> GpuLinks {
    let way = |other: &GpuFacts| {
        let nvlink = gpu
            .nvlinks
            .iter()
            .find(|peer| peer.uuid == other.uuid)
            .filter(|peer| peer.links > 0);
        let pcie = gpu
            .pcie_distances
            .iter()
            .find(|(uuid, _)| *uuid == other.uuid);
        nvlink.map(|peer| GpuLink::Nvlink(peer.links)).or_else(|| {
            pcie.map(|(_, distance)| match distance {
                PcieDistance::Board | PcieDistance::Switch => GpuLink::Switch,
                PcieDistance::Switches => GpuLink::Switches,
                PcieDistance::HostBridge => GpuLink::HostBridge,
                PcieDistance::Node => GpuLink::Node,
                PcieDistance::System => GpuLink::System,
            })
        })
    };
    all.iter()
        .filter(|other| other.uuid != gpu.uuid)
        .filter_map(|other| Some((other.minor, way(other)?)))
        .collect()
}

/// The site's, and what the GPUs are: `h100`, `h100-80g`, `cc9.0`, `nvlink`, `driver-580`, `mig`; for `--constraint`.
fn features(config: &Config, gpus: &Gpus) -> Vec<String> {
    let mut derived = BTreeSet::new();
    for gpu in &gpus.facts {
        let (major, minor) = gpu.compute_capability;
        derived.insert(gpu.gpu_type.clone());
        derived.insert(format!(
            "{}-{}g",
            gpu.gpu_type,
            gpu.nominal_memory_mib / 1024
        ));
        derived.extend((major > 0).then(|| format!("cc{major}.{minor}")));
        derived.extend((!gpu.nvlink_peers.is_empty()).then(|| "nvlink".to_owned()));
        derived.extend(gpu.mig.is_some().then(|| "mig".to_owned()));
    }
    let branch = gpus
        .driver
        .split('.')
        .next()
        .filter(|branch| !branch.is_empty());
    derived.extend(
        branch
            .filter(|_| !gpus.facts.is_empty())
            .map(|branch| format!("driver-{branch}")),
    );
    let own = config.features.clone();
    own.iter()
        .cloned()
        .chain(
            derived
                .into_iter()
                .filter(|one| !one.is_empty() && !own.contains(one)),
        )
        .collect()
}

fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        << 10
}

/// `Debian GNU/Linux 13 (trixie), Linux 6.18.5`.
fn operating_system() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{}, Linux {}",
        name.unwrap_or("unknown").trim_matches('"'),
        kernel.trim()
    )
}

/// Only for display; steps of a second, so that clock noise is no news.
fn boot_secs(now: Timestamp) -> i64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let btime = text
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
    btime.unwrap_or_else(|| now.secs() - (gsys::clock::boottime_millis() / 1000) as i64)
}
