//! MIG through the real dlopen path: `nvml-wrapper` where it wraps, the C functions through its bindings where it does not.

mod simulated;

use std::mem::zeroed;
use std::ptr::null_mut;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::*;

use simulated::SimulatedHost;

const SUCCESS: u32 = nvmlReturn_enum_NVML_SUCCESS;
const IN_USE: u32 = nvmlReturn_enum_NVML_ERROR_IN_USE;
const NOT_FOUND: u32 = nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
const NOT_SUPPORTED: u32 = nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
const INVALID_ARGUMENT: u32 = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
const NO_ROOM: u32 = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES;

fn open(host: &SimulatedHost) -> Nvml {
    Nvml::builder()
        .lib_path(host.library().as_os_str())
        .init()
        .expect("the simulated NVML")
}

fn create(device: &Device<'_>, profile_id: u32) -> Result<nvmlGpuInstance_t, u32> {
    let mut instance = null_mut();
    // SAFETY: the handle is of the library that is called, and the out pointer is to a live handle.
    let code = unsafe {
        let lib = device.nvml().lib();
        lib.nvmlDeviceCreateGpuInstance(device.handle(), profile_id, &mut instance)
    };
    if code == SUCCESS {
        Ok(instance)
    } else {
        Err(code)
    }
}

fn instance_info(nvml: &Nvml, instance: nvmlGpuInstance_t) -> Result<nvmlGpuInstanceInfo_t, u32> {
    // SAFETY: all zero is a value of this structure of numbers and a pointer, and the library fills it.
    let (code, info) = unsafe {
        let mut info = zeroed();
        (nvml.lib().nvmlGpuInstanceGetInfo(instance, &mut info), info)
    };
    if code == SUCCESS { Ok(info) } else { Err(code) }
}

/// One compute instance that fills the GPU instance.
fn fill(nvml: &Nvml, instance: nvmlGpuInstance_t, compute_profile: u32) -> nvmlComputeInstance_t {
    let mut compute = null_mut();
    // SAFETY: as in `create`.
    let code = unsafe {
        nvml.lib()
            .nvmlGpuInstanceCreateComputeInstance(instance, compute_profile, &mut compute)
    };
    assert_eq!(code, SUCCESS);
    compute
}

#[test]
fn mode_profiles_and_placements_are_told_before_anything_is_cut() {
    let host = SimulatedHost::with(&[("a100-40", 1), ("l4", 1)]);
    let nvml = open(&host);
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.mig_mode().unwrap().current, 0);
    assert_eq!(device.mig_device_count().unwrap(), 7);
    let profile = device
        .profile_info(NVML_GPU_INSTANCE_PROFILE_2_SLICE)
        .unwrap();
    assert_eq!(
        (profile.id, profile.slice_count, profile.instance_count),
        (14, 2, 3)
    );
    assert_eq!(
        (profile.memory_size_mb, profile.multiprocessor_count),
        (9856, 28)
    );
    assert!(matches!(
        device.profile_info(NVML_GPU_INSTANCE_PROFILE_8_SLICE),
        Err(NvmlError::NotSupported)
    ));
    assert!(matches!(
        nvml.device_by_index(1).unwrap().mig_mode(),
        Err(NvmlError::NotSupported)
    ));
    assert_eq!(create(&device, 14), Err(NOT_SUPPORTED), "the mode is off");
    assert_eq!(device.set_mig_mode(true).unwrap(), SUCCESS);
    assert_eq!(device.mig_mode().unwrap().current, 1);
    let mut count = 0;
    // SAFETY: all zero is a value of a structure of two numbers.
    let mut places: [nvmlGpuInstancePlacement_t; 7] = unsafe { zeroed() };
    // SAFETY: a null array asks for the count, the array then has room for that many.
    let codes = unsafe {
        let (lib, handle) = (nvml.lib(), device.handle());
        [
            lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle, 9, null_mut(), &mut count),
            lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                handle,
                9,
                places.as_mut_ptr(),
                &mut count,
            ),
        ]
    };
    assert_eq!((codes, count), ([SUCCESS; 2], 2));
    assert_eq!(
        [places[0].start, places[0].size, places[1].start],
        [0, 4, 4]
    );
}

#[test]
fn names_come_with_the_versioned_structures_and_a_wrong_version_is_refused() {
    let host = SimulatedHost::with(&[("h100", 1)]);
    let nvml = open(&host);
    let device = nvml.device_by_index(0).unwrap();
    // SAFETY: all zero is a value of these structures of numbers and letters; each carries the size that the library writes.
    unsafe {
        let mut second: nvmlGpuInstanceProfileInfo_v2_t = zeroed();
        second.version = 0x0200_0098;
        let mut third: nvmlGpuInstanceProfileInfo_v3_t = zeroed();
        third.version = 0x0300_0098;
        let by_kind =
            nvml.lib()
                .nvmlDeviceGetGpuInstanceProfileInfoV(device.handle(), 7, &mut second);
        let as_second = (&raw mut third).cast();
        let by_id =
            nvml.lib()
                .nvmlDeviceGetGpuInstanceProfileInfoByIdV(device.handle(), 9, as_second);
        assert_eq!((by_kind, by_id), (SUCCESS, SUCCESS));
        let text = |name: &[std::ffi::c_char]| {
            std::ffi::CStr::from_ptr(name.as_ptr())
                .to_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(
            (text(&second.name), second.id),
            ("MIG 1g.10gb+me".to_owned(), 20)
        );
        assert_eq!(
            (text(&third.name), third.memorySizeMB),
            ("MIG 3g.40gb".to_owned(), 40_448)
        );
        second.version = 0x0100_0098;
        let refused =
            nvml.lib()
                .nvmlDeviceGetGpuInstanceProfileInfoV(device.handle(), 7, &mut second);
        assert_eq!(
            refused,
            nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        );
    }
}

#[test]
fn a_gpu_is_cut_used_and_made_whole_again() {
    let host = SimulatedHost::with(&[("h100", 2)]);
    let nvml = open(&host);
    let device = nvml.device_by_index(0).unwrap();
    device.set_mig_mode(true).unwrap();
    let half = create(&device, 9).unwrap();
    let slice = create(&device, 19).unwrap();
    assert_eq!(instance_info(&nvml, half).unwrap().placement.start, 4);
    assert_eq!(instance_info(&nvml, slice).unwrap().placement.start, 0);
    assert_eq!(
        create(&device, 5),
        Err(NO_ROOM),
        "4g would overlap the slice"
    );
    assert_eq!(create(&device, 7), Err(INVALID_ARGUMENT), "no such profile");
    assert!(matches!(
        device.mig_device_by_index(0),
        Err(NvmlError::NotFound)
    ));
    let compute = fill(&nvml, half, 2);
    fill(&nvml, slice, 0);

    let mig = device.mig_device_by_index(0).unwrap();
    let uuid = mig.uuid().unwrap();
    assert!(uuid.starts_with("MIG-") && uuid.len() == 40, "{uuid}");
    assert!(mig.mig_is_mig_device_handle().unwrap() && !device.mig_is_mig_device_handle().unwrap());
    assert_eq!(mig.name().unwrap(), "NVIDIA H100 80GB HBM3 MIG 3g.40gb");
    assert_eq!(mig.memory_info().unwrap().total, 40_448 << 20);
    assert_eq!(
        mig.mig_parent_device().unwrap().uuid().unwrap(),
        device.uuid().unwrap()
    );
    assert_eq!(
        nvml.device_by_uuid(uuid.as_str()).unwrap().name().unwrap(),
        mig.name().unwrap()
    );
    let attributes = mig.attributes().unwrap();
    assert_eq!(
        (
            attributes.gpu_instance_slice_count,
            attributes.multiprocessor_count
        ),
        (3, 60)
    );
    assert!(matches!(
        mig.temperature(nvml_wrapper::enum_wrappers::device::TemperatureSensor::Gpu),
        Err(NvmlError::NotSupported)
    ));
    assert!(matches!(
        device.utilization_rates(),
        Err(NvmlError::NotSupported)
    ));
    assert!(matches!(
        device.mig_device_by_index(2),
        Err(NvmlError::NotFound)
    ));

    host.inject(0, "process 4242 2048 2 0");
    let seen = |device: &Device<'_>| {
        let processes = device.running_compute_processes().unwrap();
        processes
            .iter()
            .map(|process| (process.pid, process.gpu_instance_id))
            .collect::<Vec<_>>()
    };
    assert_eq!(seen(&device), [(4242, Some(2))]);
    assert_eq!(seen(&mig), [(4242, Some(2))]);
    assert!(seen(&device.mig_device_by_index(1).unwrap()).is_empty());
    assert_eq!(mig.memory_info().unwrap().used, 2 << 30);
    // SAFETY: the handles were given out by this library.
    let destroy = || unsafe {
        (
            nvml.lib().nvmlComputeInstanceDestroy(compute),
            nvml.lib().nvmlGpuInstanceDestroy(half),
        )
    };
    assert_eq!(destroy(), (IN_USE, IN_USE), "a process is in it");
    assert_eq!(device.set_mig_mode(false).unwrap(), IN_USE);
    assert_eq!(
        (
            device.mig_mode().unwrap().current,
            device.mig_mode().unwrap().pending
        ),
        (1, 0)
    );

    host.inject(0, "no-process");
    assert_eq!(destroy(), (SUCCESS, SUCCESS));
    assert_eq!(instance_info(&nvml, half).unwrap_err(), NOT_FOUND);
    assert!(
        matches!(mig.uuid(), Err(NvmlError::NotFound)),
        "the device is gone with its instance"
    );
    assert_eq!(device.set_mig_mode(false).unwrap(), SUCCESS);
    assert_eq!(device.mig_mode().unwrap().current, 0);
    assert!(host.state().gpus[0].mig_instances.is_empty());
}

#[test]
fn instances_are_listed_by_profile_and_by_id_and_survive_the_library() {
    let host = SimulatedHost::with(&[("a100-80", 1)]);
    host.inject(0, "mig 3g.40gb,1g.10gb,1g.10gb");
    let nvml = open(&host);
    let device = nvml.device_by_index(0).unwrap();
    let mut instances = [null_mut(); 7];
    let (mut count, mut by_id, mut left) = (0, null_mut(), 0);
    // SAFETY: the array has room for as many as the profile allows, and the rest are pointers to live values.
    let codes = unsafe {
        let (lib, handle) = (nvml.lib(), device.handle());
        [
            lib.nvmlDeviceGetGpuInstances(handle, 19, instances.as_mut_ptr(), &mut count),
            lib.nvmlDeviceGetGpuInstanceById(handle, 2, &mut by_id),
            lib.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 19, &mut left),
            lib.nvmlDeviceGetGpuInstanceById(handle, 14, &mut by_id),
        ]
    };
    assert_eq!(codes, [SUCCESS, SUCCESS, SUCCESS, NOT_FOUND]);
    assert_eq!(
        (count, left),
        (2, 2),
        "two slices are in the half that is left"
    );
    let starts: Vec<u32> = instances[..2]
        .iter()
        .map(|&instance| instance_info(&nvml, instance).unwrap().placement.start)
        .collect();
    assert_eq!(starts, [0, 1]);
    let first = device.mig_device_by_index(0).unwrap().uuid().unwrap();
    drop(nvml);
    let nvml = open(&host);
    assert_eq!(
        nvml.device_by_index(0)
            .unwrap()
            .mig_device_by_index(0)
            .unwrap()
            .uuid()
            .unwrap(),
        first
    );
}

#[test]
fn a_compute_instance_goes_where_it_is_told() {
    let host = SimulatedHost::with(&[("h100", 1)]);
    host.inject(0, "mig on");
    let nvml = open(&host);
    let device = nvml.device_by_index(0).unwrap();
    let place = nvmlGpuInstancePlacement_t { start: 0, size: 4 };
    let (mut instance, mut compute) = (null_mut(), null_mut());
    let last = nvmlComputeInstancePlacement_t { start: 3, size: 1 };
    // SAFETY: handles are of this library, the other pointers are to live values.
    unsafe {
        let lib = nvml.lib();
        assert_eq!(
            lib.nvmlDeviceCreateGpuInstanceWithPlacement(device.handle(), 5, &place, &mut instance),
            SUCCESS
        );
        assert_eq!(
            lib.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 0, &last, &mut compute),
            SUCCESS
        );
        let mut info: nvmlComputeInstanceInfo_t = zeroed();
        assert_eq!(
            lib.nvmlComputeInstanceGetInfo_v2(compute, &mut info),
            SUCCESS
        );
        assert_eq!(
            (info.placement.start, info.gpuInstance, info.device),
            (3, instance, device.handle())
        );
        let mut profile: nvmlComputeInstanceProfileInfo_t = zeroed();
        assert_eq!(
            lib.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 1, 0, &mut profile),
            SUCCESS
        );
        assert_eq!(
            (
                profile.sliceCount,
                profile.instanceCount,
                profile.multiprocessorCount
            ),
            (2, 2, 32)
        );
        let mut left = 9;
        assert_eq!(
            lib.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 1, &mut left),
            SUCCESS
        );
        assert_eq!(left, 1);
        assert_eq!(
            lib.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 2, 0, &mut profile),
            NOT_SUPPORTED
        );
    }
    assert_eq!(
        device.mig_device_by_index(0).unwrap().name().unwrap(),
        "NVIDIA H100 80GB HBM3 MIG 1c.4g.40gb"
    );
}

#[test]
fn a_new_cut_is_an_event_and_a_lost_gpu_loses_its_mig_devices() {
    let host = SimulatedHost::with(&[("h100", 2)]);
    let nvml = open(&host);
    let device = nvml.device_by_index(1).unwrap();
    let set = nvml.create_event_set().unwrap();
    let set = device
        .register_events(EventTypes::MIG_CONFIG_CHANGE, set)
        .unwrap();
    device.set_mig_mode(true).unwrap();
    assert_eq!(
        set.wait(5000).unwrap().event_type,
        EventTypes::MIG_CONFIG_CHANGE
    );
    fill(&nvml, create(&device, 0).unwrap(), 4);
    let mig = device.mig_device_by_index(0).unwrap();
    host.inject(1, "lost");
    assert!(mig.name().is_err());
    assert!(matches!(device.mig_mode(), Err(NvmlError::GpuLost)));
    assert_eq!(
        create(&device, 19),
        Err(nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST)
    );
}
