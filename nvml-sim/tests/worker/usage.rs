//! Samples of the use of simulated GPUs.

use crate::simulated::{SimulatedHost, eventually};
use gsys::nvml::ProcessKind;

use crate::*;

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
fn between_tenants_a_gpu_is_clean_without_processes_and_memory_in_use() {
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
