//! Steps: tasks started inside an allocation by `grun`. The core counts them and lays out their ranks;
//! the order itself travels outside the desired state, for a step belongs to the grun that waits for it.

use super::command::{Actor, Refusal, RefusalCode, Reply, StepNode, Target};
use super::event::Event;
use super::handle::Tx;
use super::state::State;
use super::targets::{Found, conflict, find, shown};
use gmodel::{ExitCode, JobId};
use gmodel::run::NodeShare;

/// Tasks one step may have.
pub const MAX_STEP_TASKS: u32 = 65_536;

pub(super) fn start(
    tx: &mut Tx,
    actor: &Actor,
    target: Target,
    nodes: Option<u32>,
    ntasks: Option<u32>,
    name: String,
) -> Result<Reply, Refusal> {
    let not_running = || {
        conflict(format!("job {} is not running: steps need its allocation.", shown(target)))
    };
    let id = job_of(tx.state, actor, target)?.ok_or_else(not_running)?;
    let live = tx.state.jobs.get(id).and_then(|job| job.live_run());
    let run = live.and_then(|run| tx.state.runs.get(run)).ok_or_else(not_running)?;
    // A script may be quicker than the reports of its nodes: they hold the step until they have started.
    if run.stop.is_some() || run.outcome.is_some() || run.go.is_none() {
        return Err(not_running());
    }
    let tasks = layout(&run.allocation, nodes, ntasks)?;
    let mut next = 0;
    let layout = run
        .allocation
        .iter()
        .zip(&tasks)
        .map(|(share, count)| {
            let ranks = (next..next + count).collect();
            next += count;
            let name = tx.state.nodes.get(share.node).map_or(String::new(), |n| n.name.clone());
            StepNode { node: share.node, name, ranks }
        })
        .collect();
    let (run, step) = (run.id, run.steps);
    let name = name.chars().take(255).collect();
    tx.emit(Event::StepStarted { run, step, name, tasks: next, nodes: tasks.len() as u32, at: tx.now });
    Ok(Reply::Step { run, step, layout })
}

pub(super) fn end(tx: &mut Tx, actor: &Actor, target: Target, step: u32, exit: ExitCode) -> Result<Reply, Refusal> {
    let id = job_of(tx.state, actor, target)?.ok_or_else(|| conflict(format!("job {} is not running.", shown(target))))?;
    let run = tx.state.jobs.get(id).and_then(|job| job.live_run()).and_then(|run| tx.state.runs.get(run));
    let Some(run) = run.filter(|run| step < run.steps) else {
        return Err(conflict(format!("job {} has no step {step}.", shown(target))));
    };
    let run = run.id;
    tx.emit(Event::StepEnded { run, step, exit, at: tx.now });
    Ok(Reply::Done)
}

/// The job whose allocation is meant. An array's first task has the array's own number, and arrays run no steps.
fn job_of(state: &State, actor: &Actor, target: Target) -> Result<Option<JobId>, Refusal> {
    Ok(match find(state, actor, target)? {
        Found::Job(id) | Found::Array(id) => Some(id),
        Found::Untouched { .. } | Found::Over => None,
    })
}

/// Tasks on each of the first nodes of the allocation: the job's own layout when nothing is asked, else
/// even blocks.
fn layout(
    allocation: &[NodeShare],
    nodes: Option<u32>,
    ntasks: Option<u32>,
) -> Result<Vec<u32>, Refusal> {
    let invalid = |text: String| Err(Refusal::new(RefusalCode::Invalid, text));
    let held = allocation.len() as u32;
    let wanted = nodes.unwrap_or_else(|| ntasks.unwrap_or(held).clamp(1, held));
    if wanted == 0 || wanted > held {
        return invalid(format!("-N {wanted}: the job holds {held} node(s)."));
    }
    let Some(total) = ntasks else {
        let own = allocation.iter().take(wanted as usize).map(|share| share.tasks.max(1));
        return Ok(own.collect());
    };
    if total < wanted || total > MAX_STEP_TASKS {
        return invalid(format!(
            "-n {total} on {wanted} node(s): ask for {wanted} to {MAX_STEP_TASKS} tasks."
        ));
    }
    Ok((0..wanted).map(|at| total / wanted + u32::from(at < total % wanted)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::{GpuSet, NodeId};

    fn share(node: u32, tasks: u32) -> NodeShare {
        NodeShare { node: NodeId(node), cpus: 4, mem_bytes: 0, gpus: GpuSet::default(), tasks }
    }

    #[test]
    fn tasks_are_dealt_in_blocks_over_the_nodes_asked_for() {
        let held = [share(1, 3), share(2, 1)];
        assert_eq!(layout(&held, None, None).unwrap(), [3, 1]);
        assert_eq!(layout(&held, None, Some(1)).unwrap(), [1]);
        assert_eq!(layout(&held, None, Some(5)).unwrap(), [3, 2]);
        assert_eq!(layout(&held, Some(1), Some(3)).unwrap(), [3]);
        assert_eq!(layout(&held, Some(1), None).unwrap(), [3]);
    }

    #[test]
    fn more_nodes_than_held_and_fewer_tasks_than_nodes_are_refused() {
        let held = [share(1, 1), share(2, 1)];
        assert_eq!(layout(&held, Some(3), None).unwrap_err().text, "-N 3: the job holds 2 node(s).");
        assert!(layout(&held, Some(2), Some(1)).unwrap_err().text.contains("ask for 2 to"));
        assert!(layout(&held, Some(0), None).is_err());
    }
}
