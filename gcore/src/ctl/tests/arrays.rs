//! Arrays: one record for many tasks, records of their own for those that differ.

use super::world::{World, check};
use crate::ctl::*;
use expect_test::expect;
use gmodel::JobId;

#[test]
fn no_more_tasks_run_than_the_cap_allows() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1 array=0-9:3%2
         plan
         show
         n1 running 1-1
         n1 clean 1-1 0
         plan
         show
         update 1 user=alice max=0
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1_[6,9%2] alice PENDING JobArrayTaskLimit: as many tasks of the array run as it allows at once
            1_0 alice RUNNING 1-1 on n1[0]
            1_3 alice RUNNING 2-1 on n1[1]
            1_[9%2] alice PENDING JobArrayTaskLimit: as many tasks of the array run as it allows at once
            1_0 alice COMPLETED 0:0
            1_3 alice RUNNING 2-1 on n1[1]
            1_6 alice RUNNING 3-1 on n1[0]
            1_0 alice COMPLETED 0:0
            1_3 alice RUNNING 2-1 on n1[1]
            1_6 alice RUNNING 3-1 on n1[0]
            1_9 alice RUNNING 4-1 on n1[2]
        "#]],
    );
}

#[test]
fn one_task_is_held_and_the_others_run() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1 array=0-3
         hold 1_2 user=alice
         plan
         show
         release 1_2 user=alice
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1_0 alice RUNNING 1-1 on n1[0]
            1_1 alice RUNNING 2-1 on n1[1]
            1_2 alice PENDING JobHeldUser: held by user:alice HELD user:alice (because)
            1_3 alice RUNNING 4-1 on n1[2]
            1_0 alice RUNNING 1-1 on n1[0]
            1_1 alice RUNNING 2-1 on n1[1]
            1_2 alice RUNNING 3-1 on n1[3]
            1_3 alice RUNNING 4-1 on n1[2]
        "#]],
    );
}

#[test]
fn a_held_first_task_and_its_waiting_array_have_a_reason_each() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1 array=0-3
         hold 1_0 user=alice
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1_[2-3] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z
            1_0 alice PENDING JobHeldUser: held by user:alice HELD user:alice (because)
            1_1 alice RUNNING 2-1 on n1[0]
        "#]],
    );
}

#[test]
fn some_tasks_are_cancelled_and_the_rest_go_on() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1 array=0-5
         plan
         cancel 1_1 1_3 5 user=alice
         cancel 1_3 1_9 1_0 user=bob
         show
         n1 running 1-1
         cancel 1 user=alice
         show
         n1 stopped 1-1
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: job 1 has no array task 9; its tasks are 0-5.
            refused: job 1_0 belongs to alice; you are bob. Ask them or an operator.
            1_[2,5] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z
            1_0 alice RUNNING 1-1 on n1[0]
            1_0 alice RUNNING 1-1 on n1[0]
            1_0 alice CANCELLED 0:0 (alice)
        "#]],
    );
}

#[test]
fn tasks_that_are_cancelled_together_are_one_fact_of_each_array() {
    let mut world = World::new();
    for line in ["node n1 h100:1", "submit user=alice gpus=1 array=0-999999", "submit user=alice gpus=1 array=0-9"] {
        world.line(line);
    }
    let task = |array: u64, index: u32| Target::Task { array: JobId(array), index };
    let mut targets: Vec<Target> = (2000..402_000).map(|index| task(1, index)).collect();
    // Named twice, and once more with its whole array.
    targets.extend([task(1, 5), task(1, 5), task(1_000_001, 3), Target::Job(JobId(1_000_001))]);
    let actor = Actor { user: "alice".into(), uid: 1000, gid: 1000, operator: false, via: None };
    let mut events = Vec::new();
    let command = Command::Cancel { targets, signal: None };
    let Ok(Reply::Each { results }) = handle(&mut world.state, &mut events, Input::Command { actor, command }, world.now) else { panic!() };
    assert!(results.len() == 400_004 && results.iter().all(|result| result.refusal.is_none()));
    let told: Vec<String> = events
        .iter()
        .map(|event| match event {
            Event::TasksCancelled { array, positions, .. } => format!("{array}: {positions}"),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, ["1000001: 0-9", "1: 5,2000-401999"]);
}

#[test]
fn a_requeued_task_keeps_its_index_and_the_cap_holds() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1 array=5-9%1
         plan
         n1 running 1-1
         requeue 1_5 user=alice
         n1 stopped 1-1
         plan
         wait 1
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1_[6-9%1] alice PENDING JobArrayTaskLimit: as many tasks of the array run as it allows at once
            1_5 alice RUNNING 1-2 on n1[0]
        "#]],
    );
}

#[test]
fn a_held_array_holds_its_requeued_tasks_too() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1 array=0-3%1
         plan
         hold 1 user=root reason=quota
         n1 running 1-1
         requeue 1_0 user=alice
         n1 stopped 1-1
         plan
         show
         hold 1 user=root reason=quota
         release 1 user=alice
         release 1_3 user=alice
         release 1 user=root
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1_[1-3%1] alice PENDING JobHeldAdmin: held by admin:root
            1_0 alice RUNNING 1-2 on n1[0]
            refused: job 1 is held by root (quota); only they or an operator can release it.
            refused: job 1_3 is held by root (quota); only they or an operator can release it.
            1_[1-3%1] alice PENDING JobArrayTaskLimit: as many tasks of the array run as it allows at once
            1_0 alice RUNNING 1-2 on n1[0]
        "#]],
    );
}

#[test]
fn the_next_id_comes_after_the_whole_array() {
    check(
        "node n1 h100:8
         submit user=alice array=0-999999
         submit user=alice
         submit user=alice array=1-3
         submit user=alice
         config max_array=10
         submit user=alice array=0-10",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 1000001
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 1000002
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 1000005
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: the array has 11 tasks; this cluster allows 10. Split it.
        "#]],
    );
}

#[test]
fn each_task_starts_steps_by_its_own_number_though_the_first_has_that_of_the_array() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1 array=0-3%2
         step 1 user=alice
         plan
         n1 running 1-1 2-1
         step 1 user=alice
         step 2 user=alice
         step-ends 1 user=alice
         step 3 user=alice
         step 1 user=bob",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: job 1 is not running: steps need its allocation.
            step 1-1.0 on n1
            step 2-1.0 on n1
            refused: job 3 is not running: steps need its allocation.
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
        "#]],
    );
}

/// Each would be a record of its own, and all of them one commit.
#[test]
fn not_too_many_tasks_are_held_one_by_one() {
    let mut world = World::new();
    let tasks: String = (0..10_001).map(|index| format!(" 1_{index}")).collect();
    world.line("node n1 h100:1");
    world.line("submit user=alice gpus=1 time=60 array=0-10001");
    let mut told = |line: &str| {
        let before = world.out.len();
        world.line(line);
        (world.out[before..].to_owned(), world.state.jobs.values().count())
    };
    let refusal = |verb: &str| {
        format!("refused: 10001 tasks would be {verb} one by one, and 10000 is the most of one request. Name the whole array (1), or fewer at a time.\n")
    };
    assert_eq!(told(&format!("hold{tasks} user=alice")), (refusal("held"), 0));
    assert_eq!(told("hold 1 user=alice"), (String::new(), 0), "the whole array needs no records");
    assert_eq!(told(&format!("release{tasks} user=alice")), (refusal("released"), 0));
    assert_eq!(told("release 1_10001 user=alice"), (String::new(), 1));
    assert_eq!(told("release 1 user=alice"), (String::new(), 1));
    assert_eq!(told(&format!("release{tasks} user=alice")), (String::new(), 1), "nobody holds them any more");
    assert_eq!(told("cancel 1 user=alice"), (String::new(), 1));
    assert_eq!(told(&format!("requeue{tasks} held user=alice")), (refusal("held"), 1));
}
