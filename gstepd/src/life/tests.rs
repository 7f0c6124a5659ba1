//! The life of a run, fed with events at chosen times, and the properties that hold for any sequence of them.

use super::*;
use proptest::prelude::*;

const TERM: [LifeAction; 1] = [LifeAction::Terminate];
const KILL: [LifeAction; 1] = [LifeAction::Kill];
const RECORD: [LifeAction; 1] = [LifeAction::Record];

fn running(limit_secs: Option<u32>, warning: Option<SigSpec>) -> Life {
    let mut life = Life::new(Terms {
        limit_secs,
        kill_grace_secs: 30,
        warning,
        checkpoint_secs: None,
    });
    assert_eq!(life.go(at(0)), [LifeAction::Start]);
    life.started(at(0));
    assert_eq!(life.go(at(9)), [], "go again starts nothing");
    life
}

fn at(secs: u64) -> BootMillis {
    BootMillis(secs * 1000)
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
        [LifeAction::Checkpoint]
    );
    assert_eq!(life.stop(at(3), StopCause::Preempted, 10), [], "said again");
    assert_eq!(
        life.emptied(false),
        [],
        "only an end makes an empty cgroup the end"
    );
    assert_eq!(life.next_deadline(), Some(at(62)));
    assert!(life.marked(at(9), 2));
    assert!(!life.marked(BootMillis(9400), 3), "one is enough");
    assert_eq!(
        life.next_deadline(),
        Some(BootMillis(9500)),
        "it may leave by itself"
    );
    assert_eq!(life.tick(BootMillis(9500)), TERM);
    assert_eq!(
        life.next_deadline(),
        Some(BootMillis(19_500)),
        "the grace of the order"
    );
    assert_eq!(life.tick(BootMillis(19_500)), KILL);
    assert_eq!(
        life.end(0).2,
        "preempted; asked for a checkpoint, ended after checkpoint mark 2"
    );
    assert!(life.was_answered());
    for why in [StopCause::Drained, StopCause::Requeued] {
        let mut life = with_checkpoint(None, None);
        assert_eq!(life.stop(at(2), why, 10), [LifeAction::Checkpoint]);
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
    assert_eq!(life.tick(at(540)), [LifeAction::Checkpoint]);
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
    assert!(matches!(life.tick(at(500))[..], [LifeAction::Warn { .. }]));
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
        [LifeAction::Warn {
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
        [LifeAction::Warn {
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
        [LifeAction::Signal {
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
    assert_eq!(life.tick(at(30)), [LifeAction::Freeze]);
    assert_eq!((life.tick(at(500)), life.next_deadline()), (vec![], None));
    life.set_suspended(true);
    assert_eq!(life.tick(at(600)), [], "it is said once");
    life.set_suspended(false);
    assert_eq!(life.tick(at(1030)), [LifeAction::Thaw]);
    assert_eq!(
        life.next_deadline(),
        Some(at(1080)),
        "30 s had passed of 100"
    );
    assert_eq!(
        life.tick(at(1080)),
        [LifeAction::Warn {
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
        [LifeAction::Thaw, LifeAction::Checkpoint]
    );
    assert_eq!(life.tick(at(101)), []);
    let mut life = Life::new(Terms::default());
    life.set_suspended(true);
    life.go(at(1));
    assert_eq!(life.tick(at(2)), [], "there is nothing to freeze yet");
    life.started(at(3));
    assert_eq!(life.tick(at(3)), [LifeAction::Freeze]);
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
        assert_eq!(life.tick(at(540)), [LifeAction::Checkpoint]);
        assert!(life.marked(at(541), 1));
        life.set_suspended(true);
        assert_eq!(life.tick(BootMillis(541_200)), [LifeAction::Freeze]);
        assert_eq!(
            (life.tick(at(900)), life.next_deadline()),
            (vec![], None),
            "it stands still, and so does its time"
        );
        life.set_suspended(false);
        life
    };
    let mut life = near();
    assert_eq!(life.tick(at(1000)), [LifeAction::Thaw]);
    assert_eq!(
        life.next_deadline(),
        Some(BootMillis(1_000_300)),
        "what was left of the half second"
    );
    assert_eq!(life.tick(BootMillis(1_000_300)), TERM);
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
    assert_eq!(life.tick(at(1000)), [LifeAction::Thaw]);
    assert_eq!(life.next_deadline(), Some(BootMillis(1_000_500)));
    let mut life = near();
    life.set_limit(Some(900), at(950));
    assert_eq!(life.tick(at(1000)), [LifeAction::Thaw]);
    assert_eq!(
        life.next_deadline(),
        Some(BootMillis(1_298_800)),
        "asked again a minute before the new one"
    );
    assert_eq!(
        near().stop(at(1000), StopCause::Cancelled, 10),
        [LifeAction::Thaw, LifeAction::Terminate]
    );
}

#[derive(Clone, Debug)]
enum LifeInput {
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

fn happening() -> impl Strategy<Value = LifeInput> {
    prop_oneof![
        any::<bool>().prop_map(LifeInput::Suspend),
        Just(LifeInput::Go),
        Just(LifeInput::Started),
        Just(LifeInput::LaunchFailed),
        (0u32..100).prop_map(LifeInput::Stop),
        (0u32..100).prop_map(LifeInput::Preempt),
        Just(LifeInput::Marked),
        proptest::option::of(0u32..200).prop_map(LifeInput::Limit),
        Just(LifeInput::MainEnded),
        Just(LifeInput::Emptied),
        (0u64..60_000).prop_map(LifeInput::Pass),
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
        let (mut now, mut all) = (BootMillis(1), Vec::new());
        for happening in happenings {
            all.extend(match happening {
                LifeInput::Suspend(suspended) => { life.set_suspended(suspended); Vec::new() }
                LifeInput::Go => life.go(now),
                LifeInput::Started => { life.started(now); Vec::new() }
                LifeInput::LaunchFailed => life.launch_failed(now, EndCause::LaunchUser, String::new()),
                LifeInput::Stop(grace_secs) => life.stop(now, StopCause::Cancelled, grace_secs),
                LifeInput::Preempt(grace_secs) => life.stop(now, StopCause::Preempted, grace_secs),
                LifeInput::Marked => { life.marked(now, 1); Vec::new() }
                LifeInput::Limit(limit_secs) => { life.set_limit(limit_secs, now); Vec::new() }
                LifeInput::MainEnded => life.main_ended(now, ExitCode::SUCCESS),
                LifeInput::Emptied => life.emptied(false),
                LifeInput::Pass(millis) => { now = BootMillis(now.0 + millis); Vec::new() }
            });
            all.extend(life.tick(now));
            prop_assert!(life.next_deadline().is_none_or(|at| at > now), "{life:?} at {now:?}");
        }
        let count = |act: &LifeAction| all.iter().filter(|other| *other == act).count();
        prop_assert!(count(&LifeAction::Start) <= 1 && count(&LifeAction::Terminate) <= 1 && count(&LifeAction::Record) <= 1, "{all:?}");
        // Asked, then terminated: never the other way round.
        let last = |act: &LifeAction| all.iter().rposition(|other| other == act);
        prop_assert!(last(&LifeAction::Terminate).is_none_or(|term| last(&LifeAction::Checkpoint).is_none_or(|asked| asked < term)), "{all:?}");
        prop_assert!(asks || count(&LifeAction::Checkpoint) == 0);
        let turns: Vec<&LifeAction> = all.iter().filter(|act| matches!(act, LifeAction::Freeze | LifeAction::Thaw)).collect();
        let first = |from: usize, act: &LifeAction| all[from..].iter().position(|other| other == act).map_or(all.len(), |at| from + at);
        let frozen = (0..all.len()).filter(|at| all[*at] == LifeAction::Freeze).map(|at| at..first(at, &LifeAction::Thaw));
        prop_assert!(frozen.into_iter().all(|still| !all[still].contains(&LifeAction::Terminate)), "ended while it stands still: {all:?}");
        prop_assert!(turns.chunks(2).all(|two| *two[0] == LifeAction::Freeze && two.get(1).is_none_or(|act| **act == LifeAction::Thaw)), "{all:?}");
        if life.is_recorded() {
            prop_assert_eq!(all.last(), Some(&LifeAction::Record));
        }
    }
}
