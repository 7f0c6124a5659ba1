//! `--why` as text and as properties: what it proposes starts the job, and each blocker alone is not the whole of it.

use super::promises::cluster;
use super::{NOW, picture};
use crate::{ArrayCap, Edit, PendingJob, Snapshot, WorkBudget, forecast, plan, why};
use expect_test::{Expect, expect};
use gmodel::config::PartitionState;
use gmodel::gpu_request::GpuAmount;
use gmodel::policy::{
    Account, Budget, BudgetKind, GpuAmounts, JobOrder, Limits, Period, Placement, Qos, Reservation,
    ReservedPart,
};
use gmodel::{JobId, NodeId, Reason, ReasonCode};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

fn check(text: &str, job: u64, expect: Expect) {
    let snapshot = picture(text);
    let why = why(&snapshot, JobId(job)).unwrap();
    let mut out = format!("{} ahead\n", why.ahead);
    for blocker in &why.blockers {
        let until = blocker
            .until
            .map_or(String::new(), |at| format!(" (until {at})"));
        writeln!(out, "{}: {}{until}", blocker.code, blocker.text).unwrap();
    }
    if let Some(told) = &why.forecast {
        let start = told
            .start
            .map_or("never by what is known".into(), |at| at.to_string());
        writeln!(
            out,
            "expected {start} on {:?}",
            told.nodes.iter().map(|node| node.0).collect::<Vec<_>>()
        )
        .unwrap();
    }
    for change in &why.changes {
        writeln!(out, "{}: {}", change.option, change.starts).unwrap();
    }
    expect.assert_eq(&out);
}

#[test]
fn a_job_that_names_its_node_is_told_of_that_one() {
    // n2 and n3 are empty, and in nobody's way.
    check(
        "node n1 h100:8
         node n2 h100:8
         node n3 h100:8
         running 1 n1 gpus=0-5 left=600
         job gpus=4 nodelist=n1 time=1000",
        10,
        expect![[r#"
            0 ahead
            Resources: needs 4 GPUs, 1 CPU and 1G of memory on one node; n1 comes nearest and has 2 of 4 GPUs free, more becomes free there at 1970-01-01T00:26:40Z (until 1970-01-01T00:26:40Z)
            expected 1970-01-01T00:26:40Z on [1]
            --nodelist=: 1970-01-01T00:16:40Z
            --gpus 2: 1970-01-01T00:16:40Z
        "#]],
    );
    check(
        "node n1 h100:8
         node n2 h100:8
         node n3 h100:8
         running 1 n1 gpus=0-5 left=600
         job gpus=8 nodes=2 nodelist=n1 time=1000",
        10,
        expect![[r#"
            0 ahead
            Resources: needs 4 GPUs, 1 CPU and 1G of memory on each of 2 nodes; n1 comes nearest and has 2 of 4 GPUs free, more becomes free there at 1970-01-01T00:26:40Z (until 1970-01-01T00:26:40Z)
            expected 1970-01-01T00:26:40Z on [1, 2]
            --nodelist=: 1970-01-01T00:16:40Z
            --gpus 4: 1970-01-01T00:16:40Z
        "#]],
    );
    let of_a_partition =
        picture("partition main down\n node n1 h100:8\n job gpus=4 nodelist=n1 time=1000");
    let blockers = why(&of_a_partition, JobId(10)).unwrap().blockers;
    assert_eq!(
        blockers[0].text,
        r#"partition "main" is DOWN: it takes jobs and starts none"#
    );
}

#[test]
fn the_numbers_of_the_nearest_node_and_the_smallest_change() {
    check(
        "node n1 h100:8
         node n2 h100:8
         running 1 n1 gpus=0 left=600
         running 2 n2 gpus=0-3 left=60
         job gpus=8 time=1000
         job gpus=8 time=1000
         job gpus=2 time=9000",
        20,
        expect![[r#"
            1 ahead
            Resources: needs 8 GPUs, 1 CPU and 1G of memory on one node; n1 comes nearest and has 7 of 8 GPUs free, more becomes free there at 1970-01-01T00:26:40Z (until 1970-01-01T00:26:40Z)
            expected 1970-01-01T00:26:40Z on [1]
            --gpus 7: 1970-01-01T00:16:40Z
        "#]],
    );
}

#[test]
fn a_shorter_limit_fits_before_a_reservation() {
    check(
        "node n1 h100:8
         running 1 n1 gpus=0-3 left=600
         job gpus=8 time=1000
         job gpus=4 time=6000",
        20,
        expect![[r#"
            1 ahead
            Priority: what it needs is kept for job 10 (until 1970-01-01T00:43:20Z)
            expected 1970-01-01T00:43:20Z on [1]
            --time 10: 1970-01-01T00:16:40Z
        "#]],
    );
}

#[test]
fn all_that_stands_in_the_way_is_told() {
    check(
        "licence matlab 1
         node n1 h100:8
         running 1 n1 gpus=0-3 left=600
         job gpus=8 time=1000 begin=60 held=user:bob licences=matlab:2",
        10,
        expect![[r#"
            0 ahead
            JobHeldUser: held by user:bob
            BeginTime: not before 1970-01-01T00:17:40Z (until 1970-01-01T00:17:40Z)
            Licenses: needs 2 of licence "matlab", and there are 1
            Resources: needs 8 GPUs, 1 CPU and 1G of memory on one node; n1 comes nearest and has 4 of 8 GPUs free, more becomes free there at 1970-01-01T00:26:40Z
            expected never by what is known on []
        "#]],
    );
}

#[test]
fn of_a_job_that_names_its_nodes_only_those_are_spoken_of() {
    check(
        "node n1 h100:8
         node n2 h100:8
         running 1 n1 gpus=0 left=600
         job gpus=8 time=1000 nodelist=n1",
        10,
        expect![[r#"
            0 ahead
            Resources: needs 8 GPUs, 1 CPU and 1G of memory on one node; n1 comes nearest and has 7 of 8 GPUs free, more becomes free there at 1970-01-01T00:26:40Z (until 1970-01-01T00:26:40Z)
            expected 1970-01-01T00:26:40Z on [1]
            --gpus 7: 1970-01-01T00:16:40Z
            --nodelist=: 1970-01-01T00:16:40Z
        "#]],
    );
}

#[test]
fn of_nodes_as_near_the_one_where_more_comes_first_is_named() {
    check(
        "node n1 h100:4
         node n2 h100:4
         node n3 a100:4
         running 1 n1 gpus=0-3 left=600
         running 2 n2 gpus=0-3 left=300
         running 3 n3 gpus=0-3 left=100
         job gpus=h100:2 time=1000",
        10,
        expect![[r#"
            0 ahead
            Resources: needs 2 h100, 1 CPU and 1G of memory on one node; n2 comes nearest and has 0 of 2 GPUs free, more becomes free there at 1970-01-01T00:21:40Z (until 1970-01-01T00:21:40Z)
            expected 1970-01-01T00:21:40Z on [2]
            --gpus a100:2: 1970-01-01T00:18:20Z
        "#]],
    );
}

#[test]
fn who_waits_for_its_reservation_is_told_when_it_starts_in_it() {
    let queue = |job: &str| {
        format!(
            "reservation course gpus=4 user=alice from=100 secs=300 daily
             node n1 h100:8
             running 1 n1 gpus=0-5 left=150
             {job}"
        )
    };
    check(
        &queue("job gpus=2 user=alice reservation=course time=60"),
        10,
        expect![[r#"
        0 ahead
        Reservation: reservation "course" begins at 1970-01-01T00:18:20Z (until 1970-01-01T00:18:20Z)
        expected 1970-01-01T00:18:20Z on [1]
    "#]],
    );
    check(
        &queue("job gpus=3 user=alice reservation=course time=60"),
        10,
        expect![[r#"
        0 ahead
        Reservation: reservation "course" begins at 1970-01-01T00:18:20Z (until 1970-01-01T00:19:10Z)
        expected 1970-01-01T00:19:10Z on [1]
    "#]],
    );
    // Too large, too long, not for him.
    check(
        &queue("job gpus=5 user=alice reservation=course time=60"),
        10,
        expect![[r#"
        0 ahead
        Reservation: reservation "course" begins at 1970-01-01T00:18:20Z
        Reservation: needs 5 GPUs, and reservation "course" has 4 GPUs
        expected never by what is known on []
    "#]],
    );
    check(
        &queue("job gpus=2 user=alice reservation=course time=3000 time_min=301"),
        10,
        expect![[r#"
        0 ahead
        Reservation: asks for 301 s, and reservation "course" lasts 5 min
        Resources: needs 2 GPUs, 1 CPU and 1G of memory on one node; 1 of 1 such nodes have room, more becomes free there at 1970-01-01T00:18:20Z
        expected never by what is known on []
    "#]],
    );
    check(
        &queue("job gpus=2 user=bob reservation=course time=60"),
        10,
        expect![[r#"
        0 ahead
        Reservation: reservation "course" is not for user "bob" in account ""
        Resources: needs 2 GPUs, 1 CPU and 1G of memory on one node; 1 of 1 such nodes have room, more becomes free there at 1970-01-01T00:18:20Z (until 1970-01-01T00:18:20Z)
        expected never by what is known on []
    "#]],
    );
}

#[test]
fn who_would_end_after_its_deadline_has_no_start() {
    let mut snapshot = picture("node n1 h100:1\nrunning 1 n1 gpus=0 left=100\njob gpus=1 time=50");
    for (deadline, start) in [(None, Some(100)), (Some(150), Some(100)), (Some(149), None)] {
        std::sync::Arc::make_mut(&mut snapshot.pending[0].spec).deadline =
            deadline.map(|secs| NOW.plus_secs(secs));
        let told = crate::forecast(&snapshot, &BTreeSet::from([JobId(10)]));
        assert_eq!(
            (
                told[0].start.map(|at| at.since_secs(NOW)),
                told[0].nodes.len()
            ),
            (start, usize::from(start.is_some())),
            "{deadline:?}"
        );
    }
}

#[test]
fn who_is_believed_to_be_short_starts_beside_reservations_with_its_whole_limit() {
    let mut lengths = gpolicy::run_lengths::RunLengths::default();
    let whose = |user| gpolicy::run_lengths::RunOwner {
        account: "",
        user,
        partition: "main",
    };
    (0..8).for_each(|_| lengths.note(whose("ann"), Some(2000), 100));
    let expected = |reservation: &str, job: &str| {
        let picture = picture(&format!(
            "reservation r {reservation}\nnode n1 h100:8\nrunning 1 n1 gpus=0-7 left=50\n{job}"
        ));
        let told = forecast(
            &picture.clone().believed(&lengths),
            &picture.pending.iter().map(|job| job.id).collect(),
        );
        told.iter()
            .map(|one| one.start.map(|at| at.since_secs(NOW)))
            .collect::<Vec<_>>()
    };
    let job = "job gpus=8 user=ann time=2000";
    assert_eq!(expected("maint from=2050 secs=500", job), [Some(50)]);
    assert_eq!(
        expected("maint from=2049 secs=500", job),
        [Some(2549)],
        "a second is short"
    );
    assert_eq!(expected("maint from=60 secs=500", job), [Some(560)]);
    assert_eq!(
        expected("user=bob from=1000 secs=500 daily", job),
        [Some(1500)],
        "which comes again, but not so soon"
    );
    let short = "job gpus=8 user=ann time=900";
    assert_eq!(
        expected(
            "maint from=1000 secs=500",
            &format!("{job}\n{short}\n{job}")
        ),
        [Some(1500), Some(50), Some(1600)],
        "each by its own limit"
    );
    assert_eq!(
        expected(
            "maint from=1000 secs=500",
            &format!("{short}\n{job}\n{short}")
        ),
        [Some(50), Some(1500), Some(95)]
    );
    // Its own it ends with, and needs a minute of it.
    let inside = "job gpus=8 user=ann time=2000 reservation=r";
    assert_eq!(expected("user=ann from=100 secs=59 daily", inside), [None]);
    assert_eq!(
        expected("user=ann from=100 secs=60 daily", inside),
        [Some(100)]
    );
    assert_eq!(
        expected(
            "user=ann from=100 secs=160 daily",
            &format!("{inside}\n{inside}")
        ),
        [Some(100), Some(200)]
    );
    assert_eq!(
        expected(
            "user=ann from=100 secs=159 daily",
            &format!("{inside}\n{inside}")
        ),
        [Some(100), Some(86_500)],
        "100 s later it ends too soon"
    );
}

#[test]
fn who_is_believed_to_be_short_starts_beside_gpus_reserved_by_number_with_its_whole_limit() {
    let mut lengths = gpolicy::run_lengths::RunLengths::default();
    let whose = |user| gpolicy::run_lengths::RunOwner {
        account: "",
        user,
        partition: "main",
    };
    (0..8).for_each(|_| lengths.note(whose("ann"), Some(2000), 100));
    let expected = |text: &str| {
        let picture = picture(text);
        let told = forecast(
            &picture.clone().believed(&lengths),
            &picture.pending.iter().map(|job| job.id).collect(),
        );
        told.iter()
            .map(|one| one.start.map(|at| at.since_secs(NOW)))
            .collect::<Vec<_>>()
    };
    let one = |reserved: u32, from: u32, job: &str| {
        expected(&format!(
            "reservation r user=bob gpus={reserved} from={from} secs=500\nnode n1 h100:8\nrunning 1 n1 gpus=0-7 left=50\njob user=ann time=2000 {job}"
        ))
    };
    assert_eq!(one(8, 2050, "gpus=8"), [Some(50)]);
    assert_eq!(one(8, 2049, "gpus=8"), [Some(2549)], "a second is short");
    assert_eq!(
        (one(4, 1000, "gpus=4"), one(4, 1000, "gpus=5")),
        (vec![Some(50)], vec![Some(1500)]),
        "beside four that are set apart"
    );
    assert_eq!(
        (one(1, 1000, "exclusive"), one(1, 1000, "cpus=4")),
        (vec![Some(1500)], vec![Some(0)])
    );
    // On another node sooner; after the window where that is full for longer.
    let two = |left: u32| {
        expected(&format!(
            "reservation r user=bob gpus=8 from=1000 secs=500\nnode n1 h100:8\nnode n2 h100:9\nrunning 1 n1 gpus=0-7 left=50\nrunning 2 n2 gpus=0-8 left={left}
             job user=ann time=2000 gpus=8"
        ))
    };
    assert_eq!((two(700), two(3000)), (vec![Some(700)], vec![Some(1500)]));
    // Its own is for it.
    assert_eq!(
        expected(
            "reservation r user=ann gpus=8 from=100 secs=500\nnode n1 h100:8\njob user=ann time=2000 gpus=8 reservation=r"
        ),
        [Some(100)]
    );
}

#[test]
fn another_type_or_partition_is_proposed() {
    check(
        "partition main nodes=n1
         partition other nodes=n2
         node n1 h100:4 a100:4
         node n2 h100:4
         running 1 n1 gpus=0-3 left=600
         job gpus=h100:4 time=1000",
        10,
        expect![[r#"
            0 ahead
            Resources: needs 4 h100, 1 CPU and 1G of memory on one node; n1 comes nearest and has 0 of 4 GPUs free, more becomes free there at 1970-01-01T00:26:40Z (until 1970-01-01T00:26:40Z)
            expected 1970-01-01T00:26:40Z on [1]
            --gpus a100:4: 1970-01-01T00:16:40Z
            --partition other: 1970-01-01T00:16:40Z
        "#]],
    );
}

#[test]
fn who_others_make_room_for_is_expected_when_they_are_gone() {
    let mut snapshot = picture(
        "node n1 h100:4
         running 1 n1 gpus=0-3 left=100000
         job gpus=4 time=50
         job gpus=4 time=50",
    );
    let qos = |name: &str, over: &[&str]| Qos {
        name: name.into(),
        preempt: over.iter().map(|name| (*name).to_owned()).collect(),
        ..Qos::default()
    };
    let all = [
        ("low".to_owned(), qos("low", &[])),
        ("high".to_owned(), qos("high", &["low"])),
    ];
    snapshot.policy = Arc::new(gmodel::Policy {
        qos: all.into(),
        ..gmodel::Policy::default()
    });
    snapshot
        .pending
        .iter_mut()
        .for_each(|job| Arc::make_mut(&mut job.spec).qos = "high".into());
    snapshot.running.iter_mut().for_each(|run| {
        let spec = Arc::make_mut(&mut run.spec);
        (spec.qos, spec.partition) = ("low".into(), "main".into());
    });
    let told = forecast(&snapshot, &BTreeSet::from([10, 20].map(JobId)));
    let starts: Vec<_> = told
        .iter()
        .map(|one| one.start.map(|at| at.since_secs(NOW)))
        .collect();
    // 30 s to be killed, and a little to enter the plan; then the first runs for its 50 s.
    assert_eq!(starts, [Some(40), Some(90)]);
    // The order is given: it is expected when that run leaves.
    snapshot.running[0].leaves_by = Some(NOW.plus_secs(15));
    snapshot.running[0].leaves_for = Some(JobId(10));
    let told = forecast(&snapshot, &BTreeSet::from([JobId(10)]));
    assert_eq!(told[0].start.map(|at| at.since_secs(NOW)), Some(15));
}

#[test]
fn who_may_preempt_runs_later_is_told_from_when() {
    let told = |runs: &str| {
        let snapshot = super::world::world(&format!(
            "node n1 h100:4
             qos low min=600 mode=requeue
             qos off min=600 mode=off
             qos any mode=requeue
             qos high preempts=low,off,any
             {runs}
             job 10 a ann 4 qos=high limit=100"
        ));
        let why = why(&snapshot, JobId(10)).unwrap();
        let secs = |at: Option<gmodel::Timestamp>| at.map(|at| at.since_secs(super::world::NOW));
        if let Some(from) = secs(why.blockers[0].may_preempt_from) {
            let looked = secs(crate::preempt::victims::next_unprotected(&snapshot));
            assert!(
                looked.is_some_and(|at| at <= from),
                "nobody looks at it then: {looked:?}, {from}"
            );
        }
        (
            secs(why.blockers[0].may_preempt_from),
            secs(why.blockers[0].until),
            secs(why.forecast.unwrap().start),
        )
    };
    let low = "run 1 a bob 3 on=n1 qos=low ago=100 limit=7200";
    // Then 30 s to be killed, and a little to enter the plan.
    assert_eq!(told(low), (Some(500), Some(7100), Some(540)));
    assert_eq!(
        told(&format!(
            "{low}\nrun 2 a bob 1 on=n1 qos=low ago=50 limit=7200"
        )),
        (Some(550), Some(7150), Some(590)),
        "both must go"
    );
    assert_eq!(
        told(&format!(
            "{low}\nrun 2 a bob 1 on=n1 qos=any ago=50 limit=7200"
        )),
        (Some(500), Some(7150), Some(540))
    );
    assert_eq!(
        told(&format!(
            "{low}\nrun 2 a bob 1 on=n1 qos=off ago=50 limit=7200"
        )),
        (None, Some(7150), Some(7150)),
        "one is never ended for others"
    );
    assert_eq!(
        told("run 1 a bob 3 on=n1 qos=any ago=100 limit=7200"),
        (None, Some(7100), Some(40)),
        "it may be now"
    );
    assert_eq!(
        told("run 1 a bob 3 on=n1 qos=low ago=100 limit=550"),
        (None, Some(450), Some(450)),
        "it is over before"
    );
}

/// Nobody counts on runs that go for who comes before.
#[test]
fn runs_that_may_be_ended_later_go_for_one_only() {
    let snapshot = super::world::world(
        "node n1 h100:4
         qos low min=600 mode=requeue
         qos high preempts=low
         run 1 a bob 2 on=n1 qos=low ago=100 limit=7200
         run 2 a bob 2 on=n1 qos=low ago=0 limit=7200
         job 10 a ann 2 qos=high limit=1000
         job 11 a ann 2 qos=high limit=100
         job 12 a ann 2 qos=high limit=100
         job 13 a ann 2 limit=100",
    );
    let all = snapshot.pending.iter().map(|job| job.id).collect();
    let starts: Vec<_> = forecast(&snapshot, &all)
        .iter()
        .map(|one| one.start.map(|at| at.since_secs(super::world::NOW)))
        .collect();
    assert_eq!(
        starts,
        [540, 640, 740, 840].map(Some),
        "the second run for the second job, after which there is room for the others"
    );
}

#[test]
fn what_is_in_the_way_of_each_kind_of_gpus_is_told_by_itself() {
    let mut snapshot = picture(
        "node n1 l4:8\nnode n2 h100:8\nrunning 1 n1 gpus=0 left=600\njob gpus=l4:8|h100:4|a100:1 time=100",
    );
    Arc::make_mut(&mut snapshot.config).partitions[0].group.gpus =
        Some(super::world::amounts("h100:2"));
    let told = why(&snapshot, JobId(10)).unwrap();
    let codes =
        |blockers: &[crate::Blocker]| blockers.iter().map(|one| one.code).collect::<Vec<_>>();
    assert_eq!(
        (told.alternative.as_deref(), codes(&told.blockers)),
        (Some("l4:8"), vec![ReasonCode::Resources])
    );
    let others: Vec<_> = told
        .alternatives
        .iter()
        .map(|one| (&*one.gpus, codes(&one.blockers)))
        .collect();
    assert_eq!(
        others,
        [
            ("h100:4", vec![ReasonCode::QOSGrpGRES]),
            ("a100:1", vec![ReasonCode::PartitionConfig])
        ]
    );
    let one = picture("node n1 l4:8\nrunning 1 n1 gpus=0 left=600\njob gpus=l4:8 time=100");
    let told = why(&one, JobId(10)).unwrap();
    assert_eq!((told.alternative, told.alternatives.len()), (None, 0));
}

#[test]
fn an_array_at_its_cap_is_told_of_a_higher_one() {
    let of = |text: &str, cap: ArrayCap| {
        let mut snapshot = picture(text);
        snapshot.pending[0].particulars.cap = Some(cap);
        let told = why(&snapshot, JobId(10)).unwrap();
        (
            told.blockers[0].text.clone(),
            told.changes
                .iter()
                .map(|change| change.option.clone())
                .collect::<Vec<_>>(),
        )
    };
    let (idle, busy) = (
        "node n1 h100:8\njob gpus=1 array=5 room=0 time=100",
        "node n1 h100:1\nrunning 1 n1 gpus=0 left=600\njob gpus=1 array=5 room=0 time=100",
    );
    let (text, changes) = of(
        idle,
        ArrayCap {
            most: 2,
            running: 2,
        },
    );
    assert_eq!(
        (text.as_str(), changes),
        (
            "the array allows 2 at once, and 2 of its tasks run",
            vec!["ArrayTaskThrottle=3".to_owned()]
        )
    );
    assert_eq!(
        of(
            idle,
            ArrayCap {
                most: 1,
                running: 4
            }
        )
        .1,
        ["ArrayTaskThrottle=5"],
        "the cap was lowered"
    );
    assert!(
        of(
            busy,
            ArrayCap {
                most: 1,
                running: 1
            }
        )
        .1
        .is_empty(),
        "there is no room for more"
    );
}

#[test]
fn changes_are_of_use_only_before_the_deadline() {
    let told = |deadline: Option<i64>| {
        let mut snapshot = picture(
            "node n1 h100:8\nrunning 1 n1 gpus=0-3 left=600\nrunning 2 n1 gpus=4-7 left=9000\njob gpus=8 time=500",
        );
        let job = &mut snapshot.pending[0];
        Arc::make_mut(&mut job.spec).deadline = deadline.map(|secs| NOW.plus_secs(secs));
        let told = why(&snapshot, JobId(10)).unwrap();
        let late = told.blockers[0]
            .text
            .contains("that is too late for its deadline");
        (
            late,
            told.changes
                .iter()
                .map(|change| change.option.clone())
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(told(None), (false, vec!["--gpus 4".into()]));
    assert_eq!(
        told(Some(1100)),
        (true, vec!["--gpus 4".into()]),
        "from 600 to 1100"
    );
    assert_eq!(told(Some(1099)), (true, vec![]));
    assert_eq!(told(Some(9500)), (false, vec!["--gpus 4".into()]));
}

#[test]
fn forecasts_follow_the_queue() {
    let snapshot = picture(
        "node n1 h100:8
         running 1 n1 gpus=0-7 left=100
         job gpus=8 time=50
         job gpus=4 time=50
         job gpus=5 time=50
         job gpus=4 time=50 held=user:bob",
    );
    let told = forecast(&snapshot, &BTreeSet::from([20, 30, 40].map(JobId)));
    let starts: Vec<_> = told
        .iter()
        .map(|one| (one.job.0, one.start.map(|at| at.since_secs(NOW)), one.ahead))
        .collect();
    assert_eq!(
        starts,
        [(20, Some(150), 1), (30, Some(200), 2), (40, None, 3)]
    );
    assert_eq!(told[0].nodes, [NodeId(1)]);
}

#[test]
fn who_would_borrow_is_told_what_of_the_guarantee_is_short() {
    let snapshot = super::world::world(
        "node n1 h100:6
         node n2 l4:8
         account lab g=8
         account a under=lab g=4
         account b under=lab
         run 1 a ann 2 on=n1
         run 2 b bob 4 on=n1
         job 10 a ann h100:5
         job 11 b bob h100:2
         job 12 b bob h100:3 noborrow
         job 13 a ann h100:2 held",
    );
    let borrows = |job| why(&snapshot, JobId(job)).unwrap().borrows;
    assert_eq!(
        borrows(10).unwrap(),
        "account a is guaranteed 4 GPUs, and this job needs 5"
    );
    assert_eq!(
        borrows(11).unwrap(),
        "account lab is guaranteed 8 GPUs, of which 8 are used or guaranteed to accounts below it, and this job needs 2"
    );
    assert_eq!(
        (borrows(12), borrows(13)),
        (None, None),
        "the one is told by what is in its way, the other stands on its guarantee"
    );
}

#[test]
fn who_may_have_any_type_is_told_of_one_that_the_guarantee_is_large_enough_for() {
    // All h100 of lab are a's; of l4 b may stand on two.
    let snapshot = super::world::world(
        "node n1 h100:4
         node n2 l4:8
         account lab g=h100:4,gpu:6
         account a under=lab g=h100:4
         account b under=lab g=2
         run 1 b bob 1 on=n2
         run 2 a ann 4 on=n1
         run 3 a ann 7 on=n2
         job 10 b bob 2
         job 11 b bob h100:2
         job 12 b bob 3",
    );
    let borrows = |job| why(&snapshot, JobId(job)).unwrap().borrows.unwrap();
    assert_eq!(
        borrows(10),
        "account b is guaranteed 2 GPUs and uses 1 of them, and this job needs 2"
    );
    assert_eq!(
        borrows(11),
        "account lab is guaranteed 4 h100, of which 4 are guaranteed to accounts below it, and this job needs 2"
    );
    assert_eq!(
        borrows(12),
        "account b is guaranteed 2 GPUs, and this job needs 3"
    );
}

/// A snapshot in which more stands in the way of some jobs.
fn hindered(mut snapshot: Snapshot, held: u8, late: u8, limit: u64) -> Snapshot {
    for (at, job) in snapshot.pending.iter_mut().enumerate() {
        if held & (1 << (at % 8)) != 0 {
            job.particulars.held_by = Some("user:bob".into());
        }
        if late & (1 << (at % 8)) != 0 {
            job.eligible = NOW.plus_secs(60);
        }
        Arc::make_mut(&mut job.spec).account = "a".into();
    }
    Arc::make_mut(&mut snapshot.config).scheduler.order = JobOrder::Fifo;
    let group = Limits {
        gpus: Some(GpuAmounts::all(limit)),
        ..Limits::default()
    };
    let account = Account {
        name: "a".into(),
        group,
        ..Account::default()
    };
    Arc::make_mut(&mut snapshot.policy)
        .accounts
        .insert("a".into(), account);
    snapshot
}

/// Takes one thing out of the way; `None` where that is not a matter of the job or the policy.
fn without(snapshot: &Snapshot, job: JobId, code: ReasonCode) -> Option<Snapshot> {
    let mut changed = snapshot.clone();
    let at = changed.pending.iter().position(|one| one.id == job)?;
    match code {
        ReasonCode::JobHeldUser => changed.pending[at].particulars.held_by = None,
        ReasonCode::BeginTime => changed.pending[at].eligible = NOW,
        // For the others it holds on.
        ReasonCode::AssocGrpGRES => {
            Arc::make_mut(&mut changed.pending[at].spec).account = "free".into()
        }
        _ => return None,
    }
    Some(changed)
}

fn starts(snapshot: &Snapshot, job: JobId) -> bool {
    plan(snapshot, WorkBudget::default())
        .starts
        .iter()
        .any(|start| start.job == job)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn what_is_proposed_starts_the_job_and_no_blocker_is_for_show(
        snapshot in cluster(), held in any::<u8>(), late in any::<u8>(), limit in 1u64..20,
    ) {
        let snapshot = hindered(snapshot, held & 0x11, late & 0x12, limit);
        for job in &snapshot.pending {
            let why = why(&snapshot, job.id).unwrap();
            prop_assert_eq!(why.starts_now, starts(&snapshot, job.id), "job {}: {:?}", job.id, why);
            for change in why.changes.iter().filter(|change| change.starts == NOW) {
                let mut changed = snapshot.clone();
                let at = changed.pending.iter().position(|one| one.id == job.id).unwrap();
                changed.pending[at] = change.edit.apply(job).unwrap();
                prop_assert!(starts(&changed, job.id), "job {}: {:?}", job.id, change);
            }
            for blocker in &why.blockers {
                if let Some(changed) = without(&snapshot, job.id, blocker.code) {
                    let alone = why.blockers.len() == 1;
                    prop_assert_eq!(starts(&changed, job.id), alone, "job {} without {:?}: {:?}", job.id, blocker, why);
                }
            }
        }
    }
}

/// All changes of an amount of a job, the least first, of each kind.
fn amounts(job: &PendingJob) -> Vec<Vec<Edit>> {
    let request = &job.spec.request;
    let gpus = request
        .gpus
        .iter()
        .flat_map(|ask| &ask.alternatives)
        .filter_map(|one| match one.amount {
            GpuAmount::Whole(count) => Some(count),
            _ => None,
        });
    let minutes = job.limit_secs.map_or(0, |secs| secs.div_ceil(60));
    vec![
        (1..gpus.max().unwrap_or(0)).rev().map(Edit::Gpus).collect(),
        (1..request.nodes_min).rev().map(Edit::Nodes).collect(),
        (request.nodes_min..request.ntasks)
            .rev()
            .map(Edit::Tasks)
            .collect(),
        (1..request.cpus_per_task.unwrap_or(1))
            .rev()
            .map(Edit::CpusPerTask)
            .collect(),
        (1..request.cpus_per_gpu.unwrap_or(1))
            .rev()
            .map(Edit::CpusPerGpu)
            .collect(),
        (1..minutes)
            .rev()
            .map(|minutes| Edit::TimeLimit(minutes * 60))
            .collect(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn no_smaller_change_of_an_amount_starts_the_job(snapshot in cluster(), limit in 1u64..30) {
        let mut snapshot = hindered(snapshot, 0, 0, limit);
        // Where others are packed depends on what all ask for, so on the change too.
        Arc::make_mut(&mut snapshot.config).scheduler.placement = Placement::BestFit;
        for job in &snapshot.pending {
            let why = why(&snapshot, job.id).unwrap();
            if why.starts_now || why.changes.len() == 6 {
                continue;
            }
            let works = |edit: &Edit| {
                let mut changed = snapshot.clone();
                let at = changed.pending.iter().position(|one| one.id == job.id).unwrap();
                changed.pending[at] = edit.apply(job).unwrap();
                starts(&changed, job.id)
            };
            for edits in amounts(job) {
                let told = why.changes.iter().find(|change| change.starts == NOW && edits.contains(&change.edit));
                let least = edits.iter().find(|edit| works(edit));
                prop_assert_eq!(told.map(|change| &change.edit), least, "job {}: {:?}", job.id, why);
            }
        }
    }
}

#[test]
fn the_least_change_of_large_amounts_is_found() {
    // Of 200 GPUs 100, of 128 CPUs 37, of 400G 131G are free, and nobody waits 9 days and 13 minutes before the maintenance.
    let gpus = "node n1 h100:200
         running 1 n1 gpus=0-99 left=600
         job gpus=200 time=100";
    let cpus = "node n1 h100:8 128c
         running 1 n1 cpus=91 left=600
         job cpus=128 time=100";
    let mem = "node n1 h100:8 400G
         node n2 h100:8 132G
         running 1 n1 cpus=1 left=600
         job mem=400 nodes=2 time=100";
    let time = "reservation patch maint from=778380 secs=50
         node n1 h100:8
         job gpus=8";
    let by_gpu = "node n1 h100:8 128c
         running 1 n1 cpus=91 left=600
         job gpus=4 cpg=32 time=100";
    for (text, option) in [
        (gpus, "--gpus 100"),
        (cpus, "--cpus-per-task 37"),
        (by_gpu, "--cpus-per-gpu 9"),
        (mem, "--mem 132G"),
        (time, "--time 12973"),
    ] {
        let told = why(&picture(text), JobId(10)).unwrap();
        assert!(
            told.changes.iter().any(|change| change.option == option),
            "{option}: {told:?}"
        );
    }
}

/// What is proposed to start a job at once, each proposal shown to start it.
fn proposals(text: &str) -> Vec<String> {
    let snapshot = picture(text);
    let job = snapshot.pending.iter().map(|job| job.id).max().unwrap();
    let told = why(&snapshot, job).unwrap();
    for change in told.changes.iter().filter(|change| change.starts == NOW) {
        assert!(change.loss_milli <= 1000, "{change:?}");
        let mut changed = snapshot.clone();
        let at = changed
            .pending
            .iter()
            .position(|one| one.id == job)
            .unwrap();
        changed.pending[at] = change.edit.apply(&snapshot.pending[at]).unwrap();
        assert!(starts(&changed, job), "{change:?}");
    }
    told.changes
        .into_iter()
        .map(|change| {
            if change.starts == NOW {
                change.option
            } else {
                format!("later {}", change.option)
            }
        })
        .collect()
}

#[test]
fn fewer_tasks_are_proposed_and_less_memory_than_goes_with_the_rest() {
    let busy = |cpus: u32| {
        format!(
            "node n1 h100:8 64c 512G\nnode n2 h100:8 64c 512G\nrunning 1 n1 cpus={cpus} left=600\nrunning 2 n2 cpus=60 left=600\n"
        )
    };
    assert_eq!(
        proposals(&format!("{}job ntasks=16", busy(50))),
        ["--ntasks 14"]
    );
    assert_eq!(
        proposals(&format!("{}job ntasks=16 mem=usual", busy(50))),
        ["--ntasks 14"],
        "with the memory that goes with them"
    );
    assert_eq!(
        proposals(&format!("{}job cpus=16 mem=usual", busy(50))),
        ["--cpus-per-task 14"]
    );
    assert_eq!(
        proposals(&format!("{}job ntasks=16 nodes=2", busy(50))),
        ["--ntasks 9"]
    );
    assert_eq!(
        proposals(&format!("{}job per_node=6 nodes=2", busy(50))),
        ["--nodes 1"]
    );
    assert_eq!(
        proposals(&format!(
            "{}job ntasks=8 per_node=4 nodes=2 cpus=2",
            busy(50)
        )),
        ["--ntasks 5", "--nodes 1 --ntasks 4", "--cpus-per-task 1"]
    );
    // CPUs are free, but not the memory that goes with a share of the node.
    let full = "node n1 h100:8 64c 512G
        job gpus=1 mem=500 time=900
        job gpus=2 mem=usual";
    assert_eq!(proposals(full), ["--mem 12G"]);
}

#[test]
fn an_array_of_which_tasks_have_started_is_told_what_starts_the_next() {
    let mut snapshot =
        picture("node n1 h100:8\n running 1 n1 gpus=0-5 left=600\n job gpus=4 array=3");
    snapshot.pending[0].particulars.positions = Some("1-2".parse().unwrap());
    let told = why(&snapshot, JobId(10)).unwrap();
    assert_eq!(
        told.changes
            .iter()
            .map(|change| (&*change.option, change.starts))
            .collect::<Vec<_>>(),
        [("--gpus 2", NOW)]
    );
}

#[test]
fn where_nothing_starts_it_now_the_change_that_starts_it_soonest_is_told() {
    // Two GPUs are free in 100 s, until job 10 has them in 600 s.
    check(
        "node n1 h100:8
         running 1 n1 gpus=0-1 left=100
         running 2 n1 gpus=2-7 left=600
         job gpus=8 time=1000
         job gpus=2 time=3000",
        20,
        expect![[r#"
            1 ahead
            Resources: needs 2 GPUs, 1 CPU and 1G of memory on one node; n1 comes nearest and has 0 of 2 GPUs free, more becomes free there at 1970-01-01T00:18:20Z (until 1970-01-01T00:43:20Z)
            expected 1970-01-01T00:43:20Z on [1]
            --time 8: 1970-01-01T00:18:20Z
        "#]],
    );
    // Who is held is not told to ask for less.
    let held = picture(
        "node n1 h100:8\n running 1 n1 gpus=0-7 left=100\n job gpus=8 time=1000 held=user:bob",
    );
    assert_eq!(why(&held, JobId(10)).unwrap().changes, []);
}

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

/// The same with room for everybody.
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

#[test]
fn who_is_not_waiting_has_no_why() {
    assert_eq!(why(&picture("node n1 h100:8"), JobId(10)), None);
    assert_eq!(Reason::default().code, ReasonCode::None);
}
