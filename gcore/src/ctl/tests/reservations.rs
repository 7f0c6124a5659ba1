//! Reservations: their nodes, what stands in their way, how they come and go.

use crate::ctl::reservation_of;
use crate::ctl::tests::world::{World, check};
use expect_test::expect;
use gpolicy::window::next;
use proptest::prelude::*;

#[test]
fn a_count_of_nodes_becomes_idle_nodes() {
    check(
        "node n1 h100:1
         node n2 h100:1
         node n3 h100:1
         submit user=alice gpus=1 time=6000 nodelist=n2
         submit user=alice gpus=1 time=60 nodelist=n1
         plan
         n1 running 2-1
         n2 running 1-1
         reservation two count=2 at=600 for=60 users=bob
         reservation three count=3 at=600 for=60 users=bob
         reservation late count=3 at=7000 for=60 users=bob
         reservation four count=4 at=9000 users=bob
         reservation all count=3 at=60 for=9 ignore_running users=bob
         reservation maint nodes=n2 at=100 maintenance
         reservation maint nodes=n2 at=100 maintenance ignore_running
         reservation past nodes=n2 at=-700
         reservation what nodes=n9 at=7
         reservation gpus gpus=h100:4 at=7
         reservation gpus gpus=h100:3 at=10
         reservation gpus gpus=h100:2 at=600
         reservation none nodes=n1 for=0
         policy",
        expect![[r#"
            job 1
            job 2
            refused: reservation three: reservation two has nodes of it at 1970-01-12T13:56:40Z.
            refused: reservation four asks for 4 nodes of 3 that are not down.
            refused: reservation maint: job 1 may still run on n2 then, by their time limits. Begin later, choose other nodes, or make it over running jobs (ignore_running).
            refused: reservation past would be over already: it began at 1970-01-12T13:35:00Z.
            refused: reservation what: there is no node "n9".
            refused: reservation gpus asks for 4 h100; there are 3.
            refused: reservation gpus asks for 3 h100; 1 is free of jobs then (1, 2 may still run). Begin later, or make it over running jobs (ignore_running).
            refused: reservation gpus: with two there would be 2 h100 reserved by number at 1970-01-12T13:56:40Z, and beside nodes that are reserved there are 1.
            refused: reservation none would be over already: it began at 1970-01-12T13:46:40Z.
            reservation all by root at 1970-01-12T13:47:40Z: {"nodes":"n[1-3]"}
            reservation late by root at 1970-01-12T15:43:20Z: {"nodes":"n[1-3]"}
            reservation maint by root at 1970-01-12T13:48:20Z: {"nodes":"n2"}
            reservation two by root at 1970-01-12T13:56:40Z: {"nodes":"n[1,3]"}
        "#]],
    );
}

#[test]
fn a_job_that_asks_its_reservation_for_foreign_nodes_is_refused() {
    check(
        "node n1 h100:2
         node n2 h100:4
         reservation r1 nodes=n1 at=600 for=6000 users=alice
         reservation open nodes=n1 at=9000 for=6000 users=alice flex
         submit user=alice gpus=1 time=60 reservation=r1 nodelist=n2
         submit user=alice gpus=1 time=60 reservation=r1 nodelist=n[1-2]
         submit user=alice gpus=1 time=60 reservation=r1 nodes=2
         submit user=alice gpus=3 time=60 reservation=r1
         submit user=alice gpus=3 time=60
         submit user=alice gpus=2 time=60 reservation=r1 nodelist=n1
         submit user=alice gpus=3 time=60 reservation=open nodelist=n2",
        expect![[r#"
            refused: --nodelist: n2 is not in reservation "r1", which is of n1.
            refused: --nodelist: n2 is not in reservation "r1", which is of n1.
            refused: --nodes 2: reservation "r1" (n1) has 1 such nodes in partition "main".
            refused: --reservation r1: its nodes (n1) could not run this job if they did nothing else. Ask for less, or leave out --reservation.
            job 1
            job 2
            job 3
        "#]],
    );
}

#[test]
fn a_count_of_nodes_is_of_those_with_its_features() {
    check(
        "node n1 h100:1 feature=h100
         node n2 a100:1 feature=a100
         node n3 a100:1 feature=a100
         reservation two count=2 at=600 features=a100 users=bob
         reservation three count=3 at=9000 features=a100 users=bob
         reservation none count=1 at=9000 features=tpu users=bob
         reservation odd count=1 at=9000 features=a100& users=bob
         reservation named nodes=n1 at=9000 features=h100 users=bob
         reservation two nodes=n[2-3] at=700 features=a100 users=bob
         reservation two nodes=n1 at=700 features=a100 users=bob
         policy",
        expect![[r#"
            refused: reservation three asks for 3 nodes of 2 with features a100 that are not down.
            refused: reservation none asks for 1 nodes of 0 with features tpu that are not down.
            refused: reservation odd: features: constraint "a100&": a feature is missing beside & or |. Try a100&ib or a100|h100
            refused: reservation named: features choose among nodes where their number is reserved (node_count=2 features=h100), not among nodes that are named, nor GPUs.
            refused: reservation two: features choose among nodes where their number is reserved (node_count=2 features=a100), not among nodes that are named, nor GPUs.
            reservation two by root at 1970-01-12T13:58:20Z: {"nodes":"n[2-3]"}
        "#]],
    );
}

#[test]
fn names_with_a_minus_are_kept_out_and_all_others_may_use_it() {
    check(
        "node n1 h100:4
         account lab users=alice,bob
         account other users=carol
         reservation most nodes=n1 at=100 for=6000 users=-bob
         submit user=alice account=lab time=60 gpus=1 reservation=most
         submit user=bob account=lab time=60 gpus=1 reservation=most
         submit user=carol account=other time=60 gpus=1 reservation=most
         reservation most nodes=n1 at=100 for=6000 accounts=-lab
         submit user=alice account=lab time=60 gpus=1 reservation=most
         reservation most nodes=n1 at=100 for=6000 accounts=lab users=-bob
         submit user=bob account=lab time=60 gpus=1 reservation=most
         submit user=carol account=other time=60 gpus=1 reservation=most
         reservation most nodes=n1 at=100 for=6000 users=alice,-bob
         reservation most nodes=n1 at=100 for=6000 accounts=-nowhere
         reservation most nodes=n1 at=100 for=6000 users=-
         wait 100
         plan
         show",
        expect![[r#"
            job 1
            refused: --reservation most: it is for all but bob; this job is of bob in account lab.
            job 2
            refused: --reservation most: it is for all but lab; this job is of alice in account lab.
            refused: --reservation most: it is for all but bob in lab; this job is of bob in account lab.
            refused: --reservation most: it is for all but bob in lab; this job is of carol in account other.
            refused: reservation most: users names who may use it, or with a minus who may not. Keep one of both.
            refused: reservation most: account "nowhere" does not exist.
            refused: reservation most: users has a minus without a name.
            1 alice RUNNING 1-1 on n1[0]
            2 carol PENDING Reservation: reservation "most" is not for user "carol" in account "other"
        "#]],
    );
}

#[test]
fn with_users_and_accounts_a_job_must_be_of_both() {
    check(
        "node n1 h100:8
         account lab
         account vision parent=lab
         account nlp
         reservation both nodes=n1 for=6000 users=alice,carol accounts=lab
         submit user=alice account=vision time=60 gpus=1 reservation=both
         submit user=alice account=nlp time=60 gpus=1 reservation=both
         submit user=bob account=lab time=60 gpus=1 reservation=both
         submit user=carol account=lab time=60 gpus=1 reservation=both
         reservation both nodes=n1 for=6000 users=alice accounts=-lab
         submit user=alice account=vision time=60 gpus=1 reservation=both
         submit user=alice account=nlp time=60 gpus=1 reservation=both
         submit user=bob account=nlp time=60 gpus=1 reservation=both
         reservation both nodes=n1 for=6000 users=-alice accounts=-lab
         submit user=alice account=nlp time=60 gpus=1 reservation=both
         submit user=bob account=vision time=60 gpus=1 reservation=both
         submit user=bob account=nlp time=60 gpus=1 reservation=both
         plan
         show",
        expect![[r#"
            job 1
            refused: --reservation both: it is for alice, carol in lab; this job is of alice in account nlp.
            refused: --reservation both: it is for alice, carol in lab; this job is of bob in account lab.
            job 2
            refused: --reservation both: it is for alice in all but lab; this job is of alice in account vision.
            job 3
            refused: --reservation both: it is for alice in all but lab; this job is of bob in account nlp.
            refused: --reservation both: it is for all but alice in all but lab; this job is of alice in account nlp.
            refused: --reservation both: it is for all but alice in all but lab; this job is of bob in account vision.
            job 4
            1 alice PENDING Reservation: reservation "both" is not for user "alice" in account "vision"
            2 carol PENDING Reservation: reservation "both" is not for user "carol" in account "lab"
            3 alice PENDING Reservation: reservation "both" is not for user "alice" in account "nlp"
            4 bob RUNNING 4-1 on n1[0]
        "#]],
    );
}

#[test]
fn what_is_over_goes_and_what_recurs_stays_as_it_was_made() {
    check(
        "node n1 h100:1
         reservation once nodes=n1 at=100 for=50 users=alice
         reservation daily nodes=n1 at=1000 for=50 users=alice daily
         submit user=alice time=20 gpus=1 reservation=once
         submit user=alice time=20 gpus=1 reservation=once array=0-1 held
         plan
         show
         wait 100
         plan
         show
         n1 running 1-1
         n1 clean 1-1 0
         wait 50
         show
         policy
         wait 899
         policy
         wait 1
         policy
         wait 864000
         policy
         release 2 user=alice
         plan
         show
         update 2 user=alice reservation=none
         plan
         show",
        expect![[r#"
            job 1
            job 2
            2_[0-1] alice PENDING JobHeldUser: held by user:alice
            1 alice PENDING Reservation: reservation "once" begins at 1970-01-12T13:48:20Z
            2_[0-1] alice PENDING JobHeldUser: held by user:alice
            1 alice RUNNING 1-1 on n1[0]
            2_[0-1] alice PENDING ReservationDeleted: there is no reservation "once" any more; choose another, or none
            1 alice COMPLETED 0:0
            reservation daily by root at 1970-01-12T14:03:20Z: {"nodes":"n1"}
            reservation daily by root at 1970-01-12T14:03:20Z: {"nodes":"n1"}
            reservation daily by root at 1970-01-12T14:03:20Z: {"nodes":"n1"}
            reservation daily by root at 1970-01-12T14:03:20Z: {"nodes":"n1"}
            2_[0-1] alice PENDING ReservationDeleted: there is no reservation "once"
            2_[1] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-22T14:04:30Z
            2_0 alice RUNNING 2-1 on n1[0]
        "#]],
    );
}

#[test]
fn deleting_one_leaves_its_jobs_waiting_with_the_reason() {
    check(
        "node n1 h100:1
         reservation r nodes=n1 at=5 for=5000 users=alice,bob
         submit user=alice time=20 gpus=1 reservation=r
         submit user=bob time=20 gpus=1 reservation=r
         plan
         wait 5
         reservation r gone by=alice
         reservation r gone
         show
         plan
         show",
        expect![[r#"
            job 1
            job 2
            refused: editing accounts, QOS and reservations is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            1 alice PENDING ReservationDeleted: there is no reservation "r" any more; choose another, or none
            2 bob PENDING ReservationDeleted: there is no reservation "r" any more; choose another, or none
            1 alice PENDING ReservationDeleted: there is no reservation "r"
            2 bob PENDING ReservationDeleted: there is no reservation "r"
        "#]],
    );
}

#[test]
fn one_in_which_jobs_run_is_removed_by_force_alone() {
    check(
        "node n1 h100:2
         node n2 h100:2
         account lab
         reservation r nodes=n1 for=5000 users=alice
         reservation pull nodes=n2 for=5000 users=bob magnetic
         submit user=alice account=lab gpus=1 time=600 reservation=r
         submit user=bob account=lab gpus=1 time=600
         submit user=alice account=lab gpus=1 time=600 reservation=r
         plan
         n1 running 1-1
         reservation r gone
         reservation pull gone
         reservation pull gone force
         n1 running 3-1
         n1 clean 1-1
         reservation r gone
         reservation r gone force
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            refused: reservation r is in use: jobs 1, 3 run in it. Wait for the end, or remove it by force (gadm reservation del r --force): then they run on, and others may have the rest of its nodes.
            refused: reservation pull is in use: job 2 runs in it. Wait for the end, or remove it by force (gadm reservation del pull --force): then it runs on, and others may have the rest of its nodes.
            refused: reservation r is in use: job 3 runs in it. Wait for the end, or remove it by force (gadm reservation del r --force): then it runs on, and others may have the rest of its nodes.
            1 alice COMPLETED 0:0
            2 bob RUNNING 2-1 on n2[0]
            3 alice RUNNING 3-1 on n1[1]
        "#]],
    );
}

#[test]
fn what_is_for_an_account_is_for_those_below_it() {
    check(
        "node n1 h100:2
         partition lab accounts=lab
         account lab
         account vision parent=lab
         account video parent=vision
         account nlp
         reservation course nodes=n1 for=6000 accounts=vision
         submit user=alice account=video gpus=1 time=60 reservation=course
         submit user=alice account=lab gpus=1 time=60 reservation=course
         submit user=alice account=nlp gpus=1 time=60 reservation=course
         submit user=alice account=video gpus=1 time=60 reservation=course partition=lab
         submit user=alice account=nlp gpus=1 time=60 partition=lab
         plan
         show",
        expect![[r#"
            job 1
            refused: --reservation course: it is for vision; this job is of alice in account lab.
            refused: --reservation course: it is for vision; this job is of alice in account nlp.
            job 2
            refused: partition "lab" is for the accounts lab; this job is charged to nlp. Choose with -A.
            1 alice RUNNING 1-1 on n1[0]
            2 alice RUNNING 2-1 on n1[1]
        "#]],
    );
}

#[test]
fn a_reservation_is_held_against_every_window_of_the_others_and_against_gpus_that_are_promised() {
    check(
        "node n1 h100:4
         node n2 h100:4
         reservation once nodes=n1 at=777600 for=600 users=alice
         reservation daily nodes=n1 at=300 for=600 users=bob daily
         reservation daily nodes=n2 at=300 for=600 users=bob daily
         reservation later nodes=n2 at=864600 for=60 users=alice
         reservation gpus gpus=6 at=1000000 for=600 users=alice
         reservation more gpus=h100:3 at=1000300 for=600 users=bob
         reservation node nodes=n1 at=1000300 for=600 users=bob
         reservation late gpus=3 at=1000600 for=600 users=bob
         reservation later_still gpus=5 at=1000900 for=600 users=bob
         reservation long gpus=2 at=999000 for=9000 users=bob
         reservation rest gpus=1 at=1000300 for=60 users=bob
         reservation patch nodes=n1 at=1000300 maintenance
         policy",
        expect![[r#"
            refused: reservation daily: reservation once has nodes of it at 1970-01-21T13:46:40Z.
            refused: reservation later: reservation daily has nodes of it at 1970-01-22T13:51:40Z.
            refused: reservation more: with gpus there would be 9 GPUs reserved by number at 1970-01-24T03:38:20Z, and beside nodes that are reserved there are 8.
            refused: reservation node: with gpus there would be 6 GPUs reserved by number at 1970-01-24T03:38:20Z, and beside nodes that are reserved there are 4.
            refused: reservation long: with late, later_still there would be 10 GPUs reserved by number at 1970-01-24T03:48:20Z, and beside nodes that are reserved there are 8.
            reservation daily by root at 1970-01-12T13:51:40Z: {"nodes":"n2"}
            reservation gpus by root at 1970-01-24T03:33:20Z: {"gpus":{"gpu":6000}}
            reservation late by root at 1970-01-24T03:43:20Z: {"gpus":{"gpu":3000}}
            reservation later_still by root at 1970-01-24T03:48:20Z: {"gpus":{"gpu":5000}}
            reservation once by root at 1970-01-21T13:46:40Z: {"nodes":"n1"}
            reservation patch by root at 1970-01-24T03:38:20Z: {"nodes":"n1"}
            reservation rest by root at 1970-01-24T03:38:20Z: {"gpus":{"gpu":1000}}
        "#]],
    );
}

#[test]
fn gpus_are_counted_in_later_windows_of_what_recurs_too() {
    check(
        "node n1 h100:4
         reservation weekly gpus=1 at=259200 for=3600 users=alice weekly
         reservation half gpus=1 at=1800 for=1800 users=bob daily
         reservation daily gpus=3 at=0 for=3600 users=alice daily
         reservation short gpus=3 at=0 for=1800 users=alice daily
         reservation four gpus=1 at=0 for=1800 users=alice daily
         reservation once gpus=1 at=2678400 for=60 users=alice
         reservation whole nodes=n1 at=2678460 for=60 users=alice
         policy",
        expect![[r#"
            refused: reservation daily: with half, weekly there would be 5 GPUs reserved by number at 1970-01-15T14:16:40Z, and beside nodes that are reserved there are 4.
            refused: reservation four: with short, weekly there would be 5 GPUs reserved by number at 1970-01-15T13:46:40Z, and beside nodes that are reserved there are 4.
            refused: reservation once: with short, weekly there would be 5 GPUs reserved by number at 1970-02-12T13:46:40Z, and beside nodes that are reserved there are 4.
            refused: reservation whole: with short, weekly there would be 4 GPUs reserved by number at 1970-02-12T13:47:40Z, and beside nodes that are reserved there are 0.
            reservation half by root at 1970-01-12T14:16:40Z: {"gpus":{"gpu":1000}}
            reservation short by root at 1970-01-12T13:46:40Z: {"gpus":{"gpu":3000}}
            reservation weekly by root at 1970-01-15T13:46:40Z: {"gpus":{"gpu":1000}}
        "#]],
    );
}

#[test]
fn what_is_in_force_at_another_hour_is_not_held_against_a_reservation() {
    check(
        "node n1 h100:4
         reservation weekly gpus=3 at=259200 for=7200 users=alice weekly
         reservation early gpus=1 at=0 for=5400 users=bob daily
         reservation late gpus=1 at=3600 for=7200 users=alice daily
         reservation last gpus=1 at=5400 for=1800 users=alice daily
         policy",
        expect![[r#"
            refused: reservation late: with early, weekly there would be 5 GPUs reserved by number at 1970-01-15T14:46:40Z, and beside nodes that are reserved there are 4.
            reservation early by root at 1970-01-12T13:46:40Z: {"gpus":{"gpu":1000}}
            reservation last by root at 1970-01-12T15:16:40Z: {"gpus":{"gpu":1000}}
            reservation weekly by root at 1970-01-15T13:46:40Z: {"gpus":{"gpu":3000}}
        "#]],
    );
}

#[test]
fn an_import_makes_each_reservation_beside_the_others_and_the_jobs() {
    check(
        "node n1 h100:1
         node n2 h100:1
         node n3 h100:1
         submit user=alice gpus=1 time=6000 nodelist=n2
         plan
         n2 running 1-1
         import two count=2 at=600 for=60 users=bob | one count=1 at=600 for=60 users=bob
         import two count=2 at=600 for=60 users=bob | first nodes=n1 at=600 for=60 users=bob
         import two count=2 at=600 for=60 users=bob | gpus gpus=2 at=600 for=60 users=bob
         import long nodes=n2 at=100 for=60 users=bob
         import long nodes=n9 at=100 for=60 users=bob
         policy
         import two count=2 at=600 for=60 users=bob | last nodes=n3 at=9000 for=60 users=bob | past nodes=n2 at=-9000 users=bob
         policy
         wait 500
         submit user=alice gpus=1 time=6000 nodelist=n1
         plan
         import last nodes=n3 at=8500 for=60 users=bob | two count=2 at=100 for=60 users=bob
         policy
         import last nodes=n3 at=8500 for=60 users=alice | two count=1 at=100 for=60 users=bob
         policy
         import
         import two count=2 at=100 for=60 users=bob
         policy",
        expect![[r#"
            job 1
            refused: reservation two: job 1 may still run on n2 then, by their time limits. Begin later, choose other nodes, or make it over running jobs (ignore_running).
            refused: reservation two: job 1 may still run on n2 then, by their time limits. Begin later, choose other nodes, or make it over running jobs (ignore_running).
            refused: reservation two: with gpus there would be 2 GPUs reserved by number at 1970-01-12T13:56:40Z, and beside nodes that are reserved there are 1.
            refused: reservation long: job 1 may still run on n2 then, by their time limits. Begin later, choose other nodes, or make it over running jobs (ignore_running).
            refused: reservation long: there is no node "n9".
            reservation last by root at 1970-01-12T16:16:40Z: {"nodes":"n3"}
            reservation two by root at 1970-01-12T13:56:40Z: {"nodes":"n[1,3]"}
            job 2
            reservation last by root at 1970-01-12T16:16:40Z: {"nodes":"n3"}
            reservation two by root at 1970-01-12T13:56:40Z: {"nodes":"n[1,3]"}
            reservation last by root at 1970-01-12T16:16:40Z: {"nodes":"n3"}
            reservation two by root at 1970-01-12T13:56:40Z: {"nodes":"n1"}
            reservation two by root at 1970-01-12T13:56:40Z: {"nodes":"n[1,3]"}
        "#]],
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    /// Whichever of its windows a job would run into.
    #[test]
    fn a_job_that_runs_into_any_window_is_in_the_way(
        repeat in prop::sample::select(vec!["", "hourly", "daily", "weekday", "weekly"]), at in -90_000i64..200_000, secs in 60i64..3600, limit in 60i64..900_000,
    ) {
        let mut world = World::new();
        for line in ["node n1 h100:1", &format!("submit user=alice gpus=1 time={limit}"), "plan", "n1 running 1-1"] {
            world.line(line);
        }
        let ends = world.now.plus_secs(limit);
        world.line(&format!("reservation any nodes=n1 at={at} for={secs} users=bob ignore_running {repeat}"));
        let Some(one) = world.state.policy.reservations.get("any").cloned() else { return Ok(()) };
        let mut after = world.now;
        let mut runs_into = false;
        while let Some(window) = next(&one, after).filter(|window| window.from < ends) {
            runs_into |= window.to > world.now;
            after = window.to;
        }
        world.line("reservation any gone");
        world.line(&format!("reservation any nodes=n1 at={at} for={secs} users=bob {repeat}"));
        prop_assert_eq!(world.state.policy.reservations.contains_key("any"), !runs_into, "{}", world.out);
    }
}

#[test]
fn a_magnetic_reservation_draws_the_jobs_of_its_users_only() {
    check(
        "node n1 h100:2
         node n2 h100:2
         account lab
         account nlp
         reservation pull nodes=n1 for=6000 users=alice accounts=lab magnetic
         submit user=bob account=lab gpus=1 time=600
         submit user=alice account=nlp gpus=1 time=600
         submit user=alice account=lab gpus=1 time=600
         submit user=alice account=lab gpus=1 time=60000
         submit user=bob account=lab gpus=1 time=600
         plan
         show
         n1 running 3-1 4-1
         reservation pull nodes=n1 for=9000 users=alice accounts=lab magnetic
         reservation pull nodes=n1 for=9000 users=bob
         reservation gpus gpus=1 at=7000 users=alice magnetic
         reservation gpus gpus=1 at=7000 users=alice overlap",
        expect![[r#"
            job 1
            job 2
            job 3
            job 4
            job 5
            1 bob RUNNING 1-1 on n2[0]
            2 alice RUNNING 2-1 on n2[1]
            3 alice RUNNING 3-1 on n1[0]
            4 alice RUNNING 4-1 on n1[1]
            5 bob PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n2: 0 GPUs, 62 CPUs and 0 of memory; room is expected by 1970-01-12T13:56:40Z
            refused: reservation pull: jobs 3, 4 may still run on n1 then, by their time limits. Begin later, choose other nodes, or make it over running jobs (ignore_running).
            refused: reservation gpus: MAGNETIC and OVERLAP are for whole nodes (nodes, node_count), not for GPUs by number.
            refused: reservation gpus: MAGNETIC and OVERLAP are for whole nodes (nodes, node_count), not for GPUs by number.
        "#]],
    );
}

#[test]
fn a_job_that_was_drawn_in_is_told_by_what() {
    let mut world = World::new();
    for line in [
        "node n1 h100:2",
        "node n2 h100:2",
        "account lab",
        "reservation late nodes=n1 at=3000 for=600 users=alice magnetic",
        "reservation pull nodes=n1 for=2000 users=alice magnetic",
        "submit user=alice account=lab gpus=2 time=600",
        "submit user=alice account=lab gpus=2 time=600",
        "submit user=bob account=lab gpus=2 time=600",
        "plan",
    ] {
        world.line(line);
    }
    let drawn = |world: &World| -> Vec<String> {
        world
            .state
            .jobs
            .values()
            .map(|job| reservation_of(job).unwrap_or("-").to_owned())
            .collect()
    };
    assert_eq!(drawn(&world), ["pull", "-", "-"], "{}", world.out);
    // It is so after its end, and no more once it waits again.
    world.line("n1 clean 1-1");
    assert_eq!(drawn(&world)[0], "pull");
    world.line("requeue 1");
    assert_eq!(drawn(&world)[0], "-", "{}", world.out);
}

#[test]
fn what_is_made_over_another_has_its_nodes_and_maintenance_has_them_before_it() {
    check(
        "node n1 h100:4
         reservation plain nodes=n1 for=6000 users=alice
         reservation second nodes=n1 for=6000 users=bob
         reservation over nodes=n1 at=1000 for=1000 users=bob overlap
         submit user=alice gpus=1 time=900 reservation=plain
         submit user=alice gpus=1 time=1100 reservation=plain
         submit user=bob gpus=1 time=900 reservation=over
         plan
         show
         wait 1000
         n1 running 1-1
         plan
         show
         reservation fix nodes=n1 at=500 for=100 users=carol maintenance ignore_running
         submit user=bob gpus=1 time=600 reservation=over
         submit user=carol gpus=1 time=60 reservation=fix
         plan
         show
         wait 500
         plan
         show",
        expect![[r#"
            refused: reservation second: reservation plain has nodes of it at 1970-01-12T13:46:40Z.
            job 1
            job 2
            job 3
            1 alice RUNNING 1-1 on n1[0]
            2 alice PENDING ReqNodeNotAvail: nodes it needs are kept for reservation "over" from 1970-01-12T14:03:20Z to 1970-01-12T14:20:00Z
            3 bob PENDING Reservation: reservation "over" begins at 1970-01-12T14:03:20Z
            1 alice RUNNING 1-1 on n1[0]
            2 alice PENDING ReqNodeNotAvail: nodes it needs are kept for reservation "over" from 1970-01-12T14:03:20Z to 1970-01-12T14:20:00Z
            3 bob RUNNING 3-1 on n1[1]
            job 4
            job 5
            1 alice RUNNING 1-1 on n1[0]
            2 alice PENDING ReqNodeNotAvail: nodes it needs are kept for reservation "over" from 1970-01-12T14:03:20Z to 1970-01-12T14:20:00Z
            3 bob RUNNING 3-1 on n1[1]
            4 bob PENDING ReqNodeNotAvail: nodes it needs are kept for maintenance "fix" from 1970-01-12T14:11:40Z to 1970-01-12T14:13:20Z
            5 carol PENDING Reservation: reservation "fix" begins at 1970-01-12T14:11:40Z
            1 alice RUNNING 1-1 on n1[0]
            2 alice PENDING ReqNodeNotAvail: nodes it needs are kept for reservation "over" from 1970-01-12T14:03:20Z to 1970-01-12T14:20:00Z
            3 bob RUNNING 3-1 on n1[1]
            4 bob PENDING ReqNodeNotAvail: nodes it needs are kept for maintenance "fix" from 1970-01-12T14:11:40Z to 1970-01-12T14:13:20Z
            5 carol RUNNING 5-1 on n1[2]
        "#]],
    );
}

#[test]
fn an_unused_reservation_ends_by_itself() {
    check(
        "node n1 h100:4
         reservation never nodes=n1 at=100 for=6000 users=alice purge=300
         reservation daily nodes=n1 at=10000 for=6000 users=alice purge=300 daily
         submit user=alice gpus=1 time=600 reservation=never
         wait 100
         plan
         n1 running 1-1
         wait 590
         n1 clean 1-1 0
         wait 100
         submit user=alice gpus=1 time=100 reservation=never held
         wait 400
         policy
         cancel 2
         wait 240
         policy
         wait 120
         policy
         wait 8800
         policy
         wait 300
         policy",
        expect![[r#"
            job 1
            job 2
            reservation daily by root at 1970-01-12T16:33:20Z: {"nodes":"n1"}
            reservation never by root at 1970-01-12T13:48:20Z: {"nodes":"n1"}
            reservation daily by root at 1970-01-12T16:33:20Z: {"nodes":"n1"}
            reservation never by root at 1970-01-12T13:48:20Z: {"nodes":"n1"}
            reservation daily by root at 1970-01-12T16:33:20Z: {"nodes":"n1"}
            reservation daily by root at 1970-01-12T16:33:20Z: {"nodes":"n1"} skipped until 1970-01-12T18:13:20Z
            reservation daily by root at 1970-01-12T16:33:20Z: {"nodes":"n1"} skipped until 1970-01-12T18:13:20Z
        "#]],
    );
}

#[test]
fn nodes_that_were_chosen_are_replaced_when_they_go_down_and_named_ones_are_not() {
    check(
        "node n1 h100:1
         node n2 h100:1
         node n3 h100:1
         node n4 h100:1
         reservation two count=2 at=1000 for=6000 users=alice
         reservation fixed count=1 at=1000 for=6000 users=alice static
         reservation named nodes=n4 at=9000 for=6000 users=alice
         policy
         drain n1 fan
         drain n3 fan
         drain n4 fan
         wait 60
         policy
         resume n4
         wait 60
         policy",
        expect![[r#"
            reservation fixed by root at 1970-01-12T14:03:20Z: {"nodes":"n3"}
            reservation named by root at 1970-01-12T16:16:40Z: {"nodes":"n4"}
            reservation two by root at 1970-01-12T14:03:20Z: {"nodes":"n[1-2]"}
            reservation fixed by root at 1970-01-12T14:03:20Z: {"nodes":"n3"}
            reservation named by root at 1970-01-12T16:16:40Z: {"nodes":"n4"}
            reservation two by root at 1970-01-12T14:03:20Z: {"nodes":"n[2,4]"}
            reservation fixed by root at 1970-01-12T14:03:20Z: {"nodes":"n3"}
            reservation named by root at 1970-01-12T16:16:40Z: {"nodes":"n4"}
            reservation two by root at 1970-01-12T14:03:20Z: {"nodes":"n[2,4]"}
        "#]],
    );
}

#[test]
fn a_window_is_skipped_and_the_next_one_comes() {
    check(
        "node n1 h100:1
         reservation daily nodes=n1 at=1000 for=600 users=alice daily skip=1600
         reservation once nodes=n1 at=3000 for=600 users=alice skip=3600
         submit user=bob gpus=1 time=80000
         submit user=alice gpus=1 time=600 reservation=daily
         plan
         show
         wait 80000
         n1 clean 1-1 0
         wait 7400
         plan
         show",
        expect![[r#"
            refused: reservation once comes once: its only window cannot be skipped. Remove it instead.
            job 1
            job 2
              note: --reservation daily: with so long a --time the job gets what is left of it when it starts, 10:00 at most
            1 bob RUNNING 1-1 on n1[0]
            2 alice PENDING Reservation: reservation "daily" begins at 1970-01-13T14:03:20Z
            2 alice RUNNING 2-1 on n1[0]
        "#]],
    );
}

#[test]
fn jobs_of_a_reservation_that_releases_them_wait_on_without_it() {
    check(
        "node n1 h100:1
         reservation soft nodes=n1 at=0 for=100 users=alice release_jobs
         reservation hard nodes=n1 at=100 for=100 users=alice
         submit user=alice gpus=1 time=600 reservation=soft
         submit user=alice gpus=1 time=600 reservation=soft array=1-2 held
         submit user=alice gpus=1 time=600 reservation=hard
         wait 200
         show
         plan
         n1 running 1-1
         submit user=bob gpus=1 time=60
         plan
         show",
        expect![[r#"
            job 1
              note: --reservation soft: with so long a --time the job gets what is left of it when it starts, 1:40 at most
            job 2
              note: --reservation soft: with so long a --time the job gets what is left of it when it starts, 1:40 at most
            job 4
              note: --reservation hard: with so long a --time the job gets what is left of it when it starts, 1:40 at most
            2_[1-2] alice PENDING JobHeldUser: held by user:alice
            1 alice PENDING None: 
            4 alice PENDING ReservationDeleted: there is no reservation "hard" any more; choose another, or none
            job 5
            2_[1-2] alice PENDING JobHeldUser: held by user:alice
            1 alice RUNNING 1-1 on n1[0]
            4 alice PENDING ReservationDeleted: there is no reservation "hard"
            5 bob PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T14:00:00Z
        "#]],
    );
}

#[test]
fn a_gpu_that_is_cut_counts_as_one() {
    check(
        "node n1 h100:1 cut=7
         node n2 h100:2
         reservation four gpus=h100:4 at=9000 for=600 users=alice
         reservation five gpus=h100:5 at=90000 for=600 users=alice
         reservation two gpus=h100:2 at=9300 for=600 users=alice
         submit user=bob gpus=1g.10gb:1 time=600
         plan
         n1 running 1-1
         reservation now gpus=h100:4 at=10 for=60 users=alice
         reservation now gpus=h100:3 at=10 for=60 users=alice
         policy
         show",
        expect![[r#"
            refused: reservation five asks for 5 h100; there are 4.
            refused: reservation two: with four there would be 6 h100 reserved by number at 1970-01-12T16:21:40Z, and beside nodes that are reserved there are 4.
            job 1
            refused: reservation now asks for 4 h100; 3 and 0.858 of 1 more are free of jobs then (1 may still run). Begin later, or make it over running jobs (ignore_running).
            reservation four by root at 1970-01-12T16:16:40Z: {"gpus":{"h100":4000}}
            reservation now by root at 1970-01-12T13:46:50Z: {"gpus":{"h100":3000}}
            1 bob RUNNING 1-1 on n1[2]
        "#]],
    );
}
