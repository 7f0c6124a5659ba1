//! Values that columns, records and JSON print of a job alike: its group, TRES, restarts, time limit.

use gmodel::duration::squeue_time;
use gmodel::size::exact_size;
use gmodel::{Instant, JobState};
use gwire::api::JobRow;
use nix::unistd::{Group, User};

/// The user's first group as this machine knows it, by name or number; `N/A` where it knows no such user.
pub fn group_of(user: &str, by_name: bool) -> String {
    let Ok(Some(user)) = User::from_name(user) else {
        return "N/A".to_owned();
    };
    let named = || {
        Group::from_gid(user.gid)
            .ok()
            .flatten()
            .map(|group| group.name)
    };
    by_name
        .then(named)
        .flatten()
        .unwrap_or_else(|| user.gid.to_string())
}

/// `cpu=2,mem=300M,node=1,billing=2,gres/gpu=1`.
pub fn tres(cpus: u32, mem_bytes: u64, nodes: u32, gpus: f64) -> String {
    let gpus = if gpus > 0.0 {
        format!(",gres/gpu={gpus}")
    } else {
        String::new()
    };
    format!(
        "cpu={cpus},mem={},node={nodes},billing={cpus}{gpus}",
        exact_size(mem_bytes)
    )
}

pub fn cpus_per_task(cpus: u32, ntasks: u32) -> u32 {
    (cpus / ntasks.max(1)).max(1)
}

/// How often a job was requeued. A pending job has no run of this attempt yet.
pub fn restarts(attempts: u32, state: JobState) -> u32 {
    if state == JobState::Pending {
        attempts
    } else {
        attempts.saturating_sub(1)
    }
}

/// `1:00:00` or `UNLIMITED`.
pub fn time_limit(secs: Option<u32>) -> String {
    match secs {
        None | Some(u32::MAX) => "UNLIMITED".to_owned(),
        Some(secs) => squeue_time(secs.into()),
    }
}

/// When a running job ends at the latest, squeue's end time; None without a time limit.
pub fn end_by_limit(start: Option<Instant>, limit_secs: Option<u32>) -> Option<Instant> {
    let secs = limit_secs.filter(|&secs| secs != u32::MAX)?;
    start.map(|start| Instant(start.0.plus_secs(secs.into())))
}

/// Kinds of GPUs that it holds of a node, each with their places.
pub fn gpus_on<'j>(job: &'j JobRow, node: &'j str) -> impl Iterator<Item = (&'j str, &'j str)> {
    let of_node = job
        .gpus_held
        .iter()
        .filter_map(move |held| held.split_once(':').filter(|(name, _)| *name == node));
    of_node.filter_map(|(_, rest)| rest.rsplit_once(':'))
}

/// `gpu:h100:2(IDX:1-2)`; empty without GPUs.
pub fn gres_on(job: &JobRow, node: &str) -> String {
    let one = |(kind, places): (&str, &str)| format!("gpu:{kind}:{}(IDX:{places})", count(places));
    gpus_on(job, node).map(one).collect::<Vec<_>>().join(",")
}

/// How many places are named: `0-3,5`; slices by their own, `0.4,1.0`.
pub fn count(places: &str) -> usize {
    let one = |place: &str| match place
        .split_once('-')
        .map(|(first, last)| (first.parse::<usize>(), last.parse::<usize>()))
    {
        Some((Ok(first), Ok(last))) if first <= last => last - first + 1,
        _ => 1,
    };
    places.split(',').map(one).sum()
}
