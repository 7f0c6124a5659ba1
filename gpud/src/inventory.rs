//! The inventory of this machine for the controller: processors and memory as the kernel tells or the site declares, GPUs as NVML
//! tells. Decides nothing.

use crate::config::Config;
use crate::gpu::mig;
use crate::gpu::table::Gpus;
use gcore::node::gpu_health::HealthReport;
use gmodel::Timestamp;
use gmodel::gpu_link::{GpuLink, GpuLinks};
use gmodel::node::{GpuInfo, Inventory};
use gsys::nvml::{GpuFacts, PcieDistance, islands};
use std::collections::BTreeSet;

/// The whole report. `unfit` are the standing reasons not to take work.
pub fn inventory(config: &Config, gpus: &Gpus, unfit: String, now: Timestamp) -> Inventory {
    Inventory {
        cpus: config
            .cpus
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32)),
        mem_bytes: config.mem_bytes.unwrap_or_else(memory_bytes),
        gpus: gpu_infos(gpus),
        nvlink_domain: nvlink_domain(&gpus.facts),
        mig: mig::boards(&gpus.facts).into(),
        features: features(config, gpus),
        // Said by `gpu_share`.
        no_mps: String::new(),
        // By the daemon.
        hung: Vec::new(),
        // By the watch.
        notes: Vec::new(),
        declared: config.cpus.is_some() || config.mem_bytes.is_some(),
        isolation: config.isolation.name().into(),
        unfit,
        os: operating_system(),
        driver: gpus.driver.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        boot_secs: boot_secs(now),
    }
}

/// Each GPU and its slices, with health.
fn gpu_infos(gpus: &Gpus) -> Vec<GpuInfo> {
    let islands: Vec<Vec<String>> = islands(&gpus.facts)
        .into_iter()
        .filter(|island| island.len() > 1)
        .collect();
    let info = |gpu: &GpuFacts| GpuInfo {
        uuid: gpu.uuid.clone(),
        gpu_type: gpu.gpu_type.clone(),
        index: gpu.index,
        minor: gpu.minor,
        memory_mib: gpu.nominal_memory_mib,
        numa: gpu.numa_node,
        nvlink_island: islands
            .iter()
            .position(|island| island.contains(&gpu.uuid))
            .map(|at| at as u32),
        links: links(gpu, &gpus.facts),
        divided: gpu.mig_enabled,
        fault: gpu.fault.clone().unwrap_or_default(),
        ..GpuInfo::default()
    };
    let info = |gpu: &GpuFacts| {
        let HealthReport {
            notes,
            wants,
            standing,
        } = gpus.health.get(&gpu.uuid).cloned().unwrap_or_default();
        GpuInfo {
            notes,
            wants: wants.to_owned(),
            standing,
            ..info(gpu)
        }
    };
    let with_slices = |gpu: &GpuFacts| {
        let whole = info(gpu);
        let mut slices = mig::slices(gpu, &whole);
        for slice in slices.iter_mut().filter(|slice| slice.fault.is_empty()) {
            slice.fault = gpus
                .slice_faults
                .get(&slice.uuid)
                .cloned()
                .unwrap_or_default();
        }
        std::iter::once(whole).chain(slices)
    };
    gpus.facts.iter().flat_map(with_slices).collect()
}

/// The NVLink domain of all GPUs of the node; none where the GPUs disagree.
fn nvlink_domain(gpus: &[GpuFacts]) -> String {
    let first = gpus
        .first()
        .map(|gpu| gpu.nvlink_domain.clone())
        .unwrap_or_default();
    if gpus.iter().all(|gpu| gpu.nvlink_domain == first) {
        first
    } else {
        String::new()
    }
}

/// The best link from a GPU to each other GPU: NVLink where there is one, else the distance over PCIe.
fn links(gpu: &GpuFacts, all: &[GpuFacts]) -> GpuLinks {
    let way = |other: &GpuFacts| {
        let nvlink = gpu
            .nvlinks
            .iter()
            .find(|peer| peer.uuid == other.uuid)
            .filter(|peer| peer.links > 0);
        let pcie = gpu
            .pcie_distances
            .iter()
            .find(|(uuid, _)| *uuid == other.uuid);
        nvlink.map(|peer| GpuLink::Nvlink(peer.links)).or_else(|| {
            pcie.map(|(_, distance)| match distance {
                PcieDistance::Board | PcieDistance::Switch => GpuLink::Switch,
                PcieDistance::Switches => GpuLink::Switches,
                PcieDistance::HostBridge => GpuLink::HostBridge,
                PcieDistance::Node => GpuLink::Node,
                PcieDistance::System => GpuLink::System,
            })
        })
    };
    all.iter()
        .filter(|other| other.uuid != gpu.uuid)
        .filter_map(|other| Some((other.minor, way(other)?)))
        .collect()
}

/// The site's, and what the GPUs are: `h100`, `h100-80g`, `cc9.0`, `nvlink`, `driver-580`, `mig`; for `--constraint`.
fn features(config: &Config, gpus: &Gpus) -> Vec<String> {
    let mut derived = BTreeSet::new();
    for gpu in &gpus.facts {
        let (major, minor) = gpu.compute_capability;
        derived.insert(gpu.gpu_type.clone());
        derived.insert(format!(
            "{}-{}g",
            gpu.gpu_type,
            gpu.nominal_memory_mib / 1024
        ));
        derived.extend((major > 0).then(|| format!("cc{major}.{minor}")));
        derived.extend((!gpu.nvlink_peers.is_empty()).then(|| "nvlink".to_owned()));
        derived.extend(gpu.mig.is_some().then(|| "mig".to_owned()));
    }
    let branch = gpus
        .driver
        .split('.')
        .next()
        .filter(|branch| !branch.is_empty());
    derived.extend(
        branch
            .filter(|_| !gpus.facts.is_empty())
            .map(|branch| format!("driver-{branch}")),
    );
    let own = config.features.clone();
    own.iter()
        .cloned()
        .chain(
            derived
                .into_iter()
                .filter(|one| !one.is_empty() && !own.contains(one)),
        )
        .collect()
}

fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        << 10
}

/// `Debian GNU/Linux 13 (trixie), Linux 6.18.5`.
fn operating_system() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{}, Linux {}",
        name.unwrap_or("unknown").trim_matches('"'),
        kernel.trim()
    )
}

/// Only for display; steps of a second, so that clock noise is no news.
fn boot_secs(now: Timestamp) -> i64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let btime = text
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
    btime.unwrap_or_else(|| now.secs() - (gsys::clock::boottime_millis() / 1000) as i64)
}
