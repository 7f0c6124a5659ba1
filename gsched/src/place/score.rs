//! How good a node is for a job under `placement = "pack"`, by what stays free there.
//!
//! After FGD (Weng et al., Beware of Fragmentation, ATC'23): GPUs that are free but of no use to the jobs there usually
//! are count as lost, and the node is taken where the fewest more get lost. In integers, so that plans can be replayed.

use crate::cluster::node_class::{NodeClass, NodeClassId};
use crate::cluster::node_state::NodeState;
use crate::cluster::nodes::Cluster;
use crate::cluster::timeline::{Amount, GROUPS, Kinds, Need};
use crate::snapshot::Snapshot;
use gmodel::Timestamp;
use std::collections::BTreeMap;

/// Less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// Thousandths of GPUs that it would hold: where slices would do too, one here is better than a whole GPU elsewhere.
    takes_milli: u32,
    /// Thousandths of GPUs that more get lost, weighed by how usual the jobs are that miss them.
    lost: i64,
    free_gpus: u32,
    free_cpus: u32,
}

/// The usual jobs, and the scores of this pass.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    usual: Option<Vec<UsualRequest>>,
    classes: BTreeMap<ScoreClass, u32>,
    /// By room.
    class_of: Vec<Option<u32>>,
    /// By need, for each class.
    known: BTreeMap<Need, Vec<Option<Score>>>,
}

/// What one sort of job needs of each node class, and how many jobs are of the sort.
#[derive(Clone, Debug)]
struct UsualRequest {
    needs: Vec<Option<Need>>,
    weight: i64,
}

/// Nodes that are the same to every job: class, CPUs, memory, thousandths free by slot.
type ScoreClass = (NodeClassId, u32, u64, Vec<u16>);

/// What is free on a node.
struct ScoreState<'a> {
    node_class: &'a NodeClass,
    cpus: u32,
    mem_bytes: u64,
    slots: Vec<u16>,
}

impl Scores {
    pub fn begin_pass(&mut self) {
        *self = Self::default();
    }

    /// What taking a node for a need would leave.
    pub fn of(&mut self, cluster: &Cluster, at: usize, need: &Need, snapshot: &Snapshot) -> Score {
        let track = &cluster.nodes[at];
        let node_class = &cluster.node_classes.list[track.node_class as usize];
        if node_class.groups.is_empty() {
            let free = cluster.state(at).profile.free_at(cluster.now);
            return Score {
                takes_milli: 0,
                lost: 0,
                free_gpus: 0,
                free_cpus: free.cpus,
            };
        }
        let class = self.class(cluster, at);
        if let Some(Some(score)) = self
            .known
            .get(need)
            .and_then(|known| known.get(class as usize))
        {
            return *score;
        }
        let usual = self.usual.get_or_insert_with(|| usual(snapshot, cluster));
        let score = work_out(
            usual,
            node_class,
            track.node_class,
            cluster.state(at),
            need,
            cluster.now,
        );
        let known = self.known.entry(*need).or_default();
        if known.len() <= class as usize {
            known.resize(class as usize + 1, None);
        }
        known[class as usize] = Some(score);
        score
    }

    fn class(&mut self, cluster: &Cluster, at: usize) -> u32 {
        let id = cluster.state_id(at) as usize;
        if let Some(Some(class)) = self.class_of.get(id) {
            return *class;
        }
        let (node_class, room) = (cluster.nodes[at].node_class, cluster.state(at));
        let free = room.profile.free_at(cluster.now);
        let mut slots = room.slots.clone();
        if cluster.node_classes.list[node_class as usize].groups.len() == 1 {
            slots.sort_unstable();
        }
        let next = self.classes.len() as u32;
        let class = *self
            .classes
            .entry((node_class, free.cpus, free.mem_bytes, slots))
            .or_insert(next);
        if self.class_of.len() <= id {
            self.class_of.resize(id + 1, None);
        }
        self.class_of[id] = Some(class);
        class
    }

    /// The slot that a share should go on: which of the fitting ones loses the least.
    pub fn slot(
        &mut self,
        cluster: &Cluster,
        at: usize,
        need: &Need,
        fitting: &[u16],
        snapshot: &Snapshot,
    ) -> Option<u16> {
        let track = &cluster.nodes[at];
        let node_class = &cluster.node_classes.list[track.node_class as usize];
        let usual = self.usual.get_or_insert_with(|| usual(snapshot, cluster));
        let state = ScoreState::of(node_class, cluster.state(at), cluster.now);
        let lost = |slot: u16| state.with(need, Some(slot)).lost(usual, track.node_class);
        fitting
            .iter()
            .copied()
            .min_by_key(|slot| (lost(*slot), state.slots[usize::from(*slot)], *slot))
    }
}

fn work_out(
    usual: &[UsualRequest],
    node_class: &NodeClass,
    id: NodeClassId,
    room: &NodeState,
    need: &Need,
    now: Timestamp,
) -> Score {
    let before = ScoreState::of(node_class, room, now);
    let whole = usual.iter().map(|one| one.weight).sum::<i64>().max(1);
    let was = before.lost(usual, id);
    let is = match need.milli {
        0 => before.with(need, None).lost(usual, id),
        milli => {
            let mut tried: Vec<u16> = Vec::new();
            let slots = (0..before.slots.len()).filter(|slot| {
                let free = before.slots[*slot];
                // Slots that are as free as one that was tried are as good.
                let fits =
                    before.offers(*slot, need.groups) && free >= milli && !tried.contains(&free);
                tried.extend(fits.then_some(free));
                fits
            });
            let slots: Vec<u16> = slots.map(|slot| slot as u16).collect();
            slots
                .into_iter()
                .map(|slot| before.with(need, Some(slot)).lost(usual, id))
                .min()
                .unwrap_or(was)
        }
    };
    let free = room.profile.free_at(now);
    // A whole node takes what it has; all other whole GPUs and parts are of one size on each node.
    let amount = (need.gpus > 0 && !need.exclusive)
        .then(|| need.amount_from(free))
        .flatten();
    let takes = |amount: Amount| {
        node_class
            .groups
            .iter()
            .zip(amount.gpus)
            .map(|(group, count)| group.part.milli() * u32::from(count))
            .sum()
    };
    Score {
        takes_milli: amount.map_or(0, takes),
        lost: (is - was) * 16 / whole,
        free_gpus: free.all_gpus(),
        free_cpus: free.cpus,
    }
}

impl<'a> ScoreState<'a> {
    fn of(node_class: &'a NodeClass, room: &NodeState, now: Timestamp) -> Self {
        let free = room.profile.free_at(now);
        Self {
            node_class,
            cpus: free.cpus,
            mem_bytes: free.mem_bytes,
            slots: room.slots.clone(),
        }
    }

    fn offers(&self, slot: usize, groups: Kinds) -> bool {
        usize::from(self.node_class.slots[slot]) < GROUPS
            && groups & (1 << self.node_class.slots[slot]) != 0
    }

    /// After a job took what it needs, a share of the slot named.
    fn with(&self, need: &Need, slot: Option<u16>) -> Self {
        let mut slots = self.slots.clone();
        if let Some(slot) = slot {
            slots[usize::from(slot)] = slots[usize::from(slot)].saturating_sub(need.milli);
        }
        let mut left = need.gpus;
        for (at, free) in slots.iter_mut().enumerate() {
            if left > 0 && *free == 1000 && self.offers(at, need.groups) {
                *free = 0;
                left -= 1;
            }
        }
        let (cpus, mem_bytes) = (
            self.cpus.saturating_sub(need.cpus),
            self.mem_bytes.saturating_sub(need.mem_bytes),
        );
        Self {
            node_class: self.node_class,
            cpus,
            mem_bytes,
            slots,
        }
    }

    /// Thousandths that are free and that usual jobs have no use for, times how usual they are.
    fn lost(&self, usual: &[UsualRequest], node_class: NodeClassId) -> i64 {
        let free: i64 = self.slots.iter().map(|milli| i64::from(*milli)).sum();
        usual
            .iter()
            .map(|one| {
                one.weight
                    * one.needs[node_class as usize]
                        .as_ref()
                        .map_or(free, |need| self.lost_to(need, free))
            })
            .sum()
    }

    fn lost_to(&self, need: &Need, free: i64) -> i64 {
        if need.cpus > self.cpus || need.mem_bytes > self.mem_bytes || need.groups == 0 {
            return free;
        }
        let least = if need.milli > 0 { need.milli } else { 1000 };
        let (mut useful, mut sum, mut jobs) = (0u32, 0i64, 0i64);
        for (at, milli) in self.slots.iter().enumerate() {
            if *milli >= least && self.offers(at, need.groups) {
                useful += 1;
                sum += i64::from(*milli);
                jobs += i64::from(*milli / least);
            }
        }
        let each = u32::from(need.gpus.max(1));
        if useful < each {
            return free;
        }
        // GPUs beyond what CPUs and memory suffice for are of no use either.
        jobs /= i64::from(each);
        let by_cpus = i64::from(self.cpus / need.cpus.max(1));
        let by_mem = self
            .mem_bytes
            .checked_div(need.mem_bytes)
            .map_or(i64::MAX, |jobs| jobs as i64);
        free - sum * jobs.min(by_cpus).min(by_mem) / jobs
    }
}

/// What jobs there usually are, by the queue and by what runs.
fn usual(snapshot: &Snapshot, cluster: &Cluster) -> Vec<UsualRequest> {
    let counted;
    let sorts = match cluster.usual.queue_is_known {
        true => &cluster.usual,
        false => {
            counted = crate::job::usual::UsualJobs::of(snapshot, &cluster.node_classes);
            &counted
        }
    };
    sorts
        .most()
        .into_iter()
        .map(|(needs, weight)| UsualRequest {
            needs: needs.clone(),
            weight,
        })
        .collect()
}
