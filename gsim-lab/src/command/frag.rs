//! `gsim-lab frag`: how much of the GPUs each placement policy can give out.

use crate::files::read_file;
use crate::frag::{FillResult, PLACEMENTS, PodPlacer, fill};
use clap::Args;
use gsim::hardware::{Hardware, NodeShape, is_node_csv};
use gsim::inputs::{in_file, read_text, read_trace};
use gsim::measures::aligned;
use gsim::trace::Trace;
use std::path::PathBuf;

#[derive(Args)]
pub struct FragArgs {
    /// Pods as a trace; only what they ask for matters
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Nodes, as for gsim run
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// random, best-fit, first-fit, spread, pack; once for each
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values_t = ["random", "best-fit", "pack"].map(str::to_owned))]
    placement: Vec<String>,
    /// Requests in percent of all GPUs
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [100, 130], value_parser = clap::value_parser!(u32).range(1..=1000))]
    until: Vec<u32>,
    /// How many random orders
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON document as the last line
    #[arg(long)]
    json: bool,
}

/// `gsim-lab frag`.
pub fn frag(args: &FragArgs) -> Result<(), String> {
    let pods = read_trace(&args.trace, read_file)?;
    if !pods.has_gpus() {
        return Err(format!("{}: no row asks for GPUs", args.trace.display()));
    }
    let hardware = read_hardware(args)?;
    let placements = chosen_placements(args)?;
    say!("cluster  {}", hardware.describe());
    let mut lines = vec![
        [
            "placement",
            "requests",
            "allocated, mean",
            "least",
            "most",
            "pods",
            "dropped, mean",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    let mut results = Vec::new();
    for until in &args.until {
        for (name, by) in &placements {
            let filled = seeds(args, &pods, &hardware, *by, *until);
            let spread = Spread::of(&filled);
            lines.push(spread.row(name, *until));
            results.push(serde_json::json!({
                "placement": name, "until": f64::from(*until) / 100.0, "allocated": spread.mean, "least": spread.least, "most": spread.most,
                "seeds": filled,
            }));
        }
    }
    say!("{}", aligned(&lines).trim_end());
    say!(
        "{} orders by seeds from {}; allocated: of all {} GPUs; what does not fit is dropped",
        args.seeds,
        args.seed,
        hardware.gpus()
    );
    if args.json {
        say!(
            "{}",
            serde_json::json!({ "schema": 1, "command": "frag", "results": results })
        );
    }
    Ok(())
}

fn read_hardware(args: &FragArgs) -> Result<Hardware, String> {
    let text = read_text(&args.cluster, read_file)?;
    let hardware = match is_node_csv(&text) {
        true => Hardware::from_csv(&text).map_err(|errors| in_file(&args.cluster, &errors)),
        false => Hardware::from_toml(
            &args.cluster.display().to_string(),
            &text,
            &NodeShape::default(),
        ),
    }?;
    if hardware.gpus() == 0 {
        return Err(format!(
            "{}: the nodes have no GPUs",
            args.cluster.display()
        ));
    }
    Ok(hardware)
}

fn chosen_placements(args: &FragArgs) -> Result<Vec<(&'static str, PodPlacer)>, String> {
    let mut placements = Vec::new();
    for name in &args.placement {
        let names = || PLACEMENTS.iter().map(|(name, _)| *name);
        let known = PLACEMENTS
            .iter()
            .find(|(known, _)| known == name)
            .ok_or_else(|| {
                format!(
                    "no placement {name:?}.{} There are: {}.",
                    gmodel::suggest::did_you_mean(name, names()),
                    names().collect::<Vec<_>>().join(", ")
                )
            })?;
        placements.push(*known);
    }
    Ok(placements)
}

/// What the orders of one placement allocated, as parts of all GPUs.
struct Spread {
    mean: f64,
    least: f64,
    most: f64,
    pods: u64,
    dropped: f64,
}

impl Spread {
    fn of(filled: &[FillResult]) -> Self {
        let parts: Vec<f64> = filled.iter().map(FillResult::part).collect();
        let dropped: u64 = filled.iter().map(|one| one.dropped).sum();
        Self {
            mean: parts.iter().sum::<f64>() / parts.len() as f64,
            least: parts.iter().copied().fold(f64::INFINITY, f64::min),
            most: parts.iter().copied().fold(0.0, f64::max),
            pods: filled[0].pods,
            dropped: dropped as f64 / filled.len() as f64,
        }
    }

    fn row(&self, placement: &str, until: u32) -> Vec<String> {
        let percent = |part: f64| format!("{:.2} %", 100.0 * part);
        vec![
            placement.to_owned(),
            format!("{until} %"),
            percent(self.mean),
            percent(self.least),
            percent(self.most),
            self.pods.to_string(),
            format!("{:.1}", self.dropped),
        ]
    }
}

fn seeds(
    args: &FragArgs,
    pods: &Trace,
    hardware: &Hardware,
    by: PodPlacer,
    until: u32,
) -> Vec<FillResult> {
    let one = |seed| fill(pods, hardware, by, seed, f64::from(until) / 100.0);
    (args.seed..args.seed.saturating_add(args.seeds))
        .map(one)
        .collect()
}
