//! The usual jobs: how many of each sort wait and run. `pack` keeps nodes fit for them.
//!
//! Two jobs are of one sort when they need the same of each node class. The counts follow each submission and end, since a
//! count of the queue in each pass would cost more than the pass.

use crate::cluster::node_class::NodeClasses;
use crate::cluster::timeline::Need;
use crate::snapshot::Snapshot;
use gmodel::JobSpec;
use gpolicy::feasibility::demand::Demand;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sorts that are scored; rarer ones are ignored.
const MOST: usize = 32;

/// By node class, what a node must give; `None` where it never can.
pub(crate) type Needs = Vec<Option<Need>>;

/// Number of a sort; [`NO_SORT`]: of a job that asks for what is not there.
pub(crate) type Sort = u32;
pub(crate) const NO_SORT: Sort = Sort::MAX;

/// How many there are of each sort.
#[derive(Clone, Debug, Default)]
pub(crate) struct UsualJobs {
    numbers: BTreeMap<Needs, Sort>,
    waiting: Vec<i64>,
    running: Vec<i64>,
    last: Option<(Arc<JobSpec>, Sort)>,
    /// Pending jobs were counted.
    pub queue_is_known: bool,
}

impl UsualJobs {
    /// Of everything in a snapshot.
    pub fn of(snapshot: &Snapshot, node_classes: &NodeClasses) -> Self {
        let mut usual = Self::default();
        for run in &snapshot.running {
            usual.run_comes(&run.spec, snapshot, node_classes);
        }
        for job in &snapshot.pending {
            usual.job_comes(&job.spec, snapshot, node_classes);
        }
        usual
    }

    fn sort_of(
        &mut self,
        spec: &Arc<JobSpec>,
        snapshot: &Snapshot,
        node_classes: &NodeClasses,
    ) -> Sort {
        if let Some((seen, sort)) = &self.last
            && Arc::ptr_eq(seen, spec)
        {
            return *sort;
        }
        let demands = snapshot
            .config
            .partition(&spec.partition)
            .map(|partition| Demand::all(&spec.request, partition));
        let wanted = demands
            .as_ref()
            .and_then(|demands| demands.first()?.nodes.first());
        let sort = wanted.map_or(NO_SORT, |wanted| {
            let needs: Needs = node_classes
                .list
                .iter()
                .map(|node_class| node_class.need(wanted).ok())
                .collect();
            let next = self.numbers.len() as Sort;
            let sort = *self.numbers.entry(needs).or_insert(next);
            if sort == next {
                self.waiting.push(0);
                self.running.push(0);
            }
            sort
        });
        self.last = Some((spec.clone(), sort));
        sort
    }

    pub fn job_comes(
        &mut self,
        spec: &Arc<JobSpec>,
        snapshot: &Snapshot,
        node_classes: &NodeClasses,
    ) -> Sort {
        let sort = self.sort_of(spec, snapshot, node_classes);
        self.waiting
            .get_mut(sort as usize)
            .into_iter()
            .for_each(|count| *count += 1);
        sort
    }

    pub fn job_goes(&mut self, sort: Sort) {
        self.waiting
            .get_mut(sort as usize)
            .into_iter()
            .for_each(|count| *count -= 1);
    }

    pub fn run_comes(
        &mut self,
        spec: &Arc<JobSpec>,
        snapshot: &Snapshot,
        node_classes: &NodeClasses,
    ) -> Sort {
        let sort = self.sort_of(spec, snapshot, node_classes);
        self.running
            .get_mut(sort as usize)
            .into_iter()
            .for_each(|count| *count += 1);
        sort
    }

    pub fn run_goes(&mut self, sort: Sort) {
        self.running
            .get_mut(sort as usize)
            .into_iter()
            .for_each(|count| *count -= 1);
    }

    /// The queue is empty, as far as is known.
    pub fn forget_queue(&mut self) {
        self.waiting.fill(0);
    }

    /// The most usual sorts, with their numbers of jobs.
    pub fn most(&self) -> Vec<(&Needs, i64)> {
        let count = |sort: Sort| self.waiting[sort as usize] + self.running[sort as usize];
        let mut all: Vec<(&Needs, i64)> = self
            .numbers
            .iter()
            .map(|(needs, sort)| (needs, count(*sort)))
            .collect();
        all.retain(|(_, count)| *count > 0);
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        all.truncate(MOST);
        all
    }
}
