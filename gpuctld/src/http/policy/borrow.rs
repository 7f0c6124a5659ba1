//! The note to a submitter when the job will not stand on guaranteed GPUs of its account.
//!
//! As the next pass would have it; which class a run has is the scheduler's word.

use crate::core_thread::now;
use crate::http::job::name::{JobName, one_row};
use crate::http::job::row::View;
use gcore::ctl::State;
use gmodel::{JobId, RunClass, Timestamp};
use gsched::ledger::{Ledger, Shortage};
use gsched::queue_order::in_order;

/// Queues up to this length are searched for jobs that use the guarantee first.
const FEW_JOBS: usize = 2_000;

/// One line for the submitter; none where there are no quotas, or the guarantee has room.
pub(crate) fn borrow_note(state: &State, id: JobId) -> Option<String> {
    if !state.policy.has_quotas() {
        return None;
    }
    let row = one_row(state, &JobName::Job(id))?;
    let spec = row.spec();
    let qos = state.policy.qos.get(&spec.qos);
    let outside = qos.is_some_and(|qos| qos.outside_quota);
    let line = state.policy.lineage(&spec.account);
    // Where nothing is granted the core has said so.
    let is_granted = line
        .iter()
        .any(|account| account.guaranteed.is_some() || !account.budgets.is_empty());
    let asked = row.gpu_milli(View::new(state, Timestamp::default()));
    if outside || !is_granted || asked == 0 {
        return None;
    }
    let short = shortage(state, id, &spec.account)?;
    if spec.borrow == Some(false) {
        // With --no-borrow the wait is asked for and needs no note.
        return short.for_good.then(|| {
            format!(
                "does not start: {}, and with --no-borrow it waits for a larger guarantee",
                short.text
            )
        });
    }
    let usual = state
        .config
        .partitions_of(&spec.partition)
        .next()
        .is_none_or(|partition| partition.requeue);
    if spec.borrow.is_none() && !spec.requeue.unwrap_or(usual) {
        let Shortage { text, for_good } = short;
        let waits = if for_good {
            "does not start"
        } else {
            "waits for guaranteed GPUs"
        };
        return Some(format!(
            "{waits}: {text}, and a job that may not be requeued borrows only with --borrow"
        ));
    }
    Some(match short {
        Shortage {
            text,
            for_good: false,
        } => {
            format!(
                "would start on borrowed GPUs: {text}. Their owners may take them back; with --no-borrow it waits for its own"
            )
        }
        Shortage {
            text,
            for_good: true,
        } => format!("would start on borrowed GPUs: {text}. Their owners may take them back"),
    })
}

/// What of the account's guarantee has no room for the job, with those counted that wait before it.
fn shortage(state: &State, id: JobId, account: &str) -> Option<Shortage> {
    let few = state.jobs.len() + state.arrays.len() <= FEW_JOBS;
    let snapshot = gcore::ctl::snapshot_of(state, now(), |job| few || job == id);
    let ledger = Ledger::new(&snapshot);
    let order = in_order(&snapshot, &ledger);
    let one = order.iter().find(|one| snapshot.pending[one.at].id == id)?;
    let short = Shortage::of(&ledger, &snapshot.pending[one.at]);
    match one.class {
        Some(RunClass::Guaranteed) => None,
        Some(RunClass::Borrowed) => {
            let text = || {
                format!(
                    "jobs that wait before it stand on what account {account} has left of its guarantee"
                )
            };
            Some(short.unwrap_or_else(|| Shortage {
                text: text(),
                for_good: false,
            }))
        }
        // It may not start yet, or the order knows no classes.
        _ => short,
    }
}
