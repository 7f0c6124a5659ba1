//! Random obstacles of every kind: each blocker that `--why` names must go, and without all of them the job starts.

use super::promises::cluster;
use super::why_changes::starts;
use super::{NOW, picture};
use crate::{Snapshot, WorkBudget, forecast, plan, why};
use gmodel::config::PartitionState;
use gmodel::policy::{
    Account, Budget, BudgetKind, GpuAmounts, JobOrder, Limits, Period, Qos, Reservation,
    ReservedPart,
};
use gmodel::{JobId, NodeId, Reason, ReasonCode};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Things that can stand in the way of all jobs of a cluster, one a bit.
const OBSTACLES: u32 = 14;

fn obstructed(mut snapshot: Snapshot, which: u32) -> Snapshot {
    let has = |bit: u32| which & (1 << bit) != 0;
    let config = Arc::make_mut(&mut snapshot.config);
    config.scheduler.order = JobOrder::Fifo;
    let partition = &mut config.partitions[0];
    partition.state = if has(0) {
        PartitionState::Down
    } else {
        PartitionState::Up
    };
    partition.max_time_secs = has(1).then_some(1);
    partition.max_nodes = has(2).then_some(0);
    partition.headroom = has(3).then(|| GpuAmounts::all(1_000_000_000));
    config
        .scheduler
        .licences
        .insert("matlab".into(), if has(4) { 1 } else { 9 });
    let none_at_once = |yes: bool| Limits {
        running_jobs: yes.then_some(0),
        ..Limits::default()
    };
    let cap = Budget {
        kind: BudgetKind::Cap,
        gpu_hours: 0,
        period: Period::Week,
        gpu_type: None,
    };
    let account = Account {
        name: "a".into(),
        group: none_at_once(has(5)),
        budgets: has(6).then_some(cap).into_iter().collect(),
        guaranteed: has(7).then(|| GpuAmounts::all(0)),
        ..Account::default()
    };
    let policy = Arc::make_mut(&mut snapshot.policy);
    policy.accounts.insert("a".into(), account);
    policy.qos.insert(
        "q".into(),
        Qos {
            name: "q".into(),
            group: none_at_once(has(8)),
            ..Qos::default()
        },
    );
    let reservation = Reservation {
        name: "r".into(),
        start: NOW,
        duration_secs: u32::MAX,
        what: ReservedPart::AllNodes,
        accounts: if has(9) {
            BTreeSet::new()
        } else {
            BTreeSet::from(["a".to_owned()])
        },
        flex: true,
        ..Reservation::default()
    };
    policy.reservations.insert("r".into(), reservation);
    for job in &mut snapshot.pending {
        job.particulars.held_by = has(10).then(|| "user:bob".into());
        job.eligible = if has(11) { NOW.plus_secs(60) } else { NOW };
        job.particulars.dependency =
            has(12).then(|| Reason::new(ReasonCode::Dependency, "waits for job 1"));
        let spec = Arc::make_mut(&mut job.spec);
        (spec.account, spec.qos) = ("a".into(), "q".into());
        spec.reservation = Some("r".into());
        spec.licences.insert("matlab".into(), 2);
        spec.borrow = has(7).then_some(false);
        spec.deadline = has(13).then_some(NOW);
    }
    snapshot
}

/// Which of them a code stands for.
fn obstacle(code: &ReasonCode) -> Option<u32> {
    Some(match code {
        ReasonCode::PartitionDown => 0,
        ReasonCode::PartitionTimeLimit => 1,
        ReasonCode::PartitionNodeLimit => 2,
        ReasonCode::Headroom => 3,
        ReasonCode::Licenses => 4,
        ReasonCode::AssocGrpJobsLimit => 5,
        ReasonCode::AssocGrpBilling => 6,
        ReasonCode::Quota => 7,
        ReasonCode::QOSGrpJobsLimit => 8,
        ReasonCode::Reservation => 9,
        ReasonCode::JobHeldUser => 10,
        ReasonCode::BeginTime => 11,
        ReasonCode::Dependency => 12,
        ReasonCode::DeadLine => 13,
        _ => return None,
    })
}

/// The same with room for all jobs.
fn roomy(snapshot: &Snapshot) -> Snapshot {
    let mut more = snapshot.clone();
    for id in 100..140 {
        more.nodes.push(super::node(
            NodeId(id),
            &[&format!("n{id}"), "h100:8", "32c"],
        ));
    }
    more
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn each_blocker_of_every_kind_must_go_and_the_last_one_is_enough(
        snapshot in cluster(), first in 0..OBSTACLES, second in 0..OBSTACLES + 6, third in 0..OBSTACLES + 20,
    ) {
        let which = [first, second, third].into_iter().filter(|bit| *bit < OBSTACLES).fold(0, |all, bit| all | 1u32 << bit);
        let clean = snapshot;
        let snapshot = obstructed(clean.clone(), which);
        for (job, exclusive) in snapshot.pending.iter().map(|job| (job.id, job.spec.request.exclusive)) {
            let why = why(&snapshot, job).unwrap();
            prop_assert_eq!(why.starts_now, starts(&snapshot, job));
            let alone = why.blockers.len() == 1;
            for blocker in &why.blockers {
                let changed = match obstacle(&blocker.code) {
                    Some(bit) => obstructed(clean.clone(), which & !(1 << bit)),
                    None if matches!(blocker.code, ReasonCode::Resources | ReasonCode::Priority | ReasonCode::ReqNodeNotAvail) => roomy(&snapshot),
                    None => continue,
                };
                // What goes for all jobs is lifted for this one: those that start beside it keep the room that they take.
                let lifted = beside(changed.clone(), &snapshot, job);
                // And those ahead that get other reservations by it leave other room.
                let started = starts(&lifted, job) && promised(&lifted, job) == promised(&snapshot, job);
                // Of jobs that all are freed together those before it may take what it needs.
                let only_it = { let mut one = changed; one.pending.retain(|other| other.id == job); one };
                // What whole nodes hold beyond the request is known only where there are some.
                let tells_all = obstacle(&blocker.code).is_some() || !exclusive;
                prop_assert!(!alone || !tells_all || starts(&only_it, job), "job {} without {:?} alone: {:?}", job, blocker, why);
                prop_assert!(alone || !started, "job {} starts without {:?}: {:?}", job, blocker, why);
            }
        }
    }
}

/// With what the others that a pass over `before` starts would hold.
fn beside(mut snapshot: Snapshot, before: &Snapshot, job: JobId) -> Snapshot {
    for start in plan(before, WorkBudget::default())
        .starts
        .into_iter()
        .filter(|start| start.job != job)
    {
        for share in &start.allocation {
            snapshot
                .nodes
                .iter_mut()
                .find(|node| node.id == share.node)
                .unwrap()
                .take(share);
        }
        snapshot.pending.retain(|one| one.id != start.job);
    }
    snapshot
}

/// When and where the others will start, as far as reservations are made for them.
fn promised(
    snapshot: &Snapshot,
    but: JobId,
) -> Vec<(JobId, Option<gmodel::Timestamp>, Vec<NodeId>)> {
    let others = snapshot
        .pending
        .iter()
        .map(|job| job.id)
        .filter(|job| *job != but)
        .collect();
    let told = forecast(snapshot, &others);
    told.into_iter()
        .filter(|one| one.start != Some(NOW))
        .map(|one| (one.job, one.start, one.nodes))
        .collect()
}

#[test]
fn a_whole_node_that_has_more_than_its_reservation_is_in_the_way() {
    let snapshot = picture(
        "reservation demo gpus=3 user=alice secs=100000
         node n1 h100:8
         job exclusive user=alice reservation=demo time=60",
    );
    assert!(!starts(&snapshot, JobId(10)));
    let told = why(&snapshot, JobId(10)).unwrap();
    let blockers: Vec<_> = told
        .blockers
        .iter()
        .map(|one| (one.code, &*one.text))
        .collect();
    assert_eq!(
        (told.starts_now, blockers),
        (
            false,
            vec![(
                ReasonCode::Reservation,
                "needs 8 GPUs, and reservation \"demo\" has 3 GPUs"
            )]
        )
    );
}
