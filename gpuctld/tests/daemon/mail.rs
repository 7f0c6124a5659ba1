//! Letters to users: through a mail server that drops connections, a controller that is killed, and names that are no header.

use crate::controller::{Controller, Site, job, wait_until};
use crate::node::{Link, Machine};
use gmodel::run::{RunEnd, RunPhase};
use gmodel::{ExitCode, JobId, RunId, Timestamp};
use gwire::node_protocol::{ToController, ToNode};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A mail server that keeps what it took. While `drops`, it hangs up in the middle of each letter.
struct Sink {
    port: u16,
    letters: Arc<Mutex<Vec<String>>>,
    drops: Arc<AtomicBool>,
}

impl Sink {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sink = Self {
            port: listener.local_addr().unwrap().port(),
            letters: Arc::default(),
            drops: Arc::default(),
        };
        let (letters, drops) = (sink.letters.clone(), sink.drops.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (letters, drops) = (letters.clone(), drops.clone());
                // The end of a connection is the client's affair.
                std::thread::spawn(move || converse(&stream, &letters, &drops).ok());
            }
        });
        sink
    }

    fn letters(&self) -> Vec<String> {
        self.letters.lock().unwrap().clone()
    }

    fn wait_for(&self, count: usize) -> Vec<String> {
        let enough = || self.letters().len() >= count;
        wait_until(enough, || format!("{count} letters: {:#?}", self.letters()));
        self.letters()
    }
}

fn converse(
    stream: &TcpStream,
    letters: &Mutex<Vec<String>>,
    drops: &AtomicBool,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let say = |text: &str| (&*stream).write_all(format!("{text}\r\n").as_bytes());
    say("220 sink")?;
    let (mut letter, mut in_data) = (String::new(), false);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let line = line.trim_end();
        if in_data {
            if drops.load(Relaxed) {
                return Ok(());
            }
            if line == "." {
                letters.lock().unwrap().push(std::mem::take(&mut letter));
                in_data = false;
                say("250 taken")?;
            } else {
                letter.push_str(line);
                letter.push('\n');
            }
            continue;
        }
        match line.split([' ', ':']).next().unwrap_or_default() {
            "DATA" => {
                in_data = true;
                say("354 go on")?;
            }
            "QUIT" => return say("221 bye"),
            "RCPT" if line.contains("nobody@") => say("550 there is no such user")?,
            "RCPT" => {
                letter.push_str(line);
                letter.push('\n');
                say("250 ok")?;
            }
            _ => say("250 ok")?,
        }
    }
}

fn with_mail(name: &str, kinds: &str, to: Option<&str>) -> Value {
    let mut job = job(name);
    job["spec"]["launch"]["mail_type"] = json!(kinds);
    if let Some(to) = to {
        job["spec"]["launch"]["mail_user"] = json!(to);
    }
    job
}

fn start(sink: &Sink) -> (Site, Controller) {
    let site = Site::new();
    site.configure(&format!(
        "min_free = \"1M\"\nallow_root_jobs = true\n[mail]\nsmtp = \"127.0.0.1:{}\"\nfrom = \"pool@example.org\"\ndomain = \"example.org\"\n",
        sink.port
    ));
    let controller = site.start();
    (site, controller)
}

/// Plays the job's node until the job has ended.
async fn live_through(controller: &Controller, link: &mut Link, job: u64, exit: u8) {
    let run = RunId::new(JobId(job), 1);
    loop {
        if let ToNode::Orders { desired, .. } = link.hear().await {
            link.say(&ToController::Obeyed {
                fence: desired.fence,
            })
            .await;
            if desired.runs.iter().any(|wanted| wanted.run == run) {
                break;
            }
        }
    }
    let started = Timestamp(1);
    link.report(run, RunPhase::Running { started }).await;
    let end = RunEnd {
        exit: ExitCode::exited(exit),
        ..RunEnd::default()
    };
    link.report(run, RunPhase::Ended(end.clone().into())).await;
    link.report(run, RunPhase::Clean(end.into())).await;
    let wanted = if exit == 0 { "COMPLETED" } else { "FAILED" };
    let mut client = controller.client();
    let is_over = || client.get(&format!("/v1/jobs/{job}"))["jobs"][0]["state"] == wanted;
    wait_until(is_over, || format!("the end of job {job}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_outlive_the_mail_server_and_the_controller_and_go_to_whom_they_are_for() {
    let sink = Sink::start();
    let (site, controller) = start(&sink);
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let (mut link, _) = machine.connect("boot", Vec::new()).await;

    // The server hangs up in the middle of the first letter of all, then the controller is killed: it comes once both are well.
    sink.drops.store(true, Relaxed);
    let first = controller.client().submit(&with_mail("first", "ALL", None));
    live_through(&controller, &mut link, first, 0).await;
    site.wait_for_log("mail waits for the mail server");
    controller.kill();
    drop(link);
    sink.drops.store(false, Relaxed);
    let controller = site.start();
    let letters = sink.wait_for(2);
    assert!(letters[0].contains("has begun"), "{}", letters[0]);
    assert!(
        letters[1].contains("has ended: COMPLETED"),
        "{}",
        letters[1]
    );
    for letter in &letters {
        assert!(letter.contains("RCPT TO:<root@example.org>"), "{letter}");
    }

    let (mut link, _) = machine.connect("boot", Vec::new()).await;
    // A name is no header, and an address that the server refuses delays no other letter.
    let evil = "train\tBcc: all@example.org";
    let refused = with_mail("nobody", "END", Some("nobody@example.org"));
    let refused = controller.client().submit(&refused);
    live_through(&controller, &mut link, refused, 0).await;
    let second = with_mail(evil, "begin,fail", Some("ada@example.com,bob"));
    let second = controller.client().submit(&second);
    live_through(&controller, &mut link, second, 7).await;
    let letters = sink.wait_for(4).split_off(2);
    let (began, failed) = (&letters[0], &letters[1]);
    assert!(
        began.contains(&format!("job {second} ")) && began.contains("has begun"),
        "{began}"
    );
    assert!(failed.contains("has ended: FAILED, exit"), "{failed}");
    for letter in &letters {
        assert!(letter.contains("RCPT TO:<ada@example.com>"), "{letter}");
        assert!(letter.contains("RCPT TO:<bob@example.org>"), "{letter}");
        assert!(
            !letter.lines().any(|line| line.starts_with("Bcc")),
            "{letter}"
        );
    }

    // What was told, and is on record as told, is not told again after another start.
    let seq = controller.client().get("/v1/diag")["seq"].as_u64();
    let record = site.database().with_file_name("mail.json");
    let told_upto = || {
        let text = std::fs::read(&record).ok()?;
        serde_json::from_slice::<Value>(&text).ok()?["seq"].as_u64()
    };
    wait_until(
        || told_upto() >= seq,
        || format!("{seq:?} in {}", record.display()),
    );
    controller.kill();
    let controller = site.start();
    let mut array = with_mail("many", "END", None);
    array["spec"]["array"] = json!("1-5");
    array["spec"]["hold"] = json!(true);
    let array = controller.client().submit(&array);
    let cancel = json!({"jobs": [array.to_string()]});
    controller.client().post("/v1/jobs/cancel", &cancel);
    let letters = sink.wait_for(5);
    assert_eq!(letters.len(), 5, "one for the array: {letters:#?}");
    assert!(letters[4].contains("5 CANCELLED"), "{}", letters[4]);
}
