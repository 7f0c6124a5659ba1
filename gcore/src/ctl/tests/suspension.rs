//! Runs that stand still: on an operator's word, or for a job that has their CPUs; and how they go on.

use crate::ctl::tests::world::check;
use expect_test::expect;

#[test]
fn an_operator_suspends_and_resumes_and_the_limit_waits() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1 time=600
         plan
         n1 running 1-1
         wait 100
         suspend 1 user=alice
         suspend 1
         suspend 1
         update 1 user=alice time=900
         n1 told
         show
         nodes
         wait 1000
         restart
         n1 hello 1-1=running
         go-on 1
         n1 told
         go-on 1
         show
         submit user=bob gpus=2 time=60
         plan
         show",
        expect![[r#"
            job 1
            refused: suspending jobs is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            refused: job 1 is suspended already, or being ended.
            refused: a running job's time limit can only be lowered by its owner; job 1 has 10:00. Ask an operator for more.
            n1 is told: 1-1 Run suspended
            1 alice SUSPENDED 1-1 on n1[0]
            n1 MIXED 1 GPUs 63 CPUs free
            n1 is told: 1-1 Run
            refused: job 1 is not suspended.
            1 alice RUNNING 1-1 on n1[0]
            job 2
            1 alice RUNNING 1-1 on n1[0]
            2 bob PENDING Resources: needs 2 GPUs and 1 CPU on one node; most is free on n1: 1 GPU, 63 CPUs and 256G of memory; room is expected by 1970-01-12T14:13:20Z
        "#]],
    );
}

#[test]
fn a_suspended_run_is_cancelled_and_charged_for_what_it_ran() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1 time=600
         plan
         n1 running 1-1
         wait 100
         suspend 1
         wait 500
         cancel 1 user=alice
         n1 told
         n1 stopped 1-1
         show",
        expect![[r#"
            job 1
            n1 is told: 1-1 stop (Cancelled)
            1 alice CANCELLED 0:0 (alice)
        "#]],
    );
}

#[test]
fn a_job_without_gpus_gets_the_cpus_of_a_run_that_stands_still_until_it_is_done() {
    check(
        "node n1 h100:2
         qos low suspend
         qos high preempt=low
         submit user=alice gpus=2 cpus=60 mem=1G time=6000 qos=low
         plan
         n1 running 1-1
         submit user=bob cpus=30 mem=1G time=60 qos=high
         plan
         n1 told
         show
         nodes
         plan
         n1 running 2-1
         go-on 1
         show
         restart
         n1 hello 1-1=running 2-1=running
         plan
         show
         n1 clean 2-1 0
         plan
         n1 told
         show
         nodes",
        expect![[r#"
            job 1
            job 2
            n1 is told: 1-1 Run suspended
            1 alice SUSPENDED 1-1 on n1[0,1]
            2 bob PENDING Preempting: a run is suspended to make room for it
            n1 ALLOCATED 0 GPUs 64 CPUs free
            refused: job 1 was suspended for job 2 and goes on when its CPUs are free.
            1 alice SUSPENDED 1-1 on n1[0,1]
            2 bob RUNNING 2-1 on n1[]
            1 alice SUSPENDED 1-1 on n1[0,1]
            2 bob RUNNING 2-1 on n1[]
            n1 is told: 1-1 Run
            1 alice RUNNING 1-1 on n1[0,1]
            2 bob COMPLETED 0:0
            n1 ALLOCATED 0 GPUs 4 CPUs free
        "#]],
    );
}

#[test]
fn a_run_that_stands_still_can_be_lost_or_end() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1 time=600
         submit user=alice gpus=1 time=600
         plan
         n1 running 1-1
         n1 running 2-1
         suspend 1 2
         n1 clean 1-1 3
         n1 gone
         wait 400
         show",
        expect![[r#"
            job 1
            job 2
            2 alice PENDING None: 
        "#]],
    );
}

#[test]
fn a_run_that_ended_while_it_stood_still_does_not_go_on() {
    check(
        "node n1 h100:2
         qos low suspend
         qos high preempt=low
         submit user=alice gpus=2 cpus=60 mem=1G time=6000 qos=low
         plan
         n1 running 1-1
         submit user=bob cpus=30 mem=1G time=60 qos=high
         plan
         n1 stops 1-1
         cancel 2
         plan
         show
         n1 clean 1-1 0
         show",
        expect![[r#"
            job 1
            job 2
            1 alice COMPLETING 1-1 on n1[0,1]
            2 bob CANCELLED 0:0 (root)
            1 alice CANCELLED 0:15
            2 bob CANCELLED 0:0 (root)
        "#]],
    );
}

#[test]
fn classes_go_with_the_last_guarantee() {
    check(
        "node n1 h100:2
         account lab guaranteed=1 users=alice
         submit user=alice gpus=1 time=600
         submit user=alice gpus=1 time=600
         plan
         n1 running 1-1
         n1 running 2-1
         classes
         account lab users=alice
         classes",
        expect![[r#"
            job 1
            job 2
            1-1 Guaranteed, 2-1 Borrowed
            1-1 none, 2-1 none
        "#]],
    );
}

#[test]
fn a_suspended_job_keeps_its_licences_and_need_not_ask_for_them_again() {
    check(
        "node n1 h100:2
         licence matlab=2
         submit user=alice time=600 licences=matlab:2
         plan
         n1 running 1-1
         suspend 1
         submit user=bob time=600 licences=matlab:1
         plan
         show
         go-on 1
         cancel 1 user=alice
         n1 ended 1-1
         n1 clean 1-1
         plan
         show",
        expect![[r#"
            job 1
            job 2
            1 alice SUSPENDED 1-1 on n1[]
            2 bob PENDING Licenses: needs 1 of licence "matlab"; 0 of 2 are free for as long
            1 alice CANCELLED 0:0 (alice)
            2 bob RUNNING 2-1 on n1[]
        "#]],
    );
}
