//! What gstepd itself runs in a step: the far end of forwarded ports, and an sshd for one connection. As the job's user in the step's
//! cgroup, like any task; supervises nothing.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use gmodel::supervise::{SshKeys, StepHelper};
use gwire::port_relay::{ForwardSide, serve};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fchmod};

/// Where distributions have it; it wants to be called by its whole path.
const SSHD: [&str; 3] = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"];
/// The keys' line.
const MAX_KEYS_BYTES: u64 = 16 << 10;
/// sshd makes these itself.
const OF_SSHD: [&str; 9] = [
    "HOME", "LOGNAME", "MAIL", "PATH", "PWD", "SHELL", "TERM", "USER", "_",
];

/// This very program, open.
pub struct HelperProgram {
    word: &'static str,
    program: File,
}

impl HelperProgram {
    /// # Errors
    /// A helper of a newer release; no /proc.
    pub fn open(helper: StepHelper) -> Result<Self, String> {
        let word = match helper {
            StepHelper::Forward => "--forward",
            StepHelper::Sshd => "--sshd",
            StepHelper::Unknown => {
                return Err("this node's release does not know what the step is to run".to_owned());
            }
        };
        let program = File::open("/proc/self/exe").map_err(|e| format!("opening gstepd: {e}"))?;
        Ok(Self { word, program })
    }

    pub fn argv(&self) -> Vec<OsString> {
        vec!["gstepd".into(), self.word.into()]
    }

    /// By its descriptor: the user need not be able to pass the directories above it.
    pub fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.program.as_raw_fd().to_string())
    }
}

/// `gstepd --forward`: dials what comes on stdin.
pub fn forward() -> anyhow::Result<()> {
    let [input, output] = [io::stdin().as_fd(), io::stdout().as_fd()]
        .map(|end| end.try_clone_to_owned().and_then(not_blocking));
    Ok(serve(input?, output?, ForwardSide::Dials)?)
}

fn not_blocking(end: OwnedFd) -> io::Result<File> {
    fcntl(&end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(File::from(end))
}

/// `gstepd --sshd`: an sshd for the connection behind the keys on stdin. It serves its own user only, by these keys only, and its files
/// are in memory.
pub fn sshd() -> anyhow::Result<ExitCode> {
    if nix::unistd::geteuid().is_root() {
        bail!("no sshd runs as root: this job is root's. Use grun --jobid --pty");
    }
    // Not by `io::stdin`, which reads ahead.
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let keys = read_keys(input)?;
    let program = SSHD.iter().find(|path| Path::new(path).exists());
    let Some(program) = program else {
        bail!(
            "there is no sshd on this node. Ask for its package (openssh-server); it need not run as a daemon"
        );
    };
    let host_key = MemoryFile::new("host_key", keys.host_key.as_bytes())?;
    let authorized = MemoryFile::new("authorized_keys", keys.authorized_key.as_bytes())?;
    let config = MemoryFile::new("sshd_config", config(&host_key, &authorized).as_bytes())?;
    // Its standard files are those of this process; its own files stay open here.
    let status = Command::new(program)
        .args(["-i", "-e", "-f", &config.path])
        .status()
        .with_context(|| format!("starting {program}"))?;
    let code = status
        .code()
        .or(status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    Ok(ExitCode::from(code as u8))
}

/// The first line, and nothing behind it.
fn read_keys(input: impl Read) -> anyhow::Result<SshKeys> {
    let mut line = Vec::new();
    // One byte at a time: what follows is for sshd.
    let mut input = io::BufReader::with_capacity(1, input.take(MAX_KEYS_BYTES));
    input.read_until(b'\n', &mut line)?;
    serde_json::from_slice(&line).context("no keys came before the connection")
}

fn config(host_key: &MemoryFile, authorized: &MemoryFile) -> String {
    let mut text = format!(
        "HostKey {}\nAuthorizedKeysFile {}\n",
        host_key.path, authorized.path
    );
    text.push_str(
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
         PubkeyAuthentication yes\nPermitRootLogin no\nX11Forwarding no\nPrintMotd no\nPrintLastLog no\n\
         PidFile none\nLogLevel ERROR\nSubsystem sftp internal-sftp\n",
    );
    let variables: Vec<String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, value)| {
            !OF_SSHD.contains(&name.as_str()) && !value.contains(char::is_control)
        })
        .map(|(name, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            format!(" \"{name}={value}\"")
        })
        .collect();
    if !variables.is_empty() {
        text.push_str(&format!("SetEnv{}\n", variables.concat()));
    }
    text
}

/// A file for its user, gone with this process.
struct MemoryFile {
    path: String,
    _file: File,
}

impl MemoryFile {
    fn new(name: &str, text: &[u8]) -> anyhow::Result<Self> {
        let file = memfd_create(name, MFdFlags::MFD_CLOEXEC).context("memory for a file")?;
        fchmod(&file, Mode::from_bits_truncate(0o600))?;
        let mut file = File::from(file);
        file.write_all(text)?;
        Ok(Self {
            path: format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()),
            _file: file,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_are_one_line_and_what_follows_is_left_for_sshd() {
        let mut input = io::Cursor::new(b"{\"host_key\":\"k\\n\"}\nSSH-2.0".to_vec());
        let keys = read_keys(&mut input).unwrap();
        assert_eq!(keys.host_key, "k\n");
        let mut rest = String::new();
        input.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "SSH-2.0");
        assert!(read_keys(&b"SSH-2.0-OpenSSH\r\n"[..]).is_err());
        let long = vec![b' '; MAX_KEYS_BYTES as usize * 2];
        assert!(read_keys(&long[..]).is_err());
    }
}
