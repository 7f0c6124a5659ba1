//! Slurm's REST API over the controller's socket, as its clients speak it: a job's life, listings, and bodies that are none.

use gmodel::JobState::{Completed, Running};
use gpupool_tests::pool::Pool;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Status and body of one request.
fn ask(pool: &Pool, method: &str, path: &str, body: &str) -> (u32, Value) {
    let mut stream = UnixStream::connect(pool.socket()).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    // A body that is too large is answered before its end.
    let _ = stream.write_all(body.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = head.to_ascii_lowercase().contains("chunked");
    let body = if chunked {
        joined(body)
    } else {
        body.to_owned()
    };
    let value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
    (status, value)
}

/// The chunks of a body together.
fn joined(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        whole.push_str(&rest[..length]);
        body = &rest[(length + 2).min(rest.len())..];
    }
    whole
}

fn get(pool: &Pool, path: &str) -> Value {
    let (status, answer) = ask(pool, "GET", path, "");
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

fn submit(pool: &Pool, script: &str, mut job: Value) -> u64 {
    job["current_working_directory"] = json!(pool.work);
    let body = json!({"script": script, "job": job}).to_string();
    let (status, answer) = ask(pool, "POST", "/slurm/v0.0.43/job/submit", &body);
    assert_eq!(status, 200, "{answer}");
    answer["job_id"].as_u64().unwrap()
}

#[test]
fn a_job_over_rest_runs_with_its_environment_and_is_accounted() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let job = json!({"name": "told", "environment": ["WORD=from rest", "PATH=/bin:/usr/bin"], "tasks": 1, "tres_per_job": "gres/gpu:1",
        "time_limit": {"set": true, "infinite": false, "number": 5}, "standard_output": "told.out", "argv": ["one", "two words"]});
    let script =
        "#!/bin/sh\n#SBATCH --time=99\necho \"$WORD\" \"$2\" $SLURM_JOB_NAME $SLURM_GPUS_ON_NODE\n";
    let id = submit(&pool, script, job);
    pool.wait_state(id, Completed);
    assert_eq!(pool.wait_file("told.out"), "from rest two words told 1\n");
    let row = &get(&pool, &format!("/slurm/v0.0.43/job/{id}"))["jobs"][0];
    assert_eq!(
        row["time_limit"]["number"],
        json!(5),
        "lines of the script are not read"
    );
    assert_eq!(row["job_state"], json!(["COMPLETED"]));
    let run = &get(&pool, &format!("/slurmdb/v0.0.43/job/{id}"))["jobs"][0];
    assert_eq!(
        (&run["state"]["current"], &run["exit_code"]["status"]),
        (&json!(["COMPLETED"]), &json!(["SUCCESS"]))
    );
    pool.check();
}

#[test]
fn a_running_job_gets_a_signal_and_is_cancelled() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    let script =
        "#!/bin/sh\ntrap 'echo caught > caught' USR1\necho up > up\nwhile :; do sleep 0.1; done\n";
    let id = submit(
        &pool,
        script,
        json!({"environment": ["PATH=/bin:/usr/bin"]}),
    );
    pool.wait_state(id, Running);
    pool.wait_file("up");
    let path = format!("/slurm/v0.0.43/job/{id}");
    let (status, answer) = ask(
        &pool,
        "DELETE",
        &format!("{path}?signal=USR1&flags=BATCH_JOB"),
        "",
    );
    assert_eq!(status, 200, "{answer}");
    assert_eq!(pool.wait_file("caught"), "caught\n");
    let (status, answer) = ask(&pool, "DELETE", &path, "");
    assert_eq!(status, 200, "{answer}");
    pool.wait_until("the job is over", || {
        get(&pool, &path)["jobs"][0]["job_state"] == json!(["CANCELLED"])
    });
    pool.check();
}

#[test]
fn long_listings_are_the_same_over_rest_and_under_slurms_name() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    let mut client = pool.client();
    let mut held = pool.request("#!/bin/sh\ntrue\n", None);
    held.spec.hold = true;
    for number in 0..300 {
        held.spec.name = format!("job {number} \"\\");
        let _: Value = client.post_repeatable("/v1/jobs", &held).unwrap();
    }
    let rest = get(&pool, "/slurm/v0.0.43/jobs/");
    assert_eq!(rest["jobs"].as_array().unwrap().len(), 300);
    let links = pool.work.join("links");
    pool.run("gadm", &["slurm-names", links.to_str().unwrap()]);
    let said = pool.run_shell(&format!("{}/squeue --json", links.display()));
    let squeue: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(rest["jobs"], squeue["jobs"]);
    pool.check();
}

#[test]
fn bodies_and_paths_that_are_none_are_refused_with_errors_in_slurms_shape() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    let submit = "/slurm/v0.0.43/job/submit";
    let large = "x".repeat(9 << 20);
    let deep = format!("{{\"job\": {}", "[".repeat(100_000));
    // The controller reads no file for a user.
    let of_file = serde_json::json!({"script": "#!/bin/sh\n", "job": {"current_working_directory": "/", "required_nodes": ["/etc/shadow"]}});
    let of_file = of_file.to_string();
    for (method, path, body, status) in [
        ("POST", submit, &of_file[..], 422),
        ("POST", submit, "{\"script\":", 400),
        ("POST", submit, "\u{0}", 400),
        ("POST", submit, &deep, 400),
        ("POST", submit, &large, 413),
        ("POST", "/slurm/v0.0.43/job/1", &large[..2 << 20], 413),
        ("GET", "/slurm/v0.0.30/jobs/", "", 404),
        ("GET", "/slurm/v0.0.43/job/99", "", 404),
        ("GET", "/slurm/v0.0.43/job/%00", "", 404),
        ("DELETE", "/slurm/v0.0.43/job/99", "", 404),
        ("TRACE", "/slurm/v0.0.43/jobs/", "", 405),
    ] {
        let (said, answer) = ask(&pool, method, path, body);
        let error = &answer["errors"][0];
        assert_eq!(said, status, "{method} {path}: {answer}");
        assert!(
            error["error_number"].is_u64() && error["description"].is_string(),
            "{answer}"
        );
        assert!(answer["meta"]["slurm"]["cluster"].is_string(), "{answer}");
    }
    pool.check();
}
