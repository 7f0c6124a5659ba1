//! Where a GPU sits in its host: the way to another GPU over PCIe, and the memory nodes and processors near it.

use std::ffi::{c_uint, c_ulong};

use nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT;

use super::{Handle, INSUFFICIENT_SIZE, NOT_SUPPORTED, OutPointer};
use crate::library::{self, Code, ask, enumerated};
use crate::state::Gpu;

// nvmlGpuTopologyLevel_t: same device, several PCIe switches between, same host bridge's node, across the sockets.
const SAME_DEVICE: c_uint = 0;
const SAME_SWITCH: c_uint = 20;
const SAME_NODE: c_uint = 40;
const WHOLE_SYSTEM: c_uint = 50;

nvml_functions! {
    fn nvmlDeviceGetTopologyCommonAncestor(device: Handle, other: Handle, level: OutPointer<c_uint>) {
        let other = ask(other, |_, gpu| Ok(gpu.clone()))?;
        ask(device, |_, gpu| level.put(level_between(gpu, &other)))
    }

    fn nvmlDeviceGetTopologyNearestGpus(device: Handle, level: c_uint, count: OutPointer<c_uint>, devices: OutPointer<Handle>) {
        ask(device, |state, gpu| {
            let near = enumerated(state).filter(|other| other.uuid != gpu.uuid && level_between(gpu, other) <= level);
            give_all(near.map(|other| other.uuid.as_str()), &count, &devices)
        })
    }

    fn nvmlSystemGetTopologyGpuSet(cpu: c_uint, count: OutPointer<c_uint>, devices: OutPointer<Handle>) {
        let state = library::state()?;
        let near = |gpu: &&Gpu| gpu.near_cpus.is_some_and(|[first, last]| (first..=last).contains(&cpu));
        give_all(enumerated(&state).filter(near).map(|gpu| gpu.uuid.as_str()), &count, &devices)
    }

    fn nvmlDeviceGetMemoryAffinity(device: Handle, words: c_uint, nodes: OutPointer<c_ulong>, _scope: c_uint) {
        ask(device, |_, gpu| {
            let node = gpu.numa_node.ok_or(NOT_SUPPORTED)?;
            put_mask(node..=node, words, &nodes)
        })
    }

    fn nvmlDeviceGetCpuAffinity(device: Handle, words: c_uint, cpus: OutPointer<c_ulong>) { ask(device, |_, gpu| put_cpus(gpu, words, &cpus)) }

    fn nvmlDeviceGetCpuAffinityWithinScope(device: Handle, words: c_uint, cpus: OutPointer<c_ulong>, _scope: c_uint) {
        ask(device, |_, gpu| put_cpus(gpu, words, &cpus))
    }
}

fn level_between(one: &Gpu, other: &Gpu) -> c_uint {
    if one.uuid == other.uuid {
        SAME_DEVICE
    } else if one.pcie_switch.is_some() && one.pcie_switch == other.pcie_switch {
        SAME_SWITCH
    } else if one.numa_node == other.numa_node {
        SAME_NODE
    } else {
        WHOLE_SYSTEM
    }
}

/// NVML's two-step for handles: a null array asks for the count.
fn give_all<'a>(
    uuids: impl Iterator<Item = &'a str>,
    count: &OutPointer<c_uint>,
    devices: &OutPointer<Handle>,
) -> Result<(), Code> {
    let handles: Vec<Handle> = uuids.map(library::handle_of).collect();
    let room = count.get()? as usize;
    count.put(handles.len() as c_uint)?;
    if devices.is_null() {
        return Ok(());
    }
    if handles.len() > room {
        return Err(INSUFFICIENT_SIZE);
    }
    devices.put_all(room, &handles)
}

fn put_cpus(gpu: &Gpu, words: c_uint, cpus: &OutPointer<c_ulong>) -> Result<(), Code> {
    let [first, last] = gpu.near_cpus.ok_or(NOT_SUPPORTED)?;
    put_mask(first..=last, words, cpus)
}

fn put_mask(
    bits: std::ops::RangeInclusive<u32>,
    words: c_uint,
    mask: &OutPointer<c_ulong>,
) -> Result<(), Code> {
    if words == 0 || words > 1024 {
        return Err(INVALID_ARGUMENT);
    }
    let mut filled: Vec<c_ulong> = vec![0; words as usize];
    for bit in bits {
        let word = filled.get_mut((bit / c_ulong::BITS) as usize);
        *word.ok_or(INSUFFICIENT_SIZE)? |= 1 << (bit % c_ulong::BITS);
    }
    mask.put_all(words as usize, &filled)
}
