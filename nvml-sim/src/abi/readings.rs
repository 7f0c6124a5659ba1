//! What a GPU reads at this moment: temperature, power, energy, clocks and why they are low, the PCIe link.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlClockType_enum_NVML_CLOCK_GRAPHICS as CLOCK_GRAPHICS,
    nvmlClockType_enum_NVML_CLOCK_MEM as CLOCK_MEM, nvmlClockType_enum_NVML_CLOCK_SM as CLOCK_SM,
    nvmlClockType_enum_NVML_CLOCK_VIDEO as CLOCK_VIDEO, nvmlClocksThrottleReasonGpuIdle,
    nvmlClocksThrottleReasonHwPowerBrakeSlowdown, nvmlClocksThrottleReasonHwSlowdown,
    nvmlClocksThrottleReasonHwThermalSlowdown, nvmlClocksThrottleReasonSwPowerCap,
    nvmlClocksThrottleReasonSwThermalSlowdown, nvmlMarginTemperature_t,
    nvmlPerfPolicyType_enum_NVML_PERF_POLICY_COUNT as POLICY_COUNT,
    nvmlPerfPolicyType_enum_NVML_PERF_POLICY_POWER as POLICY_POWER,
    nvmlPerfPolicyType_enum_NVML_PERF_POLICY_THERMAL as POLICY_THERMAL,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as ARGUMENT_VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT, nvmlTemperature_t,
    nvmlViolationTime_t,
};

use super::{Handle, NOT_SUPPORTED, OutPointer, struct_version};
use crate::library::{self, Code, ask};
use crate::state::{Gpu, now_unix_ms};

const SUPPORTED_THROTTLE_REASONS: u32 = nvmlClocksThrottleReasonGpuIdle
    | nvmlClocksThrottleReasonSwPowerCap
    | nvmlClocksThrottleReasonHwSlowdown
    | nvmlClocksThrottleReasonHwThermalSlowdown
    | nvmlClocksThrottleReasonSwThermalSlowdown
    | nvmlClocksThrottleReasonHwPowerBrakeSlowdown;

nvml_functions! {
    fn nvmlDeviceGetTemperature(device: Handle, sensor: c_uint, celsius: OutPointer<c_uint>) {
        ask(device, |_, gpu| if sensor == 0 { celsius.put(gpu.readings.temperature_c) } else { Err(INVALID_ARGUMENT) })
    }

    fn nvmlDeviceGetTemperatureV(device: Handle, temperature: OutPointer<nvmlTemperature_t>) {
        ask(device, |_, gpu| {
            let asked = temperature.get()?;
            if asked.version != struct_version::<nvmlTemperature_t>(1) {
                return Err(ARGUMENT_VERSION_MISMATCH);
            }
            if asked.sensorType != 0 {
                return Err(INVALID_ARGUMENT);
            }
            temperature.put(nvmlTemperature_t { temperature: gpu.readings.temperature_c as c_int, ..asked })
        })
    }

    fn nvmlDeviceGetMarginTemperature(device: Handle, margin: OutPointer<nvmlMarginTemperature_t>) {
        ask(device, |_, gpu| {
            let asked = margin.get()?;
            if asked.version != struct_version::<nvmlMarginTemperature_t>(1) {
                return Err(ARGUMENT_VERSION_MISMATCH);
            }
            if gpu.architecture < 8 {
                return Err(NOT_SUPPORTED);
            }
            let left = gpu.thresholds.slowdown_c as c_int - gpu.readings.temperature_c as c_int;
            margin.put(nvmlMarginTemperature_t { marginTemperature: left, ..asked })
        })
    }

    fn nvmlDeviceGetTemperatureThreshold(device: Handle, threshold: c_uint, celsius: OutPointer<c_uint>) {
        ask(device, |_, gpu| match threshold {
            0 => celsius.put(gpu.thresholds.shutdown_c),
            1 => celsius.put(gpu.thresholds.slowdown_c),
            2 => celsius.put(gpu.thresholds.memory_max_c),
            3 => celsius.put(gpu.thresholds.gpu_max_c),
            _ => Err(NOT_SUPPORTED),
        })
    }

    fn nvmlDeviceGetPowerUsage(device: Handle, milliwatts: OutPointer<c_uint>) { ask(device, |_, gpu| milliwatts.put(gpu.readings.power_mw)) }

    fn nvmlDeviceGetPowerManagementLimit(device: Handle, milliwatts: OutPointer<c_uint>) { ask(device, |_, gpu| milliwatts.put(gpu.power_limit_mw)) }

    fn nvmlDeviceGetPowerManagementDefaultLimit(device: Handle, milliwatts: OutPointer<c_uint>) {
        ask(device, |_, gpu| milliwatts.put(default_power_limit(gpu)))
    }

    fn nvmlDeviceGetPowerManagementLimitConstraints(device: Handle, min: OutPointer<c_uint>, max: OutPointer<c_uint>) {
        ask(device, |_, gpu| {
            min.put(lowest_power_limit(gpu))?;
            max.put(default_power_limit(gpu))
        })
    }

    fn nvmlDeviceSetPowerManagementLimit(device: Handle, milliwatts: c_uint) {
        library::change(device, |gpu| {
            if !(lowest_power_limit(gpu)..=default_power_limit(gpu)).contains(&milliwatts) {
                return Err(INVALID_ARGUMENT);
            }
            gpu.power_limit_mw = milliwatts;
            Ok(())
        })
    }

    fn nvmlDeviceGetPowerManagementMode(device: Handle, mode: OutPointer<c_uint>) { ask(device, |_, _| mode.put(1)) }

    fn nvmlDeviceGetEnforcedPowerLimit(device: Handle, milliwatts: OutPointer<c_uint>) { ask(device, |_, gpu| milliwatts.put(gpu.power_limit_mw)) }

    fn nvmlDeviceGetTotalEnergyConsumption(device: Handle, millijoules: OutPointer<c_ulonglong>) {
        ask(device, |_, gpu| millijoules.put(gpu.counters_at(now_unix_ms()).energy_mj))
    }

    fn nvmlDeviceGetClockInfo(device: Handle, clock: c_uint, mhz: OutPointer<c_uint>) {
        ask(device, |_, gpu| mhz.put(by_clock(clock, gpu.readings.sm_clock_mhz, gpu.readings.memory_clock_mhz)?))
    }

    // Current, application target, application default, customer's maximum.
    fn nvmlDeviceGetClock(device: Handle, clock: c_uint, kind: c_uint, mhz: OutPointer<c_uint>) {
        ask(device, |_, gpu| match kind {
            0 => mhz.put(by_clock(clock, gpu.readings.sm_clock_mhz, gpu.readings.memory_clock_mhz)?),
            1..=3 => mhz.put(by_clock(clock, gpu.max_sm_clock_mhz, gpu.max_memory_clock_mhz)?),
            _ => Err(INVALID_ARGUMENT),
        })
    }

    fn nvmlDeviceGetApplicationsClock(device: Handle, clock: c_uint, mhz: OutPointer<c_uint>) {
        ask(device, |_, gpu| mhz.put(by_clock(clock, gpu.max_sm_clock_mhz, gpu.max_memory_clock_mhz)?))
    }

    fn nvmlDeviceGetMaxClockInfo(device: Handle, clock: c_uint, mhz: OutPointer<c_uint>) {
        ask(device, |_, gpu| mhz.put(by_clock(clock, gpu.max_sm_clock_mhz, gpu.max_memory_clock_mhz)?))
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons(device: Handle, reasons: OutPointer<c_ulonglong>) {
        ask(device, |_, gpu| reasons.put(gpu.readings.throttle_reasons))
    }

    fn nvmlDeviceGetCurrentClocksEventReasons(device: Handle, reasons: OutPointer<c_ulonglong>) {
        ask(device, |_, gpu| reasons.put(gpu.readings.throttle_reasons))
    }

    fn nvmlDeviceGetSupportedClocksThrottleReasons(device: Handle, reasons: OutPointer<c_ulonglong>) {
        ask(device, |_, _| reasons.put(SUPPORTED_THROTTLE_REASONS.into()))
    }

    fn nvmlDeviceGetSupportedClocksEventReasons(device: Handle, reasons: OutPointer<c_ulonglong>) {
        ask(device, |_, _| reasons.put(SUPPORTED_THROTTLE_REASONS.into()))
    }

    fn nvmlDeviceGetPerformanceState(device: Handle, state: OutPointer<c_uint>) { ask(device, |_, _| state.put(0)) }

    fn nvmlDeviceGetPowerState(device: Handle, state: OutPointer<c_uint>) { ask(device, |_, _| state.put(0)) }

    fn nvmlDeviceGetViolationStatus(device: Handle, policy: c_uint, violation: OutPointer<nvmlViolationTime_t>) {
        ask(device, |_, gpu| {
            let now = now_unix_ms();
            let counters = gpu.counters_at(now);
            let slowed_ms = match policy {
                POLICY_POWER => counters.power_violation_ms,
                POLICY_THERMAL => counters.thermal_violation_ms,
                other if other < POLICY_COUNT => 0,
                _ => return Err(INVALID_ARGUMENT),
            };
            // Nanoseconds, whatever the header says; the reference is in microseconds.
            violation.put(nvmlViolationTime_t { referenceTime: now * 1000, violationTime: slowed_ms * 1_000_000 })
        })
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(device: Handle, generation: OutPointer<c_uint>) { ask(device, |_, gpu| generation.put(pcie_gen(gpu))) }

    fn nvmlDeviceGetMaxPcieLinkGeneration(device: Handle, generation: OutPointer<c_uint>) { ask(device, |_, gpu| generation.put(gpu.pcie_gen)) }

    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(device: Handle, generation: OutPointer<c_uint>) { ask(device, |_, gpu| generation.put(gpu.pcie_gen)) }

    fn nvmlDeviceGetCurrPcieLinkWidth(device: Handle, lanes: OutPointer<c_uint>) {
        ask(device, |_, gpu| lanes.put(gpu.faults.pcie_width.unwrap_or(gpu.pcie_width)))
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(device: Handle, lanes: OutPointer<c_uint>) { ask(device, |_, gpu| lanes.put(gpu.pcie_width)) }

    fn nvmlDeviceGetPcieThroughput(device: Handle, direction: c_uint, kib_per_s: OutPointer<c_uint>) {
        ask(device, |_, gpu| match direction {
            0 => kib_per_s.put(gpu.readings.traffic.pcie_sent_kib_per_s),
            1 => kib_per_s.put(gpu.readings.traffic.pcie_received_kib_per_s),
            _ => Err(INVALID_ARGUMENT),
        })
    }

    fn nvmlDeviceGetPcieReplayCounter(device: Handle, replays: OutPointer<c_uint>) { ask(device, |_, gpu| replays.put(gpu.readings.pcie_replays)) }
}

/// Idle boards of some kinds lower their link to save power; a fault keeps it low.
fn pcie_gen(gpu: &Gpu) -> c_uint {
    let rests = gpu.pcie_gen_idle > 0 && gpu.readings.gpu_percent == 0;
    let at_rest = if rests {
        gpu.pcie_gen_idle
    } else {
        gpu.pcie_gen
    };
    gpu.faults
        .pcie_gen
        .map_or(at_rest, |faulty| faulty.min(at_rest))
}

fn default_power_limit(gpu: &Gpu) -> c_uint {
    if gpu.default_power_limit_mw == 0 {
        gpu.power_limit_mw
    } else {
        gpu.default_power_limit_mw
    }
}

fn lowest_power_limit(gpu: &Gpu) -> c_uint {
    default_power_limit(gpu) / 4
}

fn by_clock(clock: c_uint, sm_mhz: u32, memory_mhz: u32) -> Result<c_uint, Code> {
    match clock {
        CLOCK_GRAPHICS | CLOCK_SM | CLOCK_VIDEO => Ok(sm_mhz),
        CLOCK_MEM => Ok(memory_mhz),
        _ => Err(INVALID_ARGUMENT),
    }
}
