//! The fair tree as passes need it, kept from one to the next: who stands where, what each run uses in each moment, and what is
//! left of earlier use are worked out again only where they are otherwise.
//!
//! Factors are those of a new tree (a property test says so). Lists nobody.

use super::{FairTree, GpuWeights, PPM};
use crate::names::hash;
use crate::quick::Changes;
use crate::snapshot::{RunningRun, Snapshot};
use crate::usage::{Clock, Decayed, Running, UsageBook, UsageEntry};
use gmodel::config::ClusterConfig;
use gmodel::{Policy, RunId, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Everybody's standing, pass after pass.
#[derive(Debug, Default)]
pub(crate) struct Standings {
    /// What the tree was begun with.
    of: Option<(Arc<ClusterConfig>, Arc<Policy>)>,
    /// Without names: those stand in `names`, of accounts and of users in them.
    tree: FairTree<'static>,
    names: Vec<(Box<str>, Option<Box<str>>)>,
    /// In the order of their ids.
    runs: Vec<RunUse>,
    /// Runs that are otherwise than when they were looked at last.
    stale: BTreeSet<RunId>,
    book: Option<Arc<UsageBook>>,
    used: Vec<Used>,
    /// By place in the tree, as `names`: what runs have used, and the last pass in which somebody was to stand there.
    running: Vec<Running>,
    seen: Vec<u64>,
    pass: u64,
    /// Places of those who wait, by the number that the queue gave them, and which queue that was.
    waiting: Vec<Option<usize>>,
    queue: u64,
}

/// A run by whom it is charged to.
#[derive(Debug)]
struct RunUse {
    run: RunId,
    at: usize,
    micro: u64,
    started: Option<Timestamp>,
}

/// A row of the book.
#[derive(Debug)]
struct Used {
    entry: Arc<UsageEntry>,
    at: usize,
    /// What is left of it in a step of its half-life, where no run adds to it.
    left: Option<(i64, u64)>,
}

impl Standings {
    /// What is otherwise in the next snapshot than in the last; `None`: that is not known.
    pub fn note(&mut self, changes: Option<&Changes>) {
        match changes.filter(|changes| !changes.everything) {
            Some(changes) => self.stale.extend(&changes.runs),
            None => self.runs.clear(),
        }
    }

    /// Factors of all whose jobs wait, millionths, by the number that a queue gave each; it numbers nobody otherwise later.
    pub fn factors<'n>(
        &mut self,
        snapshot: &Snapshot,
        queue: u64,
        waiting: impl Iterator<Item = (usize, &'n str, &'n str)> + Clone,
    ) -> Vec<u32> {
        if queue != self.queue {
            self.waiting.clear();
            self.queue = queue;
        }
        let same = self.of.as_ref().is_some_and(|(config, policy)| {
            Arc::ptr_eq(config, &snapshot.config) && Arc::ptr_eq(policy, &snapshot.policy)
        });
        if !same || !self.enter(snapshot, waiting.clone()) {
            // Somebody is gone who has used nothing.
            self.begin(snapshot, queue);
            self.enter(snapshot, waiting.clone());
        }
        self.tree.want(waiting.clone().filter_map(|(number, ..)| self.waiting[number]));
        self.tree.rank_all();
        let mut factors = vec![0; self.waiting.len()];
        for (number, ..) in waiting {
            factors[number] = self.waiting[number].map_or(PPM as u32, |at| self.tree.nodes[at].factor);
        }
        factors
    }

    fn begin(&mut self, snapshot: &Snapshot, queue: u64) {
        let mut tree = FairTree::of_policy(&snapshot.policy);
        let names = tree.nodes.iter().map(|node| (node.account.into(), node.user.map(Into::into))).collect();
        let nodes = std::mem::take(&mut tree.nodes).into_iter().map(|node| super::ShareNode {
            account: "",
            user: node.user.map(|_| ""),
            ..node
        });
        let nodes = nodes.collect();
        let FairTree { accounts, users, user_count, .. } = tree;
        let tree = FairTree { nodes, accounts, users, user_count, ..FairTree::default() };
        let of = Some((snapshot.config.clone(), snapshot.policy.clone()));
        *self = Self { of, tree, names, queue, ..Self::default() };
        // Users whom the policy names always stand there.
        self.seen = self.tree.nodes.iter().map(|node| if node.user.is_some() { u64::MAX } else { 0 }).collect();
        self.running.resize_with(self.seen.len(), Running::default);
    }

    /// Enters what everybody has used by now. `false`: not all who stand in the tree are to.
    fn enter<'n>(&mut self, snapshot: &Snapshot, waiting: impl Iterator<Item = (usize, &'n str, &'n str)>) -> bool {
        self.pass += 1;
        let clock = Clock::new(snapshot.now, snapshot.config.scheduler.fair_share.half_life_secs);
        self.running.iter_mut().for_each(Running::clear);
        self.tree.nodes.iter_mut().for_each(|node| node.usage = 0);
        self.enter_runs(snapshot, &clock);
        self.enter_book(snapshot);
        for (number, account, user) in waiting {
            if self.waiting.len() <= number {
                self.waiting.resize(number + 1, None);
            }
            let at = self.waiting[number].unwrap_or_else(|| self.user(account, user));
            self.waiting[number] = Some(at);
            self.see(at);
        }
        for (at, more) in self.running.iter().enumerate().filter(|(_, more)| !more.is_empty()) {
            self.tree.nodes[at].usage = Decayed::default().with(more, &clock);
        }
        for used in &mut self.used {
            let (more, decayed) = (&self.running[used.at], &used.entry.decayed);
            let step = clock.step_of(decayed).filter(|_| more.is_empty());
            let left = match (step, used.left) {
                (Some(now), Some((then, left))) if now == then => left,
                _ => decayed.with(more, &clock),
            };
            used.left = step.map(|step| (step, left));
            self.tree.nodes[used.at].usage = left;
        }
        self.seen.iter().filter(|seen| **seen >= self.pass).count() as u64 == self.tree.user_count
    }

    fn enter_runs(&mut self, snapshot: &Snapshot, clock: &Clock) {
        let stale = std::mem::take(&mut self.stale);
        let mut before = std::mem::take(&mut self.runs).into_iter().peekable();
        // What GPUs weigh their nodes say, which may come to say something else.
        let keeps = snapshot.config.scheduler.fair_share.gpu_weights_milli.is_empty();
        let mut weights: Option<GpuWeights> = None;
        let mut runs = Vec::with_capacity(snapshot.running.len());
        for run in snapshot.running.iter().filter(|run| !run.charged) {
            while before.next_if(|known| known.run < run.run).is_some() {}
            let known = before.next_if(|known| keeps && known.run == run.run && !stale.contains(&run.run));
            let known = known.unwrap_or_else(|| {
                let weights = weights.get_or_insert_with(|| GpuWeights::new(snapshot));
                self.use_of(run, weights.rate(snapshot, run))
            });
            self.see(known.at);
            if let Some(started) = known.started {
                self.running[known.at].add(clock, known.micro, started);
            }
            runs.push(known);
        }
        self.runs = runs;
    }

    fn use_of(&mut self, run: &RunningRun, micro: u64) -> RunUse {
        let at = self.user(&run.spec.account, &run.spec.user.name);
        RunUse { run: run.run, at, micro, started: run.started }
    }

    fn enter_book(&mut self, snapshot: &Snapshot) {
        if self.book.as_ref().is_some_and(|book| Arc::ptr_eq(book, &snapshot.usage)) {
            for place in 0..self.used.len() {
                self.see(self.used[place].at);
            }
            return;
        }
        let mut before = std::mem::take(&mut self.used).into_iter().peekable();
        let mut all = Vec::with_capacity(before.len() + 1);
        for (account, user, entry) in snapshot.usage.entries_of_users() {
            let used = before.next_if(|known| Arc::ptr_eq(&known.entry, entry)).unwrap_or_else(|| {
                let at = self.user(account, user);
                before.next_if(|known| known.at == at);
                Used { entry: entry.clone(), at, left: None }
            });
            self.see(used.at);
            all.push(used);
        }
        self.used = all;
        self.book = Some(snapshot.usage.clone());
    }

    /// Somebody is to stand in the tree in this pass.
    fn see(&mut self, at: usize) {
        self.seen[at] = self.seen[at].max(self.pass);
    }

    fn place(&self, account: &str, user: &str) -> Option<usize> {
        let is_it = |at: usize| (&*self.names[at].0, self.names[at].1.as_deref()) == (account, Some(user));
        self.tree.users.find(hash(&[account, user]), is_it)
    }

    /// Where a user stands, who is entered if new.
    fn user(&mut self, account: &str, user: &str) -> usize {
        if let Some(at) = self.place(account, user) {
            return at;
        }
        let parent = self.tree.accounts.find(hash(&[account]), |at| &*self.names[at].0 == account).unwrap_or_else(|| {
            let at = self.push(account, None, 0);
            self.tree.accounts.add(at, |at| hash(&[&self.names[at].0]));
            at
        });
        let at = self.push(account, Some(user), parent);
        self.tree.users.add(at, |at| hash(&[&self.names[at].0, self.names[at].1.as_deref().unwrap_or_default()]));
        self.tree.user_count += 1;
        at
    }

    fn push(&mut self, account: &str, user: Option<&str>, parent: usize) -> usize {
        self.names.push((account.into(), user.map(Into::into)));
        self.seen.push(0);
        self.running.push(Running::default());
        self.tree.push("", user.map(|_| ""), parent, 1)
    }
}
