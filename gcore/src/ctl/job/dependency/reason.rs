//! The pending reason of a job with a dependency.

use crate::ctl::job::dependency::readiness::{hopeless, never, ready};
use crate::ctl::state::{Array, OpenDependency, OpenTerm, State, intersection};
use gmodel::array_spec::RangeSet;
use gmodel::dependency::{DependencyKind, DependencyTerm};
use gmodel::{Reason, ReasonCode};

/// The pending reason of open conditions; `None` if there are none.
pub(crate) fn reason(state: &State, waits: Option<&OpenDependency>) -> Option<Reason> {
    let waits = waits?;
    if let Some(why) = never(waits) {
        let text = format!("its dependency can never be met: {why}");
        return Some(Reason::new(ReasonCode::DependencyNeverSatisfied, text));
    }
    let open: Vec<&OpenTerm> = waits
        .on
        .iter()
        .filter(|wait| wait.never.is_none())
        .collect();
    let first = open
        .first()
        .map_or(String::new(), |wait| wait_words(state, wait));
    let more = match (open.len().saturating_sub(1), waits.any) {
        (0, _) => String::new(),
        (count, true) => format!(", or for {count} more"),
        (count, false) => format!(", and for {count} more"),
    };
    Some(Reason::new(
        ReasonCode::Dependency,
        format!("waits for {first}{more}"),
    ))
}

/// The array tasks that may start; if none, the open tasks and their pending reason.
pub(crate) fn of_array(state: &State, array: &Array, open: RangeSet) -> (RangeSet, Option<Reason>) {
    let Some(waits) = &array.waits else {
        return (open, None);
    };
    let ready = intersection(&ready(array), &open);
    if !ready.is_empty() {
        return (ready, None);
    }
    if hopeless(waits, &open).len() == open.len() && never(waits).is_none() {
        let text =
            "their partners in the other array did not end well: these tasks can never start";
        return (
            open,
            Some(Reason::new(ReasonCode::DependencyNeverSatisfied, text)),
        );
    }
    (open, reason(state, Some(waits)))
}

/// `job 17 (RUNNING) to end well`.
pub(crate) fn wait_words(state: &State, wait: &OpenTerm) -> String {
    let of = wait.of;
    let other = match (wait.whole, state.job(of), state.array(of)) {
        (true, _, Some(array)) => {
            let left = array.pending.len() + u64::from(array.own_pending + array.own_live);
            match left {
                0 => format!("array {of} (over)"),
                left => format!("array {of} ({left} of {} tasks not over)", array.len()),
            }
        }
        (_, Some(job), _) => format!("job {} ({})", job.shown_id(), job.state),
        _ => match state.array_of(of) {
            Some((array, at)) => format!(
                "job {}_{} (PENDING)",
                array.id,
                array.tasks.nth(at).unwrap_or(at)
            ),
            None => format!("job {of}"),
        },
    };
    match (wait.condition(), wait.until) {
        (_, Some(until)) => format!("{until}, {} after {other} began", minutes(wait)),
        (DependencyTerm::Singleton, _) => format!("{other}, of the same name and user, to end"),
        (
            DependencyTerm::On {
                kind: DependencyKind::After,
                delay_mins: 0,
                ..
            },
            _,
        ) => format!("{other} to begin"),
        (
            DependencyTerm::On {
                kind: DependencyKind::After,
                ..
            },
            _,
        ) => format!("{} after {other} begins", minutes(wait)),
        (
            DependencyTerm::On {
                kind: DependencyKind::AfterAny,
                ..
            },
            _,
        ) => format!("{other} to end"),
        (
            DependencyTerm::On {
                kind: DependencyKind::AfterOk,
                ..
            },
            _,
        ) => format!("{other} to end well"),
        (
            DependencyTerm::On {
                kind: DependencyKind::AfterNotOk,
                ..
            },
            _,
        ) => format!("{other} to fail"),
        (
            DependencyTerm::On {
                kind: DependencyKind::AfterCorr,
                ..
            },
            _,
        ) if wait.whole => {
            format!("the task of the same index of {other} to end well")
        }
        (
            DependencyTerm::On {
                kind: DependencyKind::AfterCorr,
                ..
            },
            _,
        ) => format!("{other} to end well"),
    }
}

pub(crate) fn minutes(wait: &OpenTerm) -> String {
    match wait.condition() {
        DependencyTerm::On { delay_mins, .. } => format!("{delay_mins} min"),
        DependencyTerm::Singleton => String::new(),
    }
}
