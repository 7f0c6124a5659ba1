//! A whole cluster of real daemons in a temporary directory, for one test: `gadm sandbox`, its commands, and the
//! ground truth of the machine (processes, cgroups, mounts, device files).
//!
//! Dropping a pool takes it down and asserts that nothing of it is left. Never touches what it did not make.

use crate::person::Person;
use gmodel::JobState;
use gwire::api::{JobRow, NodeRow, RunRow, SubmitRequest};
use gwire::client::{Client, ClientError};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest wait for a state, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(40);
const PROGRAMS: [&str; 13] = [
    "gpuctld", "gpud", "gstepd", "gcheck", "nvml-sim", "gsub", "grun", "gq", "gdel", "gnodes",
    "gacct", "gadm", "gslurm",
];

/// A sandbox and the directory it is in.
pub struct Pool {
    /// Where the sandbox is.
    pub dir: PathBuf,
    /// Where jobs work: writable for all users.
    pub work: PathBuf,
    programs: PathBuf,
    tag: String,
    person: OnceLock<Person>,
    is_down: bool,
    temp: TempDir,
}

/// What a command said.
#[derive(Clone, Debug)]
pub struct CommandOutput {
    /// Exit code, or 128 and the signal.
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl CommandOutput {
    /// The id that `gsub` printed.
    pub fn id(&self) -> u64 {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
            .trim()
            .parse()
            .unwrap_or_else(|_| panic!("no job id: {self:?}"))
    }

    /// Asserts an exit code and words on stderr.
    #[track_caller]
    pub fn fails_with(&self, code: i32, words: &str) {
        assert!(
            self.code == code && self.err.contains(words),
            "wanted exit {code} with {words:?}: {self:?}"
        );
    }
}

impl Pool {
    /// A pool of `nodes` nodes with these GPUs (`h100:4`, `none`). None, said aloud, where the test does not run as root.
    pub fn up(nodes: u32, gpus: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("NOT RUN: a pool with fences, and jobs of several users, need root");
            return None;
        }
        let temp = temp_dir();
        let dir = temp.path().join("pool");
        Some(Self::start_in(temp, dir, nodes, gpus))
    }

    /// The same in a directory of one's own below `temp`.
    pub fn start_in(temp: TempDir, dir: PathBuf, nodes: u32, gpus: &str) -> Self {
        let programs = programs();
        let work = temp.path().join("work");
        fs::create_dir_all(&work).unwrap();
        fs::set_permissions(&work, fs::Permissions::from_mode(0o1777)).unwrap();
        let mut pool = Self {
            dir,
            work,
            programs,
            tag: String::new(),
            person: OnceLock::new(),
            is_down: false,
            temp,
        };
        let said = pool.sandbox(&["up", "--nodes", &nodes.to_string(), "--gpus", gpus]);
        assert_eq!(said.code, 0, "{said:?}\n{}", pool.logs());
        assert!(said.out.starts_with("export GPUPOOL_CONFIG="), "{said:?}");
        pool.tag = read_tag(&pool.dir);
        pool
    }

    // ---- commands ----

    /// A program of the workspace, aimed at this pool, with a small environment.
    pub fn command(&self, program: &str) -> Command {
        self.command_in(&self.programs, program)
    }

    fn command_in(&self, programs: &Path, program: &str) -> Command {
        let mut command = Command::new(programs.join(program));
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("LC_ALL", "C")
            .env("GPUPOOL_CONFIG", self.dir.join("client.toml"))
            .current_dir(&self.work)
            .stdin(Stdio::null());
        command
    }

    /// Runs a program as root.
    pub fn run(&self, program: &str, args: &[&str]) -> CommandOutput {
        say(self.command(program).args(args))
    }

    /// Runs a line of shell as root, in the jobs' directory.
    pub fn run_shell(&self, line: &str) -> CommandOutput {
        say(self.command("/bin/sh").args(["-c", line]))
    }

    /// Runs a program as an ordinary user of the tests.
    pub fn run_as_user(&self, program: &str, args: &[&str]) -> CommandOutput {
        say(self.user_command(program).args(args))
    }

    /// A program that runs as an ordinary user.
    pub fn user_command(&self, program: &str) -> Command {
        let person = self.person();
        let mut command = self.command_in(&programs_for(person, self.temp.path()), program);
        command
            .env("USER", &person.name)
            .uid(person.uid)
            .gid(person.gid);
        command
    }

    /// The ordinary user.
    pub fn person(&self) -> &Person {
        self.person.get_or_init(Person::borrow)
    }

    /// `gsub` as root; the id.
    #[track_caller]
    pub fn gsub(&self, args: &[&str]) -> u64 {
        self.run("gsub", args).id()
    }

    /// `gadm sandbox WORDS` of this pool.
    pub fn sandbox(&self, words: &[&str]) -> CommandOutput {
        let mut command = self.command("gadm");
        command
            .arg("sandbox")
            .arg(words[0])
            .arg("--dir")
            .arg(&self.dir)
            .args(&words[1..]);
        command.env(
            "XDG_RUNTIME_DIR",
            self.dir.parent().expect("has a parent").join("run"),
        );
        say(&mut command)
    }

    /// SIGKILL for a daemon: `gpuctld`, `node1`.
    #[track_caller]
    pub fn kill(&self, daemon: &str) {
        let said = self.sandbox(&["kill", daemon]);
        assert_eq!(said.code, 0, "{said:?}");
    }

    /// Starts a daemon again; the controller answers when this returns.
    #[track_caller]
    pub fn start(&self, daemon: &str) {
        let said = self.sandbox(&["start", daemon]);
        assert_eq!(said.code, 0, "{said:?}\n{}", self.logs());
    }

    /// Sends any signal to a daemon.
    pub fn signal(&self, daemon: &str, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.daemon_pid(daemon)), signal)
            .unwrap();
    }

    /// Process id of a daemon.
    pub fn daemon_pid(&self, daemon: &str) -> i32 {
        #[derive(Deserialize)]
        struct PidFile {
            pid: i32,
        }
        let text = fs::read(self.dir.join(daemon).join("pid")).unwrap();
        serde_json::from_slice::<PidFile>(&text).unwrap().pid
    }

    /// Changes a daemon's TOML: lines put before everything that is there. Takes effect at its next start.
    pub fn configure(&self, daemon: &str, lines: &str) {
        let path = self.config(daemon);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{lines}\n{text}")).unwrap();
    }

    /// The same, and starts the daemon again with it.
    #[track_caller]
    pub fn reconfigure(&self, daemon: &str, lines: &str) {
        self.configure(daemon, lines);
        self.kill(daemon);
        let said = self.log(daemon).len();
        self.start(daemon);
        if daemon != "gpuctld" {
            // From its first line on it sees what happens to its GPUs.
            self.wait_until("the node's daemon is there", || {
                self.log(daemon).len() > said
            });
        }
    }

    /// The TOML of a daemon.
    pub fn config(&self, daemon: &str) -> PathBuf {
        let file = if daemon == "gpuctld" {
            "gpuctld.toml"
        } else {
            "gpud.toml"
        };
        self.dir.join(daemon).join(file)
    }

    /// A client of the controller's socket, as root.
    pub fn client(&self) -> Client {
        Client::new(self.socket())
    }

    /// The controller's unix socket.
    pub fn socket(&self) -> PathBuf {
        let text = fs::read_to_string(self.dir.join("client.toml")).unwrap();
        text.lines()
            .find_map(|line| line.strip_prefix("socket = "))
            .expect("a socket")
            .trim_matches('"')
            .into()
    }

    /// Eight hex digits that all things of this pool carry.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// `127.0.0.1:PORT` for nodes.
    pub fn controller(&self) -> String {
        let record: serde_json::Value =
            serde_json::from_slice(&fs::read(self.dir.join("sandbox.json")).unwrap()).unwrap();
        format!("127.0.0.1:{}", record["port"])
    }

    /// What `gsub` would send for this script, to be sent over connections of one's own.
    pub fn request(&self, script: &str, key: Option<String>) -> SubmitRequest {
        let mut request = SubmitRequest {
            script: format!("#!/bin/sh\n{script}\n"),
            client_key: key,
            ..SubmitRequest::default()
        };
        request.spec.name = "test".into();
        request.spec.launch.work_dir = self.work.to_string_lossy().into_owned();
        request.spec.launch.stdout = "/dev/null".into();
        request.spec.launch.umask = 0o022;
        request.environment = vec!["PATH=/usr/bin:/bin".into()];
        request
    }

    // ---- what the pool says ----

    /// A job in full.
    #[track_caller]
    pub fn job(&self, id: u64) -> JobRow {
        self.find_job(&id.to_string())
            .unwrap_or_else(|| panic!("job {id} is not there\n{}", self.logs()))
    }

    /// A job by any form of its id; none where there is no such job.
    pub fn find_job(&self, id: &str) -> Option<JobRow> {
        #[derive(Deserialize)]
        struct Jobs {
            jobs: Vec<JobRow>,
        }
        match self.client().get::<Jobs>(&format!("/v1/jobs/{id}")) {
            Ok(mut listed) => listed.jobs.pop(),
            Err(ClientError::Refused { status: 404, .. }) => None,
            Err(error) => panic!("job {id}: {error}\n{}", self.logs()),
        }
    }

    /// All jobs in memory, a row for each array task.
    pub fn jobs(&self) -> Vec<JobRow> {
        #[derive(Deserialize)]
        struct Jobs {
            jobs: Vec<JobRow>,
        }
        self.client()
            .get::<Jobs>("/v1/jobs?state=all&expand=true")
            .unwrap()
            .jobs
    }

    /// Ids of all jobs in memory, each array task by its own.
    pub fn ids(&self) -> BTreeSet<u64> {
        #[derive(Deserialize)]
        struct Jobs {
            jobs: Vec<Row>,
        }
        #[derive(Deserialize)]
        struct Row {
            id: u64,
        }
        let listed: Jobs = self
            .client()
            .get("/v1/jobs?state=all&expand=true&columns=id")
            .unwrap();
        listed.jobs.into_iter().map(|row| row.id).collect()
    }

    /// Ids of all jobs that ever had a run, from accounting.
    pub fn accounted_ids(&self) -> BTreeSet<u64> {
        #[derive(Deserialize)]
        struct Runs {
            runs: Vec<Row>,
        }
        #[derive(Deserialize)]
        struct Row {
            id: u64,
        }
        let listed: Runs = self.client().get("/v1/runs").unwrap();
        listed.runs.into_iter().map(|row| row.id).collect()
    }

    /// Every attempt of a job, from accounting.
    pub fn attempts(&self, id: u64) -> Vec<RunRow> {
        #[derive(Deserialize)]
        struct Runs {
            runs: Vec<RunRow>,
        }
        self.client()
            .get::<Runs>(&format!("/v1/runs?job={id}&attempts=true"))
            .unwrap()
            .runs
    }

    /// A node as `gnodes --json` has it.
    pub fn node(&self, name: &str) -> NodeRow {
        #[derive(Deserialize)]
        struct Nodes {
            nodes: Vec<NodeRow>,
        }
        let nodes = self.client().get::<Nodes>("/v1/nodes").unwrap().nodes;
        nodes
            .into_iter()
            .find(|node| node.name == name)
            .unwrap_or_else(|| panic!("no node {name}"))
    }

    /// Waits until a job is in a state; a job that ended in another one fails the test at once.
    #[track_caller]
    pub fn wait_state(&self, id: u64, state: JobState) -> JobRow {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let job = self.job(id);
            if job.state == state {
                return job;
            }
            if job.state.is_final() || Instant::now() > deadline {
                panic!("job {id} is not {state:?} but {job:?}\n{}", self.logs());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until a job is in a state for good, through failures after which it is tried again.
    #[track_caller]
    pub fn wait_state_through(&self, id: u64, state: JobState) -> JobRow {
        let mut last = None;
        self.wait_until(&format!("job {id} is {state:?}"), || {
            let job = self.job(id);
            let over = job.state == state;
            last = Some(job);
            over
        });
        last.expect("just read")
    }

    /// Waits until something holds; says what it waited for when it never does.
    #[track_caller]
    pub fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(
                Instant::now() < deadline,
                "not within {} s: {what}\n{}",
                PATIENCE.as_secs(),
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until a node says IDLE and nothing else: all runs are cleaned up and it takes work.
    #[track_caller]
    pub fn wait_idle(&self, node: &str) {
        self.wait_until(&format!("{node} is idle"), || {
            self.node(node).state == "IDLE"
        });
    }

    /// Asserts that the controller's state has no contradiction.
    #[track_caller]
    pub fn check(&self) {
        let found: serde_json::Value = self.client().get("/v1/check").unwrap();
        assert_eq!(found["ok"], true, "{found}");
    }

    // ---- files of jobs ----

    /// A file in the jobs' directory, once it holds something.
    #[track_caller]
    pub fn wait_file(&self, name: &str) -> String {
        let path = self.work.join(name);
        self.wait_until(&format!("{name} is written"), || {
            fs::metadata(&path).is_ok_and(|file| file.len() > 0)
        });
        fs::read_to_string(path).unwrap()
    }

    /// A file in the jobs' directory, empty when it is not there.
    pub fn file(&self, name: &str) -> String {
        fs::read_to_string(self.work.join(name)).unwrap_or_default()
    }

    /// Writes a file there that all users may read and execute.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.work.join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    // ---- ground truth ----

    /// Process id of the supervisor of a run, once it is there.
    #[track_caller]
    pub fn supervisor(&self, node: &str, run: &str) -> i32 {
        let mut found = None;
        self.wait_until(&format!("gstepd of {run} on {node}"), || {
            found = self.find_supervisor(node, run);
            found.is_some()
        });
        found.expect("just found")
    }

    /// Process id of the supervisor of a run, if it lives.
    pub fn find_supervisor(&self, node: &str, run: &str) -> Option<i32> {
        let directory = format!("{}/{node}/spool/runs/{run}", self.dir.display());
        pids().find(|pid| {
            let line = command_line(*pid);
            line.first().is_some_and(|word| word.ends_with("gstepd")) && line.contains(&directory)
        })
    }

    /// All processes in cgroups of a run, its supervisor not counted.
    pub fn processes_of(&self, node: &str, run: &str) -> Vec<i32> {
        let marker = format!("/gpupool-{}/{node}/run_{run}/job", self.tag);
        pids()
            .filter(|pid| {
                fs::read_to_string(format!("/proc/{pid}/cgroup"))
                    .is_ok_and(|text| text.contains(&marker))
            })
            .collect()
    }

    /// Ends everything and asserts that nothing is left.
    pub fn down(mut self) {
        self.take_down();
    }

    fn take_down(&mut self) {
        self.is_down = true;
        for daemon in self.daemons() {
            // One that a test stopped and did not continue.
            if self.dir.join(&daemon).join("pid").exists() {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(self.daemon_pid(&daemon)),
                    nix::sys::signal::Signal::SIGCONT,
                );
            }
        }
        let said = self.sandbox(&["down"]);
        assert_eq!(said.code, 0, "{said:?}");
        let left = self.leftovers();
        assert!(left.is_empty(), "left behind: {left:#?}");
    }

    fn daemons(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                entry
                    .path()
                    .join("log")
                    .exists()
                    .then(|| entry.file_name().to_string_lossy().into_owned())
            })
            .collect()
    }

    /// What of this pool the machine still has.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        let cgroup = format!("gpupool-{}", self.tag);
        for tree in fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = tree.path().join(&cgroup);
            if path.exists() {
                left.push(format!("cgroup {}", path.display()));
            }
        }
        let below = self.dir.to_string_lossy();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        left.extend(
            mounts
                .lines()
                .filter(|line| line.contains(&*below))
                .map(|line| format!("mount {line}")),
        );
        for pid in pids().filter(|pid| is_alive(*pid)) {
            let line = command_line(pid).join(" ");
            let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            if line.contains(&format!("{below}/")) || cgroups.contains(&cgroup) {
                left.push(format!("process {pid} {line}"));
            }
        }
        for path in [self.dir.clone(), Path::new("/run/gpupool").join(&self.tag)] {
            if path.exists() {
                left.push(path.display().to_string());
            }
        }
        left
    }

    /// The ends of all daemons' logs.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for daemon in self.daemons() {
            let log = fs::read(self.dir.join(&daemon).join("log")).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().collect();
            text.push_str(&format!(
                "--- {daemon} ---\n{}\n",
                lines[lines.len().saturating_sub(30)..].join("\n")
            ));
        }
        text
    }

    /// All that a daemon logged.
    pub fn log(&self, daemon: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.join(daemon).join("log")).unwrap_or_default())
            .into_owned()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.is_down {
            return;
        }
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.take_down()));
        } else {
            self.take_down();
        }
    }
}

/// A directory that all users may pass through.
pub fn temp_dir() -> TempDir {
    let temp = tempfile::Builder::new()
        .prefix("gpupool-test-")
        .tempdir()
        .unwrap();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    temp
}

/// Where the workspace's programs are: beside our own executable, or above where it is a test's.
pub fn programs() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let beside = own.parent().expect("has a directory");
    let dir = if beside.ends_with("deps") {
        beside.parent().expect("target/PROFILE/deps")
    } else {
        beside
    }
    .to_owned();
    for program in PROGRAMS {
        assert!(
            dir.join(program).exists(),
            "{program} is not in {}: run `cargo build` first",
            dir.display()
        );
    }
    dir
}

/// A directory with the programs that this person may run: where they are, or copies below `temp`.
pub fn programs_for(person: &Person, temp: &Path) -> PathBuf {
    let here = programs();
    if person.may_execute(&here.join("gsub")) {
        return here;
    }
    let copies = temp.join("bin");
    if !copies.exists() {
        fs::create_dir(&copies).unwrap();
        for program in PROGRAMS
            .into_iter()
            .chain(["libnvidia_ml_sim.so", "gpupool-hostile-user"])
        {
            fs::copy(here.join(program), copies.join(program)).unwrap();
            fs::set_permissions(copies.join(program), fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    copies
}

/// Command lines of all processes that have these words in theirs.
pub fn processes_with(words: &str) -> Vec<String> {
    pids()
        .filter(|pid| is_alive(*pid))
        .map(|pid| command_line(pid).join(" "))
        .filter(|line| line.contains(words))
        .collect()
}

/// Runs a command to its end.
pub fn say(command: &mut Command) -> CommandOutput {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    CommandOutput {
        code: output
            .status
            .code()
            .unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0)),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The process exists and is no zombie; a zombie of which threads are left still is.
pub fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z') || threads() > 1)
}

/// SIGKILL for a process of this test's own pool; it may have ended since it was listed.
pub fn kill_process(pid: i32) {
    let told = nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGKILL,
    );
    assert!(
        matches!(told, Ok(()) | Err(nix::errno::Errno::ESRCH)),
        "{pid}: {told:?}"
    );
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn command_line(pid: i32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    bytes
        .split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

fn read_tag(dir: &Path) -> String {
    let record: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.join("sandbox.json")).unwrap()).unwrap();
    record["tag"].as_str().expect("a tag").to_owned()
}
