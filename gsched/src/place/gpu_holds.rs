//! The GPUs that reservations of so many GPUs set apart on nodes.
//!
//! Each pass sets them apart anew, on the smallest nodes that have enough, so that they stay where they are while runs start and end.

use crate::cluster::node_state::Hold;
use crate::cluster::nodes::Cluster;
use crate::cluster::timeline::{Kinds, Need, Step};
use crate::place::counted::GpuReservation;
use crate::snapshot::Snapshot;
use gmodel::Timestamp;
use gmodel::policy::ALL_GPUS;
use gpolicy::reserved_nodes::{Claim, Windows};
use gpolicy::window::Window;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Windows of a recurring reservation that are set apart at once.
const WINDOWS_AHEAD: usize = 32;

/// A node on which GPUs may be set apart.
#[derive(Clone, Copy)]
struct OpenNode {
    node: usize,
    /// Another reservation has it in a part of the window: taken last, so that GPUs move little.
    is_shared: bool,
}

/// Holds of one kind of GPU in a window, as they are made.
struct KindHolds<'a> {
    cluster: &'a mut Cluster,
    kind: &'a str,
    window: Window,
    held: &'a mut Vec<(usize, Hold)>,
}

/// Holds what the reservation's jobs do not use, from one change of their use to the next.
pub(super) fn set_apart(
    counted: &GpuReservation,
    cluster: &mut Cluster,
    windows: &Windows,
    snapshot: &Snapshot,
) -> Vec<(usize, Hold)> {
    let own = counted.reservation;
    let partition = windows.list[own].reservation.partition.as_deref();
    let usable = usable(cluster, snapshot, partition);
    let claim = Claim::Own(own);
    let mut held: Vec<(usize, Hold)> = Vec::new();
    for window in windows.of(own, snapshot.now).take(WINDOWS_AHEAD) {
        let is_shared = |node: usize| {
            let blocking = windows.blocking(node, claim, window.from, window.to);
            blocking.is_some()
        };
        let nodes = usable.iter().map(|node| OpenNode {
            node: *node,
            is_shared: is_shared(*node),
        });
        let nodes: Vec<OpenNode> = nodes.collect();
        let from = window.from.max(snapshot.now);
        let times = change_times(counted, windows, Window { from, ..window });
        for (from, to) in times.iter().copied().zip(times.iter().copied().skip(1)) {
            let is_open = |node: usize| windows.blocking(node, claim, from, to).is_none();
            let mut open = nodes.clone();
            open.retain(|one| is_open(one.node));
            // Nodes that held GPUs until now first, so that what is free to others changes little.
            let of_holds = held
                .iter()
                .filter(|(_, hold)| hold.to == from)
                .map(|(node, _)| *node);
            let of_jobs = counted
                .parts
                .iter()
                .filter(|part| part.to == from)
                .map(|part| part.node);
            let liked: Vec<usize> = of_holds
                .chain(of_jobs)
                .filter(|node| is_open(*node))
                .collect();
            for (kind, milli) in counted.left.missing(from) {
                let mut holds = KindHolds {
                    cluster,
                    kind: &kind,
                    window: Window { from, to },
                    held: &mut held,
                };
                holds.hold(milli, &open, &liked);
            }
        }
    }
    held
}

/// The times in a window at which jobs of a reservation start or end, or another reservation does; both ends are among them.
fn change_times(counted: &GpuReservation, windows: &Windows, window: Window) -> Vec<Timestamp> {
    let of_jobs = counted.parts.iter().flat_map(|part| [part.from, part.to]);
    let within = of_jobs.filter(|at| window.from < *at && *at < window.to);
    let of_others = windows.edges_of_others(Claim::Own(counted.reservation), window);
    let all = within.chain(of_others).chain([window.from, window.to]);
    all.collect::<BTreeSet<Timestamp>>().into_iter().collect()
}

/// Nodes of a partition, or of all, that take work.
fn usable(cluster: &Cluster, snapshot: &Snapshot, partition: Option<&str>) -> Vec<usize> {
    let partition = partition.and_then(|name| snapshot.config.partition(name));
    let of_partition = |at: &usize| {
        let node = &snapshot.nodes[*at];
        cluster.nodes[*at].up
            && partition.is_none_or(|partition| partition.holds(&node.name, &node.features))
    };
    (0..snapshot.nodes.len()).filter(of_partition).collect()
}

pub(super) fn release(cluster: &mut Cluster, holds: &[(usize, Hold)]) {
    for (node, hold) in holds.iter().rev() {
        cluster.touch(*node).release(hold);
    }
}

/// Holds again what was lifted; `false`, and nothing held, where other jobs have some of it now.
pub(super) fn hold_again(cluster: &mut Cluster, holds: &[(usize, Hold)]) -> bool {
    for (done, (node, hold)) in holds.iter().enumerate() {
        if !cluster.state(*node).can_hold_again(hold) {
            release(cluster, &holds[..done]);
            return false;
        }
        cluster.touch(*node).hold_again(hold);
    }
    true
}

impl KindHolds<'_> {
    /// Holds so many thousandths of GPUs: liked nodes first, and slices where whole GPUs are too few.
    fn hold(&mut self, milli: u64, open: &[OpenNode], liked: &[usize]) {
        let mut left = milli;
        for whole in [true, false] {
            left -= self.take_of_each(liked, whole, left);
            if whole && left > 0 {
                self.take_in_turn(&self.smallest(open, left), left);
            }
            if left == 0 || self.window.to == self.window.from {
                return;
            }
            left -= self.take_of_each(&self.emptiest(open), whole, left);
        }
    }

    /// Takes from one node after the other until there is as much.
    fn take_of_each(&mut self, nodes: &[usize], whole: bool, most: u64) -> u64 {
        let mut left = most;
        for node in nodes {
            if left == 0 {
                break;
            }
            left -= self.take(*node, self.window.from, whole, left);
        }
        most - left
    }

    /// Holds whole GPUs on the first node that has room for all, from when it has; before that, on the next such node.
    /// So the end of a run moves nothing onto a node of a planned start. The window ends where they begin to be held.
    fn take_in_turn(&mut self, nodes: &[usize], milli: u64) {
        let Window { from, .. } = self.window;
        for node in nodes {
            let to = self.window.to;
            let groups = self.whole_groups(*node);
            let steps = self.cluster.state(*node).profile.steps();
            let within = steps.partition_point(|step| step.at < to);
            let is_short =
                |step: &Step| u64::from(step.free.gpus_in(groups)) < milli.div_ceil(1000);
            let since = match steps[..within].iter().rposition(is_short) {
                None => from,
                Some(last) => steps
                    .get(last + 1)
                    .map_or(to, |step| step.at.clamp(from, to)),
            };
            if since < to && self.take(*node, since, true, milli) == milli {
                self.window.to = since;
            }
            if self.window.to == from {
                return;
            }
        }
    }

    /// Open nodes that would have so many thousandths in whole GPUs if they were idle, the smallest first.
    fn smallest(&self, open: &[OpenNode], milli: u64) -> Vec<usize> {
        let all = |at: usize| {
            let last = self.cluster.state(at).profile.steps().last();
            last.map_or(0, |step| {
                u64::from(step.free.gpus_in(self.whole_groups(at)))
            })
        };
        let sizes = open
            .iter()
            .map(|one| (one.is_shared, all(one.node), one.node));
        let mut sizes: Vec<(bool, u64, usize)> =
            sizes.filter(|(_, gpus, _)| gpus * 1000 >= milli).collect();
        sizes.sort_unstable();
        sizes.into_iter().map(|(.., at)| at).collect()
    }

    /// Open nodes, those with the most free GPUs in the window first.
    fn emptiest(&self, open: &[OpenNode]) -> Vec<usize> {
        let Window { from, to } = self.window;
        let free = |at: usize| self.cluster.state(at).profile.least(from, to).all_gpus();
        let mut nodes = open.to_vec();
        nodes.sort_by_key(|one| (one.is_shared, Reverse(free(one.node)), one.node));
        nodes.into_iter().map(|one| one.node).collect()
    }

    /// Groups of whole GPUs of the kind on a node.
    fn whole_groups(&self, at: usize) -> Kinds {
        let node_class =
            &self.cluster.node_classes.list[self.cluster.nodes[at].node_class as usize];
        node_class.kinds_where(|group| {
            (self.kind == ALL_GPUS || group.gpu_type == self.kind) && group.part.milli() == 1000
        })
    }

    /// Holds up to `most` thousandths on a node from a time on, rounded up: of whole GPUs, or of slices.
    fn take(&mut self, at: usize, from: Timestamp, whole: bool, most: u64) -> u64 {
        let (kind, to) = (self.kind, self.window.to);
        let node_class =
            &self.cluster.node_classes.list[self.cluster.nodes[at].node_class as usize];
        let mut by_part: BTreeMap<u64, Kinds> = BTreeMap::new();
        for (place, group) in node_class.groups.iter().enumerate() {
            let milli = u64::from(group.part.milli());
            if (kind == ALL_GPUS || group.gpu_type == kind) && (milli == 1000) == whole {
                *by_part.entry(milli).or_default() |= 1 << place;
            }
        }
        let mut left = most;
        for (part, groups) in by_part.into_iter().rev() {
            let free = self.cluster.state(at).profile.least(from, to);
            let gpus = u64::from(free.gpus_in(groups))
                .min(left.div_ceil(part.max(1)))
                .min(u64::from(u8::MAX));
            if gpus == 0 {
                continue;
            }
            let need = Need {
                cpus: 0,
                mem_bytes: 0,
                gpus: gpus as u8,
                groups,
                milli: 0,
                tenant: None,
                one_group: false,
                exclusive: false,
            };
            if let Some(hold) = self.cluster.touch(at).hold(&need, from, to) {
                self.held.push((at, hold));
                left = left.saturating_sub(gpus * part);
            }
        }
        most - left
    }
}
