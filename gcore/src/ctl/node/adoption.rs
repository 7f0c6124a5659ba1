//! Adoption: after a restore a node may run jobs that the backup lacks. Such runs go on; their records are
//! made again from the launch orders that the node kept.
//!
//! Only in the adoption window, which an operator's restore opens, each node once; and only runs whose order
//! bears the controller's seal and is newer than the backup. Adopted jobs are not requeued, for their scripts
//! may be gone. An adopted run does not authorise its node to speak for its user.

use crate::ctl::command::{Actor, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::node::inventory::take_inventory;
use crate::ctl::owner::SYSTEM;
use crate::ctl::run::gang::stop;
use crate::ctl::run::report::take;
use crate::ctl::state::{AdoptionWindow, State};
use crate::ctl::tx::{Tx, operator_only};
use gmodel::gpu_request::GpuRequest;
use gmodel::job::{CommonSpec, GpuScope, Launch, LaunchContext, MemRequest};
use gmodel::launch_order::LaunchOrder;
use gmodel::node::Inventory;
use gmodel::run::{EndCause, NodeShare, RunEnd, RunPhase, RunReport, StopCause};
use gmodel::{GpuGrant, GpuSet, JobSpec, JobState, NodeId, NodeLife, Request, RunId};
use std::sync::Arc;

/// Ids skipped after a restore, so that none given out since the backup is given again.
pub const RESTORE_GAP: u64 = 1_000_000;

/// Most runs that one node may bring.
pub const MAX_ADOPTED: usize = 65_536;
/// Length of the adoption window: a node away for a repair is back within a week, and older runs are over.
const WINDOW_SECS: i64 = 7 * 24 * 3600;
/// Most restores that may be forgotten: a node's incarnation may be ahead by so many in the window.
const MAX_INCARNATIONS_AHEAD: u64 = 1000;

/// Raises incarnation and ids above what this database and the replaced one know, and opens the window.
pub(crate) fn restore(
    tx: &mut Tx,
    actor: &Actor,
    incarnation: u64,
    next_job: u64,
) -> Result<Reply, Refusal> {
    operator_only(actor, "restoring a backup")?;
    let from = tx.state.newest_fence();
    let incarnation = tx.state.incarnation.max(incarnation).saturating_add(1);
    let next_job = tx.state.next_job.saturating_add(RESTORE_GAP).max(next_job);
    let max_incarnation = incarnation.saturating_add(MAX_INCARNATIONS_AHEAD);
    let window = AdoptionWindow {
        number: 0,
        from,
        max_incarnation,
        first_job: next_job,
        until: tx.now.plus_secs(WINDOW_SECS),
    };
    tx.emit(Event::Restored {
        incarnation,
        next_job,
        opens: Some(window),
        at: tx.now,
    });
    Ok(Reply::Done)
}

pub(crate) fn handle(
    tx: &mut Tx,
    id: NodeId,
    life: &NodeLife,
    inventory: Inventory,
    runs: Vec<RunReport>,
    orders: Vec<LaunchOrder>,
) {
    let Some(window) = tx.state.adoption.clone() else {
        return;
    };
    if !tx
        .node(id)
        .is_some_and(|node| tx.state.adopts_from(node, tx.now))
    {
        return;
    }
    take_inventory(tx, id, inventory);
    take_back_unnamed(tx, id, &runs);
    for order in orders.into_iter().take(MAX_ADOPTED) {
        let Some(run) = order
            .run
            .filter(|run| run.attempt > 0 && order.made_at > window.from)
        else {
            continue;
        };
        if runs.iter().any(|report| report.run == run) {
            skip_id_in_use(tx, run);
            if may_adopt(tx, id, run, &order) {
                adopt(tx, id, life, run, &order);
            }
        }
    }
    for report in runs {
        take(tx, id, report.run, report.phase);
    }
}

/// An id that a node uses and the backup lacks is not given again.
fn skip_id_in_use(tx: &mut Tx, run: RunId) {
    let next = tx.state.next_job;
    if run.job.0 >= next && run.job.0 - next < RESTORE_GAP {
        let incarnation = tx.state.incarnation;
        tx.emit(Event::Restored {
            incarnation,
            next_job: run.job.0 + 1,
            opens: None,
            at: tx.now,
        });
    }
}

/// Runs that the backup placed here and the node does not name never started, or are long over: they are
/// requeued at once, so that their resources are free.
fn take_back_unnamed(tx: &mut Tx, id: NodeId, runs: &[RunReport]) {
    let mut held = tx.state.runs_on(id);
    held.retain(|run| runs.iter().all(|report| report.run != *run));
    for run in held {
        stop(tx, run, StopCause::Requeued, SYSTEM);
        let end = RunEnd {
            cause: EndCause::Stopped,
            text: "unknown to its node after a restore".into(),
            ..RunEnd::default()
        };
        take(tx, id, run, RunPhase::Clean(end.into()));
    }
}

/// The run is unknown, and its job is unknown or still pending with fewer attempts.
fn may_adopt(tx: &Tx, node: NodeId, run: RunId, order: &LaunchOrder) -> bool {
    let state = &tx.state;
    match (state.run(run), state.job(run.job)) {
        // Another node of the run brought it.
        (Some(known), _) => {
            known.adopted && known.outcome.is_none() && known.member(node).is_none()
        }
        (None, Some(job)) => {
            let same_user =
                (&job.spec.user.name, job.spec.user.uid) == (&order.user.name, order.user.uid);
            same_user
                && job.state == JobState::Pending
                && job.live.is_none()
                && job.attempts < run.attempt
        }
        (None, None) if state.arrays.contains(run.job) || state.array_of(run.job).is_some() => {
            state.array_of(run.job).is_some_and(|(array, position)| {
                array.spec.user.uid == order.user.uid && array.pending.contains(position)
            })
        }
        (None, None) => run.job.0 < state.next_job,
    }
}

fn adopt(tx: &mut Tx, node: NodeId, life: &NodeLife, run: RunId, order: &LaunchOrder) {
    if !tx.state.jobs.contains(run.job)
        && let Some((array, position)) = tx.state.array_of(run.job).map(|(a, p)| (a.id, p))
    {
        tx.emit(Event::TaskSplit { array, position });
    }
    let known = tx.job(run.job).map(|job| job.spec.clone());
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

/// The run's share on this node, as its order says. GPUs are found by UUID: their slots may have changed.
fn share_of(tx: &Tx, id: NodeId, order: &LaunchOrder) -> NodeShare {
    let node = tx.node(id);
    let slot = |uuid: &str| {
        let gpus = node.into_iter().flat_map(|node| node.gpus.iter());
        gpus.into_iter()
            .find(|gpu| gpu.info.uuid == uuid)
            .map(|gpu| gpu.slot)
    };
    let mut grants: Vec<GpuGrant> = order
        .gpus
        .iter()
        .filter_map(|gpu| {
            Some(GpuGrant {
                slot: slot(&gpu.uuid)?,
                part: gpu.part.clone(),
            })
        })
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

/// The request, as far as the order has it.
fn spec_of(order: &LaunchOrder) -> JobSpec {
    let nodes = (order.nodes.len() as u32).max(1);
    let gpus = order.gpus.len() as u32;
    let around = LaunchContext {
        work_dir: order.work_dir.clone(),
        submit_host: order.submit_host.clone(),
        stdout: order.stdout.clone(),
        stderr: order.stderr.clone(),
        stdin: order.stdin.clone(),
        umask: order.umask,
        ..LaunchContext::default()
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
            mem: MemRequest::PerNode(order.mem_bytes),
            gpus: (gpus > 0).then(|| GpuRequest::whole(gpus)),
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
        launch: Launch {
            argv: order.argv.clone(),
            ..around.into()
        },
        common: common.into(),
    }
}

pub(crate) fn check(state: &State, found: &mut Vec<String>) {
    let newest = state.adoption.as_ref().map_or(0, |window| window.number);
    for node in state.nodes.values().filter(|node| node.adopted_in > newest) {
        found.push(format!(
            "node {} was in adoption window {}, and the newest is {newest}",
            node.name, node.adopted_in
        ));
    }
    if let Some(window) = state.adoption.as_ref()
        && (window.from >= state.newest_fence() || window.number > state.seq.0)
    {
        found.push(format!(
            "an adoption window opened at order {:?} and the newest is {:?}",
            window.from,
            state.newest_fence()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::{Command, Input, NodeReport, check, desired, handle};
    use gmodel::config::{ClusterConfig, Partition};
    use gmodel::job::UserRef;
    use gmodel::launch_order::{OrderGpu, OrderNode};
    use gmodel::node::{GpuInfo, Role};
    use gmodel::{Fence, GpuPart, GpuSlot, JobId, Timestamp};

    const NODE: NodeId = NodeId(1);

    fn gpu(n: u32) -> GpuInfo {
        GpuInfo {
            uuid: format!("GPU-{n}"),
            gpu_type: "h100".into(),
            minor: n,
            ..GpuInfo::default()
        }
    }

    fn inventory() -> Inventory {
        let gpus = (0..2).map(gpu).collect();
        Inventory {
            cpus: 8,
            mem_bytes: 1 << 30,
            gpus,
            ..Inventory::default()
        }
    }

    fn life() -> NodeLife {
        NodeLife {
            boot: "b".into(),
            spool: "s".into(),
        }
    }

    /// A restored controller that knows the node and none of its runs.
    fn restored() -> State {
        let mut state = joined();
        let actor = Actor {
            user: "root".into(),
            operator: true,
            ..Actor::default()
        };
        give(
            &mut state,
            Input::Command {
                actor,
                command: Command::Restore {
                    incarnation: 0,
                    next_job: 0,
                },
            },
        );
        state
    }

    /// A controller that knows the node.
    fn joined() -> State {
        let mut state = State::from_rows(Default::default());
        let partitions = vec![Partition {
            name: "main".into(),
            ..Partition::default()
        }];
        let config = Arc::new(ClusterConfig {
            partitions,
            ..ClusterConfig::default()
        });
        give(&mut state, Input::Configure { config });
        let joined = crate::ctl::Event::NodeJoined {
            node: NODE,
            name: "node1".into(),
            role: Role::Compute,
            at: Timestamp(0),
        };
        crate::ctl::apply(&mut state, &joined);
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
            user: UserRef {
                name: "ada".into(),
                uid: 1000,
                gid: 1000,
            },
            partition: "main".into(),
            nodes: vec![OrderNode {
                name: "node1".into(),
                cpus: 2,
                tasks: 1,
                gpus: 1,
            }],
            cpus: 2,
            // The slot is the old controller's; here the GPU has another.
            gpus: vec![OrderGpu {
                slot: GpuSlot(7),
                uuid: "GPU-1".into(),
                gpu_type: "h100".into(),
                part: GpuPart::Whole,
            }],
            limit_secs: Some(3600),
            made_at: Fence {
                incarnation: 1,
                generation: 4,
            },
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
        let fence = Fence {
            incarnation: 1,
            generation: 5,
        };
        let report = NodeReport::Hello {
            life,
            fence,
            inventory,
            runs,
        };
        give(state, Input::Node { node: NODE, report });
    }

    #[test]
    fn a_run_the_backup_does_not_know_goes_on_with_its_gpu_and_ends_in_the_books() {
        let mut state = restored();
        let run = RunId::new(JobId(17), 1);
        bring(
            &mut state,
            run,
            RunPhase::Running {
                started: Timestamp::from_secs(990),
            },
        );
        let job = state.job(run.job).unwrap();
        assert_eq!((job.state, &*job.spec.name), (JobState::Running, "train"));
        let node = state.node(NODE).unwrap();
        assert_eq!(
            state.free_on(node).gpu_milli,
            [1000, 0],
            "found by UUID, not by the old slot"
        );
        assert_eq!(desired(&state, NODE).runs.len(), 1, "it is to go on");
        assert!(state.next_job > 17);

        let end = RunEnd {
            ended: Some(Timestamp::from_secs(999)),
            ..RunEnd::default()
        };
        let runs = vec![RunReport::new(run, RunPhase::Clean(end.into()))];
        give(
            &mut state,
            Input::Node {
                node: NODE,
                report: NodeReport::Runs { runs },
            },
        );
        assert_eq!(state.job(run.job).unwrap().state, JobState::Completed);
        assert!(state.runs.is_empty());
    }

    #[test]
    fn a_job_that_the_backup_knows_as_waiting_takes_its_run_back() {
        let mut state = restored();
        let id = JobId(state.next_job);
        let actor = Actor {
            user: "ada".into(),
            uid: 1000,
            gid: 1000,
            ..Actor::default()
        };
        let mut spec = JobSpec::from(CommonSpec {
            partition: "main".into(),
            ..CommonSpec::default()
        });
        spec.launch.work_dir = "/home/ada".into();
        let command = Command::Submit {
            spec: Box::new(spec),
            client_key: None,
        };
        give(&mut state, Input::Command { actor, command });
        bring(
            &mut state,
            RunId::new(id, 2),
            RunPhase::Running {
                started: Timestamp::from_secs(990),
            },
        );
        let job = state.job(id).unwrap();
        assert_eq!(
            (job.state, job.attempts, &*job.spec.user.name),
            (JobState::Running, 2, "ada")
        );
    }

    #[test]
    fn outside_of_a_window_nothing_a_node_says_makes_a_run_or_moves_a_counter() {
        // Without a restore, a node claims a fence from the future and runs without orders.
        let mut state = joined();
        let before = (state.incarnation, state.next_job);
        let run = RunId::new(JobId(17), 1);
        let forged = |state: &mut State, fence: Fence| {
            let runs = vec![RunReport::new(
                run,
                RunPhase::Running {
                    started: Timestamp::from_secs(990),
                },
            )];
            let report = NodeReport::Adopt {
                life: life(),
                inventory: inventory(),
                runs: runs.clone(),
                orders: vec![order(run)],
            };
            give(state, Input::Node { node: NODE, report });
            give(
                state,
                Input::Node {
                    node: NODE,
                    report: NodeReport::Hello {
                        life: life(),
                        fence,
                        inventory: inventory(),
                        runs,
                    },
                },
            );
        };
        for fence in [
            Fence {
                incarnation: 1,
                generation: 1 << 40,
            },
            Fence {
                incarnation: 500,
                generation: 1,
            },
            Fence {
                incarnation: u64::MAX,
                generation: u64::MAX,
            },
        ] {
            forged(&mut state, fence);
            assert!(state.jobs.is_empty() && state.runs.is_empty());
            assert_eq!((state.incarnation, state.next_job), before, "{fence:?}");
            let node = state.node(NODE).unwrap();
            assert!(
                !node.is_available()
                    && node.drains.len() == 1
                    && node.drains[0].reason.contains("gpuctld restore --from"),
                "{:?}",
                node.drains
            );
            let obeyed = NodeReport::Obeyed {
                fence: Fence {
                    incarnation: 1,
                    generation: u64::MAX,
                },
            };
            give(
                &mut state,
                Input::Node {
                    node: NODE,
                    report: obeyed,
                },
            );
            assert!(state.node(NODE).unwrap().obeyed <= state.seq.0);
        }
        // With a fence that was given it works again.
        let fence = state.newest_fence();
        forged(&mut state, fence);
        assert!(state.node(NODE).unwrap().is_available());
        assert_eq!((state.runs.len(), state.next_job), (0, before.1));
    }

    #[test]
    fn a_window_is_open_to_each_node_once_for_newer_orders_and_not_for_ever() {
        let run = RunId::new(JobId(17), 1);
        let running = || RunPhase::Running {
            started: Timestamp::from_secs(990),
        };
        // Each node once.
        let mut state = restored();
        let fence = Fence {
            incarnation: 1,
            generation: 5,
        };
        let hello = NodeReport::Hello {
            life: life(),
            fence,
            inventory: inventory(),
            runs: Vec::new(),
        };
        give(
            &mut state,
            Input::Node {
                node: NODE,
                report: hello,
            },
        );
        bring(&mut state, run, running());
        assert!(
            state.runs.is_empty(),
            "it said hello before, without the run"
        );
        // A run that the backup would have if it had not been over by then.
        let mut state = restored();
        let from = state.adoption.as_ref().unwrap().from;
        let runs = vec![RunReport::new(run, running())];
        let old = LaunchOrder {
            made_at: from,
            ..order(run)
        };
        let report = NodeReport::Adopt {
            life: life(),
            inventory: inventory(),
            runs,
            orders: vec![old],
        };
        give(&mut state, Input::Node { node: NODE, report });
        assert!(state.runs.is_empty() && state.jobs.is_empty());
        // A week later.
        let mut state = restored();
        let late = Timestamp::from_secs(1000 + WINDOW_SECS);
        let runs = vec![RunReport::new(run, running())];
        let report = NodeReport::Adopt {
            life: life(),
            inventory: inventory(),
            runs,
            orders: vec![order(run)],
        };
        handle(
            &mut state,
            &mut Vec::new(),
            Input::Node { node: NODE, report },
            late,
        )
        .unwrap();
        assert!(state.runs.is_empty());
        // The job of another user of that id.
        let mut state = restored();
        let id = JobId(state.next_job);
        let actor = Actor {
            user: "bob".into(),
            uid: 1001,
            gid: 1001,
            ..Actor::default()
        };
        let mut spec = JobSpec::from(CommonSpec {
            partition: "main".into(),
            ..CommonSpec::default()
        });
        spec.launch.work_dir = "/home/bob".into();
        give(
            &mut state,
            Input::Command {
                actor,
                command: Command::Submit {
                    spec: Box::new(spec),
                    client_key: None,
                },
            },
        );
        bring(&mut state, RunId::new(id, 2), running());
        assert_eq!(state.job(id).unwrap().state, JobState::Pending);
    }

    #[test]
    fn in_a_window_a_fence_ahead_is_outgrown_within_bounds_and_ids_only_follow_sealed_runs() {
        let mut state = restored();
        let (incarnation, next_job) = (state.incarnation, state.next_job);
        let runs = vec![RunReport::new(
            RunId::new(JobId(next_job + 5), 1),
            RunPhase::Accepted,
        )];
        let hello = |incarnation: u64| NodeReport::Hello {
            life: life(),
            fence: Fence {
                incarnation,
                generation: 1,
            },
            inventory: inventory(),
            runs: runs.clone(),
        };
        give(
            &mut state,
            Input::Node {
                node: NODE,
                report: hello(incarnation + 1000),
            },
        );
        assert_eq!(
            (state.incarnation, state.next_job),
            (incarnation, next_job),
            "beyond what restores can have made"
        );
        assert!(!state.node(NODE).unwrap().is_available());
        let mut state = restored();
        give(
            &mut state,
            Input::Node {
                node: NODE,
                report: hello(incarnation + 3),
            },
        );
        assert_eq!(
            (state.incarnation, state.next_job),
            (incarnation + 4, next_job)
        );
        let mut state = restored();
        bring(
            &mut state,
            RunId::new(JobId(next_job + 5), 1),
            RunPhase::Accepted,
        );
        assert_eq!(state.next_job, next_job + 6, "its order bears the seal");
    }

    #[test]
    fn jobs_submitted_after_a_restore_begin_with_their_first_attempt() {
        let mut state = restored();
        give(
            &mut state,
            Input::Node {
                node: NODE,
                report: NodeReport::Hello {
                    life: life(),
                    fence: Fence::default(),
                    inventory: inventory(),
                    runs: Vec::new(),
                },
            },
        );
        let actor = Actor {
            user: "ada".into(),
            uid: 1000,
            gid: 1000,
            ..Actor::default()
        };
        let mut spec = JobSpec::from(CommonSpec {
            partition: "main".into(),
            ..CommonSpec::default()
        });
        spec.launch.work_dir = "/home/ada".into();
        let id = JobId(state.next_job);
        give(
            &mut state,
            Input::Command {
                actor,
                command: Command::Submit {
                    spec: Box::new(spec),
                    client_key: None,
                },
            },
        );
        let share = NodeShare {
            node: NODE,
            cpus: 1,
            mem_bytes: 1,
            gpus: GpuSet::default(),
            tasks: 1,
        };
        let start = gsched::Start {
            job: id,
            allocation: vec![share],
            partition: None,
            limit_secs: None,
            class: None,
        };
        let plan = gsched::Plan {
            made_from: state.seq,
            starts: vec![start],
            ..gsched::Plan::default()
        };
        give(&mut state, Input::Plan { plan });
        let job = state.job(id).unwrap();
        assert_eq!(
            (job.live_run(), job.restarts()),
            (Some(RunId::new(id, 1)), 0)
        );
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
