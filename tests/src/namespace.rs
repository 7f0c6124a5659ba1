//! A machine's network of its own: a network namespace with one link to the controller's, which can be cut. Removed when
//! dropped, with what runs in it. Only the network is apart: files, processes and cgroups are the machine's.

use crate::pool::{Pool, say};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// One namespace and the daemon in it.
pub struct Namespace {
    name: String,
    outer: String,
    inner: String,
    /// Of the controller's end of the link, and of the machine's.
    near: String,
    far: String,
    config: PathBuf,
    daemon: Option<Child>,
}

impl Namespace {
    /// A namespace for machine `at` of the pool (from 1). None, said aloud, where this machine cannot have one.
    pub fn new(pool: &Pool, at: u8) -> Option<Self> {
        let tag = pool.tag();
        let number = u32::from_str_radix(tag, 16).expect("hex digits");
        // 198.18.0.0/15 is for tests of networks (RFC 2544).
        let net = format!("198.{}.{}.", 18 + (number >> 8 & 1), number & 0xff);
        let base = (number >> 9 & 0x3) * 64 + u32::from(at) * 4;
        let namespace = Self {
            name: format!("gp-{tag}-{at}"),
            outer: format!("gpo{tag}{at}"),
            inner: format!("gpi{tag}{at}"),
            near: format!("{net}{}", base + 1),
            far: format!("{net}{}", base + 2),
            config: PathBuf::new(),
            daemon: None,
        };
        let made = namespace.make();
        if let Err(why) = made {
            println!("NOT RUN: this machine cannot make network namespaces: {why}");
            return None;
        }
        Some(namespace)
    }

    fn make(&self) -> Result<(), String> {
        ip(&["netns", "add", &self.name])?;
        ip(&[
            "link",
            "add",
            &self.outer,
            "type",
            "veth",
            "peer",
            "name",
            &self.inner,
        ])?;
        ip(&["link", "set", &self.inner, "netns", &self.name])?;
        ip(&[
            "address",
            "add",
            &format!("{}/30", self.near),
            "dev",
            &self.outer,
        ])?;
        ip(&["link", "set", &self.outer, "up"])?;
        self.inside(&[
            "address",
            "add",
            &format!("{}/30", self.far),
            "dev",
            &self.inner,
        ])?;
        self.inside(&["link", "set", &self.inner, "up"])?;
        self.inside(&["link", "set", "lo", "up"])
    }

    fn inside(&self, words: &[&str]) -> Result<(), String> {
        ip(&[&["-n", &self.name], words].concat())
    }

    /// The controller as this machine reaches it.
    pub fn controller(&self, pool: &Pool) -> String {
        let there = pool.controller();
        format!(
            "{}:{}",
            self.near,
            there.rsplit_once(':').expect("a port").1
        )
    }

    /// Starts gpud in it, with the configuration that is there.
    pub fn start(&mut self, pool: &Pool, config: &Path) {
        self.config = config.to_owned();
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())
            .unwrap();
        let gpud = pool.command("gpud");
        let mut daemon = self.command(&gpud);
        daemon
            .args(["run", "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.daemon = Some(daemon.spawn().unwrap());
    }

    /// A command of the pool in this network.
    pub fn command(&self, program: &Command) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.name))
            .arg("--")
            .arg(program.get_program())
            .args(program.get_args());
        command.env_clear();
        for (name, value) in program.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command
    }

    pub fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }

    fn log_path(&self) -> PathBuf {
        self.config.with_extension("namespace-log")
    }

    /// What its gpud wrote.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Pulls the cable, or plugs it in again.
    pub fn plug(&self, plugged: bool) {
        ip(&[
            "link",
            "set",
            &self.outer,
            if plugged { "up" } else { "down" },
        ])
        .unwrap();
    }

    /// Both ends send and nothing arrives, and neither is told: each has a wrong hardware address for the other.
    pub fn swallow(&self, swallows: bool) {
        let (here, there) = (["dev", &self.outer], ["dev", &self.inner]);
        if swallows {
            let wrong = ["lladdr", "02:00:00:00:00:01", "nud", "permanent"];
            ip(&[&["neigh", "replace", &self.far][..], &wrong, &here].concat()).unwrap();
            self.inside(&[&["neigh", "replace", &self.near][..], &wrong, &there].concat())
                .unwrap();
        } else {
            ip(&[&["neigh", "del", &self.far][..], &here].concat()).unwrap();
            self.inside(&[&["neigh", "del", &self.near][..], &there].concat())
                .unwrap();
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::thread::panicking() && self.daemon.is_some() {
            eprintln!("--- gpud in {} ---\n{}", self.name, self.log());
        }
        self.stop();
        let _ = ip(&["link", "del", &self.outer]);
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    if !Path::new("/usr/sbin/ip").exists() && !Path::new("/sbin/ip").exists() {
        return Err("there is no ip (package iproute2)".to_owned());
    }
    let said = say(Command::new("ip")
        .args(words)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin"));
    if said.code == 0 {
        Ok(())
    } else {
        Err(format!("ip {}: {}", words.join(" "), said.err.trim()))
    }
}
