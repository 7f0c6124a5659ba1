//! What the hollow nodes hold at each moment of a run over a trace, kept beside the system under test: its sums over
//! time, and the proof that nothing was given twice.

use crate::hardware::Hardware;
use gmodel::run::NodeShare;

/// Sums of one simulated cluster over time. Times are milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    nodes: Vec<NodeUse>,
    now: i64,
    gpu_milli: u64,
    cpus: u64,
    /// Free thousandths of GPUs on nodes where some are taken.
    broken_milli: u64,
    capacity_milli: u64,
    capacity_cpus: u64,
    pending: usize,
    pub sums: Sums,
    /// The use after each change, for plots.
    pub samples: Vec<Sample>,
    /// More was given of a node than it has.
    pub violation: Option<String>,
}

/// Integrals over time, in thousandths of GPUs (and CPUs) times milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub gpu: u128,
    pub cpu: u128,
    /// Free GPUs on nodes that are partly in use.
    pub broken: u128,
    /// Free GPUs.
    pub free: u128,
    /// Free GPUs while jobs waited.
    pub free_while_waiting: u128,
    /// GPUs there were.
    pub capacity: u128,
    pub cpu_capacity: u128,
}

/// The state of the cluster from one moment to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub at: i64,
    pub gpu_milli: u64,
    pub cpus: u64,
    pub pending: u64,
}

#[derive(Clone, Debug)]
struct NodeUse {
    gpus: Vec<u32>,
    cpus: u32,
    mem_bytes: u64,
    most_cpus: u32,
    most_mem_bytes: u64,
}

impl NodeUse {
    fn used_milli(&self) -> u64 {
        self.gpus.iter().map(|milli| u64::from(*milli)).sum()
    }
    fn broken_milli(&self) -> u64 {
        let used = self.used_milli();
        if used == 0 {
            0
        } else {
            (1000 * self.gpus.len() as u64).saturating_sub(used)
        }
    }
}

impl Ledger {
    pub fn new(hardware: &Hardware, begin: i64) -> Self {
        let nodes = hardware.nodes.iter().map(|node| NodeUse {
            gpus: vec![0; node.shape.gpus as usize],
            cpus: 0,
            mem_bytes: 0,
            most_cpus: node.shape.cpus,
            most_mem_bytes: node.shape.mem_bytes,
        });
        Self {
            nodes: nodes.collect(),
            now: begin,
            capacity_milli: 1000 * hardware.gpus(),
            capacity_cpus: hardware.cpus(),
            ..Self::default()
        }
    }

    /// Lets the time pass with what is held now.
    pub fn pass_to(&mut self, now: i64) {
        let millis = now.saturating_sub(self.now).max(0) as u128;
        self.now = now;
        let free = self.capacity_milli.saturating_sub(self.gpu_milli);
        self.sums.gpu += millis * u128::from(self.gpu_milli);
        self.sums.cpu += millis * u128::from(self.cpus);
        self.sums.broken += millis * u128::from(self.broken_milli);
        self.sums.free += millis * u128::from(free);
        self.sums.capacity += millis * u128::from(self.capacity_milli);
        self.sums.cpu_capacity += millis * u128::from(self.capacity_cpus);
        if self.pending > 0 {
            self.sums.free_while_waiting += millis * u128::from(free);
        }
    }

    /// Notes what is held and how many wait after everything of this moment.
    pub fn sample(&mut self, pending: usize) {
        self.pending = pending;
        let sample = Sample {
            at: self.now,
            gpu_milli: self.gpu_milli,
            cpus: self.cpus,
            pending: pending as u64,
        };
        match self.samples.last_mut() {
            Some(last) if last.at == self.now => *last = sample,
            Some(last)
                if Sample {
                    at: self.now,
                    ..*last
                } == sample => {}
            _ => self.samples.push(sample),
        }
    }

    /// A node (by its place in the hardware) takes a share.
    pub fn take(&mut self, node: usize, share: &NodeShare) {
        self.change(node, share, true);
    }

    pub fn give(&mut self, node: usize, share: &NodeShare) {
        self.change(node, share, false);
    }

    fn change(&mut self, at: usize, share: &NodeShare, take: bool) {
        let held = &mut self.nodes[at];
        let before = (held.used_milli(), held.broken_milli());
        for grant in &share.gpus.0 {
            let Some(milli) = held.gpus.get_mut(usize::from(grant.slot.0)) else {
                self.violation
                    .get_or_insert_with(|| format!("node {at} has no GPU {}", grant.slot.0));
                continue;
            };
            let held = grant.part.of_slot_milli();
            *milli = if take {
                *milli + held
            } else {
                milli.saturating_sub(held)
            };
            if *milli > 1000 {
                let text = format!(
                    "GPU {} of node {at} is given to {milli} thousandths",
                    grant.slot.0
                );
                self.violation.get_or_insert(text);
            }
        }
        if take {
            held.cpus += share.cpus;
            held.mem_bytes += share.mem_bytes;
            self.cpus += u64::from(share.cpus);
        } else {
            held.cpus -= share.cpus;
            held.mem_bytes -= share.mem_bytes;
            self.cpus -= u64::from(share.cpus);
        }
        if held.cpus > held.most_cpus || held.mem_bytes > held.most_mem_bytes {
            let text = format!(
                "node {at} gives {} CPUs and {} bytes, more than it has",
                held.cpus, held.mem_bytes
            );
            self.violation.get_or_insert(text);
        }
        self.gpu_milli = self.gpu_milli + held.used_milli() - before.0;
        self.broken_milli = self.broken_milli + held.broken_milli() - before.1;
    }
}

impl Sums {
    /// Several clusters together.
    pub fn add(&mut self, other: &Self) {
        self.gpu += other.gpu;
        self.cpu += other.cpu;
        self.broken += other.broken;
        self.free += other.free;
        self.free_while_waiting += other.free_while_waiting;
        self.capacity += other.capacity;
        self.cpu_capacity += other.cpu_capacity;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::NodeShape;
    use gmodel::{GpuSet, GpuSlot, NodeId};

    fn share(gpus: &[u16], cpus: u32) -> NodeShare {
        let gpus = GpuSet::whole(gpus.iter().map(|slot| GpuSlot(*slot)));
        NodeShare {
            node: NodeId(1),
            cpus,
            mem_bytes: 0,
            gpus,
            tasks: 1,
        }
    }

    #[test]
    fn use_and_fragments_are_summed_over_time() {
        let shape = NodeShape {
            gpus: 4,
            cpus: 8,
            mem_bytes: 1 << 30,
            ..NodeShape::default()
        };
        let mut ledger = Ledger::new(&Hardware::uniform(2, &shape), 0);
        ledger.take(0, &share(&[0], 2));
        ledger.sample(1);
        ledger.pass_to(10);
        ledger.give(0, &share(&[0], 2));
        ledger.sample(0);
        ledger.pass_to(30);
        let sums = ledger.sums;
        assert_eq!((sums.gpu, sums.cpu, sums.capacity), (10_000, 20, 240_000));
        assert_eq!(
            (sums.broken, sums.free, sums.free_while_waiting),
            (30_000, 230_000, 70_000)
        );
        assert_eq!(
            ledger
                .samples
                .iter()
                .map(|s| (s.at, s.gpu_milli))
                .collect::<Vec<_>>(),
            [(0, 1000), (10, 0)]
        );
        assert_eq!(ledger.violation, None);
    }

    #[test]
    fn what_is_given_twice_is_a_violation() {
        let shape = NodeShape {
            gpus: 1,
            cpus: 8,
            mem_bytes: 1 << 30,
            ..NodeShape::default()
        };
        let hardware = Hardware::uniform(1, &shape);
        let after = |shares: &[NodeShare]| {
            let mut ledger = Ledger::new(&hardware, 0);
            shares.iter().for_each(|share| ledger.take(0, share));
            ledger.violation
        };
        assert_eq!(after(&[share(&[0], 1), share(&[], 7)]), None);
        assert_eq!(
            after(&[share(&[0], 1), share(&[0], 1)]).unwrap(),
            "GPU 0 of node 0 is given to 2000 thousandths"
        );
        assert_eq!(after(&[share(&[1], 1)]).unwrap(), "node 0 has no GPU 1");
        assert!(after(&[share(&[], 9)]).unwrap().contains("9 CPUs"));
    }
}
