//! The earliest start of one alternative along the timeline.
//!
//! Nodes with one state and no reservation become free at the same time and are one group: a search looks at groups.

use crate::cluster::node_states::NodeStateId;
use crate::cluster::picked::PickedNodes;
use crate::cluster::timeline::Need;
use crate::job::job_class::JobAlternative;
use crate::place::search::{Ask, Search};
use gmodel::Timestamp;
use gpolicy::reserved_nodes::Span;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Times that are tried for a gang before it gets no expected start.
const MOST_TIMES: usize = 300;

/// Where a start is looked for: at `from` or later, before `until`, for `secs` seconds.
#[derive(Clone, Copy)]
pub struct StartRange {
    pub from: Timestamp,
    pub until: Timestamp,
    pub secs: u32,
}

/// Nodes that can all start a job at the same time.
struct StartGroup {
    state: NodeStateId,
    /// One of them; `None` where no reservation covers any node.
    node: Option<usize>,
    count: usize,
    /// No start is possible before.
    start: Timestamp,
    /// And at this time one is.
    is_exact: bool,
}

/// The soonest starts that together have as many nodes as a job needs.
struct SoonestStarts {
    needed: usize,
    nodes: usize,
    starts: BinaryHeap<(Timestamp, usize)>,
}

impl SoonestStarts {
    fn add(&mut self, start: Timestamp, nodes: usize) {
        self.starts.push((start, nodes));
        self.nodes += nodes;
        while let Some((_, last)) = self.starts.peek()
            && self.nodes - last >= self.needed
        {
            self.nodes -= last;
            self.starts.pop();
        }
    }

    /// When the last of the nodes is free; `None` while they are too few.
    fn last(&self) -> Option<Timestamp> {
        let last = self.starts.peek().filter(|_| self.nodes >= self.needed);
        last.map(|(start, _)| *start)
    }
}

impl Search<'_> {
    /// The first time at which an alternative can be served for its seconds, or until the window of its own reservation
    /// ends; and by which nodes.
    pub fn earliest(
        &mut self,
        ask: &Ask,
        alternative: usize,
        range: StartRange,
    ) -> Option<(Timestamp, PickedNodes)> {
        let of = &ask.job_class.alternatives[alternative];
        let mut groups = self.start_groups(ask, of, range.from);
        if groups.iter().map(|group| group.count).sum::<usize>() < of.nodes as usize {
            return None;
        }
        let mut from = range.from;
        for _ in 0..MOST_TIMES {
            let start = self.nth_start(ask, of, &mut groups, StartRange { from, ..range })?;
            if start > from {
                from = start;
                if of.nodes > 1 {
                    continue;
                }
            }
            let secs = self
                .windows
                .secs_from(ask.job_class.claim, from, range.secs);
            let to = from.plus_secs(i64::from(secs));
            if let Some(picked) = self.pick(ask, alternative, from, to) {
                return Some((from, picked));
            }
            // Enough nodes, and not the right ones: the next change on one of them.
            let next = |group: &StartGroup| {
                self.cluster
                    .state_and_class(group.state)
                    .0
                    .next_change(from)
            };
            from = groups.iter().filter_map(next).min()?;
            if from >= range.until {
                return None;
            }
        }
        None
    }

    /// Whether as many nodes as an alternative needs can each start it in a range; otherwise it starts later.
    pub fn may_begin(&mut self, ask: &Ask, alternative: usize, range: StartRange) -> bool {
        let (job_class, cluster) = (ask.job_class, self.cluster);
        let of = &job_class.alternatives[alternative];
        let group = of.smallest();
        let probes_left = &mut *self.probes_left;
        let mut can_start = |id: NodeStateId| {
            *probes_left = probes_left.saturating_sub(1);
            let (state, node_class) = cluster.state_and_class(id);
            group.need(node_class).is_some_and(|need| {
                state
                    .first(need, range.from, range.secs, range.until)
                    .is_some()
            })
        };
        let mut left = of.nodes as usize;
        if ask.only.is_none() && self.memo.begin_states(&job_class.candidates, cluster) {
            return self.memo.states(cluster).any(|(id, nodes)| {
                if can_start(id) {
                    left = left.saturating_sub(nodes);
                }
                left == 0
            });
        }
        let fits = &mut self.memo.fits;
        fits.begin();
        cluster.stretches().any(|nodes| {
            let (id, here) = (cluster.state_id(nodes.start), ask.count(nodes));
            if here > 0 && fits.get_or(id, || can_start(id)) {
                left = left.saturating_sub(here);
            }
            left == 0
        })
    }

    /// The nodes that may serve an alternative, in groups; nothing is known yet but that they start at `from` or later.
    fn start_groups(&mut self, ask: &Ask, of: &JobAlternative, from: Timestamp) -> Vec<StartGroup> {
        let (job_class, cluster) = (ask.job_class, self.cluster);
        let (named, group) = (&job_class.named, of.smallest());
        if named.len() >= of.nodes as usize {
            return self.group(ask, from, named.iter().map(|at| *at..*at + 1), |_| 1);
        }
        let is_by_state = ask.only.is_none()
            && !self.windows.concern_some(job_class.claim)
            && self.memo.begin_states(&job_class.candidates, cluster);
        if !is_by_state {
            let serves =
                |nodes: &Range<usize>| group.need(cluster.nodes[nodes.start].node_class).is_some();
            let stretches = cluster.stretches().filter(serves);
            return self.group(ask, from, stretches, |nodes| ask.count(nodes));
        }
        let states = self.memo.states(cluster);
        states
            .filter(|(state, _)| group.need(cluster.state_and_class(*state).1).is_some())
            .map(|(state, count)| StartGroup {
                state,
                node: None,
                count,
                start: from,
                is_exact: false,
            })
            .collect()
    }

    /// Groups of some stretches of nodes with one state each; `count` says how many of a stretch may serve.
    fn group(
        &mut self,
        ask: &Ask,
        from: Timestamp,
        stretches: impl Iterator<Item = Range<usize>>,
        count: impl Fn(Range<usize>) -> usize,
    ) -> Vec<StartGroup> {
        let (windows, claim) = (self.windows, ask.job_class.claim);
        let known = &mut self.memo.groups;
        let mut all: Vec<StartGroup> = Vec::with_capacity(64);
        known.begin();
        for stretch in stretches {
            let state = self.cluster.state_id(stretch.start);
            let mut add = |is_alone: bool, nodes: Range<usize>| {
                let at = nodes.start;
                let count = count(nodes);
                if count == 0 {
                    return;
                }
                if let Some(group) = known.get(state).filter(|_| !is_alone) {
                    all[group as usize].count += count;
                    return;
                }
                if !is_alone {
                    known.set(state, all.len() as u32);
                }
                all.push(StartGroup {
                    state,
                    node: Some(at),
                    count,
                    start: from,
                    is_exact: false,
                });
            };
            match windows.concern_any(stretch.clone(), claim) {
                true => stretch.for_each(|at| add(windows.concern(at, claim), at..at + 1)),
                false => add(false, stretch),
            }
        }
        all
    }

    /// When the last of as many nodes as needed can start, each by itself; a lower bound where nodes lose room again.
    fn nth_start(
        &mut self,
        ask: &Ask,
        of: &JobAlternative,
        groups: &mut [StartGroup],
        range: StartRange,
    ) -> Option<Timestamp> {
        let mut soonest = SoonestStarts {
            needed: of.nodes as usize,
            nodes: 0,
            starts: BinaryHeap::with_capacity(64),
        };
        for group in groups {
            if group.start < range.from || !group.is_exact {
                let until = soonest.last().unwrap_or(range.until);
                if group.start >= until {
                    continue;
                }
                *self.probes_left = self.probes_left.saturating_sub(1);
                let node_class = self.cluster.state_and_class(group.state).1;
                let Some(need) = of.smallest().need(node_class) else {
                    continue;
                };
                let from = group.start.max(range.from);
                let found = self.first_start(
                    ask,
                    need,
                    group,
                    StartRange {
                        from,
                        until,
                        ..range
                    },
                );
                (group.start, group.is_exact) = (found.unwrap_or(until), found.is_some());
            }
            if group.is_exact && group.start < range.until {
                soonest.add(group.start, group.count);
            }
        }
        soonest.last()
    }

    /// When one node of a group can start.
    fn first_start(
        &self,
        ask: &Ask,
        need: &Need,
        group: &StartGroup,
        range: StartRange,
    ) -> Option<Timestamp> {
        let state = self.cluster.state_and_class(group.state).0;
        let first = |from, secs, until| state.first(need, from, secs, until);
        let StartRange { from, until, secs } = range;
        let Some(node) = group.node else {
            return first(from, secs, until);
        };
        let span = Span {
            from,
            until,
            secs,
            beyond_secs: ask.beyond_secs,
            least_secs: ask.least_secs,
        };
        self.windows
            .first_beside(node, ask.job_class.claim, span, first)
    }
}
