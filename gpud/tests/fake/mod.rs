//! Real node daemons and a controller for them: what the tests of gpud drive.

#![allow(dead_code)] // each test file uses its part

mod controller;

use gmodel::launch_order::{LaunchOrder, OrderNode};
use gmodel::run::{DesiredRun, RunTarget, StopCause};
use gmodel::{RunId, UserRef};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::Instant;

pub use controller::Controller;

pub const PATIENCE: Duration = Duration::from_secs(30);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A node's directories and its daemon; all of it goes with the value.
pub struct Node {
    pub dir: PathBuf,
    pub cgroup_tag: String,
    controller: String,
    extra: String,
    pub daemon: Option<Child>,
    /// The user of the daemon, where it is not the user of the tests.
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
        // As /tmp is: the site's programs are below it, and only root may move files of root there.
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

    /// The order of a job with the script `body`, run by `sh` in `work`.
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
