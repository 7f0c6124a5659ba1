//! Jobs of unlike parts: all components start together, what is said to one is said to all, and they end together.

use crate::ctl::tests::world::check;
use expect_test::expect;

const GANG: &str = "node n1 h100:4
    node n2 h100:4
    gang user=alice gpus=4 time=60 : gpus=2 nodelist=n2
    plan
";

fn gang(rest: &str, expect: expect_test::Expect) {
    check(&format!("{GANG}{rest}"), expect);
}

#[test]
fn the_components_go_when_all_are_ready_and_end_with_the_script() {
    gang(
        "n1 told
         n1 ready 1-1
         n1 told
         n2 ready 2-1
         n1 told
         n2 told
         n1 running 1-1
         n2 running 2-1
         n1 clean 1-1 3
         show
         n2 told
         n2 stopped 2-1
         show
         nodes",
        expect![[r#"
            job 1
            n1 is told: 1-1 Prepare
            n1 is told: 1-1 Prepare
            n1 is told: 1-1 Run
            n2 is told: 2-1 Run
            1+0 alice RUNNING 1-1 on n1[0,1,2,3]
            1+1 alice RUNNING 2-1 on n2[0,1]
            n2 is told: 2-1 stop (Member)
            1+0 alice FAILED 3:0
            1+1 alice FAILED 3:0
            n1 IDLE 4 GPUs 64 CPUs free
            n2 IDLE 4 GPUs 64 CPUs free
        "#]],
    );
}

#[test]
fn none_starts_while_one_has_no_room() {
    check(
        "node n1 h100:4
         node n2 h100:4
         submit user=bob gpus=4 time=100 nodelist=n2
         plan
         n2 running 1-1
         gang user=alice gpus=4 time=60 nodelist=n1 : gpus=2 nodelist=n2
         plan
         show
         n2 clean 1-1 0
         plan
         show",
        expect![[r#"
            job 1
            job 2
            1 bob RUNNING 1-1 on n2[0,1,2,3]
            2+0 alice PENDING Resources: component 1: needs 2 GPUs and 1 CPU on one node; most is free on n2: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:48:20Z
            2+1 alice PENDING Resources: component 1: needs 2 GPUs and 1 CPU on one node; most is free on n2: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:48:20Z
            1 bob COMPLETED 0:0
            2+0 alice RUNNING 2-1 on n1[0,1,2,3]
            2+1 alice RUNNING 3-1 on n2[0,1]
        "#]],
    );
}

#[test]
fn a_lost_node_of_one_takes_all_back_to_the_queue() {
    gang(
        "n1 ready 1-1
         n2 ready 2-1
         n1 running 1-1
         n2 running 2-1
         n2 gone
         wait 400
         show
         n1 told
         n1 stopped 1-1
         show
         wait 5
         plan
         show",
        expect![[r#"
            job 1
            1+0 alice RUNNING 1-1 on n1[0,1,2,3]
            1+1 alice RUNNING 2-1 on n2[0,1]
            n1 is told: 1-1 stop (Member)
            1+0 alice PENDING None: 
            1+1 alice PENDING None: 
            1+0 alice PENDING ReqNodeNotAvail: component 1: nodes it needs are not available (n2: down)
            1+1 alice PENDING ReqNodeNotAvail: component 1: nodes it needs are not available (n2: down)
        "#]],
    );
}

#[test]
fn what_is_said_to_one_component_is_said_to_all() {
    check(
        "node n1 h100:4
         gang user=alice gpus=2 time=60 : gpus=2
         hold 2 user=alice
         plan
         show
         release 1 user=alice
         update 2 user=alice time=50
         plan
         n1 ready 1-1
         n1 ready 2-1
         n1 running 1-1
         n1 running 2-1
         show
         cancel 2 user=alice
         n1 told
         n1 stopped 2-1
         show
         n1 stopped 1-1
         show
         gang user=alice gpus=2 time=60 : gpus=2
         cancel 3 user=alice
         show",
        expect![[r#"
            job 1
            1+0 alice PENDING JobHeldUser: held by user:alice HELD user:alice (because)
            1+1 alice PENDING JobHeldUser: held by user:alice HELD user:alice (because)
            1+0 alice RUNNING 1-1 on n1[0,1]
            1+1 alice RUNNING 2-1 on n1[2,3]
            n1 is told: 1-1 stop (Cancelled), 2-1 stop (Cancelled)
            1+0 alice RUNNING 1-1 on n1[0,1]
            1+1 alice RUNNING 2-1 on n1[2,3]
            1+0 alice CANCELLED 0:0 (alice)
            1+1 alice CANCELLED 0:0 (alice)
            job 3
            1+0 alice CANCELLED 0:0 (alice)
            1+1 alice CANCELLED 0:0 (alice)
            3+0 alice CANCELLED 0:0 (alice)
            3+1 alice CANCELLED 0:0 (alice)
        "#]],
    );
}

#[test]
fn a_request_of_which_one_part_is_refused_is_refused_whole() {
    check(
        "node n1 h100:4
         gang user=alice gpus=2 : gpus=9
         gang user=alice gpus=2 : gpus=1 array=0-3
         gang user=alice gpus=2 time=60 : gpus=1 time=70
         gang user=alice gpus=2
         show",
        expect![[r#"
            refused: component 1: 9 GPUs on one node: the largest node in partition "main" has 4. Ask for fewer.
            refused: component 1: --array does not go with a job of unlike parts.
            refused: component 1: --time is of the whole job. Give it with the first component.
            refused: a job of unlike parts has 2 to 16 components; this one has 1.
        "#]],
    );
}

#[test]
fn a_requeue_of_one_requeues_all_and_a_victim_brings_its_siblings() {
    check(
        "node n1 h100:4
         node n9 h100:1
         qos low
         qos high preempt=low
         account lab users=alice,bob
         submit user=bob account=lab qos=high gpus=1 nodelist=n9
         gang user=alice account=lab qos=low gpus=2 time=600 : gpus=2
         plan
         n9 running 1-1
         n1 ready 2-1
         n1 ready 3-1
         n1 running 2-1
         n1 running 3-1
         requeue 3 user=alice
         n1 told
         n1 stopped 2-1
         n1 stopped 3-1
         show
         plan
         n1 ready 2-2
         n1 ready 3-2
         n1 running 2-2
         n1 running 3-2
         submit user=bob account=lab qos=high gpus=1 time=60
         plan
         n1 told
         n1 stopped 3-2
         n1 stopped 2-2
         show
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
            n1 is told: 2-1 stop (Requeued), 3-1 stop (Requeued)
            1 bob RUNNING 1-1 on n9[0]
            2+0 alice PENDING None: 
            2+1 alice PENDING None: 
            job 4
            n1 is told: 2-2 stop (Preempted, gone in 30 s), 3-2 stop (Preempted, gone in 30 s)
            1 bob RUNNING 1-1 on n9[0]
            2+0 alice PENDING None: 
            2+1 alice PENDING None: 
            4 bob PENDING Preempting: a run is ended to make room for it
            1 bob RUNNING 1-1 on n9[0]
            2+0 alice PENDING Resources: component 1: needs 2 GPUs and 1 CPU on one node; most is free on n1: 1 GPU, 62 CPUs and 128G of memory; room is expected by 1970-01-12T13:47:40Z
            2+1 alice PENDING Resources: component 1: needs 2 GPUs and 1 CPU on one node; most is free on n1: 1 GPU, 62 CPUs and 128G of memory; room is expected by 1970-01-12T13:47:40Z
            4 bob RUNNING 4-1 on n1[0]
        "#]],
    );
}

#[test]
fn victims_are_chosen_for_the_whole_gang() {
    check(
        "node n1 h100:4
         node n2 h100:4
         node n9 h100:1
         qos low
         qos high preempt=low
         account lab users=alice,bob
         submit user=bob account=lab qos=high gpus=1 nodelist=n9
         submit user=bob account=lab qos=low gpus=4 time=600 nodelist=n1
         submit user=bob account=lab qos=low gpus=4 time=600 nodelist=n2
         plan
         n9 running 1-1
         n1 running 2-1
         n2 running 3-1
         gang user=alice account=lab qos=high gpus=4 time=60 : gpus=2
         plan
         show
         n1 stopped 2-1
         plan
         show
         n2 stopped 3-1
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
            job 3
            job 4
            1 bob RUNNING 1-1 on n9[0]
            2 bob RUNNING 2-1 on n1[0,1,2,3]
            3 bob RUNNING 3-1 on n2[0,1,2,3]
            4+0 alice PENDING Preempting: 2 runs are ended to make room for it
            4+1 alice PENDING Preempting: 2 runs are ended to make room for it
            1 bob RUNNING 1-1 on n9[0]
            2 bob PENDING Priority: needs 4 GPUs and 1 CPU on one node; jobs of higher priority wait for such resources too
            3 bob RUNNING 3-1 on n2[0,1,2,3]
            4+0 alice PENDING Preempting: 2 runs are ended to make room for it
            4+1 alice PENDING Preempting: 2 runs are ended to make room for it
            1 bob RUNNING 1-1 on n9[0]
            2 bob PENDING Resources: needs 4 GPUs and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:47:40Z
            3 bob PENDING Priority: needs 4 GPUs and 1 CPU on one node; jobs of higher priority wait for such resources too
            4+0 alice RUNNING 4-1 on n1[0,1,2,3]
            4+1 alice RUNNING 5-1 on n2[0,1]
        "#]],
    );
}

#[test]
fn components_that_never_fit_beside_each_other_are_refused() {
    check(
        "node n1 h100:4
         node n2 h100:4
         submit user=bob gpus=4 time=100 nodelist=n2
         plan
         n2 running 1-1
         gang user=alice gpus=4 time=60 nodes=2 : gpus=1
         gang user=alice nodes=2 gpn=3 time=60 : nodes=2 gpn=2
         gang user=alice nodes=2 gpn=2 time=60 : nodes=2 gpn=2
         show",
        expect![[r#"
            job 1
            job 2
            refused: component 1: 2 GPUs and 1 CPU on each of 2 nodes has no room beside the other components, whatever else ends: all start together. Ask for less in one of them.
            job 4
            1 bob RUNNING 1-1 on n2[0,1,2,3]
            2+0 alice PENDING None: 
            2+1 alice PENDING None: 
            4+0 alice PENDING None: 
            4+1 alice PENDING None: 
        "#]],
    );
}

#[test]
fn a_component_that_may_run_on_few_nodes_is_placed_first() {
    check(
        "node n1 h100:4
         node n2 h100:4
         gang user=alice gpus=4 time=60 : gpus=4 nodelist=n1
         gang user=alice gpus=2 time=60 : gpus=4 nodelist=n2
         plan
         show",
        expect![[r#"
            job 1
            job 3
            1+0 alice RUNNING 1-1 on n2[0,1,2,3]
            1+1 alice RUNNING 2-1 on n1[0,1,2,3]
            3+0 alice PENDING Resources: component 1: needs 4 GPUs and 1 CPU on one node; most is free on n2: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:47:40Z
            3+1 alice PENDING Resources: component 1: needs 4 GPUs and 1 CPU on one node; most is free on n2: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:47:40Z
        "#]],
    );
}

#[test]
fn a_step_may_be_of_several_components_with_ranks_in_a_row() {
    gang(
        "n1 running 1-1
         n2 running 2-1
         step 1 2 user=alice n=2
         step 2 1 user=alice n=1
         step 1 1 user=alice n=1
         submit user=alice
         plan
         n1 running 3-1
         step 1 3 user=alice n=1
         step 1 9 user=alice n=1
         step 1 2 user=bob n=1
         step 1 user=alice n=1
         n2 clean 2-1 0
         step 1 2 user=alice n=1",
        expect![[r#"
            job 1
            refused: More processors requested than permitted: 2 tasks, and the job has 1 CPUs on the 1 node(s) of the step. Ask for 1 tasks or fewer, or say --overcommit.
            step 2-1.0 on n2
            step 1-1.0 on n1
            ranks [[0], [1]]
            refused: a step is once in each component, and 1 is named twice.
            job 3
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: a step over several jobs needs components of one job of unlike parts.
            refused: no job 9 in the queue. If it was there, it is over: see `gacct -j 9`.
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
            step 1-1.1 on n1
            refused: job 1 is not running: steps need its allocation.
        "#]],
    );
}
