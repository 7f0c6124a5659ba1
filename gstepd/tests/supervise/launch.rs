//! What a job finds when it starts: the environment of a login, its output files by two names, bytes that are no text; and a script
//! that is done just as it is to give way.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{chown, symlink};
use std::path::PathBuf;
use std::time::Duration;

use gmodel::ExitCode;
use gmodel::byte_text;
use gmodel::run::{EndCause, StopCause};
use gmodel::supervise::{SupervisorCommand, SupervisorReport};

use crate::bench::{Bench, UID, is_alive, pid_in, wait_for};

/// A job of a user with this `.profile`, and 20 s for it.
fn with_profile(profile: &str, script: &str) -> Option<Bench> {
    let mut bench = Bench::isolated(script)?;
    let home = bench.spool.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join(".profile"), profile).unwrap();
    chown(&home, Some(UID), Some(UID)).unwrap();
    bench.setup.home = home.display().to_string();
    bench.setup.shell = "/bin/sh".into();
    bench.order.login_env_secs = Some(20);
    Some(bench)
}

#[test]
fn a_login_of_the_user_fills_what_the_submission_leaves_open() {
    let profile = "echo Welcome to $HOME\nexport FROM_LOGIN=yes MINE=login PATH=/login:$PATH\nexport TEXT='two\nlines'\n\
                   export ODD=$(printf 'a\\377b')\nsetsid sleep 600 &\nsleep 600 & echo $! > ~/left; id -u > ~/who; pwd >> ~/who\n";
    let script = "echo $FROM_LOGIN $MINE $PATH $USER; echo \"$TEXT\"; printf %s \"$ODD\" | od -An -tx1; echo ${SHLVL:-none}; cat ~/left > left";
    let Some(mut bench) = with_profile(profile, script) else {
        return;
    };
    bench.order.environment.push("MINE=submitted".into());
    let end = bench.run_to_end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::SUCCESS),
        "{}",
        end.text
    );
    assert_eq!(
        bench.file("out"),
        "yes submitted /usr/bin:/bin tester\ntwo\nlines\n 61 ff 62\nnone\n"
    );
    let home = bench.spool.path().join("home");
    assert_eq!(
        fs::read_to_string(home.join("who")).unwrap(),
        format!("{UID}\n{}\n", home.display()),
        "as the user, at home"
    );
    assert!(
        !is_alive(pid_in(&bench.file("left"))),
        "what the login left behind is none of the job's"
    );
}

#[test]
fn login_files_that_hang_end_or_flood_end_the_job_with_the_reason() {
    let cases = [
        ("sleep 600", "had not come to its end after 1 s"),
        (
            "exec >&- 2>&-; sleep 600",
            "had not come to its end after 1 s",
        ),
        (
            "exit 3",
            "ended with exit code 3 before it showed its environment",
        ),
        (
            "kill -9 $$",
            "was ended by signal KILL before it showed its environment",
        ),
        ("yes", "wrote more than 1048576 bytes"),
    ];
    for (profile, says) in cases {
        let Some(mut bench) = with_profile(profile, "echo ran > ran") else {
            return;
        };
        bench.order.login_env_secs = Some(if profile.ends_with("sleep 600") {
            1
        } else {
            20
        });
        let end = bench.run_to_end();
        assert_eq!(end.cause, EndCause::LaunchUser, "{profile}: {}", end.text);
        assert!(
            end.text.contains(
                "the login environment of tester could not be read on this node: /bin/sh "
            ) && end.text.contains(says),
            "{}",
            end.text
        );
        assert!(end.text.contains("--export=ALL"), "{}", end.text);
        assert!(
            !bench.work.join("ran").exists() && bench.cgroup.as_ref().unwrap().is_empty().unwrap()
        );
    }
}

#[test]
fn a_job_that_is_cancelled_while_its_login_hangs_is_gone_at_once() {
    let Some(mut bench) = with_profile("touch ~/begun; sleep 600", "true") else {
        return;
    };
    let begun = bench.spool.path().join("home/begun");
    let mut link = bench.start();
    link.send(&SupervisorCommand::Go);
    wait_for("the login", || begun.exists().then_some(()));
    link.stop(600);
    let end = link.end();
    assert_eq!(end.cause, EndCause::Stopped, "{}", end.text);
    assert!(bench.cgroup.as_ref().unwrap().is_empty().unwrap());
}

#[test]
fn a_user_without_home_or_shell_has_a_login_all_the_same() {
    let Some(mut bench) = with_profile("", "echo $HOME $SHELL ${PATH:+path}") else {
        return;
    };
    bench.order.environment.clear();
    bench.setup.home = "/no/such/home".into();
    bench.setup.shell = "/usr/sbin/nologin".into();
    let end = bench.run_to_end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::SUCCESS),
        "{}",
        end.text
    );
    assert_eq!(bench.file("out"), "/no/such/home /usr/sbin/nologin path\n");
}

/// 400 lines by turns, half of them to each.
#[test]
fn output_and_error_of_one_file_by_two_names_lose_no_line() {
    const LINES: &str =
        "i=0; while [ $i -lt 200 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
    for (stdout, stderr) in [
        ("out", "./out"),
        ("out", "link"),
        ("o%j", "o7"),
        ("out", "../work/out"),
    ] {
        let Some(mut bench) = Bench::isolated(LINES) else {
            return;
        };
        symlink("out", bench.work.join("link")).unwrap();
        bench.order.stdout = stdout.into();
        bench.order.stderr = stderr.into();
        assert_eq!(bench.run_to_end().exit, ExitCode::SUCCESS);
        let text = bench.file(if stdout == "out" { "out" } else { "o7" });
        assert_eq!(text.lines().count(), 400, "{stdout} {stderr}");
        assert!(
            text.starts_with("out 0\nerr 0\nout 1\n"),
            "{stdout} {stderr}: {text}"
        );
    }
    let Some(mut bench) = Bench::isolated("echo out; echo err >&2") else {
        return;
    };
    bench.order.stderr = "err".into();
    bench.run_to_end();
    assert_eq!(
        (bench.file("out"), bench.file("err")),
        ("out\n".into(), "err\n".into())
    );
}

#[test]
fn bytes_that_are_no_text_reach_the_job_as_they_are() {
    let Some(mut bench) = Bench::isolated(
        "pwd | od -An -c; printf %s \"$ODD\" | od -An -tx1; printf %s \"$1\" | od -An -tx1",
    ) else {
        return;
    };
    let name = OsString::from_vec(b"d\xfc".to_vec());
    let dir: PathBuf = bench.work.join(&name);
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(UID), Some(UID)).unwrap();
    let text = |bytes: &[u8]| byte_text::from_bytes(bytes);
    bench.order.work_dir = format!("{}/{}", bench.order.work_dir, text(b"d\xfc"));
    bench
        .order
        .environment
        .push(text(b"ODD=\xff\xfe\xf4\x8f\x9f\xbc"));
    bench.order.argv = vec![text(b"\x80")];
    bench.order.stdout = text(b"o\xe9");
    let end = bench.run_to_end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::SUCCESS),
        "{}",
        end.text
    );
    let out = fs::read_to_string(dir.join(OsString::from_vec(b"o\xe9".to_vec()))).unwrap();
    assert!(
        out.contains("/   d 374  \\n") && out.contains("\n ff fe f4 8f 9f bc\n 80\n"),
        "{out}"
    );
}

/// Its end and the order to give way come at about the same moment, a little apart each time.
#[test]
fn a_script_that_ends_well_as_it_is_preempted_is_done_or_dies_of_the_signal() {
    for round in 0..40 {
        let Some(mut bench) = Bench::isolated("sleep 0.05") else {
            return;
        };
        let mut link = bench.start();
        link.send(&SupervisorCommand::Go);
        assert!(matches!(link.next(), SupervisorReport::Running { .. }));
        std::thread::sleep(Duration::from_micros(47_000 + round * 250));
        link.send(&SupervisorCommand::Stop {
            why: StopCause::Preempted,
            grace_secs: 10,
        });
        let end = link.end();
        assert_eq!(
            end.exit.is_success(),
            end.cause == EndCause::Exited,
            "round {round}: {:?} {}",
            end.cause,
            end.exit
        );
    }
}
