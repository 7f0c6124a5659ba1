//! Whether enough nodes have room for a job class at this moment.

use crate::cluster::node_state::Hold;
use crate::cluster::nodes::Cluster;
use crate::engine::{Engine, Memory};
use crate::job::job_class::{JobClass, JobClassId};
use gmodel::Timestamp;

/// Whether fewer nodes than a shape needs have room for it at this moment: then it starts for no time at all.
pub(crate) fn is_full(memory: &mut Memory, cluster: &Cluster, shape: JobClassId) -> bool {
    let of = &memory.shapes.list[shape as usize];
    if let Some(full) = of.pass.full {
        return full;
    }
    let full = of.claim.own().is_none() && !is_free_now(memory, cluster, shape);
    // What is free only shrinks within a pass.
    if full {
        memory.shapes.of_pass(shape).full = Some(true);
    }
    full
}

/// Whether enough nodes have room for a shape at this moment, for however short a time.
pub(crate) fn is_free_now(memory: &mut Memory, cluster: &Cluster, shape: JobClassId) -> bool {
    let (of, looked) = (&memory.shapes.list[shape as usize], &mut memory.looked);
    (0..of.ways.len()).any(|way| looked.is_free(of, way, cluster).is_ok())
}

/// Whether a node has room for a part of a shape at a moment.
pub(crate) fn has_room_at(cluster: &Cluster, of: &JobClass, at: usize, from: Timestamp) -> bool {
    of.needs_on(cluster.nodes[at].make)
        .any(|need| cluster.fits(at, need, from, from.plus_millis(1)))
}

/// Whether GPUs for a part of a shape are short on a node when something is held there, and would not be without.
pub(crate) fn is_short_by(cluster: &Cluster, of: &JobClass, at: usize, hold: &Hold) -> bool {
    let free = cluster.room(at).profile.free_at(hold.from);
    of.needs_on(cluster.nodes[at].make).any(|need| {
        let (wants, has) = (u32::from(need.whole()), free.gpus_in(need.groups));
        has < wants && wants <= has + hold.amount.gpus_in(need.groups)
    })
}

/// As `is_full`, before a pass takes anything: a class that was full in the last pass looks only at what was freed since.
pub(crate) fn is_full_at_first(engine: &mut Engine, shape: JobClassId) -> bool {
    engine.cluster.count_rooms();
    let Engine {
        cluster, memory, ..
    } = engine;
    let Memory { shapes, looked, .. } = memory;
    let of = &mut shapes.list[shape as usize];
    if let Some(full) = of.pass.full {
        return full;
    }
    if of.claim.own().is_some() {
        return false;
    }
    let known = of.few.take().filter(|(of, _)| of + 1 >= cluster.synced);
    let more = known.map(|(_, have)| {
        let freed =
            |(way, have): (usize, usize)| have + looked.serving(of, way, &cluster.freed, cluster);
        have.into_iter()
            .enumerate()
            .map(freed)
            .collect::<Vec<usize>>()
    });
    let still_few = more.filter(|have| {
        have.iter()
            .zip(&of.ways)
            .all(|(have, way)| *have < way.nodes as usize)
    });
    let few = match still_few {
        Some(few) => Some(few),
        None => (0..of.ways.len())
            .map(|way| looked.is_free(of, way, cluster).err())
            .collect(),
    };
    let full = few.is_some();
    of.few = few.map(|few| (cluster.synced, few));
    if full {
        shapes.of_pass(shape).full = Some(true);
    }
    full
}
