//! Demand for slices of GPUs that is not met at once: cuts that follow the queue beside cuts that never change, the best of them
//! chosen in hindsight.
//!
//! Jobs of at most one GPU, in the order of a trace; the cost of cuts is counted. Starts and cuts are gsched's decisions.
//! A cut that never changes makes a pool of each kind of slice, and those are exact without it.

use gmodel::config::{ClusterConfig, MigCuts, Partition};
use gmodel::gpu_request::GpuRequest;
use gmodel::mig::{MigBoard, MigKind};
use gmodel::node::{GpuEntry, GpuInfo, MigSlice};
use gmodel::rare::Rare;
use gmodel::run::NodeShare;
use gmodel::{GpuSlot, JobId, JobSpec, NodeId, Reason, RunId, Timestamp};
use gsched::snapshot::{CutRecord, NodeMig};
use gsched::{Engine, PendingJob, RunningRun, SchedNode, Snapshot, WorkBudget};
use gsim::prng::Prng;
use gsim::trace::Trace;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// GPUs of a node.
const GPUS: usize = 8;
/// A GPU is out of use for so long while it is cut.
const CUT_MS: i64 = 10_000;
/// Runs of a trace are between these.
const RUN_MS: (i64, i64) = (60_000, 24 * 3_600_000);
/// What is asked for: the profile, thousandths of a GPU that it may need at most, and that it is.
const KINDS: [(&str, u64, u64); 4] = [
    ("1g.10gb", 142, 142),
    ("2g.20gb", 285, 285),
    ("3g.40gb", 500, 500),
    ("1", 1000, 1000),
];
/// Cuts of one GPU that never change: how many of each kind.
const LAYOUTS: [[usize; 4]; 4] = [[7, 0, 0, 0], [1, 3, 0, 0], [0, 0, 2, 0], [0, 0, 0, 1]];

/// One job: when it comes, how long it runs, and its kind.
#[derive(Clone, Copy, Debug)]
struct SliceRequest {
    at_ms: i64,
    run_ms: i64,
    kind: usize,
}

/// What a way to cut came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UnmetDemand {
    pub way: String,
    /// GPU-hours of demand that waited, of what was asked for in all.
    pub waited_gpu_hours: f64,
    /// The same of each kind: `1g.10gb`, `2g.20gb`, `3g.40gb`, whole GPUs.
    pub waited_by_kind: [f64; 4],
    pub asked_gpu_hours: f64,
    pub mean_wait_secs: f64,
    pub cuts: u64,
}

/// Planned cuts, the best that never changes, the same number of GPUs for each kind, and what no cut can reach; with so many nodes of eight GPUs that
/// are asked for `load` of what they have.
/// `most_milli`: jobs that ask for more are left out.
pub fn compare(
    trace: &Trace,
    nodes: u32,
    jobs: usize,
    load: f64,
    seed: u64,
    most_milli: u64,
) -> Vec<UnmetDemand> {
    let gpus = nodes as usize * GPUS;
    let asks = asks(trace, jobs, load * gpus as f64, seed, most_milli);
    let [best, even] = fixed(&asks, gpus);
    vec![planned(&asks, nodes), best, even, divisible(&asks, gpus)]
}

/// Jobs in the order of the trace from a place of the seed's choice, at random times, so that they ask for `busy` GPUs.
fn asks(trace: &Trace, jobs: usize, busy: f64, seed: u64, most_milli: u64) -> Vec<SliceRequest> {
    let mut prng = Prng::new(seed, 5);
    let kind = |milli: u64| KINDS.iter().position(|(_, most, _)| milli <= *most);
    let usable = trace
        .jobs
        .iter()
        .filter(|job| (1..=most_milli).contains(&job.gpu_milli))
        .filter_map(|job| Some((job.run_ms?.clamp(RUN_MS.0, RUN_MS.1), kind(job.gpu_milli)?)));
    let usable: Vec<(i64, usize)> = usable.collect();
    if usable.is_empty() {
        return Vec::new();
    }
    let first = prng.range(0, usable.len() as i64 - 1) as usize;
    let picked: Vec<(i64, usize)> = usable
        .iter()
        .copied()
        .cycle()
        .skip(first)
        .take(jobs)
        .collect();
    let work: f64 = picked
        .iter()
        .map(|(run_ms, kind)| *run_ms as f64 * KINDS[*kind].2 as f64 / 1000.0)
        .sum();
    let gap = work / busy / jobs as f64;
    let mut at = 0.0;
    let ask = |(run_ms, kind): (i64, usize)| {
        // Exponential gaps: jobs come in crowds.
        let chance = (prng.range(1, 1 << 30) as f64) / f64::from(1 << 30);
        at += -chance.ln() * gap;
        SliceRequest {
            at_ms: at as i64,
            run_ms,
            kind,
        }
    };
    picked.into_iter().map(ask).collect()
}

fn result(way: String, asks: &[SliceRequest], waits_ms: &[i64], cuts: u64) -> UnmetDemand {
    let gpu_hours = |ms: i64, ask: &SliceRequest| ms as f64 * KINDS[ask.kind].2 as f64 / 3.6e9;
    let of_kind = |kind: usize| {
        asks.iter()
            .zip(waits_ms)
            .filter(|(ask, _)| ask.kind == kind)
            .map(|(ask, ms)| gpu_hours(*ms, ask))
            .sum()
    };
    UnmetDemand {
        way,
        waited_by_kind: std::array::from_fn(of_kind),
        waited_gpu_hours: asks
            .iter()
            .zip(waits_ms)
            .map(|(ask, ms)| gpu_hours(*ms, ask))
            .sum(),
        asked_gpu_hours: asks.iter().map(|ask| gpu_hours(ask.run_ms, ask)).sum(),
        mean_wait_secs: waits_ms.iter().sum::<i64>() as f64 / 1000.0 / waits_ms.len().max(1) as f64,
        cuts,
    }
}

/// The best of all cuts that never change, and an even one.
fn fixed(asks: &[SliceRequest], gpus: usize) -> [UnmetDemand; 2] {
    let most: Vec<usize> = (0..KINDS.len())
        .map(|kind| LAYOUTS.iter().map(|layout| layout[kind]).max().unwrap_or(0) * gpus)
        .collect();
    let costs: Vec<Vec<f64>> = (0..KINDS.len())
        .map(|kind| {
            (0..=most[kind])
                .map(|servers| cost(asks, kind, servers))
                .collect()
        })
        .collect();
    let servers = |cut: &[usize; 4], kind: usize| {
        (0..4)
            .map(|layout| cut[layout] * LAYOUTS[layout][kind])
            .sum::<usize>()
    };
    let total = |cut: &[usize; 4]| {
        (0..KINDS.len())
            .map(|kind| costs[kind][servers(cut, kind)])
            .sum::<f64>()
    };
    let all = (0..=gpus).flat_map(|a| {
        (0..=gpus - a)
            .flat_map(move |b| (0..=gpus - a - b).map(move |c| [a, b, c, gpus - a - b - c]))
    });
    let best = all
        .min_by(|one, other| total(one).total_cmp(&total(other)))
        .expect("there is one cut at least");
    let even = [gpus / 4, gpus / 4, gpus / 4, gpus - 3 * (gpus / 4)];
    let row = |name: &str, cut: [usize; 4]| {
        let words: Vec<String> = ["7x1g", "3x2g+1g", "2x3g", "whole"]
            .iter()
            .zip(cut)
            .map(|(word, count)| format!("{count} {word}"))
            .collect();
        let mut waits = vec![0; asks.len()];
        for kind in 0..KINDS.len() {
            pool(asks, kind, servers(&cut, kind), &mut waits);
        }
        result(format!("{name}: {}", words.join(", ")), asks, &waits, 0)
    };
    [
        row("fixed, best in hindsight", best),
        row("fixed, even", even),
    ]
}

/// What waits for a kind with so many of it, in GPU-milliseconds; without any, all that is asked for and the time there is.
fn cost(asks: &[SliceRequest], kind: usize, servers: usize) -> f64 {
    let mut waits = vec![0; asks.len()];
    pool(asks, kind, servers, &mut waits);
    asks.iter()
        .zip(&waits)
        .map(|(ask, ms)| *ms as f64 * KINDS[ask.kind].2 as f64)
        .sum()
}

/// First come, first served, on so many slices of one kind. Without any, jobs wait to the end of all.
fn pool(asks: &[SliceRequest], kind: usize, servers: usize, waits_ms: &mut [i64]) {
    let end = asks
        .iter()
        .map(|ask| ask.at_ms + ask.run_ms)
        .max()
        .unwrap_or(0);
    let mut free: BinaryHeap<Reverse<i64>> = (0..servers).map(|_| Reverse(0)).collect();
    for (at, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.kind == kind) {
        let Some(Reverse(since)) = free.pop() else {
            waits_ms[at] = end - ask.at_ms;
            continue;
        };
        let begin = since.max(ask.at_ms);
        waits_ms[at] = begin - ask.at_ms;
        free.push(Reverse(begin + ask.run_ms));
    }
}

/// All GPUs as one that is divided at will: first come, first served, with backfill. No cut does better in that order.
fn divisible(asks: &[SliceRequest], gpus: usize) -> UnmetDemand {
    let mut waits = vec![0; asks.len()];
    let mut free = gpus as u64 * 1000;
    let mut ends: BinaryHeap<Reverse<(i64, usize)>> = BinaryHeap::new();
    let mut waiting: Vec<usize> = Vec::new();
    let mut coming = (0..asks.len()).peekable();
    loop {
        let next_end = ends.peek().map(|Reverse((at, _))| *at);
        let next = coming
            .peek()
            .map(|at| asks[*at].at_ms)
            .into_iter()
            .chain(next_end)
            .min();
        let Some(now) = next else { break };
        while let Some(Reverse((_, at))) =
            ends.peek().copied().filter(|Reverse((end, _))| *end == now)
        {
            ends.pop();
            free += KINDS[asks[at].kind].2;
        }
        waiting.extend(std::iter::from_fn(|| {
            coming.next_if(|at| asks[*at].at_ms == now)
        }));
        waiting.retain(|at| {
            let (ask, milli) = (&asks[*at], KINDS[asks[*at].kind].2);
            let starts = milli <= free;
            if starts {
                free -= milli;
                waits[*at] = now - ask.at_ms;
                ends.push(Reverse((now + ask.run_ms, *at)));
            }
            !starts
        });
    }
    result("divided at will (no cut can)".into(), asks, &waits, 0)
}

/// What happens next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SliceEvent {
    Comes(usize),
    Ends(usize),
    /// A GPU of a node is cut: by its UUID.
    Cut(usize, String),
    /// A GPU may be cut again.
    Rests,
}

/// Nodes with GPUs that are cut as the scheduler proposes, from whole ones on.
fn planned(asks: &[SliceRequest], nodes: u32) -> UnmetDemand {
    let mut pool = SlicePool::new(nodes);
    let mut next: BinaryHeap<Reverse<(i64, SliceEvent)>> = asks
        .iter()
        .enumerate()
        .map(|(at, ask)| Reverse((ask.at_ms, SliceEvent::Comes(at))))
        .collect();
    let mut waits = vec![0; asks.len()];
    let mut cuts = 0;
    while let Some(Reverse((now_ms, first))) = next.pop() {
        let mut happened = vec![first];
        while next.peek().is_some_and(|Reverse((at, _))| *at == now_ms) {
            happened.extend(next.pop().map(|Reverse((_, one))| one));
        }
        happened.into_iter().for_each(|one| pool.take(one, asks));
        pool.picture.now = Timestamp(BASE_MS + now_ms);
        let plan = pool.engine.plan(&pool.picture, WorkBudget::default());
        for start in plan.starts {
            let at = start.job.0 as usize - 1;
            waits[at] = now_ms - asks[at].at_ms;
            next.push(Reverse((now_ms + asks[at].run_ms, SliceEvent::Ends(at))));
            pool.start(
                at,
                start.allocation.into_iter().next().expect("one node"),
                asks[at].run_ms,
            );
        }
        for cut in plan.cuts {
            cuts += 1;
            let node = cut.node.0 as usize - 1;
            next.push(Reverse((
                now_ms + CUT_MS,
                SliceEvent::Cut(node, cut.uuid.clone()),
            )));
            let recut = i64::from(pool.picture.config.mig_recut_secs) * 1000;
            next.push(Reverse((now_ms + recut.max(CUT_MS), SliceEvent::Rests)));
            pool.order(node, cut.uuid, cut.profiles);
        }
    }
    result("planned".into(), asks, &waits, cuts)
}

const BASE_MS: i64 = 1_000_000_000_000;

struct SlicePool {
    engine: Engine,
    picture: Snapshot,
}

impl SlicePool {
    fn new(nodes: u32) -> Self {
        let partition = Partition {
            name: "p".into(),
            is_default: true,
            mig: MigCuts::Planned,
            ..Partition::default()
        };
        let config = ClusterConfig {
            partitions: vec![partition],
            ..ClusterConfig::default()
        };
        let picture = Snapshot {
            config: Arc::new(config),
            nodes: (1..=nodes).map(node).collect(),
            ..Snapshot::default()
        };
        Self {
            engine: Engine::default(),
            picture,
        }
    }

    fn take(&mut self, what: SliceEvent, asks: &[SliceRequest]) {
        match what {
            SliceEvent::Comes(at) => self.picture.pending.push(pending(at, &asks[at])),
            SliceEvent::Ends(at) => {
                let place = self
                    .picture
                    .running
                    .iter()
                    .position(|run| run.run.job.0 as usize == at + 1)
                    .expect("it runs");
                let run = self.picture.running.remove(place);
                let share = &run.shares[0];
                self.picture.nodes[share.node.0 as usize - 1].give(share);
            }
            SliceEvent::Cut(node, uuid) => self.cut(node, &uuid),
            SliceEvent::Rests => {}
        }
    }

    fn start(&mut self, at: usize, share: NodeShare, run_ms: i64) {
        let place = self
            .picture
            .pending
            .iter()
            .position(|job| job.id.0 as usize == at + 1)
            .expect("it waits");
        let job = self.picture.pending.remove(place);
        self.picture.nodes[share.node.0 as usize - 1].take(&share);
        let run = RunId::new(job.id, 1);
        let ends = self.picture.now.plus_millis(run_ms);
        let place = self.picture.running.partition_point(|one| one.run < run);
        self.picture.running.insert(
            place,
            RunningRun::new(run, job.spec, vec![share], Some(ends)),
        );
    }

    /// Takes the GPU out of use.
    fn order(&mut self, node: usize, uuid: String, profiles: Vec<String>) {
        let now = self.picture.now;
        let node = &mut self.picture.nodes[node];
        for (gpu, free) in node
            .gpus
            .iter()
            .zip(&mut node.free_gpu_milli)
            .filter(|(gpu, _)| gpu.info.board() == uuid && gpu.present)
        {
            assert!(gpu.info.divided || *free == 1000, "a busy GPU is cut");
            *free = 0;
        }
        node.mig.ordered.insert(uuid.clone());
        node.mig.being_cut.insert(uuid.clone(), profiles.clone());
        node.mig.cuts.insert(uuid, CutRecord { at: now, profiles });
    }

    /// The order was carried out.
    fn cut(&mut self, node: usize, uuid: &str) {
        let node = &mut self.picture.nodes[node];
        node.mig.ordered.remove(uuid);
        node.mig.being_cut.remove(uuid);
        let profiles = node.mig.cuts[uuid].profiles.clone();
        let gpus = Arc::make_mut(&mut node.gpus);
        let mut whole = GpuInfo::default();
        for (gpu, free) in gpus
            .iter_mut()
            .zip(&mut node.free_gpu_milli)
            .filter(|(gpu, _)| gpu.info.board() == uuid)
        {
            gpu.present = gpu.info.slice.is_none();
            if gpu.present {
                gpu.info.divided = !profiles.is_empty();
                *free = if gpu.info.divided { 0 } else { 1000 };
                whole = gpu.info.clone();
            }
        }
        let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
        for profile in &profiles {
            let nth = seen.entry(profile).and_modify(|nth| *nth += 1).or_insert(0);
            let name = format!("MIG-{uuid}-{profile}-{nth}");
            let at = gpus
                .iter()
                .position(|gpu| gpu.info.uuid == name)
                .unwrap_or_else(|| {
                    let kind = board().kind(profile).expect("of the board").clone();
                    let slice = MigSlice {
                        gpu: uuid.to_owned(),
                        profile: profile.clone(),
                        placement: 0,
                        compute_slices: kind.compute_slices,
                        memory_slices: kind.memory_slices,
                    };
                    let info = GpuInfo {
                        uuid: name,
                        memory_mib: kind.memory_mib,
                        slice: Some(slice),
                        divided: false,
                        ..whole.clone()
                    };
                    gpus.push(GpuEntry {
                        slot: GpuSlot(gpus.len() as u16),
                        info,
                        present: true,
                        forgotten: false,
                        refused: String::new(),
                        checks: None,
                    });
                    node.free_gpu_milli.push(0);
                    gpus.len() - 1
                });
            gpus[at].present = true;
            node.free_gpu_milli[at] = 1000;
        }
    }
}

fn node(id: u32) -> SchedNode {
    let gpu = |at: usize| GpuEntry {
        slot: GpuSlot(at as u16),
        info: GpuInfo {
            uuid: format!("GPU-{id}-{at}"),
            gpu_type: "a100".into(),
            index: at as u32,
            memory_mib: board().memory_mib,
            ..GpuInfo::default()
        },
        present: true,
        forgotten: false,
        refused: String::new(),
        checks: None,
    };
    SchedNode {
        id: NodeId(id),
        name: format!("n{id}"),
        unavailable: None,
        features: Vec::new(),
        nvlink_domain: String::new(),
        cpus: 4096,
        mem_bytes: 1 << 50,
        gpus: Arc::new((0..GPUS).map(gpu).collect()),
        free_cpus: 4096,
        free_mem_bytes: 1 << 50,
        free_gpu_milli: vec![1000; GPUS],
        runs: 0,
        exclusive: false,
        mig: NodeMig {
            boards: Arc::new(vec![board()]),
            ..NodeMig::default()
        },
    }
}

/// What an A100 of 80 GB is cut into here.
fn board() -> MigBoard {
    let kind = |profile: &str, compute, memory, starts: &[u8], most| MigKind {
        profile: profile.into(),
        compute_slices: compute,
        memory_slices: memory,
        memory_mib: u64::from(memory) * 10_240,
        starts: starts.to_vec(),
        most,
    };
    let kinds = vec![
        kind("1g.10gb", 1, 1, &[0, 1, 2, 3, 4, 5, 6], 7),
        kind("2g.20gb", 2, 2, &[0, 2, 4], 3),
        kind("3g.40gb", 3, 4, &[0, 4], 2),
    ];
    MigBoard {
        gpu_type: "a100".into(),
        memory_mib: 81_920,
        kinds,
    }
}

fn pending(at: usize, ask: &SliceRequest) -> PendingJob {
    let mut spec = JobSpec {
        name: "pod".into(),
        ..JobSpec::default()
    };
    spec.partition = "p".into();
    spec.request.nodes_min = 1;
    spec.request.nodes_max = 1;
    spec.request.ntasks = 1;
    spec.request.mem = gmodel::job::MemRequest::PerNode(1);
    spec.request.gpus = Some(GpuRequest::parse(KINDS[ask.kind].0).expect("a request"));
    let came = Timestamp(BASE_MS + ask.at_ms);
    PendingJob {
        id: JobId(at as u64 + 1),
        spec: Arc::new(spec),
        submitted: came,
        eligible: came,
        nice: 0,
        // Limits are known, so that nothing is kept for longer than it has to be.
        limit_secs: Some((ask.run_ms / 1000 + 1) as u32),
        reason: Reason::default(),
        particulars: Rare::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_follow_a_demand_that_changes_and_a_fixed_cut_cannot() {
        // First all want small slices, then all want whole GPUs.
        let mut text = String::from("submit_s,run_s,gpus\n");
        (0..80).for_each(|_| text.push_str("0,3600,0.1\n"));
        (0..40).for_each(|_| text.push_str("0,3600,1\n"));
        let trace = Trace::parse(&text).unwrap();
        let mut asks = asks(&trace, 120, 6.0, 7, 1000);
        // In the order of the file, whatever the seed.
        asks.sort_by_key(|ask| ask.kind);
        let times: Vec<i64> = {
            let mut times: Vec<i64> = asks.iter().map(|ask| ask.at_ms).collect();
            times.sort_unstable();
            times
        };
        asks.iter_mut()
            .zip(times)
            .for_each(|(ask, at)| ask.at_ms = at);
        let [best, even] = fixed(&asks, 8);
        let planned = planned(&asks, 1);
        assert!(
            planned.waited_gpu_hours < best.waited_gpu_hours,
            "{planned:?} {best:?}"
        );
        assert!(best.waited_gpu_hours <= even.waited_gpu_hours);
        assert!((2..40).contains(&planned.cuts), "{planned:?}");
    }

    #[test]
    fn divided_at_will_nothing_is_lost_to_cuts() {
        let ask = |at_ms, kind| SliceRequest {
            at_ms,
            run_ms: 3_600_000,
            kind,
        };
        // Two halves, a whole, and seven small ones that fit beside nothing: one GPU.
        let asks: Vec<SliceRequest> = [(0, 2), (0, 2), (1, 3)]
            .into_iter()
            .map(|(at, kind)| ask(at, kind))
            .collect();
        let all = divisible(&asks, 1);
        assert!(
            (all.waited_by_kind[3] - 3_599_999.0 / 3.6e6).abs() < 1e-9
                && all.waited_by_kind[2] == 0.0,
            "{all:?}"
        );
        let both = divisible(&[ask(0, 2), ask(0, 1), ask(0, 0)], 1);
        assert_eq!(
            both.waited_gpu_hours, 0.0,
            "no cut of one GPU that is made for one of them serves the others at once"
        );
    }

    #[test]
    fn a_pool_serves_in_order_and_without_servers_no_job() {
        let ask = |at_ms| SliceRequest {
            at_ms,
            run_ms: 10,
            kind: 0,
        };
        let asks = [ask(0), ask(1), ask(2)];
        let waits = |servers| {
            let mut waits = [0; 3];
            pool(&asks, 0, servers, &mut waits);
            waits
        };
        assert_eq!(waits(1), [0, 9, 18]);
        assert_eq!(waits(2), [0, 0, 8]);
        assert_eq!(waits(0), [12, 11, 10]);
    }
}
