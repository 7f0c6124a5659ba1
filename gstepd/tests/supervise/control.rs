//! The conversation with gpud: its sockets, a second gpud, a run that is supervised already.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::bench::{Bench, exists, wait_for};
use gmodel::ExitCode;
use gmodel::run::EndCause;
use gmodel::supervise::{SupervisorCommand, SupervisorReport};

#[test]
fn a_new_gpud_finds_the_run_and_its_end() {
    let Some(mut bench) = Bench::isolated("while [ ! -e go-on ]; do sleep 0.01; done; exit 9")
    else {
        return;
    };
    drop(bench.start_and_go());
    let mut second = bench.connect();
    let first_word = second.next();
    assert!(
        matches!(first_word, SupervisorReport::Running { .. }),
        "{first_word:?}"
    );
    let mut third = bench.connect();
    assert_eq!(
        third.next(),
        first_word,
        "several at a time, all told the same"
    );
    second.send(&SupervisorCommand::Go);
    fs::write(bench.work.join("go-on"), "").unwrap();
    assert_eq!(second.end().exit, ExitCode::exited(9));
    assert_eq!(third.end().exit, ExitCode::exited(9));
    let mut late = bench.connect();
    assert_eq!(late.end().exit, ExitCode::exited(9));
    drop((second, third, late));
    assert_eq!(
        bench.gstepd_exit(),
        Some(0),
        "told and closed: it leaves before its time"
    );
    assert!(!exists(&bench.run_dir().join("ctl.sock")));
}

#[test]
fn a_member_node_holds_its_share_until_it_is_stopped() {
    let Some(mut bench) = Bench::isolated("touch started") else {
        return;
    };
    bench.order.node_index = 1;
    let mut link = bench.start_and_go();
    link.stop(30);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Stopped, ExitCode::SUCCESS)
    );
    assert!(
        !exists(&bench.work.join("started")),
        "the script runs on the first node"
    );
}

#[test]
fn a_run_is_never_supervised_twice() {
    let Some(mut bench) =
        Bench::isolated("echo once >> runs; while [ ! -e go-on ]; do sleep 0.01; done")
    else {
        return;
    };
    drop(bench.start_and_go());
    bench.file_when("runs", |text| text.ends_with('\n'));
    let second = |run_dir: &std::path::Path| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_gstepd"))
            .arg("--run-dir")
            .arg(run_dir)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, text) = second(&bench.run_dir());
    assert!(
        code == Some(1) && text.contains("has a supervisor already"),
        "{code:?} {text}"
    );
    bench.kill_gstepd();
    let (code, text) = second(&bench.run_dir());
    assert!(
        code == Some(1) && text.contains("was supervised before"),
        "{code:?} {text}"
    );
    assert!(
        !exists(&bench.run_dir().join("exit.json")),
        "gpud says what became of it"
    );
    assert_eq!(bench.file("runs"), "once\n");
}

#[test]
fn garbage_on_the_socket_costs_only_its_connection() {
    let Some(mut bench) = Bench::isolated("while [ ! -e go-on ]; do sleep 0.01; done") else {
        return;
    };
    drop(bench.start_and_go());
    for garbage in [&b"{]\n"[..], b"\xff\xfe\n", b"{\"to_step\":7}\n"] {
        let mut link = bench.connect();
        link.next();
        link.send_raw(garbage);
        assert!(link.is_closed(), "{garbage:?}");
    }
    let mut link = bench.connect();
    link.next();
    link.send_raw(b"{\"to_step\":\"from_a_newer_gpud\",\"x\":1}\n");
    fs::write(bench.work.join("go-on"), "").unwrap();
    assert_eq!(
        link.end().exit,
        ExitCode::SUCCESS,
        "a word of a newer release is passed over"
    );
}

/// A runtime directory beside the spool, with a path longer than a socket's may be.
fn with_runtime_dir(bench: &mut Bench) -> std::path::PathBuf {
    let marks = bench.spool.path().join("x".repeat(120)).join("marks");
    bench.setup.marks_dir = marks.display().to_string();
    bench.setup.short_scripts_in_marks_dir = true;
    marks
}

#[test]
fn socket_and_short_script_are_in_the_runtime_directory_and_go_with_the_run() {
    let Some(mut bench) =
        Bench::isolated("echo $0 > script; while [ ! -e go-on ]; do sleep 0.01; done")
    else {
        return;
    };
    let marks = with_runtime_dir(&mut bench);
    bench.write_orders();
    bench.spawn();
    let socket = marks.join("7-1.ctl");
    wait_for("the socket", || exists(&socket).then_some(()));
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    assert!(!exists(&bench.run_dir().join("ctl.sock")));
    let dir = fs::File::open(&marks).unwrap();
    let short = format!(
        "/proc/self/fd/{}/7-1.ctl",
        std::os::fd::AsRawFd::as_raw_fd(&dir)
    );
    let mut link = bench.talk(std::os::unix::net::UnixStream::connect(short).unwrap());
    assert!(matches!(link.next(), SupervisorReport::Ready { .. }));
    link.send(&SupervisorCommand::Go);
    let script = bench.file_when("script", |text| text.ends_with('\n'));
    assert_eq!(script.trim(), marks.join("7-1.script").to_str().unwrap());
    let (uid, mode) = fs::metadata(script.trim())
        .map(|meta| (meta.uid(), meta.mode() & 0o777))
        .unwrap();
    assert_eq!((uid, mode), (bench.setup.uid, 0o500));
    fs::write(bench.work.join("go-on"), "").unwrap();
    assert_eq!(link.end().exit, ExitCode::SUCCESS);
    drop(link);
    assert_eq!(bench.gstepd_exit(), Some(0));
    let left: Vec<_> = fs::read_dir(&marks)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_long_script_is_on_the_disk_and_a_lost_runtime_directory_keeps_nothing_from_starting() {
    let Some(mut bench) = Bench::isolated("echo $0 > script") else {
        return;
    };
    with_runtime_dir(&mut bench);
    bench.order.script.push_str(&"# filler\n".repeat(8 << 10));
    // A file is where the directory would have to be made.
    fs::write(bench.spool.path().join("x".repeat(120)), "").unwrap();
    bench.write_orders();
    bench.spawn();
    let fallback = bench.run_dir().join("ctl.sock");
    let stream = wait_for("ctl.sock", || {
        std::os::unix::net::UnixStream::connect(&fallback).ok()
    });
    let mut link = bench.talk(stream);
    link.send(&SupervisorCommand::Go);
    assert_eq!(link.end().exit, ExitCode::SUCCESS);
    assert_eq!(
        bench.file("script").trim(),
        bench.script().to_str().unwrap()
    );
}

#[test]
fn the_socket_works_below_a_long_path() {
    let Some(mut bench) = Bench::isolated("true") else {
        return;
    };
    let spool = bench.run_dir().join("../..").canonicalize().unwrap();
    let long = spool.join("x".repeat(120)).join("runs/7-1");
    fs::create_dir_all(&long).unwrap();
    for (name, json) in [
        ("order", serde_json::to_vec(&bench.order)),
        ("setup", serde_json::to_vec(&bench.setup)),
    ] {
        fs::write(long.join(format!("{name}.json")), json.unwrap()).unwrap();
    }
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_gstepd"))
        .arg("--run-dir")
        .arg(&long)
        .spawn()
        .unwrap();
    wait_for("ctl.sock", || exists(&long.join("ctl.sock")).then_some(()));
    let dir = fs::File::open(&long).unwrap();
    let short = format!(
        "/proc/self/fd/{}/ctl.sock",
        std::os::fd::AsRawFd::as_raw_fd(&dir)
    );
    assert!(std::os::unix::net::UnixStream::connect(short).is_ok());
    assert_eq!(
        fs::metadata(long.join("ctl.sock")).unwrap().mode() & 0o777,
        0o600
    );
    child.kill().unwrap();
    child.wait().unwrap();
    drop(bench.start_and_go());
}
