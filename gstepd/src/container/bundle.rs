//! The OCI bundle of a container: what the runtime is to make of an image's files and the user's wishes. Text in, text out.

use crate::container::ContainerError;
use crate::container::gpus::GpuEdits;
use crate::container::order::ContainerOrder;
use gmodel::container::ContainerMount;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the node itself puts into each container, where it is there: the same processes, devices without a right, and memory and
/// files that steps of the job share.
const OWN_MOUNTS: [(&str, &[&str]); 8] = [
    ("/proc", &["rbind", "nosuid", "nodev", "noexec"]),
    ("/sys", &["rbind", "ro", "nosuid", "nodev", "noexec"]),
    ("/dev/pts", &["rbind", "nosuid", "noexec"]),
    ("/dev/shm", &["rbind", "nosuid", "nodev"]),
    ("/tmp", &["rbind", "nosuid", "nodev"]),
    ("/etc/hosts", &["bind", "ro", "nosuid", "nodev"]),
    ("/etc/hostname", &["bind", "ro", "nosuid", "nodev"]),
    ("/etc/resolv.conf", &["bind", "ro", "nosuid", "nodev"]),
];
/// The first of them, before anything in /dev.
const FIRST: usize = 2;
/// Cards of InfiniBand are for all; what a job may open of GPUs is in its order.
const SHARED_DEVICES: [&str; 1] = ["/dev/infiniband"];

/// In order: what is mounted later lies over what came before.
fn mounts(order: &ContainerOrder, gpus: &GpuEdits, is_there: impl Fn(&str) -> bool) -> Vec<Value> {
    let mut mounts: Vec<Value> = Vec::new();
    let own = OWN_MOUNTS.iter().filter(|(path, _)| is_there(path));
    let own: Vec<Value> = own
        .map(|(path, options)| mount(path, path, options))
        .collect();
    mounts.extend(own.iter().take(FIRST).cloned());
    mounts.push(tmpfs(
        "/sys/fs/cgroup",
        &["ro", "nosuid", "nodev", "noexec"],
    ));
    mounts.push(tmpfs("/dev", &["nosuid", "noexec", "mode=755", "size=64k"]));
    mounts.extend(own.into_iter().skip(FIRST));
    mounts.extend(
        devices(order, gpus)
            .iter()
            .filter(|(source, _)| is_there(source))
            .map(|(source, target)| mount(source, target, &["bind", "nosuid", "noexec"])),
    );
    let shared = SHARED_DEVICES.iter().filter(|path| is_there(path));
    mounts.extend(shared.map(|path| mount(path, path, &["rbind", "nosuid", "noexec"])));
    mounts.extend(gpus.mounts.iter().map(|one| {
        let options: Vec<&str> = one.options.iter().map(String::as_str).collect();
        mount(&one.source, &one.target, &with_bind(options))
    }));
    if order.spec.mount_home == Some(true) && is_there(&order.home) {
        mounts.push(mount(
            &order.home,
            &order.home,
            &["rbind", "nosuid", "nodev"],
        ));
    }
    mounts.extend(order.spec.mounts.iter().map(of_user));
    let files = order.files.iter().filter(|path| is_there(path));
    mounts.extend(files.map(|path| mount(path, path, &["bind", "nosuid", "nodev"])));
    mounts
}

/// Each place once: those of the run's own GPUs, and what the driver needs besides.
fn devices(order: &ContainerOrder, gpus: &GpuEdits) -> Vec<(String, String)> {
    let of_gpus = order.gpus.iter().map(|gpu| {
        let name = gpu.device.rsplit('/').next().unwrap_or_default();
        (gpu.device.clone(), format!("/dev/{name}"))
    });
    let of_driver = order.driver.devices.iter().chain(&gpus.devices).cloned();
    let mut all: Vec<(String, String)> = Vec::new();
    for (source, target) in of_gpus.chain(of_driver) {
        if !all.iter().any(|(_, known)| *known == target) {
            all.push((source, target));
        }
    }
    all
}

/// `config.json` for a container whose files are at `root`. `is_there` says whether a path is on the node.
pub fn config(
    order: &ContainerOrder,
    gpus: &GpuEdits,
    root: &Path,
    is_there: impl Fn(&str) -> bool,
) -> String {
    let mounts = mounts(order, gpus, is_there);
    let mut hooks: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for (stage, hook) in &gpus.hooks {
        hooks.entry(stage).or_default().push(hook);
    }
    let id = |own: u32| if order.is_root_inside() { 0 } else { own };
    let (uid, gid) = (id(order.uid), id(order.gid));
    let mut namespaces = vec![json!({"type": "mount"})];
    let mut linux = json!({"maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"]});
    if !order.is_root_inside() {
        // The runtime is root of a namespace that has this user alone; one below it has the user's own number.
        namespaces.push(json!({"type": "user"}));
        linux["uidMappings"] = json!([{"containerID": uid, "hostID": 0, "size": 1}]);
        linux["gidMappings"] = json!([{"containerID": gid, "hostID": 0, "size": 1}]);
    }
    linux["namespaces"] = json!(namespaces);
    json!({
        "ociVersion": "1.0.2",
        "root": {"path": root, "readonly": order.spec.writable == Some(false)},
        "process": {
            "terminal": false,
            "user": {"uid": uid, "gid": gid},
            // Never started: tasks join the container's namespaces. It has to be a program that each image has.
            "args": ["/proc/self/exe"],
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": {},
        },
        "hooks": hooks,
        "mounts": mounts,
        "linux": linux,
    })
    .to_string()
}

fn mount(source: &str, target: &str, options: &[&str]) -> Value {
    json!({"source": source, "destination": target, "type": "bind", "options": options})
}

fn tmpfs(target: &str, options: &[&str]) -> Value {
    json!({"source": "tmpfs", "destination": target, "type": "tmpfs", "options": options})
}

fn of_user(asked: &ContainerMount) -> Value {
    let target = format!(
        "/{}",
        asked
            .target
            .trim_start_matches("./")
            .trim_start_matches('/')
    );
    let mut options: Vec<&str> = asked.flags.iter().map(String::as_str).collect();
    if asked.is_tmpfs() {
        options.retain(|flag| !flag.ends_with("bind"));
        options.extend(["nosuid", "nodev"]);
        return tmpfs(&target, &options);
    }
    mount(&asked.source, &target, &with_bind(options))
}

fn with_bind(mut options: Vec<&str>) -> Vec<&str> {
    if !options.iter().any(|flag| flag.ends_with("bind")) {
        options.push("rbind");
    }
    options
}

/// What of an OCI bundle made elsewhere counts: its files, its environment and its directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GivenBundle {
    pub root: GivenRoot,
    pub process: GivenProcess,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GivenRoot {
    pub path: PathBuf,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GivenProcess {
    pub env: Vec<String>,
    pub cwd: String,
}

impl GivenBundle {
    /// # Errors
    /// It is none.
    pub fn parse(text: &[u8], dir: &Path) -> Result<Self, ContainerError> {
        let mut bundle: Self = serde_json::from_slice(text).map_err(|e| {
            ContainerError::user(format_args!(
                "{}/config.json cannot be read: {e}",
                dir.display()
            ))
        })?;
        if bundle.root.path.as_os_str().is_empty() {
            return Err(ContainerError::user(format_args!(
                "{} names no root.path",
                dir.display()
            )));
        }
        bundle.root.path = dir.join(&bundle.root.path);
        Ok(bundle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::order::ContainerGpu;
    use gmodel::container::ContainerSpec;

    fn order(options: &[(&str, &str)]) -> ContainerOrder {
        let mut spec = ContainerSpec::default();
        for (option, value) in options {
            assert_eq!(spec.take(option, value), Ok(true));
        }
        ContainerOrder {
            spec,
            uid: 1000,
            gid: 100,
            home: "/home/ada".into(),
            gpus: ["/dev/nvidia3", "/run/x/dev/nvidia4"]
                .map(|device| ContainerGpu {
                    device: device.into(),
                    ..ContainerGpu::default()
                })
                .to_vec(),
            ..ContainerOrder::default()
        }
    }

    fn read(order: &ContainerOrder) -> Value {
        let text = config(
            order,
            &GpuEdits::default(),
            Path::new("/box/merged"),
            |path| path != "/dev/infiniband",
        );
        serde_json::from_str(&text).unwrap()
    }

    fn targets(config: &Value) -> Vec<&str> {
        let mounts = config["mounts"].as_array().unwrap();
        mounts
            .iter()
            .map(|mount| mount["destination"].as_str().unwrap())
            .collect()
    }

    #[test]
    fn a_container_sees_the_gpus_of_its_order_and_no_cgroup() {
        let config = read(&order(&[]));
        let targets = targets(&config);
        assert!(targets.contains(&"/dev/nvidia3") && targets.contains(&"/dev/nvidia4"));
        assert!(!targets.contains(&"/home/ada") && !targets.contains(&"/dev/infiniband"));
        let at = |target: &str| targets.iter().position(|known| *known == target).unwrap();
        assert!(
            at("/sys") < at("/sys/fs/cgroup")
                && at("/dev") < at("/dev/pts")
                && at("/dev") < at("/dev/nvidia3")
        );
        assert_eq!(config["mounts"][at("/sys/fs/cgroup")]["type"], "tmpfs");
    }

    #[test]
    fn the_user_keeps_its_number_or_is_called_root() {
        let plain = read(&order(&[]));
        assert_eq!(plain["process"]["user"]["uid"], 1000);
        assert_eq!(plain["linux"]["uidMappings"][0]["containerID"], 1000);
        assert_eq!(plain["linux"]["gidMappings"][0]["containerID"], 100);
        let root = read(&order(&[("container-remap-root", "")]));
        assert_eq!(root["process"]["user"]["uid"], 0);
        assert!(root["linux"]["uidMappings"].is_null());
    }

    #[test]
    fn mounts_come_with_their_flags() {
        let config = read(&order(&[
            (
                "container-mounts",
                "/lustre:/data:ro+rprivate,tmpfs:/scratch",
            ),
            ("container-readonly", ""),
            ("container-mount-home", ""),
        ]));
        let find = |target: &str| {
            let mounts = config["mounts"].as_array().unwrap();
            mounts
                .iter()
                .find(|mount| mount["destination"] == target)
                .unwrap()
                .clone()
        };
        assert_eq!(find("/data")["options"], json!(["ro", "rprivate", "rbind"]));
        assert_eq!(find("/scratch")["type"], "tmpfs");
        assert_eq!(find("/home/ada")["source"], "/home/ada");
        assert_eq!(config["root"]["readonly"], true);
    }

    #[test]
    fn a_bundle_without_files_is_none() {
        let dir = Path::new("/b");
        assert!(GivenBundle::parse(b"{}", dir).is_err() && GivenBundle::parse(b"[", dir).is_err());
        let text =
            br#"{"root":{"path":"rootfs"},"process":{"env":["A=b"],"cwd":"/w","args":["x"]}}"#;
        assert_eq!(
            GivenBundle::parse(text, dir).unwrap().root.path,
            Path::new("/b/rootfs")
        );
    }
}
