//! The health of each GPU: one call for all counters that field values hold, and a call for each other reading.
//! Eight calls a GPU and sweep on Hopper, nine on boards whose link states have a call each.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::error::NvmlError as Answer;
use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE as DEGRADED,
    NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE as UNHEALTHY,
    NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW as DEGRADED_SHIFT,
    NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY as UNHEALTHY_SHIFT,
    NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW as FLAG_MASK,
    NVML_GPU_FABRIC_STATE_COMPLETED as COMPLETED, NVML_GPU_FABRIC_STATE_IN_PROGRESS as IN_PROGRESS,
    NVML_GPU_FABRIC_STATE_NOT_STARTED as NOT_STARTED, field_id as id, nvmlEccSramErrorStatus_v1_t,
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
};

use gmodel::gpu_health::{FabricHealth, GpuHealth, GpuReading, RecoveryAdvice};

use super::answer::{check, if_offered, struct_version};
use super::facts::FixedFacts;
use super::fields::{ALL_LINKS, Fields, NO_SCOPE, read_fields};

/// Counters that need no scope.
const PLAIN: &[u32] = &[
    id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
    id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    id::NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
    id::NVML_FI_DEV_REMAPPED_UNC,
    id::NVML_FI_DEV_REMAPPED_PENDING,
    id::NVML_FI_DEV_REMAPPED_FAILURE,
    id::NVML_FI_DEV_RETIRED_SBE,
    id::NVML_FI_DEV_RETIRED_DBE,
    id::NVML_FI_DEV_RETIRED_PENDING,
    id::NVML_FI_DEV_PCIE_REPLAY_COUNTER,
    id::NVML_FI_DEV_PERF_POLICY_POWER,
    id::NVML_FI_DEV_PERF_POLICY_THERMAL,
    id::NVML_FI_DEV_MEMORY_TEMP,
    id::NVML_FI_DEV_POWER_INSTANT,
    id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
];

/// Errors that Hopper counts link by link.
const PER_LINK_ERRORS: &[u32] = &[
    id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
];

pub fn read_one(index: u32, device: &Device<'_>, fixed: &FixedFacts) -> Result<GpuHealth, Answer> {
    let fields = read_fields(device, &wanted(fixed.nvlink_count))?;
    let mut reading = GpuReading {
        temperature_c: if_offered(device.temperature(TemperatureSensor::Gpu))?,
        slowdown_c: fixed.slowdown_c,
        memory_max_c: fixed.memory_max_c,
        busy_percent: if_offered(device.utilization_rates())?.map(|rates| rates.gpu),
        slow_reasons: if_offered(device.current_throttle_reasons())?.map(|reasons| reasons.bits()),
        nvlink_count: fixed.nvlink_count,
        pcie_gen: if_offered(device.current_pcie_link_gen())?,
        pcie_gen_max: fixed.pcie_gen_max,
        pcie_width: if_offered(device.current_pcie_link_width())?,
        pcie_width_max: fixed.pcie_width_max,
        ..GpuReading::default()
    };
    match &fields {
        Some(fields) => from_fields(&mut reading, fields),
        None => from_single_calls(&mut reading, device)?,
    }
    reading.nvlinks_down = links_down(device, fixed.nvlink_count, fields.as_ref())?;
    if fixed.has_sram_status {
        let sram = sram_status(device)?;
        reading.sram_worn = sram.map(|(_, worn)| worn);
        reading.sram_uncorrected_ever = sram.map(|(uncorrected, _)| uncorrected);
    }
    if fixed.has_fabric {
        reading.fabric = fabric(device)?;
    }
    Ok(GpuHealth {
        index,
        uuid: Some(fixed.uuid.clone()),
        reading,
    })
}

fn wanted(nvlink_count: u32) -> Vec<(u32, u32)> {
    let plain = PLAIN.iter().map(|&field| (field, NO_SCOPE));
    let links = (0..nvlink_count).flat_map(|link| {
        let state = std::iter::once(&id::NVML_FI_DEV_NVLINK_GET_STATE);
        let fields = state.chain(PER_LINK_ERRORS);
        fields.map(move |&field| (field, link))
    });
    plain.chain(links).collect()
}

fn from_fields(reading: &mut GpuReading, fields: &Fields) {
    let sum = |counters: &[Option<u64>]| {
        let told: Vec<u64> = counters.iter().copied().flatten().collect();
        (!told.is_empty()).then(|| told.iter().sum::<u64>())
    };
    let millis = |field| fields.value(field).map(|nanos| nanos / 1_000_000);
    reading.ecc_corrected = fields.value(id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL);
    reading.ecc_uncorrected = fields.value(id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL);
    reading.ecc_uncorrected_ever = fields.value(id::NVML_FI_DEV_ECC_DBE_AGG_TOTAL);
    reading.rows_remapped = fields.value(id::NVML_FI_DEV_REMAPPED_UNC);
    reading.remap_pending = fields.flag(id::NVML_FI_DEV_REMAPPED_PENDING);
    reading.remap_failed = fields.flag(id::NVML_FI_DEV_REMAPPED_FAILURE);
    reading.pages_retired = sum(&[
        fields.value(id::NVML_FI_DEV_RETIRED_SBE),
        fields.value(id::NVML_FI_DEV_RETIRED_DBE),
    ]);
    reading.retirement_pending = fields.flag(id::NVML_FI_DEV_RETIRED_PENDING);
    reading.pcie_replays = fields.value(id::NVML_FI_DEV_PCIE_REPLAY_COUNTER);
    reading.power_slowed_ms = millis(id::NVML_FI_DEV_PERF_POLICY_POWER);
    reading.heat_slowed_ms = millis(id::NVML_FI_DEV_PERF_POLICY_THERMAL);
    let narrow = |field| {
        fields
            .value(field)
            .and_then(|value| u32::try_from(value).ok())
    };
    reading.memory_temperature_c =
        narrow(id::NVML_FI_DEV_MEMORY_TEMP).filter(|&celsius| celsius > 0);
    reading.power_mw = narrow(id::NVML_FI_DEV_POWER_INSTANT);
    reading.recovery = fields
        .value(id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
        .map(recovery);
    let mut errors = vec![
        fields.value(id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL),
        fields.value(id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL),
        fields.value(id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL),
    ];
    if errors.iter().all(Option::is_none) {
        errors = (0..reading.nvlink_count)
            .flat_map(|link| {
                PER_LINK_ERRORS
                    .iter()
                    .map(move |&field| fields.get(field, link))
            })
            .collect();
    }
    reading.nvlink_errors = sum(&errors).filter(|_| reading.nvlink_count > 0);
}

/// What a driver without field values tells in calls of their own.
fn from_single_calls(reading: &mut GpuReading, device: &Device<'_>) -> Result<(), Answer> {
    let ecc = |error, counter| if_offered(device.total_ecc_errors(error, counter));
    reading.ecc_corrected = ecc(MemoryError::Corrected, EccCounter::Volatile)?;
    reading.ecc_uncorrected = ecc(MemoryError::Uncorrected, EccCounter::Volatile)?;
    reading.ecc_uncorrected_ever = ecc(MemoryError::Uncorrected, EccCounter::Aggregate)?;
    reading.retirement_pending = if_offered(device.are_pages_pending_retired())?;
    reading.pcie_replays = if_offered(device.pcie_replay_counter())?.map(u64::from);
    reading.power_mw = if_offered(device.power_usage())?;
    if let Some([_, uncorrected, pending, failed]) = remapped_rows(device)? {
        reading.rows_remapped = Some(uncorrected.into());
        reading.remap_pending = Some(pending != 0);
        reading.remap_failed = Some(failed != 0);
    }
    Ok(())
}

/// Corrected, uncorrected, pending, failed. The wrapper does not have this call.
fn remapped_rows(device: &Device<'_>) -> Result<Option<[u32; 4]>, Answer> {
    let Ok(ask) = &device.nvml().lib().nvmlDeviceGetRemappedRows else {
        return Ok(None);
    };
    let mut rows = [0; 4];
    let [corrected, uncorrected, pending, failed] = &mut rows;
    // SAFETY: the handle is of the library the function comes from, and all four pointers are to live integers of NVML's type.
    let code = unsafe { ask(device.handle(), corrected, uncorrected, pending, failed) };
    Ok(if_offered(check(code))?.map(|()| rows))
}

/// From the fields where the board has them (Hopper and later), else by a call for each link.
fn links_down(
    device: &Device<'_>,
    nvlink_count: u32,
    fields: Option<&Fields>,
) -> Result<Vec<u32>, Answer> {
    let mut down = Vec::new();
    for link in 0..nvlink_count {
        let told = fields.and_then(|fields| fields.get(id::NVML_FI_DEV_NVLINK_GET_STATE, link));
        let up = match told {
            Some(state) => Some(state != 0),
            None => if_offered(device.link_wrapper_for(link).is_active())?,
        };
        if up == Some(false) {
            down.push(link);
        }
    }
    Ok(down)
}

/// Uncorrected errors of SRAM over the board's life, and whether they are too many.
fn sram_status(device: &Device<'_>) -> Result<Option<(u64, bool)>, Answer> {
    let Ok(ask) = &device.nvml().lib().nvmlDeviceGetSramEccErrorStatus else {
        return Ok(None);
    };
    // SAFETY: all zero is a value of this structure of numbers.
    let mut status: nvmlEccSramErrorStatus_v1_t = unsafe { std::mem::zeroed() };
    status.version = struct_version::<nvmlEccSramErrorStatus_v1_t>(1);
    // SAFETY: the handle is of the library the function comes from; the version tells the size of the structure.
    let code = unsafe { ask(device.handle(), &mut status) };
    let told = if_offered(check(code))?;
    Ok(told.map(|()| {
        (
            status.aggregateUncParity + status.aggregateUncSecDed,
            status.bThresholdExceeded != 0,
        )
    }))
}

/// Whether the driver tells of SRAM apart.
pub fn has_sram_status(device: &Device<'_>) -> Result<bool, Answer> {
    sram_status(device).map(|told| told.is_some())
}

/// `None` where no fabric is needed: no switches, or boards before Hopper.
pub fn fabric(device: &Device<'_>) -> Result<Option<FabricHealth>, Answer> {
    Ok(fabric_place(device)?.map(|(health, _)| health))
}

/// The same, with the NVLink domain that the GPU is in: cluster and clique, empty for none (switches of one host alone).
pub fn fabric_place(device: &Device<'_>) -> Result<Option<(FabricHealth, String)>, Answer> {
    let Some(FabricAnswer {
        state,
        status,
        mask,
        cluster,
        clique,
    }) = fabric_info(device)?
    else {
        return Ok(None);
    };
    let flag = |shift: u32| (mask >> shift) & FLAG_MASK;
    let sick = flag(DEGRADED_SHIFT) == DEGRADED || flag(UNHEALTHY_SHIFT) == UNHEALTHY;
    let health = match state {
        NOT_STARTED => Some(FabricHealth::NotStarted),
        IN_PROGRESS => Some(FabricHealth::InProgress),
        COMPLETED if status != SUCCESS => Some(FabricHealth::Failed),
        COMPLETED if sick => Some(FabricHealth::Unhealthy),
        COMPLETED => Some(FabricHealth::Ready),
        _ => None,
    };
    let registered = state == COMPLETED && status == SUCCESS && cluster != [0; 16];
    let domain = if registered {
        domain_name(cluster, clique)
    } else {
        String::new()
    };
    Ok(health.map(|health| (health, domain)))
}

/// `00112233-4455-6677-8899-aabbccddeeff.1`, as `nvidia-smi` prints the two.
fn domain_name(cluster: [u8; 16], clique: u32) -> String {
    let bits = u128::from_be_bytes(cluster);
    let part = |shift: u32, digits: u32| (bits >> shift) & ((1 << (4 * digits)) - 1);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}.{clique}",
        part(96, 8),
        part(80, 4),
        part(64, 4),
        part(48, 4),
        part(0, 12)
    )
}

/// What the fabric manager says of a GPU; an older driver has no mask.
struct FabricAnswer {
    state: u32,
    status: u32,
    mask: u32,
    cluster: [u8; 16],
    clique: u32,
}

fn fabric_info(device: &Device<'_>) -> Result<Option<FabricAnswer>, Answer> {
    let lib = device.nvml().lib();
    if let Ok(ask) = &lib.nvmlDeviceGetGpuFabricInfoV {
        // SAFETY: all zero is a value of this structure of numbers.
        let mut info: nvmlGpuFabricInfo_v2_t = unsafe { std::mem::zeroed() };
        info.version = struct_version::<nvmlGpuFabricInfo_v2_t>(2);
        // SAFETY: the version in the structure tells the library that it is the second, which is what the pointer leads to.
        let code = unsafe { ask(device.handle(), (&raw mut info).cast()) };
        if let Some(()) = if_offered(check(code))? {
            return Ok(Some(FabricAnswer {
                state: info.state.into(),
                status: info.status,
                mask: info.healthMask,
                cluster: info.clusterUuid,
                clique: info.cliqueId,
            }));
        }
    }
    let Ok(ask) = &lib.nvmlDeviceGetGpuFabricInfo else {
        return Ok(None);
    };
    // SAFETY: all zero is a value of this structure of numbers, and the handle is of the library the function comes from.
    let (code, info) = unsafe {
        let mut info: nvmlGpuFabricInfo_t = std::mem::zeroed();
        (ask(device.handle(), &mut info), info)
    };
    let told = if_offered(check(code))?;
    Ok(told.map(|()| FabricAnswer {
        state: info.state.into(),
        status: info.status,
        mask: 0,
        cluster: info.clusterUuid,
        clique: info.cliqueId,
    }))
}

fn recovery(action: u64) -> RecoveryAdvice {
    match action {
        0 => RecoveryAdvice::None,
        1 => RecoveryAdvice::Reset,
        2 => RecoveryAdvice::Reboot,
        3 => RecoveryAdvice::DrainP2p,
        4 => RecoveryAdvice::DrainAndReset,
        _ => RecoveryAdvice::Unknown,
    }
}

/// The links of a board that counts them, by whether each is up: what discovery compares topologies by.
pub fn link_states(device: &Device<'_>, nvlink_count: u32) -> Result<Vec<u32>, Answer> {
    let wanted: Vec<(u32, u32)> = (0..nvlink_count)
        .map(|link| (id::NVML_FI_DEV_NVLINK_GET_STATE, link))
        .collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let fields = read_fields(device, &wanted)?;
    links_down(device, nvlink_count, fields.as_ref())
}

/// How many links a board has: told by a field, or counted.
pub fn count_links(device: &Device<'_>) -> Result<u32, Answer> {
    /// NVML's highest link number.
    const MAX_LINKS: u32 = 18;
    let told = read_fields(device, &[(id::NVML_FI_DEV_NVLINK_LINK_COUNT, NO_SCOPE)])?
        .and_then(|fields| fields.value(id::NVML_FI_DEV_NVLINK_LINK_COUNT));
    if let Some(count) = told {
        return Ok(u32::try_from(count).unwrap_or(0).min(MAX_LINKS));
    }
    let mut count = 0;
    while count < MAX_LINKS && if_offered(device.link_wrapper_for(count).is_active())?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// All links of a board together, in KiB since they came up: sent and received.
pub fn link_traffic(fields: &Fields) -> (Option<u64>, Option<u64>) {
    (
        fields.get(id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
        fields.get(id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
    )
}
