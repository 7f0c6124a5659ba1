//! The whole scheduler round after round on random pools: several partitions, whole GPUs, shares and MIG slices side by side,
//! guarantees at two levels, limits of every kind. What holds after each round, and that demand which does not change comes to rest.

use super::pool::{
    ACCOUNTS, GRACE_SECS, LIMITS, MIN_RUN_SECS, Pool, ROUND_SECS, USERS, guarantees, jobs,
};
use super::promises::is_within_the_node;
use super::some_reservations;
use crate::ledger::Ledger;
use crate::tests::world::give_back;
use crate::{Plan, RunningRun, Snapshot, WorkBudget, forecast, plan, queue_order};
use gmodel::policy::{GpuAmounts, Limits, Placement};
use gmodel::{JobId, NodeId, RunClass, Timestamp};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What some runs hold together.
#[derive(Default)]
struct Held {
    jobs: u64,
    milli: u64,
    h100: u64,
    a100: u64,
    cpus: u64,
}

fn held(snapshot: &Snapshot, of: impl Fn(&RunningRun) -> bool) -> Held {
    let mut sum = Held::default();
    for run in snapshot.running.iter().filter(|run| of(run)) {
        sum.jobs += 1;
        for share in &run.shares {
            let on_h100 = share.node != NodeId(3);
            let milli = share.gpus.milli();
            sum.milli += milli;
            *(if on_h100 {
                &mut sum.h100
            } else {
                &mut sum.a100
            }) += milli;
            sum.cpus += u64::from(share.cpus);
        }
    }
    sum
}

fn is_of(run: &RunningRun, account: &str) -> bool {
    run.spec.account == account
        || (account == "lab" && ["vision", "nlp"].contains(&&*run.spec.account))
}

/// The limits of [`LIMITS`], and that of a user in the partition odd, counted anew.
fn no_limit_is_exceeded(snapshot: &Snapshot) {
    let most = |what: &str, is: u64, most: u64| assert!(is <= most, "{what}: {is} of {most}");
    let lab = held(snapshot, |run| is_of(run, "lab"));
    most("GPUs of lab", lab.milli, 7000);
    most("h100 of lab", lab.h100, 5000);
    most(
        "GPUs of vision",
        held(snapshot, |run| is_of(run, "vision")).milli,
        4000,
    );
    most(
        "jobs of nlp",
        held(snapshot, |run| is_of(run, "nlp")).jobs,
        3,
    );
    most(
        "CPUs of bio",
        held(snapshot, |run| is_of(run, "bio")).cpus,
        4,
    );
    let high = |run: &RunningRun| run.spec.qos == "high";
    most("GPUs of high", held(snapshot, high).milli, 5000);
    for user in USERS {
        let own = |run: &RunningRun| run.spec.user.name == user;
        most(
            "GPUs of a user of vision",
            held(snapshot, |run| own(run) && is_of(run, "vision")).milli,
            2000,
        );
        most(
            "jobs of a user in high",
            held(snapshot, |run| own(run) && high(run)).jobs,
            3,
        );
        most(
            "GPUs of a user in odd",
            held(snapshot, |run| own(run) && run.spec.partition == "odd").milli,
            3000,
        );
    }
    for account in ACCOUNTS {
        most(
            "h100 of an account in high",
            held(snapshot, |run| run.spec.account == account && high(run)).h100,
            3000,
        );
    }
    guarantees_hold(snapshot, 6, 3);
    let bio = held(snapshot, |run| {
        run.class == Some(RunClass::Guaranteed) && is_of(run, "bio")
    });
    most("guaranteed a100 of bio", bio.a100, 1000);
    most("guaranteed h100 of bio", bio.h100, 0);
}

/// Guaranteed runs stay within each guarantee, at both levels. Vision's part of lab's guarantee belongs to vision only.
pub(super) fn guarantees_hold(snapshot: &Snapshot, lab: u64, vision: u64) {
    let standing = |account: &str| {
        held(snapshot, |run| {
            run.class == Some(RunClass::Guaranteed) && is_of(run, account)
        })
        .milli
    };
    assert!(
        standing("lab") <= lab * 1000 && standing("vision") <= vision * 1000,
        "lab {} and vision {}",
        standing("lab"),
        standing("vision")
    );
    let others = standing("lab") - standing("vision");
    assert!(
        others + vision * 1000 <= lab * 1000,
        "{others} of lab stand on what is vision's"
    );
    assert_eq!(standing("free"), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn no_limit_is_exceeded_at_any_level_whatever_comes_and_goes(jobs in jobs(30), backfill in some_reservations()) {
        let mut pool = Pool::with(LIMITS, backfill);
        let config = Arc::make_mut(&mut pool.snapshot.config);
        let odd = config.partitions.iter_mut().find(|one| one.name == "odd").unwrap();
        odd.per_user = Limits { gpus: Some(GpuAmounts::all(3)), ..Limits::default() };
        for round in 0..20 {
            for (id, job) in (1..).zip(&jobs).filter(|(_, job)| job.comes == round) {
                pool.submit(id, job, false);
            }
            pool.round();
            is_within_the_node(&pool.snapshot);
            no_limit_is_exceeded(&pool.snapshot);
        }
    }
}

/// The jobs that would start at once if each account used its own guarantee only.
fn owed(snapshot: &Snapshot) -> BTreeSet<JobId> {
    let mut left = snapshot.clone();
    left.running.clear();
    for run in &snapshot.running {
        if run.class == Some(RunClass::Guaranteed) && run.stops_by.is_none() {
            left.running.push(run.clone());
        } else {
            give_back(&mut left.nodes, run);
        }
    }
    let ledger = Ledger::new(&left);
    let order = queue_order::in_order(&left, &ledger);
    let guaranteed: BTreeSet<JobId> = order
        .iter()
        .filter(|one| one.class == Some(RunClass::Guaranteed))
        .map(|one| left.pending[one.at].id)
        .collect();
    left.pending.retain(|job| guaranteed.contains(&job.id));
    plan(&left, WorkBudget::default())
        .starts
        .into_iter()
        .map(|start| start.job)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]
    /// The bound: grace time of the victims, protected time of returned runs, and one pass.
    #[test]
    fn guaranteed_demand_starts_within_its_bound(jobs in jobs(24), lab in 4..8u64, vision in 0..4u64, bio in 0..4u64, pairs in any::<bool>(), backfill in some_reservations()) {
        let bound = MIN_RUN_SECS + GRACE_SECS + 2 * ROUND_SECS;
        let mut pool = Pool::with(&guarantees(lab, vision, bio, pairs), backfill);
        // Nodes planned for a higher tier are closed to a lower one.
        Arc::make_mut(&mut pool.snapshot.config).partitions.iter_mut().for_each(|one| one.priority_tier = 1);
        let mut since: BTreeMap<JobId, Timestamp> = BTreeMap::new();
        for round in 0..30 {
            for (id, job) in (1..).zip(&jobs).filter(|(_, job)| job.comes == round) {
                pool.submit(id, job, false);
            }
            pool.round();
            is_within_the_node(&pool.snapshot);
            guarantees_hold(&pool.snapshot, lab, vision);
            let (now, owed) = (pool.snapshot.now, owed(&pool.snapshot));
            since.retain(|job, _| owed.contains(job));
            for job in owed {
                let from = *since.entry(job).or_insert(now);
                prop_assert!(now.since_secs(from) <= bound, "job {} is owed its start since {} s: {:?}", job, now.since_secs(from), pool.preempted);
            }
        }
    }

    /// With constant demand preemption stops after some rounds, and no two jobs preempt each other without the end of a third
    /// in between.
    #[test]
    fn demand_that_does_not_change_comes_to_rest(jobs in jobs(20), lab in 2..8u64, vision in 0..3u64, bio in 0..4u64, pairs in any::<bool>(), backfill in some_reservations()) {
        let mut pool = Pool::with(&guarantees(lab.max(vision), vision, bio, pairs), backfill);
        for (id, job) in (1..).zip(&jobs) {
            pool.submit(id, job, true);
        }
        for _ in 0..120 {
            pool.round();
        }
        let settled = pool.preempted.len();
        for _ in 0..60 {
            pool.round();
        }
        prop_assert_eq!(pool.preempted.len(), settled, "it goes on: {:?}", &pool.preempted[settled..]);
        for (first, who, whom) in &pool.preempted {
            let back = pool.preempted.iter().find(|(at, one, other)| at > first && (one, other) == (whom, who));
            // The end of a third run may leave a guarantee to an earlier borrower.
            let is_otherwise = |until: Timestamp| pool.preempted.iter().any(|(at, ..)| first < at && *at < until);
            if let Some((second, ..)) = back {
                prop_assert!(is_otherwise(*second), "{} and {} gave way to each other: {:?}", who, whom, pool.preempted);
            }
        }
        for job in pool.jobs.keys() {
            let times = pool.preempted.iter().filter(|(_, who, _)| who == job).count();
            prop_assert!(times <= 2, "job {} gave way {} times: {:?}", job, times, pool.preempted);
        }
    }

    /// Later jobs of the order change neither the starts nor the planned starts of earlier ones.
    #[test]
    fn no_later_job_changes_the_starts_of_earlier_ones(
        jobs in jobs(24), lab in 2..8u64, vision in 0..3u64, bio in 0..4u64, pairs in any::<bool>(), cut in any::<prop::sample::Index>(),
        backfill in some_reservations(),
    ) {
        let mut pool = Pool::with(&guarantees(lab.max(vision), vision, bio, pairs), backfill);
        // The other placements ask what the whole queue wants usually.
        Arc::make_mut(&mut pool.snapshot.config).scheduler.placement = Placement::BestFit;
        for round in 0..14 {
            for (id, job) in (1..).zip(&jobs).filter(|(_, job)| job.comes == round) {
                pool.submit(id, job, false);
            }
            if !pool.snapshot.pending.is_empty() {
                before_and_after(&pool.snapshot, &cut)?;
            }
            pool.round();
        }
    }
}

fn before_and_after(snapshot: &Snapshot, cut: &prop::sample::Index) -> Result<(), TestCaseError> {
    let order = queue_order::in_order(snapshot, &Ledger::new(snapshot));
    let (first, rest) = order.split_at(cut.index(order.len()));
    let ids = |part: &[queue_order::OrderedJob]| {
        part.iter()
            .map(|one| snapshot.pending[one.at].id)
            .collect::<BTreeSet<JobId>>()
    };
    let (first, rest) = (ids(first), ids(rest));
    // A job with entries on both sides takes nodes from a job between them.
    if !first.is_disjoint(&rest) {
        return Ok(());
    }
    let mut alone = snapshot.clone();
    alone.pending.retain(|job| first.contains(&job.id));
    let of_first = |mut told: Plan| {
        told.starts.retain(|start| first.contains(&start.job));
        told.preempts.retain(|one| first.contains(&one.for_job));
        (told.starts, told.preempts)
    };
    let told = |snapshot: &Snapshot| of_first(plan(snapshot, WorkBudget::default()));
    prop_assert_eq!(told(snapshot), told(&alone));
    // Two that start at one time may be told of in any order.
    let starts = |snapshot: &Snapshot| {
        forecast(snapshot, &first)
            .into_iter()
            .map(|one| (one.job, one.start))
            .collect::<BTreeSet<_>>()
    };
    prop_assert_eq!(starts(snapshot), starts(&alone));
    Ok(())
}
