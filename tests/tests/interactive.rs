//! Commands at a terminal: what they say while they wait, what interrupts do, where the shell of an allocation runs.

use gmodel::JobState::{Cancelled, Completed, Running};
use gpupool_tests::pool::{Pool, say};
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(40);

/// A command on a terminal of ours.
struct AtTerminal {
    child: Child,
    master: File,
    said: String,
}

impl AtTerminal {
    fn begin(mut command: Command) -> AtTerminal {
        let pty = openpty(None, None).unwrap();
        let side = || Stdio::from(pty.slave.try_clone().unwrap());
        command.stdin(side()).stdout(side()).stderr(side());
        let child = command.spawn().unwrap();
        AtTerminal {
            child,
            master: File::from(pty.master),
            said: String::new(),
        }
    }

    /// Reads until the words come; all that came so far.
    fn hears(&mut self, words: &str) -> &str {
        let since = Instant::now();
        while !self.said.contains(words) {
            let mut piece = [0; 4096];
            let count = self.master.read(&mut piece).unwrap_or(0);
            assert!(
                count > 0 && since.elapsed() < PATIENCE,
                "{words:?} did not come: {:?}",
                self.said
            );
            self.said
                .push_str(&String::from_utf8_lossy(&piece[..count]));
        }
        &self.said
    }
}

fn salloc(pool: &Pool, words: &[&str]) -> Command {
    let mut command = pool.command("gslurm");
    command.arg0("salloc").env("SHELL", "/bin/sh").args(words);
    command
}

fn newest(pool: &Pool) -> u64 {
    pool.ids().into_iter().max().expect("a job")
}

#[test]
fn one_line_says_why_it_waits_and_goes_when_it_starts() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let busy = pool.gsub(&["--gpus=2", "-t", "10", "--wrap", "sleep 600"]);
    pool.wait_state(busy, Running);
    let mut command = pool.command("grun");
    command.args(["--gpus=2", "-t", "5", "echo", "it runs"]);
    let mut waits = AtTerminal::begin(command);
    let said = waits.hears("queued: Resources").to_owned();
    assert!(
        said.contains(&format!("\r\u{1b}[Kgrun: job {} queued: ", busy + 1)),
        "{said:?}"
    );
    assert!(!said.contains('\n'), "it stays one line: {said:?}");
    waits.hears("expected start ");
    pool.run("gdel", &[&busy.to_string()]);
    let said = waits.hears("it runs");
    let (_, after) = said.rsplit_once("\r\u{1b}[K").expect("the line is cleared");
    assert_eq!(after.trim(), "it runs");
    assert_eq!(waits.child.wait().unwrap().code(), Some(0));
}

#[test]
fn one_interrupt_tells_and_two_end_the_step() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    let job = pool.gsub(&["-t", "10", "--wrap", "sleep 600"]);
    pool.wait_state(job, Running);
    let script = "trap 'echo got >> got' INT; echo up > up; while :; do sleep 0.05; done";
    let mut command = pool.command("grun");
    command.args(["--jobid", &job.to_string(), "-n1", "sh", "-c", script]);
    let mut grun = AtTerminal::begin(command);
    pool.wait_file("up");
    let pid = Pid::from_raw(grun.child.id() as i32);
    kill(pid, Signal::SIGINT).unwrap();
    grun.hears("interrupt (one more within 1 sec to abort)");
    pool.wait_file("got");
    // Two that are a while apart are two first ones.
    std::thread::sleep(Duration::from_millis(1200));
    kill(pid, Signal::SIGINT).unwrap();
    pool.wait_until("the task has had both", || pool.file("got") == "got\ngot\n");
    assert!(grun.child.try_wait().unwrap().is_none());
    std::thread::sleep(Duration::from_millis(1200));
    kill(pid, Signal::SIGINT).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    kill(pid, Signal::SIGINT).unwrap();
    grun.hears("forcing job termination");
    assert_eq!(grun.child.wait().unwrap().code(), Some(143));
    pool.run("gdel", &[&job.to_string()]);
}

#[test]
fn the_command_of_an_allocation_gets_its_signal_when_the_allocation_is_over() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    let script = "trap 'echo got > got; exit 9' USR1; echo up > up; while :; do sleep 0.05; done";
    let child = salloc(
        &pool,
        &["-t", "5", "--kill-command=USR1", "sh", "-c", script],
    )
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    pool.wait_file("up");
    let id = newest(&pool);
    assert_eq!(pool.run("gdel", &[&id.to_string()]).code, 0);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(9), "{said}");
    assert!(
        said.contains(&format!("salloc: Job allocation {id} has been revoked")),
        "{said}"
    );
    assert_eq!(pool.file("got"), "got\n");
    pool.wait_state(id, Cancelled);

    say(&mut salloc(&pool, &["--kill-command=nosuch", "true"])).fails_with(1, "--kill-command: ");
    let inside = say(salloc(&pool, &["true"]).env("SLURM_JOB_ID", id.to_string()));
    inside.fails_with(1, &format!("this is inside job {id}"));
    pool.run("gsub", &["a.sh", ":", "b.sh"])
        .fails_with(2, "between the options of a job's parts");
    assert_eq!(newest(&pool), id, "no job was submitted");
}

#[test]
fn the_shell_of_an_allocation_runs_on_its_first_node_where_the_partition_says_so() {
    let Some(pool) = Pool::up(2, "h100:1") else {
        return;
    };
    let partitions = pool.config("gpuctld").with_file_name("partitions.d");
    let file = std::fs::read_dir(&partitions)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replacen(
        "default = true",
        "default = true\ninteractive_step = true",
        1,
    );
    std::fs::write(&file, text).unwrap();
    pool.kill("gpuctld");
    pool.start("gpuctld");
    let mut shell = AtTerminal::begin(salloc(&pool, &["-N2", "-t", "5"]));
    shell.hears("Granted job allocation");
    let typed = "echo on $SLURMD_NODENAME step $SLURM_STEP_ID of $SLURM_JOB_NUM_NODES; tty; echo r\"ead\"y\n";
    shell.master.write_all(typed.as_bytes()).unwrap();
    let said = shell.hears("ready").to_owned();
    assert!(
        said.contains("on node1 step 0 of 2") && said.contains("/dev/pts/"),
        "{said}"
    );
    shell.master.write_all(b"exit 0\n").unwrap();
    shell.hears("Relinquishing job allocation");
    assert_eq!(shell.child.wait().unwrap().code(), Some(0));
    pool.wait_state(newest(&pool), Completed);
    // A command that is named runs here.
    let here = say(&mut salloc(
        &pool,
        &["-Q", "-t", "5", "sh", "-c", "echo ${SLURMD_NODENAME:-here}"],
    ));
    assert_eq!((here.code, here.out.as_str()), (0, "here\n"), "{here:?}");
}
