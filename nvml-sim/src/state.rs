//! What the simulated driver and its GPUs are at this moment: plain data, which `state_dir` keeps in a file and `abi` interprets.

use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings;
use serde::{Deserialize, Serialize};

/// Events kept in a state; older events are dropped, as in a driver's full queue.
pub const MAX_EVENTS: usize = 16_384;

/// Reasons for lower clocks that count as lack of power, and as heat.
const POWER_REASONS: u32 = bindings::nvmlClocksThrottleReasonSwPowerCap
    | bindings::nvmlClocksThrottleReasonHwPowerBrakeSlowdown;
const THERMAL_REASONS: u32 = bindings::nvmlClocksThrottleReasonSwThermalSlowdown
    | bindings::nvmlClocksThrottleReasonHwThermalSlowdown;

/// The simulated host: its driver, its GPUs in slot order, and the events that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Version of this format: 1.
    pub schema: u32,
    pub driver: Driver,
    /// No call into the library returns while this is set, `nvmlInit` included.
    #[serde(default)]
    pub hang: bool,
    /// Position is the slot, which `gpu3` on the command line means. NVML's index counts only GPUs that are not `missing`.
    pub gpus: Vec<Gpu>,
    /// The `seq` that the next event will have.
    #[serde(default)]
    pub next_event: u64,
    /// Oldest first, at most [`MAX_EVENTS`].
    #[serde(default)]
    pub events: Vec<Event>,
}

/// The driver as `nvmlSystemGet*` tells it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Driver {
    /// Such as `580.95.05`.
    pub version: String,
    /// Such as `13.580.95.05`.
    pub nvml_version: String,
    /// CUDA version times 1000 plus minor times 10: 13000 is 13.0.
    pub cuda_version: i32,
    #[serde(default)]
    pub state: DriverState,
    /// Functions that answer `NVML_ERROR_FUNCTION_NOT_FOUND`, as those an older driver does not know.
    #[serde(default)]
    pub withheld_functions: Vec<String>,
}

/// Whether the library can reach its driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverState {
    #[default]
    Loaded,
    /// Every call answers `NVML_ERROR_DRIVER_NOT_LOADED`.
    NotLoaded,
    /// Every call answers `NVML_ERROR_LIB_RM_VERSION_MISMATCH`: the driver was replaced under a running library.
    Mismatch,
}

/// One simulated GPU: what it is, what it reads, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// `GPU-` and 32 hex digits in the usual groups: the identity.
    pub uuid: String,
    /// The N of `/dev/nvidiaN`. Not the index.
    pub minor: u32,
    /// The profile it was made from; for people, the library does not read it.
    pub profile: String,
    /// Marketing name as NVML gives it, such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    pub serial: String,
    /// `NVML_DEVICE_ARCH_*`: 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell.
    pub architecture: u32,
    /// Major and minor CUDA compute capability.
    pub compute_capability: [i32; 2],
    pub memory_total_bytes: u64,
    /// What the driver keeps for itself, inside the total.
    #[serde(default)]
    pub memory_reserved_bytes: u64,
    /// Domain, bus, device, function as NVML prints them: `00000000:1B:00.0`.
    pub pci_bus_id: String,
    /// Device id in the upper 16 bits, vendor 10DE in the lower.
    pub pci_device_id: u32,
    /// The host's memory node nearest to the GPU; none: the platform does not say.
    #[serde(default)]
    pub numa_node: Option<u32>,
    pub pcie_gen: u32,
    pub pcie_width: u32,
    #[serde(default)]
    pub nvlink_count: u32,
    /// GPUs with the same number reach each other by NVLink through switches.
    #[serde(default)]
    pub nvlink_island: Option<u32>,
    #[serde(default)]
    pub nvlinks_down: Vec<u32>,
    /// By link number the slot of the GPU at its other end; empty: every link leads to a switch.
    #[serde(default)]
    pub nvlink_peer_slots: Vec<u32>,
    #[serde(default)]
    pub nvlink_errors: u64,
    /// What one link carries in one direction.
    #[serde(default)]
    pub nvlink_mbytes_per_s: u32,
    #[serde(default)]
    pub fabric: Fabric,
    /// GPUs with the same number sit behind one PCIe switch.
    #[serde(default)]
    pub pcie_switch: Option<u32>,
    /// First and last processor of the host near the GPU; none: the platform does not say.
    #[serde(default)]
    pub near_cpus: Option<[u32; 2]>,
    /// The generation the link falls back to while the GPU is idle; 0: it keeps its own.
    #[serde(default)]
    pub pcie_gen_idle: u32,
    /// Multiprocessors, all of them.
    #[serde(default)]
    pub multiprocessors: u32,
    /// Whether the board can be cut into MIG instances at all.
    #[serde(default)]
    pub mig_capable: bool,
    #[serde(default)]
    pub mig_enabled: bool,
    /// The MIG mode that comes into force with the next reset.
    #[serde(default)]
    pub mig_pending: Option<bool>,
    /// GPU instances, in the order of their ids.
    #[serde(default)]
    pub mig_instances: Vec<GpuInstance>,
    #[serde(default)]
    pub compute_mode: ComputeMode,
    pub power_limit_mw: u32,
    /// 0: the same as `power_limit_mw`.
    #[serde(default)]
    pub default_power_limit_mw: u32,
    pub max_sm_clock_mhz: u32,
    pub max_memory_clock_mhz: u32,
    #[serde(default)]
    pub thresholds: Thresholds,
    #[serde(default)]
    pub accounting: bool,
    pub readings: Readings,
    #[serde(default)]
    pub ecc: Ecc,
    #[serde(default)]
    pub row_remap: RowRemap,
    /// Only boards before Ampere retire pages; those after remap rows.
    #[serde(default)]
    pub retired_pages: RetiredPages,
    /// What the driver advises: `NVML_GPU_RECOVERY_ACTION_*`, 0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset.
    #[serde(default)]
    pub recovery_action: u32,
    #[serde(default)]
    pub processes: Vec<Process>,
    #[serde(default)]
    pub faults: Faults,
}

/// What moves from second to second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Readings {
    pub temperature_c: u32,
    #[serde(default)]
    pub memory_temperature_c: u32,
    pub power_mw: u32,
    pub gpu_percent: u32,
    pub memory_percent: u32,
    /// Beyond `memory_reserved_bytes`.
    pub memory_used_bytes: u64,
    pub sm_clock_mhz: u32,
    pub memory_clock_mhz: u32,
    /// `nvmlClocksThrottleReason*` bits.
    pub throttle_reasons: u64,
    pub pcie_replays: u32,
    #[serde(default)]
    pub traffic: Traffic,
    /// What had been counted by `counted_to_unix_ms`.
    #[serde(default)]
    pub counted: Counters,
    /// From here counters run on as fast as the readings say; 0: they stand still.
    #[serde(default)]
    pub counted_to_unix_ms: u64,
}

/// KiB a second over the GPU's links, all lanes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Traffic {
    pub pcie_sent_kib_per_s: u32,
    pub pcie_received_kib_per_s: u32,
    pub nvlink_sent_kib_per_s: u64,
    pub nvlink_received_kib_per_s: u64,
}

/// What rises while time passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Counters {
    pub energy_mj: u64,
    pub pcie_sent_kib: u64,
    pub pcie_received_kib: u64,
    pub nvlink_sent_kib: u64,
    pub nvlink_received_kib: u64,
    /// Time slowed down for lack of power, and for heat.
    pub power_violation_ms: u64,
    pub thermal_violation_ms: u64,
}

/// Temperatures at which the board acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Thresholds {
    pub shutdown_c: u32,
    pub slowdown_c: u32,
    pub memory_max_c: u32,
    /// Highest for full speed.
    pub gpu_max_c: u32,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            shutdown_c: 92,
            slowdown_c: 87,
            memory_max_c: 95,
            gpu_max_c: 85,
        }
    }
}

/// What the fabric manager made of the GPU's links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fabric {
    pub state: FabricState,
    /// `NVML_ERROR_*` that the registration ended with; 0 is success.
    pub status: u32,
    /// `NVML_GPU_FABRIC_HEALTH_MASK_*`.
    pub health_mask: u32,
    /// `NVML_GPU_FABRIC_HEALTH_SUMMARY_*`: 0 not told, 1 healthy, 2 unhealthy, 3 limited.
    pub health_summary: u8,
    pub clique: u32,
    pub cluster_uuid: [u8; 16],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricState {
    /// No fabric manager is needed: no switch, or one that NVML does not tell of.
    #[default]
    NotSupported,
    NotStarted,
    InProgress,
    Completed,
}

/// A part of a GPU with memory and engines of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuInstance {
    pub id: u32,
    /// As `nvidia-smi mig -lgip` numbers it: 19 is one slice, 0 the whole GPU.
    pub profile_id: u32,
    /// First memory slice, and how many.
    pub start: u32,
    pub size: u32,
    #[serde(default)]
    pub compute: Vec<ComputeInstance>,
}

/// What of a GPU instance's compute slices goes together; each is a MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputeInstance {
    pub id: u32,
    pub profile_id: u32,
    /// First compute slice within the GPU instance, and how many.
    pub start: u32,
    pub size: u32,
    /// `MIG-` and 32 hex digits.
    pub uuid: String,
}

/// Error counts since the driver was loaded (volatile) and since the board was made (aggregate).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ecc {
    pub volatile_corrected: u64,
    pub volatile_uncorrected: u64,
    pub aggregate_corrected: u64,
    pub aggregate_uncorrected: u64,
    /// Of the volatile uncorrected ones, those in SRAM; the rest is device memory.
    pub sram_uncorrected: u64,
    /// Of the aggregate uncorrected ones, those in SRAM.
    pub aggregate_sram_uncorrected: u64,
    /// So many of them that the board should be replaced.
    pub sram_threshold_exceeded: bool,
    /// ECC is switched off, which nothing can be said of then.
    pub off: bool,
}

/// Rows of device memory replaced by spare ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RowRemap {
    pub corrected: u32,
    pub uncorrected: u32,
    /// Takes effect at the next reset.
    pub pending: bool,
    /// No spare row was left.
    pub failed: bool,
}

/// Pages taken out of use for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetiredPages {
    /// For corrected errors that came back.
    pub single_bit: u32,
    pub double_bit: u32,
    /// Takes effect at the next reset.
    pub pending: bool,
}

/// A process with a context on the GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    pub pid: u32,
    pub memory_bytes: u64,
    #[serde(default)]
    pub kind: ProcessKind,
    /// Ids of the GPU instance and compute instance it is confined to.
    #[serde(default)]
    pub instance: Option<[u32; 2]>,
    /// Of the multiprocessors' time.
    #[serde(default)]
    pub sm_percent: u32,
    #[serde(default)]
    pub started_unix_ms: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessKind {
    #[default]
    Compute,
    Graphics,
    Mps,
}

/// The processes that may open a context, as `nvidia-smi -c` sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeMode {
    #[default]
    Default,
    ExclusiveProcess,
    Prohibited,
}

/// Faults that last until cleared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Counted by NVML, but every question about it answers `NVML_ERROR_GPU_IS_LOST`.
    pub lost: bool,
    /// Not enumerated at all; the indices of those behind it move up.
    pub missing: bool,
    /// Questions about it do not return while this is set.
    pub hang: bool,
    /// Every question about it takes so long.
    pub slow_ms: u64,
    /// Every question about it is answered with this `nvmlReturn_t`.
    pub error_code: u32,
    /// Lanes and generation the PCIe link came up with, where they are less than the board's.
    pub pcie_width: Option<u32>,
    pub pcie_gen: Option<u32>,
    /// Its NVLinks carry half.
    pub nvlink_slow: bool,
    /// A reset does not succeed.
    pub reset_fails: bool,
    /// What `nvml-sim check` finds or does on it, as the fault `check` says it; empty: all is well.
    pub check: String,
    /// And how long that takes it.
    pub check_ms: u64,
}

/// Something NVML's event set delivers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Rises by one from event to event, over the life of the state.
    pub seq: u64,
    pub uuid: String,
    pub kind: EventKind,
    /// Ids of the GPU instance and compute instance it befell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<[u32; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The number as the kernel log prints it.
    Xid(u64),
    SingleBitEcc,
    DoubleBitEcc,
    MigConfigChange,
}

impl Gpu {
    /// The counters at `now_unix_ms`.
    pub fn counters_at(&self, now_unix_ms: u64) -> Counters {
        let readings = &self.readings;
        let mut counters = readings.counted;
        if readings.counted_to_unix_ms == 0 {
            return counters;
        }
        let elapsed_ms = now_unix_ms.saturating_sub(readings.counted_to_unix_ms);
        let traffic = &readings.traffic;
        let run_on = |counter: &mut u64, per_s: u64| {
            *counter = counter.saturating_add(elapsed_ms.saturating_mul(per_s) / 1000);
        };
        run_on(&mut counters.energy_mj, readings.power_mw.into());
        run_on(
            &mut counters.pcie_sent_kib,
            traffic.pcie_sent_kib_per_s.into(),
        );
        run_on(
            &mut counters.pcie_received_kib,
            traffic.pcie_received_kib_per_s.into(),
        );
        run_on(&mut counters.nvlink_sent_kib, traffic.nvlink_sent_kib_per_s);
        run_on(
            &mut counters.nvlink_received_kib,
            traffic.nvlink_received_kib_per_s,
        );
        let slowed = |reasons: u32| readings.throttle_reasons & u64::from(reasons) != 0;
        if slowed(POWER_REASONS) {
            counters.power_violation_ms += elapsed_ms;
        }
        if slowed(THERMAL_REASONS) {
            counters.thermal_violation_ms += elapsed_ms;
        }
        counters
    }

    /// To be called before a reading changes that counters depend on.
    pub fn settle_counters(&mut self, now_unix_ms: u64) {
        if self.readings.counted_to_unix_ms != 0 {
            self.readings.counted = self.counters_at(now_unix_ms);
            self.readings.counted_to_unix_ms = now_unix_ms;
        }
    }

    /// Sets the power drawn, keeping the energy used so far.
    pub fn set_power(&mut self, power_mw: u32, now_unix_ms: u64) {
        self.settle_counters(now_unix_ms);
        self.readings.power_mw = power_mw;
    }
}

/// Milliseconds since 1970 by the system clock.
pub(crate) fn now_unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
