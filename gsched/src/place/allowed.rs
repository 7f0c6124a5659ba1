//! What limits, headroom and licences allow a job in a pass, before and after nodes are known.
//!
//! The ledger holds the limits; within a pass they only fill.

use crate::cluster::nodes::end_after;
use crate::cluster::picked::{PickedNodes, count, each};
use crate::headroom::HeadroomTime;
use crate::job::job_class::{JobAlternative, JobClassId};
use crate::job::reason::array_limit;
use crate::ledger::Take;
use crate::ledger::refusal::{LimitKind, LimitRefusal};
use crate::pass::{LimitClaim, Pass, WaitCause};
use crate::place::gpu_reservation::{is_counted, reserved_short};
use crate::snapshot::PendingJob;
use gmodel::{Reason, ReasonCode, RunClass, Timestamp};

/// For how long a job would hold its place from a time on: in its reservation no longer than the window.
pub(crate) fn secs_from(
    pass: &Pass,
    job: &PendingJob,
    job_class: JobClassId,
    at: Timestamp,
) -> u32 {
    pass.memory
        .windows
        .secs_from(pass.job_class(job_class).claim, at, job.held_secs())
}

pub(crate) fn secs_now(pass: &Pass, job: &PendingJob, job_class: JobClassId) -> u32 {
    secs_from(pass, job, job_class, pass.snapshot.now)
}

/// Alternatives that no limit refuses, as far as can be said before nodes are known.
pub(crate) fn allowed_alternatives(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    secs: u32,
) -> Result<Vec<usize>, WaitCause> {
    let alternatives = 0..pass.job_class(job_class).alternatives.len();
    if pass.limits.unlimited {
        return Ok(alternatives.collect());
    }
    if let Some(no) = limit_of_class(pass, job, job_class, secs) {
        return Err(WaitCause::Limit(no));
    }
    let mut allowed = Vec::new();
    let mut no = None;
    for alternative in alternatives {
        match check_limits(
            pass,
            job,
            &pass.job_class(job_class).alternatives[alternative].take,
        ) {
            Ok(_) => allowed.push(alternative),
            Err(refusal) => no = no.or(Some(refusal)),
        }
    }
    match no {
        Some(no) if allowed.is_empty() => {
            let claim = claim_of(job, job_class, secs);
            pass.limits.refused.insert(claim, no.clone());
            Err(WaitCause::Limit(no))
        }
        _ => Ok(allowed),
    }
}

/// The limit that refused a job's class in this pass, by whatever way: usage only grows.
pub(crate) fn limit_of_class(
    pass: &Pass,
    job: &PendingJob,
    job_class: JobClassId,
    secs: u32,
) -> Option<LimitRefusal> {
    let refused = &pass.limits.refused;
    if refused.is_empty() {
        return None;
    }
    refused.get(&claim_of(job, job_class, secs)).cloned()
}

fn claim_of(job: &PendingJob, job_class: JobClassId, secs: u32) -> LimitClaim {
    let spec = &job.spec;
    let was_preempted = job.particulars.preempted.is_some();
    (
        job_class,
        spec.account.clone(),
        spec.user.name.clone(),
        spec.qos.clone(),
        (spec.borrow, spec.requeue, was_preempted),
        secs,
    )
}

/// What limits say, and the class. Licences are for the timeline to judge.
pub(crate) fn check_limits(
    pass: &Pass,
    job: &PendingJob,
    take: &Take,
) -> Result<Option<RunClass>, LimitRefusal> {
    if pass.limits.unlimited {
        return Ok(None);
    }
    let is_licence = |kind| kind == LimitKind::Licence;
    pass.world.usage.check_but(job, take, is_licence)
}

/// Nodes that a job could take for some seconds, and what it would take of them.
pub(crate) struct NodeOffer<'a> {
    pub(crate) alternative: usize,
    pub(crate) secs: u32,
    pub(crate) picked: &'a PickedNodes,
    pub(crate) take: &'a Take,
}

/// As `check_limits`, for nodes that are known.
pub(crate) fn check_limits_on(
    pass: &Pass,
    job: &PendingJob,
    job_class: JobClassId,
    offer: &NodeOffer,
) -> Result<Option<RunClass>, LimitRefusal> {
    let class = check_limits(pass, job, offer.take)?;
    kept_idle_there(pass, job, job_class, offer, class).map_or(Ok(class), Err)
}

/// The reservation or the headroom that keeps a job off some nodes, whatever limits say.
pub(crate) fn kept_idle_there(
    pass: &Pass,
    job: &PendingJob,
    job_class: JobClassId,
    offer: &NodeOffer,
    class: Option<RunClass>,
) -> Option<LimitRefusal> {
    if let Some(short) = reserved_short(pass, job_class, &offer.take.gpus, offer.secs) {
        return Some(short);
    }
    let spares = pass.world.usage.spares_kept(job, class);
    for (keeper, nodes) in &pass.headroom.kept_idle_on {
        let at = match spares {
            true => HeadroomTime::Now,
            false if pass.world.usage.is_left_by_others(job, *keeper) => HeadroomTime::AfterVictims,
            false => continue,
        };
        let there: PickedNodes = each(offer.picked)
            .filter(|(at, _)| nodes.contains(*at))
            .map(|(at, part)| (at..at + 1, part))
            .collect();
        let taken = take_of(pass, job_class, offer.alternative, &there, offer.secs).gpus;
        if let Some(reason) = pass.world.usage.idle.kept_in(at, *keeper, &taken) {
            let kind = LimitKind::Headroom(Some(*keeper));
            return Some(LimitRefusal { kind, reason });
        }
    }
    None
}

/// What a job would take of these nodes.
pub(crate) fn take_of(
    pass: &Pass,
    job_class: JobClassId,
    alternative: usize,
    picked: &PickedNodes,
    secs: u32,
) -> Take {
    let (of, from) = (pass.job_class(job_class), pass.snapshot.now);
    if pass.limits.unlimited && !is_counted(pass, job_class) {
        return Take::default();
    }
    let mut take = Take {
        nodes: count(picked) as u32,
        ..Take::default()
    };
    for (at, part) in each(picked) {
        let track = &pass.world.cluster.nodes[at];
        let node_class = &pass.world.cluster.node_classes.list[track.node_class as usize];
        let Some(need) = of.need(alternative, part, track.node_class) else {
            continue;
        };
        take.cpus = take.cpus.saturating_add(need.cpus);
        let mut add = |group: usize, milli: u64| {
            if let Some(group) = node_class.groups.get(group).filter(|_| milli > 0) {
                *take.gpus.entry(group.gpu_type.clone()).or_default() += milli;
            }
        };
        if need.milli > 0 {
            add(need.groups.trailing_zeros() as usize, u64::from(need.milli));
        } else if let Some(amount) =
            pass.world
                .cluster
                .state(at)
                .amount(node_class, need, from, end_after(from, Some(secs)))
        {
            for (group, count) in amount
                .gpus
                .iter()
                .enumerate()
                .filter(|(_, count)| **count > 0)
            {
                add(
                    group,
                    u64::from(*count) * u64::from(node_class.groups[group].part.milli()),
                );
            }
        }
    }
    take
}

pub(crate) fn licences_now(pass: &Pass, job: &PendingJob, secs: u32) -> Result<(), WaitCause> {
    let now = pass.snapshot.now;
    for (name, count) in &job.spec.licences {
        let free = pass
            .world
            .licences
            .get(name)
            .map_or(0, |free| free.least(now, end_after(now, Some(secs))));
        if free < *count {
            let all = pass
                .snapshot
                .config
                .scheduler
                .licences
                .get(name)
                .copied()
                .unwrap_or(0);
            let text = match pass.snapshot.config.scheduler.licences.get(name) {
                None => format!("licence {name:?} is not in the configuration"),
                Some(all) if count > all => {
                    format!("needs {count} of licence {name:?}, and there are {all}")
                }
                Some(all) => format!(
                    "needs {count} of licence {name:?}; {free} of {all} are free for as long"
                ),
            };
            let reason = Reason::new(ReasonCode::Licenses, text);
            let kind = LimitKind::Licence;
            return Err(if *count > all {
                WaitCause::Limit(LimitRefusal { kind, reason })
            } else {
                WaitCause::Short(reason)
            });
        }
    }
    Ok(())
}

/// Limits that refuse the alternative with the fewest of them.
pub(crate) fn refusing_limits(
    pass: &Pass,
    job: &PendingJob,
    job_class: JobClassId,
) -> Vec<LimitRefusal> {
    if pass.limits.unlimited {
        return Vec::new();
    }
    let of_alternative = |alternative: &JobAlternative| {
        let mut limits = pass.world.usage.refusing_limits(job, &alternative.take);
        limits.retain(|limit| limit.kind != LimitKind::Licence);
        limits
    };
    let fewest = pass
        .job_class(job_class)
        .alternatives
        .iter()
        .map(of_alternative);
    fewest.min_by_key(Vec::len).unwrap_or_default()
}

/// The first limit that refuses a job at its turn; its array's cap is one.
pub(crate) fn first_refusing_limit(
    pass: &mut Pass,
    job: &PendingJob,
    partition: usize,
) -> Option<LimitRefusal> {
    if pass.array_room(job) == 0 {
        let capped = job.capped_array().zip(job.particulars.cap);
        let kind = capped.map_or(LimitKind::Fixed, |(array, cap)| {
            LimitKind::ArrayCap(array, cap.running)
        });
        let reason = array_limit(job);
        return Some(LimitRefusal { kind, reason });
    }
    let job_class = pass.job_class_of(job, partition);
    refusing_limits(pass, job, job_class).into_iter().next()
}
