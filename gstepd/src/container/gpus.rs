//! What a container needs of the node's GPU driver: device files, libraries, programs. By the node's CDI spec where it has one for the
//! job's GPUs (`nvidia-ctk cdi generate`), else the driver's libraries by their names. The device fence decides what can be opened.
//! Source: the Container Device Interface; the file names of NVIDIA's driver.

use crate::container::ContainerError;
use crate::container::order::{ContainerGpu, ContainerOrder};
use crate::container::program::{Program, find};
use crate::container::yaml;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const KIND: &str = "nvidia.com/gpu";
/// Files of slices.
const CAPS: &str = "/dev/nvidia-caps/";
const MAX_SPEC_BYTES: u64 = 4 << 20;
/// Stages of OCI that a container passes here; its first process never starts.
const STAGES: [&str; 2] = ["createRuntime", "createContainer"];
/// Where images that are made for NVIDIA's GPUs look for the node's driver; it is told to others.
const LIBRARIES: &str = "/usr/local/nvidia/lib64";
const PROGRAMS: &str = "/usr/local/nvidia/bin";
/// Libraries of the driver, by the heads of their names.
const DRIVER_LIBRARIES: [&str; 7] = [
    "libcuda.so",
    "libcudadebugger.so",
    "libnvcuvid.so",
    "libnvidia-",
    "libnvoptix.so",
    "libnvrm_gpu.so",
    "libnvrm_mem.so",
];
const DRIVER_PROGRAMS: [&str; 3] = ["nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control"];
/// Variables that are lists of directories.
const LISTS: [&str; 2] = ["PATH", "LD_LIBRARY_PATH"];
const LDCONFIG_PATIENCE: Duration = Duration::from_secs(30);

/// What a container has for its GPUs, beside the device files of its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuEdits {
    /// `NAME=value`.
    pub env: Vec<String>,
    /// Source and target.
    pub devices: Vec<(String, String)>,
    pub mounts: Vec<GpuMount>,
    /// Stage, and the hook as the runtime takes it.
    pub hooks: Vec<(String, Value)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuMount {
    pub source: String,
    pub target: String,
    pub options: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    kind: String,
    devices: Vec<Device>,
    container_edits: Edits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: Edits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Edits {
    env: Vec<String>,
    device_nodes: Vec<DeviceNode>,
    mounts: Vec<SpecMount>,
    hooks: Vec<Hook>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DeviceNode {
    path: String,
    host_path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SpecMount {
    host_path: String,
    container_path: String,
    options: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Hook {
    hook_name: String,
    path: String,
    args: Vec<String>,
    env: Vec<String>,
}

impl GpuEdits {
    /// For the GPUs of the order; nothing where it has none.
    ///
    /// # Errors
    /// The node's spec cannot be read, or names what is not there.
    pub fn of(order: &ContainerOrder) -> Result<Self, ContainerError> {
        if order.gpus.is_empty() {
            return Ok(Self::default());
        }
        for path in spec_files(&order.driver.cdi_dirs) {
            let told = |why: String| {
                ContainerError::node(format_args!(
                    "the CDI spec {}: {why}. `nvidia-ctk cdi generate` writes it anew",
                    path.display()
                ))
            };
            let spec = read(&path).map_err(told)?;
            if let Some(edits) = spec.and_then(|spec| spec.edits(&order.gpus)) {
                let edits = edits.map_err(told)?;
                edits.check().map_err(told)?;
                return Ok(edits);
            }
        }
        Ok(driver_files(&known_libraries(order)))
    }

    fn check(&self) -> Result<(), String> {
        let sources = self.mounts.iter().map(|mount| &mount.source);
        let sources = sources.chain(self.devices.iter().map(|(source, _)| source));
        for source in sources {
            fs::metadata(source).map_err(|e| format!("it names {source}: {e}"))?;
        }
        Ok(())
    }

    fn add(&mut self, edits: &Edits) -> Result<(), String> {
        let absolute = |path: &str| match path.starts_with('/') && !path.contains("..") {
            true => Ok(path.to_owned()),
            false => Err(format!("{path:?} is no absolute path")),
        };
        self.env.extend(edits.env.iter().cloned());
        for node in &edits.device_nodes {
            let target = absolute(&node.path)?;
            let source = match node.host_path.as_str() {
                "" => target.clone(),
                source => absolute(source)?,
            };
            self.devices.push((source, target));
        }
        for mount in &edits.mounts {
            self.mounts.push(GpuMount {
                source: absolute(&mount.host_path)?,
                target: absolute(&mount.container_path)?,
                options: mount.options.clone(),
            });
        }
        for hook in edits
            .hooks
            .iter()
            .filter(|hook| STAGES.contains(&hook.hook_name.as_str()))
        {
            is_of_root(Path::new(&absolute(&hook.path)?))?;
            let call = json!({"path": hook.path, "args": hook.args, "env": hook.env});
            self.hooks.push((hook.hook_name.clone(), call));
        }
        Ok(())
    }
}

impl Spec {
    /// What is for all GPUs, and what is for each of these; `None` where it lacks one of them.
    fn edits(&self, gpus: &[ContainerGpu]) -> Option<Result<GpuEdits, String>> {
        let devices: Option<Vec<&Device>> = gpus.iter().map(|gpu| self.device(gpu)).collect();
        let devices = devices?;
        let mut edits = GpuEdits::default();
        let all = std::iter::once(&self.container_edits)
            .chain(devices.iter().map(|device| &device.container_edits));
        for one in all {
            if let Err(why) = edits.add(one) {
                return Some(Err(why));
            }
        }
        Some(Ok(edits))
    }

    /// By its UUID; a whole GPU also by its one device file.
    fn device(&self, gpu: &ContainerGpu) -> Option<&Device> {
        let by_name = self.devices.iter().find(|device| device.name == gpu.uuid);
        by_name.or_else(|| {
            let is_its = |device: &&Device| {
                let nodes = device.container_edits.device_nodes.iter();
                if nodes.clone().any(|node| node.path.starts_with(CAPS)) {
                    return false;
                }
                let mut cards = nodes.filter(|node| is_card(&node.path));
                let is_its = cards.next().is_some_and(|card| {
                    let source = match card.host_path.as_str() {
                        "" => &card.path,
                        source => source,
                    };
                    source == gpu.device
                });
                is_its && cards.next().is_none()
            };
            self.devices.iter().find(is_its).filter(|_| !gpu.is_slice)
        })
    }
}

/// `/dev/nvidia3`
fn is_card(path: &str) -> bool {
    let number = path.strip_prefix("/dev/nvidia");
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// Those of the last directory first, as the interface has it.
fn spec_files(dirs: &[String]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for dir in dirs.iter().rev() {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut of_dir: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|path| {
                let ending = path.extension().and_then(|ending| ending.to_str());
                ending.is_some_and(|ending| ["yaml", "json"].contains(&ending))
            })
            .collect();
        of_dir.sort();
        files.extend(of_dir);
    }
    files
}

/// `None`: it is about devices of another kind.
fn read(path: &Path) -> Result<Option<Spec>, String> {
    is_of_root(path)?;
    let size = fs::metadata(path).map_err(|e| e.to_string())?.len();
    if size > MAX_SPEC_BYTES {
        return Err(format!(
            "it has {size} bytes, and {MAX_SPEC_BYTES} are the most"
        ));
    }
    let text = fs::read_to_string(path).map_err(|e| e.to_string())?;
    let value = yaml::parse(&text)?;
    if value.get("kind").and_then(Value::as_str) != Some(KIND) {
        return Ok(None);
    }
    serde_json::from_value(value)
        .map(Some)
        .map_err(|e| e.to_string())
}

/// What decides of every user's containers is root's alone.
fn is_of_root(path: &Path) -> Result<(), String> {
    let meta = fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let is_roots = meta.is_file() && meta.uid() == 0 && meta.mode() & 0o022 == 0;
    match is_roots {
        true => Ok(()),
        false => Err(format!(
            "{} is to be a file of root's that only root can write",
            path.display()
        )),
    }
}

/// Names by which programs look for a library, and where it is.
fn known_libraries(order: &ContainerOrder) -> Vec<(String, String)> {
    let words = order.dir.join("ldconfig");
    let listed = Program::new("ldconfig", words).ok().and_then(|program| {
        let listed = program.args(["-p"]).run(LDCONFIG_PATIENCE, &mut || Ok(0));
        listed.ok()
    });
    let listed = listed.unwrap_or_default();
    let mut known = of_cache(&String::from_utf8_lossy(&listed));
    // Those of a driver that is not where drivers are.
    for (name, path) in &order.driver.libraries {
        known.retain(|(other, _)| other != name);
        known.push((name.clone(), path.clone()));
    }
    known
}

/// `libcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1`
fn of_cache(listed: &str) -> Vec<(String, String)> {
    let line = |line: &str| {
        let (name, rest) = line.trim().split_once(" (")?;
        let (kind, path) = rest.split_once(") => ")?;
        let is_ours = DRIVER_LIBRARIES.iter().any(|head| name.starts_with(head));
        let is_64_bits = kind.contains("x86-64") || kind.contains("AArch64");
        (is_ours && is_64_bits && path.starts_with('/')).then(|| (name.to_owned(), path.to_owned()))
    };
    let mut known: Vec<(String, String)> = listed.lines().filter_map(line).collect();
    // The first of a name is the one that is used.
    known.sort_by(|a, b| a.0.cmp(&b.0));
    known.dedup_by(|later, first| later.0 == first.0);
    known
}

fn driver_files(libraries: &[(String, String)]) -> GpuEdits {
    let mount = |source: &str, target: String| GpuMount {
        source: source.to_owned(),
        target,
        options: ["bind", "ro", "nosuid", "nodev"]
            .map(str::to_owned)
            .to_vec(),
    };
    let programs = DRIVER_PROGRAMS
        .iter()
        .filter_map(|name| Some((name, find(name)?)));
    let programs: Vec<GpuMount> = programs
        .map(|(name, path)| mount(&path.to_string_lossy(), format!("{PROGRAMS}/{name}")))
        .collect();
    let mut env = Vec::new();
    if !libraries.is_empty() {
        env.push(format!("LD_LIBRARY_PATH={LIBRARIES}"));
    }
    if !programs.is_empty() {
        env.push(format!("PATH={PROGRAMS}"));
    }
    let libraries = libraries
        .iter()
        .map(|(name, path)| mount(path, format!("{LIBRARIES}/{name}")));
    GpuEdits {
        env,
        mounts: libraries.chain(programs).collect(),
        ..GpuEdits::default()
    }
}

/// Lists of directories are made longer, other variables are set unless the job has them.
pub fn set_variables(all: &mut BTreeMap<OsString, OsString>, env: &[String]) {
    for (name, value) in env.iter().filter_map(|line| line.split_once('=')) {
        match all.get_mut(OsStr::new(name)) {
            None => drop(all.insert(name.into(), value.into())),
            Some(known) if LISTS.contains(&name) => {
                known.push(":");
                known.push(value);
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        let text = "
kind: nvidia.com/gpu
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  deviceNodes:
  - path: /dev/nvidiactl
  mounts:
  - hostPath: /usr/lib/libcuda.so.535
    containerPath: /usr/lib/libcuda.so.535
    options: [ro, rbind]
devices:
- name: \"0\"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia3
    - path: /dev/dri/card1
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia3
    - path: /dev/nvidia4
- name: MIG-1
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia4
    - path: /dev/nvidia-caps/nvidia-cap12
- name: GPU-5
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia5
      hostPath: /sim/nvidia5
";
        serde_json::from_value(yaml::parse(text).unwrap()).unwrap()
    }

    fn gpu(uuid: &str, device: &str, is_slice: bool) -> ContainerGpu {
        ContainerGpu {
            uuid: uuid.into(),
            device: device.into(),
            is_slice,
        }
    }

    #[test]
    fn a_spec_gives_the_devices_of_its_gpus_and_of_no_others() {
        let spec = spec();
        let targets = |gpus: &[ContainerGpu]| {
            let edits = spec.edits(gpus)?.unwrap();
            let targets: Vec<String> = edits.devices.into_iter().map(|(_, at)| at).collect();
            Some(targets.join(" "))
        };
        let by_device = gpu("GPU-3", "/dev/nvidia3", false);
        assert_eq!(
            targets(std::slice::from_ref(&by_device)).unwrap(),
            "/dev/nvidiactl /dev/nvidia3 /dev/dri/card1"
        );
        let by_name = gpu("GPU-5", "/elsewhere", false);
        assert_eq!(
            targets(&[by_device, by_name]).unwrap(),
            "/dev/nvidiactl /dev/nvidia3 /dev/dri/card1 /dev/nvidia5"
        );
        let slice = gpu("MIG-1", "/dev/nvidia4", true);
        assert!(
            targets(&[slice])
                .unwrap()
                .ends_with("/dev/nvidia-caps/nvidia-cap12")
        );
        // The one device of this file is a slice, and `all` is of several.
        assert_eq!(targets(&[gpu("MIG-2", "/dev/nvidia4", true)]), None);
        assert_eq!(targets(&[gpu("GPU-9", "/dev/nvidia9", false)]), None);
    }

    #[test]
    fn paths_upwards_and_hooks_of_others_are_refused() {
        let mut edits = GpuEdits::default();
        let upwards = Edits {
            device_nodes: vec![DeviceNode {
                path: "/dev/../etc/shadow".into(),
                host_path: String::new(),
            }],
            ..Edits::default()
        };
        assert!(
            edits
                .add(&upwards)
                .unwrap_err()
                .contains("no absolute path")
        );
        let own = std::env::temp_dir().join(format!("gstepd-hook-{}", std::process::id()));
        fs::write(&own, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let hook = |stage: &str| Edits {
            hooks: vec![Hook {
                hook_name: stage.into(),
                path: own.display().to_string(),
                ..Hook::default()
            }],
            ..Edits::default()
        };
        assert!(
            edits
                .add(&hook("createContainer"))
                .unwrap_err()
                .contains("only root can write")
        );
        // What is not called needs no look.
        edits.add(&hook("poststop")).unwrap();
        assert_eq!(edits, GpuEdits::default());
        fs::remove_file(&own).unwrap();
    }

    #[test]
    fn the_drivers_libraries_are_found_in_the_loaders_cache() {
        let listed = "3 libs found in cache `/etc/ld.so.cache'
\tlibnvidia-ml.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvidia-ml.so.1
\tlibcuda.so.1 (libc6) => /lib/i386-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1
\tlibc.so.6 (libc6,x86-64, OS ABI: Linux 3.2.0) => /lib/x86_64-linux-gnu/libc.so.6
";
        let known = of_cache(listed);
        let names: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["libcuda.so.1", "libnvidia-ml.so.1"]);
        assert!(known[0].1.contains("x86_64"));
    }

    #[test]
    fn lists_of_directories_grow_and_the_jobs_word_stands() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let mut all = BTreeMap::from([
            pair("LD_LIBRARY_PATH", "/own"),
            pair("CUDA_VISIBLE_DEVICES", ""),
        ]);
        let env = ["LD_LIBRARY_PATH=/nv", "CUDA_VISIBLE_DEVICES=all", "X=y"].map(str::to_owned);
        set_variables(&mut all, &env);
        assert_eq!(
            all,
            BTreeMap::from([
                pair("LD_LIBRARY_PATH", "/own:/nv"),
                pair("CUDA_VISIBLE_DEVICES", ""),
                pair("X", "y"),
            ])
        );
    }
}
