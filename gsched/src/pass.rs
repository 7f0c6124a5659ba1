//! One pass: jobs in order; each starts now, or is given a start that later ones may not delay, or waits.
//!
//! The first K waiting jobs of a partition get reservations on concrete nodes (K = 1 is EASY, Lifka 1995; all is
//! conservative backfill, Mu'alem and Feitelson 2001). Later jobs start now where they delay none of them, in time and
//! amount. An engine may be kept from pass to pass: it works out anew only what changed.

use crate::cluster::{Cluster, end_after, end_of};
use crate::ledger::{Ledger, Take};
use crate::priority::in_order;
use crate::placement::{Ask, Leaves, Picked, Search};
use crate::plan::{Plan, Start, WorkBudget};
use crate::reason::{self, array_limit, standing};
use crate::room::Hold;
use crate::score::Scores;
use crate::shape::{OfPass, Shape, ShapeId, Shapes};
use crate::snapshot::{PendingJob, Snapshot};
use crate::timeline::{Count, UNLIMITED_SECS};
use crate::window::Windows;
use fixedbitset::FixedBitSet;
use gmodel::config::{ClusterConfig, Partition};
use gmodel::hostlist::natural_order;
use gmodel::policy::{Backfill, Limits, Policy};
use gmodel::run::Allocation;
use gmodel::{JobId, NodeId, Reason, ReasonCode, RunClass, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Tasks of one array that get reservations where all jobs do.
const MOST_RESERVED_TASKS: u32 = 128;

/// Decides which pending jobs start now, and why the others wait.
pub fn plan(snapshot: &Snapshot, budget: WorkBudget) -> Plan {
    Engine::default().plan(snapshot, budget)
}

/// Priority as listings show it where there is no snapshot at hand: larger goes first. Tier, then nice.
pub fn priority(partition: Option<&Partition>, nice: i32) -> u64 {
    let tier = u64::from(partition.map_or(0, |p| p.priority_tier));
    let nice = (i64::from(i32::MAX) - i64::from(nice)) as u64;
    (tier << 33) | nice
}

/// The scheduler with what it keeps from pass to pass. Plans are the same with a new one.
#[derive(Debug, Default)]
pub struct Engine {
    pub(crate) cluster: Cluster,
    pub(crate) windows: Windows,
    pub(crate) leaves: Leaves,
    pub(crate) shapes: Shapes,
    pub(crate) scores: Scores,
    /// What shapes and windows were worked out for.
    seen: Option<(Arc<ClusterConfig>, Arc<Policy>)>,
    generation: (u64, usize),
}

impl Engine {
    pub fn plan(&mut self, snapshot: &Snapshot, budget: WorkBudget) -> Plan {
        self.sync(snapshot);
        let mut pass = Pass::new(self, snapshot, budget);
        let order = in_order(snapshot, &pass.ledger);
        let partitions = partitions(snapshot);
        // Arrays whose guarantee is used up: what is left of them comes with the borrowers of their tier.
        let mut later: Vec<usize> = Vec::new();
        for one in &order {
            let borrows = one.class != Some(RunClass::Guaranteed);
            if borrows && !later.is_empty() {
                later.drain(..).for_each(|at| pass.consider_in(at, &partitions, false));
            }
            if pass.is_spent() {
                break;
            }
            pass.consider_in(one.at, &partitions, !borrows);
            later.extend(pass.later.take());
        }
        if !pass.is_spent() {
            later.drain(..).for_each(|at| pass.consider_in(at, &partitions, false));
        }
        pass.plan.cut_short = pass.is_spent();
        pass.plan.classes = pass.ledger.classes();
        pass.plan
    }

    /// Brings everything up to a snapshot, with nothing taken by a pass.
    pub(crate) fn sync(&mut self, snapshot: &Snapshot) {
        self.cluster.sync(snapshot);
        let same_policy = self.seen.as_ref().is_some_and(|(config, policy)| {
            (Arc::ptr_eq(config, &snapshot.config) || *config == snapshot.config)
                && (Arc::ptr_eq(policy, &snapshot.policy) || *policy == snapshot.policy)
        });
        let generation = (self.cluster.generation, self.cluster.makes.list.len());
        if !same_policy || generation != self.generation {
            self.shapes.clear();
            self.windows = Windows::new(snapshot);
            let names: Vec<&str> = snapshot.nodes.iter().map(|node| node.name.as_str()).collect();
            self.leaves = Leaves::new(&snapshot.config.scheduler.topology, &names);
            self.generation = generation;
        }
        self.seen = Some((snapshot.config.clone(), snapshot.policy.clone()));
        self.shapes.begin_pass(snapshot.pending.len());
        self.scores.begin_pass(snapshot);
    }
}

/// Places of the partitions by name.
fn partitions(snapshot: &Snapshot) -> BTreeMap<&str, usize> {
    snapshot.config.partitions.iter().enumerate().map(|(at, one)| (one.name.as_str(), at)).collect()
}

/// A start in the future that others may not delay.
#[derive(Clone, Debug)]
pub struct Reserved {
    pub job: JobId,
    pub at: Timestamp,
    pub nodes: Vec<usize>,
}

/// Why a job does not start now.
pub(crate) enum Wait {
    /// A limit says so, whatever is free.
    Limit(Reason),
    /// Licences are short.
    Licences(Reason),
    /// Nodes are short.
    Room,
}

pub(crate) struct Pass<'a> {
    pub engine: &'a mut Engine,
    pub snapshot: &'a Snapshot,
    /// By partition, how many more waiting jobs get a reservation.
    reserve_left: Vec<u32>,
    /// By partition: a job waits for resources already, those after it wait for their turn too.
    waiting: Vec<bool>,
    pub reserved: Vec<Reserved>,
    licences: BTreeMap<String, Count>,
    pub ledger: Ledger,
    /// Nobody is limited in anything: jobs need not be held against the ledger.
    unlimited: bool,
    /// Claims that a limit said no to in this pass: it only fills.
    limited: BTreeMap<Claim, Reason>,
    /// What reservations of GPUs by count hold, for jobs that are not in them.
    counted: Vec<Counted>,
    /// Tasks of the array at hand start only within its guarantee.
    guaranteed_only: bool,
    /// The array whose guarantee was used up just now.
    later: Option<usize>,
    probes_left: u64,
    starts_left: usize,
    pub plan: Plan,
}

/// A shape on somebody's account: shape, account, user, QOS, borrow, requeue, limit.
type Claim = (ShapeId, String, String, String, Option<bool>, Option<bool>, u32);

/// GPUs that a reservation holds wherever they are.
struct Counted {
    reservation: usize,
    holds: Vec<(usize, Hold)>,
}

impl<'a> Pass<'a> {
    pub fn new(engine: &'a mut Engine, snapshot: &'a Snapshot, budget: WorkBudget) -> Self {
        let partitions = snapshot.config.partitions.len();
        let reserve = match snapshot.config.scheduler.backfill {
            Backfill::Off => 0,
            Backfill::First(count) => count,
            Backfill::All => u32::MAX,
        };
        let mut pass = Self {
            engine,
            snapshot,
            reserve_left: vec![reserve; partitions],
            waiting: vec![false; partitions],
            reserved: Vec::new(),
            licences: licences(snapshot),
            ledger: Ledger::new(snapshot),
            unlimited: is_unlimited(snapshot),
            limited: BTreeMap::new(),
            counted: Vec::new(),
            guaranteed_only: false,
            later: None,
            probes_left: budget.node_probes,
            starts_left: budget.starts,
            plan: Plan { made_from: snapshot.seq, ..Plan::default() },
        };
        pass.hold_counted();
        pass
    }

    fn is_spent(&self) -> bool {
        self.probes_left == 0 || self.starts_left == 0
    }

    fn tell(&mut self, job: &PendingJob, reason: Option<Reason>) {
        if let Some(reason) = reason.filter(|reason| *reason != job.reason) {
            match &job.positions {
                None => self.plan.reasons.push((job.id, reason)),
                Some(_) => self.plan.array_reasons.push((job.id, reason)),
            }
        }
    }

    pub fn shape_of(&mut self, job: &PendingJob, partition: usize) -> ShapeId {
        let engine = &mut *self.engine;
        engine.shapes.of(job, partition, self.snapshot, &engine.cluster, &engine.windows)
    }

    fn shape(&self, shape: ShapeId) -> &Shape {
        &self.engine.shapes.list[shape as usize]
    }

    fn of_pass(&mut self, shape: ShapeId) -> &mut OfPass {
        &mut self.engine.shapes.list[shape as usize].pass
    }

    /// Decides about a job by its place among the pending.
    fn consider_in(&mut self, at: usize, partitions: &BTreeMap<&str, usize>, guaranteed: bool) {
        let job = &self.snapshot.pending[at];
        self.guaranteed_only = guaranteed && job.positions.is_some();
        let reason = match partitions.get(job.spec.partition.as_str()) {
            Some(partition) => self.consider(job, *partition),
            None => Some(reason::no_partition(job)),
        };
        if self.guaranteed_only && matches!(&reason, Some(reason) if reason.code == ReasonCode::None) {
            self.later = Some(at);
            return;
        }
        self.tell(job, reason);
    }

    /// Starts what can start of a job; the reason of what is left waiting.
    pub fn consider(&mut self, job: &PendingJob, partition: usize) -> Option<Reason> {
        let policy = &self.snapshot.config.partitions[partition];
        if let Some(reason) = standing(job, policy, self.snapshot) {
            return Some(reason);
        }
        let shape = self.shape_of(job, partition);
        if let Some(never) = &self.shape(shape).never {
            return Some(never.clone());
        }
        if let Some(reason) = self.not_admitted(job, shape) {
            return Some(reason);
        }
        if self.waiting[partition] && self.snapshot.config.scheduler.backfill == Backfill::Off {
            return Some(self.shape(shape).behind.clone());
        }
        let lifted = self.lift_counted(shape);
        let left = match &job.positions {
            None => self.start(job, job.id, shape).err().map(|wait| (wait, 1)),
            Some(positions) => {
                let mut room = job.room.unwrap_or(u32::MAX);
                let mut left = None;
                for (done, position) in (0..).zip(positions.iter()) {
                    if self.starts_left == 0 {
                        break;
                    }
                    if room == 0 {
                        left = Some((Wait::Limit(array_limit()), 0));
                        break;
                    }
                    let id = JobId(job.id.0 + u64::from(position));
                    if let Err(wait) = self.start(job, id, shape) {
                        let tasks = (positions.len() as u32).saturating_sub(done).min(room);
                        left = Some((wait, tasks));
                        break;
                    }
                    room -= 1;
                }
                left
            }
        };
        let reason = left.map(|(wait, tasks)| self.wait(job, shape, wait, tasks));
        self.hold_again(lifted);
        reason
    }

    /// A job that waits for resources gets a start if it is among the first, and a reason.
    fn wait(&mut self, job: &PendingJob, shape: ShapeId, wait: Wait, tasks: u32) -> Reason {
        let (code, text) = match wait {
            Wait::Limit(reason) => return reason,
            Wait::Licences(reason) => (ReasonCode::Licenses, Some(reason.text)),
            Wait::Room => (ReasonCode::Resources, None),
        };
        let partition = self.shape(shape).partition;
        let first = !std::mem::replace(&mut self.waiting[partition], true);
        let kept = if first || code == ReasonCode::Licenses { None } else { self.kept(shape) };
        let first_kept = if first { self.kept(shape) } else { None };
        let free = first.then(|| reason::what_is_free(&self.shape(shape).candidates.up, self.snapshot, &self.engine.cluster));
        let mut start = None;
        for task in 0..tasks.min(MOST_RESERVED_TASKS) {
            if self.reserve_left[partition] == 0 {
                break;
            }
            self.reserve_left[partition] -= 1;
            let Some(at) = self.reserve(job, shape) else { break };
            start = start.or(Some(at));
            if task > 0 && self.is_spent() {
                break;
            }
        }
        if let Some(reason) = kept.or(first_kept) {
            return reason;
        }
        if let Some(text) = text {
            return Reason::new(code, text);
        }
        let behind = &self.shape(shape).behind;
        let Some(free) = free else { return behind.clone() };
        let needs = behind.text.strip_suffix(reason::BEHIND).unwrap_or(&behind.text);
        // A run without a limit is no promise of an end.
        let some_day = self.snapshot.now.plus_secs(i64::from(UNLIMITED_SECS) - 86_400);
        let expected = start.filter(|at| *at < some_day).map_or(String::new(), |at| format!("; room is expected by {at}"));
        Reason::new(code, format!("{needs}; {free}{expected}"))
    }

    /// Where a shape would have room now but for what is kept for others: for whom.
    fn kept(&mut self, shape: ShapeId) -> Option<Reason> {
        if let Some(kept) = &self.shape(shape).pass.kept {
            return (kept.code != ReasonCode::None).then(|| kept.clone());
        }
        let engine = &*self.engine;
        let of = &engine.shapes.list[shape as usize];
        let now = self.snapshot.now;
        let free_now = |way: usize| {
            let mut left: Vec<usize> = of.candidates.up.ones().collect();
            of.ways[way].parts.iter().enumerate().all(|(part, wanted)| {
                let mut missing = wanted.count;
                left.retain(|at| {
                    let track = &engine.cluster.nodes[*at];
                    let fits = missing > 0
                        && of.need(way, part, track.make).is_some_and(|need| track.room.fits(need, now, now.plus_millis(1)));
                    missing -= u32::from(fits);
                    !fits
                });
                missing == 0
            })
        };
        let kept = (0..of.ways.len()).any(free_now).then(|| self.kept_for(of));
        self.of_pass(shape).kept = Some(kept.clone().unwrap_or_default());
        kept
    }

    fn kept_for(&self, shape: &Shape) -> Reason {
        let windows = &self.engine.windows;
        let now = self.snapshot.now;
        let end = end_after(now, shape.pass.refused_secs);
        let blocking = shape.candidates.up.ones().find_map(|at| windows.blocking(at, shape.own, now, end));
        if let Some((at, (from, to))) = blocking {
            let reservation = &windows.list[at].reservation;
            let what = if reservation.maintenance { "maintenance" } else { "reservation" };
            let text = format!("nodes it needs are kept for {what} {:?} from {from} to {to}", reservation.name);
            return Reason::new(ReasonCode::ReqNodeNotAvail, text);
        }
        match self.reserved.iter().find(|reserved| reserved.nodes.iter().any(|at| shape.candidates.up.contains(*at))) {
            Some(first) => {
                let text = format!("what it needs is kept for job {}", first.job);
                Reason::new(ReasonCode::Priority, text)
            }
            None => shape.behind.clone(),
        }
    }

    fn not_admitted(&self, job: &PendingJob, shape: ShapeId) -> Option<Reason> {
        let reserved = &self.engine.windows.list[self.shape(shape).own?];
        let name = &reserved.reservation.name;
        let wait = |text: String| Some(Reason::new(ReasonCode::Reservation, text));
        if !reserved.admits(job) {
            let (user, account) = (&job.spec.user.name, &job.spec.account);
            return wait(format!("reservation {name:?} is neither for user {user:?} nor for account {account:?}"));
        }
        let secs = job.spec.time_min_secs.or(job.limit_secs).unwrap_or(UNLIMITED_SECS);
        let one = &reserved.reservation;
        if !one.flex && secs > one.duration_secs {
            return wait(format!("asks for {secs} s, and reservation {name:?} lasts {} s", one.duration_secs));
        }
        match crate::window::next(one, self.snapshot.now) {
            None => wait(format!("reservation {name:?} is over")),
            Some((from, _)) if from > self.snapshot.now && !one.flex => {
                wait(format!("reservation {name:?} begins at {from}"))
            }
            Some((_, to)) if !one.flex && self.snapshot.now.plus_secs(i64::from(secs)) > to => {
                wait(format!("needs {secs} s, and reservation {name:?} ends at {to}"))
            }
            Some(_) => None,
        }
    }

    /// Starts a job or task now, if it can.
    fn start(&mut self, job: &PendingJob, id: JobId, shape: ShapeId) -> Result<(), Wait> {
        let secs = job.limit_secs.unwrap_or(UNLIMITED_SECS);
        let now = self.snapshot.now;
        let ways = self.allowed_ways(job, shape, secs)?;
        self.licences_now(job, secs)?;
        if self.shape(shape).pass.refused_secs.is_none_or(|refused| secs < refused) {
            let mut limit = None;
            for way in ways.iter().copied() {
                match self.find(job, shape, way, secs) {
                    Ok(Some((_, _, Some(RunClass::Borrowed)))) if self.guaranteed_only => {
                        return Err(Wait::Limit(Reason::default()));
                    }
                    Ok(Some((picked, take, class))) => {
                        self.commit(job, id, shape, way, &picked, (&take, class), None);
                        return Ok(());
                    }
                    Ok(None) => {}
                    Err(reason) => limit = limit.or(Some(reason)),
                }
            }
            if let Some(reason) = limit {
                return Err(Wait::Limit(reason));
            }
            if ways.len() == self.shape(shape).ways.len() {
                self.of_pass(shape).refused_secs = Some(secs);
            }
        }
        if let Some(least) = job.spec.time_min_secs.filter(|least| *least < secs)
            && self.shape(shape).pass.refused_min_secs.is_none_or(|refused| least < refused)
        {
            for way in ways {
                let longest = self.search(job, shape, |search, ask| search.longest(ask, way, now, (least, secs)));
                let Some((secs, picked)) = longest else { continue };
                let take = self.take_of(shape, way, &picked, secs);
                if let Ok(class) = self.check(job, &take) {
                    self.commit(job, id, shape, way, &picked, (&take, class), Some(secs));
                    return Ok(());
                }
            }
            self.of_pass(shape).refused_min_secs = Some(least);
        }
        Err(Wait::Room)
    }

    /// Ways that no limit stands against, as far as can be said before nodes are known.
    fn allowed_ways(&mut self, job: &PendingJob, shape: ShapeId, secs: u32) -> Result<Vec<usize>, Wait> {
        let ways = 0..self.shape(shape).ways.len();
        if self.unlimited {
            return Ok(ways.collect());
        }
        let spec = &job.spec;
        let claim = || {
            let (account, user, qos) = (spec.account.clone(), spec.user.name.clone(), spec.qos.clone());
            (shape, account, user, qos, spec.borrow, spec.requeue, secs)
        };
        if !self.limited.is_empty()
            && let Some(reason) = self.limited.get(&claim())
        {
            return Err(Wait::Limit(reason.clone()));
        }
        let mut allowed = Vec::new();
        let mut no = None;
        for way in ways {
            match self.check(job, &self.shape(shape).ways[way].take) {
                Ok(_) => allowed.push(way),
                Err(reason) => no = no.or(Some(reason)),
            }
        }
        match no {
            Some(reason) if allowed.is_empty() => {
                self.limited.insert(claim(), reason.clone());
                Err(Wait::Limit(reason))
            }
            _ => Ok(allowed),
        }
    }

    /// What limits say, and the class. Licences are for the timeline to judge.
    fn check(&self, job: &PendingJob, take: &Take) -> Result<Option<RunClass>, Reason> {
        if self.unlimited {
            return Ok(None);
        }
        match self.ledger.check(job, take) {
            Err(reason) if reason.code == ReasonCode::Licenses => {
                let others = self.ledger.blockers(job, take).into_iter().find(|other| other.code != ReasonCode::Licenses);
                others.map_or(Ok(None), Err)
            }
            said => said,
        }
    }

    /// Nodes for a way, now: those liked best; of another type where a limit says no to theirs.
    #[allow(clippy::type_complexity)]
    fn find(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        way: usize,
        secs: u32,
    ) -> Result<Option<(Picked, Take, Option<RunClass>)>, Reason> {
        let now = self.snapshot.now;
        let end = end_after(now, Some(secs));
        let Some(picked) = self.search(job, shape, |search, ask| search.pick(ask, way, now, end)) else {
            return Ok(None);
        };
        let take = self.take_of(shape, way, &picked, secs);
        let no = match self.check(job, &take) {
            Ok(class) => return Ok(Some((picked, take, class))),
            Err(reason) => reason,
        };
        for kind in self.gpu_types(shape) {
            let only = self.nodes_of_type(shape, &kind);
            let found = self.search(job, shape, |search, ask| search.pick(&Ask { only: Some(&only), ..*ask }, way, now, end));
            let Some(picked) = found else { continue };
            let take = self.take_of(shape, way, &picked, secs);
            if let Ok(class) = self.check(job, &take) {
                return Ok(Some((picked, take, class)));
            }
        }
        Err(no)
    }

    /// What a job would take of these nodes.
    pub fn take_of(&self, shape: ShapeId, way: usize, picked: &Picked, secs: u32) -> Take {
        let of = self.shape(shape);
        let now = self.snapshot.now;
        if self.unlimited {
            return Take::default();
        }
        let mut take = Take { nodes: picked.len() as u32, ..Take::default() };
        for (at, part) in picked {
            let track = &self.engine.cluster.nodes[*at];
            let make = &self.engine.cluster.makes.list[track.make as usize];
            let Some(need) = of.need(way, *part, track.make) else { continue };
            take.cpus = take.cpus.saturating_add(need.cpus);
            let least = track.room.profile.least(now, end_after(now, Some(secs)));
            let mut add = |group: usize, milli: u64| {
                if let Some(group) = make.groups.get(group).filter(|_| milli > 0) {
                    *take.gpus.entry(group.gpu_type.clone()).or_default() += milli;
                }
            };
            if need.milli > 0 {
                add(need.groups.trailing_zeros() as usize, u64::from(need.milli));
            } else if let Some(amount) = need.amount_from(&least) {
                amount.gpus.iter().enumerate().for_each(|(group, count)| add(group, u64::from(*count) * 1000));
            }
        }
        take
    }

    /// Types of GPUs on the nodes that may run a shape.
    fn gpu_types(&self, shape: ShapeId) -> BTreeSet<String> {
        let cluster = &self.engine.cluster;
        let makes: BTreeSet<u32> = self.shape(shape).candidates.up.ones().map(|at| cluster.nodes[at].make).collect();
        let groups = makes.iter().flat_map(|make| &cluster.makes.list[*make as usize].groups);
        groups.map(|group| group.gpu_type.clone()).collect()
    }

    /// Nodes that have no GPUs but of one type.
    fn nodes_of_type(&self, shape: ShapeId, kind: &str) -> FixedBitSet {
        let cluster = &self.engine.cluster;
        let mut nodes = self.shape(shape).candidates.up.clone();
        let of_type = |make: &u32| cluster.makes.list[*make as usize].groups.iter().all(|group| group.gpu_type == kind);
        let others: Vec<usize> = nodes.ones().filter(|at| !of_type(&cluster.nodes[*at].make)).collect();
        others.into_iter().for_each(|at| nodes.set(at, false));
        nodes
    }

    fn licences_now(&self, job: &PendingJob, secs: u32) -> Result<(), Wait> {
        let now = self.snapshot.now;
        for (name, count) in &job.spec.licences {
            let free = self.licences.get(name).map_or(0, |free| free.least(now, end_after(now, Some(secs))));
            if free < *count {
                let all = self.snapshot.config.scheduler.licences.get(name).copied().unwrap_or(0);
                let text = format!("needs {count} of licence {name:?}; {free} of {all} are free for as long");
                let reason = Reason::new(ReasonCode::Licenses, text);
                return Err(if *count > all { Wait::Limit(reason) } else { Wait::Licences(reason) });
            }
        }
        Ok(())
    }

    /// Looks for nodes on behalf of a job.
    pub fn search<T>(&mut self, job: &PendingJob, shape: ShapeId, look: impl FnOnce(&mut Search, &Ask) -> T) -> T {
        let engine = &mut *self.engine;
        let of = &engine.shapes.list[shape as usize];
        let avoid: Vec<usize> = job.avoid.iter().filter_map(|node: &NodeId| engine.cluster.place(*node)).collect();
        let ask = Ask { shape: of, avoid: &avoid, only: None, most_leaves: most_leaves(job, self.snapshot.now) };
        let mut search = Search {
            cluster: &engine.cluster,
            windows: &engine.windows,
            leaves: &engine.leaves,
            scores: &mut engine.scores,
            probes_left: &mut self.probes_left,
        };
        look(&mut search, &ask)
    }

    #[allow(clippy::too_many_arguments)]
    fn commit(&mut self, job: &PendingJob, id: JobId, shape: ShapeId, way: usize, picked: &Picked, (take, class): (&Take, Option<RunClass>), shorter: Option<u32>) {
        let now = self.snapshot.now;
        let end = end_after(now, shorter.or(job.limit_secs));
        let engine = &mut *self.engine;
        let of = &engine.shapes.list[shape as usize];
        let mut allocation: Vec<(usize, gmodel::run::NodeShare)> = Vec::with_capacity(picked.len());
        for (at, part) in picked {
            let (make, node) = (engine.cluster.nodes[*at].make, engine.cluster.nodes[*at].id);
            let need = *of.need(way, *part, make).expect("picked nodes serve their part");
            let tasks = of.ways[way].parts[*part].demand.tasks;
            engine.cluster.touch(*at);
            let make = &engine.cluster.makes.list[make as usize];
            let room = &mut engine.cluster.nodes[*at].room;
            let share = room.start(make, node, &need, tasks, (now, end)).expect("picked nodes have room");
            engine.cluster.file(*at);
            allocation.push((*at, share));
        }
        // Ranks follow the nodes' names, as every script that takes the first host for its master expects.
        let names = &self.snapshot.nodes;
        allocation.sort_by(|(a, _), (b, _)| natural_order(&names[*a].name, &names[*b].name));
        let allocation: Allocation = allocation.into_iter().map(|(_, share)| share).collect();
        for (name, count) in &job.spec.licences {
            if let Some(free) = self.licences.get_mut(name) {
                free.take(now, end, *count);
            }
        }
        if !self.unlimited {
            self.ledger.take(job, take, class);
        }
        self.plan.starts.push(Start { job: id, allocation, class, limit_secs: shorter });
        self.starts_left = self.starts_left.saturating_sub(1);
    }

    /// Gives a job the earliest start that delays none before it.
    fn reserve(&mut self, job: &PendingJob, shape: ShapeId) -> Option<Timestamp> {
        let (at, way, picked) = self.earliest(job, shape)?;
        let secs = job.limit_secs.unwrap_or(UNLIMITED_SECS);
        let to = end_after(at, Some(secs));
        let engine = &mut *self.engine;
        let of = &engine.shapes.list[shape as usize];
        for (node, part) in &picked {
            let need = *of.need(way, *part, engine.cluster.nodes[*node].make)?;
            engine.cluster.touch(*node).hold(&need, at, to);
        }
        for (name, count) in &job.spec.licences {
            if let Some(free) = self.licences.get_mut(name) {
                free.take(at, to, *count);
            }
        }
        let nodes = picked.into_iter().map(|(node, _)| node).collect();
        self.reserved.push(Reserved { job: job.id, at, nodes });
        Some(at)
    }

    /// The earliest start of a job, beside what is reserved already: when, which way, on which nodes.
    pub fn earliest(&mut self, job: &PendingJob, shape: ShapeId) -> Option<(Timestamp, usize, Picked)> {
        let secs = job.limit_secs.unwrap_or(UNLIMITED_SECS);
        let horizon = self.snapshot.now.plus_secs(3 * i64::from(UNLIMITED_SECS));
        let mut from = self.snapshot.now;
        let ways = self.shape(shape).ways.len();
        for _ in 0..16 {
            let mut best: Option<(Timestamp, usize, Picked)> = None;
            for way in 0..ways {
                let until = best.as_ref().map_or(horizon, |(at, ..)| *at);
                let from = from.max(self.not_before(job, shape, way, secs));
                if from >= until {
                    continue;
                }
                let found = self.search(job, shape, |search, ask| search.earliest(ask, way, (from, secs), until));
                if let Some((at, picked)) = found {
                    self.remember_not_before(job, shape, way, secs, at);
                    best = Some((at, way, picked));
                }
            }
            let (at, way, picked) = best?;
            let mut free = at;
            for (name, count) in &job.spec.licences {
                free = free.max(self.licences.get(name)?.first(*count, at, secs)?);
            }
            if free == at {
                return Some((at, way, picked));
            }
            from = free;
        }
        None
    }

    /// What jobs of the shape before it found out: within a pass room only shrinks.
    fn not_before(&self, job: &PendingJob, shape: ShapeId, way: usize, secs: u32) -> Timestamp {
        let of = self.shape(shape);
        match of.pass.not_before.get(way) {
            Some((shorter, at)) if *shorter <= secs && plain(job, of) => *at,
            _ => self.snapshot.now,
        }
    }

    fn remember_not_before(&mut self, job: &PendingJob, shape: ShapeId, way: usize, secs: u32, at: Timestamp) {
        let of = &mut self.engine.shapes.list[shape as usize];
        if !plain(job, of) {
            return;
        }
        let now = self.snapshot.now;
        of.pass.not_before.resize(of.ways.len(), (u32::MAX, now));
        let known = &mut of.pass.not_before[way];
        // A longer one that came later says more about the time, a shorter one about more jobs.
        if secs <= known.0 || at > known.1 {
            *known = (secs, at);
        }
    }

    /// Sets GPUs apart that are reserved by their number.
    fn hold_counted(&mut self) {
        for at in 0..self.engine.windows.list.len() {
            let holds = crate::counted::hold(self.engine, self.snapshot, at);
            if !holds.is_empty() {
                self.counted.push(Counted { reservation: at, holds });
            }
        }
    }

    /// Gives a job the GPUs back that its own reservation holds, while nodes are looked for.
    fn lift_counted(&mut self, shape: ShapeId) -> Option<usize> {
        let own = self.shape(shape).own?;
        let at = self.counted.iter().position(|counted| counted.reservation == own)?;
        for (node, hold) in self.counted[at].holds.drain(..).rev() {
            self.engine.cluster.touch(node).release(&hold);
        }
        Some(at)
    }

    fn hold_again(&mut self, lifted: Option<usize>) {
        if let Some(at) = lifted {
            let reservation = self.counted[at].reservation;
            self.counted[at].holds = crate::counted::hold_beside(self.engine, self.snapshot, reservation, &self.plan.starts);
        }
    }
}

/// Whether nothing in the policy limits anybody.
fn is_unlimited(snapshot: &Snapshot) -> bool {
    let free = |limits: &Limits| *limits == Limits::default();
    let open = |one: &Partition| {
        free(&one.group) && free(&one.per_user) && free(&one.per_account) && one.headroom.is_none()
    };
    snapshot.policy.accounts.is_empty()
        && snapshot.policy.qos.is_empty()
        && snapshot.config.partitions.iter().all(open)
}

/// Nothing about the job but its shape and limit decides when it can start.
fn plain(job: &PendingJob, shape: &Shape) -> bool {
    shape.own.is_none() && job.spec.licences.is_empty() && job.spec.request.switches.is_none()
}

/// `--switches`: at most so many leaf switches, as long as it is willing to wait for that.
fn most_leaves(job: &PendingJob, now: Timestamp) -> Option<u32> {
    let wanted = job.spec.request.switches?;
    let since = job.eligible.max(job.submitted);
    let waits = wanted.wait_secs.is_none_or(|secs| now.since_secs(since) < i64::from(secs));
    waits.then_some(wanted.most.max(1))
}

/// What is free of each licence over time.
fn licences(snapshot: &Snapshot) -> BTreeMap<String, Count> {
    let all = &snapshot.config.scheduler.licences;
    let now = snapshot.now;
    let mut free: BTreeMap<String, Count> = all.iter().map(|(name, all)| (name.clone(), Count::new(now, *all))).collect();
    if all.is_empty() {
        return free;
    }
    for run in &snapshot.running {
        for (name, count) in &run.spec.licences {
            if let Some(free) = free.get_mut(name) {
                free.take(now, end_of(run).max(now.plus_secs(1)), *count);
            }
        }
    }
    free
}
