//! The Python package `gpupool`, by an ordinary user: its own tests against a pool, and waits that live through kills of the controller and of `gq`.

use gpupool_tests::pool::{CommandOutput, Pool, say};
use std::path::Path;
use std::process::{Command, Stdio};

/// What is run and tested, where the user may read it.
fn copy_package(pool: &Pool) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let copied = say(Command::new("cp")
        .args(["-r", "--no-preserve=mode"])
        .arg(package.join("src"))
        .arg(package.join("tests"))
        .arg(&pool.work));
    assert_eq!(copied.code, 0, "{copied:?}");
}

fn python(pool: &Pool, words: &[&str]) -> Command {
    let programs = pool.user_command("gq");
    let programs = Path::new(programs.get_program()).parent().unwrap();
    let path = ["src", "tests"].map(|part| pool.work.join(part).display().to_string());
    let path = path.join(":");
    let mut command = pool.user_command("/usr/bin/python3");
    command
        .env("PATH", format!("{}:/usr/bin:/bin", programs.display()))
        .env("PYTHONPATH", path)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("HOME", &pool.work)
        .args(words);
    command
}

#[test]
fn its_own_tests_pass() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    copy_package(&pool);
    let said = say(&mut python(&pool, &["-m", "unittest", "test_pool"]));
    assert_eq!(said.code, 0, "{}", said.err);
}

const WAITS: &str = "import gpupool, calls\n\
    with gpupool.Executor(time=5) as pool:\n\
    \x20   futures = [pool.submit(calls.when_there, name) for name in ('a', 'b', 'c')]\n\
    \x20   print(*(future.job.id for future in futures), file=open('ids', 'w'))\n\
    \x20   print(*(future.result(120) for future in futures))\n";

#[test]
fn results_come_through_kills_of_the_controller_and_of_gq() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    copy_package(&pool);
    let waiting = python(&pool, &["-c", WAITS])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let parent = waiting.id().to_string();
    let reader = || say(Command::new("pgrep").args(["-P", &parent, "-x", "gq"]));
    pool.wait_file("ids");
    pool.wait_until("events are read", || reader().code == 0);
    pool.kill("gpuctld");
    pool.write("a", "");
    pool.start("gpuctld");
    let first = reader();
    pool.kill("gpuctld");
    if first.code == 0 {
        say(Command::new("kill").args(["-9", first.out.trim()]));
    }
    pool.write("b", "");
    pool.start("gpuctld");
    pool.write("c", "");
    let done = waiting.wait_with_output().unwrap();
    let said = CommandOutput {
        code: done.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&done.stdout).into_owned(),
        err: String::from_utf8_lossy(&done.stderr).into_owned(),
    };
    assert_eq!((said.code, said.out.as_str()), (0, "a b c\n"), "{said:?}");
}

#[test]
fn its_version_is_that_of_the_programs() {
    let project = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/pyproject.toml"),
    );
    let line = format!("version = \"{}\"\n", env!("CARGO_PKG_VERSION"));
    assert!(project.unwrap().contains(&line), "{line}");
}
