//! How GPUs reach each other: NVLink, peer access, the way over PCIe, the fabric.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_STATE_COMPLETED, NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, nvmlGpuFabricInfo_t,
    nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK as P2P_NVLINK,
    nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_UNKNOWN as P2P_UNKNOWN,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED as P2P_NOT_SUPPORTED,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK as P2P_OK,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as TO_SWITCH, nvmlPciInfo_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
};

use super::{Handle, NOT_SUPPORTED, Out, fixed_text};
use crate::library::{Code, ask};
use crate::state::Gpu;

// nvmlGpuTopologyLevel_t: same device, same host bridge's node, across the sockets.
const SAME_DEVICE: c_uint = 0;
const SAME_NODE: c_uint = 40;
const WHOLE_SYSTEM: c_uint = 50;

nvml_functions! {
    fn nvmlDeviceGetNvLinkState(device: Handle, link: c_uint, active: Out<c_uint>) {
        ask(device, |_, gpu| {
            require_link(gpu, link)?;
            active.put((!gpu.nvlinks_down.contains(&link)).into())
        })
    }

    fn nvmlDeviceGetNvLinkVersion(device: Handle, link: c_uint, version: Out<c_uint>) {
        ask(device, |_, gpu| {
            require_link(gpu, link)?;
            version.put(match gpu.architecture {
                0..=7 => 3,
                8..=9 => 4,
                _ => 5,
            })
        })
    }

    fn nvmlDeviceGetNvLinkCapability(device: Handle, link: c_uint, capability: c_uint, has: Out<c_uint>) {
        ask(device, |_, gpu| {
            require_link(gpu, link)?;
            // P2P, atomics and "valid" yes; system memory over NVLink and SLI no.
            has.put(matches!(capability, 0 | 2 | 5).into())
        })
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(device: Handle, link: c_uint, kind: Out<c_uint>) {
        ask(device, |_, gpu| {
            require_link(gpu, link)?;
            kind.put(TO_SWITCH)
        })
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Handle, link: c_uint, pci: Out<nvmlPciInfo_t>) {
        ask(device, |_, gpu| {
            require_link(gpu, link)?;
            pci.put(switch_address(link))
        })
    }

    fn nvmlDeviceGetNvLinkErrorCounter(device: Handle, link: c_uint, counter: c_uint, count: Out<c_ulonglong>) {
        ask(device, |_, gpu| {
            require_link(gpu, link)?;
            match counter {
                // All errors of a board are told as CRC errors of its first link.
                2 => count.put(if link == 0 { gpu.nvlink_errors } else { 0 }),
                0 | 1 | 3 => count.put(0),
                _ => Err(NOT_SUPPORTED),
            }
        })
    }

    fn nvmlDeviceGetP2PStatus(device: Handle, other: Handle, capability: c_uint, status: Out<c_uint>) {
        let other = ask(other, |_, gpu| Ok(gpu.clone()))?;
        ask(device, |_, gpu| match capability {
            P2P_NVLINK if !joined_by_nvlink(gpu, &other) => status.put(P2P_NOT_SUPPORTED),
            0..P2P_UNKNOWN => status.put(P2P_OK),
            _ => Err(INVALID_ARGUMENT),
        })
    }

    fn nvmlDeviceGetTopologyCommonAncestor(device: Handle, other: Handle, level: Out<c_uint>) {
        let other = ask(other, |_, gpu| Ok(gpu.clone()))?;
        ask(device, |_, gpu| level.put(if gpu.uuid == other.uuid {
            SAME_DEVICE
        } else if gpu.numa_node == other.numa_node {
            SAME_NODE
        } else {
            WHOLE_SYSTEM
        }))
    }

    fn nvmlDeviceGetGpuFabricInfo(device: Handle, fabric: Out<nvmlGpuFabricInfo_t>) {
        ask(device, |_, gpu| {
            let in_fabric = gpu.nvlink_island.is_some() && gpu.architecture >= 9;
            let state = if in_fabric { NVML_GPU_FABRIC_STATE_COMPLETED } else { NVML_GPU_FABRIC_STATE_NOT_SUPPORTED };
            fabric.put(nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: SUCCESS, cliqueId: 0, state: state as u8 })
        })
    }
}

fn require_link(gpu: &Gpu, link: c_uint) -> Result<(), Code> {
    match gpu.nvlink_count {
        0 => Err(NOT_SUPPORTED),
        count if link >= count => Err(INVALID_ARGUMENT),
        _ => Ok(()),
    }
}

fn joined_by_nvlink(one: &Gpu, other: &Gpu) -> bool {
    let has_link = |gpu: &Gpu| (0..gpu.nvlink_count).any(|link| !gpu.nvlinks_down.contains(&link));
    one.nvlink_island.is_some()
        && one.nvlink_island == other.nvlink_island
        && one.uuid != other.uuid
        && has_link(one)
        && has_link(other)
}

/// The links of a board are spread over four switches.
fn switch_address(link: c_uint) -> nvmlPciInfo_t {
    let bus = 5 + link % 4;
    nvmlPciInfo_t {
        busIdLegacy: fixed_text(&format!("0000:{bus:02X}:00.0")),
        domain: 0,
        bus,
        device: 0,
        pciDeviceId: 0x22A3_10DE,
        pciSubSystemId: 0,
        busId: fixed_text(&format!("00000000:{bus:02X}:00.0")),
    }
}
