//! Reservations of nodes, GPUs and licences: starts keep clear of their windows, and jobs of a reservation start and end in it.

use super::NOW;
use super::kept::starts;
use super::{check, picture};
use crate::{WorkBudget, plan};
use expect_test::expect;
use gmodel::{JobId, NodeId};

#[test]
fn no_run_overlaps_a_maintenance() {
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
fn a_job_of_a_reservation_ends_with_its_window_and_is_not_cut_for_another() {
    // Two of its jobs wait for the node until 50 s: neither is cut for the other, and the first has the node until the window
    // ends.
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
        20 waits: Priority: nodes it needs are planned for job 10
        40 waits: ReqNodeNotAvail: nodes it needs are kept for reservation "course" from 1970-01-01T00:01:40Z to 1970-01-01T00:18:20Z
    "#]],
    );
    assert_eq!(
        starts(&picture(text)),
        [
            (JobId(10), Some(30)),
            (JobId(20), None),
            (JobId(30), Some(0)),
            (JobId(40), Some(100)),
            (JobId(50), Some(0))
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
    assert_eq!(
        starts(&picture(text)),
        [
            (JobId(10), Some(0)),
            (JobId(20), None),
            (JobId(30), Some(100)),
            (JobId(40), None)
        ]
    );
}

/// The GPUs would be idle there and missing elsewhere.
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
    // As many are free, but planned for an earlier job.
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
            30 waits: Priority: nodes it needs are planned for job 20
        "#]],
    );
}

/// The GPUs stay on a node that the whole-node job cannot use, or where they were. A node that becomes free is not taken from
/// that job.
#[test]
fn gpus_reserved_by_number_do_not_move_to_a_node_that_a_job_waits_for() {
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
    // The third when the first ends; bob with three of four GPUs when the reservation is over.
    assert_eq!(
        starts(&snapshot),
        [(JobId(20), Some(1000)), (JobId(30), Some(100))]
    );
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
fn licences_are_kept_for_the_job_that_waits_longest() {
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
fn a_planned_start_on_a_named_node_takes_reserved_gpus_of_no_other_node() {
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
fn a_job_outside_of_a_reservation_has_no_planned_start_on_its_gpus() {
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
            20 waits: Priority: nodes it needs are planned for job 10
        "#]],
    );
}
