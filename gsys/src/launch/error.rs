//! What went wrong on the way to the program, its class (user or node), and its text. The child sends a few bytes; the parent makes
//! the text here.

use std::io;

use super::spec::{LaunchSpec, Stdio, search_path};

/// The class of an error: a user's ends the job, a node's counts against the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    User,
    Node,
}

/// Where on the way it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    Fork = 1,
    Cgroup,
    Mounts,
    Capabilities,
    Identity,
    Directory,
    Stdin,
    Stdout,
    Stderr,
    Terminal,
    Exec,
    Affinity,
}

impl Stage {
    const ALL: [Stage; 12] = [
        Stage::Fork,
        Stage::Cgroup,
        Stage::Mounts,
        Stage::Capabilities,
        Stage::Identity,
        Stage::Directory,
        Stage::Stdin,
        Stage::Stdout,
        Stage::Stderr,
        Stage::Terminal,
        Stage::Exec,
        Stage::Affinity,
    ];

    fn is_the_users(self) -> bool {
        matches!(
            self,
            Stage::Directory | Stage::Stdin | Stage::Stdout | Stage::Stderr | Stage::Exec
        )
    }
}

/// Why the program does not run. `text` is meant for the job's owner (class user) or the administrator (class node).
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct LaunchError {
    pub class: ErrorClass,
    pub stage: Stage,
    pub errno: i32,
    pub text: String,
}

impl LaunchError {
    pub(super) fn node(stage: Stage, doing: &str, e: &io::Error) -> LaunchError {
        LaunchError {
            class: ErrorClass::Node,
            stage,
            errno: e.raw_os_error().unwrap_or(0),
            text: format!("{doing}: {e}"),
        }
    }

    pub(super) fn user(stage: Stage, errno: i32, text: String) -> LaunchError {
        LaunchError {
            class: ErrorClass::User,
            stage,
            errno,
            text,
        }
    }
}

/// What the child writes into the pipe: stage, errno, and for a script its first line.
#[derive(Clone, Copy)]
pub(super) struct Report {
    pub stage: Stage,
    pub errno: i32,
    /// Beginning of the file that could not be executed, if it begins with `#!`.
    pub first_line: [u8; Report::LINE],
}

impl Report {
    pub const LINE: usize = 112;
    pub const SIZE: usize = 5 + Report::LINE;

    /// Async-signal-safe.
    pub fn bytes(&self) -> [u8; Report::SIZE] {
        let mut bytes = [0; Report::SIZE];
        bytes[0] = self.stage as u8;
        bytes[1..5].copy_from_slice(&self.errno.to_le_bytes());
        bytes[5..].copy_from_slice(&self.first_line);
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Option<Report> {
        let bytes: &[u8; Report::SIZE] = bytes.try_into().ok()?;
        let stage = Stage::ALL.into_iter().find(|s| *s as u8 == bytes[0])?;
        let errno = i32::from_le_bytes(bytes[1..5].try_into().ok()?);
        Some(Report {
            stage,
            errno,
            first_line: bytes[5..].try_into().ok()?,
        })
    }

    pub fn explain(&self, words: &Words) -> LaunchError {
        let class = match self.stage.is_the_users() && !self.is_the_nodes(words) {
            true => ErrorClass::User,
            false => ErrorClass::Node,
        };
        LaunchError {
            class,
            stage: self.stage,
            errno: self.errno,
            text: self.text(words),
        }
    }

    /// Errors that say more about the machine than about what the user asked for, even when a user's path met them.
    fn is_the_nodes(&self, words: &Words) -> bool {
        use libc::{EAGAIN, EIO, EMFILE, ENFILE, ENOMEM, ENOTCONN, ESTALE, ETIMEDOUT};
        let file = match self.stage {
            Stage::Stdin => words.stdin.as_str(),
            Stage::Stdout => words.stdout.as_str(),
            Stage::Stderr => words.stderr.as_str(),
            _ => "",
        };
        // The one EAGAIN of execve(2): the user is over a limit on processes, which PAM or the node sets for users.
        if (self.stage, self.errno) == (Stage::Exec, EAGAIN) {
            return false;
        }
        // Every user may open /dev/null: a machine on which that fails is broken, or fenced too narrowly.
        file == "/dev/null"
            || [
                EAGAIN, EIO, EMFILE, ENFILE, ENOMEM, ENOTCONN, ESTALE, ETIMEDOUT,
            ]
            .contains(&self.errno)
    }

    fn text(&self, words: &Words) -> String {
        let reason = reason(self.errno);
        let uid = words.uid;
        match self.stage {
            Stage::Fork => format!("making a session for the job's process: {reason}"),
            Stage::Cgroup => format!("joining the job's cgroup: {reason}"),
            Stage::Affinity => format!(
                "binding to the task's CPUs, which have to be among the job's own: {reason}"
            ),
            Stage::Mounts => format!("setting up the job's mount namespace: {reason}"),
            Stage::Capabilities => format!("taking capabilities from a root job: {reason}"),
            Stage::Identity => format!("becoming uid {uid}: {reason}"),
            Stage::Directory => format!(
                "working directory {}: {reason} (as uid {uid}). Create it, or choose another with --chdir",
                words.cwd
            ),
            Stage::Stdin => format!(
                "input file {}: {reason} (as uid {uid}, in {})",
                words.stdin, words.cwd
            ),
            Stage::Stdout => format!("output file {}: {}", words.stdout, self.not_written(words)),
            Stage::Stderr => format!("error file {}: {}", words.stderr, self.not_written(words)),
            Stage::Terminal => format!("making {} the controlling terminal: {reason}", words.stdin),
            Stage::Exec => self.exec_text(words, &reason),
        }
    }

    fn not_written(&self, words: &Words) -> String {
        let advice = if self.errno == libc::ENOENT {
            ". Its directory has to be there when the job starts"
        } else {
            ""
        };
        format!(
            "{} (as uid {}, in {}){advice}",
            reason(self.errno),
            words.uid,
            words.cwd
        )
    }

    fn exec_text(&self, words: &Words, reason: &str) -> String {
        let Words {
            called, program, ..
        } = words;
        match (self.errno, interpreter(&self.first_line)) {
            (libc::ENOENT, Some(name)) if name.ends_with('\r') => format!(
                "{called}: its first line ends with a carriage return, so its interpreter {name:?} is not found. \
                 Convert it: sed -i 's/\\r$//' {program}"
            ),
            (libc::ENOENT | libc::EACCES, Some(name)) => {
                format!(
                    "{called}: its interpreter {name:?}, named on its first line, cannot be run: {reason}"
                )
            }
            (libc::ENOENT, None) if !program.contains('/') => {
                format!("{called}: not found in PATH ({})", words.path)
            }
            (libc::ENOENT, None) => {
                format!("{called}: no such file on this node (in {})", words.cwd)
            }
            (libc::EACCES, None) => {
                format!(
                    "{called}: {reason} (as uid {}). Make it executable: chmod +x {program}",
                    words.uid
                )
            }
            (libc::EAGAIN, _) => format!(
                "{called}: uid {} has more processes on this node than its limit NPROC allows",
                words.uid
            ),
            (libc::ENOEXEC, _) => format!(
                "{called}: neither a binary for this machine nor a script with an interpreter. \
                 Begin a script with a line such as #!/bin/bash"
            ),
            (libc::E2BIG, _) => {
                format!("{called}: arguments and environment together are too long")
            }
            _ => format!("{called}: {reason}"),
        }
    }
}

/// What a text names, kept from the spec.
#[derive(Debug)]
pub(super) struct Words {
    uid: u32,
    /// As texts begin: `program /bin/x`, or what the spec says instead.
    called: String,
    program: String,
    path: String,
    cwd: String,
    stdin: String,
    stdout: String,
    stderr: String,
}

impl Words {
    pub fn of(spec: &LaunchSpec<'_>) -> Words {
        let program = spec
            .argv
            .first()
            .map(|path| path.to_string_lossy().into_owned())
            .unwrap_or_default();
        Words {
            uid: spec.identity.uid,
            called: spec
                .called
                .map_or_else(|| format!("program {program}"), str::to_owned),
            program: if spec.called.is_some() {
                "SCRIPT".into()
            } else {
                program
            },
            path: String::from_utf8_lossy(search_path(&spec.env)).into_owned(),
            cwd: spec.cwd.display().to_string(),
            stdin: name_of(&spec.stdin),
            stdout: name_of(&spec.stdout),
            stderr: name_of(&spec.stderr),
        }
    }
}

fn name_of(stdio: &Stdio<'_>) -> String {
    match stdio {
        Stdio::Null => "/dev/null".into(),
        Stdio::Open { path, .. } => path.display().to_string(),
        Stdio::Fd(fd) => format!("descriptor {fd:?}"),
        Stdio::SameAsStdout => "the same as output".into(),
    }
}

/// The word after `#!`; a trailing carriage return is kept, since the kernel keeps it.
fn interpreter(first_line: &[u8]) -> Option<String> {
    let rest = first_line.strip_prefix(b"#!")?;
    let line = rest.split(|b| *b == b'\n' || *b == 0).next()?;
    let text = String::from_utf8_lossy(line);
    let word = text
        .trim_start_matches([' ', '\t'])
        .split([' ', '\t'])
        .next()?;
    (!word.is_empty()).then(|| word.to_owned())
}

fn reason(errno: i32) -> String {
    io::Error::from_raw_os_error(errno).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_the_pipe() {
        let mut first_line = [0; Report::LINE];
        first_line[..8].copy_from_slice(b"#!/x/y z");
        let bytes = Report {
            stage: Stage::Exec,
            errno: libc::ENOENT,
            first_line,
        }
        .bytes();
        let report = Report::parse(&bytes).expect("whole message");
        assert_eq!((report.stage, report.errno), (Stage::Exec, libc::ENOENT));
        assert_eq!(interpreter(&report.first_line).as_deref(), Some("/x/y"));
        assert!(Report::parse(&bytes[..20]).is_none());
    }

    #[test]
    fn the_interpreter_is_the_first_word() {
        assert_eq!(
            interpreter(b"#! /usr/bin/env python3\n").as_deref(),
            Some("/usr/bin/env")
        );
        assert_eq!(
            interpreter(b"#!/bin/bash\r\n").as_deref(),
            Some("/bin/bash\r")
        );
        assert_eq!(interpreter(b"\x7fELF"), None);
        assert_eq!(interpreter(b"#!\n"), None);
    }
}
