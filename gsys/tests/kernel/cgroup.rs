//! Limits, use, killing and removal of the cgroups of a run.

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gsys::cgroup::{
    CgroupError, CgroupRoot, Controller, Hierarchy, Limits, RunCgroup, Trees, remove_all,
};
use gsys::device_fence::{DeviceRule, FenceRules, attach_run};
use gsys::process::{self, Exit};

use crate::scratch::{Scratch, again_argv, end_of, exists, not_run, start_in, until};

const MIB: u64 = 1 << 20;

/// A kill is done when nothing is left; so long may it take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// The job's cgroup of a live run in the trees that have it: beside the supervisor's in one, the run's own in the others.
fn job_dirs(scratch: &Scratch, run: &RunCgroup) -> Vec<PathBuf> {
    let mounts = scratch.root.trees().mounts();
    let dirs = mounts.map(|mount| {
        let (own, nested) = (mount.join(run.rel()), mount.join(run.rel()).join("job"));
        if nested.is_dir() { nested } else { own }
    });
    let there: Vec<PathBuf> = dirs.filter(|dir| dir.is_dir()).collect();
    assert!(!there.is_empty(), "a run has a cgroup");
    there
}

fn assert_killed(run: &RunCgroup) {
    run.kill().expect("kill");
    assert!(
        run.wait_empty(PATIENCE).expect("wait"),
        "left after the kill: {:?}",
        run.job_pids()
    );
}

#[test]
fn a_run_has_cgroups_in_the_trees_it_needs_and_none_after_removal() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let trees = scratch.root.trees();
    let dirs = job_dirs(&scratch, &run);
    let in_tree = |mount: &std::path::Path| dirs.iter().any(|dir| dir.starts_with(mount));
    for controller in [Controller::Cpu, Controller::Memory, Controller::Pids] {
        assert!(
            trees.v1_mount(controller).is_none_or(in_tree),
            "{controller:?}: {dirs:?}"
        );
    }
    assert!(trees.v2.as_deref().is_none_or(in_tree), "{dirs:?}");
    let with_sup = |dir: &&PathBuf| dir.with_file_name("sup").is_dir();
    assert_eq!(dirs.iter().filter(with_sup).count(), 1, "one supervisor");
    assert_eq!(scratch.root.runs().expect("list"), ["run_1_1"]);
    assert_eq!(
        RunCgroup::open(&scratch.root, "run_1_1")
            .expect("open")
            .rel(),
        run.rel()
    );
    assert!(
        RunCgroup::open(&scratch.root, "run_2_1")
            .expect_err("never made")
            .is_not_found()
    );
    run.remove().expect("remove");
    run.remove().expect("remove what is gone");
    assert!(trees.mounts().all(|mount| !exists(&mount.join(run.rel()))));
    assert!(run.is_empty().expect("a cgroup that is gone is empty"));
}

#[test]
fn a_name_cannot_climb_out_of_the_subtree() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    for name in ["..", "a/b", "", ".hidden", "a\n"] {
        let refused = RunCgroup::create(&scratch.root, name, &Limits::default());
        assert!(matches!(refused, Err(CgroupError::Name(_))), "{name:?}");
        assert!(
            matches!(remove_all(name), Err(CgroupError::Name(_))),
            "{name:?}"
        );
    }
}

#[test]
fn a_job_that_holds_processes_is_not_taken_over() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let child = start_in(&run, scratch.shell("exec sleep 1000")).expect("start");
    let refused =
        RunCgroup::create(&scratch.root, "run_1_1", &Limits::default()).expect_err("occupied");
    assert!(
        matches!(refused, CgroupError::Occupied { pids: 1, .. }),
        "{refused}"
    );
    assert_eq!(
        run.job_pids().expect("list"),
        [child.pid],
        "and the live run is untouched"
    );
    assert!(
        !run.remove_left() && run.job_pids().expect("list") == [child.pid],
        "what is occupied stays"
    );
    assert!(matches!(run.remove(), Err(CgroupError::Occupied { .. })));
    assert_killed(&run);
    end_of(child.pid);
}

#[test]
fn a_prepare_that_is_repeated_starts_from_nothing() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let no_full = DeviceRule {
        major: 1,
        minor: Some(7),
    };
    let rules = FenceRules {
        deny: vec![no_full],
        ..FenceRules::default()
    };
    attach_run(&run, &rules).expect("attach");
    assert_ne!(scratch.run_shell_in(&run, ": < /dev/full"), Exit::Code(0));
    let again = scratch.run(&Limits::default());
    assert_eq!(again.usage().expect("usage").cpu_user_micros, 0);
    assert_eq!(
        scratch.run_shell_in(&again, ": < /dev/full"),
        Exit::Code(0),
        "the old fence is gone"
    );
}

#[test]
fn a_live_supervisor_keeps_its_run_from_being_made_again() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let supervisor = gsys::launch::launch(&scratch.shell("exec sleep 1000")).expect("start");
    run.attach_sup(supervisor.pid).expect("attach");
    let dirs = job_dirs(&scratch, &run);
    let refused = RunCgroup::create(&scratch.root, "run_1_1", &Limits::default());
    assert!(
        matches!(refused, Err(CgroupError::Occupied { pids: 1, .. })),
        "{refused:?}"
    );
    assert_eq!(
        job_dirs(&scratch, &run),
        dirs,
        "and nothing of it was taken"
    );
    let alone = run.remove_with_supervisor(std::time::Duration::ZERO);
    assert!(
        matches!(alone, Err(CgroupError::Occupied { pids: 1, .. })),
        "{alone:?}"
    );
    // Zombies do not count, so nobody needs to reap it for that.
    run.remove_with_supervisor(PATIENCE)
        .expect("a supervisor nobody has a use for is killed");
    end_of(supervisor.pid);
}

#[test]
fn supervisor_and_job_sit_in_siblings() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let child = gsys::launch::launch(&scratch.shell("exec sleep 1000")).expect("start");
    run.attach_sup(child.pid).expect("attach");
    assert!(
        run.is_empty().expect("look"),
        "a supervisor is no job process"
    );
    run.kill().expect("kill");
    assert_eq!(
        process::try_reap(child.pid).expect("wait"),
        None,
        "killing the job leaves the supervisor"
    );
    run.attach_job(child.pid).expect("attach");
    assert!(!run.is_empty().expect("look"));
    assert_killed(&run);
    assert_eq!(end_of(child.pid), Exit::Signal(9, false));
}

#[test]
fn a_daemonized_job_is_killed() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let script =
        "setsid sh -c 'sleep 1000 & sleep 1000 & exec sleep 1000' >/dev/null 2>&1 & exit 0";
    assert_eq!(scratch.run_shell_in(&run, script), Exit::Code(0));
    until("three orphans in sessions of their own", || {
        run.job_pids().expect("list").len() == 3
    });
    assert_killed(&run);
}

#[test]
fn a_job_that_forks_without_end_is_killed() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    kill_a_forking_job(&scratch);
}

fn kill_a_forking_job(scratch: &Scratch) {
    let run = scratch.run(&Limits {
        pids_max: Some(300),
        ..Limits::default()
    });
    let script =
        "f() { (trap '' TERM HUP; while :; do (sleep 0.05 &) 2>/dev/null; done) & }; f; f; wait";
    let child = start_in(&run, scratch.shell(script)).expect("start");
    until("many processes", || {
        run.job_pids().expect("list").len() > 20
    });
    assert_killed(&run);
    end_of(child.pid);
    run.remove().expect("remove");
}

#[test]
fn without_a_v2_tree_a_forking_and_a_frozen_job_are_killed_too() {
    let trees = Trees::detect_v1_alone().expect("mountinfo");
    let freezer = trees.v1_mount(Controller::Freezer).map(ToOwned::to_owned);
    let Some(scratch) = Scratch::in_trees(trees) else {
        return;
    };
    assert_eq!(scratch.root.hierarchy(), Hierarchy::V1);
    kill_a_forking_job(&scratch);
    let Some(freezer) = freezer else {
        return not_run("needs the v1 freezer").unwrap_or(());
    };
    let run = scratch.run(&Limits::default());
    let child = start_in(&run, scratch.shell("exec sleep 1000")).expect("start");
    run.freeze(true).expect("freeze");
    let state = freezer.join(run.rel()).join("job/freezer.state");
    until("frozen", || {
        fs::read_to_string(&state).expect("state").trim() == "FROZEN"
    });
    assert_killed(&run);
    assert_eq!(end_of(child.pid), Exit::Signal(9, false));
    let usage = run.usage().expect("usage without v2");
    assert!(usage.memory_peak_bytes > 0, "{usage:?}");
}

#[test]
fn a_stopped_and_a_frozen_job_are_killed_and_the_cgroup_works_again() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let Some(v2) = scratch.root.trees().v2.clone() else {
        return not_run("needs a v2 tree").unwrap_or(());
    };
    let run = scratch.run(&Limits::default());
    let job = v2.join(run.rel()).join("job");
    let frozen = || {
        fs::read_to_string(job.join("cgroup.events"))
            .expect("events")
            .contains("frozen 1")
    };
    // A root job that is not confined can freeze itself; it also nests a cgroup and freezes that.
    let script = format!(
        "mkdir {0}/nested; (echo 0 > {0}/nested/cgroup.procs; exec sleep 1000) & sleep 0.1; \
         echo 1 > {0}/nested/cgroup.freeze; kill -STOP $$; :",
        job.display()
    );
    let child = start_in(&run, scratch.shell(&script)).expect("start");
    until("a nested cgroup that is frozen", || {
        fs::read_to_string(job.join("nested/cgroup.freeze")).is_ok_and(|text| text.trim() == "1")
    });
    run.freeze(true).expect("freeze");
    until("all frozen", frozen);
    assert_killed(&run);
    assert_eq!(end_of(child.pid), Exit::Signal(9, false));
    assert_eq!(
        scratch.run_shell_in(&run, "echo alive"),
        Exit::Code(0),
        "the next process is not born frozen"
    );
    assert_eq!(
        fs::read_to_string(job.join("nested/cgroup.freeze"))
            .expect("nested")
            .trim(),
        "0"
    );
    run.remove().expect("nested cgroups go too");
}

#[test]
fn a_suspended_job_stands_still_and_goes_on() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let child = start_in(&run, scratch.shell("while :; do :; done")).expect("start");
    let used = || run.usage().expect("usage").cpu_user_micros;
    until("it computes", || used() > 0);
    run.freeze(true).expect("freeze");
    let stat = format!("/proc/{}/wchan", child.pid);
    let mut last = used();
    until("it stands still", || {
        std::thread::sleep(Duration::from_millis(50));
        let now = used();
        std::mem::replace(&mut last, now) == now
    });
    assert!(exists(&PathBuf::from(stat)), "and is still there");
    run.freeze(false).expect("thaw");
    until("it computes again", || used() > last);
    assert_killed(&run);
    end_of(child.pid);
}

#[test]
fn a_process_that_left_one_tree_is_killed_through_the_others() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    if scratch.root.hierarchy() != Hierarchy::Hybrid {
        return not_run("needs a hybrid machine").unwrap_or(());
    }
    let run = scratch.run(&Limits::default());
    let v2 = scratch.root.trees().v2.clone().expect("hybrid has one");
    let script = format!(
        "echo $$ > {}/cgroup.procs && echo out && exec sleep 1000",
        v2.display()
    );
    let child = start_in(&run, scratch.shell(&script)).expect("start");
    until("it is out of the v2 tree", || {
        scratch.read_output().contains("out")
    });
    assert!(!run.is_empty().expect("look"), "the v1 trees still know it");
    assert_killed(&run);
    assert_eq!(end_of(child.pid), Exit::Signal(9, false));
}

#[test]
fn nested_cgroups_of_a_job_are_killed_and_removed() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let dirs = job_dirs(&scratch, &run);
    let enter = |dir: &PathBuf| {
        let dir = dir.display();
        format!("mkdir -p {dir}/a/b; echo 0 > {dir}/a/b/cgroup.procs;")
    };
    let script: String =
        dirs.iter().map(enter).collect::<String>() + " echo nested; exec sleep 1000";
    let child = start_in(&run, scratch.shell(&script)).expect("start");
    until("it has nested itself", || {
        scratch.read_output().contains("nested")
    });
    assert_eq!(scratch.read_output().trim(), "nested", "without an error");
    assert!(!run.is_empty().expect("look"));
    assert_killed(&run);
    end_of(child.pid);
    run.remove().expect("remove");
    assert!(dirs.iter().all(|dir| !exists(dir)));
}

#[test]
fn a_memory_hog_is_killed_and_counted() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    if !scratch.root.supports(Controller::Memory) {
        return not_run("needs the memory controller").unwrap_or(());
    }
    let run = scratch.run(&Limits {
        memory_bytes: Some(24 * MIB),
        ..Limits::default()
    });
    assert_eq!(run.usage().expect("usage").oom_kills, 0);
    // tail keeps a line in memory until it ends, and zeros never end a line.
    // The pipeline offers itself: under load the kernel may otherwise take the shell.
    let hog =
        "(echo 1000 > /proc/self/oom_score_adj; head -c 200M /dev/zero | tail -n 1 | wc -c); :";
    let exit = scratch.run_shell_in(&run, hog);
    assert_eq!(exit, Exit::Code(0), "the exit status says nothing of it");
    let usage = run.usage().expect("usage");
    assert!(usage.oom_kills >= 1, "{usage:?}");
    assert!(
        usage.memory_peak_bytes > 16 * MIB && usage.memory_peak_bytes <= 24 * MIB,
        "{usage:?}"
    );
}

#[test]
fn the_limit_of_memory_can_be_raised_and_lowered() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    if !scratch.root.supports(Controller::Memory) {
        return not_run("needs the memory controller").unwrap_or(());
    }
    let run = scratch.run(&Limits {
        memory_bytes: Some(64 * MIB),
        ..Limits::default()
    });
    for mib in [256, 32, 512] {
        run.set_limits(&Limits {
            memory_bytes: Some(mib * MIB),
            ..Limits::default()
        })
        .expect("set");
        let files = [
            "memory.limit_in_bytes",
            "memory.memsw.limit_in_bytes",
            "memory.max",
        ];
        let dirs = job_dirs(&scratch, &run);
        let values: Vec<String> = dirs
            .iter()
            .flat_map(|dir| files.map(|file| fs::read_to_string(dir.join(file))))
            .filter_map(Result::ok)
            .collect();
        assert!(!values.is_empty());
        assert!(
            values
                .iter()
                .all(|value| value.trim() == (mib * MIB).to_string()),
            "{values:?}"
        );
    }
}

#[test]
fn the_pids_limit_holds() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    if !scratch.root.supports(Controller::Pids) {
        return not_run("needs the pids controller").unwrap_or(());
    }
    let run = scratch.run(&Limits {
        pids_max: Some(8),
        ..Limits::default()
    });
    let script = "i=0; while [ $i -lt 30 ]; do sleep 1000 & i=$((i+1)); done; wait";
    let child = start_in(&run, scratch.shell(script)).expect("start");
    until("a fork is refused", || {
        scratch.read_output().to_lowercase().contains("fork")
    });
    assert!((1..=8).contains(&run.job_pids().expect("list").len()));
    assert_killed(&run);
    end_of(child.pid);
}

#[test]
fn use_is_counted_after_the_processes_are_gone() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let before = run.usage().expect("usage");
    assert_eq!(before.cpu_user_micros + before.cpu_system_micros, 0);
    scratch.run_shell_in(&run, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done");
    let usage = run.usage().expect("usage");
    assert!(usage.cpu_user_micros > 10_000, "{usage:?}");
    assert!(
        usage.cpu_user_micros < 60_000_000,
        "microseconds, not nanoseconds: {usage:?}"
    );
    if scratch.root.supports(Controller::Memory) {
        assert!(usage.memory_peak_bytes > 0, "{usage:?}");
    }
}

#[test]
fn a_cpu_set_confines_the_job_and_a_weight_is_on_the_run() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    if !scratch.root.supports(Controller::Cpuset) || !scratch.root.supports(Controller::Cpu) {
        return not_run("needs the cpu and cpuset controllers").unwrap_or(());
    }
    let (cpus, mems) = scratch.root.cpu_bounds().expect("bounds");
    assert!(cpus.contains(&0) && mems.contains(&0), "{cpus:?} {mems:?}");
    let run = scratch.run(&Limits {
        cpu_set: Some(vec![0]),
        mem_set: vec![0],
        cpu_millis: Some(2000),
        ..Limits::default()
    });
    scratch.run_shell_in(&run, "grep Cpus_allowed_list /proc/self/status");
    assert_eq!(scratch.read_output().split_whitespace().last(), Some("0"));
    scratch.run_shell_in(&run, "grep Mems_allowed_list /proc/self/status");
    assert_eq!(scratch.read_output().split_whitespace().last(), Some("0"));
    // Another daemon reads it off the kernel; a run without CPUs of its own has none.
    let found = RunCgroup::open_rel(run.rel()).expect("open");
    assert_eq!(found.cpu_set().expect("read"), Some(vec![0]));
    for frozen in [true, false] {
        run.freeze(frozen).expect("freeze");
        assert_eq!(found.is_frozen().expect("read"), frozen);
    }
    let plain = RunCgroup::create(&scratch.root, "run_8_1", &Limits::default()).expect("create");
    assert_eq!(plain.cpu_set().expect("read"), None);
    plain.remove().expect("remove");
    let runs = scratch
        .root
        .trees()
        .mounts()
        .map(|mount| mount.join(run.rel()));
    let weights: Vec<String> = runs
        .flat_map(|dir| ["cpu.shares", "cpu.weight"].map(|file| fs::read_to_string(dir.join(file))))
        .filter_map(Result::ok)
        .collect();
    let expected = if scratch.root.hierarchy() == Hierarchy::V2 {
        "20\n"
    } else {
        "2048\n"
    };
    assert_eq!(weights, [expected]);
}

#[test]
fn a_limit_that_cannot_be_set_leaves_nothing_behind() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    if !scratch.root.supports(Controller::Cpuset) {
        return not_run("needs the cpuset controller").unwrap_or(());
    }
    let limits = Limits {
        cpu_set: Some(vec![100_000]),
        ..Limits::default()
    };
    let refused = RunCgroup::create(&scratch.root, "run_9_1", &limits).expect_err("no such CPU");
    assert!(
        refused.to_string().contains("cpuset.cpus") && refused.to_string().contains("100000"),
        "{refused}"
    );
    assert!(scratch.root.runs().expect("list").is_empty());
}

#[test]
fn removing_a_tag_kills_and_removes_all_its_nodes() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let tag = scratch
        .root
        .rel()
        .file_name()
        .expect("tag")
        .to_str()
        .expect("text")
        .to_owned();
    let mut children = Vec::new();
    for node in ["n1", "n2"] {
        let root = CgroupRoot::open(&format!("{tag}/{node}")).expect("node's subtree");
        let run = RunCgroup::create(&root, "run_1_1", &Limits::default()).expect("run");
        children.push(start_in(&run, scratch.shell("sleep 1000 & sleep 1000")).expect("start"));
    }
    remove_all(&tag).expect("remove");
    for child in children {
        assert_eq!(end_of(child.pid), Exit::Signal(9, false));
    }
    assert!(
        scratch
            .root
            .trees()
            .mounts()
            .all(|mount| !exists(&mount.join(scratch.root.rel())))
    );
    remove_all(&tag).expect("once more is no error");
}

#[test]
fn the_end_of_the_last_process_wakes_a_poll() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let child = start_in(&run, scratch.shell("sleep 0.3")).expect("start");
    let Some(events) = run.events_file().expect("open") else {
        return not_run("needs a v2 tree").unwrap_or(());
    };
    assert!(!run.is_empty().expect("look"));
    // The kernel compares with what the reader has read last.
    let mut text = String::new();
    std::io::Read::read_to_string(&mut &events, &mut text).expect("read");
    let from = Instant::now();
    let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
    assert_eq!(
        poll(&mut fds, PollTimeout::from(15_000u16)).expect("poll"),
        1,
        "after {:?}",
        from.elapsed()
    );
    assert!(run.wait_empty(PATIENCE).expect("wait"));
    end_of(child.pid);
}

#[test]
fn a_delegated_service_works_in_its_own_cgroup() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    if scratch.root.hierarchy() != Hierarchy::V2 {
        return not_run("needs pure v2").unwrap_or(());
    }
    let service = scratch
        .root
        .trees()
        .v2
        .clone()
        .expect("pure v2")
        .join(scratch.root.rel())
        .join("x.service");
    fs::create_dir(&service).expect("mkdir");
    let path = std::ffi::CString::new(service.to_str().expect("text")).expect("no NUL");
    // SAFETY: strings are NUL-terminated and the value's length is given. systemd marks a delegated cgroup like this.
    let marked = unsafe {
        libc::setxattr(
            path.as_ptr(),
            c"trusted.delegate".as_ptr(),
            c"1".as_ptr().cast(),
            1,
            0,
        )
    };
    assert_eq!(marked, 0, "setxattr");
    let mut spec = scratch.shell("");
    let script = format!("echo 0 > {}/cgroup.procs && exec \"$@\"", service.display());
    spec.argv = ["/bin/sh", "-c", &script, "sh"]
        .map(Into::into)
        .into_iter()
        .chain(again_argv("cgroup::child_that_is_a_service"))
        .collect();
    spec.env
        .push(("GSYS_TEST_SERVICE".into(), service.clone().into()));
    let child = gsys::launch::launch(&spec).expect("start");
    assert_eq!(
        end_of(child.pid),
        Exit::Code(0),
        "{}",
        scratch.read_output()
    );
    assert!(
        service.join("gpupool/run_1_1/job").is_dir(),
        "runs lie in the service's cgroup"
    );
}

/// Not a test by itself: the daemon of `a_delegated_service_works_in_its_own_cgroup`.
#[test]
fn child_that_is_a_service() {
    let Some(service) = std::env::var_os("GSYS_TEST_SERVICE").map(PathBuf::from) else {
        return;
    };
    let root = CgroupRoot::open("gpupool").expect("open in the delegated cgroup");
    assert!(service.join("gpupool").is_dir());
    let own = fs::read_to_string("/proc/self/cgroup").expect("own cgroup");
    assert!(
        own.trim_end().ends_with("x.service/daemon"),
        "out of the way of the controllers: {own}"
    );
    let limits = Limits {
        memory_bytes: Some(64 * MIB),
        pids_max: Some(10),
        ..Limits::default()
    };
    RunCgroup::create(&root, "run_1_1", &limits).expect("limits are delegated");
    let again = CgroupRoot::open("gpupool").expect("after a restart");
    assert_eq!(again.rel(), root.rel());
}

#[test]
fn nobody_removes_the_subtree_they_are_in() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let mut spec = scratch.shell("");
    spec.argv = again_argv("cgroup::child_inside_a_subtree");
    let tag = scratch.root.rel().file_name().expect("tag").to_owned();
    spec.env.push(("GSYS_TEST_TAG".into(), tag));
    let child = start_in(&run, spec).expect("start");
    assert_eq!(
        end_of(child.pid),
        Exit::Code(0),
        "{}",
        scratch.read_output()
    );
    assert_eq!(scratch.root.runs().expect("list"), ["run_1_1"]);
}

/// Not a test by itself: run inside the subtree it tries to remove.
#[test]
fn child_inside_a_subtree() {
    let Ok(tag) = std::env::var("GSYS_TEST_TAG") else {
        return;
    };
    let refused = remove_all(&tag);
    assert!(
        matches!(refused, Err(CgroupError::Occupied { .. })),
        "{refused:?}"
    );
}

#[test]
fn a_signal_reaches_every_process_of_the_job_and_the_supervisor_not() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let supervisor = gsys::launch::launch(&scratch.shell("exec sleep 1000")).expect("start");
    run.attach_sup(supervisor.pid).expect("attach");
    let script = "setsid sh -c 'trap \"echo child warned\" USR1; echo up; while :; do sleep 0.05; done' & \
                  trap 'echo parent warned' USR1; echo up; while :; do sleep 0.05; done";
    let mut spec = scratch.shell(script);
    let mode = gsys::launch::OpenMode::Append;
    spec.stdout = gsys::launch::Stdio::Open {
        path: scratch.output(),
        mode,
    };
    let child = start_in(&run, spec).expect("start");
    until("both are up", || {
        scratch.read_output().matches("up").count() == 2
    });
    run.signal(libc::SIGUSR1).expect("signal");
    let heard = |who: &str| scratch.read_output().contains(who);
    until("both were warned", || {
        heard("child warned") && heard("parent warned")
    });
    assert_eq!(
        process::try_reap(supervisor.pid).expect("wait"),
        None,
        "USR1 would have ended it"
    );
    assert_killed(&run);
    end_of(child.pid);
    process::pidfd_signal(supervisor.pidfd.as_fd(), libc::SIGKILL).expect("signal");
    end_of(supervisor.pid);
}
