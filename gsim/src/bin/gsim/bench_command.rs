//! `gsim bench`: how long the scheduler takes.

use crate::files::clock;
use clap::Args;
use gsim::pass_bench::{BENCHES, Bench, table};

#[derive(Args)]
pub struct BenchArgs {
    /// Rows to measure [default: all]; --list names them
    #[arg(value_name = "ROW")]
    rows: Vec<String>,
    /// Name the rows and measure nothing
    #[arg(long)]
    list: bool,
    /// One JSON document as the last line
    #[arg(long)]
    json: bool,
}

/// `gsim bench`.
pub fn bench(args: &BenchArgs) -> Result<(), String> {
    if args.list {
        BENCHES
            .iter()
            .for_each(|bench| say!("{:<14} {}", bench.name, bench.what));
        return Ok(());
    }
    let mut chosen: Vec<&Bench> = Vec::new();
    for name in &args.rows {
        let names = || BENCHES.iter().map(|bench| bench.name);
        let known = BENCHES
            .iter()
            .find(|bench| bench.name == name)
            .ok_or_else(|| {
                format!(
                    "no row {name:?}.{} There are: {}.",
                    gmodel::suggest::did_you_mean(name, names()),
                    names().collect::<Vec<_>>().join(", ")
                )
            })?;
        chosen.push(known);
    }
    if chosen.is_empty() {
        chosen.extend(&BENCHES);
    }
    if cfg!(debug_assertions) {
        note!("gsim: a debug build: the numbers are those of --release times a factor");
    }
    let mut clock = clock();
    let rows: Vec<_> = chosen
        .iter()
        .map(|bench| bench.measure(&mut clock))
        .collect();
    say!("{}", table(&rows).trim_end());
    if args.json {
        say!(
            "{}",
            serde_json::json!({ "schema": 1, "command": "bench", "rows": rows })
        );
    }
    Ok(())
}
