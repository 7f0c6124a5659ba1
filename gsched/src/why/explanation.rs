//! The explanation of a pending job: each blocker with its numbers, and the smallest change that starts the job now, or else
//! soonest.
//!
//! Looks at the job at its turn in a pass, after the starts of earlier jobs. Decides nothing.

use crate::backfill::choices::hold_own;
use crate::backfill::deferred::{lift_own, reserve_wanted};
use crate::backfill::earliest::earliest_start;
use crate::cluster::nodes::Cluster;
use crate::decide::full_pass::pass_to_look;
use crate::decide::withheld::kept_for_others;
use crate::engine::Engine;
use crate::forecast::job_starts::forecast_jobs;
use crate::gang::consider::{MemberWait, start_members};
use crate::gang::members::{members, try_gang};
use crate::job::job_class::{JobClass, JobClassId};
use crate::job::reason;
use crate::ledger::Shortage;
use crate::ledger::refusal::{LimitKind, LimitRefusal};
use crate::mig::hold::cut_from;
use crate::pass::{Pass, WaitCause};
use crate::place::admission::{is_admitted_later, not_admitted};
use crate::place::allowed::{
    NodeOffer, check_limits_on, kept_idle_there, licences_now, refusing_limits, secs_now, take_of,
};
use crate::place::find::{find_nodes_by, gpu_types_for, nodes_of_type, smaller_nodes};
use crate::place::gpu_reservation::{
    hold_counted_again, is_counted, lift_counted, reserved_alternatives,
};
use crate::place::search::Ask;
use crate::plan::WorkBudget;
use crate::preempt::what_if::may_preempt_from;
use crate::snapshot::{PendingJob, Snapshot};
use crate::why::answer::{Alternative, Blocker, Explanation, NearestNode, OtherPartition};
use crate::why::change::{self, Change, Edit, starts_with_edit};
use gmodel::gpu_request::{GpuAlternative, GpuAmount, GpuRequest};
use gmodel::{JobId, Reason, ReasonCode, Timestamp};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most changes in an explanation.
const MOST_CHANGES: usize = 6;

/// The most changes tried in a whole pass.
const MOST_PROOFS: usize = 32;

/// Of one entry of the queue: without what its changes come to in a whole pass.
struct EntryAnswer {
    why: Explanation,
    help: Option<change::HelpfulChanges>,
}

/// The explanation of a job; `None`: it is not pending. An array by its own id: its next task.
pub fn why(snapshot: &Snapshot, job: JobId) -> Option<Explanation> {
    Engine::default().why(
        snapshot,
        job,
        WorkBudget {
            node_probes: u64::MAX,
            starts: usize::MAX,
        },
    )
}

/// As [`why`], with a bound.
pub(crate) fn explain_job(
    engine: &mut Engine,
    snapshot: &Snapshot,
    job: JobId,
    budget: WorkBudget,
) -> Option<Explanation> {
    let mut found = explain_job_now(engine, snapshot, job, budget)?;
    if !found.starts_now {
        found.forecast = forecast_jobs(engine, snapshot, &BTreeSet::from([job]), budget).pop();
    }
    Some(found)
}

/// The same without the forecast.
pub(crate) fn explain_job_now(
    engine: &mut Engine,
    snapshot: &Snapshot,
    job: JobId,
    budget: WorkBudget,
) -> Option<Explanation> {
    let entry = snapshot.pending.iter().find(|one| one.id == job)?;
    let is_array = entry.particulars.positions.is_some();
    let entries = || {
        snapshot
            .pending
            .iter()
            .filter(|one| one.id == job && one.particulars.positions.is_some() == is_array)
    };
    let mut told: Vec<(u32, EntryAnswer)> = entries()
        .filter_map(|entry| {
            Some((
                entry.spec.choice(),
                why_here(engine, snapshot, entry, budget)?,
            ))
        })
        .collect();
    // First where it starts, then by the number of blockers on existing nodes, then in the request's order.
    let is_vain = |here: &EntryAnswer| {
        here.why
            .blockers
            .iter()
            .any(|blocker| blocker.code == ReasonCode::BadConstraints)
    };
    told.sort_by_key(|(choice, here)| (here.why.blockers.len(), is_vain(here), *choice));
    let mut rest = told.into_iter().map(|(_, here)| here);
    let EntryAnswer {
        why: mut found,
        help,
    } = rest.next()?;
    // The nearest alternative of each partition.
    let mut told_of: BTreeSet<String> = found.partition.clone().into_iter().collect();
    found.elsewhere = rest
        .filter_map(|EntryAnswer { why, .. }| {
            Some(OtherPartition {
                partition: why.partition?,
                alternative: why.alternative,
                ahead: why.ahead,
                blockers: why.blockers,
            })
        })
        .filter(|other| told_of.insert(other.partition.clone()))
        .collect();
    if let Some(help) = help {
        let partition = found.partition.clone();
        let mut starts = |edit: &Edit| {
            starts_with_edit(engine, snapshot, edit, job, partition.as_deref(), budget)
        };
        found.changes = proved(help.now, &mut starts);
        if found.changes.is_empty() {
            found.changes.extend(help.later);
        }
    }
    Some(found)
}

/// The least change of each kind with which a whole pass starts the job, the least first.
pub(crate) fn proved(
    kinds: Vec<Vec<Change>>,
    starts: &mut dyn FnMut(&Edit) -> bool,
) -> Vec<Change> {
    let mut found = vec![false; kinds.len()];
    let mut all: Vec<(usize, Change)> = kinds
        .into_iter()
        .enumerate()
        .flat_map(|(kind, changes)| changes.into_iter().map(move |change| (kind, change)))
        .collect();
    all.sort_by_key(|(_, change)| change.loss_milli);
    let (mut proved, mut proofs) = (Vec::new(), MOST_PROOFS);
    for (kind, change) in all {
        if found[kind] {
            continue;
        }
        if proved.len() == MOST_CHANGES || proofs == 0 {
            break;
        }
        proofs -= 1;
        found[kind] = starts(&change.edit);
        proved.extend(found[kind].then_some(change));
    }
    proved
}

/// The blockers of one entry at its turn, and what would help.
fn why_here(
    engine: &mut Engine,
    snapshot: &Snapshot,
    entry: &PendingJob,
    budget: WorkBudget,
) -> Option<EntryAnswer> {
    let mut found = None;
    let mut ahead = 0;
    let partition = &entry.spec.partition;
    let look = |pass: &mut Pass, one: &PendingJob, place: Option<usize>| {
        if one.id == entry.id
            && one.spec.choice() == entry.spec.choice()
            && one.spec.partition == *partition
        {
            found = Some(explain_entry(pass, one, place, ahead));
            return false;
        }
        ahead += u32::from(one.spec.partition == *partition);
        true
    };
    pass_to_look(engine, snapshot, budget, |_| {}, look);
    found
}

fn explain_entry(
    pass: &mut Pass,
    job: &PendingJob,
    partition: Option<usize>,
    ahead: u32,
) -> EntryAnswer {
    reserve_wanted(pass);
    if !job.particulars.others.is_empty() {
        return explain_gang(pass, job, ahead);
    }
    let mut blockers = blockers_of(pass, job, partition);
    let mut alternatives = match partition {
        Some(partition) if !blockers.is_empty() => by_alternative(pass, job, partition),
        _ => Vec::new(),
    };
    let mut alternative = None;
    if !alternatives.is_empty() {
        let first = alternatives.remove(0);
        (alternative, blockers) = (Some(first.gpus), first.blockers);
    }
    if let (Some(partition), Some(room)) = (
        partition,
        blockers
            .iter_mut()
            .find(|blocker| blocker.nearest.is_some()),
    ) {
        let job_class = pass.job_class_of(job, partition);
        let from = may_preempt_from(pass, job, job_class);
        room.may_preempt_from = from.filter(|from| room.until.is_none_or(|until| *from < until));
    }
    note_late(&mut blockers, job);
    let help = partition
        .filter(|_| !blockers.is_empty())
        .map(|partition| change::find(pass, job, partition));
    if let (Some(partition), [room]) = (partition, &mut blockers[..])
        && (room.nearest.is_some() || room.code == ReasonCode::Resources)
    {
        room.cut_from = cut_from(pass, job, partition, room.until);
    }
    let partition = job.partition_of_several();
    let starts_now = blockers.is_empty();
    let (elsewhere, forecast, changes) = (Vec::new(), None, Vec::new());
    let why = Explanation {
        job: job.id,
        partition,
        elsewhere,
        alternative,
        alternatives,
        starts_now,
        ahead,
        borrows: shortage_note(pass, job, &blockers),
        blockers,
        forecast,
        changes,
    };
    EntryAnswer { why, help }
}

/// The blockers of a gang: of its first component that does not start beside those before it.
fn explain_gang(pass: &mut Pass, leader: &PendingJob, ahead: u32) -> EntryAnswer {
    let mut blockers = match members(pass, leader) {
        Err(reason) => vec![Blocker::of(reason)],
        Ok(members) => {
            let tried: Result<(), Vec<Blocker>> = try_gang(pass, &members, |pass| {
                let wait = start_members(pass, &members).err().ok_or(Vec::new())?;
                let MemberWait { member, cause } = wait;
                let partition = pass.job_class(member.job_class).partition;
                let mut blockers = blockers_of(pass, member.job, Some(partition));
                if blockers.is_empty() {
                    blockers = cause_blocker(pass, member.job_class, cause);
                }
                for blocker in &mut blockers {
                    blocker.text = format!("component {}: {}", member.at, blocker.text);
                }
                Err(blockers)
            });
            tried.err().unwrap_or_default()
        }
    };
    note_late(&mut blockers, leader);
    let why = Explanation {
        job: leader.id,
        partition: None,
        elsewhere: Vec::new(),
        alternative: None,
        alternatives: Vec::new(),
        starts_now: blockers.is_empty(),
        ahead,
        borrows: None,
        blockers,
        forecast: None,
        changes: Vec::new(),
    };
    EntryAnswer { why, help: None }
}

/// What a pass says where no single blocker can be named.
fn cause_blocker(pass: &Pass, job_class: JobClassId, cause: WaitCause) -> Vec<Blocker> {
    let reason = match cause {
        WaitCause::Limit(no) => no.reason,
        WaitCause::Short(reason) => reason,
        WaitCause::Nodes | WaitCause::Borrows => pass.job_class(job_class).behind.clone(),
    };
    vec![Blocker::of(reason)]
}

/// Says of each blocker whether it lasts beyond the deadline of the job.
fn note_late(blockers: &mut [Blocker], job: &PendingJob) {
    let Some(deadline) = job.spec.deadline else {
        return;
    };
    for blocker in blockers {
        if blocker.until.is_some_and(|until| !job.ends_in_time(until)) {
            let late = format!("; that is too late for its deadline {deadline}");
            blocker.text.push_str(&late);
        }
    }
}

/// What the job lacks of its guarantees where it has to borrow, unless a blocker says so or it starts now.
fn shortage_note(pass: &Pass, job: &PendingJob, blockers: &[Blocker]) -> Option<String> {
    let is_told = blockers.iter().any(|one| one.code == ReasonCode::Quota);
    if blockers.is_empty() || is_told {
        return None;
    }
    Shortage::of(&pass.world.usage, job).map(|short| short.text)
}

/// The blockers of each alternative, the alternative with the fewest first.
fn by_alternative(pass: &mut Pass, job: &PendingJob, partition: usize) -> Vec<Alternative> {
    let several = job
        .spec
        .request
        .gpus
        .as_ref()
        .filter(|ask| ask.alternatives.len() > 1);
    let kinds = several.into_iter().flat_map(|ask| &ask.alternatives);
    let alone = |gpus: &GpuAlternative| {
        let mut spec = (*job.spec).clone();
        spec.request.gpus = Some(GpuRequest {
            alternatives: vec![gpus.clone()],
        });
        PendingJob {
            spec: Arc::new(spec),
            ..job.clone()
        }
    };
    let mut all: Vec<Alternative> = kinds
        .map(|gpus| Alternative {
            gpus: gpus.to_string(),
            blockers: blockers_of(pass, &alone(gpus), Some(partition)),
        })
        .collect();
    if all.iter().any(|one| one.blockers.is_empty()) {
        return Vec::new();
    }
    let is_vain = |one: &Alternative| {
        one.blockers.iter().any(|blocker| {
            matches!(
                blocker.code,
                ReasonCode::PartitionConfig | ReasonCode::BadConstraints
            )
        })
    };
    all.sort_by_key(|one| (is_vain(one), one.blockers.len()));
    all
}

/// All blockers of a job at this point of a pass.
pub(crate) fn blockers_of(
    pass: &mut Pass,
    job: &PendingJob,
    partition: Option<usize>,
) -> Vec<Blocker> {
    let Some(partition) = partition else {
        return vec![Blocker::of(reason::no_partition(job))];
    };
    let mut found = standing_blockers(pass, job, partition);
    let job_class = pass.job_class_of(job, partition);
    if let Some(never) = &pass.job_class(job_class).never {
        found.push(Blocker::of(never.clone()));
        return found;
    }
    let owed = pass.world.usage.lift_nominated(job);
    let not_admitted = not_admitted(pass, job, job_class);
    let is_outside = not_admitted.is_some() && is_admitted_later(pass, job, job_class);
    if let Some(reason) = not_admitted {
        let later = if is_outside {
            earliest_start(pass, job, job_class)
        } else {
            None
        };
        found.push(Blocker {
            until: later.map(|found| found.at),
            ..Blocker::of(reason)
        });
    }
    let limits = refusing_limits(pass, job, job_class).into_iter();
    found.extend(limits.map(|limit| Blocker {
        holder: limit.kind.first_to_end(&pass.world.usage, pass.snapshot),
        ..Blocker::of(limit.reason)
    }));
    let lifted = lift_counted(pass, job_class);
    // Room and licences planned for the job in another partition do not block it.
    let own = lift_own(pass, job);
    place_blockers(pass, job, partition, is_outside, &mut found);
    hold_own(pass, job, own);
    hold_counted_again(pass, lifted);
    owed.into_iter()
        .for_each(|owed| pass.world.usage.restore_nominated(owed));
    found
}

/// What stands against the job whatever the nodes hold.
fn standing_blockers(pass: &Pass, job: &PendingJob, partition: usize) -> Vec<Blocker> {
    let policy = &pass.snapshot.config.partitions[partition];
    let mut found: Vec<Blocker> = reason::all_standing(job, policy, pass.snapshot)
        .into_iter()
        .map(Blocker::of)
        .collect();
    for blocker in &mut found {
        blocker.until = (blocker.code == ReasonCode::BeginTime).then_some(job.earliest());
    }
    found
}

/// Blockers of the place of a job: reserved GPUs, licences, room, and the limits on what its nodes would give it.
fn place_blockers(
    pass: &mut Pass,
    job: &PendingJob,
    partition: usize,
    is_outside: bool,
    found: &mut Vec<Blocker>,
) {
    let job_class = pass.job_class_of(job, partition);
    let secs = secs_now(pass, job, job_class);
    let alternatives = (0..pass.job_class(job_class).alternatives.len()).collect();
    let reserved = reserved_alternatives(
        pass,
        job_class,
        alternatives,
        job.spec.time_min_secs.unwrap_or(secs),
    )
    .map(drop);
    for told in [reserved, licences_now(pass, job, secs)] {
        match told {
            Err(WaitCause::Short(reason) | WaitCause::Limit(LimitRefusal { reason, .. })) => {
                found.push(Blocker::of(reason))
            }
            Err(WaitCause::Nodes | WaitCause::Borrows) | Ok(()) => {}
        }
    }
    // Outside of its reservation's window the job has no room.
    let has_room = is_outside || has_room(pass, job, job_class);
    if !has_room {
        found.push(room_blocker(pass, job, job_class));
    } else if found.is_empty() && pass.must_not_pass(partition) {
        let text = "jobs before it in the partition wait, and none may pass them (backfill is off)";
        found.push(Blocker::of(Reason::new(ReasonCode::Priority, text)));
    }
    if has_room && !pass.limits.unlimited {
        for reason in limits_there(pass, job, job_class, secs) {
            if found.iter().all(|known| known.code != reason.code) {
                found.push(Blocker::of(reason));
            }
        }
    }
    if has_room && (!pass.headroom.kept_idle_on.is_empty() || is_counted(pass, job_class)) {
        found.extend(
            kept_there(pass, job, job_class, secs, false)
                .filter(|kept| found.iter().all(|known| known.code != kept.code)),
        );
        if found.is_empty() {
            // On some nodes limits are in the way, and what is kept on all others.
            found.extend(kept_there(pass, job, job_class, secs, true));
        }
    }
}

/// The whole nodes that are kept idle, where only those have room; the reservation by number, where they hold more than it has.
/// `with_limits`: or what else no nodes are free of together.
fn kept_there(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    secs: u32,
    with_limits: bool,
) -> Option<Blocker> {
    let mut kept = None;
    for alternative in 0..pass.job_class(job_class).alternatives.len() {
        // Limits are told besides.
        let check = |pass: &Pass, offer: &NodeOffer| {
            if with_limits {
                return check_limits_on(pass, job, job_class, offer);
            }
            let class = pass.world.usage.class_with(job, offer.take);
            kept_idle_there(pass, job, job_class, offer, class).map_or(Ok(class), Err)
        };
        match find_nodes_by(pass, job, job_class, alternative, secs, &check) {
            Ok(Some(_)) => return None,
            Err(no)
                if with_limits
                    || matches!(no.kind, LimitKind::Headroom(_) | LimitKind::Reservation) =>
            {
                kept = kept.or(Some(Blocker::of(no.reason)))
            }
            _ => {}
        }
    }
    kept
}

/// Limits on what the job would get where that exceeds the request: open types, whole nodes. The fewest of any alternative.
fn limits_there(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    secs: u32,
) -> Vec<Reason> {
    let now = pass.snapshot.now;
    let end = crate::cluster::nodes::end_after(now, Some(secs));
    let types = gpu_types_for(pass, job_class);
    let of_types = types
        .iter()
        .map(|kind| Some(nodes_of_type(pass, job_class, kind)));
    let choices: Vec<_> = std::iter::once(None).chain(of_types).collect();
    let mut fewest: Option<Vec<LimitRefusal>> = None;
    for alternative in 0..pass.job_class(job_class).alternatives.len() {
        let smaller: Vec<_> = smaller_nodes(pass, job_class, alternative)
            .into_iter()
            .map(Some)
            .collect();
        for only in choices.iter().chain(&smaller) {
            let pick = |search: &mut crate::place::search::Search, ask: &Ask| {
                search.pick(
                    &Ask {
                        only: only.as_ref(),
                        ..*ask
                    },
                    alternative,
                    now,
                    end,
                )
            };
            let Some(picked) = pass.search(job, job_class, pick) else {
                continue;
            };
            let take = take_of(pass, job_class, alternative, &picked, secs);
            let mut against = pass.world.usage.refusing_limits(job, &take);
            against.retain(|limit| limit.kind != LimitKind::Licence);
            if fewest
                .as_ref()
                .is_none_or(|fewest| against.len() < fewest.len())
            {
                fewest = Some(against);
            }
        }
    }
    let fewest = fewest.unwrap_or_default().into_iter();
    fewest.map(|limit| limit.reason).collect()
}

/// Whether nodes have room for a job now, without limits and licences.
pub(crate) fn has_room(pass: &mut Pass, job: &PendingJob, job_class: JobClassId) -> bool {
    let now = pass.snapshot.now;
    let end = crate::cluster::nodes::end_after(now, Some(secs_now(pass, job, job_class)));
    let shortest = job
        .spec
        .time_min_secs
        .map(|secs| crate::cluster::nodes::end_after(now, Some(secs)));
    let alternatives = pass.job_class(job_class).alternatives.len();
    (0..alternatives).any(|alternative| {
        pass.search(job, job_class, |search, ask| {
            search.pick(ask, alternative, now, shortest.unwrap_or(end))
        })
        .is_some()
    })
}

/// The blocker of a job without room: what is short, or the holder.
fn room_blocker(pass: &mut Pass, job: &PendingJob, job_class: JobClassId) -> Blocker {
    let limit = secs_now(pass, job, job_class);
    let refused = &mut pass.of_pass(job_class).refused_secs;
    *refused = Some(refused.map_or(limit, |secs| secs.min(limit)));
    let nearest = nearest_node(pass, job_class);
    let earliest = earliest_start(pass, job, job_class).map(|found| found.at);
    if let Some(kept) = kept_for_others(pass, job_class) {
        return Blocker {
            until: earliest,
            nearest,
            ..Blocker::of(kept.reason(&pass.memory.windows))
        };
    }
    let behind = pass.job_class(job_class).behind.text.clone();
    let needs = behind
        .strip_suffix(crate::job::reason::BEHIND)
        .unwrap_or(&behind);
    let others = crate::job::sharing::others_room(
        pass.job_class(job_class),
        pass.snapshot,
        &pass.world.cluster,
    );
    let text = match &nearest {
        Some(near) => format!(
            "{needs}; {}{others}",
            near.text(counts_slices(pass, job_class))
        ),
        None => format!("{needs}; no node is available"),
    };
    Blocker {
        nearest,
        until: earliest,
        ..Blocker::of(Reason::new(ReasonCode::Resources, text))
    }
}

/// What is short of a job's GPUs are slices of them.
fn counts_slices(pass: &Pass, job_class: JobClassId) -> bool {
    let asked = pass.job_class(job_class).spec.request.gpus.as_ref();
    asked.is_some_and(|ask| {
        ask.alternatives
            .iter()
            .all(|one| matches!(one.amount, GpuAmount::Mig { .. }))
    })
}

/// How near a node is to serving a job: the lack, in thousandths of each need, free GPUs, the next change, its place.
type Nearness = (u64, u64, Reverse<Timestamp>, Reverse<usize>);

fn nearness(cluster: &Cluster, of: &JobClass, at: usize, now: Timestamp) -> Option<Nearness> {
    let need = of.need(0, 0, cluster.nodes[at].node_class)?;
    let free = cluster.state(at).profile.free_at(now);
    let part = |has: u64, wants: u64| {
        (u128::from(has.min(wants)) * 1000)
            .checked_div(u128::from(wants))
            .unwrap_or(1000)
    };
    let gpus = u64::from(free.gpus_in(need.groups));
    let parts = [
        part(gpus, u64::from(need.whole())),
        part(u64::from(free.cpus), u64::from(need.cpus)),
        part(free.mem_bytes, need.mem_bytes),
    ];
    let lack = parts.into_iter().min().unwrap_or(0);
    // Of nodes that are as near, the one with more free comes first.
    let next = cluster.state(at).next_change(now);
    let next = Reverse(next.unwrap_or(Timestamp(i64::MAX)));
    Some((
        u64::try_from(lack).unwrap_or(u64::MAX),
        gpus,
        next,
        Reverse(at),
    ))
}

fn nearest_node(pass: &Pass, job_class: JobClassId) -> Option<NearestNode> {
    let of = pass.job_class(job_class);
    let cluster = &pass.world.cluster;
    let now = pass.snapshot.now;
    let alternative = of.alternatives.first()?;
    let soon = now.plus_millis(1);
    let near = |at: usize| nearness(cluster, of, at, now);
    let fits = |at: &usize| {
        of.need(0, 0, cluster.nodes[*at].node_class)
            .is_some_and(|need| cluster.fits(*at, need, now, soon))
    };
    let nodes = of.in_question();
    // Of the nodes that it names, and must have, those that are in the way.
    let named = of
        .named
        .iter()
        .copied()
        .filter(|at| nodes.contains(*at) && !fits(at))
        .filter_map(near)
        .max();
    let (.., Reverse(at)) = named.or_else(|| nodes.ones().filter_map(near).max())?;
    let track = &cluster.nodes[at];
    let need = of.need(0, 0, track.node_class)?;
    let free = cluster.state(at).profile.free_at(now);
    Some(NearestNode {
        node: pass.snapshot.nodes[at].name.clone(),
        nodes_free: nodes.ones().filter(fits).count() as u32,
        nodes_needed: alternative.nodes,
        gpus_free: free.gpus_in(need.groups),
        gpus_needed: u32::from(need.whole()),
        cpus_free: free.cpus,
        cpus_needed: need.cpus,
        mem_free_bytes: free.mem_bytes,
        mem_needed_bytes: need.mem_bytes,
        next_change: cluster.state(at).next_change(now),
    })
}
