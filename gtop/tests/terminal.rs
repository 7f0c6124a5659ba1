//! gtop on a real terminal, against a controller with canned answers.

use gcli::fake_controller::{Answer, FakeController};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const GTOP: &str = env!("CARGO_BIN_EXE_gtop");
const PATIENCE: Duration = Duration::from_secs(20);
/// Back to the screen of before.
const GIVEN_BACK: &str = "\x1b[?1049l";

struct Screen {
    _controller: FakeController,
    keys: File,
    output: Receiver<Vec<u8>>,
    seen: String,
    gtop: Child,
}

impl Screen {
    fn open(words: &[&str]) -> Self {
        let controller = FakeController::start(|request| match request.path.as_str() {
            path if path.starts_with("/v1/jobs?") => Answer::ok(
                r#"{"schema":1,"jobs":[{"id":1,"shown_id":"1","name":"fit\u001b]0;forged\u0007","user":"ann","state":"RUNNING","elapsed_secs":60,"nodelist":"node1"}]}"#,
            ),
            _ => Answer::refuse(404, "not_found", "no canned answer"),
        });
        let size = Winsize {
            ws_row: 24,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(&size, None).unwrap();
        let end = || File::from(pty.slave.try_clone().unwrap());
        let gtop = Command::new(GTOP)
            .args(words)
            .env("GPUPOOL_CONFIG", controller.config())
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let keys = File::from(pty.master);
        let mut source = keys.try_clone().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = source.read(&mut piece) {
                if sender.send(piece[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            _controller: controller,
            keys,
            output,
            seen: String::new(),
            gtop,
        }
    }

    fn wait_for(&mut self, word: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.seen.contains(word) {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(bytes) = self.output.recv_timeout(left) else {
                panic!("no {word:?} in {:?}", self.seen);
            };
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
    }

    fn ended(mut self) -> (String, ExitStatus) {
        self.wait_for(GIVEN_BACK);
        let status = self.gtop.wait().unwrap();
        (std::mem::take(&mut self.seen), status)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.gtop.kill();
        let _ = self.gtop.wait();
    }
}

#[test]
fn the_queue_is_shown_and_the_terminal_given_back() {
    let mut screen = Screen::open(&["--all"]);
    screen.wait_for("fit?]0;forged?");
    screen.wait_for("$ gq 1");
    screen.keys.write_all(b"q").unwrap();
    let (seen, status) = screen.ended();
    assert!(status.success(), "{status:?}");
    assert!(!seen.contains("\x1b]0;forged"), "{seen:?}");
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let mut screen = Screen::open(&["--all", "--interval", "1"]);
    screen.wait_for("fit");
    kill(Pid::from_raw(screen.gtop.id() as i32), Signal::SIGTERM).unwrap();
    assert!(screen.ended().1.success());
}

#[test]
fn without_a_terminal_another_command_is_named() {
    let controller = FakeController::start(|_| Answer::ok(r#"{"schema":1,"jobs":[]}"#));
    let ran = controller.run(GTOP, &[]);
    assert_eq!(ran.exit, Some(1));
    assert!(ran.stderr.contains("gq --iterate 2"), "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
}
