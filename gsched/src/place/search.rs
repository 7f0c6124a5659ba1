//! Nodes for one alternative of a job in a window of time.
//!
//! Nodes are tried in the order of the placement policy (`fitting_nodes.rs`), so mostly the first that fits is taken. A gang
//! gets one NVLink domain, or else as few leaf switches as possible (`network.rs`).

use crate::cluster::network::Network;
use crate::cluster::nodes::Cluster;
use crate::cluster::picked::{PickedNodes, count, each, stretches};
use crate::job::job_class::{JobAlternative, JobClass};
use crate::place::score::Scores;
use crate::place::search_memo::SearchMemo;
use crate::snapshot::Snapshot;
use fixedbitset::FixedBitSet;
use gmodel::Timestamp;
use gpolicy::pending_job::UNLIMITED_SECS;
use gpolicy::reserved_nodes::Windows;
use gpolicy::window::Window;
use std::ops::Range;

/// The world that is searched, and the work that is left for it.
pub struct Search<'a> {
    pub cluster: &'a Cluster,
    pub windows: &'a Windows,
    pub network: &'a Network,
    pub scores: &'a mut Scores,
    pub memo: &'a mut SearchMemo,
    pub snapshot: &'a Snapshot,
    /// Node states that may still be looked at.
    pub probes_left: &'a mut u64,
}

/// What a job asks of its nodes.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    pub job_class: &'a JobClass,
    /// Nodes to take last.
    pub avoid: &'a [usize],
    /// The only nodes to take.
    pub only: Option<&'a FixedBitSet>,
    /// Leaf switches at most.
    pub most_leaves: Option<u32>,
    /// Seconds after the job's limit in which no other reservation may begin.
    pub beyond_secs: i64,
    /// Seconds that its own reservation's window must still have at the start.
    pub least_secs: u32,
}

impl Ask<'_> {
    /// Whether the job may use a node, whatever is free there.
    pub(super) fn may_use(&self, at: usize) -> bool {
        self.job_class.candidates.up.contains(at) && self.only.is_none_or(|only| only.contains(at))
    }

    /// How many of some nodes the job may use.
    pub(super) fn count(&self, nodes: Range<usize>) -> usize {
        match self.only {
            None => self.job_class.candidates.up_in(nodes),
            Some(_) => nodes.filter(|at| self.may_use(*at)).count(),
        }
    }

    /// Whether some of its nodes rank before others that fit as well.
    pub(super) fn has_preference(&self) -> bool {
        !self.avoid.is_empty() || self.job_class.preferred.is_some()
    }
}

/// Keeps the first `most` nodes; how many there are then.
pub(super) fn keep_first(nodes: &mut Vec<Range<usize>>, most: usize) -> usize {
    let mut left = most;
    nodes.retain_mut(|stretch| {
        stretch.end = stretch.end.min(stretch.start.saturating_add(left));
        left -= stretch.len();
        stretch.start < stretch.end
    });
    most - left
}

impl Search<'_> {
    /// Nodes for all parts of an alternative from `from` until `to`, or none.
    pub fn pick(
        &mut self,
        ask: &Ask,
        alternative: usize,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<PickedNodes> {
        let job_class = ask.job_class;
        let of = &job_class.alternatives[alternative];
        let window = Window { from, to };
        if of.nodes == 1 {
            return match job_class.named.is_empty() {
                true => self.best(ask, of, window).map(|at| vec![(at..at + 1, 0)]),
                false => self.pick_many(ask, of, window),
            };
        }
        let has_domains = !self.network.domains.is_empty() && of.smallest().least_gpus() > 0;
        if has_domains && let Some(picked) = self.pick_in_domain(ask, of, window) {
            return Some(picked);
        }
        // Where some candidates are in domains, `--nvlink` means one of those.
        let must_be_in_domain = has_domains
            && job_class.spec.request.nvlink
            && self
                .network
                .domains
                .iter()
                .any(|domain| !domain.is_disjoint(&job_class.candidates.up));
        match must_be_in_domain {
            true => None,
            false => self.pick_near(ask, of, window),
        }
    }

    /// The longest time from `now` on for which an alternative can be served: at least `least` and at most `most` seconds.
    pub fn longest(
        &mut self,
        ask: &Ask,
        alternative: usize,
        now: Timestamp,
        least: u32,
        most: u32,
    ) -> Option<(u32, PickedNodes)> {
        let mut pick = |secs: u32| self.pick(ask, alternative, now, now.plus_secs(i64::from(secs)));
        pick(least)?;
        let (mut low, mut high) = (least, most.min(UNLIMITED_SECS));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match pick(middle) {
                Some(_) => low = middle,
                None => high = middle - 1,
            }
        }
        pick(low).map(|picked| (low, picked))
    }

    /// Nodes of one NVLink domain: of the domains with enough fitting nodes the one with the fewest.
    fn pick_in_domain(
        &mut self,
        ask: &Ask,
        of: &JobAlternative,
        window: Window,
    ) -> Option<PickedNodes> {
        let fitting = self.all_fitting(ask, of.smallest(), window);
        let network = self.network;
        let mut sizes = sizes_of(&network.domains, &fitting);
        sizes.retain(|(size, _)| *size >= of.nodes as usize);
        sizes.into_iter().find_map(|(_, at)| {
            let domain = &network.domains[at];
            let only: FixedBitSet = domain.intersection(&fitting).collect();
            let within = Ask {
                only: Some(&only),
                ..*ask
            };
            // Named nodes are taken wherever they are.
            self.pick_near(&within, of, window)
                .filter(|picked| each(picked).all(|(at, _)| domain.contains(at)))
        })
    }

    /// Nodes below as few leaf switches as possible.
    fn pick_near(&mut self, ask: &Ask, of: &JobAlternative, window: Window) -> Option<PickedNodes> {
        if self.network.leaves.is_empty() {
            return self.pick_many(ask, of, window);
        }
        let fitting = self.all_fitting(ask, of.smallest(), window);
        let (network, nodes) = (self.network, of.nodes as usize);
        let sizes = sizes_of(&network.leaves, &fitting);
        let mut pick_among = |some: &FixedBitSet| {
            let mut only = fitting.clone();
            only.intersect_with(some);
            let among = Ask {
                only: Some(&only),
                ..*ask
            };
            self.pick_many(&among, of, window)
        };
        if let Some(most) = ask.most_leaves {
            let choices = network.choices(&sizes, &ask.job_class.named, most as usize, nodes);
            return choices.iter().find_map(|choice| {
                pick_among(choice).filter(|picked| network.leaves_of(picked) <= most)
            });
        }
        let mut alone = sizes.iter().filter(|(size, _)| *size >= nodes);
        alone
            .find_map(|(_, leaf)| pick_among(&network.leaves[*leaf]))
            .or_else(|| {
                // Below several: the leaf switches with the most fitting nodes first.
                let mut union = FixedBitSet::with_capacity(fitting.len());
                let mut have = 0;
                sizes.iter().rev().find_map(|(size, leaf)| {
                    union.union_with(&network.leaves[*leaf]);
                    have += size;
                    (have >= nodes).then(|| pick_among(&union)).flatten()
                })
            })
    }

    /// Named nodes first, then those that the placement policy ranks first.
    fn pick_many(&mut self, ask: &Ask, of: &JobAlternative, window: Window) -> Option<PickedNodes> {
        let job_class = ask.job_class;
        let nodelist = job_class.spec.request.nodelist.as_ref();
        if nodelist.is_some_and(|list| job_class.named.len() < list.len()) {
            return None;
        }
        let mut picked = PickedNodes::new();
        let mut named = job_class.named.iter().copied();
        for (part, group) in of.parts.iter().enumerate() {
            let wanted = group.count as usize;
            let of_named = named.by_ref().take(wanted);
            let before = picked.len();
            for at in of_named {
                let need = group.need(self.cluster.nodes[at].node_class)?;
                if !job_class.candidates.up.contains(at) || !self.fits(ask, at, need, window) {
                    return None;
                }
                picked.push((at..at + 1, part));
            }
            let left = wanted - (picked.len() - before);
            if left == 0 {
                continue;
            }
            let mut found = self.ranked(ask, of, part, window, left + count(&picked));
            if !picked.is_empty() {
                let mut taken = FixedBitSet::new();
                each(&picked).for_each(|(at, _)| taken.grow_and_insert(at));
                let others = found.into_iter().flatten();
                found = stretches(others.filter(|at| !taken.contains(*at)));
            }
            if keep_first(&mut found, left) < left {
                return None;
            }
            picked.extend(found.into_iter().map(|nodes| (nodes, part)));
        }
        Some(picked)
    }
}

/// How many fitting nodes each of some sets has, with its place; the smallest first.
fn sizes_of(sets: &[FixedBitSet], fitting: &FixedBitSet) -> Vec<(usize, usize)> {
    let sizes = sets.iter().enumerate();
    let mut sizes: Vec<(usize, usize)> = sizes
        .map(|(at, set)| (set.intersection_count(fitting), at))
        .collect();
    sizes.sort_unstable();
    sizes
}
