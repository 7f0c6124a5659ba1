//! A trace driven through the real `gcore` and `gsched` in virtual time, over nodes that only say that they run things.
//!
//! Order of one instant: first the ends, then the arrivals in the order of the file, then one pass. Owns the hollow
//! nodes and the queue of what happens next; every decision is the scheduler's. It has no clock: the program hands one in.

use crate::hardware::Hardware;
use crate::ledger::Ledger;
use crate::outcome::{Fate, JobOutcome, Outcome, PreemptedRun};
use crate::trace::TraceJob;
use crate::trace_spec::{ClusterTraits, spec_of};
use gcore::ctl::{
    Actor, Command, Event, Input, Mirror, NodeReport, Refusal, Reply, State, apply, handle,
};
use gmodel::checkpoint::CheckpointMark;
use gmodel::config::ClusterConfig;
use gmodel::node::Role;
use gmodel::run::{Allocation, EndCause, RunEnd, RunPhase, RunReport};
use gmodel::{ExitCode, Fence, JobId, NodeId, NodeLife, Reason, RunId, Timestamp};
use gsched::{Engine, WorkBudget};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// The first submission is here on the simulated clock.
pub const BASE: Timestamp = Timestamp::from_secs(1_700_000_000);
/// So many windows and periods in vain end the run with jobs still pending: a year of days and nights.
const MAX_IDLE_TURNS: u32 = 800;
/// Ends between two looks for finished jobs to forget.
const FORGET_EVERY: u32 = 256;
/// Passes without a start that may follow each other at one instant.
const MAX_IDLE_PASSES: u32 = 3;

/// How a trace is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub runtime: Runtime,
    /// A run that reaches its limit is ended there, as a real node would. Otherwise it runs as long as it did.
    pub kill_at_limit: bool,
    /// Work is safe at every multiple of this since a run's start; `None`: a run that is preempted begins again.
    pub marks_every_ms: Option<i64>,
    /// The date of the trace's second 0; `None`: [`BASE`].
    pub begin: Option<Timestamp>,
    pub budget: WorkBudget,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            runtime: Runtime::Limit,
            kill_at_limit: false,
            marks_every_ms: None,
            begin: None,
            budget: WorkBudget {
                node_probes: u64::MAX,
                starts: usize::MAX,
            },
        }
    }
}

/// What the scheduler believes of how long a job will run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Runtime {
    /// Its time limit; a job without one has that which the controller gives it.
    #[default]
    Limit,
    /// Exactly how long it runs.
    Actual,
}

/// Watches the run of a trace, and changes nothing.
pub trait Observer {
    /// Facts as they come; `state` has them already.
    fn facts(&mut self, state: &State, events: &[Event]);
    /// Everything of one instant has happened.
    fn rest(&mut self, state: &State, now: Timestamp);
}

/// No observer.
impl Observer for () {
    fn facts(&mut self, _: &State, _: &[Event]) {}
    fn rest(&mut self, _: &State, _: Timestamp) {}
}

/// Runs jobs on a cluster. `clock` gives nanoseconds and is asked around each pass only.
///
/// # Errors
/// A GPU or CPU was given twice, or a start makes no sense: a bug of the scheduler or the core.
pub fn run(
    jobs: &[&TraceJob],
    hardware: &Hardware,
    config: &ClusterConfig,
    settings: &Settings,
    clock: &mut dyn FnMut() -> u64,
) -> Result<Outcome, String> {
    run_watched(jobs, hardware, config, settings, clock, &mut ())
}

/// As [`run`], with an observer.
///
/// # Errors
/// As [`run`].
pub fn run_watched(
    jobs: &[&TraceJob],
    hardware: &Hardware,
    config: &ClusterConfig,
    settings: &Settings,
    clock: &mut dyn FnMut() -> u64,
    onlooker: &mut dyn Observer,
) -> Result<Outcome, String> {
    let mut sim = TraceRun::new(jobs, hardware, config, settings, onlooker);
    while let Some(at) = sim.next_instant() {
        sim.instant(at, clock);
        sim.onlooker.rest(&sim.state, sim.now());
        if let Some(violation) = &sim.out.ledger.violation {
            return Err(format!("at {} s: {violation}", at / 1000));
        }
    }
    sim.finish()
}

struct TraceRun<'a> {
    jobs: &'a [&'a TraceJob],
    settings: &'a Settings,
    cluster: ClusterTraits,
    onlooker: &'a mut dyn Observer,
    state: State,
    /// Kept from pass to pass, as the daemon's planner does. Pending reasons are computed at the end only.
    engine: Engine,
    mirror: Mirror,
    events: Vec<Event>,
    arrivals: Arrivals,
    /// What ends when, which run of which job.
    ends: BinaryHeap<Reverse<(i64, u32, u32)>>,
    live: BTreeMap<RunId, LiveRun>,
    ids: SubmittedIds,
    /// Work done and safe, by place in `jobs`; only of those that were preempted.
    saved_ms: BTreeMap<u32, i64>,
    waiting: usize,
    /// Instants since anything started, ended or came.
    idle_turns: u32,
    ended_since_forget: u32,
    /// The policy may end runs for others.
    preempts: bool,
    now_ms: i64,
    out: Outcome,
}

/// The jobs by their submission.
struct Arrivals {
    /// Places in `jobs`.
    order: Vec<u32>,
    /// How many have come.
    come: usize,
}

impl Arrivals {
    /// Of all jobs that ran.
    fn of(jobs: &[&TraceJob]) -> Self {
        let mut order: Vec<u32> = (0..jobs.len() as u32)
            .filter(|at| jobs[*at as usize].run_ms.is_some())
            .collect();
        order.sort_by_key(|at| jobs[*at as usize].submit_ms);
        Self { order, come: 0 }
    }

    fn next(&self) -> Option<u32> {
        self.order.get(self.come).copied()
    }
}

/// The ids that the controller gave, one after the other.
struct SubmittedIds {
    first: u64,
    /// Place in `jobs` of the job with each id, beginning at the first.
    places: Vec<u32>,
    /// Id by place in `jobs`; 0 before its submission.
    by_place: Vec<JobId>,
}

impl SubmittedIds {
    fn add(&mut self, place: u32, id: JobId) {
        assert_eq!(
            id.0,
            self.first + self.places.len() as u64,
            "ids follow each other"
        );
        self.places.push(place);
        self.by_place[place as usize] = id;
    }

    fn place(&self, id: JobId) -> u32 {
        self.places[(id.0 - self.first) as usize]
    }
}

/// A run that the hollow nodes pretend to do.
#[derive(Debug)]
struct LiveRun {
    job: u32,
    allocation: Allocation,
    start_ms: i64,
    stop: Option<StopProgress>,
    /// Multiples of `marks_every` that were reported.
    marks: u32,
}

impl LiveRun {
    /// `left_ms`: how long it had to run.
    fn end(&self, ran_ms: i64, left_ms: i64) -> (EndCause, ExitCode) {
        let signal = |signal| ExitCode { code: 0, signal };
        match self.stop {
            // It ended by itself at this very moment, or before.
            _ if ran_ms >= left_ms => (EndCause::Exited, ExitCode::default()),
            Some(_) => (EndCause::Stopped, signal(15)),
            None => (EndCause::TimeLimit, signal(9)),
        }
    }
}

/// A run that the controller wants to end.
#[derive(Clone, Copy, Debug)]
struct StopProgress {
    /// It was told to write its checkpoint, and did at once.
    told: bool,
}

impl<'a> TraceRun<'a> {
    fn new(
        jobs: &'a [&'a TraceJob],
        hardware: &'a Hardware,
        config: &ClusterConfig,
        settings: &'a Settings,
        onlooker: &'a mut dyn Observer,
    ) -> Self {
        let arrivals = Arrivals::of(jobs);
        let begin_ms = arrivals.next().map_or(0, |at| jobs[at as usize].submit_ms);
        let outcome = |job: &&TraceJob| JobOutcome {
            submit_ms: job.submit_ms,
            ..JobOutcome::default()
        };
        let mut sim = Self {
            jobs,
            settings,
            cluster: ClusterTraits::of(hardware),
            onlooker,
            state: State::default(),
            engine: Engine::silent(),
            mirror: Mirror::default(),
            events: Vec::new(),
            arrivals,
            ends: BinaryHeap::new(),
            live: BTreeMap::new(),
            ids: SubmittedIds {
                first: 0,
                places: Vec::with_capacity(jobs.len()),
                by_place: vec![JobId(0); jobs.len()],
            },
            saved_ms: BTreeMap::new(),
            waiting: 0,
            idle_turns: 0,
            ended_since_forget: 0,
            preempts: config.policy.has_quotas()
                || config
                    .policy
                    .qos
                    .values()
                    .any(|qos| !qos.preempt.is_empty()),
            now_ms: begin_ms,
            out: Outcome {
                jobs: jobs.iter().map(outcome).collect(),
                ledger: Ledger::new(hardware, begin_ms),
                begin_ms,
                end_ms: begin_ms,
                hash: 0xcbf2_9ce4_8422_2325,
                ..Outcome::default()
            },
        };
        sim.state = started_state(hardware, config, sim.now());
        sim.ids.first = sim.state.next_job;
        sim
    }

    fn now(&self) -> Timestamp {
        self.at(self.now_ms)
    }

    /// The date of a moment of the trace.
    fn at(&self, ms: i64) -> Timestamp {
        self.settings.begin.unwrap_or(BASE).plus_millis(ms)
    }

    fn next_instant(&self) -> Option<i64> {
        let end = self.ends.peek().map(|Reverse((at, ..))| *at);
        let arrival = self.arrivals.next();
        let arrival = arrival.map(|at| self.jobs[at as usize].submit_ms);
        let later = self
            .state
            .index
            .not_yet
            .first()
            .map(|(at, _)| at.since_millis(self.at(0)));
        let later = later
            .filter(|_| self.waiting > 0)
            .map(|at| at.max(self.now_ms));
        [end, arrival, later, self.next_turn()]
            .into_iter()
            .flatten()
            .min()
    }

    /// When the next reservation window opens or closes, or the next budget period begins: pending jobs may start then.
    fn next_turn(&self) -> Option<i64> {
        if self.waiting == 0 || self.idle_turns >= MAX_IDLE_TURNS {
            return None;
        }
        let (now, policy) = (self.now(), &self.state.policy);
        let windows = policy
            .reservations
            .values()
            .filter_map(|one| gpolicy::window::next(one, now));
        let turns = windows.map(|one| if one.from > now { one.from } else { one.to });
        let budgets = policy
            .accounts
            .values()
            .flat_map(|account| &account.budgets);
        let periods = budgets.map(|budget| self.state.usage.period_bounds(budget.period, now).1);
        turns
            .chain(periods)
            .min()
            .map(|at| at.since_millis(self.at(0)))
    }

    fn instant(&mut self, at: i64, clock: &mut dyn FnMut() -> u64) {
        self.out.ledger.pass_to(at);
        self.now_ms = at;
        self.idle_turns += 1;
        while let Some(Reverse((_, job, attempt))) = self
            .ends
            .peek()
            .copied()
            .filter(|Reverse((end, ..))| *end <= at)
        {
            self.ends.pop();
            self.end_of_run(job, attempt);
        }
        while let Some(job) = self.arrivals.next() {
            if self.jobs[job as usize].submit_ms > at {
                break;
            }
            self.arrivals.come += 1;
            self.arrival(job);
        }
        let now = self.now();
        let due = self
            .state
            .index
            .not_yet
            .first()
            .is_some_and(|(at, _)| *at <= now);
        if due || self.ended_since_forget >= FORGET_EVERY {
            self.ended_since_forget = 0;
            self.tell(Input::Wake);
        }
        if let Some(every_ms) = self
            .settings
            .marks_every_ms
            .filter(|_| self.preempts && self.waiting > 0)
        {
            self.tell_marks(every_ms);
        }
        let mut idle = 0;
        while self.waiting > 0 && self.pass(clock) && idle < MAX_IDLE_PASSES {
            idle += 1;
        }
        self.out.ledger.sample(self.waiting);
    }

    /// One pass. Whether another at the same instant may do more: this one was cut short.
    fn pass(&mut self, clock: &mut dyn FnMut() -> u64) -> bool {
        let begun = clock();
        let now = self.now();
        self.mirror.update(&self.state, now);
        let (picture, changes) = self.mirror.picture().expect("it was just taken");
        let plan = self
            .engine
            .plan_changed(picture, Some(changes), self.settings.budget);
        self.mirror.forget_changes();
        self.out.pass_nanos.push(clock().saturating_sub(begun));
        self.out.passes += 1;
        let again = plan.cut_short || plan.again;
        self.tell(Input::Plan { plan });
        again
    }

    fn arrival(&mut self, at: u32) {
        let job = self.jobs[at as usize];
        let spec = Box::new(spec_of(
            job,
            &self.state.config,
            self.settings,
            self.cluster,
        ));
        let actor = actor_of(job, &self.state.config);
        match self.give(Input::Command {
            actor,
            command: Command::Submit {
                spec,
                client_key: None,
            },
        }) {
            Ok(Reply::Submitted { id, .. }) => {
                self.ids.add(at, id);
                self.waiting += 1;
            }
            Ok(_) => unreachable!("a submission is answered with its id"),
            Err(refusal) => self.out.jobs[at as usize].fate = Fate::Refused(refusal.text),
        }
    }

    fn end_of_run(&mut self, job: u32, attempt: u32) {
        let run = RunId::new(self.ids.by_place[job as usize], attempt);
        let Some(live) = self.live.remove(&run) else {
            return;
        };
        let trace_job = self.jobs[job as usize];
        let ran_ms = self.now_ms - live.start_ms;
        let (cause, exit) = live.end(ran_ms, self.left_ms(job));
        let told = live.stop.is_some_and(|stop| stop.told);
        if told {
            self.mark(run, &live, live.marks + 1, self.now_ms);
        }
        let out = &mut self.out.jobs[job as usize];
        out.end_ms = self.now_ms;
        match cause {
            EndCause::Stopped => {
                let marked = self
                    .settings
                    .marks_every_ms
                    .map_or(0, |every| ran_ms / every.max(1) * every);
                let saved = if told { ran_ms } else { marked };
                out.fate = Fate::Cancelled;
                out.preemptions += 1;
                out.preempted.push(PreemptedRun {
                    start_ms: live.start_ms,
                    end_ms: self.now_ms,
                    nodes: out.nodes.clone(),
                });
                out.lost += u128::from(trace_job.gpu_milli) * (ran_ms - saved).max(0) as u128;
                *self.saved_ms.entry(job).or_default() += saved;
            }
            EndCause::TimeLimit => out.fate = Fate::TimedOut,
            _ => out.fate = Fate::Finished,
        }
        let started = Some(self.at(live.start_ms));
        let end = Arc::new(RunEnd {
            cause,
            exit,
            started,
            ended: Some(self.now()),
            ..RunEnd::default()
        });
        for share in &live.allocation {
            let place = place_of(share.node);
            self.out.ledger.give(place, share);
            self.report(share.node, run, RunPhase::Clean(end.clone()));
        }
        self.ended_since_forget += 1;
    }

    /// Tells of the marks that running jobs made since the last time: only preemption asks for them.
    fn tell_marks(&mut self, every_ms: i64) {
        let number = |live: &LiveRun| {
            u32::try_from((self.now_ms - live.start_ms) / every_ms.max(1)).unwrap_or(u32::MAX)
        };
        let new: Vec<(RunId, u32)> = self
            .live
            .iter()
            .filter(|(_, live)| live.marks < number(live))
            .map(|(run, live)| (*run, number(live)))
            .collect();
        for (run, number) in new {
            let Some(mut live) = self.live.remove(&run) else {
                continue;
            };
            self.mark(
                run,
                &live,
                number,
                live.start_ms + i64::from(number) * every_ms,
            );
            live.marks = number;
            self.live.insert(run, live);
        }
    }

    fn mark(&mut self, run: RunId, live: &LiveRun, number: u32, at_ms: i64) {
        let Some(share) = live.allocation.first() else {
            return;
        };
        let mark = Some(CheckpointMark {
            number,
            at: self.at(at_ms),
            note: String::new(),
        });
        let phase = RunPhase::Running {
            started: self.at(live.start_ms),
        };
        let report = NodeReport::Runs {
            runs: vec![RunReport {
                run,
                phase,
                mark,
                sent: None,
            }],
        };
        self.tell(Input::Node {
            node: share.node,
            report,
        });
    }

    fn report(&mut self, node: NodeId, run: RunId, phase: RunPhase) {
        let report = NodeReport::Runs {
            runs: vec![RunReport::new(run, phase)],
        };
        self.tell(Input::Node { node, report });
    }

    /// An input that the core cannot refuse.
    fn tell(&mut self, input: Input) {
        self.give(input).expect("only commands are refused");
    }

    /// Hands an input to the core and lets the nodes react to what follows from it.
    fn give(&mut self, input: Input) -> Result<Reply, Refusal> {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let now = self.now();
        let reply = handle(&mut self.state, &mut events, input, now);
        self.onlooker.facts(&self.state, &events);
        let mut ready = Vec::new();
        for event in &events {
            match event {
                Event::RunPlaced {
                    run, allocation, ..
                } => {
                    self.placed(*run, allocation);
                    if allocation.len() > 1 {
                        ready.push(*run);
                    }
                }
                Event::RunGo { run, .. } => self.started(*run),
                Event::RunStopping { run, stop } => self.stopping(
                    *run,
                    StopProgress {
                        told: stop.checkpoint_secs > 0,
                    },
                ),
                Event::RunEnded { run, outcome, .. } if outcome.requeue.is_some() => {
                    self.waiting += 1;
                    let job = self.ids.place(run.job);
                    self.out.jobs[job as usize].fate = Fate::Skipped;
                }
                _ => {}
            }
        }
        self.events = events;
        for run in ready {
            let nodes: Vec<NodeId> = self.live[&run]
                .allocation
                .iter()
                .map(|share| share.node)
                .collect();
            for node in nodes {
                self.report(node, run, RunPhase::Ready);
            }
        }
        reply
    }

    fn placed(&mut self, run: RunId, allocation: &Allocation) {
        let job = self.ids.place(run.job);
        self.waiting -= 1;
        self.idle_turns = 0;
        for share in allocation {
            self.out.ledger.take(place_of(share.node), share);
        }
        self.note_start(run, allocation);
        let out = &mut self.out.jobs[job as usize];
        out.nodes = allocation
            .iter()
            .map(|share| place_of(share.node) as u32)
            .collect();
        out.gpu_milli = allocation.iter().map(|share| share.gpus.milli()).sum();
        out.cpus = allocation.iter().map(|share| u64::from(share.cpus)).sum();
        if out.preemptions == 0 {
            out.start_ms = self.now_ms;
        }
        out.last_start_ms = self.now_ms;
        self.live.insert(
            run,
            LiveRun {
                job,
                allocation: allocation.clone(),
                start_ms: self.now_ms,
                stop: None,
                marks: 0,
            },
        );
    }

    /// The go: hollow nodes run at once, for as long as the job did.
    fn started(&mut self, run: RunId) {
        let Some(live) = self.live.get_mut(&run) else {
            return;
        };
        live.start_ms = self.now_ms;
        let job = live.job;
        let left_ms = self.left_ms(job);
        let limit_ms = self.limit_ms(job, run.job);
        self.out.jobs[job as usize].limit_ms = limit_ms;
        let runs_ms = left_ms.min(
            limit_ms
                .filter(|_| self.settings.kill_at_limit)
                .unwrap_or(i64::MAX),
        );
        self.ends
            .push(Reverse((self.now_ms + runs_ms, job, run.attempt)));
    }

    fn stopping(&mut self, run: RunId, stop: StopProgress) {
        let Some(live) = self.live.get_mut(&run) else {
            return;
        };
        live.stop = Some(stop);
        self.ends
            .push(Reverse((self.now_ms, live.job, run.attempt)));
    }

    /// The limit that its node would hold it to: the trace's, or else the controller's.
    fn limit_ms(&self, job: u32, id: JobId) -> Option<i64> {
        let given = || {
            self.state
                .jobs
                .get(id)?
                .limit_secs
                .map(|secs| i64::from(secs) * 1000)
        };
        self.jobs[job as usize]
            .limit_ms
            .or_else(|| given().filter(|_| self.settings.runtime == Runtime::Limit))
    }

    /// What is left to do of a job.
    fn left_ms(&self, job: u32) -> i64 {
        let whole = self.jobs[job as usize].run_ms.unwrap_or(0);
        whole - self.saved_ms.get(&job).copied().unwrap_or(0)
    }

    fn note_start(&mut self, run: RunId, allocation: &Allocation) {
        let mut hash = self.out.hash;
        let mut mix = |word: u64| {
            for byte in word.to_le_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        mix(run.job.0);
        mix(u64::from(run.attempt));
        mix(self.now_ms as u64);
        for share in allocation {
            mix(u64::from(share.node.0));
            share.gpus.slots().for_each(|slot| mix(u64::from(slot.0)));
        }
        self.out.hash = hash;
    }

    fn finish(mut self) -> Result<Outcome, String> {
        self.out.end_ms = self.now_ms;
        let told: BTreeMap<JobId, Reason> = match self.waiting {
            0 => BTreeMap::new(),
            _ => Engine::default()
                .plan(
                    self.mirror.update(&self.state, self.now()),
                    self.settings.budget,
                )
                .reasons
                .into_iter()
                .collect(),
        };
        for (at, job) in self.ids.places.iter().enumerate() {
            let out = &mut self.out.jobs[*job as usize];
            if out.fate == Fate::Skipped {
                let id = JobId(self.ids.first + at as u64);
                let known = || self.state.jobs.get(id).map(|job| job.reason.clone());
                let reason = told.get(&id).cloned().or_else(known).unwrap_or_default();
                out.fate = Fate::NeverStarted(format!("{}: {}", reason.code, reason.text));
            }
        }
        match gcore::ctl::check(&self.state).first() {
            Some(violation) => Err(violation.to_string()),
            None => Ok(self.out),
        }
    }
}

/// Node ids count from 1 in the order of the hardware.
fn place_of(node: NodeId) -> usize {
    node.0 as usize - 1
}

/// A controller that knows its nodes and has no jobs yet.
pub fn started_state(hardware: &Hardware, config: &ClusterConfig, now: Timestamp) -> State {
    let mut state = State::from_rows(gcore::ctl::Rows::default());
    let mut events = Vec::new();
    let config = Arc::new(ClusterConfig {
        partitions: hardware.partitions.clone(),
        ..config.clone()
    });
    let mut inputs = vec![Input::Configure { config }];
    for (at, node) in hardware.nodes.iter().enumerate() {
        let id = NodeId(at as u32 + 1);
        apply(
            &mut state,
            &Event::NodeJoined {
                node: id,
                name: node.name.clone(),
                role: Role::Compute,
                at: now,
            },
        );
        let life = NodeLife {
            boot: "hollow".into(),
            spool: "hollow".into(),
        };
        let inventory = node.inventory();
        let report = NodeReport::Hello {
            life,
            fence: Fence::default(),
            inventory,
            runs: Vec::new(),
        };
        inputs.push(Input::Node { node: id, report });
    }
    for input in inputs {
        handle(&mut state, &mut events, input, now).expect("a simulated node is taken");
        events.clear();
    }
    state
}

/// In each group that partitions are for: the job of a trace was let in.
fn actor_of(job: &TraceJob, config: &ClusterConfig) -> Actor {
    let user = if job.user.is_empty() {
        "user"
    } else {
        &job.user
    };
    // Only an operator sets a priority, or a nice below 0.
    let operator = job
        .asked
        .as_ref()
        .is_some_and(|asked| asked.priority.is_some() || asked.nice < 0);
    Actor {
        user: user.to_owned(),
        uid: 1000,
        gid: 1000,
        operator,
        via: None,
        groups: config
            .partitions
            .iter()
            .flat_map(|one| one.allow_groups.iter().map(|group| (group.clone(), true)))
            .collect(),
        token: None,
    }
}
