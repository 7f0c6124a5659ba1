//! What limits, headroom and licences leave a job in a pass, before and after nodes are known.
//!
//! The ledger holds the limits; within a pass they only fill.

use crate::cluster::nodes::end_after;
use crate::cluster::picked::{PickedNodes, count, each};
use crate::headroom::{KeptNodes, When};
use crate::job::job_class::{JobAlternative, JobClassId};
use crate::ledger::Take;
use crate::pass::{Pass, WaitCause};
use crate::place::gpu_reservation::{is_counted, reserved_short};
use crate::snapshot::PendingJob;
use gmodel::policy::PreemptMode;
use gmodel::{Reason, ReasonCode, RunClass, RunId, Timestamp};

/// For how long a job would hold its place from a time on: in its reservation no longer than the window.
pub(crate) fn secs_from(pass: &Pass, job: &PendingJob, shape: JobClassId, at: Timestamp) -> u32 {
    pass.memory
        .windows
        .secs_from(pass.shape(shape).claim, at, job.held_secs())
}

pub(crate) fn secs_now(pass: &Pass, job: &PendingJob, shape: JobClassId) -> u32 {
    secs_from(pass, job, shape, pass.snapshot.now)
}

/// Ways that no limit stands against, as far as can be said before nodes are known.
pub(crate) fn allowed_ways(
    pass: &mut Pass,
    job: &PendingJob,
    shape: JobClassId,
    secs: u32,
) -> Result<Vec<usize>, WaitCause> {
    let ways = 0..pass.shape(shape).ways.len();
    if pass.limits.unlimited {
        return Ok(ways.collect());
    }
    let spec = &job.spec;
    let claim = || {
        let (account, user, qos) = (
            spec.account.clone(),
            spec.user.name.clone(),
            spec.qos.clone(),
        );
        (
            shape,
            account,
            user,
            qos,
            (spec.borrow, spec.requeue, job.preempted.is_some()),
            secs,
        )
    };
    if !pass.limits.refused.is_empty()
        && let Some(reason) = pass.limits.refused.get(&claim())
    {
        return Err(WaitCause::Limit(reason.clone()));
    }
    let mut allowed = Vec::new();
    let mut no = None;
    for way in ways {
        match check_limits(pass, job, &pass.shape(shape).ways[way].take) {
            Ok(_) => allowed.push(way),
            Err(reason) => no = no.or(Some(reason)),
        }
    }
    match no {
        Some(reason) if allowed.is_empty() => {
            pass.limits.refused.insert(claim(), reason.clone());
            Err(WaitCause::Limit(reason))
        }
        _ => Ok(allowed),
    }
}

/// What limits say, and the class. Licences are for the timeline to judge.
pub(crate) fn check_limits(
    pass: &Pass,
    job: &PendingJob,
    take: &Take,
) -> Result<Option<RunClass>, Reason> {
    if pass.limits.unlimited {
        return Ok(None);
    }
    match pass.world.usage.check(job, take) {
        Err(reason) if reason.code == ReasonCode::Licenses => {
            let others = pass
                .world
                .usage
                .blockers(job, take)
                .into_iter()
                .find(|other| other.code != ReasonCode::Licenses);
            others.map_or(Ok(None), Err)
        }
        said => said,
    }
}

/// As `check`, for nodes that are known: whole ones that are kept idle are not broken into.
pub(crate) fn check_limits_on(
    pass: &Pass,
    job: &PendingJob,
    shape: JobClassId,
    (take, way, secs): (&Take, usize, u32),
    picked: &PickedNodes,
) -> Result<Option<RunClass>, Reason> {
    let class = check_limits(pass, job, take)?;
    kept_idle_there(pass, job, shape, (take, way, secs), picked, class).map_or(Ok(class), Err)
}

/// What of these nodes is kept from a job, whatever limits say: by its reservation, or idle for others.
pub(crate) fn kept_idle_there(
    pass: &Pass,
    job: &PendingJob,
    shape: JobClassId,
    (take, way, secs): (&Take, usize, u32),
    picked: &PickedNodes,
    class: Option<RunClass>,
) -> Option<Reason> {
    if let Some(short) = reserved_short(pass, shape, &take.gpus, secs) {
        return Some(short);
    }
    let spares = pass.world.usage.spares_kept(job, class);
    for (keeper, nodes) in &pass.headroom.kept_idle_on {
        let at = match spares {
            true => When::Now,
            false if pass.world.usage.is_left_by_others(job, *keeper) => When::Then,
            false => continue,
        };
        let there: PickedNodes = each(picked)
            .filter(|(at, _)| nodes.contains(*at))
            .map(|(at, part)| (at..at + 1, part))
            .collect();
        let taken = take_of(pass, shape, way, &there, secs).gpus;
        if let Some(kept) = pass.world.usage.kept_in(at, *keeper, &taken) {
            return Some(kept);
        }
    }
    let owed = if pass.headroom.kept_nodes.is_empty() {
        Vec::new()
    } else {
        owed_nodes(pass, job)
    };
    for kept in &pass.headroom.kept_nodes {
        let is_idle = |at: usize| kept.nodes.contains(at) && is_node_idle(pass, at);
        let is_idle_then = |at: usize| {
            kept.nodes.contains(at)
                && !owed.contains(&at)
                && (is_node_idle(pass, at) || is_node_left(pass, at))
        };
        let is_owed = owed.iter().any(|at| kept.nodes.contains(*at));
        let short = if spares {
            too_few_nodes(pass, kept, picked, &is_idle)
        } else {
            None
        };
        let short = short.or_else(|| {
            if is_owed {
                too_few_nodes(pass, kept, picked, &is_idle_then)
            } else {
                None
            }
        });
        if let Some(short) = short {
            return Some(short);
        }
    }
    None
}

/// Why some nodes may not be taken of those that a partition keeps whole.
fn too_few_nodes(
    pass: &Pass,
    kept: &KeptNodes,
    picked: &PickedNodes,
    is_idle: &dyn Fn(usize) -> bool,
) -> Option<Reason> {
    let taken = each(picked).filter(|(at, _)| is_idle(*at)).count();
    let idle = kept.nodes.ones().filter(|at| is_idle(*at)).count();
    if taken == 0 || idle >= kept.most + taken {
        return None;
    }
    let name = &pass.snapshot.config.partitions[kept.partition].name;
    let plural = |count: usize| if count == 1 { "node" } else { "nodes" };
    let text = format!(
        "partition {name} keeps {} whole {} idle for urgent work: {idle} {} idle and this job would take {taken}",
        kept.most,
        plural(kept.most),
        if idle == 1 { "is" } else { "are" }
    );
    Some(Reason::new(ReasonCode::Headroom, text))
}

/// Nodes of jobs before one for which others go, and which leave whole ones idle.
fn owed_nodes(pass: &Pass, job: &PendingJob) -> Vec<usize> {
    let owed = pass
        .world
        .usage
        .owed_to_others(job)
        .filter(|owed| owed.spares);
    owed.flat_map(|owed| &owed.on)
        .filter_map(|node| pass.world.cluster.place(*node))
        .collect()
}

/// Whether all runs on a node are leaving.
fn is_node_left(pass: &Pass, at: usize) -> bool {
    let goes = |run: RunId| {
        pass.preemption.leaving.runs.contains(&run)
            || pass
                .preempts()
                .any(|one| one.run == run && one.mode != PreemptMode::Suspend)
    };
    let is_new = pass.plan.starts.iter().any(|start| {
        start
            .allocation
            .iter()
            .any(|share| share.node == pass.world.cluster.nodes[at].id)
    });
    !is_new && pass.world.cluster.held_on(at).all(|(run, ..)| goes(run))
}

/// Whether a node is idle now.
fn is_node_idle(pass: &Pass, at: usize) -> bool {
    is_node_idle_at(pass, at, pass.now)
}

/// The same at a time, by what runs and is reserved.
pub(crate) fn is_node_idle_at(pass: &Pass, at: usize, time: Timestamp) -> bool {
    let cluster = &pass.world.cluster;
    let make = &cluster.makes.list[cluster.nodes[at].make as usize];
    let free = cluster.room(at).profile.free_at(time);
    free.cpus == make.all.cpus && free.gpus == make.all.gpus
}

/// What a job would take of these nodes.
pub(crate) fn take_of(
    pass: &Pass,
    shape: JobClassId,
    way: usize,
    picked: &PickedNodes,
    secs: u32,
) -> Take {
    take_at(pass, shape, way, picked, secs, pass.snapshot.now)
}

/// The same from a time on.
pub(crate) fn take_at(
    pass: &Pass,
    shape: JobClassId,
    way: usize,
    picked: &PickedNodes,
    secs: u32,
    from: Timestamp,
) -> Take {
    let of = pass.shape(shape);
    if pass.limits.unlimited && !is_counted(pass, shape) {
        return Take::default();
    }
    let mut take = Take {
        nodes: count(picked) as u32,
        ..Take::default()
    };
    for (at, part) in each(picked) {
        let track = &pass.world.cluster.nodes[at];
        let make = &pass.world.cluster.makes.list[track.make as usize];
        let Some(need) = of.need(way, part, track.make) else {
            continue;
        };
        take.cpus = take.cpus.saturating_add(need.cpus);
        let mut add = |group: usize, milli: u64| {
            if let Some(group) = make.groups.get(group).filter(|_| milli > 0) {
                *take.gpus.entry(group.gpu_type.clone()).or_default() += milli;
            }
        };
        if need.milli > 0 {
            add(need.groups.trailing_zeros() as usize, u64::from(need.milli));
        } else if let Some(amount) =
            pass.world
                .cluster
                .room(at)
                .amount(make, need, from, end_after(from, Some(secs)))
        {
            for (group, count) in amount
                .gpus
                .iter()
                .enumerate()
                .filter(|(_, count)| **count > 0)
            {
                add(
                    group,
                    u64::from(*count) * u64::from(make.groups[group].part.milli()),
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
            return Err(if *count > all {
                WaitCause::Limit(reason)
            } else {
                WaitCause::Short(reason)
            });
        }
    }
    Ok(())
}

/// Limits that stand against the alternative with the fewest of them.
pub(crate) fn limits_against(pass: &Pass, job: &PendingJob, shape: JobClassId) -> Vec<Reason> {
    if pass.limits.unlimited {
        return Vec::new();
    }
    let of_way = |way: &JobAlternative| -> Vec<Reason> {
        let reasons = pass.world.usage.blockers(job, &way.take).into_iter();
        reasons
            .filter(|reason| reason.code != ReasonCode::Licenses)
            .collect()
    };
    let fewest = pass.shape(shape).ways.iter().map(of_way);
    fewest.min_by_key(Vec::len).unwrap_or_default()
}
