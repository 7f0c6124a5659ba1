//! The clusters and queues that `gsim bench` measures, each a controller in memory, and one round of a measurement.

use crate::hardware::{Hardware, NodeShape};
use crate::pass_bench::Clock;
use crate::prng::Prng;
use crate::trace_run::{BASE, started_state};
use gcore::ctl::{
    Actor, Command, Event, Input, Mirror, NodeReport, Reply, State, handle, snapshot,
};
use gmodel::array_spec::ArraySpec;
use gmodel::config::ClusterConfig;
use gmodel::gpu_request::GpuRequest;
use gmodel::job::MemRequest;
use gmodel::policy::{
    Account, Backfill, GpuAmounts, Limits, Qos, Reservation, ReservedPart, SchedulerConfig,
};
use gmodel::run::{RunEnd, RunPhase, RunReport};
use gmodel::{CommonSpec, JobId, JobSpec, RunId, Timestamp};
use gsched::cluster::node_state::share_on;
use gsched::{Engine, Plan, Snapshot, WorkBudget};
use std::sync::Arc;

pub(crate) fn nothing(_: &mut TestBed) {}

/// Jobs that the naive pass looks at; its time is that of these times how many more there are.
pub(crate) const NAIVE_JOBS: usize = 100;

/// A controller in memory with a cluster and a queue.
pub(crate) struct TestBed {
    pub(crate) state: State,
    /// Kept from pass to pass, as the daemon's planner does.
    pub(crate) engine: Engine,
    pub(crate) mirror: Mirror,
    pub(crate) now: Timestamp,
    /// What is submitted and refused in each round, instead of a pass.
    pub(crate) submit: Option<JobSpec>,
    /// The job to explain in each round, instead of a pass.
    pub(crate) ask: Option<JobId>,
    pub(crate) naive: bool,
    /// What became free is given away without a whole pass.
    pub(crate) quick: bool,
}

fn explained(picture: &Snapshot, job: JobId) -> String {
    let why = Engine::default().why(picture, job, unbounded());
    let why = why.expect("it waits");
    format!(
        "{} ahead, {} blockers, {} changes",
        why.ahead,
        why.blockers.len(),
        why.changes.len()
    )
}

impl TestBed {
    pub(crate) fn new(nodes: u32, backfill: Backfill, accounts: Vec<Account>) -> Self {
        let shape = NodeShape {
            gpus: 8,
            cpus: 64,
            mem_bytes: 1 << 40,
            ..NodeShape::default()
        };
        let hardware = Hardware::uniform(nodes, &shape);
        let mut config = ClusterConfig {
            partitions: hardware.partitions.clone(),
            max_pending_jobs: 10_000_000,
            scheduler: SchedulerConfig {
                backfill,
                ..SchedulerConfig::default()
            },
            ..ClusterConfig::default()
        };
        config.policy.accounts = accounts
            .into_iter()
            .map(|account| (account.name.clone(), account))
            .collect();
        let state = started_state(&hardware, &config, BASE);
        Self {
            state,
            engine: Engine::default(),
            mirror: Mirror::default(),
            now: BASE,
            submit: None,
            ask: None,
            naive: true,
            quick: false,
        }
    }

    fn submit(&mut self, spec: JobSpec) -> Result<JobId, String> {
        let actor = Actor {
            user: "user".into(),
            uid: 1000,
            gid: 1000,
            operator: false,
            via: None,
            groups: Default::default(),
            token: None,
        };
        let command = Command::Submit {
            spec: Box::new(spec),
            client_key: None,
        };
        match handle(
            &mut self.state,
            &mut Vec::new(),
            Input::Command { actor, command },
            self.now,
        ) {
            Ok(Reply::Submitted { id, .. }) => Ok(id),
            Ok(_) => unreachable!("a submission is answered with its id"),
            Err(refusal) => Err(refusal.text),
        }
    }

    /// Passes until all was looked at; what they start runs.
    fn settle(&mut self) {
        loop {
            self.mirror.update(&self.state, self.now);
            let (picture, changes) = self.mirror.picture().expect("it was just taken");
            let plan = self
                .engine
                .plan_changed(picture, Some(changes), unbounded());
            self.mirror.forget_changes();
            let again = !plan.starts.is_empty();
            self.enter(plan);
            if !again {
                break;
            }
        }
        self.mirror.update(&self.state, self.now);
        let (picture, _) = self.mirror.picture().expect("it was just taken");
        self.engine.make_ready(picture);
    }

    fn enter(&mut self, plan: Plan) -> Vec<Event> {
        let mut events = Vec::new();
        handle(&mut self.state, &mut events, Input::Plan { plan }, self.now)
            .expect("plans are not refused");
        events
    }

    pub(crate) fn round(&mut self, clock: Clock) -> (u64, u64, String) {
        let begun = clock();
        if let Some(spec) = &self.submit {
            let words = match self.submit(spec.clone()) {
                Ok(id) => format!("queued as {id}"),
                Err(text) => format!("refused: {text}"),
            };
            return (clock() - begun, 0, words);
        }
        if let Some(job) = self.ask {
            let picture = snapshot(&self.state, self.now);
            let seen = clock();
            let words = explained(&picture, job);
            return (clock() - begun, seen - begun, words);
        }
        self.mirror.update(&self.state, self.now);
        let seen = clock();
        let (picture, changes) = self.mirror.picture().expect("it was just taken");
        // What became free is given away first; the pass over everything comes later.
        let quick = if self.quick {
            self.engine.after(picture, changes, unbounded())
        } else {
            None
        };
        let kind = if quick.is_some() {
            "quick pass"
        } else {
            "pass"
        };
        let plan = quick.unwrap_or_else(|| {
            self.engine
                .plan_changed(picture, Some(changes), unbounded())
        });
        let done = clock();
        let (starts, preempts) = (plan.starts.len(), plan.preempts.len());
        let cut = if plan.cut_short { ", cut short" } else { "" };
        let words = format!(
            "{} pending: {starts} starts, {preempts} preemptions in a {kind}{cut}",
            picture.pending.len()
        );
        self.mirror.forget_changes();
        if self.quick {
            self.enter(plan);
        }
        (done - begun, seen - begun, words)
    }

    /// After a pass over everything the oldest run ends.
    pub(crate) fn end_one(&mut self) {
        self.settle();
        self.now = self.now.plus_millis(20);
        let Some(run) = self
            .state
            .runs
            .values()
            .find(|run| run.outcome.is_none())
            .map(|run| run.id)
        else {
            return;
        };
        self.end(run);
    }

    pub(crate) fn end(&mut self, run: RunId) {
        let nodes: Vec<_> = self.state.runs.get(run).map_or(Vec::new(), |run| {
            run.members.iter().map(|m| m.node).collect()
        });
        for node in nodes {
            let end = RunEnd {
                ended: Some(self.now),
                ..RunEnd::default()
            };
            let runs = vec![RunReport::new(run, RunPhase::Clean(end.into()))];
            let report = NodeReport::Runs { runs };
            self.give(Input::Node { node, report });
        }
    }

    fn configure(&mut self, config: ClusterConfig) {
        let config = Arc::new(config);
        self.give(Input::Configure { config });
    }

    fn give(&mut self, input: Input) {
        handle(&mut self.state, &mut Vec::new(), input, self.now).expect("it is not refused");
    }
}

fn unbounded() -> WorkBudget {
    WorkBudget {
        node_probes: u64::MAX,
        starts: usize::MAX,
    }
}

fn spec(gpus: u32, nodes: u32, limit_secs: u32) -> JobSpec {
    let mut spec = JobSpec::from(CommonSpec {
        time_limit_secs: Some(limit_secs),
        ..CommonSpec::default()
    });
    spec.launch.work_dir = "/".into();
    spec.request.gpus = Some(GpuRequest::whole(gpus));
    spec.request.gpu_scope = gmodel::job::GpuScope::Node;
    (
        spec.request.nodes_min,
        spec.request.nodes_max,
        spec.request.ntasks,
    ) = (nodes, nodes, nodes);
    spec.request.mem = MemRequest::PerNode(1 << 30);
    spec
}

/// Every node is held by one job for 10 minutes to 24 hours.
fn full(nodes: u32, backfill: Backfill) -> TestBed {
    full_of(nodes, backfill, Vec::new())
}

/// The same, of some accounts by turns.
fn full_of(nodes: u32, backfill: Backfill, accounts: Vec<Account>) -> TestBed {
    let names: Vec<String> = accounts
        .iter()
        .map(|account| account.name.clone())
        .collect();
    let mut bed = TestBed::new(nodes, backfill, accounts);
    let mut prng = Prng::new(7, 1);
    for at in 0..nodes as usize {
        let mut spec = spec(8, 1, prng.range(600, 86_400) as u32);
        spec.account = at
            .checked_rem(names.len())
            .map(|at| names[at].clone())
            .unwrap_or_default();
        bed.submit(spec).expect("it fits");
    }
    bed.settle();
    assert_eq!(bed.state.runs.len(), nodes as usize, "every node is busy");
    bed.now = bed.now.plus_secs(300);
    bed
}

/// And a queue: 8 sizes, 4 counts of nodes, 70 limits are 2,240 shapes.
pub(crate) fn busy(nodes: u32, pending: u32, backfill: Backfill) -> TestBed {
    let mut bed = full(nodes, backfill);
    enqueue(&mut bed, pending, 0);
    bed
}

/// Of so many accounts, or of none.
fn enqueue(bed: &mut TestBed, pending: u32, accounts: u32) {
    let mut prng = Prng::new(8, 1);
    for at in 0..pending {
        let limit = 600 + prng.range(0, 69) as u32 * (86_400 - 600) / 69;
        let mut spec = spec(prng.range(1, 8) as u32, prng.range(1, 4) as u32, limit);
        if let Some(number) = at.checked_rem(accounts) {
            spec.account = format!("account{number}");
        }
        bed.submit(spec).expect("it fits when it is idle");
    }
}

/// The same on a site that has a word to say about everything.
pub(crate) fn limited() -> TestBed {
    let mut bed = full(10_000, Backfill::First(100));
    enqueue(&mut bed, 100_000, 8);
    let mut config = (*bed.state.config).clone();
    for at in 0..8u32 {
        let name = format!("account{at}");
        let group = Limits {
            gpus: Some(GpuAmounts::all(64_000)),
            running_jobs: Some(20_000),
            ..Limits::default()
        };
        config.policy.accounts.insert(
            name.clone(),
            Account {
                name,
                group,
                shares: 1 + at,
                ..Account::default()
            },
        );
    }
    config.policy.qos.insert(
        "long".into(),
        Qos {
            name: "long".into(),
            priority: 10,
            ..Qos::default()
        },
    );
    config.scheduler.licences.insert("matlab".into(), 20);
    let window = Reservation {
        name: "cooling".into(),
        start: bed.now.plus_secs(14 * 86_400),
        duration_secs: 7200,
        what: ReservedPart::NodeCount(500),
        maintenance: true,
        ..Reservation::default()
    };
    config
        .policy
        .reservations
        .insert(window.name.clone(), window);
    bed.configure(config);
    bed
}

/// And where each account is guaranteed an eighth of it and has that.
pub(crate) fn guaranteed() -> TestBed {
    with_quotas(10_000, 100_000, 10_000)
}

/// A smaller one, where each account has twice what it is guaranteed.
pub(crate) fn borrowing() -> TestBed {
    with_quotas(1024, 10_000, 512)
}

/// One where what is idle is kept: each job has room and may not take it.
pub(crate) fn kept_idle() -> TestBed {
    let mut bed = full(1024, Backfill::First(100));
    let ended: Vec<RunId> = bed.state.runs.values().take(16).map(|run| run.id).collect();
    ended.into_iter().for_each(|run| bed.end(run));
    let mut config = (*bed.state.config).clone();
    config.partitions[0].headroom = Some(GpuAmounts::all(16 * 8));
    bed.configure(config);
    enqueue(&mut bed, 10_000, 0);
    bed
}

fn with_quotas(nodes: u32, pending: u32, gpus: u64) -> TestBed {
    let account = |at: u32| Account {
        name: format!("account{at}"),
        guaranteed: Some(GpuAmounts::all(gpus)),
        shares: 1 + at,
        ..Account::default()
    };
    let mut bed = full_of(nodes, Backfill::First(100), (0..8).map(account).collect());
    enqueue(&mut bed, pending, 8);
    bed
}

pub(crate) fn fill() -> TestBed {
    let mut bed = TestBed::new(1024, Backfill::default(), Vec::new());
    for _ in 0..1024 {
        bed.submit(spec(8, 1, 3600)).expect("it fits");
    }
    bed
}

/// 100 arrays of so many tasks each, or 100 jobs.
pub(crate) fn queue_of_100(tasks: u32) -> TestBed {
    let mut bed = full(1024, Backfill::default());
    for at in 0..100 {
        let mut spec = spec(1, 1, 3600 + at);
        if tasks > 0 {
            spec.array = Some(ArraySpec::parse(&format!("0-{}", tasks - 1)).expect("an array"));
        }
        bed.submit(spec).expect("it fits when it is idle");
    }
    bed
}

pub(crate) fn gang() -> TestBed {
    let mut bed = TestBed::new(1024, Backfill::default(), Vec::new());
    // One GPU on each of 513 nodes.
    bed.submit(spec(1, 513, 86_400)).expect("it fits");
    bed.settle();
    bed.submit(spec(8, 512, 3600))
        .expect("it fits when it is idle");
    bed
}

pub(crate) fn gang_never() -> TestBed {
    let mut bed = TestBed::new(511, Backfill::default(), Vec::new());
    bed.submit = Some(spec(8, 512, 3600));
    bed.naive = false;
    bed
}

/// One account holds all 4,000 GPUs with one-GPU jobs, beyond its guarantee; the other is owed some and asks for one.
pub(crate) fn reclaim() -> TestBed {
    let account = |name: &str, guaranteed: u64| Account {
        name: name.into(),
        guaranteed: Some(GpuAmounts::all(guaranteed)),
        ..Account::default()
    };
    let mut bed = TestBed::new(
        500,
        Backfill::default(),
        vec![account("borrower", 1000), account("owner", 3000)],
    );
    let of = |account: &str, limit| {
        let mut spec = spec(1, 1, limit);
        spec.account = account.into();
        spec.requeue = Some(true);
        spec
    };
    for at in 0..4000 {
        bed.submit(of("borrower", 43_200 + at)).expect("it fits");
    }
    bed.settle();
    bed.now = bed.now.plus_secs(7200);
    bed.submit(of("owner", 3600))
        .expect("it fits when it is idle");
    bed.naive = false;
    bed
}

/// The question of gq --why, as the controller answers it.
pub(crate) fn why_the_last() -> TestBed {
    let mut bed = busy(1024, 10_000, Backfill::First(100));
    // Something is free, but not enough of it: changes are tried in whole passes.
    let ended: Vec<RunId> = bed.state.runs.values().take(4).map(|run| run.id).collect();
    ended.into_iter().for_each(|run| bed.end(run));
    let last = bed
        .submit(spec(8, 4, 86_400))
        .expect("it fits when it is idle");
    (bed.ask, bed.naive) = (Some(last), false);
    bed
}

/// The same of a queue that waits for limits first of all.
pub(crate) fn why_limited() -> TestBed {
    let mut bed = full(1024, Backfill::First(100));
    let account = |number: u32| {
        let group = Limits {
            gpus: Some(GpuAmounts::all(256)),
            running_jobs: Some(20),
            ..Limits::default()
        };
        Account {
            name: format!("account{number}"),
            group,
            ..Account::default()
        }
    };
    let mut config = (*bed.state.config).clone();
    config.policy.accounts.extend(
        (0..16)
            .map(account)
            .map(|account| (account.name.clone(), account)),
    );
    bed.configure(config);
    let ended: Vec<RunId> = bed
        .state
        .runs
        .values()
        .take(100)
        .map(|run| run.id)
        .collect();
    ended.into_iter().for_each(|run| bed.end(run));
    enqueue(&mut bed, 10_000, 16);
    bed.settle();
    let last = bed
        .state
        .jobs
        .values()
        .filter(|job| job.state == gmodel::JobState::Pending)
        .map(|job| job.id)
        .last();
    (bed.ask, bed.naive) = (last, false);
    bed
}

/// What a scheduler without any idea does: each job in the order of submission looks at every node until it has enough.
pub(crate) fn naive_pass(picture: &Snapshot, jobs: usize) -> usize {
    let mut nodes = picture.nodes.clone();
    let mut starts = 0;
    let partition = &picture.config.partitions[0];
    for job in picture.pending.iter().take(jobs) {
        for demand in gpolicy::feasibility::demand::Demand::all(&job.spec.request, partition) {
            let mut chosen = Vec::new();
            for wanted in &demand.nodes {
                let fits = |at: &usize| !chosen.iter().any(|(taken, _)| taken == at);
                let found = (0..nodes.len())
                    .filter(fits)
                    .find_map(|at| Some((at, share_on(&nodes[at], wanted).ok()?)));
                chosen.extend(found);
            }
            if chosen.len() == demand.nodes.len() {
                chosen.iter().for_each(|(at, share)| nodes[*at].take(share));
                starts += 1;
                break;
            }
        }
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beds_are_what_their_names_say() {
        let bed = busy(16, 50, Backfill::EASY);
        assert_eq!(
            (
                bed.state.runs.len(),
                snapshot(&bed.state, bed.now).pending.len()
            ),
            (16, 50)
        );
        let mut bed = queue_of_100(1000);
        assert!(bed.round(&mut || 0).2.starts_with("100 pending: 0 starts"));
        bed.end_one();
        assert_eq!(bed.state.runs.len(), 1023);
    }

    #[test]
    fn a_gang_that_never_fits_is_refused_at_once() {
        let words = gang_never().round(&mut || 0).2;
        assert!(words.starts_with("refused: --nodes 512"), "{words}");
    }
}
