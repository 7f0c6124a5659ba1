//! Which jobs may be backfilled before which: no backfill, EASY, the first K, conservative; in time and in amount.

use super::check;
use expect_test::expect;

/// Head needs all 8 in 600 s; behind it a long and a short one, and one that would only delay the second.
fn queue(backfill: &str) -> String {
    format!(
        "backfill {backfill}
         node n1 h100:8
         running 1 n1 gpus=0-3 left=600
         job gpus=8 time=1000
         job gpus=4 time=601
         job gpus=8 time=100
         job gpus=2 time=600"
    )
}

#[test]
fn without_backfill_no_job_passes_another_in_a_partition() {
    check(
        &format!(
            "partition main\npartition other\n{}\njob gpus=1 partition=other time=10",
            queue("off")
        ),
        expect![[r#"
            50 starts on n1[4]x1
            10 waits: Resources: needs 8 GPUs, 1 CPU and 1G of memory on one node; most is free on n1: 4 GPUs, 63 CPUs and 511G of memory
            20 waits: Priority: needs 4 GPUs, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
            30 waits: Priority: needs 8 GPUs, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
            40 waits: Priority: needs 2 GPUs, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
        "#]],
    );
}

#[test]
fn easy_keeps_room_for_the_first_alone() {
    check(
        "backfill easy
         node n1 h100:4
         node n2 h100:4
         running 1 n1 gpus=0-3 left=100
         running 2 n2 gpus=0-1 left=200
         job gpus=4 time=1000
         job gpus=4 time=1000
         job gpus=2 time=500",
        expect![[r#"
            30 starts on n2[2,3]x1
            10 waits: Resources: needs 4 GPUs, 1 CPU and 1G of memory on one node; most is free on n2: 2 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:18:20Z
            20 waits: Priority: needs 4 GPUs, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
        "#]],
    );
}

#[test]
fn conservative_keeps_room_for_all() {
    check(
        "backfill all
         node n1 h100:4
         node n2 h100:4
         running 1 n1 gpus=0-3 left=100
         running 2 n2 gpus=0-1 left=200
         job gpus=4 time=1000
         job gpus=4 time=1000
         job gpus=2 time=500
         job gpus=2 time=200",
        expect![[r#"
            40 starts on n2[2,3]x1
            10 waits: Resources: needs 4 GPUs, 1 CPU and 1G of memory on one node; most is free on n2: 2 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:18:20Z
            20 waits: Priority: needs 4 GPUs, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
            30 waits: Priority: nodes it needs are planned for job 20
        "#]],
    );
}

#[test]
fn what_is_left_beside_a_reservation_may_be_used_for_long() {
    check(
        "node n1 h100:8
         running 1 n1 gpus=0-5 left=600
         job gpus=6 time=1000
         job gpus=2 time=90000
         job gpus=1 time=90000",
        expect![[r#"
            20 starts on n1[6,7]x1
            10 waits: Resources: needs 6 GPUs, 1 CPU and 1G of memory on one node; most is free on n1: 2 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:26:40Z
            30 waits: Priority: needs 1 GPU, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
        "#]],
    );
}

#[test]
fn shortest_first_and_first_come_are_orders() {
    for order in ["sjf", "fifo"] {
        let queue = format!(
            "order {order}\nnode n1 h100:1\njob gpus=1 time=300\njob gpus=1 time=100\njob gpus=1 time=200"
        );
        let snapshot = super::picture(&queue);
        let plan = crate::plan(&snapshot, crate::WorkBudget::default());
        let first = if order == "sjf" { 20 } else { 10 };
        assert_eq!(plan.starts[0].job.0, first, "{order}");
    }
}

#[test]
fn best_fit_fills_whole_nodes_and_puts_the_rest_where_most_is_free() {
    check(
        "placement best_fit
         node n1 h100:8
         node n2 h100:8
         node n3 h100:8
         node n4 h100:8
         running 1 n2 gpus=0-2 left=60
         running 2 n3 gpus=0-1 left=60
         job gpus=11 nodes=2
         job gpus=3",
        expect![[r#"
            10 starts on n1[0,1,2,3,4,5,6,7]x1 n4[0,1,2]x1
            20 starts on n2[3,4,5]x1
        "#]],
    );
}

#[test]
fn spread_takes_the_emptiest_and_first_fit_the_first() {
    let nodes = "node n1 h100:4\nnode n2 h100:4\nnode n3 h100:4\nrunning 1 n1 gpus=0 left=60\nrunning 2 n2 gpus=0-1 left=60";
    check(
        &format!("placement spread\n{nodes}\njob gpus=1\njob gpus=1"),
        expect![[r#"
        10 starts on n3[0]x1
        20 starts on n1[1]x1
    "#]],
    );
    check(
        &format!("placement first_fit\n{nodes}\njob gpus=1\njob gpus=1"),
        expect![[r#"
        10 starts on n1[1]x1
        20 starts on n1[2]x1
    "#]],
    );
    check(
        &format!("placement pack\n{nodes}\njob gpus=1\njob gpus=1"),
        expect![[r#"
        10 starts on n2[2]x1
        20 starts on n2[3]x1
    "#]],
    );
}
