//! Fair share by the fair tree: siblings are ranked by shares over use, depth first, and a user's rank is the factor.
//!
//! Ties follow Slurm's page "Fair Tree Fairshare Algorithm" (Cox and Morrison, BYU). Tied users share a rank. A user tied with
//! an account gets the rank of that account's best user. Tied accounts are merged. Never stores anything.

use crate::names::{Places, hash};
use crate::pending_job::PendingJob;
use crate::running_run::RunningRun;
use crate::sched_node::SchedNode;
use crate::usage::UsageBook;
use crate::usage::{Clock, Decayed, RunningUse, left_after, weight_of_type, weighted_micro};
use fixedbitset::FixedBitSet;
use gmodel::config::ClusterConfig;
use gmodel::policy::{Account, ROOT_ACCOUNT};
use gmodel::{JobSpec, NodeId, Policy, Timestamp};
use std::cmp::Ordering;
use std::sync::Arc;

/// Factors and parts of a whole are in millionths.
pub const PPM: u64 = 1_000_000;
/// Binary places of [`LevelFs`].
const PLACES: u32 = 32;
/// Levels that differ by this part of the greater one (or of 1) differ for certain, rounding included.
const SURELY_APART: f64 = 1e-9;
/// The moments of an outlook, thousandths of a half-life.
const OUTLOOK: [u32; 4] = [500, 1000, 2000, 4000];

/// What usage is computed from: ended runs by the book, live runs by their shares of nodes.
#[derive(Clone, Copy)]
pub struct UsageInput<'a> {
    pub now: Timestamp,
    pub config: &'a Arc<ClusterConfig>,
    pub policy: &'a Arc<Policy>,
    /// In the order of their ids; they give the type of each GPU.
    pub nodes: &'a [SchedNode],
    /// In the order of their ids.
    pub running: &'a [RunningRun],
    pub book: &'a Arc<UsageBook>,
}

/// The standing of all accounts and users at one moment.
#[derive(Clone, Debug, Default)]
pub struct FairTree<'a> {
    /// The root first, then accounts, then users.
    nodes: Vec<ShareNode<'a>>,
    /// The children of each node in the order of the last ranking: mostly it is the next one, too.
    below: Vec<Vec<usize>>,
    /// How many users each node has below it; 1 for a user.
    users_of: Vec<u64>,
    /// The usage below each account; the sums of shares and usage of its children.
    used: Vec<u128>,
    together: Vec<(u64, u64)>,
    /// The level of each among its siblings as a float: dividing 128 bits for all of them each time is slow.
    nearly: Vec<f64>,
    /// Places of accounts by name, and of users by account and name.
    accounts: Places,
    users: Places,
    user_count: u64,
    /// Places of the users of the pending jobs that the tree was made with.
    pending: Vec<usize>,
    /// The root and the accounts with a user that needs a rank. Empty: all are ranked.
    wanted: FixedBitSet,
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
    /// Part of the use of all users, millionths.
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

/// The expected standing of a user at a later moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Thousandths of a half-life from now.
    pub after_half_lives_milli: u32,
    pub usage: u64,
    pub level_fs: LevelFs,
    pub factor: u32,
}

impl LevelFs {
    /// The standing of a user without use.
    pub const INFINITE: Self = Self(u128::MAX);

    fn of(shares: u64, all_shares: u64, usage: u64, all_usage: u64) -> Self {
        match (shares, usage) {
            (0, _) => Self(0),
            (_, 0) => Self::INFINITE,
            _ => Self(
                ((u128::from(shares) * u128::from(all_usage)) << PLACES)
                    / (u128::from(all_shares) * u128::from(usage)),
            ),
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
    /// Of all users that the policy names, that used anything, or that have jobs.
    pub fn of(input: UsageInput<'a>, pending: &'a [PendingJob]) -> Self {
        let mut tree = Self::of_policy(input.policy);
        tree.enter_use(input);
        let mut last: Option<(&Arc<JobSpec>, usize)> = None;
        tree.pending.reserve(pending.len());
        for job in pending {
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
    pub fn new(
        policy: &'a Policy,
        used: impl IntoIterator<Item = (&'a str, &'a str, u64)>,
    ) -> Self {
        let mut tree = Self::of_policy(policy);
        for (account, user, usage) in used {
            let at = tree.user_or_new(account, user, 1);
            tree.nodes[at].usage = usage;
        }
        tree.finish()
    }

    fn of_policy(policy: &'a Policy) -> Self {
        let mut tree = Self {
            nodes: Vec::with_capacity(256),
            ..Self::default()
        };
        tree.account_or_new(ROOT_ACCOUNT, 1);
        for (name, account) in &policy.accounts {
            tree.account_or_new(name, account.shares);
        }
        for name in policy.accounts.keys() {
            // A chain that would come back to itself ends at the root.
            let line = policy.lineage(name);
            let goes_on = |last: &&Account| {
                last.parent
                    .as_ref()
                    .is_some_and(|up| policy.accounts.contains_key(up))
            };
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
        if let Some(at) = self.account_place(name) {
            return at;
        }
        let at = self.push(name, None, 0, shares);
        self.accounts.add(at, |at| hash(&[self.nodes[at].account]));
        at
    }

    fn account_place(&self, name: &str) -> Option<usize> {
        self.accounts
            .find(hash(&[name]), |at| self.nodes[at].account == name)
    }

    fn user_or_new(&mut self, account: &'a str, user: &'a str, shares: u32) -> usize {
        if let Some(at) = self.place(account, user) {
            return at;
        }
        let parent = self.account_or_new(account, 1);
        let at = self.push(account, Some(user), parent, shares);
        let hash_of = |at: usize| {
            hash(&[
                self.nodes[at].account,
                self.nodes[at].user.unwrap_or_default(),
            ])
        };
        self.users.add(at, hash_of);
        self.user_count += 1;
        at
    }

    fn place(&self, account: &str, user: &str) -> Option<usize> {
        let is_it =
            |at: usize| self.nodes[at].account == account && self.nodes[at].user == Some(user);
        self.users.find(hash(&[account, user]), is_it)
    }

    /// Enters the usage of all users until now, weighted and decayed, live runs included.
    fn enter_use(&mut self, input: UsageInput<'a>) {
        let half_life = input.config.scheduler.fair_share.half_life_secs;
        let mut running: Vec<RunningUse> = vec![RunningUse::default(); self.nodes.len()];
        let clock = Clock::new(input.now, half_life);
        let weights = GpuWeights::new(input);
        let mut last: Option<(&Arc<JobSpec>, usize)> = None;
        for run in input.running.iter().filter(|run| !run.charged) {
            let at = match last.filter(|(spec, _)| Arc::ptr_eq(spec, &run.spec)) {
                Some((_, at)) => at,
                None => self.user_or_new(&run.spec.account, &run.spec.user.name, 1),
            };
            last = Some((&run.spec, at));
            let Some(started) = run.started else { continue };
            if running.len() <= at {
                running.resize(at + 1, RunningUse::default());
            }
            running[at].add(&clock, weights.rate(input, run), started);
        }
        for (account, user, decayed) in input.book.users() {
            let at = self.user_or_new(account, user, 1);
            let more = running.get_mut(at).map(std::mem::take).unwrap_or_default();
            self.nodes[at].usage = decayed.with(&more, &clock);
        }
        for (at, more) in running
            .iter()
            .enumerate()
            .filter(|(_, more)| !more.is_empty())
        {
            self.nodes[at].usage = Decayed::default().with(more, &clock);
        }
    }

    fn finish(mut self) -> Self {
        self.link();
        self.compute();
        self
    }

    /// Links each account and user to the account above it.
    fn link(&mut self) {
        self.below = vec![Vec::new(); self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate().skip(1) {
            self.below[node.parent].push(at);
        }
        self.users_of = vec![0; self.nodes.len()];
        for user in (0..self.nodes.len()).filter(|at| self.nodes[*at].user.is_some()) {
            let mut at = user;
            self.users_of[at] += 1;
            while at != 0 {
                at = self.nodes[at].parent;
                self.users_of[at] += 1;
            }
        }
    }

    /// Restricts later rankings to accounts with a user that needs a rank.
    fn want(&mut self, users: impl Iterator<Item = usize>) {
        self.wanted.clear();
        self.wanted.grow(self.nodes.len());
        self.wanted.insert(0);
        for user in users {
            let mut at = self.nodes[user].parent;
            while !self.wanted.put(at) {
                at = self.nodes[at].parent;
            }
        }
    }

    /// A user's factor, millionths. The user has usage or a job.
    pub fn factor(&self, account: &str, user: &str) -> u32 {
        self.place(account, user)
            .map_or(PPM as u32, |at| self.nodes[at].factor)
    }

    /// The factor of a pending job's user, millionths; `at` is the job's place among the jobs that the tree was made with.
    pub fn factor_of_pending(&self, at: usize) -> u32 {
        self.nodes[self.pending[at]].factor
    }

    /// The tree as sshare(1) lists it: each account, then its users, then the accounts below it, by name.
    pub fn lines(&self) -> Vec<(usize, &ShareNode<'a>)> {
        let mut lines = Vec::with_capacity(self.nodes.len());
        self.list(0, 0, &mut lines);
        lines
    }

    /// A user's standing at later moments if the user runs nothing and the usage of all other users stays as it is.
    pub fn outlook(&self, account: &str, user: &str) -> Vec<Outlook> {
        let Some(at) = self.place(account, user) else {
            return Vec::new();
        };
        let later = |thousandths: u32| {
            let mut tree = self.clone();
            tree.nodes[at].usage = left_after(self.nodes[at].usage, thousandths);
            tree.compute();
            let node = &tree.nodes[at];
            Outlook {
                after_half_lives_milli: thousandths,
                usage: node.usage,
                level_fs: node.level_fs,
                factor: node.factor,
            }
        };
        OUTLOOK.map(later).to_vec()
    }

    /// The line of an account.
    pub fn account(&self, name: &str) -> Option<&ShareNode<'a>> {
        self.nodes
            .iter()
            .find(|node| node.user.is_none() && node.account == name)
    }

    fn push(
        &mut self,
        account: &'a str,
        user: Option<&'a str>,
        parent: usize,
        shares: u32,
    ) -> usize {
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
        for above in 0..self.below.len() {
            let (shares, usage) = self.all_below(above);
            for at in &self.below[above] {
                let node = &mut self.nodes[*at];
                node.norm_shares = part(u64::from(node.shares), shares);
                node.effective_usage = part(node.usage, usage);
                node.norm_usage = part(node.usage, all);
                node.level_fs = LevelFs::of(u64::from(node.shares), shares, node.usage, usage);
            }
        }
        self.rank_siblings();
    }

    /// Sets a user's usage, and adds the difference to the accounts above.
    fn set_use(&mut self, user: usize, usage: u64) {
        let before = std::mem::replace(&mut self.nodes[user].usage, usage);
        if before == usage {
            return;
        }
        self.used.resize(self.nodes.len(), 0);
        let mut at = user;
        while at != 0 {
            at = self.nodes[at].parent;
            self.used[at] = self.used[at] + u128::from(usage) - u128::from(before);
            self.nodes[at].usage = u64::try_from(self.used[at]).unwrap_or(u64::MAX);
        }
    }

    /// Ranks users by the usage that `set_use` entered; links new users first.
    fn rank_all(&mut self) {
        if self.below.len() != self.nodes.len() {
            self.link();
        }
        self.rank_siblings();
    }

    fn rank_siblings(&mut self) {
        self.together.resize(self.nodes.len(), (0, 0));
        self.nearly.resize(self.nodes.len(), 0.0);
        let mut ranks = Ranks {
            next: self.user_count,
            last: self.user_count,
            wanted: std::mem::take(&mut self.wanted),
        };
        self.visit_below(0, false, &mut ranks);
        self.wanted = ranks.wanted;
    }

    /// The shares and the usage of an account's children together.
    fn all_below(&self, at: usize) -> (u64, u64) {
        let of_each = || self.below[at].iter().map(|at| &self.nodes[*at]);
        (
            of_each().map(|node| u64::from(node.shares)).sum(),
            of_each()
                .map(|node| node.usage)
                .fold(0, u64::saturating_add),
        )
    }

    /// Computes the levels of an account's children for `compare`.
    fn level_below(&mut self, at: usize) {
        let (shares, usage) = self.all_below(at);
        self.together[at] = (shares, usage);
        let of_one = usage as f64 / shares as f64;
        for at in &self.below[at] {
            let node = &self.nodes[*at];
            self.nearly[*at] = if node.shares == 0 {
                0.0
            } else {
                f64::from(node.shares) * of_one / node.usage as f64
            };
        }
    }

    /// Compares the levels of two siblings.
    fn compare(&self, one: usize, other: usize) -> Ordering {
        let (a, b) = (self.nearly[one], self.nearly[other]);
        if (a - b).abs() > SURELY_APART * a.max(b).max(1.0) {
            return a.total_cmp(&b);
        }
        let level_fs = |at: usize| {
            let node = &self.nodes[at];
            let (shares, usage) = self.together[node.parent];
            LevelFs::of(u64::from(node.shares), shares, node.usage, usage)
        };
        level_fs(one).cmp(&level_fs(other))
    }

    fn add_up(&mut self, at: usize) -> u64 {
        if self.nodes[at].user.is_none() {
            let below = 0..self.below[at].len();
            self.nodes[at].usage = below.fold(0, |sum, place| {
                sum.saturating_add(self.add_up(self.below[at][place]))
            });
        }
        self.nodes[at].usage
    }

    /// Ranks all users below an account, or skips their ranks where no user needs one.
    fn visit_below(&mut self, at: usize, tied: bool, ranks: &mut Ranks) -> bool {
        if !ranks.are_wanted(&[at]) {
            ranks.next -= self.users_of[at];
            return self.users_of[at] > 0;
        }
        self.level_below(at);
        let mut siblings = std::mem::take(&mut self.below[at]);
        let any = self.visit(&mut siblings, tied, ranks);
        self.below[at] = siblings;
        any
    }

    /// Ranks the users among siblings and below them; says whether there were any. `tied`: the first of them shares the last
    /// rank given.
    fn visit(&mut self, siblings: &mut [usize], mut tied: bool, ranks: &mut Ranks) -> bool {
        let turn = |at: &usize| (self.nodes[*at].user.is_none(), *at);
        siblings.sort_by(|one, other| {
            self.compare(*other, *one)
                .then_with(|| turn(one).cmp(&turn(other)))
        });
        let mut any = false;
        let mut rest = &siblings[..];
        while let Some(first) = rest.first() {
            let more = rest[1..]
                .iter()
                .take_while(|at| self.compare(*first, **at).is_eq())
                .count();
            let (equal, others) = rest.split_at(1 + more);
            let (users, accounts) =
                equal.split_at(equal.partition_point(|at| self.nodes[*at].user.is_some()));
            rest = others;
            for &at in users {
                self.rank(at, tied, ranks);
                tied = true;
            }
            let ranked = match accounts {
                [account] => self.visit_below(*account, tied, ranks),
                // Tied accounts are merged.
                _ if !ranks.are_wanted(accounts) => {
                    let users: u64 = accounts.iter().map(|at| self.users_of[*at]).sum();
                    ranks.next -= users;
                    users > 0
                }
                _ => {
                    accounts.iter().for_each(|at| self.level_below(*at));
                    let mut below: Vec<usize> = accounts
                        .iter()
                        .flat_map(|at| &self.below[*at])
                        .copied()
                        .collect();
                    self.visit(&mut below, tied, ranks)
                }
            };
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
        self.nodes[at].factor = (ranks.last * PPM / self.user_count) as u32;
    }

    fn list<'t>(&'t self, at: usize, depth: usize, lines: &mut Vec<(usize, &'t ShareNode<'a>)>) {
        lines.push((depth, &self.nodes[at]));
        let mut children = self.below[at].clone();
        children.sort_by_key(|at| {
            (
                self.nodes[*at].user.is_none(),
                self.nodes[*at].account,
                self.nodes[*at].user,
            )
        });
        for child in children {
            self.list(child, depth + 1, lines);
        }
    }
}

struct Ranks {
    /// The rank of the next user without a tie.
    next: u64,
    /// The rank that was given last.
    last: u64,
    /// As in the tree.
    wanted: FixedBitSet,
}

impl Ranks {
    /// Whether a user below any of these accounts needs a rank.
    fn are_wanted(&self, accounts: &[usize]) -> bool {
        self.wanted.is_empty() || accounts.iter().any(|at| self.wanted.contains(*at))
    }
}

/// Millionths. Drops the last binary places of large numbers: dividing 128 bits is slow.
fn part(one: u64, all: u64) -> u64 {
    let spare = all.leading_zeros();
    let shift = 20u32.saturating_sub(spare);
    ((one >> shift) * PPM)
        .checked_div(all >> shift)
        .unwrap_or(0)
}

/// Weights of the GPUs of each node, by slot.
#[derive(Default)]
struct GpuWeights {
    nodes: Vec<(NodeId, usize)>,
    weights: Vec<u32>,
}

impl GpuWeights {
    fn new(input: UsageInput) -> Self {
        let config = &input.config.scheduler.fair_share;
        let mut all = Self {
            nodes: Vec::with_capacity(input.nodes.len()),
            weights: Vec::new(),
        };
        if config.gpu_weights_milli.is_empty() {
            return all;
        }
        for node in input.nodes {
            all.nodes.push((node.id, all.weights.len()));
            all.weights.extend(
                node.gpus
                    .iter()
                    .map(|gpu| weight_of_type(config, &gpu.info.gpu_type)),
            );
        }
        all
    }

    fn rate(&self, input: UsageInput, run: &RunningRun) -> u64 {
        let factor = input
            .policy
            .qos
            .get(&run.spec.qos)
            .map_or(1000, |qos| qos.usage_factor_milli);
        let weight = |node: NodeId, slot: gmodel::GpuSlot| {
            let Ok(at) = self.nodes.binary_search_by_key(&node, |(id, _)| *id) else {
                return 1000;
            };
            self.weights
                .get(self.nodes[at].1 + usize::from(slot.0))
                .copied()
                .unwrap_or(1000)
        };
        weighted_micro(
            &run.shares,
            weight,
            &input.config.scheduler.fair_share,
            factor,
        )
    }
}

mod standings;
pub use standings::Standings;

#[cfg(test)]
mod tests;
