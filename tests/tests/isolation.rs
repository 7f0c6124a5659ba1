//! Jobs that will not end, will not stay, or take what they were not given: the kernel's word counts, on real cgroups
//! and real device files.

use gmodel::JobState::{Cancelled, Completed, Failed, OutOfMemory, Running, Timeout};
use gpupool_tests::pool::{Pool, is_alive};
use std::fs;

/// Tries to open each GPU device file of a node: a line `nvidia3 ok` or with what the kernel says. There is no driver,
/// so a device that may be opened answers ENXIO, and one that may not EPERM.
fn try_devices(pool: &Pool) -> String {
    format!(
        "for d in {}/node1/dev/nvidia*; do echo \"$(basename $d) $( (: < $d) 2>&1 | sed 's/.*: //')\"; done",
        pool.dir.display()
    )
}

/// Names of the device files that could be opened, and of those that were denied.
fn sort_devices(text: &str) -> (Vec<&str>, Vec<&str>) {
    let with = |words: &str| {
        text.lines()
            .filter_map(|line| line.split_once(' ').filter(|(_, said)| *said == words))
            .map(|(name, _)| name)
            .collect()
    };
    (
        with("No such device or address"),
        with("Operation not permitted"),
    )
}

#[test]
fn a_job_opens_its_own_gpus_and_no_others_whoever_it_is() {
    let Some(pool) = Pool::up(1, "h100:4") else {
        return;
    };
    let script = format!(
        "{}; touch read.$GSUB_JOB_ID; while [ ! -e go ]; do sleep 0.02; done",
        try_devices(&pool)
    );
    let args = ["--gpus", "1", "-o", "%j.txt", "--wrap", &script];
    let of_root = pool.gsub(&args);
    let of_user = pool.run_as_user("gsub", &args).id();
    for id in [of_root, of_user] {
        pool.wait_until("the devices were tried", || {
            pool.work.join(format!("read.{id}")).exists()
        });
    }
    let gpus = pool.node("node1").gpus;
    let mut owned = Vec::new();
    for id in [of_root, of_user] {
        let mine: Vec<_> = gpus
            .iter()
            .filter(|gpu| gpu.jobs == [id.to_string()])
            .map(|gpu| format!("nvidia{}", gpu.minor))
            .collect();
        assert_eq!(mine.len(), 1, "{gpus:?}");
        let text = pool.file(&format!("{id}.txt"));
        let (open, denied) = sort_devices(&text);
        // The shell lists them in this order.
        assert_eq!(
            open,
            ["nvidia-uvm", "nvidia-uvm-tools", &mine[0], "nvidiactl"],
            "{text}"
        );
        assert_eq!(denied.len(), 3, "{text}");
        owned.push(mine[0].clone());
    }
    assert_ne!(owned[0], owned[1]);
    pool.write("go", "");
    pool.wait_state(of_root, Completed);
    // A job without GPUs opens none of all these.
    let id = pool
        .run_as_user("gsub", &["-o", "none.txt", "--wrap", &try_devices(&pool)])
        .id();
    pool.wait_state(id, Completed);
    let text = pool.file("none.txt");
    assert_eq!(sort_devices(&text).0, Vec::<&str>::new(), "{text}");
    assert_eq!(sort_devices(&text).1.len(), 7, "{text}");
}

#[test]
fn a_root_job_cannot_lift_its_fence_or_leave_its_cgroup() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let other = pool.gsub(&["--gpus", "1", "--wrap", "sleep 1000"]);
    pool.wait_state(other, Running);
    let script = format!(
        "cat /proc/self/cgroup > before\n\
         for dir in $(awk '$3 ~ /^cgroup/ {{ print $2 }}' /proc/mounts | sort -u); do\n\
           (echo $$ > $dir/cgroup.procs) 2>/dev/null && echo \"moved to $dir\"\n\
           (echo $$ > $dir/tasks) 2>/dev/null && echo \"moved to $dir\"\n\
           mkdir $dir/mine 2>/dev/null && echo \"made $dir/mine\"\n\
           mount -o remount,rw $dir 2>/dev/null && echo \"remounted $dir\"\n\
           umount -l $dir 2>/dev/null && echo \"unmounted $dir\"\n\
         done\n\
         mkdir /sys/fs/cgroup/mine 2>/dev/null && echo 'made a directory above the trees'\n\
         mkdir cg; mount -t cgroup2 none cg 2>/dev/null && echo 'mounted cgroup2'\n\
         unshare -m true 2>/dev/null && echo 'unshared'\n\
         nsenter -t 1 -m true 2>/dev/null && echo 'entered init'\n\
         ls /proc/{gpud}/root/ >/dev/null 2>&1 && echo 'looked into gpud'\n\
         mknod gpu c $(stat -c '0x%t 0x%T' {dir}/node1/dev/nvidia0) 2>/dev/null && echo 'made a device'\n\
         [ -n \"$dir\" ] || echo 'moved: no tree was tried'\n\
         cat /proc/self/cgroup > after\n\
         grep CapBnd /proc/self/status | tr -d '\\t' > caps; grep NoNewPrivs /proc/self/status\n\
         {devices}",
        gpud = pool.daemon_pid("node1"),
        dir = pool.dir.display(),
        devices = try_devices(&pool),
    );
    let id = pool.gsub(&["--gpus", "1", "-o", "out", "--wrap", &script]);
    pool.wait_state(id, Completed);
    let out = pool.file("out");
    for broken in ["moved", "made", "mounted", "unshared", "entered", "looked"] {
        assert!(!out.contains(broken), "{out}");
    }
    assert_eq!(pool.file("before"), pool.file("after"));
    assert!(
        pool.file("after")
            .contains(&format!("/gpupool-{}/node1/run_{id}-1/job", pool.tag()))
    );
    // Two open control files, its own GPU; the other one is denied.
    assert_eq!(sort_devices(&out).1.len(), 1, "{out}");
    let caps = pool.file("caps");
    let caps = u64::from_str_radix(caps.trim().trim_start_matches("CapBnd:"), 16).unwrap();
    let dropped = [
        (12, "NET_ADMIN"),
        (16, "SYS_MODULE"),
        (17, "SYS_RAWIO"),
        (19, "SYS_PTRACE"),
        (21, "SYS_ADMIN"),
        (22, "SYS_BOOT"),
        (27, "MKNOD"),
        (38, "PERFMON"),
        (39, "BPF"),
    ];
    for (bit, name) in dropped {
        assert_eq!(
            caps >> bit & 1,
            0,
            "CAP_{name} is in the bounding set {caps:x}"
        );
    }
}

#[test]
fn a_cancelled_job_that_ignores_sigterm_and_forked_away_is_gone_with_all_it_started() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    pool.reconfigure("gpuctld", "kill_grace_secs = 1");
    let script = "trap '' TERM HUP INT\n\
                  setsid sh -c 'trap \"\" TERM; echo $$ >> pids; sleep 1000; sleep 1000' &\n\
                  ( ( setsid sh -c 'echo $$ >> pids; exec sleep 1000' & ) & )\n\
                  echo $$ >> pids; touch up; while :; do sleep 0.1; done";
    let id = pool
        .run_as_user("gsub", &["--gpus", "1", "--wrap", script])
        .id();
    pool.wait_until("all three have begun", || {
        pool.file("pids").lines().count() == 3 && pool.work.join("up").exists()
    });
    let pids: Vec<i32> = pool
        .file("pids")
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    assert_eq!(pool.run_as_user("gdel", &[&id.to_string()]).code, 0);
    pool.wait_state(id, Cancelled);
    pool.wait_idle("node1");
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "{pids:?}");
    let next = pool
        .run_as_user("gsub", &["--gpus", "1", "--wrap", "true"])
        .id();
    pool.wait_state(next, Completed);
}

#[test]
fn orphans_do_not_outlive_a_job_that_ends_by_itself() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let script = "( setsid sh -c 'echo $$ > orphan; exec sleep 1000' & ) ; while [ ! -s orphan ]; do sleep 0.01; done; exit 3";
    let id = pool.run_as_user("gsub", &["--wrap", script]).id();
    assert_eq!(pool.wait_state(id, Failed).exit_code.code, 3);
    pool.wait_idle("node1");
    assert!(!is_alive(pool.file("orphan").trim().parse().unwrap()));
}

#[test]
fn a_job_that_stops_itself_still_ends_at_its_cancel() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.reconfigure("gpuctld", "kill_grace_secs = 1");
    let script = "setsid sleep 1000 & echo $! > pids; kill -STOP $!; echo $$ >> pids; touch up; kill -STOP $$";
    let id = pool.run_as_user("gsub", &["--wrap", script]).id();
    pool.wait_until("it stopped", || pool.work.join("up").exists());
    assert_eq!(pool.run_as_user("gdel", &[&id.to_string()]).code, 0);
    pool.wait_state(id, Cancelled);
    pool.wait_idle("node1");
    assert!(
        pool.file("pids")
            .lines()
            .all(|line| !is_alive(line.parse().unwrap()))
    );
}

#[test]
fn a_job_that_starts_processes_without_end_meets_its_limit_and_leaves_a_usable_node() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.reconfigure("node1", "pids_max = 60");
    pool.wait_until("the node is back", || pool.node("node1").state == "IDLE");
    let id = pool
        .run_as_user(
            "gsub",
            &[
                "-o",
                "bomb",
                "--wrap",
                "for i in $(seq 300); do sleep 1000 & echo $i > count; done; wait",
            ],
        )
        .id();
    pool.wait_state(id, Failed);
    let started: u32 = pool.file("count").trim().parse().unwrap();
    assert!(started < 60, "{started} processes with a limit of 60");
    pool.wait_idle("node1");
    assert!(pool.processes_of("node1", &format!("{id}-1")).is_empty());
    let next = pool.run_as_user("gsub", &["--wrap", "true"]).id();
    pool.wait_state(next, Completed);
}

#[test]
fn a_job_over_its_memory_is_out_of_memory_and_a_neighbour_goes_on() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    // Memory that is found, not declared, is enforced.
    let path = pool.config("node1");
    let text: String = fs::read_to_string(&path)
        .unwrap()
        .lines()
        .filter(|line| !line.starts_with("mem_bytes"))
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(&path, text).unwrap();
    pool.reconfigure("node1", "");
    pool.wait_until("the node says what it has", || {
        pool.node("node1").mem_bytes != 512 << 30
    });
    let neighbour = pool.gsub(&[
        "--mem",
        "64M",
        "--wrap",
        "while [ ! -e go ]; do sleep 0.02; done",
    ]);
    let id = pool
        .run_as_user(
            "gsub",
            &[
                "--mem",
                "40M",
                "-o",
                "/dev/null",
                "--wrap",
                "head -c 300000000 /dev/zero | tail -n 1 | wc -c",
            ],
        )
        .id();
    let job = pool.wait_state(id, OutOfMemory);
    assert!(!job.end_text.is_empty(), "{job:?}");
    let run = &pool.attempts(id)[0];
    assert!(
        run.peak_memory_bytes <= 40 << 20 && run.peak_memory_bytes > 20 << 20,
        "{run:?}"
    );
    assert_eq!(pool.job(neighbour).state, Running);
    pool.write("go", "");
    pool.wait_state(neighbour, Completed);
    pool.wait_idle("node1");
}

/// A requested memory limit holds; the default share of a job that requests none does not.
#[test]
fn in_a_sandbox_too_a_job_is_held_to_the_memory_it_asked_for_and_to_no_other() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    // A share of 8 MiB for each of 64 CPUs.
    let config = fs::read_to_string(pool.config("node1")).unwrap();
    assert!(config.contains("mem_bytes = 549755813888"), "{config}");
    fs::write(
        pool.config("node1"),
        config.replace("mem_bytes = 549755813888", "mem_bytes = 536870912"),
    )
    .unwrap();
    pool.reconfigure("node1", "");
    pool.wait_until("the node says what it has", || {
        pool.node("node1").mem_bytes == 512 << 20
    });
    let fill = |options: &[&str]| {
        let command = [
            "-o",
            "/dev/null",
            "--wrap",
            "head -c 100000000 /dev/zero | tail -n 1 | wc -c",
        ];
        pool.run_as_user("gsub", &[options, &command].concat()).id()
    };
    let unasked = fill(&[]);
    pool.wait_state(unasked, Completed);
    assert!(
        pool.attempts(unasked)[0].peak_memory_bytes > 64 << 20,
        "more than its share of the declared memory"
    );
    let enough = fill(&["--mem", "200M"]);
    pool.wait_state(enough, Completed);
    let main = pool.dir.join("gpuctld/partitions.d/main.toml");
    for asked in [
        &["--mem", "40M"][..],
        &["-c", "2", "--mem-per-cpu", "20M"],
        &[],
    ] {
        if asked.is_empty() {
            let text = fs::read_to_string(&main).unwrap();
            fs::write(&main, format!("{text}mem_per_cpu = \"40M\"\n")).unwrap();
            assert_eq!(pool.run("gadm", &["reload"]).code, 0);
        }
        let id = fill(asked);
        let text = pool.wait_state(id, OutOfMemory).end_text;
        assert!(
            text.contains("the limit is 40 MiB, the peak was") && text.contains("--mem"),
            "{asked:?}: {text}"
        );
        let run = &pool.attempts(id)[0];
        assert!(
            run.peak_memory_bytes <= 40 << 20 && run.peak_memory_bytes > 20 << 20,
            "{asked:?}: {run:?}"
        );
        let shown = pool.run("gq", &[&id.to_string()]).out;
        assert!(
            shown.contains("JobState=OUT_OF_MEMORY") && shown.contains("the limit is 40 MiB"),
            "{shown}"
        );
    }
}

#[test]
fn a_time_limit_ends_a_job_that_ignores_it_also_without_any_daemon() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.reconfigure("gpuctld", "kill_grace_secs = 1");
    let id = pool
        .run_as_user(
            "gsub",
            &[
                "-t",
                "0:02",
                "--wrap",
                "trap 'echo term >> said' TERM; echo $$ > pid; while :; do sleep 0.05; done",
            ],
        )
        .id();
    let pid: i32 = pool.wait_file("pid").trim().parse().unwrap();
    pool.kill("gpuctld");
    pool.kill("node1");
    pool.wait_until("the supervisor ended it alone", || !is_alive(pid));
    assert_eq!(pool.file("said"), "term\n", "SIGTERM comes first");
    pool.start("gpuctld");
    pool.start("node1");
    pool.wait_state(id, Timeout);
    pool.wait_idle("node1");
}

#[test]
fn a_job_with_an_unopened_fifo_ends_at_its_cancel_and_at_its_limit_without_the_grace() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.reconfigure("gpuctld", "kill_grace_secs = 600");
    assert_eq!(pool.run_shell("mkfifo -m 666 pipe").code, 0);
    let cancelled = pool
        .run_as_user("gsub", &["-i", "pipe", "--wrap", "touch started"])
        .id();
    let limited = pool
        .run_as_user(
            "gsub",
            &["-t", "0:01", "-i", "pipe", "--wrap", "touch started"],
        )
        .id();
    pool.wait_until("the job waits for its input", || {
        !pool
            .processes_of("node1", &format!("{cancelled}-1"))
            .is_empty()
    });
    assert_eq!(pool.run_as_user("gdel", &[&cancelled.to_string()]).code, 0);
    pool.wait_state(cancelled, Cancelled);
    let text = pool.wait_state(limited, Timeout).end_text;
    assert!(
        text.contains("its directory, input or output did not open"),
        "{text}"
    );
    assert!(!pool.work.join("started").exists());
    pool.wait_idle("node1");
}

#[test]
fn jobs_cancelled_while_they_start_leave_nothing() {
    let Some(pool) = Pool::up(1, "h100:8") else {
        return;
    };
    let mut ids = Vec::new();
    for n in 0..12u64 {
        let id = pool
            .run_as_user("gsub", &["--gpus", "1", "--wrap", "sleep 1000"])
            .id();
        std::thread::sleep(std::time::Duration::from_millis(n * 5));
        assert_eq!(pool.run_as_user("gdel", &[&id.to_string()]).code, 0);
        ids.push(id);
    }
    for id in ids {
        pool.wait_state(id, Cancelled);
        assert!(pool.processes_of("node1", &format!("{id}-1")).is_empty());
    }
    pool.wait_idle("node1");
    assert!(
        pool.node("node1")
            .gpus
            .iter()
            .all(|gpu| gpu.jobs.is_empty())
    );
    pool.check();
}

#[test]
fn a_private_tmp_is_the_jobs_own_and_removed_with_it() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let file = pool.dir.join("gpuctld/partitions.d/main.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}private_tmp = true\n")).unwrap();
    let said = pool.run("gadm", &["reload"]);
    assert_eq!(said.code, 0, "{said:?}");
    // The pool lies in /tmp itself, so a job that works there is told so.
    pool.run_as_user("gsub", &["--wrap", "true"])
        .fails_with(1, "/tmp");
    let secret = format!("/var/tmp/gpupool-test-{}", pool.tag());
    fs::create_dir(&secret).unwrap();
    std::os::unix::fs::chown(&secret, Some(pool.person().uid), None).unwrap();
    let hosts = tempfile::Builder::new()
        .prefix("gpupool-test-host-")
        .tempfile()
        .unwrap();
    let script = "ls -A /tmp | grep -c gpupool-test-host; echo mine > /tmp/mine; echo shm > /dev/shm/mine; ls -ld /tmp | cut -c1-10; ls /tmp/mine";
    let id = pool
        .run_as_user("gsub", &["-D", &secret, "-o", "out", "--wrap", script])
        .id();
    pool.wait_state(id, Completed);
    let out = fs::read_to_string(format!("{secret}/out")).unwrap();
    fs::remove_dir_all(&secret).unwrap();
    assert_eq!(out, "0\ndrwxrwxrwt\n/tmp/mine\n");
    drop(hosts);
    assert!(
        !std::path::Path::new("/tmp/mine").exists()
            && !std::path::Path::new("/dev/shm/mine").exists()
    );
    pool.wait_idle("node1");
    let private = fs::read_dir(pool.dir.join("node1/spool/private"))
        .unwrap()
        .count();
    assert_eq!(private, 0, "the directory is still there");
}

/// node1 gives each run CPUs of its own. Its two real CPUs stand for two memory nodes, as the simulated GPUs have them.
fn with_cpus_of_their_own(gpus: &str) -> Option<Pool> {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("NOT RUN: CPUs of a run's own need a machine with two");
        return None;
    }
    let pool = Pool::up(1, gpus)?;
    let system = pool.work.join("cpus");
    let write = |path: &str, text: &str| {
        let path = system.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("cpu/online", "0-1");
    write("node/online", "0-1");
    for (node, distance) in ["10 21", "21 10"].into_iter().enumerate() {
        write(&format!("node/node{node}/cpulist"), &node.to_string());
        write(
            &format!("node/node{node}/meminfo"),
            &format!("Node {node} MemTotal: 268435456 kB\n"),
        );
        write(&format!("node/node{node}/distance"), distance);
        write(
            &format!("cpu/cpu{node}/topology/thread_siblings_list"),
            &node.to_string(),
        );
    }
    let config = fs::read_to_string(pool.config("node1")).unwrap();
    let config = config.replace("cpus = 64", "cpus = 2\ncpu_binding = \"cpuset\"");
    fs::write(
        pool.config("node1"),
        format!("cpu_dir = {:?}\n{config}", system.display().to_string()),
    )
    .unwrap();
    pool.kill("node1");
    pool.start("node1");
    pool.wait_until("node1 has two CPUs", || pool.node("node1").cpus == 2);
    pool.wait_idle("node1");
    Some(pool)
}

const OWN_CPUS: &str = "grep Cpus_allowed_list /proc/self/status | tr -dc '0-9,-'; echo";

#[test]
fn a_run_has_cpus_of_its_own_near_its_gpus_and_keeps_them_when_gpud_is_replaced() {
    let Some(pool) = with_cpus_of_their_own("h100:4") else {
        return;
    };
    let script = format!(
        "{{ {OWN_CPUS}; }} > cpus.$GSUB_JOB_ID; while [ ! -e go.$GSUB_JOB_ID ]; do sleep 0.02; done; {OWN_CPUS}"
    );
    let job = |gpus: &str| {
        pool.run_as_user(
            "gsub",
            &[
                "--gpus", gpus, "-c", "1", "--mem", "1G", "-o", "%j.out", "--wrap", &script,
            ],
        )
        .id()
    };
    let cpus = |id: u64| pool.wait_file(&format!("cpus.{id}")).trim().to_owned();
    // Two GPUs stand beside each of the two CPUs.
    let (first, second) = (job("2"), job("2"));
    assert_eq!((cpus(first).as_str(), cpus(second).as_str()), ("0", "1"));
    let log = pool.run("gq", &["--log", &second.to_string()]);
    assert!(log.out.contains("CPUs 1"), "{log:?}");
    pool.kill("node1");
    pool.start("node1");
    pool.wait_until("it is back", || pool.node("node1").state == "ALLOCATED");
    // What the first leaves is all there is, and it is what the next gets; the second keeps its own.
    pool.write(&format!("go.{first}"), "");
    pool.wait_state(first, Completed);
    let third = job("2");
    assert_eq!(cpus(third), "0");
    for id in [second, third] {
        pool.write(&format!("go.{id}"), "");
        pool.wait_state(id, Completed);
    }
    assert_eq!(
        [second, third].map(|id| pool.file(&format!("{id}.out"))),
        ["1\n", "0\n"]
    );
    pool.wait_idle("node1");
    // Both CPUs for one.
    let both = pool
        .run_as_user("gsub", &["-c", "2", "-o", "both.out", "--wrap", OWN_CPUS])
        .id();
    pool.wait_state(both, Completed);
    assert_eq!(pool.file("both.out"), "0-1\n");
}

#[test]
fn tasks_are_bound_to_cpus_and_gpus_as_grun_says_and_see_all_of_them_otherwise() {
    let Some(pool) = with_cpus_of_their_own("h100:4") else {
        return;
    };
    let show = "sh -c 'echo $SLURM_PROCID $(grep Cpus_allowed_list /proc/self/status | tr -dc 0-9,-) ${SLURM_CPU_BIND_LIST:-none} $(echo $GSUB_GPU_UUIDS | tr , \" \" | wc -w) $GSUB_GPU_UUIDS'";
    let script = format!(
        "#!/bin/sh\n\
         PATH={path}:$PATH\n\
         grun {show} | sort > all\n\
         grun --cpu-bind=verbose,threads --gpu-bind=verbose,closest {show} 2> said | sort > bound\n\
         SLURM_GPU_BIND=map_gpu:3,0 grun --cpu-bind=map_cpu:1 {show} | sort > mapped\n\
         grun --gpu-bind=per_task:3 true 2> few; echo $? >> few\n\
         grun --cpu-bind=mask_cpu:0x4 true 2> foreign\n\
         grun --cpu-bind=corse true 2> word; echo $? >> word\n",
        path = gpupool_tests::pool::programs().display(),
    );
    let script = pool.write("bind.sh", script).display().to_string();
    let id = pool.gsub(&["--gpus", "4", "-n", "2", "-c", "1", &script]);
    pool.wait_state(id, Completed);
    let uuids: Vec<String> = pool
        .node("node1")
        .gpus
        .iter()
        .map(|gpu| gpu.uuid.clone())
        .collect();
    let all = uuids.join(",");
    assert_eq!(
        pool.file("all"),
        format!("0 0-1 none 4 {all}\n1 0-1 none 4 {all}\n")
    );
    let (near, far) = (uuids[..2].join(","), uuids[2..].join(","));
    assert_eq!(
        pool.file("bound"),
        format!("0 0 0x1 2 {near}\n1 1 0x2 2 {far}\n")
    );
    let said = pool.file("said");
    assert!(
        said.contains("cpu-bind=threads - node1, task  1  1: mask 0x2 set, CPUs 1\n"),
        "{said}"
    );
    assert!(
        said.contains(&format!(
            "gpu-bind=closest - node1, task  0  0: GPUs 0 ({}), 1 ({})\n",
            uuids[0], uuids[1]
        )),
        "{said}"
    );
    assert_eq!(
        pool.file("mapped"),
        format!("0 1 0x2 1 {}\n1 1 0x2 1 {}\n", uuids[3], uuids[0])
    );
    let few = pool.file("few");
    assert!(few.contains("--gpu-bind=per_task:3: task 1 of this node would be given GPUs 3 to 5, and the job has 4 here") && few.ends_with("\n1\n"), "{few}");
    assert!(
        pool.file("foreign")
            .contains("CPU 2 is not the job's on this node; it has 0-1"),
        "{}",
        pool.file("foreign")
    );
    assert!(
        pool.file("word").contains("Did you mean \"cores\"?")
            && pool.file("word").ends_with("\n2\n"),
        "{}",
        pool.file("word")
    );
    // A word to gsub is one to every grun of the job.
    let each = [
        "--gpus",
        "4",
        "-n",
        "2",
        "--gpu-bind",
        "per_task:2",
        "-o",
        "each",
        "--wrap",
    ];
    let grun = format!(
        "{}/grun sh -c 'echo $SLURM_PROCID $GSUB_GPU_UUIDS $CUDA_VISIBLE_DEVICES' | sort",
        gpupool_tests::pool::programs().display()
    );
    let id = pool.gsub(&[&each[..], &[&grun]].concat());
    pool.wait_state(id, Completed);
    assert_eq!(pool.file("each"), format!("0 {near} 0,1\n1 {far} 2,3\n"));
    pool.run_as_user(
        "gsub",
        &["--gpus", "1", "--gpu-bind", "closets", "--wrap", "true"],
    )
    .fails_with(2, "Did you mean \"closest\"?");
}

#[test]
fn a_node_that_declares_more_cpus_than_it_can_give_takes_no_work_and_says_so() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let config = fs::read_to_string(pool.config("node1")).unwrap();
    fs::write(
        pool.config("node1"),
        config.replace("cpus = 64", "cpus = 9999\ncpu_binding = \"cpuset\""),
    )
    .unwrap();
    pool.kill("node1");
    pool.start("node1");
    pool.wait_until("it says so", || {
        pool.node("node1")
            .unfit
            .contains("with cpus = 9999: this machine has")
    });
    let id = pool.gsub(&["--wrap", "true"]);
    pool.wait_until("a pass has looked at it", || {
        pool.job(id).reason != gmodel::ReasonCode::None
    });
    assert_eq!(pool.job(id).state, gmodel::JobState::Pending);
}
