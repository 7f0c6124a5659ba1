//! Hostile clients against a working pool: [`Watch`] says what must hold meanwhile. The hostile user is a program of its own,
//! since the kernel names the sender; it sends requests with one value at an extreme.

pub mod extremes;
pub mod user;

use crate::pool::{CommandOutput, PATIENCE, Pool, say};
use gmodel::JobState;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

/// Another ordinary user of every machine.
const OTHER_UID: u32 = 1;
/// What a controller of a few thousand jobs takes, with what is being received and written, KiB.
const MOST_CONTROLLER_KIB: u64 = 900 << 10;
const MOST_NODE_KIB: u64 = 400 << 10;
/// The longest that another user waits for an answer. A controller at peace takes a hundredth of it.
const LONGEST: Duration = Duration::from_secs(20);

/// A pool in which users work during an attack.
pub struct Watch<'a> {
    pool: &'a Pool,
    daemons: Vec<(&'static str, i32)>,
    /// A job of another user that runs all the time.
    bystander: u64,
    slowest: Duration,
    asked: u32,
}

impl<'a> Watch<'a> {
    /// Notes the processes of the daemons, and starts another user's job on node1.
    pub fn begin(pool: &'a Pool, daemons: &[&'static str]) -> Self {
        let bystander = pool.gsub(&["-o", "/dev/null", "--wrap", "while :; do sleep 0.1; done"]);
        pool.wait_state(bystander, JobState::Running);
        let daemons = daemons
            .iter()
            .map(|daemon| (*daemon, pool.daemon_pid(daemon)))
            .collect();
        Self {
            pool,
            daemons,
            bystander,
            slowest: Duration::ZERO,
            asked: 0,
        }
    }

    /// As another ordinary user.
    fn other(&self, program: &str, args: &[&str]) -> CommandOutput {
        let mut command = self.pool.user_command(program);
        command
            .uid(OTHER_UID)
            .gid(OTHER_UID)
            .env("USER", "daemon")
            .args(args);
        say(&mut command)
    }

    /// Another user lists the queue and submits a job.
    #[track_caller]
    pub fn look(&mut self) {
        let since = Instant::now();
        let said = self.other("gq", &["-j", &self.bystander.to_string()]);
        assert!(
            said.code == 0 && said.out.contains(&self.bystander.to_string()),
            "another user's gq: {said:?}\n{}",
            self.pool.logs()
        );
        let said = self.other("gsub", &["-D", "/tmp", "-o", "/dev/null", "--wrap", "true"]);
        assert_eq!(
            said.code,
            0,
            "another user's gsub: {said:?}\n{}",
            self.pool.logs()
        );
        self.slowest = self.slowest.max(since.elapsed());
        self.asked += 1;
        for (daemon, pid) in &self.daemons {
            assert_eq!(
                self.pool.daemon_pid(daemon),
                *pid,
                "{daemon} was started again"
            );
            assert!(
                crate::pool::is_alive(*pid),
                "{daemon} ended\n{}",
                self.pool.logs()
            );
        }
    }

    /// What must hold when it is over; what was seen, in words.
    #[track_caller]
    pub fn end(mut self) -> String {
        self.look();
        assert!(
            self.slowest < LONGEST,
            "another user waited {:?}",
            self.slowest
        );
        let mut seen = format!(
            "another user asked {} times and waited {} ms at most",
            self.asked,
            self.slowest.as_millis()
        );
        for (daemon, pid) in &self.daemons {
            let peak = peak_kib(*pid);
            let most = if *daemon == "gpuctld" {
                MOST_CONTROLLER_KIB
            } else {
                MOST_NODE_KIB
            };
            assert!(
                peak < most,
                "{daemon} took {peak} KiB, and {most} are the most"
            );
            seen.push_str(&format!("; {daemon} took {} MB at most", peak >> 10));
            let log = self.pool.log(daemon);
            for words in ["panicked", "this is a bug"] {
                let line = log.lines().find(|line| line.contains(words));
                assert!(line.is_none(), "{daemon}: {line:?}");
            }
        }
        let job = self.pool.job(self.bystander);
        assert_eq!(
            (job.state, job.attempts),
            (JobState::Running, 1),
            "a job of somebody else: {job:?}"
        );
        assert_eq!(
            self.pool.run("gdel", &[&self.bystander.to_string()]).code,
            0
        );
        self.pool.check();
        seen
    }
}

fn peak_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("a process has a peak");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// How long: `SOAK_SECS`, or what a test takes.
pub fn secs(of_test: u64) -> u64 {
    std::env::var("SOAK_SECS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(of_test)
}

/// Time in which what was begun has to be over.
pub const AFTERWARDS: Duration = PATIENCE;
