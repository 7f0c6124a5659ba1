//! Fair share by the fair tree: siblings are ranked by shares over use, depth first, and a user's rank is the factor.
//!
//! Ties are as Slurm's page "Fair Tree Fairshare Algorithm" has them (Cox and Morrison, BYU): tied users share a rank, a
//! user tied with an account has that of its best user, tied accounts are one. Never stores anything.

use crate::snapshot::{RunningRun, Snapshot};
use crate::usage::{Decayed, left_after, weight_of_type, weighted_micro};
use gmodel::policy::ROOT_ACCOUNT;
use gmodel::{NodeId, Policy};
use std::cmp::Reverse;
use std::collections::BTreeMap;

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
    users: BTreeMap<(&'a str, &'a str), usize>,
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
        let mut used = use_of_all(snapshot);
        for job in &snapshot.pending {
            used.entry((&job.spec.account, &job.spec.user.name)).or_default();
        }
        Self::new(&snapshot.policy, used.into_iter().map(|((account, user), usage)| (account, user, usage)))
    }

    /// From what each user has used in each account.
    pub fn new(policy: &'a Policy, used: impl IntoIterator<Item = (&'a str, &'a str, u64)>) -> Self {
        let mut tree = Self { nodes: Vec::new(), children: Vec::new(), users: BTreeMap::new() };
        let mut accounts = BTreeMap::from([(ROOT_ACCOUNT, tree.push(ROOT_ACCOUNT, None, 0, 1))]);
        for (name, account) in &policy.accounts {
            accounts.entry(name).or_insert_with(|| tree.push(name, None, 0, account.shares));
        }
        for name in policy.accounts.keys() {
            // A chain that would come back to itself ends at the root.
            let line = policy.lineage(name);
            let broken = line.last().is_none_or(|last| last.parent.as_ref().is_some_and(|up| policy.accounts.contains_key(up)));
            let parent = line.get(1).filter(|_| !broken).map(|account| accounts[account.name.as_str()]);
            tree.nodes[accounts[name.as_str()]].parent = parent.unwrap_or(0);
        }
        let known = policy.accounts.iter().flat_map(|(name, account)| {
            account.users.iter().map(move |(user, entry)| (name.as_str(), user.as_str(), entry.shares))
        });
        for (account, user, shares) in known {
            tree.user(accounts[account], account, user, shares);
        }
        for (account, user, usage) in used {
            let parent = match accounts.get(account) {
                Some(at) => *at,
                None => *accounts.entry(account).or_insert(tree.push(account, None, 0, 1)),
            };
            let at = tree.user(parent, account, user, 1);
            tree.nodes[at].usage = usage;
        }
        tree.children = vec![Vec::new(); tree.nodes.len()];
        for at in 1..tree.nodes.len() {
            tree.children[tree.nodes[at].parent].push(at);
        }
        tree.compute();
        tree
    }

    /// A user's factor, millionths; nobody is without use or job and asked for.
    pub fn factor(&self, account: &str, user: &str) -> u32 {
        self.users.get(&(account, user)).map_or(PPM as u32, |at| self.nodes[*at].factor)
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
        let Some(&at) = self.users.get(&(account, user)) else { return Vec::new() };
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

    /// How many times its fair part an account uses, as level fair share, with that of each account above it: nearest last.
    pub fn level_line(&self, name: &str) -> Vec<LevelFs> {
        let mut line = Vec::new();
        let mut at = self.nodes.iter().position(|node| node.user.is_none() && node.account == name);
        while let Some(place) = at.filter(|place| *place != 0) {
            line.push(self.nodes[place].level_fs);
            at = Some(self.nodes[place].parent);
        }
        line.reverse();
        line
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

    fn user(&mut self, parent: usize, account: &'a str, user: &'a str, shares: u32) -> usize {
        if let Some(at) = self.users.get(&(account, user)) {
            return *at;
        }
        let at = self.push(account, Some(user), parent, shares);
        self.users.insert((account, user), at);
        at
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

/// What everybody has used by now, weighted and decayed, with what runs.
pub fn use_of_all(snapshot: &Snapshot) -> BTreeMap<(&str, &str), u64> {
    let half_life = snapshot.config.scheduler.fair_share.half_life_secs;
    let mut running: BTreeMap<(&str, &str), Decayed> = BTreeMap::new();
    let weights = GpuWeights::new(snapshot);
    for run in snapshot.running.iter().filter(|run| !run.charged) {
        let Some(started) = run.started else { continue };
        let used = running.entry((&run.spec.account, &run.spec.user.name)).or_default();
        used.charge(weights.rate(snapshot, run), started, snapshot.now, half_life);
    }
    let mut all = BTreeMap::new();
    for (account, user, decayed) in snapshot.usage.users() {
        let used = match running.remove(&(account, user)) {
            None => decayed.at(snapshot.now, half_life),
            Some(more) => decayed.with(&more, snapshot.now, half_life),
        };
        all.insert((account, user), used);
    }
    all.extend(running.into_iter().map(|(who, decayed)| (who, decayed.at(snapshot.now, half_life))));
    all
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
