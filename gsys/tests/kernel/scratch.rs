//! A test's own cgroup subtree and directory, and starting things in it. Both are gone, processes included, when it is dropped.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gsys::cgroup::{CgroupRoot, Limits, RunCgroup, Trees};
use gsys::launch::{Identity, LaunchError, LaunchSpec, LaunchedProcess, OpenMode, Stdio, launch};
use gsys::process::{self, Exit};

/// Somebody without an account, in two groups without a name.
pub const USER: u32 = 31_337;
pub const GROUPS: [u32; 3] = [31_337, 31_400, 31_401];

static NEXT: AtomicU32 = AtomicU32::new(0);

pub struct Scratch {
    pub dir: PathBuf,
    pub root: CgroupRoot,
}

impl Scratch {
    /// `None`, said loudly, where tests of the kernel cannot run.
    pub fn new() -> Option<Scratch> {
        Scratch::in_trees(Trees::detect().expect("mountinfo"))
    }

    pub fn in_trees(trees: Trees) -> Option<Scratch> {
        if !gsys::user::is_root() {
            return not_run("needs root");
        }
        if trees.v1.is_empty() && trees.v2.is_none() {
            return not_run("needs a cgroup tree of this kind");
        }
        let tag = format!(
            "gpupool-test{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let dir = std::env::temp_dir().join(&tag);
        fs::create_dir(&dir).expect("scratch directory");
        let root = CgroupRoot::open_in(trees, &tag).expect("cgroup subtree");
        Some(Scratch { dir, root })
    }

    pub fn run(&self, limits: &Limits) -> RunCgroup {
        RunCgroup::create(&self.root, "run_1_1", limits).expect("create run cgroups")
    }

    pub fn output(&self) -> PathBuf {
        self.dir.join("output")
    }

    pub fn read_output(&self) -> String {
        fs::read_to_string(self.output()).unwrap_or_default()
    }

    /// A shell script as root, output to [`Scratch::output`]. Adjust the spec before it is launched.
    pub fn shell(&self, script: &str) -> LaunchSpec<'static> {
        let argv = ["/bin/sh", "-c", script].map(OsString::from).to_vec();
        let mut spec = LaunchSpec::new(argv, root_identity());
        spec.env = vec![
            ("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into()),
            ("LC_ALL".into(), "C".into()),
        ];
        spec.cwd = self.dir.clone();
        spec.stdout = Stdio::Open {
            path: self.output(),
            mode: OpenMode::Truncate,
        };
        spec.stderr = Stdio::SameAsStdout;
        spec
    }

    /// Starts a script in the job cgroup and waits for its end.
    pub fn run_shell_in(&self, run: &RunCgroup, script: &str) -> Exit {
        let launched = start_in(run, self.shell(script)).expect("start");
        end_of(launched.pid)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let cleaned = self.root.remove_all();
        let _ = fs::remove_dir_all(&self.dir);
        if !std::thread::panicking() {
            cleaned.expect("cgroups removed");
        }
    }
}

pub fn start_in(
    run: &RunCgroup,
    spec: LaunchSpec<'static>,
) -> Result<LaunchedProcess, LaunchError> {
    let join = run.join_fds().expect("open cgroup.procs");
    launch(&LaunchSpec {
        join: Some(&join),
        ..spec
    })
}

pub fn root_identity() -> Identity {
    Identity {
        uid: 0,
        gid: 0,
        groups: vec![0],
    }
}

pub fn user_identity() -> Identity {
    Identity {
        uid: USER,
        gid: USER,
        groups: GROUPS.to_vec(),
    }
}

/// Waits for the end of a child, but not for ever: a job that hangs fails its test.
pub fn end_of(pid: i32) -> Exit {
    let mut exit = None;
    until("the end of a child", || {
        exit = process::try_reap(pid).expect("wait");
        exit.is_some()
    });
    exit.expect("just seen")
}

/// Waits for a state; the test fails when it does not come.
pub fn until(what: &str, mut state: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !state() {
        assert!(Instant::now() < deadline, "waited 20 s for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// On stderr itself, which the test harness does not swallow.
pub fn not_run<T>(why: &str) -> Option<T> {
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    let _ = writeln!(std::io::stderr(), "NOT RUN: {name}: {why}");
    None
}

/// Runs a test of this program once more after a shell has changed the surroundings, in a mount namespace that passes its
/// mounts on, and says whether it passed. `GSYS_TEST_AGAIN` is set there.
pub fn passes_after(scratch: &Scratch, change: &str, test: &str) -> bool {
    let mut spec = scratch.shell("");
    let script =
        format!("unshare -m --propagation shared sh -c '{change} && exec \"$@\"' sh \"$@\"");
    let shell = ["/bin/sh", "-c", &script, "sh"].map(OsString::from);
    spec.argv = shell.into_iter().chain(again_argv(test)).collect();
    spec.env.push(("GSYS_TEST_AGAIN".into(), "1".into()));
    let passed = end_of(launch(&spec).expect("start").pid) == Exit::Code(0);
    if !passed {
        eprintln!("{}", scratch.read_output());
    }
    passed
}

/// The arguments that run one function of this program as a process of its own.
pub fn again_argv(test: &str) -> Vec<OsString> {
    let program = std::env::current_exe().expect("own path").into_os_string();
    vec![program, test.into(), "--exact".into(), "--nocapture".into()]
}

/// There is a file of any kind, symbolic links not followed.
pub fn exists(dir: &Path) -> bool {
    fs::symlink_metadata(dir).is_ok()
}
