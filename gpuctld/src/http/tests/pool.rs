//! A controller without sockets: core thread, database, router, and nodes that report what a test says.

use crate::config::Config;
use crate::config::LiveSettings;
use crate::core_thread::now;
use crate::core_thread::{Core, CoreHandle, CoreParts};
use crate::http::{
    App, NodeAnswer, NodeLinks, Peer, StreamSource, WebDoor, admit_browser, admit_token, router,
    web_router,
};
use crate::node_changes::NodeChanges;
use crate::pki::Pki;
use crate::planner;
use crate::store::Store;
use crate::user_names::UserNames;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use gcore::ctl::state::JoinToken;
use gcore::ctl::{Actor, Command, Input, NodeReport, Reply, snapshot};
use gmodel::node::{GpuInfo, Inventory, Role};
use gmodel::run::{EndCause, RunEnd, RunPhase, RunReport};
use gmodel::run::{RunUse, Usage};
use gmodel::supervise::StepOrder;
use gmodel::{ExitCode, Fence, JobId, NodeId, NodeLife, RunId};
use gsched::WorkBudget;
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) struct Pool {
    pub(super) core: CoreHandle,
    pub(super) app: Arc<App>,
    pub(super) dir: tempfile::TempDir,
    pub(super) steps: Arc<Mutex<Vec<(NodeId, RunId, StepOrder)>>>,
    router: Router,
    thread: Option<JoinHandle<()>>,
}

/// Every node answers at once.
struct Links {
    steps: Arc<Mutex<Vec<(NodeId, RunId, StepOrder)>>>,
}

impl NodeLinks for Links {
    fn addresses(&self) -> std::collections::BTreeMap<NodeId, std::net::IpAddr> {
        std::collections::BTreeMap::from([(NodeId(1), std::net::IpAddr::from([10, 0, 0, 7]))])
    }
    fn read_log(&self, _: NodeId, run: RunId) -> NodeAnswer<'_, Result<String, String>> {
        Box::pin(async move { Ok(format!("prepared {run}\nstarted {run}")) })
    }
    fn read_use(&self, _: NodeId, _: RunId) -> NodeAnswer<'_, Result<RunUse, String>> {
        let all = Usage {
            cpu_user_micros: 3_000_000,
            peak_memory_bytes: 1 << 20,
            ..Usage::default()
        };
        Box::pin(async move {
            Ok(RunUse {
                all,
                steps: vec![(
                    0,
                    Usage {
                        cpu_user_micros: 1_000_000,
                        ..Usage::default()
                    },
                )],
            })
        })
    }
    fn start_step(
        &self,
        node: NodeId,
        run: RunId,
        order: StepOrder,
    ) -> NodeAnswer<'_, Result<(), String>> {
        self.steps.lock().unwrap().push((node, run, order));
        Box::pin(async { Ok(()) })
    }
    fn signal_step(
        &self,
        _: NodeId,
        _: RunId,
        _: u32,
        _: Option<u8>,
    ) -> NodeAnswer<'_, Result<(), String>> {
        Box::pin(async { Err("the node is not connected".to_owned()) })
    }
    fn open_stream(
        &self,
        _: NodeId,
        _: RunId,
        _: StreamSource,
        _: String,
    ) -> NodeAnswer<'_, Result<(), String>> {
        Box::pin(async { Err("the node is not connected".to_owned()) })
    }
}

impl Pool {
    /// With these lines of TOML besides the paths.
    pub(super) fn new(toml: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_config(dir.path(), toml);
        let path = dir.path().join("gpuctld.toml");
        let config = Config::load(&path).unwrap_or_else(|errors| panic!("{}", errors[0]));
        let config = Arc::new(config);
        let (store, state) = Store::open_or_make(dir.path()).unwrap();
        let live = LiveSettings::of(&config);
        let parts = CoreParts {
            state,
            store,
            node_changes: NodeChanges::default(),
            planner: planner::channel(false).0,
            min_free_bytes: live.min_free_bytes.clone(),
            trace: None,
        };
        let (core, mut thread) = Core::new(parts);
        let cluster = Arc::new(config.cluster.clone());
        thread
            .take(vec![Input::Configure { config: cluster }, Input::Started])
            .unwrap();
        let pki = Arc::new(Pki::open(dir.path(), &config.cluster.name).unwrap());
        let steps = Arc::new(Mutex::new(Vec::new()));
        let app = App::new(
            path,
            config,
            pki,
            Arc::new(Links {
                steps: steps.clone(),
            }),
            live,
        );
        let router = router(core.clone(), app.clone());
        let thread = Some(std::thread::spawn(move || thread.run().unwrap()));
        Self {
            core,
            app,
            dir,
            steps,
            router,
            thread,
        }
    }

    /// One request; the status and the body as JSON (as a text where it is none).
    pub(super) async fn ask(
        &self,
        peer: &Peer,
        method: &str,
        path: &str,
        body: Value,
    ) -> (StatusCode, Value) {
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        self.ask_text(Some(peer), method, path, text).await
    }

    pub(super) async fn ask_text(
        &self,
        peer: Option<&Peer>,
        method: &str,
        path: &str,
        body: impl Into<Body>,
    ) -> (StatusCode, Value) {
        self.ask_with(peer, method, path, &[], body).await
    }

    /// With these headers.
    pub(super) async fn ask_with(
        &self,
        peer: Option<&Peer>,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> (StatusCode, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(peer) = peer {
            request = request.extension(peer.clone());
        }
        let request = request.body(body.into()).unwrap();
        let answer = TowerToHyperService::new(self.router.clone())
            .call(request)
            .await
            .unwrap();
        let status = answer.status();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let value = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        (status, value)
    }

    /// Over the network from `from`, with these headers: as the listener lets it in.
    pub(super) async fn ask_over_network(
        &self,
        from: &str,
        headers: &[(&str, &str)],
        method: &str,
        path: &str,
        body: Value,
    ) -> (StatusCode, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::from(body.to_string())).unwrap();
        let (gate, names) = (&self.app.entrances.tokens, UserNames::default());
        let from = Some(from.parse().unwrap());
        let answer = match admit_token(&self.core, gate, &names, &mut request, from).await {
            Ok(()) => TowerToHyperService::new(self.router.clone())
                .call(request)
                .await
                .unwrap(),
            Err(error) => error.into_response(),
        };
        let status = answer.status();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let value = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        (status, value)
    }

    /// A browser behind this door, with these headers: as the listener lets it in.
    pub(super) async fn browse(
        &self,
        door: WebDoor,
        headers: &[(&str, &str)],
        method: &str,
        path: &str,
        form: &str,
    ) -> axum::response::Response {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/x-www-form-urlencoded")
            .extension(door);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::from(form.to_owned())).unwrap();
        let (sessions, names) = (&self.app.entrances.web, UserNames::default());
        admit_browser(&self.core, sessions, &names, &mut request).await;
        let (core, app) = (self.core.clone(), self.app.clone());
        let pages = web_router(core, app, self.router.clone());
        TowerToHyperService::new(pages).call(request).await.unwrap()
    }

    pub(super) async fn get(&self, peer: &Peer, path: &str) -> Value {
        let (status, value) = self.ask(peer, "GET", path, Value::Null).await;
        assert_eq!(status, StatusCode::OK, "GET {path}: {value}");
        value
    }

    pub(super) async fn post(&self, peer: &Peer, path: &str, body: Value) -> Value {
        let (status, value) = self.ask(peer, "POST", path, body).await;
        assert_eq!(status, StatusCode::OK, "POST {path}: {value}");
        value
    }

    /// Status and text of a request that is refused.
    pub(super) async fn refused(
        &self,
        peer: &Peer,
        method: &str,
        path: &str,
        body: Value,
    ) -> String {
        let (status, value) = self.ask(peer, method, path, body).await;
        assert!(!status.is_success(), "{method} {path} was done: {value}");
        assert_eq!(value["schema"], 1);
        format!(
            "{} {}: {}",
            status.as_u16(),
            value["code"].as_str().unwrap(),
            value["error"].as_str().unwrap()
        )
    }

    /// Submits `spec` over a small script; the id.
    pub(super) async fn submit(&self, peer: &Peer, spec: Value) -> u64 {
        self.post(peer, "/v1/jobs", request(spec)).await["id"]
            .as_u64()
            .unwrap()
    }

    /// A node that joined and said hello.
    pub(super) async fn node(&self, name: &str, role: Role, gpus: u32) -> NodeId {
        let hash = Pki::token_hash(name);
        let token = JoinToken {
            hash: hash.clone(),
            role,
            name: Some(name.to_owned()),
            expires: now().plus_secs(60),
            minted_by: "root".into(),
            admin: false,
        };
        let actor = Actor {
            user: "root".into(),
            operator: true,
            ..Actor::default()
        };
        self.core
            .command(actor, Command::MintToken { token })
            .await
            .unwrap();
        let join = Command::Join {
            token_hash: hash,
            name: name.to_owned(),
        };
        let Reply::Joined { node, .. } = self.core.command(Actor::default(), join).await.unwrap()
        else {
            panic!("{name} did not join")
        };
        let gpu = |index: u32| GpuInfo {
            uuid: format!("GPU-{name}-{index}"),
            gpu_type: "h100".into(),
            index,
            minor: 7 - index,
            memory_mib: 81_920,
            ..GpuInfo::default()
        };
        let inventory = Inventory {
            cpus: 16,
            mem_bytes: 64 << 30,
            gpus: (0..gpus).map(gpu).collect(),
            isolation: "fence".into(),
            ..Inventory::default()
        };
        let life = NodeLife {
            boot: "boot".into(),
            spool: name.to_owned(),
        };
        let hello = NodeReport::Hello {
            life,
            fence: Fence::default(),
            inventory,
            runs: Vec::new(),
        };
        self.core.node_input(node, hello).await.unwrap();
        node
    }

    /// One pass of the scheduler.
    pub(super) async fn pass(&self) {
        let plan = gsched::plan(
            &snapshot(&*self.core.view().await, now()),
            WorkBudget::default(),
        );
        let core = self.core.clone();
        tokio::task::spawn_blocking(move || core.plan_blocking(plan))
            .await
            .unwrap()
            .unwrap();
    }

    pub(super) async fn report(&self, node: NodeId, job: u64, phase: RunPhase) {
        let runs = vec![RunReport::new(RunId::new(JobId(job), 1), phase)];
        self.core
            .node_input(node, NodeReport::Runs { runs })
            .await
            .unwrap();
    }

    pub(super) async fn running(&self, node: NodeId, job: u64) {
        self.report(node, job, RunPhase::Running { started: now() })
            .await;
    }

    /// Told to stop, and clean.
    pub(super) async fn stopped(&self, node: NodeId, job: u64) {
        let end = RunEnd {
            cause: EndCause::Stopped,
            started: Some(now()),
            ended: Some(now()),
            ..RunEnd::default()
        };
        self.report(node, job, RunPhase::Clean(end.into())).await;
    }

    pub(super) async fn ended(&self, node: NodeId, job: u64, exit: ExitCode) {
        let end = RunEnd {
            exit,
            started: Some(now()),
            ended: Some(now()),
            ..RunEnd::default()
        };
        self.report(node, job, RunPhase::Clean(end.into())).await;
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.core.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there was printed
        }
    }
}

/// Asks until there is an answer, for 20 s at most.
pub(super) async fn until<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(
            Instant::now() < deadline,
            "it did not come to be that {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Finished jobs and arrays left memory.
pub(super) async fn until_forgotten(pool: &Pool) {
    until("finished jobs leave memory", async || {
        let state = pool.core.view().await;
        (state.jobs.is_empty() && state.arrays.is_empty()).then_some(())
    })
    .await;
}

pub(super) fn write_config(dir: &Path, toml: &str) {
    let at = |name: &str| dir.join(name).display().to_string();
    let paths = format!(
        "state_dir = {:?}\nsocket = {:?}\nlisten = \"127.0.0.1:7000\"\n",
        at(""),
        at("s")
    );
    let paths = paths.replace("/\"", "\"");
    std::fs::write(dir.join("gpuctld.toml"), format!("{paths}{toml}")).unwrap();
}

/// A submission of `spec` with a script.
pub(super) fn request(mut spec: Value) -> Value {
    if spec["launch"]["work_dir"].is_null() {
        spec["launch"]["work_dir"] = json!("/home/me");
    }
    json!({"spec": spec, "script": "#!/bin/sh\necho hello\n", "environment": ["PATH=/bin"]})
}

pub(super) fn local(uid: u32, user: &str) -> Peer {
    Peer {
        uid,
        gid: uid,
        user: user.to_owned(),
        via: None,
        admin: false,
        local: true,
        known: true,
        token: None,
    }
}

pub(super) fn via(node: NodeId, role: Role, uid: u32, user: &str) -> Peer {
    Peer {
        via: Some((node, role)),
        local: false,
        ..local(uid, user)
    }
}

/// Values of one column, in order.
pub(super) fn column(answer: &Value, list: &str, key: &str) -> Vec<String> {
    let text = |row: &Value| match &row[key] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    answer[list].as_array().unwrap().iter().map(text).collect()
}
