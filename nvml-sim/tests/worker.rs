//! gpupool's own way to NVML, `gsys::nvml`, on the simulated library: discovery, health and events with GPUs in every trouble.

mod simulated;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gmodel::gpu_health::{EventSource, FabricHealth, ReadFailureKind, RecoveryAdvice};
use gsys::nvml::{
    CapMinors, Change, ComputeMode, GpuEvent, GpuEventKind, Inventory, NvmlError, NvmlWorker,
    PcieDistance, ProcessKind, Refusal, WorkerState, device_node, islands,
};
use simulated::{SimulatedHost, eventually};

const SOON: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_secs(1);

fn start(host: &SimulatedHost) -> NvmlWorker {
    NvmlWorker::start(Some(host.library())).expect("a worker")
}

fn usable(inventory: &Inventory) -> Vec<u32> {
    inventory
        .gpus
        .iter()
        .filter(|gpu| gpu.fault.is_none())
        .map(|gpu| gpu.index)
        .collect()
}

/// A worker that has seen all GPUs and hears their events.
fn watching(host: &SimulatedHost) -> NvmlWorker {
    let worker = start(host);
    worker.discover(SOON).unwrap();
    let last = host.state().gpus.len() - 1;
    eventually("events are watched", || {
        worker.is_watching(&host.uuid(last))
    });
    worker
}

#[test]
fn discovery_tells_all_about_a_mixed_host() {
    let host = SimulatedHost::with(&[("h100", 2), ("a100-40", 1), ("l4", 1)]);
    let inventory = start(&host).discover(SOON).unwrap();
    assert_eq!(inventory.driver_version, "580.95.05");
    let seen: Vec<_> = inventory
        .gpus
        .iter()
        .map(|gpu| {
            (
                gpu.gpu_type.as_str(),
                gpu.nominal_memory_mib / 1024,
                gpu.minor,
                gpu.numa_node,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("h100", 80, 42, Some(0)),
            ("h100", 80, 43, Some(0)),
            ("a100", 40, 40, Some(1)),
            ("l4", 24, 41, Some(1))
        ]
    );
    let first = &inventory.gpus[0];
    assert_eq!(first.uuid, host.uuid(0));
    assert_eq!(first.pci_bus_id, "00000000:1B:00.0");
    assert_eq!(first.compute_capability, (9, 0));
    assert_eq!(first.nvlink_peers, [host.uuid(1)]);
    assert!(
        inventory.gpus[2].nvlink_peers.is_empty() && !first.mig_enabled && first.fault.is_none()
    );
}

#[test]
fn device_node_follows_the_minor_not_the_index() {
    let host = SimulatedHost::with(&[("h100", 8)]);
    let inventory = start(&host).discover(SOON).unwrap();
    assert_eq!(
        device_node(Path::new("/dev"), &inventory.gpus[0]),
        PathBuf::from("/dev/nvidia44")
    );
    assert_eq!(
        device_node(Path::new("/tmp/sandbox/dev"), &inventory.gpus[7]),
        PathBuf::from("/tmp/sandbox/dev/nvidia43")
    );
}

#[test]
fn lost_gpu_keeps_its_name_and_leaves_the_other_seven_working() {
    let host = SimulatedHost::with(&[("h100", 8)]);
    let worker = start(&host);
    let before = worker.discover(SOON).unwrap();
    host.inject(3, "lost");
    let after = worker.discover(SOON).unwrap();
    assert_eq!(usable(&after), [0, 1, 2, 4, 5, 6, 7]);
    assert_eq!(
        (&after.gpus[3].uuid, after.gpus[3].minor),
        (&before.gpus[3].uuid, before.gpus[3].minor)
    );
    assert_eq!(
        after.gpus[3].fault.as_deref(),
        Some("device fell off the bus or has otherwise become inacessible")
    );
    assert_eq!(
        worker.next_events(SOON),
        [GpuEvent {
            uuid: host.uuid(3),
            kind: GpuEventKind::Lost,
            count: 1,
            source: EventSource::Reading,
        }]
    );
    let health = worker.read_health(SOON).unwrap();
    assert_eq!(
        health
            .iter()
            .filter(|gpu| gpu.reading.temperature_c.is_some())
            .count(),
        7
    );
    assert_eq!(health[3].uuid, Some(host.uuid(3)));
    assert_eq!(
        health[3].reading.fault.as_ref().unwrap().kind,
        ReadFailureKind::Lost
    );
    host.inject(3, "clear");
    assert_eq!(usable(&worker.discover(SOON).unwrap()).len(), 8);
    assert!(
        worker.next_events(Duration::ZERO).is_empty(),
        "the loss was told once"
    );
}

#[test]
fn gpu_lost_before_anyone_saw_it_is_listed_as_unreadable() {
    let host = SimulatedHost::with(&[("h100", 8)]);
    host.inject(5, "lost");
    let inventory = start(&host).discover(SOON).unwrap();
    assert_eq!(usable(&inventory).len(), 7);
    assert_eq!(
        inventory
            .unreadable
            .iter()
            .map(|gpu| gpu.index)
            .collect::<Vec<_>>(),
        [5]
    );
}

#[test]
fn missing_gpu_is_simply_not_there() {
    let host = SimulatedHost::with(&[("h100", 8)]);
    let worker = start(&host);
    worker.discover(SOON).unwrap();
    host.inject(0, "missing");
    let inventory = worker.discover(SOON).unwrap();
    let uuids: Vec<_> = inventory.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    assert_eq!(
        uuids,
        (1..8).map(|slot| host.uuid(slot)).collect::<Vec<_>>()
    );
    assert_eq!(inventory.gpus[0].index, 0);
    let health = worker.read_health(SOON).unwrap();
    let missing: Vec<_> = health
        .iter()
        .filter(|gpu| gpu.reading.fault.is_some())
        .collect();
    assert_eq!((health.len(), missing.len()), (8, 1));
    assert_eq!(
        (
            &missing[0].uuid,
            missing[0].reading.fault.as_ref().unwrap().kind
        ),
        (&Some(host.uuid(0)), ReadFailureKind::Missing)
    );
    host.inject(0, "clear");
    let health = worker.read_health(SOON).unwrap();
    assert!(health.iter().all(|gpu| gpu.reading.fault.is_none()));
}

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
fn gpus_that_are_named_are_sampled_and_the_others_let_be() {
    let host = SimulatedHost::with(&[("h100", 4)]);
    let worker = start(&host);
    worker.discover(SOON).unwrap();
    let sampled = |slots: &[usize]| -> Vec<u32> {
        let uuids = slots.iter().map(|slot| host.uuid(*slot)).collect();
        let samples = worker.sample_use_of(uuids, SOON).unwrap();
        samples.iter().map(|sample| sample.index).collect()
    };
    assert_eq!(sampled(&[3, 1]), [1, 3]);
    // What happens on the others is nothing to wait for; a named one that is lost says so.
    host.inject(0, "lost");
    host.inject(2, "lost");
    assert_eq!(sampled(&[3]), [3]);
    let lost = worker.sample_use_of([host.uuid(2)].into(), SOON).unwrap();
    assert!(
        lost.iter()
            .any(|sample| sample.uuid == Some(host.uuid(2)) && sample.fault.is_some())
    );
    // Where it is unknown where one is, all are asked.
    let all = worker
        .sample_use_of(["GPU-of-elsewhere".to_owned()].into(), SOON)
        .unwrap();
    assert_eq!(all.len(), 4);
}

#[test]
fn use_tells_load_traffic_and_whose_processes_run() {
    let host = SimulatedHost::with(&[("h100", 2), ("a100", 1)]);
    host.edit(|state| {
        for slot in [0, 2] {
            state.gpus[slot].readings.counted_to_unix_ms = 1_700_000_000_000;
            for setting in [
                "util=90",
                "mem-util=30",
                "power=500",
                "mem=4096",
                "nvlink-tx=1000",
                "pcie-rx=10",
            ] {
                state.set_reading(slot, setting).unwrap();
            }
        }
    });
    host.inject(0, "process 77 1024");
    host.inject(0, "process 78 2048");
    host.edit(|state| state.gpus[0].processes[1].kind = nvidia_ml_sim::ProcessKind::Mps);
    let worker = start(&host);
    let first = worker.sample_use(SOON).unwrap();
    assert_eq!(
        (
            first[0].gpu_percent,
            first[0].memory_percent,
            first[0].memory_used_bytes
        ),
        (Some(90), Some(30), Some(4 << 30))
    );
    assert_eq!(
        (
            first[0].power_mw,
            first[0].temperature_c,
            first[0].sm_clock_mhz
        ),
        (Some(500_000), Some(30), Some(1980))
    );
    assert_eq!(
        first[0].sm_percent, None,
        "multiprocessors are seen between two looks"
    );
    let seen: Vec<_> = first[0]
        .processes
        .iter()
        .map(|process| (process.pid, process.kind, process.memory_bytes))
        .collect();
    assert_eq!(
        seen,
        [
            (77, ProcessKind::Compute, Some(1 << 30)),
            (78, ProcessKind::Mps, Some(2 << 30))
        ]
    );
    let mut second = Vec::new();
    eventually("joules and traffic add up", || {
        second = worker.sample_use(SOON).unwrap();
        second[0].energy_mj > first[0].energy_mj
            && second[0].nvlink_sent_kib > first[0].nvlink_sent_kib
            && second[0].pcie_received_bytes > first[0].pcie_received_bytes
    });
    assert_eq!(
        (
            second[0].sm_percent,
            second[1].sm_percent,
            second[2].sm_percent
        ),
        (Some(90), Some(0), None)
    );
    host.inject(1, "lost");
    let third = worker.sample_use(SOON).unwrap();
    assert!(third[1].fault.is_some() && third[0].fault.is_none());
}

#[test]
fn between_tenants_a_gpu_is_clean_when_nobody_and_nothing_is_left_on_it() {
    const SLACK: u64 = 64 << 20;
    let host = SimulatedHost::with(&[("h100", 2)]);
    host.inject(1, "mig 3g.40gb,3g.40gb");
    let worker = start(&host);
    worker.discover(SOON).unwrap();
    let left =
        |slot: usize, instance| worker.sample_use(SOON).unwrap()[slot].leftovers(instance, SLACK);
    assert_eq!(left(0, None), None);
    host.inject(0, "process 4242 9000");
    assert_eq!(left(0, None).unwrap(), "process 4242 is still on it");
    host.inject(0, "no-process");
    host.edit(|state| state.set_reading(0, "mem=900").unwrap());
    assert_eq!(
        left(0, None).unwrap(),
        "900 MiB of its memory are still in use and 64 MiB are expected at most"
    );
    host.inject(0, "lost");
    assert!(left(0, None).unwrap().starts_with("it does not answer"));
    host.inject(1, "process 99 100 1 0");
    assert_eq!((left(1, Some(1)).is_some(), left(1, Some(2))), (true, None));
}

#[test]
fn what_a_run_used_is_added_up_from_samples() {
    let host = SimulatedHost::with(&[("h100", 1)]);
    host.edit(|state| {
        state.gpus[0].readings.counted_to_unix_ms = 1_700_000_000_000;
        state.set_reading(0, "util=80").unwrap();
        state.set_reading(0, "power=500").unwrap();
    });
    let worker = start(&host);
    let at = gmodel::Timestamp::from_secs;
    let mut before = worker.sample_use(SOON).unwrap()[0].sample(at(0));
    let mut totals = gmodel::gpu_use::GpuUseTotals::default();
    eventually("joules are used", || {
        let after = worker.sample_use(SOON).unwrap()[0].sample(before.at.plus_secs(10));
        totals.add(&before, &after, 1000);
        before = after;
        totals.joules() > 10
    });
    assert_eq!(
        (
            totals.busy_mean_permille(),
            totals.idle_secs(),
            totals.power_peak_mw
        ),
        (Some(800), 0, 500_000)
    );
    host.edit(|state| state.set_reading(0, "util=0").unwrap());
    worker.sample_use(SOON).unwrap();
    let idle = worker.sample_use(SOON).unwrap()[0].sample(before.at.plus_secs(30));
    totals.add(&before, &idle, 1000);
    assert_eq!((totals.idle_secs(), totals.idle_now_ms), (30, 30_000));
}

#[test]
fn more_processes_than_there_is_room_for_are_all_listed() {
    let host = SimulatedHost::with(&[("l4", 1)]);
    host.edit(|state| {
        state.gpus[0].processes = (1..=150)
            .map(|pid| nvidia_ml_sim::Process {
                pid,
                ..Default::default()
            })
            .collect();
    });
    let sample = start(&host).sample_use(SOON).unwrap();
    assert_eq!(sample[0].processes.len(), 150);
}

#[test]
fn the_cut_of_a_gpu_is_discovered_with_what_opens_each_part() {
    let host = SimulatedHost::with(&[("h100", 2)]);
    host.inject(0, "mig 3g.40gb,1g.10gb");
    let worker = start(&host);
    let inventory = worker.discover(SOON).unwrap();
    let gpu = &inventory.gpus[0];
    let mig = gpu.mig.as_ref().unwrap();
    assert!(mig.enabled && gpu.mig_enabled && !inventory.gpus[1].mig_enabled);
    let names: Vec<&str> = mig
        .profiles
        .iter()
        .map(|profile| profile.name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "1g.10gb",
            "1g.10gb+me",
            "1g.20gb",
            "2g.20gb",
            "3g.40gb",
            "4g.40gb",
            "7g.80gb"
        ]
    );
    let half = mig.profile("3g.40gb").unwrap();
    assert_eq!(
        (
            half.id,
            half.compute_slices,
            half.memory_slices,
            half.starts.as_slice(),
            half.max_count
        ),
        (9, 3, 4, &[0, 4][..], 2)
    );
    let cut: Vec<_> = mig
        .instances
        .iter()
        .map(|part| {
            (
                part.id,
                part.profile.as_str(),
                part.start,
                part.memory_slices,
                part.compute_slices,
                part.memory_mib,
            )
        })
        .collect();
    assert_eq!(
        cut,
        [
            (7, "1g.10gb", 0, 1, 1, 9_984),
            (2, "3g.40gb", 4, 4, 3, 40_448)
        ]
    );
    let device = &mig.instances[1].devices[0];
    assert!(device.uuid.starts_with("MIG-") && device.compute_slices == 3);
    let minors = CapMinors::read(&host.dir.path().join(nvidia_ml_sim::MIG_MINORS_FILE));
    let base = 3 + (gpu.minor * 15 + 2) * 9;
    assert_eq!(
        minors.of_device(gpu.minor, 2, device.compute_instance_id),
        Some([base, base + 1])
    );
    // A cut that was interrupted shows: an instance without devices.
    host.edit(|state| state.gpus[0].mig_instances[0].compute.clear());
    let again = worker.discover(SOON).unwrap();
    assert_eq!(
        again.gpus[0]
            .mig
            .as_ref()
            .unwrap()
            .instances
            .iter()
            .map(|part| part.devices.len())
            .collect::<Vec<_>>(),
        [1, 0]
    );
    assert_eq!(inventory.gpus[1].mig.as_ref().unwrap().instances, []);
}

#[test]
fn a_gpu_is_cut_and_made_whole_step_by_step_and_what_is_in_use_stays() {
    let host = SimulatedHost::with(&[("h100", 1)]);
    let worker = watching(&host);
    let uuid = host.uuid(0);
    let change = |change| worker.change(&uuid, change, SOON);
    let make = |profile_id, start| Change::MakeInstance { profile_id, start };
    let refused = |outcome: Result<Option<u32>, NvmlError>| match outcome {
        Err(NvmlError::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        refused(change(make(9, None))),
        Refusal::NotSupported,
        "MIG is off"
    );
    assert_eq!(change(Change::MigMode(true)), Ok(None));
    assert_eq!(change(make(9, Some(0))), Ok(Some(1)));
    assert_eq!(refused(change(make(5, None))), Refusal::NoRoom);
    assert_eq!(
        change(Change::MakeDevice {
            gpu_instance_id: 1,
            compute_slices: 3
        }),
        Ok(Some(0))
    );
    host.inject(0, "process 99 100 1 0");
    let device = Change::DestroyDevice {
        gpu_instance_id: 1,
        compute_instance_id: 0,
    };
    assert_eq!(refused(change(device.clone())), Refusal::InUse);
    assert_eq!(
        refused(change(Change::DestroyInstance { gpu_instance_id: 1 })),
        Refusal::InUse
    );
    assert_eq!(refused(change(Change::MigMode(false))), Refusal::InUse);
    assert_eq!(
        host.state().gpus[0].mig_pending,
        None,
        "nothing waits for the next reset"
    );
    assert_eq!(
        refused(change(Change::DestroyInstance { gpu_instance_id: 5 })),
        Refusal::NotThere
    );
    host.inject(0, "no-process");
    assert_eq!(change(device), Ok(None));
    assert_eq!(
        change(Change::DestroyInstance { gpu_instance_id: 1 }),
        Ok(None)
    );
    assert_eq!(change(Change::MigMode(false)), Ok(None));
    assert_eq!(
        change(Change::ComputeMode(ComputeMode::ExclusiveProcess)),
        Ok(None)
    );
    assert_eq!(
        host.state().gpus[0].compute_mode,
        nvidia_ml_sim::ComputeMode::ExclusiveProcess
    );
    assert!(
        worker
            .next_events(SOON)
            .iter()
            .any(|event| event.kind == GpuEventKind::MigConfigChange)
    );
    assert_eq!(
        refused(worker.change("GPU-nowhere", Change::MigMode(true), SOON)),
        Refusal::NotThere
    );
}

#[test]
fn use_of_mig_instances_is_told_by_performance_monitoring() {
    let host = SimulatedHost::with(&[("h100", 1), ("a100", 1)]);
    for slot in [0, 1] {
        host.inject(slot, "mig 3g.40gb,3g.40gb");
        host.inject(slot, "process 71 500 2 0");
    }
    host.edit(|state| state.set_reading(0, "sm.71=64").unwrap());
    let worker = start(&host);
    worker.discover(SOON).unwrap();
    worker.sample_use(SOON).unwrap();
    let sample = worker.sample_use(SOON).unwrap();
    let parts: Vec<_> = sample[0]
        .instances
        .iter()
        .map(|part| {
            (
                part.gpu_instance_id,
                part.sm_percent,
                part.memory_used_bytes >> 20,
            )
        })
        .collect();
    assert_eq!(parts, [(1, Some(0), 0), (2, Some(64), 500)]);
    assert_eq!(
        (
            sample[0].gpu_percent,
            sample[0].processes[0].gpu_instance_id
        ),
        (None, Some(2))
    );
    assert_eq!(
        sample[1].instances[1].sm_percent, None,
        "Ampere has no such monitoring"
    );
    // An instance that is gone is left out without harm.
    host.inject(0, "no-process");
    host.inject(0, "mig 7g.80gb");
    assert_eq!(
        worker.sample_use(SOON).unwrap()[0]
            .instances
            .iter()
            .map(|part| part.sm_percent)
            .collect::<Vec<_>>(),
        [None, None]
    );
    worker.discover(SOON).unwrap();
    assert_eq!(worker.sample_use(SOON).unwrap()[0].instances.len(), 1);
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

#[test]
fn a_change_that_hangs_costs_its_deadline_and_not_the_daemon() {
    let host = SimulatedHost::with(&[("h100", 2)]);
    let worker = start(&host);
    worker.discover(SOON).unwrap();
    host.inject(0, "hang");
    let begun = Instant::now();
    let outcome = worker.change(&host.uuid(0), Change::MigMode(true), SHORT);
    assert!(
        matches!(outcome, Err(NvmlError::Timeout { index: Some(0), .. })),
        "{outcome:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(
        worker.change(&host.uuid(1), Change::MigMode(true), SOON),
        Ok(None),
        "the other GPU can be changed"
    );
    host.inject(0, "clear");
    eventually("it can be changed", || {
        worker.change(&host.uuid(0), Change::MigMode(true), SOON) == Ok(None)
    });
}

#[test]
fn xid_is_delivered_even_when_its_gpu_is_lost_with_it() {
    let host = SimulatedHost::with(&[("h100", 8)]);
    let worker = watching(&host);
    host.edit(|state| {
        nvidia_ml_sim::apply_fault(state, 3, "xid 79".parse().unwrap()).unwrap();
        nvidia_ml_sim::apply_fault(state, 3, "lost".parse().unwrap()).unwrap();
    });
    assert_eq!(
        worker.next_events(SOON),
        [GpuEvent {
            uuid: host.uuid(3),
            kind: GpuEventKind::Xid(79),
            count: 1,
            source: EventSource::EventSet,
        }]
    );
}

#[test]
fn xids_of_the_kernel_log_come_even_while_the_library_hangs() {
    let host = SimulatedHost::with(&[("h100", 8)]);
    let log = host.dir.path().join(nvidia_ml_sim::KERNEL_LOG_FILE);
    nvidia_ml_sim::log_xid(host.dir.path(), &host.state().gpus[3], 13, 1).unwrap();
    let worker = watching(&host);
    worker
        .watch_kernel_log(&log, |trouble| assert!(trouble.is_none(), "{trouble:?}"))
        .unwrap();
    host.edit(|state| state.hang = true);
    nvidia_ml_sim::log_xid(host.dir.path(), &host.state().gpus[3], 79, 2).unwrap();
    let mut count = 0;
    eventually(
        "both lines are told, and what was logged before is not",
        || {
            for event in worker.next_events(Duration::from_millis(50)) {
                assert_eq!(
                    (&event.uuid, event.kind, event.source),
                    (&host.uuid(3), GpuEventKind::Xid(79), EventSource::KernelLog)
                );
                count += event.count;
            }
            count == 2
        },
    );
    host.edit(|state| state.hang = false);
}

#[test]
fn a_kernel_log_that_cannot_be_opened_is_tried_again() {
    let host = SimulatedHost::with(&[("h100", 2)]);
    let log = host.dir.path().join("late.log");
    let worker = watching(&host);
    let (tell, told) = std::sync::mpsc::channel();
    worker
        .watch_kernel_log(&log, move |trouble| {
            let _ = tell.send(trouble.is_some());
        })
        .unwrap();
    assert!(
        told.recv_timeout(Duration::from_secs(5)).unwrap(),
        "there is none yet"
    );
    std::fs::write(&log, "").unwrap();
    assert!(
        !told.recv_timeout(Duration::from_secs(20)).unwrap(),
        "said once, and that it is read again"
    );
    nvidia_ml_sim::log_xid(host.dir.path(), &host.state().gpus[1], 79, 1).unwrap();
    let lines = std::fs::read(host.dir.path().join(nvidia_ml_sim::KERNEL_LOG_FILE)).unwrap();
    std::fs::OpenOptions::new()
        .append(true)
        .open(&log)
        .unwrap()
        .write_all(&lines)
        .unwrap();
    eventually("its Xid", || {
        let events = worker.next_events(Duration::from_millis(50));
        events
            .iter()
            .any(|event| event.uuid == host.uuid(1) && event.source == EventSource::KernelLog)
    });
}

#[test]
fn xid_storm_is_counted_not_piled_up() {
    let host = SimulatedHost::with(&[("h100", 2)]);
    let worker = watching(&host);
    host.inject(0, "xid 13 10000");
    host.inject(1, "ecc 2");
    let mut counts = (0, 0);
    eventually("all 10,002 events arrived", || {
        let events = worker.next_events(Duration::from_millis(50));
        assert!(events.len() <= 2, "{events:?}");
        for event in events {
            match event.kind {
                GpuEventKind::Xid(13) => counts.0 += event.count,
                GpuEventKind::EccUncorrected => counts.1 += event.count,
                other => panic!("{other:?} was not injected"),
            }
        }
        counts == (10_000, 2)
    });
    assert_eq!(worker.dropped_events(), 0);
}

#[test]
fn hanging_gpu_costs_one_deadline_and_then_only_itself() {
    let host = SimulatedHost::with(&[("h100", 8)]);
    let worker = start(&host);
    worker.discover(SOON).unwrap();
    host.inject(6, "hang");
    let begun = Instant::now();
    let error = worker.discover(SHORT).unwrap_err();
    assert!(
        matches!(error, NvmlError::Timeout { index: Some(6), .. }),
        "{error}"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    let inventory = worker.discover(SOON).unwrap();
    assert_eq!(usable(&inventory), [0, 1, 2, 3, 4, 5, 7]);
    assert_eq!(inventory.gpus[6].uuid, host.uuid(6));
    assert!(
        inventory.gpus[6]
            .fault
            .as_deref()
            .unwrap()
            .contains("have not returned")
    );
    assert!(
        inventory.gpus[0].nvlink_peers.contains(&host.uuid(7)),
        "the others still see each other"
    );
    assert_eq!(
        worker.state(),
        WorkerState::Degraded("calls about GPUs with index 6 do not return".to_owned())
    );
    host.inject(6, "clear");
    eventually("the GPU that let go is used again", || {
        usable(&worker.discover(SOON).unwrap()).len() == 8
    });
    assert_eq!(worker.state(), WorkerState::Working);
}

#[test]
fn hanging_library_is_told_at_once_after_the_first_deadline() {
    let host = SimulatedHost::with(&[("h100", 2)]);
    host.edit(|state| state.hang = true);
    let worker = start(&host);
    assert!(matches!(
        worker.discover(SHORT),
        Err(NvmlError::Timeout { index: None, .. })
    ));
    let begun = Instant::now();
    assert!(matches!(
        worker.discover(Duration::from_secs(60)),
        Err(NvmlError::Stuck { .. })
    ));
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(matches!(worker.state(), WorkerState::Degraded(_)));
    host.edit(|state| state.hang = false);
    eventually("the library answers again", || {
        worker
            .discover(SOON)
            .is_ok_and(|inventory| inventory.gpus.len() == 2)
    });
    assert_eq!(worker.state(), WorkerState::Working);
}

#[test]
fn driver_reloaded_under_us_is_opened_anew_and_watched_again() {
    let host = SimulatedHost::with(&[("h100", 2)]);
    let worker = watching(&host);
    host.edit(|state| state.apply_driver_fault("mismatch").unwrap());
    let error = worker.discover(SOON).unwrap_err();
    assert_eq!(
        error,
        NvmlError::Init("RM detects a driver/library version mismatch".to_owned())
    );
    assert!(!error.means_cpu_node());
    eventually("the watch has ended", || !worker.is_watching(&host.uuid(0)));
    host.edit(|state| state.apply_driver_fault("clear").unwrap());
    assert_eq!(usable(&worker.discover(SOON).unwrap()), [0, 1]);
    eventually("events are watched again", || {
        worker.is_watching(&host.uuid(0))
    });
    host.inject(0, "xid 48");
    assert_eq!(worker.next_events(SOON)[0].kind, GpuEventKind::Xid(48));
}

#[test]
fn library_missing_names_the_path_and_means_a_cpu_node() {
    let worker = NvmlWorker::start(Some(PathBuf::from("/nonexistent/libnvidia-ml.so.1"))).unwrap();
    let error = worker.discover(SOON).unwrap_err();
    assert!(error.means_cpu_node());
    assert!(
        error
            .to_string()
            .starts_with("no NVML here: /nonexistent/libnvidia-ml.so.1 cannot be loaded"),
        "{error}"
    );
}

#[test]
fn library_that_is_no_nvml_is_refused_with_a_clear_word() {
    let error = NvmlWorker::start(Some(PathBuf::from("libc.so.6")))
        .unwrap()
        .discover(SOON)
        .unwrap_err();
    assert!(
        matches!(&error, NvmlError::LibraryTooOld { reason, .. } if reason.contains("nvmlInit_v2")),
        "{error}"
    );
    assert!(!error.means_cpu_node());
}

#[test]
fn faults_at_random_for_a_while_end_with_exactly_the_healthy_gpus() {
    let host = SimulatedHost::with(&[("h100", 8)]);
    let worker = watching(&host);
    let faults = [
        "lost",
        "clear",
        "ecc 1",
        "hot 95",
        "xid 63",
        "nvlink-down 2",
        "remap-pending",
        "clear",
    ];
    let mut dice = 0x2545_F491_4F6C_DD1Du64;
    for _ in 0..120 {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        host.inject(
            (dice % 8) as usize,
            faults[(dice >> 8) as usize % faults.len()],
        );
        let expected: Vec<u32> = (0u32..8)
            .filter(|&slot| !host.state().gpus[slot as usize].faults.lost)
            .collect();
        assert_eq!(usable(&worker.discover(SOON).unwrap()), expected);
    }
}
