//! Fair share by the fair tree: siblings are ranked by shares over use, depth first, and a user's rank is the factor.
//!
//! Ties are as Slurm's page "Fair Tree Fairshare Algorithm" has them (Cox and Morrison, BYU): tied users share a rank, a
//! user tied with an account has that of its best user, tied accounts are one. Never stores anything.

use crate::names::Names;
use crate::snapshot::{RunningRun, Snapshot};
use crate::usage::{Decayed, left_after, weight_of_type, weighted_micro};
use gmodel::policy::{Account, ROOT_ACCOUNT};
use gmodel::{JobSpec, NodeId, Policy};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Factors and parts of a whole are in millionths.
pub const PPM: u64 = 1_000_000;
/// Binary places of [`LevelFs`].
const PLACES: u32 = 32;
/// When a standing is foretold, thousandths of a half-life.
const OUTLOOK: [u32; 4] = [500, 1000, 2000, 4000];

/// Everybody's standing at one moment.
#[derive(Clone, Debug)]
pub struct FairTree<'a> {
    /// The root first, then accounts, then users.
    nodes: Vec<ShareNode<'a>>,
    children: Vec<Vec<usize>>,
    account_names: Names,
    /// Places of accounts, by number.
    accounts: Vec<usize>,
    user_names: Names,
    /// Places of users in accounts, by their numbers.
    users: BTreeMap<(u32, u32), usize>,
    /// Places of the users of the snapshot's waiting jobs.
    pending: Vec<usize>,
}

/// A line of sshare(1): an account, or a user in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareNode<'a> {
    pub account: &'a str,
    pub user: Option<&'a str>,
    /// Place of the account above; the root's is its own.
    pub parent: usize,
    pub shares: u32,
    /// Part of the siblings' shares, millionths.
    pub norm_shares: u64,
    /// Weighted and decayed, thousandths of a GPU times seconds; of an account with all below it.
    pub usage: u64,
    /// Part of everybody's use, millionths.
    pub norm_usage: u64,
    /// Part of the siblings' use, millionths.
    pub effective_usage: u64,
    pub level_fs: LevelFs,
    /// From the number of users down to 1; 0 for accounts.
    pub rank: u64,
    /// Rank over users, millionths.
    pub factor: u32,
}

/// Normalised shares over effective use, as a binary fraction. More is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LevelFs(u128);

/// Where a user would stand later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Thousandths of a half-life from now.
    pub after_half_lives_milli: u32,
    pub usage: u64,
    pub level_fs: LevelFs,
    pub factor: u32,
}

impl LevelFs {
    /// Of somebody who used nothing.
    pub const INFINITE: Self = Self(u128::MAX);

    fn of(shares: u64, all_shares: u64, usage: u128, all_usage: u128) -> Self {
        match (shares, usage) {
            (0, _) => Self(0),
            (_, 0) => Self::INFINITE,
            _ => Self(((u128::from(shares) * all_usage) << PLACES) / (u128::from(all_shares) * usage)),
        }
    }

    /// Millionths; `None` is infinite.
    pub fn ppm(self) -> Option<u64> {
        if self == Self::INFINITE {
            return None;
        }
        let whole = (self.0 >> PLACES).saturating_mul(u128::from(PPM));
        let half = 1 << (PLACES - 1);
        let rest = ((self.0 & ((1 << PLACES) - 1)) * u128::from(PPM) + half) >> PLACES;
        Some(u64::try_from(whole + rest).unwrap_or(u64::MAX))
    }
}

impl<'a> FairTree<'a> {
    /// Of everybody the policy names, who used anything, or whose jobs run or wait.
    pub fn of(snapshot: &'a Snapshot) -> Self {
        let mut tree = Self::of_policy(&snapshot.policy);
        tree.enter_use(snapshot);
        let mut last: Option<(&Arc<JobSpec>, usize)> = None;
        tree.pending.reserve(snapshot.pending.len());
        for job in &snapshot.pending {
            let at = match last.filter(|(spec, _)| Arc::ptr_eq(spec, &job.spec)) {
                Some((_, at)) => at,
                None => tree.user_or_new(&job.spec.account, &job.spec.user.name, 1),
            };
            last = Some((&job.spec, at));
            tree.pending.push(at);
        }
        tree.finish()
    }

    /// From what each user has used in each account.
    pub fn new(policy: &'a Policy, used: impl IntoIterator<Item = (&'a str, &'a str, u64)>) -> Self {
        let mut tree = Self::of_policy(policy);
        for (account, user, usage) in used {
            let at = tree.user_or_new(account, user, 1);
            tree.nodes[at].usage = usage;
        }
        tree.finish()
    }

    fn of_policy(policy: &'a Policy) -> Self {
        let mut tree = Self {
            nodes: Vec::new(),
            children: Vec::new(),
            account_names: Names::default(),
            accounts: Vec::new(),
            user_names: Names::default(),
            users: BTreeMap::new(),
            pending: Vec::new(),
        };
        tree.account_or_new(ROOT_ACCOUNT, 1);
        for (name, account) in &policy.accounts {
            tree.account_or_new(name, account.shares);
        }
        for name in policy.accounts.keys() {
            // A chain that would come back to itself ends at the root.
            let line = policy.lineage(name);
            let goes_on = |last: &&Account| last.parent.as_ref().is_some_and(|up| policy.accounts.contains_key(up));
            let parent = line.get(1).filter(|_| !line.last().is_some_and(goes_on));
            let parent = parent.map_or(0, |account| tree.account_or_new(&account.name, 1));
            let at = tree.account_or_new(name, 1);
            tree.nodes[at].parent = parent;
        }
        for (name, account) in &policy.accounts {
            for (user, entry) in &account.users {
                tree.user_or_new(name, user, entry.shares);
            }
        }
        tree
    }

    fn account_or_new(&mut self, name: &'a str, shares: u32) -> usize {
        let number = self.account_names.number_or_new(name) as usize;
        if number == self.accounts.len() {
            let at = self.push(name, None, 0, shares);
            self.accounts.push(at);
        }
        self.accounts[number]
    }

    fn user_or_new(&mut self, account: &'a str, user: &'a str, shares: u32) -> usize {
        let parent = self.account_or_new(account, 1);
        let key = (self.account_names.number_or_new(account), self.user_names.number_or_new(user));
        if let Some(at) = self.users.get(&key) {
            return *at;
        }
        let at = self.push(account, Some(user), parent, shares);
        self.users.insert(key, at);
        at
    }

    fn place(&self, account: &str, user: &str) -> Option<usize> {
        self.users.get(&(self.account_names.number(account)?, self.user_names.number(user)?)).copied()
    }

    /// What everybody has used by now, weighted and decayed, with what runs.
    fn enter_use(&mut self, snapshot: &'a Snapshot) {
        let half_life = snapshot.config.scheduler.fair_share.half_life_secs;
        let mut running: BTreeMap<usize, Decayed> = BTreeMap::new();
        let weights = GpuWeights::new(snapshot);
        let mut last: Option<(&Arc<JobSpec>, usize)> = None;
        for run in snapshot.running.iter().filter(|run| !run.charged) {
            let at = match last.filter(|(spec, _)| Arc::ptr_eq(spec, &run.spec)) {
                Some((_, at)) => at,
                None => self.user_or_new(&run.spec.account, &run.spec.user.name, 1),
            };
            last = Some((&run.spec, at));
            let Some(started) = run.started else { continue };
            let used = running.entry(at).or_default();
            used.charge(weights.rate(snapshot, run), started, snapshot.now, half_life);
        }
        for (account, user, decayed) in snapshot.usage.users() {
            let at = self.user_or_new(account, user, 1);
            self.nodes[at].usage = match running.remove(&at) {
                None => decayed.at(snapshot.now, half_life),
                Some(more) => decayed.with(&more, snapshot.now, half_life),
            };
        }
        for (at, decayed) in running {
            self.nodes[at].usage = decayed.at(snapshot.now, half_life);
        }
    }

    fn finish(mut self) -> Self {
        self.children = vec![Vec::new(); self.nodes.len()];
        for at in 1..self.nodes.len() {
            self.children[self.nodes[at].parent].push(at);
        }
        self.compute();
        self
    }

    /// A user's factor, millionths; nobody is without use or job and asked for.
    pub fn factor(&self, account: &str, user: &str) -> u32 {
        self.place(account, user).map_or(PPM as u32, |at| self.nodes[at].factor)
    }

    /// The factor of a waiting job's user, by its place in the snapshot, millionths.
    pub fn factor_of_pending(&self, at: usize) -> u32 {
        self.nodes[self.pending[at]].factor
    }

    /// The tree as sshare(1) lists it: each account, then its users, then the accounts below it, by name.
    pub fn lines(&self) -> Vec<(usize, &ShareNode<'a>)> {
        let mut lines = Vec::with_capacity(self.nodes.len());
        self.list(0, 0, &mut lines);
        lines
    }

    /// How a user's standing develops if they run nothing and everybody else goes on as of late, which keeps the use of
    /// the others where it is.
    pub fn outlook(&self, account: &str, user: &str) -> Vec<Outlook> {
        let Some(at) = self.place(account, user) else { return Vec::new() };
        let later = |thousandths: u32| {
            let mut tree = self.clone();
            tree.nodes[at].usage = left_after(self.nodes[at].usage, thousandths);
            tree.compute();
            let node = &tree.nodes[at];
            Outlook { after_half_lives_milli: thousandths, usage: node.usage, level_fs: node.level_fs, factor: node.factor }
        };
        OUTLOOK.map(later).to_vec()
    }

    /// The line of an account.
    pub fn account(&self, name: &str) -> Option<&ShareNode<'a>> {
        self.nodes.iter().find(|node| node.user.is_none() && node.account == name)
    }

    fn push(&mut self, account: &'a str, user: Option<&'a str>, parent: usize, shares: u32) -> usize {
        self.nodes.push(ShareNode {
            account,
            user,
            parent,
            shares,
            norm_shares: 0,
            usage: 0,
            norm_usage: 0,
            effective_usage: 0,
            level_fs: LevelFs::INFINITE,
            rank: 0,
            factor: 0,
        });
        self.nodes.len() - 1
    }

    fn compute(&mut self) {
        self.add_up(0);
        let all = self.nodes[0].usage;
        for parent in 0..self.nodes.len() {
            let children = std::mem::take(&mut self.children[parent]);
            let shares: u64 = children.iter().map(|at| u64::from(self.nodes[*at].shares)).sum();
            let usage: u128 = children.iter().map(|at| u128::from(self.nodes[*at].usage)).sum();
            for &at in &children {
                let node = &mut self.nodes[at];
                node.norm_shares = part(u128::from(node.shares), u128::from(shares));
                node.effective_usage = part(u128::from(node.usage), usage);
                node.norm_usage = part(u128::from(node.usage), u128::from(all));
                node.level_fs = LevelFs::of(u64::from(node.shares), shares, u128::from(node.usage), usage);
            }
            self.children[parent] = children;
        }
        let mut ranks = Ranks { next: self.users.len() as u64, last: self.users.len() as u64 };
        self.visit(self.children[0].clone(), false, &mut ranks);
    }

    fn add_up(&mut self, at: usize) -> u64 {
        if self.nodes[at].user.is_some() {
            return self.nodes[at].usage;
        }
        let children = std::mem::take(&mut self.children[at]);
        let usage = children.iter().map(|child| self.add_up(*child)).fold(0, u64::saturating_add);
        self.children[at] = children;
        self.nodes[at].usage = usage;
        usage
    }

    /// Ranks the users of siblings and of those below them; says whether there were any. `tied`: the first of them
    /// shares the last rank given.
    fn visit(&mut self, mut siblings: Vec<usize>, mut tied: bool, ranks: &mut Ranks) -> bool {
        siblings.sort_by_key(|at| (Reverse(self.nodes[*at].level_fs), self.nodes[*at].user.is_none(), *at));
        let mut any = false;
        let mut rest = &siblings[..];
        while let Some(first) = rest.first() {
            let level_fs = self.nodes[*first].level_fs;
            let (equal, others) = rest.split_at(rest.partition_point(|at| self.nodes[*at].level_fs == level_fs));
            let (users, accounts) = equal.split_at(equal.partition_point(|at| self.nodes[*at].user.is_some()));
            rest = others;
            for &at in users {
                self.rank(at, tied, ranks);
                tied = true;
            }
            let below: Vec<usize> = accounts.iter().flat_map(|at| self.children[*at].iter().copied()).collect();
            let ranked = !below.is_empty() && self.visit(below, tied, ranks);
            if ranked || !users.is_empty() {
                (any, tied) = (true, false);
            }
        }
        any
    }

    fn rank(&mut self, at: usize, tied: bool, ranks: &mut Ranks) {
        if !tied {
            ranks.last = ranks.next;
        }
        ranks.next -= 1;
        self.nodes[at].rank = ranks.last;
        self.nodes[at].factor = (ranks.last * PPM / self.users.len() as u64) as u32;
    }

    fn list<'t>(&'t self, at: usize, depth: usize, lines: &mut Vec<(usize, &'t ShareNode<'a>)>) {
        lines.push((depth, &self.nodes[at]));
        let mut children = self.children[at].clone();
        children.sort_by_key(|at| (self.nodes[*at].user.is_none(), self.nodes[*at].account, self.nodes[*at].user));
        for child in children {
            self.list(child, depth + 1, lines);
        }
    }
}

struct Ranks {
    /// Of the next user who is not tied.
    next: u64,
    /// That was given last.
    last: u64,
}

fn part(one: u128, all: u128) -> u64 {
    if all == 0 { 0 } else { (one * u128::from(PPM) / all) as u64 }
}

/// Weights of the GPUs of each node, by slot.
struct GpuWeights {
    nodes: Vec<(NodeId, usize)>,
    weights: Vec<u32>,
}

impl GpuWeights {
    fn new(snapshot: &Snapshot) -> Self {
        let config = &snapshot.config.scheduler.fair_share;
        let mut all = Self { nodes: Vec::with_capacity(snapshot.nodes.len()), weights: Vec::new() };
        if config.gpu_weights_milli.is_empty() {
            return all;
        }
        for node in &snapshot.nodes {
            all.nodes.push((node.id, all.weights.len()));
            all.weights.extend(node.gpus.iter().map(|gpu| weight_of_type(config, &gpu.info.gpu_type)));
        }
        all
    }

    fn rate(&self, snapshot: &Snapshot, run: &RunningRun) -> u64 {
        let factor = snapshot.policy.qos.get(&run.spec.qos).map_or(1000, |qos| qos.usage_factor_milli);
        let weight = |node: NodeId, slot: gmodel::GpuSlot| {
            let Ok(at) = self.nodes.binary_search_by_key(&node, |(id, _)| *id) else { return 1000 };
            self.weights.get(self.nodes[at].1 + usize::from(slot.0)).copied().unwrap_or(1000)
        };
        weighted_micro(&run.shares, weight, &snapshot.config.scheduler.fair_share, factor)
    }
}

#[cfg(test)]
mod tests;
