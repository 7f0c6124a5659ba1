//! Errors of the job, of its user and of the node, and what is recorded of each.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::bench::{Bench, exists, wait_for};
use gmodel::ExitCode;
use gmodel::run::EndCause;
use gsys::cgroup::Limits;

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
