//! Limits at submission: counted as jobs come and go, named with their value and the use.

use crate::ctl::tests::world::check;
use expect_test::expect;

#[test]
fn jobs_in_the_queue_are_counted_by_account_user_and_qos() {
    check(
        "node n1 h100:8
         account lab queue=6
         account vision parent=lab user_queue=3
         account nlp parent=lab users=alice,bob
         user nlp bob queue=1
         qos high user_queue=2
         submit user=alice account=vision time=60 gpus=1
         submit user=alice account=vision time=60 gpus=1 array=0-2
         submit user=alice account=vision time=60 gpus=1 array=0-1
         submit user=bob account=nlp time=60 array=0-1
         submit user=bob account=nlp time=60
         submit user=bob account=vision time=60
         submit user=alice account=nlp time=60
         submit user=carol account=vision time=60
         submit user=carol account=default time=60 qos=high
         submit user=carol account=default time=60 qos=high
         submit user=carol account=default time=60 qos=high
         update 7 user=carol account=vision
         plan
         cancel 3 user=alice
         n1 running 1-1
         n1 clean 1-1 0
         submit user=alice account=vision time=60
         update 7 user=carol account=vision
         restart
         submit user=alice account=vision time=60
         submit user=alice account=vision time=60
         submit user=alice account=vision time=60",
        expect![[r#"
            job 1
            refused: user alice in account vision may have 3 jobs in the queue and running; there are 1, and this would be 3 more. Wait until some have ended.
            job 2
            refused: user bob in account nlp may have 1 jobs in the queue and running; there are 0, and this would be 2 more. Wait until some have ended.
            job 4
            job 5
            job 6
            refused: account lab may have 6 jobs in the queue and running; there are 6, and this would be 1 more. Wait until some have ended.
            job 7
            job 8
            refused: user carol in QOS high may have 2 jobs in the queue and running; there are 2, and this would be 1 more. Wait until some have ended.
            refused: account lab may have 6 jobs in the queue and running; there are 6, and this would be 1 more. Wait until some have ended.
            job 9
            refused: job 7 is running: its account can only change while it is pending.
            refused: user alice in account vision may have 3 jobs in the queue and running; there are 3, and this would be 1 more. Wait until some have ended.
            refused: user alice in account vision may have 3 jobs in the queue and running; there are 3, and this would be 1 more. Wait until some have ended.
            refused: user alice in account vision may have 3 jobs in the queue and running; there are 3, and this would be 1 more. Wait until some have ended.
        "#]],
    );
}

#[test]
fn submissions_a_minute_and_sizes_of_arrays_are_limited() {
    check(
        "node n1 h100:8
         account vision user_minute=2 user_tasks=3
         submit user=alice account=vision time=60 array=0-3
         submit user=alice account=vision time=60 array=0-2
         wait 20
         submit user=alice account=vision time=60
         submit user=alice account=vision time=60
         submit user=bob account=vision time=60
         wait 39
         submit user=alice account=vision time=60
         wait 1
         submit user=alice account=vision time=60
         submit user=alice account=vision time=60",
        expect![[r#"
            refused: user alice in account vision may submit arrays of 3 tasks; this one has 4. Split it.
            job 1
            job 4
            refused: user alice in account vision may submit 2 times in a minute and has done so. Try again in 40 s; an array counts once.
            job 5
            refused: user alice in account vision may submit 2 times in a minute and has done so. Try again in 1 s; an array counts once.
            job 6
            refused: user alice in account vision may submit 2 times in a minute and has done so. Try again in 20 s; an array counts once.
        "#]],
    );
}

#[test]
fn what_no_limit_could_ever_let_start_is_refused_and_what_may_wait_is_not() {
    check(
        "node n1 h100:8
         node n2 a100:8
         account vision limit=4 gpus=h100:2
         submit user=alice account=vision time=60 gpus=8
         submit user=alice account=vision time=60 gpus=h100:4
         submit user=alice account=vision time=60 gpus=h100:4|a100:4
         submit user=alice account=vision time=60 gpus=h100:2
         submit user=alice account=vision time=60 gpus=h100:2
         plan
         show",
        expect![[r#"
            refused: account vision may hold 4 GPUs and holds 0; this job needs 8, so it could never start (AssocGrpGRES).
            refused: account vision may hold 2 h100 and holds 0; this job needs 4, so it could never start (AssocGrpGRES).
            job 1
            job 2
            job 3
            1 alice RUNNING 1-1 on n2[0,1,2,3]
            2 alice PENDING AssocGrpGRES: account vision may hold 4 GPUs and holds 4; this job needs 2
            3 alice PENDING AssocGrpGRES: account vision may hold 4 GPUs and holds 4; this job needs 2
        "#]],
    );
}

#[test]
fn licences_reservations_checkpoints_and_priorities_are_checked() {
    check(
        "node n1 h100:8
         licence matlab=2
         submit user=alice time=60 licences=matlab:3
         submit user=alice time=60 licences=ansys:1
         submit user=alice time=60 licences=matlab:2
         submit user=alice time=60 licences=matlab:1
         plan
         show
         update 2 user=alice licences=matlab:9
         reservation maint maintenance at=9000 for=600 nodes=n1
         reservation course at=9000 for=600 nodes=n1 users=alice
         reservation course at=90 for=600 nodes=n1 users=alice
         submit user=alice time=60 reservation=corse
         submit user=bob time=60 reservation=course
         submit user=alice time=60 reservation=maint
         submit user=alice time=60 reservation=course
         submit user=alice time=60 checkpoint=USR1@7200
         submit user=alice time=60 priority=5
         update 2 user=alice priority=5
         update 2 priority=5
         show",
        expect![[r#"
            refused: --licenses matlab:3: this cluster has 2 in all.
            refused: --licenses ansys: there is no such licence. There are: matlab.
            job 1
            job 2
            1 alice RUNNING 1-1 on n1[]
            2 alice PENDING Licenses: needs 1 of licence "matlab"; 0 of 2 are free for as long
            refused: --licenses matlab:9: this cluster has 2 in all.
            refused: --reservation corse: there is no such reservation. Did you mean "course"?
            refused: --reservation course: it is for alice; this job is of bob in account default.
            refused: --reservation maint: it is maintenance, not for jobs; this job is of alice in account default.
            job 3
            refused: --checkpoint asks for 7200 s of grace; this cluster gives 1800 s at most.
            refused: only operators may set a --priority.
            refused: only operators may set a priority.
            1 alice RUNNING 1-1 on n1[]
            2 alice PENDING Licenses: needs 1 of licence "matlab"; 0 of 2 are free for as long
            3 alice PENDING None: 
        "#]],
    );
}
