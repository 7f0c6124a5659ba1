//! What accounts, users, QOS and partitions hold, and the licences and budgets that runs use: counted up and down in a pass.

use super::limits::{LimitId, PolicyLimits};
use super::owner::{OwnerNames, UsageOwner};
use crate::snapshot::{RunningRun, Snapshot};
use gmodel::policy::{Budget, BudgetKind, Period};
use gmodel::{JobSpec, Timestamp};
use gpolicy::account_tree::AccountTree;
use gpolicy::budget::BudgetUse;
use gpolicy::limits::{ALL, GPU_HOUR, GpuTypes, Holding, Meter, Scope};
use std::collections::BTreeMap;

/// Periods of a cap that are looked into, the present one first.
const MOST_PERIODS: usize = 24;

#[derive(Clone, Debug)]
pub(super) struct Meters {
    accounts: Vec<AccountUse>,
    qos: Vec<Meter>,
    partitions: Vec<Meter>,
    /// Of users, and of accounts in QOS and partitions: only where a limit bounds them.
    members: BTreeMap<LimitId, Meter>,
    pub licences: BTreeMap<String, LicenceUse>,
}

/// What an account and those below it hold, and its budgets in their present periods.
#[derive(Clone, Debug, Default)]
struct AccountUse {
    held: Meter,
    budgets: Vec<(Budget, BudgetUse)>,
}

#[derive(Clone, Debug)]
pub(super) struct LicenceUse {
    pub all: u32,
    pub used: u64,
}

impl Meters {
    pub fn new(snapshot: &Snapshot, limits: &PolicyLimits, owners: &OwnerNames) -> Self {
        let mut accounts = vec![AccountUse::default(); owners.tree.len()];
        let mut periods = Periods::new(snapshot);
        for account in snapshot.policy.accounts.values() {
            let Some(number) = owners.tree.number(&account.name) else {
                continue;
            };
            let budgets = account.budgets.iter().map(|budget| {
                let spent = periods.spent(budget, number, &owners.tree, &limits.types);
                (budget.clone(), spent)
            });
            accounts[number as usize].budgets = budgets.collect();
        }
        let licences = snapshot.config.scheduler.licences.iter();
        let licences =
            licences.map(|(name, all)| (name.clone(), LicenceUse { all: *all, used: 0 }));
        Self {
            accounts,
            qos: vec![Meter::default(); snapshot.policy.qos.len()],
            partitions: vec![Meter::default(); snapshot.config.partitions.len()],
            members: BTreeMap::new(),
            licences: licences.collect(),
        }
    }

    /// Makes room for accounts that the policy does not name.
    pub fn grow(&mut self, accounts: usize) {
        self.accounts.resize_with(accounts, AccountUse::default);
    }

    /// What counts against a limit; `None`: nothing as yet.
    pub fn of(&self, limit: LimitId) -> Option<&Meter> {
        let at = limit.at as usize;
        match limit.scope {
            Scope::Account => Some(&self.accounts[at].held),
            Scope::Qos => Some(&self.qos[at]),
            Scope::Partition => Some(&self.partitions[at]),
            _ => self.members.get(&limit),
        }
    }

    /// Thousandths of GPUs that an account and those below it hold, of all types.
    pub fn gpus_of_account(&self, account: u32) -> u64 {
        let account = self.accounts.get(account as usize);
        account.map_or(0, |account| account.held.gpus_of(ALL))
    }

    pub fn budgets(&self, account: u32) -> &[(Budget, BudgetUse)] {
        let account = self.accounts.get(account as usize);
        account.map_or(&[], |account| &account.budgets)
    }

    /// Adds what a run holds to all that it counts for, or takes it off.
    pub fn count(
        &mut self,
        limits: &PolicyLimits,
        tree: &AccountTree,
        owner: UsageOwner,
        held: &Holding,
        add: bool,
    ) {
        let (now, types) = (limits.now, limits.types.len());
        let change = |meter: &mut Meter| match add {
            true => meter.add(held, now, types),
            false => meter.remove(held, now),
        };
        for number in owner.account.iter().flat_map(|account| tree.line(*account)) {
            let account = &mut self.accounts[number as usize];
            change(&mut account.held);
            for (_, budget) in &mut account.budgets {
                budget.count(held, now, add);
            }
        }
        owner
            .qos
            .into_iter()
            .for_each(|at| change(&mut self.qos[at]));
        owner
            .partition
            .into_iter()
            .for_each(|at| change(&mut self.partitions[at]));
        let of_members = limits
            .of(owner, tree)
            .filter(|(limit, _)| limit.member.is_some());
        of_members.for_each(|(limit, _)| change(self.members.entry(limit).or_default()));
    }

    /// Adds the licences of a job to those in use, or takes them off.
    pub fn count_licences(&mut self, spec: &JobSpec, add: bool) {
        for (name, count) in &spec.licences {
            if let Some(licence) = self.licences.get_mut(name) {
                let count = u64::from(*count);
                licence.used = match add {
                    true => licence.used + count,
                    false => licence.used.saturating_sub(count),
                };
            }
        }
    }

    /// Adds the GPU time of a live run until now to its accounts' budgets.
    pub fn add_past(
        &mut self,
        run: &RunningRun,
        line: impl Iterator<Item = u32>,
        held: &Holding,
        now: Timestamp,
    ) {
        let Some(started) = run.started else {
            return;
        };
        for number in line {
            for (_, budget) in &mut self.accounts[number as usize].budgets {
                let millis = now.since_millis(started.max(budget.start)) as u128;
                budget.used += u128::from(held.of(budget.gpu_type)) * millis;
            }
        }
    }
}

/// The periods of budgets that reach from now on.
struct Periods<'a> {
    snapshot: &'a Snapshot,
    by_length: BTreeMap<Period, PeriodBounds>,
}

struct PeriodBounds {
    start: Timestamp,
    end: Timestamp,
    /// The ends of the periods that follow.
    ends: Vec<Timestamp>,
}

impl<'a> Periods<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        Self {
            snapshot,
            by_length: BTreeMap::new(),
        }
    }

    /// What was charged of a budget to its account and those below it.
    fn spent(
        &mut self,
        budget: &Budget,
        account: u32,
        tree: &AccountTree,
        types: &GpuTypes,
    ) -> BudgetUse {
        let (book, now) = (&self.snapshot.usage, self.snapshot.now);
        let name = budget
            .gpu_type
            .as_ref()
            .map(|name| name.to_ascii_lowercase());
        let below = (1..tree.len() as u32).filter(|one| tree.is_within(*one, account));
        let used = below
            .map(|one| book.in_period(tree.name(one), budget.period, now, name.as_deref()))
            .sum();
        let bounds = self.by_length.entry(budget.period).or_insert_with(|| {
            let bounds = |at: Timestamp| book.period_bounds(budget.period, at);
            let (start, end) = bounds(now);
            let ends = std::iter::successors(Some(end), |end| Some(bounds(*end).1));
            let ends = ends.skip(1).take(MOST_PERIODS - 1).collect();
            PeriodBounds { start, end, ends }
        });
        let gpu_type = budget
            .gpu_type
            .as_ref()
            .map_or(ALL, |name| types.number(name));
        let most = u128::from(budget.gpu_hours) * GPU_HOUR;
        let spent = BudgetUse::new(gpu_type, most, used, bounds.start, bounds.end);
        match budget.kind {
            BudgetKind::Cap => spent.followed_by(&bounds.ends),
            _ => spent,
        }
    }
}
