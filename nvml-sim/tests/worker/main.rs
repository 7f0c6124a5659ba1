//! gpupool's own way to NVML, `gsys::nvml`, on the simulated library: discovery, health and events with GPUs in every trouble.

mod event;
mod hang;
mod health;
mod mig;
#[path = "../simulated/mod.rs"]
mod simulated;
mod usage;

use std::path::{Path, PathBuf};
use std::time::Duration;

use gmodel::gpu_health::{EventSource, ReadFailureKind};
use gsys::nvml::{GpuEvent, GpuEventKind, Inventory, NvmlWorker, device_node};
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
