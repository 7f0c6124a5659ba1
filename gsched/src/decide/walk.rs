//! The walk of a pass: each entry in its turn is skipped, or starts, or waits.
//!
//! Along queue groups a walk starts, plans and explains as one that looks at every entry does (`tests/kept.rs` compares them).

use crate::backfill::deferred::may_reserve;
use crate::decide::consider::consider;
use crate::decide::turns::{FollowUp, GroupPlace, Turn, Turns};
use crate::decide::withheld::kept_for_others;
use crate::job::job_class::JobClassId;
use crate::job::reason::{self, KeptFor};
use crate::pass::Pass;
use crate::place::allowed::{allowed_alternatives, limit_of_class};
use gmodel::Reason;

/// Gives each entry its turn, until none is left or the budget is spent. `take` decides about an entry.
pub(crate) fn walk<'q>(
    pass: &mut Pass,
    turns: &mut Turns<'q>,
    mut take: impl FnMut(&mut Pass, &Turn<'q>) -> FollowUp,
) {
    while let Some(turn) = turns.next() {
        if pass.is_spent() {
            return;
        }
        let follow_up = take(pass, &turn);
        pass.hand_over();
        turns.follow(pass, turn, follow_up);
    }
}

/// The turn of a full pass: skips what the entry's class refuses, and decides about the entry otherwise.
pub(crate) fn take_turn(pass: &mut Pass, turn: &Turn) -> FollowUp {
    if let Some(skipped) = turn.place.as_ref().and_then(|place| skip(pass, place)) {
        return skipped;
    }
    let job = &pass.snapshot.pending[turn.at];
    pass.turn.at = turn.at;
    pass.turn.guaranteed_only = turn.is_guaranteed && job.particulars.positions.is_some();
    let group = turn.place.as_ref().map(|place| place.group);
    let reason = match turn.partition {
        Some(partition) => consider(pass, job, partition, group),
        None => Some(reason::no_partition(job)),
    };
    if std::mem::take(&mut pass.turn.borrows) {
        return FollowUp::SecondTurn;
    }
    pass.tell(job, reason);
    let Some(GroupPlace { group, at, .. }) = &turn.place else {
        return FollowUp::Next;
    };
    if group.alone || pass.limits.minds_time {
        return FollowUp::Next;
    }
    match limit_of_class(pass, job, group.job_class, group.secs[*at]) {
        Some(limit) => FollowUp::Skip {
            places: at + 1..group.turns.len(),
            reason: limit.reason,
        },
        None => FollowUp::Next,
    }
}

/// The jobs of a queue group, from a place on, that are refused by what is known of their job class.
fn skip(pass: &mut Pass, place: &GroupPlace) -> Option<FollowUp> {
    let (group, at) = (place.group, place.at);
    if group.alone || !pass.backfill.waiting[group.partition] {
        return None;
    }
    if pass.must_not_pass(group.partition) {
        return Some(FollowUp::Skip {
            places: at..group.turns.len(),
            reason: pass.job_class(group.job_class).behind.clone(),
        });
    }
    if may_reserve(pass, group.partition) {
        return None;
    }
    let refused = pass.job_class(group.job_class).pass.refused_secs?;
    if !pass.limits.unlimited {
        // A limit that is reached is the better reason.
        let job = &pass.snapshot.pending[group.at[at] as usize];
        if pass.limits.minds_time
            || allowed_alternatives(pass, job, group.job_class, group.secs[at]).is_err()
        {
            return None;
        }
    }
    let mut to = group.shorter_from(at, refused);
    if refused > 0 && !pass.choices.kept_for.is_empty() {
        // What is kept for itself in another partition is not in its way.
        let is_kept_for = |at: &usize| {
            pass.choices
                .kept_for
                .contains(&(group.turns[*at].id, group.turns[*at].is_array))
        };
        to = (at..to).find(is_kept_for).unwrap_or(to);
    }
    (to > at).then(|| FollowUp::Skip {
        places: at..to,
        reason: skip_reason(pass, group.job_class),
    })
}

/// The reason of jobs that have no turn, in words that do not change from pass to pass.
fn skip_reason(pass: &mut Pass, job_class: JobClassId) -> Reason {
    if pass.memory.silent {
        return Reason::default();
    }
    match kept_for_others(pass, job_class) {
        Some(kept @ KeptFor::Reservation { .. }) => kept.reason(&pass.memory.windows),
        _ => pass.job_class(job_class).behind.clone(),
    }
}
