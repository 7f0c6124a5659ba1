//! The controller's TOML: `gpuctld.toml` and the `partitions.d/*.toml` beside it, read as a whole or refused as a whole.
//!
//! Owns keys, defaults and bounds; every mistake is reported at once with its place. It never decides what a
//! setting does: the policy goes to the core as a [`ClusterConfig`]. Words are slurm.conf(5)'s where it has one.

mod cluster;
mod error;
mod partition;
mod section;

#[cfg(test)]
mod tests;

pub use error::ConfigError;

use error::{Errors, Source};
use gmodel::config::ClusterConfig;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Everything the administrator wrote, with defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What the core decides from.
    pub cluster: ClusterConfig,
    /// Database, certificates and token secrets; 0700.
    pub state_dir: PathBuf,
    /// Unix socket of the REST API; 0666, identity from SO_PEERCRED.
    pub socket: PathBuf,
    /// TLS port for nodes and forwarded requests.
    pub listen: SocketAddr,
    /// `HOST:PORT` that nodes dial and tokens carry.
    pub advertise: String,
    /// Below so many free bytes in `state_dir`, commands that write are refused.
    pub min_free_bytes: u64,
    /// Life of a node's certificate; it renews by itself after two thirds.
    pub node_cert_days: u32,
    /// Scripts and environments are removed this long after the job's end.
    pub keep_scripts_days: u32,
    /// A site's program that may check or change submissions.
    pub submit_hook: Option<Hook>,
    /// Keep every input of the core in `state_dir/trace` for replay.
    pub trace: bool,
}

/// A long-lived program of the site that reads and writes JSON lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    pub program: PathBuf,
    /// Ordinary system user it runs as.
    pub user: String,
    pub timeout_ms: u32,
    pub on_failure: OnFailure,
}

/// What becomes of a submission that the hook did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    Refuse,
    Accept,
}

impl Config {
    /// Reads the main file and `partitions.d/*.toml` in its directory.
    ///
    /// # Errors
    /// All mistakes of all files, in the order of the files and of the text.
    pub fn load(path: &Path) -> Result<Self, Vec<ConfigError>> {
        let mut errors = Errors::default();
        let Some(main) = Source::read(path, &mut errors) else { return Err(errors.into_sorted()) };
        let mut sources = vec![main];
        let dir = path.parent().unwrap_or(Path::new(".")).join("partitions.d");
        sources.extend(partition_files(&dir, &mut errors));
        Self::read(&sources, errors)
    }

    /// The first source is the main file, the others are files of `partitions.d`.
    fn read(sources: &[Source], mut errors: Errors) -> Result<Self, Vec<ConfigError>> {
        let mut partitions = partition::Partitions::default();
        let mut config = None;
        for (position, source) in sources.iter().enumerate() {
            let table = source.parse(&mut errors);
            if position == 0 {
                config = Some(cluster::read(source, &table, &mut errors));
            } else {
                partition::refuse_other_keys(source, &table, &mut errors);
            }
            partitions.read(source, &table, &mut errors);
        }
        let partitions = partitions.finish();
        match config {
            Some(mut config) if errors.is_empty() => {
                config.cluster.partitions = partitions;
                Ok(config)
            }
            _ => Err(errors.into_sorted()),
        }
    }

    /// Settings that differ and take effect only when gpuctld starts again.
    pub fn restart_needed(old: &Self, new: &Self) -> Vec<String> {
        let changed = [
            ("cluster", old.cluster.name != new.cluster.name),
            ("state_dir", old.state_dir != new.state_dir),
            ("socket", old.socket != new.socket),
            ("listen", old.listen != new.listen),
            ("advertise", old.advertise != new.advertise),
            ("trace", old.trace != new.trace),
        ];
        changed.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key.to_owned()).collect()
    }

    /// The new settings as far as they take effect without a restart.
    pub fn reloaded(old: &Self, new: &Self) -> Self {
        let mut cluster = new.cluster.clone();
        cluster.name.clone_from(&old.cluster.name);
        Self {
            cluster,
            state_dir: old.state_dir.clone(),
            socket: old.socket.clone(),
            listen: old.listen,
            advertise: old.advertise.clone(),
            trace: old.trace,
            ..new.clone()
        }
    }
}

/// The `*.toml` of a directory by name. A directory that is missing is an empty one.
fn partition_files(dir: &Path, errors: &mut Errors) -> Vec<Source> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            errors.unreadable(dir, &error);
            return Vec::new();
        }
    };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    paths.sort();
    paths.iter().filter_map(|path| Source::read(path, errors)).collect()
}
