//! The steps of `make test-gpu` on simulated GPUs, so that they are sound when a real one is at hand; and what they say of a machine
//! that is not as it should be.

use gpupool_tests::gpu_run::{
    GpuRun, GpuSource, Outcome, Permissions, Step, driver_minors, record,
};
use gpupool_tests::pool::{Pool, programs};
use std::collections::BTreeMap;
use std::process::Command;

fn outcomes(steps: &[Step]) -> BTreeMap<&str, &Outcome> {
    steps
        .iter()
        .map(|step| (step.name, &step.outcome))
        .collect()
}

#[test]
fn every_step_passes_on_sound_simulated_gpus_and_the_record_says_so() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let run = GpuRun::new(&pool, GpuSource::Simulated, Permissions { mps: true });
    let steps = run.run(&mut |step| println!("{step:?}"));
    let failed: Vec<&Step> = steps
        .iter()
        .filter(|step| !matches!(step.outcome, Outcome::Passed(_)))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(steps.len(), 9);
    let text = record(
        GpuSource::Simulated,
        &run.types(),
        &run.versions(),
        "2026-11-20",
        &steps,
    );
    assert!(
        text.starts_with(
            "### 2026-11-20, h100 x2 (simulated)\n\nDriver and CUDA simulated / 13.0.\n"
        ),
        "{text}"
    );
    assert!(text.contains("| fence seen from CUDA | passed: a job finds its own GPU and no other, also when it names one |"), "{text}");
    pool.check();
    pool.down();
}

#[test]
fn a_gpu_that_computes_wrong_and_a_compute_mode_that_may_not_be_set_are_told() {
    let Some(pool) = Pool::up(1, "l4:1") else {
        return;
    };
    assert_eq!(
        pool.sandbox(&["fault", "node1", "gpu0", "check", "wrong"])
            .code,
        0
    );
    let run = GpuRun::new(&pool, GpuSource::Simulated, Permissions::default());
    let steps = run.run(&mut |step| println!("{step:?}"));
    let outcomes = outcomes(&steps);
    assert!(
        matches!(outcomes["diagnostics"], Outcome::Failed(words) if words.contains("threads are wrong")),
        "{steps:#?}"
    );
    assert!(
        matches!(outcomes["MPS cap"], Outcome::NotRun(words) if words.contains("GPUPOOL_TEST_GPU_MAY=mps")),
        "{steps:#?}"
    );
    assert!(
        matches!(outcomes["fence seen from CUDA"], Outcome::Passed(words) if words.contains("no second GPU")),
        "{steps:#?}"
    );
    pool.down();
}

#[test]
fn a_node_without_a_fence_does_not_pass_for_one() {
    let Some(pool) = Pool::up(1, "l4:2") else {
        return;
    };
    let path = pool.config("node1");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        &path,
        text.replace("isolation = \"fence\"", "isolation = \"none\""),
    )
    .unwrap();
    let run = GpuRun::new(&pool, GpuSource::Simulated, Permissions::default());
    let steps = run.run(&mut |step| println!("{step:?}"));
    let outcomes = outcomes(&steps);
    assert!(
        matches!(outcomes["discovery"], Outcome::Passed(_)),
        "{steps:#?}"
    );
    assert!(
        matches!(outcomes["fence of device files"], Outcome::Failed(words) if words.contains("a job with 0 GPUs opens those with minors [\"0\", \"1\"]")),
        "{steps:#?}"
    );
    assert!(
        matches!(outcomes["fence seen from CUDA"], Outcome::Failed(words) if words.contains("a job without GPUs")),
        "{steps:#?}"
    );
    pool.down();
}

#[test]
fn where_runs_cannot_be_fenced_in_the_other_steps_are_run_and_the_reason_is_told() {
    let Some(pool) = Pool::up(1, "l4:2") else {
        return;
    };
    // As in a container: cgroups that cannot be made.
    let path = pool.config("node1");
    let text = std::fs::read_to_string(&path).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("cgroup_tag"))
        .unwrap();
    std::fs::write(&path, text.replace(line, "cgroup_tag = \".none\"")).unwrap();
    let run = GpuRun::new(&pool, GpuSource::Simulated, Permissions::default());
    let steps = run.run(&mut |step| println!("{step:?}"));
    let outcomes = outcomes(&steps);
    for step in ["fence of device files", "fence seen from CUDA"] {
        assert!(
            matches!(outcomes[step], Outcome::NotRun(words) if words.contains("runs cannot be fenced in") && words.contains("is no name of a cgroup")),
            "{steps:#?}"
        );
    }
    for step in [
        "discovery",
        "device numbers",
        "use under load, energy",
        "diagnostics",
    ] {
        assert!(matches!(outcomes[step], Outcome::Passed(_)), "{steps:#?}");
    }
    pool.down();
}

#[test]
fn without_a_gpu_nothing_is_tried_and_what_is_not_known_is_refused() {
    let program = programs().join("gpupool-test-gpu");
    assert!(
        program.exists(),
        "{} is built with the workspace",
        program.display()
    );
    let says = |may: &str| {
        let output = Command::new(&program)
            .env("GPUPOOL_TEST_GPU_MAY", may)
            .env("GPUPOOL_CUDA_LIB", "/nowhere/libcuda.so.1")
            .output()
            .unwrap();
        (
            output.status.code(),
            format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ),
        )
    };
    let (code, words) = says("");
    assert!(
        code == Some(77)
            && words
                .starts_with("no NVIDIA GPU here: nothing was tried (gcheck: no CUDA driver here"),
        "{code:?} {words}"
    );
    for word in ["mig", "clocks", "mps,reset"] {
        let (code, words) = says(word);
        assert!(
            code == Some(2) && words.contains("No step touches MIG, clocks or resets"),
            "{code:?} {words}"
        );
    }
}

#[test]
fn a_pool_of_this_machines_own_gpus_comes_up_also_where_there_are_none() {
    if std::path::Path::new("/proc/driver/nvidia/gpus").exists() {
        println!(
            "NOT RUN: a_pool_of_this_machines_own_gpus_comes_up_also_where_there_are_none: there are some; make test-gpu uses them"
        );
        return;
    }
    let Some(pool) = Pool::up(1, "real") else {
        return;
    };
    pool.wait_idle("node1");
    assert!(pool.node("node1").gpus.is_empty());
    let job = pool.gsub(&["--wrap", "true"]);
    pool.wait_state(job, gmodel::JobState::Completed);
    pool.run(
        "gadm",
        &[
            "sandbox", "up", "--dir", "two", "--nodes", "2", "--gpus", "real",
        ],
    )
    .fails_with(
        1,
        "this machine's own GPUs are one node's. Try --nodes 1 --gpus real",
    );
    pool.down();
}

#[test]
fn minors_are_read_as_the_driver_shows_them() {
    let dir = tempfile::tempdir().unwrap();
    let gpu = dir.path().join("0000:19:00.0");
    std::fs::create_dir(&gpu).unwrap();
    let text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t GPU-8d5ab1c4-0000-0000-0000-000000000000\nVideo BIOS: \t 96.00.30.00.01\nBus Type: \t PCIe\nDevice Minor: \t 3\nGPU Excluded:\t No\n";
    std::fs::write(gpu.join("information"), text).unwrap();
    assert_eq!(
        driver_minors(dir.path()),
        BTreeMap::from([("GPU-8d5ab1c4-0000-0000-0000-000000000000".to_owned(), 3)])
    );
}
