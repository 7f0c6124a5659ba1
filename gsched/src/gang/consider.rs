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
pub(crate) struct MemberWait<'j> {
    pub member: GangMember<'j>,
    pub cause: WaitCause,
}

/// Starts a gang, or tells why it waits: the leader's reason, given to its siblings as well.
pub(crate) fn consider_gang(pass: &mut Pass, leader: &PendingJob) -> Option<Reason> {
    let reason = match members(pass, leader) {
        Ok(members) => start_or_wait(pass, leader, &members)?,
        Err(reason) => reason,
    };
    tell_siblings(pass, leader, &reason);
    Some(reason)
}

fn start_or_wait(pass: &mut Pass, leader: &PendingJob, members: &[GangMember]) -> Option<Reason> {
    // What is planned for jobs before it stands before the trial begins.
    reserve_wanted(pass);
    let is_first = !pass.memory.silent
        && partitions_of(pass, members)
            .iter()
            .all(|partition| !pass.backfill.waiting[*partition]);
    let mut free = None;
    let tried = try_gang(pass, members, |pass| {
        start_members(pass, members).inspect_err(|wait| {
            // Beside the components before it.
            let of = pass.job_class(wait.member.job_class);
            free = is_first.then(|| what_is_free(of, pass.snapshot, &pass.world.cluster));
        })
    });
    Some(keep_waiting(pass, leader, members, tried.err()?, free))
}

/// Starts the components in their order, up to the first that cannot start.
pub(crate) fn start_members<'j>(
    pass: &mut Pass,
    members: &[GangMember<'j>],
) -> Result<(), MemberWait<'j>> {
    for member in members.iter().copied() {
        start_alone(pass, member.job, member.job_class)
            .map_err(|cause| MemberWait { member, cause })?;
    }
    Ok(())
}

/// As of a single job: victims, a planned start, a reason. All of its partitions have a job that waits.
fn keep_waiting(
    pass: &mut Pass,
    leader: &PendingJob,
    members: &[GangMember],
    wait: MemberWait,
    free: Option<String>,
) -> Reason {
    let MemberWait { member, cause } = wait;
    let (at, class) = (member.at, member.job_class);
    let is_short_of_nodes = matches!(cause, WaitCause::Nodes);
    let short = match cause {
        WaitCause::Limit(no) if !matches!(no.kind, LimitKind::Headroom(_)) => {
            return numbered(at, no.reason);
        }
        WaitCause::Limit(no) => Some(no.reason),
        WaitCause::Short(reason) => Some(reason),
        WaitCause::Nodes | WaitCause::Borrows => None,
    };
    let partitions = partitions_of(pass, members);
    for partition in &partitions {
        pass.backfill.waiting[*partition] = true;
    }
    let mut preempting = None;
    if is_short_of_nodes {
        pass.room_wanted.push(NodeWait {
            at: pass.turn.at as u32,
            job: leader.id,
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

fn partitions_of(pass: &Pass, members: &[GangMember]) -> BTreeSet<usize> {
    let classes = members.iter().map(|member| member.job_class);
    classes
        .map(|job_class| pass.job_class(job_class).partition)
        .collect()
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
