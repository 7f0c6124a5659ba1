//! Fair share by the fair tree: siblings are ranked by shares over use, depth first, and a user's rank is the factor.
//!
//! Ties are as Slurm's page "Fair Tree Fairshare Algorithm" has them (Cox and Morrison, BYU): tied users share a rank, a
//! user tied with an account has that of its best user, tied accounts are one. Never stores anything.

use crate::snapshot::{RunningRun, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::policy::{Account, ROOT_ACCOUNT};
use gmodel::{JobSpec, NodeId, Policy};
use gpolicy::names::{Places, hash};
use gpolicy::usage::{Clock, Decayed, RunningUse, left_after, weight_of_type, weighted_micro};
use std::cmp::Ordering;
use std::sync::Arc;

/// Factors and parts of a whole are in millionths.
pub const PPM: u64 = 1_000_000;
/// Binary places of [`LevelFs`].
const PLACES: u32 = 32;
/// Levels that are so far apart, as a part of the greater or of 1, are so without what their last place leaves out and rounding adds.
const SURELY_APART: f64 = 1e-9;
/// When a standing is foretold, thousandths of a half-life.
const OUTLOOK: [u32; 4] = [500, 1000, 2000, 4000];

/// The standing of all accounts and users at one moment.
#[derive(Clone, Debug, Default)]
pub struct FairTree<'a> {
    /// The root first, then accounts, then users.
    nodes: Vec<ShareNode<'a>>,
    /// Those directly below each, in the order in which they were ranked last: mostly it is the next time, too.
    below: Vec<Vec<usize>>,
    /// How many users each has below it, or is.
    users_of: Vec<u64>,
    /// What was used below each account, and with the shares: of those directly below it together.
    used: Vec<u128>,
    together: Vec<(u64, u64)>,
    /// Nearly the level of each among its siblings: to divide 128 bits for all of them at every look is slow.
    nearly: Vec<f64>,
    /// Places of accounts by name, and of users by account and name.
    accounts: Places,
    users: Places,
    user_count: u64,
    /// Places of the users of the snapshot's waiting jobs.
    pending: Vec<usize>,
    /// Accounts with a user below them that needs a rank, and the root. Empty: all are ranked.
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

    /// The use of all users by now, weighted and decayed, with what runs.
    fn enter_use(&mut self, snapshot: &'a Snapshot) {
        let half_life = snapshot.config.scheduler.fair_share.half_life_secs;
        let mut running: Vec<RunningUse> = vec![RunningUse::default(); self.nodes.len()];
        let clock = Clock::new(snapshot.now, half_life);
        let weights = GpuWeights::new(snapshot);
        let mut last: Option<(&Arc<JobSpec>, usize)> = None;
        for run in snapshot.running.iter().filter(|run| !run.charged) {
            let at = match last.filter(|(spec, _)| Arc::ptr_eq(spec, &run.spec)) {
                Some((_, at)) => at,
                None => self.user_or_new(&run.spec.account, &run.spec.user.name, 1),
            };
            last = Some((&run.spec, at));
            let Some(started) = run.started else { continue };
            if running.len() <= at {
                running.resize(at + 1, RunningUse::default());
            }
            running[at].add(&clock, weights.rate(snapshot, run), started);
        }
        for (account, user, decayed) in snapshot.usage.users() {
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

    /// From now on only accounts with a user that needs a rank are ranked.
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

    /// A user's factor, millionths. The user has use or a job.
    pub fn factor(&self, account: &str, user: &str) -> u32 {
        self.place(account, user)
            .map_or(PPM as u32, |at| self.nodes[at].factor)
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

    /// A user has used so much by now: those above with it.
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

    /// Ranks and factors alone, from what `set_use` said of each user; some may be new.
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

    /// The shares and the use of all directly below an account together.
    fn all_below(&self, at: usize) -> (u64, u64) {
        let of_each = || self.below[at].iter().map(|at| &self.nodes[*at]);
        (
            of_each().map(|node| u64::from(node.shares)).sum(),
            of_each()
                .map(|node| node.usage)
                .fold(0, u64::saturating_add),
        )
    }

    /// Levels of those directly below an account, to be compared.
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

    /// Compares the levels of two among siblings.
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

    /// Ranks the users of siblings and of those below them; says whether there were any. `tied`: the first of them
    /// shares the last rank given.
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
                // Tied accounts are one.
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
    /// That was given last.
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

/// Millionths. Of numbers too large for that the last places are not looked at: 128 bits divide slowly.
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
    fn new(snapshot: &Snapshot) -> Self {
        let config = &snapshot.config.scheduler.fair_share;
        let mut all = Self {
            nodes: Vec::with_capacity(snapshot.nodes.len()),
            weights: Vec::new(),
        };
        if config.gpu_weights_milli.is_empty() {
            return all;
        }
        for node in &snapshot.nodes {
            all.nodes.push((node.id, all.weights.len()));
            all.weights.extend(
                node.gpus
                    .iter()
                    .map(|gpu| weight_of_type(config, &gpu.info.gpu_type)),
            );
        }
        all
    }

    fn rate(&self, snapshot: &Snapshot, run: &RunningRun) -> u64 {
        let factor = snapshot
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
            &snapshot.config.scheduler.fair_share,
            factor,
        )
    }
}

mod kept;
pub(crate) use kept::Standings;

#[cfg(test)]
mod tests;
