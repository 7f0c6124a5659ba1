//! `gsim-lab plots`: use, queue and waits of a trace under policies, as SVG.

use crate::files::{clock, make_dir, read_file, read_trace, write_text};
use crate::plot::{Series, over_time, waits_by_size};
use clap::Args;
use gsim::experiment::Experiment;
use gsim::inputs::{ClusterArgs, LimitArgs};
use gsim::measures::Measures;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct PlotArgs {
    #[command(flatten)]
    place: ClusterArgs,
    /// A policy, as for gsim run; once for each
    #[arg(long, value_name = "NAME|FILE", default_value = "default")]
    policy: Vec<String>,
    /// Directory of the SVG files
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    limits: LimitArgs,
}

/// `gsim-lab plots`.
pub fn plots(args: &PlotArgs) -> Result<(), String> {
    let trace = read_trace(&args.place.jobs)?;
    let place = args.place.read(&trace, read_file)?;
    let mut clock = clock();
    let mut done = Vec::new();
    for policy in &args.policy {
        let policy = args.limits.policy(policy, read_file)?;
        done.push(Experiment::run(&trace, &place, &policy, &mut clock)?);
    }
    let columns: Vec<Measures> = done.iter().map(|one| one.measures.clone()).collect();
    write_plots(&args.out, &done, &columns)
}

fn write_plots(dir: &Path, done: &[Experiment], columns: &[Measures]) -> Result<(), String> {
    make_dir(dir)?;
    for one in done {
        for part in &one.parts {
            let out = &part.outcome;
            let has_gpus = part.hardware.gpus() > 0;
            let (unit, most) = if has_gpus {
                ("GPUs", part.hardware.gpus())
            } else {
                ("CPUs", part.hardware.cpus())
            };
            let value = |s: &gsim::ledger::Sample| {
                if has_gpus {
                    s.gpu_milli as f64 / 1000.0
                } else {
                    s.cpus as f64
                }
            };
            let steps = out
                .ledger
                .samples
                .iter()
                .map(|s| (s.at, value(s)))
                .collect();
            let used = Series {
                name: "in use".into(),
                steps,
            };
            let waiting: Vec<_> = out
                .ledger
                .samples
                .iter()
                .map(|s| (s.at, s.pending as f64))
                .collect();
            let longest = waiting.iter().map(|(_, count)| *count).fold(1.0, f64::max);
            let account = part
                .account
                .as_ref()
                .map_or(String::new(), |account| format!("-{account}"));
            let name =
                |what: &str| dir.join(format!("{what}-{}{account}.svg", one.measures.policy));
            let title = format!("{}{account}: {unit} in use, of {most}", one.measures.policy);
            let svg = over_time(&title, unit, out.begin_ms, out.end_ms, most as f64, &[used]);
            write_text(&name("use"), &svg)?;
            let title = format!("{}{account}: jobs that wait", one.measures.policy);
            let waiting = Series {
                name: "waiting".into(),
                steps: waiting,
            };
            write_text(
                &name("queue"),
                &over_time(&title, "", out.begin_ms, out.end_ms, longest, &[waiting]),
            )?;
        }
    }
    write_text(&dir.join("waits-by-size.svg"), &waits_by_size(columns))?;
    say!("plots    {}", dir.display());
    Ok(())
}
