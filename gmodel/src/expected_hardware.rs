//! The hardware that the configuration expects of a node, and how a node differs from it. Discovery is the truth: a
//! difference is shown, and takes no node out of the pool.

use crate::gpu_amounts::{ALL_GPUS, GpuAmounts};
use crate::hostlist::Hostlist;
use crate::node::{GpuEntry, Inventory};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `[expect.NAME]`: what these nodes should have. What is not said is not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExpectedHardware {
    pub name: String,
    pub nodes: Hostlist,
    /// In thousandths, as everywhere; slices of a GPU count as the GPU.
    pub gpus: Option<GpuAmounts>,
    pub cpus: Option<u32>,
    /// At least so much: the kernel keeps some for itself.
    pub mem_bytes: Option<u64>,
    pub driver: Option<String>,
}

/// One thing that is not as expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HardwareDifference {
    /// `node`, `gpus`, `cpus`, `memory`, `driver`.
    pub what: &'static str,
    pub expected: String,
    pub found: String,
}

impl ExpectedHardware {
    /// Where a node that reported this differs, in the order of the fields.
    pub fn differences(&self, inventory: &Inventory, gpus: &[GpuEntry]) -> Vec<HardwareDifference> {
        let mut found = Vec::new();
        let mut note = |what, expected: String, is: String| {
            found.push(HardwareDifference {
                what,
                expected,
                found: is,
            })
        };
        if let Some(GpuAmounts(expected)) = &self.gpus {
            let counts = counts(gpus);
            for (gpu_type, milli) in expected {
                let count = match gpu_type.as_str() {
                    ALL_GPUS => counts.values().sum(),
                    named => counts.get(named).copied().unwrap_or(0),
                };
                if count * 1000 != *milli {
                    note(
                        "gpus",
                        format!("{gpu_type}:{}", milli / 1000),
                        format!("{gpu_type}:{count}"),
                    );
                }
            }
            // A type without an expectation is unexpected, unless all types are counted together.
            for (gpu_type, count) in counts.iter().filter(|(gpu_type, _)| {
                !expected.contains_key(**gpu_type) && !expected.contains_key(ALL_GPUS)
            }) {
                note(
                    "gpus",
                    format!("{gpu_type}:0"),
                    format!("{gpu_type}:{count}"),
                );
            }
        }
        if let Some(cpus) = self.cpus.filter(|cpus| *cpus != inventory.cpus) {
            note("cpus", cpus.to_string(), inventory.cpus.to_string());
        }
        if let Some(mem_bytes) = self
            .mem_bytes
            .filter(|mem_bytes| *mem_bytes > inventory.mem_bytes)
        {
            let size = |bytes: u64| format!("{}M", bytes >> 20);
            note("memory", size(mem_bytes), size(inventory.mem_bytes));
        }
        if let Some(driver) = self
            .driver
            .as_ref()
            .filter(|driver| **driver != inventory.driver)
        {
            note("driver", driver.clone(), inventory.driver.clone());
        }
        found
    }
}

/// GPUs that are there by type, sick ones too.
fn counts(gpus: &[GpuEntry]) -> BTreeMap<&str, u64> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for gpu in gpus
        .iter()
        .filter(|gpu| gpu.present && gpu.info.slice.is_none())
    {
        *counts.entry(&gpu.info.gpu_type).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_set::GpuSlot;
    use crate::node::{GpuInfo, MigSlice};

    fn gpus(words: &[(&str, bool)]) -> Vec<GpuEntry> {
        let entry = |(at, (gpu_type, present)): (usize, &(&str, bool))| GpuEntry {
            slot: GpuSlot(at as u16),
            info: GpuInfo {
                gpu_type: (*gpu_type).into(),
                ..GpuInfo::default()
            },
            present: *present,
            forgotten: false,
            refused: String::new(),
            checks: None,
        };
        words.iter().enumerate().map(entry).collect()
    }

    fn shown(expected: &ExpectedHardware, inventory: &Inventory, gpus: &[GpuEntry]) -> Vec<String> {
        expected
            .differences(inventory, gpus)
            .into_iter()
            .map(|one| format!("{} {} {}", one.what, one.expected, one.found))
            .collect()
    }

    #[test]
    fn a_node_is_compared_in_what_is_said_of_it_and_in_nothing_else() {
        let amounts = |amounts: &[(&str, u64)]| {
            Some(GpuAmounts(
                amounts
                    .iter()
                    .map(|(kind, milli)| ((*kind).to_owned(), *milli))
                    .collect(),
            ))
        };
        let inventory = Inventory {
            cpus: 64,
            mem_bytes: 500 << 30,
            driver: "580.95.05".into(),
            ..Inventory::default()
        };
        let mut here = gpus(&[
            ("h100", true),
            ("h100", true),
            ("h100", false),
            ("l4", true),
        ]);
        assert_eq!(
            shown(&ExpectedHardware::default(), &inventory, &here),
            [""; 0]
        );
        let expected = ExpectedHardware {
            gpus: amounts(&[("h100", 3000)]),
            cpus: Some(96),
            mem_bytes: Some(512 << 30),
            driver: Some("550".into()),
            ..ExpectedHardware::default()
        };
        assert_eq!(
            shown(&expected, &inventory, &here),
            [
                "gpus h100:3 h100:2",
                "gpus l4:0 l4:1",
                "cpus 96 64",
                "memory 524288M 512000M",
                "driver 550 580.95.05"
            ]
        );
        // All types together; a slice is no GPU of its own.
        here[1].info.slice = Some(MigSlice::default());
        let expected = ExpectedHardware {
            gpus: amounts(&[("gpu", 2000)]),
            mem_bytes: Some(500 << 30),
            ..ExpectedHardware::default()
        };
        assert_eq!(shown(&expected, &inventory, &here), [""; 0]);
    }
}
