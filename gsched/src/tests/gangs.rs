//! Jobs of unlike parts: all start or none, in time, within limits, guarantees and licences.

use super::world::world;
use super::{check, picture, story};
use crate::{Plan, WorkBudget, crowded_out, plan};
use expect_test::{Expect, expect};
use gmodel::RunClass;

#[test]
fn a_gang_waits_for_all_its_room_and_what_it_does_not_need_meanwhile_is_used() {
    check(
        "node n1 h100:8
         node n2 h100:8
         running 1 n1 gpus=0-7 left=600
         job gpus=8 time=100
         part gpus=8 time=100
         job gpus=8 time=601
         job gpus=8 time=600",
        expect![[r#"
            30 starts on n2[0,1,2,3,4,5,6,7]x1
            11 waits: Resources: component 1: needs 8 GPUs, 1 CPU and 1G of memory on one node; most is free on n2: 0 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:26:40Z
            10 waits: Resources: component 1: needs 8 GPUs, 1 CPU and 1G of memory on one node; most is free on n2: 0 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:26:40Z
            20 waits: Priority: nodes it needs are planned for job 11
        "#]],
    );
}

#[test]
fn components_in_several_partitions_start_together() {
    check(
        "partition gpu nodes=n1
         partition cpu nodes=n2
         node n1 h100:8
         node n2 h100:1 8c
         job gpus=8 partition=gpu time=100
         part partition=cpu cpus=8 time=100
         job gpus=1 partition=cpu time=50",
        expect![[r#"
            10 starts on n1[0,1,2,3,4,5,6,7]x1
            11 starts on n2[]x8
            20 waits: Resources: needs 1 GPU, 1 CPU and 1G of memory on one node; most is free on n2: 1 GPU, 0 CPUs and 511G of memory; room is expected by 1970-01-01T00:18:20Z
        "#]],
    );
}

#[test]
fn licences_are_counted_over_all_components() {
    let of = |count: u32, busy: &str| {
        format!(
            "licence matlab {count}
             node n1 h100:8
             {busy}
             job gpus=1 licences=matlab:2 time=100
             part gpus=1 licences=matlab:1 time=100"
        )
    };
    check(
        &of(3, ""),
        expect![[r#"
        10 starts on n1[0]x1
        11 starts on n1[1]x1
    "#]],
    );
    let never = picture(&of(2, ""));
    let stuck = crowded_out(&never, &never.pending[0], WorkBudget::default());
    assert_eq!(stuck, Some(1));
    check(
        &of(2, ""),
        expect![[r#"
        11 waits: Licenses: component 1: needs 1 of licence "matlab"; 0 of 2 are free for as long
        10 waits: Licenses: component 1: needs 1 of licence "matlab"; 0 of 2 are free for as long
    "#]],
    );
}

/// Starts with their classes, victims and reasons.
fn told(text: &str, expect: Expect) {
    let snapshot = world(text);
    let plan: Plan = plan(&snapshot, WorkBudget::default());
    let mut said = String::new();
    for start in &plan.starts {
        let class = match start.class {
            Some(RunClass::Guaranteed) => "guaranteed",
            Some(RunClass::Borrowed) => "borrowed",
            _ => "without class",
        };
        said.push_str(&format!("{} starts {class}\n", start.job));
    }
    for victim in &plan.preempts {
        said.push_str(&format!("{} goes for {}\n", victim.run, victim.for_job));
    }
    let mut reasons = plan.clone();
    reasons.starts.clear();
    said.push_str(&story(&snapshot, &reasons));
    expect.assert_eq(&said);
}

#[test]
fn a_gang_within_its_guarantee_takes_back_what_others_borrowed() {
    told(
        "node n1 h100:8
         node n2 h100:8
         account lab g=12
         account guest g=0
         run 1 guest ann 8 on=n1 ago=100 limit=9000 class=b
         run 2 guest ann 8 on=n2 ago=50 limit=9000 class=b
         job 5 lab bob 8
         part 6 lab bob 4",
        expect![[r#"
            2-1 goes for 5
            1-1 goes for 5
            6 waits: Preempting: 2 runs are ended to make room for it
            5 waits: Preempting: 2 runs are ended to make room for it
        "#]],
    );
}

#[test]
fn a_component_beyond_the_guarantee_keeps_the_whole_from_taking_others_gpus() {
    told(
        "node n1 h100:8
         node n2 h100:8
         account lab g=8
         account guest g=0
         run 1 guest ann 8 on=n1 ago=100 limit=9000 class=b
         run 2 guest ann 8 on=n2 ago=50 limit=9000 class=b
         job 5 lab bob 8
         part 6 lab bob 4",
        expect![[r#"
            6 waits: Resources: component 0: needs 8 GPUs and 1 CPU on one node; most is free on n2: 0 GPUs, 56 CPUs and 511G of memory; room is expected by 2026-11-20T14:29:10Z
            5 waits: Resources: component 0: needs 8 GPUs and 1 CPU on one node; most is free on n2: 0 GPUs, 56 CPUs and 511G of memory; room is expected by 2026-11-20T14:29:10Z
        "#]],
    );
}

#[test]
fn a_component_beyond_the_guarantee_borrows_what_is_idle() {
    told(
        "node n1 h100:8
         node n2 h100:8
         account lab g=8
         account guest g=8
         job 5 lab bob 8
         part 6 lab bob 4",
        expect![[r#"
            5 starts guaranteed
            6 starts borrowed
        "#]],
    );
}

#[test]
fn a_limit_is_of_all_components_together() {
    told(
        "node n1 h100:8
         account lab limit=8
         job 5 lab bob 6
         part 6 lab bob 4
         job 7 lab bob 4",
        expect![[r#"
            7 starts without class
            6 waits: AssocGrpGRES: component 1: account lab may hold 8 GPUs and holds 6; this job needs 4
            5 waits: AssocGrpGRES: component 1: account lab may hold 8 GPUs and holds 6; this job needs 4
        "#]],
    );
}
