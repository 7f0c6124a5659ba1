//! Adoption: after a restore a node may run what the backup does not know. Such runs go on; their records
//! are made again from the launch orders that the node kept.
//!
//! Only a node whose fence is from before the restore is asked, and what it holds cannot be taken for
//! started now: the jobs are not requeued, for their scripts may be gone.

use super::SYSTEM;
use super::event::Event;
use super::handle::Tx;
use super::node_report::{take, take_inventory};
use gmodel::gpu_request::GpuAsk;
use gmodel::job::{CommonSpec, GpuScope, Launch, MemAsk, Surroundings};
use gmodel::launch_order::LaunchOrder;
use gmodel::node::Inventory;
use gmodel::run::{EndCause, NodeShare, RunEnd, RunPhase, RunReport, StopWhy};
use gmodel::{GpuGrant, GpuSet, JobSpec, JobState, NodeId, NodeLife, Request, RunId};
use std::sync::Arc;

/// Runs one node may bring along.
pub const MAX_ADOPTED: usize = 65_536;

pub(super) fn handle(
    tx: &mut Tx,
    id: NodeId,
    life: &NodeLife,
    inventory: Inventory,
    runs: Vec<RunReport>,
    orders: Vec<LaunchOrder>,
) {
    take_inventory(tx, id, inventory);
    take_back_unnamed(tx, id, &runs);
    for order in orders.into_iter().take(MAX_ADOPTED) {
        let Some(run) = order.run else { continue };
        if runs.iter().any(|report| report.run == run) && may_adopt(tx, id, run) {
            adopt(tx, id, life, run, &order);
        }
    }
    for report in runs {
        take(tx, id, report.run, report.phase);
    }
}

/// What the backup placed here and the node does not name was never started, or is long over: it goes
/// back to the queue at once, so that what it holds is free for what really runs.
fn take_back_unnamed(tx: &mut Tx, id: NodeId, runs: &[RunReport]) {
    let held: Vec<RunId> =
        tx.state.nodes.get(id).map_or(Vec::new(), |node| node.runs.iter().copied().collect());
    for run in held.into_iter().filter(|run| runs.iter().all(|report| report.run != *run)) {
        super::cancel::stop(tx, run, StopWhy::Requeued, SYSTEM);
        let end = RunEnd {
            cause: EndCause::Stopped,
            text: "unknown to its node after a restore".into(),
            ..RunEnd::default()
        };
        take(tx, id, run, RunPhase::Clean(end.into()));
    }
}

/// The run is none we know, and its job is unknown or still waiting for an attempt this high.
fn may_adopt(tx: &Tx, node: NodeId, run: RunId) -> bool {
    let state = &tx.state;
    match (state.runs.get(run), state.jobs.get(run.job)) {
        // Another node of the run brought it along.
        (Some(known), _) => known.outcome.is_none() && known.member(node).is_none(),
        (None, Some(job)) => {
            job.state == JobState::Pending && job.live.is_none() && job.attempts < run.attempt
        }
        (None, None) if state.arrays.contains(run.job) || state.array_of(run.job).is_some() => state
            .array_of(run.job)
            .is_some_and(|(array, position)| array.pending.contains(position)),
        (None, None) => run.job.0 < state.next_job,
    }
}

fn adopt(tx: &mut Tx, node: NodeId, life: &NodeLife, run: RunId, order: &LaunchOrder) {
    if !tx.state.jobs.contains(run.job)
        && let Some((array, position)) = tx.state.array_of(run.job).map(|(a, p)| (a.id, p))
    {
        tx.emit(Event::TaskSplit { array, position });
    }
    let known = tx.state.jobs.get(run.job).map(|job| job.spec.clone());
    let spec = known.unwrap_or_else(|| Arc::new(spec_of(order)));
    tx.emit(Event::RunAdopted {
        run,
        spec,
        share: share_of(tx, node, order),
        life: life.clone(),
        batch: order.node_index == 0,
        limit_secs: order.limit_secs,
        imex_channel: order.imex_channel,
        at: tx.now,
    });
}

/// What the order says the run holds here. GPUs are found by UUID: their slots may have changed.
fn share_of(tx: &Tx, id: NodeId, order: &LaunchOrder) -> NodeShare {
    let node = tx.state.nodes.get(id);
    let slot = |uuid: &str| {
        let gpus = node.into_iter().flat_map(|node| node.gpus.iter());
        gpus.into_iter().find(|gpu| gpu.info.uuid == uuid).map(|gpu| gpu.slot)
    };
    let mut grants: Vec<GpuGrant> = order
        .gpus
        .iter()
        .filter_map(|gpu| Some(GpuGrant { slot: slot(&gpu.uuid)?, part: gpu.part.clone() }))
        .collect();
    grants.sort();
    let here = order.nodes.get(order.node_index as usize);
    NodeShare {
        node: id,
        cpus: order.cpus,
        mem_bytes: order.mem_bytes,
        gpus: GpuSet(grants),
        tasks: here.map_or(1, |node| node.tasks),
    }
}

/// The request as far as the order still tells it.
fn spec_of(order: &LaunchOrder) -> JobSpec {
    let nodes = (order.nodes.len() as u32).max(1);
    let gpus = order.gpus.len() as u32;
    let around = Surroundings {
        work_dir: order.work_dir.clone(),
        submit_host: order.submit_host.clone(),
        stdout: order.stdout.clone(),
        stderr: order.stderr.clone(),
        stdin: order.stdin.clone(),
        umask: order.umask,
        ..Surroundings::default()
    };
    let common = CommonSpec {
        user: order.user.clone(),
        partition: order.partition.clone(),
        account: order.account.clone(),
        qos: order.qos.clone(),
        request: Request {
            nodes_min: nodes,
            nodes_max: nodes,
            ntasks: order.ntasks.max(1),
            cpus_per_task: Some(order.cpus_per_task.max(1)),
            mem: MemAsk::PerNode(order.mem_bytes),
            gpus: (gpus > 0).then(|| GpuAsk::whole(gpus)),
            gpu_scope: GpuScope::Node,
            ..Request::default()
        },
        time_limit_secs: order.limit_secs,
        requeue: Some(false),
        comment: "record made again after a restore".into(),
        ..CommonSpec::default()
    };
    JobSpec {
        name: order.job_name.clone(),
        launch: Launch { argv: order.argv.clone(), ..around.into() },
        common: common.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::{Actor, Command, Input, NodeReport, State, check, desired, handle};
    use gmodel::config::{ClusterConfig, Partition};
    use gmodel::launch_order::{OrderGpu, OrderNode};
    use gmodel::node::{GpuInfo, Role};
    use gmodel::{Fence, GpuPart, GpuSlot, JobId, Timestamp};

    const NODE: NodeId = NodeId(1);

    fn gpu(n: u32) -> GpuInfo {
        GpuInfo { uuid: format!("GPU-{n}"), gpu_type: "h100".into(), minor: n, ..GpuInfo::default() }
    }

    fn inventory() -> Inventory {
        let gpus = (0..2).map(gpu).collect();
        Inventory { cpus: 8, mem_bytes: 1 << 30, gpus, ..Inventory::default() }
    }

    fn life() -> NodeLife {
        NodeLife { boot: "b".into(), spool: "s".into() }
    }

    /// A restored controller that knows the node and nothing of its runs.
    fn restored() -> State {
        let mut state = State::from_rows(Default::default());
        let partitions = vec![Partition { name: "main".into(), ..Partition::default() }];
        let config = Arc::new(ClusterConfig { partitions, ..ClusterConfig::default() });
        give(&mut state, Input::Configure { config });
        let joined = crate::ctl::Event::NodeJoined {
            node: NODE,
            name: "node1".into(),
            role: Role::Compute,
            at: Timestamp(0),
        };
        crate::ctl::apply(&mut state, &joined);
        let actor = Actor { user: "root".into(), operator: true, ..Actor::default() };
        give(&mut state, Input::Command { actor, command: Command::Restore });
        state
    }

    fn give(state: &mut State, input: Input) {
        handle(state, &mut Vec::new(), input, Timestamp::from_secs(1000)).unwrap();
        assert_eq!(check(state), []);
    }

    fn order(run: RunId) -> LaunchOrder {
        LaunchOrder {
            run: Some(run),
            job_name: "train".into(),
            partition: "main".into(),
            nodes: vec![OrderNode { name: "node1".into(), cpus: 2, tasks: 1, gpus: 1 }],
            cpus: 2,
            // The slot is the old controller's; here the GPU has another.
            gpus: vec![OrderGpu {
                slot: GpuSlot(7),
                uuid: "GPU-1".into(),
                gpu_type: "h100".into(),
                part: GpuPart::Whole,
            }],
            limit_secs: Some(3600),
            ..LaunchOrder::default()
        }
    }

    fn bring(state: &mut State, run: RunId, phase: RunPhase) {
        let runs = vec![RunReport::new(run, phase)];
        let (life, inventory) = (life(), inventory());
        let orders = vec![order(run)];
        let report = NodeReport::Adopt {
            life: life.clone(),
            inventory: inventory.clone(),
            runs: runs.clone(),
            orders,
        };
        give(state, Input::Node { node: NODE, report });
        let fence = Fence { incarnation: 1, generation: 5 };
        let report = NodeReport::Hello { life, fence, inventory, runs };
        give(state, Input::Node { node: NODE, report });
    }

    #[test]
    fn a_run_the_backup_does_not_know_goes_on_with_its_gpu_and_ends_in_the_books() {
        let mut state = restored();
        let run = RunId::new(JobId(17), 1);
        bring(&mut state, run, RunPhase::Running { started: Timestamp::from_secs(990) });
        let job = state.jobs.get(run.job).unwrap();
        assert_eq!((job.state, &*job.spec.name), (JobState::Running, "train"));
        let node = state.nodes.get(NODE).unwrap();
        assert_eq!(state.free_on(node).gpu_milli, [1000, 0], "found by UUID, not by the old slot");
        assert_eq!(desired(&state, NODE).runs.len(), 1, "it is to go on");
        assert!(state.next_job > 17);

        let end = RunEnd { ended: Some(Timestamp::from_secs(999)), ..RunEnd::default() };
        let runs = vec![RunReport::new(run, RunPhase::Clean(end.into()))];
        give(&mut state, Input::Node { node: NODE, report: NodeReport::Runs { runs } });
        assert_eq!(state.jobs.get(run.job).unwrap().state, JobState::Completed);
        assert!(state.runs.is_empty());
    }

    #[test]
    fn a_job_that_the_backup_knows_as_waiting_takes_its_run_back() {
        let mut state = restored();
        let id = JobId(state.next_job);
        let actor = Actor { user: "ada".into(), uid: 1000, gid: 1000, ..Actor::default() };
        let mut spec = JobSpec::from(CommonSpec { partition: "main".into(), ..CommonSpec::default() });
        spec.launch.work_dir = "/home/ada".into();
        let command = Command::Submit { spec: Box::new(spec), client_key: None };
        give(&mut state, Input::Command { actor, command });
        bring(&mut state, RunId::new(id, 2), RunPhase::Running { started: Timestamp::from_secs(990) });
        let job = state.jobs.get(id).unwrap();
        assert_eq!((job.state, job.attempts, &*job.spec.user.name), (JobState::Running, 2, "ada"));
    }

    #[test]
    fn orders_for_runs_that_are_not_reported_or_already_known_make_nothing() {
        let mut state = restored();
        let report = NodeReport::Adopt {
            life: life(),
            inventory: inventory(),
            runs: Vec::new(),
            orders: vec![order(RunId::new(JobId(17), 1))],
        };
        give(&mut state, Input::Node { node: NODE, report });
        assert!(state.runs.is_empty() && state.jobs.is_empty());
    }
}
