//! Taking a running job back to the queue on somebody's word.

use super::cancel::stop;
use super::command::{Actor, Reply, Target};
use super::event::Event;
use super::handle::Tx;
use super::hold::mark_owner;
use super::targets::{Found, conflict, each, find, own_tasks, shown};
use gmodel::node::Mark;
use gmodel::run::StopWhy;
use gmodel::{JobId, RunId};

pub(super) fn handle(tx: &mut Tx, actor: &Actor, targets: &[Target], hold: bool) -> Reply {
    each(tx, targets, |tx, target| {
        let jobs: Vec<JobId> = match find(tx.state, actor, target)? {
            Found::Job(id) => vec![id],
            Found::Array(id) => own_tasks(tx.state, id),
            Found::Untouched { .. } | Found::Over => Vec::new(),
        };
        let live: Vec<RunId> = jobs
            .iter()
            .filter_map(|id| tx.state.jobs.get(*id)?.live_run())
            .filter(|run| tx.state.runs.get(*run).is_some_and(|run| run.outcome.is_none()))
            .collect();
        if live.is_empty() {
            return Err(conflict(format!(
                "job {} is not running, so there is nothing to take back. A finished job is \
                 submitted again with gsub.",
                shown(target)
            )));
        }
        let never = |run: &&RunId| tx.state.jobs.get(run.job).is_some_and(|job| job.spec.requeue == Some(false));
        if let Some(run) = live.iter().find(never) {
            return Err(conflict(format!(
                "job {} was submitted with --no-requeue. If it may run again: gadm job update {} Requeue=1, \
                 and then requeue it.",
                shown(target),
                run.job
            )));
        }
        for run in live {
            if hold {
                let job_owner = tx.state.jobs.get(run.job).map_or("", |job| &job.spec.user.name);
                let owner = mark_owner(actor, job_owner);
                let mark = Mark { owner, reason: "requeued and held".into(), since: tx.now };
                tx.emit(Event::JobHeld { job: run.job, mark });
            }
            stop(tx, run, StopWhy::Requeued, &actor.user);
        }
        Ok(())
    })
}
