//! Supervisors that a loaded gstepd becomes by fork: as good as one that was started, and none depends on where it came from.

use std::fs;
use std::io::BufReader;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gmodel::ExitCode;
use gmodel::run::EndCause;
use gmodel::supervise::{SupervisorCommand, SupervisorReport};
use gsys::descriptor::{self, ReceivedMessage};
use nix::fcntl::{Flock, FlockArg};

use crate::bench::{Bench, Link, PATIENCE, exists, is_alive, pid_in, wait_for};

struct StandBy {
    child: Child,
    requests: OwnedFd,
}

impl StandBy {
    fn start(runs: &Path) -> StandBy {
        let (requests, theirs) = descriptor::pair().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gstepd"));
        command
            .arg("--stand-by")
            .arg(runs)
            .arg(" ".repeat(64))
            .stdin(theirs)
            .stdout(Stdio::null());
        StandBy {
            child: command.spawn().unwrap(),
            requests,
        }
    }

    /// Asks for a supervisor; our end of its conversation.
    fn ask(&self, bench: &Bench) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        let sup = bench
            .cgroup
            .as_ref()
            .map(|cgroup| cgroup.sup_dir())
            .filter(|(_, is_born_there)| *is_born_there);
        let sup = sup.map(|(dir, _)| fs::File::open(dir).unwrap());
        let descriptors: Vec<_> = [Some(theirs.as_fd()), sup.as_ref().map(AsFd::as_fd)]
            .into_iter()
            .flatten()
            .collect();
        descriptor::send(
            &self.requests,
            bench.run_dir().as_os_str().as_bytes(),
            &descriptors,
        )
        .unwrap();
        ours
    }

    fn answer(&self) -> (String, ReceivedMessage) {
        let mut text = [0; 1024];
        let answer = descriptor::receive(&self.requests, &mut text).unwrap();
        (
            String::from_utf8_lossy(&text[..answer.length]).into_owned(),
            answer,
        )
    }
}

impl Drop for StandBy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn runs_of(bench: &Bench) -> std::path::PathBuf {
    bench.run_dir().parent().unwrap().to_owned()
}

fn link(stream: UnixStream) -> Link {
    Link {
        reader: BufReader::new(stream),
    }
}

#[test]
fn a_supervisor_by_fork_has_its_own_session_cgroup_and_name() {
    let Some(bench) = Bench::isolated("grep -E 'Sig(Ign|Blk)' /proc/self/status; exit 3") else {
        return;
    };
    bench.write_orders();
    let stand_by = StandBy::start(&runs_of(&bench));
    let mut link = link(stand_by.ask(&bench));
    let (text, answer) = stand_by.answer();
    let pid = pid_in(&text);
    assert_eq!(answer.descriptors.len(), 1, "the process, held");
    let SupervisorReport::Ready { pid: said } = link.next() else {
        panic!("not ready")
    };
    assert_eq!(said as i32, pid);
    let session = nix::unistd::getsid(Some(nix::unistd::Pid::from_raw(pid))).unwrap();
    assert_eq!(session.as_raw(), pid);
    let cgroup = bench.cgroup.as_ref().unwrap();
    if let (sup, true) = cgroup.sup_dir() {
        assert_eq!(
            fs::read_to_string(sup.join("cgroup.procs")).unwrap(),
            format!("{pid}\n")
        );
    } else {
        cgroup.attach_sup(pid).unwrap();
    }
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let line = String::from_utf8(line).unwrap();
    let words: Vec<&str> = line
        .split_terminator('\0')
        .filter(|word| !word.is_empty())
        .collect();
    assert_eq!(
        words[1..],
        ["--run-dir", bench.run_dir().to_str().unwrap()],
        "what ps shows"
    );
    assert_eq!(
        fs::read_link(format!("/proc/{pid}/cwd")).unwrap(),
        bench.run_dir().canonicalize().unwrap()
    );
    for (fd, target) in [
        (0, "/dev/null".into()),
        (1, "/dev/null".into()),
        (2, bench.run_dir().join("log")),
    ] {
        assert_eq!(
            fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap(),
            target,
            "descriptor {fd}"
        );
    }
    link.send(&SupervisorCommand::Go);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::exited(3)),
        "{}",
        end.text
    );
    let out = bench.file("out");
    assert!(
        out.lines().count() == 2 && out.lines().all(|line| line.ends_with("0000000000000000")),
        "{out}"
    );
    drop(link);
    wait_for("the end of the supervisor", || {
        (!is_alive(pid)).then_some(())
    });
    assert!(
        !exists(Path::new(&format!("/proc/{pid}"))),
        "nobody has to reap it"
    );
}

#[test]
fn a_run_outlives_the_stand_by_that_forked_its_supervisor() {
    let Some(bench) =
        Bench::isolated("touch begun; while [ ! -e go-on ]; do sleep 0.01; done; exit 5")
    else {
        return;
    };
    bench.write_orders();
    let stand_by = StandBy::start(&runs_of(&bench));
    let mut link = link(stand_by.ask(&bench));
    assert!(matches!(link.next(), SupervisorReport::Ready { .. }));
    link.send(&SupervisorCommand::Go);
    bench.file_when("begun", |_| true);
    drop(stand_by);
    fs::write(bench.work.join("go-on"), "").unwrap();
    assert_eq!(link.end().exit, ExitCode::exited(5));
    assert_eq!(bench.record().exit, ExitCode::exited(5));
}

#[test]
fn the_stand_by_ends_with_its_gpud_and_takes_no_run_along() {
    let Some(bench) = Bench::isolated("exit 6") else {
        return;
    };
    bench.write_orders();
    let mut stand_by = StandBy::start(&runs_of(&bench));
    let mut link = link(stand_by.ask(&bench));
    assert!(matches!(link.next(), SupervisorReport::Ready { .. }));
    let (one, other) = descriptor::pair().unwrap();
    drop(other);
    stand_by.requests = one;
    let status = wait_for("the end of the stand-by", || {
        stand_by.child.try_wait().unwrap()
    });
    assert!(status.success(), "{status}");
    link.send(&SupervisorCommand::Go);
    assert_eq!(link.end().exit, ExitCode::exited(6));
}

/// Kill -9 at any moment of a request: either a supervisor holds the connection, or none does and the run
/// has not begun.
#[test]
fn a_stand_by_killed_over_a_request_has_forked_or_not_and_the_conversation_tells() {
    let Some(bench) = Bench::isolated("exit 7") else {
        return;
    };
    bench.write_orders();
    let runs = runs_of(&bench);
    let (mut forked, mut lost) = (0, 0);
    for round in 0..60u64 {
        let mut stand_by = StandBy::start(&runs);
        // Loaded, so that the kill meets its work and not its start.
        let (nobody, theirs) = UnixStream::pair().unwrap();
        descriptor::send(&stand_by.requests, b"/elsewhere/1-1", &[theirs.as_fd()]).unwrap();
        assert!(stand_by.answer().0.contains("is no run in"));
        drop((nobody, theirs));
        let stream = stand_by.ask(&bench);
        std::thread::sleep(Duration::from_micros(round * 15));
        stand_by.child.kill().unwrap();
        stand_by.child.wait().unwrap();
        let mut link = link(stream);
        match link.next_if_any() {
            Some(SupervisorReport::Ready { pid }) => {
                forked += 1;
                // As gpud does with a run that it does not want any more.
                link.stop(0);
                link.end();
                drop(link);
                wait_for("its end", || (!is_alive(pid as i32)).then_some(()));
                fs::remove_file(bench.run_dir().join("exit.json")).unwrap();
            }
            None => {
                lost += 1;
                let lock = Flock::lock(
                    fs::File::open(bench.run_dir()).unwrap(),
                    FlockArg::LockExclusiveNonblock,
                );
                assert!(lock.is_ok(), "nobody supervises");
                assert!(!exists(&bench.run_dir().join("ctl.sock")));
            }
            other => panic!("{other:?}"),
        }
    }
    println!("{forked} forked, {lost} not");
    assert!(forked > 0, "a kill that always comes first tests nothing");
    assert!(!exists(&bench.work.join("out")), "no script was started");
}

#[test]
fn a_supervisor_without_a_waiting_gpud_does_not_begin() {
    let Some(bench) = Bench::isolated("exit 8") else {
        return;
    };
    bench.write_orders();
    let stand_by = StandBy::start(&runs_of(&bench));
    drop(stand_by.ask(&bench));
    let (text, answer) = stand_by.answer();
    let process = answer.descriptors.into_iter().next().expect(&text);
    let mut fds = [nix::poll::PollFd::new(
        process.as_fd(),
        nix::poll::PollFlags::POLLIN,
    )];
    assert_eq!(nix::poll::poll(&mut fds, 20_000u16).unwrap(), 1, "it ends");
    assert!(
        !exists(&bench.run_dir().join("exit.json")) && !exists(&bench.run_dir().join("ctl.sock"))
    );
    // The successor of that gpud begins the run again.
    let mut link = link(stand_by.ask(&bench));
    assert!(matches!(link.next(), SupervisorReport::Ready { .. }));
    link.send(&SupervisorCommand::Go);
    assert_eq!(link.end().exit, ExitCode::exited(8));
}
