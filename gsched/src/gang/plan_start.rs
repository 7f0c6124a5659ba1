//! The planned start of a gang: the earliest time at which all of its components have room beside each other.

use crate::backfill::choices::lift_reserved;
use crate::backfill::earliest::earliest_from;
use crate::backfill::reserve::plan_start_at;
use crate::gang::members::{GangMember, forget_findings, know_findings};
use crate::pass::Pass;
use gmodel::Timestamp;

/// Times that are tried for one gang: each is when one more component has room.
const MOST_TIMES: usize = 64;

/// Gives all components the earliest common start that delays none before it.
pub(crate) fn plan_gang_start(pass: &mut Pass, members: &[GangMember]) -> Option<Timestamp> {
    let mut at = pass.now;
    for _ in 0..MOST_TIMES {
        if pass.is_spent() {
            return None;
        }
        match plan_at(pass, members, at) {
            Ok(()) => return Some(at),
            Err(later) => at = later?,
        }
    }
    None
}

/// Books all components at a time; otherwise when the first that has no room then has some, if ever.
fn plan_at(
    pass: &mut Pass,
    members: &[GangMember],
    at: Timestamp,
) -> Result<(), Option<Timestamp>> {
    let before = pass.backfill.reserved.len();
    let known = forget_findings(pass, members);
    let told = hold_all(pass, members, at);
    know_findings(pass, known);
    if told.is_err() {
        // Holds of one node are given back in the opposite order.
        for place in (before..pass.backfill.reserved.len()).rev() {
            lift_reserved(pass, members[place - before].job, place);
        }
        pass.backfill.reserved.truncate(before);
    }
    told
}

fn hold_all(
    pass: &mut Pass,
    members: &[GangMember],
    at: Timestamp,
) -> Result<(), Option<Timestamp>> {
    for member in members {
        let found = earliest_from(pass, member.job, member.job_class, at).ok_or(None)?;
        if found.at > at {
            return Err(Some(found.at));
        }
        plan_start_at(pass, member.job, member.job_class, found).ok_or(None)?;
    }
    Ok(())
}
