//! A client that follows a job's output while the daemons between the two are killed.

use crate::pool::{Pool, programs};

/// Its lines are the numbers up to this.
const NUMBERS: u32 = 600_000;

/// Follows a job to its end; kills the node's daemon, the controller and the node's daemon again, each after further bytes have
/// arrived. Returns the job. What came has to be its output, once and in order.
#[track_caller]
pub fn follow_over_kills(pool: &Pool, options: &[&str]) -> u64 {
    let script = format!(
        "i=0; while [ $i -lt {} ]; do seq $((i*1000+1)) $((i*1000+1000)); i=$((i+1)); sleep 0.01; done",
        NUMBERS / 1000
    );
    let job = pool.gsub(&[&["-t", "10", "--wrap", &script], options].concat());
    pool.run_shell(&format!("seq {NUMBERS} > numbers"));
    let line = format!(
        "{} --follow {job} > came; echo $? > code; cmp came numbers && echo same > same",
        programs().join("gq").display()
    );
    let mut follow = pool.command("/bin/sh").args(["-c", &line]).spawn().unwrap();
    let came = || std::fs::metadata(pool.work.join("came")).map_or(0, |file| file.len());
    for daemon in ["node1", "gpuctld", "node1"] {
        let before = came();
        pool.wait_until("more of the output", || came() > before);
        let ended = follow.try_wait().unwrap();
        assert_eq!(ended, None, "it is over before {daemon} is killed");
        pool.kill(daemon);
        pool.start(daemon);
    }
    follow.wait().unwrap();
    assert_eq!(pool.file("code"), "0\n");
    assert_eq!(pool.file("same"), "same\n");
    job
}
