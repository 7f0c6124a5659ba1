//! Whether enough nodes have room for a job class at this moment.

use crate::cluster::node_state::Hold;
use crate::cluster::nodes::Cluster;
use crate::engine::Memory;
use crate::job::job_class::{JobClass, JobClassId};
use gmodel::Timestamp;

/// Whether fewer nodes than a job class needs have room for it at this moment: then it starts for no time at all.
pub(crate) fn is_full(memory: &mut Memory, cluster: &Cluster, job_class: JobClassId) -> bool {
    let of = &memory.job_classes.list[job_class as usize];
    if let Some(full) = of.pass.full {
        return full;
    }
    let full = of.claim.own().is_none() && !is_free_now(memory, cluster, job_class);
    // What is free only shrinks within a pass.
    if full {
        memory.job_classes.of_pass(job_class).full = Some(true);
    }
    full
}

/// Whether enough nodes have room for a job class at this moment, for however short a time.
pub(crate) fn is_free_now(memory: &mut Memory, cluster: &Cluster, job_class: JobClassId) -> bool {
    let of = &memory.job_classes.list[job_class as usize];
    let memo = &mut memory.search_memo;
    (0..of.alternatives.len()).any(|alternative| memo.is_free(of, alternative, cluster).is_ok())
}

/// Whether a node has room for a part of a job class at a moment.
pub(crate) fn has_room_at(cluster: &Cluster, of: &JobClass, at: usize, from: Timestamp) -> bool {
    of.needs_on(cluster.nodes[at].node_class)
        .any(|need| cluster.fits(at, need, from, from.plus_millis(1)))
}

/// Whether GPUs for a part of a job class are short on a node when something is held there, and would not be without.
pub(crate) fn is_short_by(cluster: &Cluster, of: &JobClass, at: usize, hold: &Hold) -> bool {
    let free = cluster.state(at).profile.free_at(hold.from);
    of.needs_on(cluster.nodes[at].node_class).any(|need| {
        let (wants, has) = (u32::from(need.whole()), free.gpus_in(need.groups));
        has < wants && wants <= has + hold.amount.gpus_in(need.groups)
    })
}

/// As `is_full`, before a pass takes anything: a class that was full in the last pass looks only at what was freed since.
pub(crate) fn is_full_at_first(
    cluster: &mut Cluster,
    memory: &mut Memory,
    job_class: JobClassId,
) -> bool {
    cluster.count_rooms();
    let Memory {
        job_classes,
        search_memo: memo,
        ..
    } = memory;
    let of = &mut job_classes.list[job_class as usize];
    if let Some(full) = of.pass.full {
        return full;
    }
    if of.claim.own().is_some() {
        return false;
    }
    let known = of.few.take().filter(|(of, _)| of + 1 >= cluster.synced);
    let more = known.map(|(_, have)| {
        let freed = |(alternative, have): (usize, usize)| {
            have + memo.count_free(of, alternative, &cluster.freed, cluster)
        };
        have.into_iter()
            .enumerate()
            .map(freed)
            .collect::<Vec<usize>>()
    });
    let still_few = more.filter(|have| {
        have.iter()
            .zip(&of.alternatives)
            .all(|(have, alternative)| *have < alternative.nodes as usize)
    });
    let few = match still_few {
        Some(few) => Some(few),
        None => (0..of.alternatives.len())
            .map(|alternative| memo.is_free(of, alternative, cluster).err())
            .collect(),
    };
    let full = few.is_some();
    of.few = few.map(|few| (cluster.synced, few));
    if full {
        job_classes.of_pass(job_class).full = Some(true);
    }
    full
}
