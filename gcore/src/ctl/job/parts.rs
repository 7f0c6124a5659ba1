//! The requests of a job of unlike parts: what the components take over from the first, and what they cannot have.

use crate::ctl::command::Refusal;
use gmodel::job_part::MOST_PARTS;
use gmodel::partition_list::names;
use gmodel::{JobChange, JobId, JobPart, JobSpec};

/// Numbers the components, and gives the other components what the first one decides for all.
pub(crate) fn conform(leader: JobId, specs: &mut [JobSpec]) -> Result<(), Refusal> {
    let size = specs.len();
    if !(2..=MOST_PARTS).contains(&size) {
        return Err(Refusal::invalid(format!(
            "a job of unlike parts has 2 to {MOST_PARTS} components; this one has {size}."
        )));
    }
    let Some((first, others)) = specs.split_first_mut() else {
        return Ok(());
    };
    let part = |offset: usize| JobPart {
        leader,
        offset: offset as u32,
        size: size as u32,
    };
    first.part = Some(part(0));
    for (at, spec) in others.iter_mut().enumerate() {
        if spec.account.is_empty() {
            spec.account = first.account.clone();
        }
        if spec.qos.is_empty() {
            spec.qos = first.qos.clone();
        }
        check_own(at + 1, first, spec)?;
        spec.part = Some(part(at + 1));
        // Its nodes hold steps: the script is the first component's.
        spec.launch = first.launch.clone();
        if spec.name.is_empty() {
            spec.name = first.name.clone();
        }
        spec.time_limit_secs = first.time_limit_secs;
        spec.begin = first.begin;
        spec.hold = first.hold;
        spec.nice = first.nice;
        spec.priority = first.priority;
        spec.requeue = first.requeue;
        spec.no_kill = first.no_kill;
        spec.deadline = first.deadline;
        spec.checkpoint = first.checkpoint.clone();
        spec.borrow = first.borrow;
        spec.allocation = false;
        spec.unattended = false;
        spec.dependency = None;
        spec.kill_on_invalid_dep = None;
    }
    Ok(())
}

/// Refuses what a component says otherwise than the first, which decides it for all.
fn check_own(at: usize, first: &JobSpec, spec: &JobSpec) -> Result<(), Refusal> {
    let differs = [
        (
            "--time",
            spec.time_limit_secs.is_some() && spec.time_limit_secs != first.time_limit_secs,
        ),
        ("--begin", spec.begin.is_some() && spec.begin != first.begin),
        (
            "--dependency",
            spec.dependency.is_some() && spec.dependency != first.dependency,
        ),
        (
            "--deadline",
            spec.deadline.is_some() && spec.deadline != first.deadline,
        ),
    ];
    match differs.iter().find(|(_, differs)| *differs) {
        Some((option, _)) => Err(Refusal::invalid(format!(
            "component {at}: {option} is of the whole job. Give it with the first component."
        ))),
        None => Ok(()),
    }
}

/// Refuses what no component can have.
pub(crate) fn check(at: usize, spec: &JobSpec) -> Result<(), Refusal> {
    let no = |option: &str| {
        Err(Refusal::invalid(format!(
            "component {at}: {option} does not go with a job of unlike parts."
        )))
    };
    let has_brackets = spec
        .request
        .constraint
        .as_deref()
        .is_some_and(gmodel::constraint::Constraint::has_brackets);
    if spec.array.is_some() {
        return no("--array");
    }
    if spec.waits_in_several() {
        return no("a list of partitions");
    }
    if has_brackets {
        return no("--constraint with brackets");
    }
    if spec.reservation.is_some() {
        return no("--reservation");
    }
    if spec.time_min_secs.is_some() {
        return no("--time-min");
    }
    Ok(())
}

/// Refuses changes of a component that none could have been submitted with.
pub(crate) fn check_change(old: &JobSpec, change: &JobChange) -> Result<(), Refusal> {
    let Some(part) = old.part else {
        return Ok(());
    };
    let is_list = |list: &String| names(list).nth(1).is_some();
    let what = match change {
        _ if change
            .reservation
            .as_ref()
            .is_some_and(|name| !name.is_empty()) =>
        {
            "a reservation"
        }
        _ if change.time_min_secs.is_some_and(|secs| secs.is_some()) => "a least time",
        _ if change.partition.as_ref().is_some_and(is_list) => "a list of partitions",
        _ if change.dependency.is_some() && !part.is_leader() => {
            return Err(Refusal::conflict(format!(
                "the dependency is of the whole job: change that of {}+0.",
                part.leader
            )));
        }
        _ => return Ok(()),
    };
    Err(Refusal::conflict(format!(
        "job {} is one of unlike parts, which cannot have {what}.",
        part.shown()
    )))
}

/// Refuses components that are not of one account and QOS: limits, guarantees and preemption see one job.
pub(crate) fn check_beside(at: usize, first: &JobSpec, spec: &JobSpec) -> Result<(), Refusal> {
    let unlike = |what: &str, own: &str, of_first: &str| {
        Err(Refusal::invalid(format!(
            "component {at} is of {what} {own:?} and the first of {of_first:?}: all components have the same."
        )))
    };
    if spec.account != first.account {
        return unlike("account", &spec.account, &first.account);
    }
    if spec.qos != first.qos {
        return unlike("QOS", &spec.qos, &first.qos);
    }
    Ok(())
}

/// The refusal of a component, with its number.
pub(crate) fn about(at: usize, refusal: Refusal) -> Refusal {
    Refusal {
        text: format!("component {at}: {}", refusal.text),
        ..refusal
    }
}
