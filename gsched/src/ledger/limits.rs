//! The limits of accounts, users, QOS and partitions, with GPU types and owners as numbers.
//!
//! A pass only reads them; what is held against them is counted by the meters.

use super::Take;
use super::owner::{OwnerNames, UsageOwner};
use crate::cluster::gpu_types::{GpuTypesOfNodes, gpu_types};
use crate::snapshot::{PendingJob, Snapshot};
use gmodel::config::ClusterConfig;
use gmodel::policy::{Limits, Qos};
use gmodel::{JobSpec, Policy, Timestamp};
use gpolicy::account_tree::AccountTree;
use gpolicy::limits::{Bound, GpuTypes, Holding, Scope};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One limit: of which account, QOS or partition, and of which user or account there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitId {
    pub scope: Scope,
    pub at: u32,
    pub member: Option<u32>,
}

/// All limits of the policy at the time of a pass.
#[derive(Debug)]
pub(super) struct PolicyLimits {
    pub now: Timestamp,
    pub config: Arc<ClusterConfig>,
    pub policy: Arc<Policy>,
    pub types: Arc<GpuTypes>,
    pub gpu_types: GpuTypesOfNodes,
    accounts: Vec<AccountLimits>,
    qos: Vec<GroupLimits>,
    partitions: Vec<GroupLimits>,
}

#[derive(Debug, Default)]
struct AccountLimits {
    group: Option<Bound>,
    per_user: Option<Bound>,
    /// Of users with limits of their own, which replace those of each user.
    users: BTreeMap<u32, Bound>,
}

/// The limits of a QOS or a partition.
#[derive(Debug)]
struct GroupLimits {
    group: Option<Bound>,
    per_user: Option<Bound>,
    per_account: Option<Bound>,
}

impl PolicyLimits {
    /// Gives a number to each user that has limits of its own.
    pub fn new(snapshot: &Snapshot, owners: &mut OwnerNames) -> Self {
        let (config, policy) = (snapshot.config.clone(), snapshot.policy.clone());
        let types = Arc::new(gpu_types(snapshot));
        let mut accounts = Vec::new();
        accounts.resize_with(owners.tree.len(), AccountLimits::default);
        for account in policy.accounts.values() {
            let Some(number) = owners.tree.number(&account.name) else {
                continue;
            };
            let with_limits = account.users.iter();
            let with_limits = with_limits.filter(|(_, user)| user.limits != Limits::default());
            let users = with_limits.filter_map(|(name, user)| {
                let bound = Bound::new(&stricter(&user.limits, &account.per_user), &types)?;
                Some((owners.user_or_new(name), bound))
            });
            accounts[number as usize] = AccountLimits {
                users: users.collect(),
                group: Bound::with_gpus(&account.group, account.limit.as_ref(), &types),
                per_user: Bound::new(&account.per_user, &types),
            };
        }
        let of_group = |group: &Limits, per_user: &Limits, per_account: &Limits| GroupLimits {
            group: Bound::new(group, &types),
            per_user: Bound::new(per_user, &types),
            per_account: Bound::new(per_account, &types),
        };
        let qos = policy.qos.values();
        let partitions = config.partitions.iter();
        Self {
            now: snapshot.now,
            gpu_types: GpuTypesOfNodes::new(snapshot, &types),
            accounts,
            qos: qos
                .map(|qos| of_group(&qos.group, &qos.per_user, &qos.per_account))
                .collect(),
            partitions: partitions
                .map(|one| of_group(&one.group, &one.per_user, &one.per_account))
                .collect(),
            types,
            config,
            policy,
        }
    }

    /// Each limit that counts a job of an owner: of its accounts from below, of its QOS, of its partition.
    pub fn of<'a>(
        &'a self,
        owner: UsageOwner,
        tree: &'a AccountTree,
    ) -> impl Iterator<Item = (LimitId, &'a Bound)> {
        let line = owner
            .account
            .into_iter()
            .flat_map(|account| tree.line(account));
        let accounts = line.flat_map(move |at| {
            let limits = self.accounts.get(at as usize);
            let of_user = limits.and_then(|limits| {
                let own = owner.user.and_then(|user| limits.users.get(&user));
                own.or(limits.per_user.as_ref())
            });
            [
                (
                    Scope::Account,
                    at,
                    None,
                    limits.and_then(|limits| limits.group.as_ref()),
                ),
                (Scope::UserInAccount, at, owner.user, of_user),
            ]
        });
        let of_group = move |limits: &'a [GroupLimits], at: Option<usize>, scopes: [Scope; 3]| {
            let limits = at.map(|at| (at as u32, &limits[at])).into_iter();
            limits.flat_map(move |(at, limits)| {
                let [group, user, account] = scopes;
                [
                    (group, at, None, limits.group.as_ref()),
                    (user, at, owner.user, limits.per_user.as_ref()),
                    (account, at, owner.account, limits.per_account.as_ref()),
                ]
            })
        };
        let qos = [Scope::Qos, Scope::UserInQos, Scope::AccountInQos];
        let partition = [
            Scope::Partition,
            Scope::UserInPartition,
            Scope::AccountInPartition,
        ];
        accounts
            .chain(of_group(&self.qos, owner.qos, qos))
            .chain(of_group(&self.partitions, owner.partition, partition))
            .filter_map(|(scope, at, member, bound)| Some((LimitId { scope, at, member }, bound?)))
    }

    /// What a job would hold that takes so much now.
    pub fn holding_of(&self, job: &PendingJob, take: &Take) -> Holding {
        let until = job
            .limit_secs
            .map(|secs| self.now.plus_secs(i64::from(secs)));
        let mut held = Holding::new(u64::from(take.cpus), u64::from(take.nodes), self.now, until);
        for (name, milli) in &take.gpus {
            held.add_gpus(self.types.number(name), *milli);
        }
        held
    }

    pub fn qos_of(&self, spec: &JobSpec) -> Option<&Qos> {
        self.policy.qos.get(&spec.qos)
    }

    /// Whether a job's QOS has it run outside of quotas.
    pub fn is_outside_quota(&self, spec: &JobSpec) -> bool {
        self.qos_of(spec).is_some_and(|qos| qos.outside_quota)
    }

    /// Why a job does not borrow: only a job that may be requeued does, or one that asks for it.
    pub fn borrowing_refusal(&self, spec: &JobSpec, owner: UsageOwner) -> Option<&'static str> {
        let partition = owner.partition.map(|at| &self.config.partitions[at]);
        let may_requeue = spec
            .requeue
            .unwrap_or(partition.is_none_or(|partition| partition.requeue));
        match spec.borrow {
            Some(true) => None,
            Some(false) => Some("--no-borrow"),
            None if may_requeue => None,
            None => Some("a job that may not be requeued does not borrow unless it says --borrow"),
        }
    }
}

/// A user's own limits; the limits of each user where the user has none.
fn stricter(own: &Limits, each: &Limits) -> Limits {
    let own = own.clone();
    Limits {
        running_jobs: own.running_jobs.or(each.running_jobs),
        submitted_jobs: own.submitted_jobs.or(each.submitted_jobs),
        gpus: own.gpus.or_else(|| each.gpus.clone()),
        cpus: own.cpus.or(each.cpus),
        nodes: own.nodes.or(each.nodes),
        running_gpu_hours: own.running_gpu_hours.or(each.running_gpu_hours),
        array_tasks: own.array_tasks.or(each.array_tasks),
        submits_per_minute: own.submits_per_minute.or(each.submits_per_minute),
    }
}
