//! What the supervisor tells a task of its container, and the launch that starts the task in it.

use crate::container::ContainerError;
use gmodel::container::ContainerSpec;
use gmodel::supervise::{DriverFiles, RunGpu, RunSetup, StepOrder};
use gsys::launch::LaunchSpec;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};

/// One container of a run. A task's command line has it; nothing in it is secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerOrder {
    pub spec: ContainerSpec,
    /// Directory of the container, the user's.
    pub dir: PathBuf,
    /// Directory of the user's images.
    pub images: PathBuf,
    /// What they may take, those in use aside.
    pub cache_bytes: u64,
    /// For a registry that sends nothing.
    pub registry_timeout_secs: u32,
    /// Tasks that share the container here.
    pub tasks: u32,
    pub uid: u32,
    pub gid: u32,
    pub user: String,
    pub home: String,
    pub shell: String,
    /// Files of the node that the container sees in the same place: the script, the socket of marks.
    pub files: Vec<String>,
    pub gpus: Vec<ContainerGpu>,
    pub driver: DriverFiles,
    /// Where a task says how far its container is; `None`: on stderr.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub news: Option<i32>,
}

/// A GPU or slice that the container sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerGpu {
    pub uuid: String,
    /// Device file of the node: in the container it has its last name, in /dev.
    pub device: String,
    pub is_slice: bool,
}

impl ContainerGpu {
    fn of(gpu: &RunGpu) -> Self {
        Self {
            uuid: gpu.uuid.clone(),
            device: gpu.device.clone(),
            is_slice: !gpu.gpu.is_empty(),
        }
    }
}

/// A container of the run: `name` says which, unless its user gave it one.
fn order(spec: &ContainerSpec, setup: &RunSetup, name: &str, tasks: u32) -> ContainerOrder {
    let name = match spec.name.as_str() {
        "" => name.to_owned(),
        kept => format!("name-{kept}"),
    };
    ContainerOrder {
        spec: spec.clone(),
        dir: Path::new(&setup.containers.boxes).join(name),
        images: Path::new(&setup.containers.images).into(),
        cache_bytes: setup.containers.cache_bytes,
        registry_timeout_secs: setup.containers.registry_timeout_secs,
        tasks,
        uid: setup.uid,
        gid: setup.gid,
        user: String::new(),
        home: setup.home.clone(),
        shell: setup.shell.clone(),
        files: Vec::new(),
        gpus: setup.gpus.iter().map(ContainerGpu::of).collect(),
        driver: match setup.gpus.is_empty() {
            true => DriverFiles::default(),
            false => setup.containers.driver.clone(),
        },
        news: None,
    }
}

/// The container of a step's tasks.
pub fn step_order(spec: &ContainerSpec, setup: &RunSetup, step: &StepOrder) -> ContainerOrder {
    order(
        spec,
        setup,
        &format!("step-{}", step.step),
        step.ranks.len() as u32,
    )
}

/// The container of a job's script.
pub fn batch_order(spec: &ContainerSpec, setup: &RunSetup) -> ContainerOrder {
    order(spec, setup, "batch", 1)
}

/// Turns the launch of a program into that of a task which goes into the container and becomes the program there.
///
/// # Errors
/// The user's directories cannot be made.
pub fn contain(
    launch: &mut LaunchSpec<'_>,
    mut order: ContainerOrder,
    user: &str,
) -> Result<(), ContainerError> {
    // Part of it becomes a path, below which root makes a directory.
    order.spec.check().map_err(ContainerError::user)?;
    make_dirs(&order)?;
    user.clone_into(&mut order.user);
    let variable = |name: &str| launch.env.iter().find(|(known, _)| known == name);
    order.files.extend(
        ["GSUB_MARK_SOCKET"]
            .into_iter()
            .filter_map(|name| Some(variable(name)?.1.to_string_lossy().into_owned())),
    );
    let text = serde_json::to_string(&order).map_err(ContainerError::node)?;
    let head = ["gstepd", "--container", &text, "--"].map(OsString::from);
    let command = std::mem::take(&mut launch.argv);
    launch.argv = head.into_iter().chain(command).collect();
    // By the kernel's link: the user need not be able to pass the directories above gstepd.
    launch.program = Some("/proc/self/exe".into());
    Ok(())
}

/// Directories of the user's containers in this run, and of the user's images.
///
/// # Errors
/// They cannot be made.
pub fn make_dirs(order: &ContainerOrder) -> Result<(), ContainerError> {
    let (Some(boxes), false) = (order.dir.parent(), order.images.as_os_str().is_empty()) else {
        return Err(ContainerError::node(
            "this node's daemon is of a release without containers",
        ));
    };
    for dir in [boxes, &order.images] {
        user_dir(dir, order.uid, order.gid).map_err(ContainerError::of_file("making", dir))?;
    }
    Ok(())
}

/// A directory that is the user's alone, in one of root's where the user cannot make any.
pub fn user_dir(dir: &Path, uid: u32, gid: u32) -> std::io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e)
            if e.kind() == std::io::ErrorKind::AlreadyExists
                && fs::symlink_metadata(dir)?.is_dir() =>
        {
            Ok(())
        }
        Err(e) => Err(e),
        Ok(()) if nix::unistd::geteuid().is_root() => chown(dir, Some(uid), Some(gid)),
        Ok(()) => Ok(()),
    }
}

impl ContainerOrder {
    /// As its script sees itself.
    pub fn with_script(mut self, script: Option<&Path>) -> Self {
        self.files
            .extend(script.map(|path| path.display().to_string()));
        self
    }

    pub fn is_root_inside(&self) -> bool {
        self.uid == 0 || self.spec.remap_root == Some(true)
    }

    pub fn has_name(&self) -> bool {
        !self.spec.name.is_empty()
    }
}

/// For the job's own process: its container, where it has one.
///
/// # Errors
/// As [`contain`].
pub fn contain_batch(
    launch: &mut LaunchSpec<'_>,
    job: &gmodel::launch_order::LaunchOrder,
    setup: &RunSetup,
    script: Option<&Path>,
) -> Result<(), ContainerError> {
    let Some(spec) = &job.container else {
        return Ok(());
    };
    let order = batch_order(spec, setup).with_script(script);
    contain(launch, order, &job.user.name)?;
    Ok(())
}
