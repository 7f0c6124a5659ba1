//! What a job may ask for beside amounts: reservations, licences, switches, shares, a shorter time.

use super::NOW;
use super::{check, picture, story};
use crate::{Snapshot, WorkBudget, plan};
use expect_test::expect;
use gmodel::JobId;
use std::sync::Arc;

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

/// Two nodes of four GPUs, one of them headroom: each pending job in order, with a GPU that some run will free.
fn with_one_kept(text: &str) -> Snapshot {
    let mut snapshot = picture(text);
    let config = Arc::make_mut(&mut snapshot.config);
    config.partitions[0].headroom = Some(gmodel::policy::GpuAmounts::all(1));
    snapshot
}

#[test]
fn a_job_that_waits_for_headroom_is_not_passed_piece_by_piece() {
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
