//! gstepd with real processes: in cgroups of its own (needs root), and without isolation. Each test has its own run directory
//! and cgroup subtree and takes both away.

mod bench;
mod control;
mod end;
mod failure;
mod grun;
mod launch;
mod limits;
mod marks;
mod pam;
mod signal;
mod stand_by;
mod step_use;
mod steps;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use bench::{Bench, UID, exists};
use gmodel::ExitCode;
use gmodel::run::EndCause;
use gmodel::supervise::RunGpu;

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
