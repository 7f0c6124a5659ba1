//! Which of the nodes that fit a job gets, now or at a later time.
//!
//! Nodes are looked at in the order in which the policy likes them, so that mostly the first that fits is taken. Jobs
//! of several nodes stay in one NVLink domain, or below as few leaf switches as can be (`network.rs`).

use crate::cluster::network::Network;
use crate::cluster::node_states::{ByNodeState, NodeStateId};
use crate::cluster::nodes::Cluster;
use crate::cluster::picked::{PickedNodes, count, each, stretches};
use crate::cluster::timeline::Need;
use crate::job::job_class::{Candidates, JobClass};
use crate::place::score::{Score, Scores};
use crate::snapshot::Snapshot;
use fixedbitset::FixedBitSet;
use gmodel::Timestamp;
use gmodel::policy::Placement;
use gpolicy::pending_job::UNLIMITED_SECS;
use gpolicy::reserved_nodes::{Span, Windows};
use gpolicy::window::Window;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Times that are tried for a job of several nodes before it is left without an expected start.
const MOST_TIMES: usize = 300;

/// Where nodes are looked for, and how much looking is left.
pub struct Search<'a> {
    pub cluster: &'a Cluster,
    pub windows: &'a Windows,
    pub network: &'a Network,
    pub scores: &'a mut Scores,
    pub looked: &'a mut SearchMemo,
    pub snapshot: &'a Snapshot,
    /// Rooms that may still be looked at.
    pub probes_left: &'a mut u64,
}

/// What the search under way found out about rooms: nodes that have the same one are not looked at again.
#[derive(Debug, Default)]
pub struct SearchMemo {
    fits: ByNodeState<bool>,
    scores: ByNodeState<Option<Score>>,
    free: ByNodeState<u32>,
    groups: ByNodeState<u32>,
    /// How many nodes that may not serve have each room.
    others: ByNodeState<u32>,
}

/// Nodes that get room for a job at the same time: those that have one room and no window.
struct StartGroup {
    room: NodeStateId,
    /// One of them; not where no window concerns any node.
    at: Option<usize>,
    count: usize,
    /// When there is room for it, where that is known; otherwise it is known that there is none before.
    start: (Timestamp, bool),
}

/// What nodes are looked for.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    pub job_class: &'a JobClass,
    /// Nodes to take last.
    pub avoid: &'a [usize],
    /// No others than these.
    pub only: Option<&'a FixedBitSet>,
    /// Leaf switches at most.
    pub most_leaves: Option<u32>,
    /// So many seconds more than there must be room for no reservation of others may begin.
    pub beyond_secs: i64,
    /// The least that must be left of the window of its own reservation.
    pub least_secs: u32,
}

/// Whether of the nodes that have room the policy takes the first, whatever is free on them.
fn in_order(job_class: &JobClass, cluster: &Cluster) -> bool {
    job_class.placement == Placement::FirstFit || !cluster.has_gpus()
}

/// Leaves the first `most` nodes; how many there are then.
fn cut(nodes: &mut Vec<Range<usize>>, most: usize) -> usize {
    let mut left = most;
    nodes.retain_mut(|stretch| {
        stretch.end = stretch.end.min(stretch.start.saturating_add(left));
        left -= stretch.len();
        stretch.start < stretch.end
    });
    most - left
}

impl Ask<'_> {
    /// Whether a node may be taken, before its state is looked at.
    fn may(&self, at: usize) -> bool {
        self.job_class.candidates.up.contains(at) && self.only.is_none_or(|only| only.contains(at))
    }

    /// How many of some nodes may.
    fn count(&self, nodes: Range<usize>) -> usize {
        match self.only {
            None => self.job_class.candidates.up_in(nodes),
            Some(_) => nodes.filter(|at| self.may(*at)).count(),
        }
    }
}

impl SearchMemo {
    /// Whether enough nodes have room for a way now, for however short a time; if not, how many at most have it for its
    /// smallest part.
    pub fn is_free(
        &mut self,
        job_class: &JobClass,
        alternative: usize,
        cluster: &Cluster,
    ) -> Result<(), usize> {
        let of = &job_class.alternatives[alternative];
        let wanted = of.nodes as usize;
        let last = of.last();
        let with_cpus = cluster.with_cpus(job_class.least_cpus(alternative, last));
        if with_cpus < wanted {
            return Err(with_cpus);
        }
        if cluster.has_gpus() {
            let free = cluster.with_gpus(
                job_class.least_gpus(alternative, last),
                &job_class.candidates.up,
            );
            return self.are_enough(job_class, alternative, free.map(|at| at..at + 1), cluster);
        }
        if last == 0 && self.begin_rooms(&job_class.candidates, cluster) {
            let mut have = 0;
            let (from, to) = (cluster.now, cluster.now.plus_millis(1));
            let least = job_class.least_cpus(alternative, last);
            for (id, nodes) in self.without_others(cluster.rooms_with_cpus(least)) {
                let (room, make) = cluster.room_and_make(id);
                if job_class
                    .need(alternative, last, make)
                    .is_some_and(|need| room.fits(need, from, to))
                {
                    have += nodes;
                }
                if have >= wanted {
                    return Ok(());
                }
            }
            return Err(have);
        }
        self.are_enough(job_class, alternative, cluster.open_stretches(), cluster)
    }

    /// Gets ready to look at `rooms` in place of nodes; not where few of all may serve.
    fn begin_rooms(&mut self, candidates: &Candidates, cluster: &Cluster) -> bool {
        let Some(others) = candidates.few_others() else {
            return false;
        };
        self.others.begin();
        for at in others {
            let room = cluster.room_id(*at);
            self.others
                .set(room, self.others.get(room).unwrap_or(0) + 1);
        }
        true
    }

    /// The rooms of nodes that may serve, with how many have each.
    fn rooms<'c>(
        &self,
        cluster: &'c Cluster,
    ) -> impl Iterator<Item = (NodeStateId, usize)> + use<'_, 'c> {
        self.without_others(cluster.rooms_in_use())
    }

    fn without_others<R: Iterator<Item = (NodeStateId, usize)>>(
        &self,
        rooms: R,
    ) -> impl Iterator<Item = (NodeStateId, usize)> + use<'_, R> {
        let less = |(room, nodes): (NodeStateId, usize)| {
            (room, nodes - self.others.get(room).unwrap_or(0) as usize)
        };
        rooms.map(less).filter(|(_, nodes)| *nodes > 0)
    }

    /// How many nodes among some have room now for the smallest part of a way.
    pub fn serving(
        &mut self,
        job_class: &JobClass,
        alternative: usize,
        nodes: &[Range<usize>],
        cluster: &Cluster,
    ) -> usize {
        self.fits.begin();
        let last = job_class.alternatives[alternative].last();
        let rooms = nodes
            .iter()
            .flat_map(|nodes| cluster.stretches_in(nodes.clone()));
        rooms
            .map(|nodes| self.serving_here(job_class, (alternative, last), nodes, cluster))
            .sum()
    }

    /// Of nodes that have one room.
    fn serving_here(
        &mut self,
        job_class: &JobClass,
        part: (usize, usize),
        nodes: Range<usize>,
        cluster: &Cluster,
    ) -> usize {
        let up = job_class.candidates.up_in(nodes.clone());
        if up > 0 && self.serves_now(job_class, part, nodes.start, cluster) {
            up
        } else {
            0
        }
    }

    /// The same of some nodes; those that come together have one room.
    fn are_enough(
        &mut self,
        job_class: &JobClass,
        alternative: usize,
        free: impl Iterator<Item = Range<usize>>,
        cluster: &Cluster,
    ) -> Result<(), usize> {
        let of = &job_class.alternatives[alternative];
        let (wanted, last) = (of.nodes as usize, of.last());
        self.fits.begin();
        let mut have = 0;
        let mut serving: Vec<(usize, usize)> = Vec::new();
        for nodes in free {
            let at = nodes.start;
            let here = self.serving_here(job_class, (alternative, last), nodes, cluster);
            have += here;
            match last {
                0 if have >= wanted => return Ok(()),
                0 => {}
                _ => serving.push((at, here)),
            }
        }
        if have < wanted {
            return Err(have);
        }
        for (part, of) in of.parts.iter().enumerate() {
            let mut missing = of.count as usize;
            self.fits.begin();
            for (at, here) in &mut serving {
                if missing > 0
                    && *here > 0
                    && self.serves_now(job_class, (alternative, part), *at, cluster)
                {
                    let taken = missing.min(*here);
                    (missing, *here) = (missing - taken, *here - taken);
                }
            }
            if missing > 0 {
                return Err(have);
            }
        }
        Ok(())
    }

    fn serves_now(
        &mut self,
        job_class: &JobClass,
        (alternative, part): (usize, usize),
        at: usize,
        cluster: &Cluster,
    ) -> bool {
        self.fits.get_or(cluster.room_id(at), || {
            let need = job_class.need(alternative, part, cluster.nodes[at].make);
            need.is_some_and(|need| cluster.fits(at, need, cluster.now, cluster.now.plus_millis(1)))
        })
    }
}

impl Search<'_> {
    /// Whether a node serves a need for a time.
    fn fits(&mut self, ask: &Ask, at: usize, need: &Need, from: Timestamp, to: Timestamp) -> bool {
        *self.probes_left = self.probes_left.saturating_sub(1);
        self.cluster.fits(at, need, from, to) && self.is_open(ask, at, from, to)
    }

    /// Whether reservations let a job be on a node that has room for a time.
    #[inline]
    fn is_open(&self, ask: &Ask, at: usize, from: Timestamp, to: Timestamp) -> bool {
        self.windows.open(
            at,
            ask.job_class.claim,
            Window { from, to },
            ask.beyond_secs,
        )
    }

    /// Whether the room of a node serves a part of a way for a time, which is the same since `looked.fits` began.
    #[inline]
    fn serves_beside_windows(
        &mut self,
        ask: &Ask,
        at: usize,
        (alternative, part): (usize, usize),
        from: Timestamp,
        to: Timestamp,
    ) -> bool {
        let cluster = self.cluster;
        let probes_left = &mut *self.probes_left;
        self.looked.fits.get_or(cluster.room_id(at), || {
            *probes_left = probes_left.saturating_sub(1);
            ask.job_class
                .need(alternative, part, cluster.nodes[at].make)
                .is_some_and(|need| cluster.fits(at, need, from, to))
        })
    }

    /// Nodes for all parts of a way from `from` until `to`, or none.
    pub fn pick(
        &mut self,
        ask: &Ask,
        alternative: usize,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<PickedNodes> {
        let job_class = ask.job_class;
        if job_class.alternatives[alternative].nodes == 1 && job_class.named.is_empty() {
            return self
                .best(ask, alternative, from, to)
                .map(|at| vec![(at..at + 1, 0)]);
        }
        if job_class.alternatives[alternative].nodes == 1 {
            return self.pick_many(ask, alternative, from, to);
        }
        let domains = !self.network.domains.is_empty()
            && job_class.least_gpus(alternative, job_class.alternatives[alternative].last()) > 0;
        if domains && let Some(picked) = self.pick_in_domain(ask, alternative, from, to) {
            return Some(picked);
        }
        // Where some candidates are in domains, `--nvlink` means one of those.
        let must = domains
            && job_class.spec.request.nvlink
            && self
                .network
                .domains
                .iter()
                .any(|domain| !domain.is_disjoint(&job_class.candidates.up));
        if must {
            None
        } else {
            self.pick_near(ask, alternative, from, to)
        }
    }

    /// Within one NVLink domain: the one that has the fewest nodes with room, of those that have enough.
    fn pick_in_domain(
        &mut self,
        ask: &Ask,
        alternative: usize,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<PickedNodes> {
        let count = ask.job_class.alternatives[alternative].nodes as usize;
        let mut fitting = FixedBitSet::with_capacity(self.cluster.nodes.len());
        let found = self.fitting(
            ask,
            alternative,
            ask.job_class.alternatives[alternative].last(),
            (from, to),
            usize::MAX,
        );
        found
            .into_iter()
            .for_each(|nodes| fitting.insert_range(nodes));
        let network = self.network;
        let mut sizes: Vec<(usize, usize)> = network
            .domains
            .iter()
            .enumerate()
            .map(|(at, domain)| (domain.intersection_count(&fitting), at))
            .filter(|(size, _)| *size >= count)
            .collect();
        sizes.sort_unstable();
        sizes.into_iter().find_map(|(_, at)| {
            let domain = &network.domains[at];
            let only: FixedBitSet = domain.intersection(&fitting).collect();
            let picked = self.pick_near(
                &Ask {
                    only: Some(&only),
                    ..*ask
                },
                alternative,
                from,
                to,
            )?;
            // Nodes that are named are not asked for their domain.
            let within = each(&picked).all(|(at, _)| domain.contains(at));
            within.then_some(picked)
        })
    }

    /// Below as few leaf switches as can be.
    fn pick_near(
        &mut self,
        ask: &Ask,
        alternative: usize,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<PickedNodes> {
        if self.network.leaves.is_empty() {
            return self.pick_many(ask, alternative, from, to);
        }
        let count = ask.job_class.alternatives[alternative].nodes as usize;
        let fitting = self.fitting(
            ask,
            alternative,
            ask.job_class.alternatives[alternative].last(),
            (from, to),
            usize::MAX,
        );
        let mut set = FixedBitSet::with_capacity(self.cluster.nodes.len());
        fitting
            .into_iter()
            .for_each(|nodes| set.insert_range(nodes));
        let mut sizes: Vec<(usize, usize)> = self
            .network
            .leaves
            .iter()
            .enumerate()
            .map(|(leaf, nodes)| (nodes.intersection_count(&set), leaf))
            .collect();
        sizes.sort();
        let network = self.network;
        let within = |search: &mut Self, nodes: &FixedBitSet| {
            let mut only = set.clone();
            only.intersect_with(nodes);
            search.pick_many(
                &Ask {
                    only: Some(&only),
                    ..*ask
                },
                alternative,
                from,
                to,
            )
        };
        if let Some(most) = ask.most_leaves {
            let choices = network.choices(&sizes, &ask.job_class.named, most as usize, count);
            return choices.iter().find_map(|choice| {
                within(self, choice).filter(|picked| network.leaves_of(picked) <= most)
            });
        }
        for (_, leaf) in sizes.iter().filter(|(size, _)| *size >= count) {
            if let Some(picked) = within(self, &network.leaves[*leaf]) {
                return Some(picked);
            }
        }
        let mut union = FixedBitSet::with_capacity(self.cluster.nodes.len());
        let mut have = 0;
        for (size, leaf) in sizes.iter().rev() {
            union.union_with(&network.leaves[*leaf]);
            have += size;
            if have >= count
                && let Some(picked) = within(self, &union)
            {
                return Some(picked);
            }
        }
        None
    }

    fn pick_many(
        &mut self,
        ask: &Ask,
        alternative: usize,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<PickedNodes> {
        let job_class = ask.job_class;
        let alternative_of = &job_class.alternatives[alternative];
        let mut picked = PickedNodes::new();
        let mut named = job_class.named.iter().copied();
        if job_class
            .spec
            .request
            .nodelist
            .as_ref()
            .is_some_and(|list| job_class.named.len() < list.len())
        {
            return None;
        }
        for (part, of) in alternative_of.parts.iter().enumerate() {
            let mut left = of.count as usize;
            while left > 0 {
                let Some(at) = named.next() else { break };
                let need = job_class.need(alternative, part, self.cluster.nodes[at].make)?;
                if !job_class.candidates.up.contains(at) || !self.fits(ask, at, need, from, to) {
                    return None;
                }
                picked.push((at..at + 1, part));
                left -= 1;
            }
            if left == 0 {
                continue;
            }
            let mut found = self.ranked(ask, alternative, part, (from, to), left + count(&picked));
            if !picked.is_empty() {
                let mut taken = FixedBitSet::new();
                each(&picked).for_each(|(at, _)| taken.grow_and_insert(at));
                found = stretches(
                    found
                        .into_iter()
                        .flatten()
                        .filter(|at| !taken.contains(*at)),
                );
            }
            if cut(&mut found, left) < left {
                return None;
            }
            picked.extend(found.into_iter().map(|nodes| (nodes, part)));
        }
        Some(picked)
    }

    /// The first `most` nodes that serve a part, in their order: stretches of nodes with one room.
    fn fitting(
        &mut self,
        ask: &Ask,
        alternative: usize,
        part: usize,
        (from, to): (Timestamp, Timestamp),
        most: usize,
    ) -> Vec<Range<usize>> {
        self.looked.fits.begin();
        let (cluster, windows) = (self.cluster, self.windows);
        let mut found = Vec::with_capacity(64);
        let mut left = most;
        // Whether these are enough.
        let mut look = |stretch: Range<usize>| {
            // Mostly that is known of the room.
            if !self.serves_beside_windows(ask, stretch.start, (alternative, part), from, to) {
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
                let open = stretch.filter(|at| {
                    ask.may(*at)
                        && windows.open(
                            *at,
                            ask.job_class.claim,
                            Window { from, to },
                            ask.beyond_secs,
                        )
                });
                let mut open = stretches(open);
                left -= cut(&mut open, left);
                found.append(&mut open);
            }
            left == 0
        };
        match from <= cluster.now {
            true => cluster.open_stretches().any(&mut look),
            false => cluster.stretches().any(&mut look),
        };
        found
    }

    /// The first `enough` nodes that serve a part, those liked best first.
    fn ranked(
        &mut self,
        ask: &Ask,
        alternative: usize,
        part: usize,
        (from, to): (Timestamp, Timestamp),
        enough: usize,
    ) -> Vec<Range<usize>> {
        let placement = ask.job_class.placement;
        let picky = !ask.avoid.is_empty() || ask.job_class.preferred.is_some();
        // What is left of a job that fills nodes goes where most is free.
        let emptiest =
            placement == Placement::Spread || (placement == Placement::BestFit && part > 0);
        let in_order = in_order(ask.job_class, self.cluster);
        let mut found = if from > self.cluster.now || in_order || picky {
            let most = if in_order && !picky {
                enough
            } else {
                usize::MAX
            };
            let mut found = self.fitting(ask, alternative, part, (from, to), most);
            let (cluster, known) = (self.cluster, &mut self.looked.free);
            known.begin();
            let mut free = |nodes: &Range<usize>| {
                let at = nodes.start;
                known.get_or(cluster.room_id(at), || {
                    cluster.room(at).profile.free_at(from).all_gpus()
                })
            };
            match (in_order, emptiest) {
                (true, _) => {}
                (_, true) => found.sort_by_cached_key(|nodes| std::cmp::Reverse(free(nodes))),
                (_, false) => found.sort_by_cached_key(free),
            }
            found
        } else {
            self.by_bucket(ask, alternative, part, (from, to), emptiest, enough)
        };
        if picky {
            let mut nodes: Vec<usize> = found.into_iter().flatten().collect();
            nodes.sort_by_key(|at| self.dislike(ask, *at));
            found = stretches(nodes.into_iter());
        }
        cut(&mut found, enough);
        found
    }

    fn dislike(&self, ask: &Ask, at: usize) -> (bool, bool) {
        let preferred = ask
            .job_class
            .preferred
            .as_ref()
            .is_none_or(|nodes| nodes.contains(at));
        (ask.avoid.contains(&at), !preferred)
    }

    fn by_bucket(
        &mut self,
        ask: &Ask,
        alternative: usize,
        part: usize,
        (from, to): (Timestamp, Timestamp),
        emptiest: bool,
        enough: usize,
    ) -> Vec<Range<usize>> {
        let cluster = self.cluster;
        let least = ask.job_class.least_gpus(alternative, part);
        let buckets = cluster.by_free.len();
        let mut found: Vec<Range<usize>> = Vec::new();
        let mut left = enough;
        self.looked.fits.begin();
        for step in 0..buckets.saturating_sub(least) {
            let bucket = if emptiest {
                buckets - 1 - step
            } else {
                least + step
            };
            // Up to here nodes have the room of the one before, which serves or does not.
            let (mut same_until, mut serves) = (0, false);
            for at in cluster.by_free[bucket].intersection(&ask.job_class.candidates.up) {
                if ask.only.is_some_and(|only| !only.contains(at)) {
                    continue;
                }
                if at >= same_until {
                    same_until = cluster.end_of_stretch(at);
                    serves = self.serves_beside_windows(ask, at, (alternative, part), from, to);
                }
                if !serves || !self.is_open(ask, at, from, to) {
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

    /// The one node liked best.
    fn best(
        &mut self,
        ask: &Ask,
        alternative: usize,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<usize> {
        let picky = !ask.avoid.is_empty() || ask.job_class.preferred.is_some();
        if picky || from > self.cluster.now || ask.job_class.placement != Placement::Pack {
            return self
                .ranked(ask, alternative, 0, (from, to), 1)
                .first()
                .map(|nodes| nodes.start);
        }
        let cluster = self.cluster;
        let mut best: Option<(Score, usize)> = None;
        self.looked.scores.begin();
        for at in cluster.with_gpus(
            ask.job_class.least_gpus(alternative, 0),
            &ask.job_class.candidates.up,
        ) {
            if ask.only.is_some_and(|only| !only.contains(at)) {
                continue;
            }
            let (scores, snapshot, probes_left) =
                (&mut *self.scores, self.snapshot, &mut *self.probes_left);
            let score = self.looked.scores.get_or(cluster.room_id(at), || {
                *probes_left = probes_left.saturating_sub(1);
                let need = ask.job_class.need(alternative, 0, cluster.nodes[at].make)?;
                // Cheaper than the score, and mostly says no on a full cluster.
                cluster
                    .fits(at, need, from, to)
                    .then(|| scores.of(cluster, at, need, snapshot))
            });
            let Some(score) = score else { continue };
            if best
                .as_ref()
                .is_none_or(|(least, other)| (&score, at) < (least, *other))
                && self.is_open(ask, at, from, to)
            {
                best = Some((score, at));
            }
        }
        best.map(|(_, at)| at)
    }

    /// The first time at which a way can be served for `secs`, or until the window of its own reservation ends, before `until`, and by which nodes.
    pub fn earliest(
        &mut self,
        ask: &Ask,
        alternative: usize,
        (from, secs): (Timestamp, u32),
        until: Timestamp,
    ) -> Option<(Timestamp, PickedNodes)> {
        let job_class = ask.job_class;
        let of = &job_class.alternatives[alternative];
        let count = of.nodes as usize;
        let all_named = job_class.named.len() >= count;
        let mut alike = match all_named {
            true => self.alike(
                ask,
                from,
                job_class.named.iter().map(|at| *at..*at + 1),
                |_| 1,
            ),
            false
                if ask.only.is_none()
                    && !self.windows.concern_some(job_class.claim)
                    && self.looked.begin_rooms(&job_class.candidates, self.cluster) =>
            {
                let serves = |room: NodeStateId| {
                    job_class
                        .need(alternative, of.last(), self.cluster.room_and_make(room).1)
                        .is_some()
                };
                let rooms = self
                    .looked
                    .rooms(self.cluster)
                    .filter(|(room, _)| serves(*room));
                rooms
                    .map(|(room, count)| StartGroup {
                        room,
                        at: None,
                        count,
                        start: (from, false),
                    })
                    .collect()
            }
            false => {
                let cluster = self.cluster;
                let serves = |stretch: &Range<usize>| {
                    job_class
                        .need(alternative, of.last(), cluster.nodes[stretch.start].make)
                        .is_some()
                };
                self.alike(ask, from, cluster.stretches().filter(serves), |nodes| {
                    ask.count(nodes)
                })
            }
        };
        if alike.iter().map(|one| one.count).sum::<usize>() < count {
            return None;
        }
        let mut time = from;
        for _ in 0..MOST_TIMES {
            let nth = self.nth_start(ask, alternative, &mut alike, (time, secs), count, until)?;
            if nth > time {
                time = nth;
                if count > 1 {
                    continue;
                }
            }
            let has_secs = self.windows.secs_from(job_class.claim, time, secs);
            if let Some(picked) =
                self.pick(ask, alternative, time, time.plus_secs(i64::from(has_secs)))
            {
                return Some((time, picked));
            }
            // Enough nodes, but not the right ones: the next time that anything changes on one of them.
            time = alike
                .iter()
                .filter_map(|one| self.cluster.room_and_make(one.room).0.next_change(time))
                .min()?;
            if time >= until {
                return None;
            }
        }
        None
    }

    /// Whether as many nodes as a way needs get room for `secs` at some time before `until`, each by itself: otherwise it
    /// does not begin before.
    pub fn may_begin(
        &mut self,
        ask: &Ask,
        alternative: usize,
        (from, secs): (Timestamp, u32),
        until: Timestamp,
    ) -> bool {
        let (job_class, cluster) = (ask.job_class, self.cluster);
        let part = job_class.alternatives[alternative].last();
        let probes_left = &mut *self.probes_left;
        let mut left = job_class.alternatives[alternative].nodes as usize;
        if ask.only.is_none() && self.looked.begin_rooms(&job_class.candidates, cluster) {
            return self.looked.rooms(cluster).any(|(id, nodes)| {
                *probes_left = probes_left.saturating_sub(1);
                let (room, make) = cluster.room_and_make(id);
                let need = job_class.need(alternative, part, make);
                if need.is_some_and(|need| room.first(need, from, secs, until).is_some()) {
                    left = left.saturating_sub(nodes);
                }
                left == 0
            });
        }
        let fits = &mut self.looked.fits;
        fits.begin();
        cluster.stretches().any(|nodes| {
            let (at, here) = (nodes.start, ask.count(nodes));
            let has_room = here > 0
                && fits.get_or(cluster.room_id(at), || {
                    *probes_left = probes_left.saturating_sub(1);
                    let need = job_class.need(alternative, part, cluster.nodes[at].make);
                    need.is_some_and(|need| {
                        cluster.room(at).first(need, from, secs, until).is_some()
                    })
                });
            if has_room {
                left = left.saturating_sub(here);
            }
            left == 0
        })
    }

    /// Nodes in groups of which all get room at the same time, from stretches of nodes that have one room. `count` says how
    /// many of a stretch may serve.
    fn alike(
        &mut self,
        ask: &Ask,
        from: Timestamp,
        stretches: impl Iterator<Item = Range<usize>>,
        count: impl Fn(Range<usize>) -> usize,
    ) -> Vec<StartGroup> {
        let mut all: Vec<StartGroup> = Vec::with_capacity(64);
        self.looked.groups.begin();
        for stretch in stretches {
            let room = self.cluster.room_id(stretch.start);
            let mut add = |alone: bool, part: Range<usize>| {
                let at = part.start;
                match (count(part), self.looked.groups.get(room).filter(|_| !alone)) {
                    (0, _) => {}
                    (count, Some(group)) => all[group as usize].count += count,
                    (count, None) => {
                        if !alone {
                            self.looked.groups.set(room, all.len() as u32);
                        }
                        all.push(StartGroup {
                            room,
                            at: Some(at),
                            count,
                            start: (from, false),
                        });
                    }
                }
            };
            match self
                .windows
                .concern_any(stretch.clone(), ask.job_class.claim)
            {
                true => stretch
                    .for_each(|at| add(self.windows.concern(at, ask.job_class.claim), at..at + 1)),
                false => add(false, stretch),
            }
        }
        all
    }

    /// When the last of the first `count` nodes has room, from `time` on; a bound from below where nodes lose it again.
    fn nth_start(
        &mut self,
        ask: &Ask,
        alternative: usize,
        alike: &mut [StartGroup],
        (time, secs): (Timestamp, u32),
        count: usize,
        until: Timestamp,
    ) -> Option<Timestamp> {
        let part = ask.job_class.alternatives[alternative].last();
        // The soonest, as many as are enough and no more.
        let mut soonest: BinaryHeap<(Timestamp, usize)> = BinaryHeap::with_capacity(64);
        let mut nodes = 0;
        for StartGroup {
            room,
            at,
            count: here,
            start,
        } in alike
        {
            if start.0 < time || !start.1 {
                let limit = if nodes < count {
                    until
                } else {
                    soonest.peek()?.0
                };
                if start.0 >= limit {
                    continue;
                }
                *self.probes_left = self.probes_left.saturating_sub(1);
                let (room, make) = self.cluster.room_and_make(*room);
                let Some(need) = ask.job_class.need(alternative, part, make) else {
                    continue;
                };
                let first = |from, secs, until| room.first(need, from, secs, until);
                let found = match *at {
                    Some(at) => {
                        let (from, beyond_secs, least_secs) =
                            (start.0.max(time), ask.beyond_secs, ask.least_secs);
                        let span = Span {
                            from,
                            until: limit,
                            secs,
                            beyond_secs,
                            least_secs,
                        };
                        self.windows
                            .first_beside(at, ask.job_class.claim, span, first)
                    }
                    None => first(start.0.max(time), secs, limit),
                };
                *start = match found {
                    Some(found) => (found, true),
                    None => (limit, false),
                };
            }
            if start.1 && start.0 < until {
                soonest.push((start.0, *here));
                nodes += *here;
                while let Some((_, last)) = soonest.peek().filter(|(_, last)| nodes - last >= count)
                {
                    nodes -= last;
                    soonest.pop();
                }
            }
        }
        (nodes >= count).then(|| soonest.peek().expect("count is at least one").0)
    }

    /// The longest time from now on for which a way can be served, at most `most` and at least `least` seconds.
    pub fn longest(
        &mut self,
        ask: &Ask,
        alternative: usize,
        now: Timestamp,
        (least, most): (u32, u32),
    ) -> Option<(u32, PickedNodes)> {
        let end = |secs: u32| now.plus_secs(i64::from(secs));
        self.pick(ask, alternative, now, end(least))?;
        let (mut low, mut high) = (least, most.min(UNLIMITED_SECS));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match self.pick(ask, alternative, now, end(middle)) {
                Some(_) => low = middle,
                None => high = middle - 1,
            }
        }
        self.pick(ask, alternative, now, end(low))
            .map(|picked| (low, picked))
    }
}
