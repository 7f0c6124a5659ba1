//! The writing half of a node's connection: desired state, launch orders, questions.
//!
//! Orders are made from the newest state when the node can take them, so a slow node blocks nothing else.

use super::end::{HEARTBEAT, LinkEnd, SILENCE};
use super::question::{OpenQuestions, Question, QuestionKind, answer_sent};
use crate::core_thread::CoreHandle;
use crate::http::StreamSource;
use crate::launch_orders;
use crate::pki::NodeIdentity;
use crate::seal::OrderSeal;
use gcore::ctl::state::State;
use gcore::ctl::{NodeReport, desired};
use gmodel::launch_order::LaunchOrder;
use gmodel::run::{DesiredState, RunTarget};
use gmodel::{NodeId, RunId};
use gwire::frame;
use gwire::node_protocol::{HEARTBEAT_SECS, MAX_FRAME_BYTES, PROTOCOL, ToNode};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWrite;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

/// Launch orders in one frame, bytes; one larger order has a frame of its own.
const ORDERS_FRAME_BYTES: usize = MAX_FRAME_BYTES as usize / 4;
/// Largest single order: what a submission may have at most, and room for the names of its nodes.
const ORDER_BYTES: usize = MAX_FRAME_BYTES as usize / 4 * 3;
/// Orders that only let a node forget clean runs wait so long for others: on a busy cluster the next
/// run comes within it, and both cost the node one durable write.
const LET_GO_WAITS: Duration = Duration::from_millis(200);

/// The writing half of a connection.
pub(super) struct OrderWriter<'a, W> {
    core: &'a CoreHandle,
    seal: &'a OrderSeal,
    next_question: &'a AtomicU64,
    identity: &'a NodeIdentity,
    sink: &'a mut W,
    /// Runs whose orders went out on this connection.
    sent: BTreeSet<RunId>,
    /// The last orders sent.
    last: Option<DesiredState>,
    /// When the node is to hear that it may forget runs, if nothing else is said before.
    let_go_at: Option<Instant>,
}

impl<'a, W: AsyncWrite + Unpin> OrderWriter<'a, W> {
    pub(super) fn new(
        core: &'a CoreHandle,
        seal: &'a OrderSeal,
        next_question: &'a AtomicU64,
        identity: &'a NodeIdentity,
        sink: &'a mut W,
    ) -> Self {
        Self {
            core,
            seal,
            next_question,
            identity,
            sink,
            sent: BTreeSet::new(),
            last: None,
            let_go_at: None,
        }
    }

    pub(super) async fn run(
        &mut self,
        mark: &Notify,
        asked: &mut mpsc::Receiver<Question>,
        open: &OpenQuestions,
    ) -> Result<std::convert::Infallible, LinkEnd> {
        let cluster = self.core.view().await.config.name.clone();
        let release = env!("CARGO_PKG_VERSION").to_owned();
        self.write(&ToNode::Welcome {
            protocol: PROTOCOL,
            release,
            cluster,
            heartbeat_secs: HEARTBEAT_SECS,
        })
        .await?;
        self.send_orders().await?;
        loop {
            let let_go_at = self.let_go_at;
            tokio::select! {
                () = mark.notified() => self.send_orders().await?,
                () = until(let_go_at), if let_go_at.is_some() => self.send_orders().await?,
                Some(question) = asked.recv() => self.ask(question, open).await?,
                () = tokio::time::sleep(HEARTBEAT) => self.write(&ToNode::Ping).await?,
            }
        }
    }

    /// Sends what the node should run, if that changed, after the orders it has not seen.
    async fn send_orders(&mut self) -> Result<(), LinkEnd> {
        let state = self.core.view().await;
        self.identity.check(&state).map_err(LinkEnd::Refused)?;
        let node = self.identity.node;
        let desired = desired(&state, node);
        if let Some(last) = &self.last {
            let let_go_at = Instant::now() + LET_GO_WAITS;
            if last.fence == desired.fence
                || only_lets_go(&state, node, last, &desired)
                    && Instant::now() < *self.let_go_at.get_or_insert(let_go_at)
            {
                return Ok(());
            }
        }
        self.let_go_at = None;
        let orders = self.send_surplus(&state, &desired).await?;
        self.sent
            .retain(|sent| desired.runs.iter().any(|one| one.run == *sent));
        self.last = Some(desired.clone());
        self.write(&ToNode::Orders { orders, desired }).await
    }

    /// Launch orders that the node has not seen. Those beyond one frame are sent; the rest is returned.
    async fn send_surplus(
        &mut self,
        state: &State,
        desired: &DesiredState,
    ) -> Result<Vec<LaunchOrder>, LinkEnd> {
        let node = self.identity.node;
        let new = self.runs_without_order(state, desired);
        let (mut ready, mut bytes) = (Vec::new(), 0);
        for order in launch_orders::build(state, node, &new, self.core.reader()).await {
            let sealed = order.map(|mut order| {
                self.seal.put_on(&mut order);
                order
            });
            let (order, size) = match sealed.map_err(Box::new).and_then(sized) {
                Ok(sized) => sized,
                Err(report) => {
                    // The core decides what becomes of the run; the next orders will say so.
                    let runs = vec![*report];
                    self.core
                        .node_input(node, NodeReport::Runs { runs })
                        .await?;
                    continue;
                }
            };
            if bytes + size > ORDERS_FRAME_BYTES && !ready.is_empty() {
                // Orders ahead of their time: an empty fence is below every other, so nothing is obeyed yet.
                self.write(&ToNode::Orders {
                    orders: std::mem::take(&mut ready),
                    desired: DesiredState::default(),
                })
                .await?;
                bytes = 0;
            }
            bytes += size;
            self.sent.extend(order.run);
            ready.push(order);
        }
        Ok(ready)
    }

    /// Runs to start whose order was not sent on this connection, and which the node has not reported.
    fn runs_without_order(&self, state: &State, desired: &DesiredState) -> Vec<RunId> {
        let reported = |run: RunId| {
            let member = state
                .runs
                .get(run)
                .and_then(|run| run.member(self.identity.node));
            member.is_none_or(|member| member.phase.is_some())
        };
        desired
            .runs
            .iter()
            .filter(|one| matches!(one.want, RunTarget::Prepare | RunTarget::Run))
            .map(|one| one.run)
            .filter(|run| !self.sent.contains(run) && !reported(*run))
            .collect()
    }

    async fn ask(&mut self, question: Question, open: &OpenQuestions) -> Result<(), LinkEnd> {
        let Question { run, about } = question;
        let number = self.next_question.fetch_add(1, Ordering::Relaxed);
        let frame = match about {
            QuestionKind::Step(step, answer) => {
                let sent = self.write(&ToNode::Step { run, step: *step }).await;
                return answer_sent(sent, answer);
            }
            QuestionKind::Stream {
                stream,
                source,
                answer,
            } => {
                let frame = match source {
                    StreamSource::Step { step, watch } => ToNode::OpenStream {
                        stream,
                        run,
                        step,
                        watch,
                    },
                    StreamSource::Output { user, order } => ToNode::OpenOutput {
                        stream,
                        run,
                        user,
                        order,
                    },
                };
                return answer_sent(self.write(&frame).await, answer);
            }
            QuestionKind::SignalStep { step, signal, .. } => ToNode::SignalStep {
                question: number,
                run,
                step,
                signal,
            },
            QuestionKind::Log(_) => ToNode::ReadLog {
                question: number,
                run,
            },
            QuestionKind::Use(_) => ToNode::ReadUse {
                question: number,
                run,
            },
        };
        open.add(number, about);
        self.write(&frame).await
    }

    /// A node that takes nothing for too long is as good as silent.
    async fn write(&mut self, frame: &ToNode) -> Result<(), LinkEnd> {
        timeout(SILENCE, frame::write(self.sink, frame))
            .await
            .map_err(|_| LinkEnd::Silent(SILENCE))??;
        Ok(())
    }
}

/// Whether the new orders differ only in runs that are no longer named and are clean on the node.
fn only_lets_go(state: &State, node: NodeId, last: &DesiredState, new: &DesiredState) -> bool {
    let is_clean = |run: RunId| {
        state
            .runs
            .get(run)
            .and_then(|run| run.member(node))
            .is_none_or(|member| member.is_clean())
    };
    let (named, gone): (Vec<_>, Vec<_>) = last
        .runs
        .iter()
        .partition(|one| new.runs.iter().any(|other| other.run == one.run));
    !gone.is_empty()
        && last.fence.incarnation == new.fence.incarnation
        && last.gpus == new.gpus
        && named.into_iter().eq(&new.runs)
        && gone.iter().all(|one| is_clean(one.run))
}

async fn until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at.into()).await;
    }
}

/// An order with its size in a frame, or the report of one that no frame can hold.
fn sized(order: LaunchOrder) -> Result<(LaunchOrder, usize), Box<gmodel::run::RunReport>> {
    let run = order.run.expect("orders are of runs");
    // Scripts and environments are most of it; JSON escapes make some of them longer.
    match frame::encode(&order) {
        Ok(bytes) if bytes.len() <= ORDER_BYTES => Ok((order, bytes.len())),
        Ok(bytes) => Err(Box::new(too_large(run, bytes.len()))),
        Err(_) => Err(Box::new(too_large(run, MAX_FRAME_BYTES as usize))),
    }
}

fn too_large(run: RunId, bytes: usize) -> gmodel::run::RunReport {
    launch_orders::failed(
        run,
        format!(
            "script and environment take {bytes} bytes or more on their way to the node; {ORDER_BYTES} are possible. Control characters take six each"
        ),
    )
}
