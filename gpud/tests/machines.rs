//! What gpud does for a machine: joining, renewing, roles, forwarding its users, GPUs and their fence, kill -9 anywhere.

mod fake;

use fake::{Controller, Node, gpu_node, is_root, nvml_sim, run_id, stop, wait_file, want};
use gmodel::launch_order::OrderGpu;
use gmodel::run::{EndCause, RunTarget};
use gmodel::{ExitCode, GpuPart, GpuSlot, RunId};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

async fn ask(socket: &Path, request: hyper::Request<Full<Bytes>>) -> (u16, String) {
    let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    let driver = tokio::spawn(connection);
    let answer = sender.send_request(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    driver.abort();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn request(method: &str, path: &str, body: Vec<u8>) -> hyper::Request<Full<Bytes>> {
    let request = hyper::Request::builder()
        .method(method)
        .uri(path)
        .header("host", "x");
    // A client that names a user, twice: neither name may arrive.
    let request = request
        .header("x-gpupool-peer", "0:0:root")
        .header("X-Gpupool-Peer", "4:4:alice");
    request.body(Full::new(Bytes::from(body))).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn local_users_are_forwarded_as_the_kernel_sees_them() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let socket = node.path("run/gpud.sock");
    assert_eq!(
        fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o666
    );
    let uid = nix::unistd::geteuid();
    let name = gsys::user::user_name(uid.as_raw()).unwrap().unwrap();
    let me = format!("{uid}:{}:{name}", nix::unistd::getegid());
    for body in [0, 3_000_000] {
        let (status, text) = ask(&socket, request("POST", "/v1/jobs?x=1", vec![b'x'; body])).await;
        assert_eq!(
            (status, text),
            (200, format!("POST /v1/jobs peer=[{me:?}] body={body}"))
        );
    }
    let (status, text) = ask(
        &socket,
        request("POST", "/v1/jobs", vec![b'x'; (8 << 20) + 1]),
    )
    .await;
    assert_eq!(status, 400);
    assert!(text.contains("at most 8388608 are taken"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_users_at_once_and_garbage_do_not_disturb_each_other() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let socket = node.path("run/gpud.sock");
    let garbage = tokio::spawn({
        let socket = socket.clone();
        async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            for _ in 0..20 {
                let mut stream = tokio::net::UnixStream::connect(&socket).await.unwrap();
                let _ = stream.write_all(&[0xff; 100_000]).await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        }
    });
    let asked = (0..40).map(|n| {
        let socket = socket.clone();
        tokio::spawn(async move {
            ask(
                &socket,
                request("GET", &format!("/v1/jobs/{n}"), Vec::new()),
            )
            .await
        })
    });
    for (n, answer) in asked.collect::<Vec<_>>().into_iter().enumerate() {
        let (status, text) = answer.await.unwrap();
        assert!(
            status == 200 && text.starts_with(&format!("GET /v1/jobs/{n} ")),
            "{text}"
        );
    }
    garbage.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_controller_users_are_told_so() {
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    node.stop_daemon();
    let config = fs::read_to_string(node.path("gpud.toml")).unwrap();
    fs::write(
        node.path("gpud.toml"),
        config.replace(&ctl.address, "127.0.0.1:1"),
    )
    .unwrap();
    fs::remove_file(node.path("run/gpud.sock")).unwrap();
    node.start_daemon();
    let socket = node.path("run/gpud.sock");
    let deadline = std::time::Instant::now() + fake::PATIENCE;
    while !socket.exists() {
        assert!(std::time::Instant::now() < deadline, "{}", node.log_text());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (status, text) = ask(&socket, request("GET", "/v1/jobs", Vec::new())).await;
    assert_eq!(status, 503);
    assert!(
        text.contains("the controller at 127.0.0.1:1 cannot be reached from this node"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_another_cluster_is_refused_and_nothing_is_stored() {
    let mut ctl = Controller::start().await;
    let other = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let cert = fs::read(node.path("state/node.crt")).unwrap();
    assert!(!node.join(&other.token).await.success());
    assert!(
        node.log_text()
            .contains("not of the cluster that the token names"),
        "{}",
        node.log_text()
    );
    assert!(!node.join("no-token").await.success());
    assert_eq!(
        fs::read(node.path("state/node.crt")).unwrap(),
        cert,
        "the identity that was there still is"
    );
    assert_eq!(
        fs::metadata(node.path("state/node.key"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_for_the_same_key_and_name() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let read = |name: &str| fs::read(node.path("state").join(name)).unwrap();
    let (key, cert) = (read("node.key"), read("node.crt"));
    let renewed = std::process::Command::new(env!("CARGO_BIN_EXE_gpud"))
        .arg("renew")
        .arg("--config")
        .arg(node.path("gpud.toml"))
        .output();
    let renewed = renewed.unwrap();
    assert!(renewed.status.success(), "{renewed:?}");
    assert_eq!(read("node.key"), key);
    assert_ne!(read("node.crt"), cert);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_renews_its_certificate_by_itself() {
    let mut ctl = Controller::short_lived().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    node.stop_daemon();
    let cert = fs::read(node.path("state/node.crt")).unwrap();
    node.start_daemon();
    let deadline = std::time::Instant::now() + fake::PATIENCE;
    let is_new = || fs::read(node.path("state/node.crt")).unwrap() != cert;
    while !(is_new() && node.log_text().contains("the certificate was renewed")) {
        assert!(std::time::Instant::now() < deadline, "{}", node.log_text());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_node_serves_users_and_starts_nothing() {
    let mut ctl = Controller::with_role("login").await;
    let node = Node::start(&ctl, "").await;
    let hello = ctl.wait_hello().await;
    assert_eq!(hello.inventory.unfit, "a login node runs no jobs");
    let run = run_id("1-1");
    ctl.desire(
        1,
        vec![node.order(run, "echo ran > ran")],
        vec![want(run, RunTarget::Run)],
    );
    assert_eq!(ctl.wait_clean(run).await.cause, EndCause::LaunchNode);
    assert!(!node.path("work/ran").exists());
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_gpud"))
        .args(["run", "--role", "compute", "--config"])
        .arg(node.path("gpud.toml"))
        .output();
    let words = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(
        words.contains("--role compute: the certificate is for a login node"),
        "{words}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_opens_its_gpu_and_no_other_and_a_changed_fence_ends_it() {
    if !is_root() {
        return println!("NOT RUN: without root there is no device fence");
    }
    let mut ctl = Controller::start().await;
    let node = gpu_node(&mut ctl, "fence_audit_secs = 1").await;
    let gpus = ctl.wait_hello().await.inventory.gpus;
    assert_eq!(gpus.len(), 4);
    assert!(
        gpus.iter()
            .all(|gpu| gpu.gpu_type == "h100" && gpu.fault.is_empty()),
        "{gpus:?}"
    );
    let run = run_id("1-1");
    // Opening a device without driver says ENXIO where the fence permits it, EPERM where it denies.
    let body = format!(
        "for d in {}/nvidia*; do echo $(basename $d) $( (: < $d) 2>&1 | sed 's/.*: //'); done > opened\n\
         echo $GSUB_GPU_UUIDS $CUDA_VISIBLE_DEVICES > cuda; mv opened seen; sleep 1000",
        node.path("dev").display()
    );
    let mut order = node.order(run, &body);
    let mine = &gpus[2];
    order.gpus = vec![OrderGpu {
        slot: GpuSlot(2),
        uuid: mine.uuid.clone(),
        gpu_type: "h100".into(),
        part: GpuPart::Whole,
    }];
    ctl.desire(1, vec![order], vec![want(run, RunTarget::Run)]);
    let seen = wait_file(&node.path("work/seen")).await;
    for gpu in &gpus {
        let expected = if gpu.uuid == mine.uuid {
            "No such device or address"
        } else {
            "Operation not permitted"
        };
        assert!(
            seen.contains(&format!("nvidia{} {expected}\n", gpu.minor)),
            "{seen}"
        );
    }
    assert!(
        seen.contains("nvidiactl No such device or address\n"),
        "{seen}"
    );
    assert_eq!(
        fs::read_to_string(node.path("work/cuda")).unwrap().trim(),
        format!("{} 0", mine.uuid),
        "CUDA counts what it can open"
    );

    // A process of root opens the fence: the audit finds it.
    let root = gsys::cgroup::CgroupRoot::open(&node.cgroup_tag).unwrap();
    let fence_dir = gsys::cgroup::RunCgroup::open(&root, "run_1-1")
        .unwrap()
        .fence_dir()
        .unwrap();
    let fence = gsys::device_fence::query(&fence_dir).unwrap()[0];
    gsys::device_fence::replace(
        &fence_dir,
        &fence,
        &gsys::device_fence::FenceRules::default(),
    )
    .unwrap();
    let end = ctl.wait_clean(run).await;
    assert_eq!(end.cause, EndCause::FenceBroken, "{}", end.text);
    node.assert_no_trace(run);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_gpu_is_reported_with_its_fault_and_no_run_gets_it() {
    let mut ctl = Controller::start().await;
    let node = gpu_node(&mut ctl, "").await;
    let gpus = ctl.wait_hello().await.inventory.gpus;
    assert_eq!(gpus.len(), 4);
    let lost = std::process::Command::new(fake::beside("nvml-sim"))
        .args(["fault", "gpu1", "lost", "--dir"])
        .arg(node.path("nvml"))
        .status();
    assert!(lost.unwrap().success());
    ctl.wait("a fault", |ctl| {
        ctl.inventories
            .last()
            .is_some_and(|i| i.gpus.iter().any(|gpu| !gpu.fault.is_empty()))
    })
    .await;
    let latest = ctl.inventories.last().unwrap().gpus.clone();
    let sick: Vec<_> = latest.iter().filter(|gpu| !gpu.fault.is_empty()).collect();
    assert_eq!((latest.len(), sick.len()), (4, 1), "{latest:?}");
    let run = run_id("1-1");
    let mut order = node.order(run, "true");
    order.gpus = vec![OrderGpu {
        slot: GpuSlot(1),
        uuid: sick[0].uuid.clone(),
        gpu_type: "h100".into(),
        part: GpuPart::Whole,
    }];
    ctl.desire(1, vec![order], vec![want(run, RunTarget::Run)]);
    let end = ctl.wait_clean(run).await;
    assert!(
        end.cause == EndCause::LaunchNode && end.text.contains(&sick[0].uuid),
        "{end:?}"
    );
}

/// What a command of the simulator changes on the node's GPUs.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_run_says_what_it_made_of_its_gpus_also_after_a_kill_and_with_a_driver_that_hangs()
 {
    let mut ctl = Controller::start().await;
    let mut node = gpu_node(&mut ctl, "gpu_watch_secs = 1").await;
    let gpus = ctl.wait_hello().await.inventory.gpus;
    let job_files = node.path("jobs-of-gpus");
    // Use is a mean since the sample before: set under a daemon that samples, the first one would hold the idle time too.
    node.stop_daemon();
    let config = fs::read_to_string(node.path("gpud.toml")).unwrap();
    let config = format!("dcgm_job_dir = {job_files:?}\n{config}");
    fs::write(node.path("gpud.toml"), config).unwrap();
    nvml_sim(&node, &["set", "gpu1", "util=90", "power=500", "mem=60000"]);
    node.start_daemon();
    ctl.wait_hello().await;
    let uuids: Vec<String> = {
        let state: serde_json::Value =
            serde_json::from_slice(&fs::read(node.path("nvml/state.json")).unwrap()).unwrap();
        state["gpus"]
            .as_array()
            .unwrap()
            .iter()
            .map(|gpu| gpu["uuid"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(gpus.len(), uuids.len());
    let order_with = |node: &Node, run, slots: &[u16], body: &str| {
        let mut order = node.order(run, body);
        let part = |slot: &u16| OrderGpu {
            slot: GpuSlot(*slot),
            uuid: uuids[usize::from(*slot)].clone(),
            gpu_type: "h100".into(),
            part: GpuPart::Whole,
        };
        order.gpus = slots.iter().map(part).collect();
        order
    };
    // One busy GPU and one idle one, with a kill of the daemon in between.
    let run = run_id("1-1");
    ctl.desire(
        1,
        vec![order_with(
            &node,
            run,
            &[1, 2],
            "echo up > up; while [ ! -e go ]; do sleep 0.05; done",
        )],
        vec![want(run, RunTarget::Run)],
    );
    wait_file(&node.path("work/up")).await;
    wait_file(&job_files.join("2")).await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    node.kill_daemon();
    fs::write(job_files.join("0"), "of a job that ended meanwhile\n").unwrap();
    node.start_daemon();
    ctl.wait_hello().await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(fs::read_to_string(job_files.join("1")).unwrap(), "1\n");
    assert!(!job_files.join("0").exists(), "no job has GPU 0");
    nvml_sim(&node, &["set", "gpu1", "mem=0"]);
    fs::write(node.path("work/go"), "").unwrap();
    let used = ctl.wait_clean(run).await.usage.gpu;
    assert!(
        (5_000..20_000).contains(&used.sampled_ms),
        "two GPUs for four seconds: {used:?}"
    );
    assert!(
        (350..=550).contains(&used.busy_mean_permille().unwrap()),
        "{used:?}"
    );
    assert!(
        used.idle_ms > 2_000 && used.idle_ms < used.sampled_ms,
        "{used:?}"
    );
    assert!(
        used.memory_peak_bytes >= 60_000 << 20
            && used.power_peak_mw >= 400_000
            && used.joules() > 500,
        "{used:?}"
    );
    // The driver hangs when the run ends: its end comes all the same, in the time that NVML is given.
    let run = run_id("2-1");
    ctl.desire(
        3,
        vec![order_with(
            &node,
            run,
            &[3],
            "echo up > up2; while [ ! -e go2 ]; do sleep 0.05; done; exit 3",
        )],
        vec![want(run, RunTarget::Run)],
    );
    wait_file(&node.path("work/up2")).await;
    nvml_sim(&node, &["fault", "driver", "hang"]);
    fs::write(node.path("work/go2"), "").unwrap();
    let end = ctl.wait_clean(run).await;
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::exited(3))
    );
    nvml_sim(&node, &["fault", "driver", "clear"]);
}

/// The daemon is killed at moments all over the life of runs; each script must have run once and ended with its code.
#[tokio::test(flavor = "multi_thread")]
async fn no_run_is_lost_or_doubled_by_kill_9_at_any_moment() {
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let rounds = 24u64;
    for round in 1..=rounds {
        let run = RunId::new(gmodel::JobId(round), 1);
        let order = || vec![node.order(run, &format!("echo once >> ran-{round}; exit 5"))];
        ctl.desire(round * 2, order(), vec![want(run, RunTarget::Run)]);
        // From before the order is read to after the run is clean.
        tokio::time::sleep(Duration::from_micros(round * round * 110)).await;
        node.kill_daemon();
        node.start_daemon();
        ctl.wait_hello().await;
        let order = vec![node.order(run, &format!("echo once >> ran-{round}; exit 5"))];
        ctl.desire(round * 2, order, vec![want(run, RunTarget::Run)]);
        let end = ctl.wait_clean(run).await;
        assert_eq!(
            (end.cause, end.exit),
            (EndCause::Exited, ExitCode::exited(5)),
            "round {round}: {}",
            end.text
        );
        assert_eq!(
            fs::read_to_string(node.path(&format!("work/ran-{round}"))).unwrap(),
            "once\n",
            "round {round}"
        );
        node.assert_no_trace(run);
        ctl.desire(round * 2 + 1, Vec::new(), Vec::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_short_runs_at_once_all_come_back() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let runs: Vec<RunId> = (1..=50).map(|n| RunId::new(gmodel::JobId(n), 1)).collect();
    let orders = runs.iter().map(|run| node.order(*run, "exit 2")).collect();
    let began = std::time::Instant::now();
    ctl.desire(
        1,
        orders,
        runs.iter().map(|run| want(*run, RunTarget::Run)).collect(),
    );
    for run in &runs {
        assert_eq!(ctl.wait_clean(*run).await.exit, ExitCode::exited(2));
    }
    println!("50 runs in {:?}", began.elapsed());
    ctl.desire(2, Vec::new(), vec![stop(runs[0], 0)]);
    ctl.wait("generation 2", |ctl| {
        ctl.obeyed.is_some_and(|fence| fence.generation == 2)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hollow_nodes_speak_the_protocol_and_start_nothing() {
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    node.stop_daemon();
    fs::write(node.path("tokens"), format!("{0}\n{0}\n", ctl.token)).unwrap();
    let mut hollow = std::process::Command::new(env!("CARGO_BIN_EXE_gpud"))
        .args([
            "run",
            "--hollow",
            "2",
            "--hollow-prefix",
            "h",
            "--hollow-gpus",
            "h100:8",
            "--config",
        ])
        .arg(node.path("gpud.toml"))
        .arg("--hollow-tokens")
        .arg(node.path("tokens"))
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    for _ in 0..2 {
        let hello = ctl.wait_hello().await;
        assert_eq!(
            (
                hello.inventory.isolation.as_str(),
                hello.inventory.gpus.len()
            ),
            ("hollow", 8)
        );
    }
    let (short, long) = (run_id("1-1"), run_id("2-1"));
    let mut order = node.order(long, "");
    (order.script, order.argv) = (String::new(), vec!["hollow-1000".into()]);
    let orders = vec![node.order(short, "echo ran > ran"), order];
    ctl.desire(
        1,
        orders,
        [short, long].map(|run| want(run, RunTarget::Run)).to_vec(),
    );
    assert_eq!(ctl.wait_clean(short).await.exit, ExitCode::SUCCESS);
    ctl.wait_phase(long, 2).await;
    ctl.desire(2, Vec::new(), vec![stop(long, 0)]);
    assert_eq!(ctl.wait_clean(long).await.cause, EndCause::Stopped);
    assert!(!node.path("work/ran").exists());
    hollow.kill().unwrap();
    hollow.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_spool_is_said_and_takes_no_new_run() {
    if !is_root() {
        return println!("NOT RUN: without root there is no small file system to fill");
    }
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    node.stop_daemon();
    let spool = node.path("spool");
    gsys::mount::mount_tmpfs(&spool, 8 << 20).unwrap();
    node.start_daemon();
    let unfit = ctl.wait_hello().await.inventory.unfit;
    assert!(
        unfit.starts_with("spool full: 7 MiB free") || unfit.starts_with("spool full: 8 MiB free"),
        "{unfit}"
    );
    // Not a byte is left: the fence can be written all the same, and a run that was on its way ends.
    let fill = std::io::copy(
        &mut std::io::repeat(0),
        &mut fs::File::create(spool.join("fill")).unwrap(),
    );
    assert!(fill.is_err(), "the file system is full");
    let run = run_id("1-1");
    ctl.desire(
        1,
        vec![node.order(run, "echo ran > ran")],
        vec![want(run, RunTarget::Run)],
    );
    assert_eq!(ctl.wait_clean(run).await.cause, EndCause::LaunchNode);
    assert_eq!(ctl.obeyed.map(|fence| fence.generation), Some(1));
    assert!(!node.path("work/ran").exists());
    node.stop_daemon();
    gsys::mount::unmount(&spool).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_root_a_workstation_runs_its_users_jobs_and_says_that_nothing_is_fenced() {
    if !is_root() {
        return println!("NOT RUN: all other tests run without root already");
    }
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    node.stop_daemon();
    let nobody = gsys::user::User::by_name("nobody").unwrap().unwrap();
    if nobody.uid != 65534 {
        return println!("NOT RUN: nobody is {} here", nobody.uid);
    }
    // The checkout may lie where other users cannot go, below /root for one.
    for program in ["gpud", "gstepd"] {
        fs::copy(fake::beside(program), node.path(program)).unwrap();
    }
    node.program = Some(node.path("gpud"));
    let config = fs::read_to_string(node.path("gpud.toml")).unwrap();
    let config = config
        .replace("isolation = \"fence\"", "isolation = \"none\"")
        .replace(
            &fake::beside("gstepd").display().to_string(),
            &node.path("gstepd").display().to_string(),
        );
    fs::write(node.path("gpud.toml"), config).unwrap();
    let given = std::process::Command::new("chown")
        .args(["-R", "65534:65534"])
        .arg(&node.dir)
        .status();
    assert!(given.unwrap().success());
    node.daemon_uid = Some(65534);
    node.start_daemon();
    assert_eq!(ctl.wait_hello().await.inventory.isolation, "none");
    let (own, other) = (run_id("1-1"), run_id("2-1"));
    let mut order = node.order(other, "true");
    (
        order.user.name,
        order.user.uid,
        order.user.gid,
        order.allow_root,
    ) = ("root".into(), 0, 0, true);
    let orders = vec![node.order(own, "sleep 1000 & id -u > id; exit 4"), order];
    ctl.desire(
        1,
        orders,
        [own, other].map(|run| want(run, RunTarget::Run)).to_vec(),
    );
    assert_eq!(ctl.wait_clean(own).await.exit, ExitCode::exited(4));
    assert_eq!(fs::read_to_string(node.path("work/id")).unwrap(), "65534\n");
    let end = ctl.wait_clean(other).await;
    assert!(
        end.cause == EndCause::LaunchUser && end.text.contains("runs without root"),
        "{end:?}"
    );
}
