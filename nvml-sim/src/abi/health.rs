//! Signs of wear: ECC counters, remapped rows, retired pages.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlEccCounterType_enum_NVML_AGGREGATE_ECC as AGGREGATE,
    nvmlEccCounterType_enum_NVML_VOLATILE_ECC as VOLATILE, nvmlEccErrorCounts_t,
    nvmlEccSramErrorStatus_t, nvmlEnableState_enum_NVML_FEATURE_DISABLED as DISABLED,
    nvmlEnableState_enum_NVML_FEATURE_ENABLED as ENABLED,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED as CORRECTED,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED as UNCORRECTED,
    nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DRAM as DRAM,
    nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_SRAM as SRAM,
    nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR as DOUBLE_BIT,
    nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS as MANY_SINGLE_BIT,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as ARGUMENT_VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlRowRemapperHistogramValues_t,
};

use super::{Handle, INSUFFICIENT_SIZE, NOT_SUPPORTED, OutPointer, struct_version};
use crate::library::{self, Code, ask};
use crate::state::{Ecc, Gpu};

nvml_functions! {
    fn nvmlDeviceGetEccMode(device: Handle, current: OutPointer<c_uint>, pending: OutPointer<c_uint>) {
        ask(device, |_, gpu| {
            let mode = if gpu.ecc.off { DISABLED } else { ENABLED };
            current.put(mode)?;
            pending.put(mode)
        })
    }

    fn nvmlDeviceGetDefaultEccMode(device: Handle, mode: OutPointer<c_uint>) { ask(device, |_, _| mode.put(ENABLED)) }

    fn nvmlDeviceGetTotalEccErrors(device: Handle, error: c_uint, counter: c_uint, count: OutPointer<c_ulonglong>) {
        ask(device, |_, gpu| count.put(ecc_total(gpu, error, counter)?))
    }

    fn nvmlDeviceGetDetailedEccErrors(device: Handle, error: c_uint, counter: c_uint, counts: OutPointer<nvmlEccErrorCounts_t>) {
        ask(device, |_, gpu| {
            let in_sram = ecc_in_sram(gpu, error, counter)?;
            let in_memory = ecc_total(gpu, error, counter)? - in_sram;
            counts.put(nvmlEccErrorCounts_t { l1Cache: 0, l2Cache: in_sram, deviceMemory: in_memory, registerFile: 0 })
        })
    }

    fn nvmlDeviceGetMemoryErrorCounter(device: Handle, error: c_uint, counter: c_uint, location: c_uint, count: OutPointer<c_ulonglong>) {
        ask(device, |_, gpu| {
            let in_sram = ecc_in_sram(gpu, error, counter)?;
            match location {
                SRAM => count.put(in_sram),
                DRAM => count.put(ecc_total(gpu, error, counter)? - in_sram),
                _ => Err(NOT_SUPPORTED),
            }
        })
    }

    fn nvmlDeviceGetSramEccErrorStatus(device: Handle, status: OutPointer<nvmlEccSramErrorStatus_t>) {
        ask(device, |_, gpu| {
            let version = struct_version::<nvmlEccSramErrorStatus_t>(1);
            if status.get()?.version != version {
                return Err(ARGUMENT_VERSION_MISMATCH);
            }
            if gpu.architecture < 9 || gpu.ecc.off {
                return Err(NOT_SUPPORTED);
            }
            let aggregate = ecc_in_sram(gpu, UNCORRECTED, AGGREGATE)?;
            status.put(nvmlEccSramErrorStatus_t {
                version,
                aggregateUncParity: 0,
                aggregateUncSecDed: aggregate,
                aggregateCor: 0,
                volatileUncParity: 0,
                volatileUncSecDed: ecc_in_sram(gpu, UNCORRECTED, VOLATILE)?,
                volatileCor: 0,
                aggregateUncBucketL2: aggregate,
                aggregateUncBucketSm: 0,
                aggregateUncBucketPcie: 0,
                aggregateUncBucketMcu: 0,
                aggregateUncBucketOther: 0,
                bThresholdExceeded: gpu.ecc.sram_threshold_exceeded.into(),
            })
        })
    }

    fn nvmlDeviceClearEccErrorCounts(device: Handle, counter: c_uint) {
        library::change(device, |gpu| {
            match counter {
                VOLATILE => gpu.ecc = Ecc { volatile_corrected: 0, volatile_uncorrected: 0, sram_uncorrected: 0, ..gpu.ecc.clone() },
                AGGREGATE => gpu.ecc = Ecc { aggregate_corrected: 0, aggregate_uncorrected: 0, aggregate_sram_uncorrected: 0, ..gpu.ecc.clone() },
                _ => return Err(INVALID_ARGUMENT),
            }
            Ok(())
        })
    }

    fn nvmlDeviceGetRemappedRows(device: Handle, corrected: OutPointer<c_uint>, uncorrected: OutPointer<c_uint>, pending: OutPointer<c_uint>, failed: OutPointer<c_uint>) {
        ask(device, |_, gpu| {
            require_remapping(gpu)?;
            corrected.put(gpu.row_remap.corrected)?;
            uncorrected.put(gpu.row_remap.uncorrected)?;
            pending.put(gpu.row_remap.pending.into())?;
            failed.put(gpu.row_remap.failed.into())
        })
    }

    fn nvmlDeviceGetRowRemapperHistogram(device: Handle, histogram: OutPointer<nvmlRowRemapperHistogramValues_t>) {
        ask(device, |_, gpu| {
            require_remapping(gpu)?;
            let (max, none) = if gpu.row_remap.failed { (639, 1) } else { (640, 0) };
            histogram.put(nvmlRowRemapperHistogramValues_t { max, high: 0, partial: 0, low: 0, none })
        })
    }

    fn nvmlDeviceGetRetiredPages(device: Handle, cause: c_uint, count: OutPointer<c_uint>, addresses: OutPointer<c_ulonglong>) {
        ask(device, |_, gpu| retired_pages(gpu, cause, &count, &addresses).map(|_| ()))
    }

    fn nvmlDeviceGetRetiredPages_v2(
        device: Handle,
        cause: c_uint,
        count: OutPointer<c_uint>,
        addresses: OutPointer<c_ulonglong>,
        timestamps: OutPointer<c_ulonglong>,
    ) {
        ask(device, |_, gpu| {
            let retired = retired_pages(gpu, cause, &count, &addresses)?;
            timestamps.put_all(retired, &vec![FIRST_RETIREMENT_UNIX_US; retired])
        })
    }

    fn nvmlDeviceGetRetiredPagesPendingStatus(device: Handle, pending: OutPointer<c_uint>) {
        ask(device, |_, gpu| {
            if remaps_rows(gpu) {
                return Err(NOT_SUPPORTED);
            }
            pending.put(gpu.retired_pages.pending.into())
        })
    }
}

/// 1 November 2025.
const FIRST_RETIREMENT_UNIX_US: u64 = 1_761_955_200_000_000;

/// Ampere boards and later replace rows; those before retire pages.
pub fn remaps_rows(gpu: &Gpu) -> bool {
    gpu.architecture >= 7
}

fn require_remapping(gpu: &Gpu) -> Result<(), Code> {
    if remaps_rows(gpu) {
        Ok(())
    } else {
        Err(NOT_SUPPORTED)
    }
}

/// NVML's two-step, returning how many there are.
fn retired_pages(
    gpu: &Gpu,
    cause: c_uint,
    count: &OutPointer<c_uint>,
    addresses: &OutPointer<c_ulonglong>,
) -> Result<usize, Code> {
    if remaps_rows(gpu) {
        return Err(NOT_SUPPORTED);
    }
    let pages = match cause {
        MANY_SINGLE_BIT => gpu.retired_pages.single_bit,
        DOUBLE_BIT => gpu.retired_pages.double_bit,
        _ => return Err(INVALID_ARGUMENT),
    };
    let room = count.get()? as usize;
    count.put(pages)?;
    let found: Vec<c_ulonglong> = (0..u64::from(pages))
        .map(|page| 0x10_0000 + page * 0x1000)
        .collect();
    if found.len() > room {
        return Err(INSUFFICIENT_SIZE);
    }
    addresses.put_all(room, &found)?;
    Ok(found.len())
}

pub fn ecc_total(gpu: &Gpu, error: c_uint, counter: c_uint) -> Result<u64, Code> {
    if gpu.ecc.off {
        return Err(NOT_SUPPORTED);
    }
    match (error, counter) {
        (CORRECTED, VOLATILE) => Ok(gpu.ecc.volatile_corrected),
        (CORRECTED, AGGREGATE) => Ok(gpu.ecc.aggregate_corrected),
        (UNCORRECTED, VOLATILE) => Ok(gpu.ecc.volatile_uncorrected),
        (UNCORRECTED, AGGREGATE) => Ok(gpu.ecc.aggregate_uncorrected),
        _ => Err(INVALID_ARGUMENT),
    }
}

fn ecc_in_sram(gpu: &Gpu, error: c_uint, counter: c_uint) -> Result<u64, Code> {
    let total = ecc_total(gpu, error, counter)?;
    Ok(match (error, counter) {
        (UNCORRECTED, VOLATILE) => gpu.ecc.sram_uncorrected.min(total),
        (UNCORRECTED, AGGREGATE) => gpu.ecc.aggregate_sram_uncorrected.min(total),
        _ => 0,
    })
}
