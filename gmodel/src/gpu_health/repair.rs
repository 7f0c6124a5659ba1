//! One GPU's repair: quarantine, end of its job, reset, boot, burn-in, or the mark for replacement. One step at a time, with
//! growing pauses. Says the next step and never takes it; the same question has the same answer.

use serde::{Deserialize, Serialize};

use super::catalogue::Action;
use super::watch::Verdict;
use crate::time::Timestamp;

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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairStage {
    #[default]
    InService,
    /// No new job gets it; nothing is under way.
    Out,
    Resetting,
    Booting,
    BurningIn,
    /// Marked for replacement: only an administrator brings it back.
    Marked,
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
    pub verdict: Option<Verdict<'a>>,
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
mod tests {
    use super::*;
    use crate::gpu_health::{Catalogue, EventSource, GpuEventKind, GpuWatch, verdict};
    use proptest::prelude::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(1_700_000_000 + secs)
    }

    fn with_xids(numbers: &[u64]) -> GpuWatch {
        let mut watch = GpuWatch::default();
        for &number in numbers {
            watch.event(
                &Catalogue::built_in(),
                GpuEventKind::Xid(number),
                1,
                EventSource::EventSet,
                at(0),
            );
        }
        watch
    }

    fn around(watch: &GpuWatch) -> RepairContext<'_> {
        RepairContext {
            verdict: verdict(watch.standing()),
            held: false,
            node_empty: true,
            other_under_way: false,
            breaker_allows: true,
        }
    }

    /// Takes the step that comes next, and says which.
    fn step(
        repair: &mut Repair,
        around: &RepairContext<'_>,
        policy: &RepairPolicy,
        now: Timestamp,
    ) -> RepairStep {
        let step = repair.next(around, policy, now);
        assert_eq!(
            repair.next(around, policy, now),
            step,
            "asking changes nothing"
        );
        repair.begin(step, policy, now);
        step
    }

    #[test]
    fn a_sick_gpu_goes_out_its_job_ends_it_is_reset_tried_and_returned() {
        let (policy, mut repair, sick) =
            (RepairPolicy::default(), Repair::default(), with_xids(&[48]));
        let held = RepairContext {
            held: true,
            ..around(&sick)
        };
        assert_eq!(
            step(&mut repair, &held, &policy, at(0)),
            RepairStep::Quarantine
        );
        assert!(!repair.in_service());
        assert_eq!(step(&mut repair, &held, &policy, at(1)), RepairStep::EndJob);
        assert_eq!(
            step(&mut repair, &around(&sick), &policy, at(2)),
            RepairStep::Reset
        );
        assert_eq!(
            step(&mut repair, &around(&sick), &policy, at(3)),
            RepairStep::Nothing,
            "under way"
        );
        repair.end(RepairOutcome::Done, at(10));
        let well = GpuWatch::default();
        assert_eq!(
            step(&mut repair, &around(&well), &policy, at(11)),
            RepairStep::BurnIn
        );
        repair.end(RepairOutcome::BurnInPassed, at(100));
        assert!(repair.in_service());
        assert_eq!(
            repair.next(&around(&well), &policy, at(101)),
            RepairStep::Nothing
        );
    }

    #[test]
    fn a_job_that_may_finish_is_waited_for() {
        let (policy, mut repair, sick) =
            (RepairPolicy::default(), Repair::default(), with_xids(&[94]));
        let held = RepairContext {
            held: true,
            ..around(&sick)
        };
        assert_eq!(
            step(&mut repair, &held, &policy, at(0)),
            RepairStep::Quarantine
        );
        assert_eq!(
            step(&mut repair, &held, &policy, at(100_000)),
            RepairStep::Nothing
        );
        assert_eq!(
            step(&mut repair, &around(&sick), &policy, at(100_001)),
            RepairStep::Reset
        );
    }

    #[test]
    fn what_resets_do_not_mend_is_booted_and_then_marked_each_step_later_than_the_last() {
        let policy = RepairPolicy {
            max_boots: 1,
            ..RepairPolicy::default()
        };
        let (mut repair, sick) = (Repair::default(), with_xids(&[119]));
        let mut taken = Vec::new();
        for secs in 0..2000 {
            let next = step(&mut repair, &around(&sick), &policy, at(secs));
            if next != RepairStep::Nothing {
                taken.push((next, secs));
            }
            repair.end(RepairOutcome::Done, at(secs));
        }
        assert_eq!(
            taken,
            [
                (RepairStep::Quarantine, 0),
                (RepairStep::Reset, 1),
                (RepairStep::Reset, 121),
                (RepairStep::Boot, 361),
                (RepairStep::MarkForReplacement, 362)
            ]
        );
        assert_eq!(repair.stage, RepairStage::Marked);
        repair.release(at(3000));
        assert_eq!(
            repair.next(&around(&GpuWatch::default()), &policy, at(3001)),
            RepairStep::BurnIn,
            "returned by an administrator"
        );
    }

    #[test]
    fn a_burn_in_that_fails_is_answered_by_a_reset_and_not_by_another_burn_in() {
        let (policy, mut repair, well) = (
            RepairPolicy::default(),
            Repair::default(),
            GpuWatch::default(),
        );
        repair.hold("fan noise".to_owned());
        assert_eq!(
            step(&mut repair, &around(&well), &policy, at(0)),
            RepairStep::Quarantine
        );
        assert_eq!(
            step(&mut repair, &around(&well), &policy, at(1)),
            RepairStep::Nothing,
            "an administrator keeps it"
        );
        repair.release(at(2));
        assert_eq!(
            step(&mut repair, &around(&well), &policy, at(3)),
            RepairStep::BurnIn
        );
        repair.end(RepairOutcome::BurnInFailed, at(60));
        assert_eq!(
            step(&mut repair, &around(&well), &policy, at(61)),
            RepairStep::Nothing,
            "not so soon"
        );
        assert_eq!(
            step(&mut repair, &around(&well), &policy, at(130)),
            RepairStep::Reset
        );
    }

    #[test]
    fn the_breaker_and_a_step_elsewhere_on_the_node_hold_it_back() {
        let (policy, mut repair, sick) =
            (RepairPolicy::default(), Repair::default(), with_xids(&[79]));
        let stopped = RepairContext {
            breaker_allows: false,
            ..around(&sick)
        };
        assert_eq!(
            step(&mut repair, &stopped, &policy, at(0)),
            RepairStep::StoppedByBreaker
        );
        assert!(repair.in_service(), "said, not done");
        assert_eq!(
            step(&mut repair, &around(&sick), &policy, at(1)),
            RepairStep::Quarantine
        );
        assert_eq!(
            repair.next(&around(&sick), &policy, at(2)),
            RepairStep::WaitForAdmin,
            "no boot by itself"
        );
        let booting = RepairPolicy {
            max_boots: 1,
            ..policy
        };
        let busy = RepairContext {
            node_empty: false,
            ..around(&sick)
        };
        assert_eq!(
            repair.next(&busy, &booting, at(2)),
            RepairStep::Nothing,
            "the other seven work on"
        );
        let elsewhere = RepairContext {
            other_under_way: true,
            ..around(&sick)
        };
        assert_eq!(
            repair.next(&elsewhere, &booting, at(2)),
            RepairStep::Nothing
        );
        assert_eq!(
            repair.next(&around(&sick), &booting, at(2)),
            RepairStep::Boot
        );
    }

    #[test]
    fn a_step_that_does_not_end_is_given_up() {
        let (policy, mut repair, sick) =
            (RepairPolicy::default(), Repair::default(), with_xids(&[62]));
        step(&mut repair, &around(&sick), &policy, at(0));
        assert_eq!(
            step(&mut repair, &around(&sick), &policy, at(1)),
            RepairStep::Reset
        );
        assert_eq!(
            step(&mut repair, &around(&sick), &policy, at(3600)),
            RepairStep::Nothing
        );
        assert_eq!(
            step(&mut repair, &around(&sick), &policy, at(3601)),
            RepairStep::GiveUp
        );
        assert_eq!(repair.stage, RepairStage::Out);
        repair.end(RepairOutcome::BurnInPassed, at(3602));
        assert_eq!(
            repair.stage,
            RepairStage::Out,
            "an answer that comes too late returns nothing to service"
        );
    }

    #[test]
    fn a_reset_that_could_not_be_done_marks_no_board_for_replacement() {
        let (policy, sick) = (
            RepairPolicy {
                first_pause_secs: 1,
                ..RepairPolicy::default()
            },
            with_xids(&[48]),
        );
        let after = |endings: [RepairOutcome; 2]| {
            let mut repair = Repair::default();
            step(&mut repair, &around(&sick), &policy, at(0));
            for (turn, ended) in endings.into_iter().enumerate() {
                assert_eq!(
                    step(
                        &mut repair,
                        &around(&sick),
                        &policy,
                        at(100 * (1 + turn as i64))
                    ),
                    RepairStep::Reset
                );
                repair.end(ended, at(100 * (1 + turn as i64) + 1));
            }
            repair.next(&around(&sick), &policy, at(1000))
        };
        assert_eq!(
            after([RepairOutcome::Failed, RepairOutcome::Failed]),
            RepairStep::WaitForAdmin
        );
        assert_eq!(
            after([RepairOutcome::Failed, RepairOutcome::Done]),
            RepairStep::MarkForReplacement,
            "it was reset, and that did not help"
        );
    }

    #[test]
    fn whoever_returns_a_gpu_does_not_wait_for_a_boot_that_has_not_come() {
        let policy = RepairPolicy {
            max_boots: 1,
            ..RepairPolicy::default()
        };
        let (mut repair, sick) = (Repair::default(), with_xids(&[79]));
        step(&mut repair, &around(&sick), &policy, at(0));
        assert_eq!(
            step(&mut repair, &around(&sick), &policy, at(1)),
            RepairStep::Boot
        );
        repair.release(at(2));
        assert_eq!(
            step(&mut repair, &around(&GpuWatch::default()), &policy, at(3)),
            RepairStep::BurnIn
        );
        let mut resetting = Repair {
            stage: RepairStage::Resetting,
            ..Repair::default()
        };
        resetting.release(at(2));
        assert_eq!(
            resetting.stage,
            RepairStage::Resetting,
            "its program is at work on it"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn whatever_happens_no_step_touches_a_held_or_healthy_gpu_and_only_a_burn_in_returns_one(
            days in proptest::collection::vec((any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), 0usize..6, 1i64..4000), 1..200),
        ) {
            let policy = RepairPolicy { max_boots: 1, ..RepairPolicy::default() };
            let (well, sick) = (GpuWatch::default(), with_xids(&[48]));
            let (mut repair, mut now, mut is_sick) = (Repair::default(), 0, false);
            for (falls_sick, held, breaker_allows, node_empty, ending, secs) in days {
                now += secs;
                is_sick |= falls_sick && repair.stage == RepairStage::InService;
                let watch = if is_sick { &sick } else { &well };
                let around = RepairContext { held, breaker_allows, node_empty, ..around(watch) };
                let before = repair.clone();
                let step = step(&mut repair, &around, &policy, at(now));
                prop_assert!(!(held && matches!(step, RepairStep::Reset | RepairStep::Boot | RepairStep::BurnIn)), "{step:?} under a job");
                prop_assert!(step != RepairStep::Boot || node_empty, "a boot under other jobs");
                prop_assert!(!(before.stage == RepairStage::InService && !is_sick && step != RepairStep::Nothing), "{step:?} of a healthy GPU");
                if ending > 0 {
                    let endings = [RepairOutcome::Done, RepairOutcome::Done, RepairOutcome::Failed, RepairOutcome::BurnInPassed, RepairOutcome::BurnInFailed];
                    let ended = endings[ending - 1];
                    let under_way = repair.stage;
                    repair.end(ended, at(now));
                    if ended == RepairOutcome::Done && matches!(under_way, RepairStage::Resetting | RepairStage::Booting) {
                        is_sick = false;
                    }
                    let returned = under_way != RepairStage::InService && repair.stage == RepairStage::InService;
                    prop_assert!(!returned || (under_way == RepairStage::BurningIn && ended == RepairOutcome::BurnInPassed));
                }
                let resets = repair.attempts.iter().filter(|(kind, at_)| *kind == RepairAttempt::Reset && at(now).since_secs(*at_) < 86_400);
                prop_assert!(resets.count() <= policy.max_resets as usize);
                prop_assert!(repair.attempts.len() < 200);
            }
        }
    }
}
