//! Tasks of a step inside a running job, seen from grun.

use std::fs;

use gmodel::ExitCode;
use gmodel::run::EndCause;
use gmodel::supervise::{StepOrder, StepOutput, SupervisorCommand};

use super::bench::{Bench, Link, UID, exists, is_alive, pid_in, wait_for};
use super::grun::{Grun, StepOutcome};

/// A job that only waits, with a step in it.
fn job_with_step(order: impl FnOnce(&Grun) -> StepOrder) -> Option<(Bench, Link, Grun)> {
    let mut bench = Bench::isolated("exec sleep 600")?;
    let mut link = bench.start_and_go();
    let grun = Grun::listen();
    link.send(&SupervisorCommand::Step {
        step: Box::new(order(&grun)),
    });
    Some((bench, link, grun))
}

#[test]
fn tasks_run_in_the_job_as_its_user_and_know_their_place() {
    let script = "echo $SLURM_PROCID/$GSUB_NTASKS $SLURM_STEP_ID $SLURM_JOB_ID $((SLURM_TASK_PID - $$)); id -u >&2; grep -c /run_7-1/job /proc/self/cgroup; exit $SLURM_LOCALID";
    let Some((_bench, _link, grun)) = job_with_step(|grun| grun.order(4, 3, script)) else {
        return;
    };
    let all: StepOutcome = grun.accept().collect();
    for rank in 0..3 {
        let lines: Vec<&str> = all.stdout[&rank].lines().collect();
        assert_eq!(lines[0], format!("{rank}/3 4 7 0"));
        assert!(
            lines[1].parse::<u32>().unwrap() > 0,
            "outside the job's cgroup: {all:?}"
        );
        assert_eq!(all.stderr[&rank], format!("{UID}\n"));
        assert_eq!(
            all.ended[&rank],
            (ExitCode::exited(rank as u8), String::new())
        );
    }
}

#[test]
fn much_output_arrives_whole_however_slow_grun_reads() {
    let Some((bench, _link, grun)) =
        job_with_step(|grun| grun.order(0, 1, "echo $$ > pid; exec seq 1 2000000"))
    else {
        return;
    };
    let connection = grun.accept();
    let pid = pid_in(&bench.file_when("pid", |text| text.ends_with('\n')));
    // It sleeps when its pipe is full, and that is when gstepd has as much as it takes on.
    wait_for("a task that has to wait", || {
        let wchan = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        wchan.contains("(seq) S ").then_some(())
    });
    let all = connection.collect();
    let want: String = (1..=2_000_000).map(|n| format!("{n}\n")).collect();
    assert!(
        all.stdout[&0] == want,
        "{} bytes of {}",
        all.stdout[&0].len(),
        want.len()
    );
    let status = fs::read_to_string(format!("/proc/{}/status", bench.gstepd_pid())).unwrap();
    let peak = status.lines().find_map(|line| {
        line.strip_prefix("VmHWM:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
    });
    assert!(
        peak.unwrap() < 16 << 10,
        "gstepd grew to {peak:?} KiB over {} KiB of output",
        want.len() >> 10
    );
}

#[test]
fn a_repeated_order_starts_no_second_step() {
    let Some((bench, mut link, grun)) = job_with_step(|grun| grun.order(0, 1, "echo once >> runs"))
    else {
        return;
    };
    link.send(&SupervisorCommand::Step {
        step: Box::new(grun.order(0, 1, "echo twice >> runs")),
    });
    assert_eq!(grun.accept().collect().ended[&0].0, ExitCode::SUCCESS);
    link.send(&SupervisorCommand::Step {
        step: Box::new(grun.order(1, 1, "echo next >> runs")),
    });
    assert_eq!(grun.accept().collect().ended[&0].0, ExitCode::SUCCESS);
    assert_eq!(bench.file("runs"), "once\nnext\n");
}

#[test]
fn a_task_that_cannot_start_says_why() {
    let Some((_bench, mut link, grun)) = job_with_step(|grun| StepOrder {
        argv: vec!["no-such-program".into()],
        ..grun.order(0, 1, "")
    }) else {
        return;
    };
    let all = grun.accept().collect();
    let (exit, text) = &all.ended[&0];
    assert!(
        *exit == ExitCode::exited(127) && text.contains("no-such-program: not found in PATH"),
        "{all:?}"
    );
    link.send(&SupervisorCommand::Step {
        step: Box::new(StepOrder {
            work_dir: "/nonexistent".into(),
            ..grun.order(1, 1, "")
        }),
    });
    assert!(grun.accept().collect().ended[&0].1.contains("/nonexistent"));
}

#[test]
fn a_signal_from_grun_reaches_the_tasks_and_not_the_job() {
    let Some((bench, mut link, grun)) =
        job_with_step(|grun| grun.order(0, 2, "sleep 600 & echo ready; wait"))
    else {
        return;
    };
    let mut connection = grun.accept();
    let mut ready = 0;
    while ready < 2 {
        ready += u32::from(matches!(connection.next(), Some(StepOutput::Output { .. })));
    }
    connection.signal(15);
    let all = connection.collect();
    assert_eq!(
        (all.ended[&0].0, all.ended[&1].0),
        (ExitCode::killed(15), ExitCode::killed(15))
    );
    assert!(
        !exists(&bench.run_dir().join("exit.json")),
        "the job goes on"
    );
    link.stop(30);
    assert_eq!(link.end().cause, EndCause::Stopped);
}

#[test]
fn tasks_and_what_they_left_end_with_their_grun() {
    let Some((bench, _link, grun)) =
        job_with_step(|grun| grun.order(0, 1, "sleep 600 & echo $! > child; wait"))
    else {
        return;
    };
    let connection = grun.accept();
    let child = pid_in(&bench.file_when("child", |text| text.ends_with('\n')));
    drop(connection);
    wait_for("the end of the task's child", || {
        (!is_alive(child)).then_some(())
    });
    assert!(
        !exists(&bench.run_dir().join("exit.json")),
        "the job goes on"
    );
}

#[test]
fn tasks_end_with_the_job_and_grun_is_told() {
    let Some((_bench, mut link, grun)) =
        job_with_step(|grun| grun.order(0, 1, "echo up; exec sleep 600"))
    else {
        return;
    };
    let mut connection = grun.accept();
    while !matches!(connection.next(), Some(StepOutput::Output { .. })) {}
    link.stop(30);
    assert_eq!(connection.collect().ended[&0].0, ExitCode::killed(15));
    assert_eq!(link.end().cause, EndCause::Stopped);
}

#[test]
fn a_step_before_the_go_waits_for_it() {
    let Some(mut bench) = Bench::isolated("exec sleep 600") else {
        return;
    };
    let mut link = bench.start();
    let grun = Grun::listen();
    link.send(&SupervisorCommand::Step {
        step: Box::new(grun.order(0, 1, "echo then")),
    });
    link.send(&SupervisorCommand::Go);
    let all = grun.accept().collect();
    assert_eq!(all.ended[&0].0, ExitCode::SUCCESS, "{all:?}");
    assert_eq!(all.stdout[&0], "then\n");
}

#[test]
fn a_step_of_a_job_that_is_stopped_before_its_go_is_refused() {
    let Some(mut bench) = Bench::isolated("exec sleep 600") else {
        return;
    };
    let mut link = bench.start();
    let grun = Grun::listen();
    link.send(&SupervisorCommand::Step {
        step: Box::new(grun.order(0, 1, "true")),
    });
    link.send(&SupervisorCommand::Stop {
        why: gmodel::run::StopCause::Cancelled,
        grace_secs: 0,
    });
    let all = grun.accept().collect();
    assert!(
        all.refused
            .as_deref()
            .is_some_and(|text| text.contains("not running")),
        "{all:?}"
    );
}

#[test]
fn a_grun_that_cannot_be_reached_costs_nothing() {
    let Some((bench, mut link, _grun)) = job_with_step(|grun| StepOrder {
        connect: "127.0.0.1:1".into(),
        ..grun.order(0, 1, "touch started")
    }) else {
        return;
    };
    link.send(&SupervisorCommand::Step {
        step: Box::new(StepOrder {
            step: 1,
            connect: "login:99".into(),
            ..StepOrder::default()
        }),
    });
    wait_for("a line in the log", || {
        let log = fs::read_to_string(bench.run_dir().join("log")).unwrap();
        log.contains("\"login:99\" is no numeric ADDRESS:PORT")
            .then_some(())
    });
    link.stop(0);
    assert_eq!(link.end().cause, EndCause::Stopped);
    assert!(!exists(&bench.work.join("started")));
}

#[test]
fn steps_run_on_a_node_that_only_holds_its_share() {
    let Some(mut bench) = Bench::isolated("exit 1") else {
        return;
    };
    bench.order.node_index = 1;
    let mut link = bench.start_and_go();
    let grun = Grun::listen();
    link.send(&SupervisorCommand::Step {
        step: Box::new(StepOrder {
            ranks: vec![5],
            ..grun.order(0, 6, "echo $GSUB_PROCID")
        }),
    });
    assert_eq!(grun.accept().collect().stdout[&5], "5\n");
    link.stop(30);
    assert_eq!(link.end().cause, EndCause::Stopped);
}

#[test]
fn an_allocation_runs_steps_and_nothing_else_until_it_is_stopped() {
    let Some(mut bench) = Bench::isolated("touch started") else {
        return;
    };
    bench.order.allocation = true;
    let mut link = bench.start_and_go();
    let grun = Grun::listen();
    link.send(&SupervisorCommand::Step {
        step: Box::new(grun.order(0, 1, "echo $GSUB_PROCID; exit 3")),
    });
    assert_eq!(grun.accept().collect().stdout[&0], "0\n");
    link.stop(30);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Stopped, ExitCode::SUCCESS)
    );
    assert!(!exists(&bench.work.join("started")));
}

#[test]
fn an_idle_supervisor_sleeps() {
    let script = "echo up; exec sleep 600";
    let Some((bench, _link, grun)) = job_with_step(|grun| grun.order(0, 1, script)) else {
        return;
    };
    let mut connection = grun.accept();
    while !matches!(connection.next(), Some(StepOutput::Output { .. })) {}
    let wakings = || -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", bench.gstepd_pid())).unwrap();
        let counts = status
            .lines()
            .filter_map(|line| line.split_once("ctxt_switches:"));
        counts
            .map(|(_, count)| count.trim().parse::<u64>().unwrap())
            .sum()
    };
    // A loop that does not sleep wakes thousands of times in half a second.
    let before = wakings();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let woken = wakings() - before;
    assert!(woken < 10, "woken {woken} times with nothing to do");
}

#[test]
fn tasks_read_what_grun_sends_and_one_that_does_not_read_holds_up_only_the_input() {
    let script = "case $SLURM_PROCID in 0) trap '' USR1; echo up >&2; exec wc -c;; esac; trap 'exit 3' USR1; echo up >&2; while :; do sleep 0.05; done";
    let Some((_bench, _link, grun)) = job_with_step(|grun| grun.order(0, 2, script)) else {
        return;
    };
    let mut connection = grun.accept();
    let piece = vec![b'x'; 64 << 10];
    // As much as may be under way: four pieces.
    (0..4).for_each(|_| connection.input(None, &piece));
    let (mut taken, mut up, mut exits) = (0, 0, Vec::new());
    while taken < 4 * piece.len() || exits.is_empty() {
        match connection.next().expect("the first task still reads") {
            StepOutput::Taken { bytes } => taken += bytes as usize,
            // It holds a pipe's fill of it; when it is gone, all is taken.
            StepOutput::Output { .. } => {
                up += 1;
                assert!(taken < 4 * piece.len());
                // The other has to hear it only when it does not mind.
                if up == 2 {
                    connection.signal(10);
                }
            }
            StepOutput::Ended { rank, exit, .. } => exits.push((rank, exit)),
            _ => {}
        }
    }
    assert_eq!(exits, [(1, ExitCode::exited(3))]);
    connection.input(None, b"");
    let all = connection.collect();
    assert_eq!(all.stdout[&0], format!("{}\n", 4 * piece.len()));
    assert_eq!(all.ended[&0].0, ExitCode::SUCCESS);
}

#[test]
fn a_task_that_is_not_meant_is_at_the_end_of_its_input() {
    let Some((_bench, _link, grun)) = job_with_step(|grun| grun.order(0, 2, "cat; echo end"))
    else {
        return;
    };
    let mut connection = grun.accept();
    connection.input(Some(1), b"a line\n");
    connection.input(Some(1), b"");
    let all = connection.collect();
    assert_eq!(
        (all.stdout[&0].as_str(), all.stdout[&1].as_str()),
        ("end\n", "a line\nend\n")
    );
}

#[test]
fn a_grun_that_sends_more_than_it_may_is_cut_off_with_its_tasks() {
    let Some((_bench, _link, grun)) =
        job_with_step(|grun| grun.order(0, 1, "echo up; exec sleep 600"))
    else {
        return;
    };
    let mut connection = grun.accept();
    while !matches!(connection.next(), Some(StepOutput::Output { .. })) {}
    let piece = vec![b'x'; 200 << 10];
    connection.input(None, &piece);
    // The connection may be reset while this is written.
    connection.try_input(None, &piece);
    connection.read_to_the_end();
}
