//! A whole cluster in virtual time: the controller, the network, the machines, users and operators.
//!
//! One queue of events, ordered by time and then by insertion: a run is the same every time.

use crate::controller::{Controller, InputOutcome, nodes_of};
use crate::gpu_watch;
use crate::machine::Machine;
use crate::node_gpus::NodeGpus;
use crate::prng::Prng;
use crate::scenario::{Act, Scenario};
use crate::sim_event::{Frame, QueueEntry, SimEvent};
use crate::truth::Truth;
use gcore::ctl::state::JoinToken;
use gcore::ctl::{
    Actor, Command, Event, Input, NodeReport, Reply, fence_orders, next_deadline, snapshot,
};
use gcore::node::gpu_health::{RepairMeans, RepairPolicy};
use gmodel::NodeId;
use gmodel::node::Role;
use gsched::WorkBudget;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

pub struct Connection {
    pub machine: usize,
    /// Nothing sent from now on arrives.
    pub cut: bool,
    /// Nor what was under way when it was cut.
    pub lost: bool,
    last_to_controller: i64,
    last_to_node: i64,
}

/// A command of a person, asked until it is answered.
pub struct ClientRequest {
    pub actor: Actor,
    pub command: Command,
    pub answered: bool,
}

pub struct Cluster {
    pub now: i64,
    queue: BinaryHeap<Reverse<QueueEntry>>,
    number: u64,
    pub chance: Prng,
    /// Of the GPUs: a scenario without their faults is what it was.
    pub gpu_chance: Prng,
    pub scenario: Scenario,
    pub controller: Controller,
    pub machines: Vec<Machine>,
    pub connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    pub number_of_daemons: u64,
    /// Calls of the fence program that were begun: node, number of the call, life of the controller.
    fence_calls: BTreeSet<(NodeId, u64, u64)>,
    /// How many of them have not ended.
    pub fences_open: usize,
    pub requests: Vec<ClientRequest>,
    pub truth: Truth,
    /// Lines of what happened, when asked for.
    pub trace: Option<Vec<String>>,
    pub violation: Option<String>,
    pub happenings: u64,
    /// A backup took the place of the store, and that is to be entered: gpuctld does both at once.
    restoring: bool,
}

impl Cluster {
    pub fn new(scenario: Scenario) -> Self {
        let Scenario {
            seed,
            machines,
            wait_for_lost,
            fence_fails,
            ..
        } = scenario;
        let mut controller = Controller::new(seed, machines, wait_for_lost, fence_fails.is_some());
        controller.job_scale = scenario.job_scale;
        for act in &scenario.acts {
            if let crate::scenario::ActKind::CrashAtCommit {
                commit,
                before,
                millis,
            } = act.what
            {
                // The first commits make the cluster: machines join.
                controller
                    .crashes
                    .insert(commit + 2 * u64::from(machines) + 2, (before, millis));
            }
        }
        let mut cluster = Self {
            now: 0,
            queue: BinaryHeap::new(),
            number: 0,
            chance: Prng::new(seed, 2),
            gpu_chance: Prng::new(seed, 9),
            controller,
            machines: (1..=u32::from(machines))
                .map(|id| simulated_machine(&scenario, NodeId(id)))
                .collect(),
            connections: BTreeMap::new(),
            next_connection: 1,
            number_of_daemons: 0,
            fence_calls: BTreeSet::new(),
            fences_open: 0,
            requests: Vec::new(),
            truth: Truth::of(machines, scenario.gpus),
            trace: None,
            violation: None,
            happenings: 0,
            restoring: false,
            scenario,
        };
        cluster.set_up();
        cluster
    }

    fn set_up(&mut self) {
        for input in self.controller.start() {
            self.feed(input);
        }
        for at in 0..self.machines.len() {
            let name = self.machines[at].name.clone();
            let expires = self.controller.now(3_600_000);
            let hash = format!("invitation of {name}");
            let token = JoinToken {
                hash: hash.clone(),
                role: Role::Compute,
                name: Some(name.clone()),
                expires,
                minted_by: "root".into(),
                admin: false,
            };
            self.feed(Input::Command {
                actor: root(),
                command: Command::MintToken { token },
            });
            self.feed(Input::Command {
                actor: root(),
                command: Command::Join {
                    token_hash: hash,
                    name,
                },
            });
            let at_once = self.chance.range(0, 1000);
            self.after(at_once, SimEvent::DaemonStarts { machine: at });
        }
        for (index, act) in self.scenario.acts.clone().iter().enumerate() {
            self.after(act.at, SimEvent::Act(index));
        }
        self.after(1000, SimEvent::Tick);
    }

    pub fn after(&mut self, millis: i64, what: SimEvent) {
        self.number += 1;
        self.queue.push(Reverse(QueueEntry {
            at: self.now + millis.max(0),
            number: self.number,
            what,
        }));
    }

    /// Lets everything happen up to a time, or the first violation.
    pub fn run_until(&mut self, until: i64) {
        while self.violation.is_none() {
            if self
                .queue
                .peek()
                .is_none_or(|Reverse(entry)| entry.at > until)
            {
                self.now = until;
                return;
            }
            let Some(Reverse(entry)) = self.queue.pop() else {
                return;
            };
            self.now = entry.at;
            self.happenings += 1;
            self.happens(entry.what);
        }
    }

    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>10.3} {}", self.now as f64 / 1000.0, text()));
        }
    }

    pub fn violated(&mut self, text: String) {
        self.note(|| format!("VIOLATION {text}"));
        self.violation.get_or_insert(text);
    }

    fn happens(&mut self, what: SimEvent) {
        match what {
            SimEvent::Act(index) => {
                let act: Act = self.scenario.acts[index].clone();
                self.note(|| format!("-- {:?}", act.what));
                self.act(act.what);
            }
            SimEvent::ControllerStarts { restore } => self.controller_starts(restore),
            SimEvent::Tick => self.tick(),
            SimEvent::PlanMade { epoch } => self.make_plan(epoch),
            SimEvent::PlanEnters { epoch, plan } => {
                if self.controller.up && self.controller.epoch == epoch {
                    self.controller.planning = false;
                    self.feed(Input::Plan { plan });
                }
            }
            SimEvent::Asked { request } => self.asked(request),
            SimEvent::Answered { request, answer } => self.answered(request, answer),
            SimEvent::Dial { machine, epoch } => self.dial(machine, epoch),
            SimEvent::FrameToController {
                connection,
                epoch,
                frame,
                stray,
            } => {
                self.frame_to_controller(connection, epoch, frame, stray);
            }
            SimEvent::FrameToNode {
                connection,
                epoch,
                frame,
                stray,
            } => {
                self.frame_to_node(connection, epoch, frame, stray);
            }
            SimEvent::ControllerSeesEnd { connection, epoch } => {
                self.controller_sees_end(connection, epoch);
            }
            SimEvent::NodeSeesEnd { connection } => self.node_sees_end(connection),
            SimEvent::WorkDone {
                machine,
                epoch,
                work,
            } => self.work_done(machine, epoch, work),
            SimEvent::RunEnds {
                machine,
                boot,
                run,
                timer,
                end,
            } => {
                self.run_ends(machine, boot, run, timer, end);
            }
            SimEvent::DaemonMissesSupervisor {
                machine,
                epoch,
                run,
            } => {
                self.supervisor_missed(machine, epoch, run);
            }
            SimEvent::PowerOn { machine } => self.power_on(machine),
            SimEvent::DaemonStarts { machine } => self.daemon_starts(machine),
            SimEvent::GpuReturns { machine } => gpu_watch::gpu_returns(self, machine),
            SimEvent::GpuLook {
                machine,
                epoch,
                number,
            } => gpu_watch::look(self, machine, epoch, number),
            SimEvent::GpuProgramEnds {
                machine,
                epoch,
                gpu,
                stage,
                failure,
            } => gpu_watch::program_ends(self, machine, epoch, gpu, stage, failure),
            SimEvent::FenceEnds {
                node,
                number,
                epoch,
            } => self.fence_ends(node, number, epoch),
            SimEvent::Caretaker => self.caretake(),
        }
    }

    // The controller.

    /// Gives the controller an input and carries out what follows. `None`: it is down, or crashed.
    pub fn feed(&mut self, input: Input) -> Option<Result<Reply, ()>> {
        if !self.controller.up {
            return None;
        }
        if self.trace.is_some() {
            let text = format!("{input:?}");
            self.note(|| {
                format!(
                    "controller takes {}",
                    text.chars().take(400).collect::<String>()
                )
            });
        }
        match self.controller.take(input, self.now) {
            Err(violation) => {
                self.violated(violation);
                None
            }
            Ok(InputOutcome::Crashed { millis, events }) => {
                self.observe(&events);
                self.note(|| {
                    format!(
                        "controller CRASHES at a commit, {} events durable",
                        events.len()
                    )
                });
                self.controller_crashes(millis, false);
                None
            }
            Ok(InputOutcome::Done { reply, events }) => {
                self.observe(&events);
                self.tell_nodes(&events);
                self.call_fence_program();
                self.want_plan();
                Some(reply.map_err(|refusal| self.note(|| format!("refused: {refusal}"))))
            }
        }
    }

    fn observe(&mut self, events: &[Event]) {
        if self.trace.is_some() {
            for event in events {
                let text = format!("{event:?}");
                self.note(|| format!("    {}", text.chars().take(400).collect::<String>()));
            }
        }
        if let Err(violation) = self.truth.observe(events) {
            self.violated(violation);
        }
    }

    fn tell_nodes(&mut self, events: &[Event]) {
        let mut nodes: Vec<NodeId> = events
            .iter()
            .flat_map(|event| nodes_of(&self.controller.state, event))
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        for node in nodes {
            if let Some((connection, desired, orders)) = self.controller.news_for(node) {
                self.send_to_node(connection, Frame::Orders { desired, orders });
            }
        }
    }

    fn want_plan(&mut self) {
        if self.controller.plan_wanted && !self.controller.planning {
            self.controller.planning = true;
            // A pass over a large cluster costs more, and the planner rests in proportion.
            let pause = self.chance.range(5, 100) + self.machines.len() as i64 / 2;
            let epoch = self.controller.epoch;
            self.after(pause, SimEvent::PlanMade { epoch });
        }
    }

    fn make_plan(&mut self, epoch: u64) {
        if !self.controller.up || self.controller.epoch != epoch {
            return;
        }
        self.controller.plan_wanted = false;
        let now = self.controller.now(self.now);
        let plan = gsched::plan(
            &snapshot(&self.controller.state, now),
            WorkBudget::default(),
        );
        let pause = self.chance.range(1, 60);
        self.after(pause, SimEvent::PlanEnters { epoch, plan });
    }

    fn tick(&mut self) {
        self.after(1000, SimEvent::Tick);
        if !self.controller.up {
            return;
        }
        let now = self.controller.now(self.now);
        if next_deadline(&self.controller.state).is_some_and(|at| at <= now) {
            self.feed(Input::Wake);
        }
        // As the daemon does: a look now and then, whatever it was told.
        if self.now % 30_000 == 0 {
            self.controller.plan_wanted = true;
            self.want_plan();
        }
    }

    /// Begins the calls that the state asks for, each once in a life of the controller.
    fn call_fence_program(&mut self) {
        if self.scenario.fence_fails.is_none() {
            return;
        }
        let epoch = self.controller.epoch;
        for order in fence_orders(&self.controller.state) {
            if self.fence_calls.insert((order.node, order.number, epoch)) {
                self.note(|| {
                    format!(
                        "the fence program is CALLED for {}: {}",
                        order.name, order.lost
                    )
                });
                let takes = self.chance.range(0, 40_000);
                self.fences_open += 1;
                self.after(
                    takes,
                    SimEvent::FenceEnds {
                        node: order.node,
                        number: order.number,
                        epoch,
                    },
                );
            }
        }
    }

    /// It failed, with the node on or off, or the node is off for a while.
    fn fence_ends(&mut self, node: NodeId, number: u64, epoch: u64) {
        self.fences_open -= 1;
        let Some(machine) = self.machines.iter().position(|one| one.id == node) else {
            return;
        };
        let in_ten = i64::from(self.scenario.fence_fails.unwrap_or(0));
        let fails = self.now < self.scenario.calm_from && self.chance.range(0, 9) < in_ten;
        if !fails || self.chance.one_in(2) {
            self.note(|| format!("n{} is POWERED OFF", machine + 1));
            self.daemon_crashes(machine);
            self.machines[machine].power_off();
            let off = self.chance.range(5_000, 200_000);
            self.after(off, SimEvent::PowerOn { machine });
        }
        if self.controller.up && self.controller.epoch == epoch {
            self.feed(Input::Fenced {
                node,
                number,
                failure: fails.then(|| "the BMC does not answer".to_owned()),
            });
        }
    }

    pub fn controller_crashes(&mut self, millis: i64, restore: bool) {
        if !self.controller.up {
            return;
        }
        self.controller.stop();
        let open: Vec<u64> = self.connections.keys().copied().collect();
        for connection in open {
            self.cut(connection, true);
        }
        self.after(millis, SimEvent::ControllerStarts { restore });
    }

    fn controller_starts(&mut self, restore: bool) {
        if self.controller.up {
            return;
        }
        self.note(|| "controller STARTS".into());
        if restore && let Some(backup) = self.controller.backup.clone() {
            self.controller.store = self.controller.store.replaced_by(&backup);
            self.truth.restored();
            self.restoring = true;
        }
        for input in self.controller.start() {
            self.feed(input);
        }
        if self.restoring {
            self.restoring = self
                .feed(Input::Command {
                    actor: root(),
                    command: Command::Restore {
                        incarnation: 0,
                        next_job: 0,
                    },
                })
                .is_none();
        }
        let lost = self.truth.lost(&self.controller.store);
        if let Some(job) = lost {
            self.violated(format!(
                "job {job} was acknowledged and is lost after a start"
            ));
        }
        self.want_plan();
    }

    // The people.

    /// Asks, and asks again until there is an answer.
    pub fn ask(&mut self, actor: Actor, command: Command) {
        self.requests.push(ClientRequest {
            actor,
            command,
            answered: false,
        });
        let request = self.requests.len() - 1;
        let delay = self.chance.range(1, 50);
        self.after(delay, SimEvent::Asked { request });
    }

    fn asked(&mut self, request: usize) {
        if self.requests[request].answered {
            return;
        }
        let ClientRequest { actor, command, .. } = &self.requests[request];
        let input = Input::Command {
            actor: actor.clone(),
            command: command.clone(),
        };
        if let Some(answer) = self.feed(input) {
            let delay = self.chance.range(1, 50);
            // The answer may get lost on its way; the question is then asked again.
            if !self.chance.one_in(50) {
                self.after(delay, SimEvent::Answered { request, answer });
            }
        }
        self.after(5000, SimEvent::Asked { request });
    }

    fn answered(&mut self, request: usize, answer: Result<Reply, ()>) {
        if std::mem::replace(&mut self.requests[request].answered, true) {
            return;
        }
        let Ok(reply) = answer else { return };
        let command = self.requests[request].command.clone();
        if let Err(violation) =
            self.truth
                .acknowledged(request, &command, &reply, &self.controller.store)
        {
            self.violated(violation);
        }
    }

    // The network.

    fn dial(&mut self, machine: usize, epoch: u64) {
        let Some(daemon) = &self.machines[machine].daemon else {
            return;
        };
        if daemon.epoch != epoch || daemon.connection.is_some() {
            return;
        }
        if !self.controller.up || self.machines[machine].partitioned_until > self.now {
            let pause = self.chance.range(200, 3000);
            self.after(pause, SimEvent::Dial { machine, epoch });
            return;
        }
        let connection = self.next_connection;
        self.next_connection += 1;
        let fresh = Connection {
            machine,
            cut: false,
            lost: false,
            last_to_controller: self.now,
            last_to_node: self.now,
        };
        self.connections.insert(connection, fresh);
        self.say_hello(machine, connection);
    }

    pub fn send_to_controller(&mut self, connection: u64, report: NodeReport) {
        let delay = self.delay();
        let now = self.now;
        let Some(line) = self
            .connections
            .get_mut(&connection)
            .filter(|line| !line.cut)
        else {
            return;
        };
        let at = line.last_to_controller.max(now + delay);
        line.last_to_controller = at;
        let epoch = self.controller.epoch;
        let repeat = matches!(report, NodeReport::Runs { .. } | NodeReport::Obeyed { .. });
        if repeat && self.chance.one_in(30) {
            let frame = Frame::Report(Box::new(report.clone()));
            let later = self.chance.range(0, 20_000);
            self.after(
                at - now + later,
                SimEvent::FrameToController {
                    connection,
                    epoch,
                    frame,
                    stray: true,
                },
            );
        }
        let frame = Frame::Report(Box::new(report));
        self.after(
            at - now,
            SimEvent::FrameToController {
                connection,
                epoch,
                frame,
                stray: false,
            },
        );
    }

    fn send_to_node(&mut self, connection: u64, frame: Frame) {
        let delay = self.delay();
        let now = self.now;
        let Some(line) = self
            .connections
            .get_mut(&connection)
            .filter(|line| !line.cut)
        else {
            return;
        };
        let at = line.last_to_node.max(now + delay);
        line.last_to_node = at;
        let machine = line.machine;
        let epoch = self.machines[machine]
            .daemon
            .as_ref()
            .map_or(0, |daemon| daemon.epoch);
        if self.chance.one_in(30) {
            let later = self.chance.range(0, 20_000);
            let copy = frame.clone();
            self.after(
                at - now + later,
                SimEvent::FrameToNode {
                    connection,
                    epoch,
                    frame: copy,
                    stray: true,
                },
            );
        }
        self.after(
            at - now,
            SimEvent::FrameToNode {
                connection,
                epoch,
                frame,
                stray: false,
            },
        );
    }

    fn delay(&mut self) -> i64 {
        if self.chance.one_in(40) {
            self.chance.range(100, 3000)
        } else {
            self.chance.range(0, 5)
        }
    }

    fn frame_to_controller(&mut self, connection: u64, epoch: u64, frame: Frame, stray: bool) {
        let Some(line) = self.connections.get(&connection) else {
            return;
        };
        if !self.controller.up || self.controller.epoch != epoch || (line.lost && !stray) {
            return;
        }
        let node = self.machines[line.machine].id;
        let Frame::Report(report) = frame else { return };
        let current = self.controller.told.get(&node).map(|told| told.connection);
        match &*report {
            NodeReport::Hello { .. } if current.is_some_and(|current| current > connection) => {
                return;
            }
            NodeReport::Hello { .. } => self.controller.connected(node, connection),
            // A report by an older connection does no harm, except that its inventory may be old.
            NodeReport::Inventory { .. } if current != Some(connection) => return,
            _ => {}
        }
        self.feed(Input::Node {
            node,
            report: *report,
        });
    }

    fn frame_to_node(&mut self, connection: u64, epoch: u64, frame: Frame, stray: bool) {
        let Some(line) = self.connections.get(&connection) else {
            return;
        };
        let machine = line.machine;
        let lost = line.lost && !stray;
        let Some(daemon) = &self.machines[machine].daemon else {
            return;
        };
        if daemon.epoch != epoch || lost {
            return;
        }
        if let Frame::Orders { desired, orders } = frame {
            self.orders_come(machine, desired, orders);
        }
    }

    /// The connection is dead: both ends learn it, sooner or later.
    pub fn cut(&mut self, connection: u64, controller_knows: bool) {
        let lost = self.chance.one_in(2);
        let Some(line) = self
            .connections
            .get_mut(&connection)
            .filter(|line| !line.cut)
        else {
            return;
        };
        line.cut = true;
        line.lost = lost;
        let late = |chance: &mut Prng, most| {
            if chance.one_in(4) {
                chance.range(0, most)
            } else {
                chance.range(0, 200)
            }
        };
        let node = late(&mut self.chance, 20_000);
        self.after(node, SimEvent::NodeSeesEnd { connection });
        if !controller_knows {
            let controller = late(&mut self.chance, 30_000);
            let epoch = self.controller.epoch;
            self.after(
                controller,
                SimEvent::ControllerSeesEnd { connection, epoch },
            );
        }
    }

    fn controller_sees_end(&mut self, connection: u64, epoch: u64) {
        let Some(line) = self.connections.get(&connection) else {
            return;
        };
        let node = self.machines[line.machine].id;
        let current = self.controller.told.get(&node).map(|told| told.connection);
        if self.controller.up && self.controller.epoch == epoch && current == Some(connection) {
            self.controller.told.remove(&node);
            self.feed(Input::Node {
                node,
                report: NodeReport::Gone,
            });
        }
    }

    fn node_sees_end(&mut self, connection: u64) {
        let Some(line) = self.connections.get(&connection) else {
            return;
        };
        let machine = line.machine;
        if let Some(daemon) = &mut self.machines[machine].daemon
            && daemon.connection == Some(connection)
        {
            daemon.connection = None;
            let epoch = daemon.epoch;
            let pause = self.chance.range(10, 2000);
            self.after(pause, SimEvent::Dial { machine, epoch });
        }
    }
}

fn simulated_machine(scenario: &Scenario, id: NodeId) -> Machine {
    let name = format!("n{id}");
    // A site with all programs, and every other seed one that has none of them.
    let has_programs = scenario.seed % 2 == 1;
    let usual = RepairPolicy::default();
    let means = RepairMeans {
        burn_in: has_programs,
        policy: RepairPolicy {
            max_resets: if has_programs { usual.max_resets } else { 0 },
            max_boots: u32::from(has_programs),
            ..usual
        },
    };
    let chance = Prng::new(scenario.seed ^ u64::from(id.0) << 32, 8);
    let catalogue = scenario.catalogue.clone();
    let gpus = NodeGpus::new(&name, scenario.gpus, catalogue, means, chance);
    Machine::new(id, name, gpus)
}

pub fn root() -> Actor {
    Actor {
        user: "root".into(),
        operator: true,
        ..Actor::default()
    }
}
