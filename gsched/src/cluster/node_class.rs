//! Node classes: nodes with the same CPUs, memory and GPUs are told apart only by what is free on them.
//!
//! A request is worked out once for each node class, so that looking at a node compares a few integers.

use crate::cluster::timeline::{Amount, GROUPS, Kinds, Need};
use crate::cluster::wiring::Wiring;
use crate::snapshot::SchedNode;
use gmodel::gpu_request::GpuAmount;
use gmodel::node::GpuEntry;
use gpolicy::feasibility::demand::{GpuDemand, Lack, NodeDemand};
use gpolicy::feasibility::gpu_group::GpuGroup;
use std::collections::BTreeMap;

/// Place of a node class in [`NodeClasses`].
pub type NodeClassId = u32;

/// A slot with a GPU that is not offered: missing, sick, or of a kind too many.
pub const NO_GROUP: u8 = u8::MAX;

/// What a node would have with nothing on it.
#[derive(Clone, Debug)]
pub struct NodeClass {
    pub cpus: u32,
    pub mem_bytes: u64,
    pub groups: Vec<GpuGroup>,
    /// Group of each slot, or [`NO_GROUP`].
    pub slots: Vec<u8>,
    /// GPU of each slot, by number: slices of one have the same.
    pub boards: Vec<u16>,
    /// GPUs there are, sick and missing ones too.
    pub gpus: usize,
    /// NUMA node of each slot, where it is known.
    pub numa: Vec<Option<u32>>,
    /// How its GPUs are joined, where that differs from one pair to another.
    pub wiring: Option<Wiring>,
    /// Everything usable.
    pub all: Amount,
}

/// All node classes there are, by number.
#[derive(Clone, Debug, Default)]
pub struct NodeClasses {
    pub list: Vec<NodeClass>,
    by_key: BTreeMap<NodeClassKey, NodeClassId>,
    last: Option<(NodeClassId, u32, u64, std::sync::Arc<Vec<GpuEntry>>)>,
}

type NodeClassKey = (u32, u64, usize, Vec<Slot>, Option<Wiring>);

/// What is known of a slot: its kind where it is offered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Slot {
    kind: Option<GpuGroup>,
    numa: Option<u32>,
    board: u16,
}

impl NodeClasses {
    /// The class of a node, which may be new.
    pub fn of(&mut self, node: &SchedNode) -> NodeClassId {
        // Neighbours are mostly alike.
        if let Some((node_class, cpus, mem_bytes, gpus)) = &self.last
            && *cpus == node.cpus
            && *mem_bytes == node.mem_bytes
            && same_gpus(gpus, &node.gpus)
        {
            return *node_class;
        }
        let mut boards: BTreeMap<&str, u16> = BTreeMap::new();
        let slot = |gpu: &'_ GpuEntry, board| Slot {
            kind: gpu.usable().then(|| GpuGroup::of(gpu)),
            numa: gpu.info.numa,
            board,
        };
        let slots = node.gpus.iter().map(|gpu| {
            let next = boards.len() as u16;
            slot(gpu, *boards.entry(gpu.info.board()).or_insert(next))
        });
        let slots = slots.collect();
        let key = (
            node.cpus,
            node.mem_bytes,
            node.gpu_count(),
            slots,
            Wiring::of(&node.gpus),
        );
        let list = &mut self.list;
        let node_class = match self.by_key.get(&key) {
            Some(node_class) => *node_class,
            None => {
                list.push(NodeClass::new(&key));
                let node_class = list.len() as NodeClassId - 1;
                self.by_key.insert(key, node_class);
                node_class
            }
        };
        self.last = Some((node_class, node.cpus, node.mem_bytes, node.gpus.clone()));
        node_class
    }
}

impl NodeClasses {
    /// Thousandths of a GPU that the smallest of those counts for that serve a demand.
    pub fn least_milli(&self, wanted: &GpuDemand) -> u32 {
        let groups = self.list.iter().flat_map(|node_class| &node_class.groups);
        let serving = groups.filter(|group| wanted.is_served_by_kind(group));
        serving
            .map(|group| group.part.milli())
            .min()
            .unwrap_or_else(|| wanted.least_milli())
    }
}

/// Each kind once, the least of a GPU first: where several would do, that is taken.
fn kinds(of_slots: impl Iterator<Item = GpuGroup>) -> Vec<GpuGroup> {
    let mut groups: Vec<GpuGroup> = Vec::new();
    for kind in of_slots {
        if !groups.contains(&kind) {
            groups.push(kind);
        }
    }
    groups.sort_by_key(|group| group.part.milli());
    groups
}

/// Sound GPUs and slices of a node that are not offered, since it has more than [`GROUPS`] kinds: each kind by name and how many.
pub fn left_out(gpus: &[GpuEntry]) -> Vec<(String, usize)> {
    let usable = || gpus.iter().filter(|gpu| gpu.usable());
    let groups = kinds(usable().map(GpuGroup::of));
    let mut out: Vec<(String, usize)> = Vec::new();
    for group in groups.iter().skip(GROUPS) {
        let mut of_kind = usable().filter(|gpu| GpuGroup::of(gpu) == *group);
        let name = of_kind
            .next()
            .map_or_else(String::new, |gpu| gpu.info.kind());
        out.push((name, 1 + of_kind.count()));
    }
    out
}

fn same_gpus(one: &std::sync::Arc<Vec<GpuEntry>>, other: &std::sync::Arc<Vec<GpuEntry>>) -> bool {
    let same = |a: &GpuEntry, b: &GpuEntry| {
        a.usable() == b.usable()
            && a.info.memory_mib == b.info.memory_mib
            && a.info.numa == b.info.numa
            && a.info.nvlink_island == b.info.nvlink_island
            && a.info.links == b.info.links
            && (a.info.links.is_empty() || a.info.minor == b.info.minor)
            && a.info.gpu_type == b.info.gpu_type
            && a.info.mps == b.info.mps
            && a.info.slice.is_none()
            && b.info.slice.is_none()
    };
    std::sync::Arc::ptr_eq(one, other)
        || (one.len() == other.len() && one.iter().zip(&**other).all(|(a, b)| same(a, b)))
}

impl NodeClass {
    fn new((cpus, mem_bytes, gpus, slots, wiring): &NodeClassKey) -> Self {
        let mut groups = kinds(slots.iter().filter_map(|slot| slot.kind.clone()));
        let mut all = Amount {
            cpus: *cpus,
            mem_bytes: *mem_bytes,
            gpus: [0; GROUPS],
        };
        let of_slots = slots.iter().map(|slot| {
            let Some(kind) = &slot.kind else {
                return NO_GROUP;
            };
            let at = groups
                .iter()
                .position(|group| group == kind)
                .expect("collected above");
            if at >= GROUPS || all.gpus[at] == u8::MAX {
                return NO_GROUP;
            }
            all.gpus[at] += 1;
            at as u8
        });
        let of_slots = of_slots.collect();
        groups.truncate(GROUPS);
        Self {
            cpus: *cpus,
            mem_bytes: *mem_bytes,
            groups,
            slots: of_slots,
            boards: slots.iter().map(|slot| slot.board).collect(),
            gpus: *gpus,
            numa: slots.iter().map(|slot| slot.numa).collect(),
            wiring: wiring.clone(),
            all,
        }
    }

    /// Kinds of GPUs that are so, a bit each.
    pub fn kinds_where(&self, is_so: impl Fn(&GpuGroup) -> bool) -> Kinds {
        self.groups
            .iter()
            .enumerate()
            .filter(|(_, group)| is_so(group))
            .fold(0, |bits, (at, _)| bits | 1 << at)
    }

    /// Kinds of GPUs that serve a demand, a bit each; if `linked`, those of NVLink islands.
    fn groups_for(&self, wanted: &GpuDemand, linked: bool) -> Kinds {
        let fits = |group: &GpuGroup| {
            wanted.is_served_by_kind(group) && (group.island.is_some() || !linked)
        };
        self.kinds_where(fits)
    }

    /// Thousandths of a GPU's memory that one of these kinds has, the least.
    fn slice_milli(&self, groups: Kinds) -> u32 {
        let of_groups = self
            .groups
            .iter()
            .enumerate()
            .filter(|(at, _)| groups & (1 << at) != 0);
        of_groups
            .map(|(_, group)| group.part.memory_milli())
            .min()
            .unwrap_or(1000)
    }

    /// What a demand comes to on a node of this class, or what such a node lacks even with nothing on it.
    pub fn need(&self, demand: &NodeDemand) -> Result<Need, Lack> {
        let linked = demand.is_linked();
        let groups = self.groups_for(&demand.gpus, linked);
        let (gpus, milli) = match demand.gpus.amount {
            GpuAmount::Whole(count) | GpuAmount::Mig { count, .. } => (count, 0),
            GpuAmount::Share { milli } => (0, milli.min(1000) as u16),
        };
        let have = self.all.gpus_in(groups);
        let most = match linked {
            true => (0..GROUPS)
                .filter(|at| groups & (1 << at) != 0)
                .map(|at| u32::from(self.all.gpus[at]))
                .max(),
            false => Some(have),
        };
        if gpus.max(u32::from(milli > 0)) > most.unwrap_or(0) {
            return Err(Lack::Gpus);
        }
        if demand.cpus > self.cpus {
            return Err(Lack::Cpus);
        }
        let mem_bytes = demand.mem_of(
            self.cpus,
            self.mem_bytes,
            self.gpus,
            self.slice_milli(groups),
        );
        if mem_bytes > self.mem_bytes {
            return Err(Lack::Memory);
        }
        let mut need = Need {
            cpus: demand.cpus,
            mem_bytes,
            gpus: gpus as u8,
            groups: if gpus == 0 && milli == 0 { 0 } else { groups },
            milli,
            tenant: None,
            one_group: linked,
            exclusive: demand.exclusive,
        };
        if demand.exclusive {
            let bits = ((1u32 << self.groups.len()) - 1) as Kinds;
            let gpus = self.all.all_gpus().min(u32::from(u8::MAX)) as u8;
            need = Need {
                cpus: self.cpus,
                gpus,
                groups: bits,
                milli: 0,
                one_group: false,
                ..need
            };
        }
        Ok(need)
    }
}
