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
        expect![[""]],
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
            2 alice PENDING Resources: component 1: needs 2 GPUs and 1 CPU on one node; most is free on n2: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:48:20Z
            3 alice PENDING Resources: component 1: needs 2 GPUs and 1 CPU on one node; most is free on n2: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:48:20Z
            1 bob COMPLETED 0:0
            2 alice RUNNING 2-1 on n1[0,1,2,3]
            3 alice RUNNING 3-1 on n2[0,1]
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
         down n2 gone
         show
         n1 told
         n1 stopped 1-1
         show
         wait 5
         plan
         show",
        expect![[""]],
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
        expect![[""]],
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
         qos low
         qos high preempt=low
         account lab users=alice,bob
         gang user=alice account=lab qos=low gpus=2 time=600 : gpus=2
         plan
         n1 ready 1-1
         n1 ready 2-1
         n1 running 1-1
         n1 running 2-1
         requeue 2 user=alice
         n1 told
         n1 stopped 1-1
         n1 stopped 2-1
         show
         plan
         n1 ready 1-2
         n1 ready 2-2
         n1 running 1-2
         n1 running 2-2
         submit user=bob account=lab qos=high gpus=1 time=60
         plan
         n1 told
         n1 stopped 2-2
         n1 stopped 1-2
         show
         plan
         show",
        expect![[""]],
    );
}

#[test]
fn victims_are_chosen_for_the_whole_gang() {
    check(
        "node n1 h100:4
         node n2 h100:4
         qos low
         qos high preempt=low
         account lab users=alice,bob
         submit user=bob account=lab qos=low gpus=4 time=600 nodelist=n1
         submit user=bob account=lab qos=low gpus=4 time=600 nodelist=n2
         plan
         n1 running 1-1
         n2 running 2-1
         gang user=alice account=lab qos=high gpus=4 time=60 : gpus=2
         plan
         show
         n1 stopped 1-1
         plan
         show
         n2 stopped 2-1
         plan
         show",
        expect![[""]],
    );
}
