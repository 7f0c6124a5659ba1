//! The order of the queue: nominated jobs, tier, guaranteed before borrowed, multifactor priority, submission, id.
//!
//! Each factor is 0 to 1 in millionths, times its weight; nice is taken off, and what an operator set replaces the sum.
//! Never says whether a job may start. Source: Slurm's page "Multifactor Priority Plugin", sprio(1).

use crate::cluster::gpu_types::SliceSizes;
use crate::fair_tree::{FairTree, PPM};
use crate::ledger::Ledger;
use crate::plan::Start;
use crate::snapshot::{PendingJob, Snapshot};
use gmodel::gpu_request::{GpuAmount, GpuKind};
use gmodel::job::{GpuScope, Request};
use gmodel::mig::least_milli;
use gmodel::policy::{JobOrder, PriorityWeights};
use gmodel::{JobId, JobSpec, RunClass, Timestamp};
use gpolicy::limits::{ALL, Holding};
use gpolicy::names::Names;
use gpolicy::quota::Guarantees;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A waiting job in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// Place in the snapshot's `pending`.
    pub at: usize,
    /// As what it would start, with all before it that could stand on the same guarantee counted; `None` where there are
    /// no quotas, and of who is held or waits for something else than its turn. Of an array: its next task.
    pub class: Option<RunClass>,
    pub factors: Factors,
}

/// What a priority is made of. Factors are in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Factors {
    pub age: u32,
    pub fair_share: u32,
    pub qos: u32,
    pub partition: u32,
    pub size: u32,
    /// As the site's submission hook has it.
    pub site: u32,
    pub nice: i32,
    /// Set by an operator in place of the sum.
    pub set: Option<u32>,
    /// Larger goes first.
    pub priority: i64,
}

/// The factors times their weights, as sprio(1) lists them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightedFactors {
    pub age: i64,
    pub fair_share: i64,
    pub qos: i64,
    pub partition: i64,
    pub size: i64,
    pub site: i64,
    /// Taken off.
    pub nice: i64,
}

impl Factors {
    pub fn weighted(&self, weights: &PriorityWeights) -> WeightedFactors {
        let times = |factor: u32, weight: u32| i64::from(factor) * i64::from(weight) / PPM as i64;
        WeightedFactors {
            age: times(self.age, weights.age),
            fair_share: times(self.fair_share, weights.fair_share),
            qos: times(self.qos, weights.qos),
            partition: times(self.partition, weights.partition),
            size: times(self.size, weights.size),
            site: times(self.site, weights.site),
            nice: i64::from(self.nice),
        }
    }

    /// With the age at the time of a snapshot.
    pub(crate) fn at_age(self, eligible: Timestamp, snapshot: &Snapshot) -> Self {
        let weights = &snapshot.config.scheduler.priority;
        let most = u64::from(weights.max_age_secs);
        let waited = snapshot.now.since_secs(eligible) as u64;
        Self {
            age: part(waited.min(most), most),
            ..self
        }
        .with_priority(weights)
    }

    fn with_priority(mut self, weights: &PriorityWeights) -> Self {
        let parts = self.weighted(weights);
        let sum =
            parts.age + parts.fair_share + parts.qos + parts.partition + parts.size + parts.site
                - parts.nice;
        self.priority = self.set.map_or(sum, i64::from);
        self
    }
}

/// All pending jobs in the order of their turn.
pub fn in_order(snapshot: &Snapshot, ledger: &Ledger) -> Vec<Ordered> {
    let mut order = match snapshot.config.scheduler.order {
        JobOrder::Multifactor => by_priority(snapshot, ledger),
        JobOrder::Fifo => by_key(snapshot, |job| {
            (
                0,
                job.submitted,
                job.id,
                job.particulars.positions.is_some(),
                job.spec.choice(),
            )
        }),
        JobOrder::Sjf => by_key(snapshot, |job| {
            (
                job.limit_secs.unwrap_or(u32::MAX),
                job.submitted,
                job.id,
                job.particulars.positions.is_some(),
                job.spec.choice(),
            )
        }),
    };
    // Others went for it: what they left is its own, whatever comes before it otherwise, themselves above all.
    order.sort_by_key(|one| snapshot.pending[one.at].particulars.nomination.is_none());
    order
}

/// Each job once, where its turn comes first: in an order that has an entry for each partition that it waits in.
pub fn each_once(snapshot: &Snapshot, mut order: Vec<Ordered>) -> Vec<Ordered> {
    let mut seen: BTreeSet<(JobId, bool)> = BTreeSet::new();
    order.retain(|one| {
        let job = &snapshot.pending[one.at];
        !job.is_choice() || seen.insert((job.id, job.particulars.positions.is_some()))
    });
    order
}

fn by_key<K: Ord>(snapshot: &Snapshot, key: impl Fn(&PendingJob) -> K) -> Vec<Ordered> {
    let mut order: Vec<usize> = (0..snapshot.pending.len()).collect();
    order.sort_by_cached_key(|at| key(&snapshot.pending[*at]));
    order
        .into_iter()
        .map(|at| Ordered {
            at,
            class: None,
            factors: Factors::default(),
        })
        .collect()
}

/// Larger tier, larger priority, older, smaller id, a task before the array whose first it is, and the partitions of a job
/// as it names them.
type Key = (Reverse<u32>, Reverse<i64>, Timestamp, JobId, bool, u32);

fn by_priority(snapshot: &Snapshot, ledger: &Ledger) -> Vec<Ordered> {
    let mut looked_up = LookUp::new(snapshot);
    let mut keys: Vec<(Key, usize)> = Vec::with_capacity(snapshot.pending.len());
    let mut factors: Vec<Factors> = Vec::with_capacity(snapshot.pending.len());
    for (at, job) in snapshot.pending.iter().enumerate() {
        let (tier, of_job) = looked_up.factors(at, job);
        let key = (
            Reverse(tier),
            Reverse(of_job.priority),
            job.submitted,
            job.id,
            job.particulars.positions.is_some(),
            job.spec.choice(),
        );
        keys.push((key, at));
        factors.push(of_job);
    }
    keys.sort_unstable();
    let mut jobs: Vec<(Reverse<u32>, Ordered)> = keys
        .into_iter()
        .map(|(key, at)| {
            (
                key.0,
                Ordered {
                    at,
                    class: None,
                    factors: factors[at],
                },
            )
        })
        .collect();
    if ledger.has_quotas() {
        give_classes(snapshot, ledger, &mut jobs);
        // A job without a class, outside of quotas or unable to start, has the place of a borrower.
        jobs.sort_by_key(|(tier, job)| (*tier, job.class != Some(RunClass::Guaranteed)));
    }
    jobs.into_iter().map(|(_, job)| job).collect()
}

/// The numbers of those that a plan starts, as `in_order` has them: what they were placed with, for people.
pub fn of_starts(snapshot: &Snapshot, starts: &[Start]) -> Vec<(JobId, i64)> {
    let ids: BTreeMap<JobId, Option<&str>> = starts
        .iter()
        .map(|start| (start.job, start.partition.as_deref()))
        .collect();
    if ids.is_empty() || snapshot.config.scheduler.order != JobOrder::Multifactor {
        return Vec::new();
    }
    let mut looked_up = LookUp::new(snapshot);
    let mut all = Vec::with_capacity(ids.len());
    for (at, job) in snapshot.pending.iter().enumerate() {
        let last = job
            .particulars
            .positions
            .as_ref()
            .and_then(|positions| positions.last())
            .map_or(0, u64::from);
        let here =
            |partition: &Option<&str>| partition.is_none_or(|name| name == job.spec.partition);
        let mut own = ids
            .range(job.id..=JobId(job.id.0 + last))
            .filter(|(_, partition)| here(partition))
            .peekable();
        if own.peek().is_some() {
            let (_, factors) = looked_up.factors(at, job);
            all.extend(own.map(|(id, _)| (*id, factors.priority)));
        }
    }
    // A task with a record of its own has its own number, which comes later than its array's.
    all.sort_by_key(|(id, _)| *id);
    all
}

/// Walks the queue into the guarantees that are left.
fn give_classes(snapshot: &Snapshot, ledger: &Ledger, jobs: &mut [(Reverse<u32>, Ordered)]) {
    let Some(guarantees) = ledger.guarantees() else {
        return;
    };
    let mut guarantees = guarantees.clone();
    let tree = ledger.tree();
    // A job that waits in several partitions asks for its guarantee once.
    let mut known: BTreeMap<(JobId, bool), Option<RunClass>> = BTreeMap::new();
    for (_, ordered) in jobs {
        let job = &snapshot.pending[ordered.at];
        if ledger.is_outside_quota(&job.spec) {
            continue;
        }
        if let Some(class) = known.get(&(job.id, job.particulars.positions.is_some())) {
            ordered.class = *class;
            continue;
        }
        if !may_start(job, snapshot.now) {
            continue;
        }
        ordered.class = Some(RunClass::Borrowed);
        let Some(account) = tree.number(&job.spec.account) else {
            continue;
        };
        let room = job.particulars.room.map_or(u64::MAX, u64::from);
        let most = job
            .particulars
            .positions
            .as_ref()
            .map_or(1, |positions| positions.len())
            .min(room);
        for task in 0..most {
            let Some(held) = guaranteed_as(job, account, &guarantees, ledger, snapshot.now) else {
                break;
            };
            if task == 0 {
                ordered.class = Some(RunClass::Guaranteed);
            }
            if held.gpus == 0 {
                break;
            }
            guarantees.add(tree, account, &held);
        }
        if job.is_choice() {
            known.insert((job.id, job.particulars.positions.is_some()), ordered.class);
        }
    }
}

/// Whether anything but resources and limits holds it back.
pub(crate) fn may_start(job: &PendingJob, now: Timestamp) -> bool {
    job.is_eligible(now) && job.particulars.room != Some(0)
}

/// What a job, or the next task of an array, would hold of what is guaranteed to its account, by its first choice: of the
/// first of the types it may be given that has room. `None`: it would borrow.
pub(crate) fn guaranteed_as(
    job: &PendingJob,
    account: u32,
    guarantees: &Guarantees,
    ledger: &Ledger,
    now: Timestamp,
) -> Option<Holding> {
    asked(job, ledger, now)
        .into_iter()
        .find(|held| guarantees.fits(ledger.tree(), account, held))
}

/// What it would hold by its first choice: one for each type of GPU that it may be given.
pub(crate) fn asked(job: &PendingJob, ledger: &Ledger, now: Timestamp) -> Vec<Holding> {
    let until = job.limit_secs.map(|secs| now.plus_secs(i64::from(secs)));
    let request = &job.spec.request;
    let none = Holding::new(
        u64::from(request.ntasks),
        u64::from(request.nodes_min),
        now,
        until,
    );
    let (gpu_type, milli) = gpus_counted(request, ledger);
    let of_type = |number: usize| {
        let mut held = none.clone();
        held.add_gpus(number, milli);
        held
    };
    match (gpu_type, ledger.types_in(&job.spec.partition)) {
        (Some(name), _) => vec![of_type(ledger.types().number(name))],
        (None, types) if milli > 0 && !types.is_empty() => {
            types.iter().map(|number| of_type(*number)).collect()
        }
        (None, _) => vec![of_type(ALL)],
    }
}

/// Thousandths of GPUs by the first choice, with their type if one is named. Slices count as little as their names allow.
pub fn gpus_asked(request: &Request) -> (Option<&str>, u64) {
    gpus_of_first(request, least_milli)
}

/// The same, where slices count as those of this cluster do: what one will be charged with, and stands on.
pub(crate) fn gpus_counted<'r>(request: &'r Request, ledger: &Ledger) -> (Option<&'r str>, u64) {
    gpus_of_first(request, |profile| ledger.slice_milli(profile))
}

fn gpus_of_first(request: &Request, slice_milli: impl Fn(&str) -> u32) -> (Option<&str>, u64) {
    let Some(first) = request
        .gpus
        .as_ref()
        .and_then(|ask| ask.alternatives.first())
    else {
        return (None, 0);
    };
    let times = match request.gpu_scope {
        GpuScope::Job => 1,
        GpuScope::Node => u64::from(request.nodes_min.max(1)),
        GpuScope::Task => u64::from(request.ntasks.max(request.nodes_min).max(1)),
    };
    let milli = match &first.amount {
        GpuAmount::Whole(count) => u64::from(*count) * 1000,
        GpuAmount::Share { milli } => u64::from(*milli),
        GpuAmount::Mig { profile, count } => u64::from(*count) * u64::from(slice_milli(profile)),
    };
    let gpu_type = match &first.kind {
        GpuKind::Any => None,
        GpuKind::Type(name) => Some(name.as_str()),
    };
    (gpu_type, milli * times)
}

/// What factors are measured against.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scale {
    partitions: Names,
    most_qos: u32,
    most_partition: u32,
    gpus: u64,
    cpus: u64,
    slices: SliceSizes,
}

/// What jobs of one request share, looked up once.
struct LookUp<'a> {
    snapshot: &'a Snapshot,
    tree: FairTree<'a>,
    scale: Scale,
    last: Option<(&'a Arc<JobSpec>, u32, Factors)>,
}

impl<'a> LookUp<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        Self {
            snapshot,
            tree: FairTree::of(snapshot),
            scale: Scale::new(snapshot),
            last: None,
        }
    }

    /// Tier and factors of a job.
    fn factors(&mut self, at: usize, job: &'a PendingJob) -> (u32, Factors) {
        let known = self.last.filter(|(spec, ..)| Arc::ptr_eq(spec, &job.spec));
        let (tier, shared) = match known {
            Some((_, tier, factors)) => (tier, factors),
            None => {
                let (tier, factors) = self.scale.factors(self.snapshot, &job.spec);
                let factors = Factors {
                    fair_share: self.tree.factor_of_pending(at),
                    ..factors
                };
                self.last = Some((&job.spec, tier, factors));
                (tier, factors)
            }
        };
        (
            tier,
            Factors {
                nice: job.nice,
                ..shared
            }
            .at_age(job.eligible, self.snapshot),
        )
    }
}

impl Scale {
    pub fn new(snapshot: &Snapshot) -> Self {
        let partitions = &snapshot.config.partitions;
        Self {
            partitions: partitions.iter().map(|one| one.name.as_str()).collect(),
            most_qos: snapshot
                .policy
                .qos
                .values()
                .map(|qos| qos.priority)
                .max()
                .unwrap_or(0),
            most_partition: partitions
                .iter()
                .map(|one| one.priority_factor)
                .max()
                .unwrap_or(0),
            gpus: snapshot
                .nodes
                .iter()
                .map(|node| crate::cluster::gpu_group::gpus_of(node) as u64 * 1000)
                .sum(),
            cpus: snapshot.nodes.iter().map(|node| u64::from(node.cpus)).sum(),
            slices: SliceSizes::new(snapshot),
        }
    }

    /// Place of a partition in the configuration.
    pub fn partition(&self, name: &str) -> Option<usize> {
        self.partitions.number(name).map(|at| at as usize)
    }

    /// Tier, and the factors that neither age nor fair share has a part in.
    pub fn factors(&self, snapshot: &Snapshot, spec: &JobSpec) -> (u32, Factors) {
        let partition = self
            .partition(&spec.partition)
            .and_then(|at| snapshot.config.partitions.get(at));
        let qos = snapshot
            .policy
            .qos
            .get(&spec.qos)
            .map_or(0, |qos| qos.priority);
        let large = self.size(&spec.request);
        let favor_small = snapshot.config.scheduler.priority.favor_small;
        let factors = Factors {
            qos: part(u64::from(qos), u64::from(self.most_qos)),
            partition: part(
                partition.map_or(0, |one| u64::from(one.priority_factor)),
                u64::from(self.most_partition),
            ),
            size: if favor_small {
                PPM as u32 - large
            } else {
                large
            },
            site: part(u64::from(spec.site_factor_milli.unwrap_or(0)), 1000),
            set: spec.priority,
            ..Factors::default()
        };
        (partition.map_or(0, |one| one.priority_tier), factors)
    }

    /// Part of the cluster: of its GPUs, or of its CPUs for a job without GPUs.
    fn size(&self, request: &Request) -> u32 {
        match gpus_of_first(request, |profile| self.slices.milli(profile)).1 {
            0 => {
                let tasks = u64::from(request.ntasks.max(request.nodes_min).max(1));
                part(
                    tasks * u64::from(request.cpus_per_task.unwrap_or(1)),
                    self.cpus,
                )
            }
            milli => part(milli, self.gpus),
        }
    }
}

/// Millionths, at most all.
fn part(one: u64, all: u64) -> u32 {
    if all == 0 {
        return 0;
    }
    (u128::from(one.min(all)) * u128::from(PPM) / u128::from(all)) as u32
}

#[cfg(test)]
mod tests;
