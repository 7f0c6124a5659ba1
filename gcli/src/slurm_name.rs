//! Slurm's names: the program `gslurm` stands behind links of these names, and reads from its own which command it is.
//!
//! Owns the list of names and the version that they report; what a command does differently under its name is its own affair.

use clap::Command;
use std::ffi::OsStr;
use std::path::Path;

/// Commands of Slurm that `gslurm` stands in for.
pub const NAMES: [&str; 17] = [
    "sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "sdiag",
    "seff", "sinfo", "sprio", "squeue", "sreport", "srun", "sshare", "sstat",
];

/// The release of Slurm that options and formats follow. Programs read the number behind the first word.
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
    NAMES.into_iter().find(|name| *name == program)
}

/// Whether the first word of a command line is one of Slurm's names.
pub fn is_one(program: Option<impl AsRef<OsStr>>) -> bool {
    of(program).is_some()
}

/// The command with Slurm's version where it was called by a name of Slurm's.
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
