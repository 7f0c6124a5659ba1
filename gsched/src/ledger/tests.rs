use super::*;
use crate::tests::world::{NOW, take, world};
use expect_test::{Expect, expect};
use gmodel::NodeId;
use gmodel::policy::GpuAmounts;
use gmodel::run::NodeShare;

/// For each job: its class, or why not, for as many h100 as it asks for.
fn check(text: &str, want: Expect) {
    let snapshot = world(text);
    let ledger = Ledger::new(&snapshot);
    let answers = snapshot.pending.iter().map(|job| {
        let gpus = gpolicy::priority::gpus_asked(&job.spec.request).1 / 1000;
        let mut take = take("h100", gpus);
        take.nodes = job.spec.request.nodes_min;
        match ledger.check_but(job, &take, |_| false) {
            Ok(class) => format!("{}: {class:?}\n", job.id),
            Err(no) => format!("{}: {}: {}\n", job.id, no.reason.code, no.reason.text),
        }
    });
    want.assert_eq(&answers.collect::<String>());
}

#[test]
fn without_a_policy_no_job_is_limited_and_nothing_is_borrowed() {
    check(
        "node n1 h100:8\n job 1 a ann 8",
        expect![[r#"
        1: None
    "#]],
    );
}

#[test]
fn each_limit_names_itself_its_value_and_the_use() {
    check(
        "node n1 h100:8
         node n2 h100:8
         account lab limit=12
         account vision under=lab grpjobs=2
         account nlp under=lab usergpus=4
         account bio grpcpus=4 grpnodes=1
         account geo grphours=10
         qos high usergpus=h100:2
         qos low grpgpus=1 accountjobs=1
         run 1 vision ann 4 on=n1 limit=3600
         run 2 vision ann 2 on=n1 limit=3600
         run 3 nlp bob 3 on=n2 limit=3600
         run 4 bio eve 1 on=n2 limit=3600
         run 5 geo kim 1 on=n2 ago=3600 limit=36000
         run 6 other ann 1 on=n2 qos=high
         run 7 other pat 0 on=n2 qos=low
         job 10 vision cat 1
         job 11 nlp bob 2
         job 12 nlp cat 4
         job 13 bio eve 4
         job 14 bio eve 1
         job 15 geo kim 1 limit=7200
         job 16 geo kim 1 limit=3600
         job 17 geo kim 1
         job 18 other ann 2 qos=high
         job 19 other cat 2 qos=high
         job 20 other cat 0 qos=low
         job 21 mine cat 2 qos=low",
        expect![[r#"
            10: AssocGrpJobsLimit: account vision may run 2 jobs at once and runs 2
            11: AssocMaxGRESPerUser: user bob in account nlp may hold 4 GPUs and holds 3; this job needs 2
            12: AssocGrpGRES: account lab may hold 12 GPUs and holds 9; this job needs 4
            13: AssocGrpCpuLimit: account bio may hold 4 CPUs and holds 1; this job needs 4
            14: AssocGrpNodeLimit: account bio may hold 1 node and holds 1; this job needs 1
            15: AssocGrpGRESRunMinutes: account geo may run jobs whose time limits add up to 10 GPU-hours; they add up to 9 and this job adds 2
            16: None
            17: AssocGrpGRESRunMinutes: account geo may run jobs whose time limits add up to 10 GPU-hours; they add up to 9 and this job has no time limit
            18: QOSMaxGRESPerUser: user ann in QOS high may hold 2 h100 and holds 1; this job needs 2
            19: None
            20: MaxJobsPerAccount: account other in QOS low may run 1 job at once and runs 1
            21: QOSGrpGRES: QOS low may hold 1 GPU and holds 0; this job needs 2
        "#]],
    );
}

#[test]
fn a_users_own_limits_replace_those_of_each_user() {
    check(
        "node n1 h100:8
         account a usergpus=2 user=ann owngpus=4
         run 1 a ann 2 on=n1
         run 2 a bob 2 on=n1
         job 3 a ann 2
         job 4 a ann 3
         job 5 a bob 1",
        expect![[r#"
            3: None
            4: AssocMaxGRESPerUser: user ann in account a may hold 4 GPUs and holds 2; this job needs 3
            5: AssocMaxGRESPerUser: user bob in account a may hold 2 GPUs and holds 2; this job needs 1
        "#]],
    );
}

#[test]
fn a_guarantee_holds_at_every_level_and_what_is_promised_to_one_child_is_not_anothers() {
    check(
        "node n1 h100:8
         node n2 h100:8
         account lab g=12
         account vision under=lab g=8
         account nlp under=lab
         run 1 nlp bob 2 on=n1
         job 10 vision ann 8
         job 11 nlp bob 2
         job 12 nlp bob 3
         job 13 free eve 1
         job 14 free eve 0
         job 15 lab eve 2
         job 16 vision ann 9",
        expect![[r#"
            10: Some(Guaranteed)
            11: Some(Guaranteed)
            12: Some(Borrowed)
            13: Some(Borrowed)
            14: Some(Guaranteed)
            15: Some(Guaranteed)
            16: Some(Borrowed)
        "#]],
    );
}

#[test]
fn a_guarantee_of_a_type_is_none_of_others() {
    check(
        "node n1 h100:8
         account a g=a100:8
         account b g=h100:2
         job 1 a ann 1
         job 2 b ann 2
         job 3 b ann 3",
        expect![[r#"
            1: Some(Borrowed)
            2: Some(Guaranteed)
            3: Some(Borrowed)
        "#]],
    );
}

#[test]
fn a_job_that_may_not_borrow_waits_for_the_guarantee() {
    check(
        "node n1 h100:8
         account a g=2
         run 1 a ann 2 on=n1
         job 2 a ann 1 noborrow
         job 3 a ann 1 norequeue
         job 4 a ann 1 norequeue borrow
         job 5 b bob 1 noborrow",
        expect![[r#"
            2: Quota: account a is guaranteed 2 GPUs and uses 2 of them, and this job needs 1 (--no-borrow)
            3: Quota: account a is guaranteed 2 GPUs and uses 2 of them, and this job needs 1 (a job that may not be requeued does not borrow unless it says --borrow)
            4: Some(Borrowed)
            5: Quota: account b is guaranteed no GPUs, and this job needs 1 (--no-borrow)
        "#]],
    );
}

#[test]
fn lenders_keep_what_they_do_not_lend() {
    check(
        "node n1 h100:8
         account a g=6 lend=2
         run 1 a ann 1 on=n1
         job 2 b bob 3
         job 3 b bob 5
         job 4 a ann 5
         job 5 a ann 6",
        expect![[r#"
            2: Some(Borrowed)
            3: Headroom: 7 GPUs are idle and accounts keep 3 of them by their lending limits; this job would borrow 5
            4: Some(Guaranteed)
            5: Some(Borrowed)
        "#]],
    );
}

#[test]
fn headroom_is_for_the_qos_that_may_use_it_and_for_guaranteed_demand() {
    check(
        "node n1 h100:8
         partition train nodes=n1 headroom=4
         qos urgent headroom=0
         account a g=8
         job 1 b bob 4 partition=train
         job 2 b bob 5 partition=train
         job 3 b bob 8 partition=train qos=urgent
         job 4 a ann 8 partition=train
         job 5 b bob 5",
        expect![[r#"
            1: Some(Borrowed)
            2: Headroom: partition train keeps 4 GPUs idle for urgent work: 8 are idle and this job needs 5
            3: Some(Borrowed)
            4: Some(Guaranteed)
            5: Headroom: partition train keeps 4 GPUs idle for urgent work: 8 are idle and this job needs 5
        "#]],
    );
    check(
        "node n1 h100:8
         partition train nodes=n1 headroom=1
         run 1 b bob 7 on=n1
         job 2 b bob 1 partition=train",
        expect![[r#"
            2: Headroom: partition train keeps 1 GPU idle for urgent work: 1 is idle and this job needs 1
        "#]],
    );
}

#[test]
fn headroom_of_a_qos_is_kept_from_all_others() {
    check(
        "node n1 h100:8
         qos urgent headroom=2
         job 1 b bob 6
         job 2 b bob 7
         job 3 b bob 8 qos=urgent",
        expect![[r#"
            1: None
            2: Headroom: QOS urgent keeps 2 GPUs idle for urgent work: 8 are idle and this job needs 7
            3: None
        "#]],
    );
}

#[test]
fn licences_are_counted_and_free_again_when_a_run_is_over() {
    let text = "node n1 h100:8
         licence matlab 3
         run 1 a ann 1 on=n1 licence=matlab:2
         job 2 a ann 1 licence=matlab:1
         job 3 a ann 1 licence=matlab:2
         job 4 a ann 1 licence=ansys:1";
    check(
        text,
        expect![[r#"
        2: None
        3: Licenses: licence matlab: there are 3, 2 are in use, this job needs 2
        4: Licenses: licence ansys is not in the configuration
    "#]],
    );
    let mut snapshot = world(text);
    snapshot.running[0].charged = true;
    let over = Ledger::new(&snapshot);
    assert_eq!(
        over.check_but(&snapshot.pending[1], &take("h100", 1), |_| false),
        Ok(None)
    );
}

#[test]
fn a_cap_counts_what_was_used_what_runs_and_what_the_job_may_use() {
    let text = "node n1 h100:8
         account lab cap=100/month
         account a under=lab
         run 1 a ann 2 on=n1 ago=3600 limit=7200
         job 2 a ann 1 limit=36000
         job 3 a ann 1 limit=39600";
    let mut snapshot = world(text);
    let mut book = gpolicy::usage::UsageBook::default();
    let rate = gpolicy::usage::Rate {
        weighted_micro: 0,
        gpus: [("h100".to_owned(), 2000)].into(),
    };
    // 43 h of 2 GPUs this month, and some in the last.
    book.charge(
        "a",
        "ann",
        &rate,
        NOW.plus_secs(-80 * 3600),
        NOW.plus_secs(-37 * 3600),
        0,
    );
    book.charge(
        "a",
        "ann",
        &rate,
        NOW.plus_secs(-40 * 86_400),
        NOW.plus_secs(-35 * 86_400),
        0,
    );
    snapshot.usage = Arc::new(book);
    let ledger = Ledger::new(&snapshot);
    assert_eq!(
        ledger.check_but(&snapshot.pending[0], &take("h100", 1), |_| false),
        Ok(None)
    );
    let no = ledger
        .check_but(&snapshot.pending[1], &take("h100", 1), |_| false)
        .unwrap_err();
    expect!["AssocGrpBilling: account lab may use 100 GPU-hours a month: 88 are used, running jobs may use 2 more by their time limits, and this job 11; the next period begins 2026-12-01T00:00:00Z"]
        .assert_eq(&format!("{}: {}", no.reason.code, no.reason.text));
}

#[test]
fn a_cap_holds_in_the_periods_that_a_job_reaches_into() {
    // It is noon: the run takes 12 GPU-hours of this day, and 18 of the next.
    let text = "node n1 h100:8
         account lab cap=30/day
         run 1 lab ann 1 on=n1 limit=108000
         job 2 lab ann 1 limit=86400
         job 3 lab ann 1 limit=90000
         job 4 lab ann 1";
    check(
        text,
        expect![[r#"
        2: None
        3: AssocGrpBilling: account lab may use 30 GPU-hours a day: of the period that begins 2026-11-21T00:00:00Z, running jobs may use 18 by their time limits, and this job 13
        4: AssocGrpBilling: account lab may use 30 GPU-hours a day: of the period that begins 2026-11-21T00:00:00Z, running jobs may use 18 by their time limits, and this job 24
    "#]],
    );
}

#[test]
fn why_lists_every_blocker() {
    let snapshot = world(
        "node n1 h100:8
         account a limit=2 g=0
         qos high userjobs=1
         run 1 a ann 2 on=n1 qos=high
         job 2 a ann 1 qos=high noborrow",
    );
    let ledger = Ledger::new(&snapshot);
    let codes: Vec<String> = ledger
        .refusing_limits(&snapshot.pending[0], &take("h100", 1))
        .iter()
        .map(|one| one.reason.code.to_string())
        .collect();
    assert_eq!(codes, ["AssocGrpGRES", "QOSMaxJobsPerUserLimit", "Quota"]);
}

/// The walk over runs: what changed.
fn classes(text: &str, want: Expect) {
    let changed = Ledger::new(&world(text)).classes();
    want.assert_eq(
        &changed
            .iter()
            .map(|(run, class)| format!("{run} {class:?}\n"))
            .collect::<String>(),
    );
}

#[test]
fn runs_become_guaranteed_oldest_first_whole_runs_only() {
    classes(
        "node n1 h100:8
         node n2 h100:8
         account a g=6
         run 1 a ann 4 on=n1 ago=100 class=b
         run 2 a ann 4 on=n1 ago=200 class=b
         run 3 a ann 2 on=n2 ago=50 class=b
         run 4 a ann 1 on=n2 ago=40 class=b",
        expect![[r#"
            2-1 Guaranteed
            3-1 Guaranteed
        "#]],
    );
}

#[test]
fn no_run_inherits_a_guarantee_that_a_preemptor_was_promised() {
    // What run 1 did not fit beside is over; job 10 had its four of the eight before.
    let text = |leaving: &str, more: &str| {
        format!(
            "node n1 h100:16
             account a g=8
             account b
             run 1 a ann 8 on=n1 ago=500 class=b
             run 2 b bob 4 on=n1 ago=400 class=b {leaving}
             run 3 a ann 4 on=n1 ago=300 class=b
             job 10 a ann 4 {more}"
        )
    };
    classes(
        &text("leaving=10", ""),
        expect![[r#"
        3-1 Guaranteed
    "#]],
    );
    check(&text("leaving=10", ""), expect!["10: Some(Guaranteed)\n"]);
    // Nor when they are gone, and it starts in this pass.
    let gone = text("leaving=10", "preempting")
        .replace("run 2 b bob 4 on=n1 ago=400 class=b leaving=10", "");
    check(&gone, expect!["10: Some(Guaranteed)\n"]);
    classes(
        &gone,
        expect![[r#"
        3-1 Guaranteed
    "#]],
    );
    // A job that does not start, or borrows, is promised nothing.
    for (leaving, more) in [
        ("", ""),
        ("leaving", ""),
        ("leaving=11", ""),
        ("leaving=10", "held"),
        ("leaving=10 toborrow", ""),
    ] {
        classes(
            &text(leaving, more),
            expect![[r#"
            1-1 Guaranteed
        "#]],
        );
    }
}

#[test]
fn a_guaranteed_run_stays_so_though_an_older_one_is_borrowed() {
    classes(
        "node n1 h100:8
         account a g=4
         run 1 a ann 4 on=n1 ago=500 class=b
         run 2 a ann 2 on=n1 ago=100 class=g",
        expect![[r#""#]],
    );
}

#[test]
fn a_guarantee_that_shrank_takes_the_youngest_with_it() {
    classes(
        "node n1 h100:8
         account a g=4
         run 1 a ann 2 on=n1 ago=500 class=g
         run 2 a ann 2 on=n1 ago=300 class=g
         run 3 a ann 2 on=n1 ago=100 class=g",
        expect![[r#"
            3-1 Borrowed
        "#]],
    );
}

#[test]
fn a_guaranteed_budget_that_is_used_up_makes_runs_borrow() {
    let text = "node n1 h100:8
         account a g=8 budget=10/day
         run 1 a ann 2 on=n1 ago=7200 limit=10800 class=b
         run 2 a ann 2 on=n1 ago=3600 limit=7200 class=b
         run 3 a ann 2 on=n1 ago=0 limit=3600 class=b";
    // Used by now: 4 + 2. Still promised to the first: 2; the second would bring it to 10, the third beyond.
    classes(
        text,
        expect![[r#"
        1-1 Guaranteed
        2-1 Guaranteed
    "#]],
    );
}

#[test]
fn runs_outside_of_quotas_have_no_class() {
    classes(
        "node n1 h100:8
         account a g=2
         qos service outside
         run 1 a ann 2 on=n1 qos=service ago=100
         run 2 a ann 2 on=n1 ago=50 class=b",
        expect![[r#"
            2-1 Guaranteed
        "#]],
    );
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    const ACCOUNTS: [&str; 5] = ["lab", "vision", "nlp", "bio", "free"];
    const USERS: [&str; 3] = ["ann", "bob", "eve"];

    fn policy() -> &'static str {
        "node n1 h100:8
         node n2 a100:8
         node n3 h100:8
         account lab g=12 limit=h100:10,gpu:14
         account vision under=lab g=6 limit=8 usergpus=5
         account nlp under=lab grpjobs=4
         account bio g=a100:4 lend=2 grpcpus=6
         qos high grpgpus=7 userjobs=2 accountgpus=h100:4"
    }

    #[derive(Clone, Debug)]
    struct Step {
        account: usize,
        user: usize,
        high: bool,
        h100: bool,
        gpus: u64,
        gives: bool,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = (
            0..5usize,
            0..3usize,
            any::<bool>(),
            any::<bool>(),
            0..5u64,
            prop::bool::weighted(0.3),
        );
        let step = step.prop_map(|(account, user, high, h100, gpus, gives)| Step {
            account,
            user,
            high,
            h100,
            gpus,
            gives,
        });
        prop::collection::vec(step, 1..60)
    }

    /// A run as the state would have it after the start.
    fn run_of(id: u64, job: &PendingJob, step: &Step, class: Option<RunClass>) -> RunningRun {
        let node = NodeId(if step.h100 { 1 } else { 2 });
        let gpus = gmodel::GpuSet::whole((0..step.gpus as u16).map(gmodel::GpuSlot));
        let share = NodeShare {
            node,
            cpus: step.gpus.max(1) as u32,
            mem_bytes: 0,
            gpus,
            tasks: 1,
        };
        let mut run = RunningRun::new(
            RunId::new(gmodel::JobId(id), 1),
            job.spec.clone(),
            vec![share],
            None,
        );
        (run.placed, run.started, run.class) = (NOW, Some(NOW), class);
        run
    }

    fn held(runs: &[RunningRun], of: impl Fn(&RunningRun) -> bool) -> (u64, u64, u64, u64) {
        let mut sum = (0, 0, 0, 0);
        for run in runs.iter().filter(|run| of(run)) {
            let gpus = run.shares[0].gpus.len() as u64;
            sum.0 += 1;
            sum.1 += gpus;
            sum.2 += if run.shares[0].node == NodeId(1) {
                gpus
            } else {
                0
            };
            sum.3 += u64::from(run.shares[0].cpus);
        }
        sum
    }

    fn within(name: &str, above: &str) -> bool {
        name == above || (above == "lab" && ["vision", "nlp"].contains(&name))
    }

    /// Every limit of `policy`, counted anew.
    fn limits_hold(runs: &[RunningRun]) {
        let of = |account: &'static str| move |run: &RunningRun| within(&run.spec.account, account);
        let (_, all, h100, _) = held(runs, of("lab"));
        assert!(all <= 14 && h100 <= 10, "lab holds {all} and {h100} h100");
        assert!(held(runs, of("vision")).1 <= 8);
        assert!(held(runs, of("nlp")).0 <= 4);
        assert!(held(runs, of("bio")).3 <= 6);
        let high = |run: &RunningRun| run.spec.qos == "high";
        assert!(held(runs, high).1 <= 7);
        for user in USERS {
            assert!(
                held(runs, |run| run.spec.user.name == user
                    && run.spec.account == "vision")
                .1 <= 5
            );
            assert!(held(runs, |run| run.spec.user.name == user && high(run)).0 <= 2);
        }
        for account in ACCOUNTS {
            assert!(held(runs, |run| run.spec.account == account && high(run)).2 <= 4);
        }
        let guaranteed = |run: &RunningRun| run.class == Some(RunClass::Guaranteed);
        let standing = |account: &'static str| {
            held(runs, |run| {
                guaranteed(run) && within(&run.spec.account, account)
            })
            .1
        };
        assert!(
            standing("lab") <= 12 && standing("vision") <= 6,
            "guarantees hold"
        );
        assert!(
            standing("vision").max(6)
                + standing("nlp")
                + held(runs, |run| guaranteed(run) && run.spec.account == "lab").1
                <= 12
        );
        let bio = held(runs, |run| guaranteed(run) && run.spec.account == "bio");
        assert!(
            bio.1 - bio.2 <= 4 && bio.2 == 0,
            "bio is guaranteed only a100"
        );
        assert_eq!(standing("free"), 0);
    }

    proptest! {
        #[test]
        fn no_sequence_of_allowed_starts_and_ends_exceeds_a_limit(steps in steps()) {
            let snapshot = world(policy());
            let mut ledger = Ledger::new(&snapshot);
            let mut runs: Vec<RunningRun> = Vec::new();
            for (id, step) in (1..).zip(&steps) {
                if step.gives && !runs.is_empty() {
                    let run = runs.remove(step.account % runs.len());
                    ledger.give_as(&run, run.class);
                    continue;
                }
                let qos = if step.high { "qos=high" } else { "" };
                let job = format!("job {id} {} {} {} {qos}", ACCOUNTS[step.account], USERS[step.user], step.gpus);
                let job = world(&job).pending.remove(0);
                let take = take(if step.h100 { "h100" } else { "a100" }, step.gpus);
                if let Ok(class) = ledger.check_but(&job, &take, |_| false) {
                    ledger.take(&job, &take, class, None);
                    runs.push(run_of(id, &job, step, class));
                    limits_hold(&runs);
                }
            }
            // A ledger made anew from what runs says the same.
            let fresh = Ledger::new(&Snapshot { running: runs.clone(), ..snapshot });
            for account in ACCOUNTS {
                let number = |ledger: &Ledger| ledger.tree().number(account).map_or(0, |number| ledger.held_by(number));
                prop_assert_eq!(number(&ledger), number(&fresh));
            }
            let demoted = fresh.classes().into_iter().find(|(_, class)| *class == RunClass::Borrowed);
            prop_assert_eq!(demoted, None, "nobody loses a guarantee that did not shrink");
        }

        #[test]
        fn the_walk_demotes_only_when_a_guarantee_shrinks(steps in steps(), ends in prop::collection::vec(any::<prop::sample::Index>(), 0..20), smaller in 0..12u64) {
            let mut snapshot = world(policy());
            for (id, step) in (1..).zip(&steps) {
                let job = world(&format!("job {id} {} ann {}", ACCOUNTS[step.account], step.gpus)).pending.remove(0);
                snapshot.running.push(run_of(id, &job, step, None));
            }
            for end in ends {
                let changed = Ledger::new(&snapshot).classes();
                for (id, class) in changed {
                    let run = snapshot.running.iter_mut().find(|run| run.run == id).unwrap();
                    prop_assert!(run.class != Some(RunClass::Guaranteed), "{} lost its guarantee", id);
                    run.class = Some(class);
                }
                prop_assert_eq!(Ledger::new(&snapshot).classes(), vec![], "the walk is settled at once");
                if !snapshot.running.is_empty() {
                    snapshot.running.remove(end.index(snapshot.running.len()));
                }
            }
            for (id, class) in Ledger::new(&snapshot).classes() {
                snapshot.running.iter_mut().find(|run| run.run == id).unwrap().class = Some(class);
            }
            let policy = Arc::make_mut(&mut snapshot.policy);
            policy.accounts.get_mut("lab").unwrap().guaranteed = Some(GpuAmounts::all(smaller));
            let after = Ledger::new(&snapshot);
            let standing: u64 = snapshot.running.iter()
                .filter(|run| within(&run.spec.account, "lab") && after.class_of(run.run) == Some(RunClass::Guaranteed))
                .map(|run| run.shares[0].gpus.len() as u64).sum();
            prop_assert!(standing <= smaller, "{} of {} GPUs are guaranteed", standing, smaller);
        }
    }
}
