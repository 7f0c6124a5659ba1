//! Lost nodes, lost disks, late reports, old backups.

use super::world::check;
use expect_test::expect;

#[test]
fn a_silent_node_fails_its_jobs_and_gets_nothing_until_it_reports() {
    check(
        "node n1 h100:1
         node n2 h100:2
         submit user=alice gpus=1 nodelist=n1
         submit user=alice gpus=1
         plan
         n1 running 1-1
         n2 running 2-1
         n1 gone
         wait 299
         show
         wait 1
         show
         wait 2
         plan
         show
         nodes
         # It comes back with the run still there: that is stopped before anything new starts.
         n1 hello 1-1=running
         plan
         n1 told
         nodes
         n1 stopped 1-1
         wait 60
         plan
         show
         nodes",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice RUNNING 1-1 on n1[0]
            2 alice RUNNING 2-1 on n2[0]
            1 alice PENDING None: 
            2 alice RUNNING 2-1 on n2[0]
            1 alice PENDING ReqNodeNotAvail: nodes it needs are not available (n1: down)
            2 alice RUNNING 2-1 on n2[0]
            n1 DOWN 0 GPUs 63 CPUs free
            n2 MIXED 1 GPUs 63 CPUs free
            n1 is told: 1-1 stop (Fenced)
            n1 ALLOCATED 0 GPUs 63 CPUs free
            n2 MIXED 1 GPUs 63 CPUs free
            1 alice RUNNING 1-2 on n1[0]
            2 alice RUNNING 2-1 on n2[0]
            n1 ALLOCATED 0 GPUs 63 CPUs free
            n2 MIXED 1 GPUs 63 CPUs free
        "#]],
    );
}

#[test]
fn a_forfeited_run_the_node_never_heard_of_gives_its_share_back() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1
         plan
         n1 gone
         wait 300
         n1 hello
         n1 told
         nodes
         n1 stopped 1-1
         nodes",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 is told: 1-1 stop (Fenced)
            n1 ALLOCATED 0 GPUs 63 CPUs free
            n1 IDLE 1 GPUs 64 CPUs free
        "#]],
    );
}

#[test]
fn with_lost_node_wait_the_job_stays_until_the_node_speaks_or_is_declared_down() {
    check(
        "config lost_node=wait
         node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=1 nodelist=n1
         submit user=alice gpus=1 nodelist=n2
         plan
         n1 running 1-1
         n2 running 2-1
         n1 gone
         n2 gone
         wait 1000
         show
         nodes
         down n1 power supply is dead
         n2 hello 2-1=running
         show
         n2 clean 2-1 0
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice RUNNING 1-1 on n1[0]
            2 alice RUNNING 2-1 on n2[0]
            n1 DOWN 0 GPUs 63 CPUs free
            n2 DOWN 0 GPUs 63 CPUs free
            1 alice PENDING None: 
            2 alice RUNNING 2-1 on n2[0]
            1 alice PENDING None: 
            2 alice COMPLETED 0:0
        "#]],
    );
}

#[test]
fn a_new_boot_id_or_spool_id_loses_what_was_accepted_under_the_old() {
    check(
        "node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=1
         submit user=alice gpus=1 requeue=no
         plan
         n1 running 1-1
         n2 running 2-1
         n1 hello boot=b2
         n2 hello spool=s2
         show
         nodes",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice PENDING None: 
            2 alice NODE_FAIL 0:0 (the node lost its spool directory)
            n1 IDLE 1 GPUs 64 CPUs free
            n2 IDLE 1 GPUs 64 CPUs free
        "#]],
    );
}

#[test]
fn a_hello_that_omits_an_accepted_run_ends_it_and_an_unheard_one_is_sent_again() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1
         submit user=alice gpus=1
         plan
         n1 accepted 1-1
         n1 hello
         show
         n1 told",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice PENDING None: 
            2 alice RUNNING 2-1 on n1[1]
            n1 is told: 2-1 Run
        "#]],
    );
}

#[test]
fn a_cancelled_job_stays_cancelled_when_its_node_is_lost() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1
         submit user=alice gpus=1
         plan
         n1 running 1-1
         n1 running 2-1
         n1 gone
         cancel 1 user=alice
         wait 300
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice CANCELLED 0:0 (alice)
            2 alice PENDING None: 
        "#]],
    );
}

#[test]
fn late_reports_of_a_forgotten_job_free_the_share_and_change_nothing_else() {
    check(
        "config age=10
         node n1 h100:1
         submit user=alice gpus=1 requeue=no
         plan
         n1 accepted 1-1
         cancel 1
         n1 gone
         wait 300
         show
         wait 20
         show
         n1 hello 1-1=running
         n1 clean 1-1 0
         show
         nodes",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice CANCELLED 0:0 (root)
            n1 IDLE 1 GPUs 64 CPUs free
        "#]],
    );
}

#[test]
fn late_reports_of_an_old_attempt_do_not_touch_the_new_one() {
    check(
        "node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=1
         plan
         n1 running 1-1
         n1 gone
         wait 302
         plan
         n2 running 1-2
         n1 hello 1-1=running
         n1 clean 1-1 0
         show
         nodes",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice RUNNING 1-2 on n2[0]
            n1 IDLE 1 GPUs 64 CPUs free
            n2 ALLOCATED 0 GPUs 63 CPUs free
        "#]],
    );
}

#[test]
fn a_lost_gpu_costs_one_gpu() {
    check(
        "node n1 h100:8
         n1 gpus 7
         nodes
         submit user=alice gpus=7
         submit user=alice gpus=8
         plan
         show",
        expect![[r#"
            n1 IDLE 7 GPUs 64 CPUs free
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice RUNNING 1-1 on n1[0,1,2,3,4,5,6]
            2 alice PENDING ReqNodeNotAvail: nodes it needs are not available (n1: gpu7 is missing)
        "#]],
    );
}

#[test]
fn a_restart_loses_nothing_and_counts_silence_from_its_own_start() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1
         submit user=alice gpus=1 array=0-3
         plan
         n1 running 1-1
         n1 gone
         wait 200
         restart
         wait 200
         show
         n1 hello 1-1=running 2-1=running
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            2_[1-3] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 62 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z
            1 alice RUNNING 1-1 on n1[0]
            2_0 alice RUNNING 2-1 on n1[1]
            2_[1-3] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 62 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z
            1 alice RUNNING 1-1 on n1[0]
            2_0 alice RUNNING 2-1 on n1[1]
        "#]],
    );
}

#[test]
fn after_a_restore_no_old_run_is_sent_or_numbered_again() {
    check(
        "node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=1
         submit user=alice gpus=1
         submit user=alice gpus=1
         plan
         n1 running 1-1
         backup
         # Since then run 2-1 ended, job 3 started, and job 4 came.
         n2 running 2-1
         n2 clean 2-1 0
         submit user=bob
         plan
         restore
         submit user=alice
         # n2 forgot 2-1 and holds 3-1, which the backup does not know.
         n1 hello fence=1/9 1-1=running
         n2 hello fence=1/12 3-1=running
         n2 told
         n2 stopped 2-1
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 3
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 4
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 1000004
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n2 is told: 2-1 stop (Requeued)
            1 alice RUNNING 1-1 on n1[0]
            2 alice RUNNING 2-1001 on n2[0]
            3 alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n2: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z
            1000004 alice PENDING Priority: needs 1 CPU on one node; jobs of higher priority wait for such resources too
        "#]],
    );
}

#[test]
fn the_same_backup_restored_twice_is_still_obeyed() {
    check(
        "node n1 h100:1
         backup
         restore
         n1 hello fence=2/9
         restore
         n1 hello fence=2/20
         submit user=alice
         plan
         show",
        expect![[r#"
            job 2000001
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            2000001 alice RUNNING 2000001-2001 on n1[]
        "#]],
    );
}

#[test]
fn a_dead_machine_is_removed_with_what_was_written_off() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1
         plan
         n1 running 1-1
         remove n1
         n1 gone
         remove n1
         down n1 burnt
         remove n1
         show
         nodes
         remove n1",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: n1 is connected and holds 1 runs. Stop its gpud and declare it down first.
            refused: n1 is not connected and holds 1 runs. Stop its gpud and declare it down first.
            1 alice PENDING None: 
            refused: no node number 99
        "#]],
    );
}

#[test]
fn a_job_that_ended_long_ago_is_not_forgotten_before_it_is_written() {
    check(
        "config age=30
         node n1 h100:1
         submit user=alice gpus=1 requeue=no
         plan
         n1 running 1-1
         n1 stops 1-1
         n1 gone
         # The share is written off in the very input that meets the deadline for forgetting.
         wait 300
         show
         wait 31
         show
         nodes",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice CANCELLED 0:15
            n1 DOWN 0 GPUs 63 CPUs free
        "#]],
    );
}
