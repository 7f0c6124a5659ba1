//! The ends of a run: stop, grace, time limit, what is killed.

use std::fs;
use std::time::{Duration, Instant};

use crate::bench::{Bench, UID, exists, is_alive, pid_in, wait_for};
use gmodel::ExitCode;
use gmodel::run::EndCause;
use gmodel::supervise::SupervisorCommand;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn an_orphan_in_a_session_of_its_own_is_gone_with_the_job() {
    let Some(mut bench) = Bench::isolated(
        "setsid sh -c 'echo $$ > orphan; exec sleep 600' & while [ ! -s orphan ]; do sleep 0.01; done",
    ) else {
        return;
    };
    let end = bench.run_to_end();
    assert_eq!((end.cause, end.exit), (EndCause::Exited, ExitCode::SUCCESS));
    assert!(!is_alive(pid_in(&bench.file("orphan"))));
    assert!(bench.cgroup.as_ref().unwrap().is_empty().unwrap());
}

#[test]
fn a_job_deaf_to_sigterm_is_killed_after_the_grace() {
    let Some(mut bench) = Bench::isolated("trap '' TERM; touch deaf; while :; do sleep 600; done")
    else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("deaf", |_| true);
    let asked = Instant::now();
    link.stop(1);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Stopped, ExitCode::killed(9))
    );
    assert_eq!(end.text, "cancelled");
    assert!(
        asked.elapsed() >= Duration::from_secs(1),
        "the grace was kept"
    );
}

#[test]
fn a_child_may_finish_its_work_after_the_shell_has_died_of_the_term() {
    let Some(mut bench) = Bench::isolated(
        "sh -c 'trap \"echo saved > saved; exit\" TERM; touch trapped; while :; do sleep 0.05; done' & wait",
    ) else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("trapped", |_| true);
    link.stop(15);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Stopped, ExitCode::killed(15))
    );
    assert_eq!(bench.file("saved"), "saved\n");
}

#[test]
fn a_second_stop_shortens_the_grace() {
    let Some(mut bench) = Bench::isolated("trap '' TERM; touch deaf; while :; do sleep 600; done")
    else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("deaf", |_| true);
    link.stop(3600);
    link.stop(0);
    assert_eq!(link.end().cause, EndCause::Stopped);
}

#[test]
fn a_job_that_stopped_itself_can_be_ended() {
    let Some(mut bench) = Bench::isolated("echo $$ > pid; kill -STOP $$; exit 7") else {
        return;
    };
    let mut link = bench.start_and_go();
    let pid = pid_in(&bench.file_when("pid", |text| text.ends_with('\n')));
    wait_for("a stopped process", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(") T ").then_some(())
    });
    link.stop(15);
    assert_eq!(
        link.end().exit,
        ExitCode::killed(15),
        "it was woken to hear the SIGTERM"
    );
}

#[test]
fn a_frozen_job_can_be_ended() {
    let Some(mut bench) = Bench::isolated("exec sleep 600") else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.cgroup.as_ref().unwrap().freeze(true).unwrap();
    link.stop(15);
    assert_eq!(link.end().cause, EndCause::Stopped);
}

#[test]
fn the_time_limit_ends_the_job_without_anyone_else() {
    let Some(mut bench) = Bench::isolated("exec sleep 600") else {
        return;
    };
    bench.order.limit_secs = Some(1);
    drop(bench.start_and_go());
    wait_for("exit.json", || {
        exists(&bench.run_dir().join("exit.json")).then_some(())
    });
    let end = bench.record();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::TimeLimit, ExitCode::killed(15))
    );
    assert_eq!(end.text, "the time limit of 1 s was reached");
}

#[test]
fn a_new_limit_holds_at_once() {
    let Some(mut bench) = Bench::isolated("exec sleep 600") else {
        return;
    };
    bench.order.limit_secs = Some(3600);
    let mut link = bench.start_and_go();
    link.send(&SupervisorCommand::Limit {
        limit_secs: Some(0),
    });
    assert_eq!(link.end().cause, EndCause::TimeLimit);
}

#[test]
fn only_an_order_ends_a_job() {
    let Some(mut bench) = Bench::isolated("while [ ! -e go-on ]; do sleep 0.01; done; exit 2")
    else {
        return;
    };
    let mut link = bench.start_and_go();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGPIPE,
    ] {
        kill(Pid::from_raw(bench.gstepd_pid()), signal).unwrap();
    }
    fs::write(bench.work.join("go-on"), "").unwrap();
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::exited(2))
    );
}

#[test]
fn a_stop_before_go_starts_nothing() {
    let Some(mut bench) = Bench::isolated("touch started") else {
        return;
    };
    let mut link = bench.start();
    link.stop(30);
    link.send(&SupervisorCommand::Go);
    let end = link.end();
    assert_eq!((end.cause, end.started), (EndCause::Stopped, None));
    assert!(!exists(&bench.work.join("started")));
}

#[test]
fn a_stop_reaches_a_start_that_hangs() {
    let Some(mut bench) = Bench::isolated("true") else {
        return;
    };
    // Opening a pipe without a reader blocks in the child, as a dead file server would.
    nix::unistd::mkfifo(
        &bench.work.join("out"),
        nix::sys::stat::Mode::from_bits_truncate(0o666),
    )
    .unwrap();
    std::os::unix::fs::chown(bench.work.join("out"), Some(UID), Some(UID)).unwrap();
    let mut link = bench.start();
    link.send(&SupervisorCommand::Go);
    wait_for("the child in the cgroup", || {
        (!bench.cgroup.as_ref()?.is_empty().unwrap()).then_some(())
    });
    link.stop(30);
    let end = link.end();
    assert_eq!((end.cause, end.started), (EndCause::Stopped, None));
}

#[test]
fn the_limit_of_a_start_that_hangs_costs_no_grace() {
    let Some(mut bench) = Bench::isolated("touch started") else {
        return;
    };
    nix::unistd::mkfifo(
        &bench.work.join("in"),
        nix::sys::stat::Mode::from_bits_truncate(0o666),
    )
    .unwrap();
    bench.order.stdin = "in".into();
    (bench.order.limit_secs, bench.order.kill_grace_secs) = (Some(1), 3600);
    let mut link = bench.start();
    link.send(&SupervisorCommand::Go);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit, end.started),
        (EndCause::TimeLimit, ExitCode::killed(9), None)
    );
    assert!(end.text.contains("did not open"), "{}", end.text);
    assert!(!exists(&bench.work.join("started")));
}

#[test]
fn without_isolation_a_job_and_its_orphans_are_ended_and_measured_too() {
    let mut bench = Bench::bare(
        "setsid sh -c 'echo $$ > orphan; exec sleep 600' & while [ ! -s orphan ]; do :; done; exit 3",
    );
    let end = bench.run_to_end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::exited(3))
    );
    assert!(!is_alive(pid_in(&bench.file("orphan"))));
    assert!(
        end.usage.peak_memory_bytes > 0
            && end.usage.cpu_user_micros + end.usage.cpu_system_micros > 0,
        "{:?}",
        end.usage
    );
}

#[test]
fn without_isolation_a_deaf_job_is_killed_after_the_grace() {
    let mut bench =
        Bench::bare("trap '' TERM; setsid sleep 600 & touch deaf; while :; do sleep 600; done");
    let mut link = bench.start_and_go();
    bench.file_when("deaf", |_| true);
    link.stop(1);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Stopped, ExitCode::killed(9))
    );
}
