//! Starting a process as a user, and whose fault it is when it does not start.

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use gsys::cgroup::Limits;
use gsys::device_fence::{FenceRules, attach_run};
use gsys::launch::{
    Bind, ErrorClass, Identity, LaunchError, LaunchSpec, OpenMode, Resource, Rlimit, Stage, Stdio,
    launch, spawn,
};
use gsys::process::{self, Exit};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::scratch::{
    GROUPS, Scratch, USER, end_of, not_run, passes_after, start_in, user_identity,
};

/// The scratch directory belongs to the user.
fn give_to_user(dir: &Path) {
    std::os::unix::fs::chown(dir, Some(USER), Some(USER)).expect("chown");
}

fn finish(spec: &LaunchSpec<'_>) -> Exit {
    end_of(launch(spec).expect("start").pid)
}

fn refused(spec: &LaunchSpec<'_>) -> LaunchError {
    launch(spec).expect_err("must not start")
}

#[test]
fn a_job_runs_as_its_user_only() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    give_to_user(&scratch.dir);
    let run = scratch.run(&Limits::default());
    let mut spec = scratch
        .shell("id -u; id -ru; id -g; id -G; umask; pwd; env | sort; nice; cat /proc/self/cgroup");
    spec.identity = user_identity();
    spec.umask = 0o027;
    spec.nice = 3;
    spec.env.push(("GREETING".into(), "hello world".into()));
    let child = start_in(&run, spec).expect("start");
    assert_eq!(end_of(child.pid), Exit::Code(0));
    let text = scratch.read_output();
    let lines: Vec<&str> = text.lines().collect();
    let groups = GROUPS.map(|g| g.to_string()).join(" ");
    assert_eq!(
        lines[..6],
        [
            "31337",
            "31337",
            "31337",
            &groups,
            "0027",
            scratch.dir.to_str().expect("text")
        ]
    );
    assert!(
        text.contains("GREETING=hello world\n") && !text.contains("CARGO"),
        "its own environment only: {text}"
    );
    assert!(text.contains("\n3\n"), "nice: {text}");
    let cgroup = format!("/{}", run.rel().display());
    assert_eq!(
        text.matches(&cgroup).count(),
        scratch
            .root
            .trees()
            .mounts()
            .filter(|mount| mount.join(run.rel()).is_dir())
            .count(),
        "in every tree of the run: {text}"
    );
    let meta = fs::metadata(scratch.output()).expect("stat");
    assert_eq!(
        (meta.uid(), meta.mode() & 0o777),
        (USER, 0o640),
        "opened by the user, under the user's umask"
    );
}

#[test]
fn a_job_starts_with_a_clean_slate() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    // Something of the daemon's that must not reach the job, close-on-exec or not.
    let leak = fs::File::open("/dev/null").expect("open");
    // SAFETY: clears close-on-exec on a descriptor of this test.
    unsafe { libc::fcntl(leak.as_raw_fd(), libc::F_SETFD, 0) };
    // SAFETY: sets no handler. The Rust runtime ignores SIGPIPE already; SIGUSR2 is ignored on top.
    unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
    let script = "ls /proc/self/fd; grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status; \
                  cut -d' ' -f6 /proc/$$/stat; echo $$; cat /proc/self/oom_score_adj";
    let own_score =
        |score: &str| fs::write("/proc/self/oom_score_adj", score).expect("oom_score_adj");
    own_score("50");
    let exit = finish(&scratch.shell(script));
    own_score("0");
    assert_eq!(exit, Exit::Code(0));
    let text = scratch.read_output();
    // ls holds the directory itself as 3.
    assert!(text.starts_with("0\n1\n2\n3\nSig"), "{text}");
    let mask = |name: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(name)?.split_whitespace().last())
            .expect("mask")
    };
    assert_eq!(
        (mask("SigBlk:"), mask("SigIgn:")),
        ("0000000000000000", "0000000000000000")
    );
    let tail: Vec<&str> = text.lines().rev().take(3).collect();
    assert_eq!(tail[1], tail[2], "leads a session of its own");
    assert_eq!(
        tail[0], "0",
        "the daemon's place before the OOM killer is not inherited"
    );
}

#[test]
fn a_missing_directory_is_the_users_mistake() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let mut spec = scratch.shell("true");
    spec.cwd = scratch.dir.join("nowhere");
    spec.identity = user_identity();
    let error = refused(&spec);
    assert_eq!(
        (error.class, error.stage, error.errno),
        (ErrorClass::User, Stage::Directory, libc::ENOENT)
    );
    assert!(
        error.text.contains(spec.cwd.to_str().expect("text")) && error.text.contains("--chdir"),
        "{error}"
    );
}

#[test]
fn an_output_directory_that_is_not_the_users_is_named() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let mut spec = scratch.shell("true");
    spec.identity = user_identity();
    let error = refused(&spec);
    assert_eq!(
        (error.class, error.stage, error.errno),
        (ErrorClass::User, Stage::Stdout, libc::EACCES)
    );
    assert!(
        error
            .text
            .contains(scratch.output().to_str().expect("text")),
        "{error}"
    );
    assert!(
        !scratch.output().exists(),
        "root has not opened it for the user"
    );
}

#[test]
fn no_parent_directory_is_made_for_an_output() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let mut spec = scratch.shell("true");
    spec.stdout = Stdio::Open {
        path: "logs/out".into(),
        mode: OpenMode::Append,
    };
    let error = refused(&spec);
    assert_eq!(
        (error.class, error.stage, error.errno),
        (ErrorClass::User, Stage::Stdout, libc::ENOENT)
    );
    assert!(
        error.text.contains("logs/out") && error.text.contains(scratch.dir.to_str().expect("text")),
        "{error}"
    );
    assert!(!scratch.dir.join("logs").exists());
}

/// Writes a script with that first line and starts it.
fn start_script(scratch: &Scratch, first_line: &str, mode: u32) -> LaunchError {
    let script = scratch.dir.join("script");
    fs::write(&script, format!("{first_line}\necho ran\n")).expect("write");
    fs::set_permissions(&script, fs::Permissions::from_mode(mode)).expect("chmod");
    let mut spec = scratch.shell("");
    spec.argv = vec![script.into_os_string()];
    give_to_user(&scratch.dir);
    spec.identity = user_identity();
    let error = refused(&spec);
    assert_eq!(
        (error.class, error.stage),
        (ErrorClass::User, Stage::Exec),
        "{error}"
    );
    error
}

#[test]
fn a_script_that_cannot_run_says_why() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let missing = start_script(&scratch, "#!/opt/no/such/python3 -u", 0o755);
    assert!(
        missing.text.contains("/opt/no/such/python3") && missing.text.contains("script"),
        "{missing}"
    );
    let windows = start_script(&scratch, "#!/bin/sh\r", 0o755);
    assert!(windows.text.contains("carriage return"), "{windows}");
    let plain = start_script(&scratch, "echo no interpreter", 0o755);
    assert!(
        plain.errno == libc::ENOEXEC && plain.text.contains("#!/bin/bash"),
        "{plain}"
    );
    let not_executable = start_script(&scratch, "#!/bin/sh", 0o644);
    assert!(not_executable.text.contains("chmod +x"), "{not_executable}");
    assert!(!scratch.read_output().contains("ran"));
}

#[test]
fn a_program_is_looked_for_in_the_jobs_own_path() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let bin = scratch.dir.join("bin");
    fs::create_dir(&bin).expect("mkdir");
    fs::write(bin.join("greet"), "#!/bin/sh\necho hello $1\n").expect("write");
    fs::set_permissions(bin.join("greet"), fs::Permissions::from_mode(0o755)).expect("chmod");
    let mut spec = scratch.shell("");
    spec.argv = vec!["greet".into(), "world".into()];
    let error = refused(&spec);
    assert!(
        error.class == ErrorClass::User && error.text.contains("PATH"),
        "{error}"
    );
    spec.env = vec![(
        "PATH".into(),
        OsString::from(format!("/nowhere:{}", bin.display())),
    )];
    assert_eq!(finish(&spec), Exit::Code(0));
    assert_eq!(scratch.read_output(), "hello world\n");
    spec.argv = vec!["nul\0byte".into()];
    assert_eq!(refused(&spec).class, ErrorClass::User);
}

#[test]
fn a_cgroup_that_is_gone_is_the_nodes_mistake() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let join = run.join_fds().expect("open");
    run.remove().expect("remove");
    let error = refused(&LaunchSpec {
        join: Some(&join),
        ..scratch.shell("true")
    });
    assert_eq!(
        (error.class, error.stage),
        (ErrorClass::Node, Stage::Cgroup),
        "{error}"
    );
    assert!(
        !scratch.output().exists(),
        "nothing was opened before the cgroup was joined"
    );
}

#[test]
fn a_fence_too_narrow_for_dev_null_is_the_nodes_mistake() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let rules = FenceRules {
        default_deny: true,
        ..FenceRules::default()
    };
    attach_run(&run, &rules).expect("attach");
    let error = start_in(&run, scratch.shell("true")).expect_err("no /dev/null");
    assert_eq!(
        (error.class, error.stage, error.errno),
        (ErrorClass::Node, Stage::Stdin, libc::EPERM)
    );
}

#[test]
fn a_failed_mount_is_the_nodes_mistake() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let mut spec = scratch.shell("true");
    spec.binds = vec![Bind {
        source: scratch.dir.join("absent"),
        target: "/tmp".into(),
    }];
    let error = refused(&spec);
    assert_eq!(
        (error.class, error.stage, error.errno),
        (ErrorClass::Node, Stage::Mounts, libc::ENOENT),
        "{error}"
    );
}

#[test]
fn output_is_appended_or_truncated_as_asked() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let mut spec = scratch.shell("echo line; echo error >&2");
    finish(&spec);
    spec.stdout = Stdio::Open {
        path: "output".into(),
        mode: OpenMode::Append,
    };
    finish(&spec);
    assert_eq!(scratch.read_output(), "line\nerror\nline\nerror\n");
    spec.stdout = Stdio::Open {
        path: "output".into(),
        mode: OpenMode::Truncate,
    };
    spec.stderr = Stdio::Null;
    finish(&spec);
    assert_eq!(scratch.read_output(), "line\n");
}

#[test]
fn input_comes_from_a_file_or_a_descriptor() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    fs::write(scratch.dir.join("in"), "from a file").expect("write");
    let mut spec = scratch.shell("cat");
    spec.stdin = Stdio::Open {
        path: "in".into(),
        mode: OpenMode::Read,
    };
    finish(&spec);
    assert_eq!(scratch.read_output(), "from a file");
    let file = fs::File::open("/proc/self/comm").expect("open");
    spec.stdin = Stdio::Fd(file.as_fd());
    finish(&spec);
    assert!(!scratch.read_output().is_empty() && !scratch.read_output().contains("from a file"));
}

#[test]
fn limits_are_set_and_raising_is_best_effort() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let own = Resource::Nofile.current().expect("own limit");
    let mut spec = scratch.shell("ulimit -Sn; ulimit -Hn; ulimit -Sc");
    spec.rlimits = vec![
        Rlimit {
            resource: Resource::Nofile,
            soft: 300,
            hard: 400,
        },
        Rlimit {
            resource: Resource::Core,
            soft: 0,
            hard: 0,
        },
    ];
    finish(&spec);
    assert_eq!(scratch.read_output(), "300\n400\n0\n");
    spec.rlimits = vec![Rlimit {
        resource: Resource::Nofile,
        soft: u64::MAX,
        hard: u64::MAX,
    }];
    assert_eq!(
        finish(&spec),
        Exit::Code(0),
        "more than the kernel allows is cut, not refused"
    );
    let hard: u64 = scratch
        .read_output()
        .lines()
        .nth(1)
        .expect("line")
        .parse()
        .expect("a number");
    assert!(hard >= own.hard);
    assert_eq!(Resource::from_name("MEMLOCK"), Some(Resource::Memlock));
}

#[test]
fn soft_limits_hold_in_the_program_and_not_on_the_way_to_it() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    give_to_user(&scratch.dir);
    let hard = Resource::Nofile.current().expect("own limit").hard;
    let mut spec = scratch.shell("ulimit -Sn; ulimit -Hn; ulimit -Sp; ulimit -Sc");
    spec.identity = user_identity();
    spec.soft_limits = vec![
        (Resource::Nofile, u64::MAX),
        (Resource::Nproc, 77),
        (Resource::Core, 0),
    ];
    assert_eq!(finish(&spec), Exit::Code(0));
    let cut = format!("{hard}\n{hard}\n77\n0\n");
    assert_eq!(scratch.read_output(), cut, "never above the hard one");
    // With these in force before, no file could be opened and the user could have no process at all.
    spec.argv = ["/bin/sh", "-c", "ulimit -Sn; ulimit -Sp"]
        .map(OsString::from)
        .to_vec();
    spec.soft_limits = vec![(Resource::Nofile, 4), (Resource::Nproc, 1)];
    assert_eq!(finish(&spec), Exit::Code(0));
    assert_eq!(scratch.read_output(), "4\n1\n");
    // No room for any program: its end, or the user's mistake, and never the node's.
    spec.soft_limits = vec![
        (Resource::As, 4096),
        (Resource::Stack, 4096),
        (Resource::Data, 0),
    ];
    match launch(&spec) {
        Ok(child) => assert!(matches!(
            end_of(child.pid),
            Exit::Signal(..) | Exit::Code(127)
        )),
        Err(error) => assert_eq!(error.class, ErrorClass::User, "{error}"),
    }
}

#[test]
fn a_user_over_a_limit_on_processes_is_no_sick_node() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    give_to_user(&scratch.dir);
    let mut spec = scratch.shell("exec sleep 600");
    // Somebody of its own: other tests start processes of the usual user.
    spec.identity = Identity {
        uid: 31_444,
        gid: USER,
        groups: vec![USER],
    };
    spec.stdout = Stdio::Null;
    // The kernel looks when the user is changed, and does not count the newcomer yet.
    let others = [(); 2].map(|()| launch(&spec).expect("start"));
    spec.rlimits = vec![Rlimit {
        resource: Resource::Nproc,
        soft: 1,
        hard: 1,
    }];
    let error = refused(&spec);
    for other in others {
        process::pidfd_signal(other.pidfd.as_fd(), libc::SIGKILL).expect("kill");
        end_of(other.pid);
    }
    assert_eq!(
        (error.class, error.stage, error.errno),
        (ErrorClass::User, Stage::Exec, libc::EAGAIN)
    );
    assert!(error.text.contains("limit NPROC"), "{error}");
}

#[test]
fn a_program_finds_its_own_number_in_its_environment() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let mut spec = scratch.shell("echo $$ $MY_PID $MY_OTHER_PID $LC_ALL");
    spec.pid_variables = vec!["MY_PID".into(), "MY_OTHER_PID".into()];
    let child = launch(&spec).expect("start");
    let pid = child.pid;
    assert_eq!(end_of(pid), Exit::Code(0));
    assert_eq!(scratch.read_output(), format!("{pid} {pid} {pid} C\n"));
}

#[test]
fn a_private_tmp_is_the_jobs_alone() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let private = Path::new("/var/tmp").join(scratch.dir.file_name().expect("name"));
    fs::create_dir(&private).expect("mkdir");
    fs::set_permissions(&private, fs::Permissions::from_mode(0o1777)).expect("chmod");
    // Other tests mount their own elsewhere meanwhile.
    let is_of_this =
        |line: &&str| line.contains(" /tmp ") || line.contains(&*private.to_string_lossy());
    let mounts = || {
        let all = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        all.lines()
            .filter(is_of_this)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let mounts_before = mounts();
    let output = fs::File::create(scratch.output()).expect("create");
    let marker = format!("/tmp/gsys-marker-{}", std::process::id());
    let mut spec = scratch.shell(&format!(
        "echo mine > {marker}; ls /tmp; grep ' /tmp ' /proc/self/mountinfo"
    ));
    spec.cwd = "/".into();
    spec.stdout = Stdio::Fd(output.as_fd());
    spec.identity = user_identity();
    spec.binds = vec![Bind {
        source: private.clone(),
        target: "/tmp".into(),
    }];
    let exit = finish(&spec);
    let inside = fs::read_to_string(private.join(marker.trim_start_matches("/tmp/")));
    fs::remove_dir_all(&private).expect("clean up");
    assert_eq!(exit, Exit::Code(0), "{}", scratch.read_output());
    assert_eq!(inside.expect("it lies in the job's directory"), "mine\n");
    assert!(!Path::new(&marker).exists(), "and not in the node's /tmp");
    assert!(
        scratch.read_output().contains("nosuid,nodev"),
        "{}",
        scratch.read_output()
    );
    assert_eq!(mounts(), mounts_before);
}

#[test]
fn a_private_tmp_stays_private_where_the_nodes_mounts_are_shared() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    assert!(passes_after(
        &scratch,
        "true",
        "launch::a_private_tmp_is_the_jobs_alone"
    ));
}

#[test]
fn a_terminal_becomes_the_controlling_one() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let pty = match nix::pty::openpty(None, None) {
        Ok(pty) => pty,
        Err(e) => return not_run(&format!("needs a pty: {e}")).unwrap_or(()),
    };
    let mut spec = scratch.shell("echo to the terminal > /dev/tty && echo it has one >&2");
    let output = fs::File::create(scratch.output()).expect("create");
    spec.stdin = Stdio::Fd(pty.slave.as_fd());
    spec.stdout = Stdio::Fd(pty.slave.as_fd());
    spec.stderr = Stdio::Fd(output.as_fd());
    spec.controlling_terminal = true;
    assert_eq!(finish(&spec), Exit::Code(0));
    assert_eq!(scratch.read_output(), "it has one\n");
    let mut text = [0; 64];
    let n = nix::unistd::read(&pty.master, &mut text).expect("read");
    assert!(String::from_utf8_lossy(&text[..n]).starts_with("to the terminal"));
}

#[test]
fn an_output_that_blocks_does_not_block_the_supervisor() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let fifo = scratch.dir.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("mkfifo");
    let mut spec = scratch.shell("echo through");
    spec.stdout = Stdio::Open {
        path: fifo.clone(),
        mode: OpenMode::Append,
    };
    let launching = spawn(&spec).expect("fork");
    let ready = |millis: u16| {
        let mut fds = [PollFd::new(launching.status_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(millis)).expect("poll") > 0
    };
    assert!(!ready(100), "nobody reads the FIFO yet");
    let reader = std::thread::spawn(move || fs::read_to_string(fifo));
    assert!(ready(15_000));
    let launched = launching.finish().expect("started");
    assert_eq!(end_of(launched.pid), Exit::Code(0));
    assert_eq!(reader.join().expect("thread").expect("read"), "through\n");
}

#[test]
fn a_signal_ends_a_process_that_waits_for_its_input() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let fifo = scratch.dir.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("mkfifo");
    let mut spec = scratch.shell("echo started");
    spec.stdin = Stdio::Open {
        path: fifo,
        mode: OpenMode::Read,
    };
    let launching = spawn(&spec).expect("fork");
    process::pidfd_signal(launching.pidfd(), libc::SIGTERM).expect("signal");
    let launched = launching
        .finish()
        .expect("one that was killed on the way counts as started");
    assert_eq!(end_of(launched.pid), Exit::Signal(libc::SIGTERM, false));
    assert_eq!(scratch.read_output(), "");
}

#[test]
fn the_pidfd_says_when_the_process_has_ended() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let launched = launch(&scratch.shell("exec sleep 1000")).expect("start");
    let ended = |millis: u16| {
        let mut fds = [PollFd::new(launched.pidfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(millis)).expect("poll") > 0
    };
    assert!(!ended(20));
    assert_eq!(process::try_reap(launched.pid).expect("wait"), None);
    process::pidfd_signal(launched.pidfd.as_fd(), libc::SIGTERM).expect("signal");
    assert!(ended(15_000));
    assert_eq!(end_of(launched.pid), Exit::Signal(libc::SIGTERM, false));
    let late = process::pidfd_signal(launched.pidfd.as_fd(), libc::SIGTERM).expect_err("reaped");
    assert_eq!(late.raw_os_error(), Some(libc::ESRCH));
}

#[test]
fn the_capabilities_of_a_confined_root_job_are_gone_for_good() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let mut spec = scratch.shell("grep ^Cap /proc/self/status");
    spec.confine_root = true;
    assert_eq!(finish(&spec), Exit::Code(0));
    let denied = gsys::caps::DENIED_TO_ROOT_JOBS
        .iter()
        .fold(0u64, |bits, cap| bits | 1 << cap);
    let text = scratch.read_output();
    assert_eq!(text.lines().count(), 5, "{text}");
    for line in text.lines() {
        let bits = u64::from_str_radix(line.split_whitespace().last().expect("mask"), 16)
            .expect("hexadecimal");
        assert_eq!(bits & denied, 0, "{line}");
    }
    assert!(
        text.lines()
            .any(|l| l.starts_with("CapEff") && !l.ends_with("0000000000000000")),
        "the rest stays: {text}"
    );
}

#[test]
fn inherited_capabilities_do_not_come_back_at_exec() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    assert!(passes_after(
        &scratch,
        "true",
        "launch::child_with_inheritable_capabilities"
    ));
}

/// Not a test by itself: run as a daemon whose capabilities are inheritable, as some container runtimes make them.
#[test]
fn child_with_inheritable_capabilities() {
    if std::env::var_os("GSYS_TEST_AGAIN").is_none() {
        return;
    }
    // struct __user_cap_header_struct, then effective, permitted and inheritable of capabilities 0-31 and 32-63.
    let (header, mut sets) = ([0x2008_0522u32, 0], [0u32; 6]);
    // SAFETY: both arrays have the layout of capability version 3 and outlive the calls.
    unsafe {
        assert_eq!(
            libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()),
            0
        );
        (sets[2], sets[5]) = (sets[1], sets[4]);
        assert_eq!(
            libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()),
            0
        );
    }
    the_capabilities_of_a_confined_root_job_are_gone_for_good();
}
