//! Steps of jobs, from the history: what gruns started, and how it ended as far as they said so.
//!
//! Owns how they are found. The history is pruned in time, and steps go with it.

use super::stored::{ReadResult, bytes, read};
use gcore::ctl::Event;
use gmodel::run::Usage;
use gmodel::step_share::{StepHold, StepHoldOnNode};
use gmodel::{ExitCode, JobId, Timestamp};
use gwire::api::StepOwn;
use rusqlite::Connection;

/// A step as the history has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredStep {
    pub attempt: u32,
    pub number: u32,
    pub name: String,
    pub tasks: u32,
    /// 0 where it was not said.
    pub nodes: u32,
    /// Which of the run's nodes, by place; empty: the first.
    pub places: Vec<u32>,
    pub started: Timestamp,
    pub ended: Option<StoredEnd>,
    pub own: Option<StepOwn>,
    pub limit_secs: Option<u32>,
}

/// The end of a step, as its grun told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredEnd {
    pub at: Timestamp,
    pub exit: ExitCode,
    pub used: Option<Usage>,
}

/// The steps of each job, in the order of the ids.
pub fn of_jobs(db: &Connection, ids: &[JobId]) -> ReadResult<Vec<Vec<StoredStep>>> {
    ids.iter().map(|id| of_job(db, *id)).collect()
}

/// All that it has for itself.
fn own(hold: &StepHold) -> StepOwn {
    let add = |sum: StepOwn, part: &StepHoldOnNode| StepOwn {
        cpus: sum.cpus + part.cpus.len() as u32,
        gpus: sum.gpus + part.gpus.len() as u32,
        mem_bytes: sum.mem_bytes.saturating_add(part.mem_bytes),
    };
    hold.nodes.iter().fold(StepOwn::default(), add)
}

fn of_job(db: &Connection, id: JobId) -> ReadResult<Vec<StoredStep>> {
    let mut statement =
        db.prepare_cached("SELECT doc FROM events WHERE job = ?1 AND kind IN ('step_started', 'step_ended') ORDER BY seq")?;
    let mut rows = statement.query([id.0])?;
    let mut steps: Vec<StoredStep> = Vec::new();
    while let Some(row) = rows.next()? {
        match read(&bytes(row, 0)?)? {
            Event::StepStarted {
                run,
                step,
                name,
                tasks,
                nodes,
                places,
                hold,
                limit_secs,
                at,
            } => {
                let own = hold.as_ref().map(own);
                steps.push(StoredStep {
                    attempt: run.attempt,
                    number: step,
                    name,
                    tasks,
                    nodes,
                    places,
                    started: at,
                    ended: None,
                    own,
                    limit_secs,
                });
            }
            Event::StepEnded {
                run,
                step,
                exit,
                used,
                at,
            } => {
                let of = |one: &&mut StoredStep| one.attempt == run.attempt && one.number == step;
                if let Some(step) = steps.iter_mut().find(of) {
                    step.ended.get_or_insert(StoredEnd { at, exit, used });
                }
            }
            _ => {}
        }
    }
    Ok(steps)
}
