//! GPU performance monitoring: two looks at the counters, and what happened between them. Hopper and later; the only way to the
//! use of a MIG instance.

use std::ffi::{CStr, c_char, c_uint};

use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, nvmlGpmMetric_t, nvmlGpmMetric_t__bindgen_ty_1,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL as DRAM_BW_UTIL,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_GRAPHICS_UTIL as GRAPHICS_UTIL,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC as NVLINK_RX,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC as NVLINK_TX,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_RX_PER_SEC as PCIE_RX,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_TX_PER_SEC as PCIE_TX,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_OCCUPANCY as SM_OCCUPANCY,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL as SM_UTIL, nvmlGpmMetricsGet_t, nvmlGpmSupport_t,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as ARGUMENT_VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
};

use super::{Handle, NOT_SUPPORTED, OutPointer};
use crate::library::{self, Code, GpmReading, ask};
use crate::state::{Gpu, now_unix_ms};

const GPM_SUPPORT_VERSION: c_uint = 1;

nvml_functions! {
    fn nvmlGpmQueryDeviceSupport(device: Handle, support: OutPointer<nvmlGpmSupport_t>) {
        ask(device, |_, gpu| {
            if support.get()?.version != GPM_SUPPORT_VERSION {
                return Err(ARGUMENT_VERSION_MISMATCH);
            }
            support.put(nvmlGpmSupport_t { version: GPM_SUPPORT_VERSION, isSupportedDevice: has_gpm(gpu).into() })
        })
    }

    fn nvmlGpmSampleAlloc(sample: OutPointer<Handle>) { sample.put(library::allocate_gpm_sample()?) }

    fn nvmlGpmSampleFree(sample: Handle) { library::free_gpm_sample(sample) }

    fn nvmlGpmSampleGet(device: Handle, sample: Handle) {
        let reading = ask(device, |_, gpu| {
            require_gpm(gpu)?;
            Ok(read(gpu, gpu.readings.gpu_percent, gpu.readings.memory_percent))
        })?;
        library::keep_gpm_reading(sample, reading)
    }

    fn nvmlGpmMigSampleGet(device: Handle, instance_id: c_uint, sample: Handle) {
        let reading = ask(device, |_, gpu| {
            require_gpm(gpu)?;
            if !gpu.mig_enabled || gpu.mig_instances.iter().all(|instance| instance.id != instance_id) {
                return Err(NOT_FOUND);
            }
            let inside = gpu.processes.iter().filter(|process| process.instance.is_some_and(|at| at[0] == instance_id));
            let sm_percent = inside.map(|process| process.sm_percent).sum::<u32>().min(100);
            Ok(read(gpu, sm_percent, sm_percent / 2))
        })?;
        library::keep_gpm_reading(sample, reading)
    }

    fn nvmlGpmMetricsGet(request: OutPointer<nvmlGpmMetricsGet_t>) {
        let mut metrics = request.get()?;
        if metrics.version != NVML_GPM_METRICS_GET_VERSION {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        if metrics.numMetrics as usize > metrics.metrics.len() {
            return Err(INVALID_ARGUMENT);
        }
        let before = library::gpm_reading(metrics.sample1 as Handle)?;
        let after = library::gpm_reading(metrics.sample2 as Handle)?;
        for metric in &mut metrics.metrics[..metrics.numMetrics as usize] {
            answer(&before, &after, metric);
        }
        request.put(metrics)
    }
}

fn has_gpm(gpu: &Gpu) -> bool {
    gpu.architecture >= 9
}

fn require_gpm(gpu: &Gpu) -> Result<(), Code> {
    if has_gpm(gpu) {
        Ok(())
    } else {
        Err(NOT_SUPPORTED)
    }
}

fn read(gpu: &Gpu, sm_percent: u32, memory_percent: u32) -> GpmReading {
    let unix_ms = now_unix_ms();
    GpmReading {
        unix_ms,
        counters: gpu.counters_at(unix_ms),
        sm_percent,
        memory_percent,
    }
}

fn answer(before: &GpmReading, after: &GpmReading, metric: &mut nvmlGpmMetric_t) {
    let mean = |one: u32, other: u32| f64::from(one + other) / 2.0;
    let elapsed_s = after.unix_ms.saturating_sub(before.unix_ms).max(1) as f64 / 1000.0;
    let mib_per_s = |one: u64, other: u64| other.saturating_sub(one) as f64 / 1024.0 / elapsed_s;
    let (old, new) = (&before.counters, &after.counters);
    let known = match metric.metricId {
        GRAPHICS_UTIL => Some((
            mean(before.sm_percent, after.sm_percent),
            c"Graphics Util",
            c"%",
        )),
        SM_UTIL => Some((mean(before.sm_percent, after.sm_percent), c"SM Util", c"%")),
        SM_OCCUPANCY => Some((
            mean(before.sm_percent, after.sm_percent) / 2.0,
            c"SM Occupancy",
            c"%",
        )),
        DRAM_BW_UTIL => Some((
            mean(before.memory_percent, after.memory_percent),
            c"DRAM BW Util",
            c"%",
        )),
        PCIE_TX => Some((
            mib_per_s(old.pcie_sent_kib, new.pcie_sent_kib),
            c"PCIe TX",
            c"MiB/s",
        )),
        PCIE_RX => Some((
            mib_per_s(old.pcie_received_kib, new.pcie_received_kib),
            c"PCIe RX",
            c"MiB/s",
        )),
        NVLINK_TX => Some((
            mib_per_s(old.nvlink_sent_kib, new.nvlink_sent_kib),
            c"NVLink TX",
            c"MiB/s",
        )),
        NVLINK_RX => Some((
            mib_per_s(old.nvlink_received_kib, new.nvlink_received_kib),
            c"NVLink RX",
            c"MiB/s",
        )),
        _ => None,
    };
    metric.nvmlReturn = if known.is_some() {
        SUCCESS
    } else {
        NOT_SUPPORTED
    };
    let (value, name, unit) = known.unwrap_or((0.0, c"", c""));
    metric.value = value;
    metric.metricInfo = nvmlGpmMetric_t__bindgen_ty_1 {
        shortName: text(name),
        longName: text(name),
        unit: text(unit),
    };
}

/// NVML hands out its own texts, which callers never write to.
fn text(text: &'static CStr) -> *mut c_char {
    text.as_ptr().cast_mut()
}
