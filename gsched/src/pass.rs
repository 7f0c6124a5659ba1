//! One pass: jobs in order; each starts now, or is given a start that later ones may not delay, or waits.
//!
//! The first K waiting jobs of a partition get reservations on concrete nodes (K = 1 is EASY, Lifka 1995; all is
//! conservative backfill, Mu'alem and Feitelson 2001). Later jobs start now where they delay none of them, in time and
//! amount. An engine may be kept from pass to pass: it works out anew only what changed.

use crate::backfill::planned::{DeferredStart, NodeWait, PlannedStart};
use crate::cluster::network::most_leaves;
use crate::cluster::nodes::Cluster;
use crate::cluster::picked::PickedNodes;
use crate::engine::Memory;
use crate::headroom::kept_idle_on;
use crate::job::choices::Choices;
use crate::job::job_class::{ClassFindings, JobClass, JobClassId};
use crate::ledger::refusal::LimitRefusal;
use crate::ledger::{Ledger, Take};
use crate::mig::held_back::HeldGpu;
use crate::place::limits_in_force::{is_unlimited, minds_time};
use crate::place::search::{Ask, Search};
use crate::plan::{Nomination, Plan, Preempt, Sizes, WorkBudget};
use crate::preempt::leaving::{LaterVictims, LeavingRuns};
use crate::preempt::victims::VictimCandidates;
use crate::queue_order::of_starts;
use crate::snapshot::{PendingJob, Snapshot};
use crate::world::World;
use fixedbitset::FixedBitSet;
use gmodel::config::{MigCuts, Partition};
use gmodel::policy::Backfill;
use gmodel::{GpuSlot, JobId, NodeId, Reason, RunClass, Timestamp};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Why a job does not start now.
pub(crate) enum WaitCause {
    /// A limit says so, whatever is free.
    Limit(LimitRefusal),
    /// The task would borrow, and its array starts within its guarantee first.
    Borrows,
    /// Licences are short, or what is left of its reservation.
    Short(Reason),
    /// Nodes are short.
    Nodes,
}

/// One pass over a snapshot.
pub(crate) struct Pass<'a> {
    pub(crate) memory: &'a mut Memory,
    pub(crate) snapshot: &'a Snapshot,
    /// When node states were worked out: starts take room from then on. The snapshot's time, but in quick passes.
    pub(crate) now: Timestamp,
    pub(crate) world: World<'a>,
    pub(crate) backfill: Backfilling,
    pub(crate) preemption: Preemption<'a>,
    pub(crate) headroom: HeadroomNodes,
    pub(crate) mig: MigHolds,
    pub(crate) forecast: ForecastState,
    pub(crate) limits: LimitFacts,
    pub(crate) turn: EntryAtHand,
    pub(crate) work: Work,
    /// Jobs with several entries.
    pub(crate) choices: Choices,
    /// Jobs that wait for nodes, in order.
    pub(crate) room_wanted: Vec<NodeWait>,
    pub(crate) plan: Plan,
}

/// Planned starts of a pass. Vectors are by partition, where nothing else is said.
pub(crate) struct Backfilling {
    /// How many more pending jobs get a planned start.
    pub(crate) reserve_left: Vec<u32>,
    /// A job waits for resources: those behind it wait for their turn too.
    pub(crate) waiting: Vec<bool>,
    /// Partitions in which headroom is set aside for a job.
    pub(crate) set_aside: FixedBitSet,
    /// All planned starts, in order.
    pub(crate) reserved: Vec<PlannedStart>,
    /// Planned starts that are not worked out yet, in order, and how many.
    pub(crate) wants: VecDeque<DeferredStart>,
    pub(crate) wanted: Vec<u32>,
}

pub(crate) struct Preemption<'a> {
    /// Usage before this pass, where the policy allows preemption.
    pub(crate) usage_before: Option<&'a Ledger>,
    pub(crate) candidates: Option<VictimCandidates<'a>>,
    pub(crate) leaving: LeavingRuns,
    pub(crate) freed: Nominations,
}

/// Nodes of partitions that keep some idle.
pub(crate) struct HeadroomNodes {
    /// Partitions that keep GPUs idle, with their nodes.
    pub(crate) kept_idle_on: Vec<(usize, FixedBitSet)>,
}

#[derive(Default)]
pub(crate) struct MigHolds {
    /// GPUs that wait to be cut.
    pub(crate) held_back: Vec<HeldGpu>,
    /// What GPUs under a cut will have, less what is counted on: node, GPU and profile, empty of one that is made whole.
    pub(crate) coming: Option<Vec<(usize, GpuSlot, String)>>,
}

#[derive(Default)]
pub(crate) struct ForecastState {
    /// Every job gets a planned start, also in later windows of its own reservation.
    pub(crate) is_on: bool,
    /// Runs that preemption ends once their protected time is over.
    pub(crate) later_victims: LaterVictims,
}

pub(crate) struct LimitFacts {
    /// The policy has no limits: the ledger is not asked.
    pub(crate) unlimited: bool,
    /// Some limit depends on time limits: two jobs of one queue group may differ.
    pub(crate) minds_time: bool,
    /// Claims that a limit refused in this pass: usage only grows.
    pub(crate) refused: BTreeMap<LimitClaim, LimitRefusal>,
}

/// The entry at its turn.
#[derive(Default)]
pub(crate) struct EntryAtHand {
    /// Its place among the pending.
    pub(crate) at: usize,
    /// Tasks of the array start only within its guarantee.
    pub(crate) guaranteed_only: bool,
    /// Its next task would borrow: it waits for its second turn.
    pub(crate) borrows: bool,
    /// It waits for its victims.
    pub(crate) nomination: Option<Nomination>,
}

/// How much a pass may still do, and how its plan is handed over.
pub(crate) struct Work {
    pub(crate) probes_left: u64,
    pub(crate) starts_left: usize,
    pub(crate) slices: Option<Slices>,
}

/// Takes the parts of a plan.
pub type HandOver = Box<dyn FnMut(Plan)>;

/// How a long pass is handed over in parts.
pub(crate) struct Slices {
    pub(crate) take: HandOver,
    /// Node probes of a part, and how many were left when the last was handed over.
    pub(crate) probes: u64,
    pub(crate) since: u64,
    /// How much of the plan was.
    pub(crate) handed: Sizes,
}

/// What a limit says the same to: job class, account, user, QOS; borrow, requeue, preempted before; time limit.
pub(crate) type LimitClaim = (
    JobClassId,
    String,
    String,
    String,
    (Option<bool>, Option<bool>, bool),
    u32,
);

/// Nodes for a job, what it takes there, and in which class.
pub(crate) struct FoundNodes {
    pub(crate) picked: PickedNodes,
    pub(crate) take: Take,
    pub(crate) class: Option<RunClass>,
}

/// `None` where there is no room.
pub(crate) type NodesOrLimit = Result<Option<FoundNodes>, LimitRefusal>;

impl Backfilling {
    fn new(snapshot: &Snapshot) -> Self {
        let partitions = snapshot.config.partitions.len();
        let reserve = match snapshot.config.scheduler.backfill {
            Backfill::Off => 0,
            Backfill::First(count) => count,
            Backfill::All => u32::MAX,
        };
        Self {
            reserve_left: vec![reserve; partitions],
            waiting: vec![false; partitions],
            set_aside: FixedBitSet::with_capacity(partitions),
            reserved: Vec::new(),
            wants: VecDeque::new(),
            wanted: vec![0; partitions],
        }
    }
}

impl LimitFacts {
    fn new(snapshot: &Snapshot) -> Self {
        let unlimited = is_unlimited(snapshot);
        Self {
            unlimited,
            minds_time: !unlimited && minds_time(snapshot),
            refused: BTreeMap::new(),
        }
    }
}

impl<'a> Pass<'a> {
    pub fn new(
        cluster: &'a mut Cluster,
        memory: &'a mut Memory,
        snapshot: &'a Snapshot,
        budget: WorkBudget,
        ledger: Ledger,
    ) -> Self {
        cluster.count_rooms();
        let leaving = if cluster.leaving > 0 {
            LeavingRuns::new(snapshot)
        } else {
            LeavingRuns::default()
        };
        Self {
            memory,
            snapshot,
            now: snapshot.now,
            world: World::new(cluster, ledger, snapshot),
            backfill: Backfilling::new(snapshot),
            preemption: Preemption {
                usage_before: None,
                candidates: None,
                leaving,
                freed: Nominations::new(),
            },
            headroom: HeadroomNodes {
                kept_idle_on: kept_idle_on(snapshot),
            },
            mig: MigHolds::default(),
            forecast: ForecastState::default(),
            limits: LimitFacts::new(snapshot),
            turn: EntryAtHand::default(),
            work: Work {
                probes_left: budget.node_probes,
                starts_left: budget.starts,
                slices: None,
            },
            choices: Choices::default(),
            room_wanted: Vec::new(),
            plan: Plan {
                made_from: snapshot.seq,
                ..Plan::default()
            },
        }
    }

    /// In a forecast: each job gets a planned start.
    pub(crate) fn plan_every_start(&mut self) {
        self.backfill.reserve_left.fill(u32::MAX);
        self.forecast.is_on = true;
    }

    /// Hands over what is new in the plan when enough work was done since the last time.
    pub(crate) fn hand_over(&mut self) {
        let Some(slices) = &mut self.work.slices else {
            return;
        };
        if slices.since == u64::MAX {
            slices.since = self.work.probes_left;
        }
        if slices.since - self.work.probes_left < slices.probes {
            return;
        }
        slices.since = self.work.probes_left;
        let mut part = self.plan.beyond(slices.handed);
        if part.sizes() != Plan::default().sizes() {
            slices.handed = self.plan.sizes();
            part.priorities = of_starts(self.snapshot, &part.starts);
            (slices.take)(part);
        }
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.work.probes_left == 0 || self.work.starts_left == 0
    }

    /// The reason of the entry at hand, with its nomination, where they are other than known.
    pub(crate) fn tell(&mut self, job: &PendingJob, reason: Option<Reason>) {
        let nomination = self.turn.nomination.take();
        if self.memory.silent {
            return;
        }
        if job.is_choice() {
            return self.choices.tell(job, reason, nomination);
        }
        let Some(reason) = reason else { return };
        if reason != job.reason || nomination != job.particulars.nomination {
            self.plan.give_reason(
                job.id,
                job.particulars.positions.is_some(),
                reason,
                nomination,
            );
        }
    }

    pub fn job_class_of(&mut self, job: &PendingJob, partition: usize) -> JobClassId {
        let memory = &mut *self.memory;
        memory.job_classes.of(
            job,
            partition,
            self.snapshot,
            self.world.cluster,
            &memory.windows,
        )
    }

    pub(crate) fn job_class(&self, job_class: JobClassId) -> &JobClass {
        &self.memory.job_classes.list[job_class as usize]
    }

    pub(crate) fn of_pass(&mut self, job_class: JobClassId) -> &mut ClassFindings {
        self.memory.job_classes.of_pass(job_class)
    }

    /// Looks for nodes on behalf of a job.
    pub fn search<T>(
        &mut self,
        job: &PendingJob,
        job_class: JobClassId,
        look: impl FnOnce(&mut Search, &Ask) -> T,
    ) -> T {
        let (memory, cluster) = (&mut *self.memory, &*self.world.cluster);
        let of = &memory.job_classes.list[job_class as usize];
        let beyond_secs = i64::from(job.window_secs().saturating_sub(job.held_secs()));
        let avoid: Vec<usize> = job
            .particulars
            .avoid
            .iter()
            .filter_map(|node: &NodeId| cluster.place(*node))
            .collect();
        let (most_leaves, least_secs) = (most_leaves(job, self.snapshot.now), job.least_secs());
        let ask = Ask {
            job_class: of,
            avoid: &avoid,
            only: None,
            most_leaves,
            beyond_secs,
            least_secs,
        };
        let mut search = Search {
            cluster,
            windows: &memory.windows,
            network: &memory.network,
            scores: &mut memory.scores,
            memo: &mut memory.search_memo,
            snapshot: self.snapshot,
            probes_left: &mut self.work.probes_left,
        };
        look(&mut search, &ask)
    }

    /// What `look` finds in a trial of the world, which is rolled back.
    pub(crate) fn try_out<T>(&mut self, look: impl FnOnce(&mut Self) -> T) -> T {
        self.world.begin_trial();
        let found = look(self);
        self.world.roll_back();
        found
    }

    /// Whether a job before it waits and backfill is off.
    pub(crate) fn must_not_pass(&self, partition: usize) -> bool {
        self.backfill.waiting[partition] && self.snapshot.config.scheduler.backfill == Backfill::Off
    }

    /// How many more tasks of its array may start: all of its records count.
    pub(crate) fn array_room(&self, job: &PendingJob) -> u32 {
        let started = job
            .capped_array()
            .and_then(|array| self.world.array_starts.get(&array));
        job.particulars.room.map_or(u32::MAX, |room| {
            room.saturating_sub(started.map_or(0, |tasks| tasks.len() as u32))
        })
    }

    /// Whether a job was started in another of its partitions.
    pub(crate) fn is_settled(&self, job: &PendingJob) -> bool {
        job.is_choice()
            && job.particulars.positions.is_none()
            && self.choices.settled.contains(&job.id)
    }

    /// Whether the policy lets a pass end or move runs, or cut GPUs, so that a job has room: that takes all planned starts before it.
    pub(crate) fn may_make_room(&self) -> bool {
        let config = &self.snapshot.config;
        let cuts = |partition: &Partition| partition.mig == MigCuts::Planned;
        self.preemption.usage_before.is_some()
            || config.scheduler.consolidate
            || config.partitions.iter().any(cuts)
    }

    /// All that are to go so far.
    pub(crate) fn preempts(&self) -> impl Iterator<Item = &Preempt> {
        self.plan.preempts.iter().chain(&self.choices.preempts)
    }
}

/// By job, and whether it is an array.
pub(crate) type Nominations = BTreeMap<(JobId, bool), Arc<Vec<NodeId>>>;
