//! What a run over a trace is judged by: waits, slowdowns, use, fragments, losses, fairness. Numbers and their text;
//! never how they came about.

use crate::ledger::Sums;
use crate::outcome::{Fate, JobOutcome, Outcome};
use crate::trace::TraceJob;
use serde::Serialize;
use std::collections::BTreeMap;

/// Jobs shorter than this count as so long in the bounded slowdown, milliseconds (Feitelson's tau of 10 s).
pub const TAU_MS: i64 = 10_000;

/// The results of one policy. Times in seconds, use and fairness from 0 to 1.
#[derive(Clone, Debug, Serialize)]
pub struct Measures {
    pub policy: String,
    pub cluster: String,
    pub jobs: u64,
    pub finished: u64,
    pub timed_out: u64,
    pub refused: u64,
    pub never_started: u64,
    /// Preempted, and not to be started again.
    pub cancelled: u64,
    /// Rows without a run time in the source.
    pub skipped: u64,
    pub makespan_secs: f64,
    pub wait_secs: Spread,
    /// From submission to end.
    pub completion_secs: Spread,
    /// (wait + run) / max(run, 10 s), at least 1.
    pub bounded_slowdown: Spread,
    /// GPUs held, of all there are, over the makespan. `None` without any.
    pub gpu_use: Option<f64>,
    pub cpu_use: Option<f64>,
    /// Free GPUs that lie on nodes partly in use, of all free ones.
    pub fragmentation: Option<f64>,
    /// GPUs that were free while jobs waited, of all there are.
    pub gpu_idle_while_waiting: Option<f64>,
    pub preemptions: u64,
    pub gpu_hours_lost: f64,
    /// Jain's index over the mean bounded slowdown of each account: 1 is equal for all.
    pub fairness: f64,
    pub accounts: u64,
    pub passes: u64,
    /// Time of the machine spent in snapshots and plans.
    pub pass_millis: PassTimes,
    pub by_size: Vec<SizeClass>,
    /// Over every start: equal runs have equal ones.
    pub hash: String,
    /// Words of the controller for the jobs it refused, the most frequent first.
    pub refusals: Vec<(String, u64)>,
    pub notes: Vec<String>,
}

/// Mean and percentiles of one measure; between two values by their distance to both, as numpy, R and spreadsheets have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    pub mean: f64,
    pub median: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PassTimes {
    pub total: f64,
    pub mean: f64,
    pub p99: f64,
    pub max: f64,
}

/// Jobs of similar size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeClass {
    pub size: String,
    pub jobs: u64,
    pub wait_secs: Spread,
}

/// What is printed about the setting beside the numbers.
pub struct Setting {
    pub policy: String,
    pub cluster: String,
    pub notes: Vec<String>,
}

impl Spread {
    /// Of values in any order; all zero without any.
    pub fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let place = (values.len() - 1) as f64 * part;
            let (below, above) = (
                values[place.floor() as usize],
                values[place.ceil() as usize],
            );
            below + (above - below) * place.fract()
        };
        Self {
            mean: round(values.iter().sum::<f64>() / values.len() as f64),
            median: round(at(0.5)),
            p95: round(at(0.95)),
            p99: round(at(0.99)),
            max: round(at(1.0)),
        }
    }
}

impl Measures {
    /// Judges the outcomes of one policy: one for each cluster that was simulated, with its jobs.
    pub fn of(setting: Setting, outcomes: &[(&[&TraceJob], &Outcome)]) -> Self {
        let all: Vec<(&TraceJob, &JobOutcome)> = outcomes
            .iter()
            .flat_map(|(jobs, outcome)| jobs.iter().copied().zip(&outcome.jobs))
            .collect();
        let ran: Vec<_> = all
            .iter()
            .copied()
            .filter(|(_, out)| out.fate.ran())
            .collect();
        let count = |test: &dyn Fn(&Fate) -> bool| {
            all.iter().filter(|(_, out)| test(&out.fate)).count() as u64
        };
        let sums = together(outcomes);
        let begin = outcomes
            .iter()
            .map(|(_, out)| out.begin_ms)
            .min()
            .unwrap_or(0);
        let end = ran.iter().map(|(_, out)| out.end_ms).max().unwrap_or(begin);
        let (fairness, accounts) = fairness(&ran);
        let lost: u128 = all.iter().map(|(_, out)| out.lost).sum();
        Self {
            policy: setting.policy,
            cluster: setting.cluster,
            jobs: all.len() as u64,
            finished: count(&|fate| *fate == Fate::Finished),
            timed_out: count(&|fate| *fate == Fate::TimedOut),
            refused: count(&|fate| matches!(fate, Fate::Refused(_))),
            never_started: count(&|fate| matches!(fate, Fate::NeverStarted(_))),
            cancelled: count(&|fate| *fate == Fate::Cancelled),
            skipped: count(&|fate| *fate == Fate::Skipped),
            makespan_secs: secs(end - begin),
            wait_secs: Spread::of(ran.iter().map(|(_, out)| secs(wait_ms(out))).collect()),
            completion_secs: Spread::of(
                ran.iter()
                    .map(|(_, out)| secs(out.end_ms - out.submit_ms))
                    .collect(),
            ),
            bounded_slowdown: Spread::of(ran.iter().map(|(_, out)| slowdown(out)).collect()),
            gpu_use: part(sums.gpu, sums.capacity),
            cpu_use: part(sums.cpu, sums.cpu_capacity),
            fragmentation: part(sums.broken, sums.free),
            gpu_idle_while_waiting: part(sums.free_while_waiting, sums.capacity),
            preemptions: all.iter().map(|(_, out)| u64::from(out.preemptions)).sum(),
            gpu_hours_lost: round(lost as f64 / 3.6e9),
            fairness,
            accounts,
            passes: outcomes.iter().map(|(_, out)| out.passes).sum(),
            pass_millis: pass_times(outcomes),
            by_size: by_size(&ran),
            hash: combined_hash(outcomes),
            refusals: refusals(&all),
            notes: setting.notes,
        }
    }
}

fn combined_hash(outcomes: &[(&[&TraceJob], &Outcome)]) -> String {
    let hashes = outcomes.iter().map(|(_, out)| out.hash);
    let hash = hashes.fold(0, |all: u64, hash| all.rotate_left(1) ^ hash);
    format!("{hash:016x}")
}

fn together(outcomes: &[(&[&TraceJob], &Outcome)]) -> Sums {
    let mut sums = Sums::default();
    outcomes
        .iter()
        .for_each(|(_, outcome)| sums.add(&outcome.ledger.sums));
    sums
}

fn pass_times(outcomes: &[(&[&TraceJob], &Outcome)]) -> PassTimes {
    let mut nanos: Vec<u64> = outcomes
        .iter()
        .flat_map(|(_, out)| out.pass_nanos.iter().copied())
        .collect();
    if nanos.is_empty() {
        return PassTimes::default();
    }
    nanos.sort_unstable();
    let total: u64 = nanos.iter().sum();
    let millis = |nanos: f64| round(nanos / 1e6);
    PassTimes {
        total: millis(total as f64),
        mean: millis(total as f64 / nanos.len() as f64),
        p99: millis(nanos[(nanos.len() * 99).div_ceil(100) - 1] as f64),
        max: millis(nanos[nanos.len() - 1] as f64),
    }
}

fn wait_ms(out: &JobOutcome) -> i64 {
    out.start_ms - out.submit_ms
}

fn slowdown(out: &JobOutcome) -> f64 {
    let ran = (out.end_ms - out.last_start_ms).max(TAU_MS);
    ((out.end_ms - out.submit_ms) as f64 / ran as f64).max(1.0)
}

/// Jain's index of the accounts' mean bounded slowdown, and how many accounts there are.
fn fairness(ran: &[(&TraceJob, &JobOutcome)]) -> (f64, u64) {
    let mut accounts: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (job, out) in ran {
        let of = accounts.entry(&job.account).or_default();
        of.0 += slowdown(out);
        of.1 += 1.0;
    }
    let means: Vec<f64> = accounts.values().map(|(sum, count)| sum / count).collect();
    let (sum, squares) = means.iter().fold((0.0, 0.0), |(sum, squares), mean| {
        (sum + mean, squares + mean * mean)
    });
    let index = if means.is_empty() {
        1.0
    } else {
        sum * sum / (means.len() as f64 * squares)
    };
    (round(index), means.len() as u64)
}

fn by_size(ran: &[(&TraceJob, &JobOutcome)]) -> Vec<SizeClass> {
    let mut classes: BTreeMap<(u64, u64), Vec<f64>> = BTreeMap::new();
    for (job, out) in ran {
        classes
            .entry(class_of(job))
            .or_default()
            .push(secs(wait_ms(out)));
    }
    let name = |(kind, least): (u64, u64)| {
        let unit = if kind == 0 { "CPU" } else { "GPU" };
        let plural = if least == 1 { "" } else { "s" };
        match least {
            1 | 2 => format!("{least} {unit}{plural}"),
            least => format!("{}-{least} {unit}s", least / 2 + 1),
        }
    };
    let class = |(key, waits): ((u64, u64), Vec<f64>)| SizeClass {
        size: name(key),
        jobs: waits.len() as u64,
        wait_secs: Spread::of(waits),
    };
    classes.into_iter().map(class).collect()
}

/// GPUs (or CPUs of a job without) up to the next power of two.
fn class_of(job: &TraceJob) -> (u64, u64) {
    match job.gpus() {
        0 => (0, job.cpus().max(u64::from(job.nodes)).next_power_of_two()),
        gpus => (1, gpus.next_power_of_two()),
    }
}

fn refusals(all: &[(&TraceJob, &JobOutcome)]) -> Vec<(String, u64)> {
    let mut texts: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, out) in all {
        if let Fate::Refused(text) | Fate::NeverStarted(text) = &out.fate {
            *texts.entry(text).or_default() += 1;
        }
    }
    let mut list: Vec<_> = texts
        .into_iter()
        .map(|(text, count)| (text.to_owned(), count))
        .collect();
    list.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    list.truncate(5);
    list
}

fn part(of: u128, all: u128) -> Option<f64> {
    (all > 0).then(|| round(of as f64 / all as f64))
}

fn secs(ms: i64) -> f64 {
    ms as f64 / 1000.0
}

/// Four decimals: more would be noise.
fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// The rows of the printed table: name, and how a value is written.
type Row = (&'static str, fn(&Measures) -> String);

const ROWS: [Row; 27] = [
    ("jobs", |m| m.jobs.to_string()),
    ("finished", |m| m.finished.to_string()),
    ("ended at their limit", |m| m.timed_out.to_string()),
    ("refused", |m| m.refused.to_string()),
    ("never started", |m| m.never_started.to_string()),
    ("without run time, skipped", |m| m.skipped.to_string()),
    ("makespan, h", |m| {
        format!("{:.2}", m.makespan_secs / 3600.0)
    }),
    ("wait, s: mean", |m| shown(m.wait_secs.mean)),
    ("  median", |m| shown(m.wait_secs.median)),
    ("  p95", |m| shown(m.wait_secs.p95)),
    ("  p99", |m| shown(m.wait_secs.p99)),
    ("completion, s: mean", |m| shown(m.completion_secs.mean)),
    ("  median", |m| shown(m.completion_secs.median)),
    ("  p99", |m| shown(m.completion_secs.p99)),
    ("bounded slowdown: mean", |m| shown(m.bounded_slowdown.mean)),
    ("  median", |m| shown(m.bounded_slowdown.median)),
    ("  p99", |m| shown(m.bounded_slowdown.p99)),
    ("use of GPUs", |m| percent(m.gpu_use)),
    ("use of CPUs", |m| percent(m.cpu_use)),
    ("fragmentation", |m| percent(m.fragmentation)),
    ("GPUs idle while jobs wait", |m| {
        percent(m.gpu_idle_while_waiting)
    }),
    ("preemptions", |m| m.preemptions.to_string()),
    ("GPU-hours lost by them", |m| {
        format!("{:.1}", m.gpu_hours_lost)
    }),
    ("fairness over accounts", |m| {
        format!("{:.4} ({} accounts)", m.fairness, m.accounts)
    }),
    ("passes", |m| simulated(m, m.passes.to_string())),
    ("  time of a pass, ms", |m| {
        simulated(
            m,
            format!(
                "{:.3} (p99 {:.3}, max {:.1})",
                m.pass_millis.mean, m.pass_millis.p99, m.pass_millis.max
            ),
        )
    }),
    ("hash of all starts", |m| simulated(m, m.hash.clone())),
];

/// What only a simulation has: a history was not planned by it.
fn simulated(measures: &Measures, text: String) -> String {
    if measures.passes == 0 {
        "-".into()
    } else {
        text
    }
}

fn shown(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{:.1} %", 100.0 * value))
}

/// One column for each policy, and below it the waits by size.
pub fn table(columns: &[Measures]) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let head = std::iter::once(String::new()).chain(columns.iter().map(|m| m.policy.clone()));
    rows.push(head.collect());
    for (name, value) in ROWS {
        rows.push(
            std::iter::once(name.to_owned())
                .chain(columns.iter().map(value))
                .collect(),
        );
    }
    let mut sizes: Vec<&str> = Vec::new();
    for class in columns.iter().flat_map(|m| &m.by_size) {
        if !sizes.contains(&&*class.size) {
            sizes.push(&class.size);
        }
    }
    for size in sizes {
        let value = |m: &Measures| {
            let class = m.by_size.iter().find(|class| class.size == size);
            class.map_or_else(
                || "-".into(),
                |c| format!("{} ({} jobs)", shown(c.wait_secs.mean), c.jobs),
            )
        };
        let name = format!("mean wait, s, {size}");
        rows.push(
            std::iter::once(name)
                .chain(columns.iter().map(value))
                .collect(),
        );
    }
    aligned(&rows)
}

/// Rows as text: the first column to the left, the others to the right.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count)
        .map(|at| {
            rows.iter()
                .filter_map(|row| row.get(at))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let width = widths[at];
            if at == 0 {
                line.push_str(&format!("{cell:<width$}"));
            } else {
                line.push_str(&format!("  {cell:>width$}"));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_the_values_beside_them() {
        let spread = Spread::of((1..=100).rev().map(f64::from).collect());
        assert_eq!(
            (
                spread.mean,
                spread.median,
                spread.p95,
                spread.p99,
                spread.max
            ),
            (50.5, 50.5, 95.05, 99.01, 100.0)
        );
        assert_eq!(Spread::of(vec![0.0, 0.0, 100.0, 300.0]).median, 50.0);
        assert_eq!(Spread::of(vec![7.0]).p99, 7.0);
        assert_eq!(Spread::of(vec![]), Spread::default());
    }

    #[test]
    fn short_jobs_count_as_ten_seconds_in_the_slowdown() {
        let out = |submit_ms, start_ms, end_ms| JobOutcome {
            submit_ms,
            start_ms,
            last_start_ms: start_ms,
            end_ms,
            ..JobOutcome::default()
        };
        assert_eq!(slowdown(&out(0, 99_000, 100_000)), 10.0);
        assert_eq!(slowdown(&out(0, 0, 1000)), 1.0);
        assert_eq!(slowdown(&out(0, 50_000, 100_000)), 2.0);
    }

    #[test]
    fn sizes_are_classed_by_powers_of_two() {
        let trace = crate::trace::Trace::parse(
            "submit_s,run_s,gpus,cpus\n0,1,1,4\n0,1,0.5,4\n0,1,3,4\n0,1,8,4\n0,1,0,12\n",
        );
        let jobs = trace.unwrap().jobs;
        let outs = vec![JobOutcome::default(); jobs.len()];
        let ran: Vec<_> = jobs.iter().zip(&outs).collect();
        let names: Vec<_> = by_size(&ran)
            .into_iter()
            .map(|class| (class.size, class.jobs))
            .collect();
        let expected = [
            ("9-16 CPUs", 1),
            ("1 GPU", 2),
            ("3-4 GPUs", 1),
            ("5-8 GPUs", 1),
        ];
        assert_eq!(names, expected.map(|(name, jobs)| (name.to_owned(), jobs)));
    }
}
