//! Bodies of the API about single GPUs: how each stands, what is ordered for it, and its history by UUID; and what a run made of its GPUs.

use gmodel::Instant;
use gmodel::gpu_use::GpuUseTotals;
use serde::{Deserialize, Serialize};

/// Which GPUs `GET /v1/gpus` lists.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuQuery {
    /// A list of hosts; empty: all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
}

/// One GPU of a node and how it stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuHealthRow {
    pub node: String,
    pub slot: u16,
    /// The driver's; a slice has its GPU's.
    pub index: u32,
    /// `h100`; of a slice `h100:1g.10gb`.
    #[serde(rename = "type")]
    pub gpu_type: String,
    pub uuid: String,
    /// `ok`, `noted`, `suspect` (it should go out, and waits for the breaker), `out`, `quarantined`, `resetting`, `booting`,
    /// `burning in`, `to be replaced`, `missing`, `moved` (it is in another node now).
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Instant>,
    /// Why no job gets it.
    pub reason: String,
    /// Name of the sign in the catalogue.
    pub sign: String,
    pub evidence: String,
    pub next: String,
    /// Signs that stand and take it out of nothing.
    pub notes: Vec<String>,
    /// Jobs that hold it, as shown.
    pub jobs: Vec<String>,
    /// The order that its node has not answered yet; empty: none.
    pub ordered: String,
    /// Why the node did not carry out the last one.
    pub refused: String,
    /// The next step waits: the pool's breaker does not allow it now.
    pub stopped: bool,
    /// When it was last checked in an idle gap, or could not be; absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checked: Option<Instant>,
    /// What its newest results of checks are out of line in.
    pub odd: Vec<String>,
}

/// Something that was seen of a GPU, or done about it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuHistoryRow {
    pub uuid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Instant>,
    pub node: String,
    /// `appeared`, `moved`, `sick`, `noted`, `well`, `gone`, `left`, `forgotten`, `ordered`, `refused`, `reset`, `boot`, `burn_in`, `to_be_replaced`, `stopped`, `cut`,
    /// `checked` (what a check in an idle gap found), `odd` (its result is out of line).
    pub kind: String,
    pub text: String,
}

/// One thing in which a node differs from what `[expect.NAME]` says it should have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DifferenceRow {
    pub node: String,
    /// `node`, `gpus`, `cpus`, `memory`, `driver`.
    pub what: String,
    pub expected: String,
    pub found: String,
}

/// Body of `POST /v1/nodes/{name}/gpus/{gpu}/{act}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuActionRequest {
    pub reason: String,
    /// Of a cut by MIG, one for each slice; none: whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<String>,
}

/// Its answer, and that of `GET /v1/gpus`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GpuList {
    pub schema: u32,
    pub gpus: Vec<GpuHealthRow>,
}

/// What a run made of its GPUs, all of them together: `gmodel::gpu_use`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuUseRow {
    /// GPU-seconds that were sampled, and those of them without any use.
    pub sampled_secs: u64,
    pub idle_secs: u64,
    /// Mean use of multiprocessors, and of memory's bandwidth; absent where never told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_busy_percent: Option<f64>,
    /// The most on one GPU.
    pub memory_peak_bytes: u64,
    pub power_peak_watts: f64,
    pub temperature_peak_c: u32,
    pub energy_joules: u64,
    pub nvlink_bytes: u64,
    pub pcie_bytes: u64,
    /// GPU-seconds slowed down for heat or lack of power.
    pub slowed_secs: u64,
}

impl From<&GpuUseTotals> for GpuUseRow {
    fn from(totals: &GpuUseTotals) -> Self {
        let percent = |permille: Option<u32>| permille.map(|permille| f64::from(permille) / 10.0);
        Self {
            sampled_secs: totals.sampled_ms / 1000,
            idle_secs: totals.idle_secs(),
            busy_percent: percent(totals.busy_mean_permille()),
            memory_busy_percent: percent(totals.memory_mean_permille()),
            memory_peak_bytes: totals.memory_peak_bytes,
            power_peak_watts: f64::from(totals.power_peak_mw) / 1000.0,
            temperature_peak_c: totals.temperature_peak_c,
            energy_joules: totals.joules(),
            nvlink_bytes: totals.nvlink_kib.saturating_mul(1024),
            pcie_bytes: totals.pcie_kib.saturating_mul(1024),
            slowed_secs: totals.slowed_ms / 1000,
        }
    }
}
