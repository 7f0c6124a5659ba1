//! The supervisor of one prolog or epilog: begins the program once, however often it is asked to, and writes how it ended into the
//! run's directory. Outlives gpud, and decides nothing about the run.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use gmodel::ExitCode;
use gmodel::supervise::{HookEnd, HookFiles, HookOrder};
use gsys::cgroup::RunCgroup;
use gsys::durable_file::ReservedFile;
use gsys::launch::{BoundedProgram, ProgramEnd};
use gsys::process::Exit;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::SigSet;

use crate::batch::split_variables;
use crate::supervisor::DEAF_TO;

pub const KINDS: [&str; 2] = ["prolog", "epilog"];
/// For what the program left behind to be gone.
const GONE_PATIENCE: Duration = Duration::from_secs(5);
/// For `HookEnd`, on a disk that is full by then.
const RECORD_ROOM_BYTES: u64 = 4096;

/// Returns when the program has ended, or at once where it was begun before.
pub fn supervise(run_dir: &Path, kind: &str) -> anyhow::Result<()> {
    DEAF_TO
        .into_iter()
        .collect::<SigSet>()
        .thread_block()
        .context("blocking signals")?;
    let files = HookFiles::of(run_dir, kind);
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&files.lock)?;
    // A second one waits here for the first, and then finds its number.
    let mut lock = Flock::lock(lock, FlockArg::LockExclusive)
        .map_err(|(_, e)| e)
        .context("locking")?;
    if lock.metadata()?.len() > 0 {
        return Ok(());
    }
    let order: HookOrder = serde_json::from_slice(&fs::read(&files.order)?)?;
    let cgroup = (!order.cgroup.is_empty())
        .then(|| RunCgroup::open_rel(Path::new(&order.cgroup)))
        .transpose()?;
    if let Some(cgroup) = &cgroup {
        cgroup.attach_sup(0)?;
    }
    let record =
        ReservedFile::reserve(&files.end, RECORD_ROOM_BYTES).context("taking room for its end")?;
    // From here on it may have been started, and is not started again.
    lock.write_all(std::process::id().to_string().as_bytes())?;
    let end = run(&order, cgroup.as_ref(), &files.output).unwrap_or_else(|e| HookEnd {
        error: format!("{e:#}"),
        ..HookEnd::default()
    });
    if let Some(cgroup) = &cgroup {
        cgroup.kill()?;
        cgroup.wait_empty(GONE_PATIENCE)?;
    }
    record
        .commit(&serde_json::to_vec(&end)?)
        .context("writing its end")
}

fn run(order: &HookOrder, cgroup: Option<&RunCgroup>, output: &Path) -> anyhow::Result<HookEnd> {
    let bounded = BoundedProgram {
        argv: vec![PathBuf::from(&order.program).into()],
        // A working directory need not be UTF-8.
        env: split_variables(order.environment.clone()),
        output,
        cgroup,
        time_limit: Duration::from_secs(order.time_limit_secs.into()),
    };
    let ProgramEnd { exit, timed_out } = bounded.run()?;
    let exit = match exit {
        Exit::Code(code) => ExitCode::exited(code as u8),
        Exit::Signal(signal, _) => ExitCode::killed(signal as u8),
    };
    Ok(HookEnd {
        exit,
        timed_out,
        error: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::byte_text;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_working_directory_that_is_not_utf8_reaches_the_hook_as_its_bytes() {
        let dir = std::env::temp_dir().join(format!("gstepd-hook-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (program, output) = (dir.join("prolog"), dir.join("out"));
        fs::write(&program, "#!/bin/sh\nprintf %s \"$SLURM_JOB_WORK_DIR\"\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let work_dir = b"/data/caf\xe9";
        let order = HookOrder {
            program: program.display().to_string(),
            environment: vec![format!(
                "SLURM_JOB_WORK_DIR={}",
                byte_text::from_bytes(work_dir)
            )],
            time_limit_secs: 20,
            cgroup: String::new(),
        };
        let end = run(&order, None, &output).unwrap();
        assert!(end.exit.is_success() && !end.timed_out, "{end:?}");
        assert_eq!(fs::read(&output).unwrap(), work_dir);
        fs::remove_dir_all(&dir).unwrap();
    }
}
