//! Signals and warnings: which processes of a job they reach.

use crate::bench::Bench;
use gmodel::ExitCode;
use gmodel::run::{EndCause, NumberedSignal};
use gmodel::signal::SigSpec;
use gmodel::supervise::SupervisorCommand;

#[test]
fn the_warning_reaches_the_shell_when_it_is_asked_for() {
    let Some(mut bench) = Bench::isolated(
        "trap 'echo warned; exit 5' USR1; touch ready; while :; do sleep 0.05; done",
    ) else {
        return;
    };
    bench.order.limit_secs = Some(600);
    bench.order.signal = Some(SigSpec {
        signal: 10,
        batch_only: true,
        lead_secs: 60,
    });
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    link.send(&SupervisorCommand::Limit {
        limit_secs: Some(61),
    });
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::exited(5))
    );
    assert_eq!(bench.file("out"), "warned\n");
}

#[test]
fn a_warning_spares_the_shell_and_reaches_what_it_started() {
    let script = "sh -c 'trap \"echo child warned; exit\" USR1; touch ready; while :; do :; done'; echo shell lives";
    let Some(mut bench) = Bench::isolated(script) else {
        return;
    };
    bench.order.limit_secs = Some(600);
    bench.order.signal = Some(SigSpec {
        signal: 10,
        batch_only: false,
        lead_secs: 60,
    });
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    link.send(&SupervisorCommand::Limit {
        limit_secs: Some(61),
    });
    assert_eq!(link.end().exit, ExitCode::SUCCESS);
    assert_eq!(bench.file("out"), "child warned\nshell lives\n");
}

#[test]
fn a_signal_goes_to_the_shell_or_to_what_it_started_and_only_once() {
    let child = "sh -c 'trap \"echo child; exit\" USR2; touch ready; while :; do :; done' &";
    let Some(mut bench) = Bench::isolated(&format!(
        "trap 'echo shell' USR1; {child} wait; wait; exit 6"
    )) else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    let signal = |number, signal, batch_only| SupervisorCommand::Signal {
        signal: NumberedSignal {
            number,
            signal,
            batch_only,
            full: false,
        },
    };
    link.send(&signal(2, 10, true));
    bench.file_when("out", |text| text == "shell\n");
    link.send(&signal(2, 9, false));
    link.send(&signal(1, 9, false));
    // The shell has no trap for it, and lives.
    link.send(&signal(3, 12, false));
    assert_eq!(
        link.end().exit,
        ExitCode::exited(6),
        "an older number and the same number are passed over"
    );
    assert_eq!(bench.file("out"), "shell\nchild\n");
}

#[test]
fn a_full_signal_reaches_the_shell_and_what_it_started() {
    let child = "sh -c 'trap \"echo child; exit\" USR2; : >ready; while :; do :; done' &";
    let Some(mut bench) = Bench::isolated(&format!(
        "trap 'echo shell' USR2; {child} wait; wait; exit 6"
    )) else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    link.send(&SupervisorCommand::Signal {
        signal: NumberedSignal {
            number: 1,
            signal: 12,
            batch_only: false,
            full: true,
        },
    });
    assert_eq!(link.end().exit, ExitCode::exited(6));
    let out = bench.file("out");
    let mut said: Vec<&str> = out.lines().collect();
    said.sort_unstable();
    assert_eq!(said, ["child", "shell"]);
}

#[test]
fn a_signal_reaches_a_shell_without_children_and_sigkill_reaches_all() {
    let Some(mut bench) =
        Bench::isolated("trap 'echo alone; exit 4' USR2; touch ready; while :; do :; done")
    else {
        return;
    };
    let signal = |signal| SupervisorCommand::Signal {
        signal: NumberedSignal {
            number: 1,
            signal,
            batch_only: false,
            full: false,
        },
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    link.send(&signal(12));
    assert_eq!(link.end().exit, ExitCode::exited(4));
    assert_eq!(bench.file("out"), "alone\n");

    let Some(mut bench) = Bench::isolated("sleep 600 & touch ready; wait; exit 5") else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    link.send(&signal(9));
    assert_eq!(link.end().exit, ExitCode::killed(9));
}

#[test]
fn a_program_without_a_script_gets_the_signal_itself() {
    let Some(mut bench) = Bench::isolated("") else {
        return;
    };
    bench.order.script.clear();
    let program = "trap 'echo heard; exit 7' USR2; sleep 600 & touch ready; wait";
    bench.order.argv = vec!["sh".into(), "-c".into(), program.into()];
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    link.send(&SupervisorCommand::Signal {
        signal: NumberedSignal {
            number: 1,
            signal: 12,
            batch_only: false,
            full: false,
        },
    });
    assert_eq!(link.end().exit, ExitCode::exited(7));
    assert!(bench.file("out").contains("heard"));
}

#[test]
fn the_job_hears_the_signals_its_supervisor_is_deaf_to() {
    let Some(mut bench) = Bench::isolated("grep -E 'Sig(Blk|Ign)' /proc/self/status") else {
        return;
    };
    bench.run_to_end();
    for line in bench.file("out").lines() {
        let mask = line.split_whitespace().nth(1).unwrap();
        assert_eq!(u64::from_str_radix(mask, 16).unwrap(), 0, "{line}");
    }
}
