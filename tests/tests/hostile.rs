//! An attack of `SOAK_SECS` or some seconds: the daemons live, keep to their memory bounds, and other users work on.

use gmodel::JobState;
use gpupool_tests::hostile::{AFTERWARDS, Watch, secs};
use gpupool_tests::pool::Pool;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[test]
fn a_hostile_user_ends_fills_and_blocks_nothing() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let mut watch = Watch::begin(&pool, &["gpuctld", "node1"]);
    let own = pool
        .run_as_user(
            "gsub",
            &["-o", "/dev/null", "--wrap", "while :; do sleep 0.1; done"],
        )
        .id();
    pool.wait_state(own, JobState::Running);
    let others = pool.gsub(&["--hold", "--wrap", "true"]);
    let secs = secs(15);
    let seed = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let of_node = format!("/run/gpupool/{}/node1/gpud.sock", pool.tag());
    let socket = pool.socket();
    let words = [
        &own.to_string(),
        &others.to_string(),
        pool.work.to_str().unwrap(),
        &secs.to_string(),
        &seed.to_string(),
        socket.to_str().unwrap(),
        &of_node,
    ]
    .map(str::to_owned);
    let mut user = pool
        .user_command("gpupool-hostile-user")
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(secs) + AFTERWARDS;
    while user.try_wait().unwrap().is_none() {
        assert!(
            Instant::now() < until,
            "the hostile user does not end\n{}",
            pool.logs()
        );
        watch.look();
        std::thread::sleep(Duration::from_millis(500));
    }
    let output = user.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "seed {seed}: {said}");
    let held = pool.job(others);
    assert_eq!(
        (held.state, held.holds.len()),
        (JobState::Pending, 1),
        "a job of somebody else: {held:?}"
    );
    println!(
        "seed {seed}: {}answers by status: {}",
        watch.end() + "; ",
        said.trim()
    );
}
