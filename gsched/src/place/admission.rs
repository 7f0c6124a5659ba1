//! Whether the reservation that a job names admits it, now or in a later window.

use crate::job::job_class::JobClassId;
use crate::pass::Pass;
use crate::snapshot::PendingJob;
use gmodel::{Reason, ReasonCode};
use gpolicy::limits::secs_text;
use gpolicy::window::{Window, next};

pub(crate) fn not_admitted(pass: &Pass, job: &PendingJob, job_class: JobClassId) -> Option<Reason> {
    let reserved = &pass.memory.windows.list[pass.job_class(job_class).claim.own()?];
    let name = &reserved.reservation.name;
    let wait = |text: String| Some(Reason::new(ReasonCode::Reservation, text));
    if !reserved.admits(job, &pass.snapshot.policy) {
        let (user, account) = (&job.spec.user.name, &job.spec.account);
        return wait(format!(
            "reservation {name:?} is not for user {user:?} in account {account:?}"
        ));
    }
    let secs = job.least_secs();
    let one = &reserved.reservation;
    if !one.flex && secs > one.duration_secs {
        return wait(format!(
            "asks for {}, and reservation {name:?} lasts {}",
            secs_text(secs),
            secs_text(one.duration_secs)
        ));
    }
    match next(one, pass.snapshot.now) {
        None => wait(format!("reservation {name:?} is over")),
        Some(Window { from, .. }) if from > pass.snapshot.now && !one.flex => {
            wait(format!("reservation {name:?} begins at {from}"))
        }
        Some(Window { to, .. })
            if !one.flex && pass.snapshot.now.plus_secs(i64::from(secs)) > to =>
        {
            wait(format!(
                "needs {secs} s, and reservation {name:?} ends at {to}"
            ))
        }
        Some(_) => None,
    }
}

/// Whether a job that its own reservation does not admit now fits into a later window.
pub(crate) fn is_admitted_later(pass: &Pass, job: &PendingJob, job_class: JobClassId) -> bool {
    let Some(own) = pass.job_class(job_class).claim.own() else {
        return false;
    };
    let reserved = &pass.memory.windows.list[own];
    job.least_secs() <= reserved.reservation.duration_secs
        && reserved.admits(job, &pass.snapshot.policy)
}
