//! Reservations: which nodes they get when they are made, what stands in their way, how they come and go.
//!
//! A count of nodes becomes nodes once, so that everybody can see which. When a window holds is `gsched::window`'s.

use super::SYSTEM;
use super::command::Refusal;
use super::event::PolicyChange;
use super::handle::Tx;
use super::policy;
use super::state::{Job, Node, Run, State};
use super::waiting;
use gmodel::constraint::Constraint;
use gmodel::hostlist::{Hostlist, natural_order};
use gmodel::node::{GpuEntry, Role};
use gmodel::policy::{ALL_GPUS, GpuAmounts, Reservation, ReservedPart};
use gmodel::run::Allocation;
use gmodel::{JobId, JobSpec, JobState, NodeId, Reason, ReasonCode, Timestamp};
use gsched::limits::{LOST_BY_SLICES, milli_text};
use gsched::window::{Window, first_meeting, next, suits};
use std::collections::{BTreeMap, BTreeSet};

/// What recurs comes again in the same order of those that recur, but for changes of the clock.
const WEEK_SECS: i64 = 7 * 86_400;

/// Reservations by name, with the clock that they follow.
pub(super) type Reservations = BTreeMap<String, Reservation>;

/// A reservation as it will stand beside others: its nodes chosen, its maker named.
///
/// # Errors
/// Jobs would run into it, other reservations have its nodes, or there are too few.
pub(super) fn made(
    state: &State,
    now: Timestamp,
    by: &str,
    others: &Reservations,
    mut one: Reservation,
) -> Result<Reservation, Refusal> {
    let known = state.own_policy.reservations.get(&one.name);
    one.created_by = known.map_or_else(|| by.to_owned(), |known| known.created_by.clone());
    policy::zoned(&mut one, &state.config);
    features_choose(&one, known)?;
    one.is_chosen = matches!(one.what, ReservedPart::NodeCount(_))
        || known.is_some_and(|known| known.is_chosen && known.what == one.what);
    one.idle_since = None;
    let Some(window) = next(&one, now) else {
        if one.skip_until.is_some_and(|skipped| skipped > now) {
            return Err(Refusal::invalid(format!(
                "reservation {} comes once: its only window cannot be skipped. Remove it instead.",
                one.name
            )));
        }
        let text = format!(
            "reservation {} would be over already: it began at {}.",
            one.name, one.start
        );
        return Err(Refusal::invalid(text));
    };
    let nodes = candidates(state, &one)?;
    let meeting = meeting(others, &one, window);
    match one.what.clone() {
        ReservedPart::NodeCount(count) => {
            let chosen = choose(state, &one, nodes, count as usize, (window, &meeting))?;
            let list = Hostlist::parse(&gmodel::hostlist::compress(chosen))
                .map_err(|e| Refusal::invalid(e.to_string()))?;
            one.what = ReservedPart::Nodes(list);
        }
        ReservedPart::Nodes(_) | ReservedPart::AllNodes => {
            let mut way = InTheWay::default();
            nodes
                .iter()
                .for_each(|node| way.look(state, &one, node, (window, &meeting)));
            way.refuse(&one)?;
        }
        ReservedPart::Gpus(amounts) => gpus_are_free(state, &one, &nodes, &amounts, window)?,
    }
    gpus_are_there(state, &one, &meeting, window)?;
    one.zone = None;
    Ok(one)
}

/// The reservations of a whole policy as they will stand, each made beside the others. One that is as it was stays, with the nodes that
/// its count became; one that is over already is left out.
///
/// # Errors
/// As [`made`].
pub(super) fn all_made(
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
        policy::zoned(&mut one, &state.config);
        (one.name.clone(), one)
    };
    let mut others: Reservations = all
        .values()
        .chain(state.config.policy.reservations.values())
        .cloned()
        .map(zoned)
        .collect();
    // Which nodes a count becomes depends on what others say of theirs.
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

/// Nothing is said anew, or only how many nodes it has.
fn is_as_before(known: &Reservation, one: &Reservation) -> bool {
    let what = match (&known.what, &one.what) {
        (ReservedPart::Nodes(list), ReservedPart::NodeCount(count))
            if list.len() == *count as usize =>
        {
            &known.what
        }
        (_, what) => what,
    };
    // What was chosen by features is written by its names.
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

/// Features are of nodes that are chosen by their number; what was chosen so keeps them.
fn features_choose(one: &Reservation, known: Option<&Reservation>) -> Result<(), Refusal> {
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

/// Another reservation, and its window that the one at hand meets.
type Meeting<'a> = (&'a Reservation, Window);

/// Those that are in force at the same time, now or later. Maintenance and OVERLAP take nobody's place.
fn meeting<'a>(others: &'a Reservations, one: &Reservation, window: Window) -> Vec<Meeting<'a>> {
    let lies_over = |one: &Reservation| one.maintenance || one.overlap;
    if lies_over(one) {
        return Vec::new();
    }
    let others = others
        .values()
        .filter(|other| other.name != one.name && !lies_over(other));
    others
        .filter_map(|other| Some((other, first_meeting(one, other, window.0)?.1)))
        .collect()
}

/// The nodes it may be about.
fn candidates<'a>(state: &'a State, one: &Reservation) -> Result<Vec<&'a Node>, Refusal> {
    if let ReservedPart::Nodes(list) = &one.what {
        let find = |name: &str| {
            state.node_by_name(name).ok_or_else(|| {
                Refusal::invalid(format!(
                    "reservation {}: there is no node {name:?}.",
                    one.name
                ))
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

/// Nodes that are up and nobody's first, of these those that it has.
fn choose(
    state: &State,
    one: &Reservation,
    nodes: Vec<&Node>,
    count: usize,
    (window, meeting): (Window, &[Meeting]),
) -> Result<Vec<String>, Refusal> {
    if count == 0 || count > nodes.len() {
        let with = if one.features.is_empty() {
            String::new()
        } else {
            format!(" with features {}", one.features)
        };
        return Err(Refusal::invalid(format!(
            "reservation {} asks for {count} nodes of {}{with}.",
            one.name,
            nodes.len()
        )));
    }
    let has = |node: &Node| matches!(state.own_policy.reservations.get(&one.name), Some(Reservation { what: ReservedPart::Nodes(list), .. }) if list.contains(&node.name));
    let mut ranked: Vec<(usize, (bool, bool), &Node, InTheWay)> = nodes
        .into_iter()
        .map(|node| {
            let mut way = InTheWay::default();
            way.look(state, one, node, (window, meeting));
            (
                way.weight(one),
                (!node.is_available(), !has(node)),
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
    let mut all = InTheWay::default();
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

/// What keeps a reservation from having its nodes.
#[derive(Default)]
struct InTheWay {
    jobs: BTreeSet<String>,
    nodes: BTreeSet<String>,
    /// Other reservations, and when they are in force.
    others: BTreeMap<String, Timestamp>,
}

impl InTheWay {
    fn look(
        &mut self,
        state: &State,
        one: &Reservation,
        node: &Node,
        (window, meeting): (Window, &[Meeting]),
    ) {
        for run in node.runs.iter().filter_map(|run| state.runs.get(*run)) {
            if runs_into(state, run, node.id, one, window) {
                let shown = state
                    .jobs
                    .get(run.id.job)
                    .map_or_else(|| run.id.job.to_string(), |job| job.shown_id());
                self.jobs.insert(shown);
                self.nodes.insert(node.name.clone());
            }
        }
        for (other, theirs) in meeting
            .iter()
            .filter(|(other, _)| covers(state, other, node))
        {
            self.others.insert(other.name.clone(), theirs.0);
        }
    }

    /// How little a node suits, for choosing.
    fn weight(&self, one: &Reservation) -> usize {
        let jobs = if one.ignore_running {
            0
        } else {
            self.jobs.len()
        };
        jobs + 1000 * self.others.len()
    }

    fn refuse(self, one: &Reservation) -> Result<(), Refusal> {
        let conflict = |text: String| Err(Refusal::conflict(text));
        if let Some((other, at)) = self.others.iter().next() {
            return conflict(format!(
                "reservation {}: reservation {other} has nodes of it at {at}.",
                one.name
            ));
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
        conflict(format!(
            "reservation {}: {noun} {}{more} may still run on {} then, by their time limits. Begin later, choose other \
             nodes, or make it over running jobs (ignore_running).",
            one.name,
            named.join(", "),
            gmodel::hostlist::compress(self.nodes)
        ))
    }
}

/// Whether a run may still hold part of a node when a window begins. Jobs of the reservation itself do not count.
pub(super) fn runs_into(
    state: &State,
    run: &Run,
    node: NodeId,
    one: &Reservation,
    window: Window,
) -> bool {
    let Some(job) = state.jobs.get(run.id.job) else {
        return false;
    };
    let holds = run.member(node).is_some_and(|member| !member.is_clean());
    holds
        && asked(&job.spec) != Some(&one.name)
        && !draws(state, one, &job.spec)
        && ends_by(state, run).is_none_or(|end| end > window.0)
}

/// Whether a reservation draws a job that names none.
pub(super) fn draws(state: &State, one: &Reservation, spec: &JobSpec) -> bool {
    one.draws()
        && asked(spec).is_none()
        && state
            .policy
            .is_reserved_for(one, &spec.user.name, &spec.account)
}

fn ends_by(state: &State, run: &Run) -> Option<Timestamp> {
    let from = run.started.or(run.go).unwrap_or(run.placed);
    state.ends_by(run, from)
}

pub(super) fn covers(state: &State, one: &Reservation, node: &Node) -> bool {
    let partition = one
        .partition
        .as_deref()
        .and_then(|name| state.config.partition(name));
    match &one.what {
        ReservedPart::AllNodes => {
            partition.is_none_or(|part| part.holds(&node.name, &node.inventory.features))
        }
        ReservedPart::Nodes(list) => list.contains(&node.name),
        ReservedPart::NodeCount(_) | ReservedPart::Gpus(_) => false,
    }
}

/// So many GPUs must be there, and not all with jobs that run into it.
fn gpus_are_free(
    state: &State,
    one: &Reservation,
    nodes: &[&Node],
    amounts: &GpuAmounts,
    window: Window,
) -> Result<(), Refusal> {
    let mut of_kind: BTreeMap<String, Gpus> = BTreeMap::new();
    let mut jobs = BTreeSet::new();
    for node in nodes {
        // A GPU that is cut by MIG is one, as people count: of it so much is held as of its slices.
        let board = |slot: u16| node.gpus.get(usize::from(slot)).map(|gpu| gpu.info.board());
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        for run in node.runs.iter().filter_map(|run| state.runs.get(*run)) {
            if !runs_into(state, run, node.id, one, window) {
                continue;
            }
            let shares = run.allocation.iter().filter(|share| share.node == node.id);
            for grant in shares.flat_map(|share| &share.gpus.0) {
                *held
                    .entry(board(grant.slot.0).unwrap_or_default())
                    .or_default() += u64::from(grant.part.milli());
                jobs.insert(
                    state
                        .jobs
                        .get(run.id.job)
                        .map_or_else(String::new, |job| job.shown_id()),
                );
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

/// GPUs of a kind when a window begins.
#[derive(Clone, Copy, Debug, Default)]
struct Gpus {
    all: u64,
    /// No job has any of them.
    free: u64,
    /// Jobs have a part of each, and thousandths that they leave of all these together.
    partial: u64,
    free_of_partial: u64,
}

impl Gpus {
    /// One more, of which jobs hold so many thousandths.
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

/// As people call GPUs of a kind.
fn kind_text(kind: &str) -> &str {
    if kind == ALL_GPUS { "GPUs" } else { kind }
}

/// The GPUs of a node that work, whole or cut, each with an entry that is of it.
fn boards(node: &Node) -> BTreeMap<&str, &GpuEntry> {
    node.gpus
        .iter()
        .filter(|gpu| gpu.usable())
        .map(|gpu| (gpu.info.board(), gpu))
        .collect()
}

/// GPUs that are reserved by their number must be there for all who are to have them at a time, beside nodes that are reserved whole.
fn gpus_are_there(
    state: &State,
    one: &Reservation,
    meeting: &[Meeting],
    window: Window,
) -> Result<(), Refusal> {
    let is_counted = |one: &Reservation| matches!(one.what, ReservedPart::Gpus(_));
    if !is_counted(one) && !meeting.iter().any(|(other, _)| is_counted(other)) {
        return Ok(());
    }
    let mut known: BTreeSet<Vec<usize>> = BTreeSet::new();
    for at in beginnings(one, meeting, window) {
        let is_held = |other: &Reservation| next(other, at).is_some_and(|theirs| theirs.0 <= at);
        let held: Vec<usize> = (0..meeting.len())
            .filter(|place| is_held(meeting[*place].0))
            .collect();
        let others: Vec<&Reservation> = held.iter().map(|place| meeting[*place].0).collect();
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

/// Times within a reservation's windows from which on it, or it and another, is in force: in a week of its windows from the first on, and
/// from the first that meets each other.
fn beginnings(one: &Reservation, meeting: &[Meeting], window: Window) -> BTreeSet<Timestamp> {
    let firsts = meeting
        .iter()
        .filter_map(|(other, _)| Some(first_meeting(one, other, window.0)?.0))
        .chain([window]);
    let windows: BTreeSet<Window> = firsts
        .flat_map(|first| windows_of(one, first.0, first.0.plus_secs(WEEK_SECS)))
        .collect();
    let mut all = BTreeSet::new();
    for (from, to) in windows {
        all.insert(from);
        let until = to.min(from.plus_secs(WEEK_SECS));
        for (other, _) in meeting {
            all.extend(windows_of(other, from, until).map(|theirs| theirs.0.max(from)));
        }
    }
    all
}

/// The windows of a reservation that end after a time and begin before another.
fn windows_of(
    one: &Reservation,
    from: Timestamp,
    until: Timestamp,
) -> impl Iterator<Item = Window> + '_ {
    std::iter::successors(next(one, from), |window| next(one, window.1))
        .take_while(move |window| window.0 < until)
}

/// The first kind of GPU of which more are reserved by number than there are on other nodes than those that are reserved: thousandths.
fn too_many_gpus(state: &State, all: &[&Reservation]) -> Option<(String, u64, u64)> {
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

pub(super) fn asked(spec: &JobSpec) -> Option<&str> {
    gsched::window::asked(spec)
}

/// Whether a job may start as far as its reservation goes: it is there, and open to it.
pub(super) fn admits(state: &State, spec: &JobSpec) -> bool {
    let Some(name) = asked(spec) else { return true };
    let one = state.policy.reservations.get(name);
    one.is_some_and(|one| {
        state
            .policy
            .is_reserved_for(one, &spec.user.name, &spec.account)
    })
}

/// How much is left of the present window of the reservation that a job names, seconds; none: 0. `None`: it ends with no window.
pub(super) fn window_left_secs(state: &State, spec: &JobSpec, now: Timestamp) -> Option<u32> {
    let one = state
        .policy
        .reservations
        .get(asked(spec)?)
        .filter(|one| !one.flex)?;
    let window = next(one, now).filter(|window| window.0 <= now);
    Some(window.map_or(0, |(_, to)| u32::try_from(to.since_secs(now)).unwrap_or(0)))
}

/// The reservations in force that draw a job and have nodes of where it starts; `None` for one that names its own.
pub(super) fn drawing(
    state: &State,
    job: JobId,
    allocation: &Allocation,
    now: Timestamp,
) -> Option<Box<str>> {
    let spec = &state.jobs.get(job)?.spec;
    let draws = |one: &&Reservation| {
        one.draws()
            && asked(spec).is_none()
            && state
                .policy
                .is_reserved_for(one, &spec.user.name, &spec.account)
            && next(one, now).is_some_and(|window| window.0 <= now)
            && allocation.iter().any(|share| {
                state
                    .nodes
                    .get(share.node)
                    .is_some_and(|node| covers(state, one, node))
            })
    };
    let names: Vec<&str> = state
        .policy
        .reservations
        .values()
        .filter(draws)
        .map(|one| one.name.as_str())
        .collect();
    (!names.is_empty()).then(|| names.join(",").into())
}

/// The reservations in force over a node.
pub fn reservations_over<'a>(
    state: &'a State,
    node: &'a Node,
    now: Timestamp,
) -> impl Iterator<Item = &'a Reservation> {
    let all = state
        .policy
        .reservations
        .values()
        .filter(|_| node.role == Role::Compute);
    all.filter(move |one| {
        covers(state, one, node) && next(one, now).is_some_and(|window| window.0 <= now)
    })
}

/// The reservation that a job's run is in: the one it names, or those that drew it.
pub fn reservation_of(job: &Job) -> Option<&str> {
    asked(&job.spec).or(job
        .drawn_into
        .as_deref()
        .filter(|_| job.state != JobState::Pending))
}

/// No job runs in it that would lose what it was given.
///
/// # Errors
/// Jobs do.
pub(super) fn is_left(state: &State, name: &str) -> Result<(), Refusal> {
    let is_of_it = |run: &&Run| {
        let job = state.jobs.get(run.id.job);
        job.and_then(reservation_of)
            .is_some_and(|names| names.split(',').any(|one| one == name))
    };
    let shown = |run: &Run| {
        state
            .jobs
            .get(run.id.job)
            .map_or_else(|| run.id.job.to_string(), |job| job.shown_id())
    };
    let running: BTreeSet<String> = state.runs.values().filter(is_of_it).map(shown).collect();
    if running.is_empty() {
        return Ok(());
    }
    let (jobs, run, they) = if running.len() == 1 {
        ("job", "runs", "it runs")
    } else {
        ("jobs", "run", "they run")
    };
    let more = if running.len() > 10 {
        format!(" and {} more", running.len() - 10)
    } else {
        String::new()
    };
    let named: Vec<String> = running.iter().take(10).cloned().collect();
    Err(Refusal::conflict(format!(
        "reservation {name} is in use: {jobs} {}{more} {run} in it. Wait for the end, or remove it by force (gadm reservation del {name} --force): \
         then {they} on, and others may have the rest of its nodes.",
        named.join(", "),
    )))
}

/// Pending jobs of reservations that are gone stay in the queue and are told why they wait.
pub(super) fn note_deleted(tx: &mut Tx) {
    let state = &*tx.state;
    let gone = |spec: &JobSpec, reason: &Reason| {
        let name = asked(spec).filter(|name| !state.policy.reservations.contains_key(*name))?;
        let text = format!("there is no reservation {name:?} any more; choose another, or none");
        (reason.code != ReasonCode::ReservationDeleted)
            .then(|| Reason::new(ReasonCode::ReservationDeleted, text))
    };
    let pending = state
        .jobs
        .values()
        .filter(|job| job.state == JobState::Pending);
    let jobs: Vec<_> = pending
        .filter_map(|job| Some((job.id, gone(&job.spec, &job.reason)?)))
        .collect();
    let waiting = state
        .arrays
        .values()
        .filter(|array| !array.pending.is_empty());
    let arrays: Vec<_> = waiting
        .filter_map(|array| Some((array.id, gone(&array.spec, &array.reason)?)))
        .collect();
    waiting::tell(tx, jobs, arrays);
}

/// Time passed: what is over goes. What recurs stays as it was made: its hour on the clock is that of the first window, and where
/// the clocks change a window may begin at another.
pub(super) fn pass(tx: &mut Tx) {
    let all = tx.state.own_policy.reservations.values();
    let over: Vec<String> = all
        .filter(|one| next(one, tx.now).is_none())
        .map(|one| one.name.clone())
        .collect();
    for name in over {
        policy::make(
            tx,
            PolicyChange::ReservationRemoved { name, force: true },
            SYSTEM.into(),
        );
    }
}

/// When the next window of any reservation begins or ends: the planner looks again then.
pub(super) fn next_edge(state: &State) -> Option<Timestamp> {
    let after = state.time_reached;
    let edge = |one: &Reservation| {
        let window = next(one, after)?;
        Some(if window.0 > after { window.0 } else { window.1 })
    };
    state.policy.reservations.values().filter_map(edge).min()
}
