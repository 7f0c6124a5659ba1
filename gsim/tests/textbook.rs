//! The policies of the textbooks give the same starts, job by job, as a simulator that shares nothing with them.

#[path = "textbook/reference.rs"]
mod reference;

use gsim::experiment::{ClusterChoice, Experiment};
use gsim::hardware::{Hardware, NodeShape};
use gsim::policy_file::PolicyFile;
use gsim::prng::Prng;
use gsim::trace::Trace;
use reference::{Job, Rule};

const RULES: [(Rule, &str); 4] = [
    (Rule::Fifo, "fifo"),
    (Rule::Sjf, "sjf"),
    (Rule::Easy, "easy"),
    (Rule::Conservative, "conservative"),
];

/// A queue that is mostly full: bursts, equal instants, jobs of no length, small and very large ones.
fn generated(seed: u64, count: usize, nodes: u32, size: u32, exact: bool) -> Vec<Job> {
    let mut prng = Prng::new(seed, 1);
    let mut now = 0;
    (0..count)
        .map(|_| {
            now += if prng.range(0, 2) == 0 {
                0
            } else {
                prng.range(0, 60)
            };
            let run = match prng.range(0, 9) {
                0 => 0,
                1 | 2 => prng.range(1, 3),
                _ => prng.range(1, 400),
            };
            let all = i64::from(nodes * size);
            let gpus = match prng.range(0, 9) {
                0..=4 => prng.range(1, 2),
                5..=7 => prng.range(1, i64::from(size)),
                _ => prng.range(1, all),
            } as u32;
            let believed = if exact {
                run
            } else {
                run * prng.range(1, 6) + prng.range(1, 30)
            };
            Job {
                submit: now,
                run,
                believed,
                gpus,
            }
        })
        .collect()
}

fn as_csv(jobs: &[Job], size: u32) -> String {
    let mut text = String::from("submit_s,run_s,time_limit_s,nodes,gpus\n");
    for job in jobs {
        let nodes = job.gpus.div_ceil(size);
        text.push_str(&format!(
            "{},{},{},{nodes},{}\n",
            job.submit, job.run, job.believed, job.gpus
        ));
    }
    text
}

fn ours(csv: &str, nodes: u32, size: u32, policy: &str, runtime: &str) -> Vec<(i64, Vec<usize>)> {
    let trace = Trace::parse(csv).unwrap();
    let mut policy = PolicyFile::named(policy).unwrap();
    policy.settings.runtime = PolicyFile::parse("x", &format!("runtime = {runtime:?}"))
        .unwrap()
        .settings
        .runtime;
    let shape = NodeShape {
        gpus: size,
        cpus: 1000,
        mem_bytes: 1 << 40,
        ..NodeShape::default()
    };
    let place = ClusterChoice::Given(Hardware::uniform(nodes, &shape));
    let done = Experiment::run(&trace, &place, &policy, &mut || 0).unwrap();
    let outcome = &done.parts[0].outcome;
    let start = |job: &gsim::outcome::JobOutcome| {
        assert!(job.fate.ran(), "{:?}", job.fate);
        (
            job.start_ms / 1000,
            job.nodes.iter().map(|node| *node as usize).collect(),
        )
    };
    outcome.jobs.iter().map(start).collect()
}

fn assert_equal(jobs: &[Job], nodes: u32, size: u32, runtime: &str, what: &str) {
    let csv = as_csv(jobs, size);
    for (rule, name) in RULES {
        let expected = reference::starts(jobs, nodes as usize, size, rule);
        let got = ours(&csv, nodes, size, name, runtime);
        let differs = expected
            .iter()
            .zip(&got)
            .position(|(expected, got)| expected != got);
        if let Some(at) = differs {
            let earliest = (0..jobs.len())
                .filter(|at| expected[*at] != got[*at])
                .min_by_key(|at| (expected[*at].0.min(got[*at].0), *at))
                .unwrap_or(at);
            let count = expected
                .iter()
                .zip(&got)
                .filter(|(expected, got)| expected != got)
                .count();
            panic!(
                "{what}, {name}: {count} of {} jobs start otherwise; the first is job {earliest} ({:?}): by the book {:?}, ours {:?}",
                jobs.len(),
                jobs[earliest],
                expected[earliest],
                got[earliest]
            );
        }
    }
}

/// Real jobs of 1 to 16 GPUs, on a cluster on which a fifth of them wait.
#[test]
fn a_sample_of_philly_gives_the_starts_of_the_book() {
    let trace = Trace::parse(include_str!("data/philly-sample.csv")).unwrap();
    let job = |job: &gsim::trace::TraceJob| {
        let run = job.run_ms.unwrap() / 1000;
        Job {
            submit: job.submit_ms / 1000,
            run,
            believed: run,
            gpus: job.gpus() as u32,
        }
    };
    let jobs: Vec<Job> = trace.jobs.iter().map(job).collect();
    assert_equal(&jobs, 14, 8, "actual", "philly");
}

#[test]
fn one_machine_gives_the_starts_of_the_book() {
    for seed in 0..12 {
        for (exact, runtime) in [(true, "actual"), (false, "limit")] {
            let jobs = generated(seed, 150, 1, 16, exact);
            assert_equal(&jobs, 1, 16, runtime, &format!("seed {seed}, by {runtime}"));
        }
    }
}

#[test]
fn several_nodes_give_the_starts_of_the_book() {
    for seed in 100..112 {
        for (exact, runtime) in [(true, "actual"), (false, "limit")] {
            let jobs = generated(seed, 120, 4, 8, exact);
            assert_equal(&jobs, 4, 8, runtime, &format!("seed {seed}, by {runtime}"));
        }
    }
}
