//! One run of the program that checks one GPU (and the way to another), or scrubs its memory: in a cgroup of its own, with its fence, as an ordinary
//! user where the site says so, at the lowest priority. Reads a bounded part of what it writes, and leaves nothing of it behind.

use crate::gpu::check_book::{DEATH, GRACE};
use crate::gpu::check_output;
use crate::gpu::fence::fence_rules;
use crate::gpu::mig::{self, GrantedGpu};
use crate::hook::site_program::check_ownership;
use crate::site::Site;
use anyhow::{Context, Result, bail, ensure};
use gmodel::gpu_check::{BUILTIN, CheckProgram, CheckResult};
use gmodel::gpu_order::GpuOrder;
use gsys::cgroup::{CgroupRoot, Controller, Limits, RunCgroup};
use gsys::device_fence;
use gsys::launch::{Identity, LaunchSpec, LaunchedProcess, Resource, Rlimit, Stdio, launch};
use gsys::process::{Exit, ends_by, pidfd_signal};
use gsys::user::User;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::{SIGKILL, SIGTERM};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// For the memory of the largest board, twice over.
const SCRUB_LIMIT: Duration = Duration::from_secs(120);
/// Niceness of the program, and its share of busy processors.
const NICE: i32 = 19;
const CPU_MILLIS: u64 = 500;
const MEMORY_BYTES: u64 = 16 << 30;
const PIDS: u64 = 512;
/// How much of what it says on stderr is kept, and how much is told.
const MAX_WORDS_BYTES: usize = 4096;
const TOLD_CHARS: usize = 120;
/// By this exit a program says that it cannot check here, for which the GPU is not to blame; as test programs say it elsewhere.
const CANNOT_CHECK: i32 = 77;
/// Beginning of the names of its cgroups.
const CGROUP: &str = "check_";

/// What it found, or how it failed.
type CheckOutcome = std::result::Result<Vec<CheckResult>, String>;

/// Blocks until nothing of it is left. `Err`: it could not be run, for which the GPU is not to blame. `ends` hangs up: it is to end.
pub fn run(
    site: &Site,
    order: &GpuOrder,
    program: &CheckProgram,
    ends: &OwnedFd,
) -> Result<CheckOutcome> {
    let path = check_ownership(path(site, program))?;
    let own = mig::find(&site.gpus.current().facts, &order.uuid)
        .context("the GPU is not in this node")?;
    ensure!(!own.gpu.mig_enabled, "the GPU is cut by MIG");
    // One that is gone meanwhile is left out: the GPU itself can be checked.
    let peer =
        mig::find(&site.gpus.current().facts, &program.peer).filter(|peer| !peer.gpu.mig_enabled);
    let mut environment = vec![
        ("GPUPOOL_GPU", own.uuid.clone()),
        ("GPUPOOL_CHECKS", program.checks.join(" ")),
        ("GPUPOOL_TIMEOUT_SECS", program.timeout_secs.to_string()),
    ];
    if let Some(peer) = &peer {
        let links = own
            .gpu
            .nvlinks
            .iter()
            .find(|link| link.uuid == peer.uuid)
            .map_or(0, |link| link.links);
        environment.extend([
            ("GPUPOOL_PEER", peer.uuid.clone()),
            ("GPUPOOL_PEER_LINK", format!("NV{links}")),
        ]);
    }
    let limit = Duration::from_secs(u64::from(program.timeout_secs.max(1)));
    let call = ProgramCall {
        words: vec![path.into()],
        environment,
        identity: identity(&program.user)?,
        limit,
    };
    let owns: Vec<GrantedGpu> = [own].into_iter().chain(peer).collect();
    in_cgroup(site, &owns, &order.number.to_string(), call, ends)
}

/// Has gpupool's own program overwrite all memory of a GPU or slice that no run holds. As `run` otherwise.
pub fn scrub(site: &Site, uuid: &str) -> Result<CheckOutcome> {
    let path = check_ownership(&site.config.gcheck)?;
    let own = mig::find(&site.gpus.current().facts, uuid).context("the GPU is not in this node")?;
    // A slice is the one thing that it sees, and goes by its GPU's name there.
    let environment = vec![("GPUPOOL_TIMEOUT_SECS", SCRUB_LIMIT.as_secs().to_string())];
    let call = ProgramCall {
        words: vec![path.into(), "scrub".into()],
        environment,
        identity: identity("")?,
        limit: SCRUB_LIMIT,
    };
    let (ends, _stays_open) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    in_cgroup(site, &[own], &format!("scrub_{uuid}"), call, &ends)
}

/// A program with what it is told.
struct ProgramCall {
    words: Vec<OsString>,
    /// Besides what every program is told.
    environment: Vec<(&'static str, String)>,
    identity: Identity,
    limit: Duration,
}

/// `owns`: the GPU that it is about, and others that it may open.
fn in_cgroup(
    site: &Site,
    owns: &[GrantedGpu],
    name: &str,
    call: ProgramCall,
    ends: &OwnedFd,
) -> Result<CheckOutcome> {
    let cgroup = site
        .cgroups
        .as_ref()
        .map(|root| fenced(site, root, owns, name))
        .transpose()?;
    let found = watched(site, owns, call, cgroup.as_ref(), ends);
    if let Some(cgroup) = &cgroup {
        remove(cgroup)?;
    }
    found
}

fn path<'a>(site: &'a Site, program: &'a CheckProgram) -> &'a Path {
    if program.program == BUILTIN {
        &site.config.gcheck
    } else {
        Path::new(&program.program)
    }
}

/// Checks of a daemon before this one are killed before anything else begins. Blocking.
pub fn end_orphans(root: &CgroupRoot) {
    for name in root
        .runs()
        .unwrap_or_default()
        .into_iter()
        .filter(|name| name.starts_with(CGROUP))
    {
        tracing::info!("a check of a GPU was under way when gpud ended: it is killed ({name})");
        if let Err(e) = RunCgroup::open(root, &name)
            .map_err(Into::into)
            .and_then(|cgroup| remove(&cgroup))
        {
            tracing::error!("{name}: {e:#}");
        }
    }
}

fn remove(cgroup: &RunCgroup) -> Result<()> {
    cgroup.kill()?;
    ensure!(cgroup.wait_empty(DEATH)?, "its processes do not end");
    Ok(cgroup.remove()?)
}

fn identity(user: &str) -> Result<Identity> {
    if user.is_empty() || !nix::unistd::geteuid().is_root() {
        return Ok(Identity::own()?);
    }
    let user =
        User::by_name(user)?.with_context(|| format!("there is no user {user:?} on this node"))?;
    Ok(Identity::from(&user))
}

fn fenced(site: &Site, root: &CgroupRoot, owns: &[GrantedGpu], name: &str) -> Result<RunCgroup> {
    let declared = site.config.mem_bytes.is_some();
    let limits = Limits {
        memory_bytes: (!declared && root.supports(Controller::Memory)).then_some(MEMORY_BYTES),
        cpu_millis: root.supports(Controller::Cpu).then_some(CPU_MILLIS),
        pids_max: root.supports(Controller::Pids).then_some(PIDS),
        ..Limits::default()
    };
    let rules = fence_rules(site, owns).map_err(|failure| anyhow::anyhow!(failure.text))?;
    let cgroup = RunCgroup::create(root, &format!("{CGROUP}{name}"), &limits)?;
    device_fence::attach_run(&cgroup, &rules)?;
    Ok(cgroup)
}

fn watched(
    site: &Site,
    owns: &[GrantedGpu],
    call: ProgramCall,
    cgroup: Option<&RunCgroup>,
    ends: &OwnedFd,
) -> Result<CheckOutcome> {
    let ((out, to_out), (err, to_err)) = (pipe()?, pipe()?);
    let join = cgroup.map(RunCgroup::join_fds).transpose()?;
    let mut spec = LaunchSpec::new(call.words, call.identity);
    spec.env = environment(site, owns, call.environment);
    (spec.stdout, spec.stderr) = (Stdio::Fd(to_out.as_fd()), Stdio::Fd(to_err.as_fd()));
    (spec.umask, spec.nice, spec.join) = (0o077, NICE, join.as_ref());
    spec.rlimits = vec![Rlimit {
        resource: Resource::Core,
        soft: 0,
        hard: 0,
    }];
    let launched = launch(&spec).map_err(|e| anyhow::anyhow!(e.text))?;
    drop(spec);
    drop((to_out, to_err));
    let mut heard = ProgramOutput {
        out,
        err,
        output: Vec::new(),
        words: Vec::new(),
    };
    let over = heard.listen(&launched, ends, Instant::now() + call.limit);
    if over == ProgramStop::Stopped {
        let _ = pidfd_signal(launched.pidfd.as_fd(), SIGTERM);
        ends_by(launched.pidfd.as_fd(), Instant::now() + GRACE);
    }
    kill(&launched, cgroup)?;
    let exit = gsys::process::reap(launched.pid)?;
    heard.take();
    Ok(match over {
        ProgramStop::Stopped => Err("it was ended".into()),
        ProgramStop::TimeUp => Err(format!(
            "did not end within {} s{}",
            call.limit.as_secs(),
            heard.last_words()
        )),
        ProgramStop::TooMuch => Err(format!(
            "wrote more than {} KiB",
            check_output::MAX_BYTES >> 10
        )),
        ProgramStop::Ended if exit == Exit::Code(CANNOT_CHECK) => {
            bail!("it cannot check here{}", heard.last_words())
        }
        ProgramStop::Ended if heard.output.len() > check_output::MAX_BYTES => Err(format!(
            "wrote more than {} KiB",
            check_output::MAX_BYTES >> 10
        )),
        ProgramStop::Ended => heard.found(exit),
    })
}

/// Both ends are closed on exec; reading does not wait.
fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((read, write))
}

fn environment(
    site: &Site,
    owns: &[GrantedGpu],
    more: Vec<(&'static str, String)>,
) -> Vec<(OsString, OsString)> {
    let own = &owns[0];
    let visible: Vec<&str> = owns.iter().map(|own| own.uuid.as_str()).collect();
    let mut variables = vec![
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("CUDA_VISIBLE_DEVICES", visible.join(",")),
        ("GPUPOOL_GPU_INDEX", own.gpu.index.to_string()),
        ("GPUPOOL_GPU_TYPE", own.gpu.gpu_type.clone()),
        ("GPUPOOL_NODE", site.name.clone()),
        (
            "GPUPOOL_CHECK_SIZE",
            site.config.gpu_check_size.name().to_owned(),
        ),
        // Compiled kernels are small, and no home directory is written to.
        ("CUDA_CACHE_DISABLE", "1".to_owned()),
    ];
    if let (Some(generation), Some(lanes)) = (own.gpu.pcie_gen_max, own.gpu.pcie_width_max) {
        variables.push(("GPUPOOL_GPU_LINK", format!("gen{generation}x{lanes}")));
    }
    variables.extend(more);
    variables.extend(
        site.config
            .cuda_lib
            .iter()
            .map(|path| ("GPUPOOL_CUDA_LIB", path.display().to_string())),
    );
    variables
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// All it started goes; without a cgroup its session.
fn kill(launched: &LaunchedProcess, cgroup: Option<&RunCgroup>) -> Result<()> {
    match cgroup {
        Some(cgroup) => cgroup.kill()?,
        None => drop(nix::sys::signal::killpg(
            nix::unistd::Pid::from_raw(launched.pid),
            nix::sys::signal::SIGKILL,
        )),
    }
    let _ = pidfd_signal(launched.pidfd.as_fd(), SIGKILL);
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProgramStop {
    Ended,
    Stopped,
    TimeUp,
    TooMuch,
}

/// What a program says while it runs.
struct ProgramOutput {
    out: OwnedFd,
    err: OwnedFd,
    output: Vec<u8>,
    /// The end of what it said on stderr.
    words: Vec<u8>,
}

impl ProgramOutput {
    fn listen(
        &mut self,
        launched: &LaunchedProcess,
        ends: &OwnedFd,
        deadline: Instant,
    ) -> ProgramStop {
        let (mut out_open, mut err_open) = (true, true);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let [ended, stopped] = {
                let mut fds = vec![
                    PollFd::new(launched.pidfd.as_fd(), PollFlags::POLLIN),
                    PollFd::new(ends.as_fd(), PollFlags::POLLIN),
                ];
                // One that was closed would be ready for ever.
                let open = [(&self.out, out_open), (&self.err, err_open)]
                    .into_iter()
                    .filter(|(_, open)| *open);
                fds.extend(open.map(|(fd, _)| PollFd::new(fd.as_fd(), PollFlags::POLLIN)));
                match poll(
                    &mut fds,
                    PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
                ) {
                    Err(Errno::EINTR) => continue,
                    Ok(0) | Err(_) => return ProgramStop::TimeUp,
                    Ok(_) => [&fds[0], &fds[1]].map(|fd| fd.any().unwrap_or(true)),
                }
            };
            (out_open, err_open) = self.take();
            if stopped {
                return ProgramStop::Stopped;
            }
            if self.output.len() > check_output::MAX_BYTES {
                return ProgramStop::TooMuch;
            }
            if ended {
                return ProgramStop::Ended;
            }
        }
    }

    /// Takes what is there, and no more than is looked at. Whether more may come.
    fn take(&mut self) -> (bool, bool) {
        let out_open = drain(&self.out, &mut self.output, check_output::MAX_BYTES + 1);
        let err_open = drain(&self.err, &mut self.words, usize::MAX);
        let surplus = self.words.len().saturating_sub(MAX_WORDS_BYTES);
        self.words.drain(..surplus);
        (out_open, err_open)
    }

    fn found(&self, exit: Exit) -> CheckOutcome {
        let found = check_output::read(&self.output);
        // A program that found something wrong may say so by its exit as well.
        let explained = found
            .as_ref()
            .is_ok_and(|results| results.iter().any(|result| result.passed == Some(false)));
        match exit {
            Exit::Signal(signal, _) => {
                Err(format!("was ended by signal {signal}{}", self.last_words()))
            }
            Exit::Code(code) if code != 0 && !explained => {
                Err(format!("ended with {code}{}", self.last_words()))
            }
            Exit::Code(_) => found,
        }
    }

    /// `: cannot open /dev/nvidia0`, its last line.
    fn last_words(&self) -> String {
        let text = String::from_utf8_lossy(&self.words);
        let line = text
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .unwrap_or("");
        let shown: String = line
            .trim()
            .chars()
            .filter(|c| !c.is_control())
            .take(TOLD_CHARS)
            .collect();
        if shown.is_empty() {
            String::new()
        } else {
            format!(": {shown}")
        }
    }
}

/// Reads what is there, in one go of some MiB at most; of what is beyond `keep` nothing is kept. False at its end.
fn drain(fd: &OwnedFd, into: &mut Vec<u8>, keep: usize) -> bool {
    let mut buffer = [0; 64 << 10];
    for _ in 0..64 {
        match nix::unistd::read(fd, &mut buffer) {
            Ok(0) => return false,
            Ok(count) => {
                into.extend_from_slice(&buffer[..count.min(keep.saturating_sub(into.len()))])
            }
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return true,
            Err(_) => return false,
        }
        if into.len() >= keep {
            return true;
        }
    }
    true
}
