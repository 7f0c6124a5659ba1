//! gstepd with real processes: in cgroups of its own (needs root), and without isolation. Each test has its own run directory
//! and cgroup subtree and takes both away.

mod bench;
mod grun;
mod launch;
mod limits;
mod marks;
mod pam;
mod stand_by;
mod step_use;
mod steps;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use bench::{Bench, UID, exists, is_alive, pid_in, wait_for};
use gmodel::ExitCode;
use gmodel::run::{EndCause, NumberedSignal};
use gmodel::signal::SigSpec;
use gmodel::supervise::{RunGpu, SupervisorCommand, SupervisorReport};
use gsys::cgroup::Limits;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn a_script_runs_as_its_user_with_its_files_and_environment() {
    let Some(mut bench) = Bench::isolated(
        "id -u; id -g; umask; pwd; echo to-stderr >&2; env | sort; ls -l /proc/self/fd",
    ) else {
        return;
    };
    bench.order.umask = 0o027;
    bench.order.environment.push("MINE=1".into());
    bench.setup.gpus = vec![RunGpu {
        uuid: "GPU-12".into(),
        index: 3,
        device: "/dev/nvidia3".into(),
        ..RunGpu::default()
    }];
    let end = bench.run_to_end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::SUCCESS),
        "{}",
        end.text
    );
    assert_eq!(end, bench.record());
    assert!(end.started <= end.ended && end.started.is_some());
    assert!(
        end.usage.cpu_user_micros + end.usage.cpu_system_micros > 0,
        "{:?}",
        end.usage
    );
    let out = bench.file("out");
    let work = bench.work.display().to_string();
    assert!(
        out.starts_with(&format!("{UID}\n{UID}\n0027\n{work}\nto-stderr\n")),
        "{out}"
    );
    let lines: Vec<&str> = out.lines().collect();
    let wanted = [
        "SLURM_JOB_ID=7",
        "GSUB_JOB_ID=7",
        "GSUB_ATTEMPT=1",
        "CUDA_VISIBLE_DEVICES=GPU-12",
        "MINE=1",
        "SLURM_JOB_GPUS=3",
    ];
    for line in wanted {
        assert!(lines.contains(&line), "{line} is missing in {out}");
    }
    let meta = fs::metadata(bench.work.join("out")).unwrap();
    assert_eq!(
        (meta.uid(), meta.mode() & 0o777),
        (UID, 0o640),
        "opened as the user, with the job's umask"
    );
    let descriptors = out.lines().filter(|line| line.contains(" -> ")).count();
    assert_eq!(
        descriptors, 4,
        "0, 1, 2 and the one that ls lists with: {out}"
    );
}

#[test]
fn exit_codes_and_signals_are_kept() {
    for (script, want) in [
        ("exit 3", ExitCode::exited(3)),
        ("kill -9 $$", ExitCode::killed(9)),
    ] {
        let Some(mut bench) = Bench::isolated(script) else {
            return;
        };
        let end = bench.run_to_end();
        assert_eq!((end.cause, end.exit), (EndCause::Exited, want), "{script}");
    }
}

#[test]
fn a_command_is_found_in_the_path_of_the_job() {
    let Some(mut bench) = Bench::isolated("") else {
        return;
    };
    bench.order.script.clear();
    bench.order.argv = vec![
        "sh".into(),
        "-c".into(),
        "echo \"$0 $1\"; exit 4".into(),
        "a".into(),
        "b c".into(),
    ];
    assert_eq!(bench.run_to_end().exit, ExitCode::exited(4));
    assert_eq!(bench.file("out"), "a b c\n");
}

#[test]
fn the_script_is_its_users_alone_and_goes_with_the_run() {
    let Some(mut bench) =
        Bench::isolated("echo $1; ls -ln $0; while [ ! -e go-on ]; do sleep 0.01; done")
    else {
        return;
    };
    bench.order.argv = vec!["argument".into()];
    let mut link = bench.start_and_go();
    let out = bench.file_when("out", |text| text.lines().count() == 2);
    assert!(
        out.starts_with("argument\n-r-x------ 1 61234 61234 "),
        "{out}"
    );
    assert!(bench.script().exists());
    fs::write(bench.work.join("go-on"), "").unwrap();
    assert_eq!(link.end().exit, ExitCode::SUCCESS);
    assert!(!exists(&bench.script()));
}

#[test]
fn a_second_attempt_appends_to_its_output() {
    let Some(mut bench) = Bench::isolated("echo again") else {
        return;
    };
    fs::write(bench.work.join("out"), "before\n").unwrap();
    std::os::unix::fs::chown(bench.work.join("out"), Some(UID), Some(UID)).unwrap();
    bench.order.run = Some(gmodel::RunId::new(gmodel::JobId(7), 2));
    assert_eq!(bench.run_to_end().exit, ExitCode::SUCCESS);
    assert_eq!(bench.file("out"), "before\nagain\n");
}

#[test]
fn an_orphan_in_a_session_of_its_own_is_gone_with_the_job() {
    let Some(mut bench) = Bench::isolated(
        "setsid sh -c 'echo $$ > orphan; exec sleep 600' & while [ ! -s orphan ]; do sleep 0.01; done",
    ) else {
        return;
    };
    let end = bench.run_to_end();
    assert_eq!((end.cause, end.exit), (EndCause::Exited, ExitCode::SUCCESS));
    assert!(!is_alive(pid_in(&bench.file("orphan"))));
    assert!(bench.cgroup.as_ref().unwrap().is_empty().unwrap());
}

#[test]
fn a_job_deaf_to_sigterm_is_killed_after_the_grace() {
    let Some(mut bench) = Bench::isolated("trap '' TERM; touch deaf; while :; do sleep 600; done")
    else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("deaf", |_| true);
    let asked = Instant::now();
    link.stop(1);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Stopped, ExitCode::killed(9))
    );
    assert_eq!(end.text, "cancelled");
    assert!(
        asked.elapsed() >= Duration::from_secs(1),
        "the grace was kept"
    );
}

#[test]
fn a_child_may_finish_its_work_after_the_shell_has_died_of_the_term() {
    let Some(mut bench) = Bench::isolated(
        "sh -c 'trap \"echo saved > saved; exit\" TERM; touch trapped; while :; do sleep 0.05; done' & wait",
    ) else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("trapped", |_| true);
    link.stop(15);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Stopped, ExitCode::killed(15))
    );
    assert_eq!(bench.file("saved"), "saved\n");
}

#[test]
fn a_second_stop_shortens_the_grace() {
    let Some(mut bench) = Bench::isolated("trap '' TERM; touch deaf; while :; do sleep 600; done")
    else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("deaf", |_| true);
    link.stop(3600);
    link.stop(0);
    assert_eq!(link.end().cause, EndCause::Stopped);
}

#[test]
fn a_job_that_stopped_itself_can_be_ended() {
    let Some(mut bench) = Bench::isolated("echo $$ > pid; kill -STOP $$; exit 7") else {
        return;
    };
    let mut link = bench.start_and_go();
    let pid = pid_in(&bench.file_when("pid", |text| text.ends_with('\n')));
    wait_for("a stopped process", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(") T ").then_some(())
    });
    link.stop(15);
    assert_eq!(
        link.end().exit,
        ExitCode::killed(15),
        "it was woken to hear the SIGTERM"
    );
}

#[test]
fn a_frozen_job_can_be_ended() {
    let Some(mut bench) = Bench::isolated("exec sleep 600") else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.cgroup.as_ref().unwrap().freeze(true).unwrap();
    link.stop(15);
    assert_eq!(link.end().cause, EndCause::Stopped);
}

#[test]
fn the_time_limit_ends_the_job_without_anyone_else() {
    let Some(mut bench) = Bench::isolated("exec sleep 600") else {
        return;
    };
    bench.order.limit_secs = Some(1);
    drop(bench.start_and_go());
    wait_for("exit.json", || {
        exists(&bench.run_dir().join("exit.json")).then_some(())
    });
    let end = bench.record();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::TimeLimit, ExitCode::killed(15))
    );
    assert_eq!(end.text, "the time limit of 1 s was reached");
}

#[test]
fn a_new_limit_holds_at_once() {
    let Some(mut bench) = Bench::isolated("exec sleep 600") else {
        return;
    };
    bench.order.limit_secs = Some(3600);
    let mut link = bench.start_and_go();
    link.send(&SupervisorCommand::Limit {
        limit_secs: Some(0),
    });
    assert_eq!(link.end().cause, EndCause::TimeLimit);
}

#[test]
fn the_warning_reaches_the_shell_when_it_is_asked_for() {
    let Some(mut bench) = Bench::isolated(
        "trap 'echo warned; exit 5' USR1; touch ready; while :; do sleep 0.05; done",
    ) else {
        return;
    };
    bench.order.limit_secs = Some(600);
    bench.order.signal = Some(SigSpec {
        signal: 10,
        batch_only: true,
        lead_secs: 60,
    });
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    link.send(&SupervisorCommand::Limit {
        limit_secs: Some(61),
    });
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::exited(5))
    );
    assert_eq!(bench.file("out"), "warned\n");
}

#[test]
fn a_warning_spares_the_shell_and_reaches_what_it_started() {
    let script = "sh -c 'trap \"echo child warned; exit\" USR1; touch ready; while :; do :; done'; echo shell lives";
    let Some(mut bench) = Bench::isolated(script) else {
        return;
    };
    bench.order.limit_secs = Some(600);
    bench.order.signal = Some(SigSpec {
        signal: 10,
        batch_only: false,
        lead_secs: 60,
    });
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    link.send(&SupervisorCommand::Limit {
        limit_secs: Some(61),
    });
    assert_eq!(link.end().exit, ExitCode::SUCCESS);
    assert_eq!(bench.file("out"), "child warned\nshell lives\n");
}

#[test]
fn a_signal_goes_to_the_shell_or_to_what_it_started_and_only_once() {
    let child = "sh -c 'trap \"echo child; exit\" USR2; touch ready; while :; do :; done' &";
    let Some(mut bench) = Bench::isolated(&format!(
        "trap 'echo shell' USR1; {child} wait; wait; exit 6"
    )) else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    let signal = |number, signal, batch_only| SupervisorCommand::Signal {
        signal: NumberedSignal {
            number,
            signal,
            batch_only,
            full: false,
        },
    };
    link.send(&signal(2, 10, true));
    bench.file_when("out", |text| text == "shell\n");
    link.send(&signal(2, 9, false));
    link.send(&signal(1, 9, false));
    // The shell has no trap for it, and lives.
    link.send(&signal(3, 12, false));
    assert_eq!(
        link.end().exit,
        ExitCode::exited(6),
        "an older number and the same number are passed over"
    );
    assert_eq!(bench.file("out"), "shell\nchild\n");
}

#[test]
fn a_full_signal_reaches_the_shell_and_what_it_started() {
    let child = "sh -c 'trap \"echo child; exit\" USR2; : >ready; while :; do :; done' &";
    let Some(mut bench) = Bench::isolated(&format!(
        "trap 'echo shell' USR2; {child} wait; wait; exit 6"
    )) else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    link.send(&SupervisorCommand::Signal {
        signal: NumberedSignal {
            number: 1,
            signal: 12,
            batch_only: false,
            full: true,
        },
    });
    assert_eq!(link.end().exit, ExitCode::exited(6));
    let out = bench.file("out");
    let mut said: Vec<&str> = out.lines().collect();
    said.sort_unstable();
    assert_eq!(said, ["child", "shell"]);
}

#[test]
fn a_signal_reaches_a_shell_that_is_alone_and_sigkill_spares_nobody() {
    let Some(mut bench) =
        Bench::isolated("trap 'echo alone; exit 4' USR2; touch ready; while :; do :; done")
    else {
        return;
    };
    let signal = |signal| SupervisorCommand::Signal {
        signal: NumberedSignal {
            number: 1,
            signal,
            batch_only: false,
            full: false,
        },
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    link.send(&signal(12));
    assert_eq!(link.end().exit, ExitCode::exited(4));
    assert_eq!(bench.file("out"), "alone\n");

    let Some(mut bench) = Bench::isolated("sleep 600 & touch ready; wait; exit 5") else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    link.send(&signal(9));
    assert_eq!(link.end().exit, ExitCode::killed(9));
}

#[test]
fn a_program_without_a_script_gets_the_signal_itself() {
    let Some(mut bench) = Bench::isolated("") else {
        return;
    };
    bench.order.script.clear();
    let program = "trap 'echo heard; exit 7' USR2; sleep 600 & touch ready; wait";
    bench.order.argv = vec!["sh".into(), "-c".into(), program.into()];
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    link.send(&SupervisorCommand::Signal {
        signal: NumberedSignal {
            number: 1,
            signal: 12,
            batch_only: false,
            full: false,
        },
    });
    assert_eq!(link.end().exit, ExitCode::exited(7));
    assert!(bench.file("out").contains("heard"));
}

#[test]
fn a_task_finds_its_own_number_in_its_environment() {
    let Some(mut bench) = Bench::isolated("echo $$ $SLURM_TASK_PID $GSUB_TASK_PID") else {
        return;
    };
    bench.order.environment.push("SLURM_TASK_PID=1".into());
    bench.run_to_end();
    let out = bench.file("out");
    let numbers: Vec<&str> = out.split_whitespace().collect();
    assert!(
        numbers.len() == 3 && numbers.iter().all(|number| *number == numbers[0]),
        "{out}"
    );
}

#[test]
fn a_job_that_fills_its_memory_is_out_of_memory() {
    let limits = Limits {
        memory_bytes: Some(32 << 20),
        ..Limits::default()
    };
    let Some(mut bench) = Bench::limited("x=0123456789abcdef; while :; do x=$x$x; done", &limits)
    else {
        return;
    };
    bench.setup.mem_limit_bytes = limits.memory_bytes;
    let end = bench.run_to_end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::OutOfMemory, ExitCode::killed(9))
    );
    assert!(
        end.usage.oom_kills > 0 && end.usage.peak_memory_bytes > 16 << 20,
        "{:?}",
        end.usage
    );
    assert!(
        end.text.contains("the limit is 32 MiB") && end.text.contains("--mem"),
        "{}",
        end.text
    );
}

#[test]
fn a_job_that_fills_its_pids_is_gone_with_all_it_forked() {
    let limits = Limits {
        pids_max: Some(40),
        ..Limits::default()
    };
    // The shell gives up at the first fork that fails; what it forked before is deaf and in sessions of its own.
    let script =
        "for i in $(seq 100); do setsid sh -c 'trap \"\" TERM HUP; exec sleep 600' & done; wait";
    let Some(mut bench) = Bench::limited(script, &limits) else {
        return;
    };
    let mut link = bench.start_and_go();
    let cgroup = bench.cgroup.clone().unwrap();
    wait_for("a full cgroup", || {
        (cgroup.job_pids().unwrap().len() >= 20 || exists(&bench.run_dir().join("exit.json")))
            .then_some(())
    });
    link.stop(0);
    link.end();
    assert!(cgroup.is_empty().unwrap());
}

#[test]
fn a_full_disk_does_not_lose_the_record() {
    let Some(mut bench) = Bench::isolated("while [ ! -e go-on ]; do sleep 0.01; done; exit 8")
    else {
        return;
    };
    let _disk = SmallDisk::mount(&bench.run_dir(), "64k");
    let mut link = bench.start_and_go();
    let full = fill(&bench.run_dir().join("ballast"));
    assert_eq!(full.raw_os_error(), Some(nix::libc::ENOSPC));
    fs::write(bench.work.join("go-on"), "").unwrap();
    assert_eq!(link.end().exit, ExitCode::exited(8));
    assert_eq!(bench.record().exit, ExitCode::exited(8));
}

/// A tmpfs of its own for a test, unmounted with it.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(dir: &std::path::Path, size: &str) -> SmallDisk {
        let options = format!("size={size},mode=700");
        nix::mount::mount(
            Some("none"),
            dir,
            Some("tmpfs"),
            nix::mount::MsFlags::empty(),
            Some(options.as_str()),
        )
        .unwrap();
        SmallDisk(dir.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

fn fill(path: &std::path::Path) -> std::io::Error {
    use std::io::Write;
    let mut file = fs::File::create(path).unwrap();
    loop {
        if let Err(e) = file.write_all(&[1; 512]) {
            return e;
        }
    }
}

#[test]
fn a_users_mistake_at_launch_is_told_as_such() {
    type Spoil = fn(&mut Bench);
    let cases: [(&str, Spoil, &str); 5] = [
        (
            "no directory",
            |b| b.order.work_dir = "/nonexistent/dir".into(),
            "working directory /nonexistent/dir: No such file",
        ),
        (
            "no output",
            |b| b.order.stdout = "/out-%j.txt".into(),
            "output file /out-7.txt: Permission denied",
        ),
        (
            "no output directory",
            |b| b.order.stdout = "missing/%j".into(),
            "output file missing/7: No such file",
        ),
        (
            "no interpreter",
            |b| b.order.script = "#!/bin/nosuch\n".into(),
            "/bin/nosuch",
        ),
        (
            "no interpreter named",
            |b| b.order.script = "echo hello\n".into(),
            "#!/bin/bash",
        ),
    ];
    for (name, spoil, text) in cases {
        let Some(mut bench) = Bench::isolated("true") else {
            return;
        };
        spoil(&mut bench);
        let end = bench.run_to_end();
        assert_eq!(end.cause, EndCause::LaunchUser, "{name}: {}", end.text);
        assert!(end.text.contains(text), "{name}: {}", end.text);
        assert_eq!(end, bench.record(), "{name}");
        assert!(!exists(&bench.script()), "{name}: the script is gone");
    }
}

#[test]
fn a_spool_that_the_user_cannot_pass_is_the_nodes_mistake() {
    let Some(mut bench) = Bench::isolated("true") else {
        return;
    };
    let spool = bench.run_dir().join("../..").canonicalize().unwrap();
    fs::set_permissions(&spool, fs::Permissions::from_mode(0o700)).unwrap();
    let end = bench.run_to_end();
    assert_eq!(end.cause, EndCause::LaunchNode);
    assert!(end.text.contains("chmod o+x"), "{}", end.text);
}

#[test]
fn a_missing_cgroup_is_the_nodes_mistake_and_on_record() {
    let Some(mut bench) = Bench::isolated("true") else {
        return;
    };
    bench.setup.cgroup_name = "run_8-1".into();
    for (name, json) in [
        ("order", serde_json::to_vec(&bench.order)),
        ("setup", serde_json::to_vec(&bench.setup)),
    ] {
        fs::write(bench.run_dir().join(format!("{name}.json")), json.unwrap()).unwrap();
    }
    bench.spawn();
    assert_eq!(bench.gstepd_exit(), Some(1));
    let end = bench.record();
    assert_eq!(end.cause, EndCause::LaunchNode);
    assert!(end.text.contains("run_8-1"), "{}", end.text);
}

#[test]
fn jobs_of_root_are_refused_unless_allowed() {
    let Some(mut bench) = Bench::isolated("true") else {
        return;
    };
    bench.setup.uid = 0;
    fs::write(
        bench.run_dir().join("order.json"),
        serde_json::to_vec(&bench.order).unwrap(),
    )
    .unwrap();
    fs::write(
        bench.run_dir().join("setup.json"),
        serde_json::to_vec(&bench.setup).unwrap(),
    )
    .unwrap();
    bench.spawn();
    assert_eq!(bench.gstepd_exit(), Some(1));
    assert!(
        bench.record().text.contains("allow_root_jobs"),
        "{}",
        bench.record().text
    );
}

#[test]
fn private_directories_take_the_place_of_the_nodes() {
    // The test's spool is itself below /tmp, which the private one hides.
    let Some(mut bench) =
        Bench::isolated("echo mine > /tmp/a; echo mine > /dev/shm/b; ls -A /tmp; echo $TMPDIR")
    else {
        return;
    };
    let private = bench.run_dir().join("../../private");
    for (name, path) in [
        ("tmp", &mut bench.setup.private_tmp),
        ("shm", &mut bench.setup.private_shm),
    ] {
        let dir = private.join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
        *path = dir.canonicalize().unwrap().display().to_string();
    }
    bench.order.work_dir = "/".into();
    bench.order.stdout = "/tmp/out".into();
    let end = bench.run_to_end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::SUCCESS),
        "{}",
        end.text
    );
    assert_eq!(
        fs::read_to_string(private.join("tmp/out")).unwrap(),
        ".gpupool\na\nout\n/tmp\n"
    );
    assert_eq!(fs::read_to_string(private.join("shm/b")).unwrap(), "mine\n");
    assert!(!exists(&private.join("tmp/.gpupool")), "the script is gone");
}

#[test]
fn a_root_job_cannot_leave_its_cgroup() {
    let script = "for tree in /sys/fs/cgroup /sys/fs/cgroup/unified; do \
                  [ -e $tree/cgroup.procs ] && { echo $$ > $tree/cgroup.procs && echo escaped; }; done; cat /proc/self/cgroup";
    let Some(mut bench) = Bench::isolated(script) else {
        return;
    };
    bench.setup.uid = 0;
    bench.setup.gid = 0;
    bench.setup.groups = vec![0];
    bench.setup.restrict_root = true;
    bench.order.allow_root = true;
    assert_eq!(bench.run_to_end().exit, ExitCode::SUCCESS);
    let out = bench.file("out");
    assert!(
        !out.contains("escaped") && out.contains("Read-only file system"),
        "{out}"
    );
    assert!(out.contains("/run_7-1/job"), "{out}");
}

#[test]
fn a_new_gpud_finds_the_run_and_its_end() {
    let Some(mut bench) = Bench::isolated("while [ ! -e go-on ]; do sleep 0.01; done; exit 9")
    else {
        return;
    };
    drop(bench.start_and_go());
    let mut second = bench.connect();
    let first_word = second.next();
    assert!(
        matches!(first_word, SupervisorReport::Running { .. }),
        "{first_word:?}"
    );
    let mut third = bench.connect();
    assert_eq!(
        third.next(),
        first_word,
        "several at a time, all told the same"
    );
    second.send(&SupervisorCommand::Go);
    fs::write(bench.work.join("go-on"), "").unwrap();
    assert_eq!(second.end().exit, ExitCode::exited(9));
    assert_eq!(third.end().exit, ExitCode::exited(9));
    let mut late = bench.connect();
    assert_eq!(late.end().exit, ExitCode::exited(9));
    drop((second, third, late));
    assert_eq!(
        bench.gstepd_exit(),
        Some(0),
        "told and closed: it leaves before its time"
    );
    assert!(!exists(&bench.run_dir().join("ctl.sock")));
}

#[test]
fn only_an_order_ends_a_job() {
    let Some(mut bench) = Bench::isolated("while [ ! -e go-on ]; do sleep 0.01; done; exit 2")
    else {
        return;
    };
    let mut link = bench.start_and_go();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGPIPE,
    ] {
        kill(Pid::from_raw(bench.gstepd_pid()), signal).unwrap();
    }
    fs::write(bench.work.join("go-on"), "").unwrap();
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::exited(2))
    );
}

#[test]
fn the_job_hears_the_signals_its_supervisor_is_deaf_to() {
    let Some(mut bench) = Bench::isolated("grep -E 'Sig(Blk|Ign)' /proc/self/status") else {
        return;
    };
    bench.run_to_end();
    for line in bench.file("out").lines() {
        let mask = line.split_whitespace().nth(1).unwrap();
        assert_eq!(u64::from_str_radix(mask, 16).unwrap(), 0, "{line}");
    }
}

#[test]
fn a_stop_before_go_starts_nothing() {
    let Some(mut bench) = Bench::isolated("touch started") else {
        return;
    };
    let mut link = bench.start();
    link.stop(30);
    link.send(&SupervisorCommand::Go);
    let end = link.end();
    assert_eq!((end.cause, end.started), (EndCause::Stopped, None));
    assert!(!exists(&bench.work.join("started")));
}

#[test]
fn a_stop_reaches_a_start_that_hangs() {
    let Some(mut bench) = Bench::isolated("true") else {
        return;
    };
    // Opening a pipe that nobody reads blocks in the child, as a dead file server would.
    nix::unistd::mkfifo(
        &bench.work.join("out"),
        nix::sys::stat::Mode::from_bits_truncate(0o666),
    )
    .unwrap();
    std::os::unix::fs::chown(bench.work.join("out"), Some(UID), Some(UID)).unwrap();
    let mut link = bench.start();
    link.send(&SupervisorCommand::Go);
    wait_for("the child in the cgroup", || {
        (!bench.cgroup.as_ref()?.is_empty().unwrap()).then_some(())
    });
    link.stop(30);
    let end = link.end();
    assert_eq!((end.cause, end.started), (EndCause::Stopped, None));
}

#[test]
fn the_limit_of_a_start_that_hangs_costs_no_grace() {
    let Some(mut bench) = Bench::isolated("touch started") else {
        return;
    };
    nix::unistd::mkfifo(
        &bench.work.join("in"),
        nix::sys::stat::Mode::from_bits_truncate(0o666),
    )
    .unwrap();
    bench.order.stdin = "in".into();
    (bench.order.limit_secs, bench.order.kill_grace_secs) = (Some(1), 3600);
    let mut link = bench.start();
    link.send(&SupervisorCommand::Go);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit, end.started),
        (EndCause::TimeLimit, ExitCode::killed(9), None)
    );
    assert!(end.text.contains("did not open"), "{}", end.text);
    assert!(!exists(&bench.work.join("started")));
}

#[test]
fn a_member_node_holds_its_share_until_it_is_stopped() {
    let Some(mut bench) = Bench::isolated("touch started") else {
        return;
    };
    bench.order.node_index = 1;
    let mut link = bench.start_and_go();
    link.stop(30);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Stopped, ExitCode::SUCCESS)
    );
    assert!(
        !exists(&bench.work.join("started")),
        "the script runs on the first node"
    );
}

#[test]
fn a_run_is_never_supervised_twice() {
    let Some(mut bench) =
        Bench::isolated("echo once >> runs; while [ ! -e go-on ]; do sleep 0.01; done")
    else {
        return;
    };
    drop(bench.start_and_go());
    bench.file_when("runs", |text| text.ends_with('\n'));
    let second = |run_dir: &std::path::Path| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_gstepd"))
            .arg("--run-dir")
            .arg(run_dir)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, text) = second(&bench.run_dir());
    assert!(
        code == Some(1) && text.contains("has a supervisor already"),
        "{code:?} {text}"
    );
    bench.kill_gstepd();
    let (code, text) = second(&bench.run_dir());
    assert!(
        code == Some(1) && text.contains("was supervised before"),
        "{code:?} {text}"
    );
    assert!(
        !exists(&bench.run_dir().join("exit.json")),
        "gpud says what became of it"
    );
    assert_eq!(bench.file("runs"), "once\n");
}

#[test]
fn garbage_on_the_socket_costs_only_its_connection() {
    let Some(mut bench) = Bench::isolated("while [ ! -e go-on ]; do sleep 0.01; done") else {
        return;
    };
    drop(bench.start_and_go());
    for garbage in [&b"{]\n"[..], b"\xff\xfe\n", b"{\"to_step\":7}\n"] {
        let mut link = bench.connect();
        link.next();
        link.send_raw(garbage);
        assert!(link.is_closed(), "{garbage:?}");
    }
    let mut link = bench.connect();
    link.next();
    link.send_raw(b"{\"to_step\":\"from_a_newer_gpud\",\"x\":1}\n");
    fs::write(bench.work.join("go-on"), "").unwrap();
    assert_eq!(
        link.end().exit,
        ExitCode::SUCCESS,
        "a word of a newer release is passed over"
    );
}

/// A runtime directory beside the spool, with a path longer than a socket's may be.
fn with_runtime_dir(bench: &mut Bench) -> std::path::PathBuf {
    let marks = bench.spool.path().join("x".repeat(120)).join("marks");
    bench.setup.marks_dir = marks.display().to_string();
    bench.setup.short_scripts_in_marks_dir = true;
    marks
}

#[test]
fn socket_and_short_script_are_in_the_runtime_directory_and_go_with_the_run() {
    let Some(mut bench) =
        Bench::isolated("echo $0 > script; while [ ! -e go-on ]; do sleep 0.01; done")
    else {
        return;
    };
    let marks = with_runtime_dir(&mut bench);
    bench.write_orders();
    bench.spawn();
    let socket = marks.join("7-1.ctl");
    wait_for("the socket", || exists(&socket).then_some(()));
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    assert!(!exists(&bench.run_dir().join("ctl.sock")));
    let dir = fs::File::open(&marks).unwrap();
    let short = format!(
        "/proc/self/fd/{}/7-1.ctl",
        std::os::fd::AsRawFd::as_raw_fd(&dir)
    );
    let mut link = bench.talk(std::os::unix::net::UnixStream::connect(short).unwrap());
    assert!(matches!(link.next(), SupervisorReport::Ready { .. }));
    link.send(&SupervisorCommand::Go);
    let script = bench.file_when("script", |text| text.ends_with('\n'));
    assert_eq!(script.trim(), marks.join("7-1.script").to_str().unwrap());
    let (uid, mode) = fs::metadata(script.trim())
        .map(|meta| (meta.uid(), meta.mode() & 0o777))
        .unwrap();
    assert_eq!((uid, mode), (bench.setup.uid, 0o500));
    fs::write(bench.work.join("go-on"), "").unwrap();
    assert_eq!(link.end().exit, ExitCode::SUCCESS);
    drop(link);
    assert_eq!(bench.gstepd_exit(), Some(0));
    let left: Vec<_> = fs::read_dir(&marks)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_long_script_is_on_the_disk_and_a_lost_runtime_directory_keeps_nothing_from_starting() {
    let Some(mut bench) = Bench::isolated("echo $0 > script") else {
        return;
    };
    with_runtime_dir(&mut bench);
    bench.order.script.push_str(&"# filler\n".repeat(8 << 10));
    // A file is where the directory would have to be made.
    fs::write(bench.spool.path().join("x".repeat(120)), "").unwrap();
    bench.write_orders();
    bench.spawn();
    let fallback = bench.run_dir().join("ctl.sock");
    let stream = wait_for("ctl.sock", || {
        std::os::unix::net::UnixStream::connect(&fallback).ok()
    });
    let mut link = bench.talk(stream);
    link.send(&SupervisorCommand::Go);
    assert_eq!(link.end().exit, ExitCode::SUCCESS);
    assert_eq!(
        bench.file("script").trim(),
        bench.script().to_str().unwrap()
    );
}

#[test]
fn the_socket_works_below_a_long_path() {
    let Some(mut bench) = Bench::isolated("true") else {
        return;
    };
    let spool = bench.run_dir().join("../..").canonicalize().unwrap();
    let long = spool.join("x".repeat(120)).join("runs/7-1");
    fs::create_dir_all(&long).unwrap();
    for (name, json) in [
        ("order", serde_json::to_vec(&bench.order)),
        ("setup", serde_json::to_vec(&bench.setup)),
    ] {
        fs::write(long.join(format!("{name}.json")), json.unwrap()).unwrap();
    }
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_gstepd"))
        .arg("--run-dir")
        .arg(&long)
        .spawn()
        .unwrap();
    wait_for("ctl.sock", || exists(&long.join("ctl.sock")).then_some(()));
    let dir = fs::File::open(&long).unwrap();
    let short = format!(
        "/proc/self/fd/{}/ctl.sock",
        std::os::fd::AsRawFd::as_raw_fd(&dir)
    );
    assert!(std::os::unix::net::UnixStream::connect(short).is_ok());
    assert_eq!(
        fs::metadata(long.join("ctl.sock")).unwrap().mode() & 0o777,
        0o600
    );
    child.kill().unwrap();
    child.wait().unwrap();
    drop(bench.start_and_go());
}

#[test]
fn without_isolation_a_job_and_its_orphans_are_ended_and_measured_too() {
    let mut bench = Bench::bare(
        "setsid sh -c 'echo $$ > orphan; exec sleep 600' & while [ ! -s orphan ]; do :; done; exit 3",
    );
    let end = bench.run_to_end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::exited(3))
    );
    assert!(!is_alive(pid_in(&bench.file("orphan"))));
    assert!(
        end.usage.peak_memory_bytes > 0
            && end.usage.cpu_user_micros + end.usage.cpu_system_micros > 0,
        "{:?}",
        end.usage
    );
}

#[test]
fn without_isolation_a_deaf_job_is_killed_after_the_grace() {
    let mut bench =
        Bench::bare("trap '' TERM; setsid sleep 600 & touch deaf; while :; do sleep 600; done");
    let mut link = bench.start_and_go();
    bench.file_when("deaf", |_| true);
    link.stop(1);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Stopped, ExitCode::killed(9))
    );
}
