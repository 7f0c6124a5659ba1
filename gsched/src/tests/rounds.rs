//! The whole scheduler round after round on random pools: several partitions, whole GPUs, shares and MIG slices side by side,
//! guarantees at two levels, limits of every kind. What holds after each round, and that demand which does not change comes to rest.

use super::promises::is_within_the_node;
use super::{RESERVING, some_reservations};
use crate::ledger::Ledger;
use crate::tests::world::world;
use crate::{
    Engine, PendingJob, Plan, RunningRun, Snapshot, WorkBudget, forecast, plan, queue_order,
};
use gmodel::config::GpuSharing;
use gmodel::policy::{Backfill, GpuAmounts, Limits, Placement};
use gmodel::{JobId, NodeId, RunClass, RunId, Timestamp};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

/// From one pass to the next, and from an order to go to the end.
const ROUND_SECS: i64 = 60;
const GRACE_SECS: i64 = 30;
/// A run that came back from a preemption is left alone for so long: the default of `preempt.min_run`.
const MIN_RUN_SECS: i64 = 300;

const NODES: &str = "node n1 h100:4
    node n2 h100:4 mps
    node n3 a100:2 cut=3g.40gb+2g.20gb+1g.10gb+1g.10gb
    node n4 h100:2 mps
    partition odd nodes=n1,n3
    partition even nodes=n2,n4 tier=2
    ";
const ASKS: [&str; 12] = [
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
const LISTS: [&str; 6] = ["p", "odd", "even", "odd,even", "p,odd", "even,p"];
const ACCOUNTS: [&str; 5] = ["lab", "vision", "nlp", "bio", "free"];
const USERS: [&str; 3] = ["ann", "bob", "eve"];

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
    engine: Engine,
    /// As they were submitted, and how long they run.
    jobs: BTreeMap<JobId, (PendingJob, Option<i64>)>,
    attempts: BTreeMap<JobId, u32>,
    ends: BTreeMap<RunId, Timestamp>,
    /// When, who, for whom.
    pub preempted: Vec<(Timestamp, JobId, JobId)>,
    cancels: BTreeSet<RunId>,
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
            run.leaves_by.is_some_and(|at| at <= now)
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
        let at = self
            .snapshot
            .running
            .iter()
            .position(|run| run.run == id)
            .unwrap();
        let run = self.snapshot.running.remove(at);
        for share in &run.shares {
            self.snapshot
                .nodes
                .iter_mut()
                .find(|node| node.id == share.node)
                .unwrap()
                .give(share);
        }
        if let Some(job) = run.leaves_for
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
        self.run(run).leaves_for = None;
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
            (run.leaves_by, run.leaves_for) =
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

/// What some runs hold together.
#[derive(Default)]
struct Held {
    jobs: u64,
    milli: u64,
    h100: u64,
    a100: u64,
    cpus: u64,
}

fn held(snapshot: &Snapshot, of: impl Fn(&RunningRun) -> bool) -> Held {
    let mut sum = Held::default();
    for run in snapshot.running.iter().filter(|run| of(run)) {
        sum.jobs += 1;
        for share in &run.shares {
            let on_h100 = share.node != NodeId(3);
            let milli = share.gpus.milli();
            sum.milli += milli;
            *(if on_h100 {
                &mut sum.h100
            } else {
                &mut sum.a100
            }) += milli;
            sum.cpus += u64::from(share.cpus);
        }
    }
    sum
}

fn is_of(run: &RunningRun, account: &str) -> bool {
    run.spec.account == account
        || (account == "lab" && ["vision", "nlp"].contains(&&*run.spec.account))
}

const LIMITS: &str = "account lab g=6 limit=h100:5,gpu:7
    account vision under=lab g=3 limit=4 usergpus=2
    account nlp under=lab grpjobs=3
    account bio g=a100:1 lend=1 grpcpus=4
    qos low
    qos high preempts=low grpgpus=5 userjobs=3 accountgpus=h100:3";

/// The limits of [`LIMITS`], and that of a user in the partition odd, counted anew.
fn no_limit_is_exceeded(snapshot: &Snapshot) {
    let most = |what: &str, is: u64, most: u64| assert!(is <= most, "{what}: {is} of {most}");
    let lab = held(snapshot, |run| is_of(run, "lab"));
    most("GPUs of lab", lab.milli, 7000);
    most("h100 of lab", lab.h100, 5000);
    most(
        "GPUs of vision",
        held(snapshot, |run| is_of(run, "vision")).milli,
        4000,
    );
    most(
        "jobs of nlp",
        held(snapshot, |run| is_of(run, "nlp")).jobs,
        3,
    );
    most(
        "CPUs of bio",
        held(snapshot, |run| is_of(run, "bio")).cpus,
        4,
    );
    let high = |run: &RunningRun| run.spec.qos == "high";
    most("GPUs of high", held(snapshot, high).milli, 5000);
    for user in USERS {
        let own = |run: &RunningRun| run.spec.user.name == user;
        most(
            "GPUs of a user of vision",
            held(snapshot, |run| own(run) && is_of(run, "vision")).milli,
            2000,
        );
        most(
            "jobs of a user in high",
            held(snapshot, |run| own(run) && high(run)).jobs,
            3,
        );
        most(
            "GPUs of a user in odd",
            held(snapshot, |run| own(run) && run.spec.partition == "odd").milli,
            3000,
        );
    }
    for account in ACCOUNTS {
        most(
            "h100 of an account in high",
            held(snapshot, |run| run.spec.account == account && high(run)).h100,
            3000,
        );
    }
    guarantees_hold(snapshot, 6, 3);
    let bio = held(snapshot, |run| {
        run.class == Some(RunClass::Guaranteed) && is_of(run, "bio")
    });
    most("guaranteed a100 of bio", bio.a100, 1000);
    most("guaranteed h100 of bio", bio.h100, 0);
}

/// No more stands on a guarantee than there is, at either level; what vision has of lab's is nobody else's.
fn guarantees_hold(snapshot: &Snapshot, lab: u64, vision: u64) {
    let standing = |account: &str| {
        held(snapshot, |run| {
            run.class == Some(RunClass::Guaranteed) && is_of(run, account)
        })
        .milli
    };
    assert!(
        standing("lab") <= lab * 1000 && standing("vision") <= vision * 1000,
        "lab {} and vision {}",
        standing("lab"),
        standing("vision")
    );
    let others = standing("lab") - standing("vision");
    assert!(
        others + vision * 1000 <= lab * 1000,
        "{others} of lab stand on what is vision's"
    );
    assert_eq!(standing("free"), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn no_limit_is_exceeded_at_any_level_whatever_comes_and_goes(jobs in jobs(30), backfill in some_reservations()) {
        let mut pool = Pool::with(LIMITS, backfill);
        let config = Arc::make_mut(&mut pool.snapshot.config);
        let odd = config.partitions.iter_mut().find(|one| one.name == "odd").unwrap();
        odd.per_user = Limits { gpus: Some(GpuAmounts::all(3)), ..Limits::default() };
        for round in 0..20 {
            for (id, job) in (1..).zip(&jobs).filter(|(_, job)| job.comes == round) {
                pool.submit(id, job, false);
            }
            pool.round();
            is_within_the_node(&pool.snapshot);
            no_limit_is_exceeded(&pool.snapshot);
        }
    }
}

/// Those who would start at once on their guarantee if nobody stood on more than the own one.
fn owed(snapshot: &Snapshot) -> BTreeSet<JobId> {
    let mut left = snapshot.clone();
    left.running.clear();
    for run in &snapshot.running {
        if run.class == Some(RunClass::Guaranteed) && run.leaves_by.is_none() {
            left.running.push(run.clone());
        } else {
            run.shares.iter().for_each(|share| {
                left.nodes
                    .iter_mut()
                    .find(|node| node.id == share.node)
                    .unwrap()
                    .give(share)
            });
        }
    }
    let ledger = Ledger::new(&left);
    let order = queue_order::in_order(&left, &ledger);
    let guaranteed: BTreeSet<JobId> = order
        .iter()
        .filter(|one| one.class == Some(RunClass::Guaranteed))
        .map(|one| left.pending[one.at].id)
        .collect();
    left.pending.retain(|job| guaranteed.contains(&job.id));
    plan(&left, WorkBudget::default())
        .starts
        .into_iter()
        .map(|start| start.job)
        .collect()
}

pub(super) fn guarantees(lab: u64, vision: u64, bio: u64, pairs: bool) -> String {
    let mut text = format!(
        "account lab g={lab}\naccount vision under=lab g={vision}\naccount nlp under=lab\naccount bio g={bio}\nqos low\n"
    );
    writeln!(text, "qos high {}", if pairs { "preempts=low" } else { "" }).unwrap();
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]
    /// The grace of those who go, what protects those who came back once, and the pass that sees it.
    #[test]
    fn guaranteed_demand_starts_within_its_bound(jobs in jobs(24), lab in 4..8u64, vision in 0..4u64, bio in 0..4u64, pairs in any::<bool>(), backfill in some_reservations()) {
        let bound = MIN_RUN_SECS + GRACE_SECS + 2 * ROUND_SECS;
        let mut pool = Pool::with(&guarantees(lab, vision, bio, pairs), backfill);
        // What is kept for who waits in a higher tier is kept from this one.
        Arc::make_mut(&mut pool.snapshot.config).partitions.iter_mut().for_each(|one| one.priority_tier = 1);
        let mut since: BTreeMap<JobId, Timestamp> = BTreeMap::new();
        for round in 0..30 {
            for (id, job) in (1..).zip(&jobs).filter(|(_, job)| job.comes == round) {
                pool.submit(id, job, false);
            }
            pool.round();
            is_within_the_node(&pool.snapshot);
            guarantees_hold(&pool.snapshot, lab, vision);
            let (now, owed) = (pool.snapshot.now, owed(&pool.snapshot));
            since.retain(|job, _| owed.contains(job));
            for job in owed {
                let from = *since.entry(job).or_insert(now);
                prop_assert!(now.since_secs(from) <= bound, "job {} is owed its start since {} s: {:?}", job, now.since_secs(from), pool.preempted);
            }
        }
    }

    /// Nobody comes and nothing ends: after some rounds nobody gives way any more, and no two gave way to each other with nobody
    /// else's end in between.
    #[test]
    fn demand_that_does_not_change_comes_to_rest(jobs in jobs(20), lab in 2..8u64, vision in 0..3u64, bio in 0..4u64, pairs in any::<bool>(), backfill in some_reservations()) {
        let mut pool = Pool::with(&guarantees(lab.max(vision), vision, bio, pairs), backfill);
        for (id, job) in (1..).zip(&jobs) {
            pool.submit(id, job, true);
        }
        for _ in 0..120 {
            pool.round();
        }
        let settled = pool.preempted.len();
        for _ in 0..60 {
            pool.round();
        }
        prop_assert_eq!(pool.preempted.len(), settled, "it goes on: {:?}", &pool.preempted[settled..]);
        for (first, who, whom) in &pool.preempted {
            let back = pool.preempted.iter().find(|(at, one, other)| at > first && (one, other) == (whom, who));
            // A third one's end may leave a guarantee to somebody who borrowed before.
            let is_otherwise = |until: Timestamp| pool.preempted.iter().any(|(at, ..)| first < at && *at < until);
            if let Some((second, ..)) = back {
                prop_assert!(is_otherwise(*second), "{} and {} gave way to each other: {:?}", who, whom, pool.preempted);
            }
        }
        for job in pool.jobs.keys() {
            let times = pool.preempted.iter().filter(|(_, who, _)| who == job).count();
            prop_assert!(times <= 2, "job {} gave way {} times: {:?}", job, times, pool.preempted);
        }
    }

    /// Who comes later in the order has no say in what those before it get: neither starts nor promises.
    #[test]
    fn nobody_gets_anything_at_the_cost_of_who_comes_before(
        jobs in jobs(24), lab in 2..8u64, vision in 0..3u64, bio in 0..4u64, pairs in any::<bool>(), cut in any::<prop::sample::Index>(),
        backfill in some_reservations(),
    ) {
        let mut pool = Pool::with(&guarantees(lab.max(vision), vision, bio, pairs), backfill);
        // The other placements ask what the whole queue wants usually.
        Arc::make_mut(&mut pool.snapshot.config).scheduler.placement = Placement::BestFit;
        for round in 0..14 {
            for (id, job) in (1..).zip(&jobs).filter(|(_, job)| job.comes == round) {
                pool.submit(id, job, false);
            }
            if !pool.snapshot.pending.is_empty() {
                before_and_after(&pool.snapshot, &cut)?;
            }
            pool.round();
        }
    }
}

fn before_and_after(snapshot: &Snapshot, cut: &prop::sample::Index) -> Result<(), TestCaseError> {
    let order = queue_order::in_order(snapshot, &Ledger::new(snapshot));
    let (first, rest) = order.split_at(cut.index(order.len()));
    let ids = |part: &[queue_order::Ordered]| {
        part.iter()
            .map(|one| snapshot.pending[one.at].id)
            .collect::<BTreeSet<JobId>>()
    };
    let (first, rest) = (ids(first), ids(rest));
    // A job of several partitions that stands on both sides takes what it had from who is between.
    if !first.is_disjoint(&rest) {
        return Ok(());
    }
    let mut alone = snapshot.clone();
    alone.pending.retain(|job| first.contains(&job.id));
    let of_first = |mut told: Plan| {
        told.starts.retain(|start| first.contains(&start.job));
        told.preempts.retain(|one| first.contains(&one.for_job));
        (told.starts, told.preempts)
    };
    let told = |snapshot: &Snapshot| of_first(plan(snapshot, WorkBudget::default()));
    prop_assert_eq!(told(snapshot), told(&alone));
    // Two that start at one time may be told of in any order.
    let starts = |snapshot: &Snapshot| {
        forecast(snapshot, &first)
            .into_iter()
            .map(|one| (one.job, one.start))
            .collect::<BTreeSet<_>>()
    };
    prop_assert_eq!(starts(snapshot), starts(&alone));
    Ok(())
}

/// Without that, who goes first in the queue takes back what it just gave, and both change places for ever.
#[test]
fn what_others_left_for_a_job_is_its_own_though_their_tier_is_higher() {
    let mut pool = Pool::new(&guarantees(1, 0, 0, false));
    let job = |account: usize, ask: usize, list: usize| Job {
        comes: 0,
        account,
        user: 0,
        ask,
        list,
        high: false,
        secs: 60,
        percent: 100,
    };
    // All of even is borrowed, in a tier above that of p, where lab wants its h100.
    for (id, ask) in [(1, 3), (2, 1)] {
        pool.submit(id, &job(4, ask, 2), true);
    }
    pool.submit(3, &job(4, 3, 1), true);
    pool.round();
    pool.submit(
        4,
        &Job {
            ask: 7,
            ..job(0, 0, 0)
        },
        true,
    );
    for _ in 0..20 {
        pool.round();
    }
    let runs: Vec<u64> = pool
        .snapshot
        .running
        .iter()
        .map(|run| run.run.job.0)
        .collect();
    let preempted: Vec<_> = pool
        .preempted
        .iter()
        .map(|(_, who, whom)| (who.0, whom.0))
        .collect();
    assert_eq!((runs, preempted), (vec![1, 3, 4], vec![(2, 4)]));
}

/// Vision's job is to get the slice that nlp's guaranteed run has, and nlp's whole GPUs to take over that guarantee: not in the pass
/// that starts a share on the same.
#[test]
fn a_guarantee_that_is_passed_on_is_not_given_to_another_in_the_same_pass() {
    let mut pool = Pool::new(LIMITS);
    let job = |account: usize, ask: usize, list: usize, secs: u32| Job {
        comes: 0,
        account,
        user: 0,
        ask,
        list,
        high: false,
        secs,
        percent: 100,
    };
    pool.submit(1, &job(2, 10, 0, 3000), false);
    pool.submit(2, &job(0, 5, 3, 3000), false);
    pool.submit(3, &job(2, 4, 0, 3000), false);
    pool.round();
    pool.submit(4, &job(1, 10, 0, 60), false);
    let mut alone = Pool {
        engine: Engine::default(),
        snapshot: pool.snapshot.clone(),
        jobs: pool.jobs.clone(),
        ..Pool::new(LIMITS)
    };
    let passed_on = |told: &Plan| {
        told.preempts
            .iter()
            .map(|one| (one.run.job.0, one.heirs.len()))
            .collect::<Vec<_>>()
    };
    assert_eq!(passed_on(&alone.round()), [(1, 1)]);
    pool.submit(5, &job(2, 7, 2, 60), false);
    let told = pool.round();
    assert_eq!(
        told.starts
            .iter()
            .map(|one| (one.job.0, one.class))
            .collect::<Vec<_>>(),
        [(5, Some(RunClass::Guaranteed))]
    );
    assert_eq!(passed_on(&told), []);
    guarantees_hold(&pool.snapshot, 6, 3);
}

/// A slice of 3g.40gb counts half of a GPU, for its memory, though its compute is three sevenths.
#[test]
fn a_slice_asks_for_as_much_of_a_guarantee_as_it_will_hold() {
    let mut pool = Pool::new(&guarantees(1, 0, 0, false));
    let job = |account: usize, ask: usize| Job {
        comes: 0,
        account,
        user: 0,
        ask,
        list: 0,
        high: false,
        secs: 60,
        percent: 100,
    };
    let of_lab = [8, 9, 9].map(|ask| job(0, ask));
    for (id, job) in (1..).zip(of_lab.iter().chain([&job(4, 10)])) {
        pool.submit(id, job, true);
    }
    pool.round();
    pool.submit(5, &job(0, 10), true);
    for _ in 0..20 {
        pool.round();
    }
    // 250 + 142 + 142 of 1000: beside these 428 would be within the guarantee.
    assert_eq!(pool.preempted, []);
    assert_eq!(
        pool.snapshot
            .pending
            .iter()
            .map(|job| job.id.0)
            .collect::<Vec<_>>(),
        [5]
    );
}

/// What a QOS takes of vision's guarantee, vision's borrowed run stands on: who needs a borrowed one looks elsewhere, or would give
/// back in the next pass what it got.
#[test]
fn a_run_that_will_inherit_the_guarantee_of_one_that_goes_is_not_taken_as_a_borrowed_one() {
    let mut pool = Pool::new(&guarantees(7, 2, 2, true));
    let job = |account: usize, ask: usize, list: usize, high: bool| Job {
        comes: 0,
        account,
        user: 0,
        ask,
        list,
        high,
        secs: 60,
        percent: 100,
    };
    let jobs = [
        job(1, 1, 4, false),
        job(0, 3, 2, false),
        job(0, 1, 0, true),
        job(2, 0, 0, false),
        job(1, 5, 3, false),
        job(0, 0, 0, false),
        job(3, 6, 3, true),
        job(2, 1, 2, true),
        job(4, 0, 2, false),
    ];
    for (id, job) in (1..).zip(&jobs) {
        pool.submit(id, job, true);
    }
    for _ in 0..20 {
        pool.round();
    }
    let preempted: Vec<_> = pool
        .preempted
        .iter()
        .map(|(_, who, whom)| (who.0, whom.0))
        .collect();
    assert_eq!(
        preempted,
        [(5, 7)],
        "and not 1 for 3, which vision would take back"
    );
}

/// A run of a QOS that may preempt the job's does not make room by an exchange: it would take it back.
#[test]
fn who_may_preempt_the_one_who_reclaims_passes_on_no_guarantee_for_it() {
    let mut pool = Pool::new(&guarantees(7, 2, 0, true));
    let job = |account: usize, ask: usize, list: usize, high: bool| Job {
        comes: 0,
        account,
        user: 0,
        ask,
        list,
        high,
        secs: 60,
        percent: 100,
    };
    let jobs = [
        job(2, 5, 0, false),
        job(2, 5, 3, true),
        job(1, 6, 0, false),
        job(2, 3, 0, false),
    ];
    for (id, job) in (1..).zip(&jobs) {
        pool.submit(id, job, true);
    }
    for _ in 0..20 {
        pool.round();
    }
    let preempted: Vec<_> = pool
        .preempted
        .iter()
        .map(|(_, who, whom)| (who.0, whom.0))
        .collect();
    assert_eq!(preempted, []);
}

/// A QOS ends a run of lab's guarantee between the two, and leaves it to the one who had borrowed.
#[test]
fn who_gave_way_takes_back_what_a_third_one_left_to_its_guarantee_and_then_all_rest() {
    let mut pool = Pool::new(&guarantees(7, 1, 0, true));
    let job = |account: usize, ask: usize, list: usize, high: bool| Job {
        comes: 0,
        account,
        user: 0,
        ask,
        list,
        high,
        secs: 60,
        percent: 100,
    };
    let jobs = [
        job(0, 1, 4, false),
        job(1, 1, 2, false),
        job(2, 3, 2, false),
        job(1, 3, 5, true),
        job(1, 1, 2, false),
        job(0, 7, 0, true),
        job(0, 5, 3, false),
    ];
    for (id, job) in (1..).zip(&jobs) {
        pool.submit(id, job, true);
    }
    for _ in 0..60 {
        pool.round();
    }
    let preempted: Vec<_> = pool
        .preempted
        .iter()
        .map(|(_, who, whom)| (who.0, whom.0))
        .collect();
    assert_eq!(preempted, [(1, 4), (3, 6), (4, 1)]);
}

/// Those who went for it are gone, and it starts in the next pass: meanwhile no run of its account is moved onto the guarantee that
/// it was to stand on. It would borrow then, and give back what it got.
#[test]
fn what_others_went_for_is_there_for_the_job_when_they_are_gone() {
    let mut pool = Pool::new(&guarantees(7, 1, 0, true));
    let job = |account: usize, ask: usize, list: usize, high: bool| Job {
        comes: 0,
        account,
        user: 0,
        ask,
        list,
        high,
        secs: 60,
        percent: 100,
    };
    let mut jobs = vec![
        job(4, 3, 5, false),
        job(2, 10, 3, false),
        job(0, 9, 0, false),
        job(0, 1, 2, false),
        job(3, 2, 2, false),
    ];
    jobs.extend([
        job(0, 5, 3, true),
        job(2, 9, 3, false),
        job(2, 11, 4, true),
        job(1, 7, 2, true),
        job(0, 8, 4, false),
    ]);
    jobs.extend([
        job(4, 1, 1, true),
        job(2, 6, 2, false),
        job(1, 7, 4, false),
        job(4, 8, 2, false),
        job(1, 11, 4, false),
    ]);
    [5, 8, 13]
        .into_iter()
        .for_each(|other: usize| jobs[other].user = 1);
    for (id, job) in (1..).zip(&jobs) {
        pool.submit(id, job, true);
    }
    for _ in 0..20 {
        pool.round();
    }
    let preempted: Vec<_> = pool
        .preempted
        .iter()
        .map(|(_, who, whom)| (who.0, whom.0))
        .collect();
    assert_eq!(
        preempted,
        [(1, 11), (5, 13), (4, 8), (14, 4), (15, 4), (10, 14)],
        "and not 4 for 14"
    );
}
