//! Time limits of jobs in a reservation.

use crate::ctl::desired;
use crate::ctl::tests::world::{World, check};
use expect_test::expect;

#[test]
fn of_the_limit_of_a_job_without_a_time_in_a_reservation_one_word_is_said() {
    check(
        "partition main default
         partition spare
         node n1 h100:8
         reservation course nodes=n1 at=0 for=600 users=alice
         submit user=alice gpus=1 reservation=course
         submit user=alice gpus=1 reservation=course time_min=400
         submit user=alice gpus=1 reservation=course partition=main,spare",
        expect![[r#"
            job 1
              note: --reservation course: without --time the job gets what is left of it when it starts, 10:00 at most
            job 2
              note: --reservation course: without --time the job gets what is left of it when it starts, 10:00 at most
            job 3
              note: --reservation course: without --time the job gets what is left of it when it starts, 10:00 at most
        "#]],
    );
}

#[test]
fn a_job_without_a_time_gets_what_is_left_of_its_reservation_and_cannot_make_it_more() {
    check(
        "partition main default default_time=3600
         node n1 h100:8
         reservation course nodes=n1 at=0 for=600 users=alice
         reservation open nodes=n1 at=10000 for=600 users=alice flex
         wait 100
         submit user=alice gpus=1 reservation=course
         submit user=alice gpus=1 reservation=course time_min=400
         submit user=alice gpus=1 reservation=course time=500
         submit user=alice gpus=1 reservation=course time=9000
         submit user=alice gpus=1 reservation=course time=599
         submit user=alice gpus=1 reservation=open
         plan
         n1 running 1-1 2-1
         update 1 user=alice time=501
         update 2 user=alice time=501
         update 2 user=alice time=499
         update 1 user=root time=520
         update 1 user=alice time=530
         show",
        expect![[r#"
            job 1
              note: --reservation course: without --time the job gets what is left of it when it starts, 10:00 at most
            job 2
              note: --reservation course: without --time the job gets what is left of it when it starts, 10:00 at most
            job 3
            job 4
              note: --reservation course: with so long a --time the job gets what is left of it when it starts, 10:00 at most
            job 5
            job 6
            refused: a running job's time limit can only be lowered by its owner; job 1 has 8:20. Ask an operator for more.
            refused: a running job's time limit can only be lowered by its owner; job 2 has 8:20. Ask an operator for more.
            refused: a running job's time limit can only be lowered by its owner; job 1 has 8:40. Ask an operator for more.
            1 alice RUNNING 1-1 on n1[0]
            2 alice RUNNING 2-1 on n1[1]
            3 alice RUNNING 3-1 on n1[2]
            4 alice RUNNING 4-1 on n1[3]
            5 alice RUNNING 5-1 on n1[4]
            6 alice PENDING ReqNodeNotAvail: nodes it needs are kept for reservation "course" from 1970-01-12T13:46:40Z to 1970-01-12T13:56:40Z
        "#]],
    );
}

#[test]
fn a_job_keeps_the_limit_that_it_asked_for_and_its_run_ends_with_the_reservation() {
    check(
        "partition main default default_time=3600
         node n1 h100:3
         node n2 h100:2
         reservation course nodes=n1 at=100 for=600 users=alice
         submit user=alice gpus=1 reservation=course time=9000
         submit user=alice gpus=1 reservation=course
         submit user=alice gpus=1 reservation=course time=9000
         submit user=alice gpus=1 time=300 nodelist=n1 held
         update 2 user=alice reservation=none
         update 3 user=alice time=8000
         update 4 user=alice reservation=course time=250
         release 4 user=alice
         plan
         n2 running 2-1
         update 2 user=alice time=3601
         update 1 user=alice time=9001
         wait 500
         plan
         n1 running 1-1 3-1 4-1
         show
         update 1 user=alice time=201
         update 3 user=alice time=201
         update 4 user=alice time=201",
        expect![[r#"
            job 1
              note: --reservation course: with so long a --time the job gets what is left of it when it starts, 10:00 at most
            job 2
              note: --reservation course: without --time the job gets what is left of it when it starts, 10:00 at most
            job 3
              note: --reservation course: with so long a --time the job gets what is left of it when it starts, 10:00 at most
            job 4
            refused: a running job's time limit can only be lowered by its owner; job 2 has 1:00:00. Ask an operator for more.
            1 alice RUNNING 1-1 on n1[0]
            2 alice RUNNING 2-1 on n2[0]
            3 alice RUNNING 3-1 on n1[1]
            4 alice RUNNING 4-1 on n1[2]
            refused: a running job's time limit can only be lowered by its owner; job 1 has 3:20. Ask an operator for more.
            refused: a running job's time limit can only be lowered by its owner; job 3 has 3:20. Ask an operator for more.
            refused: a running job's time limit can only be lowered by its owner; job 4 has 3:20. Ask an operator for more.
        "#]],
    );
}

/// What a partition lets runs go over their limits ends with the window, too.
#[test]
fn no_run_goes_over_its_limit_beyond_the_end_of_its_reservation() {
    let mut world = World::new();
    world.line("node n1 h100:8");
    world.line("reservation course nodes=n1 at=0 for=600 users=alice");
    for limit in [600, 580, 500, 900] {
        world.line(&format!(
            "submit user=alice gpus=1 reservation=course time={limit}"
        ));
    }
    world.plan();
    std::sync::Arc::make_mut(&mut world.state.config)
        .partitions
        .iter_mut()
        .for_each(|one| one.over_time_secs = 50);
    let enforced: Vec<_> = world
        .state
        .runs
        .values()
        .map(|run| world.state.enforced_limit_secs(run))
        .collect();
    assert_eq!(enforced, [Some(600), Some(600), Some(550), Some(600)]);
}

/// Its nodes are told anew. One that is skipped or moved is another window, and one that is gone is none: then a run has its limit.
#[test]
fn a_run_in_a_reservation_that_is_made_shorter_ends_with_it() {
    let after = |change: &str| {
        let mut world = World::new();
        for line in [
            "node n1 h100:8",
            "reservation course nodes=n1 at=0 for=600 users=alice daily",
            "submit user=alice gpus=1 reservation=course time=500",
            "submit user=alice gpus=1 reservation=course time=100",
            "plan",
            "wait 60",
        ] {
            world.line(line);
        }
        let node = world.state.nodes.keys().next().unwrap();
        let before = desired(&world.state, node).fence;
        if !change.is_empty() {
            world.line(change);
        }
        let told = desired(&world.state, node);
        assert_eq!(
            told.fence > before,
            !change.is_empty(),
            "{change}: {}",
            world.out
        );
        (
            told.runs
                .iter()
                .map(|run| run.limit_secs.unwrap())
                .collect::<Vec<_>>(),
            world
                .state
                .runs
                .values()
                .map(|run| run.limit_secs)
                .collect::<Vec<_>>(),
        )
    };
    let own = vec![Some(500), Some(100)];
    assert_eq!(after(""), (vec![500, 100], own.clone()));
    assert_eq!(
        after("reservation course nodes=n1 at=-60 for=300 users=alice daily"),
        (vec![300, 100], own.clone())
    );
    assert_eq!(
        after("reservation course nodes=n1 at=-60 for=61 users=alice daily"),
        (vec![61, 61], own.clone())
    );
    for other in [
        "reservation course nodes=n1 at=-60 for=900 users=alice daily",
        "reservation course nodes=n1 at=-60 for=300 users=alice daily flex",
        "reservation course nodes=n1 at=-60 for=300 users=alice daily skip=300",
        "reservation course nodes=n1 at=10 for=300 users=alice daily",
        "reservation course gone force",
    ] {
        assert_eq!(after(other), (vec![500, 100], own.clone()), "{other}");
    }
}

/// Between plan and entry the window goes on, or ends.
#[test]
fn a_late_plan_starts_no_job_beyond_the_end_of_a_reservation() {
    let limit_after = |secs: i64| {
        let mut world = World::new();
        for line in [
            "node n1 h100:2",
            "reservation course nodes=n1 at=0 for=600 users=alice",
            "submit user=alice gpus=1 reservation=course",
        ] {
            world.line(line);
        }
        world.plan_and_enter_after(&format!("wait {secs}"));
        world.state.runs.values().next().map(|run| run.limit_secs)
    };
    assert_eq!(
        [limit_after(0), limit_after(5)],
        [Some(Some(600)), Some(Some(595))]
    );
    assert_eq!(
        [limit_after(540), limit_after(541), limit_after(600)],
        [Some(Some(60)), None, None]
    );
}

#[test]
fn nodes_that_jobs_take_are_replaced_where_that_is_asked_and_maintenance_keeps_its_own() {
    check(
        "node n1 h100:1
         node n2 h100:1
         node n3 h100:1
         reservation fresh count=1 at=0 for=6000 users=alice replace
         reservation service nodes=n2 at=0 for=6000 maintenance
         submit user=alice gpus=1 time=1000 reservation=fresh
         plan
         policy
         wait 60
         policy
         down n2 it smokes
         policy
         reservation three count=3 at=9000 for=600 users=alice
         reservation two count=2 at=9000 for=600 users=alice
         reservation both count=1 at=9000 for=600 users=alice replace static
         reservation both count=1 at=9000 for=600 replace_down maintenance
         show",
        expect![[r#"
            job 1
            reservation fresh by root at 1970-01-12T13:46:40Z: {"nodes":"n1"}
            reservation service by root at 1970-01-12T13:46:40Z: {"nodes":"n2"}
            reservation fresh by root at 1970-01-12T13:46:40Z: {"nodes":"n3"}
            reservation service by root at 1970-01-12T13:46:40Z: {"nodes":"n2"}
            reservation fresh by root at 1970-01-12T13:46:40Z: {"nodes":"n3"}
            reservation service by root at 1970-01-12T13:46:40Z: {"nodes":"n2"}
            refused: reservation three asks for 3 nodes of 2 that are not down.
            refused: reservation both: REPLACE and REPLACE_DOWN do not go with STATIC_ALLOC and MAINT, which keep its nodes. Take one of both.
            refused: reservation both: REPLACE and REPLACE_DOWN do not go with STATIC_ALLOC and MAINT, which keep its nodes. Take one of both.
            1 alice RUNNING 1-1 on n1[0]
        "#]],
    );
}
