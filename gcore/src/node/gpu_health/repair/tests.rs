//! Steps of a repair, one after the other.

use super::*;
use crate::node::gpu_health::{GpuWatch, verdict};
use gmodel::gpu_health::{Catalogue, EventSource, GpuEventKind};
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

/// A GPU under repair, by a site's policy.
#[derive(Default)]
struct RepairCase {
    repair: Repair,
    policy: RepairPolicy,
}

impl RepairCase {
    /// At a site where a node boots for a GPU, once.
    fn with_boots() -> Self {
        let mut gpu = Self::default();
        gpu.policy.max_boots = 1;
        gpu
    }

    fn next(&self, around: &RepairContext<'_>, secs: i64) -> RepairStep {
        self.repair.next(around, &self.policy, at(secs))
    }

    /// Takes the step that comes next, and says which.
    fn step(&mut self, around: &RepairContext<'_>, secs: i64) -> RepairStep {
        let step = self.next(around, secs);
        assert_eq!(self.next(around, secs), step, "asking changes nothing");
        self.repair.begin(step, &self.policy, at(secs));
        step
    }
}

#[test]
fn a_sick_gpu_goes_out_its_job_ends_it_is_reset_tried_and_returned() {
    let (mut gpu, sick) = (RepairCase::default(), with_xids(&[48]));
    let held = RepairContext {
        held: true,
        ..around(&sick)
    };
    assert_eq!(gpu.step(&held, 0), RepairStep::Quarantine);
    assert!(!gpu.repair.in_service());
    assert_eq!(gpu.step(&held, 1), RepairStep::EndJob);
    assert_eq!(gpu.step(&around(&sick), 2), RepairStep::Reset);
    assert_eq!(
        gpu.step(&around(&sick), 3),
        RepairStep::Nothing,
        "under way"
    );
    gpu.repair.end(RepairOutcome::Done, at(10));
    let well = GpuWatch::default();
    assert_eq!(gpu.step(&around(&well), 11), RepairStep::BurnIn);
    gpu.repair.end(RepairOutcome::BurnInPassed, at(100));
    assert!(gpu.repair.in_service());
    assert_eq!(gpu.next(&around(&well), 101), RepairStep::Nothing);
}

#[test]
fn a_job_that_may_finish_is_waited_for() {
    let (mut gpu, sick) = (RepairCase::default(), with_xids(&[94]));
    let held = RepairContext {
        held: true,
        ..around(&sick)
    };
    assert_eq!(gpu.step(&held, 0), RepairStep::Quarantine);
    assert_eq!(gpu.step(&held, 100_000), RepairStep::Nothing);
    assert_eq!(gpu.step(&around(&sick), 100_001), RepairStep::Reset);
}

#[test]
fn what_resets_do_not_mend_is_booted_and_then_marked_each_step_later_than_the_last() {
    let (mut gpu, sick) = (RepairCase::with_boots(), with_xids(&[119]));
    let mut taken = Vec::new();
    for secs in 0..2000 {
        let next = gpu.step(&around(&sick), secs);
        if next != RepairStep::Nothing {
            taken.push((next, secs));
        }
        gpu.repair.end(RepairOutcome::Done, at(secs));
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
    assert_eq!(gpu.repair.stage, RepairStage::Marked);
    gpu.repair.release(at(3000));
    assert_eq!(
        gpu.next(&around(&GpuWatch::default()), 3001),
        RepairStep::BurnIn,
        "returned by an administrator"
    );
}

#[test]
fn a_burn_in_that_fails_is_answered_by_a_reset_and_not_by_another_burn_in() {
    let (mut gpu, well) = (RepairCase::default(), GpuWatch::default());
    gpu.repair.hold("fan noise".to_owned());
    assert_eq!(gpu.step(&around(&well), 0), RepairStep::Quarantine);
    assert_eq!(
        gpu.step(&around(&well), 1),
        RepairStep::Nothing,
        "an administrator keeps it"
    );
    gpu.repair.release(at(2));
    assert_eq!(gpu.step(&around(&well), 3), RepairStep::BurnIn);
    gpu.repair.end(RepairOutcome::BurnInFailed, at(60));
    assert_eq!(
        gpu.step(&around(&well), 61),
        RepairStep::Nothing,
        "not so soon"
    );
    assert_eq!(gpu.step(&around(&well), 130), RepairStep::Reset);
}

#[test]
fn the_breaker_and_a_step_elsewhere_on_the_node_hold_it_back() {
    let (mut gpu, sick) = (RepairCase::default(), with_xids(&[79]));
    let stopped = RepairContext {
        breaker_allows: false,
        ..around(&sick)
    };
    assert_eq!(gpu.step(&stopped, 0), RepairStep::StoppedByBreaker);
    assert!(gpu.repair.in_service(), "said, not done");
    assert_eq!(gpu.step(&around(&sick), 1), RepairStep::Quarantine);
    assert_eq!(
        gpu.next(&around(&sick), 2),
        RepairStep::WaitForAdmin,
        "no boot by itself"
    );
    gpu.policy.max_boots = 1;
    let busy = RepairContext {
        node_empty: false,
        ..around(&sick)
    };
    assert_eq!(
        gpu.next(&busy, 2),
        RepairStep::Nothing,
        "the other seven work on"
    );
    let elsewhere = RepairContext {
        other_under_way: true,
        ..around(&sick)
    };
    assert_eq!(gpu.next(&elsewhere, 2), RepairStep::Nothing);
    assert_eq!(gpu.next(&around(&sick), 2), RepairStep::Boot);
}

#[test]
fn a_step_that_does_not_end_is_given_up() {
    let (mut gpu, sick) = (RepairCase::default(), with_xids(&[62]));
    gpu.step(&around(&sick), 0);
    assert_eq!(gpu.step(&around(&sick), 1), RepairStep::Reset);
    assert_eq!(gpu.step(&around(&sick), 3600), RepairStep::Nothing);
    assert_eq!(gpu.step(&around(&sick), 3601), RepairStep::GiveUp);
    assert_eq!(gpu.repair.stage, RepairStage::Out);
    gpu.repair.end(RepairOutcome::BurnInPassed, at(3602));
    assert_eq!(
        gpu.repair.stage,
        RepairStage::Out,
        "an answer that comes too late returns nothing to service"
    );
}

#[test]
fn a_reset_that_could_not_be_done_marks_no_board_for_replacement() {
    let sick = with_xids(&[48]);
    let after = |endings: [RepairOutcome; 2]| {
        let mut gpu = RepairCase::default();
        gpu.policy.first_pause_secs = 1;
        gpu.step(&around(&sick), 0);
        for (turn, ended) in endings.into_iter().enumerate() {
            assert_eq!(
                gpu.step(&around(&sick), 100 * (1 + turn as i64)),
                RepairStep::Reset
            );
            gpu.repair.end(ended, at(100 * (1 + turn as i64) + 1));
        }
        gpu.next(&around(&sick), 1000)
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
    let (mut gpu, sick) = (RepairCase::with_boots(), with_xids(&[79]));
    gpu.step(&around(&sick), 0);
    assert_eq!(gpu.step(&around(&sick), 1), RepairStep::Boot);
    gpu.repair.release(at(2));
    assert_eq!(
        gpu.step(&around(&GpuWatch::default()), 3),
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
        let (well, sick) = (GpuWatch::default(), with_xids(&[48]));
        let (mut gpu, mut now, mut is_sick) = (RepairCase::with_boots(), 0, false);
        for (falls_sick, held, breaker_allows, node_empty, ending, secs) in days {
            now += secs;
            is_sick |= falls_sick && gpu.repair.stage == RepairStage::InService;
            let watch = if is_sick { &sick } else { &well };
            let around = RepairContext { held, breaker_allows, node_empty, ..around(watch) };
            let before = gpu.repair.clone();
            let step = gpu.step(&around, now);
            prop_assert!(!(held && matches!(step, RepairStep::Reset | RepairStep::Boot | RepairStep::BurnIn)), "{step:?} under a job");
            prop_assert!(step != RepairStep::Boot || node_empty, "a boot under other jobs");
            prop_assert!(!(before.stage == RepairStage::InService && !is_sick && step != RepairStep::Nothing), "{step:?} of a healthy GPU");
            if ending > 0 {
                let endings = [RepairOutcome::Done, RepairOutcome::Done, RepairOutcome::Failed, RepairOutcome::BurnInPassed, RepairOutcome::BurnInFailed];
                let ended = endings[ending - 1];
                let under_way = gpu.repair.stage;
                gpu.repair.end(ended, at(now));
                if ended == RepairOutcome::Done && matches!(under_way, RepairStage::Resetting | RepairStage::Booting) {
                    is_sick = false;
                }
                let returned = under_way != RepairStage::InService && gpu.repair.stage == RepairStage::InService;
                prop_assert!(!returned || (under_way == RepairStage::BurningIn && ended == RepairOutcome::BurnInPassed));
            }
            let resets = gpu.repair.attempts.iter().filter(|(kind, at_)| *kind == RepairAttempt::Reset && at(now).since_secs(*at_) < 86_400);
            prop_assert!(resets.count() <= gpu.policy.max_resets as usize);
            prop_assert!(gpu.repair.attempts.len() < 200);
        }
    }
}
