//! One pass: jobs in order; each starts now, or is given a start that later ones may not delay, or waits.
//!
//! The first K waiting jobs of a partition get reservations on concrete nodes (K = 1 is EASY, Lifka 1995; all is
//! conservative backfill, Mu'alem and Feitelson 2001). Later jobs start now where they delay none of them, in time and
//! amount. An engine may be kept from pass to pass: it works out anew only what changed.

use crate::backfill::promised::Promised;
use crate::backfill::refusals::Refusals;
use crate::cluster::network::{Network, most_leaves};
use crate::cluster::node_states::RoomId;
use crate::cluster::nodes::{Cluster, Holds, end_after};
use crate::cluster::timeline::Count;
use crate::decide::choices::Choices;
use crate::decide::quick::{Changes, Left, Waiting};
use crate::fair_tree::Standings;
use crate::forecast::in_turn::InTurn;
use crate::forecast::limited::Foretold;
use crate::headroom::{KeptNodes, kept_idle_on, kept_nodes};
use crate::job::job_class::{OfPass, Shape, ShapeId, Shapes};
use crate::job::queue::Queue;
use crate::job::reason::{self, array_limit, standing};
use crate::ledger::{Ledger, Take};
use crate::mig::hold::HeldBack;
use crate::place::claims;
use crate::place::counted::Counted;
use crate::place::rails;
use crate::place::score::Scores;
use crate::place::search::{Ask, Looked, Picked, Search, count, each};
use crate::plan::{Plan, Sizes, Start, WorkBudget};
use crate::preempt::nomination::Freed;
use crate::preempt::victims::Candidates;
use crate::preempt::what_if::{self, Leaving};
use crate::priority::{in_order, of_starts};
use crate::snapshot::{PendingJob, Snapshot};
use crate::window::Windows;
use fixedbitset::FixedBitSet;
use gmodel::config::{ClusterConfig, MigCuts};
use gmodel::policy::{Backfill, Placement, Policy};
use gmodel::run::{Allocation, NodeShare};
use gmodel::{GpuSlot, JobId, NodeId, Reason, ReasonCode, RunClass, Timestamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Decides which pending jobs start now, and why the others wait.
pub fn plan(snapshot: &Snapshot, budget: WorkBudget) -> Plan {
    Engine::default().plan(snapshot, budget)
}

/// A budget grows to so many times two to the power of this before a pass is cut short for good.
const MOST_STRETCH: u32 = 16;

/// The scheduler with what it keeps from pass to pass. Plans are the same with a new one.
#[derive(Debug, Default)]
pub struct Engine {
    pub(crate) cluster: Cluster,
    pub(crate) windows: Windows,
    pub(crate) network: Network,
    pub(crate) shapes: Shapes,
    pub(crate) scores: Scores,
    pub(crate) looked: Looked,
    pub(crate) queue: Queue,
    pub(crate) promised: Promised,
    pub(crate) standings: Standings,
    /// For quick passes after this one.
    pub(crate) left: Option<Left>,
    /// How often the budget is doubled: a pass that is cut short comes further the next time.
    stretch: u32,
    /// Plans say who starts and nothing else.
    pub(crate) silent: bool,
    /// Probes of the last pass.
    pub(crate) probed: u64,
    /// What shapes and windows were worked out for.
    pub(crate) seen: Option<(Arc<ClusterConfig>, Arc<Policy>)>,
    generation: (u64, usize),
}

impl Engine {
    /// One whose plans say only who starts: the same starts, but nobody is told why he waits, or when he may expect to start, where
    /// the pass need not know it itself. For replays; quick passes find nothing left by it.
    pub fn silent() -> Self {
        Self {
            silent: true,
            ..Self::default()
        }
    }

    pub fn plan(&mut self, snapshot: &Snapshot, budget: WorkBudget) -> Plan {
        self.plan_changed(snapshot, None, budget)
    }

    /// As `plan`, where it is known what is otherwise than in the snapshot of the last plan (of this or of `after`).
    pub fn plan_changed(
        &mut self,
        snapshot: &Snapshot,
        changes: Option<&Changes>,
        budget: WorkBudget,
    ) -> Plan {
        self.plan_in(snapshot, changes, budget, None)
    }

    /// As `plan_changed`, with what a long pass decided handed over after each `slice` node probes: nobody waits for its
    /// end. All parts are made from the same snapshot; the last one is returned.
    pub fn plan_in_slices(
        &mut self,
        snapshot: &Snapshot,
        changes: Option<&Changes>,
        budget: WorkBudget,
        slice: u64,
        hand_over: HandOver,
    ) -> Plan {
        let slices = Slices {
            take: hand_over,
            probes: slice,
            since: u64::MAX,
            handed: Plan::default().sizes(),
        };
        self.plan_in(snapshot, changes, budget, Some(slices))
    }

    fn plan_in(
        &mut self,
        snapshot: &Snapshot,
        changes: Option<&Changes>,
        budget: WorkBudget,
        slices: Option<Slices>,
    ) -> Plan {
        let stretched = budget.node_probes.saturating_mul(1 << self.stretch);
        let more = WorkBudget {
            node_probes: stretched,
            ..budget
        };
        self.left = None;
        self.sync(snapshot, changes);
        self.sync_queue(snapshot, changes);
        let (mut plan, left) = match in_lines(snapshot) && self.cluster.frozen == 0 {
            true => self.walk_lines(snapshot, more, slices),
            false => self.walk_all(snapshot, more, None, slices, None),
        };
        plan.cuts = crate::mig::cuts::cuts(self, snapshot, &left);
        self.stretch = match (
            plan.cut_short && left.started.len() < budget.starts,
            self.probed > budget.node_probes / 2,
        ) {
            (true, _) => (self.stretch + 1).min(MOST_STRETCH),
            (false, true) => self.stretch,
            (false, false) => self.stretch.saturating_sub(1),
        };
        self.left = (!plan.cut_short && !self.silent).then_some(left);
        plan
    }

    /// One pass in which `look` sees each job before its turn and may end the pass. `reserve`: how many waiting jobs of
    /// each partition get a reservation, where it is not for the policy to say.
    pub(crate) fn walk(
        &mut self,
        snapshot: &Snapshot,
        budget: WorkBudget,
        reserve: Option<u32>,
        look: Look,
    ) -> (Plan, Left) {
        self.left = None;
        self.sync(snapshot, None);
        self.cluster.usual.queue_is_known = false;
        self.walk_all(snapshot, budget, reserve, None, Some(look))
    }

    /// Looks at every job.
    pub(crate) fn walk_all(
        &mut self,
        snapshot: &Snapshot,
        budget: WorkBudget,
        reserve: Option<u32>,
        slices: Option<Slices>,
        mut look: Option<Look>,
    ) -> (Plan, Left) {
        let ledger = Ledger::new(snapshot);
        let frozen = what_if::may_preempt(snapshot).then(|| ledger.clone());
        let mut pass = Pass::new(self, snapshot, budget, ledger);
        pass.hold_counted();
        pass.at_once = true;
        if look.is_some() && reserve.is_some() {
            pass.foretell();
        }
        pass.slices = slices;
        pass.frozen = frozen.as_ref();
        pass.candidates = pass.frozen.map(|frozen| Candidates::new(snapshot, frozen));
        if let Some(reserve) = reserve {
            pass.reserve_left.fill(reserve);
        }
        pass.know_freed();
        pass.resume_first();
        let order = in_order(snapshot, &pass.ledger);
        let partitions = partitions(snapshot);
        // Arrays whose guarantee is used up: what is left of them comes with the borrowers of their tier.
        let mut later: Vec<usize> = Vec::new();
        for one in &order {
            let borrows = one.class != Some(RunClass::Guaranteed);
            if borrows && !later.is_empty() {
                later
                    .drain(..)
                    .for_each(|at| pass.consider_in(at, &partitions, false));
            }
            let job = &snapshot.pending[one.at];
            let place = || partitions.get(job.spec.partition.as_str()).copied();
            if pass.is_spent()
                || !look
                    .as_mut()
                    .is_none_or(|look| look(&mut pass, job, place()))
            {
                break;
            }
            pass.consider_in(one.at, &partitions, !borrows);
            pass.hand_over();
            later.extend(pass.later.take());
        }
        if !pass.is_spent() {
            later
                .drain(..)
                .for_each(|at| pass.consider_in(at, &partitions, false));
            pass.resume_rest();
        }
        pass.plan.classes = pass.ledger.classes();
        pass.finish(budget)
    }

    /// Brings everything up to a snapshot, with nothing taken by a pass.
    pub(crate) fn sync(&mut self, snapshot: &Snapshot, changes: Option<&Changes>) {
        self.cluster.sync(snapshot, changes);
        self.standings.note(changes);
        let same_policy = self.seen.as_ref().is_some_and(|(config, policy)| {
            (Arc::ptr_eq(config, &snapshot.config) || *config == snapshot.config)
                && (Arc::ptr_eq(policy, &snapshot.policy) || *policy == snapshot.policy)
        });
        let generation = (self.cluster.generation, self.cluster.makes.list.len());
        if !same_policy || generation != self.generation {
            self.shapes.clear();
            self.cluster.sort_again(snapshot);
            self.windows = Windows::new(snapshot);
            self.network = Network::new(&snapshot.config.scheduler.topology, &snapshot.nodes);
            self.generation = generation;
        }
        self.seen = Some((snapshot.config.clone(), snapshot.policy.clone()));
        self.shapes.begin_pass(snapshot.pending.len());
        self.scores.begin_pass();
        self.promised
            .begin(self.shapes.era(), &self.cluster.changed);
    }
}

/// Whether a pass need not look at every job: no class of one follows from those before it, nobody gives way to it, and
/// nothing is cut for it.
fn in_lines(snapshot: &Snapshot) -> bool {
    let config = &snapshot.config;
    let cuts = config
        .partitions
        .iter()
        .any(|partition| partition.mig == MigCuts::Planned);
    let frozen = snapshot.running.iter().any(|run| run.frozen.is_some());
    !snapshot.policy.has_quotas()
        && !what_if::may_preempt(snapshot)
        && !config.scheduler.consolidate
        && !cuts
        && !frozen
}

/// Sees a job, and the place of its partition, before its turn; `false` ends the pass.
pub(crate) type Look<'l> = &'l mut dyn FnMut(&mut Pass, &PendingJob, Option<usize>) -> bool;

/// Places of the partitions by name.
fn partitions(snapshot: &Snapshot) -> BTreeMap<&str, usize> {
    snapshot
        .config
        .partitions
        .iter()
        .enumerate()
        .map(|(at, one)| (one.name.as_str(), at))
        .collect()
}

/// A start in the future that others may not delay.
#[derive(Clone, Debug)]
pub struct Reserved {
    pub job: JobId,
    /// For a task of an array, whose id this is.
    pub is_array: bool,
    /// Which of its partitions it is in.
    pub choice: u32,
    pub at: Timestamp,
    pub to: Timestamp,
    /// From then on, or shortly before. None: it was taken back.
    pub holds: Holds,
    /// The place of the reservation by number of which it is.
    pub counted: Option<usize>,
}

impl Reserved {
    pub fn nodes(&self) -> impl Iterator<Item = usize> + '_ {
        self.holds
            .iter()
            .filter(|(hold, _)| hold.from == self.at)
            .flat_map(|(_, nodes)| nodes.clone())
    }

    /// Whether it holds something of any of some nodes.
    pub fn is_on(&self, nodes: &FixedBitSet) -> bool {
        self.holds
            .iter()
            .any(|(_, stretch)| nodes.contains_any_in_range(stretch.clone()))
    }
}

/// Why a job does not start now.
pub(crate) enum Wait {
    /// A limit says so, whatever is free.
    Limit(Reason),
    /// Licences are short, or what is left of its reservation.
    Short(Reason),
    /// Nodes are short.
    Room,
}

pub(crate) struct Pass<'a> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) snapshot: &'a Snapshot,
    /// When rooms were worked out: starts take room from then on. The snapshot's time, but in quick passes.
    pub(crate) now: Timestamp,
    /// By partition, how many more waiting jobs get a reservation.
    pub(crate) reserve_left: Vec<u32>,
    /// By partition: a job waits for resources already, those after it wait for their turn too.
    pub(crate) waiting: Vec<bool>,
    /// Partitions in which a job waits until more is idle than is kept, and has that set aside.
    pub(crate) set_aside: FixedBitSet,
    pub(crate) reserved: Vec<Reserved>,
    /// Who waits for room, in order.
    pub(crate) room_wanted: Vec<Waiting>,
    /// GPUs that wait to be cut for them.
    pub(crate) held_back: Vec<HeldBack>,
    /// What GPUs that are being cut will have and nobody was counted on yet: node, GPU and profile, empty of one that is made whole.
    pub(crate) coming: Option<Vec<(usize, GpuSlot, String)>>,
    /// Who is to have a reservation, in order, and by partition how many: what nobody asks for is not worked out.
    pub(crate) wants: VecDeque<Want>,
    pub(crate) wanted: Vec<u32>,
    /// Reservations are made at once.
    pub(crate) at_once: bool,
    /// They are compared with those of the pass before, and noted for the next.
    pub(crate) keeps_promises: bool,
    /// Nobody is told anything.
    pub(crate) is_silent: bool,
    /// Starts are foretold: who waits for the window of its own reservation has its place in it.
    pub(crate) foretells: bool,
    /// And what is known then of limits, where anybody has some.
    pub(crate) foretold: Option<Box<Foretold>>,
    /// And how many tasks may run at once over time, of arrays with a cap.
    pub(crate) in_turn: InTurn,
    /// Place of the job at hand among the pending.
    pub(crate) at_hand: usize,
    pub(crate) licences: BTreeMap<String, Count>,
    pub(crate) ledger: Ledger,
    /// As the ledger was before this pass; where anybody may preempt.
    pub(crate) frozen: Option<&'a Ledger>,
    pub(crate) candidates: Option<Candidates<'a>>,
    pub(crate) leaving: Leaving,
    pub(crate) freed: Freed,
    /// Nobody is limited in anything: jobs need not be held against the ledger.
    pub(crate) unlimited: bool,
    /// Some limit looks at time limits: of two jobs of a line one may be within it.
    pub(crate) minds_time: bool,
    /// Claims that a limit said no to in this pass: it only fills.
    pub(crate) limited: BTreeMap<Claim, Reason>,
    /// Reservations of GPUs by their number: what they hold, and what their jobs have of it.
    pub(crate) counted: Vec<Counted>,
    /// Tasks of the array at hand start only within its guarantee.
    pub(crate) guaranteed_only: bool,
    /// The array whose guarantee was used up just now.
    pub(crate) later: Option<usize>,
    /// What this pass found out about some requests that holds for others, too.
    pub(crate) refusals: Refusals,
    /// Whole nodes that partitions keep idle.
    pub(crate) kept_nodes: Vec<KeptNodes>,
    /// Partitions that keep some GPUs idle, with their nodes.
    pub(crate) kept_idle_on: Vec<(usize, FixedBitSet)>,
    /// Tasks that were started, and whose runs are still to come, by the array with a cap that they are of.
    pub(crate) in_arrays: BTreeMap<JobId, BTreeSet<JobId>>,
    /// What became of jobs that wait in several partitions.
    pub(crate) choices: Choices,
    pub(crate) probes_left: u64,
    pub(crate) starts_left: usize,
    pub(crate) plan: Plan,
    pub(crate) slices: Option<Slices>,
}

/// Takes the parts of a plan.
pub type HandOver = Box<dyn FnMut(Plan)>;

/// How a long pass is handed over in parts.
pub(crate) struct Slices {
    take: HandOver,
    /// Node probes of a part, and how many were left when the last was handed over.
    probes: u64,
    since: u64,
    /// How much of the plan was.
    handed: Sizes,
}

/// A shape on somebody's account: shape, account, user, QOS; borrow, requeue, whether it gave way before; limit.
type Claim = (
    ShapeId,
    String,
    String,
    String,
    (Option<bool>, Option<bool>, bool),
    u32,
);

/// Nodes, what a job takes there, and in which class; `None` where there is no room.
pub(crate) type Found = Result<Option<(Picked, Take, Option<RunClass>)>, Reason>;

/// A waiting job that is to have a reservation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    /// Where it was among the pending.
    pub at: u32,
    pub job: JobId,
    pub is_array: bool,
    /// Which of its partitions is meant.
    pub choice: u32,
    pub shape: ShapeId,
    pub tasks: u32,
    /// It might begin before this time when that was looked into.
    pub may_begin: Option<Timestamp>,
}

impl<'a> Pass<'a> {
    pub fn new(
        engine: &'a mut Engine,
        snapshot: &'a Snapshot,
        budget: WorkBudget,
        ledger: Ledger,
    ) -> Self {
        let partitions = snapshot.config.partitions.len();
        let reserve = match snapshot.config.scheduler.backfill {
            Backfill::Off => 0,
            Backfill::First(count) => count,
            Backfill::All => u32::MAX,
        };
        engine.cluster.count_rooms();
        let unlimited = claims::is_unlimited(snapshot);
        let leaving = if engine.cluster.leaving > 0 {
            Leaving::new(snapshot)
        } else {
            Leaving::default()
        };
        Self {
            engine,
            snapshot,
            now: snapshot.now,
            reserve_left: vec![reserve; partitions],
            waiting: vec![false; partitions],
            set_aside: FixedBitSet::with_capacity(partitions),
            reserved: Vec::new(),
            room_wanted: Vec::new(),
            held_back: Vec::new(),
            coming: None,
            wants: VecDeque::new(),
            wanted: vec![0; partitions],
            at_once: false,
            keeps_promises: false,
            is_silent: false,
            foretells: false,
            foretold: None,
            in_turn: InTurn::default(),
            at_hand: 0,
            licences: claims::licences(snapshot),
            ledger,
            frozen: None,
            candidates: None,
            leaving,
            freed: Freed::new(),
            unlimited,
            minds_time: !unlimited && claims::minds_time(snapshot),
            limited: BTreeMap::new(),
            counted: Vec::new(),
            guaranteed_only: false,
            later: None,
            refusals: Refusals::default(),
            kept_nodes: kept_nodes(snapshot),
            kept_idle_on: kept_idle_on(snapshot),
            in_arrays: BTreeMap::new(),
            choices: Choices::default(),
            probes_left: budget.node_probes,
            starts_left: budget.starts,
            plan: Plan {
                made_from: snapshot.seq,
                ..Plan::default()
            },
            slices: None,
        }
    }

    /// Hands over what is new in the plan when enough work was done since the last time.
    pub(crate) fn hand_over(&mut self) {
        let Some(slices) = &mut self.slices else {
            return;
        };
        if slices.since == u64::MAX {
            slices.since = self.probes_left;
        }
        if slices.since - self.probes_left < slices.probes {
            return;
        }
        slices.since = self.probes_left;
        let mut part = self.plan.beyond(slices.handed);
        if part.sizes() != Plan::default().sizes() {
            slices.handed = self.plan.sizes();
            part.priorities = of_starts(self.snapshot, &part.starts);
            (slices.take)(part);
        }
    }

    /// What a full pass decided, and what it leaves for quick ones.
    pub(crate) fn finish(mut self, budget: WorkBudget) -> (Plan, Left) {
        self.preempt_for_choices();
        self.tell_choices();
        self.plan.cut_short = self.is_spent();
        self.plan.again = !self.counted.is_empty() && !self.plan.starts.is_empty();
        self.engine.probed = budget.node_probes - self.probes_left;
        let started: BTreeSet<JobId> = self.plan.starts.iter().map(|start| start.job).collect();
        let keeps = !self.unlimited && !self.minds_time;
        let is_set_aside = self.ledger.is_set_aside();
        let waits = |job: &PendingJob| {
            job.reason.code == ReasonCode::Preempting && !started.contains(&job.id)
        };
        let may_make = self.frozen.is_some() || self.snapshot.config.scheduler.consolidate;
        let makes_room =
            may_make && (!self.plan.preempts.is_empty() || self.snapshot.pending.iter().any(waits));
        let left = Left {
            ledger: keeps.then_some(self.ledger),
            waiting: self.room_wanted,
            held_back: self.held_back,
            reserved: self.reserved,
            wants: self.wants,
            reserve_left: self.reserve_left,
            counted: self.counted,
            is_set_aside,
            makes_room,
            started,
            in_arrays: self.in_arrays,
        };
        let Some(slices) = self.slices else {
            return (self.plan, left);
        };
        let rest = self.plan.beyond(slices.handed);
        (
            Plan {
                cut_short: self.plan.cut_short,
                again: self.plan.again,
                classes: self.plan.classes,
                resumes: self.plan.resumes,
                ..rest
            },
            left,
        )
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.probes_left == 0 || self.starts_left == 0
    }

    pub(crate) fn tell(&mut self, job: &PendingJob, reason: Option<Reason>) {
        if self.is_silent {
            return;
        }
        if job.is_choice() {
            return self.choices.tell(job, reason);
        }
        if let Some(reason) = reason.filter(|reason| *reason != job.reason) {
            match &job.positions {
                None => self.plan.reasons.push((job.id, reason)),
                Some(_) => self.plan.array_reasons.push((job.id, reason)),
            }
        }
    }

    pub fn shape_of(&mut self, job: &PendingJob, partition: usize) -> ShapeId {
        let engine = &mut *self.engine;
        engine.shapes.of(
            job,
            partition,
            self.snapshot,
            &engine.cluster,
            &engine.windows,
        )
    }

    pub(crate) fn shape(&self, shape: ShapeId) -> &Shape {
        &self.engine.shapes.list[shape as usize]
    }

    pub(crate) fn of_pass(&mut self, shape: ShapeId) -> &mut OfPass {
        self.engine.shapes.of_pass(shape)
    }

    /// Decides about a job by its place among the pending.
    fn consider_in(&mut self, at: usize, partitions: &BTreeMap<&str, usize>, guaranteed: bool) {
        let job = &self.snapshot.pending[at];
        self.at_hand = at;
        self.guaranteed_only = guaranteed && job.positions.is_some();
        let reason = match partitions.get(job.spec.partition.as_str()) {
            Some(partition) => self.consider(job, *partition),
            None => Some(reason::no_partition(job)),
        };
        if self.guaranteed_only
            && matches!(&reason, Some(reason) if reason.code == ReasonCode::None)
        {
            self.later = Some(at);
            return;
        }
        self.tell(job, reason);
    }

    /// Starts what can start of a job; the reason of what is left waiting.
    pub fn consider(&mut self, job: &PendingJob, partition: usize) -> Option<Reason> {
        if self.is_settled(job) {
            return None;
        }
        let policy = &self.snapshot.config.partitions[partition];
        let standing = standing(job, policy, self.snapshot);
        // Who waits for others of its array is planned behind them.
        let waits_in_turn =
            |reason: &Reason| self.foretells && reason.code == ReasonCode::JobArrayTaskLimit;
        let lasts = standing.filter(|reason| !waits_in_turn(reason));
        if lasts.is_some() {
            return lasts;
        }
        let shape = self.shape_of(job, partition);
        if let Some(never) = &self.shape(shape).never {
            return Some(never.clone());
        }
        self.consider_shape(job, shape)
    }

    /// The same for a job that nothing stands against that lasts.
    pub(crate) fn consider_shape(&mut self, job: &PendingJob, shape: ShapeId) -> Option<Reason> {
        if let Some(reason) = self.not_admitted(job, shape) {
            if self.foretells && self.is_admitted_later(job, shape) {
                self.note_limits(job, shape);
                self.follow(job, shape, 0, self.reserved.len());
            }
            return Some(reason);
        }
        if job.positions.is_none() && self.array_room(job) == 0 {
            if self.foretells {
                self.follow(job, shape, 0, self.reserved.len());
            }
            return Some(array_limit(job));
        }
        if self.must_not_pass(self.shape(shape).partition) {
            return Some(self.shape(shape).behind.clone());
        }
        self.reserve_rivals(job, shape);
        let lifted = self.lift_counted(shape);
        let before = self.reserved.len();
        let (left, started) = match &job.positions {
            None => (self.start_alone(job, shape).err().map(|wait| (wait, 1)), 0),
            Some(positions) => self.start_tasks(job, positions, shape),
        };
        let is_capped = left.as_ref().is_some_and(|(_, tasks)| *tasks == 0);
        let reason = left.map(|(wait, tasks)| self.wait(job, shape, wait, tasks));
        if self.foretells
            && job.positions.is_some()
            && reason.is_some()
            && (is_capped || self.reserved.len() > before)
        {
            self.follow(job, shape, started, before);
        }
        self.hold_again(lifted);
        reason
    }

    /// Starts a job or task now, if it can.
    pub(crate) fn start(
        &mut self,
        job: &PendingJob,
        id: JobId,
        shape: ShapeId,
    ) -> Result<(), Wait> {
        let secs = self.secs_now(job, shape);
        let ways = self.allowed_ways(job, shape, secs)?;
        let ways =
            self.reserved_ways_of(job, shape, ways, job.spec.time_min_secs.unwrap_or(secs))?;
        self.start_by(job, id, shape, &ways)
    }

    /// By one of some ways.
    pub(crate) fn start_by(
        &mut self,
        job: &PendingJob,
        id: JobId,
        shape: ShapeId,
        ways: &[usize],
    ) -> Result<(), Wait> {
        if !job.is_choice() {
            return self.start_beside(job, id, shape, ways);
        }
        if self.is_full(shape) {
            self.licences_now(job, self.secs_now(job, shape))?;
            self.of_pass(shape).refused_secs = Some(0);
            return Err(Wait::Room);
        }
        let own = self.lift_own(job);
        // What those of its shape were refused they were refused beside what it has reserved.
        let known = (!own.is_empty()).then(|| std::mem::take(self.of_pass(shape)));
        let told = self.start_beside(job, id, shape, ways);
        known
            .into_iter()
            .for_each(|known| *self.of_pass(shape) = known);
        match &told {
            Ok(()) => self.hold_but_one(job, own),
            Err(_) => self.hold_own(job, own),
        }
        told
    }

    /// Beside all that is reserved.
    fn start_beside(
        &mut self,
        job: &PendingJob,
        id: JobId,
        shape: ShapeId,
        ways: &[usize],
    ) -> Result<(), Wait> {
        let secs = self.secs_now(job, shape);
        self.licences_now(job, secs)?;
        if self
            .shape(shape)
            .pass
            .refused_secs
            .is_none_or(|refused| secs < refused)
        {
            if self.is_full(shape) {
                self.of_pass(shape).refused_secs = Some(0);
                return Err(Wait::Room);
            }
            // What it has reserved elsewhere is lifted for a job of several partitions.
            let is_refused = !job.is_choice()
                && self
                    .refusals
                    .is_refused(&self.engine.shapes.list, shape, secs);
            if !is_refused && self.start_one_way(job, id, shape, ways, secs)? {
                return Ok(());
            }
            if ways.len() == self.shape(shape).ways.len() && !self.is_bound(job) {
                self.of_pass(shape).refused_secs = Some(secs);
                if !is_refused {
                    self.refusals.refuse_now(shape, secs);
                }
            }
        }
        // Rooms of an earlier moment say too little of a time that is cut to what they have.
        let is_full_pass = self.now == self.snapshot.now;
        match job
            .spec
            .time_min_secs
            .filter(|least| is_full_pass && *least < secs)
        {
            Some(least) if self.start_shorter(job, id, shape, ways, (least, secs)) => Ok(()),
            _ => Err(Wait::Room),
        }
    }

    /// Starts it by the first way that has room and that no limit stands against.
    fn start_one_way(
        &mut self,
        job: &PendingJob,
        id: JobId,
        shape: ShapeId,
        ways: &[usize],
        secs: u32,
    ) -> Result<bool, Wait> {
        let mut limit = None;
        for way in ways.iter().copied() {
            match self.find_beside(job, shape, way, secs) {
                Ok(Some((_, _, Some(RunClass::Borrowed)))) if self.guaranteed_only => {
                    return Err(Wait::Limit(Reason::default()));
                }
                Ok(Some((picked, take, class))) => {
                    let shorter = (secs < job.held_secs()).then_some(secs);
                    self.commit(job, id, shape, way, &picked, (&take, class), shorter);
                    return Ok(true);
                }
                Ok(None) => {}
                Err(reason) => limit = limit.or(Some(reason)),
            }
        }
        limit.map_or(Ok(false), |reason| Err(Wait::Limit(reason)))
    }

    /// With a limit cut down to what there is room for.
    fn start_shorter(
        &mut self,
        job: &PendingJob,
        id: JobId,
        shape: ShapeId,
        ways: &[usize],
        (least, secs): (u32, u32),
    ) -> bool {
        if self
            .shape(shape)
            .pass
            .refused_min_secs
            .is_some_and(|refused| least >= refused)
        {
            return false;
        }
        self.reserve_wanted();
        for way in ways.iter().copied() {
            let longest = self.search(job, shape, |search, ask| {
                search.longest(ask, way, search.snapshot.now, (least, secs))
            });
            let Some((secs, picked)) = longest else {
                continue;
            };
            let take = self.take_of(shape, way, &picked, secs);
            if let Ok(class) = self.check_on(job, shape, (&take, way, secs), &picked) {
                self.commit(job, id, shape, way, &picked, (&take, class), Some(secs));
                return true;
            }
        }
        self.of_pass(shape).refused_min_secs = Some(least);
        false
    }

    /// Nodes for a way, now, beside all that is to be reserved for those before. Reservations only take room: they are
    /// worked out one by one, and no more of them than it takes to refuse, or to know that the others begin when it is over.
    fn find_beside(&mut self, job: &PendingJob, shape: ShapeId, way: usize, secs: u32) -> Found {
        let mut found = self.find(job, shape, way, secs)?;
        let end = end_after(self.snapshot.now, Some(secs));
        while let (Some((picked, ..)), true) = (&found, self.is_any_wanted_before(end)) {
            let mut nodes = FixedBitSet::with_capacity(self.snapshot.nodes.len());
            picked
                .iter()
                .for_each(|(picked, _)| nodes.insert_range(picked.clone()));
            let in_the_way = |one: &Reserved| one.at < end && one.is_on(&nodes);
            // Twice as many each time before it is asked whether more of them matter: to make one more is no harm.
            let (mut looked, mut more) = (self.reserved.len(), 1);
            while !self.reserved[looked..].iter().any(in_the_way) && self.is_any_wanted_before(end)
            {
                looked = self.reserved.len();
                for _ in 0..more {
                    let before = self.reserved.len();
                    self.reserve_next();
                    if self.reserved[before..].iter().any(in_the_way) {
                        break;
                    }
                }
                more *= 2;
            }
            found = self.find(job, shape, way, secs)?;
        }
        Ok(found)
    }

    /// Looks for nodes on behalf of a job.
    pub fn search<T>(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        look: impl FnOnce(&mut Search, &Ask) -> T,
    ) -> T {
        let engine = &mut *self.engine;
        let of = &engine.shapes.list[shape as usize];
        let beyond_secs = i64::from(job.window_secs().saturating_sub(job.held_secs()));
        let avoid: Vec<usize> = job
            .avoid
            .iter()
            .filter_map(|node: &NodeId| engine.cluster.place(*node))
            .collect();
        let (most_leaves, least_secs) = (most_leaves(job, self.snapshot.now), job.least_secs());
        let ask = Ask {
            shape: of,
            avoid: &avoid,
            only: None,
            most_leaves,
            beyond_secs,
            least_secs,
        };
        let mut search = Search {
            cluster: &engine.cluster,
            windows: &engine.windows,
            network: &engine.network,
            scores: &mut engine.scores,
            looked: &mut engine.looked,
            snapshot: self.snapshot,
            probes_left: &mut self.probes_left,
        };
        look(&mut search, &ask)
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn commit(
        &mut self,
        job: &PendingJob,
        id: JobId,
        shape: ShapeId,
        way: usize,
        picked: &Picked,
        (take, class): (&Take, Option<RunClass>),
        shorter: Option<u32>,
    ) {
        let now = self.now;
        let end = end_after(self.snapshot.now, shorter.or(job.limit_secs));
        let there = self.taken_there(
            shape,
            way,
            picked,
            (now, shorter.unwrap_or(job.held_secs())),
        );
        let engine = &mut *self.engine;
        engine.promised.start(each(picked).map(|(at, _)| at));
        let of = &engine.shapes.list[shape as usize];
        let mut allocation: Vec<(usize, NodeShare)> = Vec::with_capacity(count(picked));
        // Nodes that were alike give the same and are alike again.
        let mut made: BTreeMap<(RoomId, usize, Vec<u16>), (RoomId, NodeShare)> = BTreeMap::new();
        let mut on_rails = rails::aligned(engine, self.snapshot, (picked, shape, way), (now, end));
        for (at, part) in each(picked) {
            let cluster = &mut engine.cluster;
            let (before, node) = (cluster.room_id(at), cluster.nodes[at].id);
            let liked = on_rails.remove(&at).unwrap_or_default();
            let key = (before, part, liked);
            if let Some((room, share)) = made.get(&key) {
                cluster.set_room(at, *room);
                allocation.push((
                    at,
                    NodeShare {
                        node,
                        ..share.clone()
                    },
                ));
            } else {
                let make = cluster.nodes[at].make;
                let need = *of
                    .need(way, part, make)
                    .expect("picked nodes serve their part");
                let tasks = of.ways[way].parts[part].demand.tasks;
                let make = &cluster.makes.list[make as usize];
                let slot = match (need.milli, of.placement) {
                    (0, _) => None,
                    (_, Placement::Pack) => {
                        let fitting = cluster.room(at).slots_for(make, &need, now, end);
                        engine
                            .scores
                            .slot(cluster, at, &need, &fitting, self.snapshot)
                    }
                    _ => None,
                };
                let liked = slot.as_ref().map_or(&*key.2, std::slice::from_ref);
                let mut room = cluster.room(at).clone();
                let share = room
                    .start(make, node, (&need, liked), tasks, (now, end))
                    .expect("picked nodes have room");
                *cluster.touch(at) = room;
                made.insert(key, (cluster.room_id(at), share.clone()));
                allocation.push((at, share));
            }
            engine.cluster.file(at);
        }
        // Ranks follow the network, and names within: neighbours in rank are neighbours there.
        allocation.sort_by_key(|(at, _)| engine.network.rank(*at));
        self.take_reserved(shape, &allocation, (now, end));
        let allocation: Allocation = allocation.into_iter().map(|(_, share)| share).collect();
        for (name, count) in &job.spec.licences {
            if let Some(free) = self.licences.get_mut(name) {
                free.take(now, end, *count);
            }
        }
        self.use_cap(job, (now, end), true);
        self.count_start(
            job,
            id,
            (take, class),
            &allocation,
            there,
            shorter.or(job.limit_secs),
        );
        if let Some(array) = job.capped_array() {
            self.in_arrays.entry(array).or_default().insert(id);
        }
        let partition = job.partition_of_several();
        if job.is_choice() || self.guaranteed_only {
            self.choices.settled.insert(id);
        }
        self.plan.starts.push(Start {
            job: id,
            allocation,
            partition,
            class,
            limit_secs: shorter,
        });
        self.starts_left = self.starts_left.saturating_sub(1);
        self.takes_freed(job);
        self.keep_those_who_went_for(id);
    }
}
