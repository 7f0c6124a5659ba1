//! The components of a gang, and a trial of all of them: what is booked stays for all, or for none.
//!
//! Gangs are few, so a trial keeps copies of what the cluster's own trial does not cover.

use crate::cluster::timeline::Count;
use crate::job::job_class::{ClassFindings, JobClassId};
use crate::job::reason::{no_partition, standing};
use crate::ledger::Ledger;
use crate::ledger::refusal::LimitRefusal;
use crate::pass::{LimitClaim, Nominations, Pass};
use crate::place::admission::not_admitted;
use crate::preempt::leaving::LeavingRuns;
use crate::snapshot::PendingJob;
use gmodel::Reason;
use std::collections::{BTreeMap, BTreeSet};

/// A component with its job class.
#[derive(Clone, Copy)]
pub(crate) struct GangMember<'j> {
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

/// The components, or why the gang waits whatever is free.
pub(crate) fn members<'j>(
    pass: &mut Pass,
    leader: &'j PendingJob,
) -> Result<Vec<GangMember<'j>>, Reason> {
    let mut members = Vec::new();
    for (at, job) in std::iter::once(leader)
        .chain(&leader.particulars.others)
        .enumerate()
    {
        members.push(member(pass, job).map_err(|reason| match reason.code {
            // What a job was told to wait for is the whole's.
            _ if at == 0 => reason,
            _ => numbered(at, reason),
        })?);
    }
    Ok(members)
}

fn member<'j>(pass: &mut Pass, job: &'j PendingJob) -> Result<GangMember<'j>, Reason> {
    let partitions = &pass.snapshot.config.partitions;
    let partition = partitions
        .iter()
        .position(|one| one.name == job.spec.partition)
        .ok_or_else(|| no_partition(job))?;
    if let Some(reason) = standing(job, &partitions[partition], pass.snapshot) {
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
    Ok(GangMember { job, job_class })
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
