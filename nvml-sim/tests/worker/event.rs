//! Events of NVML and Xids of the kernel log.

use std::io::Write;
use std::time::Duration;

use crate::simulated::{SimulatedHost, eventually};
use gmodel::gpu_health::EventSource;
use gsys::nvml::{GpuEvent, GpuEventKind};

use crate::*;

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
