//! Setting GPUs apart for reservations of so many GPUs, and giving them to the jobs of the reservation.
//!
//! GPUs are set apart anew in each pass, on the smallest node that has enough, so that they stand still while runs come and go.

use crate::cluster::node_state::Hold;
use crate::cluster::nodes::{Cluster, end_after};
use crate::cluster::picked::{PickedNodes, each};
use crate::cluster::timeline::{Need, Step};
use crate::job::job_class::{JobClassId, NodeGroup};
use crate::ledger::refusal::{LimitKind, LimitRefusal};
use crate::pass::{Pass, WaitCause};
use crate::place::counted::{
    GpuReservation, LiftedHolds, ReservationBalance, ReservedShare, kinds,
};
use crate::place::search::{Ask, Search};
use crate::place::start_search::StartRange;
use crate::snapshot::{PendingJob, Snapshot};
use gmodel::policy::{ALL_GPUS, Reservation, ReservedPart};
use gmodel::run::NodeShare;
use gmodel::{Reason, ReasonCode, Timestamp};
use gpolicy::limits::milli_text;
use gpolicy::reserved_nodes::{Claim, Windows};
use gpolicy::running_run::end_of;
use gpolicy::window::{Window, asked};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Searches for one start beside them.
const MOST_LOOKS: usize = 64;

/// Windows of a recurring reservation that are kept at once.
const WINDOWS_AHEAD: usize = 32;

fn set_up(
    cluster: &mut Cluster,
    windows: &Windows,
    snapshot: &Snapshot,
    reservation: usize,
) -> Option<GpuReservation> {
    let one = windows.list[reservation].reservation.clone();
    let ReservedPart::Gpus(amounts) = &one.what else {
        return None;
    };
    windows.of(reservation, snapshot.now).next()?;
    let left = ReservationBalance::new(amounts, snapshot.now);
    let mut counted = GpuReservation {
        reservation,
        holds: Vec::new(),
        is_lifted: false,
        parts: Vec::new(),
        print: 0,
        left,
        flex: one.flex,
    };
    for run in snapshot
        .running
        .iter()
        .filter(|run| asked(&run.spec) == Some(&one.name))
    {
        let window = Window {
            from: snapshot.now,
            to: end_of(run).max(snapshot.now.plus_secs(1)),
        };
        run.shares
            .iter()
            .for_each(|share| add_share(&mut counted, cluster, snapshot, share, window));
    }
    counted.holds = set_apart(&counted, cluster, windows, snapshot);
    Some(counted)
}

pub(crate) fn add_share(
    counted: &mut GpuReservation,
    cluster: &Cluster,
    snapshot: &Snapshot,
    share: &NodeShare,
    Window { from, to }: Window,
) {
    let Some(node) = cluster.place(share.node) else {
        return;
    };
    for grant in &share.gpus.0 {
        let gpu = snapshot.nodes[node].gpus.get(usize::from(grant.slot.0));
        let gpu_type = gpu.map_or(String::new(), |gpu| gpu.info.gpu_type.to_ascii_lowercase());
        counted.add(ReservedShare {
            node,
            gpu_type,
            milli: u64::from(grant.part.milli()),
            from,
            to,
        });
    }
}

/// Holds what the reservation's jobs do not use, from one change of their use to the next.
pub(crate) fn set_apart(
    counted: &GpuReservation,
    cluster: &mut Cluster,
    windows: &Windows,
    snapshot: &Snapshot,
) -> Vec<(usize, Hold)> {
    let coming: Vec<Window> = windows
        .of(counted.reservation, snapshot.now)
        .take(WINDOWS_AHEAD)
        .collect();
    let partition = windows.list[counted.reservation]
        .reservation
        .partition
        .clone();
    let usable = usable(cluster, snapshot, partition.as_deref());
    let claim = Claim::Own(counted.reservation);
    let mut held: Vec<(usize, Hold)> = Vec::new();
    for window in coming {
        let from = window.from.max(snapshot.now);
        let to = window.to;
        // Where others have no part of the window first: there it stands still while theirs come and go.
        let shared: Vec<bool> = usable
            .iter()
            .map(|node| windows.blocking(*node, claim, window.from, to).is_some())
            .collect();
        let edges = counted
            .parts
            .iter()
            .flat_map(|part| [part.from, part.to])
            .filter(|at| from < *at && *at < to);
        let of_others = windows.edges_of_others(claim, Window { from, to });
        let edges: BTreeSet<Timestamp> = edges.chain(of_others).chain([from, to]).collect();
        let edges: Vec<Timestamp> = edges.into_iter().collect();
        for (at, next) in edges.iter().copied().zip(edges.iter().copied().skip(1)) {
            // Where it was before and where it comes back first, so that what is free to others moves as little as can be.
            let mut liked: Vec<usize> = held
                .iter()
                .filter(|(_, hold)| hold.to == at)
                .map(|(node, _)| *node)
                .collect();
            liked.extend(
                counted
                    .parts
                    .iter()
                    .filter(|part| part.to == at)
                    .map(|part| part.node),
            );
            let is_open = |node: &usize| windows.blocking(*node, claim, at, next).is_none();
            let open: Vec<OpenNode> = shared
                .iter()
                .copied()
                .zip(usable.iter().copied())
                .filter(|(_, node)| is_open(node))
                .collect();
            liked.retain(is_open);
            for (kind, milli) in counted
                .left
                .missing(at)
                .into_iter()
                .filter(|(_, milli)| *milli > 0)
            {
                hold_kind(
                    cluster,
                    &open,
                    (&kind, milli),
                    Window { from: at, to: next },
                    &liked,
                    &mut held,
                );
            }
        }
    }
    held
}

/// Sets GPUs apart that are reserved by their number.
pub(crate) fn hold_counted(pass: &mut Pass) {
    for at in 0..pass.memory.windows.list.len() {
        let counted = set_up(pass.world.cluster, &pass.memory.windows, pass.snapshot, at);
        pass.world.reservations.extend(counted);
    }
}

/// Gives a job the GPUs back that its own reservation holds, while nodes are looked for.
pub(crate) fn lift_counted(pass: &mut Pass, job_class: JobClassId) -> Option<LiftedHolds> {
    let at =
        place_of_counted(pass, job_class).filter(|at| !pass.world.reservations[*at].is_lifted)?;
    let counted = &mut pass.world.reservations[at];
    counted.is_lifted = true;
    let lifted = LiftedHolds {
        at,
        holds: std::mem::take(&mut counted.holds),
        print: counted.print,
    };
    release(pass.world.cluster, &lifted.holds);
    Some(lifted)
}

pub(crate) fn hold_counted_again(pass: &mut Pass, lifted: Option<LiftedHolds>) {
    let Some(LiftedHolds { at, holds, print }) = lifted else {
        return;
    };
    let counted = &mut pass.world.reservations[at];
    counted.is_lifted = false;
    counted.holds = match counted.print == print && took_again(pass.world.cluster, &holds) {
        true => holds,
        false => set_apart(
            counted,
            pass.world.cluster,
            &pass.memory.windows,
            pass.snapshot,
        ),
    };
}

pub(crate) fn place_of_counted(pass: &Pass, job_class: JobClassId) -> Option<usize> {
    let own = pass.job_class(job_class).claim.own()?;
    pass.world
        .reservations
        .iter()
        .position(|counted| counted.reservation == own)
}

fn left_of<'p>(
    pass: &'p Pass,
    job_class: JobClassId,
) -> Option<(&'p Reservation, &'p ReservationBalance)> {
    let counted = Some(&pass.world.reservations[place_of_counted(pass, job_class)?])
        .filter(|counted| !counted.flex)?;
    Some((
        &pass.memory.windows.list[counted.reservation].reservation,
        &counted.left,
    ))
}

/// Whether jobs of a job class take from a reservation that bounds them.
pub(crate) fn is_counted(pass: &Pass, job_class: JobClassId) -> bool {
    left_of(pass, job_class).is_some()
}

/// Alternatives for which the job's reservation has GPUs left, as far as can be said before nodes are known.
pub(crate) fn reserved_alternatives(
    pass: &Pass,
    job_class: JobClassId,
    mut alternatives: Vec<usize>,
    secs: u32,
) -> Result<Vec<usize>, WaitCause> {
    let Some((reservation, left)) = left_of(pass, job_class) else {
        return Ok(alternatives);
    };
    let mut first = None;
    alternatives.retain(|alternative| {
        match short_of(
            pass,
            reservation,
            left,
            &pass.job_class(job_class).alternatives[*alternative]
                .take
                .gpus,
            secs,
        ) {
            None => true,
            Some(wait) => {
                first.get_or_insert(wait);
                false
            }
        }
    });
    match first {
        Some(wait) if alternatives.is_empty() => Err(wait),
        _ => Ok(alternatives),
    }
}

/// What of a job's reservation is short of these GPUs, thousandths by type.
pub(crate) fn reserved_short(
    pass: &Pass,
    job_class: JobClassId,
    gpus: &BTreeMap<String, u64>,
    secs: u32,
) -> Option<LimitRefusal> {
    let (reservation, left) = left_of(pass, job_class)?;
    let kind = LimitKind::Reservation;
    match short_of(pass, reservation, left, gpus, secs)? {
        WaitCause::Limit(limit) => Some(limit),
        WaitCause::Short(reason) => Some(LimitRefusal { kind, reason }),
        WaitCause::Nodes | WaitCause::Borrows => None,
    }
}

pub(crate) fn short_of(
    pass: &Pass,
    reservation: &Reservation,
    left: &ReservationBalance,
    gpus: &BTreeMap<String, u64>,
    secs: u32,
) -> Option<WaitCause> {
    let name = &reservation.name;
    let reason = |text: String| Reason::new(ReasonCode::Reservation, text);
    for (kind, wants) in kinds(gpus) {
        let all = left.most(kind);
        if wants > all {
            let text = format!(
                "needs {}, and reservation {name:?} has {}",
                gpus_text(wants, kind),
                gpus_text(all, kind)
            );
            return Some(WaitCause::Limit(LimitRefusal {
                kind: LimitKind::Reservation,
                reason: reason(text),
            }));
        }
        let free = left.least(kind, pass.now, end_after(pass.now, Some(secs)));
        if wants > free {
            let text = format!(
                "reservation {name:?} has {}, and {} for as long: this job needs {}",
                gpus_text(all, kind),
                match free {
                    0 => "none is free".to_owned(),
                    1000 => "one is free".to_owned(),
                    free => format!("{} are free", milli_text(free)),
                },
                milli_text(wants)
            );
            return Some(WaitCause::Short(reason(text)));
        }
    }
    None
}

/// The first time from `from` on at which a job's reservation has enough left for one of its ways until its end.
pub(crate) fn reserved_first(
    pass: &Pass,
    job_class: JobClassId,
    alternative: usize,
    from: Timestamp,
    end: impl Fn(Timestamp) -> Timestamp,
) -> Option<Timestamp> {
    let Some((_, left)) = left_of(pass, job_class) else {
        return Some(from);
    };
    let wanted = &pass.job_class(job_class).alternatives[alternative]
        .take
        .gpus;
    let has_room = |at: &Timestamp| {
        kinds(wanted).all(|(kind, wants)| wants <= left.least(kind, *at, end(*at)))
    };
    let later = left.changes().filter(|at| *at > from);
    std::iter::once(from).chain(later).find(has_room)
}

/// A job of a reservation of GPUs starts: that is taken from it.
pub(crate) fn take_reserved(
    pass: &mut Pass,
    job_class: JobClassId,
    allocation: &[(usize, NodeShare)],
    window: Window,
) {
    let Some(at) = place_of_counted(pass, job_class) else {
        return;
    };
    for (_, share) in allocation {
        add_share(
            &mut pass.world.reservations[at],
            pass.world.cluster,
            pass.snapshot,
            share,
            window,
        );
    }
}

/// The same for a job that is promised a start, or is no more: `at`, the place of its reservation.
pub(crate) fn promise_reserved(
    pass: &mut Pass,
    at: Option<usize>,
    holds: &[(Hold, Range<usize>)],
    promised: bool,
) {
    let Some(at) = at else { return };
    let cluster = &pass.world.cluster;
    for (hold, node) in holds
        .iter()
        .flat_map(|(hold, nodes)| nodes.clone().map(move |node| (hold, node)))
    {
        let groups = &cluster.makes.list[cluster.nodes[node].make as usize].groups;
        for (group, count) in groups
            .iter()
            .zip(hold.amount.gpus)
            .filter(|(_, count)| *count > 0)
        {
            let milli = u64::from(count) * u64::from(group.part.milli());
            let part = ReservedShare {
                node,
                gpu_type: group.gpu_type.clone(),
                milli,
                from: hold.from,
                to: hold.to,
            };
            match promised {
                true => pass.world.reservations[at].add(part),
                false => pass.world.reservations[at].remove(&part),
            }
        }
    }
}

/// Whether GPUs that are set apart for others may begin to be so within its limit.
pub(crate) fn may_reach_counted(pass: &Pass, job: &PendingJob, job_class: JobClassId) -> bool {
    job.window_secs() > job.held_secs() && set_apart_beside(pass, job_class).next().is_some()
}

fn set_apart_beside<'p>(
    pass: &'p Pass,
    job_class: JobClassId,
) -> impl Iterator<Item = &'p (usize, Hold)> {
    let own = pass.job_class(job_class).claim.own();
    pass.world
        .reservations
        .iter()
        .filter(move |counted| Some(counted.reservation) != own)
        .flat_map(|counted| &counted.holds)
}

/// The earliest start in a range at which the GPUs of other reservations leave the job enough for its whole limit.
/// `look` finds one beside them.
pub(crate) fn earliest_clear(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    alternative: usize,
    range: StartRange,
    look: impl Fn(&mut Search, &Ask, StartRange) -> Option<(Timestamp, PickedNodes)>,
) -> Option<(Timestamp, PickedNodes)> {
    let mut range = range;
    let mut only = pass.job_class(job_class).candidates.up.clone();
    // When the first of the nodes that are left out may be taken again.
    let mut again: Option<Timestamp> = None;
    for _ in 0..MOST_LOOKS {
        let found = pass.search(job, job_class, |search, ask| {
            let only = Some(&only);
            look(search, &Ask { only, ..*ask }, range)
        });
        let found = found.filter(|(at, _)| again.is_none_or(|again| *at <= again));
        let Some((at, picked)) = found else {
            range.from = again.take().filter(|again| *again < range.until)?;
            only.clone_from(&pass.job_class(job_class).candidates.up);
            continue;
        };
        let reached: Vec<(usize, Timestamp)> = each(&picked)
            .filter_map(|(node, part)| {
                let group = &pass.job_class(job_class).alternatives[alternative].parts[part];
                Some((
                    node,
                    reaches_counted(pass, job, job_class, group, node, at)?,
                ))
            })
            .collect();
        if reached.is_empty() {
            return Some((at, picked));
        }
        for (node, end) in reached {
            only.set(node, false);
            again = Some(again.map_or(end, |again| again.min(end)));
        }
    }
    None
}

/// When the GPUs that are set apart on a node, and leave a job that starts there too few before its limit ends, are free again.
fn reaches_counted(
    pass: &Pass,
    job: &PendingJob,
    job_class: JobClassId,
    group: &NodeGroup,
    node: usize,
    at: Timestamp,
) -> Option<Timestamp> {
    let make = pass.world.cluster.nodes[node].make;
    let need = group.need(make)?;
    let (believed, end) = (
        at.plus_secs(i64::from(job.held_secs())),
        at.plus_secs(i64::from(job.window_secs())),
    );
    let within: Vec<&Hold> = set_apart_beside(pass, job_class)
        .filter(|(on, hold)| *on == node && hold.from < end && hold.to > believed)
        .map(|(_, hold)| hold)
        .collect();
    let all = pass.world.cluster.makes.list[make as usize]
        .all
        .gpus_in(need.groups);
    let wants = if need.milli > 0 {
        1
    } else {
        u32::from(need.whole())
    };
    let is_short = |hold: &&&Hold| {
        let begin = hold.from.max(believed);
        let beside = within
            .iter()
            .filter(|other| other.from <= begin && begin < other.to);
        let held: u32 = beside.map(|other| other.amount.gpus_in(need.groups)).sum();
        held > 0 && (need.exclusive || wants + held > all)
    };
    within.iter().filter(is_short).map(|hold| hold.to).max()
}

/// A node on which GPUs may be set apart, behind whether others have it in a part of the window.
pub(crate) type OpenNode = (bool, usize);

/// Holds so many thousandths of a kind on some nodes: on those that are liked first, and slices of GPUs that are cut where whole ones are not enough.
fn hold_kind(
    cluster: &mut Cluster,
    open: &[OpenNode],
    (kind, milli): (&str, u64),
    Window { from, mut to }: Window,
    liked: &[usize],
    held: &mut Vec<(usize, Hold)>,
) {
    let mut left = milli;
    for whole in [true, false] {
        left -= take_of_each(
            cluster,
            liked,
            (kind, whole),
            left,
            Window { from, to },
            held,
        );
        if whole && left > 0 {
            let nodes = smallest(cluster, open, kind, left);
            to = take_in_turn(cluster, &nodes, kind, left, Window { from, to }, held);
        }
        if left == 0 || to == from {
            return;
        }
        let others = emptiest(cluster, open, Window { from, to });
        left -= take_of_each(
            cluster,
            &others,
            (kind, whole),
            left,
            Window { from, to },
            held,
        );
    }
}

/// As [`take`], of one node after the other until there is as much.
fn take_of_each(
    cluster: &mut Cluster,
    nodes: &[usize],
    kind: (&str, bool),
    most: u64,
    window: Window,
    held: &mut Vec<(usize, Hold)>,
) -> u64 {
    let mut left = most;
    for node in nodes {
        if left == 0 {
            break;
        }
        left -= take(cluster, *node, kind, left, window, held);
    }
    most - left
}

pub(crate) fn release(cluster: &mut Cluster, holds: &[(usize, Hold)]) {
    for (node, hold) in holds.iter().rev() {
        cluster.touch(*node).release(hold);
    }
}

/// Takes again what was lifted; `false`, and nothing taken, where others have some of it now.
fn took_again(cluster: &mut Cluster, holds: &[(usize, Hold)]) -> bool {
    for (done, (node, hold)) in holds.iter().enumerate() {
        if !cluster.room(*node).can_hold_again(hold) {
            release(cluster, &holds[..done]);
            return false;
        }
        cluster.touch(*node).hold_again(hold);
    }
    true
}

/// On one of some nodes, the first that has room for all of it; from when one before it has room, there. So the end of a run moves
/// nothing onto a node of a planned start. From when on it is placed.
fn take_in_turn(
    cluster: &mut Cluster,
    nodes: &[usize],
    kind: &str,
    most: u64,
    Window { from, to }: Window,
    held: &mut Vec<(usize, Hold)>,
) -> Timestamp {
    let mut to = to;
    for node in nodes {
        let groups = whole_of(cluster, *node, kind);
        let steps = cluster.room(*node).profile.steps();
        let within = steps.partition_point(|step| step.at < to);
        let is_short = |step: &Step| u64::from(step.free.gpus_in(groups)) < most.div_ceil(1000);
        let since = match steps[..within].iter().rposition(is_short) {
            None => from,
            Some(last) => steps
                .get(last + 1)
                .map_or(to, |step| step.at.clamp(from, to)),
        };
        if since < to
            && take(
                cluster,
                *node,
                (kind, true),
                most,
                Window { from: since, to },
                held,
            ) == most
        {
            to = since;
        }
        if to == from {
            break;
        }
    }
    to
}

/// Those of some nodes that would have so many thousandths of a kind in whole GPUs if they were idle, the smallest first.
pub(crate) fn smallest(cluster: &Cluster, open: &[OpenNode], kind: &str, milli: u64) -> Vec<usize> {
    let all = |at: usize| {
        let last = cluster.room(at).profile.steps().last();
        last.map_or(0, |step| {
            u64::from(step.free.gpus_in(whole_of(cluster, at, kind)))
        })
    };
    let nodes = open.iter().map(|(shared, at)| (*shared, all(*at), *at));
    let mut nodes: Vec<(bool, u64, usize)> =
        nodes.filter(|(_, gpus, _)| gpus * 1000 >= milli).collect();
    nodes.sort_unstable();
    nodes.into_iter().map(|(.., at)| at).collect()
}

/// Groups of whole GPUs of a kind on a node.
fn whole_of(cluster: &Cluster, at: usize, kind: &str) -> u16 {
    let make = &cluster.makes.list[cluster.nodes[at].make as usize];
    make.kinds_where(|group| {
        (kind == ALL_GPUS || group.gpu_type == kind) && group.part.milli() == 1000
    })
}

pub(crate) fn usable(
    cluster: &Cluster,
    snapshot: &Snapshot,
    partition: Option<&str>,
) -> Vec<usize> {
    let partition = partition.and_then(|name| snapshot.config.partition(name));
    let of_partition = |at: &usize| {
        let node = &snapshot.nodes[*at];
        cluster.nodes[*at].up
            && partition.is_none_or(|partition| partition.holds(&node.name, &node.features))
    };
    (0..snapshot.nodes.len()).filter(of_partition).collect()
}

pub(crate) fn emptiest(
    cluster: &Cluster,
    open: &[OpenNode],
    Window { from, to }: Window,
) -> Vec<usize> {
    let mut nodes = open.to_vec();
    let free = |at: usize| cluster.room(at).profile.least(from, to).all_gpus();
    nodes.sort_by_key(|(shared, at)| (*shared, std::cmp::Reverse(free(*at)), *at));
    nodes.into_iter().map(|(_, at)| at).collect()
}

/// Holds up to `most` thousandths of a kind on a node, rounded up: of whole GPUs, or of slices.
pub(crate) fn take(
    cluster: &mut Cluster,
    at: usize,
    (kind, whole): (&str, bool),
    most: u64,
    Window { from, to }: Window,
    held: &mut Vec<(usize, Hold)>,
) -> u64 {
    let make = &cluster.makes.list[cluster.nodes[at].make as usize];
    let of_kind = make
        .groups
        .iter()
        .enumerate()
        .filter(|(_, group)| kind == ALL_GPUS || group.gpu_type == kind);
    let parts = of_kind
        .map(|(group, one)| (u64::from(one.part.milli()), 1 << group))
        .filter(|(milli, _)| (*milli == 1000) == whole);
    let mut by_part: BTreeMap<u64, u16> = BTreeMap::new();
    parts.for_each(|(milli, group)| *by_part.entry(milli).or_default() |= group);
    let mut left = most;
    for (part, groups) in by_part.into_iter().rev() {
        let free = cluster.room(at).profile.least(from, to).gpus_in(groups);
        let gpus = u64::from(free)
            .min(left.div_ceil(part.max(1)))
            .min(u64::from(u8::MAX));
        if gpus == 0 {
            continue;
        }
        let need = Need {
            cpus: 0,
            mem_bytes: 0,
            gpus: gpus as u8,
            groups,
            milli: 0,
            tenant: None,
            one_group: false,
            exclusive: false,
        };
        if let Some(hold) = cluster.touch(at).hold(&need, from, to) {
            held.push((at, hold));
            left = left.saturating_sub(gpus * part);
        }
    }
    most - left
}

pub(crate) fn gpus_text(milli: u64, kind: &str) -> String {
    match kind {
        ALL_GPUS if milli == 1000 => "1 GPU".to_owned(),
        ALL_GPUS => format!("{} GPUs", milli_text(milli)),
        gpu_type => format!("{} {gpu_type}", milli_text(milli)),
    }
}
