//! Whether a job starts without some runs: the proof before a preemption, and for `--why`.
//!
//! Tried in a trial of the world that is rolled back.

use crate::backfill::choices::forget_not_before;
use crate::backfill::earliest::earliest_start;
use crate::cluster::node_class::NodeClassId;
use crate::cluster::node_state::NodeState;
use crate::cluster::node_states::NodeStateId;
use crate::cluster::nodes::end_after;
use crate::cluster::picked::PickedNodes;
use crate::headroom::IdleGpus;
use crate::job::job_class::JobClassId;
use crate::pass::Pass;
use crate::place::allowed::{check_limits, secs_now, take_of};
use crate::place::find::{find_nodes, gpu_types_for, nodes_of_type, smaller_nodes};
use crate::place::search::Ask;
use crate::plan::Preempt;
use crate::preempt::nomination::{
    add_preempts, cap_is_promised, free_for, nominate, nominated_nodes,
};
use crate::preempt::protection::is_suspended_by_preemption;
use crate::preempt::victims;
use crate::snapshot::{PendingJob, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::policy::{ALL_GPUS, PreemptMode};
use gmodel::run::NodeShare;
use gmodel::{GpuSet, JobId, Reason, ReasonCode, RunClass, RunId, Timestamp};
use gpolicy::running_run::end_of;
use std::collections::{BTreeMap, BTreeSet};

/// The most seconds between a snapshot and its plan: victims end no later than that after the time expected here.
const ENTRY_SECS: i64 = 10;

/// Pending jobs for which a forecast looks for later victims.
const MOST_LATER: usize = 64;

/// A job starts: its remaining victims may stay, so the pass no longer counts on what they hold.
pub(crate) fn keep_victims_of(pass: &mut Pass, job: JobId) {
    if pass.preemption.leaving.for_job.remove(&job).is_none() {
        return;
    }
    for run in pass
        .snapshot
        .running
        .iter()
        .filter(|run| run.stops_by.is_some() && run.victim_of == Some(job))
    {
        pass.preemption.leaving.runs.remove(&run.run);
        pass.world.usage.idle.stays(run, pass.snapshot);
    }
}

/// Whether the policy allows any preemption.
pub(crate) fn may_preempt(snapshot: &Snapshot) -> bool {
    let pairs = snapshot
        .policy
        .qos
        .values()
        .any(|qos| !qos.preempt.is_empty());
    !crate::place::limits_in_force::is_unlimited(snapshot)
        && !snapshot.running.is_empty()
        && (pairs || snapshot.policy.has_quotas())
}

/// Whether a job could start now without these runs and the runs that are ending already.
fn fits_without(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    gone: &BTreeSet<RunId>,
) -> bool {
    starts_without(pass, job, job_class, gone).is_some()
}

/// Whether a job could start now on an idle cluster without planned starts.
pub(crate) fn fits_when_idle(pass: &mut Pass, job: &PendingJob, job_class: JobClassId) -> bool {
    let secs = secs_now(pass, job, job_class);
    pass.try_out(|pass| {
        without_all_runs(pass);
        (0..pass.job_class(job_class).alternatives.len()).any(|alternative| {
            matches!(
                find_nodes(pass, job, job_class, alternative, secs),
                Ok(Some(_))
            )
        })
    })
}

/// Where it could.
pub(crate) fn starts_without(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    gone: &BTreeSet<RunId>,
) -> Option<PickedNodes> {
    let now = pass.snapshot.now;
    let secs = secs_now(pass, job, job_class);
    let end = end_after(now, Some(secs));
    let is_checked =
        pass.world.usage.idle.is_kept() || (!pass.limits.unlimited && is_open(pass, job_class));
    let alternatives = pass.job_class(job_class).alternatives.len();
    pass.try_out(|pass| {
        without_runs(pass, gone);
        (0..alternatives).find_map(|alternative| match is_checked {
            // Beside what must stay idle, and within its limits on those nodes, too.
            true => find_nodes(pass, job, job_class, alternative, secs)
                .ok()
                .flatten()
                .map(|found| found.picked),
            false => pass.search(job, job_class, |search, ask| {
                search.pick(ask, alternative, now, end)
            }),
        })
    })
}

/// Whether only the nodes decide what a job takes of limits and guarantees: GPUs of any type, several alternatives, whole
/// nodes.
pub(crate) fn is_open(pass: &Pass, job_class: JobClassId) -> bool {
    let alternatives = &pass.job_class(job_class).alternatives;
    let is_whole = || {
        alternatives
            .iter()
            .any(|alternative| alternative.parts.iter().any(|part| part.demand.exclusive))
    };
    alternatives.len() > 1
        || alternatives
            .iter()
            .any(|alternative| alternative.take.gpus.contains_key(ALL_GPUS))
        || is_whole()
}

/// The same, where it must be guaranteed then: on GPUs of a type, or nodes of a size, that this has room for.
fn is_owed_without(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    gone: &BTreeSet<RunId>,
) -> Option<PickedNodes> {
    let secs = secs_now(pass, job, job_class);
    let alternatives = pass.job_class(job_class).alternatives.len();
    pass.try_out(|pass| {
        without_runs(pass, gone);
        (0..alternatives)
            .find_map(|alternative| find_guaranteed(pass, job, job_class, alternative, secs))
    })
}

fn find_guaranteed(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    alternative: usize,
    secs: u32,
) -> Option<PickedNodes> {
    let now = pass.snapshot.now;
    let end = end_after(now, Some(secs));
    let liked = pass.search(job, job_class, |search, ask| {
        search.pick(ask, alternative, now, end)
    })?;
    let is_guaranteed = |pass: &Pass, picked: &PickedNodes| {
        let class = check_limits(
            pass,
            job,
            &take_of(pass, job_class, alternative, picked, secs),
        );
        matches!(class, Ok(Some(RunClass::Guaranteed)))
    };
    if is_guaranteed(pass, &liked) {
        return Some(liked);
    }
    let of_types = gpu_types_for(pass, job_class)
        .into_iter()
        .map(|kind| nodes_of_type(pass, job_class, &kind));
    let choices: Vec<FixedBitSet> = of_types
        .chain(smaller_nodes(pass, job_class, alternative))
        .collect();
    choices.into_iter().find_map(|only| {
        let picked = pass.search(job, job_class, |search, ask| {
            search.pick(
                &Ask {
                    only: Some(&only),
                    ..*ask
                },
                alternative,
                now,
                end,
            )
        });
        picked.filter(|picked| is_guaranteed(pass, picked))
    })
}

/// Takes runs off their nodes, in a trial.
pub(crate) fn without_runs(pass: &mut Pass, gone: &BTreeSet<RunId>) {
    let now = pass.snapshot.now;
    let runs: BTreeSet<RunId> = gone
        .iter()
        .chain(&pass.preemption.leaving.runs)
        .copied()
        .collect();
    let running = &pass.snapshot.running;
    let of_run = |run: &RunId| {
        running
            .binary_search_by_key(run, |one| one.run)
            .ok()
            .map(|at| &running[at])
    };
    let cluster = &mut pass.world.cluster;
    let shares = runs.iter().filter_map(of_run).flat_map(|run| &run.shares);
    let nodes: BTreeSet<usize> = shares
        .filter_map(|share| cluster.place(share.node))
        .collect();
    for at in nodes {
        let mut room = cluster.state(at).clone();
        let node_class = &cluster.node_classes.list[cluster.nodes[at].node_class as usize];
        for (id, end, share) in cluster.held_on(at).filter(|(run, ..)| runs.contains(run)) {
            match gone.contains(&id)
                && of_run(&id).is_some_and(|run| is_suspended_by_preemption(pass.snapshot, run))
            {
                true => room.leave(
                    node_class,
                    &NodeShare {
                        mem_bytes: 0,
                        gpus: GpuSet::default(),
                        ..share.clone()
                    },
                    now,
                    end,
                ),
                false => room.leave(node_class, share, now, end),
            }
        }
        *cluster.touch(at) = room;
        cluster.file(at);
    }
    let leave = gone
        .iter()
        .filter_map(of_run)
        .filter(|run| !is_suspended_by_preemption(pass.snapshot, run));
    if pass.world.usage.idle.is_kept() {
        pass.world
            .count_idle(|idle| idle.go_on_without(leave, pass.snapshot));
    }
}

/// Takes all runs off, in a trial.
fn without_all_runs(pass: &mut Pass) {
    let cluster = &mut pass.world.cluster;
    let mut idle: BTreeMap<NodeClassId, NodeStateId> = BTreeMap::new();
    for at in 0..cluster.nodes.len() {
        let node_class = cluster.nodes[at].node_class;
        match idle.get(&node_class) {
            Some(room) => cluster.set_state(at, *room),
            None => {
                let room =
                    NodeState::idle(&cluster.node_classes.list[node_class as usize], pass.now);
                *cluster.touch(at) = room;
                idle.insert(node_class, cluster.state_id(at));
            }
        }
        cluster.file(at);
    }
    pass.world.count_idle(IdleGpus::go_on_idle);
}

/// Chooses victims for a job that waits for nodes, where the policy allows it, and nominates their nodes for it.
pub(crate) fn preempt_for(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
) -> Option<Reason> {
    if let Some(reason) = keep_nomination(pass, job, job_class) {
        return Some(reason);
    }
    if cap_is_promised(pass, job) {
        return None;
    }
    let usage_before = pass.preemption.usage_before?;
    // Starts of this pass may have used up the guarantee.
    let alternative = &pass.job_class(job_class).alternatives.first()?.take;
    let class = pass.world.usage.check_but_idle(job, alternative).ok()?;
    if usage_before.check_but_idle(job, alternative).ok()? != class {
        return None;
    }
    // Room in the guarantee may depend on where victims end.
    let by_type = is_open(pass, job_class) && class == Some(RunClass::Guaranteed);
    let starts = |pass: &mut Pass, gone: &BTreeSet<RunId>| match by_type {
        true => is_owed_without(pass, job, job_class, gone),
        false => starts_without(pass, job, job_class, gone),
    };
    let victims = choose_victims(pass, job, &|pass, gone| starts(pass, gone).is_some())?;
    let reason = preempting_reason(&victims);
    let gone = victims.iter().map(|victim| victim.run).collect();
    let there = starts(pass, &gone);
    if !pass.world.usage.claim(job, &victims) {
        return None;
    }
    there
        .into_iter()
        .for_each(|there| free_for(pass, job, &there));
    victims
        .iter()
        .for_each(|victim| expect_back(pass, victim, pass.snapshot.now));
    nominate_usage(pass, job, job_class, class, &victims);
    add_preempts(pass, job, victims);
    nominate(pass, job);
    Some(reason)
}

/// The victims that let a job start. None where runs that are ending already are enough: the job waits for their end.
pub(crate) fn choose_victims(
    pass: &mut Pass,
    job: &PendingJob,
    starts: &dyn Fn(&mut Pass, &BTreeSet<RunId>) -> bool,
) -> Option<Vec<Preempt>> {
    let mut candidates = pass.preemption.candidates.take()?;
    let is_enough = !pass.preemption.leaving.runs.is_empty() && starts(pass, &BTreeSet::new());
    let victims = match is_enough {
        true => None,
        false => candidates.victims(job, &mut |gone| starts(pass, gone)),
    };
    pass.preemption.candidates = Some(candidates);
    victims.filter(|victims| !victims.is_empty())
}

/// Keeps the nomination of a job while its victims end, or that it got in its turn in another of its partitions.
fn keep_nomination(pass: &mut Pass, job: &PendingJob, job_class: JobClassId) -> Option<Reason> {
    if let Some(runs) = pass.preemption.leaving.for_job(job) {
        if !pass.world.usage.is_nominated(job) {
            let class = class_owed(pass, job, job_class);
            if job.is_among(&pass.preemption.leaving.owed) {
                pass.world.usage.claim(job, &[]);
            }
            nominate_usage(pass, job, job_class, class, &[]);
        }
        nominate(pass, job);
        return Some(preempting(runs));
    }
    if waits_for_the_rest(pass, job, job_class) {
        if !pass.world.usage.is_nominated(job) {
            let class = class_owed(pass, job, job_class);
            nominate_usage(pass, job, job_class, class, &[]);
        }
        nominate(pass, job);
        return Some(job.reason.clone());
    }
    let chosen = |job: &PendingJob| {
        pass.preempts()
            .filter(|one| job.is_or_has(one.for_job))
            .count()
    };
    if job.is_choice() && chosen(job) > 0 {
        let runs = chosen(job);
        nominate(pass, job);
        return Some(preempting(runs));
    }
    None
}

/// Whether the victims have ended and the job still waits for the end of other jobs' victims: the nomination stays until then.
fn waits_for_the_rest(pass: &mut Pass, job: &PendingJob, job_class: JobClassId) -> bool {
    let has_some = job
        .particulars
        .nomination
        .as_ref()
        .is_some_and(|one| !one.nodes.is_empty())
        && !pass.preemption.leaving.runs.is_empty();
    has_some && fits_without(pass, job, job_class, &BTreeSet::new())
}

/// When the protected time of enough runs ends for a job that waits for room; `None`: no run would help, or some may be
/// ended now.
pub(crate) fn may_preempt_from(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
) -> Option<Timestamp> {
    let usage_before = pass
        .preemption
        .usage_before
        .filter(|_| pass.preemption.leaving.for_job(job).is_none())?;
    let alternative = &pass.job_class(job_class).alternatives.first()?.take;
    pass.world.usage.check_but_idle(job, alternative).ok()?;
    let (snapshot, others) = (pass.snapshot, victims_for_others(pass));
    victims::may_from(snapshot, usage_before, job, &others, &mut |gone| {
        fits_without(pass, job, job_class, gone)
    })
}

/// Runs preempted for earlier jobs in this pass, now or later.
fn victims_for_others(pass: &Pass) -> BTreeSet<RunId> {
    let later = pass.forecast.later_victims.runs.iter().copied();
    pass.preempts().map(|one| one.run).chain(later).collect()
}

/// In a forecast: protected runs become victims of a job when their protected time ends, if the job has no nodes before.
pub(crate) fn expect_later(pass: &mut Pass, job: &PendingJob, job_class: JobClassId) {
    let (snapshot, Some(usage_before), true) = (
        pass.snapshot,
        pass.preemption.usage_before,
        pass.forecast.is_on,
    ) else {
        return;
    };
    if pass.forecast.later_victims.jobs >= MOST_LATER {
        return;
    }
    pass.forecast.later_victims.jobs += 1;
    let Some(from) = may_preempt_from(pass, job, job_class) else {
        return;
    };
    if earliest_start(pass, job, job_class).is_some_and(|found| found.at <= from) {
        return;
    }
    let others = victims_for_others(pass);
    let victims = victims::victims_at(snapshot, usage_before, job, from, &others, &mut |gone| {
        fits_without(pass, job, job_class, gone)
    });
    let victims = victims.unwrap_or_default();
    victims
        .iter()
        .for_each(|victim| expect_back(pass, victim, from));
    let later = victims.iter().map(|victim| victim.run);
    pass.forecast.later_victims.runs.extend(later);
    forget_not_before(pass);
}

/// The class in which a preempting job is to start.
fn class_owed(pass: &Pass, job: &PendingJob, job_class: JobClassId) -> Option<RunClass> {
    let alternative = pass.job_class(job_class).alternatives.first()?;
    pass.world
        .usage
        .check_but_idle(job, &alternative.take)
        .ok()?
}

/// Reserves for the preemptor, against lower-priority jobs, what its victims do not free.
pub(crate) fn nominate_usage(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    class: Option<RunClass>,
    victims: &[Preempt],
) {
    let snapshot = pass.snapshot;
    let Some(alternative) = pass.memory.job_classes.list[job_class as usize]
        .alternatives
        .first()
    else {
        return;
    };
    let leave = victims
        .iter()
        .filter(|victim| victim.mode != PreemptMode::Suspend);
    let leave = leave.filter_map(|victim| {
        snapshot
            .running
            .binary_search_by_key(&victim.run, |one| one.run)
            .ok()
    });
    let on = nominated_nodes(pass, job);
    pass.world.usage.nominate(
        job,
        &alternative.take,
        class,
        &on,
        leave.map(|at| &snapshot.running[at]),
        snapshot,
    );
}

/// Expects the end of a victim soon after a time, for the planned start of the preemptor.
pub(crate) fn expect_back(pass: &mut Pass, victim: &Preempt, from: Timestamp) {
    let running = &pass.snapshot.running;
    let run = running
        .binary_search_by_key(&victim.run, |one| one.run)
        .ok()
        .map(|at| &running[at]);
    let Some(run) = run.filter(|_| victim.mode != PreemptMode::Suspend) else {
        return;
    };
    let config = &pass.snapshot.config;
    let checkpoint = run.spec.checkpoint.as_ref().or(config
        .scheduler
        .preempt
        .default_checkpoint
        .as_ref());
    let grace_secs =
        i64::from(checkpoint.map_or(0, |one| one.grace_secs)) + i64::from(config.kill_grace_secs);
    let soon = from.plus_secs(grace_secs + ENTRY_SECS);
    let end = end_of(run);
    let cluster = &mut pass.world.cluster;
    for share in run.shares.iter().filter(|_| soon < end) {
        let Some(at) = cluster.place(share.node) else {
            continue;
        };
        let mut room = cluster.state(at).clone();
        room.leave_at(
            &cluster.node_classes.list[cluster.nodes[at].node_class as usize],
            share,
            soon,
            end,
        );
        *cluster.touch(at) = room;
    }
}

pub(crate) fn preempting_reason(victims: &[Preempt]) -> Reason {
    let freezes = victims
        .iter()
        .all(|victim| victim.mode == PreemptMode::Suspend);
    match freezes {
        true => suspending(victims.len()),
        false => preempting(victims.len()),
    }
}

fn suspending(runs: usize) -> Reason {
    let text = if runs == 1 {
        "a run is suspended".into()
    } else {
        format!("{runs} runs are suspended")
    };
    Reason::new(
        ReasonCode::Preempting,
        format!("{text} to make room for it"),
    )
}

fn preempting(runs: usize) -> Reason {
    let text = match runs {
        1 => "a run is ended to make room for it".into(),
        runs => format!("{runs} runs are ended to make room for it"),
    };
    Reason::new(ReasonCode::Preempting, text)
}
