//! Health, links, topology, use and performance monitoring through the real dlopen path, and libraries that know less.

mod simulated;

use std::mem::zeroed;
use std::time::{Duration, Instant};

use nvml_wrapper::enum_wrappers::device::{
    EccCounter, MemoryError, MemoryLocation, P2pCapabilitiesIndex, P2pStatus, PcieUtilCounter,
    RetirementCause, Sampling, TemperatureSensor, TopologyLevel,
};
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::*;

use simulated::SimulatedHost;

fn open(host: &SimulatedHost) -> Nvml {
    Nvml::builder()
        .lib_path(host.library().as_os_str())
        .init()
        .expect("the simulated NVML")
}

fn field(device: &Device<'_>, id: u32) -> Option<SampleValue> {
    let mut fields = device.field_values_for(&[FieldId(id)]).unwrap();
    fields.remove(0).ok()?.value.ok()
}

#[test]
fn errors_in_sram_and_in_memory_are_told_apart() {
    let host = SimulatedHost::with(&[("h100", 1), ("a100", 1)]);
    host.inject(0, "ecc 2");
    host.inject(0, "ecc-sram 3");
    host.inject(0, "sram-threshold");
    let nvml = open(&host);
    let device = nvml.device_by_index(0).unwrap();
    let uncorrected = |location| {
        let counter =
            device.memory_error_counter(MemoryError::Uncorrected, EccCounter::Aggregate, location);
        counter.unwrap()
    };
    assert_eq!(
        (
            uncorrected(MemoryLocation::SRAM),
            uncorrected(MemoryLocation::Device)
        ),
        (3, 2)
    );
    // SAFETY: all zero is a value of a structure of numbers; its version carries its size.
    let status = unsafe {
        let mut status: nvmlEccSramErrorStatus_v1_t = zeroed();
        status.version = (size_of::<nvmlEccSramErrorStatus_v1_t>() | (1 << 24)) as u32;
        assert_eq!(
            nvml.lib()
                .nvmlDeviceGetSramEccErrorStatus(device.handle(), &mut status),
            0
        );
        status
    };
    assert_eq!(
        (status.aggregateUncSecDed, status.bThresholdExceeded),
        (3, 1)
    );
    host.inject(0, "reset");
    let total = |counter| {
        device
            .total_ecc_errors(MemoryError::Uncorrected, counter)
            .unwrap()
    };
    assert_eq!(
        (total(EccCounter::Volatile), total(EccCounter::Aggregate)),
        (0, 5)
    );
    host.edit(|state| state.gpus[1].ecc.off = true);
    let without = nvml.device_by_index(1).unwrap();
    assert!(!without.is_ecc_enabled().unwrap().currently_enabled);
    assert!(matches!(
        without.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile),
        Err(NvmlError::NotSupported)
    ));
}

#[test]
fn old_boards_retire_pages_and_new_ones_remap_rows() {
    let host = SimulatedHost::with(&[("v100", 1), ("h100", 1)]);
    host.inject(0, "retired 3");
    host.inject(1, "remap-pending");
    let nvml = open(&host);
    let (old, new) = (
        nvml.device_by_index(0).unwrap(),
        nvml.device_by_index(1).unwrap(),
    );
    assert_eq!(
        old.retired_pages(RetirementCause::DoubleBitEccError)
            .unwrap()
            .len(),
        3
    );
    assert!(
        old.retired_pages(RetirementCause::MultipleSingleBitEccErrors)
            .unwrap()
            .is_empty()
    );
    assert!(old.are_pages_pending_retired().unwrap());
    assert_eq!(
        field(&old, field_id::NVML_FI_DEV_RETIRED_DBE),
        Some(SampleValue::U64(3))
    );
    assert_eq!(field(&old, field_id::NVML_FI_DEV_REMAPPED_PENDING), None);
    assert!(
        new.retired_pages(RetirementCause::DoubleBitEccError)
            .is_err()
    );
    assert_eq!(
        field(&new, field_id::NVML_FI_DEV_REMAPPED_PENDING),
        Some(SampleValue::U64(1))
    );
    assert_eq!(
        field(&new, field_id::NVML_FI_DEV_REMAPPED_UNC),
        Some(SampleValue::U64(1))
    );
}

#[test]
fn direct_links_name_the_gpu_at_their_other_end_and_switched_ones_the_switch() {
    let host = SimulatedHost::with(&[("v100", 8), ("h100", 2)]);
    let nvml = open(&host);
    let devices: Vec<Device<'_>> = (0..10)
        .map(|index| nvml.device_by_index(index).unwrap())
        .collect();
    let peer_of = |device: usize, link: u32| {
        devices[device]
            .link_wrapper_for(link)
            .remote_pci_info()
            .unwrap()
            .bus_id
    };
    let bus = |device: usize| devices[device].pci_info().unwrap().bus_id;
    assert_eq!(
        [peer_of(0, 0), peer_of(0, 2), peer_of(0, 3)],
        [bus(1), bus(3), bus(3)]
    );
    // nvml-wrapper's own `remote_device_type` forgets the answer: 0.13 says Unknown whatever the library says.
    let kind_of = |device: usize| {
        let mut kind = 99;
        // SAFETY: the handle is of the library that is called, and the pointer is to a live integer of NVML's type.
        let code = unsafe {
            nvml.lib()
                .nvmlDeviceGetNvLinkRemoteDeviceType(devices[device].handle(), 0, &mut kind)
        };
        (code, kind)
    };
    assert_eq!(
        kind_of(0),
        (0, nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU)
    );
    assert_eq!(
        kind_of(8),
        (
            0,
            nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH
        )
    );
    let joined = |one: usize, other: usize| {
        matches!(
            devices[one].p2p_status(&devices[other], P2pCapabilitiesIndex::NvLink),
            Ok(P2pStatus::Ok)
        )
    };
    assert!(joined(0, 3) && joined(3, 0) && joined(8, 9));
    assert!(!joined(0, 5) && !joined(0, 8), "no cable, another island");
    host.inject(0, "nvlink-down 0");
    assert!(!joined(0, 1) && !joined(1, 0), "the only link between them");
    host.inject(0, "nvlink-down 2");
    assert!(joined(0, 3), "one of two is left");
    host.inject(0, "nvlink-up 0");
    assert!(joined(0, 1));
    host.inject(8, "nvlink-errors 7");
    assert_eq!(
        devices[8]
            .link_wrapper_for(0)
            .error_counter(ErrorCounter::DlCrcFlit)
            .unwrap(),
        7
    );
    host.inject(9, "mig on");
    assert!(!joined(8, 9), "a GPU in MIG mode has no peers");
}

#[test]
fn a_fabric_that_is_not_ready_parts_its_gpus() {
    let host = SimulatedHost::with(&[("h100", 2), ("a100", 1)]);
    let nvml = open(&host);
    let (one, other) = (
        nvml.device_by_index(0).unwrap(),
        nvml.device_by_index(1).unwrap(),
    );
    let info = |device: &Device<'_>| {
        // SAFETY: all zero is a value of a structure of numbers; its version carries its size.
        unsafe {
            let mut info: nvmlGpuFabricInfo_v3_t = zeroed();
            info.version = (size_of::<nvmlGpuFabricInfo_v3_t>() | (3 << 24)) as u32;
            assert_eq!(
                nvml.lib()
                    .nvmlDeviceGetGpuFabricInfoV(device.handle(), &mut info),
                0
            );
            (
                u32::from(info.state),
                info.status,
                u32::from(info.healthSummary),
            )
        }
    };
    assert_eq!(
        info(&one),
        (
            NVML_GPU_FABRIC_STATE_COMPLETED,
            0,
            NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
        )
    );
    assert_eq!(
        info(&nvml.device_by_index(2).unwrap()).0,
        NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
    );
    host.inject(0, "fabric unhealthy");
    assert_eq!(info(&one).2, NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY);
    host.inject(0, "fabric in-progress");
    assert_eq!(info(&one).0, NVML_GPU_FABRIC_STATE_IN_PROGRESS);
    assert!(matches!(
        one.p2p_status(&other, P2pCapabilitiesIndex::NvLink),
        Ok(P2pStatus::NotSupported)
    ));
    // SAFETY: as above; this version has another size, so nothing is written.
    let refused = unsafe {
        let mut info: nvmlGpuFabricInfo_v3_t = zeroed();
        info.version = 0x0900_0030;
        nvml.lib()
            .nvmlDeviceGetGpuFabricInfoV(one.handle(), &mut info)
    };
    assert_eq!(
        refused,
        nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    );
}

#[test]
fn distance_follows_switches_and_sockets() {
    let host = SimulatedHost::with(&[("a100", 8)]);
    let nvml = open(&host);
    let device = |index| nvml.device_by_index(index).unwrap();
    let level = |other| device(0).topology_common_ancestor(device(other)).unwrap();
    assert_eq!(
        [level(1), level(2), level(7)],
        [
            TopologyLevel::Multiple,
            TopologyLevel::Node,
            TopologyLevel::System
        ]
    );
    assert_eq!(
        device(0)
            .topology_nearest_gpus(TopologyLevel::Node)
            .unwrap()
            .len(),
        3
    );
    assert_eq!(
        device(7).cpu_affinity(2).unwrap(),
        [0xFFFF_FFFF_0000_0000, 0]
    );
    assert_eq!(nvml.topology_gpu_set(40).unwrap().len(), 4);
    assert!(matches!(
        device(7).cpu_affinity(0),
        Err(NvmlError::InvalidArg | NvmlError::InsufficientSize(_))
    ));
}

#[test]
fn slow_links_and_held_down_clocks_are_told_with_their_time() {
    let host = SimulatedHost::with(&[("h100", 1), ("l4", 1)]);
    host.edit(|state| state.gpus[0].readings.counted_to_unix_ms = 1);
    host.inject(0, "pcie 8 3");
    host.inject(0, "throttle power-brake");
    let nvml = open(&host);
    let (device, small) = (
        nvml.device_by_index(0).unwrap(),
        nvml.device_by_index(1).unwrap(),
    );
    assert_eq!(
        (
            device.current_pcie_link_width().unwrap(),
            device.max_pcie_link_width().unwrap()
        ),
        (8, 16)
    );
    assert_eq!(
        (
            device.current_pcie_link_gen().unwrap(),
            device.max_pcie_link_gen().unwrap()
        ),
        (3, 5)
    );
    assert_eq!(device.current_throttle_reasons().unwrap().bits() & !1, 0x88);
    let slowed = || {
        device
            .violation_status(nvml_wrapper::enum_wrappers::device::PerformancePolicy::Power)
            .unwrap()
            .violation_time
    };
    let (first, begun) = (slowed(), Instant::now());
    simulated::eventually("time held down adds up", || slowed() > first);
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(
        small.current_pcie_link_gen().unwrap(),
        1,
        "an idle L4 rests its link"
    );
    host.edit(|state| state.set_reading(1, "util=50").unwrap());
    assert_eq!(small.current_pcie_link_gen().unwrap(), 4);
}

#[test]
fn energy_and_traffic_run_on_and_gpm_tells_the_rate_between_two_looks() {
    let host = SimulatedHost::with(&[("h100", 1), ("a100", 1)]);
    host.edit(|state| {
        state.gpus[0].readings.counted_to_unix_ms = 1_700_000_000_000;
        for setting in [
            "util=80",
            "power=600",
            "pcie-tx=100",
            "nvlink-rx=4000",
            "mem-util=30",
        ] {
            state.set_reading(0, setting).unwrap();
        }
    });
    let nvml = open(&host);
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(
        device.pcie_throughput(PcieUtilCounter::Send).unwrap(),
        100 << 10
    );
    let before = device.gpm_sample().unwrap();
    let joules = device.total_energy_consumption().unwrap();
    simulated::eventually("energy grows", || {
        device.total_energy_consumption().unwrap() > joules + 60_000
    });
    let after = device.gpm_sample().unwrap();
    let ids = [
        GpmMetricId::SmUtil,
        GpmMetricId::DramBwUtil,
        GpmMetricId::PcieTxPerSec,
        GpmMetricId::NvlinkTotalRxPerSec,
        GpmMetricId::Fp64Util,
    ];
    let metrics = gpm_metrics_get(&nvml, &before, &after, &ids).unwrap();
    let values: Vec<i64> = metrics
        .iter()
        .map(|metric| {
            metric
                .as_ref()
                .map_or(-1, |metric| metric.value.round() as i64)
        })
        .collect();
    assert_eq!(values[..2], [80, 30]);
    assert!(
        (98..=102).contains(&values[2]) && (3900..=4100).contains(&values[3]),
        "{values:?}"
    );
    assert_eq!(values[4], -1, "not a metric of this simulation");
    assert_eq!(metrics[0].as_ref().unwrap().metric_info.unit, "%");
    assert!(
        !nvml.device_by_index(1).unwrap().gpm_support().unwrap() && device.gpm_support().unwrap()
    );
    assert!(nvml.device_by_index(1).unwrap().gpm_sample().is_err());
}

#[test]
fn gpm_tells_the_use_of_each_mig_instance() {
    let host = SimulatedHost::with(&[("h100", 1)]);
    host.inject(0, "mig 3g.40gb,3g.40gb");
    host.inject(0, "process 71 500 2 0");
    host.edit(|state| state.set_reading(0, "sm.71=64").unwrap());
    let nvml = open(&host);
    let device = nvml.device_by_index(0).unwrap();
    let busy = |instance| {
        let looks = (
            device.gpm_mig_sample(instance).unwrap(),
            device.gpm_mig_sample(instance).unwrap(),
        );
        let metrics = gpm_metrics_get(&nvml, &looks.0, &looks.1, &[GpmMetricId::SmUtil]).unwrap();
        metrics[0].as_ref().unwrap().value as u32
    };
    assert_eq!((busy(1), busy(2)), (0, 64));
    assert!(matches!(device.gpm_mig_sample(9), Err(NvmlError::NotFound)));
}

#[test]
fn samples_processes_and_accounting_tell_who_uses_a_gpu() {
    let host = SimulatedHost::with(&[("h100", 1)]);
    host.inject(0, "process 900 1024");
    host.inject(0, "process 901 2048");
    host.edit(|state| {
        for setting in ["util=70", "sm.901=55"] {
            state.set_reading(0, setting).unwrap();
        }
        state.gpus[0].processes[0].kind = nvidia_ml_sim::ProcessKind::Mps;
    });
    let nvml = open(&host);
    let mut device = nvml.device_by_index(0).unwrap();
    let samples = device.samples(Sampling::GpuUtilization, None).unwrap();
    assert!(
        samples.len() > 100
            && samples
                .iter()
                .all(|sample| sample.value == SampleValue::U32(70))
    );
    let newest = samples.last().unwrap().timestamp;
    simulated::eventually("a younger sample comes", || {
        device
            .samples(Sampling::GpuUtilization, newest)
            .is_ok_and(|younger| younger.iter().all(|sample| sample.timestamp > newest))
    });
    assert_eq!(device.running_compute_processes().unwrap().len(), 1);
    let (mut count, mut sharing) = (4, Vec::with_capacity(4));
    // SAFETY: there is room for the four that are told, and the library fills as many as it counts.
    let code = unsafe {
        let code = nvml.lib().nvmlDeviceGetMPSComputeRunningProcesses_v3(
            device.handle(),
            &mut count,
            sharing.as_mut_ptr(),
        );
        sharing.set_len(count as usize);
        code
    };
    assert_eq!((code, sharing[0].pid), (0, 900));
    let stats = device.process_utilization_stats(None).unwrap();
    assert_eq!(
        stats
            .iter()
            .map(|stat| (stat.pid, stat.sm_util))
            .collect::<Vec<_>>(),
        [(901, 55)]
    );
    assert!(device.accounting_pids().is_err(), "accounting is off");
    device.set_accounting(true).unwrap();
    assert_eq!(device.accounting_pids().unwrap(), [900, 901]);
    let stats = device.accounting_stats_for(901).unwrap();
    assert_eq!(
        (stats.max_memory_usage, stats.is_running),
        (Some(2 << 30), true)
    );
}

#[test]
fn limits_are_set_within_what_the_board_takes() {
    let host = SimulatedHost::with(&[("h100", 1)]);
    let nvml = open(&host);
    let mut device = nvml.device_by_index(0).unwrap();
    let constraints = device.power_management_limit_constraints().unwrap();
    assert_eq!(
        (constraints.min_limit, constraints.max_limit),
        (175_000, 700_000)
    );
    device.set_power_management_limit(500_000).unwrap();
    assert_eq!(device.power_management_limit().unwrap(), 500_000);
    assert_eq!(device.power_management_limit_default().unwrap(), 700_000);
    assert!(matches!(
        device.set_power_management_limit(900_000),
        Err(NvmlError::InvalidArg)
    ));
}

#[test]
fn a_driver_that_lacks_a_function_says_so_and_one_that_errs_or_dawdles_is_seen() {
    let host = SimulatedHost::with(&[("h100", 2)]);
    host.edit(|state| {
        state
            .apply_driver_fault("withhold nvmlDeviceGetFieldValues")
            .unwrap()
    });
    let nvml = open(&host);
    let device = nvml.device_by_index(0).unwrap();
    assert!(matches!(
        device.field_values_for(&[FieldId(1)]),
        Err(NvmlError::FunctionNotFound)
    ));
    assert!(device.name().is_ok());
    host.inject(0, "error 999");
    assert!(matches!(device.name(), Err(NvmlError::Unknown)));
    assert!(
        nvml.device_by_index(1)
            .unwrap()
            .temperature(TemperatureSensor::Gpu)
            .is_ok()
    );
    host.inject(1, "slow 300");
    let begun = Instant::now();
    nvml.device_by_index(1)
        .unwrap()
        .temperature(TemperatureSensor::Gpu)
        .unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(300));
}

#[test]
fn the_recovery_that_the_driver_advises_is_a_field() {
    let host = SimulatedHost::with(&[("h100", 1)]);
    host.inject(0, "recovery reboot");
    let nvml = open(&host);
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(
        field(&device, field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
        Some(SampleValue::U32(2))
    );
}
