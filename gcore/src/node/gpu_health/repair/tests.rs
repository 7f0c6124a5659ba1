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
    let (policy, mut repair, sick) = (RepairPolicy::default(), Repair::default(), with_xids(&[48]));
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
    let (policy, mut repair, sick) = (RepairPolicy::default(), Repair::default(), with_xids(&[94]));
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
    let (policy, mut repair, sick) = (RepairPolicy::default(), Repair::default(), with_xids(&[79]));
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
    let (policy, mut repair, sick) = (RepairPolicy::default(), Repair::default(), with_xids(&[62]));
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
