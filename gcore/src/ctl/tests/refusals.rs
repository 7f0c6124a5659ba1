//! What is refused says what was asked, what stands against it, and what would work.

use crate::ctl::tests::world::check;
use expect_test::expect;

#[test]
fn requests_that_can_never_run_are_refused_with_what_would_work() {
    check(
        "partition train default max_time=3600
         partition vip users=bob
         partition draining state=drain
         partition parts sharing=mps
         node node1 h100:8 feature=ib
         node node2 h100:8
         node node3 a100:4 32c 64G
         submit user=alice partition=trian
         submit user=alice partition=zebra
         submit user=alice partition=vip,draining
         submit user=alice partition=vip
         submit user=alice partition=draining
         submit user=alice gpus=h100:16
         submit user=alice gpus=h200:1
         submit user=alice nodes=3 gpn=h100:8
         submit user=alice gpus=0.5
         submit user=alice gpus=0.01 partition=parts
         submit user=alice time=7200
         submit user=alice cpus=128
         submit user=alice mem=2T
         submit user=alice nodes=4
         submit user=alice nodelist=node9
         submit user=alice nodelist=nod1
         submit user=alice constraint=nvswitch
         submit user=alice constraint=ib&(
         submit user=alice exclude=node[1-3]
         submit user=alice nodes=2 ntasks=8 each=2
         submit user=alice nice=-1
         submit user=root
         submit user=alice nodes=0
         submit user=alice ntasks=0
         show",
        expect![[r#"
            refused: no partition "trian". Did you mean "train"? There are: main, train, vip, draining, parts.
            refused: no partition "zebra". There are: main, train, vip, draining, parts.
            refused: none of the partitions vip, draining takes the job. vip: partition "vip" is not open to alice. draining: partition "draining" takes no submissions now.
            refused: partition "vip" is not open to alice.
            refused: partition "draining" takes no submissions now.
            refused: 16 h100 on one node: the largest node in partition "train" has 8. Try --nodes 2 --gpus-per-node h100:8.
            refused: 1 h200 on one node: partition "train" has none such (it has a100, h100).
            refused: 8 h100 and 1 CPU on each of 3 nodes: partition "train" has 2 such nodes. Ask for fewer --nodes.
            refused: --gpus 0.5: partition "train" gives GPUs whole (gpu_sharing = "off"). Ask for whole GPUs, or name a partition that shares them: "parts".
            refused: --gpus 0.01: MPS shares a GPU among too few processes for parts below 0.05. Ask for 0.05 or more.
            refused: --time 2:00:00: partition "train" allows at most 1:00:00.
            refused: 128 CPUs on one node: the largest node in partition "train" has 64. Ask for fewer, or for more --nodes.
            refused: more memory on one node than any has: the largest in partition "train" has 512G.
            refused: --nodes 4: partition "train" has 3 such nodes.
            refused: --nodelist: "node9" is not a node of partition "train". Did you mean "node1"?
            refused: --nodelist: "nod1" is not a node of partition "train". Did you mean "node1"?
            refused: --constraint nvswitch: no node of partition "train" has the feature "nvswitch" (there are: ib).
            refused: constraint "ib&(": a feature is missing beside & or |. Try a100&ib or a100|h100
            refused: no node of partition "train" is left after --constraint, --exclude and --nodelist.
            refused: --nodes 4, as many as --ntasks 8 at --ntasks-per-node 2 take: partition "train" has 3 such nodes.
            refused: only operators may use a negative --nice.
            refused: jobs of root are not accepted here: submit as an ordinary user. (`allow_root_jobs = true` in gpuctld.toml changes that.)
            refused: --nodes 0-0: ask for at least one, smaller first
            refused: tasks and CPUs are counted from 1
        "#]],
    );
}

#[test]
fn what_no_so_many_switches_have_is_refused_unless_it_waits_for_them_only_so_long() {
    check(
        "config switches=n[1-2]/n[3-4]/n5
         node n1 h100:1
         node n2 h100:1
         node n3 h100:1
         node n4 h100:1
         node n5 h100:1
         submit user=alice nodes=3 gpn=1 time=60 switches=1
         submit user=alice nodes=5 gpn=1 time=60 switches=2
         submit user=alice nodes=4 gpn=1 time=60 switches=2
         submit user=alice nodes=5 gpn=1 time=60 switches=2@600",
        expect![[r#"
            refused: --switches 1: below any leaf switch partition "main" has 2 such nodes at most, and 3 are needed. Try --switches 2, or say how long to wait for it: --switches 1@30:00.
            refused: --switches 2: below any 2 leaf switches together partition "main" has 4 such nodes at most, and 5 are needed. Try --switches 3, or say how long to wait for it: --switches 2@30:00.
            job 1
            job 2
        "#]],
    );
}

/// Only those that could serve it count.
#[test]
fn what_no_switch_has_enough_fitting_nodes_for_is_refused() {
    check(
        "config switches=n[1-2]/n[3-4]
         node n1 h100:8
         node n2 h100:1
         node n3 h100:8
         node n4
         submit user=alice nodes=2 gpn=8 time=60 switches=1
         submit user=alice nodes=2 gpn=1 time=60 switches=1
         submit user=alice nodes=2 gpn=8 time=60 switches=2
         submit user=alice nodes=2 gpn=8 time=60 switches=1@600
         submit user=alice nodes=3 gpn=8 time=60 switches=1",
        expect![[r#"
            refused: --switches 1: below any leaf switch partition "main" has 1 such nodes at most, and 2 are needed. Try --switches 2, or say how long to wait for it: --switches 1@30:00.
            job 1
            job 2
            job 3
            refused: 8 GPUs and 1 CPU on each of 3 nodes: partition "main" has 2 such nodes. Ask for fewer --nodes.
        "#]],
    );
}

#[test]
fn nodes_that_are_named_and_can_give_no_part_of_it_are_refused() {
    check(
        "node n1 h100:8 16c 64G
         node n2 a100:4 16c 64G
         node n3 h100:2 a100:4 16c 64G
         node n4 8c 32G
         submit user=alice gpus=a100:3 nodelist=n1 time=60
         submit user=alice gpus=h100:8|a100:8 nodelist=n3 time=60
         submit user=alice nodes=2 gpus=a100:4|h100:8 nodelist=n1 time=60
         submit user=alice nodes=2 gpn=a100:2 nodelist=n[1-2] time=60
         submit user=alice cpus=12 nodelist=n4 time=60
         submit user=alice gpus=a100:8|h100:8 nodelist=n1 time=60
         submit user=alice nodes=2 gpn=a100:4 nodelist=n3 time=60
         submit user=alice nodes=3 gpus=7 nodelist=n1 time=60
         submit user=alice gpus=4 nodelist=n2 time=60
         update 4 user=alice nodelist=n4",
        expect![[r#"
            refused: 3 a100 and 1 CPU on one node: n1, which --nodelist names, has 8 h100, 16 CPUs and 64G of memory. Take it out of the list, or ask for what it has.
            refused: 8 h100 and 1 CPU on one node: n3, which --nodelist names, has 4 a100, 16 CPUs and 64G of memory. Take it out of the list, or ask for what it has.
            refused: 2 a100 and 1 CPU on each of 2 nodes: n1, which --nodelist names, has 8 h100, 16 CPUs and 64G of memory. Take it out of the list, or ask for what it has.
            refused: 2 a100 and 1 CPU on each of 2 nodes: n1, which --nodelist names, has 8 h100, 16 CPUs and 64G of memory. Take it out of the list, or ask for what it has.
            refused: 12 CPUs on one node: n4, which --nodelist names, has no GPUs, 8 CPUs and 32G of memory. Take it out of the list, or ask for what it has.
            job 1
            job 2
            job 3
            job 4
            refused: 4 GPUs and 1 CPU on one node: n4, which --nodelist names, has no GPUs, 8 CPUs and 32G of memory. Take it out of the list, or ask for what it has.
        "#]],
    );
}

#[test]
fn without_a_limit_the_partition_decides_else_a_day_with_a_note() {
    check(
        "partition short max_time=600
         partition usual default_time=300 max_time=600
         partition open default
         submit user=alice partition=short
         submit user=alice partition=usual
         submit user=alice partition=open",
        expect![[r#"
            job 1
              note: no node of partition "short" has reported yet: the job waits
            job 2
              note: no node of partition "usual" has reported yet: the job waits
            job 3
              note: no --time given and partition "open" has no default: the limit is 1-00:00:00
              note: no node of partition "open" has reported yet: the job waits
        "#]],
    );
}

#[test]
fn other_peoples_jobs_and_the_cluster_are_out_of_reach() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1
         submit user=alice gpus=1 array=0-3
         cancel 1 2 2_1 user=bob
         hold 1 user=bob
         release 1 user=bob
         requeue 1 user=bob
         update 1 user=bob nice=5
         drain n1 user=alice why
         resume n1 user=alice
         down n1 user=alice why
         remove n1 user=alice
         RESTORE user=alice
         cancel 99 user=alice
         cancel 2_9 user=alice
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
            refused: job 2 belongs to alice; you are bob. Ask them or an operator.
            refused: job 2_1 belongs to alice; you are bob. Ask them or an operator.
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
            refused: draining a node is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            refused: resuming a node is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            refused: declaring a node down is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            refused: removing a node is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            refused: restoring a backup is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            refused: no job 99 in the queue. If it was there, it is over: see `gacct -j 99`.
            refused: job 2 has no array task 9; its tasks are 0-3.
            2_[0-3] alice PENDING None: 
            1 alice PENDING None: 
        "#]],
    );
}

#[test]
fn tasks_without_a_word_about_nodes_get_as_few_as_have_room_for_them() {
    check(
        "partition main default
         node n1 16c h100:4
         node n2 16c h100:4
         node n3 8c
         submit user=alice ntasks=16 any
         submit user=alice ntasks=17 any
         submit user=alice ntasks=24 any
         submit user=alice ntasks=17
         submit user=alice ntasks=20 cpus=2 any
         submit user=alice ntasks=8 any gpt=1
         submit user=alice ntasks=9 any gpt=1
         submit user=alice ntasks=9 any gpt=5
         submit user=alice ntasks=6 any nodelist=n[1-2]
         submit user=alice ntasks=6 any nodelist=n1 exclude=n1
         submit user=alice exclude=n[3-4]
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 3
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: 17 CPUs on one node: the largest node in partition "main" has 16. Ask for fewer, or for more --nodes.
            refused: --ntasks 20: the 3 nodes of partition "main" have no room for so many tasks, dealt evenly. Ask for fewer.
            job 4
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: --ntasks 9: the 3 nodes of partition "main" have no room for so many tasks, dealt evenly. Ask for fewer.
            refused: 5 GPUs for one task: the largest node in partition "main" has 4. Ask for fewer.
            job 5
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: --nodelist and --exclude both name n1. Take it out of one of them.
            job 6
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
              note: --exclude: there is no node "n4". Did you mean "n1"?
            1 alice RUNNING 1-1 on n1[]
            2 alice RUNNING 2-1 on n2[] n3[]
            3 alice PENDING Resources: needs 12 CPUs on each of 2 nodes; most is free on n2: 4 GPUs, 6 CPUs and 192G of memory; room is expected by 1970-01-13T13:46:40Z
            4 alice PENDING Priority: needs 4 GPUs and 4 CPUs on each of 2 nodes; jobs of higher priority wait for such resources too
            5 alice PENDING Priority: needs 3 CPUs on each of 2 nodes; jobs of higher priority wait for such resources too
            6 alice RUNNING 6-1 on n2[]
        "#]],
    );
}

#[test]
fn a_waiting_job_is_not_moved_where_none_is_taken() {
    check(
        "partition train default
         partition draining state=drain
         node n1 h100:1
         submit user=alice held time=60
         update 1 user=alice partition=draining
         update 1 user=alice partition=train,draining
         update 1 user=root partition=draining
         update 1 user=alice partition=train",
        expect![[r#"
            job 1
            refused: partition "draining" takes no submissions now.
            refused: partition "draining" takes no submissions now.
            refused: partition "draining" takes no submissions now.
        "#]],
    );
}

#[test]
fn nodes_alike_in_one_of_several_features_are_refused_where_no_feature_has_so_many() {
    check(
        "node n1 h100:1 feature=r1
         node n2 h100:1 feature=r1
         node n3 h100:1 feature=r2
         submit user=alice gpn=1 nodes=2 constraint=[r1|r2] time=60
         submit user=alice gpn=1 nodes=2 constraint=[r1|r2] time=60
         submit user=alice gpn=1 nodes=3 constraint=[r1|r2] time=60
         submit user=alice gpn=1 nodes=2 constraint=[r2|r1] time=60 array=0-1
         submit user=alice gpn=1 nodes=1 constraint=[r1*2&r2*1] time=60
         plan
         show",
        expect![[r#"
            job 1
            job 2
            refused: --constraint [r1|r2]: no part of the brackets would do for all of its nodes. --nodes 3: partition "main" has 2 such nodes.
            job 3
            refused: constraint "[r1*2&r2*1]": *count (a number of nodes with a feature) is not known here; all nodes of a job meet the whole constraint. Leave the count out
            3_[0-1] alice PENDING Priority: needs 1 GPU and 1 CPU on each of 2 nodes; jobs of higher priority wait for such resources too
            1 alice RUNNING 1-1 on n1[0] n2[0]
            2 alice PENDING Resources: needs 1 GPU and 1 CPU on each of 2 nodes; most is free on n2: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:47:40Z
        "#]],
    );
}
