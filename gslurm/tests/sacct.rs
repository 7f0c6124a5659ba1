//! `sacct` against canned answers of the API.

#[path = "../../gq/tests/canned/accounting.rs"]
mod canned;

use canned::answer;
use expect_test::expect;
use gcli::fake_controller::{Answer, FakeController, Request};

use serde_json::json;

const GSLURM: &str = env!("CARGO_BIN_EXE_gslurm");

#[test]
fn under_the_name_sacct_there_are_steps_unless_told_otherwise() {
    let controller = FakeController::start(answer);
    assert!(
        controller
            .run_as("sacct", GSLURM, &["-V"])
            .stdout
            .starts_with("slurm 25.05.0 (as gpupool ")
    );
    for words in [&["-j", "95"][..], &["-X", "-j", "95"]] {
        assert_eq!(controller.run_as("sacct", GSLURM, words).exit, Some(0));
    }
    let paths: Vec<String> = controller
        .requests()
        .iter()
        .map(|request| request.path.clone())
        .collect();
    assert!(
        paths[0].contains("steps=true") && !paths[1].contains("steps"),
        "{paths:?}"
    );
}

#[test]
fn steps_have_tasks_and_what_they_used() {
    let answer = |_: &Request| {
        let step = |id: &str, name: &str, tasks: u32, used: Option<(f64, u64)>| json!({"job": 7, "shown_id": id, "name": name, "state": "COMPLETED", "ntasks": tasks, "cpu_time_secs": used.map(|used| used.0), "peak_memory_bytes": used.map(|used| used.1)});
        Answer::ok(json!({"schema": 1, "runs": [{"id": 7, "shown_id": "7", "state": "COMPLETED", "cpu_time_secs": 62.5, "peak_memory_bytes": 4096,
            "steps": [step("7.batch", "batch", 1, Some((2.5, 4096))), step("7.0", "rank", 4, Some((60.0, 2048))), step("7.1", "lost", 1, None)]}]}).to_string())
    };
    expect![[r#"
        7||01:02.500||4K
        7.batch|1|00:02.500|00:00:02|4K
        7.0|4|01:00.000|00:00:15|2K
        7.1|1|00:00.000|00:00:00|
    "#]]
    .assert_eq(
        &FakeController::start(answer)
            .run_as(
                "sacct",
                GSLURM,
                &["-nPo", "jobid,ntasks,totalcpu,avecpu,maxrss"],
            )
            .text(),
    );
}
