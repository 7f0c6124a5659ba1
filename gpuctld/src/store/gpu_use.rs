//! What a run made of its GPUs, as the columns of its row: `gpu_` and the names here. All NULL without samples.
//!
//! Owns the order of the columns; what they mean is `gmodel::gpu_use`'s.

use gmodel::gpu_use::GpuUseTotals;
use rusqlite::Row;

pub const COLUMNS: [&str; 13] = [
    "sampled_ms",
    "idle_ms",
    "busy_percent_ms",
    "busy_told_ms",
    "memory_percent_ms",
    "memory_told_ms",
    "memory_peak_bytes",
    "power_peak_mw",
    "temperature_peak_c",
    "energy_mj",
    "nvlink_kib",
    "pcie_kib",
    "slowed_ms",
];

/// In the order of [`COLUMNS`]; `idle_now_ms` is of no use after the end.
pub fn values(totals: &GpuUseTotals) -> [Option<i64>; COLUMNS.len()] {
    let known = !totals.is_empty();
    let whole = |value: u64| known.then(|| i64::try_from(value).unwrap_or(i64::MAX));
    [
        whole(totals.sampled_ms),
        whole(totals.idle_ms),
        whole(totals.busy_percent_ms),
        whole(totals.busy_told_ms),
        whole(totals.memory_percent_ms),
        whole(totals.memory_told_ms),
        whole(totals.memory_peak_bytes),
        whole(totals.power_peak_mw.into()),
        whole(totals.temperature_peak_c.into()),
        whole(totals.energy_mj),
        whole(totals.nvlink_kib),
        whole(totals.pcie_kib),
        whole(totals.slowed_ms),
    ]
}

/// From [`COLUMNS`] in their order, beginning at a column.
pub fn read(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<GpuUseTotals>> {
    let number = |at: usize| row.get::<_, Option<u64>>(first + at);
    let Some(sampled_ms) = number(0)? else {
        return Ok(None);
    };
    let large = |at| number(at).map(Option::unwrap_or_default);
    let small = |at| large(at).map(|value| u32::try_from(value).unwrap_or(u32::MAX));
    Ok(Some(GpuUseTotals {
        sampled_ms,
        idle_ms: large(1)?,
        busy_percent_ms: large(2)?,
        busy_told_ms: large(3)?,
        memory_percent_ms: large(4)?,
        memory_told_ms: large(5)?,
        memory_peak_bytes: large(6)?,
        power_peak_mw: small(7)?,
        temperature_peak_c: small(8)?,
        energy_mj: large(9)?,
        nvlink_kib: large(10)?,
        pcie_kib: large(11)?,
        slowed_ms: large(12)?,
        idle_now_ms: 0,
    }))
}
