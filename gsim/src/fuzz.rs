//! Seeds: a scenario each, run to its calm end; a failing one is cut down to the acts that matter.

use crate::cluster::Cluster;
use crate::scenario::{Act, Scenario};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Longest calm, milliseconds of simulated time: back-off goes up to minutes, limits too.
const MAX_CALM_MILLIS: i64 = 12 * 3_600_000;
/// How long nothing may change once all is at rest.
const REST_MILLIS: i64 = 200_000;
/// Runs spent on cutting a failing scenario down.
const MAX_SHRINK_RUNS: usize = 300;

/// What a run that came to rest amounted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub happenings: u64,
    pub commits: u64,
    pub runs_placed: u64,
    pub jobs_over: u64,
    pub jobs: usize,
    pub suspensions: u64,
    /// Jobs, and tasks, that were over and were put back.
    pub returns: u64,
    /// Runs that were told to make room for a job that started elsewhere.
    pub unneeded: u64,
    pub fenced: u64,
    pub simulated_secs: i64,
}

/// A scenario that broke a promise.
#[derive(Clone, Debug)]
pub struct Failure {
    pub violation: String,
    pub scenario: Scenario,
    pub trace: Vec<String>,
}

/// Runs a scenario and then lets it come to rest.
pub fn run(scenario: &Scenario, traced: bool) -> Result<Summary, Failure> {
    let mut cluster = Cluster::new(scenario.clone());
    if traced {
        cluster.trace = Some(Vec::new());
    }
    let ended = catch_unwind(AssertUnwindSafe(|| drive(&mut cluster)));
    let violation = match ended {
        Ok(()) => cluster.violation.clone(),
        Err(panic) => Some(panic_text(&*panic)),
    };
    match violation {
        None => Ok(summary(&cluster)),
        Some(violation) => {
            let trace = cluster.trace.take().unwrap_or_default();
            Err(Failure {
                violation,
                scenario: scenario.clone(),
                trace,
            })
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without words"))
}

fn drive(cluster: &mut Cluster) {
    let calm_from = cluster.scenario.calm_from;
    cluster.run_until(calm_from);
    if cluster.violation.is_some() {
        return;
    }
    cluster.calm();
    let latest = calm_from + MAX_CALM_MILLIS;
    while cluster.violation.is_none() {
        cluster.run_until(cluster.now + 10_000);
        let unrest = cluster.unrest();
        if unrest.is_empty() {
            break;
        }
        if cluster.now >= latest {
            cluster.violated(format!("does not come to rest: {}", unrest.join("; ")));
        }
    }
    if cluster.violation.is_some() {
        return;
    }
    rest(cluster);
    if let Some(job) = cluster.truth.lost(&cluster.controller.store) {
        cluster.violated(format!("job {job} was acknowledged and is lost at the end"));
    }
}

/// Nothing happens any more but that finished jobs are forgotten.
fn rest(cluster: &mut Cluster) {
    // Late copies of frames and the last reports.
    cluster.run_until(cluster.now + 30_000);
    let (seq, placed) = (cluster.controller.state.seq, cluster.truth.runs_placed);
    cluster.run_until(cluster.now + REST_MILLIS);
    let unrest = cluster.unrest();
    if !unrest.is_empty() {
        cluster.violated(format!("rest was broken: {}", unrest.join("; ")));
    }
    if (cluster.controller.state.seq, cluster.truth.runs_placed) != (seq, placed) {
        cluster.violated("facts were asserted although nothing happened".into());
    }
}

fn summary(cluster: &Cluster) -> Summary {
    Summary {
        happenings: cluster.happenings,
        commits: cluster.controller.commits,
        runs_placed: cluster.truth.runs_placed,
        jobs_over: cluster.truth.jobs_over,
        jobs: cluster.truth.acknowledged_jobs().count(),
        suspensions: cluster.truth.suspensions,
        returns: cluster.truth.returns,
        unneeded: cluster.truth.unneeded,
        fenced: cluster.truth.fenced,
        simulated_secs: cluster.now / 1000,
    }
}

/// Leaves out whatever can be left out while the scenario still fails, in a bounded number of runs.
pub fn shrink(failure: Failure) -> Failure {
    let mut best = failure;
    let mut left = MAX_SHRINK_RUNS;
    let mut chunk = (best.scenario.acts.len() / 2).max(1);
    while left > 0 {
        let mut at = 0;
        let mut smaller = false;
        while at < best.scenario.acts.len() && left > 0 {
            let end = (at + chunk).min(best.scenario.acts.len());
            let acts: Vec<Act> = best
                .scenario
                .acts
                .iter()
                .enumerate()
                .filter(|(i, _)| !(at..end).contains(i))
                .map(|(_, a)| a.clone())
                .collect();
            let candidate = Scenario {
                acts,
                ..best.scenario.clone()
            };
            left -= 1;
            match run(&candidate, false) {
                Err(failure) => {
                    best = failure;
                    smaller = true;
                }
                Ok(_) => at = end,
            }
        }
        if chunk == 1 && !smaller {
            break;
        }
        chunk = (chunk / 2).max(1);
    }
    match run(&best.scenario, true) {
        Err(failure) => failure,
        Ok(_) => best,
    }
}
