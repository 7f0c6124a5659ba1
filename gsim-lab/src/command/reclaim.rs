//! `gsim-lab reclaim`: GPU-hours lost by preemption, by the choice of victims.

use crate::files::read_trace;
use crate::reclaim::{LostWork, ReclaimSetup, Reclaims, reclaims};
use clap::Args;
use gsim::inputs::TraceArgs;
use gsim::trace::Trace;

#[derive(Args)]
pub struct ReclaimArgs {
    #[command(flatten)]
    jobs: TraceArgs,
    /// So many nodes of 8 GPUs
    #[arg(long, value_name = "N", default_value_t = ReclaimSetup::default().nodes, value_parser = clap::value_parser!(u32).range(8..=100_000))]
    nodes: u32,
    /// How many seeds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// One JSON document as the last line
    #[arg(long)]
    json: bool,
}

/// `gsim-lab reclaim`.
pub fn reclaim(args: &ReclaimArgs) -> Result<(), String> {
    let trace = read_trace(&args.jobs)?;
    let setup = ReclaimSetup {
        nodes: args.nodes,
        ..ReclaimSetup::default()
    };
    print_setting(args, &trace, &setup);
    let mut all = Vec::new();
    for seed in 1..=args.seeds {
        let one = reclaims(&trace, &setup, seed)?;
        print(&seed.to_string(), &one);
        all.push(one);
    }
    let total = sum(&all);
    print("all", &total);
    print_comparison(&total);
    if args.json {
        let trace = args.jobs.path().display().to_string();
        say!(
            "{}",
            serde_json::json!({"schema": 1, "command": "reclaim", "trace": trace, "seeds": all, "all": total})
        );
    }
    Ok(())
}

fn print_setting(args: &ReclaimArgs, trace: &Trace, setup: &ReclaimSetup) {
    say!(
        "trace    {}, {} jobs",
        args.jobs.path().display(),
        trace.jobs.len()
    );
    say!(
        "cluster  {} nodes of 8 GPUs; all that runs writes a mark every {} min",
        setup.nodes,
        setup.marks_every_ms / 60_000
    );
    for note in trace.notes.iter().chain(&trace.unlimited()) {
        say!("note     {note}");
    }
    say!(
        "owner    asks for 1 to {} whole nodes every {} h, for {} h\n",
        setup.most_nodes,
        setup.every_ms / 3_600_000,
        setup.run_ms / 3_600_000
    );
    say!("GPU-hours lost (runs ended)");
    say!(
        "{:>5} {:>9} {:>17} {:>17} {:>17} {:>9} {:>17} {:>17}",
        "seed",
        "reclaims",
        "ours",
        "youngest first",
        "lowest priority",
        "tried",
        "ours",
        "brute force"
    );
}

fn print_comparison(total: &Reclaims) {
    if total.in_parts > 0 {
        say!(
            "{} reclaims are not counted: the core did not end all runs of them at once",
            total.in_parts
        );
    }
    let less = |than: LostWork| {
        100.0 * (1.0 - total.ours.gpu_hours / than.gpu_hours.max(f64::MIN_POSITIVE))
    };
    let over =
        total.ours_where_tried.gpu_hours / total.brute_force.gpu_hours.max(f64::MIN_POSITIVE);
    say!(
        "\nours loses {:.0} % less than youngest first, {:.0} % less than lowest priority first, and {over:.2} times the least that is possible",
        less(total.youngest_first),
        less(total.lowest_priority_first)
    );
}

fn print(name: &str, one: &Reclaims) {
    let lost = |lost: &LostWork| format!("{:.1} ({})", lost.gpu_hours, lost.victims);
    say!(
        "{name:>5} {:>9} {:>17} {:>17} {:>17} {:>9} {:>17} {:>17}",
        one.reclaims,
        lost(&one.ours),
        lost(&one.youngest_first),
        lost(&one.lowest_priority_first),
        one.tried,
        lost(&one.ours_where_tried),
        lost(&one.brute_force)
    );
}

fn sum(all: &[Reclaims]) -> Reclaims {
    let lost = |of: fn(&Reclaims) -> LostWork| LostWork {
        gpu_hours: all.iter().map(|one| of(one).gpu_hours).sum(),
        victims: all.iter().map(|one| of(one).victims).sum(),
    };
    Reclaims {
        seed: 0,
        reclaims: all.iter().map(|one| one.reclaims).sum(),
        in_parts: all.iter().map(|one| one.in_parts).sum(),
        ours: lost(|one| one.ours),
        youngest_first: lost(|one| one.youngest_first),
        lowest_priority_first: lost(|one| one.lowest_priority_first),
        tried: all.iter().map(|one| one.tried).sum(),
        ours_where_tried: lost(|one| one.ours_where_tried),
        brute_force: lost(|one| one.brute_force),
    }
}
