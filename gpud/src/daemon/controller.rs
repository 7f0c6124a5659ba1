//! The daemon's conversation with the controller: the hello, orders, answers to its questions.

use super::Daemon;
use crate::controller::report::Reporter;
use crate::gpu::check;
use crate::input::DaemonInput;
use crate::run::output::OutputRequest;
use crate::run::{live_use, step_link, stream};
use gcore::node::{NodeEvent, NodeInput};
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use gmodel::idle::IdleReport;
use gmodel::image_pull::PullReport;
use gmodel::launch_order::LaunchOrder;
use gmodel::node::Role;
use gmodel::run::{DesiredState, RunUse};
use gmodel::supervise::{StepOrder, SupervisorCommand};
use gmodel::{Fence, RunId};
use gwire::node_protocol::{ToController, ToNode};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;

impl Daemon {
    /// Everything this node knows, before it obeys anything.
    pub(super) fn greet(&mut self, connection: u64, sender: mpsc::Sender<ToController>) {
        self.orders.clear();
        self.told = Reporter::greet(connection, sender, &self.state, &self.inventory);
    }

    pub(super) fn read(&mut self, frame: ToNode) {
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
            ToNode::OpenStream {
                stream,
                run,
                step,
                watch,
            } => self.open_stream(stream, run, SupervisorCommand::Attach { step, watch }),
            ToNode::OpenOutput {
                stream,
                run,
                user,
                order,
            } => self.open_output(stream, OutputRequest { run, user, order }),
            ToNode::SignalStep {
                question,
                run,
                step,
                signal,
            } => self.signal_step(question, run, step, signal),
            ToNode::Ping | ToNode::Refused { .. } | ToNode::Unknown => {}
        }
    }

    /// Hands a step to the run's supervisor. Without one grun is told so, where it waits.
    fn start_step(&mut self, run: RunId, order: StepOrder) {
        match self.work.get_mut(&run).and_then(|work| work.step.as_mut()) {
            Some(link) => link.step(order),
            None => {
                tokio::spawn(step_link::refuse_step(
                    order,
                    format!("run {run} has no supervisor here"),
                ));
            }
        }
    }

    /// Beside the loop: a stream lives as long as its step and its client want it.
    fn open_stream(&self, stream: String, run: RunId, order: SupervisorCommand) {
        let site = Arc::clone(&self.site);
        tokio::spawn(async move {
            if let Err(e) = stream::open(&site, &stream, run, &order).await {
                tracing::info!(%run, ?order, "stream: {e:#}");
            }
        });
    }

    /// As [`Self::open_stream`].
    fn open_output(&self, stream: String, request: OutputRequest) {
        let site = Arc::clone(&self.site);
        tokio::spawn(async move {
            let run = request.run;
            if let Err(e) = stream::open_output(&site, &stream, request).await {
                tracing::info!(%run, "stream of an output: {e:#}");
            }
        });
    }

    fn signal_step(&self, question: u64, run: RunId, step: u32, signal: Option<u8>) {
        let Some(told) = &self.told else { return };
        let (site, sender) = (Arc::clone(&self.site), told.sender.clone());
        tokio::spawn(async move {
            let done = stream::signal_step(&site, run, step, signal).await;
            let error = done.map_or_else(|e| format!("{e:#}"), |()| String::new());
            let _ = sender
                .send(ToController::StepSignalled { question, error })
                .await;
        });
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
            tokio::task::spawn_blocking(move || check::obey(&site, &sender, incarnation, checks));
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
            let _ = sender.blocking_send(DaemonInput::GpuOrdersDone { done });
        });
    }

    /// The inventory goes first, so that the answer never comes before the state that it is about.
    pub(super) fn answer_gpu_orders(&mut self, done: Vec<GpuOrderDone>) {
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

    pub(super) fn recorded(&mut self, fence: Fence, failed: &BTreeSet<RunId>, written: bool) {
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
    pub(super) fn tell_idle(&self, runs: Vec<IdleReport>) {
        if let Some(told) = &self.told {
            let _ = told.sender.try_send(ToController::Idle { runs });
        }
    }

    /// As `tell_idle`.
    pub(super) fn tell_pull(&self, report: PullReport) {
        if let Some(told) = &self.told {
            let runs = vec![report];
            let _ = told.sender.try_send(ToController::Pulls { runs });
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
            let (used, error) = match live_use::read(&site, run) {
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
}
