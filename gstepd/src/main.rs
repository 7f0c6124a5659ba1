//! gstepd, the supervisor of one run on one node: owns the job's processes from start to end and writes `exit.json`.
//! Started by gpud, which it does not need any more after that: gpud may end, restart or be upgraded at any time.
//! One thread, one control socket, one record. With `--hook` it supervises a prolog or an epilog instead, with `--read-output` it reads a
//! file for a client, with `--forward` and `--sshd` it is a task of a step (`helper.rs`). Source: slurmstepd's place in Slurm.

mod attached_link;
mod batch;
mod container;
mod control;
mod dialled_link;
mod environment;
mod helper;
mod hook;
mod job_processes;
mod life;
mod login_environment;
mod mark_socket;
mod output_reader;
mod output_spool;
mod pam_session;
mod pmi;
mod record;
mod rendezvous;
mod resource_limits;
mod run_dir;
mod stand_by;
mod step;
mod step_account;
mod step_link;
mod step_task;
mod step_watch;
mod supervisor;
mod task_binding;
mod task_input;
mod terminal;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use gmodel::run::{EndCause, RunEnd};

use record::{Record, shorten};
use run_dir::{RunDir, wall_clock};
use supervisor::Supervisor;

const USAGE: &str = "usage: gstepd --run-dir SPOOL/runs/RUN [--connected]
       gstepd --stand-by SPOOL/runs ROOM
       gstepd --hook SPOOL/runs/RUN prolog|epilog
       gstepd --read-output | --forward | --sshd
       gstepd --pull SPOOL/runs/RUN
       gstepd --container-pull ORDER         as the user
       gstepd --container ORDER -- COMMAND   as the user
       gstepd --pmix                         as the user
       gstepd --pmix-rank FD PROGRAM -- COMMAND
       gstepd --container-create DIR         as the user
Started by gpud, never by hand: see gpud(8).";

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    // A task on its way into a container is no supervisor, and its command may be no text.
    if let [mode, order, dashes, command @ ..] = &words[..]
        && mode == "--container"
        && dashes == "--"
    {
        return container::run(&order.to_string_lossy(), command);
    }
    if let [mode, fd, program, dashes, command @ ..] = &words[..]
        && mode == "--pmix-rank"
        && dashes == "--"
    {
        return pmi::become_program(fd, program, command);
    }
    let args: Vec<String> = words
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if args.len() > 1 && !args[0].starts_with("--container") {
        // The supervisor is not in the job's cgroup, and a run without a supervisor is lost. Only root may; the job gets its own value back.
        let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    }
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--run-dir", dir] => outcome(supervise(Path::new(dir), None)),
        // Stdin is a conversation with gpud.
        ["--run-dir", dir, "--connected"] => outcome(supervise_connected(Path::new(dir))),
        // The last word only makes room for what a supervisor's command line says.
        ["--stand-by", runs, _room] => outcome(stand_by(Path::new(runs))),
        ["--hook", dir, kind] if hook::KINDS.contains(&kind) => {
            outcome(hook::supervise(Path::new(dir), kind))
        }
        ["--forward"] => outcome(helper::forward()),
        ["--sshd"] => helper::sshd().unwrap_or_else(|e| outcome(Err(e))),
        ["--pmix"] => outcome(pmi::serve()),
        ["--read-output"] => outcome(output_reader::serve()),
        ["--pull", dir] => outcome(container::start_pull(Path::new(dir))),
        ["--container-pull", order] => container::pull(order),
        ["--container-create", dir] => outcome(container::create(Path::new(dir))),
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

fn outcome(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // In one piece, between the lines of other tasks. The parent process may be gone, and its pipe with it.
            let _ = io::stderr().write_all(format!("gstepd: {e:#}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn supervise_connected(dir: &Path) -> anyhow::Result<()> {
    let connection = io::stdin().as_fd().try_clone_to_owned()?;
    supervise(dir, Some(connection.into()))
}

/// Returns when gpud is gone; in each supervisor that it became, when the run has ended.
fn stand_by(runs: &Path) -> anyhow::Result<()> {
    match stand_by::serve(runs)? {
        Some(born) => supervise(&born.run_dir, Some(born.connection)),
        None => Ok(()),
    }
}

/// Nothing is written before the run directory is locked: another supervisor may own the run. After that, what prevents the
/// supervision is the node's error and goes on record.
fn supervise(dir: &Path, connection: Option<UnixStream>) -> anyhow::Result<()> {
    // Private files say so themselves; the script's directory must be passable by its user.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let dir = RunDir::enter(dir)?;
    match prepare(dir, connection) {
        Ok(supervisor) => supervisor.run().map(|never| match never {}),
        Err(e) => {
            let text = shorten(&format!("{e:#}"));
            let end = RunEnd {
                cause: EndCause::LaunchNode,
                text,
                ended: Some(wall_clock()),
                ..RunEnd::default()
            };
            Record::without_room().write(&end)?;
            Err(e)
        }
    }
}

fn prepare(mut dir: RunDir, connection: Option<UnixStream>) -> anyhow::Result<Supervisor> {
    let record = Record::reserve().context("taking room for exit.json")?;
    let (order, setup) = (dir.order()?, dir.setup()?);
    let is_told = connection.is_some();
    let supervisor = Supervisor::prepare(dir, order, setup, record, connection)?;
    if !is_told {
        // For a gpud of the release before, which waits for ctl.sock; a closed output is no error.
        let _ = writeln!(io::stdout(), "ready");
    }
    Ok(supervisor)
}
