//! Events that are posted to receivers: through one that dies in the middle of a delivery, a controller that is killed, and one that never takes any.

use crate::controller::{Controller, Site, job, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// What a receiver took: the headers, in lower case, and the body.
type Taken = (BTreeMap<String, String>, String);

/// A receiver. It answers with a status; 0: it hangs up after the body, before the answer.
#[derive(Clone)]
struct Receiver {
    port: u16,
    taken: Arc<Mutex<Vec<Taken>>>,
    status: Arc<AtomicU16>,
    asked: Arc<AtomicUsize>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Self {
            port: listener.local_addr().unwrap().port(),
            taken: Arc::default(),
            status: Arc::new(AtomicU16::new(200)),
            asked: Arc::default(),
        };
        let this = receiver.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = this.take(&stream);
            }
        });
        receiver
    }

    fn take(&self, stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let (mut line, mut headers) = (String::new(), BTreeMap::new());
        reader.read_line(&mut line)?;
        headers.insert(
            "path".to_owned(),
            line.split(' ').nth(1).unwrap_or_default().to_owned(),
        );
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers["content-length"].parse().unwrap();
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        self.asked.fetch_add(1, Relaxed);
        let status = self.status.load(Relaxed);
        if status == 0 {
            return Ok(());
        }
        if status == 200 {
            let body = String::from_utf8(body).unwrap();
            self.taken.lock().unwrap().push((headers, body));
        }
        let location = "location: http://127.0.0.1:1/\r\n";
        (&*stream).write_all(
            format!("HTTP/1.1 {status} x\r\n{location}content-length: 0\r\n\r\n").as_bytes(),
        )
    }

    /// The names of the jobs that were told of, in order.
    fn names(&self) -> Vec<String> {
        let taken = self.taken.lock().unwrap();
        let bodies = taken
            .iter()
            .map(|(_, body)| serde_json::from_str::<Value>(body).unwrap());
        bodies
            .flat_map(|body| body["events"].as_array().cloned().unwrap_or_default())
            .map(|row| row["name"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    fn wait_for(&self, names: &[&str]) {
        wait_until(
            || self.names() == names,
            || format!("{names:?}, not {:?}", self.names()),
        );
    }
}

fn hook(name: &str, port: u16, rest: &str) -> String {
    format!(
        "[[webhook]]\nname = \"{name}\"\nurl = \"http://127.0.0.1:{port}/hooks/T0PSECRETPATH\"\nkinds = [\"job_submitted\"]\n{rest}\n"
    )
}

fn configure(site: &Site, hooks: &[String]) {
    let text = hooks.concat();
    site.configure(&format!(
        "min_free = \"1M\"\nallow_root_jobs = true\n{text}"
    ));
}

fn submit(controller: &Controller, name: &str) {
    let mut job = job(name);
    job["spec"]["hold"] = json!(true);
    controller.client().submit(&job);
}

fn row(controller: &Controller, name: &str) -> Value {
    let rows = controller.client().get("/v1/webhooks");
    let rows = rows["webhooks"].as_array().unwrap().clone();
    rows.into_iter()
        .find(|row| row["name"] == name)
        .unwrap_or(Value::Null)
}

fn wait_for_state(controller: &Controller, name: &str, state: &str) {
    let is_so = || row(controller, name)["state"] == state;
    wait_until(is_so, || format!("{state}, not {}", row(controller, name)));
}

#[test]
fn events_arrive_signed_through_a_receiver_that_dies_and_a_controller_that_is_killed() {
    let (good, dying) = (Receiver::start(), Receiver::start());
    let site = Site::new();
    let secret = site.dir.path().join("secret");
    std::fs::write(&secret, "c0rrecth0rse\n").unwrap();
    let signed = format!("secret_file = \"{}\"", secret.display());
    configure(
        &site,
        &[
            hook("good", good.port, &signed),
            hook("dying", dying.port, ""),
        ],
    );
    let controller = site.start();
    wait_for_state(&controller, "good", "delivering");
    wait_until(
        || {
            !row(&controller, "dying")["after"]
                .as_str()
                .unwrap_or_default()
                .is_empty()
        },
        || "its place".into(),
    );
    wait_until(
        || {
            !row(&controller, "good")["after"]
                .as_str()
                .unwrap_or_default()
                .is_empty()
        },
        || "its place".into(),
    );

    // One hangs up in the middle: the other has its events all the same.
    dying.status.store(0, Relaxed);
    submit(&controller, "a");
    good.wait_for(&["a"]);
    wait_until(|| dying.asked.load(Relaxed) > 0, || "a try".to_owned());
    wait_for_state(&controller, "dying", "retrying");
    submit(&controller, "b");
    good.wait_for(&["a", "b"]);
    // Its place is on disk: killed before that, it would have the last one twice.
    let is_kept = || row(&controller, "good")["delivered"] == 2;
    wait_until(is_kept, || row(&controller, "good").to_string());
    controller.kill();
    dying.status.store(200, Relaxed);
    let controller = site.start();
    dying.wait_for(&["a", "b"]);
    wait_for_state(&controller, "dying", "delivering");
    submit(&controller, "c");
    dying.wait_for(&["a", "b", "c"]);
    good.wait_for(&["a", "b", "c"]);

    // As the document has it.
    let (headers, body) = good.taken.lock().unwrap()[0].clone();
    let signed = format!("{}.{body}", headers["gpupool-timestamp"]);
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"c0rrecth0rse");
    let hex = headers["gpupool-signature"].strip_prefix("v1=").unwrap();
    let tag: Vec<u8> = (0..64)
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect();
    ring::hmac::verify(&key, signed.as_bytes(), &tag).unwrap();
    assert!(
        headers["gpupool-delivery"].starts_with("good-1-"),
        "{headers:?}"
    );
    assert!(
        !dying.taken.lock().unwrap()[0]
            .0
            .contains_key("gpupool-signature")
    );
    assert_eq!(headers["path"], "/hooks/T0PSECRETPATH");

    // Neither the secret nor the path of a url is shown anywhere.
    let mut client = controller.client();
    for path in ["/v1/webhooks", "/v1/config", "/v1/diag"] {
        let text = client.get(path).to_string();
        assert!(
            !text.contains("SECRETPATH") && !text.contains("c0rrect"),
            "{path}: {text}"
        );
    }
    let log = site.log();
    assert!(
        !log.contains("SECRETPATH") && !log.contains("c0rrect"),
        "{log}"
    );
}

#[test]
fn a_receiver_that_takes_nothing_is_parked_and_goes_on_when_it_is_resumed() {
    let (bad, other) = (Receiver::start(), Receiver::start());
    let site = Site::new();
    let soon = "park_after_secs = 1";
    configure(
        &site,
        &[hook("bad", bad.port, soon), hook("other", other.port, "")],
    );
    let controller = site.start();
    let has_place = || {
        !row(&controller, "bad")["after"]
            .as_str()
            .unwrap_or_default()
            .is_empty()
    };
    wait_until(has_place, || "its place".to_owned());
    // A redirect is not followed.
    bad.status.store(302, Relaxed);
    submit(&controller, "a");
    wait_for_state(&controller, "bad", "parked");
    let text = row(&controller, "bad")["error"].to_string();
    assert!(
        text.contains("302, and redirects are not followed"),
        "{text}"
    );
    let diag = controller.client().get("/v1/diag")["webhooks"].to_string();
    assert!(diag.contains("bad is parked"), "{diag}");
    other.wait_for(&["a"]);
    // It stays so through a new start.
    controller.kill();
    let controller = site.start();
    wait_for_state(&controller, "bad", "parked");
    bad.status.store(200, Relaxed);
    submit(&controller, "b");
    other.wait_for(&["a", "b"]);
    assert!(bad.names().is_empty());
    let mut client = controller.client();
    client.post("/v1/webhooks/bad/resume", &json!({}));
    bad.wait_for(&["a", "b"]);
    let (status, answer) = client
        .ask("POST", "/v1/webhooks/none/resume", &json!({}))
        .unwrap();
    assert_eq!(status, 404, "{answer}");

    bad.status.store(500, Relaxed);
    submit(&controller, "c");
    wait_for_state(&controller, "bad", "parked");
    bad.status.store(200, Relaxed);
    client.post("/v1/webhooks/bad/resume", &json!({"skip": true}));
    wait_for_state(&controller, "bad", "delivering");
    submit(&controller, "d");
    bad.wait_for(&["a", "b", "d"]);
}

#[test]
fn mistakes_of_webhooks_are_told_at_once() {
    let site = Site::new();
    let hooks = "[[webhook]]\nname = \"a/b\"\nurl = \"ftp://x/\"\nkinds = [\"job_endet\"]\n[[webhook]]\nname = \"c\"\nurl = \"https://user:pw@x/\"\ntemplate = \"xml\"\n";
    configure(&site, &[hooks.to_owned()]);
    let (status, said) = site.run_to_end(&["check"]);
    assert_ne!(status, 0);
    for text in [
        "a webhook's name is \"a/b\"",
        "\"job_endet\" is no kind of event",
        "this webhook's url is none",
        "template",
    ] {
        assert!(said.contains(text), "{text}: {said}");
    }
    assert_eq!(
        said.matches("this webhook's url is none").count(),
        2,
        "{said}"
    );
}
