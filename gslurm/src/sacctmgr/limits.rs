//! Limits as sacctmgr writes them: counts and TRES.

use gmodel::gpu_amounts::{ALL_GPUS, GpuAmounts, milli_text};

/// `cpu=64,node=4,gres/gpu=8,gres/gpu:h100=4`.
pub(super) fn tres(cpus: Option<u32>, nodes: Option<u32>, gpus: Option<&GpuAmounts>) -> String {
    let counted = [("cpu", cpus), ("node", nodes)]
        .into_iter()
        .filter_map(|(name, count)| Some(format!("{name}={}", count?)));
    let all = gpus
        .and_then(GpuAmounts::total)
        .map(|milli| format!("gres/gpu={}", milli_text(milli)));
    let kinds = gpus.into_iter().flat_map(|gpus| &gpus.0);
    let kinds = kinds
        .filter(|(kind, _)| *kind != ALL_GPUS)
        .map(|(kind, milli)| format!("gres/gpu:{kind}={}", milli_text(*milli)));
    counted
        .chain(all)
        .chain(kinds)
        .collect::<Vec<_>>()
        .join(",")
}

pub(super) fn count(count: Option<u32>) -> String {
    count.map(|count| count.to_string()).unwrap_or_default()
}
