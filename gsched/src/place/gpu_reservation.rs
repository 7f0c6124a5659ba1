//! Reservations of so many GPUs, on any nodes: what their own jobs may take, and where other jobs start beside them.
//!
//! Each pass sets their GPUs apart anew (`gpu_holds.rs`).

use crate::cluster::node_state::Hold;
use crate::cluster::nodes::{Cluster, end_after};
use crate::cluster::picked::{PickedNodes, each};
use crate::job::job_class::{JobClassId, NodeGroup};
use crate::ledger::refusal::{LimitKind, LimitRefusal};
use crate::pass::{Pass, WaitCause};
use crate::place::counted::{
    GpuReservation, LiftedHolds, ReservationBalance, ReservedShare, kinds,
};
use crate::place::gpu_holds::{hold_again, release, set_apart};
use crate::place::search::{Ask, Search};
use crate::place::start_search::StartRange;
use crate::snapshot::{PendingJob, Snapshot};
use gmodel::gpu_amounts::milli_text;
use gmodel::policy::{ALL_GPUS, Reservation, ReservedPart};
use gmodel::run::NodeShare;
use gmodel::{Reason, ReasonCode, Timestamp};
use gpolicy::reserved_nodes::Windows;
use gpolicy::running_run::end_of;
use gpolicy::window::{Window, asked};
use std::collections::BTreeMap;
use std::ops::Range;

/// Searches for one start beside the GPUs of other reservations.
const MOST_LOOKS: usize = 64;

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

fn add_share(
    counted: &mut GpuReservation,
    cluster: &Cluster,
    snapshot: &Snapshot,
    share: &NodeShare,
    window: Window,
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
            from: window.from,
            to: window.to,
        });
    }
}

/// Sets GPUs apart that are reserved by their number.
pub(crate) fn hold_counted(pass: &mut Pass) {
    for at in 0..pass.memory.windows.list.len() {
        let counted = set_up(pass.world.cluster, &pass.memory.windows, pass.snapshot, at);
        pass.world.reservations.extend(counted);
    }
}

/// Releases the GPUs that a job's own reservation holds, while nodes are looked for.
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

/// Holds them again. No trial does this: a start in between stays, and takes its part of them.
pub(crate) fn hold_counted_again(pass: &mut Pass, lifted: Option<LiftedHolds>) {
    let Some(LiftedHolds { at, holds, print }) = lifted else {
        return;
    };
    let counted = &mut pass.world.reservations[at];
    counted.is_lifted = false;
    counted.holds = match counted.print == print && hold_again(pass.world.cluster, &holds) {
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

/// Whether a reservation bounds the GPUs of a job class.
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

fn short_of(
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

/// The first time from `from` on at which a job's reservation has enough GPUs for an alternative until its end.
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

/// Counts the GPUs of a job that starts on its reservation.
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

/// Counts the GPUs of a planned start on its reservation, at the place `at`, or no longer counts them.
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
        let groups = &cluster.node_classes.list[cluster.nodes[node].node_class as usize].groups;
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

/// Whether other reservations may set GPUs apart within a job's limit.
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
    // When the first of the excluded nodes may be taken again.
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

/// When GPUs that other reservations set apart on a node, and that a job needs before its limit ends, are free again.
fn reaches_counted(
    pass: &Pass,
    job: &PendingJob,
    job_class: JobClassId,
    group: &NodeGroup,
    node: usize,
    at: Timestamp,
) -> Option<Timestamp> {
    let node_class = pass.world.cluster.nodes[node].node_class;
    let need = group.need(node_class)?;
    let (believed, end) = (
        at.plus_secs(i64::from(job.held_secs())),
        at.plus_secs(i64::from(job.window_secs())),
    );
    let within: Vec<&Hold> = set_apart_beside(pass, job_class)
        .filter(|(on, hold)| *on == node && hold.from < end && hold.to > believed)
        .map(|(_, hold)| hold)
        .collect();
    let all = pass.world.cluster.node_classes.list[node_class as usize]
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

fn gpus_text(milli: u64, kind: &str) -> String {
    match kind {
        ALL_GPUS if milli == 1000 => "1 GPU".to_owned(),
        ALL_GPUS => format!("{} GPUs", milli_text(milli)),
        gpu_type => format!("{} {gpu_type}", milli_text(milli)),
    }
}
