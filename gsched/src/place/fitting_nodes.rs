//! The nodes that serve one part of an alternative, in the order of the placement policy.

use crate::cluster::picked::stretches;
use crate::cluster::timeline::Need;
use crate::job::job_class::{JobAlternative, NodeGroup};
use crate::place::score::Score;
use crate::place::search::{Ask, Search, keep_first};
use fixedbitset::FixedBitSet;
use gmodel::policy::Placement;
use gpolicy::window::Window;
use std::cmp::Reverse;
use std::ops::Range;

impl Search<'_> {
    /// Whether a node serves a need in a window.
    pub(super) fn fits(&mut self, ask: &Ask, at: usize, need: &Need, window: Window) -> bool {
        *self.probes_left = self.probes_left.saturating_sub(1);
        self.cluster.fits(at, need, window.from, window.to) && self.is_open(ask, at, window)
    }

    /// Whether reservations let a job be on a node in a window.
    #[inline]
    fn is_open(&self, ask: &Ask, at: usize, window: Window) -> bool {
        self.windows
            .open(at, ask.job_class.claim, window, ask.beyond_secs)
    }

    /// Whether the state of a node serves a part in the window for which `memo.fits` began.
    #[inline]
    fn state_fits(&mut self, group: &NodeGroup, at: usize, window: Window) -> bool {
        let cluster = self.cluster;
        let probes_left = &mut *self.probes_left;
        self.memo.fits.get_or(cluster.state_id(at), || {
            *probes_left = probes_left.saturating_sub(1);
            group
                .need(cluster.nodes[at].node_class)
                .is_some_and(|need| cluster.fits(at, need, window.from, window.to))
        })
    }

    /// All nodes that serve a part.
    pub(super) fn all_fitting(
        &mut self,
        ask: &Ask,
        group: &NodeGroup,
        window: Window,
    ) -> FixedBitSet {
        let mut all = FixedBitSet::with_capacity(self.cluster.nodes.len());
        let fitting = self.first_fitting(ask, group, window, usize::MAX);
        fitting
            .into_iter()
            .for_each(|nodes| all.insert_range(nodes));
        all
    }

    /// The first `most` nodes that serve a part, by their places: stretches of nodes with one state.
    fn first_fitting(
        &mut self,
        ask: &Ask,
        group: &NodeGroup,
        window: Window,
        most: usize,
    ) -> Vec<Range<usize>> {
        self.memo.fits.begin();
        let (cluster, windows) = (self.cluster, self.windows);
        let mut found = Vec::with_capacity(64);
        let mut left = most;
        // Whether these are enough.
        let mut look = |stretch: Range<usize>| {
            // Mostly that is known of the state.
            if !self.state_fits(group, stretch.start, window) {
                return false;
            }
            let here = ask.count(stretch.clone());
            if here == 0 {
                return false;
            }
            if here == stretch.len() && !windows.concern_any(stretch.clone(), ask.job_class.claim) {
                found.push(stretch.start..stretch.end.min(stretch.start.saturating_add(left)));
                left -= here.min(left);
            } else {
                let mut open = stretches(
                    stretch.filter(|at| ask.may_use(*at) && self.is_open(ask, *at, window)),
                );
                left -= keep_first(&mut open, left);
                found.append(&mut open);
            }
            left == 0
        };
        match window.from <= cluster.now {
            true => cluster.open_stretches().any(&mut look),
            false => cluster.stretches().any(&mut look),
        };
        found
    }

    /// The first `most` nodes that serve a part, in the order of the placement policy; avoided nodes come last.
    pub(super) fn ranked(
        &mut self,
        ask: &Ask,
        of: &JobAlternative,
        part: usize,
        window: Window,
        most: usize,
    ) -> Vec<Range<usize>> {
        let (placement, group) = (ask.job_class.placement, &of.parts[part]);
        // The smaller parts of a job that fills nodes take the emptiest.
        let emptiest =
            placement == Placement::Spread || (placement == Placement::BestFit && part > 0);
        let in_order = placement == Placement::FirstFit || !self.cluster.has_gpus();
        if ask.has_preference() {
            let mut found = self.first_fitting(ask, group, window, usize::MAX);
            if !in_order {
                self.sort_by_free(&mut found, window, emptiest);
            }
            let mut nodes: Vec<usize> = found.into_iter().flatten().collect();
            let preferred = ask.job_class.preferred.as_ref();
            nodes.sort_by_key(|at| {
                let is_preferred = preferred.is_none_or(|nodes| nodes.contains(*at));
                (ask.avoid.contains(at), !is_preferred)
            });
            nodes.truncate(most);
            stretches(nodes.into_iter())
        } else if in_order {
            self.first_fitting(ask, group, window, most)
        } else if window.from > self.cluster.now {
            let mut found = self.first_fitting(ask, group, window, usize::MAX);
            self.sort_by_free(&mut found, window, emptiest);
            keep_first(&mut found, most);
            found
        } else {
            self.by_free_now(ask, group, window, emptiest, most)
        }
    }

    /// Sorts nodes by their free GPUs at the beginning of a window.
    fn sort_by_free(&mut self, nodes: &mut [Range<usize>], window: Window, emptiest: bool) {
        let (cluster, known) = (self.cluster, &mut self.memo.free);
        known.begin();
        let mut free = |nodes: &Range<usize>| {
            let at = nodes.start;
            known.get_or(cluster.state_id(at), || {
                cluster.state(at).profile.free_at(window.from).all_gpus()
            })
        };
        match emptiest {
            true => nodes.sort_by_cached_key(|nodes| Reverse(free(nodes))),
            false => nodes.sort_by_cached_key(free),
        }
    }

    /// As `ranked`, for a window that begins now: the cluster keeps its nodes by free GPUs.
    fn by_free_now(
        &mut self,
        ask: &Ask,
        group: &NodeGroup,
        window: Window,
        emptiest: bool,
        most: usize,
    ) -> Vec<Range<usize>> {
        let cluster = self.cluster;
        let least = group.least_gpus();
        let buckets = cluster.by_free.len();
        let mut found: Vec<Range<usize>> = Vec::new();
        let mut left = most;
        self.memo.fits.begin();
        for step in 0..buckets.saturating_sub(least) {
            let bucket = match emptiest {
                true => buckets - 1 - step,
                false => least + step,
            };
            // Up to here nodes have the state of the one before, which fits or does not.
            let (mut same_until, mut fits) = (0, false);
            for at in cluster.by_free[bucket].intersection(&ask.job_class.candidates.up) {
                if ask.only.is_some_and(|only| !only.contains(at)) {
                    continue;
                }
                if at >= same_until {
                    same_until = cluster.end_of_stretch(at);
                    fits = self.state_fits(group, at, window);
                }
                if !fits || !self.is_open(ask, at, window) {
                    continue;
                }
                match found.last_mut() {
                    Some(last) if last.end == at => last.end += 1,
                    _ => found.push(at..at + 1),
                }
                left -= 1;
                if left == 0 {
                    return found;
                }
            }
        }
        found
    }

    /// The best node for an alternative on one node: under `pack` the one with the best score.
    pub(super) fn best(&mut self, ask: &Ask, of: &JobAlternative, window: Window) -> Option<usize> {
        let is_scored = ask.job_class.placement == Placement::Pack
            && window.from <= self.cluster.now
            && !ask.has_preference();
        if !is_scored {
            let first = self.ranked(ask, of, 0, window, 1);
            return first.first().map(|nodes| nodes.start);
        }
        let (cluster, group) = (self.cluster, &of.parts[0]);
        let mut best: Option<(Score, usize)> = None;
        self.memo.scores.begin();
        for at in cluster.with_gpus(group.least_gpus(), &ask.job_class.candidates.up) {
            if ask.only.is_some_and(|only| !only.contains(at)) {
                continue;
            }
            let (scores, snapshot) = (&mut *self.scores, self.snapshot);
            let probes_left = &mut *self.probes_left;
            let score = self.memo.scores.get_or(cluster.state_id(at), || {
                *probes_left = probes_left.saturating_sub(1);
                let need = group.need(cluster.nodes[at].node_class)?;
                // Cheaper than the score, and mostly a no on a full cluster.
                cluster
                    .fits(at, need, window.from, window.to)
                    .then(|| scores.of(cluster, at, need, snapshot))
            });
            let Some(score) = score else { continue };
            let is_better = best.is_none_or(|least| (score, at) < least);
            if is_better && self.is_open(ask, at, window) {
                best = Some((score, at));
            }
        }
        best.map(|(_, at)| at)
    }
}
