//! The GPUs: handles, names, numbers, memory, compute mode.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlBrandType_enum_NVML_BRAND_NVIDIA as BRAND_NVIDIA,
    nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT as MODE_DEFAULT,
    nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS as MODE_EXCLUSIVE,
    nvmlComputeMode_enum_NVML_COMPUTEMODE_PROHIBITED as MODE_PROHIBITED,
    nvmlEnableState_enum_NVML_FEATURE_ENABLED as ENABLED, nvmlMemory_t, nvmlMemory_v2_t,
    nvmlPciInfo_t,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as ARGUMENT_VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN,
};

use super::{Handle, OutPointer, Text, fixed_text, struct_version};
use crate::library::{self, Code, HandleTarget, Part, ask, ask_device, enumerated, part_of};
use crate::mig::{mig_device_name, mig_profile};
use crate::state::{ComputeMode, Gpu, Process};

nvml_functions! {
    fn nvmlDeviceGetCount_v2(count: OutPointer<c_uint>) { count.put(enumerated(&*library::state()?).count() as c_uint) }

    fn nvmlDeviceGetCount(count: OutPointer<c_uint>) { count.put(enumerated(&*library::state()?).count() as c_uint) }

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: OutPointer<Handle>) {
        let state = library::state()?;
        give(enumerated(&state).nth(index as usize).ok_or(INVALID_ARGUMENT)?, device)
    }

    fn nvmlDeviceGetHandleByIndex(index: c_uint, device: OutPointer<Handle>) {
        let state = library::state()?;
        give(enumerated(&state).nth(index as usize).ok_or(INVALID_ARGUMENT)?, device)
    }

    fn nvmlDeviceGetHandleByUUID(uuid: Text, device: OutPointer<Handle>) {
        let uuid = uuid.read()?;
        if !uuid.starts_with("MIG-") {
            return find(device, uuid, |gpu, wanted| gpu.uuid == wanted);
        }
        let state = library::state()?;
        let parent = enumerated(&state).find(|gpu| part_of(gpu, &uuid).is_some()).ok_or(NOT_FOUND)?;
        if parent.faults.lost {
            return Err(GPU_IS_LOST);
        }
        device.put(library::handle_for(HandleTarget::MigDevice(uuid)))
    }

    fn nvmlDeviceGetHandleBySerial(serial: Text, device: OutPointer<Handle>) { find(device, serial.read()?, |gpu, wanted| gpu.serial == wanted) }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: Text, device: OutPointer<Handle>) {
        find(device, bus_id.read()?, |gpu, wanted| pci_address(&gpu.pci_bus_id).is_some_and(|place| pci_address(wanted) == Some(place)))
    }

    fn nvmlDeviceGetName(device: Handle, name: OutPointer<c_char>, length: c_uint) {
        ask_device(device, |_, gpu, part| match part {
            None => name.put_text(length, &gpu.name),
            Some(part) => name.put_text(length, &format!("{} MIG {}", gpu.name, part_name(gpu, part)?)),
        })
    }

    fn nvmlDeviceGetUUID(device: Handle, uuid: OutPointer<c_char>, length: c_uint) {
        ask_device(device, |_, gpu, part| uuid.put_text(length, part.map_or(&gpu.uuid, |part| &part.compute.uuid)))
    }

    fn nvmlDeviceGetVbiosVersion(device: Handle, version: OutPointer<c_char>, length: c_uint) {
        ask(device, |_, gpu| version.put_text(length, &format!("{:02X}.00.7C.00.01", 0x90 + gpu.architecture)))
    }

    fn nvmlDeviceGetInforomImageVersion(device: Handle, version: OutPointer<c_char>, length: c_uint) {
        ask(device, |_, gpu| version.put_text(length, &format!("G{:03}.0200.00.04", 500 + gpu.architecture)))
    }

    fn nvmlDeviceGetBoardPartNumber(device: Handle, number: OutPointer<c_char>, length: c_uint) {
        ask(device, |_, gpu| number.put_text(length, &format!("900-2G{:03X}-0000-000", gpu.pci_device_id >> 20)))
    }

    fn nvmlDeviceGetNumGpuCores(device: Handle, cores: OutPointer<c_uint>) {
        ask(device, |_, gpu| cores.put(gpu.multiprocessors * if gpu.compute_capability == [8, 0] || gpu.architecture < 7 { 64 } else { 128 }))
    }

    fn nvmlDeviceGetSerial(device: Handle, serial: OutPointer<c_char>, length: c_uint) { ask(device, |_, gpu| serial.put_text(length, &gpu.serial)) }

    fn nvmlDeviceGetBrand(device: Handle, brand: OutPointer<c_uint>) { ask(device, |_, _| brand.put(BRAND_NVIDIA)) }

    fn nvmlDeviceGetIndex(device: Handle, index: OutPointer<c_uint>) {
        ask(device, |state, gpu| {
            let position = enumerated(state).position(|other| other.uuid == gpu.uuid).ok_or(GPU_IS_LOST)?;
            index.put(position as c_uint)
        })
    }

    fn nvmlDeviceGetMinorNumber(device: Handle, minor: OutPointer<c_uint>) { ask(device, |_, gpu| minor.put(gpu.minor)) }

    fn nvmlDeviceGetBoardId(device: Handle, board: OutPointer<c_uint>) {
        ask(device, |_, gpu| board.put(pci_address(&gpu.pci_bus_id).map_or(0, |(_, bus, slot)| (bus << 8) | slot)))
    }

    fn nvmlDeviceGetMultiGpuBoard(device: Handle, multi: OutPointer<c_uint>) { ask(device, |_, _| multi.put(0)) }

    fn nvmlDeviceGetArchitecture(device: Handle, architecture: OutPointer<c_uint>) { ask(device, |_, gpu| architecture.put(gpu.architecture)) }

    fn nvmlDeviceGetCudaComputeCapability(device: Handle, major: OutPointer<c_int>, minor: OutPointer<c_int>) {
        ask(device, |_, gpu| {
            major.put(gpu.compute_capability[0])?;
            minor.put(gpu.compute_capability[1])
        })
    }

    fn nvmlDeviceGetPciInfo_v3(device: Handle, pci: OutPointer<nvmlPciInfo_t>) { ask(device, |_, gpu| pci.put(pci_info(gpu)?)) }

    fn nvmlDeviceGetMemoryInfo(device: Handle, memory: OutPointer<nvmlMemory_t>) {
        ask_device(device, |_, gpu, part| {
            // The old call counts what the driver reserves as used.
            let room = memory_room(gpu, part)?;
            let used = room.used.saturating_add(room.reserved).min(room.total);
            memory.put(nvmlMemory_t { total: room.total, free: room.total - used, used })
        })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: OutPointer<nvmlMemory_v2_t>) {
        ask_device(device, |_, gpu, part| {
            let version = struct_version::<nvmlMemory_v2_t>(2);
            if memory.get()?.version != version {
                return Err(ARGUMENT_VERSION_MISMATCH);
            }
            let room = memory_room(gpu, part)?;
            let reserved = room.reserved.min(room.total);
            let free = room.total.saturating_sub(reserved).saturating_sub(room.used);
            memory.put(nvmlMemory_v2_t { version, total: room.total, reserved, free, used: room.used })
        })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device: Handle, memory: OutPointer<nvmlBAR1Memory_t>) {
        ask(device, |_, gpu| {
            let total = gpu.memory_total_bytes.next_power_of_two();
            memory.put(nvmlBAR1Memory_t { bar1Total: total, bar1Free: total - (1 << 20), bar1Used: 1 << 20 })
        })
    }

    // Only where the GPU's own memory is a node of the host (Grace): not on these boards.
    fn nvmlDeviceGetNumaNodeId(device: Handle, _node: OutPointer<c_uint>) { ask(device, |_, _| Err(NOT_SUPPORTED)) }

    fn nvmlDeviceGetPersistenceMode(device: Handle, mode: OutPointer<c_uint>) { ask(device, |_, _| mode.put(ENABLED)) }

    fn nvmlDeviceGetComputeMode(device: Handle, mode: OutPointer<c_uint>) {
        ask(device, |_, gpu| mode.put(match gpu.compute_mode {
            ComputeMode::Default => MODE_DEFAULT,
            ComputeMode::ExclusiveProcess => MODE_EXCLUSIVE,
            ComputeMode::Prohibited => MODE_PROHIBITED,
        }))
    }

    fn nvmlDeviceSetComputeMode(device: Handle, mode: c_uint) {
        let mode = match mode {
            MODE_DEFAULT => ComputeMode::Default,
            MODE_EXCLUSIVE => ComputeMode::ExclusiveProcess,
            MODE_PROHIBITED => ComputeMode::Prohibited,
            _ => return Err(INVALID_ARGUMENT),
        };
        library::change(device, |gpu| {
            gpu.compute_mode = mode;
            Ok(())
        })
    }
}

/// Gives out the handle of an enumerated GPU, as NVML does unless the GPU is lost.
fn give(gpu: &Gpu, device: OutPointer<Handle>) -> Result<(), Code> {
    if gpu.faults.lost {
        return Err(GPU_IS_LOST);
    }
    device.put(library::handle_of(&gpu.uuid))
}

fn find(
    device: OutPointer<Handle>,
    wanted: String,
    is_it: impl Fn(&Gpu, &str) -> bool,
) -> Result<(), Code> {
    let state = library::state()?;
    give(
        enumerated(&state)
            .find(|gpu| is_it(gpu, &wanted))
            .ok_or(NOT_FOUND)?,
        device,
    )
}

struct MemoryRoom {
    total: u64,
    reserved: u64,
    used: u64,
}

/// The memory of a GPU, or of the MIG device that was asked.
fn memory_room(gpu: &Gpu, part: Option<Part<'_>>) -> Result<MemoryRoom, Code> {
    let inside = |process: &&Process| match part {
        None => true,
        Some(part) => process.instance.is_some_and(|at| at[0] == part.instance.id),
    };
    let processes: u64 = gpu
        .processes
        .iter()
        .filter(inside)
        .map(|process| process.memory_bytes)
        .sum();
    let Some(part) = part else {
        let room = gpu
            .memory_total_bytes
            .saturating_sub(gpu.memory_reserved_bytes);
        return Ok(MemoryRoom {
            total: gpu.memory_total_bytes,
            reserved: gpu.memory_reserved_bytes,
            used: gpu.readings.memory_used_bytes.max(processes).min(room),
        });
    };
    let profile = mig_profile(gpu, part.instance.profile_id).map_err(|_| UNKNOWN)?;
    let total = profile.memory_mib << 20;
    Ok(MemoryRoom {
        total,
        reserved: 0,
        used: processes.min(total),
    })
}

/// `1g.10gb`, or `1c.3g.40gb`.
fn part_name(gpu: &Gpu, part: Part<'_>) -> Result<String, Code> {
    let profile = mig_profile(gpu, part.instance.profile_id).map_err(|_| UNKNOWN)?;
    Ok(mig_device_name(&profile, part.compute))
}

/// Fills NVML's structure from `pci_bus_id`; an address that is none is a fault of the state.
pub fn pci_info(gpu: &Gpu) -> Result<nvmlPciInfo_t, Code> {
    let (domain, bus, device) = pci_address(&gpu.pci_bus_id).ok_or(UNKNOWN)?;
    Ok(nvmlPciInfo_t {
        busIdLegacy: fixed_text(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        pciDeviceId: gpu.pci_device_id,
        pciSubSystemId: gpu.pci_device_id,
        busId: fixed_text(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
    })
}

/// Domain, bus and device of `0000:1b:00.0`, `00000000:1B:00.0` or `1B:00.0`.
fn pci_address(text: &str) -> Option<(c_uint, c_uint, c_uint)> {
    let place = text
        .rsplit_once('.')
        .map_or(text, |(place, _function)| place);
    let hex = |word: &str| c_uint::from_str_radix(word, 16).ok();
    match place.split(':').collect::<Vec<_>>()[..] {
        [domain, bus, device] => Some((hex(domain)?, hex(bus)?, hex(device)?)),
        [bus, device] => Some((0, hex(bus)?, hex(device)?)),
        _ => None,
    }
}
