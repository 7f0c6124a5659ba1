//! `--partition a,b`: a submission that names several partitions goes to the one where it is expected to start first.
//!
//! Chosen once, from a dry run in each; a job stands in one queue. Slurm keeps it in all of them until one starts it.

use super::Site;
use super::dry_run::foresee;
use super::error::ApiError;
use super::query::words;
use gcore::ctl::Actor;
use gmodel::suggest::did_you_mean;
use gmodel::{JobSpec, Timestamp};
use gwire::api::DryRun;

/// Most partitions that one submission may name: each is a dry run.
const MAX_NAMED: usize = 16;

/// Settles on one of the partitions that a submission names, and says which.
///
/// # Errors
/// One of them is not there, or none of them would take it: why the first would not.
pub(super) async fn choose(site: &Site, actor: &Actor, spec: &mut JobSpec) -> Result<Option<String>, ApiError> {
    if !spec.partition.contains(',') {
        return Ok(None);
    }
    let mut names = words(&spec.partition);
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    if names.len() > MAX_NAMED {
        return Err(ApiError::limit(format!("--partition names {} partitions and {MAX_NAMED} are the most", names.len())));
    }
    let state = site.core.view().await;
    let known = || state.config.partitions.iter().map(|partition| partition.name.as_str());
    if let Some(odd) = names.iter().find(|name| !known().any(|one| one == *name)) {
        let hint = did_you_mean(odd, known());
        return Err(ApiError::invalid(format!("no partition {odd:?}.{hint} There are: {}.", known().collect::<Vec<_>>().join(", "))));
    }
    let (mut best, mut refused): (Option<(Timestamp, String)>, Option<ApiError>) = (None, None);
    for name in &names {
        let mut there = spec.clone();
        there.partition.clone_from(name);
        match foresee(site, actor, there).await {
            Ok(told) => {
                let start = expected(&told);
                if best.as_ref().is_none_or(|(before, _)| start < *before) {
                    best = Some((start, name.clone()));
                }
            }
            Err(error) => {
                refused.get_or_insert(error);
            }
        }
    }
    match (best, refused) {
        (Some((_, name)), _) => {
            spec.partition.clone_from(&name);
            let all = names.join(",");
            Ok((names.len() > 1).then(|| format!("--partition {all}: the job goes to {name}, where it is expected to start first")))
        }
        (None, Some(error)) => Err(error),
        (None, None) => Err(ApiError::invalid(format!("--partition {:?} names no partition", spec.partition))),
    }
}

/// When it would start; the end of time where nobody can say.
fn expected(told: &DryRun) -> Timestamp {
    told.start.or(told.expected_start).map_or(Timestamp(i64::MAX), |at| at.0)
}
