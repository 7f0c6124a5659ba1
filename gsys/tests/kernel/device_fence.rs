//! What a fence denies. Device nodes here have a major without a driver: opening one says ENXIO when the fence permits it
//! and EPERM when it does not, so that both answers are seen without any hardware.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gsys::cgroup::{Limits, RunCgroup, Trees};
use gsys::device_fence::{
    DeviceNumber, DeviceRule, Fence, FenceError, FenceRules, GpuNode, NodeDevices, attach,
    attach_run, audit, audit_run, char_major, query, replace, self_test,
};
use gsys::device_node::{make_char_device, remove_char_device, unused_major};
use gsys::process::Exit;

use crate::scratch::{Scratch, again_argv, end_of, not_run, passes_after, start_in};

const PERMITTED: &str = "No such device or address";
const DENIED: &str = "Operation not permitted";

/// A node with four simulated GPUs, minors 0 to 3, their device nodes in the scratch directory.
struct Gpus {
    major: u32,
    paths: Vec<PathBuf>,
}

impl Gpus {
    fn new(scratch: &Scratch) -> Gpus {
        let major = unused_major(&[]).expect("a free major");
        let paths: Vec<PathBuf> = (0..4)
            .map(|i| scratch.dir.join(format!("gpu{i}")))
            .collect();
        for (minor, path) in (0..).zip(&paths) {
            make_char_device(path, DeviceNumber { major, minor }).expect("mknod");
        }
        Gpus { major, paths }
    }

    fn device(&self, minor: u32) -> DeviceNumber {
        DeviceNumber {
            major: self.major,
            minor,
        }
    }

    fn rules(&self, owned: &[u32]) -> FenceRules {
        let gpu = |minor| GpuNode {
            device: self.device(minor),
            render: Vec::new(),
        };
        let node = NodeDevices {
            gpus: (0..4).map(gpu).collect(),
            ..NodeDevices::default()
        };
        let owned: Vec<DeviceNumber> = owned.iter().map(|minor| self.device(*minor)).collect();
        node.rules_for_run(&owned, &[], &[], false)
    }

    /// What opening each of them says in the job.
    fn opened_in(&self, scratch: &Scratch, run: &RunCgroup) -> Vec<&'static str> {
        self.paths
            .iter()
            .map(|path| answer(scratch, run, &format!(": < {}", path.display())))
            .collect()
    }
}

/// Runs a command in the job and finds which of the two answers it got.
fn answer(scratch: &Scratch, run: &RunCgroup, command: &str) -> &'static str {
    scratch.run_shell_in(run, command);
    let text = scratch.read_output();
    match (text.contains(PERMITTED), text.contains(DENIED)) {
        (true, false) => PERMITTED,
        (false, true) => DENIED,
        _ => panic!("neither answer: {text:?}"),
    }
}

fn fenced(scratch: &Scratch, rules: &FenceRules) -> (RunCgroup, Fence) {
    let run = scratch.run(&Limits::default());
    let fence = attach_run(&run, rules).expect("attach");
    (run, fence)
}

#[test]
fn a_job_opens_its_own_gpu_and_no_other() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let gpus = Gpus::new(&scratch);
    let (run, _) = fenced(&scratch, &gpus.rules(&[2]));
    assert_eq!(
        gpus.opened_in(&scratch, &run),
        [DENIED, DENIED, PERMITTED, DENIED]
    );
    assert_eq!(
        scratch.run_shell_in(
            &run,
            "echo x > /dev/null && head -c 1 /dev/urandom > /dev/null"
        ),
        Exit::Code(0)
    );
}

#[test]
fn a_job_without_gpus_opens_none() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let gpus = Gpus::new(&scratch);
    let (run, _) = fenced(&scratch, &gpus.rules(&[]));
    assert_eq!(gpus.opened_in(&scratch, &run), [DENIED; 4]);
}

#[test]
fn a_job_cannot_make_a_node_of_a_foreign_gpu() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let gpus = Gpus::new(&scratch);
    let (run, _) = fenced(&scratch, &gpus.rules(&[2]));
    let mknod = |minor: u32| {
        format!(
            "mknod {}/made{minor} c {} {minor}",
            scratch.dir.display(),
            gpus.major
        )
    };
    assert_eq!(scratch.run_shell_in(&run, &mknod(2)), Exit::Code(0));
    for minor in [1, 77] {
        assert_eq!(
            answer(&scratch, &run, &mknod(minor)),
            DENIED,
            "minor {minor}"
        );
    }
}

#[test]
fn every_descendant_is_fenced() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let gpus = Gpus::new(&scratch);
    let (run, _) = fenced(&scratch, &gpus.rules(&[2]));
    let nested = run.fence_dir().expect("dir").join("nested");
    let command = format!(
        "mkdir {0}; echo 0 > {0}/cgroup.procs; setsid sh -c ': < {1}'",
        nested.display(),
        gpus.paths[0].display()
    );
    assert_eq!(answer(&scratch, &run, &command), DENIED);
}

#[test]
fn a_default_of_deny_permits_terminals_and_null_only() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let gpus = Gpus::new(&scratch);
    let node = NodeDevices {
        gpus: vec![GpuNode {
            device: gpus.device(0),
            render: vec![],
        }],
        ..NodeDevices::default()
    };
    let (run, _) = fenced(
        &scratch,
        &node.rules_for_run(&[gpus.device(0)], &[], &[], true),
    );
    assert_eq!(
        gpus.opened_in(&scratch, &run),
        [PERMITTED, DENIED, DENIED, DENIED]
    );
    assert_eq!(
        scratch.run_shell_in(&run, "echo x > /dev/null && : < /dev/zero"),
        Exit::Code(0)
    );
    assert_eq!(answer(&scratch, &run, ": < /dev/kmsg"), DENIED);
}

#[test]
fn a_fence_is_swapped_in_place() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let gpus = Gpus::new(&scratch);
    let (run, first) = fenced(&scratch, &gpus.rules(&[2]));
    let dir = run.fence_dir().expect("dir");
    let second = replace(&dir, &first, &gpus.rules(&[0, 1])).expect("replace");
    assert_ne!(first.tag, second.tag);
    assert_eq!(
        query(&dir).expect("query"),
        [second],
        "one fence, the new one"
    );
    assert_eq!(
        gpus.opened_in(&scratch, &run),
        [PERMITTED, PERMITTED, DENIED, DENIED]
    );
    if first.program_id != 0 {
        let stale = replace(&dir, &first, &gpus.rules(&[3]))
            .expect_err("the first is not attached any more");
        assert!(
            matches!(stale, FenceError::Changed { .. } | FenceError::Io { .. }),
            "{stale}"
        );
        assert_eq!(query(&dir).expect("query"), [second]);
    }
}

#[test]
fn an_audit_finds_a_fence_that_is_gone_or_another() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let gpus = Gpus::new(&scratch);
    let rules = gpus.rules(&[2]);
    let run = scratch.run(&Limits::default());
    assert!(
        matches!(audit_run(&run, &rules), Err(FenceError::Changed { .. })),
        "none yet"
    );
    let fence = attach_run(&run, &rules).expect("attach");
    assert_eq!(audit_run(&run, &rules).expect("intact"), fence);
    assert!(
        matches!(
            audit_run(&run, &gpus.rules(&[1])),
            Err(FenceError::Changed { .. })
        ),
        "another's rules"
    );
    let dir = run.fence_dir().expect("dir");
    if fence.program_id == 0 {
        return not_run("detaching is for v2 trees").unwrap_or(());
    }
    assert_eq!(bpf_detach(&dir, fence.program_id), Ok(()));
    assert!(
        matches!(
            audit_run(&run, &rules),
            Err(FenceError::Changed { found: 0, .. })
        ),
        "detached"
    );
}

#[test]
fn a_fence_outlives_the_process_that_attached_it() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let gpus = Gpus::new(&scratch);
    let run = scratch.run(&Limits::default());
    let dir = run.fence_dir().expect("dir");
    let status = again(
        "child_that_attaches",
        &[
            ("GSYS_TEST_DIR", dir.as_os_str()),
            ("GSYS_TEST_MAJOR", gpus.major.to_string().as_ref()),
        ],
    );
    assert!(status, "the attaching process");
    assert_eq!(
        audit(&dir, &gpus.rules(&[2])).expect("still there").tag,
        query(&dir).expect("query")[0].tag
    );
    assert_eq!(
        gpus.opened_in(&scratch, &run),
        [DENIED, DENIED, PERMITTED, DENIED]
    );
}

/// Not a test by itself: what `a_fence_outlives_the_process_that_attached_it` runs as a process of its own.
#[test]
fn child_that_attaches() {
    let (Some(dir), Some(major)) = (
        std::env::var_os("GSYS_TEST_DIR"),
        std::env::var("GSYS_TEST_MAJOR").ok(),
    ) else {
        return;
    };
    let gpus = Gpus {
        major: major.parse().expect("number"),
        paths: Vec::new(),
    };
    attach(Path::new(&dir), &gpus.rules(&[2])).expect("attach");
}

#[test]
fn a_confined_root_job_neither_detaches_its_fence_nor_leaves_its_cgroup() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let gpus = Gpus::new(&scratch);
    let (run, fence) = fenced(&scratch, &gpus.rules(&[2]));
    let dir = run.fence_dir().expect("dir");
    let script = |command: &str| {
        let mut spec = scratch.shell(command);
        spec.confine_root = true;
        let child = start_in(&run, spec).expect("start");
        end_of(child.pid)
    };
    for mount in scratch.root.trees().mounts() {
        let leave = format!("echo $$ > {}/cgroup.procs", mount.display());
        assert_ne!(script(&leave), Exit::Code(0), "{leave}");
        assert!(
            scratch.read_output().contains("Read-only file system"),
            "{}",
            scratch.read_output()
        );
        let remount = format!("mount -o remount,rw,bind {}", mount.display());
        assert_ne!(script(&remount), Exit::Code(0), "{remount}");
    }
    let outside = format!(
        "echo 1 > /proc/{}/root{}/cgroup.freeze",
        std::process::id(),
        dir.display()
    );
    assert_ne!(script(&outside), Exit::Code(0), "{outside}");
    assert_ne!(
        script(&format!(
            "mknod {}/x c {} 2",
            scratch.dir.display(),
            gpus.major
        )),
        Exit::Code(0),
        "no MKNOD"
    );
    assert_eq!(
        script("nsenter -t 1 -m true 2>/dev/null || unshare -m true 2>/dev/null || exit 7"),
        Exit::Code(7)
    );
    if fence.program_id != 0 {
        let mut spec = scratch.shell("");
        spec.argv = again_argv("device_fence::child_that_detaches");
        spec.env.push(("GSYS_TEST_DIR".into(), dir.clone().into()));
        spec.env.push((
            "GSYS_TEST_PROGRAM".into(),
            fence.program_id.to_string().into(),
        ));
        spec.confine_root = true;
        let child = start_in(&run, spec).expect("start");
        assert_eq!(
            end_of(child.pid),
            Exit::Code(0),
            "{}",
            scratch.read_output()
        );
    }
    assert_eq!(audit_run(&run, &gpus.rules(&[2])).expect("intact"), fence);
}

/// Not a test by itself: run inside a confined job, where taking the fence off must fail.
#[test]
fn child_that_detaches() {
    let (Some(dir), Ok(program)) = (
        std::env::var_os("GSYS_TEST_DIR"),
        std::env::var("GSYS_TEST_PROGRAM"),
    ) else {
        return;
    };
    // The program cannot be opened, and a cgroup with several programs allowed wants to be told which one.
    let refused = bpf_detach(Path::new(&dir), program.parse().expect("number"));
    assert!(
        matches!(refused, Err(libc::EPERM | libc::EINVAL)),
        "{refused:?}"
    );
}

#[test]
fn on_v1_the_lists_say_the_same() {
    let trees = Trees::detect_v1_alone().expect("mountinfo");
    if trees.v1_mount(gsys::cgroup::Controller::Devices).is_none() {
        return not_run("needs the v1 devices controller").unwrap_or(());
    }
    let Some(scratch) = Scratch::in_trees(trees) else {
        return;
    };
    let gpus = Gpus::new(&scratch);
    let (run, fence) = fenced(&scratch, &gpus.rules(&[2]));
    assert_eq!(fence.program_id, 0);
    assert_eq!(
        gpus.opened_in(&scratch, &run),
        [DENIED, DENIED, PERMITTED, DENIED]
    );
    assert_eq!(audit_run(&run, &gpus.rules(&[2])).expect("intact"), fence);
    let dir = run.fence_dir().expect("dir");
    replace(&dir, &fence, &gpus.rules(&[3])).expect("replace");
    assert_eq!(
        gpus.opened_in(&scratch, &run),
        [DENIED, DENIED, DENIED, PERMITTED]
    );
    fs::write(dir.join("devices.allow"), format!("c {}:* rwm", gpus.major))
        .expect("somebody opens the fence");
    assert!(matches!(
        audit_run(&run, &gpus.rules(&[3])),
        Err(FenceError::Changed { .. })
    ));
    self_test(&scratch.root).expect("the probe works on v1");
}

#[test]
fn the_self_test_passes_here_and_fails_where_fences_do_not_hold() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    self_test(&scratch.root).expect("fences work on this machine");
    let rel = scratch.root.rel();
    let above = scratch
        .root
        .trees()
        .v2
        .as_ref()
        .map(|mount| mount.join(rel));
    let Some(above) = above else {
        return not_run("needs a v2 tree").unwrap_or(());
    };
    let no_null = FenceRules {
        deny: vec![DeviceRule {
            major: 1,
            minor: Some(3),
        }],
        ..FenceRules::default()
    };
    attach(&above, &no_null).expect("attach above");
    let failed = self_test(&scratch.root).expect_err("/dev/null is denied from above");
    assert!(
        failed
            .to_string()
            .contains("/dev/null was not denied and could not be opened"),
        "{failed}"
    );
    assert!(scratch.root.runs().expect("list").is_empty());
    assert!(
        fs::read_dir(&above)
            .expect("list")
            .flatten()
            .all(|e| !e.path().is_dir()),
        "no probe is left"
    );
}

#[test]
fn the_self_test_notices_a_device_that_opens_all_the_same() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let blind = "mount --bind /dev/null /dev/full";
    assert!(passes_after(
        &scratch,
        blind,
        "device_fence::child_without_a_full_device"
    ));
}

/// Not a test by itself: run where /dev/full is another device than the probe's fence denies.
#[test]
fn child_without_a_full_device() {
    if std::env::var_os("GSYS_TEST_AGAIN").is_none() {
        return;
    }
    let scratch = Scratch::new().expect("as the caller");
    let failed = self_test(&scratch.root).expect_err("it opens");
    assert!(
        failed.to_string().contains("could be opened all the same"),
        "{failed}"
    );
}

#[test]
fn a_directory_outside_the_cgroup_trees_is_refused() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let refused = attach(&scratch.dir, &FenceRules::default()).expect_err("a plain directory");
    assert!(matches!(refused, FenceError::NoTree(_)), "{refused}");
}

#[test]
fn majors_are_found_by_the_drivers_name() {
    assert_eq!(char_major("mem").expect("/proc/devices"), Some(1));
    assert_eq!(char_major("no-such-driver").expect("/proc/devices"), None);
    let free = unused_major(&[]).expect("free");
    assert_ne!(unused_major(&[free]).expect("another"), free);
}

#[test]
fn only_device_nodes_are_removed() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let gpus = Gpus::new(&scratch);
    assert_eq!(
        gsys::device_node::char_device(&gpus.paths[3]).expect("stat"),
        Some(gpus.device(3))
    );
    remove_char_device(&gpus.paths[3]).expect("remove");
    remove_char_device(&gpus.paths[3]).expect("absent");
    let file = scratch.dir.join("file");
    fs::write(&file, "mine").expect("write");
    remove_char_device(&file).expect_err("not a device");
    assert_eq!(fs::read_to_string(&file).expect("still there"), "mine");
}

/// Runs one function of this program as a process of its own.
fn again(test: &str, env: &[(&str, &std::ffi::OsStr)]) -> bool {
    let argv = again_argv(&format!("device_fence::{test}"));
    let output = Command::new(&argv[0])
        .args(&argv[1..])
        .envs(env.iter().copied())
        .output()
        .expect("run");
    output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed")
}

/// BPF_PROG_DETACH, which gsys itself never calls. The error is an errno.
fn bpf_detach(dir: &Path, program: u32) -> Result<(), i32> {
    use std::os::fd::AsRawFd;
    let dir = fs::File::open(dir).expect("open cgroup");
    let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let by_id = [program, 0, 0];
    // SAFETY: BPF_PROG_GET_FD_BY_ID (13) with three integers that outlive the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, 13, by_id.as_ptr(), size_of_val(&by_id)) };
    // Without the right to open the program, detaching is tried without naming it.
    let attr = [dir.as_raw_fd() as u32, fd.max(0) as u32, 6, 0, 0];
    // SAFETY: BPF_PROG_DETACH (9): target, program, BPF_CGROUP_DEVICE.
    let done = unsafe { libc::syscall(libc::SYS_bpf, 9, attr.as_ptr(), size_of_val(&attr)) };
    let result = if done == 0 { Ok(()) } else { Err(errno()) };
    if fd >= 0 {
        // SAFETY: a descriptor that this function got.
        unsafe { libc::close(fd as i32) };
    }
    result
}
