//! GPUs that are held back for jobs that wait for another cut: nobody after them in the order gets what such a GPU has free.
//!
//! Derived anew in each pass from who waits and when runs end; nothing is ordered here. A GPU that is empty is cut after the pass
//! (`mig_plan.rs`), one that is not gets empty since nothing more starts on it. Never touches what a run holds.

use crate::job::demand::{Demand, NodeDemand};
use crate::pass::Pass;
use crate::preempt::holders::usable_nodes;
use crate::snapshot::{PendingJob, SchedNode, Snapshot};
use crate::window::Windows;
use gmodel::config::{MigCuts, Partition};
use gmodel::gpu_request::GpuAmount;
use gmodel::mig::{MigKind, fits};
use gmodel::node::GpuInfo;
use gmodel::{GpuSlot, Timestamp};

/// GPUs held back in a pass at most, and tasks of an array that are looked at.
const MOST_HELD: usize = 256;
const MOST_TASKS: u32 = 64;

/// A GPU that is held back.
#[derive(Clone, Debug)]
pub(crate) struct HeldBack {
    /// Place of its node.
    pub at: usize,
    pub uuid: String,
    /// Slots that were free: its own, or its slices'.
    pub slots: Vec<u16>,
    /// Nobody holds anything of it.
    pub empty: bool,
    /// When that is so.
    empty_at: Timestamp,
    /// What it is wanted to be; none: whole.
    wanted: Vec<MigKind>,
}

/// A GPU that could be held back.
struct Choice {
    empty_at: Timestamp,
    index: u32,
    at: usize,
    uuid: String,
    slots: Vec<u16>,
    kind: Option<MigKind>,
}

impl Pass<'_> {
    /// Holds GPUs back for a job that waits for room, if another cut would make it; `starts`: when it starts anyway.
    pub(crate) fn hold_back_for(
        &mut self,
        job: &PendingJob,
        partition: usize,
        tasks: u32,
        starts: Option<Timestamp>,
    ) {
        let snapshot = self.snapshot;
        let Some(wanted) = wanted_of_one(job, &snapshot.config.partitions[partition]) else {
            return;
        };
        let most = tasks.min(MOST_TASKS).saturating_mul(wanted.gpus.count());
        for _ in 0..most {
            if self.hold_back_one(job, &wanted, starts).is_none() {
                return;
            }
        }
    }

    /// When GPUs are cut, or made whole, for a job that waits for room, and with that it has it: once they are empty. They are held
    /// back for it from then on.
    pub(crate) fn cut_from(
        &mut self,
        job: &PendingJob,
        partition: usize,
        starts: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let snapshot = self.snapshot;
        let wanted = wanted_of_one(job, &snapshot.config.partitions[partition])?;
        let mut latest = self.now;
        for _ in 0..wanted.gpus.count() {
            latest = latest.max(self.hold_back_one(job, &wanted, starts)?);
        }
        (wanted.gpus.count() > 0).then_some(latest)
    }

    /// One more, and when it is empty.
    fn hold_back_one(
        &mut self,
        job: &PendingJob,
        wanted: &NodeDemand,
        starts: Option<Timestamp>,
    ) -> Option<Timestamp> {
        if self.is_coming(job, wanted) {
            return Some(self.now);
        }
        if self.held_back.len() >= MOST_HELD {
            return None;
        }
        self.joins(job, wanted)
            .or_else(|| self.hold_one_more(job, wanted, starts))
    }

    /// A slice of a GPU that is being cut, or the GPU that is made whole, counted on for a job that waits.
    fn is_coming(&mut self, job: &PendingJob, wanted: &NodeDemand) -> bool {
        let snapshot = self.snapshot;
        let coming = self.coming.get_or_insert_with(|| {
            let of_node = |(at, node): (usize, &SchedNode)| {
                let gpu = |uuid: &String| {
                    node.gpus
                        .iter()
                        .find(|gpu| {
                            gpu.info.uuid == *uuid && gpu.present && gpu.info.fault.is_empty()
                        })
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
        let may_use = may_use(&self.engine.windows, snapshot, job);
        let now = self.now;
        let serves = |(at, slot, profile): &(usize, GpuSlot, String)| {
            let node = &snapshot.nodes[*at];
            let gpu = &node.gpus[usize::from(slot.0)].info;
            let kind = node
                .mig
                .kinds_of(gpu)
                .iter()
                .find(|kind| kind.profile == *profile);
            let fits = match kind {
                Some(kind) => {
                    wanted
                        .gpus
                        .is_served_by(&gpu.gpu_type, kind.memory_mib, &kind.part())
                }
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
    fn joins(&mut self, job: &PendingJob, wanted: &NodeDemand) -> Option<Timestamp> {
        let (snapshot, now) = (self.snapshot, self.now);
        let may_use = may_use(&self.engine.windows, snapshot, job);
        self.held_back
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
        &mut self,
        job: &PendingJob,
        wanted: &NodeDemand,
        starts: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let choice = self.first_empty(job, wanted)?;
        let secs = i64::from(job.held_secs());
        // Slices that come free as they are serve it sooner, and cost nobody anything; and what is idle for longer than the job
        // itself runs costs more than it brings.
        if starts.is_some_and(|at| at <= choice.empty_at)
            || choice.empty_at.since_secs(self.now) > secs
        {
            return None;
        }
        let until = choice.empty_at.plus_secs(secs);
        let cluster = &mut self.engine.cluster;
        let make = cluster.nodes[choice.at].make;
        let mut room = cluster.room(choice.at).clone();
        room.hold_back(
            &cluster.makes.list[make as usize],
            &choice.slots,
            self.now,
            until,
        );
        *cluster.touch(choice.at) = room;
        cluster.file(choice.at);
        let empty_at = choice.empty_at.max(self.now);
        let (empty, wanted) = (empty_at <= self.now, choice.kind.into_iter().collect());
        self.held_back.push(HeldBack {
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
    fn first_empty(&self, job: &PendingJob, wanted: &NodeDemand) -> Option<Choice> {
        let snapshot = self.snapshot;
        let may_use = may_use(&self.engine.windows, snapshot, job);
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
            whole.filter_map(move |gpu| self.choice(at, &gpu.info, wanted))
        });
        let usable = choices.filter(|choice| may_use(choice.at, choice.empty_at));
        usable.min_by_key(|choice| (choice.empty_at, choice.at, choice.index))
    }

    fn choice(&self, at: usize, gpu: &GpuInfo, wanted: &NodeDemand) -> Option<Choice> {
        let node = &self.snapshot.nodes[at];
        let kind = kind_for(node.mig.kinds_of(gpu), gpu, wanted);
        let serves = match &wanted.gpus.amount {
            GpuAmount::Mig { .. } => kind.is_some(),
            _ => gpu.divided && wanted.gpus.matches(gpu),
        };
        let is_taken = |uuid: &str| {
            node.mig.ordered.contains(uuid)
                || self
                    .held_back
                    .iter()
                    .any(|held| held.at == at && held.uuid == uuid)
        };
        let gpus = || node.gpus.iter().map(|gpu| &gpu.info);
        if !serves
            || is_taken(&gpu.uuid)
            || crate::mig::cuts::layout_of(self.snapshot, &node.name, gpus(), gpu).is_some()
        {
            return None;
        }
        let is_of =
            |slot: usize| node.gpus[slot].info.board() == gpu.uuid && node.gpus[slot].usable();
        let all: Vec<usize> = (0..node.gpus.len()).filter(|slot| is_of(*slot)).collect();
        let room = self.engine.cluster.room(at);
        let (free, held): (Vec<usize>, Vec<usize>) = all
            .into_iter()
            .partition(|slot| room.slots.get(*slot) == Some(&1000));
        let rests = node.mig.cuts.get(&gpu.uuid).map_or(self.now, |cut| {
            cut.at
                .plus_secs(i64::from(self.snapshot.config.mig_recut_secs))
        });
        // What this pass gave away counts as held for good.
        let end = |slot: usize| self.engine.cluster.end_on(at, slot);
        let empty_at = held
            .into_iter()
            .try_fold(rests.max(self.now), |latest, slot| {
                Some(latest.max(end(slot)?))
            })?;
        let kind = kind
            .filter(|_| matches!(wanted.gpus.amount, GpuAmount::Mig { .. }))
            .cloned();
        Some(Choice {
            empty_at,
            index: gpu.index,
            at,
            uuid: gpu.uuid.clone(),
            slots: free.into_iter().map(|slot| slot as u16).collect(),
            kind,
        })
    }
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

/// Whether a job may run on a node from a time on: of those that it names on no other, and in no window of others.
pub(crate) fn may_use<'a>(
    windows: &'a Windows,
    snapshot: &'a Snapshot,
    job: &'a PendingJob,
) -> impl Fn(usize, Timestamp) -> bool + 'a {
    let usable = usable_nodes(snapshot, &job.spec);
    move |at, from| {
        let node = &snapshot.nodes[at];
        let is_named = job
            .spec
            .request
            .nodelist
            .as_ref()
            .is_none_or(|list| list.contains(&node.name));
        usable(node) && is_named && windows.admit(job, &snapshot.policy, at, from)
    }
}

/// The smallest kind of slice that serves a demand.
fn kind_for<'a>(kinds: &'a [MigKind], gpu: &GpuInfo, wanted: &NodeDemand) -> Option<&'a MigKind> {
    kinds.iter().find(|kind| {
        wanted
            .gpus
            .is_served_by(&gpu.gpu_type, kind.memory_mib, &kind.part())
    })
}
