//! Types of GPUs by number: which there are, which each node and each partition has, and what a run holds of them.
//!
//! Made once a pass with the ledger. Knows nodes by their GPUs only: what is free is for the timeline.

use crate::snapshot::{RunningRun, Snapshot};
use gmodel::policy::GpuAmounts;
use gmodel::run::NodeShare;
use gmodel::{NodeId, Policy};
use gpolicy::limits::{ALL, GpuTypes, Holding};
use gpolicy::slice_sizes::SliceSizes;

/// The type of each node's GPUs, by slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuTypesOfNodes {
    /// In the order of the ids, with the place of its first GPU in `types`.
    nodes: Vec<(NodeId, usize)>,
    types: Vec<usize>,
    /// Of each partition, where a guarantee is of a type; else empty.
    partitions: Vec<Vec<usize>>,
    /// Where there are quotas.
    slices: SliceSizes,
}

impl GpuTypesOfNodes {
    pub fn new(snapshot: &Snapshot, types: &GpuTypes) -> Self {
        let mut all = Self::default();
        let mut last = ("", ALL);
        for node in &snapshot.nodes {
            all.nodes.push((node.id, all.types.len()));
            for gpu in node.gpus.iter() {
                let name = gpu.info.gpu_type.as_str();
                if last.0 != name {
                    last = (name, types.number(name));
                }
                all.types.push(last.1);
            }
        }
        if has_typed_guarantees(&snapshot.policy) {
            all.find_partitions(snapshot);
        }
        if snapshot.policy.has_quotas() {
            all.slices = SliceSizes::new(&snapshot.config, &snapshot.nodes);
        }
        all
    }

    fn find_partitions(&mut self, snapshot: &Snapshot) {
        for partition in &snapshot.config.partitions {
            let mut types: Vec<usize> = Vec::new();
            for (at, node) in snapshot.nodes.iter().enumerate() {
                let here = self.nodes[at].1
                    ..self
                        .nodes
                        .get(at + 1)
                        .map_or(self.types.len(), |(_, next)| *next);
                let is_new = self.types[here.clone()]
                    .iter()
                    .any(|of_gpu| !types.contains(of_gpu));
                if is_new && partition.holds(&node.name, &node.features) {
                    types.extend(&self.types[here]);
                    types.sort_unstable();
                    types.dedup();
                }
            }
            self.partitions.push(types);
        }
    }

    pub fn slice_milli(&self, profile: &str) -> u32 {
        self.slices.milli(profile)
    }

    pub fn of_partition(&self, partition: usize) -> &[usize] {
        self.partitions.get(partition).map_or(&[], Vec::as_slice)
    }

    fn number(&self, node: NodeId, slot: usize) -> usize {
        let Ok(at) = self.nodes.binary_search_by_key(&node, |(id, _)| *id) else {
            return ALL;
        };
        let end = self
            .nodes
            .get(at + 1)
            .map_or(self.types.len(), |(_, next)| *next);
        self.types[..end]
            .get(self.nodes[at].1 + slot)
            .copied()
            .unwrap_or(ALL)
    }

    pub fn holding(&self, run: &RunningRun) -> Holding {
        let mut held = Holding::new(0, run.shares.len() as u64, run.placed, run.ends_by);
        for share in &run.shares {
            self.add_share(&mut held, share);
        }
        held
    }

    fn add_share(&self, held: &mut Holding, share: &NodeShare) {
        held.cpus += u64::from(share.cpus);
        for grant in &share.gpus.0 {
            held.add_gpus(
                self.number(share.node, usize::from(grant.slot.0)),
                u64::from(grant.part.milli()),
            );
        }
    }
}

/// Those that nodes have and policies name.
pub(crate) fn gpu_types(snapshot: &Snapshot) -> GpuTypes {
    let policy = &snapshot.policy;
    let of_accounts = policy.accounts.values().flat_map(|account| {
        let limits = [&account.group, &account.per_user]
            .into_iter()
            .chain(account.users.values().map(|user| &user.limits));
        let amounts = [&account.guaranteed, &account.limit, &account.lend_limit]
            .into_iter()
            .flatten();
        let budgets = account
            .budgets
            .iter()
            .filter_map(|budget| budget.gpu_type.as_deref());
        names(amounts.chain(limits.filter_map(|limits| limits.gpus.as_ref()))).chain(budgets)
    });
    let of_qos = policy.qos.values().flat_map(|qos| {
        let limits = [&qos.group, &qos.per_user, &qos.per_account]
            .into_iter()
            .filter_map(|limits| limits.gpus.as_ref());
        let others = [&qos.per_job.gpus, &qos.per_job.min_gpus, &qos.headroom]
            .into_iter()
            .flatten();
        names(limits.chain(others))
    });
    let of_partitions = snapshot.config.partitions.iter().flat_map(|one| {
        let limits = [&one.group, &one.per_user, &one.per_account]
            .into_iter()
            .filter_map(|limits| limits.gpus.as_ref());
        names(limits.chain(&one.headroom))
    });
    let of_nodes = snapshot
        .nodes
        .iter()
        .flat_map(|node| node.gpus.iter().map(|gpu| &*gpu.info.gpu_type));
    GpuTypes::new(
        of_accounts
            .chain(of_qos)
            .chain(of_partitions)
            .chain(of_nodes),
    )
}

fn names<'a>(amounts: impl Iterator<Item = &'a GpuAmounts>) -> impl Iterator<Item = &'a str> {
    amounts.flat_map(|amounts| amounts.0.keys().map(String::as_str))
}

fn has_typed_guarantees(policy: &Policy) -> bool {
    let mut guarantees = policy
        .accounts
        .values()
        .filter_map(|account| account.guaranteed.as_ref());
    guarantees.any(|amounts| {
        amounts
            .0
            .keys()
            .any(|name| name != gmodel::policy::ALL_GPUS)
    })
}
