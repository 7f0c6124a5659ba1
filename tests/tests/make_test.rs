//! What `make test` says at its end: `tests/run.sh` with a cargo and kernel tests that do as told.

use gpupool_tests::pool::say;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const PASSED: &str = "     Summary [ 812.402s] 2190 tests run: 2190 passed (1 flaky), 3 skipped";
const ONE_FAILED: &str = "     Summary [ 812.402s] 2190 tests run: 2189 passed, 1 failed, 3 skipped\n        FAIL [   0.104s] gcore ctl::tests::it_breaks";

/// Exit status and lines of a run in which the kernel tests and the runner end as told.
fn run(kernel_tests: i32, runner: i32, summary: &str) -> (i32, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for folder in ["tests", "gsys/tests", "target/nextest/default"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::write(root.join("target/nextest/default/junit.xml"), "").unwrap();
    fs::write(root.join("summary"), format!("{summary}\n")).unwrap();
    fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("run.sh"),
        root.join("tests/run.sh"),
    )
    .unwrap();
    write_program(
        &root.join("gsys/tests/uml.sh"),
        &format!("exit {kernel_tests}"),
    );
    let kernel = root.join("kernel");
    write_program(&kernel, "");
    let built = format!(
        "{{\"name\":\"kernel\",\"executable\":\"{}\"}}",
        kernel.display()
    );
    let cargo = format!(
        "case \"$*\" in\nbuild*) echo '{built}' ;;\n'nextest run'*) echo '        PASS [   0.1s] gcore it_holds'; cat summary; exit {runner} ;;\nesac"
    );
    write_program(&root.join("cargo"), &cargo);
    let said = say(Command::new("bash")
        .arg(root.join("tests/run.sh"))
        .env("CARGO", root.join("cargo"))
        .env_remove("PROPTEST_RNG_SEED"));
    (said.code, said.out.lines().map(str::to_owned).collect())
}

fn write_program(path: &Path, lines: &str) {
    fs::write(path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn when_all_passes_the_last_line_is_the_runners() {
    let (code, lines) = run(0, 0, PASSED);
    assert_eq!((code, lines.last().unwrap().as_str()), (0, PASSED));
    assert!(
        !lines.iter().any(|line| line.contains("FAILED")),
        "{lines:?}"
    );
}

#[test]
fn a_step_that_fails_outside_the_runner_is_named_and_the_last_line_counts_it() {
    let (code, lines) = run(1, 0, PASSED);
    assert_eq!(
        (code, lines.last().unwrap().as_str()),
        (1, "2190 passed, 1 failed")
    );
    assert!(
        lines.contains(
            &"FAILED: the kernel tests under user-mode Linux (target/test-logs/uml)".to_owned()
        ),
        "{lines:?}"
    );
}

#[test]
fn a_failed_test_is_named_just_above_the_runners_own_last_line() {
    let (code, lines) = run(0, 100, ONE_FAILED);
    assert_eq!(
        (code, lines.last().unwrap().as_str()),
        (1, ONE_FAILED.lines().next().unwrap())
    );
    assert_eq!(
        lines[lines.len() - 2],
        "FAILED: FAIL [   0.104s] gcore ctl::tests::it_breaks"
    );
    let (code, lines) = run(1, 100, ONE_FAILED);
    assert_eq!(
        (code, lines.last().unwrap().as_str()),
        (1, "2189 passed, 2 failed")
    );
}

#[test]
fn a_runner_that_ends_without_a_summary_has_not_passed() {
    let (code, lines) = run(0, 101, "error: could not compile");
    assert_eq!(
        (code, lines.last().unwrap().as_str()),
        (1, "0 passed, 1 failed")
    );
}
