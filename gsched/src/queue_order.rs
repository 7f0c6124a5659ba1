//! The order of the queue: nominated jobs, tier, guaranteed before borrowed, multifactor priority, submission, id.
//!
//! The numbers are those of `gpolicy::priority`. Never says whether a job may start.

use crate::ledger::Ledger;
use crate::plan::Start;
use crate::snapshot::{PendingJob, Snapshot};
use gmodel::job::Request;
use gmodel::policy::JobOrder;
use gmodel::{JobId, JobSpec, RunClass, Timestamp};
use gpolicy::fair_tree::FairTree;
use gpolicy::limits::{ALL, Holding};
use gpolicy::priority::{Factors, Scale, gpus_of_first};
use gpolicy::quota::Guarantees;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A waiting job in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderedJob {
    /// Place in the snapshot's `pending`.
    pub at: usize,
    /// The class of its next start, after all earlier jobs took their part of the same guarantee. `None`: no quotas, or the job
    /// is not eligible. Of an array: of its next task.
    pub class: Option<RunClass>,
    pub factors: Factors,
}

/// All pending jobs in the order of their turn.
pub fn in_order(snapshot: &Snapshot, ledger: &Ledger) -> Vec<OrderedJob> {
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
pub fn each_once(snapshot: &Snapshot, mut order: Vec<OrderedJob>) -> Vec<OrderedJob> {
    let mut seen: BTreeSet<(JobId, bool)> = BTreeSet::new();
    order.retain(|one| {
        let job = &snapshot.pending[one.at];
        !job.is_choice() || seen.insert((job.id, job.particulars.positions.is_some()))
    });
    order
}

fn by_key<K: Ord>(snapshot: &Snapshot, key: impl Fn(&PendingJob) -> K) -> Vec<OrderedJob> {
    let mut order: Vec<usize> = (0..snapshot.pending.len()).collect();
    order.sort_by_cached_key(|at| key(&snapshot.pending[*at]));
    order
        .into_iter()
        .map(|at| OrderedJob {
            at,
            class: None,
            factors: Factors::default(),
        })
        .collect()
}

/// Larger tier, larger priority, older, smaller id, a task before its array, and the partitions of a job in the order of its
/// request.
type Key = (Reverse<u32>, Reverse<i64>, Timestamp, JobId, bool, u32);

fn by_priority(snapshot: &Snapshot, ledger: &Ledger) -> Vec<OrderedJob> {
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
    let mut jobs: Vec<(Reverse<u32>, OrderedJob)> = keys
        .into_iter()
        .map(|(key, at)| {
            (
                key.0,
                OrderedJob {
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
fn give_classes(snapshot: &Snapshot, ledger: &Ledger, jobs: &mut [(Reverse<u32>, OrderedJob)]) {
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

/// Thousandths of GPUs by the first choice, as a run would be charged with them: slices count as those of this cluster.
pub(crate) fn gpus_counted<'r>(request: &'r Request, ledger: &Ledger) -> (Option<&'r str>, u64) {
    gpus_of_first(request, |profile| ledger.slice_milli(profile))
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
            tree: FairTree::of(snapshot.usage_input(), &snapshot.pending),
            scale: Scale::new(&snapshot.config, &snapshot.policy, &snapshot.nodes),
            last: None,
        }
    }

    /// Tier and factors of a job.
    fn factors(&mut self, at: usize, job: &'a PendingJob) -> (u32, Factors) {
        let known = self.last.filter(|(spec, ..)| Arc::ptr_eq(spec, &job.spec));
        let (tier, shared) = match known {
            Some((_, tier, factors)) => (tier, factors),
            None => {
                let (tier, factors) =
                    self.scale
                        .factors(&self.snapshot.config, &self.snapshot.policy, &job.spec);
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
            .at_age(
                job.eligible,
                self.snapshot.now,
                &self.snapshot.config.scheduler.priority,
            ),
        )
    }
}

#[cfg(test)]
mod tests;
