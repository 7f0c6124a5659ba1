//! Bad bytes, silent machines, machines that come back, and two of one name: every socket, with the real daemons.

use gmodel::JobState::{Completed, Failed, Pending, Running};
use gpupool_tests::namespace::Namespace;
use gpupool_tests::pool::{Pool, is_alive, say};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes that are no request: noise, heads without an end, lengths that lie.
fn garbage() -> Vec<Vec<u8>> {
    let noise: Vec<u8> = (0..100_000u64)
        .map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect();
    vec![
        noise,
        vec![0xff; 64],
        vec![0; 1 << 20],
        b"GET / HTTP/1.1\r\n".repeat(5_000),
        [b"GET /v1/jobs HTTP/1.1\r\nX: ".as_slice(), &[b'a'; 2 << 20]].concat(),
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{}".to_vec(),
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n".to_vec(),
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{\"spec\":7".to_vec(),
        // A frame of the node protocol that says it has 4 GiB, and a TLS record that says 64 KiB.
        vec![0xff, 0xff, 0xff, 0xff, b'{'],
        vec![0x16, 0x03, 0x01, 0xff, 0xff, 0x01],
        [b"{".repeat(200_000), b"[".repeat(200_000)].concat(),
    ]
}

/// Sends everything and reads what comes, for a moment; the other side may hang up at any time.
fn throw(mut stream: impl Read + Write, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
    let mut answer = [0; 4096];
    while stream.read(&mut answer).is_ok_and(|count| count > 0) {}
}

fn resident_mib(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("a live process");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[test]
fn garbage_on_every_socket_ends_its_connection_only() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    let waits = "touch up; while [ ! -e go ]; do sleep 0.02; done; exit 0";
    let id = pool
        .run_as_user("gsub", &["--gpus", "1", "--wrap", waits])
        .id();
    pool.wait_until("it runs", || pool.work.join("up").exists());
    let pids = ["gpuctld", "node1"].map(|daemon| pool.daemon_pid(daemon));
    let before = pids.map(resident_mib);
    let node_socket = pool.socket().parent().unwrap().join("node1/gpud.sock");
    let supervisor = node_socket.with_file_name(format!("marks/{id}-1.ctl"));
    let patience = Some(Duration::from_millis(300));
    for bytes in garbage() {
        for socket in [pool.socket(), node_socket.clone(), supervisor.clone()] {
            let Ok(stream) = UnixStream::connect(&socket) else {
                panic!("{} takes no connection", socket.display())
            };
            stream.set_read_timeout(patience).unwrap();
            stream.set_write_timeout(patience).unwrap();
            throw(stream, &bytes);
        }
        let stream = TcpStream::connect(pool.controller()).unwrap();
        stream.set_read_timeout(patience).unwrap();
        stream.set_write_timeout(patience).unwrap();
        throw(stream, &bytes);
    }
    assert_eq!(
        pids,
        ["gpuctld", "node1"].map(|daemon| pool.daemon_pid(daemon))
    );
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    for (pid, before) in pids.into_iter().zip(before) {
        let now = resident_mib(pid);
        assert!(
            now < before + 64,
            "process {pid} grew from {before} to {now} MiB"
        );
    }
    assert_eq!(pool.job(id).state, Running);
    // The node's own socket still serves the user with a job there, and no other user.
    let through_node = format!("socket = {:?}\n", node_socket.display().to_string());
    let config = pool.write("client-of-node.toml", through_node);
    let said = say(pool
        .user_command("gq")
        .env("GPUPOOL_CONFIG", config)
        .args(["-h", "-o", "%i"]));
    assert_eq!(
        (said.code, said.out.trim()),
        (0, id.to_string().as_str()),
        "{said:?}"
    );
    pool.write("go", "");
    assert_eq!(pool.wait_state(id, Completed).attempts, 1);
    pool.wait_idle("node1");
    let config = pool.work.join("client-of-node.toml");
    let said = say(pool
        .user_command("gq")
        .env("GPUPOOL_CONFIG", config)
        .arg("-h"));
    said.fails_with(1, "has no running job on this compute node");
}

#[test]
fn silent_connections_keep_no_other_out() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let silent: Vec<UnixStream> = (0..300)
        .filter_map(|_| UnixStream::connect(pool.socket()).ok())
        .collect();
    let also: Vec<TcpStream> = (0..100)
        .filter_map(|_| TcpStream::connect(pool.controller()).ok())
        .collect();
    assert!(silent.len() > 200 && also.len() > 50);
    let asked = Instant::now();
    let id = pool.gsub(&["--wrap", "true"]);
    pool.wait_state(id, Completed);
    assert!(
        asked.elapsed() < Duration::from_secs(5),
        "{:?}",
        asked.elapsed()
    );
    drop((silent, also));
}

/// Another "machine" with node1's certificate: sockets, spool and cgroups of its own.
struct Twin {
    home: PathBuf,
    daemon: Child,
}

impl Twin {
    /// `copied`: with all files of node1's directory, under another boot id.
    fn start(pool: &Pool, copied: bool) -> Self {
        let home = pool.dir.parent().unwrap().join("twin");
        for dir in ["state", "spool", "run"] {
            std::fs::create_dir_all(home.join(dir)).unwrap();
        }
        if copied {
            let from = pool.dir.join("node1").display().to_string();
            assert_eq!(
                say(Command::new("cp").args([
                    "-a",
                    &format!("{from}/."),
                    &home.display().to_string()
                ]))
                .code,
                0
            );
            // Here both are on one kernel, where the copy would end the first one's processes as left over from before its boot.
            for run in std::fs::read_dir(home.join("spool/runs"))
                .unwrap()
                .flatten()
            {
                std::fs::remove_dir_all(run.path()).unwrap();
            }
        }
        for file in ["node.crt", "node.key", "ca.crt"] {
            std::fs::copy(
                pool.dir.join("node1/state").join(file),
                home.join("state").join(file),
            )
            .unwrap();
        }
        let text = std::fs::read_to_string(pool.config("node1")).unwrap();
        let (old, run) = (
            pool.dir.join("node1").display().to_string(),
            pool.socket()
                .parent()
                .unwrap()
                .join("node1")
                .display()
                .to_string(),
        );
        let text = text
            .replace(&old, &home.display().to_string())
            .replace(&run, &home.join("run").display().to_string());
        let text = text.replace(
            &format!("gpupool-{}/node1", pool.tag()),
            &format!("gpupool-{}/twin", pool.tag()),
        );
        std::fs::write(home.join("gpud.toml"), text).unwrap();
        std::fs::write(
            home.join("boot_id"),
            "00000000-dead-4dad-beef-000000000002\n",
        )
        .unwrap();
        let log = std::fs::File::create(home.join("log")).unwrap();
        let mount = if copied {
            "mount --bind \"$1/boot_id\" /proc/sys/kernel/random/boot_id && "
        } else {
            ""
        };
        let gpud = pool.command("gpud").get_program().to_owned();
        let mut daemon = pool.command("/usr/bin/unshare");
        daemon
            .args([
                "-m",
                "sh",
                "-c",
                &format!("{mount}exec \"$2\" run --config \"$1/gpud.toml\""),
                "sh",
            ])
            .arg(&home)
            .arg(gpud);
        let daemon = daemon
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { home, daemon }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.home.join("log")).unwrap()
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[test]
fn a_second_machine_with_a_nodes_certificate_is_refused_while_the_first_lives() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let id = pool.gsub(&[
        "--wrap",
        "touch up; while [ ! -e go ]; do sleep 0.02; done; exit 0",
    ]);
    pool.wait_until("it runs", || pool.work.join("up").exists());
    let twin = Twin::start(&pool, false);
    let told = std::panic::catch_unwind(|| {
        pool.wait_until("the second one is told no", || {
            twin.log().contains("two machines say they are node1")
        })
    });
    assert!(told.is_ok(), "{}", twin.log());
    drop(twin);
    assert_eq!(pool.job(id).state, Running);
    assert_eq!(pool.node("node1").state, "MIXED+DRAIN");
    pool.write("go", "");
    let job = pool.wait_state(id, Completed);
    assert_eq!(job.attempts, 1);
    assert_eq!(pool.run("gadm", &["node", "resume", "node1"]).code, 0);
    pool.wait_idle("node1");
}

#[test]
fn a_copy_of_a_node_never_takes_its_place_while_a_job_goes_on_there() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let script =
        "echo $GSUB_ATTEMPT >> starts; touch up; while [ ! -e go ]; do sleep 0.02; done; exit 0";
    let id = pool.gsub(&["--mem", "1G", "--wrap", script]);
    pool.wait_until("it runs", || pool.work.join("up").exists());
    let twin = Twin::start(&pool, true);
    pool.wait_until("both are shown", || {
        pool.node("node1")
            .drains
            .iter()
            .any(|mark| mark.reason.matches("127.0.0.1:").count() == 2)
    });
    let said = pool.run("gnodes", &["-h", "-o", "%E"]);
    assert!(
        said.out.contains("two machines say they are node1"),
        "{said:?}"
    );
    let second = pool.gsub(&["--mem", "1G", "--wrap", "echo $GSUB_ATTEMPT > second"]);
    // Stopped for longer than any connection lives, and not dead: its job goes on.
    pool.signal("node1", Signal::SIGSTOP);
    pool.wait_until("the silence is seen", || {
        pool.node("node1").state.contains("NOT_RESPONDING")
    });
    let asked = twin.log().matches("refuses this node").count()
        + twin.log().matches("ended the connection").count();
    pool.wait_until("the copy has asked again, twice", || {
        let now = twin.log().matches("refuses this node").count()
            + twin.log().matches("ended the connection").count();
        now >= asked + 2
    });
    assert_eq!(
        (
            pool.job(id).state,
            pool.job(id).attempts,
            pool.job(second).state
        ),
        (Running, 1, Pending)
    );
    pool.signal("node1", Signal::SIGCONT);
    pool.wait_until("the first is back", || {
        !pool.node("node1").state.contains("NOT_RESPONDING")
    });
    let node = pool.node("node1");
    assert!(
        node.state.ends_with("+DRAIN") && node.drains.len() == 1,
        "{node:?}"
    );
    assert_eq!(
        (
            pool.job(id).state,
            pool.job(id).attempts,
            pool.job(second).state
        ),
        (Running, 1, Pending),
        "neither gets new work"
    );
    drop(twin);
    assert_eq!(pool.run("gadm", &["node", "resume", "node1"]).code, 0);
    pool.wait_state(second, Completed);
    pool.write("go", "");
    assert_eq!(pool.wait_state(id, Completed).attempts, 1);
    assert_eq!(
        (pool.file("starts"), pool.file("second")),
        ("1\n".into(), "1\n".into())
    );
    pool.wait_idle("node1");
    pool.check();
}

#[test]
fn a_node_that_falls_silent_is_said_so_and_its_job_goes_on_when_it_comes_back() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    let id = pool.gsub(&[
        "--gpus",
        "1",
        "--mem",
        "1G",
        "--wrap",
        "touch up; while [ ! -e go ]; do sleep 0.02; done; exit 4",
    ]);
    pool.wait_until("it runs", || pool.work.join("up").exists());
    // Stopped, not dead: the connection stays open and nothing comes over it.
    pool.signal("node1", Signal::SIGSTOP);
    pool.wait_until("the silence is seen", || {
        pool.node("node1").state.contains("NOT_RESPONDING")
            || pool.node("node1").state.contains('*')
    });
    assert_eq!(pool.job(id).state, Running);
    let waiting = pool.gsub(&["--wrap", "true"]);
    pool.wait_until("a pass has looked at it", || {
        pool.job(waiting).reason != gmodel::ReasonCode::None
    });
    assert_eq!(pool.job(waiting).state, Pending, "a silent node got a job");
    pool.signal("node1", Signal::SIGCONT);
    pool.wait_state(waiting, Completed);
    pool.write("go", "");
    let job = pool.wait_state(id, Failed);
    assert_eq!((job.exit_code.code, job.attempts), (4, 1));
    pool.wait_idle("node1");
}

#[test]
fn a_lost_nodes_jobs_run_elsewhere_once_and_its_old_runs_die_before_its_gpus_are_given_on() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    pool.reconfigure("gpuctld", "node_timeout_secs = 1\nkill_grace_secs = 1");
    pool.wait_idle("node1");
    pool.wait_idle("node2");
    let script = |name: &str| {
        format!(
            "echo $$ > {name}.$GSUB_ATTEMPT; echo \"$GSUB_ATTEMPT $GSUB_NODELIST\" >> {name}; trap '' TERM; [ $GSUB_ATTEMPT = 2 ] || sleep 1000; exit 8"
        )
    };
    let pinned = pool.gsub(&["--gpus", "1", "-w", "node1", "--wrap", &script("pinned")]);
    let moving = pool.gsub(&["--gpus", "1", "--wrap", &script("moving")]);
    let old: Vec<i32> = ["pinned.1", "moving.1"]
        .iter()
        .map(|name| pool.wait_file(name).trim().parse().unwrap())
        .collect();
    assert_eq!(pool.job(moving).nodelist, "node1");
    // Stopped, not dead: the connection stays open and nothing comes over it.
    pool.signal("node1", Signal::SIGSTOP);
    let job = pool.wait_state_through(moving, Failed);
    assert_eq!((job.exit_code.code, job.attempts), (8, 2));
    assert_eq!(pool.file("moving"), "1 node1\n2 node2\n");
    assert!(
        old.iter().all(|pid| is_alive(*pid)),
        "nobody can have ended them"
    );
    // The controller knows no holder of the GPUs, and still does not give them away.
    let seen = "for pid in $(cat pinned.1 moving.1); do kill -0 $pid 2>/dev/null && echo alive >> next; done; echo done >> next";
    let next = pool.gsub(&["--gpus", "2", "-w", "node1", "--wrap", seen]);
    let watched = Instant::now();
    while watched.elapsed() < Duration::from_millis(500) {
        assert_eq!(
            (pool.job(next).state, pool.job(pinned).state),
            (Pending, Pending)
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    pool.signal("node1", Signal::SIGCONT);
    pool.wait_state(next, Completed);
    assert_eq!(pool.file("next"), "done\n");
    assert!(!old.iter().any(|pid| is_alive(*pid)));
    assert_eq!(pool.wait_state_through(pinned, Failed).exit_code.code, 8);
    assert_eq!(pool.file("pinned"), "1 node1\n2 node1\n");
    assert_eq!(
        pool.job(moving).exit_code.code,
        8,
        "the old run's end changed the record"
    );
    pool.check();
}

/// A wire between a node and the controller that can be cut: what is sent then is lost without an error.
struct Wire {
    address: String,
    cut: Arc<AtomicBool>,
}

impl Wire {
    fn to(controller: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let cut = Arc::new(AtomicBool::new(false));
        let seen = cut.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(&controller) else {
                    continue;
                };
                for (from, to) in [
                    (near.try_clone().unwrap(), far.try_clone().unwrap()),
                    (far, near),
                ] {
                    let seen = seen.clone();
                    std::thread::spawn(move || carry(from, to, &seen));
                }
            }
        });
        Self { address, cut }
    }

    fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }
}

/// Bytes that were under way when the wire was cut are lost, and so is their connection: no byte may be missing in it.
fn carry(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let mut bytes = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while cut.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

#[test]
fn behind_a_cut_wire_a_node_goes_on_and_gives_up_its_run_when_it_was_moved() {
    let Some(pool) = Pool::up(2, "h100:1") else {
        return;
    };
    pool.reconfigure("gpuctld", "node_timeout_secs = 1\nkill_grace_secs = 1");
    let wire = Wire::to(pool.controller());
    let config = std::fs::read_to_string(pool.config("node1")).unwrap();
    std::fs::write(
        pool.config("node1"),
        config.replace(&pool.controller(), &wire.address),
    )
    .unwrap();
    pool.kill("node1");
    pool.start("node1");
    pool.wait_idle("node1");
    pool.wait_idle("node2");
    let script = "echo $$ > pid.$GSUB_ATTEMPT; echo \"$GSUB_ATTEMPT $GSUB_NODELIST\" >> runs; while [ ! -e go ]; do sleep 0.05; done; exit 8";
    let id = pool.gsub(&["--gpus", "1", "--wrap", script]);
    let old: i32 = pool.wait_file("pid.1").trim().parse().unwrap();
    assert_eq!(pool.job(id).nodelist, "node1");
    wire.cut(true);
    // Both daemons live, both see silence; the job is started again elsewhere.
    pool.wait_file("pid.2");
    assert_eq!(pool.file("runs"), "1 node1\n2 node2\n");
    assert!(
        is_alive(old),
        "the node ended its job because of a silent controller"
    );
    let waits = pool.gsub(&[
        "--gpus",
        "1",
        "--wrap",
        "kill -0 $(cat pid.1) 2>/dev/null && echo alive > next || echo gone > next",
    ]);
    assert_eq!(pool.job(waits).state, Pending);
    wire.cut(false);
    pool.wait_state(waits, Completed);
    assert_eq!(pool.file("next"), "gone\n");
    assert!(!is_alive(old));
    pool.write("go", "");
    let job = pool.wait_state(id, Failed);
    assert_eq!((job.exit_code.code, job.attempts), (8, 2));
    pool.wait_idle("node1");
    pool.check();
}

#[test]
fn a_node_daemon_without_its_certificate_is_not_let_in() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.kill("node1");
    // A certificate of another cluster: same name, other CA.
    let Some(other) = Pool::up(1, "none") else {
        return;
    };
    for file in ["node.crt", "node.key"] {
        std::fs::copy(
            other.dir.join("node1/state").join(file),
            pool.dir.join("node1/state").join(file),
        )
        .unwrap();
    }
    pool.start("node1");
    let told = |text: &str| {
        text.contains("does not accept this node's certificate") && text.contains("gpud join")
    };
    pool.wait_until("it is told", || {
        pool.log("node1").lines().rev().take(2).any(told)
    });
    assert_ne!(pool.node("node1").state, "IDLE");
    assert_eq!(pool.run("gsub", &["--dry-run", "--wrap", "true"]).code, 0);
    let id = pool.gsub(&["--wrap", "true"]);
    pool.wait_until("a pass has looked at it", || {
        pool.job(id).reason != gmodel::ReasonCode::None
    });
    assert_eq!(pool.job(id).state, Pending, "a node nobody knows got a job");
}

/// A pool in which node1 has a network of its own. The controller listens there too.
fn with_a_node_in_its_own_network(nodes: u32, lines: &str) -> Option<(Pool, Namespace)> {
    let pool = Pool::up(nodes, "h100:1")?;
    let mut namespace = Namespace::new(&pool, 1)?;
    let config = std::fs::read_to_string(pool.config("gpuctld")).unwrap();
    let everywhere = pool.controller().replace("127.0.0.1", "0.0.0.0");
    std::fs::write(
        pool.config("gpuctld"),
        config.replace(&pool.controller(), &everywhere),
    )
    .unwrap();
    pool.reconfigure("gpuctld", lines);
    pool.kill("node1");
    let config = std::fs::read_to_string(pool.config("node1")).unwrap();
    let there = namespace.controller(&pool);
    assert!(config.contains(&pool.controller()));
    std::fs::write(
        pool.config("node1"),
        config.replace(&pool.controller(), &there),
    )
    .unwrap();
    namespace.start(&pool, &pool.config("node1"));
    for node in 1..=nodes {
        pool.wait_idle(&format!("node{node}"));
    }
    Some((pool, namespace))
}

const WAITS: &str = "echo $$ > pid.$GSUB_ATTEMPT; echo \"$GSUB_ATTEMPT $GSUB_NODELIST\" >> runs; while [ ! -e go ]; do sleep 0.05; done; exit 8";

#[test]
fn behind_a_pulled_cable_a_job_goes_on_until_it_was_moved_and_its_node_is_back() {
    let Some((pool, namespace)) =
        with_a_node_in_its_own_network(2, "node_timeout_secs = 1\nkill_grace_secs = 1")
    else {
        return;
    };
    let id = pool.gsub(&["--gpus", "1", "--wrap", WAITS]);
    let old: i32 = pool.wait_file("pid.1").trim().parse().unwrap();
    assert_eq!(pool.job(id).nodelist, "node1");
    namespace.plug(false);
    pool.wait_file("pid.2");
    assert_eq!(pool.file("runs"), "1 node1\n2 node2\n");
    assert!(
        is_alive(old),
        "the node ended its job because of a silent controller"
    );
    let next = pool.gsub(&[
        "--gpus",
        "1",
        "--wrap",
        "kill -0 $(cat pid.1) 2>/dev/null && echo alive > next || echo gone > next",
    ]);
    namespace.plug(true);
    pool.wait_state(next, Completed);
    assert_eq!(
        (pool.file("next").as_str(), pool.job(next).nodelist.as_str()),
        ("gone\n", "node1")
    );
    assert!(!is_alive(old));
    pool.write("go", "");
    let job = pool.wait_state(id, Failed);
    assert_eq!((job.exit_code.code, job.attempts), (8, 2));
    pool.wait_idle("node1");
    pool.check();
}

#[test]
fn what_is_swallowed_on_the_way_is_noticed_by_both_ends_and_an_end_meanwhile_is_told_later() {
    let Some((pool, namespace)) = with_a_node_in_its_own_network(1, "kill_grace_secs = 1") else {
        return;
    };
    let id = pool.gsub(&["--gpus", "1", "--wrap", WAITS]);
    let pid: i32 = pool.wait_file("pid.1").trim().parse().unwrap();
    namespace.swallow(true);
    pool.wait_until("the silence is seen", || {
        pool.node("node1").state.contains("NOT_RESPONDING")
            || pool.node("node1").state.contains('*')
    });
    pool.wait_until("the node sees it too", || {
        namespace.log().contains("the controller was silent for")
    });
    pool.write("go", "");
    pool.wait_until("it ended", || !is_alive(pid));
    assert_eq!(pool.job(id).state, Running);
    let waits = pool.gsub(&["--gpus", "1", "--wrap", "true"]);
    pool.wait_until("a pass has looked at it", || {
        pool.job(waits).reason != gmodel::ReasonCode::None
    });
    assert_eq!(pool.job(waits).state, Pending, "a silent node got a job");
    namespace.swallow(false);
    let job = pool.wait_state(id, Failed);
    assert_eq!(
        (job.exit_code.code, job.attempts, job.nodelist.as_str()),
        (8, 1, "node1")
    );
    pool.wait_state(waits, Completed);
    pool.wait_idle("node1");
    pool.check();
}

#[test]
fn of_two_machines_with_one_name_on_the_network_the_first_keeps_it() {
    let Some((pool, namespace)) = with_a_node_in_its_own_network(1, "") else {
        return;
    };
    let Some(mut second) = Namespace::new(&pool, 2) else {
        return;
    };
    let id = pool.gsub(&["--gpus", "1", "--wrap", WAITS]);
    pool.wait_file("pid.1");
    // The certificate was copied: its own address, spool and sockets.
    let twin = pool.work.join("twin");
    for dir in ["state", "spool", "run"] {
        std::fs::create_dir_all(twin.join(dir)).unwrap();
    }
    for file in ["node.crt", "node.key", "ca.crt"] {
        std::fs::copy(
            pool.dir.join("node1/state").join(file),
            twin.join("state").join(file),
        )
        .unwrap();
    }
    let config = format!(
        "controller = {:?}\nstate_dir = {:?}\nspool_dir = {:?}\nrun_dir = {:?}\ngpus = \"none\"\nisolation = \"none\"\n",
        second.controller(&pool),
        twin.join("state"),
        twin.join("spool"),
        twin.join("run"),
    );
    let config = pool.write("twin/gpud.toml", config);
    second.start(&pool, &config);
    pool.wait_until("the second one is told no", || {
        second.log().contains("two machines say they are node1")
    });
    assert_eq!(pool.job(id).state, Running);
    assert!(
        !namespace.log().contains("two machines"),
        "{}",
        namespace.log()
    );
    pool.write("go", "");
    assert_eq!(pool.wait_state(id, Failed).attempts, 1);
    second.stop();
    assert_eq!(pool.run("gadm", &["node", "resume", "node1"]).code, 0);
    pool.wait_idle("node1");
    pool.check();
}

#[test]
fn a_node_that_was_removed_while_it_was_away_is_told_to_join_again() {
    let Some((pool, mut namespace)) = with_a_node_in_its_own_network(1, "node_timeout_secs = 1")
    else {
        return;
    };
    namespace.plug(false);
    pool.wait_until("it is down", || {
        pool.node("node1").state.starts_with("DOWN")
    });
    let said = pool.run("gadm", &["node", "remove", "node1"]);
    assert_eq!(said.code, 0, "{said:?}");
    namespace.plug(true);
    pool.wait_until("it is told", || {
        namespace
            .log()
            .contains("is not of this cluster: it was removed")
    });
    assert!(
        namespace.log().contains("gadm token node"),
        "{}",
        namespace.log()
    );
    assert!(!pool.run("gnodes", &["--json"]).out.contains("\"node1\""));
    namespace.stop();
    let token = pool.run("gadm", &["token", "node", "--name", "node1"]);
    let mut join = pool.command("gpud");
    join.args([
        "join",
        "--controller",
        &namespace.controller(&pool),
        "--token",
        token.out.trim(),
        "--state-dir",
    ]);
    let said = say(&mut namespace.command(join.arg(pool.dir.join("node1/state"))));
    assert_eq!(said.code, 0, "{said:?}");
    namespace.start(&pool, &pool.config("node1"));
    pool.wait_idle("node1");
    let id = pool.gsub(&["--gpus", "1", "--wrap", "true"]);
    pool.wait_state(id, Completed);
    pool.check();
}
