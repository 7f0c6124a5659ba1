//! Bringing a sandbox up: directories, simulated GPUs, configuration, daemons, joins.

use super::daemon;
use super::down;
use super::layout::{HOLLOW, Record, Sandbox, make_dir, make_open_dir, run_dir, tag_of};
use crate::slurm_names;
use anyhow::{Context, bail};
use gsys::device_fence::DeviceNumber;
use gsys::device_node::{make_char_device, unused_major};
use gsys::nvml::CapMinors;
use gwire::api::{NodeRow, TokenReply, TokenRequest};
use gwire::client::Client;
use serde::Deserialize;
use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Minors set aside for each node: unique on the machine under one major.
const MINORS_PER_NODE: u32 = 64;
/// Room for sockets and short scripts.
const RUN_DIR_BYTES: u64 = 64 << 20;
/// Minors of `nvidiactl` and `nvidia-uvm`, above those of all nodes.
const CONTROL_MINOR: u32 = 64 * MINORS_PER_NODE;

/// Minors of `nvidia-caps`, under the same major: above all others.
const CAP_MINOR: u32 = 2 * CONTROL_MINOR;
/// Minor of IMEX channel 0, above those of capabilities; gpud makes the others as jobs need them.
const IMEX_MINOR: u32 = 4 * CONTROL_MINOR;

#[derive(clap::Args)]
pub(super) struct UpArgs {
    /// Directory of the sandbox; else that of GPUPOOL_CONFIG
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Nodes, each with its own gpud
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: u32,
    /// GPUs of each node: h100:8, l4:4, h100:4,a100-80:4, none; or one such for each node, separated by /; real: this machine's own, for one node
    #[arg(long, value_name = "TYPE:N", default_value = "h100:8")]
    gpus: String,
    /// Nodes more that speak the real protocol and only pretend to run, for scale tests
    #[arg(long, value_name = "M", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    hollow_nodes: u32,
    /// CPUs each node declares
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    cpus: u32,
    /// Memory each node declares
    #[arg(long, value_name = "SIZE", default_value = "512G")]
    mem: String,
}

pub fn up(args: &UpArgs) -> anyhow::Result<()> {
    let gpus = gpus_by_node(&args.gpus, args.nodes)?;
    let mem_bytes = gmodel::size::parse_bytes(&args.mem).context("--mem")?;
    let programs = programs()?;
    make_open_dir(&args.dir)?;
    let dir = fs::canonicalize(&args.dir)?;
    let sandbox = new_sandbox(&dir, programs, args)?;
    let hollow = args.hollow_nodes;
    let and = if hollow > 0 {
        format!(" and {hollow} hollow ones")
    } else {
        String::new()
    };
    say(&format!(
        "starting {} node(s){and} in {} ...",
        args.nodes,
        dir.display()
    ));
    let built = build(&sandbox, &gpus, args.cpus, mem_bytes);
    if let Err(error) = built {
        say("it failed; cleaning up");
        let _ = down::down(&sandbox, true);
        return Err(error);
    }
    if sandbox.record.isolated {
        say(
            "ready. Jobs of root are accepted here, with fewer powers; GPUs are fenced by the kernel.",
        );
    } else {
        say("ready. Started without root: GPUs are counted, nothing keeps jobs apart.");
    }
    say("`gq web` prints a link to its page, for a browser of this machine.");
    println!(
        "export GPUPOOL_CONFIG={}",
        shell_word(&sandbox.client_config())
    );
    Ok(())
}

fn say(text: &str) {
    eprintln!("gadm sandbox: {text}");
}

/// `h100:8` for all, or `h100:8/l4:4` one for each node in turn (the last for the rest).
fn gpus_by_node(text: &str, nodes: u32) -> anyhow::Result<Vec<Option<String>>> {
    let parts: Vec<&str> = text.split('/').collect();
    if parts.len() > nodes as usize {
        bail!(
            "--gpus {text}: {} kinds of nodes and {nodes} node(s)",
            parts.len()
        );
    }
    if nodes > 1 && parts.contains(&REAL) {
        bail!("--gpus {text}: this machine's own GPUs are one node's. Try --nodes 1 --gpus {REAL}");
    }
    let kind = |at: usize| parts[at.min(parts.len() - 1)];
    (0..nodes as usize)
        .map(|at| match kind(at) {
            "none" | "0" => Ok(None),
            "" => bail!("--gpus {text}: an empty part; say h100:8 or none"),
            gpus => Ok(Some(gpus.to_owned())),
        })
        .collect()
}

/// The directory of our programs: that of `gadm`, as in a build, or the one that the package gpupool-sandbox fills.
fn programs() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let beside = own.parent().context("gadm has no directory")?;
    let packaged = beside.join("../lib/gpupool/sandbox");
    match (first_missing(beside), first_missing(&packaged)) {
        (None, _) => Ok(beside.to_owned()),
        (_, None) => Ok(fs::canonicalize(packaged)?),
        (Some(name), _) => bail!(
            "{name} is not beside gadm in {}. Install the package gpupool-sandbox, or build the whole workspace",
            beside.display()
        ),
    }
}

fn first_missing(programs: &Path) -> Option<&'static str> {
    ["gpuctld", "gpud", "gstepd", "gcheck", "nvml-sim", LIBRARY]
        .into_iter()
        .find(|name| !programs.join(name).exists())
}

/// In place of simulated GPUs those of this machine, by its own driver.
const REAL: &str = "real";
const LIBRARY: &str = "libnvidia_ml_sim.so";

fn new_sandbox(dir: &Path, programs: PathBuf, args: &UpArgs) -> anyhow::Result<Sandbox> {
    refuse_second(dir)?;
    let isolated = nix::unistd::geteuid().is_root();
    let major = if isolated {
        Some(unused_major(&majors_of_others()?)?)
    } else {
        None
    };
    // The first kind of `--gpus`, if hollow nodes can pretend to it: one type, not a mixed board.
    let first = args
        .gpus
        .split('/')
        .next()
        .filter(|kind| kind.contains(':') && !kind.contains(','));
    let record = Record {
        tag: tag_of(dir),
        nodes: (1..=args.nodes).map(|n| format!("node{n}")).collect(),
        port: free_port()?,
        isolated,
        programs,
        major,
        hollow_nodes: args.hollow_nodes,
        hollow_gpus: first.map(str::to_owned),
    };
    let sandbox = Sandbox {
        dir: dir.to_owned(),
        record,
    };
    make_open_dir(&sandbox.run_dir())?;
    if isolated && !gsys::mount::is_tmpfs(&sandbox.run_dir())? {
        // As /run is where there is systemd, with a socket or two for each job.
        match gsys::mount::mount_tmpfs(&sandbox.run_dir(), RUN_DIR_BYTES) {
            Ok(()) => make_open_dir(&sandbox.run_dir())?,
            // As in containers. It is for speed alone.
            Err(e) => say(&format!(
                "{} stays on the disk: {e}",
                sandbox.run_dir().display()
            )),
        }
    }
    if let Some(major) = major {
        fs::write(sandbox.run_dir().join("major"), major.to_string())?;
    }
    sandbox.save()?;
    Ok(sandbox)
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// # Errors
/// The directory holds a sandbox already.
fn refuse_second(dir: &Path) -> anyhow::Result<()> {
    if !dir.join("sandbox.json").exists() {
        return Ok(());
    }
    let old = Sandbox::find(Some(dir))?;
    let running: Vec<_> = old
        .daemons()
        .filter(|name| daemon::alive(&old, name).is_some())
        .collect();
    let state = if running.is_empty() {
        "stopped".into()
    } else {
        running.join(", ")
    };
    let dir = dir.display();
    bail!("{dir} holds a sandbox already ({state}). `gadm sandbox down --dir {dir}` ends it.");
}

/// Majors that other sandboxes of this machine took.
fn majors_of_others() -> anyhow::Result<Vec<u32>> {
    let Some(base) = run_dir("x").parent().map(Path::to_owned) else {
        return Ok(Vec::new());
    };
    let Ok(entries) = fs::read_dir(base) else {
        return Ok(Vec::new());
    };
    let read = |dir: PathBuf| {
        fs::read_to_string(dir.join("major"))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    Ok(entries
        .filter_map(|entry| read(entry.ok()?.path()))
        .collect())
}

fn build(
    sandbox: &Sandbox,
    gpus: &[Option<String>],
    cpus: u32,
    mem_bytes: u64,
) -> anyhow::Result<()> {
    write_controller(sandbox)?;
    make_cluster(sandbox)?;
    daemon::spawn(sandbox, "gpuctld")?;
    daemon::wait_for_controller(sandbox)?;
    let client_toml = format!("socket = {}\n", toml_text(&sandbox.socket()));
    fs::write(sandbox.client_config(), client_toml)?;
    for (at, (name, gpus)) in sandbox.record.nodes.iter().zip(gpus).enumerate() {
        write_node(sandbox, name, at as u32, gpus.as_deref(), cpus, mem_bytes)?;
        join(sandbox, name)?;
        daemon::spawn(sandbox, name)?;
    }
    if sandbox.record.hollow_nodes > 0 {
        write_hollow(sandbox, cpus, mem_bytes)?;
        daemon::spawn(sandbox, HOLLOW)?;
    }
    wait_for_nodes(sandbox)
}

/// One process that plays many nodes; it joins each with a token of its own.
fn write_hollow(sandbox: &Sandbox, cpus: u32, mem_bytes: u64) -> anyhow::Result<()> {
    let home = sandbox.home(HOLLOW);
    make_open_dir(&home)?;
    make_dir(&home.join("state"), 0o700)?;
    let text = format!(
        "# Written by gadm sandbox.\ncontroller = \"{}\"\nstate_dir = {}\nspool_dir = {}\n\
         run_dir = {}\nisolation = \"none\"\ngpus = \"none\"\ncpus = {cpus}\nmem_bytes = {mem_bytes}\n",
        sandbox.controller(),
        toml_text(&home.join("state")),
        toml_text(&home.join("spool")),
        toml_text(&sandbox.run_dir().join(HOLLOW)),
    );
    fs::write(home.join("gpud.toml"), text)?;
    let mut client = Client::new(sandbox.socket());
    let mut tokens = String::new();
    for n in 1..=sandbox.record.hollow_nodes {
        let name = Some(format!("h{n}"));
        let ask = TokenRequest {
            name,
            ttl_secs: Some(3600),
            ..Default::default()
        };
        let token: TokenReply = client.post("/v1/tokens", &ask)?;
        tokens.push_str(&token.token);
        tokens.push('\n');
    }
    use std::os::unix::fs::OpenOptionsExt;
    let file = home.join("tokens");
    let mut open = fs::OpenOptions::new();
    let mut file = open
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(file)?;
    std::io::Write::write_all(&mut file, tokens.as_bytes())?;
    Ok(())
}

fn write_controller(sandbox: &Sandbox) -> anyhow::Result<()> {
    let home = sandbox.home("gpuctld");
    make_open_dir(&home.join("partitions.d"))?;
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid())?
        .map_or_else(|| nix::unistd::geteuid().to_string(), |user| user.name);
    let operators = if sandbox.record.isolated {
        String::new()
    } else {
        format!("operators = [{user:?}]\n")
    };
    // Nothing listens on the controller's own port yet, so it may come again.
    let web_port = loop {
        let port = free_port()?;
        if port != sandbox.record.port {
            break port;
        }
    };
    let text = format!(
        "# Written by gadm sandbox; edit it and `gadm reload`.\n\
         cluster = \"sandbox\"\nstate_dir = {state}\nsocket = {socket}\n\
         listen = \"{address}\"\nadvertise = \"{address}\"\n\
         allow_root_jobs = {root}\nmin_free = \"64M\"\n{operators}\
         \n[web]\nlisten = \"127.0.0.1:{web_port}\"\n",
        state = toml_text(&home.join("state")),
        socket = toml_text(&sandbox.socket()),
        address = sandbox.controller(),
        root = sandbox.record.isolated,
    );
    fs::write(home.join("gpuctld.toml"), text)?;
    let main = "[partition.main]\ndefault = true\nnodes = \"ALL\"\n\
                max_time = \"7-0\"\ndefault_time = \"1:00:00\"\n";
    fs::write(home.join("partitions.d/main.toml"), main)?;
    Ok(())
}

/// For jobs on the nodes; a build of some programs only has no links.
fn link_slurm_names(sandbox: &Sandbox) -> anyhow::Result<PathBuf> {
    let (links, programs) = (
        sandbox.run_dir().join("slurm-names"),
        &sandbox.record.programs,
    );
    if programs.join("gslurm").exists() {
        slurm_names::link_all(&links, programs).map_err(|failure| anyhow::anyhow!(failure.text))?;
    }
    Ok(links)
}

fn write_node(
    sandbox: &Sandbox,
    name: &str,
    at: u32,
    gpus: Option<&str>,
    cpus: u32,
    mem_bytes: u64,
) -> anyhow::Result<()> {
    let home = sandbox.home(name);
    for dir in ["dev", "nvml"] {
        make_open_dir(&home.join(dir))?;
    }
    for dir in ["state", "spool"] {
        make_dir(&home.join(dir), if dir == "spool" { 0o711 } else { 0o700 })?;
    }
    let run = sandbox.run_dir().join(name);
    make_open_dir(&run)?;
    let mut text = format!(
        "# Written by gadm sandbox.\ncontroller = \"{controller}\"\nname = \"{name}\"\n\
         state_dir = {state}\nspool_dir = {spool}\nrun_dir = {run}\n\
         cgroup_tag = \"{tag}/{name}\"\nisolation = \"{isolation}\"\n\
         cpus = {cpus}\nmem_bytes = {mem_bytes}\n",
        controller = sandbox.controller(),
        state = toml_text(&home.join("state")),
        spool = toml_text(&home.join("spool")),
        run = toml_text(&run),
        tag = sandbox.cgroup_tag(),
        isolation = if sandbox.record.isolated {
            "fence"
        } else {
            "none"
        },
    );
    let links = link_slurm_names(sandbox)?;
    let _ = writeln!(text, "slurm_names = {}", toml_text(&links));
    match gpus {
        Some(REAL) => {}
        Some(gpus) => {
            let _ = writeln!(text, "dev_dir = {}", toml_text(&home.join("dev")));
            simulate(sandbox, name, at, gpus)?;
            let library = home.join("nvml").join(LIBRARY);
            // The same file is both libraries of the driver.
            for key in ["nvml_lib", "cuda_lib"] {
                let _ = writeln!(text, "{key} = {}", toml_text(&library));
            }
            text.push_str("gpu_check_size = \"small\"\n");
            // By that name the program is another one.
            let control = home.join("nvml/nvidia-cuda-mps-control");
            std::os::unix::fs::symlink(sandbox.record.programs.join("nvml-sim"), &control)?;
            let _ = writeln!(text, "mps_control = {}", toml_text(&control));
            // Where `sandbox fault NODE GPU xid N` writes the driver's line.
            let log = home.join("nvml/kmsg");
            fs::File::create(&log)?;
            let _ = writeln!(text, "kernel_log = {}", toml_text(&log));
        }
        None => text.push_str("gpus = \"none\"\n"),
    }
    fs::write(home.join("gpud.toml"), text)?;
    Ok(())
}

/// Simulated GPUs: a copy of the library beside its state, and device files under our own major.
fn simulate(sandbox: &Sandbox, name: &str, at: u32, gpus: &str) -> anyhow::Result<()> {
    let home = sandbox.home(name);
    let nvml = home.join("nvml");
    fs::copy(sandbox.record.programs.join(LIBRARY), nvml.join(LIBRARY))?;
    let seed = format!("{}-{name}", sandbox.record.tag);
    let base = (at * MINORS_PER_NODE).to_string();
    daemon::nvml_sim(
        &sandbox.record.programs,
        &["init", "--dir"],
        &nvml,
        |command| {
            command.args(["--gpus", gpus, "--seed", &seed, "--minor-base", &base]);
        },
    )
    .with_context(|| format!("--gpus {gpus}"))?;
    let Some(major) = sandbox.record.major else {
        return Ok(());
    };
    let dev = home.join("dev");
    // Where the simulated CUDA looks whether it may open a GPU.
    std::os::unix::fs::symlink(&dev, nvml.join("dev"))?;
    let minors = simulated_minors(&nvml)?;
    for minor in &minors {
        make_char_device(
            &dev.join(format!("nvidia{minor}")),
            DeviceNumber {
                major,
                minor: *minor,
            },
        )?;
    }
    fs::create_dir(dev.join("nvidia-caps"))?;
    for cap in CapMinors::read(&nvml.join("nvidia-caps/mig-minors")).of_whole_instances() {
        let path = dev.join(format!("nvidia-caps/nvidia-cap{cap}"));
        make_char_device(
            &path,
            DeviceNumber {
                major,
                minor: CAP_MINOR + cap,
            },
        )?;
    }
    fs::create_dir(dev.join("nvidia-caps-imex-channels"))?;
    make_char_device(
        &dev.join("nvidia-caps-imex-channels/channel0"),
        DeviceNumber {
            major,
            minor: IMEX_MINOR,
        },
    )?;
    for (file, offset) in [("nvidiactl", 0), ("nvidia-uvm", 1), ("nvidia-uvm-tools", 2)] {
        let minor = CONTROL_MINOR + at * 4 + offset;
        make_char_device(&dev.join(file), DeviceNumber { major, minor })?;
    }
    Ok(())
}

/// Minors of the simulated GPUs, from the state nvml-sim wrote.
fn simulated_minors(dir: &Path) -> anyhow::Result<Vec<u32>> {
    #[derive(Deserialize)]
    struct SimState {
        gpus: Vec<SimGpu>,
    }
    #[derive(Deserialize)]
    struct SimGpu {
        minor: u32,
    }
    let text = fs::read_to_string(dir.join("state.json"))?;
    let state: SimState = serde_json::from_str(&text).context("state.json of nvml-sim")?;
    Ok(state.gpus.into_iter().map(|gpu| gpu.minor).collect())
}

/// Database and certificates, as before a controller's first start.
fn make_cluster(sandbox: &Sandbox) -> anyhow::Result<()> {
    let config = sandbox.home("gpuctld").join("gpuctld.toml");
    let mut command = Command::new(sandbox.record.programs.join("gpuctld"));
    let output = command
        .args(["new", "--config"])
        .arg(config)
        .stdin(Stdio::null())
        .output()
        .context("cannot run gpuctld new")?;
    if !output.status.success() {
        bail!(
            "the cluster could not be made: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Invites the node and lets it join, as an administrator would.
fn join(sandbox: &Sandbox, name: &str) -> anyhow::Result<()> {
    let mut client = Client::new(sandbox.socket());
    let ask = TokenRequest {
        name: Some(name.to_owned()),
        ttl_secs: Some(600),
        ..Default::default()
    };
    let token: TokenReply = client.post("/v1/tokens", &ask)?;
    let output = Command::new(sandbox.record.programs.join("gpud"))
        .args([
            "join",
            "--controller",
            &sandbox.controller(),
            "--token",
            &token.token,
        ])
        .arg("--state-dir")
        .arg(sandbox.home(name).join("state"))
        .stdin(Stdio::null())
        .output()
        .context("cannot run gpud join")?;
    if !output.status.success() {
        bail!(
            "{name} could not join: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

fn wait_for_nodes(sandbox: &Sandbox) -> anyhow::Result<()> {
    #[derive(Deserialize)]
    struct NodeList {
        nodes: Vec<NodeRow>,
    }
    let listed = || -> anyhow::Result<Vec<NodeRow>> {
        let nodes: NodeList = Client::new(sandbox.socket()).get("/v1/nodes")?;
        Ok(nodes.nodes)
    };
    let idle = |node: &&NodeRow| node.state.starts_with("IDLE") && !node.state.contains('+');
    for name in &sandbox.record.nodes {
        daemon::wait(sandbox, name, || {
            let nodes = listed()?;
            let node = nodes.iter().find(|node| node.name == *name);
            if let Some(node) = node.filter(|node| !node.unfit.is_empty()) {
                bail!("{name} takes no work: {}", node.unfit);
            }
            Ok(node.as_ref().is_some_and(idle))
        })?;
    }
    if sandbox.record.hollow_nodes > 0 {
        let all = sandbox.record.nodes.len() + sandbox.record.hollow_nodes as usize;
        daemon::wait(sandbox, HOLLOW, || {
            Ok(listed()?.iter().filter(idle).count() == all)
        })?;
    }
    Ok(())
}

/// A path as a TOML basic string.
fn toml_text(path: &Path) -> String {
    toml::Value::String(String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned())
        .to_string()
}

/// A path as one word for a shell.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_may_differ_in_their_gpus() {
        let kinds = gpus_by_node("h100:8/l4:4", 3).unwrap();
        assert_eq!(
            kinds,
            [
                Some("h100:8".into()),
                Some("l4:4".into()),
                Some("l4:4".into())
            ]
        );
        assert_eq!(gpus_by_node("none", 1).unwrap(), [None]);
        assert!(gpus_by_node("h100:8/l4:4", 1).is_err());
    }

    #[test]
    fn paths_survive_the_shell() {
        assert_eq!(shell_word(Path::new("/tmp/a b'c")), "'/tmp/a b'\\''c'");
        assert_eq!(shell_word(Path::new("/tmp/pool")), "/tmp/pool");
    }
}
