//! When a run began and ended, and for how long it held each node. Nodes measure lengths; the controller's clock bounds them.

use crate::ctl::state::{Member, Run};
use gmodel::Timestamp;
use gmodel::run::{Allocation, NodeShare, RunEnd};
use std::sync::Arc;

/// When a run began and ended by the controller's clock, and how long it held each of its nodes.
pub(crate) struct RunTimes {
    pub started: Option<Timestamp>,
    pub ended: Timestamp,
    pub held_millis: Vec<i64>,
}

/// Slack for a node's duration beyond the time between placement and report, milliseconds: the controller's
/// clock may have been set back.
const MAX_STEP_MILLIS: i64 = 86_400_000;
/// Nodes of one run start within this of each other, milliseconds.
const START_SKEW_MILLIS: i64 = 5_000;

/// A report may come hours after the fact, and clocks may be set at any time. So the end comes from the
/// report's age, within the controller's clock; the length is as nodes measured it; and the start is the end
/// less that length.
pub(crate) fn times(run: &Run, now: Timestamp) -> RunTimes {
    let latest = now.max(run.placed);
    let longest_possible = latest
        .since_millis(run.placed)
        .saturating_add(MAX_STEP_MILLIS);
    let ends = || run.members.iter().map(Member::end);
    let told = ends()
        .flatten()
        .filter_map(|end| end.started)
        .min()
        .map(|at| at.clamp(run.placed, latest));
    let all_told = ends().all(|end| end.is_some_and(|end| end.ended.is_some()));
    let last = ends()
        .flatten()
        .filter_map(|end| end.ended)
        .max()
        .filter(|_| all_told);
    let ended = last.unwrap_or(latest).clamp(run.placed, latest);
    let Some(known) = run.started.or(told) else {
        return RunTimes {
            started: None,
            ended,
            held_millis: Vec::new(),
        };
    };
    let lasted = |end: &Arc<RunEnd>| {
        end.lasted_millis()
            .map(|millis| millis.min(longest_possible))
    };
    let lengths: Vec<Option<i64>> = ends().map(|end| end.and_then(lasted)).collect();
    let longest = lengths.iter().flatten().copied().max().unwrap_or(0);
    let between = ended.since_millis(known).max(0);
    let skew = if lengths.len() > 1 {
        START_SKEW_MILLIS
    } else {
        0
    };
    let is_measured =
        lengths.iter().all(Option::is_some) && !(longest..=longest + skew).contains(&between);
    let span = if is_measured {
        longest
    } else {
        between.max(longest)
    };
    let started = ended.plus_millis(-span);
    let held = |(end, length): (Option<&Arc<RunEnd>>, &Option<i64>)| {
        let until = |at: Timestamp| at.since_millis(started).clamp(0, span);
        length.unwrap_or_else(|| end.and_then(|end| end.ended).map_or(span, until))
    };
    let held_millis: Vec<i64> = ends().zip(&lengths).map(held).collect();
    let all_alike = held_millis.iter().all(|held| *held == span);
    RunTimes {
        started: Some(started),
        ended,
        held_millis: if all_alike { Vec::new() } else { held_millis },
    }
}

/// The time for which its nodes were not held, on average over its GPUs, or its CPUs if it has none.
pub(crate) fn unheld_millis(allocation: &Allocation, span: i64, held_millis: &[i64]) -> i64 {
    let has_gpus = allocation.iter().any(|share| share.gpus.milli() > 0);
    let weight = |share: &NodeShare| {
        if has_gpus {
            i128::from(share.gpus.milli())
        } else {
            i128::from(share.cpus)
        }
    };
    let all: i128 = allocation.iter().map(weight).sum();
    let of = |(share, held): (&NodeShare, &i64)| weight(share) * i128::from((span - held).max(0));
    let unheld: i128 = allocation.iter().zip(held_millis).map(of).sum();
    i64::try_from(unheld / all.max(1)).unwrap_or(0)
}
