//! `--deadline` and `--time-min`: a job that can not end in time is dropped, and a run's limit ends at the
//! deadline.

use crate::ctl::command::Refusal;
use gmodel::duration::squeue_time;
use gmodel::{JobSpec, RefusalKind, Timestamp};

/// Seconds a run of the job must have at least.
fn least_secs(spec: &JobSpec, limit_secs: Option<u32>) -> u32 {
    spec.time_min_secs.or(limit_secs).unwrap_or(1)
}

/// The first moment at which it is too late to start; `None` without a deadline.
pub(crate) fn last_start(spec: &JobSpec, limit_secs: Option<u32>) -> Option<Timestamp> {
    let least = i64::from(least_secs(spec, limit_secs));
    Some(spec.deadline?.plus_secs(-least).plus_millis(1))
}

/// The limit of a run that starts now: as requested, as the plan shortened it, and no longer than the time to
/// the deadline or to the end of its reservation window. `None`: too little time is left.
#[allow(clippy::option_option)]
pub(crate) fn run_limit(
    spec: &JobSpec,
    limit_secs: Option<u32>,
    planned: Option<u32>,
    window_left: Option<u32>,
    now: Timestamp,
) -> Option<Option<u32>> {
    let least = least_secs(spec, limit_secs);
    let longest = limit_secs.unwrap_or(u32::MAX);
    let least_here = window_left.map_or(least, |_| {
        gpolicy::pending_job::least_secs(spec, limit_secs)
    });
    let limit = planned.map_or(limit_secs, |planned| {
        Some(planned.clamp(least_here.min(longest), longest))
    });
    let limit = match window_left {
        Some(left) if left < least_here => return None,
        Some(left) => Some(limit.unwrap_or(u32::MAX).min(left)),
        None => limit,
    };
    let Some(deadline) = spec.deadline else {
        return Some(limit);
    };
    let left = u32::try_from(deadline.since_secs(now)).unwrap_or(u32::MAX);
    (least <= left).then(|| Some(limit.unwrap_or(u32::MAX).min(left)))
}

/// Refuses a job that could not end in time even if it started at once.
pub(crate) fn check(
    spec: &JobSpec,
    limit_secs: Option<u32>,
    now: Timestamp,
) -> Result<(), Refusal> {
    let invalid = |text: String, about| Err(Refusal::invalid(text).about(about));
    if let (Some(least), Some(limit)) = (spec.time_min_secs, limit_secs)
        && least > limit
    {
        let shown = |secs: u32| squeue_time(u64::from(secs));
        let text = format!(
            "--time-min {} is longer than the time limit, {}.",
            shown(least),
            shown(limit)
        );
        return invalid(text, RefusalKind::TimeMin);
    }
    let begin = spec.begin.unwrap_or(now).max(now);
    match last_start(spec, limit_secs) {
        Some(late) if late <= begin => invalid(
            format!(
                "{}. Ask for less --time, or allow less with --time-min.",
                words(spec, limit_secs)
            ),
            RefusalKind::TimeLimit,
        ),
        _ => Ok(()),
    }
}

/// `it cannot end by its deadline 2026-11-20T12:00:00Z any more: it needs 1:00:00`.
pub(crate) fn words(spec: &JobSpec, limit_secs: Option<u32>) -> String {
    let needs = squeue_time(u64::from(least_secs(spec, limit_secs)));
    let deadline = spec.deadline.unwrap_or_default();
    format!("it cannot end by its deadline {deadline} any more: it needs {needs}")
}
