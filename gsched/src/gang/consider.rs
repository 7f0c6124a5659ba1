//! A gang in its turn: all components start now, or victims or a planned start are found for all, or it waits.

use crate::backfill::deferred::{may_reserve, reserve_wanted};
use crate::backfill::planned::NodeWait;
use crate::decide::start::start_alone;
use crate::gang::members::{GangMember, members, numbered, try_gang};
use crate::gang::plan_start::plan_gang_start;
use crate::gang::preempt::preempt_for_gang;
use crate::job::most_free::what_is_free;
use crate::job::reason::first_of_partition;
use crate::ledger::refusal::LimitKind;
use crate::pass::{Pass, WaitCause};
use crate::place::nominated_nodes::key;
use crate::plan::Nomination;
use crate::snapshot::PendingJob;
use gmodel::{Reason, Timestamp};
use std::collections::BTreeSet;

/// A component that does not start beside those before it, and why.
pub(crate) struct MemberWait {
    pub at: usize,
    pub cause: WaitCause,
}

/// Starts a gang, or tells why it waits: the leader's reason, given to its siblings as well.
pub(crate) fn consider_gang(pass: &mut Pass, leader: &PendingJob) -> Option<Reason> {
    let reason = match members(pass, leader) {
        Ok(members) => start_or_wait(pass, &members)?,
        Err(reason) => reason,
    };
    tell_siblings(pass, leader, &reason);
    Some(reason)
}

fn start_or_wait(pass: &mut Pass, members: &[GangMember]) -> Option<Reason> {
    // What is planned for jobs before it stands before the trial begins.
    reserve_wanted(pass);
    let wait = try_gang(pass, members, |pass| start_members(pass, members)).err()?;
    Some(keep_waiting(pass, members, wait))
}

/// Starts the components in their order, up to the first that cannot start.
pub(crate) fn start_members(pass: &mut Pass, members: &[GangMember]) -> Result<(), MemberWait> {
    for (at, member) in members.iter().enumerate() {
        start_alone(pass, member.job, member.job_class)
            .map_err(|cause| MemberWait { at, cause })?;
    }
    Ok(())
}

/// As of a single job: victims, a planned start, a reason. All of its partitions have a job that waits.
fn keep_waiting(pass: &mut Pass, members: &[GangMember], wait: MemberWait) -> Reason {
    let MemberWait { at, cause } = wait;
    let is_short_of_nodes = matches!(cause, WaitCause::Nodes);
    let short = match cause {
        WaitCause::Limit(no) if !matches!(no.kind, LimitKind::Headroom(_)) => {
            return numbered(at, no.reason);
        }
        WaitCause::Limit(no) => Some(no.reason),
        WaitCause::Short(reason) => Some(reason),
        WaitCause::Nodes | WaitCause::Borrows => None,
    };
    let partitions: BTreeSet<usize> = members
        .iter()
        .map(|member| pass.job_class(member.job_class).partition)
        .collect();
    let mut is_first = true;
    for partition in &partitions {
        is_first &= !std::mem::replace(&mut pass.backfill.waiting[*partition], true);
    }
    let is_first = is_first && !pass.memory.silent;
    let class = members[at].job_class;
    let free = is_first.then(|| {
        let of = pass.job_class(class);
        what_is_free(of, pass.snapshot, &pass.world.cluster)
    });
    let mut preempting = None;
    if is_short_of_nodes {
        pass.room_wanted.push(NodeWait {
            at: pass.turn.at as u32,
            job: members[0].job.id,
        });
        preempting = preempt_for_gang(pass, members);
    }
    let start = reserve(pass, members, &partitions, preempting.is_some());
    if let Some(reason) = preempting {
        return reason;
    }
    let reason = match (short, free) {
        (Some(short), _) => short,
        (None, Some(free)) => {
            let behind = &pass.job_class(class).behind;
            first_of_partition(behind, &free, start, pass.snapshot.now)
        }
        (None, None) if pass.memory.silent => Reason::default(),
        (None, None) => pass.job_class(class).behind.clone(),
    };
    numbered(at, reason)
}

/// The planned start of the gang, if all of its partitions have one left.
fn reserve(
    pass: &mut Pass,
    members: &[GangMember],
    partitions: &BTreeSet<usize>,
    is_preempting: bool,
) -> Option<Timestamp> {
    for partition in partitions {
        let left = &mut pass.backfill.reserve_left[*partition];
        // What is made free for it is its own, however many wait before it.
        *left = (*left).max(u32::from(is_preempting));
    }
    if !partitions.iter().all(|one| may_reserve(pass, *one)) {
        return None;
    }
    for partition in partitions {
        let left = &mut pass.backfill.reserve_left[*partition];
        *left = left.saturating_sub(u32::from(*left < u32::MAX));
    }
    plan_gang_start(pass, members)
}

/// Gives the siblings the leader's reason, each with the nodes that are nominated for it.
fn tell_siblings(pass: &mut Pass, leader: &PendingJob, reason: &Reason) {
    if pass.memory.silent {
        return;
    }
    let is_nominated = pass.turn.nomination.is_some();
    for job in &leader.particulars.others {
        let nomination = is_nominated.then(|| Nomination {
            nodes: pass
                .preemption
                .freed
                .get(&key(job))
                .cloned()
                .unwrap_or_default(),
        });
        if *reason != job.reason || nomination != job.particulars.nomination {
            pass.plan
                .give_reason(job.id, false, reason.clone(), nomination);
        }
    }
}
