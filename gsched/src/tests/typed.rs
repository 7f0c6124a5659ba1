//! Guarantees of GPUs of one type, and jobs that name none: they are owed what of it is left, and no more.

use crate::ledger::Ledger;
use crate::queue_order::in_order;
use crate::tests::world::world;
use crate::{Plan, Snapshot, WorkBudget, plan};
use gmodel::{JobId, RunClass};

fn ended(plan: &Plan) -> Vec<String> {
    plan.preempts
        .iter()
        .map(|one| format!("{} for {}", one.run, one.for_job))
        .collect()
}

fn class_of(snapshot: &Snapshot, job: u64) -> Option<RunClass> {
    let ledger = Ledger::new(snapshot);
    let place = |at: usize| snapshot.pending[at].id == JobId(job);
    in_order(snapshot, &ledger)
        .iter()
        .find(|one| place(one.at))
        .unwrap()
        .class
}

#[test]
fn a_job_without_a_type_is_not_owed_more_than_its_account_has_of_the_only_one() {
    // Account a uses 8 of its guarantee of 12 h100; eight more without a type would be borrowed.
    let lab = |guarantee: &str, asks: &str| {
        world(&format!(
            "node n1 h100:8
             node n2 h100:8
             account a g={guarantee}
             account b
             run 1 a ann 8 on=n1 ago=900 class=g
             run 2 b bob 8 on=n2 ago=900 class=b
             job 10 a ann {asks}"
        ))
    };
    for asks in ["8", "h100:8"] {
        let short = lab("h100:12,gpu:16", asks);
        assert_eq!(class_of(&short, 10), Some(RunClass::Borrowed), "{asks}");
        assert!(
            plan(&short, WorkBudget::default()).preempts.is_empty(),
            "{asks}"
        );
        let enough = lab("h100:16,gpu:16", asks);
        assert_eq!(class_of(&enough, 10), Some(RunClass::Guaranteed), "{asks}");
        assert_eq!(
            ended(&plan(&enough, WorkBudget::default())),
            ["2-1 for 10"],
            "{asks}"
        );
    }
}

#[test]
fn a_job_without_a_type_takes_back_gpus_of_the_type_that_its_account_is_owed() {
    let mixed = |guarantee: &str| {
        world(&format!(
            "node n1 h100:4
             node n2 a100:4
             account a g={guarantee}
             account b
             run 1 b bob 4 on=n1 ago=60 class=b
             run 2 b bob 4 on=n2 ago=9000 class=b
             job 10 a ann 4"
        ))
    };
    // The younger run loses less, but only the older stands on GPUs that a is owed.
    let a100 = mixed("a100:4");
    assert_eq!(class_of(&a100, 10), Some(RunClass::Guaranteed));
    assert_eq!(ended(&plan(&a100, WorkBudget::default())), ["2-1 for 10"]);
    assert_eq!(
        ended(&plan(&mixed("4"), WorkBudget::default())),
        ["1-1 for 10"]
    );
}

#[test]
fn a_job_that_may_not_borrow_is_told_what_of_the_guarantee_is_short() {
    let told = |accounts: &str, job: &str| {
        let snapshot = world(&format!(
            "node n1 h100:8
             node n2 a100:8
             {accounts}
             run 1 a ann 2 on=n1 ago=1800 limit=3600 class=g
             job 10 a ann {job}"
        ));
        let mut snapshot = snapshot;
        let spec = std::sync::Arc::make_mut(&mut snapshot.pending[0].spec);
        spec.borrow = Some(false);
        let text = crate::why(&snapshot, JobId(10)).unwrap().blockers[0]
            .text
            .clone();
        text.replace(" (--no-borrow)", "")
    };
    let cases = [
        (
            "account a g=h100:3,gpu:8",
            "h100:2",
            "account a is guaranteed 3 h100 and uses 2 of them, and this job needs 2",
        ),
        (
            "account a g=h100:3",
            "a100:2",
            "account a is guaranteed 0 a100, and this job needs 2",
        ),
        (
            "account lab g=6\n account a under=lab g=4\n account b under=lab g=2",
            "5",
            "account a is guaranteed 4 GPUs, and this job needs 5",
        ),
        (
            "account lab g=6\n account a under=lab g=4\n account b under=lab g=2",
            "3",
            "account a is guaranteed 4 GPUs and uses 2 of them, and this job needs 3",
        ),
        (
            "account lab g=6\n account a under=lab\n account b under=lab g=2",
            "4",
            "account lab is guaranteed 6 GPUs, of which 4 are used or guaranteed to accounts below it, and this job needs 4",
        ),
        (
            "account lab g=6\n account a under=lab\n account b under=lab g=3",
            "4",
            "account lab is guaranteed 6 GPUs, of which 3 are guaranteed to accounts below it, and this job needs 4",
        ),
        (
            "account a budget=2/week",
            "2",
            "account a is guaranteed 2 GPU-hours a week: 1 are used, guaranteed runs may use 1 more by their time limits, and this job 2",
        ),
    ];
    for (accounts, job, text) in cases {
        assert_eq!(told(accounts, &format!("{job} limit=3600")), text);
    }
}
