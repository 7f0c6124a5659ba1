//! One node in a pass: what is free on it now by slot, and over time by count; what runs take and give there.
//!
//! Whole GPUs are dealt by slot only to jobs that start now. A share goes on a GPU that is shared already where that
//! has room for as long as it takes, else it opens one.

use crate::cluster::node_class::{NO_GROUP, NodeClass, NodeClassId, NodeClasses};
use crate::cluster::tenant_terms::TenantTerms;
use crate::cluster::timeline::{Amount, Count, Need, Print, Profile};
use crate::cluster::wiring;
use crate::snapshot::SchedNode;
use gmodel::gpu_set::WHOLE_GPU_MILLI;
use gmodel::run::NodeShare;
use gmodel::{GpuGrant, GpuPart, GpuSet, GpuSlot, NodeId, Timestamp};
use gpolicy::feasibility::demand::{Lack, NodeDemand};
use gpolicy::window::Window;

/// What is free on a node.
#[derive(Debug, Default)]
pub struct NodeState {
    /// Thousandths by slot, now.
    pub slots: Vec<u16>,
    pub profile: Profile,
    /// GPUs that are held in part.
    shared: Vec<SharedGpu>,
}

/// A GPU that is held in part, now or later.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SharedGpu {
    slot: u16,
    group: u8,
    /// What its shares have in common.
    terms: TenantTerms,
    /// Thousandths that are free.
    milli: Count,
    /// Whole again from then on.
    until: Timestamp,
}

/// What was taken of a node for a time that is to come, and can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    pub from: Timestamp,
    pub to: Timestamp,
    pub amount: Amount,
    /// Of a share on a GPU that is shared already: its slot, thousandths, and how long that was shared before.
    shared: Option<(u16, u32, Timestamp)>,
}

impl Clone for NodeState {
    fn clone(&self) -> Self {
        Self {
            slots: self.slots.clone(),
            profile: self.profile.clone(),
            shared: self.shared.clone(),
        }
    }

    /// Into the memory that is there already.
    fn clone_from(&mut self, source: &Self) {
        self.slots.clone_from(&source.slots);
        self.profile.clone_from(&source.profile);
        self.shared.clone_from(&source.shared);
    }
}

const WHOLE: u16 = WHOLE_GPU_MILLI as u16;
const EVER: Timestamp = Timestamp(i64::MAX);

/// Thousandths that are free of each slot now; a slot that is not offered has none.
fn free_slot_milli(class: &NodeClass, node: &SchedNode) -> Vec<u16> {
    let offered = class.slots.iter().enumerate();
    offered
        .map(|(at, group)| match *group {
            NO_GROUP => 0,
            _ => node
                .free_gpu_milli
                .get(at)
                .map_or(0, |milli| (*milli).min(WHOLE_GPU_MILLI) as u16),
        })
        .collect()
}

impl NodeState {
    /// From what is free now and what comes back when the runs there end.
    pub fn new<'a>(
        class: &NodeClass,
        node: &SchedNode,
        now: Timestamp,
        runs: impl Iterator<Item = (Timestamp, &'a NodeShare)>,
    ) -> Self {
        let offered = |at: usize| class.slots.get(at).copied().unwrap_or(NO_GROUP);
        let slots = free_slot_milli(class, node);
        let mut free = Amount {
            cpus: node.free_cpus,
            mem_bytes: node.free_mem_bytes,
            gpus: Default::default(),
        };
        let whole = (0..slots.len()).filter(|at| slots[*at] == WHOLE);
        whole.for_each(|at| free.gpus[usize::from(offered(at))] += 1);
        let mut state = Self {
            slots,
            profile: Profile::new(now, free, &[], &class.all),
            shared: Vec::new(),
        };
        let mut ends: Vec<(Timestamp, Amount)> = Vec::new();
        for (end, share) in runs {
            let end = end.max(now.plus_secs(1));
            let mut amount = Amount {
                cpus: share.cpus,
                mem_bytes: share.mem_bytes,
                gpus: Default::default(),
            };
            for grant in &share.gpus.0 {
                let at = usize::from(grant.slot.0);
                match offered(at) {
                    NO_GROUP => {}
                    group if grant.part.of_slot_milli() >= WHOLE_GPU_MILLI => {
                        amount.gpus[usize::from(group)] += 1
                    }
                    group => state
                        .shared_gpu(at as u16, group, TenantTerms::of_part(&grant.part), now)
                        .occupy(end, grant.part.milli()),
                }
            }
            ends.push((end, amount));
        }
        for gpu in &state.shared {
            let mut amount = Amount::default();
            amount.gpus[usize::from(gpu.group)] = 1;
            ends.push((gpu.until, amount));
        }
        ends.sort_by_key(|(end, _)| *end);
        state.profile = Profile::new(now, free, &ends, &class.all);
        state
    }

    /// Of a node that is idle, now and later.
    pub fn idle(class: &NodeClass, now: Timestamp) -> Self {
        let slots = class
            .slots
            .iter()
            .map(|group| if *group == NO_GROUP { 0 } else { WHOLE })
            .collect();
        Self {
            slots,
            profile: Profile::new(now, class.all, &[], &class.all),
            shared: Vec::new(),
        }
    }

    fn shared_gpu(
        &mut self,
        slot: u16,
        group: u8,
        terms: TenantTerms,
        now: Timestamp,
    ) -> &mut SharedGpu {
        let at = self
            .shared
            .iter()
            .position(|gpu| gpu.slot == slot)
            .unwrap_or_else(|| {
                let milli = Count::new(now, u32::from(self.slots[usize::from(slot)]));
                self.shared.push(SharedGpu {
                    slot,
                    group,
                    terms,
                    milli,
                    until: now,
                });
                self.shared.len() - 1
            });
        &mut self.shared[at]
    }

    /// Whether nothing is free in another at its beginning that is not free in this at its own. Shared GPUs are not looked into.
    pub fn has_now_all_of(&self, other: &Self) -> bool {
        let free = |state: &Self| state.profile.steps()[0].free;
        self.shared.is_empty()
            && other.shared.is_empty()
            && free(self).holds(&free(other))
            && self.slots.len() == other.slots.len()
            && self
                .slots
                .iter()
                .zip(&other.slots)
                .all(|(mine, theirs)| mine >= theirs)
    }

    /// Whether it is the same to every job, whenever it was worked out.
    pub fn is_as(&self, other: &Self) -> bool {
        self.slots == other.slots
            && self.shared == other.shared
            && self.profile.is_as(&other.profile)
    }

    /// A number that equal node states have in common, on nodes of one class.
    pub fn print(&self, class: NodeClassId) -> u64 {
        let mut print = Print::of(u64::from(class));
        self.slots
            .iter()
            .for_each(|milli| print.add(u64::from(*milli)));
        self.profile.print(&mut print);
        self.shared
            .iter()
            .for_each(|gpu| print.add(u64::from(gpu.slot) << 8 | u64::from(gpu.group)));
        print.0
    }

    /// Whole GPUs that are free now.
    pub fn free_gpus(&self) -> usize {
        self.slots.iter().filter(|milli| **milli == WHOLE).count()
    }

    pub fn fits(&self, need: &Need, from: Timestamp, to: Timestamp) -> bool {
        self.profile.fits(need, from, to)
            || (need.milli > 0 && self.shared_for(need, from, to).is_some())
    }

    /// Slots that have room for a share from now until a time: shared ones, and one of those that are whole.
    pub fn slots_for(
        &self,
        class: &NodeClass,
        need: &Need,
        now: Timestamp,
        to: Timestamp,
    ) -> Vec<u16> {
        let mut slots: Vec<u16> = self
            .all_shared_for(need, now, to)
            .map(|at| self.shared[at].slot)
            .collect();
        let amount = need.amount_from(&self.profile.least(now, to));
        slots
            .extend(amount.and_then(|amount| self.pick(class, &amount).first().map(|slot| slot.0)));
        slots
    }

    /// The fullest shared GPU that has room for a share, for all that time.
    fn shared_for(&self, need: &Need, from: Timestamp, to: Timestamp) -> Option<usize> {
        let milli = |at: &usize| {
            self.shared[*at]
                .milli
                .least(from, to.min(self.shared[*at].until))
        };
        self.all_shared_for(need, from, to)
            .min_by_key(|at| (milli(at), *at))
    }

    fn all_shared_for(
        &self,
        need: &Need,
        from: Timestamp,
        to: Timestamp,
    ) -> impl Iterator<Item = usize> + '_ {
        let (need, terms) = (*need, TenantTerms::of_need(need));
        let milli = u32::from(need.milli);
        let fits = move |gpu: &SharedGpu| {
            gpu.terms == terms
                && need.groups & (1 << gpu.group) != 0
                && gpu.milli.least(from, to.min(gpu.until)) >= milli
                && from < gpu.until
                && (to <= gpu.until
                    || self.profile.least(gpu.until, to).gpus[usize::from(gpu.group)] > 0)
        };
        let beside =
            !self.shared.is_empty() && need.fits_beside_gpus(&self.profile.least(from, to));
        let shared = if beside { &self.shared[..] } else { &[] };
        shared
            .iter()
            .enumerate()
            .filter(move |(_, gpu)| fits(gpu))
            .map(|(at, _)| at)
    }

    /// The first time from `from` on, before `until`, at which the need is met for `secs`.
    pub fn first(
        &self,
        need: &Need,
        from: Timestamp,
        secs: u32,
        until: Timestamp,
    ) -> Option<Timestamp> {
        let whole = self.profile.first(need, from, secs, until);
        if need.milli == 0 || self.shared.is_empty() {
            return whole;
        }
        let before = whole.unwrap_or(until);
        let mut times: Vec<Timestamp> = self.profile.steps().iter().map(|step| step.at).collect();
        times.extend(self.shared.iter().flat_map(|gpu| gpu.milli.times()));
        times.retain(|at| *at > from && *at < before);
        times.push(from);
        times.sort();
        let fits = |at: &Timestamp| {
            self.shared_for(need, *at, at.plus_secs(i64::from(secs)))
                .is_some()
        };
        times
            .into_iter()
            .filter(|at| *at < before)
            .find(fits)
            .or(whole)
    }

    /// GPUs that are shared on other terms and have as much left as a share needs.
    pub fn shared_otherwise(&self, need: &Need, now: Timestamp) -> usize {
        let terms = TenantTerms::of_need(need);
        let has_room = |gpu: &&SharedGpu| {
            gpu.terms != terms && gpu.milli.least(now, now.plus_millis(1)) >= u32::from(need.milli)
        };
        self.shared
            .iter()
            .filter(|gpu| need.groups & (1 << gpu.group) != 0)
            .filter(has_room)
            .count()
    }

    /// The next time at which more or less is free.
    pub fn next_change(&self, after: Timestamp) -> Option<Timestamp> {
        let steps = self.profile.steps();
        let at = steps.partition_point(|step| step.at <= after);
        let shared = self
            .shared
            .iter()
            .flat_map(|gpu| gpu.milli.times())
            .filter(|at| *at > after)
            .min();
        steps
            .get(at)
            .map(|step| step.at)
            .into_iter()
            .chain(shared)
            .min()
    }

    /// How long a need is met from now on; `None`: for ever.
    pub fn until(&self, need: &Need, from: Timestamp) -> Option<Timestamp> {
        self.profile.until(need, from)
    }

    /// Takes what is needed for a time; `None` when it is not there.
    ///
    /// Nothing is taken where not all of it is there.
    pub fn hold(&mut self, need: &Need, from: Timestamp, to: Timestamp) -> Option<Hold> {
        if need.milli > 0
            && let Some(at) = self.shared_for(need, from, to)
        {
            return Some(self.hold_share(at, need, from, to));
        }
        let amount = need.amount_from(&self.profile.least(from, to))?;
        self.profile.take(from, to, &amount);
        Some(Hold {
            from,
            to,
            amount,
            shared: None,
        })
    }

    fn hold_share(&mut self, at: usize, need: &Need, from: Timestamp, to: Timestamp) -> Hold {
        let amount = Amount {
            cpus: need.cpus,
            mem_bytes: need.mem_bytes,
            gpus: Default::default(),
        };
        let gpu = &mut self.shared[at];
        let shared = Some((gpu.slot, u32::from(need.milli), gpu.until));
        gpu.milli.take(from, to, u32::from(need.milli));
        let before = gpu.until;
        gpu.until = before.max(to);
        let mut longer = Amount::default();
        longer.gpus[usize::from(gpu.group)] = 1;
        self.profile.take(from, to, &amount);
        self.profile.take(before, to, &longer);
        Hold {
            from,
            to,
            amount,
            shared,
        }
    }

    /// Gives back what was taken last: holds of one node are given back in the opposite order.
    pub fn release(&mut self, hold: &Hold) {
        self.profile.give(hold.from, hold.to, &hold.amount);
        if let Some((slot, milli, before)) = hold.shared
            && let Some(gpu) = self.shared.iter_mut().find(|gpu| gpu.slot == slot)
        {
            gpu.milli.give(hold.from, hold.to, milli);
            let mut longer = Amount::default();
            longer.gpus[usize::from(gpu.group)] = 1;
            self.profile.give(before, hold.to, &longer);
            gpu.until = before;
        }
    }

    /// Whether what was given back can be taken again, though others have taken something meanwhile.
    pub fn can_hold_again(&self, hold: &Hold) -> bool {
        let has =
            |from: Timestamp, amount: &Amount| self.profile.least(from, hold.to).holds(amount);
        let shared = |(slot, milli, before): (u16, u32, Timestamp)| {
            self.shared
                .iter()
                .find(|gpu| gpu.slot == slot && gpu.until == before)
                .is_some_and(|gpu| {
                    let mut longer = Amount::default();
                    longer.gpus[usize::from(gpu.group)] = 1;
                    gpu.milli.least(hold.from, hold.to.min(before)) >= milli
                        && (hold.to <= before || has(before, &longer))
                })
        };
        has(hold.from, &hold.amount) && hold.shared.is_none_or(shared)
    }

    /// Takes again what was just given back.
    pub fn hold_again(&mut self, hold: &Hold) {
        self.profile.take(hold.from, hold.to, &hold.amount);
        if let Some((slot, milli, before)) = hold.shared
            && let Some(gpu) = self.shared.iter_mut().find(|gpu| gpu.slot == slot)
        {
            gpu.milli.take(hold.from, hold.to, milli);
            gpu.until = before.max(hold.to);
            let mut longer = Amount::default();
            longer.gpus[usize::from(gpu.group)] = 1;
            self.profile.take(before, hold.to, &longer);
        }
    }

    /// Starts a run here: takes the need for a time, and says which slots the run holds. It holds the slots of `liked`, where
    /// any are: one for a share, all for whole GPUs.
    pub fn start(
        &mut self,
        class: &NodeClass,
        node: NodeId,
        need: &Need,
        liked: &[u16],
        tasks: u32,
        during: Window,
    ) -> Option<NodeShare> {
        let Window { from: now, to } = during;
        let gpus = match need.milli {
            0 => {
                let amount = self.amount(class, need, now, to)?;
                let slots = match liked {
                    [] => self
                        .best_joined(class, need, now, to)
                        .unwrap_or_else(|| self.pick(class, &amount)),
                    liked => liked.iter().map(|slot| GpuSlot(*slot)).collect(),
                };
                self.profile.take(now, to, &amount);
                slots
                    .iter()
                    .for_each(|slot| self.slots[usize::from(slot.0)] = 0);
                let part = |slot: GpuSlot| {
                    class.groups[usize::from(class.slots[usize::from(slot.0)])]
                        .part
                        .clone()
                };
                GpuSet(
                    slots
                        .into_iter()
                        .map(|slot| GpuGrant {
                            slot,
                            part: part(slot),
                        })
                        .collect(),
                )
            }
            _ => self.start_share(class, need, liked.first().copied(), now, to)?,
        };
        Some(NodeShare {
            node,
            cpus: need.cpus,
            mem_bytes: need.mem_bytes,
            gpus,
            tasks,
        })
    }

    /// The slots of whole GPUs that `start` gives by itself; `None` where there is no room, or GPUs are not given whole.
    pub(crate) fn slots_by_itself(
        &self,
        class: &NodeClass,
        need: &Need,
        during: Window,
    ) -> Option<Vec<u16>> {
        let Window { from, to } = during;
        if need.milli > 0 || need.gpus == 0 {
            return None;
        }
        let slots = match self.best_joined(class, need, from, to) {
            Some(slots) => slots,
            None => self.pick(class, &self.amount(class, need, from, to)?),
        };
        Some(slots.into_iter().map(|slot| slot.0).collect())
    }

    /// Slots that nothing is held of.
    pub(crate) fn free_slots(&self, class: &NodeClass) -> Vec<u16> {
        let free = |at: &usize| self.slots[*at] == WHOLE && class.slots[*at] != NO_GROUP;
        (0..self.slots.len())
            .filter(free)
            .map(|at| at as u16)
            .collect()
    }

    fn start_share(
        &mut self,
        class: &NodeClass,
        need: &Need,
        liked: Option<u16>,
        now: Timestamp,
        to: Timestamp,
    ) -> Option<GpuSet> {
        let milli = u32::from(need.milli);
        let shared = match liked {
            Some(slot) => self
                .all_shared_for(need, now, to)
                .find(|at| self.shared[*at].slot == slot),
            None => self.shared_for(need, now, to),
        };
        let slot = match shared {
            Some(at) => {
                self.hold_share(at, need, now, to);
                self.shared[at].slot
            }
            None => {
                let amount = need.amount_from(&self.profile.least(now, to))?;
                self.profile.take(now, to, &amount);
                let slot = self.pick(class, &amount).first()?.0;
                let group = class.slots[usize::from(slot)];
                self.shared_gpu(slot, group, TenantTerms::of_need(need), now)
                    .take_for(now, to, milli);
                slot
            }
        };
        self.slots[usize::from(slot)] -= milli as u16;
        let group = usize::from(class.slots[usize::from(slot)]);
        let memory_mib = class
            .groups
            .get(group)
            .map_or(0, |g| g.memory_mib * u64::from(milli) / 1000);
        Some(GpuSet(vec![GpuGrant {
            slot: GpuSlot(slot),
            part: GpuPart::Share {
                milli,
                memory_mib,
                tenant: need.tenant,
            },
        }]))
    }

    /// What a need takes that is served from now on: of which kinds its whole GPUs are.
    pub fn amount(
        &self,
        class: &NodeClass,
        need: &Need,
        now: Timestamp,
        to: Timestamp,
    ) -> Option<Amount> {
        let Some(slots) = self.best_joined(class, need, now, to) else {
            return need.amount_from(&self.profile.least(now, to));
        };
        let mut amount = Amount {
            cpus: need.cpus,
            mem_bytes: need.mem_bytes,
            gpus: Default::default(),
        };
        slots
            .iter()
            .for_each(|slot| amount.gpus[usize::from(class.slots[usize::from(slot.0)])] += 1);
        Some(amount)
    }

    /// The slots that are joined best, where GPUs are joined unlike; `None` where they are not, or there is no room.
    fn best_joined(
        &self,
        class: &NodeClass,
        need: &Need,
        now: Timestamp,
        to: Timestamp,
    ) -> Option<Vec<GpuSlot>> {
        let wiring = class
            .wiring
            .as_ref()
            .filter(|_| need.milli == 0 && need.gpus > 0)?;
        let of_need = |group: usize| need.groups & (1 << group) != 0;
        if class
            .groups
            .iter()
            .enumerate()
            .any(|(at, group)| of_need(at) && group.part != GpuPart::Whole)
        {
            return None;
        }
        let least = self.profile.least(now, to);
        if !need.fits_beside_gpus(&least) {
            return None;
        }
        let is_whole = |at: &usize| {
            self.slots[*at] == WHOLE
                && class.groups[usize::from(class.slots[*at])].part == GpuPart::Whole
        };
        let free: Vec<usize> = (0..self.slots.len()).filter(is_whole).collect();
        let best_of = |kinds: &dyn Fn(usize) -> bool| {
            let serving: Vec<usize> = free
                .iter()
                .copied()
                .filter(|at| kinds(usize::from(class.slots[*at])))
                .collect();
            let ask = wiring::SlotRequest {
                serving: &serving,
                free: &free,
                count: usize::from(need.gpus),
                groups: &class.slots,
                most: least.gpus,
            };
            wiring.best(&ask)
        };
        let set = match need.one_group {
            false => best_of(&of_need),
            true => {
                let sets = (0..class.groups.len())
                    .rev()
                    .filter(|at| of_need(*at))
                    .filter_map(|at| best_of(&|group| group == at));
                sets.max_by_key(|set| wiring.worth(set, &free))
            }
        };
        Some(set?.into_iter().map(|slot| GpuSlot(slot as u16)).collect())
    }

    /// Free slots for these counts: all on one NUMA node where one has enough, the fullest such; then the lowest. Slices
    /// come from the GPU that has the fewest left, so that others can be empty.
    fn pick(&self, class: &NodeClass, amount: &Amount) -> Vec<GpuSlot> {
        let mut picked = Vec::new();
        for (group, count) in amount
            .gpus
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
        {
            let count = usize::from(*count);
            let free = |numa: Option<u32>| {
                let of_group = move |at: &usize| {
                    usize::from(class.slots[*at]) == group && self.slots[*at] == WHOLE
                };
                (0..self.slots.len())
                    .filter(of_group)
                    .filter(move |at| numa.is_none() || class.numa[*at] == numa)
            };
            let mut numas: Vec<u32> = free(None).filter_map(|at| class.numa[at]).collect();
            numas.sort_unstable();
            numas.dedup();
            let sizes = numas.iter().map(|numa| (free(Some(*numa)).count(), *numa));
            let near = sizes
                .filter(|(size, _)| *size >= count)
                .min()
                .map(|(_, numa)| numa);
            let mut free: Vec<usize> = free(near).collect();
            if class
                .groups
                .get(group)
                .is_some_and(|group| group.part != GpuPart::Whole)
            {
                let left = |at: &usize| {
                    (0..self.slots.len())
                        .filter(|other| {
                            class.boards[*other] == class.boards[*at] && self.slots[*other] == WHOLE
                        })
                        .count()
                };
                free.sort_by_cached_key(|at| (left(at), class.boards[*at], *at));
            }
            picked.extend(free.into_iter().take(count).map(|at| GpuSlot(at as u16)));
        }
        picked.sort();
        picked
    }

    /// Slots that are free are withheld for a time.
    pub fn hold_back(
        &mut self,
        class: &NodeClass,
        slots: &[u16],
        now: Timestamp,
        until: Timestamp,
    ) {
        let mut amount = Amount::default();
        for slot in slots.iter().map(|slot| usize::from(*slot)) {
            self.slots[slot] = 0;
            amount.gpus[usize::from(class.slots[slot])] += 1;
        }
        self.profile.take(now, until, &amount);
    }

    /// A share that a run holds until `end` is expected back at an earlier time; until then it is held. A GPU that is shared
    /// counts as shared for as long as before.
    pub fn leave_at(
        &mut self,
        class: &NodeClass,
        share: &NodeShare,
        at: Timestamp,
        end: Timestamp,
    ) {
        let mut amount = Amount {
            cpus: share.cpus,
            mem_bytes: share.mem_bytes,
            gpus: Default::default(),
        };
        for grant in &share.gpus.0 {
            let slot = usize::from(grant.slot.0);
            let group = class.slots.get(slot).copied().unwrap_or(NO_GROUP);
            if group != NO_GROUP && grant.part.of_slot_milli() >= WHOLE_GPU_MILLI {
                amount.gpus[usize::from(group)] += 1;
            }
        }
        self.profile.give(at, end, &amount);
    }

    /// Gives back a share that a run holds until `end`: as if it ended now.
    pub fn leave(&mut self, class: &NodeClass, share: &NodeShare, now: Timestamp, end: Timestamp) {
        let end = end.max(now.plus_secs(1));
        let mut amount = Amount {
            cpus: share.cpus,
            mem_bytes: share.mem_bytes,
            gpus: Default::default(),
        };
        for grant in &share.gpus.0 {
            let at = usize::from(grant.slot.0);
            let group = class.slots.get(at).copied().unwrap_or(NO_GROUP);
            if group == NO_GROUP {
                continue;
            }
            let milli = grant.part.of_slot_milli().min(WHOLE_GPU_MILLI) as u16;
            self.slots[at] = (self.slots[at] + milli).min(WHOLE);
            if milli == WHOLE {
                amount.gpus[usize::from(group)] += 1;
            } else if let Some(place) = self
                .shared
                .iter()
                .position(|gpu| usize::from(gpu.slot) == at)
            {
                self.shared[place].milli.give(now, end, u32::from(milli));
                if self.slots[at] == WHOLE
                    && self.shared[place].milli.least(now, EVER) == WHOLE_GPU_MILLI
                {
                    let gpu = self.shared.remove(place);
                    let mut whole = Amount::default();
                    whole.gpus[usize::from(group)] = 1;
                    self.profile.give(now, gpu.until, &whole);
                }
            }
        }
        self.profile.give(now, end, &amount);
    }
}

impl SharedGpu {
    /// Part of what is held now; it comes back at `end`.
    fn occupy(&mut self, end: Timestamp, milli: u32) {
        self.milli.give(end, EVER, milli);
        self.until = self.until.max(end);
    }
    fn take_for(&mut self, now: Timestamp, to: Timestamp, milli: u32) {
        self.milli.take(now, to, milli);
        self.until = self.until.max(to);
    }
}

/// The share that a demand takes of a node as it is, or what is missing.
pub fn share_on(node: &SchedNode, demand: &NodeDemand) -> Result<NodeShare, Lack> {
    let mut classes = NodeClasses::default();
    let class = classes.of(node);
    let class = &classes.list[class as usize];
    let need = class.need(demand)?;
    let now = Timestamp::default();
    let mut state = NodeState::new(class, node, now, std::iter::empty());
    // GPUs held in part by runs that are not named here stay so.
    for at in 0..state.slots.len() {
        if (1..WHOLE).contains(&state.slots[at]) {
            let gpu = state.shared_gpu(at as u16, class.slots[at], TenantTerms::default(), now);
            gpu.until = EVER;
        }
    }
    let free = state.profile.free_at(now);
    let lack = match () {
        () if need.cpus > free.cpus => Lack::Cpus,
        () if need.mem_bytes > free.mem_bytes => Lack::Memory,
        () => Lack::Gpus,
    };
    let window = Window {
        from: now,
        to: now.plus_secs(1),
    };
    let share = state.start(class, node.id, &need, &[], demand.tasks, window);
    share.ok_or(lack)
}
