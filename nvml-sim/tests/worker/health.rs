//! The health and the links of simulated GPUs, through the real NVML path.

use crate::simulated::SimulatedHost;
use gmodel::gpu_health::{FabricHealth, RecoveryAdvice};
use gsys::nvml::{PcieDistance, islands};

use crate::*;

#[test]
fn health_reads_what_the_state_says() {
    let host = SimulatedHost::with(&[("h100", 2), ("v100", 2)]);
    for fault in [
        "ecc 3",
        "ecc-sram 2",
        "sram-threshold",
        "remap-failed",
        "nvlink-down 7",
        "nvlink-errors 40",
        "hot 90",
        "pcie 8 3",
        "fabric unhealthy",
        "recovery reset",
    ] {
        host.inject(1, fault);
    }
    host.inject(2, "retired 2");
    host.edit(|state| state.set_reading(1, "util=88").unwrap());
    let health = start(&host).read_health(SOON).unwrap();
    let sick = &health[1].reading;
    assert_eq!(health[1].uuid, Some(host.uuid(1)));
    assert_eq!(
        (
            sick.ecc_uncorrected,
            sick.ecc_uncorrected_ever,
            sick.sram_uncorrected_ever,
            sick.sram_worn
        ),
        (Some(5), Some(5), Some(2), Some(true))
    );
    assert_eq!(
        (sick.remap_failed, sick.remap_pending, sick.pages_retired),
        (Some(true), Some(false), None)
    );
    assert_eq!(
        (
            sick.nvlink_count,
            sick.nvlinks_down.as_slice(),
            sick.nvlink_errors
        ),
        (18, &[7][..], Some(41))
    );
    assert_eq!(
        (sick.temperature_c, sick.slowdown_c, sick.slow_reasons),
        (Some(90), Some(87), Some(0x40))
    );
    assert_eq!(
        (
            sick.pcie_width,
            sick.pcie_width_max,
            sick.pcie_gen,
            sick.pcie_gen_max
        ),
        (Some(8), Some(16), Some(3), Some(5))
    );
    assert_eq!(
        (sick.fabric, sick.recovery, sick.busy_percent),
        (
            Some(FabricHealth::Unhealthy),
            Some(RecoveryAdvice::Reset),
            Some(88)
        )
    );
    let well = &health[0].reading;
    assert_eq!(
        (
            well.ecc_uncorrected,
            well.remap_failed,
            well.nvlinks_down.len(),
            well.fabric
        ),
        (Some(0), Some(false), 0, Some(FabricHealth::Ready))
    );
    assert_eq!(
        (well.power_mw, well.slow_reasons, well.recovery),
        (Some(70_000), Some(1), Some(RecoveryAdvice::None))
    );
    let old = &health[2].reading;
    assert_eq!(
        (
            old.pages_retired,
            old.retirement_pending,
            old.remap_pending,
            old.fabric
        ),
        (Some(2), Some(true), None, None)
    );
}

#[test]
fn health_is_read_from_a_driver_that_knows_no_field_values() {
    let host = SimulatedHost::with(&[("h100", 1)]);
    for fault in ["ecc 3", "remap-pending", "nvlink-down 2"] {
        host.inject(0, fault);
    }
    host.edit(|state| {
        for function in [
            "nvmlDeviceGetFieldValues",
            "nvmlDeviceGetSramEccErrorStatus",
            "nvmlDeviceGetGpuFabricInfoV",
        ] {
            state
                .apply_driver_fault(&format!("withhold {function}"))
                .unwrap();
        }
    });
    let worker = start(&host);
    let reading = worker.read_health(SOON).unwrap().remove(0).reading;
    assert_eq!(
        (
            reading.ecc_uncorrected,
            reading.remap_pending,
            reading.sram_worn
        ),
        (Some(3), Some(true), None)
    );
    assert_eq!(
        (
            reading.nvlink_count,
            reading.nvlinks_down.as_slice(),
            reading.fabric
        ),
        (18, &[2][..], Some(FabricHealth::Ready))
    );
    let used = worker.sample_use(SOON).unwrap().remove(0);
    assert_eq!(
        (
            used.power_mw,
            used.energy_mj.is_some(),
            used.nvlink_sent_kib
        ),
        (Some(70_000), true, None)
    );
}

#[test]
fn topology_counts_links_and_follows_what_breaks() {
    let host = SimulatedHost::with(&[("v100", 8)]);
    let worker = start(&host);
    let gpus = worker.discover(SOON).unwrap().gpus;
    let links = |from: &gsys::nvml::GpuFacts, to: usize| {
        from.nvlinks
            .iter()
            .find(|peer| peer.uuid == host.uuid(to))
            .map(|peer| peer.links)
    };
    assert_eq!(
        [1, 2, 3, 4, 5].map(|peer| links(&gpus[0], peer)),
        [Some(1), Some(1), Some(2), Some(2), None]
    );
    assert_eq!(
        islands(&gpus).len(),
        1,
        "a cube mesh is one island, though not all reach all directly"
    );
    let distance = |from: &gsys::nvml::GpuFacts, to: usize| {
        from.pcie_distances
            .iter()
            .find(|(uuid, _)| *uuid == host.uuid(to))
            .unwrap()
            .1
    };
    assert_eq!(
        [1, 2, 7].map(|other| distance(&gpus[0], other)),
        [
            PcieDistance::Switches,
            PcieDistance::Node,
            PcieDistance::System
        ]
    );
    assert_eq!(
        (gpus[0].near_cpus.as_slice(), gpus[7].near_cpus.as_slice()),
        (&[(0, 31)][..], &[(32, 63)][..])
    );
    host.inject(0, "nvlink-down 0");
    let after = worker.discover(SOON).unwrap().gpus;
    assert_eq!([1, 3].map(|peer| links(&after[0], peer)), [None, Some(2)]);

    let host = SimulatedHost::with(&[("h100", 4)]);
    let worker = start(&host);
    let whole = worker.discover(SOON).unwrap().gpus;
    assert_eq!(
        whole[0]
            .nvlinks
            .iter()
            .map(|peer| peer.links)
            .collect::<Vec<_>>(),
        [18; 3]
    );
    host.inject(1, "nvlink-down 3");
    host.inject(3, "fabric not-started");
    let after = worker.discover(SOON).unwrap().gpus;
    let to_second = after[0]
        .nvlinks
        .iter()
        .find(|peer| peer.uuid == host.uuid(1))
        .unwrap();
    assert_eq!(
        (
            to_second.links,
            after[0].nvlinks.len(),
            after[3].nvlinks.len()
        ),
        (17, 2, 0)
    );
    assert_eq!(
        islands(&after).iter().map(Vec::len).collect::<Vec<_>>(),
        [3, 1]
    );
}
