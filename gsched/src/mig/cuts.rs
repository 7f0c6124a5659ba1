//! Which empty GPUs are cut anew by MIG: to a layout of the configuration, or as the queue needs it.
//!
//! Pending jobs are served in their order: first by slices that are free or are being cut, then by cutting idle GPUs. A GPU that is
//! busy, ordered already, cut a short while ago or kept for an earlier job is not cut. Decides about no job.

use crate::backfill::planned::NodeWait;
use crate::engine::{Engine, QuickPassState};
use crate::mig::held_back::{HeldGpu, may_use};
use crate::plan::Cut;
use crate::snapshot::{PendingJob, SchedNode, Snapshot};
use gmodel::config::{MigCuts, MigLayout};
use gmodel::gpu_request::GpuAmount;
use gmodel::mig::{MigKind, fits};
use gmodel::node::{GpuEntry, GpuInfo};
use gmodel::{GpuSlot, JobId};
use gpolicy::feasibility::demand::{Demand, NodeDemand};
use gpolicy::reserved_nodes::Windows;
use std::collections::{BTreeMap, BTreeSet};

/// Pending jobs, and tasks of one array, that are looked at.
const MOST_JOBS: usize = 1000;
const MOST_TASKS: usize = 64;
/// Seconds until a layout of the configuration is ordered again: one that the node refused, and one that it lost, as at a boot.
const REFUSED_AGAIN_SECS: i64 = 3600;
const LOST_AGAIN_SECS: i64 = 60;

/// The cuts that are due after a pass.
pub(crate) fn cuts(engine: &Engine, snapshot: &Snapshot, left: &QuickPassState) -> Vec<Cut> {
    let config = &snapshot.config;
    let planned = config
        .partitions
        .iter()
        .any(|partition| partition.mig == MigCuts::Planned);
    if !planned && config.mig.is_empty() {
        return Vec::new();
    }
    let mut floor = Floor::new(engine, snapshot, &left.held_back);
    let mut cuts = floor.fixed();
    if planned {
        let reserved: BTreeMap<_, _> = left.reserved.iter().map(|one| (one.job, one)).collect();
        let mut served: BTreeSet<JobId> = BTreeSet::new();
        let first_entry = |waiting: &&NodeWait| {
            let one_of_several = snapshot
                .pending
                .get(waiting.at as usize)
                .is_some_and(|job| job.is_choice() && job.particulars.positions.is_none());
            !one_of_several || (!left.started.contains(&waiting.job) && served.insert(waiting.job))
        };
        for waiting in left.waiting.iter().filter(first_entry).take(MOST_JOBS) {
            if !floor.serve_all(waiting) {
                // Nodes of its planned start are not cut for later jobs.
                floor.kept.extend(
                    reserved
                        .get(&waiting.job)
                        .into_iter()
                        .flat_map(|one| one.nodes()),
                );
            }
        }
        cuts.extend(floor.planned());
    }
    cuts
}

/// The nodes whose GPUs can be cut, and what is planned for them.
struct Floor<'a> {
    snapshot: &'a Snapshot,
    windows: &'a Windows,
    /// Nodes with a GPU that can be cut, by their place.
    nodes: BTreeMap<usize, CutNode<'a>>,
    /// Nodes that are kept for a job.
    kept: BTreeSet<usize>,
}

#[derive(Clone)]
struct CutNode<'a> {
    cpus: u32,
    mem_bytes: u64,
    boards: Vec<CutBoard<'a>>,
}

/// One GPU, cut or not.
#[derive(Clone)]
struct CutBoard<'a> {
    info: &'a GpuInfo,
    /// It is cut, or is being cut.
    divided: bool,
    kinds: &'a [MigKind],
    /// Profiles of the slices that it is cut into, and how many of each are free. A whole GPU has none.
    cut: BTreeMap<&'a str, u32>,
    free: BTreeMap<&'a str, u32>,
    /// It is idle.
    empty: bool,
    /// May be cut for the queue.
    open: bool,
    /// An earlier job is counted on a part of it as it is.
    used: bool,
    /// The layout that jobs wait for.
    wish: Option<CutWish<'a>>,
}

#[derive(Clone)]
struct CutWish<'a> {
    /// None: whole.
    kinds: Vec<&'a MigKind>,
    for_job: JobId,
}

impl<'a> Floor<'a> {
    fn new(engine: &'a Engine, snapshot: &'a Snapshot, held_back: &[HeldGpu]) -> Self {
        let with_boards = snapshot.nodes.iter().enumerate();
        let nodes = with_boards
            .filter(|(_, node)| !node.mig.boards.is_empty())
            .map(|(at, node)| {
                let state = engine.cluster.state(at);
                let held = held_back.iter().filter(|held| held.at == at && held.empty);
                let held: BTreeSet<u16> = held.flat_map(|held| held.slots.clone()).collect();
                let is_free = |slot: GpuSlot| {
                    state.slots.get(usize::from(slot.0)) == Some(&1000) || held.contains(&slot.0)
                };
                let boards = node.gpus.iter().filter(|gpu| {
                    gpu.info.slice.is_none() && gpu.present && gpu.info.fault.is_empty()
                });
                let free = state.profile.free_at(engine.cluster.now);
                let node = CutNode {
                    cpus: free.cpus,
                    mem_bytes: free.mem_bytes,
                    boards: boards
                        .map(|gpu| CutBoard::new(gpu, node, snapshot, &is_free))
                        .collect(),
                };
                (at, node)
            });
        Self {
            snapshot,
            windows: &engine.memory.windows,
            nodes: nodes.collect(),
            kept: BTreeSet::new(),
        }
    }

    /// Cuts to layouts of the configuration.
    fn fixed(&self) -> Vec<Cut> {
        let mut cuts = Vec::new();
        for (at, of) in &self.nodes {
            let node = &self.snapshot.nodes[*at];
            for board in of
                .boards
                .iter()
                .filter(|board| board.empty && !node.mig.ordered.contains(&board.info.uuid))
            {
                let gpus = node.gpus.iter().map(|gpu| &gpu.info);
                let Some(layout) = layout_of(self.snapshot, &node.name, gpus, board.info) else {
                    continue;
                };
                let before = node.mig.cuts.get(&board.info.uuid);
                let refused = node
                    .gpus
                    .iter()
                    .any(|gpu| gpu.info.uuid == board.info.uuid && !gpu.refused.is_empty());
                let again_secs = if refused {
                    REFUSED_AGAIN_SECS
                } else {
                    LOST_AGAIN_SECS
                };
                let asked_before = before.is_some_and(|cut| {
                    cut.profiles == layout.layout
                        && self.snapshot.now.since_secs(cut.at) < again_secs
                });
                if board.is_cut_so(layout.layout.iter().map(String::as_str)) || asked_before {
                    continue;
                }
                let why = format!("[mig.{}] of the configuration says so", layout.name);
                cuts.push(Cut {
                    node: node.id,
                    uuid: board.info.uuid.clone(),
                    profiles: layout.layout.clone(),
                    why,
                });
            }
        }
        cuts
    }

    /// Counts a waiting job, or tasks of an array, on slices that are free or will be. `false`: not all of it.
    fn serve_all(&mut self, waiting: &NodeWait) -> bool {
        let Some(job) = self.snapshot.pending.get(waiting.at as usize) else {
            return true;
        };
        let Some(partition) = self.snapshot.config.partition(&job.spec.partition) else {
            return true;
        };
        let tasks = match &job.particulars.positions {
            None => 1,
            Some(positions) => (positions.len() as usize)
                .min(
                    job.particulars
                        .room
                        .map_or(MOST_TASKS, |room| room as usize),
                )
                .min(MOST_TASKS),
        };
        let demands = Demand::all(&job.spec.request, partition);
        let may_cut = partition.mig == MigCuts::Planned;
        (0..tasks).all(|_| {
            demands
                .iter()
                .any(|demand| self.serve(job, demand, may_cut))
        })
    }

    /// All nodes of one way to serve a job, or nothing.
    fn serve(&mut self, job: &PendingJob, demand: &Demand, may_cut: bool) -> bool {
        let before = self.nodes.clone();
        let mut taken = BTreeSet::new();
        let may_use = may_use(self.windows, self.snapshot, job);
        for wanted in &demand.nodes {
            let allowed = |at: &usize| !taken.contains(at) && may_use(*at, self.snapshot.now);
            let tried = self
                .nodes
                .iter()
                .filter(|(at, _)| allowed(at))
                .filter_map(|(at, node)| {
                    let may_cut = may_cut && !self.kept.contains(at);
                    let (after, cuts) =
                        node.with(wanted, job, may_cut, self.mem_of(*at, wanted))?;
                    Some((cuts, *at, after))
                });
            // The fewest GPUs that are cut for it.
            let Some((_, at, after)) = tried.min_by_key(|(cuts, at, _)| (*cuts, *at)) else {
                self.nodes = before;
                return false;
            };
            self.nodes.insert(at, after);
            taken.insert(at);
        }
        true
    }

    fn mem_of(&self, at: usize, wanted: &NodeDemand) -> u64 {
        let node = &self.snapshot.nodes[at];
        let kinds = node
            .mig
            .boards
            .iter()
            .flat_map(|board| board.kinds.iter().map(|kind| (&board.gpu_type, kind)));
        let serving = kinds.filter(|(gpu_type, kind)| {
            wanted
                .gpus
                .is_served_by(gpu_type, kind.memory_mib, &kind.part())
        });
        let milli = serving
            .map(|(_, kind)| kind.part().memory_milli())
            .min()
            .unwrap_or(1000);
        wanted.mem_of(node.cpus, node.mem_bytes, node.gpu_count(), milli)
    }

    /// Cuts for the queue, each GPU filled up.
    fn planned(self) -> Vec<Cut> {
        let mut cuts = Vec::new();
        for (at, node) in self.nodes {
            let id = self.snapshot.nodes[at].id;
            for board in node.boards {
                let Some(wish) = &board.wish else { continue };
                let profiles = profiles_of(board.filled(&wish.kinds));
                if !board.is_cut_so(profiles.iter().map(String::as_str)) {
                    let why = format!("job {} waits for it", wish.for_job);
                    cuts.push(Cut {
                        node: id,
                        uuid: board.info.uuid.clone(),
                        profiles,
                        why,
                    });
                }
            }
        }
        cuts
    }
}

impl<'a> CutNode<'a> {
    /// The node with a part of a job counted on it, and how many GPUs are cut for that; `None` where it has no room.
    fn with(
        &self,
        wanted: &NodeDemand,
        job: &PendingJob,
        may_cut: bool,
        mem_bytes: u64,
    ) -> Option<(Self, u32)> {
        if wanted.cpus > self.cpus
            || mem_bytes > self.mem_bytes
            || wanted.is_linked()
            || wanted.exclusive
        {
            return None;
        }
        let mut after = self.clone();
        after.cpus -= wanted.cpus;
        after.mem_bytes -= mem_bytes;
        let mut cuts = 0;
        for _ in 0..wanted.gpus.count() {
            // As it is; else beside slices that are to be cut anyway; else by one more cut, of divided GPUs first.
            let boards = &mut after.boards;
            if boards.iter_mut().any(|board| board.take_free(wanted))
                || boards.iter_mut().any(|board| may_cut && board.add(wanted))
            {
                continue;
            }
            boards.sort_by_key(|board| (!board.divided, board.info.index));
            if !may_cut || !boards.iter_mut().any(|board| board.open_for(wanted, job)) {
                return None;
            }
            cuts += 1;
        }
        Some((after, cuts))
    }
}

impl<'a> CutBoard<'a> {
    /// A GPU as it is cut, or as the cut under way leaves it. `is_free` says whether a slot is idle.
    fn new(
        gpu: &'a GpuEntry,
        node: &'a SchedNode,
        snapshot: &Snapshot,
        is_free: impl Fn(GpuSlot) -> bool,
    ) -> Self {
        let (info, mig) = (&gpu.info, &node.mig);
        let slices = || {
            node.gpus.iter().filter(|one| {
                one.present && one.info.slice.is_some() && one.info.board() == info.uuid
            })
        };
        let (mut cut, mut free) = (BTreeMap::new(), BTreeMap::new());
        let coming = mig.being_cut.get(&info.uuid);
        match coming {
            Some(profiles) => {
                for profile in profiles {
                    *cut.entry(profile.as_str()).or_default() += 1;
                    *free.entry(profile.as_str()).or_default() += 1;
                }
            }
            None => {
                for one in slices() {
                    let Some(slice) = &one.info.slice else {
                        continue;
                    };
                    *cut.entry(slice.profile.as_str()).or_default() += 1;
                    *free.entry(slice.profile.as_str()).or_default() +=
                        u32::from(is_free(one.slot));
                }
            }
        }
        let empty = match coming {
            Some(_) => true,
            None if info.divided => slices().all(|slice| is_free(slice.slot)),
            None => is_free(gpu.slot),
        };
        let was_cut_lately = mig.cuts.get(&info.uuid).is_some_and(|cut| {
            snapshot.now.since_secs(cut.at) < i64::from(snapshot.config.mig_recut_secs)
        });
        let gpus = node.gpus.iter().map(|gpu| &gpu.info);
        let kinds = mig.kinds_of(info);
        let open = node.unavailable.is_none()
            && empty
            && !was_cut_lately
            && layout_of(snapshot, &node.name, gpus, info).is_none()
            && !kinds.is_empty()
            && !mig.ordered.contains(&info.uuid);
        Self {
            info,
            divided: coming.map_or(info.divided, |profiles| !profiles.is_empty()),
            kinds,
            cut,
            free,
            empty,
            open,
            used: false,
            wish: None,
        }
    }

    /// Something that is free now and will do.
    fn take_free(&mut self, wanted: &NodeDemand) -> bool {
        if self.wish.is_some() {
            return false;
        }
        let is_slice = matches!(wanted.gpus.amount, GpuAmount::Mig { .. });
        if !self.divided {
            let takes = !is_slice && self.empty && !self.used && wanted.gpus.matches(self.info);
            self.used |= takes;
            return takes;
        }
        let (kinds, gpu_type) = (self.kinds, &self.info.gpu_type);
        let serves = |profile: &str| {
            let kind = kinds.iter().find(|kind| kind.profile == profile);
            kind.is_some_and(|kind| {
                wanted
                    .gpus
                    .is_served_by(gpu_type, kind.memory_mib, &kind.part())
            })
        };
        let Some((_, left)) = self
            .free
            .iter_mut()
            .find(|(profile, left)| **left > 0 && serves(profile))
        else {
            return false;
        };
        *left -= 1;
        self.used = true;
        true
    }

    /// One more slice on a GPU that is to be cut anyway.
    fn add(&mut self, wanted: &NodeDemand) -> bool {
        let Some(kind) = self.kind_for(wanted) else {
            return false;
        };
        let Some(wish) = self.wish.as_mut().filter(|wish| !wish.kinds.is_empty()) else {
            return false;
        };
        wish.kinds.push(kind);
        let goes = fits(&wish.kinds).is_some();
        if !goes {
            wish.kinds.pop();
        }
        goes
    }

    /// Cuts the GPU for it, or makes it whole.
    fn open_for(&mut self, wanted: &NodeDemand, job: &PendingJob) -> bool {
        if !self.open || self.used || self.wish.is_some() {
            return false;
        }
        let kinds = match (&wanted.gpus.amount, self.kind_for(wanted)) {
            (GpuAmount::Mig { .. }, None) => return false,
            (GpuAmount::Mig { .. }, Some(kind)) => vec![kind],
            // Only what is cut has to be made whole.
            _ if !self.divided || !wanted.gpus.matches(self.info) => return false,
            _ => Vec::new(),
        };
        self.wish = Some(CutWish {
            kinds,
            for_job: job.id,
        });
        true
    }

    /// The smallest kind of slice of this GPU that serves a demand; none where whole ones are asked for.
    fn kind_for(&self, wanted: &NodeDemand) -> Option<&'a MigKind> {
        let mut kinds = self.kinds.iter();
        kinds.find(|kind| {
            wanted
                .gpus
                .is_served_by(&self.info.gpu_type, kind.memory_mib, &kind.part())
        })
    }

    fn is_cut_so<'p>(&self, profiles: impl Iterator<Item = &'p str>) -> bool {
        let mut wanted: BTreeMap<&str, u32> = BTreeMap::new();
        profiles.for_each(|profile| *wanted.entry(profile).or_default() += 1);
        let is_divided = !wanted.is_empty();
        self.divided == is_divided
            && wanted.len() == self.cut.len()
            && wanted
                .iter()
                .all(|(name, count)| self.cut.get(name) == Some(count))
    }

    /// Filled up with further slices: more of the same, then the smallest.
    fn filled(&self, kinds: &[&'a MigKind]) -> Vec<&'a MigKind> {
        let mut all = kinds.to_vec();
        if all.is_empty() {
            return all;
        }
        for more in kinds.iter().copied().chain(self.kinds) {
            loop {
                all.push(more);
                if fits(&all).is_none() {
                    all.pop();
                    break;
                }
            }
        }
        all
    }
}

/// Their names in the order of their places.
fn profiles_of(kinds: Vec<&MigKind>) -> Vec<String> {
    let starts = fits(&kinds).unwrap_or_default();
    let mut placed: Vec<(u8, &str)> = starts
        .into_iter()
        .zip(kinds.iter().map(|kind| kind.profile.as_str()))
        .collect();
    placed.sort();
    placed
        .into_iter()
        .map(|(_, profile)| profile.to_owned())
        .collect()
}

/// The layout of the configuration for a GPU.
pub fn layout_of<'c, 'g>(
    snapshot: &'c Snapshot,
    node: &str,
    gpus: impl Iterator<Item = &'g GpuInfo>,
    gpu: &GpuInfo,
) -> Option<&'c MigLayout> {
    let of_type = |layout: &MigLayout, gpu: &GpuInfo| {
        layout
            .gpu_type
            .as_ref()
            .is_none_or(|name| name.eq_ignore_ascii_case(&gpu.gpu_type))
    };
    let layout = snapshot
        .config
        .mig
        .iter()
        .find(|layout| layout.nodes.contains(node) && of_type(layout, gpu))?;
    let before = gpus
        .filter(|one| one.slice.is_none() && of_type(layout, one) && one.index < gpu.index)
        .count();
    layout
        .gpus
        .is_none_or(|most| before < most as usize)
        .then_some(layout)
}

#[cfg(test)]
mod tests;
