//! Called by the name of Slurm's command: `sbatch` may be a link to `gsub`, `squeue` one to `gq`, and programs that come from
//! Slurm then find what they read there: columns, first lines, names of files.
//!
//! Owns the question and what such a command says of its version; what differs is each command's affair.

use clap::Command;
use std::ffi::OsStr;
use std::path::Path;

/// Slurm's commands, each with ours that stands in for it.
pub const NAMES: [(&str, &str); 14] = [
    ("sbatch", "gsub"),
    ("squeue", "gq"),
    ("sprio", "gq"),
    ("sacct", "gacct"),
    ("sstat", "gacct"),
    ("seff", "gacct"),
    ("scancel", "gdel"),
    ("sinfo", "gnodes"),
    ("srun", "grun"),
    ("scontrol", "gadm"),
    ("sacctmgr", "gadm"),
    ("sshare", "gadm"),
    ("sdiag", "gadm"),
    ("sreport", "gadm"),
];

/// Whose options and formats we know. Programs read the number behind the first word.
pub const VERSION: &str = concat!(
    "slurm 25.05.0 (as gpupool ",
    env!("CARGO_PKG_VERSION"),
    " speaks it)"
);

/// Which of Slurm's names the first word of a command line is, the program itself.
pub fn of(program: Option<impl AsRef<OsStr>>) -> Option<&'static str> {
    let program = program
        .as_ref()
        .and_then(|program| Path::new(program.as_ref()).file_name()?.to_str())?;
    NAMES
        .into_iter()
        .map(|(name, _)| name)
        .find(|name| *name == program)
}

/// Whether it is one of them.
pub fn is_one(program: Option<impl AsRef<OsStr>>) -> bool {
    of(program).is_some()
}

/// The command, which calls itself Slurm where `--version` asks if it was called so.
pub(crate) fn versioned(command: Command, program: Option<impl AsRef<OsStr>>) -> Command {
    match (is_one(program), VERSION.split_once(' ')) {
        (true, Some((name, version))) => command.display_name(name).version(version),
        _ => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slurms_own_names_count() {
        assert!(is_one(Some("sbatch")) && is_one(Some("/usr/local/bin/squeue")));
        assert!(
            !is_one(Some("/usr/bin/gsub"))
                && !is_one(Some("my-sbatch"))
                && !is_one(Some("sbatch.bak"))
        );
        assert!(!is_one(None::<&str>));
    }

    #[test]
    fn a_version_is_found_where_programs_look_for_it() {
        let number = VERSION
            .strip_prefix("slurm ")
            .unwrap()
            .split(' ')
            .next()
            .unwrap();
        assert_eq!(
            number
                .split('.')
                .filter(|part| part.parse::<u32>().is_ok())
                .count(),
            3,
            "{number}"
        );
    }
}
