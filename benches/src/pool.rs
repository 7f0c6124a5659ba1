//! A sandbox under measurement: its daemons' CPU time and memory, and quick ways to fill its queue.

use anyhow::{Context, bail};
use gmodel::JobSpec;
use gwire::api::{SubmitReply, SubmitRequest};
use gwire::client::Client;
use serde::Deserialize;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub struct Pool {
    pub dir: PathBuf,
    programs: PathBuf,
    daemons: Vec<String>,
    /// Jobs submitted so far.
    submitted: AtomicUsize,
}

/// Users with directories, hosts and environments of their own in [`Pool::own_job`].
const USERS: usize = 50;

/// CPU time of a daemon and its children that ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    pub controller: Duration,
    pub nodes: Duration,
}

/// The answer of `GET /v1/jobs`.
#[derive(Deserialize)]
struct JobList {
    jobs: Vec<serde_json::Value>,
}

impl Pool {
    /// `hollow` nodes more only pretend to run.
    pub fn up(dir: &Path, nodes: u32, hollow: u32, gpus: &str) -> anyhow::Result<Self> {
        let programs = std::env::current_exe()?
            .parent()
            .context("no directory")?
            .to_owned();
        let mut daemons = vec!["gpuctld".to_owned()];
        daemons.extend((1..=nodes).map(|n| format!("node{n}")));
        std::fs::create_dir_all(dir)?;
        let pool = Self {
            dir: dir.to_owned(),
            programs,
            daemons,
            submitted: AtomicUsize::new(0),
        };
        let dir = dir.to_str().context("directory is not UTF-8")?;
        let (nodes, hollow) = (nodes.to_string(), hollow.to_string());
        let args = [
            "sandbox",
            "up",
            "--dir",
            dir,
            "--nodes",
            &nodes,
            "--hollow-nodes",
            &hollow,
            "--gpus",
            gpus,
        ];
        pool.run("gadm", &[&args[..], &["--cpus", "1024"]].concat())?;
        Ok(pool)
    }

    /// Runs one of our commands; its output, or what it complained about.
    pub fn run(&self, program: &str, args: &[&str]) -> anyhow::Result<Output> {
        self.run_as(program, program, args)
    }

    /// The same of a program under another name.
    pub fn run_as(&self, name: &str, program: &str, args: &[&str]) -> anyhow::Result<Output> {
        let output = self.command(program).arg0(name).args(args).output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            bail!("{name} {}: {}", args.join(" "), text.trim());
        }
        Ok(output)
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command
            .env("GPUPOOL_CONFIG", self.dir.join("client.toml"))
            .current_dir("/tmp")
            .stdin(Stdio::null());
        command
    }

    pub fn client(&self) -> anyhow::Result<Client> {
        let text = std::fs::read_to_string(self.dir.join("client.toml"))?;
        let socket = text.split('"').nth(1).context("no socket in client.toml")?;
        Ok(Client::new(socket))
    }

    /// A job as `gsub --gpus 1 --wrap true` makes it, ready to send.
    pub fn job(&self, script_bytes: usize, variables: usize) -> SubmitRequest {
        let mut spec = JobSpec {
            name: "bench".into(),
            ..JobSpec::default()
        };
        spec.launch.work_dir = "/tmp".into();
        spec.launch.submit_host = "localhost".into();
        spec.launch.stdout = "/dev/null".into();
        spec.launch.umask = 0o22;
        spec.request.gpus = Some(gmodel::gpu_request::GpuRequest::whole(1));
        spec.time_limit_secs = Some(3600);
        let environment = (0..variables)
            .map(|n| format!("VARIABLE_{n}=some value {n}"))
            .collect();
        SubmitRequest {
            spec,
            script: script("true", script_bytes),
            environment,
            client_key: None,
            others: Vec::new(),
        }
    }

    /// The same from one of [`USERS`] people, with a name, a script and a client key that no other job has.
    pub fn own_job(&self, number: usize, script_bytes: usize, variables: usize) -> SubmitRequest {
        let person = number % USERS;
        let mut request = self.job(0, 0);
        request.spec.name = format!("train-{number}");
        request.spec.launch.work_dir = format!("/home/person{person}/experiments");
        request.spec.launch.submit_host = format!("login{}", person % 4);
        request.script = script(&format!("python train.py --seed {number}"), script_bytes);
        request.environment = (0..variables)
            .map(|n| format!("VARIABLE_{n}=value {n} of person{person}"))
            .collect();
        request.client_key = Some(format!("{number:032x}"));
        request
    }

    /// Submits `count` jobs over `clients` kept-alive connections. `job` is given a number that is never given twice.
    pub fn submit(
        &self,
        clients: usize,
        count: usize,
        job: impl Fn(usize) -> SubmitRequest + Sync,
    ) -> anyhow::Result<()> {
        let first = self.submitted.fetch_add(count, Relaxed);
        let each = count / clients;
        let job = &job;
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..clients)
                .map(|worker| {
                    scope.spawn(move || -> anyhow::Result<()> {
                        let mut client = self.client()?;
                        for n in 0..each {
                            let _: SubmitReply =
                                client.post("/v1/jobs", &job(first + n * clients + worker))?;
                        }
                        Ok(())
                    })
                })
                .collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().expect("worker"))
        })
    }

    /// Waits until the job's state is this one.
    pub fn wait_state(
        &self,
        client: &mut Client,
        job: u64,
        state: &str,
        patience: Duration,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let found: JobList = client.get(&format!("/v1/jobs/{job}"))?;
            if found.jobs.first().is_some_and(|job| job["state"] == state) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("job {job} is not {state} after {} s", patience.as_secs());
            }
        }
    }

    /// Waits until no job is pending, running or completing.
    pub fn drain(&self, patience: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience;
        let mut client = self.client()?;
        loop {
            let left: JobList = client.get("/v1/jobs?columns=id")?;
            if left.jobs.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "{} jobs are left after {} s",
                    left.jobs.len(),
                    patience.as_secs()
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn pid(&self, daemon: &str) -> anyhow::Result<i32> {
        #[derive(Deserialize)]
        struct PidFile {
            pid: i32,
        }
        let text = std::fs::read_to_string(self.dir.join(daemon).join("pid"))?;
        Ok(serde_json::from_str::<PidFile>(&text)?.pid)
    }

    /// Of all processes: a daemon's own time, that of children it has reaped and of those it has now, and what ran in the
    /// cgroups of runs (supervisors and jobs), which no daemon reaps.
    pub fn cpu_time(&self) -> anyhow::Result<CpuTime> {
        let mut sum = CpuTime::default();
        for daemon in &self.daemons {
            let pid = self.pid(daemon)?;
            // utime, stime, cutime, cstime (proc(5)).
            let mut time = cpu_of(pid, 11..15)?;
            for child in children(pid) {
                time += cpu_of(child, 11..13).unwrap_or_default();
            }
            if daemon == "gpuctld" {
                sum.controller += time
            } else {
                sum.nodes += time
            }
        }
        sum.nodes += self.cpu_of_runs().unwrap_or_default();
        Ok(sum)
    }

    /// From the v2 tree, where a cgroup keeps the time of those below it that are gone. `None` without that tree.
    fn cpu_of_runs(&self) -> Option<Duration> {
        let config = std::fs::read_to_string(self.dir.join("node1/gpud.toml")).ok()?;
        let tag = config
            .lines()
            .find_map(|line| line.strip_prefix("cgroup_tag = \"")?.split('/').next())?
            .to_owned();
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let tree = mounts
            .lines()
            .find(|line| line.split(' ').nth(2) == Some("cgroup2"))?
            .split(' ')
            .nth(1)?;
        let stat = std::fs::read_to_string(Path::new(tree).join(tag).join("cpu.stat")).ok()?;
        let micros = stat
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok())?;
        Some(Duration::from_micros(micros))
    }

    /// Peak resident memory of the controller, bytes.
    pub fn peak_memory(&self) -> anyhow::Result<u64> {
        self.memory_of_controller("VmHWM:")
    }

    /// Resident memory of the controller, bytes.
    pub fn memory(&self) -> anyhow::Result<u64> {
        self.memory_of_controller("VmRSS:")
    }

    fn memory_of_controller(&self, key: &str) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid("gpuctld")?))?;
        let line = status
            .lines()
            .find(|line| line.starts_with(key))
            .with_context(|| key.to_owned())?;
        let kib: u64 = line.split_whitespace().nth(1).context("no size")?.parse()?;
        Ok(kib * 1024)
    }
}

/// The sum of fields of /proc/PID/stat that are in ticks of 10 ms.
fn cpu_of(pid: i32, fields: std::ops::Range<usize>) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let all: Vec<&str> = stat
        .rsplit_once(") ")
        .context("stat")?
        .1
        .split_whitespace()
        .collect();
    let ticks: u64 = all[fields]
        .iter()
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Ok(Duration::from_millis(ticks * 10))
}

/// Children of any of its threads.
fn children(pid: i32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let lists =
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// `#!/bin/sh`, a line, and comments up to about `bytes`.
fn script(line: &str, bytes: usize) -> String {
    let mut script = format!("#!/bin/sh\n{line}\n");
    while script.len() < bytes {
        script.push_str("# filler that makes the script as long as real ones are\n");
    }
    script
}

impl Drop for Pool {
    fn drop(&mut self) {
        let dir = self.dir.to_string_lossy().into_owned();
        if let Err(error) = self.run("gadm", &["sandbox", "down", "--dir", &dir]) {
            eprintln!("bench: {error:#}");
        }
    }
}
