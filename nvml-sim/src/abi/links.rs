//! NVLink: links, the GPU or switch at the other end, errors, peer access, and the fabric.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_STATE_COMPLETED, NVML_GPU_FABRIC_STATE_IN_PROGRESS,
    NVML_GPU_FABRIC_STATE_NOT_STARTED, NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, nvmlGpuFabricInfo_t,
    nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t,
    nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK as P2P_NVLINK,
    nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_UNKNOWN as P2P_UNKNOWN,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED as P2P_NOT_SUPPORTED,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK as P2P_OK,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU as TO_GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as TO_SWITCH, nvmlPciInfo_t,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as ARGUMENT_VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN,
};

use super::device::pci_info;
use super::{Handle, NOT_SUPPORTED, OutPointer, fixed_text, struct_version};
use crate::library::{self, Code, ask};
use crate::state::{FabricState, Gpu, State};

nvml_functions! {
    fn nvmlDeviceGetNvLinkState(device: Handle, link: c_uint, active: OutPointer<c_uint>) {
        ask(device, |_, gpu| {
            require_link(gpu, link)?;
            active.put((!gpu.nvlinks_down.contains(&link)).into())
        })
    }

    fn nvmlDeviceGetNvLinkVersion(device: Handle, link: c_uint, version: OutPointer<c_uint>) {
        ask(device, |_, gpu| {
            require_link(gpu, link)?;
            version.put(match gpu.architecture {
                0..=7 => 3,
                8..=9 => 4,
                _ => 5,
            })
        })
    }

    fn nvmlDeviceGetNvLinkCapability(device: Handle, link: c_uint, capability: c_uint, has: OutPointer<c_uint>) {
        ask(device, |_, gpu| {
            require_link(gpu, link)?;
            // P2P, atomics and "valid" yes; system memory over NVLink and SLI no.
            has.put(matches!(capability, 0 | 2 | 5).into())
        })
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(device: Handle, link: c_uint, kind: OutPointer<c_uint>) {
        ask(device, |_, gpu| {
            require_link(gpu, link)?;
            kind.put(if gpu.nvlink_peer_slots.is_empty() { TO_SWITCH } else { TO_GPU })
        })
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Handle, link: c_uint, pci: OutPointer<nvmlPciInfo_t>) {
        ask(device, |state, gpu| {
            require_link(gpu, link)?;
            match gpu.nvlink_peer_slots.get(link as usize) {
                None => pci.put(switch_address(link)),
                Some(&slot) => pci.put(pci_info(state.gpus.get(slot as usize).ok_or(UNKNOWN)?)?),
            }
        })
    }

    fn nvmlDeviceGetNvLinkErrorCounter(device: Handle, link: c_uint, counter: c_uint, count: OutPointer<c_ulonglong>) {
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

    fn nvmlDeviceResetNvLinkErrorCounters(device: Handle, link: c_uint) {
        ask(device, |_, gpu| require_link(gpu, link))?;
        library::change(device, |gpu| {
            gpu.nvlink_errors = if link == 0 { 0 } else { gpu.nvlink_errors };
            Ok(())
        })
    }

    fn nvmlDeviceGetP2PStatus(device: Handle, other: Handle, capability: c_uint, status: OutPointer<c_uint>) {
        let other = ask(other, |_, gpu| Ok(gpu.uuid.clone()))?;
        ask(device, |state, gpu| {
            let other = state.gpus.iter().find(|peer| peer.uuid == other).ok_or(GPU_IS_LOST)?;
            match capability {
                // A GPU cut into instances has no peers.
                0..P2P_UNKNOWN if gpu.mig_enabled || other.mig_enabled => status.put(P2P_NOT_SUPPORTED),
                P2P_NVLINK if !joined_by_nvlink(state, gpu, other) => status.put(P2P_NOT_SUPPORTED),
                0..P2P_UNKNOWN => status.put(P2P_OK),
                _ => Err(INVALID_ARGUMENT),
            }
        })
    }

    fn nvmlDeviceGetGpuFabricInfo(device: Handle, fabric: OutPointer<nvmlGpuFabricInfo_t>) {
        ask(device, |_, gpu| fabric.put(nvmlGpuFabricInfo_t {
            clusterUuid: gpu.fabric.cluster_uuid,
            status: gpu.fabric.status,
            cliqueId: gpu.fabric.clique,
            state: fabric_state(gpu),
        }))
    }

    // The caller says by the version in the first field how much room it has.
    fn nvmlDeviceGetGpuFabricInfoV(device: Handle, fabric: OutPointer<nvmlGpuFabricInfo_v2_t>) {
        ask(device, |_, gpu| {
            let info = nvmlGpuFabricInfo_v2_t {
                version: fabric.version()?,
                clusterUuid: gpu.fabric.cluster_uuid,
                status: gpu.fabric.status,
                cliqueId: gpu.fabric.clique,
                state: fabric_state(gpu),
                healthMask: gpu.fabric.health_mask,
            };
            if info.version == struct_version::<nvmlGpuFabricInfo_v2_t>(2) {
                return fabric.put(info);
            }
            if info.version != struct_version::<nvmlGpuFabricInfo_v3_t>(3) {
                return Err(ARGUMENT_VERSION_MISMATCH);
            }
            fabric.cast::<nvmlGpuFabricInfo_v3_t>().put(nvmlGpuFabricInfo_v3_t {
                version: info.version,
                clusterUuid: info.clusterUuid,
                status: info.status,
                cliqueId: info.cliqueId,
                state: info.state,
                healthMask: info.healthMask,
                healthSummary: gpu.fabric.health_summary,
            })
        })
    }
}

fn fabric_state(gpu: &Gpu) -> u8 {
    let state = match gpu.fabric.state {
        FabricState::NotSupported => NVML_GPU_FABRIC_STATE_NOT_SUPPORTED,
        FabricState::NotStarted => NVML_GPU_FABRIC_STATE_NOT_STARTED,
        FabricState::InProgress => NVML_GPU_FABRIC_STATE_IN_PROGRESS,
        FabricState::Completed => NVML_GPU_FABRIC_STATE_COMPLETED,
    };
    state as u8
}

fn require_link(gpu: &Gpu, link: c_uint) -> Result<(), Code> {
    match gpu.nvlink_count {
        0 => Err(NOT_SUPPORTED),
        count if link >= count => Err(INVALID_ARGUMENT),
        _ => Ok(()),
    }
}

/// Through switches where both have a link up and the fabric stands; directly where a link between the two is up at both ends.
fn joined_by_nvlink(state: &State, one: &Gpu, other: &Gpu) -> bool {
    let same_island = one.nvlink_island.is_some() && one.nvlink_island == other.nvlink_island;
    if !same_island || one.uuid == other.uuid {
        return false;
    }
    let up_to = |from: &Gpu, to: &Gpu| {
        let to = state.gpus.iter().position(|gpu| gpu.uuid == to.uuid);
        let mut links = 0..from.nvlink_count;
        links.any(|link| {
            let end = from.nvlink_peer_slots.get(link as usize);
            let leads_there = end.is_none_or(|&slot| Some(slot as usize) == to);
            leads_there && !from.nvlinks_down.contains(&link)
        })
    };
    let fabric_stands = |gpu: &Gpu| {
        matches!(
            gpu.fabric.state,
            FabricState::NotSupported | FabricState::Completed
        )
    };
    up_to(one, other) && up_to(other, one) && fabric_stands(one) && fabric_stands(other)
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
