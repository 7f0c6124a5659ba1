//! A controller of three hundred lines: it speaks the node protocol, joins and renews, and answers forwarded requests with what it was
//! asked. Frames of all connections come through one channel, so that a test says what it waits for.

use gmodel::checkpoint::CheckpointMark;
use gmodel::gpu_order::{GpuOrder, GpuOrderDone};
use gmodel::launch_order::LaunchOrder;
use gmodel::run::{DesiredRun, DesiredState, RunEnd, RunPhase, RunReport};
use gmodel::{Fence, RunId};
use gwire::api::{FORWARD_HEADER, JoinReply, JoinRequest};
use gwire::frame::{self, FrameReader};
use gwire::node_protocol::{
    ALPN_HTTP, ALPN_JOIN, ALPN_NODE, Hello, PROTOCOL, ToController, ToNode,
};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::PATIENCE;

const DAY: Duration = Duration::from_secs(86_400);

/// What happened on the controller's side.
pub enum Event {
    Frame(Box<ToController>),
    Gone,
}

pub struct Controller {
    pub address: String,
    pub token: String,
    events: mpsc::UnboundedReceiver<Event>,
    /// To the connection that said hello last.
    to_node: Arc<std::sync::Mutex<Option<mpsc::UnboundedSender<Vec<u8>>>>>,
    pub phases: BTreeMap<RunId, RunPhase>,
    /// The newest checkpoint mark of each run.
    pub marks: BTreeMap<RunId, CheckpointMark>,
    pub obeyed: Option<Fence>,
    pub hello: Option<Hello>,
    pub inventories: Vec<gmodel::node::Inventory>,
    pub gone: u32,
    /// What was answered to orders for GPUs, oldest first.
    pub gpu_orders: Vec<GpuOrderDone>,
    /// How long is waited for anything.
    pub patience: Duration,
    /// Answers to `ReadLog`: text and error.
    pub logs: BTreeMap<u64, (String, String)>,
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
    pem: String,
    /// Nodes get certificates of which three quarters of the life are over.
    short_lived: bool,
}

impl Authority {
    fn new(short_lived: bool) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params
            .distinguished_name
            .push(DnType::CommonName, "test cluster");
        let cert = params.self_signed(&key).unwrap();
        Self {
            der: cert.der().clone(),
            pem: cert.pem(),
            issuer: Issuer::new(params, key),
            short_lived,
        }
    }

    /// Name and role as gpuctld writes them into a certificate.
    fn sign(&self, request: &JoinRequest, role: &str) -> JoinReply {
        let name = if request.name.is_empty() {
            "n1"
        } else {
            &request.name
        };
        let csr = CertificateSigningRequestParams::from_pem(&request.csr_pem).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        let uri = format!("gpupool:role:{role}");
        params
            .subject_alt_names
            .push(SanType::URI(uri.try_into().unwrap()));
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ClientAuth);
        if self.short_lived {
            let now = std::time::UNIX_EPOCH.elapsed().unwrap();
            let epoch = rcgen::date_time_ymd(1970, 1, 1);
            (params.not_before, params.not_after) = (epoch + now - 3 * DAY, epoch + now + DAY);
        }
        let cert = params.signed_by(&csr.public_key, &self.issuer).unwrap();
        let role = serde_json::from_value(role.into()).unwrap();
        JoinReply {
            schema: 1,
            name: name.into(),
            role,
            cert_pem: cert.pem(),
            ca_pem: self.pem.clone(),
            cluster: "test".into(),
            admin: false,
        }
    }

    fn acceptor(&self) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let name = "gpuctld.gpupool.internal".try_into().unwrap();
        params.subject_alt_names.push(SanType::DnsName(name));
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ServerAuth);
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = rustls::server::WebPkiClientVerifier::builder_with_provider(
            Arc::new(roots),
            provider.clone(),
        );
        let chain = vec![cert.der().clone(), self.der.clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_client_cert_verifier(clients.allow_unauthenticated().build().unwrap())
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = [ALPN_NODE, ALPN_HTTP, ALPN_JOIN].map(<[u8]>::to_vec).into();
        TlsAcceptor::from(Arc::new(config))
    }
}

impl Controller {
    pub async fn start() -> Self {
        Self::with_role("compute").await
    }

    /// Every machine that joins gets this role.
    pub async fn with_role(role: &'static str) -> Self {
        Self::with(role, false).await
    }

    /// Its certificates want to be renewed at once.
    pub async fn short_lived() -> Self {
        Self::with("compute", true).await
    }

    async fn with(role: &'static str, short_lived: bool) -> Self {
        let authority = Arc::new(Authority::new(short_lived));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let pin: String = Sha256::digest(&authority.der)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let (sender, events) = mpsc::unbounded_channel();
        let to_node = Arc::default();
        tokio::spawn(accept(
            listener,
            authority,
            role,
            sender,
            Arc::clone(&to_node),
        ));
        Self {
            address,
            token: format!("secret.{pin}"),
            events,
            to_node,
            phases: BTreeMap::new(),
            marks: BTreeMap::new(),
            obeyed: None,
            hello: None,
            inventories: Vec::new(),
            gone: 0,
            patience: PATIENCE,
            logs: BTreeMap::new(),
            gpu_orders: Vec::new(),
        }
    }

    /// Waits until what was heard so far satisfies `done`.
    pub async fn wait(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + self.patience;
        while !done(self) {
            match timeout_at(deadline, self.events.recv()).await {
                Ok(Some(event)) => self.hear(event),
                Ok(None) => panic!("the controller ended"),
                Err(_) => panic!(
                    "waited in vain for {what}; phases {:?}, obeyed {:?}",
                    self.phases, self.obeyed
                ),
            }
        }
    }

    pub async fn wait_phase(&mut self, run: RunId, rank: u8) {
        self.wait(&format!("phase {rank} of {run}"), |ctl| {
            ctl.phases.get(&run).is_some_and(|p| p.rank() >= rank)
        })
        .await;
    }

    /// Waits until the run is clean; its end.
    pub async fn wait_clean(&mut self, run: RunId) -> RunEnd {
        self.wait_phase(run, 4).await;
        self.phases[&run].end().unwrap().as_ref().clone()
    }

    /// Forgets the hello there was and waits for the next.
    pub async fn wait_hello(&mut self) -> Hello {
        self.wait("a hello", |ctl| ctl.hello.is_some()).await;
        self.hello.take().unwrap()
    }

    fn hear(&mut self, event: Event) {
        let frame = match event {
            Event::Frame(frame) => *frame,
            Event::Gone => return self.gone += 1,
        };
        match frame {
            ToController::Hello(hello) => {
                hello.runs.iter().for_each(|report| self.heard_of(report));
                self.inventories.push(hello.inventory.clone());
                self.hello = Some(hello);
            }
            ToController::Runs { runs } => {
                runs.iter().for_each(|report| self.heard_of(report));
            }
            ToController::Obeyed { fence } => self.obeyed = Some(fence),
            ToController::Inventory { inventory } => self.inventories.push(inventory),
            ToController::GpuOrders { done } => self.gpu_orders.extend(done),
            ToController::Log {
                question,
                text,
                error,
            } => drop(self.logs.insert(question, (text, error))),
            _ => {}
        }
    }

    fn heard_of(&mut self, report: &RunReport) {
        self.phase(report.run, report.phase.clone());
        let before = self.marks.get(&report.run).map_or(0, |mark| mark.number);
        let now = report.mark.as_ref().map_or(0, |mark| mark.number);
        assert!(
            before <= now,
            "a mark of {} is forgotten: {before}, then {now}",
            report.run
        );
        self.marks
            .extend(report.mark.clone().map(|mark| (report.run, mark)));
    }

    fn phase(&mut self, run: RunId, phase: RunPhase) {
        if let Some(before) = self.phases.get(&run) {
            assert!(
                before.rank() <= phase.rank(),
                "{run} went back from {before:?} to {phase:?}"
            );
        }
        self.phases.insert(run, phase);
    }

    pub fn send(&self, frame: &ToNode) {
        self.send_bytes(frame::encode(frame).unwrap());
    }

    pub fn send_bytes(&self, bytes: Vec<u8>) {
        let to_node = self.to_node.lock().unwrap();
        to_node
            .as_ref()
            .expect("a node is connected")
            .send(bytes)
            .unwrap();
    }

    /// Desired state of this generation with orders for GPUs and no run.
    pub fn order_gpus(&self, generation: u64, gpus: Vec<GpuOrder>) {
        let desired = DesiredState {
            fence: Fence {
                incarnation: 1,
                generation,
            },
            runs: Vec::new(),
            gpus,
        };
        self.send(&ToNode::Orders {
            orders: Vec::new(),
            desired,
        });
    }

    /// Desired state of this generation, with the orders of runs to start.
    pub fn desire(&self, generation: u64, orders: Vec<LaunchOrder>, runs: Vec<DesiredRun>) {
        let desired = DesiredState {
            fence: Fence {
                incarnation: 1,
                generation,
            },
            runs,
            gpus: Vec::new(),
        };
        self.send(&ToNode::Orders { orders, desired });
    }
}

async fn accept(
    listener: TcpListener,
    authority: Arc<Authority>,
    role: &'static str,
    events: mpsc::UnboundedSender<Event>,
    to_node: Arc<std::sync::Mutex<Option<mpsc::UnboundedSender<Vec<u8>>>>>,
) {
    let acceptor = authority.acceptor();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, authority, events, to_node) = (
            acceptor.clone(),
            Arc::clone(&authority),
            events.clone(),
            Arc::clone(&to_node),
        );
        tokio::spawn(async move {
            stream.set_nodelay(true).unwrap();
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            match stream.get_ref().1.alpn_protocol() {
                Some(ALPN_NODE) => {
                    let (sender, queue) = mpsc::unbounded_channel();
                    *to_node.lock().unwrap() = Some(sender);
                    serve_node(stream, queue, &events).await;
                    let _ = events.send(Event::Gone);
                }
                _ => serve_http(stream, authority, role).await,
            }
        });
    }
}

async fn serve_node(
    stream: TlsStream<TcpStream>,
    mut queue: mpsc::UnboundedReceiver<Vec<u8>>,
    events: &mpsc::UnboundedSender<Event>,
) {
    let (read, mut write) = tokio::io::split(stream);
    let welcome = ToNode::Welcome {
        protocol: PROTOCOL,
        release: "0.1.0".into(),
        cluster: "test".into(),
        heartbeat_secs: 5,
    };
    write
        .write_all(&frame::encode(&welcome).unwrap())
        .await
        .unwrap();
    let mut frames = FrameReader::new(read);
    loop {
        tokio::select! {
            frame = frames.next::<ToController>() => match frame {
                Ok(Some(frame)) => drop(events.send(Event::Frame(Box::new(frame)))),
                _ => return,
            },
            bytes = queue.recv() => match bytes {
                Some(bytes) if write.write_all(&bytes).await.is_ok() => drop(write.flush().await),
                _ => return,
            },
        }
    }
}

async fn serve_http(stream: TlsStream<TcpStream>, authority: Arc<Authority>, role: &'static str) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let authority = Arc::clone(&authority);
        async move {
            let path = request.uri().path().to_owned();
            let peer: Vec<_> = request
                .headers()
                .get_all(FORWARD_HEADER)
                .iter()
                .map(|v| v.to_str().unwrap().to_owned())
                .collect();
            let method = request.method().to_string();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let answer = match path.as_str() {
                "/v1/join" | "/v1/renew" => {
                    let request: JoinRequest = serde_json::from_slice(&body).unwrap();
                    serde_json::to_vec(&authority.sign(&request, role)).unwrap()
                }
                _ => format!("{method} {path} peer={peer:?} body={}", body.len()).into_bytes(),
            };
            Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(answer))))
        }
    });
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
