//! MIG: the mode, profiles and where they fit, GPU instances, compute instances, and the devices these make.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_PROFILE_COUNT, NVML_GPU_INSTANCE_PROFILE_COUNT,
    nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlComputeInstanceProfileInfo_t,
    nvmlComputeInstanceProfileInfo_v2_t, nvmlComputeInstanceProfileInfo_v3_t, nvmlDevice_t,
    nvmlDeviceAttributes_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as ARGUMENT_VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_IN_USE as IN_USE,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as INSUFFICIENT_RESOURCES,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
};

use super::{Handle, INSUFFICIENT_SIZE, NOT_SUPPORTED, OutPointer, fixed_text, struct_version};
use crate::library::{self, Code, HandleTarget, ask, ask_device, ask_instance, named, parts};
use crate::mig::{
    self, MigProfile, MigRefusal, ModeChange, mig_device_name, mig_profile, mig_profiles,
};
use crate::state::{ComputeInstance, EventKind, Gpu, GpuInstance};

nvml_functions! {
    fn nvmlDeviceGetMigMode(device: Handle, current: OutPointer<c_uint>, pending: OutPointer<c_uint>) {
        ask(device, |_, gpu| {
            require_capable(gpu)?;
            current.put(gpu.mig_enabled.into())?;
            pending.put(gpu.mig_pending.unwrap_or(gpu.mig_enabled).into())
        })
    }

    fn nvmlDeviceSetMigMode(device: Handle, mode: c_uint, activation: OutPointer<Code>) {
        if mode > 1 {
            return Err(INVALID_ARGUMENT);
        }
        let uuid = ask(device, |_, gpu| require_capable(gpu).map(|()| gpu.uuid.clone()))?;
        let outcome = library::change_gpu(&uuid, Some(EventKind::MigConfigChange), |gpu| mig::set_mode(gpu, mode == 1).map_err(code_of))?;
        activation.put(if outcome == ModeChange::Done { SUCCESS } else { IN_USE })
    }

    fn nvmlDeviceGetGpuInstanceProfileInfo(device: Handle, kind: c_uint, info: OutPointer<nvmlGpuInstanceProfileInfo_t>) {
        ask(device, |_, gpu| {
            let profile = profile_of_kind(gpu, kind)?;
            info.put(nvmlGpuInstanceProfileInfo_t {
                id: profile.id,
                isP2pSupported: 0,
                sliceCount: profile.slices,
                instanceCount: profile.max_count,
                multiprocessorCount: profile.multiprocessors,
                copyEngineCount: profile.copy_engines,
                decoderCount: profile.decoders,
                encoderCount: 0,
                jpegCount: profile.jpeg_engines,
                ofaCount: profile.ofa_engines,
                memorySizeMB: profile.memory_mib,
            })
        })
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV(device: Handle, kind: c_uint, info: OutPointer<nvmlGpuInstanceProfileInfo_v2_t>) {
        ask(device, |_, gpu| put_profile(&profile_of_kind(gpu, kind)?, &info))
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(device: Handle, profile_id: c_uint, info: OutPointer<nvmlGpuInstanceProfileInfo_v2_t>) {
        ask(device, |_, gpu| {
            require_capable(gpu)?;
            put_profile(&mig_profile(gpu, profile_id).map_err(code_of)?, &info)
        })
    }

    // The first version does not tell the size of the caller's array.
    fn nvmlDeviceGetGpuInstancePossiblePlacements(
        device: Handle,
        profile_id: c_uint,
        placements: OutPointer<nvmlGpuInstancePlacement_t>,
        count: OutPointer<c_uint>,
    ) {
        ask(device, |_, gpu| {
            let places = places_of(gpu, profile_id)?;
            count.put(places.len() as c_uint)?;
            placements.put_all(places.len(), &places)
        })
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: Handle,
        profile_id: c_uint,
        placements: OutPointer<nvmlGpuInstancePlacement_t>,
        count: OutPointer<c_uint>,
    ) {
        ask(device, |_, gpu| give_all(places_of(gpu, profile_id)?, &count, &placements))
    }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(device: Handle, profile_id: c_uint, count: OutPointer<c_uint>) {
        ask(device, |_, gpu| {
            require_enabled(gpu)?;
            count.put(mig::remaining(gpu, &mig_profile(gpu, profile_id).map_err(code_of)?))
        })
    }

    fn nvmlDeviceCreateGpuInstance(device: Handle, profile_id: c_uint, instance: OutPointer<Handle>) { create_instance(device, profile_id, None, instance) }

    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        device: Handle,
        profile_id: c_uint,
        placement: OutPointer<nvmlGpuInstancePlacement_t>,
        instance: OutPointer<Handle>,
    ) {
        create_instance(device, profile_id, Some(placement.get()?.start), instance)
    }

    fn nvmlGpuInstanceDestroy(instance: Handle) {
        let HandleTarget::GpuInstance(uuid, id) = named(instance)? else { return Err(INVALID_ARGUMENT) };
        ask_instance(instance, |_, _| Ok(()))?;
        library::change_gpu(&uuid, Some(EventKind::MigConfigChange), |gpu| mig::destroy_gpu_instance(gpu, id).map_err(code_of))
    }

    // The caller's array has room for as many as the profile allows.
    fn nvmlDeviceGetGpuInstances(device: Handle, profile_id: c_uint, instances: OutPointer<Handle>, count: OutPointer<c_uint>) {
        ask(device, |_, gpu| {
            require_enabled(gpu)?;
            let most = mig_profile(gpu, profile_id).map_err(code_of)?.max_count;
            let found = gpu.mig_instances.iter().filter(|instance| instance.profile_id == profile_id);
            let handles: Vec<Handle> = found.map(|instance| handle_of_instance(gpu, instance.id)).collect();
            count.put(handles.len() as c_uint)?;
            instances.put_all(most as usize, &handles)
        })
    }

    fn nvmlDeviceGetGpuInstanceById(device: Handle, id: c_uint, instance: OutPointer<Handle>) {
        ask(device, |_, gpu| {
            require_enabled(gpu)?;
            if gpu.mig_instances.iter().all(|other| other.id != id) {
                return Err(NOT_FOUND);
            }
            instance.put(handle_of_instance(gpu, id))
        })
    }

    fn nvmlGpuInstanceGetInfo(instance: Handle, info: OutPointer<nvmlGpuInstanceInfo_t>) {
        ask_instance(instance, |gpu, instance| info.put(nvmlGpuInstanceInfo_t {
            device: library::handle_of(&gpu.uuid) as nvmlDevice_t,
            id: instance.id,
            profileId: instance.profile_id,
            placement: nvmlGpuInstancePlacement_t { start: instance.start, size: instance.size },
        }))
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance: Handle,
        kind: c_uint,
        engine: c_uint,
        info: OutPointer<nvmlComputeInstanceProfileInfo_t>,
    ) {
        ask_instance(instance, |gpu, instance| {
            let kind = compute_kind(gpu, instance, kind, engine)?;
            info.put(nvmlComputeInstanceProfileInfo_t {
                id: kind.id,
                sliceCount: kind.slices,
                instanceCount: kind.max_count,
                multiprocessorCount: kind.multiprocessors,
                sharedCopyEngineCount: kind.profile.copy_engines,
                sharedDecoderCount: kind.profile.decoders,
                sharedEncoderCount: 0,
                sharedJpegCount: kind.profile.jpeg_engines,
                sharedOfaCount: kind.profile.ofa_engines,
            })
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        instance: Handle,
        kind: c_uint,
        engine: c_uint,
        info: OutPointer<nvmlComputeInstanceProfileInfo_v2_t>,
    ) {
        ask_instance(instance, |gpu, instance| put_compute_kind(&compute_kind(gpu, instance, kind, engine)?, &info))
    }

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance: Handle, profile_id: c_uint, count: OutPointer<c_uint>) {
        ask_instance(instance, |gpu, instance| {
            compute_kind(gpu, instance, profile_id, 0)?;
            count.put(mig::remaining_compute(gpu, instance.id, profile_id))
        })
    }

    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        instance: Handle,
        profile_id: c_uint,
        placements: OutPointer<nvmlComputeInstancePlacement_t>,
        count: OutPointer<c_uint>,
    ) {
        ask_instance(instance, |gpu, instance| {
            let kind = compute_kind(gpu, instance, profile_id, 0)?;
            let place = |start| nvmlComputeInstancePlacement_t { start, size: kind.slices };
            give_all(kind.profile.compute_starts(kind.slices).into_iter().map(place).collect(), &count, &placements)
        })
    }

    fn nvmlGpuInstanceCreateComputeInstance(instance: Handle, profile_id: c_uint, compute: OutPointer<Handle>) {
        create_compute(instance, profile_id, None, compute)
    }

    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        instance: Handle,
        profile_id: c_uint,
        placement: OutPointer<nvmlComputeInstancePlacement_t>,
        compute: OutPointer<Handle>,
    ) {
        create_compute(instance, profile_id, Some(placement.get()?.start), compute)
    }

    fn nvmlComputeInstanceDestroy(compute: Handle) {
        let HandleTarget::ComputeInstance(uuid, instance, id) = named(compute)? else { return Err(INVALID_ARGUMENT) };
        ask_compute(compute, |_, _, _| Ok(()))?;
        library::change_gpu(&uuid, Some(EventKind::MigConfigChange), |gpu| {
            mig::destroy_compute_instance(gpu, instance, id).map_err(code_of)
        })
    }

    fn nvmlGpuInstanceGetComputeInstances(instance: Handle, profile_id: c_uint, computes: OutPointer<Handle>, count: OutPointer<c_uint>) {
        ask_instance(instance, |gpu, instance| {
            let most = compute_kind(gpu, instance, profile_id, 0)?.max_count;
            let found = instance.compute.iter().filter(|compute| compute.profile_id == profile_id);
            let handles: Vec<Handle> = found.map(|compute| handle_of_compute(gpu, instance.id, compute.id)).collect();
            count.put(handles.len() as c_uint)?;
            computes.put_all(most as usize, &handles)
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceById(instance: Handle, id: c_uint, compute: OutPointer<Handle>) {
        ask_instance(instance, |gpu, instance| {
            if instance.compute.iter().all(|other| other.id != id) {
                return Err(NOT_FOUND);
            }
            compute.put(handle_of_compute(gpu, instance.id, id))
        })
    }

    fn nvmlComputeInstanceGetInfo_v2(compute: Handle, info: OutPointer<nvmlComputeInstanceInfo_t>) { put_compute_info(compute, &info) }

    fn nvmlComputeInstanceGetInfo(compute: Handle, info: OutPointer<nvmlComputeInstanceInfo_t>) { put_compute_info(compute, &info) }

    fn nvmlDeviceIsMigDeviceHandle(device: Handle, is_mig: OutPointer<c_uint>) { ask_device(device, |_, _, part| is_mig.put(part.is_some().into())) }

    fn nvmlDeviceGetGpuInstanceId(device: Handle, id: OutPointer<c_uint>) {
        ask_device(device, |_, _, part| id.put(part.ok_or(NOT_SUPPORTED)?.instance.id))
    }

    fn nvmlDeviceGetComputeInstanceId(device: Handle, id: OutPointer<c_uint>) {
        ask_device(device, |_, _, part| id.put(part.ok_or(NOT_SUPPORTED)?.compute.id))
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: OutPointer<c_uint>) {
        ask(device, |_, gpu| count.put(if gpu.mig_capable { 7 } else { 0 }))
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, index: c_uint, mig: OutPointer<Handle>) {
        ask(device, |_, gpu| {
            require_capable(gpu)?;
            let part = parts(gpu).nth(index as usize).ok_or(NOT_FOUND)?;
            mig.put(library::handle_for(HandleTarget::MigDevice(part.compute.uuid.clone())))
        })
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig: Handle, device: OutPointer<Handle>) {
        ask_device(mig, |_, gpu, part| {
            part.ok_or(INVALID_ARGUMENT)?;
            device.put(library::handle_of(&gpu.uuid))
        })
    }

    fn nvmlDeviceGetAttributes_v2(device: Handle, attributes: OutPointer<nvmlDeviceAttributes_t>) {
        ask_device(device, |_, gpu, part| {
            let part = part.ok_or(NOT_SUPPORTED)?;
            let profile = mig_profile(gpu, part.instance.profile_id).map_err(|_| UNKNOWN)?;
            attributes.put(nvmlDeviceAttributes_t {
                multiprocessorCount: profile.multiprocessors * part.compute.size / profile.slices,
                sharedCopyEngineCount: profile.copy_engines,
                sharedDecoderCount: profile.decoders,
                sharedEncoderCount: 0,
                sharedJpegCount: profile.jpeg_engines,
                sharedOfaCount: profile.ofa_engines,
                gpuInstanceSliceCount: profile.slices,
                computeInstanceSliceCount: part.compute.size,
                memorySizeMB: profile.memory_mib,
            })
        })
    }
}

fn require_capable(gpu: &Gpu) -> Result<(), Code> {
    if gpu.mig_capable {
        Ok(())
    } else {
        Err(NOT_SUPPORTED)
    }
}

fn require_enabled(gpu: &Gpu) -> Result<(), Code> {
    if gpu.mig_enabled {
        Ok(())
    } else {
        Err(NOT_SUPPORTED)
    }
}

fn code_of(refusal: MigRefusal) -> Code {
    match refusal {
        MigRefusal::Off => NOT_SUPPORTED,
        MigRefusal::NoSuchProfile => INVALID_ARGUMENT,
        MigRefusal::NoRoom => INSUFFICIENT_RESOURCES,
        MigRefusal::InUse => IN_USE,
        MigRefusal::NoSuchInstance => NOT_FOUND,
    }
}

/// Where instances of a profile can lie, whether the mode is on or not.
fn places_of(gpu: &Gpu, profile_id: c_uint) -> Result<Vec<nvmlGpuInstancePlacement_t>, Code> {
    require_capable(gpu)?;
    let profile = mig_profile(gpu, profile_id).map_err(code_of)?;
    let place = |&start: &u32| nvmlGpuInstancePlacement_t {
        start,
        size: profile.memory_slices,
    };
    Ok(profile.starts().iter().map(place).collect())
}

fn profile_of_kind(gpu: &Gpu, kind: c_uint) -> Result<MigProfile, Code> {
    require_capable(gpu)?;
    if kind >= NVML_GPU_INSTANCE_PROFILE_COUNT {
        return Err(INVALID_ARGUMENT);
    }
    let mut profiles = mig_profiles(gpu).into_iter();
    profiles
        .find(|profile| profile.kind == kind)
        .ok_or(NOT_SUPPORTED)
}

fn put_profile(
    profile: &MigProfile,
    info: &OutPointer<nvmlGpuInstanceProfileInfo_v2_t>,
) -> Result<(), Code> {
    let name: [c_char; 96] = fixed_text(&format!("MIG {}", profile.name));
    let version = info.version()?;
    if version == struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2) {
        return info.put(nvmlGpuInstanceProfileInfo_v2_t {
            version,
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.slices,
            instanceCount: profile.max_count,
            multiprocessorCount: profile.multiprocessors,
            copyEngineCount: profile.copy_engines,
            decoderCount: profile.decoders,
            encoderCount: 0,
            jpegCount: profile.jpeg_engines,
            ofaCount: profile.ofa_engines,
            memorySizeMB: profile.memory_mib,
            name,
        });
    }
    if version != struct_version::<nvmlGpuInstanceProfileInfo_v3_t>(3) {
        return Err(ARGUMENT_VERSION_MISMATCH);
    }
    info.cast::<nvmlGpuInstanceProfileInfo_v3_t>()
        .put(nvmlGpuInstanceProfileInfo_v3_t {
            version,
            id: profile.id,
            sliceCount: profile.slices,
            instanceCount: profile.max_count,
            multiprocessorCount: profile.multiprocessors,
            copyEngineCount: profile.copy_engines,
            decoderCount: profile.decoders,
            encoderCount: 0,
            jpegCount: profile.jpeg_engines,
            ofaCount: profile.ofa_engines,
            memorySizeMB: profile.memory_mib,
            name,
            capabilities: 0,
        })
}

/// A kind of compute instance inside one GPU instance.
struct ComputeKind {
    profile: MigProfile,
    id: u32,
    slices: u32,
    max_count: u32,
    multiprocessors: u32,
}

fn compute_kind(
    gpu: &Gpu,
    instance: &GpuInstance,
    kind: c_uint,
    engine: c_uint,
) -> Result<ComputeKind, Code> {
    if kind >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT || engine != 0 {
        return Err(INVALID_ARGUMENT);
    }
    let profile = mig_profile(gpu, instance.profile_id).map_err(|_| UNKNOWN)?;
    let offered = profile.compute_profiles();
    let (id, slices) = offered
        .into_iter()
        .find(|&(id, _)| id == kind)
        .ok_or(NOT_SUPPORTED)?;
    Ok(ComputeKind {
        profile,
        id,
        slices,
        max_count: profile.compute_starts(slices).len() as u32,
        multiprocessors: profile.multiprocessors * slices / profile.slices,
    })
}

fn put_compute_kind(
    kind: &ComputeKind,
    info: &OutPointer<nvmlComputeInstanceProfileInfo_v2_t>,
) -> Result<(), Code> {
    let (version, profile) = (info.version()?, &kind.profile);
    let as_instance = ComputeInstance {
        id: 0,
        profile_id: kind.id,
        start: 0,
        size: kind.slices,
        uuid: String::new(),
    };
    let name: [c_char; 96] = fixed_text(&format!("MIG {}", mig_device_name(profile, &as_instance)));
    if version == struct_version::<nvmlComputeInstanceProfileInfo_v2_t>(2) {
        return info.put(nvmlComputeInstanceProfileInfo_v2_t {
            version,
            id: kind.id,
            sliceCount: kind.slices,
            instanceCount: kind.max_count,
            multiprocessorCount: kind.multiprocessors,
            sharedCopyEngineCount: profile.copy_engines,
            sharedDecoderCount: profile.decoders,
            sharedEncoderCount: 0,
            sharedJpegCount: profile.jpeg_engines,
            sharedOfaCount: profile.ofa_engines,
            name,
        });
    }
    if version != struct_version::<nvmlComputeInstanceProfileInfo_v3_t>(3) {
        return Err(ARGUMENT_VERSION_MISMATCH);
    }
    info.cast::<nvmlComputeInstanceProfileInfo_v3_t>()
        .put(nvmlComputeInstanceProfileInfo_v3_t {
            version,
            id: kind.id,
            sliceCount: kind.slices,
            instanceCount: kind.max_count,
            multiprocessorCount: kind.multiprocessors,
            sharedCopyEngineCount: profile.copy_engines,
            sharedDecoderCount: profile.decoders,
            sharedEncoderCount: 0,
            sharedJpegCount: profile.jpeg_engines,
            sharedOfaCount: profile.ofa_engines,
            name,
            capabilities: 0,
        })
}

fn create_instance(
    device: Handle,
    profile_id: c_uint,
    start: Option<u32>,
    out: OutPointer<Handle>,
) -> Result<(), Code> {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    let uuid = ask(device, |_, gpu| {
        require_enabled(gpu).map(|()| gpu.uuid.clone())
    })?;
    let id = library::change_gpu(&uuid, Some(EventKind::MigConfigChange), |gpu| {
        mig::create_gpu_instance(gpu, profile_id, start).map_err(code_of)
    })?;
    out.put(library::handle_for(HandleTarget::GpuInstance(uuid, id)))
}

fn create_compute(
    instance: Handle,
    profile_id: c_uint,
    start: Option<u32>,
    out: OutPointer<Handle>,
) -> Result<(), Code> {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    let (uuid, instance_id) = ask_instance(instance, |gpu, instance| {
        Ok((gpu.uuid.clone(), instance.id))
    })?;
    let id = library::change_gpu(&uuid, Some(EventKind::MigConfigChange), |gpu| {
        mig::create_compute_instance(gpu, instance_id, profile_id, start).map_err(code_of)
    })?;
    out.put(library::handle_for(HandleTarget::ComputeInstance(
        uuid,
        instance_id,
        id,
    )))
}

fn put_compute_info(
    compute: Handle,
    info: &OutPointer<nvmlComputeInstanceInfo_t>,
) -> Result<(), Code> {
    ask_compute(compute, |gpu, instance, compute| {
        info.put(nvmlComputeInstanceInfo_t {
            device: library::handle_of(&gpu.uuid) as nvmlDevice_t,
            gpuInstance: handle_of_instance(gpu, instance.id) as nvmlGpuInstance_t,
            id: compute.id,
            profileId: compute.profile_id,
            placement: nvmlComputeInstancePlacement_t {
                start: compute.start,
                size: compute.size,
            },
        })
    })
}

fn ask_compute<T>(
    handle: Handle,
    question: impl FnOnce(&Gpu, &GpuInstance, &ComputeInstance) -> Result<T, Code>,
) -> Result<T, Code> {
    let HandleTarget::ComputeInstance(uuid, instance, id) = named(handle)? else {
        return Err(INVALID_ARGUMENT);
    };
    let instance = library::handle_for(HandleTarget::GpuInstance(uuid, instance));
    ask_instance(instance, |gpu, instance| {
        let mut computes = instance.compute.iter();
        let compute = computes.find(|compute| compute.id == id);
        question(gpu, instance, compute.ok_or(NOT_FOUND)?)
    })
}

fn handle_of_instance(gpu: &Gpu, id: u32) -> Handle {
    library::handle_for(HandleTarget::GpuInstance(gpu.uuid.clone(), id))
}

fn handle_of_compute(gpu: &Gpu, instance: u32, id: u32) -> Handle {
    library::handle_for(HandleTarget::ComputeInstance(
        gpu.uuid.clone(),
        instance,
        id,
    ))
}

/// NVML's two-step: a null array asks for the count.
fn give_all<T: Copy>(
    found: Vec<T>,
    count: &OutPointer<c_uint>,
    array: &OutPointer<T>,
) -> Result<(), Code> {
    if array.is_null() {
        return count.put(found.len() as c_uint);
    }
    let room = count.get()? as usize;
    count.put(found.len() as c_uint)?;
    if found.len() > room {
        return Err(INSUFFICIENT_SIZE);
    }
    array.put_all(room, &found)
}
