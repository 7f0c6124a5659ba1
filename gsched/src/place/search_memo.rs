//! What the search under way knows of node states, and whether enough nodes have room for a job class now.

use crate::cluster::node_states::{ByNodeState, NodeStateId};
use crate::cluster::nodes::Cluster;
use crate::job::job_class::{Candidates, JobAlternative, JobClass, NodeGroup};
use crate::place::score::Score;
use std::ops::Range;

/// What the search under way found out about node states: no state is looked at twice.
#[derive(Debug, Default)]
pub struct SearchMemo {
    pub(super) fits: ByNodeState<bool>,
    pub(super) scores: ByNodeState<Option<Score>>,
    pub(super) free: ByNodeState<u32>,
    pub(super) groups: ByNodeState<u32>,
    /// How many nodes that are no candidates have each state.
    others: ByNodeState<u32>,
}

impl SearchMemo {
    /// Whether enough nodes have room for an alternative now, for however short a time; if not, how many at most have
    /// it for its smallest part.
    pub fn is_free(
        &mut self,
        job_class: &JobClass,
        alternative: usize,
        cluster: &Cluster,
    ) -> Result<(), usize> {
        let of = &job_class.alternatives[alternative];
        let (wanted, group) = (of.nodes as usize, of.smallest());
        let candidates = &job_class.candidates;
        let with_cpus = cluster.with_cpus(group.least_cpus());
        if with_cpus < wanted {
            return Err(with_cpus);
        }
        if cluster.has_gpus() {
            let free = cluster.with_gpus(group.least_gpus(), &candidates.up);
            return self.is_enough(of, candidates, free.map(|at| at..at + 1), cluster);
        }
        if of.parts.len() > 1 || !self.begin_states(candidates, cluster) {
            return self.is_enough(of, candidates, cluster.open_stretches(), cluster);
        }
        let mut have = 0;
        let (from, to) = (cluster.now, cluster.now.plus_millis(1));
        for (id, nodes) in self.without_others(cluster.states_with_cpus(group.least_cpus())) {
            let (state, node_class) = cluster.state_and_class(id);
            if group
                .need(node_class)
                .is_some_and(|need| state.fits(need, from, to))
            {
                have += nodes;
            }
            if have >= wanted {
                return Ok(());
            }
        }
        Err(have)
    }

    /// Prepares for looking at node states in place of nodes; `false` where many nodes are no candidates.
    pub(super) fn begin_states(&mut self, candidates: &Candidates, cluster: &Cluster) -> bool {
        let Some(others) = candidates.few_others() else {
            return false;
        };
        self.others.begin();
        for at in others {
            let state = cluster.state_id(*at);
            let count = self.others.get(state).unwrap_or(0);
            self.others.set(state, count + 1);
        }
        true
    }

    /// The states of the candidates, with how many have each.
    pub(super) fn states<'c>(
        &self,
        cluster: &'c Cluster,
    ) -> impl Iterator<Item = (NodeStateId, usize)> + use<'_, 'c> {
        self.without_others(cluster.states_in_use())
    }

    fn without_others<R: Iterator<Item = (NodeStateId, usize)>>(
        &self,
        states: R,
    ) -> impl Iterator<Item = (NodeStateId, usize)> + use<'_, R> {
        let less = |(state, nodes): (NodeStateId, usize)| {
            (state, nodes - self.others.get(state).unwrap_or(0) as usize)
        };
        states.map(less).filter(|(_, nodes)| *nodes > 0)
    }

    /// How many of some nodes have room now for the smallest part of an alternative.
    pub fn count_free(
        &mut self,
        job_class: &JobClass,
        alternative: usize,
        nodes: &[Range<usize>],
        cluster: &Cluster,
    ) -> usize {
        self.fits.begin();
        let group = job_class.alternatives[alternative].smallest();
        let stretches = nodes
            .iter()
            .flat_map(|nodes| cluster.stretches_in(nodes.clone()));
        stretches
            .map(|nodes| self.count_free_in(group, &job_class.candidates, nodes, cluster))
            .sum()
    }

    /// As `count_free`, of nodes that have one state.
    fn count_free_in(
        &mut self,
        group: &NodeGroup,
        candidates: &Candidates,
        nodes: Range<usize>,
        cluster: &Cluster,
    ) -> usize {
        let up = candidates.up_in(nodes.clone());
        match up > 0 && self.fits_now(group, nodes.start, cluster) {
            true => up,
            false => 0,
        }
    }

    /// As `is_free`, among some stretches of nodes with one state each.
    fn is_enough(
        &mut self,
        of: &JobAlternative,
        candidates: &Candidates,
        stretches: impl Iterator<Item = Range<usize>>,
        cluster: &Cluster,
    ) -> Result<(), usize> {
        let wanted = of.nodes as usize;
        let is_uniform = of.parts.len() == 1;
        self.fits.begin();
        let mut have = 0;
        let mut free: Vec<(usize, usize)> = Vec::new();
        for nodes in stretches {
            let at = nodes.start;
            let here = self.count_free_in(of.smallest(), candidates, nodes, cluster);
            have += here;
            match is_uniform {
                true if have >= wanted => return Ok(()),
                true => {}
                false => free.push((at, here)),
            }
        }
        if have < wanted {
            return Err(have);
        }
        for group in &of.parts {
            let mut missing = group.count as usize;
            self.fits.begin();
            for (at, here) in &mut free {
                if missing > 0 && *here > 0 && self.fits_now(group, *at, cluster) {
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

    fn fits_now(&mut self, group: &NodeGroup, at: usize, cluster: &Cluster) -> bool {
        self.fits.get_or(cluster.state_id(at), || {
            let need = group.need(cluster.nodes[at].node_class);
            need.is_some_and(|need| cluster.fits(at, need, cluster.now, cluster.now.plus_millis(1)))
        })
    }
}
