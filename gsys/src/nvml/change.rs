//! What gpupool changes on a GPU: its MIG cut and its compute mode. Each change is one step that the driver does wholly or not
//! at all; a daemon that is killed between two finds what stands by discovery. Never chooses what to change.

use std::ptr::null_mut;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError as Answer;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT as MODE_DEFAULT,
    nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS as MODE_EXCLUSIVE,
    nvmlComputeMode_enum_NVML_COMPUTEMODE_PROHIBITED as MODE_PROHIBITED, nvmlGpuInstance_t,
    nvmlGpuInstancePlacement_t, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
};
use serde::{Deserialize, Serialize};

use super::answer::check;
use super::error::Refusal;
use super::facts::ComputeMode;
use super::mig::{compute_profile, instance_info, read_profiles};

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Switching either way destroys all instances. Refused as in use while anything holds the GPU.
    MigMode(bool),
    /// A GPU instance by the driver's profile number, at a memory slice or where the driver likes it. Its id is told.
    MakeInstance {
        profile_id: u32,
        start: Option<u32>,
    },
    /// One compute instance of so many slices in a GPU instance. Its id is told.
    MakeDevice {
        gpu_instance_id: u32,
        compute_slices: u32,
    },
    /// Only where no process is in it.
    DestroyDevice {
        gpu_instance_id: u32,
        compute_instance_id: u32,
    },
    /// Only where no compute instance is in it.
    DestroyInstance {
        gpu_instance_id: u32,
    },
    ComputeMode(ComputeMode),
}

impl Change {
    /// For messages.
    pub(super) fn doing(&self) -> &'static str {
        match self {
            Change::MigMode(_) => "switching the MIG mode",
            Change::MakeInstance { .. } => "making a GPU instance",
            Change::MakeDevice { .. } => "making a compute instance",
            Change::DestroyDevice { .. } => "destroying a compute instance",
            Change::DestroyInstance { .. } => "destroying a GPU instance",
            Change::ComputeMode(_) => "setting the compute mode",
        }
    }
}

/// Does it, and tells the id of what was made.
pub fn apply(device: &Device<'_>, change: &Change) -> Result<Option<u32>, Answer> {
    match *change {
        Change::MigMode(on) => set_mig_mode(device, on).map(|()| None),
        Change::MakeInstance { profile_id, start } => {
            make_instance(device, profile_id, start).map(Some)
        }
        Change::MakeDevice {
            gpu_instance_id,
            compute_slices,
        } => make_device(device, gpu_instance_id, compute_slices).map(Some),
        Change::DestroyDevice {
            gpu_instance_id,
            compute_instance_id,
        } => destroy_device(device, gpu_instance_id, compute_instance_id).map(|()| None),
        Change::DestroyInstance { gpu_instance_id } => {
            destroy_instance(device, gpu_instance_id).map(|()| None)
        }
        Change::ComputeMode(mode) => set_compute_mode(device, mode).map(|()| None),
    }
}

/// A refusal, where the answer is one and not a failure of the library.
pub fn refusal(answer: &Answer) -> Option<Refusal> {
    match answer {
        Answer::InUse => Some(Refusal::InUse),
        Answer::InsufficientMemory => Some(Refusal::NoRoom),
        Answer::NoPermission => Some(Refusal::NoPermission),
        Answer::NotFound => Some(Refusal::NotThere),
        Answer::NotSupported
        | Answer::InvalidArg
        | Answer::FunctionNotFound
        | Answer::FailedToLoadSymbol(_) => Some(Refusal::NotSupported),
        _ => None,
    }
}

/// A mode that would only come with a reset is taken back: what is in use must not lose its GPU at some later reset.
fn set_mig_mode(device: &Device<'_>, on: bool) -> Result<(), Answer> {
    match device.set_mig_mode(on)? {
        SUCCESS => Ok(()),
        activation => {
            let _ = device.set_mig_mode(!on);
            check(activation).and(Err(Answer::Unknown))
        }
    }
}

fn make_instance(device: &Device<'_>, profile_id: u32, start: Option<u32>) -> Result<u32, Answer> {
    let lib = device.nvml().lib();
    let mut instance = null_mut();
    // SAFETY: the handle is of the library the functions come from, and the other pointers are to live values.
    let code = unsafe {
        match (
            start,
            &lib.nvmlDeviceCreateGpuInstance,
            &lib.nvmlDeviceCreateGpuInstanceWithPlacement,
        ) {
            (None, Ok(create), _) => create(device.handle(), profile_id, &mut instance),
            (Some(start), _, Ok(create)) => {
                let size = placement_size(device, profile_id, start)?;
                let place = nvmlGpuInstancePlacement_t { start, size };
                create(device.handle(), profile_id, &place, &mut instance)
            }
            _ => return Err(Answer::FunctionNotFound),
        }
    };
    check(code)?;
    instance_info(device, instance).map(|info| info.id)
}

/// The driver wants start and size of one of the places it offers.
fn placement_size(device: &Device<'_>, profile_id: u32, start: u32) -> Result<u32, Answer> {
    let profiles = read_profiles(device)?;
    let profile = profiles
        .iter()
        .find(|profile| profile.id == profile_id && profile.starts.contains(&start));
    profile
        .map(|profile| profile.memory_slices)
        .ok_or(Answer::InvalidArg)
}

fn make_device(
    device: &Device<'_>,
    gpu_instance_id: u32,
    compute_slices: u32,
) -> Result<u32, Answer> {
    let instance = instance_by_id(device, gpu_instance_id)?;
    let profile = compute_profile(compute_slices).ok_or(Answer::InvalidArg)?;
    let lib = device.nvml().lib();
    let (Ok(create), Ok(info)) = (
        &lib.nvmlGpuInstanceCreateComputeInstance,
        &lib.nvmlComputeInstanceGetInfo_v2,
    ) else {
        return Err(Answer::FunctionNotFound);
    };
    // SAFETY: the instance's handle is of this library, all zero is a value of a structure of numbers and pointers, and the
    // other pointers are to live values.
    unsafe {
        let mut compute = null_mut();
        check(create(instance, profile, &mut compute))?;
        let mut told = std::mem::zeroed();
        check(info(compute, &mut told))?;
        Ok(told.id)
    }
}

fn destroy_device(
    device: &Device<'_>,
    gpu_instance_id: u32,
    compute_instance_id: u32,
) -> Result<(), Answer> {
    let instance = instance_by_id(device, gpu_instance_id)?;
    let lib = device.nvml().lib();
    let (Ok(by_id), Ok(destroy)) = (
        &lib.nvmlGpuInstanceGetComputeInstanceById,
        &lib.nvmlComputeInstanceDestroy,
    ) else {
        return Err(Answer::FunctionNotFound);
    };
    let mut compute: nvmlComputeInstance_t = null_mut();
    // SAFETY: both handles are of this library, and the pointer is to a live handle.
    unsafe {
        check(by_id(instance, compute_instance_id, &mut compute))?;
        check(destroy(compute))
    }
}

fn destroy_instance(device: &Device<'_>, gpu_instance_id: u32) -> Result<(), Answer> {
    let instance = instance_by_id(device, gpu_instance_id)?;
    let Ok(destroy) = &device.nvml().lib().nvmlGpuInstanceDestroy else {
        return Err(Answer::FunctionNotFound);
    };
    // SAFETY: the handle was just given out by this library.
    check(unsafe { destroy(instance) })
}

fn instance_by_id(device: &Device<'_>, gpu_instance_id: u32) -> Result<nvmlGpuInstance_t, Answer> {
    let Ok(by_id) = &device.nvml().lib().nvmlDeviceGetGpuInstanceById else {
        return Err(Answer::FunctionNotFound);
    };
    let mut instance = null_mut();
    // SAFETY: the handle is of the library the function comes from, and the pointer is to a live handle.
    let code = unsafe { by_id(device.handle(), gpu_instance_id, &mut instance) };
    check(code).map(|()| instance)
}

fn set_compute_mode(device: &Device<'_>, mode: ComputeMode) -> Result<(), Answer> {
    let Ok(set) = &device.nvml().lib().nvmlDeviceSetComputeMode else {
        return Err(Answer::FunctionNotFound);
    };
    let mode = match mode {
        ComputeMode::Default => MODE_DEFAULT,
        ComputeMode::ExclusiveProcess => MODE_EXCLUSIVE,
        ComputeMode::Prohibited => MODE_PROHIBITED,
    };
    // SAFETY: the handle is of the library the function comes from.
    check(unsafe { set(device.handle(), mode) })
}
