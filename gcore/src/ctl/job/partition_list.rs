//! A submission that names several partitions: each is tried as if it were the only one, and partitions that
//! would refuse the job are left out, with a note.
//!
//! The job waits in all partitions that take it. Source: sbatch(1), `--partition`.

use crate::ctl::command::{Actor, Refusal, RefusalCode};
use crate::ctl::job::completion::{NO_TIME, complete_in};
use crate::ctl::job::partition::partition_or_refusal;
use crate::ctl::state::State;
use gmodel::config::ClusterConfig;
use gmodel::duration::squeue_time;
use gmodel::partition_list::{MAX_PARTITIONS, names};
use gmodel::{JobSpec, RefusalKind, Timestamp};
use std::collections::BTreeSet;

/// Sets account, QOS and limit, and the partitions in which the job waits. One time limit holds in all of
/// them: without `--time` it is the shortest default.
///
/// # Errors
/// One of them does not exist, or none takes the job.
pub(crate) fn complete(
    state: &State,
    actor: &Actor,
    mut spec: JobSpec,
    notes: &mut Vec<String>,
    now: Timestamp,
) -> Result<(JobSpec, Option<u32>), Refusal> {
    let list = existing_partitions(&state.config, &spec.partition)?;
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
                // One note on the time limit is enough; it follows.
                no_default |= said.iter().any(|note| note.starts_with(NO_TIME));
                said.retain(|note| !note.starts_with(NO_TIME) && !notes.contains(note));
                notes.append(&mut said);
                // Without `--nodes` the job gets enough nodes for each of its partitions.
                let widest = if spec.request.nodes_any {
                    spec.request.nodes_min.max(there.request.nodes_min)
                } else {
                    0
                };
                there.request.nodes_min = there.request.nodes_min.max(widest);
                there.request.nodes_max = there.request.nodes_max.max(widest);
                // Account and QOS are those of the first partition: it is one job.
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
    let left_out = refusals.iter().map(|(name, refusal)| {
        let text = &refusal.text;
        format!("the job does not wait in partition {name}: {text}")
    });
    notes.extend(left_out);
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

/// The partitions of a list, each once.
fn existing_partitions(config: &ClusterConfig, partitions: &str) -> Result<Vec<String>, Refusal> {
    let mut seen = BTreeSet::new();
    let list: Vec<String> = names(partitions)
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
            partitions
        )));
    }
    for name in &list {
        partition_or_refusal(config, name)?;
    }
    Ok(list)
}

/// No partition takes the job: one sentence if all refuse alike.
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
