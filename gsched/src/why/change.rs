//! Changes of a request that would start it: one thing less, shorter, or elsewhere.
//!
//! Each is tried at the job's turn in the pass, with all jobs before it as they are; the least that works comes first.
//! `explanation.rs` proves each change by a whole pass: the job's turn and the starts of other jobs may change.

use crate::backfill::earliest::earliest_start;
use crate::decide::full_pass::pass_to_look;
use crate::engine::Engine;
use crate::job::reason;
use crate::pass::Pass;
use crate::plan::WorkBudget;
use crate::snapshot::{ArrayCap, PendingJob, Snapshot};
use crate::why::explanation::blockers_of;
use gmodel::gpu_request::{GpuAlternative, GpuAmount, GpuKind, GpuRequest};
use gmodel::job::{MemRequest, Request};
use gmodel::{JobId, JobSpec, ReasonCode, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One change of a request, and when the job would start with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub edit: Edit,
    /// As options of gsub, `--time 90`; of an array at its cap as gadm job update takes it: `ArrayTaskThrottle=5`.
    pub option: String,
    pub starts: Timestamp,
    /// How much of the request it gives up, thousandths: changes are sorted by it.
    pub loss_milli: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edit {
    /// Seconds.
    TimeLimit(u32),
    /// Of each alternative, in the scope the request has.
    Gpus(u32),
    Nodes(u32),
    /// `--ntasks`.
    Tasks(u32),
    CpusPerTask(u32),
    CpusPerGpu(u32),
    /// Bytes: of each node, CPU or GPU, as the request counts it.
    Mem(u64),
    /// `--mem` where nothing is said of it; bytes, instead of so many that it gets then.
    MemOfNode {
        bytes: u64,
        usual: u64,
    },
    /// `None`: any type.
    GpuType(Option<String>),
    Partition(String),
    /// `--borrow`.
    Borrow,
    /// So many tasks of its array at once.
    ArrayCap(u32),
    /// Without `--switches`, `--exclusive`, `--nodelist`, `--exclude`, `--constraint`, `--nvlink`.
    Without(String),
}

/// Smaller counts that are tried one by one: fewer nodes or GPUs need not fit better.
const ONE_BY_ONE: u32 = 64;

/// The most changes of one kind, in case the least fails the proof.
const MOST_OF_KIND: usize = 16;

/// Changes that would help a job at its turn in the pass.
pub(crate) struct HelpfulChanges {
    /// Changes of each kind that start it now, the least first.
    pub now: Vec<Vec<Change>>,
    /// The change that starts it soonest, if none does now.
    pub later: Option<Change>,
}

pub(crate) fn find(pass: &mut Pass, job: &PendingJob, partition: usize) -> HelpfulChanges {
    let start = pass.snapshot.now;
    let kinds = kinds(pass, job, partition);
    let mut works = |edit: &Edit| {
        let changed = edit
            .apply(job)
            .and_then(|changed| Some((place_of(pass.snapshot, &changed)?, changed)));
        changed.is_some_and(|(place, changed)| blockers_of(pass, &changed, Some(place)).is_empty())
    };
    let mut now: Vec<Vec<Change>> = Vec::new();
    for kind in &kinds {
        let edits = kind.that(&mut works).into_iter();
        now.push(edits.map(|edit| Change::new(job, edit, start)).collect());
    }
    now.retain(|changes| !changes.is_empty());
    let later = soonest(pass, job, partition, &kinds);
    HelpfulChanges { now, later }
}

/// The least change among those that start the job first, where only time is missing.
fn soonest(pass: &mut Pass, job: &PendingJob, partition: usize, kinds: &[Kind]) -> Option<Change> {
    let as_is = starts_at(pass, job, partition);
    let starts = |pass: &mut Pass, edit: &Edit| {
        let changed = edit.apply(job)?;
        let place = place_of(pass.snapshot, &changed)?;
        starts_at(pass, &changed, place)
            .filter(|at| changed.ends_in_time(*at))
            .filter(|at| as_is.is_none_or(|as_is| *at < as_is))
    };
    let mut found: Vec<(Timestamp, Edit)> = Vec::new();
    for kind in kinds {
        found.extend(
            kind.each
                .iter()
                .filter_map(|edit| Some((starts(pass, edit)?, edit.clone()))),
        );
        let Some(first) = kind.least().and_then(|edit| starts(pass, &edit)) else {
            continue;
        };
        let edits = kind.most_below(&mut |edit| starts(pass, edit).is_some_and(|at| at <= first));
        found.extend(edits.into_iter().map(|edit| (first, edit)));
    }
    found.sort_by_key(|(at, edit)| (*at, edit.loss_milli(job)));
    // Changes that start it at once were tried before.
    found.retain(|(at, _)| *at > pass.snapshot.now);
    let passes = |code: &ReasonCode| {
        matches!(
            code,
            ReasonCode::Resources
                | ReasonCode::Priority
                | ReasonCode::Licenses
                | ReasonCode::ReqNodeNotAvail
        )
    };
    let (at, edit) = found.into_iter().take(MOST_OF_KIND).find(|(_, edit)| {
        let changed = edit
            .apply(job)
            .and_then(|changed| Some((place_of(pass.snapshot, &changed)?, changed)));
        changed.is_some_and(|(place, changed)| {
            blockers_of(pass, &changed, Some(place))
                .iter()
                .all(|blocker| passes(&blocker.code))
        })
    })?;
    Some(Change::new(job, edit, at))
}

/// Changes of one kind.
struct Kind {
    /// Tried one by one, the least change first.
    each: Vec<Edit>,
    /// Then amounts from here down to one: room for much is room for less.
    below: u32,
    amount: Box<dyn Fn(u32) -> Edit>,
}

impl Kind {
    fn each(edits: impl IntoIterator<Item = Edit>) -> Self {
        Self {
            each: edits.into_iter().collect(),
            below: 0,
            amount: Box::new(Edit::Nodes),
        }
    }

    /// Amounts up to one.
    fn amounts(most: u32, amount: impl Fn(u32) -> Edit + 'static) -> Self {
        Self {
            each: Vec::new(),
            below: most,
            amount: Box::new(amount),
        }
    }

    /// Counts below what is asked.
    fn counts(asked: u32, count: impl Fn(u32) -> Edit + 'static) -> Self {
        let below = asked.saturating_sub(1 + ONE_BY_ONE);
        Self {
            each: (below + 1..asked).rev().map(&count).collect(),
            below,
            amount: Box::new(count),
        }
    }

    /// The changes that work, the least first.
    fn that(&self, works: &mut dyn FnMut(&Edit) -> bool) -> Vec<Edit> {
        let mut all: Vec<Edit> = self
            .each
            .iter()
            .filter(|edit| works(edit))
            .take(MOST_OF_KIND)
            .cloned()
            .collect();
        if all.is_empty() {
            all.extend(self.most_below(works));
        }
        all
    }

    fn least(&self) -> Option<Edit> {
        (self.below > 0).then(|| (self.amount)(1))
    }

    /// The largest amount up to one that works; 0: none.
    fn largest(&self, most: u32, works: &mut dyn FnMut(&Edit) -> bool) -> u32 {
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match works(&(self.amount)(middle)) {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        low
    }

    /// The largest amount that works, and smaller ones.
    fn most_below(&self, works: &mut dyn FnMut(&Edit) -> bool) -> Vec<Edit> {
        let low = self.largest(self.below, works);
        std::iter::successors(Some(low), |most| Some(most / 2))
            .take_while(|most| *most > 0)
            .map(&self.amount)
            .collect()
    }
}

fn kinds(pass: &mut Pass, job: &PendingJob, partition: usize) -> Vec<Kind> {
    let mut kinds = vec![Kind::each(
        (job.spec.borrow != Some(true)).then_some(Edit::Borrow),
    )];
    kinds.extend(smaller_counts(&job.spec.request));
    kinds.extend(less_memory(pass, job, partition));
    let full = job
        .particulars
        .cap
        .filter(|_| job.particulars.room == Some(0));
    kinds.push(Kind::each(full.map(|cap| Edit::ArrayCap(cap.running + 1))));
    let minutes = job.held_secs().div_ceil(60);
    kinds.push(Kind::amounts(minutes.saturating_sub(1), |minutes| {
        Edit::TimeLimit(minutes * 60)
    }));
    kinds.push(Kind::each(other_types(pass.snapshot, job, partition)));
    kinds.push(Kind::each(other_partitions(pass.snapshot, job, partition)));
    kinds.extend(fewer_conditions(&job.spec.request));
    kinds
}

/// GPUs of the alternative with the most whole GPUs.
fn most_gpus(request: &Request) -> Option<u32> {
    let alternatives = request.gpus.iter().flat_map(|ask| &ask.alternatives);
    alternatives
        .filter_map(|one| match one.amount {
            GpuAmount::Whole(count) => Some(count),
            _ => None,
        })
        .max()
}

/// Fewer GPUs, nodes, tasks or CPUs.
fn smaller_counts(request: &Request) -> [Kind; 5] {
    // Each of its nodes has a task, and as many nodes follow from fewer tasks.
    let (tasks, per_node) = (request.ntasks.max(1), request.ntasks_per_node);
    let nodes_of = |tasks: u32| per_node.map_or(1, |per_node| tasks.div_ceil(per_node.max(1)));
    let fewest = (request.nodes_min.max(1)..tasks)
        .find(|few| nodes_of(*few) == nodes_of(tasks))
        .unwrap_or(tasks);
    let below = |cpus: Option<u32>, least: u32| cpus.unwrap_or(least).saturating_sub(1);
    [
        Kind::counts(most_gpus(request).unwrap_or(0), Edit::Gpus),
        Kind::counts(request.nodes_min, Edit::Nodes),
        Kind::amounts(tasks - fewest, move |more| Edit::Tasks(fewest + more - 1)),
        Kind::amounts(below(request.cpus_per_task, 1), Edit::CpusPerTask),
        Kind::amounts(below(request.cpus_per_gpu, 0), Edit::CpusPerGpu),
    ]
}

/// Less memory than the job asks for, or than it gets where it asks for none.
fn less_memory(pass: &mut Pass, job: &PendingJob, partition: usize) -> Option<Kind> {
    let asked = match job.spec.request.mem {
        MemRequest::PerNode(bytes) | MemRequest::PerCpu(bytes) | MemRequest::PerGpu(bytes) => {
            Some(bytes)
        }
        _ => None,
    };
    let bytes = asked.or_else(|| usual_mem(pass, job, partition))?;
    let unit = mem_unit(bytes);
    let most = (bytes.saturating_sub(1) / unit) as u32;
    Some(Kind::amounts(most, move |units| {
        let less = u64::from(units) * unit;
        match asked {
            Some(_) => Edit::Mem(less),
            None => Edit::MemOfNode {
                bytes: less,
                usual: bytes,
            },
        }
    }))
}

/// The GPU types of the partition, and any type, for a job that asks for whole GPUs.
fn other_types(snapshot: &Snapshot, job: &PendingJob, partition: usize) -> Vec<Edit> {
    if most_gpus(&job.spec.request).is_none() {
        return Vec::new();
    }
    let partition = &snapshot.config.partitions[partition];
    let nodes = snapshot.nodes.iter();
    let types: BTreeSet<String> = nodes
        .filter(|node| partition.holds(&node.name, &node.features))
        .flat_map(|node| node.gpus.iter())
        .map(|gpu| gpu.info.gpu_type.to_ascii_lowercase())
        .collect();
    let types = types.into_iter().map(Some).chain([None]);
    types.map(Edit::GpuType).collect()
}

/// Partitions that are open to the job, and in which it does not wait.
fn other_partitions(snapshot: &Snapshot, job: &PendingJob, partition: usize) -> Vec<Edit> {
    let spec = &job.spec;
    let others = snapshot.config.partitions.iter().enumerate();
    let here = &snapshot.config.partitions[partition];
    others
        .filter(|(at, one)| {
            *at != partition
                && !gmodel::partition_list::is_among(&spec.partitions, &one.name)
                && reason::closed_to(spec, one, &snapshot.policy).is_none()
                // Which groups its user is in is not known here.
                && (one.allow_groups.is_empty() || one.allow_groups == here.allow_groups)
        })
        .map(|(_, one)| Edit::Partition(one.name.clone()))
        .collect()
}

/// The request without one of the conditions that it names.
fn fewer_conditions(request: &Request) -> impl Iterator<Item = Kind> {
    let given = [
        ("switches", request.switches.is_some()),
        ("exclusive", request.exclusive),
        ("nodelist", request.nodelist.is_some()),
        ("exclude", request.exclude.is_some()),
        ("constraint", request.constraint.is_some()),
        ("nvlink", request.nvlink),
    ];
    given
        .into_iter()
        .filter(|(_, given)| *given)
        .map(|(name, _)| Kind::each([Edit::Without(name.into())]))
}

/// The most memory of one node that goes with what else a job asks for.
fn usual_mem(pass: &mut Pass, job: &PendingJob, partition: usize) -> Option<u64> {
    let job_class = pass.job_class_of(job, partition);
    let of = pass.job_class(job_class);
    let cluster = &pass.world.cluster;
    let node_classes: BTreeSet<u32> = of
        .in_question()
        .ones()
        .map(|at| cluster.nodes[at].node_class)
        .collect();
    node_classes
        .into_iter()
        .filter_map(|node_class| Some(of.need(0, 0, node_class)?.mem_bytes))
        .max()
}

/// What changes of memory are rounded to: whole GiB of what is large, else an eighth of a power of two.
fn mem_unit(bytes: u64) -> u64 {
    if bytes >= 8 << 30 {
        1 << 30
    } else {
        (bytes.max(64 << 20).next_power_of_two() / 64).max(1 << 20)
    }
}

fn place_of(snapshot: &Snapshot, job: &PendingJob) -> Option<usize> {
    snapshot
        .config
        .partitions
        .iter()
        .position(|one| one.name == job.spec.partition)
}

/// When a job would start at this point of the pass, by room and licences alone.
fn starts_at(pass: &mut Pass, job: &PendingJob, partition: usize) -> Option<Timestamp> {
    let job_class = pass.job_class_of(job, partition);
    if pass.job_class(job_class).never.is_some() {
        return None;
    }
    earliest_start(pass, job, job_class).map(|found| found.at)
}

impl Change {
    fn new(job: &PendingJob, edit: Edit, starts: Timestamp) -> Self {
        Self {
            option: edit.option(job),
            loss_milli: edit.loss_milli(job),
            starts,
            edit,
        }
    }
}

impl Edit {
    /// The job with the change; `None` where it changes nothing.
    pub fn apply(&self, job: &PendingJob) -> Option<PendingJob> {
        let mut spec: JobSpec = (*job.spec).clone();
        let mut limit_secs = job.limit_secs;
        let mut particulars = job.particulars.clone();
        let request = &mut spec.request;
        match self {
            Self::TimeLimit(secs) => limit_secs = Some(*secs),
            Self::Gpus(count) => {
                let ask = request.gpus.as_mut()?;
                for one in &mut ask.alternatives {
                    if let GpuAmount::Whole(gpus) = &mut one.amount {
                        *gpus = (*gpus).min(*count);
                    }
                }
            }
            Self::Nodes(count) => {
                if request.nodelist.is_some() {
                    return None;
                }
                request.nodes_min = *count;
                request.nodes_max = request.nodes_max.min(*count);
                if let Some(per_node) = request.ntasks_per_node {
                    request.ntasks = request.ntasks.min(per_node * count);
                }
            }
            Self::Tasks(count) => request.ntasks = *count,
            Self::CpusPerTask(count) => request.cpus_per_task = Some(*count),
            Self::CpusPerGpu(count) => request.cpus_per_gpu = Some(*count),
            Self::Mem(bytes) => {
                if let MemRequest::PerNode(asked)
                | MemRequest::PerCpu(asked)
                | MemRequest::PerGpu(asked) = &mut request.mem
                {
                    *asked = *bytes;
                }
            }
            Self::MemOfNode { bytes, .. } => request.mem = MemRequest::PerNode(*bytes),
            Self::GpuType(kind) => {
                let kind = kind.clone().map_or(GpuKind::Any, GpuKind::Type);
                let first = request.gpus.as_ref()?.first()?;
                let changed = GpuAlternative {
                    kind,
                    amount: first.amount.clone(),
                };
                request.gpus = Some(GpuRequest {
                    alternatives: vec![changed],
                });
            }
            Self::Partition(name) => spec.partition.clone_from(name),
            Self::Borrow => spec.borrow = Some(true),
            Self::ArrayCap(most) => {
                let cap = job
                    .particulars
                    .cap
                    .filter(|cap| *most > cap.most.max(cap.running))?;
                particulars.room = Some(most - cap.running);
                particulars.cap = Some(ArrayCap { most: *most, ..cap });
            }
            Self::Without(name) => match name.as_str() {
                "switches" => request.switches = None,
                "exclusive" => request.exclusive = false,
                "nodelist" => request.nodelist = None,
                "exclude" => request.exclude = None,
                "constraint" => request.constraint = None,
                _ => request.nvlink = false,
            },
        }
        let changed = spec != *job.spec
            || limit_secs != job.limit_secs
            || particulars.room != job.particulars.room;
        changed.then(|| PendingJob {
            spec: Arc::new(spec),
            limit_secs,
            particulars,
            ..job.clone()
        })
    }

    /// As it is typed.
    fn option(&self, job: &PendingJob) -> String {
        match self {
            Self::TimeLimit(secs) => format!("--time {}", secs.div_euclid(60)),
            Self::Gpus(_) | Self::GpuType(_) => {
                let changed = self
                    .apply(job)
                    .and_then(|job| job.spec.request.gpus.clone());
                let name = match job.spec.request.gpu_scope {
                    gmodel::job::GpuScope::Job => "--gpus",
                    gmodel::job::GpuScope::Node => "--gpus-per-node",
                    gmodel::job::GpuScope::Task => "--gpus-per-task",
                };
                format!("{name} {}", changed.map_or_else(String::new, String::from))
            }
            Self::Nodes(count) => {
                let tasks = self.apply(job).map_or(job.spec.request.ntasks, |changed| {
                    changed.spec.request.ntasks
                });
                let tasks = if tasks == job.spec.request.ntasks {
                    String::new()
                } else {
                    format!(" --ntasks {tasks}")
                };
                format!("--nodes {count}{tasks}")
            }
            Self::Tasks(count) => format!("--ntasks {count}"),
            Self::CpusPerTask(count) => format!("--cpus-per-task {count}"),
            Self::CpusPerGpu(count) => format!("--cpus-per-gpu {count}"),
            Self::Mem(bytes) => {
                let name = match job.spec.request.mem {
                    MemRequest::PerCpu(_) => "--mem-per-cpu",
                    MemRequest::PerGpu(_) => "--mem-per-gpu",
                    MemRequest::PerNode(_) | MemRequest::Default => "--mem",
                };
                mem_option(name, *bytes)
            }
            Self::MemOfNode { bytes, .. } => mem_option("--mem", *bytes),
            Self::Partition(name) => format!("--partition {name}"),
            Self::Borrow => "--borrow".into(),
            Self::ArrayCap(most) => format!("ArrayTaskThrottle={most}"),
            // What its script says is put aside by what is typed.
            Self::Without(name) => match name.as_str() {
                "switches" => "--switches 0".to_owned(),
                "exclusive" | "nvlink" => format!("--{name}=off"),
                _ => format!("--{name}="),
            },
        }
    }

    fn loss_milli(&self, job: &PendingJob) -> u32 {
        let request = &job.spec.request;
        let part = |is: u64, was: u64| 1000 - (is.min(was) * 1000 / was.max(1)) as u32;
        match self {
            Self::TimeLimit(secs) => part(u64::from(*secs), u64::from(job.held_secs())),
            Self::Gpus(count) => {
                let whole = request.gpus.iter().flat_map(|ask| &ask.alternatives);
                let most = whole
                    .filter_map(|one| {
                        if let GpuAmount::Whole(gpus) = one.amount {
                            Some(gpus)
                        } else {
                            None
                        }
                    })
                    .max();
                part(u64::from(*count), u64::from(most.unwrap_or(1)))
            }
            Self::Nodes(count) => part(u64::from(*count), u64::from(request.nodes_min)),
            Self::Tasks(count) => part(u64::from(*count), u64::from(request.ntasks)),
            Self::CpusPerTask(count) => part(
                u64::from(*count),
                u64::from(request.cpus_per_task.unwrap_or(1)),
            ),
            Self::CpusPerGpu(count) => part(
                u64::from(*count),
                u64::from(request.cpus_per_gpu.unwrap_or(1)),
            ),
            Self::Mem(bytes) => match request.mem {
                MemRequest::PerNode(was) | MemRequest::PerCpu(was) | MemRequest::PerGpu(was) => {
                    part(*bytes, was)
                }
                MemRequest::Default => 0,
            },
            Self::MemOfNode { bytes, usual } => part(*bytes, *usual),
            Self::GpuType(_) => 300,
            Self::Partition(_) => 400,
            Self::Borrow | Self::ArrayCap(_) => 50,
            Self::Without(_) => 200,
        }
    }
}

fn mem_option(name: &str, bytes: u64) -> String {
    match bytes % (1 << 30) {
        0 => format!("{name} {}G", bytes >> 30),
        _ => format!("{name} {}M", bytes >> 20),
    }
}

/// Whether a job starts in the next pass with a change; `partition` names its entry where it is pending in several.
pub(crate) fn starts_with_edit(
    engine: &mut Engine,
    snapshot: &Snapshot,
    edit: &Edit,
    job: JobId,
    partition: Option<&str>,
    budget: WorkBudget,
) -> bool {
    let is_entry = |one: &&PendingJob| {
        one.id == job && partition.is_none_or(|name| name == one.spec.partition)
    };
    let Some(entry) = snapshot.pending.iter().find(is_entry) else {
        return false;
    };
    let Some(new) = edit.apply(entry) else {
        return false;
    };
    let is_of_job = |one: &PendingJob| {
        one.id == job
            && one.particulars.positions.is_some() == entry.particulars.positions.is_some()
    };
    let moves = new.spec.partition != entry.spec.partition;
    let mut changed = snapshot.clone();
    // The change applies in all of the job's partitions.
    changed
        .pending
        .retain(|one| !moves || !is_of_job(one) || is_entry(&one));
    changed
        .pending
        .iter_mut()
        .filter(|one| is_of_job(one))
        .for_each(|one| *one = edit.apply(one).unwrap_or_else(|| one.clone()));
    let mut left = changed.pending.iter().filter(|one| is_of_job(one)).count();
    let look = |_: &mut Pass, one: &PendingJob, _: Option<usize>| {
        let over = left == 0;
        left = left.saturating_sub(usize::from(is_of_job(one)));
        !over
    };
    let (plan, _) = pass_to_look(engine, &changed, budget, |_| {}, look);
    plan.starts.iter().any(|start| entry.is_or_has(start.job))
}
