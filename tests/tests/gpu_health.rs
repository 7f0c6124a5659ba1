//! Sick GPUs: one leaves the pool and the others go on, its job runs elsewhere, and no restart brings it back; the way back;
//! what a job leaves on its GPUs; and what it made of them.

use gmodel::JobState::{Completed, Pending, Running};
use gpupool_tests::gpu_faults::{fault, faults, pool_of_eight, slot_of};
use gpupool_tests::pool::{CommandOutput, Pool};
use std::time::Duration;

const WAIT: &str = "until [ -e stop ]; do sleep 0.1; done";

fn gpu(pool: &Pool, words: &[&str]) -> CommandOutput {
    let config = pool.config("node1").display().to_string();
    let said = pool.run("gpud", &[&["gpu"], words, &["--config", &config]].concat());
    assert_eq!(said.code, 0, "{said:?}");
    said
}

#[test]
fn a_gpu_with_an_xid_leaves_the_pool_alone_and_comes_back_by_an_administrators_word() {
    let Some(pool) = pool_of_eight() else { return };
    fault(&pool, &["gpu3", "xid", "79"]);
    pool.wait_until("one GPU is out", || faults(&pool).len() == 1);
    let (_, words) = faults(&pool).remove(0);
    assert_eq!(words, "Xid 79: the GPU has fallen off the bus");
    let shown = pool.run("gnodes", &["node1"]);
    assert!(shown.out.contains("Xid 79"), "{shown:?}");

    let eight = pool.gsub(&["--gpus", "8", "--wrap", "true"]);
    let seven = pool.gsub(&["--gpus", "7", "--wrap", "true"]);
    pool.wait_state(seven, Completed);
    assert_eq!(pool.job(eight).state, Pending);
    let why = pool.run("gq", &["--why", &eight.to_string()]);
    assert!(
        why.out.contains("node1: gpu3 Xid 79"),
        "the reason names no sick GPU: {why:?}"
    );

    // The library has forgotten, the kernel log too, and gpud died: the GPU is as sick as before.
    fault(&pool, &["gpu3", "clear"]);
    pool.kill("node1");
    pool.start("node1");
    pool.wait_idle("node1");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(faults(&pool).len(), 1, "a restart is no way round");
    assert_eq!(pool.job(eight).state, Pending);

    let listed = gpu(&pool, &["list"]);
    assert!(
        listed.out.contains("fatal xid-79: Xid 79, 1 times"),
        "{listed:?}"
    );
    let index = faults(&pool)[0].0.to_string();
    gpu(&pool, &["return", &index]);
    pool.wait_state(eight, Completed);
    assert!(faults(&pool).is_empty());
    pool.check();
    pool.down();
}

#[test]
fn a_gpu_that_is_lost_under_its_job_ends_it_and_the_job_runs_on_another() {
    let Some(pool) = pool_of_eight() else { return };
    let script = "echo $GSUB_GPU_UUIDS >> seen; until [ -e stop ]; do sleep 0.1; done";
    let id = pool.gsub(&["--gpus", "1", "--wrap", script]);
    pool.wait_until("it runs", || pool.file("seen").lines().count() == 1);
    let other = pool.gsub(&["--gpus", "1", "--wrap", WAIT]);
    pool.wait_state(other, Running);
    let uuid = pool.file("seen").trim().to_owned();
    let slot = slot_of(&pool, &uuid);
    fault(&pool, &[&slot, "lost"]);
    pool.wait_until("it runs elsewhere", || {
        pool.file("seen").lines().count() == 2
    });
    assert_ne!(pool.file("seen").lines().nth(1).unwrap(), uuid);
    let first = pool.attempts(id).remove(0);
    assert!(
        format!("{first:?}").contains("lost: "),
        "the record does not say why: {first:?}"
    );
    let history = gadm(&pool, &["gpu", "history", &uuid]).out;
    assert!(
        history.contains(&format!("; run {id}-1 was on it")),
        "whose results are in doubt is not said: {history}"
    );
    assert_eq!(pool.job(other).attempts, 1, "the others go on");
    assert_eq!(faults(&pool).len(), 1);
    pool.write("stop", "");
    pool.wait_state(id, Completed);
    pool.wait_state(other, Completed);
    pool.down();
}

#[test]
fn a_note_a_storm_and_a_driver_that_hangs_take_no_gpu_and_do_not_stop_the_node() {
    let Some(pool) = pool_of_eight() else { return };
    // A program's own mistake, ten thousand times, is noted.
    fault(&pool, &["gpu1", "xid", "31", "10000"]);
    pool.wait_until("it is noted", || {
        gpu(&pool, &["list"])
            .out
            .contains("info xid-application: Xid 31")
    });
    assert!(faults(&pool).is_empty(), "{:?}", faults(&pool));
    let told = pool
        .log("node1")
        .lines()
        .filter(|line| line.contains("Xid 31"))
        .count();
    assert!(
        (1..5).contains(&told),
        "ten thousand events were told {told} times"
    );
    let id = pool.gsub(&["--gpus", "8", "--wrap", "true"]);
    pool.wait_state(id, Completed);
    // NVML does not return: a CPU job runs meanwhile, and afterwards all is as before.
    fault(&pool, &["driver", "hang"]);
    pool.wait_until("it is seen", || faults(&pool).len() == 8);
    let id = pool.gsub(&["--wrap", "sleep 3"]);
    pool.wait_state(id, Completed);
    // It is one fault however long it lasts: not another one with every look.
    let history = gadm(&pool, &["gpu", "history", "node1:3"]).out;
    assert_eq!(
        history.matches("the driver does not answer").count(),
        1,
        "{history}"
    );
    assert!(
        pool.log("node1")
            .contains("WARN the driver does not answer"),
        "the node's log says it too"
    );
    let notes = pool.run("gnodes", &[]).out;
    assert!(
        notes.contains("gpu0-7 the driver does not answer"),
        "{notes}"
    );
    assert!(
        pool.run("gnodes", &["--health"])
            .out
            .contains("back by itself when that is over")
    );
    fault(&pool, &["driver", "clear"]);
    pool.wait_until("the driver answers", || faults(&pool).is_empty());
    assert!(
        pool.log("node1")
            .contains("8 GPUs, driver 580.95.05: it answers again")
    );
    let id = pool.gsub(&["--gpus", "8", "--wrap", "true"]);
    pool.wait_state(id, Completed);
    pool.down();
}

#[test]
fn a_site_says_otherwise_and_a_mistake_in_its_file_changes_nothing() {
    let Some(pool) = pool_of_eight() else { return };
    let signs = pool.write("signs.toml", "[sign.xid-94]\naction = \"note\"\n");
    pool.reconfigure("node1", &format!("gpu_signs = \"{}\"\n", signs.display()));
    pool.wait_idle("node1");
    fault(&pool, &["gpu0", "xid", "94"]);
    pool.wait_until("it is noted", || {
        gpu(&pool, &["list"]).out.contains("xid-94")
    });
    assert!(faults(&pool).is_empty());
    pool.write("signs.toml", "[sign.xid-94]\nactoin = \"note\"\n");
    pool.wait_until("the mistake is shown", || {
        pool.log("node1").contains("Did you mean \"action\"")
    });
    fault(&pool, &["gpu1", "xid", "94"]);
    pool.wait_until("the old catalogue is in force", || {
        gpu(&pool, &["list"]).out.matches("xid-94").count() == 2
    });
    assert!(faults(&pool).is_empty());
    pool.down();
}

#[test]
fn a_gpu_on_which_something_is_left_is_not_given_out_until_it_is_clean() {
    let Some(pool) = pool_of_eight() else { return };
    let id = pool.gsub(&[
        "--gpus",
        "1",
        "--wrap",
        &format!("echo $GSUB_GPU_UUIDS > mine; {WAIT}"),
    ]);
    pool.wait_until("it runs", || !pool.file("mine").is_empty());
    let slot = slot_of(&pool, pool.file("mine").trim());
    fault(&pool, &[&slot, "process", "999999", "4000"]);
    pool.write("stop", "");
    pool.wait_state(id, Completed);
    pool.wait_until("the GPU is not clean", || faults(&pool).len() == 1);
    let (_, words) = faults(&pool).remove(0);
    assert!(
        words.contains("not clean") && words.contains("999999"),
        "{words}"
    );
    let log = pool.run("gq", &["--log", &id.to_string()]);
    assert!(log.out.contains("is not given out"), "{log:?}");
    fault(&pool, &[&slot, "no-process"]);
    pool.wait_until("it is clean", || faults(&pool).is_empty());
    let next = pool.gsub(&["--gpus", "8", "--wrap", "true"]);
    pool.wait_state(next, Completed);
    let log = pool.run("gq", &["--log", &next.to_string()]);
    assert!(log.out.contains("8 GPUs are clean"), "{log:?}");
    pool.down();
}

#[test]
fn what_a_run_left_while_the_driver_hung_is_seen_when_it_answers() {
    let Some(pool) = pool_of_eight() else { return };
    let id = pool.gsub(&[
        "--gpus",
        "1",
        "--wrap",
        &format!("echo $GSUB_GPU_UUIDS > mine; {WAIT}"),
    ]);
    pool.wait_until("it runs", || !pool.file("mine").is_empty());
    let slot = slot_of(&pool, pool.file("mine").trim());
    fault(&pool, &["driver", "hang"]);
    fault(&pool, &[&slot, "process", "999999", "4000"]);
    pool.write("stop", "");
    pool.wait_state(id, Completed);
    // What was seen of it before says nothing now, however often it is looked at.
    pool.wait_until("nothing is known of any", || faults(&pool).len() == 8);
    pool.gsub(&["--wait", "--wrap", "sleep 3"]);
    fault(&pool, &["driver", "clear"]);
    pool.wait_until(
        "one GPU is not clean",
        || matches!(&faults(&pool)[..], [(_, words)] if words.contains("not clean")),
    );
    assert!(
        !pool.log("node1").contains("is clean now"),
        "{}",
        pool.log("node1")
    );
    fault(&pool, &[&slot, "no-process"]);
    pool.wait_until("it is clean", || faults(&pool).is_empty());
    pool.down();
}

#[test]
fn a_node_whose_driver_has_no_library_says_so_and_takes_no_work_until_it_is_there() {
    let Some(pool) = pool_of_eight() else { return };
    let library = pool.dir.join("node1/nvml/libnvidia_ml_sim.so");
    let away = pool.dir.join("node1/nvml/away");
    pool.kill("node1");
    std::fs::rename(&library, &away).unwrap();
    pool.start("node1");
    let reason = || pool.node("node1").unfit;
    pool.wait_until("the node says what is missing", || {
        reason().contains("no NVML here")
    });
    assert!(
        reason().contains("libnvidia_ml_sim.so") && reason().contains("gpus = \"none\""),
        "{}",
        reason()
    );
    assert!(pool.log("node1").contains("WARN no NVML here"));
    // As too old a one does.
    std::fs::copy("/bin/true", &library).unwrap();
    pool.wait_until("it is no NVML", || !reason().is_empty());
    std::fs::remove_file(&library).unwrap();
    std::fs::rename(&away, &library).unwrap();
    pool.wait_idle("node1");
    let id = pool.gsub(&["--gpus", "8", "--wrap", "true"]);
    pool.wait_state(id, Completed);
    pool.down();
}

#[test]
fn a_gpu_comes_back_only_when_the_sites_program_ends_well_on_it() {
    let Some(pool) = pool_of_eight() else { return };
    let program = pool.dir.join("node1/state/burn-in");
    let (ran, sound) = (
        pool.dir.join("node1/state/ran"),
        pool.dir.join("node1/state/sound"),
    );
    let script = format!(
        "#!/bin/sh\necho $CUDA_VISIBLE_DEVICES >> '{}'\n[ -e '{}' ] || {{ echo sums differ; exit 1; }}\n",
        ran.display(),
        sound.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(
        &program,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    pool.reconfigure(
        "node1",
        &format!("gpu_burn_in = \"{}\"\n", program.display()),
    );
    pool.wait_idle("node1");
    fault(&pool, &["gpu5", "xid", "48"]);
    pool.wait_until("one GPU is out", || faults(&pool).len() == 1);
    let sick = pool
        .node("node1")
        .gpus
        .into_iter()
        .find(|gpu| !gpu.fault.is_empty())
        .unwrap();
    gpu(&pool, &["return", &sick.uuid]);
    pool.wait_until("it is seen to be bad", || {
        faults(&pool)
            .iter()
            .any(|(_, words)| words.contains("sums differ"))
    });
    // A killed gpud does not try again by itself.
    pool.kill("node1");
    pool.start("node1");
    pool.wait_idle("node1");
    assert_eq!(faults(&pool).len(), 1);
    std::fs::write(&sound, "").unwrap();
    gpu(&pool, &["return", &sick.uuid]);
    pool.wait_until("it is back", || faults(&pool).is_empty());
    assert_eq!(
        std::fs::read_to_string(&ran).unwrap(),
        format!("{0}\n{0}\n", sick.uuid)
    );
    pool.down();
}

/// `gadm` as the operator.
fn gadm(pool: &Pool, words: &[&str]) -> CommandOutput {
    pool.run("gadm", words)
}

/// A GPU's line of `gnodes --health`, by its index.
fn health(pool: &Pool, index: &str) -> String {
    let said = pool.run("gnodes", &["--health", "node1"]);
    assert_eq!(said.code, 0, "{said:?}");
    let is_it = |line: &&str| line.split_whitespace().nth(1) == Some(index);
    said.out
        .lines()
        .find(is_it)
        .unwrap_or_else(|| panic!("no line for GPU {index}: {said:?}"))
        .to_owned()
}

#[test]
fn a_fault_of_a_drill_is_seen_in_the_health_of_gpus_within_seconds() {
    // As `gadm sandbox up` makes it: the library's event and the kernel log both say it, and it counts once.
    let Some(pool) = Pool::up(1, "h100:8") else {
        return;
    };
    pool.wait_idle("node1");
    let config = std::fs::read_to_string(pool.config("node1")).unwrap();
    assert!(config.contains("kernel_log = "), "{config}");
    let begun = std::time::Instant::now();
    fault(&pool, &["gpu3", "xid", "79"]);
    pool.wait_until("one GPU is out", || faults(&pool).len() == 1);
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
    let index = faults(&pool)[0].0.to_string();
    let line = health(&pool, &index);
    assert!(
        line.contains("quarantined") && line.contains("Xid 79: the GPU has fallen off the bus"),
        "{line}"
    );
    assert!(
        line.contains("gadm gpu return"),
        "what is next is not said: {line}"
    );
    let well = if index == "0" { "1" } else { "0" };
    assert!(
        health(&pool, well).contains(" ok "),
        "{}",
        health(&pool, well)
    );
    let listed = gpu(&pool, &["list"]);
    assert!(listed.out.contains("xid-79: Xid 79, 1 times"), "{listed:?}");
    pool.down();
}

#[test]
fn an_operator_takes_one_gpu_out_from_the_controller_and_puts_it_back_whatever_is_killed_meanwhile()
{
    let Some(pool) = pool_of_eight() else { return };
    let job = pool.gsub(&["--gpus", "8", "--wrap", WAIT]);
    pool.wait_state(job, Running);
    let uuid = pool.node("node1").gpus[0].uuid.clone();
    let index = pool.node("node1").gpus[0].index.to_string();
    for (words, complaint) in [
        (
            &["gpu", "quarantine", "node1", "99", "--reason", "hot"][..],
            "node1 has no GPU \"99\": it has 8 GPUs",
        ),
        (
            &["gpu", "quarantine", "node9", "0", "--reason", "hot"],
            "there is no node \"node9\". Did you mean \"node1\"?",
        ),
        (
            &["gpu", "quarantine", "node1", "GPU-", "--reason", "hot"],
            "\"GPU-\" means 8 GPUs of node1",
        ),
        (
            &["gpu", "quarantine", "node1", "0", "--reason", " "],
            "--reason is empty",
        ),
        (
            &["gpu", "history", "GPU-0-none"],
            "no GPU \"GPU-0-none\" was ever seen here",
        ),
    ] {
        let said = gadm(&pool, words);
        assert!(said.code != 0 && said.err.contains(complaint), "{said:?}");
    }
    // Its job may finish; no other job gets it.
    let said = gadm(
        &pool,
        &[
            "gpu",
            "quarantine",
            "node1",
            &uuid[..12],
            "--reason",
            "wrong sums",
        ],
    );
    assert!(
        said.code == 0 && said.err.contains("quarantined: wrong sums"),
        "{said:?}"
    );
    assert_eq!(pool.job(job).state, Running);
    pool.write("stop", "");
    pool.wait_state(job, Completed);
    let next = pool.gsub(&["--gpus", "8", "--wrap", "true"]);
    // Ordered while the node's daemon is dead: said so, and carried out when it is back, once.
    pool.kill("node1");
    let said = gadm(&pool, &["gpu", "return", "node1", &index]);
    assert!(
        said.code == 1 && said.err.contains("node1 has not answered within 5 s"),
        "{said:?}"
    );
    assert_eq!(pool.job(next).state, Pending);
    pool.start("node1");
    pool.wait_state(next, Completed);
    assert!(faults(&pool).is_empty());
    pool.kill("gpuctld");
    pool.start("gpuctld");
    pool.wait_idle("node1");
    let history = gadm(&pool, &["gpu", "history", "node1", &index]);
    let kinds: Vec<&str> = history
        .out
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    assert_eq!(
        kinds,
        ["appeared", "ordered", "sick", "ordered", "well"],
        "{history:?}"
    );
    assert!(history.out.contains("returned by root"), "{history:?}");
    pool.check();
    pool.down();
}

#[test]
fn a_reset_by_the_sites_program_brings_a_gpu_back_with_its_history() {
    let Some(pool) = pool_of_eight() else { return };
    let program = pool.dir.join("node1/state/reset");
    let ran = pool.dir.join("node1/state/ran");
    std::fs::write(
        &program,
        format!(
            "#!/bin/sh\necho $CUDA_VISIBLE_DEVICES >> '{}'\n",
            ran.display()
        ),
    )
    .unwrap();
    std::fs::set_permissions(
        &program,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    pool.reconfigure(
        "node1",
        &format!(
            "gpu_reset = \"{}\"\ngpu_repair_pause_secs = 1\n",
            program.display()
        ),
    );
    pool.wait_idle("node1");
    fault(&pool, &["gpu5", "xid", "48"]);
    pool.wait_until("it was reset", || {
        std::fs::read_to_string(&ran)
            .unwrap_or_default()
            .lines()
            .count()
            == 1
    });
    pool.wait_until("it is back", || faults(&pool).is_empty());
    let uuid = std::fs::read_to_string(&ran).unwrap().trim().to_owned();
    let history = gadm(&pool, &["gpu", "history", &uuid]);
    for kind in ["sick", "reset", "well"] {
        assert!(history.out.contains(kind), "{history:?}");
    }
    let diag = gadm(&pool, &["diag"]);
    assert!(
        diag.out.contains("gpu_health:") && diag.out.contains("ok: 8"),
        "{diag:?}"
    );
    pool.check();
    pool.down();
}

#[test]
fn a_node_that_is_not_as_expected_is_shown_and_works_on_and_features_are_found() {
    let Some(pool) = pool_of_eight() else { return };
    let said = pool.run("gnodes", &["--diff"]);
    assert!(
        said.code == 0 && said.err.contains("[expect.NAME]"),
        "{said:?}"
    );
    let config = pool.config("gpuctld");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(
        &config,
        text + "\n[expect.all]\nnodes = \"node[1-2]\"\ngpus = { h100 = 8, l4 = 1 }\n",
    )
    .unwrap();
    let said = gadm(&pool, &["reload"]);
    assert_eq!(said.code, 0, "{said:?}");
    let said = pool.run("gnodes", &["--diff"]);
    assert_eq!(
        (said.code, said.out.as_str()),
        (
            1,
            "node1\n- gpus l4:1\n+ gpus l4:0\nnode2\n- node connected\n+ node has not joined\n"
        )
    );
    let features = pool.node("node1").features;
    for feature in ["h100", "h100-80g", "cc9.0", "nvlink", "mig", "driver-580"] {
        assert!(features.iter().any(|one| one == feature), "{features:?}");
    }
    let id = pool.gsub(&["-C", "cc9.0&nvlink", "--gpus", "8", "--wrap", "true"]);
    pool.wait_state(id, Completed);
    pool.down();
}

#[test]
fn an_xid_is_in_the_record_of_the_job_it_befell_and_one_of_an_address_without_a_gpu_is_on_the_node()
{
    let Some(pool) = pool_of_eight() else { return };
    let job = pool.gsub(&[
        "--gpus",
        "1",
        "--wrap",
        &format!("echo $GSUB_GPU_UUIDS > seen; {WAIT}"),
    ]);
    let uuid = pool.wait_file("seen").trim().to_owned();
    fault(&pool, &[&slot_of(&pool, &uuid), "xid", "31"]);
    let log = pool.dir.join("node1/nvml/kmsg");
    let mut lines = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
    std::io::Write::write_all(
        &mut lines,
        b"NVRM: Xid (PCI:0000:ff:00): 79, pid=1, GPU has fallen off the bus.\n",
    )
    .unwrap();
    let stray = "Xid 79 at PCI 00000000:FF:00.0, where no GPU is known";
    pool.wait_until("the node says so", || {
        pool.node("node1")
            .notes
            .iter()
            .any(|note| note.contains(stray))
    });
    let shown = pool.run("gnodes", &["node1"]);
    assert!(shown.out.contains(&format!("Note={stray}")), "{shown:?}");
    assert!(pool.log("node1").contains(stray));
    let told = format!("{uuid}: Xid 31");
    pool.wait_until("the run's log says so", || {
        pool.run("gq", &["--log", &job.to_string()])
            .out
            .contains(&told)
    });
    pool.write("stop", "");
    let over = pool.wait_state(job, Completed);
    assert_eq!(over.gpu_events, [format!("node1: {told}")]);
    let shown = pool.run("gq", &[&job.to_string()]);
    assert!(
        shown.out.contains(&format!("GPUEvent=node1: {told}")),
        "{shown:?}"
    );
    assert_eq!(pool.attempts(job)[0].gpu_events, over.gpu_events);
    let listed = pool.run(
        "gacct",
        &["-j", &job.to_string(), "-X", "-n", "-P", "-o", "GPUEvents"],
    );
    assert!(listed.out.contains(&told), "{listed:?}");
    pool.down();
}
