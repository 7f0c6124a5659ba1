//! NVML as a source of GPUs: nvml-wrapper's answers put into our words. One GPU that does not answer keeps nothing from the
//! others. Any call here may hang; `worker` sees to that.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_uint;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, P2pCapabilitiesIndex, P2pStatus, TemperatureSensor,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError as Answer;
use nvml_wrapper::struct_wrappers::event::EventData;
use nvml_wrapper::{Device, Nvml as Library};

use super::{
    GpuEvent, GpuEventKind, GpuFacts, GpuHealth, GpuProcess, GpuSource, Inventory, NvmlError,
    Progress, UnreadableGpu, gpu_type_of, nominal_memory_mib,
};

/// For each index what was read there, or why nothing could be.
type Answers<T> = Vec<(u32, Result<T, String>)>;

/// NVML itself. Opened by [`NvmlWorker`]; for direct use where a call that hangs may hang the caller.
pub struct Nvml {
    library: Library,
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
        Ok(Nvml { library })
    }

    /// Calls `read` for each index in turn; what it says of one GPU does not keep it from the next.
    fn each_gpu<T>(
        &self,
        doing: &'static str,
        progress: &Progress,
        mut read: impl FnMut(u32, &Device<'_>) -> Result<T, Answer>,
    ) -> Result<Answers<T>, NvmlError> {
        let count = self
            .library
            .device_count()
            .map_err(|error| whole_failure(doing, error))?;
        let mut answers = Vec::new();
        for index in 0..count {
            let answer = match progress.begin(index) {
                Err(fault) => Err(fault),
                Ok(()) => match self
                    .library
                    .device_by_index(index)
                    .and_then(|device| read(index, &device))
                {
                    Err(error) if concerns_driver(&error) => {
                        return Err(whole_failure(doing, error));
                    }
                    answer => answer.map_err(|error| error.to_string()),
                },
            };
            answers.push((index, answer));
        }
        progress.end();
        Ok(answers)
    }

    /// Of those in `gpus`, which reach each other by NVLink. One that does not answer has no peers.
    fn join_by_nvlink(&self, gpus: &mut [GpuFacts], progress: &Progress) {
        let mut devices = Vec::new();
        for gpu in gpus.iter() {
            let device = progress
                .begin(gpu.index)
                .ok()
                .and_then(|()| self.library.device_by_index(gpu.index).ok());
            devices.push((gpu.index, gpu.uuid.clone(), device));
        }
        for (gpu, (_, _, device)) in gpus.iter_mut().zip(&devices) {
            let Some(device) = device else { continue };
            let joined = |other: &Device<'_>| {
                matches!(
                    device.p2p_status(other, P2pCapabilitiesIndex::NvLink),
                    Ok(P2pStatus::Ok)
                )
            };
            for (index, uuid, other) in &devices {
                if *uuid != gpu.uuid
                    && progress.begin(*index).is_ok()
                    && other.as_ref().is_some_and(&joined)
                {
                    gpu.nvlink_peers.push(uuid.clone());
                }
            }
            gpu.nvlink_peers.sort();
        }
        progress.end();
    }
}

impl GpuSource for Nvml {
    fn discover(&mut self, progress: &Progress) -> Result<Inventory, NvmlError> {
        let doing = "discovery of GPUs";
        let driver_version = self
            .library
            .sys_driver_version()
            .map_err(|error| whole_failure(doing, error))?;
        let mut inventory = Inventory {
            driver_version,
            ..Inventory::default()
        };
        for (index, answer) in self.each_gpu(doing, progress, read_facts)? {
            match answer {
                Ok(facts) => inventory.gpus.push(facts),
                Err(fault) => inventory.unreadable.push(UnreadableGpu { index, fault }),
            }
        }
        self.join_by_nvlink(&mut inventory.gpus, progress);
        Ok(inventory)
    }

    fn read_health(&mut self, progress: &Progress) -> Result<Vec<GpuHealth>, NvmlError> {
        let answers = self.each_gpu("reading the health of GPUs", progress, read_one_health)?;
        let or_fault = |(index, answer): (u32, Result<GpuHealth, String>)| {
            answer.unwrap_or_else(|fault| GpuHealth {
                index,
                fault: Some(fault),
                ..GpuHealth::default()
            })
        };
        Ok(answers.into_iter().map(or_fault).collect())
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
                        | EventTypes::DOUBLE_BIT_ECC_ERROR);
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
        None => return None,
    };
    Some(GpuEvent {
        uuid,
        kind,
        count: 1,
    })
}

fn handle_number(device: &Device<'_>) -> usize {
    // SAFETY: the handle is only compared, never used to call NVML.
    unsafe { device.handle() as usize }
}

fn read_facts(index: u32, device: &Device<'_>) -> Result<GpuFacts, Answer> {
    let name = device.name()?;
    let memory_bytes = device.memory_info()?.total;
    let pci_bus_id = device.pci_info()?.bus_id;
    let capability = device.cuda_compute_capability()?;
    Ok(GpuFacts {
        uuid: device.uuid()?,
        index,
        minor: device.minor_number()?,
        gpu_type: gpu_type_of(&name),
        name,
        memory_bytes,
        nominal_memory_mib: nominal_memory_mib(memory_bytes),
        numa_node: numa_node(device, &pci_bus_id)?,
        pci_bus_id,
        compute_capability: (capability.major as u32, capability.minor as u32),
        mig_enabled: if_offered(device.mig_mode())?.is_some_and(|mode| mode.current != 0),
        nvlink_peers: Vec::new(),
        fault: None,
    })
}

/// The host's node, not NVML's `NumaNodeId`: that one is the GPU's own memory and exists on Grace only.
fn numa_node(device: &Device<'_>, pci_bus_id: &str) -> Result<Option<u32>, Answer> {
    const WITHIN_NODE: c_uint = 0;
    let words = if_offered(device.memory_affinity(16, WITHIN_NODE))?.unwrap_or_default();
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

fn read_one_health(index: u32, device: &Device<'_>) -> Result<GpuHealth, Answer> {
    let load = if_offered(device.utilization_rates())?;
    let rows = remapped_rows(device)?;
    let processes = if_offered(device.running_compute_processes())?.unwrap_or_default();
    let process = |process: nvml_wrapper::struct_wrappers::device::ProcessInfo| GpuProcess {
        pid: process.pid,
        memory_bytes: match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
    };
    Ok(GpuHealth {
        index,
        uuid: Some(device.uuid()?),
        fault: None,
        temperature_c: if_offered(device.temperature(TemperatureSensor::Gpu))?,
        power_mw: if_offered(device.power_usage())?,
        energy_mj: if_offered(device.total_energy_consumption())?,
        gpu_percent: load.as_ref().map(|load| load.gpu),
        memory_percent: load.as_ref().map(|load| load.memory),
        memory_used_bytes: if_offered(device.memory_info())?.map(|memory| memory.used),
        sm_clock_mhz: if_offered(device.clock_info(Clock::SM))?,
        throttle_reasons: if_offered(device.current_throttle_reasons())?
            .map(|reasons| reasons.bits()),
        ecc_corrected: if_offered(
            device.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile),
        )?,
        ecc_uncorrected: if_offered(
            device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile),
        )?,
        row_remap_pending: rows.map(|(pending, _)| pending),
        row_remap_failed: rows.map(|(_, failed)| failed),
        nvlinks_down: nvlinks_down(device)?,
        pcie_width: if_offered(device.current_pcie_link_width())?,
        processes: processes.into_iter().map(process).collect(),
    })
}

/// Whether a row remap waits for a reset, and whether one failed. The wrapper does not have this call.
fn remapped_rows(device: &Device<'_>) -> Result<Option<(bool, bool)>, Answer> {
    const SUCCESS: c_uint = 0;
    const GPU_IS_LOST: c_uint = 15;
    let Ok(ask) = &device.nvml().lib().nvmlDeviceGetRemappedRows else {
        return Ok(None);
    };
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle is of the library the function comes from, and all four pointers are to live integers of NVML's type.
    let code = unsafe {
        ask(
            device.handle(),
            &mut corrected,
            &mut uncorrected,
            &mut pending,
            &mut failed,
        )
    };
    match code {
        SUCCESS => Ok(Some((pending != 0, failed != 0))),
        GPU_IS_LOST => Err(Answer::GpuLost),
        _ => Ok(None),
    }
}

/// NVML has links 0 to 17 at most, and refuses the number behind a board's last.
fn nvlinks_down(device: &Device<'_>) -> Result<Vec<u32>, Answer> {
    let mut down = Vec::new();
    for link in 0..18 {
        match if_offered(device.link_wrapper_for(link).is_active())? {
            Some(true) => {}
            Some(false) => down.push(link),
            None => break,
        }
    }
    Ok(down)
}

/// `None` where the board, the driver or the library does not know the question.
fn if_offered<T>(answer: Result<T, Answer>) -> Result<Option<T>, Answer> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(
            Answer::NotSupported
            | Answer::InvalidArg
            | Answer::NotFound
            | Answer::FailedToLoadSymbol(_)
            | Answer::FunctionNotFound,
        ) => Ok(None),
        Err(Answer::NoPermission | Answer::UnexpectedVariant(_) | Answer::IncorrectBits(_)) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Errors that are not of one GPU: the library must be opened anew.
fn concerns_driver(error: &Answer) -> bool {
    matches!(
        error,
        Answer::Uninitialized | Answer::DriverNotLoaded | Answer::LibRmVersionMismatch
    )
}

fn whole_failure(doing: &'static str, error: Answer) -> NvmlError {
    if concerns_driver(&error) {
        NvmlError::Init(error.to_string())
    } else {
        NvmlError::Failed {
            doing,
            reason: error.to_string(),
        }
    }
}
