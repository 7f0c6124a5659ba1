//! Runs on several nodes prepare, start and end as one.

use crate::ctl::tests::world::check;
use expect_test::expect;

const TWO: &str = "node n1 h100:8
    node n2 h100:8
    node n3 h100:8
    submit user=alice nodes=2 gpn=8 time=60
    plan
";

fn two(rest: &str, expect: expect_test::Expect) {
    check(&format!("{TWO}{rest}"), expect);
}

#[test]
fn all_nodes_are_ready_before_any_starts() {
    two(
        "n1 told
         n1 ready 1-1
         n1 told
         n2 ready 1-1
         n1 told
         n2 told
         n1 running 1-1
         n2 running 1-1
         n1 exits 1-1 0
         n2 told
         n1 clean 1-1 0
         show
         n2 stopped 1-1
         show
         nodes",
        expect![[r#"
            job 1
            n1 is told: 1-1 Prepare
            n1 is told: 1-1 Prepare
            n1 is told: 1-1 Run
            n2 is told: 1-1 Run
            n2 is told: 1-1 stop (Member)
            1 alice COMPLETING 1-1 on n1[0,1,2,3,4,5,6,7] n2[0,1,2,3,4,5,6,7]
            1 alice COMPLETED 0:0
            n1 IDLE 8 GPUs 64 CPUs free
            n2 IDLE 8 GPUs 64 CPUs free
            n3 IDLE 8 GPUs 64 CPUs free
        "#]],
    );
}

#[test]
fn a_node_that_does_not_get_ready_is_noted_and_the_run_is_taken_back() {
    two(
        "n1 ready 1-1
         wait 59
         n1 told
         wait 1
         n1 told
         n1 stopped 1-1
         n2 stopped 1-1
         show
         nodes
         wait 5
         plan
         show",
        expect![[r#"
            job 1
            n1 is told: 1-1 Prepare
            n1 is told: 1-1 stop (PrepareTimeout)
            1 alice PENDING None: 
            n1 IDLE 8 GPUs 64 CPUs free
            n2 IDLE 8 GPUs 64 CPUs free 1 strikes
            n3 IDLE 8 GPUs 64 CPUs free
            1 alice RUNNING 1-2 on n1[0,1,2,3,4,5,6,7] n3[0,1,2,3,4,5,6,7]
        "#]],
    );
}

#[test]
fn a_node_that_tells_of_the_image_of_a_run_has_time_to_pull_it() {
    two(
        "n1 pulls 1-1 620 1000
         n2 pulls 1-1 110 1000
         n1 ready 1-1
         n1 pulls 1-1 700 1000
         wait 59
         n2 pulls 1-1 990 1000
         wait 59
         n1 told
         wait 1
         n1 told
         n2 pulls 1-1 995 1000
         n1 stopped 1-1
         n2 stopped 1-1
         nodes",
        expect![[r#"
            job 1
            pulling 62% of 1K on 1
            pulling 11% of 1K on 2
            pulling 11% of 1K on 2
            pulling 99% of 1K on 2
            n1 is told: 1-1 Prepare
            n1 is told: 1-1 stop (PrepareTimeout)
            no pull
            n1 IDLE 8 GPUs 64 CPUs free
            n2 IDLE 8 GPUs 64 CPUs free 1 strikes
            n3 IDLE 8 GPUs 64 CPUs free
        "#]],
    );
}

#[test]
fn a_controller_that_was_away_gives_its_nodes_time_to_say_they_are_ready() {
    two(
        "n1 ready 1-1
         wait 50
         restart
         wait 30
         n1 hello 1-1=ready
         n2 hello 1-1=ready
         n1 told",
        expect![[r#"
            job 1
            n1 is told: 1-1 Run
        "#]],
    );
}

#[test]
fn one_member_that_fails_ends_all() {
    two(
        "n1 ready 1-1
         n2 ready 1-1
         n1 running 1-1
         n2 running 1-1
         n2 out_of_memory 1-1 killed
         n1 told
         n1 stopped 1-1
         show",
        expect![[r#"
            job 1
            n1 is told: 1-1 stop (Member)
            1 alice OUT_OF_MEMORY 0:0 (killed)
        "#]],
    );
}

#[test]
fn a_member_that_cannot_launch_sends_the_job_elsewhere() {
    two(
        "n1 ready 1-1
         n2 launch_node 1-1 no_cgroup
         n1 told
         n1 stopped 1-1
         show
         wait 5
         plan
         show
         nodes",
        expect![[r#"
            job 1
            n1 is told: 1-1 stop (Member)
            1 alice PENDING None: 
            1 alice RUNNING 1-2 on n1[0,1,2,3,4,5,6,7] n3[0,1,2,3,4,5,6,7]
            n1 ALLOCATED 0 GPUs 63 CPUs free
            n2 IDLE 8 GPUs 64 CPUs free 1 strikes
            n3 ALLOCATED 0 GPUs 63 CPUs free
        "#]],
    );
}

#[test]
fn without_kill_the_others_go_on() {
    check(
        "node n1 h100:8
         node n2 h100:8
         submit user=alice nodes=2 gpn=8 no_kill
         plan
         n1 ready 1-1
         n2 ready 1-1
         n1 running 1-1
         n2 gone
         wait 300
         show
         n1 told
         n1 clean 1-1 0
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice RUNNING 1-1 on n1[0,1,2,3,4,5,6,7] n2[0,1,2,3,4,5,6,7]
            n1 is told: 1-1 Run
            1 alice COMPLETED 0:0
        "#]],
    );
}

#[test]
fn a_success_of_the_batch_node_stands_when_another_is_lost_at_the_end() {
    two(
        "n1 ready 1-1
         n2 ready 1-1
         n1 running 1-1
         n2 running 1-1
         n1 clean 1-1 0
         n2 hello boot=b2
         show",
        expect![[r#"
            job 1
            1 alice COMPLETED 0:0
        "#]],
    );
}

#[test]
fn a_run_that_loses_two_nodes_counts_as_one_failure() {
    two(
        "n1 ready 1-1
         n2 ready 1-1
         n1 running 1-1
         n2 running 1-1
         n1 hello boot=b2
         n2 hello boot=b2
         show",
        expect![[r#"
            job 1
            1 alice PENDING None: 
        "#]],
    );
}
