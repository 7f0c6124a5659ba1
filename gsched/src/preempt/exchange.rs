//! Reclaim by place: a guaranteed run is preempted on its nodes, and a borrowed run of the same guarantee becomes guaranteed.
//!
//! Classes are by count, so the borrowed runs of an account may be on other nodes than the ones that a job needs. No
//! account uses less of its guarantee afterwards than before. Ends nothing itself.

use crate::ledger::Ledger;
use crate::preempt::guarantee_claims::lender_of;
use crate::preempt::holders::NodeSet;
use crate::snapshot::{RunningRun, Snapshot};
use gmodel::{RunClass, RunId};
use gpolicy::limits::Holding;
use gpolicy::quota::Guarantees;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Sets that are held against the guarantees and the proof before the search gives up.
const TRIES: usize = 64;

/// Borrowed runs that may take over a guarantee, oldest first, whether they may be preempted themselves or not.
pub(crate) struct Heirs(Vec<Heir>);

struct Heir {
    run: RunId,
    account: u32,
    lender: u32,
    held: Holding,
}

/// A guaranteed run that would be preempted, as the search sees it.
pub(crate) struct EndingRun<'a> {
    pub run: &'a RunningRun,
    pub account: u32,
    pub class: Option<RunClass>,
}

/// The guarantees after an exchange, and the runs that became guaranteed by it.
pub(crate) struct ExchangedGuarantees {
    pub guarantees: Guarantees,
    pub heirs: Vec<RunId>,
}

impl Heirs {
    pub fn new(snapshot: &Snapshot, ledger: &Ledger) -> Self {
        let staying = snapshot
            .running
            .iter()
            .filter(|run| run.stops_by.is_none() && !run.charged);
        let borrowed = staying.filter(|run| ledger.class_of(run.run) == Some(RunClass::Borrowed));
        let mut heirs: Vec<Heir> = borrowed
            .filter_map(|run| {
                let account = ledger.tree().number(&run.spec.account)?;
                let lender = lender_of(ledger, account);
                Some(Heir {
                    run: run.run,
                    account,
                    lender,
                    held: ledger.holding_of_run(run),
                })
            })
            .collect();
        heirs.sort_by_key(|heir| (heir.held.since, heir.run));
        Self(heirs)
    }

    pub fn remove(&mut self, run: RunId) {
        self.0.retain(|heir| heir.run != run);
    }

    /// Runs that take the free part of these lenders' guarantees, the oldest first, added there.
    pub fn inherit(
        &mut self,
        guarantees: &mut Guarantees,
        ledger: &Ledger,
        lenders: &BTreeSet<u32>,
    ) -> Vec<RunId> {
        let tree = ledger.tree();
        let mut found = Vec::new();
        self.0.retain(|heir| {
            let inherits = lenders.contains(&heir.lender)
                && heir.held.gpus > 0
                && guarantees.fits(tree, heir.account, &heir.held);
            if inherits {
                guarantees.add(tree, heir.account, &heir.held);
                found.push(heir.run);
            }
            !inherits
        });
        found
    }

    /// Thousandths of GPUs that each guarantee could pass on.
    pub fn by_lender(&self) -> BTreeMap<u32, u64> {
        let mut all = BTreeMap::new();
        self.0
            .iter()
            .for_each(|heir| *all.entry(heir.lender).or_default() += heir.held.gpus);
        all
    }

    /// The guarantees without these runs, passed on to heirs; `None` where an account would use less of them.
    pub fn after(
        &self,
        before: &Guarantees,
        ledger: &Ledger,
        leavers: &[EndingRun],
    ) -> Option<ExchangedGuarantees> {
        let tree = ledger.tree();
        let gone: BTreeSet<RunId> = leavers.iter().map(|one| one.run.run).collect();
        let mut exchanged = ExchangedGuarantees {
            guarantees: before.clone(),
            heirs: Vec::new(),
        };
        let guaranteed = || {
            leavers
                .iter()
                .filter(|one| one.class == Some(RunClass::Guaranteed))
        };
        for one in guaranteed() {
            exchanged
                .guarantees
                .remove(tree, one.account, &ledger.holding_of_run(one.run));
        }
        let lenders: BTreeSet<u32> = guaranteed()
            .map(|one| lender_of(ledger, one.account))
            .collect();
        let mut heirs: Vec<&Heir> = self
            .0
            .iter()
            .filter(|heir| lenders.contains(&heir.lender) && !gone.contains(&heir.run))
            .collect();
        let without = exchanged.guarantees.clone();
        // The oldest first, as everywhere; the largest where the oldest leave a gap that no other run fits.
        for _ in 0..2 {
            for heir in &heirs {
                if heir.held.gpus > 0 && exchanged.guarantees.fits(tree, heir.account, &heir.held) {
                    exchanged.guarantees.add(tree, heir.account, &heir.held);
                    exchanged.heirs.push(heir.run);
                }
            }
            if guaranteed().all(|one| {
                exchanged
                    .guarantees
                    .stands_on_as_much(before, tree, one.account)
            }) {
                return Some(exchanged);
            }
            exchanged = ExchangedGuarantees {
                guarantees: without.clone(),
                heirs: Vec::new(),
            };
            heirs.sort_by_key(|heir| Reverse(heir.held.gpus));
        }
        None
    }
}

/// Whether a guaranteed run could as well be a borrowed one: not if its job says that it never borrows.
pub(crate) fn may_borrow(run: &RunningRun) -> bool {
    run.spec.borrow.unwrap_or(run.may_requeue)
}

/// The sets of runs on single nodes that make room for a job of one node, or of several nodes together.
/// `allowed` is cheap and says whether the guarantees allow a set; `proof` whether the job starts without it.
pub(crate) fn search(
    mut sets: Vec<NodeSet>,
    nodes: usize,
    allowed: &dyn Fn(&[usize]) -> bool,
    proof: &mut dyn FnMut(&[usize]) -> bool,
) -> Option<Vec<usize>> {
    sets.sort_by_key(|set| (set.orders.len(), set.protected, set.node));
    if nodes == 1 {
        let mut sets = sets
            .into_iter()
            .filter(|set| !set.orders.is_empty() && allowed(&set.orders))
            .take(TRIES);
        return sets.find(|set| proof(&set.orders)).map(|set| set.orders);
    }
    // One node after the other, the cheapest first, as far as the guarantees allow it.
    let mut union: BTreeSet<usize> = BTreeSet::new();
    let mut on: BTreeSet<usize> = BTreeSet::new();
    let mut wanted = nodes;
    for set in &sets {
        if on.contains(&set.node) {
            continue;
        }
        let more: Vec<usize> = union
            .iter()
            .chain(&set.orders)
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        if !allowed(&more) {
            continue;
        }
        on.insert(set.node);
        union.extend(more);
        if on.len() >= wanted {
            let all: Vec<usize> = union.iter().copied().collect();
            if proof(&all) {
                return Some(all);
            }
            wanted += (wanted / 2).max(1);
        }
    }
    let all: Vec<usize> = union.into_iter().collect();
    (on.len() > nodes && proof(&all)).then_some(all)
}

#[cfg(test)]
mod tests;
