//! What a MIG slice counts against limits, guarantees and usage.

use crate::sched_node::SchedNode;
use gmodel::config::{ClusterConfig, MigCuts};
use gmodel::mig::least_milli;
use std::collections::BTreeMap;

/// Thousandths of a GPU that a slice of each profile counts: the most over all nodes and planned cuts.
#[derive(Clone, Debug, Default)]
pub struct SliceSizes(BTreeMap<String, u32>);

impl SliceSizes {
    pub fn new(config: &ClusterConfig, nodes: &[SchedNode]) -> Self {
        let mut sizes: BTreeMap<String, u32> = BTreeMap::new();
        let mut note = |profile: &str, milli: u32| match sizes.get_mut(profile) {
            Some(most) => *most = milli.max(*most),
            None => drop(sizes.insert(profile.to_owned(), milli)),
        };
        let cuts = config
            .partitions
            .iter()
            .any(|partition| partition.mig == MigCuts::Planned);
        for node in nodes {
            for gpu in node.gpus.iter() {
                gpu.info
                    .slice
                    .iter()
                    .for_each(|slice| note(&slice.profile, gpu.info.part().milli()));
            }
            let kinds = node
                .mig
                .boards
                .iter()
                .filter(|_| cuts)
                .flat_map(|board| &board.kinds);
            kinds.for_each(|kind| note(&kind.profile, kind.part().milli()));
        }
        Self(sizes)
    }

    /// What a slice of a profile counts; the least that its name allows where no node has it.
    pub fn milli(&self, profile: &str) -> u32 {
        let named = self
            .0
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case(profile));
        named
            .map(|(_, milli)| *milli)
            .max()
            .unwrap_or_else(|| least_milli(profile))
    }
}
