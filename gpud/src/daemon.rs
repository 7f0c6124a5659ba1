//! The daemon's one loop: what happened goes into the node machine, what its state calls for is carried out.
//!
//! Owns the node's state and every conversation; blocking work runs on threads and comes back as a [`Happening`].
//! Decides nothing itself: `gcore::node` does. Channels: one in, from all tasks; one out per connection.

use crate::inventory::Gpus;
use crate::report::Told;
use crate::site::Site;
use crate::step::{self, StepLink, Supervisor};
use crate::{check_program, clean, gpu_check, hook, own_limits, prepare, standstill};
use gcore::node::{
    NodeAction, NodeEvent, NodeInput, NodeState, SpooledRun, actions, apply, check, handle,
};
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use gmodel::idle::IdleReport;
use gmodel::launch_order::LaunchOrder;
use gmodel::node::{HungRun, Inventory, Role};
use gmodel::run::{DesiredState, EndCause, RunEnd, RunPhase, RunUse, StopCause};
use gmodel::supervise::{StepOrder, SupervisorReport};
use gmodel::{Fence, RunId, Timestamp};
use gwire::node_protocol::{ToController, ToNode};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// Happenings that wait for the loop; senders wait beyond it.
pub const QUEUE: usize = 256;
/// Before something that failed on this node is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// For a run whose GPU is sick: what it still writes may be wrong.
const GPU_GRACE_SECS: u32 = 5;

/// What tasks and threads tell the loop.
#[derive(Debug)]
pub enum Happening {
    LinkUp {
        connection: u64,
        sender: mpsc::Sender<ToController>,
    },
    LinkDown {
        connection: u64,
    },
    Frame {
        connection: u64,
        frame: ToNode,
    },
    Step {
        run: RunId,
        connection: u64,
        words: SupervisorReport,
    },
    StepGone {
        run: RunId,
        connection: u64,
    },
    /// The fence is durable; `failed` are runs whose order could not be kept.
    Recorded {
        fence: Fence,
        failed: BTreeSet<RunId>,
        written: bool,
    },
    /// A supervisor answers, or the run's end is on record.
    Supervisor {
        run: RunId,
        outcome: Result<Supervisor, Box<RunEnd>>,
    },
    Cleaned {
        run: RunId,
        done: bool,
    },
    Forgotten {
        run: RunId,
        done: bool,
    },
    FencesBroken {
        runs: Vec<RunId>,
    },
    /// A GPU of each is sick, as its spool says.
    GpusFailed {
        runs: Vec<RunId>,
    },
    /// The use of the run's GPUs is on record: its end can be told.
    Measured {
        run: RunId,
        end: Box<RunEnd>,
    },
    /// Orders for GPUs that were carried out, or could not be: on disk, to be told.
    GpuOrdersDone {
        done: Vec<GpuOrderDone>,
    },
    /// How idle the GPUs of runs are.
    GpusIdle {
        runs: Vec<IdleReport>,
    },
    /// It was slow, and answers.
    SupervisorActs {
        run: RunId,
    },
    /// GPUs or the room in the spool may have changed; comes every ten seconds.
    InventoryChanged,
}

/// The node daemon at work.
pub struct Daemon {
    site: Arc<Site>,
    state: NodeState,
    sender: mpsc::Sender<Happening>,
    told: Option<Told>,
    /// Orders of this connection that were not accepted yet.
    orders: BTreeMap<RunId, Arc<LaunchOrder>>,
    /// The fence being written.
    recording: bool,
    work: BTreeMap<RunId, Work>,
    steps_opened: u64,
    inventory: Arc<Inventory>,
    /// The GPUs that `inventory` is about.
    gpus_shown: Arc<Gpus>,
}

/// What is under way for a run.
#[derive(Default)]
struct Work {
    /// A thread is at it; nothing else is begun.
    busy: bool,
    step: Option<StepLink>,
    /// The supervisor's process, kept after the conversation, to see it off.
    process: Option<OwnedFd>,
}

impl Daemon {
    /// Reads the spool, finds the supervisors again, and knows where it stands. Blocking.
    pub fn begin(site: Arc<Site>, sender: mpsc::Sender<Happening>) -> anyhow::Result<Self> {
        let mut daemon = Self {
            state: NodeState::new(),
            sender,
            told: None,
            orders: BTreeMap::new(),
            recording: false,
            work: BTreeMap::new(),
            steps_opened: 0,
            gpus_shown: site.gpus.current(),
            inventory: Arc::new(inventory(&site)),
            site,
        };
        daemon.adopt()?;
        Ok(daemon)
    }

    /// Runs until the channel closes.
    pub async fn run(mut self, mut happenings: mpsc::Receiver<Happening>) {
        self.act();
        loop {
            let due = self.told.as_ref().and_then(Told::due);
            match first_or_due(&mut happenings, due).await {
                Some(Some(first)) => self.take(first),
                Some(None) => return,
                None => {}
            }
            // All that waits is taken before acting: a burst of reports makes one frame.
            while let Ok(more) = happenings.try_recv() {
                self.take(more);
            }
            self.act();
            self.report();
        }
    }

    fn take(&mut self, happening: Happening) {
        match happening {
            Happening::LinkUp { connection, sender } => self.greet(connection, sender),
            Happening::LinkDown { connection } => {
                if self
                    .told
                    .as_ref()
                    .is_some_and(|told| told.connection == connection)
                {
                    self.told = None;
                }
            }
            Happening::Frame { connection, frame } => {
                if self
                    .told
                    .as_ref()
                    .is_some_and(|told| told.connection == connection)
                {
                    self.read(frame);
                }
            }
            Happening::Recorded {
                fence,
                failed,
                written,
            } => self.recorded(fence, &failed, written),
            Happening::Supervisor {
                run,
                outcome: Ok(supervisor),
            } => {
                self.idle(run);
                self.converse(run, supervisor);
            }
            Happening::Supervisor {
                run,
                outcome: Err(end),
            } => {
                self.idle(run);
                self.ended(run, *end);
            }
            Happening::Step {
                run,
                connection,
                words,
            } => {
                if self.speaks(run, connection) {
                    self.listen(run, words);
                }
            }
            Happening::StepGone { run, connection } => {
                if self.speaks(run, connection) {
                    self.supervisor_fell_silent(run);
                }
            }
            Happening::Cleaned { run, done } => {
                self.idle(run);
                if !done || !self.inventory.hung.is_empty() {
                    self.look_at_inventory();
                }
                if done {
                    // A GPU that it did not leave clean is out before its share is free.
                    if !Arc::ptr_eq(&self.gpus_shown, &self.site.gpus.current()) {
                        self.look_at_inventory();
                    }
                    self.site.spool.log(
                        run,
                        wall_clock(),
                        "clean: its processes, cgroups and files are gone from this node",
                    );
                    self.feed(NodeInput::Cleaned { run });
                }
            }
            Happening::Forgotten { run, done } => {
                self.idle(run);
                if done {
                    self.work.remove(&run);
                    self.feed(NodeInput::Forgotten { run });
                }
            }
            Happening::FencesBroken { runs } => self.end_at_once(&runs, StopCause::FenceBroken, 0),
            Happening::GpusFailed { runs } => {
                self.end_at_once(&runs, StopCause::GpuFailed, GPU_GRACE_SECS)
            }
            Happening::Measured { run, end } => self.ended_by_itself(run, *end),
            Happening::GpuOrdersDone { done } => self.answer_gpu_orders(done),
            Happening::GpusIdle { runs } => self.tell_idle(runs),
            Happening::SupervisorActs { run } => {
                self.idle(run);
                self.with_step(run, StepLink::heard_from);
            }
            Happening::InventoryChanged => {
                self.look_at_inventory();
                self.look_for_standstill();
            }
        }
    }

    /// Supervisors that have not done what is long due are asked whether they live.
    fn look_for_standstill(&mut self) {
        let due = |(run, work): (&RunId, &Work)| {
            Some((
                *run,
                work.step
                    .as_ref()
                    .filter(|_| !work.busy)?
                    .overdue(&self.site, *run)?,
            ))
        };
        for (run, end) in self.work.iter().filter_map(due).collect::<Vec<_>>() {
            self.begin_work(run, move |site, run, _| standstill::look(site, run, end));
        }
    }

    fn look_at_inventory(&mut self) {
        self.gpus_shown = self.site.gpus.current();
        self.inventory = Arc::new(inventory(&self.site));
    }

    // --- the controller ---

    /// Everything this node knows, before it obeys anything.
    fn greet(&mut self, connection: u64, sender: mpsc::Sender<ToController>) {
        self.orders.clear();
        self.told = Told::greet(connection, sender, &self.state, &self.inventory);
    }

    fn read(&mut self, frame: ToNode) {
        match frame {
            ToNode::Welcome {
                cluster, release, ..
            } => {
                tracing::info!(
                    "connected to cluster {cluster:?}, gpuctld {release}, as {:?}",
                    self.site.name
                );
            }
            ToNode::Orders { orders, desired } => self.receive(orders, desired),
            ToNode::ReadLog { question, run } => self.answer_log(question, run),
            ToNode::ReadUse { question, run } => self.answer_use(question, run),
            ToNode::TellOrders { runs } => self.tell_orders(runs),
            ToNode::Step { run, step } => self.start_step(run, step),
            ToNode::Ping | ToNode::Refused { .. } | ToNode::Unknown => {}
        }
    }

    /// Hands a step to the run's supervisor. Without one grun is told so, where it waits.
    fn start_step(&mut self, run: RunId, order: StepOrder) {
        match self.work.get_mut(&run).and_then(|work| work.step.as_mut()) {
            Some(link) => link.step(order),
            None => {
                tokio::spawn(step::refuse_step(
                    order,
                    format!("run {run} has no supervisor here"),
                ));
            }
        }
    }

    fn receive(&mut self, orders: Vec<LaunchOrder>, desired: DesiredState) {
        if self.site.role == Role::Compute {
            let named = orders
                .into_iter()
                .filter_map(|order| Some((order.run?, Arc::new(order))));
            self.orders.extend(named);
        }
        let orders = self.orders.keys().copied().collect();
        let (incarnation, gpus) = (desired.fence.incarnation, desired.gpus.clone());
        let events = self.feed(NodeInput::DesiredReceived { desired, orders });
        match events[..] {
            [NodeEvent::OldTargetRefused { fence, newest }] => {
                tracing::warn!("an order with fence {fence:?} was refused: {newest:?} is in force");
            }
            _ => self.carry_out_gpu_orders(incarnation, gpus),
        }
    }

    fn carry_out_gpu_orders(&self, incarnation: u64, orders: Vec<GpuOrder>) {
        self.site
            .checks
            .keep_only(&orders.iter().map(|order| order.number).collect());
        let (checks, orders): (Vec<GpuOrder>, Vec<GpuOrder>) = orders
            .into_iter()
            .partition(|order| matches!(order.what, GpuAction::Check(_)));
        if !checks.is_empty() {
            let (site, sender) = (Arc::clone(&self.site), self.sender.clone());
            tokio::task::spawn_blocking(move || {
                gpu_check::obey(&site, &sender, incarnation, checks)
            });
        }
        if orders.is_empty() {
            return;
        }
        let (site, sender) = (Arc::clone(&self.site), self.sender.clone());
        tokio::task::spawn_blocking(move || {
            let nobody =
                |order: &GpuOrder| GpuOrderDone::new(order, "this node does not look after GPUs");
            let done = match &site.gpu_watch {
                Some(watch) => watch.carry_out(incarnation, &orders, &site),
                None => orders.iter().map(nobody).collect(),
            };
            let _ = sender.blocking_send(Happening::GpuOrdersDone { done });
        });
    }

    /// After the inventory: who hears that a GPU is out sees it too.
    fn answer_gpu_orders(&mut self, done: Vec<GpuOrderDone>) {
        self.look_at_inventory();
        self.report();
        let failed = done.is_empty();
        let frame = ToController::GpuOrders { done };
        // What is not told now is told on the next connection: the orders come again with it.
        if self
            .told
            .as_ref()
            .is_some_and(|told| failed || told.sender.try_send(frame).is_err())
        {
            self.told = None;
        }
    }

    fn recorded(&mut self, fence: Fence, failed: &BTreeSet<RunId>, written: bool) {
        self.recording = false;
        if !written {
            return;
        }
        if !failed.is_empty()
            && let Some(pending) = self
                .state
                .pending
                .clone()
                .filter(|pending| pending.desired.fence == fence)
        {
            let orders = pending.orders.difference(failed).copied().collect();
            self.feed(NodeInput::DesiredReceived {
                desired: pending.desired,
                orders,
            });
        }
        self.feed(NodeInput::Recorded { fence });
        let held = &self.state.runs;
        self.orders.retain(|run, _| !held.contains_key(run));
    }

    /// What the spool holds of the orders asked for: one frame each, for scripts may be long.
    fn tell_orders(&self, runs: Vec<RunId>) {
        let Some(told) = &self.told else { return };
        let (site, sender) = (Arc::clone(&self.site), told.sender.clone());
        tokio::task::spawn_blocking(move || {
            for run in runs {
                match site.spool.order(run) {
                    // The script and its variables stay here: the run has them, and it is not started again.
                    Ok(order) => {
                        let _ = sender.blocking_send(ToController::Orders {
                            orders: vec![LaunchOrder::clone(&order)],
                            done: false,
                        });
                    }
                    Err(e) => tracing::warn!(%run, "{e:#}"),
                }
            }
            let _ = sender.blocking_send(ToController::Orders {
                orders: Vec::new(),
                done: true,
            });
        });
    }

    /// A controller that reads too slowly hears it the next time.
    fn tell_idle(&self, runs: Vec<IdleReport>) {
        if let Some(told) = &self.told {
            let _ = told.sender.try_send(ToController::Idle { runs });
        }
    }

    fn answer_log(&self, question: u64, run: RunId) {
        let Some(told) = &self.told else { return };
        let (site, sender) = (Arc::clone(&self.site), told.sender.clone());
        tokio::task::spawn_blocking(move || {
            let (text, error) = match site.spool.read_log(run) {
                Ok(text) => (text, String::new()),
                Err(e) => (String::new(), format!("{e:#}")),
            };
            let _ = sender.blocking_send(ToController::Log {
                question,
                text,
                error,
            });
        });
    }

    fn answer_use(&self, question: u64, run: RunId) {
        let Some(told) = &self.told else { return };
        let (site, sender) = (Arc::clone(&self.site), told.sender.clone());
        tokio::task::spawn_blocking(move || {
            let (used, error) = match crate::live_use::read(&site, run) {
                Ok(used) => (used, String::new()),
                Err(e) => (RunUse::default(), format!("{e:#}")),
            };
            let _ = sender.blocking_send(ToController::Use {
                question,
                used,
                error,
            });
        });
    }

    /// Says what the controller does not know yet.
    fn report(&mut self) {
        if let Some(told) = &mut self.told
            && !told.send_news(&self.state, &self.inventory, std::time::Instant::now())
        {
            self.told = None;
        }
    }

    // --- what the state calls for ---

    fn feed(&mut self, input: NodeInput) -> Vec<NodeEvent> {
        let events = handle(&self.state, input, wall_clock());
        for event in &events {
            apply(&mut self.state, event);
            self.note(event);
        }
        let wrong = check(&self.state);
        assert!(
            wrong.is_empty(),
            "the node's state is wrong, better stop than act on it: {wrong:?} after {events:?}"
        );
        events
    }

    /// One line in the run's log for what its owner may ask about.
    fn note(&self, event: &NodeEvent) {
        let (spool, now) = (&self.site.spool, wall_clock());
        match event {
            NodeEvent::TargetObeyed { accepted, .. } => {
                accepted
                    .iter()
                    .for_each(|run| spool.log(*run, now, "accepted"));
            }
            NodeEvent::PhaseReached {
                run,
                phase: RunPhase::Ready,
            } => spool.log(*run, now, "ready"),
            NodeEvent::PhaseReached {
                run,
                phase: RunPhase::Running { .. },
            } => spool.log(*run, now, "running"),
            NodeEvent::MarkSet { run, mark } => {
                tracing::debug!(%run, "checkpoint mark {}", mark.number)
            }
            NodeEvent::PhaseReached {
                run,
                phase: RunPhase::Ended(end),
            } => {
                let text = if end.text.is_empty() {
                    String::new()
                } else {
                    format!(": {}", end.text)
                };
                spool.log(
                    *run,
                    now,
                    &format!("ended: {:?}, exit {}{text}", end.cause, end.exit),
                );
            }
            _ => {}
        }
    }

    fn act(&mut self) {
        for action in actions(&self.state) {
            match action {
                // The supervisor is there; its first words make the run ready.
                NodeAction::Prepare { run } | NodeAction::Abandon { run } if self.has_step(run) => {
                }
                NodeAction::Record { fence, accept } => self.record(fence, &accept),
                NodeAction::Prepare { run } => self.begin_work(run, |site, run, _| {
                    let outcome = prepare::prepare(site, run)
                        .map_err(|failure| Box::new(recorded_end(site, run, failure.end())));
                    Happening::Supervisor { run, outcome }
                }),
                NodeAction::Abandon { run } => self.begin_work(run, |site, run, _| {
                    let end = RunEnd {
                        cause: EndCause::Stopped,
                        text: "stopped before it started".into(),
                        ..RunEnd::default()
                    };
                    Happening::Supervisor {
                        run,
                        outcome: Err(Box::new(recorded_end(site, run, end))),
                    }
                }),
                NodeAction::Go { run } => self.with_step(run, StepLink::go),
                NodeAction::Stop {
                    run,
                    why,
                    grace_secs,
                } => self.with_step(run, |step| step.stop(why, grace_secs)),
                NodeAction::Signal { run, signal } => {
                    self.with_step(run, |step| step.signal(signal))
                }
                NodeAction::Suspend { run, suspended } => self.suspend(run, suspended),
                NodeAction::Limit { run, limit_secs } => {
                    self.with_step(run, |step| step.limit(limit_secs))
                }
                NodeAction::Clean { run } => {
                    // Closing the conversation tells the supervisor that it may go.
                    let work = self.work.entry(run).or_default();
                    if let Some(step) = work.step.take() {
                        work.process = step.process;
                    }
                    self.begin_work(run, |site, run, process| {
                        let cleaned = clean::clean(site, run, process.as_ref());
                        Happening::Cleaned {
                            run,
                            done: succeeded(run, cleaned),
                        }
                    });
                }
                NodeAction::Forget { run } => self.begin_work(run, |site, run, _| {
                    let forgotten = site.spool.forget(run);
                    Happening::Forgotten {
                        run,
                        done: succeeded(run, forgotten),
                    }
                }),
            }
        }
    }

    fn record(&mut self, fence: Fence, accept: &[RunId]) {
        if std::mem::replace(&mut self.recording, true) {
            return;
        }
        let orders: Vec<_> = accept
            .iter()
            .filter_map(|run| Some((*run, self.orders.get(run)?.clone())))
            .collect();
        let (site, sender) = (Arc::clone(&self.site), self.sender.clone());
        tokio::task::spawn_blocking(move || {
            let accept = |run: &RunId, order: &LaunchOrder| {
                own_limits::patiently(&format!("the order of run {run}"), || {
                    site.spool.accept(*run, order)
                })
            };
            let keep = |(run, order): &(RunId, Arc<LaunchOrder>)| {
                accept(run, order).map_err(|e| (*run, e))
            };
            let mut failed = BTreeSet::new();
            for (run, e) in orders.iter().filter_map(|order| keep(order).err()) {
                tracing::error!(%run, "{e:#}");
                failed.insert(run);
            }
            let written = site.spool.write_fence(fence);
            if let Err(e) = &written {
                tracing::error!("{e:#}; nothing new is obeyed until it works");
                std::thread::sleep(RETRY_AFTER);
            }
            let _ = sender.blocking_send(Happening::Recorded {
                fence,
                failed,
                written: written.is_ok(),
            });
        });
    }

    /// Hands the run to a thread, unless one is at it already: then its outcome is awaited.
    fn begin_work(
        &mut self,
        run: RunId,
        work: impl FnOnce(&Site, RunId, Option<OwnedFd>) -> Happening + Send + 'static,
    ) {
        let slot = self.work.entry(run).or_default();
        if std::mem::replace(&mut slot.busy, true) {
            return;
        }
        let process = slot.process.take();
        let (site, sender) = (Arc::clone(&self.site), self.sender.clone());
        tokio::task::spawn_blocking(move || {
            let happening = work(&site, run, process);
            if matches!(
                happening,
                Happening::Cleaned { done: false, .. } | Happening::Forgotten { done: false, .. }
            ) {
                std::thread::sleep(RETRY_AFTER);
            }
            let _ = sender.blocking_send(happening);
        });
    }

    fn idle(&mut self, run: RunId) {
        self.work.entry(run).or_default().busy = false;
    }

    // --- the supervisors ---

    fn with_step(&mut self, run: RunId, say: impl FnOnce(&mut StepLink)) {
        if let Some(step) = self.work.get_mut(&run).and_then(|work| work.step.as_mut()) {
            say(step);
        }
    }

    fn has_step(&self, run: RunId) -> bool {
        self.work.get(&run).is_some_and(|work| work.step.is_some())
    }

    fn speaks(&self, run: RunId, connection: u64) -> bool {
        let step = self.work.get(&run).and_then(|work| work.step.as_ref());
        step.is_some_and(|step| step.connection == connection)
    }

    fn converse(&mut self, run: RunId, supervisor: Supervisor) {
        self.steps_opened += 1;
        match StepLink::open(run, self.steps_opened, supervisor, self.sender.clone()) {
            Ok(step) => self.work.entry(run).or_default().step = Some(step),
            Err(e) => {
                tracing::error!(%run, "talking to gstepd: {e:#}");
                self.supervisor_fell_silent(run);
            }
        }
    }

    fn listen(&mut self, run: RunId, words: SupervisorReport) {
        match words {
            SupervisorReport::Ready { .. } => match self.site.spool.mark_ready(run) {
                Ok(()) => {
                    self.feed(NodeInput::Prepared { run });
                }
                // Without the mark a restart would start the run again: it must not be released.
                Err(e) => tracing::error!(%run, "{e:#}; the run stays unreleased"),
            },
            SupervisorReport::Running { started, .. } => {
                self.with_step(run, |step| step.runs_since(started));
                self.feed(NodeInput::Started { run, started });
                self.follow_use(run);
            }
            SupervisorReport::Mark { mark } => {
                self.feed(NodeInput::Marked { run, mark });
            }
            SupervisorReport::Ended { end } => self.measure(run, end),
            SupervisorReport::Unknown => {}
        }
    }

    /// The use of its GPUs counts from now.
    fn follow_use(&self, run: RunId) {
        let Some(watch) = &self.site.gpu_watch else {
            return;
        };
        let begin = move |site: &Site| {
            let (Some(watch), gpus) = (&site.gpu_watch, gpus_of(site, run)) else {
                return;
            };
            if !gpus.is_empty() {
                watch.run_began(run, &site.spool.run_dir(run), &gpus);
            }
        };
        if watch.has_fresh_sample() {
            return begin(&self.site);
        }
        let site = Arc::clone(&self.site);
        tokio::task::spawn_blocking(move || begin(&site));
    }

    fn suspend(&mut self, run: RunId, suspended: bool) {
        let mut news = false;
        if !suspended {
            choose_cpus_again(&self.site, run);
        }
        self.with_step(run, |step| news = step.suspend(suspended));
        if let Some(watch) = self.site.gpu_watch.as_ref().filter(|_| news) {
            watch.run_suspended(run, suspended);
        }
    }

    /// The end of a run with GPUs is told with what it made of them; NVML has a deadline, so that the end is not lost for it.
    fn measure(&mut self, run: RunId, end: RunEnd) {
        let Some(watch) = self
            .site
            .gpu_watch
            .as_ref()
            .filter(|watch| watch.follows(run))
        else {
            return self.ended_by_itself(run, end);
        };
        if watch.has_fresh_sample() {
            watch.run_ended(run, &self.site.spool.run_dir(run));
            return self.ended_by_itself(run, end);
        }
        let (site, sender) = (Arc::clone(&self.site), self.sender.clone());
        tokio::task::spawn_blocking(move || {
            if let Some(watch) = &site.gpu_watch {
                watch.run_ended(run, &site.spool.run_dir(run));
            }
            let _ = sender.blocking_send(Happening::Measured {
                run,
                end: Box::new(end),
            });
        });
    }

    /// Its supervisor has said so, and all marks before.
    fn ended_by_itself(&mut self, run: RunId, end: RunEnd) {
        let end = self.site.spool.explained(run, end);
        self.feed(NodeInput::Ended { run, end });
    }

    fn ended(&mut self, run: RunId, end: RunEnd) {
        // A supervisor that was killed may have acknowledged a mark and not told us.
        self.read_mark(run);
        self.feed(NodeInput::Ended { run, end });
    }

    fn read_mark(&mut self, run: RunId) {
        if let Some(mark) = self.site.spool.mark(run) {
            self.feed(NodeInput::Marked { run, mark });
        }
    }

    /// Its connection ended without a word of the end: it may only have dropped us; else what it held is killed.
    fn supervisor_fell_silent(&mut self, run: RunId) {
        if let Some(step) = self.work.get_mut(&run).and_then(|work| work.step.take()) {
            self.work.entry(run).or_default().process = step.process;
        }
        self.begin_work(run, |site, run, _| Happening::Supervisor {
            run,
            outcome: look_after(site, run),
        });
    }

    fn end_at_once(&mut self, runs: &[RunId], why: StopCause, grace_secs: u32) {
        for run in runs {
            self.with_step(*run, |step| step.stop(why, grace_secs));
        }
    }

    fn adopt(&mut self) -> anyhow::Result<()> {
        use crate::spool::Record;
        let site = Arc::clone(&self.site);
        // Before a run is made ready on their GPUs.
        site.cgroups.iter().for_each(check_program::end_orphans);
        let mut found = Vec::new();
        for (run, record) in site.spool.scan()? {
            let what = match record {
                Record::Ended { end, clean } => SpooledRun::Ended { end: *end, clean },
                Record::Order => SpooledRun::Accepted,
                Record::Supervised => self.find_supervisor(run)?,
            };
            tracing::info!(%run, "found in the spool: {what:?}");
            found.push((run, what));
        }
        remove_unknown_cgroups(&site, &found);
        let (life, fence) = (site.spool.life().clone(), site.spool.fence());
        let runs: Vec<RunId> = found.iter().map(|(run, _)| *run).collect();
        self.feed(NodeInput::Scanned {
            life,
            fence,
            runs: found,
        });
        runs.into_iter().for_each(|run| self.read_mark(run));
        Ok(())
    }

    /// A run whose supervisor was started: how far it is by that one's word, or by the record.
    fn find_supervisor(&mut self, run: RunId) -> anyhow::Result<SpooledRun> {
        let site = Arc::clone(&self.site);
        let spool = &site.spool;
        let place = step::Place::of(spool, run);
        let Some(supervisor) = place.find() else {
            return Ok(match spool.end(run)? {
                Some(end) => SpooledRun::Ended { end, clean: false },
                // It was about to be started when the daemon died, and was never ready: nothing was released.
                None if !spool.was_ready(run) => SpooledRun::Accepted,
                None => SpooledRun::Ended {
                    end: supervisor_lost(&site, run),
                    clean: false,
                },
            });
        };
        let said = place.first_words();
        self.converse(run, supervisor);
        Ok(match said {
            Some(SupervisorReport::Running { started, .. }) => SpooledRun::Running { started },
            Some(SupervisorReport::Ended { end }) => SpooledRun::Ended {
                end: spool.end(run)?.unwrap_or(end),
                clean: false,
            },
            _ => {
                spool.mark_ready(run)?;
                SpooledRun::Ready
            }
        })
    }
}

/// What happens next (`Some(None)`: nothing will any more), or none when a report is due before it.
async fn first_or_due(
    happenings: &mut mpsc::Receiver<Happening>,
    due: Option<std::time::Instant>,
) -> Option<Option<Happening>> {
    match due {
        None => Some(happenings.recv().await),
        Some(due) => tokio::time::timeout_at(due.into(), happenings.recv())
            .await
            .ok(),
    }
}

fn inventory(site: &Site) -> Inventory {
    let gpus = site.gpus.current();
    let unfit = match site.role {
        Role::Login => "a login node runs no jobs".to_owned(),
        Role::Compute if !site.unfit.is_empty() => site.unfit.clone(),
        Role::Compute if gpus.facts.is_empty() && !gpus.trouble.is_empty() => gpus.trouble.clone(),
        Role::Compute => site.spool.shortage(),
    };
    let mut inventory = crate::inventory::inventory(&site.config, &gpus, unfit, wall_clock());
    crate::gpu_share::show(site, &mut inventory);
    let hung = site.hung.lock().expect("no holder panics");
    inventory.hung = hung
        .iter()
        .map(|(run, text)| HungRun {
            run: Some(*run),
            text: text.clone(),
        })
        .collect();
    HungRun::bound(&mut inventory.hung);
    inventory.notes = site
        .gpu_watch
        .as_ref()
        .map_or_else(Vec::new, |watch| watch.strays());
    inventory
}

/// UUIDs of the run's GPUs here, and thousandths of each that it holds. A slice has a UUID of its own, and all of that.
fn gpus_of(site: &Site, run: RunId) -> Vec<(String, u32)> {
    let setup = site.spool.setup(run).ok().flatten();
    setup.map_or_else(Vec::new, |setup| {
        setup
            .gpus
            .iter()
            .map(|gpu| {
                (
                    gpu.uuid.clone(),
                    if gpu.share_milli == 0 {
                        1000
                    } else {
                        gpu.share_milli
                    },
                )
            })
            .collect()
    })
}

/// Before a run goes on: others may have its CPUs meanwhile.
fn choose_cpus_again(site: &Site, run: RunId) {
    let (Some(binding), Some(root), Ok(order)) = (&site.cpus, &site.cgroups, site.spool.order(run))
    else {
        return;
    };
    let own = gpus_of(site, run);
    let known = site.gpus.current();
    let near = known
        .facts
        .iter()
        .filter(|gpu| own.iter().any(|(uuid, _)| *uuid == gpu.uuid));
    let wish = crate::cpu_binding::wish(&order, near);
    let text = match binding.choose_again(site, root, &crate::site::cgroup_name(run), &wish) {
        Ok(None) => return,
        Ok(Some(cpus)) => format!("goes on with CPUs {}", gsys::cpu::list_text(&cpus)),
        Err(e) => format!("goes on: {e:#}"),
    };
    site.spool.log(run, wall_clock(), &text);
}

/// The supervisor of a run, or the run's end: its own, or `SupervisorLost` once everything of it is killed.
fn look_after(site: &Site, run: RunId) -> Result<Supervisor, Box<RunEnd>> {
    step::Place::of(&site.spool, run)
        .find()
        .ok_or_else(|| Box::new(supervisor_lost(site, run)))
}

fn supervisor_lost(site: &Site, run: RunId) -> RunEnd {
    let text = "the run's supervisor (gstepd) died; its processes were killed".to_owned();
    recorded_end(
        site,
        run,
        RunEnd {
            cause: EndCause::SupervisorLost,
            text,
            ..RunEnd::default()
        },
    )
}

/// Puts an end on record that no supervisor will write, after killing what may be left; the supervisor's own counts.
pub fn recorded_end(site: &Site, run: RunId, mut end: RunEnd) -> RunEnd {
    if let Err(e) = clean::kill_orphans(site, run) {
        tracing::error!(%run, "killing what is left: {e:#}");
    }
    end.ended = end.ended.or(Some(wall_clock()));
    match site.spool.write_end(run, end.clone()) {
        Ok(counts) => counts,
        Err(e) => {
            tracing::error!(%run, "{e:#}");
            end
        }
    }
}

/// Cgroups of runs that the spool does not know (it was lost), and of programs for GPUs that a crash left. Their processes are
/// killed now; a supervisor among them takes some seconds to see that and leave.
fn remove_unknown_cgroups(site: &Arc<Site>, found: &[(RunId, SpooledRun)]) {
    let Some(root) = &site.cgroups else { return };
    let of_run = |run: RunId| {
        hook::Kind::ALL
            .map(|kind| hook::cgroup_name(kind, run))
            .into_iter()
            .chain([crate::site::cgroup_name(run)])
    };
    let known: BTreeSet<String> = found.iter().flat_map(|(run, _)| of_run(*run)).collect();
    for name in
        root.runs().unwrap_or_default().into_iter().filter(|name| {
            !known.contains(name) && !name.starts_with(crate::gpu_share::CGROUP_PREFIX)
        })
    {
        tracing::warn!("cgroup {name} belongs to no run in the spool: its processes are killed");
        let site = Arc::clone(site);
        tokio::task::spawn_blocking(move || {
            let Some(root) = &site.cgroups else { return };
            let remove = || {
                let cgroup = gsys::cgroup::RunCgroup::open(root, &name)?;
                cgroup.kill()?;
                cgroup.wait_empty(Duration::from_secs(5))?;
                cgroup.remove()
            };
            let deadline = std::time::Instant::now() + Duration::from_secs(30);
            while let Err(e) = remove() {
                if std::time::Instant::now() > deadline {
                    return tracing::error!("{:#}", anyhow::Error::from(e));
                }
                std::thread::sleep(RETRY_AFTER);
            }
        });
    }
}

fn succeeded(run: RunId, outcome: anyhow::Result<()>) -> bool {
    if let Err(e) = &outcome {
        tracing::error!(%run, "{e:#}; again in {} s", RETRY_AFTER.as_secs());
    }
    outcome.is_ok()
}

/// The node's wall clock; what it stamps is for people, and ages are the controller's affair.
pub fn wall_clock() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(since.as_millis() as i64)
}
