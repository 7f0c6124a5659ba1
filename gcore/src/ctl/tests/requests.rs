//! A waiting job's request changes as one, under the rules of a submission; a running one's does not.

use crate::ctl::tests::world::check;
use expect_test::expect;

#[test]
fn a_request_that_is_made_smaller_starts() {
    check(
        "node n1 h100:4 64c 64G
         submit user=alice gpus=2
         plan
         submit user=bob gpus=4 cpus=8 mem=32G
         plan
         show
         update 2 user=bob gpus=2 cpus=4 mem_per_node=8G
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice RUNNING 1-1 on n1[0,1]
            2 bob PENDING Resources: needs 4 GPUs, 8 CPUs and 32G of memory on one node; most is free on n1: 2 GPUs, 63 CPUs and 32G of memory; room is expected by 1970-01-13T13:46:40Z
            1 alice RUNNING 1-1 on n1[0,1]
            2 bob RUNNING 2-1 on n1[2,3]
        "#]],
    );
}

#[test]
fn what_could_not_be_submitted_is_refused_and_nothing_of_it_changes() {
    check(
        "partition main default nodes=n[1-2],n5 max_nodes=2
         node n1 h100:4 64c 64G feature=ib
         node n2 h100:4 64c 64G
         submit user=alice gpus=8 nodes=2 time=100
         update 1 user=alice nodes=3
         update 1 user=alice gpus=16
         update 1 user=alice gpus=h200:1
         update 1 user=alice constraint=ibx
         update 1 user=alice nodelist=n7
         update 1 user=alice nodelist=n5
         update 1 user=alice exclude=n[1-2]
         update 1 user=alice mem_per_node=1T
         update 1 user=alice ntasks=4 cpus=6
         update 1 user=alice gpus=1 name=renamed cpus=200
         update 1 user=bob gpus=1
         plan
         show",
        expect![[r#"
            job 1
            refused: --nodes 3: partition "main" has 2 such nodes.
            refused: 8 GPUs on one node: the largest node in partition "main" has 4. Ask for fewer.
            refused: 1 h200 on one node: partition "main" has none such (it has h100).
            refused: --constraint ibx: no node of partition "main" has the feature "ibx" (there are: ib).
            refused: --nodelist: "n7" is not a node of partition "main". Did you mean "n1"?
            refused: --nodelist: n5 belongs to partition "main" by name, and no such machine has joined yet: an operator makes a token for it with `gadm token node --name n5`.
            refused: no node of partition "main" is left after --constraint, --exclude and --nodelist.
            refused: more memory on one node than any has: the largest in partition "main" has 64G.
            refused: 6 CPUs are no whole number for each of 4 tasks. 4 or 8 would be
            refused: 200 CPUs on one node: the largest node in partition "main" has 64. Ask for fewer, or for more --nodes.
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
            1 alice RUNNING 1-1 on n1[0,1,2,3] n2[0,1,2,3]
        "#]],
    );
}

#[test]
fn limits_hold_for_the_new_size_and_an_operators_word_waits_for_them() {
    check(
        "qos normal max_gpus=2
         node n1 h100:4
         submit user=alice gpus=2
         update 1 user=alice gpus=3
         update 1 user=root gpus=3
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: QOS normal allows 2 GPUs a job; this job needs 3, so it could never start (QOSMaxGRESPerJob).
            1 alice PENDING QOSMaxGRESPerJob: QOS normal allows 2 GPUs a job; this job needs 3
        "#]],
    );
}

#[test]
fn a_running_job_keeps_its_size() {
    check(
        "node n1 h100:4
         submit user=alice gpus=2
         plan
         update 1 user=alice gpus=1
         update 1 user=root nodes=2
         n1 running 1-1
         n1 clean 1-1
         update 1 user=alice gpus=1",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: job 1 is running: its size can only change while it is pending.
            refused: job 1 is running: its size can only change while it is pending.
            refused: job 1 is COMPLETED; nothing of it can change any more.
        "#]],
    );
}

#[test]
fn tasks_of_an_array_that_wait_change_and_those_that_run_do_not() {
    check(
        "node n1 h100:4
         submit user=alice gpus=3 array=0-3
         plan
         update 1 user=alice gpus=1
         plan
         show
         n1 running 1-1
         requeue 1_0 user=alice
         n1 stopped 1-1
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1_[2-3] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 62 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z
            1_0 alice RUNNING 1-1 on n1[0,1,2]
            1_1 alice RUNNING 2-1 on n1[3]
            1_[2-3] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 62 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z
            1_0 alice RUNNING 1-2 on n1[0,1,2]
            1_1 alice RUNNING 2-1 on n1[3]
        "#]],
    );
}

#[test]
fn nodes_and_where_they_are_may_change() {
    check(
        "node n1 h100:2 feature=ib
         node n2 h100:2 feature=ib
         node n3 h100:2
         submit user=alice gpn=1 nodes=2 nodelist=n[1-2] constraint=ib
         update 1 user=alice nodelist=none constraint=none exclude=n1
         plan
         show
         submit user=alice gpn=1 nodes=3 ntasks=3
         update 2 user=alice nodes=1
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice RUNNING 1-1 on n2[0] n3[0]
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice RUNNING 1-1 on n2[0] n3[0]
            2 alice RUNNING 2-1 on n2[1]
        "#]],
    );
}
