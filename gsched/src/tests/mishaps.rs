//! Pools in which nodes fail and return, jobs are held, cancelled and requeued, and the policy changes, round after round: a planner that is
//! kept decides as a new one (each round compares). No job starts on missing nodes, each pending job has a reason, and in calm
//! it comes to rest.

use super::pool::{Job, Pool, guarantees, jobs};
use super::promises::is_within_the_node;
use super::some_reservations;
use crate::tests::world::world;
use gmodel::policy::PreemptMode;
use gmodel::{NodeId, ReasonCode};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
enum Mishap {
    NodeFails,
    NodesReturn,
    Hold,
    ReleaseAll,
    CancelWaiting,
    CancelRun,
    RequeueRun,
    OtherPolicy,
    Quiet,
}

fn mishaps() -> impl Strategy<Value = Vec<(Mishap, prop::sample::Index)>> {
    use Mishap::*;
    let kinds = vec![
        NodeFails,
        NodesReturn,
        Hold,
        ReleaseAll,
        CancelWaiting,
        CancelRun,
        RequeueRun,
        OtherPolicy,
        Quiet,
        Quiet,
    ];
    prop::collection::vec(
        (prop::sample::select(kinds), any::<prop::sample::Index>()),
        16,
    )
}

fn happen(pool: &mut Pool, (what, which): (Mishap, prop::sample::Index), policies: &[String; 2]) {
    let (waiting, runs) = (pool.snapshot.pending.len(), pool.snapshot.running.len());
    match what {
        Mishap::NodeFails => pool.lose_node(which.index(4)),
        Mishap::NodesReturn => pool
            .snapshot
            .nodes
            .iter_mut()
            .for_each(|node| node.unavailable = None),
        Mishap::Hold if waiting > 0 => {
            let job = pool.snapshot.pending[which.index(waiting)].id;
            let of_job = pool.snapshot.pending.iter_mut().filter(|one| one.id == job);
            of_job.for_each(|one| one.particulars.held_by = Some("user:ann".into()));
        }
        Mishap::ReleaseAll => pool
            .snapshot
            .pending
            .iter_mut()
            .for_each(|job| job.particulars.held_by = None),
        Mishap::CancelWaiting if waiting > 0 => {
            let job = pool.snapshot.pending[which.index(waiting)].id;
            pool.snapshot.pending.retain(|one| one.id != job);
        }
        Mishap::CancelRun | Mishap::RequeueRun if runs > 0 => {
            let run = pool.snapshot.running[which.index(runs)].run;
            pool.stop(run, matches!(what, Mishap::RequeueRun));
        }
        Mishap::OtherPolicy => pool.snapshot.policy = world(&policies[which.index(2)]).policy,
        _ => {}
    }
}

fn all_is_well(pool: &Pool, told: &crate::Plan) -> Result<(), TestCaseError> {
    is_within_the_node(&pool.snapshot);
    let down: BTreeSet<NodeId> = pool
        .snapshot
        .nodes
        .iter()
        .filter(|node| node.unavailable.is_some())
        .map(|node| node.id)
        .collect();
    for start in &told.starts {
        prop_assert!(
            start
                .allocation
                .iter()
                .all(|share| !down.contains(&share.node)),
            "{:?} on a node that is down",
            start
        );
    }
    for preempt in &told.preempts {
        let whom = pool
            .snapshot
            .pending
            .iter()
            .find(|job| job.id == preempt.for_job);
        prop_assert!(
            whom.is_some_and(|job| job.is_eligible(pool.snapshot.now)),
            "{:?} for one who cannot start",
            preempt
        );
    }
    for job in &pool.snapshot.pending {
        prop_assert_ne!(
            job.reason.code,
            ReasonCode::None,
            "job {} does not know why it waits",
            job.id
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_all_know_why_they_wait_and_it_comes_to_rest(
        jobs in jobs(24), mishaps in mishaps(), lab in 1..8u64, vision in 0..3u64, bio in 0..4u64, pairs in any::<bool>(), cancels in any::<bool>(),
        kept in 0..4u64, lasting in any::<u32>(), backfill in some_reservations(),
    ) {
        let policy = |lab: u64, bio: u64| format!("{}qos urgent headroom={kept}\n", guarantees(lab.max(vision), vision, bio, pairs));
        let policies = [policy(lab, bio), policy(bio + 1, lab / 2)];
        let mut pool = Pool::with(&policies[0], backfill);
        let set_mode = |pool: &mut Pool| {
            if cancels {
                Arc::make_mut(&mut pool.snapshot.policy).qos.get_mut("low").unwrap().preempt_mode = Some(PreemptMode::Cancel);
            }
        };
        set_mode(&mut pool);
        for (round, mishap) in mishaps.into_iter().enumerate() {
            for (id, job) in (1..).zip(&jobs).filter(|(_, job)| job.comes == round) {
                pool.submit(id, job, lasting & (1 << (id % 32)) != 0);
            }
            happen(&mut pool, mishap, &policies);
            set_mode(&mut pool);
            let told = pool.round();
            all_is_well(&pool, &told)?;
        }
        pool.snapshot.nodes.iter_mut().for_each(|node| node.unavailable = None);
        pool.snapshot.pending.iter_mut().for_each(|job| job.particulars.held_by = None);
        for _ in 0..100 {
            let told = pool.round();
            all_is_well(&pool, &told)?;
        }
        let settled = pool.preempted.len();
        for _ in 0..30 {
            pool.round();
        }
        prop_assert_eq!(pool.preempted.len(), settled, "it goes on: {:?}", &pool.preempted[settled..]);
    }
}

#[test]
fn much_happens_in_such_pools() {
    let mut pool = Pool::new(&guarantees(1, 0, 0, true));
    let job = |ask: usize| Job {
        comes: 0,
        account: 0,
        user: 0,
        ask,
        list: 0,
        high: false,
        secs: 600,
        percent: 100,
    };
    (1..6).for_each(|id| pool.submit(id, &job(1), true));
    pool.round();
    let before = pool.snapshot.running.len();
    pool.lose_node(0);
    assert!(pool.snapshot.running.len() < before && !pool.snapshot.pending.is_empty());
    let run = pool.snapshot.running[0].run;
    pool.stop(run, true);
    assert!(pool.snapshot.pending.iter().any(|job| job.id == run.job));
}
