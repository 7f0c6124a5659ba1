//! Guarantees while preemption is under way: claimed by preempting jobs, given up by victims.

use crate::ledger::Ledger;
use crate::preempt::leaving::promised_guarantee;
use crate::queue_order::{gpus_counted, guaranteed_as};
use crate::snapshot::{PendingJob, Snapshot};
use gmodel::{JobId, Timestamp};
use gpolicy::account_tree::ROOT;
use gpolicy::quota::Guarantees;
use std::collections::BTreeSet;

/// GPUs on their way from one account to another: the jobs that preempt do not hold them yet, and the victims still do.
pub(crate) struct GuaranteeClaims {
    /// The ledger's, with the preempting jobs added.
    pub guarantees: Option<Guarantees>,
    /// Thousandths of GPUs, by account with those below it.
    pub coming: Vec<u64>,
    pub going: Vec<u64>,
}

impl GuaranteeClaims {
    pub fn new(snapshot: &Snapshot, ledger: &Ledger) -> Self {
        let none = vec![0; ledger.tree().len()];
        let mut claims = Self {
            guarantees: ledger.guarantees().cloned(),
            coming: none.clone(),
            going: none,
        };
        let leaving = || snapshot.running.iter().filter(|run| run.stops_by.is_some());
        for run in leaving() {
            let gpus = ledger.standing_of(run.run).map_or(0, |(_, gpus)| gpus);
            claims.goes(ledger, &run.spec.account, gpus);
        }
        let waiting: BTreeSet<JobId> = leaving().filter_map(|run| run.victim_of).collect();
        if !waiting.is_empty() {
            let owed = promised_guarantee(snapshot);
            let jobs = snapshot
                .pending
                .iter()
                .filter(|job| job.is_among(&waiting) && job.spec.choice() == 0);
            jobs.for_each(|job| claims.comes(ledger, job, snapshot.now, job.is_among(&owed)));
        }
        claims
    }

    /// Adds a preempting job. `owed`: it may start on its account's guarantee.
    pub fn comes(&mut self, ledger: &Ledger, job: &PendingJob, now: Timestamp, owed: bool) {
        let tree = ledger.tree();
        let Some(account) = tree.number(&job.spec.account) else {
            return;
        };
        let gpus = gpus_counted(&job.spec.request, ledger).1;
        tree.line(account)
            .for_each(|above| self.coming[above as usize] += gpus);
        let Some(guarantees) = self.guarantees.as_mut().filter(|_| owed) else {
            return;
        };
        if let Some(held) = guaranteed_as(job, account, guarantees, ledger, now) {
            guarantees.add(tree, account, &held);
        }
    }

    /// Adds a victim of an account, thousandths of GPUs.
    pub fn goes(&mut self, ledger: &Ledger, account: &str, gpus: u64) {
        let account = ledger.tree().number(account).unwrap_or(ROOT);
        ledger
            .tree()
            .line(account)
            .for_each(|above| self.going[above as usize] += gpus);
    }
}

/// The account with the guarantee that a borrowed run exceeds: the nearest above; without one, the run's own account.
pub(crate) fn lender_of(ledger: &Ledger, account: u32) -> u32 {
    let granting = ledger
        .guarantees()
        .and_then(|one| one.granting(ledger.tree(), account));
    granting.unwrap_or(account)
}
