//! A submission that names several partitions: each is asked as if it were the only one, and those that would refuse it
//! are left out, with their words.
//!
//! Decides nothing of where it starts: it waits in all that take it. Source: sbatch(1), `--partition`.

use super::command::{Actor, Refusal, RefusalCode};
use super::state::State;
use super::submit::{NO_TIME, complete_in, partition_or_refusal};
use gmodel::duration::squeue_time;
use gmodel::partition_list::{MAX_PARTITIONS, names};
use gmodel::{JobSpec, RefusalKind, Timestamp};
use std::collections::BTreeSet;

/// Settles account, QOS and limit, and which partitions it waits in. One time limit holds in all of them: where none is
/// asked for it is the shortest default.
///
/// # Errors
/// One of them does not exist, or none takes it.
pub(super) fn complete(
    state: &State,
    actor: &Actor,
    mut spec: JobSpec,
    notes: &mut Vec<String>,
    now: Timestamp,
) -> Result<(JobSpec, Option<u32>), Refusal> {
    let mut seen = BTreeSet::new();
    let list: Vec<String> = names(&spec.partition)
        .filter(|name| seen.insert(*name))
        .map(str::to_owned)
        .collect();
    if list.len() > MAX_PARTITIONS {
        let text = format!(
            "--partition names {} partitions and {MAX_PARTITIONS} are the most",
            list.len()
        );
        return Err(Refusal::limit(text));
    }
    if list.is_empty() {
        return Err(Refusal::invalid(format!(
            "--partition {}: that names none.",
            spec.partition
        )));
    }
    for name in &list {
        partition_or_refusal(&state.config, name)?;
    }
    let mut takers: Vec<&str> = Vec::new();
    let mut limits: Vec<Option<u32>> = Vec::new();
    let mut refusals: Vec<(&str, Refusal)> = Vec::new();
    let mut no_default = false;
    for name in &list {
        let mut there = spec.clone();
        there.partition.clone_from(name);
        let mut said = Vec::new();
        match complete_in(state, actor, &mut there, &mut said, now) {
            Err(refusal) => refusals.push((name, refusal)),
            Ok(limit_secs) => {
                // Of the time limit one word is said, below.
                no_default |= said.iter().any(|note| note.starts_with(NO_TIME));
                said.retain(|note| !note.starts_with(NO_TIME) && !notes.contains(note));
                notes.append(&mut said);
                // Tasks without a number of nodes get enough for each of them.
                let widest = if spec.request.nodes_any {
                    spec.request.nodes_min.max(there.request.nodes_min)
                } else {
                    0
                };
                there.request.nodes_min = there.request.nodes_min.max(widest);
                there.request.nodes_max = there.request.nodes_max.max(widest);
                // What the first says of account and QOS goes for all: it is one job.
                there.partition.clone_from(&spec.partition);
                spec = there;
                takers.push(name);
                limits.push(limit_secs);
            }
        }
    }
    if takers.is_empty() {
        return Err(of_all(&list, refusals));
    }
    let left_out = |(name, refusal): &(&str, Refusal)| {
        format!(
            "the job does not wait in partition {name}: {}",
            refusal.text
        )
    };
    notes.extend(refusals.iter().map(left_out));
    let limit_secs = limits
        .into_iter()
        .min_by_key(|secs| secs.unwrap_or(u32::MAX))
        .flatten();
    if let Some(secs) = limit_secs.filter(|_| no_default) {
        notes.push(format!(
            "{NO_TIME}: the limit is {}",
            squeue_time(u64::from(secs))
        ));
    }
    spec.partition = takers.join(",");
    Ok((spec, limit_secs))
}

/// Nobody takes it: in one sentence where all say the same.
fn of_all(list: &[String], refusals: Vec<(&str, Refusal)>) -> Refusal {
    let texts: BTreeSet<&str> = refusals.iter().map(|(_, refusal)| &*refusal.text).collect();
    let (code, about, subject) = match refusals.first() {
        Some((_, refusal)) => (refusal.code, refusal.about, refusal.subject.clone()),
        None => (RefusalCode::Invalid, RefusalKind::Partition, String::new()),
    };
    let refused = |text: String| Refusal::new(code, text).about(about).naming(subject);
    if texts.len() <= 1 {
        return refused(texts.into_iter().collect());
    }
    let each: Vec<String> = refusals
        .iter()
        .map(|(name, refusal)| format!("{name}: {}", refusal.text))
        .collect();
    refused(format!(
        "none of the partitions {} takes the job. {}",
        list.join(", "),
        each.join(" ")
    ))
}
