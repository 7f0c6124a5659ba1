//! The nodes' connections: hello in, orders out, reports in. Two futures per connection, one reading, one writing.
//!
//! Channels: each connection owns its mark of `NodeChanges` and the receiving end of its questions. A node's identity comes from
//! its certificate, never from a message.

mod adoption;
mod end;
mod pace;
mod question;
mod writer;

use crate::core_thread::CoreHandle;
use crate::http::{self, NodeAnswer};
use crate::node_changes::NodeChanges;
use crate::node_claim::{self, EndedLink, NodeClaims};
use crate::pki::NodeIdentity;
use crate::seal::OrderSeal;
use adoption::{ask_orders, log_refused, unknown_runs};
use end::{HEARTBEAT, LinkEnd, SILENCE};
use gcore::ctl::NodeReport;
use gmodel::launch_order::LaunchOrder;
use gmodel::run::{RunReport, RunUse};
use gmodel::supervise::StepOrder;
use gmodel::{NodeId, NodeLife, RunId};
use gwire::frame::{self, FrameReader};
use gwire::node_protocol::{Hello, PROTOCOL, ToController, ToNode};
use pace::ReportPace;
use question::{AnswerSender, OpenQuestions, Question, QuestionKind};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex as AsyncMutex, Notify, mpsc, oneshot};
use tokio::time::timeout;
use writer::OrderWriter;

/// The hello comes within this.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// A replaced connection ends within this, or its successor is refused for now.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);
/// Open questions to one node.
const QUESTIONS: usize = 64;
const LOG_TIMEOUT: Duration = Duration::from_secs(10);

/// All connections of nodes. Cheap to clone.
#[derive(Clone)]
pub struct NodeConnections {
    inner: Arc<SharedLinks>,
}

struct SharedLinks {
    core: CoreHandle,
    changes: NodeChanges,
    seal: OrderSeal,
    /// How the last connection of each node ended.
    claims: NodeClaims,
    live: Mutex<BTreeMap<NodeId, OpenLink>>,
    /// Held by a node's connection from its hello until its end is known to the core: what the core hears of
    /// two connections of one node is never mixed.
    turns: Mutex<BTreeMap<NodeId, Arc<AsyncMutex<()>>>>,
    next_serial: AtomicU64,
    next_question: AtomicU64,
}

/// A connection as seen from outside of its futures.
struct OpenLink {
    serial: u64,
    life: NodeLife,
    from: SocketAddr,
    heard: Arc<Mutex<Instant>>,
    /// Told to end: a newer connection of the same life of the node is here.
    replaced: Arc<Notify>,
    questions: mpsc::Sender<Question>,
}

impl NodeConnections {
    pub fn new(core: CoreHandle, changes: NodeChanges, seal: OrderSeal) -> Self {
        Self {
            inner: Arc::new(SharedLinks {
                core,
                changes,
                seal,
                claims: NodeClaims::default(),
                live: Mutex::default(),
                turns: Mutex::default(),
                next_serial: AtomicU64::new(1),
                next_question: AtomicU64::new(1),
            }),
        }
    }

    /// Serves a connection until it ends. `identity` is what the verified certificate says, `from` where it was dialled.
    pub async fn serve<S>(&self, stream: S, identity: NodeIdentity, from: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin,
    {
        let name = identity.name.clone();
        let (source, mut sink) = tokio::io::split(stream);
        let mut frames = FrameReader::new(source);
        let end = match self.greet(&mut frames, &identity, from).await {
            Ok((hello, turn)) => {
                let end = self
                    .converse(&mut frames, &mut sink, &identity, from, hello)
                    .await;
                drop(turn);
                end
            }
            Err(end) => end,
        };
        if let LinkEnd::Refused(text) = &end {
            let permanent = identity.check(&*self.inner.core.view().await).is_err();
            let frame = ToNode::Refused {
                text: text.clone(),
                permanent,
            };
            let _ = timeout(HEARTBEAT, frame::write(&mut sink, &frame)).await; // it may be gone already
        }
        tracing::info!(node = name, "connection ended: {end}");
    }

    /// Reads the hello and waits for the node's turn; nothing reaches the core before.
    async fn greet<R: AsyncRead + Unpin>(
        &self,
        frames: &mut FrameReader<R>,
        identity: &NodeIdentity,
        from: SocketAddr,
    ) -> Result<(Hello, tokio::sync::OwnedMutexGuard<()>), LinkEnd> {
        let first = timeout(HELLO_TIMEOUT, frames.next())
            .await
            .map_err(|_| LinkEnd::Silent(HELLO_TIMEOUT))??;
        let hello = match first {
            Some(ToController::Hello(hello)) => hello,
            Some(_) => return Err(LinkEnd::Refused("the first frame must be a hello".into())),
            None => return Err(LinkEnd::Closed),
        };
        if hello.protocol != PROTOCOL {
            return Err(LinkEnd::Refused(format!(
                "gpud {} speaks protocol {}; this gpuctld ({}) speaks {PROTOCOL}. Install gpud of this release or the one before",
                hello.release.chars().take(40).collect::<String>(),
                hello.protocol,
                env!("CARGO_PKG_VERSION")
            )));
        }
        identity
            .check(&*self.inner.core.view().await)
            .map_err(LinkEnd::Refused)?;
        self.displace(identity, &hello.life, from).await?;
        let turn = self.lock_turns().entry(identity.node).or_default().clone();
        match timeout(TURN_TIMEOUT, turn.lock_owned()).await {
            Ok(turn) => Ok((hello, turn)),
            Err(_) => Err(LinkEnd::Refused(format!(
                "an earlier connection of node {:?} has not ended yet; try again",
                identity.name
            ))),
        }
    }

    /// A machine that reconnects takes the place of its old connection. Another one does not, before it is certain that nothing
    /// of the first goes on (`node_claim.rs`).
    async fn displace(
        &self,
        identity: &NodeIdentity,
        life: &NodeLife,
        from: SocketAddr,
    ) -> Result<(), LinkEnd> {
        let state = self.inner.core.view().await;
        let connected = self.lock_live().get(&identity.node).map(|old| {
            if old.life == *life {
                old.replaced.notify_one();
            }
            let silent = old.heard.lock().expect("no panic while held").elapsed();
            node_claim::ConnectedMachine {
                life: old.life.clone(),
                from: old.from,
                silent,
            }
        });
        let Err(refused) = self
            .inner
            .claims
            .judge(&state, identity.node, life, from, connected)
        else {
            return Ok(());
        };
        if let Some(report) = refused.report {
            self.inner.core.node_input(identity.node, report).await?;
        }
        Err(LinkEnd::Refused(refused.text))
    }

    async fn converse<R, W>(
        &self,
        frames: &mut FrameReader<R>,
        sink: &mut W,
        identity: &NodeIdentity,
        from: SocketAddr,
        hello: Hello,
    ) -> LinkEnd
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let (node, life) = (identity.node, hello.life.clone());
        let serial = self.inner.next_serial.fetch_add(1, Ordering::Relaxed);
        let (questions, mut asked) = mpsc::channel(QUESTIONS);
        let heard = Arc::new(Mutex::new(Instant::now()));
        let replaced = Arc::new(Notify::new());
        let mark = self.inner.changes.subscribe(node);
        self.lock_live().insert(
            node,
            OpenLink {
                serial,
                life: life.clone(),
                from,
                heard: heard.clone(),
                replaced: replaced.clone(),
                questions,
            },
        );
        tracing::info!(node = identity.name, %from, release = hello.release.chars().take(40).collect::<String>(), runs = hello.runs.len(), "connected");
        let open = OpenQuestions::default();
        let end = match self.take_hello(frames, sink, identity, hello).await {
            Ok(()) => {
                let reading = self.read_frames(frames, node, &heard, &open);
                let mut writer = OrderWriter::new(
                    &self.inner.core,
                    &self.inner.seal,
                    &self.inner.next_question,
                    identity,
                    sink,
                );
                let Err(end) = tokio::select! {
                    end = reading => end,
                    end = writer.run(&mark, &mut asked, &open) => end,
                    () = replaced.notified() => Err(LinkEnd::Replaced),
                };
                end
            }
            Err(end) => end,
        };
        self.inner.changes.unsubscribe(node, &mark);
        self.inner
            .claims
            .ended(node, EndedLink::now(life, from, end.is_by_machine()));
        self.lock_live()
            .retain(|id, link| *id != node || link.serial != serial);
        // Refused only when we are stopping: then the next controller counts the silence.
        let _ = self.inner.core.node_input(node, NodeReport::Gone).await;
        end
    }

    /// Hands in the hello; before it, after a restore, the runs that only the node remembers.
    async fn take_hello<R, W>(
        &self,
        frames: &mut FrameReader<R>,
        sink: &mut W,
        identity: &NodeIdentity,
        hello: Hello,
    ) -> Result<(), LinkEnd>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let (core, node) = (&self.inner.core, identity.node);
        let epoch = identity.epoch;
        let known = core
            .view()
            .await
            .nodes
            .get(node)
            .map(|node| node.certificate.epoch);
        if known.is_some_and(|known| known < epoch) {
            core.node_input(node, NodeReport::Certificate { epoch })
                .await?;
        }
        let later = self.adopt(frames, sink, identity, &hello).await?;
        let report = NodeReport::Hello {
            life: hello.life,
            fence: hello.fence,
            inventory: hello.inventory,
            runs: hello.runs,
        };
        core.node_input(node, report).await?;
        if !later.is_empty() {
            core.node_input(node, NodeReport::Runs { runs: later })
                .await?;
        }
        Ok(())
    }

    /// Has the core adopt what only the node remembers after a restore. Returns what the node reported meanwhile.
    async fn adopt<R, W>(
        &self,
        frames: &mut FrameReader<R>,
        sink: &mut W,
        identity: &NodeIdentity,
        hello: &Hello,
    ) -> Result<Vec<RunReport>, LinkEnd>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let (core, node) = (&self.inner.core, identity.node);
        let unknown = unknown_runs(&*core.view().await, node, hello.fence, &hello.runs);
        if unknown.is_empty() {
            return Ok(Vec::new());
        }
        tracing::warn!(
            node = identity.name,
            runs = unknown.len(),
            "the node brings runs from before the restore"
        );
        let asked = timeout(SILENCE, ask_orders(frames, sink, unknown.clone())).await;
        let (orders, later) = asked.map_err(|_| LinkEnd::Silent(SILENCE))??;
        let sealed: Vec<LaunchOrder> = orders
            .into_iter()
            .filter(|order| self.inner.seal.is_on(order, &identity.name))
            .collect();
        let with_seal: BTreeSet<RunId> = sealed.iter().filter_map(|order| order.run).collect();
        let report = NodeReport::Adopt {
            life: hello.life.clone(),
            inventory: hello.inventory.clone(),
            runs: hello.runs.clone(),
            orders: sealed,
        };
        core.node_input(node, report).await?;
        log_refused(&*core.view().await, identity, &unknown, &with_seal);
        Ok(later)
    }

    async fn read_frames<R: AsyncRead + Unpin>(
        &self,
        frames: &mut FrameReader<R>,
        node: NodeId,
        heard: &Mutex<Instant>,
        open: &OpenQuestions,
    ) -> Result<std::convert::Infallible, LinkEnd> {
        let mut pace = ReportPace::new(Instant::now());
        loop {
            let frame = timeout(SILENCE, frames.next())
                .await
                .map_err(|_| LinkEnd::Silent(SILENCE))??;
            if let Some(
                ToController::Inventory { .. }
                | ToController::Idle { .. }
                | ToController::Pulls { .. },
            ) = &frame
            {
                tokio::time::sleep(pace.wait(Instant::now())).await;
            }
            *heard.lock().expect("no panic while held") = Instant::now();
            let report = match frame.ok_or(LinkEnd::Closed)? {
                ToController::Runs { runs } => NodeReport::Runs { runs },
                ToController::Idle { runs } => NodeReport::Idle { runs },
                ToController::Pulls { runs } => NodeReport::Pulls { runs },
                ToController::Inventory { inventory } => NodeReport::Inventory { inventory },
                ToController::GpuOrders { done } => NodeReport::GpuOrders { done },
                ToController::Obeyed { fence } => NodeReport::Obeyed { fence },
                ToController::Log {
                    question,
                    text,
                    error,
                } => {
                    open.answer_log(question, text, error);
                    continue;
                }
                ToController::Use {
                    question,
                    used,
                    error,
                } => {
                    open.answer_use(question, used, error);
                    continue;
                }
                ToController::StepSignalled { question, error } => {
                    open.answer_signal(question, error);
                    continue;
                }
                ToController::Hello(_) => {
                    return Err(LinkEnd::Refused("a second hello on one connection".into()));
                }
                ToController::Ping | ToController::Orders { .. } | ToController::Unknown => {
                    continue;
                }
            };
            self.inner.core.node_input(node, report).await?;
        }
    }

    fn lock_live(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, OpenLink>> {
        self.inner.live.lock().expect("no panic while held")
    }

    fn lock_turns(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, Arc<AsyncMutex<()>>>> {
        self.inner.turns.lock().expect("no panic while held")
    }
}

impl http::NodeLinks for NodeConnections {
    fn addresses(&self) -> BTreeMap<NodeId, IpAddr> {
        let live = self.lock_live();
        live.iter()
            .map(|(node, live)| (*node, live.from.ip()))
            .collect()
    }

    fn read_log(&self, node: NodeId, run: RunId) -> NodeAnswer<'_, Result<String, String>> {
        Box::pin(self.ask_node(node, run, QuestionKind::Log))
    }

    fn read_use(&self, node: NodeId, run: RunId) -> NodeAnswer<'_, Result<RunUse, String>> {
        Box::pin(self.ask_node(node, run, QuestionKind::Use))
    }

    fn start_step(
        &self,
        node: NodeId,
        run: RunId,
        order: StepOrder,
    ) -> NodeAnswer<'_, Result<(), String>> {
        Box::pin(self.ask_node(node, run, |sender| {
            QuestionKind::Step(Box::new(order), sender)
        }))
    }

    fn signal_step(
        &self,
        node: NodeId,
        run: RunId,
        step: u32,
        signal: Option<u8>,
    ) -> NodeAnswer<'_, Result<(), String>> {
        Box::pin(
            self.ask_node(node, run, move |answer| QuestionKind::SignalStep {
                step,
                signal,
                answer,
            }),
        )
    }

    fn open_stream(
        &self,
        node: NodeId,
        run: RunId,
        source: http::StreamSource,
        stream: String,
    ) -> NodeAnswer<'_, Result<(), String>> {
        Box::pin(
            self.ask_node(node, run, move |answer| QuestionKind::Stream {
                stream,
                source,
                answer,
            }),
        )
    }
}

impl NodeConnections {
    async fn ask_node<T>(
        &self,
        node: NodeId,
        run: RunId,
        about: impl FnOnce(AnswerSender<T>) -> QuestionKind,
    ) -> Result<T, String> {
        let questions = self
            .lock_live()
            .get(&node)
            .map(|live| live.questions.clone());
        let Some(questions) = questions else {
            return Err("the node is not connected; try again when it is back".into());
        };
        let (answer, answered) = oneshot::channel();
        if questions
            .try_send(Question {
                run,
                about: about(answer),
            })
            .is_err()
        {
            return Err(format!(
                "{QUESTIONS} questions to this node are open already"
            ));
        }
        match timeout(LOG_TIMEOUT, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err("the node's connection ended before it answered".into()),
            Err(_) => Err(format!(
                "the node did not answer within {} s",
                LOG_TIMEOUT.as_secs()
            )),
        }
    }
}
