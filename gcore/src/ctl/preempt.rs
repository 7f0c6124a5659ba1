//! Runs that give way: for a job that is owed their resources, for a drain with a deadline.
//!
//! The plan brings the proof; here it is checked once more that the victims still run and that the job still waits. A
//! victim is asked for its checkpoint first. For one job nobody else is asked until those are gone; if it starts elsewhere
//! before, they stay where their nodes have not heard of it.

use super::dependency;
use super::event::Event;
use super::handle::Tx;
use super::run_end::advance;
use super::state::{Job, Member, Node, Run, State, Stop, Suspension};
use super::waiting;
use gmodel::checkpoint::CheckpointSpec;
use gmodel::node::{Link, Role};
use gmodel::policy::PreemptMode;
use gmodel::run::StopCause;
use gmodel::{JobId, JobSpec, JobState, NodeId, RunClass, RunId, Timestamp};
use gsched::Preempt;
use std::collections::BTreeSet;

/// Longest reason that is kept of a plan.
const MAX_WHY_BYTES: usize = 1000;

/// After its own start a controller hears of its nodes one after another. For so long nobody gives way while one is missing that
/// may have room; the planner proposes it again.
const NODES_RETURN_SECS: i64 = 10;

/// Tells the victims of a plan to stop.
pub(super) fn enter(tx: &mut Tx, preempts: Vec<Preempt>) {
    if preempts.is_empty() || nodes_return(tx.state, tx.now) {
        return;
    }
    let being_served = served(tx.state);
    // Whose guarantee nobody takes over stays, and then the others of its set would go for nothing.
    let bereft: BTreeSet<JobId> = preempts
        .iter()
        .filter(|one| !one.heirs.iter().all(|heir| may_inherit(tx.state, *heir)))
        .map(|one| one.for_job)
        .collect();
    for preempt in preempts {
        if bereft.contains(&preempt.for_job)
            || being_served.contains(&preempt.for_job)
            || !is_waiting(tx.state, preempt.for_job, tx.now)
        {
            continue;
        }
        let Some(mode) = mode_of(tx.state, &preempt) else {
            continue;
        };
        let text = words(tx.state, &preempt);
        if mode == PreemptMode::Suspend {
            let suspension = Suspension {
                since: tx.now,
                by: "scheduler".into(),
                for_job: Some(preempt.for_job),
                text,
            };
            tx.emit(Event::RunSuspended {
                run: preempt.run,
                suspension,
            });
            continue;
        }
        let Preempt {
            run,
            for_job,
            lost_gpu_secs,
            heirs,
            for_borrower,
            ..
        } = preempt;
        if !heirs.is_empty() {
            let heirs = heirs.into_iter().map(|heir| (heir, RunClass::Guaranteed));
            classify(
                tx,
                std::iter::once((run, RunClass::Borrowed))
                    .chain(heirs)
                    .collect(),
            );
        }
        let order = order(tx, run, StopCause::Preempted, "scheduler");
        let stop = Stop {
            for_job: Some(for_job),
            for_borrower,
            mode: Some(mode),
            lost_gpu_secs,
            text,
            ..order
        };
        tx.emit(Event::RunStopping { run, stop });
        advance(tx, run);
    }
}

/// Whether a controller was started just now.
pub(super) fn is_new(state: &State, now: Timestamp) -> bool {
    now < state.started.plus_secs(NODES_RETURN_SECS)
}

/// Whether nodes are still to report to a controller that was started just now.
pub(super) fn nodes_return(state: &State, now: Timestamp) -> bool {
    let missing = |node: &Node| node.role == Role::Compute && node.link == Link::Silent;
    is_new(state, now) && state.watched_nodes().any(missing)
}

/// Jobs for which runs are being ended already.
fn served(state: &State) -> BTreeSet<JobId> {
    let leaving = |run: RunId| state.runs.get(run).is_some_and(|run| !run.is_clean());
    state
        .making_room
        .iter()
        .filter(|(_, run)| leaving(*run))
        .map(|(job, _)| *job)
        .collect()
}

/// A job starts: of the runs that were told to go for it, those of which nothing is gone are not needed. Such an order is taken
/// back where no node is known to have it. What a node obeyed is final there: gstepd has sent its signal, or asked for a
/// checkpoint that costs the job its time whoever wants it.
pub(super) fn release_others(tx: &mut Tx, job: JobId) {
    let first = RunId::new(JobId(0), 1);
    let asked = tx
        .state
        .making_room
        .range((job, first)..(JobId(job.0 + 1), first))
        .filter_map(|(_, run)| tx.state.runs.get(*run));
    let whole = |run: &&Run| run.outcome.is_none() && !run.members.iter().any(Member::is_ended);
    let asked = asked.filter(whole).filter_map(|run| {
        Some((
            run,
            run.stop
                .as_ref()
                .filter(|stop| stop.makes_room_for() == Some(job))?,
        ))
    });
    let unheard = |run: &Run, stop: &Stop| {
        let obeyed = |member: &Member| {
            tx.state
                .nodes
                .get(member.node)
                .map_or(u64::MAX, |node| node.obeyed)
        };
        run.go.is_some()
            && run
                .members
                .iter()
                .all(|member| obeyed(member) < stop.number)
    };
    let asked: Vec<(&Run, &Stop)> = asked.collect();
    if asked.is_empty() {
        return;
    }
    // Who is to start there counts on it, too: he was not given others for that reason.
    let counted_on = waiting::freed_nodes(tx.state);
    let is_free = |run: &Run| {
        !run.members
            .iter()
            .any(|member| counted_on.contains(&member.node))
    };
    let unneeded: Vec<(RunId, bool)> = asked
        .into_iter()
        .map(|(run, stop)| (run.id, unheard(run, stop) && is_free(run)))
        .collect();
    for (run, called_back) in unneeded {
        tx.emit(Event::RunUnneeded {
            run,
            for_job: job,
            called_back,
            at: tx.now,
        });
    }
}

pub(super) fn apply_stopping(state: &mut State, id: RunId, stop: &Stop) {
    let number = state.seq.0;
    let run = state.runs.get_mut(id).expect("a run that stops exists");
    let before = run.stop.replace(Stop {
        number,
        ..stop.clone()
    });
    let placed = run.placed;
    state.preparing.remove(&(placed, id));
    forget(state, id, before.as_ref());
    state.making_room.extend(stop.for_job.map(|job| (job, id)));
}

pub(super) fn apply_unneeded(state: &mut State, id: RunId, for_job: JobId, called_back: bool) {
    let whom = state
        .jobs
        .get(for_job)
        .map_or(for_job.to_string(), Job::shown_id);
    let run = state
        .runs
        .get_mut(id)
        .expect("a run that is not needed exists");
    let Some(stop) = &mut run.stop else { return };
    stop.in_vain = true;
    stop.text = format!(
        "{}; job {whom} started elsewhere before it was gone",
        stop.text
    );
    if called_back {
        run.called_back = run.stop.take().map(Box::new);
        state.making_room.remove(&(for_job, id));
    }
}

/// A run makes room no more: it is clean on all its nodes, or was told otherwise.
pub(super) fn forget(state: &mut State, run: RunId, stop: Option<&Stop>) {
    if let Some(job) = stop.and_then(|stop| stop.for_job) {
        state.making_room.remove(&(job, run));
    }
}

/// Whether a job waits for nothing but resources.
fn is_waiting(state: &State, id: JobId, now: Timestamp) -> bool {
    if let Some(job) = state.jobs.get(id) {
        return job.state == JobState::Pending
            && job.holds.is_empty()
            && job.waits.is_none()
            && job.is_due(now);
    }
    state.array_of(id).is_some_and(|(array, position)| {
        let open = array.pending.contains(position) && dependency::is_ready(array, position);
        open && array.holds_of(position).is_empty() && array.eligible <= now
    })
}

/// Whether a run can stand on a guarantee that another leaves: it runs, and goes on running.
fn may_inherit(state: &State, run: RunId) -> bool {
    state
        .runs
        .get(run)
        .is_some_and(|run| run.stop.is_none() && run.outcome.is_none() && run.class.is_some())
}

/// How the run goes, if it may be preempted: it runs, and nobody has told it to stop.
fn mode_of(state: &State, preempt: &Preempt) -> Option<PreemptMode> {
    let run = state
        .runs
        .get(preempt.run)
        .filter(|run| run.stop.is_none() && run.outcome.is_none())?;
    let job = state.jobs.get(run.id.job)?;
    let partition = state.config.partition(&job.spec.partition);
    let may_requeue = job.may_requeue(partition.is_none_or(|partition| partition.requeue));
    match preempt.mode {
        PreemptMode::Requeue if may_requeue => Some(PreemptMode::Requeue),
        // As in Slurm: what cannot go back to the queue is ended.
        PreemptMode::Requeue | PreemptMode::Cancel => Some(PreemptMode::Cancel),
        PreemptMode::Suspend if run.suspension.is_none() => Some(PreemptMode::Suspend),
        PreemptMode::Off | PreemptMode::Suspend => None,
    }
}

/// `for job 42 of bob (account vision): 8 of its 16 guaranteed GPUs`.
fn words(state: &State, preempt: &Preempt) -> String {
    let spec = match state.jobs.get(preempt.for_job) {
        Some(job) => Some((job.shown_id(), &job.spec)),
        None => state.array_of(preempt.for_job).map(|(array, position)| {
            (
                format!(
                    "{}_{}",
                    array.id,
                    array.tasks.nth(position).unwrap_or(position)
                ),
                &array.spec,
            )
        }),
    };
    let whom = spec.map_or(String::new(), |(shown, spec)| {
        format!(
            "for job {shown} of {} (account {})",
            spec.user.name, spec.account
        )
    });
    let why: String = preempt.why.chars().take(MAX_WHY_BYTES).collect();
    if why.is_empty() {
        whom
    } else {
        format!("{whom}: {why}")
    }
}

/// An order to stop, with the time the job has for its checkpoint where the reason leaves it that.
pub(super) fn order(tx: &Tx, run: RunId, why: StopCause, by: &str) -> Stop {
    let asked = matches!(
        why,
        StopCause::Preempted | StopCause::Requeued | StopCause::Drained
    );
    let started = tx.state.runs.get(run).is_some_and(|run| run.go.is_some());
    let job = tx.state.jobs.get(run.job).filter(|_| asked && started);
    let checkpoint = job.and_then(|job| checkpoint_of(tx.state, &job.spec));
    Stop {
        checkpoint_secs: checkpoint.map_or(0, |checkpoint| checkpoint.grace_secs),
        ..Stop::new(why, tx.state.config.kill_grace_secs, tx.now, by)
    }
}

/// How a job is told to write a checkpoint: as it says, or as the site has it for those that do not.
pub fn checkpoint_of<'a>(state: &'a State, spec: &'a JobSpec) -> Option<&'a CheckpointSpec> {
    spec.checkpoint
        .as_ref()
        .or(state.config.scheduler.preempt.default_checkpoint.as_ref())
}

/// GPU-seconds of work between the last mark (or the start) and the end.
pub(super) fn lost_gpu_secs(run: &Run, started: Option<Timestamp>, ended: Timestamp) -> u64 {
    let marked = run.mark.as_ref().map(|mark| mark.at);
    let Some(since) = marked.or(started) else {
        return 0;
    };
    let milli: u64 = run.allocation.iter().map(|share| share.gpus.milli()).sum();
    let millis = u64::try_from(ended.since_millis(since)).unwrap_or(0);
    milli.saturating_mul(millis) / 1_000_000
}

/// The newer classes of a plan. Without quotas there are none.
pub(super) fn classify(tx: &mut Tx, classes: Vec<(RunId, RunClass)>) {
    if !tx.state.policy.has_quotas() {
        return;
    }
    for (run, class) in classes {
        let differs = |run: &Run| run.outcome.is_none() && run.class != Some(class);
        if tx.state.runs.get(run).is_some_and(differs) {
            tx.emit(Event::RunClassed {
                run,
                class: Some(class),
            });
        }
    }
}

/// Runs of a QOS that neither count against guarantees nor borrow.
pub(super) fn is_outside_quota(state: &State, spec: &JobSpec) -> bool {
    state
        .policy
        .qos
        .get(&spec.qos)
        .is_some_and(|qos| qos.outside_quota)
}

/// When nobody is guaranteed anything any more, no run has a class; nor one whose QOS is outside of quotas now.
pub(super) fn declassify(tx: &mut Tx) {
    let state = &*tx.state;
    let quotas = state.policy.has_quotas();
    let is_outside = |run: &Run| {
        state
            .jobs
            .get(run.id.job)
            .is_some_and(|job| is_outside_quota(state, &job.spec))
    };
    let classed = state
        .runs
        .values()
        .filter(|run| run.class.is_some() && run.outcome.is_none());
    for run in classed
        .filter(|run| !quotas || is_outside(run))
        .map(|run| run.id)
        .collect::<Vec<_>>()
    {
        tx.emit(Event::RunClassed { run, class: None });
    }
}

/// Ends what still runs on nodes that were to be empty by now.
pub(super) fn empty_nodes(tx: &mut Tx) {
    let due = tx
        .state
        .watched_nodes()
        .filter(|node| node.empty_by.is_some_and(|at| at <= tx.now));
    let due: Vec<(NodeId, String)> = due
        .map(|node| {
            (
                node.id,
                node.drains
                    .first()
                    .map_or(String::new(), |mark| mark.owner.clone()),
            )
        })
        .collect();
    for (node, by) in due {
        for run in staying(tx.state, node) {
            let stop = order(tx, run, StopCause::Drained, &by);
            tx.emit(Event::RunStopping { run, stop });
            advance(tx, run);
        }
    }
}

/// When that is to be done next.
pub(super) fn next_emptying(state: &State) -> Option<Timestamp> {
    let nodes = state
        .watched_nodes()
        .filter_map(|node| Some((node.empty_by?, node.id)));
    nodes
        .filter(|(_, node)| !staying(state, *node).is_empty())
        .map(|(at, _)| at)
        .min()
}

/// Runs on a node that have not been told to stop.
fn staying(state: &State, node: NodeId) -> Vec<RunId> {
    let held = state
        .nodes
        .get(node)
        .into_iter()
        .flat_map(|node| &node.runs)
        .copied();
    held.filter(|run| {
        state
            .runs
            .get(*run)
            .is_some_and(|run| run.stop.is_none() && run.outcome.is_none())
    })
    .collect()
}

/// What must never be.
pub(super) fn check(state: &State, found: &mut Vec<String>) {
    let asked = state
        .runs
        .values()
        .filter_map(|run| Some((run.stop.as_ref()?.for_job?, run.id)));
    if asked.collect::<BTreeSet<_>>() != state.making_room {
        found.push("the index of who makes room is not that of the runs".into());
    }
    let since = state.policy_since.1;
    let quotas = state.policy.has_quotas();
    for run in state.runs.values() {
        if let Some(stop) = &run.stop
            && stop.why == StopCause::Preempted
            && (stop.for_job.is_none() || stop.mode.is_none())
        {
            found.push(format!("run {} is preempted for nobody", run.id));
        }
        let Some(job) = state
            .jobs
            .get(run.id.job)
            .filter(|_| run.placed > since && run.outcome.is_none())
        else {
            continue;
        };
        let outside = is_outside_quota(state, &job.spec);
        if run.class.is_some() && (!quotas || outside) {
            found.push(format!(
                "run {} is {:?} and there are no quotas for it",
                run.id, run.class
            ));
        }
        if run.class.is_none() && quotas && !outside {
            found.push(format!("run {} has no class and there are quotas", run.id));
        }
    }
}
