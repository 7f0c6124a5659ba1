//! Debian's own sshd on 127.0.0.1, with pam_gpupool in its PAM service. The machine's `/etc/pam.d` stays as it is: sshd sees another
//! file there, in a mount namespace of its own. Ended when dropped, with its sessions.

use crate::pool::{CommandOutput, Pool, programs, say};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = "/usr/sbin/sshd";
const SERVICE: &str = "/etc/pam.d/sshd";

/// One sshd.
pub struct Sshd {
    dir: PathBuf,
    port: u16,
    daemon: Child,
}

/// A session under way: the client's process.
pub struct LoginSession {
    pub client: Child,
    /// Its first line.
    pub first: String,
}

impl Sshd {
    /// Listens beside node1, with these words behind the module's name. None, said aloud, without openssh-server.
    pub fn beside(pool: &Pool, words: &str) -> Option<Self> {
        if !Path::new(PROGRAM).exists() || !Path::new(SERVICE).exists() {
            println!("NOT RUN: there is no sshd (package openssh-server)");
            return None;
        }
        let socket = format!("/run/gpupool/{}/node1/gpud.sock", pool.tag());
        Some(Self::start(pool, &format!("socket={socket} {words}")))
    }

    /// As [`Sshd::beside`], with all the words.
    pub fn start(pool: &Pool, words: &str) -> Self {
        let port = free_port();
        let dir = pool.work.join(format!("sshd-{port}"));
        fs::create_dir(&dir).unwrap();
        fs::create_dir_all("/run/sshd").unwrap();
        for key in ["host", "key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            let made = say(keygen.arg(dir.join(key)));
            assert_eq!(made.code, 0, "{made:?}");
        }
        let module = programs().join("libpam_gpupool.so");
        let module = format!("{} {words}", module.display());
        let service = format!(
            "auth required pam_deny.so\naccount required pam_unix.so\naccount required {module}\n\
             session required pam_permit.so\nsession required {module}\n"
        );
        fs::write(dir.join("pam"), service).unwrap();
        let at = dir.display();
        let config = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {at}/host\nPidFile none\nUsePAM yes\nStrictModes no\n\
             AuthorizedKeysFile {at}/key.pub\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin prohibit-password\nMaxStartups 500\nPrintMotd no\nLogLevel VERBOSE\n"
        );
        fs::write(dir.join("config"), config).unwrap();
        let daemon = Self::spawn(&dir);
        let sshd = Self { dir, port, daemon };
        pool.wait_until("sshd listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        sshd
    }

    fn spawn(dir: &Path) -> Child {
        let line = format!(
            "mount --bind {0}/pam {SERVICE} && exec {PROGRAM} -D -f {0}/config -E {0}/log",
            dir.display()
        );
        let mut daemon = Command::new("unshare");
        daemon
            .args(["-m", "--propagation", "slave", "sh", "-c", &line])
            .stdin(Stdio::null())
            .process_group(0);
        daemon.spawn().unwrap()
    }

    /// ssh as this user; the line runs there.
    pub fn command(&self, user: &str, line: &str) -> Command {
        let mut command = Command::new("ssh");
        command.args(["-F", "/dev/null", "-p", &self.port.to_string(), "-i"]);
        command.arg(self.dir.join("key"));
        for option in [
            "BatchMode=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=INFO",
            "IdentitiesOnly=yes",
            "ConnectTimeout=60",
        ] {
            command.args(["-o", option]);
        }
        command.arg(format!("{user}@127.0.0.1")).arg(line);
        command.stdin(Stdio::null());
        command
    }

    pub fn ssh(&self, user: &str, line: &str) -> CommandOutput {
        say(&mut self.command(user, line))
    }

    /// A session that has printed a line, and stays.
    pub fn open(&self, user: &str, line: &str) -> LoginSession {
        let mut command = self.command(user, line);
        let mut client = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        let mut out = BufReader::new(client.stdout.take().unwrap());
        out.read_line(&mut first).unwrap();
        LoginSession {
            client,
            first: first.trim().to_owned(),
        }
    }

    /// All that it logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- sshd ---\n{}", self.log());
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}
