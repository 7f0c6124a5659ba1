//! `gslurm`: Slurm's commands. It is called through links of their names, which `gadm slurm-names` makes.
//!
//! Owns what is Slurm's own: words, columns, JSON. The work is done by the code of gsub, gq and gadm.

use gcli::pages::{ManPage, PRINT_PAGE};
use gcli::table::stdout;
use gcli::{Failure, Outcome, slurm_name};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

mod json;
mod ruled_table;
mod sacctmgr;
mod scontrol;
mod sdiag;
mod seff;
mod sinfo;
mod sprio;
mod squeue;
mod sreport;
mod sshare;

/// What each of `slurm_name::NAMES` runs. sbatch, srun, scancel and sstat differ from the commands of gpupool in a few words
/// only, which these know themselves.
const COMMANDS: [(&str, fn(Vec<OsString>) -> Outcome); 17] = [
    ("sacct", |words| gq::accounting::sacct(words, json::runs)),
    ("sacctmgr", sacctmgr::main),
    ("salloc", gsub::salloc::main),
    ("sattach", gsub::watch::main),
    ("sbatch", gsub::submit::main),
    ("sbcast", gsub::sbcast::main),
    ("scancel", gq::cancel::main),
    ("scontrol", scontrol::main),
    ("sdiag", sdiag::main),
    ("seff", seff::main),
    ("sinfo", sinfo::main),
    ("sprio", sprio::main),
    ("squeue", squeue::main),
    ("sreport", sreport::main),
    ("srun", gsub::watch::grun),
    ("sshare", sshare::main),
    ("sstat", gq::accounting::sstat),
];

fn main() -> ExitCode {
    gcli::failure::run("gslurm", || run(std::env::args_os().collect()))
}

/// Commands with options of their own, which have pages of their own.
const PAGES: [(&str, fn() -> ManPage); 3] = [
    ("salloc", gsub::salloc::page),
    ("sattach", gsub::watch::page),
    ("sbcast", gsub::sbcast::page),
];

fn run(words: Vec<OsString>) -> Outcome {
    let name = slurm_name::of(words.first());
    if let (None, [_, option, asked]) = (name, &words[..])
        && option == PRINT_PAGE
        && let Some((_, page)) = PAGES.iter().find(|(name, _)| asked == name)
    {
        stdout()?.write_all(&page().text()?)?;
        return Ok(0);
    }
    let command = COMMANDS.iter().find(|(known, _)| Some(*known) == name);
    match command {
        Some((_, main)) => main(words),
        None => Err(Failure::usage(
            "this program stands behind links of Slurm's names: eval $(gadm slurm-names DIR) makes them",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_its_command() {
        assert_eq!(COMMANDS.map(|(name, _)| name), slurm_name::NAMES);
    }
}
