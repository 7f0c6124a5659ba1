//! gstepd, the supervisor of one run on one node: owns the job's processes from start to end and writes `exit.json`.
//! Started by gpud, which it does not need any more after that: gpud may end, restart or be upgraded at any time.
//! One thread, one control socket, one record. Source: slurmstepd's place in Slurm.

mod batch;
mod control;
mod environment;
mod job_processes;
mod life;
mod mark_socket;
mod pam_session;
mod record;
mod resource_limits;
mod run_dir;
mod step;
mod step_link;
mod supervisor;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use gmodel::run::{EndCause, RunEnd};

use record::{Record, shorten};
use run_dir::{RunDir, wall_clock};
use supervisor::Supervisor;

const USAGE: &str = "usage: gstepd --run-dir SPOOL/runs/RUN\nStarted by gpud, never by hand: see gpud(8).";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--run-dir", dir] => match supervise(Path::new(dir)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                // Whoever started us may be gone, and its pipe with it.
                let _ = writeln!(std::io::stderr(), "gstepd: {e:#}");
                ExitCode::FAILURE
            }
        },
        ["--version"] => {
            println!("gstepd {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        ["--help"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Before the run directory is ours nothing is written: another supervisor may own the run. After that, what keeps us from
/// supervising is the node's error and goes on record.
fn supervise(dir: &Path) -> anyhow::Result<()> {
    // Private files say so themselves; the script's directory must be passable by its user.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let dir = RunDir::enter(dir)?;
    // Ours is not the job's cgroup, and a run without a supervisor is lost. Only root may; the job gets its own value back.
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    match prepare(dir) {
        Ok(supervisor) => supervisor.run(),
        Err(e) => {
            let text = shorten(&format!("{e:#}"));
            let end = RunEnd { cause: EndCause::LaunchNode, text, ended: Some(wall_clock()), ..RunEnd::default() };
            Record::without_room().write(&end)?;
            Err(e)
        }
    }
}

fn prepare(dir: RunDir) -> anyhow::Result<Supervisor> {
    let record = Record::reserve().context("taking room for exit.json")?;
    let (order, setup) = (dir.order()?, dir.setup()?);
    let supervisor = Supervisor::prepare(dir, order, setup, record)?;
    // For whoever started us to know that ctl.sock is there; nobody has to listen.
    let _ = writeln!(std::io::stdout(), "ready");
    Ok(supervisor)
}
