//! The image of a job, before the job starts: `gstepd --pull` brings it in as the user, and its words are passed on. Never touches an
//! image. Ends a pull that the run does not need any more, or that takes too long.

use crate::clock::wall_clock;
use crate::own_limits;
use crate::run::clean::kill_orphans;
use crate::run::failure::Failure;
use crate::run::stand_by;
use crate::site::Site;
use crate::spool::run_log::log_line;
use gmodel::RunId;
use gmodel::image_pull::{
    ContainerFault, MAX_PULL_LINE_BYTES, MAX_PULL_TEXT, PullProgress, PullReport, PullWord,
};
use gmodel::launch_order::LaunchOrder;
use gmodel::run::{EndCause, LaunchFailureSubject};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// The longest pull: a registry that sends a byte now and then holds no GPU for longer.
const TIME_LIMIT: Duration = Duration::from_secs(2 * 3600);
/// How soon a run that is to stop does.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Controllers hear of each pull so often, whatever the process says.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// A short pull is no news.
const FIRST_WORD_AFTER: Duration = Duration::from_millis(300);
/// Words that wait to be read.
const QUEUE: usize = 16;

/// Passes a report on to the controller.
pub type TellPull<'a> = &'a dyn Fn(PullReport);

/// Returns when the image is here. Blocking.
pub fn pull(
    site: &Site,
    run: RunId,
    order: &LaunchOrder,
    tell: TellPull<'_>,
) -> Result<(), Failure> {
    let image = order.container.as_deref().map_or("", |asked| &asked.image);
    if image.is_empty() {
        return Ok(());
    }
    let dir = site.spool.run_dir(run);
    let note = |text: &str| log_line(&dir, wall_clock(), text);
    note(&format!("image {image}"));
    let mut child = start(site, run)?;
    let stdout = child.stdout.take();
    let pulls = || site.pulls.lock().expect("no holder panics");
    pulls().insert(run, false);
    let outcome = Pull { site, run, tell }.follow(stdout);
    pulls().remove(&run);
    let _ = child.kill();
    let _ = child.wait();
    // Its cgroup is the run's, and holds nothing else yet.
    if let Err(e) = kill_orphans(site, run) {
        return Err(Failure::node(e));
    }
    let found = outcome?;
    note(&format!("image is here: {found}"));
    site.spool.note_image(run, &found).map_err(Failure::node)
}

fn start(site: &Site, run: RunId) -> Result<Child, Failure> {
    let dir = site.spool.run_dir(run);
    let log = crate::spool::run_log::open_log(&dir).map_err(Failure::node)?;
    let mut command = Command::new(site.stand_by.gstepd());
    command
        .arg("--pull")
        .arg(&dir)
        .env_clear()
        .env("PATH", stand_by::PATH)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .process_group(0);
    let child = command.spawn().map_err(Failure::node)?;
    own_limits::hand_down(child.id());
    Ok(child)
}

struct Pull<'a> {
    site: &'a Site,
    run: RunId,
    tell: TellPull<'a>,
}

impl Pull<'_> {
    fn is_to_end(&self) -> bool {
        let pulls = self.site.pulls.lock().expect("no holder panics");
        pulls.get(&self.run) == Some(&true)
    }

    /// Reads the words of the process to the last. What it says is the user's: it may be anything.
    fn follow(&self, stdout: Option<ChildStdout>) -> Result<String, Failure> {
        let words = read_words(stdout);
        let (began, mut told) = (Instant::now(), None::<Instant>);
        let mut progress = PullProgress::default();
        loop {
            match words.recv_timeout(LOOK_EVERY) {
                Ok(PullWord::Progress(now)) => progress = now,
                Ok(PullWord::Done { image }) => return Ok(plain(&image)),
                Ok(PullWord::Failed { fault, text }) => return Err(failure(fault, &plain(&text))),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let text = "the process that pulls its image ended without a word; gq --log has what gstepd said";
                    return Err(failure(ContainerFault::Node, text));
                }
            }
            if self.is_to_end() {
                return Err(Failure {
                    cause: EndCause::Stopped,
                    ..Failure::node_text("stopped before it started".into())
                });
            }
            if began.elapsed() > TIME_LIMIT {
                let hours = TIME_LIMIT.as_secs() / 3600;
                let text = format!("its image was not here after {hours} hours ({progress})");
                return Err(failure(ContainerFault::Registry, &text));
            }
            let is_due = told.map_or(began.elapsed() >= FIRST_WORD_AFTER, |at| {
                at.elapsed() >= TELL_EVERY
            });
            if is_due {
                told = Some(Instant::now());
                let run = self.run;
                (self.tell)(PullReport { run, progress });
            }
        }
    }
}

/// A user's text in a log and in listings.
fn plain(text: &str) -> String {
    let shown = text.chars().filter(|c| !c.is_control());
    shown.take(MAX_PULL_TEXT).collect()
}

fn failure(fault: ContainerFault, text: &str) -> Failure {
    match fault {
        ContainerFault::User => Failure::user(text.to_owned()),
        ContainerFault::Registry => Failure {
            about: LaunchFailureSubject::Registry,
            ..Failure::node_text(text.to_owned())
        },
        ContainerFault::Node => Failure::choice("containers", text.to_owned()),
    }
}

/// By a thread of its own, which ends with the process.
fn read_words(stdout: Option<ChildStdout>) -> Receiver<PullWord> {
    let (sender, words) = sync_channel(QUEUE);
    std::thread::spawn(move || {
        let Some(stdout) = stdout else { return };
        let mut lines = BufReader::new(stdout);
        loop {
            let mut line = Vec::new();
            let read = (&mut lines)
                .take(MAX_PULL_LINE_BYTES)
                .read_until(b'\n', &mut line);
            if !read.is_ok_and(|many| many > 0) {
                return;
            }
            if let Ok(word) = serde_json::from_slice(&line)
                && sender.send(word).is_err()
            {
                return;
            }
        }
    });
    words
}
