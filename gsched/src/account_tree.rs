//! The tree of accounts by number, so that a pass follows it without looking at names. Number 0 is the root.
//!
//! Accounts that jobs name and the policy does not know stand directly below the root. Never knows limits or use.

use gmodel::Policy;
use gmodel::policy::ROOT_ACCOUNT;
use std::collections::BTreeMap;

/// Number of the root.
pub const ROOT: u32 = 0;

#[derive(Clone, Debug)]
pub struct AccountTree {
    names: Vec<String>,
    numbers: BTreeMap<String, u32>,
    /// Above each, nearest first, without the root.
    above: Vec<Vec<u32>>,
}

impl AccountTree {
    /// The policy's accounts, in the order of their names.
    pub fn new(policy: &Policy) -> Self {
        let mut tree = Self {
            names: vec![ROOT_ACCOUNT.to_owned()],
            numbers: BTreeMap::from([(ROOT_ACCOUNT.to_owned(), ROOT)]),
            above: vec![Vec::new()],
        };
        for name in policy.accounts.keys() {
            tree.number_or_new(name);
        }
        for name in policy.accounts.keys() {
            let line = policy.lineage(name);
            let above: Vec<u32> = line.iter().skip(1).filter_map(|account| tree.number(&account.name)).collect();
            let at = tree.numbers[name] as usize;
            tree.above[at] = above;
        }
        tree
    }

    pub fn number(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// The number of an account; one that is not known yet comes directly below the root.
    pub fn number_or_new(&mut self, name: &str) -> u32 {
        if let Some(number) = self.number(name) {
            return number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        self.above.push(Vec::new());
        number
    }

    pub fn name(&self, number: u32) -> &str {
        &self.names[number as usize]
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
        itself.into_iter().chain(self.above[number as usize].iter().copied())
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
