//! The fair tree kept from pass to pass. Standings, rates of runs and decayed usage are computed again only where they changed.
//!
//! Factors equal those of a new tree; a property test checks it. Has no names to list.

use super::{FairTree, GpuWeights, PPM, ShareNode, UsageInput};
use crate::names::hash;
use crate::running_run::RunningRun;
use crate::usage::{Clock, Decayed, RunningUse, UsageBook, UsageEntry, WeightedUse};
use gmodel::config::ClusterConfig;
use gmodel::{Policy, RunId, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The standing of all users, kept from pass to pass.
#[derive(Debug, Default)]
pub struct Standings {
    /// The configuration and policy that the tree was made from.
    of: Option<(Arc<ClusterConfig>, Arc<Policy>)>,
    /// Its names stand in `people`.
    tree: FairTree<'static>,
    /// By place in the tree.
    people: Vec<Person>,
    /// In the order of their ids.
    runs: Vec<RunUse>,
    /// Runs that changed since the last look, or had not begun then.
    stale: BTreeSet<RunId>,
    /// Any run may have changed.
    are_stale: bool,
    /// Users with usage that changes at every moment; users with usage to be read again.
    moving: Vec<usize>,
    due: Vec<usize>,
    /// Users that stay in the tree only while they have jobs.
    fleeting: Vec<usize>,
    /// The book that is entered, and how many users have a row in it.
    book: Option<Arc<UsageBook>>,
    rows: usize,
    /// When usage was read last.
    read: Option<Clock>,
    pass: u64,
    /// Places of users with pending jobs, by the queue's number for the user; the queue that gave the number.
    waiting: Vec<Option<usize>>,
    queue: u64,
}

/// An account, or a user in one.
#[derive(Debug, Default)]
struct Person {
    account: Box<str>,
    user: Option<Box<str>>,
    /// How many runs are charged to this entry, and their usage.
    runs: u32,
    running: RunningUse,
    /// The row of the book.
    entry: Option<Arc<UsageEntry>>,
    /// The decayed earlier usage; none after a change of the runs or the row.
    known: Option<WeightedUse>,
    /// The last pass in which the user had pending jobs.
    waited: u64,
    is_moving: bool,
    is_due: bool,
}

/// A run, by the account and user that are charged.
#[derive(Debug)]
struct RunUse {
    run: RunId,
    at: usize,
    micro: u64,
    /// Since when the run counts in the user's usage.
    since: Option<Timestamp>,
}

impl Standings {
    /// Notes the runs that started, ended or changed since the last look; `None`: any run may have.
    pub fn note(&mut self, changed: Option<&BTreeSet<RunId>>) {
        match changed {
            Some(runs) => self.stale.extend(runs),
            None => self.are_stale = true,
        }
    }

    /// The factors of all users with pending jobs, millionths, by the queue's number for the user. The queue keeps a number for
    /// one user.
    pub fn factors<'n>(
        &mut self,
        input: UsageInput,
        queue: u64,
        waiting: impl Iterator<Item = (usize, &'n str, &'n str)> + Clone,
    ) -> Vec<u32> {
        if queue != self.queue {
            self.waiting.clear();
            self.queue = queue;
        }
        let same = self.of.as_ref().is_some_and(|(config, policy)| {
            Arc::ptr_eq(config, input.config) && Arc::ptr_eq(policy, input.policy)
        });
        if !same || !self.enter(input, waiting.clone()) {
            // A user without usage leaves the list.
            self.begin(input, queue);
            self.enter(input, waiting.clone());
        }
        self.tree.want(
            waiting
                .clone()
                .filter_map(|(number, ..)| self.waiting[number]),
        );
        self.tree.rank_all();
        let mut factors = vec![0; self.waiting.len()];
        for (number, ..) in waiting {
            factors[number] =
                self.waiting[number].map_or(PPM as u32, |at| self.tree.nodes[at].factor);
        }
        factors
    }

    fn begin(&mut self, input: UsageInput, queue: u64) {
        let mut tree = FairTree::of_policy(input.policy);
        let named = |node: &ShareNode| Person {
            account: node.account.into(),
            user: node.user.map(Into::into),
            ..Person::default()
        };
        let people = tree.nodes.iter().map(named).collect();
        let nodes = std::mem::take(&mut tree.nodes).into_iter();
        let nodes = nodes
            .map(|node| ShareNode {
                account: "",
                user: node.user.map(|_| ""),
                ..node
            })
            .collect();
        let FairTree {
            accounts,
            users,
            user_count,
            ..
        } = tree;
        let tree = FairTree {
            nodes,
            accounts,
            users,
            user_count,
            ..FairTree::default()
        };
        let of = Some((input.config.clone(), input.policy.clone()));
        *self = Self {
            of,
            tree,
            people,
            queue,
            are_stale: true,
            ..Self::default()
        };
    }

    /// Enters the usage of all users until now. `false`: the tree holds a user that it should not.
    fn enter<'n>(
        &mut self,
        input: UsageInput,
        waiting: impl Iterator<Item = (usize, &'n str, &'n str)>,
    ) -> bool {
        self.pass += 1;
        let clock = Clock::new(input.now, input.config.scheduler.fair_share.half_life_secs);
        self.enter_runs(input, &clock);
        let are_rows_there = self.enter_book(input.book);
        for (number, account, user) in waiting {
            if self.waiting.len() <= number {
                self.waiting.resize(number + 1, None);
            }
            let at = self.waiting[number].unwrap_or_else(|| self.user(account, user));
            self.waiting[number] = Some(at);
            self.people[at].waited = self.pass;
        }
        match self
            .read
            .as_ref()
            .is_some_and(|read| clock.is_in_step_of(read))
        {
            true => (0..self.moving.len()).for_each(|place| self.is_due(self.moving[place])),
            false => (0..self.people.len()).for_each(|at| self.is_due(at)),
        }
        let mut due = std::mem::take(&mut self.due);
        due.drain(..).for_each(|at| self.read_use(at, &clock));
        self.due = due;
        self.moving.retain(|at| self.people[*at].is_moving);
        self.read = Some(clock);
        self.fleeting.retain(|at| self.people[*at].entry.is_none());
        let is_there = |one: &Person| one.runs > 0 || one.waited == self.pass;
        are_rows_there && self.fleeting.iter().all(|at| is_there(&self.people[*at]))
    }

    fn is_due(&mut self, at: usize) {
        if !std::mem::replace(&mut self.people[at].is_due, true) {
            self.due.push(at);
        }
    }

    fn read_use(&mut self, at: usize, clock: &Clock) {
        let person = &mut self.people[at];
        if person.user.is_none() {
            return;
        }
        person.is_due = false;
        let decayed = person.entry.as_ref().map(|entry| &entry.decayed);
        let is_moving = !person.running.is_empty()
            || decayed.is_some_and(|decayed| !clock.has_half_life_of(decayed));
        let usage = match decayed {
            Some(decayed) => decayed.with_known(&person.running, clock, &mut person.known),
            None if is_moving => Decayed::default().with(&person.running, clock),
            None => 0,
        };
        if !std::mem::replace(&mut person.is_moving, is_moving) && is_moving {
            self.moving.push(at);
        }
        self.tree.set_use(at, usage);
    }

    fn enter_runs(&mut self, input: UsageInput, clock: &Clock) {
        // With weights by GPU type, a node's inventory changes the rate of its runs.
        let keeps = input
            .config
            .scheduler
            .fair_share
            .gpu_weights_milli
            .is_empty();
        let stale = std::mem::take(&mut self.stale);
        if std::mem::take(&mut self.are_stale)
            || !keeps
            || !self
                .read
                .as_ref()
                .is_some_and(|read| clock.goes_on_from(read))
        {
            for at in 0..self.people.len() {
                if self.people[at].runs > 0 {
                    let person = &mut self.people[at];
                    (person.runs, person.running, person.known) = (0, RunningUse::default(), None);
                    self.is_due(at);
                }
            }
            self.runs.clear();
            let weights = GpuWeights::new(input);
            for run in input.running {
                let entered = self.enter_run(input, run, &weights, clock);
                self.runs.extend(entered);
            }
            return;
        }
        let weights = GpuWeights::default();
        for id in stale {
            let place = self.runs.binary_search_by_key(&id, |known| known.run);
            if let Ok(place) = place {
                let known = self.runs.remove(place);
                self.leave_run(&known, clock);
            }
            let now = input
                .running
                .binary_search_by_key(&id, |run| run.run)
                .ok()
                .map(|at| &input.running[at]);
            if let Some(entered) = now.and_then(|run| self.enter_run(input, run, &weights, clock)) {
                self.runs
                    .insert(place.unwrap_or_else(|place| place), entered);
            }
        }
    }

    fn enter_run(
        &mut self,
        input: UsageInput,
        run: &RunningRun,
        weights: &GpuWeights,
        clock: &Clock,
    ) -> Option<RunUse> {
        if run.charged {
            return None;
        }
        let micro = weights.rate(input, run);
        let at = self.user(&run.spec.account, &run.spec.user.name);
        let person = &mut self.people[at];
        (person.runs, person.known) = (person.runs + 1, None);
        let since = run.started.filter(|started| clock.is_after(*started));
        match (since, run.started) {
            (Some(since), _) => person.running.add(clock, micro, since),
            // By the clock of its node it has not begun.
            (None, Some(_)) => self.stale.extend([run.run]),
            (None, None) => {}
        }
        self.is_due(at);
        Some(RunUse {
            run: run.run,
            at,
            micro,
            since,
        })
    }

    fn leave_run(&mut self, known: &RunUse, clock: &Clock) {
        let person = &mut self.people[known.at];
        (person.runs, person.known) = (person.runs - 1, None);
        known
            .since
            .iter()
            .for_each(|since| person.running.remove(clock, known.micro, *since));
        self.is_due(known.at);
    }

    /// `false`: a user has lost its row.
    fn enter_book(&mut self, book: &Arc<UsageBook>) -> bool {
        let before = self.book.replace(book.clone());
        if before
            .as_ref()
            .is_some_and(|before| Arc::ptr_eq(before, book))
        {
            return true;
        }
        for (account, user, entry) in book.users_since(before.as_deref()) {
            let at = self.user(account, user);
            self.rows += usize::from(self.people[at].entry.replace(entry.clone()).is_none());
            self.people[at].known = None;
            self.is_due(at);
        }
        self.rows == book.user_count()
    }

    fn place(&self, account: &str, user: &str) -> Option<usize> {
        let is_it = |at: usize| {
            (&*self.people[at].account, self.people[at].user.as_deref()) == (account, Some(user))
        };
        self.tree.users.find(hash(&[account, user]), is_it)
    }

    /// A user's place in the tree; enters a new user.
    fn user(&mut self, account: &str, user: &str) -> usize {
        if let Some(at) = self.place(account, user) {
            return at;
        }
        let parent = self
            .tree
            .accounts
            .find(hash(&[account]), |at| &*self.people[at].account == account)
            .unwrap_or_else(|| {
                let at = self.push(account, None, 0);
                self.tree
                    .accounts
                    .add(at, |at| hash(&[&self.people[at].account]));
                at
            });
        let at = self.push(account, Some(user), parent);
        self.tree.users.add(at, |at| {
            hash(&[
                &self.people[at].account,
                self.people[at].user.as_deref().unwrap_or_default(),
            ])
        });
        self.tree.user_count += 1;
        self.fleeting.push(at);
        at
    }

    fn push(&mut self, account: &str, user: Option<&str>, parent: usize) -> usize {
        self.people.push(Person {
            account: account.into(),
            user: user.map(Into::into),
            ..Person::default()
        });
        self.tree.push("", user.map(|_| ""), parent, 1)
    }
}
