//! How the GPUs of a node reach each other: NVLink with the number of links between each two, and the way over PCIe. Read anew
//! only when a link, a MIG mode or the set of GPUs changed: it costs a call for each two GPUs.

use std::collections::{BTreeMap, BTreeSet};

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use nvml_wrapper::error::NvmlError as Answer;
use nvml_wrapper_sys::bindings::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU as TO_GPU;

use super::answer::{check, if_offered};
use super::facts::{GpuFacts, NvlinkPeer, PcieDistance};

/// What decides the topology: when it is as before, so is the topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wiring(pub Vec<GpuLinkState>);

/// One GPU as far as its connections go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuLinkState {
    pub uuid: String,
    pub answers: bool,
    pub mig_enabled: bool,
    pub nvlinks_down: Vec<u32>,
    pub fabric_ready: bool,
    /// The NVLink domain over several hosts, or an empty word.
    pub domain: String,
}

/// The connections of each GPU, by UUID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    pub nvlinks: Vec<NvlinkPeer>,
    pub pcie_distances: Vec<(String, PcieDistance)>,
}

/// Groups of GPUs that reach each other by NVLink alone; a GPU without is a group of its own. In the order of `gpus`.
pub fn islands(gpus: &[GpuFacts]) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = Vec::new();
    let mut placed: BTreeSet<&str> = BTreeSet::new();
    for gpu in gpus {
        if !placed.insert(&gpu.uuid) {
            continue;
        }
        let mut island = vec![gpu.uuid.clone()];
        let mut at = 0;
        while let Some(member) = island.get(at).cloned() {
            let facts = gpus.iter().find(|other| other.uuid == member);
            let peers = facts.into_iter().flat_map(|facts| &facts.nvlink_peers);
            for peer in peers {
                if let Some(other) = gpus.iter().find(|other| other.uuid == *peer)
                    && placed.insert(&other.uuid)
                {
                    island.push(other.uuid.clone());
                }
            }
            at += 1;
        }
        found.push(island);
    }
    found
}

/// Asks about each two of `devices` (in the order of `wiring`); `begin` is called before each GPU is asked.
pub fn read_connections(
    wiring: &Wiring,
    devices: &[Option<(Device<'_>, u32, String)>],
    mut begin: impl FnMut(usize) -> bool,
) -> BTreeMap<String, Connections> {
    let mut found: BTreeMap<String, Connections> = BTreeMap::new();
    for (at, one) in devices.iter().enumerate() {
        let Some((device, link_count, _)) = one else {
            continue;
        };
        let direct = begin(at)
            .then(|| direct_links(device, *link_count, &wiring.0[at].nvlinks_down))
            .and_then(Result::ok)
            .unwrap_or_default();
        for (other_at, other) in devices.iter().enumerate().skip(at + 1) {
            let Some((other_device, other_count, other_place)) = other else {
                continue;
            };
            if !begin(other_at) {
                continue;
            }
            let pair = [at, other_at].map(|at| &wiring.0[at]);
            let joined = matches!(
                device.p2p_status(other_device, P2pCapabilitiesIndex::NvLink),
                Ok(P2pStatus::Ok)
            );
            if joined {
                let up = |count: u32, at: usize| {
                    count.saturating_sub(wiring.0[at].nvlinks_down.len() as u32)
                };
                let through_switches = up(*link_count, at).min(up(*other_count, other_at));
                let links = direct.get(other_place).copied().unwrap_or(through_switches);
                for [from, to] in [[pair[0], pair[1]], [pair[1], pair[0]]] {
                    found
                        .entry(from.uuid.clone())
                        .or_default()
                        .nvlinks
                        .push(NvlinkPeer {
                            uuid: to.uuid.clone(),
                            links,
                        });
                }
            }
            if let Ok(level) = device.topology_common_ancestor(clone_of(other_device)) {
                for [from, to] in [[pair[0], pair[1]], [pair[1], pair[0]]] {
                    let distances = &mut found.entry(from.uuid.clone()).or_default().pcie_distances;
                    distances.push((to.uuid.clone(), distance(level)));
                }
            }
        }
    }
    for connections in found.values_mut() {
        connections.nvlinks.sort();
        connections.pcie_distances.sort();
    }
    found
}

/// Links that lead to a GPU and not to a switch, by its PCI address in capital letters.
fn direct_links(
    device: &Device<'_>,
    link_count: u32,
    down: &[u32],
) -> Result<BTreeMap<String, u32>, Answer> {
    let mut found = BTreeMap::new();
    // Boards have direct links only, or none.
    if link_count == 0 || remote_kind(device, 0)? != Some(TO_GPU) {
        return Ok(found);
    }
    for link in (0..link_count).filter(|link| !down.contains(link)) {
        if let Some(remote) = if_offered(device.link_wrapper_for(link).remote_pci_info())? {
            *found.entry(remote.bus_id.to_uppercase()).or_default() += 1;
        }
    }
    Ok(found)
}

/// What is at a link's other end. The wrapper's own call (0.13) forgets the answer.
fn remote_kind(device: &Device<'_>, link: u32) -> Result<Option<u32>, Answer> {
    let Ok(ask) = &device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType else {
        return Ok(None);
    };
    let mut kind = u32::MAX;
    // SAFETY: the handle is of the library the function comes from, and the pointer is to a live integer of NVML's type.
    let code = unsafe { ask(device.handle(), link, &mut kind) };
    Ok(if_offered(check(code))?.map(|()| kind))
}

/// The wrapper takes a device by value where NVML takes a handle.
fn clone_of<'nvml>(device: &Device<'nvml>) -> Device<'nvml> {
    // SAFETY: the handle is valid as long as the library is initialised, which the lifetime says; nothing is freed with it.
    unsafe { Device::new(device.handle(), device.nvml()) }
}

fn distance(level: TopologyLevel) -> PcieDistance {
    match level {
        TopologyLevel::Internal => PcieDistance::Board,
        TopologyLevel::Single => PcieDistance::Switch,
        TopologyLevel::Multiple => PcieDistance::Switches,
        TopologyLevel::HostBridge => PcieDistance::HostBridge,
        TopologyLevel::Node => PcieDistance::Node,
        TopologyLevel::System => PcieDistance::System,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(uuid: &str, peers: &[&str]) -> GpuFacts {
        GpuFacts {
            uuid: uuid.to_owned(),
            nvlink_peers: peers.iter().map(|peer| (*peer).to_owned()).collect(),
            ..GpuFacts::default()
        }
    }

    #[test]
    fn islands_hold_all_that_links_lead_to_even_over_several_gpus() {
        let gpus = [
            gpu("a", &["b"]),
            gpu("x", &[]),
            gpu("b", &["a", "c"]),
            gpu("c", &["b", "gone"]),
        ];
        assert_eq!(islands(&gpus), [vec!["a", "b", "c"], vec!["x"]]);
    }
}
