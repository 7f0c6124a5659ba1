//! `gsim-lab forecast`: how often the intervals of `gq --start` would have been right over a trace, and how wide they are.

use crate::files::{read_file, read_trace, write_text};
use crate::start_intervals::{AgeClass, ForecastObserver, IntervalQuality, LONG_WAIT_SECS};
use clap::Args;
use gsim::experiment::ClusterChoice;
use gsim::hardware::Hardware;
use gsim::inputs::{ClusterArgs, LimitArgs};
use gsim::trace_run::run_watched;
use std::path::PathBuf;

#[derive(Args)]
pub struct ForecastArgs {
    #[command(flatten)]
    place: ClusterArgs,
    /// default, fifo, easy, ..., or a TOML file, as for gsim run
    #[arg(long, value_name = "NAME|FILE", default_value = "default")]
    policy: String,
    /// Forecasts are made this many seconds of the trace apart
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// Every forecast with what came of it, as CSV
    #[arg(long, value_name = "FILE")]
    cases: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitArgs,
    /// One JSON document as the last line
    #[arg(long)]
    json: bool,
}

/// `gsim-lab forecast`.
pub fn forecast(args: &ForecastArgs) -> Result<(), String> {
    let trace = read_trace(&args.place.jobs)?;
    let policy = args.limits.policy(&args.policy, read_file)?;
    let jobs: Vec<_> = trace.jobs.iter().collect();
    let hardware = match args.place.read(&trace, read_file)? {
        ClusterChoice::Given(hardware) | ClusterChoice::Each(hardware) => hardware,
        ClusterChoice::Sized(wish) => Hardware::sized(&jobs, &wish)?,
    };
    let mut watch = ForecastObserver::new(i64::from(args.every) * 1000);
    run_watched(
        &jobs,
        &hardware,
        &policy.config(&hardware),
        &policy.settings,
        &mut || 0,
        &mut watch,
    )?;
    let told = watch.told();
    say!("trace    {}", args.place.jobs.path().display());
    say!("cluster  {}", hardware.describe());
    say!("policy   {}", policy.describe());
    let unlimited = trace.unlimited();
    trace
        .notes
        .iter()
        .chain(&unlimited)
        .chain(&hardware.notes)
        .for_each(|note| say!("note     {note}"));
    say!(
        "jobs that waited more than {} minutes; {} times the queue was forecast\n",
        LONG_WAIT_SECS / 60,
        watch.forecasts
    );
    told.iter().for_each(print);
    if told.is_empty() {
        say!(
            "none of them had an interval yet: these are learned from jobs that waited so long, 30 in a partition at least"
        );
    }
    if let Some(path) = &args.cases {
        write_text(path, &watch.csv())?;
    }
    if args.json {
        let trace = args.place.jobs.path().display().to_string();
        say!(
            "{}",
            serde_json::json!({"schema": 1, "command": "forecast", "trace": trace, "long_wait_secs": LONG_WAIT_SECS, "at_age": told})
        );
    }
    Ok(())
}

fn print(at: &AgeClass) {
    say!(
        "forecast after {} min of waiting: {} intervals",
        at.waited_secs / 60,
        at.nominal.intervals
    );
    let line = |name: &str, told: &IntervalQuality| {
        say!(
            "  {name:<42} right {:5.1} %   median width {:8.0} s   of the wait {:5.2}   mean width {:8.0} s",
            told.coverage * 100.0,
            told.median_width_secs,
            told.median_width_of_wait,
            told.mean_width_secs
        );
    };
    line("ours, nominal 90 %", &at.nominal);
    line(
        &format!("past waits, middle {:.0} %", at.past_waits_level * 100.0),
        &at.past_waits_as_often,
    );
    line(
        &format!(
            "ours, right as often (nominal {:.0} %)",
            at.as_often_level * 100.0
        ),
        &at.as_often_as_past_waits,
    );
    line("past waits, 10th to 90th percentile", &at.past_waits);
    line(
        &format!("ours, right as often (nominal {:.0} %)", at.level * 100.0),
        &at.at_equal_coverage,
    );
}
