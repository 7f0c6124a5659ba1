//! What a run holds of a node's GPUs: whole GPUs, MIG instances, shares.
//!
//! GPUs are named by their slot in the node's inventory; a slot belongs to one UUID for ever.

use serde::{Deserialize, Serialize};

/// Position of a GPU in its node's inventory. Slots are never given to another UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuSlot(pub u16);

/// Thousandths of one GPU. A whole GPU is 1000.
pub const WHOLE_GPU_MILLI: u32 = 1000;

/// How much of one GPU is held.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuPart {
    Whole,
    /// A MIG instance: the slot is its own.
    Mig {
        profile: String,
        compute_slices: u8,
        memory_slices: u8,
    },
    /// A share of compute (thousandths) with its part of device memory.
    Share {
        milli: u32,
        memory_mib: u64,
        /// MPS bounds the share: only equal shares of the user with this uid may be beside it. `None`: no bound, and shares of
        /// all users may be.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenant: Option<u32>,
    },
}

/// One holding on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GpuGrant {
    pub slot: GpuSlot,
    #[serde(default = "whole", skip_serializing_if = "is_whole")]
    pub part: GpuPart,
}

fn whole() -> GpuPart {
    GpuPart::Whole
}
fn is_whole(part: &GpuPart) -> bool {
    *part == GpuPart::Whole
}

/// The GPUs of one node that one run holds, in slot order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuSet(pub Vec<GpuGrant>);

impl GpuPart {
    /// Thousandths of the GPU this part is charged as: for MIG the larger of compute slices
    /// over 7 and memory slices over 8.
    pub fn milli(&self) -> u32 {
        match self {
            Self::Whole => WHOLE_GPU_MILLI,
            Self::Mig {
                compute_slices,
                memory_slices,
                ..
            } => {
                let compute = u32::from(*compute_slices) * 1000 / 7;
                let memory = u32::from(*memory_slices) * 1000 / 8;
                compute.max(memory).min(WHOLE_GPU_MILLI)
            }
            Self::Share { milli, .. } => *milli,
        }
    }
    /// Thousandths of the GPU's memory: what it brings along of its node's, where that is shared out. All parts of one GPU
    /// make no more than the whole.
    pub fn memory_milli(&self) -> u32 {
        match self {
            Self::Mig { memory_slices, .. } => {
                u32::from(*memory_slices) * 1000 / u32::from(crate::mig::MEMORY_SLICES)
            }
            other => other.milli(),
        }
    }
    /// Thousandths of its slot that are taken: a MIG instance has a slot of its own.
    pub fn of_slot_milli(&self) -> u32 {
        match self {
            Self::Whole | Self::Mig { .. } => WHOLE_GPU_MILLI,
            Self::Share { milli, .. } => *milli,
        }
    }
    /// Whether both may be held of one GPU at a time, if there is room. The limits of MPS are its server's, so they are the same
    /// for all on the GPU; and it serves one user.
    pub fn goes_beside(&self, other: &Self) -> bool {
        let terms = |part: &Self| match part {
            Self::Share { tenant: None, .. } => Some(None),
            Self::Share {
                tenant: Some(uid),
                milli,
                memory_mib,
            } => Some(Some((*uid, *milli, *memory_mib))),
            Self::Whole | Self::Mig { .. } => None,
        };
        terms(self).is_some() && terms(self) == terms(other)
    }
}

impl GpuSet {
    pub fn whole(slots: impl IntoIterator<Item = GpuSlot>) -> Self {
        let mut grants: Vec<_> = slots
            .into_iter()
            .map(|slot| GpuGrant {
                slot,
                part: GpuPart::Whole,
            })
            .collect();
        grants.sort();
        Self(grants)
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Number of GPUs, instances and shares named.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Thousandths of GPUs held in all.
    pub fn milli(&self) -> u64 {
        self.0
            .iter()
            .map(|grant| u64::from(grant.part.milli()))
            .sum()
    }
    pub fn slots(&self) -> impl Iterator<Item = GpuSlot> + '_ {
        self.0.iter().map(|grant| grant.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_capped_shares_of_one_user_go_side_by_side() {
        let share = |milli, tenant| GpuPart::Share {
            milli,
            memory_mib: u64::from(milli),
            tenant,
        };
        assert!(share(500, Some(1)).goes_beside(&share(500, Some(1))));
        assert!(
            !share(500, Some(1)).goes_beside(&share(500, Some(2))),
            "another user"
        );
        assert!(
            !share(500, Some(1)).goes_beside(&share(250, Some(1))),
            "another size"
        );
        assert!(
            !share(500, Some(1)).goes_beside(&share(500, None)),
            "one of them without a cap"
        );
        assert!(share(500, None).goes_beside(&share(100, None)));
        assert!(!GpuPart::Whole.goes_beside(&GpuPart::Whole));
    }

    #[test]
    fn a_mig_instance_is_charged_by_its_larger_part() {
        let part = |compute_slices, memory_slices| GpuPart::Mig {
            profile: String::new(),
            compute_slices,
            memory_slices,
        };
        assert_eq!(part(1, 2).milli(), 250);
        assert_eq!(part(3, 4).milli(), 500);
        assert_eq!(part(7, 8).milli(), 1000);
        assert_eq!(
            (
                part(1, 2).of_slot_milli(),
                part(2, 2).milli(),
                part(2, 2).memory_milli()
            ),
            (1000, 285, 250)
        );
    }
}
