//! A pool of GPUs round after round: random jobs, and the simplest core that carries out plans.

use super::RESERVING;
use crate::tests::world::{end_run, world};
use crate::{Engine, PendingJob, Plan, RunningRun, Snapshot, WorkBudget, plan};
use gmodel::config::GpuSharing;
use gmodel::policy::Backfill;
use gmodel::{JobId, RunClass, RunId, Timestamp};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

/// From one pass to the next, and from an order to go to the end.
pub(super) const ROUND_SECS: i64 = 60;
pub(super) const GRACE_SECS: i64 = 30;
/// A run that came back from a preemption is left alone for so long: the default of `preempt.min_run`.
pub(super) const MIN_RUN_SECS: i64 = 300;

pub(super) const NODES: &str = "node n1 h100:4
    node n2 h100:4 mps
    node n3 a100:2 cut=3g.40gb+2g.20gb+1g.10gb+1g.10gb
    node n4 h100:2 mps
    partition odd nodes=n1,n3
    partition even nodes=n2,n4 tier=2
    ";
pub(super) const ASKS: [&str; 12] = [
    "1",
    "2",
    "3",
    "4",
    "h100:2",
    "a100:1",
    "a100:2",
    "0.5",
    "0.25",
    "1g.10gb:1",
    "3g.40gb:1",
    "h100:2 nodes=2",
];
pub(super) const LISTS: [&str; 6] = ["p", "odd", "even", "odd,even", "p,odd", "even,p"];
pub(super) const ACCOUNTS: [&str; 5] = ["lab", "vision", "nlp", "bio", "free"];
pub(super) const USERS: [&str; 3] = ["ann", "bob", "eve"];

#[derive(Clone, Debug)]
pub(super) struct Job {
    pub comes: usize,
    pub account: usize,
    pub user: usize,
    pub ask: usize,
    pub list: usize,
    pub high: bool,
    /// Limit, and how much of it it runs, percent.
    pub secs: u32,
    pub percent: u32,
}

pub(super) fn jobs(most: usize) -> impl Strategy<Value = Vec<Job>> {
    let job = (
        0..12usize,
        0..ACCOUNTS.len(),
        0..USERS.len(),
        0..ASKS.len(),
        0..LISTS.len(),
        any::<bool>(),
        60u32..2000,
        10u32..101,
    );
    let job = job.prop_map(
        |(comes, account, user, ask, list, high, secs, percent)| Job {
            comes,
            account,
            user,
            ask,
            list,
            high,
            secs,
            percent,
        },
    );
    prop::collection::vec(job, 4..most)
}

/// The simplest core there can be: it does what plans say.
pub(super) struct Pool {
    pub snapshot: Snapshot,
    pub engine: Engine,
    /// As they were submitted, and how long they run.
    pub jobs: BTreeMap<JobId, (PendingJob, Option<i64>)>,
    pub attempts: BTreeMap<JobId, u32>,
    pub ends: BTreeMap<RunId, Timestamp>,
    /// Time, job of the victim, preempting job.
    pub preempted: Vec<(Timestamp, JobId, JobId)>,
    pub cancels: BTreeSet<RunId>,
}

impl Pool {
    pub fn new(policy: &str) -> Self {
        Self::with(policy, RESERVING)
    }

    pub fn with(policy: &str, backfill: Backfill) -> Self {
        let mut snapshot = world(&format!("{NODES}{policy}"));
        let config = Arc::make_mut(&mut snapshot.config);
        config.scheduler.backfill = backfill;
        config
            .partitions
            .iter_mut()
            .for_each(|one| one.gpu_sharing = GpuSharing::Mps);
        Self {
            snapshot,
            engine: Engine::default(),
            jobs: BTreeMap::new(),
            attempts: BTreeMap::new(),
            ends: BTreeMap::new(),
            preempted: Vec::new(),
            cancels: BTreeSet::new(),
        }
    }

    /// `lasts`: whether it ever ends.
    pub fn submit(&mut self, id: u64, job: &Job, lasts: bool) {
        let qos = if job.high { "high" } else { "low" };
        let (account, user, ask, list) = (
            ACCOUNTS[job.account],
            USERS[job.user],
            ASKS[job.ask],
            LISTS[job.list],
        );
        let mut one = world(&format!(
            "job {id} {account} {user} {ask} partition={list} qos={qos}"
        ))
        .pending
        .remove(0);
        Arc::make_mut(&mut one.spec).user.uid = 1000 + job.user as u32;
        (one.submitted, one.eligible) = (self.snapshot.now, self.snapshot.now);
        one.limit_secs = (!lasts).then_some(job.secs);
        let runs = (!lasts).then(|| i64::from((job.secs * job.percent / 100).max(1)));
        self.jobs.insert(one.id, (one.clone(), runs));
        self.wait(one);
    }

    fn wait(&mut self, job: PendingJob) {
        self.snapshot.pending.extend(job.in_each_partition());
        self.snapshot
            .pending
            .sort_by_key(|job| (job.id, job.spec.choice()));
    }

    pub fn round(&mut self) -> Plan {
        let now = self.snapshot.now.plus_secs(ROUND_SECS);
        self.snapshot.now = now;
        let is_over = |run: &RunningRun| {
            run.stops_by.is_some_and(|at| at <= now)
                || self.ends.get(&run.run).is_some_and(|at| *at <= now)
        };
        let over: Vec<RunId> = self
            .snapshot
            .running
            .iter()
            .filter(|run| is_over(run))
            .map(|run| run.run)
            .collect();
        over.into_iter().for_each(|run| self.end(run));
        let told = self.engine.plan(&self.snapshot, WorkBudget::default());
        assert_eq!(
            told,
            plan(&self.snapshot, WorkBudget::default()),
            "a kept engine plans as a new one"
        );
        self.enter(&told);
        told
    }

    fn end(&mut self, id: RunId) {
        let run = end_run(&mut self.snapshot, id);
        if let Some(job) = run.victim_of
            && !self.cancels.contains(&id)
        {
            self.preempted.push((self.snapshot.now, id.job, job));
            let mut back = self.jobs[&id.job].0.clone();
            back.particulars.preempted = Some(self.snapshot.now);
            self.wait(back);
        }
    }

    /// A run ends for no job's sake.
    pub fn stop(&mut self, run: RunId, comes_back: bool) {
        self.run(run).victim_of = None;
        self.end(run);
        if comes_back {
            self.wait(self.jobs[&run.job].0.clone());
        }
    }

    /// A node fails, and what ran there waits again.
    pub fn lose_node(&mut self, at: usize) {
        let id = self.snapshot.nodes[at].id;
        self.snapshot.nodes[at].unavailable = Some("down".into());
        let there = self
            .snapshot
            .running
            .iter()
            .filter(|run| run.shares.iter().any(|share| share.node == id));
        there
            .map(|run| run.run)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|run| self.stop(run, true));
    }

    fn enter(&mut self, told: &Plan) {
        let now = self.snapshot.now;
        for (id, class) in &told.classes {
            self.run(*id).class = Some(*class);
        }
        let starts: BTreeSet<JobId> = told.starts.iter().map(|start| start.job).collect();
        for preempt in &told.preempts {
            assert!(
                !starts.contains(&preempt.for_job),
                "who starts in another of its partitions needs nobody to go"
            );
            let run = self.run(preempt.run);
            (run.stops_by, run.victim_of) =
                (Some(now.plus_secs(GRACE_SECS)), Some(preempt.for_job));
            run.leaves_for_borrower = preempt.for_borrower;
            if !preempt.heirs.is_empty() {
                run.class = Some(RunClass::Borrowed);
                preempt
                    .heirs
                    .iter()
                    .for_each(|heir| self.run(*heir).class = Some(RunClass::Guaranteed));
            }
            if preempt.mode == gmodel::policy::PreemptMode::Cancel {
                self.cancels.insert(preempt.run);
            }
        }
        for start in &told.starts {
            let (submitted, runs) = &self.jobs[&start.job];
            let here = |one: &&PendingJob| {
                one.id == start.job
                    && start
                        .partition
                        .as_ref()
                        .is_none_or(|name| *name == one.spec.partition)
            };
            let job = self
                .snapshot
                .pending
                .iter()
                .find(here)
                .expect("who starts was waiting")
                .clone();
            let attempt = self
                .attempts
                .entry(start.job)
                .and_modify(|count| *count += 1)
                .or_insert(1);
            let id = RunId::new(start.job, *attempt);
            let limit = start.limit_secs.or(submitted.limit_secs);
            let mut run = RunningRun::new(
                id,
                job.spec.clone(),
                start.allocation.clone(),
                limit.map(|secs| now.plus_secs(i64::from(secs))),
            );
            (run.placed, run.started, run.class, run.preempted) =
                (now, Some(now), start.class, job.particulars.preempted);
            self.ends.extend(runs.map(|secs| (id, now.plus_secs(secs))));
            for share in &start.allocation {
                self.snapshot
                    .nodes
                    .iter_mut()
                    .find(|node| node.id == share.node)
                    .unwrap()
                    .take(share);
            }
            self.snapshot.running.push(run);
            self.snapshot.pending.retain(|one| one.id != start.job);
        }
        self.snapshot.running.sort_by_key(|run| run.run);
        for (id, reason) in &told.reasons {
            self.snapshot
                .pending
                .iter_mut()
                .filter(|job| job.id == *id)
                .for_each(|job| {
                    job.reason = reason.clone();
                    job.particulars.nomination = told.nomination(*id, false).cloned();
                });
        }
    }

    fn run(&mut self, id: RunId) -> &mut RunningRun {
        self.snapshot
            .running
            .iter_mut()
            .find(|run| run.run == id)
            .unwrap()
    }
}

pub(super) const LIMITS: &str = "account lab g=6 limit=h100:5,gpu:7
    account vision under=lab g=3 limit=4 usergpus=2
    account nlp under=lab grpjobs=3
    account bio g=a100:1 lend=1 grpcpus=4
    qos low
    qos high preempts=low grpgpus=5 userjobs=3 accountgpus=h100:3";

pub(super) fn guarantees(lab: u64, vision: u64, bio: u64, pairs: bool) -> String {
    let mut text = format!(
        "account lab g={lab}\naccount vision under=lab g={vision}\naccount nlp under=lab\naccount bio g={bio}\nqos low\n"
    );
    writeln!(text, "qos high {}", if pairs { "preempts=low" } else { "" }).unwrap();
    text
}
