//! The newest fence that this node obeyed, on the disk: two slots of a preallocated file, written in turn. One slot is always
//! whole after a power cut, and a full disk does not matter.

use anyhow::{Context, Result};
use gmodel::Fence;
use gsys::durable_file::sync_parent;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// A sector each, so that a torn write spoils one.
const SLOT_BYTES: usize = 512;
const SLOTS: u64 = 2;

/// Two slots: `{"incarnation":1,"generation":7,"turn":12}` and spaces.
#[derive(Debug)]
pub struct FenceFile {
    pub file: File,
    pub newest: Fence,
    turn: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct FenceSlot {
    #[serde(flatten)]
    fence: Fence,
    turn: u64,
    /// So that half of an old and half of a new slot is seen for what it is.
    sum: u64,
}

impl FenceFile {
    pub fn open(path: &Path) -> Result<Self> {
        let is_new = !path.exists();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("opening {}", path.display()))?;
        if is_new || file.metadata()?.len() < SLOTS * SLOT_BYTES as u64 {
            file.write_all_at(&[b' '; SLOT_BYTES * SLOTS as usize], 0)?;
            file.sync_all()?;
            sync_parent(path)?;
        }
        let newest = (0..SLOTS)
            .filter_map(|slot| read_slot(&file, slot))
            .max_by_key(|slot| slot.turn);
        let (newest, turn) = newest.map_or((Fence::default(), 0), |slot| (slot.fence, slot.turn));
        Ok(Self { file, newest, turn })
    }

    pub fn write(&mut self, fence: Fence) -> Result<()> {
        let turn = self.turn + 1;
        let mut bytes = serde_json::to_vec(&FenceSlot {
            fence,
            turn,
            sum: slot_sum(fence, turn),
        })?;
        assert!(bytes.len() < SLOT_BYTES, "a fence fits into a sector");
        bytes.resize(SLOT_BYTES, b' ');
        self.file
            .write_all_at(&bytes, (turn % SLOTS) * SLOT_BYTES as u64)?;
        self.file.sync_data()?;
        (self.newest, self.turn) = (fence, turn);
        Ok(())
    }
}

fn read_slot(file: &File, slot: u64) -> Option<FenceSlot> {
    let mut bytes = [0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, slot * SLOT_BYTES as u64)
        .ok()?;
    let slot: FenceSlot = serde_json::from_slice(&bytes).ok()?;
    (slot.sum == slot_sum(slot.fence, slot.turn)).then_some(slot)
}

fn slot_sum(fence: Fence, turn: u64) -> u64 {
    let mix = |sum: u64, n: u64| {
        (sum ^ n)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29)
    };
    [fence.incarnation, fence.generation, turn]
        .into_iter()
        .fold(0x6770_7570_6F6F_6C31, mix)
}
