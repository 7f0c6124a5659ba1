//! Opening a large hole: one-GPU runs that write checkpoints are started again elsewhere, where that starts a job.
//!
//! Only where the site says `consolidate`, only for the first that waits in a partition, and only with the proof: the job
//! fits without them, and each of them fits elsewhere at the same time.

use crate::cluster::timeline::Need;
use crate::job::job_class::JobClassId;
use crate::pass::Pass;
use crate::place::allowed::check_limits;
use crate::plan::Preempt;
use crate::preempt::holders::usable_nodes;
use crate::preempt::nomination::{add_preempts, free_for, nominate};
use crate::preempt::what_if::starts_without;
use crate::snapshot::{PendingJob, RunningRun, Snapshot};
use gmodel::policy::PreemptMode;
use gmodel::{GpuPart, Reason, ReasonCode, RunClass, RunId};
use gpolicy::limits::count;
use gpolicy::reserved_nodes::Claim;
use gpolicy::running_run::end_of;
use gpolicy::window::Window;
use std::collections::BTreeSet;

/// Runs that are moved for one job at most.
const MOST_MOVED: usize = 8;

/// Moves runs out of the way of a job of one node that waits for room.
pub(crate) fn consolidate_for(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
) -> Option<Reason> {
    let busy = !pass.preemption.leaving.runs.is_empty() || pass.preempts().next().is_some();
    if !pass.snapshot.config.scheduler.consolidate
        || busy
        || pass.job_class(job_class).alternatives.first()?.nodes != 1
    {
        return None;
    }
    let wanted = pass.job_class(job_class).alternatives[0].parts[0].least_gpus();
    let mut nodes: Vec<(usize, usize)> = Vec::new();
    for at in pass.job_class(job_class).candidates.up.ones() {
        let free = pass.world.cluster.state(at).free_gpus();
        let missing = wanted.saturating_sub(free);
        if (1..=MOST_MOVED).contains(&missing) && missing <= movable_on(pass, at).len() {
            nodes.push((missing, at));
        }
    }
    nodes.sort_unstable();
    for (missing, at) in nodes.into_iter().take(MOST_MOVED) {
        let moved: Vec<&RunningRun> = movable_on(pass, at).into_iter().take(missing).collect();
        let gone: BTreeSet<RunId> = moved.iter().map(|run| run.run).collect();
        if fit_elsewhere(pass, &moved, at)
            && let Some(there) = starts_without(pass, job, job_class, &gone)
        {
            let runs = moved.len() as u64;
            let borrows = matches!(
                check_limits(pass, job, &pass.job_class(job_class).alternatives[0].take),
                Ok(Some(RunClass::Borrowed))
            );
            add_preempts(
                pass,
                job,
                moved
                    .into_iter()
                    .map(|run| preempt(run, job, borrows, pass.snapshot.now)),
            );
            let text = format!(
                "{} of one GPU {} elsewhere to make room for it",
                count(runs, "run"),
                if runs == 1 { "moves" } else { "move" }
            );
            free_for(pass, job, &there);
            nominate(pass, job);
            return Some(Reason::new(ReasonCode::Preempting, text));
        }
    }
    None
}

/// One-GPU runs on a node that can be started again from a checkpoint, the least loss first.
fn movable_on<'a>(pass: &Pass<'a>, at: usize) -> Vec<&'a RunningRun> {
    let snapshot: &'a Snapshot = pass.snapshot;
    let config = &snapshot.config.scheduler.preempt;
    let of_run = |run: RunId| {
        let at = snapshot
            .running
            .binary_search_by_key(&run, |one| one.run)
            .ok()?;
        let run = &snapshot.running[at];
        let one_gpu = run.shares.len() == 1
            && run.shares[0].gpus.len() == 1
            && run.shares[0].gpus.milli() == 1000;
        let checkpoints = run.spec.checkpoint.is_some() && run.may_requeue;
        let ran = snapshot.now.since_secs(run.started?) >= i64::from(config.min_run_secs);
        // One that was moved before has moved enough, and one of a reservation has its place.
        let may_leave = run.preempted.is_none() && run.spec.reservation.is_none();
        (one_gpu && checkpoints && ran && may_leave && run.stops_by.is_none() && !run.charged)
            .then_some(run)
    };
    let mut runs: Vec<&'a RunningRun> = pass
        .world
        .cluster
        .held_on(at)
        .filter_map(|(run, ..)| of_run(run))
        .collect();
    runs.sort_by_key(|run| (lost_secs(run, snapshot.now), run.run));
    runs
}

/// Whether all of these have room on other nodes that their jobs take, together and now.
fn fit_elsewhere(pass: &Pass, moved: &[&RunningRun], from: usize) -> bool {
    let cluster = &pass.world.cluster;
    let now = pass.snapshot.now;
    let mut rooms: Vec<Option<crate::cluster::node_state::NodeState>> =
        vec![None; cluster.nodes.len()];
    moved.iter().all(|run| {
        let share = &run.shares[0];
        let kind = pass.snapshot.nodes[from]
            .gpus
            .get(usize::from(share.gpus.0[0].slot.0))
            .map(|gpu| &gpu.info.gpu_type);
        let takes = usable_nodes(pass.snapshot, &run.spec);
        let memory_mib = run.spec.request.gpu_mem_mib.unwrap_or(0);
        let end = end_of(run).max(now.plus_secs(1));
        let span = Window { from: now, to: end };
        (0..cluster.nodes.len())
            .filter(|at| *at != from && cluster.nodes[*at].up)
            .any(|at| {
                let (node, track) = (&pass.snapshot.nodes[at], &cluster.nodes[at]);
                let groups =
                    cluster.node_classes.list[track.node_class as usize].kinds_where(|group| {
                        let is_same =
                            kind.is_some_and(|kind| kind.eq_ignore_ascii_case(&group.gpu_type));
                        is_same && group.part == GpuPart::Whole && group.memory_mib >= memory_mib
                    });
                let need = Need {
                    cpus: share.cpus,
                    mem_bytes: share.mem_bytes,
                    gpus: 1,
                    groups,
                    milli: 0,
                    tenant: None,
                    one_group: false,
                    exclusive: false,
                };
                let open = groups != 0
                    && takes(node)
                    && pass.memory.windows.open(at, Claim::None, span, 0)
                    && rooms[at]
                        .as_ref()
                        .unwrap_or(cluster.state(at))
                        .fits(&need, now, end);
                open && rooms[at]
                    .get_or_insert_with(|| cluster.state(at).clone())
                    .hold(&need, now, end)
                    .is_some()
            })
    })
}

fn lost_secs(run: &RunningRun, now: gmodel::Timestamp) -> u64 {
    let since = run
        .started
        .map_or(now, |started| run.marked.unwrap_or(started).max(started));
    now.since_secs(since) as u64
}

fn preempt(run: &RunningRun, job: &PendingJob, borrows: bool, now: gmodel::Timestamp) -> Preempt {
    Preempt {
        run: run.run,
        for_job: job.id,
        mode: PreemptMode::Requeue,
        lost_gpu_secs: lost_secs(run, now),
        why: format!(
            "it has room elsewhere, and where it is job {} starts without it (consolidate)",
            job.id
        ),
        heirs: Vec::new(),
        for_borrower: borrows,
    }
}
