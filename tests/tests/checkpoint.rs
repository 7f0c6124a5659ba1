//! The checkpoint contract end to end: a job that gives way is asked, marks, goes, and comes back to its mark.

use gmodel::JobState::{Completed, Pending, Running};
use gpupool_tests::pool::{Pool, programs};
use gwire::api::{SubmitRequest, Submitted};

/// Works until it is asked; marks then, with `gsub` as its user would; the attempt that finds a mark is the last.
fn worker(pool: &Pool) -> SubmitRequest {
    let gsub = programs().join("gsub").display().to_string();
    let script = format!(
        "echo \"attempt $GSUB_ATTEMPT from ${{GSUB_LAST_MARK:-nothing}}\"\n\
         [ -n \"$GSUB_LAST_MARK\" ] && exit 0\n\
         trap '{gsub} --mark epoch 40; echo \"marked: $?\"' USR1\n\
         trap 'echo terminated; exit 1' TERM\n\
         echo begun > begun\n\
         while :; do sleep 0.05; done"
    );
    let mut request = pool.request(&script, None);
    request.spec.launch.stdout = "out".into();
    request.spec.account = "guests".into();
    request.spec.request.gpus = Some(gmodel::gpu_request::GpuAsk::whole(1));
    request.spec.checkpoint = Some("USR1@600".parse().unwrap());
    request
}

fn gadm(pool: &Pool, words: &str) {
    let said = pool.run("gadm", &words.split_whitespace().collect::<Vec<_>>());
    assert_eq!(said.code, 0, "gadm {words}: {said:?}");
}

#[test]
fn a_job_on_borrowed_gpus_marks_its_checkpoint_gives_way_and_goes_on_from_it() {
    let Some(pool) = Pool::up(1, "h100:1") else { return };
    gadm(&pool, "account add owners guaranteed=gpu:1");
    gadm(&pool, "account add guests");
    gadm(&pool, "user add root account=guests");
    gadm(&pool, "user add root account=owners");
    let submitted: Submitted = pool.client().post("/v1/jobs", &worker(&pool)).unwrap();
    let guest = submitted.id.0;
    pool.wait_file("begun");
    let owner = pool.gsub(&["-A", "owners", "--gpus", "1", "--wrap", "while [ ! -e over ]; do sleep 0.05; done"]);
    pool.wait_state(owner, Running);
    let out = pool.file("out");
    assert!(out.starts_with("attempt 1 from nothing\nmarked: 0\n") && out.ends_with("terminated\n"), "{out}");
    assert_eq!(pool.job(guest).state, Pending, "it waits for its turn again");
    pool.write("over", "");
    pool.wait_state(owner, Completed);
    pool.wait_state(guest, Completed);
    let out = pool.file("out");
    assert!(out.ends_with("attempt 2 from 1 epoch 40\n") && out.starts_with("attempt 1"), "{out}");
    pool.check();
    pool.down();
}
