//! gcheck as gpud runs it, on simulated GPUs: its kernels are carried out from their PTX by the simulator's libcuda, so a pass here
//! says that the text for the GPU and the arithmetic in Rust mean the same, and a fault of the GPU has to show.

use nvidia_ml_sim::{Fault, State, apply_fault, host};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const CANNOT_CHECK: i32 = 77;

struct Host {
    dir: TempDir,
}

impl Host {
    fn with(gpus: &[(&str, usize)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        host(gpus, "testhost", 40)
            .unwrap()
            .write(dir.path())
            .unwrap();
        std::fs::copy(built_library(), dir.path().join("libcuda.so.1")).unwrap();
        Self { dir }
    }

    fn inject(&self, slot: usize, fault: &str) {
        let fault: Fault = fault.parse().unwrap();
        State::edit(self.dir.path(), |state| {
            apply_fault(state, slot, fault).unwrap()
        })
        .unwrap();
    }

    fn uuid(&self, slot: usize) -> String {
        State::read(self.dir.path()).unwrap().gpus[slot]
            .uuid
            .clone()
    }

    /// As gpud calls it for the GPU in `slot`.
    fn gcheck(&self, slot: usize, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcheck"));
        command.env_clear().args(words).stdin(Stdio::null());
        command
            .env("GPUPOOL_CUDA_LIB", self.dir.path().join("libcuda.so.1"))
            .env("GPUPOOL_CHECK_SIZE", "small")
            .env("GPUPOOL_GPU", self.uuid(slot));
        command
    }

    fn found(&self, slot: usize, words: &[&str]) -> (i32, BTreeMap<String, Value>) {
        read(&self.gcheck(slot, words).output().unwrap())
    }
}

fn built_library() -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_gcheck")).parent().unwrap();
    let places = ["deps/libnvidia_ml_sim.so", "libnvidia_ml_sim.so"].map(|name| beside.join(name));
    let age = |path: &&PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    places
        .iter()
        .filter(|path| path.exists())
        .max_by_key(age)
        .unwrap_or_else(|| panic!("none of {places:?}"))
        .clone()
}

/// Exit code, and the findings by name.
fn read(output: &Output) -> (i32, BTreeMap<String, Value>) {
    let lines = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect::<Vec<_>>();
    let code = output
        .status
        .code()
        .unwrap_or_else(|| 128 + output.status.signal().unwrap());
    (
        code,
        lines
            .into_iter()
            .map(|line| (line["check"].as_str().unwrap_or_default().to_owned(), line))
            .collect(),
    )
}

fn failed(found: &BTreeMap<String, Value>) -> Vec<&str> {
    found
        .iter()
        .filter(|(_, line)| line["pass"] == false)
        .map(|(check, _)| check.as_str())
        .collect()
}

fn wait_for_line(child: &mut Child) {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.contains("begun"), "{line:?}");
}

/// Until the driver's library is in it.
fn wait_for_library(child: &Child) {
    let end = Instant::now() + Duration::from_secs(20);
    while !std::fs::read_to_string(format!("/proc/{}/maps", child.id()))
        .unwrap_or_default()
        .contains("libcuda.so.1")
    {
        assert!(Instant::now() < end, "it does not load the library");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn wait_within(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

#[test]
fn sound_gpus_of_any_kind_compute_what_the_processor_computes() {
    let host = Host::with(&[("h100", 1), ("l4", 1), ("v100", 1)]);
    let (code, first) = host.found(0, &[]);
    assert_eq!((code, failed(&first)), (0, vec![]));
    let names: Vec<&str> = first.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "arith.fp32",
            "arith.fp64",
            "arith.int",
            "copy.device",
            "copy.from-gpu",
            "copy.to-gpu",
            "memory"
        ]
    );
    assert_eq!(first["memory"]["text"], "64 KiB, patterns: 5");
    for slot in [1, 2] {
        let (code, other) = host.found(slot, &[]);
        assert_eq!(code, 0);
        for check in ["arith.int", "arith.fp32", "arith.fp64"] {
            assert_eq!(
                (&other[check]["checksum"], &other[check]["pass"]),
                (&first[check]["checksum"], &Value::Bool(true)),
                "{check}"
            );
        }
        assert!(
            other["copy.to-gpu"]["value"].as_f64() < first["copy.to-gpu"]["value"].as_f64(),
            "an older link is slower"
        );
    }
}

#[test]
fn each_fault_shows_in_what_it_spoils_and_nowhere_else() {
    let host = Host::with(&[("h100", 2)]);
    let (_, sound) = host.found(0, &[]);
    let changed = |fault: &str| {
        host.inject(0, "clear");
        host.inject(0, fault);
        let (code, found) = host.found(0, &[]);
        let differ: Vec<String> = found
            .keys()
            .filter(|check| found[*check] != sound[*check])
            .cloned()
            .collect();
        (code, differ, found)
    };
    let (code, differ, found) = changed("check wrong");
    assert_eq!(
        (code, differ),
        (
            1,
            ["arith.fp32", "arith.fp64", "arith.int"]
                .map(str::to_owned)
                .to_vec()
        )
    );
    let words = found["arith.fp32"]["text"].as_str().unwrap();
    assert!(
        words.starts_with("1 of 768 threads are wrong, the first is thread 37 of block 1: "),
        "{words}"
    );
    let (code, differ, found) = changed("check fails");
    assert_eq!((code, differ), (1, vec!["memory".to_owned()]));
    let words = found["memory"]["text"].as_str().unwrap();
    assert!(
        words.contains("2 times a word was wrong in 64 KiB, the first at 0x7f00000")
            && words.contains("10: bits 0x8, pattern of addresses"),
        "{words}"
    );
    let (code, differ, found) = changed("check slow");
    assert_eq!(
        (code, differ),
        (
            0,
            ["copy.device", "copy.from-gpu", "copy.to-gpu"]
                .map(str::to_owned)
                .to_vec()
        )
    );
    let half = found["copy.device"]["value"].as_f64().unwrap()
        / sound["copy.device"]["value"].as_f64().unwrap();
    assert!((half - 0.5).abs() < 0.01, "{half}");
    let (code, differ, found) = changed("pcie 4 3");
    assert_eq!(
        (code, differ),
        (
            0,
            ["copy.from-gpu", "copy.to-gpu"].map(str::to_owned).to_vec()
        )
    );
    assert!(found["copy.to-gpu"]["value"].as_f64().unwrap() < 4.0);
    // The other was sound all the time.
    assert_eq!(host.found(1, &[]), (0, sound));
}

#[test]
fn the_way_to_a_peer_is_measured_where_one_is_given_and_links_that_are_down_show() {
    let host = Host::with(&[("h100", 2)]);
    let peer = host.uuid(1);
    let rate = || {
        let (code, found) = host.found(0, &["run", "copy", "--peer", &peer]);
        assert_eq!(code, 0);
        found["copy.to-peer"]["value"].as_f64().unwrap()
    };
    let whole = rate();
    (0..9).for_each(|link| host.inject(0, &format!("nvlink-down {link}")));
    assert!((rate() / whole - 0.5).abs() < 0.01, "9 of 18 links");
    assert!(
        !host
            .found(0, &["run", "copy"])
            .1
            .contains_key("copy.to-peer")
    );
    host.inject(0, "clear");
    host.inject(1, "nvlink-slow");
    assert!((rate() / whole - 0.5).abs() < 0.01, "the other end is slow");
    assert_eq!(
        host.found(0, &["run", "copy", "--peer", &peer]).1["copy.to-peer"]["peer"],
        peer.as_str()
    );
}

#[test]
fn a_gpu_that_fails_under_the_check_is_blamed_by_cudas_name_and_one_that_is_not_there_is_not() {
    let host = Host::with(&[("h100", 1)]);
    let mut child = host
        .gcheck(0, &["load", "--secs", "600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_line(&mut child);
    host.inject(0, "ecc 1");
    let status = wait_within(&mut child, Duration::from_secs(30)).unwrap_or_else(|| {
        let _ = child.kill();
        panic!("it goes on with errors")
    });
    let output = child.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        status.code() == Some(1)
            && words.contains(
                "CUDA_ERROR_ECC_UNCORRECTABLE (214): uncorrectable ECC error encountered"
            ),
        "{status:?} {words}"
    );

    host.inject(0, "lost");
    let output = host.gcheck(0, &[]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(CANNOT_CHECK)
            && words.contains("initialising CUDA: CUDA_ERROR_NO_DEVICE (100)"),
        "{words}"
    );
}

#[test]
fn a_check_that_a_failing_gpu_ends_says_so_in_its_own_line() {
    let host = Host::with(&[("h100", 1)]);
    let mut tries = 0;
    let found = loop {
        let mut child = host.gcheck(0, &[]).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let (mut first, mut rest) = (String::new(), String::new());
        out.read_line(&mut first).unwrap();
        let signal = |name: &str| {
            Command::new("kill")
                .args([name, &child.id().to_string()])
                .status()
                .unwrap()
        };
        signal("-STOP");
        host.inject(0, "ecc 1");
        signal("-CONT");
        out.read_to_string(&mut rest).unwrap();
        let code = child.wait().unwrap().code();
        let last: Value = serde_json::from_str(rest.lines().last().unwrap_or(&first)).unwrap();
        tries += 1;
        // On a busy machine it may have come to its end before it was held.
        if code == Some(1) || tries == 20 {
            break last;
        }
    };
    let words = found["text"].as_str().unwrap_or_default();
    assert!(
        found["pass"] == false
            && words.ends_with(
                "CUDA_ERROR_ECC_UNCORRECTABLE (214): uncorrectable ECC error encountered"
            ),
        "{found}"
    );
    assert!(
        ["arith", "memory", "copy"].contains(&found["check"].as_str().unwrap()),
        "{found}"
    );
}

#[test]
fn what_the_gpu_is_not_to_blame_for_is_no_result() {
    let host = Host::with(&[("h100", 2)]);
    let cannot = |command: &mut Command, words: &str| {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(CANNOT_CHECK)
                && output.stdout.is_empty()
                && said.contains(words),
            "{words}: {:?} {said}",
            output.status
        );
    };
    cannot(
        host.gcheck(0, &[])
            .env("GPUPOOL_CUDA_LIB", "/nowhere/libcuda.so.1"),
        "no CUDA driver here: /nowhere/libcuda.so.1 cannot be loaded",
    );
    cannot(
        host.gcheck(0, &[]).env("GPUPOOL_CHECKS", "arith heat"),
        "there is no check \"heat\"; there are arith, memory, copy",
    );
    cannot(
        host.gcheck(0, &[]).env("GPUPOOL_CHECK_SIZE", "huge"),
        "GPUPOOL_CHECK_SIZE",
    );
    cannot(
        host.gcheck(0, &[])
            .env("CUDA_VISIBLE_DEVICES", host.uuid(1)),
        "CUDA lets this process use no GPU GPU-",
    );
    cannot(
        host.gcheck(0, &[]).env_remove("GPUPOOL_GPU"),
        "which GPU? --gpu takes one of GPU-",
    );
    State::edit(host.dir.path(), |state| {
        state.driver.state = nvidia_ml_sim::DriverState::Mismatch
    })
    .unwrap();
    cannot(
        &mut host.gcheck(0, &[]),
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)",
    );
}

#[test]
fn it_ends_at_once_when_told_also_where_the_driver_hangs() {
    for fault in ["check none", "check hang"] {
        let host = Host::with(&[("h100", 1)]);
        host.inject(0, fault);
        let mut child = host
            .gcheck(0, &["load", "--secs", "600"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        match fault {
            "check none" => wait_for_line(&mut child),
            _ => wait_for_library(&child),
        }
        let begun = Instant::now();
        Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .status()
            .unwrap();
        let status = wait_within(&mut child, Duration::from_secs(20)).expect("it ends");
        println!(
            "{fault}: ended {} ms after SIGTERM",
            begun.elapsed().as_millis()
        );
        assert_eq!(status.signal(), Some(15));
    }
}

#[test]
fn memory_is_scrubbed_taken_and_refused_beyond_what_there_is() {
    let host = Host::with(&[("l4", 1)]);
    let (code, found) = host.found(0, &["scrub"]);
    assert_eq!(
        (code, &found["scrub"]["text"]),
        (0, &Value::from("64 KiB of zeros"))
    );
    host.inject(0, "check fails");
    let (code, found) = host.found(0, &["scrub"]);
    assert_eq!((code, failed(&found)), (1, vec!["scrub"]));
    host.inject(0, "process 4711 9000");
    let output = host.gcheck(0, &["scrub"]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(CANNOT_CHECK) && words.contains("are free: somebody is on it"),
        "{words}"
    );
    host.inject(0, "no-process");
    let said = |mib: &str| {
        let output = host.gcheck(0, &["hold", "--mib", mib]).output().unwrap();
        (
            output.status.code(),
            serde_json::from_slice::<Value>(&output.stdout).unwrap(),
        )
    };
    let (code, line) = said("1000");
    assert_eq!((code, &line["held_mib"]), (Some(0), &Value::from(1000)));
    let (code, line) = said("25000");
    assert!(
        code == Some(1)
            && line["words"]
                .as_str()
                .unwrap()
                .contains("CUDA_ERROR_OUT_OF_MEMORY (2)"),
        "{line}"
    );
}

#[test]
fn gpus_are_listed_as_cuda_lets_this_process_use_them() {
    let host = Host::with(&[("h100", 3)]);
    let listed = |visible: Option<&str>| {
        let mut command = host.gcheck(0, &["list"]);
        visible.map(|uuid| command.env("CUDA_VISIBLE_DEVICES", uuid));
        let output = command.output().unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| {
                serde_json::from_str::<Value>(line).unwrap()["uuid"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(listed(None), [0, 1, 2].map(|slot| host.uuid(slot)));
    assert_eq!(listed(Some(&host.uuid(2))), [host.uuid(2)]);
}
