//! The use of each GPU, and its processes. Six calls a GPU and sample, two more where GPM tells the use of multiprocessors
//! (Hopper and later) and two for each MIG instance. Never `nvmlDeviceGetPcieThroughput`: it waits 20 ms for its answer.

use std::collections::BTreeMap;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError as Answer;
use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, NvmlLib, field_id as id, nvmlDevice_t,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL as DRAM,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL as SM, nvmlGpmMetricsGet_t, nvmlGpmSample_t,
    nvmlMemory_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t,
};
use serde::{Deserialize, Serialize};

use gmodel::Timestamp;
use gmodel::gpu_health::ReadFailure;
use gmodel::gpu_use::UseSample;

use super::answer::{check, if_offered};
use super::facts::FixedFacts;
use super::fields::{ALL_LINKS, NO_SCOPE, read_fields};
use super::health::link_traffic;

/// One sample of one GPU; what the board does not offer is `None`. Counters only rise while the driver is loaded: use
/// differences of two samples, and none where the later is smaller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuUse {
    pub index: u32,
    /// Unknown where the GPU does not answer and was never discovered.
    pub uuid: Option<String>,
    /// Why there is no sample.
    pub fault: Option<ReadFailure>,
    /// Share of the time in which any kernel ran; `None` in MIG mode.
    pub gpu_percent: Option<u32>,
    /// Share of the multiprocessors' time, since the sample before; Hopper and later.
    pub sm_percent: Option<u32>,
    /// Share of the time in which memory was read or written.
    pub memory_percent: Option<u32>,
    pub memory_used_bytes: Option<u64>,
    pub temperature_c: Option<u32>,
    pub power_mw: Option<u32>,
    /// Counter.
    pub energy_mj: Option<u64>,
    pub sm_clock_mhz: Option<u32>,
    /// Counters, all links together.
    pub nvlink_sent_kib: Option<u64>,
    pub nvlink_received_kib: Option<u64>,
    /// Counters.
    pub pcie_sent_bytes: Option<u64>,
    pub pcie_received_bytes: Option<u64>,
    /// Counters: time slowed down for lack of power and for heat.
    pub power_slowed_ms: Option<u64>,
    pub heat_slowed_ms: Option<u64>,
    pub processes: Vec<GpuProcess>,
    /// In MIG mode, each GPU instance.
    pub instances: Vec<InstanceUse>,
}

impl GpuUse {
    /// What adds up in a run's record, of the whole GPU.
    pub fn sample(&self, at: Timestamp) -> UseSample {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one? + other?);
        UseSample {
            at,
            busy_percent: self.sm_percent.or(self.gpu_percent),
            memory_percent: self.memory_percent,
            memory_used_bytes: self.memory_used_bytes,
            power_mw: self.power_mw,
            temperature_c: self.temperature_c,
            energy_mj: self.energy_mj,
            nvlink_kib: sum(self.nvlink_sent_kib, self.nvlink_received_kib),
            pcie_kib: sum(self.pcie_sent_bytes, self.pcie_received_bytes).map(|bytes| bytes >> 10),
            slowed_ms: sum(self.power_slowed_ms, self.heat_slowed_ms),
        }
    }

    /// The same of one MIG instance: its own use and memory, the whole GPU's energy and traffic, to be charged in its part.
    pub fn instance_sample(&self, gpu_instance_id: u32, at: Timestamp) -> Option<UseSample> {
        let mut instances = self.instances.iter();
        let instance = instances.find(|instance| instance.gpu_instance_id == gpu_instance_id)?;
        Some(UseSample {
            busy_percent: instance.sm_percent,
            memory_percent: instance.memory_percent,
            memory_used_bytes: Some(instance.memory_used_bytes),
            ..self.sample(at)
        })
    }

    /// Why the GPU is not clean for the next tenant: processes, or more memory in use than `slack_bytes` (a driver keeps a few
    /// MiB). `None`: it is clean. A GPU that gave no sample is not. For one MIG instance, name it.
    pub fn leftovers(&self, gpu_instance_id: Option<u32>, slack_bytes: u64) -> Option<String> {
        if let Some(silence) = &self.fault {
            return Some(format!("it does not answer: {}", silence.text));
        }
        let mine = |process: &&GpuProcess| {
            gpu_instance_id.is_none() || process.gpu_instance_id == gpu_instance_id
        };
        let pids: Vec<String> = self
            .processes
            .iter()
            .filter(mine)
            .map(|process| process.pid.to_string())
            .collect();
        if !pids.is_empty() {
            return Some(match &pids[..] {
                [pid] => format!("process {pid} is still on it"),
                _ => format!("processes {} are still on it", pids.join(", ")),
            });
        }
        // What an instance holds beyond its processes is not told.
        let used = self
            .memory_used_bytes
            .filter(|_| gpu_instance_id.is_none())?;
        (used > slack_bytes).then(|| {
            format!(
                "{} MiB of its memory are still in use and {} MiB are expected at most",
                used >> 20,
                slack_bytes >> 20
            )
        })
    }
}

/// One GPU instance; its processes are those of the GPU with its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceUse {
    pub gpu_instance_id: u32,
    /// Since the sample before; Hopper and later.
    pub sm_percent: Option<u32>,
    pub memory_percent: Option<u32>,
    /// What its processes hold.
    pub memory_used_bytes: u64,
}

/// A process with a context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    pub pid: u32,
    pub kind: ProcessKind,
    /// `None` where the driver will not say.
    pub memory_bytes: Option<u64>,
    /// The MIG instance it is confined to.
    pub gpu_instance_id: Option<u32>,
    pub compute_instance_id: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessKind {
    Compute,
    /// A client of an MPS server, which itself is listed as compute.
    Mps,
    Graphics,
}

const FIELDS: &[(u32, u32)] = &[
    (id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, NO_SCOPE),
    (id::NVML_FI_DEV_POWER_INSTANT, NO_SCOPE),
    (id::NVML_FI_DEV_PERF_POLICY_POWER, NO_SCOPE),
    (id::NVML_FI_DEV_PERF_POLICY_THERMAL, NO_SCOPE),
    (id::NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NO_SCOPE),
    (id::NVML_FI_DEV_PCIE_COUNT_RX_BYTES, NO_SCOPE),
    (id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
    (id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
];

pub fn sample_one(
    index: u32,
    device: &Device<'_>,
    fixed: &FixedFacts,
    gpm: &mut GpmLooks,
) -> Result<GpuUse, Answer> {
    let rates = if_offered(device.utilization_rates())?;
    let fields = read_fields(device, FIELDS)?.unwrap_or_default();
    let power = fields.value(id::NVML_FI_DEV_POWER_INSTANT);
    let energy = fields.value(id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION);
    let millis = |field| fields.value(field).map(|nanos| nanos / 1_000_000);
    let (nvlink_sent_kib, nvlink_received_kib) = link_traffic(&fields);
    let processes = processes(device)?;
    let whole = match &rates {
        Some(_) if fixed.has_gpm => gpm.look(device, None)?,
        _ => None,
    };
    let mut sample = GpuUse {
        index,
        uuid: Some(fixed.uuid.clone()),
        fault: None,
        gpu_percent: rates.as_ref().map(|rates| rates.gpu),
        sm_percent: whole.and_then(|look| look.sm_percent),
        memory_percent: rates.as_ref().map(|rates| rates.memory),
        memory_used_bytes: memory(device)?.map(|memory| memory.used_bytes),
        temperature_c: if_offered(device.temperature(TemperatureSensor::Gpu))?,
        power_mw: match power {
            Some(power) => u32::try_from(power).ok(),
            None => if_offered(device.power_usage())?,
        },
        energy_mj: match energy {
            Some(energy) => Some(energy),
            None => if_offered(device.total_energy_consumption())?,
        },
        sm_clock_mhz: if_offered(device.clock_info(Clock::SM))?,
        nvlink_sent_kib: nvlink_sent_kib.filter(|_| fixed.nvlink_count > 0),
        nvlink_received_kib: nvlink_received_kib.filter(|_| fixed.nvlink_count > 0),
        pcie_sent_bytes: fields.value(id::NVML_FI_DEV_PCIE_COUNT_TX_BYTES),
        pcie_received_bytes: fields.value(id::NVML_FI_DEV_PCIE_COUNT_RX_BYTES),
        power_slowed_ms: millis(id::NVML_FI_DEV_PERF_POLICY_POWER),
        heat_slowed_ms: millis(id::NVML_FI_DEV_PERF_POLICY_THERMAL),
        processes,
        instances: Vec::new(),
    };
    for &instance in &fixed.gpu_instances {
        let look = match fixed.has_gpm {
            true => gpm.look(device, Some(instance))?,
            false => None,
        };
        let inside = sample.processes.iter();
        let inside = inside.filter(|process| process.gpu_instance_id == Some(instance));
        sample.instances.push(InstanceUse {
            gpu_instance_id: instance,
            sm_percent: look.and_then(|look| look.sm_percent),
            memory_percent: look.and_then(|look| look.memory_percent),
            memory_used_bytes: inside.filter_map(|process| process.memory_bytes).sum(),
        });
    }
    Ok(sample)
}

/// Compute, MPS clients, graphics. Graphics is asked only where nothing else runs: GPUs of a pool show no pictures.
fn processes(device: &Device<'_>) -> Result<Vec<GpuProcess>, Answer> {
    let lib = device.nvml().lib();
    let compute = ProcessLists {
        named: [
            lib.nvmlDeviceGetComputeRunningProcesses_v3.as_ref().ok(),
            lib.nvmlDeviceGetComputeRunningProcesses_v2.as_ref().ok(),
        ],
        first: lib.nvmlDeviceGetComputeRunningProcesses.as_ref().ok(),
    };
    let mps = ProcessLists {
        named: [
            lib.nvmlDeviceGetMPSComputeRunningProcesses_v3.as_ref().ok(),
            lib.nvmlDeviceGetMPSComputeRunningProcesses_v2.as_ref().ok(),
        ],
        first: lib.nvmlDeviceGetMPSComputeRunningProcesses.as_ref().ok(),
    };
    let mut found = compute.read(device, ProcessKind::Compute)?;
    // A client of MPS is listed in both by some drivers.
    for client in mps.read(device, ProcessKind::Mps)? {
        match found.iter_mut().find(|process| process.pid == client.pid) {
            Some(process) => process.kind = ProcessKind::Mps,
            None => found.push(client),
        }
    }
    if found.is_empty() {
        let graphics = ProcessLists {
            named: [
                lib.nvmlDeviceGetGraphicsRunningProcesses_v3.as_ref().ok(),
                lib.nvmlDeviceGetGraphicsRunningProcesses_v2.as_ref().ok(),
            ],
            first: lib.nvmlDeviceGetGraphicsRunningProcesses.as_ref().ok(),
        };
        found = graphics.read(device, ProcessKind::Graphics)?;
    }
    Ok(found)
}

type ListProcesses<T> = unsafe extern "C" fn(nvmlDevice_t, *mut u32, *mut T) -> nvmlReturn_t;

/// The function that lists one kind of processes, in the versions that the loaded driver has of it.
struct ProcessLists<'a> {
    /// From R510 and from R470 on: of which MIG instance a process is.
    named: [Option<&'a ListProcesses<nvmlProcessInfo_t>>; 2],
    /// Before: only how much memory it has.
    first: Option<&'a ListProcesses<nvmlProcessInfo_v1_t>>,
}

impl ProcessLists<'_> {
    /// By the newest that the driver knows.
    fn read(&self, device: &Device<'_>, kind: ProcessKind) -> Result<Vec<GpuProcess>, Answer> {
        for ask in self.named.into_iter().flatten() {
            match list(device, ask) {
                Err(Answer::FunctionNotFound) => {}
                told => {
                    return Ok(if_offered(told)?
                        .unwrap_or_default()
                        .iter()
                        .map(|info| seen(info, kind))
                        .collect());
                }
            }
        }
        let Some(ask) = self.first else {
            return Ok(Vec::new());
        };
        let of_gpu = |info: &nvmlProcessInfo_v1_t| nvmlProcessInfo_t {
            pid: info.pid,
            usedGpuMemory: info.usedGpuMemory,
            gpuInstanceId: u32::MAX,
            computeInstanceId: u32::MAX,
        };
        let told = if_offered(list(device, ask))?.unwrap_or_default();
        Ok(told.iter().map(|info| seen(&of_gpu(info), kind)).collect())
    }
}

/// One kind of processes in one call, where nvml-wrapper makes two; a second call only where the buffer was too small.
fn list<T: Copy>(device: &Device<'_>, ask: &ListProcesses<T>) -> Result<Vec<T>, Answer> {
    // An MPS server of the newest boards takes 60 clients.
    let mut room: u32 = 64;
    loop {
        let mut infos: Vec<T> = Vec::with_capacity(room as usize);
        let mut count = room;
        // SAFETY: the handle is of the library the function comes from, and the array has room for the count that is told.
        let code = unsafe { ask(device.handle(), &mut count, infos.as_mut_ptr()) };
        if code == INSUFFICIENT_SIZE && count > room && count < MAX_PROCESSES {
            // Some may come between the two calls.
            room = count + 16;
            continue;
        }
        check(code)?;
        // SAFETY: after success the library has filled as many as it counts, which are no more than there is room for.
        unsafe { infos.set_len(count.min(room) as usize) };
        return Ok(infos);
    }
}

/// More are not asked for: something is wrong with the count.
const MAX_PROCESSES: u32 = 100_000;

fn seen(info: &nvmlProcessInfo_t, kind: ProcessKind) -> GpuProcess {
    let id = |value: u32| (value != u32::MAX).then_some(value);
    GpuProcess {
        pid: info.pid,
        kind,
        memory_bytes: (info.usedGpuMemory != u64::MAX).then_some(info.usedGpuMemory),
        gpu_instance_id: id(info.gpuInstanceId),
        compute_instance_id: id(info.computeInstanceId),
    }
}

/// A board's memory, in bytes.
pub struct BoardMemory {
    pub total_bytes: u64,
    pub used_bytes: u64,
}

/// Drivers before R510 know only the first version, which counts the driver's own memory as used.
pub fn memory(device: &Device<'_>) -> Result<Option<BoardMemory>, Answer> {
    if let Some(told) = if_offered(device.memory_info())? {
        return Ok(Some(BoardMemory {
            total_bytes: told.total,
            used_bytes: told.used,
        }));
    }
    let Ok(ask) = &device.nvml().lib().nvmlDeviceGetMemoryInfo else {
        return Ok(None);
    };
    let mut told = nvmlMemory_t {
        total: 0,
        free: 0,
        used: 0,
    };
    // SAFETY: the handle is of the library the function comes from, and the pointer is to a live structure of its type.
    let code = unsafe { ask(device.handle(), &mut told) };
    Ok(if_offered(check(code))?.map(|()| BoardMemory {
        total_bytes: told.total,
        used_bytes: told.used,
    }))
}

/// What GPM saw between two looks; `None` where it does not tell one of them.
#[derive(Clone, Copy, Debug)]
pub struct GpmLook {
    sm_percent: Option<u32>,
    memory_percent: Option<u32>,
}

/// The earlier look at each GPU (by handle) and GPU instance, and room for the next. To be freed by [`GpmLooks::free`].
#[derive(Default)]
pub struct GpmLooks(BTreeMap<(usize, Option<u32>), SamplePair>);

struct SamplePair {
    earlier: nvmlGpmSample_t,
    room: nvmlGpmSample_t,
    seen: bool,
}

impl GpmLooks {
    /// Looks at a GPU or an instance; the first look sees nothing, and so does one at an instance that is gone.
    fn look(
        &mut self,
        device: &Device<'_>,
        instance: Option<u32>,
    ) -> Result<Option<GpmLook>, Answer> {
        let lib = device.nvml().lib();
        // SAFETY: the handle is only a key here.
        let key = (unsafe { device.handle() } as usize, instance);
        let pair = match self.0.entry(key) {
            std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => match SamplePair::allocate(lib)? {
                Some(pair) => place.insert(pair),
                None => return Ok(None),
            },
        };
        if if_offered(pair.read(device, instance))?.is_none() {
            pair.seen = false;
            return Ok(None);
        }
        std::mem::swap(&mut pair.earlier, &mut pair.room);
        if !std::mem::replace(&mut pair.seen, true) {
            return Ok(None);
        }
        // After the swap `room` holds the earlier look.
        if_offered(compare(lib, pair.room, pair.earlier))
    }

    /// Gives the library its samples back.
    pub fn free(&mut self, lib: &NvmlLib) {
        for (_, pair) in std::mem::take(&mut self.0) {
            if let Ok(free) = &lib.nvmlGpmSampleFree {
                // SAFETY: this library allocated both samples, and nothing names either any more.
                unsafe {
                    free(pair.earlier);
                    free(pair.room);
                }
            }
        }
    }
}

impl SamplePair {
    fn allocate(lib: &NvmlLib) -> Result<Option<SamplePair>, Answer> {
        let Ok(allocate) = &lib.nvmlGpmSampleAlloc else {
            return Ok(None);
        };
        let mut samples = [std::ptr::null_mut(); 2];
        for sample in &mut samples {
            // SAFETY: the pointer is to a live place for one handle.
            check(unsafe { allocate(sample) })?;
        }
        Ok(Some(SamplePair {
            earlier: samples[0],
            room: samples[1],
            seen: false,
        }))
    }

    fn read(&mut self, device: &Device<'_>, instance: Option<u32>) -> Result<(), Answer> {
        let lib = device.nvml().lib();
        // SAFETY: device and sample are of this library.
        let code = unsafe {
            match (instance, &lib.nvmlGpmSampleGet, &lib.nvmlGpmMigSampleGet) {
                (None, Ok(get), _) => get(device.handle(), self.room),
                (Some(instance), _, Ok(get)) => get(device.handle(), instance, self.room),
                _ => return Err(Answer::FunctionNotFound),
            }
        };
        check(code)
    }
}

fn compare(
    lib: &NvmlLib,
    before: nvmlGpmSample_t,
    after: nvmlGpmSample_t,
) -> Result<GpmLook, Answer> {
    let Ok(get) = &lib.nvmlGpmMetricsGet else {
        return Err(Answer::FunctionNotFound);
    };
    // SAFETY: all zero is a value of this structure of numbers and pointers, which the library fills.
    let mut request: Box<nvmlGpmMetricsGet_t> = Box::new(unsafe { std::mem::zeroed() });
    request.version = NVML_GPM_METRICS_GET_VERSION;
    request.numMetrics = 2;
    request.sample1 = before;
    request.sample2 = after;
    request.metrics[0].metricId = SM;
    request.metrics[1].metricId = DRAM;
    // SAFETY: both samples were read into, and the structure lives over the call.
    check(unsafe { get(&mut *request) })?;
    // A missing reading is not zero, and a little work is not none: an idle run may be ended for it.
    let percent = |metric: usize| {
        let metric = &request.metrics[metric];
        let told = metric.nvmlReturn == SUCCESS && metric.value.is_finite();
        told.then(|| match metric.value {
            ..0.01 => 0,
            value => value.round().clamp(1.0, 100.0) as u32,
        })
    };
    Ok(GpmLook {
        sm_percent: percent(0),
        memory_percent: percent(1),
    })
}
