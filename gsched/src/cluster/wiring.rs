//! Which GPUs of a node go together: the set that is joined best, and among sets joined as well the one that leaves the rest joined best.
//!
//! A job keeps its GPUs for all its run, so its own links come first; the rest may serve later jobs. A job that needs an island
//! asks with `--nvlink`. On uniform boards most choices are ties, and the rest decides.
//! Idea: MAPA (Ranganath et al., SC'21), with bandwidth first. Looks at [`MOST_SETS`] sets at most, and goes on greedily.

use crate::cluster::timeline::GROUPS;
use gmodel::gpu_link::GpuLink;
use gmodel::node::{GpuEntry, GpuInfo};

/// Sets that are compared one by one: all there are of eight GPUs, and pairs and threes of sixteen.
pub const MOST_SETS: u64 = 600;

/// How well each two slots of a node class are joined; only of nodes where that differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wiring {
    slots: usize,
    /// By slot times slots plus slot.
    weights: Vec<u32>,
}

/// What is to be chosen from.
#[derive(Clone, Copy, Debug)]
pub struct SlotRequest<'a> {
    /// Slots that will do and are free, in order.
    pub serving: &'a [usize],
    /// All that are free: what is not taken of them stays for others.
    pub free: &'a [usize],
    pub count: usize,
    /// Kind of each slot, and how many of each kind may be taken.
    pub groups: &'a [u8],
    pub most: [u8; GROUPS],
}

/// How good a set is; more is better, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetQuality {
    /// The weakest way within: what a collective over all is as fast as.
    pub weakest: u32,
    pub sum: u32,
    /// All ways between those that stay free.
    pub left: u32,
}

/// A set as it grows.
#[derive(Clone, Debug)]
struct GrowingSet {
    slots: Vec<usize>,
    taken: [u8; GROUPS],
    weakest: u32,
    sum: u32,
}

impl Wiring {
    /// `None` where all GPUs are joined alike, or nothing is known: then memory nodes alone decide.
    pub fn of(gpus: &[GpuEntry]) -> Option<Self> {
        let whole = |gpu: &GpuEntry| gpu.usable() && gpu.info.slice.is_none();
        let pairs = || {
            gpus.iter()
                .enumerate()
                .filter(|(_, gpu)| whole(gpu))
                .flat_map(|(at, one)| {
                    gpus[..at]
                        .iter()
                        .filter(|gpu| whole(gpu))
                        .map(move |other| (one, other))
                })
        };
        let mut alternatives = pairs().map(|(one, other)| alternative(&one.info, &other.info));
        let first = alternatives.next()?;
        if alternatives.all(|other| other == first) {
            return None;
        }
        let mut weights = vec![0; gpus.len() * gpus.len()];
        for (one, other) in pairs() {
            let near = one.info.numa.is_some() && one.info.numa == other.info.numa;
            let weight = alternative(&one.info, &other.info) + u32::from(near);
            for (a, b) in [(one, other), (other, one)] {
                weights[usize::from(a.slot.0) * gpus.len() + usize::from(b.slot.0)] = weight;
            }
        }
        Some(Self {
            slots: gpus.len(),
            weights,
        })
    }

    /// More is better.
    fn between(&self, one: usize, other: usize) -> u32 {
        self.weights
            .get(one * self.slots + other)
            .copied()
            .unwrap_or(0)
    }

    pub fn worth(&self, set: &[usize], free: &[usize]) -> SetQuality {
        let stay: Vec<usize> = free
            .iter()
            .copied()
            .filter(|slot| !set.contains(slot))
            .collect();
        let (weakest, sum) = self.joined(set);
        SetQuality {
            weakest,
            sum,
            left: self.joined(&stay).1,
        }
    }

    fn joined(&self, set: &[usize]) -> (u32, u32) {
        let pairs = set
            .iter()
            .enumerate()
            .flat_map(|(at, one)| set[..at].iter().map(|other| self.between(*one, *other)));
        pairs.fold((u32::MAX, 0), |(weakest, sum), weight| {
            (weakest.min(weight), sum + weight)
        })
    }

    /// The best set; of equals the one with the lowest slots. `None` where there are not so many.
    pub fn best(&self, ask: &SlotRequest) -> Option<Vec<usize>> {
        if sets(ask.serving.len(), ask.count) > MOST_SETS {
            let grown = ask.serving.iter().filter_map(|seed| self.grown(ask, *seed));
            return grown.rev().max_by_key(|set| self.worth(set, ask.free));
        }
        let mut best = None;
        self.try_all(ask, 0, &GrowingSet::new(), &mut best);
        best.map(|(_, set)| set)
    }

    fn try_all(
        &self,
        ask: &SlotRequest,
        from: usize,
        so_far: &GrowingSet,
        best: &mut Option<(SetQuality, Vec<usize>)>,
    ) {
        if so_far.slots.len() == ask.count {
            let worth = self.worth(&so_far.slots, ask.free);
            if best.as_ref().is_none_or(|(most, _)| worth > *most) {
                *best = Some((worth, so_far.slots.clone()));
            }
            return;
        }
        for at in from..ask.serving.len() {
            // Nothing that is added makes the weakest way stronger.
            if let Some(more) = self.with(so_far, ask, ask.serving[at])
                && best
                    .as_ref()
                    .is_none_or(|(most, _)| more.weakest >= most.weakest)
            {
                self.try_all(ask, at + 1, &more, best);
            }
        }
    }

    /// A set that grows from one GPU by the one that is joined best to all in it.
    fn grown(&self, ask: &SlotRequest, seed: usize) -> Option<Vec<usize>> {
        let mut set = self.with(&GrowingSet::new(), ask, seed)?;
        while set.slots.len() < ask.count {
            let more = ask
                .serving
                .iter()
                .rev()
                .filter(|slot| !set.slots.contains(slot))
                .filter_map(|slot| self.with(&set, ask, *slot));
            set = more.max_by_key(|more| (more.weakest, more.sum))?;
        }
        set.slots.sort_unstable();
        Some(set.slots)
    }

    fn with(&self, set: &GrowingSet, ask: &SlotRequest, slot: usize) -> Option<GrowingSet> {
        let group = usize::from(*ask.groups.get(slot)?);
        let mut more = set.clone();
        more.taken[group] += 1;
        for other in &set.slots {
            let weight = self.between(slot, *other);
            more.weakest = more.weakest.min(weight);
            more.sum += weight;
        }
        more.slots.push(slot);
        (more.taken[group] <= ask.most[group]).then_some(more)
    }
}

impl GrowingSet {
    fn new() -> Self {
        Self {
            slots: Vec::new(),
            taken: [0; GROUPS],
            weakest: u32::MAX,
            sum: 0,
        }
    }
}

/// An older gpud tells islands alone.
fn alternative(one: &GpuInfo, other: &GpuInfo) -> u32 {
    let told = one.links.get(&other.minor).copied();
    let joined = one.nvlink_island.is_some() && one.nvlink_island == other.nvlink_island;
    told.unwrap_or(if joined {
        GpuLink::Nvlink(1)
    } else {
        GpuLink::Unknown
    })
    .weight()
}

/// How many sets of so many there are; too many are as good as the most.
fn sets(of: usize, count: usize) -> u64 {
    let count = count.min(of.saturating_sub(count));
    (0..count as u64).fold(1u64, |sets, at| {
        sets.saturating_mul(of as u64 - at) / (at + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wiring(slots: usize, weight: impl Fn(usize, usize) -> u32) -> Wiring {
        let weights = (0..slots * slots)
            .map(|at| (at / slots, at % slots))
            .map(|(a, b)| {
                if a == b {
                    0
                } else {
                    weight(a.min(b), a.max(b))
                }
            });
        Wiring {
            slots,
            weights: weights.collect(),
        }
    }

    fn best(wiring: &Wiring, free: &[usize], count: usize) -> Option<Vec<usize>> {
        let groups = vec![0; wiring.slots];
        wiring.best(&SlotRequest {
            serving: free,
            free,
            count,
            groups: &groups,
            most: [u8::MAX; GROUPS],
        })
    }

    /// Every set of so many, as plainly as can be.
    fn all_sets(of: &[usize], count: usize) -> Vec<Vec<usize>> {
        let bits = (0u32..1 << of.len()).filter(|bits| bits.count_ones() as usize == count);
        bits.map(|bits| {
            (0..of.len())
                .filter(|at| bits & (1 << at) != 0)
                .map(|at| of[at])
                .collect()
        })
        .collect()
    }

    proptest! {
        #[test]
        fn up_to_eight_free_gpus_give_the_best_set_there_is(
            alternatives in prop::collection::vec(prop::sample::select(vec![4u32, 8, 20, 100, 200]), 64), busy in prop::collection::btree_set(0usize..8, 0..6),
            count in 1usize..8, kinds in prop::collection::vec(0u8..3, 8), most in prop::array::uniform3(0u8..5),
        ) {
            let wiring = wiring(8, |a, b| alternatives[a * 8 + b]);
            let free: Vec<usize> = (0..8).filter(|slot| !busy.contains(slot)).collect();
            let mut limits = [0; GROUPS];
            limits[..3].copy_from_slice(&most);
            let ask = SlotRequest { serving: &free, free: &free, count, groups: &kinds, most: limits };
            let allowed = |set: &Vec<usize>| (0..3u8).all(|kind| set.iter().filter(|slot| kinds[**slot] == kind).count() <= usize::from(most[usize::from(kind)]));
            let want = all_sets(&free, count).into_iter().filter(allowed).map(|set| wiring.worth(&set, &free)).max();
            prop_assert_eq!(wiring.best(&ask).map(|set| wiring.worth(&set, &free)), want);
        }

        #[test]
        fn of_many_gpus_a_set_stays_within_an_island_that_is_large_enough(
            alternatives in prop::collection::vec(prop::sample::select(vec![4u32, 8]), 256), island in 2usize..9, count in 4usize..9,
        ) {
            let wiring = wiring(16, |a, b| if a / island == b / island { 200 } else { alternatives[a * 16 + b] });
            let free: Vec<usize> = (0..16).collect();
            let set = best(&wiring, &free, count).unwrap();
            prop_assert_eq!(set.len(), count);
            prop_assert!(set.windows(2).all(|two| two[0] < two[1]));
            if count <= island {
                prop_assert_eq!(wiring.worth(&set, &free).weakest, 200, "within an island");
            }
        }
    }

    #[test]
    fn what_is_joined_as_well_leaves_the_other_island_whole() {
        let islands = wiring(8, |a, b| if a / 4 == b / 4 { 200 } else { 4 });
        assert_eq!(
            best(&islands, &[0, 1, 2, 3, 5, 6], 2),
            Some(vec![5, 6]),
            "the broken island first"
        );
        assert_eq!(best(&islands, &[0, 1, 2, 3, 5, 6], 1), Some(vec![5]));
        assert_eq!(best(&islands, &[0, 1, 5, 6, 7], 3), Some(vec![5, 6, 7]));
        assert_eq!(
            best(&islands, &[0, 1, 2, 3, 4, 5, 6, 7], 6),
            Some(vec![0, 1, 2, 3, 4, 5]),
            "one whole, the rest of the other"
        );
        assert_eq!(best(&islands, &[0, 1], 3), None);
    }

    #[test]
    fn two_links_are_better_than_one_and_one_better_than_any_bus() {
        // A triangle of slots 0, 1, 2 with one link each, but 1-2 has two; 3 hangs on the same PCIe switch as 0.
        let links = wiring(4, |a, b| match (a, b) {
            (1, 2) => 200,
            (0, 3) => 20,
            (_, 3) => 4,
            _ => 100,
        });
        assert_eq!(best(&links, &[0, 1, 2, 3], 2), Some(vec![1, 2]));
        assert_eq!(best(&links, &[0, 1, 3], 2), Some(vec![0, 1]));
        assert_eq!(best(&links, &[0, 3], 2), Some(vec![0, 3]));
    }

    #[test]
    fn work_is_bounded() {
        assert_eq!(
            (
                sets(8, 4),
                sets(16, 3),
                sets(16, 8),
                sets(3, 5),
                sets(64, 32) > MOST_SETS
            ),
            (70, 560, 12_870, 1, true)
        );
    }
}
