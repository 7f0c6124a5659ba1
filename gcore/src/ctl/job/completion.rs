//! A request completed in one partition: account, QOS, time limit, nodes.

use crate::ctl::command::{Actor, Refusal};
use crate::ctl::job::feasibility::{check_nodes, widen};
use crate::ctl::job::partition::{check_size, may_use, partition_or_refusal, takes_submissions};
use crate::ctl::job::request_bounds::check_private_tmp;
use crate::ctl::job::{admission, deadline, limits};
use crate::ctl::state::State;
use gmodel::config::Partition;
use gmodel::duration::squeue_time;
use gmodel::policy::Reservation;
use gmodel::{JobSpec, RefusalKind, Timestamp};

/// Time limit if neither job nor partition has one, seconds.
pub const DEFAULT_LIMIT_SECS: u32 = 86_400;

/// Beginning of the note on a default time limit.
pub(crate) const NO_TIME: &str = "no --time given";

/// Completes a request in its one partition: account, QOS, limits, nodes. Returns the time limit, seconds.
pub(crate) fn complete_in(
    state: &State,
    actor: &Actor,
    spec: &mut JobSpec,
    notes: &mut Vec<String>,
    now: Timestamp,
) -> Result<Option<u32>, Refusal> {
    let partition = partition_or_refusal(&state.config, &spec.partition)?;
    widen(state, partition, &mut spec.request)?;
    admission::admit(state, actor, spec, partition, notes)?;
    check_admission(state, partition, actor, spec)?;
    crate::ctl::gpu::share::check_request(&state.config, partition, &spec.request)?;
    let limit_secs = time_limit(spec, partition, qos_limit_secs(state, spec), notes)?;
    note_window(state, spec, limit_secs, notes);
    limits::check_request(state, spec, partition, limit_secs, now)?;
    limits::check_queue(state, spec, partition, now)?;
    deadline::check(spec, limit_secs, now)?;
    check_nodes(state, partition, spec, notes)?;
    Ok(limit_secs)
}

pub(crate) fn check_admission(
    state: &State,
    partition: &Partition,
    actor: &Actor,
    spec: &JobSpec,
) -> Result<(), Refusal> {
    takes_submissions(partition)?;
    may_use(state, partition, actor, &spec.account)?;
    if spec.nice < 0 && !actor.operator {
        let text = "only operators may use a negative --nice.";
        return Err(Refusal::denied(text));
    }
    check_private_tmp(partition, spec)?;
    check_size(partition, &spec.request)
}

/// The longest time limit of the job's QOS, seconds.
pub(crate) fn qos_limit_secs(state: &State, spec: &JobSpec) -> Option<u32> {
    state.policy.qos.get(&spec.qos)?.per_job.time_secs
}

pub(crate) fn time_limit(
    spec: &JobSpec,
    partition: &Partition,
    qos_most: Option<u32>,
    notes: &mut Vec<String>,
) -> Result<Option<u32>, Refusal> {
    let most = partition.max_time_secs;
    let shown = |secs: u32| squeue_time(u64::from(secs));
    match spec.time_limit_secs {
        Some(u32::MAX) if most.is_none() => Ok(None),
        Some(asked) => match most {
            Some(most) if asked > most => {
                let asked = if asked == u32::MAX {
                    "UNLIMITED".into()
                } else {
                    shown(asked)
                };
                Err(Refusal::invalid(format!(
                    "--time {asked}: partition {:?} allows at most {}.",
                    partition.name,
                    shown(most)
                ))
                .about(RefusalKind::TimeLimit))
            }
            _ => Ok(Some(asked)),
        },
        None => {
            let chosen = partition.default_time_secs.or(most);
            if chosen.is_none() {
                notes.push(format!(
                    "{NO_TIME} and partition {:?} has no default: the limit is {}",
                    partition.name,
                    shown(DEFAULT_LIMIT_SECS)
                ));
            }
            let chosen = chosen.unwrap_or(DEFAULT_LIMIT_SECS);
            Ok(Some(qos_most.map_or(chosen, |most| most.min(chosen))))
        }
    }
}

/// Notes that a job ends with the window of its reservation, if it has no `--time` or one as long as the
/// window.
pub(crate) fn note_window(
    state: &State,
    spec: &JobSpec,
    limit_secs: Option<u32>,
    notes: &mut Vec<String>,
) {
    let reservation = spec
        .reservation
        .as_deref()
        .and_then(|name| state.policy.reservations.get(name));
    let is_cut = |one: &&Reservation| {
        !one.flex
            && spec
                .time_limit_secs
                .is_none_or(|asked| asked >= one.duration_secs)
    };
    let Some(reservation) = reservation.filter(is_cut) else {
        return;
    };
    // One note on the time limit is enough.
    notes.retain(|note| !note.starts_with(NO_TIME));
    let why = if spec.time_limit_secs.is_none() {
        "without --time"
    } else {
        "with so long a --time"
    };
    let at_most = squeue_time(u64::from(
        limit_secs.map_or(reservation.duration_secs, |limit| {
            limit.min(reservation.duration_secs)
        }),
    ));
    notes.push(format!(
        "--reservation {}: {why} the job gets what is left of it when it starts, {at_most} at most",
        reservation.name
    ));
}
