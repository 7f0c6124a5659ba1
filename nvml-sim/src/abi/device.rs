//! Which GPUs there are and what they are: handles, names, numbers, memory, MIG mode, compute mode.

use std::ffi::{c_char, c_int, c_uint, c_ulong};

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

use super::{Handle, Out, Text, fixed_text};
use crate::library::{self, Code, ask, enumerated};
use crate::state::{ComputeMode, Gpu};

nvml_functions! {
    fn nvmlDeviceGetCount_v2(count: Out<c_uint>) { count.put(enumerated(&*library::state()?).count() as c_uint) }

    fn nvmlDeviceGetCount(count: Out<c_uint>) { count.put(enumerated(&*library::state()?).count() as c_uint) }

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Handle>) {
        let state = library::state()?;
        give(enumerated(&state).nth(index as usize).ok_or(INVALID_ARGUMENT)?, device)
    }

    fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<Handle>) { find(device, uuid.read()?, |gpu, wanted| gpu.uuid == wanted) }

    fn nvmlDeviceGetHandleBySerial(serial: Text, device: Out<Handle>) { find(device, serial.read()?, |gpu, wanted| gpu.serial == wanted) }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: Text, device: Out<Handle>) {
        find(device, bus_id.read()?, |gpu, wanted| pci_address(&gpu.pci_bus_id).is_some_and(|place| pci_address(wanted) == Some(place)))
    }

    fn nvmlDeviceGetName(device: Handle, name: Out<c_char>, length: c_uint) { ask(device, |_, gpu| name.put_text(length, &gpu.name)) }

    fn nvmlDeviceGetUUID(device: Handle, uuid: Out<c_char>, length: c_uint) { ask(device, |_, gpu| uuid.put_text(length, &gpu.uuid)) }

    fn nvmlDeviceGetSerial(device: Handle, serial: Out<c_char>, length: c_uint) { ask(device, |_, gpu| serial.put_text(length, &gpu.serial)) }

    fn nvmlDeviceGetBrand(device: Handle, brand: Out<c_uint>) { ask(device, |_, _| brand.put(BRAND_NVIDIA)) }

    fn nvmlDeviceGetIndex(device: Handle, index: Out<c_uint>) {
        ask(device, |state, gpu| {
            let position = enumerated(state).position(|other| other.uuid == gpu.uuid).ok_or(GPU_IS_LOST)?;
            index.put(position as c_uint)
        })
    }

    fn nvmlDeviceGetMinorNumber(device: Handle, minor: Out<c_uint>) { ask(device, |_, gpu| minor.put(gpu.minor)) }

    fn nvmlDeviceGetBoardId(device: Handle, board: Out<c_uint>) {
        ask(device, |_, gpu| board.put(pci_address(&gpu.pci_bus_id).map_or(0, |(_, bus, slot)| (bus << 8) | slot)))
    }

    fn nvmlDeviceGetMultiGpuBoard(device: Handle, multi: Out<c_uint>) { ask(device, |_, _| multi.put(0)) }

    fn nvmlDeviceGetArchitecture(device: Handle, architecture: Out<c_uint>) { ask(device, |_, gpu| architecture.put(gpu.architecture)) }

    fn nvmlDeviceGetCudaComputeCapability(device: Handle, major: Out<c_int>, minor: Out<c_int>) {
        ask(device, |_, gpu| {
            major.put(gpu.compute_capability[0])?;
            minor.put(gpu.compute_capability[1])
        })
    }

    fn nvmlDeviceGetPciInfo_v3(device: Handle, pci: Out<nvmlPciInfo_t>) { ask(device, |_, gpu| pci.put(pci_info(gpu)?)) }

    fn nvmlDeviceGetMemoryInfo(device: Handle, memory: Out<nvmlMemory_t>) {
        ask(device, |_, gpu| {
            // The old call counts what the driver reserves as used.
            let used = memory_used(gpu).saturating_add(gpu.memory_reserved_bytes).min(gpu.memory_total_bytes);
            memory.put(nvmlMemory_t { total: gpu.memory_total_bytes, free: gpu.memory_total_bytes - used, used })
        })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: Out<nvmlMemory_v2_t>) {
        ask(device, |_, gpu| {
            let version = (size_of::<nvmlMemory_v2_t>() | (2 << 24)) as c_uint;
            if memory.get()?.version != version {
                return Err(ARGUMENT_VERSION_MISMATCH);
            }
            let used = memory_used(gpu);
            let reserved = gpu.memory_reserved_bytes.min(gpu.memory_total_bytes);
            let free = gpu.memory_total_bytes.saturating_sub(reserved).saturating_sub(used);
            memory.put(nvmlMemory_v2_t { version, total: gpu.memory_total_bytes, reserved, free, used })
        })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device: Handle, memory: Out<nvmlBAR1Memory_t>) {
        ask(device, |_, gpu| {
            let total = gpu.memory_total_bytes.next_power_of_two();
            memory.put(nvmlBAR1Memory_t { bar1Total: total, bar1Free: total - (1 << 20), bar1Used: 1 << 20 })
        })
    }

    // Only where the GPU's own memory is a node of the host (Grace): not on these boards.
    fn nvmlDeviceGetNumaNodeId(device: Handle, _node: Out<c_uint>) { ask(device, |_, _| Err(NOT_SUPPORTED)) }

    fn nvmlDeviceGetMemoryAffinity(device: Handle, words: c_uint, nodes: Out<c_ulong>, _scope: c_uint) {
        ask(device, |_, gpu| {
            let node = gpu.numa_node.ok_or(NOT_SUPPORTED)? as usize;
            let mut mask = vec![0; words as usize];
            *mask.get_mut(node / c_ulong::BITS as usize).ok_or(super::INSUFFICIENT_SIZE)? = 1 << (node % c_ulong::BITS as usize);
            nodes.put_all(words as usize, &mask)
        })
    }

    fn nvmlDeviceGetPersistenceMode(device: Handle, mode: Out<c_uint>) { ask(device, |_, _| mode.put(ENABLED)) }

    fn nvmlDeviceGetComputeMode(device: Handle, mode: Out<c_uint>) {
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
        library::change(device, |gpu| gpu.compute_mode = mode)
    }

    fn nvmlDeviceGetMigMode(device: Handle, current: Out<c_uint>, pending: Out<c_uint>) {
        ask(device, |_, gpu| {
            if !gpu.mig_capable {
                return Err(NOT_SUPPORTED);
            }
            current.put(gpu.mig_enabled.into())?;
            pending.put(gpu.mig_enabled.into())
        })
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: Out<c_uint>) { ask(device, |_, gpu| count.put(if gpu.mig_enabled { 7 } else { 0 })) }

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, _index: c_uint, _mig: Out<Handle>) {
        ask(device, |_, gpu| Err(if gpu.mig_capable { NOT_FOUND } else { NOT_SUPPORTED }))
    }

    fn nvmlDeviceIsMigDeviceHandle(device: Handle, is_mig: Out<c_uint>) { ask(device, |_, _| is_mig.put(0)) }
}

/// Gives out the handle of an enumerated GPU, as NVML does unless the GPU is lost.
fn give(gpu: &Gpu, device: Out<Handle>) -> Result<(), Code> {
    if gpu.faults.lost {
        return Err(GPU_IS_LOST);
    }
    device.put(library::handle_of(&gpu.uuid))
}

fn find(
    device: Out<Handle>,
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

fn memory_used(gpu: &Gpu) -> u64 {
    let processes: u64 = gpu
        .processes
        .iter()
        .map(|process| process.memory_bytes)
        .sum();
    gpu.readings.memory_used_bytes.max(processes).min(
        gpu.memory_total_bytes
            .saturating_sub(gpu.memory_reserved_bytes),
    )
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
