//! Readers of jobs' output files: a process for each, which is the job's user before it opens anything; or the
//! daemon's own where the output is in the spool. It ends with its stream.

use crate::site::Site;
use anyhow::{Context, Result, bail};
use gmodel::RunId;
use gmodel::byte_text;
use gmodel::job::UserRef;
use gmodel::job_output::SpooledFile;
use gmodel::output_stream::OutputOrder;
use gmodel::supervise::OUTPUT_ORDER_VARIABLE;
use gsys::launch::{Bind, Identity, LaunchSpec, LaunchedProcess, Stdio, launch};
use gsys::process::{pidfd_signal, reap};
use gsys::user::User;
use nix::libc::SIGKILL;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Readers at once.
const MAX_READERS: usize = 256;
static READERS: Semaphore = Semaphore::const_new(MAX_READERS);

/// What a client wants to read.
pub struct OutputRequest {
    pub run: RunId,
    pub user: UserRef,
    pub order: OutputOrder,
}

/// A reader at work.
pub struct OutputReader {
    process: LaunchedProcess,
    _permit: SemaphorePermit<'static>,
}

impl OutputReader {
    /// Ends the process, in whichever state it is.
    pub async fn end(self) {
        let _ = pidfd_signal(self.process.pidfd.as_fd(), SIGKILL);
        // One that hangs in a file server keeps its permit.
        let _ = tokio::task::spawn_blocking(move || {
            let reaped = reap(self.process.pid);
            drop(self._permit);
            reaped
        })
        .await;
    }
}

/// Starts a reader: its end of the stream, and the process.
///
/// # Errors
/// Too many readers; the node does not know the user; the process cannot be started.
pub async fn read(site: &Site, request: OutputRequest) -> Result<(UnixStream, OutputReader)> {
    let Ok(permit) = READERS.try_acquire() else {
        bail!(
            "{MAX_READERS} outputs are being read on this node, and no more are. Try again later"
        );
    };
    let OutputRequest {
        run,
        user,
        mut order,
    } = request;
    let spooled = SpooledFile {
        run,
        stderr: order.stderr,
    };
    let spooled = site.spool.outputs_dir().join(spooled.to_string());
    order.attempt = spooled.is_file().then_some(run.attempt);
    if order.attempt.is_some() {
        order.path = byte_text::from_bytes(spooled.as_os_str().as_bytes());
    }
    let setup = site.spool.setup(run).ok().flatten();
    // The private directories go with the run.
    let binds = setup.as_ref().map_or(Vec::new(), |setup| {
        let mut binds = Bind::of_private_dirs(&setup.private_shm, &setup.private_tmp);
        binds.retain(|bind| bind.source.is_dir());
        binds
    });
    let gstepd = File::open(site.stand_by.gstepd()).context("opening gstepd")?;
    let (ours, theirs) = StdUnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let launched = tokio::task::spawn_blocking(move || {
        let identity = match order.attempt {
            // The spool and its files are the daemon's own.
            Some(_) => Identity::own()?,
            None => identity(&user)?,
        };
        start(&order, identity, binds, &gstepd, theirs.into())
    });
    let process = launched.await??;
    let reader = OutputReader {
        process,
        _permit: permit,
    };
    Ok((UnixStream::from_std(ours)?, reader))
}

/// By the name, whose uid here must be that of the job.
fn identity(user: &UserRef) -> Result<Identity> {
    let found = User::by_name(&user.name)?
        .with_context(|| format!("user {:?} does not exist on this node", user.name))?;
    if found.uid != user.uid {
        bail!(
            "user {:?} is uid {} on this node and uid {} where the job was submitted",
            user.name,
            found.uid,
            user.uid
        );
    }
    let gid = match found.groups.contains(&user.gid) {
        true => user.gid,
        false => found.gid,
    };
    Ok(Identity {
        gid,
        ..Identity::from(&found)
    })
}

fn start(
    order: &OutputOrder,
    identity: Identity,
    binds: Vec<Bind>,
    gstepd: &File,
    stream: OwnedFd,
) -> Result<LaunchedProcess> {
    let mut spec = LaunchSpec::new(vec!["gstepd".into(), "--read-output".into()], identity);
    // By its descriptor: the user need not be able to pass the directories above it.
    let program = PathBuf::from("/proc/self/fd").join(gstepd.as_raw_fd().to_string());
    spec.program = Some(program);
    spec.env = vec![(
        OUTPUT_ORDER_VARIABLE.into(),
        serde_json::to_string(order)?.into(),
    )];
    spec.stdin = Stdio::Fd(stream.as_fd());
    spec.binds = binds;
    launch(&spec).map_err(|e| anyhow::anyhow!("starting a reader: {}", e.text))
}
