//! Accounts, users, QOS: which edits are allowed, which have faults, and which jobs may name them.

use crate::ctl::tests::world::check;
use expect_test::expect;

#[test]
fn edits_that_make_no_sense_are_refused_with_what_is_wrong() {
    check(
        "account lab guaranteed=8
         account vision parent=lab guaranteed=6
         account nlp parent=lab guaranteed=4
         account nlp parent=lab guaranteed=2
         account lab guaranteed=7
         account lab parent=vision
         account x parent=nowhere
         account x default_qos=gold
         account x guaranteed=8 limit=4
         account top limit=4
         account x parent=top guaranteed=8
         account top gone
         account root
         account bad/name
         qos high preempt=low
         qos low
         qos high preempt=low
         qos high preempt=high
         qos low gone
         qos none gone
         account none gone
         account lab gone
         user none alice
         user vision alice gone
         policy",
        expect![[r#"
            refused: the accounts below lab would be guaranteed 10 GPUs together (nlp 4, vision 6), and it has 8. Raise its guarantee first.
            refused: the accounts below lab would be guaranteed 8 GPUs together (nlp 2, vision 6), and it has 7. Raise its guarantee first.
            refused: account lab would be below itself.
            refused: account x: its parent "nowhere" does not exist.
            refused: account x: QOS "gold" does not exist.
            refused: account x would be guaranteed 8 GPUs and limited to 4.
            refused: account x would be guaranteed 8 GPUs, and top above it is limited to 4.
            refused: root stands above all accounts and cannot be one.
            refused: "bad/name" is no name of a account: use up to 64 letters, digits, '_', '-' and '.'.
            refused: QOS high: QOS "low" does not exist.
            refused: QOS high cannot preempt itself.
            refused: QOS high: QOS "low" does not exist.
            refused: there is no QOS "none".
            refused: there is no account "none".
            refused: account nlp: its parent "lab" does not exist.
            refused: there is no account "none".
            refused: there is no user of that account "alice".
            account lab below root: 
            account nlp below lab: 
            account vision below lab: 
            qos high
            qos low
        "#]],
    );
}

#[test]
fn a_tree_has_an_end() {
    let mut story = String::from("account a0\n");
    for depth in 1..40 {
        story.push_str(&format!("account a{depth} parent=a{}\n", depth - 1));
    }
    check(
        &story,
        expect![[r#"
        refused: account a32 would be 33 deep, and 32 is the most.
        refused: account a33: its parent "a32" does not exist.
        refused: account a34: its parent "a33" does not exist.
        refused: account a35: its parent "a34" does not exist.
        refused: account a36: its parent "a35" does not exist.
        refused: account a37: its parent "a36" does not exist.
        refused: account a38: its parent "a37" does not exist.
        refused: account a39: its parent "a38" does not exist.
    "#]],
    );
}

#[test]
fn operators_edit_all_coordinators_below_them_users_their_default() {
    check(
        "account lab coordinators=carol
         account vision parent=lab users=alice,bob guaranteed=4
         account nlp users=alice
         account other
         account vision by=bob parent=lab users=alice,bob,dave guaranteed=4
         user vision dave by=carol queue=4
         user vision alice by=carol
         user nlp alice by=carol queue=9
         account sub by=carol parent=vision
         account sub by=carol parent=nlp
         account vision by=carol parent=lab users=alice guaranteed=8
         account lab by=carol coordinators=carol users=carol
         account lab by=carol coordinators=carol guaranteed=8
         account other gone by=carol
         account sub gone by=carol
         qos high by=carol
         user vision alice default by=alice
         user nlp alice default by=alice
         user nlp alice by=alice
         user nlp alice default queue=99 by=alice
         user vision dave default by=alice
         user vision dave gone by=carol
         policy",
        expect![[r#"
            refused: editing accounts, QOS and reservations is for operators; you are bob. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            refused: carol coordinates lab: that is for its users and their limits, and for accounts below it. The rest is for operators.
            refused: carol coordinates lab: that is for its users and their limits, and for accounts below it. The rest is for operators.
            refused: carol coordinates lab: that is for its users and their limits, and for accounts below it. The rest is for operators.
            refused: carol coordinates lab: that is for its users and their limits, and for accounts below it. The rest is for operators.
            refused: carol coordinates lab: that is for its users and their limits, and for accounts below it. The rest is for operators.
            refused: editing accounts, QOS and reservations is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            refused: editing accounts, QOS and reservations is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            refused: editing accounts, QOS and reservations is for operators; you are alice. On the controller's host root is one, and the users listed as `operators` in gpuctld.toml.
            refused: there is no user of that account "dave".
            account lab below root: carol
            account nlp below root: alice*
            account other below root: 
            account vision below lab: alice
        "#]],
    );
}

#[test]
fn coordinators_look_after_the_jobs_of_their_accounts() {
    check(
        "account lab coordinators=carol
         account vision parent=lab
         account nlp
         submit user=alice account=vision time=60
         submit user=alice account=nlp time=60
         hold 1 2 user=carol
         release 1 user=alice
         update 1 user=carol nice=-5
         update 1 user=carol time=30
         cancel 1 2 user=carol
         cancel 2 user=bob
         show",
        expect![[r#"
            job 1
              note: no node of partition "main" has reported yet: the job waits
            job 2
              note: no node of partition "main" has reported yet: the job waits
            refused: job 2 belongs to alice; you are carol. Ask them or an operator.
            refused: job 1 is held by carol (because); only they or an operator can release it.
            refused: only operators may give a job a negative nice value.
            refused: job 2 belongs to alice; you are carol. Ask them or an operator.
            refused: job 2 belongs to alice; you are bob. Ask them or an operator.
            1 alice CANCELLED 0:0 (carol) HELD admin:carol (because)
            2 alice PENDING None: 
        "#]],
    );
}

#[test]
fn what_a_file_says_is_changed_in_the_file() {
    check(
        "account old
         file vision
         account vision users=alice
         user vision alice
         account vision gone
         account old gone
         policy
         restart
         policy",
        expect![[r#"
            refused: account vision is written in the controller's configuration: change it there, and run `gadm reload`.
            refused: account vision is written in the controller's configuration: change it there, and run `gadm reload`.
            refused: account vision is written in the controller's configuration: change it there, and run `gadm reload`.
            account vision below root: 
            account vision below root: 
        "#]],
    );
}

#[test]
fn accounts_with_jobs_or_use_are_closed_not_removed() {
    check(
        "node n1 h100:1
         account vision
         account nlp
         submit user=alice gpus=1 time=60 account=vision
         account vision gone
         plan
         n1 running 1-1
         wait 20
         n1 clean 1-1 0
         wait 100
         account vision gone
         account nlp gone
         account vision closed
         submit user=alice account=vision time=60
         submit user=alice time=60
         policy",
        expect![[r#"
            job 1
            refused: account vision cannot be removed: it has 1 jobs that are not over. Close it instead: it takes no new jobs then.
            refused: account vision cannot be removed: its use is in the books. Close it instead: it takes no new jobs then.
            refused: account vision is closed. alice may use: default.
            job 2
            account vision below root:  closed
        "#]],
    );
}

#[test]
fn jobs_are_charged_to_accounts_that_take_them() {
    check(
        "submit user=alice account=anything time=60
         account lab
         account vision parent=lab users=alice
         account nlp users=alice,bob
         account default
         submit user=alice account=visoin time=60
         submit user=bob account=vision time=60
         submit user=bob time=60
         submit user=alice time=60
         user nlp alice default
         submit user=alice time=60
         account default users=carol
         submit user=alice account=default time=60
         submit user=dave time=60
         submit user=dave account=lab time=60
         account lab closed
         submit user=alice account=vision time=60
         update 1 user=alice account=nowhere
         update 1 user=alice account=nlp
         update 1 user=root account=default",
        expect![[r#"
            job 1
              note: no node of partition "main" has reported yet: the job waits
            refused: there is no account "visoin". Did you mean "vision"? alice may use: default, lab, nlp, vision.
            refused: bob is not in account vision. bob may use: default, lab, nlp.
            job 2
              note: no node of partition "main" has reported yet: the job waits
            job 3
              note: no node of partition "main" has reported yet: the job waits
            job 4
              note: no node of partition "main" has reported yet: the job waits
            refused: alice is not in account default. alice may use: lab, nlp, vision.
            refused: dave has no default account: choose with -A. dave may use: lab.
            job 5
              note: no node of partition "main" has reported yet: the job waits
            refused: account lab is closed. alice may use: nlp.
            refused: there is no account "nowhere". alice may use: nlp.
            refused: alice is not in account default. alice may use: nlp.
        "#]],
    );
}

#[test]
fn qos_come_from_the_account_the_partition_or_are_normal() {
    check(
        "qos high
         qos low max_time=600 max_gpus=2
         account vision default_qos=low allow_qos=low,high
         node n1 h100:8
         submit user=alice time=60 qos=hihg
         submit user=alice time=60 account=vision qos=normal
         submit user=alice account=vision time=60 gpus=4
         submit user=alice account=vision time=1000
         submit user=alice account=vision gpus=2
         submit user=alice time=60 qos=normal
         update 1 user=alice qos=normal
         update 1 user=alice qos=high
         qos high gone
         show",
        expect![[r#"
            refused: there is no QOS "hihg". Did you mean "high"? There are: high, low.
            refused: account vision may use the QOS low, high, not normal. Choose with --qos.
            refused: QOS low allows 2 GPUs a job; this job needs 4, so it could never start (QOSMaxGRESPerJob).
            refused: QOS low allows 10 min a job; this job asks for 1000 s, so it could never start (QOSMaxWallDurationPerJobLimit).
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
            refused: account vision may use the QOS low, high, not normal. Choose with --qos.
            refused: QOS high has 1 jobs that are not over. Change theirs first.
            1 alice PENDING None: 
            2 alice PENDING None: 
        "#]],
    );
}

#[test]
fn a_job_without_gpus_starts_beside_runs_above_a_newer_limit() {
    check(
        "node n1 h100:4
         account nlp users=carol
         submit user=carol account=nlp gpus=4 mem=1G time=600
         plan
         wait 5
         account nlp users=carol gpus=h100:2
         wait 5
         submit user=carol account=nlp mem=1G time=600
         plan
         show",
        expect![[r#"
            job 1
            job 2
            1 carol RUNNING 1-1 on n1[0,1,2,3]
            2 carol RUNNING 2-1 on n1[]
        "#]],
    );
}

#[test]
fn an_account_stays_its_users_when_the_last_of_them_is_gone() {
    check(
        "node n1 h100:1
         account lab
         submit user=bob account=lab
         user lab ada
         submit user=bob account=lab
         user lab ada gone
         submit user=bob account=lab
         submit user=ada account=lab
         account lab
         submit user=bob account=lab",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: bob is not in account lab. bob may use: default.
            refused: bob is not in account lab. bob may use: default.
            refused: ada is not in account lab. ada may use: default.
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
        "#]],
    );
}
