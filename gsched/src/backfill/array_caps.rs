//! How many tasks of an array may run over time, by its cap.

use crate::cluster::nodes::end_of;
use crate::cluster::timeline::Count;
use crate::snapshot::{ArrayCap, PendingJob, Snapshot};
use gmodel::{JobId, Timestamp};
use std::collections::BTreeMap;

/// What a plan that foretells knows of arrays.
#[derive(Debug, Default)]
pub(crate) struct ArrayCaps {
    /// Of those with a cap: how many more of their tasks may run over time.
    pub(crate) caps: BTreeMap<JobId, Count>,
    pub(crate) rows: usize,
}

/// How many more tasks of an array may run, by the ends of those that do.
pub(crate) fn cap_over_time(snapshot: &Snapshot, job: &PendingJob, array: JobId) -> Count {
    // Ids of an array follow each other, so its runs are the first of them.
    let running = job.cap.map_or(usize::MAX, |cap| cap.running as usize);
    let last = if job.cap.is_some() {
        JobId(u64::MAX)
    } else {
        *job.ids().end()
    };
    let from = snapshot.running.partition_point(|run| run.run.job < array);
    let own = snapshot.running[from..]
        .iter()
        .take_while(|run| run.run.job <= last)
        .filter(|run| !run.charged)
        .take(running);
    let soon = snapshot.now.plus_secs(1);
    let ends: Vec<Timestamp> = own.map(|run| end_of(run).max(soon)).collect();
    let most = job.cap.map_or(
        job.room.unwrap_or(0) + ends.len() as u32,
        |ArrayCap { most, .. }| most,
    );
    let mut cap = Count::new(snapshot.now, most);
    ends.into_iter()
        .for_each(|end| cap.take(snapshot.now, end, 1));
    cap
}
