//! Tokens of users: who gets one, how long it lasts, and that nothing exceeds its caps.

use crate::ctl::tests::world::{World, check};
use crate::ctl::{Actor, Command, Input, Run, TokenChange, token_use};
use expect_test::expect;
use gmodel::user_token::GPU_SECOND;
use gmodel::{Timestamp, TokenId};
use proptest::prelude::*;

#[test]
fn a_token_is_its_users_or_an_operators_to_make_and_to_revoke() {
    check(
        "config operators=carol
         partition other
         make-token 1 user=alice
         make-token 1 user=alice
         make-token 2 user=alice for=bob
         make-token 2 for=bob
         make-token 3 user=alice token=1
         make-token 3 for=root
         make-token 3 user=alice scope=operate
         make-token 3 for=alice scope=operate
         make-token 3 for=carol scope=operate partition=main
         make-token 3 for=carol scope=operate
         make-token 4 user=alice days=366
         make-token 4 user=alice days=0
         make-token 4 user=alice jobs=0
         make-token 4 user=alice partition=mian
         account nlp users=alice
         make-token 4 user=alice account=nlq
         revoke 2 user=alice
         revoke 9 user=alice
         revoke 1 user=alice token=1
         revoke 1 user=alice
         revoke 1 user=alice
         revoke 2
         used 3
         used 3
         restart",
        expect![[r#"
            refused: there is a token 00000001 already
            refused: a token for another user is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            refused: a token makes no tokens. Log in to the controller's host or a login node: gq token new
            refused: root (uid 0) gets no token: nothing that comes over the network acts as that user. Make one for an operator
            refused: a token with the scope operate is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            refused: the scope operate is for operators, and alice is none. Leave it out, or add alice to `operators` in gpuctld.toml
            refused: the scope operate is for the whole cluster and cannot be limited to partition main. Leave one of the two out
            refused: a token lasts 365 days at most here (max_token_days in gpuctld.toml). Try --expires 365d
            refused: this token would have expired already
            refused: 0 jobs: a token has 1 to 10000 jobs in the queue
            refused: no partition "mian". Did you mean "main"? There are: main, other.
            refused: there is no account "nlq". Did you mean "nlp"?
            refused: you have no token 00000002. `gq token list` shows yours.
            refused: you have no token 00000009. `gq token list` shows yours.
            refused: you have no token 00000001. `gq token list` shows yours.
        "#]],
    );
}

#[test]
fn a_job_counts_with_its_limit_and_then_with_what_it_used() {
    check(
        "node n1 h100:8
         make-token 1 user=alice hours=8
         submit user=alice token=1 gpus=4 time=3600
         submit user=alice token=1 gpus=8 time=3600
         submit user=alice token=1 gpus=2 time=7200
         submit user=alice token=1 gpus=1 time=60
         submit user=alice token=1
         submit user=alice gpus=8 time=3600
         plan
         n1 running 1-1
         wait 1800
         n1 clean 1-1 0
         restart
         submit user=alice token=1 gpus=4 time=3600
         submit user=alice token=1 gpus=2 time=3600
         submit user=alice token=1 gpus=1 time=60
         cancel 2 user=alice
         submit user=alice token=1 gpus=1 time=60",
        expect![[r#"
            job 1
            refused: token 00000001 has 8 GPU-hours: 0 are used, 4 promised to jobs by their limits, and this would be 8 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
            job 2
            refused: token 00000001 has 8 GPU-hours: 0 are used, 8 promised to jobs by their limits, and this would be 0.02 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
            job 3
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 4
            refused: token 00000001 has 8 GPU-hours: 2 are used, 4 promised to jobs by their limits, and this would be 4 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
            job 5
            refused: token 00000001 has 8 GPU-hours: 2 are used, 6 promised to jobs by their limits, and this would be 0.02 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
            refused: token 00000001 has 8 GPU-hours: 2 are used, 6 promised to jobs by their limits, and this would be 0.02 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
        "#]],
    );
}

#[test]
fn tasks_of_an_array_count_one_by_one_and_a_job_without_a_limit_fits_no_cap() {
    check(
        "partition main default over_time=60
         node n1 h100:8
         make-token 1 user=alice hours=2 jobs=5
         submit user=alice token=1 gpus=1 time=1740 array=1-5
         submit user=alice token=1 gpus=1 time=1740 array=1-4
         submit user=alice token=1 gpus=1 time=60
         submit user=alice token=1 time=60
         submit user=alice token=1 time=60
         cancel 1_[1-2] user=alice
         submit user=alice token=1 gpus=1 time=4294967295
         submit user=alice token=1 gpus=1 time=3540
         requeue 1_[1-2] user=alice
         show",
        expect![[r#"
            refused: token 00000001 has 2 GPU-hours: 0 are used, 0 promised to jobs by their limits, and this would be 2.5 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
            job 1
            refused: token 00000001 has 2 GPU-hours: 0 are used, 2 promised to jobs by their limits, and this would be 0.04 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
            job 5
            refused: token 00000001 may have 5 jobs in the queue and running; there are 5, and this would be 1 more. Wait until some have ended, or use another token.
            refused: token 00000001 has a cap of GPU-hours, and a job without a time limit fits no cap. Give it a --time.
            job 6
            refused: token 00000001 may have 5 jobs in the queue and running; there are 4, and this would be 2 more. Wait until some have ended, or use another token.
            1_[3-4] alice PENDING None: 
            5 alice PENDING None: 
            6 alice PENDING None: 
        "#]],
    );
}

#[test]
fn parts_of_gpus_and_whole_nodes_count_as_they_may_be_given() {
    check(
        "partition main default sharing=uncapped
         node n1 h100:8
         make-token 1 user=alice hours=1
         submit user=alice token=1 gpus=0.5 time=7200
         submit user=alice token=1 gpus=0.1 time=60
         make-token 2 user=alice hours=8
         submit user=alice token=2 gpus=1 exclusive time=3600
         submit user=alice token=2 gpus=0.1 time=60",
        expect![[r#"
            job 1
            refused: token 00000001 has 1 GPU-hours: 0 are used, 1 promised to jobs by their limits, and this would be 0.01 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
            job 2
            refused: token 00000002 has 8 GPU-hours: 0 are used, 8 promised to jobs by their limits, and this would be 0.01 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
        "#]],
    );
}

#[test]
fn a_preempted_job_that_fits_no_more_is_held_with_the_numbers_until_its_limit_fits() {
    check(
        "node n1 h100:8
         make-token 1 user=alice hours=10
         submit user=alice token=1 gpus=8 time=3600
         submit user=alice token=1 gpus=1 time=3600
         plan
         n1 running 1-1
         wait 1800
         requeue 1
         n1 stopped 1-1
         wait 1
         plan
         show
         restart
         release 1 user=alice
         release 1
         submit user=alice token=1 gpus=7 time=1800
         update 1 user=alice time=600
         release 1 user=alice
         plan
         show",
        expect![[r#"
            job 1
            job 2
            1 alice PENDING TokenGpuHoursLimit: token 00000001 has 10 GPU-hours: 4 are used, 1 promised to jobs by their limits, and this would be 8 more HELD token (token 00000001 has 10 GPU-hours: 4 are used, 1 promised to jobs by their limits, and this would be 8 more)
            2 alice RUNNING 2-1 on n1[0]
            refused: token 00000001 has 10 GPU-hours: 4 are used, 1 promised to jobs by their limits, and this would be 8 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
            refused: token 00000001 has 10 GPU-hours: 4 are used, 1 promised to jobs by their limits, and this would be 8 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
            job 3
            1 alice PENDING ReqNodeNotAvail: nodes it needs are not available (n1: not responding)
            2 alice RUNNING 2-1 on n1[0]
            3 alice PENDING ReqNodeNotAvail: nodes it needs are not available (n1: not responding)
        "#]],
    );
}

#[test]
fn a_limit_is_raised_no_further_than_the_cap_by_anyone() {
    check(
        "node n1 h100:8
         make-token 1 user=alice hours=4
         submit user=alice token=1 gpus=1 time=3600
         submit user=alice token=1 gpus=1 time=3600 array=1-2
         update 1 user=alice time=10800
         update 1 user=alice time=7200
         update 2 time=3700
         plan
         n1 running 1-1
         wait 600
         update 1 time=90000
         update 1 user=alice time=60
         submit user=alice token=1 gpus=2 time=3600
         submit user=alice token=1 gpus=1 time=5400
         wait 1200
         submit user=alice token=1 gpus=1 time=5400",
        expect![[r#"
            job 1
            job 2
            refused: token 00000001 has 4 GPU-hours: 0 are used, 3 promised to jobs by their limits, and this would be 2 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
            refused: token 00000001 has 4 GPU-hours: 0 are used, 4 promised to jobs by their limits, and this would be 0.06 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
            refused: token 00000001 has 4 GPU-hours: 0 are used, 4 promised to jobs by their limits, and this would be 23 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
            refused: token 00000001 has 4 GPU-hours: 0 are used, 2.17 promised to jobs by their limits, and this would be 2 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
            job 4
            refused: token 00000001 has 4 GPU-hours: 0 are used, 4 promised to jobs by their limits, and this would be 1.5 more. Give it a shorter --time, wait until jobs have ended before their limits, or use another token.
        "#]],
    );
}

#[test]
fn what_a_token_is_limited_to_holds_for_submission_and_for_other_jobs() {
    check(
        "partition main default
         partition other
         node n1 h100:8
         account nlp users=alice
         account vision users=alice
         submit user=alice account=vision gpus=1 time=60
         make-token 1 user=alice account=nlp partition=other
         submit user=alice token=1 gpus=1 time=60
         submit user=alice token=1 account=vision gpus=1 time=60
         submit user=alice token=1 partition=main gpus=1 time=60
         submit user=alice token=1 partition=other,main gpus=1 time=60
         cancel 1 user=alice token=1
         update 2 user=alice token=1 account=vision
         hold 2 user=alice token=1
         cancel 2 user=alice token=1
         revoke 1
         submit user=alice token=1 gpus=1 time=60",
        expect![[r#"
            job 1
            job 2
            refused: token 00000001 is for account nlp and partition other; this job is of account vision in partition other. Use another token.
            refused: token 00000001 is for account nlp and partition other; this job is of account nlp in partition main. Use another token.
            refused: token 00000001 is for account nlp and partition other; this job is of account nlp in partition other,main. Use another token.
            refused: token 00000001 is for account nlp and partition other; job 1 is of account vision in partition main. Use another token.
            refused: token 00000001 is for account nlp and partition other; the changed job is of account vision in partition other. Use another token.
            refused: token 00000001 has expired or was revoked. Make another: gq token new
        "#]],
    );
}

#[test]
fn a_token_may_have_many_but_not_endless_siblings_and_is_forgotten_when_it_has_ended_for_long() {
    let mut world = World::new();
    for id in 1..=64 {
        world.line(&format!("make-token {id} user=alice days=1"));
    }
    world.line("make-token 65 user=alice");
    assert!(world.out.contains("alice has 64 tokens"), "{}", world.out);
    world.line("submit user=alice token=1 time=60");
    assert_eq!(world.state.tokens.users.len(), 64);
    world.line(&format!("wait {}", 32 * 86_400));
    world.line("make-token 65 user=alice");
    let left: Vec<TokenId> = world.state.tokens.users.keys().copied().collect();
    assert_eq!(left, [TokenId(1), TokenId(65)], "the first has a job");
}

/// Time passes: what is placed starts, what is to stop stops, and each run ends at its limit.
fn advance(world: &mut World, secs: i64) {
    let until = world.now.plus_secs(secs);
    loop {
        world.plan();
        let runs: Vec<_> = world.state.runs.values().cloned().collect();
        for run in runs.iter().filter(|run| run.started.is_none()) {
            world.line(&format!("n1 running {}", run.id));
        }
        for run in runs.iter().filter(|run| run.stop.is_some()) {
            world.line(&format!("n1 stopped {}", run.id));
        }
        let ends = |run: &Run| {
            let limit = run.limit_secs.map_or(0, i64::from);
            run.started.map(|at| at.plus_secs(limit))
        };
        let runs = world.state.runs.values();
        let next = runs.filter_map(ends).min().unwrap_or(until).min(until);
        if next > world.now {
            world.line(&format!("wait {}", next.since_secs(world.now)));
        }
        let over = world.state.runs.values();
        let over = over.filter(|run| ends(run).is_some_and(|end| end <= world.now));
        for run in over.map(|run| run.id).collect::<Vec<_>>() {
            world.line(&format!("n1 clean {run} 0"));
        }
        if world.now >= until {
            return;
        }
    }
}

/// Charged and promised, in GPU-seconds.
fn sum(world: &World) -> u128 {
    let held = token_use(&world.state, TokenId(1), world.now);
    (held.gpu_used + held.gpu_promised) / u128::from(GPU_SECOND)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Runs end at their limit at the latest, as gstepd sees to; whatever else happens, the sum stays within the cap.
    #[test]
    fn whatever_happens_the_cap_is_not_exceeded(steps in prop::collection::vec((0u8..8, 1u64..9, 1u64..40), 10..50)) {
        let mut world = World::new();
        world.line("node n1 h100:8");
        world.line("make-token 1 user=alice hours=2");
        for (what, id, amount) in steps {
            let secs = amount * 60;
            let line = match what {
                0 | 1 => format!("submit user=alice token=1 gpus={} time={secs}", 1 + id % 4),
                2 => format!("submit user=alice token=1 gpus=1 time={secs} array=1-{}", 1 + id % 3),
                3 => format!("update {id} user=alice time={secs}"),
                4 => format!("requeue {id} user=alice"),
                5 => format!("release {id} user=alice"),
                6 => format!("cancel {id} user=alice"),
                _ => "restart".to_owned(),
            };
            world.line(&line);
            advance(&mut world, i64::try_from(amount * 20).unwrap());
            prop_assert!(sum(&world) <= 7200, "{}", world.out);
        }
    }
}

#[test]
fn a_token_that_ends_while_a_request_is_under_way_is_refused_by_the_core() {
    let mut world = World::new();
    world.line("make-token 1 user=alice days=1");
    world.now = Timestamp(world.now.0 + 86_400_000);
    world.line("submit user=alice token=1 time=60");
    assert!(
        world.out.contains("has expired or was revoked"),
        "{}",
        world.out
    );
    let actor = Actor {
        user: "alice".into(),
        uid: 1001,
        ..Actor::default()
    };
    let command = Command::Token {
        change: TokenChange::Revoke(TokenId(1)),
    };
    world.feed(Input::Command { actor, command }).unwrap();
    world.line("restart");
    let token = &world.state.tokens.users[&TokenId(1)];
    assert_eq!(token.revoked.as_ref().unwrap().by, "alice");
}
