//! Arrays: one record for many tasks, records of their own for those that differ.

use crate::ctl::tests::world::{World, check};
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
            1_[6,9%2] alice PENDING JobArrayTaskLimit: the array allows 2 at once, and 2 of its tasks run
            1_0 alice RUNNING 1-1 on n1[0]
            1_3 alice RUNNING 2-1 on n1[1]
            1_[9%2] alice PENDING JobArrayTaskLimit: the array allows 2 at once, and 2 of its tasks run
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
    for line in [
        "node n1 h100:1",
        "submit user=alice gpus=1 array=0-999999",
        "submit user=alice gpus=1 array=0-9",
    ] {
        world.line(line);
    }
    let task = |array: u64, index: u32| Target::Task {
        array: JobId(array),
        index,
    };
    let mut targets: Vec<Target> = (2000..402_000).map(|index| task(1, index)).collect();
    // Named twice, and once more with its whole array.
    targets.extend([
        task(1, 5),
        task(1, 5),
        task(1_000_001, 3),
        Target::Job(JobId(1_000_001)),
    ]);
    let actor = super::words::actor("alice");
    let mut events = Vec::new();
    let command = Command::Cancel {
        targets,
        signal: None,
    };
    let Ok(Reply::Each { results }) = handle(
        &mut world.state,
        &mut events,
        Input::Command { actor, command },
        world.now,
    ) else {
        panic!()
    };
    assert!(results.len() == 400_004 && results.iter().all(|result| result.refusal.is_none()));
    let told: Vec<String> = events
        .iter()
        .map(|event| match event {
            Event::TasksCancelled {
                array, positions, ..
            } => format!("{array}: {positions}"),
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
            1_[6-9%1] alice PENDING JobArrayTaskLimit: the array allows 1 at once, and 1 of its tasks run
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
            1_[1-3%1] alice PENDING JobArrayTaskLimit: the array allows 1 at once, and 1 of its tasks run
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
        (
            world.out[before..].to_owned(),
            world.state.jobs.values().count(),
        )
    };
    let refusal = |verb: &str| {
        format!(
            "refused: 10001 tasks would be {verb} one by one, and 10000 is the most of one request. Name the whole array (1), or fewer at a time.\n"
        )
    };
    assert_eq!(
        told(&format!("hold{tasks} user=alice")),
        (refusal("held"), 0)
    );
    assert_eq!(
        told("hold 1 user=alice"),
        (String::new(), 0),
        "the whole array needs no records"
    );
    assert_eq!(
        told(&format!("release{tasks} user=alice")),
        (refusal("released"), 0)
    );
    assert_eq!(told("release 1_10001 user=alice"), (String::new(), 1));
    assert_eq!(told("release 1 user=alice"), (String::new(), 1));
    assert_eq!(
        told(&format!("release{tasks} user=alice")),
        (String::new(), 1),
        "nobody holds them any more"
    );
    assert_eq!(told("cancel 1 user=alice"), (String::new(), 1));
    assert_eq!(
        told(&format!("requeue{tasks} held user=alice")),
        (refusal("held"), 1)
    );
}

/// Of many tasks half are held: one event, no records.
#[test]
fn many_tasks_are_held_as_one_set() {
    let mut world = World::new();
    world.line("node n1 h100:1");
    world.line("submit user=alice gpus=1 time=60 array=0-99999");
    let before = world.state.seq;
    world.line("hold 1_[0-49999] user=alice");
    assert_eq!(
        (world.state.seq.0 - before.0, world.state.jobs.len()),
        (1, 0)
    );
    world.line("hold 1_[0-49999:2] user=alice");
    assert_eq!(world.state.seq.0 - before.0, 1, "they are held already");
    world.line("plan");
    assert!(
        world.state.jobs.contains(JobId(50_001)),
        "the first that nobody holds starts"
    );
    world.line("cancel 1_[100-39999] user=alice");
    world.line("release 1_[0-9] user=alice");
    let array = world.state.array(JobId(1)).unwrap();
    assert_eq!(
        array
            .apart
            .iter()
            .map(|one| one.positions.to_string())
            .collect::<Vec<_>>(),
        ["10-99,40000-49999"]
    );
    assert_eq!(array.cancelled.to_string(), "100-39999");
}

#[test]
fn a_set_of_held_tasks_is_released_by_task_by_set_and_as_a_whole() {
    check(
        "node n1 h100:3
         submit user=alice gpus=1 time=60 array=0-19
         hold 1_[0-15] user=alice
         hold 1_[4-7] user=root
         plan
         show
         release 1_2 user=alice
         release 1_[3-5] user=alice
         show
         release 1 user=bob
         release 1 user=alice
         show
         release 1_[4-5] user=root
         show",
        expect![[r#"
            job 1
            1_[19] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 61 CPUs and 0 of memory; room is expected by 1970-01-12T13:47:40Z
            1_[0-3,8-15] alice PENDING, HELD user:alice (because)
            1_[4-7] alice PENDING, HELD user:alice (because) admin:root (because)
            1_16 alice RUNNING 17-1 on n1[0]
            1_17 alice RUNNING 18-1 on n1[1]
            1_18 alice RUNNING 19-1 on n1[2]
            1_[3,19] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 61 CPUs and 0 of memory; room is expected by 1970-01-12T13:47:40Z
            1_[0-1,8-15] alice PENDING, HELD user:alice (because)
            1_[6-7] alice PENDING, HELD user:alice (because) admin:root (because)
            1_[4-5] alice PENDING, HELD admin:root (because)
            1_2 alice PENDING None: 
            1_16 alice RUNNING 17-1 on n1[0]
            1_17 alice RUNNING 18-1 on n1[1]
            1_18 alice RUNNING 19-1 on n1[2]
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
            refused: job 1 is held by root (because); only they or an operator can release it.
            1_[0-1,3,8-15,19] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 61 CPUs and 0 of memory; room is expected by 1970-01-12T13:47:40Z
            1_[4-7] alice PENDING, HELD admin:root (because)
            1_2 alice PENDING None: 
            1_16 alice RUNNING 17-1 on n1[0]
            1_17 alice RUNNING 18-1 on n1[1]
            1_18 alice RUNNING 19-1 on n1[2]
            1_[0-1,3-5,8-15,19] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 61 CPUs and 0 of memory; room is expected by 1970-01-12T13:47:40Z
            1_[6-7] alice PENDING, HELD admin:root (because)
            1_2 alice PENDING None: 
            1_16 alice RUNNING 17-1 on n1[0]
            1_17 alice RUNNING 18-1 on n1[1]
            1_18 alice RUNNING 19-1 on n1[2]
        "#]],
    );
}

/// As before with tasks of their own: what a whole array's hold is let go of starts, the rest is held.
#[test]
fn some_tasks_of_a_held_array_are_let_go() {
    check(
        "node n1 h100:3
         submit user=alice gpus=1 time=60 array=0-9 held
         release 1_[0-3] user=alice
         show
         plan
         show
         hold 1 user=alice
         show
         release 1 user=alice
         show
         requeue 1_[0-9] held user=alice
         cancel 1_[5-12] user=alice
         requeue 1_[0-9] held user=alice
         show",
        expect![[r#"
            job 1
            1_[4-9] alice PENDING None: 
            1_[0-3] alice PENDING, HELD
            1_[4-9] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 61 CPUs and 0 of memory; room is expected by 1970-01-12T13:47:40Z
            1_[3] alice PENDING, HELD
            1_0 alice RUNNING 1-1 on n1[0]
            1_1 alice RUNNING 2-1 on n1[1]
            1_2 alice RUNNING 3-1 on n1[2]
            1_[4-9] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 61 CPUs and 0 of memory; room is expected by 1970-01-12T13:47:40Z
            1_[3] alice PENDING, HELD user:alice (its array is held)
            1_0 alice RUNNING 1-1 on n1[0]
            1_1 alice RUNNING 2-1 on n1[1]
            1_2 alice RUNNING 3-1 on n1[2]
            1_[3-9] alice PENDING None: 
            1_0 alice RUNNING 1-1 on n1[0]
            1_1 alice RUNNING 2-1 on n1[1]
            1_2 alice RUNNING 3-1 on n1[2]
            refused: job 1_[3-9] waits in the queue, so there is nothing to take back.
            refused: job 1 has no array task 10-12; its tasks are 0-9.
            refused: job 1_[3-4] waits in the queue, so there is nothing to take back.
            1_[3-4] alice PENDING None: 
            1_[5-9] alice PENDING, HELD user:alice (requeued and held)
            1_0 alice RUNNING 1-1 on n1[0] HELD user:alice (requeued and held)
            1_1 alice RUNNING 2-1 on n1[1] HELD user:alice (requeued and held)
            1_2 alice RUNNING 3-1 on n1[2] HELD user:alice (requeued and held)
        "#]],
    );
}
