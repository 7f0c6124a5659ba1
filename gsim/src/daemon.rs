//! The simulated node daemon: it feeds the real node state machine and does on its machine what that calls for.

use crate::cluster::Cluster;
use crate::gpu_watch;
use crate::machine::{Daemon, Order, SpoolRun, Supervisor, Work};
use crate::sim_event::SimEvent;
use gcore::ctl::NodeReport;
use gcore::node::{NodeAction, NodeEvent, NodeInput, actions, apply, check, handle, reports};
use gmodel::run::{DesiredRun, DesiredState, EndCause, RunEnd, RunReport, RunTarget};
use gmodel::{ExitCode, Fence, RunId, Timestamp};
use std::collections::BTreeSet;

impl Cluster {
    pub fn daemon_starts(&mut self, machine: usize) {
        let now = self.now;
        let one = &mut self.machines[machine];
        if !one.powered || one.daemon.is_some() {
            return;
        }
        self.number_of_daemons += 1;
        let epoch = self.number_of_daemons;
        let runs = one.scan(now);
        one.gpus.daemon_begins(one.life().boot, now);
        let (life, fence) = (one.life(), one.spool.fence);
        let orders = one
            .spool
            .runs
            .iter()
            .map(|(run, record)| (*run, record.order.clone()))
            .collect();
        one.daemon = Some(Daemon {
            epoch,
            orders,
            ..Daemon::default()
        });
        self.note(|| format!("n{} daemon STARTS with {} runs", machine + 1, runs.len()));
        self.tell_daemon(machine, NodeInput::Scanned { life, fence, runs });
        let pause = self.chance.range(0, 500);
        self.after(pause, SimEvent::Dial { machine, epoch });
        gpu_watch::look_soon(self, machine);
    }

    pub fn daemon_crashes(&mut self, machine: usize) {
        self.note(|| format!("n{} daemon CRASHES", machine + 1));
        let one = &mut self.machines[machine];
        one.gpus.daemon_ends();
        let connection = one.daemon.take().and_then(|daemon| daemon.connection);
        if let Some(connection) = connection {
            self.cut(connection, false);
        }
    }

    pub fn power_on(&mut self, machine: usize) {
        let one = &mut self.machines[machine];
        if one.powered {
            return;
        }
        one.powered = true;
        one.boot += 1;
        one.gpus.booted(self.now);
        let pause = self.chance.range(0, 3000);
        self.after(pause, SimEvent::DaemonStarts { machine });
    }

    pub fn connection_of(&self, machine: usize) -> Option<u64> {
        self.machines[machine].daemon.as_ref()?.connection
    }

    pub fn say_hello(&mut self, machine: usize, connection: u64) {
        let one = &mut self.machines[machine];
        let (life, inventory) = (one.life(), one.inventory());
        let Some(daemon) = &mut one.daemon else {
            return;
        };
        daemon.connection = Some(connection);
        let sent = Some(Timestamp(self.now));
        let runs = reports(&daemon.state)
            .into_iter()
            .map(|report| RunReport { sent, ..report })
            .collect::<Vec<_>>();
        let fence = daemon.state.fence;
        self.note(|| format!("n{} says hello with {} runs", machine + 1, runs.len()));
        self.send_to_controller(
            connection,
            NodeReport::Hello {
                life,
                fence,
                inventory,
                runs,
            },
        );
    }

    pub fn orders_come(&mut self, machine: usize, desired: DesiredState, fresh: Vec<Order>) {
        let Some(daemon) = &mut self.machines[machine].daemon else {
            return;
        };
        daemon
            .orders
            .extend(fresh.into_iter().map(|order| (order.run, order)));
        let orders: BTreeSet<RunId> = daemon.orders.keys().copied().collect();
        self.note(|| {
            let told = desired
                .runs
                .iter()
                .map(|told| format!("{} {:?}", told.run, told.want));
            let told: Vec<_> = told.collect();
            format!(
                "n{} is told {}: {}",
                machine + 1,
                shown(desired.fence),
                told.join(", ")
            )
        });
        let (incarnation, gpus) = (desired.fence.incarnation, desired.gpus.clone());
        self.tell_daemon(machine, NodeInput::DesiredReceived { desired, orders });
        if !gpus.is_empty() {
            gpu_watch::obey(self, machine, incarnation, &gpus);
        }
    }

    /// Feeds the node's state machine, reports what is new, does what is to be done.
    pub fn tell_daemon(&mut self, machine: usize, input: NodeInput) {
        let now = Timestamp(self.now);
        let Some(daemon) = &mut self.machines[machine].daemon else {
            return;
        };
        let events = handle(&daemon.state, input, now);
        let mut news = Vec::new();
        let mut obeyed = None;
        for event in &events {
            apply(&mut daemon.state, event);
            match event {
                NodeEvent::PhaseReached { run, phase } => {
                    news.push(RunReport::new(*run, phase.clone()));
                }
                NodeEvent::TargetObeyed {
                    desired,
                    accepted,
                    refused,
                } => {
                    let touched = accepted.iter().chain(refused.iter().map(|(run, _)| run));
                    news.extend(touched.filter_map(|run| {
                        let phase = daemon.state.runs.get(run)?.phase.clone();
                        Some(RunReport::new(*run, phase))
                    }));
                    obeyed = Some(desired.fence);
                }
                _ => {}
            }
        }
        let wrong = check(&daemon.state);
        let told = events.iter().rev().find_map(|event| match event {
            NodeEvent::TargetObeyed { desired, .. } => Some(desired.runs.clone()),
            _ => None,
        });
        let connection = daemon.connection;
        if let Some(violation) = wrong.first() {
            self.violated(format!("n{}: {}", machine + 1, violation.0));
        }
        for event in &events {
            self.note(|| format!("n{} {}", machine + 1, brief(event)));
        }
        if let Some(connection) = connection {
            if !news.is_empty() {
                news.iter_mut().for_each(|report| report.sent = Some(now));
                self.send_to_controller(connection, NodeReport::Runs { runs: news });
            }
            if let Some(fence) = obeyed {
                self.send_to_controller(connection, NodeReport::Obeyed { fence });
            }
        }
        if !events.is_empty() {
            self.work(machine);
        }
        self.check_frozen(machine, &told.unwrap_or_default());
    }

    /// What a node says that it obeys of standing still is so.
    fn check_frozen(&mut self, machine: usize, told: &[DesiredRun]) {
        let supervisors = &self.machines[machine].supervisors;
        let wrong = told
            .iter()
            .filter(|told| told.want == RunTarget::Run)
            .find_map(|told| {
                let supervisor = supervisors
                    .get(&told.run)
                    .filter(|one| !one.dead && !one.stopping && one.running_since.is_some())?;
                let is = supervisor.frozen_since.is_some();
                (is != told.suspended).then(|| {
                    format!(
                        "{} is frozen: {is}, it is told {}",
                        told.run, told.suspended
                    )
                })
            });
        if let Some(wrong) = wrong {
            self.violated(format!("n{}: {wrong}", machine + 1));
        }
    }

    /// Begins everything the state calls for that is not under way.
    fn work(&mut self, machine: usize) {
        let Some(daemon) = &self.machines[machine].daemon else {
            return;
        };
        for action in actions(&daemon.state) {
            match action {
                NodeAction::Record { fence, .. } => {
                    self.begin(machine, Work::WriteOrders(fence), 5)
                }
                NodeAction::Prepare { run } => self.begin(machine, Work::Prepare(run), 300),
                NodeAction::Abandon { run } => {
                    let busy = self.machines[machine]
                        .daemon
                        .as_ref()
                        .map(|daemon| &daemon.busy);
                    if busy.is_some_and(|busy| !busy.contains(&Work::Prepare(run))) {
                        self.begin(machine, Work::Abandon(run), 5);
                    }
                }
                NodeAction::Go { run } => self.go(machine, run),
                NodeAction::Stop {
                    run, grace_secs, ..
                } => self.stop(machine, run, grace_secs),
                NodeAction::Limit { run, limit_secs } => self.limit(machine, run, limit_secs),
                NodeAction::Suspend { run, suspended } => self.suspend(machine, run, suspended),
                NodeAction::Signal { .. } => {}
                NodeAction::Clean { run } => self.begin(machine, Work::Clean(run), 500),
                NodeAction::Forget { run } => self.begin(machine, Work::Forget(run), 5),
            }
        }
    }

    fn begin(&mut self, machine: usize, work: Work, millis: i64) {
        let delay = self.chance.range(0, millis);
        let Some(daemon) = &mut self.machines[machine].daemon else {
            return;
        };
        let epoch = daemon.epoch;
        if daemon.busy.insert(work) {
            self.after(
                delay,
                SimEvent::WorkDone {
                    machine,
                    epoch,
                    work,
                },
            );
        }
    }

    pub fn work_done(&mut self, machine: usize, epoch: u64, work: Work) {
        let Some(daemon) = &mut self.machines[machine].daemon else {
            return;
        };
        if daemon.epoch != epoch || !daemon.busy.remove(&work) {
            return;
        }
        match work {
            Work::WriteOrders(fence) => self.write_orders(machine, fence),
            Work::WriteFence(fence) => {
                let one = &mut self.machines[machine];
                one.spool.fence = fence.max(one.spool.fence);
                self.tell_daemon(machine, NodeInput::Recorded { fence });
            }
            Work::Prepare(run) => self.prepared(machine, run),
            Work::Abandon(run) => {
                let end = RunEnd {
                    cause: EndCause::Stopped,
                    ..RunEnd::default()
                };
                self.ended(machine, run, end);
            }
            Work::Clean(run) => {
                let one = &mut self.machines[machine];
                one.supervisors.remove(&run);
                if let Some(record) = one.spool.runs.get_mut(&run) {
                    record.clean = true;
                }
                self.tell_daemon(machine, NodeInput::Cleaned { run });
            }
            Work::Forget(run) => {
                self.machines[machine].spool.runs.remove(&run);
                self.tell_daemon(machine, NodeInput::Forgotten { run });
            }
        }
        self.work(machine);
    }

    /// Writes the orders that a target brought, and its fence behind them.
    fn write_orders(&mut self, machine: usize, fence: Fence) {
        let one = &mut self.machines[machine];
        let Some(daemon) = &one.daemon else {
            return;
        };
        let accept = actions(&daemon.state)
            .into_iter()
            .find_map(|action| match action {
                NodeAction::Record {
                    fence: wanted,
                    accept,
                } if wanted == fence => Some(accept),
                _ => None,
            });
        // A newer target may have taken its place.
        let Some(accept) = accept else {
            return;
        };
        for run in accept {
            let record = SpoolRun {
                order: daemon.orders[&run].clone(),
                boot: one.boot,
                supervised: false,
                exit: None,
                clean: false,
            };
            one.spool.runs.insert(run, record);
        }
        self.begin(machine, Work::WriteFence(fence), 5);
    }

    fn prepared(&mut self, machine: usize, run: RunId) {
        let now = self.now;
        let one = &mut self.machines[machine];
        let Some(record) = one.spool.runs.get_mut(&run) else {
            return self.violated(format!("run {run} is prepared without a record"));
        };
        if record.supervised || record.exit.is_some() {
            return;
        }
        let (broken_until, prolog) = one.broken_until;
        if broken_until > now {
            let cause = if prolog {
                EndCause::PrologFailed
            } else {
                EndCause::LaunchNode
            };
            let end = RunEnd {
                cause,
                text: "the node is broken".into(),
                ..RunEnd::default()
            };
            return self.ended(machine, run, end);
        }
        record.supervised = true;
        let order = record.order.clone();
        let supervisor = Supervisor {
            order,
            running_since: None,
            frozen_since: None,
            stood_still: 0,
            dead: false,
            stopping: false,
            timer: 0,
        };
        one.supervisors.insert(run, supervisor);
        self.tell_daemon(machine, NodeInput::Prepared { run });
    }

    fn go(&mut self, machine: usize, run: RunId) {
        let now = self.now;
        let one = &mut self.machines[machine];
        let Some(supervisor) = one.supervisors.get(&run).filter(|s| !s.dead) else {
            return;
        };
        if supervisor.running_since.is_some() || supervisor.stopping {
            return;
        }
        let order = supervisor.order.clone();
        if order.index == 0 && order.behaviour.cause == EndCause::LaunchUser {
            let end = RunEnd {
                cause: EndCause::LaunchUser,
                text: "no such directory".into(),
                ..RunEnd::default()
            };
            return self.ended(machine, run, end);
        }
        let others = one.users_of(&order);
        let node = one.id;
        if let Some(supervisor) = one.supervisors.get_mut(&run) {
            supervisor.running_since = Some(now);
        }
        self.note(|| format!("n{} STARTS processes of {run}", machine + 1));
        if let Some(other) = others.first() {
            self.violated(format!(
                "{run} starts on a GPU of n{} that {other} still uses",
                machine + 1
            ));
        }
        if let Err(violation) = self.truth.started(run, node, now) {
            self.violated(violation);
        }
        if let Some(older) = self.older_self(machine, run) {
            self.violated(format!(
                "{run} starts on n{} beside {older}, which is not known to be gone",
                machine + 1
            ));
        }
        self.set_timer(machine, run, order.limit_secs);
        self.tell_daemon(
            machine,
            NodeInput::Started {
                run,
                started: Timestamp(now),
            },
        );
    }

    /// Processes of an earlier attempt on another machine, where the site does all that no job runs beside its old self.
    fn older_self(&self, machine: usize, run: RunId) -> Option<String> {
        let promised = self.scenario.wait_for_lost || self.scenario.fence_fails.is_some();
        let others = self
            .machines
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != machine && promised && !self.truth.went_back());
        let older = |one: &Supervisor| {
            one.running_since.is_some()
                && one.order.run.job == run.job
                && one.order.run.attempt < run.attempt
        };
        others
            .flat_map(|(_, other)| other.supervisors.values().map(move |one| (other, one)))
            .find(|(_, one)| older(one))
            .map(|(other, one)| format!("{} on {}", one.order.run, other.name))
    }

    /// When the processes will end by themselves, or by their limit.
    fn set_timer(&mut self, machine: usize, run: RunId, limit_secs: Option<u32>) {
        let now = self.now;
        let Some(supervisor) = self.machines[machine].supervisors.get_mut(&run) else {
            return;
        };
        let Some(since) = supervisor.running_since.filter(|_| !supervisor.stopping) else {
            return;
        };
        supervisor.timer += 1;
        if supervisor.frozen_since.is_some() {
            return;
        }
        let order = supervisor.order.clone();
        let from = since + supervisor.stood_still;
        let own = (order.index == 0).then_some(from + order.behaviour.millis);
        let limit = limit_secs.map(|secs| from + 1000 * i64::from(secs));
        let (at, cause, exit) = match (own, limit) {
            (Some(own), limit) if limit.is_none_or(|limit| own <= limit) => {
                (own, order.behaviour.cause, order.behaviour.exit)
            }
            (_, Some(limit)) => (limit, EndCause::TimeLimit, ExitCode::killed(15)),
            _ => return,
        };
        let end = RunEnd {
            cause,
            exit,
            started: Some(Timestamp(since)),
            ..RunEnd::default()
        };
        self.end_after(machine, run, at - now, end);
    }

    fn limit(&mut self, machine: usize, run: RunId, limit_secs: Option<u32>) {
        let Some(supervisor) = self.machines[machine].supervisors.get_mut(&run) else {
            return;
        };
        if supervisor.dead || supervisor.order.limit_secs == limit_secs {
            return;
        }
        supervisor.order.limit_secs = limit_secs;
        self.set_timer(machine, run, limit_secs);
    }

    /// Neither work nor limit goes on while it stands still.
    fn suspend(&mut self, machine: usize, run: RunId, suspended: bool) {
        let now = self.now;
        let Some(supervisor) = self.machines[machine]
            .supervisors
            .get_mut(&run)
            .filter(|s| !s.dead && !s.stopping)
        else {
            return;
        };
        match (
            supervisor.frozen_since,
            suspended && supervisor.running_since.is_some(),
        ) {
            (None, true) => supervisor.frozen_since = Some(now),
            (Some(since), false) => {
                supervisor.stood_still += now - since;
                supervisor.frozen_since = None;
            }
            _ => return,
        }
        let limit_secs = supervisor.order.limit_secs;
        self.set_timer(machine, run, limit_secs);
    }

    fn stop(&mut self, machine: usize, run: RunId, grace_secs: u32) {
        let delay = self.chance.range(0, 1000 * i64::from(grace_secs));
        let Some(supervisor) = self.begin_stop(machine, run) else {
            return;
        };
        let end = RunEnd {
            cause: EndCause::Stopped,
            exit: ExitCode::killed(15),
            ..RunEnd::default()
        };
        if supervisor.running_since.is_none() {
            return self.ended(machine, run, end);
        }
        self.end_after(machine, run, delay, end);
    }

    /// The supervisor, where nothing stops its run yet.
    pub fn begin_stop(&mut self, machine: usize, run: RunId) -> Option<&Supervisor> {
        let supervisors = &mut self.machines[machine].supervisors;
        let supervisor = supervisors
            .get_mut(&run)
            .filter(|s| !s.dead && !s.stopping)?;
        supervisor.stopping = true;
        Some(supervisor)
    }

    /// Its own end may still come first: the timer stays as it is.
    pub fn end_after(&mut self, machine: usize, run: RunId, delay: i64, end: RunEnd) {
        let one = &self.machines[machine];
        let Some(timer) = one.supervisors.get(&run).map(|s| s.timer) else {
            return;
        };
        let boot = one.boot;
        self.after(
            delay,
            SimEvent::RunEnds {
                machine,
                boot,
                run,
                timer,
                end,
            },
        );
    }

    pub fn run_ends(&mut self, machine: usize, boot: u32, run: RunId, timer: u64, end: RunEnd) {
        let one = &self.machines[machine];
        let valid = one
            .supervisors
            .get(&run)
            .is_some_and(|s| s.timer == timer && !s.dead);
        if one.powered && one.boot == boot && valid {
            self.ended(machine, run, end);
        }
    }

    /// The processes are gone; the supervisor, or the daemon for it, writes the one exit record.
    fn ended(&mut self, machine: usize, run: RunId, end: RunEnd) {
        let now = self.now;
        let one = &mut self.machines[machine];
        let node = one.id;
        let began = one
            .supervisors
            .remove(&run)
            .and_then(|supervisor| supervisor.running_since);
        let Some(record) = one.spool.runs.get_mut(&run) else {
            return;
        };
        let index = record.order.index;
        // A lost GPU measures nothing.
        let measured = began.filter(|_| !end.cause.is_node_failure());
        let ran_millis = measured.and_then(|began| u64::try_from(now - began).ok());
        let end = RunEnd {
            started: measured.map(Timestamp),
            ended: Some(Timestamp(now)),
            ran_millis,
            ..end
        };
        if record.exit.is_none() && ran_millis.is_some() {
            self.truth.stopped(run, node, now);
        }
        let end = record.exit.get_or_insert(end).clone();
        self.note(|| format!("n{} ENDS {run}: {:?} {}", machine + 1, end.cause, end.exit));
        if index == 0 {
            self.truth.ended(run, &end);
        }
        self.tell_daemon(machine, NodeInput::Ended { run, end });
    }

    /// The supervisor dies; its processes live until the daemon notices.
    pub fn kill_supervisor(&mut self, machine: usize, pick: usize) {
        let one = &mut self.machines[machine];
        let count = one.supervisors.len().max(1);
        let Some(supervisor) = one.supervisors.values_mut().nth(pick % count) else {
            return;
        };
        supervisor.dead = true;
        let run = supervisor.order.run;
        let epoch = one.daemon.as_ref().map_or(0, |daemon| daemon.epoch);
        let delay = self.chance.range(0, 3000);
        self.after(
            delay,
            SimEvent::DaemonMissesSupervisor {
                machine,
                epoch,
                run,
            },
        );
    }

    pub fn supervisor_missed(&mut self, machine: usize, epoch: u64, run: RunId) {
        let one = &self.machines[machine];
        let same = one
            .daemon
            .as_ref()
            .is_some_and(|daemon| daemon.epoch == epoch);
        if same
            && one
                .supervisors
                .get(&run)
                .is_some_and(|supervisor| supervisor.dead)
        {
            let text = "the supervisor died".into();
            let end = RunEnd {
                cause: EndCause::SupervisorLost,
                text,
                ..RunEnd::default()
            };
            self.ended(machine, run, end);
        }
    }
}

fn shown(fence: Fence) -> String {
    format!("{}/{}", fence.incarnation, fence.generation)
}

fn brief(event: &NodeEvent) -> String {
    match event {
        NodeEvent::Scanned { runs, .. } => format!("scanned {runs:?}"),
        NodeEvent::TargetCame { desired, .. } => format!("takes {}", shown(desired.fence)),
        NodeEvent::OldTargetRefused { fence, newest } => {
            format!("refuses {}, has {}", shown(*fence), shown(*newest))
        }
        NodeEvent::TargetObeyed {
            desired,
            accepted,
            refused,
        } => {
            format!(
                "obeys {}: accepts {accepted:?}, refuses {refused:?}",
                shown(desired.fence)
            )
        }
        NodeEvent::PhaseReached { run, phase } => format!("{run} reaches {phase:?}"),
        NodeEvent::MarkSet { run, mark } => format!("{run} has mark {}", mark.number),
        NodeEvent::RunForgotten { run } => format!("forgets {run}"),
    }
}
