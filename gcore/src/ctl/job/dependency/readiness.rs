//! Which array tasks may start as far as dependencies go, and which never can.

use crate::ctl::state::{Array, OpenDependency, OpenTerm, State, intersection};
use gmodel::array_spec::RangeSet;
use gmodel::{JobId, JobSpec};

/// Whether a job with an impossible dependency is cancelled.
pub(crate) fn kills(state: &State, spec: &JobSpec) -> bool {
    spec.kill_on_invalid_dep
        .unwrap_or(state.config.kill_invalid_depend)
}

/// Why the dependency as a whole can never be met.
pub(crate) fn never(waits: &OpenDependency) -> Option<&str> {
    let mut never = waits.on.iter().filter_map(|wait| wait.never.as_deref());
    let first = never.next()?;
    (!waits.any || never.count() + 1 == waits.on.len()).then_some(first)
}

/// The positions of an array that may start now.
pub(crate) fn ready(array: &Array) -> RangeSet {
    match &array.waits {
        None => array.pending.clone(),
        Some(waits) => by_position(waits, &array.pending, |wait| {
            if wait.is_by_task() {
                wait.met.clone()
            } else {
                RangeSet::new()
            }
        }),
    }
}

/// Whether an array's task may start as far as its dependency goes.
pub(crate) fn is_ready(array: &Array, position: u32) -> bool {
    let met = |wait: &OpenTerm| wait.is_by_task() && wait.met.contains(position);
    match array.waits.as_deref() {
        None => true,
        Some(OpenDependency { any: true, on }) => on.iter().any(met),
        Some(OpenDependency { any: false, on }) => on.iter().all(met),
    }
}

/// The positions of an array that can never start.
pub(crate) fn hopeless(waits: &OpenDependency, pending: &RangeSet) -> RangeSet {
    // The complement: one impossible condition of several is enough; of alternatives all must be impossible.
    let other = OpenDependency {
        any: !waits.any,
        on: waits.on.clone(),
    };
    by_position(&other, pending, |wait| match wait.never {
        Some(_) => pending.clone(),
        None => wait.failed.clone(),
    })
}

pub(crate) fn by_position(
    waits: &OpenDependency,
    pending: &RangeSet,
    of: impl Fn(&OpenTerm) -> RangeSet,
) -> RangeSet {
    let mut sets = waits.on.iter().map(of);
    if waits.any {
        let mut all = RangeSet::new();
        sets.for_each(|set| {
            set.runs()
                .for_each(|(first, last)| all.insert_range(first, last))
        });
        return intersection(&all, pending);
    }
    let first = sets
        .next()
        .map_or(RangeSet::new(), |set| intersection(&set, pending));
    sets.fold(first, |left, set| intersection(&left, &set))
}

/// The open conditions of an array's task that gets a record of its own.
pub(crate) fn of_task(state: &State, array: &Array, position: u32) -> Option<Box<OpenDependency>> {
    let waits = array.waits.as_deref()?;
    let mut left = OpenDependency {
        any: waits.any,
        on: Vec::new(),
    };
    let mut met = false;
    for wait in &waits.on {
        if !wait.is_by_task() {
            left.on.push(wait.clone());
        } else if wait.met.contains(position) {
            met = true;
        } else {
            let index = array.tasks.nth(position);
            let theirs = state
                .array(wait.of)
                .and_then(|other| other.tasks.position(index?));
            let never = wait.failed.contains(position).then(|| {
                format!(
                    "task {} of array {} did not end well",
                    index.unwrap_or_default(),
                    wait.of
                )
            });
            let of = JobId(wait.of.0 + u64::from(theirs.unwrap_or(0)));
            let (met, failed) = (RangeSet::new(), RangeSet::new());
            left.on.push(OpenTerm {
                of,
                whole: false,
                never,
                met,
                failed,
                ..wait.clone()
            });
        }
    }
    let done = if left.any { met } else { left.on.is_empty() };
    (!done).then(|| Box::new(left))
}
