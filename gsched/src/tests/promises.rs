//! What holds for every plan: exact GPUs, nothing given twice, all or nothing, a reason for all others, and no
//! delay of the first that waits.

use super::{NOW, job, node, picture, some_reservations};
use crate::{Plan, RunningRun, Snapshot, WorkBudget, plan};
use gmodel::config::{ClusterConfig, Partition};
use gmodel::run::NodeShare;
use gmodel::{GpuSet, GpuSlot, JobId, NodeId, ReasonCode, RunId, Timestamp};
use gpolicy::feasibility::demand::Demand;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Clone, Debug)]
struct Ask {
    gpus: u32,
    nodes: u32,
    cpus: u32,
    secs: Option<u32>,
    exclusive: bool,
    array: u32,
}

fn ask() -> impl Strategy<Value = Ask> {
    (
        0u32..9,
        1u32..4,
        1u32..20,
        prop::option::weighted(0.9, 10u32..2000),
        prop::bool::weighted(0.1),
        0u32..6,
    )
        .prop_map(|(gpus, nodes, cpus, secs, exclusive, array)| Ask {
            gpus,
            nodes,
            cpus,
            secs,
            exclusive,
            array: array.saturating_sub(3),
        })
}

/// Nodes with some GPUs taken by runs with an end, and a queue.
pub(super) fn cluster() -> impl Strategy<Value = Snapshot> {
    let nodes = prop::collection::vec(
        (1u32..9, prop::collection::vec((0u16..8, 1i64..3000), 0..4)),
        1..5,
    );
    (
        nodes,
        prop::collection::vec(ask(), 1..12),
        some_reservations(),
    )
        .prop_map(|(nodes, asks, backfill)| {
            let main = Partition {
                name: "main".into(),
                is_default: true,
                ..Partition::default()
            };
            let mut config = ClusterConfig {
                partitions: vec![main],
                ..ClusterConfig::default()
            };
            config.scheduler.backfill = backfill;
            let mut snapshot = Snapshot {
                now: NOW,
                config: Arc::new(config),
                ..Snapshot::default()
            };
            for (at, (gpus, runs)) in nodes.into_iter().enumerate() {
                let id = NodeId(at as u32 + 1);
                let (name, kind) = (format!("n{id}"), format!("h100:{gpus}"));
                let mut one = node(id, &[&name, &kind, "32c"]);
                let mut taken = BTreeSet::new();
                for (slot, left) in runs {
                    if u32::from(slot) < gpus && taken.insert(slot) {
                        let gpus = GpuSet::whole([GpuSlot(slot)]);
                        let share = NodeShare {
                            node: id,
                            cpus: 4,
                            mem_bytes: 1 << 30,
                            gpus,
                            tasks: 1,
                        };
                        one.take(&share);
                        let run = RunId::new(JobId(1000 + u64::from(slot) + 10 * at as u64), 1);
                        let ends_by = Some(NOW.plus_secs(left));
                        snapshot.running.push(RunningRun::new(
                            run,
                            Arc::default(),
                            vec![share],
                            ends_by,
                        ));
                    }
                }
                snapshot.nodes.push(one);
            }
            for (at, ask) in asks.iter().enumerate() {
                let mut words = vec![
                    format!("gpn={}", ask.gpus),
                    format!("nodes={}", ask.nodes),
                    format!("cpus={}", ask.cpus),
                ];
                words.extend(ask.secs.map(|secs| format!("time={secs}")));
                words.extend(ask.exclusive.then(|| "exclusive".to_owned()));
                words.extend((ask.array > 0).then(|| format!("array={}", ask.array)));
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                snapshot
                    .pending
                    .push(job(JobId(10 + 10 * at as u64), &words));
            }
            snapshot
        })
}

/// Nodes of CPUs alone, some taken by runs of several, and a queue of jobs of several nodes.
pub(super) fn cpus() -> impl Strategy<Value = Snapshot> {
    let runs = prop::collection::vec((0usize..12, 1usize..6, 1u32..17, 1i64..3000), 0..8);
    let asks = prop::collection::vec((1u32..9, 1u32..17, 10u32..2000), 1..12);
    (4usize..13, runs, asks, some_reservations()).prop_map(|(nodes, runs, asks, backfill)| {
        let main = Partition {
            name: "main".into(),
            is_default: true,
            ..Partition::default()
        };
        let mut config = ClusterConfig {
            partitions: vec![main],
            ..ClusterConfig::default()
        };
        config.scheduler.backfill = backfill;
        let mut snapshot = Snapshot {
            now: NOW,
            config: Arc::new(config),
            ..Snapshot::default()
        };
        snapshot
            .nodes
            .extend((1..=nodes).map(|id| node(NodeId(id as u32), &[&format!("n{id}"), "16c"])));
        for (at, (first, count, cpus, left)) in runs.into_iter().enumerate() {
            let free = snapshot
                .nodes
                .iter_mut()
                .skip(first)
                .filter(|node| node.free_cpus >= cpus)
                .take(count);
            let share = |node: NodeId| NodeShare {
                node,
                cpus,
                mem_bytes: 1 << 30,
                gpus: GpuSet::default(),
                tasks: 1,
            };
            let shares: Vec<NodeShare> = free
                .map(|node| {
                    node.take(&share(node.id));
                    share(node.id)
                })
                .collect();
            if !shares.is_empty() {
                let run = RunId::new(JobId(1000 + at as u64), 1);
                snapshot.running.push(RunningRun::new(
                    run,
                    Arc::default(),
                    shares,
                    Some(NOW.plus_secs(left)),
                ));
            }
        }
        for (at, (nodes, cpus, secs)) in asks.into_iter().enumerate() {
            let words = [
                format!("nodes={nodes}"),
                format!("cpus={cpus}"),
                format!("time={secs}"),
            ];
            snapshot.pending.push(job(
                JobId(10 + 10 * at as u64),
                &words.each_ref().map(String::as_str),
            ));
        }
        snapshot
    })
}

pub(super) fn gives_out_only_what_is_free(snapshot: &Snapshot, plan: &Plan) {
    let mut nodes: BTreeMap<NodeId, _> = snapshot
        .nodes
        .iter()
        .map(|node| (node.id, node.clone()))
        .collect();
    for start in &plan.starts {
        let distinct: BTreeSet<_> = start.allocation.iter().map(|share| share.node).collect();
        assert_eq!(
            distinct.len(),
            start.allocation.len(),
            "a node twice in {}",
            start.job
        );
        for share in &start.allocation {
            let node = nodes.get_mut(&share.node).unwrap();
            assert!(
                share.cpus <= node.free_cpus && share.mem_bytes <= node.free_mem_bytes,
                "{start:?}"
            );
            for slot in share.gpus.slots() {
                assert_eq!(
                    node.free_gpu_milli[usize::from(slot.0)],
                    1000,
                    "{slot:?} of {} is taken",
                    node.name
                );
            }
            node.take(share);
        }
    }
}

/// No node gave out more than it has, and what is free of it is the rest.
pub(super) fn is_within_the_node(snapshot: &Snapshot) {
    for node in &snapshot.nodes {
        let mut milli = vec![0; node.gpus.len()];
        let mut cpus = 0;
        let shares = snapshot
            .running
            .iter()
            .flat_map(|run| &run.shares)
            .filter(|share| share.node == node.id);
        for share in shares {
            cpus += share.cpus;
            share
                .gpus
                .0
                .iter()
                .for_each(|grant| milli[usize::from(grant.slot.0)] += grant.part.of_slot_milli());
        }
        assert_eq!(cpus + node.free_cpus, node.cpus, "CPUs of {}", node.name);
        for (gpu, given) in node.gpus.iter().zip(&milli) {
            let all = if gpu.info.divided { 0 } else { 1000 };
            assert_eq!(
                given + node.free_gpu_milli[usize::from(gpu.slot.0)],
                all,
                "GPU {} of {}",
                gpu.slot.0,
                node.name
            );
        }
    }
}

fn is_what_was_asked(snapshot: &Snapshot, plan: &Plan) {
    for start in &plan.starts {
        let job = snapshot
            .pending
            .iter()
            .rfind(|job| job.id <= start.job)
            .unwrap();
        let request = &job.spec.request;
        assert_eq!(
            start.allocation.len() as u32,
            request.nodes_min,
            "all nodes or none"
        );
        let wanted = request.gpus.as_ref().and_then(|ask| ask.first().cloned());
        for share in &start.allocation {
            let node = snapshot
                .nodes
                .iter()
                .find(|node| node.id == share.node)
                .unwrap();
            if request.exclusive {
                assert_eq!(
                    (share.cpus, share.gpus.len()),
                    (node.cpus, node.gpus.len()),
                    "the whole node"
                );
            } else if let Some(wanted) = &wanted {
                let gmodel::gpu_request::GpuAmount::Whole(count) = wanted.amount else {
                    unreachable!()
                };
                assert_eq!(share.gpus.len() as u32, count);
            }
        }
    }
}

fn all_others_have_a_reason(snapshot: &Snapshot, plan: &Plan) {
    let started: BTreeSet<JobId> = plan.starts.iter().map(|start| start.job).collect();
    let waits: BTreeSet<JobId> = plan
        .reasons
        .iter()
        .chain(&plan.array_reasons)
        .map(|(id, _)| *id)
        .collect();
    for job in &snapshot.pending {
        let tasks = job
            .particulars
            .positions
            .as_ref()
            .map_or(1, |positions| positions.len());
        let all = (0..tasks).all(|at| started.contains(&JobId(job.id.0 + at)));
        assert_ne!(
            all,
            waits.contains(&job.id),
            "job {} has to start or to have a reason",
            job.id
        );
    }
    for (id, reason) in plan.reasons.iter().chain(&plan.array_reasons) {
        assert_ne!(reason.code, ReasonCode::None, "{id}");
    }
}

/// The earliest instant at which a demand fits, if everything runs to its limit and nothing else starts.
fn earliest(
    snapshot: &Snapshot,
    runs: &[RunningRun],
    job: &crate::PendingJob,
) -> Option<Timestamp> {
    let demands = Demand::all(&job.spec.request, &snapshot.config.partitions[0]);
    let mut instants: BTreeSet<Timestamp> = runs.iter().filter_map(|run| run.ends_by).collect();
    instants.insert(snapshot.now);
    instants.into_iter().find(|at| {
        let mut nodes: Vec<_> = snapshot.nodes.clone();
        for node in &mut nodes {
            // Rebuilt from what still runs then.
            node.free_cpus = node.cpus;
            node.free_mem_bytes = node.mem_bytes;
            node.free_gpu_milli = vec![1000; node.gpus.len()];
            node.runs = 0;
            let id = node.id;
            let runs_then = |run: &&RunningRun| run.ends_by.is_none_or(|end| end > *at);
            for run in runs.iter().filter(runs_then) {
                run.shares
                    .iter()
                    .filter(|share| share.node == id)
                    .for_each(|share| node.take(share));
            }
        }
        demands.iter().any(|demand| {
            let fitting: usize = nodes
                .iter()
                .filter(|node| has_room(&demand.nodes[0], node))
                .count();
            fitting >= demand.nodes.len()
        })
    })
}

/// EASY's promise: the first job that waits for resources starts no later for those that passed it.
fn the_first_waiting_job_is_not_delayed(snapshot: &Snapshot, plan: &Plan) {
    let first = plan
        .reasons
        .iter()
        .chain(&plan.array_reasons)
        .filter(|(_, reason)| reason.text.contains("room is expected"))
        .map(|(id, _)| *id)
        .min();
    let Some(first) = first else { return };
    let job = snapshot.pending.iter().find(|job| job.id == first).unwrap();
    let run_of = |start: &crate::Start| {
        let asked = snapshot
            .pending
            .iter()
            .rfind(|job| job.id <= start.job)
            .unwrap();
        let ends_by = asked
            .limit_secs
            .map(|secs| snapshot.now.plus_secs(i64::from(secs)));
        let run = RunId::new(start.job, 1);
        RunningRun::new(run, Arc::default(), start.allocation.clone(), ends_by)
    };
    // Those ahead of it in the queue, its own tasks among them, are owed nothing.
    let own = job
        .particulars
        .positions
        .as_ref()
        .map_or(1, |positions| positions.len());
    let ahead = plan
        .starts
        .iter()
        .filter(|start| start.job.0 < first.0 + own);
    let before: Vec<_> = snapshot
        .running
        .iter()
        .cloned()
        .chain(ahead.map(run_of))
        .collect();
    let after: Vec<_> = snapshot
        .running
        .iter()
        .cloned()
        .chain(plan.starts.iter().map(run_of))
        .collect();
    let promised = earliest(snapshot, &before, job);
    if let Some(promised) = promised {
        let kept = earliest(snapshot, &after, job);
        assert!(
            kept.is_some_and(|kept| kept <= promised),
            "job {first} was to start by {promised}, now by {kept:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]
    #[test]
    fn every_plan_keeps_its_promises(snapshot in cluster()) {
        let plan = plan(&snapshot, WorkBudget::default());
        gives_out_only_what_is_free(&snapshot, &plan);
        is_what_was_asked(&snapshot, &plan);
        all_others_have_a_reason(&snapshot, &plan);
        the_first_waiting_job_is_not_delayed(&snapshot, &plan);
    }

    #[test]
    fn an_array_is_placed_as_separate_jobs_would_be(snapshot in cluster(), tasks in 1u32..12) {
        let mut array = Snapshot { pending: snapshot.pending[..1].to_vec(), ..snapshot };
        let mut jobs = array.clone();
        let one = array.pending[0].clone();
        array.pending[0].particulars.positions = Some(gmodel::array_spec::RangeSet::first_n(tasks));
        jobs.pending = (0..u64::from(tasks))
            .map(|at| crate::PendingJob { id: JobId(one.id.0 + at), particulars: gmodel::rare::Rare::default(), ..one.clone() })
            .collect();
        let budget = WorkBudget::default();
        prop_assert_eq!(plan(&array, budget).starts, plan(&jobs, budget).starts);
    }

    #[test]
    fn nothing_waits_that_fits_when_nothing_is_ahead(snapshot in cluster()) {
        let alone = Snapshot { pending: snapshot.pending[..1].to_vec(), ..snapshot };
        let planned = plan(&alone, WorkBudget::default());
        let now = earliest(&alone, &alone.running, &alone.pending[0]);
        prop_assert_eq!(now == Some(alone.now), !planned.starts.is_empty());
    }
}

#[test]
fn a_plan_does_not_depend_on_the_order_of_the_queue_in_the_snapshot() {
    let mut snapshot = picture(
        "node n1 h100:8
         running 1 n1 gpus=0-3 left=600
         job gpus=8 time=1000
         job gpus=2 time=100
         job gpus=1 array=4 time=100",
    );
    let one = plan(&snapshot, WorkBudget::default());
    snapshot.pending.reverse();
    assert_eq!(plan(&snapshot, WorkBudget::default()), one);
}

/// By hand what the scheduler works out with profiles: whether a node serves a demand as it is.
fn has_room(demand: &gpolicy::feasibility::demand::NodeDemand, node: &crate::SchedNode) -> bool {
    let free = |slot: usize| node.free_gpu_milli[slot] == 1000;
    let matching = |slot: &usize| demand.gpus.matches(&node.gpus[*slot].info);
    let gpus = (0..node.gpus.len())
        .filter(|slot| free(*slot))
        .filter(matching)
        .count();
    let mem = match demand.mem {
        gpolicy::feasibility::demand::MemDemand::Bytes(bytes) => bytes,
        _ => unreachable!("these clusters ask for bytes"),
    };
    if demand.exclusive {
        return node.runs == 0 && demand.fits_empty(node).is_ok();
    }
    gpus >= demand.gpus.count() as usize
        && demand.cpus <= node.free_cpus
        && mem <= node.free_mem_bytes
}
