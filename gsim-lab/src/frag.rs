//! Fragmentation: pods in a seeded random order on empty nodes until what they ask for reaches a part of all GPUs; what
//! does not fit is dropped (the experiment of Weng et al., ATC'23, on their nodes and pods).
//!
//! Owns the order and the count. Where a pod goes is gsched's decision; `random` is the yardstick.

use gcore::ctl::snapshot;
use gmodel::config::{ClusterConfig, Partition};
use gmodel::policy::{Backfill, JobOrder, Placement, SchedulerConfig};
use gmodel::rare::Rare;
use gmodel::{JobId, Reason};
use gpolicy::feasibility::demand::Demand;
use gsched::cluster::node_state::share_on;
use gsched::{PendingJob, Snapshot, WorkBudget};
use gsim::hardware::Hardware;
use gsim::prng::Prng;
use gsim::trace::{Trace, TraceJob};
use gsim::trace_run::{BASE, Runtime, Settings, started_state};
use gsim::trace_spec::{ClusterTraits, spec_of};
use serde::Serialize;
use std::sync::Arc;

/// CPUs are counted in thousandths here: pods ask for parts of them.
const CPU_SCALE: u32 = 1000;

/// What places a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPlacer {
    /// Any node that has room, by chance.
    Random,
    Scheduler(Placement),
}

/// The words of `gsim-lab frag --placement`.
pub const PLACEMENTS: [(&str, PodPlacer); 5] = [
    ("random", PodPlacer::Random),
    ("best-fit", PodPlacer::Scheduler(Placement::BestFit)),
    ("first-fit", PodPlacer::Scheduler(Placement::FirstFit)),
    ("spread", PodPlacer::Scheduler(Placement::Spread)),
    ("pack", PodPlacer::Scheduler(Placement::Pack)),
];

/// One order of the pods. Thousandths of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FillResult {
    pub seed: u64,
    pub capacity_milli: u64,
    pub requested_milli: u64,
    pub allocated_milli: u64,
    pub pods: u64,
    pub dropped: u64,
}

impl FillResult {
    /// Allocated of all GPUs there are.
    pub fn part(&self) -> f64 {
        self.allocated_milli as f64 / self.capacity_milli.max(1) as f64
    }
}

/// Fills the nodes with the pods of the trace in the order of a seed, again and again, until the requests reach `until`
/// of all GPUs.
pub fn fill(pods: &Trace, hardware: &Hardware, by: PodPlacer, seed: u64, until: f64) -> FillResult {
    let capacity_milli = 1000 * hardware.gpus();
    let order = order(pods, seed, (until * capacity_milli as f64) as u64);
    let requested_milli = order.iter().map(|job| job.gpu_milli).sum();
    let mut picture = picture(hardware, by, &order);
    let placed: Vec<(usize, u64)> = match by {
        PodPlacer::Random => random(&mut picture, seed),
        PodPlacer::Scheduler(_) => {
            let budget = WorkBudget {
                node_probes: u64::MAX,
                starts: usize::MAX,
            };
            let milli = |allocation: &[gmodel::run::NodeShare]| {
                allocation.iter().map(|share| share.gpus.milli()).sum()
            };
            let starts = gsched::plan(&picture, budget).starts;
            starts
                .iter()
                .map(|start| (start.job.0 as usize - 1, milli(&start.allocation)))
                .collect()
        }
    };
    FillResult {
        seed,
        capacity_milli,
        requested_milli,
        allocated_milli: placed.iter().map(|(_, milli)| milli).sum(),
        pods: order.len() as u64,
        dropped: (order.len() - placed.len()) as u64,
    }
}

/// Pods by chance until they ask for enough; each round of all pods is in an order of its own.
fn order(pods: &Trace, seed: u64, wanted_milli: u64) -> Vec<&TraceJob> {
    let mut prng = Prng::new(seed, 2);
    let mut order = Vec::new();
    let mut requested = 0;
    if pods.jobs.iter().all(|job| job.gpu_milli == 0) {
        return order;
    }
    loop {
        let mut round: Vec<&TraceJob> = pods.jobs.iter().collect();
        for at in (1..round.len()).rev() {
            round.swap(at, prng.range(0, at as i64) as usize);
        }
        for job in round {
            if requested + job.gpu_milli > wanted_milli {
                return order;
            }
            requested += job.gpu_milli;
            order.push(job);
        }
    }
}

/// Idle nodes and all pods pending, without limits: no pod has a planned start, as no run ends.
fn picture(hardware: &Hardware, by: PodPlacer, order: &[&TraceJob]) -> Snapshot {
    let placement = match by {
        PodPlacer::Random => Placement::FirstFit,
        PodPlacer::Scheduler(placement) => placement,
    };
    let scheduler = SchedulerConfig {
        order: JobOrder::Fifo,
        backfill: Backfill::EASY,
        placement,
        ..SchedulerConfig::default()
    };
    let config = ClusterConfig {
        partitions: hardware.partitions.clone(),
        scheduler,
        ..ClusterConfig::default()
    };
    let mut picture = snapshot(&started_state(hardware, &config, BASE), BASE);
    for node in &mut picture.nodes {
        node.cpus = node.cpus.saturating_mul(CPU_SCALE);
        node.free_cpus = node.free_cpus.saturating_mul(CPU_SCALE);
    }
    let settings = Settings {
        runtime: Runtime::Limit,
        ..Settings::default()
    };
    let main = config
        .default_partition()
        .map_or_else(String::new, |partition| partition.name.clone());
    let traits = ClusterTraits::of(hardware);
    let pending = order.iter().enumerate().map(|(at, job)| {
        let mut spec = spec_of(job, &config, &settings, traits);
        spec.partition.clone_from(&main);
        spec.request.cpus_per_task = Some(job.cpu_milli.max(1) as u32);
        spec.request.ntasks = 1;
        PendingJob {
            id: JobId(at as u64 + 1),
            spec: Arc::new(spec),
            submitted: BASE,
            eligible: BASE,
            nice: 0,
            limit_secs: None,
            reason: Reason::default(),
            particulars: Rare::default(),
        }
    });
    picture.pending = pending.collect();
    picture
}

/// Each pod on any of the nodes that have room; its place in the order and what it got.
fn random(picture: &mut Snapshot, seed: u64) -> Vec<(usize, u64)> {
    let mut prng = Prng::new(seed, 3);
    let partition = Partition::default();
    let mut placed = Vec::new();
    for (at, job) in picture.pending.iter().enumerate() {
        let demand = Demand::all(&job.spec.request, &partition).swap_remove(0);
        let wanted = &demand.nodes[0];
        let fitting: Vec<usize> = (0..picture.nodes.len())
            .filter(|node| share_on(&picture.nodes[*node], wanted).is_ok())
            .collect();
        if fitting.is_empty() {
            continue;
        }
        let node = fitting[prng.range(0, fitting.len() as i64 - 1) as usize];
        let share = share_on(&picture.nodes[node], wanted).expect("it fits");
        picture.nodes[node].take(&share);
        placed.push((at, share.gpus.milli()));
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use gsim::hardware::NodeShape;

    fn nodes(count: u32) -> Hardware {
        let shape = NodeShape {
            gpus: 4,
            cpus: 8,
            mem_bytes: 1 << 40,
            ..NodeShape::default()
        };
        Hardware::uniform(count, &shape)
    }

    #[test]
    fn pods_are_repeated_until_they_ask_for_enough() {
        let pods = Trace::parse("submit_s,run_s,gpus,cpus\n0,,1,0.5\n0,,2,1\n0,,0,1\n").unwrap();
        let full = fill(
            &pods,
            &nodes(3),
            PodPlacer::Scheduler(Placement::BestFit),
            1,
            1.0,
        );
        assert_eq!(
            (
                full.capacity_milli,
                full.requested_milli,
                full.allocated_milli
            ),
            (12_000, 12_000, 12_000)
        );
        assert_eq!((full.dropped, full.part()), (0, 1.0));
        let over = fill(&pods, &nodes(3), PodPlacer::Random, 1, 1.5);
        assert!(
            over.requested_milli > 16_000 && over.allocated_milli <= 12_000 && over.dropped > 0,
            "{over:?}"
        );
        assert_eq!(fill(&pods, &nodes(3), PodPlacer::Random, 1, 1.5), over);
    }

    #[test]
    fn whole_nodes_stay_open_for_whole_nodes() {
        // Spread over all nodes, no job of 4 would fit any more.
        let pods =
            Trace::parse("submit_s,run_s,gpus,cpus\n0,,1,1\n0,,1,1\n0,,1,1\n0,,4,1\n0,,4,1\n")
                .unwrap();
        for seed in 0..10 {
            let packed = fill(
                &pods,
                &nodes(4),
                PodPlacer::Scheduler(Placement::BestFit),
                seed,
                0.69,
            );
            assert_eq!(
                (packed.requested_milli, packed.allocated_milli),
                (11_000, 11_000),
                "seed {seed}"
            );
        }
    }
}
