//! The life of a run under its supervisor, as a state machine without a clock or a process: what is fed in is what
//! happened, what comes out is what to do. Owns limit, warning, the wait for a checkpoint, grace and the cause of the end;
//! sends no signal itself. Source: sbatch(1) for `--signal` and the kill after the limit.

use gmodel::ExitCode;
use gmodel::run::{EndCause, NumberedSignal, StopCause};
use gmodel::signal::SigSpec;

/// A processor may hold a dying process for a while (NFS, a driver): SIGKILL is repeated this often.
const KILL_AGAIN_MILLIS: u64 = 1000;
/// After the first SIGKILL: then the end is recorded, and gpud waits for what does not die before the share is free.
const GIVE_UP_MILLIS: u64 = 20_000;
/// Between a mark that ends the wait and SIGTERM: whoever set it reads the answer, and may leave by itself.
const AFTER_MARK_MILLIS: u64 = 500;

/// Milliseconds of CLOCK_BOOTTIME: it goes on while the machine sleeps and is never set back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boot(pub u64);

impl Boot {
    pub fn plus_secs(self, secs: u32) -> Boot {
        Boot(self.0 + u64::from(secs) * 1000)
    }
}

/// What the supervisor has to do now, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Start the user's process, then call [`Life::started`] or [`Life::launch_failed`].
    Start,
    /// Deliver a signal that was asked for.
    /// `full`: to all of its processes, the script's shell too.
    Signal {
        signal: u8,
        batch_only: bool,
        full: bool,
    },
    /// The warning of `--signal`.
    Warn {
        signal: u8,
        batch_only: bool,
    },
    /// Stop its processes where they are, and let them go on.
    Freeze,
    Thaw,
    /// Tell the job to write its checkpoint: the signal or the command of `--checkpoint`.
    Checkpoint,
    /// SIGTERM to all, and SIGCONT so that a stopped process hears it.
    Terminate,
    /// SIGKILL to all that is left.
    Kill,
    /// No process is left, or what is left does not die: write the record.
    Record,
}

/// What the order says about ending the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// From the start; `None` is unlimited.
    pub limit_secs: Option<u32>,
    /// Between SIGTERM and SIGKILL when the limit is reached.
    pub kill_grace_secs: u32,
    pub warning: Option<SigSpec>,
    /// How long a job that has a checkpoint may take to write it, before it is terminated.
    pub checkpoint_secs: Option<u32>,
}

/// One run, from ready to recorded.
#[derive(Clone, Debug)]
pub struct Life {
    terms: Terms,
    phase: Phase,
    warned: bool,
    /// Highest number of a signal delivered.
    signalled: u32,
    /// It is to be frozen, and has been since then.
    suspended: bool,
    frozen: Option<Boot>,
    /// The job has been asked for its checkpoint and is not terminated yet.
    wait: Option<Wait>,
    /// Number of the mark that ended the wait, and when SIGTERM follows.
    answer: Option<(u32, Boot)>,
    /// It was.
    answered: bool,
    /// The main process would have died of the SIGTERM that it was sent.
    dies_of_term: bool,
    verdict: Option<Verdict>,
    main: Option<ExitCode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Ready,
    /// The child is on its way to the program: its files may be on a dead server, so the limit counts already.
    Starting {
        since: Boot,
    },
    Running {
        started: Boot,
    },
    /// The main process has ended by itself or the grace is over: everything left is killed.
    Killing {
        since: Boot,
        again_at: Boot,
    },
    Recorded,
}

/// A job that is to end has the time to write its checkpoint. A mark that is accepted meanwhile ends the wait, and so do the
/// end of the main process, the end of the time, the time limit, and a stop that knows no checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Until the time limit. A limit that is moved out of sight ends the wait, and nothing has happened.
    Limit,
    /// Between SIGTERM and SIGKILL, then, the grace of the order to stop.
    Stop {
        why: StopCause,
        until: Boot,
        kill_grace_secs: u32,
    },
}

/// Why the run is being ended from outside. The first reason stays; a later one may only bring the kill forward.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    cause: EndCause,
    text: String,
    kill_at: Boot,
    /// It is to give way and come back: where it is done, it is done.
    comes_back: bool,
}

impl Life {
    pub fn new(terms: Terms) -> Life {
        Life {
            terms,
            phase: Phase::Ready,
            warned: false,
            signalled: 0,
            suspended: false,
            frozen: None,
            wait: None,
            answer: None,
            answered: false,
            dies_of_term: false,
            verdict: None,
            main: None,
        }
    }

    /// The user's process may start. Repeating it does nothing.
    pub fn go(&mut self, now: Boot) -> Vec<Act> {
        if self.phase != Phase::Ready {
            return Vec::new();
        }
        self.phase = Phase::Starting { since: now };
        vec![Act::Start]
    }

    /// The program runs. A run that was stopped while it started stays stopped.
    pub fn started(&mut self, now: Boot) {
        if matches!(self.phase, Phase::Starting { .. }) {
            self.phase = Phase::Running { started: now };
        }
    }

    /// The process could not be started: what was there of it is killed, then the record is written.
    pub fn launch_failed(&mut self, now: Boot, cause: EndCause, text: String) -> Vec<Act> {
        if !matches!(self.phase, Phase::Starting { .. } | Phase::Killing { .. }) {
            return Vec::new();
        }
        self.verdict.get_or_insert(Verdict {
            cause,
            text,
            kill_at: now,
            comes_back: false,
        });
        self.begin_kill(now)
    }

    /// Its processes are to stand still, or to go on: [`Life::tick`] acts on it once they run. The limit waits meanwhile.
    pub fn set_suspended(&mut self, suspended: bool) {
        self.suspended = suspended;
    }

    /// The controller or the node wants the run gone. A frozen job goes on first, to hear of it.
    pub fn stop(&mut self, now: Boot, why: StopCause, grace_secs: u32) -> Vec<Act> {
        self.suspended = false;
        let mut acts = self.stand_still_or_go_on(now);
        acts.extend(self.begin_stop(now, why, grace_secs));
        acts
    }

    fn begin_stop(&mut self, now: Boot, why: StopCause, grace_secs: u32) -> Vec<Act> {
        match self.phase {
            Phase::Ready | Phase::Starting { .. } => self.end_unstarted(
                now,
                EndCause::Stopped,
                format!("stopped before it started: {}", stop_text(why)),
            ),
            Phase::Running { .. }
                if self.verdict.is_none()
                    && gives_time(why)
                    && self.terms.checkpoint_secs.is_some() =>
            {
                self.ask_before_stop(now, why, grace_secs)
            }
            Phase::Running { .. } => self.condemn_for(
                now,
                EndCause::Stopped,
                self.stopped_text(why, None),
                grace_secs,
                gives_time(why) && self.wait.is_none(),
            ),
            Phase::Killing { .. } | Phase::Recorded => Vec::new(),
        }
    }

    /// Delivered once, and only while there is something to deliver it to.
    pub fn signal(&mut self, wanted: NumberedSignal) -> Vec<Act> {
        if !matches!(self.phase, Phase::Running { .. }) || wanted.number <= self.signalled {
            return Vec::new();
        }
        self.signalled = wanted.number;
        vec![Act::Signal {
            signal: wanted.signal,
            batch_only: wanted.batch_only,
            full: wanted.full,
        }]
    }

    /// The time limit now in force. [`Life::tick`] acts on it.
    pub fn set_limit(&mut self, limit_secs: Option<u32>, now: Boot) {
        self.terms.limit_secs = limit_secs;
        if self.wait == Some(Wait::Limit) {
            self.wait = None;
            // While it stands still its time does, too.
            let frozen = self.frozen.take();
            let is_near = self
                .checkpoint_at()
                .is_some_and(|at| frozen.unwrap_or(now) >= at);
            self.frozen = frozen;
            match is_near {
                // Still near: it was asked already.
                true => self.wait = Some(Wait::Limit),
                false => self.answer = None,
            }
        }
    }

    /// A checkpoint mark was accepted: true when it is the one that was waited for. One that came before the job was asked is
    /// only a mark. [`Life::tick`] does the rest.
    pub fn marked(&mut self, now: Boot, number: u32) -> bool {
        let is_answer = self.wait.is_some() && self.answer.is_none();
        if is_answer {
            self.answer = Some((
                number,
                Boot(self.frozen.unwrap_or(now).0 + AFTER_MARK_MILLIS),
            ));
        }
        is_answer
    }

    /// The main process has ended. What it left behind dies at once, or at the end of a grace that is under way.
    pub fn main_ended(&mut self, now: Boot, exit: ExitCode) -> Vec<Act> {
        self.main = Some(exit);
        match (&self.phase, &self.verdict, self.wait) {
            // What it left behind may still be at the checkpoint.
            (_, _, Some(Wait::Stop { .. })) => self.end_wait(now, "the end of the batch process"),
            (Phase::Starting { .. } | Phase::Running { .. }, None, _) => {
                // The limit was not reached: its own end counts.
                self.begin_kill(now)
            }
            _ => Vec::new(),
        }
    }

    /// A node other than the first holds no process any more: it has nothing to wait for when the run is to stop.
    pub fn deserted(&mut self, now: Boot) -> Vec<Act> {
        match self.wait {
            Some(Wait::Stop { .. }) => self.end_wait(now, "the end of its last process"),
            _ => Vec::new(),
        }
    }

    /// It was told to stop and has time for its checkpoint.
    pub fn waits_to_stop(&self) -> bool {
        matches!(self.wait, Some(Wait::Stop { .. }))
    }

    /// No process of the job is left. Before the main process has been reaped its exit is not known: then it waits.
    pub fn emptied(&mut self, main_expected: bool) -> Vec<Act> {
        if !self.is_ending() || (main_expected && self.main.is_none()) {
            return Vec::new();
        }
        self.phase = Phase::Recorded;
        vec![Act::Record]
    }

    /// Acts on every deadline that has passed.
    pub fn tick(&mut self, now: Boot) -> Vec<Act> {
        let mut acts = self.stand_still_or_go_on(now);
        if self.warn_at().is_some_and(|at| now >= at) {
            self.warned = true;
            acts.extend(self.terms.warning.map(|w| Act::Warn {
                signal: w.signal,
                batch_only: w.batch_only,
            }));
        }
        if self.checkpoint_at().is_some_and(|at| now >= at) {
            self.wait = Some(Wait::Limit);
            acts.push(Act::Checkpoint);
        }
        if self.limit_at().is_some_and(|at| now >= at) {
            acts.extend(match (self.phase, self.wait) {
                (Phase::Starting { .. }, _) => {
                    let text = format!(
                        "{} before its program ran: its directory, input or output did not open",
                        self.limit_text(None)
                    );
                    self.end_unstarted(now, EndCause::TimeLimit, text)
                }
                (_, Some(Wait::Stop { .. })) => self.end_wait(now, "the time limit"),
                _ => self.condemn(
                    now,
                    EndCause::TimeLimit,
                    self.limit_text(None),
                    self.terms.kill_grace_secs,
                ),
            });
        }
        if self.answered_at().is_some_and(|at| now >= at)
            || matches!(self.wait, Some(Wait::Stop { until, .. }) if now >= until)
        {
            acts.extend(self.end_wait(now, "the end of its time"));
        }
        let kill_at = self.verdict.as_ref().map(|v| v.kill_at);
        match self.phase {
            Phase::Starting { .. } | Phase::Running { .. }
                if kill_at.is_some_and(|at| now >= at) =>
            {
                acts.extend(self.begin_kill(now));
            }
            Phase::Killing { since, .. } if now.0 >= since.0 + GIVE_UP_MILLIS => {
                // SIGKILL was sent, whatever a process that hangs in the kernel makes of it.
                self.main.get_or_insert(ExitCode::killed(9));
                self.phase = Phase::Recorded;
                acts.push(Act::Record);
            }
            Phase::Killing { again_at, .. } if now >= again_at => acts.extend(self.begin_kill(now)),
            _ => {}
        }
        acts
    }

    /// When [`Life::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Boot> {
        let kill_at = match self.phase {
            Phase::Starting { .. } | Phase::Running { .. } => {
                self.verdict.as_ref().map(|v| v.kill_at)
            }
            Phase::Killing { since, again_at } => {
                Some(again_at.min(Boot(since.0 + GIVE_UP_MILLIS)))
            }
            Phase::Ready | Phase::Recorded => None,
        };
        let given_up_at = match self.wait {
            Some(Wait::Stop { until, .. }) => Some(until),
            _ => None,
        };
        [
            self.warn_at(),
            self.checkpoint_at(),
            self.limit_at(),
            self.answered_at(),
            given_up_at,
            kill_at,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The run is ending: whoever watches should look whether processes are left.
    pub fn is_ending(&self) -> bool {
        match self.phase {
            Phase::Killing { .. } => true,
            Phase::Starting { .. } | Phase::Running { .. } => self.verdict.is_some(),
            Phase::Ready | Phase::Recorded => false,
        }
    }

    pub fn is_recorded(&self) -> bool {
        self.phase == Phase::Recorded
    }

    /// Told to go, and its program does not run yet.
    pub fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Starting { .. })
    }

    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running { .. })
    }

    /// A mark ended the wait for its checkpoint.
    pub fn was_answered(&self) -> bool {
        self.answered
    }

    /// SIGTERM goes out. Whether the main process dies of it was seen just before.
    pub fn terminating(&mut self, dies_of_term: bool) {
        self.dies_of_term = dies_of_term;
    }

    /// The main process was done as SIGTERM went out: it would have died of it, and ended well. One with a handler for it may have
    /// written a checkpoint and left.
    fn was_done(&self, verdict: &Verdict) -> bool {
        verdict.comes_back && self.dies_of_term && self.main.is_some_and(|exit| exit.is_success())
    }

    /// Cause, exit and text of the end. A kernel's kill for want of memory explains an end that nobody asked for.
    pub fn end(&self, oom_kills: u64) -> (EndCause, ExitCode, String) {
        let exit = self.main.unwrap_or_default();
        match &self.verdict {
            Some(verdict) if !self.was_done(verdict) => (verdict.cause, exit, verdict.text.clone()),
            _ if oom_kills > 0 => (EndCause::OutOfMemory, exit, String::new()),
            _ => (EndCause::Exited, exit, String::new()),
        }
    }

    /// Freezes what is to be suspended and is not being ended; after it the limit is as far away as it was before.
    fn stand_still_or_go_on(&mut self, now: Boot) -> Vec<Act> {
        let still = self.suspended && self.verdict.is_none() && !self.waits_to_stop();
        match (&mut self.phase, self.frozen, still) {
            (Phase::Running { .. }, None, true) => {
                self.frozen = Some(now);
                vec![Act::Freeze]
            }
            (Phase::Running { started }, Some(since), false) => {
                let still_millis = now.0.saturating_sub(since.0);
                started.0 += still_millis;
                self.answer
                    .iter_mut()
                    .for_each(|(_, at)| at.0 += still_millis);
                self.frozen = None;
                vec![Act::Thaw]
            }
            _ => Vec::new(),
        }
    }

    /// Asks for the checkpoint, once. A job that was asked because its limit is near has that long and no longer.
    fn ask_before_stop(&mut self, now: Boot, why: StopCause, grace_secs: u32) -> Vec<Act> {
        let given = now.plus_secs(self.terms.checkpoint_secs.unwrap_or(0));
        let (wait, acts) = match self.wait {
            None => (
                Wait::Stop {
                    why,
                    until: given,
                    kill_grace_secs: grace_secs,
                },
                vec![Act::Checkpoint],
            ),
            Some(Wait::Limit) => {
                let until = self.limit_at().map_or(given, |limit| limit.min(given));
                (
                    Wait::Stop {
                        why,
                        until,
                        kill_grace_secs: grace_secs,
                    },
                    Vec::new(),
                )
            }
            Some(Wait::Stop {
                why,
                until,
                kill_grace_secs,
            }) => (
                Wait::Stop {
                    why,
                    until,
                    kill_grace_secs: kill_grace_secs.min(grace_secs),
                },
                Vec::new(),
            ),
        };
        self.wait = Some(wait);
        acts
    }

    /// The job has had its time, or needs no more.
    fn end_wait(&mut self, now: Boot, by: &str) -> Vec<Act> {
        let mark = self
            .answer
            .map(|(number, _)| format!("checkpoint mark {number}"));
        self.answered = mark.is_some();
        let by = mark.as_deref().unwrap_or(by);
        match self.wait {
            None => Vec::new(),
            Some(Wait::Limit) => self.condemn(
                now,
                EndCause::TimeLimit,
                self.limit_text(Some(by)),
                self.terms.kill_grace_secs,
            ),
            Some(Wait::Stop {
                why,
                kill_grace_secs,
                ..
            }) => self.condemn(
                now,
                EndCause::Stopped,
                self.stopped_text(why, Some(by)),
                kill_grace_secs,
            ),
        }
    }

    fn stopped_text(&self, why: StopCause, by: Option<&str>) -> String {
        // The first reason counts.
        let why = match self.wait {
            Some(Wait::Stop { why, .. }) => why,
            _ => why,
        };
        by.map_or_else(
            || stop_text(why).to_owned(),
            |by| {
                format!(
                    "{}; asked for a checkpoint, ended after {by}",
                    stop_text(why)
                )
            },
        )
    }

    fn limit_text(&self, by: Option<&str>) -> String {
        let limit = self.terms.limit_secs.unwrap_or(0);
        match by {
            None => format!("the time limit of {limit} s was reached"),
            Some(by) => format!(
                "the time limit of {limit} s was near; asked for a checkpoint, ended after {by}"
            ),
        }
    }

    fn condemn(&mut self, now: Boot, cause: EndCause, text: String, grace_secs: u32) -> Vec<Act> {
        self.condemn_for(now, cause, text, grace_secs, false)
    }

    fn condemn_for(
        &mut self,
        now: Boot,
        cause: EndCause,
        text: String,
        grace_secs: u32,
        comes_back: bool,
    ) -> Vec<Act> {
        (self.wait, self.answer) = (None, None);
        let kill_at = now.plus_secs(grace_secs);
        match &mut self.verdict {
            Some(verdict) => {
                verdict.kill_at = verdict.kill_at.min(kill_at);
                Vec::new()
            }
            None => {
                self.verdict = Some(Verdict {
                    cause,
                    text,
                    kill_at,
                    comes_back,
                });
                vec![Act::Terminate]
            }
        }
    }

    /// Nothing of the user's runs yet that could use a grace.
    fn end_unstarted(&mut self, now: Boot, cause: EndCause, text: String) -> Vec<Act> {
        self.verdict = Some(Verdict {
            cause,
            text,
            kill_at: now,
            comes_back: false,
        });
        self.begin_kill(now)
    }

    fn begin_kill(&mut self, now: Boot) -> Vec<Act> {
        (self.wait, self.answer) = (None, None);
        let since = if let Phase::Killing { since, .. } = self.phase {
            since
        } else {
            now
        };
        self.phase = Phase::Killing {
            since,
            again_at: Boot(now.0 + KILL_AGAIN_MILLIS),
        };
        vec![Act::Kill]
    }

    fn limit_at(&self) -> Option<Boot> {
        match (self.phase, &self.verdict, self.terms.limit_secs) {
            _ if self.frozen.is_some() => None,
            (Phase::Starting { since } | Phase::Running { started: since }, None, Some(limit)) => {
                Some(since.plus_secs(limit))
            }
            _ => None,
        }
    }

    /// When SIGTERM follows the mark that was waited for: not while it stands still.
    fn answered_at(&self) -> Option<Boot> {
        self.answer
            .filter(|_| self.frozen.is_none())
            .map(|(_, at)| at)
    }

    fn warn_at(&self) -> Option<Boot> {
        let limit_at = self
            .limit_at()
            .filter(|_| self.is_running() && !self.warned)?;
        let lead = self.terms.warning?.lead_secs;
        Some(Boot(limit_at.0.saturating_sub(u64::from(lead) * 1000)))
    }

    /// The job's time for its checkpoint ends at its limit, and takes no more than half of that. A job that has ordered a
    /// warning of its own with `--signal` is not asked twice.
    fn checkpoint_at(&self) -> Option<Boot> {
        let limit_at = self
            .limit_at()
            .filter(|_| self.is_running() && self.wait.is_none() && self.terms.warning.is_none())?;
        let limit_millis = u64::from(self.terms.limit_secs?) * 1000;
        let lead_millis = (u64::from(self.terms.checkpoint_secs?) * 1000).min(limit_millis / 2);
        Some(Boot(limit_at.0.saturating_sub(lead_millis)))
    }
}

/// These ends are not the job's wish, and can wait a little.
fn gives_time(why: StopCause) -> bool {
    matches!(
        why,
        StopCause::Preempted | StopCause::Drained | StopCause::Requeued
    )
}

fn stop_text(why: StopCause) -> &'static str {
    match why {
        StopCause::Cancelled => "cancelled",
        StopCause::Requeued => "requeued",
        StopCause::Preempted => "preempted",
        StopCause::Drained => "the node is needed for something else",
        StopCause::Member => "another node of the run ended",
        StopCause::PrepareTimeout => "the run did not get ready in time",
        StopCause::Fenced => "the controller no longer counts this run as its own",
        StopCause::GpuFailed => "a GPU of it is out of order",
        StopCause::FenceBroken => "its fence does not stand any more",
        StopCause::Unknown => "for a reason this release does not know",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TERM: [Act; 1] = [Act::Terminate];
    const KILL: [Act; 1] = [Act::Kill];
    const RECORD: [Act; 1] = [Act::Record];

    fn running(limit_secs: Option<u32>, warning: Option<SigSpec>) -> Life {
        let mut life = Life::new(Terms {
            limit_secs,
            kill_grace_secs: 30,
            warning,
            checkpoint_secs: None,
        });
        assert_eq!(life.go(at(0)), [Act::Start]);
        life.started(at(0));
        assert_eq!(life.go(at(9)), [], "go again starts nothing");
        life
    }

    fn at(secs: u64) -> Boot {
        Boot(secs * 1000)
    }

    #[test]
    fn what_does_not_die_of_sigkill_is_left_to_gpud_after_20_seconds() {
        let mut life = running(None, None);
        assert_eq!(life.main_ended(at(5), ExitCode::exited(3)), KILL);
        for secs in 6..25 {
            assert_eq!(life.tick(at(secs)), KILL, "at {secs}");
        }
        assert_eq!(
            (life.next_deadline(), life.tick(at(25))),
            (Some(at(25)), RECORD.to_vec())
        );
        assert_eq!(
            (life.emptied(true), life.end(0)),
            (
                Vec::new(),
                (EndCause::Exited, ExitCode::exited(3), String::new())
            )
        );
        // The main process itself.
        let mut life = running(None, None);
        assert_eq!(life.stop(at(5), StopCause::Cancelled, 0), TERM);
        assert_eq!(life.tick(at(5)), KILL);
        assert_eq!(life.tick(at(25)), RECORD);
        assert_eq!(
            life.end(0),
            (EndCause::Stopped, ExitCode::killed(9), "cancelled".into())
        );
    }

    #[test]
    fn what_the_main_process_leaves_behind_is_killed() {
        let mut life = running(None, None);
        assert_eq!(life.next_deadline(), None);
        assert_eq!(life.main_ended(at(5), ExitCode::exited(3)), KILL);
        assert_eq!(life.next_deadline(), Some(at(6)));
        assert_eq!(
            life.tick(at(6)),
            KILL,
            "again, as long as something is left"
        );
        assert_eq!(life.emptied(true), RECORD);
        assert_eq!(life.emptied(true), [], "one record");
        assert_eq!(
            life.end(0),
            (EndCause::Exited, ExitCode::exited(3), String::new())
        );
        assert_eq!(life.end(1).0, EndCause::OutOfMemory);
    }

    #[test]
    fn the_limit_terminates_then_kills() {
        let mut life = running(Some(60), None);
        assert_eq!(life.tick(at(59)), []);
        assert_eq!(life.tick(at(60)), TERM);
        assert_eq!(life.next_deadline(), Some(at(90)));
        assert_eq!(life.tick(at(89)), []);
        assert_eq!(life.tick(at(90)), KILL);
        assert_eq!(life.main_ended(at(90), ExitCode::killed(9)), []);
        assert_eq!(life.emptied(true), RECORD);
        let (cause, exit, text) = life.end(1);
        assert_eq!((cause, exit), (EndCause::TimeLimit, ExitCode::killed(9)));
        assert_eq!(text, "the time limit of 60 s was reached");
    }

    #[test]
    fn children_keep_the_grace_when_the_shell_dies_of_the_term() {
        let mut life = running(None, None);
        assert_eq!(life.stop(at(1), StopCause::Cancelled, 10), TERM);
        assert_eq!(life.main_ended(at(1), ExitCode::killed(15)), []);
        assert_eq!(life.tick(at(10)), []);
        assert_eq!(life.tick(at(11)), KILL);
    }

    #[test]
    fn a_script_that_is_done_as_sigterm_goes_out_is_done() {
        let end = |why, dies_of_term, exit| {
            let mut life = running(None, None);
            assert_eq!(life.stop(at(1), why, 10), TERM);
            life.terminating(dies_of_term);
            life.main_ended(at(1), exit);
            life.emptied(true);
            life.end(0).0
        };
        assert_eq!(
            end(StopCause::Preempted, true, ExitCode::SUCCESS),
            EndCause::Exited
        );
        assert_eq!(
            end(StopCause::Preempted, false, ExitCode::SUCCESS),
            EndCause::Stopped,
            "its handler may have saved its state and left"
        );
        assert_eq!(
            end(StopCause::Preempted, true, ExitCode::killed(15)),
            EndCause::Stopped
        );
        assert_eq!(
            end(StopCause::Preempted, true, ExitCode::exited(1)),
            EndCause::Stopped,
            "it may be a child's death that it tells of"
        );
        assert_eq!(
            end(StopCause::Cancelled, true, ExitCode::SUCCESS),
            EndCause::Stopped,
            "its owner wants no more of it"
        );
        let mut asked = with_checkpoint(None, None);
        asked.stop(at(2), StopCause::Preempted, 10);
        asked.main_ended(at(3), ExitCode::SUCCESS);
        asked.terminating(true);
        assert_eq!(
            asked.end(0).0,
            EndCause::Stopped,
            "it left after it was asked for its checkpoint"
        );
    }

    #[test]
    fn a_second_stop_only_shortens_the_grace() {
        let mut life = running(Some(600), None);
        assert_eq!(life.stop(at(1), StopCause::Preempted, 60), TERM);
        assert_eq!(life.stop(at(2), StopCause::Cancelled, 120), []);
        assert_eq!(life.next_deadline(), Some(at(61)));
        assert_eq!(life.stop(at(3), StopCause::Cancelled, 0), []);
        assert_eq!(life.tick(at(3)), KILL);
        assert_eq!(
            life.emptied(true),
            [],
            "the exit of the main process is not known yet"
        );
        life.main_ended(at(3), ExitCode::killed(9));
        assert_eq!(life.emptied(true), RECORD);
        assert_eq!(life.end(0).2, "preempted");
    }

    fn with_checkpoint(limit_secs: Option<u32>, warning: Option<SigSpec>) -> Life {
        let mut life = Life::new(Terms {
            limit_secs,
            kill_grace_secs: 30,
            warning,
            checkpoint_secs: Some(60),
        });
        life.go(at(0));
        life.started(at(0));
        life
    }

    #[test]
    fn a_job_is_asked_for_its_checkpoint_before_it_is_terminated() {
        let mut life = with_checkpoint(None, None);
        assert!(!life.marked(at(1), 1), "nobody asked");
        assert_eq!(
            life.stop(at(2), StopCause::Preempted, 10),
            [Act::Checkpoint]
        );
        assert_eq!(life.stop(at(3), StopCause::Preempted, 10), [], "said again");
        assert_eq!(
            life.emptied(false),
            [],
            "only an end makes an empty cgroup the end"
        );
        assert_eq!(life.next_deadline(), Some(at(62)));
        assert!(life.marked(at(9), 2));
        assert!(!life.marked(Boot(9400), 3), "one is enough");
        assert_eq!(
            life.next_deadline(),
            Some(Boot(9500)),
            "it may leave by itself"
        );
        assert_eq!(life.tick(Boot(9500)), TERM);
        assert_eq!(
            life.next_deadline(),
            Some(Boot(19_500)),
            "the grace of the order"
        );
        assert_eq!(life.tick(Boot(19_500)), KILL);
        assert_eq!(
            life.end(0).2,
            "preempted; asked for a checkpoint, ended after checkpoint mark 2"
        );
        assert!(life.was_answered());
        for why in [StopCause::Drained, StopCause::Requeued] {
            let mut life = with_checkpoint(None, None);
            assert_eq!(life.stop(at(2), why, 10), [Act::Checkpoint]);
            assert_eq!(life.tick(at(61)), []);
            assert_eq!(life.tick(at(62)), TERM, "no mark came");
            assert!(!life.was_answered());
        }
        let mut life = with_checkpoint(Some(600), None);
        life.tick(at(540));
        assert_eq!(
            life.deserted(at(541)),
            [],
            "a place for steps is held until the limit"
        );
        life.stop(at(542), StopCause::Preempted, 10);
        assert_eq!(life.deserted(at(543)), TERM);
        assert_eq!(life.emptied(false), RECORD);
        let mut life = with_checkpoint(None, None);
        assert_eq!(
            life.stop(at(2), StopCause::Cancelled, 10),
            TERM,
            "its owner does not want it"
        );
    }

    #[test]
    fn the_wait_before_the_limit_ends_at_it_and_is_at_most_half_of_it() {
        let mut life = with_checkpoint(Some(600), None);
        assert_eq!(life.next_deadline(), Some(at(540)));
        assert_eq!(life.tick(at(540)), [Act::Checkpoint]);
        assert_eq!(
            life.stop(at(550), StopCause::Preempted, 5),
            [],
            "asked already; and has no longer than the limit"
        );
        assert_eq!(life.next_deadline(), Some(at(600)));
        assert_eq!(life.tick(at(600)), TERM);
        assert_eq!(life.end(0).0, EndCause::Stopped);
        assert_eq!(
            with_checkpoint(Some(80), None).next_deadline(),
            Some(at(40))
        );
        let warning = Some(SigSpec {
            signal: 10,
            batch_only: true,
            lead_secs: 100,
        });
        let mut life = with_checkpoint(Some(600), warning);
        assert!(matches!(life.tick(at(500))[..], [Act::Warn { .. }]));
        assert_eq!(life.tick(at(599)), [], "it had the warning it ordered");
        let mut life = with_checkpoint(Some(600), None);
        life.tick(at(540));
        assert_eq!(life.main_ended(at(560), ExitCode::SUCCESS), KILL);
        assert_eq!(
            life.end(0).0,
            EndCause::Exited,
            "it was over before the limit"
        );
    }

    #[test]
    fn a_stop_before_go_ends_at_once() {
        let mut life = Life::new(Terms::default());
        assert_eq!(life.stop(at(1), StopCause::PrepareTimeout, 30), KILL);
        assert_eq!(life.go(at(2)), [], "too late");
        assert_eq!(life.emptied(false), RECORD);
        assert_eq!(life.end(0).0, EndCause::Stopped);
    }

    #[test]
    fn a_start_that_comes_after_the_stop_changes_nothing() {
        let mut life = Life::new(Terms::default());
        life.go(at(0));
        assert_eq!(life.stop(at(1), StopCause::Cancelled, 30), KILL);
        life.started(at(2));
        assert!(!life.is_running());
        assert_eq!(
            life.launch_failed(at(2), EndCause::LaunchUser, "late".into()),
            KILL
        );
        assert_eq!(life.emptied(false), RECORD);
        assert_eq!(life.end(0).0, EndCause::Stopped);
    }

    #[test]
    fn a_start_that_hangs_ends_at_the_limit() {
        let mut life = Life::new(Terms {
            limit_secs: Some(60),
            kill_grace_secs: 5,
            warning: None,
            checkpoint_secs: None,
        });
        life.go(at(0));
        assert_eq!(life.next_deadline(), Some(at(60)));
        assert_eq!(life.tick(at(60)), KILL, "nothing of it could use the grace");
        life.started(at(60));
        assert!(!life.is_running(), "too late");
        assert_eq!(life.main_ended(at(60), ExitCode::killed(9)), []);
        assert_eq!(life.emptied(true), RECORD);
        let (cause, _, text) = life.end(0);
        assert!(
            cause == EndCause::TimeLimit
                && text.contains("limit of 60 s was reached before its program ran"),
            "{cause:?} {text}"
        );
    }

    #[test]
    fn a_limit_that_moves_takes_its_warning_along() {
        let warning = SigSpec {
            signal: 10,
            batch_only: true,
            lead_secs: 20,
        };
        let mut life = running(Some(100), Some(warning));
        life.set_limit(Some(200), at(9));
        assert_eq!(life.tick(at(100)), []);
        assert_eq!(life.next_deadline(), Some(at(180)));
        assert_eq!(
            life.tick(at(180)),
            [Act::Warn {
                signal: 10,
                batch_only: true
            }]
        );
        assert_eq!(life.tick(at(181)), [], "one warning");
        life.set_limit(Some(150), at(9));
        assert_eq!(life.tick(at(182)), TERM);
        life.set_limit(None, at(9));
        assert_eq!(life.tick(at(212)), KILL, "a sentence passed is carried out");
    }

    #[test]
    fn a_warning_longer_than_the_limit_comes_at_once() {
        let warning = SigSpec {
            signal: 12,
            batch_only: false,
            lead_secs: 600,
        };
        let mut life = running(Some(60), Some(warning));
        assert_eq!(
            life.tick(at(0)),
            [Act::Warn {
                signal: 12,
                batch_only: false
            }]
        );
    }

    #[test]
    fn a_signal_is_delivered_once() {
        let mut life = running(None, None);
        let second = NumberedSignal {
            number: 2,
            signal: 10,
            batch_only: false,
            full: false,
        };
        let first = NumberedSignal {
            number: 1,
            signal: 12,
            batch_only: false,
            full: false,
        };
        assert_eq!(
            life.signal(second),
            [Act::Signal {
                signal: 10,
                batch_only: false,
                full: false
            }]
        );
        assert_eq!(life.signal(second), []);
        assert_eq!(life.signal(first), []);
        life.main_ended(at(1), ExitCode::SUCCESS);
        assert_eq!(
            life.signal(NumberedSignal {
                number: 3,
                signal: 10,
                batch_only: true,
                full: false
            }),
            []
        );
    }

    #[test]
    fn the_limit_stands_still_while_a_job_is_suspended() {
        let warning = SigSpec {
            signal: 10,
            batch_only: true,
            lead_secs: 20,
        };
        let mut life = running(Some(100), Some(warning));
        life.set_suspended(true);
        assert_eq!(life.tick(at(30)), [Act::Freeze]);
        assert_eq!((life.tick(at(500)), life.next_deadline()), (vec![], None));
        life.set_suspended(true);
        assert_eq!(life.tick(at(600)), [], "it is said once");
        life.set_suspended(false);
        assert_eq!(life.tick(at(1030)), [Act::Thaw]);
        assert_eq!(
            life.next_deadline(),
            Some(at(1080)),
            "30 s had passed of 100"
        );
        assert_eq!(
            life.tick(at(1080)),
            [Act::Warn {
                signal: 10,
                batch_only: true
            }]
        );
        assert_eq!(life.tick(at(1100)), TERM);
        life.set_suspended(true);
        assert_eq!(
            life.tick(at(1101)),
            [],
            "what is being ended goes on to its end"
        );
    }

    #[test]
    fn a_suspended_job_is_woken_to_be_ended_and_one_that_starts_is_frozen_then() {
        let mut life = with_checkpoint(Some(600), None);
        life.set_suspended(true);
        life.tick(at(5));
        assert_eq!(
            life.stop(at(100), StopCause::Preempted, 10),
            [Act::Thaw, Act::Checkpoint]
        );
        assert_eq!(life.tick(at(101)), []);
        let mut life = Life::new(Terms::default());
        life.set_suspended(true);
        life.go(at(1));
        assert_eq!(life.tick(at(2)), [], "there is nothing to freeze yet");
        life.started(at(3));
        assert_eq!(life.tick(at(3)), [Act::Freeze]);
        assert_eq!(
            life.main_ended(at(4), ExitCode::killed(9)),
            KILL,
            "somebody killed it"
        );
        assert_eq!(life.emptied(false), RECORD);
    }

    #[test]
    fn a_job_that_is_suspended_just_after_its_mark_is_ended_when_it_goes_on() {
        let near = || {
            let mut life = with_checkpoint(Some(600), None);
            assert_eq!(life.tick(at(540)), [Act::Checkpoint]);
            assert!(life.marked(at(541), 1));
            life.set_suspended(true);
            assert_eq!(life.tick(Boot(541_200)), [Act::Freeze]);
            assert_eq!(
                (life.tick(at(900)), life.next_deadline()),
                (vec![], None),
                "it stands still, and so does its time"
            );
            life.set_suspended(false);
            life
        };
        let mut life = near();
        assert_eq!(life.tick(at(1000)), [Act::Thaw]);
        assert_eq!(
            life.next_deadline(),
            Some(Boot(1_000_300)),
            "what was left of the half second"
        );
        assert_eq!(life.tick(Boot(1_000_300)), TERM);
        assert_eq!(
            life.end(0).2,
            "the time limit of 600 s was near; asked for a checkpoint, ended after checkpoint mark 1"
        );
        // A mark that was on its way when it was frozen counts from then.
        let mut life = with_checkpoint(Some(600), None);
        life.tick(at(540));
        life.set_suspended(true);
        life.tick(at(541));
        assert!(life.marked(at(700), 1));
        assert_eq!(life.next_deadline(), None);
        // A limit that is said anew meanwhile is as near as it was; one that is moved out of sight asks nothing of it.
        life.set_limit(Some(600), at(800));
        life.set_suspended(false);
        assert_eq!(life.tick(at(1000)), [Act::Thaw]);
        assert_eq!(life.next_deadline(), Some(Boot(1_000_500)));
        let mut life = near();
        life.set_limit(Some(900), at(950));
        assert_eq!(life.tick(at(1000)), [Act::Thaw]);
        assert_eq!(
            life.next_deadline(),
            Some(Boot(1_298_800)),
            "asked again a minute before the new one"
        );
        assert_eq!(
            near().stop(at(1000), StopCause::Cancelled, 10),
            [Act::Thaw, Act::Terminate]
        );
    }

    #[derive(Clone, Debug)]
    enum Happening {
        Suspend(bool),
        Go,
        Started,
        LaunchFailed,
        Stop(u32),
        Preempt(u32),
        Marked,
        Limit(Option<u32>),
        MainEnded,
        Emptied,
        Pass(u64),
    }

    fn happening() -> impl Strategy<Value = Happening> {
        prop_oneof![
            any::<bool>().prop_map(Happening::Suspend),
            Just(Happening::Go),
            Just(Happening::Started),
            Just(Happening::LaunchFailed),
            (0u32..100).prop_map(Happening::Stop),
            (0u32..100).prop_map(Happening::Preempt),
            Just(Happening::Marked),
            proptest::option::of(0u32..200).prop_map(Happening::Limit),
            Just(Happening::MainEnded),
            Just(Happening::Emptied),
            (0u64..60_000).prop_map(Happening::Pass),
        ]
    }

    proptest! {
        /// Whatever happens in whatever order: one start, one record, nothing after it, and no deadline that is passed over.
        #[test]
        fn a_life_starts_once_and_is_recorded_once(
            happenings in proptest::collection::vec(happening(), 0..40),
            warns in any::<bool>(),
            asks in any::<bool>(),
        ) {
            let warning = warns.then_some(SigSpec { signal: 10, batch_only: true, lead_secs: 30 });
            let checkpoint_secs = asks.then_some(40);
            let mut life = Life::new(Terms { limit_secs: Some(100), kill_grace_secs: 20, warning, checkpoint_secs });
            let (mut now, mut all) = (Boot(1), Vec::new());
            for happening in happenings {
                all.extend(match happening {
                    Happening::Suspend(suspended) => { life.set_suspended(suspended); Vec::new() }
                    Happening::Go => life.go(now),
                    Happening::Started => { life.started(now); Vec::new() }
                    Happening::LaunchFailed => life.launch_failed(now, EndCause::LaunchUser, String::new()),
                    Happening::Stop(grace_secs) => life.stop(now, StopCause::Cancelled, grace_secs),
                    Happening::Preempt(grace_secs) => life.stop(now, StopCause::Preempted, grace_secs),
                    Happening::Marked => { life.marked(now, 1); Vec::new() }
                    Happening::Limit(limit_secs) => { life.set_limit(limit_secs, now); Vec::new() }
                    Happening::MainEnded => life.main_ended(now, ExitCode::SUCCESS),
                    Happening::Emptied => life.emptied(false),
                    Happening::Pass(millis) => { now = Boot(now.0 + millis); Vec::new() }
                });
                all.extend(life.tick(now));
                prop_assert!(life.next_deadline().is_none_or(|at| at > now), "{life:?} at {now:?}");
            }
            let count = |act: &Act| all.iter().filter(|other| *other == act).count();
            prop_assert!(count(&Act::Start) <= 1 && count(&Act::Terminate) <= 1 && count(&Act::Record) <= 1, "{all:?}");
            // Asked, then terminated: never the other way round.
            let last = |act: &Act| all.iter().rposition(|other| other == act);
            prop_assert!(last(&Act::Terminate).is_none_or(|term| last(&Act::Checkpoint).is_none_or(|asked| asked < term)), "{all:?}");
            prop_assert!(asks || count(&Act::Checkpoint) == 0);
            let turns: Vec<&Act> = all.iter().filter(|act| matches!(act, Act::Freeze | Act::Thaw)).collect();
            let first = |from: usize, act: &Act| all[from..].iter().position(|other| other == act).map_or(all.len(), |at| from + at);
            let frozen = (0..all.len()).filter(|at| all[*at] == Act::Freeze).map(|at| at..first(at, &Act::Thaw));
            prop_assert!(frozen.into_iter().all(|still| !all[still].contains(&Act::Terminate)), "ended while it stands still: {all:?}");
            prop_assert!(turns.chunks(2).all(|two| *two[0] == Act::Freeze && two.get(1).is_none_or(|act| **act == Act::Thaw)), "{all:?}");
            if life.is_recorded() {
                prop_assert_eq!(all.last(), Some(&Act::Record));
            }
        }
    }
}
