//! Strikes, drains and their breaker; jobs that take nodes down.

use super::world::check;
use expect_test::expect;

#[test]
fn three_failing_runs_hold_the_job_with_the_list_until_an_operator_releases_it() {
    check(
        "node n1 h100:1
         node n2 h100:1
         node n3 h100:1
         node n4 h100:1
         submit user=alice gpus=1
         plan
         n1 running 1-1
         n1 hello boot=b2
         wait 2
         plan
         n2 running 1-2
         n2 supervisor_lost 1-2 gstepd_died
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
            1 alice PENDING JobHoldMaxRequeue: held by system HELD system (3 of its runs failed with their nodes: n1 (the node was rebooted); n2 (gstepd died); n3 (the node was lost))
            refused: job 1 is held by system (3 of its runs failed with their nodes: n1 (the node was rebooted); n2 (gstepd died); n3 (the node was lost)), root (look); only they or an operator can release it.
            1 alice RUNNING 1-4 on n4[0]
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
         plan
         n1 launch_node 1-2 no_fence
         nodes
         submit user=bob gpus=1 nodelist=n1
         plan
         n1 launch_node 2-1 no_fence
         nodes
         wait 10
         plan
         show
         resume n1
         nodes",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 IDLE 1 GPUs 64 CPUs free 2 strikes
            n2 IDLE 1 GPUs 64 CPUs free
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 IDLE+DRAIN 1 GPUs 64 CPUs free DRAINED system (3 launch errors, the last: no fence) 3 strikes
            n2 IDLE 1 GPUs 64 CPUs free
            1 alice PENDING ReqNodeNotAvail: nodes it needs are not available (n1: drained: 3 launch errors, the last: no fence)
            2 bob PENDING ReqNodeNotAvail: nodes it needs are not available (n1: drained: 3 launch errors, the last: no fence)
            n1 IDLE 1 GPUs 64 CPUs free
            n2 IDLE 1 GPUs 64 CPUs free
        "#]],
    );
}

#[test]
fn jobs_of_a_user_whom_a_node_does_not_know_drain_it_only_together_with_anothers() {
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
            n1 IDLE+DRAIN 4 GPUs 64 CPUs free DRAINED system (3 launch errors, the last: no such user) 5 strikes
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
fn a_failed_prolog_drains_the_node_at_once_and_holds_the_job() {
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
            1 alice PENDING JobHoldMaxRequeue: held by system HELD system (exit 1)
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
         release 2
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
