//! Signs of wear: ECC counters, remapped rows, retired pages, and the field values that carry the same numbers.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    field_id, nvmlEccCounterType_enum_NVML_AGGREGATE_ECC as AGGREGATE,
    nvmlEccCounterType_enum_NVML_VOLATILE_ECC as VOLATILE,
    nvmlEnableState_enum_NVML_FEATURE_ENABLED as ENABLED, nvmlFieldValue_t,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED as CORRECTED,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED as UNCORRECTED,
    nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DRAM as DRAM,
    nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_SRAM as SRAM,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlRowRemapperHistogramValues_t, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG as UNSIGNED_LONG_LONG,
};

use super::{Handle, NOT_SUPPORTED, Out};
use crate::library::{Code, ask};
use crate::state::{Gpu, now_unix_ms};

/// More fields than this in one call are refused, as a driver would.
const MAX_FIELDS: c_int = 4096;

nvml_functions! {
    fn nvmlDeviceGetEccMode(device: Handle, current: Out<c_uint>, pending: Out<c_uint>) {
        ask(device, |_, _| {
            current.put(ENABLED)?;
            pending.put(ENABLED)
        })
    }

    fn nvmlDeviceGetTotalEccErrors(device: Handle, error: c_uint, counter: c_uint, count: Out<c_ulonglong>) {
        ask(device, |_, gpu| count.put(ecc_total(gpu, error, counter)?))
    }

    fn nvmlDeviceGetMemoryErrorCounter(device: Handle, error: c_uint, counter: c_uint, location: c_uint, count: Out<c_ulonglong>) {
        ask(device, |_, gpu| {
            let total = ecc_total(gpu, error, counter)?;
            let in_sram = if error == UNCORRECTED { gpu.ecc.sram_uncorrected.min(total) } else { 0 };
            match location {
                SRAM => count.put(in_sram),
                DRAM => count.put(total - in_sram),
                _ => Err(NOT_SUPPORTED),
            }
        })
    }

    fn nvmlDeviceGetRemappedRows(device: Handle, corrected: Out<c_uint>, uncorrected: Out<c_uint>, pending: Out<c_uint>, failed: Out<c_uint>) {
        ask(device, |_, gpu| {
            corrected.put(gpu.row_remap.corrected)?;
            uncorrected.put(gpu.row_remap.uncorrected)?;
            pending.put(gpu.row_remap.pending.into())?;
            failed.put(gpu.row_remap.failed.into())
        })
    }

    fn nvmlDeviceGetRowRemapperHistogram(device: Handle, histogram: Out<nvmlRowRemapperHistogramValues_t>) {
        ask(device, |_, gpu| {
            let (max, none) = if gpu.row_remap.failed { (639, 1) } else { (640, 0) };
            histogram.put(nvmlRowRemapperHistogramValues_t { max, high: 0, partial: 0, low: 0, none })
        })
    }

    // Boards that remap rows (Ampere and later) retire no pages.
    fn nvmlDeviceGetRetiredPages_v2(
        device: Handle,
        _cause: c_uint,
        count: Out<c_uint>,
        _addresses: Out<c_ulonglong>,
        _timestamps: Out<c_ulonglong>,
    ) {
        ask(device, |_, _| count.put(0))
    }

    fn nvmlDeviceGetRetiredPagesPendingStatus(device: Handle, pending: Out<c_uint>) { ask(device, |_, _| pending.put(0)) }

    fn nvmlDeviceGetFieldValues(device: Handle, count: c_int, values: Out<nvmlFieldValue_t>) {
        if !(1..=MAX_FIELDS).contains(&count) {
            return Err(INVALID_ARGUMENT);
        }
        ask(device, |_, gpu| {
            let mut fields = values.get_all(count as usize)?;
            fields.iter_mut().for_each(|field| answer_field(gpu, field));
            values.put_all(count as usize, &fields)
        })
    }
}

fn ecc_total(gpu: &Gpu, error: c_uint, counter: c_uint) -> Result<u64, Code> {
    match (error, counter) {
        (CORRECTED, VOLATILE) => Ok(gpu.ecc.volatile_corrected),
        (CORRECTED, AGGREGATE) => Ok(gpu.ecc.aggregate_corrected),
        (UNCORRECTED, VOLATILE) => Ok(gpu.ecc.volatile_uncorrected),
        (UNCORRECTED, AGGREGATE) => Ok(gpu.ecc.aggregate_uncorrected),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// Each field succeeds or fails for itself.
fn answer_field(gpu: &Gpu, field: &mut nvmlFieldValue_t) {
    field.timestamp = now_unix_ms() as i64 * 1000;
    field.latencyUsec = 0;
    let value = match field.fieldId {
        field_id::NVML_FI_DEV_ECC_CURRENT | field_id::NVML_FI_DEV_ECC_PENDING => {
            Some(u64::from(ENABLED))
        }
        field_id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL => Some(gpu.ecc.volatile_corrected),
        field_id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL => Some(gpu.ecc.volatile_uncorrected),
        field_id::NVML_FI_DEV_ECC_SBE_AGG_TOTAL => Some(gpu.ecc.aggregate_corrected),
        field_id::NVML_FI_DEV_ECC_DBE_AGG_TOTAL => Some(gpu.ecc.aggregate_uncorrected),
        field_id::NVML_FI_DEV_NVLINK_LINK_COUNT => Some(u64::from(gpu.nvlink_count)),
        field_id::NVML_FI_DEV_PCIE_REPLAY_COUNTER => Some(u64::from(gpu.readings.pcie_replays)),
        field_id::NVML_FI_DEV_REMAPPED_COR => Some(u64::from(gpu.row_remap.corrected)),
        field_id::NVML_FI_DEV_REMAPPED_UNC => Some(u64::from(gpu.row_remap.uncorrected)),
        field_id::NVML_FI_DEV_REMAPPED_PENDING => Some(u64::from(gpu.row_remap.pending)),
        field_id::NVML_FI_DEV_REMAPPED_FAILURE => Some(u64::from(gpu.row_remap.failed)),
        _ => None,
    };
    field.valueType = UNSIGNED_LONG_LONG;
    field.value = nvmlValue_t {
        ullVal: value.unwrap_or(0),
    };
    field.nvmlReturn = if value.is_some() {
        SUCCESS
    } else {
        NOT_SUPPORTED
    };
}
