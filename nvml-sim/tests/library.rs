//! The real dlopen path: nvml-wrapper on the built library, without gpupool's own code between.

mod simulated;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, P2pCapabilitiesIndex, P2pStatus, TemperatureSensor,
    TemperatureThreshold, TopologyLevel,
};
use nvml_wrapper::enums::device::DeviceArchitecture;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_NVLINK_LINK_COUNT, NVML_FI_DEV_REMAPPED_PENDING,
};
use nvml_wrapper::{Device, Nvml};

use simulated::SimulatedHost;

fn open(host: &SimulatedHost) -> Nvml {
    Nvml::builder()
        .lib_path(host.library().as_os_str())
        .init()
        .expect("the simulated NVML")
}

#[test]
fn every_profile_reports_its_board() {
    let kinds = [
        ("l4", 1),
        ("v100", 2),
        ("a100-40", 1),
        ("a100-80", 1),
        ("h100", 1),
        ("h200", 1),
        ("b200", 1),
    ];
    let host = SimulatedHost::with(&kinds);
    let nvml = open(&host);
    assert_eq!(nvml.device_count().unwrap(), 8);
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.95.05");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
    let seen: Vec<String> = (0..8)
        .map(|index| describe(&nvml.device_by_index(index).unwrap()))
        .collect();
    assert_eq!(
        seen,
        [
            "NVIDIA L4 23034 MiB 8.9 72 W, 0 links",
            "Tesla V100-SXM2-32GB 32768 MiB 7.0 300 W, 6 links",
            "Tesla V100-SXM2-32GB 32768 MiB 7.0 300 W, 6 links",
            "NVIDIA A100-SXM4-40GB 40960 MiB 8.0 400 W, 12 links",
            "NVIDIA A100-SXM4-80GB 81920 MiB 8.0 400 W, 12 links",
            "NVIDIA H100 80GB HBM3 81559 MiB 9.0 700 W, 18 links",
            "NVIDIA H200 143771 MiB 9.0 700 W, 18 links",
            "NVIDIA B200 183359 MiB 10.0 1000 W, 18 links",
        ]
    );
}

fn describe(device: &Device<'_>) -> String {
    let capability = device.cuda_compute_capability().unwrap();
    let links = (0..18)
        .take_while(|&link| device.link_wrapper_for(link).is_active().is_ok())
        .count();
    format!(
        "{} {} MiB {}.{} {} W, {links} links",
        device.name().unwrap(),
        device.memory_info().unwrap().total >> 20,
        capability.major,
        capability.minor,
        device.enforced_power_limit().unwrap() / 1000,
    )
}

#[test]
fn minor_is_not_index_and_every_handle_leads_to_the_same_gpu() {
    let host = SimulatedHost::with(&[("h100", 8)]);
    let nvml = open(&host);
    for index in 0..8 {
        let device = nvml.device_by_index(index).unwrap();
        let uuid = device.uuid().unwrap();
        let pci = device.pci_info().unwrap();
        assert_eq!(device.index().unwrap(), index);
        assert_eq!(device.minor_number().unwrap(), 40 + (index + 4) % 8);
        assert_eq!(
            nvml.device_by_uuid(uuid.as_str()).unwrap().index().unwrap(),
            index
        );
        assert_eq!(
            nvml.device_by_pci_bus_id(pci.bus_id.as_str())
                .unwrap()
                .uuid()
                .unwrap(),
            uuid
        );
        assert_eq!(
            device.serial().unwrap(),
            host.state().gpus[index as usize].serial
        );
        assert_eq!(uuid, host.uuid(index as usize));
    }
    assert!(matches!(
        nvml.device_by_index(8),
        Err(NvmlError::InvalidArg)
    ));
    assert!(matches!(
        nvml.device_by_uuid("GPU-00000000-0000-0000-0000-000000000000"),
        Err(NvmlError::NotFound)
    ));
}

#[test]
fn a_readable_gpu_answers_all_that_health_asks() {
    let host = SimulatedHost::with(&[("h100", 2)]);
    host.edit(|state| {
        let gpu = &mut state.gpus[1];
        gpu.set_power(512_000, 0);
        gpu.readings.counted.energy_mj = 77;
        gpu.readings.gpu_percent = 93;
        gpu.processes = vec![nvidia_ml_sim::Process {
            pid: 4242,
            memory_bytes: 3 << 30,
            ..Default::default()
        }];
        gpu.ecc.volatile_uncorrected = 2;
        gpu.row_remap.pending = true;
        gpu.nvlinks_down = vec![4];
    });
    let nvml = open(&host);
    let device = nvml.device_by_index(1).unwrap();
    let other = nvml.device_by_index(0).unwrap();
    assert_eq!(device.power_usage().unwrap(), 512_000);
    assert_eq!(device.total_energy_consumption().unwrap(), 77);
    assert_eq!(device.utilization_rates().unwrap().gpu, 93);
    assert_eq!(device.temperature(TemperatureSensor::Gpu).unwrap(), 31);
    assert_eq!(
        device
            .temperature_threshold(TemperatureThreshold::Slowdown)
            .unwrap(),
        87
    );
    assert_eq!(device.max_clock_info(Clock::SM).unwrap(), 1980);
    assert_eq!(
        device
            .total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)
            .unwrap(),
        2
    );
    assert_eq!(device.architecture().unwrap(), DeviceArchitecture::Hopper);
    assert_eq!(device.memory_info().unwrap().used, 3 << 30);
    assert!(!device.link_wrapper_for(4).is_active().unwrap());
    assert!(device.link_wrapper_for(5).is_active().unwrap());
    let processes = device.running_compute_processes().unwrap();
    assert_eq!(
        processes
            .iter()
            .map(|process| process.pid)
            .collect::<Vec<_>>(),
        [4242]
    );
    assert!(device.running_graphics_processes().unwrap().is_empty());
    assert!(matches!(
        device.p2p_status(&other, P2pCapabilitiesIndex::NvLink),
        Ok(P2pStatus::Ok)
    ));
    assert_eq!(
        device
            .topology_common_ancestor(nvml.device_by_index(0).unwrap())
            .unwrap(),
        TopologyLevel::System
    );
    assert_eq!(device.memory_affinity(2, 0).unwrap(), [2, 0]);
    assert_eq!(device.mig_mode().unwrap().current, 0);
    let fields = device
        .field_values_for(&[
            FieldId(NVML_FI_DEV_NVLINK_LINK_COUNT),
            FieldId(NVML_FI_DEV_REMAPPED_PENDING),
            FieldId(9999),
        ])
        .unwrap();
    let worked: Vec<bool> = fields
        .iter()
        .map(|field| field.as_ref().is_ok_and(|field| field.value.is_ok()))
        .collect();
    assert_eq!(worked, [true, true, false]);
}

#[test]
fn lost_gpu_answers_lost_and_the_others_go_on() {
    let host = SimulatedHost::with(&[("h100", 8)]);
    let nvml = open(&host);
    let before = nvml.device_by_index(3).unwrap();
    host.inject(3, "lost");
    assert!(matches!(before.name(), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_index(3), Err(NvmlError::GpuLost)));
    assert_eq!(nvml.device_count().unwrap(), 8);
    let readable = (0..8).filter(|&index| {
        nvml.device_by_index(index)
            .and_then(|device| device.temperature(TemperatureSensor::Gpu))
            .is_ok()
    });
    assert_eq!(readable.count(), 7);
    host.inject(3, "clear");
    assert_eq!(before.uuid().unwrap(), host.uuid(3));
}

#[test]
fn missing_gpu_moves_indices_and_a_handle_stays_with_its_gpu() {
    let host = SimulatedHost::with(&[("h100", 8)]);
    let nvml = open(&host);
    let sixth = nvml.device_by_index(5).unwrap();
    host.inject(2, "missing");
    assert_eq!(nvml.device_count().unwrap(), 7);
    assert_eq!(sixth.uuid().unwrap(), host.uuid(5));
    assert_eq!(sixth.index().unwrap(), 4);
    assert_eq!(
        nvml.device_by_index(2).unwrap().uuid().unwrap(),
        host.uuid(3)
    );
}

#[test]
fn xid_comes_through_the_event_set_once_and_only_from_registered_gpus() {
    let host = SimulatedHost::with(&[("h100", 4)]);
    host.inject(1, "xid 13"); // before the set was made: nobody hears of it
    let nvml = open(&host);
    let set = nvml.create_event_set().unwrap();
    let set = nvml
        .device_by_index(1)
        .unwrap()
        .register_events(EventTypes::CRITICAL_XID_ERROR, set)
        .unwrap();
    assert!(matches!(set.wait(0), Err(NvmlError::Timeout)));
    host.inject(0, "xid 31");
    host.inject(1, "ecc 1");
    host.inject(1, "xid 79");
    let event = set.wait(5000).unwrap();
    assert_eq!(event.event_data, Some(XidError::Value(79)));
    assert_eq!(event.device.uuid().unwrap(), host.uuid(1));
    assert!(matches!(set.wait(30), Err(NvmlError::Timeout)));
    assert!(
        nvml.device_by_index(0)
            .unwrap()
            .register_events(EventTypes::POWER_SOURCE_CHANGE, set)
            .is_err()
    );
}

#[test]
fn compute_mode_set_through_nvml_is_in_the_state() {
    use nvml_wrapper::enum_wrappers::device::ComputeMode;
    let host = SimulatedHost::with(&[("h100", 2)]);
    let nvml = open(&host);
    let mut device = nvml.device_by_index(1).unwrap();
    device
        .set_compute_mode(ComputeMode::ExclusiveProcess)
        .unwrap();
    assert_eq!(
        device.compute_mode().unwrap(),
        ComputeMode::ExclusiveProcess
    );
    assert_eq!(
        host.state().gpus[1].compute_mode,
        nvidia_ml_sim::ComputeMode::ExclusiveProcess
    );
    assert_eq!(
        host.state().gpus[0].compute_mode,
        nvidia_ml_sim::ComputeMode::Default
    );
}

#[test]
fn driver_that_went_away_is_told_as_such() {
    let host = SimulatedHost::with(&[("l4", 1)]);
    let nvml = open(&host);
    let device = nvml.device_by_index(0).unwrap();
    host.edit(|state| state.apply_driver_fault("mismatch").unwrap());
    assert!(matches!(
        device.name(),
        Err(NvmlError::LibRmVersionMismatch)
    ));
    host.edit(|state| state.apply_driver_fault("not-loaded").unwrap());
    assert!(matches!(
        nvml.device_count(),
        Err(NvmlError::DriverNotLoaded)
    ));
    host.edit(|state| state.apply_driver_fault("clear").unwrap());
    assert_eq!(device.name().unwrap(), "NVIDIA L4");
}

#[test]
fn broken_or_absent_state_is_an_error_and_not_a_crash() {
    let host = SimulatedHost::with(&[("l4", 1)]);
    let nvml = open(&host);
    std::fs::write(host.dir.path().join("state.json"), "{ not json").unwrap();
    assert!(matches!(nvml.device_count(), Err(NvmlError::Unknown)));
    std::fs::remove_file(host.dir.path().join("state.json")).unwrap();
    assert!(matches!(
        nvml.device_count(),
        Err(NvmlError::DriverNotLoaded)
    ));
    drop(nvml);
    assert!(matches!(
        Nvml::builder().lib_path(host.library().as_os_str()).init(),
        Err(NvmlError::DriverNotLoaded)
    ));
}

#[test]
fn null_pointers_and_short_buffers_are_refused() {
    let host = SimulatedHost::with(&[("l4", 1)]);
    let nvml = open(&host);
    let device = nvml.device_by_index(0).unwrap();
    let (invalid_argument, insufficient_size) = (2, 7);
    let mut short = [0; 4];
    use std::ptr::null_mut as null;
    let lib = nvml.lib();
    // SAFETY: what is asked is whether the library refuses null pointers without writing; the one buffer has its true length.
    let codes = unsafe {
        [
            lib.nvmlDeviceGetCount_v2(null()),
            lib.nvmlDeviceGetHandleByIndex_v2(0, null()),
            lib.nvmlDeviceGetHandleByUUID(std::ptr::null(), null()),
            lib.nvmlDeviceGetName(device.handle(), null(), 64),
            lib.nvmlDeviceGetMemoryInfo(device.handle(), null()),
            lib.nvmlDeviceGetRemappedRows(device.handle(), null(), null(), null(), null()),
            lib.nvmlDeviceGetFieldValues(device.handle(), 3, null()),
            lib.nvmlDeviceGetMinorNumber(null(), short.as_mut_ptr().cast()),
            lib.nvmlEventSetWait_v2(null(), null(), 0),
            lib.nvmlEventSetCreate(null()),
            lib.nvmlSystemGetDriverVersion(null(), 0),
        ]
    };
    assert_eq!(codes, [invalid_argument; 11]);
    // SAFETY: as above.
    let code = unsafe { lib.nvmlDeviceGetName(device.handle(), short.as_mut_ptr(), 4) };
    assert_eq!((code, short), (insufficient_size, [0; 4]));
}
