//! Making one container: the namespace of its user, its files as layers over the image, and the runtime that turns them into a
//! container. The container's first process waits for ever in the runtime; tasks join its namespaces.

use crate::container::ContainerError;
use crate::container::bundle::{GivenBundle, config};
use crate::container::gpus::GpuEdits;
use crate::container::image::{ImageConfig, read_bounded};
use crate::container::order::ContainerOrder;
use crate::container::program;
use crate::container::store::{ImageStore, StoredImage};
use anyhow::{Context, bail};
use gmodel::container::ImageSource;
use gmodel::image_pull::PullProgress;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const CRUN: &str = "crun";
/// Beside the containers of a run: the image that was pulled for all of them, by the name that was asked for.
pub const PULLED: &str = "pulled.json";
const MAX_PASSWD_BYTES: u64 = 1 << 20;

/// A container that is there, as its directory says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LiveContainer {
    pub image: StoredImage,
    /// Variables of its GPUs' driver.
    #[serde(default)]
    pub gpu_env: Vec<String>,
    /// The process that waits in its namespaces.
    pub pid: i32,
    /// When it was started: a number is given again.
    pub pid_start: u64,
    /// Tasks that have joined, and of these that have ended, where that is waited for.
    pub joined: u32,
    pub ended: u32,
}

/// Brings the image in, unless it is `kept`, and makes the container.
///
/// # Errors
/// With a sentence, and whether the user, the registry or the node is at fault.
pub fn make(
    order: &ContainerOrder,
    kept: Option<StoredImage>,
    progress: &mut dyn FnMut(PullProgress),
) -> Result<LiveContainer, ContainerError> {
    let image = match kept.filter(|_| order.has_name()) {
        Some(kept) => kept,
        None => image_of(order, progress)?,
    };
    let state = order.dir.join("state");
    gsys::removal::remove_tree(&state).map_err(ContainerError::of_file("removing", &state))?;
    let lower = image.lower.to_string_lossy();
    if lower.contains([':', ',', '\\']) {
        return Err(ContainerError::user(format_args!(
            "{lower}: a directory with ':', ',' or '\\' in its name cannot be an image"
        )));
    }
    for name in ["upper", "work", "merged", "state"] {
        let dir = order.dir.join(name);
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&dir);
        made.map_err(ContainerError::of_file("making", &dir))?;
    }
    // Which images runs of this node use.
    let used = order.dir.join("image");
    fs::write(&used, lower.as_bytes()).map_err(ContainerError::of_file("writing", &used))?;
    add_user(order, &image.lower);
    let gpus = GpuEdits::of(order)?;
    let text = config(order, &gpus, &order.dir.join("merged"), |path| {
        fs::metadata(path).is_ok()
    });
    let file = order.dir.join("config.json");
    fs::write(&file, text).map_err(ContainerError::of_file("writing", &file))?;
    let file = order.dir.join("order.json");
    let text = serde_json::to_vec(&(order, &image.lower)).map_err(ContainerError::node)?;
    fs::write(&file, text).map_err(ContainerError::of_file("writing", &file))?;
    let pid = call_creator(order)?;
    let pid_start = start_of(pid)
        .ok_or_else(|| ContainerError::node("the container's first process ended at once"))?;
    Ok(LiveContainer {
        image,
        gpu_env: gpus.env,
        pid,
        pid_start,
        joined: 0,
        ended: 0,
    })
}

/// The image that was brought in before the job started, where it is this one.
fn pulled(order: &ContainerOrder) -> Option<StoredImage> {
    let text = read_bounded(&order.dir.with_file_name(PULLED)).ok()?;
    let (name, image): (String, StoredImage) = serde_json::from_slice(&text).ok()?;
    (name == order.spec.image && image.lower.is_dir()).then_some(image)
}

/// Its image, brought in if it is not here.
///
/// # Errors
/// With a sentence, and whether the user, the registry or the node is at fault.
pub fn image_of(
    order: &ContainerOrder,
    progress: &mut dyn FnMut(PullProgress),
) -> Result<StoredImage, ContainerError> {
    if program::find(CRUN).is_none() {
        return Err(ContainerError::node(
            "this node has no crun, which containers need",
        ));
    }
    if !order.spec.bundle.is_empty() {
        let dir = Path::new(&order.spec.bundle);
        let bundle = GivenBundle::parse(&read_bounded(&dir.join("config.json"))?, dir)?;
        return Ok(StoredImage {
            lower: bundle.root.path,
            name: order.spec.bundle.clone(),
            config: ImageConfig {
                env: bundle.process.env,
                work_dir: bundle.process.cwd,
                ..ImageConfig::default()
            },
            bytes: 0,
        });
    }
    if order.spec.image.is_empty() {
        return Err(ContainerError::user(format_args!(
            "there is no container {:?} in this job on this node. Make it with --container-image first",
            order.spec.name
        )));
    }
    if let Some(image) = pulled(order) {
        return Ok(image);
    }
    let source = ImageSource::parse(&order.spec.image).map_err(ContainerError::user)?;
    ImageStore {
        dir: &order.images,
        run: order.dir.parent().unwrap_or(&order.dir),
        cache_bytes: order.cache_bytes,
        registry_patience: Duration::from_secs(u64::from(order.registry_timeout_secs.max(1))),
        progress,
    }
    .image(&source)
}

/// The user has a name in the container, as on the node, unless the image gives it one. What cannot be added is no reason to fail.
fn add_user(order: &ContainerOrder, lower: &Path) {
    let (lower, upper) = (lower.join("etc"), order.dir.join("upper/etc"));
    if order.is_root_inside() || !fs::symlink_metadata(&lower).is_ok_and(|meta| meta.is_dir()) {
        return;
    }
    let home = if order.home.is_empty() {
        "/"
    } else {
        &order.home
    };
    let lines = [
        (
            "passwd",
            format!(
                "{}:x:{}:{}::{home}:/bin/sh\n",
                order.user, order.uid, order.gid
            ),
            order.uid,
        ),
        (
            "group",
            format!("{}:x:{}:\n", order.user, order.gid),
            order.gid,
        ),
    ];
    for (name, line, id) in lines {
        let old = lower.join(name);
        let is_plain = fs::symlink_metadata(&old)
            .is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_PASSWD_BYTES);
        let text = if is_plain {
            fs::read_to_string(&old).unwrap_or_default()
        } else {
            String::new()
        };
        let is_known = text
            .lines()
            .any(|line| line.split(':').nth(2) == Some(&id.to_string()));
        let mut place = upper.join(name);
        if is_known || place.exists() {
            continue;
        }
        let _ = DirBuilder::new().recursive(true).mode(0o755).create(&upper);
        let newline = if text.is_empty() || text.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        let _ = fs::write(&mut place, format!("{text}{newline}{line}"));
    }
}

/// A process of its own: it ends in other namespaces than it began in.
fn call_creator(order: &ContainerOrder) -> Result<i32, ContainerError> {
    let words = order.dir.join("words");
    let file = File::create(&words).map_err(ContainerError::of_file("making", &words))?;
    let status = Command::new("/proc/self/exe")
        .arg("--container-create")
        .arg(&order.dir)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .status()
        .map_err(ContainerError::node)?;
    if !status.success() {
        let said = fs::read_to_string(&words).unwrap_or_default();
        let said: String = said
            .trim()
            .chars()
            .filter(|c| !c.is_control())
            .take(600)
            .collect();
        return Err(ContainerError::user(format_args!(
            "the container could not be made: {said}"
        )));
    }
    let pid = fs::read_to_string(order.dir.join("pid")).ok();
    pid.and_then(|text| text.trim().parse().ok())
        .ok_or_else(|| ContainerError::node("the runtime names no process"))
}

/// `gstepd --container-create DIR`: goes into new namespaces, puts the container's files together, and calls the runtime.
///
/// # Errors
/// What the kernel or the runtime refused.
pub fn create(dir: &Path) -> anyhow::Result<()> {
    let (order, lower): (ContainerOrder, PathBuf) =
        serde_json::from_slice(&fs::read(dir.join("order.json"))?)?;
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
        .context("this node lets users make no namespaces of their own (user.max_user_namespaces, or AppArmor)")?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {} 1", order.uid)),
        ("gid_map", format!("0 {} 1", order.gid)),
    ] {
        let path = Path::new("/proc/self").join(file);
        fs::File::options()
            .write(true)
            .open(&path)?
            .write_all(text.as_bytes())?;
    }
    lay(dir, &lower)?;
    let at = |name: &str| dir.join(name);
    let crun = program::find(CRUN).context("there is no crun")?;
    let status = Command::new(crun)
        .arg(format!("--root={}", at("state").display()))
        .args([
            "--cgroup-manager=disabled",
            "create",
            "--no-new-keyring",
            "--bundle",
        ])
        .arg(dir)
        .arg("--pid-file")
        .arg(at("pid"))
        .arg("box")
        .env("PATH", "/usr/bin:/bin")
        .status()?;
    if !status.success() {
        bail!("crun ended with {status}");
    }
    Ok(())
}

/// Puts a writable layer over the image's files, in a mount namespace of our own.
fn lay(dir: &Path, lower: &Path) -> anyhow::Result<()> {
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
    let at = |name: &str| dir.join(name);
    let layers = format!(
        "userxattr,lowerdir={},upperdir={},workdir={}",
        lower.display(),
        at("upper").display(),
        at("work").display()
    );
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(
        Some("overlay"),
        &at("merged"),
        Some("overlay"),
        flags,
        Some(layers.as_str()),
    )
    .with_context(|| format!("laying a writable layer over {}", lower.display()))?;
    // crun knows trees of v1 or of v2, not both; it has no business in either.
    let unified = Path::new("/sys/fs/cgroup/unified");
    if unified.is_dir() {
        mount(
            Some("tmpfs"),
            unified,
            Some("tmpfs"),
            MsFlags::MS_RDONLY,
            none,
        )?;
    }
    Ok(())
}

/// When a process was started, in the kernel's ticks; `None`: it is gone.
pub fn start_of(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_ascii_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}
