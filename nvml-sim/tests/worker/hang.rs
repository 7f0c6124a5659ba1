//! GPUs, drivers and libraries that hang, go away or do not load.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::simulated::{SimulatedHost, eventually};
use gsys::nvml::{Change, GpuEventKind, NvmlError, NvmlWorker, WorkerState};

use crate::*;

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
