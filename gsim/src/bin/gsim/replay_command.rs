//! `gsim replay`: a controller's own trace once more, bit for bit.

use crate::files::{clock, read_file};
use clap::Args;
use gsim::experiment::{ClusterChoice, Experiment};
use gsim::history::HistoryTrace;
use gsim::inputs::{in_file, read_policy, read_text};
use gsim::measures::table;
use gsim::replay::{RecordedTrace, ReplayReport, replay_with_history};
use std::path::PathBuf;

#[derive(Args)]
pub struct ReplayArgs {
    /// The file `trace` of a state directory, written under trace = true in gpuctld.toml; plain or gzip
    trace: PathBuf,
    /// Say what would have been different under this policy: a name or a TOML file, as for gsim run
    #[arg(long, value_name = "NAME|FILE")]
    policy: Option<String>,
    /// One JSON document as the last line
    #[arg(long)]
    json: bool,
}

/// `gsim replay`. `Ok(false)`: some decision was another, or the trace is not whole.
pub fn run(args: &ReplayArgs) -> Result<bool, String> {
    let text = read_text(&args.trace, read_file)?;
    let recorded = RecordedTrace::parse(&text).map_err(|error| in_file(&args.trace, &error))?;
    recorded
        .breaks
        .iter()
        .for_each(|(line, why)| say!("not whole   line {line}: {why}"));
    let (done, history, state) =
        replay_with_history(&recorded).map_err(|error| in_file(&args.trace, &error))?;
    say_result(&done);
    let is_whole = done.breaks.is_empty();
    let same = done.plans_equal + done.plans_unknown == done.plans && is_whole;
    say!(
        "{}",
        match (same, is_whole) {
            (true, _) => "the same decisions, bit for bit",
            (false, true) => "some decisions are others",
            (false, false) =>
                "the trace is not as it was written: nothing can be said of the decisions as a whole",
        }
    );
    let mut document =
        serde_json::json!({ "schema": 1, "command": "replay", "same": same, "result": done });
    if let Some(policy) = &args.policy {
        let told = history
            .told(&state)
            .map_err(|error| in_file(&args.trace, &error))?;
        document["under"] = under(told, policy)?;
    }
    if args.json {
        say!("{document}");
    }
    Ok(same)
}

fn say_result(done: &ReplayReport) {
    say!(
        "inputs      {} ({} refused then and now)",
        done.inputs,
        done.refused
    );
    say!("events      {}, hash {}", done.events, done.hash);
    say!(
        "decisions   {} starts in {} plans, hash {}",
        done.starts,
        done.plans,
        done.decisions_hash
    );
    say!(
        "made again  {} plans equal, {} of them with the same reasons",
        done.plans_equal,
        done.reasons_equal
    );
    if done.plans_unknown > 0 {
        say!(
            "            {} plans are of a state that the trace does not hold",
            done.plans_unknown
        );
    }
    done.notes
        .iter()
        .for_each(|note| say!("note        {note}"));
    done.differences
        .iter()
        .for_each(|difference| say!("other       {difference}"));
}

/// The same jobs at the same times under another policy, beside what really was.
fn under(mut told: HistoryTrace, policy: &str) -> Result<serde_json::Value, String> {
    let mut policy = read_policy(policy, read_file)?;
    let notes = told.fit(&mut policy);
    let place = ClusterChoice::Given(told.hardware.clone());
    let other = Experiment::run(&told.trace, &place, &policy, &mut clock())?;
    let columns = [told.measures.clone(), other.measures.clone()];
    say!("\n{}", table(&columns));
    notes.iter().for_each(|note| say!("note        {note}"));
    say!(
        "use and fragmentation are of the simulation only; its nodes run a job at once and no node fails"
    );
    let moved = other
        .parts
        .first()
        .map_or(Vec::new(), |part| told.moved(&part.outcome));
    let earlier = moved.iter().filter(|(_, then, now)| now < then).count();
    say!(
        "{} of {} jobs start a second or more from then: {earlier} earlier, {} later",
        moved.len(),
        told.trace.jobs.len(),
        moved.len() - earlier
    );
    for (id, then, now) in moved.iter().take(10) {
        say!("  job {id}: {now:.0} s after the begin instead of {then:.0}");
    }
    Ok(
        serde_json::json!({ "as_it_was": columns[0], "would_be": columns[1], "earlier": earlier, "later": moved.len() - earlier, "notes": notes }),
    )
}
