//! Where a sandbox keeps what, and the record of how it was started.
//!
//! ```text
//! DIR/sandbox.json  client.toml
//! DIR/gpuctld/      gpuctld.toml partitions.d/ state/ log pid
//! DIR/node1/        gpud.toml state/ spool/ dev/ nvml/ log pid
//! DIR/hollow/       gpud.toml state/h1/ ... log pid
//! /run/gpupool/HEX/ gpuctld.sock node1/gpud.sock major      (short: socket paths end at 107 bytes)
//! ```

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A sandbox on disk.
#[derive(Clone, Debug)]
pub struct Sandbox {
    pub dir: PathBuf,
    pub record: Record,
}

/// How it was started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Eight hex digits of the directory: in the names of everything that is not below it.
    pub tag: String,
    /// Node names, in order.
    pub nodes: Vec<String>,
    /// Port of the controller on 127.0.0.1.
    pub port: u16,
    /// Started by root: with fences and device files.
    pub isolated: bool,
    /// Where the programs were found.
    pub programs: PathBuf,
    /// Major of the simulated device files.
    pub major: Option<u32>,
    /// Nodes of the one process that only pretends; named `h1` and on.
    #[serde(default)]
    pub hollow_nodes: u32,
    /// GPUs each of them pretends to have.
    #[serde(default)]
    pub hollow_gpus: Option<String>,
}

/// The daemon that plays all hollow nodes.
pub const HOLLOW: &str = "hollow";

impl Sandbox {
    /// The sandbox in `given`, else the one GPUPOOL_CONFIG points into.
    pub fn find(given: Option<&Path>) -> anyhow::Result<Self> {
        let dir = match given {
            Some(dir) => dir.to_owned(),
            None => {
                let config = std::env::var_os("GPUPOOL_CONFIG").map(PathBuf::from);
                let dir = config
                    .as_deref()
                    .and_then(Path::parent)
                    .filter(|dir| dir.is_absolute());
                dir.context("which sandbox? Name its directory with --dir, or set GPUPOOL_CONFIG")?
                    .to_owned()
            }
        };
        let dir =
            fs::canonicalize(&dir).with_context(|| format!("{} is not there", dir.display()))?;
        let path = dir.join("sandbox.json");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{} holds no sandbox (no sandbox.json)", dir.display()))?;
        let record: Record = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged", path.display()))?;
        if record.tag != tag_of(&dir) {
            bail!(
                "{} was made for another directory; it was moved here",
                path.display()
            );
        }
        Ok(Self { dir, record })
    }

    pub fn save(&self) -> anyhow::Result<()> {
        let text = serde_json::to_vec_pretty(&self.record)?;
        gsys::durable_file::write_atomic(&self.dir.join("sandbox.json"), &text)?;
        Ok(())
    }

    pub fn client_config(&self) -> PathBuf {
        self.dir.join("client.toml")
    }
    /// Directory of a daemon: `gpuctld` or a node's name.
    pub fn home(&self, daemon: &str) -> PathBuf {
        self.dir.join(daemon)
    }
    pub fn run_dir(&self) -> PathBuf {
        run_dir(&self.record.tag)
    }
    pub fn socket(&self) -> PathBuf {
        self.run_dir().join("gpuctld.sock")
    }
    pub fn controller(&self) -> String {
        format!("127.0.0.1:{}", self.record.port)
    }
    /// Root of all cgroups of this sandbox.
    pub fn cgroup_tag(&self) -> String {
        format!("gpupool-{}", self.record.tag)
    }
    pub fn daemons(&self) -> impl Iterator<Item = &str> {
        let hollow = (self.record.hollow_nodes > 0).then_some(HOLLOW);
        std::iter::once("gpuctld")
            .chain(self.record.nodes.iter().map(String::as_str))
            .chain(hollow)
    }

    /// A daemon's name, or what there is instead.
    pub fn check_daemon<'a>(&self, name: &'a str) -> anyhow::Result<&'a str> {
        if self.daemons().any(|known| known == name) {
            return Ok(name);
        }
        let hint = gmodel::suggest::did_you_mean(name, self.daemons());
        let known: Vec<_> = self.daemons().collect();
        bail!(
            "this sandbox has no {name:?}.{hint} It has {}",
            known.join(", ")
        )
    }
}

/// Where sockets are: `/run/gpupool` for root, else the user's own run directory.
pub fn run_dir(tag: &str) -> PathBuf {
    let base = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        _ if nix::unistd::geteuid().is_root() => PathBuf::from("/run/gpupool"),
        Some(dir) if dir.is_absolute() => dir.join("gpupool"),
        _ => std::env::temp_dir().join(format!("gpupool-{}", nix::unistd::geteuid())),
    };
    base.join(tag)
}

/// Eight hex digits of a directory's path (FNV-1a): the same for the same path, so that `down` finds
/// what `up` made.
pub fn tag_of(dir: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let hash = dir
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{:08x}", (hash ^ (hash >> 32)) as u32)
}

/// Makes a directory and its parents, which all users may pass through.
pub fn make_open_dir(path: &Path) -> anyhow::Result<()> {
    make_dir(path, 0o755)
}

pub fn make_dir(path: &Path, mode: u32) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .with_context(|| format!("cannot make {}", path.display()))?;
    use std::os::unix::fs::PermissionsExt;
    let _ = fs::set_permissions(path, fs::Permissions::from_mode(mode));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_depends_on_the_whole_path_and_nothing_else() {
        let long = Path::new("/tmp").join("x".repeat(150));
        assert_eq!(tag_of(&long), tag_of(&long));
        assert_ne!(tag_of(&long), tag_of(&long.join("y")));
        assert_eq!(tag_of(Path::new("/a")).len(), 8);
        assert!(
            run_dir(&tag_of(&long))
                .join("gpuctld.sock")
                .as_os_str()
                .len()
                < 107
        );
    }
}
