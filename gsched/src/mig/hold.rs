//! GPUs that are held back for jobs that wait for another MIG layout: later jobs get nothing of such a GPU.
//!
//! Derived anew in each pass from the queue and the ends of runs; nothing is ordered here. A GPU that is empty is cut after the pass
//! (`cuts.rs`); one that is busy gets empty since no further job starts on it. Never touches what a run holds.

use crate::mig::held_back::{HeldGpu, kind_for, may_use};
use crate::pass::Pass;
use crate::snapshot::{PendingJob, SchedNode};
use gmodel::config::{MigCuts, Partition};
use gmodel::gpu_request::GpuAmount;
use gmodel::mig::{MigKind, fits};
use gmodel::node::GpuInfo;
use gmodel::{GpuSlot, Timestamp};
use gpolicy::feasibility::demand::{Demand, NodeDemand};

/// GPUs held back in a pass at most, and tasks of an array that are looked at.
const MOST_HELD: usize = 256;

const MOST_TASKS: u32 = 64;

/// A GPU that could be held back.
struct CutChoice {
    empty_at: Timestamp,
    index: u32,
    at: usize,
    uuid: String,
    slots: Vec<u16>,
    kind: Option<MigKind>,
}

/// Holds GPUs back for a job that waits for room, if another cut would make it; `starts`: when it starts anyway.
pub(crate) fn hold_back_for(
    pass: &mut Pass,
    job: &PendingJob,
    partition: usize,
    tasks: u32,
    starts: Option<Timestamp>,
) {
    let snapshot = pass.snapshot;
    let Some(wanted) = wanted_of_one(job, &snapshot.config.partitions[partition]) else {
        return;
    };
    let most = tasks.min(MOST_TASKS).saturating_mul(wanted.gpus.count());
    for _ in 0..most {
        if hold_back_one(pass, job, &wanted, starts).is_none() {
            return;
        }
    }
}

/// When GPUs are empty that are to be cut, or made whole, for a job that waits for nodes. They are held back until then.
pub(crate) fn cut_from(
    pass: &mut Pass,
    job: &PendingJob,
    partition: usize,
    starts: Option<Timestamp>,
) -> Option<Timestamp> {
    let snapshot = pass.snapshot;
    let wanted = wanted_of_one(job, &snapshot.config.partitions[partition])?;
    let mut latest = pass.now;
    for _ in 0..wanted.gpus.count() {
        latest = latest.max(hold_back_one(pass, job, &wanted, starts)?);
    }
    (wanted.gpus.count() > 0).then_some(latest)
}

/// Holds one more GPU back, and says when it is empty.
fn hold_back_one(
    pass: &mut Pass,
    job: &PendingJob,
    wanted: &NodeDemand,
    starts: Option<Timestamp>,
) -> Option<Timestamp> {
    if is_cut_coming(pass, job, wanted) {
        return Some(pass.now);
    }
    if pass.mig.held_back.len() >= MOST_HELD {
        return None;
    }
    joins_cut(pass, job, wanted).or_else(|| hold_one_more(pass, job, wanted, starts))
}

/// A slice of a GPU that is being cut, or the GPU that is made whole, counted on for a job that waits.
fn is_cut_coming(pass: &mut Pass, job: &PendingJob, wanted: &NodeDemand) -> bool {
    let snapshot = pass.snapshot;
    let coming = pass.mig.coming.get_or_insert_with(|| {
        let of_node = |(at, node): (usize, &SchedNode)| {
            let gpu = |uuid: &String| {
                node.gpus
                    .iter()
                    .find(|gpu| gpu.info.uuid == *uuid && gpu.present && gpu.info.fault.is_empty())
                    .map(|gpu| gpu.slot)
            };
            let cuts = node
                .mig
                .being_cut
                .iter()
                .filter_map(|(uuid, profiles)| Some((at, gpu(uuid)?, profiles)));
            cuts.flat_map(|(at, slot, profiles)| match profiles.is_empty() {
                true => vec![(at, slot, String::new())],
                false => profiles
                    .iter()
                    .map(|profile| (at, slot, profile.clone()))
                    .collect(),
            })
            .collect::<Vec<_>>()
        };
        snapshot
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| !node.mig.being_cut.is_empty())
            .flat_map(of_node)
            .collect()
    });
    let may_use = may_use(&pass.memory.windows, snapshot, job);
    let now = pass.now;
    let serves = |(at, slot, profile): &(usize, GpuSlot, String)| {
        let node = &snapshot.nodes[*at];
        let gpu = &node.gpus[usize::from(slot.0)].info;
        let kind = node
            .mig
            .kinds_of(gpu)
            .iter()
            .find(|kind| kind.profile == *profile);
        let fits = match kind {
            Some(kind) => wanted
                .gpus
                .is_served_by(&gpu.gpu_type, kind.memory_mib, &kind.part()),
            None => {
                profile.is_empty()
                    && !matches!(wanted.gpus.amount, GpuAmount::Mig { .. })
                    && wanted.gpus.matches(gpu)
            }
        };
        fits && may_use(*at, now)
    };
    let place = coming.iter().position(serves);
    place.map(|place| coming.swap_remove(place)).is_some()
}

/// Beside what a GPU is held back for already.
fn joins_cut(pass: &mut Pass, job: &PendingJob, wanted: &NodeDemand) -> Option<Timestamp> {
    let (snapshot, now) = (pass.snapshot, pass.now);
    let may_use = may_use(&pass.memory.windows, snapshot, job);
    pass.mig
        .held_back
        .iter_mut()
        .filter(|held| may_use(held.at, held.empty_at.max(now)))
        .find_map(|held| {
            let node = &snapshot.nodes[held.at];
            let gpu = node
                .gpus
                .iter()
                .map(|gpu| &gpu.info)
                .find(|gpu| gpu.uuid == held.uuid);
            let kind = gpu.and_then(|gpu| kind_for(node.mig.kinds_of(gpu), gpu, wanted));
            let (Some(kind), false) = (kind, held.wanted.is_empty()) else {
                return None;
            };
            held.wanted.push(kind.clone());
            let goes = fits(&held.wanted.iter().collect::<Vec<_>>()).is_some();
            if !goes {
                held.wanted.pop();
            }
            goes.then_some(held.empty_at)
        })
}

fn hold_one_more(
    pass: &mut Pass,
    job: &PendingJob,
    wanted: &NodeDemand,
    starts: Option<Timestamp>,
) -> Option<Timestamp> {
    let choice = first_empty(pass, job, wanted)?;
    let secs = i64::from(job.held_secs());
    // Slices of the present layout may serve it sooner, at no cost. A GPU that is idle for longer than the job
    // runs costs more than it brings.
    if starts.is_some_and(|at| at <= choice.empty_at) || choice.empty_at.since_secs(pass.now) > secs
    {
        return None;
    }
    let until = choice.empty_at.plus_secs(secs);
    let cluster = &mut pass.world.cluster;
    let node_class = cluster.nodes[choice.at].node_class;
    let mut room = cluster.state(choice.at).clone();
    room.hold_back(
        &cluster.node_classes.list[node_class as usize],
        &choice.slots,
        pass.now,
        until,
    );
    *cluster.touch(choice.at) = room;
    cluster.file(choice.at);
    let empty_at = choice.empty_at.max(pass.now);
    let (empty, wanted) = (empty_at <= pass.now, choice.kind.into_iter().collect());
    pass.mig.held_back.push(HeldGpu {
        at: choice.at,
        uuid: choice.uuid,
        slots: choice.slots,
        empty,
        empty_at,
        wanted,
    });
    Some(empty_at)
}

/// The GPU that is empty first, of those that a cut would make serve a demand.
fn first_empty(pass: &Pass, job: &PendingJob, wanted: &NodeDemand) -> Option<CutChoice> {
    let snapshot = pass.snapshot;
    let may_use = may_use(&pass.memory.windows, snapshot, job);
    let nodes = snapshot
        .nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| !node.mig.boards.is_empty() && wanted.cpus <= node.cpus);
    let choices = nodes.flat_map(|(at, node)| {
        let whole = node
            .gpus
            .iter()
            .filter(|gpu| gpu.present && gpu.info.fault.is_empty() && gpu.info.slice.is_none());
        whole.filter_map(move |gpu| cut_choice(pass, at, &gpu.info, wanted))
    });
    let usable = choices.filter(|choice| may_use(choice.at, choice.empty_at));
    usable.min_by_key(|choice| (choice.empty_at, choice.at, choice.index))
}

fn cut_choice(pass: &Pass, at: usize, gpu: &GpuInfo, wanted: &NodeDemand) -> Option<CutChoice> {
    let node = &pass.snapshot.nodes[at];
    let kind = kind_for(node.mig.kinds_of(gpu), gpu, wanted);
    let serves = match &wanted.gpus.amount {
        GpuAmount::Mig { .. } => kind.is_some(),
        _ => gpu.divided && wanted.gpus.matches(gpu),
    };
    let is_taken = |uuid: &str| {
        node.mig.ordered.contains(uuid)
            || pass
                .mig
                .held_back
                .iter()
                .any(|held| held.at == at && held.uuid == uuid)
    };
    let gpus = || node.gpus.iter().map(|gpu| &gpu.info);
    if !serves
        || is_taken(&gpu.uuid)
        || crate::mig::cuts::layout_of(pass.snapshot, &node.name, gpus(), gpu).is_some()
    {
        return None;
    }
    let is_of = |slot: usize| node.gpus[slot].info.board() == gpu.uuid && node.gpus[slot].usable();
    let all: Vec<usize> = (0..node.gpus.len()).filter(|slot| is_of(*slot)).collect();
    let room = pass.world.cluster.state(at);
    let (free, held): (Vec<usize>, Vec<usize>) = all
        .into_iter()
        .partition(|slot| room.slots.get(*slot) == Some(&1000));
    let rests = node.mig.cuts.get(&gpu.uuid).map_or(pass.now, |cut| {
        cut.at
            .plus_secs(i64::from(pass.snapshot.config.mig_recut_secs))
    });
    // What this pass gave away counts as held for good.
    let end = |slot: usize| pass.world.cluster.end_on(at, slot);
    let empty_at = held
        .into_iter()
        .try_fold(rests.max(pass.now), |latest, slot| {
            Some(latest.max(end(slot)?))
        })?;
    let kind = kind
        .filter(|_| matches!(wanted.gpus.amount, GpuAmount::Mig { .. }))
        .cloned();
    Some(CutChoice {
        empty_at,
        index: gpu.index,
        at,
        uuid: gpu.uuid.clone(),
        slots: free.into_iter().map(|slot| slot as u16).collect(),
        kind,
    })
}

/// What a job asks of the one node that it needs, where cuts that are planned can give it that.
fn wanted_of_one(job: &PendingJob, partition: &Partition) -> Option<NodeDemand> {
    let mut demands = if partition.mig == MigCuts::Planned {
        Demand::all(&job.spec.request, partition)
    } else {
        Vec::new()
    };
    let mut first = demands
        .drain(..)
        .next()
        .filter(|demand| demand.nodes.len() == 1)?;
    let wanted = first.nodes.remove(0);
    let other = wanted.is_linked()
        || wanted.exclusive
        || matches!(wanted.gpus.amount, GpuAmount::Share { .. });
    (!other).then_some(wanted)
}
