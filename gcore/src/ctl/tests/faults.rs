//! Lost nodes, lost disks, late reports, old backups.

use crate::ctl::tests::world::check;
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
            job 1000001
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1000001 alice RUNNING 1000001-2001 on n1[]
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

#[test]
fn where_there_is_a_fence_program_a_lost_node_is_off_before_its_job_starts_elsewhere() {
    check(
        "config fence=yes
         node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=1 nodelist=n1 time=60
         submit user=alice gpus=1 time=60
         plan
         n1 running 1-1
         n2 running 2-1
         n1 gone
         wait 300
         show
         nodes
         # It fails, twice; an answer to a call that is over is none.
         n1 fenced no route to the BMC
         n1 fenced number=1
         nodes
         wait 5
         nodes
         n1 fenced still no route
         wait 9
         nodes
         wait 1
         n1 fenced
         wait 4
         plan
         show
         nodes",
        expect![[r#"
            job 1
            job 2
            1 alice RUNNING 1-1 on n1[0]
            2 alice RUNNING 2-1 on n2[0]
            n1 DOWN 0 GPUs 63 CPUs free LOST: the node was silent for 300 s; its jobs wait until fence_program has powered it off (call 1)
            n2 ALLOCATED 0 GPUs 63 CPUs free
            n1 DOWN 0 GPUs 63 CPUs free LOST: the node was silent for 300 s; its jobs wait until it is powered off: no route to the BMC (call 1); again at 1970-01-12T13:51:45Z
            n2 ALLOCATED 0 GPUs 63 CPUs free
            n1 DOWN 0 GPUs 63 CPUs free LOST: the node was silent for 300 s; its jobs wait until fence_program has powered it off (call 2)
            n2 ALLOCATED 0 GPUs 63 CPUs free
            n1 DOWN 0 GPUs 63 CPUs free LOST: the node was silent for 300 s; its jobs wait until it is powered off: still no route (call 2); again at 1970-01-12T13:51:55Z
            n2 ALLOCATED 0 GPUs 63 CPUs free
            1 alice PENDING ReqNodeNotAvail: nodes it needs are not available (n1: down)
            2 alice RUNNING 2-1 on n2[0]
            n1 DOWN 0 GPUs 63 CPUs free
            n2 ALLOCATED 0 GPUs 63 CPUs free
        "#]],
    );
}

#[test]
fn a_node_that_comes_back_before_it_is_powered_off_keeps_its_job() {
    check(
        "config fence=yes
         node n1 h100:1
         submit user=alice gpus=1 time=60
         plan
         n1 running 1-1
         n1 gone
         wait 300
         n1 fenced no
         n1 hello 1-1=running
         nodes
         show
         # A late success is of no account: it is silent again first.
         n1 gone
         wait 300
         n1 fenced number=1
         show
         n1 fenced
         show",
        expect![[r#"
            job 1
            n1 ALLOCATED 0 GPUs 63 CPUs free
            1 alice RUNNING 1-1 on n1[0]
            1 alice RUNNING 1-1 on n1[0]
            1 alice PENDING None: 
        "#]],
    );
}

#[test]
fn a_call_of_the_fence_program_outlives_the_controller_and_leaves_a_node_time_to_report() {
    check(
        "config fence=yes
         node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=1 nodelist=n1 time=60
         plan
         n1 running 1-1
         n1 gone
         wait 300
         nodes
         wait 100
         restart
         n2 hello
         wait 299
         nodes
         wait 1
         n1 fenced
         show
         # Without a program nothing is waited for.
         submit user=bob gpus=1 nodelist=n2 time=60
         plan
         n2 running 2-1
         n2 gone
         wait 4000
         n2 fenced hangs
         show
         config fence=no
         wait 1
         show",
        expect![[r#"
            job 1
            n1 DOWN 0 GPUs 63 CPUs free LOST: the node was silent for 300 s; its jobs wait until fence_program has powered it off (call 1)
            n2 IDLE 1 GPUs 64 CPUs free
            n1 DOWN 0 GPUs 63 CPUs free LOST: the node was silent for 300 s; its jobs wait until fence_program has powered it off (call 1)
            n2 IDLE 1 GPUs 64 CPUs free
            1 alice PENDING None: 
            job 2
            1 alice PENDING BeginTime: its last run failed with its node; tried again at 1970-01-12T13:58:22Z
            2 bob RUNNING 2-1 on n2[0]
            1 alice PENDING BeginTime: its last run failed with its node; tried again at 1970-01-12T13:58:22Z
            2 bob PENDING None: 
        "#]],
    );
}

#[test]
fn an_administrator_may_say_that_a_node_is_off_or_have_it_fenced_at_once() {
    check(
        "config fence=yes lost_node=wait
         node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=1 nodelist=n1 time=60
         submit user=alice gpus=1 nodelist=n2 time=60
         plan
         n1 running 1-1
         n2 running 2-1
         n1 gone
         n2 gone
         wait 1000
         nodes
         down n1 the fan is silent
         nodes
         n1 fenced no
         show
         down n1 fenced=yes pulled the plug
         down n2 fenced=yes pulled the plug
         show
         nodes
         config fence=no
         down n1 fenced=yes",
        expect![[r#"
            job 1
            job 2
            n1 DOWN 0 GPUs 63 CPUs free
            n2 DOWN 0 GPUs 63 CPUs free
            n1 DOWN 0 GPUs 63 CPUs free LOST: declared down by root: the fan is silent; its jobs wait until fence_program has powered it off (call 1)
            n2 DOWN 0 GPUs 63 CPUs free
            1 alice RUNNING 1-1 on n1[0]
            2 alice RUNNING 2-1 on n2[0]
            1 alice PENDING None: 
            2 alice PENDING None: 
            n1 DOWN 0 GPUs 63 CPUs free
            n2 DOWN 0 GPUs 63 CPUs free
            refused: there is no fence_program in gpuctld.toml, so nothing waits for it: leave --fenced away.
        "#]],
    );
}

#[test]
fn silence_of_many_nodes_does_not_power_all_of_them_off() {
    check(
        "config fence=yes
         node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=1 nodelist=n1 time=60
         submit user=alice gpus=1 nodelist=n2 time=60
         plan
         n1 running 1-1
         n2 running 2-1
         n1 gone
         n2 gone
         wait 300
         n1 fenced
         nodes
         show
         down n2 the switch is well
         nodes
         n2 fenced
         show",
        expect![[r#"
            job 1
            job 2
            n1 DOWN 0 GPUs 63 CPUs free
            n2 DOWN 0 GPUs 63 CPUs free LOST: the node was silent for 300 s; its jobs wait until it is powered off: too many nodes of its partition were fenced or drained within the hour; the network may be at fault. `gadm node down` fences this one now; again at 1970-01-12T13:56:40Z
            1 alice PENDING None: 
            2 alice RUNNING 2-1 on n2[0]
            n1 DOWN 0 GPUs 63 CPUs free
            n2 DOWN 0 GPUs 63 CPUs free LOST: declared down by root: the switch is well; its jobs wait until fence_program has powered it off (call 1)
            1 alice PENDING None: 
            2 alice PENDING None: 
        "#]],
    );
}

#[test]
fn only_login_nodes_are_marked_admin_and_the_newest_token_counts() {
    check(
        "token bad name=c1 admin
         token first name=l1 login admin
         join first whatever
         token second name=l1 login
         join second whatever",
        expect![[r#"
            refused: an admin certificate is for login nodes, where people work: users' jobs run on compute nodes. Add --role login, or leave --admin away.
            joined as l1, node 1, admin
            joined as l1, node 1
        "#]],
    );
}
