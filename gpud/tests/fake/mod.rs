//! A controller of three hundred lines, and real node daemons beside it: what the tests of gpud drive.
//!
//! It speaks the node protocol, joins and renews, and answers forwarded requests with what it was asked. Frames of all
//! connections come through one channel, so that a test says what it waits for.

#![allow(dead_code)] // each test file uses its part

use gmodel::checkpoint::CheckpointMark;
use gmodel::gpu_order::{GpuOrder, GpuOrderDone};
use gmodel::launch_order::{LaunchOrder, OrderNode};
use gmodel::run::{DesiredRun, DesiredState, RunEnd, RunPhase, RunReport, RunTarget, StopCause};
use gmodel::{Fence, RunId, UserRef};
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
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const DAY: Duration = Duration::from_secs(86_400);
pub const PATIENCE: Duration = Duration::from_secs(30);

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

// --- the node ---

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A node's directories and its daemon; all of it goes with the value.
pub struct Node {
    pub dir: PathBuf,
    pub cgroup_tag: String,
    controller: String,
    extra: String,
    pub daemon: Option<Child>,
    /// Whom the daemon runs as, when not as us.
    pub daemon_uid: Option<u32>,
    /// A copy of gpud that another user can reach; else the one that was built.
    pub program: Option<PathBuf>,
}

impl Node {
    /// Joins and starts; `extra` are more lines of TOML. Without root the node has no isolation.
    pub async fn start(controller: &Controller, extra: &str) -> Self {
        build_tools();
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let tag = format!("gpupool-test-{}-{number}", std::process::id());
        // Not below /tmp, which a job with private directories does not see.
        let dir = Path::new("/var/tmp").join(&tag);
        fs::create_dir(&dir).unwrap();
        fs::create_dir(dir.join("work")).unwrap();
        // As /tmp is: the site's programs are below it, and what is root's there nobody else may move.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
        fs::set_permissions(dir.join("work"), fs::Permissions::from_mode(0o777)).unwrap();
        let mut node = Self {
            dir,
            cgroup_tag: tag,
            controller: controller.address.clone(),
            extra: extra.into(),
            daemon: None,
            daemon_uid: None,
            program: None,
        };
        node.write_config();
        assert!(node.join(&controller.token).await.success());
        node.start_daemon();
        node
    }

    fn write_config(&self) {
        let dir = self.dir.display();
        let isolation = if is_root() { "fence" } else { "none" };
        let text = format!(
            "controller = \"{}\"\nstate_dir = \"{dir}/state\"\nspool_dir = \"{dir}/spool\"\nrun_dir = \"{dir}/run\"\n\
             cgroup_tag = \"{}\"\nisolation = \"{isolation}\"\ncpus = 4\nmem_bytes = 1073741824\ngstepd = \"{}\"\n{}\n",
            self.controller,
            self.cgroup_tag,
            beside("gstepd").display(),
            self.extra,
        );
        let text = if self.extra.contains("gpus =") {
            text
        } else {
            format!("gpus = \"none\"\n{text}")
        };
        fs::write(self.dir.join("gpud.toml"), text).unwrap();
    }

    pub async fn join(&self, token: &str) -> std::process::ExitStatus {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_gpud"));
        command.args([
            "join",
            "--controller",
            &self.controller,
            "--token",
            token,
            "--name",
            "n1",
            "--state-dir",
        ]);
        command.arg(self.dir.join("state")).stderr(self.log());
        command.status().await.unwrap()
    }

    pub fn start_daemon(&mut self) {
        assert!(self.daemon.is_none());
        let mut command = Command::new(
            self.program
                .as_deref()
                .unwrap_or(Path::new(env!("CARGO_BIN_EXE_gpud"))),
        );
        command
            .arg("run")
            .arg("--config")
            .arg(self.dir.join("gpud.toml"));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.log())
            .env("GPUD_LOG", "debug");
        if self.dir.join("nvml").exists() {
            command.env("NVML_SIM_STATE", self.dir.join("nvml"));
        }
        if let Some(uid) = self.daemon_uid {
            use std::os::unix::process::CommandExt;
            command.uid(uid).gid(uid);
        }
        self.daemon = Some(command.spawn().unwrap());
    }

    fn log(&self) -> fs::File {
        fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.dir.join("gpud.log"))
            .unwrap()
    }

    pub fn log_text(&self) -> String {
        fs::read_to_string(self.dir.join("gpud.log")).unwrap()
    }

    /// SIGKILL.
    pub fn kill_daemon(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// SIGTERM, as systemd would.
    pub fn stop_daemon(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(daemon.id() as i32),
            nix::sys::signal::Signal::SIGTERM,
        )
        .unwrap();
        assert!(
            daemon.wait().unwrap().success(),
            "gpud ends well on SIGTERM"
        );
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn run_dir(&self, run: RunId) -> PathBuf {
        self.dir.join("spool/runs").join(run.to_string())
    }

    /// A program of the site's that root alone can change; its path.
    pub fn site_program(&self, name: &str, body: &str) -> String {
        let dir = self.path("site");
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    /// The order of a job whose script is `body`, run by `sh` in `work`.
    pub fn order(&self, run: RunId, body: &str) -> LaunchOrder {
        let user = if is_root() {
            "nobody".to_owned()
        } else {
            own_name()
        };
        let user = gsys::user::User::by_name(&user).unwrap().unwrap();
        LaunchOrder {
            run: Some(run),
            job_name: "test".into(),
            user: UserRef {
                name: user.name,
                uid: user.uid,
                gid: user.gid,
            },
            partition: "p".into(),
            cluster: "test".into(),
            nodes: vec![OrderNode {
                name: "n1".into(),
                cpus: 1,
                tasks: 1,
                gpus: 0,
            }],
            ntasks: 1,
            cpus_per_task: 1,
            cpus: 1,
            mem_bytes: 64 << 20,
            script: format!("#!/bin/sh\n{body}\n"),
            environment: vec!["PATH=/usr/bin:/bin".into()],
            work_dir: self.path("work").display().to_string(),
            stdout: "out".into(),
            kill_grace_secs: 5,
            umask: 0o022,
            ..LaunchOrder::default()
        }
    }

    /// No process, cgroup or mount of the run is left.
    pub fn assert_no_trace(&self, run: RunId) {
        for tree in [
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup/memory",
            "/sys/fs/cgroup/cpu",
            "/sys/fs/cgroup/pids",
        ] {
            for what in ["run", "prolog", "epilog"] {
                let dir = Path::new(tree)
                    .join(&self.cgroup_tag)
                    .join(format!("{what}_{run}"));
                assert!(!dir.exists(), "{} is left", dir.display());
            }
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(
            !mounts.contains(&format!("{}/spool/private/{run}", self.dir.display())),
            "a mount is left"
        );
        assert!(!self.path("spool/private").join(run.to_string()).exists());
    }
}

/// Four simulated GPUs with device files of a major that no driver has.
fn simulate_gpus(dir: &Path) {
    let sim = beside("nvml-sim");
    fs::create_dir_all(dir.join("nvml")).unwrap();
    let made = std::process::Command::new(sim)
        .args(["init", "--gpus", "h100:4", "--dir"])
        .arg(dir.join("nvml"))
        .status();
    assert!(made.unwrap().success());
    let state: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.join("nvml/state.json")).unwrap()).unwrap();
    fs::create_dir_all(dir.join("dev")).unwrap();
    fs::set_permissions(dir.join("dev"), fs::Permissions::from_mode(0o755)).unwrap();
    let major = gsys::device_node::unused_major(&[]).unwrap();
    for gpu in state["gpus"].as_array().unwrap() {
        let minor = gpu["minor"].as_u64().unwrap() as u32;
        let device = gsys::device_fence::DeviceNumber { major, minor };
        gsys::device_node::make_char_device(&dir.join(format!("dev/nvidia{minor}")), device)
            .unwrap();
    }
    let device = gsys::device_fence::DeviceNumber { major, minor: 4000 };
    gsys::device_node::make_char_device(&dir.join("dev/nvidiactl"), device).unwrap();
}

/// A node with simulated GPUs: joined without them, then started again with them.
pub async fn gpu_node(ctl: &mut Controller, extra: &str) -> Node {
    let mut node = Node::start(ctl, "gpus = \"none\"").await;
    ctl.wait_hello().await;
    node.stop_daemon();
    simulate_gpus(&node.dir);
    let config = fs::read_to_string(node.path("gpud.toml")).unwrap();
    let lib = beside("libnvidia_ml_sim.so");
    let gpus = format!(
        "gpus = \"auto\"\nnvml_lib = {:?}\ndev_dir = {:?}\n{extra}",
        lib.display(),
        node.path("dev").display()
    );
    fs::write(
        node.path("gpud.toml"),
        config.replace("gpus = \"none\"", &gpus),
    )
    .unwrap();
    node.start_daemon();
    node
}

pub fn nvml_sim(node: &Node, words: &[&str]) {
    let said = std::process::Command::new(beside("nvml-sim"))
        .args(words)
        .arg("--dir")
        .arg(node.path("nvml"))
        .status();
    assert!(said.unwrap().success(), "{words:?}");
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        if is_root() {
            let _ = gsys::cgroup::remove_all(&self.cgroup_tag);
        }
        if std::thread::panicking() {
            eprintln!(
                "--- gpud.log of {}\n{}",
                self.dir.display(),
                self.log_text()
            );
            for run in fs::read_dir(self.path("spool/runs"))
                .into_iter()
                .flatten()
                .flatten()
            {
                let log = fs::read_to_string(run.path().join("log")).unwrap_or_default();
                eprintln!("--- {}\n{log}", run.path().display());
            }
        }
        // A test may have put a small file system there.
        let _ = gsys::mount::unmount(&self.path("spool"));
        let _ = gsys::removal::remove_tree(&self.dir);
    }
}

pub fn run_id(text: &str) -> RunId {
    text.parse().unwrap()
}

pub fn want(run: RunId, want: RunTarget) -> DesiredRun {
    DesiredRun {
        run,
        want,
        signals: Vec::new(),
        limit_secs: None,
        suspended: false,
    }
}

pub fn stop(run: RunId, grace_secs: u32) -> DesiredRun {
    want(
        run,
        RunTarget::Stop {
            why: StopCause::Cancelled,
            grace_secs,
        },
    )
}

pub fn is_root() -> bool {
    gsys::user::is_root()
}

fn own_name() -> String {
    gsys::user::user_name(nix::unistd::geteuid().as_raw())
        .unwrap()
        .unwrap()
}

/// Waits for a file a job makes.
pub async fn wait_file(path: &Path) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fs::read_to_string(path) {
            Ok(text) if !text.is_empty() => return text,
            _ if Instant::now() > deadline => panic!("{} did not appear", path.display()),
            _ => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    }
}

/// Where cargo puts the workspace's programs.
pub fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_gpud")).with_file_name(name)
}

/// gstepd and the simulated NVML are other packages: built when older than their sources, so that a test never runs an
/// old one, and does not wait for cargo's lock either.
fn build_tools() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let newest = ["gstepd/src", "nvml-sim/src", "gsys/src", "gmodel/src"]
            .map(|dir| newest_below(&workspace.join(dir)));
        let newest = newest.into_iter().max().unwrap();
        let built = |name: &str| {
            fs::metadata(beside(name))
                .and_then(|meta| meta.modified())
                .is_ok_and(|at| at > newest)
        };
        if ["gstepd", "nvml-sim", "libnvidia_ml_sim.so"]
            .into_iter()
            .all(built)
        {
            return;
        }
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--quiet", "-p", "gstepd", "-p", "nvml-sim"])
            .status()
            .unwrap();
        assert!(built.success(), "gstepd does not build");
    });
}

fn newest_below(dir: &Path) -> std::time::SystemTime {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let newest = |path: PathBuf| {
        if path.is_dir() {
            newest_below(&path)
        } else {
            fs::metadata(path).unwrap().modified().unwrap()
        }
    };
    entries.map(newest).max().unwrap_or(std::time::UNIX_EPOCH)
}
