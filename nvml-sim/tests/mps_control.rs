//! The stand-in for `nvidia-cuda-mps-control`: what is said over its pipe, what it keeps where a test can read it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

struct Control {
    dir: tempfile::TempDir,
}

impl Control {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        symlink(
            env!("CARGO_BIN_EXE_nvml-sim"),
            dir.path().join("nvidia-cuda-mps-control"),
        )
        .unwrap();
        ["pipe", "log"]
            .iter()
            .for_each(|name| fs::create_dir(dir.path().join(name)).unwrap());
        Self { dir }
    }
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    fn command(&self) -> Command {
        let mut command = Command::new(self.path("nvidia-cuda-mps-control"));
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.path("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", self.path("log"));
        command.env("CUDA_VISIBLE_DEVICES", "GPU-1");
        command
    }
    fn start(&self) -> Output {
        self.command().arg("-d").output().unwrap()
    }
    fn say(&self, text: &str) -> String {
        let mut command = self
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        command
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        String::from_utf8(command.wait_with_output().unwrap().stdout).unwrap()
    }
    fn kept(&self) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.path("mps/GPU-1.json")).unwrap()).unwrap()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.say("quit\n");
    }
}

#[test]
fn servers_keep_the_limits_that_were_the_defaults_when_they_began() {
    let control = Control::new();
    assert!(control.start().status.success());
    assert!(!control.start().status.success(), "one daemon for a pipe");
    let uid = own_uid();
    let said = control.say(&format!(
        "set_default_active_thread_percentage 50\nset_default_device_pinned_mem_limit 0 40960M\nstart_server -uid {uid}\n\
         set_default_active_thread_percentage 25\nget_default_active_thread_percentage\nnonsense\n"
    ));
    assert_eq!(said, "50.0\n25.0\n25.0\nunknown command \"nonsense\"\n");
    let kept = control.kept();
    assert_eq!(
        (
            kept["percent"].as_f64(),
            kept["servers"][0]["percent"].as_f64()
        ),
        (Some(25.0), Some(50.0))
    );
    assert_eq!(kept["servers"][0]["memory"]["0"], "40960M");
    let server = kept["servers"][0]["pid"].to_string();
    assert!(Path::new("/proc").join(&server).exists());
    control.say("quit\n");
    assert!(!Path::new("/proc").join(&server).exists() && !control.path("mps/GPU-1.json").exists());
}

#[test]
fn users_may_ask_and_only_the_daemons_own_may_change() {
    if own_uid() != 0 {
        eprintln!("NOT RUN: to be another user needs root");
        return;
    }
    let control = Control::new();
    assert!(control.start().status.success());
    // By the socket: the program may lie where that user cannot go.
    let socket = control.path("pipe/control");
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(control.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let script = "import socket,sys\nfor w in sys.argv[2:]:\n s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.send((w+'\\n').encode()); print(s.recv(99).decode(),end='')";
    let mut other = Command::new("python3");
    other.args(["-c", script]).arg(&socket).args([
        "get_default_active_thread_percentage",
        "set_default_active_thread_percentage 100",
        "quit",
    ]);
    let said = other
        .uid(12_001)
        .gid(12_001)
        .current_dir("/")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(said.stdout).unwrap(),
        "100.0\npermission denied\npermission denied\n"
    );
}

#[test]
fn a_daemon_that_was_killed_is_started_anew_and_knows_nothing() {
    let control = Control::new();
    assert!(control.start().status.success());
    control.say("set_default_active_thread_percentage 50\n");
    let pid = control.kept()["daemon"].to_string();
    assert!(
        Command::new("kill")
            .args(["-9", &pid])
            .status()
            .unwrap()
            .success()
    );
    while !control
        .say("get_default_active_thread_percentage\n")
        .is_empty()
    {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(control.start().status.success());
    assert_eq!(
        control.say("get_default_active_thread_percentage\n"),
        "100.0\n"
    );
}

fn own_uid() -> u32 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").unwrap().uid()
}
