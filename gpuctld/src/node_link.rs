//! The nodes' connections: hello in, orders out, reports in. Two futures per connection, one reading, one writing.
//!
//! Channels: each connection owns its mark of `NodeChanges` and the receiving end of its questions. A slow node
//! blocks nobody: orders are made from the newest state when it can take them. Who a node is says its certificate.

use crate::core_thread::CoreHandle;
use crate::http::{self, Later};
use crate::launch_orders;
use crate::node_changes::NodeChanges;
use crate::node_claim::{self, Claims, Ended};
use crate::pki::NodeIdentity;
use crate::seal::OrderSeal;
use gcore::ctl::node_words::bounded_use;
use gcore::ctl::state::State;
use gcore::ctl::{MAX_ADOPTED, NodeReport, desired};
use gmodel::launch_order::LaunchOrder;
use gmodel::run::{DesiredState, RunReport, RunTarget, RunUse};
use gmodel::supervise::StepOrder;
use gmodel::{Fence, NodeId, NodeLife, RunId};
use gwire::frame::{self, FrameError, FrameReader};
use gwire::node_protocol::{
    HEARTBEAT_SECS, Hello, MAX_FRAME_BYTES, PROTOCOL, ToController, ToNode,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex as AsyncMutex, Notify, mpsc, oneshot};
use tokio::time::timeout;

const HEARTBEAT: Duration = Duration::from_secs(HEARTBEAT_SECS);
/// Silence that ends a connection.
const SILENCE: Duration = Duration::from_secs(3 * HEARTBEAT_SECS);
/// A machine that connects says who it is within this.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// A replaced connection ends within this, or its successor is refused for now.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);
/// Launch orders in one frame, bytes; one larger order has a frame of its own.
const ORDERS_FRAME_BYTES: usize = MAX_FRAME_BYTES as usize / 4;
/// Largest single order: what a submission may have at most, and room for the names of its nodes.
const ORDER_BYTES: usize = MAX_FRAME_BYTES as usize / 4 * 3;
/// What only lets a node forget runs that it said are clean waits so long for something more to say: on a busy cluster the next
/// run comes within it, and both cost the node one durable write.
const LET_GO_WAITS: Duration = Duration::from_millis(200);
/// Open questions to one node.
const QUESTIONS: usize = 64;
/// Lines about runs of one node that are not adopted.
const MAX_TOLD: usize = 100;
const LOG_TIMEOUT: Duration = Duration::from_secs(10);
/// Of what a node tells of a run, its end.
const MAX_LOG_BYTES: usize = 1 << 20;
const MAX_ERROR_BYTES: usize = 4096;

/// All connections of nodes. Cheap to clone.
#[derive(Clone)]
pub struct NodeLinks {
    inner: Arc<Inner>,
}

struct Inner {
    core: CoreHandle,
    changes: NodeChanges,
    seal: OrderSeal,
    /// How the last connection of each node ended.
    claims: Claims,
    live: Mutex<BTreeMap<NodeId, Live>>,
    /// Held by a node's connection from its hello until its end is known to the core: what the core hears of
    /// two connections of one node is never mixed.
    turns: Mutex<BTreeMap<NodeId, Arc<AsyncMutex<()>>>>,
    next_serial: AtomicU64,
    next_question: AtomicU64,
}

/// A connection as others see it.
struct Live {
    serial: u64,
    life: NodeLife,
    from: SocketAddr,
    heard: Arc<Mutex<Instant>>,
    /// Told to end: a newer connection of the same life of the node is here.
    replaced: Arc<Notify>,
    questions: mpsc::Sender<Question>,
}

struct Question {
    run: RunId,
    about: About,
}

/// What is asked of a node beside its orders, and who waits for the answer.
enum About {
    Log(Asker<String>),
    Use(Asker<RunUse>),
    /// Answered as soon as the order is sent.
    Step(Box<StepOrder>, Asker<()>),
}

type Asker<T> = oneshot::Sender<Result<T, String>>;

/// Questions whose answers a connection waits for.
type Waiting = Mutex<BTreeMap<u64, About>>;

impl About {
    fn is_given_up(&self) -> bool {
        match self {
            Self::Log(asker) => asker.is_closed(),
            Self::Use(asker) => asker.is_closed(),
            Self::Step(_, asker) => asker.is_closed(),
        }
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum LinkEnd {
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("no word for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("a newer connection of the node took its place")]
    Replaced,
    #[error("the node closed it")]
    Closed,
    #[error("the core refused a report: {0}")]
    Core(#[from] gcore::ctl::Refusal),
}

impl LinkEnd {
    /// The machine's kernel closed it, as when its daemon ends or it is booted.
    fn is_by_machine(&self) -> bool {
        match self {
            Self::Closed => true,
            Self::Frame(error) => node_claim::is_closed(error),
            _ => false,
        }
    }
}

impl NodeLinks {
    pub fn new(core: CoreHandle, changes: NodeChanges, seal: OrderSeal) -> Self {
        Self {
            inner: Arc::new(Inner {
                core,
                changes,
                seal,
                claims: Claims::default(),
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
                    .converse(&mut frames, &mut sink, (&identity, from), hello)
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
            node_claim::Connected {
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
        (identity, from): (&NodeIdentity, SocketAddr),
        hello: Hello,
    ) -> LinkEnd
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let node = identity.node;
        let serial = self.inner.next_serial.fetch_add(1, Ordering::Relaxed);
        let (questions, mut asked) = mpsc::channel(QUESTIONS);
        let heard = Arc::new(Mutex::new(Instant::now()));
        let replaced = Arc::new(Notify::new());
        let mark = self.inner.changes.subscribe(node);
        self.lock_live().insert(
            node,
            Live {
                serial,
                life: hello.life.clone(),
                from,
                heard: heard.clone(),
                replaced: replaced.clone(),
                questions,
            },
        );
        let life = hello.life.clone();
        tracing::info!(node = identity.name, %from, release = hello.release.chars().take(40).collect::<String>(), runs = hello.runs.len(), "connected");
        let waiting = Waiting::default();
        let end = match self.take_hello(frames, sink, identity, hello).await {
            Ok(()) => {
                let reading = self.read_frames(frames, node, &heard, &waiting);
                let mut writer = Writer {
                    links: self,
                    identity,
                    sink,
                    sent: BTreeSet::new(),
                    last: None,
                    let_go_at: None,
                };
                let writing = writer.run(&mark, &mut asked, &waiting);
                let Err(end) = tokio::select! {
                    end = reading => end,
                    end = writing => end,
                    () = replaced.notified() => Err(LinkEnd::Replaced),
                };
                end
            }
            Err(end) => end,
        };
        self.inner.changes.unsubscribe(node, &mark);
        self.inner
            .claims
            .ended(node, Ended::now(life, from, end.is_by_machine()));
        {
            let mut live = self.lock_live();
            if live
                .get(&node)
                .is_some_and(|newest| newest.serial == serial)
            {
                live.remove(&node);
            }
        }
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
        let Hello {
            life,
            fence,
            inventory,
            runs,
            ..
        } = hello;
        if self
            .inner
            .core
            .view()
            .await
            .nodes
            .get(identity.node)
            .is_some_and(|known| known.epoch < identity.epoch)
        {
            self.inner
                .core
                .node_input(
                    identity.node,
                    NodeReport::Certificate {
                        epoch: identity.epoch,
                    },
                )
                .await?;
        }
        let node = identity.node;
        let unknown = unknown_runs(&*self.inner.core.view().await, node, fence, &runs);
        let mut later = Vec::new();
        if !unknown.is_empty() {
            tracing::warn!(
                node = identity.name,
                runs = unknown.len(),
                "the node brings runs from before the restore"
            );
            let asked = timeout(SILENCE, ask_orders(frames, sink, unknown.clone())).await;
            let (orders, reports) = asked.map_err(|_| LinkEnd::Silent(SILENCE))??;
            later = reports;
            let sealed: Vec<LaunchOrder> = orders
                .into_iter()
                .filter(|order| self.inner.seal.is_on(order, &identity.name))
                .collect();
            let with_seal: BTreeSet<RunId> = sealed.iter().filter_map(|order| order.run).collect();
            let (life, inventory, runs) = (life.clone(), inventory.clone(), runs.clone());
            let report = NodeReport::Adopt {
                life,
                inventory,
                runs,
                orders: sealed,
            };
            self.inner.core.node_input(node, report).await?;
            tell_refused(
                &*self.inner.core.view().await,
                identity,
                &unknown,
                &with_seal,
            );
        }
        self.inner
            .core
            .node_input(
                node,
                NodeReport::Hello {
                    life,
                    fence,
                    inventory,
                    runs,
                },
            )
            .await?;
        if !later.is_empty() {
            self.inner
                .core
                .node_input(node, NodeReport::Runs { runs: later })
                .await?;
        }
        Ok(())
    }

    async fn read_frames<R: AsyncRead + Unpin>(
        &self,
        frames: &mut FrameReader<R>,
        node: NodeId,
        heard: &Mutex<Instant>,
        waiting: &Waiting,
    ) -> Result<std::convert::Infallible, LinkEnd> {
        let mut told = Pace::new(Instant::now());
        loop {
            let frame = timeout(SILENCE, frames.next())
                .await
                .map_err(|_| LinkEnd::Silent(SILENCE))??;
            if let Some(ToController::Inventory { .. } | ToController::Idle { .. }) = &frame {
                tokio::time::sleep(told.wait(Instant::now())).await;
            }
            *heard.lock().expect("no panic while held") = Instant::now();
            let report = match frame.ok_or(LinkEnd::Closed)? {
                ToController::Runs { runs } => NodeReport::Runs { runs },
                ToController::Idle { runs } => NodeReport::Idle { runs },
                ToController::Inventory { inventory } => NodeReport::Inventory { inventory },
                ToController::GpuOrders { done } => NodeReport::GpuOrders { done },
                ToController::Obeyed { fence } => NodeReport::Obeyed { fence },
                ToController::Log {
                    question,
                    text,
                    error,
                } => {
                    if let Some(About::Log(asker)) = waiting
                        .lock()
                        .expect("no panic while held")
                        .remove(&question)
                    {
                        let _ = asker.send(if error.is_empty() {
                            Ok(newest(text, MAX_LOG_BYTES))
                        } else {
                            Err(newest(error, MAX_ERROR_BYTES))
                        });
                    }
                    continue;
                }
                ToController::Use {
                    question,
                    used,
                    error,
                } => {
                    if let Some(About::Use(asker)) = waiting
                        .lock()
                        .expect("no panic while held")
                        .remove(&question)
                    {
                        let _ = asker.send(if error.is_empty() {
                            Ok(bounded_use(used))
                        } else {
                            Err(error)
                        });
                    }
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

    fn lock_live(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, Live>> {
        self.inner.live.lock().expect("no panic while held")
    }

    fn lock_turns(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, Arc<AsyncMutex<()>>>> {
        self.inner.turns.lock().expect("no panic while held")
    }
}

impl http::NodeLinks for NodeLinks {
    fn has_address(&self, address: IpAddr) -> bool {
        self.lock_live()
            .values()
            .any(|live| live.from.ip() == address)
    }

    fn read_log(&self, node: NodeId, run: RunId) -> Later<'_, Result<String, String>> {
        Box::pin(self.ask_node(node, run, About::Log))
    }

    fn read_use(&self, node: NodeId, run: RunId) -> Later<'_, Result<RunUse, String>> {
        Box::pin(self.ask_node(node, run, About::Use))
    }

    fn start_step(
        &self,
        node: NodeId,
        run: RunId,
        order: StepOrder,
    ) -> Later<'_, Result<(), String>> {
        Box::pin(self.ask_node(node, run, |asker| About::Step(Box::new(order), asker)))
    }
}

impl NodeLinks {
    async fn ask_node<T>(
        &self,
        node: NodeId,
        run: RunId,
        about: impl FnOnce(Asker<T>) -> About,
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

/// The end of a text.
fn newest(mut text: String, most_bytes: usize) -> String {
    let cut = text.len().saturating_sub(most_bytes);
    text.drain(..text.ceil_char_boundary(cut));
    text
}

/// Runs that a node from before a restore holds and the state does not know, while the node may bring them along.
fn unknown_runs(state: &State, node: NodeId, fence: Fence, runs: &[RunReport]) -> Vec<RunId> {
    let ours = state.newest_fence();
    let from_before =
        fence != Fence::default() && (fence.incarnation < ours.incarnation || fence > ours);
    let may_bring = state
        .nodes
        .get(node)
        .is_some_and(|node| state.adopts_from(node, crate::core_thread::now()));
    let unknown = runs
        .iter()
        .map(|report| report.run)
        .filter(|run| !state.runs.contains(*run));
    if from_before && may_bring {
        unknown.take(MAX_ADOPTED).collect()
    } else {
        Vec::new()
    }
}

/// Says which of the runs that a node brought are not adopted: they are stopped.
fn tell_refused(
    state: &State,
    identity: &NodeIdentity,
    brought: &[RunId],
    with_seal: &BTreeSet<RunId>,
) {
    for run in brought
        .iter()
        .filter(|run| !state.runs.contains(**run))
        .take(MAX_TOLD)
    {
        let why = match with_seal.contains(run) {
            true => "its order is older than the backup, or its job is over or another's by now",
            false => {
                "its order bears no seal of this controller for this node: it was made by an earlier release, or the machine lies"
            }
        };
        tracing::warn!(node = identity.name, %run, "not adopted, so the node is told to stop it: {why}");
    }
}

/// Asks for the orders of runs; what the node reports meanwhile is returned beside them.
async fn ask_orders<R, W>(
    frames: &mut FrameReader<R>,
    sink: &mut W,
    runs: Vec<RunId>,
) -> Result<(Vec<LaunchOrder>, Vec<RunReport>), LinkEnd>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let asked = runs.len();
    frame::write(sink, &ToNode::TellOrders { runs }).await?;
    let (mut told, mut reports) = (Vec::new(), Vec::new());
    loop {
        match frames.next().await?.ok_or(LinkEnd::Closed)? {
            ToController::Orders { orders, done } => {
                told.extend(orders);
                if done || told.len() > asked {
                    told.truncate(asked);
                    return Ok((told, reports));
                }
            }
            ToController::Runs { runs } if reports.len() < MAX_ADOPTED => reports.extend(runs),
            _ => {}
        }
    }
}

/// The writing half of a connection.
struct Writer<'a, W> {
    links: &'a NodeLinks,
    identity: &'a NodeIdentity,
    sink: &'a mut W,
    /// Runs whose orders went out on this connection.
    sent: BTreeSet<RunId>,
    /// The last orders sent.
    last: Option<DesiredState>,
    /// When the node is to hear that it may forget runs, if nothing else is said before.
    let_go_at: Option<Instant>,
}

impl<W: AsyncWrite + Unpin> Writer<'_, W> {
    async fn run(
        &mut self,
        mark: &Notify,
        asked: &mut mpsc::Receiver<Question>,
        waiting: &Waiting,
    ) -> Result<std::convert::Infallible, LinkEnd> {
        let cluster = self.links.inner.core.view().await.config.name.clone();
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
                Some(question) = asked.recv() => self.ask(question, waiting).await?,
                () = tokio::time::sleep(HEARTBEAT) => self.write(&ToNode::Ping).await?,
            }
        }
    }

    /// Sends what the node should run, if that changed, after the orders it has not seen.
    async fn send_orders(&mut self) -> Result<(), LinkEnd> {
        let core = &self.links.inner.core;
        let state = core.view().await;
        self.identity.check(&state).map_err(LinkEnd::Refused)?;
        let node = self.identity.node;
        let desired = desired(&state, node);
        if self
            .last
            .as_ref()
            .is_some_and(|last| last.fence == desired.fence)
        {
            return Ok(());
        }
        if self
            .last
            .as_ref()
            .is_some_and(|last| only_lets_go(&state, node, last, &desired))
        {
            let now = Instant::now();
            if now < *self.let_go_at.get_or_insert(now + LET_GO_WAITS) {
                return Ok(());
            }
        }
        self.let_go_at = None;
        let new = self.runs_without_order(&state, &desired);
        let mut ready = Vec::new();
        let mut bytes = 0;
        for order in launch_orders::build(&state, node, &new, core.reader()).await {
            let sealed = order.map(|mut order| {
                self.links.inner.seal.put_on(&mut order);
                order
            });
            let (order, size) = match sealed.map_err(Box::new).and_then(sized) {
                Ok(sized) => sized,
                Err(report) => {
                    // The core decides what becomes of the run; the next orders will say so.
                    core.node_input(
                        node,
                        NodeReport::Runs {
                            runs: vec![*report],
                        },
                    )
                    .await?;
                    continue;
                }
            };
            if bytes + size > ORDERS_FRAME_BYTES && !ready.is_empty() {
                // Orders ahead of their time: an empty fence is below every other, so nothing is obeyed yet.
                let orders = std::mem::take(&mut ready);
                self.write(&ToNode::Orders {
                    orders,
                    desired: DesiredState::default(),
                })
                .await?;
                bytes = 0;
            }
            bytes += size;
            self.sent.extend(order.run);
            ready.push(order);
        }
        self.sent
            .retain(|sent| desired.runs.iter().any(|one| one.run == *sent));
        self.last = Some(desired.clone());
        self.write(&ToNode::Orders {
            orders: ready,
            desired,
        })
        .await
    }

    /// Runs that the node must start and has neither been sent here nor reported.
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

    async fn ask(&mut self, question: Question, waiting: &Waiting) -> Result<(), LinkEnd> {
        let Question { run, about } = question;
        let number = self
            .links
            .inner
            .next_question
            .fetch_add(1, Ordering::Relaxed);
        let frame = match about {
            About::Step(step, asker) => {
                let sent = self.write(&ToNode::Step { run, step: *step }).await;
                return answer_asker(sent, asker);
            }
            About::Log(_) => ToNode::ReadLog {
                question: number,
                run,
            },
            About::Use(_) => ToNode::ReadUse {
                question: number,
                run,
            },
        };
        {
            let mut waiting = waiting.lock().expect("no panic while held");
            waiting.retain(|_, about| !about.is_given_up());
            waiting.insert(number, about);
        }
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

/// Tells the asker what became of a frame. One that is too large was not begun: it is the asker's error, and no end of the connection.
fn answer_asker(sent: Result<(), LinkEnd>, asker: Asker<()>) -> Result<(), LinkEnd> {
    let (told, goes_on) = match sent {
        Err(LinkEnd::Frame(FrameError::TooLarge {
            announced,
            max_bytes,
        })) => {
            let text = format!(
                "its order takes {announced} bytes on its way to the node, and {max_bytes} are the most. Pass less of the environment with --export, and data in files"
            );
            (Err(text), Ok(()))
        }
        Err(end) => (Err(format!("the node's connection ended: {end}")), Err(end)),
        Ok(()) => (Ok(()), Ok(())),
    };
    let _ = asker.send(told); // the asker may have gone
    goes_on
}

/// How often a node may say what is written down each time that it says something else: its inventory, and idle GPUs. Beyond that its
/// connection waits, and with it only this node.
struct Pace {
    /// When all that was said is paid for.
    paid: Instant,
}

impl Pace {
    const EACH: Duration = Duration::from_secs(5);
    const AT_ONCE: u32 = 40;

    fn new(now: Instant) -> Self {
        Self { paid: now }
    }

    /// How long what is said now has to wait.
    fn wait(&mut self, now: Instant) -> Duration {
        self.paid = self.paid.max(now) + Self::EACH;
        self.paid
            .saturating_duration_since(now + Self::EACH * Self::AT_ONCE)
            .min(Self::EACH)
    }
}

/// Whether all that is new is that runs are not named any more which are clean on the node.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_says_new_things_all_the_time_is_heard_every_few_seconds() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut now = start;
        let mut waited = Duration::ZERO;
        for said in 1..=100 {
            let wait = pace.wait(now);
            assert!(said > Pace::AT_ONCE || wait.is_zero(), "{said}");
            waited += wait;
            now += wait;
        }
        assert_eq!(waited, Pace::EACH * (100 - Pace::AT_ONCE));
        // One that is heard every half a minute never waits.
        let mut pace = Pace::new(start);
        assert!((0..1000).all(|at| pace.wait(start + Duration::from_secs(30 * at)).is_zero()));
    }

    #[tokio::test]
    async fn an_order_that_no_frame_holds_is_its_askers_error_and_the_connection_goes_on() {
        let (mut near, far) = tokio::io::duplex(64 << 20);
        let step = |bytes: usize| ToNode::Step {
            run: RunId::new(gmodel::JobId(1), 1),
            step: StepOrder {
                argv: vec!["x".repeat(bytes)],
                ..StepOrder::default()
            },
        };
        for (bytes, fits) in [(MAX_FRAME_BYTES as usize, false), (100, true)] {
            let (asker, answer) = oneshot::channel();
            let sent = frame::write(&mut near, &step(bytes))
                .await
                .map_err(LinkEnd::from);
            answer_asker(sent, asker).expect("the connection goes on");
            let told = answer.await.unwrap();
            assert_eq!(told.is_ok(), fits, "{told:?}");
            assert!(fits || told.unwrap_err().contains("and 16777216 are the most"));
        }
        drop(near);
        let mut frames = FrameReader::new(far);
        assert_eq!(
            frames.next::<ToNode>().await.unwrap(),
            Some(step(100)),
            "nothing of the first was written"
        );
        assert_eq!(frames.next::<ToNode>().await.unwrap(), None);
    }
}
