//! Jobs that ask for the same on the same terms: what one cannot get now, no other of the class can.
//!
//! A job class is made once: its alternatives, their needs on each node class, and the candidates.
//! Time limits are not part of it: a shorter limit fits wherever a longer one does.

use crate::cluster::node_class::{NodeClass, NodeClassId};
use crate::cluster::nodes::Cluster;
use crate::cluster::timeline::Need;
use crate::job::reason::KeptFor;
use crate::ledger::Take;
use crate::snapshot::BarredNode;
use fixedbitset::FixedBitSet;
use gmodel::gpu_request::GpuAmount;
use gmodel::policy::{ALL_GPUS, Placement};
use gmodel::{JobSpec, Reason, Timestamp};
use gpolicy::feasibility::demand::{Demand, Lack, NodeDemand};
use gpolicy::reserved_nodes::Claim;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

pub type JobClassId = u32;

/// What is common to all jobs of a job class.
#[derive(Debug)]
pub struct JobClass {
    pub partition: usize,
    pub spec: Arc<JobSpec>,
    /// The reservations that its jobs may use.
    pub claim: Claim,
    /// Nodes that failed to launch its job not long ago; empty for jobs to which that did not happen.
    pub barred: Vec<BarredNode>,
    /// Alternatives that serve it, best first.
    pub alternatives: Vec<JobAlternative>,
    pub candidates: Arc<Candidates>,
    /// Nodes it names, in its order; it takes all of them.
    pub named: Vec<usize>,
    pub preferred: Option<FixedBitSet>,
    pub placement: Placement,
    /// Why none of its jobs can run as the nodes are, if so.
    pub never: Option<Reason>,
    /// The reason of a job that waits for the same as a job of higher priority.
    pub behind: Reason,
    /// At the beginning of which pass too few nodes had room for it, and how many at most had it for each way.
    pub few: Option<(u64, Vec<usize>)>,
    pub pass: ClassFindings,
}

/// Times before which a job class has no room that are kept where it depends on reservations, too.
const MOST_WINDOWED: usize = 64;

/// What the pass under way found out about a job class.
#[derive(Clone, Debug, Default)]
pub struct ClassFindings {
    /// The shortest limit, in seconds, that found no room now.
    pub refused_secs: Option<u32>,
    /// The shortest `--time-min` that found none.
    pub refused_min_secs: Option<u32>,
    /// For each alternative: with so long a limit there is no room before. The longer the later.
    pub not_before: Vec<Vec<(u32, Timestamp)>>,
    /// The same of jobs that reservations must let run for longer.
    pub not_before_window: Vec<WindowFinding>,
    /// What holds nodes on which it would have room; `None`: not looked into.
    pub kept: Option<Option<KeptFor>>,
    /// Whether too few nodes have room for it at this moment, for whatever time.
    pub full: Option<bool>,
    /// Anything was found out.
    pub(super) is_looked_at: bool,
}

/// An alternative has no room before `at` for so many seconds, in which no other reservation begins for `window_secs`.
#[derive(Clone, Copy, Debug)]
pub struct WindowFinding {
    pub alternative: usize,
    pub secs: u32,
    pub window_secs: u32,
    pub at: Timestamp,
}

impl ClassFindings {
    /// Before which time an alternative has no room for so many seconds, as far as is known.
    pub fn not_before(&self, alternative: usize, secs: u32) -> Option<Timestamp> {
        let known = self.not_before.get(alternative)?;
        let shorter = known.partition_point(|(shorter, _)| *shorter <= secs);
        known[..shorter].last().map(|(_, at)| *at)
    }

    /// The same for a job that reservations must let run for `window_secs`.
    pub fn not_before_window(
        &self,
        alternative: usize,
        secs: u32,
        window_secs: u32,
    ) -> Option<Timestamp> {
        let is_no_less = |one: &&WindowFinding| {
            one.alternative == alternative && one.secs <= secs && one.window_secs <= window_secs
        };
        let known = self.not_before_window.iter().filter(is_no_less);
        known.map(|one| one.at).max()
    }

    pub fn note_not_before_window(&mut self, found: WindowFinding) {
        let known = self.not_before_window(found.alternative, found.secs, found.window_secs);
        if known.is_some_and(|known| found.at <= known) {
            return;
        }
        // Findings that it implies are no longer needed.
        self.not_before_window.retain(|one| {
            one.alternative != found.alternative
                || one.secs < found.secs
                || one.window_secs < found.window_secs
                || one.at > found.at
        });
        if self.not_before_window.len() < MOST_WINDOWED {
            self.not_before_window.push(found);
        }
    }

    pub fn note_not_before(&mut self, alternative: usize, secs: u32, at: Timestamp) {
        if self
            .not_before(alternative, secs)
            .is_some_and(|known| at <= known)
        {
            return;
        }
        if self.not_before.len() <= alternative {
            self.not_before.resize(alternative + 1, Vec::new());
        }
        let known = &mut self.not_before[alternative];
        // A bound for these seconds holds for longer limits too: earlier or equal bounds of those are implied.
        let from = known.partition_point(|(shorter, _)| *shorter < secs);
        let to = from + known[from..].partition_point(|(_, earlier)| *earlier <= at);
        known.splice(from..to, [(secs, at)]);
    }
}

/// One alternative of a job.
#[derive(Debug)]
pub struct JobAlternative {
    /// Nodes that must give the same, the largest part first.
    pub parts: Vec<NodeGroup>,
    pub nodes: u32,
    /// What it takes of limits, as far as is known before its nodes are.
    pub take: Take,
}

#[derive(Debug)]
pub struct NodeGroup {
    pub demand: NodeDemand,
    pub count: u32,
    /// By node class; `None` where a node of the class could not serve it with nothing else on it.
    pub needs: Vec<Option<Need>>,
}

/// Nodes that a request may run on.
#[derive(Debug)]
pub struct Candidates {
    /// Nodes that take work.
    pub up: FixedBitSet,
    /// Also nodes that take no work at present.
    pub all: FixedBitSet,
    /// How many of `up` and of `all` are of each node class.
    pub(super) up_by_class: Vec<u32>,
    pub(super) all_by_class: Vec<u32>,
    /// Every node of the cluster takes its work.
    pub(super) up_everywhere: bool,
    /// The other nodes of the cluster, where they are few.
    pub(super) few_others: Option<Vec<usize>>,
}

impl Candidates {
    pub(super) fn none(nodes: usize) -> Self {
        let none = FixedBitSet::with_capacity(nodes);
        Self {
            up: none.clone(),
            all: none,
            up_by_class: Vec::new(),
            all_by_class: Vec::new(),
            up_everywhere: false,
            few_others: None,
        }
    }

    /// How many of some nodes that follow each other take work.
    #[inline]
    pub fn up_in(&self, nodes: Range<usize>) -> usize {
        if self.up_everywhere {
            nodes.len()
        } else {
            self.up.count_ones(nodes)
        }
    }

    /// The nodes that are no candidates, where they are few.
    pub fn few_others(&self) -> Option<&[usize]> {
        self.few_others.as_deref()
    }

    /// The named ones of them.
    pub(super) fn only(&self, named: &[usize], cluster: &Cluster) -> Self {
        let mut only = Self::none(self.all.len());
        only.all
            .extend(named.iter().copied().filter(|at| self.all.contains(*at)));
        only.up
            .extend(named.iter().copied().filter(|at| self.up.contains(*at)));
        let by_class = |nodes: &FixedBitSet| {
            let mut counts = vec![0; cluster.node_classes.list.len()];
            nodes
                .ones()
                .for_each(|at| counts[cluster.nodes[at].node_class as usize] += 1);
            counts
        };
        (only.up_by_class, only.all_by_class) = (by_class(&only.up), by_class(&only.all));
        only
    }
}

impl JobClass {
    /// The need of a part of a way on a node.
    #[inline]
    pub fn need(&self, alternative: usize, part: usize, node_class: u32) -> Option<&Need> {
        self.alternatives[alternative].parts[part].need(node_class)
    }

    /// What its parts need of a node of a class.
    pub fn needs_on(&self, node_class: u32) -> impl Iterator<Item = &Need> {
        self.alternatives
            .iter()
            .flat_map(|alternative| &alternative.parts)
            .filter_map(move |part| part.need(node_class))
    }

    /// The nodes that decide about a job: the named ones where it takes no others, else all candidates.
    pub fn in_question(&self) -> Cow<'_, FixedBitSet> {
        let takes_others =
            |alternative: &JobAlternative| alternative.nodes as usize > self.named.len();
        if self.named.is_empty() || self.alternatives.iter().all(takes_others) {
            return Cow::Borrowed(&self.candidates.up);
        }
        let mut named = FixedBitSet::with_capacity(self.candidates.up.len());
        named.extend(
            self.named
                .iter()
                .copied()
                .filter(|at| self.candidates.up.contains(*at)),
        );
        Cow::Owned(named)
    }
}

impl NodeGroup {
    /// What a node of a class must give; `None` where it never can.
    #[inline]
    pub fn need(&self, node_class: NodeClassId) -> Option<&Need> {
        self.needs[node_class as usize].as_ref()
    }

    /// CPUs that a node must have free to serve it.
    pub fn least_cpus(&self) -> u32 {
        let needs = self.needs.iter().flatten();
        needs.map(|need| need.cpus).min().unwrap_or(0)
    }

    /// Whole GPUs that a node must have free to serve it.
    pub fn least_gpus(&self) -> usize {
        let needs = self.needs.iter().flatten();
        needs.map(|need| usize::from(need.gpus)).min().unwrap_or(0)
    }
}

impl JobAlternative {
    pub(super) fn new(
        demand: &Demand,
        spec: &JobSpec,
        candidates: &Candidates,
        cluster: &Cluster,
    ) -> Self {
        let mut parts: Vec<NodeGroup> = Vec::new();
        for wanted in &demand.nodes {
            match parts.last_mut() {
                Some(part) if part.demand == *wanted => part.count += 1,
                _ => {
                    let tenant = gpolicy::feasibility::share_request::tenant(spec)
                        .filter(|_| wanted.gpus.capped);
                    let need = |node_class: &NodeClass| {
                        node_class
                            .need(wanted)
                            .ok()
                            .map(|need| Need { tenant, ..need })
                    };
                    let needs = cluster.node_classes.list.iter().map(need).collect();
                    parts.push(NodeGroup {
                        demand: wanted.clone(),
                        count: 1,
                        needs,
                    });
                }
            }
        }
        let take = take_of(demand, only_type(&parts, candidates, cluster), cluster);
        Self {
            parts,
            nodes: demand.nodes.len() as u32,
            take,
        }
    }

    /// The part that asks for the least.
    pub fn smallest(&self) -> &NodeGroup {
        &self.parts[self.parts.len() - 1]
    }
}

/// The GPU type of all nodes that could serve an alternative, where they have one only.
fn only_type<'a>(
    parts: &[NodeGroup],
    candidates: &Candidates,
    cluster: &'a Cluster,
) -> Option<&'a str> {
    let serves = |node_class: usize| {
        candidates
            .all_by_class
            .get(node_class)
            .is_some_and(|count| *count > 0)
            && parts.iter().any(|part| part.needs[node_class].is_some())
    };
    let node_classes =
        (0..cluster.node_classes.list.len()).filter(|node_class| serves(*node_class));
    let mut types = node_classes
        .flat_map(|node_class| &cluster.node_classes.list[node_class].groups)
        .map(|group| group.gpu_type.as_str());
    let first = types.next()?;
    types.all(|other| other == first).then_some(first)
}

fn take_of(demand: &Demand, only_type: Option<&str>, cluster: &Cluster) -> Take {
    let mut take = Take {
        nodes: demand.nodes.len() as u32,
        ..Take::default()
    };
    for node in &demand.nodes {
        take.cpus = take.cpus.saturating_add(node.cpus);
        let milli = match node.gpus.amount {
            GpuAmount::Share { milli } => u64::from(milli),
            GpuAmount::Whole(count) if !node.gpus.or_slice => u64::from(count) * 1000,
            GpuAmount::Whole(count) | GpuAmount::Mig { count, .. } => {
                u64::from(count) * u64::from(cluster.node_classes.least_milli(&node.gpus))
            }
        };
        if milli > 0 {
            let kind = node
                .gpus
                .gpu_type
                .as_deref()
                .or(only_type)
                .unwrap_or(ALL_GPUS)
                .to_ascii_lowercase();
            *take.gpus.entry(kind).or_default() += milli;
        }
    }
    take
}

/// What every candidate lacks even when idle, by the nearest miss; `up` asks nodes that are up only.
pub fn lack(
    alternative: &JobAlternative,
    candidates: &Candidates,
    up: bool,
    cluster: &Cluster,
) -> Option<Lack> {
    let by_class = if up {
        &candidates.up_by_class
    } else {
        &candidates.all_by_class
    };
    let mut before = 0;
    for part in &alternative.parts {
        before += part.count;
        let fitting: u32 = by_class
            .iter()
            .zip(&part.needs)
            .filter(|(_, need)| need.is_some())
            .map(|(count, _)| count)
            .sum();
        if fitting == 0 {
            let node_classes = cluster
                .node_classes
                .list
                .iter()
                .zip(by_class)
                .filter(|(_, count)| **count > 0);
            return node_classes
                .filter_map(|(node_class, _)| node_class.need(&part.demand).err())
                .max()
                .or(Some(Lack::Nodes));
        }
        if fitting < before {
            return Some(Lack::Nodes);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_is_known_of_a_shape_the_latest_time_for_no_longer_a_limit_counts() {
        let at = Timestamp::from_secs;
        let mut known = ClassFindings::default();
        assert_eq!(known.not_before(0, 60), None);
        known.note_not_before(1, 600, at(50));
        known.note_not_before(1, 60, at(20));
        // Said before, by one that was shorter.
        known.note_not_before(1, 900, at(40));
        let asked =
            |known: &ClassFindings| [59, 60, 599, 600, 9000].map(|secs| known.not_before(1, secs));
        assert_eq!(
            asked(&known),
            [None, Some(at(20)), Some(at(20)), Some(at(50)), Some(at(50))]
        );
        assert_eq!(
            (known.not_before(0, 9000), known.not_before(2, 9000)),
            (None, None),
            "each way by itself"
        );
        // It says more than both.
        known.note_not_before(1, 30, at(50));
        assert_eq!(
            (asked(&known), &known.not_before[1][..]),
            ([Some(at(50)); 5], &[(30, at(50))][..])
        );
        known.note_not_before(1, 30, at(70));
        assert_eq!(asked(&known), [Some(at(70)); 5]);
    }
}
