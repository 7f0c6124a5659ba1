//! Submissions with a lost answer: asked again, each makes one job.

use gmodel::JobState::Completed;
use gpupool_tests::pool::Pool;
use gwire::api::SubmitReply;
use nix::sys::signal::Signal;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

#[test]
fn a_submission_whose_answer_was_lost_makes_one_job_when_asked_again() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let request = pool.request("true", Some("k-1".into()));
    // The client goes away before it has read the answer.
    let body = serde_json::to_vec(&request).unwrap();
    let mut stream = UnixStream::connect(pool.socket()).unwrap();
    write!(stream, "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len())
        .unwrap();
    stream.write_all(&body).unwrap();
    pool.wait_until("the first asking has made a job", || pool.jobs().len() == 1);
    drop(stream);
    let again: SubmitReply = pool.client().post("/v1/jobs", &request).unwrap();
    assert!(again.repeated);
    assert_eq!(pool.jobs().len(), 1);
    assert_eq!(pool.jobs()[0].id, again.id.0);
    // The key outlives a crash, though the job is over by then, and is its user's own.
    pool.wait_state(again.id.0, Completed);
    pool.kill("gpuctld");
    pool.start("gpuctld");
    let third: SubmitReply = pool.client().post("/v1/jobs", &request).unwrap();
    assert_eq!((third.id, third.repeated), (again.id, true));
    let other: SubmitReply = pool
        .client()
        .post("/v1/jobs", &pool.request("true", Some("k-2".into())))
        .unwrap();
    assert_ne!(other.id, again.id);
    pool.wait_state(other.id.0, Completed);
}

#[test]
fn gsub_asks_again_by_itself_when_the_controller_dies_under_it() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    // Stopped, it takes the connection and answers nothing; then it is killed with the request in it.
    pool.signal("gpuctld", Signal::SIGSTOP);
    let asking = std::thread::scope(|threads| {
        let asking = threads.spawn(|| pool.run("gsub", &["--wrap", "echo once >> ran"]));
        std::thread::sleep(Duration::from_millis(150));
        pool.kill("gpuctld");
        pool.start("gpuctld");
        asking.join().unwrap()
    });
    pool.wait_state(asking.id(), Completed);
    assert_eq!(pool.jobs().len(), 1);
    assert_eq!(pool.file("ran"), "once\n");
}
