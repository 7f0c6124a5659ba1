//! One GPU's repair: quarantine, end of its job, reset, boot, burn-in, or the mark for replacement. One step at a time, with
//! growing pauses. Says the next step and never takes it; the same question has the same answer.

use serde::{Deserialize, Serialize};

use super::watch::HealthVerdict;
use gmodel::Timestamp;
use gmodel::gpu_health::{Action, RepairStage};

/// The repair state of a GPU. Kept over restarts: a step is stored as begun before it is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Repair {
    pub stage: RepairStage,
    /// Since when.
    pub since: Timestamp,
    /// Steps begun, oldest first; those older than the policy's window are forgotten.
    pub attempts: Vec<(RepairAttempt, Timestamp)>,
    /// The last burn-in did not pass: another would not either without more.
    pub burn_in_failed: bool,
    /// The last reset or boot could not be done: that says nothing about the board.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub not_done: bool,
    /// Why an administrator keeps it out of service, until its return.
    pub held_by_admin: Option<String>,
}

/// What was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairAttempt {
    Reset,
    Boot,
    BurnIn,
}

/// What the next step depends on besides the repair itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct RepairContext<'a> {
    /// What the standing signs call for.
    pub verdict: Option<HealthVerdict<'a>>,
    /// A run holds the GPU, or a part of it.
    pub held: bool,
    /// No run is on the node.
    pub node_empty: bool,
    /// A step is under way on another GPU of the node.
    pub other_under_way: bool,
    /// The pool's breaker lets one more GPU go out of service.
    pub breaker_allows: bool,
}

/// How far automatic repair goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RepairPolicy {
    /// 0: never by itself; a GPU that calls for it then waits for an administrator.
    pub max_resets: u32,
    pub max_boots: u32,
    /// So many within this time.
    pub window_secs: u64,
    /// Between a first and a second step; doubled each time.
    pub first_pause_secs: u64,
    /// A step that has not ended by then has failed.
    pub patience_secs: u64,
}

impl Default for RepairPolicy {
    fn default() -> RepairPolicy {
        RepairPolicy {
            max_resets: 2,
            max_boots: 0,
            window_secs: 86_400,
            first_pause_secs: 60,
            patience_secs: 3600,
        }
    }
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairStep {
    Nothing,
    Quarantine,
    /// It should be quarantined, and the breaker does not allow it: to be said loudly.
    StoppedByBreaker,
    EndJob,
    Reset,
    Boot,
    BurnIn,
    MarkForReplacement,
    /// A step did not end in time: it has failed.
    GiveUp,
    /// Nothing more by itself: an administrator has to look.
    WaitForAdmin,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairOutcome {
    /// The reset or the boot was done; whether it helped, signs and burn-in tell. Take the GPU's next reading as the new
    /// beginning: [`super::GpuWatch::accepting`].
    Done,
    Failed,
    BurnInPassed,
    BurnInFailed,
}

impl Repair {
    /// The next step.
    pub fn next(
        &self,
        around: &RepairContext<'_>,
        policy: &RepairPolicy,
        now: Timestamp,
    ) -> RepairStep {
        match self.stage {
            RepairStage::InService if self.held_by_admin.is_some() => RepairStep::Quarantine,
            RepairStage::InService => match around.verdict {
                None => RepairStep::Nothing,
                Some(_) if around.breaker_allows => RepairStep::Quarantine,
                Some(_) => RepairStep::StoppedByBreaker,
            },
            RepairStage::Out => self.next_out_of_service(around, policy, now),
            RepairStage::Resetting | RepairStage::Booting | RepairStage::BurningIn => {
                let overdue = now.since_secs(self.since) >= policy.patience_secs as i64;
                if overdue {
                    RepairStep::GiveUp
                } else {
                    RepairStep::Nothing
                }
            }
            RepairStage::Marked => RepairStep::Nothing,
        }
    }

    fn next_out_of_service(
        &self,
        around: &RepairContext<'_>,
        policy: &RepairPolicy,
        now: Timestamp,
    ) -> RepairStep {
        if around.held {
            let ends = around
                .verdict
                .is_some_and(|verdict| !verdict.let_finish && verdict.action >= Action::EndJob);
            return if ends {
                RepairStep::EndJob
            } else {
                RepairStep::Nothing
            };
        }
        if self.held_by_admin.is_some() {
            return RepairStep::Nothing;
        }
        let action = match around.verdict {
            Some(verdict) => verdict.action,
            None if self.burn_in_failed => Action::Reset,
            None => return self.when_rested(RepairStep::BurnIn, around, policy, now),
        };
        match action {
            Action::Note | Action::Quarantine | Action::EndJob => RepairStep::WaitForAdmin,
            Action::Replace => RepairStep::MarkForReplacement,
            Action::Reset if self.left(RepairAttempt::Reset, policy.max_resets, policy, now) => {
                self.when_rested(RepairStep::Reset, around, policy, now)
            }
            // What resets do not mend, a boot may; and what that does not, nothing here does.
            Action::Reset | Action::Reboot
                if self.left(RepairAttempt::Boot, policy.max_boots, policy, now) =>
            {
                match around.node_empty {
                    true => self.when_rested(RepairStep::Boot, around, policy, now),
                    false => RepairStep::Nothing,
                }
            }
            Action::Reset | Action::Reboot if self.not_done => RepairStep::WaitForAdmin,
            Action::Reset if policy.max_resets > 0 => RepairStep::MarkForReplacement,
            Action::Reboot if policy.max_boots > 0 => RepairStep::MarkForReplacement,
            Action::Reset | Action::Reboot => RepairStep::WaitForAdmin,
        }
    }

    /// A step is begun: to be written down before it is taken.
    pub fn begin(&mut self, step: RepairStep, policy: &RepairPolicy, now: Timestamp) {
        let attempt = match step {
            RepairStep::Reset => Some((RepairAttempt::Reset, RepairStage::Resetting)),
            RepairStep::Boot => Some((RepairAttempt::Boot, RepairStage::Booting)),
            RepairStep::BurnIn => Some((RepairAttempt::BurnIn, RepairStage::BurningIn)),
            _ => None,
        };
        let stage = match (step, attempt) {
            (_, Some((_, stage))) => stage,
            (RepairStep::Quarantine | RepairStep::GiveUp, None) => RepairStage::Out,
            (RepairStep::MarkForReplacement, None) => RepairStage::Marked,
            _ => return,
        };
        if let Some((attempt, _)) = attempt {
            self.attempts
                .retain(|(_, at)| now.since_secs(*at) < policy.window_secs as i64);
            self.attempts.push((attempt, now));
        }
        if step == RepairStep::GiveUp {
            let burning_in = self.stage == RepairStage::BurningIn;
            (self.burn_in_failed, self.not_done) = (
                self.burn_in_failed || burning_in,
                self.not_done || !burning_in,
            );
        }
        self.stage = stage;
        self.since = now;
    }

    /// Ends the step under way. The end of an abandoned step changes nothing.
    pub fn end(&mut self, ended: RepairOutcome, now: Timestamp) {
        let (stage, burn_in_failed) = match (self.stage, ended) {
            (RepairStage::Resetting | RepairStage::Booting, RepairOutcome::Done) => {
                (RepairStage::Out, false)
            }
            (RepairStage::Resetting | RepairStage::Booting, RepairOutcome::Failed) => {
                (RepairStage::Out, self.burn_in_failed)
            }
            (RepairStage::BurningIn, RepairOutcome::BurnInPassed) => {
                (RepairStage::InService, false)
            }
            (RepairStage::BurningIn, RepairOutcome::BurnInFailed | RepairOutcome::Failed) => {
                (RepairStage::Out, true)
            }
            _ => return,
        };
        if matches!(self.stage, RepairStage::Resetting | RepairStage::Booting) {
            self.not_done = ended == RepairOutcome::Failed;
        }
        self.stage = stage;
        self.burn_in_failed = burn_in_failed;
        self.since = now;
    }

    /// An administrator takes the GPU out of service, for this reason.
    pub fn hold(&mut self, reason: String) {
        self.held_by_admin = Some(reason);
    }

    /// An administrator returns it: what was tried is forgotten, and a burn-in decides. The caller also forgets its signs. Whoever returns
    /// one does not wait for a boot that has not come; a reset or a burn-in ends first.
    pub fn release(&mut self, now: Timestamp) {
        if matches!(
            self.stage,
            RepairStage::Marked | RepairStage::Out | RepairStage::Booting
        ) {
            self.stage = RepairStage::Out;
            self.since = now;
        }
        self.attempts.clear();
        self.burn_in_failed = false;
        self.not_done = false;
        self.held_by_admin = None;
    }

    /// True while jobs may get it.
    pub fn in_service(&self) -> bool {
        self.stage == RepairStage::InService && self.held_by_admin.is_none()
    }

    fn left(
        &self,
        attempt: RepairAttempt,
        most: u32,
        policy: &RepairPolicy,
        now: Timestamp,
    ) -> bool {
        let recent = self.attempts.iter().filter(|(kind, at)| {
            *kind == attempt && now.since_secs(*at) < policy.window_secs as i64
        });
        recent.count() < most as usize
    }

    /// The step, when nothing else is under way on the node and the pause after the step before is over.
    fn when_rested(
        &self,
        step: RepairStep,
        around: &RepairContext<'_>,
        policy: &RepairPolicy,
        now: Timestamp,
    ) -> RepairStep {
        // A burn-in follows a reset or a boot at once; a second burn-in waits for its pause.
        let last = self.attempts.last();
        let follows = step == RepairStep::BurnIn
            && last.is_none_or(|(last, _)| *last != RepairAttempt::BurnIn);
        let doubled = policy
            .first_pause_secs
            .saturating_mul(1 << self.attempts.len().min(10));
        let rested = last
            .is_none_or(|(_, at)| now.since_secs(*at) >= doubled.min(policy.window_secs) as i64);
        let free = !around.other_under_way || step == RepairStep::BurnIn;
        if free && (rested || follows) {
            step
        } else {
            RepairStep::Nothing
        }
    }
}

#[cfg(test)]
mod tests;
