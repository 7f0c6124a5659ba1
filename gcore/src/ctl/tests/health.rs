//! Strikes, drains and their breaker; jobs that take nodes down.

use crate::ctl::next_deadline;
use crate::ctl::tests::world::{World, check};
use expect_test::expect;

#[test]
fn a_job_under_which_three_nodes_went_down_soon_after_its_start_is_held_with_the_list() {
    check(
        "node n1 h100:1
         node n2 h100:1
         node n3 h100:1
         node n4 h100:1
         submit user=alice gpus=1
         plan
         n1 running 1-1
         wait 30
         n1 hello boot=b2
         wait 2
         plan
         n2 running 1-2
         wait 30
         n2 hello boot=b2
         wait 4
         plan
         n3 running 1-3
         n3 gone
         wait 300
         wait 8
         plan
         show
         hold 1 user=root reason=look
         release 1 user=alice
         release 1 user=root
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice PENDING JobHoldMaxRequeue: held by system HELD system (a node went down within 10 minutes of the start of each of its last 3 runs: n1 (the node was rebooted); n2 (the node was rebooted); n3 (the node was lost))
            refused: job 1 is held by system (a node went down within 10 minutes of the start of each of its last 3 runs: n1 (the node was rebooted); n2 (the node was rebooted); n3 (the node was lost)), root (look); only they or an operator can release it.
            1 alice RUNNING 1-4 on n4[0]
        "#]],
    );
}

#[test]
fn nodes_that_cannot_start_anything_hold_no_job_and_all_run_once_one_is_well() {
    check(
        "node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=1 time=60
         submit user=bob gpus=1 time=60
         plan
         n1 launch_node 1-1 read-only_spool
         n2 launch_node 2-1 read-only_spool
         wait 2
         plan
         show
         n2 launch_node 1-2 read-only_spool
         n1 launch_node 2-2 read-only_spool
         wait 4
         plan
         show
         nodes
         wait 60
         plan
         show
         n1 launch_node 1-3 read-only_spool
         n2 launch_node 2-3 read-only_spool
         nodes
         wait 8
         plan
         show
         resume n2
         plan
         show
         n2 running 1-4
         n2 clean 1-4 0
         plan
         show",
        expect![[r#"
            job 1
            job 2
            1 alice RUNNING 1-2 on n2[0]
            2 bob RUNNING 2-2 on n1[0]
            1 alice PENDING ReqNodeNotAvail: nodes it needs are not available (n1: failed to start it, tried there again at 1970-01-12T13:47:40Z: read-only spool, n2: failed to start it, tried there again at 1970-01-12T13:47:42Z: read-only spool)
            2 bob PENDING ReqNodeNotAvail: nodes it needs are not available (n1: failed to start it, tried there again at 1970-01-12T13:47:42Z: read-only spool, n2: failed to start it, tried there again at 1970-01-12T13:47:40Z: read-only spool)
            n1 IDLE 1 GPUs 64 CPUs free 2 strikes
            n2 IDLE 1 GPUs 64 CPUs free 2 strikes
            1 alice RUNNING 1-3 on n1[0]
            2 bob RUNNING 2-3 on n2[0]
            n1 IDLE+DRAIN 1 GPUs 64 CPUs free DRAINED system (3 launch errors, the last: read-only spool) 3 strikes
            n2 IDLE 1 GPUs 64 CPUs free 3 strikes
            1 alice PENDING ReqNodeNotAvail: nodes it needs are not available (n1: drained: 3 launch errors, the last: read-only spool, n2: 3 launch errors, the last: read-only spool; takes work again at 1970-01-12T13:48:16Z)
            2 bob PENDING ReqNodeNotAvail: nodes it needs are not available (n1: drained: 3 launch errors, the last: read-only spool, n2: 3 launch errors, the last: read-only spool; takes work again at 1970-01-12T13:48:16Z)
            1 alice RUNNING 1-4 on n2[0]
            2 bob PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n2: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:48:54Z
            1 alice COMPLETED 0:0
            2 bob RUNNING 2-4 on n2[0]
        "#]],
    );
}

#[test]
fn a_job_that_goes_back_for_its_nodes_fault_keeps_its_age() {
    let mut world = World::new();
    let story = "node n1 h100:1
        submit user=alice gpus=1 time=60
        wait 500
        plan
        n1 launch_node 1-1 no_fence
        wait 2
        restart
        n1 hello
        wait 1";
    story.lines().for_each(|line| world.line(line.trim()));
    let job = world.state.job(gmodel::JobId(1)).unwrap();
    assert_eq!((job.eligible, job.past.failed_runs), (job.submitted, 1));
    assert_eq!(
        next_deadline(&world.state).map(|at| at.since_secs(world.now)),
        Some(57),
        "the node is tried again a minute after it failed"
    );
    world.line("wait 57");
    assert_eq!(world.plan(), [gmodel::JobId(1)]);
}

#[test]
fn three_errors_about_one_gpu_take_that_gpu_out_and_not_its_node() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1
         submit user=bob gpus=1
         submit user=carol gpus=1
         plan
         n1 gpu_at_fault 1-1 GPU-n1-5
         n1 gpu_at_fault 2-1 GPU-n1-5
         n1 gpu_at_fault 3-1 GPU-n1-5
         nodes
         n1 orders
         submit user=dora gpus=1
         submit user=emil gpus=1
         plan
         n1 gpu_at_fault 4-1 GPU-n1-1
         n1 gpu_at_fault 5-1 GPU-n1-2
         nodes",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 3
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 IDLE 8 GPUs 64 CPUs free 3 strikes
            n1 is ordered: GPU-n1-5 Quarantine { reason: "3 launch errors about it, the last: GPU-n1-5 is sick" }
            job 4
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 5
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 IDLE+DRAIN 8 GPUs 64 CPUs free DRAINED system (5 launch errors, the last: GPU-n1-2 is sick) 5 strikes
        "#]],
    );
}

#[test]
fn errors_about_a_choice_and_shortages_of_the_daemon_drain_no_node() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1
         submit user=bob gpus=1
         submit user=carol gpus=1
         submit user=dora gpus=1
         plan
         n1 choice_refused 1-1 private_tmp
         n1 choice_refused 2-1 private_tmp
         n1 choice_refused 3-1 private_tmp
         n1 short 4-1
         nodes",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 3
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 4
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 IDLE 8 GPUs 64 CPUs free 3 strikes
        "#]],
    );
}

#[test]
fn a_node_that_may_not_be_drained_takes_no_new_work_for_a_while() {
    check(
        "node n1 h100:1
         node n2 h100:2
         submit user=alice gpus=1 nodelist=n1
         plan
         n1 prolog_failed 1-1 exit_1
         submit user=bob gpus=1 nodelist=n2
         submit user=carol gpus=1 nodelist=n2
         submit user=dora gpus=1 nodelist=n2
         plan
         n2 launch_node 2-1 no_fence
         n2 launch_node 3-1 no_fence
         plan
         n2 launch_node 4-1 no_fence
         submit user=emil gpus=1 nodelist=n2
         plan
         nodes
         show
         wait 30
         plan
         show
         n2 running 5-1
         nodes",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 3
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 4
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 5
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 IDLE+DRAIN 1 GPUs 64 CPUs free DRAINED system (exit 1) 1 strikes
            n2 IDLE 2 GPUs 64 CPUs free 3 strikes
            1 alice PENDING BeginTime: its last run failed with its node; tried again at 1970-01-12T13:46:42Z
            2 bob PENDING BeginTime: its last run failed with its node; tried again at 1970-01-12T13:46:42Z
            3 carol PENDING BeginTime: its last run failed with its node; tried again at 1970-01-12T13:46:42Z
            4 dora PENDING BeginTime: its last run failed with its node; tried again at 1970-01-12T13:46:42Z
            5 emil PENDING ReqNodeNotAvail: nodes it needs are not available (n2: 3 launch errors, the last: no fence; takes work again at 1970-01-12T13:47:10Z)
            1 alice PENDING ReqNodeNotAvail: nodes it needs are not available (n1: drained: exit 1)
            2 bob PENDING ReqNodeNotAvail: nodes it needs are not available (n2: failed to start it, tried there again at 1970-01-12T13:47:40Z: no fence)
            3 carol PENDING ReqNodeNotAvail: nodes it needs are not available (n2: failed to start it, tried there again at 1970-01-12T13:47:40Z: no fence)
            4 dora PENDING ReqNodeNotAvail: nodes it needs are not available (n2: failed to start it, tried there again at 1970-01-12T13:47:40Z: no fence)
            5 emil RUNNING 5-1 on n2[0]
            n1 IDLE+DRAIN 1 GPUs 64 CPUs free DRAINED system (exit 1) 1 strikes
            n2 MIXED 1 GPUs 63 CPUs free
        "#]],
    );
}

#[test]
fn three_launch_errors_of_two_jobs_drain_the_node_and_the_jobs_go_elsewhere() {
    check(
        "node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=1 nodelist=n1
         plan
         n1 launch_node 1-1 no_fence
         wait 2
         submit user=alice gpus=1 nodelist=n1
         plan
         n1 launch_node 2-1 no_fence
         nodes
         submit user=bob gpus=1 nodelist=n1
         plan
         n1 launch_node 3-1 no_fence
         nodes
         wait 10
         plan
         show
         resume n1
         nodes
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 IDLE 1 GPUs 64 CPUs free 2 strikes
            n2 IDLE 1 GPUs 64 CPUs free
            job 3
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 IDLE+DRAIN 1 GPUs 64 CPUs free DRAINED system (3 launch errors, the last: no fence) 3 strikes
            n2 IDLE 1 GPUs 64 CPUs free
            1 alice PENDING ReqNodeNotAvail: nodes it needs are not available (n1: drained: 3 launch errors, the last: no fence)
            2 alice PENDING ReqNodeNotAvail: nodes it needs are not available (n1: drained: 3 launch errors, the last: no fence)
            3 bob PENDING ReqNodeNotAvail: nodes it needs are not available (n1: drained: 3 launch errors, the last: no fence)
            n1 IDLE 1 GPUs 64 CPUs free
            n2 IDLE 1 GPUs 64 CPUs free
            1 alice RUNNING 1-2 on n1[0]
            2 alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:52Z
            3 bob PENDING Priority: needs 1 GPU and 1 CPU on one node; jobs of higher priority wait for such resources too
        "#]],
    );
}

#[test]
fn jobs_of_an_unknown_user_drain_a_node_only_together_with_another_users() {
    check(
        "node n1 h100:4
         submit user=alice gpus=1
         submit user=alice gpus=1
         submit user=alice gpus=1
         submit user=alice gpus=1
         plan
         n1 user_unknown 1-1
         n1 user_unknown 2-1
         n1 user_unknown 3-1
         n1 user_unknown 4-1
         nodes
         submit user=bob gpus=1
         plan
         n1 user_unknown 5-1
         nodes",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 3
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 4
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 IDLE 4 GPUs 64 CPUs free 4 strikes
            job 5
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 IDLE+DRAIN 4 GPUs 64 CPUs free DRAINED system (5 launch errors, the last: no such user) 5 strikes
        "#]],
    );
}

#[test]
fn a_success_clears_the_strikes_and_a_users_error_makes_none() {
    check(
        "node n1 h100:4
         submit user=alice gpus=1
         submit user=bob gpus=1
         submit user=carol gpus=1
         plan
         n1 launch_node 1-1 no_fence
         n1 launch_user 2-1 no_such_directory
         nodes
         n1 running 3-1
         nodes
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 3
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 MIXED 3 GPUs 63 CPUs free 1 strikes
            n1 MIXED 3 GPUs 63 CPUs free
            1 alice PENDING None: 
            2 bob FAILED 1:0 (no such directory)
            3 carol RUNNING 3-1 on n1[2]
        "#]],
    );
}

#[test]
fn a_run_that_is_told_of_when_it_is_over_clears_the_strikes_if_it_ran() {
    check(
        "node n1 h100:4
         submit user=alice gpus=1
         submit user=bob gpus=1
         submit user=carol gpus=1
         plan
         n1 launch_node 1-1 no_fence
         n1 launch_user 2-1 no_such_directory
         nodes
         n1 ran 3-1
         nodes",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 3
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 MIXED 3 GPUs 63 CPUs free 1 strikes
            n1 IDLE 4 GPUs 64 CPUs free
        "#]],
    );
}

#[test]
fn a_failed_prolog_drains_the_node_at_once_and_its_job_goes_elsewhere() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1
         plan
         n1 prolog_failed 1-1 exit_1
         nodes
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 IDLE+DRAIN 1 GPUs 64 CPUs free DRAINED system (exit 1) 1 strikes
            1 alice PENDING BeginTime: its last run failed with its node; tried again at 1970-01-12T13:46:42Z
        "#]],
    );
}

#[test]
fn automatic_drains_take_no_more_than_a_tenth_of_a_partition_an_hour() {
    check(
        "node n1 h100:1
         node n2 h100:1
         node n3 h100:1
         submit user=alice gpus=1 nodelist=n1
         submit user=alice gpus=1 nodelist=n2
         plan
         n1 prolog_failed 1-1 exit_1
         n2 prolog_failed 2-1 exit_1
         nodes
         wait 3601
         plan
         n2 prolog_failed 2-2 exit_1
         nodes",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 IDLE+DRAIN 1 GPUs 64 CPUs free DRAINED system (exit 1) 1 strikes
            n2 IDLE 1 GPUs 64 CPUs free 1 strikes
            n3 IDLE 1 GPUs 64 CPUs free
            n1 IDLE+DRAIN 1 GPUs 64 CPUs free DRAINED system (exit 1) 1 strikes
            n2 IDLE+DRAIN 1 GPUs 64 CPUs free DRAINED system (exit 1) 2 strikes
            n3 IDLE 1 GPUs 64 CPUs free
        "#]],
    );
}

#[test]
fn drains_stand_side_by_side_and_need_a_reason() {
    check(
        "node n1 h100:1
         drain n1
         drain n1 user=alice fan
         drain n1 fan
         submit user=alice gpus=1
         plan
         show
         resume n1
         plan
         show
         resume n1
         drain n9 ghost",
        expect![[r#"
            refused: draining n1 needs a --reason: others will ask why.
            refused: draining a node is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice PENDING ReqNodeNotAvail: nodes it needs are not available (n1: drained: fan)
            1 alice RUNNING 1-1 on n1[0]
            refused: n1 is not drained.
            refused: no node number 99
        "#]],
    );
}

#[test]
fn nodes_join_with_a_token_once() {
    check(
        "token t1 name=n1
         token t2 user=alice
         join t1 something-else
         join t1 n1
         token t3
         join t3 n1
         join t3 n2
         token t4 name=n2
         join t4 n2
         token t5
         wait 61
         join t5 n3
         join nonsense n4",
        expect![[r#"
            refused: inviting a node is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            joined as n1, node 1
            refused: this token is unknown, used or expired; ask for a new one with `gadm token node`.
            refused: a node named "n1" has joined already. If it is being replaced, make the token with --name n1; if it is another machine, give it another name.
            joined as n2, node 2
            joined as n2, node 2
            refused: this token is unknown, used or expired; ask for a new one with `gadm token node`.
            refused: this token is unknown, used or expired; ask for a new one with `gadm token node`.
        "#]],
    );
}

#[test]
fn a_node_that_answers_is_put_down_and_its_jobs_go_elsewhere() {
    check(
        "node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=1 time=1000
         plan
         n1 running 1-1
         down n1 it smokes
         show
         nodes
         n1 stopped 1-1
         plan
         show
         resume n1
         nodes",
        expect![[r#"
            job 1
            1 alice RUNNING 1-1 on n1[0]
            n1 DOWN 0 GPUs 63 CPUs free DRAINED down:root (it smokes)
            n2 IDLE 1 GPUs 64 CPUs free
            1 alice RUNNING 1-2 on n2[0]
            n1 IDLE 1 GPUs 64 CPUs free
            n2 ALLOCATED 0 GPUs 63 CPUs free
        "#]],
    );
}
