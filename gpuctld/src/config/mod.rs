//! The controller's TOML: `gpuctld.toml` with `topology.toml`, `partitions.d/*.toml` and `policy.d/*.toml` beside it, read as a
//! whole or refused as a whole.
//!
//! Owns which files there are; what stands in them is [`gconfig`]'s, but for the daemon's own keys. Every mistake is reported
//! at once with its place. It never decides what a setting does: the policy goes to the core as a [`ClusterConfig`].

mod daemon;
pub mod settings;
mod webhook;

#[cfg(test)]
mod tests;

pub use gconfig::error::ConfigError;
pub use gconfig::idle::sense as idle_sense;
pub use gconfig::name::is_user;
pub use gconfig::partition::sense as partition_sense;
pub use gconfig::policy::RecordKind;
pub use gconfig::policy_text::policy_text;
pub use settings::{
    Config, HttpsSettings, LiveSettings, MailSettings, MailTls, WebhookSettings, WebhookTemplate,
};

use chrono::{DateTime, TimeDelta, TimeZone as _};
use gconfig::error::{Errors, Source};
use gconfig::policy::Records;
use gconfig::{partition, policy, policy_check, topology};
use gmodel::Timestamp;
use gmodel::billing::UsedPrices;
use gmodel::config::ClusterConfig;
use gmodel::policy::Policy;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Largest configuration file that is read, bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

impl Config {
    /// Reads the main file and, in its directory, `topology.toml`, `partitions.d/*.toml` and `policy.d/*.toml`.
    ///
    /// # Errors
    /// All mistakes of all files, in the order of the files and of the text.
    pub fn load(path: &Path) -> Result<Self, Vec<ConfigError>> {
        Self::load_after(path, None)
    }

    /// As [`Self::load`]; prices that were used are not rewritten.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_after(
        path: &Path,
        used_prices: Option<(UsedPrices, Timestamp)>,
    ) -> Result<Self, Vec<ConfigError>> {
        let mut errors = Errors::with_local(machine_time);
        errors.used_prices = used_prices;
        let Some(main) = read_source(path, &mut errors) else {
            return Err(errors.into_sorted());
        };
        let mut sources = vec![(FileKind::Main, main)];
        let dir = path.parent().unwrap_or(Path::new("."));
        for (part, name) in [
            (FileKind::Partitions, "partitions.d"),
            (FileKind::Policy, "policy.d"),
        ] {
            sources.extend(
                files_of(&dir.join(name), &mut errors)
                    .into_iter()
                    .map(|source| (part, source)),
            );
        }
        let topology = dir.join("topology.toml");
        if topology.exists() {
            sources.extend(
                read_source(&topology, &mut errors).map(|source| (FileKind::Topology, source)),
            );
        }
        Self::read(&sources, errors)
    }

    fn read(sources: &[(FileKind, Source)], mut errors: Errors) -> Result<Self, Vec<ConfigError>> {
        let mut partitions = partition::Partitions::default();
        let mut records = Records::default();
        let mut config = None;
        let mut topology = None;
        for (part, source) in sources {
            let table = source.parse(&mut errors);
            match part {
                FileKind::Main => config = Some(daemon::read(source, &table, &mut errors)),
                FileKind::Partitions => partition::refuse_other_keys(source, &table, &mut errors),
                FileKind::Policy => {
                    policy::refuse_other_keys(source, &table, "files of policy.d", &mut errors)
                }
                FileKind::Topology => topology = Some(topology::read(source, &table, &mut errors)),
            }
            if matches!(part, FileKind::Main | FileKind::Partitions) {
                partitions.read(source, &table, &mut records, &mut errors);
            }
            if matches!(part, FileKind::Main | FileKind::Policy) {
                records.read(source, &table, &mut errors);
            }
        }
        let partitions = partitions.finish();
        let default_account = config.as_ref().map_or_else(
            || ClusterConfig::default().default_account,
            |config: &Config| config.cluster.default_account.clone(),
        );
        policy_check::check(
            &records,
            &partitions.list,
            &Policy::default(),
            &default_account,
            &mut errors,
        );
        policy_check::lasting(&records, &mut errors);
        match config {
            Some(mut config) if errors.is_empty() => {
                config.cluster.partitions = partitions.list;
                config.cluster.scheduler.topology = topology.unwrap_or_default();
                config.cluster.policy = records.policy;
                config.places = records.places;
                let places = partitions.places.into_iter();
                config
                    .places
                    .extend(places.map(|(name, place)| ((RecordKind::Partition, name), place)));
                Ok(config)
            }
            _ => Err(errors.into_sorted()),
        }
    }
}

/// The kind of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    Main,
    Partitions,
    Policy,
    Topology,
}

/// Accounts, QOS and reservations of a text in the form of `policy.d`. What a configuration has may be mentioned.
///
/// # Errors
/// All mistakes, each with its place in the text.
pub fn read_policy(
    name: &str,
    text: &str,
    config: &ClusterConfig,
) -> Result<Policy, Vec<ConfigError>> {
    let mut errors = Errors::with_local(machine_time);
    let source = Source::new(Path::new(name), text, &mut errors);
    let table = source.parse(&mut errors);
    policy::refuse_other_keys(&source, &table, "policies", &mut errors);
    let mut records = Records::default();
    records.read(&source, &table, &mut errors);
    policy_check::check(
        &records,
        &config.partitions,
        &config.policy,
        &config.default_account,
        &mut errors,
    );
    if errors.is_empty() {
        Ok(records.policy)
    } else {
        Err(errors.into_sorted())
    }
}

/// The first thing in records that a file of them could not say: what an export prints is read back as it is.
pub fn beyond_files(policy: &Policy) -> Option<String> {
    let mut errors = Errors::with_local(machine_time);
    let source = Source::new(Path::new("export"), &policy_text(policy), &mut errors);
    let table = source.parse(&mut errors);
    Records::default().read(&source, &table, &mut errors);
    let first = errors.into_sorted().into_iter().next()?;
    Some(if first.hint.is_empty() {
        first.message
    } else {
        format!("{}: {}", first.message, first.hint)
    })
}

/// The `*.toml` of a directory by name. A directory that is missing is an empty one.
fn files_of(dir: &Path, errors: &mut Errors) -> Vec<Source> {
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
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect();
    paths.sort();
    paths
        .iter()
        .filter_map(|path| read_source(path, errors))
        .collect()
}

fn read_source(path: &Path, errors: &mut Errors) -> Option<Source> {
    match read_regular(path) {
        Ok(text) => Some(Source::new(path, &text, errors)),
        Err(error) => {
            errors.unreadable(path, &error);
            None
        }
    }
}

/// A FIFO is not waited for, and a device not read to its end.
fn read_regular(path: &Path) -> std::io::Result<String> {
    let file = File::options()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 {
        0..=MAX_FILE_BYTES => Ok(text),
        bytes => Err(std::io::Error::other(format!(
            "{} bytes; at most {MAX_FILE_BYTES} are read",
            bytes.max(metadata.len())
        ))),
    }
}

/// A local time of this machine. One that is skipped begins at the next that is there; one that comes twice, at the first.
fn machine_time(millis: i64) -> Option<Timestamp> {
    let civil = DateTime::from_timestamp_millis(millis)?.naive_utc();
    let later = |mins: i64| {
        chrono::Local
            .from_local_datetime(&(civil + TimeDelta::minutes(mins)))
            .earliest()
    };
    (0..=180)
        .find_map(later)
        .map(|at| Timestamp(at.timestamp_millis()))
}
