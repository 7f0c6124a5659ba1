//! An ordinary, hostile user: every number and text of every request at its extremes, half requests, and answers that are
//! never read, over the controller's socket and a node's. Each request must get an answer in words, or an end.

use super::extremes::{paths, texts, values, with};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Connections that send by half, and those that never read, on each socket.
const HALF: usize = 700;
const DEAF: usize = 40;
/// Largest answer that is kept to look at.
const LOOK_BYTES: usize = 2000;

/// What the user knows of the pool.
pub struct Ground {
    /// The controller's socket, and one of a node where the user has a job.
    pub sockets: Vec<PathBuf>,
    /// A running job of the user, and one of another user.
    pub own: u64,
    pub others: u64,
    /// A directory to work in.
    pub dir: String,
    pub secs: u64,
    pub seed: u64,
}

/// One request: method, path, body.
type HostileRequest = (&'static str, String, Value);

/// Does harm until the time is up. How often each status was answered.
///
/// # Errors
/// An answer that no user must get: a bug in words, or one without words.
pub fn attack(ground: &Ground) -> Result<BTreeMap<u16, u64>, String> {
    let until = Instant::now() + Duration::from_secs(ground.secs);
    std::thread::scope(|threads| {
        for socket in &ground.sockets {
            threads.spawn(move || half_sent(socket, until));
            threads.spawn(move || never_read(socket, until));
        }
        let askers: Vec<_> = (0..4)
            .map(|at| threads.spawn(move || ask_all(ground, at, until)))
            .collect();
        let mut counts = BTreeMap::new();
        for asker in askers {
            for (status, count) in asker.join().map_err(|_| "an asker panicked".to_owned())?? {
                *counts.entry(status).or_default() += count;
            }
        }
        Ok(counts)
    })
}

/// Bodies of which half comes, heads of which half comes, and nothing at all; each anew when it is closed.
fn half_sent(socket: &Path, until: Instant) {
    let mut open: Vec<UnixStream> = Vec::new();
    while Instant::now() < until {
        while open.len() < HALF {
            let Ok(mut stream) = UnixStream::connect(socket) else {
                break;
            };
            let _ = stream.set_write_timeout(Some(Duration::from_millis(200)));
            let sent = match open.len() % 3 {
                0 => {
                    let head = b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 8000000\r\n\r\n{\"script\":\"".to_vec();
                    stream.write_all(&[head, vec![b'x'; 4_000_000]].concat())
                }
                1 => stream.write_all(b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-le"),
                _ => Ok(()),
            };
            drop(sent); // the connection may be refused, or nobody reads: that is the point
            open.push(stream);
            if Instant::now() > until {
                return;
            }
        }
        std::thread::sleep(Duration::from_millis(200));
        open.retain(|stream| {
            let _ = stream.set_nonblocking(true);
            let mut byte = [0];
            matches!((&*stream).read(&mut byte), Err(error) if error.kind() == ErrorKind::WouldBlock)
        });
    }
}

/// Long listings, asked for many times on each connection and not read.
fn never_read(socket: &Path, until: Instant) {
    let mut open: Vec<UnixStream> = Vec::new();
    while Instant::now() < until {
        while open.len() < DEAF {
            let Ok(mut stream) = UnixStream::connect(socket) else {
                break;
            };
            let _ = stream.set_nonblocking(true);
            let _ = stream.write_all(
                "GET /v1/jobs?state=all&expand=true HTTP/1.1\r\nhost: x\r\n\r\n"
                    .repeat(100)
                    .as_bytes(),
            );
            open.push(stream);
        }
        std::thread::sleep(Duration::from_secs(2));
        open.drain(..DEAF.min(open.len()) / 4);
    }
}

/// Requests with an extreme in each, in an order of this asker's own.
fn ask_all(ground: &Ground, at: u64, until: Instant) -> Result<BTreeMap<u16, u64>, String> {
    let mut chance = (ground.seed + at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = |below: usize| {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        (chance % below as u64) as usize
    };
    let (posts, gets, values, texts) = (posts(ground), gets(ground), values(), texts());
    let places: Vec<(usize, String)> = posts
        .iter()
        .enumerate()
        .flat_map(|(at, (_, _, body))| paths(body).into_iter().map(move |path| (at, path)))
        .collect();
    let mut counts = BTreeMap::new();
    let socket = &ground.sockets[at as usize % ground.sockets.len()];
    while Instant::now() < until {
        let (method, path, body) = match next(4) {
            0 => {
                let (path, keys) = &gets[next(gets.len())];
                let text = encoded(&texts[next(texts.len())]);
                match keys.is_empty() {
                    true => ("GET", path.replace("{}", &text), Value::Null),
                    false => (
                        "GET",
                        format!("{path}?{}={text}", keys[next(keys.len())]),
                        Value::Null,
                    ),
                }
            }
            _ => {
                let (at, path) = &places[next(places.len())];
                let (method, to, body) = &posts[*at];
                (
                    *method,
                    to.clone(),
                    with(body, path, values[next(values.len())].clone()),
                )
            }
        };
        let Some((status, text)) = exchange(socket, method, &path, &body) else {
            continue;
        };
        *counts.entry(status).or_default() += 1;
        let start: String = path.chars().take(200).collect();
        let shown = || {
            format!(
                "{method} {start} {}: {status} {text}",
                body.to_string().chars().take(300).collect::<String>()
            )
        };
        let is_fault = status >= 500
            && ["bug", "database", "did not answer"]
                .iter()
                .any(|word| text.contains(word));
        if is_fault
            || status >= 400 && !text.contains("\"error\":") && !matches!(status, 400 | 414 | 431)
        {
            return Err(shown());
        }
    }
    Ok(counts)
}

/// Status and the beginning of the answer; none where the connection ended without one.
fn exchange(socket: &Path, method: &str, path: &str, body: &Value) -> Option<(u16, String)> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .ok()?;
    stream
        .set_write_timeout(Some(Duration::from_secs(60)))
        .ok()?;
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let _ = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body.as_bytes())); // refused before its end: the answer is there
    let (mut answer, mut chunk) = (Vec::new(), [0; 65_536]);
    while let Ok(count @ 1..) = stream.read(&mut chunk) {
        let room = LOOK_BYTES.saturating_sub(answer.len()).min(count);
        answer.extend_from_slice(&chunk[..room]);
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1)?.parse().ok()?;
    Some((status, text))
}

fn encoded(text: &str) -> String {
    text.bytes()
        .take(60_000)
        .map(|byte| {
            if byte.is_ascii_alphanumeric() {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// A submission with all that may be asked for.
const SPEC: &str = r#"{
"name": "harm", "partition": "main", "account": "", "qos": "", "time_limit_secs": 60, "begin": "2026-01-01T00:00:00Z", "array": "0-3",
"nice": 5, "hold": true, "requeue": false, "no_kill": true, "dependency": "afterany:1", "kill_on_invalid_dep": true, "licences": {"matlab": 1},
"reservation": "none", "checkpoint": "USR1@60", "borrow": true, "priority": 0, "site_factor_milli": 1, "time_min_secs": 30,
"deadline": "2099-01-01T00:00:00Z", "idle_exempt": false, "comment": "c", "tags": ["t"], "later": {"--mcs-label": "x"},
"request": {
"nodes_min": 1, "nodes_max": 1, "nodes_any": false, "ntasks": 1, "ntasks_per_node": 1, "cpus_per_task": 1, "cpus_per_gpu": 1, "mem": {"per_node": 1},
"gpus": "h100:1", "gpu_scope": "job", "gpu_mem_mib": 1, "exclusive": false, "nodelist": "node1", "exclude": "node9", "constraint": "a|b", "prefer": "c",
"nvlink": false, "switches": {"most": 1, "wait_secs": 1}
},
"launch": {
"argv": ["a", "b"], "command": "c", "work_dir": "DIR", "submit_dir": "/tmp", "submit_host": "h", "stdout": "/dev/null", "stderr": "", "stdin": "",
"open_mode": "append", "umask": 18, "rlimits": [{"name": "NOFILE", "soft": 1024}], "signal": "USR1@60", "mail_type": "END", "mail_user": "u"
}
}"#;

/// Every request with a body, with every key that it may have.
fn posts(ground: &Ground) -> Vec<HostileRequest> {
    let (own, others) = (ground.own.to_string(), ground.others.to_string());
    let spec: Value = serde_json::from_str(SPEC).expect("JSON");
    let spec = with(&spec, "/launch/work_dir", ground.dir.clone().into());
    let plain = json!({"hold": true, "request": {"gpus": null}, "launch": {"work_dir": ground.dir, "stdout": "/dev/null"}});
    let submit = |spec: Value| json!({"spec": spec, "script": "#!/bin/sh\nexit 0\n", "environment": ["PATH=/usr/bin:/bin"], "client_key": null});
    let share = json!({"cpus_per_task": 1, "gpus": {"count": 1, "gpu_type": "h100", "per": "task"}, "mem_bytes": 1, "mem_per_cpu_bytes": 1, "mem_per_gpu_bytes": 1, "overlap": true});
    let pin = "0".repeat(64);
    let step = json!({
        "argv": ["true"], "environment": ["A=1"], "work_dir": "/tmp", "name": "s", "nodes": 1, "ntasks": 1, "ntasks_per_node": 1, "nodelist": "node1", "exclude": "",
        "relative": 0, "plane": 1, "share": share, "connect": "127.0.0.1:9", "key": "k", "certificate": pin,
    });
    let bare_step = json!({"argv": ["true"], "ntasks_per_node": 1, "connect": "127.0.0.1:9", "key": "k", "certificate": pin});
    let used = json!({"cpu_user_micros": 1, "cpu_system_micros": 1, "peak_memory_bytes": 1, "oom_kills": 0, "gpu": {"sampled_ms": 1, "energy_mj": 1, "power_peak_mw": 1}});
    let change = json!({
        "time_limit_secs": 60, "nice": 1, "name": "n", "comment": "c", "partition": "main", "account": "a", "qos": "q", "begin": "2026-01-01T00:00:00Z", "requeue": true,
        "max_running": 1, "dependency": "afterok:1", "licences": "l:1", "reservation": "r", "priority": 1, "borrow": true, "deadline": "2099-01-01T00:00:00Z",
        "time_min_secs": 1, "checkpoint": "USR1@60", "idle_exempt": true,
    });
    let targets = json!({"jobs": [own], "reason": "r", "hold": true, "for_owner": true});
    let mut all: Vec<HostileRequest> = vec![
        ("POST", "/v1/jobs".into(), submit(spec.clone())),
        ("POST", "/v1/jobs".into(), submit(plain.clone())),
        ("POST", "/v1/jobs/dry-run".into(), submit(spec)),
        ("POST", "/v1/jobs/dry-run".into(), submit(plain)),
        ("POST", format!("/v1/jobs/{own}/steps"), step),
        ("POST", format!("/v1/jobs/{own}/steps"), bare_step),
        (
            "POST",
            format!("/v1/jobs/{own}/steps/0/end"),
            json!({"exit_code": "0:0", "used": used}),
        ),
        (
            "POST",
            "/v1/jobs/cancel".into(),
            json!({"jobs": [others], "filter": {"user": "root", "name": "n", "state": "PENDING", "nodelist": "node1"}, "signal": 10, "batch_only": true, "full": true}),
        ),
    ];
    for (key, value) in change.as_object().expect("an object") {
        all.push((
            "POST",
            "/v1/jobs/update".into(),
            json!({"job": own, "change": {key: value}}),
        ));
    }
    for key in [
        "gpus",
        "nodelist",
        "exclude",
        "constraint",
        "nodes",
        "ntasks",
        "mem",
        "cpus_per_task",
    ] {
        all.push((
            "POST",
            "/v1/jobs/update".into(),
            json!({"job": "2", "change": {key: "1"}}),
        ));
    }
    for act in ["hold", "release", "requeue", "suspend", "resume"] {
        all.push((
            "POST",
            format!("/v1/jobs/{act}"),
            with(&targets, "/jobs/0", others.clone().into()),
        ));
    }
    let edit =
        json!({"change": {"limit": {"h100": 1}, "users": ["u"], "priority": 1}, "create": true});
    for path in [
        "/v1/nodes/node1/drain",
        "/v1/nodes/node1/down",
        "/v1/nodes/node1/remove",
        "/v1/tokens",
        "/v1/join",
        "/v1/renew",
        "/v1/reload",
        "/v1/reload/dry-run",
        "/v1/backup",
        "/v1/accounts/a",
        "/v1/accounts/a/remove",
        "/v1/accounts/a/users/u",
        "/v1/qos/q",
        "/v1/reservations/r",
        "/v1/policy",
        "/v1/gpus/0/forget",
        "/v1/nodes/node1/gpus/0/quarantine",
    ] {
        all.push(("POST", path.into(), with(&edit, "/reason", json!("r"))));
    }
    all
}

/// Every question, with the keys of its query.
fn gets(ground: &Ground) -> Vec<(String, Vec<&'static str>)> {
    let jobs = vec![
        "job",
        "user",
        "partition",
        "account",
        "qos",
        "name",
        "reservation",
        "state",
        "nodelist",
        "expand",
        "columns",
        "bare",
        "live",
        "x",
    ];
    let runs = vec![
        "job", "user", "account", "state", "nodelist", "from", "to", "attempts", "steps", "detail",
        "columns", "bare", "limit",
    ];
    let own = ground.own;
    let mut all = vec![
        ("/v1/jobs".to_owned(), jobs.clone()),
        ("/v1/starts".to_owned(), jobs.clone()),
        ("/v1/priorities".to_owned(), jobs.clone()),
        ("/v1/steps".to_owned(), jobs),
        ("/v1/runs".to_owned(), runs),
        ("/v1/report".to_owned(), vec!["by", "from", "to"]),
        ("/v1/utilization".to_owned(), vec!["from", "to"]),
        (
            "/v1/idle".to_owned(),
            vec!["from", "to", "partition", "warn_after_secs"],
        ),
        ("/v1/trace".to_owned(), vec!["after", "limit", "from"]),
        ("/v1/shares".to_owned(), vec!["user", "account", "outlook"]),
        (format!("/v1/jobs/{own}/wait"), vec!["x"]),
    ];
    for path in [
        "/v1/jobs/{}",
        "/v1/jobs/{}/script",
        "/v1/jobs/{}/log",
        "/v1/jobs/{}/why",
        "/v1/gpus/{}/history",
        "/v1/accounts/{}",
        "/v1/qos/{}",
        "/v1/reservations/{}",
        "/v1/{}",
        "/{}",
    ] {
        all.push((path.to_owned(), Vec::new()));
    }
    all
}
