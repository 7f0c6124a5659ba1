//! The tree of accounts by number, so that a pass follows it without looking at names. Number 0 is the root.
//!
//! Accounts that jobs name and the policy does not know are directly below the root. Never knows limits or use.

use crate::names::Names;
use gmodel::Policy;
use gmodel::policy::ROOT_ACCOUNT;

/// Number of the root.
pub const ROOT: u32 = 0;

#[derive(Clone, Debug)]
pub struct AccountTree {
    names: Names,
    /// Above each, nearest first, without the root.
    above: Vec<Vec<u32>>,
}

impl AccountTree {
    /// The policy's accounts, in the order of their names.
    pub fn new(policy: &Policy) -> Self {
        let mut tree = Self {
            names: [ROOT_ACCOUNT].into_iter().collect(),
            above: vec![Vec::new()],
        };
        for name in policy.accounts.keys() {
            tree.number_or_new(name);
        }
        for name in policy.accounts.keys() {
            let line = policy.lineage(name);
            let above: Vec<u32> = line
                .iter()
                .skip(1)
                .filter_map(|account| tree.number(&account.name))
                .collect();
            let at = tree.number_or_new(name);
            tree.above[at as usize] = above;
        }
        tree
    }

    pub fn number(&self, name: &str) -> Option<u32> {
        self.names.number(name)
    }

    /// The number of an account; an unknown one is added directly below the root.
    pub fn number_or_new(&mut self, name: &str) -> u32 {
        let number = self.names.number_or_new(name);
        self.above.resize_with(self.names.len(), Vec::new);
        number
    }

    pub fn name(&self, number: u32) -> &str {
        self.names.name(number)
    }

    /// Accounts and the root.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    /// An account and those above it, itself first, without the root.
    pub fn line(&self, number: u32) -> impl Iterator<Item = u32> + '_ {
        let itself = (number != ROOT).then_some(number);
        itself
            .into_iter()
            .chain(self.above[number as usize].iter().copied())
    }

    /// The account directly above, or the root.
    pub fn parent(&self, number: u32) -> u32 {
        self.above[number as usize].first().copied().unwrap_or(ROOT)
    }

    /// Whether `number` is `above` or below it.
    pub fn is_within(&self, number: u32, above: u32) -> bool {
        above == ROOT || self.line(number).any(|one| one == above)
    }
}
