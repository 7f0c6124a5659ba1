//! Programs of the site that gpuctld runs: the owner that each must have, and the call, without a shell, with an environment of its
//! own and a time limit. Each caller knows the purpose of its program.

use crate::config::settings::SiteProgram;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Of what a program says the last so many bytes are kept.
const WORDS_BYTES: usize = 1000;
/// For words that are still in the pipe when the program has ended.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Calls a program with one argument and waits for its end. `key` is what the configuration calls it.
///
/// # Errors
/// How it failed, in one sentence with the program's last words.
pub async fn call(
    key: &str,
    program: &SiteProgram,
    argument: &str,
    environment: &[(&str, String)],
) -> Result<(), String> {
    check_ownership(&program.program).map_err(|why| format!("{key} was not called: {why}"))?;
    let mut command = Command::new(&program.program);
    command
        .arg(argument)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let child = command
        .spawn()
        .map_err(|error| format!("{key} cannot be started: {error}"))?;
    let mut group = ProcessGroup::of(child);
    let (mut out, mut err) = (LastWords::default(), LastWords::default());
    let limit = Duration::from_secs(u64::from(program.timeout_secs));
    let ended = {
        let (stdout, stderr) = (group.child.stdout.take(), group.child.stderr.take());
        let words = async { tokio::join!(out.read(stdout), err.read(stderr)) };
        tokio::pin!(words);
        let wait = timeout(limit, group.child.wait());
        tokio::pin!(wait);
        let (ended, heard) = tokio::select! {
            ended = &mut wait => (ended, false),
            _ = &mut words => (wait.await, true),
        };
        if !heard {
            let _ = timeout(LAST_WORDS, words).await;
        }
        ended
    };
    let words = LastWords::text(&err, &out);
    match ended {
        Ok(Ok(status)) if status.success() => {
            group.is_over();
            Ok(())
        }
        Ok(Ok(status)) => Err(format!("{key} {}{words}", ending(status))),
        Ok(Err(error)) => Err(format!("{key} was lost: {error}{words}")),
        Err(_) => Err(format!(
            "{key} did not end within {} s and was killed{words}",
            program.timeout_secs
        )),
    }
}

/// Only root or gpuctld's own user may be able to change what runs: the file, what stands in the directories above it, and the links
/// on the way to it.
///
/// # Errors
/// The sentence that says what is wrong with it.
pub fn check_ownership(program: &Path) -> Result<(), String> {
    let unreadable = |error: std::io::Error| format!("it cannot be read: {error}");
    let real = std::fs::canonicalize(program).map_err(unreadable)?;
    let me = nix::unistd::geteuid().as_raw();
    for path in real.ancestors().chain(program.ancestors()) {
        let what = if path == real {
            "it".to_owned()
        } else {
            format!("its directory {}", path.display())
        };
        let meta = std::fs::symlink_metadata(path).map_err(unreadable)?;
        // A link has no mode.
        let mode = if meta.is_symlink() {
            0o755
        } else {
            meta.mode() & 0o7777
        };
        if meta.uid() != 0 && meta.uid() != me {
            return Err(format!(
                "{what} belongs to uid {}; it has to belong to root",
                meta.uid()
            ));
        }
        // In a sticky directory others cannot replace what is root's.
        let sticky = meta.is_dir() && mode & 0o1000 != 0;
        if mode & 0o022 != 0 && !sticky {
            return Err(format!(
                "others can write to {what} (mode {mode:o}); chmod go-w"
            ));
        }
        if meta.is_file() && mode & 0o111 == 0 {
            return Err(format!("it is not executable (mode {mode:o}); chmod +x"));
        }
    }
    Ok(())
}

fn ending(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with {code}"),
        (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
    }
}

/// A program with all it started in its process group: killed when the call is given up, for whatever reason.
struct ProcessGroup {
    child: Child,
    leader: Option<Pid>,
}

impl ProcessGroup {
    fn of(child: Child) -> Self {
        let leader = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw);
        Self { child, leader }
    }

    /// It did its work: what it left behind may live on.
    fn is_over(&mut self) {
        self.leader = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.leader {
            let _ = killpg(leader, Signal::SIGKILL); // an error: nothing of it is left
        }
    }
}

/// The end of what a program says.
#[derive(Default)]
struct LastWords(VecDeque<u8>);

impl LastWords {
    async fn read(&mut self, stream: Option<impl AsyncRead + Unpin>) {
        let Some(mut stream) = stream else { return };
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            self.0.extend(&buffer[..count]);
            self.0.drain(..self.0.len().saturating_sub(WORDS_BYTES));
        }
    }

    /// One line for people: what it complained of, else what it said.
    fn text(err: &Self, out: &Self) -> String {
        let said = [err, out].map(|words| {
            String::from_utf8_lossy(&Vec::from(words.0.clone()))
                .trim()
                .replace('\n', " | ")
        });
        said.into_iter()
            .find(|said| !said.is_empty())
            .map_or_else(String::new, |said| format!(": {said}"))
    }
}

/// For tests: a program that is a script.
#[cfg(test)]
pub fn script(dir: &tempfile::TempDir, text: &str) -> SiteProgram {
    use std::os::unix::fs::PermissionsExt;
    let program = dir.path().join("program");
    std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    SiteProgram {
        program,
        timeout_secs: 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    #[tokio::test]
    async fn its_last_words_are_told_with_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let failed = script(&dir, "echo trying; echo no route to 10.0.0.7 >&2; exit 3");
        assert_eq!(
            call("it", &failed, "", &[]).await,
            Err("it ended with 3: no route to 10.0.0.7".into())
        );
        assert_eq!(
            call("it", &script(&dir, "kill -9 $$"), "", &[]).await,
            Err("it was ended by signal 9".into())
        );
    }

    #[tokio::test]
    async fn one_that_hangs_is_killed_with_all_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pid");
        let slow = script(
            &dir,
            &format!(
                "echo waiting; sleep 1000 & echo $! > {}; wait",
                pids.display()
            ),
        );
        let begun = Instant::now();
        let why = call(
            "it",
            &SiteProgram {
                timeout_secs: 1,
                ..slow
            },
            "",
            &[],
        )
        .await
        .unwrap_err();
        assert_eq!(why, "it did not end within 1 s and was killed: waiting");
        assert!(begun.elapsed() < Duration::from_secs(10));
        let pid = std::fs::read_to_string(pids).unwrap();
        let gone = || {
            std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
                .map_or(true, |stat| stat.contains(") Z "))
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        while !gone() {
            assert!(
                Instant::now() < deadline,
                "the sleep that it started is still there"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn one_that_others_can_change_is_not_called() {
        let dir = tempfile::tempdir().unwrap();
        let open = script(&dir, "exit 0");
        std::fs::set_permissions(&open.program, std::fs::Permissions::from_mode(0o777)).unwrap();
        let why = call("it", &open, "", &[]).await.unwrap_err();
        assert!(
            why.contains("was not called: others can write to it") && why.contains("chmod go-w"),
            "{why}"
        );
        std::fs::remove_file(&open.program).unwrap();
        assert!(
            call("it", &open, "", &[])
                .await
                .unwrap_err()
                .contains("cannot be read")
        );
    }

    #[test]
    fn a_user_who_owns_a_directory_or_a_link_on_the_way_does_not_choose_the_program() {
        if !nix::unistd::geteuid().is_root() {
            println!("NOT RUN: a directory of another user needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let program = script(&dir, "exit 0").program;
        let give = |path: &Path| std::os::unix::fs::lchown(path, Some(1234), None).unwrap();
        let owned = |path: &Path| {
            let text = format!("{} belongs to uid 1234", path.display());
            move |why: &String| why.contains(&text)
        };
        let below = dir.path().join("site/bin");
        std::fs::create_dir_all(&below).unwrap();
        let nested = below.join("hook");
        std::fs::copy(&program, &nested).unwrap();
        assert_eq!(check_ownership(&nested), Ok(()));
        let above = dir.path().join("site");
        give(&above);
        assert!(check_ownership(&nested).is_err_and(|why| owned(&above)(&why)));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&program, &link).unwrap();
        assert_eq!(check_ownership(&link), Ok(()));
        give(&link);
        assert!(check_ownership(&link).is_err_and(|why| owned(&link)(&why)));
    }
}
