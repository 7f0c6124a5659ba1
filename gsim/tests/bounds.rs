//! Bounds for every policy, over streams of jobs from seeds: no big job starves, and no job waits beside idle nodes.

use gcore::ctl::{Event, State};
use gmodel::run::StopCause;
use gmodel::{JobId, JobState, RunClass, Timestamp};
use gsim::experiment::{ClusterChoice, Experiment};
use gsim::hardware::{Hardware, NodeShape};
use gsim::policy_file::PolicyFile;
use gsim::prng::Prng;
use gsim::trace::Trace;
use gsim::trace_run::{Observer, run_watched};
use std::collections::BTreeMap;
use std::fmt::Write;

const NODES: u32 = 6;
const GPUS: u32 = 8;
const SEEDS: u64 = 3;

/// One job as it went, seconds.
#[derive(Clone, Debug)]
struct JobTimes {
    id: String,
    submit: i64,
    start: i64,
    end: i64,
    limit: i64,
}

/// More than the pool can do: small jobs without a pause, and now and then one that wants half of the nodes or all.
fn stream(seed: u64, jobs: u32) -> String {
    let mut chance = Prng::new(seed, 7);
    let mut text = String::from("job_id,user,account,submit_s,run_s,time_limit_s,nodes,gpus\n");
    let mut submit = 0;
    for id in 1..=jobs {
        submit += chance.range(0, 120);
        let nodes = if chance.one_in(12) {
            [NODES, NODES / 2][chance.below(2)]
        } else {
            1
        };
        let gpus = if nodes > 1 {
            nodes * GPUS
        } else {
            chance.range(1, i64::from(GPUS)) as u32
        };
        let limit = chance.range(60, 4000);
        let run = limit * chance.range(5, 100) / 100;
        writeln!(
            text,
            "{id},ann,a,{submit},{},{limit},{nodes},{gpus}",
            run.max(1)
        )
        .unwrap();
    }
    text
}

fn run(trace: &str, policy: &str) -> Vec<JobTimes> {
    let trace = Trace::parse(trace).unwrap();
    let shape = NodeShape {
        gpus: GPUS,
        cpus: 64,
        mem_bytes: 1 << 40,
        ..NodeShape::default()
    };
    let place = ClusterChoice::Given(Hardware::uniform(NODES, &shape));
    let policy = PolicyFile::parse("test", policy).unwrap();
    let done = Experiment::run(&trace, &place, &policy, &mut || 0).unwrap();
    assert_eq!(
        done.measures.finished,
        trace.jobs.len() as u64,
        "every job runs: {:?}",
        done.measures.refusals
    );
    let went = |(job, out): (&gsim::trace::TraceJob, &gsim::outcome::JobOutcome)| JobTimes {
        id: job.id.to_string(),
        submit: out.submit_ms / 1000,
        start: out.start_ms / 1000,
        end: out.end_ms / 1000,
        limit: job.limit_ms.unwrap() / 1000,
    };
    trace
        .jobs
        .iter()
        .zip(&done.parts[0].outcome.jobs)
        .map(went)
        .collect()
}

/// Once all jobs before it have started, a job waits at most until the running jobs reach their limits: backfill does not
/// delay it.
#[test]
fn no_job_starves() {
    for seed in 1..=SEEDS {
        let trace = stream(seed, 90);
        for backfill in ["\"easy\"", "5", "100", "\"conservative\""] {
            let jobs = run(
                &trace,
                &format!("order = \"fifo\"\nbackfill = {backfill}\n"),
            );
            let mut head_from = 0;
            let mut waited = 0;
            for job in &jobs {
                head_from = head_from.max(job.submit);
                let runs = jobs.iter().filter(|run| {
                    run.id != job.id && run.start <= head_from && run.end > head_from
                });
                let bound = runs
                    .map(|run| run.start + run.limit)
                    .max()
                    .unwrap_or(head_from)
                    .max(head_from);
                assert!(
                    job.start <= bound,
                    "seed {seed}, backfill {backfill}: first in line at {head_from}, due by {bound}: {job:?}"
                );
                waited += i64::from(job.start > head_from);
                head_from = head_from.max(job.start);
            }
            assert!(
                waited > 5,
                "the stream is dense enough to make heads wait ({waited})"
            );
        }
    }
}

#[test]
fn no_job_waits_beside_an_idle_pool() {
    for seed in 1..=SEEDS {
        let trace = stream(seed, 90);
        for policy in ["default", "fifo", "sjf", "easy", "conservative", "sjf-easy"] {
            let words = match policy {
                "default" => String::new(),
                "fifo" | "sjf" => format!("order = \"{policy}\"\nbackfill = \"off\"\n"),
                "sjf-easy" => "order = \"sjf\"\nbackfill = \"easy\"\n".to_owned(),
                _ => format!("order = \"fifo\"\nbackfill = \"{policy}\"\n"),
            };
            let jobs = run(&trace, &words);
            for job in jobs.iter().filter(|job| job.start > job.submit) {
                // Another job ran at every moment from its submission to its start.
                let mut busy_to = job.submit;
                while busy_to < job.start {
                    let on = jobs
                        .iter()
                        .filter(|run| run.start <= busy_to && run.end > busy_to)
                        .map(|run| run.end)
                        .max();
                    busy_to = on.unwrap_or_else(|| {
                        panic!("seed {seed}, {policy}: idle at {busy_to} while {job:?} waits")
                    });
                }
            }
        }
    }
}

/// A pool that an account without a guarantee fills, and an owner that asks now and then for whole nodes of its guarantee.
fn lent_stream(seed: u64, jobs: u32, every: (i64, i64)) -> String {
    let mut chance = Prng::new(seed, 11);
    let mut all: Vec<(i64, String)> = Vec::new();
    let mut submit = 0;
    for id in 0..jobs {
        submit += chance.range(every.0, every.1);
        let nodes = chance.range(1, 3) as u32;
        let run = chance.range(60, 800);
        all.push((
            submit,
            format!(
                "o{id},olga,owner,{submit},{run},900,{nodes},{}",
                nodes * GPUS
            ),
        ));
    }
    let last = submit;
    let mut submit = 0;
    for id in 0.. {
        submit += chance.range(0, 240);
        if submit > last {
            break;
        }
        let nodes = if chance.one_in(10) { 2 } else { 1 };
        let gpus = if nodes > 1 {
            nodes * GPUS
        } else {
            chance.range(1, i64::from(GPUS)) as u32
        };
        let limit = chance.range(300, 20_000);
        let run = limit * chance.range(20, 100) / 100;
        all.push((
            submit,
            format!("l{id},lea,lender,{submit},{run},{limit},{nodes},{gpus}"),
        ));
    }
    all.sort();
    let lines = all.into_iter().map(|(_, line)| line + "\n");
    String::from("job_id,user,account,submit_s,run_s,time_limit_s,nodes,gpus\n")
        + &lines.collect::<String>()
}

/// GPUs of the owner.
const GUARANTEED: u32 = 24;
/// Seconds that a run which came back from a preemption is left alone, as the policy of the test says.
const MIN_RUN_SECS: i64 = 300;
/// The simulator looks again when a job comes or ends: so often at least.
const LOOK_SECS: i64 = 240;

/// When a waiting job of the owner was first within its guarantee, beside what the owner held and had waiting before it.
#[derive(Default)]
struct WaitObserver {
    covered: BTreeMap<JobId, Timestamp>,
    /// Job, its nodes, seconds from then to its start.
    waits: Vec<(JobId, u32, i64)>,
    preempted: u32,
}

impl Observer for WaitObserver {
    fn facts(&mut self, state: &State, events: &[Event]) {
        for event in events {
            match event {
                Event::RunPlaced {
                    run,
                    allocation,
                    at,
                    ..
                } => {
                    if let Some(covered) = self.covered.remove(&run.job) {
                        self.waits
                            .push((run.job, allocation.len() as u32, at.since_secs(covered)));
                    }
                }
                Event::RunStopping { run, stop } if stop.why == StopCause::Preempted => {
                    self.preempted += 1;
                    let class = state.runs.get(*run).and_then(|run| run.class);
                    assert_eq!(
                        class,
                        Some(RunClass::Borrowed),
                        "run {run} stands on a guarantee"
                    );
                }
                _ => {}
            }
        }
    }

    fn rest(&mut self, state: &State, now: Timestamp) {
        let owners = || {
            state
                .jobs
                .values()
                .filter(|job| job.spec.account == "owner" && !job.state.is_final())
        };
        let held: u32 = owners()
            .filter(|job| job.state != JobState::Pending)
            .map(|job| job.spec.request.nodes_min)
            .sum();
        let mut asked = held;
        for job in owners().filter(|job| job.state == JobState::Pending) {
            asked += job.spec.request.nodes_min;
            if asked * GPUS <= GUARANTEED {
                self.covered.entry(job.id).or_insert(now);
            }
        }
    }
}

/// How the owner's jobs of a stream waited while its guarantee had room for them.
fn reclaimed(seed: u64, every: (i64, i64)) -> WaitObserver {
    let trace = Trace::parse(&lent_stream(seed, 24, every)).unwrap();
    let shape = NodeShape {
        gpus: GPUS,
        cpus: 64,
        mem_bytes: 1 << 40,
        ..NodeShape::default()
    };
    let hardware = Hardware::uniform(NODES, &shape);
    let policy = format!(
        "[account.owner]\nguaranteed = {GUARANTEED}\n[account.lender]\n[preempt]\nmin_run = \"0:{MIN_RUN_SECS}\"\n"
    );
    let policy = PolicyFile::parse("test", &policy).unwrap();
    let jobs: Vec<_> = trace.jobs.iter().collect();
    let mut watch = WaitObserver::default();
    run_watched(
        &jobs,
        &hardware,
        &policy.config(&hardware),
        &policy.settings,
        &mut || 0,
        &mut watch,
    )
    .unwrap();
    assert!(
        watch.covered.is_empty(),
        "seed {seed}: never started: {:?}",
        watch.covered
    );
    watch
}

/// A job within its guarantee starts as soon as the victims have left, here at once; it waits only for a run that came back
/// from a preemption less than `min_run` ago.
#[test]
fn guaranteed_demand_starts_within_its_bound() {
    for seed in 1..=SEEDS {
        for (every, most_secs) in [((900, 2400), 0), ((200, 700), MIN_RUN_SECS + LOOK_SECS)] {
            let watch = reclaimed(seed, every);
            let worst = watch
                .waits
                .iter()
                .max_by_key(|(.., secs)| *secs)
                .expect("the owner had to reclaim");
            assert!(
                worst.2 <= most_secs,
                "seed {seed}, every {every:?}: job, nodes, seconds: {worst:?}"
            );
            assert!(
                watch.preempted > 5,
                "the pool is full of borrowers ({})",
                watch.preempted
            );
        }
    }
}
