//! The nodes of a reservation as it is made: named, or chosen for it, beside other reservations and jobs.

use crate::ctl::command::Refusal;
use crate::ctl::policy;
use crate::ctl::reservation::window::{Reservations, covers, runs_into};
use crate::ctl::state::{Node, State};
use gmodel::constraint::Constraint;
use gmodel::gpu_amounts::milli_text;
use gmodel::hostlist::{Hostlist, natural_order};
use gmodel::node::{GpuEntry, Role};
use gmodel::policy::{ALL_GPUS, GpuAmounts, Reservation, ReservedPart};
use gmodel::{RefusalKind, Timestamp};
use gpolicy::limits::LOST_BY_SLICES;
use gpolicy::reserved_nodes::suits;
use gpolicy::window::{Window, first_meeting, next};
use std::collections::{BTreeMap, BTreeSet};

/// Recurring windows repeat weekly, except for changes of the clock.
pub(crate) const WEEK_SECS: i64 = 7 * 86_400;

/// A reservation as it will be stored: its nodes chosen, its maker named.
///
/// # Errors
/// Jobs would run into it, other reservations have its nodes, or there are too few.
pub(crate) fn made(
    state: &State,
    now: Timestamp,
    by: &str,
    others: &Reservations,
    mut one: Reservation,
) -> Result<Reservation, Refusal> {
    let known = state.own_policy.reservations.get(&one.name);
    one.created_by = known.map_or_else(|| by.to_owned(), |known| known.created_by.clone());
    policy::merge::zoned(&mut one, &state.config);
    features_choose(&one, known)?;
    flags_go_together(&one)?;
    one.is_chosen = matches!(one.what, ReservedPart::NodeCount(_))
        || known.is_some_and(|known| known.is_chosen && known.what == one.what);
    one.idle_since = None;
    let Some(window) = next(&one, now) else {
        if one.skip_until.is_some_and(|skipped| skipped > now) {
            return Err(Refusal::invalid(format!(
                "reservation {} comes once: its only window cannot be skipped. Remove it instead.",
                one.name
            ))
            .about(RefusalKind::Time));
        }
        let text = format!(
            "reservation {} would be over already: it began at {}.",
            one.name, one.start
        );
        return Err(Refusal::invalid(text).about(RefusalKind::Time));
    };
    let nodes = candidates(state, &one)?;
    let overlaps = Overlaps::of(others, &one, window);
    match one.what.clone() {
        ReservedPart::NodeCount(count) => {
            let chosen = choose(state, &one, nodes, count as usize, &overlaps)?;
            let list = Hostlist::parse(&gmodel::hostlist::compress(chosen))
                .map_err(|e| Refusal::invalid(e.to_string()))?;
            one.what = ReservedPart::Nodes(list);
        }
        ReservedPart::Nodes(_) | ReservedPart::AllNodes => {
            let mut way = ReservationConflicts::default();
            nodes
                .iter()
                .for_each(|node| way.look(state, &one, node, &overlaps));
            way.refuse(&one)?;
        }
        ReservedPart::Gpus(amounts) => gpus_are_free(state, &one, &nodes, &amounts, window)?,
    }
    gpus_are_there(state, &one, &overlaps)?;
    one.zone = None;
    Ok(one)
}

/// The reservations of a whole policy as they will be stored, each made beside the others. An unchanged one
/// keeps its chosen nodes; one that is over is left out.
///
/// # Errors
/// As [`made`].
pub(crate) fn all_made(
    state: &State,
    now: Timestamp,
    by: &str,
    new: Reservations,
) -> Result<Reservations, Refusal> {
    let stays = |one: &Reservation| {
        state
            .own_policy
            .reservations
            .get(&one.name)
            .filter(|known| is_as_before(known, one))
            .cloned()
    };
    let (mut all, mut changed) = (Reservations::new(), Vec::new());
    for one in new.into_values() {
        match stays(&one) {
            Some(known) => drop(all.insert(one.name.clone(), known)),
            None => changed.push(one),
        }
    }
    let zoned = |mut one: Reservation| {
        policy::merge::zoned(&mut one, &state.config);
        (one.name.clone(), one)
    };
    let mut others: Reservations = all
        .values()
        .chain(state.config.policy.reservations.values())
        .cloned()
        .map(zoned)
        .collect();
    // A count of nodes is chosen after the reservations with named nodes.
    changed.sort_by_key(|one| matches!(one.what, ReservedPart::NodeCount(_)));
    for one in changed
        .into_iter()
        .filter(|one| next(&zoned((*one).clone()).1, now).is_some())
    {
        let one = made(state, now, by, &others, one)?;
        others.extend([zoned(one.clone())]);
        all.insert(one.name.clone(), one);
    }
    Ok(all)
}

/// Unchanged, or changed only in the number of its nodes.
pub(crate) fn is_as_before(known: &Reservation, one: &Reservation) -> bool {
    let what = match (&known.what, &one.what) {
        (ReservedPart::Nodes(list), ReservedPart::NodeCount(count))
            if list.len() == *count as usize =>
        {
            &known.what
        }
        (_, what) => what,
    };
    // Nodes chosen by features are stored by name.
    let features = if one.features.is_empty() && matches!(one.what, ReservedPart::Nodes(_)) {
        &known.features
    } else {
        &one.features
    };
    let Reservation {
        created_by,
        is_chosen,
        idle_since,
        ..
    } = known.clone();
    *known
        == Reservation {
            what: what.clone(),
            features: features.clone(),
            created_by,
            is_chosen,
            idle_since,
            ..one.clone()
        }
}

/// Nodes either stay or are replaced.
fn flags_go_together(one: &Reservation) -> Result<(), Refusal> {
    let (stays, is_replaced) = (
        one.static_nodes || one.maintenance,
        one.replace || one.replace_down,
    );
    if !(stays && is_replaced) {
        return Ok(());
    }
    Err(Refusal::invalid(format!(
        "reservation {}: REPLACE and REPLACE_DOWN do not go with STATIC_ALLOC and MAINT, which keep its nodes. Take one of both.",
        one.name
    ))
    .about(RefusalKind::NotSupported))
}

/// Features choose nodes by count; a later change keeps them.
pub(crate) fn features_choose(
    one: &Reservation,
    known: Option<&Reservation>,
) -> Result<(), Refusal> {
    if one.features.is_empty() {
        return Ok(());
    }
    Constraint::parse(&one.features).map_err(|error| {
        Refusal::invalid(format!("reservation {}: features: {error}", one.name))
    })?;
    let is_kept =
        known.is_some_and(|known| known.features == one.features && known.what == one.what);
    match one.what {
        ReservedPart::NodeCount(_) => Ok(()),
        ReservedPart::Nodes(_) if is_kept => Ok(()),
        _ => Err(Refusal::invalid(format!(
            "reservation {}: features choose among nodes where their number is reserved (node_count=2 features={}), not among nodes that are named, nor GPUs.",
            one.name, one.features
        ))),
    }
}

/// Another reservation, and its window that overlaps the one at hand.
pub(crate) struct OverlappingReservation<'a> {
    reservation: &'a Reservation,
    window: Window,
}

/// The window of a reservation, and the reservations in force at the same time, now or later.
pub(crate) struct Overlaps<'a> {
    window: Window,
    others: Vec<OverlappingReservation<'a>>,
    /// Maintenance at the same time: no conflict, and the last nodes to choose.
    maintenance: Vec<&'a Reservation>,
}

impl<'a> Overlaps<'a> {
    /// Maintenance and OVERLAP take no place from others.
    fn of(all: &'a Reservations, one: &Reservation, window: Window) -> Self {
        let lies_over = |one: &Reservation| one.maintenance || one.overlap;
        let others = all
            .values()
            .filter(|other| !lies_over(one) && other.name != one.name && !lies_over(other))
            .filter_map(|other| {
                Some(OverlappingReservation {
                    reservation: other,
                    window: first_meeting(one, other, window.from)?.1,
                })
            })
            .collect();
        let is_met = |other: &&Reservation| {
            other.maintenance
                && !one.maintenance
                && first_meeting(one, other, window.from).is_some()
        };
        Self {
            window,
            others,
            maintenance: all.values().filter(is_met).collect(),
        }
    }

    fn is_maintained(&self, state: &State, node: &Node) -> bool {
        let mut maintenance = self.maintenance.iter();
        maintenance.any(|other| covers(state, other, node))
    }

    fn reservations(&self) -> impl Iterator<Item = &'a Reservation> + '_ {
        self.others.iter().map(|other| other.reservation)
    }
}

/// The nodes from which it may choose.
pub(crate) fn candidates<'a>(
    state: &'a State,
    one: &Reservation,
) -> Result<Vec<&'a Node>, Refusal> {
    if let ReservedPart::Nodes(list) = &one.what {
        let find = |name: &str| {
            state.node_by_name(name).ok_or_else(|| {
                Refusal::invalid(format!(
                    "reservation {}: there is no node {name:?}.",
                    one.name
                ))
                .about(RefusalKind::NodeName)
            })
        };
        return list.iter().map(find).collect();
    }
    let partition = one
        .partition
        .as_deref()
        .and_then(|name| state.config.partition(name));
    let in_partition = |node: &&Node| {
        partition.is_none_or(|part| part.holds(&node.name, &node.inventory.features))
    };
    let inside = |node: &&Node| in_partition(node) && suits(one, &node.inventory.features);
    Ok(state
        .nodes
        .values()
        .filter(|node| node.role == Role::Compute)
        .filter(inside)
        .collect())
}

/// Chooses nodes that are up and unreserved, its earlier nodes first.
pub(crate) fn choose(
    state: &State,
    one: &Reservation,
    mut nodes: Vec<&Node>,
    count: usize,
    overlaps: &Overlaps,
) -> Result<Vec<String>, Refusal> {
    nodes.retain(|node| !node.is_down() || had(state, one, node));
    if count == 0 || count > nodes.len() {
        let with = if one.features.is_empty() {
            String::new()
        } else {
            format!(" with features {}", one.features)
        };
        return Err(Refusal::invalid(format!(
            "reservation {} asks for {count} nodes of {}{with} that are not down.",
            one.name,
            nodes.len()
        ))
        .about(RefusalKind::NodeConfiguration));
    }
    let mut ranked: Vec<(usize, [bool; 4], &Node, ReservationConflicts)> = nodes
        .into_iter()
        .map(|node| {
            let mut way = ReservationConflicts::default();
            way.look(state, one, node, overlaps);
            (
                way.weight(one),
                [
                    overlaps.is_maintained(state, node),
                    !node.is_available(),
                    one.replace && !node.runs.is_empty(),
                    !had(state, one, node),
                ],
                node,
                way,
            )
        })
        .collect();
    ranked.sort_by(|a, b| {
        (a.0, a.1)
            .cmp(&(b.0, b.1))
            .then_with(|| natural_order(&a.2.name, &b.2.name))
    });
    ranked.truncate(count);
    let mut all = ReservationConflicts::default();
    for (_, _, _, way) in &ranked {
        all.jobs.extend(way.jobs.iter().cloned());
        all.nodes.extend(way.nodes.iter().cloned());
        all.others
            .extend(way.others.iter().map(|(name, at)| (name.clone(), *at)));
    }
    all.refuse(one)?;
    let mut names: Vec<String> = ranked
        .into_iter()
        .map(|(_, _, node, _)| node.name.clone())
        .collect();
    names.sort_by(|a, b| natural_order(a, b));
    Ok(names)
}

/// Whether a reservation has a node already.
fn had(state: &State, one: &Reservation, node: &Node) -> bool {
    let known = state.own_policy.reservations.get(&one.name);
    known.is_some_and(
        |known| matches!(&known.what, ReservedPart::Nodes(list) if list.contains(&node.name)),
    )
}

/// What prevents a reservation from having its nodes.
#[derive(Default)]
pub(crate) struct ReservationConflicts {
    jobs: BTreeSet<String>,
    nodes: BTreeSet<String>,
    /// Overlapping reservations, with their windows.
    others: BTreeMap<String, Timestamp>,
}

impl ReservationConflicts {
    fn look(&mut self, state: &State, one: &Reservation, node: &Node, overlaps: &Overlaps) {
        for run in node.runs.iter().filter_map(|run| state.run(*run)) {
            if runs_into(state, run, node.id, one, overlaps.window.from) {
                let shown = state
                    .job(run.id.job)
                    .map_or_else(|| run.id.job.to_string(), |job| job.shown_id());
                self.jobs.insert(shown);
                self.nodes.insert(node.name.clone());
            }
        }
        for other in overlaps
            .others
            .iter()
            .filter(|other| covers(state, other.reservation, node))
        {
            self.others
                .insert(other.reservation.name.clone(), other.window.from);
        }
    }

    /// Rank of a node for the choice; lower is better.
    fn weight(&self, one: &Reservation) -> usize {
        let jobs = if one.ignore_running {
            0
        } else {
            self.jobs.len()
        };
        jobs + 1000 * self.others.len()
    }

    fn refuse(self, one: &Reservation) -> Result<(), Refusal> {
        let conflict = |about, text: String| Err(Refusal::conflict(text).about(about));
        if let Some((other, at)) = self.others.iter().next() {
            return conflict(
                RefusalKind::ReservationOverlap,
                format!(
                    "reservation {}: reservation {other} has nodes of it at {at}.",
                    one.name
                ),
            );
        }
        if self.jobs.is_empty() || one.ignore_running {
            return Ok(());
        }
        let noun = if self.jobs.len() == 1 { "job" } else { "jobs" };
        let more = self.jobs.len().saturating_sub(10);
        let named: Vec<String> = self.jobs.into_iter().take(10).collect();
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        conflict(
            RefusalKind::NodesBusy,
            format!(
                "reservation {}: {noun} {}{more} may still run on {} then, by their time limits. Begin later, choose other \
             nodes, or make it over running jobs (ignore_running).",
                one.name,
                named.join(", "),
                gmodel::hostlist::compress(self.nodes)
            ),
        )
    }
}

/// So many GPUs must be there and not all held by runs that reach into the window.
pub(crate) fn gpus_are_free(
    state: &State,
    one: &Reservation,
    nodes: &[&Node],
    amounts: &GpuAmounts,
    window: Window,
) -> Result<(), Refusal> {
    let mut of_kind: BTreeMap<String, Gpus> = BTreeMap::new();
    let mut jobs = BTreeSet::new();
    for node in nodes {
        // A GPU cut by MIG counts as one: it is held as far as its slices are.
        let board = |slot: u16| node.gpus.get(usize::from(slot)).map(|gpu| gpu.info.board());
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        for run in node.runs.iter().filter_map(|run| state.run(*run)) {
            if !runs_into(state, run, node.id, one, window.from) {
                continue;
            }
            let shares = run.allocation.iter().filter(|share| share.node == node.id);
            for grant in shares.flat_map(|share| &share.gpus.0) {
                *held
                    .entry(board(grant.slot.0).unwrap_or_default())
                    .or_default() += u64::from(grant.part.milli());
                let job = state.job(run.id.job);
                jobs.insert(job.map_or_else(String::new, |job| job.shown_id()));
            }
        }
        for (board, gpu) in boards(node) {
            for kind in [gpu.info.gpu_type.to_ascii_lowercase(), ALL_GPUS.to_owned()] {
                of_kind
                    .entry(kind)
                    .or_default()
                    .add(held.get(board).copied().unwrap_or(0));
            }
        }
    }
    for (kind, wanted) in &amounts.0 {
        let gpus = of_kind.get(kind).copied().unwrap_or_default();
        let asks = format!(
            "reservation {} asks for {} {}",
            one.name,
            milli_text(*wanted),
            kind_text(kind)
        );
        if *wanted > gpus.all * 1000 {
            return Err(Refusal::invalid(format!("{asks}; there are {}.", gpus.all)));
        }
        if *wanted > gpus.free * 1000 + gpus.free_of_partial && !one.ignore_running {
            let named: Vec<String> = jobs.iter().take(10).cloned().collect();
            return Err(Refusal::conflict(format!(
                "{asks}; {} of jobs then ({} may still run). Begin later, or make it over running jobs (ignore_running).",
                gpus.free_text(),
                named.join(", ")
            )));
        }
    }
    Ok(())
}

/// GPUs of a type at the beginning of a window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gpus {
    all: u64,
    /// GPUs that no run holds.
    free: u64,
    /// GPUs of which runs hold a part, and the thousandths free on them together.
    partial: u64,
    free_of_partial: u64,
}

impl Gpus {
    /// Adds a GPU of which runs hold so many thousandths.
    fn add(&mut self, held: u64) {
        self.all += 1;
        let left = 1000u64.saturating_sub(held);
        if held == 0 {
            self.free += 1;
        } else if left > LOST_BY_SLICES {
            self.partial += 1;
            self.free_of_partial += left;
        }
    }

    fn free_text(self) -> String {
        let (free, verb) = (self.free, if self.free == 1 { "is" } else { "are" });
        match self.partial {
            0 => format!("{free} {verb} free"),
            partial => format!(
                "{free} and {} of {partial} more are free",
                milli_text(self.free_of_partial)
            ),
        }
    }
}

/// The type as listings name it.
pub(crate) fn kind_text(kind: &str) -> &str {
    if kind == ALL_GPUS { "GPUs" } else { kind }
}

/// The working GPUs of a node, whole or cut, each with one of its entries.
pub(crate) fn boards(node: &Node) -> BTreeMap<&str, &GpuEntry> {
    node.gpus
        .iter()
        .filter(|gpu| gpu.usable())
        .map(|gpu| (gpu.info.board(), gpu))
        .collect()
}

/// GPUs reserved by number must exist for all reservations in force at a time, beside nodes that are reserved
/// whole.
pub(crate) fn gpus_are_there(
    state: &State,
    one: &Reservation,
    overlaps: &Overlaps,
) -> Result<(), Refusal> {
    let is_counted = |one: &Reservation| matches!(one.what, ReservedPart::Gpus(_));
    if !is_counted(one) && !overlaps.reservations().any(is_counted) {
        return Ok(());
    }
    let mut known: BTreeSet<Vec<usize>> = BTreeSet::new();
    for at in beginnings(one, overlaps) {
        let is_held = |other: &Reservation| next(other, at).is_some_and(|theirs| theirs.from <= at);
        let held: Vec<usize> = (0..overlaps.others.len())
            .filter(|place| is_held(overlaps.others[*place].reservation))
            .collect();
        let others: Vec<&Reservation> = held
            .iter()
            .map(|place| overlaps.others[*place].reservation)
            .collect();
        if !known.insert(held) {
            continue;
        }
        let all: Vec<&Reservation> = others.iter().copied().chain([one]).collect();
        let Some((kind, wanted, there)) =
            too_many_gpus(state, &all).filter(|_| too_many_gpus(state, &others).is_none())
        else {
            continue;
        };
        let names: Vec<&str> = others.iter().map(|other| other.name.as_str()).collect();
        return Err(Refusal::conflict(format!(
            "reservation {}: with {} there would be {} {} reserved by number at {at}, and beside nodes that are reserved there are {}.",
            one.name,
            names.join(", "),
            milli_text(wanted),
            kind_text(&kind),
            milli_text(there)
        )));
    }
    Ok(())
}

/// Times within a reservation's windows at which it, or another beside it, begins: in the week from its first
/// window, and from the first that meets each other.
pub(crate) fn beginnings(one: &Reservation, overlaps: &Overlaps) -> BTreeSet<Timestamp> {
    let firsts = overlaps
        .reservations()
        .filter_map(|other| Some(first_meeting(one, other, overlaps.window.from)?.0))
        .chain([overlaps.window]);
    let windows: BTreeSet<Window> = firsts
        .flat_map(|first| windows_of(one, first.from, first.from.plus_secs(WEEK_SECS)))
        .collect();
    let mut all = BTreeSet::new();
    for Window { from, to } in windows {
        all.insert(from);
        let until = to.min(from.plus_secs(WEEK_SECS));
        for other in overlaps.reservations() {
            all.extend(windows_of(other, from, until).map(|theirs| theirs.from.max(from)));
        }
    }
    all
}

/// The windows of a reservation that end after a time and begin before another.
pub(crate) fn windows_of(
    one: &Reservation,
    from: Timestamp,
    until: Timestamp,
) -> impl Iterator<Item = Window> + '_ {
    std::iter::successors(next(one, from), |window| next(one, window.to))
        .take_while(move |window| window.from < until)
}

/// The first GPU type of which more are reserved by number than exist outside of reserved nodes, in
/// thousandths.
pub(crate) fn too_many_gpus(state: &State, all: &[&Reservation]) -> Option<(String, u64, u64)> {
    let counted = || {
        let amounts = |one: &'_ Reservation| {
            if let ReservedPart::Gpus(amounts) = &one.what {
                Some(amounts.clone())
            } else {
                None
            }
        };
        all.iter()
            .filter_map(move |one| Some((*one, amounts(one)?)))
    };
    for (one, amounts) in counted() {
        let shares_nodes = |other: &Reservation| {
            other.partition == one.partition || other.partition.is_none() || one.partition.is_none()
        };
        let nodes = candidates(state, one).ok()?;
        let open = nodes
            .into_iter()
            .filter(|node| !all.iter().any(|other| covers(state, other, node)));
        let gpus: Vec<&GpuEntry> = open.flat_map(|node| boards(node).into_values()).collect();
        for kind in amounts.0.keys().map(String::as_str).chain([ALL_GPUS]) {
            let there = gpus
                .iter()
                .filter(|gpu| kind == ALL_GPUS || gpu.info.gpu_type.eq_ignore_ascii_case(kind));
            let there = 1000 * there.count() as u64;
            let wanted = counted()
                .filter(|(other, _)| shares_nodes(other))
                .map(|(_, amounts)| amounts.amount(kind))
                .sum();
            if wanted > there {
                return Some((kind.to_owned(), wanted, there));
            }
        }
    }
    None
}
