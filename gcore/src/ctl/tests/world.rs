//! A cluster and its queue as lines of text: each line is an input, some print what came of it.
//!
//! After every input the invariants hold, refused inputs changed nothing, the events replayed from nothing give
//! the same state, every changed record is named by `touched`, and the rows give the state back.

use super::kept_planner::KeptPlanner;
use super::promises::{
    new_orders_have_a_new_number, none_is_forgotten_unwritten,
    none_is_written_off_before_the_fence, same, through_json, touched_covers_changes,
};
use super::words::{
    Words, actor, inventory, phase, policy_change, request_change, set_config, set_partition, spec,
    target,
};
use crate::ctl::state::{JoinToken, State};
use crate::ctl::*;
use expect_test::Expect;
use gmodel::array_spec::ArraySpec;
use gmodel::checkpoint::CheckpointMark;
use gmodel::config::{ClusterConfig, Partition};
use gmodel::gpu_request::GpuRequest;
use gmodel::idle::IdleReport;
use gmodel::node::{Inventory, Role};
use gmodel::policy::{Account, Policy, PreemptMode};
use gmodel::run::{RunPhase, RunReport, RunTarget, StopCause};
use gmodel::step_share::{GpuCountUnit, StepGpus, StepShareRequest};
use gmodel::{Fence, JobId, NodeId, NodeLife, Reason, RunId, Seq, Timestamp};
use gsched::{Plan, Preempt};
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
    stored: BTreeMap<Dependent, Reason>,
    /// Brought up to date after every input.
    mirror: Mirror,
    planner: KeptPlanner,
    /// What the store says of forgotten jobs; handed in with each submission and update.
    past: Vec<PastJob>,
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
            if let Some(job) = touched.job.and_then(|id| self.state.jobs.get(id)) {
                self.stored
                    .insert(Dependent::Job(job.id), job.reason.clone());
            }
            let of_job = touched
                .job
                .filter(|_| touched.array_of_job)
                .and_then(|id| self.state.jobs.get(id)?.task);
            if let Some(array) = touched
                .array
                .or(of_job.map(|task| task.array))
                .and_then(|id| self.state.arrays.get(id))
            {
                self.stored
                    .insert(Dependent::Array(array.id), array.reason.clone());
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
            jobs.sort_by_key(|job| (job.id, job.positions.is_some(), job.spec.choice()));
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
        assert_eq!(loaded.node_names, state.node_names, "names after {shown}");
        assert_eq!(
            loaded.client_keys, state.client_keys,
            "client keys after {shown}"
        );
        let finished = |state: &State| {
            state
                .finished
                .iter()
                .map(|(_, id)| *id)
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(finished(&loaded), finished(state), "finished after {shown}");
        assert_eq!(loaded.preparing, state.preparing, "preparing after {shown}");
        assert_eq!(loaded.tally, state.tally, "tally after {shown}");
        assert_eq!(
            loaded.dependents, state.dependents,
            "dependants after {shown}"
        );
        let due = |state: &State| {
            state
                .due
                .iter()
                .filter(|(at, _)| *at > self.now)
                .copied()
                .collect::<BTreeSet<_>>()
        };
        assert!(
            due(&loaded).is_subset(&due(state)),
            "due after {shown}: {:?} {:?}",
            loaded.due,
            state.due
        );
        assert_eq!(loaded.tokens, state.tokens, "tokens after {shown}");
        let open = |state: &State| {
            let later = state.not_yet.iter().filter(|(at, id)| {
                let job = state
                    .jobs
                    .get(*id)
                    .filter(|j| j.state == gmodel::JobState::Pending);
                let begin = job.map(|job| (job.eligible, job.spec.request.switches));
                let begin = begin.or(state
                    .arrays
                    .get(*id)
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
        // What a new controller keeps for others until their nodes are back is nobody's.
        let returns = crate::ctl::preempt::nodes_return(&self.state, self.now);
        for id in starts.iter().filter(|id| !returns && !is_capped(**id)) {
            assert!(
                self.state
                    .jobs
                    .get(*id)
                    .is_some_and(|job| job.live.is_some()),
                "job {id} was not started by {shown}"
            );
        }
        let lives = |id: &JobId| {
            self.state
                .jobs
                .get(*id)
                .is_some_and(|job| job.live.is_some())
        };
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
            .for_each(|job| job.reason = self.stored[&Dependent::Job(job.id)].clone());
        rows.arrays
            .iter_mut()
            .for_each(|array| array.reason = self.stored[&Dependent::Array(array.id)].clone());
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
        self.command_by(words.get("user").unwrap_or("root"), command);
    }

    fn command_by(&mut self, user: &str, command: Command) {
        match self.feed(Input::Command {
            actor: actor(user),
            command,
        }) {
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
            Ok(Reply::Step { run, step, layout }) => {
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
                let nodes: Vec<String> = layout.iter().map(part).collect();
                self.say(format_args!("step {run}.{step} on {}", nodes.join(",")));
            }
            Ok(Reply::StepWaits { text, holders }) => {
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

    pub fn line(&mut self, line: &str) {
        let words = Words::of(line);
        match words.verb {
            "config" => {
                set_config(&mut self.config, &words);
                self.configure();
            }
            "partition" => {
                set_partition(&mut self.config, &words);
                self.configure();
            }
            "licence" => {
                let licences = words
                    .options
                    .iter()
                    .filter_map(|(name, count)| Some((name.to_string(), count.parse().ok()?)));
                self.config.scheduler.licences = licences.collect();
                self.configure();
            }
            "account" | "qos" | "user" | "reservation" => {
                let change = policy_change(&words, self.now);
                self.command_by(
                    words.get("by").unwrap_or("root"),
                    Command::Policy { change },
                );
            }
            "import" => {
                let reservations = line
                    .trim_start_matches("import")
                    .split('|')
                    .map(str::trim)
                    .filter(|part| !part.is_empty());
                let mut policy = Policy {
                    reservations: BTreeMap::new(),
                    ..self.state.own_policy.clone()
                };
                for part in reservations {
                    let PolicyChange::Reservation { reservation } =
                        policy_change(&Words::of(&format!("reservation {part}")), self.now)
                    else {
                        panic!("{line}")
                    };
                    policy
                        .reservations
                        .insert(reservation.name.clone(), *reservation);
                }
                self.command_by(
                    "root",
                    Command::Policy {
                        change: PolicyChange::All {
                            policy: Box::new(policy),
                        },
                    },
                );
            }
            "file" => {
                let account = Account {
                    name: words.args[0].into(),
                    ..Account::default()
                };
                self.config
                    .policy
                    .accounts
                    .insert(account.name.clone(), account);
                self.configure();
            }
            "policy" => {
                let text = self.policy_table();
                self.out.push_str(&text);
            }
            "node" => self.new_node(&words),
            "submit" => {
                let spec = Box::new(spec(&words, self.now));
                let client_key = words.get("key").map(str::to_owned);
                self.command(&words, self.knowing(Command::Submit { spec, client_key }));
            }
            "plan" => {
                self.plan();
            }
            "wait" => self.wait(words.args[0].parse().unwrap()),
            "show" => {
                let text = self.queue();
                self.out.push_str(&text);
            }
            "channels" => {
                let held = self
                    .state
                    .runs
                    .values()
                    .filter_map(|run| Some(format!("{} has {}\n", run.id, run.imex_channel?)));
                let text: String = held.collect();
                self.out.push_str(&text);
            }
            "nodes" => {
                let text = self.node_table();
                self.out.push_str(&text);
            }
            "past" => {
                let id = JobId(words.args[0].parse().unwrap());
                let state = words
                    .args
                    .get(1)
                    .and_then(|text| gmodel::JobState::parse(text))
                    .unwrap();
                let tasks = words
                    .get("tasks")
                    .map(|text| ArraySpec::parse(text).unwrap());
                let well = words
                    .get("well")
                    .map_or_else(Default::default, |text| text.parse().unwrap());
                self.past.push(PastJob {
                    id,
                    state,
                    began: self.now,
                    tasks,
                    well,
                });
            }
            "preempt" => {
                let for_job = JobId(words.parse("for").unwrap());
                let mode = match words.get("mode") {
                    Some("cancel") => PreemptMode::Cancel,
                    Some("suspend") => PreemptMode::Suspend,
                    _ => PreemptMode::Requeue,
                };
                let heirs: Vec<RunId> = words
                    .get("heirs")
                    .iter()
                    .flat_map(|list| list.split(','))
                    .map(|run| run.parse().unwrap())
                    .collect();
                let preempts = words.args.iter().map(|run| Preempt {
                    heirs: heirs.clone(),
                    run: run.parse().unwrap(),
                    for_job,
                    mode,
                    lost_gpu_secs: 60,
                    why: "its guarantee".into(),
                    for_borrower: false,
                });
                let made_from = words.parse("from").map_or(self.state.seq, Seq);
                let plan = Plan {
                    made_from,
                    preempts: preempts.collect(),
                    ..Plan::default()
                };
                self.feed(Input::Plan { plan }).unwrap();
            }
            "classes" => {
                let of = |run: &crate::ctl::state::Run| {
                    format!(
                        "{} {}",
                        run.id,
                        run.class
                            .map_or("none".into(), |class| format!("{class:?}"))
                    )
                };
                let all: Vec<String> = self.state.runs.values().map(of).collect();
                writeln!(self.out, "{}", all.join(", ")).unwrap();
            }
            "idle" => {
                let text = self.idle_table();
                self.out.push_str(&text);
            }
            // The newest call of the idle program for a run: `told 1-1`, `told 1-1 no mail today`, `told 1-1 number=3`
            "told" => {
                let run: RunId = words.args[0].parse().unwrap();
                let order = idle_orders(&self.state)
                    .into_iter()
                    .find(|order| order.run == run);
                let number = words
                    .parse("number")
                    .or(order.map(|order| order.number))
                    .expect("its idle program was called");
                let failure = (words.args.len() > 1).then(|| words.args[1..].join(" "));
                self.feed(Input::IdleTold {
                    run,
                    number,
                    failure,
                })
                .unwrap();
            }
            "restart" => self.restart(self.state.rows()),
            "backup" => self.backup = Some(self.state.rows()),
            "restore" => {
                let rows = self.backup.clone().expect("a backup was made");
                self.restart(rows);
                self.command(
                    &words,
                    Command::Restore {
                        incarnation: 0,
                        next_job: 0,
                    },
                );
            }
            verb if self.state.node_by_name(verb).is_some() => self.node_line(verb, &words),
            _ => self.job_line(&words),
        }
    }

    fn knowing(&self, command: Command) -> Command {
        match &self.past[..] {
            [] => command,
            past => Command::Knowing {
                past: past.to_vec(),
                asked: Box::new(command),
            },
        }
    }

    fn job_line(&mut self, words: &Words) {
        let node = || {
            self.state
                .node_by_name(words.args[0])
                .map_or(NodeId(99), |node| node.id)
        };
        let reason = || words.args[1..].join(" ");
        let targets: Vec<Target> = words.args.iter().filter_map(|word| target(word)).collect();
        let command = match words.verb {
            "cancel" => Command::Cancel {
                targets,
                signal: None,
            },
            "signal" => {
                let signal = words.get("signal").unwrap().parse().unwrap();
                Command::Cancel {
                    targets,
                    signal: Some(CancelSignal {
                        signal,
                        batch_only: false,
                        full: words.has("full"),
                    }),
                }
            }
            "hold" => Command::Hold {
                targets,
                reason: words.get("reason").unwrap_or("because").into(),
                for_owner: words.has("for_owner"),
            },
            "release" => Command::Release { targets },
            "suspend" => Command::Suspend { targets },
            "go-on" => Command::Resume { targets },
            "requeue" => Command::Requeue {
                targets,
                hold: words.has("held"),
            },
            "step" => Command::StartStep {
                target: targets[0].clone(),
                ask: step_ask(words),
            },
            "step-ends" => {
                let step = words.get("n").map_or(0, |n| n.parse().unwrap());
                Command::EndStep {
                    target: targets[0].clone(),
                    step,
                    exit: gmodel::ExitCode::default(),
                    used: None,
                }
            }
            "update" => {
                let number = |key: &str| words.get(key).map(|n| n.parse().unwrap());
                let change = JobChange {
                    limit_secs: number("time").map(Some),
                    nice: words.get("nice").map(|n| n.parse().unwrap()),
                    partition: words.get("partition").map(str::to_owned),
                    max_running: number("max"),
                    dependency: words
                        .get("dep")
                        .map(|text| (text != "none").then(|| text.parse().unwrap())),
                    name: words.get("name").map(str::to_owned),
                    account: words.get("account").map(str::to_owned),
                    qos: words.get("qos").map(str::to_owned),
                    reservation: words
                        .get("reservation")
                        .map(|name| if name == "none" { "" } else { name }.into()),
                    licences: words
                        .get("licences")
                        .map(|text| gmodel::licence::parse(text).unwrap()),
                    priority: words.parse("priority").map(Some),
                    borrow: words.get("borrow").map(|word| word == "yes"),
                    idle_exempt: words.get("exempt").map(|word| word == "yes"),
                    requeue: words.get("requeue").map(|word| word == "yes"),
                    deadline: words
                        .parse::<i64>("deadline")
                        .map(|secs| Some(self.now.plus_secs(secs))),
                    time_min_secs: words.parse("time_min").map(Some),
                    request: request_change(words),
                    ..JobChange::default()
                };
                self.knowing(Command::Update {
                    target: targets[0].clone(),
                    change,
                })
            }
            "drain" => match words.parse::<i64>("by") {
                Some(secs) => {
                    let deadline = self.now.plus_secs(secs);
                    Command::NodeDrainBy {
                        node: node(),
                        reason: reason(),
                        deadline,
                    }
                }
                None => Command::NodeDrain {
                    node: node(),
                    reason: reason(),
                },
            },
            "resume" => Command::NodeResume { node: node() },
            "down" => Command::NodeDown {
                node: node(),
                reason: reason(),
                fenced: words.get("fenced").is_some(),
            },
            "remove" => Command::NodeRemove { node: node() },
            "token" => Command::MintToken {
                token: self.token(words),
            },
            "join" => {
                let (token_hash, name) = (words.args[0].to_owned(), words.args[1].to_owned());
                Command::Join { token_hash, name }
            }
            "RESTORE" => Command::Restore {
                incarnation: 0,
                next_job: 0,
            },
            verb => panic!("no verb {verb:?}"),
        };
        self.command(words, command);
    }

    fn token(&self, words: &Words) -> JoinToken {
        JoinToken {
            hash: words.args[0].into(),
            role: if words.has("login") {
                Role::Login
            } else {
                Role::Compute
            },
            name: words.get("name").map(str::to_owned),
            expires: self.now.plus_secs(60),
            minted_by: "root".into(),
            admin: words.has("admin"),
        }
    }

    /// `node n1 h100:8 64c 512G feature=ib`
    fn new_node(&mut self, words: &Words) {
        let name = words.args[0];
        let hash = format!("token of {name}");
        let token = JoinToken {
            hash: hash.clone(),
            role: Role::Compute,
            name: Some(name.into()),
            expires: self.now.plus_secs(60),
            minted_by: "root".into(),
            admin: false,
        };
        let root = || actor("root");
        self.feed(Input::Command {
            actor: root(),
            command: Command::MintToken { token },
        })
        .unwrap();
        let join = Command::Join {
            token_hash: hash,
            name: name.into(),
        };
        let Ok(Reply::Joined { node, .. }) = self.feed(Input::Command {
            actor: root(),
            command: join,
        }) else {
            panic!("{name} did not join");
        };
        self.lives.insert(
            node,
            NodeLife {
                boot: "b1".into(),
                spool: "s1".into(),
            },
        );
        self.inventories.insert(node, inventory(name, words));
        if !words.has("absent") {
            self.hello(node, Fence::default(), Vec::new());
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

    /// `n1 running 1-1`, `n1 exits 1-1 3`, `n1 hello boot=b2 1-1=running`, `n1 gone`, `n1 gpus 7`, `n1 told`
    fn node_line(&mut self, name: &str, words: &Words) {
        let node = self.state.node_by_name(name).unwrap().id;
        let verb = words.args[0];
        let args = &words.args[1..];
        match verb {
            "gone" => {
                self.feed(Input::Node {
                    node,
                    report: NodeReport::Gone,
                })
                .unwrap();
            }
            "told" => {
                let told: Vec<String> = desired(&self.state, node)
                    .runs
                    .iter()
                    .map(|told| match &told.want {
                        RunTarget::Stop { why, .. } => {
                            let stop = self
                                .state
                                .runs
                                .get(told.run)
                                .and_then(|run| run.stop.as_ref());
                            let leaves =
                                stop.map_or(0, |stop| stop.leaves_by().since_secs(self.now));
                            let leaves =
                                if *why == StopCause::Preempted || *why == StopCause::Drained {
                                    format!(", gone in {leaves} s")
                                } else {
                                    String::new()
                                };
                            format!("{} stop ({why:?}{leaves})", told.run)
                        }
                        want => {
                            let sent = told
                                .signals
                                .iter()
                                .map(|s| format!(" signal {}: {}", s.number, s.signal));
                            let still = if told.suspended { " suspended" } else { "" };
                            format!("{} {want:?}{still}{}", told.run, sent.collect::<String>())
                        }
                    })
                    .collect();
                self.say(format_args!("{name} is told: {}", told.join(", ")));
            }
            "hello" => {
                let life = self.lives.get_mut(&node).unwrap();
                if let Some(boot) = words.get("boot") {
                    life.boot = boot.into();
                }
                if let Some(spool) = words.get("spool") {
                    life.spool = spool.into();
                }
                let fence = words.get("fence").map_or(Fence::default(), |text| {
                    let (incarnation, generation) = text.split_once('/').unwrap();
                    let number = |text: &str| text.parse().unwrap();
                    Fence {
                        incarnation: number(incarnation),
                        generation: number(generation),
                    }
                });
                let known = words.options.iter().filter_map(|(key, value)| {
                    Some(RunReport::new(
                        key.parse().ok()?,
                        phase(value, "", self.now),
                    ))
                });
                let runs = known.collect();
                self.hello(node, fence, runs);
            }
            "orders" => {
                let orders: Vec<String> = desired(&self.state, node)
                    .gpus
                    .iter()
                    .map(|order| format!("{} {:?}", order.uuid, order.what))
                    .collect();
                self.say(format_args!("{name} is ordered: {}", orders.join(", ")));
            }
            // All that it was ordered so far.
            "obeys" => {
                let fence = desired(&self.state, node).fence;
                self.feed(Input::Node {
                    node,
                    report: NodeReport::Obeyed { fence },
                })
                .unwrap();
            }
            "mark" => {
                let run: RunId = args[0].parse().unwrap();
                let number = args[1].parse().unwrap();
                let ago: i64 = words.parse("ago").unwrap_or(0);
                let mark = Some(CheckpointMark {
                    number,
                    at: self.now.plus_secs(-ago),
                    note: args[2..].join(" "),
                });
                let phase = RunPhase::Running { started: self.now };
                let runs = vec![RunReport {
                    run,
                    phase,
                    mark,
                    sent: None,
                }];
                self.feed(Input::Node {
                    node,
                    report: NodeReport::Runs { runs },
                })
                .unwrap();
            }
            // Watched for so long, and how long its idle GPUs have been that: `n1 idle 1-1 500 300,300`
            "idle" => {
                let idle_secs = args
                    .get(2)
                    .iter()
                    .flat_map(|list| list.split(','))
                    .map(|secs| secs.parse().unwrap())
                    .collect();
                let report = IdleReport {
                    run: args[0].parse().unwrap(),
                    watched_secs: args[1].parse().unwrap(),
                    idle_secs,
                };
                self.feed(Input::Node {
                    node,
                    report: NodeReport::Idle { runs: vec![report] },
                })
                .unwrap();
            }
            // The newest call of the fence program for it: `n1 fenced`, `n1 fenced no route to the BMC`, `n1 fenced number=3`
            "fenced" => {
                let order = fence_orders(&self.state)
                    .into_iter()
                    .find(|order| order.node == node);
                let number = words
                    .parse("number")
                    .or(order.map(|order| order.number))
                    .expect("its fence program was called");
                let failure = (!args.is_empty()).then(|| args.join(" "));
                self.feed(Input::Fenced {
                    node,
                    number,
                    failure,
                })
                .unwrap();
            }
            "gpus" => {
                let left: usize = args[0].parse().unwrap();
                self.inventories.get_mut(&node).unwrap().gpus.truncate(left);
                let inventory = self.inventories[&node].clone();
                self.feed(Input::Node {
                    node,
                    report: NodeReport::Inventory { inventory },
                })
                .unwrap();
            }
            verb => {
                let run: RunId = args[0].parse().unwrap();
                let phase = phase(verb, args.get(1).copied().unwrap_or(""), self.now);
                let runs = vec![RunReport::new(run, phase)];
                self.feed(Input::Node {
                    node,
                    report: NodeReport::Runs { runs },
                })
                .unwrap();
            }
        }
    }

    /// `1 alice RUNNING 1-1 on n1[0,1]`
    fn queue(&self) -> String {
        let mut out = String::new();
        for array in self
            .state
            .arrays
            .values()
            .filter(|array| !array.pending.is_empty())
        {
            let (user, reason) = (&array.spec.user.name, &array.reason);
            if !array.together().is_empty() {
                let tasks = array.tasks.text_of(&array.together());
                writeln!(
                    out,
                    "{}_[{tasks}] {user} PENDING {}: {}",
                    array.id, reason.code, reason.text
                )
                .unwrap();
            }
            for one in &array.apart {
                let tasks = array.tasks.text_of(&one.positions);
                let holds: Vec<_> = one
                    .holds
                    .iter()
                    .map(|mark| format!(" {} ({})", mark.owner, mark.reason))
                    .collect();
                writeln!(
                    out,
                    "{}_[{tasks}] {user} PENDING, HELD{}",
                    array.id,
                    holds.concat()
                )
                .unwrap();
            }
        }
        for job in self.state.jobs.values() {
            write!(
                out,
                "{} {} {}",
                job.shown_id(),
                job.spec.user.name,
                job.state
            )
            .unwrap();
            if job.state == gmodel::JobState::Pending {
                write!(out, " {}: {}", job.reason.code, job.reason.text).unwrap();
            } else if job.state.is_final() {
                write!(out, " {}", job.exit).unwrap();
                let words = [
                    &job.end_text,
                    job.cancelled_by.as_ref().unwrap_or(&job.end_text),
                ];
                let words: BTreeSet<_> =
                    words.into_iter().filter(|word| !word.is_empty()).collect();
                words
                    .iter()
                    .for_each(|word| write!(out, " ({word})").unwrap());
            }
            if job.spec.waits_in_several() || !job.spec.partitions.is_empty() {
                write!(out, " in {}", job.spec.partition).unwrap();
            }
            if let Some(run) = job.live_run().and_then(|run| self.state.runs.get(run)) {
                let places = run.allocation.iter().map(|share| {
                    let slots: Vec<_> = share.gpus.slots().map(|slot| slot.0.to_string()).collect();
                    format!("{}[{}]", self.name(share.node), slots.join(","))
                });
                write!(
                    out,
                    " {} on {}",
                    run.id,
                    places.collect::<Vec<_>>().join(" ")
                )
                .unwrap();
            }
            if let Some(mark) = &job.last_mark {
                write!(out, " MARK {} {}", mark.number, mark.note).unwrap();
            }
            for mark in &job.holds {
                write!(out, " HELD {} ({})", mark.owner, mark.reason).unwrap();
            }
            out.push('\n');
        }
        out
    }

    /// What people are told of idle jobs, and which calls of the program are due.
    fn idle_table(&self) -> String {
        let mut out = String::new();
        for job in self.state.jobs.values() {
            if let Some(words) = idle_words(&self.state, job) {
                writeln!(out, "{}: {words}", job.id).unwrap();
            }
        }
        for order in idle_orders(&self.state) {
            let next = order.next.map_or(String::new(), |(action, secs)| {
                format!(", {} in {secs} s", action.word())
            });
            writeln!(
                out,
                "program: {} idle for {} s{next}",
                order.run, order.idle_secs
            )
            .unwrap();
        }
        out
    }

    fn node_table(&self) -> String {
        let mut out = String::new();
        for node in self.state.nodes.values() {
            let free = self.state.free_on(node);
            let gpus = free
                .gpu_milli
                .iter()
                .filter(|milli| **milli == 1000)
                .count();
            let view = self.state.node_view(node);
            write!(
                out,
                "{} {view} {gpus} GPUs {} CPUs free",
                node.name, free.cpus
            )
            .unwrap();
            if let Some(words) = fence_words(node) {
                write!(out, " LOST: {words}").unwrap();
            }
            for mark in &node.drains {
                write!(out, " DRAINED {} ({})", mark.owner, mark.reason).unwrap();
            }
            if !node.strikes.is_empty() {
                write!(out, " {} strikes", node.strikes.len()).unwrap();
            }
            out.push('\n');
        }
        out
    }

    fn policy_table(&self) -> String {
        let mut out = String::new();
        let policy = &self.state.policy;
        for account in policy.accounts.values() {
            let users: Vec<String> = account
                .users
                .iter()
                .map(|(name, user)| format!("{name}{}", if user.is_default { "*" } else { "" }))
                .collect();
            let parent = account.parent.as_deref().unwrap_or("root");
            let closed = if account.closed { " closed" } else { "" };
            writeln!(
                out,
                "account {} below {parent}: {}{closed}",
                account.name,
                users.join(",")
            )
            .unwrap();
        }
        for qos in policy.qos.keys() {
            writeln!(out, "qos {qos}").unwrap();
        }
        for one in policy.reservations.values() {
            let what = serde_json::to_string(&one.what).unwrap();
            let skipped = one
                .skip_until
                .map_or(String::new(), |at| format!(" skipped until {at}"));
            writeln!(
                out,
                "reservation {} by {} at {}: {what}{skipped}",
                one.name, one.created_by, one.start
            )
            .unwrap();
        }
        out
    }

    fn name(&self, id: NodeId) -> &str {
        self.state.nodes.get(id).map_or("?", |node| &node.name)
    }
}

/// `n`, `N`, `each` and `overlap=yes` as grun has them; `cpus`, `mem` in GiB, `gpus=Step:2` what the step is to have for itself.
fn step_ask(words: &Words) -> StepAsk {
    let number = |key: &str| words.get(key).map(|n| n.parse().unwrap());
    let gpus = words.get("gpus").map(|text| {
        let (per, ask) = text.split_once(':').unwrap();
        let per = match per {
            "Step" => GpuCountUnit::Step,
            "Node" => GpuCountUnit::Node,
            _ => GpuCountUnit::Task,
        };
        StepGpus::of(per, &GpuRequest::parse(ask).unwrap()).unwrap()
    });
    let share = StepShareRequest {
        cpus_per_task: number("cpus").unwrap_or(0),
        mem_bytes: words
            .get("mem")
            .map_or(0, |n| n.parse::<u64>().unwrap() << 30),
        mem_per_gpu_bytes: words
            .get("mem-per-gpu")
            .map_or(0, |n| n.parse::<u64>().unwrap() << 30),
        gpus,
        overlap: words.get("overlap").is_some(),
        ..StepShareRequest::default()
    };
    StepAsk {
        name: "hostname".into(),
        nodes: number("N"),
        ntasks: number("n"),
        ntasks_per_node: number("each"),
        share: (share != StepShareRequest::default()).then_some(share),
        connect: "grun".into(),
        ..StepAsk::default()
    }
}
