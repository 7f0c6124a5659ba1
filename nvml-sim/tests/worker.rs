//! gpupool's own way to NVML, `gsys::nvml`, on the simulated library: discovery, health and events with GPUs in every trouble.

mod simulated;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gsys::nvml::{
    GpuEvent, GpuEventKind, Inventory, NvmlError, NvmlWorker, WorkerState, device_node,
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
            count: 1
        }]
    );
    let health = worker.read_health(SOON).unwrap();
    assert_eq!(
        health
            .iter()
            .filter(|gpu| gpu.temperature_c.is_some())
            .count(),
        7
    );
    assert_eq!(health[3].uuid, Some(host.uuid(3)));
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
}

#[test]
fn health_reads_what_the_state_says() {
    let host = SimulatedHost::with(&[("h100", 2)]);
    host.inject(1, "ecc 3");
    host.inject(1, "remap-failed");
    host.inject(1, "nvlink-down 7");
    host.inject(1, "hot 90");
    host.edit(|state| {
        state.set_reading(1, "util=88").unwrap();
        state.set_reading(1, "mem=2048").unwrap();
        state.gpus[1].processes.push(nvidia_ml_sim::Process {
            pid: 77,
            memory_bytes: 1 << 30,
            ..Default::default()
        });
    });
    let health = start(&host).read_health(SOON).unwrap();
    let (well, sick) = (&health[0], &health[1]);
    assert_eq!(
        (
            sick.ecc_uncorrected,
            sick.row_remap_failed,
            sick.row_remap_pending
        ),
        (Some(3), Some(true), Some(false))
    );
    assert_eq!(
        (
            sick.nvlinks_down.as_slice(),
            sick.temperature_c,
            sick.throttle_reasons
        ),
        (&[7][..], Some(90), Some(0x40))
    );
    assert_eq!(
        (sick.gpu_percent, sick.memory_used_bytes, sick.sm_clock_mhz),
        (Some(88), Some(2 << 30), Some(1980))
    );
    assert_eq!(
        sick.processes
            .iter()
            .map(|process| (process.pid, process.memory_bytes))
            .collect::<Vec<_>>(),
        [(77, Some(1 << 30))]
    );
    assert_eq!(
        (
            well.ecc_uncorrected,
            well.row_remap_failed,
            well.nvlinks_down.len()
        ),
        (Some(0), Some(false), 0)
    );
    assert_eq!(
        (well.power_mw, well.throttle_reasons),
        (Some(70_000), Some(1))
    );
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
            count: 1
        }]
    );
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
