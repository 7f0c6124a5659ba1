//! NVML as a source of GPUs, through nvml-wrapper. A GPU that does not answer does not affect the others. Any call here may hang;
//! `worker` sees to that.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_uint;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::TemperatureThreshold;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError as Answer;
use nvml_wrapper::struct_wrappers::event::EventData;
use nvml_wrapper::{Device, Nvml as Library};

use gmodel::gpu_health::{EventSource, ReadFailure, ReadFailureKind};

use super::answer::{concerns_driver, fact, if_offered, whole_failure};
use super::change::{apply, refusal};
use super::error::NvmlError;
use super::facts::{
    ComputeMode, FixedFacts, GpuFacts, Inventory, UnreadableGpu, nominal_memory_mib,
};
use super::health::{count_links, fabric, fabric_place, link_states};
use super::mig::{read_layout, read_profiles};
use super::topology::{Connections, GpuLinkState, Wiring, read_connections};
use super::usage::{GpmLooks, memory, sample_one};
use super::{Change, GpuEvent, GpuEventKind, GpuHealth, GpuSource, GpuUse, Progress, health};

/// For each index what was read there, or why nothing could be.
type Answers<T> = Vec<(u32, Result<T, ReadFailure>)>;

/// NVML itself. Opened by [`super::NvmlWorker`]; for direct use where a call that hangs may hang the caller.
pub struct Nvml {
    library: Library,
    memory: Memory,
}

/// What was read before and need not be asked again.
#[derive(Default)]
struct Memory {
    /// By handle, which stays with its GPU while the library is initialised.
    fixed: BTreeMap<usize, FixedFacts>,
    wiring: Wiring,
    connections: BTreeMap<String, Connections>,
    gpm: GpmLooks,
}

impl Nvml {
    /// Loads and initialises the library.
    pub fn open(path: &Path) -> Result<Nvml, NvmlError> {
        let shown = path.display().to_string();
        let library = Library::builder()
            .lib_path(path.as_os_str())
            .init()
            .map_err(|error| match error {
                Answer::LibloadingError(reason) => NvmlError::LibraryMissing {
                    path: shown,
                    reason: reason.to_string(),
                },
                Answer::FailedToLoadSymbol(reason) => NvmlError::LibraryTooOld {
                    path: shown,
                    reason,
                },
                other => NvmlError::Init(other.to_string()),
            })?;
        Ok(Nvml {
            library,
            memory: Memory::default(),
        })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        self.memory.gpm.free(self.library.lib());
    }
}

/// Calls `read` for each index in turn; what it says of one GPU does not keep it from the next.
fn each_gpu<T>(
    library: &Library,
    doing: &'static str,
    progress: &Progress,
    read: impl FnMut(u32, &Device<'_>) -> Result<T, Answer>,
) -> Result<Answers<T>, NvmlError> {
    let count = library
        .device_count()
        .map_err(|error| whole_failure(doing, error))?;
    each_of(0..count, library, doing, progress, read)
}

fn each_of<T>(
    indexes: impl IntoIterator<Item = u32>,
    library: &Library,
    doing: &'static str,
    progress: &Progress,
    mut read: impl FnMut(u32, &Device<'_>) -> Result<T, Answer>,
) -> Result<Answers<T>, NvmlError> {
    let mut answers = Vec::new();
    for index in indexes {
        let answer = match progress.begin(index) {
            Err(text) => Err(ReadFailure {
                kind: ReadFailureKind::Hangs,
                text,
            }),
            Ok(()) => match library
                .device_by_index(index)
                .and_then(|device| read(index, &device))
            {
                Err(error) if concerns_driver(&error) => {
                    return Err(whole_failure(doing, error));
                }
                answer => answer.map_err(|error| ReadFailure {
                    kind: match error {
                        Answer::GpuLost => ReadFailureKind::Lost,
                        _ => ReadFailureKind::Error,
                    },
                    text: error.to_string(),
                }),
            },
        };
        answers.push((index, answer));
    }
    progress.end();
    Ok(answers)
}

impl Memory {
    /// What does not change, read once for each GPU.
    fn fixed(&mut self, device: &Device<'_>) -> Result<&mut FixedFacts, Answer> {
        let handle = handle_number(device);
        match self.fixed.entry(handle) {
            std::collections::btree_map::Entry::Occupied(known) => Ok(known.into_mut()),
            std::collections::btree_map::Entry::Vacant(place) => {
                Ok(place.insert(read_fixed(device)?))
            }
        }
    }

    /// Where discovery last saw these GPUs; `None` where it has not seen one of them.
    fn indexes_of(&self, uuids: &BTreeSet<String>) -> Option<Vec<u32>> {
        let of = |uuid: &String| {
            self.fixed
                .values()
                .find(|fixed| fixed.uuid == *uuid)
                .map(|fixed| fixed.index)
        };
        uuids.iter().map(of).collect()
    }

    /// All facts of one GPU: the fixed ones, and those that may have changed.
    fn facts(&mut self, index: u32, device: &Device<'_>) -> Result<GpuFacts, Answer> {
        // A GPU that fell off the bus must say so here: the fixed facts are asked no more.
        let uuid = device.uuid()?;
        let fixed = self.fixed(device)?;
        fixed.index = index;
        let mig = read_layout(device, &fixed.mig_profiles)?;
        fixed.gpu_instances = mig
            .iter()
            .flat_map(|mig| &mig.instances)
            .map(|instance| instance.id)
            .collect();
        Ok(GpuFacts {
            uuid,
            index,
            // Switching MIG on or off may change it.
            minor: device.minor_number()?,
            mig_enabled: mig.as_ref().is_some_and(|mig| mig.enabled),
            mig,
            compute_mode: if_offered(device.compute_mode())?.map(ComputeMode::from),
            ..fixed.facts.clone()
        })
    }

    /// Reads the links between the GPUs in `gpus`. A GPU that does not answer has no links.
    fn connect(&mut self, library: &Library, gpus: &mut [GpuFacts], progress: &Progress) {
        let mut wiring = Wiring::default();
        let mut devices = Vec::new();
        for gpu in gpus.iter() {
            let device = progress
                .begin(gpu.index)
                .ok()
                .and_then(|()| library.device_by_index(gpu.index).ok());
            let state = device.as_ref().and_then(|device| {
                let down = link_states(device, gpu.nvlink_count).ok()?;
                let (ready, domain) = match self.fixed(device).ok()?.has_fabric {
                    true => fabric_place(device).ok()?.map_or(
                        (false, String::new()),
                        |(health, domain)| {
                            (health == gmodel::gpu_health::FabricHealth::Ready, domain)
                        },
                    ),
                    false => (true, String::new()),
                };
                Some((down, ready, domain))
            });
            let answers = state.is_some();
            let (nvlinks_down, fabric_ready, domain) = state.unwrap_or_default();
            wiring.0.push(GpuLinkState {
                uuid: gpu.uuid.clone(),
                answers,
                mig_enabled: gpu.mig_enabled,
                nvlinks_down,
                fabric_ready,
                domain,
            });
            devices.push(
                device
                    .filter(|_| answers)
                    .map(|device| (device, gpu.nvlink_count, gpu.pci_bus_id.to_uppercase())),
            );
        }
        if wiring != self.wiring {
            let indices: Vec<u32> = gpus.iter().map(|gpu| gpu.index).collect();
            self.connections =
                read_connections(&wiring, &devices, |at| progress.begin(indices[at]).is_ok());
            self.wiring = wiring;
        }
        for (gpu, connected) in gpus.iter_mut().zip(&self.wiring.0) {
            gpu.nvlink_domain.clone_from(&connected.domain);
            let Connections {
                nvlinks,
                pcie_distances,
            } = self.connections.get(&gpu.uuid).cloned().unwrap_or_default();
            gpu.nvlink_peers = nvlinks.iter().map(|peer| peer.uuid.clone()).collect();
            gpu.nvlinks = nvlinks;
            gpu.pcie_distances = pcie_distances;
        }
        progress.end();
    }
}

impl GpuSource for Nvml {
    fn discover(&mut self, progress: &Progress) -> Result<Inventory, NvmlError> {
        let doing = "discovery of GPUs";
        let (library, memory) = (&self.library, &mut self.memory);
        let driver_version = library
            .sys_driver_version()
            .map_err(|error| whole_failure(doing, error))?;
        let mut inventory = Inventory {
            driver_version,
            cuda_version: library
                .sys_cuda_driver_version()
                .ok()
                .and_then(|version| version.try_into().ok()),
            ..Inventory::default()
        };
        let answers = each_gpu(library, doing, progress, |index, device| {
            memory.facts(index, device)
        })?;
        for (index, answer) in answers {
            match answer {
                Ok(facts) => inventory.gpus.push(facts),
                Err(silence) => inventory.unreadable.push(UnreadableGpu {
                    index,
                    kind: silence.kind,
                    fault: silence.text,
                }),
            }
        }
        memory.connect(library, &mut inventory.gpus, progress);
        Ok(inventory)
    }

    fn read_health(&mut self, progress: &Progress) -> Result<Vec<GpuHealth>, NvmlError> {
        let (library, memory) = (&self.library, &mut self.memory);
        let answers = each_gpu(
            library,
            "reading the health of GPUs",
            progress,
            |index, device| {
                let fixed = memory.fixed(device)?;
                health::read_one(index, device, fixed)
            },
        )?;
        let or_silent = |(index, answer): (u32, Result<GpuHealth, ReadFailure>)| {
            answer.unwrap_or_else(|silence| GpuHealth::silent(index, silence))
        };
        Ok(answers.into_iter().map(or_silent).collect())
    }

    fn sample_use(
        &mut self,
        progress: &Progress,
        only: Option<&BTreeSet<String>>,
    ) -> Result<Vec<GpuUse>, NvmlError> {
        const DOING: &str = "sampling the use of GPUs";
        let (library, memory) = (&self.library, &mut self.memory);
        let wanted = only.and_then(|uuids| memory.indexes_of(uuids));
        let sample = |index, device: &Device<'_>| {
            let fixed = memory.fixed(device)?.clone();
            sample_one(index, device, &fixed, &mut memory.gpm)
        };
        let answers = match wanted {
            Some(indexes) => each_of(indexes, library, DOING, progress, sample),
            None => each_gpu(library, DOING, progress, sample),
        }?;
        let or_fault = |(index, answer): (u32, Result<GpuUse, ReadFailure>)| {
            answer.unwrap_or_else(|silence| GpuUse {
                index,
                fault: Some(silence),
                ..GpuUse::default()
            })
        };
        Ok(answers.into_iter().map(or_fault).collect())
    }

    fn change(
        &mut self,
        progress: &Progress,
        uuid: &str,
        change: &Change,
    ) -> Result<Option<u32>, NvmlError> {
        let doing = change.doing();
        let refused = |refusal| NvmlError::Refused {
            doing,
            uuid: uuid.to_owned(),
            refusal,
        };
        let failure = |error: Answer| match refusal(&error) {
            Some(refusal) => refused(refusal),
            None => whole_failure(doing, error),
        };
        // Said before the first call: it may be this very GPU that hangs.
        let known = self.memory.fixed.values().find(|fixed| fixed.uuid == uuid);
        if let Some(fixed) = known {
            progress
                .begin(fixed.index)
                .map_err(|reason| NvmlError::Failed { doing, reason })?;
        }
        let device = self.library.device_by_uuid(uuid).map_err(failure)?;
        let outcome = apply(&device, change);
        progress.end();
        outcome.map_err(failure)
    }

    fn watch(
        &mut self,
        uuids: &BTreeSet<String>,
        each: &mut dyn FnMut(Option<GpuEvent>) -> ControlFlow<()>,
    ) -> Result<(), NvmlError> {
        let doing = "watching for events of GPUs";
        let library = &self.library;
        // A GPU that fell off the bus cannot be asked for its UUID any more, when that very event comes: keep it by handle.
        let mut by_handle = BTreeMap::new();
        let mut refused = BTreeSet::new();
        let set = 'again: loop {
            by_handle.clear();
            let mut set = library
                .create_event_set()
                .map_err(|error| whole_failure(doing, error))?;
            for uuid in uuids.difference(&refused) {
                let registered = library.device_by_uuid(uuid.as_str()).and_then(|device| {
                    by_handle.insert(handle_number(&device), uuid.clone());
                    device
                        .supported_event_types()
                        .map(|supported| (device, supported))
                });
                let Ok((device, supported)) = registered else {
                    continue;
                };
                let wanted = supported
                    & (EventTypes::CRITICAL_XID_ERROR
                        | EventTypes::SINGLE_BIT_ECC_ERROR
                        | EventTypes::DOUBLE_BIT_ECC_ERROR
                        | EventTypes::MIG_CONFIG_CHANGE);
                match device.register_events(wanted, set) {
                    Ok(kept) => set = kept,
                    // The set is gone with the refusal: begin again without this GPU.
                    Err(_) => {
                        refused.insert(uuid.clone());
                        continue 'again;
                    }
                }
            }
            break set;
        };
        // One that was refused may be watched later, when it has been reset.
        let until = (!refused.is_empty()).then(|| Instant::now() + Duration::from_secs(60));
        let mut next = None;
        while each(next).is_continue() && until.is_none_or(|until| Instant::now() < until) {
            next = match set.wait(500) {
                Ok(event) => event_of(&event, &by_handle),
                Err(Answer::Timeout) => None,
                Err(error) if concerns_driver(&error) => return Err(whole_failure(doing, error)),
                Err(_) => {
                    // Some drivers answer "lost" at once for as long as one GPU is: do not spin.
                    thread::sleep(Duration::from_millis(200));
                    None
                }
            };
        }
        Ok(())
    }
}

fn event_of(event: &EventData<'_>, by_handle: &BTreeMap<usize, String>) -> Option<GpuEvent> {
    let uuid = by_handle.get(&handle_number(&event.device))?.clone();
    let kind = match event.event_data {
        Some(XidError::Value(number)) => GpuEventKind::Xid(number),
        Some(XidError::Unknown) => GpuEventKind::Xid(999),
        None if event.event_type.contains(EventTypes::DOUBLE_BIT_ECC_ERROR) => {
            GpuEventKind::EccUncorrected
        }
        None if event.event_type.contains(EventTypes::SINGLE_BIT_ECC_ERROR) => {
            GpuEventKind::EccCorrected
        }
        None if event.event_type.contains(EventTypes::MIG_CONFIG_CHANGE) => {
            GpuEventKind::MigConfigChange
        }
        None => return None,
    };
    Some(GpuEvent {
        uuid,
        kind,
        count: 1,
        source: EventSource::EventSet,
    })
}

fn handle_number(device: &Device<'_>) -> usize {
    // SAFETY: the handle is only compared, never used to call NVML.
    unsafe { device.handle() as usize }
}

fn read_fixed(device: &Device<'_>) -> Result<FixedFacts, Answer> {
    let name = device.name()?;
    let memory_bytes = fact(memory(device))?
        .flatten()
        .map_or(0, |memory| memory.total_bytes);
    let pci_bus_id = device.pci_info()?.bus_id;
    let capability = device.cuda_compute_capability()?;
    let threshold = |kind| fact(device.temperature_threshold(kind));
    let facts = GpuFacts {
        uuid: device.uuid()?,
        gpu_type: gmodel::gpu_type::gpu_type_of(&name),
        name,
        memory_bytes,
        nominal_memory_mib: nominal_memory_mib(memory_bytes),
        serial: fact(device.serial())?,
        numa_node: numa_node(device, &pci_bus_id)?,
        near_cpus: near_cpus(device)?,
        pci_bus_id,
        compute_capability: (capability.major as u32, capability.minor as u32),
        pcie_gen_max: fact(device.max_pcie_link_gen())?,
        pcie_width_max: fact(device.max_pcie_link_width())?,
        slowdown_c: threshold(TemperatureThreshold::Slowdown)?,
        memory_max_c: threshold(TemperatureThreshold::MemoryMax)?,
        nvlink_count: fact(count_links(device))?.unwrap_or(0),
        ..GpuFacts::default()
    };
    Ok(FixedFacts {
        uuid: facts.uuid.clone(),
        nvlink_count: facts.nvlink_count,
        pcie_gen_max: facts.pcie_gen_max,
        pcie_width_max: facts.pcie_width_max,
        slowdown_c: facts.slowdown_c,
        memory_max_c: facts.memory_max_c,
        has_sram_status: fact(health::has_sram_status(device))?.unwrap_or(false),
        has_fabric: fact(fabric(device))?.flatten().is_some(),
        has_gpm: fact(device.gpm_support())?.unwrap_or(false),
        index: 0,
        gpu_instances: Vec::new(),
        mig_profiles: fact(read_profiles(device))?.unwrap_or_default(),
        facts,
    })
}

/// Ranges of processors.
fn near_cpus(device: &Device<'_>) -> Result<Vec<(u32, u32)>, Answer> {
    /// Room for 4,096 processors.
    const WORDS: usize = 64;
    let words = fact(device.cpu_affinity(WORDS))?.unwrap_or_default();
    let bits = words.iter().zip(0u32..).flat_map(|(&word, at)| {
        (0..u64::BITS)
            .filter(move |bit| word & (1 << bit) != 0)
            .map(move |bit| at * u64::BITS + bit)
    });
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for cpu in bits {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    Ok(ranges)
}

/// The host's node, not NVML's `NumaNodeId`: that one is the GPU's own memory and exists on Grace only.
fn numa_node(device: &Device<'_>, pci_bus_id: &str) -> Result<Option<u32>, Answer> {
    const WITHIN_NODE: c_uint = 0;
    let words = fact(device.memory_affinity(16, WITHIN_NODE))?.unwrap_or_default();
    let bits = u64::BITS;
    let from_nvml = words
        .iter()
        .zip(0u32..)
        .find(|(word, _)| **word != 0)
        .map(|(word, at)| at * bits + word.trailing_zeros());
    Ok(from_nvml.or_else(|| numa_node_in_sysfs(pci_bus_id)))
}

fn numa_node_in_sysfs(pci_bus_id: &str) -> Option<u32> {
    // NVML writes the domain with eight digits, the kernel with four.
    let (domain, place) = pci_bus_id.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let path = format!(
        "/sys/bus/pci/devices/{domain:04x}:{}/numa_node",
        place.to_lowercase()
    );
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
