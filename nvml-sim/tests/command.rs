//! The command `nvml-sim` as an administrator or `gadm sandbox` runs it.

use std::path::Path;
use std::process::{Command, Output};

use nvidia_ml_sim::{EventKind, State};

fn run(dir: &Path, line: &str) -> Output {
    let mut words = line.split_whitespace();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvml-sim"));
    command
        .args(words.next())
        .arg("--dir")
        .arg(dir)
        .args(words)
        .output()
        .expect("nvml-sim runs")
}

fn worked(dir: &Path, line: &str) -> String {
    let output = run(dir, line);
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn refused(dir: &Path, line: &str) -> (i32, String) {
    let output = run(dir, line);
    assert!(output.stdout.is_empty());
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn init_fault_set_and_show_work_on_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("node1");
    assert_eq!(
        worked(&dir, "init --gpus h100:7,l4 --seed node1 --minor-base 16"),
        ""
    );
    worked(&dir, "fault gpu3 xid 79");
    worked(&dir, "fault gpu3 lost");
    worked(&dir, "set gpu0 util=90 temp=70 power=500");
    let state = State::read(&dir).unwrap();
    assert_eq!(state.events[0].kind, EventKind::Xid(79));
    assert_eq!(
        (
            state.gpus[3].faults.lost,
            state.gpus[0].readings.power_mw,
            state.gpus[0].minor
        ),
        (true, 500_000, 20)
    );
    assert!(
        state.gpus[0].readings.counted_to_unix_ms > 0,
        "energy runs on"
    );
    let shown = worked(&dir, "show");
    assert!(
        shown.lines().any(|line| line.starts_with("gpu3")
            && line.contains("h100")
            && line.ends_with("lost")),
        "{shown}"
    );
    assert_eq!(
        serde_json::from_str::<State>(&worked(&dir, "show --json")).unwrap(),
        state
    );
    worked(&dir, "fault gpu3 clear");
    assert!(!State::read(&dir).unwrap().gpus[3].faults.lost);
}

#[test]
fn mistakes_are_refused_with_what_would_work_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (code, error) = refused(dir.path(), "show");
    assert!(
        code == 1 && error.contains("state.json: No such file"),
        "{error}"
    );
    assert_eq!(
        refused(dir.path(), "init --gpus h300:8"),
        (
            1,
            "nvml-sim: no GPU profile \"h300\"; there are l4, v100, a100-40, a100-80, h100, h200, b200\n"
                .to_owned()
        )
    );
    worked(dir.path(), "init --gpus h100:2 --seed s");
    let before = State::read(dir.path()).unwrap();
    assert_eq!(
        refused(dir.path(), "fault gpu7 lost"),
        (
            1,
            "nvml-sim: no GPU gpu7: this host has gpu0 to gpu1\n".to_owned()
        )
    );
    let (code, error) = refused(dir.path(), "fault gpu1 melt");
    assert!(code == 2 && error.contains("there are xid N"), "{error}");
    assert_eq!(
        refused(dir.path(), "fault gpu1 nvlink-down 18"),
        (1, "nvml-sim: no NVLink 18: a h100 has 18\n".to_owned())
    );
    assert_eq!(refused(dir.path(), "set gpu1 util=30 util=130").0, 1);
    assert_eq!(refused(dir.path(), "show --colour").0, 2);
    assert_eq!(State::read(dir.path()).unwrap(), before);
}

#[test]
fn a_drill_plays_its_steps_in_time_and_is_read_whole_first() {
    let dir = tempfile::tempdir().unwrap();
    worked(dir.path(), "init --gpus h100:8 --seed s");
    let drill = dir.path().join("drill");
    std::fs::write(&drill, "# a bad afternoon\n0.2 gpu1 lost\n0.1 gpu0 xid 48 3\n0 driver mismatch # and back\n0.3 driver clear\n").unwrap();
    let begun = std::time::Instant::now();
    worked(dir.path(), &format!("play {}", drill.display()));
    assert!(begun.elapsed().as_millis() >= 300);
    let state = State::read(dir.path()).unwrap();
    assert_eq!(
        (
            state.events.len(),
            state.gpus[1].faults.lost,
            state.driver.state
        ),
        (3, true, nvidia_ml_sim::DriverState::Loaded)
    );
    std::fs::write(&drill, "0 gpu1 clear\n1 gpu2 explode\n").unwrap();
    let (code, error) = refused(dir.path(), &format!("play {}", drill.display()));
    assert!(
        code == 1 && error.contains("drill:2: no fault \"explode\""),
        "{error}"
    );
    assert_eq!(State::read(dir.path()).unwrap(), state);
}

#[test]
fn a_drill_sets_readings_and_cuts_gpus_and_a_new_host_tells_its_capability_minors() {
    let dir = tempfile::tempdir().unwrap();
    worked(dir.path(), "init --gpus h100:2 --seed s --minor-base 3");
    let minors = std::fs::read_to_string(dir.path().join(nvidia_ml_sim::MIG_MINORS_FILE)).unwrap();
    assert!(minors.contains("gpu4/gi1/ci0/access 553\n") && !minors.contains("gpu0/"));
    let drill = dir.path().join("drill");
    std::fs::write(&drill, "0 gpu1 mig 3g.40gb,3g.40gb\n0.1 gpu0 set util=80 power=500 nvlink-tx=900\n0.1 gpu1 process 7 10 1 0\n").unwrap();
    worked(dir.path(), &format!("play {}", drill.display()));
    let state = State::read(dir.path()).unwrap();
    assert_eq!(
        (
            state.gpus[0].readings.gpu_percent,
            state.gpus[1].mig_instances.len()
        ),
        (80, 2)
    );
    let (code, error) = refused(dir.path(), "fault gpu1 mig 7g.80gb");
    assert!(
        code == 1 && error.contains("1 processes are on it"),
        "{error}"
    );
    let (code, error) = refused(dir.path(), "fault gpu0 mig 5g.50gb");
    assert!(
        code == 1 && error.contains("there are 1g.10gb, 1g.10gb+me"),
        "{error}"
    );
    assert!(worked(dir.path(), "show").contains("mig (2 instances)"));
}

#[test]
fn many_writers_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    worked(dir.path(), "init --gpus l4:4 --seed s");
    let children: Vec<_> = (0..12)
        .map(|n| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_nvml-sim"));
            command
                .args(["fault", "--dir"])
                .arg(dir.path())
                .args([&format!("gpu{}", n % 4), "xid", "13"])
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(State::read(dir.path()).unwrap().events.len(), 12);
}
