//! The accounts, users, QOS and partitions of jobs by number, for a pass to look each name up once.

use gmodel::config::ClusterConfig;
use gmodel::{JobSpec, Policy};
use gpolicy::account_tree::AccountTree;
use gpolicy::names::Names;

/// The account, user, QOS and partition that a job counts for. An unknown one holds nothing.
#[derive(Clone, Copy, Debug)]
pub struct UsageOwner {
    pub account: Option<u32>,
    pub(super) user: Option<u32>,
    pub(super) qos: Option<usize>,
    pub(super) partition: Option<usize>,
}

/// The numbers of all owners. It grows when a job names an account or a user that is not there yet.
#[derive(Clone, Debug)]
pub(super) struct OwnerNames {
    pub tree: AccountTree,
    users: Names,
    qos: Names,
    partitions: Names,
}

impl OwnerNames {
    pub fn new(config: &ClusterConfig, policy: &Policy) -> Self {
        let partitions = config.partitions.iter();
        Self {
            tree: AccountTree::new(policy),
            users: Names::default(),
            qos: policy.qos.keys().map(String::as_str).collect(),
            partitions: partitions.map(|one| one.name.as_str()).collect(),
        }
    }

    pub fn partition(&self, name: &str) -> Option<usize> {
        self.partitions.number(name).map(|at| at as usize)
    }

    pub fn user_or_new(&mut self, name: &str) -> u32 {
        self.users.number_or_new(name)
    }

    pub fn owner(&self, spec: &JobSpec) -> UsageOwner {
        UsageOwner {
            account: self.tree.number(&spec.account),
            user: self.users.number(&spec.user.name),
            qos: self.qos.number(&spec.qos).map(|at| at as usize),
            partition: self.partition(&spec.partition),
        }
    }

    pub fn owner_or_new(&mut self, spec: &JobSpec) -> UsageOwner {
        UsageOwner {
            account: Some(self.tree.number_or_new(&spec.account)),
            user: Some(self.user_or_new(&spec.user.name)),
            ..self.owner(spec)
        }
    }
}
