//! Ways into a job without a port of its own: forwarded ports, and ssh to an sshd that runs in a step.

use gmodel::JobState::Running;
use gpupool_tests::pool::{CommandOutput, Pool};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};

/// Sends back what it is sent, and writes its port into a file.
const ECHO: &str = r#"
import socket, threading
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen(64)
open("port", "w").write(str(server.getsockname()[1]))
def echo(one):
    while True:
        data = one.recv(65536)
        if not data: break
        one.sendall(data)
    one.close()
while True:
    threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()
"#;

/// A `grun --forward` under way.
struct Forward {
    child: Child,
    errors: BufReader<ChildStderr>,
    port: u16,
}

impl Forward {
    fn open(mut command: Command) -> Forward {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let port = line
            .split_once("127.0.0.1:")
            .and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        Forward {
            port: port.unwrap_or_else(|| panic!("{line}")),
            child,
            errors,
        }
    }

    /// As by Ctrl-C; what it still said.
    fn interrupt(mut self) -> String {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        let mut said = String::new();
        self.errors.read_to_string(&mut said).unwrap();
        said
    }
}

fn processes(pool: &Pool, words: &str) -> String {
    let line = format!("ps -eo args | grep -c '^{words}'");
    pool.run_shell(&line).out.trim().to_owned()
}

#[test]
fn a_port_of_a_job_is_brought_here_and_its_connections_live_through_kills() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.write("echo.py", ECHO);
    let run = ["-t", "10", "--wrap", "exec python3 echo.py"];
    let job = pool.run_as_user("gsub", &run).id();
    let there = pool.wait_file("port");
    let id = job.to_string();
    let target = format!("0:127.0.0.1:{there}");
    let of_root = pool.gsub(&["--wrap", "sleep 600"]);
    pool.wait_state(of_root, Running);
    let words = ["--jobid", &of_root.to_string(), "--forward", &target];
    let stolen = pool.run_as_user("grun", &words);
    assert_ne!(stolen.code, 0, "{stolen:?}");
    pool.run("gdel", &[&of_root.to_string()]);
    let mut command = pool.user_command("grun");
    command.args(["--jobid", &id, "--forward", &target]);
    let mut forward = Forward::open(command);
    let text: Vec<u8> = (0..40_000_000u32).map(|n| (n % 251) as u8).collect();
    let mut stream = TcpStream::connect(("127.0.0.1", forward.port)).unwrap();
    let (mut writer, sent) = (stream.try_clone().unwrap(), text.clone());
    let sender = std::thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    for daemon in ["node1", "gpuctld"] {
        pool.kill(daemon);
        pool.start(daemon);
    }
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    sender.join().unwrap();
    assert!(back == text, "{} of {} bytes", back.len(), text.len());
    let mut closed = pool.user_command("grun");
    closed.args(["--jobid", &id, "--forward", "0:127.0.0.1:1"]);
    let refused = Forward::open(closed);
    let mut one = TcpStream::connect(("127.0.0.1", refused.port)).unwrap();
    let _ = one.read_to_end(&mut Vec::new());
    let said = refused.interrupt();
    assert!(said.contains("127.0.0.1:1: Connection refused"), "{said}");
    // A grun that is killed takes the far end along, by the job's end at the latest.
    forward.child.kill().unwrap();
    forward.child.wait().unwrap();
    pool.run_as_user("gdel", &[&id]);
    pool.wait_until("nothing is left", || {
        processes(&pool, "gstepd --forward") == "0"
    });
}

/// ssh, or a program that calls it, as the tests' user with the keys of `gadm ssh-config`.
fn as_user(pool: &Pool, line: &str) -> CommandOutput {
    let gadm = pool.user_command("gadm");
    let programs = std::path::Path::new(gadm.get_program()).parent().unwrap();
    let mut command = pool.user_command("/bin/sh");
    command.env("HOME", pool.work.join("home"));
    command.env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
    let said = command.args(["-c", line]).output().unwrap();
    CommandOutput {
        code: said.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&said.stdout).into_owned(),
        err: String::from_utf8_lossy(&said.stderr).into_owned(),
    }
}

#[test]
fn ssh_scp_and_rsync_reach_a_job_and_nothing_else() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    if !std::path::Path::new("/usr/sbin/sshd").exists() {
        println!("NOT RUN: there is no sshd (package openssh-server)");
        return;
    }
    let run = ["-N2", "--gpus=2", "-t", "10", "--wrap", "sleep 600"];
    let job = pool.run_as_user("gsub", &run).id();
    pool.wait_state(job, Running);
    let made = as_user(
        &pool,
        "mkdir -p home && gadm ssh-config > ssh.conf && cat ssh.conf",
    );
    assert!(made.out.contains("Host gpupool-*"), "{made:?}");
    let again = as_user(&pool, "gadm ssh-config | cmp - ssh.conf");
    assert_eq!(again.code, 0, "keys stay: {again:?}");
    let ssh = format!("ssh -F ssh.conf gpupool-{job}");
    let said = as_user(
        &pool,
        &format!(
            "{ssh} 'echo on $SLURMD_NODENAME by $GSUB_GPU_UUIDS; cat /proc/self/cgroup; exit 7'"
        ),
    );
    assert!(
        said.code == 7 && said.out.contains("on node1 by GPU-"),
        "{said:?}"
    );
    let cgroup = format!("run_{job}-1");
    assert!(said.out.contains(&cgroup), "{said:?}");
    let other = as_user(&pool, &format!("{ssh}.node2 'echo $SLURMD_NODENAME'"));
    assert_eq!(other.out, "node2\n", "{other:?}");
    as_user(&pool, "seq 500000 > numbers");
    let copied = as_user(
        &pool,
        &format!(
            "scp -q -F ssh.conf numbers gpupool-{job}:$PWD/by-scp && cmp numbers by-scp && \
             rsync -e 'ssh -F ssh.conf' numbers gpupool-{job}:$PWD/by-rsync && cmp numbers by-rsync && echo same"
        ),
    );
    assert_eq!(
        (copied.code, copied.out.as_str()),
        (0, "same\n"),
        "{copied:?}"
    );
    // Other keys open nothing, nor does another user.
    let wrong = as_user(
        &pool,
        &format!(
            "ssh-keygen -q -t ed25519 -N '' -f wrong && \
             sed 's#IdentityFile .*#IdentityFile wrong#' ssh.conf > wrong.conf && \
             ssh -F wrong.conf gpupool-{job} true"
        ),
    );
    assert_eq!(wrong.code, 255, "{wrong:?}");
    let of_root = pool.gsub(&["--wrap", "sleep 600"]);
    pool.wait_state(of_root, Running);
    let stolen = as_user(&pool, &format!("ssh -F ssh.conf gpupool-{of_root} true"));
    assert_eq!(stolen.code, 255, "{stolen:?}");
    pool.run("gdel", &[&of_root.to_string()]);
    let none = as_user(&pool, "ssh -F ssh.conf gpupool-999 true");
    assert!(none.code == 255 && none.err.contains("999"), "{none:?}");
    pool.run_as_user("gdel", &[&job.to_string()]);
    pool.wait_until("nothing is left", || {
        processes(&pool, "gstepd --sshd") == "0"
    });
}
