//! What a GPU reads at this moment: temperature, power, energy, clocks, load, the PCIe link, processes.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlClockType_enum_NVML_CLOCK_GRAPHICS as CLOCK_GRAPHICS,
    nvmlClockType_enum_NVML_CLOCK_MEM as CLOCK_MEM, nvmlClockType_enum_NVML_CLOCK_SM as CLOCK_SM,
    nvmlClockType_enum_NVML_CLOCK_VIDEO as CLOCK_VIDEO, nvmlClocksThrottleReasonGpuIdle,
    nvmlClocksThrottleReasonHwSlowdown, nvmlClocksThrottleReasonHwThermalSlowdown,
    nvmlClocksThrottleReasonSwPowerCap, nvmlProcessInfo_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT, nvmlUtilization_t,
};

use super::{Handle, INSUFFICIENT_SIZE, NOT_SUPPORTED, Out};
use crate::library::{Code, ask};
use crate::state::{Gpu, ProcessKind, now_unix_ms};

const SUPPORTED_THROTTLE_REASONS: u32 = nvmlClocksThrottleReasonGpuIdle
    | nvmlClocksThrottleReasonSwPowerCap
    | nvmlClocksThrottleReasonHwSlowdown
    | nvmlClocksThrottleReasonHwThermalSlowdown;

/// What NVML writes where a process does not belong to a MIG instance.
const NO_INSTANCE: c_uint = c_uint::MAX;

nvml_functions! {
    fn nvmlDeviceGetTemperature(device: Handle, sensor: c_uint, celsius: Out<c_uint>) {
        ask(device, |_, gpu| if sensor == 0 { celsius.put(gpu.readings.temperature_c) } else { Err(INVALID_ARGUMENT) })
    }

    fn nvmlDeviceGetTemperatureThreshold(device: Handle, threshold: c_uint, celsius: Out<c_uint>) {
        ask(device, |_, _| match threshold {
            0 => celsius.put(92), // shutdown
            1 => celsius.put(87), // slowdown
            2 => celsius.put(95), // memory
            3 => celsius.put(85), // highest for full speed
            _ => Err(NOT_SUPPORTED),
        })
    }

    fn nvmlDeviceGetPowerUsage(device: Handle, milliwatts: Out<c_uint>) { ask(device, |_, gpu| milliwatts.put(gpu.readings.power_mw)) }

    fn nvmlDeviceGetPowerManagementLimit(device: Handle, milliwatts: Out<c_uint>) { ask(device, |_, gpu| milliwatts.put(gpu.power_limit_mw)) }

    fn nvmlDeviceGetPowerManagementDefaultLimit(device: Handle, milliwatts: Out<c_uint>) {
        ask(device, |_, gpu| milliwatts.put(gpu.power_limit_mw))
    }

    fn nvmlDeviceGetEnforcedPowerLimit(device: Handle, milliwatts: Out<c_uint>) { ask(device, |_, gpu| milliwatts.put(gpu.power_limit_mw)) }

    fn nvmlDeviceGetTotalEnergyConsumption(device: Handle, millijoules: Out<c_ulonglong>) {
        ask(device, |_, gpu| millijoules.put(gpu.energy_mj_at(now_unix_ms())))
    }

    fn nvmlDeviceGetClockInfo(device: Handle, clock: c_uint, mhz: Out<c_uint>) {
        ask(device, |_, gpu| mhz.put(by_clock(clock, gpu.readings.sm_clock_mhz, gpu.readings.memory_clock_mhz)?))
    }

    fn nvmlDeviceGetMaxClockInfo(device: Handle, clock: c_uint, mhz: Out<c_uint>) {
        ask(device, |_, gpu| mhz.put(by_clock(clock, gpu.max_sm_clock_mhz, gpu.max_memory_clock_mhz)?))
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons(device: Handle, reasons: Out<c_ulonglong>) {
        ask(device, |_, gpu| reasons.put(gpu.readings.throttle_reasons))
    }

    fn nvmlDeviceGetCurrentClocksEventReasons(device: Handle, reasons: Out<c_ulonglong>) {
        ask(device, |_, gpu| reasons.put(gpu.readings.throttle_reasons))
    }

    fn nvmlDeviceGetSupportedClocksThrottleReasons(device: Handle, reasons: Out<c_ulonglong>) {
        ask(device, |_, _| reasons.put(SUPPORTED_THROTTLE_REASONS.into()))
    }

    fn nvmlDeviceGetSupportedClocksEventReasons(device: Handle, reasons: Out<c_ulonglong>) {
        ask(device, |_, _| reasons.put(SUPPORTED_THROTTLE_REASONS.into()))
    }

    fn nvmlDeviceGetPerformanceState(device: Handle, state: Out<c_uint>) { ask(device, |_, _| state.put(0)) }

    fn nvmlDeviceGetUtilizationRates(device: Handle, rates: Out<nvmlUtilization_t>) {
        ask(device, |_, gpu| rates.put(nvmlUtilization_t { gpu: gpu.readings.gpu_percent, memory: gpu.readings.memory_percent }))
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(device: Handle, generation: Out<c_uint>) { ask(device, |_, gpu| generation.put(gpu.pcie_gen)) }

    fn nvmlDeviceGetMaxPcieLinkGeneration(device: Handle, generation: Out<c_uint>) { ask(device, |_, gpu| generation.put(gpu.pcie_gen)) }

    fn nvmlDeviceGetCurrPcieLinkWidth(device: Handle, lanes: Out<c_uint>) { ask(device, |_, gpu| lanes.put(gpu.pcie_width)) }

    fn nvmlDeviceGetMaxPcieLinkWidth(device: Handle, lanes: Out<c_uint>) { ask(device, |_, _| lanes.put(16)) }

    fn nvmlDeviceGetPcieReplayCounter(device: Handle, replays: Out<c_uint>) { ask(device, |_, gpu| replays.put(gpu.readings.pcie_replays)) }

    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: Out<c_uint>, processes: Out<nvmlProcessInfo_t>) {
        ask(device, |_, gpu| list(gpu, ProcessKind::Compute, &count, &processes))
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: Handle, count: Out<c_uint>, processes: Out<nvmlProcessInfo_t>) {
        ask(device, |_, gpu| list(gpu, ProcessKind::Graphics, &count, &processes))
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Handle, count: Out<c_uint>, processes: Out<nvmlProcessInfo_t>) {
        ask(device, |_, gpu| list(gpu, ProcessKind::Mps, &count, &processes))
    }
}

fn by_clock(clock: c_uint, sm_mhz: u32, memory_mhz: u32) -> Result<c_uint, Code> {
    match clock {
        CLOCK_GRAPHICS | CLOCK_SM | CLOCK_VIDEO => Ok(sm_mhz),
        CLOCK_MEM => Ok(memory_mhz),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// NVML's two-step: too small a count is answered with the right one.
fn list(
    gpu: &Gpu,
    kind: ProcessKind,
    count: &Out<c_uint>,
    processes: &Out<nvmlProcessInfo_t>,
) -> Result<(), Code> {
    let found: Vec<nvmlProcessInfo_t> = gpu
        .processes
        .iter()
        .filter(|process| process.kind == kind)
        .map(|process| nvmlProcessInfo_t {
            pid: process.pid,
            usedGpuMemory: process.memory_bytes,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
        })
        .collect();
    let room = count.get()? as usize;
    count.put(found.len() as c_uint)?;
    if found.len() > room || (processes.is_null() && !found.is_empty()) {
        return Err(INSUFFICIENT_SIZE);
    }
    processes.put_all(room, &found)
}
