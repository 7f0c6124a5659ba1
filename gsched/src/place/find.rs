//! Nodes for one alternative of a job, now: the preferred ones, else those that limits and headroom allow.

use crate::cluster::nodes::end_after;
use crate::cluster::picked::{PickedNodes, count, each};
use crate::job::job_class::JobClassId;
use crate::ledger::Take;
use crate::ledger::refusal::{LimitKind, LimitRefusal};
use crate::pass::{FoundNodes, NodesOrLimit, Pass};
use crate::place::allowed::{check_limits_on, take_of};
use crate::place::nominated_nodes::nominated_bounds;
use crate::place::search::Ask;
use crate::snapshot::PendingJob;
use fixedbitset::FixedBitSet;
use gmodel::{RunClass, Timestamp};
use std::collections::BTreeSet;

/// Node sizes that are tried for a job that takes nodes whole, of each kind.
const MOST_SIZES: usize = 8;

/// What is said to a job that would take so much of some nodes: its class, or why not.
pub(crate) type Check<'a> =
    &'a dyn Fn(&Pass, &Take, &PickedNodes) -> Result<Option<RunClass>, LimitRefusal>;

/// Nodes outside of partitions with headroom.
fn nodes_outside(pass: &Pass, job_class: JobClassId) -> FixedBitSet {
    let mut nodes = pass.job_class(job_class).candidates.up.clone();
    pass.headroom
        .kept_idle_on
        .iter()
        .for_each(|(_, kept)| nodes.difference_with(kept));
    nodes
}

/// For a job on several nodes that would take too many of the headroom nodes: as many of these as headroom allows, and
/// others. `is_kept`: headroom still refuses.
fn pick_beside_kept(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    (alternative, from, end): (usize, Timestamp, Timestamp),
    (liked, among): (&PickedNodes, Option<&FixedBitSet>),
    is_kept: &dyn Fn(&Pass, &PickedNodes) -> bool,
) -> Option<PickedNodes> {
    if count(liked) < 2 {
        return None;
    }
    let mut others = nodes_outside(pass, job_class);
    let kept: Vec<usize> = each(liked)
        .map(|(at, _)| at)
        .filter(|at| !others.contains(*at))
        .collect();
    among
        .into_iter()
        .for_each(|among| others.intersect_with(among));
    let (mut fewest, mut most) = (0, kept.len());
    while fewest < most {
        let some = (fewest + most) / 2;
        let mut only = others.clone();
        only.extend(kept[..some].iter().copied());
        match pass.search(job, job_class, |search, ask| {
            search.pick(
                &Ask {
                    only: Some(&only),
                    ..*ask
                },
                alternative,
                from,
                end,
            )
        }) {
            None => fewest = some + 1,
            Some(picked) if is_kept(pass, &picked) => most = some,
            found => return found,
        }
    }
    None
}

/// For a job that takes nodes whole: nodes below each of the largest sizes, by GPUs and by CPUs.
pub(crate) fn smaller_nodes(
    pass: &Pass,
    job_class: JobClassId,
    alternative: usize,
) -> Vec<FixedBitSet> {
    let of = pass.job_class(job_class);
    if !of.alternatives[alternative]
        .parts
        .iter()
        .any(|part| part.demand.exclusive)
    {
        return Vec::new();
    }
    let cluster = &pass.world.cluster;
    let make = |at: usize| &cluster.makes.list[cluster.nodes[at].make as usize];
    let sizes: [&dyn Fn(usize) -> usize; 2] = [&|at| make(at).gpus, &|at| make(at).cpus as usize];
    let up = &of.candidates.up;
    let smaller = sizes.iter().flat_map(|size| {
        let all: BTreeSet<usize> = up.ones().map(size).collect();
        let below = all.into_iter().rev().skip(1).take(MOST_SIZES);
        below.map(|most| {
            up.ones()
                .filter(|at| size(*at) <= most)
                .collect::<FixedBitSet>()
        })
    });
    smaller.collect()
}

/// Nodes for an alternative, now: the preferred ones; another type, or smaller nodes, where a limit refuses these.
pub(crate) fn find_nodes(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    alternative: usize,
    secs: u32,
) -> NodesOrLimit {
    find_nodes_by(
        pass,
        job,
        job_class,
        alternative,
        secs,
        &|pass, take, picked| {
            check_limits_on(pass, job, job_class, (take, alternative, secs), picked)
        },
    )
}

/// The same, as `check` allows a job to take so much of some nodes.
pub(crate) fn find_nodes_by(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    alternative: usize,
    secs: u32,
    check: Check,
) -> NodesOrLimit {
    let Some(bounds) = nominated_bounds(pass, job) else {
        return find_nodes_among(pass, job, job_class, alternative, secs, None, check);
    };
    let mut found = Ok(None);
    for nodes in &bounds {
        found = find_nodes_among(pass, job, job_class, alternative, secs, Some(nodes), check);
        if matches!(found, Ok(Some(_))) {
            break;
        }
    }
    found
}

fn find_nodes_among(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    alternative: usize,
    secs: u32,
    nodes: Option<&FixedBitSet>,
    check: Check,
) -> NodesOrLimit {
    let now = pass.now;
    let end = end_after(pass.snapshot.now, Some(secs));
    let Some(picked) = pass.search(job, job_class, |search, ask| {
        search.pick(
            &Ask {
                only: nodes,
                ..*ask
            },
            alternative,
            now,
            end,
        )
    }) else {
        return Ok(None);
    };
    let take = take_of(pass, job_class, alternative, &picked, secs);
    let no = match check(pass, &take, &picked) {
        Ok(class) => {
            return Ok(Some(FoundNodes {
                picked,
                take,
                class,
            }));
        }
        Err(no) => no,
    };
    let of_types = gpu_types_for(pass, job_class)
        .into_iter()
        .map(|kind| nodes_of_type(pass, job_class, &kind));
    let outside = (!pass.headroom.kept_idle_on.is_empty()).then(|| nodes_outside(pass, job_class));
    let choices: Vec<FixedBitSet> = of_types
        .chain(outside)
        .chain(smaller_nodes(pass, job_class, alternative))
        .collect();
    for mut only in choices {
        nodes
            .into_iter()
            .for_each(|nodes| only.intersect_with(nodes));
        let found = pass.search(job, job_class, |search, ask| {
            search.pick(
                &Ask {
                    only: Some(&only),
                    ..*ask
                },
                alternative,
                now,
                end,
            )
        });
        let Some(picked) = found else { continue };
        let take = take_of(pass, job_class, alternative, &picked, secs);
        if let Ok(class) = check(pass, &take, &picked) {
            return Ok(Some(FoundNodes {
                picked,
                take,
                class,
            }));
        }
    }
    if matches!(no.kind, LimitKind::Headroom(_)) && !pass.headroom.kept_idle_on.is_empty() {
        let said = |pass: &Pass, picked: &PickedNodes| {
            let take = take_of(pass, job_class, alternative, picked, secs);
            check(pass, &take, picked).map(|class| (take, class))
        };
        let found = pick_beside_kept(
            pass,
            job,
            job_class,
            (alternative, now, end),
            (&picked, nodes),
            &|pass, picked| said(pass, picked).is_err(),
        );
        if let Some(picked) = found
            && let Ok((take, class)) = said(pass, &picked)
        {
            return Ok(Some(FoundNodes {
                picked,
                take,
                class,
            }));
        }
    }
    Err(no)
}

/// Types of GPUs on the nodes that may run a job class.
pub(crate) fn gpu_types_for(pass: &Pass, job_class: JobClassId) -> BTreeSet<String> {
    let cluster = &pass.world.cluster;
    let makes: BTreeSet<u32> = pass
        .job_class(job_class)
        .candidates
        .up
        .ones()
        .map(|at| cluster.nodes[at].make)
        .collect();
    let groups = makes
        .iter()
        .flat_map(|make| &cluster.makes.list[*make as usize].groups);
    groups.map(|group| group.gpu_type.clone()).collect()
}

/// Nodes that have no GPUs but of one type.
pub(crate) fn nodes_of_type(pass: &Pass, job_class: JobClassId, kind: &str) -> FixedBitSet {
    let cluster = &pass.world.cluster;
    let mut nodes = pass.job_class(job_class).candidates.up.clone();
    let of_type = |make: &u32| {
        cluster.makes.list[*make as usize]
            .groups
            .iter()
            .all(|group| group.gpu_type == kind)
    };
    let others: Vec<usize> = nodes
        .ones()
        .filter(|at| !of_type(&cluster.nodes[*at].make))
        .collect();
    others.into_iter().for_each(|at| nodes.set(at, false));
    nodes
}
