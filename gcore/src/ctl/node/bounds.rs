//! Bounds on node reports. Root on a node may report anything: every number, time, text and list is brought
//! within bounds here, once, before it is used. An inventory that no machine has makes the node unfit, in
//! words that `gnodes` shows. Whether the node may send the report at all is decided elsewhere.

use crate::ctl::command::NodeReport;
use crate::ctl::node::adoption::MAX_ADOPTED;
use crate::ctl::state::State;
use gmodel::gpu_health::GpuHealthStatus;
use gmodel::gpu_use::GpuUseTotals;
use gmodel::idle::IdleReport;
use gmodel::image_pull::PullReport;
use gmodel::launch_order::LaunchOrder;
use gmodel::mig::MigBoard;
use gmodel::node::{GpuInfo, HungRun, Inventory, MigSlice};
use gmodel::run::{LaunchFailureSubject, RunEnd, RunPhase, RunReport, RunUse, Usage};
use gmodel::{Fence, NodeId, NodeLife, RunId, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most CPUs of one machine; Linux counts up to 8192.
pub const MAX_NODE_CPUS: u32 = 65_536;
/// Most memory of one machine, bytes: 64 TiB. The sum over all nodes then fits an integer of SQLite.
pub const MAX_NODE_MEM_BYTES: u64 = 1 << 46;
/// Most memory of one GPU, MiB.
const MAX_GPU_MEMORY_MIB: u64 = 1 << 24;
/// Most GPUs and slices of GPUs in one machine at a time.
pub const MAX_NODE_GPUS: usize = 512;
/// Largest total of a usage counter: it is added up over nodes and runs.
const MAX_COUNT: u64 = 1 << 50;
/// More than a GPU draws, W.
const MAX_GPU_WATTS: u64 = 10_000;
/// Slack for clocks that were set: a run's usage may exceed the controller's count of time by this,
/// milliseconds.
const CLOCK_SLACK_MILLIS: u64 = 86_400_000;
/// The last second of the year 9999: what RFC 3339 can write.
const LAST_SECS: i64 = 253_402_300_799;
/// Bounds of texts and lists.
pub(crate) const MAX_WORD_BYTES: usize = 128;
const MAX_TEXT_BYTES: usize = 1000;
const MAX_PATH_BYTES: usize = 4096;
pub(crate) const MAX_FEATURES: usize = 256;
const MAX_NOTES: usize = 16;
const MAX_LINKS: usize = 64;
const MAX_BOARDS: usize = 16;
const MAX_KINDS: usize = 64;
const MAX_STEPS_TOLD: usize = 4096;

/// The report within its bounds.
pub(crate) fn bounded(
    state: &State,
    node: NodeId,
    mut report: NodeReport,
    now: Timestamp,
) -> NodeReport {
    match &mut report {
        NodeReport::Hello {
            life,
            inventory,
            runs,
            ..
        } => {
            bound_life(life);
            bound_inventory(inventory);
            bound_runs(state, node, runs, now);
        }
        NodeReport::Adopt {
            life,
            inventory,
            runs,
            orders,
        } => {
            bound_life(life);
            bound_inventory(inventory);
            bound_runs(state, node, runs, now);
            orders.truncate(MAX_ADOPTED);
            orders.iter_mut().for_each(bound_order);
        }
        NodeReport::Runs { runs } => bound_runs(state, node, runs, now),
        NodeReport::Idle { runs } => {
            let mut seen = BTreeSet::new();
            runs.retain(|IdleReport { run, .. }| seen.insert(*run));
        }
        NodeReport::Pulls { runs } => {
            let mut seen = BTreeSet::new();
            runs.retain(|PullReport { run, .. }| seen.insert(*run));
        }
        NodeReport::Inventory { inventory } => bound_inventory(inventory),
        NodeReport::Obeyed {
            fence: Fence { generation, .. },
        } => *generation = (*generation).min(state.seq.0),
        NodeReport::GpuOrders { done } => done
            .iter_mut()
            .for_each(|done| clip(&mut done.uuid, MAX_WORD_BYTES)),
        // Texts of `gpuctld` itself.
        NodeReport::Certificate { .. } | NodeReport::Claimed { .. } | NodeReport::Gone => {}
    }
    report
}

/// Usage of a live run, as its node reports it for listings.
pub fn bounded_use(mut used: RunUse) -> RunUse {
    let limits = UseLimits {
        millis: MAX_COUNT,
        cpus: 1,
        gpus: 1,
    };
    limits.bound(&mut used.all);
    used.steps.truncate(MAX_STEPS_TOLD);
    used.steps
        .iter_mut()
        .for_each(|(_, used)| limits.bound(used));
    used
}

/// Usage of a step, as its grun reports it, beside what its nodes measured.
pub(crate) fn bounded_usage(mut used: Usage) -> Usage {
    UseLimits {
        millis: MAX_COUNT,
        cpus: 1,
        gpus: 1,
    }
    .bound(&mut used);
    used
}

/// Also for inventories in databases from before these bounds.
pub(crate) fn bound_inventory(inventory: &mut Inventory) {
    let impossible = impossible(inventory);
    let Inventory {
        cpus,
        mem_bytes,
        gpus,
        nvlink_domain,
        mig,
        features,
        no_mps,
        declared: _,
        isolation,
        unfit,
        os,
        driver,
        version,
        boot_secs,
        hung,
        notes,
    } = inventory;
    *cpus = (*cpus).min(MAX_NODE_CPUS);
    *mem_bytes = (*mem_bytes).min(MAX_NODE_MEM_BYTES);
    *boot_secs = (*boot_secs).clamp(0, LAST_SECS);
    gpus.truncate(MAX_NODE_GPUS);
    gpus.iter_mut().for_each(bound_gpu);
    HungRun::bound(hung);
    features.truncate(MAX_FEATURES);
    features
        .iter_mut()
        .chain([nvlink_domain, isolation, os, driver, version])
        .for_each(|text| clip(text, MAX_WORD_BYTES));
    if !mig.is_empty() {
        bound_boards(Arc::make_mut(mig));
    }
    notes.truncate(MAX_NOTES);
    notes.iter_mut().for_each(|text| clip(text, MAX_TEXT_BYTES));
    if let Some(why) = impossible {
        *unfit = why;
    }
    [no_mps, unfit]
        .into_iter()
        .for_each(|text| clip(text, MAX_TEXT_BYTES));
}

/// Why no machine has this inventory.
fn impossible(inventory: &Inventory) -> Option<String> {
    let memory = inventory
        .gpus
        .iter()
        .map(|gpu| gpu.memory_mib)
        .max()
        .unwrap_or(0);
    let said = [
        (u64::from(inventory.cpus), u64::from(MAX_NODE_CPUS), "CPUs"),
        (inventory.mem_bytes, MAX_NODE_MEM_BYTES, "bytes of memory"),
        (inventory.gpus.len() as u64, MAX_NODE_GPUS as u64, "GPUs"),
        (memory, MAX_GPU_MEMORY_MIB, "MiB of memory of a GPU"),
        (
            inventory.features.len() as u64,
            MAX_FEATURES as u64,
            "features",
        ),
    ];
    let (is, most, what) = said.into_iter().find(|(is, most, _)| is > most)?;
    Some(format!(
        "its inventory is impossible: it says {is} {what}, and {most} are the most a machine has. Look at its gpud and at the machine"
    ))
}

pub(crate) fn bound_gpu(gpu: &mut GpuInfo) {
    let GpuInfo {
        uuid,
        gpu_type,
        index: _,
        minor: _,
        memory_mib,
        numa: _,
        nvlink_island: _,
        links,
        slice,
        mps: _,
        divided: _,
        notes,
        wants,
        standing,
        fault,
    } = gpu;
    *memory_mib = (*memory_mib).min(MAX_GPU_MEMORY_MIB);
    [uuid, gpu_type, wants]
        .into_iter()
        .for_each(|text| clip(text, MAX_WORD_BYTES));
    while links.len() > MAX_LINKS {
        links.pop_last();
    }
    notes.truncate(MAX_NOTES);
    notes
        .iter_mut()
        .chain([fault])
        .for_each(|text| clip(text, MAX_TEXT_BYTES));
    if let Some(MigSlice {
        gpu,
        profile,
        placement,
        compute_slices,
        memory_slices,
    }) = slice
    {
        [gpu, profile]
            .into_iter()
            .for_each(|text| clip(text, MAX_WORD_BYTES));
        (*placement, *compute_slices, *memory_slices) = (
            (*placement).min(7),
            (*compute_slices).min(7),
            (*memory_slices).min(8),
        );
    }
    if let Some(standing) = standing {
        let GpuHealthStatus {
            stage: _,
            since,
            sign,
            evidence,
            held: _,
            next,
        } = &mut **standing;
        bound_time(since);
        [sign, evidence, next]
            .into_iter()
            .for_each(|text| clip(text, MAX_TEXT_BYTES));
    }
}

fn bound_boards(boards: &mut Vec<MigBoard>) {
    boards.truncate(MAX_BOARDS);
    for MigBoard {
        gpu_type,
        memory_mib,
        kinds,
    } in boards
    {
        clip(gpu_type, MAX_WORD_BYTES);
        *memory_mib = (*memory_mib).min(MAX_GPU_MEMORY_MIB);
        kinds.truncate(MAX_KINDS);
        for kind in kinds {
            clip(&mut kind.profile, MAX_WORD_BYTES);
            (kind.compute_slices, kind.memory_slices) =
                (kind.compute_slices.min(7), kind.memory_slices.min(8));
            kind.memory_mib = kind.memory_mib.min(MAX_GPU_MEMORY_MIB);
            kind.starts.retain(|start| *start < 8);
            kind.starts.truncate(8);
            kind.most = kind.most.min(8);
        }
    }
}

/// One report a run, the last: reports are whole phases.
fn bound_runs(state: &State, node: NodeId, runs: &mut Vec<RunReport>, now: Timestamp) {
    let mut last: BTreeSet<RunId> = BTreeSet::new();
    runs.reverse();
    runs.retain(|report| last.insert(report.run));
    runs.reverse();
    for report in runs {
        match &mut report.phase {
            RunPhase::Running { started } => bound_time(started),
            RunPhase::Ended(end) | RunPhase::Clean(end) => bound_end(
                Arc::make_mut(end),
                &UseLimits::of(state, node, report.run, now),
            ),
            RunPhase::Accepted | RunPhase::Ready => {}
        }
        if let Some(mark) = &mut report.mark {
            bound_time(&mut mark.at);
        }
        report.sent.iter_mut().for_each(bound_time);
    }
}

fn bound_end(end: &mut RunEnd, limits: &UseLimits) {
    clip(&mut end.text, MAX_TEXT_BYTES);
    end.started
        .iter_mut()
        .chain(&mut end.ended)
        .for_each(bound_time);
    end.ran_millis = end.ran_millis.map(|millis| millis.min(limits.millis));
    end.gpu_events.truncate(MAX_NOTES);
    end.gpu_events
        .iter_mut()
        .for_each(|text| clip(text, 2 * MAX_WORD_BYTES));
    clip(&mut end.image, MAX_TEXT_BYTES);
    match &mut end.about {
        LaunchFailureSubject::Gpu { uuid: word } | LaunchFailureSubject::Choice { name: word } => {
            clip(word, MAX_WORD_BYTES)
        }
        LaunchFailureSubject::Node
        | LaunchFailureSubject::User
        | LaunchFailureSubject::Shortage
        | LaunchFailureSubject::Registry
        | LaunchFailureSubject::Unknown => {}
    }
    limits.bound(&mut end.usage);
}

/// The most that one node can have used for a run: its resources, for as long as the run was there.
struct UseLimits {
    millis: u64,
    cpus: u64,
    gpus: u64,
}

impl UseLimits {
    fn of(state: &State, node: NodeId, run: RunId, now: Timestamp) -> Self {
        let placed = state.run(run).map_or(now, |run| run.placed);
        let (cpus, gpus) = state.node(node).map_or((1, 1), |node| {
            (u64::from(node.inventory.cpus), node.gpus.len() as u64)
        });
        let millis = u64::try_from(now.since_millis(placed))
            .unwrap_or(0)
            .saturating_add(CLOCK_SLACK_MILLIS);
        Self {
            millis,
            cpus: cpus.max(1),
            gpus: gpus.max(1),
        }
    }

    fn bound(&self, usage: &mut Usage) {
        let Usage {
            cpu_user_micros,
            cpu_system_micros,
            peak_memory_bytes,
            oom_kills,
            gpu,
        } = usage;
        let most = |each: u64, count: u64| each.saturating_mul(count).min(MAX_COUNT);
        let micros = most(self.millis.saturating_mul(1000), self.cpus);
        *cpu_user_micros = (*cpu_user_micros).min(micros);
        *cpu_system_micros = (*cpu_system_micros).min(micros);
        *peak_memory_bytes = (*peak_memory_bytes).min(MAX_NODE_MEM_BYTES);
        *oom_kills = (*oom_kills).min(u64::from(u32::MAX));
        let GpuUseTotals {
            sampled_ms,
            idle_ms,
            busy_percent_ms,
            busy_told_ms,
            memory_percent_ms,
            memory_told_ms,
            memory_peak_bytes,
            power_peak_mw: _,
            temperature_peak_c: _,
            energy_mj,
            nvlink_kib,
            pcie_kib,
            slowed_ms,
            idle_now_ms,
        } = gpu;
        let millis = most(self.millis, self.gpus);
        [
            sampled_ms,
            idle_ms,
            busy_told_ms,
            memory_told_ms,
            slowed_ms,
            idle_now_ms,
        ]
        .into_iter()
        .for_each(|ms| *ms = (*ms).min(millis));
        [busy_percent_ms, memory_percent_ms]
            .into_iter()
            .for_each(|ms| *ms = (*ms).min(most(millis, 100)));
        *energy_mj = (*energy_mj).min(most(millis, MAX_GPU_WATTS));
        *memory_peak_bytes = (*memory_peak_bytes).min(MAX_NODE_MEM_BYTES);
        [nvlink_kib, pcie_kib]
            .into_iter()
            .for_each(|kib| *kib = (*kib).min(MAX_COUNT));
    }
}

fn bound_life(life: &mut NodeLife) {
    [&mut life.boot, &mut life.spool]
        .into_iter()
        .for_each(|text| clip(text, MAX_WORD_BYTES));
}

/// A launch order from before a restore, as its node kept it. Script and environment are not needed.
fn bound_order(order: &mut LaunchOrder) {
    order.script.clear();
    order.environment.clear();
    order.argv.truncate(1);
    order.cpus = order.cpus.min(MAX_NODE_CPUS);
    order.mem_bytes = order.mem_bytes.min(MAX_NODE_MEM_BYTES);
    order
        .nodes
        .iter_mut()
        .for_each(|node| clip(&mut node.name, MAX_WORD_BYTES));
    order.gpus.truncate(MAX_NODE_GPUS);
    let words = [
        &mut order.user.name,
        &mut order.account,
        &mut order.qos,
        &mut order.partition,
        &mut order.job_name,
        &mut order.submit_host,
    ];
    words
        .into_iter()
        .for_each(|text| clip(text, 2 * MAX_WORD_BYTES));
    let paths = [
        &mut order.work_dir,
        &mut order.stdout,
        &mut order.stderr,
        &mut order.stdin,
    ];
    paths
        .into_iter()
        .chain(&mut order.argv)
        .for_each(|text| clip(text, MAX_PATH_BYTES));
}

fn bound_time(at: &mut Timestamp) {
    *at = Timestamp(at.0.clamp(0, LAST_SECS * 1000));
}

fn clip(text: &mut String, most_bytes: usize) {
    if text.len() > most_bytes {
        text.truncate(text.floor_char_boundary(most_bytes));
        text.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::state::Node;

    fn lie() -> Inventory {
        let gpu = |at: usize| GpuInfo {
            uuid: format!("GPU-{at}{}", "u".repeat(4000)),
            memory_mib: u64::MAX,
            links: (0..5000)
                .map(|at| (at, gmodel::gpu_link::GpuLink::System))
                .collect(),
            notes: vec!["é".repeat(5000); 50],
            ..GpuInfo::default()
        };
        Inventory {
            cpus: u32::MAX,
            mem_bytes: u64::MAX,
            gpus: (0..600).map(gpu).collect(),
            features: vec!["f".repeat(10_000); 300],
            boot_secs: i64::MIN,
            driver: "d".repeat(1 << 20),
            hung: vec![
                HungRun {
                    run: None,
                    text: "é".repeat(1 << 20)
                };
                1000
            ],
            ..Inventory::default()
        }
    }

    #[test]
    fn an_impossible_inventory_is_bounded_and_says_what_is_impossible() {
        let mut inventory = lie();
        bound_inventory(&mut inventory);
        assert_eq!(
            (
                inventory.cpus,
                inventory.mem_bytes,
                inventory.gpus.len(),
                inventory.boot_secs
            ),
            (MAX_NODE_CPUS, MAX_NODE_MEM_BYTES, MAX_NODE_GPUS, 0)
        );
        assert_eq!(
            inventory.unfit,
            "its inventory is impossible: it says 4294967295 CPUs, and 65536 are the most a machine has. Look at its gpud and at the machine"
        );
        let bytes = serde_json::to_vec(&inventory).unwrap().len();
        assert!(bytes < 20 << 20, "{bytes}");
        let again = inventory.clone();
        bound_inventory(&mut inventory);
        assert_eq!(
            inventory, again,
            "what is within the bounds stays as it is, and what was refused stays refused"
        );
        let mut sound = Inventory {
            cpus: 128,
            mem_bytes: 2 << 40,
            features: vec!["ib".into()],
            ..Inventory::default()
        };
        let before = sound.clone();
        bound_inventory(&mut sound);
        assert_eq!(sound, before);
    }

    #[test]
    fn use_is_no_more_than_the_node_has_for_as_long_as_the_run_was_there() {
        let mut state = State::default();
        let inventory = Arc::new(Inventory {
            cpus: 4,
            ..Inventory::default()
        });
        state.nodes.insert(
            NodeId(1),
            Node {
                id: NodeId(1),
                inventory,
                ..Node::default()
            },
        );
        let gpu = GpuUseTotals {
            sampled_ms: u64::MAX,
            energy_mj: 1 << 63,
            nvlink_kib: u64::MAX,
            ..GpuUseTotals::default()
        };
        let all = u64::MAX;
        let usage = Usage {
            cpu_user_micros: all,
            cpu_system_micros: 1 << 63,
            peak_memory_bytes: all,
            oom_kills: all,
            gpu,
        };
        let (started, ended) = (Some(Timestamp(i64::MIN)), Some(Timestamp(i64::MAX)));
        let end = RunEnd {
            usage,
            text: "x".repeat(1 << 20),
            started,
            ended,
            ..RunEnd::default()
        };
        let run = RunId::new(gmodel::JobId(1), 1);
        let mut runs = vec![
            RunReport::new(run, RunPhase::Ready),
            RunReport::new(run, RunPhase::Clean(end.into())),
        ];
        bound_runs(&state, NodeId(1), &mut runs, Timestamp(1000));
        let [
            RunReport {
                phase: RunPhase::Clean(end),
                ..
            },
        ] = &runs[..]
        else {
            panic!("{runs:?}")
        };
        let day_micros = 86_400_000_000;
        assert_eq!(
            (end.usage.cpu_user_micros, end.usage.cpu_system_micros),
            (4 * day_micros, 4 * day_micros)
        );
        assert_eq!(
            (end.usage.peak_memory_bytes, end.usage.gpu.sampled_ms),
            (MAX_NODE_MEM_BYTES, 86_400_000)
        );
        assert_eq!(
            (end.text.len(), end.started),
            (MAX_TEXT_BYTES, Some(Timestamp(0)))
        );
        // The sum over all possible nodes and runs is an integer of SQLite.
        let mut sum = Usage::default();
        (0..1000).for_each(|_| sum.add(&end.usage));
        assert!(i64::try_from(sum.cpu_user_micros + sum.cpu_system_micros).is_ok());
        sum.add(&Usage {
            cpu_user_micros: u64::MAX,
            ..sum
        });
        assert_eq!(sum.cpu_user_micros, u64::MAX, "no overflow even so");
    }
}
