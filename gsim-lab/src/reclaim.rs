//! The cost of guaranteed demand to borrowed runs: GPU-hours of work lost when an account takes its GPUs back, by gsched's
//! choice of victims and, from the same state at the same moment, by other rules.
//!
//! Runs a trace in which one account asks for whole nodes again and again. The other rules' choices are computed and not
//! carried out, so that all rules choose between the same runs.

use gcore::ctl::{Event, Run, State};
use gmodel::policy::Account;
use gmodel::{JobId, NodeId, Timestamp};
use gsim::hardware::{Hardware, NodeShape};
use gsim::outcome::Fate;
use gsim::policy_file::PolicyFile;
use gsim::prng::Prng;
use gsim::trace::{Trace, TraceJob};
use gsim::trace_run::{Observer, run_watched};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The account that takes back what it lent.
const OWNER: &str = "owner";
const GPUS_PER_NODE: u32 = 8;
/// Runs on several nodes up to which every set of them is tried.
const MOST_COUPLED: usize = 14;

/// What is asked and how often.
#[derive(Clone, Debug)]
pub struct ReclaimSetup {
    /// Nodes of 8 GPUs.
    pub nodes: u32,
    pub every_ms: i64,
    /// How long a job of the owner runs.
    pub run_ms: i64,
    /// It asks for 1 to so many whole nodes.
    pub most_nodes: u32,
    pub marks_every_ms: i64,
}

impl Default for ReclaimSetup {
    fn default() -> Self {
        let (hour, minute) = (3_600_000, 60_000);
        Self {
            nodes: 55,
            every_ms: 2 * hour,
            run_ms: hour,
            most_nodes: 8,
            marks_every_ms: 30 * minute,
        }
    }
}

/// What a rule did over all reclaims of a run of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LostWork {
    pub gpu_hours: f64,
    pub victims: u64,
}

/// One seed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Reclaims {
    pub seed: u64,
    /// Jobs of the owner that others had to make room for.
    pub reclaims: u64,
    /// Others, where the core ended only some of the runs at once: not counted.
    pub in_parts: u64,
    pub ours: LostWork,
    pub youngest_first: LostWork,
    /// Runs of the account that uses most first, of these the one that was submitted last.
    pub lowest_priority_first: LostWork,
    /// Reclaims in which every set of victims could be tried; what ours and the best of all sets lost in these.
    pub tried: u64,
    pub ours_where_tried: LostWork,
    pub brute_force: LostWork,
}

/// Runs a trace with the reclaims of a seed.
///
/// # Errors
/// A broken invariant of core or scheduler.
pub fn reclaims(trace: &Trace, setup: &ReclaimSetup, seed: u64) -> Result<Reclaims, String> {
    let own = owners_jobs(trace, setup, seed);
    let jobs: Vec<&TraceJob> = trace.jobs.iter().chain(&own).collect();
    let most = setup.most_nodes * GPUS_PER_NODE;
    let minutes = setup.marks_every_ms / 60_000;
    let policy =
        format!("marks_every = \"{minutes}:00\"\n[account.{OWNER}]\nguaranteed = {most}\n");
    let mut policy = PolicyFile::parse("reclaim", &policy)?;
    // All other accounts have no guarantee and borrow.
    let accounts: BTreeSet<&str> = trace
        .jobs
        .iter()
        .map(|job| &*job.account)
        .filter(|name| !name.is_empty())
        .collect();
    let others = accounts.into_iter().map(|name| {
        (
            name.to_owned(),
            Account {
                name: name.to_owned(),
                ..Account::default()
            },
        )
    });
    policy.accounts.accounts.extend(others);
    let shape = NodeShape {
        gpus: GPUS_PER_NODE,
        cpus: 64,
        mem_bytes: 1 << 40,
        ..NodeShape::default()
    };
    let hardware = Hardware::uniform(setup.nodes, &shape);
    let mut watch = ReclaimObserver {
        out: Reclaims {
            seed,
            ..Reclaims::default()
        },
        seen: BTreeSet::new(),
    };
    let outcome = run_watched(
        &jobs,
        &hardware,
        &policy.config(&hardware),
        &policy.settings,
        &mut || 0,
        &mut watch,
    )?;
    let refused = outcome.jobs.iter().find_map(|job| match &job.fate {
        Fate::Refused(text) => Some(text),
        _ => None,
    });
    refused.map_or(Ok(watch.out), |text| {
        Err(format!("a job of the trace is refused: {text}"))
    })
}

fn owners_jobs(trace: &Trace, setup: &ReclaimSetup, seed: u64) -> Vec<TraceJob> {
    let mut chance = Prng::new(seed, 1);
    let last_ms = trace
        .jobs
        .iter()
        .map(|job| job.submit_ms)
        .max()
        .unwrap_or(0);
    let mut at_ms = chance.range(0, setup.every_ms);
    let mut jobs = Vec::new();
    while at_ms < last_ms {
        let nodes = chance.range(1, i64::from(setup.most_nodes)) as u32;
        jobs.push(TraceJob {
            id: format!("owner-{}", jobs.len()).into(),
            user: OWNER.into(),
            account: OWNER.into(),
            partition: "".into(),
            qos: "".into(),
            submit_ms: at_ms,
            run_ms: Some(setup.run_ms),
            limit_ms: Some(setup.run_ms),
            nodes,
            says_nodes: true,
            gpu_milli: u64::from(nodes * GPUS_PER_NODE) * 1000,
            gpu_types: Vec::new(),
            cpu_milli: 0,
            mem_mib: 0,
            asked: None,
        });
        at_ms += setup.every_ms;
    }
    jobs
}

struct ReclaimObserver {
    out: Reclaims,
    /// Jobs that were made room for.
    seen: BTreeSet<JobId>,
}

impl Observer for ReclaimObserver {
    fn facts(&mut self, state: &State, events: &[Event]) {
        let mut chosen: BTreeMap<JobId, Vec<&Run>> = BTreeMap::new();
        for event in events {
            if let Event::RunStopping { run, stop } = event
                && let (Some(job), Some(run)) = (stop.for_job, state.runs.get(*run))
            {
                chosen.entry(job).or_default().push(run);
            }
        }
        for (job, ours) in chosen {
            let Some(job) = state.jobs.get(job).filter(|job| job.spec.account == OWNER) else {
                continue;
            };
            if self.seen.insert(job.id) {
                let now = ours
                    .iter()
                    .filter_map(|run| run.stop.as_ref())
                    .map(|stop| stop.at)
                    .max()
                    .unwrap_or_default();
                let pool = VictimPool::new(state, now, job.spec.request.nodes_min as usize, &ours);
                self.out.note(&pool, &ours);
            }
        }
    }

    fn rest(&mut self, _: &State, _: Timestamp) {}
}

impl Reclaims {
    fn note(&mut self, pool: &VictimPool, ours: &[&Run]) {
        let ours: BTreeSet<usize> = ours
            .iter()
            .filter_map(|run| pool.runs.iter().position(|one| one.run.id == run.id))
            .collect();
        if !pool.has_room(&ours) {
            self.in_parts += 1;
            return;
        }
        self.reclaims += 1;
        self.ours.add(pool, &ours);
        self.youngest_first.add(
            pool,
            &pool.in_order(|one| std::cmp::Reverse((one.run.started, one.run.id))),
        );
        self.lowest_priority_first.add(
            pool,
            &pool.in_order(|one| {
                (
                    std::cmp::Reverse(one.account_gpus),
                    std::cmp::Reverse((one.submitted, one.run.id)),
                )
            }),
        );
        if let Some(best) = pool.best() {
            self.tried += 1;
            self.ours_where_tried.add(pool, &ours);
            self.brute_force.add(pool, &best);
        }
    }
}

impl LostWork {
    fn add(&mut self, pool: &VictimPool, victims: &BTreeSet<usize>) {
        self.gpu_hours += victims
            .iter()
            .map(|at| pool.runs[*at].lost_gpu_secs)
            .sum::<u64>() as f64
            / 3600.0;
        self.victims += victims.len() as u64;
    }
}

/// The runs that may be ended, and how many GPUs each node lacks to be free.
struct VictimPool<'a> {
    wanted: usize,
    runs: Vec<Victim<'a>>,
    /// By node: GPUs in use, without those of runs that end anyway.
    held: BTreeMap<NodeId, u32>,
}

struct Victim<'a> {
    run: &'a Run,
    submitted: Timestamp,
    account_gpus: u64,
    lost_gpu_secs: u64,
}

impl<'a> VictimPool<'a> {
    /// Just before `ours` were told to stop.
    fn new(state: &'a State, now: Timestamp, wanted: usize, ours: &[&Run]) -> Self {
        let mut pool = Self {
            wanted,
            runs: Vec::new(),
            held: state.nodes.keys().map(|node| (node, 0)).collect(),
        };
        let mut by_account: BTreeMap<&str, u64> = BTreeMap::new();
        let live = state.runs.values().filter(|run| run.outcome.is_none());
        let stays = |run: &&Run| run.stop.is_none() || ours.iter().any(|one| one.id == run.id);
        for run in live.filter(stays) {
            let Some(job) = state.jobs.get(run.id.job) else {
                continue;
            };
            for share in &run.allocation {
                *pool.held.entry(share.node).or_default() += share.gpus.len() as u32;
            }
            let gpus: u64 = run
                .allocation
                .iter()
                .map(|share| share.gpus.len() as u64)
                .sum();
            *by_account.entry(&job.spec.account).or_default() += gpus;
            if job.spec.account != OWNER {
                let safe = run
                    .mark
                    .as_ref()
                    .map(|mark| mark.at)
                    .max(run.started)
                    .unwrap_or(now);
                let lost_gpu_secs = gpus * (now.since_millis(safe).max(0) / 1000) as u64;
                pool.runs.push(Victim {
                    run,
                    submitted: job.submitted,
                    account_gpus: 0,
                    lost_gpu_secs,
                });
            }
        }
        for victim in &mut pool.runs {
            let account = state
                .jobs
                .get(victim.run.id.job)
                .map_or("", |job| &*job.spec.account);
            victim.account_gpus = by_account.get(account).copied().unwrap_or(0);
        }
        pool
    }

    /// Whether enough nodes are free without these.
    fn has_room(&self, gone: &BTreeSet<usize>) -> bool {
        let mut held = self.held.clone();
        for share in gone.iter().flat_map(|at| &self.runs[*at].run.allocation) {
            *held.entry(share.node).or_default() -= share.gpus.len() as u32;
        }
        held.values().filter(|gpus| **gpus == 0).count() >= self.wanted
    }

    /// Runs by a rule until there is room, less those that turn out not to be needed, the last taken first.
    fn in_order<K: Ord>(&self, rule: impl Fn(&Victim) -> K) -> BTreeSet<usize> {
        let mut order: Vec<usize> = (0..self.runs.len()).collect();
        order.sort_by_key(|at| rule(&self.runs[*at]));
        let mut gone = BTreeSet::new();
        let mut taken = Vec::new();
        for at in order {
            if self.has_room(&gone) {
                break;
            }
            gone.insert(at);
            taken.push(at);
        }
        for at in taken.into_iter().rev() {
            gone.remove(&at);
            if !self.has_room(&gone) {
                gone.insert(at);
            }
        }
        gone
    }

    /// The set of runs that loses least: every set of those on several nodes, and then the cheapest nodes. `None`: there are
    /// too many sets.
    fn best(&self) -> Option<BTreeSet<usize>> {
        let (coupled, single): (Vec<usize>, Vec<usize>) =
            (0..self.runs.len()).partition(|at| self.runs[*at].run.allocation.len() > 1);
        if coupled.len() > MOST_COUPLED {
            return None;
        }
        let mut best: Option<(u64, BTreeSet<usize>)> = None;
        for set in 0..1_u32 << coupled.len() {
            let gone = coupled
                .iter()
                .enumerate()
                .filter(|(bit, _)| set >> bit & 1 == 1)
                .map(|(_, at)| *at);
            let found = self.with_cheapest_nodes(gone.collect(), &single);
            if let Some(found) =
                found.filter(|found| best.as_ref().is_none_or(|(least, _)| found.0 < *least))
            {
                best = Some(found);
            }
        }
        best.map(|(_, victims)| victims)
    }

    /// The loss and the victims, when these runs end and then those of the cheapest nodes.
    fn with_cheapest_nodes(
        &self,
        mut gone: BTreeSet<usize>,
        single: &[usize],
    ) -> Option<(u64, BTreeSet<usize>)> {
        let mut held = self.held.clone();
        let mut lost: u64 = gone.iter().map(|at| self.runs[*at].lost_gpu_secs).sum();
        for share in gone.iter().flat_map(|at| &self.runs[*at].run.allocation) {
            *held.entry(share.node).or_default() -= share.gpus.len() as u32;
        }
        let mut on_node: BTreeMap<NodeId, (u64, Vec<usize>)> = BTreeMap::new();
        for at in single {
            let victim = &self.runs[*at];
            let share = &victim.run.allocation[0];
            *held.entry(share.node).or_default() -= share.gpus.len() as u32;
            let (cost, runs) = on_node.entry(share.node).or_default();
            *cost += victim.lost_gpu_secs;
            runs.push(*at);
        }
        let nothing = (0, Vec::new());
        let free = held.iter().filter(|(_, gpus)| **gpus == 0);
        let mut nodes: Vec<&(u64, Vec<usize>)> = free
            .map(|(node, _)| on_node.get(node).unwrap_or(&nothing))
            .collect();
        nodes.sort_by_key(|(cost, runs)| (*cost, runs.len()));
        if nodes.len() < self.wanted {
            return None;
        }
        for (cost, runs) in &nodes[..self.wanted] {
            lost += cost;
            gone.extend(runs);
        }
        Some((lost, gone))
    }
}
