//! Fair parts of borrowers: which account may preempt borrowed runs of which.

use crate::ledger::Ledger;
use crate::preempt::guarantee_claims::GuaranteeClaims;
use crate::queue_order::gpus_counted;
use crate::snapshot::{PendingJob, Snapshot};
use gmodel::RunClass;
use gpolicy::account_tree::ROOT;
use std::collections::BTreeMap;

/// Preemption between borrowers: an account within its fair part takes from one above its own, and stays within it.
/// So no swap can be undone by another.
pub(crate) struct FairSwap<'a> {
    ledger: &'a Ledger,
    claims: &'a GuaranteeClaims,
    fair_parts: &'a [u64],
    taker: Option<u32>,
    wants: u64,
    /// By account of a run: the account that gives, if the other may take.
    giver: BTreeMap<u32, Option<u32>>,
    /// Thousandths of GPUs that each account above its fair part may still lose.
    left: BTreeMap<u32, u64>,
}

impl<'a> FairSwap<'a> {
    pub fn new(
        ledger: &'a Ledger,
        claims: &'a GuaranteeClaims,
        fair_parts: &'a [u64],
        job: &PendingJob,
        class: Option<RunClass>,
    ) -> Self {
        let taker = ledger
            .tree()
            .number(&job.spec.account)
            .filter(|_| class == Some(RunClass::Borrowed));
        Self {
            ledger,
            claims,
            taker,
            wants: gpus_counted(&job.spec.request, ledger).1,
            fair_parts,
            giver: BTreeMap::new(),
            left: BTreeMap::new(),
        }
    }

    /// Whether an account's runs may be taken.
    pub fn is_for(&mut self, account: u32) -> bool {
        if !self.giver.contains_key(&account) {
            let held = |taker: u32| self.ledger.held_by(taker) + self.claims.coming[taker as usize];
            let may_take = |taker: u32| {
                self.wants > 0 && held(taker) + self.wants <= self.fair_parts[taker as usize]
            };
            let giver = self
                .sides(account)
                .filter(|(taker, _)| may_take(*taker))
                .map(|(_, giver)| giver);
            self.giver.insert(account, giver);
        }
        self.giver[&account].is_some()
    }

    /// Whether an account can give so many thousandths of GPUs and stay above its fair part; then they are given.
    pub fn gives(&mut self, account: u32, gpus: u64) -> bool {
        let Some(giver) = self.giver.get(&account).copied().flatten() else {
            return false;
        };
        let left = self.left.entry(giver).or_insert_with(|| {
            let stays = self
                .ledger
                .held_by(giver)
                .saturating_sub(self.claims.going[giver as usize]);
            stays.saturating_sub(self.fair_parts[giver as usize])
        });
        let gives = *left >= gpus;
        if gives {
            *left -= gpus;
        }
        gives
    }

    /// The two accounts just below the nearest common one.
    fn sides(&self, giver: u32) -> Option<(u32, u32)> {
        let tree = self.ledger.tree();
        let taker = self.taker?;
        let below = |account: u32, other: u32| {
            tree.line(account)
                .take_while(|one| !tree.is_within(other, *one))
                .last()
        };
        Some((below(taker, giver)?, below(giver, taker)?))
    }
}

/// Each account's fair part of the usable GPUs by shares, thousandths.
pub(crate) fn fair_parts(snapshot: &Snapshot, ledger: &Ledger) -> Vec<u64> {
    let gpus = snapshot
        .nodes
        .iter()
        .flat_map(|node| node.gpus.iter())
        .filter(|gpu| gpu.usable());
    let cluster = gpus.map(|gpu| u64::from(gpu.info.part().milli())).sum();
    let tree = ledger.tree();
    let accounts = 0..tree.len() as u32;
    let shares: Vec<u64> = accounts
        .clone()
        .map(|account| ledger.shares_of(account))
        .collect();
    let mut of_children = vec![0; tree.len()];
    accounts
        .clone()
        .filter(|account| *account != ROOT)
        .for_each(|account| of_children[tree.parent(account) as usize] += shares[account as usize]);
    let part = |whole: u64, one: u32| match of_children[tree.parent(one) as usize] {
        0 => 0,
        all => (u128::from(whole) * u128::from(shares[one as usize]) / u128::from(all)) as u64,
    };
    let fair_part = |account: u32| {
        let line: Vec<u32> = tree.line(account).collect();
        line.into_iter().rev().fold(cluster, part)
    };
    accounts.map(fair_part).collect()
}
