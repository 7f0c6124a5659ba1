//! Field values: many numbers in one call, each succeeding or failing for itself.

use std::ffi::{c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    field_id as id, nvmlEccCounterType_enum_NVML_AGGREGATE_ECC as AGGREGATE,
    nvmlEccCounterType_enum_NVML_VOLATILE_ECC as VOLATILE, nvmlFieldValue_t,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED as CORRECTED,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED as UNCORRECTED,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG as UNSIGNED_LONG_LONG,
};

use super::health::{ecc_total, remaps_rows};
use super::{Handle, NOT_SUPPORTED, OutPointer};
use crate::library::{Code, ask};
use crate::state::{Gpu, now_unix_ms};

/// More fields than this in one call are refused, as a driver would.
const MAX_FIELDS: c_int = 4096;

/// The scope that means all links together.
const ALL_LINKS: c_uint = c_uint::MAX;

nvml_functions! {
    fn nvmlDeviceGetFieldValues(device: Handle, count: c_int, values: OutPointer<nvmlFieldValue_t>) {
        if !(1..=MAX_FIELDS).contains(&count) {
            return Err(INVALID_ARGUMENT);
        }
        ask(device, |_, gpu| {
            let mut fields = values.get_all(count as usize)?;
            let now = now_unix_ms();
            fields.iter_mut().for_each(|field| answer(gpu, now, field));
            values.put_all(count as usize, &fields)
        })
    }
}

fn answer(gpu: &Gpu, now_unix_ms: u64, field: &mut nvmlFieldValue_t) {
    field.timestamp = now_unix_ms as i64 * 1000;
    field.latencyUsec = 0;
    let value = value_of(gpu, now_unix_ms, field.fieldId, field.scopeId);
    field.nvmlReturn = value.err().unwrap_or(SUCCESS);
    let number = value.unwrap_or(0);
    // Most fields are 64 bits wide; these are told in 32, and a reader must look at the type.
    let narrow = matches!(
        field.fieldId,
        id::NVML_FI_DEV_MEMORY_TEMP
            | id::NVML_FI_DEV_NVLINK_LINK_COUNT
            | id::NVML_FI_DEV_PCIE_REPLAY_COUNTER
            | id::NVML_FI_DEV_POWER_INSTANT
            | id::NVML_FI_DEV_POWER_AVERAGE
            | id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    );
    field.valueType = if narrow {
        UNSIGNED_INT
    } else {
        UNSIGNED_LONG_LONG
    };
    field.value = if narrow {
        nvmlValue_t {
            uiVal: number as c_uint,
        }
    } else {
        nvmlValue_t { ullVal: number }
    };
}

fn value_of(gpu: &Gpu, now_unix_ms: u64, field: u32, scope: u32) -> Result<u64, Code> {
    let counters = || gpu.counters_at(now_unix_ms);
    let row = |value: u64| {
        if remaps_rows(gpu) {
            Ok(value)
        } else {
            Err(NOT_SUPPORTED)
        }
    };
    let page = |value: u64| {
        if remaps_rows(gpu) {
            Err(NOT_SUPPORTED)
        } else {
            Ok(value)
        }
    };
    match field {
        id::NVML_FI_DEV_ECC_CURRENT | id::NVML_FI_DEV_ECC_PENDING => Ok((!gpu.ecc.off).into()),
        id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL => ecc_total(gpu, CORRECTED, VOLATILE),
        id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL => ecc_total(gpu, UNCORRECTED, VOLATILE),
        id::NVML_FI_DEV_ECC_SBE_AGG_TOTAL => ecc_total(gpu, CORRECTED, AGGREGATE),
        id::NVML_FI_DEV_ECC_DBE_AGG_TOTAL => ecc_total(gpu, UNCORRECTED, AGGREGATE),
        id::NVML_FI_DEV_RETIRED_SBE => page(gpu.retired_pages.single_bit.into()),
        id::NVML_FI_DEV_RETIRED_DBE => page(gpu.retired_pages.double_bit.into()),
        id::NVML_FI_DEV_RETIRED_PENDING => page(gpu.retired_pages.pending.into()),
        id::NVML_FI_DEV_REMAPPED_COR => row(gpu.row_remap.corrected.into()),
        id::NVML_FI_DEV_REMAPPED_UNC => row(gpu.row_remap.uncorrected.into()),
        id::NVML_FI_DEV_REMAPPED_PENDING => row(gpu.row_remap.pending.into()),
        id::NVML_FI_DEV_REMAPPED_FAILURE => row(gpu.row_remap.failed.into()),
        id::NVML_FI_DEV_PCIE_REPLAY_COUNTER => Ok(gpu.readings.pcie_replays.into()),
        id::NVML_FI_DEV_PCIE_COUNT_TX_BYTES => Ok(counters().pcie_sent_kib << 10),
        id::NVML_FI_DEV_PCIE_COUNT_RX_BYTES => Ok(counters().pcie_received_kib << 10),
        id::NVML_FI_DEV_MEMORY_TEMP => Ok(gpu.readings.memory_temperature_c.into()),
        id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION => Ok(counters().energy_mj),
        id::NVML_FI_DEV_POWER_INSTANT | id::NVML_FI_DEV_POWER_AVERAGE => {
            Ok(gpu.readings.power_mw.into())
        }
        id::NVML_FI_DEV_POWER_CURRENT_LIMIT => Ok(gpu.power_limit_mw.into()),
        id::NVML_FI_DEV_PERF_POLICY_POWER => Ok(counters().power_violation_ms * 1_000_000),
        id::NVML_FI_DEV_PERF_POLICY_THERMAL => Ok(counters().thermal_violation_ms * 1_000_000),
        id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION => Ok(gpu.recovery_action.into()),
        _ => nvlink_value(gpu, now_unix_ms, field, scope),
    }
}

fn nvlink_value(gpu: &Gpu, now_unix_ms: u64, field: u32, scope: u32) -> Result<u64, Code> {
    let counters = gpu.counters_at(now_unix_ms);
    if field == id::NVML_FI_DEV_NVLINK_LINK_COUNT {
        return Ok(gpu.nvlink_count.into());
    }
    if gpu.nvlink_count == 0 {
        return Err(NOT_SUPPORTED);
    }
    if scope != ALL_LINKS && scope >= gpu.nvlink_count {
        return Err(INVALID_ARGUMENT);
    }
    let links = u64::from(gpu.nvlink_count);
    let share = |total: u64| {
        if scope == ALL_LINKS {
            total
        } else {
            total / links
        }
    };
    let first_link = |total: u64| {
        if scope == ALL_LINKS || scope == 0 {
            total
        } else {
            0
        }
    };
    match field {
        id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX | id::NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX => {
            Ok(share(counters.nvlink_sent_kib))
        }
        id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX | id::NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX => {
            Ok(share(counters.nvlink_received_kib))
        }
        id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL => Ok(gpu.nvlink_errors),
        id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL
        | id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL
        | id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL
        | id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY
        | id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY => Ok(0),
        id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC => Ok(first_link(gpu.nvlink_errors)),
        id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON | id::NVML_FI_DEV_NVLINK_GET_SPEED => {
            Ok(gpu.nvlink_mbytes_per_s.into())
        }
        id::NVML_FI_DEV_NVLINK_GET_STATE if scope != ALL_LINKS => {
            Ok((!gpu.nvlinks_down.contains(&scope)).into())
        }
        id::NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT => Ok(if gpu.nvlink_peer_slots.is_empty() {
            links
        } else {
            0
        }),
        _ => Err(NOT_SUPPORTED),
    }
}
