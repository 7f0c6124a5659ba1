//! The site's scheduling policy: accounts, QOS, limits, quotas, reservations, weights, prices.
//!
//! Plain data with defaults that leave everything off: a cluster without any of it runs jobs by age.
//! Where each comes from (TOML, or `gadm` and the database) is the daemon's affair. Words of slurm.conf(5), sacctmgr(1).

pub mod account;
pub mod limits;
pub mod price;
pub mod qos;
pub mod reservation;
pub mod scheduler_config;

pub use crate::gpu_amounts::{ALL_GPUS, GpuAmounts};
use crate::partition::MadePartition;
pub use crate::topology::{NodeGroup, Rails, Switch, Topology};
pub use account::{
    Account, AccountUser, Budget, BudgetKind, GuaranteeOverLimit, GuaranteeOverdraft, Period,
    ROOT_ACCOUNT,
};
pub use limits::{JobLimits, Limits};
pub use price::{Price, PriceBook, money_micro, money_text};
pub use qos::{PreemptMode, Qos};
pub use reservation::{Repeat, Reservation, ReservedPart, reserved_for};
pub use scheduler_config::{
    Backfill, FairShare, JobOrder, Placement, PreemptConfig, PriorityWeights, SchedulerConfig,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Longest time that a key of a record may be, seconds.
pub const MAX_DURATION_SECS: u32 = 366 * 86_400;

/// The accounts, QOS and reservations: edited at run time or read from files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    pub accounts: BTreeMap<String, Account>,
    pub qos: BTreeMap<String, Qos>,
    pub reservations: BTreeMap<String, Reservation>,
    /// Of those that operators make; the files' partitions are in the configuration.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub partitions: BTreeMap<String, MadePartition>,
}

impl Policy {
    /// An account and those above it, itself first. Ends at the root, or where the chain would come back.
    pub fn lineage<'a>(&'a self, name: &str) -> Vec<&'a Account> {
        let mut line: Vec<&Account> = Vec::new();
        let mut next = self.accounts.get(name);
        while let Some(account) = next {
            if line.iter().any(|seen| seen.name == account.name) {
                break;
            }
            line.push(account);
            next = account
                .parent
                .as_deref()
                .and_then(|parent| self.accounts.get(parent));
        }
        line
    }
    /// Whether an account is one of those named, or below one.
    pub fn is_among(&self, account: &str, named: impl Fn(&str) -> bool) -> bool {
        named(account) || self.lineage(account).iter().any(|above| named(&above.name))
    }

    /// Whether a reservation is for jobs of a user in an account: with lists of both it must be for the one and for the other.
    pub fn is_reserved_for(&self, reservation: &Reservation, user: &str, account: &str) -> bool {
        let Reservation {
            users, accounts, ..
        } = reservation;
        let barred = |names: &BTreeSet<String>, name: &str| {
            names.iter().any(|one| one.strip_prefix('-') == Some(name))
        };
        // A list without a name that has no minus is for all others.
        let all = |names: &BTreeSet<String>| names.iter().all(|name| name.starts_with('-'));
        let of_users = !barred(users, user) && (all(users) || users.contains(user));
        let of_accounts = || {
            !self.is_among(account, |name| barred(accounts, name))
                && (all(accounts) || self.is_among(account, |name| accounts.contains(name)))
        };
        !(users.is_empty() && accounts.is_empty()) && of_users && of_accounts()
    }
    /// Accounts that are guaranteed less than those below them together, each with the first such type.
    pub fn overdrawn(&self) -> Vec<GuaranteeOverdraft<'_>> {
        // Each stands on the nearest guarantee above it.
        let mut below: BTreeMap<&str, Vec<(&str, &GpuAmounts)>> = BTreeMap::new();
        for account in self.accounts.values() {
            let Some(guaranteed) = &account.guaranteed else {
                continue;
            };
            let above = self
                .lineage(&account.name)
                .into_iter()
                .skip(1)
                .find(|above| above.guaranteed.is_some());
            if let Some(above) = above {
                below
                    .entry(&above.name)
                    .or_default()
                    .push((&account.name, guaranteed));
            }
        }
        let mut found = Vec::new();
        for (account, below) in below {
            let own = self
                .accounts
                .get(account)
                .and_then(|account| account.guaranteed.as_ref());
            for (gpu_type, milli) in own.into_iter().flat_map(|own| &own.0) {
                let parts = below
                    .iter()
                    .map(|(name, all)| (*name, all.amount(gpu_type)));
                let parts: Vec<(&str, u64)> = parts.filter(|(_, part)| *part > 0).collect();
                let sum = parts.iter().map(|(_, part)| part).sum();
                if sum > *milli {
                    found.push(GuaranteeOverdraft {
                        account,
                        gpu_type,
                        milli: *milli,
                        parts,
                        sum,
                    });
                    break;
                }
            }
        }
        found
    }
    /// Whether a QOS may end runs of another, or of one that may, and so on.
    pub fn qos_reaches(&self, one: &str, other: &str) -> bool {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut next = vec![one];
        while let Some(name) = next.pop() {
            let Some(qos) = self.qos.get(name) else {
                continue;
            };
            if qos.preempt.contains(other) {
                return true;
            }
            next.extend(
                qos.preempt
                    .iter()
                    .map(|name| &**name)
                    .filter(|name| seen.insert(name)),
            );
        }
        false
    }
    /// Guarantees that an account above does not let be held.
    pub fn beyond_limits_above(&self) -> Vec<GuaranteeOverLimit<'_>> {
        let mut found = Vec::new();
        for (account, one) in &self.accounts {
            let Some(guaranteed) = &one.guaranteed else {
                continue;
            };
            let beyond = self.lineage(account).into_iter().skip(1).find_map(|above| {
                let (gpu_type, milli, most) = guaranteed.beyond(above.limit.as_ref()?)?;
                Some(GuaranteeOverLimit {
                    account,
                    above: &above.name,
                    gpu_type,
                    milli,
                    most,
                })
            });
            found.extend(beyond);
        }
        found
    }
    /// Whether any account has a guarantee: only then are runs guaranteed or borrowed.
    pub fn has_quotas(&self) -> bool {
        self.accounts.values().any(|account| {
            account.guaranteed.is_some()
                || account
                    .budgets
                    .iter()
                    .any(|budget| budget.kind == BudgetKind::Guaranteed)
        })
    }
    /// Whether a user may coordinate an account, there or above it.
    pub fn coordinates(&self, user: &str, account: &str) -> bool {
        self.lineage(account)
            .iter()
            .any(|account| account.coordinators.contains(user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str, parent: Option<&str>, guaranteed: &[(&str, u64)]) -> (String, Account) {
        let amounts = GpuAmounts(
            guaranteed
                .iter()
                .map(|(kind, milli)| ((*kind).to_owned(), *milli))
                .collect(),
        );
        let guaranteed = (!guaranteed.is_empty()).then_some(amounts);
        (
            name.to_owned(),
            Account {
                name: name.into(),
                parent: parent.map(Into::into),
                guaranteed,
                ..Account::default()
            },
        )
    }

    #[test]
    fn what_is_guaranteed_below_counts_at_the_nearest_guarantee_above() {
        let of = |deep: u64| Policy {
            accounts: BTreeMap::from([
                account("top", None, &[("h100", 8000)]),
                account("middle", Some("top"), &[]),
                account("deep", Some("middle"), &[("h100", deep)]),
                account("deeper", Some("deep"), &[("h100", 4000)]),
                account("side", Some("top"), &[("h100", 2000), ("a100", 9000)]),
            ]),
            ..Policy::default()
        };
        assert_eq!(of(6000).overdrawn(), []);
        let parts = vec![("deep", 7000), ("side", 2000)];
        assert_eq!(
            of(7000).overdrawn(),
            [GuaranteeOverdraft {
                account: "top",
                gpu_type: "h100",
                milli: 8000,
                parts,
                sum: 9000
            }]
        );
        assert_eq!(of(3000).overdrawn()[0].account, "deep");
    }

    #[test]
    fn a_guarantee_by_types_is_held_against_a_limit_of_all() {
        let (_, mut one) = account("a", None, &[("h100", 5000), ("a100", 4000)]);
        one.limit = Some(GpuAmounts::all(9));
        assert_eq!(one.guaranteed_beyond_limit(), None);
        one.limit = Some(GpuAmounts::all(8));
        assert_eq!(one.guaranteed_beyond_limit(), Some((ALL_GPUS, 9000, 8000)));
    }
}
