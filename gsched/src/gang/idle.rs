//! Whether the components of a gang have room beside each other where nothing else runs, for its submission.

use crate::engine::Engine;
use crate::gang::consider::start_members;
use crate::gang::members::{idle_members, try_gang};
use crate::pass::{Pass, WaitCause};
use crate::place::limits_in_force::usage;
use crate::plan::WorkBudget;
use crate::snapshot::{PendingJob, Snapshot};

/// The component that never has room beside the other components, by its number; `None` where all have, or where the budget does not tell.
pub fn crowded_out(snapshot: &Snapshot, leader: &PendingJob, budget: WorkBudget) -> Option<usize> {
    let mut engine = Engine::default();
    engine.sync(snapshot, None);
    let Engine {
        cluster, memory, ..
    } = &mut engine;
    let mut pass = Pass::new(cluster, memory, snapshot, budget, usage(snapshot));
    let members = idle_members(&mut pass, leader).ok()?;
    let wait = try_gang(&mut pass, &members, |pass| start_members(pass, &members)).err()?;
    let is_short = matches!(wait.cause, WaitCause::Nodes | WaitCause::Short(_));
    (is_short && !pass.is_spent()).then_some(wait.member.at)
}
