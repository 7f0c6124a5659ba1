//! A cluster and its queue as lines of text: each line is an input, some print what came of it.
//!
//! After every input the invariants hold, refused inputs changed nothing, the events replayed from nothing give
//! the same state, every changed record is named by `touched`, and the rows give the state back.

use crate::ctl::state::{JoinToken, Rows, State};
use crate::ctl::*;
use expect_test::Expect;
use gmodel::array_spec::ArraySpec;
use gmodel::config::{ClusterConfig, LostNode, NodeSelection, Partition, PartitionState};
use gmodel::gpu_request::GpuAsk;
use gmodel::hostlist::Hostlist;
use gmodel::job::{GpuScope, JobSpec, MemAsk};
use gmodel::node::{GpuInfo, Inventory, Role};
use gmodel::checkpoint::Mark;
use gmodel::policy::{
    Account, AccountUser, GpuAmounts, JobLimits, Limits, PreemptMode, Qos, Repeat, Reservation, ReservedPart,
};
use gmodel::run::{EndCause, RunEnd, RunPhase, RunReport, StopWhy, Want};
use gmodel::{ExitCode, Fence, JobId, NodeId, NodeLife, RunId, Seq, Timestamp};
use gsched::{Plan, Preempt};
use gsched::usage::UsageBook;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

/// Runs a story and compares what it printed.
pub fn check(story: &str, expect: Expect) {
    let mut world = World::new();
    for line in story.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
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
    /// Brought up to date after every input.
    mirror: Mirror,
    /// What the store says of forgotten jobs; handed in with each submission and update.
    past: Vec<PastJob>,
    pub out: String,
}

const START: Timestamp = Timestamp::from_secs(1_000_000);

impl World {
    pub fn new() -> Self {
        let config = ClusterConfig {
            name: "test".into(),
            partitions: vec![Partition { name: "main".into(), is_default: true, ..Partition::default() }],
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
            mirror: Mirror::default(),
            past: Vec::new(),
            out: String::new(),
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
        assert_eq!(super::check_state(&self.state), [], "after {shown}\nevents {events:#?}");
        if reply.is_err() {
            assert!(same(&before, &self.state), "refused, and yet changed by {shown}");
        }
        for event in &events {
            let json = serde_json::to_string(event).unwrap();
            let read: Event = serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {json}"));
            assert_eq!(&read, event, "events read back as written");
            apply(&mut self.replayed, &read);
        }
        assert!(same(&self.replayed, &self.state), "the events do not give the state after {shown}");
        touched_covers_changes(&before, &self.state, &events, &shown);
        new_orders_have_a_new_number(&before, &self.state, &shown);
        none_is_forgotten_unwritten(&before, &events, &shown);
        none_is_written_off_before_the_fence(&before, &self.state, &events, &shown);
        self.rows_give_the_state_back(&shown);
        self.mirror_is_the_snapshot(&shown);
        reply
    }

    fn mirror_is_the_snapshot(&mut self, shown: &str) {
        let fresh = snapshot(&self.state, self.now);
        let kept = self.mirror.update(&self.state, self.now);
        assert_eq!(kept.nodes, fresh.nodes, "nodes of the mirror after {shown}");
        assert_eq!(kept.running, fresh.running, "runs of the mirror after {shown}");
        let sorted = |mut jobs: Vec<gsched::PendingJob>| {
            jobs.sort_by_key(|job| (job.id, job.positions.is_some()));
            jobs
        };
        assert_eq!(sorted(kept.pending.clone()), sorted(fresh.pending.clone()), "pending of the mirror after {shown}");
        assert!((kept.seq, kept.now) == (fresh.seq, fresh.now) && kept.policy == fresh.policy && kept.config == fresh.config);
    }

    fn rows_give_the_state_back(&self, shown: &str) {
        let loaded = State::from_rows(through_json(rows_of(&self.state)));
        let state = &self.state;
        assert!(loaded.jobs.iter().eq(state.jobs.iter()), "jobs after {shown}");
        assert!(loaded.arrays.iter().eq(state.arrays.iter()), "arrays after {shown}");
        assert!(loaded.runs.iter().eq(state.runs.iter()), "runs after {shown}");
        for (node, known) in loaded.nodes.values().zip(state.nodes.values()) {
            let known = Node { generation: node.generation, ..known.clone() };
            assert_eq!(*node, known, "node after {shown}");
        }
        assert_eq!(loaded.node_names, state.node_names, "names after {shown}");
        assert_eq!(loaded.client_keys, state.client_keys, "client keys after {shown}");
        let finished = |state: &State| state.finished.iter().map(|(_, id)| *id).collect::<BTreeSet<_>>();
        assert_eq!(finished(&loaded), finished(state), "finished after {shown}");
        assert_eq!(loaded.preparing, state.preparing, "preparing after {shown}");
        assert_eq!(loaded.tally, state.tally, "tally after {shown}");
        assert_eq!(loaded.dependents, state.dependents, "dependants after {shown}");
        let due = |state: &State| state.due.iter().filter(|(at, _)| *at > self.now).copied().collect::<BTreeSet<_>>();
        assert!(due(&loaded).is_subset(&due(state)), "due after {shown}: {:?} {:?}", loaded.due, state.due);
        assert_eq!(loaded.tokens, state.tokens, "tokens after {shown}");
        let open = |state: &State| {
            let later = state.not_yet.iter().filter(|(at, id)| {
                let job = state.jobs.get(*id).filter(|j| j.state == gmodel::JobState::Pending);
                let eligible = job.map(|job| job.eligible);
                *at > self.now && eligible.or(state.arrays.get(*id).map(|a| a.eligible)) == Some(*at)
            });
            later.copied().collect::<BTreeSet<_>>()
        };
        assert_eq!(open(&loaded), open(state), "begin times after {shown}");
    }

    /// Passes of the planner until nothing more starts; then every pending job has a reason.
    pub fn plan(&mut self) -> Vec<JobId> {
        let mut started = Vec::new();
        loop {
            let plan = gsched::plan(&snapshot(&self.state, self.now), gsched::WorkBudget::default());
            let starts: Vec<JobId> = plan.starts.iter().map(|start| start.job).collect();
            self.feed(Input::Plan { plan }).unwrap();
            if starts.is_empty() {
                break;
            }
            started.extend(starts);
        }
        for job in self.state.jobs.values().filter(|job| job.state == gmodel::JobState::Pending) {
            assert_ne!(job.reason.code, gmodel::ReasonCode::None, "job {} waits without a reason", job.id);
        }
        for array in self.state.arrays.values().filter(|array| !array.pending.is_empty()) {
            assert_ne!(array.reason.code, gmodel::ReasonCode::None, "array {} waits without a reason", array.id);
        }
        started
    }

    /// Time passes; deadlines are met on the way.
    pub fn wait(&mut self, secs: i64) {
        let until = self.now.plus_secs(secs);
        while let Some(at) = next_deadline(&self.state).filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.feed(Input::Wake).unwrap();
            let next = next_deadline(&self.state);
            assert!(next.is_none_or(|next| next > at), "the deadline {at} is still there after it was met");
        }
        self.now = until;
    }

    /// The controller ends and starts again from its rows.
    pub fn restart(&mut self, rows: Rows) {
        let (automatic_drains, automatic_gpus) = (self.state.automatic_drains.clone(), self.state.automatic_gpus.clone());
        self.state = State::from_rows(through_json(rows));
        (self.state.automatic_drains, self.state.automatic_gpus) = (automatic_drains, automatic_gpus);
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
        match self.feed(Input::Command { actor: actor(user), command }) {
            Ok(Reply::Submitted { id, notes, repeated }) => {
                let repeated = if repeated { " again" } else { "" };
                self.say(format_args!("job {id}{repeated}"));
                notes.iter().for_each(|note| self.say(format_args!("  note: {note}")));
            }
            Ok(Reply::Each { results }) => {
                let refused: Vec<_> = results.into_iter().filter_map(|result| result.refusal).collect();
                refused.iter().for_each(|refusal| self.say(format_args!("refused: {refusal}")));
            }
            Ok(Reply::Joined { node, name, admin, .. }) => {
                let admin = if admin { ", admin" } else { "" };
                self.say(format_args!("joined as {name}, node {node}{admin}"));
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
                let licences = words.options.iter().filter_map(|(name, count)| Some((name.to_string(), count.parse().ok()?)));
                self.config.scheduler.licences = licences.collect();
                self.configure();
            }
            "account" | "qos" | "user" | "reservation" => {
                let change = policy_change(&words, self.now);
                self.command_by(words.get("by").unwrap_or("root"), Command::Policy { change });
            }
            "file" => {
                let account = Account { name: words.args[0].into(), ..Account::default() };
                self.config.policy.accounts.insert(account.name.clone(), account);
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
            "nodes" => {
                let text = self.node_table();
                self.out.push_str(&text);
            }
            "past" => {
                let id = JobId(words.args[0].parse().unwrap());
                let state = words.args.get(1).and_then(|text| gmodel::JobState::parse(text)).unwrap();
                let tasks = words.get("tasks").map(|text| ArraySpec::parse(text).unwrap());
                let well = words.get("well").map_or_else(Default::default, |text| text.parse().unwrap());
                self.past.push(PastJob { id, state, began: self.now, tasks, well });
            }
            "preempt" => {
                let for_job = JobId(words.parse("for").unwrap());
                let mode = match words.get("mode") {
                    Some("cancel") => PreemptMode::Cancel,
                    Some("suspend") => PreemptMode::Suspend,
                    _ => PreemptMode::Requeue,
                };
                let heirs: Vec<RunId> = words.get("heirs").iter().flat_map(|list| list.split(',')).map(|run| run.parse().unwrap()).collect();
                let preempts = words.args.iter().map(|run| Preempt {
                    heirs: heirs.clone(),
                    run: run.parse().unwrap(),
                    for_job,
                    mode,
                    lost_gpu_secs: 60,
                    why: "its guarantee".into(),
                });
                let made_from = words.parse("from").map_or(self.state.seq, Seq);
                let plan = Plan { made_from, preempts: preempts.collect(), ..Plan::default() };
                self.feed(Input::Plan { plan }).unwrap();
            }
            "classes" => {
                let of = |run: &crate::ctl::state::Run| format!("{} {}", run.id, run.class.map_or("none".into(), |class| format!("{class:?}")));
                let all: Vec<String> = self.state.runs.values().map(of).collect();
                writeln!(self.out, "{}", all.join(", ")).unwrap();
            }
            "restart" => self.restart(rows_of(&self.state)),
            "backup" => self.backup = Some(rows_of(&self.state)),
            "restore" => {
                let rows = self.backup.clone().expect("a backup was made");
                self.restart(rows);
                self.command(&words, Command::Restore);
            }
            verb if self.state.node_by_name(verb).is_some() => self.node_line(verb, &words),
            _ => self.job_line(&words),
        }
    }

    fn knowing(&self, command: Command) -> Command {
        match &self.past[..] {
            [] => command,
            past => Command::Knowing { past: past.to_vec(), asked: Box::new(command) },
        }
    }

    fn job_line(&mut self, words: &Words) {
        let node = || self.state.node_by_name(words.args[0]).map_or(NodeId(99), |node| node.id);
        let reason = || words.args[1..].join(" ");
        let targets: Vec<Target> = words.args.iter().filter_map(|word| target(word)).collect();
        let command = match words.verb {
            "cancel" => Command::Cancel { targets, signal: None },
            "signal" => {
                let signal = words.get("signal").unwrap().parse().unwrap();
                Command::Cancel { targets, signal: Some(CancelSignal { signal, batch_only: false }) }
            }
            "hold" => Command::Hold { targets, reason: words.get("reason").unwrap_or("because").into() },
            "release" => Command::Release { targets },
            "suspend" => Command::Suspend { targets },
            "go-on" => Command::Resume { targets },
            "requeue" => Command::Requeue { targets, hold: words.has("held") },
            "update" => {
                let number = |key: &str| words.get(key).map(|n| n.parse().unwrap());
                let change = JobChange {
                    limit_secs: number("time").map(Some),
                    nice: words.get("nice").map(|n| n.parse().unwrap()),
                    partition: words.get("partition").map(str::to_owned),
                    max_running: number("max"),
                    dependency: words.get("dep").map(|text| (text != "none").then(|| text.parse().unwrap())),
                    name: words.get("name").map(str::to_owned),
                    account: words.get("account").map(str::to_owned),
                    qos: words.get("qos").map(str::to_owned),
                    reservation: words.get("reservation").map(|name| if name == "none" { "" } else { name }.into()),
                    licences: words.get("licences").map(|text| gmodel::licence::parse(text).unwrap()),
                    priority: words.parse("priority").map(Some),
                    borrow: words.get("borrow").map(|word| word == "yes"),
                    deadline: words.parse::<i64>("deadline").map(|secs| Some(self.now.plus_secs(secs))),
                    time_min_secs: words.parse("time_min").map(Some),
                    ..JobChange::default()
                };
                self.knowing(Command::Update { target: targets[0], change })
            }
            "drain" => match words.parse::<i64>("by") {
                Some(secs) => {
                    let deadline = self.now.plus_secs(secs);
                    Command::NodeDrainBy { node: node(), reason: reason(), deadline }
                }
                None => Command::NodeDrain { node: node(), reason: reason() },
            },
            "resume" => Command::NodeResume { node: node() },
            "down" => Command::NodeDown { node: node(), reason: reason(), fenced: words.get("fenced").is_some() },
            "remove" => Command::NodeRemove { node: node() },
            "token" => Command::MintToken { token: self.token(words) },
            "join" => {
                let (token_hash, name) = (words.args[0].to_owned(), words.args[1].to_owned());
                Command::Join { token_hash, name }
            }
            "RESTORE" => Command::Restore,
            verb => panic!("no verb {verb:?}"),
        };
        self.command(words, command);
    }

    fn token(&self, words: &Words) -> JoinToken {
        JoinToken {
            hash: words.args[0].into(),
            role: if words.has("login") { Role::Login } else { Role::Compute },
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
        self.feed(Input::Command { actor: root(), command: Command::MintToken { token } }).unwrap();
        let join = Command::Join { token_hash: hash, name: name.into() };
        let Ok(Reply::Joined { node, .. }) = self.feed(Input::Command { actor: root(), command: join }) else {
            panic!("{name} did not join");
        };
        self.lives.insert(node, NodeLife { boot: "b1".into(), spool: "s1".into() });
        self.inventories.insert(node, inventory(name, words));
        if !words.has("absent") {
            self.hello(node, Fence::default(), Vec::new());
        }
    }

    pub fn hello(&mut self, node: NodeId, fence: Fence, runs: Vec<RunReport>) {
        let (life, inventory) = (self.lives[&node].clone(), self.inventories[&node].clone());
        let report = NodeReport::Hello { life, fence, inventory, runs };
        self.feed(Input::Node { node, report }).unwrap();
    }

    /// `n1 running 1-1`, `n1 exits 1-1 3`, `n1 hello boot=b2 1-1=running`, `n1 gone`, `n1 gpus 7`, `n1 told`
    fn node_line(&mut self, name: &str, words: &Words) {
        let node = self.state.node_by_name(name).unwrap().id;
        let verb = words.args[0];
        let args = &words.args[1..];
        match verb {
            "gone" => {
                self.feed(Input::Node { node, report: NodeReport::Gone }).unwrap();
            }
            "told" => {
                let told: Vec<String> = desired(&self.state, node)
                    .runs
                    .iter()
                    .map(|told| match &told.want {
                        Want::Stop { why, .. } => {
                            let stop = self.state.runs.get(told.run).and_then(|run| run.stop.as_ref());
                            let leaves = stop.map_or(0, |stop| stop.leaves_by().since_secs(self.now));
                            let leaves = if *why == StopWhy::Preempted || *why == StopWhy::Drained { format!(", gone in {leaves} s") } else { String::new() };
                            format!("{} stop ({why:?}{leaves})", told.run)
                        }
                        want => {
                            let sent = told.signals.iter().map(|s| format!(" signal {}: {}", s.number, s.signal));
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
                    Fence { incarnation: number(incarnation), generation: number(generation) }
                });
                let known = words.options.iter().filter_map(|(key, value)| {
                    Some(RunReport::new(key.parse().ok()?, phase(value, "", self.now)))
                });
                let runs = known.collect();
                self.hello(node, fence, runs);
            }
            "mark" => {
                let run: RunId = args[0].parse().unwrap();
                let number = args[1].parse().unwrap();
                let mark = Some(Mark { number, at: self.now, note: args[2..].join(" ") });
                let phase = RunPhase::Running { started: self.now };
                let runs = vec![RunReport { run, phase, mark }];
                self.feed(Input::Node { node, report: NodeReport::Runs { runs } }).unwrap();
            }
            // The newest call of the fence program for it: `n1 fenced`, `n1 fenced no route to the BMC`, `n1 fenced number=3`
            "fenced" => {
                let order = fence_orders(&self.state).into_iter().find(|order| order.node == node);
                let number = words.parse("number").or(order.map(|order| order.number)).expect("its fence program was called");
                let failure = (!args.is_empty()).then(|| args.join(" "));
                self.feed(Input::Fenced { node, number, failure }).unwrap();
            }
            "gpus" => {
                let left: usize = args[0].parse().unwrap();
                self.inventories.get_mut(&node).unwrap().gpus.truncate(left);
                let inventory = self.inventories[&node].clone();
                self.feed(Input::Node { node, report: NodeReport::Inventory { inventory } }).unwrap();
            }
            verb => {
                let run: RunId = args[0].parse().unwrap();
                let phase = phase(verb, args.get(1).copied().unwrap_or(""), self.now);
                let runs = vec![RunReport::new(run, phase)];
                self.feed(Input::Node { node, report: NodeReport::Runs { runs } }).unwrap();
            }
        }
    }

    /// `1 alice RUNNING 1-1 on n1[0,1]`
    fn queue(&self) -> String {
        let mut out = String::new();
        for array in self.state.arrays.values().filter(|array| !array.pending.is_empty()) {
            let tasks = array.tasks.text_of(&array.pending);
            let (user, reason) = (&array.spec.user.name, &array.reason);
            writeln!(out, "{}_[{tasks}] {user} PENDING {}: {}", array.id, reason.code, reason.text).unwrap();
        }
        for job in self.state.jobs.values() {
            write!(out, "{} {} {}", job.shown_id(), job.spec.user.name, job.state).unwrap();
            if job.state == gmodel::JobState::Pending {
                write!(out, " {}: {}", job.reason.code, job.reason.text).unwrap();
            } else if job.state.is_final() {
                write!(out, " {}", job.exit).unwrap();
                let words = [&job.end_text, job.cancelled_by.as_ref().unwrap_or(&job.end_text)];
                let words: BTreeSet<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
                words.iter().for_each(|word| write!(out, " ({word})").unwrap());
            }
            if let Some(run) = job.live_run().and_then(|run| self.state.runs.get(run)) {
                let places = run.allocation.iter().map(|share| {
                    let slots: Vec<_> = share.gpus.slots().map(|slot| slot.0.to_string()).collect();
                    format!("{}[{}]", self.name(share.node), slots.join(","))
                });
                write!(out, " {} on {}", run.id, places.collect::<Vec<_>>().join(" ")).unwrap();
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

    fn node_table(&self) -> String {
        let mut out = String::new();
        for node in self.state.nodes.values() {
            let free = self.state.free_on(node);
            let gpus = free.gpu_milli.iter().filter(|milli| **milli == 1000).count();
            let view = self.state.node_view(node);
            write!(out, "{} {view} {gpus} GPUs {} CPUs free", node.name, free.cpus).unwrap();
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
            writeln!(out, "account {} below {parent}: {}{closed}", account.name, users.join(",")).unwrap();
        }
        for qos in policy.qos.keys() {
            writeln!(out, "qos {qos}").unwrap();
        }
        for one in policy.reservations.values() {
            let what = serde_json::to_string(&one.what).unwrap();
            writeln!(out, "reservation {} by {} at {}: {what}", one.name, one.created_by, one.start).unwrap();
        }
        out
    }

    fn name(&self, id: NodeId) -> &str {
        self.state.nodes.get(id).map_or("?", |node| &node.name)
    }
}

/// A line: verb, plain words, and `key=value` words.
pub struct Words<'a> {
    verb: &'a str,
    args: Vec<&'a str>,
    options: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Self {
        let mut words = line.split_whitespace();
        let verb = words.next().unwrap_or("");
        let (options, args): (Vec<_>, Vec<_>) = words.partition(|word| word.contains('='));
        Self { verb, args, options: options.iter().filter_map(|word| word.split_once('=')).collect() }
    }
    fn get(&self, key: &str) -> Option<&'a str> {
        self.options.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }
    fn has(&self, word: &str) -> bool {
        self.args.contains(&word)
    }
    fn parse<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.get(key).map(|text| text.parse().unwrap_or_else(|_| panic!("{key}={text}")))
    }
}

/// `8`, or `h100:4,gpu:6`: whole GPUs.
fn amounts(text: &str) -> GpuAmounts {
    let each = text.split(',').map(|part| {
        let (kind, count) = part.split_once(':').unwrap_or(("gpu", part));
        (kind.to_owned(), count.parse::<u64>().unwrap() * 1000)
    });
    GpuAmounts(each.collect())
}

fn names<T: FromIterator<String>>(text: Option<&str>) -> T {
    text.into_iter().flat_map(|text| text.split(',')).map(str::to_owned).collect()
}

/// `jobs= queue= gpus= tasks= minute=`, each with the prefix.
fn limits(words: &Words, prefix: &str) -> Limits {
    let get = |key: &str| words.get(&format!("{prefix}{key}"));
    let number = |key: &str| get(key).map(|text| text.parse().unwrap());
    Limits {
        running_jobs: number("jobs"),
        submitted_jobs: number("queue"),
        gpus: get("gpus").map(amounts),
        array_tasks: number("tasks"),
        submits_per_minute: number("minute"),
        ..Limits::default()
    }
}

/// `account vision parent=lab users=alice,bob guaranteed=8 ...`, `user vision alice default queue=4`,
/// `qos high gpus=4 ...`, `reservation r nodes=n1 at=60 for=600 ...`; `gone` removes.
fn policy_change(words: &Words, now: Timestamp) -> PolicyChange {
    let name = words.args[0].to_owned();
    match (words.verb, words.has("gone")) {
        ("account", true) => PolicyChange::AccountRemoved { name },
        ("account", false) => {
            let users: Vec<String> = names(words.get("users"));
            let account = Account {
                parent: words.get("parent").map(str::to_owned),
                users: users.into_iter().map(|user| (user, AccountUser::default())).collect(),
                coordinators: names(words.get("coordinators")),
                guaranteed: words.get("guaranteed").map(amounts),
                limit: words.get("limit").map(amounts),
                allow_qos: names(words.get("allow_qos")),
                default_qos: words.get("default_qos").map(str::to_owned),
                group: limits(words, ""),
                per_user: limits(words, "user_"),
                closed: words.has("closed"),
                name,
                ..Account::default()
            };
            PolicyChange::Account { account: Box::new(account) }
        }
        ("user", true) => PolicyChange::UserRemoved { account: name, user: words.args[1].into() },
        ("user", false) => {
            let is_default = words.has("default");
            let entry = AccountUser { shares: 1, limits: limits(words, ""), is_default };
            PolicyChange::User { account: name, user: words.args[1].into(), entry }
        }
        ("qos", true) => PolicyChange::QosRemoved { name },
        ("qos", false) => {
            let qos = Qos {
                per_user: limits(words, "user_"),
                group: limits(words, ""),
                per_job: JobLimits {
                    time_secs: words.parse("max_time"),
                    gpus: words.get("max_gpus").map(amounts),
                    ..JobLimits::default()
                },
                preempt: names(words.get("preempt")),
                usage_factor_milli: words.parse("usage_factor").unwrap_or(1000),
                preempt_mode: words.has("suspend").then_some(PreemptMode::Suspend),
                name,
                ..Qos::default()
            };
            PolicyChange::Qos { qos: Box::new(qos) }
        }
        (_, true) => PolicyChange::ReservationRemoved { name },
        (_, false) => {
            let what = match (words.get("nodes"), words.parse("count"), words.get("gpus")) {
                (Some(list), ..) => ReservedPart::Nodes(Hostlist::parse(list).unwrap()),
                (_, Some(count), _) => ReservedPart::NodeCount(count),
                (_, _, Some(text)) => ReservedPart::Gpus(amounts(text)),
                _ => ReservedPart::AllNodes,
            };
            let reservation = Reservation {
                start: now.plus_secs(words.parse("at").unwrap_or(0)),
                duration_secs: words.parse("for").unwrap_or(600),
                repeat: if words.has("daily") { Repeat::Daily } else { Repeat::Once },
                what,
                users: names(words.get("users")),
                accounts: names(words.get("accounts")),
                ignore_running: words.has("ignore_running"),
                maintenance: words.has("maintenance"),
                name,
                ..Reservation::default()
            };
            PolicyChange::Reservation { reservation: Box::new(reservation) }
        }
    }
}

pub fn actor(name: &str) -> Actor {
    let uid = match name {
        "root" => 0,
        "alice" => 1001,
        "bob" => 1002,
        _ => 1003,
    };
    Actor { user: name.into(), uid, gid: uid, operator: uid == 0, via: None }
}

fn target(word: &str) -> Option<Target> {
    match word.split_once('_') {
        Some((array, index)) => {
            Some(Target::Task { array: array.parse().ok()?, index: index.parse().ok()? })
        }
        None => Some(Target::Job(word.parse().ok()?)),
    }
}

fn bytes(text: &str) -> u64 {
    gmodel::size::parse_bytes(text).unwrap()
}

fn set_config(config: &mut ClusterConfig, words: &Words) {
    if let Some(lost) = words.get("lost_node") {
        config.lost_node = if lost == "wait" { LostNode::Wait } else { LostNode::Requeue };
    }
    config.fence_program = words.get("fence").map_or(config.fence_program, |word| word == "yes");
    config.kill_invalid_depend = words.get("kill").map_or(config.kill_invalid_depend, |word| word == "yes");
    config.max_array_tasks = words.parse("max_array").unwrap_or(config.max_array_tasks);
    config.min_job_age_secs = words.parse("age").unwrap_or(config.min_job_age_secs);
}

fn set_partition(config: &mut ClusterConfig, words: &Words) {
    let name = words.args[0];
    config.partitions.retain(|known| known.name != name);
    for known in &mut config.partitions {
        known.is_default &= !words.has("default");
    }
    config.partitions.push(Partition {
        name: name.into(),
        is_default: words.has("default"),
        nodes: words.get("nodes").map_or(NodeSelection::All, |list| {
            NodeSelection::Names(Hostlist::parse(list).unwrap())
        }),
        state: match words.get("state") {
            Some("down") => PartitionState::Down,
            Some("drain") => PartitionState::Drain,
            _ => PartitionState::Up,
        },
        max_time_secs: words.parse("max_time"),
        default_time_secs: words.parse("default_time"),
        allow_users: words.get("users").map_or(Vec::new(), |list| list.split(',').map(str::to_owned).collect()),
        requeue: words.get("requeue") != Some("no"),
        ..Partition::default()
    });
}

fn inventory(name: &str, words: &Words) -> Inventory {
    let mut inventory = Inventory { cpus: 64, mem_bytes: bytes("512G"), ..Inventory::default() };
    for word in &words.args[1..] {
        if let Some(cpus) = word.strip_suffix('c') {
            inventory.cpus = cpus.parse().unwrap();
        } else if let Some((gpu_type, count)) = word.split_once(':') {
            let count: u32 = count.parse().unwrap();
            inventory.gpus = (0..count)
                .map(|index| GpuInfo {
                    uuid: format!("GPU-{name}-{index}"),
                    gpu_type: gpu_type.into(),
                    index,
                    minor: index,
                    memory_mib: 81_920,
                    ..GpuInfo::default()
                })
                .collect();
        } else if word.ends_with('G') {
            inventory.mem_bytes = bytes(word);
        }
    }
    if let Some(features) = words.get("feature") {
        inventory.features = features.split(',').map(str::to_owned).collect();
    }
    inventory
}

/// What `submit` takes: `user= gpus= gpn= nodes= ntasks= cpus= mem= time= array= begin= ...`
pub fn spec(words: &Words, now: Timestamp) -> JobSpec {
    let mut spec = JobSpec { name: "job".into(), ..JobSpec::default() };
    spec.launch.work_dir = "/home".into();
    spec.partition = words.get("partition").unwrap_or("").into();
    spec.time_limit_secs = words.parse("time");
    spec.array = words.get("array").map(|text| ArraySpec::parse(text).unwrap());
    spec.begin = words.parse::<i64>("begin").map(|secs| now.plus_secs(secs));
    spec.hold = words.has("held");
    spec.no_kill = words.has("no_kill");
    spec.requeue = words.get("requeue").map(|word| word == "yes");
    spec.nice = words.parse("nice").unwrap_or(0);
    spec.name = words.get("name").unwrap_or("job").into();
    spec.dependency = words.get("dep").map(|text| text.parse().unwrap());
    spec.kill_on_invalid_dep = words.get("kill").map(|word| word == "yes");
    spec.deadline = words.parse::<i64>("deadline").map(|secs| now.plus_secs(secs));
    spec.time_min_secs = words.parse("time_min");
    spec.account = words.get("account").unwrap_or("").into();
    spec.qos = words.get("qos").unwrap_or("").into();
    spec.reservation = words.get("reservation").map(str::to_owned);
    spec.licences = words.get("licences").map_or_else(Default::default, |text| gmodel::licence::parse(text).unwrap());
    spec.checkpoint = words.get("checkpoint").map(|text| text.parse().unwrap());
    spec.priority = words.parse("priority");
    spec.borrow = words.get("borrow").map(|word| word == "yes");
    let request = &mut spec.request;
    request.nodes_min = words.parse("nodes").unwrap_or(1);
    request.nodes_max = request.nodes_min;
    request.ntasks = words.parse("ntasks").unwrap_or(1);
    request.cpus_per_task = words.parse("cpus");
    request.mem = words.get("mem").map_or(MemAsk::Default, |text| MemAsk::PerNode(bytes(text)));
    let gpus = words.get("gpus").or_else(|| words.get("gpn"));
    request.gpus = gpus.map(|text| GpuAsk::parse(text).unwrap());
    if words.get("gpn").is_some() {
        request.gpu_scope = GpuScope::Node;
    }
    request.exclusive = words.has("exclusive");
    request.nodelist = words.get("nodelist").map(|text| Hostlist::parse(text).unwrap());
    request.exclude = words.get("exclude").map(|text| Hostlist::parse(text).unwrap());
    request.constraint = words.get("constraint").map(str::to_owned);
    spec
}

/// `exits` with a code, `clean`, or the name of a cause, which ends and cleans at once.
fn phase(verb: &str, arg: &str, now: Timestamp) -> RunPhase {
    let exit = ExitCode::exited(arg.parse().unwrap_or(0));
    let caused = |cause| {
        let text = arg.replace('_', " ");
        RunPhase::Clean(RunEnd { cause, text, ended: Some(now), ..RunEnd::default() })
    };
    match verb {
        "accepted" => RunPhase::Accepted,
        "ready" => RunPhase::Ready,
        "running" => RunPhase::Running { started: now },
        "exits" => RunPhase::Ended(RunEnd { exit, ended: Some(now), ..RunEnd::default() }),
        "clean" => RunPhase::Clean(RunEnd { exit, ended: Some(now), ..RunEnd::default() }),
        "stopped" => caused(EndCause::Stopped),
        "stops" => {
            RunPhase::Ended(RunEnd { cause: EndCause::Stopped, exit: ExitCode::killed(15), ..RunEnd::default() })
        }
        cause => caused(serde_json::from_value(serde_json::Value::String(cause.into())).unwrap()),
    }
}

pub fn rows_of(state: &State) -> Rows {
    Rows {
        incarnation: state.incarnation,
        seq: state.seq,
        next_job: state.next_job,
        next_node: state.next_node,
        jobs: state.jobs.values().cloned().collect(),
        arrays: state.arrays.values().cloned().collect(),
        runs: state.runs.values().cloned().collect(),
        nodes: state.nodes.values().cloned().collect(),
        tokens: state.tokens.values().cloned().collect(),
        policy: state.own_policy.clone(),
        usage: (*state.usage).clone(),
    }
}

/// Records as the store keeps them: documents.
fn through_json(rows: Rows) -> Rows {
    fn each<T: serde::Serialize + serde::de::DeserializeOwned>(rows: Vec<T>) -> Vec<T> {
        let json = serde_json::to_vec(&rows).unwrap();
        serde_json::from_slice(&json).unwrap()
    }
    let Rows { incarnation, seq, next_job, next_node, jobs, arrays, runs, nodes, tokens, policy, usage } = rows;
    Rows {
        incarnation,
        seq,
        next_job,
        next_node,
        jobs: each(jobs),
        arrays: each(arrays),
        runs: each(runs),
        nodes: each(nodes),
        tokens: each(tokens),
        policy,
        usage: usage_through_json(&usage),
    }
}

fn usage_through_json(usage: &UsageBook) -> UsageBook {
    let mut read = UsageBook::default();
    for (account, user, entry) in usage.rows() {
        let json = serde_json::to_vec(entry).unwrap();
        read.insert(account, user, serde_json::from_slice(&json).unwrap());
    }
    read
}

/// Everything but the memos of submission.
fn same(one: &State, other: &State) -> bool {
    let blind = |state: &State| {
        let state = State {
            feasible: Arc::default(),
            late_specs: Default::default(),
            respecified: BTreeMap::new(),
            minutes: Minutes::default(),
            ..state.clone()
        };
        format!("{state:?}")
    };
    blind(one) == blind(other)
}

/// What ends and is forgotten in one commit would never be written.
fn none_is_forgotten_unwritten(before: &State, events: &[Event], shown: &str) {
    for event in events {
        if let Event::JobsForgotten { jobs, arrays } = event {
            for id in jobs {
                let over = before.jobs.get(*id).is_some_and(|job| job.state.is_final());
                assert!(over, "job {id} is forgotten by what ended it: {shown}");
            }
            for id in arrays {
                let over = before.arrays.get(*id).is_some_and(Array::is_over);
                assert!(over, "array {id} is forgotten by what ended it: {shown}");
            }
        }
    }
}

/// Where there is a fence program, a run that may still go on is written off only when its node is known to be off.
fn none_is_written_off_before_the_fence(before: &State, after: &State, events: &[Event], shown: &str) {
    let is_off = |node: NodeId| events.iter().any(|event| matches!(event, Event::NodeFenced { node: off, .. } if *off == node));
    let by_word = shown.contains("NodeDown") && shown.contains("fenced: true");
    for event in events {
        let Event::RunForfeited { run, node, .. } = event else { continue };
        let member = before.runs.get(*run).and_then(|run| run.member(*node));
        let may_go_on = member.is_some_and(|member| !member.is_ended());
        assert!(
            !after.config.fence_program || !may_go_on || is_off(*node) || by_word,
            "run {run} was written off before node {node} was off by {shown}"
        );
    }
}

/// A node takes the same number twice for the same orders.
fn new_orders_have_a_new_number(before: &State, after: &State, shown: &str) {
    for id in before.nodes.keys().filter(|id| after.nodes.contains(*id)) {
        let (old, new) = (desired(before, id), desired(after, id));
        if old.runs != new.runs {
            assert!(old.fence < new.fence, "node {id} gets other orders with the same number after {shown}");
        }
    }
}

/// A record that changed and is not named by an event's `touched` would be old after a restart.
fn touched_covers_changes(before: &State, after: &State, events: &[Event], shown: &str) {
    let (mut jobs, mut arrays) = (BTreeSet::new(), BTreeSet::new());
    let (mut runs, mut nodes, mut tokens) = (BTreeSet::new(), BTreeSet::new(), false);
    for event in events {
        let touched = event.touched();
        jobs.extend(touched.job);
        arrays.extend(touched.array);
        runs.extend(touched.run);
        nodes.extend(touched.node);
        tokens |= touched.tokens;
        if touched.array_of_job {
            let job = touched.job.and_then(|job| after.jobs.get(job));
            arrays.extend(job.and_then(|job| job.task).map(|task| task.array));
        }
        // The store adds the run of a job whose limit changed, and forgets nothing of what is over.
        match event {
            Event::JobUpdated { job, .. } => runs.extend(after.jobs.get(*job).and_then(Job::live_run)),
            Event::JobsForgotten { jobs: gone, arrays: gone_arrays } => {
                jobs.extend(gone);
                arrays.extend(gone_arrays);
            }
            Event::ReasonsGiven { jobs: given, arrays: of_arrays } => {
                jobs.extend(given.iter().map(|(id, _)| *id));
                arrays.extend(of_arrays.iter().map(|(id, _)| *id));
            }
            Event::ControllerStarted { .. } => nodes.extend(after.nodes.keys()),
            Event::NodeObeyed { node, .. } => {
                nodes.insert(*node);
            }
            _ => {}
        }
    }
    for (id, job) in after.jobs.iter().filter(|(id, _)| !jobs.contains(id)) {
        assert_eq!(Some(job), before.jobs.get(id), "job {id} changed untouched by {shown}");
    }
    for (id, array) in after.arrays.iter().filter(|(id, _)| !arrays.contains(id)) {
        assert_eq!(Some(array), before.arrays.get(id), "array {id} changed untouched by {shown}");
    }
    for (id, run) in after.runs.iter().filter(|(id, _)| !runs.contains(id)) {
        assert_eq!(Some(run), before.runs.get(id), "run {id} changed untouched by {shown}");
    }
    for id in before.runs.keys().filter(|id| !after.runs.contains(*id)) {
        assert!(runs.contains(&id), "run {id} went untouched by {shown}");
    }
    for (id, node) in after.nodes.iter().filter(|(id, _)| !nodes.contains(id)) {
        let Some(old) = before.nodes.get(id) else { panic!("node {id} came untouched by {shown}") };
        // These two are in the rows of the runs and in the number of the last event.
        let old = Node { runs: node.runs.clone(), generation: node.generation, ..old.clone() };
        assert_eq!(*node, old, "node {id} changed untouched by {shown}");
    }
    assert!(tokens || before.tokens == after.tokens, "tokens changed untouched by {shown}");
}
