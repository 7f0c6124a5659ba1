//! Guarantees: which runs use their account's own GPUs, which borrow idle GPUs of other accounts, and what may still be lent.
//!
//! A guarantee holds at every level of the tree: a child's use counts at its parents, a child without a guarantee of its
//! own uses its parent's, as far as that is not promised to other children. Never starts or ends anything.

use crate::account_tree::{AccountTree, ROOT};
use crate::budget::BudgetUse;
use crate::limits::{ALL, GpuTypes, Holding};
use gmodel::policy::{Account, BudgetKind, GpuAmounts};
use gmodel::{Policy, RunClass, Timestamp};

/// The guarantees of all accounts, and how much of each is in use.
#[derive(Clone, Debug, Default)]
pub struct Guarantees {
    levels: Vec<Level>,
    types: usize,
    /// By account and type: held by guaranteed runs of the account and those below it.
    used: Vec<u64>,
    /// By account and type: what its own guaranteed runs hold, and what its children's guarantees set apart or, where
    /// they have none, hold.
    set_apart: Vec<u64>,
    /// The same while nothing runs: what is guaranteed to the accounts below.
    idle_apart: Vec<u64>,
    /// Accounts with a lending limit, those above before those below.
    lenders: Vec<Lender>,
    now: Timestamp,
}

#[derive(Clone, Debug, Default)]
struct Level {
    /// GPUs are guaranteed here.
    has_gpus: bool,
    /// By type; in the place of all types what the guarantee says of them.
    own: Vec<Option<u64>>,
    /// All types together, as said or added up.
    sum: u64,
    budgets: Vec<BudgetUse>,
}

#[derive(Clone, Debug)]
struct Lender {
    account: u32,
    /// Of the lenders: the nearest above.
    above: Option<usize>,
    lends: Vec<(usize, u64)>,
}

/// A run as the walk sees it.
pub struct StandingRun<'a> {
    pub account: u32,
    pub held: &'a Holding,
    /// As decided before.
    pub class: Option<RunClass>,
    /// It is being ended: its class stays.
    pub leaving: bool,
}

impl Guarantees {
    /// `None` where no account has a guarantee. `used` says what the account and those below it used in a period.
    pub fn new(
        policy: &Policy,
        tree: &AccountTree,
        types: &GpuTypes,
        now: Timestamp,
        budget_of: &dyn Fn(u32, &gmodel::policy::Budget) -> BudgetUse,
    ) -> Option<Self> {
        if !policy.has_quotas() {
            return None;
        }
        let mut all = Self {
            types: types.len(),
            now,
            ..Self::default()
        };
        for number in 0..tree.len() as u32 {
            let account = policy.accounts.get(tree.name(number));
            all.levels.push(
                account
                    .map(|account| level(account, number, types, budget_of))
                    .unwrap_or_default(),
            );
        }
        all.used = vec![0; all.levels.len() * all.types];
        all.set_apart = all.used.clone();
        all.set_children_apart(tree);
        all.idle_apart = all.set_apart.clone();
        all.lenders = lenders(policy, tree, types);
        Some(all)
    }

    /// Makes room for accounts that the policy does not name.
    pub fn grow(&mut self, accounts: usize) {
        self.levels
            .resize_with(accounts.max(self.levels.len()), Level::default);
        self.used.resize(self.levels.len() * self.types, 0);
        self.set_apart.resize(self.used.len(), 0);
        self.idle_apart.resize(self.used.len(), 0);
    }

    fn set_children_apart(&mut self, tree: &AccountTree) {
        let mut deepest_first: Vec<u32> = (1..self.levels.len() as u32).collect();
        deepest_first.sort_by_key(|account| std::cmp::Reverse(tree.line(*account).count()));
        for account in deepest_first {
            for gpu_type in 0..self.types {
                let apart = self.levels[account as usize].own_of(gpu_type);
                let apart =
                    apart.unwrap_or(self.set_apart[account as usize * self.types + gpu_type]);
                self.set_apart[tree.parent(account) as usize * self.types + gpu_type] += apart;
            }
        }
    }

    /// Whether `held` more stands within what is guaranteed to the account, and is not promised to others of the tree.
    pub fn fits(&self, tree: &AccountTree, account: u32, held: &Holding) -> bool {
        held.gpus == 0
            || (self.is_granted(tree, account) && self.short_of(tree, account, held).is_none())
    }

    /// What has no room for `held` more, where something is granted: GPUs of a type before those of all, and before
    /// budgets, at the nearest account.
    pub fn short_of(
        &self,
        tree: &AccountTree,
        account: u32,
        held: &Holding,
    ) -> Option<GuaranteeShortage> {
        let gpus = |all: bool| {
            let mut of_types = held
                .each()
                .filter(move |(gpu_type, _)| (*gpu_type == ALL) == all);
            of_types.find_map(|(gpu_type, milli)| self.gpus_short(tree, account, gpu_type, milli))
        };
        gpus(false).or_else(|| gpus(true)).or_else(|| {
            tree.line(account)
                .find_map(|above| self.budget_short(above, held))
        })
    }

    /// What of GPUs would have no room for `held` even if nothing ran: that waits for a larger guarantee.
    pub fn never_fits(
        &self,
        tree: &AccountTree,
        account: u32,
        held: &Holding,
    ) -> Option<GuaranteeShortage> {
        held.each().find_map(|(gpu_type, milli)| {
            self.climb_short(tree, account, gpu_type, milli, |above| {
                (0, self.idle_apart[above as usize * self.types + gpu_type])
            })
        })
    }

    /// Whether a run that was guaranteed still is: only a guarantee that shrank says no.
    fn still_fits(&self, tree: &AccountTree, account: u32, held: &Holding) -> bool {
        if held.gpus == 0 {
            return true;
        }
        let is_within = |above: u32| {
            let level = &self.levels[above as usize];
            let gpus = held
                .each()
                .all(|(gpu_type, milli)| match level.bound(gpu_type) {
                    GrantedGuarantee::Up(most) => self.used(above, gpu_type) + milli <= most,
                    GrantedGuarantee::Any => true,
                    GrantedGuarantee::Nothing => false,
                });
            gpus && level.budgets.iter().all(|budget| {
                held.since < budget.start || budget.began + budget.whole(held) <= budget.most
            })
        };
        self.is_granted(tree, account) && tree.line(account).all(is_within)
    }

    pub fn add(&mut self, tree: &AccountTree, account: u32, held: &Holding) {
        for (gpu_type, milli) in held.each() {
            self.climb(tree, account, gpu_type, |used| used + milli);
        }
        for above in tree.line(account) {
            for budget in &mut self.levels[above as usize].budgets {
                budget.promised += budget.ahead(held, self.now);
                if held.since >= budget.start {
                    budget.began += budget.whole(held);
                }
            }
        }
    }

    pub fn remove(&mut self, tree: &AccountTree, account: u32, held: &Holding) {
        for (gpu_type, milli) in held.each() {
            self.climb(tree, account, gpu_type, |used| used - milli);
        }
        for above in tree.line(account) {
            for budget in &mut self.levels[above as usize].budgets {
                budget.promised -= budget.ahead(held, self.now);
                if held.since >= budget.start {
                    budget.began -= budget.whole(held);
                }
            }
        }
    }

    /// Changes what is used of a type, and what each level sets apart for the one below it.
    fn climb(
        &mut self,
        tree: &AccountTree,
        account: u32,
        gpu_type: usize,
        change: impl Fn(u64) -> u64,
    ) {
        // What the level below counts for at this one.
        let (mut before, mut after) = (0, 0);
        let mut first = true;
        for above in tree.line(account) {
            let at = above as usize * self.types + gpu_type;
            let used = self.used[at];
            self.used[at] = change(used);
            if first {
                (before, after) = (used, change(used));
                first = false;
            }
            self.set_apart[at] = self.set_apart[at] + after - before;
            if let Some(own) = self.levels[above as usize].own_of(gpu_type) {
                (before, after) = (own.max(used), own.max(change(used)));
            }
        }
    }

    /// The class of each run, in the order given: those guaranteed before stay so while they fit, oldest first, then the
    /// others, oldest first, while they fit what is left of it. `promised` says what of that is reserved for jobs with a nomination.
    pub fn walk(
        &mut self,
        tree: &AccountTree,
        runs: &[StandingRun],
        promised: impl FnOnce(&Self) -> Vec<(u32, Holding)>,
    ) -> Vec<RunClass> {
        let mut classes = vec![RunClass::Borrowed; runs.len()];
        let mut by_age: Vec<usize> = (0..runs.len()).collect();
        // Runs come in the order of their ids, which decides between equal ages.
        by_age.sort_by_key(|at| runs[*at].held.since);
        let is_old = |at: &usize| runs[*at].class == Some(RunClass::Guaranteed);
        for at in by_age.iter().copied().filter(is_old) {
            let run = &runs[at];
            if self.still_fits(tree, run.account, run.held) {
                self.add(tree, run.account, run.held);
                classes[at] = RunClass::Guaranteed;
            }
        }
        let promised = promised(self);
        promised
            .iter()
            .for_each(|(account, held)| self.add(tree, *account, held));
        for at in by_age {
            let run = &runs[at];
            if classes[at] == RunClass::Borrowed
                && !run.leaving
                && self.fits(tree, run.account, run.held)
            {
                self.add(tree, run.account, run.held);
                classes[at] = RunClass::Guaranteed;
            }
        }
        promised
            .iter()
            .for_each(|(account, held)| self.remove(tree, *account, held));
        classes
    }

    /// Idle guaranteed GPUs that their owners do not lend, thousandths of a type; without those that the account itself
    /// may use.
    pub fn kept_back(&self, tree: &AccountTree, account: u32, gpu_type: usize) -> u64 {
        if self.lenders.is_empty() {
            return 0;
        }
        let mut below = vec![0u64; self.lenders.len()];
        let mut all = 0;
        for (at, lender) in self.lenders.iter().enumerate().rev() {
            let own = if tree.is_within(account, lender.account) {
                0
            } else {
                self.unlent(lender, gpu_type)
            };
            let kept = own.max(below[at]);
            match lender.above {
                Some(above) => below[above] += kept,
                None => all += kept,
            }
        }
        all
    }

    fn unlent(&self, lender: &Lender, gpu_type: usize) -> u64 {
        let Some((_, lends)) = lender.lends.iter().find(|(of, _)| *of == gpu_type) else {
            return 0;
        };
        let level = &self.levels[lender.account as usize];
        let own = if gpu_type == ALL {
            level.sum
        } else {
            level.own.get(gpu_type).copied().flatten().unwrap_or(0)
        };
        own.saturating_sub(self.used(lender.account, gpu_type))
            .saturating_sub(*lends)
    }

    /// Thousandths that the guaranteed runs of an account and those below it hold.
    pub fn used(&self, account: u32, gpu_type: usize) -> u64 {
        self.used[account as usize * self.types + gpu_type]
    }

    /// Thousandths of all types that are guaranteed to an account itself.
    pub fn guaranteed(&self, account: u32) -> Option<u64> {
        let level = self.levels.get(account as usize)?;
        level.has_gpus.then_some(level.sum)
    }

    /// The types that an account's own guarantee speaks of; [`ALL`] for one of GPU-hours.
    pub fn guaranteed_types(&self, account: u32) -> impl Iterator<Item = usize> + '_ {
        let level = &self.levels[account as usize];
        let named = (0..self.types).filter(|gpu_type| level.own_of(*gpu_type).is_some());
        named.chain((!level.has_gpus && level.grants()).then_some(ALL))
    }

    /// The account whose guarantee an account's jobs use: the nearest at or above it.
    pub fn granting(&self, tree: &AccountTree, account: u32) -> Option<u32> {
        tree.line(account)
            .find(|above| self.levels[*above as usize].grants())
    }

    fn is_granted(&self, tree: &AccountTree, account: u32) -> bool {
        self.granting(tree, account).is_some()
    }

    fn budget_short(&self, account: u32, held: &Holding) -> Option<GuaranteeShortage> {
        let is_short = |budget: &BudgetUse| {
            budget.of(held) > 0
                && budget.used + budget.promised + budget.ahead(held, self.now) > budget.most
        };
        let at = self.levels[account as usize]
            .budgets
            .iter()
            .position(is_short)?;
        Some(GuaranteeShortage::Budget { account, at })
    }

    /// Whether of every guarantee at or above an account as much is used as before.
    pub fn stands_on_as_much(&self, before: &Self, tree: &AccountTree, account: u32) -> bool {
        tree.line(account).all(|above| {
            self.guaranteed_types(above)
                .all(|gpu_type| self.used(above, gpu_type) >= before.used(above, gpu_type))
        })
    }

    /// A guaranteed budget of an account, by its place among its guaranteed budgets.
    pub fn budget(&self, account: u32, at: usize) -> &BudgetUse {
        &self.levels[account as usize].budgets[at]
    }

    fn gpus_short(
        &self,
        tree: &AccountTree,
        account: u32,
        gpu_type: usize,
        milli: u64,
    ) -> Option<GuaranteeShortage> {
        self.climb_short(tree, account, gpu_type, milli, |above| {
            (
                self.used(above, gpu_type),
                self.set_apart[above as usize * self.types + gpu_type],
            )
        })
    }

    /// Climbs to the root with what the level below newly takes of this one: nothing, as long as it stands within
    /// what is set apart for it anyway. `taken` says what of a level is used, and what is set apart.
    fn climb_short(
        &self,
        tree: &AccountTree,
        account: u32,
        gpu_type: usize,
        milli: u64,
        taken: impl Fn(u32) -> (u64, u64),
    ) -> Option<GuaranteeShortage> {
        let mut newly = milli;
        for above in tree.line(account) {
            let level = &self.levels[above as usize];
            let (used, set_apart) = taken(above);
            match level.bound(gpu_type) {
                GrantedGuarantee::Nothing => {
                    return Some(GuaranteeShortage::Gpus {
                        account: above,
                        gpu_type,
                        most: 0,
                        used,
                    });
                }
                GrantedGuarantee::Up(most) => {
                    if used + milli > most {
                        return Some(GuaranteeShortage::Gpus {
                            account: above,
                            gpu_type,
                            most,
                            used,
                        });
                    }
                    if newly > 0 && set_apart + newly > most {
                        return Some(GuaranteeShortage::SetApart {
                            account: above,
                            gpu_type,
                            most,
                            set_apart,
                        });
                    }
                }
                GrantedGuarantee::Any => {}
            }
            if let Some(own) = level.own_of(gpu_type) {
                newly = (used + milli).max(own) - used.max(own);
            }
        }
        None
    }
}

/// What of a guarantee has no room. Thousandths of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuaranteeShortage {
    Gpus {
        account: u32,
        gpu_type: usize,
        most: u64,
        used: u64,
    },
    /// In use, and guaranteed to accounts below.
    SetApart {
        account: u32,
        gpu_type: usize,
        most: u64,
        set_apart: u64,
    },
    /// GPU-hours: the budget at a place among the guaranteed ones.
    Budget { account: u32, at: usize },
}

enum GrantedGuarantee {
    Up(u64),
    /// Not bounded at this level.
    Any,
    /// A type that the guarantee does not name.
    Nothing,
}

impl Level {
    fn grants(&self) -> bool {
        self.has_gpus || !self.budgets.is_empty()
    }
    fn bound(&self, gpu_type: usize) -> GrantedGuarantee {
        if !self.has_gpus {
            return GrantedGuarantee::Any;
        }
        match self.own.get(gpu_type).copied().flatten() {
            Some(most) => GrantedGuarantee::Up(most),
            // GPUs of an unknown type count within the total of all types.
            None if gpu_type == ALL => GrantedGuarantee::Up(self.sum),
            None if self.own[ALL].is_some() => GrantedGuarantee::Any,
            None => GrantedGuarantee::Nothing,
        }
    }
    /// What is set apart for the account of a type, where it has a guarantee that says so.
    fn own_of(&self, gpu_type: usize) -> Option<u64> {
        match gpu_type {
            _ if !self.has_gpus => None,
            ALL => Some(self.sum),
            other => self.own.get(other).copied().flatten(),
        }
    }
}

fn level(
    account: &Account,
    number: u32,
    types: &GpuTypes,
    budget_of: &dyn Fn(u32, &gmodel::policy::Budget) -> BudgetUse,
) -> Level {
    let mut own = vec![None; types.len()];
    for (name, milli) in account.guaranteed.iter().flat_map(|amounts| &amounts.0) {
        own[types.number(name)] = Some(*milli);
    }
    let sum = own[ALL].unwrap_or_else(|| own.iter().flatten().sum());
    let budgets = account
        .budgets
        .iter()
        .filter(|budget| budget.kind == BudgetKind::Guaranteed);
    Level {
        has_gpus: account.guaranteed.is_some(),
        own,
        sum,
        budgets: budgets.map(|budget| budget_of(number, budget)).collect(),
    }
}

fn lenders(policy: &Policy, tree: &AccountTree, types: &GpuTypes) -> Vec<Lender> {
    let amounts = |amounts: &GpuAmounts| {
        amounts
            .0
            .iter()
            .map(|(name, milli)| (types.number(name), *milli))
            .collect::<Vec<_>>()
    };
    let mut all: Vec<Lender> = policy
        .accounts
        .values()
        .filter_map(|account| Some((account, account.lend_limit.as_ref()?)))
        .filter_map(|(account, lends)| {
            Some(Lender {
                account: tree.number(&account.name)?,
                above: None,
                lends: amounts(lends),
            })
        })
        .collect();
    all.sort_by_key(|lender| tree.line(lender.account).count());
    for at in 0..all.len() {
        let account = all[at].account;
        let above = tree
            .line(account)
            .skip(1)
            .find_map(|up| all.iter().position(|lender| lender.account == up));
        all[at].above = above;
    }
    debug_assert!(all.iter().all(|lender| lender.account != ROOT));
    all
}
