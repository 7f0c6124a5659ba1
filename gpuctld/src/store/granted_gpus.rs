//! What a run holds of GPUs, as its row says it: by type, which of them, and in which parts.

use gcore::ctl::State;
use gmodel::GpuPart;
use gmodel::run::Allocation;
use gpolicy::bill::SHARE;
use std::collections::BTreeMap;

#[derive(Default)]
pub struct GrantedGpus<'s> {
    /// Names of its nodes.
    pub nodes: Vec<&'s str>,
    /// Thousandths of GPUs.
    pub by_type: BTreeMap<&'s str, u64>,
    /// By type and part: thousandths and pieces.
    parts: BTreeMap<(&'s str, &'s str), (u64, u64)>,
    /// `NODE:UUID`.
    uuids: Vec<String>,
}

impl<'s> GrantedGpus<'s> {
    pub fn of(state: &'s State, allocation: &'s Allocation) -> Self {
        let mut held = Self::default();
        for share in allocation {
            let Some(node) = state.nodes.get(share.node) else {
                continue;
            }; // removed in this very batch
            held.nodes.push(node.name.as_str());
            for grant in &share.gpus.0 {
                let known = node.gpus.get(usize::from(grant.slot.0));
                let gpu_type = known.map_or("", |gpu| gpu.info.gpu_type.as_str());
                let milli = u64::from(grant.part.milli());
                *held.by_type.entry(gpu_type).or_default() += milli;
                let part = match &grant.part {
                    GpuPart::Whole => "",
                    GpuPart::Mig { profile, .. } => profile.as_str(),
                    GpuPart::Share { .. } => SHARE,
                };
                let sum = held.parts.entry((gpu_type, part)).or_default();
                *sum = (sum.0 + milli, sum.1 + 1);
                let uuid = known.map(|gpu| format!("{}:{}", node.name, gpu.info.uuid));
                held.uuids.extend(uuid);
            }
        }
        held
    }

    pub fn uuids_text(&self) -> serde_json::Result<Option<String>> {
        let some = !self.uuids.is_empty();
        some.then(|| serde_json::to_string(&self.uuids)).transpose()
    }

    /// `None` where all GPUs are whole.
    pub fn parts_text(&self) -> serde_json::Result<Option<String>> {
        if self.parts.keys().all(|(_, part)| part.is_empty()) {
            return Ok(None);
        }
        let rows = self.parts.iter();
        let rows: Vec<_> = rows
            .map(|((gpu_type, part), (milli, pieces))| (gpu_type, part, milli, pieces))
            .collect();
        serde_json::to_string(&rows).map(Some)
    }
}
