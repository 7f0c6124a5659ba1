//! What a job or a step asks for of a container: the image by any of its spellings, mounts and the rest, in pyxis's option names.
//!
//! Text in, values out. Whether an image is there, and what a node can do with it, is the node's to say.
//! Source: the options of pyxis (args.c) and the image addresses of enroot(1).

use serde::{Deserialize, Serialize};
use std::fmt;

/// Names of the options, without dashes.
pub const IMAGE: &str = "container-image";
pub const BUNDLE: &str = "container";
const MAX_WORD_BYTES: usize = 1024;
const MAX_MOUNTS: usize = 64;
const MAX_VARIABLES: usize = 64;

/// A container as its options have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerSpec {
    /// As it was written; empty only beside `bundle` or `name`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// Slurm's `--container`: the directory of an OCI bundle.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bundle: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<ContainerMount>,
    /// Empty: the image's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub work_dir: String,
    /// Of a file system that stays on the node for a later step of the same name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// File for the file system as a squashfs when the step ends.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub save: String,
    /// Variables that keep the job's value where the image has one, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remap_root: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount_home: Option<bool>,
}

/// A directory or file of the node that the container sees, or a tmpfs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerMount {
    /// Absolute; empty: a new tmpfs.
    pub source: String,
    pub target: String,
    /// `ro`, `rprivate` and the like.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
}

/// Words of mounts that mean the same to mount(8), to crun and to enroot.
const FLAGS: [&str; 18] = [
    "ro", "rw", "bind", "rbind", "nosuid", "nodev", "noexec", "private", "rprivate", "slave",
    "rslave", "shared", "rshared", "suid", "dev", "exec", "noatime", "relatime",
];

/// Where an image is, by the way in which it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSource {
    /// A path on the node: a directory, an OCI layout, `.sqsh` or `.sif`.
    Path(String),
    /// `PATH[:TAG]` of an OCI layout.
    Layout { path: String, tag: String },
    /// Of a registry.
    Registry(RegistryImage),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryImage {
    /// Empty: the one that the address names no user of.
    pub user: String,
    pub host: String,
    /// `library/ubuntu`
    pub name: String,
    /// `:24.04` or `@sha256:...`
    pub version: String,
}

impl fmt::Display for RegistryImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}{}", self.host, self.name, self.version)
    }
}

impl ImageSource {
    /// Reads all spellings: a path with a slash or a dot first, `oci:PATH[:TAG]`, `docker://HOST/NAME:TAG`, `[USER@][HOST#]NAME[:TAG]`.
    ///
    /// # Errors
    /// A sentence that says what is wrong and what would do.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_WORD_BYTES || text.chars().any(char::is_control) {
            return Err(format!(
                "an image has a name of 1 to {MAX_WORD_BYTES} characters"
            ));
        }
        if let Some(layout) = text.strip_prefix("oci:") {
            let (path, tag) = split_tag(layout);
            return Ok(Self::Layout {
                path: path.to_owned(),
                tag: tag.to_owned(),
            });
        }
        if text.starts_with(['/', '.']) {
            return Ok(Self::Path(text.to_owned()));
        }
        let address = match text.split_once("://") {
            None => text,
            Some(("docker", address)) => address,
            Some((scheme, _)) => {
                return Err(format!(
                    "{scheme}:// images are not known here. Write docker://HOST/NAME:TAG, oci:PATH:TAG, or the path of a directory, a .sqsh or a .sif"
                ));
            }
        };
        registry_image(address).map(Self::Registry).ok_or_else(|| {
            format!("{text:?} is no image. Write HOST#NAME:TAG, docker://HOST/NAME:TAG, or a path that begins with / or ./")
        })
    }
}

/// A tag is what follows the last colon, unless that is part of a directory's name.
fn split_tag(text: &str) -> (&str, &str) {
    match text.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') && !tag.is_empty() => (path, tag),
        _ => (text, ""),
    }
}

fn registry_image(address: &str) -> Option<RegistryImage> {
    let (user, address) = match address.split_once('@') {
        Some((user, rest)) if !rest.starts_with("sha256:") => (user, rest),
        _ => ("", address),
    };
    let (host, rest) = match address.split_once('#') {
        Some((host, rest)) => (host, rest),
        None => match address.split_once('/') {
            Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => (host, rest),
            _ => ("docker.io", address),
        },
    };
    let (name, version) = match rest.split_once('@') {
        Some((name, digest)) => (split_tag(name).0, format!("@{digest}")),
        None => match split_tag(rest) {
            (name, "") => (name, String::new()),
            (name, tag) => (name, format!(":{tag}")),
        },
    };
    let is_word = |text: &str, more: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    let is_good = is_word(host, ".-:")
        && is_word(name, "._-/")
        && !name.contains("..")
        && !name.ends_with('/')
        && (version.is_empty() || is_word(&version[1..], "._-:"))
        && user
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-$+".contains(c));
    is_good.then(|| RegistryImage {
        user: user.to_owned(),
        host: host.to_owned(),
        name: if host == "docker.io" && !name.contains('/') {
            format!("library/{name}")
        } else {
            name.to_owned()
        },
        version,
    })
}

impl ContainerMount {
    /// `SRC:DST[:FLAGS]` or `SRC`, flags with `+` between them; `tmpfs:DST`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let (source, target, flags) = (
            parts.next().unwrap_or_default(),
            parts.next(),
            parts.next().unwrap_or_default(),
        );
        let target = target.unwrap_or(source);
        let is_path = |text: &str| text.starts_with(['/', '.']) && text.len() <= MAX_WORD_BYTES;
        if source == "umount" {
            return Err(format!(
                "{text}: nothing is unmounted for a container. Leave it out"
            ));
        }
        if parts.next().is_some() || !(is_path(source) || source == "tmpfs") || !is_path(target) {
            return Err(format!(
                "{text:?} is no mount. Write SRC:DST or SRC:DST:ro, with paths that begin with / or ./"
            ));
        }
        let flags: Vec<String> = flags
            .split('+')
            .filter(|flag| !flag.is_empty())
            .map(str::to_owned)
            .collect();
        if let Some(odd) = flags.iter().find(|flag| !FLAGS.contains(&flag.as_str())) {
            return Err(format!(
                "{text}: {odd:?} is no flag of a mount. Flags are {}",
                FLAGS.join(", ")
            ));
        }
        Ok(Self {
            source: if source == "tmpfs" {
                String::new()
            } else {
                source.to_owned()
            },
            target: target.to_owned(),
            flags,
        })
    }

    pub fn is_tmpfs(&self) -> bool {
        self.source.is_empty()
    }
}

impl ContainerSpec {
    /// Takes one option by its name without dashes. False: it is none of these.
    ///
    /// # Errors
    /// Its value, in a sentence without the option's name.
    pub fn take(&mut self, option: &str, value: &str) -> Result<bool, String> {
        let text = || match value.trim() {
            "" => Err("it is empty".to_owned()),
            word if word.len() > MAX_WORD_BYTES || word.contains('\0') => {
                Err(format!("{MAX_WORD_BYTES} characters are the most"))
            }
            word => Ok(word.to_owned()),
        };
        match option {
            // In a #SBATCH line a # begins a comment, and is written \#.
            IMAGE => {
                let image = text()?.replace("\\#", "#");
                ImageSource::parse(&image)?;
                self.image = image;
            }
            BUNDLE => self.bundle = text()?,
            "container-mounts" => self.mounts = few(value, MAX_MOUNTS, ContainerMount::parse)?,
            "container-workdir" => self.work_dir = text()?,
            "container-name" => self.name = container_name(&text()?)?,
            "container-save" => self.save = text()?,
            "container-env" => self.env = few(value, MAX_VARIABLES, variable)?,
            "container-entrypoint" => self.entrypoint = Some(true),
            "no-container-entrypoint" => self.entrypoint = Some(false),
            "container-remap-root" => self.remap_root = Some(true),
            "no-container-remap-root" => self.remap_root = Some(false),
            "container-writable" => self.writable = Some(true),
            "container-readonly" => self.writable = Some(false),
            "container-mount-home" => self.mount_home = Some(true),
            "no-container-mount-home" => self.mount_home = Some(false),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What was asked for, once all options are taken. `None`: no container.
    ///
    /// # Errors
    /// Options that need an image beside them, or exclude each other.
    pub fn complete(self) -> Result<Option<Self>, String> {
        if self == Self::default() {
            return Ok(None);
        }
        match (self.image.is_empty(), self.bundle.is_empty()) {
            (true, true) if self.name.is_empty() => {
                Err("there is no container without an image. Add --container-image".to_owned())
            }
            (false, false) => Err(
                "--container names a bundle, which has its own files. Leave out --container-image, or --container".to_owned(),
            ),
            _ => Ok(Some(self)),
        }
    }

    /// Relative paths begin where the submission was made.
    pub fn from_dir(&mut self, dir: &str) {
        let absolute = |path: &mut String| {
            if !path.is_empty() && !path.starts_with('/') {
                *path = format!("{dir}/{path}");
            }
        };
        if let Ok(ImageSource::Path(_)) = ImageSource::parse(&self.image) {
            absolute(&mut self.image);
        }
        absolute(&mut self.bundle);
        absolute(&mut self.save);
        self.mounts
            .iter_mut()
            .for_each(|mount| absolute(&mut mount.source));
    }

    /// Checks what came over the network as if its options had been read here.
    ///
    /// # Errors
    /// The first part that no option gives.
    pub fn check(&self) -> Result<(), String> {
        let mut again = Self::default();
        let words = [
            (IMAGE, &self.image),
            (BUNDLE, &self.bundle),
            ("container-workdir", &self.work_dir),
            ("container-name", &self.name),
            ("container-save", &self.save),
        ];
        for (option, value) in words.into_iter().filter(|(_, value)| !value.is_empty()) {
            again
                .take(option, value)
                .map_err(|why| format!("--{option}: {why}"))?;
        }
        if self.mounts.len() > MAX_MOUNTS || self.env.len() > MAX_VARIABLES {
            return Err(format!(
                "a container has {MAX_MOUNTS} mounts and {MAX_VARIABLES} variables at most"
            ));
        }
        for mount in &self.mounts {
            let source = if mount.is_tmpfs() {
                "tmpfs"
            } else {
                &mount.source
            };
            ContainerMount::parse(&format!(
                "{source}:{}:{}",
                mount.target,
                mount.flags.join("+")
            ))?;
        }
        self.env
            .iter()
            .try_for_each(|name| variable(name).map(drop))?;
        self.clone().complete().map(drop)
    }
}

fn few<T>(
    list: &str,
    most: usize,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let words: Vec<&str> = list.split(',').filter(|word| !word.is_empty()).collect();
    match words.len() {
        0 => Err("it is empty".to_owned()),
        many if many > most => Err(format!("{many} of them, and {most} are the most")),
        _ => words.into_iter().map(parse).collect(),
    }
}

fn container_name(text: &str) -> Result<String, String> {
    let name = match text.split_once(':') {
        None => text,
        Some((name, "auto")) => name,
        Some((_, flag)) => {
            return Err(format!(
                "the flag {flag:?} is not known here: a container of the name is used if it is there, else made. Write the name alone"
            ));
        }
    };
    let is_good = name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    is_good
        .then(|| name.to_owned())
        .ok_or_else(|| format!("{name:?} is no name: up to 64 letters, digits, '.', '_' and '-'"))
}

fn variable(name: &str) -> Result<String, String> {
    let is_good = name.len() <= 256
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_good
        .then(|| name.to_owned())
        .ok_or_else(|| format!("{name:?} is no name of a variable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(text: &str) -> String {
        match ImageSource::parse(text) {
            Ok(ImageSource::Registry(image)) => image.to_string(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn one_image_has_many_spellings() {
        for (text, image) in [
            ("ubuntu", "docker.io/library/ubuntu"),
            ("almalinux:9", "docker.io/library/almalinux:9"),
            (
                "nvcr.io#nvidia/pytorch:21.12-py3",
                "nvcr.io/nvidia/pytorch:21.12-py3",
            ),
            (
                "docker://nvcr.io#nvidia/pytorch:21.12-py3",
                "nvcr.io/nvidia/pytorch:21.12-py3",
            ),
            (
                "docker://$oauthtoken@nvcr.io#nvidia/x:1",
                "nvcr.io/nvidia/x:1",
            ),
            ("nvcr.io/nvidia/nemo:24.05", "nvcr.io/nvidia/nemo:24.05"),
            ("127.0.0.1:5000/a:b", "127.0.0.1:5000/a:b"),
            (
                "127.0.0.1:5000#a@sha256:00ff",
                "127.0.0.1:5000/a@sha256:00ff",
            ),
        ] {
            assert_eq!(registry(text), image, "{text}");
        }
        assert_eq!(
            ImageSource::parse("./x.sqsh"),
            Ok(ImageSource::Path("./x.sqsh".into()))
        );
        assert_eq!(
            ImageSource::parse("oci:/srv/img:base"),
            Ok(ImageSource::Layout {
                path: "/srv/img".into(),
                tag: "base".into()
            })
        );
        for odd in [
            "",
            "-v",
            "a b",
            "../../etc/passwd:x\n",
            "nvcr.io#../x",
            "podman://x",
            "x;y",
            "a//",
        ] {
            assert!(ImageSource::parse(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn mounts_are_read_as_pyxis_does() {
        let read = |text: &str| ContainerMount::parse(text);
        let mount = read("/lustre:/data:ro+rprivate").unwrap();
        assert_eq!(
            (mount.source.as_str(), mount.target.as_str()),
            ("/lustre", "/data")
        );
        assert_eq!(mount.flags, ["ro", "rprivate"]);
        assert_eq!(read("/lustre").unwrap().target, "/lustre");
        assert!(read("tmpfs:/scratch").unwrap().is_tmpfs());
        for odd in [
            "lustre:/data",
            "/a:b",
            "/a:/b:upside-down",
            "/a:/b:ro:more",
            "umount:/proc",
        ] {
            assert!(read(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn what_comes_over_the_network_is_checked_like_options() {
        let mut spec = ContainerSpec::default();
        assert_eq!(
            spec.take("container-image", "nvcr.io\\#nvidia/cuda:12"),
            Ok(true)
        );
        assert_eq!(spec.take("container-mounts", "/a:/b,/c"), Ok(true));
        assert_eq!(spec.take("time", "1"), Ok(false));
        assert_eq!(spec.check(), Ok(()));
        assert_eq!(spec.image, "nvcr.io#nvidia/cuda:12");
        let with = |change: fn(&mut ContainerSpec)| {
            let mut spec = spec.clone();
            change(&mut spec);
            spec.check().is_err()
        };
        assert!(with(|spec| spec.image = "--privileged".into()));
        assert!(with(|spec| spec.name = "../x".into()));
        assert!(with(|spec| spec.env = vec!["A=B".into()]));
        assert!(with(
            |spec| spec.mounts = vec![ContainerMount::default(); 65]
        ));
        assert!(with(|spec| spec.image.clear()));
    }

    #[test]
    fn relative_paths_begin_at_the_submission() {
        let mut spec = ContainerSpec::default();
        spec.take("container-image", "./x.sqsh").unwrap();
        spec.take("container-mounts", "./data:/data").unwrap();
        spec.from_dir("/home/ada");
        assert_eq!(spec.image, "/home/ada/./x.sqsh");
        assert_eq!(spec.mounts[0].source, "/home/ada/./data");
    }
}
