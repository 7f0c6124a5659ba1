//! The boards we can simulate, as data with the numbers their real drivers report, and hosts made of them. Deterministic: the
//! same seed gives the same UUIDs and serials. Source: `nvidia-smi -q` of such boards and NVIDIA's data sheets.

use crate::state::{ComputeMode, Driver, DriverState, Ecc, Faults, Gpu, Readings, RowRemap, State};

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
    /// 0: no NVLink. Boards with links are joined through switches.
    pub nvlink_count: u32,
    pub mig_capable: bool,
    pub power_limit_w: u32,
    pub idle_power_w: u32,
    pub max_sm_clock_mhz: u32,
    pub max_memory_clock_mhz: u32,
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
        nvlink_count: 0,
        mig_capable: false,
        power_limit_w: 72,
        idle_power_w: 16,
        max_sm_clock_mhz: 2040,
        max_memory_clock_mhz: 6251,
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
        nvlink_count: 12,
        mig_capable: true,
        power_limit_w: 400,
        idle_power_w: 52,
        max_sm_clock_mhz: 1410,
        max_memory_clock_mhz: 1215,
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
        nvlink_count: 12,
        mig_capable: true,
        power_limit_w: 400,
        idle_power_w: 61,
        max_sm_clock_mhz: 1410,
        max_memory_clock_mhz: 1593,
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
        nvlink_count: 18,
        mig_capable: true,
        power_limit_w: 700,
        idle_power_w: 70,
        max_sm_clock_mhz: 1980,
        max_memory_clock_mhz: 2619,
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
        nvlink_count: 18,
        mig_capable: true,
        power_limit_w: 700,
        idle_power_w: 76,
        max_sm_clock_mhz: 1980,
        max_memory_clock_mhz: 3201,
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
        nvlink_count: 18,
        mig_capable: true,
        power_limit_w: 1000,
        idle_power_w: 140,
        max_sm_clock_mhz: 1965,
        max_memory_clock_mhz: 3996,
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
    let gpus = kinds
        .iter()
        .enumerate()
        .map(|(slot, &(kind, island))| gpu(kind, island, slot, total, host_seed, minor_base))
        .collect();
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
    }
}

fn gpu(
    kind: &Profile,
    island: u32,
    slot: usize,
    total: usize,
    host_seed: &str,
    minor_base: u32,
) -> Gpu {
    // Real eight-way boards number their device nodes in another order than NVML its indices; ours must too, always.
    let minor = minor_base + ((slot + total.div_ceil(2)) % total) as u32;
    let bus = if total <= BUSES.len() {
        BUSES[slot]
    } else {
        2 * slot as u32 + 1
    };
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
        numa_node: Some(u32::from(slot >= total.div_ceil(2))),
        pcie_gen: kind.pcie_gen,
        pcie_width: 16,
        nvlink_count: kind.nvlink_count,
        nvlink_island: (kind.nvlink_count > 0).then_some(island),
        nvlinks_down: Vec::new(),
        nvlink_errors: 0,
        mig_capable: kind.mig_capable,
        mig_enabled: false,
        compute_mode: ComputeMode::Default,
        power_limit_mw: kind.power_limit_w * 1000,
        max_sm_clock_mhz: kind.max_sm_clock_mhz,
        max_memory_clock_mhz: kind.max_memory_clock_mhz,
        readings: idle_readings(kind, slot),
        ecc: Ecc::default(),
        row_remap: RowRemap::default(),
        processes: Vec::new(),
        faults: Faults::default(),
    }
}

fn idle_readings(kind: &Profile, slot: usize) -> Readings {
    Readings {
        temperature_c: 30 + (slot as u32 % 4),
        power_mw: kind.idle_power_w * 1000,
        energy_mj: 0,
        energy_as_of_unix_ms: 0,
        gpu_percent: 0,
        memory_percent: 0,
        memory_used_bytes: 0,
        sm_clock_mhz: 345,
        memory_clock_mhz: kind.max_memory_clock_mhz,
        throttle_reasons: u64::from(nvml_wrapper_sys::bindings::nvmlClocksThrottleReasonGpuIdle),
        pcie_replays: 0,
    }
}

fn uuid(host_seed: &str, slot: usize) -> String {
    let high = mix(host_seed, slot as u64, 1);
    let low = mix(host_seed, slot as u64, 2);
    format!(
        "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xFFFF,
        high & 0xFFFF,
        low >> 48,
        low & 0xFFFF_FFFF_FFFF
    )
}

/// 64 well-spread bits for a host, a slot and a purpose: FNV-1a over the name, then the splitmix64 finisher.
fn mix(host_seed: &str, slot: u64, purpose: u64) -> u64 {
    let fnv = host_seed
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
    let mut bits = fnv.wrapping_add(0x9E37_79B9_7F4A_7C15u64.wrapping_mul(1 + slot * 4 + purpose));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
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
            "no GPU profile \"h300\"; there are l4, a100-40, a100-80, h100, h200, b200"
        );
        assert!(
            host(&[("h100", 60), ("l4", 5)], "n", 0)
                .unwrap_err()
                .contains("65 GPUs")
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
