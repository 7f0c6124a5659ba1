//! What steps use and may use: measured, limited and ended apart from their job.

use std::fs;
use std::path::{Path, PathBuf};

use gmodel::ExitCode;
use gmodel::run::EndCause;
use gmodel::supervise::{StepOrder, SupervisorCommand};
use gsys::cgroup::{Hierarchy, Limits, Trees};

use super::bench::{Bench, Link, exists, is_alive, pid_in, wait_for};
use super::grun::{Grun, StepOutcome};

const MIB: u64 = 1 << 20;
/// A job that ends when the test says so, and well.
const UNTIL_TOLD: &str = "while [ ! -e go ]; do sleep 0.02; done";
/// Takes so many bytes of memory, as shells do.
const FILL: &str = "fill() { x=$(head -c $1 /dev/zero | tr '\\0' x); }";

fn run_step(link: &mut Link, order: impl FnOnce(&Grun) -> StepOrder) -> StepOutcome {
    let grun = Grun::listen();
    link.send(&SupervisorCommand::Step {
        step: Box::new(order(&grun)),
    });
    grun.accept().collect()
}

fn end_well(bench: &Bench, link: &mut Link) {
    fs::write(bench.work.join("go"), "").unwrap();
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit, end.usage.oom_kills),
        (EndCause::Exited, ExitCode::SUCCESS, 0),
        "{}",
        end.text
    );
}

/// Directories of the run's cgroups with that name, in any tree.
fn cgroups_named(bench: &Bench, name: &str) -> Vec<PathBuf> {
    let rel = bench.cgroup.as_ref().unwrap().rel();
    let places = |mount: &Path| {
        [
            mount.join(rel).join(name),
            mount.join(rel).join("job").join(name),
        ]
    };
    Trees::detect()
        .unwrap()
        .mounts()
        .flat_map(places)
        .filter(|dir| dir.is_dir())
        .collect()
}

#[test]
fn a_step_is_measured_apart_from_its_job_and_leaves_no_cgroup() {
    let Some(mut bench) = Bench::isolated(&format!("{FILL}; fill 100000000; {UNTIL_TOLD}")) else {
        return;
    };
    let mut link = bench.start_and_go();
    let script = format!(
        "{FILL}; grep -c /run_7-1/job/step_4$ /proc/self/cgroup; fill 40000000; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"
    );
    let all = run_step(&mut link, |grun| grun.order(4, 2, &script));
    let (used, text) = all.used.clone().unwrap();
    assert_eq!(
        (all.ended[&0].0, all.ended[&1].0, text.as_str()),
        (ExitCode::SUCCESS, ExitCode::SUCCESS, ""),
        "{all:?}"
    );
    if Trees::detect().unwrap().v2.is_some() {
        assert_eq!(all.stdout[&0], "1\n");
    }
    assert!(
        used.cpu_user_micros > 10_000 && used.oom_kills == 0,
        "{used:?}"
    );
    assert!(
        (60 * MIB..190 * MIB).contains(&used.peak_memory_bytes),
        "{used:?}"
    );
    assert!(cgroups_named(&bench, "step_4").is_empty());
    end_well(&bench, &mut link);
    let job = bench.record().usage;
    assert!(
        job.cpu_user_micros >= used.cpu_user_micros
            && job.peak_memory_bytes > used.peak_memory_bytes,
        "{job:?} of which {used:?}"
    );
}

#[test]
fn a_step_that_fills_its_memory_is_out_of_memory_and_its_job_goes_on() {
    let Some(mut bench) = Bench::isolated(UNTIL_TOLD) else {
        return;
    };
    let mut link = bench.start_and_go();
    // The kernel ends the one that is to be ended: else it may take the small one, which forks just then.
    let script = format!(
        "{FILL}; case $SLURM_PROCID in 0) echo 1000 > /proc/self/oom_score_adj; fill 100000000;; 1) while [ ! -e killed ]; do sleep 0.02; done; exit 3;; esac"
    );
    let grun = Grun::listen();
    link.send(&SupervisorCommand::Step {
        step: Box::new(StepOrder {
            mem_bytes: 32 * MIB,
            ..grun.order(1, 2, &script)
        }),
    });
    let connection = grun.accept();
    // The other task is not the one that took too much.
    wait_for("a kill", || {
        (cgroups_named(&bench, "step_1")
            .iter()
            .any(|dir| has_killed(dir)))
        .then_some(())
    });
    fs::write(bench.work.join("killed"), "").unwrap();
    let all = connection.collect();
    // A shell says 137 itself where its child was killed.
    assert!(
        all.ended[&0] == (ExitCode::killed(9), "Out Of Memory".into())
            || all.ended[&0].0 == ExitCode::exited(137),
        "{all:?}"
    );
    assert_eq!(all.ended[&1], (ExitCode::exited(3), String::new()));
    let (used, text) = all.used.unwrap();
    assert!(
        used.oom_kills > 0 && used.peak_memory_bytes <= 32 * MIB,
        "{used:?}"
    );
    assert!(
        text.starts_with("step 1: Out Of Memory: the kernel killed 1 process")
            && text.contains("the step may have 32 MiB"),
        "{text}"
    );
    let log = bench.run_dir().join("log");
    wait_for("a line in the log", || {
        fs::read_to_string(&log)
            .unwrap()
            .contains(&text)
            .then_some(())
    });
    end_well(&bench, &mut link);
}

/// The kernel killed in it for want of memory, as either kind of tree says it.
fn has_killed(dir: &Path) -> bool {
    ["memory.events", "memory.oom_control"].iter().any(|file| {
        let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
        text.lines().any(|line| {
            line.strip_prefix("oom_kill ")
                .is_some_and(|count| count != "0")
        })
    })
}

#[test]
fn a_step_that_fills_the_memory_of_its_job_makes_the_job_out_of_memory() {
    let limits = Limits {
        memory_bytes: Some(48 * MIB),
        ..Limits::default()
    };
    let Some(mut bench) = Bench::limited(UNTIL_TOLD, &limits) else {
        return;
    };
    bench.setup.mem_limit_bytes = limits.memory_bytes;
    let mut link = bench.start_and_go();
    let script = format!("{FILL}; fill 200000000");
    // Its own limit is above what there is.
    let all = run_step(&mut link, |grun| StepOrder {
        mem_bytes: 400 * MIB,
        ..grun.order(0, 1, &script)
    });
    let (used, text) = all.used.unwrap();
    assert!(
        used.oom_kills > 0
            && text
                .contains("the job may have 48 MiB on this node. Ask for more with --mem of gsub"),
        "{text}"
    );
    fs::write(bench.work.join("go"), "").unwrap();
    let end = link.end();
    assert_eq!(end.cause, EndCause::OutOfMemory, "{end:?}");
}

#[test]
fn what_a_step_leaves_in_a_session_of_its_own_ends_with_it_and_nothing_else_does() {
    let Some(mut bench) = Bench::isolated(&format!(
        "setsid sleep 600 & echo $! > of-job; {UNTIL_TOLD}"
    )) else {
        return;
    };
    let mut link = bench.start_and_go();
    let of_job = pid_in(&bench.file_when("of-job", |text| text.ends_with('\n')));
    let other = Grun::listen();
    link.send(&SupervisorCommand::Step {
        step: Box::new(other.order(
            1,
            1,
            "echo $$ > other; while [ ! -e step-go ]; do sleep 0.02; done",
        )),
    });
    let other = other.accept();
    let of_other = pid_in(&bench.file_when("other", |text| text.ends_with('\n')));
    // Two of them, one of which leaves more while it is being killed.
    let script = "setsid sh -c 'echo $$ > left; while :; do sleep 0.01 & done' & setsid sleep 600 & while [ ! -s left ]; do sleep 0.01; done";
    let all = run_step(&mut link, |grun| grun.order(0, 1, script));
    assert_eq!(all.ended[&0].0, ExitCode::SUCCESS, "{all:?}");
    assert!(all.used.is_some(), "it is over");
    assert!(!is_alive(pid_in(&bench.file("left"))));
    assert!(cgroups_named(&bench, "step_0").is_empty());
    assert!(is_alive(of_job) && is_alive(of_other));
    fs::write(bench.work.join("step-go"), "").unwrap();
    assert_eq!(other.collect().ended[&0].0, ExitCode::SUCCESS);
    end_well(&bench, &mut link);
}

#[test]
fn a_job_that_is_stopped_takes_its_steps_and_their_orphans_along() {
    let Some(mut bench) = Bench::isolated("exec sleep 600") else {
        return;
    };
    let mut link = bench.start_and_go();
    let grun = Grun::listen();
    let script = "trap '' TERM; setsid sh -c \"trap '' TERM; echo \\$\\$ > orphan; while :; do sleep 0.1; done\" & wait";
    link.send(&SupervisorCommand::Step {
        step: Box::new(grun.order(0, 1, script)),
    });
    let connection = grun.accept();
    let orphan = pid_in(&bench.file_when("orphan", |text| text.ends_with('\n')));
    link.stop(1);
    assert_eq!(link.end().cause, EndCause::Stopped);
    assert!(!is_alive(orphan));
    assert_eq!(connection.collect().ended[&0].0, ExitCode::killed(9));
    bench
        .cgroup
        .as_ref()
        .unwrap()
        .remove_with_supervisor(std::time::Duration::from_secs(10))
        .unwrap();
}

#[test]
fn the_steps_of_a_supervisor_that_is_lost_are_killed_and_removed_with_the_run() {
    let Some(mut bench) = Bench::isolated("exec sleep 600") else {
        return;
    };
    let mut link = bench.start_and_go();
    let grun = Grun::listen();
    link.send(&SupervisorCommand::Step {
        step: Box::new(StepOrder {
            mem_bytes: 64 * MIB,
            ..grun.order(0, 1, "echo $$ > pid; exec sleep 600")
        }),
    });
    let connection = grun.accept();
    let task = pid_in(&bench.file_when("pid", |text| text.ends_with('\n')));
    bench.kill_gstepd();
    connection.read_to_the_end();
    assert!(is_alive(task) && !cgroups_named(&bench, "step_0").is_empty());
    // As gpud does it.
    let run = bench.cgroup.as_ref().unwrap();
    run.kill().unwrap();
    assert!(run.wait_empty(std::time::Duration::from_secs(10)).unwrap());
    run.remove().unwrap();
    assert!(!is_alive(task) && cgroups_named(&bench, "step_0").is_empty());
    assert!(
        !Trees::detect()
            .unwrap()
            .mounts()
            .any(|mount| exists(&mount.join(run.rel())))
    );
}

#[test]
fn where_no_cgroup_can_be_made_a_step_runs_unless_its_memory_has_to_be_limited() {
    let Some(mut bench) = Bench::isolated(UNTIL_TOLD) else {
        return;
    };
    let trees = Trees::detect().unwrap();
    let Some(v2) = trees
        .v2
        .as_ref()
        .filter(|_| matches!(trees.hierarchy(), Hierarchy::V2 | Hierarchy::Hybrid))
    else {
        return println!("NOT RUN: only a v2 tree can be told to have no more cgroups");
    };
    let mut link = bench.start_and_go();
    fs::write(
        v2.join(bench.cgroup.as_ref().unwrap().rel())
            .join("job/cgroup.max.descendants"),
        "0",
    )
    .unwrap();
    let all = run_step(&mut link, |grun| StepOrder {
        mem_bytes: 64 * MIB,
        ..grun.order(0, 2, "touch started")
    });
    assert!(!exists(&bench.work.join("started")));
    for rank in 0..2 {
        let (exit, text) = &all.ended[&rank];
        assert!(
            *exit == ExitCode::exited(126)
                && text.starts_with("the memory of the step cannot be limited: cgroup: making "),
            "{text}"
        );
    }
    assert!(
        cgroups_named(&bench, "step_0").is_empty(),
        "nothing half made stays"
    );
    let all = run_step(&mut link, |grun| {
        grun.order(1, 1, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; grep -c /run_7-1/job$ /proc/self/cgroup")
    });
    assert_eq!(
        (all.stdout[&0].as_str(), all.ended[&0].0),
        ("1\n", ExitCode::SUCCESS)
    );
    let used = all.used.unwrap().0;
    assert!(
        used.cpu_user_micros > 0 && used.peak_memory_bytes > 0,
        "what its task used is known: {used:?}"
    );
    wait_for("a line in the log", || {
        fs::read_to_string(bench.run_dir().join("log"))
            .unwrap()
            .contains("step 1 is not measured: cgroup: making ")
            .then_some(())
    });
    end_well(&bench, &mut link);
}

#[test]
fn without_isolation_the_tasks_are_measured_as_they_end_and_nothing_is_limited() {
    let mut bench = Bench::bare(UNTIL_TOLD);
    let mut link = bench.start_and_go();
    let script =
        format!("{FILL}; fill 40000000; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done");
    let all = run_step(&mut link, |grun| StepOrder {
        mem_bytes: MIB,
        ..grun.order(0, 1, &script)
    });
    let (used, text) = all.used.unwrap();
    assert_eq!((all.ended[&0].0, text.as_str()), (ExitCode::SUCCESS, ""));
    assert!(
        used.cpu_user_micros > 10_000 && used.peak_memory_bytes > 30 * MIB,
        "{used:?}"
    );
    end_well(&bench, &mut link);
}
