//! Slurm's lists of trackable resources: `cpu=64,mem=500G,gres/gpu:h100=8`. Owns reading them, as limits and as weights.

use gmodel::gpu_amounts::{ALL_GPUS, GpuAmounts};
use gmodel::gpu_type::gpu_type_of;
use std::collections::BTreeMap;

/// What a list says; what it does not name is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TresList {
    pub cpus: Option<u32>,
    pub nodes: Option<u32>,
    pub mem_bytes: Option<u64>,
    /// Thousandths by type; none where no GPU is named.
    pub gpus: Option<GpuAmounts>,
    /// Other things, as `billing=3`.
    pub rest: Vec<String>,
}

/// A list of amounts. `-1` takes a bound away, as sacctmgr has it. None where it is no list.
pub fn amounts(text: &str) -> Option<TresList> {
    let mut list = TresList::default();
    for item in text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
    {
        let (name, value) = item.split_once('=')?;
        if value == "-1" {
            continue;
        }
        let name = name.to_ascii_lowercase();
        match (name.as_str(), gpu_kind(&name)) {
            ("cpu", _) => list.cpus = Some(value.parse().ok()?),
            ("node", _) => list.nodes = Some(value.parse().ok()?),
            ("mem", _) => list.mem_bytes = Some(mem_bytes(value)?),
            (_, Some(kind)) => {
                let count: u32 = value.parse().ok()?;
                let all = list.gpus.get_or_insert_default();
                *all.0.entry(kind).or_default() += u64::from(count) * 1000;
            }
            _ => list.rest.push(item.to_owned()),
        }
    }
    Some(list)
}

/// `gres/gpu` is all types together, `gres/gpu:h100` one.
fn gpu_kind(name: &str) -> Option<String> {
    let gres = name.strip_prefix("gres/gpu")?;
    match gres.strip_prefix(':') {
        None if gres.is_empty() => Some(ALL_GPUS.to_owned()),
        Some(kind) if !kind.is_empty() => Some(gpu_type_of(kind)),
        _ => None,
    }
}

/// sacct writes fractions, `1.50G`, and a bare number is MiB.
fn mem_bytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(
        text.find(|sign: char| sign.is_ascii_alphabetic())
            .unwrap_or(text.len()),
    );
    let shift = match unit.to_ascii_uppercase().as_str() {
        "K" => 10,
        "" | "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        _ => return None,
    };
    let milli = milli(number)?;
    u64::try_from((u128::from(milli) << shift) / 1000).ok()
}

/// Thousandths of a decimal number.
fn milli(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.len() <= 12 && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) || whole.is_empty() && part.is_empty() {
        return None;
    }
    let part: String = format!("{part}000").chars().take(3).collect();
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    Some(whole * 1000 + part.parse::<u64>().ok()?)
}

/// Weights in thousandths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TresWeights {
    pub cpu_milli: u64,
    /// Of a GiB.
    pub mem_gib_milli: u64,
    pub gpu_milli: Option<u64>,
    pub by_type_milli: BTreeMap<String, u64>,
}

/// `CPU=1.0,Mem=0.25G,GRES/gpu:a100=5`. A weight of memory with a unit is for so much of it, without one for a MiB.
pub fn weights(text: &str) -> Option<TresWeights> {
    let mut all = TresWeights::default();
    for item in text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
    {
        let (name, value) = item.split_once('=')?;
        let name = name.to_ascii_lowercase();
        let number = value.trim_end_matches(|sign: char| sign.is_ascii_alphabetic());
        let weight = milli(number)?;
        match (name.as_str(), gpu_kind(&name)) {
            ("cpu", _) => all.cpu_milli = weight,
            ("mem", _) => {
                all.mem_gib_milli = match value[number.len()..].to_ascii_uppercase().as_str() {
                    "" | "M" => weight.saturating_mul(1 << 10),
                    "G" => weight,
                    "T" => weight / 1024,
                    "K" => weight.saturating_mul(1 << 20),
                    _ => return None,
                }
            }
            (_, Some(kind)) if kind == ALL_GPUS => all.gpu_milli = Some(weight),
            (_, Some(kind)) => {
                all.by_type_milli.insert(kind, weight);
            }
            _ => {}
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_cpus_nodes_memory_and_gpus_by_type() {
        let list = amounts(
            "billing=12,cpu=64,gres/gpu:nvidia_h100_80gb_hbm3=8,gres/gpu=8,mem=1.50G,node=2",
        )
        .unwrap();
        let gpus = GpuAmounts(BTreeMap::from([
            ("gpu".to_owned(), 8000),
            ("h100".to_owned(), 8000),
        ]));
        assert_eq!(
            (list.cpus, list.nodes, list.gpus),
            (Some(64), Some(2), Some(gpus))
        );
        assert_eq!(
            (list.mem_bytes, list.rest),
            (Some(3 << 29), vec!["billing=12".to_owned()])
        );
        assert_eq!(amounts("cpu=-1,gres/gpu=-1").unwrap(), TresList::default());
        for wrong in ["cpu", "cpu=many", "mem=3X", "gres/gpu=half"] {
            assert_eq!(amounts(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn weights_of_memory_have_units() {
        let all = weights("CPU=1.0,Mem=0.25G,GRES/gpu=10,GRES/gpu:a100=5.5").unwrap();
        assert_eq!(
            (all.cpu_milli, all.mem_gib_milli, all.gpu_milli),
            (1000, 250, Some(10_000))
        );
        assert_eq!(all.by_type_milli["a100"], 5500);
        assert_eq!(weights("Mem=0.5").unwrap().mem_gib_milli, 512_000);
        assert_eq!(weights("CPU=lots"), None);
    }
}
