//! The GPUs of this machine as NVML last reported, for each thread that prepares a run or reports. Health over time is `health`.

use crate::config::{Config, Isolation};
use gcore::node::gpu_health::HealthReport;
use gsys::device_fence::{DeviceNumber, GpuNode};
use gsys::device_node::char_device;
use gsys::nvml::{GpuFacts, NvmlError, NvmlWorker, device_node};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

const NVML_PATIENCE: Duration = Duration::from_secs(5);

/// The GPUs as last read.
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
    /// Notes, wanted steps and repairs of GPUs, besides the faults in `facts`.
    pub health: BTreeMap<String, HealthReport>,
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
pub struct GpuReader {
    pub worker: NvmlWorker,
    fenced: bool,
    /// The configuration names a library, or the kernel has the driver: without NVML this is no CPU node, it is one in trouble.
    has_driver: bool,
    dev_dir: PathBuf,
}

impl GpuReader {
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
            // The GPUs are read again when NVML is open again.
            Err(NvmlError::Closed) => before.clone(),
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
    let paths = control_paths(dev_dir);
    let device = |path: &PathBuf| char_device(path).ok().flatten();
    paths.iter().filter_map(device).collect()
}

/// Their paths.
pub fn control_paths(dev_dir: &Path) -> Vec<PathBuf> {
    let names = [
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia-modeset",
    ];
    let paths = names.iter().map(|name| dev_dir.join(name));
    paths.filter(|path| path.exists()).collect()
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
