//! `gsim replay`: a controller's own trace once more, bit for bit.

use crate::files::{in_file, read_text};
use clap::Args;
use gsim::replay::{Recorded, replay};
use std::path::PathBuf;

#[derive(Args)]
pub struct ReplayArgs {
    /// The file `trace` of a state directory whose gpuctld.toml says trace = true; plain or gzip
    trace: PathBuf,
    /// One JSON document as the last line
    #[arg(long)]
    json: bool,
}

/// `gsim replay`. `Ok(false)`: some decision was another.
pub fn run(args: &ReplayArgs) -> Result<bool, String> {
    let text = read_text(&args.trace)?;
    let recorded = Recorded::parse(&text).map_err(|error| in_file(&args.trace, &error))?;
    let done = replay(&recorded).map_err(|error| in_file(&args.trace, &error))?;
    println!("inputs      {} ({} refused then and now)", done.inputs, done.refused);
    println!("events      {}, hash {}", done.events, done.hash);
    println!("decisions   {} starts in {} plans, hash {}", done.starts, done.plans, done.decisions_hash);
    println!("made again  {} plans equal, {} of them with the same reasons", done.plans_equal, done.reasons_equal);
    if done.plans_unknown > 0 {
        println!("            {} plans are of a state that the trace does not hold", done.plans_unknown);
    }
    done.notes.iter().for_each(|note| println!("note        {note}"));
    done.differences.iter().for_each(|difference| println!("other       {difference}"));
    let same = done.plans_equal + done.plans_unknown == done.plans;
    println!("{}", if same { "the same decisions, bit for bit" } else { "some decisions are others" });
    if args.json {
        println!("{}", serde_json::json!({ "schema": 1, "command": "replay", "same": same, "result": done }));
    }
    Ok(same)
}
