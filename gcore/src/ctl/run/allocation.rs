//! The end of an allocation, a job without a script: its client is done with it, or gone.

use crate::ctl::command::{Actor, AllocationEnd, Refusal, Reply, Target};
use crate::ctl::event::Event;
use crate::ctl::job::targets::{TargetRecord, find, shown};
use crate::ctl::owner::SYSTEM;
use crate::ctl::run::gang::stop_by;
use crate::ctl::run::stop_order::order;
use crate::ctl::state::Stop;
use crate::ctl::tx::Tx;
use gmodel::run::StopCause;
use gmodel::{JobState, ReasonCode};

const CLIENT_GONE: &str = "its client is gone";

pub(crate) fn end(
    tx: &mut Tx,
    actor: &Actor,
    target: &Target,
    end: AllocationEnd,
) -> Result<Reply, Refusal> {
    let found = find(tx.state, actor, target)?;
    let job = match found {
        TargetRecord::Job(id) => tx.job(id).filter(|job| job.spec.allocation),
        _ => None,
    };
    let Some(job) = job else {
        let shown = shown(target);
        return Err(Refusal::conflict(format!(
            "job {shown} has a script, and ends with it. To cancel it: gdel {shown}"
        )));
    };
    let (id, run) = (job.id, job.live_run());
    let (why, exit, by, text) = match end {
        AllocationEnd::Done(exit) => (StopCause::Ended, Some(exit), &*actor.user, ""),
        AllocationEnd::ClientGone => (StopCause::Cancelled, None, SYSTEM, CLIENT_GONE),
    };
    match (job.state, run) {
        (JobState::Pending, _) => tx.emit(Event::JobCancelled {
            job: id,
            by: by.to_owned(),
            text: text.to_owned(),
            reason: ReasonCode::None,
            at: tx.now,
        }),
        (_, Some(run)) => {
            let stop = Stop {
                exit,
                text: text.to_owned(),
                ..order(tx, run, why, by)
            };
            stop_by(tx, run, stop);
        }
        _ => {}
    }
    Ok(Reply::Done)
}
