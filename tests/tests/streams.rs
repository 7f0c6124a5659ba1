//! Streams of steps: terminals, and bytes that arrive once and in order whatever is killed on their way.

use gmodel::JobState::Running;
use gpupool_tests::pool::Pool;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A client with its ends in our hands.
struct Shell {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    said: String,
}

impl Shell {
    fn open(mut command: Command) -> Shell {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        Shell {
            child,
            stdin,
            stdout,
            said: String::new(),
        }
    }

    fn types(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
    }

    /// Reads until the words come; everything since the last time is returned.
    fn hears(&mut self, words: &str) -> String {
        let since = Instant::now();
        while !self.said.contains(words) {
            let mut piece = [0; 4096];
            let count = self.stdout.read(&mut piece).unwrap();
            assert!(count > 0, "{words:?} did not come: {:?}", self.said);
            self.said
                .push_str(&String::from_utf8_lossy(&piece[..count]));
            assert!(since.elapsed() < PATIENCE, "{:?}", self.said);
        }
        std::mem::take(&mut self.said)
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// As when its window is closed.
    fn hangs_up(mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGHUP).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(255));
    }

    fn code(mut self) -> Option<i32> {
        self.stdin = None;
        let mut rest = Vec::new();
        self.stdout.read_to_end(&mut rest).unwrap();
        self.child.wait().unwrap().code()
    }
}

fn shell(pool: &Pool, args: &[&str]) -> Shell {
    let mut command = pool.command("grun");
    command.args(args);
    Shell::open(command)
}

fn running_job(pool: &Pool) -> String {
    let id = pool.gsub(&["--gpus=1", "-t", "10", "--wrap", "sleep 600"]);
    pool.wait_state(id, Running);
    id.to_string()
}

#[test]
fn a_shell_has_a_terminal_and_lives_on_while_all_but_the_job_is_killed() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let job = running_job(&pool);
    let mut first = shell(&pool, &["--jobid", &job, "--pty", "sh"]);
    // The quotes keep the echo of what is typed apart from what it prints.
    first.types("stty size; tty; X=kept; nvidia=$GSUB_GPU_UUIDS; echo r\"ead\"y\n");
    let said = first.hears("ready");
    assert!(
        said.contains("24 80") && said.contains("/dev/pts/"),
        "{said}"
    );
    pool.kill("node1");
    pool.kill("gpuctld");
    pool.start("gpuctld");
    pool.start("node1");
    // The same client goes on where it was.
    first.types("echo b\"ac\"k $X\n");
    first.hears("back kept");
    first.hangs_up();
    let step = format!("{job}.0");
    let mut second = shell(&pool, &["--reattach", &step]);
    // It is shown what was on the screen, and takes over.
    second.hears("back kept");
    second.types("echo ag\"ai\"n $X; kill -0 $$ && echo al\"iv\"e\n");
    second.hears("alive");
    let mut third = shell(&pool, &["--reattach", &step]);
    third.hears("alive");
    assert_eq!(second.code(), Some(255), "another terminal has it");
    third.types("exit 7\n");
    assert_eq!(third.code(), Some(7));
    let gone = pool.run("grun", &["--reattach", &step]);
    gone.fails_with(1, &format!("there is no step {step} under way"));
    pool.run("gdel", &[&job]);
}

#[test]
fn bytes_in_both_directions_arrive_once_and_in_order_over_kills_of_every_daemon() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let job = running_job(&pool);
    // Slow enough that it is under way when the daemons are killed.
    let slow = "while read line; do echo $line; case $line in *000) sleep 0.02;; esac; done";
    let grun = gpupool_tests::pool::programs().join("grun");
    let grun = grun.display();
    let line = format!(
        "seq 200000 | {grun} --jobid {job} sh -c '{slow}' > came; echo $? > code; cmp came numbers && echo same > same"
    );
    pool.run_shell("seq 200000 > numbers");
    let mut transfer = pool.command("/bin/sh").args(["-c", &line]).spawn().unwrap();
    for daemon in ["node1", "gpuctld", "node1"] {
        std::thread::sleep(Duration::from_millis(700));
        pool.kill(daemon);
        std::thread::sleep(Duration::from_millis(300));
        pool.start(daemon);
    }
    transfer.wait().unwrap();
    assert_eq!(pool.file("code"), "0\n");
    assert_eq!(pool.file("same"), "same\n");
    pool.run("gdel", &[&job]);
}

#[test]
fn a_reader_that_stands_still_holds_up_its_own_step_and_no_other() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let job = running_job(&pool);
    let mut still = shell(&pool, &["--jobid", &job, "sh", "-c", "yes; echo never"]);
    still.hears("y");
    let quick = pool.run("grun", &["--jobid", &job, "seq", "50000"]);
    assert_eq!((quick.code, quick.out.lines().count()), (0, 50_000));
    still.kill();
    pool.run("gdel", &[&job]);
}

#[test]
fn a_user_on_a_node_reaches_a_step_through_that_nodes_daemon() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    let wrap = ["-N2", "--gpus=2", "-t", "10", "--wrap", "sleep 600"];
    let job = pool.run_as_user("gsub", &wrap).id();
    pool.wait_state(job, Running);
    let socket = pool.socket().parent().unwrap().join("node2/gpud.sock");
    let config = std::env::temp_dir().join(format!("gpupool-{}.toml", pool.tag()));
    std::fs::write(&config, format!("socket = {socket:?}\n")).unwrap();
    let mut command = pool.user_command("grun");
    command
        .env("GPUPOOL_CONFIG", &config)
        .args(["--jobid", &job.to_string(), "-N1", "-n1", "-w", "node1"])
        .args(["--pty", "sh"]);
    let mut shell = Shell::open(command);
    shell.types("echo on $SLURMD_NODENAME; echo r\"ead\"y\n");
    let said = shell.hears("ready");
    assert!(said.contains("on node1"), "{said}");
    // The daemon on the way is killed: the client goes on when it is back.
    pool.kill("node2");
    pool.start("node2");
    shell.types("echo b\"ac\"k\n");
    shell.hears("back");
    shell.types("exit 3\n");
    assert_eq!(shell.code(), Some(3));
    std::fs::remove_file(config).unwrap();
    pool.run("gdel", &[&job.to_string()]);
}

#[test]
fn a_stream_is_for_the_owner_of_its_job() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let job = running_job(&pool);
    let mut own = shell(&pool, &["--jobid", &job, "--pty", "sh"]);
    own.types("echo r\"ead\"y\n");
    own.hears("ready");
    let stolen = pool.run_as_user("grun", &["--reattach", &format!("{job}.0")]);
    stolen.fails_with(1, "is for its owner");
    own.types("echo st\"il\"l\n");
    own.hears("still");
    own.types("exit\n");
    assert_eq!(own.code(), Some(0));
    let path = format!("/v1/jobs/{job}/steps/0/stream?node=node1");
    let plain = pool.client().get::<serde_json::Value>(&path).unwrap_err();
    let plain = plain.to_string();
    assert!(plain.contains("Upgrade: gpupool-stream"), "{plain}");
    let forged = pool
        .client()
        .post::<_, serde_json::Value>("/v1/streams/00", &())
        .unwrap_err();
    assert!(forged.to_string().contains("by the node"), "{forged}");
    pool.run("gdel", &[&job]);
}
