//! What a job may ask for beside amounts: reservations, licences, switches, shares, a shorter time.

use super::NOW;
use super::{check, picture, story};
use crate::{Snapshot, WorkBudget, plan};
use expect_test::expect;
use gmodel::{JobId, NodeId};
use std::sync::Arc;

#[test]
fn nobody_runs_into_a_maintenance() {
    check(
        "reservation patch maint from=100 secs=50
         node n1 h100:1
         node n2 h100:1
         job gpus=1 time=100
         job gpus=1 time=101
         job gpus=1 time=60",
        expect![[r#"
            10 starts on n1[0]x1
            30 starts on n2[0]x1
            20 waits: ReqNodeNotAvail: nodes it needs are kept for maintenance "patch" from 1970-01-01T00:18:20Z to 1970-01-01T00:19:10Z
        "#]],
    );
}

#[test]
fn a_daily_window_is_kept_clear_each_day() {
    check(
        "reservation night nodes=n1 maint daily from=3600 secs=3600
         node n1 h100:8
         job gpus=1 time=82800
         job gpus=1 time=3600",
        expect![[r#"
            20 starts on n1[0]x1
            10 waits: ReqNodeNotAvail: nodes it needs are kept for maintenance "night" from 1970-01-01T01:16:40Z to 1970-01-01T02:16:40Z
        "#]],
    );
}

#[test]
fn a_reservation_is_for_its_users_and_for_its_time() {
    check(
        "reservation course nodes=n1 user=alice from=-10 secs=110
         reservation later nodes=n2 user=alice from=50 secs=100
         node n1 h100:2
         node n2 h100:2
         job gpus=2 user=alice reservation=course time=100
         job gpus=1 user=bob reservation=course time=10
         job gpus=1 user=alice reservation=course time=101
         job gpus=1 user=alice reservation=later time=60
         job gpus=1 user=alice reservation=none time=60
         job gpus=1 user=bob time=51
         job gpus=1 user=bob time=50",
        expect![[r#"
            10 starts on n1[0,1]x1
            70 starts on n2[0]x1
            20 waits: Reservation: reservation "course" is not for user "bob" in account ""
            30 waits: Resources: needs 1 GPU, 1 CPU and 1G of memory on one node; most is free on n1: 0 GPUs, 63 CPUs and 511G of memory
            40 waits: Reservation: reservation "later" begins at 1970-01-01T00:17:30Z
            60 waits: ReqNodeNotAvail: nodes it needs are kept for reservation "later" from 1970-01-01T00:17:30Z to 1970-01-01T00:19:10Z
            50 waits: ReservationDeleted: there is no reservation "none"
        "#]],
    );
}

#[test]
fn gpus_reserved_by_number_are_kept_wherever_they_are() {
    check(
        "reservation demo gpus=3 user=alice secs=1000
         node n1 h100:4
         node n2 h100:2
         job gpus=3 user=alice reservation=demo time=100
         job gpus=1 user=alice reservation=demo time=100
         job gpus=1 user=bob time=100
         job gpus=2 user=bob time=100",
        expect![[r#"
            10 starts on n1[0,1,2]x1
            30 starts on n1[3]x1
            40 starts on n2[0,1]x1
            20 waits: Reservation: reservation "demo" has 3 GPUs, and none is free for as long: this job needs 1
        "#]],
    );
    check(
        "reservation demo gpus=3 user=alice secs=1000
         node n1 h100:4
         node n2 h100:2
         job gpus=2 user=bob time=100
         job gpus=2 user=bob time=100
         job gpus=3 user=alice reservation=demo time=100",
        expect![[r#"
            10 starts on n2[0,1]x1
            30 starts on n1[0,1,2]x1
            20 waits: Resources: needs 2 GPUs, 1 CPU and 1G of memory on one node; most is free on n1: 1 GPU, 64 CPUs and 512G of memory; room is expected by 1970-01-01T00:18:20Z
        "#]],
    );
}

/// Windows of 100 s from now on; what a job needs to start in one is a minute, or what it asks for at least.
#[test]
fn a_job_starts_while_its_reservation_lasts_and_ends_with_it() {
    let starts = |left: i64, job: &str| {
        let snapshot = picture(&format!(
            "reservation course nodes=n1 user=alice from={} secs=1000 daily
             node n1 h100:4
             job gpus=1 user=alice reservation=course {job}",
            left - 1000
        ));
        let plan = plan(&snapshot, WorkBudget::default());
        let expected = crate::forecast(
            &snapshot,
            &std::collections::BTreeSet::from([gmodel::JobId(10)]),
        )[0]
        .start;
        (
            plan.starts.first().map(|start| start.limit_secs),
            expected.map(|at| at.since_secs(super::NOW)),
        )
    };
    assert_eq!(starts(700, "time=700"), (Some(None), Some(0)));
    assert_eq!(
        starts(699, "time=700"),
        (Some(Some(699)), Some(0)),
        "more than is left, and less than it lasts"
    );
    assert_eq!(starts(700, "time=5000"), (Some(Some(700)), Some(0)));
    assert_eq!(
        starts(700, ""),
        (Some(Some(700)), Some(0)),
        "no limit at all"
    );
    assert_eq!(starts(60, "time=700"), (Some(Some(60)), Some(0)));
    assert_eq!(starts(59, "time=700"), (None, Some(86_400 + 59 - 1000)));
    assert_eq!(starts(59, "time=59"), (Some(None), Some(0)));
    assert_eq!(
        starts(300, "time=700 time_min=300"),
        (Some(Some(300)), Some(0))
    );
    assert_eq!(
        starts(299, "time=700 time_min=300"),
        (None, Some(86_400 + 299 - 1000))
    );
}

#[test]
fn a_job_ends_with_its_reservation_and_before_nobody_elses_start() {
    // Two of its jobs wait for the node's end at 50 s: neither is cut for the other, and who comes first has its place until the window ends.
    let text = "reservation course nodes=n[1-2] user=alice from=-900 secs=1000
         node n1 h100:4
         node n2 h100:2
         running 1 n1 gpus=0-1 left=30
         job gpus=4 user=alice reservation=course time=500
         job gpus=2 user=alice reservation=course time=500 nodelist=n1
         job gpus=2 user=alice reservation=course time=500
         job gpus=1 user=bob time=101
         job gpus=2 user=alice reservation=course time=30 nodelist=n1";
    check(
        text,
        expect![[r#"
        30 starts on n2[0,1]x1 for 100 s
        50 starts on n1[2,3]x1
        10 waits: Resources: needs 4 GPUs, 1 CPU and 1G of memory on one node; most is free on n2: 2 GPUs, 64 CPUs and 512G of memory; room is expected by 1970-01-01T00:17:10Z
        20 waits: Priority: what it needs is kept for job 10
        40 waits: ReqNodeNotAvail: nodes it needs are kept for reservation "course" from 1970-01-01T00:01:40Z to 1970-01-01T00:18:20Z
    "#]],
    );
    let snapshot = picture(text);
    let told = crate::forecast(
        &snapshot,
        &snapshot.pending.iter().map(|job| job.id).collect(),
    );
    let told: Vec<_> = told
        .iter()
        .map(|one| (one.job.0, one.start.map(|at| at.since_secs(super::NOW))))
        .collect();
    assert_eq!(
        told,
        [
            (10, Some(30)),
            (20, None),
            (30, Some(0)),
            (40, Some(100)),
            (50, Some(0))
        ]
    );
}

#[test]
fn what_a_job_takes_of_licences_and_gpus_by_number_it_takes_until_its_reservation_ends() {
    let text = "licence matlab 2
         reservation demo gpus=3 user=alice secs=100
         reservation next gpus=3 user=carl from=100 secs=100
         node n1 h100:4
         job gpus=1 user=alice reservation=demo time=500 licences=matlab:2
         job gpus=1 user=alice reservation=demo time=40 licences=matlab:1
         job gpus=2 user=carl reservation=next time=500 licences=matlab:2
         job gpus=3 user=alice reservation=demo time=500";
    check(
        text,
        expect![[r#"
        10 starts on n1[0]x1 for 100 s
        20 waits: Licenses: needs 1 of licence "matlab"; 0 of 2 are free for as long
        30 waits: Reservation: reservation "next" begins at 1970-01-01T00:18:20Z
        40 waits: Reservation: reservation "demo" has 3 GPUs, and 2 are free for as long: this job needs 3
    "#]],
    );
    let snapshot = picture(text);
    let told = crate::forecast(
        &snapshot,
        &snapshot.pending.iter().map(|job| job.id).collect(),
    );
    let told: Vec<_> = told
        .iter()
        .map(|one| (one.job.0, one.start.map(|at| at.since_secs(super::NOW))))
        .collect();
    assert_eq!(
        told,
        [(10, Some(0)), (20, None), (30, Some(100)), (40, None)]
    );
}

/// Its GPUs would be nobody's there, and missing elsewhere.
#[test]
fn what_is_reserved_by_number_is_set_apart_beside_nodes_that_others_reserve() {
    let cluster = |more: &str| {
        format!(
            "reservation one nodes=n1 user=alice from=0 secs=700
             reservation some gpus=2 user=dan from=0 secs=900
             reservation last nodes=n2 user=carl from=800 secs=100
             node n1 h100:4
             node n2 h100:4
             {more}"
        )
    };
    check(
        &cluster(
            "job gpus=4 user=alice reservation=one time=100\njob gpus=3 user=bob time=100\njob gpus=2 user=bob time=100",
        ),
        expect![[r#"
        10 starts on n1[0,1,2,3]x1
        30 starts on n2[0,1]x1
        20 waits: Resources: needs 3 GPUs, 1 CPU and 1G of memory on one node; most is free on n2: 2 GPUs, 64 CPUs and 512G of memory; room is expected by 1970-01-01T00:28:20Z
    "#]],
    );
    // From 700 on there are two nodes, from 800 on the first alone.
    let snapshot = picture(&cluster(
        "running 1 n1 gpus=0-3 left=750\njob gpus=2 user=dan reservation=some time=900\njob gpus=3 user=bob time=300",
    ));
    let told = crate::forecast(
        &snapshot,
        &snapshot.pending.iter().map(|job| job.id).collect(),
    );
    let told: Vec<_> = told
        .iter()
        .map(|one| {
            (
                one.job.0,
                one.start.map(|at| at.since_secs(super::NOW)),
                one.nodes.clone(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (10, Some(750), vec![NodeId(1)]),
            (20, Some(900), vec![NodeId(1)])
        ]
    );
}

#[test]
fn jobs_of_a_reservation_of_gpus_take_no_more_than_it_has_unless_it_is_flexible() {
    let queue = |reservation: &str| {
        format!(
            "reservation demo gpus=4 user=alice secs=1000 {reservation}
             node n1 h100:8
             job gpus=2 user=alice reservation=demo time=100
             job gpus=4 user=alice reservation=demo time=100
             job gpus=1 user=alice reservation=demo time=100
             job gpus=1 user=alice reservation=demo time=101
             job gpus=5 user=alice reservation=demo time=100
             job gpus=0 user=alice reservation=demo time=100
             job gpus=4 user=bob time=100
             job gpus=1 user=bob time=100"
        )
    };
    // The second comes when the first ends, and the fourth would be in its way.
    check(
        &queue(""),
        expect![[r#"
        10 starts on n1[0,1]x1
        30 starts on n1[2]x1
        60 starts on n1[]x1
        70 starts on n1[3,4,5,6]x1
        20 waits: Reservation: reservation "demo" has 4 GPUs, and 2 are free for as long: this job needs 4
        40 waits: Reservation: reservation "demo" has 4 GPUs, and none is free for as long: this job needs 1
        50 waits: Reservation: needs 5 GPUs, and reservation "demo" has 4 GPUs
        80 waits: Priority: needs 1 GPU, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
    "#]],
    );
    check(
        &queue("flex"),
        expect![[r#"
        10 starts on n1[0,1]x1
        20 starts on n1[2,3,4,5]x1
        30 starts on n1[6]x1
        40 starts on n1[7]x1
        60 starts on n1[]x1
        50 waits: Resources: needs 5 GPUs, 1 CPU and 1G of memory on one node; most is free on n1: 0 GPUs, 60 CPUs and 508G of memory; room is expected by 1970-01-01T00:18:20Z
        70 waits: Priority: needs 4 GPUs, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
        80 waits: Priority: needs 1 GPU, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
    "#]],
    );
}

#[test]
fn the_reason_names_the_reservation_that_is_in_the_way_and_no_other() {
    check(
        "reservation demo gpus=a100:4 user=alice from=50 secs=1000
         reservation patch nodes=n1 maint from=60 secs=100
         node n1 h100:4
         node n2 a100:8
         job gpus=a100:6 time=100
         job gpus=h100:2 time=100
         job gpus=6 time=100
         job gpus=a100:5 time=40
         job gpus=a100:3 time=100",
        expect![[r#"
            40 starts on n2[0,1,2,3,4]x1
            50 starts on n2[5,6,7]x1
            10 waits: ReqNodeNotAvail: GPUs it needs are kept for reservation "demo" from 1970-01-01T00:17:30Z to 1970-01-01T00:34:10Z
            20 waits: ReqNodeNotAvail: nodes it needs are kept for maintenance "patch" from 1970-01-01T00:17:40Z to 1970-01-01T00:19:20Z
            30 waits: ReqNodeNotAvail: GPUs it needs are kept for reservation "demo" from 1970-01-01T00:17:30Z to 1970-01-01T00:34:10Z
        "#]],
    );
    // As many are free, but kept for who waits before it.
    check(
        "reservation demo gpus=a100:2 user=alice from=50 secs=1000
         node n1 a100:8
         node n2 a100:4
         node n3 a100:2
         job gpus=a100:4 nodelist=n2 time=20
         job gpn=a100:4 nodes=2 time=100
         job gpus=a100:5 time=100",
        expect![[r#"
            10 starts on n2[0,1,2,3]x1
            20 waits: Resources: needs 4 a100, 1 CPU and 1G of memory on each of 2 nodes; most is free on n1: 8 GPUs, 64 CPUs and 512G of memory; room is expected by 1970-01-01T00:17:00Z
            30 waits: Priority: what it needs is kept for job 20
        "#]],
    );
}

/// They stand on a node for which the one who waits for a whole node has no use, or where they stood before: a node that becomes free is
/// not taken from who waited for it.
#[test]
fn what_is_set_apart_by_number_does_not_move_to_the_node_that_somebody_waits_for() {
    let mut snapshot = picture(
        "backfill easy
         reservation demo gpus=3 user=alice secs=100000
         node n1 h100:8
         node n2 h100:8
         running 1 n1 gpus=0-3 left=300
         running 2 n2 gpus=0-7 left=100
         job gpus=8 time=1000",
    );
    let expected = |snapshot: &crate::Snapshot| {
        let told = crate::forecast(
            snapshot,
            &snapshot.pending.iter().map(|job| job.id).collect(),
        );
        told.iter()
            .map(|one| (one.start.map(|at| at.since_secs(NOW)), one.nodes.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(expected(&snapshot), [(Some(100), vec![NodeId(2)])]);
    snapshot.now = snapshot.now.plus_secs(100);
    super::kept::end(&mut snapshot, 1);
    let told = plan(&snapshot, WorkBudget::default());
    assert_eq!(
        told.starts
            .iter()
            .map(|start| start.allocation[0].node)
            .collect::<Vec<_>>(),
        [NodeId(2)]
    );
    check(
        "reservation demo gpus=3 user=alice secs=100000
         node n1 h100:8
         node n2 h100:8
         node n3 h100:4
         job gpn=8 nodes=2 time=1000",
        expect![[r#"
            10 starts on n1[0,1,2,3,4,5,6,7]x1 n2[0,1,2,3,4,5,6,7]x1
        "#]],
    );
}

#[test]
fn a_reservation_of_gpus_of_a_type_is_of_that_type_for_its_jobs_too() {
    let nodes = "node n1 a100:2
         node n2 h100:4";
    let queue = "job gpus=1 user=alice reservation=demo time=100
         job gpus=1 user=alice reservation=demo time=100
         job gpus=a100:1 user=alice reservation=demo time=100
         job gpus=2 user=bob time=100
         job gpus=h100:3 user=bob time=100
         job gpus=h100:1 user=bob time=100";
    check(
        &format!("reservation demo gpus=h100:1 user=alice secs=1000\n{nodes}\n{queue}"),
        expect![[r#"
        10 starts on n2[0]x1
        40 starts on n1[0,1]x1
        50 starts on n2[1,2,3]x1
        20 waits: Reservation: reservation "demo" has 1 GPU, and none is free for as long: this job needs 1
        30 waits: Reservation: reservation "demo" has 1 GPU, and none is free for as long: this job needs 1
        60 waits: Priority: needs 1 h100, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
    "#]],
    );
    // One h100 and one more of any type.
    check(
        &format!("reservation demo gpus=h100:1,gpu:2 user=alice secs=1000\n{nodes}\n{queue}"),
        expect![[r#"
        10 starts on n1[0]x1
        20 starts on n2[0]x1
        40 starts on n2[1,2]x1
        60 starts on n2[3]x1
        30 waits: Reservation: reservation "demo" has 2 GPUs, and none is free for as long: this job needs 1
        50 waits: Priority: needs 3 h100, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
    "#]],
    );
}

#[test]
fn a_reservation_of_gpus_has_whole_ones_first_and_then_slices() {
    let seven = ["1g.10gb"; 7].join("+");
    let queue = |gpus: &str| {
        format!(
            "reservation demo gpus={gpus} user=alice secs=1000
             node n1 cut={seven}
             node n2 a100:2
             job gpus=1g.10gb:1 user=bob time=100
             job gpus=1g.10gb:7 user=bob time=100
             job gpus=1 user=bob time=100
             job gpus=2 user=alice reservation=demo time=100"
        )
    };
    check(
        &queue("a100:2"),
        expect![[r#"
        10 starts on n1[0:142]x1
        40 starts on n2[0,1]x1
        20 waits: Resources: needs 7 slices 1g.10gb, 1 CPU and 1G of memory on one node; most is free on n1: 6 slices 1g.10gb, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:18:20Z
        30 waits: Priority: needs 1 GPU, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
    "#]],
    );
    // Whole GPUs and slices are not counted together.
    let mixed = |gpus: &str| {
        let nodes = format!("node n1 a100:1 cut={seven}\n node n2 a100:3");
        format!(
            "{nodes}\n running 1 n2 gpus=0 left=60\n running 2 n2 gpus=1 left=60\n job gpus={gpus} user=bob time=100"
        )
    };
    for (gpus, free) in [
        (
            "3",
            "most is free on n1: 1 GPU, 7 slices 1g.10gb, 64 CPUs and",
        ),
        ("a100:3", "most is free on n2: 1 GPU, 62 CPUs and"),
    ] {
        let snapshot = picture(&mixed(gpus));
        let told = plan(&snapshot, WorkBudget::default()).reasons[0]
            .1
            .text
            .to_string();
        assert!(told.contains(free), "{gpus}: {told}");
    }
    check(
        &queue("a100:3"),
        expect![[r#"
        40 starts on n2[0,1]x1
        10 waits: Resources: needs 1 slice 1g.10gb, 1 CPU and 1G of memory on one node; most is free on n1: 0 slices 1g.10gb, 64 CPUs and 512G of memory; room is expected by 1970-01-01T00:33:20Z
        20 waits: Priority: needs 7 slices 1g.10gb, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
        30 waits: Priority: needs 1 GPU, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
    "#]],
    );
}

#[test]
fn what_a_job_of_a_reservation_of_gpus_leaves_is_for_others_of_it() {
    let mut snapshot = picture(
        "reservation demo gpus=2 user=alice secs=1000
         node n1 h100:4
         job gpus=2 user=alice reservation=demo time=100
         job gpus=3 user=bob time=60
         job gpus=2 user=alice reservation=demo time=100",
    );
    let mut engine = crate::Engine::default();
    let first = engine.plan(&snapshot, WorkBudget::default());
    super::kept::enter(&mut snapshot, &first);
    let starts = |snapshot: &crate::Snapshot| {
        let jobs = snapshot.pending.iter().map(|job| job.id).collect();
        crate::forecast(snapshot, &jobs)
            .iter()
            .map(|one| (one.job.0, one.start.map(|at| at.since_secs(NOW))))
            .collect::<Vec<_>>()
    };
    // The third when the first ends; bob, who needs three of four, when the reservation is over.
    assert_eq!(starts(&snapshot), [(20, Some(1000)), (30, Some(100))]);
    let changes = super::kept::end(&mut snapshot, 0);
    assert_eq!(
        engine.after(&snapshot, &changes, WorkBudget::default()),
        None,
        "that takes a full pass"
    );
    let next = engine.plan(&snapshot, WorkBudget::default());
    assert_eq!(
        next.starts
            .iter()
            .map(|start| start.job.0)
            .collect::<Vec<_>>(),
        [30]
    );
}

#[test]
fn licences_are_kept_for_who_waits_longest() {
    check(
        "backfill easy
         licence matlab 3
         node n1 h100:8
         job gpus=1 licences=matlab:2 time=100
         job gpus=1 licences=matlab:2 time=100
         job gpus=1 licences=matlab:1 time=100
         job gpus=1 licences=matlab:1 time=101
         job gpus=1 licences=matlab:4
         job gpus=1 licences=ansys",
        expect![[r#"
            10 starts on n1[0]x1
            30 starts on n1[1]x1
            20 waits: Licenses: needs 2 of licence "matlab"; 1 of 3 are free for as long
            40 waits: Licenses: needs 1 of licence "matlab"; 0 of 3 are free for as long
            50 waits: Licenses: needs 4 of licence "matlab", and there are 3
            60 waits: Licenses: licence "ansys" is not in the configuration
        "#]],
    );
}

#[test]
fn what_is_promised_to_who_waits_for_a_node_is_taken_on_no_other() {
    let starts = |of_second: &str, last: &str| {
        let snapshot = picture(&format!(
            "backfill 2
             licence matlab 1
             reservation demo gpus=4 user=bob secs=1000
             node n0 h100:4
             node n1 h100:4
             node n2 h100:8
             running 1 n1 gpus=0-3 left=100
             job gpus=4 nodelist=n1 time=50
             job gpus=4 nodelist=n1 time=100 {of_second}
             job gpus=1 {last}"
        ));
        plan(&snapshot, WorkBudget::default()).starts.len()
    };
    for of_both in ["licences=matlab:1", "reservation=demo"] {
        assert_eq!(
            starts(of_both, &format!("{of_both} time=150")),
            1,
            "{of_both}: over by then"
        );
        assert_eq!(
            starts(of_both, &format!("{of_both} time=151")),
            0,
            "{of_both}"
        );
        assert_eq!(
            starts(of_both, "time=151"),
            1,
            "{of_both}: needs none of it"
        );
    }
}

#[test]
fn who_waits_outside_of_a_reservation_is_promised_nothing_of_it_while_one_of_its_own_looks_for_nodes()
 {
    // The second needs GPUs that are reserved until 1000; the third may have these.
    let snapshot = picture(
        "backfill 2
         reservation demo gpus=4 user=bob secs=1000
         node n1 h100:8
         node n2 h100:1
         running 1 n1 gpus=0-3 left=100
         running 2 n2 gpus=0 left=50
         job gpus=1 nodelist=n2 user=alice time=10
         job gpus=6 user=alice time=50
         job gpus=4 user=bob reservation=demo time=500",
    );
    let started: Vec<u64> = plan(&snapshot, WorkBudget::default())
        .starts
        .iter()
        .map(|start| start.job.0)
        .collect();
    assert_eq!(started, [30]);
}

#[test]
fn a_job_of_several_nodes_stays_below_one_switch_if_it_can() {
    let nodes = "switch s1 n[1-3]
         switch s2 n[4-6]
         node n1 h100:8
         node n2 h100:8
         node n3 h100:8
         node n4 h100:8
         node n5 h100:8
         node n6 h100:8
         running 1 n1 gpus=0 left=500
         running 2 n2 gpus=0 left=100";
    check(
        &format!("{nodes}\njob nodes=2 gpn=8 time=60"),
        expect![[r#"
        10 starts on n4[0,1,2,3,4,5,6,7]x1 n5[0,1,2,3,4,5,6,7]x1
    "#]],
    );
    check(
        &format!("{nodes}\njob nodes=4 gpn=8 time=60\njob nodes=1 gpn=7 time=60"),
        expect![[r#"
        10 starts on n3[0,1,2,3,4,5,6,7]x1 n4[0,1,2,3,4,5,6,7]x1 n5[0,1,2,3,4,5,6,7]x1 n6[0,1,2,3,4,5,6,7]x1
        20 starts on n1[1,2,3,4,5,6,7]x1
    "#]],
    );
    check(
        &format!(
            "{nodes}\nrunning 3 n4 gpus=1 left=50\nrunning 4 n5 gpus=1 left=70\njob nodes=2 gpn=8 time=60 switches=1"
        ),
        expect![[r#"
        10 waits: Resources: needs 8 GPUs, 1 CPU and 1G of memory on each of 2 nodes below 1 leaf switch; most is free on n6: 8 GPUs, 64 CPUs and 512G of memory; room is expected by 1970-01-01T00:17:30Z
    "#]],
    );
    // It waited its 900 seconds since it came at zero.
    check(
        &format!(
            "{nodes}\nrunning 3 n4 gpus=1 left=50\nrunning 4 n5 gpus=1 left=70\njob nodes=2 gpn=8 time=60 switches=1@900 begin=-900"
        ),
        expect![[r#"
        10 starts on n3[0,1,2,3,4,5,6,7]x1 n6[0,1,2,3,4,5,6,7]x1
    "#]],
    );
    // In 20 s any switches will do; in 50 s there is room below one.
    for (patience, expected) in [(20, 20), (49, 49), (51, 50)] {
        let snapshot = picture(&format!(
            "{nodes}\nrunning 3 n4 gpus=1 left=50\nrunning 4 n5 gpus=1 left=70\njob nodes=2 gpn=8 time=60 switches=1@{patience}"
        ));
        let told = crate::forecast(&snapshot, &std::collections::BTreeSet::from([JobId(10)]));
        assert_eq!(
            told[0].start,
            Some(NOW.plus_secs(expected)),
            "waits {patience} s"
        );
    }
}

/// Not when it was submitted: a node was taken away since.
#[test]
fn a_job_that_no_switch_can_hold_any_more_is_told_so() {
    let nodes = "switch s1 n[1-2]
         switch s2 n[3-4]
         node n1 h100:8
         node n2 h100:1
         node n3 h100:8
         node n4 8c";
    check(
        &format!("{nodes}\njob nodes=2 gpn=8 time=60 switches=1"),
        expect![[r#"
        10 waits: BadConstraints: needs 8 GPUs, 1 CPU and 1G of memory on each of 2 nodes below one leaf switch; partition "main" has 1 such node there at most, and enough below 2
    "#]],
    );
    check(
        &format!("{nodes}\njob nodes=2 gpn=8 time=60 switches=2"),
        expect![[r#"
        10 starts on n1[0,1,2,3,4,5,6,7]x1 n3[0,1,2,3,4,5,6,7]x1
    "#]],
    );
}

#[test]
fn only_gpus_of_the_kind_it_names_are_counted_as_free() {
    check(
        "node n1 h100:4 a100:4
         node n2 h100:4
         running 1 n1 gpus=0-2 left=60
         running 2 n2 gpus=0-1 left=60
         job gpus=h100:4 time=60",
        expect![[r#"
            10 waits: Resources: needs 4 h100, 1 CPU and 1G of memory on one node; most is free on n2: 2 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:17:40Z
        "#]],
    );
    // An idle node of another kind is of no interest.
    check(
        "node n1 h100:4
         node n2 a100:4
         running 1 n1 gpus=0-3 left=60
         job gpus=h100:1 time=60",
        expect![[r#"
            10 waits: Resources: needs 1 h100, 1 CPU and 1G of memory on one node; most is free on n1: 0 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:17:40Z
        "#]],
    );
}

#[test]
fn a_named_node_that_can_give_no_part_of_it_is_named_as_the_reason() {
    // Other nodes have what is asked for; n1 and n3 must be among them. A GPU that is only busy comes back.
    check(
        "node n1 h100:8
         node n2 a100:4
         node n3 a100:2
         running 1 n2 gpus=0-3 left=60
         job gpn=a100:2 nodes=2 nodelist=n1 time=60
         job gpn=a100:4 nodelist=n3 time=60
         job gpus=a100:4|h100:8 nodelist=n1 time=60
         job gpn=a100:4 nodelist=n2 time=60",
        expect![[r#"
            30 starts on n1[0,1,2,3,4,5,6,7]x1
            40 waits: Resources: needs 4 a100, 1 CPU and 1G of memory on one node; most is free on n2: 0 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:17:40Z
            10 waits: BadConstraints: needs 2 a100, 1 CPU and 1G of memory on each of 2 nodes; n1, which it names, has not that
            20 waits: BadConstraints: needs 4 a100, 1 CPU and 1G of memory on one node; n3, which it names, has not that
        "#]],
    );
}

#[test]
fn a_job_stays_below_as_many_switches_as_it_bears() {
    let nodes = |free: [&str; 9]| {
        let mut text = "switch s1 n[1-3]\nswitch s2 n[4-6]\nswitch s3 n[7-9]\n".to_owned();
        (1..10).for_each(|n| text += &format!("node n{n} h100:8\n"));
        for (n, taken) in (1..).zip(free).filter(|(_, taken)| !taken.is_empty()) {
            text += &format!("running {n} n{n} gpus={taken} left={n}00\n");
        }
        text
    };
    let open = nodes(["", "", "", "", "", "", "", "0", "0"]);
    check(
        &format!("{open}\njob nodes=5 gpn=8 time=60 switches=2"),
        expect![[r#"
        10 starts on n1[0,1,2,3,4,5,6,7]x1 n2[0,1,2,3,4,5,6,7]x1 n3[0,1,2,3,4,5,6,7]x1 n4[0,1,2,3,4,5,6,7]x1 n5[0,1,2,3,4,5,6,7]x1
    "#]],
    );
    check(
        &format!("{open}\njob nodes=7 gpn=8 time=60 switches=2"),
        expect![[r#"
        10 waits: BadConstraints: needs 8 GPUs, 1 CPU and 1G of memory on each of 7 nodes below 2 leaf switches; partition "main" has 6 such nodes there at most, and enough below 3
    "#]],
    );
    // Six nodes are free, and no two switches have five of them.
    let spread = nodes(["", "", "0", "", "", "0", "", "", "0"]);
    check(
        &format!("{spread}\njob nodes=5 gpn=8 time=60 switches=2"),
        expect![[r#"
        10 waits: Resources: needs 8 GPUs, 1 CPU and 1G of memory on each of 5 nodes below 2 leaf switches; most is free on n8: 8 GPUs, 64 CPUs and 512G of memory; room is expected by 1970-01-01T00:21:40Z
    "#]],
    );
    check(
        &format!("{spread}\njob nodes=5 gpn=8 time=60 switches=3"),
        expect![[r#"
        10 starts on n1[0,1,2,3,4,5,6,7]x1 n2[0,1,2,3,4,5,6,7]x1 n4[0,1,2,3,4,5,6,7]x1 n5[0,1,2,3,4,5,6,7]x1 n7[0,1,2,3,4,5,6,7]x1
    "#]],
    );
    // It has waited as long as it said.
    check(
        &format!("{spread}\njob nodes=5 gpn=8 time=60 switches=2@900 begin=-900"),
        expect![[r#"
        10 starts on n1[0,1,2,3,4,5,6,7]x1 n2[0,1,2,3,4,5,6,7]x1 n4[0,1,2,3,4,5,6,7]x1 n5[0,1,2,3,4,5,6,7]x1 n7[0,1,2,3,4,5,6,7]x1
    "#]],
    );
}

#[test]
fn the_switches_that_are_largest_need_not_be_those_that_serve() {
    // Of 15 GPUs one node gives 8, the other 7: below s1 and s2 none has 8.
    let text = "switch s1 n[1-3]
         switch s2 n[4-6]
         switch s3 n7
         switch s4 n8
         node n1 h100:7
         node n2 h100:7
         node n3 h100:7
         node n4 h100:7
         node n5 h100:7
         node n6 h100:7
         node n7 h100:8
         node n8 h100:2";
    check(
        &format!("{text}\njob nodes=2 gpus=15 time=60 switches=2"),
        expect![[r#"
        10 starts on n4[0,1,2,3,4,5,6]x1 n7[0,1,2,3,4,5,6,7]x1
    "#]],
    );
    // A node that is named brings its switch along.
    check(
        &format!("{text}\njob nodes=3 gpn=2 time=60 nodelist=n8 switches=2"),
        expect![[r#"
        10 starts on n1[0,1]x1 n2[0,1]x1 n8[0,1]x1
    "#]],
    );
    check(
        &format!("{text}\njob nodes=4 gpn=2 time=60 nodelist=n[7-8] switches=2"),
        expect![[r#"
        10 waits: Resources: needs 2 GPUs, 1 CPU and 1G of memory on each of 4 nodes below 2 leaf switches; most is free on n7: 8 GPUs, 64 CPUs and 512G of memory
    "#]],
    );
}

#[test]
fn shares_fill_one_gpu_before_they_open_another_and_never_span_two() {
    check(
        "partition main sharing=uncapped
         node n1 h100:2
         job gpus=0.5
         job gpus=0.3
         job gpus=0.4
         job gpus=0.2
         job gpus=0.6
         job gpus=0.7
         job gpus=1",
        expect![[r#"
            10 starts on n1[0:500]x1
            20 starts on n1[0:300]x1
            30 starts on n1[1:400]x1
            40 starts on n1[0:200]x1
            50 starts on n1[1:600]x1
            60 waits: Resources: needs 0.7 of one GPU, 1 CPU and 1G of memory on one node; most is free on n1: 0 GPUs, 59 CPUs and 507G of memory
            70 waits: Priority: needs 1 GPU, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
        "#]],
    );
}

#[test]
fn a_shared_gpu_is_whole_again_when_the_last_has_left() {
    let first = picture(
        "partition main sharing=uncapped\nnode n1 h100:1\njob gpus=0.5 time=100\njob gpus=0.4 time=300\njob gpus=1 time=10",
    );
    expect![[r#"
        10 starts on n1[0:500]x1
        20 starts on n1[0:400]x1
        30 waits: Resources: needs 1 GPU, 1 CPU and 1G of memory on one node; most is free on n1: 0 GPUs, 62 CPUs and 510G of memory; room is expected by 1970-01-01T00:21:40Z
    "#]].assert_eq(&story(&first, &plan(&first, WorkBudget::default())));
}

#[test]
fn a_limit_is_shortened_to_fit_before_a_reservation() {
    check(
        "node n1 h100:8
         running 1 n1 gpus=0-3 left=600
         job gpus=8 time=1000
         job gpus=4 time=6000 time_min=601
         job gpus=4 time=6000 time_min=300",
        expect![[r#"
            30 starts on n1[4,5,6,7]x1 for 600 s
            10 waits: Resources: needs 8 GPUs, 1 CPU and 1G of memory on one node; most is free on n1: 4 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:26:40Z
            20 waits: Priority: what it needs is kept for job 10
        "#]],
    );
}

#[test]
fn preferred_features_are_taken_while_there_are_some() {
    check(
        "node n1 h100:2
         node n2 h100:2 feature=ib
         job gpus=2 prefer=ib
         job gpus=2 prefer=ib",
        expect![[r#"
            10 starts on n2[0,1]x1
            20 starts on n1[0,1]x1
        "#]],
    );
}

#[test]
fn where_the_site_says_so_small_runs_move_to_make_a_large_hole() {
    let text = "node n1 h100:4
         node n2 h100:4
         node n3 h100:2
         running 1 n1 gpus=0 left=9000
         running 2 n2 gpus=0-1 left=9000
         job gpus=4 time=100";
    let mut snapshot = picture(text);
    let checkpoint = gmodel::CommonSpec {
        partition: "main".into(),
        checkpoint: Some(gmodel::checkpoint::CheckpointSpec::parse("USR1@60").unwrap()),
        ..gmodel::CommonSpec::default()
    };
    snapshot.running[0].spec = std::sync::Arc::new(checkpoint.into());
    assert!(
        plan(&snapshot, WorkBudget::default()).preempts.is_empty(),
        "not unless the site says so"
    );
    std::sync::Arc::make_mut(&mut snapshot.config)
        .scheduler
        .consolidate = true;
    let moved = plan(&snapshot, WorkBudget::default());
    let runs: Vec<_> = moved
        .preempts
        .iter()
        .map(|one| (one.run, one.for_job))
        .collect();
    assert_eq!(runs, [(snapshot.running[0].run, snapshot.pending[0].id)]);
    assert_eq!(moved.reasons[0].1.code, gmodel::ReasonCode::Preempting);
    // It takes no other node, or has its place in a reservation: it stays.
    let bound: [fn(&mut gmodel::JobSpec); 4] = [
        |spec| spec.request.nodelist = Some(gmodel::hostlist::Hostlist::parse("n1").unwrap()),
        |spec| spec.request.exclude = Some(gmodel::hostlist::Hostlist::parse("n[2-3]").unwrap()),
        |spec| spec.request.constraint = Some("ib".into()),
        |spec| spec.reservation = Some("demo".into()),
    ];
    for bind in bound {
        let mut snapshot = snapshot.clone();
        snapshot.nodes[0].features = vec!["ib".into()];
        bind(Arc::make_mut(&mut snapshot.running[0].spec));
        assert!(plan(&snapshot, WorkBudget::default()).preempts.is_empty());
    }
    // Nowhere to go.
    snapshot.nodes[1].unavailable = Some("down".into());
    snapshot.nodes[2].unavailable = Some("down".into());
    assert!(plan(&snapshot, WorkBudget::default()).preempts.is_empty());
}

/// Of two nodes of four GPUs, one of which is kept: who waits in order, each with a GPU that some run will leave.
fn with_one_kept(text: &str) -> Snapshot {
    let mut snapshot = picture(text);
    let config = Arc::make_mut(&mut snapshot.config);
    config.partitions[0].headroom = Some(gmodel::policy::GpuAmounts::all(1));
    snapshot
}

#[test]
fn who_waits_until_more_is_idle_than_is_kept_is_not_passed_piece_by_piece() {
    let starts = |text: &str| {
        plan(&with_one_kept(text), WorkBudget::default())
            .starts
            .iter()
            .map(|start| start.job.0)
            .collect::<Vec<_>>()
    };
    let nodes = "node n1 h100:4
         node n2 h100:4
         running 1 n1 gpus=0-2 left=600
         running 2 n2 gpus=0-2 left=900
         ";
    assert_eq!(
        starts(&format!("{nodes} job gpus=1")),
        [10],
        "of two that are idle one is kept"
    );
    assert_eq!(
        starts(&format!("{nodes} job gpus=3\n job gpus=1")),
        [0; 0],
        "what the first waits for is not for the second"
    );
    assert_eq!(
        starts(&format!("{nodes} job gpus=8\n job gpus=1")),
        [20],
        "so many will never be idle beside what is kept"
    );
    let one_over = "node n1 h100:4
         node n2 h100:4
         running 2 n2 gpus=0-2 left=900
         job gpus=4
         job gpus=1";
    assert_eq!(
        starts(one_over),
        [10],
        "four and one kept are idle: the first has its turn"
    );
    let said = plan(
        &with_one_kept(&format!("{nodes} job gpus=3\n job gpus=1")),
        WorkBudget::default(),
    )
    .reasons;
    let text = said
        .iter()
        .find(|(job, _)| job.0 == 20)
        .map(|(_, reason)| reason.text.to_string())
        .unwrap_or_default();
    assert!(
        text.contains("0 are idle beside what a job before it waits for"),
        "{text}"
    );
}
