//! The daemon's one loop: what happened goes into the node machine, what its state calls for is carried out.
//!
//! Owns the node's state and every conversation; blocking work runs on threads and comes back as a [`DaemonInput`].
//! Decides nothing itself: `gcore::node` does. Channels: one in, from all tasks; one out per connection.

mod controller;
mod supervisors;

use crate::clock::wall_clock;
use crate::controller::report::Reporter;
use crate::gpu::share;
use crate::gpu::table::Gpus;
use crate::input::DaemonInput;
use crate::own_limits;
use crate::run::end::recorded_end;
use crate::run::step_link::StepLink;
use crate::run::{clean, prepare, standstill};
use crate::site::Site;
use gcore::node::{NodeAction, NodeEvent, NodeInput, NodeState, actions, apply, check, handle};
use gmodel::launch_order::LaunchOrder;
use gmodel::node::{HungRun, Inventory, Role};
use gmodel::run::{EndCause, RunEnd, RunPhase, StopCause};
use gmodel::{Fence, RunId};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Before something that failed on this node is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The grace of a run with a sick GPU: its further results may be wrong.
const GPU_GRACE_SECS: u32 = 5;

/// The node daemon at work.
pub struct Daemon {
    site: Arc<Site>,
    state: NodeState,
    sender: mpsc::Sender<DaemonInput>,
    told: Option<Reporter>,
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
    pub fn begin(site: Arc<Site>, sender: mpsc::Sender<DaemonInput>) -> anyhow::Result<Self> {
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
    pub async fn run(mut self, mut inputs: mpsc::Receiver<DaemonInput>) {
        self.act();
        loop {
            let due = self.told.as_ref().and_then(Reporter::due);
            match first_or_due(&mut inputs, due).await {
                Some(Some(first)) => self.take_input(first),
                Some(None) => return,
                None => {}
            }
            // All that waits is taken before acting: a burst of reports makes one frame.
            while let Ok(more) = inputs.try_recv() {
                self.take_input(more);
            }
            self.act();
            self.report();
        }
    }

    fn take_input(&mut self, input: DaemonInput) {
        match input {
            DaemonInput::LinkUp { connection, sender } => self.greet(connection, sender),
            DaemonInput::LinkDown { connection } => {
                if self
                    .told
                    .as_ref()
                    .is_some_and(|told| told.connection == connection)
                {
                    self.told = None;
                }
            }
            DaemonInput::Frame { connection, frame } => {
                if self
                    .told
                    .as_ref()
                    .is_some_and(|told| told.connection == connection)
                {
                    self.read(frame);
                }
            }
            DaemonInput::Recorded {
                fence,
                failed,
                written,
            } => self.recorded(fence, &failed, written),
            DaemonInput::Supervisor {
                run,
                outcome: Ok(supervisor),
            } => {
                self.idle(run);
                self.converse(run, supervisor);
            }
            DaemonInput::Supervisor {
                run,
                outcome: Err(end),
            } => {
                self.idle(run);
                self.ended(run, *end);
            }
            DaemonInput::Step {
                run,
                connection,
                words,
            } => {
                if self.speaks(run, connection) {
                    self.listen(run, words);
                }
            }
            DaemonInput::StepGone { run, connection } => {
                if self.speaks(run, connection) {
                    self.supervisor_fell_silent(run);
                }
            }
            DaemonInput::Cleaned { run, done } => {
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
            DaemonInput::Forgotten { run, done } => {
                self.idle(run);
                if done {
                    self.work.remove(&run);
                    self.feed(NodeInput::Forgotten { run });
                }
            }
            DaemonInput::FencesBroken { runs } => {
                self.end_at_once(&runs, StopCause::FenceBroken, 0)
            }
            DaemonInput::GpusFailed { runs } => {
                self.end_at_once(&runs, StopCause::GpuFailed, GPU_GRACE_SECS)
            }
            DaemonInput::Measured { run, end } => self.ended_by_itself(run, *end),
            DaemonInput::GpuOrdersDone { done } => self.answer_gpu_orders(done),
            DaemonInput::GpusIdle { runs } => self.tell_idle(runs),
            DaemonInput::Pulls { report } => self.tell_pull(report),
            DaemonInput::SupervisorActs { run } => {
                self.idle(run);
                self.with_step(run, StepLink::heard_from);
            }
            DaemonInput::InventoryChanged => {
                self.look_at_inventory();
                self.look_for_standstill();
            }
        }
    }

    /// Asks each supervisor whether it lives that has not ended its run long after the stop or the limit.
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

    /// Says what the controller does not know yet.
    fn report(&mut self) {
        if let Some(told) = &mut self.told
            && !told.send_news(&self.state, &self.inventory, Instant::now())
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
                self.site.outputs.notify_one();
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
                NodeAction::Prepare { run } => self.prepare(run),
                // A pull ends by itself at that.
                NodeAction::Abandon { run } if self.site.end_pull(run) => {}
                NodeAction::Abandon { run } => self.begin_work(run, |site, run, _| {
                    let end = RunEnd {
                        cause: EndCause::Stopped,
                        text: "stopped before it started".into(),
                        ..RunEnd::default()
                    };
                    DaemonInput::Supervisor {
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
                        DaemonInput::Cleaned {
                            run,
                            done: succeeded(run, cleaned),
                        }
                    });
                }
                NodeAction::Forget { run } => self.begin_work(run, |site, run, _| {
                    let forgotten = site.spool.forget(run);
                    DaemonInput::Forgotten {
                        run,
                        done: succeeded(run, forgotten),
                    }
                }),
            }
        }
    }

    fn prepare(&mut self, run: RunId) {
        let sender = self.sender.clone();
        self.begin_work(run, move |site, run, _| {
            let tell = |report| drop(sender.blocking_send(DaemonInput::Pulls { report }));
            let outcome = prepare::prepare(site, run, &tell)
                .map_err(|failure| Box::new(recorded_end(site, run, failure.end())));
            DaemonInput::Supervisor { run, outcome }
        });
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
            let mut failed = BTreeSet::new();
            for (run, order) in &orders {
                if let Err(e) = accept(run, order) {
                    tracing::error!(%run, "{e:#}");
                    failed.insert(*run);
                }
            }
            let written = site.spool.write_fence(fence);
            if let Err(e) = &written {
                tracing::error!("{e:#}; nothing new is obeyed until it works");
                std::thread::sleep(RETRY_AFTER);
            }
            let _ = sender.blocking_send(DaemonInput::Recorded {
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
        work: impl FnOnce(&Site, RunId, Option<OwnedFd>) -> DaemonInput + Send + 'static,
    ) {
        let slot = self.work.entry(run).or_default();
        if std::mem::replace(&mut slot.busy, true) {
            return;
        }
        let process = slot.process.take();
        let (site, sender) = (Arc::clone(&self.site), self.sender.clone());
        tokio::task::spawn_blocking(move || {
            let input = work(&site, run, process);
            if matches!(
                input,
                DaemonInput::Cleaned { done: false, .. }
                    | DaemonInput::Forgotten { done: false, .. }
            ) {
                std::thread::sleep(RETRY_AFTER);
            }
            let _ = sender.blocking_send(input);
        });
    }

    fn idle(&mut self, run: RunId) {
        self.work.entry(run).or_default().busy = false;
    }
}

/// What happens next (`Some(None)`: nothing will any more), or none when a report is due before it.
async fn first_or_due(
    inputs: &mut mpsc::Receiver<DaemonInput>,
    due: Option<Instant>,
) -> Option<Option<DaemonInput>> {
    match due {
        None => Some(inputs.recv().await),
        Some(due) => tokio::time::timeout_at(due.into(), inputs.recv())
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
    share::show(site, &mut inventory);
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

fn succeeded(run: RunId, outcome: anyhow::Result<()>) -> bool {
    if let Err(e) = &outcome {
        tracing::error!(%run, "{e:#}; again in {} s", RETRY_AFTER.as_secs());
    }
    outcome.is_ok()
}
