//! `gsim run` and `gsim compare`: a trace under one policy, or under several side by side.

use crate::files::{clock, make_dir, read_file, read_trace, write_text};
use clap::Args;
use gsim::experiment::Experiment;
use gsim::inputs::{ClusterArgs, LimitArgs};
use gsim::measures::{Measures, table};
use gsim::policy_file::PolicyFile;
use gsim::trace::Trace;
use std::path::Path;

#[derive(Args)]
pub struct OutputArgs {
    #[command(flatten)]
    limits: LimitArgs,
    /// Every account on a cluster of its own, as per_account_clusters in a policy file
    #[arg(long)]
    per_account_clusters: bool,
    /// One JSON document as the last line
    #[arg(long)]
    json: bool,
}

/// `gsim run`.
pub fn run(
    place: &ClusterArgs,
    policy: Option<&str>,
    starts: Option<&Path>,
    options: &OutputArgs,
) -> Result<(), String> {
    let trace = read_trace(&place.jobs)?;
    let policies = [policy_for(policy.unwrap_or("default"), options)?];
    let done = experiments(&trace, place, &policies)?;
    if let Some(path) = starts {
        write_text(path, &done[0].starts_csv())?;
    }
    print(place, &policies, &done, options, "run")
}

/// `gsim compare`.
pub fn compare(
    place: &ClusterArgs,
    policies: &[String],
    starts: Option<&Path>,
    options: &OutputArgs,
) -> Result<(), String> {
    let trace = read_trace(&place.jobs)?;
    let mut read = policies
        .iter()
        .map(|policy| policy_for(policy, options))
        .collect::<Result<Vec<_>, _>>()?;
    distinct(&mut read);
    let done = experiments(&trace, place, &read)?;
    if let Some(dir) = starts {
        make_dir(dir)?;
        for one in &done {
            write_text(
                &dir.join(format!("{}.csv", one.measures.policy)),
                &one.starts_csv(),
            )?;
        }
    }
    print(place, &read, &done, options, "compare")
}

/// Two files of one name in two directories stay apart.
fn distinct(policies: &mut [PolicyFile]) {
    for at in 1..policies.len() {
        let (before, rest) = policies.split_at_mut(at);
        if before.iter().any(|policy| policy.name == rest[0].name) {
            rest[0].name = format!("{}-{}", rest[0].name, at + 1);
        }
    }
}

fn policy_for(policy: &str, options: &OutputArgs) -> Result<PolicyFile, String> {
    let mut read = options.limits.policy(policy, read_file)?;
    read.per_account_clusters |= options.per_account_clusters;
    Ok(read)
}

fn experiments<'a>(
    trace: &'a Trace,
    place: &ClusterArgs,
    policies: &[PolicyFile],
) -> Result<Vec<Experiment<'a>>, String> {
    let place = place.read(trace, read_file)?;
    let mut clock = clock();
    policies
        .iter()
        .map(|policy| Experiment::run(trace, &place, policy, &mut clock))
        .collect()
}

fn print(
    place: &ClusterArgs,
    policies: &[PolicyFile],
    done: &[Experiment],
    options: &OutputArgs,
    what: &str,
) -> Result<(), String> {
    let columns: Vec<Measures> = done.iter().map(|one| one.measures.clone()).collect();
    say!("trace    {}", place.jobs.path().display());
    say!("cluster  {}", columns[0].cluster);
    policies
        .iter()
        .for_each(|policy| say!("policy   {}", policy.describe()));
    let mut notes: Vec<&String> = Vec::new();
    columns.iter().flat_map(|m| &m.notes).for_each(|note| {
        if !notes.contains(&note) {
            notes.push(note)
        }
    });
    notes.iter().for_each(|note| say!("note     {note}"));
    say!("\n{}", table(&columns));
    for m in &columns {
        m.refusals
            .iter()
            .for_each(|(text, count)| say!("{}: {count} jobs not run: {text}", m.policy));
    }
    say!(
        "fairness: Jain's index over the mean bounded slowdown (tau 10 s) of each account; 1 is equal for all"
    );
    say!("fragmentation: free GPUs on nodes partly in use, of all free GPUs, over time");
    if options.json {
        let document = serde_json::json!({
            "schema": 1,
            "command": what,
            "trace": place.jobs.path().display().to_string(),
            "results": columns,
        });
        say!("{document}");
    }
    Ok(())
}
