//! A cluster and its queue as lines of text: each line is an input, some print what came of it.
//!
//! After every input the invariants hold, refused inputs changed nothing, the events replayed from nothing give
//! the same state, every changed record is named by `touched`, and the rows give the state back.

mod lines;
mod tables;

use crate::ctl::state::State;
use crate::ctl::tests::kept_planner::KeptPlanner;
use crate::ctl::tests::promises::{
    new_orders_have_a_new_number, none_is_forgotten_unwritten,
    none_is_written_off_before_the_fence, same, through_json, touched_covers_changes,
};
use crate::ctl::tests::words::{Words, actor};
use crate::ctl::*;
use expect_test::Expect;
use gmodel::config::{ClusterConfig, Partition};
use gmodel::node::Inventory;
use gmodel::run::RunReport;
use gmodel::{Fence, JobId, NodeId, NodeLife, Reason, Timestamp};
use gsched::Plan;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

/// Runs a story and compares what it printed.
pub fn check(story: &str, expect: Expect) {
    let mut world = World::new();
    for line in story
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
    {
        world.line(line);
    }
    expect.assert_eq(&world.out);
}

pub struct World {
    pub state: State,
    /// Fed with the events only.
    replayed: State,
    pub now: Timestamp,
    config: ClusterConfig,
    lives: BTreeMap<NodeId, NodeLife>,
    inventories: BTreeMap<NodeId, Inventory>,
    backup: Option<Rows>,
    /// Reasons as they are in the rows: those of records that an event touched.
    stored: BTreeMap<EntryId, Reason>,
    /// Brought up to date after every input.
    mirror: Mirror,
    planner: KeptPlanner,
    /// What the store says of forgotten jobs; handed in with each submission and update.
    past: Vec<ForgottenJob>,
    pub out: String,
    /// Only the invariants are looked at after an input: what events and rows are for others see to.
    pub is_light: bool,
}

const START: Timestamp = Timestamp::from_secs(1_000_000);

impl World {
    pub fn new() -> Self {
        let config = ClusterConfig {
            name: "test".into(),
            partitions: vec![Partition {
                name: "main".into(),
                is_default: true,
                ..Partition::default()
            }],
            min_job_age_secs: 60, // stories wait for minutes
            ..ClusterConfig::default()
        };
        let state = State::from_rows(Rows::default());
        let mut world = Self {
            replayed: state.clone(),
            state,
            now: START,
            config,
            lives: BTreeMap::new(),
            inventories: BTreeMap::new(),
            backup: None,
            stored: BTreeMap::new(),
            mirror: Mirror::default(),
            planner: KeptPlanner::default(),
            past: Vec::new(),
            out: String::new(),
            is_light: false,
        };
        world.configure();
        world.feed(Input::Started).unwrap();
        world
    }

    fn reload(&mut self) {
        let config = Arc::new(self.config.clone());
        self.feed(Input::Reload { config }).unwrap();
    }

    fn configure(&mut self) {
        let config = Arc::new(self.config.clone());
        self.feed(Input::Configure { config }).unwrap();
    }

    /// One input, and everything that must hold after any.
    pub fn feed(&mut self, input: Input) -> Result<Reply, Refusal> {
        let before = self.state.clone();
        let mut events = Vec::new();
        let shown = format!("{input:?}");
        let reply = handle(&mut self.state, &mut events, input, self.now);
        assert_eq!(
            super::check_state(&self.state),
            [],
            "after {shown}\nevents {events:#?}"
        );
        if self.is_light {
            self.note_stored(&events);
            return reply;
        }
        if reply.is_err() {
            assert!(
                same(&before, &self.state),
                "refused, and yet changed by {shown}"
            );
        }
        for event in &events {
            let json = serde_json::to_string(event).unwrap();
            let read: Event = serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {json}"));
            assert_eq!(&read, event, "events read back as written");
            apply(&mut self.replayed, &read);
        }
        assert!(
            same(&self.replayed, &self.state),
            "the events do not give the state after {shown}"
        );
        touched_covers_changes(&before, &self.state, &events, &shown);
        self.note_stored(&events);
        new_orders_have_a_new_number(&before, &self.state, &shown);
        none_is_forgotten_unwritten(&before, &events, &shown);
        none_is_written_off_before_the_fence(&before, &self.state, &events, &shown);
        self.rows_give_the_state_back(&shown);
        self.mirror_is_the_snapshot(&shown);
        reply
    }

    fn note_stored(&mut self, events: &[Event]) {
        for touched in events.iter().map(Event::touched) {
            if let Some(job) = touched.job.and_then(|id| self.state.job(id)) {
                self.stored.insert(EntryId::Job(job.id), job.reason.clone());
            }
            let of_job = touched
                .job
                .filter(|_| touched.array_of_job)
                .and_then(|id| self.state.job(id)?.task);
            if let Some(array) = touched
                .array
                .or(of_job.map(|task| task.array))
                .and_then(|id| self.state.array(id))
            {
                self.stored
                    .insert(EntryId::Array(array.id), array.reason.clone());
            }
        }
    }

    fn mirror_is_the_snapshot(&mut self, shown: &str) {
        let fresh = snapshot(&self.state, self.now);
        let kept = self.mirror.update(&self.state, self.now);
        assert_eq!(kept.nodes, fresh.nodes, "nodes of the mirror after {shown}");
        assert_eq!(
            kept.running, fresh.running,
            "runs of the mirror after {shown}"
        );
        let sorted = |mut jobs: Vec<gsched::PendingJob>| {
            jobs.sort_by_key(|job| {
                (
                    job.id,
                    job.particulars.positions.is_some(),
                    job.spec.choice(),
                )
            });
            jobs
        };
        assert_eq!(
            sorted(kept.pending.clone()),
            sorted(fresh.pending.clone()),
            "pending of the mirror after {shown}"
        );
        assert!(
            (kept.seq, kept.now) == (fresh.seq, fresh.now)
                && kept.policy == fresh.policy
                && kept.config == fresh.config
        );
    }

    fn rows_give_the_state_back(&self, shown: &str) {
        let loaded = State::from_rows(through_json(self.state.rows()));
        let state = &self.state;
        assert!(
            loaded.jobs.iter().eq(state.jobs.iter()),
            "jobs after {shown}"
        );
        assert!(
            loaded.arrays.iter().eq(state.arrays.iter()),
            "arrays after {shown}"
        );
        assert!(
            loaded.runs.iter().eq(state.runs.iter()),
            "runs after {shown}"
        );
        for (node, known) in loaded.nodes.values().zip(state.nodes.values()) {
            let known = Node {
                generation: node.generation,
                ..known.clone()
            };
            assert_eq!(*node, known, "node after {shown}");
        }
        assert_eq!(
            loaded.index.node_names, state.index.node_names,
            "names after {shown}"
        );
        assert_eq!(
            loaded.index.client_keys, state.index.client_keys,
            "client keys after {shown}"
        );
        let finished = |state: &State| {
            state
                .index
                .finished
                .iter()
                .map(|(_, id)| *id)
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(finished(&loaded), finished(state), "finished after {shown}");
        assert_eq!(
            loaded.index.preparing, state.index.preparing,
            "preparing after {shown}"
        );
        assert_eq!(loaded.index.tally, state.index.tally, "tally after {shown}");
        assert_eq!(
            loaded.index.dependents, state.index.dependents,
            "dependants after {shown}"
        );
        let due = |state: &State| {
            state
                .index
                .due
                .iter()
                .filter(|(at, _)| *at > self.now)
                .copied()
                .collect::<BTreeSet<_>>()
        };
        assert!(
            due(&loaded).is_subset(&due(state)),
            "due after {shown}: {:?} {:?}",
            loaded.index.due,
            state.index.due
        );
        assert_eq!(
            loaded.tokens.joins, state.tokens.joins,
            "tokens after {shown}"
        );
        assert_eq!(
            loaded.tokens.users, state.tokens.users,
            "tokens of users after {shown}"
        );
        assert_eq!(
            loaded.index.of_token, state.index.of_token,
            "jobs of tokens after {shown}"
        );
        let open = |state: &State| {
            let later = state.index.not_yet.iter().filter(|(at, id)| {
                let job = state
                    .job(*id)
                    .filter(|j| j.state == gmodel::JobState::Pending);
                let begin = job.map(|job| (job.eligible, job.spec.request.switches));
                let begin = begin.or(state
                    .array(*id)
                    .map(|array| (array.eligible, array.spec.request.switches)));
                let is = |(eligible, switches): (Timestamp, Option<gmodel::job::Switches>)| {
                    *at == eligible
                        || switches.is_some_and(|wanted| wanted.waits_until(eligible) == Some(*at))
                };
                let tries = job.is_some_and(|job| job.tries().any(|one| one == *at));
                *at > self.now && (begin.is_some_and(is) || tries)
            });
            later.copied().collect::<BTreeSet<_>>()
        };
        assert_eq!(open(&loaded), open(state), "begin times after {shown}");
    }

    /// Passes of the planner until nothing more starts; then every pending job has a reason.
    pub fn plan(&mut self) -> Vec<JobId> {
        let mut started = Vec::new();
        loop {
            let plan = self.planner.plan(&self.state, self.now);
            let starts = self.enter(plan);
            if starts.is_empty() {
                break;
            }
            started.extend(starts);
        }
        for job in self
            .state
            .jobs
            .values()
            .filter(|job| job.state == gmodel::JobState::Pending)
        {
            assert_ne!(
                job.reason.code,
                gmodel::ReasonCode::None,
                "job {} waits without a reason",
                job.id
            );
        }
        for array in self
            .state
            .arrays
            .values()
            .filter(|array| !array.pending.is_empty())
        {
            assert_ne!(
                array.reason.code,
                gmodel::ReasonCode::None,
                "array {} waits without a reason",
                array.id
            );
        }
        started
    }

    /// A plan that is entered only when something else came first, whatever it starts by then.
    pub fn plan_and_enter_after(&mut self, line: &str) {
        let plan = self.planner.plan(&self.state, self.now);
        self.line(line);
        self.feed(Input::Plan { plan }).unwrap();
    }

    /// Gives away what became free, where that can be said without a pass over the whole queue.
    pub fn quick_plan(&mut self) {
        if let Some(plan) = self.planner.quick(&self.state, self.now) {
            self.enter(plan);
        }
    }

    /// What is planned from the state as it is fits: all of it is carried out. (Tasks with a record of their own, and the rest of
    /// their array, do not know in a pass of each other's starts: what is beyond the array's cap is dropped.)
    fn enter(&mut self, plan: Plan) -> Vec<JobId> {
        let starts: Vec<JobId> = plan.starts.iter().map(|start| start.job).collect();
        let shown = format!("{plan:?}");
        self.feed(Input::Plan { plan }).unwrap();
        let is_capped = |id: JobId| {
            self.state.array_of(id).is_some_and(|(array, _)| {
                array
                    .tasks
                    .limit()
                    .is_some_and(|most| array.own_live >= most)
            })
        };
        // A new controller holds nominated nodes until all nodes have reported.
        let returns = crate::ctl::node::registration::nodes_return(&self.state, self.now);
        for id in starts.iter().filter(|id| !returns && !is_capped(**id)) {
            assert!(
                self.state.job(*id).is_some_and(|job| job.live.is_some()),
                "job {id} was not started by {shown}"
            );
        }
        let lives = |id: &JobId| self.state.job(*id).is_some_and(|job| job.live.is_some());
        starts.into_iter().filter(lives).collect()
    }

    /// Time passes; deadlines are met on the way.
    pub fn wait(&mut self, secs: i64) {
        let until = self.now.plus_secs(secs);
        while let Some(at) = next_deadline(&self.state).filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.feed(Input::Wake).unwrap();
            let next = next_deadline(&self.state);
            assert!(
                next.is_none_or(|next| next > at),
                "the deadline {at} is still there after it was met"
            );
        }
        self.now = until;
    }

    /// The controller ends and starts again from its rows.
    pub fn restart(&mut self, mut rows: Rows) {
        rows.jobs
            .iter_mut()
            .for_each(|job| job.reason = self.stored[&EntryId::Job(job.id)].clone());
        rows.arrays
            .iter_mut()
            .for_each(|array| array.reason = self.stored[&EntryId::Array(array.id)].clone());
        self.state = State::from_rows(through_json(rows));
        self.planner = KeptPlanner::default();
        self.replayed = self.state.clone();
        self.configure();
        self.feed(Input::Started).unwrap();
    }

    fn say(&mut self, text: impl std::fmt::Display) {
        writeln!(self.out, "{text}").unwrap();
    }

    fn command(&mut self, words: &Words, command: Command) {
        let actor = Actor {
            token: words.parse("token").map(gmodel::TokenId),
            ..actor(words.get("user").unwrap_or("root"))
        };
        self.command_as(actor, command);
    }

    fn command_by(&mut self, user: &str, command: Command) {
        self.command_as(actor(user), command);
    }

    fn command_as(&mut self, actor: Actor, command: Command) {
        match self.feed(Input::Command { actor, command }) {
            Ok(Reply::Submitted {
                id,
                notes,
                repeated,
            }) => {
                let repeated = if repeated { " again" } else { "" };
                self.say(format_args!("job {id}{repeated}"));
                notes
                    .iter()
                    .for_each(|note| self.say(format_args!("  note: {note}")));
            }
            Ok(Reply::Each { results }) => {
                let refused: Vec<_> = results
                    .into_iter()
                    .filter_map(|result| result.refusal)
                    .collect();
                refused
                    .iter()
                    .for_each(|refusal| self.say(format_args!("refused: {refusal}")));
            }
            Ok(Reply::Joined {
                node, name, admin, ..
            }) => {
                let admin = if admin { ", admin" } else { "" };
                self.say(format_args!("joined as {name}, node {node}{admin}"));
            }
            Ok(Reply::Step { parts }) => {
                let part = |node: &StepNode| match &node.own {
                    Some(own) => format!(
                        "{}:{} cpus={:?} gpus={:?}",
                        node.name,
                        node.ranks.len(),
                        own.cpus,
                        own.gpus
                    ),
                    None => node.name.clone(),
                };
                for StartedStep {
                    run, step, layout, ..
                } in &parts
                {
                    let nodes: Vec<String> = layout.iter().map(part).collect();
                    self.say(format_args!("step {run}.{step} on {}", nodes.join(",")));
                }
                if parts.len() > 1 {
                    let nodes = parts.iter().flat_map(|part| &part.layout);
                    let ranks: Vec<_> = nodes.map(|node| &node.ranks).collect();
                    self.say(format_args!("ranks {ranks:?}"));
                }
            }
            Ok(Reply::StepWaits { text, holders, .. }) => {
                let holders: Vec<String> = holders
                    .iter()
                    .map(|hold| format!("{} at {}", hold.step, hold.connect))
                    .collect();
                self.say(format_args!("waits: {text} (steps {})", holders.join(", ")));
            }
            Ok(_) => {}
            Err(refusal) => self.say(format_args!("refused: {refusal}")),
        }
    }

    pub fn hello(&mut self, node: NodeId, fence: Fence, runs: Vec<RunReport>) {
        let (life, inventory) = (self.lives[&node].clone(), self.inventories[&node].clone());
        let report = NodeReport::Hello {
            life,
            fence,
            inventory,
            runs,
        };
        self.feed(Input::Node { node, report }).unwrap();
    }

    fn name(&self, id: NodeId) -> &str {
        self.state.node(id).map_or("?", |node| &node.name)
    }
}
