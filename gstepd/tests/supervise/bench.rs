//! A run directory, a cgroup and a gstepd of a test's own, with everything gpud would have made; all of it gone at the end.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gmodel::launch_order::{LaunchOrder, OrderNode};
use gmodel::run::{RunEnd, StopCause};
use gmodel::supervise::{RunSetup, SupervisorCommand, SupervisorReport};
use gmodel::{JobId, RunId, UserRef};
use gsys::cgroup::{CgroupRoot, Limits, RunCgroup, remove_all};

/// An ordinary user; numbers are enough, since the node resolves names before.
pub const UID: u32 = 61_234;
pub const PATIENCE: Duration = Duration::from_secs(20);
static NEXT: AtomicU32 = AtomicU32::new(0);

pub struct Bench {
    pub spool: tempfile::TempDir,
    /// Where the job works; its user's own.
    pub work: PathBuf,
    pub order: LaunchOrder,
    pub setup: RunSetup,
    pub cgroup: Option<RunCgroup>,
    gstepd: Option<Child>,
}

impl Bench {
    /// A run of `script` in a cgroup of its own, as an ordinary user. `None`, said aloud, where the test has no root.
    pub fn isolated(script: &str) -> Option<Bench> {
        Bench::limited(script, &Limits::default())
    }

    pub fn limited(script: &str, limits: &Limits) -> Option<Bench> {
        if !gsys::user::is_root() {
            println!(
                "NOT RUN: {} needs root for cgroups",
                std::thread::current().name().unwrap_or("this test")
            );
            return None;
        }
        let mut bench = Bench::bare(script);
        let tag = format!(
            "gstepd-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let root = CgroupRoot::open(&tag).unwrap();
        bench.cgroup = Some(RunCgroup::create(&root, "run_7-1", limits).unwrap());
        bench.setup.cgroup_tag = tag;
        bench.setup.cgroup_name = "run_7-1".into();
        bench.setup.uid = UID;
        bench.setup.gid = UID;
        bench.setup.groups = vec![UID];
        chown(&bench.work, Some(UID), Some(UID)).unwrap();
        Some(bench)
    }

    /// A run without isolation, as the user of the tests.
    pub fn bare(script: &str) -> Bench {
        let spool = tempfile::tempdir().unwrap();
        fs::set_permissions(spool.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let work = spool.path().join("work");
        fs::create_dir(&work).unwrap();
        fs::create_dir_all(spool.path().join("runs/7-1")).unwrap();
        let order = LaunchOrder {
            run: Some(RunId::new(JobId(7), 1)),
            job_name: "job".into(),
            user: UserRef {
                name: "tester".into(),
                uid: UID,
                gid: UID,
            },
            partition: "main".into(),
            nodes: vec![OrderNode {
                name: "n1".into(),
                cpus: 1,
                tasks: 1,
                gpus: 0,
            }],
            ntasks: 1,
            cpus: 1,
            script: format!("#!/bin/sh\n{script}\n"),
            environment: vec!["PATH=/usr/bin:/bin".into()],
            work_dir: work.display().to_string(),
            stdout: "out".into(),
            umask: 0o022,
            kill_grace_secs: 30,
            ..LaunchOrder::default()
        };
        let own = (
            nix::unistd::getuid().as_raw(),
            nix::unistd::getgid().as_raw(),
        );
        let setup = RunSetup {
            node_name: "n1".into(),
            uid: own.0,
            gid: own.1,
            home: "/".into(),
            ..RunSetup::default()
        };
        Bench {
            spool,
            work,
            order,
            setup,
            cgroup: None,
            gstepd: None,
        }
    }

    /// Writes the orders and starts gstepd, as gpud does. Returns a connection on which it has said that it is ready.
    pub fn start(&mut self) -> Link {
        self.write_orders();
        self.spawn();
        let mut link = self.connect();
        assert!(matches!(link.next(), SupervisorReport::Ready { .. }));
        link
    }

    pub fn write_orders(&self) {
        let run_dir = self.run_dir();
        fs::write(
            run_dir.join("order.json"),
            serde_json::to_vec(&self.order).unwrap(),
        )
        .unwrap();
        fs::write(
            run_dir.join("setup.json"),
            serde_json::to_vec(&self.setup).unwrap(),
        )
        .unwrap();
    }

    pub fn spawn(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gstepd"));
        command
            .arg("--run-dir")
            .arg(self.run_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = command.spawn().unwrap();
        if let Some(cgroup) = &self.cgroup {
            cgroup.attach_sup(child.id() as i32).unwrap();
        }
        self.gstepd = Some(child);
    }

    /// Starts the run and waits until its process runs.
    pub fn start_and_go(&mut self) -> Link {
        let mut link = self.start();
        link.send(&SupervisorCommand::Go);
        assert!(matches!(link.next(), SupervisorReport::Running { .. }));
        link
    }

    /// The whole life of a run that ends by itself.
    pub fn run_to_end(&mut self) -> RunEnd {
        let mut link = self.start();
        link.send(&SupervisorCommand::Go);
        link.end()
    }

    pub fn connect(&self) -> Link {
        let path = self.setup.control_sockets(&self.run_dir()).remove(0);
        self.talk(wait_for("ctl.sock", || UnixStream::connect(&path).ok()))
    }

    pub fn talk(&self, stream: UnixStream) -> Link {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Link {
            reader: BufReader::new(stream),
        }
    }

    /// What a connection says after the state.
    pub fn connect_and_skip_state(&self) -> SupervisorReport {
        let mut link = self.connect();
        link.next();
        link.next()
    }

    pub fn run_dir(&self) -> PathBuf {
        self.spool.path().join("runs/7-1")
    }

    pub fn script(&self) -> PathBuf {
        self.spool.path().join("marks/7-1.script")
    }

    pub fn gstepd_pid(&self) -> i32 {
        self.gstepd.as_ref().unwrap().id() as i32
    }

    /// `exit.json` as it is on the disk.
    pub fn record(&self) -> RunEnd {
        serde_json::from_slice(&fs::read(self.run_dir().join("exit.json")).unwrap()).unwrap()
    }

    /// The text of a file in the working directory, when it has become one that `is_ready` accepts.
    pub fn file_when(&self, name: &str, is_ready: impl Fn(&str) -> bool) -> String {
        wait_for(name, || {
            fs::read_to_string(self.work.join(name))
                .ok()
                .filter(|text| is_ready(text))
        })
    }

    pub fn file(&self, name: &str) -> String {
        fs::read_to_string(self.work.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Waits for gstepd to end by itself; its exit code.
    pub fn gstepd_exit(&mut self) -> Option<i32> {
        let child = self.gstepd.as_mut().unwrap();
        let status = wait_for("the end of gstepd", || child.try_wait().unwrap());
        self.gstepd = None;
        status.code()
    }

    pub fn kill_gstepd(&mut self) {
        if let Some(mut child) = self.gstepd.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(mut child) = self.gstepd.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if !self.setup.cgroup_tag.is_empty() {
            let removed = remove_all(&self.setup.cgroup_tag);
            assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
        }
    }
}

/// A connection as gpud has it.
pub struct Link {
    pub reader: BufReader<UnixStream>,
}

impl Link {
    pub fn send(&mut self, order: &SupervisorCommand) {
        let line = serde_json::to_string(order).unwrap() + "\n";
        self.reader.get_mut().write_all(line.as_bytes()).unwrap();
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    pub fn stop(&mut self, grace_secs: u32) {
        self.send(&SupervisorCommand::Stop {
            why: StopCause::Cancelled,
            grace_secs,
        });
    }

    pub fn next(&mut self) -> SupervisorReport {
        self.next_if_any()
            .expect("gstepd has closed the connection")
    }

    /// `None` when the other end is gone.
    pub fn next_if_any(&mut self) -> Option<SupervisorReport> {
        let mut line = String::new();
        let length = self
            .reader
            .read_line(&mut line)
            .expect("gstepd says nothing");
        (length > 0)
            .then(|| serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}")))
    }

    /// True when gstepd has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        self.reader
            .read_line(&mut String::new())
            .is_ok_and(|count| count == 0)
    }

    /// Reads on until the end is told.
    pub fn end(&mut self) -> RunEnd {
        loop {
            if let SupervisorReport::Ended { end } = self.next() {
                return end;
            }
        }
    }
}

/// Looks again and again until there is something, for as long as a test may take.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

pub fn pid_in(text: &str) -> i32 {
    text.trim()
        .parse()
        .unwrap_or_else(|_| panic!("{text:?} is no pid"))
}

pub fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
