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
/// Between a mark that ends the wait and SIGTERM: the process that set it reads the answer, and may leave by itself.
const AFTER_MARK_MILLIS: u64 = 500;

/// Milliseconds of CLOCK_BOOTTIME: it goes on while the machine sleeps and is never set back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootMillis(pub u64);

impl BootMillis {
    pub fn plus_secs(self, secs: u32) -> BootMillis {
        BootMillis(self.0 + u64::from(secs) * 1000)
    }
}

/// What the supervisor has to do now, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LifeAction {
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
    /// Suspend and resume the job's processes.
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
    phase: LifePhase,
    warned: bool,
    /// Highest number of a signal delivered.
    signalled: u32,
    /// The job is to be suspended, and has been since then.
    suspended: bool,
    frozen: Option<BootMillis>,
    /// The job has been asked for its checkpoint and is not terminated yet.
    wait: Option<CheckpointWait>,
    /// Number of the mark that ended the wait, and when SIGTERM follows.
    answer: Option<(u32, BootMillis)>,
    /// It was.
    answered: bool,
    /// The main process would have died of the SIGTERM that it was sent.
    dies_of_term: bool,
    verdict: Option<Verdict>,
    main: Option<ExitCode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LifePhase {
    Ready,
    /// The child is on its way to the program: its files may be on a dead server, so the limit counts already.
    Starting {
        since: BootMillis,
    },
    Running {
        started: BootMillis,
    },
    /// The main process has ended by itself or the grace is over: everything left is killed.
    Killing {
        since: BootMillis,
        again_at: BootMillis,
    },
    Recorded,
}

/// A job that is to end has the time to write its checkpoint. A mark that is accepted meanwhile ends the wait, and so do the
/// end of the main process, the end of the time, the time limit, and a stop that knows no checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckpointWait {
    /// Until the time limit. A limit that is moved out of sight ends the wait, and nothing has happened.
    Limit,
    /// Between SIGTERM and SIGKILL, then, the grace of the order to stop.
    Stop {
        why: StopCause,
        until: BootMillis,
        kill_grace_secs: u32,
    },
}

/// Why the run is being ended from outside. The first reason stays; a later one may only bring the kill forward.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    cause: EndCause,
    text: String,
    kill_at: BootMillis,
    /// It is to give way and come back: where it is done, it is done.
    comes_back: bool,
}

impl Life {
    pub fn new(terms: Terms) -> Life {
        Life {
            terms,
            phase: LifePhase::Ready,
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
    pub fn go(&mut self, now: BootMillis) -> Vec<LifeAction> {
        if self.phase != LifePhase::Ready {
            return Vec::new();
        }
        self.phase = LifePhase::Starting { since: now };
        vec![LifeAction::Start]
    }

    /// The program runs. A run that was stopped while it started stays stopped.
    pub fn started(&mut self, now: BootMillis) {
        if matches!(self.phase, LifePhase::Starting { .. }) {
            self.phase = LifePhase::Running { started: now };
        }
    }

    /// The process could not be started: what was there of it is killed, then the record is written.
    pub fn launch_failed(
        &mut self,
        now: BootMillis,
        cause: EndCause,
        text: String,
    ) -> Vec<LifeAction> {
        if !matches!(
            self.phase,
            LifePhase::Starting { .. } | LifePhase::Killing { .. }
        ) {
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

    /// Suspends or resumes the job: [`Life::tick`] acts on it once the job runs. The limit waits meanwhile.
    pub fn set_suspended(&mut self, suspended: bool) {
        self.suspended = suspended;
    }

    /// The controller or the node ends the run. A suspended job is resumed first, to receive the signal.
    pub fn stop(&mut self, now: BootMillis, why: StopCause, grace_secs: u32) -> Vec<LifeAction> {
        self.suspended = false;
        let mut acts = self.suspend_or_resume(now);
        acts.extend(self.begin_stop(now, why, grace_secs));
        acts
    }

    fn begin_stop(&mut self, now: BootMillis, why: StopCause, grace_secs: u32) -> Vec<LifeAction> {
        match self.phase {
            LifePhase::Ready | LifePhase::Starting { .. } => self.end_unstarted(
                now,
                EndCause::Stopped,
                format!("stopped before it started: {}", stop_text(why)),
            ),
            LifePhase::Running { .. }
                if self.verdict.is_none()
                    && gives_time(why)
                    && self.terms.checkpoint_secs.is_some() =>
            {
                self.ask_before_stop(now, why, grace_secs)
            }
            LifePhase::Running { .. } => self.condemn_for(
                now,
                EndCause::Stopped,
                self.stopped_text(why, None),
                grace_secs,
                gives_time(why) && self.wait.is_none(),
            ),
            LifePhase::Killing { .. } | LifePhase::Recorded => Vec::new(),
        }
    }

    /// Delivered once, and only while there is something to deliver it to.
    pub fn signal(&mut self, wanted: NumberedSignal) -> Vec<LifeAction> {
        if !matches!(self.phase, LifePhase::Running { .. }) || wanted.number <= self.signalled {
            return Vec::new();
        }
        self.signalled = wanted.number;
        vec![LifeAction::Signal {
            signal: wanted.signal,
            batch_only: wanted.batch_only,
            full: wanted.full,
        }]
    }

    /// The time limit now in force. [`Life::tick`] acts on it.
    pub fn set_limit(&mut self, limit_secs: Option<u32>, now: BootMillis) {
        self.terms.limit_secs = limit_secs;
        if self.wait == Some(CheckpointWait::Limit) {
            self.wait = None;
            // The time of a suspended job does not pass.
            let frozen = self.frozen.take();
            let is_near = self
                .checkpoint_at()
                .is_some_and(|at| frozen.unwrap_or(now) >= at);
            self.frozen = frozen;
            match is_near {
                // Still near: it was asked already.
                true => self.wait = Some(CheckpointWait::Limit),
                false => self.answer = None,
            }
        }
    }

    /// A checkpoint mark was accepted: true when it is the one that was waited for. One that came before the job was asked is
    /// only a mark. [`Life::tick`] does the rest.
    pub fn marked(&mut self, now: BootMillis, number: u32) -> bool {
        let is_answer = self.wait.is_some() && self.answer.is_none();
        if is_answer {
            self.answer = Some((
                number,
                BootMillis(self.frozen.unwrap_or(now).0 + AFTER_MARK_MILLIS),
            ));
        }
        is_answer
    }

    /// The main process has ended. What it left behind dies at once, or at the end of a grace that is under way.
    pub fn main_ended(&mut self, now: BootMillis, exit: ExitCode) -> Vec<LifeAction> {
        self.main = Some(exit);
        match (&self.phase, &self.verdict, self.wait) {
            // What it left behind may still be at the checkpoint.
            (_, _, Some(CheckpointWait::Stop { .. })) => {
                self.end_wait(now, "the end of the batch process")
            }
            (LifePhase::Starting { .. } | LifePhase::Running { .. }, None, _) => {
                // The limit was not reached: its own end counts.
                self.begin_kill(now)
            }
            _ => Vec::new(),
        }
    }

    /// A node other than the first holds no process any more: it has nothing to wait for when the run is to stop.
    pub fn deserted(&mut self, now: BootMillis) -> Vec<LifeAction> {
        match self.wait {
            Some(CheckpointWait::Stop { .. }) => self.end_wait(now, "the end of its last process"),
            _ => Vec::new(),
        }
    }

    /// It was told to stop and has time for its checkpoint.
    pub fn waits_to_stop(&self) -> bool {
        matches!(self.wait, Some(CheckpointWait::Stop { .. }))
    }

    /// No process of the job is left. Before the main process has been reaped its exit is not known: then it waits.
    pub fn emptied(&mut self, main_expected: bool) -> Vec<LifeAction> {
        if !self.is_ending() || (main_expected && self.main.is_none()) {
            return Vec::new();
        }
        self.phase = LifePhase::Recorded;
        vec![LifeAction::Record]
    }

    /// Acts on every deadline that has passed.
    pub fn tick(&mut self, now: BootMillis) -> Vec<LifeAction> {
        let mut acts = self.suspend_or_resume(now);
        if self.warn_at().is_some_and(|at| now >= at) {
            self.warned = true;
            acts.extend(self.terms.warning.map(|w| LifeAction::Warn {
                signal: w.signal,
                batch_only: w.batch_only,
            }));
        }
        if self.checkpoint_at().is_some_and(|at| now >= at) {
            self.wait = Some(CheckpointWait::Limit);
            acts.push(LifeAction::Checkpoint);
        }
        if self.limit_at().is_some_and(|at| now >= at) {
            acts.extend(match (self.phase, self.wait) {
                (LifePhase::Starting { .. }, _) => {
                    let text = format!(
                        "{} before its program ran: its directory, input or output did not open",
                        self.limit_text(None)
                    );
                    self.end_unstarted(now, EndCause::TimeLimit, text)
                }
                (_, Some(CheckpointWait::Stop { .. })) => self.end_wait(now, "the time limit"),
                _ => self.condemn(
                    now,
                    EndCause::TimeLimit,
                    self.limit_text(None),
                    self.terms.kill_grace_secs,
                ),
            });
        }
        if self.answered_at().is_some_and(|at| now >= at)
            || matches!(self.wait, Some(CheckpointWait::Stop { until, .. }) if now >= until)
        {
            acts.extend(self.end_wait(now, "the end of its time"));
        }
        let kill_at = self.verdict.as_ref().map(|v| v.kill_at);
        match self.phase {
            LifePhase::Starting { .. } | LifePhase::Running { .. }
                if kill_at.is_some_and(|at| now >= at) =>
            {
                acts.extend(self.begin_kill(now));
            }
            LifePhase::Killing { since, .. } if now.0 >= since.0 + GIVE_UP_MILLIS => {
                // SIGKILL was sent, whatever a process that hangs in the kernel makes of it.
                self.main.get_or_insert(ExitCode::killed(9));
                self.phase = LifePhase::Recorded;
                acts.push(LifeAction::Record);
            }
            LifePhase::Killing { again_at, .. } if now >= again_at => {
                acts.extend(self.begin_kill(now))
            }
            _ => {}
        }
        acts
    }

    /// When [`Life::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<BootMillis> {
        let kill_at = match self.phase {
            LifePhase::Starting { .. } | LifePhase::Running { .. } => {
                self.verdict.as_ref().map(|v| v.kill_at)
            }
            LifePhase::Killing { since, again_at } => {
                Some(again_at.min(BootMillis(since.0 + GIVE_UP_MILLIS)))
            }
            LifePhase::Ready | LifePhase::Recorded => None,
        };
        let given_up_at = match self.wait {
            Some(CheckpointWait::Stop { until, .. }) => Some(until),
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

    /// The run is ending: the caller should look whether processes are left.
    pub fn is_ending(&self) -> bool {
        match self.phase {
            LifePhase::Killing { .. } => true,
            LifePhase::Starting { .. } | LifePhase::Running { .. } => self.verdict.is_some(),
            LifePhase::Ready | LifePhase::Recorded => false,
        }
    }

    pub fn is_recorded(&self) -> bool {
        self.phase == LifePhase::Recorded
    }

    /// Told to go, and its program does not run yet.
    pub fn is_starting(&self) -> bool {
        matches!(self.phase, LifePhase::Starting { .. })
    }

    pub fn is_running(&self) -> bool {
        matches!(self.phase, LifePhase::Running { .. })
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

    /// Cause, exit and text of the end. A kernel's kill for want of memory explains an end that was not ordered.
    pub fn end(&self, oom_kills: u64) -> (EndCause, ExitCode, String) {
        let exit = self.main.unwrap_or_default();
        match &self.verdict {
            Some(verdict) if !self.was_done(verdict) => (verdict.cause, exit, verdict.text.clone()),
            _ if oom_kills > 0 => (EndCause::OutOfMemory, exit, String::new()),
            _ => (EndCause::Exited, exit, String::new()),
        }
    }

    /// Freezes what is to be suspended and is not being ended; after it the limit is as far away as it was before.
    fn suspend_or_resume(&mut self, now: BootMillis) -> Vec<LifeAction> {
        let still = self.suspended && self.verdict.is_none() && !self.waits_to_stop();
        match (&mut self.phase, self.frozen, still) {
            (LifePhase::Running { .. }, None, true) => {
                self.frozen = Some(now);
                vec![LifeAction::Freeze]
            }
            (LifePhase::Running { started }, Some(since), false) => {
                let still_millis = now.0.saturating_sub(since.0);
                started.0 += still_millis;
                self.answer
                    .iter_mut()
                    .for_each(|(_, at)| at.0 += still_millis);
                self.frozen = None;
                vec![LifeAction::Thaw]
            }
            _ => Vec::new(),
        }
    }

    /// Asks for the checkpoint, once. A job that was asked because its limit is near has that long and no longer.
    fn ask_before_stop(
        &mut self,
        now: BootMillis,
        why: StopCause,
        grace_secs: u32,
    ) -> Vec<LifeAction> {
        let given = now.plus_secs(self.terms.checkpoint_secs.unwrap_or(0));
        let (wait, acts) = match self.wait {
            None => (
                CheckpointWait::Stop {
                    why,
                    until: given,
                    kill_grace_secs: grace_secs,
                },
                vec![LifeAction::Checkpoint],
            ),
            Some(CheckpointWait::Limit) => {
                let until = self.limit_at().map_or(given, |limit| limit.min(given));
                (
                    CheckpointWait::Stop {
                        why,
                        until,
                        kill_grace_secs: grace_secs,
                    },
                    Vec::new(),
                )
            }
            Some(CheckpointWait::Stop {
                why,
                until,
                kill_grace_secs,
            }) => (
                CheckpointWait::Stop {
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
    fn end_wait(&mut self, now: BootMillis, by: &str) -> Vec<LifeAction> {
        let mark = self
            .answer
            .map(|(number, _)| format!("checkpoint mark {number}"));
        self.answered = mark.is_some();
        let by = mark.as_deref().unwrap_or(by);
        match self.wait {
            None => Vec::new(),
            Some(CheckpointWait::Limit) => self.condemn(
                now,
                EndCause::TimeLimit,
                self.limit_text(Some(by)),
                self.terms.kill_grace_secs,
            ),
            Some(CheckpointWait::Stop {
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
            Some(CheckpointWait::Stop { why, .. }) => why,
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

    fn condemn(
        &mut self,
        now: BootMillis,
        cause: EndCause,
        text: String,
        grace_secs: u32,
    ) -> Vec<LifeAction> {
        self.condemn_for(now, cause, text, grace_secs, false)
    }

    fn condemn_for(
        &mut self,
        now: BootMillis,
        cause: EndCause,
        text: String,
        grace_secs: u32,
        comes_back: bool,
    ) -> Vec<LifeAction> {
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
                vec![LifeAction::Terminate]
            }
        }
    }

    /// Nothing of the user's runs yet that could use a grace.
    fn end_unstarted(&mut self, now: BootMillis, cause: EndCause, text: String) -> Vec<LifeAction> {
        self.verdict = Some(Verdict {
            cause,
            text,
            kill_at: now,
            comes_back: false,
        });
        self.begin_kill(now)
    }

    fn begin_kill(&mut self, now: BootMillis) -> Vec<LifeAction> {
        (self.wait, self.answer) = (None, None);
        let since = if let LifePhase::Killing { since, .. } = self.phase {
            since
        } else {
            now
        };
        self.phase = LifePhase::Killing {
            since,
            again_at: BootMillis(now.0 + KILL_AGAIN_MILLIS),
        };
        vec![LifeAction::Kill]
    }

    fn limit_at(&self) -> Option<BootMillis> {
        match (self.phase, &self.verdict, self.terms.limit_secs) {
            _ if self.frozen.is_some() => None,
            (
                LifePhase::Starting { since } | LifePhase::Running { started: since },
                None,
                Some(limit),
            ) => Some(since.plus_secs(limit)),
            _ => None,
        }
    }

    /// When SIGTERM follows the mark that was waited for: not while the job is suspended.
    fn answered_at(&self) -> Option<BootMillis> {
        self.answer
            .filter(|_| self.frozen.is_none())
            .map(|(_, at)| at)
    }

    fn warn_at(&self) -> Option<BootMillis> {
        let limit_at = self
            .limit_at()
            .filter(|_| self.is_running() && !self.warned)?;
        let lead = self.terms.warning?.lead_secs;
        Some(BootMillis(
            limit_at.0.saturating_sub(u64::from(lead) * 1000),
        ))
    }

    /// The job's time for its checkpoint ends at its limit, and takes no more than half of that. A job that has ordered a
    /// warning of its own with `--signal` is not asked twice.
    fn checkpoint_at(&self) -> Option<BootMillis> {
        let limit_at = self
            .limit_at()
            .filter(|_| self.is_running() && self.wait.is_none() && self.terms.warning.is_none())?;
        let limit_millis = u64::from(self.terms.limit_secs?) * 1000;
        let lead_millis = (u64::from(self.terms.checkpoint_secs?) * 1000).min(limit_millis / 2);
        Some(BootMillis(limit_at.0.saturating_sub(lead_millis)))
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
        StopCause::Ended => "the allocation was ended",
        StopCause::PrepareTimeout => "the run did not get ready in time",
        StopCause::Fenced => "the controller no longer counts this run as its own",
        StopCause::GpuFailed => "a GPU of it is out of order",
        StopCause::FenceBroken => "its fence does not stand any more",
        StopCause::Unknown => "for a reason this release does not know",
    }
}

#[cfg(test)]
mod tests;
