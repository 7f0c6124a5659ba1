//! Jobs that wait in several partitions: they start once, in the first that can; and wait in all of them as one.

use super::{NOW, check, picture};
use crate::{Snapshot, WorkBudget, forecast, plan, why};
use expect_test::expect;
use gmodel::policy::{Account, GpuAmounts, Qos};
use gmodel::{JobId, Policy, Reason, ReasonCode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[test]
fn it_starts_where_it_can_and_only_once() {
    check(
        "partition a nodes=n1
         partition b nodes=n2
         partition c nodes=n3
         node n1 h100:1
         node n2 h100:1
         node n3 h100:1
         running 1 n1 gpus=0 left=60
         job gpus=1 partition=a,b,c
         job gpus=1 partition=c",
        expect![[r#"
            10 starts in b on n2[0]x1
            20 starts on n3[0]x1
        "#]],
    );
}

#[test]
fn the_higher_tier_is_looked_at_first_and_then_the_first_named() {
    check(
        "partition a nodes=n1
         partition b nodes=n2 tier=2
         partition c nodes=n3
         node n1 h100:2
         node n2 h100:1
         node n3 h100:2
         job gpus=1 partition=a,b
         job gpus=1 partition=c,a",
        expect![[r#"
            10 starts in b on n2[0]x1
            20 starts in c on n3[0]x1
        "#]],
    );
}

/// A planned start in one partition blocks no job once its job has an earlier one in another partition.
#[test]
fn a_later_job_may_get_the_time_of_a_planned_start_that_was_taken_back() {
    let promised = |left: u32| {
        let snapshot = picture(&format!(
            "partition a nodes=n1 tier=2
             partition c nodes=n2
             partition m nodes=n1
             node n1 h100:4
             node n2 h100:4
             running 1 n1 gpus=0-3 left=1000
             running 2 n2 gpus=0-3 left={left}
             job gpus=4 partition=m time=500
             job gpus=4 partition=a,c time=500
             job gpus=4 partition=m time=500"
        ));
        let told = forecast(
            &snapshot,
            &snapshot.pending.iter().map(|job| job.id).collect(),
        );
        let starts: BTreeMap<u64, i64> = told
            .into_iter()
            .map(|one| (one.job.0, one.start.unwrap().since_secs(NOW)))
            .collect();
        starts.into_values().collect::<Vec<_>>()
    };
    assert_eq!(promised(1100), [1500, 1000, 2000], "it stays where it is");
    assert_eq!(promised(900), [1500, 900, 1000], "from 1000 on n1 is free");
}

#[test]
fn it_waits_for_the_partition_that_is_nearest_to_start_it() {
    check(
        "partition a nodes=n1 down
         partition b nodes=n2
         partition c nodes=n2 max_time=10
         node n1 h100:1
         node n2 h100:1
         running 1 n2 gpus=0 left=60
         job gpus=1 partition=a,b,c time=60
         job gpus=1 partition=a,c time=60",
        expect![[r#"
            10 waits: Resources: needs 1 GPU, 1 CPU and 1G of memory on one node; most is free on n2: 0 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:17:40Z
            20 waits: PartitionDown: partition "a" is DOWN: it takes jobs and starts none
        "#]],
    );
}

#[test]
fn tasks_of_an_array_go_to_all_of_its_partitions() {
    check(
        "partition a nodes=n1
         partition b nodes=n2
         node n1 h100:2
         node n2 h100:2
         job gpus=1 partition=a,b array=6 room=3
         job gpus=1 partition=b array=3",
        expect![[r#"
            10 starts in a on n1[0]x1
            11 starts in a on n1[1]x1
            12 starts in b on n2[0]x1
            20 starts on n2[1]x1
            20_* waits: Resources: needs 1 GPU, 1 CPU and 1G of memory on one node; most is free on n2: 0 GPUs, 62 CPUs and 510G of memory
            10_* waits: JobArrayTaskLimit: as many tasks of the array run as it allows at once
        "#]],
    );
}

#[test]
fn room_is_kept_for_it_in_one_partition_only() {
    check(
        "partition a nodes=n1
         partition b nodes=n2
         node n1 h100:4
         node n2 h100:4
         running 1 n1 gpus=0-1 left=100
         running 2 n2 gpus=0-1 left=50
         job gpus=4 partition=a,b time=1000
         job gpus=2 partition=a time=500
         job gpus=2 partition=b time=500",
        expect![[r#"
            20 starts on n1[2,3]x1
            30 waits: Priority: nodes it needs are planned for job 10
            10 waits: Resources: needs 4 GPUs, 1 CPU and 1G of memory on one node; most is free on n1: 2 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:18:20Z
        "#]],
    );
}

#[test]
fn what_is_kept_for_it_in_one_partition_is_not_in_its_way_in_another() {
    // In a it needs 40 CPUs, which are free in 100 s on the one node there is; in b it needs one.
    check(
        "partition a nodes=n1 cpus_per_gpu=40
         partition b nodes=n1 cpus_per_gpu=1
         node n1 h100:2
         running 1 n1 gpus=0 cpus=30 left=100
         job gpus=1 partition=a,b time=1000
         job gpus=1 partition=b time=1000",
        expect![[r#"
            10 starts in b on n1[1]x1
            20 waits: Resources: needs 1 GPU, 1 CPU and 1G of memory on one node; most is free on n1: 0 GPUs, 33 CPUs and 510G of memory; room is expected by 1970-01-01T00:18:20Z
        "#]],
    );
}

#[test]
fn each_task_of_an_array_waits_where_it_is_expected_first() {
    // In turn: b at 50 and 1050, a at 100 and 1100. The GPUs planned for them stay free of other jobs.
    check(
        "partition a nodes=n1
         partition b nodes=n2
         node n1 h100:4
         node n2 h100:4
         running 1 n1 gpus=0-1 left=100
         running 2 n2 gpus=0-1 left=50
         job gpus=4 partition=a,b time=1000 array=4
         job gpus=2 partition=a time=500
         job gpus=2 partition=b time=500
         job gpus=2 partition=a time=90
         job gpus=2 partition=b time=40",
        expect![[r#"
            40 starts on n1[2,3]x1
            50 starts on n2[2,3]x1
            20 waits: Priority: nodes it needs are planned for job 10
            30 waits: Priority: nodes it needs are planned for job 10
            10_* waits: Resources: needs 4 GPUs, 1 CPU and 1G of memory on one node; most is free on n1: 2 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:18:20Z
        "#]],
    );
}

#[test]
fn an_array_is_expected_where_its_first_task_starts() {
    let snapshot = picture(
        "partition a nodes=n1
         partition b nodes=n2
         node n1 h100:1
         node n2 h100:1
         running 1 n1 gpus=0 left=100
         running 2 n2 gpus=0 left=50
         job gpus=1 partition=a,b time=1000 array=3",
    );
    let expected = forecast(&snapshot, &BTreeSet::from([JobId(10)]))
        .pop()
        .unwrap();
    assert_eq!(
        (expected.partition.as_deref(), expected.start),
        (Some("b"), Some(NOW.plus_secs(50)))
    );
}

#[test]
fn a_task_starts_in_one_partition_though_what_another_keeps_for_it_stands_in_the_way() {
    // As for a single job: in a a task needs 40 CPUs, which are free in 100 s on the one node there is; in b it needs one.
    check(
        "partition a nodes=n1 cpus_per_gpu=40
         partition b nodes=n1 cpus_per_gpu=1
         node n1 h100:3
         running 1 n1 gpus=0 cpus=30 left=100
         job gpus=1 partition=a,b time=1000 array=2
         job gpus=1 partition=b time=1000",
        expect![[r#"
            10 starts in b on n1[1]x1
            11 starts in b on n1[2]x1
            20 waits: Resources: needs 1 GPU, 1 CPU and 1G of memory on one node; most is free on n1: 0 GPUs, 32 CPUs and 509G of memory; room is expected by 1970-01-01T00:18:20Z
        "#]],
    );
}

#[test]
fn a_job_refused_for_its_own_planned_start_does_not_block_itself() {
    // In a, which comes first, job 20 needs 32 CPUs; what is kept for it there refuses 10, of the job class that it has in b itself.
    for backfill in ["easy", "100"] {
        let text = "partition a nodes=n1 cpus_per_gpu=16 tier=2
         partition b nodes=n1 cpus_per_gpu=1
         node n1 h100:3
         running 1 n1 gpus=0 cpus=40 left=100
         job gpus=2 time=500 partition=b
         job gpus=2 time=1000 partition=b,a";
        check(
            &format!("backfill {backfill}\n{text}"),
            expect![[r#"
                20 starts in b on n1[1,2]x2
                10 waits: Priority: nodes it needs are planned for job 20
            "#]],
        );
    }
}

#[test]
fn licences_kept_for_it_in_one_partition_are_its_own_in_another() {
    check(
        "partition a nodes=n1
         partition b nodes=n2
         licence matlab 1
         node n1 h100:1
         node n2 h100:1
         running 1 n1 gpus=0 left=100
         job gpus=1 partition=a,b time=1000 licences=matlab:1
         job gpus=1 partition=b time=1000",
        expect![[r#"
            10 starts in b on n2[0]x1
            20 waits: Resources: needs 1 GPU, 1 CPU and 1G of memory on one node; most is free on n2: 0 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:33:20Z
        "#]],
    );
}

#[test]
fn licences_kept_for_it_in_one_partition_do_not_stand_in_its_way_in_another() {
    let snapshot = picture(
        "partition a nodes=n1
         partition b nodes=n2
         licence matlab 1
         node n1 h100:1
         node n2 h100:1
         running 1 n1 gpus=0 left=100
         job gpus=1 partition=a,b time=1000 licences=matlab:1",
    );
    let told = why(&snapshot, JobId(10)).unwrap();
    assert_eq!(
        (told.starts_now, told.partition.as_deref(), told.blockers),
        (true, Some("b"), vec![])
    );
}

#[test]
fn a_planned_start_that_moves_to_another_partition_refuses_no_job_in_the_old_one() {
    // 30 could have n1 in 188 s by odd, and has n2 in 10 s by main: the GPUs of n1 are for 40.
    check(
        "partition main
         partition odd nodes=n1
         node n1 h100:5
         node n2 h100:5
         running 1 n1 gpus=0 left=188
         job gpus=5 time=10 partition=main,odd
         job nodes=2 gpn=1
         job gpus=4 partition=odd,main
         job gpus=1",
        expect![[r#"
            10 starts in main on n2[0,1,2,3,4]x1
            40 starts on n1[1]x1
            20 waits: Resources: needs 1 GPU, 1 CPU and 1G of memory on each of 2 nodes; most is free on n1: 4 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:16:50Z
            30 waits: Priority: nodes it needs are planned for job 20
        "#]],
    );
}

#[test]
fn a_change_is_tried_in_all_of_its_partitions() {
    // With two GPUs it would start in b now, were it not for a, where its turn is before: there it has no CPUs for two, and what
    // it leaves by asking for less goes to 10.
    let snapshot = picture(
        "partition a nodes=n1 cpus_per_gpu=16 tier=2
         partition b nodes=n1 cpus_per_gpu=1
         node n1 h100:4
         running 1 n1 gpus=0-1 cpus=40 left=100
         job gpus=2 time=500 partition=b
         job gpus=4 time=1000 partition=b,a",
    );
    let told = why(&snapshot, JobId(20)).unwrap();
    let changes: Vec<_> = told
        .changes
        .iter()
        .map(|change| (&*change.option, change.starts == NOW))
        .collect();
    assert_eq!(
        (told.partition.as_deref(), changes),
        (Some("b"), vec![("--gpus 1", true)])
    );
}

#[test]
fn it_starts_for_a_shorter_time_where_only_its_own_reservation_elsewhere_is_in_the_way() {
    // In a it needs 40 CPUs, free in 100 s, and in b 400G: free now, but job 10 has most of the memory in 400 s. Both on the
    // one h100 there is.
    let mut snapshot = picture(
        "partition c nodes=n1
         partition a nodes=n1 cpus_per_gpu=40
         partition b nodes=n1 cpus_per_gpu=1
         node n1 h100:1 a100:1
         running 1 n1 cpus=30 left=100
         running 2 n1 gpus=1 left=400
         job gpus=a100:1 mem=300 partition=c time=1000
         job gpus=h100:1 partition=a,b time=1000 time_min=200",
    );
    let mut config = (*snapshot.config).clone();
    (
        config.partitions[1].mem_per_gpu_bytes,
        config.partitions[2].mem_per_gpu_bytes,
    ) = (Some(1 << 30), Some(400 << 30));
    snapshot.config = Arc::new(config);
    snapshot.pending[1..].iter_mut().for_each(|job| {
        Arc::make_mut(&mut job.spec).request.mem = gmodel::job::MemRequest::Default
    });
    let told = plan(&snapshot, WorkBudget::default());
    let starts: Vec<_> = told
        .starts
        .iter()
        .map(|one| (one.job.0, one.partition.as_deref(), one.limit_secs))
        .collect();
    assert_eq!(starts, [(20, Some("b"), Some(400))]);
    // Where it may not be cut as short it waits, and keeps what is reserved for it in a.
    snapshot.pending[1..]
        .iter_mut()
        .for_each(|job| Arc::make_mut(&mut job.spec).time_min_secs = Some(500));
    assert_eq!(plan(&snapshot, WorkBudget::default()).starts.len(), 0);
    let expected = forecast(&snapshot, &BTreeSet::from([JobId(20)]))
        .pop()
        .unwrap();
    assert_eq!(
        (expected.partition.as_deref(), expected.start),
        (Some("a"), Some(NOW.plus_secs(100)))
    );
}

#[test]
fn its_blockers_in_each_partition_and_its_forecast_are_told() {
    let snapshot = picture(
        "partition a nodes=n1
         partition b nodes=n2
         partition c nodes=n3 down
         node n1 h100:1
         node n2 h100:1
         node n3 h100:1
         running 1 n1 gpus=0 left=100
         running 2 n2 gpus=0 left=50
         job gpus=1 partition=b time=20
         job gpus=1 partition=c,a,b time=1000",
    );
    let told = why(&snapshot, JobId(20)).unwrap();
    let codes =
        |blockers: &[crate::Blocker]| blockers.iter().map(|one| one.code).collect::<Vec<_>>();
    assert_eq!(
        (told.partition.as_deref(), codes(&told.blockers)),
        (Some("c"), vec![ReasonCode::PartitionDown])
    );
    let rest: Vec<_> = told
        .elsewhere
        .iter()
        .map(|one| (&*one.partition, one.ahead, codes(&one.blockers)))
        .collect();
    assert_eq!(
        rest,
        [
            ("a", 0, vec![ReasonCode::Resources]),
            ("b", 1, vec![ReasonCode::Resources])
        ]
    );
    let expected = forecast(&snapshot, &BTreeSet::from([JobId(20)]))
        .pop()
        .unwrap();
    assert_eq!(
        (expected.partition.as_deref(), expected.start),
        (Some("b"), Some(NOW.plus_secs(70)))
    );
    assert_eq!(told.forecast, Some(expected));
}

#[test]
fn a_limit_of_one_partition_leaves_the_others() {
    let mut snapshot = picture(
        "partition a nodes=n1
         partition b nodes=n2
         node n1 h100:4
         node n2 h100:4
         job gpus=2 partition=a,b
         job gpus=1 partition=a,b",
    );
    let mut config = (*snapshot.config).clone();
    config.partitions[0].per_user.gpus = Some(GpuAmounts::all(1));
    snapshot.config = Arc::new(config);
    let told = plan(&snapshot, WorkBudget::default());
    let starts: Vec<_> = told
        .starts
        .iter()
        .map(|start| (start.job.0, start.partition.as_deref()))
        .collect();
    assert_eq!(starts, [(10, Some("b")), (20, Some("a"))]);
}

#[test]
fn a_guarantee_is_asked_for_once() {
    let mut snapshot = picture(
        "partition a nodes=n1
         partition b nodes=n1
         node n1 h100:4
         running 1 n1 gpus=0-1 left=100
         job gpus=2 partition=a,b
         job gpus=2 partition=a,b",
    );
    let account = Account {
        name: "lab".into(),
        guaranteed: Some(GpuAmounts::all(4)),
        ..Account::default()
    };
    snapshot.policy = Arc::new(Policy {
        accounts: [("lab".to_owned(), account)].into(),
        ..Policy::default()
    });
    for job in &mut snapshot.pending {
        Arc::make_mut(&mut job.spec).account = "lab".into();
    }
    let ledger = crate::ledger::Ledger::new(&snapshot);
    let order = crate::queue_order::in_order(&snapshot, &ledger);
    let classes: Vec<_> = order
        .iter()
        .map(|one| (snapshot.pending[one.at].id.0, one.class.unwrap()))
        .collect();
    assert!(
        classes
            .iter()
            .all(|(_, class)| *class == gmodel::RunClass::Guaranteed),
        "{classes:?}"
    );
}

#[test]
fn no_run_is_preempted_twice_for_a_job_of_several_partitions() {
    let told = plan(&of_a_qos_that_preempts(&["a", "b"]), WorkBudget::default());
    assert_eq!(told.preempts.len(), 1, "{told:?}");
    assert_eq!(told.reasons.len(), 1);
    assert_eq!(told.reasons[0].1.code, ReasonCode::Preempting);
}

/// Neither in the plan nor in a part of it that is handed over before.
#[test]
fn no_run_is_preempted_where_another_of_its_partitions_starts_it() {
    let snapshot = of_a_qos_that_preempts(&["a"]);
    let (tell, told) = std::sync::mpsc::channel();
    let last = crate::Engine::default().plan_in_slices(
        &snapshot,
        None,
        WorkBudget::default(),
        1,
        Box::new(move |part| tell.send(part).unwrap()),
    );
    let whole = plan(&snapshot, WorkBudget::default());
    for one in told.iter().chain([last, whole.clone()]) {
        assert_eq!(one.preempts, []);
    }
    assert_eq!(
        whole
            .starts
            .iter()
            .map(|start| start.partition.as_deref())
            .collect::<Vec<_>>(),
        [Some("b")]
    );
}

/// Job 10 may preempt what stands in some of its two partitions.
fn of_a_qos_that_preempts(full: &[&str]) -> Snapshot {
    let mut text = String::from(
        "partition a nodes=n1\npartition b nodes=n2\nnode n1 h100:2\nnode n2 h100:2\n",
    );
    for at in 1..=full.len() {
        text += &format!("running {at} n{at} gpus=0-1 left=1000\n");
    }
    let mut snapshot = picture(&(text + "job gpus=2 partition=a,b"));
    let qos = |name: &str, over: &[&str]| Qos {
        name: name.into(),
        preempt: over.iter().map(|name| (*name).to_owned()).collect(),
        ..Qos::default()
    };
    let all = [
        ("low".to_owned(), qos("low", &[])),
        ("high".to_owned(), qos("high", &["low"])),
    ];
    snapshot.policy = Arc::new(Policy {
        qos: all.into(),
        ..Policy::default()
    });
    snapshot
        .pending
        .iter_mut()
        .for_each(|job| Arc::make_mut(&mut job.spec).qos = "high".into());
    for (run, partition) in snapshot.running.iter_mut().zip(full) {
        let spec = Arc::make_mut(&mut run.spec);
        (spec.qos, spec.partition) = ("low".into(), (*partition).into());
        run.placed = gmodel::Timestamp::default();
    }
    snapshot
}

#[test]
fn the_reason_that_it_has_stays_while_another_is_as_good() {
    let mut snapshot = picture(
        "partition a nodes=n1
         partition b nodes=n2
         node n1 h100:2 32c
         node n2 h100:2
         running 1 n1 gpus=0-1 left=1000
         running 2 n2 gpus=0-1 left=500
         job gpus=2 partition=a,b",
    );
    let mut engine = crate::Engine::default();
    let first = engine.plan(&snapshot, WorkBudget::default());
    let give = |snapshot: &mut Snapshot, reason: &Reason| {
        snapshot
            .pending
            .iter_mut()
            .for_each(|job| job.reason = reason.clone())
    };
    give(&mut snapshot, &first.reasons[0].1);
    for _ in 0..3 {
        let again = engine.plan(&snapshot, WorkBudget::default());
        assert_eq!(again.reasons, [], "words change");
    }
}

#[test]
fn all_nodes_are_alike_in_one_of_the_features_in_brackets() {
    let told = |constraint: &str, busy: &str| {
        let picture = picture(&format!(
            "node n1 h100:2 feature=ib,r1
             node n2 h100:2 feature=ib,r1
             node n3 h100:2 feature=ib,r2
             node n4 h100:2 feature=r2
             {busy}
             job nodes=2 gpn=2 constraint={constraint}"
        ));
        let plan = plan(&picture, WorkBudget::default());
        let names = |id| {
            picture
                .nodes
                .iter()
                .find(|node| node.id == id)
                .unwrap()
                .name
                .clone()
        };
        let starts = plan.starts.first().map(|start| {
            start
                .allocation
                .iter()
                .map(|share| names(share.node))
                .collect::<Vec<_>>()
                .join("+")
        });
        (
            starts,
            plan.reasons.first().map(|(_, reason)| reason.code.clone()),
            why(&picture, JobId(10)).unwrap().starts_now,
        )
    };
    let starts = |nodes: &str| (Some(nodes.to_owned()), None, true);
    let waits = (None, Some(ReasonCode::Resources), false);
    assert_eq!(told("[r1|r2]", ""), starts("n1+n2"));
    assert_eq!(told("[r2|r1]", ""), starts("n3+n4"), "the first named");
    let one_is_busy = "running 1 n1 gpus=0 left=60";
    assert_eq!(told("[r1|r2]", one_is_busy), starts("n3+n4"));
    assert_eq!(told("ib&[r1|r2]", one_is_busy), waits, "n4 has no ib");
    let one_of_each = "running 1 n1 gpus=0 left=60\nrunning 2 n3 gpus=0 left=90";
    assert_eq!(
        told("[r1|r2]", one_of_each),
        waits,
        "two nodes are free, and not alike"
    );
    assert_eq!(told("(r1|r2)", one_of_each).0, Some("n2+n4".to_owned()));
}

/// Reservations by number know what is promised to jobs of several partitions.
#[test]
fn reserved_gpus_planned_in_one_of_several_partitions_serve_no_other_job() {
    let starts = |second: &str| {
        let text = format!(
            "reservation demo gpus=2 user=alice secs=100000
             partition odd nodes=n1
             partition even nodes=n2
             node n1 h100:6
             node n2 h100:2
             running 1 n1 gpus=0-5 left=100
             running 2 n2 gpus=0-1 left=200
             job gpus=2 user=alice reservation=demo partition=even,odd time=1000
             {second} partition=odd"
        );
        let picture = picture(&text);
        let told = crate::forecast(&picture, &[10, 20].map(JobId).into());
        told.iter()
            .map(|one| one.start.unwrap().since_secs(NOW))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        starts("job gpus=1 user=alice reservation=demo time=50"),
        [100, 1100],
        "the first has both"
    );
    assert_eq!(
        starts("job gpus=4 user=bob time=50"),
        [100, 100],
        "which are set apart no more besides"
    );
}
