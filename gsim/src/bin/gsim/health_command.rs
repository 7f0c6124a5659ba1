//! `gsim health`: many hours of GPUs that fall ill and sensors that lie, and the numbers.

use clap::Args;
use gsim::health::{HealthResult, HealthTrial};
use std::process::ExitCode;

#[derive(Args)]
pub struct HealthArgs {
    /// Simulated hours of all GPUs together
    #[arg(long, default_value_t = 1_000_000)]
    gpu_hours: i64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Nodes of eight GPUs
    #[arg(long, default_value_t = 128)]
    nodes: u16,
    /// Print the last so many lines of what happened when a promise is broken
    #[arg(long, default_value_t = 0)]
    trace: usize,
}

/// Exit 1 for a wrong drain or any other broken promise.
pub fn run(args: &HealthArgs) -> ExitCode {
    let trial = HealthTrial::new(args.seed, args.gpu_hours, args.nodes.max(1));
    let result = trial.run(args.trace > 0);
    print(&result);
    let from = result.trace.len().saturating_sub(args.trace);
    result.trace[from..].iter().for_each(|line| note!("{line}"));
    match result.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            note!(
                "gsim: seed {} after {} h: {violation}",
                args.seed,
                result.hours
            );
            ExitCode::FAILURE
        }
    }
}

fn print(result: &HealthResult) {
    let tally = &result.tally;
    let (right, ill) = (
        tally.right.values().map(|times| times.count).sum::<u64>(),
        tally.illnesses.values().sum::<u64>(),
    );
    let disturbed = tally.disturbances.values().sum::<u64>();
    say!(
        "{} GPU-hours in {} h of the pool, {} looks, {} jobs over",
        result.gpu_hours,
        result.hours,
        tally.looks,
        result.jobs_over
    );
    say!("{ill} GPUs fell ill, {disturbed} times a healthy one or its sensors did something odd");
    say!(
        "drains: {right} right, {} wrong, {} for a driver's false sign; {} missed",
        tally.wrong,
        tally.by_false_sign,
        tally.missed
    );
    say!(
        "{} runs ended, {} resets, {} boots, {} burn-ins, {} returns, {} visits of an operator",
        tally.runs_ended,
        tally.resets,
        tally.boots,
        tally.burn_ins,
        tally.returned,
        tally.by_operator
    );
    say!(
        "breaker: {} steps allowed, {} had to wait; at most {} of {} thousandths of nodes lost in an hour when it allowed one more",
        result.allowed,
        result.stopped,
        result.most_lost,
        result.bound
    );
    say!(
        "{:<24} {:>8} {:>8} {:>10} {:>10}",
        "illness",
        "ill",
        "drained",
        "mean s",
        "longest s"
    );
    for (illness, count) in &tally.illnesses {
        let times = tally.right.get(illness).copied().unwrap_or_default();
        say!(
            "{:<24} {count:>8} {:>8} {:>10.1} {:>10.1}",
            illness.word(),
            times.count,
            times.sum_millis as f64 / 1000.0 / times.count.max(1) as f64,
            times.longest_millis as f64 / 1000.0
        );
    }
    for (what, count) in &tally.disturbances {
        say!("{:<24} {count:>8} {:>8}", what.word(), 0);
    }
}
