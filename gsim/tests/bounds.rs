//! What no policy may do to anybody, over streams of jobs from seeds: starve a big job, or leave work waiting beside idle
//! nodes.

use gsim::experiment::{Experiment, Place};
use gsim::hardware::{Hardware, NodeShape};
use gsim::policy_file::PolicyFile;
use gsim::prng::Prng;
use gsim::trace::Trace;
use std::fmt::Write;

const NODES: u32 = 6;
const GPUS: u32 = 8;
const SEEDS: u64 = 3;

/// One job as it went, seconds.
#[derive(Clone, Debug)]
struct Went {
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
        let nodes = if chance.one_in(12) { [NODES, NODES / 2][chance.below(2)] } else { 1 };
        let gpus = if nodes > 1 { nodes * GPUS } else { chance.range(1, i64::from(GPUS)) as u32 };
        let limit = chance.range(60, 4000);
        let run = limit * chance.range(5, 100) / 100;
        writeln!(text, "{id},ann,a,{submit},{},{limit},{nodes},{gpus}", run.max(1)).unwrap();
    }
    text
}

fn run(trace: &str, policy: &str) -> Vec<Went> {
    let trace = Trace::parse(trace).unwrap();
    let shape = NodeShape { gpus: GPUS, cpus: 64, mem_bytes: 1 << 40, ..NodeShape::default() };
    let place = Place::Given(Hardware::uniform(NODES, &shape));
    let policy = PolicyFile::parse("test", policy).unwrap();
    let done = Experiment::run(&trace, &place, &policy, &mut || 0).unwrap();
    assert_eq!(done.measures.finished, trace.jobs.len() as u64, "every job runs: {:?}", done.measures.refusals);
    let went = |(job, out): (&gsim::trace::TraceJob, &gsim::trace_run::JobOutcome)| Went {
        id: job.id.to_string(),
        submit: out.submit_ms / 1000,
        start: out.start_ms / 1000,
        end: out.end_ms / 1000,
        limit: job.limit_ms.unwrap() / 1000,
    };
    trace.jobs.iter().zip(&done.parts[0].outcome.jobs).map(went).collect()
}

/// From when everybody before it has started, a job waits no longer than until what runs then has reached its limits:
/// whoever passes it, passes it for good reasons and without delaying it.
#[test]
fn nobody_starves() {
    for seed in 1..=SEEDS {
        let trace = stream(seed, 90);
        for backfill in ["\"easy\"", "5", "100", "\"conservative\""] {
            let jobs = run(&trace, &format!("order = \"fifo\"\nbackfill = {backfill}\n"));
            let mut head_from = 0;
            let mut waited = 0;
            for job in &jobs {
                head_from = head_from.max(job.submit);
                let runs = jobs.iter().filter(|run| run.id != job.id && run.start <= head_from && run.end > head_from);
                let bound = runs.map(|run| run.start + run.limit).max().unwrap_or(head_from).max(head_from);
                assert!(job.start <= bound, "seed {seed}, backfill {backfill}: first in line at {head_from}, due by {bound}: {job:?}");
                waited += i64::from(job.start > head_from);
                head_from = head_from.max(job.start);
            }
            assert!(waited > 5, "the stream is dense enough to make heads wait ({waited})");
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
                // Somebody ran until it started, all the time from its submission.
                let mut busy_to = job.submit;
                while busy_to < job.start {
                    let on = jobs.iter().filter(|run| run.start <= busy_to && run.end > busy_to).map(|run| run.end).max();
                    busy_to = on.unwrap_or_else(|| panic!("seed {seed}, {policy}: idle at {busy_to} while {job:?} waits"));
                }
            }
        }
    }
}
