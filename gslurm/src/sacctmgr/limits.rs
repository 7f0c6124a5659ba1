//! Limits as sacctmgr writes them: counts and TRES.

use gwire::api::Gpus;
use std::collections::BTreeMap;

/// The QOS that is always there.
pub(super) const NORMAL: &str = "normal";

/// `cpu=64,node=4,gres/gpu=8,gres/gpu:h100=4`.
pub(super) fn tres<'g>(
    cpus: Option<u32>,
    nodes: Option<u32>,
    gpus: impl Iterator<Item = &'g Gpus>,
) -> String {
    let counted = [("cpu", cpus), ("node", nodes)]
        .into_iter()
        .filter_map(|(name, count)| Some(format!("{name}={}", count?)));
    let gpus: BTreeMap<&str, f64> = gpus
        .flatten()
        .map(|(kind, count)| (kind.as_str(), *count))
        .collect();
    let all = gpus.get("gpu").map(|count| format!("gres/gpu={count}"));
    let kinds = gpus
        .iter()
        .filter(|(kind, _)| **kind != "gpu")
        .map(|(kind, count)| format!("gres/gpu:{kind}={count}"));
    counted
        .chain(all)
        .chain(kinds)
        .collect::<Vec<_>>()
        .join(",")
}

pub(super) fn count(count: Option<u32>) -> String {
    count.map(|count| count.to_string()).unwrap_or_default()
}
