//! Why a job waits, in words: what stands whatever is free, and what is not free now.
//!
//! Texts that a long queue shares are the same in every pass, so that it does not change with each job that starts.

use crate::cluster::network;
use crate::cluster::node_class::Make;
use crate::cluster::nodes::Cluster;
use crate::cluster::timeline::{Amount, Kinds};
use crate::job::demand::{Demand, GpuDemand, MemDemand};
use crate::job::impossible::{could_be_cut, unfit_of};
use crate::job::job_class::{self, Shape};
use crate::limits::{count, secs_text};
use crate::snapshot::{ArrayCap, PendingJob, SchedNode, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::config::{MigCuts, Partition, PartitionState};
use gmodel::gpu_request::{GpuAlternative, GpuAmount, GpuKind};
use gmodel::{GpuPart, JobSpec, Policy, Reason, ReasonCode};
use std::collections::BTreeMap;
use std::ops::Range;

/// The reason of a job with this owner's hold on it.
pub fn held_by(owner: &str) -> Reason {
    let code = if owner.starts_with("user:") {
        ReasonCode::JobHeldUser
    } else if owner == "system" {
        ReasonCode::JobHoldMaxRequeue
    } else {
        ReasonCode::JobHeldAdmin
    };
    Reason::new(code, format!("held by {owner}"))
}

pub fn no_partition(job: &PendingJob) -> Reason {
    let text = format!(
        "partition {:?} is not in the configuration",
        job.spec.partition
    );
    Reason::new(ReasonCode::PartitionConfig, text)
}

/// The first reason that does not depend on what is free.
pub fn standing(job: &PendingJob, partition: &Partition, snapshot: &Snapshot) -> Option<Reason> {
    let mut first = None;
    each_standing(job, partition, snapshot, &mut |reason| {
        first = Some(reason);
        false
    });
    first
}

/// All of them.
pub fn all_standing(job: &PendingJob, partition: &Partition, snapshot: &Snapshot) -> Vec<Reason> {
    let mut all = Vec::new();
    each_standing(job, partition, snapshot, &mut |reason| {
        all.push(reason);
        true
    });
    all
}

/// `found` says whether to go on.
fn each_standing(
    job: &PendingJob,
    partition: &Partition,
    snapshot: &Snapshot,
    found: &mut dyn FnMut(Reason) -> bool,
) -> Option<()> {
    let mut tell = |reason: Option<Reason>| reason.is_none_or(&mut *found).then_some(());
    tell(job.held_by.as_deref().map(held_by))?;
    tell(job.dependency.clone())?;
    let early = job.eligible > snapshot.now;
    tell(early.then(|| {
        Reason::new(
            ReasonCode::BeginTime,
            format!("not before {}", job.eligible),
        )
    }))?;
    let failed = job.try_after.filter(|at| *at > snapshot.now);
    tell(failed.map(|at| {
        Reason::new(
            ReasonCode::BeginTime,
            format!("its last run failed with its node; tried again at {at}"),
        )
    }))?;
    tell(match partition.state {
        PartitionState::Down => {
            let text = format!(
                "partition {:?} is DOWN: it takes jobs and starts none",
                partition.name
            );
            Some(Reason::new(ReasonCode::PartitionDown, text))
        }
        PartitionState::Inactive => {
            let text = format!(
                "partition {:?} is INACTIVE: it neither takes nor starts jobs",
                partition.name
            );
            Some(Reason::new(ReasonCode::PartitionInactive, text))
        }
        PartitionState::Up | PartitionState::Drain => None,
    })?;
    tell(closed_to(&job.spec, partition, &snapshot.policy))?;
    let over = partition
        .max_time_secs
        .zip(job.limit_secs)
        .filter(|(most, limit)| limit > most);
    tell(over.map(|(most, limit)| {
        let text = format!(
            "asks for {}, partition {:?} allows {}",
            secs_text(limit),
            partition.name,
            secs_text(most)
        );
        Reason::new(ReasonCode::PartitionTimeLimit, text)
    }))?;
    let nodes = job.spec.request.nodes_min;
    tell(
        partition
            .max_nodes
            .filter(|most| nodes > *most)
            .map(|most| {
                Reason::new(
                    ReasonCode::PartitionNodeLimit,
                    format!("asks for {nodes} nodes, the limit is {most}"),
                )
            }),
    )?;
    let secs = job.spec.time_min_secs.unwrap_or(job.held_secs());
    let end = snapshot.now.plus_secs(i64::from(secs));
    tell(
        job.spec
            .deadline
            .filter(|deadline| end > *deadline)
            .map(|deadline| {
                Reason::new(
                    ReasonCode::DeadLine,
                    format!("needs {secs} s and was to end by {deadline}"),
                )
            }),
    )?;
    tell((job.room == Some(0)).then(|| array_limit(job)))
}

/// Why a partition takes no jobs of a user, an account or a QOS: what it allows may be otherwise since they were submitted.
pub(crate) fn closed_to(spec: &JobSpec, partition: &Partition, policy: &Policy) -> Option<Reason> {
    let name = &partition.name;
    if !partition.takes_account(policy, &spec.account) {
        let text = format!(
            "partition {name:?} is for the accounts {} now, not for {}",
            partition.allow_accounts.join(", "),
            spec.account
        );
        return Some(Reason::new(ReasonCode::AccountNotAllowed, text));
    }
    if !partition.is_open_to_qos(&spec.qos) {
        let text = format!(
            "partition {name:?} is for the QOS {} now, not for {}",
            partition.allow_qos.join(", "),
            spec.qos
        );
        return Some(Reason::new(ReasonCode::QOSNotAllowed, text));
    }
    let is_open = partition.is_open_to_user(&spec.user.name);
    (!is_open).then(|| {
        Reason::new(
            ReasonCode::PartitionConfig,
            format!("partition {name:?} is not open to {} now", spec.user.name),
        )
    })
}

pub fn array_limit(job: &PendingJob) -> Reason {
    let text = match job.cap {
        // Those that the pass starts are not counted yet.
        Some(ArrayCap { most, running }) if running >= most => {
            format!("the array allows {most} at once, and {running} of its tasks run")
        }
        Some(ArrayCap { most, .. }) => {
            format!("the array allows {most} of its tasks at once, and as many run")
        }
        None => "as many tasks of the array run as it allows at once".to_owned(),
    };
    Reason::new(ReasonCode::JobArrayTaskLimit, text)
}

/// What no so many leaf switches have for it.
fn too_few_below(shape: &Shape, demands: &[Demand], snapshot: &Snapshot) -> Option<Reason> {
    let partition = &snapshot.config.partitions[shape.partition];
    let topology = &snapshot.config.scheduler.topology;
    let request = &shape.spec.request;
    if request.switches.is_none() || topology.switches.is_empty() {
        return None;
    }
    let nodes: Vec<_> = shape
        .candidates
        .all
        .ones()
        .map(|at| &snapshot.nodes[at])
        .collect();
    let few = network::too_few_below(topology, request, partition, &nodes)?;
    let (needs, most, asked) = (
        demands.first().map_or(String::new(), describe),
        few.most,
        request.switches?.most,
    );
    let below = if asked == 1 {
        "one leaf switch".to_owned()
    } else {
        format!("{asked} leaf switches")
    };
    let instead = few.switches.map_or(String::new(), |enough| {
        format!(", and enough below {enough}")
    });
    let such = if most == 1 { "such node" } else { "such nodes" };
    let text = format!(
        "needs {needs} below {below}; partition {:?} has {most} {such} there at most{instead}",
        partition.name
    );
    Some(Reason::new(ReasonCode::BadConstraints, text))
}

/// The reason of a job that would not fit even if nothing else ran.
pub fn never(
    shape: &Shape,
    demands: &[Demand],
    snapshot: &Snapshot,
    cluster: &Cluster,
) -> Option<Reason> {
    let partition = &snapshot.config.partitions[shape.partition].name;
    let candidates = &shape.candidates;
    if let Some(list) = &shape.spec.request.nodelist {
        let known = |name: &&str| {
            candidates
                .all
                .ones()
                .any(|at| snapshot.nodes[at].name == **name)
        };
        if let Some(missing) = list.iter().find(|name| !known(name)) {
            let text = format!("node {missing:?} is none that partition {partition:?} can give it");
            return Some(Reason::new(ReasonCode::BadConstraints, text));
        }
    }
    let named: Vec<_> = shape.named.iter().map(|at| &snapshot.nodes[*at]).collect();
    let unfit =
        |demand: &Demand| unfit_of(demand, &named, &snapshot.config.partitions[shape.partition]);
    if demands.iter().all(|demand| unfit(demand).is_some())
        && let Some((demand, node)) = demands
            .iter()
            .find_map(|demand| Some((demand, unfit(demand)?)))
    {
        let text = format!(
            "needs {}; {}, which it names, has not that",
            describe(demand),
            node.name
        );
        return Some(Reason::new(ReasonCode::BadConstraints, text));
    }
    let named_up = shape.named.iter().all(|at| candidates.up.contains(*at));
    if named_up
        && shape
            .ways
            .iter()
            .any(|way| job_class::lack(way, candidates, true, cluster).is_none())
    {
        return too_few_below(shape, demands, snapshot);
    }
    if snapshot.config.partitions[shape.partition].mig == MigCuts::Planned && named_up {
        let up: Vec<_> = candidates.up.ones().map(|at| &snapshot.nodes[at]).collect();
        // Not as the GPUs are cut now: it waits until they are cut for it.
        if demands.iter().any(|demand| could_be_cut(demand, &up)) {
            return None;
        }
    }
    let needs = demands.first().map_or(String::new(), describe);
    // GPUs that are out of order count as nodes that are not available: they are expected back.
    let whole: Vec<_> = candidates
        .all
        .ones()
        .map(|at| &snapshot.nodes[at])
        .collect();
    let would = |demand: &Demand| {
        let fitting = |at: usize| {
            whole
                .iter()
                .filter(|node| demand.nodes[at].fits_empty(node).is_ok())
                .count()
        };
        (0..demand.nodes.len()).all(|at| fitting(at) > at)
    };
    if demands.iter().any(would) {
        let barred = |node: &SchedNode| {
            let one = shape.barred.iter().find(|one| one.node == node.id)?;
            Some(format!(
                "failed to start it, tried there again at {}: {}",
                one.until, one.text
            ))
        };
        let down = whole.iter().filter_map(|node| {
            let sick = || {
                node.gpus
                    .iter()
                    .find(|gpu| !gpu.usable() && gpu.is_expected())
                    .map(fault)
            };
            node.unavailable
                .clone()
                .or_else(|| barred(node))
                .or_else(sick)
                .map(|why| format!("{}: {why}", node.name))
        });
        let down: Vec<String> = down.take(4).collect();
        let text = format!("nodes it needs are not available ({})", down.join(", "));
        return Some(Reason::new(ReasonCode::ReqNodeNotAvail, text));
    }
    let text = format!("needs {needs}; partition {partition:?} has no such nodes");
    let code = if shape.spec.request.constraint.is_some() && candidates.all.is_clear() {
        ReasonCode::BadConstraints
    } else {
        ReasonCode::PartitionConfig
    };
    Some(Reason::new(code, text))
}

/// What is wrong with a GPU, in its node's words, under the number that people call it by.
pub(crate) fn fault(gpu: &gmodel::node::GpuEntry) -> String {
    let fault = match gpu.present {
        false => "is missing",
        true if gpu.info.divided && gpu.info.fault.is_empty() => "is cut by MIG",
        true => &gpu.info.fault,
    };
    format!("gpu{} {fault}", gpu.info.index)
}

/// Where most is free now, in words.
pub fn what_is_free(shape: &Shape, snapshot: &Snapshot, cluster: &Cluster) -> String {
    let candidates = &*shape.in_question();
    let request = &shape.spec.request;
    let makes = &cluster.makes.list;
    // Where not any GPU will do, only those that would are counted.
    let is_named = |one: &GpuAlternative| {
        one.kind != GpuKind::Any || matches!(one.amount, GpuAmount::Mig { .. })
    };
    let names_kind = request.gpu_mem_mib.is_some()
        || request
            .gpus
            .iter()
            .flat_map(|ask| &ask.alternatives)
            .any(is_named);
    let any_will_do = !names_kind
        && makes
            .iter()
            .all(|make| make.groups.iter().all(|group| group.part == GpuPart::Whole));
    let kinds_on = |at: usize| match shape.need(0, 0, cluster.nodes[at].make) {
        Some(need) if need.whole() > 0 => need.groups,
        None if names_kind => 0,
        _ => {
            makes[cluster.nodes[at].make as usize].kinds_where(|group| group.part == GpuPart::Whole)
        }
    };
    // Of nodes with one room the last.
    let most_of = |mut nodes: FixedBitSet| {
        nodes.intersect_with(candidates);
        let last = |stretch: Range<usize>| stretch.rev().find(|at| nodes.contains(*at));
        let of = |at: usize| {
            let free = cluster.room(at).profile.free_at(cluster.now);
            // Where none is free, a node that has the kind says more than one that has not.
            let has_kind = !names_kind || shape.need(0, 0, cluster.nodes[at].make).is_some();
            (
                free.gpus_in(kinds_on(at)),
                has_kind,
                free.cpus,
                free.mem_bytes,
                at,
            )
        };
        cluster
            .stretches()
            .filter(|stretch| nodes.contains_any_in_range(stretch.clone()))
            .filter_map(last)
            .map(of)
            .max()
    };
    // Among those with the most GPUs; all are looked at only where none has a CPU left.
    let most = if !any_will_do {
        None
    } else {
        cluster
            .by_free
            .iter()
            .rev()
            .find_map(|nodes| most_of(nodes.clone()))
    };
    match most.or_else(|| most_of(candidates.clone())) {
        Some((_, _, cpus, mem, at)) => {
            let name = &snapshot.nodes[at].name;
            let (cpus, mem) = (count(cpus.into(), "CPU"), gmodel::size::rough_size(mem));
            let named = names_kind.then(|| kinds_on(at));
            let gpus = gpus_text(
                cluster.room(at).profile.free_at(cluster.now),
                &makes[cluster.nodes[at].make as usize],
                named,
            );
            let others = crate::job::sharing::others_room(shape, snapshot, cluster);
            format!("most is free on {name}: {gpus}, {cpus} and {mem} of memory{others}")
        }
        None => "no node is available".into(),
    }
}

/// GPUs of some kinds, or of all, as people count them: `1 GPU, 3 slices 1g.10gb`.
fn gpus_text(free: &Amount, make: &Make, named: Option<Kinds>) -> String {
    let mut gpus = None;
    let mut slices: BTreeMap<&str, u64> = BTreeMap::new();
    for (at, group) in make
        .groups
        .iter()
        .enumerate()
        .filter(|(at, _)| named.is_none_or(|kinds| kinds & (1 << at) != 0))
    {
        let free = u64::from(free.gpus[at]);
        match &group.part {
            GpuPart::Mig { profile, .. } => *slices.entry(profile).or_default() += free,
            GpuPart::Whole | GpuPart::Share { .. } => *gpus.get_or_insert(0) += free,
        }
    }
    let names_slices = named.is_some() && gpus.is_none();
    slices.retain(|_, free| *free > 0 || names_slices);
    let gpus = gpus
        .filter(|gpus| *gpus > 0)
        .or(slices.is_empty().then_some(0));
    let slices = slices
        .into_iter()
        .map(|(profile, free)| format!("{} {profile}", count(free, "slice")));
    gpus.map(|gpus| count(gpus, "GPU"))
        .into_iter()
        .chain(slices)
        .collect::<Vec<_>>()
        .join(", ")
}

/// What those say who wait behind others for the same.
pub const BEHIND: &str = "; jobs of higher priority wait for such resources too";

/// The same words in every pass, so that a long queue does not change with each job that starts.
pub fn behind_others(needs: &str) -> Reason {
    let text = format!("needs {needs}{BEHIND}");
    Reason::new(ReasonCode::Priority, text)
}

/// The memory that each GPU must have, where the request says so.
pub fn of_size(gpus: &GpuDemand) -> String {
    match gpus.min_memory_mib {
        0 => String::new(),
        mib => format!(" with {}", gmodel::size::rough_size(mib << 20)),
    }
}

pub fn describe(demand: &Demand) -> String {
    let Some(first) = demand.nodes.first() else {
        return "nothing".into();
    };
    let (gpus, cpus) = (first.gpus.count(), first.cpus);
    let linked = if first.is_linked() {
        " that NVLink joins"
    } else {
        ""
    };
    let gpus = match &first.gpus.gpu_type {
        _ if gpus == 0 => None,
        kind if let GpuAmount::Share { milli } = first.gpus.amount => {
            let kind = kind.as_deref().unwrap_or("GPU");
            Some(format!(
                "{} of one {kind}",
                crate::limits::milli_text(u64::from(milli))
            ))
        }
        kind if let GpuAmount::Mig { profile, .. } = &first.gpus.amount => {
            let of = kind
                .as_deref()
                .map_or(String::new(), |kind| format!(" of {kind}"));
            Some(format!(
                "{} {profile}{of}{linked}",
                count(gpus.into(), "slice")
            ))
        }
        None => Some(format!("{}{linked}", count(gpus.into(), "GPU"))),
        Some(kind) => Some(format!("{gpus} {kind}{linked}")),
    };
    let gpus = gpus.map(|gpus| format!("{gpus}{}", of_size(&first.gpus)));
    let mem = match first.mem {
        MemDemand::Bytes(bytes) if bytes > 0 => {
            Some(format!("{} of memory", gmodel::size::rough_size(bytes)))
        }
        _ => None,
    };
    let mut parts: Vec<String> = gpus
        .into_iter()
        .chain([count(cpus.into(), "CPU")])
        .chain(mem)
        .collect();
    let last = parts.pop().expect("CPUs are always named");
    let all = if parts.is_empty() {
        last
    } else {
        format!("{} and {last}", parts.join(", "))
    };
    let whole = if first.exclusive {
        " with nothing else on it"
    } else {
        ""
    };
    match demand.nodes.len() {
        1 => format!("{all} on one node{whole}"),
        n => format!("{all} on each of {n} nodes{whole}"),
    }
}
