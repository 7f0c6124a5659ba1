//! Jobs that wait in several partitions: accepted by those that take them, started in one, back in all when requeued.

use crate::ctl::tests::world::check;
use expect_test::expect;

#[test]
fn a_job_waits_in_all_its_partitions_and_runs_in_the_first_that_has_room() {
    check(
        "partition main default nodes=n1
         partition spare nodes=n2
         node n1 h100:2
         node n2 h100:2
         submit user=alice gpus=2
         plan
         submit user=bob gpus=2 partition=main,spare
         show
         plan
         submit user=bob gpus=2 partition=main,spare
         plan
         show
         n2 running 2-1
         n2 clean 2-1
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given: the limit is 1-00:00:00
            1 alice RUNNING 1-1 on n1[0,1]
            2 bob PENDING None:  in main,spare
            job 3
              note: no --time given: the limit is 1-00:00:00
            1 alice RUNNING 1-1 on n1[0,1]
            2 bob RUNNING in spare 2-1 on n2[0,1]
            3 bob PENDING Resources: needs 2 GPUs and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z in main,spare
            1 alice RUNNING 1-1 on n1[0,1]
            2 bob COMPLETED 0:0 in spare
            3 bob RUNNING in spare 3-1 on n2[0,1]
        "#]],
    );
}

#[test]
fn a_job_whose_run_is_taken_back_waits_in_all_partitions_again() {
    check(
        "partition main default nodes=n1
         partition spare nodes=n2
         node n1 h100:2
         node n2 h100:2
         submit user=alice gpus=2 time=600
         plan
         submit user=bob gpus=2 partition=main,spare
         plan
         n2 running 2-1
         requeue 2 user=bob
         n2 stopped 2-1
         show
         drain n2 broken
         n1 running 1-1
         n1 clean 1-1
         plan
         show
         restart
         show",
        expect![[r#"
            job 1
            job 2
              note: no --time given: the limit is 1-00:00:00
            1 alice RUNNING 1-1 on n1[0,1]
            2 bob PENDING None:  in main,spare
            1 alice COMPLETED 0:0
            2 bob RUNNING in main 2-2 on n1[0,1]
            1 alice COMPLETED 0:0
            2 bob RUNNING in main 2-2 on n1[0,1]
        "#]],
    );
}

#[test]
fn partitions_that_do_not_take_it_are_left_out_with_their_words() {
    check(
        "partition main default nodes=n1 max_time=3600
         partition long nodes=n2
         partition vip nodes=n2 users=carol
         node n1 h100:2
         node n2 h100:4
         submit user=alice gpus=1 time=7200 partition=main,long,vip
         submit user=alice gpus=4 partition=main,long
         submit user=alice gpus=1 partition=main,long,main
         submit user=alice gpus=8 partition=main,long
         submit user=alice gpus=1 partition=main,lung
         show",
        expect![[r#"
            job 1
              note: the job does not wait in partition main: --time 2:00:00: partition "main" allows at most 1:00:00.
              note: the job does not wait in partition vip: partition "vip" is not open to alice.
            job 2
              note: the job does not wait in partition main: 4 GPUs on one node: the largest node in partition "main" has 2. Ask for fewer.
              note: no --time given: the limit is 1-00:00:00
            job 3
              note: no --time given: the limit is 1:00:00
            refused: none of the partitions main, long takes the job. main: 8 GPUs on one node: the largest node in partition "main" has 2. Ask for fewer. long: 8 GPUs on one node: the largest node in partition "long" has 4. Ask for fewer.
            refused: no partition "lung". Did you mean "long"? There are: main, long, vip.
            1 alice PENDING None: 
            2 alice PENDING None: 
            3 alice PENDING None:  in main,long
        "#]],
    );
}

#[test]
fn the_shortest_default_limit_holds_in_all_of_them() {
    check(
        "partition main default nodes=n1 default_time=600 max_time=900
         partition long nodes=n1 default_time=7200
         node n1 h100:2
         submit user=alice gpus=2 partition=long,main
         submit user=alice gpus=1 partition=long,main time=800
         plan
         n1 running 1-1
         wait 600
         wait 60
         show",
        expect![[r#"
            job 1
            job 2
            1 alice RUNNING in long 1-1 on n1[0,1]
            2 alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:56:40Z in long,main
        "#]],
    );
}

#[test]
fn limits_count_it_in_each_partition_that_it_waits_in() {
    check(
        "partition main default
         partition spare
         qos normal user_queue=2
         node n1 h100:1
         submit user=alice gpus=1 partition=main,spare
         submit user=alice gpus=1 partition=main,spare
         submit user=alice gpus=1 partition=spare
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given: the limit is 1-00:00:00
            job 2
              note: no --time given: the limit is 1-00:00:00
            refused: user alice in QOS normal may have 2 jobs in the queue and running; there are 2, and this would be 1 more. Wait until some have ended.
            1 alice RUNNING in main 1-1 on n1[0]
            2 alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z in main,spare
        "#]],
    );
}

#[test]
fn an_array_spreads_over_its_partitions() {
    check(
        "partition main default nodes=n1
         partition spare nodes=n2
         node n1 h100:2
         node n2 h100:1
         submit user=alice gpus=1 array=0-4%4 partition=main,spare
         plan
         show
         n2 running 3-1
         requeue 3 user=alice
         n2 stopped 3-1
         show",
        expect![[r#"
            job 1
              note: no --time given: the limit is 1-00:00:00
            1_[3-4%4] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 62 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z
            1_0 alice RUNNING in main 1-1 on n1[0]
            1_1 alice RUNNING in main 2-1 on n1[1]
            1_2 alice RUNNING in spare 3-1 on n2[0]
            1_[3-4%4] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 62 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z
            1_0 alice RUNNING in main 1-1 on n1[0]
            1_1 alice RUNNING in main 2-1 on n1[1]
            1_2 alice PENDING None:  in main,spare
        "#]],
    );
}

#[test]
fn a_waiting_job_may_be_moved_to_several_partitions_and_back_to_one() {
    check(
        "partition main default nodes=n1
         partition spare nodes=n2
         partition vip nodes=n2 users=carol
         node n1 h100:2
         node n2 h100:2
         submit user=alice gpus=2
         submit user=alice gpus=2
         plan
         update 2 user=alice partition=main,vip
         update 2 user=alice partition=main,spare,main
         show
         update 2 user=alice partition=main
         show
         update 2 user=alice partition=main,spare
         plan
         show
         update 2 user=alice partition=main",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: partition "vip" is not open to alice.
            1 alice RUNNING 1-1 on n1[0,1]
            2 alice PENDING Resources: needs 2 GPUs and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z in main,spare
            1 alice RUNNING 1-1 on n1[0,1]
            2 alice PENDING Resources: needs 2 GPUs and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z
            1 alice RUNNING 1-1 on n1[0,1]
            2 alice RUNNING in spare 2-1 on n2[0,1]
            refused: job 2 is running: its partition can only change while it is pending.
        "#]],
    );
}

#[test]
fn a_partition_that_is_closed_meanwhile_does_not_start_it() {
    check(
        "partition main default nodes=n1
         partition spare nodes=n2
         node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=1
         plan
         submit user=bob gpus=1 partition=main,spare
         partition spare nodes=n2 state=down
         plan
         show
         partition spare nodes=n2
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given: the limit is 1-00:00:00
            1 alice RUNNING 1-1 on n1[0]
            2 bob PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z in main,spare
            1 alice RUNNING 1-1 on n1[0]
            2 bob RUNNING in spare 2-1 on n2[0]
        "#]],
    );
}

#[test]
fn partitions_are_made_beside_those_of_files_whose_keys_are_set_until_their_file_changes() {
    check(
        "partition main default nodes=n1 max_time=600
         node n1 h100:1
         node n2 h100:1
         made debug nodes=n2 max_time=60
         submit user=alice gpus=1 partition=debug time=60
         plan
         show
         made debug gone
         made main nodes=n2
         made main set nodes=n1 max_time=6000
         submit user=alice gpus=1 partition=main time=6000
         partition main default nodes=n1 max_time=60
         submit user=alice gpus=1 partition=main time=6000
         partition main default nodes=n1 max_time=600
         reload
         submit user=alice gpus=1 partition=main time=6000
         made main set nodes=n1 max_time=600 state=drain
         submit user=bob gpus=1 partition=main time=60
         made main gone
         submit user=bob gpus=1 partition=main time=60
         made none gone
         reservation r count=1 at=900 for=60 users=alice partition=debug
         n2 clean 1-1 0
         made debug gone
         reservation r gone
         made debug gone
         submit user=alice gpus=1 partition=debug time=60
         made spare nodes=n2
         partition spare nodes=n1
         submit user=alice gpus=1 partition=spare nodelist=n2 time=60",
        expect![[r#"
            job 1
            1 alice RUNNING 1-1 on n2[0]
            refused: partition debug has 1 jobs that are not over. Cancel them, wait for them, or give those that wait another.
            refused: partition main changed meanwhile. Try again.
            job 2
            refused: --time 1:40:00: partition "main" allows at most 1:00.
            refused: --time 1:40:00: partition "main" allows at most 10:00.
            refused: partition "main" takes no submissions now.
            job 3
            refused: no partition "none" was made at run time.
            refused: partition debug is named by reservations: r. Remove or change them first.
            refused: no partition "debug". There are: main.
            refused: --nodelist: "n2" is not a node of partition "spare". Did you mean "n1"?
        "#]],
    );
}

#[test]
fn a_partition_for_groups_takes_their_users_and_root_at_submission_and_when_a_job_is_moved() {
    check(
        "node n1 h100:4
         partition main default
         partition lab groups=staff
         partition both groups=staff,course
         submit user=alice gpus=1 time=60 partition=lab
         submit user=bob gpus=1 time=60 partition=lab
         submit user=bob gpus=1 time=60 partition=both
         submit user=root gpus=1 time=60 partition=lab
         submit user=carol gpus=1 time=60 partition=lab
         submit user=bob gpus=1 time=60 partition=main,lab
         submit user=bob gpus=1 time=60
         submit user=carol gpus=1 time=60
         update 4 user=bob partition=lab
         update 4 user=bob partition=both
         update 4 user=bob time=30
         update 5 user=carol partition=both
         update 4 user=root partition=lab
         plan
         show",
        expect![[r#"
            job 1
            refused: partition "lab" is for the group staff, and bob is not in it on the controller's host. Choose another with -p.
            job 2
            refused: jobs of root are not accepted here: submit as an ordinary user. (`allow_root_jobs = true` in gpuctld.toml changes that.)
            refused: partition "lab" is for the group staff, and the controller's host does not say now which groups carol is in. Try again in a moment.
            job 3
              note: the job does not wait in partition lab: partition "lab" is for the group staff, and bob is not in it on the controller's host. Choose another with -p.
            job 4
            job 5
            refused: partition "lab" is for the group staff, and bob is not in it on the controller's host. Choose another with -p.
            refused: partition "both" is for the groups staff, course, and the controller's host does not say now which groups carol is in. Try again in a moment.
            1 alice RUNNING 1-1 on n1[0]
            2 bob RUNNING 2-1 on n1[1]
            3 bob RUNNING 3-1 on n1[2]
            4 bob RUNNING 4-1 on n1[3]
            5 carol PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 60 CPUs and 0 of memory; room is expected by 1970-01-12T13:47:10Z
        "#]],
    );
}

#[test]
fn features_that_an_operator_set_count_until_the_node_reports_others_or_a_reload() {
    check(
        "node n1 h100:1 feature=ib
         node n2 h100:1
         features n2 available=ib,fast user=alice
         features n2 available=ib,fast active=slow
         features n2 available=ib,fast active=fast
         features n2 available=ib
         features n2 active=b!d
         submit user=alice gpus=1 time=60 constraint=fast
         submit user=alice gpus=1 time=60 constraint=ib&fast
         features n2 active=ib,fast
         submit user=alice gpus=1 time=60 constraint=ib&fast
         restart
         # It reports what it did: what was set counts on.
         n2 hello
         plan
         show
         submit user=alice gpus=1 time=60 constraint=fast
         reload
         submit user=alice gpus=1 time=60 constraint=fast
         features n1 available=fast active=fast
         n1 has h100:1 feature=ib,nvme
         submit user=alice gpus=1 time=60 constraint=fast
         submit user=alice gpus=1 time=60 constraint=nvme
         plan
         show",
        expect![[r#"
            refused: setting features of nodes is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            refused: n2: slow is to be active and is none of the available features: ib,fast. Name it there, too.
            refused: n2: fast is active and would be available no more. Say which are active, too: ActiveFeatures=ib
            refused: "b!d" is no name of a feature: letters, digits and _-.=:+/ make one, 128 at most.
            job 1
            refused: no node of partition "main" is left after --constraint, --exclude and --nodelist.
            job 2
            1 alice RUNNING 1-1 on n2[0]
            2 alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n2: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:47:40Z
            job 3
            refused: --constraint fast: no node of partition "main" has the feature "fast" (there are: ib).
            refused: --constraint fast: no node of partition "main" has the feature "fast" (there are: ib, nvme).
            job 4
            1 alice RUNNING 1-1 on n2[0]
            2 alice PENDING BadConstraints: needs 1 GPU and 1 CPU on one node; partition "main" has no such nodes
            3 alice PENDING BadConstraints: needs 1 GPU and 1 CPU on one node; partition "main" has no such nodes
            4 alice RUNNING 4-1 on n1[0]
        "#]],
    );
}
