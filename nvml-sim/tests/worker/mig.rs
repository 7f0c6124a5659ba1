//! MIG cuts of simulated GPUs.

use crate::simulated::SimulatedHost;
use gsys::nvml::{CapMinors, Change, ComputeMode, GpuEventKind, NvmlError, Refusal};

use crate::*;

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
