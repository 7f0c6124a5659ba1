//! Guarantees of GPUs of one type, and jobs that name none: they are owed what of it is left, and no more.

use crate::world::world;
use crate::{Plan, Snapshot, WorkBudget, plan};
use crate::priority::in_order;
use crate::ledger::Ledger;
use gmodel::{JobId, RunClass};

fn ended(plan: &Plan) -> Vec<String> {
    plan.preempts.iter().map(|one| format!("{} for {}", one.run, one.for_job)).collect()
}

fn class_of(snapshot: &Snapshot, job: u64) -> Option<RunClass> {
    let ledger = Ledger::new(snapshot);
    let place = |at: usize| snapshot.pending[at].id == JobId(job);
    in_order(snapshot, &ledger).iter().find(|one| place(one.at)).unwrap().class
}

#[test]
fn a_job_without_a_type_is_not_owed_more_than_its_account_has_of_the_only_one() {
    // Account a stands on 8 of its 12 h100; eight more would be borrowed, whoever asks without a type.
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
        assert!(plan(&short, WorkBudget::default()).preempts.is_empty(), "{asks}");
        let enough = lab("h100:16,gpu:16", asks);
        assert_eq!(class_of(&enough, 10), Some(RunClass::Guaranteed), "{asks}");
        assert_eq!(ended(&plan(&enough, WorkBudget::default())), ["2-1 for 10"], "{asks}");
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
    assert_eq!(ended(&plan(&mixed("4"), WorkBudget::default())), ["1-1 for 10"]);
}
