//! Images for tests, made here by umoci from one static program: an OCI layout as a registry would send it.

use crate::pool::Pool;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const NEEDED: [&str; 3] = ["/usr/bin/crun", "/usr/bin/umoci", "/bin/busybox"];
const WORDS: [&str; 22] = [
    "sh", "ls", "cat", "id", "hostname", "mount", "mknod", "sleep", "env", "echo", "touch", "true",
    "mkdir", "stat", "chown", "grep", "head", "dd", "pwd", "kill", "chmod", "chroot",
];

/// An OCI layout below a pool's directory of jobs.
pub struct TestImage {
    pub layout: PathBuf,
}

impl TestImage {
    /// `None`, said aloud, where this machine has no runtime for containers.
    pub fn new(pool: &Pool, name: &str) -> Option<Self> {
        if let Some(missing) = NEEDED.iter().find(|path| !Path::new(path).exists()) {
            println!("NOT RUN: containers need {missing}; tests/setup.sh test installs it");
            return None;
        }
        let layout = pool.work.join(name);
        let root = pool.work.join(format!("{name}-files"));
        for dir in ["bin", "tmp", "etc", "srv"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
        for word in WORDS {
            symlink("busybox", root.join("bin").join(word)).unwrap();
        }
        fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
        fs::write(root.join("etc/made-by"), "umoci\n").unwrap();
        fs::write(root.join("bin/su"), "#!/bin/sh\nid -u\n").unwrap();
        fs::set_permissions(root.join("bin/su"), fs::Permissions::from_mode(0o4755)).unwrap();
        let image = Self { layout };
        image.umoci(&["init", "--layout", image.text()]);
        image.umoci(&["new", "--image", &image.tag("base")]);
        image.umoci(&[
            "insert",
            "--image",
            &image.tag("base"),
            root.to_str().unwrap(),
            "/",
        ]);
        image.configure(&[
            "--config.env=WHO=image",
            "--config.env=PATH=/bin",
            "--config.workingdir=/srv",
        ]);
        fs::remove_dir_all(root).unwrap();
        Some(image)
    }

    /// Changes what programs in the image find.
    pub fn configure(&self, words: &[&str]) {
        let image = self.tag("base");
        self.umoci(&[&["config", "--image", &image], words].concat());
        self.open_to_all();
    }

    /// Adds a tar file as it is, whatever its paths are.
    pub fn add_layer(&self, tar: &Path) {
        self.umoci(&[
            "raw",
            "add-layer",
            "--image",
            &self.tag("base"),
            tar.to_str().unwrap(),
        ]);
        self.open_to_all();
    }

    /// Names the last layer so many times in the manifest.
    pub fn repeat_layers(&self, more: usize) {
        let read = |path: &Path| -> serde_json::Value {
            serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
        };
        let index = self.layout.join("index.json");
        let mut list = read(&index);
        let digest = list["manifests"][0]["digest"]
            .as_str()
            .unwrap()
            .replace(':', "/");
        let mut manifest = read(&self.layout.join("blobs").join(digest));
        let layers = manifest["layers"].as_array_mut().unwrap();
        let last = layers.last().unwrap().clone();
        *layers = vec![last; more];
        let (name, text) = ("0".repeat(64), manifest.to_string());
        fs::write(self.layout.join("blobs/sha256").join(&name), &text).unwrap();
        list["manifests"][0]["digest"] = format!("sha256:{name}").into();
        fs::write(&index, list.to_string()).unwrap();
        self.open_to_all();
    }

    /// Of its manifest.
    pub fn digest(&self) -> String {
        let list = fs::read(self.layout.join("index.json")).unwrap();
        let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
        list["manifests"][0]["digest"].as_str().unwrap().to_owned()
    }

    /// Layers and the configuration of the image.
    pub fn blobs(&self) -> u32 {
        let read = |path: &Path| -> serde_json::Value {
            serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
        };
        let list = read(&self.layout.join("index.json"));
        let digest = list["manifests"][0]["digest"].as_str().unwrap();
        let manifest = read(&self.layout.join("blobs").join(digest.replace(':', "/")));
        manifest["layers"].as_array().unwrap().len() as u32 + 1
    }

    fn open_to_all(&self) {
        let open = Command::new("chmod")
            .args(["-R", "a+rX", self.text()])
            .status();
        assert!(open.unwrap().success());
    }

    /// As an OCI bundle that all may read.
    pub fn unpack(&self, bundle: &Path) {
        self.umoci(&[
            "unpack",
            "--image",
            &self.tag("base"),
            bundle.to_str().unwrap(),
        ]);
        let open = Command::new("chmod")
            .args(["-R", "a+rX"])
            .arg(bundle)
            .status();
        assert!(open.unwrap().success());
    }

    /// A squashfs of a directory, as `.sqsh` or within a `.sif`: its header and one descriptor before it.
    pub fn pack(root: &Path, file: &Path) {
        let squashfs = file.with_extension("packed");
        let said = Command::new("mksquashfs")
            .args([root, &squashfs])
            .args(["-noappend", "-all-root", "-quiet", "-no-progress"])
            .output()
            .unwrap();
        assert!(said.status.success(), "{said:?}");
        let bytes = fs::read(&squashfs).unwrap();
        let mut head = Vec::new();
        if file.extension().is_some_and(|end| end == "sif") {
            const OFFSET: usize = 4096;
            head.resize(OFFSET, 0);
            head[32..41].copy_from_slice(b"SIF_MAGIC");
            let mut number = |at: usize, value: usize| {
                head[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
            };
            // One descriptor, at 128: a partition that is used, a squashfs, the primary system.
            number(88, 1);
            number(96, 128);
            number(128, 0x4004 | 1 << 32);
            number(128 + 17, OFFSET);
            number(128 + 25, bytes.len());
            number(128 + 201, 1 | 2 << 32);
        }
        head.extend(bytes);
        fs::write(file, head).unwrap();
    }

    pub fn text(&self) -> &str {
        self.layout.to_str().unwrap()
    }

    pub fn tag(&self, tag: &str) -> String {
        format!("{}:{tag}", self.text())
    }

    fn umoci(&self, words: &[&str]) {
        let said = Command::new("umoci").args(words).output().unwrap();
        assert!(said.status.success(), "umoci {words:?}: {said:?}");
    }
}
