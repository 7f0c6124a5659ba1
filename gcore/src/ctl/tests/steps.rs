//! Steps that have parts of their job for themselves.

use crate::ctl::tests::world::check;
use expect_test::expect;

#[test]
fn steps_with_a_share_have_parts_of_their_own_and_wait_for_each_other() {
    check(
        "node n1 h100:4 cpus=16
         submit user=alice gpus=4 cpus=8
         plan
         n1 running 1-1
         step 1 user=alice n=1 cpus=3 gpus=Step:2
         step 1 user=alice n=2 cpus=2 gpus=Task:1
         step 1 user=alice n=1 cpus=1 gpus=Step:1
         step 1 user=alice n=1 cpus=2
         step 1 user=alice n=1 cpus=1 gpus=Step:0
         step 1 user=alice
         step-ends 1 n=0 user=alice
         step 1 user=alice n=1 cpus=1 gpus=Step:1
         step-ends 1 n=1 user=alice
         step 1 user=alice n=1 cpus=4 gpus=Node:h100:3",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            step 1-1.0 on n1:1 cpus=[0, 1, 2] gpus=[0, 1]
            step 1-1.1 on n1:2 cpus=[3, 4, 5, 6] gpus=[2, 3]
            waits: 1 task with 1 CPU each, 1 GPU: other steps have the rest; n1 has free 1 CPU, 0 GPUs (steps 0 at grun, 1 at grun)
            waits: 1 task with 2 CPUs each: other steps have the rest; n1 has free 1 CPU (steps 0 at grun, 1 at grun)
            step 1-1.2 on n1:1 cpus=[7] gpus=[]
            step 1-1.3 on n1
            step 1-1.4 on n1:1 cpus=[0] gpus=[0]
            step 1-1.5 on n1:1 cpus=[1, 2, 3, 4] gpus=[1, 2, 3]
        "#]],
    );
}

#[test]
fn a_step_is_on_the_nodes_that_have_room_for_it() {
    check(
        "node n1 h100:2 cpus=8
         node n2 h100:2 cpus=8
         submit user=alice gpn=2 nodes=2 cpus=4
         plan
         n1 ready 1-1
         n2 ready 1-1
         n1 running 1-1
         n2 running 1-1
         step 1 user=alice n=1 cpus=4
         step 1 user=alice n=1 cpus=1
         step 1 user=alice n=1 gpus=Step:2
         step 1 user=alice n=2 gpus=Step:2
         step-ends 1 n=2 user=alice
         step 1 user=alice n=2 gpus=Step:4
         step 1 user=alice N=2 gpus=Node:1
         step-ends 1 n=3 user=alice
         step 1 user=alice N=2 gpus=Node:1",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            step 1-1.0 on n1:1 cpus=[0, 1, 2, 3] gpus=[]
            step 1-1.1 on n2:1 cpus=[0] gpus=[]
            step 1-1.2 on n1:1 cpus=[] gpus=[0, 1]
            step 1-1.3 on n2:2 cpus=[] gpus=[0, 1]
            waits: 2 tasks with 4 GPUs: other steps have the rest; n1 has free 2 GPUs; n2 has free 0 GPUs (steps 0 at grun, 1 at grun, 3 at grun)
            waits: 2 tasks on 2 nodes with 1 GPU a node: other steps have the rest; n1 has free 2 GPUs; n2 has free 0 GPUs (steps 0 at grun, 1 at grun, 3 at grun)
            step 1-1.4 on n1:1 cpus=[] gpus=[0],n2:1 cpus=[] gpus=[0]
        "#]],
    );
}

#[test]
fn a_step_lies_on_as_many_nodes_as_it_has_tasks_while_there_is_room() {
    check(
        "node n1 h100:2 cpus=8
         node n2 h100:2 cpus=8
         submit user=alice gpn=2 nodes=2 cpus=4
         plan
         n1 ready 1-1
         n2 ready 1-1
         n1 running 1-1
         n2 running 1-1
         step 1 user=alice n=2 cpus=2
         step 1 user=alice n=1 cpus=2
         step 1 user=alice n=2 cpus=1
         step 1 user=alice n=2 cpus=4",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            step 1-1.0 on n1:1 cpus=[0, 1] gpus=[],n2:1 cpus=[0, 1] gpus=[]
            step 1-1.1 on n1:1 cpus=[2, 3] gpus=[]
            step 1-1.2 on n2:2 cpus=[2, 3] gpus=[]
            waits: 2 tasks with 4 CPUs each: other steps have the rest; n1 has free 0 CPUs; n2 has free 0 CPUs (steps 0 at grun, 1 at grun, 2 at grun)
        "#]],
    );
}

#[test]
fn a_step_that_overlaps_waits_for_none_and_none_for_it() {
    check(
        "node n1 h100:2 cpus=8
         submit user=alice gpus=2 cpus=4
         plan
         n1 running 1-1
         step 1 user=alice n=1 cpus=4 gpus=Step:2
         step 1 user=alice n=1 cpus=1 gpus=Step:1 overlap=yes
         step 1 user=alice n=1 gpus=Step:3 overlap=yes
         step 1 user=alice n=1 cpus=1
         step-ends 1 n=0 user=alice
         step 1 user=alice n=1 cpus=4 gpus=Step:2",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            step 1-1.0 on n1:1 cpus=[0, 1, 2, 3] gpus=[0, 1]
            step 1-1.1 on n1:1 cpus=[0] gpus=[0]
            refused: 1 task with 3 GPUs: more than the job has there; n1 has 2 GPUs
            waits: 1 task with 1 CPU each: other steps have the rest; n1 has free 0 CPUs (steps 0 at grun)
            step 1-1.2 on n1:1 cpus=[0, 1, 2, 3] gpus=[0, 1]
        "#]],
    );
}

#[test]
fn what_the_job_never_has_is_refused() {
    check(
        "node n1 h100:2 cpus=8
         submit user=alice gpus=2 cpus=4
         plan
         n1 running 1-1
         step 1 user=alice n=1 cpus=5
         step 1 user=alice n=3 gpus=Task:1
         step 1 user=alice n=1 gpus=Node:a100:1
         step 1 user=alice n=1 gpus=Step:100000
         step 1 user=alice n=65536 cpus=4294967295
         step 1 user=alice n=1 cpus=1 mem=4000000
         step 1 user=alice n=2 gpus=Task:1 mem-per-gpu=300
         step 1 user=alice n=1 gpus=Node:2 mem-per-gpu=300
         step 1 user=alice n=1 gpus=Step:2",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: 1 task with 5 CPUs each: more than the job has there; n1 has 4 CPUs
            refused: 3 tasks with 1 GPU each: more than the job has there; n1 has 2 GPUs
            refused: 1 task with 1 a100 GPU a node: more than the job has there; n1 has 0 a100 GPUs
            refused: 1 task with 100000 GPUs: more than the job has there; n1 has 2 GPUs
            refused: -n 65536 on 1 node(s): ask for 1 to 1024 tasks.
            refused: 1 task with 1 CPU each, 3906T a node: more than the job has there; n1 has 4 CPUs, 512G
            refused: 2 tasks with 1 GPU each, 300G a GPU: more than the job has there; n1 has 2 GPUs, 512G
            refused: 1 task with 2 GPUs a node, 300G a GPU: more than the job has there; n1 has 2 GPUs, 512G
            step 1-1.0 on n1:1 cpus=[] gpus=[0, 1]
        "#]],
    );
}
