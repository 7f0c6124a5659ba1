//! The use of a GPU: utilisation now and in samples, processes, accounting. What NVML does not tell of a GPU that is
//! cut into instances, this does not either.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlAccountingStats_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessUtilizationSample_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND, nvmlSample_t,
    nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES as GPU_UTILIZATION,
    nvmlSamplingType_enum_NVML_MEMORY_CLK_SAMPLES as MEMORY_CLOCK,
    nvmlSamplingType_enum_NVML_MEMORY_UTILIZATION_SAMPLES as MEMORY_UTILIZATION,
    nvmlSamplingType_enum_NVML_PROCESSOR_CLK_SAMPLES as PROCESSOR_CLOCK,
    nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES as TOTAL_POWER, nvmlUtilization_t, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED_INT,
};

use super::{Handle, INSUFFICIENT_SIZE, NOT_SUPPORTED, OutPointer};
use crate::library::{self, Code, Part, ask, ask_device};
use crate::state::{Gpu, Process, ProcessKind, now_unix_ms};

/// What NVML writes where a process does not belong to a MIG instance.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// The driver keeps a sample for each of these intervals, and so many of them.
const SAMPLE_EVERY_US: u64 = 100_000;
const MAX_SAMPLES: u64 = 120;

/// Processes of which the driver keeps the accounting.
const ACCOUNTING_BUFFER: c_uint = 4000;

nvml_functions! {
    fn nvmlDeviceGetUtilizationRates(device: Handle, rates: OutPointer<nvmlUtilization_t>) {
        ask(device, |_, gpu| {
            require_whole(gpu)?;
            rates.put(nvmlUtilization_t { gpu: gpu.readings.gpu_percent, memory: gpu.readings.memory_percent })
        })
    }

    fn nvmlDeviceGetSamples(
        device: Handle,
        kind: c_uint,
        last_seen_us: c_ulonglong,
        value_type: OutPointer<c_uint>,
        count: OutPointer<c_uint>,
        samples: OutPointer<nvmlSample_t>,
    ) {
        ask(device, |_, gpu| {
            require_whole(gpu)?;
            let value = match kind {
                TOTAL_POWER => gpu.readings.power_mw,
                GPU_UTILIZATION => gpu.readings.gpu_percent,
                MEMORY_UTILIZATION => gpu.readings.memory_percent,
                PROCESSOR_CLOCK => gpu.readings.sm_clock_mhz,
                MEMORY_CLOCK => gpu.readings.memory_clock_mhz,
                other if other < 10 => return Err(NOT_SUPPORTED),
                _ => return Err(INVALID_ARGUMENT),
            };
            value_type.put(UNSIGNED_INT)?;
            if samples.is_null() {
                return count.put(MAX_SAMPLES as c_uint);
            }
            let found: Vec<nvmlSample_t> = sample_times(last_seen_us)
                .map(|time_us| nvmlSample_t { timeStamp: time_us, sampleValue: nvmlValue_t { uiVal: value } })
                .collect();
            if found.is_empty() {
                return Err(NOT_FOUND);
            }
            let room = count.get()? as usize;
            let newest = &found[found.len().saturating_sub(room)..];
            count.put(newest.len() as c_uint)?;
            samples.put_all(room, newest)
        })
    }

    fn nvmlDeviceGetProcessUtilization(
        device: Handle,
        samples: OutPointer<nvmlProcessUtilizationSample_t>,
        count: OutPointer<c_uint>,
        last_seen_us: c_ulonglong,
    ) {
        ask(device, |_, gpu| {
            require_whole(gpu)?;
            let now_us = now_unix_ms() * 1000;
            let sample = |process: &Process| nvmlProcessUtilizationSample_t {
                pid: process.pid,
                timeStamp: now_us,
                smUtil: process.sm_percent,
                memUtil: process.sm_percent.min(gpu.readings.memory_percent),
                encUtil: 0,
                decUtil: 0,
            };
            let busy = gpu.processes.iter().filter(|process| process.sm_percent > 0 && last_seen_us < now_us);
            let found: Vec<_> = busy.map(sample).collect();
            let room = if samples.is_null() { 0 } else { count.get()? as usize };
            count.put(found.len() as c_uint)?;
            match found.len() {
                0 => Err(NOT_FOUND),
                wanted if wanted > room => Err(INSUFFICIENT_SIZE),
                _ => samples.put_all(room, &found),
            }
        })
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: OutPointer<c_uint>, processes: OutPointer<nvmlProcessInfo_t>) {
        ask_device(device, |_, gpu, part| list(gpu, part, ProcessKind::Compute, &count, &processes))
    }

    fn nvmlDeviceGetComputeRunningProcesses(device: Handle, count: OutPointer<c_uint>, processes: OutPointer<nvmlProcessInfo_v1_t>) {
        ask_device(device, |_, gpu, part| list_first(gpu, part, ProcessKind::Compute, &count, &processes))
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(device: Handle, count: OutPointer<c_uint>, processes: OutPointer<nvmlProcessInfo_t>) {
        ask_device(device, |_, gpu, part| list(gpu, part, ProcessKind::Compute, &count, &processes))
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: Handle, count: OutPointer<c_uint>, processes: OutPointer<nvmlProcessInfo_t>) {
        ask_device(device, |_, gpu, part| list(gpu, part, ProcessKind::Graphics, &count, &processes))
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(device: Handle, count: OutPointer<c_uint>, processes: OutPointer<nvmlProcessInfo_v1_t>) {
        ask_device(device, |_, gpu, part| list_first(gpu, part, ProcessKind::Graphics, &count, &processes))
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: Handle, count: OutPointer<c_uint>, processes: OutPointer<nvmlProcessInfo_t>) {
        ask_device(device, |_, gpu, part| list(gpu, part, ProcessKind::Graphics, &count, &processes))
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Handle, count: OutPointer<c_uint>, processes: OutPointer<nvmlProcessInfo_t>) {
        ask_device(device, |_, gpu, part| list(gpu, part, ProcessKind::Mps, &count, &processes))
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses(device: Handle, count: OutPointer<c_uint>, processes: OutPointer<nvmlProcessInfo_v1_t>) {
        ask_device(device, |_, gpu, part| list_first(gpu, part, ProcessKind::Mps, &count, &processes))
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Handle, count: OutPointer<c_uint>, processes: OutPointer<nvmlProcessInfo_t>) {
        ask_device(device, |_, gpu, part| list(gpu, part, ProcessKind::Mps, &count, &processes))
    }

    fn nvmlDeviceGetAccountingMode(device: Handle, mode: OutPointer<c_uint>) { ask(device, |_, gpu| mode.put(gpu.accounting.into())) }

    fn nvmlDeviceSetAccountingMode(device: Handle, mode: c_uint) {
        library::change(device, |gpu| {
            gpu.accounting = mode != 0;
            Ok(())
        })
    }

    fn nvmlDeviceGetAccountingBufferSize(device: Handle, size: OutPointer<c_uint>) { ask(device, |_, _| size.put(ACCOUNTING_BUFFER)) }

    fn nvmlDeviceGetAccountingPids(device: Handle, count: OutPointer<c_uint>, pids: OutPointer<c_uint>) {
        ask(device, |_, gpu| {
            require_accounting(gpu)?;
            let found: Vec<c_uint> = gpu.processes.iter().map(|process| process.pid).collect();
            let room = if pids.is_null() { 0 } else { count.get()? as usize };
            count.put(found.len() as c_uint)?;
            if found.len() > room {
                return Err(INSUFFICIENT_SIZE);
            }
            pids.put_all(room, &found)
        })
    }

    fn nvmlDeviceGetAccountingStats(device: Handle, pid: c_uint, stats: OutPointer<nvmlAccountingStats_t>) {
        ask(device, |_, gpu| {
            require_accounting(gpu)?;
            let process = gpu.processes.iter().find(|process| process.pid == pid).ok_or(NOT_FOUND)?;
            stats.put(nvmlAccountingStats_t {
                gpuUtilization: process.sm_percent,
                memoryUtilization: process.sm_percent.min(gpu.readings.memory_percent),
                maxMemoryUsage: process.memory_bytes,
                time: 0, // told when it has ended
                startTime: process.started_unix_ms * 1000,
                isRunning: 1,
                reserved: [0; 5],
            })
        })
    }
}

/// Of a GPU in MIG mode the driver does not know the use as a whole.
fn require_whole(gpu: &Gpu) -> Result<(), Code> {
    if gpu.mig_enabled {
        Err(NOT_SUPPORTED)
    } else {
        Ok(())
    }
}

fn require_accounting(gpu: &Gpu) -> Result<(), Code> {
    if gpu.accounting {
        Ok(())
    } else {
        Err(NOT_SUPPORTED)
    }
}

/// Instants of samples younger than `last_seen_us` that the driver would still have.
fn sample_times(last_seen_us: u64) -> impl Iterator<Item = u64> {
    let newest = now_unix_ms() * 1000 / SAMPLE_EVERY_US;
    let oldest = newest.saturating_sub(MAX_SAMPLES - 1);
    let first = oldest.max(last_seen_us / SAMPLE_EVERY_US + 1);
    (first..=newest).map(|number| number * SAMPLE_EVERY_US)
}

/// NVML's two-step: too small a count is answered with the right one. A MIG device tells of its own processes.
fn list(
    gpu: &Gpu,
    part: Option<Part<'_>>,
    kind: ProcessKind,
    count: &OutPointer<c_uint>,
    processes: &OutPointer<nvmlProcessInfo_t>,
) -> Result<(), Code> {
    let info = |process: &Process| nvmlProcessInfo_t {
        pid: process.pid,
        usedGpuMemory: process.memory_bytes,
        gpuInstanceId: process.instance.map_or(NO_INSTANCE, |at| at[0]),
        computeInstanceId: process.instance.map_or(NO_INSTANCE, |at| at[1]),
    };
    put_list(
        running(gpu, part, kind).map(info).collect(),
        count,
        processes,
    )
}

/// The first version, which knows of no MIG.
fn list_first(
    gpu: &Gpu,
    part: Option<Part<'_>>,
    kind: ProcessKind,
    count: &OutPointer<c_uint>,
    processes: &OutPointer<nvmlProcessInfo_v1_t>,
) -> Result<(), Code> {
    let info = |process: &Process| nvmlProcessInfo_v1_t {
        pid: process.pid,
        usedGpuMemory: process.memory_bytes,
    };
    put_list(
        running(gpu, part, kind).map(info).collect(),
        count,
        processes,
    )
}

fn running<'a>(
    gpu: &'a Gpu,
    part: Option<Part<'_>>,
    kind: ProcessKind,
) -> impl Iterator<Item = &'a Process> {
    let here = part.map(|part| [part.instance.id, part.compute.id]);
    gpu.processes
        .iter()
        .filter(move |process| process.kind == kind && (here.is_none() || process.instance == here))
}

fn put_list<T: Copy>(
    found: Vec<T>,
    count: &OutPointer<c_uint>,
    processes: &OutPointer<T>,
) -> Result<(), Code> {
    let room = count.get()? as usize;
    count.put(found.len() as c_uint)?;
    if found.len() > room || (processes.is_null() && !found.is_empty()) {
        return Err(INSUFFICIENT_SIZE);
    }
    processes.put_all(room, &found)
}
