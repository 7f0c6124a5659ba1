//! The components of a gang, and a trial of all of them: what is booked stays for all, or for none.
//!
//! The component with the fewest nodes to choose from is booked first: another would take them without need.
//! Gangs are few, so a trial keeps copies of what the cluster's own trial does not cover.

use crate::cluster::timeline::Count;
use crate::job::job_class::{ClassFindings, JobClass, JobClassId};
use crate::job::reason::{no_partition, standing};
use crate::ledger::Ledger;
use crate::ledger::refusal::LimitRefusal;
use crate::pass::{LimitClaim, Nominations, Pass};
use crate::place::admission::not_admitted;
use crate::preempt::leaving::LeavingRuns;
use crate::snapshot::PendingJob;
use gmodel::Reason;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A component with its job class.
#[derive(Clone, Copy)]
pub(crate) struct GangMember<'j> {
    /// Its number, as the submission had it.
    pub at: usize,
    pub job: &'j PendingJob,
    pub job_class: JobClassId,
}

/// The reason of a component, with its number where that tells something.
pub(crate) fn numbered(at: usize, reason: Reason) -> Reason {
    match &*reason.text {
        "" => reason,
        text => Reason::new(reason.code, format!("component {at}: {text}")),
    }
}

/// The components in the order in which they are booked, or why the gang waits whatever is free.
pub(crate) fn members<'j>(
    pass: &mut Pass,
    leader: &'j PendingJob,
) -> Result<Vec<GangMember<'j>>, Reason> {
    members_by(pass, leader, member)
}

/// The same on an idle cluster that is open to all.
pub(crate) fn idle_members<'j>(
    pass: &mut Pass,
    leader: &'j PendingJob,
) -> Result<Vec<GangMember<'j>>, Reason> {
    members_by(pass, leader, |pass, job, partition| {
        Ok(pass.job_class_of(job, partition))
    })
}

fn members_by<'j>(
    pass: &mut Pass,
    leader: &'j PendingJob,
    class_of: impl Fn(&mut Pass, &'j PendingJob, usize) -> Result<JobClassId, Reason>,
) -> Result<Vec<GangMember<'j>>, Reason> {
    let mut members = Vec::new();
    for (at, job) in std::iter::once(leader)
        .chain(&leader.particulars.others)
        .enumerate()
    {
        let job_class = partition_of(pass, job)
            .and_then(|partition| class_of(pass, job, partition))
            .map_err(|reason| match at {
                // What a job was told to wait for is the whole's.
                0 => reason,
                _ => numbered(at, reason),
            })?;
        members.push(GangMember { at, job, job_class });
    }
    members.sort_by_cached_key(|member| {
        let of = pass.job_class(member.job_class);
        let first = of.alternatives.first().and_then(|one| one.parts.first());
        let size = first.map(|part| (part.demand.gpus.count(), part.demand.cpus));
        (nodes_to_choose_from(of), Reverse(size), member.at)
    });
    Ok(members)
}

fn partition_of(pass: &Pass, job: &PendingJob) -> Result<usize, Reason> {
    let mut partitions = pass.snapshot.config.partitions.iter();
    let place = partitions.position(|one| one.name == job.spec.partition);
    place.ok_or_else(|| no_partition(job))
}

fn nodes_to_choose_from(of: &JobClass) -> usize {
    match of.alternatives.first() {
        Some(first) if of.named.len() >= first.nodes as usize => of.named.len(),
        _ => of.candidates.all.count_ones(..),
    }
}

/// The component that decides for all.
pub(crate) fn leader_of<'j>(members: &[GangMember<'j>]) -> Option<&'j PendingJob> {
    members
        .iter()
        .find(|member| member.at == 0)
        .map(|leader| leader.job)
}

fn member(pass: &mut Pass, job: &PendingJob, partition: usize) -> Result<JobClassId, Reason> {
    let of_partition = &pass.snapshot.config.partitions[partition];
    if let Some(reason) = standing(job, of_partition, pass.snapshot) {
        return Err(reason);
    }
    let job_class = pass.job_class_of(job, partition);
    if let Some(never) = &pass.job_class(job_class).never {
        return Err(never.clone());
    }
    if let Some(reason) = not_admitted(pass, job, job_class) {
        return Err(reason);
    }
    if pass.must_not_pass(partition) {
        return Err(pass.job_class(job_class).behind.clone());
    }
    Ok(job_class)
}

/// What a trial of a gang puts back.
struct BeforeTrial {
    usage: Ledger,
    licences: BTreeMap<String, Count>,
    freed: Nominations,
    leaving: LeavingRuns,
    refused: BTreeMap<LimitClaim, LimitRefusal>,
    starts: usize,
    starts_left: usize,
}

/// Forgets what the pass knows of the components' classes: what one is refused beside its siblings says nothing of others.
pub(crate) fn forget_findings(
    pass: &mut Pass,
    members: &[GangMember],
) -> Vec<(JobClassId, ClassFindings)> {
    let classes: BTreeSet<JobClassId> = members.iter().map(|member| member.job_class).collect();
    classes
        .into_iter()
        .map(|job_class| (job_class, std::mem::take(pass.of_pass(job_class))))
        .collect()
}

/// Knows again what was known before.
pub(crate) fn know_findings(pass: &mut Pass, known: Vec<(JobClassId, ClassFindings)>) {
    for (job_class, findings) in known {
        *pass.of_pass(job_class) = findings;
    }
}

/// Books all components, and keeps what was booked where `book` says `Ok`.
pub(crate) fn try_gang<T, E>(
    pass: &mut Pass,
    members: &[GangMember],
    book: impl FnOnce(&mut Pass) -> Result<T, E>,
) -> Result<T, E> {
    let before = BeforeTrial {
        usage: pass.world.usage.clone(),
        licences: pass.world.licences.clone(),
        freed: pass.preemption.freed.clone(),
        leaving: pass.preemption.leaving.clone(),
        refused: std::mem::take(&mut pass.limits.refused),
        starts: pass.plan.starts.len(),
        starts_left: pass.work.starts_left,
    };
    let known = forget_findings(pass, members);
    pass.world.begin_trial();
    let told = book(pass);
    know_findings(pass, known);
    pass.limits.refused = before.refused;
    if told.is_ok() {
        pass.world.commit_trial();
        return told;
    }
    pass.world.roll_back();
    pass.world.usage = before.usage;
    pass.world.licences = before.licences;
    pass.preemption.freed = before.freed;
    pass.preemption.leaving = before.leaving;
    pass.plan.starts.truncate(before.starts);
    pass.work.starts_left = before.starts_left;
    told
}
