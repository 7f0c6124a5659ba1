//! Reservations of so many GPUs wherever they are: which ones they hold, for whom is not in them, and how many their own jobs take.
//!
//! GPUs are set apart anew in each pass: on the smallest node that has enough, the first of those, so that they stand still while runs
//! come and go, and who waits for whole nodes gets them; else on the nodes with the most free. Not where others have windows. What jobs of the reservation hold, or are
//! promised, counts as theirs. Together these take no more than is reserved, unless it is flexible. Whole GPUs are set apart, or slices
//! of those that are cut by MIG: not what is left of one of which a job of it has a part.

use crate::cluster::node_state::Hold;
use crate::cluster::nodes::{end_after, end_of};
use crate::cluster::timeline::{Count, Need, Step};
use crate::job::job_class::ShapeId;
use crate::limits::{LOST_BY_SLICES, milli_text};
use crate::pass::{Engine, Pass, Wait};
use crate::place::search::{Ask, Picked, Search, each};
use crate::snapshot::{PendingJob, Snapshot};
use crate::window::{Claim, Window, asked};
use gmodel::policy::{ALL_GPUS, GpuAmounts, Reservation, ReservedPart};
use gmodel::run::NodeShare;
use gmodel::{Reason, ReasonCode, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

/// Searches for one start beside them.
const MOST_LOOKS: usize = 64;
/// Windows of a recurring reservation that are kept at once.
const WINDOWS_AHEAD: usize = 32;

/// One reservation of GPUs in a pass.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) reservation: usize,
    /// What is set apart, by node; nothing while a job of the reservation looks for nodes.
    pub(crate) holds: Vec<(usize, Hold)>,
    is_lifted: bool,
    /// What its jobs hold or are promised, and a print of all of it.
    parts: Vec<Part>,
    print: u64,
    left: Left,
    /// They may take more than there is.
    flex: bool,
}

/// What a job of the reservation has on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Part {
    node: usize,
    gpu_type: String,
    milli: u64,
    from: Timestamp,
    to: Timestamp,
}

/// What was lifted for a job.
pub(crate) struct Lifted {
    at: usize,
    holds: Vec<(usize, Hold)>,
    /// The print of what its jobs had then.
    print: u64,
}

/// What is reserved, and how much of it the reservation's jobs use over time. Thousandths of GPUs.
#[derive(Debug)]
struct Left {
    /// By type.
    named: BTreeMap<String, u64>,
    /// Beyond what is named: of any type.
    rest: u64,
    /// By type that is named, [`OTHERS`] together, and all: what is free of [`PLENTY`].
    unused: BTreeMap<String, Count>,
}

/// Types that are not named.
const OTHERS: &str = "";
const PLENTY: u32 = u32::MAX;

impl Counted {
    fn new(engine: &mut Engine, snapshot: &Snapshot, reservation: usize) -> Option<Self> {
        let one = engine.windows.list[reservation].reservation.clone();
        let ReservedPart::Gpus(amounts) = &one.what else {
            return None;
        };
        engine.windows.of(reservation, snapshot.now).next()?;
        let left = Left::new(amounts, snapshot.now);
        let mut counted = Self {
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
            let to = end_of(run).max(snapshot.now.plus_secs(1));
            run.shares
                .iter()
                .for_each(|share| counted.add_share(engine, snapshot, share, (snapshot.now, to)));
        }
        counted.holds = counted.set_apart(engine, snapshot);
        Some(counted)
    }

    fn add_share(
        &mut self,
        engine: &Engine,
        snapshot: &Snapshot,
        share: &NodeShare,
        (from, to): Window,
    ) {
        let Some(node) = engine.cluster.place(share.node) else {
            return;
        };
        for grant in &share.gpus.0 {
            let gpu = snapshot.nodes[node].gpus.get(usize::from(grant.slot.0));
            let gpu_type = gpu.map_or(String::new(), |gpu| gpu.info.gpu_type.to_ascii_lowercase());
            self.add(Part {
                node,
                gpu_type,
                milli: u64::from(grant.part.milli()),
                from,
                to,
            });
        }
    }

    fn add(&mut self, part: Part) {
        self.left.count(&part, true);
        self.print = self.print.wrapping_add(part.print());
        self.parts.push(part);
    }

    /// Takes back what was promised.
    fn remove(&mut self, part: &Part) {
        let Some(at) = self.parts.iter().rposition(|one| one == part) else {
            return;
        };
        self.parts.remove(at);
        self.left.count(part, false);
        self.print = self.print.wrapping_sub(part.print());
    }

    /// Holds what nobody of the reservation has, from one change of that to the next.
    fn set_apart(&self, engine: &mut Engine, snapshot: &Snapshot) -> Vec<(usize, Hold)> {
        let windows: Vec<Window> = engine
            .windows
            .of(self.reservation, snapshot.now)
            .take(WINDOWS_AHEAD)
            .collect();
        let partition = engine.windows.list[self.reservation]
            .reservation
            .partition
            .clone();
        let usable = usable(engine, snapshot, partition.as_deref());
        let claim = Claim::Own(self.reservation);
        let mut held: Vec<(usize, Hold)> = Vec::new();
        for window in windows {
            let (from, to) = (window.0.max(snapshot.now), window.1);
            // Where others have no part of the window first: there it stands still while theirs come and go.
            let shared: Vec<bool> = usable
                .iter()
                .map(|node| {
                    engine
                        .windows
                        .blocking(*node, claim, window.0, to)
                        .is_some()
                })
                .collect();
            let edges = self
                .parts
                .iter()
                .flat_map(|part| [part.from, part.to])
                .filter(|at| from < *at && *at < to);
            let of_others = engine.windows.edges_of_others(claim, (from, to));
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
                    self.parts
                        .iter()
                        .filter(|part| part.to == at)
                        .map(|part| part.node),
                );
                let is_open =
                    |node: &usize| engine.windows.blocking(*node, claim, at, next).is_none();
                let open: Vec<Open> = shared
                    .iter()
                    .copied()
                    .zip(usable.iter().copied())
                    .filter(|(_, node)| is_open(node))
                    .collect();
                liked.retain(is_open);
                for (kind, milli) in self
                    .left
                    .missing(at)
                    .into_iter()
                    .filter(|(_, milli)| *milli > 0)
                {
                    hold_kind(engine, &open, (&kind, milli), (at, next), &liked, &mut held);
                }
            }
        }
        held
    }
}

impl Part {
    fn print(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

impl Left {
    fn new(amounts: &GpuAmounts, now: Timestamp) -> Self {
        let named: BTreeMap<String, u64> = amounts
            .0
            .iter()
            .filter(|(kind, _)| *kind != ALL_GPUS)
            .map(|(kind, milli)| (kind.clone(), *milli))
            .collect();
        let rest = amounts
            .total()
            .unwrap_or(0)
            .saturating_sub(named.values().sum());
        let kinds = named.keys().map(String::as_str).chain([OTHERS, ALL_GPUS]);
        let unused = kinds
            .map(|kind| (kind.to_owned(), Count::new(now, PLENTY)))
            .collect();
        Self {
            named,
            rest,
            unused,
        }
    }

    fn key<'a>(&self, gpu_type: &'a str) -> &'a str {
        if gpu_type == ALL_GPUS || self.named.contains_key(gpu_type) {
            gpu_type
        } else {
            OTHERS
        }
    }

    /// `taken`: or given back.
    fn count(&mut self, part: &Part, taken: bool) {
        let milli = u32::try_from(part.milli).unwrap_or(PLENTY);
        for kind in [self.key(&part.gpu_type), ALL_GPUS] {
            match self.unused.get_mut(kind) {
                Some(count) if taken => count.take(part.from, part.to, milli),
                Some(count) => count.give(part.from, part.to, milli),
                None => {}
            }
        }
    }

    fn used(&self, kind: &str, at: Timestamp) -> u64 {
        self.unused.get(kind).map_or(0, |count| {
            u64::from(PLENTY - count.least(at, at.plus_millis(1)))
        })
    }

    /// What nobody has of the part that may be of any type.
    fn rest_left(&self, at: Timestamp) -> u64 {
        let beyond = self
            .named
            .iter()
            .map(|(kind, milli)| self.used(kind, at).saturating_sub(*milli));
        self.rest
            .saturating_sub(beyond.sum::<u64>() + self.used(OTHERS, at))
    }

    /// What jobs may take of a type, or of all together, with nothing of it in use.
    fn most(&self, kind: &str) -> u64 {
        match kind {
            ALL_GPUS => self.rest + self.named.values().sum::<u64>(),
            kind => self.rest + self.named.get(kind).copied().unwrap_or(0),
        }
    }

    fn free(&self, kind: &str, at: Timestamp) -> u64 {
        match kind {
            ALL_GPUS => self.most(ALL_GPUS).saturating_sub(self.used(ALL_GPUS, at)),
            kind => {
                let named = self
                    .named
                    .get(kind)
                    .map_or(0, |milli| milli.saturating_sub(self.used(kind, at)));
                named + self.rest_left(at)
            }
        }
    }

    /// The least that is free of a kind in a time.
    fn least(&self, kind: &str, from: Timestamp, to: Timestamp) -> u64 {
        let changes = self.changes().filter(|at| from < *at && *at < to);
        changes
            .chain([from])
            .map(|at| self.free(kind, at))
            .min()
            .unwrap_or(0)
    }

    fn changes(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.unused.get(ALL_GPUS).into_iter().flat_map(Count::times)
    }

    /// By kind, how much its jobs have not at a time, thousandths: those of a type first, of any type the rest.
    fn missing(&self, at: Timestamp) -> Vec<(String, u64)> {
        // Seven slices of a GPU are all of it, though a seventh is no whole number of thousandths.
        let but_rounding =
            |short: u64, milli: u64| short.saturating_sub(milli / 1000 * LOST_BY_SLICES);
        let short =
            |kind: &str, milli: u64| but_rounding(milli.saturating_sub(self.used(kind, at)), milli);
        let of_types = self
            .named
            .iter()
            .map(|(kind, milli)| (kind.clone(), short(kind, *milli)));
        of_types
            .chain([(
                ALL_GPUS.to_owned(),
                but_rounding(self.rest_left(at), self.rest),
            )])
            .collect()
    }
}

/// The kinds that something is wanted of, with thousandths: all together, and each type that is known.
fn kinds(wanted: &BTreeMap<String, u64>) -> impl Iterator<Item = (&str, u64)> {
    let of_types = wanted
        .iter()
        .filter(|(kind, _)| *kind != ALL_GPUS)
        .map(|(kind, milli)| (kind.as_str(), *milli));
    std::iter::once((ALL_GPUS, wanted.values().sum()))
        .chain(of_types)
        .filter(|(_, milli)| *milli > 0)
}

impl Pass<'_> {
    /// Sets GPUs apart that are reserved by their number.
    pub(crate) fn hold_counted(&mut self) {
        for at in 0..self.engine.windows.list.len() {
            let counted = Counted::new(self.engine, self.snapshot, at);
            self.counted.extend(counted);
        }
    }

    /// Gives a job the GPUs back that its own reservation holds, while nodes are looked for.
    pub(crate) fn lift_counted(&mut self, shape: ShapeId) -> Option<Lifted> {
        let at = self
            .place_of_counted(shape)
            .filter(|at| !self.counted[*at].is_lifted)?;
        let counted = &mut self.counted[at];
        counted.is_lifted = true;
        let lifted = Lifted {
            at,
            holds: std::mem::take(&mut counted.holds),
            print: counted.print,
        };
        release(self.engine, &lifted.holds);
        Some(lifted)
    }

    pub(crate) fn hold_again(&mut self, lifted: Option<Lifted>) {
        let Some(Lifted { at, holds, print }) = lifted else {
            return;
        };
        let counted = &mut self.counted[at];
        counted.is_lifted = false;
        counted.holds = match counted.print == print && took_again(self.engine, &holds) {
            true => holds,
            false => counted.set_apart(self.engine, self.snapshot),
        };
    }

    pub(crate) fn place_of_counted(&self, shape: ShapeId) -> Option<usize> {
        let own = self.shape(shape).claim.own()?;
        self.counted
            .iter()
            .position(|counted| counted.reservation == own)
    }

    fn left_of(&self, shape: ShapeId) -> Option<(&Reservation, &Left)> {
        let counted =
            Some(&self.counted[self.place_of_counted(shape)?]).filter(|counted| !counted.flex)?;
        Some((
            &self.engine.windows.list[counted.reservation].reservation,
            &counted.left,
        ))
    }

    /// Whether jobs of a shape take from a reservation that bounds them.
    pub(crate) fn is_counted(&self, shape: ShapeId) -> bool {
        self.left_of(shape).is_some()
    }

    /// Ways for which the job's reservation has GPUs left, as far as can be said before nodes are known.
    pub(crate) fn reserved_ways(
        &self,
        shape: ShapeId,
        mut ways: Vec<usize>,
        secs: u32,
    ) -> Result<Vec<usize>, Wait> {
        let Some((reservation, left)) = self.left_of(shape) else {
            return Ok(ways);
        };
        let mut first = None;
        ways.retain(|way| {
            match self.short_of(
                reservation,
                left,
                &self.shape(shape).ways[*way].take.gpus,
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
            Some(wait) if ways.is_empty() => Err(wait),
            _ => Ok(ways),
        }
    }

    /// What of a job's reservation is short of these GPUs, thousandths by type.
    pub(crate) fn reserved_short(
        &self,
        shape: ShapeId,
        gpus: &BTreeMap<String, u64>,
        secs: u32,
    ) -> Option<Reason> {
        let (reservation, left) = self.left_of(shape)?;
        match self.short_of(reservation, left, gpus, secs)? {
            Wait::Limit(reason) | Wait::Short(reason) => Some(reason),
            Wait::Room => None,
        }
    }

    fn short_of(
        &self,
        reservation: &Reservation,
        left: &Left,
        gpus: &BTreeMap<String, u64>,
        secs: u32,
    ) -> Option<Wait> {
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
                return Some(Wait::Limit(reason(text)));
            }
            let free = left.least(kind, self.now, end_after(self.now, Some(secs)));
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
                return Some(Wait::Short(reason(text)));
            }
        }
        None
    }

    /// The first time from `from` on at which a job's reservation has enough left for one of its ways until its end.
    pub(crate) fn reserved_first(
        &self,
        shape: ShapeId,
        way: usize,
        from: Timestamp,
        end: impl Fn(Timestamp) -> Timestamp,
    ) -> Option<Timestamp> {
        let Some((_, left)) = self.left_of(shape) else {
            return Some(from);
        };
        let wanted = &self.shape(shape).ways[way].take.gpus;
        let has_room = |at: &Timestamp| {
            kinds(wanted).all(|(kind, wants)| wants <= left.least(kind, *at, end(*at)))
        };
        let later = left.changes().filter(|at| *at > from);
        std::iter::once(from).chain(later).find(has_room)
    }

    /// A job of a reservation of GPUs starts: that is taken from it.
    pub(crate) fn take_reserved(
        &mut self,
        shape: ShapeId,
        allocation: &[(usize, NodeShare)],
        window: Window,
    ) {
        let Some(at) = self.place_of_counted(shape) else {
            return;
        };
        for (_, share) in allocation {
            self.counted[at].add_share(self.engine, self.snapshot, share, window);
        }
    }

    /// The same for a job that is promised a start, or is no more: `at`, the place of its reservation.
    pub(crate) fn promise_reserved(
        &mut self,
        at: Option<usize>,
        holds: &[(Hold, Range<usize>)],
        promised: bool,
    ) {
        let Some(at) = at else { return };
        let cluster = &self.engine.cluster;
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
                let part = Part {
                    node,
                    gpu_type: group.gpu_type.clone(),
                    milli,
                    from: hold.from,
                    to: hold.to,
                };
                match promised {
                    true => self.counted[at].add(part),
                    false => self.counted[at].remove(&part),
                }
            }
        }
    }
}

/// Of a job that is believed to be shorter than its limit: a pass asks for its whole limit.
impl Pass<'_> {
    /// Whether GPUs that are set apart for others may begin to be so within its limit.
    pub(crate) fn may_reach_counted(&self, job: &PendingJob, shape: ShapeId) -> bool {
        job.window_secs() > job.held_secs() && self.set_apart_beside(shape).next().is_some()
    }

    fn set_apart_beside(&self, shape: ShapeId) -> impl Iterator<Item = &(usize, Hold)> {
        let own = self.shape(shape).claim.own();
        self.counted
            .iter()
            .filter(move |counted| Some(counted.reservation) != own)
            .flat_map(|counted| &counted.holds)
    }

    /// The earliest start before a time, as `look` finds it from a time on, at which those GPUs leave it enough for its whole limit.
    pub(crate) fn earliest_clear(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        way: usize,
        (from, until): Window,
        look: impl Fn(&mut Search, &Ask, Timestamp) -> Option<(Timestamp, Picked)>,
    ) -> Option<(Timestamp, Picked)> {
        let mut from = from;
        let mut only = self.shape(shape).candidates.up.clone();
        // When the first of the nodes that are left out may be taken again.
        let mut again: Option<Timestamp> = None;
        for _ in 0..MOST_LOOKS {
            let found = self.search(job, shape, |search, ask| {
                look(
                    search,
                    &Ask {
                        only: Some(&only),
                        ..*ask
                    },
                    from,
                )
            });
            let found = found.filter(|(at, _)| again.is_none_or(|again| *at <= again));
            let Some((at, picked)) = found else {
                from = again.take().filter(|again| *again < until)?;
                only.clone_from(&self.shape(shape).candidates.up);
                continue;
            };
            let reached: Vec<(usize, Timestamp)> = each(&picked)
                .filter_map(|(node, part)| {
                    Some((
                        node,
                        self.reaches_counted(job, shape, (way, part), node, at)?,
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
        &self,
        job: &PendingJob,
        shape: ShapeId,
        (way, part): (usize, usize),
        node: usize,
        at: Timestamp,
    ) -> Option<Timestamp> {
        let make = self.engine.cluster.nodes[node].make;
        let need = self.shape(shape).need(way, part, make)?;
        let (believed, end) = (
            at.plus_secs(i64::from(job.held_secs())),
            at.plus_secs(i64::from(job.window_secs())),
        );
        let within: Vec<&Hold> = self
            .set_apart_beside(shape)
            .filter(|(on, hold)| *on == node && hold.from < end && hold.to > believed)
            .map(|(_, hold)| hold)
            .collect();
        let all = self.engine.cluster.makes.list[make as usize]
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
}

/// A node on which GPUs may be set apart, behind whether others have it in a part of the window.
type Open = (bool, usize);

/// Holds so many thousandths of a kind on some nodes: on those that are liked first, and slices of GPUs that are cut where whole ones are not enough.
fn hold_kind(
    engine: &mut Engine,
    open: &[Open],
    (kind, milli): (&str, u64),
    (from, mut to): Window,
    liked: &[usize],
    held: &mut Vec<(usize, Hold)>,
) {
    let mut left = milli;
    for whole in [true, false] {
        left -= take_of_each(engine, liked, (kind, whole), left, (from, to), held);
        if whole && left > 0 {
            let nodes = smallest(engine, open, kind, left);
            to = take_in_turn(engine, &nodes, kind, left, (from, to), held);
        }
        if left == 0 || to == from {
            return;
        }
        let others = emptiest(engine, open, (from, to));
        left -= take_of_each(engine, &others, (kind, whole), left, (from, to), held);
    }
}

/// As [`take`], of one node after the other until there is as much.
fn take_of_each(
    engine: &mut Engine,
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
        left -= take(engine, *node, kind, left, window, held);
    }
    most - left
}

fn release(engine: &mut Engine, holds: &[(usize, Hold)]) {
    for (node, hold) in holds.iter().rev() {
        engine.cluster.touch(*node).release(hold);
    }
}

/// Takes again what was lifted; `false`, and nothing taken, where others have some of it now.
fn took_again(engine: &mut Engine, holds: &[(usize, Hold)]) -> bool {
    for (done, (node, hold)) in holds.iter().enumerate() {
        if !engine.cluster.room(*node).can_hold_again(hold) {
            release(engine, &holds[..done]);
            return false;
        }
        engine.cluster.touch(*node).hold_again(hold);
    }
    true
}

/// On one of some nodes, the first that has room for all of it; from when one before it has room, there. So the end of a run moves
/// nothing onto a node that somebody was promised. From when on it is placed.
fn take_in_turn(
    engine: &mut Engine,
    nodes: &[usize],
    kind: &str,
    most: u64,
    (from, to): Window,
    held: &mut Vec<(usize, Hold)>,
) -> Timestamp {
    let mut to = to;
    for node in nodes {
        let groups = whole_of(engine, *node, kind);
        let steps = engine.cluster.room(*node).profile.steps();
        let within = steps.partition_point(|step| step.at < to);
        let is_short = |step: &Step| u64::from(step.free.gpus_in(groups)) < most.div_ceil(1000);
        let since = match steps[..within].iter().rposition(is_short) {
            None => from,
            Some(last) => steps
                .get(last + 1)
                .map_or(to, |step| step.at.clamp(from, to)),
        };
        if since < to && take(engine, *node, (kind, true), most, (since, to), held) == most {
            to = since;
        }
        if to == from {
            break;
        }
    }
    to
}

/// Those of some nodes that would have so many thousandths of a kind in whole GPUs if they were idle, the smallest first.
fn smallest(engine: &Engine, open: &[Open], kind: &str, milli: u64) -> Vec<usize> {
    let all = |at: usize| {
        let last = engine.cluster.room(at).profile.steps().last();
        last.map_or(0, |step| {
            u64::from(step.free.gpus_in(whole_of(engine, at, kind)))
        })
    };
    let nodes = open.iter().map(|(shared, at)| (*shared, all(*at), *at));
    let mut nodes: Vec<(bool, u64, usize)> =
        nodes.filter(|(_, gpus, _)| gpus * 1000 >= milli).collect();
    nodes.sort_unstable();
    nodes.into_iter().map(|(.., at)| at).collect()
}

/// Groups of whole GPUs of a kind on a node.
fn whole_of(engine: &Engine, at: usize, kind: &str) -> u16 {
    let make = &engine.cluster.makes.list[engine.cluster.nodes[at].make as usize];
    make.kinds_where(|group| {
        (kind == ALL_GPUS || group.gpu_type == kind) && group.part.milli() == 1000
    })
}

fn usable(engine: &Engine, snapshot: &Snapshot, partition: Option<&str>) -> Vec<usize> {
    let partition = partition.and_then(|name| snapshot.config.partition(name));
    let of_partition = |at: &usize| {
        let node = &snapshot.nodes[*at];
        engine.cluster.nodes[*at].up
            && partition.is_none_or(|partition| partition.holds(&node.name, &node.features))
    };
    (0..snapshot.nodes.len()).filter(of_partition).collect()
}

fn emptiest(engine: &Engine, open: &[Open], (from, to): Window) -> Vec<usize> {
    let mut nodes = open.to_vec();
    let free = |at: usize| engine.cluster.room(at).profile.least(from, to).all_gpus();
    nodes.sort_by_key(|(shared, at)| (*shared, std::cmp::Reverse(free(*at)), *at));
    nodes.into_iter().map(|(_, at)| at).collect()
}

/// Holds up to `most` thousandths of a kind on a node, rounded up: of whole GPUs, or of slices.
fn take(
    engine: &mut Engine,
    at: usize,
    (kind, whole): (&str, bool),
    most: u64,
    (from, to): Window,
    held: &mut Vec<(usize, Hold)>,
) -> u64 {
    let make = &engine.cluster.makes.list[engine.cluster.nodes[at].make as usize];
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
        let free = engine
            .cluster
            .room(at)
            .profile
            .least(from, to)
            .gpus_in(groups);
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
        if let Some(hold) = engine.cluster.touch(at).hold(&need, from, to) {
            held.push((at, hold));
            left = left.saturating_sub(gpus * part);
        }
    }
    most - left
}

fn gpus_text(milli: u64, kind: &str) -> String {
    match kind {
        ALL_GPUS if milli == 1000 => "1 GPU".to_owned(),
        ALL_GPUS => format!("{} GPUs", milli_text(milli)),
        gpu_type => format!("{} {gpu_type}", milli_text(milli)),
    }
}
