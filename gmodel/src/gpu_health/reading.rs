//! One GPU's condition as the driver shows it: counters, states, events. Never says what they mean; that is the
//! catalogue's. Source: NVIDIA's NVML API reference; names follow its terms.

use serde::{Deserialize, Serialize};

/// One look at one GPU. What the board or the driver does not offer is `None`, which is never a sign of anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuReading {
    /// Why there is no reading: the GPU is lost, or holds its calls. Then nothing else is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<ReadFailure>,
    pub temperature_c: Option<u32>,
    /// Where the board begins to slow down for heat.
    pub slowdown_c: Option<u32>,
    pub memory_temperature_c: Option<u32>,
    pub memory_max_c: Option<u32>,
    pub power_mw: Option<u32>,
    /// Share of the time in which any kernel ran; `None` in MIG mode.
    pub busy_percent: Option<u32>,
    /// `nvmlClocksEventReason*` bits.
    pub slow_reasons: Option<u64>,
    /// Time slowed down for lack of power and for heat since the driver was loaded.
    pub power_slowed_ms: Option<u64>,
    pub heat_slowed_ms: Option<u64>,
    /// Since the driver was loaded or the GPU was reset.
    pub ecc_corrected: Option<u64>,
    pub ecc_uncorrected: Option<u64>,
    /// Over the life of the board.
    pub ecc_uncorrected_ever: Option<u64>,
    /// Of the uncorrected ones over the life of the board, those in SRAM.
    pub sram_uncorrected_ever: Option<u64>,
    /// The driver's own word that SRAM has had too many.
    pub sram_worn: Option<bool>,
    /// Rows replaced for uncorrected errors.
    pub rows_remapped: Option<u64>,
    pub remap_pending: Option<bool>,
    pub remap_failed: Option<bool>,
    /// Boards before Ampere retire pages instead.
    pub pages_retired: Option<u64>,
    pub retirement_pending: Option<bool>,
    /// Links the board has; 0: none.
    pub nvlink_count: u32,
    pub nvlinks_down: Vec<u32>,
    /// Links that GPUs of the same type on the same node have up; `None` where there is none to compare with.
    pub nvlinks_up_expected: Option<u32>,
    /// CRC, replay and recovery errors of all links together, since they came up.
    pub nvlink_errors: Option<u64>,
    pub pcie_gen: Option<u32>,
    pub pcie_gen_max: Option<u32>,
    pub pcie_width: Option<u32>,
    pub pcie_width_max: Option<u32>,
    pub pcie_replays: Option<u64>,
    pub fabric: Option<FabricHealth>,
    pub recovery: Option<RecoveryAdvice>,
}

impl GpuReading {
    /// Links that are up.
    pub fn nvlinks_up(&self) -> u32 {
        self.nvlink_count
            .saturating_sub(self.nvlinks_down.len() as u32)
    }
}

/// One reading of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuHealth {
    pub index: u32,
    /// Unknown where the GPU does not answer and was never discovered.
    pub uuid: Option<String>,
    pub reading: GpuReading,
}

impl GpuHealth {
    /// A GPU that gave no reading.
    pub fn silent(index: u32, silence: ReadFailure) -> GpuHealth {
        GpuHealth {
            index,
            uuid: None,
            reading: GpuReading {
                fault: Some(silence),
                ..GpuReading::default()
            },
        }
    }
}

/// Sets in each reading how many links the best GPU of its type on this node has up: a link that was down from the first
/// reading is seen by that. Takes the GPU's type beside each reading. A GPU without any link up may have no bridge, and is
/// not compared.
pub fn compare_siblings(readings: &mut [(&str, &mut GpuReading)]) {
    for at in 0..readings.len() {
        let gpu_type = readings[at].0;
        let siblings = || {
            let others = readings.iter().enumerate();
            others.filter(move |(other, (kind, _))| *other != at && *kind == gpu_type)
        };
        let spoken = siblings().filter(|(_, (_, reading))| reading.fault.is_none());
        let most = spoken.map(|(_, (_, reading))| reading.nvlinks_up()).max();
        readings[at].1.nvlinks_up_expected = most.filter(|_| readings[at].1.nvlinks_up() > 0);
    }
}

/// Why a GPU gives no reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadFailure {
    pub kind: ReadFailureKind,
    /// In the words of the driver or of the thread that waited.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadFailureKind {
    /// Off the bus: the driver says that it is lost.
    Lost,
    /// A call about it has not returned.
    Hangs,
    /// It was in the inventory and is not enumerated any more.
    Missing,
    /// The driver answers with an error.
    Error,
    /// A kind that this release does not know.
    #[serde(other)]
    Unknown,
}

/// How the GPU's registration with the fabric manager stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FabricHealth {
    Ready,
    NotStarted,
    InProgress,
    /// Registration ended with an error.
    Failed,
    /// Registered, with degraded bandwidth, an unhealthy route or too few links.
    Unhealthy,
    #[serde(other)]
    Unknown,
}

/// What the driver itself advises: `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryAdvice {
    None,
    Reset,
    Reboot,
    DrainP2p,
    DrainAndReset,
    #[serde(other)]
    Unknown,
}

/// An event of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuEventKind {
    /// The driver's error number, as in the kernel log.
    Xid(u64),
    EccCorrected,
    EccUncorrected,
    /// It answers no more.
    Lost,
    /// Its MIG instances changed.
    MigConfigChange,
    /// A kind that this release does not know.
    #[serde(other)]
    Unknown,
}

/// Something that befell a GPU, `count` times since events were last fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuEvent {
    pub uuid: String,
    pub kind: GpuEventKind,
    pub count: u64,
    /// An Xid may come from the event set and from the kernel log: two events then.
    pub source: EventSource,
}

/// The source of an event. The same Xid comes by the event set and in the kernel log, and is counted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventSource {
    EventSet,
    KernelLog,
    /// A counter that was read.
    Reading,
}

/// Bits of [`GpuReading::slow_reasons`] that matter here: `nvmlClocksEventReason*`.
pub mod slow_reason {
    pub const IDLE: u64 = 0x1;
    pub const POWER_CAP: u64 = 0x4;
    pub const HARDWARE: u64 = 0x8;
    pub const SOFTWARE_THERMAL: u64 = 0x20;
    pub const HARDWARE_THERMAL: u64 = 0x40;
    pub const POWER_BRAKE: u64 = 0x80;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_of_one_type_are_compared_and_silent_ones_left_out() {
        let with = |count, down: &[u32]| GpuReading {
            nvlink_count: count,
            nvlinks_down: down.to_vec(),
            ..GpuReading::default()
        };
        let (mut one, mut two, mut other) = (with(18, &[3, 4]), with(18, &[]), with(12, &[]));
        let mut lost = GpuReading {
            fault: Some(ReadFailure {
                kind: ReadFailureKind::Lost,
                text: String::new(),
            }),
            ..GpuReading::default()
        };
        let mut unbridged = with(2, &[0, 1]);
        compare_siblings(&mut [
            ("h100", &mut one),
            ("h100", &mut two),
            ("a100", &mut other),
            ("h100", &mut lost),
            ("h100", &mut unbridged),
        ]);
        let expected = [&one, &two, &other, &lost, &unbridged];
        let expected = expected.map(|reading| reading.nvlinks_up_expected);
        assert_eq!(expected, [Some(18), Some(16), None, None, None]);
    }

    #[test]
    fn words_of_a_later_release_are_read_as_unknown() {
        let kind: GpuEventKind = serde_json::from_str("\"fan-stopped\"").unwrap();
        assert_eq!(kind, GpuEventKind::Unknown);
        let xid: GpuEventKind = serde_json::from_str("{\"xid\":79}").unwrap();
        assert_eq!(xid, GpuEventKind::Xid(79));
        let fabric: FabricHealth = serde_json::from_str("\"melted\"").unwrap();
        assert_eq!(fabric, FabricHealth::Unknown);
    }
}
