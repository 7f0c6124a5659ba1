//! Checkpoint marks and the wait for one: what comes over the job's socket, and when a job that must go is terminated.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use gmodel::ExitCode;
use gmodel::checkpoint::CheckpointMark;
use gmodel::run::{EndCause, StopCause};
use gmodel::supervise::{SupervisorCommand, SupervisorReport};

use super::bench::{Bench, Link, UID, exists, is_alive, wait_for};

/// Deaf to SIGTERM, so that only its own will or the kill ends it; says when it hears the checkpoint signal.
const WORKER: &str = "trap 'echo asked >> asked' USR1; trap 'echo term >> term; exit 9' TERM; echo $GSUB_MARK_SOCKET > ready; \
                      while :; do sleep 0.02; done";

fn worker(grace: &str) -> Option<Bench> {
    let mut bench = Bench::isolated(WORKER)?;
    bench.order.checkpoint = Some(grace.parse().unwrap());
    Some(bench)
}

fn preempt(link: &mut Link) {
    link.send(&SupervisorCommand::Stop {
        why: StopCause::Preempted,
        grace_secs: 20,
    });
}

/// What the socket answers to a line.
fn mark(bench: &Bench, line: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket(bench)).unwrap();
    // A refused client may find the connection closed while it writes.
    let _ = stream.write_all(line);
    let mut answer = String::new();
    let _ = BufReader::new(stream).read_line(&mut answer);
    answer
}

fn socket(bench: &Bench) -> std::path::PathBuf {
    bench.script().with_extension("sock")
}

fn on_disk(bench: &Bench) -> Option<CheckpointMark> {
    Some(serde_json::from_slice(&fs::read(bench.run_dir().join("mark.json")).ok()?).unwrap())
}

fn next_mark(link: &mut Link) -> CheckpointMark {
    loop {
        if let SupervisorReport::Mark { mark } = link.next() {
            return mark;
        }
    }
}

#[test]
fn a_mark_is_numbered_written_and_told_before_it_is_acknowledged() {
    let Some(mut bench) = worker("USR1@60") else {
        return;
    };
    let mut link = bench.start_and_go();
    assert_eq!(
        bench.file_when("ready", |text| text.ends_with('\n')).trim(),
        socket(&bench).to_str().unwrap()
    );
    let meta = fs::symlink_metadata(socket(&bench)).unwrap();
    assert_eq!(
        (meta.uid(), meta.permissions().mode() & 0o777),
        (UID, 0o600)
    );
    assert_eq!(mark(&bench, b"epoch 1\n"), "ok 1\n");
    let first = on_disk(&bench).expect("durable");
    assert_eq!((first.number, first.note.as_str()), (1, "epoch 1"));
    assert_eq!(next_mark(&mut link), first);
    // The next one, as soon as a second is over, on one connection; the line may end with the stream.
    let second = wait_for("the second mark", || {
        mark(&bench, b"\n").strip_prefix("ok ").map(str::to_owned)
    });
    assert_eq!(second, "2\n");
    assert_eq!(
        bench.connect_and_skip_state(),
        SupervisorReport::Mark {
            mark: on_disk(&bench).unwrap()
        }
    );
    assert!(
        !exists(&bench.work.join("asked")),
        "marks come without being asked for"
    );
    link.stop(0);
    link.end();
    assert!(!exists(&socket(&bench)), "the socket goes with the run");
}

#[test]
fn a_mark_after_the_signal_ends_the_wait_and_one_before_it_does_not() {
    let Some(mut bench) = worker("USR1@3600") else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    assert_eq!(mark(&bench, b"before\n"), "ok 1\n");
    preempt(&mut link);
    bench.file_when("asked", |_| true);
    // The order again, as a gpud says it that was restarted, changes nothing.
    drop(link);
    let mut link = bench.connect();
    preempt(&mut link);
    let number = wait_for("a mark that is taken", || {
        mark(&bench, b"saved\n")
            .strip_prefix("ok ")
            .map(str::to_owned)
    });
    assert_eq!(number, "2\n");
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Stopped, ExitCode::exited(9)),
        "{}",
        end.text
    );
    assert_eq!(
        end.text,
        "preempted; asked for a checkpoint, ended after checkpoint mark 2"
    );
    assert_eq!(
        (bench.file("asked"), bench.file("term")),
        ("asked\n".into(), "term\n".into()),
        "each once, in order"
    );
    assert_eq!(
        on_disk(&bench).unwrap().note,
        "saved",
        "gpud finds it after the end"
    );
}

#[test]
fn the_end_of_the_grace_ends_the_wait_of_a_job_that_ignores_the_signal() {
    let Some(mut bench) = Bench::isolated("trap '' USR1; touch ready; exec sleep 600") else {
        return;
    };
    bench.order.checkpoint = Some("USR1@1".parse().unwrap());
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    let asked = Instant::now();
    link.send(&SupervisorCommand::Stop {
        why: StopCause::Drained,
        grace_secs: 20,
    });
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Stopped, ExitCode::killed(15))
    );
    assert!(asked.elapsed() >= Duration::from_secs(1), "it had its time");
    assert!(
        end.text.ends_with("ended after the end of its time"),
        "{}",
        end.text
    );
}

#[test]
fn a_job_that_saves_and_leaves_by_itself_is_not_waited_for() {
    let Some(mut bench) = Bench::isolated(
        "trap 'echo saved > saved; exit 3' USR1; touch ready; while :; do sleep 0.02; done",
    ) else {
        return;
    };
    bench.order.checkpoint = Some("USR1@3600".parse().unwrap());
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    preempt(&mut link);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Stopped, ExitCode::exited(3)),
        "preempted, whatever it exits with"
    );
    assert_eq!(bench.file("saved"), "saved\n");
}

#[test]
fn the_signal_goes_to_what_handles_it_and_spares_the_shell_that_would_die() {
    let script = "sh -c 'trap \"echo child saved > saved; exit 0\" USR1; touch ready; while :; do sleep 0.02; done'; \
                  echo shell lives > lives";
    let Some(mut bench) = Bench::isolated(script) else {
        return;
    };
    bench.order.checkpoint = Some("USR1@3600".parse().unwrap());
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    preempt(&mut link);
    assert_eq!(link.end().exit, ExitCode::SUCCESS);
    assert_eq!(
        (bench.file("saved"), bench.file("lives")),
        ("child saved\n".into(), "shell lives\n".into())
    );
}

#[test]
fn a_command_is_run_in_the_job_as_its_user() {
    let Some(mut bench) = worker("/bin/sh ./save.sh now@3600") else {
        return;
    };
    fs::write(
        bench.work.join("save.sh"),
        "echo saving $1 for $GSUB_JOB_ID; id -u > who; cat /proc/self/cgroup > where",
    )
    .unwrap();
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    preempt(&mut link);
    let place = bench.file_when("where", |text| text.ends_with('\n'));
    assert!(place.contains("/run_7-1/job"), "{place}");
    assert_eq!(
        (bench.file("who"), bench.file("out")),
        (format!("{UID}\n"), "saving now for 7\n".into())
    );
    let number = wait_for("a mark that is taken", || {
        mark(&bench, b"by command\n")
            .strip_prefix("ok ")
            .map(str::to_owned)
    });
    assert_eq!(
        (number.as_str(), link.end().cause),
        ("1\n", EndCause::Stopped)
    );
}

#[test]
fn a_command_that_cannot_be_started_costs_the_grace_and_nothing_else() {
    let Some(mut bench) = worker("./not-there@1") else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    preempt(&mut link);
    assert_eq!(link.end().cause, EndCause::Stopped);
    let log = fs::read_to_string(bench.run_dir().join("log")).unwrap();
    assert!(log.contains("the checkpoint command ended, 127:0"), "{log}");
}

#[test]
fn a_job_that_has_marked_may_leave_by_itself() {
    let Some(mut bench) = worker("USR1@3600") else {
        return;
    };
    bench.order.script = format!("#!/bin/sh\n{WORKER}\n").replace(
        "while :; do sleep 0.02; done",
        "while [ ! -e leave ]; do sleep 0.02; done; exit 4",
    );
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    preempt(&mut link);
    bench.file_when("asked", |_| true);
    assert_eq!(mark(&bench, b"saved\n"), "ok 1\n");
    fs::write(bench.work.join("leave"), "").unwrap();
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Stopped, ExitCode::exited(4)),
        "{}",
        end.text
    );
    assert_eq!(
        end.text,
        "preempted; asked for a checkpoint, ended after checkpoint mark 1"
    );
}

#[test]
fn a_cancel_does_not_wait_for_a_checkpoint() {
    let Some(mut bench) = worker("USR1@3600") else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    preempt(&mut link);
    bench.file_when("asked", |_| true);
    link.stop(20);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit, end.text.as_str()),
        (EndCause::Stopped, ExitCode::exited(9), "preempted")
    );
}

#[test]
fn the_time_limit_asks_for_a_checkpoint_in_time() {
    let Some(mut bench) = worker("USR1@60") else {
        return;
    };
    // Half of the limit is the most that the wait takes.
    bench.order.limit_secs = Some(6);
    let mut link = bench.start_and_go();
    let asked = |count: usize| bench.file_when("asked", |text| text.lines().count() == count);
    asked(1);
    // A limit that is moved away takes the wait along: a mark is only a mark.
    link.send(&SupervisorCommand::Limit {
        limit_secs: Some(3600),
    });
    // What comes behind it on the same connection is in the log when it has been taken.
    link.send_raw(b"{\"to_step\":\"of_tomorrow\"}\n");
    wait_for("the limit to be taken", || {
        fs::read_to_string(bench.run_dir().join("log"))
            .unwrap()
            .contains("passed over")
            .then_some(())
    });
    assert_eq!(mark(&bench, b"\n"), "ok 1\n");
    assert_eq!(next_mark(&mut link).number, 1);
    link.send(&SupervisorCommand::Limit {
        limit_secs: Some(10),
    });
    asked(2);
    wait_for("the second mark", || {
        (mark(&bench, b"\n") == "ok 2\n").then_some(())
    });
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::TimeLimit, ExitCode::exited(9))
    );
    assert!(
        end.text.contains("10 s was near") && end.text.contains("mark 2"),
        "{}",
        end.text
    );
}

#[test]
fn a_time_limit_during_the_grace_ends_it() {
    let Some(mut bench) = worker("USR1@3600") else {
        return;
    };
    bench.order.limit_secs = Some(1_000_000);
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    preempt(&mut link);
    bench.file_when("asked", |_| true);
    link.send(&SupervisorCommand::Limit {
        limit_secs: Some(0),
    });
    let end = link.end();
    assert_eq!(end.cause, EndCause::Stopped, "the first reason counts");
    assert_eq!(
        end.text,
        "preempted; asked for a checkpoint, ended after the time limit"
    );
}

#[test]
fn two_marks_in_a_second_are_one_mark() {
    let Some(mut bench) = worker("USR1@60") else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    let answers: Vec<String> = (0..2).map(|_| mark(&bench, b"x\n")).collect();
    assert_eq!(answers[0], "ok 1\n");
    assert!(
        answers[1].starts_with("error too soon: one mark a second is taken; again in "),
        "{}",
        answers[1]
    );
    assert_eq!(on_disk(&bench).unwrap().number, 1);
    link.stop(0);
    link.end();
}

#[test]
fn what_is_no_mark_is_refused_and_leaves_the_supervisor_as_it_was() {
    let Some(mut bench) = worker("USR1@60") else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    let noise: Vec<u8> = (0..=255u8).filter(|byte| *byte != b'\n').collect();
    for (sent, want) in [
        (
            [noise.as_slice(), b"\n"].concat(),
            "error a note is one line of UTF-8 text\n",
        ),
        (
            b"bell\x07\n".to_vec(),
            "error a note is one line of printable text; this one has control characters\n",
        ),
        (
            [&[b'x'; 300][..], b"\n"].concat(),
            "error a note of 300 bytes: 256 are taken\n",
        ),
        (vec![b'x'; 4096], "error a line of more than 4096 bytes\n"),
    ] {
        assert_eq!(mark(&bench, &sent), want);
    }
    assert_eq!(
        mark(&bench, b"bell\x07\ngood\n"),
        "error a note is one line of printable text; this one has control characters\n"
    );
    assert_eq!(on_disk(&bench), None, "and nothing behind it is looked at");
    // Connections that say nothing push out each other, not the one that comes.
    let idle: Vec<UnixStream> = (0..100)
        .map(|_| UnixStream::connect(socket(&bench)).unwrap())
        .collect();
    assert_eq!(mark(&bench, b"after all\n"), "ok 1\n");
    drop(idle);
    // A flood is answered slowly, and the job can still be stopped.
    let mut flood = UnixStream::connect(socket(&bench)).unwrap();
    for _ in 0..500 {
        let Ok(mut one) = UnixStream::connect(socket(&bench)) else {
            break;
        };
        if one.write_all(b"x\n").is_err() {
            break;
        }
    }
    let _ = flood.write_all(b"x\n");
    link.stop(0);
    assert_eq!(link.end().cause, EndCause::Stopped);
    let _ = flood.read(&mut [0; 64]);
}

#[test]
fn another_user_cannot_mark() {
    let Some(mut bench) = worker("USR1@60") else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    fs::set_permissions(socket(&bench), fs::Permissions::from_mode(0o666)).unwrap();
    let program = "use IO::Socket::UNIX; $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die; print scalar <$s>";
    let told = Command::new("perl")
        .args(["-e", program])
        .arg(socket(&bench))
        .uid(UID + 1)
        .gid(UID + 1)
        .output();
    let Ok(told) = told else {
        println!("NOT RUN: another_user_cannot_mark needs perl");
        return;
    };
    assert_eq!(
        String::from_utf8_lossy(&told.stdout),
        format!("error only the job's user (uid {UID}) marks its checkpoints\n")
    );
    assert_eq!(on_disk(&bench), None);
    link.stop(0);
    link.end();
}

#[test]
fn a_mark_that_cannot_be_written_is_not_acknowledged() {
    let Some(mut bench) = worker("USR1@60") else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    fs::create_dir(bench.run_dir().join("mark.json.new")).unwrap();
    let answer = mark(&bench, b"x\n");
    assert!(
        answer.starts_with("error the node could not write the mark down: "),
        "{answer}"
    );
    fs::remove_dir(bench.run_dir().join("mark.json.new")).unwrap();
    assert_eq!(mark(&bench, b"x\n"), "ok 1\n", "it was not counted");
    link.stop(0);
    link.end();
}

#[test]
fn a_supervisor_killed_between_signal_and_mark_leaves_the_last_mark_and_no_socket_that_answers() {
    let Some(mut bench) = worker("USR1@3600") else {
        return;
    };
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    assert_eq!(mark(&bench, b"epoch 4\n"), "ok 1\n");
    let job = wait_for("the job's process", || {
        bench
            .cgroup
            .as_ref()
            .unwrap()
            .job_pids()
            .unwrap()
            .first()
            .copied()
    });
    preempt(&mut link);
    bench.file_when("asked", |_| true);
    bench.kill_gstepd();
    assert!(
        UnixStream::connect(socket(&bench)).is_err(),
        "nobody acknowledges what nobody keeps"
    );
    assert_eq!(on_disk(&bench).unwrap().note, "epoch 4");
    assert!(is_alive(job), "what it held is gpud's to kill");
    bench.cgroup.as_ref().unwrap().kill().unwrap();
    wait_for("the end of the job", || (!is_alive(job)).then_some(()));
}

#[test]
fn a_node_other_than_the_first_is_done_when_it_holds_no_process() {
    let Some(mut bench) = worker("USR1@3600") else {
        return;
    };
    bench.order.node_index = 1;
    let mut link = bench.start_and_go();
    preempt(&mut link);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Stopped, ExitCode::SUCCESS)
    );
    assert!(
        end.text
            .ends_with("ended after the end of its last process"),
        "{}",
        end.text
    );
}

#[test]
fn a_requeued_run_is_told_its_last_mark() {
    let Some(mut bench) = Bench::isolated("echo \"$GSUB_ATTEMPT|$GSUB_LAST_MARK\"") else {
        return;
    };
    bench.order.run = Some(gmodel::RunId::new(gmodel::JobId(7), 2));
    bench.order.last_mark = Some("3 epoch 40".into());
    bench
        .order
        .environment
        .push("GSUB_LAST_MARK=9 of another job".into());
    bench.run_to_end();
    assert_eq!(bench.file("out"), "2|3 epoch 40\n");
}
