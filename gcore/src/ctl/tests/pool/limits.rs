//! What no pass may break: limits, guarantees, and the protected time of runs.

use crate::ctl::tests::pool::USERS;
use crate::ctl::*;
use gmodel::policy::{ALL_GPUS, GpuAmounts, Limits};
use gmodel::{RunClass, Timestamp};
use std::collections::BTreeMap;

/// What runs hold: thousandths of GPUs, by type and all together, and how many they are.
pub(super) fn held<'a>(
    state: &State,
    runs: impl Iterator<Item = &'a Run>,
) -> (BTreeMap<String, u64>, u32) {
    let (mut gpus, mut count) = (BTreeMap::new(), 0);
    for run in runs {
        count += 1;
        for (share, _) in run
            .allocation
            .iter()
            .zip(&run.members)
            .filter(|(_, member)| !member.is_clean())
        {
            let node = state.node(share.node).unwrap();
            for grant in &share.gpus.0 {
                let kind = node.gpus[usize::from(grant.slot.0)].info.gpu_type.clone();
                *gpus.entry(kind).or_default() += u64::from(grant.part.milli());
                *gpus.entry(ALL_GPUS.to_owned()).or_default() += u64::from(grant.part.milli());
            }
        }
    }
    (gpus, count)
}

fn is_within(state: &State, account: &str, other: &str) -> bool {
    let mut at = Some(account.to_owned());
    while let Some(name) = at {
        if name == other {
            return true;
        }
        at = state
            .policy
            .accounts
            .get(&name)
            .and_then(|account| account.parent.clone());
    }
    false
}

/// Limits of all that something was started in: an edit may leave more running than it allows.
pub(super) fn limits_hold(state: &State, fresh: &[&Run]) {
    let spec = |run: &Run| state.job(run.id.job).unwrap().spec.clone();
    let live = || state.runs.values().filter(|run| !run.is_clean());
    let amounts = |what: &str, most: &GpuAmounts, has: &BTreeMap<String, u64>| {
        for (kind, most) in &most.0 {
            let has = has.get(kind).copied().unwrap_or(0);
            assert!(has <= *most, "{what}: {has} {kind} of {most}");
        }
    };
    let within = |what: &str, limits: &Limits, of: &dyn Fn(&Run) -> bool| {
        if fresh.iter().any(|run| of(run)) {
            let (gpus, count) = held(state, live().filter(|run| of(run)));
            limits
                .gpus
                .iter()
                .for_each(|most| amounts(what, most, &gpus));
            assert!(
                limits.running_jobs.is_none_or(|most| count <= most),
                "{what}: {count} jobs"
            );
        }
    };
    for account in state.policy.accounts.values() {
        let of = |run: &Run| is_within(state, &spec(run).account, &account.name);
        if let Some(limit) = &account.limit {
            within(
                &account.name,
                &Limits {
                    gpus: Some(limit.clone()),
                    ..Limits::default()
                },
                &of,
            );
        }
        within(&account.name, &account.group, &of);
        USERS.iter().for_each(|user| {
            within(user, &account.per_user, &|run| {
                of(run) && spec(run).user.name == *user
            })
        });
    }
    for qos in state.policy.qos.values() {
        let of = |run: &Run| spec(run).qos == qos.name;
        within(&qos.name, &qos.group, &of);
        USERS.iter().for_each(|user| {
            within(user, &qos.per_user, &|run| {
                of(run) && spec(run).user.name == *user
            })
        });
    }
    for partition in &state.config.partitions {
        // An earlier run of the job, on a node that is gone, may have been in another.
        let is_last = |run: &Run| {
            state
                .job(run.id.job)
                .is_some_and(|job| job.attempts == run.id.attempt)
        };
        within(&partition.name, &partition.group, &|run| {
            is_last(run) && spec(run).partition == partition.name
        });
    }
    let licences: u32 = live()
        .map(|run| spec(run).licences.get("matlab").copied().unwrap_or(0))
        .sum();
    assert!(licences <= 2, "{licences} licences");
    for array in state.arrays.values() {
        let tasks = live()
            .filter(|run| run.outcome.is_none())
            .filter(|run| {
                state
                    .job(run.id.job)
                    .and_then(|job| job.task)
                    .is_some_and(|task| task.array == array.id)
            })
            .count();
        assert!(
            array
                .tasks
                .limit()
                .is_none_or(|most| tasks <= most as usize),
            "{tasks} tasks of {}",
            array.id
        );
    }
    for run in fresh {
        assert!(
            run.allocation.len() >= spec(run).request.nodes_min as usize,
            "a part of {}",
            run.id
        );
    }
}

pub(super) fn guarantees_hold(state: &State) {
    for account in state.policy.accounts.values() {
        let Some(most) = &account.guaranteed else {
            continue;
        };
        let stands = |run: &&Run| {
            run.class == Some(RunClass::Guaranteed) && run.outcome.is_none() && run.stop.is_none()
        };
        let of = |run: &&Run| {
            state
                .job(run.id.job)
                .is_some_and(|job| is_within(state, &job.spec.account, &account.name))
        };
        let (gpus, _) = held(state, state.runs.values().filter(stands).filter(of));
        for (kind, most) in &most.0 {
            let has = gpus.get(kind).copied().unwrap_or(0);
            assert!(
                has <= *most,
                "{has} {kind} stand on the {most} of {}",
                account.name
            );
        }
    }
}

pub(super) fn left_alone_long_enough(state: &State, run: &Run, at: Timestamp) {
    let job = state.job(run.id.job).unwrap();
    let of_qos = state
        .policy
        .qos
        .get(&job.spec.qos)
        .map_or(0, |qos| qos.min_run_secs);
    let came_back = if job.past.preempted.is_some_and(|before| before < run.placed) {
        state.config.scheduler.preempt.min_run_secs
    } else {
        0
    };
    let ran = run
        .started
        .or(run.go)
        .map_or(0, |since| at.since_secs(since));
    assert!(
        ran >= i64::from(of_qos.max(came_back)),
        "{} is to go after {ran} s",
        run.id
    );
    assert!(run.allocation.len() == run.members.len());
}
