//! Idle GPUs that are kept, and jobs that may make others give way: they free what they need and what is to stay idle.

use super::pool::{Job, Pool, guarantees, jobs};
use crate::plan::Nomination;
use crate::tests::world::world;
use crate::{PendingJob, Plan, Snapshot, WorkBudget, plan};
use gmodel::policy::{GpuAmounts, Placement, PreemptMode};
use gmodel::{JobId, NodeId};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The starts, and the victims of each job.
fn told(snapshot: &Snapshot) -> (Vec<u64>, Vec<(u64, u64)>) {
    let told = plan(snapshot, WorkBudget::default());
    let ended = told
        .preempts
        .iter()
        .map(|one| (one.run.job.0, one.for_job.0))
        .collect();
    (told.starts.iter().map(|start| start.job.0).collect(), ended)
}

fn of(text: &str) -> (Vec<u64>, Vec<(u64, u64)>) {
    told(&world(text))
}

const TWO_LEFT: &str = "node n1 h100:4
    node n2 h100:4
    partition train nodes=n1,n2 headroom=1
    qos low
    qos high preempts=low
    qos urgent headroom=0
    run 1 b bob 3 on=n1 ago=10 qos=low partition=train
    run 2 b bob 1 on=n2 ago=800 qos=low partition=train
    run 3 b bob 2 on=n2 ago=700 qos=low partition=train
    ";

#[test]
fn others_give_way_until_what_is_kept_stays_idle_beside_the_job() {
    let one = |job: &str| of(&format!("{TWO_LEFT} {job} partition=train"));
    assert_eq!(
        one("job 10 b ann 1 qos=high"),
        (vec![10], vec![]),
        "of two that are idle one is kept"
    );
    assert_eq!(
        one("job 10 b ann 2 qos=low"),
        (vec![], vec![]),
        "nobody gives way to it"
    );
    assert_eq!(one("job 10 b ann 1 nodes=1 qos=urgent"), (vec![10], vec![]));
    assert_eq!(
        one("job 10 b ann 2 qos=high"),
        (vec![], vec![(1, 10)]),
        "it loses the least"
    );
    assert_eq!(
        one("job 10 b ann 4 qos=high"),
        (vec![], vec![(1, 10)]),
        "all of n1, and the one of n2 stays idle"
    );
    assert_eq!(
        one("job 10 b ann 8 nodes=2 qos=high"),
        (vec![], vec![]),
        "so many are never idle beside what is kept"
    );
    assert_eq!(one("job 10 b ann 7 nodes=1 qos=high"), (vec![], vec![]));
}

#[test]
fn gpus_of_no_known_type_are_idle_once() {
    let of_four = |gpus: u32| {
        of(&format!("node n1 gpu:4\npartition train nodes=n1 headroom=2\njob 10 b ann {gpus} partition=train")).0
    };
    assert_eq!((of_four(2), of_four(3)), (vec![10], vec![]));
}

#[test]
fn a_job_that_would_use_headroom_preempts_as_much_as_is_missing() {
    let text = |headroom: u32, job: &str| {
        format!(
            "node n1 h100:4
             node n2 h100:4
             partition train nodes=n1,n2 headroom={headroom}
             qos low
             qos high preempts=low
             run 1 b bob 1 on=n2 ago=900 qos=low partition=train
             run 2 b bob 1 on=n2 ago=10 qos=low partition=train
             run 3 b bob 2 on=n2 ago=100 qos=low partition=train
             {job} partition=train"
        )
    };
    assert_eq!(of(&text(0, "job 10 b ann 4 qos=high")), (vec![10], vec![]));
    assert_eq!(
        of(&text(1, "job 10 b ann 4 qos=high")),
        (vec![], vec![(2, 10)]),
        "the least loss"
    );
    assert_eq!(
        of(&text(2, "job 10 b ann 4 qos=high")),
        (vec![], vec![(3, 10)]),
        "one run that holds two"
    );
    assert_eq!(of(&text(4, "job 10 b ann 4 qos=high")).1.len(), 3);
    assert_eq!(of(&text(5, "job 10 b ann 4 qos=high")), (vec![], vec![]));
}

#[test]
fn guaranteed_demand_takes_back_what_others_keep_idle_besides() {
    let text = |more: &str| {
        format!(
            "node n1 h100:8
             account a g=4
             account b
             {more}
             run 1 b bob 2 on=n1 ago=900 class=b
             run 2 b bob 2 on=n1 ago=800 class=b
             run 3 b bob 2 on=n1 ago=700 class=b
             job 10 a ann 2"
        )
    };
    assert_eq!(of(&text("")), (vec![10], vec![]));
    assert_eq!(
        of(&text("qos urgent headroom=2")),
        (vec![], vec![(3, 10)]),
        "the two that are idle stay idle"
    );
    assert_eq!(of(&text("qos urgent headroom=7")), (vec![], vec![]));
    // GPUs that an account does not lend stay closed to borrowers, with preemption too.
    let lent = |lend: u32| {
        of(&format!(
            "node n1 h100:8
             account a g=4 lend={lend}
             account b
             qos low
             qos high preempts=low
             run 1 b bob 2 on=n1 ago=900 class=b qos=low
             run 2 b bob 2 on=n1 ago=800 class=b qos=low
             job 10 b eve 3 qos=high"
        ))
    };
    assert_eq!(
        (lent(3), lent(2)),
        ((vec![10], vec![]), (vec![], vec![(2, 10)]))
    );
}

#[test]
fn nothing_is_set_aside_for_a_job_that_can_never_leave_enough_idle() {
    let starts = |exclusive: bool, kept: u32| {
        let text = format!(
            "node n1 h100:4
             qos urgent headroom={kept}
             job 10 b ann 2 ago=9
             job 11 b eve 2"
        );
        let mut snapshot = world(&text);
        let first = snapshot
            .pending
            .iter_mut()
            .find(|job| job.id == JobId(10))
            .unwrap();
        Arc::make_mut(&mut first.spec).request.exclusive = exclusive;
        told(&snapshot).0
    };
    assert_eq!(starts(false, 1), [10]);
    assert_eq!(starts(true, 0), [10]);
    assert_eq!(
        starts(true, 1),
        [11],
        "the first would take all four, whatever else leaves"
    );
}

/// Two GPUs are to stay idle, and four of the first's nodes.
#[test]
fn nothing_is_set_aside_for_a_job_that_waits_for_a_drained_node() {
    let starts = |drained: bool, busy: bool| {
        let mut snapshot = world(
            "node n1 h100:4
             node n2 h100:4
             node n3 h100:2
             partition train nodes=n1,n2 headroom=4
             qos urgent headroom=2
             run 1 b bob 3 on=n1 ago=10 partition=train
             job 10 b ann 4 ago=9 partition=train
             job 11 b eve 2",
        );
        if !busy {
            let gone = snapshot.running.remove(0);
            gone.shares
                .iter()
                .for_each(|share| snapshot.nodes[share.node.0 as usize - 1].give(share));
        }
        snapshot.nodes[0].unavailable = drained.then(|| "drained".into());
        told(&snapshot).0
    };
    assert_eq!(starts(false, false), [10, 11]);
    assert_eq!(
        starts(false, true),
        [] as [u64; 0],
        "the run ends, and the first has its turn before the second"
    );
    assert_eq!(
        starts(true, false),
        [11],
        "nobody knows when the node is back"
    );
}

#[test]
fn a_limit_has_room_for_a_job_for_which_others_go_until_it_starts() {
    let text = |limit: u32| {
        world(&format!(
            "node n1 h100:4
             node n2 h100:4
             account a limit={limit}
             account b
             qos low
             qos mid
             qos high preempts=low
             run 1 b bob 4 on=n1 ago=900 qos=low
             run 2 b bob 2 on=n2 ago=900 qos=mid
             job 10 a ann 4 qos=high
             job 11 a eve 2 qos=low"
        ))
    };
    assert_eq!(told(&text(6)), (vec![11], vec![(1, 10)]));
    assert_eq!(
        told(&text(5)),
        (vec![], vec![(1, 10)]),
        "both are more than five"
    );
    let mut later = text(5);
    later.running[0].stops_by = Some(later.now.plus_secs(60));
    later.running[0].victim_of = Some(JobId(10));
    later.pending[0].particulars.nomination = Some(Nomination {
        nodes: Arc::new(vec![NodeId(1)]),
    });
    assert_eq!(told(&later), (vec![], vec![]), "nor while the run goes");
}

#[test]
fn no_run_is_preempted_where_ending_runs_free_enough() {
    let ended = |leaving: &str| {
        of(&format!(
            "node n1 h100:4
             node n2 h100:4
             qos low
             qos mid
             qos high preempts=low
             run 1 b bob 4 on=n1 ago=900 qos=mid {leaving}
             run 2 b bob 2 on=n2 ago=900 qos=mid
             run 3 b bob 2 on=n2 ago=900 qos=low
             job 10 b ann 2 qos=high"
        ))
    };
    assert_eq!(ended(""), (vec![], vec![(3, 10)]));
    assert_eq!(ended("leaving"), (vec![], vec![]));
}

/// Nodes of the partition with headroom score best: the job takes as many of those as may go, and others.
#[test]
fn a_job_on_several_nodes_takes_what_may_go_of_nodes_with_headroom_and_others() {
    let starts = |headroom: u32, nodes: u32, busy: &str| {
        of(&format!(
            "node n1 h100:4
             node n2 h100:4
             node n3 h100:4
             node n4 h100:4
             partition odd nodes=n1,n3 headroom={headroom}
             {busy}
             job 10 b ann {} nodes={nodes}",
            2 * nodes
        ))
        .0
    };
    assert_eq!(
        (starts(0, 3, ""), starts(6, 3, ""), starts(8, 3, "")),
        (vec![10], vec![10], vec![])
    );
    assert_eq!(
        (starts(6, 2, ""), starts(8, 2, ""), starts(6, 4, "")),
        (vec![10], vec![10], vec![])
    );
    let busy = "run 1 b bob 2 on=n3 ago=900 partition=odd";
    assert_eq!((starts(4, 3, busy), starts(4, 4, busy)), (vec![10], vec![]));
}

/// Between the order to go and the start, and at it.
#[test]
fn no_other_job_takes_what_a_preemptor_counts_on() {
    let text = |headroom: u32| {
        format!(
            "node n1 h100:4
             node n2 h100:4
             partition train nodes=n1,n2 headroom={headroom}
             qos low
             qos high preempts=low
             run 1 b bob 2 on=n1 ago=10 qos=low partition=train
             run 2 b bob 3 on=n2 ago=900 partition=train
             job 10 b ann 4 qos=high partition=train
             job 11 b eve 1 qos=low partition=train"
        )
    };
    assert_eq!(
        of(&text(0)),
        (vec![11], vec![(1, 10)]),
        "what is idle on n2 the first does not need"
    );
    assert_eq!(
        of(&text(1)),
        (vec![], vec![(1, 10)]),
        "of three one would be kept, and the first would find too little then"
    );
    let mut snapshot = world(&text(1));
    snapshot.running[0].stops_by = Some(snapshot.now.plus_secs(60));
    snapshot.running[0].victim_of = Some(JobId(10));
    snapshot.pending[0].particulars.nomination = Some(Nomination::default());
    assert_eq!(told(&snapshot), (vec![], vec![]), "nor while the run goes");
    let gone = snapshot.running.remove(0);
    gone.shares
        .iter()
        .for_each(|share| snapshot.nodes[share.node.0 as usize - 1].give(share));
    assert_eq!(told(&snapshot), (vec![10], vec![]), "and one stays idle");
    // The node that was to stay idle is down: the job waits, and no other run is preempted for nothing.
    snapshot.nodes[1].unavailable = Some("down".into());
    assert_eq!(told(&snapshot), (vec![11], vec![]));
}

#[test]
fn runs_that_go_for_another_are_not_counted_on_twice() {
    let text = |second: &str| {
        format!(
            "node n1 h100:4
             node n2 h100:4
             partition train nodes=n1,n2 headroom=1
             qos low
             qos high preempts=low
             run 1 b bob 4 on=n1 ago=900 qos=low partition=train
             run 2 b bob 3 on=n2 ago=800 qos=low partition=train
             job 10 b ann 3 qos=high partition=train
             {second} partition=train"
        )
    };
    assert_eq!(of(&text("job 11 b eve 0 qos=high")).1, [(2, 10)]);
    // One stays idle beside the first; for the second all of n1 has to go, and two are idle then.
    assert_eq!(of(&text("job 11 b eve 3 qos=high")).1, [(2, 10), (1, 11)]);
    assert_eq!(
        of(&text("job 11 b eve 4 qos=high")).1,
        [(2, 10), (1, 11)],
        "one is idle on n2"
    );
    let later = |ask: &str| {
        let mut snapshot = world(&text(&format!("job 11 b eve {ask} qos=high")));
        snapshot.running[1].stops_by = Some(snapshot.now.plus_secs(60));
        snapshot.running[1].victim_of = Some(JobId(10));
        snapshot.pending[0].particulars.nomination = Some(Nomination::default());
        told(&snapshot).1
    };
    assert_eq!(
        (later("3"), later("4"), later("1")),
        (vec![(1, 11)], vec![(1, 11)], vec![(1, 11)])
    );
}

/// It may have room there without them, beside what is to stay idle.
#[test]
fn what_a_job_is_promised_in_one_of_its_partitions_is_not_in_its_way_in_another() {
    let text = |lists: &str, kept: u32| {
        format!(
            "node n1 h100:4
             node n2 h100:3
             partition odd nodes=n1
             partition even nodes=n2 tier=2
             qos low
             qos high preempts=low
             qos urgent headroom={kept}
             run 1 b bob 2 on=n2 ago=10 qos=low partition=even
             job 10 b ann 3 qos=high partition={lists}"
        )
    };
    let pool = |lists: &str, kept: u32| {
        let mut snapshot = world(&text(lists, kept));
        snapshot.pending = snapshot
            .pending
            .drain(..)
            .flat_map(PendingJob::in_each_partition)
            .collect();
        snapshot
    };
    let at = |lists: &str, kept: u32| told(&pool(lists, kept));
    assert_eq!(at("even", 2), (vec![], vec![(1, 10)]));
    assert_eq!(at("odd", 2), (vec![10], vec![]), "two of five stay idle");
    assert_eq!(
        (at("even,odd", 2), at("odd,even", 2)),
        ((vec![10], vec![]), (vec![10], vec![])),
        "nobody need go"
    );
    assert_eq!(
        at("odd,even", 3),
        (vec![], vec![(1, 10)]),
        "three stay idle only when the run is gone"
    );
    assert_eq!(at("odd,even", 5), (vec![], vec![]));
    let why = crate::why(&pool("odd,even", 2), JobId(10)).unwrap();
    assert!(why.starts_now, "{why:?}");
}

/// It would seem to start in the other at once, where all that is idle is kept.
#[test]
fn what_is_freed_for_a_job_in_one_of_its_partitions_is_kept_for_it_there() {
    let mut snapshot = world(
        "node n1 h100:4
         node n2 h100:4
         partition odd nodes=n1
         partition even nodes=n2 headroom=4
         qos low
         qos high preempts=low
         run 1 b bob 2 on=n1 ago=900 qos=low partition=odd
         job 10 b ann 4 qos=high partition=odd,even
         job 11 b eve 1 qos=low partition=odd",
    );
    snapshot.pending = snapshot
        .pending
        .drain(..)
        .flat_map(PendingJob::in_each_partition)
        .collect();
    let first = plan(&snapshot, WorkBudget::default());
    assert_eq!(told(&snapshot), (vec![], vec![(1, 10)]), "{first:?}");
    snapshot.running[0].stops_by = Some(snapshot.now.plus_secs(60));
    snapshot.running[0].victim_of = Some(JobId(10));
    let reason = first
        .reasons
        .iter()
        .find(|(job, _)| *job == JobId(10))
        .unwrap()
        .1
        .clone();
    snapshot
        .pending
        .iter_mut()
        .filter(|job| job.id == JobId(10))
        .for_each(|job| {
            job.reason = reason.clone();
            job.particulars.nomination = first.nomination(JobId(10), false).cloned();
        });
    assert_eq!(
        told(&snapshot),
        (vec![], vec![]),
        "11 leaves it what is idle on n1"
    );
}

/// Two jobs preempt in one pass: the first would prefer the nodes nominated for the second.
#[test]
fn each_preemptor_starts_on_its_nominated_nodes() {
    let mut snapshot = world(
        "node n1 h100:4
         node n2 h100:4
         partition even nodes=n2
         qos low
         qos high preempts=low
         run 1 b bob 1 on=n2 ago=900 qos=high partition=even
         job 10 b ann 2 qos=high
         job 11 b ann 3 qos=high partition=even",
    );
    Arc::make_mut(&mut snapshot.config).scheduler.placement = Placement::BestFit;
    assert_eq!(told(&snapshot).0, [10], "on n2, which has less to lose");
    for (job, node) in snapshot.pending.iter_mut().zip([1, 2]) {
        job.particulars.nomination = Some(Nomination {
            nodes: Arc::new(vec![NodeId(node)]),
        });
    }
    assert_eq!(told(&snapshot).0, [10, 11]);
    snapshot.nodes[0].unavailable = Some("down".into());
    assert_eq!(
        told(&snapshot).0,
        [11],
        "what was freed for another is not the first's, though its own is gone"
    );
    snapshot.pending[1].particulars.held_by = Some("user:ann".into());
    assert_eq!(told(&snapshot).0, [10], "unless that cannot start");
}

/// Runs take a while to begin: one that is to be over just when the job starts would still be there, and go for it too.
#[test]
fn a_job_that_would_end_with_the_victims_does_not_start_beside_them() {
    let starts = |asks: u32, secs: u32, grace: u32| {
        let mut snapshot = world(&format!(
            "node n1 h100:4
             node n2 h100:6
             qos low
             qos high preempts=low
             run 1 b bob 4 on=n1 ago=900 qos=low
             job 10 b ann 8 nodes=2 qos=high
             job 11 b eve {asks} qos=low limit={secs}"
        ));
        Arc::make_mut(&mut snapshot.config).kill_grace_secs = grace;
        told(&snapshot)
    };
    assert_eq!(starts(4, 20, 30), (vec![], vec![(1, 10)]));
    assert_eq!(
        starts(2, 20, 30),
        (vec![11], vec![(1, 10)]),
        "there is room beside it"
    );
    assert_eq!(
        (starts(4, 200, 300).0, starts(4, 280, 300).0),
        (vec![11], vec![]),
        "long before that it may"
    );
}

#[test]
fn no_run_is_preempted_where_the_job_would_exceed_its_own_limit() {
    let ended = |limit: &str, job: &str| {
        let mut snapshot = world(&format!(
            "node n1 h100:4
             node n2 a100:2
             account a {limit}
             account b
             qos low
             qos mid
             qos high preempts=low
             run 1 b bob 4 on=n1 ago=900 qos=low
             run 2 b bob 1 on=n2 ago=900 qos=mid
             job 10 a ann {job} qos=high"
        ));
        if job == "1" {
            Arc::make_mut(&mut snapshot.pending[0].spec)
                .request
                .exclusive = true;
        }
        told(&snapshot).1
    };
    assert_eq!(
        (ended("usergpus=4", "1"), ended("usergpus=3", "1")),
        (vec![(1, 10)], vec![]),
        "all of n1 are four"
    );
    assert_eq!(
        (ended("usergpus=h100:2", "2"), ended("usergpus=h100:1", "2")),
        (vec![(1, 10)], vec![])
    );
}

/// A suspended run keeps its GPUs.
#[test]
fn a_run_that_is_only_suspended_leaves_nothing_idle() {
    let text = TWO_LEFT.replace("qos low", "qos low mode=suspend");
    assert_eq!(
        of(&format!("{text} job 10 b ann 2 qos=high partition=train")),
        (vec![], vec![])
    );
    let mut snapshot = world(&format!(
        "{TWO_LEFT} job 10 b ann 2 qos=high partition=train"
    ));
    Arc::make_mut(&mut snapshot.policy)
        .qos
        .get_mut("low")
        .unwrap()
        .preempt_mode = Some(PreemptMode::Off);
    assert_eq!(told(&snapshot), (vec![], vec![]));
}

mod properties {
    use super::super::some_reservations;
    use super::*;

    /// `odd` keeps some GPUs, an idle QOS others, bio does not lend all.
    fn pool(kept: u64, of_odd: u64, lends: u64, guaranteed: [u64; 3], pairs: bool) -> Pool {
        let [lab, vision, bio] = guaranteed;
        let text = guarantees(lab.max(vision), vision, bio, pairs)
            .replace("account bio", &format!("account bio lend={lends}"));
        let mut pool = Pool::new(&format!("{text}qos urgent headroom={kept}\n"));
        let config = Arc::make_mut(&mut pool.snapshot.config);
        config
            .partitions
            .iter_mut()
            .filter(|one| one.name == "odd")
            .for_each(|one| one.headroom = Some(GpuAmounts::all(of_odd)));
        pool
    }

    fn idle(pool: &Pool) -> u64 {
        let nodes = pool.snapshot.nodes.iter();
        let of = |node: &crate::SchedNode| -> u64 {
            let gpus = node.gpus.iter().zip(&node.free_gpu_milli);
            gpus.map(|(gpu, free)| u64::from(*free) * u64::from(gpu.info.part().milli()) / 1000)
                .sum()
        };
        nodes.map(of).sum()
    }

    fn takes_gpus(told: &Plan) -> bool {
        told.starts
            .iter()
            .any(|start| start.allocation.iter().any(|share| share.gpus.milli() > 0))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
        /// Headroom stays idle for absent jobs whichever job starts, with or without preemption.
        #[test]
        fn what_is_kept_is_idle_after_each_start(
            jobs in jobs(24), kept in 0..5u64, of_odd in 0..3u64, lends in 0..3u64, lab in 0..6u64, vision in 0..3u64, bio in 0..4u64, pairs in any::<bool>(),
            backfill in some_reservations(),
        ) {
            let mut pool = pool(kept, of_odd, lends, [lab, vision, bio], pairs);
            Arc::make_mut(&mut pool.snapshot.config).scheduler.backfill = backfill;
            for round in 0..20 {
                for (id, job) in (1..).zip(&jobs).filter(|(_, job)| job.comes == round) {
                    pool.submit(id, job, false);
                }
                let told = pool.round();
                prop_assert!(!takes_gpus(&told) || idle(&pool) >= kept * 1000, "{} of {}: {:?}", idle(&pool), kept, told.starts);
            }
        }

        /// With constant demand all preempting jobs start when their victims are gone, and the pool comes to rest.
        #[test]
        fn no_run_is_preempted_in_vain_or_for_ever(
            jobs in jobs(20), kept in 0..5u64, of_odd in 0..3u64, lends in 0..3u64, lab in 0..6u64, vision in 0..3u64, bio in 0..4u64, pairs in any::<bool>(),
            backfill in some_reservations(),
        ) {
            let mut pool = pool(kept, of_odd, lends, [lab, vision, bio], pairs);
            Arc::make_mut(&mut pool.snapshot.config).scheduler.backfill = backfill;
            (1..).zip(&jobs).for_each(|(id, job)| pool.submit(id, job, true));
            let mut owed: BTreeSet<JobId> = BTreeSet::new();
            let mut last = 0;
            for round in 0..120 {
                let told = pool.round();
                let started: BTreeSet<JobId> = told.starts.iter().map(|start| start.job).collect();
                prop_assert!(owed.is_subset(&started), "{:?} started, not all of {:?} in round {} after {:?}", started, owed, round, pool.preempted);
                owed = told.preempts.iter().map(|one| one.for_job).filter(|job| !started.contains(job)).collect();
                last = if owed.is_empty() { last } else { round };
            }
            prop_assert!(last < 60, "it goes on: {:?}", pool.preempted);
            for (first, who, whom) in &pool.preempted {
                let back = pool.preempted.iter().find(|(at, one, other)| at > first && (one, other) == (whom, who));
                let Some((second, ..)) = back else { continue };
                // A victim of a third job left its account with less, or other accounts with more.
                let mut others = pool.preempted.iter().filter(|(at, _, other)| first <= at && at < second && other != whom);
                prop_assert!(others.next().is_some(), "{} and {} gave way to each other: {:?}", who, whom, pool.preempted);
            }
        }
    }

    #[test]
    fn runs_are_preempted_beside_headroom_in_such_pools() {
        let mut pool = pool(2, 0, 0, [0, 0, 0], true);
        let job = |ask: usize, high: bool| Job {
            comes: 0,
            account: 4,
            user: 0,
            ask,
            list: 0,
            high,
            secs: 600,
            percent: 100,
        };
        (1..7).for_each(|id| pool.submit(id, &job(1, false), true));
        pool.round();
        pool.submit(9, &job(1, true), true);
        (0..3).for_each(|_| drop(pool.round()));
        assert!(
            !pool.preempted.is_empty() && pool.preempted.iter().all(|(_, _, whom)| whom.0 == 9),
            "{:?}",
            pool.preempted
        );
        assert!(
            pool.snapshot
                .running
                .iter()
                .any(|run| run.run.job == JobId(9))
                && idle(&pool) >= 2000
        );
    }
}
