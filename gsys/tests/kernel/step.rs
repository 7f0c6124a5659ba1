//! Cgroups of steps below their run's job: use, limit, end and removal, on every kind of machine.

use std::fs;
use std::os::fd::AsFd;
use std::time::Duration;

use gsys::cgroup::{Controller, Hierarchy, Limits, RunCgroup, StepCgroup, Trees};
use gsys::device_fence::{DeviceRule, FenceRules, attach_run};
use gsys::launch::{LaunchSpec, LaunchedProcess, launch};
use gsys::process::{self, Exit};

use crate::scratch::{Scratch, end_of, exists, not_run, start_in, until};

const MIB: u64 = 1 << 20;
/// Keeps zeros that never end a line, and offers itself to the kernel.
const HOG: &str =
    "(echo 1000 > /proc/self/oom_score_adj; head -c 200M /dev/zero | tail -n 1 | wc -c); :";

fn start_in_step(scratch: &Scratch, step: &StepCgroup, script: &str) -> LaunchedProcess {
    let join = step.join_fds().expect("open cgroup.procs");
    launch(&LaunchSpec {
        join: Some(&join),
        ..scratch.shell(script)
    })
    .expect("start")
}

fn run_in_step(scratch: &Scratch, step: &StepCgroup, script: &str) -> Exit {
    end_of(start_in_step(scratch, step, script).pid)
}

fn remove(step: &StepCgroup) {
    until("the removal of a step's cgroup", || step.remove_left());
}

/// A run whose job has a process, as that of a batch script.
fn run_with_batch(scratch: &Scratch, limits: &Limits) -> (RunCgroup, LaunchedProcess) {
    let run = scratch.run(limits);
    let batch = start_in(&run, scratch.shell("exec sleep 1000")).expect("start");
    (run, batch)
}

/// Everything is gone without anybody's help.
fn end(run: &RunCgroup, batch: &LaunchedProcess) {
    run.kill().expect("kill");
    assert!(run.wait_empty(Duration::from_secs(10)).expect("wait"));
    end_of(batch.pid);
    run.remove().expect("remove");
}

fn measure_a_step(scratch: &Scratch) {
    let (run, batch) = run_with_batch(scratch, &Limits::default());
    let step = run.begin_step("step_0", None).expect("make");
    let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; head -c 30M /dev/zero | tail -n 1 | wc -c; exit 7";
    assert_eq!(run_in_step(scratch, &step, script), Exit::Code(7));
    let used = step.usage().expect("usage");
    assert!(
        used.usage.cpu_user_micros + used.usage.cpu_system_micros > 0 && !used.limit_reached,
        "{used:?}"
    );
    if run.limits_memory() {
        assert!(
            used.usage.memory_peak_bytes > 20 * MIB && used.usage.oom_kills == 0,
            "{used:?}"
        );
    }
    assert!(
        step.is_empty().expect("look") && !run.is_empty().expect("look"),
        "the batch process is not the step's"
    );
    let seen = run.steps();
    assert!(
        matches!(&seen[..], [(name, usage)] if name == "step_0" && *usage == used.usage),
        "{seen:?}"
    );
    // What comes after is the job's and not the step's.
    let more = start_in(
        &run,
        scratch.shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"),
    )
    .expect("start in the job");
    assert_eq!(end_of(more.pid), Exit::Code(0));
    assert_eq!(
        step.usage().expect("usage").usage.cpu_user_micros,
        used.usage.cpu_user_micros
    );
    remove(&step);
    assert_eq!(run.steps(), []);
    let job = run.usage().expect("usage");
    assert!(
        job.cpu_user_micros >= used.usage.cpu_user_micros,
        "{job:?} with {used:?}"
    );
    assert!(
        job.memory_peak_bytes >= used.usage.memory_peak_bytes,
        "{job:?} with {used:?}"
    );
    assert!(
        run.job_pids().expect("list").contains(&batch.pid),
        "it is found where it is now"
    );
    end(&run, &batch);
}

#[test]
fn a_step_is_measured_apart_from_the_batch_script_and_counts_for_its_job() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    measure_a_step(&scratch);
}

#[test]
fn without_a_v2_tree_a_step_is_measured_and_killed_too() {
    let trees = Trees::detect_v1_alone().expect("mountinfo");
    let Some(scratch) = Scratch::in_trees(trees) else {
        return;
    };
    measure_a_step(&scratch);
    kill_a_step(&scratch);
}

fn kill_a_step(scratch: &Scratch) {
    let (run, batch) = run_with_batch(
        scratch,
        &Limits {
            pids_max: scratch.root.supports(Controller::Pids).then_some(300),
            ..Limits::default()
        },
    );
    let [one, other] = ["step_0", "step_1"].map(|name| run.begin_step(name, None).expect("make"));
    let bystander = start_in_step(scratch, &other, "exec sleep 1000");
    // Orphans in sessions of their own that fork on.
    let script = "setsid sh -c 'f() { (trap \"\" TERM HUP; while :; do (sleep 0.05 &) 2>/dev/null; done) & }; f; f; wait' & exec sleep 1000";
    let main = start_in_step(scratch, &one, script);
    until("many processes", || {
        run.job_pids().expect("list").len() > 20
    });
    assert!(!one.remove_left(), "what is occupied stays");
    one.kill().expect("kill");
    assert_eq!(end_of(main.pid), Exit::Signal(9, false));
    until("nothing in the step", || one.is_empty().expect("look"));
    remove(&one);
    let mut left = run.job_pids().expect("list");
    left.sort_unstable();
    let mut want = [batch.pid, bystander.pid];
    want.sort_unstable();
    assert_eq!(left, want, "nobody else was killed");
    run.kill().expect("kill");
    assert_eq!(end_of(bystander.pid), Exit::Signal(9, false));
    end(&run, &batch);
}

#[test]
fn the_end_of_a_step_takes_its_orphans_and_no_other_process() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    kill_a_step(&scratch);
}

#[test]
fn a_step_at_its_limit_is_told_from_one_at_the_limit_of_its_job() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    if !scratch.root.supports(Controller::Memory) {
        return not_run("needs the memory controller").unwrap_or(());
    }
    let (run, batch) = run_with_batch(
        &scratch,
        &Limits {
            memory_bytes: Some(64 * MIB),
            ..Limits::default()
        },
    );
    for (name, limit_mib, at_own) in [("step_0", 24, true), ("step_1", 500, false)] {
        let step = run.begin_step(name, Some(limit_mib * MIB)).expect("make");
        assert_eq!(
            run_in_step(&scratch, &step, HOG),
            Exit::Code(0),
            "its main process was not the one"
        );
        let used = step.usage().expect("usage");
        assert!(
            used.usage.oom_kills >= 1 && used.limit_reached == at_own,
            "{name}: {used:?}"
        );
        // A charge that its parent refuses is counted for a moment.
        assert!(
            used.usage.memory_peak_bytes <= (limit_mib.min(64) + 1) * MIB,
            "{name}: {used:?}"
        );
        let kills = run.usage().expect("usage").oom_kills;
        assert!(kills >= used.usage.oom_kills, "its job counts them too");
        remove(&step);
        let kept = run.usage().expect("usage").oom_kills;
        assert_eq!(
            kept,
            if run.counts_kills_of_removed_steps() {
                kills
            } else {
                0
            }
        );
    }
    let unlimited = run.begin_step("step_2", None).expect("make");
    assert_eq!(run_in_step(&scratch, &unlimited, HOG), Exit::Code(0));
    assert!(!unlimited.usage().expect("usage").limit_reached);
    end(&run, &batch);
}

#[test]
fn the_fence_of_the_job_holds_in_its_steps() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let run = scratch.run(&Limits::default());
    let no_full = DeviceRule {
        major: 1,
        minor: Some(7),
    };
    attach_run(
        &run,
        &FenceRules {
            deny: vec![no_full],
            ..FenceRules::default()
        },
    )
    .expect("attach");
    let step = run.begin_step("step_0", None).expect("make");
    assert_ne!(run_in_step(&scratch, &step, ": < /dev/full"), Exit::Code(0));
    assert_eq!(run_in_step(&scratch, &step, ": < /dev/null"), Exit::Code(0));
}

#[test]
fn a_suspended_job_suspends_its_steps() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let (run, batch) = run_with_batch(&scratch, &Limits::default());
    let step = run.begin_step("step_0", None).expect("make");
    let task = start_in_step(&scratch, &step, "while :; do :; done");
    let used = || step.usage().expect("usage").usage.cpu_user_micros;
    until("it computes", || used() > 0);
    run.freeze(true).expect("freeze");
    let mut last = used();
    until("it stands still", || {
        std::thread::sleep(Duration::from_millis(50));
        let now = used();
        std::mem::replace(&mut last, now) == now
    });
    run.freeze(false).expect("thaw");
    until("it computes again", || used() > last);
    run.kill().expect("kill");
    end_of(task.pid);
    end(&run, &batch);
}

#[test]
fn removing_a_run_removes_what_steps_left() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let (run, batch) = run_with_batch(&scratch, &Limits::default());
    let _left = run.begin_step("step_0", None).expect("make");
    let again = run
        .begin_step("step_0", None)
        .expect("one that is there is taken");
    let task = start_in_step(&scratch, &again, "exec sleep 1000");
    assert!(run.remove().is_err(), "not while a task runs in it");
    run.kill().expect("kill");
    end_of(task.pid);
    end(&run, &batch);
    assert!(
        scratch
            .root
            .trees()
            .mounts()
            .all(|mount| !exists(&mount.join(run.rel())))
    );
}

#[test]
fn a_step_cgroup_that_cannot_be_made_leaves_nothing_and_says_where() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let Some(v2) = scratch.root.trees().v2.clone() else {
        return not_run("only a v2 tree can be told to have no more cgroups").unwrap_or(());
    };
    let (run, batch) = run_with_batch(&scratch, &Limits::default());
    let job = v2.join(run.rel()).join("job");
    fs::write(job.join("cgroup.max.descendants"), "0").expect("no more cgroups");
    let error = run.begin_step("step_0", Some(MIB)).expect_err("no room");
    assert!(error.to_string().contains("making"), "{error}");
    for mount in scratch.root.trees().mounts() {
        assert!(
            !exists(&mount.join(run.rel()).join("step_0"))
                && !exists(&mount.join(run.rel()).join("job/step_0"))
        );
    }
    // The job itself goes on.
    assert_eq!(scratch.run_shell_in(&run, ":"), Exit::Code(0));
    fs::write(job.join("cgroup.max.descendants"), "max").expect("room");
    let step = run.begin_step("step_0", None).expect("make");
    assert_eq!(run_in_step(&scratch, &step, ":"), Exit::Code(0));
    end(&run, &batch);
}

#[test]
fn on_pure_v2_the_first_step_moves_the_batch_script_aside() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    if scratch.root.hierarchy() != Hierarchy::V2 || !scratch.root.supports(Controller::Memory) {
        return not_run("needs pure v2 with the memory controller").unwrap_or(());
    }
    let (run, batch) = run_with_batch(&scratch, &Limits::default());
    let place = || {
        fs::read_to_string(format!("/proc/{}/cgroup", batch.pid))
            .expect("its cgroup")
            .trim()
            .to_owned()
    };
    assert!(
        place().ends_with("/job"),
        "a job without steps costs no more: {}",
        place()
    );
    let step = run.begin_step("step_0", None).expect("make");
    assert!(place().ends_with("/job/batch"), "{}", place());
    remove(&step);
    run.begin_step("step_1", None)
        .expect("nobody has to move again");
    end(&run, &batch);
}

#[test]
fn a_process_from_outside_is_moved_into_a_job_with_steps_and_ends_with_it() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let (run, batch) = run_with_batch(&scratch, &Limits::default());
    let outside = || {
        launch(&scratch.shell("exec sleep 1000"))
            .expect("start")
            .pid
    };
    let (before, after) = (outside(), outside());
    assert!(!scratch.root.holds(before) && scratch.root.holds(batch.pid));
    run.attach_job(before).expect("a job without steps");
    let step = run.begin_step("step_0", None).expect("make");
    run.attach_job(after).expect("a job with steps");
    let pids = run.job_pids().expect("list");
    for pid in [before, after] {
        assert!(pids.contains(&pid) && scratch.root.holds(pid), "{pids:?}");
    }
    remove(&step);
    end(&run, &batch);
    for pid in [before, after] {
        assert_eq!(end_of(pid), Exit::Signal(9, false));
    }
    // Nothing is left to be moved into.
    let late = outside();
    assert!(run.attach_job(late).is_err() && !scratch.root.holds(late));
    process::pidfd_signal(process::pidfd_open(late).expect("it runs").as_fd(), 9).expect("kill");
    end_of(late);
}
