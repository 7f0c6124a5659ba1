//! The program of a prolog or epilog. It is begun once, by a supervisor of its own (`gstepd --hook`) that outlives this daemon: the next
//! daemon finds the program under way, or how it ended, in the run's directory. Never begins one a second time.

use crate::clock::wall_clock;
use crate::hook::site_program::{check_ownership, last_words};
use crate::own_limits;
use crate::run::stand_by;
use crate::site::Site;
use crate::spool::file::write_aside;
use crate::spool::run_log::log_line;
use anyhow::{Context, Result, bail};
use gmodel::launch_order::LaunchOrder;
use gmodel::supervise::{HookEnd, HookFiles, HookOrder, RunSetup};
use gmodel::{RunId, hostlist};
use gsys::cgroup::{Limits, RunCgroup};
use gsys::process::ends_by;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Beyond its time limit, for its supervisor to write how it ended; one that has not is killed.
const SUPERVISOR_SLACK: Duration = Duration::from_secs(30);
/// For a program that a daemon before this one began: nothing tells of its end.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Supervisors that end before they begin the program: more are not tried.
const MOST_TRIES: u32 = 3;
const GONE_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    Prolog,
    Epilog,
}

impl HookKind {
    pub const ALL: [HookKind; 2] = [HookKind::Prolog, HookKind::Epilog];

    pub const fn name(self) -> &'static str {
        match self {
            HookKind::Prolog => "prolog",
            HookKind::Epilog => "epilog",
        }
    }
}

/// Of its supervisor and the program.
pub fn cgroup_name(kind: HookKind, run: RunId) -> String {
    format!("{}_{run}", kind.name())
}

/// Runs the program, or waits for the one that was begun, and returns when it has ended well. Blocking. The error is one sentence with
/// the program's last words.
pub fn run(
    site: &Site,
    run: RunId,
    kind: HookKind,
    order: &LaunchOrder,
    setup: &RunSetup,
) -> Result<()> {
    let path = if kind == HookKind::Prolog {
        &order.prolog
    } else {
        &order.epilog
    };
    let hook = Hook {
        site,
        run,
        kind,
        path,
        files: HookFiles::of(&site.spool.run_dir(run), kind.name()),
    };
    let ended = hook.end(Some(HookJob { order, setup }));
    hook.remove_cgroup();
    hook.judge(ended?)
}

/// Waits for one that was begun, and begins none. Blocking.
pub fn finish(site: &Site, run: RunId, kind: HookKind) {
    let hook = Hook {
        site,
        run,
        kind,
        path: "",
        files: HookFiles::of(&site.spool.run_dir(run), kind.name()),
    };
    if hook.files.order.exists() {
        if let Err(e) = hook.end(None) {
            log_line(&site.spool.run_dir(run), wall_clock(), &format!("{e:#}"));
        }
        hook.remove_cgroup();
    }
}

struct Hook<'a> {
    site: &'a Site,
    run: RunId,
    kind: HookKind,
    path: &'a str,
    files: HookFiles,
}

/// The job for which a hook runs.
#[derive(Clone, Copy)]
struct HookJob<'a> {
    order: &'a LaunchOrder,
    setup: &'a RunSetup,
}

/// What its files say.
enum HookState {
    /// It may be begun.
    NotBegun,
    /// A supervisor is at it.
    UnderWay,
    Ended(HookEnd),
    /// Its supervisor is gone and has not said how it ended.
    Lost,
}

impl Hook<'_> {
    /// `None`: it was not begun, and was not to be.
    fn end(&self, may_begin: Option<HookJob>) -> Result<Option<HookEnd>> {
        let kind = self.kind.name();
        let patience = Instant::now() + TIME_LIMIT + SUPERVISOR_SLACK;
        let mut tries = 0;
        loop {
            match self.standing()? {
                HookState::Ended(end) => return Ok(Some(end)),
                HookState::Lost => bail!(
                    "{kind} {}: its supervisor was killed, and how it ended is not known; it is not run again",
                    self.path
                ),
                HookState::UnderWay if Instant::now() >= patience => self.kill_supervisor(),
                HookState::UnderWay => std::thread::sleep(LOOK_EVERY),
                HookState::NotBegun => match may_begin {
                    None => return Ok(None),
                    Some(_) if tries == MOST_TRIES => bail!(
                        "{kind} {} was not run: gstepd ended {tries} times before it; its words are in the run's log",
                        self.path
                    ),
                    Some(job) => {
                        tries += 1;
                        self.begin(job, patience)
                            .with_context(|| format!("{kind} {} was not run", self.path))?;
                    }
                },
            }
        }
    }

    fn standing(&self) -> Result<HookState> {
        if let Some(end) = self.recorded_end()? {
            return Ok(HookState::Ended(end));
        }
        let lock = match File::open(&self.files.lock) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(HookState::NotBegun),
            lock => lock?,
        };
        let Ok(lock) = Flock::lock(lock, FlockArg::LockSharedNonblock) else {
            return Ok(HookState::UnderWay);
        };
        // It may have ended between the two looks.
        Ok(match self.recorded_end()? {
            Some(end) => HookState::Ended(end),
            None if lock.metadata()?.len() > 0 => HookState::Lost,
            None => HookState::NotBegun,
        })
    }

    fn recorded_end(&self) -> Result<Option<HookEnd>> {
        match fs::read(&self.files.end) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            text => Ok(Some(serde_json::from_slice(&text?).with_context(|| {
                format!("reading {}", self.files.end.display())
            })?)),
        }
    }

    /// Starts a supervisor and waits for its end; a supervisor that does not act is killed.
    fn begin(&self, job: HookJob, patience: Instant) -> Result<()> {
        let (site, dir) = (self.site, self.site.spool.run_dir(self.run));
        let program = check_ownership(self.path.as_ref())?;
        let program = program
            .to_str()
            .context("its path is not UTF-8")?
            .to_owned();
        let name = cgroup_name(self.kind, self.run);
        let cgroup = site
            .cgroups
            .as_ref()
            .map(|root| RunCgroup::create(root, &name, &Limits::default()))
            .transpose()?;
        let hook = HookOrder {
            program,
            environment: environment(site, job),
            time_limit_secs: TIME_LIMIT.as_secs() as u32,
            cgroup: cgroup.map_or_else(String::new, |cgroup| cgroup.rel().display().to_string()),
        };
        write_aside(&self.files.order, &serde_json::to_vec(&hook)?)?;
        log_line(
            &dir,
            wall_clock(),
            &format!("{} {}", self.kind.name(), self.path),
        );
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(dir.join("log"))?;
        let gstepd = site.stand_by.gstepd();
        let mut command = Command::new(gstepd);
        command
            .arg("--hook")
            .arg(&dir)
            .arg(self.kind.name())
            .env_clear()
            .env("PATH", stand_by::PATH)
            .current_dir("/");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0);
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {}", gstepd.display()))?;
        own_limits::hand_down(child.id());
        let process = gsys::process::pidfd_open(child.id() as i32)?;
        if !ends_by(process.as_fd(), patience) {
            tracing::warn!(run = %self.run, "the supervisor of its {} stands still; killed", self.kind.name());
            child.kill()?;
        }
        child.wait()?;
        Ok(())
    }

    /// The number in its lock is its own as long as that is held.
    fn kill_supervisor(&self) {
        let pid = fs::read_to_string(&self.files.lock)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        let Some(Ok(process)) = pid.map(gsys::process::pidfd_open) else {
            return std::thread::sleep(LOOK_EVERY);
        };
        if matches!(self.standing(), Ok(HookState::UnderWay)) {
            tracing::warn!(run = %self.run, "the supervisor of its {} stands still; killed", self.kind.name());
            let _ = gsys::process::pidfd_signal(process.as_fd(), nix::libc::SIGKILL);
            ends_by(process.as_fd(), Instant::now() + GONE_PATIENCE);
        }
    }

    /// With what is left in it.
    fn remove_cgroup(&self) {
        let Some(root) = &self.site.cgroups else {
            return;
        };
        let removed = match RunCgroup::open(root, &cgroup_name(self.kind, self.run)) {
            Err(e) if e.is_not_found() => Ok(()),
            Err(e) => Err(e),
            Ok(cgroup) => cgroup
                .kill()
                .and_then(|()| cgroup.wait_empty(GONE_PATIENCE))
                .and_then(|_| cgroup.remove_with_supervisor(GONE_PATIENCE)),
        };
        if let Err(e) = removed {
            tracing::error!(run = %self.run, "what its {} left: {:#}", self.kind.name(), anyhow::Error::from(e));
        }
    }

    fn judge(&self, end: Option<HookEnd>) -> Result<()> {
        let (kind, path, Some(end)) = (self.kind.name(), self.path, end) else {
            return Ok(());
        };
        let words = || last_words(&self.files.output);
        match end.exit {
            _ if !end.error.is_empty() => bail!("{kind} {path} was not run: {}", end.error),
            _ if end.timed_out => bail!(
                "{kind} {path} did not end within {} s and was killed{}",
                TIME_LIMIT.as_secs(),
                words()
            ),
            exit if exit.is_success() => Ok(()),
            exit if exit.signal > 0 => bail!(
                "{kind} {path} was ended by signal {}{}",
                exit.signal,
                words()
            ),
            exit => bail!("{kind} {path} ended with {}{}", exit.code, words()),
        }
    }
}

/// gpud.toml(5) lists them.
fn environment(site: &Site, HookJob { order, setup }: HookJob) -> Vec<String> {
    let (id, attempt) = order.run.map_or((0, 0), |run| (run.job.0, run.attempt));
    let list = |words: Vec<String>| words.join(",");
    let uuids = list(setup.gpus.iter().map(|gpu| gpu.uuid.clone()).collect());
    let mut lines = vec![
        format!("PATH={}", stand_by::PATH),
        format!("GSUB_ATTEMPT={attempt}"),
        format!("CUDA_VISIBLE_DEVICES={uuids}"),
        format!("GSUB_GPU_UUIDS={uuids}"),
        // Slurm's name of it has a d.
        format!("SLURMD_NODENAME={}", site.name),
    ];
    let mut twins = vec![
        ("JOB_ID", id.to_string()),
        ("JOB_NAME", order.job_name.clone()),
        ("JOB_USER", order.user.name.clone()),
        ("JOB_UID", order.user.uid.to_string()),
        ("JOB_GID", order.user.gid.to_string()),
        ("JOB_ACCOUNT", order.account.clone()),
        ("JOB_PARTITION", order.partition.clone()),
        (
            "JOB_NODELIST",
            hostlist::compress(order.nodes.iter().map(|node| &node.name)),
        ),
        ("JOB_WORK_DIR", order.work_dir.clone()),
        ("CLUSTER_NAME", order.cluster.clone()),
        ("NODENAME", site.name.clone()),
    ];
    if !setup.gpus.is_empty() {
        twins.push((
            "JOB_GPUS",
            list(setup.gpus.iter().map(|gpu| gpu.index.to_string()).collect()),
        ));
    }
    if let Some(array) = &order.array {
        twins.push(("ARRAY_JOB_ID", array.array.to_string()));
        twins.push(("ARRAY_TASK_ID", array.index.to_string()));
    }
    lines.extend(twins.iter().flat_map(|(name, value)| {
        ["GSUB", "SLURM"].map(|prefix| format!("{prefix}_{name}={value}"))
    }));
    lines
}
