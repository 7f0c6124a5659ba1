//! Pending jobs of a reservation that was deleted: released from it, or given a pending reason.

use crate::ctl::event::{Event, JobChange};
use crate::ctl::job::pending_reason;
use crate::ctl::reservation::window::asked;
use crate::ctl::state::{EntryId, State};
use crate::ctl::tx::Tx;
use gmodel::{JobSpec, JobState, Reason, ReasonCode};

/// Reservations with RELEASE set: their pending jobs wait on without them.
pub(crate) fn releasing(state: &State) -> Vec<String> {
    state
        .policy
        .reservations
        .values()
        .filter(|one| one.release_jobs)
        .map(|one| one.name.clone())
        .collect()
}

/// Releases the pending jobs of those reservations that are gone.
pub(crate) fn release(tx: &mut Tx, names: &[String], by: &str) {
    let state = &*tx.state;
    let gone = |spec: &JobSpec| {
        asked(spec).is_some_and(|name| {
            names.iter().any(|one| one == name) && !state.policy.reservations.contains_key(name)
        })
    };
    let by = by.to_owned();
    let change = JobChange {
        reservation: Some(String::new()),
        ..JobChange::default()
    };
    let jobs = state
        .jobs
        .values()
        .filter(|job| job.state == JobState::Pending && gone(&job.spec));
    let jobs = jobs.map(|job| Event::JobUpdated {
        job: job.id,
        change: change.clone(),
        by: by.clone(),
    });
    let arrays = state
        .arrays
        .values()
        .filter(|array| !array.pending.is_empty() && gone(&array.spec));
    let arrays = arrays.map(|array| Event::ArrayUpdated {
        array: array.id,
        change: change.clone(),
        by: by.clone(),
    });
    let events: Vec<Event> = jobs.chain(arrays).collect();
    events.into_iter().for_each(|event| tx.emit(event));
}

/// Pending jobs of deleted reservations stay in the queue, with the reason.
pub(crate) fn note_deleted(tx: &mut Tx) {
    let state = &*tx.state;
    let gone = |spec: &JobSpec, reason: &Reason| {
        let name = asked(spec).filter(|name| !state.policy.reservations.contains_key(*name))?;
        let text = format!("there is no reservation {name:?} any more; choose another, or none");
        (reason.code != ReasonCode::ReservationDeleted)
            .then(|| Reason::new(ReasonCode::ReservationDeleted, text))
    };
    let pending = state
        .jobs
        .values()
        .filter(|job| job.state == JobState::Pending);
    let jobs =
        pending.filter_map(|job| Some((EntryId::Job(job.id), gone(&job.spec, &job.reason)?)));
    let waiting = state
        .arrays
        .values()
        .filter(|array| !array.pending.is_empty());
    let arrays = waiting
        .filter_map(|array| Some((EntryId::Array(array.id), gone(&array.spec, &array.reason)?)));
    let reasons = jobs.chain(arrays).collect();
    pending_reason::give_reasons(tx, reasons);
}
