//! Changes of a request that would start it: one thing less, shorter, or elsewhere.
//!
//! Each is tried at the job's turn in the pass, with everybody before it as they are; the least that works comes first.

use crate::pass::{Engine, Pass};
use crate::plan::WorkBudget;
use crate::snapshot::{PendingJob, Snapshot};
use crate::timeline::UNLIMITED_SECS;
use gmodel::gpu_request::{GpuAlternative, GpuAmount, GpuAsk, GpuKind};
use gmodel::job::MemAsk;
use gmodel::{JobId, JobSpec, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One change of a request, and when the job would start with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub edit: Edit,
    /// As options of gsub: `--time 1:30:00`.
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
    CpusPerTask(u32),
    /// Memory of each node, bytes.
    MemPerNode(u64),
    /// `None`: any type.
    GpuType(Option<String>),
    Partition(String),
    /// `--borrow`.
    Borrow,
    /// Without `--switches`, `--exclusive`, `--nodelist`, `--exclude`, `--constraint`, `--nvlink`.
    Without(String),
}

/// Counts that are tried below what is asked, from the largest; then halves.
const TRIES: u32 = 16;

/// What would start a job now, the least first; else what would start it soonest.
pub(crate) fn find(pass: &mut Pass, job: &PendingJob, partition: usize) -> Vec<Change> {
    let now = pass.snapshot.now;
    let mut works: Vec<Change> = Vec::new();
    let mut later: Vec<(Timestamp, Edit)> = Vec::new();
    let as_is = pass.starts_at(job, partition);
    let groups = edits(job, pass.snapshot, partition);
    for group in groups {
        // Of one kind of change the first that works is the least.
        for edit in group {
            let Some(changed) = edit.apply(job) else { continue };
            let Some(place) = place_of(pass.snapshot, &changed) else { continue };
            if pass.blockers(&changed, Some(place)).is_empty() {
                works.push(Change::new(job, edit, now));
                break;
            }
            let starts = pass.starts_at(&changed, place);
            later.extend(starts.filter(|at| as_is.is_none_or(|as_is| *at < as_is)).map(|at| (at, edit)));
        }
    }
    if let Some(longest) = longest_now(pass, job, partition) {
        works.push(Change::new(job, Edit::TimeLimit(longest), now));
    }
    works.sort_by_key(|change| change.loss_milli);
    if works.is_empty()
        && let Some((at, edit)) = later.into_iter().min_by_key(|(at, edit)| (*at, edit.loss_milli(job)))
    {
        works.push(Change::new(job, edit, at));
    }
    works
}

/// The longest limit with which it would start now; whole minutes where it is more than one.
fn longest_now(pass: &mut Pass, job: &PendingJob, partition: usize) -> Option<u32> {
    let limit = job.limit_secs.unwrap_or(UNLIMITED_SECS);
    let starts = |pass: &mut Pass, secs: u32| {
        Edit::TimeLimit(secs).apply(job).is_some_and(|changed| pass.blockers(&changed, Some(partition)).is_empty())
    };
    if limit <= 60 || !starts(pass, 60) {
        return None;
    }
    let (mut low, mut high) = (1, limit.div_ceil(60) - 1);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        match starts(pass, middle * 60) {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    Some(low * 60)
}

/// Lists of one kind of change each, the least first.
fn edits(job: &PendingJob, snapshot: &Snapshot, partition: usize) -> Vec<Vec<Edit>> {
    let request = &job.spec.request;
    let mut groups: Vec<Vec<Edit>> = Vec::new();
    groups.push(if job.spec.borrow == Some(true) { Vec::new() } else { vec![Edit::Borrow] });
    let gpus = request.gpus.iter().flat_map(|ask| &ask.alternatives);
    let most = gpus.filter_map(|one| if let GpuAmount::Whole(count) = one.amount { Some(count) } else { None }).max();
    groups.push(most.map_or(Vec::new(), |most| fewer(most).map(Edit::Gpus).collect()));
    groups.push(fewer(request.nodes_min).map(Edit::Nodes).collect());
    groups.push(fewer(request.cpus_per_task.unwrap_or(1)).map(Edit::CpusPerTask).collect());
    if let MemAsk::PerNode(bytes) = request.mem
        && bytes > 0
    {
        groups.push((1..8).map(|eighths| Edit::MemPerNode(bytes / 8 * (8 - eighths))).collect());
    }
    let mut types: BTreeSet<String> = BTreeSet::new();
    for node in &snapshot.nodes {
        let holds = snapshot.config.partitions[partition].holds(&node.name, &node.features);
        types.extend(node.gpus.iter().filter(|_| holds).map(|gpu| gpu.info.gpu_type.to_ascii_lowercase()));
    }
    let kinds = types.into_iter().map(Some).chain([None]);
    groups.push(kinds.map(Edit::GpuType).filter(|_| most.is_some()).collect());
    let others = snapshot.config.partitions.iter().enumerate().filter(|(at, _)| *at != partition);
    let open = others.filter(|(_, one)| {
        let spec = &job.spec;
        let allows = |list: &[String], name: &str| list.is_empty() || list.iter().any(|one| one == name);
        let waits_there = gmodel::partition_list::is_among(&spec.partitions, &one.name);
        !waits_there && allows(&one.allow_accounts, &spec.account) && allows(&one.allow_users, &spec.user.name) && allows(&one.allow_qos, &spec.qos)
    });
    groups.push(open.map(|(_, one)| Edit::Partition(one.name.clone())).collect());
    let given = [
        ("switches", request.switches.is_some()),
        ("exclusive", request.exclusive),
        ("nodelist", request.nodelist.is_some()),
        ("exclude", request.exclude.is_some()),
        ("constraint", request.constraint.is_some()),
        ("nvlink", request.nvlink),
    ];
    groups.extend(given.into_iter().filter(|(_, given)| *given).map(|(name, _)| vec![Edit::Without(name.into())]));
    groups
}

fn fewer(most: u32) -> impl Iterator<Item = u32> {
    let one_by_one = (1..most).rev().take(TRIES as usize);
    let rest = most.saturating_sub(TRIES);
    one_by_one.chain(std::iter::successors(Some(rest / 2), |count| Some(count / 2)).take_while(|count| *count > 0))
}

fn place_of(snapshot: &Snapshot, job: &PendingJob) -> Option<usize> {
    snapshot.config.partitions.iter().position(|one| one.name == job.spec.partition)
}

impl Pass<'_> {
    /// When a job would start at this point of the pass, by room and licences alone.
    fn starts_at(&mut self, job: &PendingJob, partition: usize) -> Option<Timestamp> {
        let shape = self.shape_of(job, partition);
        if self.shape(shape).never.is_some() {
            return None;
        }
        self.earliest(job, shape).map(|(at, ..)| at)
    }
}

impl Change {
    fn new(job: &PendingJob, edit: Edit, starts: Timestamp) -> Self {
        Self { option: edit.option(job), loss_milli: edit.loss_milli(job), starts, edit }
    }
}

impl Edit {
    /// The job with the change; `None` where it changes nothing.
    pub fn apply(&self, job: &PendingJob) -> Option<PendingJob> {
        let mut spec: JobSpec = (*job.spec).clone();
        let mut limit_secs = job.limit_secs;
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
            Self::CpusPerTask(count) => request.cpus_per_task = Some(*count),
            Self::MemPerNode(bytes) => request.mem = MemAsk::PerNode(*bytes),
            Self::GpuType(kind) => {
                let kind = kind.clone().map_or(GpuKind::Any, GpuKind::Type);
                let first = request.gpus.as_ref()?.first()?;
                let changed = GpuAlternative { kind, amount: first.amount.clone() };
                request.gpus = Some(GpuAsk { alternatives: vec![changed] });
            }
            Self::Partition(name) => spec.partition.clone_from(name),
            Self::Borrow => spec.borrow = Some(true),
            Self::Without(name) => match name.as_str() {
                "switches" => request.switches = None,
                "exclusive" => request.exclusive = false,
                "nodelist" => request.nodelist = None,
                "exclude" => request.exclude = None,
                "constraint" => request.constraint = None,
                _ => request.nvlink = false,
            },
        }
        let changed = spec != *job.spec || limit_secs != job.limit_secs;
        changed.then(|| PendingJob { spec: Arc::new(spec), limit_secs, ..job.clone() })
    }

    /// As options of gsub.
    fn option(&self, job: &PendingJob) -> String {
        match self {
            Self::TimeLimit(secs) => format!("--time {}", secs.div_euclid(60)),
            Self::Gpus(_) | Self::GpuType(_) => {
                let changed = self.apply(job).and_then(|job| job.spec.request.gpus.clone());
                let name = match job.spec.request.gpu_scope {
                    gmodel::job::GpuScope::Job => "--gpus",
                    gmodel::job::GpuScope::Node => "--gpus-per-node",
                    gmodel::job::GpuScope::Task => "--gpus-per-task",
                };
                format!("{name} {}", changed.map_or_else(String::new, String::from))
            }
            Self::Nodes(count) => format!("--nodes {count}"),
            Self::CpusPerTask(count) => format!("--cpus-per-task {count}"),
            Self::MemPerNode(bytes) => format!("--mem {}M", bytes >> 20),
            Self::Partition(name) => format!("--partition {name}"),
            Self::Borrow => "--borrow".into(),
            Self::Without(name) => format!("without --{name}"),
        }
    }

    fn loss_milli(&self, job: &PendingJob) -> u32 {
        let request = &job.spec.request;
        let part = |is: u64, was: u64| 1000 - (is.min(was) * 1000 / was.max(1)) as u32;
        match self {
            Self::TimeLimit(secs) => part(u64::from(*secs), u64::from(job.limit_secs.unwrap_or(UNLIMITED_SECS))),
            Self::Gpus(count) => {
                let whole = request.gpus.iter().flat_map(|ask| &ask.alternatives);
                let most = whole.filter_map(|one| if let GpuAmount::Whole(gpus) = one.amount { Some(gpus) } else { None }).max();
                part(u64::from(*count), u64::from(most.unwrap_or(1)))
            }
            Self::Nodes(count) => part(u64::from(*count), u64::from(request.nodes_min)),
            Self::CpusPerTask(count) => part(u64::from(*count), u64::from(request.cpus_per_task.unwrap_or(1))),
            Self::MemPerNode(bytes) => match request.mem {
                MemAsk::PerNode(was) => part(*bytes, was),
                _ => 500,
            },
            Self::GpuType(_) => 300,
            Self::Partition(_) => 400,
            Self::Borrow => 50,
            Self::Without(_) => 200,
        }
    }
}

impl Engine {
    /// Whether a job of a snapshot, changed, starts in the next pass; of one that waits in several partitions, what was
    /// found out about its entry for this one.
    pub fn starts_with(&mut self, snapshot: &Snapshot, edit: &Edit, (job, partition): (JobId, Option<&str>), budget: WorkBudget) -> bool {
        let is_entry = |one: &&PendingJob| one.id == job && partition.is_none_or(|name| name == one.spec.partition);
        let Some(entry) = snapshot.pending.iter().find(is_entry) else { return false };
        let Some(new) = edit.apply(entry) else { return false };
        let is_of_job = |one: &PendingJob| one.id == job && one.positions.is_some() == entry.positions.is_some();
        let moves = new.spec.partition != entry.spec.partition;
        let mut changed = snapshot.clone();
        // A change of a job is one in all of its partitions.
        changed.pending.retain(|one| !moves || !is_of_job(one) || is_entry(&one));
        changed.pending.iter_mut().filter(|one| is_of_job(one)).for_each(|one| *one = edit.apply(one).unwrap_or_else(|| one.clone()));
        let mut left = changed.pending.iter().filter(|one| is_of_job(one)).count();
        let (plan, _) = self.walk(&changed, budget, None, &mut |_, one, _| {
            let over = left == 0;
            left = left.saturating_sub(usize::from(is_of_job(one)));
            !over
        });
        plan.starts.iter().any(|start| start.job == job)
    }
}
