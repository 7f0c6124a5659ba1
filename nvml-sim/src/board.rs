//! The boards that can be simulated, as data with the numbers that real drivers report, and hosts with such boards. Deterministic: the
//! same seed gives the same UUIDs and serials. Source: `nvidia-smi -q` and `nvidia-smi topo -m` of such boards and NVIDIA's
//! data sheets; the wiring of eight V100 is that of the DGX-1.

use crate::host_seed::{mix, uuid};
use crate::state::{
    ComputeMode, Driver, DriverState, Ecc, Fabric, FabricState, Faults, Gpu, Readings,
    RetiredPages, RowRemap, State, Thresholds,
};

/// What all GPUs of one kind have in common.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The word on the command line: `h100`.
    pub key: &'static str,
    /// As NVML names it.
    pub name: &'static str,
    pub architecture: u32,
    pub compute_capability: [i32; 2],
    /// As NVML reports it, which is a little under the size on the label.
    pub memory_total_mib: u64,
    pub memory_reserved_mib: u64,
    pub pci_device_id: u32,
    pub pcie_gen: u32,
    /// What the link falls back to while nothing runs; 0: it keeps its own.
    pub pcie_gen_idle: u32,
    /// 0: no NVLink.
    pub nvlink_count: u32,
    /// What one link carries in one direction.
    pub nvlink_mbytes_per_s: u32,
    pub multiprocessors: u32,
    pub mig_capable: bool,
    pub power_limit_w: u32,
    pub idle_power_w: u32,
    pub max_sm_clock_mhz: u32,
    pub max_memory_clock_mhz: u32,
    /// Shutdown, slowdown, highest of the memory, highest for full speed.
    pub thresholds_c: [u32; 4],
}

/// Every profile, smallest board first. `a100` alone means `a100-80`.
pub const PROFILES: &[Profile] = &[
    Profile {
        key: "l4",
        name: "NVIDIA L4",
        architecture: 8,
        compute_capability: [8, 9],
        memory_total_mib: 23_034,
        memory_reserved_mib: 500,
        pci_device_id: 0x27B8_10DE,
        pcie_gen: 4,
        pcie_gen_idle: 1,
        nvlink_count: 0,
        nvlink_mbytes_per_s: 0,
        multiprocessors: 58,
        mig_capable: false,
        power_limit_w: 72,
        idle_power_w: 16,
        max_sm_clock_mhz: 2040,
        max_memory_clock_mhz: 6251,
        thresholds_c: [95, 92, 110, 87],
    },
    Profile {
        key: "v100",
        name: "Tesla V100-SXM2-32GB",
        architecture: 5,
        compute_capability: [7, 0],
        memory_total_mib: 32_768,
        memory_reserved_mib: 277,
        pci_device_id: 0x1DB5_10DE,
        pcie_gen: 3,
        pcie_gen_idle: 0,
        nvlink_count: 6,
        nvlink_mbytes_per_s: 25000,
        multiprocessors: 80,
        mig_capable: false,
        power_limit_w: 300,
        idle_power_w: 42,
        max_sm_clock_mhz: 1530,
        max_memory_clock_mhz: 877,
        thresholds_c: [90, 87, 85, 83],
    },
    Profile {
        key: "a100-40",
        name: "NVIDIA A100-SXM4-40GB",
        architecture: 7,
        compute_capability: [8, 0],
        memory_total_mib: 40_960,
        memory_reserved_mib: 571,
        pci_device_id: 0x20B0_10DE,
        pcie_gen: 4,
        pcie_gen_idle: 0,
        nvlink_count: 12,
        nvlink_mbytes_per_s: 25000,
        multiprocessors: 108,
        mig_capable: true,
        power_limit_w: 400,
        idle_power_w: 52,
        max_sm_clock_mhz: 1410,
        max_memory_clock_mhz: 1215,
        thresholds_c: [92, 89, 95, 85],
    },
    Profile {
        key: "a100-80",
        name: "NVIDIA A100-SXM4-80GB",
        architecture: 7,
        compute_capability: [8, 0],
        memory_total_mib: 81_920,
        memory_reserved_mib: 869,
        pci_device_id: 0x20B2_10DE,
        pcie_gen: 4,
        pcie_gen_idle: 0,
        nvlink_count: 12,
        nvlink_mbytes_per_s: 25000,
        multiprocessors: 108,
        mig_capable: true,
        power_limit_w: 400,
        idle_power_w: 61,
        max_sm_clock_mhz: 1410,
        max_memory_clock_mhz: 1593,
        thresholds_c: [92, 89, 95, 85],
    },
    Profile {
        key: "h100",
        name: "NVIDIA H100 80GB HBM3",
        architecture: 9,
        compute_capability: [9, 0],
        memory_total_mib: 81_559,
        memory_reserved_mib: 551,
        pci_device_id: 0x2330_10DE,
        pcie_gen: 5,
        pcie_gen_idle: 0,
        nvlink_count: 18,
        nvlink_mbytes_per_s: 26562,
        multiprocessors: 132,
        mig_capable: true,
        power_limit_w: 700,
        idle_power_w: 70,
        max_sm_clock_mhz: 1980,
        max_memory_clock_mhz: 2619,
        thresholds_c: [92, 87, 95, 85],
    },
    Profile {
        key: "h200",
        name: "NVIDIA H200",
        architecture: 9,
        compute_capability: [9, 0],
        memory_total_mib: 143_771,
        memory_reserved_mib: 622,
        pci_device_id: 0x2335_10DE,
        pcie_gen: 5,
        pcie_gen_idle: 0,
        nvlink_count: 18,
        nvlink_mbytes_per_s: 26562,
        multiprocessors: 132,
        mig_capable: true,
        power_limit_w: 700,
        idle_power_w: 76,
        max_sm_clock_mhz: 1980,
        max_memory_clock_mhz: 3201,
        thresholds_c: [92, 87, 95, 85],
    },
    Profile {
        key: "b200",
        name: "NVIDIA B200",
        architecture: 10,
        compute_capability: [10, 0],
        memory_total_mib: 183_359,
        memory_reserved_mib: 740,
        pci_device_id: 0x2901_10DE,
        pcie_gen: 5,
        pcie_gen_idle: 0,
        nvlink_count: 18,
        nvlink_mbytes_per_s: 53125,
        multiprocessors: 148,
        mig_capable: true,
        power_limit_w: 1000,
        idle_power_w: 140,
        max_sm_clock_mhz: 1965,
        max_memory_clock_mhz: 3996,
        thresholds_c: [95, 92, 105, 88],
    },
];

/// Where an eight-GPU board sits on its host's PCI buses.
const BUSES: [u32; 8] = [0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF];

/// More than this many GPUs on a host are refused: bus numbers are two hex digits.
const MAX_GPUS: usize = 64;

/// The profile with this name, in any case; an error lists those there are.
pub fn profile(key: &str) -> Result<&'static Profile, String> {
    let wanted = if key.eq_ignore_ascii_case("a100") {
        "a100-80"
    } else {
        key
    };
    PROFILES
        .iter()
        .find(|profile| profile.key.eq_ignore_ascii_case(wanted))
        .ok_or_else(|| {
            let known: Vec<&str> = PROFILES.iter().map(|profile| profile.key).collect();
            format!("no GPU profile {key:?}; there are {}", known.join(", "))
        })
}

/// A host with `count` GPUs of one kind. `host_seed` (the node's name, say) makes UUIDs and serials; minors are the `count`
/// numbers from `minor_base`, never in the order of the indices where there are two or more.
pub fn board(
    profile_key: &str,
    count: usize,
    host_seed: &str,
    minor_base: u32,
) -> Result<State, String> {
    host(&[(profile_key, count)], host_seed, minor_base)
}

/// A host with several kinds of GPUs, in this order of slots.
pub fn host(parts: &[(&str, usize)], host_seed: &str, minor_base: u32) -> Result<State, String> {
    let mut kinds = Vec::new();
    for (island, &(key, count)) in parts.iter().enumerate() {
        let kind = profile(key)?;
        kinds.extend((0..count.min(MAX_GPUS + 1)).map(|_| (kind, island as u32)));
    }
    let total = kinds.len();
    if total > MAX_GPUS {
        return Err(format!(
            "{total} GPUs asked for on one host; at most {MAX_GPUS} fit"
        ));
    }
    if minor_base.checked_add(total as u32).is_none() {
        return Err(format!(
            "minors from {minor_base} do not leave room for {total} GPUs"
        ));
    }
    let mut gpus: Vec<Gpu> = kinds
        .iter()
        .enumerate()
        .map(|(slot, &(kind, island))| {
            simulated_gpu(kind, island, slot, total, host_seed, minor_base)
        })
        .collect();
    wire(&mut gpus);
    Ok(State {
        schema: 1,
        driver: driver(),
        hang: false,
        gpus,
        next_event: 0,
        events: Vec::new(),
    })
}

fn driver() -> Driver {
    Driver {
        version: "580.95.05".to_owned(),
        nvml_version: "13.580.95.05".to_owned(),
        cuda_version: 13_000,
        state: DriverState::Loaded,
        withheld_functions: Vec::new(),
    }
}

/// Processors of each simulated memory node.
const CPUS_PER_NODE: u32 = 32;

/// Links of eight V100 in a DGX-1 by slot, one letter for each link: the slot at the other end.
const CUBE_MESH: [[u32; 6]; 8] = [
    [1, 2, 3, 3, 4, 4],
    [0, 2, 2, 3, 5, 5],
    [0, 1, 1, 3, 3, 6],
    [0, 0, 1, 2, 2, 7],
    [0, 0, 5, 6, 7, 7],
    [1, 1, 4, 6, 6, 7],
    [2, 4, 5, 5, 7, 7],
    [3, 4, 4, 5, 6, 6],
];

/// Joins islands without switches by direct links: V100, and boards of up to four A100. The others keep their switches.
fn wire(gpus: &mut [Gpu]) {
    let islands: Vec<Option<u32>> = gpus.iter().map(|gpu| gpu.nvlink_island).collect();
    for slot in 0..gpus.len() {
        let members: Vec<u32> = (0u32..)
            .zip(&islands)
            .filter(|(_, island)| island.is_some() && **island == islands[slot])
            .map(|(member, _)| member)
            .collect();
        let gpu = &mut gpus[slot];
        let direct =
            gpu.architecture < 7 || (gpu.architecture == 7 && (2..=4).contains(&members.len()));
        if !direct || members.is_empty() {
            continue;
        }
        let place = members.iter().position(|&member| member as usize == slot);
        gpu.nvlink_peer_slots = match place {
            Some(place) if members.len() == 8 => CUBE_MESH[place]
                .iter()
                .map(|&peer| members[peer as usize])
                .collect(),
            _ => {
                let peers: Vec<u32> = members
                    .into_iter()
                    .filter(|&member| member as usize != slot)
                    .collect();
                let links_each = gpu.nvlink_count as usize / peers.len().max(1);
                peers
                    .iter()
                    .flat_map(|&peer| std::iter::repeat_n(peer, links_each))
                    .collect()
            }
        };
        // Links that lead nowhere are not there.
        gpu.nvlink_count = gpu.nvlink_peer_slots.len() as u32;
        gpu.nvlink_island = (gpu.nvlink_count > 0)
            .then_some(gpu.nvlink_island)
            .flatten();
    }
}

fn simulated_gpu(
    kind: &Profile,
    island: u32,
    slot: usize,
    total: usize,
    host_seed: &str,
    minor_base: u32,
) -> Gpu {
    // Real eight-way boards number device nodes in another order than NVML its indices; simulated boards do so always.
    let minor = minor_base + ((slot + total.div_ceil(2)) % total) as u32;
    let bus = if total <= BUSES.len() {
        BUSES[slot]
    } else {
        2 * slot as u32 + 1
    };
    let node = u32::from(slot >= total.div_ceil(2));
    let serial = 1_650_000_000_000 + mix(host_seed, slot as u64, 3) % 10_000_000_000;
    Gpu {
        uuid: uuid(host_seed, slot),
        minor,
        profile: kind.key.to_owned(),
        name: kind.name.to_owned(),
        serial: serial.to_string(),
        architecture: kind.architecture,
        compute_capability: kind.compute_capability,
        memory_total_bytes: kind.memory_total_mib << 20,
        memory_reserved_bytes: kind.memory_reserved_mib << 20,
        pci_bus_id: format!("00000000:{bus:02X}:00.0"),
        pci_device_id: kind.pci_device_id,
        numa_node: Some(node),
        pcie_gen: kind.pcie_gen,
        pcie_width: 16,
        nvlink_count: kind.nvlink_count,
        nvlink_island: (kind.nvlink_count > 0).then_some(island),
        nvlinks_down: Vec::new(),
        nvlink_peer_slots: Vec::new(),
        nvlink_errors: 0,
        nvlink_mbytes_per_s: kind.nvlink_mbytes_per_s,
        fabric: fabric(kind),
        pcie_switch: (kind.architecture < 9 && kind.nvlink_count > 0).then_some(slot as u32 / 2),
        near_cpus: Some([node * CPUS_PER_NODE, (node + 1) * CPUS_PER_NODE - 1]),
        pcie_gen_idle: kind.pcie_gen_idle,
        multiprocessors: kind.multiprocessors,
        mig_capable: kind.mig_capable,
        mig_enabled: false,
        mig_pending: None,
        mig_instances: Vec::new(),
        compute_mode: ComputeMode::Default,
        power_limit_mw: kind.power_limit_w * 1000,
        default_power_limit_mw: kind.power_limit_w * 1000,
        max_sm_clock_mhz: kind.max_sm_clock_mhz,
        max_memory_clock_mhz: kind.max_memory_clock_mhz,
        thresholds: Thresholds {
            shutdown_c: kind.thresholds_c[0],
            slowdown_c: kind.thresholds_c[1],
            memory_max_c: kind.thresholds_c[2],
            gpu_max_c: kind.thresholds_c[3],
        },
        accounting: false,
        readings: idle_readings(kind, slot),
        ecc: Ecc::default(),
        row_remap: RowRemap::default(),
        retired_pages: RetiredPages::default(),
        recovery_action: 0,
        processes: Vec::new(),
        faults: Faults::default(),
    }
}

/// Boards from Hopper on register with the fabric manager, and say how that went.
fn fabric(kind: &Profile) -> Fabric {
    if kind.architecture < 9 || kind.nvlink_count == 0 {
        return Fabric::default();
    }
    Fabric {
        state: FabricState::Completed,
        health_mask: HEALTHY_FABRIC_MASK,
        health_summary: nvml_wrapper_sys::bindings::NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY as u8,
        ..Fabric::default()
    }
}

/// Nothing degraded, no recovery under way, no route unhealthy, no timeout, rightly configured.
pub const HEALTHY_FABRIC_MASK: u32 = 2 | (2 << 2) | (2 << 4) | (2 << 6) | (1 << 8);

fn idle_readings(kind: &Profile, slot: usize) -> Readings {
    Readings {
        temperature_c: 30 + (slot as u32 % 4),
        memory_temperature_c: 34 + (slot as u32 % 4),
        power_mw: kind.idle_power_w * 1000,
        gpu_percent: 0,
        memory_percent: 0,
        memory_used_bytes: 0,
        sm_clock_mhz: 345,
        memory_clock_mhz: kind.max_memory_clock_mhz,
        throttle_reasons: u64::from(nvml_wrapper_sys::bindings::nvmlClocksThrottleReasonGpuIdle),
        pcie_replays: 0,
        traffic: Default::default(),
        counted: Default::default(),
        counted_to_unix_ms: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn same_seed_gives_same_host_and_other_seed_other_uuids() {
        let one = board("h100", 8, "node1", 0).unwrap();
        assert_eq!(one, board("h100", 8, "node1", 0).unwrap());
        let mut uuids: BTreeSet<String> = one.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        uuids.extend(
            board("h100", 8, "node2", 8)
                .unwrap()
                .gpus
                .into_iter()
                .map(|gpu| gpu.uuid),
        );
        assert_eq!(uuids.len(), 16);
    }

    #[test]
    fn minors_are_the_numbers_from_the_base_in_another_order() {
        for count in 2..=16 {
            let state = board("l4", count, "n", 100).unwrap();
            let minors: BTreeSet<u32> = state.gpus.iter().map(|gpu| gpu.minor).collect();
            assert_eq!(minors, (100..100 + count as u32).collect());
            assert!(
                state
                    .gpus
                    .iter()
                    .enumerate()
                    .all(|(slot, gpu)| gpu.minor != 100 + slot as u32)
            );
        }
    }

    #[test]
    fn unknown_profile_names_those_there_are() {
        let error = board("h300", 8, "n", 0).unwrap_err();
        assert_eq!(
            error,
            "no GPU profile \"h300\"; there are l4, v100, a100-40, a100-80, h100, h200, b200"
        );
        assert!(
            host(&[("h100", 60), ("l4", 5)], "n", 0)
                .unwrap_err()
                .contains("65 GPUs")
        );
    }

    #[test]
    fn direct_links_lead_both_ways_and_a_dgx_1_is_a_cube_mesh() {
        for (key, count) in [("v100", 8), ("v100", 2), ("a100-80", 4), ("v100", 5)] {
            let state = board(key, count, "n", 0).unwrap();
            let links = |from: usize, to: usize| {
                let mut peers = state.gpus[from].nvlink_peer_slots.clone();
                peers.retain(|&peer| peer as usize == to);
                peers.len()
            };
            for one in 0..count {
                assert_eq!(links(one, one), 0);
                (0..count).for_each(|other| assert_eq!(links(one, other), links(other, one)));
            }
        }
        let state = board("v100", 8, "n", 0).unwrap();
        assert_eq!(state.gpus[0].nvlink_peer_slots, [1, 2, 3, 3, 4, 4]);
        assert!(
            board("a100", 8, "n", 0).unwrap().gpus[0]
                .nvlink_peer_slots
                .is_empty(),
            "through switches"
        );
        assert_eq!(
            board("v100", 1, "n", 0).unwrap().gpus[0].nvlink_island,
            None
        );
    }

    #[test]
    fn mixed_host_keeps_its_kinds_apart() {
        let state = host(&[("a100", 2), ("l4", 1), ("h200", 2)], "n", 0).unwrap();
        let seen: Vec<_> = state
            .gpus
            .iter()
            .map(|gpu| (gpu.profile.as_str(), gpu.nvlink_island))
            .collect();
        assert_eq!(
            seen,
            [
                ("a100-80", Some(0)),
                ("a100-80", Some(0)),
                ("l4", None),
                ("h200", Some(2)),
                ("h200", Some(2))
            ]
        );
    }
}
